"""Losses: a scalar function of prediction and label. The node's L_i follows from it (see ``local_losses``).

A loss of your own is a frozen dataclass with the scalar functions below; ``kinfolk.testing.check_loss`` checks
whether they fit together. ``Loss`` is for smooth losses, ``Kinked`` for those that are linear on either side of a kink.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import numpy as np
from scipy.special import expit, xlogy

from kinfolk.checks import AtLeast, Between, InputError, Positive
from kinfolk.network.data import Data, check_one_label
from kinfolk.objective.kinked_losses import KinkedLosses
from kinfolk.objective.local_losses import LinearLosses
from kinfolk.objective.node_loss import NodeLoss
from kinfolk.objective.quadratic_losses import PointLosses, QuadraticLosses
from kinfolk.typing import Floats

if TYPE_CHECKING:
    from kinfolk.objective.linear_models import LinearModels

ROUNDING = 1e-12  # a dual variable that exceeds its range by rounding is still inside


@dataclass(frozen=True)
class Loss(NodeLoss):
    """How a linear model is scored at a node, by a convex scalar function ℓ ≥ 0.

        L_i(w) = c_i Σ_r ℓ(x_r'w, y_r) + (ridge / 2) ‖w‖²

    Parameters
    ----------
    reduction : {"mean", "sum"}
        ``"mean"``: c_i = 1 / m_i, every node counts the same. ``"sum"``: c_i = 1, every sample does. At the same λ the
        two differ by a factor m_i.
    ridge : float
        Factor of the ridge term, ≥ 0; the intercept is not penalised, nor is a node without data.
    intercept : bool
        Whether the model has a constant term; it is the last parameter.

    Attributes
    ----------
    smooth : bool
        Whether ℓ has a slope everywhere.
    most_curvature : float
        An upper bound on ℓ''; ∞ if there is none.
    labels : str
        Which labels are allowed, for error messages.
    """

    reduction: Literal["mean", "sum"] = "mean"
    ridge: Annotated[float, AtLeast(0)] = 0.0
    intercept: bool = False

    smooth: ClassVar[bool] = True
    most_curvature: ClassVar[float]
    labels: ClassVar[str] = "numbers"

    @property
    def unpenalised(self) -> Self:
        """Without the ridge term."""
        return replace(self, ridge=0.0)

    @abstractmethod
    def value(self, z: Floats, y: Floats) -> Floats:
        """ℓ(z, y), element by element.

        Parameters
        ----------
        z : array of float
            Linear predictions.
        y : array of float, of the same shape
            Labels.

        Returns
        -------
        array of float, of the same shape
            The losses, ≥ 0.
        """

    @abstractmethod
    def slope(self, z: Floats, y: Floats) -> Floats:
        """ℓ'(z, y), the derivative in z; parameters and shapes as for ``value``."""

    @abstractmethod
    def curvature(self, z: Floats, y: Floats) -> Floats:
        """ℓ''(z, y), the second derivative in z; parameters and shapes as for ``value``."""

    @abstractmethod
    def conjugate(self, b: Floats, y: Floats) -> Floats:
        """ℓ*(b, y) = sup_z b z − ℓ(z, y), element by element.

        Parameters
        ----------
        b : array of float
            Dual variables.
        y : array of float, of the same shape
            Labels.

        Returns
        -------
        array of float, of the same shape
            The conjugates; +∞ outside the domain.
        """

    def into_domain(self, b: Floats, y: Floats) -> Floats:
        """The dual variables nearest to b at which ℓ* is finite; by default they are everywhere."""
        boxes = self.boxes(y)
        return b if boxes is None else np.clip(b, boxes[1], boxes[2])

    def radius(self, value: Floats, y: Floats) -> Floats:
        """The largest |z| with ℓ(z, y) ≤ value; it bounds where a solution can be. ∞ is always right."""
        return np.full_like(y, np.inf)

    def boxes(self, y: Floats) -> tuple[Floats, Floats, Floats, Floats] | None:
        """kink, low, high and give with ℓ(z, y) = max β (z − kink) − ½ give β² over low ≤ β ≤ high, if ℓ is such."""
        return None

    def typical_curvature(self, y: Floats) -> Floats:
        """ℓ'' where predictions are expected to be; it sets the first step sizes."""
        return np.full_like(y, self.most_curvature)

    def admits(self, y: Floats) -> Any:
        """Which labels are allowed."""
        return np.isfinite(y)

    def target(self, X: Floats, y: Floats) -> Floats:
        """What the predictions for some rows are compared with: the labels."""
        return y

    def linear(self, w: Floats, X: Floats) -> Floats:
        """The linear predictions for some rows, each with its own parameters w_r: x_r'w_r, and the intercept."""
        z = np.einsum("rk,rk->r", X, w[:, : X.shape[1]])
        return np.asarray(z + w[:, -1] if self.intercept else z)

    def predict(self, z: Floats) -> Floats:
        """The prediction of the model, from the linear prediction z."""
        return z

    def error(self, z: Floats, y: Floats) -> Floats:
        """The error that is reported to users: squared, unless a subclass defines another."""
        return (self.predict(z) - y) ** 2

    def width(self, feature_count: int) -> int:
        """Number of parameters of a node's model."""
        return feature_count + self.intercept

    def bind(self, data: Data) -> LinearLosses:
        """The local losses L_i for the data of some nodes."""
        return LinearLosses.of(self, data)

    def models(self, w: Floats) -> LinearModels:
        """Linear models with these parameters."""
        from kinfolk.objective.linear_models import LinearModels

        return LinearModels(w, self)

    def check_data(self, data: Data) -> None:
        """Refuse labels outside the range of the loss."""
        self.check_labels(data.y)

    def check_labels(self, y: Floats) -> None:
        """Refuse labels outside the range of the loss."""
        check_one_label(y, type(self).__name__)
        bad = np.flatnonzero(~self.admits(y))
        if len(bad):
            raise InputError(
                f"Expected {self.labels} as labels for {type(self).__name__}, got {y[bad[0]]:g} "
                f"({len(bad)} of {len(y)} labels are outside): recode the target or choose another loss."
            )


@dataclass(frozen=True)
class Squared(Loss):
    """ℓ(z, y) = (z − y)², without the factor ½, as in the GTV paper.

    Parameters
    ----------
    reduction, ridge, intercept : {"mean", "sum"}, float, bool
        As for ``Loss``.

    >>> Squared().value(np.array([3.0]), np.array([1.0]))
    array([4.])
    """

    most_curvature: ClassVar[float] = 2.0

    def value(self, z: Floats, y: Floats) -> Floats:
        """(z − y)²."""
        return (z - y) ** 2

    def slope(self, z: Floats, y: Floats) -> Floats:
        """2 (z − y)."""
        return 2.0 * (z - y)

    def curvature(self, z: Floats, y: Floats) -> Floats:
        """2."""
        return np.full_like(z, 2.0)

    def conjugate(self, b: Floats, y: Floats) -> Floats:
        """b² / 4 + b y."""
        return b**2 / 4 + b * y

    def radius(self, value: Floats, y: Floats) -> Floats:
        """|y| + √value."""
        return np.abs(y) + np.sqrt(value)

    def bind(self, data: Data) -> QuadraticLosses:
        """The local losses, with their prox in closed form."""
        return QuadraticLosses.of(self, data)


@dataclass(frozen=True)
class SquaredDistance(Squared):
    """L_i(w) = c_i Σ_r ‖w − x_r‖²: the parameters of a node are a centre of its own points.

    With a norm as coupling this is convex clustering, eq (29) of the GTV paper, there with one point per node: centres
    of kin become equal. The scalar loss is (w_k − x_rk)², summed over the entries k. There are no labels
    (``Network.of_points`` needs none, and others are ignored); a model answers with its centre, and its error is the
    squared distance to it.

    Parameters
    ----------
    reduction, ridge : {"mean", "sum"}, float
        As for ``Loss``.
    intercept : bool
        Must be False: a centre has no constant term.

    >>> from kinfolk import GTVMin, Network, fit, graphs
    >>> network = Network.of_points(graphs.complete(4), [[0.0, 0.0], [0.0, 1.0], [8.0, 0.0], [8.0, 1.0]])
    >>> fit(network, GTVMin(SquaredDistance(), lam=1.0)).models.w.round(3).tolist()
    [[1.0, 0.5], [1.0, 0.5], [7.0, 0.5], [7.0, 0.5]]
    """

    intercept: Literal[False] = False

    def target(self, X: Floats, y: Floats) -> Floats:
        """The points themselves."""
        return X

    def linear(self, w: Floats, X: Floats) -> Floats:
        """The centre."""
        return w

    def admits(self, y: Floats) -> Any:
        """Whatever there is: labels are not looked at."""
        return np.ones(len(y), dtype=bool)

    def error(self, z: Floats, y: Floats) -> Floats:
        """The squared distance from the centre."""
        return np.asarray(((z - y) ** 2).sum(axis=1))

    def bind(self, data: Data) -> PointLosses:
        """The local losses, without a matrix for any node."""
        return PointLosses.of(self, data)


@dataclass(frozen=True)
class Logistic(Loss):
    """ℓ(z, y) = log(1 + e^z) − y z for labels y ∈ {0, 1}.

    Parameters
    ----------
    reduction, ridge, intercept : {"mean", "sum"}, float, bool
        As for ``Loss``.

    >>> Logistic().value(np.array([0.0]), np.array([1.0])).round(3)
    array([0.693])
    """

    most_curvature: ClassVar[float] = 0.25
    labels: ClassVar[str] = "0 or 1"

    def value(self, z: Floats, y: Floats) -> Floats:
        """log(1 + e^z) − y z."""
        return np.logaddexp(0.0, z) - y * z

    def slope(self, z: Floats, y: Floats) -> Floats:
        """σ(z) − y."""
        return np.asarray(expit(z) - y)

    def curvature(self, z: Floats, y: Floats) -> Floats:
        """σ(z) (1 − σ(z))."""
        return np.asarray(expit(z) * expit(-z))

    def conjugate(self, b: Floats, y: Floats) -> Floats:
        """p log p + (1 − p) log(1 − p) with p = b + y in [0, 1]."""
        p = b + y
        inside = (p >= -ROUNDING) & (p <= 1 + ROUNDING)
        q = np.clip(p, 0.0, 1.0)
        return np.where(inside, xlogy(q, q) + xlogy(1 - q, 1 - q), np.inf)

    def into_domain(self, b: Floats, y: Floats) -> Floats:
        """b + y in [0, 1]."""
        return np.clip(b, -y, 1.0 - y)

    def admits(self, y: Floats) -> Any:
        """0 and 1."""
        return (y == 0) | (y == 1)

    def predict(self, z: Floats) -> Floats:
        """The more probable class."""
        return (z > 0).astype(np.float64)

    def probability(self, z: Floats) -> Floats:
        """The probability of class 1."""
        return np.asarray(expit(z))


@dataclass(frozen=True)
class Huber(Loss):
    """ℓ(z, y) = (z − y)² for errors up to δ, and 2δ|z − y| − δ² beyond: squared, but patient with outliers.

    Parameters
    ----------
    reduction, ridge, intercept : {"mean", "sum"}, float, bool
        As for ``Loss``.
    delta : float
        δ > 0, the error from which on the loss grows linearly.

    >>> Huber(delta=1.0).value(np.array([0.5, 3.0]), np.zeros(2))
    array([0.25, 5.  ])
    """

    delta: Annotated[float, Positive()] = 1.0

    most_curvature: ClassVar[float] = 2.0

    def value(self, z: Floats, y: Floats) -> Floats:
        """(z − y)², continued by its tangents."""
        size = np.abs(z - y)
        return np.where(size <= self.delta, size**2, 2 * self.delta * size - self.delta**2)

    def slope(self, z: Floats, y: Floats) -> Floats:
        """2 (z − y), at most 2δ in size."""
        return 2.0 * np.clip(z - y, -self.delta, self.delta)

    def curvature(self, z: Floats, y: Floats) -> Floats:
        """2 for small errors, 0 for large ones."""
        return np.where(np.abs(z - y) <= self.delta, 2.0, 0.0)

    def conjugate(self, b: Floats, y: Floats) -> Floats:
        """b² / 4 + b y for |b| ≤ 2δ."""
        return np.where(np.abs(b) <= 2 * self.delta * (1 + ROUNDING), b**2 / 4 + b * y, np.inf)

    def boxes(self, y: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """β between −2δ and 2δ, with β² / 4."""
        return y, np.full_like(y, -2 * self.delta), np.full_like(y, 2 * self.delta), np.full_like(y, 0.5)

    def radius(self, value: Floats, y: Floats) -> Floats:
        """|y| + √value, or where the tangent has that value."""
        return np.abs(y) + np.maximum(np.sqrt(value), (value + self.delta**2) / (2 * self.delta))


@dataclass(frozen=True)
class Poisson(Loss):
    """ℓ(z, y) = e^z − y z + y log y − y for counts y ≥ 0: half the deviance; the model predicts e^z.

    Parameters
    ----------
    reduction, ridge, intercept : {"mean", "sum"}, float, bool
        As for ``Loss``.

    >>> Poisson().value(np.log([2.0, 1.0]), np.array([2.0, 0.0])).round(6)
    array([0., 1.])
    """

    most_curvature: ClassVar[float] = np.inf
    labels: ClassVar[str] = "numbers ≥ 0"

    def value(self, z: Floats, y: Floats) -> Floats:
        """e^z − y z + y log y − y."""
        return np.asarray(_exp(z) - y * z + xlogy(y, y) - y)

    def slope(self, z: Floats, y: Floats) -> Floats:
        """e^z − y."""
        return _exp(z) - y

    def curvature(self, z: Floats, y: Floats) -> Floats:
        """e^z."""
        return _exp(z)

    def conjugate(self, b: Floats, y: Floats) -> Floats:
        """p log p − p − y log y + y with p = b + y ≥ 0."""
        p = b + y
        q = np.maximum(p, 0.0)
        return np.where(p >= -ROUNDING * (1 + y), xlogy(q, q) - q - xlogy(y, y) + y, np.inf)

    def into_domain(self, b: Floats, y: Floats) -> Floats:
        """b + y ≥ 0."""
        return np.maximum(b, -y)

    def typical_curvature(self, y: Floats) -> Floats:
        """max(y, 1): the count that is predicted when the model is right."""
        return np.maximum(y, 1.0)

    def admits(self, y: Floats) -> Any:
        """Finite and not negative."""
        return np.isfinite(y) & (y >= 0)

    def predict(self, z: Floats) -> Floats:
        """e^z."""
        return _exp(z)


@dataclass(frozen=True)
class Kinked(Loss):
    """Losses that are linear on either side of one kink, where they vanish.

        ℓ(z, y) = max(low (z − k), high (z − k))     with slopes low ≤ 0 ≤ high, low < high, and a kink k, given by y

    Such a loss of your own has just ``kink`` and ``slopes``; the rest follows. Losses with several kinks, or curved
    beside one, are not covered: smooth them, as ``Huber`` does with the absolute loss.

    With ``AbsoluteNorm`` or ``MaximumNorm`` the whole problem is piecewise linear. An interior-point method ends such
    runs where it can (one process, a graph that small cuts take apart); by rounds alone GTV minimisation may take tens
    of thousands of them, and the certificate bounds how far the answer is from the best one.

    Parameters
    ----------
    reduction, ridge, intercept : {"mean", "sum"}, float, bool
        As for ``Loss``.

    >>> @dataclass(frozen=True)
    ... class Shortage(Kinked):
    ...     def slopes(self, y):
    ...         return -2.0 * np.ones_like(y), 0.1 * np.ones_like(y)  # too little costs more than too much
    >>> Shortage().value(np.array([0.0, 1.0, 3.0]), np.ones(3))
    array([2. , 0. , 0.2])
    """

    smooth: ClassVar[bool] = False
    most_curvature: ClassVar[float] = np.inf

    def kink(self, y: Floats) -> Floats:
        """k: the prediction that suits the label."""
        return y

    @abstractmethod
    def slopes(self, y: Floats) -> tuple[Floats, Floats]:
        """The slopes below and above the kink.

        Parameters
        ----------
        y : array of float
            Labels.

        Returns
        -------
        tuple of two arrays of float, each of the shape of y
            low ≤ 0 and high ≥ 0, with low < high.
        """

    def value(self, z: Floats, y: Floats) -> Floats:
        """max(low (z − k), high (z − k))."""
        low, high = self.slopes(y)
        beyond = z - self.kink(y)
        return np.maximum(low * beyond, high * beyond)

    def slope(self, z: Floats, y: Floats) -> Floats:
        """low or high; 0, which is a subgradient, on the kink."""
        low, high = self.slopes(y)
        beyond = z - self.kink(y)
        return np.where(beyond > 0, high, np.where(beyond < 0, low, 0.0))

    def curvature(self, z: Floats, y: Floats) -> Floats:
        """0, beside the kink."""
        return np.zeros_like(z)

    def conjugate(self, b: Floats, y: Floats) -> Floats:
        """b k for b between the slopes."""
        low, high = self.slopes(y)
        slack = ROUNDING * (high - low)
        return np.where((b >= low - slack) & (b <= high + slack), b * self.kink(y), np.inf)

    def boxes(self, y: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """β between the slopes."""
        return self.kink(y), *self.slopes(y), np.zeros_like(y)

    def radius(self, value: Floats, y: Floats) -> Floats:
        """|k| + value / slope, with the flatter slope; ∞ if that is 0."""
        low, high = self.slopes(y)
        flatter = np.minimum(-low, high)
        beyond = np.divide(value, flatter, out=np.full_like(flatter, np.inf), where=flatter > 0)
        return np.abs(self.kink(y)) + beyond

    def bind(self, data: Data) -> KinkedLosses:
        """The local losses, with their prox by an active-set method."""
        return KinkedLosses.of(self, data)


@dataclass(frozen=True)
class Absolute(Kinked):
    """ℓ(z, y) = |z − y|: the model of the median, which outliers do not move.

    Parameters
    ----------
    reduction, ridge, intercept : {"mean", "sum"}, float, bool
        As for ``Loss``.

    >>> Absolute().value(np.array([3.0]), np.array([1.0]))
    array([2.])
    """

    def slopes(self, y: Floats) -> tuple[Floats, Floats]:
        """−1 and 1."""
        return -np.ones_like(y), np.ones_like(y)

    def error(self, z: Floats, y: Floats) -> Floats:
        """|z − y|."""
        return np.abs(z - y)


@dataclass(frozen=True)
class Quantile(Kinked):
    """ℓ(z, y) = level (y − z) below the label, (1 − level) (z − y) above: the model of a quantile (pinball loss).

    Parameters
    ----------
    reduction, ridge, intercept : {"mean", "sum"}, float, bool
        As for ``Loss``.
    level : float
        The quantile, between 0 and 1, both excluded; ½ is the median.

    >>> Quantile(level=0.9).value(np.array([0.0, 2.0]), np.ones(2)).round(3)
    array([0.9, 0.1])
    """

    level: Annotated[float, Between(0, 1, open_low=True, open_high=True)] = 0.5

    def slopes(self, y: Floats) -> tuple[Floats, Floats]:
        """−level and 1 − level."""
        return np.full_like(y, -self.level), np.full_like(y, 1.0 - self.level)

    def error(self, z: Floats, y: Floats) -> Floats:
        """The loss itself."""
        return self.value(z, y)


def _exp(z: Floats) -> Floats:
    """e^z; a trial step may overflow, and is then found to be too long."""
    with np.errstate(over="ignore"):
        return np.exp(z)
