"""Locks on folders: one process writes, and a lock ends with its process, however that ends."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

from kinfolk.checks import InputError

try:
    import fcntl
except ImportError:  # Windows: two runs into one folder are not noticed there
    fcntl = None  # type: ignore[assignment]

LOCK = "lock"


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
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        moved = os.fstat(handle.fileno()).st_ino != (folder / LOCK).stat().st_ino
    except OSError as error:  # taken, or moved away by the process that has just finished
        handle.close()
        raise InputError(refusal) from error
    if moved:
        handle.close()
        raise InputError(refusal)
    return handle
