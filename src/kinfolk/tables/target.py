"""The target of a table: a number or a class, as learning sees it and as a user knows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas

from kinfolk.checks import InputError
from kinfolk.objective.linear_models import LinearModels
from kinfolk.report.facts import Note
from kinfolk.tables.columns import MOSTLY, plain_value
from kinfolk.tables.settings import Settings
from kinfolk.typing import Bools, Floats, Ints

MANY_CLASSES = 30  # more have to be meant
MOST_CLASSES = 10  # a column of at most so many whole numbers is read as classes


@dataclass(frozen=True)
class Target:
    """The target as learning sees it: numbers with mean 0 and deviation 1, or the numbers of classes."""

    classes: tuple[Any, ...] = ()  # none: a number
    centre: float = 0.0
    spread: float = 1.0

    @property
    def classifies(self) -> bool:
        """Whether classes are predicted."""
        return bool(self.classes)

    @property
    def kind(self) -> Literal["number", "classes", "count", "quantile"]:
        """What is predicted."""
        return "classes" if self.classes else "number"

    @property
    def level(self) -> float:
        """The level of a quantile."""
        return 0.5

    @classmethod
    def of(cls, column: pandas.Series, train: Bools, settings: Settings) -> Target:
        """What kind of target it is, from the training rows; its mean and deviation."""
        if settings.task == "classification" or (settings.task == "auto" and _looks_like_classes(column)):
            return cls(_classes(column[train], settings))
        read = pandas.to_numeric(column, errors="coerce")
        wrong = read.isna().to_numpy()
        if wrong.any() or np.isinf(read).any():
            shown = column[wrong].iloc[0] if wrong.any() else np.inf
            raise InputError(
                f"Expected numbers in the target column {column.name!r}, got {shown!r} and the like: correct them, "
                "or set the task to classification."
            )
        values = read[train].to_numpy(dtype=np.float64)
        spread = float(values.std())
        if spread == 0:
            raise InputError(
                f"Expected a target that varies, column {column.name!r} has one value in the training rows."
            )
        return cls((), float(values.mean()), spread)

    @property
    def notes(self) -> list[Note]:
        """How a target was read, where that is not plain."""
        several = len(self.classes) > 2 and all(isinstance(value, int) for value in self.classes)
        return [Note("classes", {"count": len(self.classes)})] if several else []

    def encode(self, column: pandas.Series) -> Floats:
        """Targets as learning sees them; NaN for a class that no training row has."""
        if not self.classes:
            return (
                pandas.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan) - self.centre
            ) / self.spread
        number = {value: float(k) for k, value in enumerate(self.classes)}
        return np.array([number.get(plain_value(value), np.nan) for value in column])

    def predicted(self, models: Any, X: Floats, node: Ints) -> Floats:
        """Predictions of encoded rows: numbers (rows,) or probabilities (rows, classes); NaN without a model."""
        if not self.classes:
            return np.asarray(models.predict(X, node))
        found = np.asarray(models.predict_proba(X, node))
        classes = np.arange(2.0) if isinstance(models, LinearModels) else np.asarray(models.classes)
        out = np.zeros((len(X), len(self.classes)))
        out[:, classes.astype(np.int64)] = found
        return np.where(np.isnan(found[:, :1]), np.nan, out)

    def shown(self, loss: Any) -> Any:
        """Mean losses as they are shown: root mean squared errors; Brier scores as they are."""
        return loss if self.classes else np.sqrt(loss)

    def decode(self, predicted: Floats) -> Any:
        """Predictions as the user knows them: numbers in the target's units, or names of classes."""
        if not self.classes:
            return self.centre + self.spread * predicted
        return np.array(self.classes, dtype=object)[predicted.argmax(axis=1)]

    def loss(self, predicted: Floats, y: Floats) -> Floats:
        """The error of every row: squared, in the target's units; for classes the Brier score Σ_k (p_k − 1[y = k])²."""
        if not self.classes:
            return (self.spread * (predicted - y)) ** 2
        hit: Floats = (y[:, None] == np.arange(len(self.classes))).astype(np.float64)
        out: Floats = ((predicted - hit) ** 2).sum(axis=1)
        return out


def _classes(known: pandas.Series, settings: Settings) -> tuple[Any, ...]:
    """The classes of some rows, in order; refused if there is but one, or more than anybody means."""
    found = sorted(known.map(plain_value).unique().tolist(), key=lambda value: (str(type(value)), value))
    if len(found) < 2:
        raise InputError(
            f"Expected two classes at least in the training rows, column {known.name!r} has {found[0]!r} only."
        )
    if settings.task == "auto" and len(found) > MANY_CLASSES:
        raise InputError(
            f"Expected numbers or few classes in the target column {known.name!r}, got {len(found)} texts such as "
            f"{found[0]!r}: correct numbers that are written as text, or set the task to classification."
        )
    return tuple(found)


def _looks_like_classes(column: pandas.Series) -> bool:
    known = column.dropna()
    if pandas.api.types.is_bool_dtype(known):
        return True
    if not pandas.api.types.is_numeric_dtype(known):
        return bool(pandas.to_numeric(known.astype(str), errors="coerce").isna().mean() > MOSTLY)
    few = known.nunique() <= MOST_CLASSES and (known == np.floor(known)).all()
    return bool(few or known.nunique() == 2)
