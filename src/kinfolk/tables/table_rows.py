"""The rows of one party: encoded, split, and cut into the parts of cross-validation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas
from threadpoolctl import threadpool_limits

from kinfolk.network.data import Data
from kinfolk.tables.columns import Columns
from kinfolk.tables.encoding import Encoder
from kinfolk.tables.rows import Rows
from kinfolk.tables.settings import Settings
from kinfolk.tables.splits import Folding, held_in
from kinfolk.tables.target import Target
from kinfolk.typing import Bools, Floats, Ints

WORTH_THREADS = 1_000_000  # numbers; with fewer, threads wait for each other longer than they work


@dataclass(eq=False)
class TableRows:
    """Rows as learning sees them, at the party that has them.

    Attributes
    ----------
    settings, columns, encoder, target
        What is learnt, and how columns became numbers.
    nodes : list of str
        Names of the own nodes.
    table : pandas.DataFrame
        The rows as they were given.
    rows : Rows
        All of them, encoded.
    held_out : array of bool, shape (rows,)
        The test rows.
    folding : Folding
        The folds of the training rows.
    """

    settings: Settings
    columns: Columns
    encoder: Encoder
    target: Target
    nodes: list[str]
    table: pandas.DataFrame
    rows: Rows
    held_out: Bools
    folding: Folding
    trend_left_out: bool = False

    @cached_property
    def train(self) -> Bools:
        """The training rows; a test row of a class that no training row has is in neither set."""
        return ~self.held_out & ~np.isnan(self.rows.y)

    @cached_property
    def training(self) -> Rows:
        """The training rows."""
        return self.rows.take(self.train)

    @cached_property
    def test(self) -> Rows:
        """The test rows."""
        return self.rows.take(self.held_out)

    @property
    def training_times(self) -> Floats | None:
        """The times of the training rows, where later times are predicted; NaN where an update has none."""
        times = self.folding.all_times
        return None if times is None else times[self.train]

    @property
    def test_times(self) -> Floats | None:
        """The times of the test rows, where later times are predicted."""
        return None if self.folding.all_times is None else self.folding.all_times[self.held_out]

    @cached_property
    def parts(self) -> list[Bools]:
        """What is learnt from: the training rows without each fold, then all of them."""
        return [*(learnt for learnt, _ in self.folding.folds), np.ones(len(self.training.y), dtype=bool)]

    @property
    def whole(self) -> int:
        """The number of the part that has all training rows."""
        return len(self.folding.folds)

    @cached_property
    def part_data(self) -> list[Data]:
        """The rows of every part, at their nodes."""
        taken = (self.training.take(learnt) for learnt in self.parts)
        return [Data.from_rows(rows.X, rows.y, rows.owner, len(self.nodes)) for rows in taken]

    @property
    def part_rows(self) -> Ints:
        """Rows of every part and node (parts, nodes)."""
        return np.stack([data.sizes for data in self.part_data])

    @property
    def held(self) -> Ints:
        """Rows that each fold predicts (folds,)."""
        return np.array([held.sum() for _, held in self.folding.folds], dtype=np.int64)

    @cached_property
    def window(self) -> Ints:
        """The window of time that every training row is predicted in, −1 if in none; 0 where no later times are."""
        timed = self.folding.kind == "times"
        return held_in(self.folding.folds) if timed else np.zeros(len(self.training.y), dtype=np.int64)

    @property
    def window_count(self) -> int:
        """Number of windows of time that are predicted; one where no later times are."""
        return len(self.folding.folds) if self.folding.kind == "times" else 1

    @property
    def trend(self) -> tuple[int, ...]:
        """The features that grow with time; none if they have been left out."""
        return () if self.trend_left_out else self.encoder.trend(self.folding.column)

    def leave_out(self, features: Sequence[int]) -> None:
        """Put features that grow with time to zero."""
        X = self.rows.X.copy()
        X[:, list(features)] = 0.0
        self.encoder, self.rows, self.trend_left_out = self.encoder.without(features), self.rows._replace(X=X), True
        for name in ("training", "test", "part_data"):
            self.__dict__.pop(name, None)


@contextmanager
def worthwhile_threads(rows: TableRows) -> Iterator[None]:
    """One thread for small tables."""
    with threadpool_limits(1 if rows.training.X.size < WORTH_THREADS else None):
        yield
