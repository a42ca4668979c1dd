"""Losses of rows: a function of (prediction, label) that gives one value for every row.

A label is a number, several numbers, the number of a class, or the probabilities of all classes. What has a name here
is a loss of ``TorchLoss`` and of ``TorchModel``; both take a function of yours as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from kinfolk.checks import InputError
from kinfolk.typing import Floats

Function = Callable[[Any, Any], Any]  # (rows, ...), (rows, ...) -> (rows,)


def squared(prediction: Any, label: Any) -> Any:
    """(h − y)², without the factor ½; for several outputs the sum over them."""
    wrong = (prediction - label) ** 2
    return wrong if wrong.ndim == 1 else wrong.sum(dim=-1)


def cross_entropy(logits: Any, label: Any) -> Any:
    """−log softmax(h)_y for the number of a class, −Σ_c y_c log softmax(h)_c for probabilities."""
    if label.ndim == logits.ndim:
        return -(label * torch.log_softmax(logits, dim=-1)).sum(dim=-1)
    return logits.logsumexp(dim=-1) - logits.gather(-1, label.long()[..., None])[..., 0]


def squared_probabilities(logits: Any, label: Any) -> Any:
    """Σ_c (softmax(h)_c − y_c)²."""
    if label.ndim < logits.ndim:
        label = (label[..., None] == torch.arange(logits.shape[-1], device=label.device)).to(logits.dtype)
    return ((torch.softmax(logits, dim=-1) - label) ** 2).sum(dim=-1)


@dataclass(frozen=True)
class RowLoss:
    """A loss of rows, and what it takes outputs for: numbers, or logits of classes."""

    function: Function
    classifies: bool

    def of_rows(self, prediction: Any, label: Any) -> Any:
        """One value for every row; a single output has the shape of the labels."""
        single = prediction.ndim == 2 and prediction.shape[1] == 1 and label.ndim == 1
        return self.function(prediction[:, 0] if single else prediction, label)

    def check(self, outputs: int, y: Floats, owner: str) -> None:
        """Refuse labels that a module with so many outputs cannot predict."""
        if self.classifies:
            _check_classes(outputs, y)
        elif y.ndim == 2 and y.shape[1] != outputs:
            raise InputError(
                f"Expected a module with {y.shape[1]} outputs, as many as a row has labels, got {outputs} in {owner}."
            )
        elif y.ndim == 1 and self.function is squared and outputs != 1:
            raise InputError(
                f"Expected a module with one output for squared errors, got {outputs}: give y the shape (rows, "
                f"{outputs}), or the module one output."
            )

    def answers(self, outputs: Floats) -> Floats:
        """The prediction for every row of (rows, outputs): a number, several, or the most probable class."""
        if self.classifies:
            known = outputs.argmax(axis=1).astype(np.float64)
            return np.where(np.isnan(outputs).any(axis=1), np.nan, known)
        return outputs[:, 0] if outputs.shape[1] == 1 else outputs

    def probabilities(self, outputs: Floats) -> Floats:
        """softmax(h)."""
        if not self.classifies:
            raise InputError("Expected a module for classes for probabilities, got one for numbers: use predict.")
        power = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        return np.asarray(power / power.sum(axis=1, keepdims=True))

    def errors(self, outputs: Floats, y: Floats) -> Floats:
        """What a user looks at: squared errors, summed over outputs, or 1 for a wrong class; NaN without a model."""
        answers = self.answers(outputs)
        if self.classifies:
            return np.where(np.isnan(answers), np.nan, (answers != y).astype(np.float64))
        if answers.ndim != y.ndim:
            raise InputError(
                f"Expected one number as a prediction for every label, got {answers.shape} for {y.shape}: a loss of "
                "classes has the attribute classifies = True."
            )
        wrong = (answers - y) ** 2
        return wrong if wrong.ndim == 1 else np.asarray(wrong.sum(axis=1))


NAMED: dict[str, RowLoss] = {
    "squared": RowLoss(squared, classifies=False),
    "cross-entropy": RowLoss(cross_entropy, classifies=True),
    "squared probabilities": RowLoss(squared_probabilities, classifies=True),
}


def row_loss(given: Any, owner: str) -> RowLoss:
    """The loss with a name, or a function of (prediction, label).

    >>> row_loss("squared", "TorchLoss").of_rows(torch.tensor([[3.0], [1.0]]), torch.tensor([1.0, 1.0]))
    tensor([4., 0.])
    """
    if callable(given):
        return RowLoss(given, bool(getattr(given, "classifies", False)))
    if not isinstance(given, str) or given not in NAMED:
        names = ", ".join(map(repr, NAMED))
        raise InputError(
            f"The 'loss' parameter of {owner} must be one of {names}, or a function that gives one value for every "
            f"row. Got {given!r} instead."
        )
    return NAMED[given]


def _check_classes(outputs: int, y: Floats) -> None:
    if y.ndim > 1:
        raise InputError(f"Expected the number of one class as the label of a row, got {y.shape[1]} labels.")
    bad = ~np.isin(y, np.arange(outputs))
    if outputs < 2 or bad.any():
        got = f"a label {y[bad][0]:g}" if bad.any() else "one output: give it one for either class"
        raise InputError(f"Expected labels 0, 1, ... and an output for each of them, got {outputs} outputs and {got}.")
