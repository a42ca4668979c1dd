"""Where data sets are that do not come with the package."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

FOLDER_VARIABLE = "KINFOLK_DATA"
_NAMED: ContextVar[Path | None] = ContextVar("folder of data sets", default=None)


@contextmanager
def looking_in(folder: str | Path | None) -> Iterator[None]:
    """Loaders that are told no folder look in this one meanwhile, whatever the environment says; None: as before.

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
