"""Linear systems over a graph: a block per node on the diagonal, and Dᵀ(a block per edge)D."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse
import scipy.sparse.linalg

from kinfolk import kernels
from kinfolk.typing import Floats, Ints

SYMMETRIC = {"diag_pivot_thresh": 0.0, "options": {"SymmetricMode": True}}


class Factor:
    """A positive semi-definite matrix, scaled to a unit diagonal (or ``least``), shifted a little and factorised."""

    def __init__(
        self, matrix: scipy.sparse.csc_array, shift: float, least: Floats | float = 0.0, order: str = "MMD_AT_PLUS_A"
    ) -> None:
        diagonal = np.maximum(matrix.diagonal(), least)
        self.scale = 1.0 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
        columns = np.repeat(self.scale, np.diff(matrix.indptr))
        entries = matrix.data * self.scale[matrix.indices] * columns
        scaled = scipy.sparse.csc_array((entries, matrix.indices, matrix.indptr), shape=matrix.shape)
        scaled.setdiag(scaled.diagonal() + shift)
        self.factor = scipy.sparse.linalg.splu(scaled, permc_spec=order, **SYMMETRIC)

    def solve(self, columns: Floats) -> Floats:
        """The solution for every column."""
        return np.asarray(self.scale[:, None] * self.factor.solve(np.ascontiguousarray(self.scale[:, None] * columns)))


@dataclass(frozen=True, eq=False)
class GraphSystem:
    """Systems over one graph, whose pattern is looked at once: nodes are eliminated in an order of least degrees."""

    count: int  # of nodes
    width: int  # of blocks
    head: Ints  # (edges,)
    tail: Ints  # (edges,)

    @cached_property
    def _symbolic(self) -> tuple[Ints, Floats]:
        """The place of every node in the order of elimination, and how many blocks its column of the factor has."""
        ones = np.ones(len(self.head))
        upper = scipy.sparse.csr_array((ones, (self.head, self.tail)), shape=(self.count, self.count))
        degrees = scipy.sparse.diags_array(1.0 + np.bincount(np.r_[self.head, self.tail], minlength=self.count))
        pattern = (upper + upper.T + degrees).tocsc()
        factor = scipy.sparse.linalg.splu(pattern, permc_spec="MMD_AT_PLUS_A", **SYMMETRIC)
        return factor.perm_c.astype(np.int64), np.diff(factor.L.indptr).astype(np.float64)

    @property
    def cost(self) -> float:
        """Operations of a factorisation, about."""
        return float((self._symbolic[1] ** 2).sum()) * self.width**3

    @cached_property
    def _places(self) -> tuple[Ints, Ints, Ints]:
        """Where the entries of all blocks go among those of a matrix by columns, its row numbers and column starts."""
        place, width = self._symbolic[0], self.width
        nodes, head, tail = place, place[self.head], place[self.tail]
        rows = np.concatenate([nodes, head, tail, head, tail])
        columns = np.concatenate([nodes, head, tail, tail, head])
        inside = np.arange(width)
        i = np.broadcast_to((rows * width)[:, None, None] + inside[:, None], (len(rows), width, width)).ravel()
        j = np.broadcast_to((columns * width)[:, None, None] + inside, (len(rows), width, width)).ravel()
        size = self.count * width
        keys, where = np.unique(j * size + i, return_inverse=True)
        starts = np.searchsorted(keys // size, np.arange(size + 1))
        return where.ravel(), keys % size, starts

    def factorised(self, at_nodes: Floats, at_edges: Floats, shift: float, least: float = 0.0) -> Solver:
        """The system with these blocks, (nodes, width, width) and (edges, width, width).

        A diagonal below ``least`` of the mean one is taken to be so large when it is shifted.
        """
        where, rows, starts = self._places
        blocks = np.concatenate([at_nodes, at_edges, at_edges, -at_edges, -at_edges])
        entries = np.bincount(where, blocks.ravel(), minlength=len(rows))
        size = self.count * self.width
        matrix = scipy.sparse.csc_array((entries, rows, starts), shape=(size, size))
        floor: Floats | float = 0.0
        if least:
            floor = np.tile(least * matrix.diagonal().reshape(self.count, self.width).mean(axis=0), self.count)
        return Solver(self, at_nodes, at_edges, Factor(matrix, shift, floor, "NATURAL"))


@dataclass(frozen=True, eq=False)
class Solver:
    """A factorised system, and the system itself to check its solutions with."""

    system: GraphSystem
    at_nodes: Floats
    at_edges: Floats
    factor: Factor

    def rough(self, rhs: Floats) -> Floats:
        """The factor's solution, for rows (nodes, width)."""
        place = self.system._symbolic[0]
        ordered = np.empty_like(rhs)
        ordered[place] = rhs
        return np.asarray(self.factor.solve(ordered.reshape(-1, 1)).reshape(rhs.shape)[place])

    def apply(self, x: Floats) -> Floats:
        """The system times x, by differences over edges: exact where large blocks meet small differences."""
        system = self.system
        change = kernels.difference(x, system.head, system.tail)
        out = np.asarray(np.einsum("nij,nj->ni", self.at_nodes, x))
        kernels.add_flows(out, np.einsum("eij,ej->ei", self.at_edges, change), system.head, system.tail)
        return out

    def solve(self, rhs: Floats, precision: float, most: int) -> Floats:
        """Conjugate gradients with the factor as preconditioner: one or two steps unless the system is extreme."""
        x, r = np.zeros_like(rhs), rhs
        z = self.rough(r)
        p, rz = z, float((r * z).sum())
        goal = precision**2 * rz
        for _ in range(most):
            image = self.apply(p)
            bend = float((p * image).sum())
            if not bend > 0.0:
                break
            step = rz / bend
            x, r = x + step * p, r - step * image
            z = self.rough(r)
            rz, before = float((r * z).sum()), rz
            if not rz > goal:
                break
            p = z + (rz / before) * p
        return x
