"""Local losses that are quadratic: one decomposition of every node's Hessian serves all that is asked of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from kinfolk import kernels
from kinfolk.objective.local_losses import LinearLosses
from kinfolk.objective.spectrum import Spectrum
from kinfolk.typing import Floats, Ints


@dataclass(frozen=True, eq=False)
class QuadraticLosses(LinearLosses):
    """Local losses that are quadratic: one decomposition per node serves the prox of every step size."""

    @property
    def is_quadratic(self) -> bool:
        """They are."""
        return True

    @property
    def gradient_at_zero(self) -> Floats:
        """∇L_i(0); asked for so seldom that it is not kept."""
        return self.gradient(np.zeros((self.node_count, self.width)))

    @cached_property
    def _spectrum(self) -> Spectrum:
        dual = -(self.scale * self.loss.slope(np.zeros(len(self.y)), self.y))
        if self.penalised:
            hessian = self.hessian(np.zeros((self.node_count, self.width)))
            return Spectrum.of_matrices(hessian, self.combine(dual), self.has_data)
        return Spectrum.of_rows(self.X, np.sqrt(self.scale * self.loss.most_curvature), self.starts, dual)

    def forget(self) -> None:
        """Let go of the decomposition."""
        self.__dict__.pop("_spectrum", None)

    def prox(self, v: Floats, tau: Floats, start: Floats | None = None) -> Floats:
        """argmin_w L_i(w) + ‖w − v_i‖² / (2 τ_i), in closed form."""
        q = self._spectrum
        parts = q.basis, q.eigenvalues, q.slopes, q.linear, q.starts
        return kernels.prox_quadratic(np.ascontiguousarray(v), tau, *parts)

    @property
    def prox_spectrum(self) -> Spectrum | None:
        """The decomposition that ``prox`` works with."""
        return self._spectrum

    @cached_property
    def least_curvature(self) -> Floats:
        """The smallest eigenvalue of every Hessian, less what rounding may have added."""
        q, sizes = self._spectrum, np.diff(self._spectrum.starts)
        node = np.repeat(np.arange(self.node_count), sizes)
        least, largest = np.where(sizes == self.width, np.inf, 0.0), np.zeros(self.node_count)
        np.minimum.at(least, node, q.eigenvalues)
        np.maximum.at(largest, node, q.eigenvalues)
        return np.maximum(0.99 * least - 1e-12 * largest, 0.0)

    def minimise(self) -> Floats:
        """The minimiser of least norm of every L_i; zero at nodes without data."""
        q = self._spectrum
        along = np.divide(q.linear, q.eigenvalues, out=np.zeros_like(q.linear), where=q.eigenvalues > 0)
        return kernels.combine_rows(q.basis, q.starts, along)

    def take(self, nodes: Ints) -> Self:
        """The local losses of some nodes; the decomposition is handed on, not made anew."""
        part = super().take(nodes)
        part.__dict__["_spectrum"] = self._spectrum.take(nodes)
        return part


@dataclass(frozen=True, eq=False)
class PointLosses(QuadraticLosses):
    """Local losses that compare the parameters themselves with every row: the prediction for a row is w_i.

    As if X were an identity for each row; nothing of the kind is stored, and the prox takes one pass.
    """

    def predict(self, w: Floats) -> Floats:
        """w_i of every row."""
        return w[self.owner]

    def combine(self, dual: Floats) -> Floats:
        """Σ_r dual_r of every node."""
        return kernels.sum_vectors(np.ascontiguousarray(dual), self.starts)

    def add_curved(self, out: Floats, factor: Floats, w: Floats) -> None:
        """Add Σ_r factor_r w_i of every node to ``out``."""
        out += self.gram_diagonal(factor) * w

    def gram(self, factor: Floats) -> Floats:
        """A diagonal matrix for every node."""
        return self.gram_diagonal(factor)[:, :, None] * np.eye(self.width)

    def group_gram(self, factor: Floats, group: Ints, group_count: int) -> Floats:
        """A diagonal matrix for every group."""
        return kernels.group_sums(self.gram_diagonal(factor), group, group_count)[:, :, None] * np.eye(self.width)

    def gram_diagonal(self, factor: Floats) -> Floats:
        """Σ_r factor_r of every node."""
        return self.combine(np.broadcast_to(factor, self.y.shape))

    def sum_rows(self, values: Floats) -> Floats:
        """The sum over the rows of every node and their entries."""
        return super().sum_rows(values.sum(axis=1))

    @cached_property
    def gradient_at_zero(self) -> Floats:
        """∇L_i(0), kept: every prox needs it."""
        return self.gradient(np.zeros((self.node_count, self.width)))

    @property
    def prox_spectrum(self) -> Spectrum | None:
        """None: the prox needs no decomposition."""
        return None

    @cached_property
    def _bend(self) -> Floats:
        return self.gram_diagonal(self.scale * self.loss.most_curvature) + self.ridge

    @cached_property
    def smoothness(self) -> Floats:
        """The curvature of L_i, the same in all directions."""
        return np.asarray(self._bend.max(axis=1))

    @cached_property
    def least_curvature(self) -> Floats:
        """The same."""
        return np.asarray(self._bend.min(axis=1))

    @property
    def smoothness_of_rows(self) -> Floats:
        """The same for one sample as for all."""
        return self.smoothness

    def radius(self, height: float, spread: Floats, group: Ints, group_count: int) -> Floats:
        """‖w_i‖ ≤ ‖x_r‖ + √(height / c) for every row, and the root is within spread_i of w_i."""
        from_rows = np.linalg.norm(self.y, axis=1) + np.sqrt(height / self.scale[:, 0]) + spread[self.owner]
        out = np.full(group_count, np.inf)
        np.minimum.at(out, group[self.owner], from_rows)
        return np.where(np.isin(np.arange(group_count), group[self.owner]), out, 0.0)

    def prox(self, v: Floats, tau: Floats, start: Floats | None = None) -> Floats:
        """(v_i + τ_i b_i) / (1 + τ_i h_i) for L_i(w) = ½ h_i ‖w‖² − b_i'w + constant."""
        return (v - tau[:, None] * self.gradient_at_zero) / (1.0 + tau[:, None] * self._bend)

    def minimise(self) -> Floats:
        """The mean of the rows of every node, shrunk by the ridge term; zero at nodes without data."""
        return np.divide(-self.gradient_at_zero, self._bend, out=np.zeros_like(self._bend), where=self._bend > 0)

    def take(self, nodes: Ints) -> Self:
        """The local losses of some nodes."""
        return LinearLosses.take(self, nodes)
