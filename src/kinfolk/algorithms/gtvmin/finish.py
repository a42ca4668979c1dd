"""From a rough answer of the rounds to an exact one, where all nodes are in one process.

Methods are tried in turn, each from the best answer so far, until one is sharp:

    quadratic   smooth losses, quadratic coupling: Newton's method with conjugate gradients, on networks of any size
    polish      smooth losses, ‖·‖₂ or ‖·‖₁: fuse nodes that the flows show to be equal, solve the small network
    interior    an interior-point method, where the linear systems over the graph are affordable; for what the first
                method covers, only after it has failed for many rounds

What they return is a proposal. Each component of the graph takes it only if its residual falls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np

from kinfolk.algorithms.gtvmin import interior, polish, quadratic
from kinfolk.algorithms.gtvmin.instance import Instance
from kinfolk.algorithms.gtvmin.optimality import better, parts_at, relative, residual, residual_at
from kinfolk.algorithms.gtvmin.updates import Ahead, Updates
from kinfolk.algorithms.parametric import ratio
from kinfolk.typing import Floats

if TYPE_CHECKING:
    from kinfolk.algorithms.gtvmin.algorithm import State

SHARP = 1e-9  # a residual that needs no further method
SHARP_ENOUGH, FALL = 9e-7, 0.01  # a residual that needs no further step, and as a part of that at the start
STUBBORN = 200.0  # effort at which conjugate gradients have had their time

Proposal = tuple[Floats, Floats] | None  # w and u
Excess = interior.Judgement
Method = Callable[[Instance, Floats, Ahead, float, Excess], Proposal]  # problem, w, u and σ, effort in rounds


def _quadratic(problem: Instance, w: Floats, ahead: Ahead, effort: float, excess: Excess) -> Proposal:
    return quadratic.propose(problem, w, effort)


def _polish(problem: Instance, w: Floats, ahead: Ahead, effort: float, excess: Excess) -> Proposal:
    fused = polish.promising(problem, ahead.on)
    return None if fused is None else polish.polish_fused(problem, w, ahead.whole, ahead.updates.sigma, effort, fused)


def _interior(problem: Instance, w: Floats, ahead: Ahead, effort: float, excess: Excess) -> Proposal:
    if quadratic.covers(problem) and effort < STUBBORN:
        return None
    system = interior.affordable_system(problem, effort)
    if system is None:
        return None
    return interior.propose(problem, (w, ahead.whole, ahead.updates.sigma), system, excess)


METHODS: tuple[Method, ...] = (_quadratic, _polish, _interior)


def finished(updates: Updates, state: State, effort: float) -> State | None:
    """A better state at the cost of about ``effort`` rounds; None if no component of the graph has one."""
    problem = _problem(updates)
    if problem is None:
        return None
    best = state
    before = cache(partial(residual_at, updates, state))  # few ask for it

    def excess(w: Floats, u: Floats) -> float:
        proposed = _with_flows_in_place(updates, state._replace(w=w, w_bar=w, u=u))
        return ratio(residual_at(updates, proposed), min(SHARP_ENOUGH, FALL * before()))

    for method in METHODS:
        proposal = method(problem, best.w_bar, Ahead(updates, best.u, best.w_bar), effort, excess)
        kept = best if proposal is None else _kept(updates, problem, best, *proposal)
        if kept is not best:
            best = _with_flows_in_place(updates, kept) if method is _interior else kept  # others end on the border
            if residual_at(updates, best) <= SHARP:
                break
    return None if best is state else best


def _problem(updates: Updates) -> Instance | None:
    """The problem to finish: exact updates, losses with dual variables, and edges that couple."""
    losses = updates.losses.with_duals
    coupled = updates.lam > 0 and len(updates.site.weights) > 0
    if losses is None or updates.inexact is not None or not coupled:
        return None
    return Instance(updates.site, losses, updates.coupling, updates.weights)


def _kept(updates: Updates, problem: Instance, state: State, w: Floats, u: Floats) -> State:
    """The proposal (w, u) in the components whose residual falls, the state in the others."""
    proposed = state._replace(w=w, w_bar=w, u=u)
    falls = better(parts_at(updates, state), parts_at(updates, proposed), problem.components[1])
    if not falls.any():
        return state
    return state._replace(
        w=np.where(falls[:, None], w, state.w),
        w_bar=np.where(falls[:, None], w, state.w_bar),
        u=np.where(falls[updates.site.head][:, None], u, state.u),
    )


def _with_flows_in_place(updates: Updates, state: State) -> State:
    """The state with flows that miss both optimality conditions about alike, where that lowers the residual.

    An interior point has flows that balance the gradients, short of the border that they tend to. (1) takes them there:
    with κσ for σ complementarity is missed by less, as 1 / √κ, and stationarity by more, as √κ.
    """
    sums = {name: float(part.sum()) for name, part in parts_at(updates, state).items()}
    stationarity, complementarity = relative(sums)
    if residual(sums) <= SHARP or not complementarity > stationarity > 0:
        return state
    longer = replace(updates, eta=updates.eta * stationarity / complementarity)
    moved = state._replace(u=longer.ahead(state.u, state.w_bar))
    return moved if residual_at(updates, moved) < residual(sums) else state
