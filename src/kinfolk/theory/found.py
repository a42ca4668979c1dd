"""Which clusters a solution of GTV minimisation shows."""

from __future__ import annotations

from typing import Annotated, Any, Protocol

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from kinfolk.checks import Between, InputError, check_value
from kinfolk.network.network import Network
from kinfolk.objective.couplings import Coupling
from kinfolk.typing import Bools, Floats, Ints

ROUNDING = 1e-12  # of sums of floats, relative


class Solution(Protocol):
    """What a ``Run`` and a ``TableRun`` have in common: models, and what they are the solution of."""

    @property
    def models(self) -> Any:
        """The models."""

    @property
    def network(self) -> Network:
        """The network that was learnt from."""

    @property
    def algorithm(self) -> Any:
        """The algorithm."""

    @property
    def state(self) -> Any:
        """Its state over the whole network."""


def found_clusters(run: Solution, tolerance: float = 1e-3) -> Ints:
    """The clusters that a solution shows: the cluster of every node, numbered from 0.

    Neighbours belong together if their parameters differ by at most ``tolerance`` times the root mean square length
    of all parameters. Where φ is a norm, the flow between them must also lie inside its ball, by the part
    ``tolerance`` of its radius: the optimality conditions make the ends of such an edge equal, while clusters that
    differ, however little, saturate every edge between them. Both are asked because one edge joined in error merges
    two clusters, and an edge missed within a cluster rarely matters. Clusters are connected; nodes without a model
    stand alone.

    Parameters
    ----------
    run : Run or TableRun
        A run whose models have parameters.
    tolerance : float
        How much parameters of one cluster may differ, relatively.

    Returns
    -------
    array of int, shape (nodes,)
        The cluster of every node.

    >>> from kinfolk import GTVMin, Network, fit, graphs
    >>> x = np.ones((1, 1))
    >>> network = Network(graphs.chain(4), [(x, [0.0]), (x, [0.2]), (x, [4.0]), (x, [4.1])])
    >>> found_clusters(fit(network, GTVMin(lam=0.5)))
    array([0, 0, 1, 1])
    """
    check_value("tolerance", "found_clusters", tolerance, Annotated[float, Between(0, 1)])
    w = getattr(run.models, "w", None)
    if w is None:
        raise InputError(
            f"Expected a run whose models have parameters, got {type(run.models).__name__}: use a linear algorithm."
        )
    graph = run.network.graph
    size = np.sqrt(np.nanmean((w**2).sum(axis=1)))
    fused = np.linalg.norm(w[graph.head] - w[graph.tail], axis=1) <= tolerance * size
    coupling = getattr(run.algorithm, "coupling", None)
    if coupling is not None and coupling.is_norm:
        fused &= _inside_ball(coupling, run.state.u, run.algorithm.lam * graph.weights, tolerance)
    ends = (graph.head[fused], graph.tail[fused])
    joined = csr_array((np.ones(len(ends[0])), ends), shape=(graph.node_count, graph.node_count))
    out: Ints = connected_components(joined, directed=False)[1].astype(np.int64)
    return out


def _inside_ball(coupling: Coupling, u: Floats, radius: Floats, tolerance: float) -> Bools:
    """Whether u_e lies in its ball with the radius reduced by a part, whatever the norm: clipping leaves it."""
    clipped = coupling.dual_prox(u, np.ones_like(radius), (1 - tolerance) * radius)
    out: Bools = (radius > 0) & (np.abs(clipped - u).max(axis=1) <= ROUNDING * radius)
    return out
