"""Prediction intervals for every node, from the residuals of rows that were predicted without being learnt from.

A node's residuals have a scale of their own. From few rows it is hardly known, so its logarithm is drawn towards that
of the network (empirical Bayes). How far residuals reach, in units of the scale, is read from all rows: each residual
is divided by the scale of its node *without* this residual, so that the error of the scale is included. Scales change
with the level of the prediction, where residuals do (``levels``).

Where later times are predicted, residuals that follow each other are alike. Then each is divided by the scale of its
node in the *other* windows of time, so that changes from window to window are included, and all is widened for how
little so many times tell, all nodes together (Student's t).

However few times there are, widths are not beyond those of ``LEAST_FREEDOM`` degrees of freedom, as if the root mean
square of later residuals were known up to a factor of about 1.5.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import NamedTuple

import numpy as np
import scipy.stats

from kinfolk.checks import InputError
from kinfolk.tables.levels import Level
from kinfolk.tables.uncertainty import by_times
from kinfolk.typing import Bools, Floats, Ints

STEPS = 1000  # of the probabilities at which quantiles are kept
TINY = 1e-12  # of the network's mean square: residuals of zero have a logarithm, too
NORMAL, LEAST_NOISE = 2.0, 0.5  # variance of the square of a normal value, in parts of its squared mean; the least
LEAST_FREEDOM = 3.0  # of Student's t, where times are few


@dataclass(frozen=True, eq=False)
class Intervals:
    """Widths of prediction intervals: a scale for every node, and quantiles of what is divided by it.

    Attributes
    ----------
    scale : array of float, shape (nodes,)
        The scale of each node; that of the network for a node without residuals.
    seen : array of bool, shape (nodes,)
        Which nodes have residuals.
    quantiles : array of float, shape (STEPS + 1,)
        Quantiles of residuals in units of their node's scale.
    unseen : array of float, shape (STEPS + 1,)
        Quantiles of residuals at nodes that were never seen, in the units of the residuals.
    usual : array of float, shape (nodes,)
        The mean level of the predictions of each node, at which its scale holds.
    growth : array of float, shape (3,)
        How scales change with the level: a ``Level``.
    """

    scale: Floats
    seen: Bools
    quantiles: Floats
    unseen: Floats
    usual: Floats
    growth: Floats

    @classmethod
    def of_scales(
        cls, scales: Scales, moments: Moments, inside: Floats, outside: Floats, usual: Floats, level: Level
    ) -> Intervals:
        """The intervals of nodes with these moments and usual levels; ``inside`` in units of their scales."""
        whole = moments.added()
        scale = scales.whole.scale(whole.squares, whole.sizes)
        return cls(scale, whole.sizes > 0, inside, outside, usual, np.array(level))

    def interval(self, predicted: Floats, owner: Ints, level: float) -> tuple[Floats, Floats]:
        """The intervals around predictions; ``owner`` −1 stands for a node that was never seen."""
        if not (isinstance(level, int | float) and 0 < level < 1):
            raise InputError(f"Expected the level of an interval between 0 and 1, such as 0.9, got {level!r}.")
        known = (owner >= 0) & self.seen[owner]
        scale = self.scale[owner] * Level(*self.growth.tolist()).factor(predicted, self.usual[owner])
        ends = []
        for share in ((1 - level) / 2, (1 + level) / 2):
            inside, outside = (np.interp(share, _grid(), each) for each in (self.quantiles, self.unseen))
            ends.append(predicted + np.where(known, inside * scale, outside))
        return ends[0], ends[1]


class Moments(NamedTuple):
    """The residuals of every node in every window of time, added up: all that scales need, wherever the rows are."""

    sizes: Ints  # (windows, nodes); one window where rows are predicted at no time in particular
    squares: Floats  # Σ r²
    fourths: Floats  # Σ r⁴

    @classmethod
    def of(cls, values: Floats, where: Ints, node_count: int, window: Ints, window_count: int) -> Moments:
        """Add up the residuals of rows."""
        shape, cell = (window_count, node_count), window * node_count + where
        squares, fourths = (
            np.bincount(cell, values**power, minlength=window_count * node_count).astype(np.float64).reshape(shape)
            for power in (2, 4)
        )
        return cls(np.bincount(cell, minlength=window_count * node_count).reshape(shape), squares, fourths)

    def added(self, without: int | None = None) -> Moments:
        """Those of all windows together (nodes,), or of all but one."""
        counted = np.arange(len(self.sizes)) != without
        return Moments(*(each[counted].sum(axis=0) for each in self))


@dataclass(frozen=True)
class Shrinkage:
    """How much the logarithm of a node's mean square is worth beside that of the network."""

    centre: float  # mean logarithm
    between: float  # variance of the true logarithms
    noise: float  # variance of the logarithm of a mean of m squares, times m

    @classmethod
    def of(cls, moments: Moments) -> Shrinkage:
        """From moments of nodes (nodes,): over those with two rows at least, each counted by its rows."""
        sizes, squares, _ = moments
        several = (sizes >= 2) & (squares > 0)
        if not several.any():
            return cls(float(np.log(squares.sum() / max(sizes.sum(), 1) or 1.0)), 0.0, NORMAL)
        count, noise = sizes[several], _noise(moments)
        found = _logarithm(squares[several], count, noise)
        weight = count / count.sum()
        centre = float((weight * found).sum())
        apart = float((weight * (found - centre) ** 2).sum())
        return cls(centre, max(apart - float((weight * noise / count).sum()), 0.0), noise)

    def scale(self, squares: Floats, sizes: Ints) -> Floats:
        """Scales of nodes with these sums of squares."""
        count = np.maximum(sizes, 1)
        found = _logarithm(np.maximum(squares, TINY * count * np.exp(self.centre)), count, self.noise)
        trust = np.where(sizes > 0, self.between / (self.between + self.noise / count), 0.0)
        return np.exp((self.centre + trust * (found - self.centre)) / 2)


@dataclass(frozen=True)
class Scales:
    """How scales of nodes follow from their moments: in all windows of time together, and without each of them."""

    whole: Shrinkage
    without: tuple[Shrinkage, ...]  # by window; none where all rows are in one

    @classmethod
    def of(cls, moments: Moments) -> Scales:
        """From the moments of all nodes."""
        several = (moments.sizes.sum(axis=1) > 0).sum() > 1
        windows = range(len(moments.sizes)) if several else ()
        return cls(Shrinkage.of(moments.added()), tuple(Shrinkage.of(moments.added(without=k)) for k in windows))

    def ratios(self, values: Floats, where: Ints, window: Ints, moments: Moments) -> Floats:
        """Residuals of rows over the scale of their node in the other windows; if there is one, without this row."""
        whole = moments.added()
        if self.without:
            rest = [moments.added(without=k) for k in range(len(self.without))]
            found = [each.scale(kept.squares, kept.sizes) for each, kept in zip(self.without, rest, strict=True)]
            scale = np.stack(found)[window, where]
        else:
            scale = self.whole.scale(np.maximum(whole.squares[where] - values**2, 0.0), whole.sizes[where] - 1)
        return np.divide(values, scale, out=np.zeros_like(values), where=scale > 0)

    def evidence(self, rows: int, by_time: TimeSums | None) -> float:
        """How many independent normal values tell as much about sizes of residuals as these rows do.

        ``by_time``: their ratios, where later times are predicted.
        """
        if by_time is None:
            return rows * NORMAL / max(self.whole.noise, NORMAL)
        return min(by_time.freedom(), rows)

    def to_array(self) -> Floats:
        """Centre, variance and noise (3, 1 + windows)."""
        return np.array([astuple(each) for each in (self.whole, *self.without)]).T

    @classmethod
    def from_array(cls, found: Floats) -> Scales:
        """What ``to_array`` has returned."""
        whole, *without = (Shrinkage(*each) for each in found.T.tolist())
        return cls(whole, tuple(without))


class TimeSums(NamedTuple):
    """Values of rows, added up by time, all nodes together: they tell how much so many times tell."""

    rows: Ints  # (times,)
    squares: Floats  # (times,) Σ r²

    @classmethod
    def of(cls, values: Floats, when: Floats, times: Floats) -> TimeSums:
        """Add up values; ``when``: the time of each, among ``times``, which are sorted."""
        number = np.searchsorted(times, when)
        squares = np.bincount(number, values**2, minlength=len(times)).astype(np.float64)
        return cls(np.bincount(number, minlength=len(times)), squares)

    def freedom(self) -> float:
        """How many independent normal values would tell the mean square as exactly as these do, three at least.

        Values of one time are alike, and so are those of times that follow each other: 2 / n is the variance of the
        logarithm of a mean of n squares, and here that variance comes from blocks of times, as in a judgement.

        >>> TimeSums.of(np.array([1.0, 1.0]), np.array([1.0, 2.0]), np.array([1.0, 2.0, 3.0])).freedom()
        3.0
        """
        rows, squares = self.rows[self.rows > 0], self.squares[self.rows > 0]
        if not squares.any():
            return np.inf
        total = squares / squares.sum() - rows / rows.sum()
        found = by_times(total)
        if found is None:
            return LEAST_FREEDOM
        return max(2 / found.error**2, LEAST_FREEDOM) if found.error > 0 else np.inf


def widened(found: Floats, freedom: float) -> Floats:
    """Quantiles on the grid, farther from their middle by the ratio of Student's t to a normal value.

    >>> q = widened(scipy.stats.norm.ppf(np.clip(_grid(), 1e-4, 1 - 1e-4)), 5.0)
    >>> round(float(q[950]), 3), round(float(scipy.stats.t.ppf(0.95, 5)), 3)
    (2.015, 2.015)
    """
    above = np.minimum(np.abs(_grid() - 0.5), 0.5 - 0.5 / STEPS) + 0.5
    normal = scipy.stats.norm.ppf(above)
    factor = np.divide(scipy.stats.t.ppf(above, freedom), normal, out=np.ones_like(normal), where=normal > 0)
    middle = found[STEPS // 2]
    return np.asarray(middle + (found - middle) * factor)


def _logarithm(squares: Floats, count: Ints, noise: float) -> Floats:
    """The logarithm of a mean square, without the bias of the logarithm of a mean (to first order)."""
    return np.log(squares / count) + noise / (2 * count)


def _noise(moments: Moments) -> float:
    """The variance of a square in parts of its squared mean: 2 for normal residuals, more for heavy tails.

    From the fourth moments within nodes; for m normal values Σ r⁴ m / (Σ r²)² is 3 m / (m + 2) in the mean.
    """
    several = (moments.sizes >= 2) & (moments.squares > 0)
    count, squares, fourth = (each[several] for each in moments)
    kurtosis = (count + 2) * fourth / squares**2
    return max(float((count * kurtosis).sum() / count.sum()) - 1, LEAST_NOISE)


def _grid() -> Floats:
    return np.linspace(0, 1, STEPS + 1)


def quantiles(values: Floats, weight: Floats, count: int) -> Floats:
    """Weighted quantiles on the grid, a little outside the sample's own, as a new value may be beyond all of them.

    ``count``: how many values there are; a value with a large weight may stand for many.
    """
    order = np.argsort(values)
    share = (np.cumsum(weight[order]) - 0.5 * weight[order]) / weight.sum()
    outward = 0.5 + (_grid() - 0.5) * (1 + 1 / count)
    return np.interp(outward, share, values[order])
