"""Generalised total variation (GTV) minimisation: tailored models that vary little over the edges.

SarcheshmehPour, Tian, Zhang, Jung: Clustered Federated Learning via Generalized Total Variation Minimization
(2023), eq (16), Algorithm 1.

    min_w  Σ_i L_i(w_i) + λ Σ_edges A_ij φ(w_i − w_j)                 each edge once; L_i as the loss states it

    u_e <- prox of σ_e (λ A_e φ)* at  u_e + σ_e D(2 w_new − w)_e                                              (1)
    w_i <- prox of τ_i L_i       at  w_i − τ_i (Dᵀu)_i                                                        (2)

Neighbours receive 2 w_new − w, and nothing else. The paper takes τ_i = 1 / degree_i, σ_e = 1/2. The default takes

    σ_e = s_e / (2η),  τ_i = η / Σ_e s_e over the edges of i,  s_e = √A_e                                    (3)

with an η that the coordinator finds, and moves ρ = 1.6 times as far as (1) and (2) (see ``balance``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np

from kinfolk.algorithms.gtvmin import balance, certificate, direct, optimality, uninformed, warm_start
from kinfolk.algorithms.gtvmin.hooks import OptionalHooks
from kinfolk.algorithms.gtvmin.updates import FastUpdates, Inexact, Scales, Updates
from kinfolk.checks import AtLeast
from kinfolk.engine.protocol import Arrays, Inbox, Outbox, PerEdge, PerNode, Reply, Turn
from kinfolk.network.network import Network
from kinfolk.network.problem import Problem
from kinfolk.network.site import Site
from kinfolk.objective.couplings import Coupling, EuclideanNorm
from kinfolk.objective.losses import Squared
from kinfolk.objective.node_loss import NodeLoss, ParametricModels
from kinfolk.typing import Floats


class State(NamedTuple):
    """Primal and dual variables."""

    w: PerNode  # (nodes, parameters)
    w_bar: PerNode  # (nodes, parameters) 2 w_new − w, with w_new what (2) gave
    u: PerEdge  # (edges, parameters) flow from the smaller to the larger end
    missed: PerNode  # (nodes,) messages that did not come since the last report to the coordinator

    @property
    def w_new(self) -> Floats:
        """What (2) gave."""
        return np.asarray(0.5 * (self.w + self.w_bar))


@dataclass(frozen=True)
class GTVMin(OptionalHooks):
    """Tailored models by GTV minimisation: linear ones, certified, or modules of torch (``TorchLoss``).

    Parameters
    ----------
    loss : NodeLoss
        L_i, with its scaling and ridge. With a ``TorchLoss``, (2) is a few steps of an optimiser.
    coupling : Coupling
        φ. ``EuclideanNorm`` finds clusters of equal models, ``SquaredNorm`` makes neighbours similar.
    lam : float
        λ ≥ 0. Zero leaves every node alone; above some value every component has one model.
    steps : {"balanced", "published", "direct"}
        ``"balanced"`` needs no tuning; ``"published"`` takes the paper's step sizes; ``"direct"`` solves one
        linear system instead (squared loss with ``SquaredNorm``, all nodes in one site).
    inexact : Inexact or None
        None for exact local updates (2); ``Inexact(...)`` where a node can only take gradient steps.
    uninformed : {"none", "pooled"}
        What a node gets that has no data and no connection to any: no model (NaN), or the pooled one.

    >>> from kinfolk import Network, fit, graphs
    >>> network = Network(graphs.chain(4), [([[1.0]], [0.0]), ([[1.0]], [0.2]), None, ([[1.0]], [9.0])])
    >>> fit(network, GTVMin(lam=0.5)).models.w.round(3).ravel()[:2]
    array([0.225, 0.225])
    """

    loss: NodeLoss = Squared()
    coupling: Coupling = EuclideanNorm()
    lam: Annotated[float, AtLeast(0)] = 0.1
    steps: Literal["balanced", "published", "direct"] = "balanced"
    inexact: Inexact | None = None
    uninformed: Literal["none", "pooled"] = "none"

    def check(self, problem: Problem) -> None:
        """Refuse losses and couplings that cannot work."""
        super().check(problem)
        self.coupling.check(self.width(problem))
        if self.inexact is not None:
            self.inexact.check(self.loss)
        if self.steps == "direct":
            direct.check(self.loss, self.coupling)

    def init(self, site: Site, turn: Turn) -> tuple[State, Outbox]:
        """Start from the initial parameters of the loss, or from a common model (see ``warm_start``)."""
        w, way = warm_start.first(site, site.local_losses(self.loss), self.steps == "balanced")
        u = np.zeros((len(site.weights), w.shape[1]))
        return self._begun(site, State(w, w.copy(), u, np.zeros(site.node_count)), way)

    def resume(self, site: Site, state: State, turn: Turn) -> tuple[State, Outbox]:
        """Go on from a state."""
        return self._begun(site, state, 1.0)

    def _begun(self, site: Site, state: State, way: float) -> tuple[State, Outbox]:
        """Nodes that nothing is coupled to go to their own minimum, and stay there."""
        losses = site.local_losses(self.loss)
        state = warm_start.alone_at_minimum(site, losses, state, self.lam)
        scales = Scales.of(site, self.steps == "published")
        first = balance.first_report(losses, scales, way, self.steps == "balanced")
        return state, Outbox({"w_bar": state.w_bar}, first)

    def step(self, site: Site, state: State, inbox: Inbox, turn: Turn) -> tuple[State, Outbox]:
        """(1) and (2), relaxed; every tenth round also a report, from which the coordinator balances them."""
        w, w_bar, u, _ = state
        lines, values = self.lines(site, inbox.to_all), site.values(inbox.sent["w_bar"], inbox["w_bar"])
        missed, report = balance.report(lines, state, values, self.reads(turn.round))
        u, flow = lines.dual(u, values)  # (1) u <- prox of σ(λAφ)* at u + σ D(2 w_new − w), flow = Dᵀu
        w, w_bar = lines.primal(w, w_bar, flow, turn.round)  # (2) w_new <- prox of τL at w − τ flow
        return State(w, w_bar, u, missed), Outbox({"w_bar": w_bar}, report)

    def lines(self, site: Site, reply: Arrays) -> Updates:
        """(1) and (2) with the coordinator's η and ρ: compiled where that is possible, or the direct solution."""
        kind = direct.DirectUpdates if self.steps == "direct" else FastUpdates
        sizes = Scales.of(site, self.steps == "published"), float(reply["eta"]), float(reply["rho"])
        return kind(site, self.loss, self.coupling, self.lam, *sizes, self.inexact)

    def start(self, problem: Problem, turn: Turn, before: balance.Memory = None) -> balance.Memory:
        """The coordinator knows nothing before the first report, except an η that suited a similar problem."""
        return balance.kept(before) if self.steps == "balanced" else None

    def combine(self, memory: balance.Memory, outbox: Arrays, turn: Turn) -> tuple[balance.Memory, Reply]:
        """The coordinator chooses η and ρ."""
        now = balance.combined(memory, outbox, turn, self.steps == "balanced", self.coupling.is_norm)
        return now, now.reply

    def measure(self, site: Site, state: State, inbox: Inbox) -> Arrays:
        """Both terms of the objective, and how well the optimality conditions hold."""
        lines, values = self.lines(site, inbox.to_all), site.values(inbox.sent["w_bar"], inbox["w_bar"])
        return optimality.measures(lines, state, values)

    def summary(self, totals: Mapping[str, float]) -> Mapping[str, float]:
        """Objective, residual and, where losses are convex, an estimate of the gap."""
        return optimality.summary(totals, self.loss.convex)

    def models(self, site: Site, state: State, inbox: Inbox) -> ParametricModels:
        """The parameters 2 w_new − w; NaN where nothing could be learnt."""
        reached = uninformed.reached(site, self.lam)
        return self.loss.models(np.where(reached[:, None], state.w_bar, np.nan))

    def certificate_of(self, network: Network, w: Any, u: Any) -> certificate.Certificate | None:
        """How good any parameters (nodes, parameters) are, proved with the help of flows (edges, parameters)."""
        w, u = certificate.parameters_and_flows(network, w, u)
        return self.certify(network.site, State(w, w, u, np.zeros(len(w))), balance.UNBALANCED)
