"""Smooth losses with a quadratic coupling: Newton's method, each step by conjugate gradients.

P is smooth here, and for the squared loss one Newton step solves it. The systems are preconditioned by the inverse
block of every node, so features on different scales and nodes of different weight do no harm; three steps of conjugate
gradients cost about as much as a round.
"""

from __future__ import annotations

import numpy as np

from kinfolk.algorithms.gtvmin.instance import Instance
from kinfolk.objective.symmetric import invert_symmetric
from kinfolk.typing import Floats

NEWTON_STEPS = 30
HALVINGS = 30
PRECISION = 1e-12  # of the gradient, relative
FORCING = 0.1  # precision of a linear solve, relative, unless the loss is quadratic
LARGEST_WIDTH = 64  # of blocks that are inverted
PER_ROUND = 3  # products with the Hessian that cost as much as a round


def propose(problem: Instance, w: Floats, effort: float) -> tuple[Floats, Floats] | None:
    """Propose a better (w, u), at the cost of about ``effort`` rounds."""
    if not covers(problem):
        return None
    w = minimised(problem, w, round(PER_ROUND * effort))
    return w, flows(problem, w)


def covers(problem: Instance) -> bool:
    """Whether the objective is smooth, and blocks are small enough to be inverted."""
    losses = problem.losses
    return problem.coupling.is_quadratic and losses.loss.smooth and losses.width <= LARGEST_WIDTH


def flows(problem: Instance, w: Floats) -> Floats:
    """λA ∇φ(Dw)."""
    return problem.weights[:, None] * problem.coupling.slope(problem.difference(w))


def minimised(problem: Instance, w: Floats, products: int) -> Floats:
    """Newton's method from w; each step is halved until P falls."""
    losses, site = problem.losses, problem.site
    goal = PRECISION * float(np.linalg.norm(losses.gradient_at_zero))
    for _ in range(NEWTON_STEPS):
        slope = losses.gradient(w) + site.divergence(flows(problem, w))
        size = float(np.linalg.norm(slope))
        if size <= goal or products <= 0:
            break
        precision = goal / size if losses.is_quadratic else max(FORCING * min(1.0, size), goal / size)
        step, used = _newton_step(problem, w, slope, precision, products)
        products -= used
        w, moved = _descended(problem, w, step, float((slope * step).sum()))
        if not moved:
            break
    return w


def _newton_step(problem: Instance, w: Floats, slope: Floats, precision: float, most: int) -> tuple[Floats, int]:
    """Solve (∇²L + λ DᵀAQD) step = −slope by conjugate gradients; the step, and how many products it took."""
    losses, site, weights = problem.losses, problem.site, problem.weights[:, None]
    at_nodes, slope_of = losses.hessian(w), problem.coupling.slope
    form = slope_of(np.eye(w.shape[1]))
    inverse = invert_symmetric(at_nodes + site.edge_sum(problem.weights)[:, None, None] * form)

    def apply(x: Floats) -> Floats:
        at_edges = site.divergence(weights * slope_of(problem.difference(x)))
        return np.asarray(np.einsum("nij,nj->ni", at_nodes, x) + at_edges)

    x, r = np.zeros_like(w), -slope
    z = np.einsum("nij,nj->ni", inverse, r)
    p, rz = z, float((r * z).sum())
    goal = precision * float(np.linalg.norm(r))
    for count in range(1, most + 1):
        image = apply(p)
        bend = float((p * image).sum())
        if not bend > 0:
            return x, count
        x, r = x + rz / bend * p, r - rz / bend * image
        if np.linalg.norm(r) <= goal:
            return x, count
        z = np.einsum("nij,nj->ni", inverse, r)
        rz, before = float((r * z).sum()), rz
        p = z + rz / before * p
    return x, most


def _descended(problem: Instance, w: Floats, step: Floats, descent: float) -> tuple[Floats, bool]:
    """w moved along a step, halved until the objective falls; and whether it moved."""
    before, part = problem.objective(w), 1.0
    for _ in range(HALVINGS):
        if problem.objective(w + part * step) <= before + 1e-4 * part * descent + 1e-14 * abs(before):
            return w + part * step, True
        part /= 2
    return w, False
