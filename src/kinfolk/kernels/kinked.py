"""The prox of a loss with a kink, by an active-set method at every node."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from kinfolk.typing import Floats, Ints

ON_KINK = 1e-10  # a row this close to its kink, relative, is taken to be on it at first
KINK_ROUNDING = 1e-14  # a row this close to its kink, relative, cannot be told from one on it
DEPENDENT = 1e-10  # a row of which other rows leave so little, relative, depends on them


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
    rows, most = np.empty(X.shape), min(X.shape)  # rows in the metric of the quadratic term
    for k in range(X.shape[1]):
        for r in range(len(X)):
            rows[r, k] = X[r, k] / np.sqrt(bend[k])
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
        if wrong <= worst or not can_move or _among(r, free):
            continue
        found = r
        if first:
            break
        worst = wrong
    return found


@njit(cache=True)
def _among(r: int, free: Ints) -> bool:
    """Whether a row is free."""
    found = False
    for j in range(len(free)):  # loops are compiled in half the time of expressions with arrays, here and below
        found |= free[j] == r
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
    for j in range(len(along)):
        step[j] = -along[j]
    _solve_upper(R, step[:-1])
    step[-1] = 1.0
    if not rises:
        for j in range(len(step)):
            step[j] = -step[j]
    return _walk(step, np.inf, beta, low, high, free)


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
            part = _inner(Q[j], left)
            along[j] += part
            for k in range(len(left)):
                left[k] -= part * Q[j, k]
    return along, left


@njit(cache=True)
def _inner(one: Floats, other: Floats) -> float:
    total = 0.0
    for k in range(len(one)):
        total += one[k] * other[k]
    return total


@njit(cache=True)
def _depends(left: Floats, row: Floats) -> bool:
    """Whether a row depends on others, given what they leave of it."""
    return bool(_inner(left, left) <= DEPENDENT**2 * _inner(row, row))


@njit(cache=True)
def _append(r: int, rows: Floats, free: Ints, count: int, Q: Floats, R: Floats) -> int:
    """Free row r and extend QᵀR = (free rows)ᵀ, unless it depends on those that are free; how many there are then."""
    along, left = _project(rows[r], Q[:count])
    if count == len(R) or _depends(left, rows[r]):
        return count
    length = np.sqrt(_inner(left, left))
    R[count, count], free[count] = length, r
    for j in range(count):
        R[j, count] = along[j]
    for k in range(len(left)):
        Q[count, k] = left[k] / length
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
