"""What is checked before anything is done with a request: its host, its bytes, and the seconds until it is there."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

PATIENCE = 30.0  # seconds


class BoundedBody:
    """Reads the body of a request before the application does; one that is too large, or too slow, is refused."""

    def __init__(self, app: ASGIApp, largest: int) -> None:
        self.app, self.largest = app, largest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on with its whole body, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(PATIENCE):
                body = await self._body(receive)
        except TimeoutError:
            await _refuse(408, f"Expected a request within {PATIENCE:g} seconds, got a part of one.", scope, send)
            return
        if body is None:
            most = f"{self.largest:,} bytes"
            sentence = f"Expected a request of at most {most}, got more: send fewer rows at once."
            await _refuse(413, sentence, scope, send)
            return
        whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def again() -> Message:
            return whole.pop() if whole else await receive()

        await self.app(scope, again, send)

    async def _body(self, receive: Receive) -> bytes | None:
        """All bytes; None if there are too many. The rest is read and forgotten: who still sends reads no answer."""
        body, size, more = bytearray(), 0, True
        while more:
            message = await receive()
            part = message.get("body", b"")
            more, size = message.get("more_body", False), size + len(part)
            body.extend(part) if size <= self.largest else body.clear()
        return bytes(body) if size <= self.largest else None


class KnownHosts:
    """Refuses requests by other names: with a name of its own for this machine, a web page could read the answers."""

    def __init__(self, app: ASGIApp, hosts: Sequence[str]) -> None:
        self.app, self.hosts = app, tuple(each.lower() for each in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "http" and self.hosts:
            called = re.sub(r":\d*$", "", Headers(scope=scope).get("host", "")).lower()
            if called not in self.hosts:
                sentence = f"Expected a request to {self.hosts[0]!r}, got one to {called!r}: this service is local."
                await _refuse(400, sentence, scope, send)
                return
        await self.app(scope, receive, send)


async def _refuse(status: int, sentence: str, scope: Scope, send: Send) -> None:
    async def nothing() -> Message:
        return {"type": "http.disconnect"}

    await JSONResponse({"error": sentence}, status, {"Connection": "close"})(scope, nothing, send)
