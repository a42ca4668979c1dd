"""Dual variables of GTV minimisation for a certificate, and how they are moved to where they prove something.

    r = Xᵀβ + γ + Dᵀu                                                        zero where they are feasible

β belongs to the samples, γ to the ridge term, u to the edges. They are moved along the x of

    (XᵀCX + ridge + DᵀΩD) x = −r                                             C, Ω: how β and u answer to changes

and then scaled, or clipped, into the domains of the conjugates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from kinfolk import kernels
from kinfolk.algorithms.gtvmin.instance import Instance
from kinfolk.algorithms.gtvmin.systems import system_of
from kinfolk.typing import Bools, Floats, Ints

SOLVE_PRECISION = 1e-6  # of one linear solve, relative; what is left is solved for again, and charged at last
SOLVE_ITERATIONS = 1_000
DIRECT_PRECISION = 1e-12
SOLVE_REPEATS = 10  # with a factorisation
SHIFT = 1e-13
LARGEST_BLOCK = 16  # parameters of a node up to which systems are factorised
DIRECT_COST = 400.0  # rounds
BISECTIONS = 60
ROUGH = 0.01  # a precision for which 32 bits are enough
EXTREME = 1e9  # with three factors of this size, or one over it, 32 bits have room to spare
LARGEST = 1e30  # in 32 bits, and one over it the least
LEAST_LENGTH = 1e-3  # of a difference, in lengths of a node's parameters
ACROSS = 1e-3  # how much less a flow moves across the border of its domain than along it


@dataclass(frozen=True)
class Duals:
    """Dual variables: β for samples, γ for the ridge term, u for edges."""

    beta: Floats  # (rows, ...) as the labels
    gamma: Floats  # (nodes, parameters)
    u: Floats  # (edges, parameters)
    w: Floats  # (nodes, parameters) the answer they belong to

    def violation(self, problem: Instance) -> Floats:
        """r = Xᵀβ + γ + Dᵀu."""
        out = problem.losses.combine(self.beta)
        if problem.losses.penalised:
            out += self.gamma
        problem.site.add_divergence(out, self.u)
        return out

    def missing(self, problem: Instance) -> Floats:
        """−r."""
        out = self.violation(problem)
        return np.negative(out, out=out)

    def value(self, problem: Instance, share: Floats) -> float:
        """The dual objective at ``share`` (nodes,) times these variables."""
        losses, site = problem.losses, problem.site
        ridge, flows = 0.0, 0.0
        if losses.penalised:
            charged = losses.ridge > 0
            ridge = float(((share[:, None] * self.gamma)[charged] ** 2 / (2 * losses.ridge[charged])).sum())
        for block in site.edge_blocks:
            scaled = share[site.head[block], None] * self.u[block]
            flows += float(problem.coupling.weighted_conjugate(scaled, problem.weights[block]).sum())
        return -float(losses.conjugate(losses.times(self.beta, share)).sum() + ridge + flows)

    def gaps(self, problem: Instance) -> tuple[Floats, Floats]:
        """By how much every node and every edge misses its conjugate at w: (nodes,) and (edges,)."""
        losses, w = problem.losses, self.w
        ridge = np.divide(self.gamma**2, 2 * losses.ridge, out=np.zeros_like(w), where=losses.ridge > 0).sum(axis=1)
        held = ((losses.combine(self.beta) + self.gamma) * w).sum(axis=1)
        change = (self.u * problem.difference(w)).sum(axis=1)
        at_nodes = losses.value(w) + losses.conjugate(self.beta) + ridge - held
        return at_nodes, problem.variation(w) + problem.flow_cost(self.u) - change

    def clipped(self, problem: Instance) -> Duals:
        """Every dual variable by itself moved into the domain of its conjugate."""
        return replace(self, u=self.u.copy()).clip(problem)

    def clip(self, problem: Instance) -> Duals:
        """The same, with the flows in place."""
        if problem.coupling.is_norm:
            for block in problem.site.edge_blocks:
                weights = problem.weights[block]
                self.u[block] = problem.coupling.dual_prox(self.u[block], np.ones_like(weights), weights)
        return replace(self, beta=problem.losses.into_domain(self.beta))

    def balanced(self, problem: Instance, stiffness: Floats) -> Duals:
        """Moved to r ≈ 0, if that lowers r; ``stiffness`` (edges,) is that of w, see ``stiffness_at``."""
        moved = replace(self, u=self.u.copy()).balance(problem, stiffness)
        before, after = (np.linalg.norm(duals.violation(problem)) for duals in (self, moved))
        return moved if after < before else self

    def balance(
        self, problem: Instance, stiffness: Floats, precision: float = SOLVE_PRECISION, scratch: Floats | None = None
    ) -> Duals:
        """Move towards r = 0, flows in place: solve (XᵀCX + ridge + DᵀΩD) x = −r and follow x.

        ``precision`` is that of a solve by iterations, which may overwrite ``scratch`` (nodes, parameters).
        """
        losses = problem.losses
        curvature = losses.elasticity(self.w, self.beta)
        elasticity = _Elasticity(problem, stiffness, self.u)
        direct = _direct_solver(problem, curvature, elasticity)
        solve = _iterative_solver(problem, curvature, elasticity, precision, scratch) if direct is None else direct
        x = solve(self.missing(problem))
        elasticity.follow(self.u, x)
        return self.along(problem, curvature, x)

    def along(self, problem: Instance, curvature: Floats, x: Floats) -> Duals:
        """β + C X x and γ + ridge x, with the same flows."""
        losses = problem.losses
        gamma = self.gamma + losses.pull(x) if losses.penalised else self.gamma
        return replace(self, beta=self.beta + curvature * losses.predict(x), gamma=gamma)

    def shares(self, problem: Instance, count: int, component: Ints) -> Floats:
        """(nodes,) by how much every component is to be scaled to be in the domain of the conjugates."""
        losses, site = problem.losses, problem.site
        share = np.ones(count)

        def nodes(t: Floats) -> Bools:
            return np.isfinite(losses.conjugate(losses.times(self.beta, t)))

        np.minimum.at(share, component, _largest_share(nodes, losses.node_count))
        for block in site.edge_blocks:
            np.minimum.at(share, component[site.head[block]], _edge_shares(problem, self.u, block))
        return share[component]

    def scaled(self, problem: Instance, share: Floats) -> Duals:
        """These dual variables times ``share`` (nodes,), the same in all of a component."""
        return Duals(
            problem.losses.times(self.beta, share),
            self.gamma * share[:, None],
            self.u * share[problem.site.head][:, None],
            self.w,
        )


Linear = Callable[[Floats], Floats]  # may use up what it is given
EdgePass = tuple[Ints, Ints, Floats, Floats, Floats, float]


class _Elasticity:
    """Ω: how the flows on edges respond to a change of differences.

    A quadratic coupling provides it (``slope``). For others, the stiffness along the border of its domain where a flow
    sits there: hardly across it.
    """

    def __init__(self, problem: Instance, stiffness: Floats, u: Floats) -> None:
        self.problem, self.omega = problem, stiffness
        self.quadratic = problem.coupling.is_quadratic
        border = problem.coupling.border(u, problem.weights)
        if border.grip is not None and stiffness.dtype == np.float32:
            border = border._replace(grip=in_few_bits(border.grip))
        self.border = border

    def flow(self, v: Floats) -> Floats:
        """Ω v."""
        if self.quadratic:
            return np.asarray(self.omega[:, None] * self.problem.coupling.slope(v))
        along = self.border.along(v)
        return np.asarray(self.omega[:, None] * (along + ACROSS * (v - along)))

    @cached_property
    def _edge_pass(self) -> EdgePass | None:
        """What a pass over the edges needs; None where Ω is of another kind."""
        site, normal, grip = self.problem.site, self.border.normal, self.border.grip
        if self.quadratic or self.border.free is not None or normal is None or grip is None:
            return None
        return site.head, site.tail, self.omega, normal, grip, 1.0 - ACROSS

    def add_at_nodes(self, out: Floats, x: Floats) -> None:
        """Add DᵀΩD x to ``out``."""
        if self._edge_pass is None:
            out += self.problem.site.divergence(self.flow(self.problem.difference(x)))
        else:
            kernels.add_elastic_flows(out, x, *self._edge_pass)

    def follow(self, u: Floats, x: Floats) -> None:
        """Add ΩD x to the flows u."""
        if self._edge_pass is None:
            u += self.flow(self.problem.difference(x))
        else:
            kernels.add_elastic_response(u, x, *self._edge_pass)

    def diagonal(self, width: int) -> Floats:
        """About the diagonal of DᵀΩD, (nodes, parameters), or (nodes, 1) where all parameters have the same."""
        form = np.diag(self.problem.coupling.slope(np.eye(width))) if self.quadratic else np.ones(1)
        site = self.problem.site
        return kernels.edge_sum(self.omega, site.head, site.tail, site.node_count)[:, None] * form


def stiffness_at(problem: Instance, w: Floats, least: float = LEAST_LENGTH) -> Floats:
    """(edges,) the slope of λA φ along the differences of w, over their length, as in reweighted least squares.

    λA itself where the coupling is quadratic. Shorter differences than ``least`` count as if they were as long.
    """
    if problem.coupling.is_quadratic:
        return problem.weights
    floor = least * (np.sqrt((w**2).sum() / max(len(w), 1)) or 1.0)
    unit = np.full(w.shape[1], 1.0 / np.sqrt(w.shape[1]))
    out, values = np.empty_like(problem.weights), np.ascontiguousarray(w)
    for block in problem.site.edge_blocks:
        change = problem.site.difference_on(block, values)
        length = np.linalg.norm(change, axis=1)
        direction = np.where(length[:, None] > floor, change, floor * unit)
        rise = problem.coupling.value(1.5 * direction) - problem.coupling.value(0.5 * direction)
        out[block] = problem.weights[block] * rise / np.maximum(length, floor) ** 2
    return out


def in_few_bits(values: Floats) -> Floats:
    """Numbers ≥ 0 in 32 bits, where these hold them; for numbers of which few digits count."""
    low, high = values.min(where=values > 0, initial=1.0), values.max(initial=1.0)
    few: Any = np.float32 if low >= 1 / LARGEST and high <= LARGEST else np.float64
    out: Floats = values.astype(few, copy=False)
    return out


def solves_directly(problem: Instance) -> bool:
    """Whether systems are factorised to move dual variables: that costs some dozens of rounds only."""
    width = problem.losses.width
    return width <= LARGEST_BLOCK and system_of(problem.site, width).costs_at_most(DIRECT_COST * problem.round_cost)


def _direct_solver(problem: Instance, curvature: Floats, elasticity: _Elasticity) -> Linear | None:
    """The inverse of XᵀCX + ridge + DᵀΩD by a factorisation; None where that costs too much."""
    losses, width = problem.losses, problem.losses.width
    if not solves_directly(problem):
        return None
    system = system_of(problem.site, width)
    ones = np.ones(len(problem.weights))
    at_edges = np.stack([elasticity.flow(np.outer(ones, unit)) for unit in np.eye(width)], axis=2)
    at_nodes = losses.gram(curvature) + losses.ridge[:, :, None] * np.eye(width)
    solver = system.factorised(at_nodes, (at_edges + at_edges.transpose(0, 2, 1)) / 2, SHIFT)
    return lambda rhs: solver.solve(rhs, DIRECT_PRECISION, SOLVE_REPEATS)


def _iterative_solver(
    problem: Instance, curvature: Floats, elasticity: _Elasticity, precision: float, scratch: Floats | None = None
) -> Linear:
    """The same by conjugate gradients."""
    losses = problem.losses

    def apply(x: Floats, out: Floats) -> None:
        out[:] = losses.pull(x)
        losses.add_curved(out, curvature, x)
        elasticity.add_at_nodes(out, x)

    def solve(rhs: Floats) -> Floats:
        at_edges = elasticity.diagonal(losses.width)

        def diagonal_on(nodes: slice) -> Floats:
            part = losses.on(nodes)
            return part.gram_diagonal(curvature[losses.rows_on(nodes)]) + part.ridge + at_edges[nodes]

        fits = precision >= ROUGH and _fits_32_bits(rhs, map(diagonal_on, losses.blocks))
        rhs = rhs.astype(np.float32 if fits else np.float64, copy=False)
        diagonal = np.empty_like(rhs)
        for nodes in losses.blocks:
            diagonal[nodes] = diagonal_on(nodes)
        return conjugate_gradients(apply, rhs, diagonal, precision, scratch)

    return solve


def _fits_32_bits(rhs: Floats, diagonal: Iterable[Floats]) -> bool:
    """Whether all that conjugate gradients compute is far from what 32 bits cannot hold; the diagonal is in parts."""
    largest = max(float(rhs.max(initial=0.0)), -float(rhs.min(initial=0.0)))
    return 1 / EXTREME <= largest <= EXTREME and all(
        part.min(where=part > 0, initial=1.0) >= 1 / EXTREME and part.max(initial=1.0) <= EXTREME for part in diagonal
    )


def conjugate_gradients(
    apply: Callable[[Floats, Floats], None],
    rhs: Floats,
    diagonal: Floats,
    precision: float = SOLVE_PRECISION,
    scratch: Floats | None = None,
) -> Floats:
    """Solve A x = rhs for a positive semi-definite A, with diagonal preconditioning; ``rhs`` and it are used up.

    ``apply`` writes A times its first argument into the second. All is done in five arrays of the size and type of rhs,
    one or two of which lie in ``scratch``, if that is given: x may be one of them.
    """
    inverse = np.divide(1.0, diagonal, out=diagonal, where=diagonal > 0)
    inverse[inverse <= 0] = 1.0
    x, image = _workspace(rhs, scratch)
    r, p = rhs, inverse * rhs
    rz = float(np.vdot(r, p))
    target = precision**2 * rz
    for _ in range(SOLVE_ITERATIONS):
        if rz <= target or rz == 0.0:
            break
        apply(p, image)
        bend = float(np.vdot(p, image))
        if bend <= 0.0:
            break
        rz, before = kernels.conjugate_step(x, r, p, image, rz / bend, inverse), rz
        kernels.conjugate_direction(p, r, inverse, rz / before)
    return x


def _workspace(like: Floats, scratch: Floats | None) -> tuple[Floats, Floats]:
    """Zeros and an array to be filled; in 32 bits both fit into ``scratch``, in 64 one of them."""
    if scratch is None:
        return np.zeros_like(like), np.empty_like(like)
    if like.dtype == scratch.dtype:
        return np.zeros_like(like), scratch
    zeros, other = scratch.reshape(-1).view(like.dtype).reshape(2, *like.shape)
    zeros[:] = 0.0
    return zeros, other


def _edge_shares(problem: Instance, u: Floats, block: slice) -> Floats:
    """For every edge of a block the largest t ≤ 1 at which t u_e is in the domain of its conjugate."""
    coupling, flows, radius = problem.coupling, u[block], problem.weights[block]
    if not coupling.is_norm:
        costs = coupling.weighted_conjugate
        return _largest_share(lambda t: np.isfinite(costs(t[:, None] * flows, radius)), len(flows))
    length = coupling.dual_norm(flows)
    return np.divide(radius, length, out=np.ones_like(radius), where=length > radius)


def _largest_share(inside: Callable[[Floats], Bools], count: int) -> Floats:
    """For every row the largest t ≤ 1 at which it is inside, by bisection."""
    low, high = np.zeros(count), np.ones(count)
    if inside(high).all():
        return high
    low[inside(high)] = 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        fits = inside(middle)
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    return low
