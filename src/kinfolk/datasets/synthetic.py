"""Synthetic networks of the papers, with the truth that they were drawn from.

SarcheshmehPour, Tian, Zhang, Jung: Clustered Federated Learning via Generalized Total Variation Minimization (2023),
section VI-A and VI-B: nodes of a cluster share the true parameters w̄, whose entries are 0 or ½ with equal chance, and

    y = x'w̄ + σ ε,    x ~ N(0, I),  ε ~ N(0, 1)                                                              (39)

A share ρ of the nodes, drawn at random, has data; the others have none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from kinfolk.checks import AtLeast, Between, check_value
from kinfolk.graph import Graph
from kinfolk.graphs import chain, double_star, stochastic_block
from kinfolk.network import Network
from kinfolk.typing import Floats, Ints

VALUES = (0.0, 0.5)  # of the entries of the true parameters


@dataclass(frozen=True, eq=False)
class Synthetic:
    """A network, the true parameters of every node, and its cluster."""

    network: Network
    truth: Floats  # (nodes, features)
    cluster: Ints  # (nodes,)

    def error(self, w: Floats) -> float:
        """The mean over nodes of ‖w_i − w̄_i‖², eq (41); it is not divided by the number of features."""
        return float(((w - self.truth) ** 2).sum(axis=1).mean())


def clustered_regression(
    graph: Graph,
    cluster: Ints,
    *,
    features: int = 100,
    samples: int = 10,
    noise: float = 1e-3,
    share: float = 1.0,
    seed: int = 0,
) -> Synthetic:
    """Linear regression (39) on a graph whose nodes belong to clusters.

    Parameters
    ----------
    graph, cluster : who is joined with whom, and the cluster of every node, numbered from 0.
    features, samples : d, and m_i of a node that has data.
    noise, share : σ and ρ.

    >>> from kinfolk import graphs
    >>> clustered_regression(graphs.chain(4), np.array([0, 0, 1, 1]), features=2, share=0.5).network
    Network(4 nodes, 3 edges, 20 samples, 2 features; 2 nodes without data)
    """
    for name, value, low in (("features", features, 1), ("samples", samples, 1)):
        check_value(name, "clustered_regression", value, Annotated[int, AtLeast(low)])
    check_value("noise", "clustered_regression", noise, Annotated[float, AtLeast(0)])
    check_value("share", "clustered_regression", share, Annotated[float, Between(0, 1, open_low=True)])
    rng = np.random.default_rng([seed, 1])
    truth = rng.choice(VALUES, (int(cluster.max()) + 1, features))[cluster]
    X = rng.normal(size=(len(cluster), samples, features))
    y = np.einsum("imd,id->im", X, truth) + noise * rng.normal(size=(len(cluster), samples))
    heard = rng.permutation(len(cluster))[: math.ceil(share * len(cluster))]
    return Synthetic(Network(graph, {int(k): (X[k], y[k]) for k in heard}), truth, cluster)


def block_regression(
    sizes: tuple[int, ...] = (100, 100), *, p_in: float = 0.5, p_out: float = 0.01, noise: float = 1e-3, seed: int = 0
) -> Synthetic:
    """Section VI-A: a stochastic block model; the default is the problem of Table I.

    >>> block_regression((5, 5)).truth.shape
    (10, 100)
    """
    graph, cluster = stochastic_block(sizes, p_in, p_out, seed=seed)
    return clustered_regression(graph, cluster, noise=noise, seed=seed)


def chain_regression(
    size: int = 100, *, link: float = 0.1, noise: float = 0.0, share: float = 1.0, seed: int = 0
) -> Synthetic:
    """Section VI-B: two clusters of ``size`` nodes in a row, joined by an edge of weight ``link`` (ε).

    >>> chain_regression(3).network.graph.weights
    array([1. , 1. , 0.1, 1. , 1. ])
    """
    graph, cluster = chain(2 * size, weak_link=link), np.repeat([0, 1], size)
    return clustered_regression(graph, cluster, noise=noise, share=share, seed=seed)


def star_regression(
    size: int = 100, *, link: float = 0.1, noise: float = 0.0, share: float = 1.0, seed: int = 0
) -> Synthetic:
    """Two clusters that are stars of ``size`` nodes; an edge of weight ``link`` joins their centres.

    >>> star_regression(3).network.graph.degrees
    array([3, 1, 1, 3, 1, 1])
    """
    graph, cluster = double_star(2 * size, weak_link=link), np.repeat([0, 1], size)
    return clustered_regression(graph, cluster, noise=noise, share=share, seed=seed)
