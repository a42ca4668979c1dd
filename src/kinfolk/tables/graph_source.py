"""Where the graph comes from: edges that are given, coordinates, or the training rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas

from kinfolk.checks import InputError, listing
from kinfolk.network import graphs
from kinfolk.network.graph import Graph
from kinfolk.network.network import Network
from kinfolk.report.facts import GraphOrigin, on_globe
from kinfolk.similarity import DeviationDistance, nearest_kin
from kinfolk.tables.columns import Columns, as_texts
from kinfolk.tables.settings import Settings
from kinfolk.tables.target import Target
from kinfolk.typing import Floats, Ints

WIDE, SOFT = 15, 0.3  # the second graph: neighbours of a node, and the part of a typical distance that softens weights


@dataclass(frozen=True, eq=False)
class GraphSource:
    """How the graph comes about: known beforehand, or found by similarity in the rows that may be looked at."""

    origin: GraphOrigin
    known: Graph | None = None

    def graph(self, network: Network, target: Target) -> Graph:
        """The graph, given a network with the rows to learn from; its own graph plays no part."""
        if self.known is not None:
            return self.known
        return nearest_kin(network, DeviationDistance(len(target.classes)), k=self.origin.neighbours)


def graph_source(
    places: Floats | None, columns: Columns, settings: Settings, names: list[str], edges: pandas.DataFrame | None
) -> GraphSource:
    """How the graph comes about; ``places``: where the nodes are, if that is known."""
    k = min(settings.neighbours, len(names) - 1)
    if edges is not None:
        return GraphSource(GraphOrigin("edges"), graph_of_edges(edges, names))
    if settings.graph == "complete" or len(names) == 1:  # a single node has no neighbours
        return GraphSource(GraphOrigin("complete"), graphs.complete(len(names), names))
    if places is not None and settings.graph in ("auto", "coordinates"):
        near = graphs.knn(places, k, metric=_metric(on_globe(columns.coords)), names=names)
        return GraphSource(GraphOrigin("coordinates", k, columns.coords), near)
    return GraphSource(GraphOrigin("similarity", k, leaves=DeviationDistance.leaves))


def wide_graph(places: Floats | None, globe: bool, names: list[str]) -> Graph | None:
    """The second graph: each node with its 15 nearest, or all; near ones weigh more. None without several places.

    The weight at distance d is m / (d + 0.3 m), where m is the median distance of neighbours.

    Parameters
    ----------
    places : Floats or None
        The place of every node (nodes, 2).
    globe : bool
        Whether they are latitudes and longitudes.
    names : list of str
        The names of the nodes.

    Returns
    -------
    Graph or None
        The graph.

    >>> wide_graph(np.array([[0.0, 0.0], [0.0, 1.0], [0.0, 3.0]]), False, list("abc")).weights.round(3).tolist()
    [1.25, 0.556, 0.769]
    """
    if places is None or len(places) == 1:
        return None
    ends, length = graphs.nearest_pairs(places, min(WIDE, len(places) - 1), metric=_metric(globe))
    typical = float(np.median(length)) or float(length.mean()) or 1.0
    return Graph(len(places), ends, typical / (length + SOFT * typical), names)


def _metric(globe: bool) -> Literal["planar", "great-circle"]:
    return "great-circle" if globe else "planar"


def named_ends(edges: pandas.DataFrame) -> Any:
    """The names of the two ends of every edge (edges, 2)."""
    if edges.shape[1] < 2:
        raise InputError(
            f"Expected edges with two columns of nodes, and perhaps one of weights, got {edges.shape[1]} column."
        )
    return edges.iloc[:, :2].apply(as_texts).to_numpy(dtype=object).reshape(-1, 2)


def graph_of_edges(edges: pandas.DataFrame, names: list[str]) -> Graph:
    """A graph from a table whose first two columns name nodes; a third has weights."""
    ends = named_ends(edges)
    number = {name: k for k, name in enumerate(names)}
    unknown = [name for name in ends.ravel() if name not in number]
    if unknown:
        raise InputError(
            f"Expected edges between nodes of the table, got {listing(dict.fromkeys(unknown))}: not there as a node."
        )
    pairs = np.sort(np.array([[number[a], number[b]] for a, b in ends], dtype=np.int64).reshape(-1, 2), axis=1)
    if (pairs[:, 0] == pairs[:, 1]).all():
        raise InputError("Expected edges between different nodes, got only edges from a node to itself: give others.")
    weights = _edge_weights(edges)
    return _once(pairs, weights, names)


def _edge_weights(edges: pandas.DataFrame) -> Floats:
    if edges.shape[1] == 2:
        return np.ones(len(edges))
    weights = pandas.to_numeric(edges.iloc[:, 2], errors="coerce").to_numpy(dtype=np.float64)
    if not (weights > 0).all() or not np.isfinite(weights).all():
        raise InputError(
            f"Expected weights > 0 in column {edges.columns[2]!r} of the edges, got others: correct or drop them."
        )
    return weights


def _once(pairs: Ints, weights: Floats, names: list[str]) -> Graph:
    """Each pair once: an edge that is listed both ways has the mean of its weights; a node is not its own neighbour."""
    apart = pairs[:, 0] != pairs[:, 1]
    ends, inverse, count = np.unique(pairs[apart], axis=0, return_inverse=True, return_counts=True)
    total = np.bincount(inverse.ravel(), weights[apart], minlength=len(ends))
    return Graph(len(names), ends, total / count, names)


def control_graph(graph: Graph, seed: int) -> Graph | None:
    """A random graph with the same degrees; None where there is none, as for a complete graph."""
    try:
        return graphs.random_like(graph, seed=seed)
    except InputError:
        return None


def nearest_known(places: Floats, known: Floats, count: int, globe: bool) -> Any:
    """For every new place, the known ones that are nearest (new, count)."""
    from sklearn.neighbors import NearestNeighbors

    metric, turn = ("haversine", np.radians) if globe else ("euclidean", np.asarray)
    search = NearestNeighbors(metric=metric).fit(turn(known))
    return search.kneighbors(turn(places), n_neighbors=min(count, len(known)))[1]
