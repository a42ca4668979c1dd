"""A live page of a federation: who is there, how far the run is, and what every site has sent."""

from __future__ import annotations

import json
import signal
import socket
import threading
from dataclasses import asdict
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from kinfolk.checks import InputError
from kinfolk.federation.agreement import Agreement
from kinfolk.federation.operating import read_members, read_status, read_traffic
from kinfolk.report.page import templates
from kinfolk.serving.ports import LOOPBACK_NAMES, is_loopback

TEXT, JSON = "text/html; charset=utf-8", "application/json"


def facts(folder: Path) -> dict[str, Any]:
    """What is known of a federation now, as plain data."""
    agreement = Agreement.read(folder)
    return {
        "name": agreement.name, "sites": list(agreement.sites), "status": asdict(read_status(folder)),
        "members": read_members(folder), "traffic": read_traffic(folder),
    }  # fmt: skip


def watch(folder: Path, listening: socket.socket, host: str) -> None:
    """Answer browsers until the process is told to stop (SIGTERM or Ctrl-C)."""
    facts(folder)  # refused before anything is served
    names = (*LOOPBACK_NAMES, host) if is_loopback(host) else None
    page = templates().get_template("watch.html").render(name=Agreement.read(folder).name).encode()
    server = ThreadingHTTPServer(listening.getsockname()[:2], _handler(folder, page, names), bind_and_activate=False)
    server.socket.close()
    server.socket = listening
    server.daemon_threads = True
    ended = threading.Event()
    before = {each: signal.signal(each, lambda *_: ended.set()) for each in (signal.SIGTERM, signal.SIGINT)}
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        ended.wait()
    finally:
        server.shutdown()
        server.server_close()
        for each, handler in before.items():
            signal.signal(each, handler)


def _handler(folder: Path, page: bytes, names: tuple[str, ...] | None) -> type[BaseHTTPRequestHandler]:
    """Answers two requests, for the page and for the facts; only under the names of this machine, if it is loopback."""

    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version = "kinfolk", ""

        def do_GET(self) -> None:
            if names is not None and self.headers.get("Host", "").rpartition(":")[0] not in names:
                self._answer(HTTPStatus.MISDIRECTED_REQUEST, TEXT, b"Expected the name of this machine.")
            elif self.path == "/":
                self._answer(HTTPStatus.OK, TEXT, page)
            elif self.path == "/facts":
                self._answer_facts()
            else:
                self._answer(HTTPStatus.NOT_FOUND, TEXT, b"Expected / or /facts.")

        def _answer_facts(self) -> None:
            try:
                self._answer(HTTPStatus.OK, JSON, json.dumps(facts(folder)).encode())
            except InputError as error:  # the folder has changed meanwhile
                self._answer(HTTPStatus.SERVICE_UNAVAILABLE, TEXT, str(error).encode())

        def _answer(self, status: HTTPStatus, kind: str, content: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Print nothing."""

    return Handler
