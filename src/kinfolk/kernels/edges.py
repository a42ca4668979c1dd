"""Compiled loops over the edges."""

from __future__ import annotations

import numpy as np
from numba import njit

from kinfolk.typing import Floats, Ints

# Sums may be taken in any order; NaN stays NaN. A loop that takes such a sum writes to no array: a compiler makes two
# versions of a loop that does both, which add up in different orders, and chooses by how far apart the arrays lie in
# memory. The last bit would then depend on where they happen to lie.
REORDERED = {"reassoc", "contract", "nsz"}
HUGE = 1e150  # a limit that is never met; times zero it is zero, unlike infinity


@njit(cache=True)
def difference(values: Floats, head: Ints, tail: Ints) -> Floats:
    """values[head] − values[tail], row by row."""
    out = np.empty((len(head), values.shape[1]))
    for e in range(len(head)):
        for k in range(values.shape[1]):
            out[e, k] = values[head[e], k] - values[tail[e], k]
    return out


@njit(cache=True, fastmath=REORDERED)
def squared_distance(values: Floats, head: Ints, tail: Ints) -> Floats:
    """‖values[head] − values[tail]‖² of every edge."""
    out = np.zeros(len(head))
    for e in range(len(head)):
        one, other, total = values[head[e]], values[tail[e]], 0.0
        for k in range(values.shape[1]):
            total += (one[k] - other[k]) ** 2
        out[e] = total
    return out


@njit(cache=True)
def add_scaled(u: Floats, sigma: Floats, change: Floats) -> Floats:
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


@njit(cache=True)
def edge_sum(per_edge: Floats, head: Ints, tail: Ints, node_count: int) -> Floats:
    """The sum of a number per edge over the edges of every node, edge after edge."""
    out = np.zeros(node_count)
    for e in range(len(per_edge)):
        out[head[e]] += per_edge[e]
        out[tail[e]] += per_edge[e]
    return out


@njit(cache=True)
def add_at_heads(out: Floats, per_edge: Floats, head: Ints) -> None:
    """Add a number per edge to that of its head, edge after edge."""
    for e in range(len(per_edge)):
        out[head[e]] += per_edge[e]


@njit(cache=True)
def add_flows(out: Floats, u: Floats, head: Ints, tail: Ints) -> None:
    """Add u_e to the row of every edge's head and take it from that of its tail, edge after edge."""
    for e in range(len(u)):
        for k in range(u.shape[1]):
            out[head[e], k] += u[e, k]
            out[tail[e], k] -= u[e, k]


@njit(cache=True, fastmath=REORDERED)
def add_elastic_flows(
    out: Floats, x: Floats, head: Ints, tail: Ints, omega: Floats, normal: Floats, grip: Floats, held: float
) -> None:
    """Add DᵀΩD x to ``out``, with Ω_e = omega_e (I − held grip_e n nᵀ) and n the normal of the edge."""
    v = np.empty(x.shape[1])
    for e in range(len(head)):
        one, other, n, start, end = x[head[e]], x[tail[e]], normal[e], out[head[e]], out[tail[e]]
        part = 0.0
        for k in range(len(v)):
            v[k] = one[k] - other[k]
        for k in range(len(v)):
            part += v[k] * n[k]
        part *= held * grip[e]
        for k in range(len(v)):
            flow = omega[e] * (v[k] - part * n[k])
            start[k] += flow
            end[k] -= flow


@njit(cache=True, fastmath=REORDERED)
def add_elastic_response(
    u: Floats, x: Floats, head: Ints, tail: Ints, omega: Floats, normal: Floats, grip: Floats, held: float
) -> None:
    """Add ΩD x to u, with the Ω of ``add_elastic_flows``; u itself may be the normals."""
    v = np.empty(x.shape[1])
    for e in range(len(head)):
        one, other, n, own = x[head[e]], x[tail[e]], normal[e], u[e]
        part = 0.0
        for k in range(len(v)):
            v[k] = one[k] - other[k]
        for k in range(len(v)):
            part += v[k] * n[k]
        part *= held * grip[e]
        for k in range(len(v)):
            own[k] += omega[e] * (v[k] - part * n[k])


# For the common couplings one pass over the edges does all. They are
#     φ(v) = ball ‖v‖₂ + box ‖v‖₁ + bend ½‖v‖₂²,   one of the three in use, the limits of the others huge,
# and the prox of the conjugate of λA_e φ shortens to the ball, clips to the box, or shrinks.


@njit(cache=True)
def dual_step(
    u: Floats, values: Floats, head: Ints, tail: Ints, sigma: float, rooted: bool, weights: Floats, lam: float,
    coefficients: tuple[float, float, float], rho: float, flow: Floats,
) -> None:  # fmt: skip
    """u_e <- u_e + ρ (prox at u_e + σ s_e (values_head − values_tail) − u_e), added to ``flow`` at the ends.

    s_e is √A_e where steps are ``rooted``, else 1.
    """
    ball, box, bend = coefficients
    if bend > 0.0 or box < HUGE:
        _step_by_entries(u, values, head, tail, sigma, rooted, weights, lam, box, bend, rho, flow)
    else:
        _step_in_balls(u, values, head, tail, sigma, rooted, weights, lam * ball, rho, flow)


@njit(cache=True)
def _step_size(sigma: float, rooted: bool, weight: float) -> float:
    """σ s_e."""
    return sigma * np.sqrt(weight) if rooted else sigma


@njit(cache=True, fastmath=REORDERED, error_model="numpy")
def _step_in_balls(
    u: Floats, values: Floats, head: Ints, tail: Ints, sigma: float, rooted: bool, weights: Floats, lam: float,
    rho: float, flow: Floats,
) -> None:  # fmt: skip
    """``dual_step`` for ball ‖·‖₂. Rows are taken out before the loops over entries, which are vectorised only then."""
    width = u.shape[1]
    v = np.empty(width)
    for e in range(len(u)):
        own, one, other, out, back = u[e], values[head[e]], values[tail[e]], flow[head[e]], flow[tail[e]]
        step, limit, factor, square = _step_size(sigma, rooted, weights[e]), lam * weights[e], 1.0, 0.0
        for k in range(width):
            v[k] = own[k] + step * (one[k] - other[k])
        for k in range(width):
            square += v[k] * v[k]
        if square > limit**2:
            factor = limit / np.sqrt(square)
        for k in range(width):
            new = own[k] + rho * (factor * v[k] - own[k])
            own[k] = new
            out[k] += new
            back[k] -= new


@njit(cache=True, fastmath=REORDERED, error_model="numpy")
def _step_by_entries(
    u: Floats, values: Floats, head: Ints, tail: Ints, sigma: float, rooted: bool, weights: Floats, lam: float,
    box: float, bend: float, rho: float, flow: Floats,
) -> None:  # fmt: skip
    """``dual_step`` for box ‖·‖₁ + bend ½‖·‖₂², which leave every entry to itself."""
    for e in range(len(u)):
        i, j, step, limit = head[e], tail[e], _step_size(sigma, rooted, weights[e]), lam * weights[e]
        factor, wall = bend * limit / (bend * limit + step) if bend > 0.0 else 1.0, box * limit
        for k in range(u.shape[1]):
            v = factor * (u[e, k] + step * (values[i, k] - values[j, k]))
            if box < HUGE:
                v = min(max(v, -wall), wall)
            new = u[e, k] + rho * (v - u[e, k])
            u[e, k] = new
            flow[i, k] += new
            flow[j, k] -= new


@njit(cache=True, fastmath=REORDERED, error_model="numpy")
def dual_look(
    u: Floats, values: Floats, head: Ints, tail: Ints, sigma: float, rooted: bool, weights: Floats, lam: float,
    coefficients: tuple[float, float, float], flow: Floats, variation: Floats, mismatch: Floats, moved: Floats,
) -> None:  # fmt: skip
    """What ``dual_step`` without relaxation would do, as numbers per edge and flows out of nodes; u stays."""
    ball, box, bend = _charges(coefficients)
    width = u.shape[1]
    v = np.empty(width)
    for e in range(len(u)):
        own, one, other, out, back = u[e], values[head[e]], values[tail[e]], flow[head[e]], flow[tail[e]]
        limit, step = lam * weights[e], _step_size(sigma, rooted, weights[e])
        for k in range(width):
            v[k] = own[k] + step * (one[k] - other[k])
        factor = _into_domain(v, step, limit, coefficients)
        cross = squared = absolute = length = move = 0.0
        for k in range(width):
            new, change = factor * v[k], one[k] - other[k]
            cross += new * change
            squared += change * change
            absolute += abs(change)
            length += new * new
            move += (new - own[k]) ** 2
        for k in range(width):
            out[k] += factor * v[k]
            back[k] -= factor * v[k]
        moved[e] = move
        variation[e] = limit * (ball * np.sqrt(squared) + box * absolute + bend * 0.5 * squared)
        mismatch[e] = variation[e] - cross
        if bend * limit > 0.0:
            mismatch[e] += 0.5 * length / (bend * limit)


@njit(cache=True, fastmath=REORDERED, error_model="numpy")
def _into_domain(v: Floats, sigma: float, limit: float, coefficients: tuple[float, float, float]) -> float:
    """The prox of the conjugate at v is v, clipped here where there is a box, times the factor that is returned."""
    ball, box, bend = coefficients
    if bend > 0.0:
        return bend * limit / (bend * limit + sigma)
    if box < HUGE:
        for k in range(len(v)):
            v[k] = min(max(v[k], -box * limit), box * limit)
        return 1.0
    square = 0.0
    for k in range(len(v)):
        square += v[k] * v[k]
    if square > (ball * limit) ** 2:
        out: float = ball * limit / np.sqrt(square)
        return out
    return 1.0


@njit(cache=True)
def _charges(coefficients: tuple[float, float, float]) -> tuple[float, float, float]:
    """The factors of φ: a limit that is not in use charges nothing."""
    ball, box, bend = coefficients
    return (ball if ball < HUGE else 0.0, box if box < HUGE else 0.0, bend)


@njit(cache=True)
def project_power_ball(v: Floats, radius: Floats, q: float) -> Floats:
    """Project every row on ‖u‖_q ≤ radius, 1 < q < ∞.

    Outside the ball |u_k| + μ|u_k|^(q−1) = |v_k| with the μ > 0 that puts u on the sphere: Newton's method on log μ,
    and for every entry on a convex equation. Rows are scaled so that their largest entry is 1.
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
        _onto_sphere(u, size, radius[e] / largest, q)
        out[e] = np.sign(v[e]) * u * (radius[e] / _power_norm(u, q))
    return out


@njit(cache=True)
def _onto_sphere(u: Floats, size: Floats, radius: float, q: float) -> None:
    """The u with u_k + μ u_k^(q−1) = size_k and ‖u‖_q = radius, up to rounding.

    log ‖u‖_q falls with log μ, the steeper the larger μ is. So Newton's method from above comes down to the root; what
    rounding makes of that is kept between the bounds.
    """
    low, high = -700.0, 700.0
    middle = min((q - 1.0) * np.log(_power_norm(size ** (1.0 / (q - 1.0)), q) / radius), high)
    for _ in range(64):
        for k in range(len(u)):
            u[k] = _shrunk(size[k], np.exp(middle), q)
        excess, largest, total, slope = np.log(_power_norm(u, q) / radius), np.max(u), 0.0, 0.0
        if excess > 0.0:
            low = middle
        else:
            high = middle
        for k in range(len(u)):
            if u[k] > 0.0:
                weight, shed = (u[k] / largest) ** q, size[k] - u[k]
                total += weight
                slope += weight * shed / (u[k] + (q - 1.0) * shed)
        move = excess * total / slope if slope > 0.0 else 1500.0
        if abs(excess) <= 1e-15 or abs(move) <= 1e-14 or high - low <= 1e-13:
            break
        middle = middle + move if low < middle + move < high else 0.5 * (low + high)


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
    out: float = x if q >= 2.0 else x**power
    return out
