"""What algorithms share whose coordinator averages: how much a node counts, step sizes, and averages by cluster."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from kinfolk import kernels
from kinfolk.algorithms.local_work import Addition, LocalWork
from kinfolk.checks import InputError, listing
from kinfolk.engine.protocol import Arrays, Coordinated, Inbox, M, S, Sent, Turn
from kinfolk.network.problem import Problem
from kinfolk.network.site import Site
from kinfolk.typing import Floats, Ints


@dataclass(frozen=True)
class Averaging(LocalWork[S], Coordinated[S, M]):
    """Models learnt by averaging, over nodes, models after local work.

    With L_i = q_i F_i, F_i the mean loss of a node, q_i = 1 (``reduction="mean"``) or m_i (``"sum"``), and 0 without
    data, a node that is given w sends w_i after its local work, and  w <- Σ q_i w_i / Σ q_i.
    """

    def share(self, site: Site) -> Floats:
        """q_i: how much a node counts."""
        return site.local_losses(self.loss).share

    def introduction(self, site: Site) -> dict[str, Floats]:
        """What the coordinator must know before round 1: how curved F_i is."""
        return {"curvature": self.curvature(site)}

    def work_sent(self, problem: Problem, copies: tuple[int, ...] = ()) -> dict[str, Sent]:
        """What leaves a node: its work on a model, or several, and what the coordinator needs to average it."""
        return {
            "w": Sent("parameters after local steps", (*copies, self.width(problem)), noisy=True),
            "share": Sent("number of rows" if self.loss.reduction == "sum" else "whether it has rows", public=True),
            "curvature": Sent("largest curvature of the loss, once", public=not self.needs_curvature),
        }

    def averaged(self, w: Floats, sent: Floats, share: Floats, cluster: Ints) -> Floats:
        """The mean by cluster of what its members sent; as before, w, where no member has data."""
        count = cluster_sums(share, cluster, len(w))
        mean = cluster_sums(share[:, None] * sent, cluster, len(w)) / np.where(count > 0, count, 1.0)[:, None]
        return np.where(count[:, None] > 0, mean, w)

    def safe_steps(self, curvature: Floats, cluster: Ints, count: int) -> Floats:
        """t of every cluster where none is given: 1 / (largest curvature of a member), safe whoever takes part."""
        steepest = np.zeros(count)
        np.maximum.at(steepest, cluster, curvature)
        return 1.0 / np.where(steepest > 0, steepest, 1.0)

    def measure(self, site: Site, state: Any, inbox: Inbox) -> Arrays:
        """Loss of the model last received, and how far the coordinator has moved it since."""
        one = np.ones(site.node_count)
        return {
            "loss": site.local_losses(self.loss).value(state.w),
            "change": one * inbox.to_all["change"],
            "nodes": one,
        }

    def summary(self, totals: Mapping[str, float]) -> Mapping[str, float]:
        """Objective Σ L_i, and the relative change of the coordinator's models."""
        return {"objective": totals["loss"], "residual": totals["change"] / totals["nodes"]}


@dataclass(frozen=True)
class ModelsOrGradients(Averaging[S, M]):
    """Averaging of models after local work, or of gradients, with which the coordinator makes the step.

    sends w_i after local work;  then  w <- Σ q_i w_i / Σ q_i                                             (models)
    sends ∇F_i(w);  then  w <- w − t Σ q_i ∇F_i(w) / Σ q_i                                             (gradients)
    """

    average: Literal["models", "gradients"] = "models"

    def check(self, problem: Problem) -> None:
        """Gradients are averaged as they are."""
        super().check(problem)
        if self.average == "models":
            return
        name = type(self).__name__
        self.refuse_optimiser("whose coordinator makes the step")
        if self.local_steps != 1 or self.local_epochs is not None:
            raise InputError(
                f"Expected one gradient in a round of {name}(average='gradients'), got local_steps={self.local_steps} "
                f"and local_epochs={self.local_epochs}: leave them out."
            )

    @property
    def carries_statistics(self) -> bool:
        """Models carry them, gradients do not."""
        return self.average == "models"

    def work(self, site: Site, turn: Turn, w: Floats, safe: Floats | float, add: Addition | None = None) -> Floats:
        """What every node sends when it is given w (nodes, parameters)."""
        if self.average == "models":
            return self.worked(site, turn, w, safe, add)
        step = next(self.steps(site, turn, safe))
        gradient = self.slopes(site, step, w).gradient
        self.check_finite(site, gradient, turn)
        return gradient

    def combined(self, w: Floats, sent: Floats, share: Floats, cluster: Ints, turn: Turn, safe: Floats) -> Floats:
        """The models of the clusters after their members have sent."""
        if self.average == "models":
            return self.averaged(w, sent, share, cluster)
        step = np.broadcast_to(self.rate(turn, 0, safe), safe.shape)
        return w - step[:, None] * self.averaged(np.zeros_like(w), sent, share, cluster)

    def work_sent(self, problem: Problem, copies: tuple[int, ...] = ()) -> dict[str, Sent]:
        """What leaves a node: models or gradients."""
        sent = super().work_sent(problem, copies)
        return sent if self.average == "models" else {**sent, "w": Sent("gradient", sent["w"].shape, noisy=True)}


def cluster_sums(rows: Floats, cluster: Ints, count: int) -> Floats:
    """Sums of rows by cluster.

    >>> cluster_sums(np.array([1.0, 2.0, 4.0]), np.array([0, 1, 0]), 2)
    array([5., 2.])
    """
    flat = np.ascontiguousarray(rows, dtype=np.float64).reshape(len(rows), math.prod(rows.shape[1:]))
    sums = kernels.group_sums(flat, np.asarray(cluster, dtype=np.int64), count)
    return np.asarray(sums.reshape(count, *rows.shape[1:]))


def cluster_of(clusters: tuple[int, ...] | None, nodes: Ints) -> Ints:
    """The cluster of some nodes; all are in one where none are known."""
    return np.zeros(len(nodes), dtype=np.int64) if clusters is None else np.asarray(clusters, dtype=np.int64)[nodes]


def cluster_count(clusters: tuple[int, ...] | None) -> int:
    """The number of known clusters."""
    return 1 if clusters is None else int(max(clusters)) + 1


def check_clusters(clusters: tuple[int, ...] | None, problem: Problem) -> None:
    """Refuse known clusters that do not give a number ≥ 0 to every node, or that have no data."""
    if clusters is None:
        return
    if len(clusters) != problem.graph.node_count:
        raise InputError(f"Expected the cluster of each of {problem.graph.node_count} nodes, got {len(clusters)}.")
    if not all(isinstance(k, int | np.integer) and k >= 0 for k in clusters):
        raise InputError(f"Expected clusters as whole numbers from 0, got {listing(clusters)}.")
    empty = np.flatnonzero(np.bincount(clusters, problem.has_data) == 0)
    if len(empty):
        raise InputError(f"Expected data in every cluster, got none in cluster {empty[0]}: merge it or leave it out.")
