"""Blobs over plain sockets: for sites on one machine. Nothing here is encrypted but the letters between sites.

Sites connect to the coordinator and say their name; then they are asked. A connection that breaks, or on which no
answer comes for a while, is closed; the site connects again and is asked the same, which it answers as before.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from kinfolk.checks import InputError
from kinfolk.engine.protocol import Missing
from kinfolk.engine.wire import Blob, WireError
from kinfolk.federation.service import Service, peek

log = logging.getLogger(__name__)
LENGTH = struct.Struct("<Q")
CHUNK = 2**16
MOST_GREETING = 200  # bytes of a name
RETRY = 0.2  # seconds between two attempts to connect


def send_frame(connection: socket.socket, content: bytes) -> None:
    """Send bytes with their length before them."""
    connection.sendall(LENGTH.pack(len(content)) + content)


def receive_frame(connection: socket.socket, most: int) -> bytes:
    """Receive bytes with their length before them; memory grows only with what arrives, and to ``most`` at most."""
    (length,) = LENGTH.unpack(_received(connection, LENGTH.size))
    if length > most:
        raise WireError(f"Expected a message of at most {most:,} bytes, got one of {length:,}.")
    return _received(connection, length)


def _received(connection: socket.socket, size: int) -> bytes:
    out = bytearray()
    while len(out) < size:
        part = connection.recv(min(CHUNK, size - len(out)))
        if not part:
            raise ConnectionError("the connection was closed")
        out += part
    return bytes(out)


class SocketPost:
    """The coordinator's end: it listens, and asks the sites that have connected.

    Parameters
    ----------
    port : int
        To listen at; 0: any that is free.
    host : str
        Address of this machine; by default only processes on it can connect.
    resend : float
        Seconds after which a request is sent again.
    """

    def __init__(self, port: int = 0, host: str = "127.0.0.1", resend: float = 20.0) -> None:
        try:
            self._listener = socket.create_server((host, port))
        except OSError as error:
            raise InputError(
                f"Expected a free port at {host}, {port} cannot be used ({error.strerror}): stop what uses it, or "
                "choose another."
            ) from error
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self.resend = resend
        self._connections: dict[str, socket.socket] = {}
        self._changed = threading.Condition()
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._greet, args=(connection,), daemon=True).start()

    def _greet(self, connection: socket.socket) -> None:
        """Learn who has connected; the newest connection of a site counts."""
        try:
            connection.settimeout(self.resend)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            name = receive_frame(connection, MOST_GREETING).decode()
        except (OSError, ValueError):
            connection.close()
            return
        with self._changed:
            if self._closed:
                connection.close()
                return
            self._drop(name)
            self._connections[name] = connection
            self._changed.notify_all()

    def _drop(self, name: str) -> None:
        old = self._connections.pop(name, None)
        if old is not None:
            old.close()

    def ask(self, blobs: Mapping[str, bytes], most: Mapping[str, int], seconds: float) -> dict[str, bytes | Missing]:
        """Ask all sites at once; one that does not answer in time is missing."""
        deadline = time.monotonic() + seconds
        with ThreadPoolExecutor(max(len(blobs), 1)) as pool:
            asked = {name: pool.submit(self._ask, name, blob, most[name], deadline) for name, blob in blobs.items()}
        return {name: answer.result() for name, answer in asked.items()}

    def _ask(self, name: str, blob: bytes, most: int, deadline: float) -> bytes | Missing:
        why = "it is not connected"
        while (left := deadline - time.monotonic()) > 0:
            connection = self._connection(name, left)
            if connection is None:
                break
            try:
                connection.settimeout(min(self.resend, max(deadline - time.monotonic(), 0.001)))
                send_frame(connection, blob)
                return receive_frame(connection, most)
            except WireError as error:
                self._lose(name, connection)
                return Missing(str(error))
            except OSError as error:
                why = str(error)
                self._lose(name, connection)
        return Missing(f"no answer in time, {why}")

    def _connection(self, name: str, seconds: float) -> socket.socket | None:
        with self._changed:
            self._changed.wait_for(lambda: name in self._connections or self._closed, seconds)
            return self._connections.get(name)

    def _lose(self, name: str, connection: socket.socket) -> None:
        with self._changed:
            if self._connections.get(name) is connection:
                self._drop(name)

    def close(self, *, end: bool = True) -> None:
        """Let go of the port; ``end``: the sites are told to stop, too."""
        with self._changed:
            self._closed = True
            for name in list(self._connections):
                if end:
                    with contextlib.suppress(OSError):
                        send_frame(self._connections[name], Blob("end").encode())
                self._drop(name)
            self._changed.notify_all()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve(
    service: Service,
    address: tuple[str, int],
    *,
    patience: float = 60.0,
    tell: Callable[[str], None] = log.info,
) -> None:
    """Connect a site to its coordinator and answer it, until it ends the federation.

    Where the coordinator cannot be reached, it is tried again for ``patience`` seconds; ``tell`` is told.
    """
    waiting_since, told = time.monotonic(), False
    while True:
        try:
            with socket.create_connection(address, timeout=patience) as connection:
                told = False
                if _served(service, connection):
                    return
                waiting_since = time.monotonic()
        except OSError as error:
            if time.monotonic() - waiting_since > patience:
                raise InputError(
                    f"Expected the coordinator at {address[0]}:{address[1]}, it cannot be reached since {patience:.0f} "
                    f"seconds ({error}): ask its operator, and start the site again; it goes on where it was."
                ) from error
            if not told:
                tell(f"The coordinator at {address[0]}:{address[1]} cannot be reached: trying again.")
                told = True
            time.sleep(RETRY)


def _served(service: Service, connection: socket.socket) -> bool:
    """Answer on one connection; True: the federation has ended, False: the connection has."""
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        send_frame(connection, service.name.encode())
        while True:
            content = receive_frame(connection, service.most)
            if peek(content)[0] == "end":
                return True
            send_frame(connection, service.answer(content))
    except (OSError, WireError) as error:
        log.info("site %s lost its connection: %s", service.name, error)
        return False
