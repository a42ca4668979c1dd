"""A sparse Cholesky factorisation over a graph, with a dense block per node and edge: the multifrontal method.

Nodes are eliminated in groups (supernodes). Each has a dense front: its own rows, then the rows below that it touches.
What it leaves to these is handed up to the next group that has one of them. Matrices are kept by their upper triangles.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from kinfolk.typing import Floats, Ints

ABREAST = 4  # rows that are subtracted at once


@njit(cache=True)
def find_fronts(starts: Ints, rows: Ints, slack: float) -> tuple[Ints, Ints, Ints, Ints]:
    """Groups of columns whose factors have nearly the same rows, from those of every column (sorted, without itself).

    Where the columns of every group start, where its rows start and the rows, and the group it hands up to (−1: none).
    """
    count = len(starts) - 1
    first = np.zeros(count, dtype=np.int64)  # of the group of every column
    for j in range(1, count):
        size, before = starts[j + 1] - starts[j], starts[j] - starts[j - 1]
        follows = before > 0 and rows[starts[j - 1]] == j
        extra = (size + 1 - before) * (j - first[j - 1])
        first[j] = first[j - 1] if follows and extra <= slack * (size + 1) else j
    begins = np.flatnonzero(first == np.arange(count))
    columns = np.append(begins, count)
    group = np.empty(count, dtype=np.int64)
    row_starts, parents = np.zeros(len(begins) + 1, dtype=np.int64), np.full(len(begins), -1, dtype=np.int64)
    for s in range(len(begins)):
        group[columns[s] : columns[s + 1]] = s
        last = columns[s + 1] - 1
        row_starts[s + 1] = row_starts[s] + starts[last + 1] - starts[last]
    below = np.empty(row_starts[-1], dtype=np.int64)
    for s in range(len(begins)):
        last = columns[s + 1] - 1
        below[row_starts[s] : row_starts[s + 1]] = rows[starts[last] : starts[last + 1]]
        if starts[last + 1] > starts[last]:
            parents[s] = group[rows[starts[last]]]
    return columns, row_starts, below, parents


@njit(cache=True)
def add_to_ends(at_nodes: Floats, at_edges: Floats, head: Ints, tail: Ints) -> Floats:
    """The blocks of nodes, with those of all edges that touch them."""
    out = at_nodes.copy()
    for e in range(len(head)):
        out[head[e]] += at_edges[e]
        out[tail[e]] += at_edges[e]
    return out


@njit(cache=True)
def factorise(
    at_nodes: Floats, at_edges: Floats, second: Ints, fronts: Any, edge_lists: tuple[Ints, Ints], places: Ints,
    storage: Floats,
) -> bool:  # fmt: skip
    """Fill ``storage`` with the rows of the factor of every front, from ``places`` on; False: not positive definite.

    ``at_nodes`` (nodes, d, d) are the blocks on the diagonal, in the order of elimination; −``at_edges`` (edges, d, d),
    symmetric, are the others. An edge belongs to the first of its ends: ``edge_lists`` has the edges of each, and
    ``second`` their other ends.
    """
    columns, row_starts, below, parents = fronts
    list_starts, lists = edge_lists
    d, count = at_nodes.shape[1], len(parents)
    local = np.empty(len(at_nodes), dtype=np.int64)
    kept = [np.empty((0, 0)) for _ in range(count)]
    children_of, next_child = np.full(count, -1, dtype=np.int64), np.full(count, -1, dtype=np.int64)
    for s in range(count):
        own = columns[s + 1] - columns[s]
        rows = below[row_starts[s] : row_starts[s + 1]]
        size = (own + len(rows)) * d
        front = np.zeros((size, size))
        for k in range(own):
            local[columns[s] + k] = k
        for k in range(len(rows)):
            local[rows[k]] = own + k
        for j in range(columns[s], columns[s + 1]):
            a = local[j] * d
            front[a : a + d, a : a + d] += at_nodes[j]
            for position in range(list_starts[j], list_starts[j + 1]):
                e = lists[position]
                b = local[second[e]] * d
                front[a : a + d, b : b + d] -= at_edges[e]
        child = children_of[s]
        while child >= 0:
            _add_rest(front, kept[child], below[row_starts[child] : row_starts[child + 1]], local, d)
            kept[child] = np.empty((0, 0))
            child = next_child[child]
        if not _eliminate(front, own * d):
            return False
        place = places[s]
        for k in range(own * d):
            storage[place : place + size] = front[k]
            place += size
        if parents[s] >= 0:
            kept[s] = front[own * d :, own * d :].copy()
            next_child[s] = children_of[parents[s]]
            children_of[parents[s]] = s
    return True


@njit(cache=True)
def _add_rest(front: Floats, rest: Floats, rows: Ints, local: Ints, d: int) -> None:
    """Add what a child has left, whose rows are ``rows``, to the front of its parent."""
    for i in range(len(rows)):
        a = local[rows[i]] * d
        for j in range(i, len(rows)):
            b = local[rows[j]] * d
            for p in range(d):
                for q in range(d):
                    front[a + p, b + q] += rest[i * d + p, j * d + q]


@njit(cache=True, fastmath={"contract", "nsz"})
def _eliminate(front: Floats, pivots: int) -> bool:
    """Cholesky's method on the first rows of the upper triangle, the others are reduced by them; False if it fails."""
    size = len(front)
    for block in range(0, pivots, ABREAST):
        end = min(block + ABREAST, pivots)
        for k in range(block, end):
            if not front[k, k] > 0.0:
                return False
            inverse = 1.0 / np.sqrt(front[k, k])
            for c in range(k, size):
                front[k, c] *= inverse
            for i in range(k + 1, end):
                factor = front[k, i]
                for c in range(i, size):
                    front[i, c] -= factor * front[k, c]
        if end - block == 4:
            one, two, three, four = front[block], front[block + 1], front[block + 2], front[block + 3]
            for i in range(end, size):
                w, x, y, z, row = one[i], two[i], three[i], four[i], front[i]
                for c in range(i, size):
                    row[c] -= w * one[c] + x * two[c] + y * three[c] + z * four[c]
        else:
            for k in range(block, end):
                for i in range(end, size):
                    factor = front[k, i]
                    for c in range(i, size):
                        front[i, c] -= factor * front[k, c]
    return True


@njit(cache=True)
def solve_factored(rhs: Floats, fronts: Any, places: Ints, storage: Floats) -> Floats:
    """The solution for rows (nodes, d) in the order of elimination."""
    columns, row_starts, below, parents = fronts
    x, d = rhs.copy(), rhs.shape[1]
    for s in range(len(parents)):
        own = (columns[s + 1] - columns[s]) * d
        rows = below[row_starts[s] : row_starts[s + 1]]
        size, place, base = own + len(rows) * d, places[s], columns[s]
        for k in range(own):
            value = x[base + k // d, k % d] / storage[place + k]
            x[base + k // d, k % d] = value
            for c in range(k + 1, own):
                x[base + c // d, c % d] -= value * storage[place + c]
            position = place + own
            for r in rows:
                for q in range(d):
                    x[r, q] -= value * storage[position]
                    position += 1
            place += size
    for s in range(len(parents) - 1, -1, -1):
        own = (columns[s + 1] - columns[s]) * d
        rows = below[row_starts[s] : row_starts[s + 1]]
        size, base = own + len(rows) * d, columns[s]
        for k in range(own - 1, -1, -1):
            place = places[s] + k * size
            value = x[base + k // d, k % d]
            for c in range(k + 1, own):
                value -= x[base + c // d, c % d] * storage[place + c]
            position = place + own
            for r in rows:
                for q in range(d):
                    value -= x[r, q] * storage[position]
                    position += 1
            x[base + k // d, k % d] = value / storage[place + k]
    return x
