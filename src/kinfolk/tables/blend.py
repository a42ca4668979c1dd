"""The blend: one set of non-negative weights for all members, from their predictions of rows that they had not seen.

    min_w  mean_r v_r ℓ(Σ_k w_k p_rk, y_r) + κ m_0 Σ_k (w_k − π_k)² / (m π_k),    w ≥ 0, Σ w = 1

ℓ is the target's own loss, m_0 the smallest error of the m members. n rows were predicted (times, or nodes, where these
are held out; 20 for fewer times, if so many rows were): π has ½ n / (n + 60) for boosting and shares the rest out, and
κ = min(1, 3 / n). v_r is the same for all rows, or smaller for earlier times. Where numbers are predicted, it is
smaller for rows that members fail at: errors count as if they were at most eight times the mean error, since a few rows
would decide on all weights otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations

import numpy as np
from scipy.optimize import minimize

from kinfolk.tables.target import Target
from kinfolk.typing import Floats, Ints

DECAY = 0.6  # of the weight of rows, fold by fold back in time
CERTAIN = 3.0  # κ = this / n
LEAST_EVIDENCE = 20  # n, with so many rows: at a few times, weights would stay near π whatever was predicted
TRUSTED = 60  # n at which trees have half of their share: they go astray first where little was predicted
TREES = ("trees", "boosted", "site-boosted")
NEGLIGIBLE = 1e-4  # a weight
LARGE = 8.0  # times the mean size of errors: those of a row are not counted as larger
MOST_ENUMERATED = 10  # members whose sets are all tried
Cost = Callable[[Floats], tuple[float, Floats]]  # from weights to the loss of the blend, and its derivatives


def blended(predicted: Sequence[Floats], weights: Sequence[float]) -> Floats:
    """The weighted mean of predictions.

    >>> blended([np.array([1.0, 2.0]), np.array([3.0, 2.0])], [0.25, 0.75]).tolist()
    [2.5, 2.0]
    """
    return np.asarray(sum(weight * each for weight, each in zip(weights, predicted, strict=True)))


def weights_of_products(names: Sequence[str], Q: Floats, count: int) -> dict[str, float]:
    """The weights for a quadratic loss, from Q alone, which is a sum over rows; ``count``: n.

    >>> weights_of_products(["pooled", "tailored"], np.array([[2.0, 0.0], [0.0, 2.0]]), 1000)
    {'pooled': 0.5, 'tailored': 0.5}
    """
    return _named(names, _exactly(Q, *_prior_and_pull(names, count)))


def weights_of_costs(names: Sequence[str], cost: Cost, count: int) -> dict[str, float]:
    """The weights for another loss, from the cost of some weights and its slopes, which are sums over rows."""
    return _named(names, _nearly(cost, *_prior_and_pull(names, count)))


def _prior_and_pull(names: Sequence[str], count: int) -> tuple[Floats, float]:
    count = max(count, 1)
    return prior_weights(names, count), min(1.0, CERTAIN / count)


def _named(names: Sequence[str], found: Floats) -> dict[str, float]:
    clipped = np.where(found < NEGLIGIBLE, 0.0, found)
    return dict(zip(names, (clipped / clipped.sum()).tolist(), strict=True))


def _exactly(Q: Floats, prior: Floats, pull: float) -> Floats:
    """For quadratic losses: the best weights for every set of members that could have some, and the best of these."""
    pulled = pull / (len(prior) * prior)
    best = float(np.diag(Q).min()) or 1.0
    H, b = Q / best + np.diag(pulled), pulled * prior
    found = (_on_support(H, b, np.array(some)) for some in _supports(np.diag(H)))
    return min((each for each in found if each is not None), key=lambda w: float(w @ H @ w - 2 * b @ w))


def _supports(costs: Floats) -> Iterator[list[int]]:
    """Sets of members, of at most the best ``MOST_ENUMERATED``."""
    order = np.argsort(costs)[:MOST_ENUMERATED].tolist()
    return (sorted(some) for size in range(1, len(order) + 1) for some in combinations(order, size))


def _on_support(H: Floats, b: Floats, some: Ints) -> Floats | None:
    """min w'Hw − 2b'w with Σ w = 1 and no weight elsewhere; None if a weight is negative."""
    scale = 1 / np.sqrt(np.diag(H)[some])
    inverse = np.outer(scale, scale) * np.linalg.pinv(H[np.ix_(some, some)] * np.outer(scale, scale), hermitian=True)
    free, ones = inverse @ b[some], inverse.sum(axis=1)
    part = free + ones * (1 - free.sum()) / ones.sum()
    if not np.isfinite(part).all() or (part < -NEGLIGIBLE).any():
        return None
    w = np.zeros(len(b))
    w[some] = np.maximum(part, 0.0)
    return np.asarray(w / w.sum())


def _nearly(cost: Cost, prior: Floats, pull: float) -> Floats:
    """For other losses: a descent from the best member, and from the prior; never worse than either."""
    corners = np.eye(len(prior))
    costs = [cost(corner)[0] for corner in corners]
    best = min(costs) or 1.0
    pulled = pull / (len(prior) * prior)

    def drawn(weights: Floats) -> float:
        return float(pulled @ (weights - prior) ** 2)

    def objective(weights: Floats) -> tuple[float, Floats]:
        value, slopes = cost(weights)
        return value / best + drawn(weights), slopes / best + 2 * pulled * (weights - prior)

    first = corners[int(np.argmin([each / best + drawn(corner) for each, corner in zip(costs, corners, strict=True)]))]
    starts = [0.9 * first + 0.1 * prior, prior]
    bounds = [(0.0, 1.0)] * len(prior)
    one = {"type": "eq", "fun": lambda weights: weights.sum() - 1.0, "jac": np.ones_like}
    given = {"method": "SLSQP", "bounds": bounds, "constraints": one, "tol": 1e-9, "options": {"maxiter": 300}}
    ends = [minimize(objective, start, jac=True, **given).x for start in starts]
    sound = [np.maximum(end, 0.0) / np.maximum(end, 0.0).sum() for end in ends if np.isfinite(end).all()]
    return min([first, prior, *sound], key=lambda weights: objective(weights)[0])


def blend_cost(stacked: Floats, y: Floats, importance: Floats, target: Target, weights: Floats) -> tuple[float, Floats]:
    """The loss of a blend of counts or quantiles, and its derivatives in the weights, summed over rows.

    >>> blend_cost(np.array([[1.0], [3.0]]), np.array([2.0]), np.ones(1), Target(kind="count"), np.array([0.5, 0.5]))
    (0.0, array([0., 0.]))
    """
    predicted = blended(list(stacked), weights.tolist())
    slope = importance * target.slope(predicted, y)
    return float(importance @ target.loss(predicted, y)), stacked @ slope


def error_products(stacked: Floats, y: Floats, importance: Floats, target: Target) -> Floats:
    """Q with w'Qw the mean loss of the blend with weights w."""
    truth = y if not target.classes else (y[:, None] == np.arange(len(target.classes))).astype(np.float64)
    errors = (stacked - truth).reshape(len(stacked), len(y), -1) * (1.0 if target.classes else target.spread)
    return np.asarray(np.einsum("arc,r,brc->ab", errors, importance, errors, optimize=True))


def error_sizes(stacked: Floats, y: Floats) -> Floats:
    """How large errors are at every row: the median of the members' absolute errors, where numbers are predicted.

    >>> error_sizes(np.array([[1.0], [3.0], [8.0]]), np.array([2.0]))
    array([1.])
    """
    return np.asarray(np.median(np.abs(stacked - y), axis=0))


def tamed(importance: Floats, sizes: Floats, typical: float) -> Floats:
    """v_r such that squared errors of a row count as if they were at most eight times the typical one.

    >>> tamed(np.ones(3), np.array([1.0, 8.0, 16.0]), 1.0).tolist()
    [1.0, 1.0, 0.25]
    """
    factor = np.divide(LARGE * typical, sizes, out=np.ones_like(sizes), where=sizes > LARGE * typical)
    return np.asarray(importance * factor**2)


def prior_weights(names: Sequence[str], count: int) -> Floats:
    """Up to half for boosting, the more the more was predicted, and the rest for all others; even shares without it.

    >>> prior_weights(["pooled", "tailored", "boosted"], 60).tolist()
    [0.375, 0.375, 0.25]
    """
    trees = np.array([name in TREES for name in names])
    if not trees.any() or trees.all():
        return np.full(len(names), 1 / len(names))
    share = 0.5 * count / (count + TRUSTED)
    return np.asarray(np.where(trees, share / trees.sum(), (1 - share) / (~trees).sum()))


def fold_factors(kind: str, count: int) -> Floats:
    """How much a row of every fold counts.

    >>> fold_factors("times", 3).round(2).tolist(), fold_factors("rows", 2).tolist()
    ([0.36, 0.6, 1.0], [1.0, 1.0])
    """
    return np.asarray((DECAY if kind == "times" else 1.0) ** np.arange(count - 1.0, -1.0, -1.0), dtype=np.float64)


def evidence_of_times(times: int, rows: int) -> int:
    """n, where later times were predicted: their number, but not next to nothing where they have many rows.

    >>> evidence_of_times(4, 500), evidence_of_times(4, 12), evidence_of_times(200, 500)
    (20, 12, 200)
    """
    return max(times, min(rows, LEAST_EVIDENCE))
