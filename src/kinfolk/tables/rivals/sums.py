"""Sums over the rows of groups, such as nodes or places."""

from __future__ import annotations

import numpy as np

from kinfolk.typing import Floats, Ints


def normal_equations(X: Floats, y: Floats, group: Ints, count: int) -> tuple[Floats, Floats]:
    """Σ x xᵀ and Σ x y over the rows of every group.

    Parameters
    ----------
    X : array of float, shape (rows, columns)
        What coefficients multiply.
    y : array of float, shape (rows,)
        What they are to give.
    group : array of int, shape (rows,)
        The group of every row.
    count : int
        Number of groups.

    Returns
    -------
    gram : array of float, shape (count, columns, columns)
    moment : array of float, shape (count, columns)

    >>> gram, moment = normal_equations(np.array([[1.0], [2.0]]), np.array([3.0, 4.0]), np.array([1, 1]), 2)
    >>> gram.ravel().tolist(), moment.ravel().tolist()
    ([0.0, 5.0], [0.0, 11.0])
    """
    gram = np.stack([_summed(X * column[:, None], group, count) for column in X.T], axis=1)
    return gram, _summed(X * y[:, None], group, count)


def _summed(values: Floats, group: Ints, count: int) -> Floats:
    return np.stack([np.bincount(group, column, minlength=count) for column in values.T], axis=1)
