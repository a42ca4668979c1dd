"""Locks on folders: one process writes, and a lock ends with its process, however that ends."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import IO

from kinfolk.checks import InputError

try:
    import fcntl
except ImportError:  # Windows: two runs into one folder are not noticed there
    fcntl = None  # type: ignore[assignment]

LOCK = "lock"
TRIES, MOMENT = 4, 0.05  # attempts to take a lock, and seconds between them


def locked(folder: Path, refusal: str) -> IO[str]:
    """Lock a folder until the handle is closed, or refuse with a sentence.

    Parameters
    ----------
    folder : Path
        A folder that exists; a file ``lock`` is made in it.
    refusal : str
        The sentence if another process has the lock.

    Returns
    -------
    IO[str]
        The handle that keeps the lock.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place, locked(Path(place), "taken"):
    ...     locked(Path(place), "Expected a free folder, this one is taken: wait.")
    Traceback (most recent call last):
    kinfolk.checks.InputError: Expected a free folder, this one is taken: wait.
    """
    handle = (folder / LOCK).open("a")
    try:
        _take(handle)
        moved = os.fstat(handle.fileno()).st_ino != (folder / LOCK).stat().st_ino
    except OSError as error:  # taken, or moved away by the process that has just finished
        handle.close()
        raise InputError(refusal) from error
    if moved:
        handle.close()
        raise InputError(refusal)
    handle.truncate(0)
    handle.write(str(os.getpid()))
    handle.flush()
    return handle


def _take(handle: IO[str]) -> None:
    """Lock a file; tried for a moment, as somebody may just look whether it is locked."""
    for attempt in range(TRIES) if fcntl is not None else ():
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError:
            if attempt == TRIES - 1:
                raise
            time.sleep(MOMENT)


def running_in(folder: Path) -> int | None:
    """The process that has locked a folder; None: there is none.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     with locked(Path(place), "taken"):
    ...         found = running_in(Path(place))
    ...     found == os.getpid(), running_in(Path(place))
    (True, None)
    """
    if fcntl is None or not (folder / LOCK).exists():
        return None
    with (folder / LOCK).open() as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            text = handle.read()
            return int(text) if text.isascii() and text.isdigit() and int(text) > 1 else None
    return None
