"""Compiled loops over a graph: random rewiring, colours."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from kinfolk.typing import Ints


@njit(cache=True)
def _neighbour_lists(head: Ints, tail: Ints, node_count: int) -> tuple[Ints, Ints]:
    """Where the neighbours of every node start (nodes + 1,), and the neighbours (2 edges,)."""
    starts = np.zeros(node_count + 1, dtype=np.int64)
    for e in range(len(head)):
        starts[head[e] + 1] += 1
        starts[tail[e] + 1] += 1
    starts = np.cumsum(starts)
    neighbours, place = np.empty(2 * len(head), dtype=np.int64), starts[:-1].copy()
    for e in range(len(head)):
        for one, other in ((head[e], tail[e]), (tail[e], head[e])):
            neighbours[place[one]] = other
            place[one] += 1
    return starts, neighbours


@njit(cache=True)
def _place(starts: Ints, neighbours: Ints, one: int, other: int) -> int:
    """Where one node has another among its neighbours; −1 if it has not."""
    for k in range(starts[one], starts[one + 1]):
        if neighbours[k] == other:
            return int(k)
    return -1


@njit(cache=True)
def swap_edges(head: Ints, tail: Ints, node_count: int, swaps: int, tries: int, rng: Any) -> int:
    """Let random pairs of edges swap an end, in place, unless a loop or a double edge came of it; how often it did."""
    starts, neighbours = _neighbour_lists(head, tail, node_count)
    done = 0
    for _ in range(tries):
        if done == swaps:
            break
        a, b = rng.integers(0, len(head)), rng.integers(0, len(head))
        if rng.integers(0, 2):
            head[b], tail[b] = tail[b], head[b]
        i, j, k, m = head[a], tail[a], head[b], tail[b]
        if i in (k, m) or j in (k, m):
            continue
        if _place(starts, neighbours, i, m) >= 0 or _place(starts, neighbours, k, j) >= 0:
            continue
        for one, old, new in ((i, j, m), (j, i, k), (k, m, j), (m, k, i)):
            neighbours[_place(starts, neighbours, one, old)] = new
        tail[a], tail[b] = m, j
        done += 1
    return done


@njit(cache=True)
def first_fit_colours(head: Ints, tail: Ints, degrees: Ints, order: Ints) -> Ints:
    """Nodes take, one after the other, the smallest colour that no neighbour has taken before."""
    starts, neighbours = _neighbour_lists(head, tail, len(degrees))
    colours = np.full(len(degrees), -1, dtype=np.int64)
    taken_by = np.full(len(degrees) + 1, -1, dtype=np.int64)  # the node that last found this colour taken
    for node in order:
        for other in neighbours[starts[node] : starts[node + 1]]:
            taken_by[colours[other]] = node  # no colour is −1, the last place, which nobody reads
        colour = 0
        while taken_by[colour] == node:
            colour += 1
        colours[node] = colour
    return colours
