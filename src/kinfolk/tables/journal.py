"""The journal: stores finished work so that an interrupted run can resume, and work in common is done once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import safetensors.numpy

from kinfolk.network.array_files import array_bytes
from kinfolk.tables.workplace import JOURNAL, Workplace


class Journal:
    """Arrays by key, in memory and, if there is a workplace, in one file each.

    >>> journal = Journal()
    >>> journal.cached("once", lambda: 1), journal.cached("once", lambda: 2)
    (1, 1)
    """

    def __init__(self, work: Workplace | None = None) -> None:
        self.work = work
        self._known: dict[str, Any] = {}

    def cached(self, key: str, make: Callable[[], Any]) -> Any:
        """The array under this key: known, read, or made and written."""
        if key not in self._known:
            self._known[key] = make() if self.work is None else self._stored(self.work, key, make)
        return self._known[key]

    @staticmethod
    def _stored(work: Workplace, key: str, make: Callable[[], Any]) -> Any:
        """A file that is not as it was written counts as none."""
        name = f"{JOURNAL}/{hashlib.sha256(key.encode()).hexdigest()[:16]}.safetensors"
        found = work.read(name)
        if found is not None:
            return safetensors.numpy.load(found)["array"]
        array = make()
        work.write(name, array_bytes({"array": array}))
        return array
