"""Compiled loops over nodes and their rows: the only place with numba."""

from __future__ import annotations

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
