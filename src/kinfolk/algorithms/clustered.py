"""One model per cluster, for clusters known beforehand: the pooled model, and the oracle (eq (9) of the GTV paper).

    w_c <- argmin_w Σ_{i in c} L_i(w)

by Newton's method: nodes say the gradient and the Hessian of L_i at their cluster's parameters, the coordinator
adds them up cluster by cluster and answers the next parameters,

    w_c <- w_c − t (Σ ∇²L_i(w_c))⁺ Σ ∇L_i(w_c)                                                       (1)

with t = 1, halved while the loss of the cluster has not fallen. One round solves the squared loss exactly (the
minimiser of least norm). Sums leave a node, not rows; the Hessian of a node with fewer rows than features still
shows the span of its rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from kinfolk.algorithms.averaging import check_clusters, cluster_sums
from kinfolk.algorithms.linear import LinearProgram, ratio
from kinfolk.losses import Loss, Squared
from kinfolk.network import Network
from kinfolk.program import Arrays, Inbox, Outbox, PerNode, Reply, Turn
from kinfolk.site import Site
from kinfolk.typing import Floats, Ints


class State(NamedTuple):
    """Parameters of the own cluster."""

    w: PerNode  # (nodes, parameters)


class Memory(NamedTuple):
    """What the coordinator knows of every cluster."""

    w: Floats  # (clusters, parameters) best parameters so far
    loss: Floats  # (clusters,) and their loss
    step: Floats  # (clusters, parameters) Newton step from there
    length: Floats  # (clusters,) the part of it that is being tried
    resting: Floats  # (clusters,) gradient at zero


@dataclass(frozen=True)
class Pooled(LinearProgram):
    """One model for all.

    >>> from kinfolk import Network, fit, graphs
    >>> network = Network(graphs.edgeless(2), [([[1.0]], [1.0]), ([[1.0]], [3.0])])
    >>> fit(network, Pooled()).models.w.round(6).tolist()
    [[2.0], [2.0]]
    """

    loss: Loss = Squared()

    def _cluster(self, nodes: Ints) -> Ints:
        return np.zeros(len(nodes), dtype=np.int64)

    def _cluster_count(self) -> int:
        return 1

    def init(self, site: Site, turn: Turn) -> tuple[State, Outbox]:
        """Start at zero."""
        w = np.zeros((site.node_count, site.bound(self.loss).width))
        return State(w), self._say(site, w)

    def step(self, site: Site, state: State, inbox: Inbox, turn: Turn) -> tuple[State, Outbox]:
        """Take the cluster's new parameters and say how the local loss looks there."""
        w = inbox.to_all["w"][self._cluster(site.nodes)]
        return State(w), self._say(site, w)

    def _say(self, site: Site, w: Floats) -> Outbox:
        bound = site.bound(self.loss)
        return Outbox(coordinator={"loss": bound.value(w), "gradient": bound.gradient(w), "hessian": bound.hessian(w)})

    def start(self, turn: Turn, before: Memory | None = None) -> Memory | None:
        """Nothing is known before the first words; what the last step was worth is not known for another loss."""
        return before and before._replace(loss=np.full_like(before.loss, np.inf))

    def combine(self, memory: Any, outbox: Arrays, turn: Turn) -> tuple[Memory, Reply]:
        """Add up by cluster, and take a Newton step (1), or a shorter one if the last did not help."""
        cluster, count = self._cluster(turn.active), self._cluster_count()
        loss, gradient, hessian = (
            cluster_sums(outbox[name], cluster, count) for name in ("loss", "gradient", "hessian")
        )
        step = -(np.linalg.pinv(hessian, hermitian=True) @ gradient[:, :, None])[:, :, 0]
        size = np.linalg.norm(gradient, axis=1)
        if memory is None:
            memory = Memory(np.zeros_like(step), loss, step, np.ones(count), size)
        else:
            memory = _advance(memory, loss, step)
        w = memory.w + memory.length[:, None] * memory.step
        residual = np.array([ratio(*pair) for pair in zip(size, memory.resting, strict=True)])
        return memory, Reply(to_all={"w": w, "residual": residual})

    def measure(self, site: Site, state: State, inbox: Inbox) -> Arrays:
        """Loss, and the relative gradient of the own cluster as the coordinator last said it."""
        residual = inbox.to_all["residual"][self._cluster(site.nodes)]
        return {"loss": site.bound(self.loss).value(state.w), "residual": residual**2}

    def summary(self, totals: Mapping[str, float]) -> Mapping[str, float]:
        """Objective, and the relative gradients of the clusters put together."""
        return {"objective": totals["loss"], "residual": float(np.sqrt(totals["residual"]))}


@dataclass(frozen=True)
class Clustered(Pooled):
    """One model per known cluster. ``clusters`` gives the cluster of every node, numbered from 0, in node order.

    >>> from kinfolk import Network, fit, graphs
    >>> x = [[1.0]]
    >>> network = Network(graphs.edgeless(3), [(x, [1.0]), (x, [3.0]), (x, [5.0])])
    >>> fit(network, Clustered(clusters=(0, 0, 1))).models.w.round(6).tolist()
    [[2.0], [2.0], [5.0]]
    """

    clusters: tuple[int, ...] = field(kw_only=True)

    def check(self, network: Network) -> None:
        """One cluster for every node."""
        super().check(network)
        check_clusters(self.clusters, network)

    def _cluster(self, nodes: Ints) -> Ints:
        return np.asarray(self.clusters, dtype=np.int64)[nodes]

    def _cluster_count(self) -> int:
        return int(max(self.clusters)) + 1


def _advance(memory: Memory, loss: Floats, step: Floats) -> Memory:
    """Keep what was tried where it lowered the loss, else halve the step."""
    better = loss <= memory.loss + 1e-12 * np.abs(memory.loss)
    tried = memory.w + memory.length[:, None] * memory.step
    return Memory(
        np.where(better[:, None], tried, memory.w),
        np.where(better, loss, memory.loss),
        np.where(better[:, None], step, memory.step),
        np.where(better, 1.0, memory.length / 2),
        memory.resting,
    )
