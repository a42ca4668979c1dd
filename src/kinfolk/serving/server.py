"""The process that serves a run: a port, uvicorn, and a clean stop."""

from __future__ import annotations

import ipaddress
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn

from kinfolk.checks import InputError
from kinfolk.serving.service import service
from kinfolk.tables.table_run import TableRun

LAST_SECONDS = 10  # for requests under way when the service is stopped
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def open_port(host: str, port: int) -> socket.socket:
    """A socket that listens, or a sentence; port 0 takes any that is free."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(
            f"Expected a free port of this machine, cannot listen on {host}, port {port} ({why}): choose another with "
            "--port or --host."
        ) from error


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
