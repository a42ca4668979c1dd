"""Support functions that an interior-point method follows: edges charged by a norm, and samples of kinked losses.

Each stands for terms  max_u ⟨u, v⟩ − ½ give u²  over u in a bounded set, one for every row of v. It keeps a dual
variable u strictly inside the set and a slack that mirrors v, and answers for one Newton step

    Δu = push + Ω Δv                                                                                          (Ω, push)

``aim`` sets the complementarity that the step should leave, ``follow`` completes the step once Δv is known.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from kinfolk import kernels
from kinfolk.typing import Floats

BISECTIONS = 60
NEWTON_STEPS = 8
NEAREST = 1e-12  # to the border, as a part of the radius, at the start


class Cone(ABC):
    """The terms of one kind, at an interior point."""

    u: Floats  # the dual variables, strictly inside
    du: Floats  # how the step moves them

    @property
    @abstractmethod
    def degree(self) -> int:
        """The number of complementary pairs."""

    @abstractmethod
    def gap(self) -> float:
        """The sum of their products; zero at a solution."""

    @abstractmethod
    def stiffness(self) -> Floats:
        """Ω: a number per entry, or a matrix per row."""

    @abstractmethod
    def aim(self, v: Floats, target: float, second_order: bool) -> Floats:
        """The push for products of ``target``; with the second-order term of the step that was followed last."""

    @abstractmethod
    def follow(self, change: Floats) -> None:
        """Complete the step for Δv = ``change``."""

    @abstractmethod
    def longest(self) -> float:
        """The part of the step at which the border is met; ∞ if never."""

    @abstractmethod
    def gap_after(self, part: float) -> float:
        """The gap after a part of the step."""

    @abstractmethod
    def move(self, part: float) -> None:
        """Take a part of the step."""


class Boxes(Cone):
    """low ≤ u ≤ high in every entry: ‖·‖₁ on edges; rows of kinked losses, or of Huber's with give > 0.

    v − give u = a − b with slacks a ≥ 0 of u ≤ high and b ≥ 0 of u ≥ low.
    """

    da: Floats
    db: Floats

    def __init__(self, v: Floats, low: Floats, high: Floats, give: Floats, mu: float) -> None:
        self.give = give
        middle, radius = (high + low) / 2, (high - low) / 2
        away = v - give * middle
        part = away * radius / (mu + np.hypot(mu, away * radius))
        self.u = middle + radius * part
        self.above, self.below = radius * np.maximum(1 - part, NEAREST), radius * np.maximum(1 + part, NEAREST)
        self.a, self.b = mu / self.above, mu / self.below

    @property
    def degree(self) -> int:
        """Two for every entry."""
        return int(2 * self.u.size)

    def gap(self) -> float:
        """Σ a (high − u) + b (u − low)."""
        return float((self.a * self.above).sum() + (self.b * self.below).sum())

    def stiffness(self) -> Floats:
        """1 / (give + a / (high − u) + b / (u − low))."""
        return np.asarray(1.0 / (self.give + self.a / self.above + self.b / self.below))

    def aim(self, v: Floats, target: float, second_order: bool) -> Floats:
        """The push towards products a (high − u) = b (u − low) = target."""
        self.to_a, self.to_b = target - self.a * self.above, target - self.b * self.below
        if second_order:
            self.to_a, self.to_b = self.to_a + self.da * self.du, self.to_b - self.db * self.du
        missing = v - self.give * self.u - self.a + self.b
        self.omega = self.stiffness()
        self.push = self.omega * (missing - self.to_a / self.above + self.to_b / self.below)
        return np.asarray(self.push)

    def follow(self, change: Floats) -> None:
        """Δu, then Δa and Δb from their products."""
        self.du = self.omega * change + self.push
        self.da = (self.to_a + self.a * self.du) / self.above
        self.db = (self.to_b - self.b * self.du) / self.below

    def longest(self) -> float:
        """All four stay positive."""
        pairs = ((self.a, self.da), (self.b, self.db), (self.above, -self.du), (self.below, self.du))
        return min(until_zero(*pair) for pair in pairs)

    def gap_after(self, part: float) -> float:
        """Of the moved variables."""
        upper = (self.a + part * self.da) * (self.above - part * self.du)
        return float((upper + (self.b + part * self.db) * (self.below + part * self.du)).sum())

    def move(self, part: float) -> None:
        """All move; the distance to a border is kept by itself, since u is too coarse to show how near it is."""
        self.u, self.a, self.b = self.u + part * self.du, self.a + part * self.da, self.b + part * self.db
        self.above, self.below = self.above - part * self.du, self.below + part * self.du


class Balls(Cone):
    """‖u‖₂ ≤ radius in every row: ‖·‖₂ on edges. Slack s = (t, v) and dual z = (radius, −u) in second-order cones.

    Steps by Nesterov and Todd's scaling W = √size (2 root rootᵀ − J) with W z = W⁻¹ s = scaled. All of it is carried
    along in scaled variables, where s and z are far from the border however near it they are (Vandenberghe: The CVXOPT
    linear and quadratic cone program solvers, 2010).
    """

    ds: Floats
    dz: Floats

    def __init__(self, v: Floats, radius: Floats, mu: float) -> None:
        half = mu / radius / 2
        t = half + np.sqrt(half**2 + _dot(v, v))
        self.v, self.u = v.copy(), (radius / t)[:, None] * v
        least = mu / (radius * t)  # z's minor is radius² least, s's is t² least, without cancellation
        self.size = t / radius
        point = np.vstack([t, v.T]) / (t * np.sqrt(least))  # s and Jz are parallel: the scaling point
        point[0] += 1.0
        self.root = point / np.sqrt(2 * point[0])  # (1 + d, rows), as all that is scaled
        self.scaled = np.zeros_like(point)
        self.scaled[0] = np.sqrt(mu)

    @property
    def degree(self) -> int:
        """One for every row."""
        return len(self.u)

    def gap(self) -> float:
        """Σ t radius − ⟨v, u⟩."""
        return float((self.scaled**2).sum())

    def stiffness(self) -> Floats:
        """The inverse of the block of W² that belongs to v."""
        return kernels.ball_stiffness(self.root, self.size)

    def aim(self, v: Floats, target: float, second_order: bool) -> Floats:
        """The push towards products s ∘ z = (target, 0)."""
        ds, dz = (self.ds, self.dz) if second_order else (self.scaled, self.scaled)
        self.missing = v - self.v
        here = self.root, self.size, self.scaled
        self.wanted, self.lacking, push = kernels.ball_aim(*here, self.missing, target, ds, dz, second_order)
        return np.ascontiguousarray(push.T)

    def follow(self, change: Floats) -> None:
        """Δu and the slack, in scaled variables too."""
        self.dv = change + self.missing
        found = kernels.ball_follow(self.root, self.size, self.scaled, self.wanted, self.lacking, change)
        du, self.ds, self.dz, self.border, self.slope, self.curvature = found
        self.du = np.ascontiguousarray(du.T)

    def longest(self) -> float:
        """Both stay inside their cones."""
        return self.border

    def gap_after(self, part: float) -> float:
        """Of the moved variables."""
        return self.gap() + part * self.slope + part**2 * self.curvature

    def move(self, part: float) -> None:
        """Slack and dual move; the scaling follows."""
        self.v, self.u = self.v + part * self.dv, self.u + part * self.du
        here = self.root, self.size, self.scaled
        self.root, self.size, self.scaled = kernels.ball_move(*here, self.ds, self.dz, part)


class Octahedra(Cone):
    """‖u‖₁ ≤ radius in every row: ‖·‖_∞ on edges. u = p − m with p, m ≥ 0 that sum to the radius.

    p belongs to the slack x = t − v, m to y = t + v.
    """

    dp: Floats
    dm: Floats
    dx: Floats
    dy: Floats

    def __init__(self, v: Floats, radius: Floats, mu: float) -> None:
        largest = np.abs(v).max(axis=1)
        low, high = largest + 0.5 * mu / radius, largest + 2 * v.shape[1] * mu / radius
        for _ in range(BISECTIONS):
            t = (low + high) / 2
            total = (mu / (t[:, None] - v) + mu / (t[:, None] + v)).sum(axis=1)
            low, high = np.where(total > radius, t, low), np.where(total > radius, high, t)
        self.t, self.x, self.y = high, high[:, None] - v, high[:, None] + v
        share = radius / (mu / self.x + mu / self.y).sum(axis=1)
        self.p, self.m = share[:, None] * mu / self.x, share[:, None] * mu / self.y

    @property
    def u(self) -> Floats:  # type: ignore[override]
        """p − m."""
        return np.asarray(self.p - self.m)

    @property
    def degree(self) -> int:
        """Two for every entry."""
        return int(2 * self.p.size)

    def gap(self) -> float:
        """Σ p (t − v) + m (t + v)."""
        return float((self.p * self.x).sum() + (self.m * self.y).sum())

    def _ratios(self) -> tuple[Floats, Floats]:
        up, down = self.p / self.x, self.m / self.y
        return up + down, up - down

    def stiffness(self) -> Floats:
        """A diagonal, less what t takes back."""
        both, apart = self._ratios()
        diagonal = both[:, :, None] * np.eye(both.shape[1])
        total = both.sum(axis=1)[:, None, None]
        return np.asarray(diagonal - apart[:, :, None] * apart[:, None, :] / total)

    def aim(self, v: Floats, target: float, second_order: bool) -> Floats:
        """The push towards products p x = m y = target."""
        to_p, to_m = target - self.p * self.x, target - self.m * self.y
        if second_order:
            to_p, to_m = to_p - self.dp * self.dx, to_m - self.dm * self.dy
        self.missing = self.t[:, None] - v - self.x, self.t[:, None] + v - self.y
        self.to_p = (to_p - self.p * self.missing[0]) / self.x
        self.to_m = (to_m - self.m * self.missing[1]) / self.y
        return self._answer(np.zeros_like(v))[0]

    def _answer(self, change: Floats) -> tuple[Floats, Floats]:
        """Δu and Δt for a change of v."""
        both, apart = self._ratios()
        dt = ((self.to_p + self.to_m).sum(axis=1) + _dot(apart, change)) / both.sum(axis=1)
        return self.to_p - self.to_m - apart * dt[:, None] + both * change, dt

    def follow(self, change: Floats) -> None:
        """Δt, then the slacks, then Δp and Δm."""
        self.dt = self._answer(change)[1]
        up, down = self.dt[:, None] - change, self.dt[:, None] + change
        self.dx, self.dy = up + self.missing[0], down + self.missing[1]
        self.dp, self.dm = self.to_p - self.p / self.x * up, self.to_m - self.m / self.y * down
        self.du = self.dp - self.dm

    def longest(self) -> float:
        """All four stay positive."""
        pairs = ((self.p, self.dp), (self.m, self.dm), (self.x, self.dx), (self.y, self.dy))
        return min(until_zero(*pair) for pair in pairs)

    def gap_after(self, part: float) -> float:
        """Of the moved variables."""
        upper = (self.p + part * self.dp) * (self.x + part * self.dx)
        return float((upper + (self.m + part * self.dm) * (self.y + part * self.dy)).sum())

    def move(self, part: float) -> None:
        """All move."""
        self.t, self.x, self.y = self.t + part * self.dt, self.x + part * self.dx, self.y + part * self.dy
        self.p, self.m = self.p + part * self.dp, self.m + part * self.dm


def central_difference(v: Floats, u: Floats, sigma: Floats, radius: Floats, half: Floats) -> Floats:
    """(rows, d) differences whose flows on the central path, with ``half`` = μ / (2 radius), are near u.

    Of all pairs of a difference and its flow there it is the one with the same difference + flow / σ: where flows lie
    inside their balls it is nearly them that stay, elsewhere nearly the differences.
    """
    point = v + u / sigma
    length, reach = np.sqrt(_dot(point, point))[:, None], radius / sigma
    x = np.maximum(length - reach, 0.0)
    for _ in range(NEWTON_STEPS):  # for x + reach x / t = length, from below, where they never go too far
        root = np.hypot(half, x)
        t = half + root
        x = x + (length - x - reach * x / t) / (1 + reach * half / (t * root))
    return np.asarray(point * np.divide(x, length, out=np.ones_like(x), where=length > 0))


def until_zero(x: Floats, dx: Floats) -> float:
    """The largest part at which x + part dx ≥ 0, entry by entry."""
    falls = dx < 0
    return float((-x[falls] / dx[falls]).min(initial=np.inf))


def _dot(x: Floats, y: Floats) -> Floats:
    return np.asarray(np.einsum("ij,ij->i", x, y))
