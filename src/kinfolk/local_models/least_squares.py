"""Linear models by least squares, all nodes at once: Algorithm 2 of FedRelax.

A node minimises, with own rows counting 1 and rows labelled by neighbour j counting rate_i A_ij,

    Σ_r (y_r − x_r'w)² + rate_i Σ_j A_ij Σ_{x ∈ P_j} (h_j(x) − x'w)² + ridge ‖w‖²  =  w'H_i w − 2 b_i'w + …      (1)

H_i changes only with who has sent predictions, so that its inverse is prepared once. Without ``step`` the minimum (of
least norm) is taken; with it, one step of an optimiser towards it per round, as in the paper's experiments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from kinfolk import kernels
from kinfolk.checks import AtLeast, Between, Positive, check_parameters
from kinfolk.local_models.discrepancies import Discrepancy, SquaredError
from kinfolk.local_models.weighted_rows import TrainingSets, WeightedRows
from kinfolk.network.problem import Problem
from kinfolk.objective.local_losses import invert_symmetric
from kinfolk.typing import Bools, Floats


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

    def fit_nodes(self, sets: TrainingSets) -> list[LinearFit | None]:
        """Minimise (1), or take a step."""
        b, recalled = self._linear(sets), bool(_recalled(sets))
        if self.step is None:
            inverse = invert_symmetric(self._curvature(sets)) if recalled else self._kept_inverse(sets)
            fits = _fits(_times(inverse, b)[sets.nodes])
        else:
            w, v = self._start(sets, b.shape[1])
            H = self._curvature(sets) if recalled else self._kept_curvature(sets)
            slope = 2 * (_times(H, w) - b) / np.maximum(sets.site.data.sizes, 1)[:, None]
            w, v = self.step(w, v, slope)
            fits = _fits(w[sets.nodes], v[sets.nodes])
        for k in np.flatnonzero(self._idle(sets)[sets.nodes]):
            fits[k] = None
        return fits

    def _idle(self, sets: TrainingSets) -> Bools:
        """(own,) who has no data and has received nothing."""
        bare = sets.site.data.sizes == 0
        out: Bools = self._kept("idle", sets, lambda: bare & (sets.rate * sets.received_weight == 0))
        return out

    def _linear(self, sets: TrainingSets) -> Floats:
        """b_i of (1)."""
        _, own = sets.site.kept(("own rows", self), lambda: self._own(sets))
        labels = np.where(sets.has_predicted[:, None], sets.predicted, 0.0)
        b = own + sets.rate[:, None] * sets.neighbour_sum(self._along_points(sets, labels))
        for node, rows in _recalled(sets):
            b[node] += (rows.weight * rows.target) @ self._widen(rows.X)
        out: Floats = b
        return out

    def _curvature(self, sets: TrainingSets) -> Floats:
        """H_i of (1)."""
        site = sets.site
        own, _ = site.kept(("own rows", self), lambda: self._own(sets))
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

    def _kept_inverse(self, sets: TrainingSets) -> Floats:
        """H_i⁻¹, prepared once."""
        out: Floats = self._kept("inverse", sets, lambda: invert_symmetric(self._curvature(sets)))
        return out

    def _kept(self, what: str, sets: TrainingSets, make: Callable[[], Any]) -> Any:
        """What changes only with who has sent predictions, and at which rate."""
        return sets.site.kept((what, self, sets.has_predicted.tobytes(), sets.rate.tobytes()), make)

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
        w, v = np.empty((2, len(sets.before), width))
        for i, fit in enumerate(sets.before):
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
        w = np.array([fit.w for fit in fitted])
        if len(X) > 1 and len(set(map(id, X))) == 1:
            return w @ self._widen(X[0]).T
        starts = np.concatenate([[0], np.cumsum([len(rows) for rows in X])])
        predicted = kernels.predict_rows(self._widen(np.concatenate(X)), starts, w)
        return [predicted[first:last] for first, last in pairwise(starts.tolist())]


def _fits(*parts: Floats) -> list[LinearFit | None]:
    """The fits of nodes, of which ``parts`` have a row each."""
    return list(map(LinearFit, *parts))


def _times(matrices: Floats, vectors: Floats) -> Floats:
    return (matrices @ vectors[:, :, None])[:, :, 0]


def _gram(points: Floats) -> Floats:
    return points.swapaxes(-1, -2) @ points


def _recalled(sets: TrainingSets) -> list[tuple[int, WeightedRows]]:
    """The nodes that repeat what they knew, and the rows on which they do."""
    if sets.recalled.count(None) == len(sets.recalled):
        return []
    return [(node, rows) for node, rows in enumerate(sets.recalled) if rows is not None]
