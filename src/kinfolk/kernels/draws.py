"""Compiled draws that are keyed: the same key gives the same numbers, wherever a node lives."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, uint64

from kinfolk.typing import Ints

GOLDEN, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # of SplitMix64


@njit(cache=True)
def _mixed(state: Any) -> Any:
    """The output of SplitMix64 (Steele, Lea, Flood 2014) for a state."""
    z = uint64(state)
    z = (z ^ (z >> uint64(30))) * uint64(FIRST)
    z = (z ^ (z >> uint64(27))) * uint64(SECOND)
    return z ^ (z >> uint64(31))


@njit(cache=True)
def node_keys(words: Any, nodes: Ints) -> Any:
    """A key (uint64) for every node, from words (uint64) that all of them share."""
    base = uint64(GOLDEN)
    for word in words:
        base = _mixed((base ^ word) + uint64(GOLDEN))
    out = np.empty(len(nodes), dtype=np.uint64)
    for k in range(len(nodes)):
        out[k] = _mixed((base ^ uint64(nodes[k])) + uint64(GOLDEN))
    return out


@njit(cache=True)
def draw_batches(keys: Any, starts: Ints, ends: Ints, passes: Ints, size: Ints) -> Ints:
    """The rows of all batches of every node, those of a node between ``ends[node]`` and ``ends[node + 1]``.

    A pass through the rows of a node (``starts``) is in random order, and ``size`` rows of it are taken. A node that
    takes all its rows in every batch (one batch in a pass, and all rows of it) has them in their order.
    """
    out = np.empty(ends[-1], dtype=np.int64)
    for node in range(len(starts) - 1):
        count = starts[node + 1] - starts[node]
        order, state = np.arange(count), uint64(keys[node])
        shuffled = passes[node] > 1 or size[node] < count
        place = ends[node]
        while place < ends[node + 1]:
            taken = min(size[node], ends[node + 1] - place)
            for k in range(taken):
                if shuffled:  # Fisher and Yates, no further than needed
                    state += uint64(GOLDEN)
                    share = (_mixed(state) >> uint64(11)) * 2.0**-53
                    other = k + int(share * (count - k))
                    order[k], order[other] = order[other], order[k]
                out[place + k] = starts[node] + order[k]
            place += taken
    return out
