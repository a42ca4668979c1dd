"""Where data sets are that do not come with the package."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import numpy as np

from kinfolk.checks import InputError, first_line

FOLDER_VARIABLE = "KINFOLK_DATA"
_NAMED: ContextVar[Path | None] = ContextVar("folder of data sets", default=None)


@contextmanager
def looking_in(folder: str | Path | None) -> Iterator[None]:
    """Loaders that are given no folder look in this one meanwhile, whatever the environment has; None: as before.

    >>> with looking_in("here"):
    ...     print(data_folder())
    here
    """
    before = _NAMED.set(_NAMED.get() if folder is None else Path(folder))
    try:
        yield
    finally:
        _NAMED.reset(before)


def data_folder() -> Path | None:
    """The folder of ``looking_in``, else that of the environment variable KINFOLK_DATA, else None."""
    named = os.environ.get(FOLDER_VARIABLE)
    return _NAMED.get() or (Path(named) if named else None)


def find_file(subfolder: str, name: str, folder: str | Path | None = None) -> Path:
    """Find a file in ``folder``, else in ``data_folder()``, or in the subfolder of either.

    Parameters
    ----------
    subfolder, name : str
        The folder of the data set, and its file.
    folder : str or Path, optional
        Where to look first.

    Returns
    -------
    Path
        The file; where there is none, one sentence is raised.
    """
    named = data_folder() if folder is None else Path(folder)
    places = [] if named is None else [named / name, named / subfolder / name]
    for path in places:
        if path.is_file():
            return path
    where = "a folder that is named" if named is None else str(named)
    raise InputError(
        f"Expected {name} in {where}, found none: name the folder that has it with --data at the command line, or the "
        f"variable {FOLDER_VARIABLE}."
    )


def read_arrays(path: Path, names: Sequence[str]) -> list[Any]:
    """Read arrays of an npz file, never unpickled; a file that is damaged or lacks one is refused in a sentence."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            return [stored[name] for name in names]
    except (KeyError, ValueError, TypeError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"Expected the arrays {', '.join(names)} in {path}, got: {first_line(error)}") from error
