"""How models of Keras are trained, one node after another. Keras runs on torch unless it is configured otherwise."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

os.environ.setdefault("KERAS_BACKEND", "torch")
import keras

from kinfolk.local_models.weighted_rows import WeightedRows
from kinfolk.typing import Floats

CATEGORICAL = ("categorical_crossentropy", "CategoricalCrossentropy")
HARD_LABELS_ONLY = (  # losses for classes that cannot learn from probabilities of each
    "sparse_categorical_crossentropy", "SparseCategoricalCrossentropy", "binary_crossentropy", "BinaryCrossentropy",
)  # fmt: skip
LOSSES: dict[str, Callable[[bool], Any]] = {
    "squared": lambda logits: keras.losses.MeanSquaredError(),
    "cross-entropy": lambda logits: keras.losses.CategoricalCrossentropy(from_logits=logits),
}


class KerasFit(NamedTuple):
    """The weights of a trained model; ``KerasModel.model_of`` makes a model of them."""

    arrays: dict[str, Any]  # in the model's order: {"0 kernel": ..., "1 bias": ...}


class TrainingSetup(NamedTuple):
    """What a model is compiled with."""

    loss: Any
    optimiser: dict[str, Any]  # as Keras writes it down

    @property
    def loss_name(self) -> str:
        """The loss by the name of its class or function."""
        if isinstance(self.loss, str):
            return self.loss
        return self.loss.__name__ if hasattr(self.loss, "__name__") else type(self.loss).__name__

    @property
    def gives_logits(self) -> bool:
        """Whether the loss takes outputs for logits."""
        return bool(getattr(self.loss, "from_logits", False))

    def compile(self, model: Any) -> None:
        """Give a model the loss, and an optimiser that remembers nothing."""
        model.compile(loss=self.loss, optimizer=keras.optimizers.deserialize(self.optimiser))


def setup_of(model: Any) -> TrainingSetup | None:
    """What a model was compiled with; None if it was not."""
    if not model.compiled:
        return None
    return TrainingSetup(model.loss, keras.optimizers.serialize(model.optimizer))


def as_fit(model: Any) -> KerasFit:
    """The weights, copied."""
    return KerasFit({f"{k} {v.name}": keras.ops.convert_to_numpy(v).copy() for k, v in enumerate(model.weights)})


def train(model: Any, weighted: WeightedRows, epochs: int, batch: int | None, seed: int) -> None:
    """Minimise the weighted mean loss of the rows."""
    rows = len(weighted.weight)
    X, target = weighted.X.astype(np.float32), weighted.target.astype(np.float32)
    target = target if target.ndim == 2 else target[:, None]
    weight = (weighted.weight / weighted.weight.mean()).astype(np.float32)
    size, draw = batch or rows, np.random.default_rng(seed)
    for _ in range(epochs):
        order = draw.permutation(rows) if size < rows else np.arange(rows)
        for first in range(0, rows, size):
            part = order[first : first + size]
            model.train_on_batch(X[part], target[part], sample_weight=weight[part])


def predict(model: Any, X: Floats) -> Floats:
    """The outputs, (rows, ...)."""
    out: Floats = keras.ops.convert_to_numpy(model(X.astype(np.float32), training=False)).astype(np.float64)
    return out


@contextmanager
def drawing_from(seed: int) -> Iterator[None]:
    """Seeds that Keras draws for its layers come from Python's generator, which is left as it was."""
    before = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)
