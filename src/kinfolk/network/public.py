"""Public points: unlabelled feature vectors on which neighbours compare their predictions.

One common set, or one set per node (each node shows its own to its neighbours, once, before round 1). Where they come
from is recorded, because it decides what they reveal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from kinfolk.checks import AtLeast, Between, InputError, as_floats, check_value
from kinfolk.typing import Floats

if TYPE_CHECKING:
    from kinfolk.network.network import Network


@dataclass(frozen=True, eq=False)
class PublicPoints:
    """Points that neighbours may see, and where they come from."""

    points: Floats  # (points, features), or (nodes, points, features): a set per node
    source: str = "given by the user"

    @property
    def per_node(self) -> bool:
        """Whether every node has a set of its own."""
        return self.points.ndim == 3

    def __str__(self) -> str:
        sets = "a set of its own for every node" if self.per_node else "one common set"
        return f"{self.points.shape[-2]} public points, {sets}, {self.source}"

    @classmethod
    def of(cls, given: Any, node_count: int, width: int) -> PublicPoints:
        """Check what a user gave: an array (points, features) or (nodes, points, features)."""
        points = given if isinstance(given, PublicPoints) else cls(as_floats(given, "the public points", 2, 3))
        shape = points.points.shape
        if shape[-1] != width:
            raise InputError(f"Expected public points with {width} features, got {shape[-1]}.")
        if points.per_node and shape[0] != node_count:
            raise InputError(f"Expected a set of public points for each of the {node_count} nodes, got {shape[0]}.")
        if shape[-2] == 0:
            raise InputError("Expected at least one public point, got none.")
        return points


def standard_normal(network: Network, points: int = 100, *, per_node: bool = False, seed: int = 0) -> PublicPoints:
    """Points from N(0, I): they reveal nothing, and suit features that are standardised.

    >>> from kinfolk import Network, graphs
    >>> network = Network(graphs.chain(2), [([[1.0]], [1.0]), ([[2.0]], [1.0])])
    >>> print(standard_normal(network, 50))
    50 public points, one common set, drawn from N(0, I)
    """
    return PublicPoints(_normal(network, points, per_node, seed), "drawn from N(0, I)")


def like_the_data(network: Network, points: int = 100, *, per_node: bool = False, seed: int = 0) -> PublicPoints:
    """Points from the normal distribution with the mean and covariance of all features.

    Only sums over all nodes are needed: they reveal the network's mean and covariance, and nothing of a row.
    """
    X = network.data.X
    centre = X.mean(axis=0)
    values, vectors = np.linalg.eigh(np.atleast_2d(np.cov(X.T, bias=True)))
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    drawn = centre + _normal(network, points, per_node, seed) @ root.T
    return PublicPoints(drawn, "drawn from a normal distribution with the mean and covariance of all features")


def share_of_features(network: Network, share: float, *, seed: int = 0) -> PublicPoints:
    """One common set: a random share of all nodes' feature vectors, without their labels. It reveals them."""
    check_value("share", "share_of_features", share, Annotated[float, Between(0, 1, open_low=True)])
    rows = len(network.data.X)
    chosen = np.random.default_rng(seed).choice(rows, max(1, round(share * rows)), replace=False)
    return PublicPoints(
        network.data.X[np.sort(chosen)], f"{100 * share:g} % of the local features, which are thereby revealed"
    )


def _normal(network: Network, points: int, per_node: bool, seed: int) -> Floats:
    check_value("points", "public points", points, Annotated[int, AtLeast(1)])
    sets = (network.graph.node_count,) if per_node else ()
    return np.random.default_rng(seed).normal(size=(*sets, points, network.data.feature_count))
