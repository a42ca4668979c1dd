"""Graph: who may be kin, and how close. Undirected, weighted, validated once."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import scipy.sparse
from scipy.sparse.csgraph import connected_components

from kinfolk.checks import AtLeast, InputError, as_floats, check_value, listing
from kinfolk.typing import Floats, Ints

if TYPE_CHECKING:
    import networkx
    import pandas


class Extremes(NamedTuple):
    """The largest of a graph: all that mixing needs to know of the whole of it."""

    degree: int  # number of neighbours
    weighted_degree: float  # sum of weights
    weight: float


class Graph:
    """An undirected weighted graph without self-loops or duplicate edges.

    Nodes are numbered 0, 1, ... and may carry names. Edge ``e`` joins ``head[e] < tail[e]`` with weight
    ``weights[e]`` (A_ij in the papers); edges are sorted by their ends, so that equal graphs have equal arrays.

    Parameters
    ----------
    node_count : int
        Number of nodes; nodes without an edge are allowed.
    ends : array of int, shape (edges, 2)
        Numbers of the nodes that each edge joins, in any order.
    weights : array of float, shape (edges,), optional
        Positive finite numbers; 1 each by default.
    names : sequence, optional
        One distinct name per node; the numbers by default.

    >>> graph = Graph(4, [[0, 1], [2, 1]], weights=[1.0, 0.5], names=["Oslo", "Bergen", "Paris", "Lima"])
    >>> graph
    Graph(4 nodes, 2 edges, 2 components)
    >>> graph.degrees
    array([1, 2, 1, 0])
    """

    def __init__(
        self,
        node_count: int,
        ends: Any = (),
        weights: Any = None,
        names: Sequence[Hashable] | None = None,
    ) -> None:
        check_value("node_count", "Graph", node_count, Annotated[int, AtLeast(1)])
        pairs = _as_pairs(ends, node_count)
        given_weights = np.ones(len(pairs)) if weights is None else as_floats(weights, "the edge weights", 1)
        numbers = range(node_count)
        given = numbers if names is None else names
        self.names: Sequence[Hashable] = numbers if isinstance(given, range) and given == numbers else list(given)
        _check_names(self.names, node_count)
        _check_edges(pairs, given_weights, self.names)
        order = np.lexsort((pairs[:, 1], pairs[:, 0]))
        self.node_count = int(node_count)
        self.head: Ints = pairs[order, 0]
        self.tail: Ints = pairs[order, 1]
        self.weights: Floats = given_weights[order]

    # ------------------------------------------------------------------ from and to other forms

    @classmethod
    def from_edges(cls, edges: Iterable[Sequence[Any]], nodes: Iterable[Hashable] | None = None) -> Graph:
        """A graph from (a, b) or (a, b, weight) with any names; ``nodes`` fixes the order and adds lone ones.

        >>> Graph.from_edges([("a", "b"), ("b", "c", 0.5)], nodes=["c", "b", "a", "d"]).weights
        array([0.5, 1. ])
        """
        edges = [tuple(edge) for edge in edges]
        odd = [edge for edge in edges if len(edge) not in (2, 3)]
        if odd:
            raise InputError(f"Expected edges as (a, b) or (a, b, weight), got {odd[0]!r}.")
        names = list(dict.fromkeys(end for edge in edges for end in edge[:2]) if nodes is None else nodes)
        number = {name: k for k, name in enumerate(names)}
        unknown = [end for edge in edges for end in edge[:2] if end not in number]
        if unknown:
            raise InputError(
                f"Expected edges between the given nodes, got unknown names {listing(dict.fromkeys(unknown))}: "
                f"add them to nodes or drop their edges."
            )
        ends = [(number[edge[0]], number[edge[1]]) for edge in edges]
        weights = [edge[2] if len(edge) == 3 else 1.0 for edge in edges]
        return cls(len(names), ends, weights, names)

    @classmethod
    def from_frame(
        cls,
        frame: pandas.DataFrame,
        ends: tuple[str, str],
        weight: str | None = None,
        nodes: Iterable[Hashable] | None = None,
    ) -> Graph:
        """A graph from a data frame with one row per edge: two columns of names, optionally one of weights."""
        columns = [*ends, *([weight] if weight else [])]
        missing = [column for column in columns if column not in frame.columns]
        if missing:
            raise InputError(f"Expected edge columns {columns}, the frame has no {listing(missing)}.")
        return cls.from_edges(frame[columns].itertuples(index=False, name=None), nodes)

    @classmethod
    def from_networkx(cls, graph: networkx.Graph, weight: str = "weight") -> Graph:
        """A graph from networkx; edges without the ``weight`` attribute count 1."""
        if graph.is_directed() or graph.is_multigraph():
            raise InputError(
                "Expected an undirected graph without parallel edges, got a directed graph or a multigraph: "
                "convert it with networkx.Graph(graph) first."
            )
        return cls.from_edges(graph.edges(data=weight, default=1.0), graph.nodes)

    @classmethod
    def from_sparse(cls, adjacency: Any, names: Sequence[Hashable] | None = None) -> Graph:
        """A graph from a symmetric adjacency matrix, scipy sparse or dense; zeros are no edges."""
        matrix = scipy.sparse.csr_array(adjacency)
        if matrix.shape[0] != matrix.shape[1] or abs(matrix - matrix.T).max() > 0:
            raise InputError(
                f"Expected a symmetric adjacency matrix, got shape {matrix.shape} that is not: "
                "symmetrise it, for example (A + A.T) / 2."
            )
        if matrix.diagonal().any():
            raise InputError("Expected no self-loops, got a non-zero diagonal: set it to zero.")
        upper = scipy.sparse.triu(matrix, k=1).tocoo()
        present = upper.data != 0
        ends = np.stack([upper.row[present], upper.col[present]], axis=1)
        return cls(matrix.shape[0], ends, upper.data[present], names)

    def to_sparse(self) -> scipy.sparse.csr_array:
        """The symmetric adjacency matrix (nodes, nodes)."""
        rows = np.concatenate([self.head, self.tail])
        columns = np.concatenate([self.tail, self.head])
        return scipy.sparse.csr_array(
            (np.tile(self.weights, 2), (rows, columns)), shape=(self.node_count, self.node_count)
        )

    def to_frame(self) -> pandas.DataFrame:
        """One row per edge: head, tail (names) and weight."""
        import pandas

        head = [self.names[k] for k in self.head]
        tail = [self.names[k] for k in self.tail]
        return pandas.DataFrame({"head": head, "tail": tail, "weight": self.weights})

    def to_networkx(self) -> networkx.Graph:
        """The same graph for networkx, with names as nodes and a ``weight`` on each edge."""
        import networkx

        graph = networkx.Graph()
        graph.add_nodes_from(self.names)
        graph.add_weighted_edges_from(self.to_frame().itertuples(index=False, name=None))
        return graph

    # ------------------------------------------------------------------ what can be read off it

    @property
    def edge_count(self) -> int:
        """Number of edges, each counted once."""
        return len(self.head)

    @cached_property
    def degrees(self) -> Ints:
        """Number of neighbours of every node."""
        return np.bincount(np.concatenate([self.head, self.tail]), minlength=self.node_count).astype(np.int64)

    @property
    def weighted_degrees(self) -> Floats:
        """Sum of the weights of every node's edges; asked for so seldom that it is not kept."""
        ends = np.concatenate([self.head, self.tail])
        return np.bincount(ends, np.tile(self.weights, 2), minlength=self.node_count).astype(np.float64)

    @cached_property
    def extremes(self) -> Extremes:
        """The largest degree, weighted degree and weight."""
        return Extremes(
            int(self.degrees.max()), float(self.weighted_degrees.max()), float(self.weights.max(initial=0.0))
        )

    @cached_property
    def components(self) -> Ints:
        """The connected component of every node, numbered from 0."""
        out: Ints = connected_components(self.to_sparse(), directed=False)[1].astype(np.int64)
        return out

    @cached_property
    def colours(self) -> Ints:
        """Few colours, numbered from 0, such that neighbours differ: the largest degrees choose first.

        >>> Graph(5, [[0, 1], [1, 2], [2, 3], [1, 3]]).colours
        array([1, 0, 1, 2, 0])
        """
        from kinfolk import kernels

        order = np.argsort(-self.degrees, kind="stable")
        return kernels.first_fit_colours(self.head, self.tail, self.degrees, order)

    @property
    def laplacian(self) -> scipy.sparse.csr_array:
        """The weighted Laplacian: diag(weighted degrees) − adjacency."""
        return (scipy.sparse.diags_array(self.weighted_degrees) - self.to_sparse()).tocsr()

    @cached_property
    def _numbers(self) -> dict[Hashable, int]:
        return {name: k for k, name in enumerate(self.names)}

    def number(self, name: Hashable) -> int:
        """The number of the node called ``name``."""
        return int(self.numbers([name])[0])

    def numbers(self, names: Iterable[Hashable]) -> Ints:
        """The numbers of nodes given by name; an unknown name is refused with a sentence."""
        if isinstance(self.names, range):
            found = np.asarray(list(names), dtype=object)
            known = [isinstance(name, int | np.integer) and 0 <= name < self.node_count for name in found]
        else:
            found = np.asarray([*names, None], dtype=object)[:-1]
            known = [name in self._numbers for name in found]
        if not all(known):
            unknown = [name for name, is_known in zip(found, known, strict=True) if not is_known]
            raise InputError(
                f"Expected names of nodes in the graph, got unknown {listing(dict.fromkeys(unknown))}: "
                f"the graph has {self.node_count} nodes such as {listing(self.names[:3])}."
            )
        if isinstance(self.names, range):
            return found.astype(np.int64)
        return np.array([self._numbers[name] for name in found], dtype=np.int64)

    def __repr__(self) -> str:
        count = int(self.components.max()) + 1 if self.node_count else 0
        return f"Graph({self.node_count:,} nodes, {self.edge_count:,} edges, {count:,} components)"

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Graph)
            and list(self.names) == list(other.names)
            and np.array_equal(self.head, other.head)
            and np.array_equal(self.tail, other.tail)
            and np.array_equal(self.weights, other.weights)
        )

    __hash__ = None  # type: ignore[assignment]


def _as_pairs(ends: Any, node_count: int) -> Ints:
    """The ends as an array (edges, 2) of node numbers, the smaller first."""
    pairs = np.asarray(ends)
    if pairs.size == 0:
        return np.empty((0, 2), dtype=np.int64)
    if pairs.ndim != 2 or pairs.shape[1] != 2 or not np.issubdtype(pairs.dtype, np.integer):
        raise InputError(
            f"Expected edge ends as whole numbers of shape (edges, 2), got {pairs.dtype} of shape {pairs.shape}: "
            "use Graph.from_edges for names."
        )
    outside = pairs[(pairs < 0) | (pairs >= node_count)]
    if len(outside):
        raise InputError(
            f"Expected node numbers from 0 to {node_count - 1}, got an edge to node {outside[0]}: "
            "raise node_count or drop the edge."
        )
    return np.sort(pairs.astype(np.int64), axis=1)


def _check_names(names: Sequence[Hashable], node_count: int) -> None:
    if len(names) != node_count:
        raise InputError(f"Expected one name for each of {node_count} nodes, got {len(names)} names.")
    if not isinstance(names, range) and len(set(names)) != node_count:
        repeated = [name for k, name in enumerate(names) if name in names[:k]]
        raise InputError(f"Expected distinct node names, got {listing(dict.fromkeys(repeated))} more than once.")


def _check_edges(pairs: Ints, weights: Floats, names: Sequence[Hashable]) -> None:
    if len(weights) != len(pairs):
        raise InputError(f"Expected one weight for each of {len(pairs)} edges, got {len(weights)} weights.")
    loops = pairs[pairs[:, 0] == pairs[:, 1], 0]
    if len(loops):
        raise InputError(f"Expected no self-loops, got one at node {names[loops[0]]!r}: drop it.")
    if (weights <= 0).any():
        k = int(np.argmax(weights <= 0))
        raise InputError(
            f"Expected edge weights > 0, got {weights[k]:g} between {names[pairs[k, 0]]!r} and "
            f"{names[pairs[k, 1]]!r}: leave an edge out instead of giving it weight zero."
        )
    distinct, counts = np.unique(pairs, axis=0, return_counts=True)
    if len(distinct) < len(pairs):
        a, b = distinct[counts > 1][0]
        raise InputError(
            f"Expected each edge once, got the edge between {names[a]!r} and {names[b]!r} more than once: "
            "add up or average the weights of duplicates."
        )
