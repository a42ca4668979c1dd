"""Cautions: what in a table makes a comparison on its test rows look better, or surer, than it is."""

from __future__ import annotations

import numpy as np

from kinfolk.report.facts import Note
from kinfolk.tables.columns import Columns
from kinfolk.tables.encoding import Encoder
from kinfolk.tables.target import Target
from kinfolk.typing import Bools, Floats, Ints

FEW_ROWS = 10  # of a class in the test
SOME_ROWS, SOME_NODES = 3, 5  # from which deviations are known, and can be compared
TENFOLD = 10.0
FAR = 10.0  # deviations of the other rows from the mean of a column


def cautions(columns: Columns, target: Target, y: Floats, owner: Ints, held_out: Bools) -> list[Note]:
    """Dates at random, rare classes, and nodes on different scales; ``y`` and ``owner`` as learning sees them."""
    return [*_dates(columns), *_rare(target, y[held_out]), *_scales(target, y[~held_out], owner[~held_out])]


def _dates(columns: Columns) -> list[Note]:
    """Test rows between known ones are easier than those of the future."""
    at_random = columns.time is None and columns.mark is None
    return [Note("dates at random", {"column": columns.dates[0]})] if columns.dates and at_random else []


def _rare(target: Target, tested: Floats) -> list[Note]:
    rare = [label for k, label in enumerate(target.classes) if (tested == k).sum() < FEW_ROWS]
    return [Note("rare class", {"labels": rare, "rows": FEW_ROWS})] if rare else []


def _scales(target: Target, y: Floats, owner: Ints) -> list[Note]:
    """Whether the target's deviation differs tenfold between the 10th and the 90th percentile of the nodes."""
    if target.kind not in ("number", "quantile"):
        return []
    count = np.bincount(owner)
    nodes = count >= SOME_ROWS
    if nodes.sum() < SOME_NODES:
        return []
    mean = np.bincount(owner, y) / np.maximum(count, 1)
    variance = np.bincount(owner, (y - mean[owner]) ** 2)[nodes] / (count[nodes] - 1)
    low, high = np.sqrt(np.percentile(variance, (10, 90)))
    return [Note("different scales")] if high > TENFOLD * low else []


def far_numbers(columns: Columns, encoder: Encoder, X: Floats) -> list[Note]:
    """Columns with numbers far from all others, perhaps mistakes; not those of two values, such as 0 and 1."""
    names = encoder.get_feature_names_out()
    far = {name: _deviations(X[:, k]) >= FAR for k, name in enumerate(names) if name in columns.numbers}
    some = [name for name, rows in far.items() if rows.any() and len(np.unique(X[:, names.index(name)])) > 2]
    if not some:
        return []
    count = int(np.any([far[name] for name in some], axis=0).sum())
    return [Note("far numbers", {"columns": some, "count": count})]


def _deviations(column: Floats) -> Floats:
    """How many deviations of the *other* rows each row is from the mean: among few rows one spoils the deviation.

    >>> _deviations(np.array([-0.5, 0.0, 0.5, -0.5, 0.5, 1e9])).round()[[0, -1]]
    array([ 0., inf])
    """
    count, apart = len(column), column - column.mean()
    others = np.maximum((apart**2).sum() - apart**2 * count / (count - 1), 0.0)  # about their own mean
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.nan_to_num(np.abs(apart) / np.sqrt(others / max(count - 2, 1)), nan=0.0, posinf=np.inf))
