"""From which λ on the solution of GTV minimisation is constant on each component of the graph."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array, diags_array
from scipy.sparse.csgraph import minimum_spanning_tree
from scipy.sparse.linalg import splu

from kinfolk.network.network import Network
from kinfolk.network.site import Site
from kinfolk.objective.couplings import AbsoluteNorm, Coupling, EuclideanNorm
from kinfolk.objective.losses import Loss, Squared
from kinfolk.theory.conditions import _geometry_of, _local_losses
from kinfolk.theory.flows import undeliverable
from kinfolk.typing import Floats, Ints

PRECISION = 1e-9  # of thresholds of λ, relative
ROUNDING = 1e-12  # of sums of floats, relative
REWEIGHTINGS = 60
REWEIGHTING_PACE = 0.7  # how fast ε falls
REWEIGHTED_GAP = 1e-3  # between the bounds, relative


@dataclass(frozen=True)
class ConstantAbove:
    """The smallest λ above which every solution is constant on each component lies in [lower, upper]."""

    lower: float
    upper: float

    @property
    def exact(self) -> bool:
        """Whether both bounds agree, up to 1e-9 relative."""
        return self.upper <= self.lower * (1 + 2 * PRECISION)

    def __str__(self) -> str:
        text = f"Above λ = {self.upper:.6g} every solution is constant on each component of the graph"
        return f"{text}." if self.exact else f"{text}, below λ = {self.lower:.6g} none is."


def constant_above(network: Network, loss: Loss = Squared(), coupling: Coupling = EuclideanNorm()) -> ConstantAbove:
    """The smallest λ above which the solutions of GTV minimisation are constant on each component of the graph.

    With g_i = ∇L_i at the pooled minimiser of its component, a constant solution needs a flow that carries g away:

        λ* = min over flows u with Dᵀu = −g of  max_e ‖u_e‖_* / A_e
           = max over potentials p of  Σ_i ⟨g_i, p_i⟩ / Σ_e A_e φ((Dp)_e)

    For ``AbsoluteNorm``, or one parameter per node, every coordinate is a maximum-flow problem, and λ* is exact up to
    1e-9. For ``EuclideanNorm`` both sides are approached by reweighted least squares: its flows and potentials are
    feasible, so they bound λ* from above and from below, up to the rounding of sums.

    Parameters
    ----------
    network : Network
        The graph and the data.
    loss : Loss
        What is minimised at every node.
    coupling : Coupling
        ``EuclideanNorm`` or ``AbsoluteNorm``.

    Returns
    -------
    ConstantAbove
        λ*, or bounds on it.

    >>> from kinfolk import graphs
    >>> x = np.ones((1, 1))
    >>> print(constant_above(Network(graphs.chain(3), [(x, [0.0]), (x, [1.0]), (x, [5.0])])))
    Above λ = 6 every solution is constant on each component of the graph.
    """
    _geometry_of(coupling)
    losses, component = _local_losses(network, loss), network.graph.components
    count = int(component.max()) + 1
    g = losses.gradient(losses.pool(component, count).minimise()[component])
    resting = np.abs(losses.gradient_at_zero).max()
    g = _balanced(np.where(np.abs(g) > ROUNDING * resting, g, 0.0), component, count)
    if not g.any():
        return ConstantAbove(0.0, 0.0)
    if isinstance(coupling, AbsoluteNorm) or g.shape[1] == 1:
        return _constant_above_by_flows(network.site, g)
    return _constant_above_by_reweighting(network.site, g, component)


def _balanced(g: Floats, component: Ints, count: int) -> Floats:
    """g with sum zero on every component, which it has up to rounding."""
    total = np.zeros((count, g.shape[1]))
    np.add.at(total, component, g)
    size = np.zeros_like(total)
    np.add.at(size, component, np.abs(g))
    share = np.divide(total, size, out=np.zeros_like(total), where=size > 0)
    out: Floats = g - np.abs(g) * share[component]
    return out


def _constant_above_by_flows(site: Site, g: Floats) -> ConstantAbove:
    """Every coordinate apart: λ* is the largest |g(S)| / (weight that leaves S), and a flow proves which it is."""
    degrees = np.maximum(site.edge_sum(site.weights), np.finfo(float).tiny)[:, None]
    by_node = np.abs(g) / degrees
    lower = float(by_node.max())
    for k in np.argsort(-by_node.max(axis=0)):
        while True:
            upper = lower * (1 + PRECISION)
            supply, demand = np.maximum(g[:, k], 0.0), np.maximum(-g[:, k], 0.0)
            within = undeliverable(site.head, site.tail, upper * site.weights, supply, demand * (1 + ROUNDING))
            if within is None:
                break
            leaving = site.weights[within[site.head] != within[site.tail]].sum()
            asked = float(g[within, k].sum() / leaving)
            if asked <= upper:  # a violation by rounding only
                break
            lower = asked
    return ConstantAbove(lower, lower * (1 + PRECISION))


def _constant_above_by_reweighting(site: Site, g: Floats, component: Ints) -> ConstantAbove:
    """Flows u = c D p with conductances c_e = A_e / max(‖(Dp)_e‖, ε) and Dᵀu = g, ε falling; the best bounds seen.

    Any potentials bound λ* from below. A flow bounds it from above if it carries all of g, so what the linear solver
    has left is sent along a spanning tree.
    """
    free = np.ones(site.node_count, dtype=bool)  # one node of every component has potential 0
    free[np.unique(component, return_index=True)[1]] = False
    free_incidence, tree = site.incidence[np.flatnonzero(free)], _spanning_tree(site)
    along_tree = splu(free_incidence[:, tree].tocsc())
    lower, upper, conductance = 0.0, np.inf, site.weights
    for k in range(REWEIGHTINGS):
        laplacian = (free_incidence @ diags_array(conductance) @ free_incidence.T).tocsc()
        p = np.zeros_like(g)
        p[free] = splu(laplacian, permc_spec="MMD_AT_PLUS_A", options={"SymmetricMode": True}).solve(g[free])
        change = site.difference(p, p[:0])
        length = np.linalg.norm(change, axis=1)
        u = conductance[:, None] * change
        u[tree] += along_tree.solve((g - site.divergence(u))[free])
        lower = max(lower, float((g * p).sum() / (site.weights * length).sum()))
        upper = min(upper, float((np.linalg.norm(u, axis=1) / site.weights).max()))
        if upper <= lower * (1 + REWEIGHTED_GAP):
            break
        conductance = site.weights / np.maximum(length / length.max(), REWEIGHTING_PACE**k)
    return ConstantAbove(lower, upper)


def _spanning_tree(site: Site) -> Ints:
    """The edges of a tree on every component, strong edges first."""
    shape = (site.node_count, site.node_count)
    tree = minimum_spanning_tree(csr_array((1.0 / site.weights, (site.head, site.tail)), shape=shape)).tocoo()
    kept = tree.row.astype(np.int64) * site.node_count + tree.col
    return np.flatnonzero(np.isin(site.head * site.node_count + site.tail, kept))
