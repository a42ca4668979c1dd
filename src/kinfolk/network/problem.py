"""Problem: what everybody may know of a network. It has no rows."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from kinfolk.checks import InputError, listing
from kinfolk.network.graph import Graph
from kinfolk.network.public import PublicPoints
from kinfolk.typing import Bools, Floats, Ints


class Numbers(Sequence[int]):
    """The numbers of some nodes as their names. They are looked up: a million of them need no objects of their own.

    >>> names = Numbers(np.array([7, 5]))
    >>> names[0], list(names), list(names[np.array([1])])
    (7, [7, 5], [5])
    """

    def __init__(self, nodes: Ints) -> None:
        self._nodes = nodes

    def __len__(self) -> int:
        return len(self._nodes)

    def __getitem__(self, place: Any) -> Any:
        chosen = self._nodes[place]
        return Numbers(chosen) if isinstance(chosen, np.ndarray) else int(chosen)


class Problem:
    """A graph, the names of the features, who has data, the classes and the public points; no rows.

    This is what a coordinator knows. A ``Network`` is a problem whose rows are here as well.

    Parameters
    ----------
    graph : Graph
        Who may be kin.
    features : sequence of str
        Names of the features.
    has_data : array of bool, shape (nodes,)
        Whether a node has rows.
    classes : array, optional
        The labels that occur anywhere, if they are classes.
    public : PublicPoints or array, optional
        Points on which neighbours compare predictions.

    >>> from kinfolk import graphs
    >>> Problem(graphs.chain(3), features=["age"], has_data=[True, False, True])
    Problem(3 nodes, 2 edges, 1 features; 1 node without data; the rows are elsewhere)
    """

    def __init__(
        self,
        graph: Graph,
        *,
        features: Sequence[str],
        has_data: Any,
        classes: Any = None,
        public: Any = None,
    ) -> None:
        if not isinstance(graph, Graph):
            raise InputError(f"Expected a Graph, got {type(graph).__name__}: convert it, as with Graph.from_networkx.")
        self.graph = graph
        self.features = list(features)
        self._has_data = np.asarray(has_data, dtype=bool)
        if self._has_data.shape != (graph.node_count,):
            raise InputError(
                f"Expected True or False for each of {graph.node_count} nodes, got shape {self._has_data.shape}."
            )
        self._classes = None if classes is None else np.asarray(classes, dtype=np.float64)
        self.public = None if public is None else PublicPoints.of(public, graph.node_count, len(self.features))

    @property
    def names(self) -> Sequence[Hashable]:
        """The names of the nodes."""
        return self.graph.names

    def names_of(self, nodes: Ints) -> Any:
        """The names of some nodes, and no others: an array of objects, or their ``Numbers``."""
        if isinstance(self.names, range):
            return Numbers(nodes)
        names = np.empty(len(nodes), dtype=object)
        names[:] = [self.names[node] for node in nodes]
        return names

    @property
    def feature_count(self) -> int:
        """Number of features."""
        return len(self.features)

    @property
    def has_data(self) -> Bools:
        """(nodes,) whether a node has rows."""
        return self._has_data

    @property
    def classes(self) -> Floats | None:
        """The labels that occur at any node, ascending, if they are classes."""
        return self._classes

    @cached_property
    def informed(self) -> Bools:
        """Whether a node has data or is connected, however far, to one that has."""
        component = self.graph.components
        reached = np.zeros(component.max() + 1, dtype=bool)
        reached[component[self.has_data]] = True
        return reached[component]

    def remarks(self) -> list[str]:
        """What a user should know about the graph before trusting what is learnt along its edges.

        >>> from kinfolk import graphs
        >>> print(*Problem(graphs.edgeless(2), features=["x"], has_data=[True, False]).remarks(), sep="\\n")
        The graph has 2 components: nothing is learnt across them.
        2 nodes have no neighbour (0, 1): they learn from their own data only.
        1 node has no data and no connection to any (1): nothing can be learnt there.
        """
        out = []
        count = int(self.graph.components.max()) + 1
        if count > 1:
            out.append(f"The graph has {count:,} components: nothing is learnt across them.")
        alone = np.flatnonzero(self.graph.degrees == 0)
        if len(alone):
            out.append(f"{self._such(alone, 'no neighbour')}: they learn from their own data only.")
        lost = np.flatnonzero(~self.informed)
        if len(lost):
            out.append(f"{self._such(lost, 'no data and no connection to any')}: nothing can be learnt there.")
        return out

    def scale_remarks(self) -> list[str]:
        """What a user should know about the scales of the features; nothing without rows."""
        return []

    def _such(self, nodes: Any, what: str) -> str:
        named = listing(self.names[k] for k in nodes)
        return f"{len(nodes):,} node{'s have' if len(nodes) > 1 else ' has'} {what} ({named})"

    def _without_data(self) -> str:
        bare = int((~self.has_data).sum())
        return f"; {bare:,} node{'s' if bare > 1 else ''} without data" if bare else ""

    def __repr__(self) -> str:
        return (
            f"Problem({self.graph.node_count:,} nodes, {self.graph.edge_count:,} edges, {self.feature_count:,} features"
            f"{self._without_data()}; the rows are elsewhere)"
        )
