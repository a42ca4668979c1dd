"""Memory that is borrowed for a while: what it holds waits in a file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO

from kinfolk.typing import Floats


@contextmanager
def borrowed(array: Floats) -> Iterator[Floats]:
    """An array that may be overwritten: its numbers wait in a temporary file, and come back at the end, bit by bit.

    An array that may not be written to is copied, and so is one for which the disk has no room.

    >>> import numpy as np
    >>> numbers = np.array([1.0, 2.0])
    >>> with borrowed(numbers) as scratch:
    ...     scratch[:] = 0.0
    >>> numbers
    array([1., 2.])
    """
    if not (array.flags.c_contiguous and array.flags.writeable and array.size):
        yield array.copy()
        return
    content = array.data.cast("B")
    with tempfile.TemporaryFile(buffering=0) as file:
        if not _written(file, content):
            yield array.copy()
            return
        try:
            yield array
        finally:
            _read(file, content)


def _written(file: FileIO, content: memoryview) -> bool:
    """Whether the disk had room for all of it."""
    done = 0
    try:
        while done < len(content):
            done += file.write(content[done:])
    except OSError:
        return False
    return True


def _read(file: FileIO, content: memoryview) -> None:
    """Fill ``content`` from the beginning of a file that has as much."""
    file.seek(0)
    done = 0
    while done < len(content):
        done += file.readinto(content[done:])
