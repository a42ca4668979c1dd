"""Smooth losses with a quadratic coupling: Newton's method, each step by conjugate gradients.

P is smooth here, and for the squared loss one Newton step solves it. The systems are preconditioned by the inverse
block of every node, so features on different scales and nodes of different weight do no harm; three steps of conjugate
gradients cost about as much as a round.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kinfolk.algorithms.gtvmin import uninformed, warm_start
from kinfolk.algorithms.gtvmin.instance import Instance
from kinfolk.network.network import Network
from kinfolk.objective.couplings import Coupling
from kinfolk.objective.node_loss import NodeLoss
from kinfolk.objective.symmetric import invert_symmetric
from kinfolk.typing import Floats

NEWTON_STEPS = 30
HALVINGS = 30
PRECISION = 1e-12  # of the gradient, relative
FORCING = 0.1  # precision of a linear solve, relative, unless the loss is quadratic
LARGEST_WIDTH = 64  # of blocks that are inverted
PER_ROUND = 3  # products with the Hessian that cost as much as a round
MOST_PRODUCTS = 3_000  # for one λ, where there are no rounds


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


def minimisers(
    network: Network, loss: NodeLoss, coupling: Coupling, lams: Sequence[float], precision: float
) -> list[Floats] | None:
    """The parameters (nodes, parameters) for several λ, each found from those before, without rounds.

    Parameters
    ----------
    network : Network
        Nodes, their data and who may be kin.
    loss, coupling : NodeLoss, Coupling
        L_i and φ.
    lams : sequence of float
        Values of λ.
    precision : float
        Of the gradient, relative to that at zero.

    Returns
    -------
    list of array or None
        NaN where a node has no data and no connection to any. None where the method does not cover the problem, or
        does not come as near as that.

    >>> from kinfolk import Network, SquaredNorm, Squared, graphs
    >>> network = Network(graphs.chain(2), [([[1.0]], [0.0]), ([[1.0]], [3.0])])
    >>> [w.round(3).ravel().tolist() for w in minimisers(network, Squared("sum"), SquaredNorm(), [0.0, 1.0], 1e-9)]
    [[0.0, 3.0], [0.75, 2.25]]
    """
    site = network.site
    losses = site.local_losses(loss)
    whole = losses.with_duals
    if whole is None:
        return None
    w, found = warm_start.first(site, losses, True)[0], []
    for lam in lams:
        problem = Instance(site, whole, coupling, lam * site.weights)
        if not covers(problem):
            return None
        w = minimised(problem, w, MOST_PRODUCTS, precision)
        if np.linalg.norm(_slope(problem, w)) > precision * np.linalg.norm(whole.gradient_at_zero):
            return None
        found.append(np.where(uninformed.reached(site, lam)[:, None], w, np.nan))
    return found


def _slope(problem: Instance, w: Floats) -> Floats:
    """∇P(w)."""
    return np.asarray(problem.losses.gradient(w) + problem.site.divergence(flows(problem, w)))


def minimised(problem: Instance, w: Floats, products: int, precision: float = PRECISION) -> Floats:
    """Newton's method from w; each step is halved until P falls."""
    losses = problem.losses
    goal = precision * float(np.linalg.norm(losses.gradient_at_zero))
    for _ in range(NEWTON_STEPS):
        slope = _slope(problem, w)
        size = float(np.linalg.norm(slope))
        if size <= goal or products <= 0:
            break
        enough = goal / size if losses.is_quadratic else max(FORCING * min(1.0, size), goal / size)
        step, used = _newton_step(problem, w, slope, enough, products)
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
