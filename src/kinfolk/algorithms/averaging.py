"""What FedAvg and IFCA share: a node's work on a model it is given, and averages of what nodes say, by cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from kinfolk.algorithms.parametric import ParametricAlgorithm, check_step_size
from kinfolk.checks import AtLeast, InputError, Positive, listing
from kinfolk.engine.protocol import Coordinated, M, S, Sent
from kinfolk.network.problem import Problem
from kinfolk.network.site import Site
from kinfolk.objective.losses import Squared
from kinfolk.objective.node_loss import NodeLoss
from kinfolk.typing import Floats, Ints


@dataclass(frozen=True)
class Averaging(ParametricAlgorithm[S], Coordinated[S, M]):
    """Models learnt by averaging, over nodes, models after some local steps, or gradients.

    With L_i = q_i F_i, F_i the mean loss of a node, q_i = 1 (``reduction="mean"``) or m_i (``"sum"``), and 0 without
    data, a node that is given w

        says w_i after ``local_steps`` steps  w_i <- w_i − t ∇F_i(w_i);  then  w <- Σ q_i w_i / Σ q_i          (models)
        says ∇F_i(w);  then  w <- w − t Σ q_i ∇F_i(w) / Σ q_i                                               (gradients)
    """

    loss: NodeLoss = Squared()
    average: Literal["models", "gradients"] = "models"
    local_steps: Annotated[int, AtLeast(1)] = 1
    step_size: Annotated[float, Positive()] | None = None

    def check(self, problem: Problem) -> None:
        """A step size where the curvature of the loss has no bound."""
        super().check(problem)
        check_step_size(self, self.step_size)

    def share(self, site: Site) -> Floats:
        """q_i: how much a node counts."""
        return site.data.sizes.astype(float) if self.loss.reduction == "sum" else (site.data.sizes > 0).astype(float)

    def introduction(self, site: Site) -> dict[str, Floats]:
        """What the coordinator must know before round 1: how curved F_i is."""
        bend = site.local_losses(self.loss).smoothness if self.step_size is None else np.zeros(site.node_count)
        return {"curvature": bend / np.maximum(self.share(site), 1.0)}

    def work_sent(self, problem: Problem, copies: tuple[int, ...] = ()) -> dict[str, Sent]:
        """What leaves a node: its work on a model, or several, and what the coordinator needs to average it."""
        work = "parameters after local steps" if self.average == "models" else "gradient"
        counted = "number of rows" if self.loss.reduction == "sum" else "whether it has rows"
        return {
            "w": Sent(work, (*copies, self.width(problem))),
            "share": Sent(counted),
            "curvature": Sent("largest curvature of the loss, once"),
        }

    def local_work(self, site: Site, w: Floats, step: Floats | float) -> Floats:
        """What every node says when it is given w (nodes, parameters); a step may differ from node to node."""
        losses = site.local_losses(self.loss)
        mean_loss = 1.0 / np.maximum(self.share(site), 1.0)[:, None]
        if self.average == "gradients":
            return losses.gradient(w) * mean_loss
        said = w.copy()
        for _ in range(self.local_steps):
            said -= step * losses.gradient(said) * mean_loss
        return said

    def averaged(self, w: Floats, step: Floats, said: Floats, share: Floats, cluster: Ints) -> Floats:
        """The model of every cluster after its members have spoken; as before where no member has data."""
        count = cluster_sums(share, cluster, len(w))
        mean = cluster_sums(share[:, None] * said, cluster, len(w)) / np.where(count > 0, count, 1.0)[:, None]
        new = mean if self.average == "models" else w - step[:, None] * mean
        return np.where(count[:, None] > 0, new, w)

    def steps(self, curvature: Floats, cluster: Ints, count: int) -> Floats:
        """t of every cluster: 1 / (largest curvature of a member), safe whoever takes part."""
        if self.step_size is not None:
            return np.full(count, self.step_size)
        steepest = np.zeros(count)
        np.maximum.at(steepest, cluster, curvature)
        return 1.0 / np.where(steepest > 0, steepest, 1.0)


def cluster_sums(rows: Floats, cluster: Ints, count: int) -> Floats:
    """Sums of rows by cluster.

    >>> cluster_sums(np.array([1.0, 2.0, 4.0]), np.array([0, 1, 0]), 2)
    array([5., 2.])
    """
    out = np.zeros((count, *rows.shape[1:]))
    np.add.at(out, cluster, rows)
    return out


def check_clusters(clusters: tuple[int, ...], problem: Problem) -> None:
    """Refuse known clusters that do not give a number ≥ 0 to every node, or that have no data."""
    if len(clusters) != problem.graph.node_count:
        raise InputError(f"Expected the cluster of each of {problem.graph.node_count} nodes, got {len(clusters)}.")
    if not all(isinstance(k, int | np.integer) and k >= 0 for k in clusters):
        raise InputError(f"Expected clusters as whole numbers from 0, got {listing(clusters)}.")
    empty = np.flatnonzero(np.bincount(clusters, problem.has_data) == 0)
    if len(empty):
        raise InputError(f"Expected data in every cluster, got none in cluster {empty[0]}: merge it or leave it out.")
