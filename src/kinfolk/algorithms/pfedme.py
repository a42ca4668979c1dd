"""pFedMe: a model of one's own for every node, held near a common one.

Dinh, Tran, Nguyen: Personalized Federated Learning with Moreau Envelopes (2020), Algorithm 1.

    min_w  Σ_i F_i(w),   F_i(w) = min_θ L_i(θ) + (λ / 2) ‖θ − w‖²        over nodes with data, L_i as the loss states it

In a round every node present starts from the common w_i = w, and R times

    θ_i <- argmin_θ L_i(θ) + (λ / 2) ‖θ − w_i‖²,     or near it where the loss has no exact prox               (1)
    w_i <- w_i − t λ (w_i − θ_i)                     a gradient step for F_i                                   (2)

    the coordinator:  w <- (1 − β) w + β · mean of w_i, over those with data that sent one                     (3)

A node keeps θ_i. For convex L_i, F_i is λ-smooth, so t = 1/λ is safe: then (2) reads w_i <- θ_i. With R = 1 and all
present (3) settles where Σ F_i is smallest, which is GTV minimisation with φ = ½‖·‖² and the same λ on a star whose
centre has no data; with more local rounds it settles elsewhere when nodes differ. The paper draws a new mini-batch for
every (1); here a node takes all its samples, and where (1) is a few steps, they start from its last θ_i.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import numpy as np

from kinfolk.algorithms.parametric import ParametricAlgorithm, relative_change, squares
from kinfolk.checks import AtLeast, Positive
from kinfolk.engine.protocol import (
    NUMBER,
    SMALLER_STEPS,
    Arrays,
    Coordinated,
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
from kinfolk.objective.losses import Squared
from kinfolk.objective.node_loss import NodeLoss
from kinfolk.typing import Floats


class State(NamedTuple):
    """A node's own model, and the common one as last received."""

    w: PerNode  # (nodes, parameters) θ_i
    common: PerNode  # (nodes, parameters)
    took_part: PerNode  # (nodes,) whether there is a θ_i yet


class Memory(NamedTuple):
    """What the coordinator keeps."""

    w: Floats  # (parameters,)
    change: float  # relative change of w in the last round


@dataclass(frozen=True)
class PFedMe(ParametricAlgorithm[State], Coordinated[State, Memory]):
    """Tailored models near a common one; nodes without data get the common one.

    Parameters
    ----------
    loss : NodeLoss
        L_i. Linear models have an exact prox (1), modules of torch take the steps that ``TorchLoss`` states.
    lam : float
        λ. A large one holds all models together.
    local_rounds : int
        R, the number of local rounds.
    step_size : float, optional
        T; None takes 1 / λ.
    mixing : float
        β. Above 1 it goes further than the mean.

    The residual is the relative change of the common model in a round.

    >>> from kinfolk import Network, fit, graphs
    >>> network = Network(graphs.edgeless(3), [([[1.0]], [1.0]), ([[1.0]], [3.0]), None])
    >>> fit(network, PFedMe(lam=2.0)).models.w.round(4).tolist()
    [[1.5], [2.5], [2.0]]
    """

    loss: NodeLoss = Squared()
    lam: Annotated[float, Positive()] = 1.0
    local_rounds: Annotated[int, AtLeast(1)] = 1
    step_size: Annotated[float, Positive()] | None = None
    mixing: Annotated[float, Positive()] = 1.0

    if_diverged: ClassVar[str] = SMALLER_STEPS

    def sends(self, problem: Problem) -> Sends:
        """The coordinator receives w_i."""
        w = Sent("parameters after local rounds", (self.width(problem),), noisy=True)
        return Sends(coordinator={"w": w, "share": Sent("whether it has rows", public=True)})

    def init(self, site: Site, turn: Turn) -> tuple[State, Outbox]:
        """Start from the initial parameters of the loss."""
        start = site.local_losses(self.loss).start
        return self.resume(site, State(start, start.copy(), np.zeros(site.node_count, dtype=bool)), turn)

    def resume(self, site: Site, state: State, turn: Turn) -> tuple[State, Outbox]:
        """Go on from a state."""
        return state, Outbox(coordinator={"share": site.local_losses(self.loss).has_data.astype(np.float64)})

    def step(self, site: Site, state: State, inbox: Inbox, turn: Turn) -> tuple[State, Outbox]:
        """(1) and (2), R times."""
        losses = site.local_losses(self.loss)
        common = np.tile(inbox.to_all["w"], (site.node_count, 1))
        pull = 1.0 if self.step_size is None else self.step_size * self.lam
        w, theta, tau = common.copy(), state.w, np.full(site.node_count, 1.0 / self.lam)
        for _ in range(self.local_rounds):
            theta = losses.prox(w, tau, theta)  # (1)
            w -= pull * (w - theta)  # (2)
        present = np.ones(site.node_count, dtype=bool)
        return State(theta, common, present), Outbox(coordinator={"w": w, "share": losses.has_data.astype(np.float64)})

    def start(self, problem: Problem, turn: Turn, before: Memory | None = None) -> Memory:
        """The common model where the loss starts; a changed problem goes on from the same one."""
        return Memory(self.loss.start(problem.feature_count) if before is None else before.w, np.inf)

    def combine(self, memory: Memory, outbox: Arrays, turn: Turn) -> tuple[Memory, Reply]:
        """Mix the models received into the common one (3); nodes without data do not count."""
        if "w" in outbox and outbox["share"].sum() > 0:
            mean = (outbox["share"][:, None] * outbox["w"]).sum(axis=0) / outbox["share"].sum()
            w = (1.0 - self.mixing) * memory.w + self.mixing * mean  # (3)
            memory = Memory(w, relative_change(w, memory.w))
        return memory, Reply(to_all={"w": memory.w, "change": np.asarray(memory.change)})

    def replies(self, problem: Problem) -> Replies:
        """The common model, and how far it moved."""
        return Replies({"w": Sent("common model", (self.width(problem),)), "change": NUMBER})

    def models(self, site: Site, state: State, inbox: Inbox) -> Models:
        """θ_i; the common model at nodes without data, or that have not taken part yet."""
        theta: Floats = state.w
        common: Floats = inbox.to_all["w"]
        models: Models = self.loss.models(np.where((state.took_part & (site.data.sizes > 0))[:, None], theta, common))
        return models

    def measure(self, site: Site, state: State, inbox: Inbox) -> Arrays:
        """L_i(θ_i), the distance to the common model last received, and how far that has moved since."""
        one = np.ones(site.node_count)
        return {
            "loss": site.local_losses(self.loss).value(state.w),
            "distance": squares(state.w - state.common),
            "change": one * inbox.to_all["change"],
            "nodes": one,
        }

    def summary(self, totals: Mapping[str, float]) -> Mapping[str, float]:
        """Objective Σ L_i(θ_i) + (λ/2) ‖θ_i − w‖², and the relative change of the common model."""
        return {
            "objective": totals["loss"] + 0.5 * self.lam * totals["distance"],
            "residual": totals["change"] / totals["nodes"],
        }
