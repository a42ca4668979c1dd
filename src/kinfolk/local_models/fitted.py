"""The tailored models of many nodes, each of its own kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kinfolk.checks import InputError
from kinfolk.local_models.weighted_rows import LocalModel
from kinfolk.typing import Bools, Floats

ESTIMATORS = "models.skops"


@dataclass(frozen=True, eq=False)
class FittedModels:
    """One fitted model per node, None where nothing could be learnt."""

    fitted: Any  # (nodes,)
    kinds: list[LocalModel]  # (nodes,)
    classes: Floats | None  # None: numbers are predicted

    def __getitem__(self, node: int) -> Any:
        """The fitted model of a node, by its number."""
        return self.fitted[node]

    def _predict(self, X: Any, node: Any) -> Floats:
        """Numbers or probabilities for rows; NaN where a node has no model."""
        X, node = np.asarray(X, dtype=np.float64), np.asarray(node, dtype=np.int64)
        out = np.full(len(X) if self.classes is None else (len(X), len(self.classes)), np.nan)
        for i in np.unique(node):
            if self.fitted[i] is not None:
                rows = node == i
                out[rows] = self.kinds[i].predict_nodes([self.fitted[i]], [X[rows]], self.classes)[0]
        return out

    def predict(self, X: Any, node: Any) -> Floats:
        """Predict every row with the model of its node; NaN where the node has no model."""
        predicted = self._predict(X, node)
        if self.classes is None:
            return predicted
        missing: Bools = np.isnan(predicted[:, 0])
        best = self.classes[np.where(missing[:, None], 0.0, predicted).argmax(axis=1)]
        return np.where(missing, np.nan, best)

    def predict_proba(self, X: Any, node: Any) -> Floats:
        """The probability of every class, shape (rows, classes)."""
        if self.classes is None:
            raise InputError("Expected classifiers for probabilities, got models that predict numbers: use predict.")
        return self._predict(X, node)

    def error(self, X: Any, y: Any, node: Any) -> Floats:
        """Squared error of every row, or 1 for a wrong class."""
        predicted = self.predict(X, node)
        if self.classes is None:
            out: Floats = (predicted - np.asarray(y)) ** 2
            return out
        return np.where(np.isnan(predicted), np.nan, predicted != np.asarray(y))

    def to_file(self, called: str) -> tuple[str, bytes]:
        """The name and the content of a file, as the first node's kind of model writes it for all."""
        return model_file(self.kinds[0], self.fitted, self.classes, called)


def model_file(models: Any, *about: Any) -> tuple[str, bytes]:
    """The name and the content of a file, by ``models.to_file(*about)``; refuses models that do not have it."""
    if not hasattr(models, "to_file"):
        raise unsaved(models)
    name, content = models.to_file(*about)
    return name, content


def unsaved(models: Any) -> InputError:
    """What is told about models that cannot be written."""
    name = type(models).__name__
    return InputError(f"Expected linear models or estimators to save, got {name}: predict in the same session.")
