"""The ClientApp's side of a site: bytes over a unix socket to the resident process. Imports nothing that is slow."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

SOCKET = "kinfolk-socket"  # in the node-config of a SuperNode
LENGTH = struct.Struct("<Q")
CHUNK = 2**16


def ask(path: str, blob: bytes) -> bytes:
    """Bring the resident process of a site a blob; its answer, empty if it has none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(path)
        send(connection, blob)
        return receive(connection)


def send(connection: socket.socket, content: bytes) -> None:
    """Send bytes with their length before them."""
    connection.sendall(LENGTH.pack(len(content)) + content)


def receive(connection: socket.socket) -> bytes:
    """Receive bytes with their length before them; memory grows only with what arrives."""
    (length,) = LENGTH.unpack(_received(connection, LENGTH.size))
    return _received(connection, length)


def _received(connection: socket.socket, size: int) -> bytes:
    out = bytearray()
    while len(out) < size:
        part = connection.recv(min(CHUNK, size - len(out)))
        if not part:
            raise ConnectionError("the resident process of this site has closed the connection")
        out += part
    return bytes(out)


def listener(path: Path) -> socket.socket:
    """A socket that listens at a path; that of a process before goes."""
    path.unlink(missing_ok=True)
    out = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    out.bind(str(path))
    out.listen()
    return out
