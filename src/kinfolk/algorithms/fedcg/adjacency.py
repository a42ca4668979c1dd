"""How close domains are: the adjacency matrix of the graph network, eq (6)."""

from __future__ import annotations

import numpy as np

from kinfolk.typing import Floats


def adjacency_of(similarity: Floats, beta: float) -> Floats:
    """A: β on the diagonal, and in every row 1 − β shared out among the others in proportion to their similarity.

    >>> adjacency_of(np.array([[0.0, 3.0, 1.0], [3.0, 0.0, 0.0], [0.0, 0.0, 0.0]]), 0.5)
    array([[0.5  , 0.375, 0.125],
           [0.5  , 0.5  , 0.   ],
           [0.25 , 0.25 , 0.5  ]])
    """
    count = len(similarity)
    if count == 1:
        return np.ones((1, 1))
    others = np.where(np.eye(count, dtype=bool), 0.0, similarity)
    total = others.sum(axis=1, keepdims=True)
    evenly = (1.0 - np.eye(count)) / (count - 1)  # of a domain that is like no other
    shares = np.where(total > 0, others / np.where(total > 0, total, 1.0), evenly)
    return beta * np.eye(count) + (1.0 - beta) * shares


def inverse_distances(V: Floats) -> Floats:
    """h_ij = 1 / ‖V_i − V_j‖, (6); equal rows are as close as the closest of the others.

    >>> inverse_distances(np.array([[0.0], [2.0], [2.0], [3.0]]))[:, 2]
    array([0.5, 1. , 1. , 1. ])
    """
    squares = (V**2).sum(axis=1)
    distance = np.sqrt(np.maximum(squares[:, None] + squares - 2.0 * V @ V.T, 0.0))
    some = distance > 1e-9 * max(float(np.sqrt(squares.max())), 1e-300)
    if not some.any():
        return np.ones_like(distance)
    near = 1.0 / np.where(some, distance, 1.0)
    return np.where(some, near, near[some].max())
