"""The edges of ‖·‖_p in the interior-point method of GTV minimisation: balls of the dual norm, by walls that move.

With 1/p + 1/q = 1, ‖u‖_q ≤ radius is a box for the entries of u, whose walls follow from shares of one:

    −h_k ≤ u_k ≤ h_k,    h_k = radius y_k^(1/q),    y ≥ 0,    Σ_k y_k = 1                                     (1)

Each wall has a slack and pushes back, a at the upper and b at the lower one, as in ``Boxes``. What walls push is what
a share is worth to its entry, and all entries pay the same price τ:

    v_k = a_k − b_k,    a_k (h_k − u_k) = b_k (h_k + u_k) = μ,    τ y_k = (a_k + b_k) h_k / q                   (2)

At μ = 0 that is u = radius · ∇‖v‖_p, with y_k = (|v_k| / ‖v‖_p)^p. So whatever p is, all pairs are products of two
numbers, and the only curved things are the walls and the last line, which Newton's method takes in logarithms.
"""

from __future__ import annotations

import numpy as np

from kinfolk.algorithms.gtvmin.cones import Cone, until_zero
from kinfolk.typing import Floats

STARTING_STEPS = 12
STARTING_REACH = 3.0  # of the logarithm of a share, in such a step
LEAST_SHARE = 1e-300
FURTHEST = 2.0  # by which the logarithm of a share may grow in a step


class PowerBalls(Cone):
    """‖u‖_q ≤ radius in every row: ‖·‖_p on edges, by (1) and (2). A step moves walls along straight lines."""

    da: Floats
    db: Floats
    d_above: Floats
    d_below: Floats

    def __init__(self, v: Floats, radius: Floats, p: float, mu: float) -> None:
        self.power = 1.0 - 1.0 / p  # 1 / q
        self.share = _first_shares(v, radius, self.power, mu)
        self.wall = radius[:, None] * self.share**self.power
        reach = v * self.wall
        root = np.hypot(mu, reach)
        self.u = self.wall * reach / (mu + root)
        near = self.wall * (mu + mu / (root + np.abs(reach)) * mu) / (mu + root)  # to the nearer wall
        far = 2 * self.wall - near
        self.above, self.below = np.where(reach > 0, near, far), np.where(reach > 0, far, near)
        self.a, self.b = mu / self.above, mu / self.below
        self.price = self.power * (self.wall * (self.a + self.b)).sum(axis=1)
        self.missing = np.zeros_like(v)  # by which slacks are smaller than the walls allow
        self._look()

    def _look(self) -> None:
        """What all steps from here share: how log y, u and τ answer to changes, and how far (1) and (2) are from true.

        For every entry, changes of log y and u solve a symmetric system of two equations; its inverse is kept.
        """
        up, down = self.a / self.above, self.b / self.below
        self.ratios, self.steep = (up, down), self.power * self.wall  # the slope of the wall in log y
        worth, paid = self.steep * (self.a + self.b), self.price[:, None] * self.share
        self.bargain = np.maximum(worth, paid) * np.log(worth / paid)
        self.astray = float(np.abs(worth - paid).sum() + (np.abs(self.missing) * (self.a + self.b)).sum())
        curved = (1 - self.power) * np.maximum(worth, paid)
        size = curved * (up + down) + 4 * self.steep**2 * up * down
        self.at_share, self.between = (up + down) / size, self.steep * (up - down) / size
        self.at_flow = (curved + self.steep**2 * (up + down)) / size
        self.demand = (self.share**2 * self.at_share).sum(axis=1)

    @property
    def degree(self) -> int:
        """Two for every entry."""
        return int(2 * self.u.size)

    def gap(self) -> float:
        """Σ a (h − u) + b (h + u), and what it would cost to make (1) and (2) true."""
        return float((self.a * self.above).sum() + (self.b * self.below).sum()) + self.astray

    def stiffness(self) -> Floats:
        """A diagonal, less what the price takes back."""
        moved = self.share * self.between
        diagonal = self.at_flow[:, :, None] * np.eye(moved.shape[1])
        return np.asarray(diagonal - moved[:, :, None] * moved[:, None, :] / self.demand[:, None, None])

    def aim(self, v: Floats, target: float, second_order: bool) -> Floats:
        """The push towards products of ``target``."""
        to_a, to_b = target - self.a * self.above, target - self.b * self.below
        if second_order:
            to_a, to_b = to_a - self.da * self.d_above, to_b - self.db * self.d_below
        self.products, self.apart = (to_a, to_b), v - self.a + self.b
        self.to_a, self.to_b = (to_a - self.a * self.missing) / self.above, (to_b - self.b * self.missing) / self.below
        self.to_flow = self.apart - self.to_a + self.to_b
        self.to_share = self.bargain + self.steep * (self.to_a + self.to_b)
        return self._answer(np.zeros_like(v))[0]

    def _answer(self, change: Floats) -> tuple[Floats, Floats, Floats]:
        """Δu, Δ log y and Δτ for a change of v."""
        to_flow = change + self.to_flow
        wanted = self.at_share * self.to_share + self.between * to_flow
        d_price = (self.share * wanted).sum(axis=1) / self.demand  # so that shares keep their sum
        to_share = self.to_share - self.share * d_price[:, None]
        du = self.between * to_share + self.at_flow * to_flow
        return du, self.at_share * to_share + self.between * to_flow, d_price

    def follow(self, change: Floats) -> None:
        """Walls and flows, then slacks and pushes: those of the nearer wall from the others, which rounding spares."""
        self.du, self.d_share, self.d_price = self._answer(change)
        (up, down), (to_a, to_b), apart = self.ratios, self.products, change + self.apart
        d_above, d_below = self.steep * self.d_share - self.du, self.steep * self.d_share + self.du
        da, db, upper = self.to_a - up * d_above, self.to_b - down * d_below, up > down
        self.da, self.db = np.where(upper, db + apart, da), np.where(upper, db, da - apart)
        self.d_above = np.where(upper, (to_a - self.above * self.da) / self.a, d_above + self.missing)
        self.d_below = np.where(upper, d_below + self.missing, (to_b - self.below * self.db) / self.b)

    def longest(self) -> float:
        """All stay positive, and no share grows too far."""
        pairs = [(self.a, self.da), (self.b, self.db), (self.above, self.d_above), (self.below, self.d_below)]
        pairs += [(self.price, self.d_price), (self.wall, self.steep * self.d_share)]
        growth = float(self.d_share.max(initial=0.0))
        return min(FURTHEST / growth if growth > 0 else np.inf, *(until_zero(*pair) for pair in pairs))

    def gap_after(self, part: float) -> float:
        """Of the moved variables, were walls not curved."""
        upper = (self.a + part * self.da) * (self.above + part * self.d_above)
        lower = (self.b + part * self.db) * (self.below + part * self.d_below)
        return float((upper + lower).sum()) + (1 - part) * self.astray

    def move(self, part: float) -> None:
        """All move; then shares are scaled to their sum, and slacks miss what that changes until the next step."""
        straight = part * self.power * self.d_share
        growth = np.log1p(straight) / self.power
        growth -= np.log1p((self.share * np.expm1(growth)).sum(axis=1))[:, None]
        self.missing = (1 - part) * self.missing + self.wall * (np.expm1(self.power * growth) - straight)
        self.share, self.wall = self.share * np.exp(growth), self.wall * np.exp(self.power * growth)
        self.u, self.price = self.u + part * self.du, self.price + part * self.d_price
        self.a, self.b = self.a + part * self.da, self.b + part * self.db
        self.above, self.below = self.above + part * self.d_above, self.below + part * self.d_below
        self._look()


def _first_shares(v: Floats, radius: Floats, power: float, mu: float) -> Floats:
    """The y of (2), where τ y = (μ + √(μ² + v² h²)) / q: by Newton's method in log y and log τ, scaled to their sum."""
    share = np.full_like(v, 1.0 / v.shape[1])
    for _ in range(STARTING_STEPS):
        reach = v * radius[:, None] * share**power
        root = np.hypot(mu, reach)
        rise = np.log((mu + root) / share)  # all equal at the solution
        answer = 1 / (1 - power * reach**2 / (root * (mu + root)))
        level = (share * answer * rise).sum(axis=1) / (share * answer).sum(axis=1)
        growth = np.clip(answer * (rise - level[:, None]), -STARTING_REACH, STARTING_REACH)
        share = np.maximum(share * np.exp(growth), LEAST_SHARE)
        share /= share.sum(axis=1, keepdims=True)
    return share
