"""Files that are there in full, or as before."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from kinfolk.checks import InputError

DRAFT = ".part"  # ends the name of a file until it is whole


def write_whole(file: Path, content: bytes, *, forced: bool = False, mode: int = 0o666) -> None:
    """Write a file beside its place, under a name of its own, then move it there.

    Parameters
    ----------
    file : Path
        Where to write; its folder is made if need be.
    content : bytes
        What to write.
    forced : bool
        Whether it must be on the disk before this returns, for those who have promised others that it is.
    mode : int
        Who may read and write it, before the umask.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(file.name + DRAFT)
    try:
        draft.unlink(missing_ok=True)  # of a process that died: it may have another mode, or be a link
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as opened:
            opened.write(content)
            if forced:
                opened.flush()
                os.fsync(opened.fileno())
        draft.replace(file)
        if forced:
            _force_folder(file.parent)
    except OSError:
        draft.unlink(missing_ok=True)
        raise


def _force_folder(folder: Path) -> None:
    """That a file has a new name is on the disk, too."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_output(file: Path, content: bytes, is_like_it: Callable[[Path], bool]) -> None:
    """Write a file where the user wants it; of what is there only a file of the same kind is replaced.

    Parameters
    ----------
    file : Path
        Where to write.
    content : bytes
        What to write.
    is_like_it : callable
        Whether a file that exists is one that kinfolk wrote for the same purpose.

    Raises
    ------
    InputError
        If there is something else, or if it cannot be written.
    """
    try:
        if file.exists() and not (file.is_file() and is_like_it(file)):
            raise InputError(f"Expected a new file, {str(file)!r} holds something else: choose another name.")
        handle, draft = tempfile.mkstemp(prefix=f".{file.name[:50]}.", suffix=DRAFT, dir=file.parent)
        try:
            with os.fdopen(handle, "wb") as opened:
                opened.write(content)
            Path(draft).chmod(0o666 & ~_umask())
            Path(draft).replace(file)
        except BaseException:
            Path(draft).unlink(missing_ok=True)
            raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"Expected a file that can be written, cannot write {str(file)!r}: {reason}.") from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
