"""A SuperLink that lets other machines do no more than sites have to: ``python gate.py ARGUMENTS OF flower-superlink``.

A SuperLink of Flower has one port for all: sites sign in there, and anybody who can reach it starts runs there.
A run brings code, which is run beside the SuperLink and behind every SuperNode. With this gate, only processes on the
SuperLink's own machine may start runs or register sites.
"""

from __future__ import annotations

import ipaddress
from typing import Any

FOR_SITES = "/v1/fleet/"
REFUSED = b"Only sites may connect from another machine."


class Gate:
    """Refuses what is not for sites, unless it comes from this machine."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Let a request through, or refuse it."""
        if scope["type"] == "lifespan" or is_allowed(scope["path"], scope.get("client"), scope.get("server")):
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(REFUSED)).encode())]
            await send({"type": "http.response.start", "status": 403, "headers": headers})
            await send({"type": "http.response.body", "body": REFUSED})
        else:
            await send({"type": "websocket.close", "code": 1008})


def is_allowed(path: str, client: tuple[str, int] | None, server: tuple[str, int] | None) -> bool:
    """Whether a client, at an address, may ask a server, at another, for a path.

    >>> is_allowed("/v1/fleet/pull-messages", ("10.0.0.5", 50000), ("10.0.0.9", 8000))
    True
    >>> [is_allowed("/v1/control/start-run", (host, 50000), ("10.0.0.9", 8000)) for host in ("10.0.0.5", "10.0.0.9")]
    [False, True]
    """
    if path.startswith(FOR_SITES):
        return True
    return client is not None and (_is_loopback(client[0]) or (server is not None and client[0] == server[0]))


def _is_loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def main() -> None:
    """Run flower-superlink with a gate before its app."""
    from flwr.superlink import main as superlink
    from flwr.superlink.cli.flower_superlink import flower_superlink

    create = superlink.create_app

    def guarded(*args: Any, **options: Any) -> Any:
        app = create(*args, **options)
        app.add_middleware(Gate)
        return app

    superlink.create_app = guarded
    flower_superlink()


if __name__ == "__main__":
    main()
