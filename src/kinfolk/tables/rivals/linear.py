"""Penalised regression: one model for all, with node dummies, or with slopes for every node as well."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression, PoissonRegressor, Ridge

from kinfolk.tables.rivals.rival import Rival, at_most, choose, fit_quietly, predictions
from kinfolk.tables.rows import Rows
from kinfolk.tables.target import Target
from kinfolk.typing import Floats

STRENGTHS = (0.1, 1.0, 10.0, 100.0, 1000.0)
MOST_SLOPES = 200_000
ITERATIONS = 1_000
KINDS = ("number", "classes", "count")
Design = Callable[[Rows, int], Any]  # rows, number of nodes -> (rows, columns)

# strength of ½ strength ‖w‖² beside a sum over rows, number of rows -> estimator
ESTIMATORS: Mapping[str, Callable[[float, int], Any]] = {
    "number": lambda strength, rows: Ridge(alpha=strength, tol=1e-6),
    "classes": lambda strength, rows: LogisticRegression(C=1 / strength, max_iter=ITERATIONS),
    "count": lambda strength, rows: PoissonRegressor(alpha=strength / rows, max_iter=ITERATIONS),
}


def features(rows: Rows, node_count: int) -> Floats:
    """The features alone."""
    return rows.X


def with_dummies(rows: Rows, node_count: int) -> Any:
    """The features and a column for every node (rows, features + nodes), sparse."""
    count = len(rows.y)
    dummies = sparse.csr_matrix((np.ones(count), rows.owner, np.arange(count + 1)), shape=(count, node_count))
    return sparse.hstack([sparse.csr_matrix(rows.X), dummies], format="csr")


def with_slopes(rows: Rows, node_count: int) -> Any:
    """As before, and the features once more for every node (rows, (features + 1)(nodes + 1) − 1), sparse."""
    count, width = rows.X.shape
    column = (rows.owner[:, None] * width + np.arange(width)).ravel()
    starts = np.arange(0, count * width + 1, max(width, 1))
    slopes = sparse.csr_matrix((rows.X.ravel(), column, starts), shape=(count, node_count * width))
    return sparse.hstack([with_dummies(rows, node_count), slopes], format="csr")


def fitted(design: Design, training: Rows, target: Target, node_count: int) -> Callable[[Rows], Floats]:
    """A regression whose strength is chosen by cross-validation, as a function from rows to predictions."""

    def with_strength(strength: float, known: Rows) -> Callable[[Rows], Floats]:
        model = ESTIMATORS[target.kind](strength, len(known.y))
        model = _fit(model, design(known, node_count), known.y, target)
        return lambda rows: predictions(model, design(rows, node_count), target)

    def with_each(known: Rows, rows: Rows) -> list[Floats]:
        return [with_strength(strength, known)(rows) for strength in STRENGTHS]

    return with_strength(choose(STRENGTHS, training, target, with_each), training)


def predict(design: Design, training: Rows, asked: Rows, target: Target, node_count: int) -> Floats:
    """Predictions of such a regression."""
    return fitted(design, training, target, node_count)(asked)


def _fit(model: Any, X: Any, y: Floats, target: Target) -> Any:
    """A model, fitted; where all rows have the same class, one that predicts it."""
    if target.kind == "classes" and len(np.unique(y)) < 2:
        model = DummyClassifier()
    return fit_quietly(model, X, y)


def _slope_count(training: Rows) -> int:
    return int(len(np.unique(training.owner)) * training.X.shape[1])


RIDGE = Rival("ridge", "one penalised regression for all", partial(predict, features), KINDS)
DUMMIES = Rival("dummies", "penalised regression with node dummies", partial(predict, with_dummies), KINDS)
INTERACTIONS = Rival(
    "interactions", "penalised regression with node dummies and slopes for every node", partial(predict, with_slopes),
    KINDS, (at_most(MOST_SLOPES, "slopes of nodes", _slope_count),),
)  # fmt: skip
