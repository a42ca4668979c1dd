"""Eigenvectors and eigenvalues of the Hessians of all nodes, kept as rows of two arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kinfolk import kernels
from kinfolk.network.data import rows_of, starts_of
from kinfolk.typing import Bools, Floats, Ints


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Eigenvectors and eigenvalues of every node's Hessian, and its linear term along them."""

    basis: Floats  # (directions, parameters)
    eigenvalues: Floats  # (directions,)
    linear: Floats  # (directions,) b'q
    starts: Ints  # (nodes + 1,)

    @classmethod
    def of_rows(cls, rows: Floats, starts: Ints, linear: Floats) -> Spectrum:
        """From H_i = (rows of i)'(rows of i), by one thin SVD per node; nodes of equal size go together."""
        sizes, width = np.diff(starts), rows.shape[1]
        rank_starts = np.concatenate([[0], np.cumsum(np.minimum(sizes, width))]).astype(np.int64)
        basis, values = np.empty((rank_starts[-1], width)), np.empty(rank_starts[-1])
        for size in np.unique(sizes[sizes > 0]):
            nodes = np.flatnonzero(sizes == size)
            block = rows[rows_of(starts, nodes)].reshape(len(nodes), size, width)
            _, s, vt = np.linalg.svd(block, full_matrices=False)
            s[s <= s[:, :1] * max(size, width) * np.finfo(float).eps] = 0.0
            where = rows_of(rank_starts, nodes)
            basis[where], values[where] = vt.reshape(-1, width), s.reshape(-1) ** 2
        return cls._along(basis, values, linear, rank_starts)

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
        return cls(basis, values, np.where(values > 0, along, 0.0), starts)

    def take(self, nodes: Ints) -> Spectrum:
        """The part of some nodes."""
        rows = rows_of(self.starts, nodes)
        return Spectrum(self.basis[rows], self.eigenvalues[rows], self.linear[rows], starts_of(self.starts, nodes))
