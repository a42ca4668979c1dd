"""How sure a comparison is: the standard error of the logarithm of a ratio of two mean errors.

A method has mean error A, a baseline B, both over the same rows r with weights w_r (a mean over the rows of each node,
then over nodes). To first order log(A/B) changes with row r by

    u_r = w_r (a_r / A − b_r / B),

and the standard error of log(A/B) is that of the sum of u over units that err independently: rows, blocks of
neighbouring nodes, or blocks of successive times.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kinfolk.network.graph import Graph
from kinfolk.report.facts import Unit
from kinfolk.typing import Floats, Ints

FEW_NODES = 20  # with fewer, rows are the units rather than nodes,
SOME_ROWS = 5  # ... if every node has so many
FEW_TIMES = 4  # with fewer, nothing is known about the luck of a time
FEW_BLOCKS = 4  # of times, in a short series
MEMORY = 0.9  # correlation of one time with the next that intervals are made for
TINY = 1e-12  # of the larger error: what is added to an error of zero


class SummedRatio(NamedTuple):
    """The logarithm of a ratio of mean errors, and the influences on it, added up."""

    value: float
    influence: Influence


class Uncertainty(NamedTuple):
    """The standard error of such a logarithm, and where it comes from."""

    error: float
    freedom: float  # degrees of freedom of ``error``
    unit: Unit
    units: int  # how many blocks, or rows
    block: int  # nodes or times in a block, at most


class Influence(NamedTuple):
    """Influences added up: all that their standard error needs, wherever the rows are."""

    sizes: Ints  # (nodes,) rows
    total: Floats  # (nodes,) Σ u
    squares: Floats  # (nodes,) Σ u²
    by_time: Floats | None  # (times,) Σ u at each different time, where later times are predicted


def uncertainty(influence: Influence, graph: Graph, new_nodes: bool = False) -> Uncertainty | None:
    """The standard error of a sum of influences; None with fewer than two units.

    With many nodes, blocks of neighbours are the units, since neighbours err alike. With few that have several rows
    each, these very nodes are meant, and their rows are the units. But where ``new_nodes`` were tested, others like
    them are meant, and all rows of a node err alike: blocks are the units, however few. Where later times are
    predicted, blocks of successive times are the units, the same for all nodes; with many nodes the wider of the two
    counts.
    """
    sizes = influence.sizes[influence.sizes > 0]
    few = len(sizes) < FEW_NODES and not new_nodes
    if influence.by_time is not None:
        over_times = by_times(influence.by_time)
        found = [over_times] if few else [over_times, by_nodes(influence, graph)]
    else:
        rows = few and sizes.min() >= SOME_ROWS
        found = [by_rows(influence) if rows else by_nodes(influence, graph)]
    known = [each for each in found if each is not None]
    return max(known, key=lambda each: each.error, default=None)


def by_nodes(influence: Influence, graph: Graph) -> Uncertainty | None:
    """Blocks of neighbouring nodes are independent."""
    tested = np.flatnonzero(influence.sizes)
    number = neighbourhoods(graph)
    block, where = np.unique(number[tested], return_inverse=True)
    count = len(block)
    if count < 2:
        return None
    total: Floats = np.bincount(where, influence.total[tested]).astype(np.float64)
    error = np.sqrt(count / (count - 1) * (total**2).sum())
    largest = np.bincount(number[tested]).max()
    return Uncertainty(float(error), freedom_of_variance(total), "nodes", count, int(largest))


def freedom_of_variance(values: Floats) -> float:
    """Degrees of freedom of the variance of values with mean zero: 2 n / (kurtosis − 1), and n − 1 at most.

    A few large values make a variance uncertain, however many small ones there are.

    >>> freedom_of_variance(np.array([1.0, -1.0, 1.0, -1.0])), freedom_of_variance(np.array([9.0, -9.0] + 98 * [0.0]))
    (3.0, 4.081632653061225)
    """
    count, square = len(values), (values**2).sum()
    kurtosis = count * (values**4).sum() / square**2 if square > 0 else 1.0
    return float(min(count - 1, 2 * count / max(kurtosis - 1, TINY)))


def by_rows(influence: Influence) -> Uncertainty:
    """Rows of a node are independent, and the nodes are given; degrees of freedom by Satterthwaite's formula."""
    tested = influence.sizes > 0
    sizes, total, squares = (each[tested] for each in influence[:3])
    variance = np.maximum(squares - total**2 / sizes, 0.0) * sizes / (sizes - 1)
    whole = variance.sum()
    freedom = whole**2 / (variance**2 / (sizes - 1)).sum() if whole > 0 else sizes.sum() - len(sizes)
    return Uncertainty(float(np.sqrt(whole)), float(freedom), "rows", int(sizes.sum()), 1)


def by_times(total: Floats) -> Uncertainty | None:
    """Blocks of successive times are almost independent: moving blocks, all nodes together; ``total``: by time.

    Few long blocks, as loss differences may remember for long what their first correlations do not show; and
    widened by what blocks of this length miss of a memory of ``MEMORY``.
    """
    count = len(total)
    if count < FEW_TIMES:
        return None
    block = count // max(FEW_BLOCKS, round(np.sqrt(count / 10)))
    along = np.concatenate([[0.0], np.cumsum(total)])
    sums = along[block:] - along[:-block]
    variance = (sums**2).mean() * count / block * missed_by_blocks(count, block)
    return Uncertainty(float(np.sqrt(variance)), count / block - 1, "times", count // block, block)


def missed_by_blocks(count: int, block: int) -> float:
    """The variance of the mean of a series with memory, relative to what moving blocks make of it in expectation.

    Long blocks miss little; short ones miss most of a long memory:

    >>> round(missed_by_blocks(1000, 250), 1), round(missed_by_blocks(1000, 1), 1)
    (1.4, 19.2)
    """
    whole, part = _inflation(count), _inflation(block)
    return whole / (part - block / count * whole)


def _inflation(length: int) -> float:
    """By what the variance of the mean of ``length`` successive values exceeds that of independent ones."""
    lag = np.arange(1, length)
    return 1 + 2 * float(((1 - lag / length) * MEMORY**lag).sum())


def neighbourhoods(graph: Graph) -> Ints:
    """Blocks of neighbouring nodes, each of at most √n / 2 nodes, grown along edges.

    >>> from kinfolk import graphs
    >>> neighbourhoods(graphs.chain(16))
    array([0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7])
    """
    most = max(1, round(np.sqrt(graph.node_count) / 2))
    adjacency = graph.to_sparse()
    block = np.full(graph.node_count, -1)
    count = 0
    for start in range(graph.node_count):
        if block[start] >= 0:
            continue
        queue, size = [start], 0
        while queue and size < most:
            node = queue.pop(0)
            if block[node] >= 0:
                continue
            block[node], size = count, size + 1
            near = adjacency.indices[adjacency.indptr[node] : adjacency.indptr[node + 1]]
            queue += [int(k) for k in near if block[k] < 0]
        count += 1
    return block.astype(np.int64)
