"""The blend: one set of non-negative weights for all members, from their predictions of rows that they had not seen.

    min_w  mean_r v_r ℓ(Σ_k w_k p_rk, y_r) + κ m_0 Σ_k (w_k − π_k)² / (m π_k),    w ≥ 0, Σ w = 1

ℓ is the target's own loss, m_0 the smallest error of the m members, π has half for boosting and half for all others,
and κ = min(1, 3 / n) for n predicted rows (times, or nodes, where these are held out): few are little evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from scipy.optimize import minimize

from kinfolk.tables.splits import Folding
from kinfolk.tables.target import Target
from kinfolk.typing import Bools, Floats, Ints

DECAY = 0.6  # of the weight of rows, fold by fold back in time
CERTAIN = 3.0  # κ = this / n
TREES = "boosted"


def blended(predicted: Sequence[Floats], weights: Sequence[float]) -> Floats:
    """The weighted mean of predictions.

    >>> blended([np.array([1.0, 2.0]), np.array([3.0, 2.0])], [0.25, 0.75]).tolist()
    [2.5, 2.0]
    """
    return np.asarray(sum(weight * each for weight, each in zip(weights, predicted, strict=True)))


def blend_weights(
    predicted: Mapping[str, Floats], y: Floats, owner: Ints, target: Target, folding: Folding
) -> dict[str, float]:
    """The weight of every member.

    Parameters
    ----------
    predicted : mapping of str to array
        By member, its predictions of rows that it had not seen; NaN where a row was never predicted.
    y, owner : array
        The encoded targets of these rows, and their nodes.
    target : Target
        Has the loss.
    folding : Folding
        How rows were held out.

    Returns
    -------
    dict of str to float
        Weights ≥ 0 that add up to 1.
    """
    names = list(predicted)
    seen: Bools = np.all([np.isfinite(each.reshape(len(y), -1)).all(axis=1) for each in predicted.values()], axis=0)
    stacked = np.stack([each[seen] for each in predicted.values()])  # (members, rows, ...)
    importance = row_weights(folding)[seen]
    prior = prior_weights(names)
    pull = min(1.0, CERTAIN / max(evidence(folding, owner, seen), 1))

    cost = (_quadratic if target.kind in ("number", "classes") else _row_by_row)(stacked, y[seen], importance, target)
    best = min(cost(corner) for corner in np.eye(len(names))) or 1.0

    def objective(weights: Floats) -> float:
        return cost(weights) / best + pull * float(((weights - prior) ** 2 / (len(names) * prior)).sum())

    found = minimize(
        objective, prior, method="SLSQP", bounds=[(0.0, 1.0)] * len(names), tol=1e-9,
        constraints={"type": "eq", "fun": lambda weights: weights.sum() - 1.0}, options={"maxiter": 300},
    )  # fmt: skip
    clipped = np.where(found.x < 1e-4, 0.0, found.x)
    return dict(zip(names, (clipped / clipped.sum()).tolist(), strict=True))


def _row_by_row(stacked: Floats, y: Floats, importance: Floats, target: Target) -> Callable[[Floats], float]:
    """The mean loss of the blend."""
    return lambda weights: float(importance @ target.loss(np.tensordot(weights, stacked, axes=1), y))


def _quadratic(stacked: Floats, y: Floats, importance: Floats, target: Target) -> Callable[[Floats], float]:
    """The mean loss as w'Qw, from the errors of all members: the same number, without the rows."""
    truth = y if not target.classes else (y[:, None] == np.arange(len(target.classes))).astype(np.float64)
    errors = (stacked - truth).reshape(len(stacked), len(y), -1) * (1.0 if target.classes else target.spread)
    Q = np.einsum("arc,r,brc->ab", errors, importance, errors, optimize=True)
    return lambda weights: float(weights @ Q @ weights)


def prior_weights(names: Sequence[str]) -> Floats:
    """Half for boosting, half shared by all others; even without it.

    >>> prior_weights(["pooled", "tailored", "boosted"]).tolist()
    [0.25, 0.25, 0.5]
    """
    trees = np.array([name == TREES for name in names])
    if not trees.any() or trees.all():
        return np.full(len(names), 1 / len(names))
    return np.where(trees, 0.5, 0.5 / (~trees).sum())


def row_weights(folding: Folding) -> Floats:
    """v_r, with sum 1: the same for all rows, or smaller for earlier folds of time."""
    folds = folding.folds
    weight = np.zeros(len(folds[0][1]))
    for back, (_, held) in enumerate(reversed(folds)):
        weight[held] = DECAY**back if folding.kind == "times" else 1.0
    return np.asarray(weight / weight.sum())


def evidence(folding: Folding, owner: Ints, seen: Bools) -> int:
    """n: how many rows, times or nodes were predicted."""
    if folding.kind == "times" and folding.times is not None:
        return len(np.unique(folding.times[seen]))
    return len(np.unique(owner[seen])) if folding.kind == "nodes" else int(seen.sum())
