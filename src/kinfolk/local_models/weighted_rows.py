"""What nodes learn from in a round of FedRelax: their own rows, and rows that their neighbours have labelled.

A model for FedRelax is anything that follows scikit-learn, or a ``LocalModel``: one that fits all its nodes at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from kinfolk.network.problem import Problem
from kinfolk.network.site import Site
from kinfolk.typing import Bools, Floats, Ints

if TYPE_CHECKING:
    from kinfolk.local_models.discrepancies import Discrepancy


class WeightedRows(NamedTuple):
    """A weighted data set of one node."""

    X: Floats  # (rows, features)
    target: Floats  # (rows,), or (rows, classes): the probability of each
    weight: Floats  # (rows,)


@dataclass(frozen=True, eq=False)
class TrainingSets:
    """What some nodes of a site learn from: own rows count 1 each, rows labelled by neighbour j count rate_i A_ij."""

    site: Site
    nodes: Ints  # (learners,) local numbers of those who learn
    target: Floats  # (own rows,) or (own rows, classes)
    predicted: Floats  # (own + foreign, points) or (own + foreign, points, classes); NaN: has predicted nothing
    rate: Floats  # (own,)
    before: Sequence[Any]  # (own,) the models fitted last, None where there is none
    seed: Callable[[int], int]  # of an own node, for models that draw
    recalled: Sequence[WeightedRows | None]  # (own,) rows that keep up what the node knew, or None
    discrepancy: Discrepancy  # how neighbours' labels become rows

    @property
    def public(self) -> Floats:
        """The public points: (points, features), or (own + foreign, points, features)."""
        assert self.site.public is not None
        return self.site.public

    @property
    def merging(self) -> bool:
        """Whether the labels of a point may be merged, if that makes no difference to the model."""
        return self.public.ndim == 2 and self.discrepancy.merges

    @cached_property
    def has_predicted(self) -> Bools:
        """(own + foreign,) who has labelled its points."""
        received: Bools = np.isfinite(self.predicted.sum(axis=tuple(range(1, self.predicted.ndim))))
        return received

    @cached_property
    def received_weight(self) -> Floats:
        """(own,) Σ_j A_ij over the neighbours that have labelled points."""
        return self.neighbour_sum(self.has_predicted.astype(np.float64)[:, None])[:, 0]

    @cached_property
    def mean_label(self) -> Floats:
        """(own, points) or (own, points, classes): the mean of the neighbours' labels, weighted with A_ij."""
        total = self.neighbour_sum(np.where(np.isnan(self.predicted), 0.0, self.predicted))
        weight = self.received_weight.reshape(-1, *[1] * (total.ndim - 1))
        return np.divide(total, weight, out=np.zeros_like(total), where=weight > 0)

    def neighbour_sum(self, values: Floats) -> Floats:
        """Σ_j A_ij of values by local number, per own node."""
        own = self.site.node_count
        return self.site.neighbour_sum(values[:own], values[own:])

    def teachers(self, node: int) -> tuple[Ints, Floats]:
        """The neighbours of an own node that have labelled points, and A_ij."""
        adjacency = self.site.adjacency
        part = slice(adjacency.indptr[node], adjacency.indptr[node + 1])
        neighbours, weights = adjacency.indices[part], adjacency.data[part]
        known = self.has_predicted[neighbours]
        return neighbours[known], weights[known]

    def rows(self, node: int, merged: bool) -> WeightedRows:
        """The weighted rows of one own node; ``merged``: the labels of a common point become one row."""
        data = self.site.data
        rows = slice(data.starts[node], data.starts[node + 1])
        own = WeightedRows(data.X[rows], self.target[rows], np.ones(rows.stop - rows.start))
        recalled = self.recalled[node]
        parts = [own, *([] if recalled is None else [recalled]), *self._taught(node, merged)]
        kept = [part for part in parts if len(part.weight)]
        return WeightedRows(*(np.concatenate([part[k] for part in kept]) for k in range(3))) if kept else own

    def _taught(self, node: int, merged: bool) -> list[WeightedRows]:
        """The rows that neighbours have labelled."""
        rate, points = self.rate[node], self.predicted.shape[1]
        if rate == 0 or self.received_weight[node] == 0:
            return []
        if merged:
            weight = np.full(points, rate * self.received_weight[node])
            return [self.discrepancy.rows(WeightedRows(self.public, self.mean_label[node], weight))]
        neighbours, weights = self.teachers(node)
        sets = self.public if self.public.ndim == 3 else [self.public] * len(self.predicted)
        return [
            self.discrepancy.rows(WeightedRows(sets[j], self.predicted[j], np.full(points, rate * weight)))
            for j, weight in zip(neighbours, weights, strict=True)
        ]


@runtime_checkable
class LocalModel(Protocol):
    """A model that fits all its nodes at once. An estimator of scikit-learn needs none of this."""

    @property
    def classifies(self) -> bool:
        """Whether it predicts probabilities of classes."""

    @property
    def merges(self) -> bool:
        """Whether merging the labels of a common point into one weighted row gives the same fit."""

    def check(self) -> None:
        """Refuse what cannot learn from weighted rows."""

    def learns(self, discrepancy: Discrepancy) -> bool:
        """Whether this model can be trained to minimise ``discrepancy``."""

    def remarks(self, problem: Problem) -> list[str]:
        """What a user should know about how it was trained."""

    def fit_nodes(self, sets: TrainingSets) -> Sequence[Any]:
        """A fitted model for each of ``sets.nodes``; None where there is nothing to learn from."""

    def predict_nodes(
        self, fitted: Sequence[Any], X: Sequence[Floats], classes: Floats | None
    ) -> Sequence[Floats] | Floats:
        """The predictions of each fitted model: (rows,), or (rows, classes) in the order of ``classes``."""


def as_local_model(model: Any) -> LocalModel:
    """A model as FedRelax uses it: a ``LocalModel`` as it is, anything else as an estimator."""
    if isinstance(model, LocalModel):
        return model
    from kinfolk.local_models.estimators import Estimator  # slow, and other models need no scikit-learn

    return Estimator(model)


@runtime_checkable
class FitsInRows(Protocol):
    """A ``LocalModel`` whose fits are rows of numbers: where all nodes have it, one array holds them, not objects."""

    def no_fits(self, count: int, feature_count: int) -> Floats:
        """The rows (count, numbers) of nodes that have learnt nothing: NaN."""

    def fits(self, rows: Floats) -> Sequence[Any]:
        """The fitted model of each row; None where it is NaN."""

    def rows(self, fits: Any) -> Floats:
        """The rows of what ``fit_nodes`` or ``fits`` returned."""
