"""How residuals grow with what is predicted: a calm day is predicted more closely than a stormy one.

The level g of a prediction is its distance from the mean of all predictions in units of their deviation, two at most.
The scale of node i is s_i exp(β (g − g_i)), where g_i is its mean level and β the same for all nodes. With u the
residuals in units of s_i, and z the levels less their mean at the node in the window of time, β minimises

    evidence · Σ_w (n_w / n) log(Σ_w u² exp(−2 β z)) / 2  +  β² / (2 · 0.3²),

the likelihood of normal residuals whose size is free in every window w, as far as there is evidence, and a prior. Only
rows of one node and one window are compared: a level that grows with time would stand for all that time changes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kinfolk.typing import Floats, Ints

SLOPES = np.linspace(-1, 1, 21)  # that are tried; the best is between them
TYPICAL = 0.3  # deviation of the prior of slopes
FARTHEST = 2.0  # levels beyond count as this


class Level(NamedTuple):
    """What levels are measured from and in, and how the logarithm of a scale changes with them."""

    centre: float = 0.0
    unit: float = 1.0
    slope: float = 0.0

    @classmethod
    def of_sums(cls, count: float, total: float, squares: float) -> Level:
        """From how many predictions there are, their sum and the sum of their squares.

        >>> Level.of_sums(4, 8.0, 20.0)
        Level(centre=2.0, unit=1.0, slope=0.0)
        """
        centre = total / count
        return cls(centre, float(np.sqrt(max(squares / count - centre**2, 0.0))))

    def of(self, predicted: Floats) -> Floats:
        """The levels of predictions."""
        if self.unit == 0:
            return np.zeros(len(predicted))
        return np.clip((predicted - self.centre) / self.unit, -FARTHEST, FARTHEST)

    def usual(self, predicted: Floats, owner: Ints, node_count: int) -> Floats:
        """The mean level at every node (nodes,), 0 where there are no predictions."""
        return _means(self.of(predicted), owner, node_count)

    def factor(self, predicted: Floats, usual: Floats) -> Floats:
        """By what the scale of a row's node is multiplied; ``usual``: the mean level of that node."""
        return np.exp(self.slope * (self.of(predicted) - usual))


class Growth(NamedTuple):
    """Residuals in units of their node's scale, divided by what each slope expects: all that a slope needs."""

    rows: Ints  # (windows,)
    squares: Floats  # (windows, slopes) Σ u² exp(−2 β z)

    @classmethod
    def of(cls, ratio: Floats, levels: Floats, owner: Ints, window: Ints, node_count: int, windows: int) -> Growth:
        """Add up the rows of every window."""
        cell = window * node_count + owner
        within = levels - _means(levels, cell, node_count * windows)[cell]
        sums = [np.bincount(window, (ratio * np.exp(-slope * within)) ** 2, windows) for slope in SLOPES]
        return cls(np.bincount(window, minlength=windows), np.stack(sums, axis=1))

    def slope(self, evidence: float) -> float:
        """The best slope, if the rows tell as much as ``evidence`` independent normal values.

        >>> rng, owner = np.random.default_rng(0), np.zeros(1000, dtype=np.int64)
        >>> levels = rng.uniform(-2, 2, size=1000)
        >>> found = Growth.of(np.exp(0.4 * levels) * rng.normal(size=1000), levels, owner, owner, 1, 1)
        >>> round(found.slope(1000), 2), round(found.slope(3), 2)
        (0.38, 0.15)
        """
        told = (self.squares > 0).all(axis=1)
        if not told.any():
            return 0.0
        share = self.rows[told] / self.rows[told].sum()
        cost = evidence * (share @ np.log(self.squares[told])) / 2 + SLOPES**2 / (2 * TYPICAL**2)
        best = int(cost.argmin())
        if best in (0, len(SLOPES) - 1):
            return float(SLOPES[best])
        before, here, after = cost[best - 1 : best + 2]  # the lowest point of the parabola through three
        return float(SLOPES[best] + (SLOPES[1] - SLOPES[0]) * (before - after) / (2 * (before - 2 * here + after)))


def _means(values: Floats, group: Ints, count: int) -> Floats:
    return np.bincount(group, values, count) / np.maximum(np.bincount(group, minlength=count), 1)
