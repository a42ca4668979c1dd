"""How far from an answer a minimiser can be: what turns a rest of dual infeasibility into a bound.

From the level set: P(w*) ≤ P(w) bounds every term of P at a minimiser w*, since none is negative.

From a gap: if all terms together miss their conjugates by at most G at w*, so does each of them. Then

    ½ h_i ‖w*_i − ŵ_i‖² ≤ G            at a node whose loss is curved by at least h_i, with ŵ_i where its duals belong
    (1 − θ_e) λA_e φ((Dw*)_e) ≤ G      at an edge with a norm, whose flow fills the part θ_e of its ball

and steps along the edges carry it from node to node. Since G is small where an answer is good, this is much sharper.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components, dijkstra

from kinfolk import kernels
from kinfolk.algorithms.gtvmin.instance import Instance
from kinfolk.objective.local_losses import LinearLosses
from kinfolk.typing import Bools, Floats, Ints

ROUNDING = 1e-12
LEAST_ROOM = 1e-3  # of its ball that a flow must leave to hold the ends of an edge together


def from_level_set(problem: Instance, w: Floats, objective: float) -> Floats:
    """(nodes,) how far from w_i the nearest minimiser can be, if its objective is no larger; ∞: no bound is known.

    Along an edge, λA φ(v) ≤ P(w) bounds ‖v‖; added up along shortest paths from a root this bounds how far a
    component spreads. At the root the losses bound the parameters, where they give a bound at all (``radius`` of the
    local losses). Along the other directions P does not change: the minimiser nearest to w is taken.
    """
    losses, (count, component) = problem.losses, problem.components
    roots = _roots(losses, component)
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = problem.coupling.radius(objective / problem.weights, losses.width)
    lengths = problem.along_edges(np.maximum(steps, np.finfo(float).tiny))
    spread = np.asarray(dijkstra(lengths, directed=False, indices=roots, min_only=True), dtype=np.float64)
    root = losses.radius(objective, spread, component, count) + 2.0 * np.linalg.norm(w[roots], axis=1)
    way = np.sqrt(kernels.squared_distance(np.ascontiguousarray(w), np.arange(len(w)), roots[component]))
    return np.asarray(root[component] + spread + way)


def _roots(losses: LinearLosses, component: Ints) -> Ints:
    """A node of every component, with data where there is one."""
    order = np.argsort(~losses.has_data, kind="stable")
    return order[np.unique(component[order], return_index=True)[1]]


class FromGap:
    """Bounds from a gap, for an answer w with dual variables: at_nodes (nodes,) and at_edges (edges,) are its gaps."""

    def __init__(self, problem: Instance, w: Floats, u: Floats, at_nodes: Floats, at_edges: Floats) -> None:
        self.problem = problem
        self.change = np.linalg.norm(problem.difference(w), axis=1)
        self.curvature = problem.losses.least_curvature
        self.at_nodes, self.at_edges = np.maximum(at_nodes, 0.0), np.maximum(at_edges, 0.0)
        self.room = _room(problem, u) if problem.coupling.is_norm else np.ones(len(u))
        self.groups = _Groups.of(problem, self.room) if problem.losses.is_quadratic else None

    def distances(self, gap: float) -> Floats:
        """(nodes,) how far from w_i any minimiser can be, if the gap at it is at most ``gap``."""
        steps = self._steps(gap)
        with np.errstate(divide="ignore", invalid="ignore"):
            pinned = (np.sqrt(2 * gap) + np.sqrt(2 * self.at_nodes)) / np.sqrt(self.curvature)
        if self.groups is not None:
            pinned = self.groups.pinned(pinned, gap, self.at_nodes, steps)
        return _carried(self.problem, pinned, steps)

    def _steps(self, gap: float) -> Floats:
        """(edges,) how far (Dw*)_e can be from (Dw)_e."""
        coupling, width = self.problem.coupling, self.problem.losses.width
        with np.errstate(divide="ignore", invalid="ignore"):
            if coupling.is_norm:
                return np.asarray(coupling.radius(gap / (self.room * self.problem.weights), width) + self.change)
            if coupling.is_quadratic:
                parts = (coupling.radius(each / self.problem.weights, width) for each in (gap, self.at_edges))
                return np.asarray(sum(parts))
        return np.full(len(self.change), np.inf)


@dataclass(frozen=True)
class _Groups:
    """Nodes that edges with room in their balls hold together: their losses pin them in common.

    With x_i = w*_i − w_i and H_i the Hessians, ‖H^½ x_root‖ ≤ ‖H^½ x‖ + (Σ tr H_i ‖x_i − x_root‖²)^½ over a group.
    """

    problem: Instance
    group: Ints  # (nodes,)
    roots: Ints  # (groups,) nodes
    curvature: Floats  # (groups,) the smallest eigenvalue of Σ H_i
    inner: Bools  # (edges,) whether an edge holds its ends together

    @classmethod
    def of(cls, problem: Instance, room: Floats) -> _Groups:
        """The groups of edges that have some room."""
        inner = (room >= LEAST_ROOM) & (problem.weights > 0)
        count = problem.site.node_count
        ends = (problem.site.head[inner], problem.site.tail[inner])
        joined = csr_array((np.ones(len(ends[0])), ends), shape=(count, count))
        number, group = connected_components(joined, directed=False)
        curvature = problem.losses.pool(group.astype(np.int64), number).least_curvature
        return cls(problem, group, np.unique(group, return_index=True)[1], curvature, inner)

    def pinned(self, pinned: Floats, gap: float, at_nodes: Floats, steps: Floats) -> Floats:
        """How far nodes are pinned, the roots of groups by their whole group."""
        held = replace(self.problem, weights=np.where(self.inner, self.problem.weights, 0.0))
        lengths = held.along_edges(np.maximum(steps, np.finfo(float).tiny))
        spread = dijkstra(lengths, directed=False, indices=self.roots, min_only=True)
        count = len(self.roots)
        trace = self.problem.losses.trace
        strain = np.multiply(trace, spread**2, out=np.zeros_like(trace), where=trace > 0)
        slack = np.bincount(self.group, strain, count)
        missed = np.sqrt(2 * np.bincount(self.group, at_nodes, count))
        with np.errstate(divide="ignore", invalid="ignore"):
            root = (np.sqrt(2 * gap) + missed + np.sqrt(slack)) / np.sqrt(self.curvature)
        out = pinned.copy()
        out[self.roots] = np.fmin(out[self.roots], root)
        return out


def _room(problem: Instance, u: Floats) -> Floats:
    """(edges,) 1 − θ_e, less what rounding may have added."""
    filled = np.divide(problem.coupling.dual_norm(u), problem.weights, out=np.ones(len(u)), where=problem.weights > 0)
    return np.maximum(1.0 - filled - ROUNDING, 0.0)


def _carried(problem: Instance, pinned: Floats, steps: Floats) -> Floats:
    """The shortest way to every node: from where it is pinned, along edges."""
    count = len(pinned)
    fixed, couples = np.flatnonzero(np.isfinite(pinned)), np.isfinite(steps) & (problem.weights > 0)
    if not len(fixed):
        return np.full(count, np.inf)
    tiny = np.finfo(float).tiny
    rows = np.concatenate([np.full(len(fixed), count), problem.site.head[couples], problem.site.tail[couples]])
    columns = np.concatenate([fixed, problem.site.tail[couples], problem.site.head[couples]])
    lengths = np.maximum(np.concatenate([pinned[fixed], steps[couples], steps[couples]]), tiny)
    ways = csr_array((lengths, (rows, columns)), shape=(count + 1, count + 1))
    return np.asarray(dijkstra(ways, indices=count)[:count], dtype=np.float64)
