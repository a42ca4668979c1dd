"""Synthetic networks of the papers, with the truth that they were drawn from.

SarcheshmehPour, Tian, Zhang, Jung: Clustered Federated Learning via Generalized Total Variation Minimization (2023),
section VI-A and VI-B: nodes of a cluster share the true parameters w̄, whose entries are 0 or ½ with equal chance, and

    y = x'w̄ + σ ε,    x ~ N(0, I),  ε ~ N(0, 1)                                                              (39)

A share ρ of the nodes, drawn at random, has data; the others have none.

Abdurakhmanova, SarcheshmehPour, Jung: Towards Model-Agnostic Federated Learning over Networks (2025), Algorithm 3: K
linear models w̄_k ~ N(0, I), and at every node its own mixture of them,

    ρ_i = softmax(s_i),  s_i ~ N(0, I_K),    m_i ρ_ik rows with y = x'w̄_k + σ ε,    A_ij = Σ_k min(ρ_ik, ρ_jk)      (21)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from scipy.special import softmax

from kinfolk.checks import AtLeast, Between, check_value
from kinfolk.network.data import Data
from kinfolk.network.graph import Graph
from kinfolk.network.graphs import chain, double_star, overlap, stochastic_block
from kinfolk.network.network import Network
from kinfolk.network.public import PublicPoints
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


@dataclass(frozen=True, eq=False)
class Mixture(Synthetic):
    """A network whose nodes mix several linear models.

    ``truth`` is Σ_k ρ_ik w̄_k, the linear model with the least expected error on a node's mixture (no linear model
    is right for all its rows); ``cluster`` is the model from which a node has most rows.
    """

    mixing: Floats  # (nodes, K) ρ
    sources: Floats  # (K, features) w̄_k


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
    graph : Graph
        Which nodes are joined.
    cluster : array of int, shape (nodes,)
        The cluster of every node, numbered from 0.
    features : int
        d.
    samples : int
        m_i of a node that has data.
    noise : float
        σ, the standard deviation of the noise.
    share : float
        ρ, the share of nodes that have data; in (0, 1].
    seed : int
        Of the draw.

    Returns
    -------
    Synthetic
        The network, the true parameters and the clusters.

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
    known = rng.permutation(len(cluster))[: math.ceil(share * len(cluster))]
    return Synthetic(Network(graph, {int(k): (X[k], y[k]) for k in known}), truth, cluster)


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


def mixture_regression(
    node_count: int = 150,
    *,
    sources: int = 3,
    features: int = 10,
    samples: int = 10,
    test_samples: int = 100,
    public_points: int = 100,
    public_per_node: bool = True,
    noise: float = 0.0,
    seed: int = 0,
) -> Mixture:
    """Algorithm 3: every node mixes K linear models in its own proportions; the graph is the overlap (21).

    The paper leaves open what becomes of fractions of rows: m_i ρ_ik is rounded by largest remainders, so that sizes
    add up to m_i. Test data have the same proportions, rounded in the same way. (21) joins all pairs: the graph is
    complete.

    Parameters
    ----------
    node_count : int
        Number of nodes.
    sources : int
        K.
    features : int
        d.
    samples : int
        m_i.
    test_samples : int
        The size of a node's test data; 0 for none.
    public_points : int
        Number of public points in a set, drawn from N(0, I); 0 for none.
    public_per_node : bool
        Whether every node has its own set of them, as in the paper, or all have a common one.
    noise : float
        σ, the standard deviation of the noise.
    seed : int
        Of the draw.

    Returns
    -------
    Mixture
        The network, the linear models and how nodes mix them.

    >>> drawn = mixture_regression(4, features=2)
    >>> drawn.network
    Network(4 nodes, 6 edges, 40 samples, 2 features)
    >>> print(drawn.network.public)
    100 public points, a set of its own for every node, drawn from N(0, I)
    """
    least = {"node_count": 1, "sources": 1, "features": 1, "samples": 1, "test_samples": 0, "public_points": 0}
    given = (node_count, sources, features, samples, test_samples, public_points)
    for (name, low), value in zip(least.items(), given, strict=True):
        check_value(name, "mixture_regression", value, Annotated[int, AtLeast(low)])
    check_value("noise", "mixture_regression", noise, Annotated[float, AtLeast(0)])
    rng = np.random.default_rng([seed, 3])
    models = rng.normal(size=(sources, features))
    mixing = softmax(rng.normal(size=(node_count, sources)), axis=1)
    data = _draw_mixture(models, rounded_shares(mixing, samples), noise, rng)
    test = _draw_mixture(models, rounded_shares(mixing, test_samples), noise, rng) if test_samples else None
    sets = (node_count,) if public_per_node else ()
    points = rng.normal(size=(*sets, public_points, features))
    public = PublicPoints(points, "drawn from N(0, I)") if public_points else None
    network = Network(overlap(mixing), data, test=test, public=public)
    return Mixture(network, mixing @ models, mixing.argmax(axis=1), mixing, models)


def _draw_mixture(models: Floats, counts: Ints, noise: float, rng: np.random.Generator) -> Data:
    """``counts[i, k]`` rows of model k at node i."""
    node_count, sources = counts.shape
    kind = np.repeat(np.tile(np.arange(sources), node_count), counts.ravel())
    X = rng.normal(size=(len(kind), models.shape[1]))
    y = np.einsum("rd,rd->r", X, models[kind]) + noise * rng.normal(size=len(kind))
    return Data(X, y, np.concatenate([[0], np.cumsum(counts.sum(axis=1))]).astype(np.int64))


def rounded_shares(shares: Floats, total: int) -> Ints:
    """``total`` dealt out in the given shares, row by row, as whole numbers that add up to it (largest remainders).

    >>> rounded_shares(np.array([[0.5, 0.3, 0.2], [0.34, 0.33, 0.33]]), 4)
    array([[2, 1, 1], [2, 1, 1]])
    """
    exact = total * shares
    counts = np.floor(exact).astype(np.int64)
    missing = total - counts.sum(axis=1, keepdims=True)
    rank = np.argsort(np.argsort(counts - exact, axis=1, kind="stable"), axis=1)
    out: Ints = counts + (rank < missing)
    return out
