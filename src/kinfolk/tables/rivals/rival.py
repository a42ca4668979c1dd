"""What a rival is, when it can be used, and how it chooses a strength inside the training rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from kinfolk.checks import installed
from kinfolk.network.folds import row_folds
from kinfolk.tables.rows import Rows
from kinfolk.tables.target import Target
from kinfolk.typing import Floats

FOLDS = 3
SEED, STREAM = 0, 2  # key the draw of folds, and that of nodes; no fold of the table is like them
MOST_ROWS = 50_000  # to choose a strength with
SMALLEST_MEAN = 1e-6  # of a count: its deviance needs one above zero
PLURALS = {"number": "numbers", "classes": "classes", "count": "counts", "quantile": "quantiles"}
Value = TypeVar("Value")
Condition = Callable[[Rows], str | None]  # the reason why rows are not suitable, None: they are


@dataclass(frozen=True)
class Rival:
    """A method of others, fitted to the same encoded rows."""

    name: str
    title: str
    predict: Callable[[Rows, Rows, Target, int], Floats]  # training rows, rows to predict, target, number of nodes
    kinds: tuple[str, ...]  # of targets that it can predict
    conditions: tuple[Condition, ...] = ()
    package: str | None = None  # an extra that it needs

    def applies(self, training: Rows, target: Target) -> str | None:
        """Whether it can be used.

        Parameters
        ----------
        training : Rows
            The rows to learn from.
        target : Target
            What is predicted.

        Returns
        -------
        str or None
            The reason why it cannot be used; None if it can.
        """
        if target.kind not in self.kinds:
            return f"it does not predict {PLURALS[target.kind]}"
        return next((reason for each in self.conditions if (reason := each(training))), None)

    def check(self) -> None:
        """Refuse, in a sentence, if the package that it needs is not installed."""
        if self.package is not None:
            needed(self.package)


def needed(package: str) -> Any:
    """A package that comes with the extra ``rivals``, or a sentence."""
    return installed(package, "a rival", "rivals")


def at_most(most: int, what: str, count: Callable[[Rows], int]) -> Condition:
    """A condition on the size of the training rows."""

    def reason(training: Rows) -> str | None:
        found = count(training)
        return f"{found:,} {what} are more than {most:,}" if found > most else None

    return reason


def has_places(training: Rows) -> str | None:
    """A condition: rows have coordinates."""
    return "the rows have no coordinates" if training.place is None else None


def has_groups(training: Rows) -> str | None:
    """A condition: nodes have more than one row, and there are two of them at least."""
    sizes = np.bincount(training.owner)
    return None if (sizes > 1).sum() > 1 else "fewer than two nodes have several rows"


def choose(
    values: Sequence[Value], training: Rows, target: Target, predict: Callable[[Rows, Rows], Iterable[Floats]]
) -> Value:
    """The value with the smallest loss in rows that are held out in turn.

    Parameters
    ----------
    values : sequence
        What to choose from.
    training : Rows
        Training rows; of many, the rows of nodes that are drawn at random.
    target : Target
        Has the loss.
    predict : callable
        From rows to learn from and rows to predict, the predictions for every value, in their order.

    Returns
    -------
    value
        The best one.
    """
    rows = some_nodes(training, MOST_ROWS)
    part, losses = row_folds(rows.owner, FOLDS, SEED, STREAM), np.zeros(len(values))
    for fold in range(FOLDS):
        known, asked = rows.take(part != fold), rows.take(part == fold)
        if len(known.y) and len(asked.y):
            losses += [target.loss(each, asked.y).sum() for each in predict(known, asked)]
    return values[int(np.argmin(losses))]


def some_nodes(rows: Rows, most: int) -> Rows:
    """All rows if there are at most so many, else those of nodes drawn at random, one node at least."""
    if len(rows.y) <= most:
        return rows
    sizes = np.bincount(rows.owner)
    order = np.random.default_rng([SEED, STREAM]).permutation(np.flatnonzero(sizes))
    taken = order[: max(1, int((np.cumsum(sizes[order]) <= most).sum()))]
    return rows.take(np.isin(rows.owner, taken))


def fit_quietly(model: Any, X: Any, y: Floats) -> Any:
    """The model, fitted; one that stops early is as good as it is, without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(X, y)


def predictions(model: Any, X: Any, target: Target) -> Floats:
    """What a fitted scikit-learn model predicts: probabilities of all classes, means of counts above zero, numbers."""
    if target.kind == "classes":
        out = np.zeros((X.shape[0], len(target.classes)))
        out[:, np.asarray(model.classes_, dtype=np.int64)] = model.predict_proba(X)
        return out
    found: Floats = np.asarray(model.predict(X), dtype=np.float64)
    return np.maximum(found, SMALLEST_MEAN) if target.kind == "count" else found
