"""From distances between nodes to a graph: one way for every measure."""

from __future__ import annotations

import dataclasses
from typing import Annotated, ClassVar, Literal, Protocol

import numpy as np

from kinfolk.checks import AtLeast, InputError, Positive, check_parameters, check_value
from kinfolk.network.graph import Graph
from kinfolk.network.graphs import from_distances
from kinfolk.network.network import Network
from kinfolk.typing import Bools, Floats, Ints

Needs = Literal["numbers only", "pooled rows"]


class Measure(Protocol):
    """How far apart the nodes of a network are; a frozen dataclass of options.

    ``needs`` says whether rows must be brought together, and ``leaves`` in words what leaves a node.
    """

    needs: ClassVar[Needs]
    leaves: ClassVar[str]

    def distances(self, network: Network) -> Floats:
        """Symmetric distances ≥ 0 of shape (nodes, nodes); NaN for a node about which nothing is known."""
        ...


def nearest_kin(
    network: Network, measure: Measure, *, k: int | None = 4, scale: float | Literal["median"] = "median"
) -> Graph:
    """Join every node with the ``k`` nearest by a measure, with weights exp(−distance / scale).

    Clustered Federated Learning via Generalized Total Variation Minimization (2023), section VI-C, joins the 4
    nearest with ``scale=1``. Nodes about which the measure knows nothing, such as those without data, are joined with
    nobody. All pairs are measured: memory grows with the square of the number of nodes.

    Parameters
    ----------
    network : the nodes and their data; its graph plays no part.
    measure : one of this package, or any ``Measure``.
    k : how many nodes each one chooses (all the others if they are fewer); an edge exists if either end chose the
        other. None: all pairs are joined.
    scale : a number, or ``"median"`` of the distances of all pairs that are joined, whatever the units.

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
    known, distances = _among_known(network, measure)
    fewest = None if k is None else min(k, len(known) - 1)
    joined = from_distances(distances, k=fewest, scale=_scale(distances, fewest) if scale == "median" else scale)
    ends = known[np.stack([joined.head, joined.tail], axis=1)]
    return Graph(network.graph.node_count, ends, joined.weights, network.names)


def _among_known(network: Network, measure: Measure) -> tuple[Ints, Floats]:
    """The nodes that the measure knows, and the distances among them."""
    distances = measure.distances(network)
    known = np.flatnonzero(~np.isnan(np.diagonal(distances)))
    if len(known) < 2:
        raise InputError(
            f"Expected two nodes at least that {type(measure).__name__} can compare, got {len(known)} of "
            f"{network.graph.node_count}: nodes need data of their own to be found similar."
        )
    return known, distances[np.ix_(known, known)]


def _scale(distances: Floats, k: int | None) -> float:
    """The median distance of joined pairs; 1 where most of them are at the same place."""
    huge = float(distances.max()) or 1.0  # with such a scale no weight is lost to rounding
    joined = from_distances(distances, k=k, scale=huge)
    return float(np.median(distances[joined.head, joined.tail])) or 1.0


def blank(known: Bools, distances: Floats) -> Floats:
    """Distances with NaN in the rows and columns of nodes that are not known."""
    return np.where(known[:, None] & known[None, :], distances, np.nan)
