"""The coordinator's part of GTV minimisation: it chooses η and ρ from what the nodes report every tenth round.

The step sizes (3) are safe for every η > 0. Over-relaxation, ρ = 1.6, is quicker; but where nodes are away or messages
get lost only ρ = 1 converges. Half of the nodes present, or a third of the messages lost, still lead to the same
answer. Where only an eighth of the edges carry (both at once) the iteration does not settle, with the paper's steps no
more than with these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kinfolk.algorithms.gtvmin.optimality import CONDITIONS, conditions, relative
from kinfolk.algorithms.gtvmin.updates import Scales, Updates
from kinfolk.algorithms.parametric import squares
from kinfolk.engine.protocol import Arrays, Inbox, Reply, Sent, Turn
from kinfolk.objective.node_loss import LocalLosses
from kinfolk.typing import Floats

if TYPE_CHECKING:
    from kinfolk.algorithms.gtvmin.algorithm import State

RELAXATION = 1.6
BALANCE_EVERY = 10  # rounds
FAR_MISMATCH = 100.0  # times the least one: η has led astray
SMALLEST_ETA = 1e-100  # features so large that squares overflow
NODE_BLOCK = 8_192  # whose differences fit into a processor's cache
ROUNDING = 1e-26  # squares below this carry no information about balance


PROGRESS = Sent("how far it moved and has to go, every tenth round")
SENT = {  # to the coordinator
    "pull": Sent("weight of its edges, once", public=True),
    "curvature": Sent("curvature of the loss, once"),
    "missed": Sent("number of messages that did not come, every tenth round", public=True),
    **dict.fromkeys((*CONDITIONS, "moved_w", "moved_u", "mismatch"), PROGRESS),
}
UNASKED = {name: replace(sent, public=True) for name, sent in SENT.items()}  # without balancing: zeros, or nothing


class Balance(NamedTuple):
    """η and ρ, and what the coordinator has seen since it last changed them.

    A large η gives long primal and short dual steps. Every tenth round the coordinator receives how far primal and dual
    variables moved (in the metric of the method) and how well either optimality condition holds. Their mean log
    ratio over a window shows which side lags, and η is corrected by half of it. Windows grow with the rounds, so
    corrections become rare and the method settles. Where the coupling is no norm, the movements alone are a
    better guide, but they can run away: a residual ten times the best one seen brings back the η of that time, and so
    does a mismatch a hundred times the least. (The residual is relative to w, so w can grow without it.)
    The first message that did not come ends over-relaxation and balancing for good.
    """

    eta: float
    rho: float
    node_count: int
    imbalance: float = 0.0  # sum of log ratios in this window
    reports: int = 0  # in this window
    until: int = 0  # the round in which the window ends
    correction: float = 0.5  # share of the mean log ratio by which log η is corrected
    best: float = np.inf  # residual
    best_eta: float = 1.0
    least: float = np.inf  # mismatch

    @property
    def reply(self) -> Reply:
        """What all nodes receive."""
        return Reply(to_all={"eta": np.float64(self.eta), "rho": np.float64(self.rho)})

    def after(self, sums: Mapping[str, float], turn: Turn, is_norm: bool) -> Balance:
        """The balance after one more report."""
        if self.rho == 1.0 or sums["missed"] > 0 or len(turn.active) < self.node_count:
            return self._replace(rho=1.0)
        stationarity, complementarity = relative(sums)
        if min(stationarity, complementarity, sums["moved_w"], sums["moved_u"]) <= ROUNDING:
            return self
        moved = 0.5 * np.log(sums["moved_w"] / sums["moved_u"])
        lag = 0.5 * np.log(stationarity / complementarity) + 0.5 * moved if is_norm else moved
        residual = max(stationarity, complementarity)
        now = self._replace(imbalance=self.imbalance + float(lag), reports=self.reports + 1)
        mismatch = sums["mismatch"]
        if residual <= self.best and mismatch <= FAR_MISMATCH * self.least:
            now = now._replace(best=residual, best_eta=self.eta)
        now = now._replace(least=min(self.least, mismatch))
        return now if turn.round < self.until else now._corrected(residual, mismatch, turn.round, is_norm)

    def _corrected(self, residual: float, mismatch: float, round_: int, is_norm: bool) -> Balance:
        """Close the window: follow the mean lag, or go back to the best η if that has led astray."""
        window = self._replace(imbalance=0.0, reports=0, until=round_ + max(BALANCE_EVERY, round_ // 10))
        astray = (round_ >= 100 and residual > 10 * self.best) or mismatch > FAR_MISMATCH * self.least
        if astray and not is_norm:
            return window._replace(eta=self.best_eta, best=residual, least=mismatch, correction=0.7 * self.correction)
        step = np.clip(self.correction * self.imbalance / self.reports, -np.log(16), np.log(16))
        return window._replace(eta=self.eta * float(np.exp(step)))


Memory = Balance | None  # of the coordinator; None before the first report
UNBALANCED = Inbox({}, {"eta": 1.0, "rho": 1.0}, {})  # where no coordinator has replied


def kept(before: Balance | None) -> Balance | None:
    """What a changed problem takes over: an η that was balanced; None where there is none."""
    return Balance(before.eta, 0.0, 0) if before is not None and before.rho > 1.0 else None


def combined(memory: Balance | None, outbox: Arrays, turn: Turn, balanced: bool, is_norm: bool) -> Balance:
    """The balance after the first report of the nodes, from which η follows, or after a later one."""
    sums = {name: float(rows.sum()) for name, rows in outbox.items()}
    if memory is not None and "pull" not in sums:
        return memory.after(sums, turn, is_norm)
    if balanced and sums["pull"] * sums["curvature"] > 0:
        eta = max(sums["pull"] / sums["curvature"], SMALLEST_ETA) if memory is None else memory.eta
        return Balance(eta, RELAXATION, len(turn.active), until=turn.round)
    return Balance(1.0, 1.0, len(turn.active))


def first_report(losses: LocalLosses, scales: Scales, way: float, balanced: bool) -> dict[str, Floats]:
    """What sets the first η: the sums of s_e at the nodes, and how curved the losses are; not told if nobody asks.

    ``way`` is how far parameters have to go, as a part of the way from zero.
    """
    curvature = losses.trace / losses.width if balanced else np.zeros_like(scales.nodes)
    return {"pull": way * scales.nodes, "curvature": curvature}


def due(round_: int) -> bool:
    """Whether nodes report in a round."""
    return round_ % BALANCE_EVERY == 0


def report(updates: Updates, state: State, values: Floats, due: bool) -> tuple[Floats, dict[str, Floats]]:
    """The messages missed since the last report, and a report if it is due: how far either side moved and has to go."""
    missed = state.missed + updates.site.missed
    if not due:
        return missed, {}
    flows = updates.flows(state.u, values)
    return np.zeros_like(missed), {
        **conditions(updates, state, flows),
        "moved_w": 0.25 * _squared_moves(state) / updates.tau,  # of half the way from w to 2 w_new − w
        "moved_u": flows.moved,
        "mismatch": flows.mismatch,
        "missed": missed,
    }


def _squared_moves(state: State) -> Floats:
    """(nodes,) ‖w_bar − w‖², block by block."""
    out = np.empty(len(state.w))
    for first in range(0, len(out), NODE_BLOCK):
        nodes = slice(first, first + NODE_BLOCK)
        out[nodes] = squares(state.w_bar[nodes] - state.w[nodes])
    return out
