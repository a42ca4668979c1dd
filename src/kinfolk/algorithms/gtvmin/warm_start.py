"""Where a run starts: alone at their minimum, or from solutions for some values of λ to a guess for the next one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from kinfolk.algorithms.parametric import ratio
from kinfolk.network.site import Site
from kinfolk.objective.couplings import Coupling
from kinfolk.objective.node_loss import LocalLosses
from kinfolk.typing import Floats

if TYPE_CHECKING:
    from kinfolk.algorithms.gtvmin.algorithm import State

LARGE = 10_000  # nodes


def extrapolated(coupling: Coupling, lam: float, site: Site, past: Sequence[tuple[float, State]]) -> State:
    """A guess at the solution for ``lam`` from those for one or two other values: u / λ is linear in log λ, w stays.

    Were w to go on as well, differences that vanish would change their sign, which misleads an interior-point method.
    """
    last, state = past[-1]
    if min(lam, *(each for each, _ in past)) == 0:
        return state
    w, flow = state.w_bar, state.u / last
    if len(past) > 1 and past[-2][0] != last:
        before, earlier = past[-2]
        part = np.log(lam / last) / np.log(last / before)
        flow = flow + part * (flow - earlier.u / before)
    u = lam * flow
    if coupling.is_norm:  # its conjugate is finite only in a ball
        u = coupling.dual_prox(u, np.ones_like(site.weights), lam * site.weights)
    return state._replace(w=w.copy(), w_bar=w.copy(), u=u)


def first(site: Site, losses: LocalLosses, balanced: bool) -> tuple[Floats, float]:
    """Where parameters begin, and how far they have to go, as a part of the way from zero: about as gradients fell.

    At zero, or, on a large site without neighbours elsewhere, at the one model that fits all its data: about two
    thirds of the rounds remain.
    """
    linear = losses.with_duals if balanced else None
    if linear is None or not linear.is_quadratic or site.node_count <= LARGE or len(site.outside):
        return losses.start, 1.0
    common = linear.pool(np.zeros(site.node_count, dtype=np.int64), 1).minimise()
    w = np.repeat(common, site.node_count, axis=0)
    here, at_zero = (float(np.linalg.norm(each)) for each in (linear.gradient(w), linear.gradient_at_zero))
    return w, min(ratio(here, at_zero), 1.0) or 1.0


def alone_at_minimum(site: Site, losses: LocalLosses, state: State, lam: float) -> State:
    """The state with every node that nothing is coupled to at its own minimum: all of them if λ is zero."""
    alone = np.flatnonzero(site.own_degrees * lam == 0)
    if not len(alone):
        return state
    w, w_bar = state.w.copy(), state.w_bar.copy()
    w[alone] = w_bar[alone] = losses.take(alone).minimise()
    return state._replace(w=w, w_bar=w_bar, u=state.u if lam > 0 else np.zeros_like(state.u))
