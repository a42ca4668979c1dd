"""Linear systems over a graph, a block per node on the diagonal and Dᵀ(a block per edge)D: products and solutions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from kinfolk.kernels.cholesky import solve_factored
from kinfolk.kernels.edges import REORDERED
from kinfolk.typing import Floats, Ints


@njit(cache=True, fastmath=REORDERED)
def apply_blocks(x: Floats, at_nodes: Floats, at_edges: Floats, head: Ints, tail: Ints) -> Floats:
    """The system times x (nodes, d), by differences over edges: exact where large blocks meet small differences."""
    d = x.shape[1]
    out, change = np.empty_like(x), np.empty(d)
    for i in range(len(x)):
        for j in range(d):
            total = 0.0
            for k in range(d):
                total += at_nodes[i, j, k] * x[i, k]
            out[i, j] = total
    for e in range(len(head)):
        for k in range(d):
            change[k] = x[head[e], k] - x[tail[e], k]
        for j in range(d):
            total = 0.0
            for k in range(d):
                total += at_edges[e, j, k] * change[k]
            out[head[e], j] += total
            out[tail[e], j] -= total
    return out


@njit(cache=True, fastmath=REORDERED)
def solve_blocks(
    rhs: Floats, system: tuple[Floats, Floats, Ints, Ints], place: Ints, factor: Any, precision: float, most: int
) -> Floats:
    """Conjugate gradients with the factor of the system as preconditioner: one or two steps unless it is extreme.

    ``system`` is what ``apply_blocks`` takes, ``factor`` what ``solve_factored`` does, ``place`` that of every node in
    the order of elimination. ``precision`` is that of the residual, weighed by the diagonal at the nodes.
    """
    at_nodes = system[0]
    x, p, r = np.zeros_like(rhs), np.zeros_like(rhs), rhs.copy()
    goal, rz = precision**2 * _weighed(rhs, at_nodes), 0.0
    for _ in range(most):
        if not _weighed(r, at_nodes) > goal:
            break
        z = solve_in_order(r, place, factor)
        rz, before = _dot(r, z), rz
        part = 0.0 if before == 0.0 else rz / before
        for i in range(len(p)):
            for k in range(p.shape[1]):
                p[i, k] = z[i, k] + part * p[i, k]
        image = apply_blocks(p, system[0], system[1], system[2], system[3])
        bend = _dot(p, image)
        if not bend > 0.0:
            break
        step = rz / bend
        for i in range(len(x)):
            for k in range(x.shape[1]):
                x[i, k] += step * p[i, k]
                r[i, k] -= step * image[i, k]
    return x


@njit(cache=True)
def solve_in_order(rhs: Floats, place: Ints, factor: Any) -> Floats:
    """The factor's solution for rows (nodes, d), from the order of the nodes to that of elimination and back."""
    ordered, out = np.empty_like(rhs), np.empty_like(rhs)
    for i in range(len(rhs)):
        for k in range(rhs.shape[1]):
            ordered[place[i], k] = rhs[i, k]
    solve_factored(ordered, factor[0], factor[1], factor[2])
    for i in range(len(rhs)):
        for k in range(rhs.shape[1]):
            out[i, k] = ordered[place[i], k]
    return out


@njit(cache=True, fastmath=REORDERED)
def _weighed(r: Floats, at_nodes: Floats) -> float:
    """Σ r² over the diagonal at the nodes, where that is positive."""
    total = 0.0
    for i in range(len(r)):
        for k in range(r.shape[1]):
            diagonal = at_nodes[i, k, k]
            total += r[i, k] ** 2 / (diagonal if diagonal > 0 else 1.0)
    return total


@njit(cache=True, fastmath=REORDERED)
def _dot(x: Floats, y: Floats) -> float:
    total = 0.0
    for i in range(len(x)):
        for k in range(x.shape[1]):
            total += x[i, k] * y[i, k]
    return total
