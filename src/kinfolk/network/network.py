"""Network: a graph, and a local data set at every node."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from kinfolk.checks import InputError, as_floats, listing
from kinfolk.network.data import Data
from kinfolk.network.graph import Graph
from kinfolk.network.problem import Problem
from kinfolk.typing import Bools, Floats

if TYPE_CHECKING:
    import pandas

    from kinfolk.network.site import Site

MOST_CLASSES = 1_000
UNEVEN = 1e3  # a ratio of feature scales that deserves a remark


class Network(Problem):
    """A graph, a local data set at every node, and optionally test data and public points.

    Parameters
    ----------
    graph : Graph
        Who may be kin.
    data : mapping, sequence or Data
        (X, y) for every node: a mapping by name (nodes left out have no data), a sequence in node order
        (None for a node without data), or a ``Data``. ``y`` has shape (rows,), or (rows, outputs) for modules of torch.
    test : mapping, sequence or Data, optional
        Held-out data in the same forms; used for the error in the history, never for learning.
    public : array or PublicPoints, optional
        Unlabelled points on which neighbours compare predictions: (points, features), (nodes, points, features)
        for a set per node, or what ``kinfolk.public`` draws.
    features : sequence of str, optional
        Names of the features.

    >>> from kinfolk import graphs
    >>> Network(graphs.chain(3), {0: ([[1.0], [2.0]], [1.0, 2.0]), 2: ([[1.0]], [3.0])})
    Network(3 nodes, 2 edges, 3 samples, 1 features; 1 node without data)
    """

    def __init__(
        self,
        graph: Graph,
        data: Data | Mapping[Hashable, tuple[Any, Any]] | Sequence[tuple[Any, Any] | None],
        *,
        test: Data | Mapping[Hashable, tuple[Any, Any]] | Sequence[tuple[Any, Any] | None] | None = None,
        public: Any = None,
        features: Sequence[str] | None = None,
    ) -> None:
        if not isinstance(graph, Graph):
            raise InputError(f"Expected a Graph, got {type(graph).__name__}: convert it, as with Graph.from_networkx.")
        self.data = _as_data(graph, data, "data")
        if not len(self.data.y):
            raise InputError("Expected data at one node at least, got an empty network: give (X, y) for some node.")
        width = self.data.feature_count
        if width == 0:
            raise InputError("Expected at least one feature, got none: a column of ones makes a model of the mean.")
        self.test = None if test is None else _as_data(graph, test, "test")
        if self.test is not None and len(self.test.y) and self.test.feature_count != width:
            raise InputError(f"Expected test data with {width} features, got {self.test.feature_count}.")
        if self.test is not None and len(self.test.y) and self.test.y.shape[1:] != self.data.y.shape[1:]:
            raise InputError(
                f"Expected test labels of shape {('rows', *self.data.y.shape[1:])} as in the data, got "
                f"{('rows', *self.test.y.shape[1:])}."
            )
        names = [f"x{k}" for k in range(width)] if features is None else list(features)
        if len(names) != width:
            raise InputError(f"Expected names for {width} features, got {len(names)}.")
        super().__init__(graph, features=names, has_data=self.data.sizes > 0, public=public)

    @classmethod
    def of_points(
        cls, graph: Graph, points: Any, *, test: Any = None, features: Sequence[str] | None = None
    ) -> Network:
        """A network without a target: one point or several for every node, or None.

        ``points`` are a mapping by name, or a sequence or array in node order; ``test`` has held-out points in the same
        forms. Such data are for ``SquaredDistance``: it finds centres that kin have in common.

        >>> from kinfolk import graphs
        >>> Network.of_points(graphs.chain(3), [[0.0, 1.0], [[1.0, 1.0], [2.0, 2.0]], None])
        Network(3 nodes, 2 edges, 3 samples, 2 features; 1 node without data)
        """
        data = Data.of_points(_in_order(graph, points), graph.names)
        held_out = None if test is None else Data.of_points(_in_order(graph, test), graph.names)
        return cls(graph, data, test=held_out, features=features)

    @classmethod
    def from_frame(
        cls,
        frame: pandas.DataFrame,
        *,
        node: str,
        target: str | Sequence[str] | None,
        features: Sequence[str] | None = None,
        graph: Graph,
        test: Any = None,
        public: Any = None,
    ) -> Network:
        """A network from a table whose rows carry a node, a target and features (default: all other columns).

        Several targets make ``y`` (rows, outputs). Without a target (None) the features are points, see ``of_points``.

        ``test`` marks held-out rows: a boolean array, or the name of a boolean column. Nodes of the graph
        without a row have no data.

        >>> import pandas
        >>> table = pandas.DataFrame({"city": ["a", "b", "b"], "x": [1.0, 2.0, 3.0], "y": [1.0, 2.0, 2.5]})
        >>> graph = Graph.from_edges([("a", "b")])
        >>> Network.from_frame(table, node="city", target="y", graph=graph).data[1]
        (array([[2.], [3.]]), array([2. , 2.5]))
        """
        masked = [test] if isinstance(test, str) else []
        several = isinstance(target, list | tuple)
        targets = [] if target is None else list(target) if several else [target]
        if several and not targets:
            raise InputError("Expected the name of a target column, or several, got an empty list: None for no target.")
        leaked = [name for name in targets if name in (features or ())]
        if leaked:
            raise InputError(f"Expected features without the target, got {leaked[0]!r} among them: leave it out.")
        if features is None:
            features = [c for c in frame.columns if c not in (node, *targets, *masked)]
        missing = [c for c in [node, *targets, *features, *masked] if c not in frame.columns]
        if missing:
            raise InputError(f"Expected columns {listing(missing)}, the table has {listing(frame.columns, 10)}.")
        owner = graph.numbers(frame[node])
        X = as_floats(frame[list(features)], "the feature columns", 2)
        y = np.zeros(len(X))
        if target is not None:
            y = as_floats(frame[targets if several else target], f"the target column {target!r}", 2 if several else 1)
        held_out = _as_mask(frame[test] if isinstance(test, str) else test, len(frame))
        data, tested = (
            Data.from_rows(X[rows], y[rows], owner[rows], graph.node_count) for rows in (~held_out, held_out)
        )
        if target is None:
            data, tested = data.without_target(), tested.without_target()
        return cls(
            graph, data, test=tested if held_out.any() else None, public=public, features=list(map(str, features))
        )

    @cached_property
    def site(self) -> Site:
        """The site that holds every node; what it has prepared serves every later run on this network."""
        from kinfolk.network.site import site_of

        return site_of(self, np.arange(self.graph.node_count))

    @property
    def problem(self) -> Problem:
        """What everybody may know of this network: all but the rows."""
        return Problem(
            self.graph, features=self.features, has_data=self.has_data, classes=self.classes, public=self.public
        )

    @cached_property
    def classes(self) -> Floats | None:
        """The labels that occur at any node, ascending, if they are at most ``MOST_CLASSES`` whole numbers.

        >>> from kinfolk import graphs
        >>> Network(graphs.chain(2), [([[1.0]], [2.0]), ([[2.0]], [0.0])]).classes
        array([0., 2.])
        """
        if self.data.output_count is not None or not (self.data.y == np.floor(self.data.y)).all():
            return None
        found = np.unique(self.data.y)
        return found if len(found) <= MOST_CLASSES else None

    def remarks(self) -> list[str]:
        """What a user should know about this network before trusting what is learnt on it."""
        return [*super().remarks(), *self.scale_remarks()]

    def scale_remarks(self) -> list[str]:
        """What a user should know about features of very different sizes."""
        sizes = np.abs(self.data.X).max(axis=0)
        largest, smallest = int(sizes.argmax()), int(np.where(sizes > 0, sizes, np.inf).argmin())
        if sizes[smallest] == 0 or sizes[largest] / sizes[smallest] <= UNEVEN:
            return []
        return [
            f"Features differ in scale by a factor of {sizes[largest] / sizes[smallest]:.0e} "
            f"({self.features[largest]!r} against {self.features[smallest]!r}): bring them to one scale, or small "
            "ones hardly count in the coupling and in the stop test."
        ]

    def hide(self, nodes: Any) -> Network:
        """The same network without the data of some nodes, given by name or by a mask; they become the test data.

        >>> from kinfolk import graphs
        >>> Network(graphs.chain(2), [([[1.0]], [1.0]), ([[2.0]], [2.0])]).hide([1])
        Network(2 nodes, 1 edges, 1 samples, 1 features; 1 node without data)
        """
        mask = np.asarray(nodes)
        hidden = np.zeros(self.graph.node_count, dtype=bool)
        hidden[_as_mask(mask, len(hidden)) if mask.dtype == bool else self.graph.numbers(nodes)] = True
        return self.hold_out(hidden[self.data.owner])

    def hold_out(self, rows: Any) -> Network:
        """The same network without some rows of its data, given by a mask; they become the test data."""
        held_out, data = _as_mask(rows, len(self.data.y)), self.data
        kept, held = data.keep(~held_out), data.keep(held_out)
        return Network(self.graph, kept, test=held, public=self.public, features=self.features)

    def with_graph(self, graph: Graph) -> Network:
        """The same data on another graph of the same nodes."""
        return Network(graph, self.data, test=self.test, public=self.public, features=self.features)

    def with_public(self, public: Any) -> Network:
        """The same network with other public points: an array, or what ``kinfolk.public`` draws.

        >>> from kinfolk import graphs, public
        >>> network = Network(graphs.chain(2), [([[1.0]], [2.0]), ([[2.0]], [0.0])])
        >>> print(network.with_public(public.standard_normal(network, 20)).public)
        20 public points, one common set, drawn from N(0, I)
        """
        return Network(self.graph, self.data, test=self.test, public=public, features=self.features)

    def __repr__(self) -> str:
        return (
            f"Network({self.graph.node_count:,} nodes, {self.graph.edge_count:,} edges, {len(self.data.y):,} samples, "
            f"{self.feature_count:,} features{self._without_data()})"
        )


def _as_data(graph: Graph, data: Any, what: str) -> Data:
    if not isinstance(data, Data):
        data = Data.from_nodes(_in_order(graph, data), graph.names)
    if data.node_count != graph.node_count:
        raise InputError(
            f"Expected {what} for each of the {graph.node_count} nodes of the graph, got {data.node_count}: "
            "use None for a node without data."
        )
    out: Data = data
    return out


def _in_order(graph: Graph, sets: Any) -> Any:
    """What is given for the nodes, in node order; None for those that a mapping leaves out."""
    if not isinstance(sets, Mapping):
        return sets
    found = dict(zip(graph.numbers(sets).tolist(), sets.values(), strict=True))
    return [found.get(k) for k in range(graph.node_count)]


def _as_mask(mask: Any, length: int) -> Bools:
    array = np.zeros(length, dtype=bool) if mask is None else np.asarray(mask)
    if array.dtype != bool or array.shape != (length,):
        raise InputError(
            f"Expected one True or False for each of {length} rows or nodes, got {array.dtype} of shape {array.shape}."
        )
    return array
