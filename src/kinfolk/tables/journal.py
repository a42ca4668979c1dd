"""The journal: stores finished work so that an interrupted run can resume, and work in common is done once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.numpy

from kinfolk.engine.saved_models import write_arrays


class Journal:
    """Arrays by key, in memory and, if there is a folder, in one file each.

    >>> journal = Journal()
    >>> journal.cached("once", lambda: 1), journal.cached("once", lambda: 2)
    (1, 1)
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._known: dict[str, Any] = {}

    def cached(self, key: str, make: Callable[[], Any]) -> Any:
        """The array under this key: known, read, or made and written."""
        if key not in self._known:
            self._known[key] = make() if self.folder is None else self._stored(self.folder, key, make)
        return self._known[key]

    @staticmethod
    def _stored(folder: Path, key: str, make: Callable[[], Any]) -> Any:
        path = folder / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.safetensors"
        if path.is_file():
            return safetensors.numpy.load_file(path)["array"]
        array = make()
        folder.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".part")
        write_arrays(partial, {"array": array})
        partial.replace(path)
        return array
