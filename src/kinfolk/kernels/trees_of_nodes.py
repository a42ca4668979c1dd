"""Compiled loops over small trees of neighbouring nodes, into whose roots the rest of a balance is drained."""

from __future__ import annotations

import numpy as np
from numba import njit

from kinfolk.typing import Bools, Floats, Ints


@njit(cache=True)
def grow_trees(
    head: Ints, tail: Ints, usable: Bools, preferred: Bools, size: Ints, least: int
) -> tuple[Ints, Ints, Ints]:
    """Join neighbours to trees of a size of at least ``least``, where the graph has such, and not much above twice it.

    Edges that are preferred are taken first; ``usable`` ones follow.

    Returns the root of every node's tree, and the tree itself: the number of its edges at every node, and the numbers
    of these edges, combined by exclusive or, so that a node with a single edge left shows which one it is.
    """
    count = len(size)
    root, total = np.arange(count), size.copy()
    degree, code = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    for turn in range(3):
        allowed, most = preferred if turn == 0 else usable, 2 * least if turn < 2 else size.sum()
        for e in range(len(head)):
            if not allowed[e]:
                continue
            one, other = _root(root, head[e]), _root(root, tail[e])
            small = total[one] < least or total[other] < least
            if one != other and small and total[one] + total[other] <= most:
                root[one] = other
                total[other] += total[one]
                for node in (head[e], tail[e]):
                    degree[node] += 1
                    code[node] ^= e
    for node in range(count):
        root[node] = _root(root, node)
    return root, degree, code


@njit(cache=True)
def _root(root: Ints, node: int) -> int:
    """The root of a node's tree; ways there are shortened."""
    while root[node] != node:
        root[node] = root[root[node]]
        node = root[node]
    return node


@njit(cache=True)
def drain(r: Floats, u: Floats, head: Ints, tail: Ints, degree: Ints, code: Ints) -> None:
    """Let r flow along the edges of trees, from the leaves on, by adding to the flows u; all arrays are used up."""
    for leaf in range(len(degree)):
        node = leaf
        while degree[node] == 1:
            e = code[node]
            ahead = head[e] == node
            other = tail[e] if ahead else head[e]
            for k in range(r.shape[1]):
                u[e, k] += -r[node, k] if ahead else r[node, k]
                r[other, k] += r[node, k]
            degree[node] = 0
            degree[other] -= 1
            code[other] ^= e
            node = other
