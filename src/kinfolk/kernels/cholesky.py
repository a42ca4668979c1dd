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

ABREAST = 4  # rows that are subtracted at once, from as many


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
def postorder(parents: Ints) -> Ints:
    """The place of every column in an order where each comes right after all that hand up to it (−1: to none)."""
    count = len(parents)
    first, after = np.full(count + 1, -1, dtype=np.int64), np.full(count, -1, dtype=np.int64)  # children, as lists
    for j in range(count - 1, -1, -1):
        parent = parents[j] if parents[j] >= 0 else count
        after[j], first[parent] = first[parent], j
    out, path = np.empty(count, dtype=np.int64), np.empty(count + 1, dtype=np.int64)
    path[0], depth, place = count, 1, 0
    while depth > 0:
        here = path[depth - 1]
        child = first[here]
        if child >= 0:
            first[here], path[depth] = after[child], child
            depth += 1
        else:
            depth -= 1
            if here < count:
                out[here] = place
                place += 1
    return out


@njit(cache=True)
def factorise(
    at_nodes: Floats, at_edges: Floats, second: Ints, fronts: Any, edge_lists: tuple[Ints, Ints], places: Ints,
    storage: Floats,
) -> bool:  # fmt: skip
    """Fill ``storage`` with the rows of the factor of every front, from ``places`` on; False: not positive definite.

    ``at_nodes`` (nodes, d, d) are the blocks on the diagonal, in the order of elimination, a postorder;
    −``at_edges`` (edges, d, d), symmetric, are the others. An edge belongs to the first of its ends: ``edge_lists`` has
    the edges of each, and ``second`` their other ends.
    """
    columns, row_starts, below, parents = fronts
    list_starts, lists = edge_lists
    d, count = at_nodes.shape[1], len(parents)
    largest, height, children = _extent(columns, row_starts, parents, d)
    work = np.empty(largest * largest)  # for every front in turn: new memory would cost more than the arithmetic
    stack, top = np.empty(height), 0  # what fronts leave, the last one's on top
    waiting, waiting_count = np.empty(count, dtype=np.int64), 0  # the fronts that left it
    local = np.empty(len(at_nodes), dtype=np.int64)
    for s in range(count):
        own = columns[s + 1] - columns[s]
        rows = below[row_starts[s] : row_starts[s + 1]]
        size, left, pivots = (own + len(rows)) * d, len(rows) * d, own * d
        front = work[: size * size].reshape(size, size)
        for i in range(size):
            front[i, i - i % d :] = 0.0
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
        for _ in range(children[s]):
            waiting_count -= 1
            child = waiting[waiting_count]
            child_rows = below[row_starts[child] : row_starts[child + 1]]
            length = len(child_rows) * d
            top -= length * length
            _add_rest(front, stack[top : top + length * length].reshape(length, length), child_rows, local, d)
        if not _eliminate(front, pivots):
            return False
        place = places[s]
        for k in range(pivots):
            storage[place : place + size] = front[k]
            place += size
        if parents[s] >= 0:
            rest = stack[top : top + left * left].reshape(left, left)
            for i in range(left):
                rest[i, i - i % d :] = front[pivots + i, pivots + i - i % d :]
            waiting[waiting_count] = s
            waiting_count, top = waiting_count + 1, top + left * left
    return True


@njit(cache=True)
def _extent(columns: Ints, row_starts: Ints, parents: Ints, d: int) -> tuple[int, int, Ints]:
    """Rows of the largest front, numbers on the stack at its highest, and how many fronts hand up to each."""
    count = len(parents)
    largest, height, top = 0, 0, 0
    children, handed = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    for s in range(count):
        left = (row_starts[s + 1] - row_starts[s]) * d
        largest = max(largest, (columns[s + 1] - columns[s]) * d + left)
        top -= handed[s]
        if parents[s] >= 0:
            children[parents[s]] += 1
            handed[parents[s]] += left * left
            top += left * left
            height = max(height, top)
    return largest, height, children


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
        shift = (local[rows[first]] - first) * d
        for i in range(end):
            a, start = local[rows[i]] * d, max(i, first) * d
            for p in range(d):
                target, source = front[a + p, start + shift : end * d + shift], rest[i * d + p, start : end * d]
                for c in range(len(source)):
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
        together = end + (size - end) // ABREAST * ABREAST if end - block == ABREAST else end
        for i in range(end, together, ABREAST):
            _subtract_four(front, block, i)
        for k in range(block, end):
            for i in range(together, size):
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
    """Reduce four rows from i on by the four rows from ``block`` on."""
    one, two, three, four = front[block, i:], front[block + 1, i:], front[block + 2, i:], front[block + 3, i:]
    first, second, third, fourth = front[i, i:], front[i + 1, i:], front[i + 2, i:], front[i + 3, i:]
    a, b, c, d = one[0], two[0], three[0], four[0]
    e, f, g, h = one[1], two[1], three[1], four[1]
    p, q, r, s = one[2], two[2], three[2], four[2]
    t, u, v, w = one[3], two[3], three[3], four[3]
    for k in range(len(first)):
        x, y, z, last = one[k], two[k], three[k], four[k]
        first[k] -= a * x + b * y + c * z + d * last
        second[k] -= e * x + f * y + g * z + h * last
        third[k] -= p * x + q * y + r * z + s * last
        fourth[k] -= t * x + u * y + v * z + w * last


@njit(cache=True, fastmath=REORDERED)
def solve_factored(rhs: Floats, fronts: Any, places: Ints, storage: Floats) -> None:
    """Solve for rows (nodes, d) in the order of elimination, in place."""
    columns, row_starts, below, parents = fronts
    d = rhs.shape[1]
    x = rhs.reshape(rhs.size)
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
