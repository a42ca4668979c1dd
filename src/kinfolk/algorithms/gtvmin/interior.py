"""An interior-point method for GTV minimisation on graphs that small cuts take apart: maps, chains, grids, small ones.

With dual variables u_e for the edges and β_r for the samples of kinked losses, both kept strictly inside the sets where
the conjugates are finite (``cones``), Newton's method follows

    ∇L_i(w_i) + Σ_r β_r x_r + (Dᵀu)_i = 0,    slack · dual = μ,    μ → 0                                      (1)

by Mehrotra's predictor and corrector. Edges and samples are eliminated, so every step is one linear system over the
graph with a block per node. It takes 15 to 30 steps whatever λ, the weights and the scales of the features are.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from kinfolk import kernels
from kinfolk.algorithms.gtvmin.cones import Balls, Boxes, Cone, Octahedra, central_difference
from kinfolk.algorithms.gtvmin.instance import Instance
from kinfolk.algorithms.gtvmin.optimality import PART_OF_START
from kinfolk.algorithms.gtvmin.polish import INSIDE, inside_ball, joined
from kinfolk.algorithms.gtvmin.power_balls import PowerBalls
from kinfolk.algorithms.gtvmin.systems import GraphSystem, Solver, system_of
from kinfolk.objective.couplings import AbsoluteNorm, Coupling, EuclideanNorm, MaximumNorm, PNorm
from kinfolk.objective.local_losses import LinearLosses
from kinfolk.typing import Bools, Floats

STEPS = 80
USUAL_STEPS = 20
PATIENT = 10.0  # it hardly ever fails, and ends the run
PRECISION = 1e-10  # of gap and stationarity, relative
SMALL = 1e-7  # the same, from which on it is asked whether the optimality conditions hold well enough
PATIENCE = 15  # steps without progress
NEAR, FAR = 0.1, 3.0  # where μ starts, in objectives over pairs, from a start that is trusted, and from another
TRUSTED = 0.5  # the part that the first step can go
FIRM = 10.0  # times σ: how much flows count beside differences at the start
TO_BORDER = 0.99  # the part of the way to the border that a step may go
SHIFT = 1e-13
CORRECTIONS = 2
WORTHWHILE = 1.05  # times as far
LONG_ENOUGH = 1.0 / WORTHWHILE  # a step that is not worth a correction
CENTRING = 2  # the power of what a prediction leaves of the gap, as a part, at which the step aims
HALVINGS = 15
ASTRAY = 1.2  # times the miss of stationarity before a step
REFINEMENTS = 10
SOLVE_PRECISION = 1e-9
AMPLE = 10.0  # radius of a ball, in sums of all gradients: more never binds

Start = tuple[Floats, Floats, Floats]  # w, u, and the σ of the rounds
Judgement = Callable[[Floats, Floats], float]  # of w and u: how many times too large their residual is


def affordable_system(problem: Instance, effort: float) -> GraphSystem | None:
    """The system of every step, where all of them cost at most ``PATIENT`` times the effort in rounds, about."""
    if not covers(problem.coupling):
        return None
    system = system_of(problem.site, problem.losses.width)
    return system if system.costs_at_most(PATIENT * effort * problem.round_cost / USUAL_STEPS) else None


def propose(problem: Instance, start: Start, system: GraphSystem, excess: Judgement) -> tuple[Floats, Floats]:
    """Propose a better (w, u): with ``PRECISION``, or once the gap is small and there is no ``excess``."""
    with np.errstate(all="ignore"):  # a proposal that leads astray is found out by its residual
        answer = solve(problem, start, system, excess)
    return snapped(problem, answer.w, answer.u), answer.u


def snapped(problem: Instance, w: Floats, u: Floats) -> Floats:
    """w with exactly equal models wherever flows lie strictly inside their balls, if that lowers the objective."""
    if not problem.coupling.is_norm:
        return w
    if isinstance(problem.coupling, AbsoluteNorm):  # every parameter has its own clusters
        inside = np.abs(u) < (1 - INSIDE) * problem.weights[:, None]
        columns = [_equalised(problem, w[:, [k]], inside[:, k]) for k in range(w.shape[1])]
        equal = np.hstack(columns)
    else:
        equal = _equalised(problem, w, inside_ball(problem, u.__getitem__))
    return equal if problem.objective(equal) <= problem.objective(w) else w


def _equalised(problem: Instance, w: Floats, fused: Bools) -> Floats:
    """The mean of w over every group of nodes that fused edges join."""
    group = joined(problem, fused)
    means = kernels.group_sums(np.ascontiguousarray(w), group, int(group.max()) + 1)
    return np.asarray((means / np.bincount(group)[:, None])[group])


class Answer(NamedTuple):
    """What the method found."""

    w: Floats  # (nodes, parameters)
    u: Floats  # (edges, parameters)
    accuracy: float  # of gap and stationarity, relative
    steps: int


def solve(problem: Instance, start: Start, system: GraphSystem, excess: Judgement) -> Answer:
    """Minimise P.

    The residual falls no faster than the accuracy, so it is not asked for again before it can be small enough.
    """
    method = _begun(problem, start, system)
    best, waited, due = Answer(method.w, method.u, np.inf, 0), 0, SMALL
    for step in range(STEPS + 1):
        accuracy = method.accuracy()
        if not np.isfinite(accuracy):
            break
        waited = 0 if accuracy < 0.9 * best.accuracy else waited + 1
        if accuracy < best.accuracy:
            best = Answer(method.w, method.u, accuracy, step)
        if accuracy <= PRECISION or waited > PATIENCE or step == STEPS:
            break
        if accuracy <= due:
            due = accuracy / max(excess(snapped(problem, method.w, method.u), method.u), 1.0)
            if due == accuracy:
                break
        method.step()
    return best


def _begun(problem: Instance, start: Start, system: GraphSystem) -> _Method:
    """After a step from a start that is trusted, as after a neighbouring λ; before the first if that cannot go far."""
    method = _Method(problem, system, start, NEAR)
    trusted = method.step() >= TRUSTED or not method.cones
    return method if trusted else _Method(problem, system, start, FAR)


class _Method:
    """The variables of (1)."""

    def __init__(self, problem: Instance, system: GraphSystem, start: Start, part: float) -> None:
        w, u, sigma = start
        self.problem, self.system, self.w = problem, system, w
        losses = problem.losses
        self.scale = max(problem.objective(w), PART_OF_START * problem.objective(np.zeros_like(w))) or 1.0
        self.pull = float(np.linalg.norm(losses.gradient_at_zero) + np.linalg.norm(losses.gradient(w))) or 1.0
        mu = part * self.scale / max(len(problem.weights) * losses.width + len(losses.y), 1)
        self.kink: Floats | float = 0.0 if losses.boxes is None else losses.boxes.kink
        self.rows = _row_cone(losses, losses.predict(w) - self.kink, mu)
        self.edges, self.apart = _edge_cone(problem, w, u, FIRM * sigma, mu)
        self._look()

    def _look(self) -> None:
        """What all directions from here share: how far the first line of (1) is from zero, and what cones charge."""
        problem, losses = self.problem, self.problem.losses
        self.missing = self._missing(self.w)
        self.differences = self.w[:0] if self.edges is None else problem.difference(self.w)
        self.margins = losses.y[:0] if self.rows is None else losses.predict(self.w) - self.kink

    @property
    def cones(self) -> list[Cone]:
        """Those of edges and samples, as far as there are any."""
        return [cone for cone in (self.edges, self.rows) if cone is not None]

    # ------------------------------------------------------------------ where it is

    @property
    def u(self) -> Floats:
        """(edges, parameters)."""
        if self.edges is not None:
            return self.edges.u
        slope = self.problem.coupling.slope(self.problem.difference(self.w))
        return self.problem.weights[:, None] * slope

    def _gradient(self, w: Floats) -> Floats:
        """What is smooth in the gradient, and the rows."""
        losses = self.problem.losses
        if self.rows is None:
            return losses.gradient(w)
        return losses.ridge * w + losses.combine(self.rows.u)

    def _missing(self, w: Floats) -> Floats:
        """How far the first line of (1) is from zero."""
        return self._gradient(w) + self.problem.site.divergence(self.u)

    def accuracy(self) -> float:
        """Gap, stationarity and what slacks and differences are apart, relative."""
        gap = sum(cone.gap() for cone in self.cones)
        return max((gap + self.apart) / self.scale, float(np.linalg.norm(self.missing)) / self.pull)

    # ------------------------------------------------------------------ one step

    def step(self) -> float:
        """Predict how far the gap can fall, then aim there with the second-order term of the prediction.

        The part of the step that could be taken.
        """
        solver = self._solver()
        gap, degree = sum(cone.gap() for cone in self.cones), sum(cone.degree for cone in self.cones)
        change = self._direction(solver, 0.0, False)
        if self.cones:
            part = min(1.0, self._longest())
            left = sum(cone.gap_after(part) for cone in self.cones) / gap if degree else 0.0
            target = max(left, 0.0) ** CENTRING * gap / max(degree, 1)
            change = self._corrected(solver, target, self._direction(solver, target, True))
        return self._move(change, min(1.0, TO_BORDER * self._longest()))

    def _corrected(self, solver: Solver, target: float, change: Floats) -> Floats:
        """The step, corrected with its own second-order term as long as it can then go further."""
        for _ in range(CORRECTIONS):
            longest, before = self._longest(), (copy.copy(self.edges), copy.copy(self.rows))
            if longest >= LONG_ENOUGH:
                break
            corrected = self._direction(solver, target, True)
            if self._longest() < WORTHWHILE * longest:
                self.edges, self.rows = before
                break
            change = corrected
        return change

    def _longest(self) -> float:
        """The part of the step at which the first border is met; ∞ if none is."""
        return min((cone.longest() for cone in self.cones), default=np.inf)

    def _solver(self) -> Solver:
        losses = self.problem.losses
        if self.rows is None:
            at_nodes = losses.hessian(self.w)
        else:
            at_nodes = losses.gram(self.rows.stiffness()) + losses.ridge[:, :, None] * np.eye(losses.width)
        return self.system.factorised(at_nodes, self._at_edges(), SHIFT)

    def _at_edges(self) -> Floats:
        width = self.w.shape[1]
        if self.edges is None:
            form = self.problem.coupling.slope(np.eye(width))
            return self.problem.weights[:, None, None] * form
        blocks = self.edges.stiffness()
        return blocks if blocks.ndim == 3 else blocks[:, :, None] * np.eye(width)

    def _direction(self, solver: Solver, target: float, second_order: bool) -> Floats:
        """Δw, and with it the steps of all cones."""
        problem, losses = self.problem, self.problem.losses
        rhs = -self.missing
        if self.edges is not None:
            rhs -= problem.site.divergence(self.edges.aim(self.differences, target, second_order))
        if self.rows is not None:
            rhs -= losses.combine(self.rows.aim(self.margins, target, second_order))
        change = solver.solve(rhs, SOLVE_PRECISION, REFINEMENTS)
        if self.edges is not None:
            self.edges.follow(problem.difference(change))
        if self.rows is not None:
            self.rows.follow(losses.predict(change))
        return change

    def _move(self, change: Floats, part: float) -> float:
        if self.rows is None and not self.problem.losses.is_quadratic:
            part *= self._damping(change, part)
        for cone in self.cones:
            cone.move(part)
        self.w = self.w + part * change
        self.apart *= 1 - part
        self._look()
        return part

    def _damping(self, change: Floats, part: float) -> float:
        """The first of 1, ½, ¼, ... at which curved losses do not throw the first line of (1) far off."""
        before, damping = float(np.linalg.norm(self.missing)), 1.0
        gap = sum(cone.gap_after(part) for cone in self.cones) / self.scale
        allowed = max(ASTRAY * before, gap * self.pull, PRECISION * self.pull)
        for _ in range(HALVINGS):
            w = self.w + damping * part * change
            u = self.u if self.edges is None else self.u + damping * part * self.edges.du
            if self.edges is None:
                u = self.problem.weights[:, None] * self.problem.coupling.slope(self.problem.difference(w))
            after = self.problem.losses.gradient(w) + self.problem.site.divergence(u)
            if np.linalg.norm(after) <= allowed:
                break
            damping /= 2
        return damping


def _edge_cone(problem: Instance, w: Floats, u: Floats, sigma: Floats, mu: float) -> tuple[Cone | None, float]:
    """The cone of the edges, and Σ λA ‖·‖ of what its slacks and the differences are apart.

    No cone where the coupling is quadratic and needs none.
    """
    if problem.coupling.is_quadratic:
        return None, 0.0
    radius, v = _radius(problem, w), problem.difference(w)
    if isinstance(problem.coupling, MaximumNorm):
        return Octahedra(v, radius, mu), 0.0
    if isinstance(problem.coupling, PNorm):
        return PowerBalls(v, radius, problem.coupling.p, mu), 0.0
    if isinstance(problem.coupling, EuclideanNorm):
        slack = central_difference(v, u, sigma[:, None], radius[:, None], mu / radius[:, None] / 2)
        cone: Cone = Balls(slack, radius, mu)
    else:
        limit, steps = (np.broadcast_to(each[:, None], v.shape) for each in (radius, sigma))
        entries = (each.reshape(-1, 1) for each in (v, u, steps, limit, mu / limit))  # every one is a ball of its own
        slack = central_difference(*entries).reshape(v.shape)
        cone = Boxes(slack, -limit, limit, np.zeros_like(v), mu)
    return cone, float(radius @ np.linalg.norm(slack - v, axis=1))


def _radius(problem: Instance, w: Floats) -> Floats:
    """(edges,) λA, or less where no flow needs as much."""
    losses = problem.losses
    everything = sum(np.linalg.norm(each, axis=1).sum() for each in (losses.gradient_at_zero, losses.gradient(w)))
    return np.minimum(problem.weights, AMPLE * everything) if everything > 0 else problem.weights


def _row_cone(losses: LinearLosses, v: Floats, mu: float) -> Cone | None:
    """The cone of the samples; None where Newton's method takes the losses as they are."""
    return None if losses.boxes is None else Boxes(v, *losses.boxes[1:], mu)


def covers(coupling: Coupling) -> bool:
    """Whether edges with this coupling are known to the method."""
    return coupling.is_quadratic or isinstance(coupling, EuclideanNorm | AbsoluteNorm | MaximumNorm | PNorm)
