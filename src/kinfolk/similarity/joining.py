"""From distances between nodes to a graph: one way for every measure."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import Annotated, ClassVar, Literal, Protocol

import numpy as np
from scipy.spatial.distance import cdist

from kinfolk.checks import AtLeast, InputError, Positive, check_parameters, check_value
from kinfolk.network.graph import Graph
from kinfolk.network.graphs import nearest
from kinfolk.network.network import Network
from kinfolk.typing import Floats, Ints

Needs = Literal["numbers only", "pooled rows"]
Metric = Literal["euclidean", "cityblock"]
NUMBERS_AT_ONCE = 2**24  # distances that are looked at together


class Measure(Protocol):
    """How far apart the nodes of a network are; a frozen dataclass of options.

    ``needs`` declares whether rows must be brought together, and ``leaves`` describes what leaves a node.
    """

    needs: ClassVar[Needs]
    leaves: ClassVar[str]

    def distances(self, network: Network) -> Floats:
        """Symmetric distances ≥ 0 of shape (nodes, nodes); NaN for a node about which nothing is known."""
        ...


class Placed(ABC):
    """A measure that puts every node at a point: distances are those of points, and are computed as needed."""

    metric: ClassVar[Metric] = "euclidean"

    @abstractmethod
    def places(self, network: Network) -> Floats:
        """The points of the nodes (nodes, numbers); NaN for a node about which nothing is known."""

    def distances(self, network: Network) -> Floats:
        """The distances of the points."""
        places = self.places(network)
        return np.asarray(cdist(places, places, self.metric))


def nearest_kin(
    network: Network, measure: Measure, *, k: int | None = 4, scale: float | Literal["median"] = "median"
) -> Graph:
    """Join every node with the ``k`` nearest by a measure, with weights exp(−distance / scale).

    Clustered Federated Learning via Generalized Total Variation Minimization (2023), section VI-C, joins the 4
    nearest with ``scale=1``. Nodes about which the measure knows nothing, such as those without data, have no
    neighbours. All pairs are compared: time grows with the square of the number of nodes, and memory as well where the
    measure is no ``Placed`` one.

    Parameters
    ----------
    network : Network
        The nodes and their data; its graph plays no part.
    measure : Measure
        One of this package, or any other.
    k : int, optional
        How many nodes each one chooses (all the others if they are fewer); an edge exists if either end chose the
        other. None: all pairs are joined.
    scale : float or "median"
        ``"median"``: of the distances of all pairs that are joined, whatever the units.

    Returns
    -------
    Graph
        The graph over the same nodes.

    >>> from kinfolk import graphs
    >>> from kinfolk.similarity import ParameterDistance
    >>> x = np.ones((1, 1))
    >>> network = Network(graphs.edgeless(4), [(x, [0.0]), (x, [1.0]), (x, [3.0]), None])
    >>> nearest_kin(network, ParameterDistance(), k=1).degrees
    array([1, 2, 1, 0])
    """
    check_value("k", "nearest_kin", k, Annotated[int, AtLeast(1)] | None)
    check_value("scale", "nearest_kin", scale, Annotated[float, Positive()] | Literal["median"])
    if dataclasses.is_dataclass(measure):
        check_parameters(measure)
    metric = measure.metric if isinstance(measure, Placed) else None
    table = measure.places(network) if isinstance(measure, Placed) else measure.distances(network)
    return joined(table, metric, k, scale, network.names, type(measure).__name__)


def joined(
    table: Floats,
    metric: Metric | None,
    k: int | None,
    scale: float | Literal["median"],
    names: Sequence[Hashable],
    measure: str,
) -> Graph:
    """The graph of nodes at some points, or with some distances if there is no ``metric``; see ``nearest_kin``."""
    ends, length = _pairs(table, metric, k, measure)
    weights = np.exp(-length / ((float(np.median(length)) or 1.0) if scale == "median" else scale))
    return Graph(len(table), ends[weights > 0], weights[weights > 0], names)


def _pairs(table: Floats, metric: Metric | None, k: int | None, measure: str) -> tuple[Ints, Floats]:
    """The pairs of which either end is among the k nearest of the other (pairs, 2), and their distances."""
    known = np.flatnonzero(~np.isnan(table[:, 0] if metric else np.diagonal(table)))
    if len(known) < 2:
        raise InputError(
            f"Expected two nodes at least that {measure} can compare, got {len(known)} of {len(table)}: nodes need "
            "data of their own to be found similar."
        )
    chosen, found = [], []
    for some in np.array_split(known, max(1, len(known) ** 2 // NUMBERS_AT_ONCE)):
        apart = cdist(table[some], table[known], metric) if metric else table[np.ix_(some, known)]
        apart[some[:, None] == known] = np.inf
        rows, columns = nearest(apart, len(known) - 1 if k is None else min(k, len(known) - 1))
        chosen.append(np.stack([some[rows], known[columns]], axis=1))
        found.append(apart[rows, columns])
    ends, first = np.unique(np.sort(np.concatenate(chosen), axis=1), axis=0, return_index=True)
    return ends, np.concatenate(found)[first]
