"""The arrays of a site put into the order of the network, where they lie in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kinfolk import kernels
from kinfolk.typing import Ints


def in_order_in_place(arrays: Sequence[tuple[Any, Ints]]) -> list[Any]:
    """Arrays whose rows k belong to the places[k], all of them, with the rows in their places.

    Rows of 64-bit floats are moved within their array, which must be nobody else's; others into a new one. An array
    that is given twice is moved once, and returned twice.

    >>> rows = np.array([[1.0], [2.0], [3.0]])
    >>> moved, again = in_order_in_place([(rows, np.array([2, 0, 1])), (rows, np.array([2, 0, 1]))])
    >>> moved.ravel(), moved is again
    (array([2., 3., 1.]), True)
    """
    known = {id(rows): rows for rows, _ in arrays}
    alone = {key for key, rows in known.items() if not _overlaps(rows, known)}
    moved: dict[int, Any] = {}
    for rows, places in sorted(arrays, key=lambda each: id(each[0]) in alone):  # views are read before others move
        if id(rows) not in moved:
            moved[id(rows)] = _moved(rows, places, id(rows) in alone)
    return [moved[id(rows)] for rows, _ in arrays]


def _overlaps(rows: Any, known: dict[int, Any]) -> bool:
    """Whether another one of the arrays may lie in the same memory."""
    return any(np.may_share_memory(rows, other) for other in known.values() if other is not rows)


def _moved(rows: Any, places: Ints, alone: bool) -> Any:
    movable = rows.ndim == 2 and rows.dtype == np.float64 and rows.flags.c_contiguous and rows.flags.writeable
    if movable and alone:
        kernels.permute_rows(rows, places)
        return rows
    out = np.empty_like(rows)
    out[places] = rows
    return out
