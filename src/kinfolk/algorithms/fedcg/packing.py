"""Symmetric matrices as they are sent: the upper triangle, row by row."""

from __future__ import annotations

import numpy as np

from kinfolk.typing import Floats


def packed_size(size: int) -> int:
    """How many numbers are sent for a matrix of so many rows."""
    return size * (size + 1) // 2


def packed(matrix: Floats) -> Floats:
    """The upper triangle.

    >>> packed(np.array([[1.0, 2.0], [2.0, 3.0]]))
    array([1., 2., 3.])
    """
    return np.asarray(matrix[np.triu_indices(len(matrix))])


def unpacked(upper: Floats, size: int) -> Floats:
    """The whole matrix.

    >>> unpacked(np.array([1.0, 2.0, 3.0]), 2)
    array([[1., 2.],
           [2., 3.]])
    """
    matrix = np.zeros((size, size))
    matrix[np.triu_indices(size)] = upper
    return np.asarray(matrix + np.triu(matrix, 1).T)
