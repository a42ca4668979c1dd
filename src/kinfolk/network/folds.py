"""Folds: which rows, or which nodes, are held out.

Draws are keyed by seed and node, so that a site can know those of its own nodes.
"""

from __future__ import annotations

import numpy as np

from kinfolk import kernels
from kinfolk.checks import InputError
from kinfolk.typing import Floats, Ints

ROWS, STARTS, NODES = 1, 2, 3  # key the draws of different things; nodes come last, as streams add to their key


def places_of_rows(owner: Ints, seed: int, stream: int = 0) -> Floats:
    """A number in [0, 1) for every row: the rows of a node in random order, spread evenly from a random place.

    Parameters
    ----------
    owner : array of int, shape (rows,)
        The number of the node that each row belongs to.
    seed : int
        Seed of the draws.
    stream : int
        Splits of the same rows that must not be alike have different ones.

    Returns
    -------
    array of float, shape (rows,)
        Of a node's rows about a share s is below s. Rows of other nodes make no difference.

    >>> both = places_of_rows(np.array([5, 5, 8, 5]), seed=0)
    >>> bool((both[[0, 1, 3]] == places_of_rows(np.array([5, 5, 5]), seed=0)).all())
    True
    """
    sizes = np.bincount(owner)
    first = np.cumsum(sizes) - sizes
    by_node = np.argsort(owner, kind="stable")
    turn = np.arange(len(owner)) - first[owner[by_node]]
    index = np.empty(len(owner), dtype=np.int64)
    index[by_node] = turn
    order = np.lexsort((_uniform([ROWS, seed, stream], (owner << 32) + index), owner))
    start = _uniform([STARTS, seed, stream], np.arange(len(sizes)))
    out = np.empty(len(owner))
    out[order] = (turn + start[owner[order]]) / sizes[owner[order]]
    return np.minimum(out, np.nextafter(1.0, 0.0))


def row_folds(owner: Ints, count: int, seed: int, stream: int = 0) -> Ints:
    """The fold of every row, so that each fold has about the same share of every node's rows.

    >>> fold = row_folds(np.array([0, 0, 0, 0, 1]), 2, seed=0)
    >>> sorted(fold[:4].tolist())
    [0, 0, 1, 1]
    """
    return (places_of_rows(owner, seed, stream) * count).astype(np.int64)


def node_folds(owner: Ints, count: int, seed: int, stream: int = 0) -> Ints:
    """The fold of every row if all rows of a node share one: nodes with rows, dealt in turn in random order.

    >>> node_folds(np.array([0, 0, 3, 3, 5]), 3, seed=0).tolist()
    [0, 0, 2, 2, 1]
    """
    nodes = nodes_in_random_order(owner, seed, stream)
    if count > len(nodes):
        raise InputError(f"Expected at most as many folds as nodes with data ({len(nodes)}), got {count}.")
    fold = np.zeros(nodes.max() + 1, dtype=np.int64)
    fold[nodes] = np.arange(len(nodes)) % count
    return fold[owner]


def nodes_in_random_order(owner: Ints, seed: int, stream: int = 0) -> Ints:
    """The nodes with rows, each once."""
    nodes = np.unique(owner)
    return nodes[np.argsort(_uniform([NODES + stream, seed], nodes))]


def _uniform(words: list[int], keyed: Ints) -> Floats:
    """A number in [0, 1) for every key, drawn from the words and the key alone."""
    keys = kernels.node_keys(np.array([word % 2**64 for word in words], dtype=np.uint64), keyed)
    out: Floats = (keys >> np.uint64(11)) * 2.0**-53
    return out
