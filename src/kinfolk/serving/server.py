"""The process that serves a run: a port, uvicorn, and a clean stop."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn

from kinfolk.serving.ports import LOOPBACK_NAMES, is_loopback
from kinfolk.serving.service import service
from kinfolk.tables.table_run import TableRun

LAST_SECONDS = 10  # for requests under way when the service is stopped


def serve(run: TableRun, listening: socket.socket, host: str, largest: int) -> None:
    """Answer requests until the process is told to stop (SIGTERM or Ctrl-C); those under way are answered."""
    hosts = (*LOOPBACK_NAMES, host) if is_loopback(host) else ()
    application = service(run, largest=largest, hosts=hosts)
    config = uvicorn.Config(
        application, log_level="warning", access_log=False, timeout_graceful_shutdown=LAST_SECONDS,
        server_header=False, ws="none",
    )  # fmt: skip
    server = uvicorn.Server(config)
    with _stopping(lambda: setattr(server, "should_exit", True)):
        server.run(sockets=[listening])


@contextmanager
def _stopping(stop: Callable[[], None]) -> Iterator[None]:
    """Signals that ask to stop call a function while this is open, and end the process no other way."""
    before = {each: signal.signal(each, lambda *_: stop()) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
