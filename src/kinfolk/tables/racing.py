"""Racing: values that are clearly worse than another are not tried on later folds (Maron and Moore 1994)."""

from __future__ import annotations

import numpy as np

from kinfolk.typing import Floats, Ints

LEAST_ROWS, CLEARLY = 100, 3.0  # rows that tell values apart, and standard errors


class Race:
    """Values that may still turn out to be the best.

    A value drops out if its losses are larger than those of the best so far by three standard errors, row by row.

    >>> race = Race(2)
    >>> race.add(np.stack([np.zeros(200), np.random.default_rng(0).normal(1.0, 1.0, 200)]))
    >>> race.runners.tolist()
    [0]
    """

    def __init__(self, count: int) -> None:
        self.runners: Ints = np.arange(count)
        self._rows = 0
        self._sums, self._products = np.zeros(count), np.zeros((count, count))

    def add(self, losses: Floats) -> None:
        """Add the losses (runners, rows) on a fold."""
        self._rows += losses.shape[1]
        self._sums, self._products = self._sums + losses.sum(axis=1), self._products + losses @ losses.T
        if self._rows >= LEAST_ROWS:
            self._drop_out()

    def _drop_out(self) -> None:
        mean, product = self._sums / self._rows, self._products / self._rows
        best = int(np.argmin(np.where(np.isnan(mean), np.inf, mean)))
        behind, square = mean - mean[best], np.diag(product)
        variance = square - 2 * product[best] + square[best] - behind**2
        kept = behind <= CLEARLY * np.sqrt(np.maximum(variance, 0.0) / self._rows)
        kept[best] = True
        self.runners, self._sums, self._products = self.runners[kept], self._sums[kept], self._products[kept][:, kept]
