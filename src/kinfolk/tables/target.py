"""The target of a table: a number, a class, a count or a quantile, as learning sees it and as a user knows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas
from scipy.special import xlogy

from kinfolk.checks import InputError
from kinfolk.objective.linear_models import LinearModels
from kinfolk.report.facts import Note
from kinfolk.tables.columns import FEW, LARGEST, as_numbers, check_size, plain_value, some_rows
from kinfolk.tables.settings import Settings
from kinfolk.typing import Bools, Floats, Ints

MANY_CLASSES = 30  # more have to be meant
FEW_VALUES = 10  # a column of at most so many whole numbers could be classes, or counts
LEAST_MEAN = 1e-3  # of a count: the deviance of a mean of 0 is infinite
Kind = Literal["number", "classes", "count", "quantile"]
TASKS: Mapping[str, Kind] = {
    "regression": "number",
    "classification": "classes",
    "count": "count",
    "quantile": "quantile",
}


@dataclass(frozen=True)
class Target:
    """The target as learning sees it.

    Numbers, of which a mean or a quantile is predicted, have mean 0 and deviation 1; a class is its number; counts are
    as they are.
    """

    classes: tuple[Any, ...] = ()  # none: no classes are predicted
    centre: float = 0.0
    spread: float = 1.0
    kind: Kind = "number"
    level: float = 0.5  # of the quantile

    def __post_init__(self) -> None:
        """Where there are classes, these are predicted."""
        if self.classes:
            object.__setattr__(self, "kind", "classes")

    @property
    def classifies(self) -> bool:
        """Whether classes are predicted."""
        return bool(self.classes)

    @property
    def outputs(self) -> int:
        """Number of linear scores: one for each of more than two classes, else one."""
        return len(self.classes) if len(self.classes) > 2 else 1

    @classmethod
    def of(cls, column: pandas.Series, train: Bools, settings: Settings) -> Target:
        """What kind of target it is, from the training rows; its mean and deviation."""
        known = column[train]
        kind = TASKS.get(settings.task) or ("classes" if _looks_like_classes(known) else "number")
        if kind == "classes":
            return cls(_classes(known, settings))
        values = _numbers(column, kind)[train]
        if values.min() == values.max():
            raise InputError(
                f"Expected a target that varies, column {column.name!r} has one value in the training rows."
            )
        check_size(np.abs(values), str(column.name))
        if kind == "count":
            return cls(kind=kind)
        if values.std() < 1 / LARGEST:
            raise InputError(
                f"Expected a target that differs by more than {1 / LARGEST:g}, column {column.name!r} does not: change "
                "the unit."
            )
        return cls((), float(values.mean()), float(values.std()), kind, settings.quantile)

    def encode(self, column: pandas.Series) -> Floats:
        """Targets as learning sees them; NaN for a class that no training row has."""
        if not self.classes:
            return (as_numbers(column)[0] - self.centre) / self.spread
        number = {value: float(k) for k, value in enumerate(self.classes)}
        return np.array([number.get(plain_value(value), np.nan) for value in column])

    def predicted(self, models: Any, X: Floats, node: Ints) -> Floats:
        """Predictions of encoded rows: numbers (rows,) or probabilities (rows, classes); NaN without a model."""
        if not self.classes:
            found = np.asarray(models.predict(X, node))
            return np.maximum(found, LEAST_MEAN) if self.kind == "count" else found
        found = np.asarray(models.predict_proba(X, node))
        classes = np.arange(2.0) if isinstance(models, LinearModels) else np.asarray(models.classes)
        out = np.zeros((len(X), len(self.classes)))
        out[:, classes.astype(np.int64)] = found
        return np.where(np.isnan(found[:, :1]), np.nan, out)

    def shown(self, loss: Any) -> Any:
        """Mean losses as they are shown: root mean squared errors of numbers; others as they are."""
        return np.sqrt(loss) if self.kind == "number" else loss

    def decode(self, predicted: Floats) -> Any:
        """Predictions as the user knows them: numbers in the target's units, or names of classes."""
        if not self.classes:
            return self.centre + self.spread * predicted
        return np.array(self.classes, dtype=object)[predicted.argmax(axis=1)]

    def lower_end(self, low: Floats) -> Floats:
        """The lower ends of intervals as the user knows them: counts are not below 0."""
        return np.maximum(low, 0.0) if self.kind == "count" else low

    def loss(self, predicted: Floats, y: Floats) -> Floats:
        """The proper loss of every row.

        Parameters
        ----------
        predicted : Floats
            Predictions as learning sees them: numbers (rows,), means of counts (rows,), quantiles (rows,) or
            probabilities (rows, classes).
        y : Floats
            Targets as learning sees them (rows,).

        Returns
        -------
        Floats
            Per row (rows,): the squared error of numbers and the pinball loss of quantiles, in the target's units;
            for classes the Brier score Σ_k (p_k − 1[y = k])²; for counts the Poisson deviance.

        >>> Target(spread=2.0).loss(np.array([1.0]), np.array([0.5]))
        array([1.])
        >>> Target(kind="quantile", level=0.9).loss(np.array([0.0, 2.0]), np.array([1.0, 1.0])).round(3)
        array([0.9, 0.1])
        """
        return LOSSES[self.kind](self, predicted, y)

    def slope(self, predicted: Floats, y: Floats) -> Floats:
        """The derivative of the loss of every row in its prediction, for counts and quantiles.

        >>> Target(kind="quantile", level=0.9).slope(np.array([0.0, 2.0]), np.array([1.0, 1.0])).round(3)
        array([-0.9,  0.1])
        """
        return SLOPES[self.kind](self, predicted, y)


def _squared(target: Target, predicted: Floats, y: Floats) -> Floats:
    return (target.spread * (predicted - y)) ** 2


def _brier(target: Target, predicted: Floats, y: Floats) -> Floats:
    hit: Floats = (y[:, None] == np.arange(len(target.classes))).astype(np.float64)
    out: Floats = ((predicted - hit) ** 2).sum(axis=1)
    return out


def _deviance(target: Target, predicted: Floats, y: Floats) -> Floats:
    return np.asarray(2 * (xlogy(y, y) - xlogy(y, predicted) - y + predicted))


def _pinball(target: Target, predicted: Floats, y: Floats) -> Floats:
    above = target.spread * (y - predicted)
    return np.maximum(target.level * above, (target.level - 1) * above)


def _deviance_slope(target: Target, predicted: Floats, y: Floats) -> Floats:
    return np.asarray(2 * (1 - y / predicted))


def _pinball_slope(target: Target, predicted: Floats, y: Floats) -> Floats:
    return target.spread * np.where(y > predicted, -target.level, 1 - target.level)


LOSSES: Mapping[Kind, Callable[[Target, Floats, Floats], Floats]] = {
    "number": _squared,
    "classes": _brier,
    "count": _deviance,
    "quantile": _pinball,
}
SLOPES: Mapping[Kind, Callable[[Target, Floats, Floats], Floats]] = {
    "count": _deviance_slope,
    "quantile": _pinball_slope,
}


def known_targets(column: pandas.Series) -> Bools:
    """The rows that have a target; among numbers, marks such as ``?`` are none.

    >>> known_targets(pandas.Series(["1.5", "?", None, "2"])), known_targets(pandas.Series(["no", "yes", "unknown"]))
    (array([ True, False, False,  True]), array([ True,  True,  True]))
    """
    there = column.notna().to_numpy(dtype=bool)
    values, wrong = as_numbers(column)
    are_numbers = wrong.sum() <= FEW * there.sum() and not np.isnan(values).all()
    return ~np.isnan(values) | wrong if are_numbers else there


def _numbers(column: pandas.Series, kind: Kind) -> Floats:
    """A column of numbers, or of counts, or a sentence."""
    values, _ = as_numbers(column)
    wrong = ~np.isfinite(values)
    if wrong.any():
        raise InputError(
            f"Expected numbers in the target column {column.name!r}, got {some_rows(column, wrong)}: correct them, or "
            "set the task to classification."
        )
    if kind == "count" and (values < 0).any():
        raise InputError(
            f"Expected counts ≥ 0 in the target column {column.name!r}, got {some_rows(column, values < 0)}: correct "
            "them, or set the task to regression."
        )
    return values


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


def _looks_like_classes(known: pandas.Series) -> bool:
    """Whether training rows hold true and false, texts, or two values."""
    if pandas.api.types.is_bool_dtype(known) or known.nunique() == 2:
        return True
    return bool(as_numbers(known)[1].mean() > FEW)


def target_notes(known: pandas.Series, target: Target, settings: Settings) -> list[Note]:
    """How the target was read, where training rows could have been read otherwise."""
    count = int(known.nunique())
    numeric = pandas.api.types.is_numeric_dtype(known) and not pandas.api.types.is_bool_dtype(known)
    if settings.task != "auto" or not numeric:
        return []
    if target.classes:
        return [] if set(target.classes) == {0, 1} else [Note("classes", {"count": count})]
    whole = count <= FEW_VALUES and bool((known == np.floor(known)).all())
    return [Note("whole numbers", {"count": count})] if whole else []
