"""The programs of Flower as processes that end with ours."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from kinfolk.checks import InputError
from kinfolk.engine.locking import running_in
from kinfolk.federation.flower import tether

VERSION = "1.41.0"  # of Flower; the way of a resident site to the SuperLink is not public, and may change with the next
GRACE = 20.0  # seconds to say goodbye
TAIL = 600  # bytes at the end of a log that an error shows
SETTINGS = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",  # seconds; an exchange waits that long for its ClientApp to start
}


def check_flower() -> None:
    """Refuse where Flower is not installed, or another version of it."""
    if importlib.util.find_spec("flwr") is None:
        raise InputError('Expected Flower, it is not installed: pip install "kinfolk[flower]".')
    found = importlib.metadata.version("flwr")
    if found != VERSION:
        raise InputError(f'Expected Flower {VERSION}, got {found}: pip install "kinfolk[flower]".')


def environment(home: Path) -> dict[str, str]:
    """What the programs of Flower need: their folder, no telemetry, and their own programs on the path."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**os.environ, **SETTINGS, "FLWR_HOME": str(home), "PATH": path, "PYTHONUNBUFFERED": "1"}


class Program:
    """A program that ends with this process, however that ends; what it prints goes to a file.

    Parameters
    ----------
    command : list of str
        The program and its arguments.
    home : Path
        The folder of Flower.
    log : Path
        Where its output is added.
    grace : float
        Seconds to say goodbye, before it is killed.
    """

    def __init__(self, command: list[str], home: Path, log: Path, grace: float = GRACE) -> None:
        check_flower()
        self.log, self.grace = log, grace
        words = [sys.executable, "-S", tether.__file__, str(grace), *command]
        with log.open("ab") as output:
            streams: Any = {"stdin": subprocess.PIPE, "stdout": output, "stderr": output}
            self._tether = subprocess.Popen(words, env=environment(home), start_new_session=True, **streams)

    @property
    def pid(self) -> int:
        """The id of its process; that of its tether, when it has ended."""
        children = [pid for pid, each in tether.processes().items() if each.parent == self._tether.pid]
        return children[0] if children else self._tether.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._tether.poll() is None

    def last_words(self) -> str:
        """The end of what it has printed."""
        return self.log.read_bytes()[-TAIL:].decode(errors="replace").strip()

    def wait(self, seconds: float) -> None:
        """Wait until it ends by itself; refused with its last words if it does not, or has failed."""
        try:
            code = self._tether.wait(seconds)
        except subprocess.TimeoutExpired as error:
            raise InputError(f"Expected a process to end within {seconds:.0f} seconds: {self.last_words()}") from error
        if code:
            raise InputError(f"A process has failed ({code}): {self.last_words()}")

    def close(self) -> None:
        """Ask it to stop, and wait for all that it has started."""
        if self._tether.stdin is not None:
            self._tether.stdin.close()
        try:
            self._tether.wait(2 * self.grace)
        finally:
            if self.running:  # its pipe is closed, so it ends on its own; we do not wait any longer
                self._tether.terminate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody uses."""
    with socket.create_server((host, 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def check_port(host: str, port: int) -> None:
    """Refuse a port that is in use."""
    try:
        socket.create_server((host, port)).close()
    except OSError as error:
        raise InputError(
            f"Expected a free port at {host}, {port} cannot be used ({error.strerror}): stop what uses it, or choose "
            "another."
        ) from error


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[threading.Event]:
    """An event that SIGTERM and Ctrl-C set; the second of them interrupts."""
    stop = threading.Event()

    def handle(number: int, frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stop_process(folder: Path, seconds: float) -> bool:
    """Ask the process that has locked a folder to stop, and wait; whether there was one."""
    process, deadline = running_in(folder), time.monotonic() + seconds
    if process is None:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGTERM)
    while running_in(folder) is not None:
        if time.monotonic() > deadline:
            raise InputError(f"Expected that process {process} stops within {seconds:.0f} seconds, it goes on: end it.")
        time.sleep(0.2)
    return True
