"""Progress of anything that takes longer than a second: a bar, or where there is no terminal a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

PATIENCE = 1.0  # seconds before the bar appears
BETWEEN_LINES = 10.0  # seconds


class Bar:
    """Shows how far a run is, once it has taken a while."""

    def __init__(self, title: str, total: int, enabled: bool) -> None:
        self.title, self.total, self.enabled = title, total, enabled
        self.began = time.perf_counter()
        self.count = 0
        self.shown: _Drawn | _Lines | None = None

    def update(self, count: int, note: str = "") -> None:
        """Move to ``count``."""
        self.count = count
        if self.enabled and self.shown is None and time.perf_counter() - self.began > PATIENCE:
            self.shown = _display(self.title, self.began)
        if self.shown is not None:
            self.shown.update(count, self.total, note)

    def expect(self, more: int) -> None:
        """There is more to do than was known."""
        self.total += more

    def advance(self, steps: int, note: str = "") -> None:
        """Some more steps are done."""
        self.update(self.count + steps, note)


def _display(title: str, began: float) -> _Drawn | _Lines:
    """A bar on a terminal or in a notebook, lines elsewhere."""
    from rich.console import Console

    console = Console(stderr=True)
    return _Drawn(title, console) if console.is_terminal or console.is_jupyter else _Lines(title, began)


class _Drawn:
    """A bar that is drawn again and again, and leaves nothing behind."""

    def __init__(self, title: str, console: Any) -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        columns = [
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        ]
        self.progress = Progress(*columns, console=console, transient=True)
        self.progress.start()
        self.task = self.progress.add_task(title, total=None, note="")

    def update(self, count: int, total: int, note: str) -> None:
        self.progress.update(self.task, completed=count, total=total, note=note)

    def stop(self) -> None:
        self.progress.stop()


class _Lines:
    """How far it is, for a log: a line now and then."""

    def __init__(self, title: str, began: float) -> None:
        self.title, self.began, self.last = title, began, began

    def update(self, count: int, total: int, note: str) -> None:
        now = time.perf_counter()
        if sys.stderr is not None and now - self.last > BETWEEN_LINES:
            self.last = now
            told = [f"{count:,} of {total:,}", f"{now - self.began:.0f} seconds", *([note] if note else [])]
            print(f"{self.title}: {', '.join(told)}", file=sys.stderr, flush=True)

    def stop(self) -> None:
        """Nothing is left to do."""


@contextmanager
def progress_bar(title: str, total: int, *, enabled: bool = True) -> Iterator[Bar]:
    """A bar that appears after a second of work and leaves nothing behind."""
    bar = Bar(title, total, enabled)
    try:
        yield bar
    finally:
        if bar.shown is not None:
            bar.shown.stop()
