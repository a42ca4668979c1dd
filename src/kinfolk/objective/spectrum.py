"""Eigenvectors and eigenvalues of the Hessians of all nodes, kept as rows of two arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kinfolk import kernels
from kinfolk.network.data import rows_of, starts_of
from kinfolk.typing import Bools, Floats, Ints

NODE_BLOCK = 8_192  # decomposed at once, so that temporaries stay small


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Eigenvectors q, of any length, and eigenvalues of every node's Hessian H, and its linear term b = Σ linear q."""

    basis: Floats  # (directions, parameters)
    eigenvalues: Floats  # (directions,)
    slopes: Floats  # (directions,) eigenvalue / ‖q‖²: H = Σ slope q q'
    linear: Floats  # (directions,)
    starts: Ints  # (nodes + 1,)

    @classmethod
    def of_rows(cls, X: Floats, factor: Floats, starts: Ints, dual: Floats) -> Spectrum:
        """From H_i = Σ factor_r² x_r x_r' and b_i = Σ dual_r x_r, by one thin SVD per node; equal sizes go together."""
        sizes, width = np.diff(starts), X.shape[1]
        if sizes.max(initial=0) <= 1:
            return cls.of_single_rows(X, factor, starts, dual)
        fits = sizes.max() <= width
        rank_starts = starts if fits else np.concatenate([[0], np.cumsum(np.minimum(sizes, width))]).astype(np.int64)
        basis, values = np.empty((rank_starts[-1], width)), np.empty(rank_starts[-1])
        for size in np.unique(sizes[sizes > 0]):
            alike = np.flatnonzero(sizes == size)
            for nodes in np.split(alike, np.arange(NODE_BLOCK, len(alike), NODE_BLOCK)):
                rows, where = rows_of(starts, nodes), rows_of(rank_starts, nodes)
                block = (factor[rows, None] * X[rows]).reshape(len(nodes), size, width)
                _, s, vt = np.linalg.svd(block, full_matrices=False)
                s[s <= s[:, :1] * max(size, width) * np.finfo(float).eps] = 0.0
                basis[where], values[where] = vt.reshape(-1, width), s.reshape(-1) ** 2
        return cls._along(basis, values, kernels.combine_rows(X, starts, dual), rank_starts)

    @classmethod
    def of_single_rows(cls, X: Floats, factor: Floats, starts: Ints, dual: Floats) -> Spectrum:
        """The same for nodes with one row at most: it is an eigenvector as it is, and need not be copied."""
        slopes = factor**2
        eigenvalues = slopes * np.einsum("rp,rp->r", X, X)
        return cls(X, eigenvalues, slopes, np.where(eigenvalues > 0, dual, 0.0), starts)

    @classmethod
    def of_matrices(cls, hessians: Floats, linear: Floats, has_data: Bools) -> Spectrum:
        """From the Hessians themselves, at the nodes that have data."""
        width = hessians.shape[1]
        values, vectors = np.linalg.eigh(hessians[has_data])
        values[values <= values[:, -1:] * width * np.finfo(float).eps] = 0.0
        basis = np.ascontiguousarray(vectors.transpose(0, 2, 1)).reshape(-1, width)
        starts = np.concatenate([[0], np.cumsum(width * has_data)]).astype(np.int64)
        return cls._along(basis, values.reshape(-1), linear, starts)

    @classmethod
    def _along(cls, basis: Floats, values: Floats, linear: Floats, starts: Ints) -> Spectrum:
        along = kernels.predict_rows(basis, starts, linear)
        return cls(basis, values, values, np.where(values > 0, along, 0.0), starts)

    def take(self, nodes: Ints) -> Spectrum:
        """The part of some nodes."""
        rows = rows_of(self.starts, nodes)
        basis, values, slopes, linear = (
            each[rows] for each in (self.basis, self.eigenvalues, self.slopes, self.linear)
        )
        return Spectrum(basis, values, slopes, linear, starts_of(self.starts, nodes))
