"""SCAFFOLD: one model for all, with local steps that are corrected for how nodes differ.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: Stochastic Controlled Averaging for Federated Learning (2020),
Algorithm 1 with option II.

Node i keeps a control variate c_i, the coordinator w and c. In a round every node present starts from w_i = w and

    w_i <- w_i − t_k (∇F_i(w_i) − c_i + c)                         K local steps                                   (1)
    c_i⁺ <- c_i − c + (w − w_i) / Σ_k t_k,                         sends w_i − w and c_i⁺ − c_i                    (2)
    the coordinator:  w <- w + η Σ q_i (w_i − w) / Σ q_i           over those who sent                             (3)
                      c <- c + Σ q_i (c_i⁺ − c_i) / Q              Q: the sum of q_i over all nodes                (4)

with L_i = q_i F_i as in FedAvg; the paper has q_i = 1. With a constant step it reaches the pooled model however few
take part, where FedAvg with several local steps settles elsewhere: at the pooled model c_i = ∇F_i and c = 0, and nobody
moves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np

from kinfolk.algorithms.averaging import Averaging
from kinfolk.algorithms.parametric import length, ratio
from kinfolk.checks import Positive
from kinfolk.engine.protocol import (
    NUMBER,
    WHOLE_NUMBER,
    Arrays,
    Inbox,
    Models,
    Outbox,
    PerNode,
    Replies,
    Reply,
    Sends,
    Sent,
    Turn,
)
from kinfolk.network.problem import Problem
from kinfolk.network.site import Site
from kinfolk.typing import Floats

SAFE = 0.25  # of 1 / curvature: corrections are as old as the node's last visit


class State(NamedTuple):
    """The common model as each node last received it, and its control variate."""

    w: PerNode  # (nodes, parameters)
    control: PerNode  # (nodes, parameters) c_i


class Memory(NamedTuple):
    """What the coordinator keeps."""

    w: Floats  # (parameters,)
    control: Floats  # (parameters,) c
    total: float  # Q
    step: float  # that is safe
    change: float  # relative change of w in the last round
    trained: int  # how many of the parameters η moves; running statistics, which follow them, are averaged


@dataclass(frozen=True)
class SCAFFOLD(Averaging[State, Memory]):
    """One model for all by corrected local steps; exact with a constant step, however few take part.

    ``loss``, ``local_steps``, ``local_epochs``, ``batch``, ``step_size`` and ``optimiser`` set the local work, as in
    ``LocalWork``. (2) reads the mean gradient off the way that was made, which only plain descent allows: another
    optimiser is refused. Without a step size linear models take a quarter of 1 / (largest curvature of any F_i), over
    the number of local steps.

    Parameters
    ----------
    server_step : float
        η.

    >>> from kinfolk import Network, fit, graphs
    >>> network = Network(graphs.edgeless(2), [([[1.0]], [1.0]), ([[2.0]], [3.0])])
    >>> fit(network, SCAFFOLD(local_steps=5)).models.w.round(4).tolist()
    [[1.4], [1.4]]
    """

    server_step: Annotated[float, Positive()] = 1.0

    def check(self, problem: Problem) -> None:
        """Plain descent."""
        super().check(problem)
        self.refuse_optimiser("which reads the mean gradient off the way that was made")

    def sends(self, problem: Problem) -> Sends:
        """The coordinator receives how far a node went, and how its control variate changed."""
        moved, control = Sent("change of parameters by local steps", (self.width(problem),)), "change of mean gradient"
        sent = {**self.work_sent(problem), "moved": moved, "control": Sent(control, moved.shape)}
        return Sends(coordinator={name: sent[name] for name in ("moved", "control", "share", "curvature")})

    def init(self, site: Site, turn: Turn) -> tuple[State, Outbox]:
        """Start from the initial parameters of the loss."""
        start = site.local_losses(self.loss).start
        return self.resume(site, State(start, start), turn)

    def resume(self, site: Site, state: State, turn: Turn) -> tuple[State, Outbox]:
        """Go on from a model without a correction, as losses may have changed; the coordinator learns of them."""
        state = State(state.w, np.zeros_like(state.w))
        return state, Outbox(coordinator={**self.introduction(site), "share": self.share(site)})

    def introduction(self, site: Site) -> dict[str, Floats]:
        """How curved F_i is, times the number of local steps."""
        return {"curvature": self.curvature(site) * self.plan(site.local_losses(self.loss)).steps}

    def step(self, site: Site, state: State, inbox: Inbox, turn: Turn) -> tuple[State, Outbox]:
        """(1) and (2)."""
        losses, safe = site.local_losses(self.loss), float(inbox.to_all["step"])
        common, control = (np.tile(inbox.to_all[name], (site.node_count, 1)) for name in ("w", "control"))
        correction = control - state.control
        w = self.worked(site, turn, common, safe, lambda _: correction)  # (1)
        way = self.way(losses, turn, safe)[:, None]
        found = (common - w) / np.where(way > 0, way, 1.0) - correction
        counts = losses.has_data[:, None] & (np.arange(w.shape[1]) < losses.trained)
        new = np.where(counts, found, 0.0)  # (2)
        sent = {"moved": w - common, "control": new - state.control, "share": self.share(site)}
        return State(common, new), Outbox(coordinator=sent)

    def start(self, problem: Problem, turn: Turn, before: Memory | None = None) -> Memory:
        """Where the loss starts; a changed problem goes on from the same model. No correction yet."""
        w = self.loss.start(problem.feature_count) if before is None else before.w
        return Memory(w, np.zeros_like(w), 0.0, 1.0, np.inf, self.loss.trained(problem.feature_count))

    def combine(self, memory: Memory, outbox: Arrays, turn: Turn) -> tuple[Memory, Reply]:
        """(3) and (4)."""
        share = outbox["share"]
        if "curvature" in outbox:
            everyone = np.zeros(len(share), dtype=np.int64)
            safe = SAFE * float(self.safe_steps(outbox["curvature"], everyone, 1)[0])
            memory = memory._replace(total=float(share.sum()), step=safe)
        elif share.sum() > 0:
            moved = (share[:, None] * outbox["moved"]).sum(axis=0) / share.sum()
            moved[: memory.trained] *= self.server_step  # (3)
            control = memory.control + (share[:, None] * outbox["control"]).sum(axis=0) / memory.total  # (4)
            w = memory.w + moved
            change = ratio(length(moved), length(w))
            memory = memory._replace(w=w, control=control, change=change)
        return memory, Reply(to_all={name: np.asarray(value) for name, value in memory._asdict().items()})

    def replies(self, problem: Problem) -> Replies:
        """The common model and mean gradient, and numbers of the steps."""
        w = Sent("common model", (self.width(problem),))
        numbers = {"total": NUMBER, "step": NUMBER, "change": NUMBER, "trained": WHOLE_NUMBER}
        return Replies({"w": w, "control": Sent("common mean gradient", w.shape), **numbers})

    def models(self, site: Site, state: State, inbox: Inbox) -> Models:
        """The common model, as the coordinator has it now."""
        models: Models = self.loss.models(np.tile(inbox.to_all["w"], (site.node_count, 1)))
        return models
