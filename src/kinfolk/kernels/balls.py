"""The rows of ``Balls`` in the interior-point method of GTV minimisation: second-order cones, scaled.

A row is x = (x₀, x₁), with x ∘ y = (⟨x, y⟩, x₀ y₁ + y₀ x₁). W = √size (2 root rootᵀ − J), J = diag(1, −1, ..., −1).
Arrays are (1 + d, rows) or (d, rows): loops over rows are vectorised, over a few entries they are not. Some hundred
rows at a time stay in the fastest memory.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from kinfolk.kernels.edges import REORDERED
from kinfolk.typing import Floats

FURTHEST = 2.0  # times a step: no border is looked for beyond
CHUNK = 256  # rows


@njit(cache=True, fastmath=REORDERED, error_model="numpy")
def ball_stiffness(root: Floats, size: Floats) -> Floats:
    """(rows, d, d) the inverse of the block of W² that belongs to the differences."""
    count, d = len(size), len(root) - 1
    out = np.empty((count, d, d))
    for e in range(count):
        square, inverse = 0.0, 1 / size[e]
        for k in range(d):
            square += root[k + 1, e] ** 2
        share = 8 * root[0, e] ** 2 * inverse / (1 + 8 * root[0, e] ** 2 * square)
        for j in range(d):
            for k in range(d):
                out[e, j, k] = -share * root[j + 1, e] * root[k + 1, e]
            out[e, j, j] += inverse
    return out


@njit(cache=True, fastmath=REORDERED, error_model="numpy")
def ball_aim(
    root: Floats, size: Floats, scaled: Floats, missing: Floats, target: float, ds: Floats, dz: Floats,
    second_order: bool,
) -> tuple[Floats, Floats, Floats]:  # fmt: skip
    """What a step is to do: three arrays.

    First the y with scaled ∘ y = (target, 0) − scaled ∘ scaled, less ds ∘ dz if that is asked for. Then what
    differences lack for it: those ``missing`` (rows, d) in the slack, less those of W y. Then the stiffness times that.
    """
    width, count = scaled.shape
    wanted, lacking, push = np.empty_like(scaled), np.empty((width - 1, count)), np.empty((width - 1, count))
    first, square, dot = np.empty(CHUNK), np.empty(CHUNK), np.empty(CHUNK)
    for begin in range(0, count, CHUNK):
        end = min(begin + CHUNK, count)
        x_0, inverse = scaled[0, begin:end], 1 / scaled[0, begin:end]
        _dots(square, scaled, scaled, 1, begin, end)
        for i in range(end - begin):
            first[i] = target - x_0[i] ** 2 - square[i]
        for k in range(1, width):
            x, y = scaled[k, begin:end], wanted[k, begin:end]
            for i in range(len(x)):
                y[i] = -2 * x_0[i] * x[i]
        if second_order:
            _dots(dot, ds, dz, 0, begin, end)
            first -= dot
            s_0, z_0 = ds[0, begin:end], dz[0, begin:end]
            for k in range(1, width):
                s, z, y = ds[k, begin:end], dz[k, begin:end], wanted[k, begin:end]
                for i in range(len(s)):
                    y[i] -= s_0[i] * z[i] + z_0[i] * s[i]
        _dots(dot, scaled, wanted, 1, begin, end)
        y_0 = wanted[0, begin:end]
        for i in range(len(y_0)):
            length = np.sqrt(square[i])
            y_0[i] = (x_0[i] * first[i] - dot[i]) / ((x_0[i] - length) * (x_0[i] + length))
        for k in range(1, width):
            x, y = scaled[k, begin:end], wanted[k, begin:end]
            for i in range(len(x)):
                y[i] = (y[i] - y_0[i] * x[i]) * inverse[i]
        _dots(dot, root, wanted, 0, begin, end)
        factor = np.sqrt(size[begin:end])
        for k in range(1, width):
            r, y, lack = root[k, begin:end], wanted[k, begin:end], lacking[k - 1, begin:end]
            for i in range(len(r)):
                lack[i] = missing[begin + i, k - 1] - factor[i] * (2 * dot[i] * r[i] + y[i])
        _answer(push, root, size, lacking, begin, end)
    return wanted, lacking, push


@njit(cache=True, fastmath=REORDERED, error_model="numpy")
def ball_follow(
    root: Floats, size: Floats, scaled: Floats, wanted: Floats, lacking: Floats, change: Floats
) -> tuple[Floats, Floats, Floats, float, float, float]:
    """The step for differences that ``change`` (rows, d): of the duals, of scaled slack and dual, and three numbers.

    These are the part of the step at which a row meets the border, at most ``FURTHEST``, and how the gap depends on the
    part: its slope at zero, and half its curvature.
    """
    width, count = scaled.shape
    du, ds, dz = np.empty((width - 1, count)), np.empty_like(scaled), np.empty_like(scaled)
    needed, dot = np.empty((width - 1, count)), np.empty(CHUNK)
    longest, slope, curvature = FURTHEST, 0.0, 0.0
    for begin in range(0, count, CHUNK):
        end = min(begin + CHUNK, count)
        for k in range(width - 1):
            need, lack = needed[k, begin:end], lacking[k, begin:end]
            for i in range(len(need)):
                need[i] = change[begin + i, k] + lack[i]
        _answer(du, root, size, needed, begin, end)
        dot[:] = 0.0
        for k in range(1, width):
            r, u = root[k, begin:end], du[k - 1, begin:end]
            for i in range(len(r)):
                dot[i] -= 2 * r[i] * u[i]
        factor = np.sqrt(size[begin:end])
        for k in range(width):
            r, z = root[k, begin:end], dz[k, begin:end]
            for i in range(len(r)):
                z[i] = factor[i] * dot[i] * r[i]
            if k > 0:
                u = du[k - 1, begin:end]
                for i in range(len(r)):
                    z[i] -= factor[i] * u[i]
            s, x, y = ds[k, begin:end], scaled[k, begin:end], wanted[k, begin:end]
            for i in range(len(r)):
                s[i] = y[i] - z[i]
            for i in range(len(r)):
                slope += x[i] * y[i]
                curvature += s[i] * z[i]
        longest = _until_border(scaled, dz, begin, end, _until_border(scaled, ds, begin, end, longest))
    return du, ds, dz, longest, slope, curvature


@njit(cache=True, fastmath=REORDERED, error_model="numpy")
def ball_move(
    root: Floats, size: Floats, scaled: Floats, ds: Floats, dz: Floats, part: float
) -> tuple[Floats, Floats, Floats]:
    """Root, size and scaled point after a part of the step: the W after W · (scaling of the moved slack and dual)."""
    width, count = scaled.shape
    new_root, new_size, new_scaled = np.empty_like(root), np.empty_like(size), np.empty_like(scaled)
    s, z = np.empty((width, CHUNK)), np.empty((width, CHUNK))  # of unit size
    dot, along_s, along_z = np.empty(CHUNK), np.empty(CHUNK), np.empty(CHUNK)
    for begin in range(0, count, CHUNK):
        end = min(begin + CHUNK, count)
        size_s, size_z = _moved(s, scaled, ds, part, begin, end), _moved(z, scaled, dz, part, begin, end)
        _dots(dot, s, z, 0, 0, end - begin)
        root_0, s_0, z_0 = root[0, begin:end], s[0], z[0]
        for i in range(len(root_0)):
            along_s[i], along_z[i] = root_0[i] * s_0[i], root_0[i] * z_0[i]
        for k in range(1, width):
            r, s_k, z_k = root[k, begin:end], s[k], z[k]
            for i in range(len(r)):
                along_s[i] += r[i] * s_k[i]
                along_z[i] -= r[i] * z_k[i]
        half = np.sqrt((1 + dot[: end - begin]) / 2)
        inverse = 1 / (2 * half)
        along = (along_s[: len(half)] + along_z[: len(half)]) * inverse
        apart = along_s[: len(half)] - along_z[: len(half)]
        first = 2 * root_0 * along - (s_0[: len(half)] + z_0[: len(half)]) * inverse + 1
        lean = (root_0 * apart - (s_0[: len(half)] - z_0[: len(half)]) / 2) / first
        back, tilt = apart - 2 * lean * along, 2 * lean * inverse
        scale, norm = np.sqrt(size_s * size_z), 1 / np.sqrt(2 * first)
        new_scaled[0, begin:end], new_root[0, begin:end] = scale * half, norm * first
        new_size[begin:end] = size[begin:end] * size_s / size_z
        for k in range(1, width):
            r, s_k, z_k, x, new = root[k, begin:end], s[k], z[k], new_scaled[k, begin:end], new_root[k, begin:end]
            for i in range(len(r)):
                side = (1 - tilt[i]) * s_k[i] + (1 + tilt[i]) * z_k[i]
                x[i] = scale[i] * (back[i] * r[i] + side / 2)
                new[i] = norm[i] * (2 * along[i] * r[i] + (s_k[i] - z_k[i]) * inverse[i])
    return new_root, new_size, new_scaled


@njit(cache=True, fastmath=REORDERED, error_model="numpy")
def _dots(out: Floats, x: Floats, y: Floats, start: int, begin: int, end: int) -> None:
    """Σ x_k y_k over the entries from ``start`` on, of some rows, into the first places of ``out``."""
    out[:] = 0.0
    for k in range(start, len(x)):
        x_k, y_k = x[k, begin:end], y[k, begin:end]
        for i in range(len(x_k)):
            out[i] += x_k[i] * y_k[i]


@njit(cache=True, fastmath=REORDERED, error_model="numpy")
def _moved(out: Floats, x: Floats, dx: Floats, part: float, begin: int, end: int) -> Floats:
    """Some rows of x + part dx at unit size, into the first places of ``out``; their sizes."""
    square = np.zeros(end - begin)
    for k in range(len(x)):
        target, start, step = out[k], x[k, begin:end], dx[k, begin:end]
        for i in range(len(start)):
            target[i] = start[i] + part * step[i]
        if k > 0:
            for i in range(len(start)):
                square[i] += target[i] ** 2
    length, first = np.sqrt(square), out[0, : end - begin]
    size = np.sqrt((first - length) * (first + length))
    inverse = 1 / size
    for k in range(len(x)):
        target = out[k]
        for i in range(len(inverse)):
            target[i] *= inverse[i]
    return size


@njit(cache=True, fastmath=REORDERED, error_model="numpy")
def _answer(out: Floats, root: Floats, size: Floats, change: Floats, begin: int, end: int) -> None:
    """The stiffness of some rows times their changes (d, rows)."""
    square, dot = np.zeros(end - begin), np.zeros(end - begin)
    for k in range(len(change)):
        r, v = root[k + 1, begin:end], change[k, begin:end]
        for i in range(len(r)):
            square[i] += r[i] ** 2
            dot[i] += r[i] * v[i]
    first = 8 * root[0, begin:end] ** 2
    share, inverse = first * dot / (1 + first * square), 1 / size[begin:end]
    for k in range(len(change)):
        r, v, answer = root[k + 1, begin:end], change[k, begin:end], out[k, begin:end]
        for i in range(len(r)):
            answer[i] = (v[i] - share[i] * r[i]) * inverse[i]


@njit(cache=True, fastmath=REORDERED, error_model="numpy")
def _until_border(x: Floats, dx: Floats, begin: int, end: int, limit: float) -> float:
    """The largest part up to ``limit`` at which some rows of x + part dx are in the second-order cone.

    Most rows are there at the limit. For the others it is the first positive root of a part² + 2 b part + c, c > 0.
    """
    first, others = x[0, begin:end] + limit * dx[0, begin:end], np.zeros(end - begin)
    for k in range(1, len(x)):
        start, step = x[k, begin:end], dx[k, begin:end]
        for i in range(len(start)):
            others[i] += (start[i] + limit * step[i]) ** 2
    for i in range(len(first)):
        if not (first[i] >= 0 and first[i] * first[i] >= others[i]):
            limit = min(limit, _root(x, dx, begin + i))
    return limit


@njit(cache=True, fastmath=REORDERED, error_model="numpy")
def _root(x: Floats, dx: Floats, e: int) -> float:
    """The part at which row e of x + part dx leaves the second-order cone; ∞ if it never does."""
    square, step, dot = 0.0, 0.0, x[0, e] * dx[0, e]
    for k in range(1, len(x)):
        square += x[k, e] * x[k, e]
        step += dx[k, e] * dx[k, e]
        dot -= x[k, e] * dx[k, e]
    square, step = np.sqrt(square), np.sqrt(step)
    a = (dx[0, e] - step) * (dx[0, e] + step)
    c = max((x[0, e] - square) * (x[0, e] + square), 0.0)
    inside = dot * dot - a * c
    if inside >= 0 and (a < 0 or dot < 0):
        return float(c / (np.sqrt(inside) - dot))
    return np.inf
