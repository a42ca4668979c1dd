"""A loss bound to the data of some nodes: L_i and all that follows from it, derived once for every loss.

    L_i(w) = c_i Σ_r ℓ(x_r'w, y_r) + (ridge / 2) ‖w without intercept‖²,    c_i = 1 (sum) or 1 / m_i (mean)

A node without data has L_i = 0, ridge included. Nobody else needs to know how predictions follow from parameters:
``predict`` is that map, ``combine`` its adjoint, and a bound loss may replace both (``PointLosses`` does).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from kinfolk import kernels
from kinfolk.network.data import Data, rows_of, starts_of
from kinfolk.objective.node_loss import LocalLosses
from kinfolk.objective.spectrum import Spectrum
from kinfolk.typing import Bools, Floats, Ints

if TYPE_CHECKING:
    from kinfolk.objective.losses import Loss

NEWTON_STEPS = 100
NEWTON_ACCURACY = 1e-10  # where the last step starts; it ends far nearer
HALVINGS = 40  # of a Newton step
MINIMUM_STEPS = 300
MINIMUM_ACCURACY = 1e-13
LEAST_PULL = 1e-14  # of the curvature
NODE_BLOCK = 8_192
ROW_BLOCK = 8_192  # of which many have as many singular values as few


class BoxRows(NamedTuple):
    """Rows whose loss is  max β (z − kink) − ½ give β²  over low ≤ β ≤ high."""

    kink: Floats
    low: Floats
    high: Floats
    give: Floats


@dataclass(frozen=True, eq=False)
class LinearLosses(LocalLosses):
    """The local losses L_i of some nodes, for any twice differentiable scalar loss.

    Values "of every row" have the shape of the labels ``y``.
    """

    loss: Loss
    X: Floats  # (rows, parameters), a column of ones last if there is an intercept
    y: Floats  # (rows,), or (rows, parameters) where rows are points
    starts: Ints  # (nodes + 1,)
    scale: Floats  # c_i, to go with y
    ridge: Floats  # (nodes, parameters)

    @classmethod
    def of(cls, loss: Loss, data: Data) -> Self:
        """Bind ``loss`` to ``data``."""
        scale = np.ones(len(data.y)) if loss.reduction == "sum" else 1.0 / data.sizes[data.owner]
        target = loss.target(data.X, data.y)
        penalised = np.r_[np.ones(data.feature_count), np.zeros(int(loss.intercept))]
        if loss.ridge > 0:
            ridge = loss.ridge * np.outer(data.sizes > 0, penalised)
        else:  # a row that stands for all of them
            ridge = np.broadcast_to(np.zeros(len(penalised)), (data.node_count, len(penalised)))
        X = np.hstack([data.X, np.ones((len(data.X), 1))]) if loss.intercept else np.ascontiguousarray(data.X)
        return cls(loss, X, target, data.starts, scale.reshape(-1, *[1] * (target.ndim - 1)), ridge)

    @property
    def node_count(self) -> int:
        """Number of nodes."""
        return len(self.starts) - 1

    @property
    def width(self) -> int:
        """Number of parameters of a node's model."""
        return int(self.X.shape[1])

    @cached_property
    def has_data(self) -> Bools:
        """Whether a node has samples."""
        return np.diff(self.starts) > 0

    @property
    def share(self) -> Floats:
        """q_i: the number of samples (sum), or whether there are any (mean)."""
        counts = np.diff(self.starts) if self.loss.reduction == "sum" else self.has_data
        return counts.astype(np.float64)

    @cached_property
    def owner(self) -> Ints:
        """The node of every row."""
        return np.repeat(np.arange(self.node_count), np.diff(self.starts))

    @property
    def penalised(self) -> bool:
        """Whether there is a ridge term."""
        return self.loss.ridge > 0

    @property
    def with_duals(self) -> LinearLosses:
        """These losses: ``dual``, ``conjugate`` and what goes with them."""
        return self

    @property
    def is_quadratic(self) -> bool:
        """Whether every L_i is quadratic."""
        return False

    @cached_property
    def boxes(self) -> BoxRows | None:
        """The rows as support functions of boxes, scale included, where the loss is of that kind."""
        boxes = self.loss.boxes(self.y)
        if boxes is None:
            return None
        kink, low, high, give = (np.asarray(part, dtype=np.float64) for part in boxes)
        return BoxRows(kink, self.scale * low, self.scale * high, give / self.scale)

    # ------------------------------------------------------------------ from parameters to predictions, and back

    def predict(self, w: Floats) -> Floats:
        """x_r'w_i of every row."""
        return kernels.predict_rows(self.X, self.starts, np.ascontiguousarray(w))

    def combine(self, dual: Floats) -> Floats:
        """Σ_r dual_r x_r of every node: the adjoint of ``predict``."""
        return kernels.combine_rows(self.X, self.starts, dual)

    def add_curved(self, out: Floats, factor: Floats, w: Floats) -> None:
        """Add Σ_r factor_r (x_r'w_i) x_r of every node to ``out``."""
        kernels.add_curved_rows(out, self.X, self.starts, factor, w)

    def gram(self, factor: Floats) -> Floats:
        """Σ_r factor_r x_r x_r' of every node."""
        return kernels.gram(self.X, self.starts, factor)

    def group_gram(self, factor: Floats, group: Ints, group_count: int) -> Floats:
        """``gram``, summed over the nodes of every group."""
        return kernels.group_gram(self.X, self.starts, factor, group, group_count)

    def gram_diagonal(self, factor: Floats) -> Floats:
        """The diagonal of ``gram``, without the rest."""
        return kernels.combine_squared_rows(self.X, self.starts, factor)

    def sum_rows(self, values: Floats) -> Floats:
        """The sum over the rows of every node."""
        return kernels.sum_rows(values, self.starts)

    def times(self, dual: Floats, factor: Floats) -> Floats:
        """Dual variables of every row times a factor for every node."""
        return dual * factor[self.owner].reshape(-1, *[1] * (dual.ndim - 1))

    # ------------------------------------------------------------------ value and derivatives

    def value(self, w: Floats) -> Floats:
        """L_i(w_i) of every node."""
        out = self.sum_rows(self.scale * self.loss.value(self.predict(w), self.y))
        if self.penalised:
            out += 0.5 * (self.ridge * w**2).sum(axis=1)
        return out

    def dual(self, w: Floats) -> Floats:
        """c_i ℓ'(x_r'w_i, y_r) of every row: the dual variables that belong to w."""
        return self.scale * self.loss.slope(self.predict(w), self.y)

    def gradient(self, w: Floats) -> Floats:
        """∇L_i(w_i)."""
        return self.subgradient(w, self.dual(w))

    def subgradient(self, w: Floats, dual: Floats) -> Floats:
        """That of L_i at w_i which belongs to dual variables."""
        out = self.combine(dual)
        if self.penalised:
            out += self.pull(w)
        return out

    def pull(self, w: Floats) -> Floats:
        """The gradient of the ridge term, not to be written to."""
        return self.ridge * w if self.penalised else self.ridge

    def descent(self, w: Floats) -> Floats:
        """A vector for every node that vanishes only where w_i minimises L_i: the gradient."""
        return self.gradient(w)

    @cached_property
    def gradient_at_zero(self) -> Floats:
        """∇L_i(0): the scale against which gradients are judged."""
        return self.gradient(np.zeros((self.node_count, self.width)))

    @property
    def gradient_at_start(self) -> Floats:
        """∇L_i(0): linear models begin at zero."""
        return self.gradient_at_zero

    def hessian(self, w: Floats) -> Floats:
        """∇²L_i(w_i), shape (nodes, parameters, parameters)."""
        bend = self.scale * self.loss.curvature(self.predict(w), self.y)
        return self.gram(bend) + self.ridge[:, :, None] * np.eye(self.width)

    def hessian_product(self, w: Floats, v: Floats) -> Floats:
        """∇²L_i(w_i) v_i, without the matrix."""
        bend = self.scale * self.loss.curvature(self.predict(w), self.y)
        return self.combine(bend * self.predict(v)) + self.ridge * v

    def conjugate(self, dual: Floats) -> Floats:
        """Σ_r c_i ℓ*(dual_r / c_i, y_r) of every node; +∞ outside the domain."""
        rows = self.scale * self.loss.conjugate(dual / self.scale, self.y)
        return self.sum_rows(rows)

    def into_domain(self, dual: Floats) -> Floats:
        """The dual variables nearest to some at which ``conjugate`` is finite."""
        return self.scale * self.loss.into_domain(dual / self.scale, self.y)

    @property
    def typical_curvature(self) -> Floats:
        """c_i ℓ'' of every row where the solution is expected."""
        return self.scale * self.loss.typical_curvature(self.y)

    def elasticity(self, w: Floats, dual: Floats) -> Floats:
        """How the dual variables of every row respond to a change of its prediction at w; never quite zero."""
        return np.maximum(self.scale * self.loss.curvature(self.predict(w), self.y), 1e-6 * self.typical_curvature)

    @property
    def trace(self) -> Floats:
        """About tr ∇²L_i where the solution is expected; exact for the squared loss."""
        return np.asarray(self.gram_diagonal(self.typical_curvature).sum(axis=1) + self.ridge.sum(axis=1))

    @cached_property
    def least_curvature(self) -> Floats:
        """(nodes,) h_i with L_i − ½ h_i ‖w‖² still convex; 0 where none is known."""
        return np.asarray(self.ridge.min(axis=1))

    @cached_property
    def smoothness(self) -> Floats:
        """A Lipschitz constant of ∇L_i."""
        bend = self.scale * self.loss.most_curvature
        whole = self.gram(bend) + self.ridge[:, :, None] * np.eye(self.width)
        return np.linalg.eigvalsh(whole)[:, -1].astype(np.float64)

    @cached_property
    def smoothness_of_rows(self) -> Floats:
        """A Lipschitz constant of the gradient of the mean over any samples of a node."""
        bend = self.loss.most_curvature * np.einsum("rp,rp->r", self.X, self.X)
        out = np.zeros(self.node_count)
        np.maximum.at(out, self.owner, bend)
        return np.asarray(out + self.ridge.max(axis=1))

    def radius(self, height: float, spread: Floats, group: Ints, group_count: int) -> Floats:
        """How long the parameters at the root of a group can be if Σ L_i ≤ height and w_i is within spread_i of them.

        ℓ(z, y) ≤ height / c bounds the predictions, and so the parameters in all directions in which a row of the
        group has a part; in the others only a ridge term does, and without one they are left out. ∞ if unbounded.
        """
        by_ridge = np.sqrt(2.0 * height / self.loss.ridge) if self.loss.ridge > 0 else 0.0
        if self.loss.ridge > 0 and not self.loss.intercept:
            return np.full(group_count, by_ridge)
        if self.loss.intercept:  # along such a direction the intercept makes up for the features
            by_ridge *= 1.0 + float(np.linalg.norm(self.X, axis=1).max())
        lengths = np.sqrt(np.einsum("rp,rp->r", self.X, self.X))
        at_root = self.loss.radius(height / self.scale, self.y) + lengths * spread[self.owner]
        size = np.sqrt(np.bincount(group[self.owner], at_root**2, minlength=group_count))
        return np.where(size > 0, size / self._least_stretch(group, group_count), 0.0) + by_ridge

    def _least_stretch(self, group: Ints, group_count: int) -> Floats:
        """A lower bound on ‖X_g w‖ / ‖w‖ for w in the span of the rows X_g of each group."""
        columns = np.sqrt(np.einsum("rp,rp->p", self.X, self.X))
        columns[columns == 0] = 1.0
        pooled, smallest = self.pool(group, group_count), np.full(group_count, np.inf)
        sizes = np.diff(pooled.starts)
        for large in np.flatnonzero(sizes > ROW_BLOCK):
            values = np.linalg.svd(_triangle(pooled.X[slice(*pooled.starts[large : large + 2])]) / columns)[1]
            smallest[large] = values[values > values[0] * sizes[large] * np.finfo(float).eps].min(initial=np.inf)
        small = np.flatnonzero(sizes <= ROW_BLOCK)
        rows, starts = rows_of(pooled.starts, small), starts_of(pooled.starts, small)
        spectrum = Spectrum.of_rows(pooled.X[rows] / columns, np.ones(len(rows)), starts, np.zeros(len(rows)))
        positive = np.where(spectrum.eigenvalues > 0, np.sqrt(spectrum.eigenvalues), np.inf)
        np.minimum.at(smallest, np.repeat(small, np.diff(spectrum.starts)), positive)
        return np.asarray(smallest * columns.min())

    # ------------------------------------------------------------------ minimisers

    def prox(self, v: Floats, tau: Floats, start: Floats | None = None) -> Floats:
        """argmin_w L_i(w) + ‖w − v_i‖² / (2 τ_i), by Newton's method from ``start``."""
        out = v.copy()
        out[self.has_data] = self._informed._newton(
            (v if start is None else start)[self.has_data], v[self.has_data], 1.0 / tau[self.has_data]
        )
        return out

    def prox_with_dual(self, v: Floats, tau: Floats, start: Floats | None = None) -> tuple[Floats, Floats]:
        """The prox, and the dual variables that belong to it."""
        w = self.prox(v, tau, start)
        return w, self.dual(w)

    def prox_by_gradient(self, v: Floats, tau: Floats, accuracy: float, start: Floats) -> Floats:
        """The prox up to an error of ``accuracy`` at every node, by gradient steps from ``start``.

        The objective is strongly convex with 1/τ_i, so its gradient g bounds the error: ‖w − prox‖ ≤ τ_i ‖g‖.
        """
        w, left = start.copy(), np.arange(self.node_count)
        step = 1.0 / (self.smoothness + 1.0 / tau)
        while len(left):
            part = self if len(left) == self.node_count else self.take(left)
            slope = part.gradient(w[left]) + (w[left] - v[left]) / tau[left, None]
            rough = tau[left] * np.linalg.norm(slope, axis=1) > accuracy
            left, slope = left[rough], slope[rough]
            w[left] -= step[left, None] * slope
        return w

    def minimise(self) -> Floats:
        """A minimiser of every L_i; zero at nodes without data.

        By Newton's method with a pull towards the point where a step starts, weaker after a step that descends and
        stronger after one that does not (Levenberg, Marquardt), since the Hessian may vanish. Where L_i has no
        minimiser (separable classes without ridge) it ends where the gradient has all but vanished.
        """
        out = np.zeros((self.node_count, self.width))
        out[self.has_data] = self._informed._minimised()
        return out

    def _minimised(self) -> Floats:
        w, pull, left = (
            np.zeros((self.node_count, self.width)),
            np.full(self.node_count, 1e-2),
            np.arange(self.node_count),
        )
        goal = MINIMUM_ACCURACY * _norms(self.gradient_at_zero, self.metric)
        for _ in range(MINIMUM_STEPS):
            part = self if len(left) == self.node_count else self.take(left)
            slope, metric = part.gradient(w[left]), self.metric[left]
            rough = _norms(slope, metric) > goal[left]
            left, part, slope, metric = left[rough], part.take(np.flatnonzero(rough)), slope[rough], metric[rough]
            if not len(left):
                break
            bend = part.hessian(w[left]) + (pull[left, None] * metric)[:, :, None] * np.eye(self.width)
            step = -_solve_definite(bend, slope)
            falls = part._falls(w[left], step, slope, part.value, part.gradient)
            w[left[falls]] += step[falls]
            pull[left] = np.where(falls, np.maximum(pull[left] / 10, LEAST_PULL), 10 * pull[left])
            left = left[(np.abs(step) > 1e-16 * np.abs(w[left])).any(axis=1)]
        return w

    @cached_property
    def metric(self) -> Floats:
        """The curvature of every parameter where the solution is expected: the scale of its feature, squared."""
        diagonal = self.gram_diagonal(self.typical_curvature) + self.ridge
        return np.where(diagonal > 0, diagonal, 1.0)

    def _falls(
        self, w: Floats, step: Floats, slope: Floats, height: Callable[[Floats], Floats],
        slope_at: Callable[[Floats], Floats],
    ) -> Bools:  # fmt: skip
        """Whether a function descends enough with a step; by its slope along the step where values are but rounding."""
        before, after, descent = height(w), height(w + step), (slope * step).sum(axis=1)
        falls = after <= before + 1e-4 * descent
        unclear = ~falls & (np.abs(descent) <= 1e-10 * np.abs(before))
        if unclear.any():
            steepness = (slope_at(w + step) * step).sum(axis=1)
            falls |= unclear & (np.abs(steepness) <= 0.9 * np.abs(descent))
        return np.asarray(falls & np.isfinite(after))

    @cached_property
    def _informed(self) -> Self:
        return self.take(np.flatnonzero(self.has_data))

    def _newton(self, w: Floats, anchor: Floats, pull: Floats) -> Floats:
        """Minimise L_i(w) + pull_i ‖w − anchor_i‖² / 2 at every node by damped Newton steps."""
        w = w.copy()
        resting = np.linalg.norm(self.gradient_at_zero, axis=1) + pull * np.linalg.norm(anchor, axis=1)
        left = np.arange(self.node_count)
        for _ in range(NEWTON_STEPS):
            part = self if len(left) == self.node_count else self.take(left)
            before = w[left]
            w[left], slope = part._newton_step(before, anchor[left], pull[left])
            rough = np.linalg.norm(slope, axis=1) > NEWTON_ACCURACY * resting[left]
            left = left[rough & (w[left] != before).any(axis=1)]  # rounding may end it early
            if not len(left):
                break
        return w

    def _newton_step(self, w: Floats, anchor: Floats, pull: Floats) -> tuple[Floats, Floats]:
        """One damped Newton step; also the gradient where it started."""

        def height(at: Floats) -> Floats:
            return np.asarray(self.value(at) + 0.5 * pull * ((at - anchor) ** 2).sum(axis=1))

        def slope_at(at: Floats) -> Floats:
            return np.asarray(self.gradient(at) + pull[:, None] * (at - anchor))

        slope = slope_at(w)
        step = -_solve_definite(self.hessian(w) + pull[:, None, None] * np.eye(self.width), slope)
        for _ in range(HALVINGS):
            falls = self._falls(w, step, slope, height, slope_at)
            if falls.all():
                break
            step[~falls] /= 2
        return w + step, slope

    # ------------------------------------------------------------------ parts and sums

    def take(self, nodes: Ints) -> Self:
        """The local losses of some nodes."""
        rows = rows_of(self.starts, nodes)
        return type(self)(
            self.loss, self.X[rows], self.y[rows], starts_of(self.starts, nodes), self.scale[rows], self.ridge[nodes]
        )

    def on(self, nodes: slice) -> Self:
        """The local losses of a block of nodes, of which nothing is copied."""
        rows, starts = self.rows_on(nodes), self.starts[nodes.start : nodes.stop + 1]
        return type(self)(
            self.loss, self.X[rows], self.y[rows], starts - starts[0], self.scale[rows], self.ridge[nodes]
        )

    def rows_on(self, nodes: slice) -> slice:
        """The rows of a block of nodes."""
        return slice(*self.starts[[nodes.start, min(nodes.stop, self.node_count)]])

    @property
    def blocks(self) -> Iterator[slice]:
        """The nodes in blocks whose temporaries fit into a processor's cache."""
        return (slice(first, first + NODE_BLOCK) for first in range(0, self.node_count, NODE_BLOCK))

    def means_on(self, rows: Ints, starts: Ints) -> Self:
        """F_i = L_i / q_i on some of the rows."""
        sizes = np.diff(starts)
        scale = (1.0 / np.repeat(sizes, sizes)).reshape(-1, *[1] * (self.scale.ndim - 1))
        ridge = np.where(sizes > 0, 1.0 / np.maximum(self.share, 1.0), 0.0)[:, None] * self.ridge
        return type(self)(self.loss, self.X[rows], self.y[rows], starts, scale, ridge)

    def pool(self, group: Ints, group_count: int) -> Self:
        """The sums of the local losses of each group, as if a group were one node."""
        owner = group[self.owner]
        order = slice(None) if (np.diff(owner) >= 0).all() else np.argsort(owner, kind="stable")
        starts = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=group_count))]).astype(np.int64)
        ridge = np.zeros((group_count, self.width))
        if self.penalised:
            np.add.at(ridge, group, self.ridge)
        return type(self)(self.loss, self.X[order], self.y[order], starts, self.scale[order], ridge)


def _triangle(rows: Floats) -> Floats:
    """The R of rows = QR: rows as long in all directions, few of them."""
    out = rows[:0]
    for first in range(0, len(rows), ROW_BLOCK):
        out = np.asarray(np.linalg.qr(np.vstack([out, rows[first : first + ROW_BLOCK]]), mode="r"))
    return out


def _norms(slope: Floats, metric: Floats) -> Floats:
    """The length of every row, each entry on the scale of its parameter."""
    return np.asarray(np.linalg.norm(slope / np.sqrt(metric), axis=1))


def _solve_definite(matrices: Floats, rows: Floats) -> Floats:
    """The solutions x of M x = b for positive definite M, however different the scales of its parameters are."""
    scale = 1.0 / np.sqrt(np.einsum("nkk->nk", matrices))
    scaled = scale[:, :, None] * matrices * scale[:, None, :] + 1e-15 * np.eye(matrices.shape[1])
    return np.asarray(scale * np.linalg.solve(scaled, (scale * rows)[:, :, None])[:, :, 0])
