"""Boosting on what one model for all leaves: trees that know the features, the node and the place of a row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from kinfolk.tables.members.member import Member, Needs, Sample, Value
from kinfolk.tables.members.scores import LARGEST, LinearScores
from kinfolk.tables.members.trees import Trees, node_codes, probabilities
from kinfolk.tables.rows import Rows
from kinfolk.tables.target import Target
from kinfolk.typing import Floats

MANY_ROWS = 20_000
FEW, MANY = ((4, 15), 0.05), ((31,), 0.1)  # leaves, and the rate at which they are learnt
ROUNDS = (2, 5, 10, 20, 30, 45, 60, 80, 100, 130, 160, 200, 250, 300)  # that are tried
TINY = 1e-6


@dataclass(frozen=True, eq=False)
class BoostedFit:
    """Trees on top of a base model; the way to join them depends on the kind of target."""

    trees: Trees
    base: LinearScores

    def predict(self, rows: Rows) -> Floats:
        """Predict rows."""
        return joined(self.base.target, self.base.predict(rows.X, rows.owner), self.trees.sums(rows))


class Boosted(Member):
    """Histogram boosting on the rest of one model for all; leaves and rounds are chosen."""

    name = "boosted"
    needs: Needs = "rows of all"
    parameters = ("leaves", "rounds", "trend")

    def values(self, sample: Sample) -> Sequence[Value]:
        """Leaves, rounds up to the most, and whether trees see what grows with time: they cannot go on with it."""
        leaves, _ = MANY if len(sample.rows.y) > MANY_ROWS else FEW
        trends = (0.0, 1.0) if sample.trend else (1.0,)
        return [(float(each), float(rounds), trend) for trend in trends for each in leaves for rounds in ROUNDS]

    def fits(self, sample: Sample, values: Sequence[Value]) -> Iterator[BoostedFit]:
        """One fit for each value."""
        assert sample.base is not None
        for leaves, rounds, trend in values:
            yield BoostedFit(_fitted(sample, int(leaves), int(rounds), trend > 0), sample.base)

    def predictions(self, sample: Sample, values: Sequence[Value], asked: Rows) -> Iterator[Floats]:
        """Predictions after some rounds, with one fit for each number of leaves."""
        assert sample.base is not None
        base = sample.base.predict(asked.X, asked.owner)
        for leaves, trend in dict.fromkeys((each, trend) for each, _, trend in values):
            rounds = sorted(int(many) for each, many, kept in values if (each, kept) == (leaves, trend))
            trees = _fitted(sample, int(leaves), max(rounds), trend > 0)
            yield from (joined(sample.target, base, sums) for sums in trees.staged(asked, rounds))


def _fitted(sample: Sample, leaves: int, rounds: int, trend: bool) -> Trees:
    """Trees, fitted to what the base model leaves."""
    assert sample.base is not None
    target, rows = sample.target, sample.rows
    codes, categories = node_codes(rows.owner, sample.node_count)
    place = [] if rows.place is None else [rows.place]
    X = rows.X if trend else np.where(np.isin(np.arange(rows.X.shape[1]), sample.trend), 0.0, rows.X)
    Z = np.column_stack([codes[rows.owner], X, *place])
    options: dict[str, Any] = {
        "max_leaf_nodes": leaves, "learning_rate": MANY[1] if leaves in MANY[0] else FEW[1], "max_iter": rounds,
        "early_stopping": False, "categorical_features": [0] if categories else None, "random_state": sample.seed,
    }  # fmt: skip
    base = sample.base.predict(rows.X, rows.owner)
    if len(target.classes) > 2:
        return Trees.of(HistGradientBoostingClassifier(**options).fit(*_with_every_class(Z, rows.y, target)), codes)
    expected = base[:, 1] if target.classes else base
    weight = None
    rest = rows.y - expected
    if target.kind == "count":  # e^(base + trees): an offset is a weight, and a target that is divided by it
        weight = np.maximum(expected, TINY)
        rest, options["loss"] = (rows.y if rows.y.any() else expected) / weight, "poisson"
    elif target.kind == "quantile":
        options |= {"loss": "quantile", "quantile": target.level}
    return Trees.of(HistGradientBoostingRegressor(**options).fit(Z, rest, sample_weight=weight), codes)


def _with_every_class(Z: Floats, y: Floats, target: Target) -> tuple[Floats, Floats, Floats | None]:
    """Rows, classes and weights; a class without rows gets one that weighs next to nothing, so that it has trees."""
    none = np.setdiff1d(np.arange(len(target.classes)), y)
    if not len(none):
        return Z, y, None
    weight = np.r_[np.ones(len(y)), np.full(len(none), TINY)]
    return np.vstack([Z, np.repeat(Z[:1], len(none), axis=0)]), np.r_[y, none], weight


def joined(target: Target, base: Floats, sums: Floats) -> Floats:
    """The base model's prediction plus the trees', for counts times; trees alone for more than two classes."""
    if len(target.classes) > 2:
        return probabilities(sums)
    if target.kind == "count":
        return np.maximum(base * np.exp(np.minimum(sums[:, 0], LARGEST)), TINY)
    if target.kind != "classes":
        return np.asarray(base + sums[:, 0])
    p = np.clip(base[:, 1] + sums[:, 0], 0.0, 1.0)
    return np.stack([1 - p, p], axis=1)
