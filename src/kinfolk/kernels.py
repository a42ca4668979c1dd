"""Compiled loops over nodes and their rows: the only place with numba."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from kinfolk.typing import Floats, Ints

REORDERED = {"reassoc", "contract", "nsz"}  # sums may be taken in any order; NaN stays NaN
HUGE = 1e150  # a limit that is never met; times zero it is zero, unlike infinity
ON_KINK = 1e-10  # a row this close to its kink, relative, is taken to be on it at first
KINK_ROUNDING = 1e-14  # a row this close to its kink, relative, cannot be told from one on it
DEPENDENT = 1e-10  # a row of which other rows leave so little, relative, depends on them


@njit(cache=True)
def _neighbour_lists(head: Ints, tail: Ints, node_count: int) -> tuple[Ints, Ints]:
    """Where the neighbours of every node start (nodes + 1,), and the neighbours (2 edges,)."""
    starts = np.zeros(node_count + 1, dtype=np.int64)
    for e in range(len(head)):
        starts[head[e] + 1] += 1
        starts[tail[e] + 1] += 1
    starts = np.cumsum(starts)
    neighbours, place = np.empty(2 * len(head), dtype=np.int64), starts[:-1].copy()
    for e in range(len(head)):
        for one, other in ((head[e], tail[e]), (tail[e], head[e])):
            neighbours[place[one]] = other
            place[one] += 1
    return starts, neighbours


@njit(cache=True)
def _place(starts: Ints, neighbours: Ints, one: int, other: int) -> int:
    """Where one node has another among its neighbours; −1 if it has not."""
    for k in range(starts[one], starts[one + 1]):
        if neighbours[k] == other:
            return int(k)
    return -1


@njit(cache=True)
def swap_edges(head: Ints, tail: Ints, node_count: int, swaps: int, tries: int, rng: Any) -> int:
    """Let random pairs of edges swap an end, in place, unless a loop or a double edge came of it; how often it did."""
    starts, neighbours = _neighbour_lists(head, tail, node_count)
    done = 0
    for _ in range(tries):
        if done == swaps:
            break
        a, b = rng.integers(0, len(head)), rng.integers(0, len(head))
        if rng.integers(0, 2):
            head[b], tail[b] = tail[b], head[b]
        i, j, k, m = head[a], tail[a], head[b], tail[b]
        if i in (k, m) or j in (k, m):
            continue
        if _place(starts, neighbours, i, m) >= 0 or _place(starts, neighbours, k, j) >= 0:
            continue
        for one, old, new in ((i, j, m), (j, i, k), (k, m, j), (m, k, i)):
            neighbours[_place(starts, neighbours, one, old)] = new
        tail[a], tail[b] = m, j
        done += 1
    return done


@njit(cache=True)
def first_fit_colours(head: Ints, tail: Ints, degrees: Ints, order: Ints) -> Ints:
    """Nodes take, one after the other, the smallest colour that no neighbour has taken before."""
    starts, neighbours = _neighbour_lists(head, tail, len(degrees))
    colours = np.full(len(degrees), -1, dtype=np.int64)
    taken_by = np.full(len(degrees) + 1, -1, dtype=np.int64)  # the node that last found this colour taken
    for node in order:
        for other in neighbours[starts[node] : starts[node + 1]]:
            taken_by[colours[other]] = node  # no colour is −1, the last place, which nobody reads
        colour = 0
        while taken_by[colour] == node:
            colour += 1
        colours[node] = colour
    return colours


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
def sum_vectors(values: Floats, starts: Ints) -> Floats:
    """Sum of the rows of vectors at every node, in row order."""
    out = np.zeros((len(starts) - 1, values.shape[1]))
    for i in range(len(starts) - 1):
        for r in range(starts[i], starts[i + 1]):
            for k in range(values.shape[1]):
                out[i, k] += values[r, k]
    return out


@njit(cache=True)
def prox_quadratic(v: Floats, tau: Floats, basis: Floats, eigenvalues: Floats, linear: Floats, starts: Ints) -> Floats:
    """Minimise ½w'Hw − b'w + ‖w − v‖²/(2τ) at every node, with H = Σ_k s_k q_k q_k' and b = Σ_k b_k q_k."""
    out = v.copy()
    for i in range(len(starts) - 1):
        _prox_along(out[i], v[i], tau[i], basis, eigenvalues, linear, starts[i], starts[i + 1])
    return out


@njit(cache=True)
def quadratic_primal_step(
    w: Floats, w_bar: Floats, flow: Floats, tau: Floats, rho: float,
    basis: Floats, eigenvalues: Floats, linear: Floats, starts: Ints,
) -> None:  # fmt: skip
    """One pass over the nodes: w <- w + ρ(w_bar − w)/2, and flow <- 2 w_new − w with w_new the prox at w − τ flow."""
    d = w.shape[1]
    v, out = np.empty(d), np.empty(d)
    for i in range(len(w)):
        for k in range(d):
            w[i, k] += 0.5 * rho * (w_bar[i, k] - w[i, k])
            v[k] = out[k] = w[i, k] - tau[i] * flow[i, k]
        _prox_along(out, v, tau[i], basis, eigenvalues, linear, starts[i], starts[i + 1])
        for k in range(d):
            flow[i, k] = 2.0 * out[k] - w[i, k]


@njit(cache=True)
def _prox_along(
    out: Floats, v: Floats, tau: float, basis: Floats, eigenvalues: Floats, linear: Floats, first: int, last: int
) -> None:
    """Move one node's row ``out`` from v to the prox there; the node's directions are orthogonal."""
    for q in range(first, last):
        along = 0.0
        for k in range(len(v)):
            along += basis[q, k] * v[k]
        change = tau * (linear[q] - eigenvalues[q] * along) / (1.0 + tau * eigenvalues[q])
        for k in range(len(v)):
            out[k] += change * basis[q, k]


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


@njit(cache=True)
def edge_sum(per_edge: Floats, head: Ints, tail: Ints, node_count: int) -> Floats:
    """The sum of a number per edge over the edges of every node, edge after edge."""
    out = np.zeros(node_count)
    for e in range(len(per_edge)):
        out[head[e]] += per_edge[e]
        out[tail[e]] += per_edge[e]
    return out


@njit(cache=True)
def add_flows(out: Floats, u: Floats, head: Ints, tail: Ints) -> None:
    """Add u_e to the row of every edge's head and take it from that of its tail, edge after edge."""
    for e in range(len(u)):
        for k in range(u.shape[1]):
            out[head[e], k] += u[e, k]
            out[tail[e], k] -= u[e, k]


# For the common couplings one pass over the edges does all. They are
#     φ(v) = ball ‖v‖₂ + box ‖v‖₁ + bend ½‖v‖₂²,   one of the three in use, the limits of the others huge,
# and the prox of the conjugate of λA_e φ shortens to the ball, clips to the box, or shrinks.


@njit(cache=True, fastmath=REORDERED)
def dual_step(
    u: Floats, values: Floats, head: Ints, tail: Ints, scales: Floats, sigma: float, weights: Floats, lam: float,
    shape: tuple[float, float, float], rho: float, flow: Floats,
) -> None:  # fmt: skip
    """u_e <- u_e + ρ (prox at u_e + σ s_e (values_head − values_tail) − u_e), added to ``flow`` at the ends.

    To compute v twice is quicker than to keep it.
    """
    ball, box, bend = shape
    for e in range(len(u)):
        i, j, step, limit = head[e], tail[e], sigma * scales[e], lam * weights[e]
        factor, wall = 1.0, box * limit
        if bend > 0.0:
            factor = bend * limit / (bend * limit + step)
        elif box == HUGE:
            square = 0.0
            for k in range(u.shape[1]):
                v = u[e, k] + step * (values[i, k] - values[j, k])
                square += v * v
            if square > (ball * limit) ** 2:
                factor = ball * limit / np.sqrt(square)
        for k in range(u.shape[1]):
            v = factor * (u[e, k] + step * (values[i, k] - values[j, k]))
            if box < HUGE:
                v = min(max(v, -wall), wall)
            new = u[e, k] + rho * (v - u[e, k])
            u[e, k] = new
            flow[i, k] += new
            flow[j, k] -= new


@njit(cache=True)
def dual_look(
    u: Floats, values: Floats, head: Ints, tail: Ints, scales: Floats, sigma: float, weights: Floats, lam: float,
    shape: tuple[float, float, float], flow: Floats, variation: Floats, mismatch: Floats, moved: Floats,
) -> None:  # fmt: skip
    """What ``dual_step`` without relaxation would do, as numbers per edge and flows out of nodes; u stays."""
    ball, box, bend = _charges(shape)
    v = np.empty(u.shape[1])
    for e in range(len(u)):
        i, j, limit = head[e], tail[e], lam * weights[e]
        v *= _dual_prox(v, u, values, e, i, j, sigma * scales[e], limit, shape)
        cross = squared = absolute = own = move = 0.0
        for k in range(len(v)):
            change = values[i, k] - values[j, k]
            cross += v[k] * change
            squared += change * change
            absolute += abs(change)
            own += v[k] * v[k]
            move += (v[k] - u[e, k]) ** 2
            flow[i, k] += v[k]
            flow[j, k] -= v[k]
        moved[e] = move
        variation[e] = limit * (ball * np.sqrt(squared) + box * absolute + bend * 0.5 * squared)
        mismatch[e] = variation[e] - cross
        if bend * limit > 0.0:
            mismatch[e] += 0.5 * own / (bend * limit)


@njit(cache=True)
def _dual_prox(
    v: Floats, u: Floats, values: Floats, e: int, i: int, j: int, sigma: float, limit: float,
    shape: tuple[float, float, float],
) -> float:  # fmt: skip
    """The prox of the conjugate at u_e + σ (values_i − values_j) is v times the factor that is returned."""
    ball, box, bend = shape
    square = 0.0
    for k in range(len(v)):
        v[k] = u[e, k] + sigma * (values[i, k] - values[j, k])
        square += v[k] * v[k]
    if bend > 0.0:
        return bend * limit / (bend * limit + sigma)
    if square > (ball * limit) ** 2:
        return ball * limit / np.sqrt(square)
    if box < HUGE:
        for k in range(len(v)):
            v[k] = min(max(v[k], -box * limit), box * limit)
    return 1.0


@njit(cache=True)
def _charges(shape: tuple[float, float, float]) -> tuple[float, float, float]:
    """The factors of φ: a limit that is not in use charges nothing."""
    ball, box, bend = shape
    return (ball if ball < HUGE else 0.0, box if box < HUGE else 0.0, bend)


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


@njit(cache=True)
def prox_kinked(
    X: Floats, starts: Ints, kink: Floats, low: Floats, high: Floats, centre: Floats, bend: Floats, guess: Floats
) -> tuple[Floats, Floats]:
    """Minimise Σ_r max(low_r (z_r − kink_r), high_r (z_r − kink_r)) + ½ Σ_k bend_k (w_k − centre_k)², z_r = x_r'w.

    The answer and its dual variables β, with w = centre − Xᵀβ / bend at every node. The dual is a quadratic program
    in a box, low ≤ β ≤ high, which an active-set method solves exactly: β_r is free where z_r stays on its kink, and
    sits on a border elsewhere. Rows on their kink at ``guess`` are tried as free ones first, so from a good guess one
    linear system is all there is to solve.
    """
    w, beta = centre.copy(), np.zeros(len(X))
    for i in range(len(starts) - 1):
        rows = slice(starts[i], starts[i + 1])
        if starts[i] < starts[i + 1]:
            node = (X[rows], kink[rows], low[rows], high[rows], centre[i], bend[i])
            _prox_kinked_node(node, guess[i], w[i], beta[rows])
    return w, beta


@njit(cache=True)
def _prox_kinked_node(node: Any, guess: Floats, w: Floats, beta: Floats) -> None:
    """One node of ``prox_kinked``: fills w and beta."""
    X, _, low, high, _, bend = node
    rows, most = X / np.sqrt(bend), min(X.shape)  # rows in the metric of the quadratic term
    free, Q, R = np.empty(most + 1, np.int64), np.empty((most, X.shape[1])), np.empty((most, most))
    beyond, size = np.empty(len(X)), np.empty(len(X))
    count = _guess_free(node, guess, rows, beta, free, Q, R)
    limit = 20 * len(X) + 100
    for attempt in range(limit):
        _follow(node, beta, w, beyond, size)
        leaving = _move_free(beyond, beta, low, high, free[:count], R)
        if leaving >= 0:
            count = _release(leaving, rows, free, count, Q, R)
            continue
        _follow(node, beta, w, beyond, size)
        # The row that is wrong by most enters; late, lest it goes in circles, the first one.
        entering = _find_wrong(beyond, size, beta, low, high, free[:count], attempt > limit // 2)
        if entering < 0:
            break
        along, left = _project(rows[entering], Q[:count])
        if _depends(left, rows[entering]):
            free[count] = entering
            leaving = _exchange(along, beyond[entering] > 0, beta, low, high, free[: count + 1], R)
            if leaving == count:
                continue
            count = _release(leaving, rows, free, count, Q, R)
        count = _append(entering, rows, free, count, Q, R)


@njit(cache=True)
def _guess_free(node: Any, guess: Floats, rows: Floats, beta: Floats, free: Ints, Q: Floats, R: Floats) -> int:
    """Free are the independent ones of the rows that are on their kink at the guess; the others sit on a border."""
    X, kink, low, high, _, _ = node
    count = 0
    for r in range(len(X)):
        beyond, size = -kink[r], abs(kink[r])
        for k in range(X.shape[1]):
            beyond += X[r, k] * guess[k]
            size += abs(X[r, k] * guess[k])
        if abs(beyond) > ON_KINK * size:
            beta[r] = high[r] if beyond > 0 else low[r]
        else:
            beta[r] = min(max(0.0, low[r]), high[r])
            count = _append(r, rows, free, count, Q, R)
    return count


@njit(cache=True)
def _follow(node: Any, beta: Floats, w: Floats, beyond: Floats, size: Floats) -> None:
    """w of β, how far every z_r is beyond its kink, and the size of the numbers that this is a difference of."""
    X, kink, _, _, centre, bend = node
    pull = np.zeros(len(w))
    for r in range(len(X)):
        for k in range(len(w)):
            pull[k] += beta[r] * X[r, k]
    for k in range(len(w)):
        pull[k] /= bend[k]
        w[k] = centre[k] - pull[k]
    for r in range(len(X)):
        beyond[r], size[r] = -kink[r], abs(kink[r])
        for k in range(len(w)):
            beyond[r] += X[r, k] * w[k]
            size[r] += abs(X[r, k]) * (abs(centre[k]) + abs(pull[k]))


@njit(cache=True)
def _find_wrong(beyond: Floats, size: Floats, beta: Floats, low: Floats, high: Floats, free: Ints, first: bool) -> int:
    """A row whose β should rise (z beyond the kink) or fall (z below) and can, or −1: the worst, or the ``first``."""
    found, worst = -1, KINK_ROUNDING
    for r in range(len(beta)):
        wrong = abs(beyond[r]) / size[r] if size[r] > 0 else 0.0
        can_move = beta[r] < high[r] if beyond[r] > 0 else beta[r] > low[r]
        if wrong <= worst or not can_move or (free == r).any():
            continue
        found = r
        if first:
            break
        worst = wrong
    return found


@njit(cache=True)
def _move_free(beyond: Floats, beta: Floats, low: Floats, high: Floats, free: Ints, R: Floats) -> int:
    """Move the free β to where their rows are on the kink, RᵀR step = beyond; who hits a border on the way, or −1."""
    step = np.empty(len(free))
    for j in range(len(free)):
        step[j] = beyond[free[j]]
        for k in range(j):
            step[j] -= R[k, j] * step[k]
        step[j] /= R[j, j]
    _solve_upper(R, step)
    return _walk(step, 1.0, beta, low, high, free)


@njit(cache=True)
def _exchange(along: Floats, rises: bool, beta: Floats, low: Floats, high: Floats, free: Ints, R: Floats) -> int:
    """Move the β of dependent rows, the last of ``free`` and those before, at constant Xᵀβ; who hits a border first."""
    step = np.empty(len(free))
    step[:-1] = -along
    _solve_upper(R, step[:-1])
    step[-1] = 1.0
    return _walk(step if rises else -step, np.inf, beta, low, high, free)


@njit(cache=True)
def _walk(step: Floats, longest: float, beta: Floats, low: Floats, high: Floats, free: Ints) -> int:
    """β <- β + t step for the longest t that the box allows; the position of who stops it, or −1."""
    stopped = -1
    for j in range(len(free)):
        r = free[j]
        room = (high[r] if step[j] > 0 else low[r]) - beta[r]
        if abs(step[j]) * longest > abs(room):
            stopped, longest = j, room / step[j]
    for j in range(len(free)):
        r = free[j]
        beta[r] = min(max(beta[r] + longest * step[j], low[r]), high[r])
    if stopped >= 0:
        r = free[stopped]
        beta[r] = high[r] if step[stopped] > 0 else low[r]
    return stopped


@njit(cache=True)
def _project(row: Floats, Q: Floats) -> tuple[Floats, Floats]:
    """The parts of a row along the rows of Q, and what is left of it."""
    along, left = np.zeros(len(Q)), row.copy()
    for _ in range(2):  # once more, for orthogonality to rounding
        for j in range(len(Q)):
            part = np.sum(Q[j] * left)
            along[j] += part
            left -= part * Q[j]
    return along, left


@njit(cache=True)
def _depends(left: Floats, row: Floats) -> bool:
    """Whether a row depends on others, given what they leave of it."""
    return bool(np.sum(left * left) <= DEPENDENT**2 * np.sum(row * row))


@njit(cache=True)
def _append(r: int, rows: Floats, free: Ints, count: int, Q: Floats, R: Floats) -> int:
    """Free row r and extend QᵀR = (free rows)ᵀ, unless it depends on those that are free; how many there are then."""
    along, left = _project(rows[r], Q[:count])
    if count == len(R) or _depends(left, rows[r]):
        return count
    length = np.sqrt(np.sum(left * left))
    R[:count, count], R[count, count], Q[count], free[count] = along, length, left / length, r
    return count + 1


@njit(cache=True)
def _release(position: int, rows: Floats, free: Ints, count: int, Q: Floats, R: Floats) -> int:
    """Free one row less; how many there are then."""
    kept = position
    for j in range(position + 1, count):
        kept = _append(free[j], rows, free, kept, Q, R)
    return kept


@njit(cache=True)
def _solve_upper(R: Floats, x: Floats) -> None:
    """x <- R⁻¹ x, with as much of R as x has entries."""
    for j in range(len(x) - 1, -1, -1):
        for k in range(j + 1, len(x)):
            x[j] -= R[j, k] * x[k]
        x[j] /= R[j, j]
