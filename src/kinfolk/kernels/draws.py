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
def draw_batches(keys: Any, starts: Ints, steps: Ints, batch: int, whole: bool) -> tuple[Ints, Ints]:
    """The rows of every step, (most steps, nodes, batch), and how many of them there are, (most steps, nodes).

    A pass through the rows of a node is in random order. If ``whole``, it is cut into batches of nearly equal size, at
    most ``batch``, that hold every row; otherwise into batches of just that size, and the rest of the pass is left out.
    A node with fewer rows takes all of them in every step.
    """
    most = 0
    for node in range(len(steps)):
        most = max(most, steps[node])
    rows = np.zeros((most, len(steps), batch), dtype=np.int64)
    counts = np.zeros((most, len(steps)), dtype=np.int64)
    for node in range(len(steps)):
        size = starts[node + 1] - starts[node]
        if size == 0:
            continue
        order, state = np.arange(size), uint64(keys[node])
        own = min(batch, size)
        passes = (size + own - 1) // own if whole else size // own
        drawn = size  # how far the order is drawn
        for step in range(steps[node]):
            place = step % passes
            if place == 0:
                drawn = 0
            first = place * size // passes if whole else place * own
            last = (place + 1) * size // passes if whole else first + own
            while drawn < last:  # Fisher and Yates, no further than needed
                state += uint64(GOLDEN)
                share = (_mixed(state) >> uint64(11)) * 2.0**-53
                other = drawn + int(share * (size - drawn))
                order[drawn], order[other] = order[other], order[drawn]
                drawn += 1
            for k in range(first, last):
                rows[step, node, k - first] = starts[node] + order[k]
            counts[step, node] = last - first
    return rows, counts
