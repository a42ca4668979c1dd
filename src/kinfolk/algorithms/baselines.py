"""The baselines: every node alone, and one model for all or for each cluster that is known beforehand.

Alone, no messages; a node without data has nothing to learn from and gets no model:

    w_i <- argmin_w L_i(w)                                                                           (1)

Pooled, which is the oracle where the true clusters c are known (eq (9) of the GTV paper):

    w_c <- argmin_w Σ_{i in c} L_i(w)

by Newton's method: nodes send the gradient and the Hessian of L_i at their cluster's parameters, the coordinator
adds them up cluster by cluster and replies with the next parameters,

    w_c <- w_c − t (Σ ∇²L_i(w_c))⁺ Σ ∇L_i(w_c)                                                       (2)

with t = 1, halved while the loss of the cluster has not fallen. No node is left out: where nodes are away, the
coordinator waits until each with data has answered about the present parameters. One round solves the squared loss
exactly (the minimiser of least norm). Sums leave a node, not rows; the Hessian of a node with fewer rows than features
still shows the span of its rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from kinfolk.algorithms.averaging import check_clusters, cluster_count, cluster_of, cluster_sums
from kinfolk.algorithms.parametric import ParametricAlgorithm, gradient_measure, gradient_summary, ratio
from kinfolk.engine.protocol import (
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
from kinfolk.objective.losses import Loss, Squared
from kinfolk.objective.node_loss import NodeLoss
from kinfolk.objective.symmetric import solve_symmetric
from kinfolk.typing import Bools, Floats


class State(NamedTuple):
    """Parameters: its own, or those of its cluster."""

    w: PerNode  # (nodes, parameters); NaN without a model


@dataclass(frozen=True)
class Local(ParametricAlgorithm[State]):
    """Every node learns from its own data only; of several minimisers, the squared loss takes the smallest.

    Parameters
    ----------
    loss : NodeLoss
        What is minimised at every node.

    >>> from kinfolk import Network, fit, graphs
    >>> network = Network(graphs.chain(2), [([[1.0], [1.0]], [1.0, 3.0]), None])
    >>> fit(network, Local()).models.w.round(6).tolist()
    [[2.0], [nan]]
    """

    loss: NodeLoss = Squared()

    @property
    def carries_statistics(self) -> bool:
        """A node renews its own."""
        return True

    def sends(self, problem: Problem) -> Sends:
        """Nothing leaves a node."""
        return Sends()

    def init(self, site: Site, turn: Turn) -> tuple[State, Outbox]:
        """w_i <- argmin L_i (1)."""
        losses = site.local_losses(self.loss)
        return State(np.where(losses.has_data[:, None], losses.minimise(), np.nan)), Outbox()

    def step(self, site: Site, state: State, inbox: Inbox, turn: Turn) -> tuple[State, Outbox]:
        """Nothing more to do."""
        return state, Outbox()

    def measure(self, site: Site, state: State, inbox: Inbox) -> Arrays:
        """Loss and gradient, at nodes with data."""
        losses = site.local_losses(self.loss)
        return gradient_measure(site, self.loss, np.where(losses.has_data[:, None], state.w, losses.start))

    def summary(self, totals: Mapping[str, float]) -> Mapping[str, float]:
        """Objective and relative gradient."""
        return gradient_summary(totals)


class Memory(NamedTuple):
    """What the coordinator knows of every cluster."""

    w: Floats  # (clusters, parameters) parameters that are being tried
    answered: Bools  # (nodes,) who has answered about them, or has no data
    bare: Bools  # (nodes,) who has no data
    sums: dict[str, Floats]  # the answers, added up by cluster
    best: Floats  # (clusters, parameters) best parameters so far
    best_loss: Floats  # (clusters,)
    step: Floats  # (clusters, parameters) Newton step from there
    length: Floats  # (clusters,) the part of it that is being tried
    residual: Floats  # (clusters,) gradient at the best parameters, against that at zero
    resting: Floats  # (clusters,) gradient at zero


@dataclass(frozen=True)
class Pooled(ParametricAlgorithm[State], Coordinated[State, Memory]):
    """One model for all, or one for each known cluster.

    Parameters
    ----------
    loss : Loss
        What is minimised, added up over the nodes of a cluster; it has to be smooth.
    clusters : tuple of int, optional
        The cluster of every node, numbered from 0, in node order; one model for all without it.

    >>> from kinfolk import Network, fit, graphs
    >>> network = Network(graphs.edgeless(2), [([[1.0]], [1.0]), ([[1.0]], [3.0])])
    >>> fit(network, Pooled()).models.w.round(6).tolist()
    [[2.0], [2.0]]
    >>> fit(network, Pooled(clusters=(0, 1))).models.w.round(6).tolist()
    [[1.0], [3.0]]
    """

    loss: Loss = Squared()
    clusters: tuple[int, ...] | None = None

    needs_slope: ClassVar[bool] = True

    def check(self, problem: Problem) -> None:
        """One cluster for every node."""
        super().check(problem)
        check_clusters(self.clusters, problem)

    def sends(self, problem: Problem) -> Sends:
        """The coordinator receives sums over a node's rows, no rows."""
        width = self.width(problem)
        return Sends(
            coordinator={
                "loss": Sent("loss"),
                "gradient": Sent("gradient", (width,)),
                "hessian": Sent("Hessian", (width, width)),
                "zero": Sent("gradient at zero, once", (width,)),
            }
        )

    def init(self, site: Site, turn: Turn) -> tuple[State, Outbox]:
        """Start at zero."""
        return self.resume(site, State(np.zeros((site.node_count, site.local_losses(self.loss).width))), turn)

    def resume(self, site: Site, state: State, turn: Turn) -> tuple[State, Outbox]:
        """Send how the local loss looks at the present parameters, and at zero."""
        zero = site.local_losses(self.loss).gradient_at_zero
        return state, Outbox(coordinator={**self._sent(site, state.w), "zero": zero})

    def step(self, site: Site, state: State, inbox: Inbox, turn: Turn) -> tuple[State, Outbox]:
        """Take the cluster's new parameters and send how the local loss looks there."""
        w = inbox.to_all["w"][cluster_of(self.clusters, site.nodes)]
        return State(w), Outbox(coordinator=self._sent(site, w))

    def _sent(self, site: Site, w: Floats) -> dict[str, Floats]:
        losses = site.local_losses(self.loss)
        return {"loss": losses.value(w), "gradient": losses.gradient(w), "hessian": losses.hessian(w)}

    def start(self, problem: Problem, turn: Turn, before: Memory | None = None) -> Memory:
        """Every cluster starts at zero; a changed problem goes on from the same parameters."""
        count, width = cluster_count(self.clusters), self.width(problem)
        w = np.zeros((count, width)) if before is None or len(before.w) != count else before.w
        never = np.full(count, np.inf)
        sums = {
            "loss": np.zeros(count),
            "gradient": np.zeros((count, width)),
            "hessian": np.zeros((count, width, width)),
        }
        bare = ~problem.has_data
        return Memory(w, bare, bare, sums, w, never, np.zeros_like(w), np.ones(count), never, np.zeros(count))

    def combine(self, memory: Memory, outbox: Arrays, turn: Turn) -> tuple[Memory, Reply]:
        """Add up by cluster; once every node has answered about the present parameters, take a Newton step (2)."""
        cluster, count = cluster_of(self.clusters, turn.active), cluster_count(self.clusters)
        if "zero" in outbox:
            memory = memory._replace(resting=np.linalg.norm(cluster_sums(outbox["zero"], cluster, count), axis=1))
        fresh = ~memory.answered[turn.active]
        sums = {
            name: memory.sums[name] + cluster_sums(outbox[name][fresh], cluster[fresh], count) for name in memory.sums
        }
        answered = memory.answered.copy()
        answered[turn.active] = True
        memory = memory._replace(answered=answered, sums=sums)
        if answered.all():
            memory = _advance(memory)
        return memory, Reply(to_all={"w": memory.w, "best": memory.best, "residual": memory.residual})

    def replies(self, problem: Problem) -> Replies:
        """The parameters that are tried, the best ones, and their residuals."""
        w = Sent("parameters of all clusters", (cluster_count(self.clusters), self.width(problem)))
        return Replies({"w": w, "best": w, "residual": Sent("residual of all clusters", w.shape[:1])})

    def models(self, site: Site, state: State, inbox: Inbox) -> Models:
        """The best parameters of its cluster for every node, as the coordinator knows them now."""
        models: Models = self.loss.models(inbox.to_all["best"][cluster_of(self.clusters, site.nodes)])
        return models

    def measure(self, site: Site, state: State, inbox: Inbox) -> Arrays:
        """Loss, and the relative gradient of the own cluster as the coordinator last sent it."""
        residual = inbox.to_all["residual"][cluster_of(self.clusters, site.nodes)]
        return {"loss": site.local_losses(self.loss).value(state.w), "residual": residual**2}

    def summary(self, totals: Mapping[str, float]) -> Mapping[str, float]:
        """Objective, and the relative gradients of the clusters put together."""
        return {"objective": totals["loss"], "residual": float(np.sqrt(totals["residual"]))}


def _advance(memory: Memory) -> Memory:
    """Keep what was tried where it lowered the loss and take a Newton step from there, else halve the last step."""
    loss, gradient, hessian = (memory.sums[name] for name in ("loss", "gradient", "hessian"))
    better = loss <= memory.best_loss + 1e-12 * np.abs(loss)
    size = np.linalg.norm(gradient, axis=1)
    residual = np.array([ratio(*pair) for pair in zip(size, memory.resting, strict=True)])
    best = np.where(better[:, None], memory.w, memory.best)
    step = np.where(better[:, None], -solve_symmetric(hessian, gradient), memory.step)
    length = np.where(better, 1.0, memory.length / 2)
    return memory._replace(
        w=best + length[:, None] * step,
        answered=memory.bare,
        sums={name: np.zeros_like(part) for name, part in memory.sums.items()},
        best=best,
        best_loss=np.where(better, loss, memory.best_loss),
        step=step,
        length=length,
        residual=np.where(better, residual, memory.residual),
    )
