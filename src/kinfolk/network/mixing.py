"""Mixing matrices W of a graph: symmetric, doubly stochastic, with w_ij > 0 only on edges and the diagonal.

    θ_i <- Σ_j w_ij θ_j  =  θ_i − Σ_edges w_ij (θ_i − θ_j)

The second form needs no diagonal: where an edge does not carry, its weight stays with its two ends, and what is left is
doubly stochastic again.

    Metropolis–Hastings   w_ij = 1 / (1 + max(d_i, d_j))        needs the degrees of the two ends only
    maximum degree        w_ij = 1 / (1 + d_max)
    Laplacian             W = I − L / (D_max + A_max),  L = diag(D) − A with the weights of the graph

with d_i numbers of neighbours and D_i sums of weights. A_max is the largest weight, so that no diagonal is zero, and
with weights 1 the last two agree. (Xiao, Boyd, Lall: A Scheme for Robust Distributed Sensor Fusion Based on Average
Consensus, 2005.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from kinfolk.checks import InputError
from kinfolk.network.graph import Extremes, Graph
from kinfolk.network.site import Site
from kinfolk.typing import Floats

ROUNDING = 1e-9  # up to which sums are one and entries equal


class Ends(NamedTuple):
    """What a rule knows of some edges."""

    weights: Floats  # (edges,) A_ij
    larger_degree: Floats  # (edges,) of the two ends
    most: Extremes  # d_max, D_max and A_max


RULES: dict[str, Callable[[Ends], Floats]] = {
    "metropolis-hastings": lambda ends: 1.0 / (1.0 + ends.larger_degree),
    "maximum degree": lambda ends: np.full(len(ends.weights), 1.0 / (1.0 + ends.most.degree)),
    "laplacian": lambda ends: ends.weights / (ends.most.weighted_degree + ends.most.weight),
}


def mixing_matrix(graph: Graph, rule: str = "metropolis-hastings") -> scipy.sparse.csr_array:
    """W of a graph, by one of the rules ``"metropolis-hastings"``, ``"maximum degree"`` and ``"laplacian"``.

    >>> from kinfolk import graphs
    >>> mixing_matrix(graphs.chain(3), "maximum degree").toarray().round(3)
    array([[0.667, 0.333, 0.   ],
           [0.333, 0.333, 0.333],
           [0.   , 0.333, 0.667]])
    """
    larger = np.maximum(graph.degrees[graph.head], graph.degrees[graph.tail]).astype(np.float64)
    ends = Ends(graph.weights, larger, graph.extremes)
    between = Graph(graph.node_count, np.stack([graph.head, graph.tail], axis=1), _rule(rule)(ends)).laplacian
    return (scipy.sparse.eye_array(graph.node_count) - between).tocsr()


def mixing_weights(site: Site, mixing: Any) -> Floats:
    """w_ij of the edges of a site, by the name of a rule or from a whole matrix."""
    if isinstance(mixing, str):
        larger = np.maximum(site.degrees[site.head], site.degrees[site.tail]).astype(np.float64)
        return _rule(mixing)(Ends(site.weights, larger, site.extremes))
    everyone = np.concatenate([site.nodes, site.outside])
    matrix = _as_matrix(mixing) if scipy.sparse.issparse(mixing) else np.asarray(mixing)  # quick in every round
    return np.asarray(matrix[everyone[site.head], everyone[site.tail]], dtype=np.float64).reshape(-1)


def check_mixing(mixing: Any, graph: Graph) -> None:
    """Refuse a matrix that is not symmetric, not doubly stochastic, or joins nodes that the graph does not."""
    if isinstance(mixing, str):
        _rule(mixing)
        return
    matrix = _as_matrix(mixing)
    if matrix.shape != (graph.node_count, graph.node_count) or not np.isfinite(matrix.data).all():
        raise InputError(
            f"Expected a mixing matrix of finite numbers for {graph.node_count} nodes, got shape {matrix.shape}."
        )
    directed = abs(matrix - matrix.T).tocoo()
    if (directed.data > ROUNDING).any():
        i, j = (int(ends[directed.data.argmax()]) for ends in (directed.row, directed.col))
        raise InputError(
            f"Expected a symmetric mixing matrix, as messages go both ways, got one that differs between "
            f"{graph.names[i]!r} and {graph.names[j]!r}: directed graphs cannot be mixed here."
        )
    sums = np.asarray(matrix.sum(axis=1)).ravel()
    if (abs(sums - 1.0) > ROUNDING).any() or (matrix.data < -ROUNDING).any():
        worst = int(abs(sums - 1.0).argmax())
        raise InputError(
            "Expected a doubly stochastic mixing matrix (no entry < 0, every row and column sums to 1), got a row of "
            f"{graph.names[worst]!r} that sums to {sums[worst]:g} and a smallest entry of {matrix.min():g}: "
            "kinfolk.graphs.mixing_matrix makes one."
        )
    _check_edges(matrix, graph)


def _as_matrix(mixing: Any) -> scipy.sparse.csr_array:
    if mixing is None:
        raise _no_mixing(mixing)
    try:
        return scipy.sparse.csr_array(mixing if scipy.sparse.issparse(mixing) else np.atleast_2d(mixing), dtype=float)
    except (TypeError, ValueError) as error:
        raise _no_mixing(mixing) from error


def _check_edges(matrix: scipy.sparse.csr_array, graph: Graph) -> None:
    off_diagonal = scipy.sparse.triu(matrix, k=1).tocoo()
    pairs = off_diagonal.row.astype(np.int64) * graph.node_count + off_diagonal.col
    unknown = ~np.isin(pairs, graph.head * graph.node_count + graph.tail) & (off_diagonal.data > 0)
    if unknown.any():
        i, j = (int(ends[unknown.argmax()]) for ends in (off_diagonal.row, off_diagonal.col))
        raise InputError(
            f"Expected a mixing matrix along the edges of the graph, got a weight between {graph.names[i]!r} and "
            f"{graph.names[j]!r}, which it does not join."
        )


def _rule(name: str) -> Callable[[Ends], Floats]:
    if name not in RULES:
        raise _no_mixing(name)
    return RULES[name]


def _no_mixing(given: Any) -> InputError:
    known = ", ".join(map(repr, RULES))
    return InputError(f"Expected {known}, or a matrix of numbers, for mixing, got {given!r}.")
