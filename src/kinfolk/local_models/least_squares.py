"""Linear models by least squares, all nodes at once: Algorithm 2 of FedRelax.

A node minimises, with own rows counting 1 and rows labelled by neighbour j counting rate_i A_ij,

    Σ_r (y_r − x_r'w)² + rate_i Σ_j A_ij Σ_{x ∈ P_j} (h_j(x) − x'w)² + ridge ‖w‖²  =  w'H_i w − 2 b_i'w + …      (1)

H_i changes only with who has sent predictions, so that its inverse is prepared once. Without ``step`` the minimum (of
least norm) is taken; with it, one step of an optimiser towards it per round, as in the paper's experiments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from kinfolk import kernels
from kinfolk.checks import AtLeast, Between, Positive, check_parameters
from kinfolk.local_models.discrepancies import Discrepancy, SquaredError
from kinfolk.local_models.inverses import DenseInverses, Inverses, LowRankInverses
from kinfolk.local_models.weighted_rows import TrainingSets, WeightedRows
from kinfolk.network.problem import Problem
from kinfolk.network.site import Site
from kinfolk.objective.linear_models import linear_file
from kinfolk.objective.symmetric import solve_symmetric
from kinfolk.typing import Bools, Floats

CROWDED = 0.25  # part of all pairs that are neighbours


@dataclass(frozen=True)
class RMSprop:
    """v <- decay v + (1 − decay) g²;  w <- w − step_size g / (√v + ε), with g the gradient of (1) over m_i."""

    step_size: Annotated[float, Positive()] = 0.01
    decay: Annotated[float, Between(0, 1)] = 0.99
    epsilon: Annotated[float, Positive()] = 1e-8

    def __call__(self, w: Floats, v: Floats, gradient: Floats) -> tuple[Floats, Floats]:
        """The next w and v."""
        v = self.decay * v + (1 - self.decay) * gradient**2
        return w - self.step_size * gradient / (np.sqrt(v) + self.epsilon), v


class LinearFit(NamedTuple):
    """The parameters of a node, the intercept last if there is one."""

    w: Floats  # (parameters,)
    v: Floats | None = None  # (parameters,) the optimiser's mean of squared gradients, if there is one


@dataclass(frozen=True, eq=False)
class LinearFits(Sequence[LinearFit | None]):
    """The fits of some nodes, kept in one array; NaN where a node has none."""

    rows: Floats  # (nodes, parameters), or (nodes, 2 parameters): w, and the optimiser's v
    width: int  # parameters

    @property
    def w(self) -> Floats:
        """(nodes, parameters)."""
        return self.rows[:, : self.width]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, node: Any) -> Any:
        if not isinstance(node, int | np.integer):
            return LinearFits(self.rows[node], self.width)
        w, v = self.rows[node, : self.width], self.rows[node, self.width :]
        return None if np.isnan(w[0]) else LinearFit(w, v if len(v) else None)


@dataclass(frozen=True)
class LinearModel:
    """A linear model by least squares.

    Parameters
    ----------
    ridge : float
        Weight of ‖w‖² beside own rows that count 1 each; the intercept is not penalised.
    intercept : bool
        Whether there is a constant term.
    step : RMSprop, optional
        None for the exact minimum, or an optimiser that takes one step per round, such as ``RMSprop()``.

    >>> from kinfolk import FedRelax, Network, fit, graphs
    >>> network = Network(graphs.chain(2), [([[1.0]], [0.0]), ([[1.0]], [1.0])], public=[[1.0]])
    >>> run = fit(network, FedRelax(LinearModel(), lam=1.0))
    >>> [round(float(run.models[i].w[0]), 3) for i in range(2)]
    [0.333, 0.667]
    """

    ridge: Annotated[float, AtLeast(0)] = 0.0
    intercept: bool = False
    step: RMSprop | None = None

    classifies: ClassVar[bool] = False
    merges: ClassVar[bool] = True

    def check(self) -> None:
        """Refuse parameters out of range."""
        check_parameters(self)

    def learns(self, discrepancy: Discrepancy) -> bool:
        """The squared error, which is in (1), and nothing else."""
        return isinstance(discrepancy, SquaredError)

    def remarks(self, problem: Problem) -> list[str]:
        """None."""
        return []

    def no_fits(self, count: int, feature_count: int) -> Floats:
        """The rows of so many nodes before they have learnt anything."""
        width = feature_count + self.intercept
        return np.full((count, width if self.step is None else 2 * width), np.nan)

    def fits(self, rows: Floats) -> LinearFits:
        """The fits that rows stand for."""
        return LinearFits(rows, rows.shape[1] if self.step is None else rows.shape[1] // 2)

    def rows(self, fits: LinearFits) -> Floats:
        """The rows that stand for fits."""
        return fits.rows

    def to_file(self, fitted: Sequence[LinearFit | None], classes: None, called: str) -> tuple[str, bytes]:
        """The name and the content of a file with the parameters of all nodes; NaN where a node has none."""
        width = next(len(fit.w) for fit in fitted if fit is not None)
        w = np.array([np.full(width, np.nan) if fit is None else fit.w for fit in fitted])
        return linear_file(w, replace(self, step=None))

    def fit_nodes(self, sets: TrainingSets) -> LinearFits:
        """Minimise (1), or take a step."""
        rows = (self._minima(sets) if self.step is None else self._stepped(sets, self.step))[sets.nodes]
        if np.isnan(rows.sum()):  # a fit that failed: NaN would stand for none, infinity is noticed in its predictions
            rows[np.isnan(rows)] = np.inf
        idle = self._idle(sets)[sets.nodes]
        if idle.any():
            rows[idle] = np.nan
        return self.fits(rows)

    def _minima(self, sets: TrainingSets) -> Floats:
        """The minimum of (1), of least norm in units of each parameter's own column."""
        if self.ridge == 0 and not _recalled(sets) and not sets.has_predicted.any():
            return self._alone(sets)
        recalled = bool(_recalled(sets))
        inverses = DenseInverses.of(self._curvature(sets)) if recalled else self._kept_inverses(sets)
        return inverses.solve(self._linear(sets))

    def _alone(self, sets: TrainingSets) -> Floats:
        """The minimum over own rows alone. With fewer rows than parameters it is found in the space of the rows."""
        data, (gram, w) = sets.site.data, self._own_rows(sets)
        w, few = w.copy(), data.sizes < w.shape[1]
        w[~few] = solve_symmetric(gram[~few], w[~few])
        for size in np.unique(data.sizes[few & (data.sizes > 0)]):
            nodes = np.flatnonzero(data.sizes == size)
            rows = data.starts[nodes][:, None] + np.arange(size)
            w[nodes] = _least_norm(self._widen(data.X[rows]), sets.target[rows])
        return w

    def _stepped(self, sets: TrainingSets, step: RMSprop) -> Floats:
        """w and v after one step of the optimiser towards the minimum of (1)."""
        b = self._linear(sets)
        w, v = self._start(sets, b.shape[1])
        H = self._curvature(sets) if _recalled(sets) else self._kept_curvature(sets)
        slope = 2 * (_times(H, w) - b) / np.maximum(sets.site.data.sizes, 1)[:, None]
        return np.concatenate(step(w, v, slope), axis=1)

    def _idle(self, sets: TrainingSets) -> Bools:
        """(own,) who has no data and has received nothing."""
        bare = sets.site.data.sizes == 0
        out: Bools = self._kept("idle", sets, lambda: bare & (sets.rate * sets.received_weight == 0))
        return out

    def _linear(self, sets: TrainingSets) -> Floats:
        """b_i of (1)."""
        _, own = self._own_rows(sets)
        everybody = sets.has_predicted.all()
        labels = sets.predicted if everybody else np.where(sets.has_predicted[:, None], sets.predicted, 0.0)
        b = own + sets.rate[:, None] * _neighbour_sum(sets, self._along_points(sets, labels))
        for node, rows in _recalled(sets):
            b[node] += (rows.weight * rows.target) @ self._widen(rows.X)
        out: Floats = b
        return out

    def _curvature(self, sets: TrainingSets) -> Floats:
        """H_i of (1)."""
        site = sets.site
        own, _ = self._own_rows(sets)
        points = site.kept(("points", self), lambda: _gram(self._widen(sets.public)))
        if points.ndim == 2:
            H = own + (sets.rate * sets.received_weight)[:, None, None] * points
        else:
            around = sets.neighbour_sum(np.where(sets.has_predicted[:, None, None], points, 0.0))
            H = own + sets.rate[:, None, None] * around
        for node, rows in _recalled(sets):
            X = self._widen(rows.X)
            H[node] += (rows.weight[:, None] * X).T @ X
        out: Floats = H
        return out

    def _kept_curvature(self, sets: TrainingSets) -> Floats:
        """H_i, prepared once."""
        out: Floats = self._kept("curvature", sets, lambda: self._curvature(sets))
        return out

    def _kept_inverses(self, sets: TrainingSets) -> Inverses:
        """H_i⁻¹, prepared once."""
        out: Inverses = self._kept(
            "inverse", sets, lambda: self._low_rank(sets) or DenseInverses.of(self._curvature(sets))
        )
        return out

    def _low_rank(self, sets: TrainingSets) -> LowRankInverses | None:
        """H_i⁻¹ where points are common and all nodes have few rows."""
        data, points = sets.site.data, self._widen(sets.public)
        if self.ridge > 0 or points.ndim > 2:
            return None
        scale = sets.rate * sets.received_weight
        return LowRankInverses.of(self._widen(data.X), data.starts, _gram(points), scale)

    def _kept(self, what: str, sets: TrainingSets, make: Callable[[], Any]) -> Any:
        """What changes only with who has sent predictions, and at which rate."""
        return sets.site.kept((what, self, sets.has_predicted.tobytes(), sets.rate.tobytes()), make)

    def _own_rows(self, sets: TrainingSets) -> tuple[Floats, Floats]:
        """Σ x x' + ridge and Σ y x over own rows, prepared once."""
        out: tuple[Floats, Floats] = sets.site.kept(("own rows", self), lambda: self._own(sets))
        return out

    def _own(self, sets: TrainingSets) -> tuple[Floats, Floats]:
        """Σ x x' + ridge and Σ y x over own rows."""
        data = sets.site.data
        X = self._widen(data.X)
        penalty = np.full(X.shape[1], self.ridge)
        penalty[data.feature_count :] = 0.0
        gram = kernels.gram(X, data.starts, np.ones(len(X))) + np.diag(penalty)
        return gram, kernels.combine_rows(X, data.starts, np.ascontiguousarray(sets.target))

    def _along_points(self, sets: TrainingSets, labels: Floats) -> Floats:
        """Σ_x h_j(x) x over the points that j has labelled, by local number."""
        points = self._widen(sets.public)
        return labels @ points if points.ndim == 2 else (labels[:, None, :] @ points)[:, 0]

    def _start(self, sets: TrainingSets, width: int) -> tuple[Floats, Floats]:
        """Where the nodes are; a new one starts at random in ±1/√d, as a layer of torch does."""
        limit = 1 / np.sqrt(width)
        w, v = np.zeros((2, len(sets.before), width))
        for i in sets.nodes.tolist():  # the others may have models of another kind
            fit = sets.before[i]
            drawn = np.random.default_rng(sets.seed(i)).uniform(-limit, limit, width) if fit is None else None
            w[i], v[i] = (drawn, 0.0) if fit is None else fit
        return w, v

    def _widen(self, X: Floats) -> Floats:
        """Rows with a column of ones last, if there is an intercept."""
        return np.concatenate([X, np.ones((*X.shape[:-1], 1))], axis=-1) if self.intercept else np.ascontiguousarray(X)

    def predict_nodes(
        self, fitted: Sequence[LinearFit], X: Sequence[Floats], classes: Floats | None
    ) -> Sequence[Floats] | Floats:
        """x'w."""
        w = fitted.w if isinstance(fitted, LinearFits) else np.array([fit.w for fit in fitted])
        if len(X) > 1 and len(set(map(id, X))) == 1:
            return w @ self._widen(X[0]).T
        starts = np.concatenate([[0], np.cumsum([len(rows) for rows in X])])
        predicted = kernels.predict_rows(self._widen(np.concatenate(X)), starts, w)
        return [predicted[first:last] for first, last in pairwise(starts.tolist())]


def _times(matrices: Floats, vectors: Floats) -> Floats:
    return (matrices @ vectors[:, :, None])[:, :, 0]


def _neighbour_sum(sets: TrainingSets, values: Floats) -> Floats:
    """Σ_j A_ij of finite values, with a dense matrix where so many are neighbours that this is quicker.

    It adds in another order, which models that are no continuous functions of their rows, such as trees, would notice.
    """
    dense = sets.site.kept("dense adjacency", lambda: _dense_adjacency(sets.site))
    out: Floats = sets.neighbour_sum(values) if dense is None else dense @ values
    return out


def _dense_adjacency(site: Site) -> Floats | None:
    matrix, whole = site.adjacency, site.part is None
    return matrix.toarray() if whole and matrix.nnz > CROWDED * math.prod(matrix.shape) else None


def _least_norm(X: Floats, y: Floats) -> Floats:
    """(nodes, parameters) the fits of X (nodes, rows, parameters), fewer rows than parameters, to y (nodes, rows).

    Of all best fits the one of least norm after scaling columns to unit length, as ``solve_symmetric`` has it.
    """
    length = np.linalg.norm(X, axis=1)
    scale = np.divide(1.0, length, out=np.zeros_like(length), where=length > 0)
    X = X * scale[:, None, :]
    dual = np.linalg.pinv(X @ X.swapaxes(1, 2), hermitian=True) @ y[:, :, None]
    out: Floats = scale * (X.swapaxes(1, 2) @ dual)[:, :, 0]
    return out


def _gram(points: Floats) -> Floats:
    return points.swapaxes(-1, -2) @ points


def _recalled(sets: TrainingSets) -> list[tuple[int, WeightedRows]]:
    """The nodes that repeat what they knew, and the rows on which they do."""
    if sets.recalled.count(None) == len(sets.recalled):
        return []
    return [(node, rows) for node, rows in enumerate(sets.recalled) if rows is not None]
