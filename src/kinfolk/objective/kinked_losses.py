"""Local losses that are piecewise linear in the prediction, by an exact method for that shape."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from kinfolk import kernels
from kinfolk.objective.local_losses import LinearLosses
from kinfolk.typing import Floats

if TYPE_CHECKING:
    from kinfolk.objective.losses import Kinked


@dataclass(frozen=True, eq=False)
class KinkedLosses(LinearLosses):
    """Local losses of a scalar loss with a kink: convex, but not smooth.

    L_i has no gradient on a kink, so its subgradients come from the prox: what it finds has dual variables β_r in
    c ∂ℓ(z_r), and Xᵀβ is a subgradient there.
    """

    loss: Kinked

    @cached_property
    def _kinks(self) -> tuple[Floats, Floats, Floats]:
        """Where every row has its kink, and the least and largest dual variable there."""
        low, high = self.loss.slopes(self.y)
        return np.asarray(self.loss.kink(self.y), dtype=np.float64), self.scale * low, self.scale * high

    @cached_property
    def typical_curvature(self) -> Floats:
        """The jump of the slope over how far predictions of the node are expected to lie apart: as its kinks do."""
        kink, low, high = self._kinks
        apart = np.sqrt(self.sum_rows(kink**2) / np.maximum(np.diff(self.starts), 1))[self.owner]
        return (high - low) / np.where(apart > 0, apart, 1.0)

    def elasticity(self, w: Floats, dual: Floats) -> Floats:
        """Large where a dual variable has room to either side, little where it sits on a border."""
        _, low, high = self._kinks
        room = np.clip(4.0 * (dual - low) * (high - dual) / (high - low) ** 2, 1e-6, 1.0)
        return room * self.typical_curvature

    def prox(self, v: Floats, tau: Floats, start: Floats | None = None) -> Floats:
        """argmin_w L_i(w) + ‖w − v_i‖² / (2 τ_i), exactly; quick where ``start`` is on the same kinks."""
        return self.prox_with_dual(v, tau, start)[0]

    def prox_with_dual(self, v: Floats, tau: Floats, start: Floats | None = None) -> tuple[Floats, Floats]:
        """The prox, and dual variables with w = v − τ (Xᵀβ + ridge w)."""
        bend = 1.0 + tau[:, None] * self.ridge
        kink, low, high = self._kinks
        w, dual = kernels.prox_kinked(
            self.X, self.starts, kink, low, high, v / bend, bend / tau[:, None], v if start is None else start
        )
        return w, dual

    def descent(self, w: Floats) -> Floats:
        """(w − prox(w)) / τ: a subgradient at the prox, which is elsewhere unless w_i minimises L_i."""
        tau = self._step
        return (w - self.prox(w, tau, w)) / tau[:, None]

    @cached_property
    def _step(self) -> Floats:
        return 1.0 / np.where(self.trace > 0, self.trace / self.width, 1.0)

    def minimise(self) -> Floats:
        """A minimiser of every L_i; zero at nodes without data.

        By the proximal point method, in which every parameter has the scale of its feature. L_i is piecewise linear, or
        that and a ridge term, so pulls that weaken reach a minimiser exactly; rounding grows with them, and a few
        stronger ones take it back.
        """
        w, (kink, low, high) = np.zeros((self.node_count, self.width)), self._kinks
        for power in (*range(13), 8, 4, 0):
            pull = self.metric / 4.0**power
            bend = self.ridge + pull
            w, _ = kernels.prox_kinked(self.X, self.starts, kink, low, high, pull * w / bend, bend, w)
        return w
