"""Couplings φ: how a difference between neighbours' parameters is charged.

The GTV term is λ Σ_edges A_ij φ(w_i − w_j), each edge once. Every function works on one row per edge.
A coupling of your own is a frozen dataclass with the three functions below; ``kinfolk.testing.check_coupling``
says whether they fit together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from kinfolk.typing import Floats

ROUNDING = 1e-12  # a flow that exceeds its ball by rounding is still inside


class Coupling(Protocol):
    """φ, its conjugate, and the prox of the conjugate of weight · φ."""

    is_norm: ClassVar[bool]  # a norm makes neighbours equal, other couplings only similar

    def value(self, v: Floats) -> Floats:
        """φ(v_e) of every row."""

    def conjugate(self, u: Floats) -> Floats:
        """φ*(u_e) of every row; +∞ outside its domain."""

    def dual_prox(self, v: Floats, sigma: Floats, weights: Floats) -> Floats:
        """argmin_u weights_e φ*(u / weights_e) + ‖u − v_e‖² / (2 sigma_e); zero where weights_e is."""

    def reach(self, value: Floats) -> Floats:
        """The largest ‖v‖₂ with φ(v) ≤ value; it bounds where a solution can be. ∞ is always right."""


@dataclass(frozen=True)
class EuclideanNorm:
    """φ(v) = ‖v‖₂ (network lasso): neighbours become equal, or differ freely in few places.

    >>> EuclideanNorm().value(np.array([[3.0, 4.0]]))
    array([5.])
    """

    is_norm: ClassVar[bool] = True

    def value(self, v: Floats) -> Floats:
        """‖v‖₂."""
        return np.linalg.norm(v, axis=1)

    def conjugate(self, u: Floats) -> Floats:
        """0 in the unit ball, +∞ outside."""
        return np.where(np.linalg.norm(u, axis=1) <= 1 + ROUNDING, 0.0, np.inf)

    def dual_prox(self, v: Floats, sigma: Floats, weights: Floats) -> Floats:
        """Clip v to length at most weights."""
        length = np.linalg.norm(v, axis=1)
        return v * np.minimum(1.0, np.divide(weights, length, out=np.ones_like(length), where=length > 0))[:, None]

    def reach(self, value: Floats) -> Floats:
        """The value itself."""
        return value


@dataclass(frozen=True)
class AbsoluteNorm:
    """φ(v) = ‖v‖₁: every parameter has its own clusters.

    >>> AbsoluteNorm().value(np.array([[3.0, -4.0]]))
    array([7.])
    """

    is_norm: ClassVar[bool] = True

    def value(self, v: Floats) -> Floats:
        """‖v‖₁."""
        return np.abs(v).sum(axis=1)

    def conjugate(self, u: Floats) -> Floats:
        """0 where every entry is at most 1 in size, +∞ elsewhere."""
        return np.where((np.abs(u) <= 1 + ROUNDING).all(axis=1), 0.0, np.inf)

    def dual_prox(self, v: Floats, sigma: Floats, weights: Floats) -> Floats:
        """Clip every entry of v to at most weights in size."""
        return np.clip(v, -weights[:, None], weights[:, None])

    def reach(self, value: Floats) -> Floats:
        """The value itself: ‖v‖₂ ≤ ‖v‖₁."""
        return value


@dataclass(frozen=True)
class SquaredNorm:
    """φ(v) = ½ ‖v‖₂² (Laplacian coupling, MOCHA): neighbours become similar, nowhere equal.

    >>> SquaredNorm().value(np.array([[3.0, 4.0]]))
    array([12.5])
    """

    is_norm: ClassVar[bool] = False

    def value(self, v: Floats) -> Floats:
        """½ ‖v‖₂²."""
        return 0.5 * (v**2).sum(axis=1)

    def conjugate(self, u: Floats) -> Floats:
        """½ ‖u‖₂²."""
        return 0.5 * (u**2).sum(axis=1)

    def dual_prox(self, v: Floats, sigma: Floats, weights: Floats) -> Floats:
        """v · weights / (weights + sigma)."""
        return v * (weights / (weights + sigma))[:, None]

    def reach(self, value: Floats) -> Floats:
        """√(2 value)."""
        return np.sqrt(2.0 * value)
