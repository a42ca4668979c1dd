"""Reading the table of one site: described, split, encoded, and cut into parts. What leaves are sums, or counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas

from kinfolk.checks import InputError
from kinfolk.engine.protocol import Arrays
from kinfolk.federation.tables.schema import Agreed, Description
from kinfolk.network.folds import places_of_rows, row_folds
from kinfolk.tables.columns import as_numbers, node_names, plain_value
from kinfolk.tables.dates import as_times
from kinfolk.tables.encoding import Encoder, plain
from kinfolk.tables.places import node_places, row_places
from kinfolk.tables.rows import Rows
from kinfolk.tables.settings import Settings
from kinfolk.tables.splits import VALIDATION, Folding, later_columns, marked, table_times, windows_between
from kinfolk.tables.table_rows import TableRows
from kinfolk.tables.target import Target, known_targets
from kinfolk.typing import Bools, Floats, Ints

LEAST_NAMED = 5  # rows: a category with fewer at a site is not named by it
Response = tuple[dict[str, Any], Arrays]


class SiteReading:
    """The rows of one site that have a target, and how they become rows that can be learnt from.

    Parameters
    ----------
    given : pandas.DataFrame
        The table of the site.
    units : mapping of str to str
        Units of columns.
    settings : Settings
        What is to be learnt.
    """

    def __init__(self, given: pandas.DataFrame, units: Mapping[str, str], settings: Settings) -> None:
        table = given
        if settings.target in table:
            table = table[known_targets(table[settings.target])]
        if settings.time in table:
            table = table[table[settings.time].notna()]
        self.settings, self.table = settings, table
        self.description = Description.of(table, settings, units)
        self.nodes = self.description.nodes

    # ------------------------------------------------------------------ what is there

    def describe(self) -> Response:
        """Names and kinds, the rows of every node, and how many there are at each time if later ones are tested."""
        timed = bool(self.settings.time)
        times, rows = np.unique(self.times, return_counts=True) if timed else (np.empty(0), np.empty(0))
        sizes = np.bincount(self.owner, minlength=len(self.nodes))
        told = {"times": times, "time_rows": rows.astype(np.int64), "node_rows": sizes}
        return self.description.to_json(), told

    @cached_property
    def times(self) -> Floats:
        """The times of all rows, where later ones are tested."""
        assert self.settings.time is not None
        return table_times(self.table, self.settings.time)

    @cached_property
    def owner(self) -> Ints:
        """The own number of the node of every row."""
        names = node_names(self.table, self.settings.node)
        return np.asarray(np.searchsorted(np.array(self.nodes, dtype=object), names), dtype=np.int64)

    def measure(self, agreed: Agreed, numbers: Ints, cut: float, tested: Bools) -> Response:
        """Split; sums of columns of training rows, categories and classes, and where nodes are.

        ``tested``: own nodes that are held out as a whole, where whole nodes are.
        """
        columns = agreed.columns
        self.columns, self.numbers = columns, numbers
        self.held_out = self._held_out(cut, tested)
        self.train = ~self.held_out
        rows = plain(self.table[self.train], columns)
        dates, date_rows = self._dates(agreed)
        count = len(self.nodes)
        categories = {name: _counts(rows[name]) for name in columns.categories}
        later = later_columns(self.table, columns, self.owner, self.held_out) if columns.mark else []
        text = {"categories": categories, "labels": self._labels(), "later": later}
        return text, {
            "train_rows": np.bincount(self.owner[self.train], minlength=count),
            "test_rows": np.bincount(self.owner[self.held_out], minlength=count),
            "places": self._places(),
            "dates": dates,
            "date_rows": date_rows,
            **self._totals(),
        }

    def _totals(self) -> Arrays:
        """Sums of the columns of numbers, and of the target if it is one."""
        rows, names = plain(self.table[self.train], self.columns), self.columns.numbers
        values = np.array([rows[name].to_numpy(dtype=np.float64) for name in names]).reshape(len(names), len(rows))
        target = as_numbers(self.table[self.settings.target])[0][self.train]
        return {
            "known": (~np.isnan(values)).sum(axis=1),
            "sums": np.nansum(values, axis=1),
            "target_sum": np.float64(0.0 if np.isnan(target).any() else target.sum()),
        }

    def _held_out(self, cut: float, tested: Bools) -> Bools:
        """The rows that are held out: those marked, the last in time, whole nodes, or a share of every node's rows."""
        settings = self.settings
        if isinstance(settings.test, str):
            return marked(self.table[settings.test], settings.test)
        if settings.time:
            return self.times > cut
        if settings.hold == "nodes":
            return tested[self.owner]
        return places_of_rows(self.numbers[self.owner], settings.seed) < settings.test

    def _places(self) -> Floats:
        """The centroid of every node (nodes, 2), or (nodes, 0) without coordinates."""
        place = row_places(self.table, self.columns)
        if place is None:
            return np.empty((len(self.nodes), 0))
        return node_places(place, self.owner, self.train, self.nodes, self.columns.coords)

    def _dates(self, agreed: Agreed) -> tuple[Floats, Ints]:
        """The different dates of every column of dates (columns, dates), and the rows at each; NaN fills up."""
        found = []
        for name in agreed.columns.dates:
            times = as_times(self.table[name][self.train], agreed.written[name])
            found.append(np.unique(times[~np.isnan(times)], return_counts=True))
        longest = max((len(times) for times, _ in found), default=0)
        dates, rows = np.full((len(found), longest), np.nan), np.zeros((len(found), longest), dtype=np.int64)
        for k, (times, counts) in enumerate(found):
            dates[k, : len(times)], rows[k, : len(times)] = times, counts
        return dates, rows

    def _labels(self) -> list[Any] | None:
        """The labels of training rows, if they may be classes; None for numbers."""
        known = self.table[self.settings.target][self.train]
        found = sorted(known.map(plain_value).unique().tolist(), key=lambda value: (str(type(value)), value))
        texts = any(isinstance(label, str | bool) for label in found)
        return found if texts or self.settings.task == "classification" or len(found) <= 2 else None

    # ------------------------------------------------------------------ encoding

    def scale(self, encoder: Encoder, target: Target, centre: Floats, target_centre: float) -> Response:
        """Sums and squares of encoded features and of the target."""
        self.encoder = encoder
        self.columns = replace(
            self.columns,
            numbers=tuple(each.name for each in encoder.numbers),
            categories=tuple(each.name for each in encoder.categories),
        )
        raw = np.ascontiguousarray(encoder.transform(plain(self.table[self.train], self.columns)).T)
        about = target.encode(self.table[self.settings.target])[self.train] - target_centre
        if target.kind == "count" and (about < 0).any():
            raise InputError("Expected counts ≥ 0 as the target, got smaller ones: correct them, or set another task.")
        squares = float((about**2).sum()) if not target.classes else 0.0
        return {}, {
            "sums": raw.sum(axis=1),
            "squares": ((raw - centre[:, None]) ** 2).sum(axis=1),
            "target_squares": np.float64(squares),
        }

    def encode(
        self, encoder: Encoder, target: Target, fold_count: int, starts: Floats, node_folds: Ints
    ) -> tuple[TableRows, Response]:
        """Encode all rows, and make the folds of cross-validation."""
        X = encoder.transform(plain(self.table, self.columns))
        y = target.encode(self.table[self.settings.target])
        if np.isnan(y[self.train]).any():
            raise InputError("Expected a target in every training row, got a class that nobody has agreed on.")
        unseen = self.held_out & np.isnan(y)  # test rows of classes that no training row has
        rows = TableRows(
            self.settings, self.columns, encoder, target, self.nodes, self.table, Rows(X, y, self.owner),
            self.held_out & ~unseen, self._folding(fold_count, starts, node_folds),
        )  # fmt: skip
        return rows, ({}, {"part_rows": rows.part_rows, "held": rows.held, "unseen": np.int64(unseen.sum())})

    def _folding(self, count: int, starts: Floats, node_folds: Ints) -> Folding:
        if self.settings.time:
            times = self.times[self.train]
            return Folding("times", list(windows_between(times, starts)), times, self.times, self.settings.time)
        owner = self.owner[self.train]
        drawn = row_folds(self.numbers[owner], count, self.settings.seed, VALIDATION) if len(owner) else owner
        fold = node_folds[owner] if len(node_folds) else drawn
        folds = [(fold != part, fold == part) for part in range(count)]
        return Folding("nodes" if len(node_folds) else "rows", folds)


def _counts(column: pandas.Series) -> dict[str, Any]:
    """How often every category occurs, without the names of rare ones."""
    found = Counter(map(str, column))
    named = {name: count for name, count in found.items() if count >= LEAST_NAMED}
    return {"counts": named, "others": sum(found.values()) - sum(named.values())}
