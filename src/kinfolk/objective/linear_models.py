"""Linear models of many nodes at once."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from kinfolk.checks import InputError
from kinfolk.network.array_files import array_bytes, plain
from kinfolk.objective.losses import Logistic, Loss
from kinfolk.typing import Floats

ARRAYS = "models.safetensors"


@dataclass(frozen=True, eq=False)
class LinearModels:
    """One parameter vector per node; the intercept, if the loss has one, comes last.

    A node whose parameters are NaN has no model: nothing could be learnt there.
    """

    w: Floats  # (nodes, parameters)
    loss: Loss

    def linear(self, X: Any, node: Any) -> Floats:
        """The linear prediction for every row r with the parameters of its node i, as a rule x_r'w_i."""
        return self.loss.linear(self.w[np.asarray(node)], np.asarray(X, dtype=np.float64))

    def predict(self, X: Any, node: Any) -> Floats:
        """The prediction of its node's model for every row; NaN where the node has no model."""
        z = self.linear(X, node)
        return np.where(np.isnan(z), np.nan, self.loss.predict(z))

    def predict_proba(self, X: Any, node: Any) -> Floats:
        """The probabilities of class 0 and class 1 for every row."""
        if not isinstance(self.loss, Logistic):
            raise InputError(
                f"Expected a Logistic loss for probabilities, got {type(self.loss).__name__}: use predict."
            )
        p = self.loss.probability(self.linear(X, node))
        return np.stack([1.0 - p, p], axis=1)

    def error(self, X: Any, y: Any, node: Any) -> Floats:
        """The error of every row, as the loss defines it."""
        error = self.loss.error(self.linear(X, node), self.loss.target(np.asarray(X), np.asarray(y)))
        return np.where(np.isnan(self.w[np.asarray(node), 0]), np.nan, error)

    def to_file(self, called: str) -> tuple[str, bytes]:
        """The name and the content of a file with these models."""
        return linear_file(self.w, self.loss)


def linear_file(w: Floats, belongs_to: Any) -> tuple[str, bytes]:
    """The file of parameters, and of the loss or the model that they belong to: its name and its options."""
    kind = type(belongs_to)
    name = kind.__name__ if kind.__module__.startswith("kinfolk.") else f"{kind.__module__}.{kind.__name__}"
    return ARRAYS, array_bytes({"w": w}, {"kind": name, "options": json.dumps(asdict(belongs_to), default=plain)})
