"""A sparse Cholesky factorisation over a graph, with a dense block per node and edge: the multifrontal method.

Nodes are eliminated in groups (supernodes). Each has a dense front: its own rows, then the rows below that it touches.
What it leaves to these is handed up to the next group that has one of them. Matrices are kept by their upper triangles.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from kinfolk.kernels.edges import REORDERED
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
    groups = 0
    for j in range(count):
        groups += first[j] == j
    columns, group = np.empty(groups + 1, dtype=np.int64), np.empty(count, dtype=np.int64)
    columns[groups], s = count, 0
    for j in range(count):
        if first[j] == j:
            columns[s] = j
            s += 1
    row_starts, parents = np.zeros(groups + 1, dtype=np.int64), np.full(groups, -1, dtype=np.int64)
    for s in range(groups):
        group[columns[s] : columns[s + 1]] = s
        last = columns[s + 1] - 1
        row_starts[s + 1] = row_starts[s] + starts[last + 1] - starts[last]
    below = np.empty(row_starts[-1], dtype=np.int64)
    for s in range(groups):
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
        _add_block(out[head[e]], 0, 0, at_edges[e], 1.0)
        _add_block(out[tail[e]], 0, 0, at_edges[e], 1.0)
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
    largest = 0
    for s in range(count):
        largest = max(largest, (columns[s + 1] - columns[s] + row_starts[s + 1] - row_starts[s]) * d)
    work = np.empty(largest * largest)  # for every front in turn: new memory would cost more than the arithmetic
    local = np.empty(len(at_nodes), dtype=np.int64)
    kept = [np.empty((0, 0)) for _ in range(count)]
    children_of, next_child = np.full(count, -1, dtype=np.int64), np.full(count, -1, dtype=np.int64)
    for s in range(count):
        own = columns[s + 1] - columns[s]
        rows = below[row_starts[s] : row_starts[s + 1]]
        size = (own + len(rows)) * d
        front = work[: size * size].reshape(size, size)
        front[:] = 0.0
        for k in range(own):
            local[columns[s] + k] = k
        for k in range(len(rows)):
            local[rows[k]] = own + k
        for j in range(columns[s], columns[s + 1]):
            a = local[j] * d
            _add_block(front, a, a, at_nodes[j], 1.0)
            for position in range(list_starts[j], list_starts[j + 1]):
                e = lists[position]
                _add_block(front, a, local[second[e]] * d, at_edges[e], -1.0)
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
def _add_block(front: Floats, a: int, b: int, block: Floats, factor: float) -> None:
    """Add a multiple of a block to the front, from row a and column b on."""
    for p in range(len(block)):
        for q in range(len(block)):
            front[a + p, b + q] += factor * block[p, q]


@njit(cache=True)
def _add_rest(front: Floats, rest: Floats, rows: Ints, local: Ints, d: int) -> None:
    """Add what a child has left, whose rows are ``rows``, to the front of its parent: runs of neighbours at once."""
    first = 0
    while first < len(rows):
        end = first + 1
        while end < len(rows) and local[rows[end]] == local[rows[end - 1]] + 1:
            end += 1
        b, length = local[rows[first]] * d, (end - first) * d
        for i in range(end):
            a = local[rows[i]] * d
            for p in range(d):
                target, source = front[a + p, b : b + length], rest[i * d + p, first * d : end * d]
                for c in range(length):
                    target[c] += source[c]
        first = end


@njit(cache=True, fastmath={"contract", "nsz"})
def _eliminate(front: Floats, pivots: int) -> bool:
    """Cholesky's method on the first rows of the upper triangle, the others are reduced by them; False if it fails.

    What lies below the diagonal is never read. Loops run over slices from their start: others are not vectorised.
    """
    size = len(front)
    for block in range(0, pivots, ABREAST):
        end = min(block + ABREAST, pivots)
        for k in range(block, end):
            if not front[k, k] > 0.0:
                return False
            inverse, row = 1.0 / np.sqrt(front[k, k]), front[k, k:]
            for c in range(len(row)):
                row[c] *= inverse
            for i in range(k + 1, end):
                _subtract_one(front, k, i)
        if end - block == ABREAST:
            for i in range(end, size - 1, 2):
                _subtract_four(front, block, i)
            if (size - end) % 2:
                front[size - 1, size - 1] -= (front[block:end, size - 1] ** 2).sum()
        else:
            for k in range(block, end):
                for i in range(end, size):
                    _subtract_one(front, k, i)
    return True


@njit(cache=True, fastmath={"contract", "nsz"})
def _subtract_one(front: Floats, k: int, i: int) -> None:
    """Reduce row i by row k."""
    pivot, row = front[k, i:], front[i, i:]
    factor = pivot[0]
    for c in range(len(row)):
        row[c] -= factor * pivot[c]


@njit(cache=True, fastmath={"contract", "nsz"})
def _subtract_four(front: Floats, block: int, i: int) -> None:
    """Reduce rows i and i + 1 by the four rows from ``block`` on."""
    one, two, three, four = front[block, i:], front[block + 1, i:], front[block + 2, i:], front[block + 3, i:]
    row, next_row = front[i, i:], front[i + 1, i:]
    a, b, c, d = one[0], two[0], three[0], four[0]
    p, q, r, s = one[1], two[1], three[1], four[1]
    for k in range(len(row)):
        w, x, y, z = one[k], two[k], three[k], four[k]
        row[k] -= a * w + b * x + c * y + d * z
        next_row[k] -= p * w + q * x + r * y + s * z


@njit(cache=True, fastmath=REORDERED)
def solve_factored(rhs: Floats, fronts: Any, places: Ints, storage: Floats) -> Floats:
    """The solution for rows (nodes, d) in the order of elimination."""
    columns, row_starts, below, parents = fronts
    d = rhs.shape[1]
    x = rhs.copy().reshape(rhs.size)
    longest = 0
    for s in range(len(parents)):
        longest = max(longest, row_starts[s + 1] - row_starts[s])
    rest = np.empty(longest * d)
    for s in range(len(parents)):
        first, own = columns[s] * d, (columns[s + 1] - columns[s]) * d
        rows = below[row_starts[s] : row_starts[s + 1]]
        size, place, left = own + len(rows) * d, places[s], len(rows) * d
        rest[:left] = 0.0
        for k in range(own):
            row, after = storage[place + k : place + own], x[first + k : first + own]
            value = after[0] / row[0]
            for c in range(len(row)):
                after[c] -= value * row[c]
            after[0] = value
            row = storage[place + own : place + size]
            for c in range(len(row)):
                rest[c] += value * row[c]
            place += size
        for r in range(len(rows)):
            for q in range(d):
                x[rows[r] * d + q] -= rest[r * d + q]
    for s in range(len(parents) - 1, -1, -1):
        first, own = columns[s] * d, (columns[s + 1] - columns[s]) * d
        rows = below[row_starts[s] : row_starts[s + 1]]
        size, left = own + len(rows) * d, len(rows) * d
        for r in range(len(rows)):
            for q in range(d):
                rest[r * d + q] = x[rows[r] * d + q]
        for k in range(own - 1, -1, -1):
            place = places[s] + k * size
            row, after, value = storage[place + k + 1 : place + own], x[first + k + 1 : first + own], 0.0
            for c in range(len(row)):
                value += after[c] * row[c]
            further = storage[place + own : place + size]
            for c in range(len(further)):
                value += rest[c] * further[c]
            x[first + k] = (x[first + k] - value) / storage[place + k]
    return x.reshape(rhs.shape)
