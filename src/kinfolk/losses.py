"""Losses: a scalar function of prediction and label. The node's L_i follows from it (see ``kinfolk.bound``).

A loss of your own is a frozen dataclass with the scalar functions below; ``kinfolk.testing.check_loss`` says
whether they fit together.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from scipy.special import expit, xlogy

from kinfolk.bound import BoundLoss, BoundQuadratic
from kinfolk.checks import AtLeast, InputError, Positive
from kinfolk.data import Data
from kinfolk.node_loss import NodeLoss
from kinfolk.typing import Floats

ROUNDING = 1e-12  # a dual variable that exceeds its range by rounding is still inside


@dataclass(frozen=True)
class Loss(NodeLoss):
    """How a linear model is scored at a node, by a convex scalar function ℓ ≥ 0.

        L_i(w) = c_i Σ_r ℓ(x_r'w, y_r) + (ridge / 2) ‖w‖²

    Parameters
    ----------
    reduction : ``"mean"`` (c_i = 1 / m_i, every node counts the same) or ``"sum"`` (c_i = 1, every sample does).
        At the same λ the two differ by a factor m_i.
    ridge : strength of the ridge term; the intercept is not penalised, nor is a node without data.
    intercept : whether the model has a constant term; it is the last parameter.
    """

    reduction: Literal["mean", "sum"] = "mean"
    ridge: Annotated[float, AtLeast(0)] = 0.0
    intercept: bool = False

    most_curvature: ClassVar[float]  # an upper bound on ℓ''
    labels: ClassVar[str] = "numbers"  # what y may be, in words

    @abstractmethod
    def value(self, z: Floats, y: Floats) -> Floats:
        """ℓ(z, y) for predictions z and labels y."""

    @abstractmethod
    def slope(self, z: Floats, y: Floats) -> Floats:
        """ℓ'(z, y), the derivative in z."""

    @abstractmethod
    def curvature(self, z: Floats, y: Floats) -> Floats:
        """ℓ''(z, y)."""

    @abstractmethod
    def conjugate(self, b: Floats, y: Floats) -> Floats:
        """ℓ*(b, y) = sup_z b z − ℓ(z, y); +∞ outside its domain."""

    def reach(self, value: Floats, y: Floats) -> Floats:
        """The largest |z| with ℓ(z, y) ≤ value; it bounds where a solution can be. ∞ is always right."""
        return np.full_like(y, np.inf)

    def typical_curvature(self, y: Floats) -> Floats:
        """ℓ'' where predictions are expected to be; it sets the first step sizes."""
        return np.full_like(y, self.most_curvature)

    def admits(self, y: Floats) -> Any:
        """Which labels are allowed."""
        return np.isfinite(y)

    def predict(self, z: Floats) -> Floats:
        """What the model answers for the linear prediction z."""
        return z

    def error(self, z: Floats, y: Floats) -> Floats:
        """The error that a user looks at: squared, unless the loss says otherwise."""
        return (self.predict(z) - y) ** 2

    def width(self, feature_count: int) -> int:
        """Number of parameters of a node's model."""
        return feature_count + self.intercept

    def bind(self, data: Data) -> BoundLoss:
        """The local losses L_i for the data of some nodes."""
        return BoundLoss.of(self, data)

    def check_data(self, data: Data) -> None:
        """Refuse labels outside the range of the loss."""
        self.check_labels(data.y)

    def check_labels(self, y: Floats) -> None:
        """Refuse labels outside the range of the loss."""
        bad = np.flatnonzero(~self.admits(y))
        if len(bad):
            raise InputError(
                f"Expected {self.labels} as labels for {type(self).__name__}, got {y[bad[0]]:g} "
                f"({len(bad)} of {len(y)} labels are outside): recode the target or choose another loss."
            )


@dataclass(frozen=True)
class Squared(Loss):
    """ℓ(z, y) = (z − y)², without the factor ½, as in the GTV paper.

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

    def reach(self, value: Floats, y: Floats) -> Floats:
        """|y| + √value."""
        return np.abs(y) + np.sqrt(value)

    def bind(self, data: Data) -> BoundQuadratic:
        """The local losses, with their prox in closed form."""
        return BoundQuadratic(*BoundLoss.of(self, data).fields())


@dataclass(frozen=True)
class Logistic(Loss):
    """ℓ(z, y) = log(1 + e^z) − y z for labels y ∈ {0, 1}.

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
        return expit(z) - y

    def curvature(self, z: Floats, y: Floats) -> Floats:
        """σ(z) (1 − σ(z))."""
        return expit(z) * expit(-z)

    def conjugate(self, b: Floats, y: Floats) -> Floats:
        """p log p + (1 − p) log(1 − p) with p = b + y in [0, 1]."""
        p = b + y
        inside = (p >= 0) & (p <= 1)
        q = np.clip(p, 0.0, 1.0)
        return np.where(inside, xlogy(q, q) + xlogy(1 - q, 1 - q), np.inf)

    def admits(self, y: Floats) -> Any:
        """0 and 1."""
        return (y == 0) | (y == 1)

    def predict(self, z: Floats) -> Floats:
        """The more probable class."""
        return (z > 0).astype(np.float64)

    def probability(self, z: Floats) -> Floats:
        """The probability of class 1."""
        return expit(z)


@dataclass(frozen=True)
class Huber(Loss):
    """ℓ(z, y) = (z − y)² for errors up to δ, and 2δ|z − y| − δ² beyond: squared, but patient with outliers.

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

    def reach(self, value: Floats, y: Floats) -> Floats:
        """|y| + √value, or where the tangent has that value."""
        return np.abs(y) + np.maximum(np.sqrt(value), (value + self.delta**2) / (2 * self.delta))


@dataclass(frozen=True)
class Poisson(Loss):
    """ℓ(z, y) = e^z − y z + y log y − y for counts y ≥ 0: half the deviance; the model predicts e^z.

    >>> Poisson().value(np.log([2.0, 1.0]), np.array([2.0, 0.0])).round(6)
    array([0., 1.])
    """

    most_curvature: ClassVar[float] = np.inf
    labels: ClassVar[str] = "numbers ≥ 0"

    def value(self, z: Floats, y: Floats) -> Floats:
        """e^z − y z + y log y − y."""
        return _exp(z) - y * z + xlogy(y, y) - y

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
        return np.where(p >= 0, xlogy(q, q) - q - xlogy(y, y) + y, np.inf)

    def typical_curvature(self, y: Floats) -> Floats:
        """max(y, 1): the count that is predicted when the model is right."""
        return np.maximum(y, 1.0)

    def admits(self, y: Floats) -> Any:
        """Finite and not negative."""
        return np.isfinite(y) & (y >= 0)

    def predict(self, z: Floats) -> Floats:
        """e^z."""
        return _exp(z)


def _exp(z: Floats) -> Floats:
    """e^z; a trial step may overflow, and is then found to be too long."""
    with np.errstate(over="ignore"):
        return np.exp(z)
