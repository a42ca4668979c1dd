"""Bins of features before histogram boosting: scikit-learn finds those of weighted rows slowly."""

from __future__ import annotations

import numpy as np

from kinfolk.typing import Floats


def binned(X: Floats, weight: Floats, most: int = 255) -> Floats:
    """Features with at most so many values: each is moved to the mean of its bin, and bins weigh the same.

    Scikit-learn takes one weighted percentile after the other, which lasts longer than a small fit. A feature whose
    values are few needs none, and is left as it is here.

    Parameters
    ----------
    X : array, shape (rows, features)
        Features, all of them numbers.
    weight : array, shape (rows,)
        The weight of every row.
    most : int
        How many bins a feature may have.

    Returns
    -------
    array, shape (rows, features)
        The features, moved.

    >>> binned(np.array([[0.0], [1.0], [4.0], [5.0]]), np.ones(4), 2).ravel().tolist()
    [0.5, 0.5, 4.5, 4.5]
    """
    columns = [_binned_column(column, weight, most) for column in X.T]
    return np.column_stack(columns) if columns else X


def _binned_column(values: Floats, weight: Floats, most: int) -> Floats:
    order = np.argsort(values)
    ascending = values[order]
    if (ascending[1:] != ascending[:-1]).sum() < most:
        return values
    share = np.cumsum(weight[order])
    borders = np.unique(ascending[np.searchsorted(share, share[-1] * np.arange(1, most) / most)])
    number = np.searchsorted(borders, values)  # a border belongs to the bin below
    rows = np.maximum(np.bincount(number), 1)
    return np.asarray((np.bincount(number, values) / rows)[number])
