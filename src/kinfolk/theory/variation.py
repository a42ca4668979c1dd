"""How much the models of one cluster can differ under FedRelax: bound (25), and what is observed.

Abdurakhmanova, SarcheshmehPour, Jung: Towards Model-Agnostic Federated Learning over Networks (2025), section V.

    w̃_i = w_i − mean of all w_j                                                                                (22)
    Σ_i L_i(w̄) ≤ ε   for one vector w̄                                                                         (24)
    Σ_i ‖w̃_i‖² ≤ ε / (α λ₂),      λ₂ the second smallest eigenvalue of the graph's Laplacian, α is λ here      (25)

In which metric? FedRelax couples predictions. With one common set of points its fixed point minimises

    Σ_i L_i(w_i) + α Σ_{edges, once} A_ij (w_i − w_j)'S(w_i − w_j),    S = X'ᵀX' / m',

and comparing with w̄ at all nodes gives (25) with w̃_i'S w̃_i, the mean square of predictions on public points, in place
of ‖w̃_i‖². As printed, with the Euclidean norm, the right side needs the factor 1 / (smallest eigenvalue of S). For
points from N(0, I) that is about (1 − √(d/m'))⁻², near 1 for many points; with fewer points than parameters it is ∞.

Two more things follow. Any w̄ will do, so without a true one the pooled minimiser gives the smallest ε of (24): the
bound holds for every network, clustered or not. And because the losses are convex, half of (25) suffices:
ε ≥ Σ_i L_i(w_i) + 2α Σ_{edges} A_ij (w_i − w_j)'S(w_i − w_j).

With a set of points per node the fixed point minimises no such sum: nothing is proved then, and S is averaged.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from scipy.sparse.linalg import eigsh

from kinfolk.checks import AtLeast, InputError, Positive, as_floats, check_value
from kinfolk.local_models.least_squares import LinearModel
from kinfolk.network.graph import Graph
from kinfolk.network.network import Network
from kinfolk.objective.local_losses import LinearLosses
from kinfolk.objective.losses import Squared
from kinfolk.theory.found import Solution
from kinfolk.typing import Floats

ROUNDING = 1e-9  # of sums of squares, relative
DENSE = 500  # nodes up to which all eigenvalues are computed


@dataclass(frozen=True, eq=False)
class VariationBound:
    """Bound (25) beside what it bounds."""

    deviations: Floats  # (nodes, parameters) w̃_i
    metric: Floats  # (parameters, parameters) S
    tolerance: float  # ε
    needed: float  # Σ_i L_i(w̄), the smallest ε for which (24) holds with this w̄
    lam: float  # α
    connectivity: float  # λ₂
    one_set: bool  # whether all nodes compare predictions on the same points
    size: float  # Σ_i ‖w_i‖², against which rounding is judged

    @property
    def observed(self) -> float:
        """Σ_i ‖w̃_i‖², the left side of (25) as printed."""
        return float((self.deviations**2).sum())

    @property
    def observed_in_predictions(self) -> float:
        """Σ_i w̃_i'S w̃_i, the left side of (25) as it can be proved."""
        return float(((self.deviations @ self.metric) * self.deviations).sum())

    @property
    def bound(self) -> float:
        """ε / (α λ₂), the right side; infinite on a graph that is not connected."""
        pull = self.lam * self.connectivity
        return self.tolerance / pull if pull > 0 else np.inf

    @cached_property
    def stretch(self) -> float:
        """1 / (smallest eigenvalue of S): by which factor (25) as printed may be exceeded."""
        values = np.linalg.eigvalsh(self.metric)
        return float(1 / values[0]) if values[0] > ROUNDING * values[-1] else np.inf

    @property
    def assumption_holds(self) -> bool:
        """(24)."""
        return self.needed <= self.tolerance * (1 + ROUNDING)

    @property
    def holds(self) -> bool:
        """(25) as printed."""
        return self.observed <= self.bound * (1 + ROUNDING) + ROUNDING * self.size

    @property
    def holds_in_predictions(self) -> bool:
        """(25) in the metric of the coupling."""
        return self.observed_in_predictions <= self.bound * (1 + ROUNDING) + ROUNDING * self.size

    def __str__(self) -> str:
        proved = (
            "where (25) is proved" if self.one_set else "of which every node has its own, so that nothing is proved"
        )
        lines = [
            f"The variation of parameters is {self.observed:.4g}, and ε / (λ λ₂) = {self.bound:.4g}: bound (25) "
            f"{_words(self.holds)}.",
            f"In predictions on public points, {proved}, the variation is {self.observed_in_predictions:.4g}: it "
            f"{_words(self.holds_in_predictions)}.",
        ]
        if np.isinf(self.stretch):
            lines.append("For parameters nothing is proved: in some direction the public points do not differ.")
        elif self.one_set:
            lines.append(f"For parameters the right side is proved with a factor {self.stretch:.3g}.")
        if self.connectivity == 0:
            lines.append("The graph is not connected, so nothing bounds how far its components differ.")
        if not self.assumption_holds:
            lines.append(
                f"Assumption (24) is violated: ε is {self.tolerance:.4g}, the losses sum to {self.needed:.4g}."
            )
        return " ".join(lines)

    @classmethod
    def of(
        cls,
        network: Network,
        w: Any,
        lam: float,
        *,
        truth: Any = None,
        tolerance: float | None = None,
        ridge: float = 0.0,
    ) -> VariationBound:
        """The bound for given parameters of linear models, from whatever algorithm.

        Parameters
        ----------
        network : data, graph, and the public points on which predictions are coupled; none: S = I.
        w : array (nodes, parameters), the intercept last if there is one.
        lam : α.
        truth, tolerance : w̄ and ε; by default the pooled minimiser, and the smallest ε for w̄.
        ridge : as in ``LinearModel``; a part of L_i.
        """
        w = as_floats(w, "the parameters", 2)
        check_value("lam", "VariationBound", lam, Annotated[float, Positive()])
        check_value("tolerance", "VariationBound", tolerance, Annotated[float, AtLeast(0)] | None)
        extra = w.shape[1] - network.data.feature_count
        if len(w) != network.graph.node_count or extra not in (0, 1):
            raise InputError(
                f"Expected parameters for {network.graph.node_count} nodes and {network.data.feature_count} features, "
                f"with an intercept or without, got shape {w.shape}."
            )
        losses = _losses(network, bool(extra), ridge)
        reference = _pooled(losses) if truth is None else as_floats(truth, "the true parameters", 1)
        if len(reference) != w.shape[1]:
            raise InputError(f"Expected {w.shape[1]} true parameters, got {len(reference)}.")
        needed = float(losses.value(np.tile(reference, (len(w), 1))).sum())
        return cls(
            w - w.mean(axis=0),
            _metric(network, bool(extra)),
            needed if tolerance is None else tolerance,
            needed,
            lam,
            algebraic_connectivity(network.graph),
            network.public is None or not network.public.per_node,
            float((w**2).sum()),
        )


def variation_bound(run: Solution, truth: Any = None, *, tolerance: float | None = None) -> VariationBound:
    """Bound (25) for a run of ``FedRelax`` with ``LinearModel``. It is about the fixed point: let the run converge.

    Parameters
    ----------
    run : Run or TableRun
        A run of ``FedRelax`` with ``LinearModel``.
    truth : array, optional
        W̄, the parameters that the nodes share; by default those of the pooled minimiser.
    tolerance : float, optional
        ε of (24); by default Σ_i L_i(w̄), the smallest that fulfils it.

    Returns
    -------
    VariationBound
        Both sides of (25).

    >>> from kinfolk import FedRelax, fit, graphs
    >>> x = [[1.0]]
    >>> network = Network(graphs.chain(2), [(x, [0.0]), (x, [1.0])], public=x)
    >>> print(variation_bound(fit(network, FedRelax(LinearModel(), lam=1.0))))
    The variation of parameters is 0.05556, and ε / (λ λ₂) = 0.25: bound (25) holds. In predictions on public points,
    where (25) is proved, the variation is 0.05556: it holds. For parameters the right side is proved with a factor 1.
    """
    kinds = getattr(run.models, "kinds", None) or [None]
    if not isinstance(kinds[0], LinearModel) or any(kind != kinds[0] for kind in kinds):
        raise InputError(
            "Expected a run of FedRelax with the same LinearModel at every node, got other models: give parameters "
            "to VariationBound.of."
        )
    if run.algorithm.weighting != "average":
        raise InputError('Expected weighting="average", as (25) assumes, got "literal".')
    missing = [name for name, fitted in zip(run.network.names, run.models.fitted, strict=True) if fitted is None]
    if missing:
        raise InputError(f"Expected a model at every node, got none at {missing[0]!r}: leave such nodes out.")
    w = np.stack([fitted.w for fitted in run.models.fitted])
    lam, ridge = run.algorithm.lam, kinds[0].ridge
    return VariationBound.of(run.network, w, lam, truth=truth, tolerance=tolerance, ridge=ridge)


def algebraic_connectivity(graph: Graph) -> float:
    """λ₂: the second smallest eigenvalue of the Laplacian; 0 if and only if the graph is not connected.

    >>> from kinfolk import graphs
    >>> round(algebraic_connectivity(graphs.complete(4)), 9)
    4.0
    """
    if graph.components.any() or graph.node_count == 1:
        return 0.0
    if graph.node_count <= DENSE:
        return float(np.linalg.eigvalsh(graph.laplacian.toarray())[1])
    below = -1e-6 * graph.weighted_degrees.max()  # not an eigenvalue, and nearest to the smallest ones
    return float(np.sort(eigsh(graph.laplacian.tocsc(), k=2, sigma=below, return_eigenvectors=False))[1])


def _losses(network: Network, intercept: bool, ridge: float) -> LinearLosses:
    """L_i(w) = 1/m_i [Σ_r (y_r − x_r'w)² + ridge ‖w‖²]: what a node of FedRelax minimises beside the coupling."""
    losses = Squared(intercept=intercept).bind(network.data)
    penalty = np.zeros((losses.node_count, losses.width))
    penalty[:, : network.data.feature_count] = 2 * ridge / np.maximum(network.data.sizes, 1)[:, None]
    return replace(losses, ridge=penalty)


def _pooled(losses: LinearLosses) -> Floats:
    """The vector with the smallest sum of losses."""
    rows = np.sqrt(losses.scale)[:, None] * losses.X
    gram = rows.T @ rows + np.diag(losses.ridge.sum(axis=0) / 2)
    return np.linalg.pinv(gram, hermitian=True) @ (rows.T @ (np.sqrt(losses.scale) * losses.y))


def _metric(network: Network, intercept: bool) -> Floats:
    """S; averaged where every node has a set of its own."""
    width = network.data.feature_count
    if network.public is None:
        return np.eye(width + intercept)
    points = network.public.points.reshape(-1, width)
    points = np.column_stack([points, np.ones(len(points))]) if intercept else points
    return points.T @ points / len(points)


def _words(holds: bool) -> str:
    return "holds" if holds else "does not hold"
