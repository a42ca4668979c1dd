"""Linear scores: how a target of any kind becomes one linear prediction per output, and back.

Numbers, quantiles and counts have one output, two classes too; more classes have one each, against all others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import expit, softmax

from kinfolk.objective.losses import Kinked, Logistic, Loss, Poisson, Quantile, Squared
from kinfolk.tables.target import LEAST_MEAN, Target
from kinfolk.typing import Floats, Ints

Link = Literal["own", "softmax"]
LARGEST = 30.0  # of a linear score before e^z
ROUNDED = 1e-3  # of the target's deviation: where the kink of a quantile loss is rounded


def loss_of(target: Target) -> Loss:
    """The loss of one output, a sum over rows."""
    kinds: dict[str, Loss] = {
        "number": Squared("sum", intercept=True),
        "classes": Logistic("sum", intercept=True),
        "count": Poisson("sum", intercept=True),
        "quantile": Quantile("sum", intercept=True, level=target.level),
    }
    return kinds[target.kind]


def labels(target: Target, y: Floats) -> Floats:
    """The labels of every output (outputs, rows)."""
    if len(target.classes) > 2:
        return np.asarray(y == np.arange(len(target.classes))[:, None], dtype=np.float64)
    return y[None]


def predictions(target: Target, scores: Floats) -> Floats:
    """From linear scores (outputs, rows) to what is predicted: numbers, means of counts, or probabilities."""
    if target.kind == "count":
        return np.asarray(np.maximum(np.exp(np.minimum(scores[0], LARGEST)), LEAST_MEAN))
    if target.kind != "classes":
        return np.asarray(scores[0])
    p = expit(scores)
    if len(p) == 1:
        return np.stack([1 - p[0], p[0]], axis=1)
    return np.asarray(p / np.maximum(p.sum(axis=0), 1e-300)).T


def derivatives(loss: Loss, z: Floats, y: Floats, rounding: float = ROUNDED) -> tuple[Floats, Floats]:
    """ℓ' and ℓ'' of every row; for a loss with a kink those of the parabola above it that touches it at z.

    With slopes a < 0 < b and r = z − y:  ℓ(r) ≤ (b − a) r² / (4 |r₀|) + (a + b) r / 2 + const  (Hunter and Lange 2000).
    """
    if not isinstance(loss, Kinked):
        return loss.slope(z, y), loss.curvature(z, y)
    low, high = loss.slopes(y)
    rest = z - loss.kink(y)
    curvature = (high - low) / (2 * (np.abs(rest) + rounding))
    return curvature * rest + (high + low) / 2, curvature


def rounded(loss: Loss, z: Floats, y: Floats, width: float) -> tuple[Floats, Floats, Floats]:
    """ℓ, ℓ' and ℓ'' of every row; a kink is rounded, so that the slope is a + (b − a) / (1 + e^(−r / width)).

    >>> [each.round(3).tolist() for each in rounded(Quantile(level=0.5), np.array([-8.0, 0.0]), np.zeros(2), 1.0)]
    [[4.0, 0.693], [-0.5, 0.0], [0.0, 0.25]]
    """
    if not isinstance(loss, Kinked):
        return loss.value(z, y), loss.slope(z, y), loss.curvature(z, y)
    low, high = loss.slopes(y)
    rest, step = z - loss.kink(y), high - low
    share = expit(rest / width)
    value: Floats = low * rest + step * width * np.logaddexp(0.0, rest / width)
    return value, low + step * share, step * share * (1 - share) / width


@dataclass(frozen=True, eq=False)
class LinearScores:
    """Linear models of all nodes, or one for all, for every output."""

    w: Floats  # (outputs, nodes or 1, features + 1), the intercept last
    target: Target
    link: Link = "own"  # "own": each output has its probability; "softmax": all have them together
    common: Floats | None = None  # (outputs, features + 1) of a node that was never seen; None: it is like those nearby

    def linear(self, X: Floats, node: Ints) -> Floats:
        """The linear scores (outputs, rows); NaN where a node has no model."""
        own = np.zeros_like(node) if self.w.shape[1] == 1 else node
        return np.stack([np.einsum("rk,rk->r", X, w[own, :-1]) + w[own, -1] for w in self.w])

    @property
    def elsewhere(self) -> LinearScores | None:
        """The model of nodes that were never seen; None: they are like those nearby."""
        if self.w.shape[1] == 1:
            return self
        return None if self.common is None else LinearScores(self.common[:, None], self.target, self.link)

    def predict(self, X: Floats, node: Ints) -> Floats:
        """What is predicted for rows of nodes."""
        scores = self.linear(X, node)
        return np.asarray(softmax(scores, axis=0).T) if self.link == "softmax" else predictions(self.target, scores)
