"""A linear member that has learnt."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from kinfolk.network.graph import Graph
from kinfolk.tables.members.member import TrainingSet
from kinfolk.tables.members.scores import LinearScores
from kinfolk.tables.rows import Rows
from kinfolk.typing import Floats


@dataclass(frozen=True, eq=False)
class LinearFit:
    """A linear member that has learnt."""

    scores: LinearScores

    def predict(self, rows: Rows) -> Floats:
        """Predict rows."""
        return self.scores.predict(rows.X, rows.owner)

    def predict_new_nodes(self, rows: Rows) -> Floats | None:
        """Predict rows of nodes that were never seen."""
        model = self.scores.elsewhere
        return None if model is None else model.predict(rows.X, rows.owner)


def suited_to_new_nodes(scores: LinearScores, training: TrainingSet) -> LinearScores:
    """Nodes that were never seen get the common model, or leave it to those nearby, whichever suits known nodes."""
    assert scores.common is not None
    common = LinearScores(scores.common[:, None], training.target)
    near = LinearScores(nearby(training.graph, scores.w), training.target)
    rows, target = training.rows, training.target
    errors = [float(target.loss(each.predict(rows.X, rows.owner), rows.y).sum()) for each in (common, near)]
    return scores if errors[0] <= errors[1] else replace(scores, common=None)


def nearby(graph: Graph, w: Floats) -> Floats:
    """For every node the mean of the models of its neighbours, itself apart; its own without neighbours."""
    adjacency = graph.to_sparse() > 0
    count = np.asarray(adjacency.sum(axis=1)).ravel()[:, None]
    return np.stack([np.where(count > 0, (adjacency @ each) / np.maximum(count, 1), each) for each in w])
