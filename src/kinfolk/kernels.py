"""Compiled loops over nodes and their rows: the only place with numba."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numba import njit

from kinfolk.typing import Floats, Ints


@njit(cache=True)
def predict_rows(X: Floats, starts: Ints, w: Floats) -> Floats:
    """x_r'w_i for every row r of every node i."""
    z = np.empty(len(X))
    for i in range(len(starts) - 1):
        for r in range(starts[i], starts[i + 1]):
            total = 0.0
            for k in range(X.shape[1]):
                total += X[r, k] * w[i, k]
            z[r] = total
    return z


@njit(cache=True)
def combine_rows(X: Floats, starts: Ints, factor: Floats) -> Floats:
    """Σ_r factor_r x_r over the rows of every node: the adjoint of ``predict_rows``."""
    out = np.zeros((len(starts) - 1, X.shape[1]))
    for i in range(len(starts) - 1):
        for r in range(starts[i], starts[i + 1]):
            for k in range(X.shape[1]):
                out[i, k] += factor[r] * X[r, k]
    return out


@njit(cache=True)
def gram(X: Floats, starts: Ints, factor: Floats) -> Floats:
    """Σ_r factor_r x_r x_r' over the rows of every node."""
    d = X.shape[1]
    out = np.zeros((len(starts) - 1, d, d))
    for i in range(len(starts) - 1):
        for r in range(starts[i], starts[i + 1]):
            for k in range(d):
                scaled = factor[r] * X[r, k]
                for j in range(d):
                    out[i, k, j] += scaled * X[r, j]
    return out


@njit(cache=True)
def sum_rows(values: Floats, starts: Ints) -> Floats:
    """Sum of the rows' values at every node, in row order."""
    out = np.zeros(len(starts) - 1)
    for i in range(len(starts) - 1):
        for r in range(starts[i], starts[i + 1]):
            out[i] += values[r]
    return out


@njit(cache=True)
def prox_quadratic(v: Floats, tau: Floats, basis: Floats, eigenvalues: Floats, linear: Floats, starts: Ints) -> Floats:
    """Minimise ½w'Hw − b'w + ‖w − v‖²/(2τ) at every node, with H = Σ_k s_k q_k q_k' and b = Σ_k b_k q_k."""
    d = v.shape[1]
    out = v.copy()
    for i in range(len(starts) - 1):
        for q in range(starts[i], starts[i + 1]):
            along = 0.0
            for k in range(d):
                along += basis[q, k] * v[i, k]
            change = tau[i] * (linear[q] - eigenvalues[q] * along) / (1.0 + tau[i] * eigenvalues[q])
            for k in range(d):
                out[i, k] += change * basis[q, k]
    return out


@njit(cache=True)
def difference(values: Floats, head: Ints, tail: Ints) -> Floats:
    """values[head] − values[tail], row by row."""
    out = np.empty((len(head), values.shape[1]))
    for e in range(len(head)):
        for k in range(values.shape[1]):
            out[e, k] = values[head[e], k] - values[tail[e], k]
    return out


@njit(cache=True)
def along(u: Floats, sigma: Floats, change: Floats) -> Floats:
    """u_e + σ_e change_e, without a temporary."""
    out = np.empty_like(u)
    for e in range(len(u)):
        for k in range(u.shape[1]):
            out[e, k] = u[e, k] + sigma[e] * change[e, k]
    return out


@njit(cache=True)
def clip_rows(v: Floats, limit: Floats) -> Floats:
    """Shorten every row to length at most its limit."""
    out = np.empty_like(v)
    for e in range(len(v)):
        total = 0.0
        for k in range(v.shape[1]):
            total += v[e, k] * v[e, k]
        length = np.sqrt(total)
        factor = limit[e] / length if length > limit[e] else 1.0
        for k in range(v.shape[1]):
            out[e, k] = factor * v[e, k]
    return out


def _dual_step(prox_row: Callable[[Floats, float, float], None]) -> Callable[..., None]:
    """A kernel that passes once over the edges: u_e <- u_e + ρ (prox(u_e + σ_e (values_head − values_tail)) − u_e)."""

    @njit(cache=True)
    def step(u: Floats, values: Floats, head: Ints, tail: Ints, sigma: Floats, weights: Floats, rho: float) -> None:
        v = np.empty(u.shape[1])
        for e in range(len(u)):
            for k in range(u.shape[1]):
                v[k] = u[e, k] + sigma[e] * (values[head[e], k] - values[tail[e], k])
            prox_row(v, sigma[e], weights[e])
            for k in range(u.shape[1]):
                u[e, k] += rho * (v[k] - u[e, k])

    return step


@njit(cache=True)
def _shorten(v: Floats, sigma: float, weight: float) -> None:
    total = 0.0
    for k in range(len(v)):
        total += v[k] * v[k]
    if total > weight * weight:
        factor = weight / np.sqrt(total)
        for k in range(len(v)):
            v[k] *= factor


@njit(cache=True)
def _clip(v: Floats, sigma: float, weight: float) -> None:
    for k in range(len(v)):
        v[k] = min(max(v[k], -weight), weight)


@njit(cache=True)
def _shrink(v: Floats, sigma: float, weight: float) -> None:
    for k in range(len(v)):
        v[k] *= weight / (weight + sigma)


euclidean_dual_step = _dual_step(_shorten)
absolute_dual_step = _dual_step(_clip)
squared_dual_step = _dual_step(_shrink)


@njit(cache=True)
def project_power_ball(v: Floats, radius: Floats, q: float) -> Floats:
    """Project every row on ‖u‖_q ≤ radius, 1 < q < ∞.

    Outside the ball |u_k| + μ|u_k|^(q−1) = |v_k| with the μ > 0 that puts u on the sphere: bisection on log μ, and
    for every entry Newton's method on a convex equation. Rows are scaled so that their largest entry is 1.
    """
    out = np.zeros_like(v)
    u = np.empty(v.shape[1])
    for e in range(len(v)):
        largest = np.max(np.abs(v[e]))
        if largest == 0.0 or radius[e] == 0.0:
            continue
        size = np.abs(v[e]) / largest
        if _power_norm(size, q) <= radius[e] / largest:
            out[e] = v[e]
            continue
        low, high = -700.0, 700.0
        for _ in range(64):
            middle = 0.5 * (low + high)
            for k in range(len(u)):
                u[k] = _shrunk(size[k], np.exp(middle), q)
            if _power_norm(u, q) > radius[e] / largest:
                low = middle
            else:
                high = middle
        for k in range(len(u)):
            u[k] = _shrunk(size[k], np.exp(high), q)
        out[e] = np.sign(v[e]) * u * (radius[e] / _power_norm(u, q))
    return out


@njit(cache=True)
def _power_norm(u: Floats, q: float) -> float:
    """‖u‖_q of u ≥ 0, safe from underflow."""
    largest = np.max(u)
    return largest * np.sum((u / largest) ** q) ** (1.0 / q)


@njit(cache=True)
def _shrunk(size: float, mu: float, q: float) -> float:
    """The root u of u + μ u^(q−1) = size; for q < 2 in the variable u^(q−1), where the equation is convex."""
    if size == 0.0:
        return 0.0
    power = q - 1.0 if q >= 2.0 else 1.0 / (q - 1.0)
    first, second = (1.0, mu) if q >= 2.0 else (mu, 1.0)
    x = min(size / first, (size / second) ** (1.0 / power))
    for _ in range(60):
        step = (first * x + second * x**power - size) / (first + second * power * x ** (power - 1.0))
        x -= step
        if abs(step) <= 1e-15 * x:
            break
    return x if q >= 2.0 else x**power
