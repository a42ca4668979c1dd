"""Certificates for GTV minimisation: how far an answer can be from the best one, with a proof.

With dual variables β_r for the samples, γ_i for the ridge term and flows u_e for the edges,

    P(w)      = Σ_i L_i(w_i) + Σ_e λA_e φ((Dw)_e)
    D(β,γ,u)  = −Σ_r c ℓ*(β_r / c) − Σ γ² / (2 ridge) − Σ_e λA_e φ*(u_e / (λA_e))
    P(w) − min P  ≤  [P(w) − D(β,γ,u) − ⟨r, w⟩] + ‖r‖ R,       r = Xᵀβ + γ + Dᵀu                              (*)

for every minimiser within R of w. The plain duality gap is (*) with r = 0, which no iterate fulfils exactly where
a node has fewer samples than features, or none. So the dual variables that belong to an iterate are first moved to
r ≈ 0 along a Newton direction, then scaled back into the domain of the conjugates (r ≈ 0 survives a scaling); what
is left of r is of the size of rounding errors, and R, derived from the level set of P where that is bounded, keeps
it honest. Components of the graph are scaled separately: nothing flows between them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse.csgraph import dijkstra

from kinfolk.algorithms.gtvmin.instance import Instance
from kinfolk.algorithms.gtvmin.optimality import conditions, local_duals, relative
from kinfolk.algorithms.gtvmin.updates import Updates
from kinfolk.checks import InputError, as_floats
from kinfolk.network.network import Network
from kinfolk.objective.local_losses import LinearLosses
from kinfolk.typing import Bools, Floats, Ints

if TYPE_CHECKING:
    from kinfolk.algorithms.gtvmin.algorithm import State

SOLVE_PRECISION = 1e-6  # of one linear solve, relative; what is left is solved for again, and charged at last
SOLVE_ITERATIONS = 2_000
REFINEMENTS = 6
BISECTIONS = 60


@dataclass(frozen=True)
class Certificate:
    """What is known about an answer: at most ``bound`` above the smallest objective."""

    objective: float
    bound: float
    residual: float
    radius: float
    radius_is_assumed: bool

    @property
    def relative(self) -> float:
        """The bound as a part of the objective."""
        return self.bound / self.objective if self.objective > 0 else self.bound

    def __str__(self) -> str:
        text = (
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


def certificate_at(updates: Updates, state: State) -> Certificate | None:
    """How good the parameters 2 w_new − w of a state are; None where losses have no dual variables to prove it with."""
    losses = updates.losses.with_duals
    if losses is None:
        return None
    parts = conditions(updates, state, updates.flows(state.u, state.w_bar))
    residual = max(relative({name: float(part.sum()) for name, part in parts.items()}))
    u, _ = updates.dual_prox(state.u, state.w_bar)
    _, beta = local_duals(updates, losses, state)
    problem = Instance(updates.site, losses, updates.coupling, updates.weights)
    return certify(problem, state.w_bar, beta, u, residual)


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


def certify(problem: Instance, w: Floats, beta: Floats, u: Floats, residual: float) -> Certificate:
    """Bound the sub-optimality of ``w`` with the help of ``beta`` and flows ``u`` that nearly belong to it."""
    count, component = problem.components
    duals = _Duals(beta, problem.losses.ridge * w, u, w).balanced(problem).shrunk(problem, count, component)
    leftover = duals.violation(problem)
    objective = problem.objective(w)
    centred = objective - duals.value(problem) - float((leftover * w).sum())
    radius = level_set_radius(problem, w, objective, count, component)
    assumed = not np.isfinite(radius)
    if assumed:
        radius = 10.0 * (1.0 + float(np.linalg.norm(w)))
    bound = max(centred, 0.0) + float(np.linalg.norm(leftover)) * radius
    return Certificate(objective, bound, residual, radius, assumed)


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

    def balanced(self, problem: Instance) -> _Duals:
        """Move to r ≈ 0: solve (XᵀCX + ridge + DᵀΩD) x = −r and follow x."""
        losses, site = problem.losses, problem.site
        curvature = losses.elasticity(self.w, self.beta)
        flow, stiffness = _elasticity(problem, self.w)

        def apply(x: Floats) -> Floats:
            rows = losses.combine(curvature * losses.predict(x))
            return rows + losses.ridge * x + site.divergence(flow(problem.difference(x)))

        diagonal = losses.gram_diagonal(curvature) + losses.ridge
        diagonal += np.stack([site.edge_sum(column) for column in stiffness.T], axis=1)
        best, violation = self, self.violation(problem)
        for _ in range(REFINEMENTS):
            x = conjugate_gradients(apply, -violation, diagonal)
            moved = _Duals(
                best.beta + curvature * losses.predict(x),
                best.gamma + losses.ridge * x,
                best.u + flow(problem.difference(x)),
                self.w,
            )
            left = moved.violation(problem)
            if np.linalg.norm(left) >= np.linalg.norm(violation):
                break
            best, violation = moved, left
        return best

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


def _elasticity(problem: Instance, w: Floats) -> tuple[Callable[[Floats], Floats], Floats]:
    """Ω: how the flows on edges answer to a change of differences, and its diagonal (edges, parameters).

    A quadratic coupling says it itself (``slope``). For others, the slope of λA φ over the length of the difference,
    as in reweighted least squares: little where a flow sits on the border of its domain.
    """
    if problem.coupling.is_quadratic:
        slope, strength = problem.coupling.slope, problem.weights[:, None]
        return lambda v: strength * slope(v), strength * np.diag(slope(np.eye(w.shape[1])))
    change = problem.difference(w)
    length = np.linalg.norm(change, axis=1)
    typical = np.sqrt((w**2).sum() / max(len(w), 1)) or 1.0
    floor = 1e-3 * typical
    unit = np.full_like(change, 1.0 / np.sqrt(w.shape[1]))
    direction = np.where(length[:, None] > floor, change, floor * unit)
    rise = problem.coupling.value(1.5 * direction) - problem.coupling.value(0.5 * direction)
    omega = (problem.weights * rise / np.maximum(length, floor) ** 2)[:, None]
    return lambda v: omega * v, np.broadcast_to(omega, change.shape)


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


def level_set_radius(problem: Instance, w: Floats, objective: float, count: int, component: Ints) -> float:
    """How far from w a minimiser can be, given that its objective is no larger; ∞ where the losses do not say.

    Along an edge, λA φ(v) ≤ P(w) bounds ‖v‖; added up along shortest paths from a root this bounds how far a
    component spreads. At the root the losses bound the parameters, where they say anything at all (``radius`` of the
    local losses). Along the other directions P does not change: the minimiser nearest to w is taken.
    """
    losses = problem.losses
    roots = _roots(losses, count, component)
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = _spread(problem, problem.coupling.radius(objective / problem.weights, losses.width), roots)
    root = losses.radius(objective, spread, component, count) + 2.0 * np.linalg.norm(w[roots], axis=1)
    apart = root[component] + spread + np.linalg.norm(w - w[roots][component], axis=1)
    return float(np.linalg.norm(apart))


def _roots(losses: LinearLosses, count: int, component: Ints) -> Ints:
    """A node of every component, with data where there is one."""
    order = np.argsort(~losses.has_data, kind="stable")
    return order[np.unique(component[order], return_index=True)[1]]


def _spread(problem: Instance, steps: Floats, roots: Ints) -> Floats:
    """The length of the shortest path from the root of its component to every node."""
    lengths = problem.along_edges(np.maximum(steps, np.finfo(float).tiny))
    return np.asarray(dijkstra(lengths, directed=False, indices=roots, min_only=True), dtype=np.float64)
