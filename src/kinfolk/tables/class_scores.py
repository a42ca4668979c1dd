"""How good probabilities of classes are: log loss, area under the ROC curve, calibration, and counts by class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.metrics import confusion_matrix, roc_auc_score

from kinfolk.report.facts import ClassScores
from kinfolk.typing import Floats

LEAST = 1e-15  # a probability that is taken for zero
BINS = 10
RARE = 10  # test rows: with fewer of a class, its numbers are mostly chance


def class_scores(probabilities: Floats, y: Floats, classes: Sequence[Any]) -> ClassScores:
    """Score the probabilities of classes.

    Parameters
    ----------
    probabilities : array of float, shape (rows, classes)
        Probabilities that sum to one.
    y : array of float, shape (rows,)
        The class of each row, by number.
    classes : sequence
        Names of the classes.

    Returns
    -------
    ClassScores
        Log loss, area under the curve, calibration and counts.

    >>> found = class_scores(np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]), np.array([0.0, 1.0, 1.0]), ["no", "yes"])
    >>> round(found.log_loss, 3), found.auc
    (0.415, 1.0)
    >>> found.counts[1]
    {'class': 'yes', 'rows': 2, 'predicted': 1, 'right': 1}
    """
    number = y.astype(np.int64)
    confusion = confusion_matrix(number, probabilities.argmax(axis=1), labels=np.arange(len(classes)))
    rows = confusion.sum(axis=1)
    counts = [
        {"class": name, "rows": int(rows[k]), "predicted": int(confusion[:, k].sum()), "right": int(confusion[k, k])}
        for k, name in enumerate(classes)
    ]
    given = np.clip(probabilities[np.arange(len(y)), number], LEAST, 1.0)
    return ClassScores(
        float(-np.log(given).mean()), area_under_curve(probabilities, number), calibration_curve(probabilities, number),
        counts, [name for k, name in enumerate(classes) if rows[k] < RARE],
    )  # fmt: skip


def area_under_curve(probabilities: Floats, number: Any) -> float | None:
    """The mean over the tested classes of the area under the ROC curve, each class against the others."""
    tested = np.unique(number)
    if len(tested) < 2:
        return None
    columns = tested[-1:] if probabilities.shape[1] == 2 else tested  # two classes have the same area
    return float(np.mean([roc_auc_score(number == k, probabilities[:, k]) for k in columns]))


def calibration_curve(probabilities: Floats, number: Any, bins: int = BINS) -> list[tuple[float, float, int]]:
    """Bins of equal width of the probability of the last of two classes, or of all probabilities of several.

    >>> calibration_curve(np.array([[0.9, 0.1], [0.2, 0.8], [0.2, 0.8]]), np.array([0, 1, 0]))
    [(0.1, 0.0, 1), (0.8, 0.5, 2)]
    """
    hit = number[:, None] == np.arange(probabilities.shape[1])
    shown = slice(1, None) if probabilities.shape[1] == 2 else slice(None)
    chance, hit = probabilities[:, shown].ravel(), hit[:, shown].ravel()
    where = np.minimum((chance * bins).astype(np.int64), bins - 1)
    count = np.bincount(where, minlength=bins)
    used = np.flatnonzero(count)
    mean, right = (np.bincount(where, each, minlength=bins)[used] / count[used] for each in (chance, hit))
    return [(float(m), float(r), int(c)) for m, r, c in zip(mean, right, count[used], strict=True)]
