"""FedAvg: one model for all, or one for every known cluster, by averaging.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep Networks from
Decentralized Data (2017).

With L_i = q_i F_i, where F_i is the mean loss of a node and q_i = 1 (``reduction="mean"``) or m_i (``"sum"``), the
target is min_w Σ_i L_i(w). In a round every node present starts from the common w and

    takes local steps  w_i <- w_i − t ∇F_i(w_i),   the coordinator:  w <- Σ q_i w_i / Σ q_i                   (models)
    sends ∇F_i(w),                                 the coordinator:  w <- w − t Σ q_i ∇F_i(w) / Σ q_i      (gradients)

Sums run over those who sent something. With one local step and everybody present the two are the same, and converge to
the pooled model; with more local steps the average of models settles elsewhere when nodes differ. Where ``clusters``
are known, the same happens within each of them (FedAvgC of the GTV paper).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kinfolk.algorithms.averaging import ModelsOrGradients, check_clusters, cluster_count, cluster_of
from kinfolk.algorithms.local_work import Addition
from kinfolk.algorithms.parametric import relative_change
from kinfolk.engine.protocol import NUMBER, Arrays, Inbox, Models, Outbox, PerNode, Replies, Reply, Sends, Sent, Turn
from kinfolk.network.problem import Problem
from kinfolk.network.site import Site
from kinfolk.typing import Floats


class State(NamedTuple):
    """The parameters of the own cluster, as each node last received them."""

    w: PerNode  # (nodes, parameters)


class Memory(NamedTuple):
    """What the coordinator keeps."""

    w: Floats  # (clusters, parameters)
    step: Floats  # (clusters,) that is safe
    change: float  # relative change of w in the last round


@dataclass(frozen=True)
class FedAvg(ModelsOrGradients[State, Memory]):
    """One model for all, or for every cluster, by averaging models or gradients.

    ``loss``, ``local_steps``, ``local_epochs``, ``batch``, ``step_size`` and ``optimiser`` set the local work, as in
    ``LocalWork``. Without a step size linear models take 1 / (largest curvature of any F_i), which is safe whoever
    takes part.

    Parameters
    ----------
    average : {"models", "gradients"}
        What nodes send.
    clusters : tuple of int, optional
        The cluster of every node, numbered from 0, in node order; None puts all into one.

    The residual is the relative change of the models in a round.

    >>> from kinfolk import Network, fit, graphs
    >>> network = Network(graphs.edgeless(2), [([[1.0]], [1.0]), ([[1.0]], [3.0])])
    >>> fit(network, FedAvg(average="gradients")).models.w.round(4).tolist()
    [[2.0], [2.0]]
    >>> fit(network, FedAvg(clusters=(0, 1))).models.w.round(4).tolist()
    [[1.0], [3.0]]
    """

    clusters: tuple[int, ...] | None = None

    def check(self, problem: Problem) -> None:
        """One cluster for every node."""
        super().check(problem)
        check_clusters(self.clusters, problem)

    def sends(self, problem: Problem) -> Sends:
        """The coordinator receives models or gradients."""
        return Sends(coordinator=self.work_sent(problem))

    def init(self, site: Site, turn: Turn) -> tuple[State, Outbox]:
        """Start from the initial parameters of the loss."""
        return self.resume(site, State(site.local_losses(self.loss).start), turn)

    def resume(self, site: Site, state: State, turn: Turn) -> tuple[State, Outbox]:
        """Go on from a state; the coordinator learns how curved the losses are."""
        return state, Outbox(coordinator=self.introduction(site))

    def step(self, site: Site, state: State, inbox: Inbox, turn: Turn) -> tuple[State, Outbox]:
        """Take the common model, and send the gradient there or the model after some steps of one's own."""
        cluster = cluster_of(self.clusters, site.nodes)
        w = inbox.to_all["w"][cluster]
        work = self.work(site, turn, w, inbox.to_all["step"][cluster, None], self.addition(site, w))
        return State(w), Outbox(coordinator={"w": work, "share": self.share(site)})

    def addition(self, site: Site, common: Floats) -> Addition | None:
        """What is added to the gradient in local steps: nothing."""
        return None

    def start(self, problem: Problem, turn: Turn, before: Memory | None = None) -> Memory:
        """All models where the loss starts; a changed problem goes on from the same models."""
        count = cluster_count(self.clusters)
        w = np.tile(self.loss.start(problem.feature_count), (count, 1))
        if before is not None and before.w.shape == w.shape:
            w = before.w
        return Memory(w, np.ones(count), np.inf)

    def combine(self, memory: Memory, outbox: Arrays, turn: Turn) -> tuple[Memory, Reply]:
        """Average what was sent, cluster by cluster; nodes without data do not count."""
        cluster = cluster_of(self.clusters, turn.active)
        if "curvature" in outbox:
            memory = memory._replace(step=self.safe_steps(outbox["curvature"], cluster, len(memory.w)))
        elif outbox["share"].sum() > 0:
            w = self.combined(memory.w, outbox["w"], outbox["share"], cluster, turn, memory.step)
            memory = memory._replace(w=w, change=relative_change(w, memory.w))
        return memory, Reply(to_all={name: np.asarray(value) for name, value in memory._asdict().items()})

    def replies(self, problem: Problem) -> Replies:
        """Models and step sizes of all clusters, and how far the models moved."""
        count = cluster_count(self.clusters)
        w = Sent("models of all clusters", (count, self.width(problem)))
        return Replies({"w": w, "step": Sent("step sizes of all clusters", (count,)), "change": NUMBER})

    def models(self, site: Site, state: State, inbox: Inbox) -> Models:
        """The model of its cluster for every node, as the coordinator has it now."""
        models: Models = self.loss.models(inbox.to_all["w"][cluster_of(self.clusters, site.nodes)])
        return models
