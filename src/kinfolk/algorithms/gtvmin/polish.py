"""Fuse and polish: from a rough answer of GTV minimisation to an exact one, by Newton's method on a smaller network.

Where the coupling φ is a norm, a flow strictly inside its ball means that the ends of its edge have equal models. So

1. fuse     the ends of such edges become one node: losses add up, and so do the weights of parallel edges;
2. solve    the network of groups, a problem of the same kind, by the augmented Lagrangian method

                w <- argmin Σ_g L_g(w_g) + Σ_e max_v ⟨v, (Dw)_e⟩ − (λA_e φ)*(v) − ‖v − u_e‖² / (2σ_e)         (1)
                u <- the v of that maximum: the prox of σ_e (λA_e φ)* at u_e + σ_e (Dw)_e                       (2)

            (1) is smooth and convex: Newton's method with the generalised derivative of the prox (Sun, Toh, Yuan:
            Convex Clustering, 2021). Groups that should have been fused as well end up equal by themselves;
3. expand   find flows inside the groups that balance ∇L_i + (Dᵀu)_i = 0, by projecting the rough ones in turn on the
            balance and on the balls. Edges that stay outside were fused in error: again without them.

Nothing promises success: what comes out is a proposal, to be judged by the optimality conditions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy.sparse
from scipy.sparse.csgraph import connected_components, reverse_cuthill_mckee

from kinfolk import kernels
from kinfolk.algorithms.gtvmin.instance import Instance
from kinfolk.algorithms.gtvmin.systems import Factor, GraphSystem, laplacian
from kinfolk.objective.couplings import Coupling
from kinfolk.objective.local_losses import LinearLosses
from kinfolk.typing import Bools, Floats, Ints

INSIDE = 1e-3  # the part of its radius by which a flow must lie inside its ball
ROUNDING = 1e-12
MOST_GROUPS = 20_000  # whose network is solved
REPAIRS = 3  # times that edges fused in error are let go
HOPELESS = 0.1  # of the edges fused in error: the rough answer is too rough
NEWTON_STEPS = 25  # per repair
MUCH_LESS = 0.1  # of the slope of a convex function: a step that needs no further look
HALVINGS = 30  # of a Newton step
PRECISION = 1e-10  # of the optimality conditions on the network of groups, relative
STIFFENING = 4.0  # of σ from one (2) to the next
PROJECTIONS = 20
IN_BALANCE = 1e-9  # what a flow may lie outside its ball, as a part of the radius
IN_ERROR = 1e-6  # from here on its edge was fused in error
SHIFT = 1e-10  # added to the unit diagonal of systems that may be singular; Newton's method bears it
UNUSUAL = 1e-3
LAPLACIAN_SHIFT = 1e-12


FlowsOn = Callable[[slice], Floats]  # the flows on a block of edges


def promising(problem: Instance, flows: FlowsOn) -> Bools | None:
    """(edges,) which ends seem to be equal, where the loss is smooth and a norm knows the derivative of its dual prox.

    None for others, and where they leave too many groups.
    """
    coupling = problem.coupling
    if not (problem.losses.loss.smooth and coupling.is_norm and coupling.has_derivative):
        return None
    fused = inside_ball(problem, flows)
    count = problem.site.node_count
    at_least = count - int(fused.sum())  # groups, since an edge joins two at most
    if at_least > MOST_GROUPS or (count > MOST_GROUPS and joined(problem, fused).max(initial=0) >= MOST_GROUPS):
        return None
    return fused


def polish(problem: Instance, w: Floats, u: Floats, sigma: Floats, effort: float) -> tuple[Floats, Floats]:
    """Propose a better (w, u) for ``problem``, from one that is near, at the cost of about ``effort`` rounds.

    Components of the graph that would cost more are left as they are.

    >>> from kinfolk import EuclideanNorm, Network, Squared, graphs
    >>> x = np.ones((1, 1))
    >>> site = Network(graphs.chain(3), [(x, [0.0]), (x, [0.2]), (x, [4.0])]).site
    >>> problem = Instance(site, site.local_losses(Squared()), EuclideanNorm(), np.array([0.5, 0.5]))
    >>> rough = np.array([[0.2], [0.2], [3.7]]), np.array([[0.3], [-0.5]])
    >>> w, u = polish(problem, *rough, sigma=np.ones(2), effort=1e3)
    >>> w.round(6).ravel().tolist(), u.round(6).ravel().tolist()
    ([0.225, 0.225, 3.75], [-0.45, -0.5])
    """
    return polish_fused(problem, w, u, sigma, effort, inside_ball(problem, u.__getitem__))


def polish_fused(
    problem: Instance, w: Floats, u: Floats, sigma: Floats, effort: float, fused: Bools
) -> tuple[Floats, Floats]:
    """``polish`` with the first guess which edges have equal ends."""
    with np.errstate(over="ignore", invalid="ignore"):  # a proposal that leads astray is found out by its residual
        return _polish(problem, w, u, sigma, effort, fused)


def _polish(
    problem: Instance, w: Floats, u: Floats, sigma: Floats, effort: float, fused: Bools
) -> tuple[Floats, Floats]:
    for _ in range(REPAIRS + 1):
        groups = Groups.of(problem, fused, effort)
        if not groups.node_count:
            break
        effort -= groups.cost
        at_groups = groups.solve(groups.mean(w), groups.total(u), groups.smallest(sigma))
        w, u = groups.expand(*at_groups, w, u)
        u, outside = inner_flows(problem, w, u, groups.inner)
        if not outside.any() or outside.sum() > HOPELESS * len(groups.inner):
            break
        fused = fused & ~outside
    return w, u


def inside_ball(problem: Instance, flows: FlowsOn) -> Bools:
    """Whether u_e lies strictly inside its ball, whatever the norm: clipping to a smaller one leaves it."""
    out = problem.weights > 0
    for block in problem.site.edge_blocks:
        radius, u = problem.weights[block], flows(block)
        clipped = problem.coupling.dual_prox(u, np.ones_like(radius), (1 - INSIDE) * radius)
        out[block] &= np.abs(clipped - u).max(axis=1) <= ROUNDING * radius
    return out


class Conditions(NamedTuple):
    """How well the optimality conditions hold on a network of groups, at w and the v of (1)."""

    v: Floats  # (edges, parameters)
    slope: Floats  # (groups, parameters) of (1)
    stationarity: float  # relative
    complementarity: float  # relative


@dataclass(frozen=True, eq=False)
class Groups:
    """The network whose nodes are groups of fused nodes."""

    problem: Instance
    group: Ints  # (nodes of the problem,) −1 where a component is left as it is
    pair: Ints  # (edges between groups,) which edge of this network they belong to
    sign: Floats  # (edges between groups,) +1 where both point the same way
    between: Ints  # (edges between groups,) numbers in the problem
    inner: Ints  # (edges inside groups,) numbers in the problem
    head: Ints  # (edges,)
    tail: Ints  # (edges,)
    weights: Floats  # (edges,) λA, parallel edges added up
    losses: LinearLosses = field(repr=False)  # Σ L_i over a group
    cost: float  # of ``solve``, in rounds

    @classmethod
    def of(cls, problem: Instance, fused: Bools, effort: float) -> Groups:
        """Fuse the ends of some edges, in the components that can be solved with ``effort``."""
        group, cost = _affordable(problem, joined(problem, fused), effort)
        nodes = np.flatnonzero(group >= 0)
        head, tail = group[problem.site.head], group[problem.site.tail]
        solved = (head >= 0) & (problem.weights > 0)
        between = np.flatnonzero(solved & (head != tail))
        count = int(group.max(initial=-1)) + 1
        pairs, pair, sign = _pairs(head[between], tail[between], count)
        weights = np.bincount(pair, problem.weights[between], minlength=len(pairs)).astype(np.float64)
        losses = problem.losses.take(nodes).pool(group[nodes], count)
        inner = np.flatnonzero(solved & (head == tail))
        return cls(problem, group, pair, sign, between, inner, pairs // count, pairs % count, weights, losses, cost)

    @property
    def node_count(self) -> int:
        """Number of groups."""
        return self.losses.node_count

    # ------------------------------------------------------------------ there and back

    def mean(self, w: Floats) -> Floats:
        """The mean parameters of every group."""
        nodes = np.flatnonzero(self.group >= 0)
        return _summed(w[nodes], self.group[nodes], self.node_count) / np.bincount(self.group[nodes])[:, None]

    def total(self, u: Floats) -> Floats:
        """The flows between groups."""
        return _summed(self.sign[:, None] * u[self.between], self.pair, len(self.weights))

    def smallest(self, sigma: Floats) -> Floats:
        """The smallest step among parallel edges."""
        out = np.full(len(self.weights), np.inf)
        np.minimum.at(out, self.pair, sigma[self.between])
        return out

    def expand(self, w_groups: Floats, u_groups: Floats, w: Floats, u: Floats) -> tuple[Floats, Floats]:
        """Hand every node its group's parameters, and every edge between groups its share of the flow."""
        w, u, nodes = w.copy(), u.copy(), self.group >= 0
        w[nodes] = w_groups[self.group[nodes]]
        share = self.sign * self.problem.weights[self.between] / self.weights[self.pair]
        u[self.between] = share[:, None] * u_groups[self.pair]
        return w, u

    # ------------------------------------------------------------------ the solver

    def solve(self, w: Floats, u: Floats, sigma: Floats) -> tuple[Floats, Floats]:
        """(1) and (2) from a start that is near."""
        here = self._conditions(w, u, sigma)
        for _ in range(NEWTON_STEPS):
            if here.stationarity > max(0.1 * here.complementarity, PRECISION):
                after, there = self._newton_step(w, u, sigma, here)
                if not np.isfinite(after).all():
                    break
                w, here = after, there  # (1)
            elif here.complementarity > PRECISION:
                u, sigma = here.v, STIFFENING * sigma  # (2)
                here = self._conditions(w, u, sigma)
            else:
                break
        return w, here.v

    def _conditions(self, w: Floats, u: Floats, sigma: Floats) -> Conditions:
        """The conditions at w."""
        v = self._flow(w, u, sigma)
        slope = self.losses.gradient(w)
        scale = np.linalg.norm(slope) + np.sqrt(self.losses.resting.sum())
        kernels.add_flows(slope, v, self.head, self.tail)
        size = np.sqrt((self.degrees * (w**2).sum(axis=1)).sum())
        tiny = np.finfo(float).tiny
        missed = np.linalg.norm((v - u) / sigma[:, None])
        return Conditions(v, slope, float(np.linalg.norm(slope) / (scale + tiny)), float(missed / (size + tiny)))

    def _flow(self, w: Floats, u: Floats, sigma: Floats) -> Floats:
        change = w[self.head] - w[self.tail]
        return self.coupling.dual_prox(u + sigma[:, None] * change, sigma, self.weights)

    def _height(self, w: Floats, u: Floats, sigma: Floats) -> float:
        """The objective of (1); the conjugate of a norm is zero wherever its prox ends."""
        v = self._flow(w, u, sigma)
        pull = ((v - u) ** 2).sum(axis=1) / (2 * sigma)
        return float(self.losses.value(w).sum() + (v * (w[self.head] - w[self.tail])).sum() - pull.sum())

    def _newton_step(self, w: Floats, u: Floats, sigma: Floats, here: Conditions) -> tuple[Floats, Conditions]:
        """Where a Newton step for (1) leads: a whole one if that shows in the slope, else halved until it descends."""
        at = u + sigma[:, None] * (w[self.head] - w[self.tail])
        bend = sigma[:, None, None] * self.coupling.dual_prox_derivative(at, sigma, self.weights)
        # A group without data between far ones has next to no curvature: no less than a part of what is usual.
        solver = self.system.factorised(self.losses.hessian(w), bend, SHIFT, UNUSUAL)
        step = solver.rough(-here.slope)
        there = self._conditions(w + step, u, sigma)
        if there.stationarity <= MUCH_LESS * here.stationarity:
            return w + step, there
        before, descent = self._height(w, u, sigma), float((here.slope * step).sum())
        for _ in range(HALVINGS):
            if self._height(w + step, u, sigma) <= before + 1e-4 * descent + 1e-14 * abs(before):
                break
            step, descent = step / 2, descent / 2
        return w + step, self._conditions(w + step, u, sigma)

    @property
    def coupling(self) -> Coupling:
        """φ."""
        return self.problem.coupling

    @cached_property
    def system(self) -> GraphSystem:
        """The linear systems over these groups."""
        return GraphSystem(self.node_count, self.losses.width, self.head, self.tail)

    @cached_property
    def degrees(self) -> Ints:
        """(groups,) numbers of edges."""
        return np.bincount(np.r_[self.head, self.tail], minlength=self.node_count)


def inner_flows(problem: Instance, w: Floats, u: Floats, inner: Ints) -> tuple[Floats, Bools]:
    """Flows inside the groups that balance ∇L_i + (Dᵀu)_i = 0, near u, and the edges where no ball can hold them.

    Distances are measured in parts of the radius of each ball, so wide edges carry more of what is missing.
    """
    outside = np.zeros(len(u), dtype=bool)
    if not len(inner):
        return u, outside
    site, radius = problem.site, problem.weights[inner]
    nodes, ends = np.unique(np.r_[site.head[inner], site.tail[inner]], return_inverse=True)
    head, tail = ends[: len(inner)], ends[len(inner) :]
    factor = Factor(laplacian(len(nodes), head, tail, radius**2), LAPLACIAN_SHIFT)
    missing = -(problem.losses.gradient(w) + site.divergence(u))[nodes]
    kernels.add_flows(missing, u[inner], head, tail)
    flow, wrong = u[inner], 1.0
    for _ in range(PROJECTIONS):
        flow = problem.coupling.dual_prox(flow, np.ones_like(radius), radius)
        for _ in range(2):  # the second one takes back what the shift has cost
            left = missing.copy()
            kernels.add_flows(left, -flow, head, tail)
            flow = flow + (radius**2)[:, None] * kernels.difference(factor.solve(left), head, tail)
        clipped = problem.coupling.dual_prox(flow, np.ones_like(radius), radius)
        excess = np.abs(clipped - flow).max(axis=1) / radius
        before, wrong = wrong, float((excess > IN_ERROR).mean())
        if excess.max() <= IN_BALANCE or HOPELESS < before <= wrong:  # too many, and no fewer than before
            break
    u = u.copy()
    u[inner] = flow
    outside[inner] = excess > IN_ERROR
    return u, outside


# ---------------------------------------------------------------------- groups, and what they would cost


def joined(problem: Instance, fused: Bools) -> Ints:
    """The group of every node."""
    ends = (problem.site.head[fused], problem.site.tail[fused])
    count = problem.site.node_count
    joined = scipy.sparse.csr_array((np.ones(len(ends[0])), ends), shape=(count, count))
    return np.asarray(connected_components(joined, directed=False)[1].astype(np.int64))


def _affordable(problem: Instance, group: Ints, effort: float) -> tuple[Ints, float]:
    """The groups, numbered anew, in components whose solution costs at most ``effort`` rounds (−1 elsewhere); the cost.

    A component of one node is left as it is: it has no flows.
    """
    count, component = problem.components
    steps = np.bincount(component[_first(group)], _newton_cost(problem, group, effort), minlength=count)
    cost = NEWTON_STEPS * steps / problem.round_cost
    chosen = (np.bincount(component, minlength=count) > 1) & (cost <= effort)
    left = chosen[component]
    out = np.full(len(group), -1, dtype=np.int64)
    out[left] = np.unique(group[left], return_inverse=True)[1]
    return out, float(cost[chosen].sum())


def _newton_cost(problem: Instance, group: Ints, effort: float) -> Floats:
    """The share of every group in the cost of a Newton step: its row of the factor, were it banded, and the matrix.

    Where even full matrices are affordable, no one looks how wide the band is.
    """
    count, width = int(group.max()) + 1, problem.losses.width
    full = (count * width) ** 3 / 5 + 100.0 * (count * width) ** 2
    if NEWTON_STEPS * full <= effort * problem.round_cost / (REPAIRS + 1):
        return np.full(count, full / count)
    head, tail, groups = group[problem.site.head], group[problem.site.tail], np.arange(count)
    ends = np.concatenate([head, tail, groups]), np.concatenate([tail, head, groups])
    pattern = scipy.sparse.csr_array((np.ones(len(ends[0])), ends), shape=(count, count))
    order = reverse_cuthill_mckee(pattern, symmetric_mode=True)
    place = np.empty(count, dtype=np.int64)
    place[order] = np.arange(count)
    rows = np.repeat(np.arange(count), np.diff(pattern.indptr))
    bandwidth = np.zeros(count)
    np.maximum.at(bandwidth, rows, place[rows] - place[pattern.indices])
    return np.asarray(((1 + bandwidth) * width) ** 2 * width / 5 + 100.0 * np.diff(pattern.indptr) * width**2)


def _first(group: Ints) -> Ints:
    """The first node of every group."""
    return np.unique(group, return_index=True)[1]


def _pairs(head: Ints, tail: Ints, count: int) -> tuple[Ints, Ints, Floats]:
    """Pairs of groups as one number each, the pair of every edge, and whether the edge points the same way."""
    pairs, pair = np.unique(np.minimum(head, tail) * count + np.maximum(head, tail), return_inverse=True)
    return pairs, pair.astype(np.int64), np.where(head < tail, 1.0, -1.0)


def _summed(rows: Floats, where: Ints, count: int) -> Floats:
    """Rows added up by where they belong."""
    return kernels.group_sums(np.ascontiguousarray(rows), where, count)
