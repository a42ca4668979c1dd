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
        self.last_line = self.began
        self.shown: Any = None
        self.task: Any = None

    def update(self, count: int, note: str = "") -> None:
        """Move to ``count``."""
        self.count = count
        if not self.enabled:
            return
        if sys.stderr is None or not sys.stderr.isatty():
            self._write_line(note)
        elif self.shown is None and time.perf_counter() - self.began > PATIENCE:
            self._show()
        if self.shown is not None:
            self.shown.update(self.task, completed=count, total=self.total, note=note)

    def expect(self, more: int) -> None:
        """There is more to do than was known."""
        self.total += more

    def advance(self, steps: int, note: str = "") -> None:
        """Some more steps are done."""
        self.update(self.count + steps, note)

    def _write_line(self, note: str) -> None:
        """How far it is, for a log."""
        now = time.perf_counter()
        if now - self.last_line > BETWEEN_LINES:
            self.last_line = now
            told = [f"{self.count:,} of {self.total:,}", f"{now - self.began:.0f} seconds", *([note] if note else [])]
            print(f"{self.title}: {', '.join(told)}", file=sys.stderr, flush=True)

    def _show(self) -> None:
        from rich.console import Console
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
        self.shown = Progress(*columns, console=Console(stderr=True), transient=True)
        self.shown.start()
        self.task = self.shown.add_task(self.title, total=self.total, note="")


@contextmanager
def progress_bar(title: str, total: int, *, enabled: bool = True) -> Iterator[Bar]:
    """A bar that appears after a second of work and leaves nothing behind."""
    bar = Bar(title, total, enabled)
    try:
        yield bar
    finally:
        if bar.shown is not None:
            bar.shown.stop()
