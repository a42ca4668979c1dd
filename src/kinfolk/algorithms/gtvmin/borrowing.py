"""Memory that is borrowed for a while: what it holds waits in a file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from io import FileIO

from kinfolk.typing import Floats


@contextmanager
def borrowed(array: Floats) -> Iterator[Floats]:
    """An array that may be overwritten: its numbers wait in a temporary file, and come back at the end, bit by bit.

    An array that may not be written to is copied, and so is one for which there is no folder, or no room on the disk.

    >>> import numpy as np
    >>> numbers = np.array([1.0, 2.0])
    >>> with borrowed(numbers) as scratch:
    ...     scratch[:] = 0.0
    >>> numbers
    array([1., 2.])
    """
    with ExitStack() as opened:
        fits = array.flags.c_contiguous and array.flags.writeable and array.size
        file = _stored(array, opened) if fits else None
        if file is None:
            yield array.copy()
            return
        try:
            yield array
        finally:
            _read(file, array.data.cast("B"))


def _stored(array: Floats, opened: ExitStack) -> FileIO | None:
    """A temporary file with the numbers of an array; None where there is no folder for it, or no room."""
    content, done = array.data.cast("B"), 0
    try:
        file = opened.enter_context(tempfile.TemporaryFile(buffering=0))  # noqa: SIM115 - the stack closes it
        while done < len(content):
            done += file.write(content[done:])
    except OSError:
        return None
    return file


def _read(file: FileIO, content: memoryview) -> None:
    """Fill ``content`` from the beginning of a file that has as much."""
    file.seek(0)
    done = 0
    while done < len(content):
        done += file.readinto(content[done:])
