"""Certificates for GTV minimisation: how far an answer can be from the best one, with a proof.

With dual variables β_r for the samples, γ_i for the ridge term and flows u_e for the edges,

    P(w)      = Σ_i L_i(w_i) + Σ_e λA_e φ((Dw)_e)
    D(β,γ,u)  = −Σ_r c ℓ*(β_r / c) − Σ γ² / (2 ridge) − Σ_e λA_e φ*(u_e / (λA_e))
    P(w) − min P  ≤  [P(w) − D(β,γ,u) − ⟨r, w⟩] + ‖r‖ R,       r = Xᵀβ + γ + Dᵀu                              (*)

for every minimiser within R of w. The plain duality gap is (*) with r = 0, which no iterate fulfils exactly where
a node has fewer samples than features, or none. So the dual variables that belong to an iterate are first moved to
r ≈ 0 along a Newton direction, then scaled back into the domain of the conjugates (r ≈ 0 survives a scaling); what
is left of r is of the size of rounding errors, and R (``distance``) keeps it honest. Components of the graph are scaled
separately: nothing flows between them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from kinfolk import kernels
from kinfolk.algorithms.gtvmin import distance
from kinfolk.algorithms.gtvmin.instance import Instance
from kinfolk.algorithms.gtvmin.optimality import local_duals, residual_at, scale_of
from kinfolk.algorithms.gtvmin.systems import system_of
from kinfolk.algorithms.gtvmin.updates import Updates
from kinfolk.checks import InputError, as_floats
from kinfolk.network.network import Network
from kinfolk.typing import Bools, Floats, Ints

if TYPE_CHECKING:
    from kinfolk.algorithms.gtvmin.algorithm import State

SOLVE_PRECISION = 1e-6  # of one linear solve, relative; what is left is solved for again, and charged at last
SOLVE_ITERATIONS = 1_000
DIRECT_PRECISION = 1e-12
SOLVE_REPEATS = 10  # with a factorisation
SHIFT = 1e-13
LARGEST_BLOCK = 16  # parameters of a node up to which systems are factorised
DIRECT_COST = 400.0  # rounds
REFINEMENTS = 8
LARGE, LARGE_REFINEMENTS = 10_000, 3  # nodes; each refinement costs as much as hundreds of rounds
BISECTIONS = 60
NEAR = 1e-3  # of the scale: a gap from which distances follow that are worth looking at
NEGLIGIBLE = 1e-8  # of the scale: what is left of r needs no sharper distance
LOCALISATIONS = 6
ACROSS = 1e-3  # how much less a flow moves across the border of its domain than along it
SHARP_ENOUGH = 1e-7  # of the scale: no further solve
SHARP = 1e-6  # of the scale: a bound that needs no further word


@dataclass(frozen=True)
class Certificate:
    """What is known about an answer: at most ``bound`` above the smallest objective."""

    objective: float
    bound: float
    residual: float
    radius: float
    radius_is_assumed: bool
    scale: float  # the objective, or a ten-thousandth of that at zero where it is smaller still

    @property
    def relative(self) -> float:
        """The bound as a part of the scale."""
        return self.bound / self.scale if self.scale > 0 else self.bound

    def __str__(self) -> str:
        text = "" if self.relative <= SHARP else f"{self._unproven} "
        text += (
            f"The objective is {self.objective:.6g}. No other choice of parameters lowers it by more than "
            f"{self.bound:.2g} ({100 * self.relative:.2g} %). The optimality conditions hold up to a relative "
            f"residual of {self.residual:.1e}."
        )
        if self.radius_is_assumed:
            text += (
                f" This assumes that a best choice lies within {self.radius:.2g} of this one: "
                "the losses alone do not bound where it is."
            )
        return text

    @property
    def _unproven(self) -> str:
        """That and why the bound is no better."""
        why = "more rounds bring it nearer" if self.residual > SHARP else "the proof is weaker than the answer may be"
        return f"Not proven to one part in a million: {why}."


def certificate_at(updates: Updates, state: State) -> Certificate | None:
    """How good the parameters 2 w_new − w of a state are; None where losses have no dual variables to prove it with."""
    losses = updates.losses.with_duals
    if losses is None:
        return None
    ahead, _ = updates.dual_prox(state.u, state.w_bar)
    _, beta = local_duals(updates, losses, state)
    problem = Instance(updates.site, losses, updates.coupling, updates.weights)
    return certify(problem, state.w_bar, beta, (ahead, state.u), residual_at(updates, state))


def parameters_and_flows(network: Network, w: Any, u: Any) -> tuple[Floats, Floats]:
    """Any parameters (nodes, parameters) and flows (edges, parameters) as arrays, or a sentence.

    A certificate takes the flows one step (1) into their domain, so zeros are legal.

    >>> from kinfolk import GTVMin, Network, graphs
    >>> network = Network(graphs.chain(2), [([[1.0]], [0.0]), ([[1.0]], [1.0])])
    >>> GTVMin(lam=0.5).certificate_of(network, w=[[0.25], [0.75]], u=[[-0.5]]).bound < 1e-12
    True
    """
    w, u = as_floats(w, "the parameters", 2), as_floats(u, "the flows", 2)
    expected = (network.graph.node_count, w.shape[1]), (network.graph.edge_count, w.shape[1])
    if (w.shape, u.shape) != expected:
        raise InputError(f"Expected parameters and flows of shapes {expected}, got {w.shape} and {u.shape}.")
    return w, u


def certify(problem: Instance, w: Floats, beta: Floats, flows: Sequence[Floats], residual: float) -> Certificate:
    """Bound the sub-optimality of ``w`` with the help of ``beta`` and flows that nearly belong to it; the best ones.

    The dual variables are moved to r ≈ 0, and scaled into their domain for a bound; if that is not sharp, they are
    clipped into it instead, and moved again.
    """
    judge = _Judge.of(problem, w, residual)
    starts = [_Duals(beta, problem.losses.ridge * w, problem.coupling.into_span(u), w) for u in flows]
    starts = [duals.clipped(problem) for duals in starts]
    best, duals = min(((judge.certificate(duals), duals) for duals in starts), key=lambda each: each[0].bound)
    waited = 0
    for _ in range(REFINEMENTS if len(w) <= LARGE else LARGE_REFINEMENTS):
        if best.relative <= SHARP_ENOUGH or waited > 1:
            break
        moved = duals.balanced(problem)
        found = judge.certificate(moved)
        waited = 0 if found.bound < 0.5 * best.bound else waited + 1
        best = min(best, found, key=lambda each: each.bound)
        duals = moved.clipped(problem)
    return best


@dataclass(frozen=True)
class _Judge:
    """Turns dual variables into a bound on the sub-optimality of w."""

    problem: Instance
    w: Floats
    residual: float
    objective: float
    scale: float
    apart: Floats  # (nodes,) how far a minimiser can be
    assumed: bool  # whether that is but assumed
    components: tuple[int, Ints]

    @classmethod
    def of(cls, problem: Instance, w: Floats, residual: float) -> _Judge:
        """What all bounds for w share."""
        objective = problem.objective(w)
        apart = distance.from_level_set(problem, w, objective)
        assumed = not np.isfinite(apart).all()
        if assumed:
            apart = np.full(len(w), 10.0 * (1.0 + float(np.linalg.norm(w))))
        scale = scale_of(objective, float(problem.losses.value_at_start.sum()))
        return cls(problem, w, residual, objective, scale, apart, assumed, problem.components)

    def certificate(self, duals: _Duals) -> Certificate:
        """(*) with these dual variables, scaled into their domain."""
        problem = self.problem
        duals = duals.shrunk(problem, *self.components)
        leftover = duals.violation(problem)
        centred = max(self.objective - duals.value(problem) - float((leftover * self.w).sum()), 0.0)
        lengths = np.linalg.norm(leftover, axis=1)
        bound, apart, assumed = centred + float(lengths @ self.apart), self.apart, self.assumed
        if bound - centred > NEGLIGIBLE * self.scale and centred <= NEAR * self.scale:
            gaps = distance.FromGap(problem, self.w, duals.u, *duals.gaps(problem))
            bound, apart, assumed = _localised(gaps, centred, lengths, apart, assumed)
        radius = float(np.linalg.norm(apart))
        return Certificate(self.objective, bound, self.residual, radius, assumed, self.scale)


def _localised(
    gaps: distance.FromGap, centred: float, lengths: Floats, apart: Floats, assumed: bool
) -> tuple[float, Floats, bool]:
    """The bound, how far minimisers can be and whether that is assumed, after each has sharpened the other."""
    bound = centred + float(lengths @ apart)
    for _ in range(LOCALISATIONS):
        near = gaps.distances(bound)
        sharper = centred + float(lengths @ np.minimum(apart, near))
        if not sharper < 0.9 * bound:
            break
        bound, apart = sharper, np.minimum(apart, near)
    return bound, apart, assumed


@dataclass(frozen=True)
class _Duals:
    """Dual variables: β for samples, γ for the ridge term, u for edges."""

    beta: Floats  # (rows, ...) as the labels
    gamma: Floats  # (nodes, parameters)
    u: Floats  # (edges, parameters)
    w: Floats  # (nodes, parameters) the answer they belong to

    def violation(self, problem: Instance) -> Floats:
        """r = Xᵀβ + γ + Dᵀu."""
        return problem.losses.combine(self.beta) + self.gamma + problem.site.divergence(self.u)

    def value(self, problem: Instance) -> float:
        """The dual objective."""
        losses = problem.losses
        penalised = losses.ridge > 0
        ridge = (self.gamma[penalised] ** 2 / (2 * losses.ridge[penalised])).sum()
        return -float(losses.conjugate(self.beta).sum() + ridge + problem.flow_cost(self.u).sum())

    def gaps(self, problem: Instance) -> tuple[Floats, Floats]:
        """By how much every node and every edge misses its conjugate at w: (nodes,) and (edges,)."""
        losses, w = problem.losses, self.w
        ridge = np.divide(self.gamma**2, 2 * losses.ridge, out=np.zeros_like(w), where=losses.ridge > 0).sum(axis=1)
        held = ((losses.combine(self.beta) + self.gamma) * w).sum(axis=1)
        change = (self.u * problem.difference(w)).sum(axis=1)
        at_nodes = losses.value(w) + losses.conjugate(self.beta) + ridge - held
        return at_nodes, problem.variation(w) + problem.flow_cost(self.u) - change

    def clipped(self, problem: Instance) -> _Duals:
        """Every dual variable by itself moved into the domain of its conjugate."""
        u = self.u
        if problem.coupling.is_norm and len(u):
            u = problem.coupling.dual_prox(u, np.ones_like(problem.weights), problem.weights)
        return replace(self, beta=problem.losses.into_domain(self.beta), u=u)

    def balanced(self, problem: Instance) -> _Duals:
        """Move to r ≈ 0: solve (XᵀCX + ridge + DᵀΩD) x = −r and follow x."""
        losses = problem.losses
        curvature = losses.elasticity(self.w, self.beta)
        elasticity = _Elasticity(problem, self.w, self.u)
        direct = _direct_solver(problem, curvature, elasticity)
        solve = _iterative_solver(problem, curvature, elasticity) if direct is None else direct
        violation = self.violation(problem)
        x = solve(-violation)
        moved = _Duals(
            self.beta + curvature * losses.predict(x),
            self.gamma + losses.ridge * x,
            self.u + elasticity.flow(problem.difference(x)),
            self.w,
        )
        return moved if np.linalg.norm(moved.violation(problem)) < np.linalg.norm(violation) else self

    def shrunk(self, problem: Instance, count: int, component: Ints) -> _Duals:
        """Scale every component into the domain of the conjugates."""
        losses, site = problem.losses, problem.site
        share = np.ones(count)

        def nodes(t: Floats) -> Bools:
            return np.isfinite(losses.conjugate(losses.times(self.beta, t)))

        def edges(t: Floats) -> Bools:
            return np.isfinite(problem.flow_cost(t[:, None] * self.u))

        np.minimum.at(share, component, _largest_share(nodes, losses.node_count))
        np.minimum.at(share, component[site.head], _largest_share(edges, len(self.u)))
        at_node = share[component]
        return _Duals(
            losses.times(self.beta, at_node),
            self.gamma * at_node[:, None],
            self.u * at_node[site.head][:, None],
            self.w,
        )


Linear = Callable[[Floats], Floats]


class _Elasticity:
    """Ω: how the flows on edges answer to a change of differences.

    A quadratic coupling says it itself (``slope``). For others, the slope of λA φ over the length of the difference, as
    in reweighted least squares, and along the border of its domain where a flow sits there: hardly across it.
    """

    def __init__(self, problem: Instance, w: Floats, u: Floats) -> None:
        self.problem = problem
        self.quadratic = problem.coupling.is_quadratic
        self.omega = problem.weights if self.quadratic else _reweighted(problem, w)
        self.border = problem.coupling.border(u, problem.weights)

    def flow(self, v: Floats) -> Floats:
        """Ω v."""
        if self.quadratic:
            return np.asarray(self.omega[:, None] * self.problem.coupling.slope(v))
        along = self.border.along(v)
        return np.asarray(self.omega[:, None] * (along + ACROSS * (v - along)))

    def at_nodes(self, x: Floats) -> Floats:
        """DᵀΩD x."""
        site, normal = self.problem.site, self.border.normal
        if self.quadratic or self.border.free is not None or normal is None:
            return site.divergence(self.flow(self.problem.difference(x)))
        out = np.zeros_like(x)
        kernels.add_elastic_flows(out, x, site.head, site.tail, self.omega, normal, ACROSS)
        return out

    def diagonal(self, width: int) -> Floats:
        """About the diagonal of DᵀΩD, (nodes, parameters)."""
        form = np.diag(self.problem.coupling.slope(np.eye(width))) if self.quadratic else np.ones(width)
        return np.outer(self.problem.site.edge_sum(self.omega), form)


def _reweighted(problem: Instance, w: Floats) -> Floats:
    """(edges,) the slope of λA φ along the differences of w, over their length."""
    change = problem.difference(w)
    length = np.linalg.norm(change, axis=1)
    floor = 1e-3 * (np.sqrt((w**2).sum() / max(len(w), 1)) or 1.0)
    unit = np.full(w.shape[1], 1.0 / np.sqrt(w.shape[1]))
    direction = np.where(length[:, None] > floor, change, floor * unit)
    rise = problem.coupling.value(1.5 * direction) - problem.coupling.value(0.5 * direction)
    return np.asarray(problem.weights * rise / np.maximum(length, floor) ** 2)


def _direct_solver(problem: Instance, curvature: Floats, elasticity: _Elasticity) -> Linear | None:
    """The inverse of XᵀCX + ridge + DᵀΩD by a factorisation; None where that costs too much."""
    losses, width = problem.losses, problem.losses.width
    system = system_of(problem.site, width)
    if width > LARGEST_BLOCK or not system.costs_at_most(DIRECT_COST * problem.round_cost):
        return None
    ones = np.ones(len(problem.weights))
    at_edges = np.stack([elasticity.flow(np.outer(ones, unit)) for unit in np.eye(width)], axis=2)
    at_nodes = losses.gram(curvature) + losses.ridge[:, :, None] * np.eye(width)
    solver = system.factorised(at_nodes, (at_edges + at_edges.transpose(0, 2, 1)) / 2, SHIFT)
    return lambda rhs: solver.solve(rhs, DIRECT_PRECISION, SOLVE_REPEATS)


def _iterative_solver(problem: Instance, curvature: Floats, elasticity: _Elasticity) -> Linear:
    """The same by conjugate gradients."""
    losses = problem.losses

    def apply(x: Floats) -> Floats:
        rows = losses.combine(curvature * losses.predict(x))
        return rows + losses.ridge * x + elasticity.at_nodes(x)

    diagonal = losses.gram_diagonal(curvature) + losses.ridge + elasticity.diagonal(losses.width)
    return lambda rhs: conjugate_gradients(apply, rhs, diagonal)


def conjugate_gradients(apply: Callable[[Floats], Floats], rhs: Floats, diagonal: Floats) -> Floats:
    """Solve apply(x) = rhs for a positive semi-definite operator, with diagonal preconditioning."""
    inverse = np.divide(1.0, diagonal, out=np.ones_like(diagonal), where=diagonal > 0)
    x, r = np.zeros_like(rhs), rhs.copy()
    z = inverse * r
    p, rz = z.copy(), float((r * z).sum())
    target = SOLVE_PRECISION**2 * rz
    for _ in range(SOLVE_ITERATIONS):
        if rz <= target or rz == 0.0:
            break
        Ap = apply(p)
        bend = float((p * Ap).sum())
        if bend <= 0.0:
            break
        step = rz / bend
        x += step * p
        r -= step * Ap
        z = inverse * r
        rz, before = float((r * z).sum()), rz
        p = z + (rz / before) * p
    return x


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
