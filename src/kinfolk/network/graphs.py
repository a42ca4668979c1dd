"""Builders: graphs from coordinates, from distances, and the model graphs of the papers."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Annotated, Any, Literal

import numpy as np

from kinfolk.checks import AtLeast, Between, InputError, Positive, as_floats, check_value
from kinfolk.network.graph import Graph
from kinfolk.network.mixing import mixing_matrix as mixing_matrix
from kinfolk.typing import Floats, Ints

EARTH_RADIUS_KM = 6371.0088
SWAPS = 5  # per edge, until the structure of a graph is forgotten
PATIENCE = 20  # tries per swap


def knn(
    coordinates: Any,
    k: int = 5,
    *,
    metric: Literal["planar", "great-circle"] = "planar",
    scale: float | None = None,
    names: Sequence[Hashable] | None = None,
) -> Graph:
    """Join every node with its ``k`` nearest ones; an edge exists if either end chose the other.

    Parameters
    ----------
    coordinates : array (nodes, axes); for ``"great-circle"`` columns latitude, longitude in degrees.
    metric : ``"planar"`` (Euclidean, in the units given) or ``"great-circle"`` (kilometres on the globe).
    scale : None for weights 1, else weights exp(−distance / scale).

    >>> knn([[0.0], [1.0], [3.0]], k=1).to_frame()[["head", "tail"]].values.tolist()
    [[0, 1], [1, 2]]
    """
    ends, length = nearest_pairs(coordinates, k, metric=metric)
    weights = None if scale is None else _closeness(length, scale, "knn")
    return Graph(len(coordinates), ends, weights, names)


def nearest_pairs(
    coordinates: Any, k: int, *, metric: Literal["planar", "great-circle"] = "planar"
) -> tuple[Ints, Floats]:
    """The pairs (pairs, 2) that ``knn`` joins, each once, and how far apart their ends are (pairs,).

    Nodes may share a place: they are at distance 0.

    >>> nearest_pairs([[0.0], [0.0], [3.0]], 1)
    (array([[0, 1],
           [0, 2]]), array([0., 3.]))
    """
    from sklearn.neighbors import NearestNeighbors

    points = as_floats(coordinates, "the coordinates", 2)
    if len(points) < 2:
        raise InputError(f"Expected at least two points to be neighbours, got {len(points)}.")
    check_value("k", "knn", k, Annotated[int, Between(1, max(1, len(points) - 1))])
    check_value("metric", "knn", metric, Literal["planar", "great-circle"])
    if metric == "great-circle":
        points = np.radians(_as_latitude_longitude(points))
    # Nodes at the same place may be listed before the node itself: ask for one more and drop self by number.
    search = NearestNeighbors(metric="haversine" if metric == "great-circle" else "euclidean").fit(points)
    distance, other = search.kneighbors(points, n_neighbors=k + 1)
    is_self = other == np.arange(len(points))[:, None]
    is_self[~is_self.any(axis=1), -1] = True
    start = np.repeat(np.arange(len(points)), k)
    ends = np.sort(np.stack([start, other[~is_self]], axis=1), axis=1)
    ends, first = np.unique(ends, axis=0, return_index=True)
    return ends, distance[~is_self][first] * (EARTH_RADIUS_KM if metric == "great-circle" else 1.0)


def from_distances(
    distances: Any,
    *,
    k: int | None = None,
    scale: float = 1.0,
    cutoff: float | None = None,
    names: Sequence[Hashable] | None = None,
) -> Graph:
    """Weights exp(−distance / scale) from a symmetric distance matrix; pairs farther than ``cutoff`` are left out.

    With ``k`` a pair is joined only if either end is among the ``k`` nearest of the other.

    >>> from_distances([[0, 1], [1, 0]]).weights.round(3)
    array([0.368])
    >>> from_distances([[0, 1, 3], [1, 0, 2], [3, 2, 0]], k=1).to_frame()[["head", "tail"]].values.tolist()
    [[0, 1], [1, 2]]
    """
    matrix = as_floats(distances, "the distance matrix", 2)
    if matrix.shape[0] != matrix.shape[1] or not np.allclose(matrix, matrix.T) or (matrix < 0).any():
        raise InputError(
            f"Expected a symmetric matrix of distances ≥ 0, got shape {matrix.shape} that is not: "
            "symmetrise it, for example (M + M.T) / 2."
        )
    i, j = np.triu_indices(len(matrix), k=1)
    length = matrix[i, j]
    weights = _closeness(length, scale, "from_distances")
    kept = (weights > 0) & (length <= (np.inf if cutoff is None else cutoff))
    if k is not None:
        check_value("k", "from_distances", k, Annotated[int, Between(1, max(1, len(matrix) - 1))])
        others = matrix + np.diag(np.full(len(matrix), np.inf))  # no node is its own neighbour
        chosen = np.zeros(matrix.shape, dtype=bool)
        chosen[nearest(others, k)] = True
        kept &= (chosen | chosen.T)[i, j]
    return Graph(len(matrix), np.stack([i, j], axis=1)[kept], weights[kept], names)


def overlap(mixing: Any, *, names: Sequence[Hashable] | None = None) -> Graph:
    """Join nodes by the part of their data that they have in common: A_ij = Σ_k min(ρ_ik, ρ_jk).

    Abdurakhmanova, SarcheshmehPour, Jung: Towards Model-Agnostic Federated Learning over Networks (2025), eq (21).

    Parameters
    ----------
    mixing : array (nodes, kinds): which share ρ_ik of its data a node has from every kind; rows add up to 1.

    >>> overlap([[1.0, 0.0], [0.75, 0.25], [0.0, 1.0]]).to_frame().values.tolist()
    [[0.0, 1.0, 0.75], [1.0, 2.0, 0.25]]
    """
    shares = as_shares(mixing)
    i, j = np.triu_indices(len(shares), k=1)
    common = sum((np.minimum(kind[i], kind[j]) for kind in shares.T), start=np.zeros(len(i)))
    return Graph(len(shares), np.stack([i, j], axis=1)[common > 0], common[common > 0], names)


def as_shares(mixing: Any) -> Floats:
    """Mixing vectors (nodes, kinds), checked: every row is ≥ 0 and adds up to 1."""
    shares = as_floats(mixing, "the mixing vectors", 2)
    if (shares < 0).any() or not np.allclose(shares.sum(axis=1), 1.0):
        raise InputError("Expected mixing vectors ≥ 0 that add up to 1, got others: divide each by its sum.")
    return shares


def stochastic_block(sizes: Sequence[int], p_in: float, p_out: float, *, seed: int = 0) -> tuple[Graph, Ints]:
    """A stochastic block model: pairs are joined with ``p_in`` inside a block, ``p_out`` across.

    Returns the graph and the block of every node.

    >>> graph, block = stochastic_block([2, 2], p_in=1.0, p_out=0.0)
    >>> graph.head.tolist(), graph.tail.tolist(), block.tolist()
    ([0, 2], [1, 3], [0, 0, 1, 1])
    """
    for name, value in (("p_in", p_in), ("p_out", p_out)):
        check_value(name, "stochastic_block", value, Annotated[float, Between(0, 1)])
    for size in sizes:
        check_value("sizes", "stochastic_block", size, Annotated[int, AtLeast(1)])
    block = np.repeat(np.arange(len(sizes)), sizes)
    i, j = np.triu_indices(len(block), k=1)
    probability = np.where(block[i] == block[j], p_in, p_out)
    joined = np.random.default_rng(seed).random(len(i)) < probability
    return Graph(len(block), np.stack([i, j], axis=1)[joined]), block.astype(np.int64)


def chain(node_count: int, *, weak_link: float = 1.0) -> Graph:
    """Nodes in a row with weights 1; the link in the middle has weight ``weak_link`` (0 cuts the chain).

    >>> chain(4, weak_link=0.1).weights
    array([1. , 0.1, 1. ])
    """
    check_value("node_count", "chain", node_count, Annotated[int, AtLeast(1)])
    check_value("weak_link", "chain", weak_link, Annotated[float, AtLeast(0)])
    start = np.arange(node_count - 1)
    weights = np.where(start == node_count // 2 - 1, weak_link, 1.0)
    ends = np.stack([start, start + 1], axis=1)
    return Graph(node_count, ends[weights > 0], weights[weights > 0])


def star(node_count: int) -> Graph:
    """Node 0 joined with all others.

    >>> star(4).degrees
    array([3, 1, 1, 1])
    """
    check_value("node_count", "star", node_count, Annotated[int, AtLeast(1)])
    leaves = np.arange(1, node_count)
    return Graph(node_count, np.stack([np.zeros_like(leaves), leaves], axis=1))


def double_star(node_count: int, *, weak_link: float = 1.0) -> Graph:
    """Two stars of equal size with weights 1; the link between their centres has weight ``weak_link`` (0 cuts it).

    >>> double_star(6, weak_link=0.1).to_frame().values.tolist()
    [[0.0, 1.0, 1.0], [0.0, 2.0, 1.0], [0.0, 3.0, 0.1], [3.0, 4.0, 1.0], [3.0, 5.0, 1.0]]
    """
    check_value("node_count", "double_star", node_count, Annotated[int, AtLeast(2)])
    check_value("weak_link", "double_star", weak_link, Annotated[float, AtLeast(0)])
    other = node_count // 2
    leaves = np.r_[1:other, other + 1 : node_count]
    ends = np.stack([np.where(leaves < other, 0, other), leaves], axis=1)
    ends = np.concatenate([ends, [[0, other]]])
    weights = np.r_[np.ones(len(leaves)), weak_link]
    return Graph(node_count, ends[weights > 0], weights[weights > 0])


def complete(node_count: int, names: Sequence[Hashable] | None = None) -> Graph:
    """Every pair joined.

    >>> complete(4).edge_count
    6
    """
    check_value("node_count", "complete", node_count, Annotated[int, AtLeast(1)])
    return Graph(node_count, np.stack(np.triu_indices(node_count, k=1), axis=1), names=names)


def edgeless(node_count: int, names: Sequence[Hashable] | None = None) -> Graph:
    """No edges: every node on its own.

    >>> edgeless(3)
    Graph(3 nodes, 0 edges, 3 components)
    """
    check_value("node_count", "edgeless", node_count, Annotated[int, AtLeast(1)])
    return Graph(node_count, names=names)


def random_like(graph: Graph, *, seed: int = 0) -> Graph:
    """A random graph with the degrees and the weights of ``graph``: the control for "is it the graph that helps?".

    Pairs of edges swap their ends until the structure is forgotten; weights are then dealt out at random.

    >>> lattice = chain(50)
    >>> (random_like(lattice).degrees == lattice.degrees).all()
    np.True_
    """
    from kinfolk import kernels

    rng, head, tail = np.random.default_rng(seed), graph.head.copy(), graph.tail.copy()
    wanted = SWAPS * graph.edge_count
    done = kernels.swap_edges(head, tail, graph.node_count, wanted, PATIENCE * wanted, rng) if len(head) > 1 else 0
    if done < max(1, graph.edge_count):
        raise InputError(
            f"Expected a graph whose edges can be swapped, got {graph!r}: it has too few edges or too many "
            "for a random graph with the same degrees."
        )
    ends = np.stack([head, tail], axis=1)
    weights = rng.permutation(graph.weights)
    return Graph(graph.node_count, ends, weights, graph.names)


def nearest(distances: Floats, k: int) -> tuple[Ints, Ints]:
    """The k smallest distances of every row, as rows and columns; of equal ones the first.

    >>> nearest(np.array([[3.0, 1.0, 1.0, 2.0]]), 2)
    (array([0, 0]), array([1, 2]))
    """
    rows, columns = np.nonzero(distances <= np.partition(distances, k - 1, axis=1)[:, [k - 1]])
    order = np.lexsort((distances[rows, columns], rows))
    first = np.searchsorted(rows, np.arange(len(distances)))
    kept = order[np.arange(len(rows)) - first[rows] < k]
    return rows[kept], columns[kept]


def _closeness(length: Floats, scale: float, owner: str) -> Floats:
    check_value("scale", owner, scale, Annotated[float, Positive()])
    return np.exp(-length / scale)


def _as_latitude_longitude(points: Floats) -> Floats:
    if points.shape[1] != 2 or (np.abs(points[:, 0]) > 90).any() or (np.abs(points[:, 1]) > 360).any():
        raise InputError(
            f"Expected columns latitude (−90 to 90) and longitude (−360 to 360) in degrees, got shape {points.shape} "
            "or values outside: is the order latitude, longitude?"
        )
    return points
