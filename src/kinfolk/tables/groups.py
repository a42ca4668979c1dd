"""Groups of kin: connected nodes whose models are much alike."""

from __future__ import annotations

import numpy as np
from sklearn.cluster import ward_tree

from kinfolk.network.graph import Graph
from kinfolk.typing import Floats, Ints

UNEXPLAINED = 0.25  # of the variance between models that may remain within groups
MOST_GROUPS = 12


def groups(graph: Graph, signature: Floats, remaining: float | None = None) -> Ints:
    """The group of every node, the largest first: as few connected groups as leave little variance within them.

    Nodes are joined along edges by Ward's method. ``signature`` (nodes, numbers) describes the models: their
    parameters, or their predictions on public points. ``remaining`` is the sum of squares that may stay within groups;
    by default a quarter of the whole. At most ``MOST_GROUPS`` are made, besides components of the graph.

    >>> from kinfolk import graphs
    >>> groups(graphs.chain(5), np.array([[0.0], [0.1], [0.0], [5.0], [5.1]]))
    array([0, 0, 0, 1, 1])
    """
    count = graph.node_count
    least = int(graph.components.max()) + 1
    if count <= 2 or least >= MOST_GROUPS:
        return _by_size(graph.components if count > 2 else np.arange(count))
    allowed = UNEXPLAINED * spread(signature) if remaining is None else remaining
    children, _, _, _, distances = ward_tree(
        signature, connectivity=graph.to_sparse() if least == 1 else _joined(graph), return_distance=True
    )
    within = np.cumsum(distances**2) / 2  # after each merge
    merges = int(np.searchsorted(within, allowed * (1 + 1e-9), side="right"))
    merges = int(np.clip(merges, count - MOST_GROUPS, count - least))
    return _by_size(_cut(children[:merges], count))


def spread(signature: Floats) -> float:
    """The sum of squared distances from the mean."""
    return float(((signature - signature.mean(axis=0)) ** 2).sum())


def _joined(graph: Graph) -> object:
    """The graph with one far-fetched edge between components: they are merged last, or never."""
    import scipy.sparse

    first = np.unique(graph.components, return_index=True)[1]
    extra = scipy.sparse.coo_array(
        (np.ones(len(first) - 1), (first[:-1], first[1:])), shape=(graph.node_count, graph.node_count)
    )
    both = graph.to_sparse() + extra + extra.T
    return both.tocsr()


def _cut(children: Ints, count: int) -> Ints:
    """The cluster of every leaf after some merges."""
    root = np.arange(count + len(children))
    for k, pair in enumerate(children):
        root[pair] = count + k
    for k in range(len(root) - 1, -1, -1):  # parents have larger numbers
        root[k] = root[root[k]]
    return root[:count]


def _by_size(label: Ints) -> Ints:
    """Groups numbered from the largest."""
    _, first, inverse, sizes = np.unique(label, return_index=True, return_inverse=True, return_counts=True)
    rank = np.empty(len(sizes), dtype=np.int64)
    rank[np.lexsort((first, -sizes))] = np.arange(len(sizes))
    return rank[inverse.ravel()]
