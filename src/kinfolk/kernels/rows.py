"""Compiled loops over the rows of every node."""

from __future__ import annotations

import numpy as np
from numba import njit

from kinfolk.kernels.edges import REORDERED
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


@njit(cache=True, fastmath=REORDERED)
def subtract_rows(z: Floats, rows: Floats, starts: Ints) -> None:
    """z_i − T_i'T_i z_i in place, where T_i are the rows of node i."""
    factor = np.empty(0 if len(starts) < 2 else np.diff(starts).max())
    for i in range(len(starts) - 1):
        own, own_rows = z[i], rows[starts[i] : starts[i + 1]]
        for r in range(len(own_rows)):
            row, total = own_rows[r], 0.0
            for k in range(len(row)):
                total += row[k] * own[k]
            factor[r] = total
        for r in range(len(own_rows)):
            row, by = own_rows[r], factor[r]
            for k in range(len(row)):
                own[k] -= by * row[k]


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
def combine_squared_rows(X: Floats, starts: Ints, factor: Floats) -> Floats:
    """Σ_r factor_r x_r² over the rows of every node, entry by entry."""
    out = np.zeros((len(starts) - 1, X.shape[1]))
    for i in range(len(starts) - 1):
        for r in range(starts[i], starts[i + 1]):
            for k in range(X.shape[1]):
                out[i, k] += factor[r] * (X[r, k] * X[r, k])
    return out


@njit(cache=True, fastmath=REORDERED)
def add_curved_rows(out: Floats, X: Floats, starts: Ints, factor: Floats, w: Floats) -> None:
    """Add Σ_r factor_r (x_r'w_i) x_r over the rows of every node to ``out``."""
    for i in range(len(starts) - 1):
        own, target = w[i], out[i]
        for r in range(starts[i], starts[i + 1]):
            row, total = X[r], 0.0
            for k in range(len(row)):
                total += row[k] * own[k]
            total *= factor[r]
            for k in range(len(row)):
                target[k] += total * row[k]


@njit(cache=True)
def gram(X: Floats, starts: Ints, factor: Floats) -> Floats:
    """Σ_r factor_r x_r x_r' over the rows of every node."""
    return group_gram(X, starts, factor, np.arange(len(starts) - 1), len(starts) - 1)


@njit(cache=True)
def group_gram(X: Floats, starts: Ints, factor: Floats, group: Ints, count: int) -> Floats:
    """Σ_r factor_r x_r x_r' over the rows of the nodes of every group."""
    d = X.shape[1]
    out = np.zeros((count, d, d))
    for i in range(len(starts) - 1):
        own = out[group[i]]
        for r in range(starts[i], starts[i + 1]):
            for k in range(d):
                scaled = factor[r] * X[r, k]
                for j in range(d):
                    own[k, j] += scaled * X[r, j]
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
def sum_vectors(values: Floats, starts: Ints) -> Floats:
    """Sum of the rows of vectors at every node, in row order."""
    out = np.zeros((len(starts) - 1, values.shape[1]))
    for i in range(len(starts) - 1):
        for r in range(starts[i], starts[i + 1]):
            for k in range(values.shape[1]):
                out[i, k] += values[r, k]
    return out


@njit(cache=True)
def prox_quadratic(
    v: Floats, tau: Floats, basis: Floats, eigenvalues: Floats, slopes: Floats, linear: Floats, starts: Ints
) -> Floats:
    """Minimise ½w'Hw − b'w + ‖w − v‖²/(2τ) at every node, with H = Σ_k s_k q_k q_k' and b = Σ_k b_k q_k.

    The q_k are orthogonal; s_k are the ``slopes``, s_k ‖q_k‖² the eigenvalues.
    """
    out = v.copy()
    for i in range(len(starts) - 1):
        _prox_along(out[i], v[i], tau[i], basis, eigenvalues, slopes, linear, starts[i], starts[i + 1])
    return out


@njit(cache=True)
def quadratic_primal_step(
    w: Floats, w_bar: Floats, flow: Floats, tau: Floats, rho: float,
    basis: Floats, eigenvalues: Floats, slopes: Floats, linear: Floats, starts: Ints,
) -> None:  # fmt: skip
    """One pass over the nodes: w <- w + ρ(w_bar − w)/2, and flow <- 2 w_new − w with w_new the prox at w − τ flow."""
    d = w.shape[1]
    v, out = np.empty(d), np.empty(d)
    for i in range(len(w)):
        for k in range(d):
            w[i, k] += 0.5 * rho * (w_bar[i, k] - w[i, k])
            v[k] = out[k] = w[i, k] - tau[i] * flow[i, k]
        _prox_along(out, v, tau[i], basis, eigenvalues, slopes, linear, starts[i], starts[i + 1])
        for k in range(d):
            flow[i, k] = 2.0 * out[k] - w[i, k]


@njit(cache=True)
def _prox_along(
    out: Floats, v: Floats, tau: float, basis: Floats, eigenvalues: Floats, slopes: Floats, linear: Floats, first: int,
    last: int,
) -> None:  # fmt: skip
    """Move one node's row ``out`` from v to the prox there; the node's directions are orthogonal."""
    for q in range(first, last):
        along = 0.0
        for k in range(len(v)):
            along += basis[q, k] * v[k]
        change = tau * (linear[q] - slopes[q] * along) / (1.0 + tau * eigenvalues[q])
        for k in range(len(v)):
            out[k] += change * basis[q, k]


@njit(cache=True)
def group_sums(rows: Floats, group: Ints, count: int) -> Floats:
    """Sums of rows (rows, width) by group, added in their order."""
    out = np.zeros((count, rows.shape[1]))
    for r in range(len(rows)):
        for k in range(rows.shape[1]):
            out[group[r], k] += rows[r, k]
    return out


@njit(cache=True, fastmath=REORDERED)
def conjugate_step(x: Floats, r: Floats, p: Floats, image: Floats, step: float, inverse: Floats) -> float:
    """x += step p and r −= step image, in place, for rows; then Σ inverse r²."""
    total = 0.0
    for i in range(len(x)):
        for k in range(x.shape[1]):
            total += inverse[i, k] * (r[i, k] - step * image[i, k]) ** 2
        for k in range(x.shape[1]):
            x[i, k] += step * p[i, k]
            r[i, k] -= step * image[i, k]
    return total


@njit(cache=True)
def conjugate_direction(p: Floats, r: Floats, inverse: Floats, part: float) -> None:
    """p <- inverse r + part p, in place, for rows."""
    for i in range(len(p)):
        for k in range(p.shape[1]):
            p[i, k] = inverse[i, k] * r[i, k] + part * p[i, k]


@njit(cache=True)
def permute_rows(rows: Floats, places: Ints) -> None:
    """Move every row to its place, a permutation, one cycle after the other."""
    moved, carried = np.zeros(len(places), dtype=np.bool_), np.empty(rows.shape[1])
    for first in range(len(places)):
        carried[:] = rows[first]
        k = first
        while not moved[k]:
            moved[k] = True
            k = places[k]
            for j in range(len(carried)):
                carried[j], rows[k, j] = rows[k, j], carried[j]
