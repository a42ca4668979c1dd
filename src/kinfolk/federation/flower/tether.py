"""Run a command that ends with whoever started it: ``python tether.py SECONDS COMMAND...``, with a pipe as stdin.

When the pipe is closed, however its owner has ended, or on SIGTERM, the command is asked to stop; after so many seconds
it is killed, and so is all that it has started. Needs nothing but Python: it is run as a file, without imports of
kinfolk.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
TICK = 0.1


class Process(NamedTuple):
    """Whose child a process is, and when it began: together with its id, that is which process it is."""

    parent: int
    began: str


def processes() -> dict[int, Process]:
    """All processes that run."""
    return _from_proc() if (PROC / "self" / "stat").exists() else _from_ps()


def _from_proc() -> dict[int, Process]:
    found = {}
    for folder in PROC.iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                state, parent, *rest = (folder / "stat").read_text().rpartition(")")[2].split()
                if state != "Z":
                    found[int(folder.name)] = Process(int(parent), rest[17])
    return found


def _from_ps() -> dict[int, Process]:
    lines = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,stat=,lstart="], capture_output=True, text=True, check=True)
    parts = [line.split(maxsplit=3) for line in lines.stdout.splitlines()]
    return {int(pid): Process(int(parent), began) for pid, parent, state, began in parts if not state.startswith("Z")}


def descendants(root: int) -> dict[int, Process]:
    """All that a process has started, and what those have started."""
    everything, found, parents = processes(), dict[int, Process](), {root}
    while parents:
        children = {pid: each for pid, each in everything.items() if each.parent in parents and pid not in found}
        found |= children
        parents = set(children)
    return found


def alive(known: dict[int, Process]) -> list[int]:
    """Those of some processes that still run; another process with the same id does not count."""
    now = processes()
    return [pid for pid, each in known.items() if pid in now and now[pid].began == each.began]


def end(child: subprocess.Popen[bytes], seconds: float) -> None:
    """Ask a process to stop, and wait for it and for all that it has started; kill what is left in the end."""
    known = descendants(child.pid)
    if child.poll() is None:
        child.terminate()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and (child.poll() is None or alive(known)):
        time.sleep(TICK)
    for pid in alive(known):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    child.kill()
    child.wait()


def main(seconds: str, *command: str) -> int:
    """Run a command until it ends, or the pipe is closed."""
    stopped = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: stopped.append(True))
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    while not stopped and child.poll() is None:
        with contextlib.suppress(InterruptedError):
            if select.select([sys.stdin], [], [], TICK)[0] and not os.read(0, 1):
                break
    end(child, float(seconds))
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
