"""IFCA: K models, and every node takes the one that fits it best.

Ghosh, Chung, Yin, Ramchandran: An Efficient Framework for Clustered Federated Learning (2020), Algorithm 1.

The target is  min over w_1 .. w_K of  Σ_i min_k L_i(w_k),  with L_i = q_i F_i as in FedAvg; it is not convex, and where
a run ends depends on where it starts. In a round every node present receives w_1 .. w_K and

    k_i <- argmin_k L_i(w_k)                                                                                  (1)
    sends k_i and ∇F_i(w_{k_i}), or the model after local steps from w_{k_i};
    the coordinator averages for each k over the nodes that picked it, as FedAvg does                         (2)

A model that nobody picks stays where it is. Several starts run side by side; the one with the smallest sum of the
losses that nodes last sent wins.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

import numpy as np

from kinfolk.algorithms.averaging import ModelsOrGradients
from kinfolk.algorithms.parametric import relative_change
from kinfolk.checks import AtLeast, InputError
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
from kinfolk.objective.node_loss import NodeLoss
from kinfolk.typing import Floats, Ints

INITIAL = 3  # keys the draw of the first models


@dataclass(frozen=True)
class Uniform:
    """Start with entries drawn uniformly between ``low`` and ``high``."""

    low: float
    high: float

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...], loss: NodeLoss, feature_count: int) -> Floats:
        """(starts, models, parameters)."""
        return with_statistics(rng.uniform(self.low, self.high, shape), loss, feature_count)


@dataclass(frozen=True)
class OneOf:
    """Start with entries drawn from a few ``values``, all equally likely."""

    values: tuple[float, ...]

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...], loss: NodeLoss, feature_count: int) -> Floats:
        """(starts, models, parameters)."""
        drawn = rng.choice(np.asarray(self.values, dtype=np.float64), shape)
        return with_statistics(drawn, loss, feature_count)


@dataclass(frozen=True)
class Given:
    """Start from these models, one row each."""

    centres: tuple[tuple[float, ...], ...]

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...], loss: NodeLoss, feature_count: int) -> Floats:
        """(starts, models, parameters)."""
        centres = np.asarray(self.centres, dtype=np.float64)
        if centres.shape != shape[1:]:
            raise InputError(f"Expected centres of shape {shape[1:]} for IFCA to start from, got {centres.shape}.")
        return np.broadcast_to(centres, shape).copy()


@dataclass(frozen=True)
class Redrawn:
    """Start from parameters that a module draws for itself, anew for every model."""

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...], loss: NodeLoss, feature_count: int) -> Floats:
        """(starts, models, parameters)."""
        count = shape[0] * shape[1]
        return np.stack([loss.redrawn(rng, feature_count) for _ in range(count)]).reshape(shape)


def with_statistics(drawn: Floats, loss: NodeLoss, feature_count: int) -> Floats:
    """Models whose running statistics, if they have some, are not drawn but those of the start."""
    drawn[..., loss.trained(feature_count) :] = loss.start(feature_count)[loss.trained(feature_count) :]
    return drawn


class State(NamedTuple):
    """The model picked last, in the start that leads."""

    w: PerNode  # (nodes, parameters)


class Memory(NamedTuple):
    """What the coordinator keeps."""

    w: Floats  # (starts, models, parameters)
    step: float  # that is safe
    loss: Floats  # (nodes, starts) as each node last sent
    change: float  # relative change of the leading models in the last round

    @property
    def leader(self) -> int:
        """The start with the smallest total loss."""
        return int(self.loss.sum(axis=0).argmin())


@dataclass(frozen=True)
class IFCA(ModelsOrGradients[State, Memory]):
    """One model for each of ``model_count`` clusters, which the nodes find by picking the model that fits best.

    Everything else is set as in ``FedAvg``.

    Parameters
    ----------
    model_count : int
        K, which has to be known.
    initial : Uniform, OneOf, Given or Redrawn
        Where models start: ``Uniform(low, high)``, ``OneOf(values)``, ``Given(centres)`` or, for modules,
        ``Redrawn()``. What comes out depends on it, so there is no default.
    starts : int
        Number of starts; the one with the smallest total loss wins.

    >>> from kinfolk import Network, fit, graphs
    >>> x = [[1.0]]
    >>> network = Network(graphs.edgeless(3), [(x, [1.0]), (x, [1.2]), (x, [5.0])])
    >>> fit(network, IFCA(model_count=2, initial=Given(((0.0,), (9.0,))))).models.w.round(3).tolist()
    [[1.1], [1.1], [5.0]]
    """

    model_count: Annotated[int, AtLeast(1)] = field(kw_only=True)
    initial: Uniform | OneOf | Given | Redrawn = field(kw_only=True)
    starts: Annotated[int, AtLeast(1)] = 1

    def sends(self, problem: Problem) -> Sends:
        """The coordinator receives models or gradients, what a node picked, and its loss there."""
        picked = {
            "picked": Sent("which model it picked", (self.starts,), "int64"),
            "loss": Sent("loss", (self.starts,)),
        }
        return Sends(coordinator={**self.work_sent(problem, (self.starts,)), **picked})

    def init(self, site: Site, turn: Turn) -> tuple[State, Outbox]:
        """No model yet; the coordinator learns how curved the losses are."""
        return State(site.local_losses(self.loss).start), Outbox(coordinator=self.introduction(site))

    def step(self, site: Site, state: State, inbox: Inbox, turn: Turn) -> tuple[State, Outbox]:
        """Pick (1), and work on what was picked, in every start."""
        models = inbox.to_all["w"]
        picked, loss = self._pick(site, models)
        mine = models[np.arange(len(models)), picked]  # (nodes, starts, parameters)
        work = [self.work(site, turn, mine[:, s], inbox.to_all["step"]) for s in range(len(models))]
        sent = {"w": np.stack(work, axis=1), "picked": picked, "loss": loss, "share": self.share(site)}
        return State(mine[:, inbox.to_all["leader"]]), Outbox(coordinator=sent)

    def _pick(self, site: Site, models: Floats) -> tuple[Ints, Floats]:
        """(1): the model of every node and its loss there, (nodes, starts)."""
        losses = site.local_losses(self.loss)
        every = models.reshape(-1, models.shape[-1])
        values = [losses.value(np.broadcast_to(w, (site.node_count, len(w)))) for w in every]
        loss = np.stack(values, axis=1).reshape(site.node_count, *models.shape[:2])
        return loss.argmin(axis=2), loss.min(axis=2)

    def start(self, problem: Problem, turn: Turn, before: Memory | None = None) -> Memory:
        """K models for every start."""
        shape = (self.starts, self.model_count, self.width(problem))
        w = self.initial.draw(np.random.default_rng([INITIAL, turn.seed]), shape, self.loss, problem.feature_count)
        return Memory(w, 1.0, np.zeros((problem.graph.node_count, self.starts)), np.inf)

    def combine(self, memory: Memory, outbox: Arrays, turn: Turn) -> tuple[Memory, Reply]:
        """Average by model what its pickers sent (2), in every start."""
        if "curvature" in outbox:  # a step size that is safe whoever picks what
            everyone = np.zeros(len(turn.active), dtype=np.int64)
            memory = memory._replace(step=float(self.safe_steps(outbox["curvature"], everyone, 1)[0]))
        elif outbox["share"].sum() > 0:
            loss = memory.loss.copy()
            loss[turn.active] = outbox["loss"]
            memory = memory._replace(loss=loss)
            leader = memory.leader
            safe = np.full(self.model_count, memory.step)
            w = np.stack([
                self.combined(memory.w[s], outbox["w"][:, s], outbox["share"], outbox["picked"][:, s], turn, safe)
                for s in range(self.starts)
            ])  # fmt: skip
            memory = memory._replace(w=w, change=relative_change(w[leader], memory.w[leader]))
        answer = {"w": memory.w, "step": memory.step, "leader": memory.leader, "change": memory.change}
        return memory, Reply(to_all={name: np.asarray(value) for name, value in answer.items()})

    def replies(self, problem: Problem) -> Replies:
        """All models, a step size, the leading start, and how far its models moved."""
        w = Sent("all models", (self.starts, self.model_count, self.width(problem)))
        return Replies({"w": w, "step": NUMBER, "leader": WHOLE_NUMBER, "change": NUMBER})

    def models(self, site: Site, state: State, inbox: Inbox) -> Models:
        """The model that fits each node best, of those that the coordinator has now; the first one without data."""
        models = inbox.to_all["w"][int(inbox.to_all["leader"])]
        picked, _ = self._pick(site, models[None])
        return self.loss.models(models[picked[:, 0]])
