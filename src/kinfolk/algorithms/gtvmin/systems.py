"""Linear systems over a graph: a block per node on the diagonal, and Dᵀ(a block per edge)D."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import scipy.sparse
import scipy.sparse.linalg
from scipy.sparse.csgraph import reverse_cuthill_mckee

from kinfolk import kernels
from kinfolk.network.site import Site
from kinfolk.typing import Floats, Ints

SLACK = 0.7  # zeros in a front, as a part of its rows, that make it larger
MOST_NUMBERS = 3e7  # on the diagonal of a system: the factor has many times as many
SHIFTS = 5  # each a hundred times the one before
BANDED_EXCESS = 100.0  # times as many operations as in the best order, on maps of thousands of nodes
SYMMETRIC = {"diag_pivot_thresh": 0.0, "options": {"SymmetricMode": True}}


class Factor:
    """A positive semi-definite matrix with a whole diagonal, scaled to a unit one, shifted a little and factorised."""

    def __init__(self, matrix: scipy.sparse.csc_array, shift: float) -> None:
        columns = np.repeat(np.arange(matrix.shape[1]), np.diff(matrix.indptr))
        on_diagonal = matrix.indices == columns
        diagonal = matrix.data[on_diagonal]
        self.scale = 1.0 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
        entries = matrix.data * self.scale[matrix.indices] * self.scale[columns] + shift * on_diagonal
        scaled = scipy.sparse.csc_array((entries, matrix.indices, matrix.indptr), shape=matrix.shape)
        self.factor = scipy.sparse.linalg.splu(scaled, permc_spec="MMD_AT_PLUS_A", **SYMMETRIC)

    def solve(self, columns: Floats) -> Floats:
        """The solution for every column."""
        return np.asarray(self.scale[:, None] * self.factor.solve(np.ascontiguousarray(self.scale[:, None] * columns)))


@dataclass(frozen=True)
class Elimination:
    """In which order nodes are eliminated, and what the factor looks like (see ``kernels.cholesky``)."""

    place: Ints  # (nodes,) of every node in the order, a postorder
    sizes: Floats  # (nodes,) blocks of every column of the factor
    fronts: tuple[Ints, Ints, Ints, Ints]
    second: Ints  # (edges,) the end that is eliminated later
    edge_lists: tuple[Ints, Ints]  # of every end that is eliminated first
    places: Ints  # (fronts + 1,) of their rows in the storage, in blocks

    @classmethod
    def of(cls, count: int, head: Ints, tail: Ints) -> Elimination:
        """The order of least degrees that SuperLU finds.

        It is shown a Laplacian plus one: in its factor all that is filled in is negative, so that nothing cancels, and
        every entry that other numbers could fill is seen.
        """
        pattern = laplacian(count, head, tail, np.ones(len(head)), 1.0)
        found = scipy.sparse.linalg.splu(pattern, permc_spec="MMD_AT_PLUS_A", **SYMMETRIC)
        later, starts, rows = _in_postorder(found.L.tocsc())
        fronts = kernels.find_fronts(starts, rows, SLACK)
        own, below = np.diff(fronts[0]), np.diff(fronts[1])
        places = np.concatenate([[0], np.cumsum(own * (own + below))]).astype(np.int64)
        place = later[found.perm_c]
        first, second = np.minimum(place[head], place[tail]), np.maximum(place[head], place[tail])
        order = np.argsort(first, kind="stable")
        lists = np.searchsorted(first[order], np.arange(count + 1)).astype(np.int64)
        return cls(place, 1.0 + np.diff(starts), fronts, second, (lists, order), places)


def laplacian(count: int, head: Ints, tail: Ints, weights: Floats, more: float = 0.0) -> scipy.sparse.csc_array:
    """Dᵀ diag(weights) D over a graph, with ``more`` on the diagonal."""
    nodes, degrees = np.arange(count), more + np.bincount(np.r_[head, tail], np.r_[weights, weights], count)
    places = np.concatenate([nodes, head, tail]), np.concatenate([nodes, tail, head])
    return scipy.sparse.csc_array((np.concatenate([degrees, -weights, -weights]), places), shape=(count, count))


def _in_postorder(lower: scipy.sparse.csc_array) -> tuple[Ints, Ints, Ints]:
    """Where every column goes, and what the factor has there below its diagonal: starts of columns, and sorted rows."""
    count = lower.shape[1]
    columns = np.repeat(np.arange(count), np.diff(lower.indptr))
    below = lower.indices > columns
    columns, rows = columns[below], lower.indices[below].astype(np.int64)
    parents = np.full(count, count, dtype=np.int64)
    np.minimum.at(parents, columns, rows)
    later = kernels.postorder(np.where(parents < count, parents, -1))
    columns, rows = later[columns], later[rows]
    order = np.lexsort((rows, columns))
    return later, np.searchsorted(columns[order], np.arange(count + 1)).astype(np.int64), rows[order]


@dataclass(frozen=True, eq=False)
class GraphSystem:
    """Systems over one graph, whose pattern is looked at once."""

    count: int  # of nodes
    width: int  # of blocks
    head: Ints  # (edges,)
    tail: Ints  # (edges,)

    @cached_property
    def elimination(self) -> Elimination:
        """The order in which nodes are eliminated."""
        return Elimination.of(self.count, self.head, self.tail)

    @cached_property
    def _banded_cost(self) -> float:
        """Operations of a factorisation in reverse Cuthill–McKee order: quick to count, and far too many."""
        ends = (np.r_[self.head, self.tail], np.r_[self.tail, self.head])
        pattern = scipy.sparse.csr_array((np.ones(len(ends[0])), ends), shape=(self.count, self.count))
        place = np.empty(self.count, dtype=np.int64)
        place[reverse_cuthill_mckee(pattern, symmetric_mode=True)] = np.arange(self.count)
        bandwidth = np.zeros(self.count)
        np.maximum.at(bandwidth, ends[0], place[ends[0]] - place[ends[1]])
        return float(((1 + bandwidth) ** 2).sum()) * self.width**3

    def costs_at_most(self, operations: float) -> bool:
        """Whether a factorisation takes no more operations than these, about."""
        if self.count * self.width**2 > MOST_NUMBERS or self._banded_cost > BANDED_EXCESS * operations:
            return False
        return float((self.elimination.sizes**2).sum()) * self.width**3 <= operations

    def factorised(self, at_nodes: Floats, at_edges: Floats, shift: float, least: float = 0.0) -> Solver:
        """The system with these blocks, (nodes, width, width) and symmetric ones (edges, width, width).

        The diagonal is shifted by a part of itself, or of ``least`` times its mean where that is more; by a larger one
        if the system is found not to be positive definite.
        """
        elimination = self.elimination
        whole = kernels.add_to_ends(at_nodes, at_edges, self.head, self.tail)
        ordered = np.empty_like(whole)
        ordered[elimination.place] = whole
        diagonal = np.einsum("nkk->nk", ordered)
        lift = np.maximum(diagonal, least * diagonal.mean(axis=0))
        lift[lift == 0.0] = 1.0
        places = elimination.places * self.width**2
        storage, before = np.empty(places[-1]), diagonal.copy()
        for power in range(SHIFTS):
            diagonal[:] = before + shift * 100.0**power * lift
            parts = (elimination.second, elimination.fronts, elimination.edge_lists, places, storage)
            if kernels.factorise(ordered, at_edges, *parts):
                break
        return Solver(self, at_nodes, at_edges, places, storage)


@dataclass(frozen=True, eq=False)
class Solver:
    """A factorised system, and the system itself to check its solutions with."""

    system: GraphSystem
    at_nodes: Floats
    at_edges: Floats
    places: Ints
    storage: Floats

    @property
    def factor(self) -> tuple[tuple[Ints, Ints, Ints, Ints], Ints, Floats]:
        """What compiled solves take."""
        return self.system.elimination.fronts, self.places, self.storage

    def rough(self, rhs: Floats) -> Floats:
        """The factor's solution, for rows (nodes, width)."""
        return kernels.solve_in_order(rhs, self.system.elimination.place, self.factor)

    def solve(self, rhs: Floats, precision: float, most: int) -> Floats:
        """The same, improved until the residual is small, by ``most`` steps of conjugate gradients at most."""
        blocks = self.at_nodes, self.at_edges, self.system.head, self.system.tail
        return kernels.solve_blocks(rhs, blocks, self.system.elimination.place, self.factor, precision, most)


def system_of(site: Site, width: int) -> GraphSystem:
    """The systems over the graph of a site that holds every node; looked at once."""
    make = partial(GraphSystem, site.node_count, width, site.head, site.tail)
    out: GraphSystem = site.kept(("linear systems", width), make)
    return out
