"""Finished parts of an experiment, kept on the disk until all of it is done: the same command goes on after a break."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

Part = TypeVar("Part")


class Unfinished:
    """What is finished, by key, a line of a file each; ``about`` names the experiment, its settings and the version.

    Lines about something else, and one that a killed process left half-written, count as none.
    """

    def __init__(self, file: Path, about: list[Any]) -> None:
        self.file, self.about = file, about
        lines = file.read_text(errors="replace").splitlines() if file.is_file() else []
        self.known = {key: parts for own, key, parts in map(_line, lines) if own == about}

    def add(self, key: str, parts: list[Any]) -> None:
        """Keep what is finished."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("a") as opened:  # a line of its own, even after half of one
            opened.write("\n" + json.dumps([self.about, key, parts], default=_plain) + "\n")


_UNFINISHED: ContextVar[Unfinished | None] = ContextVar("where finished parts are kept", default=None)


@contextmanager
def resuming(file: Path, about: list[Any]) -> Iterator[int]:
    """Keep what ``once`` makes inside, and take what is there; yields how many parts that is. The end removes it."""
    unfinished = Unfinished(file, about)
    token = _UNFINISHED.set(unfinished)
    try:
        yield len(unfinished.known)
    finally:
        _UNFINISHED.reset(token)
    file.unlink(missing_ok=True)  # not after an error, or when it was interrupted


def once(key: tuple[Any, ...], make: Callable[..., Iterable[Part]], *arguments: Any) -> list[Part]:
    """The list of what ``make(*arguments)`` gives, unless an interrupted command has kept it under this key.

    It is kept as JSON: numbers, text, and lists and dictionaries of them.

    >>> once(("seed", 0), lambda seed: [{"seed": seed, "error": 0.5}], 0)
    [{'seed': 0, 'error': 0.5}]
    """
    unfinished, name = _UNFINISHED.get(), json.dumps(key)
    if unfinished is None:
        return list(make(*arguments))
    if name not in unfinished.known:
        unfinished.known[name] = list(make(*arguments))
        unfinished.add(name, unfinished.known[name])
    found: list[Part] = unfinished.known[name]
    return found


def _line(text: str) -> tuple[Any, str, list[Any]]:
    try:
        about, key, parts = json.loads(text)
    except (ValueError, TypeError):
        return None, "", []
    return about, key, parts


def _plain(value: Any) -> Any:
    """A number of NumPy as one of Python."""
    return value.item()
