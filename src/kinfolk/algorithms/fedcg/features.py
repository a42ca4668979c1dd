"""Random features that every client computes alike: ReLUs of random filters of an image, or of directions of a row."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kinfolk.modules import layer
from kinfolk.typing import Floats

KERNEL, STRIDE, POOLED = 5, 2, 4  # pooling to one number would lose where in an image something is
CHUNK = 2_000  # rows at once


@dataclass(frozen=True)
class RandomFeatures:
    """Features of rows, the same for everybody who knows these numbers.

    Parameters
    ----------
    count : int
        Number of filters, or of directions.
    image : tuple of int, optional
        (channels, height, width) if a row is an image: random 5 × 5 filters without mean and of unit norm, stride 2,
        ReLU, averages over a 4 × 4 grid. None: ReLUs of random directions of the row.
    seed : int
        Of the filters.

    >>> RandomFeatures(3, (1, 8, 8)).of(np.ones((2, 64))).shape, RandomFeatures(3, (1, 8, 8)).size
    ((2, 12), 12)
    """

    count: int
    image: tuple[int, int, int] | None = None
    seed: int = 0

    @property
    def size(self) -> int:
        """Number of features of a row."""
        if self.image is None:
            return self.count
        return self.count * math.prod(self._grid)

    @property
    def _grid(self) -> tuple[int, int]:
        assert self.image is not None
        across = [(length - min(KERNEL, length)) // STRIDE + 1 for length in self.image[1:]]
        return min(POOLED, across[0]), min(POOLED, across[1])

    @cached_property
    def _filters(self) -> Floats:
        assert self.image is not None
        channels, height, width = self.image
        shape = (self.count, channels, min(KERNEL, height), min(KERNEL, width))
        drawn = np.random.default_rng([17, self.seed]).normal(size=shape)
        drawn -= drawn.mean(axis=(1, 2, 3), keepdims=True)
        return np.asarray(drawn / np.sqrt((drawn**2).sum(axis=(1, 2, 3), keepdims=True)))

    def of(self, X: Floats) -> Floats:
        """(rows, size)."""
        parts = [self._of(np.asarray(X[k : k + CHUNK], dtype=np.float64)) for k in range(0, len(X), CHUNK)]
        return np.concatenate([np.empty((0, self.size)), *parts])

    def _of(self, X: Floats) -> Floats:
        if self.image is None:
            directions = np.random.default_rng([17, self.seed]).normal(size=(X.shape[1], self.count))
            return np.asarray(np.maximum(X @ directions / np.sqrt(X.shape[1]), 0.0))
        torch = layer("flat", "FedCG").torch
        functions = torch.nn.functional
        with torch.no_grad():
            images = torch.from_numpy(X).view(len(X), *self.image)
            maps = torch.relu(functions.conv2d(images, torch.from_numpy(self._filters), stride=STRIDE))
            pooled: Floats = functions.adaptive_avg_pool2d(maps, self._grid).reshape(len(X), -1).numpy()
        return pooled
