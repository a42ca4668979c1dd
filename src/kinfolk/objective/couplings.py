"""Couplings φ: how a difference between neighbours' parameters is charged.

The GTV term is λ Σ_edges A_ij φ(w_i − w_j), each edge once. Every function works on one row per edge.
A coupling of your own is a frozen dataclass, a subclass of ``Coupling`` with three functions; whether they fit together
is checked by ``kinfolk.testing.check_coupling``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import numpy as np

from kinfolk import kernels
from kinfolk.checks import Between, InputError
from kinfolk.typing import Bools, Floats

ROUNDING = 1e-12  # a flow that exceeds its ball by rounding is still inside
BISECTIONS = 120
ON_BORDER = 1 - 1e-6  # of its radius: a flow so long sits on the border
IN_SPAN = 1e-9  # what a flow may have outside the range of Q, relative


class Border(NamedTuple):
    """Which ways flows may move along the border of their domain."""

    free: Bools | None  # (edges, parameters) entries that may move; None: all
    normal: Floats | None  # (edges, parameters) a direction that leads across; None: nowhere
    grip: Floats | None = None  # (edges,) 1 / ‖normal‖², or 0 where nothing holds a flow

    def along(self, change: Floats) -> Floats:
        """The part of changes that leads along the border."""
        out = change if self.free is None else np.where(self.free, change, 0.0)
        if self.normal is None or self.grip is None:
            return out
        return np.asarray(out - (self.grip * np.einsum("ij,ij->i", out, self.normal))[:, None] * self.normal)


class Coupling(ABC):
    """φ, its conjugate, and the prox of the conjugate of weight · φ. Subclasses are frozen dataclasses.

    What the class attributes declare beyond that makes answers sharper or quicker, never different.

    Attributes
    ----------
    is_norm : bool
        Whether φ is a norm. A norm makes neighbours equal, other couplings only similar.
    is_quadratic : bool
        Whether φ is quadratic, with the gradient ``slope``: certificates are sharper.
    has_derivative : bool
        Whether ``dual_prox_derivative`` is known: with a norm, answers can be polished.
    kernel_coefficients : tuple of three floats, or None
        What the compiled kernels need to know of φ (see ``kinfolk.kernels.edges``), if they cover it.
    """

    is_norm: ClassVar[bool]
    is_quadratic: ClassVar[bool] = False
    has_derivative: ClassVar[bool] = False
    kernel_coefficients: ClassVar[tuple[float, float, float] | None] = None

    @abstractmethod
    def value(self, v: Floats) -> Floats:
        """φ(v_e) of every row.

        Parameters
        ----------
        v : array of float, shape (edges, parameters)
            Differences between neighbours' parameters.

        Returns
        -------
        array of float, shape (edges,)
            The values, ≥ 0.
        """

    @abstractmethod
    def conjugate(self, u: Floats) -> Floats:
        """φ*(u_e) of every row.

        Parameters
        ----------
        u : array of float, shape (edges, parameters)
            Flows, the dual variables of the edges.

        Returns
        -------
        array of float, shape (edges,)
            The conjugates; +∞ outside the domain.
        """

    @abstractmethod
    def dual_prox(self, v: Floats, sigma: Floats, weights: Floats) -> Floats:
        """argmin_u weights_e φ*(u / weights_e) + ‖u − v_e‖² / (2 sigma_e) of every row.

        Parameters
        ----------
        v : array of float, shape (edges, parameters)
            The points.
        sigma : array of float, shape (edges,)
            Step sizes, > 0.
        weights : array of float, shape (edges,)
            Weights λA_e of φ, ≥ 0.

        Returns
        -------
        array of float, shape (edges, parameters)
            The minimisers; zero where the weight is.
        """

    def radius(self, value: Floats, width: int) -> Floats:
        """The largest ‖v‖₂ with φ(v) ≤ value for v with ``width`` entries; ∞ is always right."""
        return np.full_like(value, np.inf)

    def check(self, width: int) -> None:  # noqa: B027 - most couplings suit every width
        """Refuse models whose number of parameters does not suit φ."""

    def slope(self, v: Floats) -> Floats:
        """∇φ(v_e) of every row, for those that are quadratic."""
        raise NotImplementedError(f"{type(self).__name__} does not declare is_quadratic.")

    def dual_prox_derivative(self, v: Floats, sigma: Floats, weights: Floats) -> Floats:
        """The derivative of ``dual_prox`` in v, a matrix per edge, for those that know it."""
        raise NotImplementedError(f"{type(self).__name__} does not declare has_derivative.")

    def dual_norm(self, u: Floats) -> Floats:
        """The dual norm of every row, for norms: φ* is finite up to 1. By default found by bisection."""
        low, high = np.zeros(len(u)), np.full(len(u), 1e-300)
        for _ in range(BISECTIONS):  # in the exponent, to a part in 1e12
            grow = ~np.isfinite(self.conjugate(u / np.maximum(high, 1e-300)[:, None]))
            if not grow.any():
                break
            low, high = np.where(grow, high, low), np.where(grow, high * 1e6, high)
        for _ in range(BISECTIONS):
            middle = np.where(low > 0, np.sqrt(low) * np.sqrt(high), high / 2)
            inside = np.isfinite(self.conjugate(u / np.maximum(middle, 1e-300)[:, None]))
            low, high = np.where(inside, low, middle), np.where(inside, middle, high)
        return np.where((u == 0).all(axis=1), 0.0, high)

    def border(self, u: Floats, weights: Floats) -> Border:
        """Where flows sit on the border of their domain, and which way leads across it; by default nowhere."""
        return Border(None, None)

    def into_span(self, u: Floats) -> Floats:
        """The flows nearest to u that can be scaled to where φ* is finite: for norms all of them."""
        return u

    def weighted_conjugate(self, u: Floats, weights: Floats) -> Floats:
        """(weight · φ)*(u) = weight · φ*(u / weight) of every row; without weight only u = 0 is free."""
        out = np.where((u == 0).all(axis=1), 0.0, np.inf)
        charged = weights > 0
        out[charged] = weights[charged] * self.conjugate(u[charged] / weights[charged, None])
        return out


@dataclass(frozen=True)
class EuclideanNorm(Coupling):
    """φ(v) = ‖v‖₂ (network lasso): neighbours become equal, or differ freely in few places.

    >>> EuclideanNorm().value(np.array([[3.0, 4.0]]))
    array([5.])
    """

    is_norm: ClassVar[bool] = True
    has_derivative: ClassVar[bool] = True
    kernel_coefficients: ClassVar[tuple[float, float, float]] = (1.0, kernels.HUGE, 0.0)

    def value(self, v: Floats) -> Floats:
        """‖v‖₂."""
        return np.asarray(np.linalg.norm(v, axis=1))

    def conjugate(self, u: Floats) -> Floats:
        """0 in the unit ball, +∞ outside."""
        return np.where(self.dual_norm(u) <= 1 + ROUNDING, 0.0, np.inf)

    def dual_norm(self, u: Floats) -> Floats:
        """‖u‖₂."""
        return np.asarray(np.sqrt(np.einsum("ij,ij->i", u, u)))

    def dual_prox(self, v: Floats, sigma: Floats, weights: Floats) -> Floats:
        """Clip v to length at most weights."""
        return kernels.clip_rows(np.ascontiguousarray(v), weights)

    def dual_prox_derivative(self, v: Floats, sigma: Floats, weights: Floats) -> Floats:
        """The identity inside the ball; outside, what is not along v, the shorter the farther."""
        length = np.linalg.norm(v, axis=1)
        outside = length > weights
        unit = np.divide(v, length[:, None], out=np.zeros_like(v), where=outside[:, None])
        factor = np.divide(weights, length, out=np.ones_like(length), where=outside)
        return np.asarray(factor[:, None, None] * (np.eye(v.shape[1]) - unit[:, :, None] * unit[:, None, :]))

    def border(self, u: Floats, weights: Floats) -> Border:
        """Across is along u."""
        return Border(None, u, _grip(u, self.dual_norm(u) >= ON_BORDER * weights))

    def radius(self, value: Floats, width: int) -> Floats:
        """The value itself."""
        return value


@dataclass(frozen=True)
class AbsoluteNorm(Coupling):
    """φ(v) = ‖v‖₁: every parameter has its own clusters.

    >>> AbsoluteNorm().value(np.array([[3.0, -4.0]]))
    array([7.])
    """

    is_norm: ClassVar[bool] = True
    has_derivative: ClassVar[bool] = True
    kernel_coefficients: ClassVar[tuple[float, float, float]] = (kernels.HUGE, 1.0, 0.0)

    def value(self, v: Floats) -> Floats:
        """‖v‖₁."""
        return np.asarray(np.abs(v).sum(axis=1))

    def conjugate(self, u: Floats) -> Floats:
        """0 where every entry is at most 1 in size, +∞ elsewhere."""
        return np.where(self.dual_norm(u) <= 1 + ROUNDING, 0.0, np.inf)

    def dual_norm(self, u: Floats) -> Floats:
        """‖u‖_∞."""
        return np.asarray(np.abs(u).max(axis=1))

    def dual_prox(self, v: Floats, sigma: Floats, weights: Floats) -> Floats:
        """Clip every entry of v to at most weights in size."""
        return np.clip(v, -weights[:, None], weights[:, None])

    def dual_prox_derivative(self, v: Floats, sigma: Floats, weights: Floats) -> Floats:
        """1 for entries inside, 0 for those that were clipped."""
        return (np.abs(v) < weights[:, None])[:, :, None] * np.eye(v.shape[1])

    def border(self, u: Floats, weights: Floats) -> Border:
        """Entries that are clipped are not free."""
        return Border(np.abs(u) < ON_BORDER * weights[:, None], None)

    def radius(self, value: Floats, width: int) -> Floats:
        """The value itself: ‖v‖₂ ≤ ‖v‖₁."""
        return value


@dataclass(frozen=True)
class SquaredNorm(Coupling):
    """φ(v) = ½ ‖v‖₂² (Laplacian coupling, MOCHA): neighbours become similar, nowhere equal.

    >>> SquaredNorm().value(np.array([[3.0, 4.0]]))
    array([12.5])
    """

    is_norm: ClassVar[bool] = False
    is_quadratic: ClassVar[bool] = True
    kernel_coefficients: ClassVar[tuple[float, float, float]] = (kernels.HUGE, kernels.HUGE, 1.0)

    def value(self, v: Floats) -> Floats:
        """½ ‖v‖₂²."""
        return np.asarray(0.5 * (v**2).sum(axis=1))

    def conjugate(self, u: Floats) -> Floats:
        """½ ‖u‖₂²."""
        return np.asarray(0.5 * (u**2).sum(axis=1))

    def dual_prox(self, v: Floats, sigma: Floats, weights: Floats) -> Floats:
        """v · weights / (weights + sigma)."""
        return v * (weights / (weights + sigma))[:, None]

    def slope(self, v: Floats) -> Floats:
        """∇φ(v) = v."""
        return v

    def radius(self, value: Floats, width: int) -> Floats:
        """√(2 value)."""
        return np.sqrt(2.0 * value)


@dataclass(frozen=True)
class MaximumNorm(Coupling):
    """φ(v) = ‖v‖_∞: the parameter that differs most counts, the others may differ as much.

    >>> MaximumNorm().value(np.array([[3.0, -4.0]]))
    array([4.])
    """

    is_norm: ClassVar[bool] = True

    def value(self, v: Floats) -> Floats:
        """‖v‖_∞."""
        return np.asarray(np.abs(v).max(axis=1))

    def conjugate(self, u: Floats) -> Floats:
        """0 where ‖u‖₁ ≤ 1, +∞ elsewhere."""
        return np.where(self.dual_norm(u) <= 1 + ROUNDING, 0.0, np.inf)

    def dual_norm(self, u: Floats) -> Floats:
        """‖u‖₁."""
        return np.asarray(np.abs(u).sum(axis=1))

    def dual_prox(self, v: Floats, sigma: Floats, weights: Floats) -> Floats:
        """Project on the ball ‖u‖₁ ≤ weights: every entry shrinks by the same amount, none below zero."""
        size = np.abs(v)
        ordered = -np.sort(-size, axis=1)
        excess = (np.cumsum(ordered, axis=1) - weights[:, None]) / np.arange(1, v.shape[1] + 1)
        shrink = np.maximum(excess.max(axis=1), 0.0)
        return np.asarray(np.sign(v) * np.maximum(size - shrink[:, None], 0.0))

    def border(self, u: Floats, weights: Floats) -> Border:
        """Entries that are not zero are free, as long as the sum of sizes stays."""
        border = self.dual_norm(u) >= ON_BORDER * weights
        used = np.abs(u) > (1 - ON_BORDER) * weights[:, None]
        normal = np.sign(u) * used
        return Border(used | ~border[:, None], normal, _grip(normal, border))

    def radius(self, value: Floats, width: int) -> Floats:
        """‖v‖₂ ≤ √width ‖v‖_∞."""
        return np.asarray(np.sqrt(width) * value)


@dataclass(frozen=True)
class PNorm(Coupling):
    """φ(v) = ‖v‖_p with 1.05 ≤ p ≤ 100; ``AbsoluteNorm`` and ``MaximumNorm`` are the ends, p = 1 and p = ∞.

    Parameters
    ----------
    p : float
        The exponent, from 1.05 to 100.

    >>> PNorm(p=3.0).value(np.array([[1.0, 1.0]])).round(3)
    array([1.26])
    """

    p: Annotated[float, Between(1.05, 100)] = 3.0

    is_norm: ClassVar[bool] = True

    @property
    def _dual(self) -> float:
        """q with 1/p + 1/q = 1."""
        return self.p / (self.p - 1.0)

    def value(self, v: Floats) -> Floats:
        """‖v‖_p."""
        return _power_norm(v, self.p)

    def conjugate(self, u: Floats) -> Floats:
        """0 where ‖u‖_q ≤ 1, +∞ elsewhere."""
        return np.where(self.dual_norm(u) <= 1 + ROUNDING, 0.0, np.inf)

    def dual_norm(self, u: Floats) -> Floats:
        """‖u‖_q."""
        return _power_norm(u, self._dual)

    def dual_prox(self, v: Floats, sigma: Floats, weights: Floats) -> Floats:
        """Project on the ball ‖u‖_q ≤ weights."""
        return kernels.project_power_ball(np.ascontiguousarray(v), weights, self._dual)

    def border(self, u: Floats, weights: Floats) -> Border:
        """Across is along the slope of ‖u‖_q."""
        length = self.dual_norm(u)
        part = np.divide(np.abs(u), length[:, None], out=np.zeros_like(u), where=length[:, None] > 0)
        normal = np.sign(u) * part ** (self._dual - 1.0)
        return Border(None, normal, _grip(normal, length >= ON_BORDER * weights))

    def radius(self, value: Floats, width: int) -> Floats:
        """‖v‖₂ ≤ ‖v‖_p for p ≤ 2, and at most width^(1/2 − 1/p) times that beyond."""
        return np.asarray(value * width ** max(0.0, 0.5 - 1.0 / self.p))


@dataclass(frozen=True)
class QuadraticForm(Coupling):
    """φ(v) = ½ vᵀQv for a positive semi-definite Q: some directions matter, some may not.

    Parameters
    ----------
    Q : tuple of tuples of float
        The rows of a symmetric, positive semi-definite matrix with as many rows as the models have parameters.

    >>> QuadraticForm(((2.0, 0.0), (0.0, 0.0))).value(np.array([[3.0, 4.0]]))
    array([9.])
    """

    Q: tuple[tuple[float, ...], ...]

    is_norm: ClassVar[bool] = False
    is_quadratic: ClassVar[bool] = True

    def check(self, width: int) -> None:
        """Refuse a Q that is not symmetric, positive semi-definite and of the models' width."""
        matrix = np.asarray(self.Q, dtype=float)
        if matrix.shape != (width, width) or not np.allclose(matrix, matrix.T):
            raise InputError(f"Expected a symmetric Q of shape ({width}, {width}), got shape {matrix.shape}.")
        smallest = float(np.linalg.eigvalsh(matrix)[0])
        if smallest < -1e-12 * np.abs(matrix).max():
            raise InputError(f"Expected a positive semi-definite Q, got the eigenvalue {smallest:g}.")

    def spectrum(self) -> tuple[Floats, Floats]:
        """Eigenvalues and eigenvectors of Q; those of the size of rounding errors are zero."""
        values, vectors = np.linalg.eigh(np.asarray(self.Q, dtype=float))
        values[values <= 1e-12 * np.abs(values).max()] = 0.0
        return values, vectors

    def value(self, v: Floats) -> Floats:
        """½ vᵀQv."""
        values, vectors = self.spectrum()
        return 0.5 * ((v @ vectors) ** 2 @ values)

    def conjugate(self, u: Floats) -> Floats:
        """½ uᵀQ⁺u in the range of Q, +∞ outside."""
        values, vectors = self.spectrum()
        along = (u @ vectors) ** 2
        outside = along[:, values == 0].sum(axis=1) > IN_SPAN**2 * along.sum(axis=1)
        return np.where(outside, np.inf, 0.5 * along[:, values > 0] @ (1.0 / values[values > 0]))

    def into_span(self, u: Floats) -> Floats:
        """u in the range of Q."""
        values, vectors = self.spectrum()
        return (u @ vectors * (values > 0)) @ vectors.T

    def dual_prox(self, v: Floats, sigma: Floats, weights: Floats) -> Floats:
        """Along an eigenvector with eigenvalue q: v · weights q / (weights q + sigma)."""
        values, vectors = self.spectrum()
        weighted = weights[:, None] * values
        return ((v @ vectors) * (weighted / (weighted + sigma[:, None]))) @ vectors.T

    def slope(self, v: Floats) -> Floats:
        """∇φ(v) = Qv."""
        values, vectors = self.spectrum()
        return (v @ vectors * values) @ vectors.T

    def radius(self, value: Floats, width: int) -> Floats:
        """√(2 value / smallest eigenvalue)."""
        smallest = float(self.spectrum()[0][0])
        return np.sqrt(2.0 * value / smallest) if smallest > 0 else np.full_like(value, np.inf)


def _grip(normal: Floats, where: Bools) -> Floats:
    """(rows,) 1 / ‖normal‖² in some rows, 0 elsewhere."""
    square = np.einsum("ij,ij->i", normal, normal)
    out: Floats = np.divide(1.0, square, out=np.zeros_like(square), where=where & (square > 0))
    return out


def _power_norm(v: Floats, p: float) -> Floats:
    """‖v‖_p of every row, safe from overflow."""
    largest = np.abs(v).max(axis=1)
    scaled = np.divide(np.abs(v), largest[:, None], out=np.zeros_like(v), where=largest[:, None] > 0)
    return np.asarray(largest * (scaled**p).sum(axis=1) ** (1.0 / p))
