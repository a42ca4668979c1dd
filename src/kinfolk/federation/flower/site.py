"""A site of a federation over Flower: a resident process beside its rows.

Two ways to the SuperLink. ``"direct"``: the process is a node of Flower itself; no code that comes from elsewhere is
run, and an exchange takes about a second. ``"supernode"``: an ordinary SuperNode stands before it, whose ClientApp
forwards blobs over a unix socket; it takes about ten, and the SuperNode runs the apps that the SuperLink hands out.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from kinfolk.checks import InputError
from kinfolk.engine.wire import Key, WireError
from kinfolk.federation.files import made, replace_file
from kinfolk.federation.flower import relay
from kinfolk.federation.flower.certificates import AUTHORITY, Contact
from kinfolk.federation.flower.fleet import Fleet
from kinfolk.federation.flower.pacing import pause
from kinfolk.federation.flower.processes import Program, free_port
from kinfolk.federation.messages import refusal
from kinfolk.federation.service import Service, peek

log = logging.getLogger(__name__)
Way = Literal["direct", "supernode"]
NODE, HOME, LOG = "node", "flower", "supernode.log"
LOOK = 0.2  # seconds between two looks at a SuperNode
RETRY = 1.0  # seconds after which a lost connection is made again
LAST_REPLY = 15.0  # seconds for a SuperNode to bring the last reply away
SILENCE = 60.0  # seconds without a byte, after which a connection of a ClientApp is closed
SOCKET = "site"


def serve(
    service: Service,
    contact: Contact,
    key: Path,
    stop: threading.Event,
    *,
    way: Way = "direct",
    patience: float = 120.0,
    tell: Callable[[str], None] = log.info,
) -> None:
    """Answer the coordinator until it ends the federation, or ``stop`` is set; then say goodbye.

    Parameters
    ----------
    service : Service
        The site: its rows, its key for letters and its state.
    contact : Contact
        Of the federation, from the invitation.
    key : Path
        The file with the key that the site signs in with.
    stop : threading.Event
        Set by somebody else, to stop; see ``stopped_by_signals``.
    way : {"direct", "supernode"}
        How to reach the SuperLink.
    patience : float
        Seconds for which a SuperLink that cannot be reached is tried again.
    tell : callable
        Is told when that happens.
    """
    with Fleet(contact, key, service.folder / NODE) as fleet:
        while fleet.connect(stop, patience, tell):
            if way == "direct":
                _answer_fleet(service, contact, fleet, stop)
            else:
                fleet.sign_off()  # the SuperNode signs in with the same key
                _answer_supernode(service, contact, key, stop, tell)


def answer(service: Service, contact: Contact, content: bytes) -> tuple[bytes, bool]:
    """The answer to a message, and whether it ends the federation; only the coordinator is answered."""
    blob = contact.opened(service.name, content)
    if blob is None:
        log.warning("site %s refuses a message that its coordinator has not signed", service.name)
        return refusal(Key(), "Expected a message that the coordinator of this federation has signed."), False
    with contextlib.suppress(WireError):
        if peek(blob)[0] == "end":
            service.end()
            return b"", True
    return service.answer(blob), False


# ---------------------------------------------------------------------- the direct way


def _answer_fleet(service: Service, contact: Contact, fleet: Fleet, stop: threading.Event) -> None:
    """Answer until the connection breaks; the coordinator asks again for what was lost."""
    since = time.monotonic()
    try:
        while not stop.is_set():
            received = fleet.receive()
            if received is None:
                stop.wait(pause(since))
                continue
            since = time.monotonic()
            content, ended = answer(service, contact, received.blob)
            fleet.reply(received, content)
            if ended:
                stop.set()
    except Exception as error:  # of HTTP, of the SuperLink, or of a message that is none
        log.info("site %s lost the SuperLink: %s", service.name, error)
        stop.wait(RETRY)


# ---------------------------------------------------------------------- behind a SuperNode


def _answer_supernode(
    service: Service, contact: Contact, key: Path, stop: threading.Event, tell: Callable[[str], None]
) -> None:
    """Answer what the ClientApp forwards, while the SuperNode runs."""
    home = made(service.folder / HOME)
    replace_file(home / AUTHORITY, contact.certificate.encode())
    with _private_folder(home) as folder, relay.listener(folder / SOCKET) as listener:
        ended = threading.Event()
        thread = threading.Thread(target=_accept, args=(service, contact, listener, ended), daemon=True)
        thread.start()
        try:
            with Program(_supernode(home, contact, key, folder / SOCKET), home, home / LOG) as program:
                while program.running and not stop.is_set() and not ended.is_set():
                    stop.wait(LOOK)
                if ended.is_set():
                    stop.wait(LAST_REPLY)
                    stop.set()
                elif not stop.is_set():
                    tell(f"The SuperNode has ended and is started again; {str(program.log)!r} has more.")
        finally:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def _supernode(home: Path, contact: Contact, key: Path, path: Path) -> list[str]:
    config = f'{relay.SOCKET}="{path}"'
    return [
        "flower-supernode", "--root-certificates", str(home / AUTHORITY), "--auth-supernode-private-key", str(key),
        "--superlink", contact.address, "--host", "127.0.0.1", "--port", str(free_port()), "--node-config", config,
    ]  # fmt: skip


def socket_folder(home: Path) -> Path:
    """Where the socket of a site is: its path has to be short; the same for every process of a site."""
    name = hashlib.sha256(str(home.resolve()).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"kinfolk-site-{name}"


@contextlib.contextmanager
def _private_folder(home: Path) -> Iterator[Path]:
    """A folder that nobody else may enter; what a process before has left there goes."""
    folder = socket_folder(home)
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise InputError(f"Expected to own {str(folder)!r}, another user does: have it removed.")
    folder.chmod(0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _accept(service: Service, contact: Contact, listener: socket.socket, ended: threading.Event) -> None:
    """Answer one connection after the other, until the socket is closed."""
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        connection.settimeout(SILENCE)
        with connection, contextlib.suppress(OSError):
            content, last = answer(service, contact, relay.receive(connection))
            relay.send(connection, content)
            if last:
                ended.set()
