"""How far GTV minimisation is from a solution: the optimality conditions, node by node.

    ∂L_i(w_i) + (Dᵀu)_i ∋ 0        stationarity
    (Dw)_e ∈ ∂(λA_e φ)*(u_e)       complementarity

Both are judged at (2 w_new − w, the result of (1)), which is what a run hands out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from kinfolk.algorithms.gtvmin.updates import Flows, Updates
from kinfolk.algorithms.parametric import ratio, squares
from kinfolk.objective.local_losses import LinearLosses
from kinfolk.typing import Bools, Floats, Ints

if TYPE_CHECKING:
    from kinfolk.algorithms.gtvmin.algorithm import State


def measures(updates: Updates, state: State, values: Floats) -> dict[str, Floats]:
    """Both terms of the objective and the optimality conditions, as numbers per node that can be added up."""
    site, flows = updates.site, updates.flows(state.u, values)
    return {
        "loss": updates.losses.value(state.w_bar),
        "variation": site.at_smaller_end(flows.variation),
        "mismatch": site.at_smaller_end(flows.mismatch),
        "length": squares(state.w_bar),
        **conditions(updates, state, flows),
    }


CONDITIONS = ("stationarity", "gradient", "resting", "complementarity", "displacement", "size")


def conditions(updates: Updates, state: State, flows: Flows) -> dict[str, Floats]:
    """Squared parts, per node, of the optimality conditions at (w, u_new), where w has the subgradient.

    (1) misses complementarity by (u − u_new) / σ − Dx, where w is x further on than the 2 w_new − w that neighbours
    received. Since nobody sees x at both ends of an edge, ‖Dx‖² is bounded by 2 Σ degree_i ‖x_i‖².
    """
    site = updates.site
    w, gradient = subgradient(updates, state)
    return {
        "stationarity": squares(gradient + flows.divergence),
        "gradient": squares(gradient),
        "resting": squares(updates.losses.gradient_at_start),
        "complementarity": site.at_smaller_end(flows.moved / updates.sigma**2),
        "displacement": 2 * site.own_degrees * squares(state.w_bar - w),
        "size": site.own_degrees * squares(w),
    }


def subgradient(updates: Updates, state: State) -> tuple[Floats, Floats]:
    """Where a subgradient of L_i is known, and that subgradient."""
    losses = updates.losses.with_duals
    if updates.loss.smooth or losses is None:
        return state.w_bar, updates.losses.gradient(state.w_bar)
    w, beta = local_duals(updates, losses, state)
    return w, losses.combine(beta) + losses.ridge * w


def local_duals(updates: Updates, losses: LinearLosses, state: State) -> tuple[Floats, Floats]:
    """Where a subgradient of L_i is known, and the dual variables that make it up.

    A smooth loss has one at 2 w_new − w itself; a loss with kinks has one where (2) leads from here.
    """
    if updates.loss.smooth:
        return state.w_bar, losses.dual(state.w_bar)
    tau = updates.tau
    return losses.prox_with_dual(state.w - tau[:, None] * updates.site.divergence(state.u), tau, state.w_new)


def summary(totals: Mapping[str, float], convex: bool) -> dict[str, float]:
    """Objective, an estimate of the gap, and the relative optimality conditions (residual: the larger one).

    The gap is what (*) of the certificate gives before r is repaired, with R taken to be the norm of w. It can
    be far too large; the certificate at the end needs no such guess. Without convexity there is neither.
    """
    stationarity, complementarity = relative(totals)
    gap = totals["mismatch"] + float(np.sqrt(totals["stationarity"] * totals["length"]))
    return {
        "objective": totals["loss"] + totals["variation"],
        "residual": max(stationarity, complementarity),
        **({"gap": gap} if convex else {}),
        "stationarity": stationarity,
        "complementarity": complementarity,
    }


def relative(sums: Mapping[str, float]) -> tuple[float, float]:
    """Stationarity against the gradients' size, complementarity against the parameters' size."""
    stationarity, gradient, resting, *missed, size = (float(np.sqrt(sums[name])) for name in CONDITIONS)
    return ratio(stationarity, gradient + resting), ratio(sum(missed), size)


def better(before: Mapping[str, Floats], after: Mapping[str, Floats], component: Ints) -> Bools:
    """The nodes of components whose residual falls, measured on the scale of the whole network before."""

    def residuals(parts: Mapping[str, Floats]) -> Floats:
        squared = {name: np.bincount(component, parts[name]) for name in ("stationarity", "complementarity")}
        whole = {name: float(part.sum()) for name, part in before.items()}
        each = ({name: part[k] for name, part in squared.items()} for k in range(int(component.max()) + 1))
        return np.array([max(relative(whole | own)) for own in each])

    return np.asarray((residuals(after) < residuals(before))[component])
