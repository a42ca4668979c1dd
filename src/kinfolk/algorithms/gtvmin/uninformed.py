"""Nodes that nothing can teach: they have no data, and no connection to a node that has."""

from __future__ import annotations

from typing import Literal

import numpy as np

from kinfolk.network.problem import Problem
from kinfolk.network.site import Site
from kinfolk.objective.node_loss import NodeLoss, ParametricModels
from kinfolk.typing import Bools

Uninformed = Literal["none", "pooled"]


def reached(site: Site, lam: float) -> Bools:
    """(nodes,) whether data reach a node; without coupling only its own do."""
    return site.informed if lam > 0 else np.asarray(site.data.sizes > 0)


def remarks(problem: Problem, lam: float, uninformed: Uninformed) -> list[str]:
    """What a user should know about such nodes."""
    if lam == 0:
        return ["λ is 0: every node learns alone, and nodes without data learn nothing."]
    if problem.informed.all():
        return []
    return ["Such nodes get " + ("no model (NaN)." if uninformed == "none" else "the pooled model.")]


def completed(site: Site, loss: NodeLoss, models: ParametricModels, uninformed: Uninformed) -> ParametricModels:
    """The models, with the pooled one at nodes without any, if that was asked for."""
    if uninformed == "none" or not np.isnan(models.w).any():
        return models
    everyone = site.local_losses(loss).pool(np.zeros(site.node_count, dtype=np.int64), 1)
    return loss.models(np.where(np.isnan(models.w), everyone.minimise(), models.w))
