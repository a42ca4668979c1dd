"""Cluster recovery: when GTV minimisation finds given clusters.

SarcheshmehPour, Tian, Zhang, Jung: Clustered Federated Learning via Generalized Total Variation Minimization
(2023), section V. For a partition into clusters C with weighted boundary |∂C|, and φ a norm,

    w̄_C = argmin_v Σ_{i in C} L_i(v)                                                                           (9)
    δ_i = ‖∇L_i(w̄_C)‖_*                                                                                       (11)
    ‖∇L_i(v) − ∇L_i(v')‖_* ≤ β_i ‖v − v'‖,   Σ_{i in C} L_i strongly convex with α_C                      (12), (13)

a cluster is well connected if it has a node i_0 such that, for every non-empty A in C without i_0,

    Σ_{i in A} [ Σ_{j not in C} A_ij + β_i |∂C| / α_C + δ_i / λ ]  <  Σ_{i in A} Σ_{j in C, not in A} A_ij     (35)

If every cluster is, the solution is constant on each (36), and ‖w_i − w̄_C‖ ≤ 2 |∂C| λ / α_C (37).

(35) is about all cuts, so one maximum flow decides it for one i_0: every node sends its bracket to i_0 over the edges
inside the cluster, and all must arrive. Flows are whole numbers of 60 bits, brackets rounded up by a unit more and
edges rounded down: flows that arrive prove the strict inequality, and equality counts as a violation. A set A that
violates (35) does so for every i_0 outside of it, so few candidates need a flow. The condition is sufficient, not
necessary: clusters are often found where it fails.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Protocol

import numpy as np

from kinfolk.checks import InputError, Positive, check_value, listing
from kinfolk.network.graph import Graph
from kinfolk.network.network import Network
from kinfolk.objective.couplings import AbsoluteNorm, Coupling, EuclideanNorm
from kinfolk.objective.local_losses import LinearLosses
from kinfolk.objective.losses import Loss, Squared
from kinfolk.objective.quadratic_losses import QuadraticLosses
from kinfolk.theory.flows import undeliverable
from kinfolk.typing import Bools, Floats, Ints

PRECISION = 1e-9  # of thresholds of λ, relative
ROUNDING = 1e-12  # of sums of floats, relative


@dataclass(frozen=True, eq=False)
class Cut:
    """A set A of nodes that violates (35): what its left side asks of the edges that leave it, and what they have."""

    nodes: Ints
    asked: float  # left side of (35)
    available: float  # right side

    def __str__(self) -> str:
        return (
            f"{_nodes(len(self.nodes))} together ask {self.asked:.6g} of the edges to the rest of the cluster, "
            f"which have weight {self.available:.6g}"
        )


@dataclass(frozen=True, eq=False)
class ClusterRecovery:
    """Theorem 2 for one cluster."""

    label: Hashable
    nodes: Ints
    minimiser: Floats  # (parameters,) w̄_C of (9)
    delta: Floats  # (nodes of the cluster,) δ_i
    beta: Floats  # (nodes of the cluster,) β_i
    alpha: float  # α_C; zero where the sum of the losses is not known to be strongly convex
    boundary: float  # |∂C|
    root: int  # i_0: the node of the cluster for which (35) holds from the smallest λ on
    lam_above: float | None  # (35) holds for every λ above; None if for none
    cut: Cut | None  # violates (35) at this λ; None if nothing does
    deviation: float  # (37), in the norm φ

    @property
    def well_connected(self) -> bool:
        """Whether (35) holds at this λ."""
        return self.cut is None

    def __str__(self) -> str:
        name = f"Cluster {self.label!r} ({_nodes(len(self.nodes))})"
        if self.cut is None:
            return f"{name} is well connected."
        if self.alpha == 0 and self.boundary > 0:
            return (
                f"{name} is not covered: the sum of its losses is not known to be strongly convex (a ridge term helps)."
            )
        when = "for no λ" if self.lam_above is None else f"only for λ above {self.lam_above:.4g}"
        return f"{name} is well connected {when}: at this λ, {self.cut}."


@dataclass(frozen=True, eq=False)
class Recovery:
    """Theorem 2 for a partition at one λ."""

    lam: float
    clusters: tuple[ClusterRecovery, ...]
    single_cluster_lam: float | None  # (38); None unless there is one cluster, connected

    @property
    def guaranteed(self) -> bool:
        """Whether every cluster is well connected: the solution is then constant on each (36)."""
        return all(cluster.well_connected for cluster in self.clusters)

    @property
    def lam_above(self) -> float | None:
        """Recovery is guaranteed for every λ above this value; None if for none."""
        values = [cluster.lam_above for cluster in self.clusters if cluster.lam_above is not None]
        return max(values) if len(values) == len(self.clusters) else None

    @property
    def deviation(self) -> float:
        """The largest of the bounds (37), in the norm φ; it holds where recovery is guaranteed."""
        return max(cluster.deviation for cluster in self.clusters)

    def __str__(self) -> str:
        if self.guaranteed:
            near = f", and at most {self.deviation:.3g} away from the models that the clusters would learn on their own"
            return (
                f"At λ = {self.lam:g} the solution is guaranteed to be constant on each of the "
                f"{len(self.clusters)} clusters{near if np.isfinite(self.deviation) else ''}. "
                f"The guarantee holds for every λ above {self.lam_above:.4g}."
            )
        failing = [str(cluster) for cluster in self.clusters if not cluster.well_connected]
        more = f" In all, {len(failing)} of {len(self.clusters)} clusters fail." if len(failing) > 1 else ""
        when = "no λ" if self.lam_above is None else f"every λ above {self.lam_above:.4g}"
        return (
            f"At λ = {self.lam:g} recovery of the clusters is not guaranteed; it is for {when}. {failing[0]}{more} "
            "The condition is sufficient, not necessary: the clusters may be found all the same."
        )


def guaranteed_recovery(
    network: Network,
    partition: Sequence[Hashable],
    lam: float,
    loss: Loss = Squared(),
    coupling: Coupling = EuclideanNorm(),
) -> Recovery:
    """Theorem 2 as a tool: is GTV minimisation guaranteed to recover the clusters of ``partition``?

    Parameters
    ----------
    network : Network
        The graph and the data.
    lam : float
        λ.
    loss : Loss
        What is minimised at every node. β is exact for the squared loss, else a bound; α is exact for
        ``EuclideanNorm`` with the squared loss, else a bound, and only the ridge term counts where the loss is not
        quadratic. Bounds err on the safe side.
    coupling : Coupling
        ``EuclideanNorm`` or ``AbsoluteNorm``.
    partition : sequence
        The cluster of every node, as any label.

    Returns
    -------
    Recovery
        Whether it is guaranteed, and the cuts that are obstacles.

    >>> from kinfolk import graphs
    >>> graph, planted = graphs.stochastic_block([6, 6], 1.0, 0.02, seed=4)
    >>> x = np.ones((1, 1))
    >>> network = Network(graph, [(x, [2.0 * cluster + 0.01 * (node % 2)]) for node, cluster in enumerate(planted)])
    >>> found = guaranteed_recovery(network, planted, lam=0.1)
    >>> print(found)
    At λ = 0.1 the solution is guaranteed to be constant on each of the 2 clusters, ...
    >>> found.guaranteed, guaranteed_recovery(network, planted, lam=1e-4).guaranteed
    (True, False)
    """
    check_value("lam", "guaranteed_recovery", lam, Annotated[float, Positive()])
    geometry = _geometry_of(coupling)
    labels, cluster = _as_clusters(partition, network.graph.node_count)
    losses = _local_losses(network, loss)
    pooled = losses.pool(cluster, len(labels))
    minimiser = pooled.minimise()
    delta, beta = geometry.dual(losses.gradient(minimiser[cluster])), geometry.smoothness(losses)
    alpha = geometry.convexity(pooled)
    graph = network.graph
    within = cluster[graph.head] == cluster[graph.tail]
    leaving = network.site.edge_sum(np.where(within, 0.0, graph.weights))
    boundary = np.bincount(cluster, leaving, minlength=len(labels)).astype(np.float64)
    fixed = leaving + _strain(beta, boundary, alpha, cluster)
    clusters = []
    for c, label in enumerate(labels):
        nodes = np.flatnonzero(cluster == c)
        inside = _Inside.of(graph, nodes, within & (cluster[graph.head] == c), fixed[nodes], delta[nodes])
        lam_above, root = inside.threshold()
        clusters.append(
            ClusterRecovery(
                label=label,
                nodes=nodes,
                minimiser=minimiser[c],
                delta=delta[nodes],
                beta=beta[nodes],
                alpha=float(alpha[c]),
                boundary=float(boundary[c]),
                root=int(nodes[root]),
                lam_above=float(lam_above) if np.isfinite(lam_above) else None,
                cut=inside.cut(root, lam, nodes),
                deviation=float(2 * boundary[c] * lam / alpha[c]) if alpha[c] > 0 else np.inf,
            )
        )
    return Recovery(lam, tuple(clusters), _single_cluster_lam(network, len(labels), delta))


def _local_losses(network: Network, loss: Loss) -> LinearLosses:
    if not np.isfinite(loss.most_curvature):
        raise InputError(
            f"Expected a smooth loss for a recovery guarantee, got {type(loss).__name__}: its curvature is unbounded."
        )
    loss.check_labels(network.data.y)
    return network.site.local_losses(loss)


def _as_clusters(partition: Sequence[Hashable], node_count: int) -> tuple[list[Hashable], Ints]:
    """The distinct labels in order of appearance, and the number of every node's label."""
    array: Any = np.asarray(partition)
    if array.shape != (node_count,):
        raise InputError(
            f"Expected the cluster of each of the {node_count} nodes, got an array of shape {array.shape}: "
            "give one label per node, in node order."
        )
    given = array.tolist()
    labels = list(dict.fromkeys(given))
    number = {label: c for c, label in enumerate(labels)}
    return labels, np.array([number[label] for label in given], dtype=np.int64)


class _Geometry(Protocol):
    """The constants of Assumptions 1 and 2, measured in a norm φ."""

    def dual(self, g: Floats) -> Floats:
        """‖g_i‖_*."""

    def smoothness(self, losses: LinearLosses) -> Floats:
        """β_i."""

    def convexity(self, pooled: LinearLosses) -> Floats:
        """α_C; zero where it vanishes, or is lost to rounding."""


class _Euclidean:
    def dual(self, g: Floats) -> Floats:
        out: Floats = np.linalg.norm(g, axis=1)
        return out

    def smoothness(self, losses: LinearLosses) -> Floats:
        return losses.smoothness

    def convexity(self, pooled: LinearLosses) -> Floats:
        values = np.linalg.eigvalsh(_least_hessian(pooled))
        return np.where(values[:, 0] > ROUNDING * values[:, -1], values[:, 0], 0.0)


class _Absolute:
    def dual(self, g: Floats) -> Floats:
        out: Floats = np.abs(g).max(axis=1)
        return out

    def smoothness(self, losses: LinearLosses) -> Floats:
        """‖Hv‖_∞ ≤ max_kl |H_kl| ‖v‖₁, and the largest entry of H ⪰ 0 is on its diagonal."""
        out: Floats = (losses.gram_diagonal(losses.scale * losses.loss.most_curvature) + losses.ridge).max(axis=1)
        return out

    def convexity(self, pooled: LinearLosses) -> Floats:
        """min v'Hv / ‖v‖₁² is at least the smallest eigenvalue over d, and at least 1 / Σ_kl |(H⁻¹)_kl|."""
        smallest = _Euclidean().convexity(pooled)
        out = smallest / pooled.width
        convex = smallest > 0
        inverse = np.linalg.inv(_least_hessian(pooled)[convex])
        out[convex] = np.maximum(out[convex], 1.0 / np.abs(inverse).sum(axis=(1, 2)))
        return out


def _least_hessian(pooled: LinearLosses) -> Floats:
    """A lower bound on the Hessian everywhere: the Hessian itself if it is constant, else that of the ridge term."""
    if isinstance(pooled, QuadraticLosses):
        return pooled.hessian(np.zeros((pooled.node_count, pooled.width)))
    return pooled.ridge[:, :, None] * np.eye(pooled.width)


_GEOMETRIES: dict[type, _Geometry] = {EuclideanNorm: _Euclidean(), AbsoluteNorm: _Absolute()}


def _geometry_of(coupling: Coupling) -> _Geometry:
    if type(coupling) not in _GEOMETRIES:
        raise InputError(
            f"Expected a coupling among {listing((kind.__name__ for kind in _GEOMETRIES), 9)} for a recovery "
            f"guarantee, got {type(coupling).__name__}: others are not covered, choose one of these."
        )
    return _GEOMETRIES[type(coupling)]


def _strain(beta: Floats, boundary: Floats, alpha: Floats, cluster: Ints) -> Floats:
    """β_i |∂C| / α_C; ∞ without strong convexity, which only a cluster without boundary can do without."""
    with np.errstate(divide="ignore", invalid="ignore"):
        pull = np.where(boundary > 0, boundary / alpha, 0.0)[cluster]
        return np.where(np.isfinite(pull), beta * pull, np.inf)


def _single_cluster_lam(network: Network, cluster_count: int, delta: Floats) -> float | None:
    """(38): Σ_i δ_i / min_e A_e suffices for a single cluster, if the graph is connected."""
    if cluster_count > 1 or network.graph.components.max() > 0:
        return None
    return float(delta.sum() / network.graph.weights.min(initial=np.inf))


def _nodes(count: int) -> str:
    return f"{count:,} node{'s' if count > 1 else ''}"


@dataclass(frozen=True, eq=False)
class _Inside:
    """A cluster on its own, nodes numbered from 0, and the two parts of its brackets: fixed_i + δ_i / λ."""

    head: Ints
    tail: Ints
    weights: Floats
    fixed: Floats  # (nodes,)
    delta: Floats  # (nodes,)

    @classmethod
    def of(cls, graph: Graph, nodes: Ints, edges: Bools, fixed: Floats, delta: Floats) -> _Inside:
        """The part of a graph with some nodes, ascending, and the edges between them."""
        head, tail = (np.searchsorted(nodes, ends[edges]) for ends in (graph.head, graph.tail))
        return cls(head, tail, graph.weights[edges], fixed, delta)

    @cached_property
    def degrees(self) -> Floats:
        """Sum of the weights of every node's edges inside the cluster."""
        ends = np.concatenate([self.head, self.tail])
        return np.bincount(ends, np.tile(self.weights, 2), minlength=len(self.fixed)).astype(np.float64)

    def brackets(self, lam: float) -> Floats:
        """The bracket of (35) of every node; δ_i / λ is zero where δ_i is, at λ = 0 too."""
        with np.errstate(divide="ignore"):
            return self.fixed + np.divide(self.delta, lam, out=np.zeros_like(self.delta), where=self.delta > 0)

    def leaving(self, within: Bools) -> float:
        """The weight of the edges between a set and the rest of the cluster."""
        return float(self.weights[within[self.head] != within[self.tail]].sum())

    def violating(self, root: int, lam: float) -> Bools | None:
        """A set without the root that violates (35), or None if there is none; by one maximum flow."""
        others = np.arange(len(self.fixed)) != root
        # Whatever asks for more than all edges have violates (35) anyway; so brackets can be kept finite.
        asked = np.where(others, np.minimum(self.brackets(lam), 2 * self.weights.sum()), 0.0)
        taken = np.where(others, 0.0, 2 * asked.sum() + 1.0)
        return undeliverable(self.head, self.tail, self.weights, asked, taken, strict=others)

    def cut(self, root: int, lam: float, nodes: Ints) -> Cut | None:
        """What violates (35) for this root, in the numbers ``nodes`` of the network."""
        within = self.violating(root, lam)
        if within is None:
            return None
        return Cut(nodes[within], float(self.brackets(lam)[within].sum()), self.leaving(within))

    def threshold(self) -> tuple[float, int]:
        """The λ above which (35) holds, ∞ if for none, and the root for which it does (else the best connected).

        A set A is content above δ(A) / (what leaves A − fixed(A)), so every set seen gives a lower bound to all roots
        outside of it. The most promising root is tried at its bound; if a flow shows that no set objects, it is best.
        """
        low = self.first_bounds()
        while True:
            root = int(np.lexsort((-self.degrees, low))[0])
            if low[root] == np.inf:
                return np.inf, int(np.argmax(self.degrees))
            lam = low[root] * (1 + PRECISION)
            within = self.violating(root, lam)
            if within is None:
                return lam, root
            content = content_above(self.delta[within].sum(), self.leaving(within), self.fixed[within].sum())
            # At λ = 0 only sets with δ(A) = 0 object, and these object at every λ. A set that should be content by
            # now objects because of rounding: a little more room settles it, on the safe side.
            raised = float(content) if content > lam else 1.01 * lam
            low[~within] = np.maximum(low[~within], raised if lam > 0 else np.inf)

    def first_bounds(self) -> Floats:
        """Lower bounds on λ for every root, from the sets of one node and from all nodes but the root."""
        if len(self.fixed) == 1:
            return np.zeros(1)
        single = content_above(self.delta, self.degrees, self.fixed)
        largest, second = np.argsort(single)[[-1, -2]]
        of_others = np.where(np.arange(len(single)) == largest, single[second], single[largest])
        with np.errstate(invalid="ignore"):
            fixed = self.fixed.sum() - self.fixed
        rest = content_above(self.delta.sum() - self.delta, self.degrees, fixed)
        out: Floats = np.maximum(of_others, rest)
        return out


def content_above(delta: Any, leaving: Any, fixed: Any) -> Any:
    """The λ above which fixed + δ / λ < leaving; ∞ if there is none."""
    room = np.where(np.isfinite(fixed), leaving - fixed, -np.inf)
    enough = room > ROUNDING * leaving
    return np.where(enough, np.divide(np.maximum(delta, 0.0), room, out=np.zeros_like(room), where=enough), np.inf)
