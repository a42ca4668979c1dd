"""Boosting on what linear models leave: trees that know the features, the node and the place of a row.

Trees stand on one model for all, or on the models of nodes where these suit better: they learn little of nodes with a
few rows themselves, since scikit-learn does not split by categories that have fewer than ten. A second member stands on
nothing. A third is for sites whose rows may not be brought together: each has trees of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from kinfolk.local_models.binning import binned
from kinfolk.tables.members.member import Member, Needs, Sample, Value
from kinfolk.tables.members.scores import LARGEST, LinearScores
from kinfolk.tables.members.trees import Trees, node_codes, probabilities
from kinfolk.tables.rows import Rows
from kinfolk.tables.target import Target
from kinfolk.typing import Floats

MANY_ROWS = 20_000
MOST_ROWS = 200_000  # for trees that stand on nothing
FEW, MANY = ((4, 15), 0.05), ((31,), 0.1)  # leaves, and the rate at which they are learnt
ROUNDS = (2, 5, 10, 20, 30, 45, 60, 80, 100, 130, 160, 200, 250, 300)  # that are tried
NOTHING, FOR_ALL, OWN = 0.0, 1.0, 2.0  # what trees stand on: zero, one model for all, or the models of nodes
SITE_BOOSTED, SITE_TIED = "site-boosted", "site-tied"
TINY = 1e-6


@dataclass(frozen=True, eq=False)
class BoostedFit:
    """Trees on top of a base model; the way to join them depends on the kind of target."""

    trees: Trees
    base: LinearScores

    def predict(self, rows: Rows) -> Floats:
        """Predict rows."""
        return joined(self.base.target, self.base.predict(rows.X, rows.owner), self.trees.sums(rows))

    def elsewhere(self, rows: Rows) -> Floats | None:
        """Predict rows of nodes that were never seen: trees know their features and places."""
        base = self.base.elsewhere
        if base is None:
            return None
        unknown = rows._replace(owner=np.full_like(rows.owner, -1))
        return joined(base.target, base.predict(rows.X, rows.owner), self.trees.sums(unknown))


class Boosted(Member):
    """Histogram boosting on the rest of linear models; these, leaves and rounds are chosen."""

    name = "boosted"
    needs: Needs = "rows of all"
    parameters = ("leaves", "rounds", "trend", "base")

    def values(self, sample: Sample) -> Sequence[Value]:
        """What trees stand on, whether they see what grows with time (they cannot go on with it), leaves and rounds."""
        return plans(self.bases(sample), bool(sample.trend), self.leaves(sample))

    def leaves(self, sample: Sample) -> tuple[int, ...]:
        """How many leaves trees may have."""
        return leaves_for(len(sample.rows.y))

    def bases(self, sample: Sample) -> tuple[float, ...]:
        """What trees may stand on; with many rows, only what suits better. Trees of several classes stand alone."""
        if sample.own is None or len(sample.target.classes) > 2:
            return (FOR_ALL,)
        return (OWN,) if len(sample.rows.y) > MANY_ROWS else (FOR_ALL, OWN)

    def fits(self, sample: Sample, values: Sequence[Value]) -> Iterator[BoostedFit]:
        """One fit for each value."""
        for leaves, rounds, trend, base in values:
            scores = _base(sample, base)
            yield BoostedFit(_fitted(sample, scores, int(leaves), int(rounds), trend > 0), scores)

    def predictions(self, sample: Sample, values: Sequence[Value], asked: Rows) -> Iterator[Floats]:
        """Predictions after some rounds, with one fit for all of them."""
        for (leaves, trend, base), some in groupby(values, key=lambda value: (value[0], *value[2:])):
            rounds = [int(value[1]) for value in some]
            scores = _base(sample, base)
            trees = _fitted(sample, scores, int(leaves), max(rounds), trend > 0)
            before = scores.predict(asked.X, asked.owner)
            yield from (joined(sample.target, before, sums) for sums in trees.staged(asked, rounds))


class BoostedFromNothing(Boosted):
    """Histogram boosting of the target itself: such trees do not go on with what grows, and err otherwise."""

    name = "trees"

    def missing(self, sample: Sample) -> str | None:
        """It would be one fit too many."""
        return f"there are more than {MOST_ROWS:,} rows" if len(sample.rows.y) > MOST_ROWS else None

    def leaves(self, sample: Sample) -> tuple[int, ...]:
        """The most: there is more to find."""
        return super().leaves(sample)[-1:]

    def bases(self, sample: Sample) -> tuple[float, ...]:
        """Nothing."""
        return (NOTHING,)


class BoostedAtSite(Boosted):
    """Trees of a site, from its own rows alone, on linear models that all sites have learnt together."""

    name = SITE_BOOSTED
    needs: Needs = "sums"


def plans(bases: Sequence[float], trend: bool, leaves: Sequence[int]) -> list[Value]:
    """Leaves, rounds, whether trees see what grows with time, and what they stand on: all that is tried.

    >>> len(plans([FOR_ALL], False, [4])), plans([FOR_ALL], False, [4])[0]
    (14, (4.0, 2.0, 1.0, 1.0))
    """
    trends = (0.0, 1.0) if trend else (1.0,)
    found = product(bases, trends, leaves, ROUNDS)
    return [(float(each), float(rounds), trend, base) for base, trend, each, rounds in found]


def leaves_for(rows: int) -> tuple[int, ...]:
    """How many leaves trees may have that learn from so many rows."""
    return (MANY if rows > MANY_ROWS else FEW)[0]


def _base(sample: Sample, which: float) -> LinearScores:
    """What trees stand on."""
    nothing = LinearScores(np.zeros((1, 1, sample.rows.X.shape[1] + 1)), sample.target)
    found = {NOTHING: nothing, FOR_ALL: sample.base, OWN: sample.own}[which]
    assert found is not None
    return found


def _fitted(sample: Sample, scores: LinearScores, leaves: int, rounds: int, trend: bool) -> Trees:
    """Trees, fitted to what the base leaves."""
    target, rows = sample.target, sample.rows
    codes, categories = node_codes(rows.owner, sample.node_count)
    place = [] if rows.place is None else [rows.place]
    X = rows.X if trend else np.where(np.isin(np.arange(rows.X.shape[1]), sample.trend), 0.0, rows.X)
    Z = np.column_stack([codes[rows.owner], X, *place])
    options: dict[str, Any] = {
        "max_leaf_nodes": leaves, "learning_rate": MANY[1] if leaves in MANY[0] else FEW[1], "max_iter": rounds,
        "early_stopping": False, "categorical_features": [0] if categories else None, "random_state": sample.seed,
    }  # fmt: skip
    base = scores.predict(rows.X, rows.owner)
    if len(target.classes) > 2:
        return Trees.of(HistGradientBoostingClassifier(**options).fit(*_with_every_class(Z, rows.y, target)), codes)
    expected = base[:, 1] if target.classes else base
    weight = None
    rest = rows.y - expected
    if target.kind == "count":  # e^(base + trees): an offset is a weight, and a target that is divided by it
        weight = np.maximum(expected, TINY)
        rest, options["loss"] = (rows.y if rows.y.any() else expected) / weight, "poisson"
        Z = binned(Z, weight)
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
