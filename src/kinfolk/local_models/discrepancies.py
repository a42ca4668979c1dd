"""Discrepancies δ: how far predictions on public points are from those of a neighbour, and how that is learnt.

    δ(h_i, h_j) = 1/m' Σ_x D(h_j(x), h_i(x))

A node learns from D by fitting its model to weighted rows: the points of a neighbour with the labels that it gave them.
So D is minimised exactly if, up to a constant, D(label, predicted) is the loss of the model summed over these rows. For
squared error and numbers that is the point itself; for classes, a model that takes probabilities as targets is given
them, and any other one row per class, weighted with its probability: Σ_c label_c L(c, predicted), which is

    −Σ_c label_c log predicted_c                            where L is the cross-entropy,
    Σ_c (label_c − predicted_c)² + 1 − Σ_c label_c²         where L is the squared error of probabilities.

A discrepancy of your own is a frozen dataclass that measures how far two predictions are apart, and, if labels
are not to be learnt as they are, how they become rows:

>>> @dataclass(frozen=True)
... class Votes(Discrepancy):
...     "The cross-entropy with a neighbour's most probable class, however sure it is."
...     def value(self, label, predicted):
...         return CrossEntropy().value(self._vote(label), predicted)
...     def rows(self, labelled):
...         return labelled._replace(target=self._vote(labelled.target))
...     def _vote(self, label):
...         return (label == label.max(axis=-1, keepdims=True)).astype(float)
>>> Votes().value(np.array([[0.6, 0.4]]), np.array([[0.5, 0.5]])).round(3)
array([0.693])
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kinfolk.local_models.weighted_rows import WeightedRows
from kinfolk.typing import Floats

SMALLEST_PROBABILITY = 1e-12  # whose logarithm is taken; fits to labels have their own safeguards


class Discrepancy(ABC):
    """D, and the weighted rows through which it is learnt."""

    classifies: ClassVar[bool | None] = None  # whether probabilities are compared, or numbers; None: either
    merges: ClassVar[bool] = False  # whether D, averaged over labels, is D of the mean label up to a constant
    learners: ClassVar[str] = (
        "models that are fitted to weighted rows"  # the models that can minimise it, for a sentence
    )

    @abstractmethod
    def value(self, label: Floats, predicted: Floats) -> Floats:
        """D of a neighbour's labels, (..., points) or (..., points, classes), and what is predicted: (..., points)."""

    def loss(self, target: Floats, predicted: Floats) -> Floats:
        """What a node's own rows cost, (rows,): by default as if a neighbour had labelled them."""
        return self.value(target, predicted)

    def rows(self, labelled: WeightedRows) -> WeightedRows:
        """The weighted rows to learn from, of points with a neighbour's labels: by default these."""
        return labelled


@dataclass(frozen=True)
class SquaredError(Discrepancy):
    """(label − predicted)², for numbers."""

    classifies: ClassVar[bool | None] = False
    merges: ClassVar[bool] = True

    def value(self, label: Floats, predicted: Floats) -> Floats:
        """(label − predicted)²."""
        return (label - predicted) ** 2


@dataclass(frozen=True)
class CrossEntropy(Discrepancy):
    """−Σ_c label_c log predicted_c, for classes. A classifier that minimises another loss learns from the same rows."""

    classifies: ClassVar[bool | None] = True
    merges: ClassVar[bool] = True

    def value(self, label: Floats, predicted: Floats) -> Floats:
        """−Σ_c label_c log predicted_c."""
        out: Floats = -(label * np.log(np.maximum(predicted, SMALLEST_PROBABILITY))).sum(axis=-1)
        return out


@dataclass(frozen=True)
class SquaredProbabilities(Discrepancy):
    """Σ_c (label_c − predicted_c)², for classes and models that minimise it.

    Trees that split by the Gini impurity do, regressors as ``AsClassifier(Ridge())``, and modules of torch with
    ``loss="squared probabilities"``.
    """

    classifies: ClassVar[bool | None] = True
    merges: ClassVar[bool] = True
    learners: ClassVar[str] = (
        "a tree with criterion='gini', AsClassifier(regressor) or TorchModel(loss='squared probabilities')"
    )

    def value(self, label: Floats, predicted: Floats) -> Floats:
        """Σ_c (label_c − predicted_c)²."""
        out: Floats = ((label - predicted) ** 2).sum(axis=-1)
        return out


@dataclass(frozen=True)
class SymmetricCrossEntropy(Discrepancy):
    """−½ Σ_c (label_c log predicted_c + predicted_c log label_c), the form of 2023, for modules of torch.

    The second term is no loss of a labelled row. It becomes a row whose target is the logarithm of the label, which
    ``TorchModel(loss="cross-entropy")`` understands: no entry of it is positive.
    """

    classifies: ClassVar[bool | None] = True
    learners: ClassVar[str] = "TorchModel(loss='cross-entropy'), which can learn its second term,"

    def value(self, label: Floats, predicted: Floats) -> Floats:
        """−½ Σ_c (label_c log predicted_c + predicted_c log label_c)."""
        return (CrossEntropy().value(label, predicted) + CrossEntropy().value(predicted, label)) / 2

    def loss(self, target: Floats, predicted: Floats) -> Floats:
        """−Σ_c target_c log predicted_c."""
        return CrossEntropy().value(target, predicted)

    def rows(self, labelled: WeightedRows) -> WeightedRows:
        """Every point twice at half its weight: with its label, and with the logarithm of it."""
        X, label, weight = labelled
        exchanged = np.log(np.maximum(label, SMALLEST_PROBABILITY))
        return WeightedRows(np.concatenate([X, X]), np.concatenate([label, exchanged]), np.tile(weight / 2, 2))
