"""Rows of nodes as stacks: nodes along a first axis, rows along the second, as much as fits into memory.

Nodes with fewer rows than others in their stack repeat their first row with weight zero, unless a module looks at
several rows at once; then only nodes with as many rows share a stack.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from kinfolk.typing import Bools, Ints

MOST_NUMBERS = 2**25  # that a stack may keep while its slopes are computed


class Stack(NamedTuple):
    """Some nodes and their rows."""

    nodes: Ints  # (stacked,)
    rows: Ints  # (stacked, rows)
    counted: Bools  # (stacked, rows) False where a row only fills up


def stacks(starts: Ints, most_rows: int, *, by_row: bool) -> Iterator[Stack]:
    """The nodes that have rows, in stacks of at most ``most_rows`` rows as far as that is possible.

    ``by_row``: rows are treated one by one, so that nodes may be filled up, and one with many rows may be cut.

    >>> [(s.nodes.tolist(), s.counted.sum(axis=1).tolist()) for s in stacks(np.array([0, 1, 3, 3, 9]), 4, by_row=True)]
    [([0], [1]), ([1], [2]), ([3], [4]), ([3], [2])]
    """
    sizes = np.diff(starts)
    nodes = np.flatnonzero(sizes)
    if len(nodes) and (sizes[nodes] == sizes[nodes[0]]).all() and sizes[nodes].sum() <= most_rows:  # quick
        rows = starts[nodes, None] + np.arange(sizes[nodes[0]])
        yield Stack(nodes, rows, np.ones(rows.shape, dtype=bool))
        return
    kind = np.ceil(np.log2(np.maximum(sizes, 1))).astype(np.int64) if by_row else sizes
    for each in np.unique(kind[nodes]):
        alike = nodes[kind[nodes] == each]
        longest = int(sizes[alike].max())
        step = min(longest, most_rows) if by_row else longest
        together = max(1, most_rows // longest)
        for first in range(0, len(alike), together):
            for offset in range(0, longest, step):
                stack = _stack(starts, alike[first : first + together], offset, min(step, longest - offset))
                if stack is not None:
                    yield stack


def _stack(starts: Ints, nodes: Ints, offset: int, length: int) -> Stack | None:
    """The rows of some nodes from an offset on, those of nodes that have any there."""
    here = nodes[starts[nodes] + offset < starts[nodes + 1]]
    if not len(here):
        return None
    first, left = starts[here, None] + offset, (starts[here + 1] - starts[here] - offset)[:, None]
    place = np.arange(min(length, int(left.max())))
    return Stack(here, np.where(place < left, first + place, first), place < left)
