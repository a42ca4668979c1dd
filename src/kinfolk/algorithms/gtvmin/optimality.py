"""How far GTV minimisation is from a solution: the optimality conditions, node by node.

    ∂L_i(w_i) + (Dᵀu)_i ∋ 0        stationarity
    (Dw)_e ∈ ∂(λA_e φ)*(u_e)       complementarity

Both are judged at (2 w_new − w, the result of (1)), which is what a run hands out. A large λ makes the smallest miss of
complementarity dear, so its price counts as well, as a part of the objective: the mismatch
Σ_e λA_e φ((Dw)_e) + (λA_e φ)*(u_e) − ⟨u_e, (Dw)_e⟩.
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
    flows = updates.flows(state.u, values)
    return {"length": squares(state.w_bar), **prices(updates, state, flows), **conditions(updates, state, flows)}


def prices(updates: Updates, state: State, flows: Flows) -> dict[str, Floats]:
    """Both terms of the objective, what complementarity is missed by, and the objective where nodes begin, per node."""
    return {
        "loss": updates.losses.value(state.w_bar),
        "variation": flows.variation,
        "mismatch": flows.mismatch,
        "start": updates.losses.value_at_start,
    }


PART_OF_START = 1e-4  # of the objective where all nodes begin
CONDITIONS = ("stationarity", "gradient", "resting", "complementarity", "displacement", "size")


def conditions(updates: Updates, state: State, flows: Flows) -> dict[str, Floats]:
    """Squared parts, per node, of the optimality conditions at (w, u_new), where w has the subgradient.

    (1) misses complementarity by (u − u_new) / σ − Dx, where w is x further on than the 2 w_new − w that neighbours
    received. Since nobody sees x at both ends of an edge, ‖Dx‖² is bounded by 2 Σ degree_i ‖x_i‖².
    """
    site = updates.site
    w, size, missed = stationarity(updates, state, flows.divergence)
    displaced = np.zeros(len(w)) if w is state.w_bar else squares(state.w_bar - w)
    return {
        "stationarity": missed,
        "gradient": size,
        "resting": updates.losses.resting,
        "complementarity": flows.missed,
        "displacement": 2 * site.own_degrees * displaced,
        "size": site.own_degrees * squares(w),
    }


def stationarity(updates: Updates, state: State, divergence: Floats) -> tuple[Floats, Floats, Floats]:
    """Where a subgradient of L_i is known, its square (nodes,), and that of what it misses stationarity by."""
    losses, w = updates.losses.with_duals, state.w_bar
    if losses is None:
        return w, *_squares(updates.losses.gradient(w), divergence)
    if not updates.loss.smooth:
        w, beta = local_duals(updates, losses, state)
        return w, *_squares(losses.subgradient(w, beta), divergence)
    size, missed = np.empty(len(w)), np.empty(len(w))
    for nodes in losses.blocks:  # so that there is no second array of the size of w
        size[nodes], missed[nodes] = _squares(losses.on(nodes).gradient(w[nodes]), divergence[nodes])
    return w, size, missed


def _squares(gradient: Floats, divergence: Floats) -> tuple[Floats, Floats]:
    """Those of a gradient, which is overwritten, and of its sum with a divergence."""
    size = squares(gradient)
    gradient += divergence
    return size, squares(gradient)


def local_duals(updates: Updates, losses: LinearLosses, state: State) -> tuple[Floats, Floats]:
    """Where a subgradient of L_i is known, and the dual variables that make it up.

    A smooth loss has one at 2 w_new − w itself; a loss with kinks has one where (2) leads from here.
    """
    if updates.loss.smooth:
        return state.w_bar, losses.dual(state.w_bar)
    tau = updates.tau
    return losses.prox_with_dual(state.w - tau[:, None] * updates.site.divergence(state.u), tau, state.w_new)


def summary(totals: Mapping[str, float], convex: bool) -> dict[str, float]:
    """Objective, an estimate of the gap, and the relative optimality conditions (residual: the largest one).

    The gap is what (*) of the certificate gives before r is repaired, with R taken to be the norm of w. It can
    be far too large; the certificate at the end needs no such guess. Without convexity there is neither.
    """
    stationarity, complementarity = relative(totals)
    gap = totals["mismatch"] + float(np.sqrt(totals["stationarity"] * totals["length"]))
    return {
        "objective": totals["loss"] + totals["variation"],
        "residual": residual(totals) if convex else max(stationarity, complementarity),
        **({"gap": gap} if convex else {}),
        "stationarity": stationarity,
        "complementarity": complementarity,
    }


def relative(sums: Mapping[str, float]) -> tuple[float, float]:
    """Stationarity against the gradients' size, complementarity against the parameters' size."""
    stationarity, gradient, resting, *missed, size = (float(np.sqrt(sums[name])) for name in CONDITIONS)
    return ratio(stationarity, gradient + resting), ratio(sum(missed), size)


def residual(sums: Mapping[str, float]) -> float:
    """The largest of stationarity, complementarity and mismatch, relative."""
    scale = scale_of(sums["loss"] + sums["variation"], sums["start"])
    return max(*relative(sums), ratio(max(sums["mismatch"], 0.0), scale))


def scale_of(objective: float, at_start: float) -> float:
    """What distances from the optimum are parts of: the objective, but not less than a part of that at the start.

    Where models fit all data, the objective itself goes to zero.
    """
    return max(objective, PART_OF_START * at_start)


def residual_at(updates: Updates, state: State) -> float:
    """The residual of a state on a site that holds every node."""
    return residual({name: float(part.sum()) for name, part in parts_at(updates, state).items()})


def parts_at(updates: Updates, state: State) -> dict[str, Floats]:
    """What ``residual`` needs, per node, on a site that holds every node."""
    flows = updates.flows(state.u, state.w_bar)
    return {**prices(updates, state, flows), **conditions(updates, state, flows)}


def better(before: Mapping[str, Floats], after: Mapping[str, Floats], component: Ints) -> Bools:
    """The nodes of components whose residual falls, measured on the scale of the whole network before."""
    count = int(component.max()) + 1
    whole = {name: float(part.sum()) for name, part in before.items()}
    gradient = np.sqrt(whole["gradient"]) + np.sqrt(whole["resting"])
    scale = scale_of(whole["loss"] + whole["variation"], whole["start"])

    def residuals(parts: Mapping[str, Floats]) -> Floats:
        own = {name: np.bincount(component, parts[name], count) for name in (*CONDITIONS, "mismatch")}
        missed = np.sqrt(own["complementarity"]) + np.sqrt(own["displacement"])
        price = _ratios(np.maximum(own["mismatch"], 0.0), scale)
        conditions = np.maximum(
            _ratios(np.sqrt(own["stationarity"]), gradient), _ratios(missed, np.sqrt(whole["size"]))
        )
        return np.maximum(conditions, price)

    return np.asarray((residuals(after) < residuals(before))[component])


def _ratios(parts: Floats, whole: float) -> Floats:
    """parts / whole, with 0 / 0 = 0."""
    return np.asarray(parts / whole) if whole > 0 else np.where(parts > 0, np.inf, 0.0)
