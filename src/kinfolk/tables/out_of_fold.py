"""Out-of-fold predictions at one party: they stay there; errors, residuals and losses leave it as sums."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kinfolk.tables.blend import blend_cost, blended, error_products, error_sizes, tamed
from kinfolk.tables.intervals import Intervals, Moments, Scales, TimeSums
from kinfolk.tables.levels import Growth, Level
from kinfolk.tables.party import Errors, Residuals, Spread, Widths
from kinfolk.tables.table_rows import TableRows
from kinfolk.typing import Bools, Floats, Ints


class OutOfFold:
    """What members predict of training rows that they have not learnt from.

    Parameters
    ----------
    rows : TableRows
        Has the rows and the folds.
    """

    def __init__(self, rows: TableRows) -> None:
        self.rows = rows
        self.predicted: dict[str, Floats] = {}  # by member, (values, training rows, ...)
        self.fallback: Floats | None = None  # of the pooled model, where a node has no model
        self._stacked_for: tuple[tuple[tuple[str, int], ...], tuple[Floats, Floats, Floats]] | None = None

    def begin(self, name: str, count: int) -> None:
        """Room for the predictions of a member with so many values."""
        target = self.rows.target
        shape = count, len(self.rows.training.y), *([len(target.classes)] if target.classes else [])
        self.predicted[name] = np.full(shape, np.nan, dtype=np.float32)

    def add(self, name: str, values: Ints, held: Bools, predicted: Sequence[Floats] | Floats) -> Floats:
        """Keep what some values predict of a fold, the fallback where there is nothing; their losses (values, rows)."""
        found = np.asarray(predicted, dtype=np.float32)
        if self.fallback is not None:
            found = np.where(np.isnan(found), self.fallback[held], found).astype(np.float32)
        target, y = self.rows.target, self.rows.training.y[held]
        for value, each in zip(values.tolist(), found, strict=True):
            self.predicted[name][value, held] = each
        return np.stack([target.loss(each.astype(np.float64), y) for each in found])

    def best(self, name: str, value: int) -> Floats:
        """The predictions of a member with its best value."""
        return np.asarray(self.predicted[name][value], dtype=np.float64)

    # ------------------------------------------------------------------ weights

    def errors(self, names: Sequence[str], best: Ints, factors: Floats, typical: float, weights: Floats) -> Errors:
        """Errors of members, summed over rows that all of them have predicted."""
        stacked, y, weight = self._stacked(names, best, factors)
        target, count = self.rows.target, len(names)
        size, products, cost, slopes = 0.0, np.zeros((count, count)), 0.0, np.zeros(count)
        if target.kind == "number":
            sizes = error_sizes(stacked, y)
            size = float(weight @ sizes)
            products = error_products(stacked, y, tamed(weight, sizes, typical), target)
        elif target.kind == "classes":
            products = error_products(stacked, y, weight, target)
        else:
            cost, slopes = blend_cost(stacked, y, weight, target, weights)
        return Errors(size, products, cost, slopes, len(y), float(weight.sum()))

    def _stacked(self, names: Sequence[str], best: Ints, factors: Floats) -> tuple[Floats, Floats, Floats]:
        """Predictions of members (members, rows, ...), targets and weights."""
        key = tuple(zip(names, best.tolist(), strict=True))
        if self._stacked_for is not None and self._stacked_for[0] == key:
            return self._stacked_for[1]
        y = self.rows.training.y
        stacked = np.stack([self.best(name, value) for name, value in key])
        seen = np.isfinite(stacked.reshape(len(stacked), len(y), -1)).all(axis=(0, 2))
        weight = np.zeros(len(y))
        for factor, (_, held) in zip(factors, self.rows.folding.folds, strict=True):
            weight[held] = factor
        found = stacked[:, seen], y[seen], weight[seen]
        self._stacked_for = key, found
        return found

    # ------------------------------------------------------------------ intervals

    def residuals(self, names: Sequence[str], best: Ints, weights: Floats) -> Residuals:
        """Residuals of the ensemble, by window of time and node."""
        rows, target = self.rows, self.rows.target
        found = [self.best(name, value) for name, value in zip(names, best.tolist(), strict=True)]
        self._ensemble = blended(found, weights.tolist())
        truth = target.decode(rows.training.y)
        assert self.fallback is not None
        new = self._ensemble if rows.folding.kind == "nodes" else self.fallback  # what nodes never seen would get
        self._residuals = truth - target.decode(self._ensemble), truth - target.decode(new)
        self._known = ~np.isnan(self._residuals[0])
        values, owner = self._residuals[0][self._known], rows.training.owner[self._known]
        window = rows.window[self._known]
        self.moments = Moments.of(values, owner, len(rows.nodes), window, rows.window_count)
        known = self._ensemble[self._known]
        return Residuals(*self.moments, np.array([len(known), known.sum(), (known**2).sum()]))

    def spread(self, scales: Floats, level: Floats, unit: float, times: Floats) -> Spread:
        """The same residuals in units of scales, and those that nodes never seen would have."""
        rows, growing = self.rows, Level(*level.tolist())
        owner, window = rows.training.owner[self._known], rows.window[self._known]
        predicted = rows.target.decode(self._ensemble[self._known])
        ratio = Scales.from_array(scales).ratios(self._residuals[0][self._known], owner, window, self.moments)
        growth = Growth.of(ratio, growing.of(predicted), owner, window, len(rows.nodes), rows.window_count)
        inside = ratio / growing.factor(predicted, self._usual(growing)[owner])
        there = ~np.isnan(self._residuals[1])
        outside = self._residuals[1][there] / unit
        timed = ((ratio, self._known), (inside, self._known), (outside, there))
        sums = [self._by_time(values, known, times) for values, known in timed]
        return Spread(
            growth.squares, (inside, np.ones(len(inside))), (outside, np.ones(len(outside))),
            np.stack([each.rows for each in sums]), np.stack([each.squares for each in sums]),
        )  # fmt: skip

    def intervals(self, widths: Widths) -> Intervals:
        """The widths of prediction intervals of the own nodes."""
        growing, scales = Level(*widths.level.tolist()), Scales.from_array(widths.scales)
        usual = self._usual(growing)
        return Intervals.of_scales(scales, self.moments, widths.inside, widths.outside, usual, growing)

    def _usual(self, level: Level) -> Floats:
        """The mean level of the predictions of every node."""
        rows, predicted = self.rows, self.rows.target.decode(self._ensemble[self._known])
        return level.usual(predicted, rows.training.owner[self._known], len(rows.nodes))

    def _by_time(self, values: Floats, known: Bools, times: Floats) -> TimeSums:
        """Residuals added up by time; nothing where no later times are predicted."""
        when = self.rows.training_times
        if not len(times) or when is None:
            return TimeSums(np.zeros(0, dtype=np.int64), np.zeros(0))
        return TimeSums.of(values, when[known], times)
