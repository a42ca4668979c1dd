"""The rows of ``Balls`` in the interior-point method of GTV minimisation: second-order cones, scaled, row by row.

A row is x = (x₀, x₁), with x ∘ y = (⟨x, y⟩, x₀ y₁ + y₀ x₁). W = √size (2 root rootᵀ − J), J = diag(1, −1, ..., −1).
"""

from __future__ import annotations

import numpy as np
from numba import njit

from kinfolk.kernels.edges import REORDERED
from kinfolk.typing import Floats


@njit(cache=True, fastmath=REORDERED, error_model="numpy")
def ball_stiffness(root: Floats, size: Floats) -> Floats:
    """(rows, d, d) the inverse of the block of W² that belongs to the differences."""
    count, d = len(root), root.shape[1] - 1
    out = np.empty((count, d, d))
    for e in range(count):
        first, square = 2 * root[e, 0], 0.0
        for k in range(d):
            square += (first * root[e, k + 1]) ** 2
        share = 2 / (1 + 2 * square) * first**2
        for j in range(d):
            for k in range(d):
                out[e, j, k] = ((j == k) - share * root[e, j + 1] * root[e, k + 1]) / size[e]
    return out


@njit(cache=True, fastmath=REORDERED, error_model="numpy")
def ball_answer(root: Floats, size: Floats, change: Floats) -> Floats:
    """The stiffness times changes (rows, d), exact where it is small along the flow and large across."""
    count, d = change.shape
    out = np.empty_like(change)
    for e in range(count):
        first, square, dot = 2 * root[e, 0], 0.0, 0.0
        for k in range(d):
            square += (first * root[e, k + 1]) ** 2
            dot += first * root[e, k + 1] * change[e, k]
        part = dot / square if square > 0 else 0.0
        shrink = 1 / (1 + 2 * square)
        for k in range(d):
            radial = part * first * root[e, k + 1]
            out[e, k] = (change[e, k] - radial + shrink * radial) / size[e]
    return out


@njit(cache=True, fastmath=REORDERED, error_model="numpy")
def ball_times(root: Floats, size: Floats, x: Floats) -> Floats:
    """W x for rows (rows, 1 + d)."""
    out = np.empty_like(x)
    for e in range(len(x)):
        dot = 0.0
        for k in range(x.shape[1]):
            dot += root[e, k] * x[e, k]
        factor = np.sqrt(size[e])
        out[e, 0] = factor * (2 * dot * root[e, 0] - x[e, 0])
        for k in range(1, x.shape[1]):
            out[e, k] = factor * (2 * dot * root[e, k] + x[e, k])
    return out


@njit(cache=True, fastmath=REORDERED, error_model="numpy")
def ball_wanted(scaled: Floats, target: float, ds: Floats, dz: Floats, second_order: bool) -> Floats:
    """The y with scaled ∘ y = (target, 0) − scaled ∘ scaled, less ds ∘ dz if that is asked for."""
    count, width = scaled.shape
    out, wanted = np.empty_like(scaled), np.empty(width)
    for e in range(count):
        x, first = scaled[e], target
        for k in range(width):
            first -= x[k] * x[k]
        for k in range(1, width):
            wanted[k] = -2 * x[0] * x[k]
        if second_order:
            for k in range(width):
                first -= ds[e, k] * dz[e, k]
            for k in range(1, width):
                wanted[k] -= ds[e, 0] * dz[e, k] + dz[e, 0] * ds[e, k]
        dot, square = 0.0, 0.0
        for k in range(1, width):
            dot += x[k] * wanted[k]
            square += x[k] * x[k]
        length = np.sqrt(square)
        first = (x[0] * first - dot) / ((x[0] - length) * (x[0] + length))
        out[e, 0] = first
        for k in range(1, width):
            out[e, k] = (wanted[k] - first * x[k]) / x[0]
    return out


@njit(cache=True, fastmath=REORDERED, error_model="numpy")
def until_border(x: Floats, dx: Floats) -> float:
    """The largest part at which x + part dx stays in the second-order cone, row by row; ∞ if it never leaves.

    The first positive root of a part² + 2 b part + c, where c > 0.
    """
    least = np.inf
    for e in range(len(x)):
        square, step, dot = 0.0, 0.0, x[e, 0] * dx[e, 0]
        for k in range(1, x.shape[1]):
            square += x[e, k] * x[e, k]
            step += dx[e, k] * dx[e, k]
            dot -= x[e, k] * dx[e, k]
        square, step = np.sqrt(square), np.sqrt(step)
        a = (dx[e, 0] - step) * (dx[e, 0] + step)
        c = max((x[e, 0] - square) * (x[e, 0] + square), 0.0)
        inside = dot * dot - a * c
        if inside >= 0 and (a < 0 or dot < 0):
            least = min(least, c / (np.sqrt(inside) - dot))
    return least
