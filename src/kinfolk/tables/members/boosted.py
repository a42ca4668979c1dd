"""Boosting on what one model for all leaves: trees that know the features, the node and the place of a row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from kinfolk.tables.members.member import Member, Needs, Sample, Value
from kinfolk.tables.members.scores import LinearScores
from kinfolk.tables.rows import Rows
from kinfolk.tables.target import Target
from kinfolk.typing import Floats

MANY_ROWS = 20_000
MOST_NODES = 254  # that can be categories
FEW, MANY = ((4, 15), 0.05), ((31,), 0.1)  # leaves, and the rate at which they are learnt
ROUNDS = (2, 5, 10, 20, 30, 45, 60, 80, 100, 130, 160, 200, 250, 300)  # that are tried
TINY = 1e-6


def with_node(rows: Rows, codes: Floats) -> Floats:
    """The code of a row's node, its features, and its place."""
    place = [] if rows.place is None else [rows.place]
    return np.column_stack([codes[rows.owner], rows.X, *place])


def node_codes(sample: Sample) -> Floats:
    """By which number trees know a node: those with rows are counted, as categories, and others have none.

    Too many nodes are no categories: each has its own number.
    """
    if sample.node_count > MOST_NODES:
        return np.arange(sample.node_count, dtype=np.float64)
    codes, known = np.full(sample.node_count, np.nan), np.unique(sample.rows.owner)
    codes[known] = np.arange(len(known))
    return codes


@dataclass(frozen=True, eq=False)
class BoostedFit:
    """Trees on top of a base model; the ways to join them depend on the kind of target."""

    trees: Any
    base: LinearScores
    codes: Floats  # (nodes,) of the nodes

    def predict(self, rows: Rows) -> Floats:
        """Predict rows."""
        Z = with_node(rows, self.codes)
        return joined(self.base.target, self.base.predict(rows.X, rows.owner), _raw(self.trees, Z))


class Boosted(Member):
    """Histogram boosting on the rest of one model for all; leaves and rounds are chosen."""

    name = "boosted"
    needs: ClassVar[Needs] = "rows of all"
    parameters = ("leaves", "rounds")

    def values(self, sample: Sample) -> Sequence[Value]:
        """Leaves, and rounds up to the most."""
        leaves, _ = MANY if len(sample.rows.y) > MANY_ROWS else FEW
        return [(float(each), float(rounds)) for each in leaves for rounds in ROUNDS]

    def fits(self, sample: Sample, values: Sequence[Value]) -> Iterator[BoostedFit]:
        """One fit for each value."""
        assert sample.base is not None
        for leaves, rounds in values:
            trees = _fitted(sample, int(leaves), int(rounds))
            yield BoostedFit(trees, sample.base, node_codes(sample))

    def predictions(self, sample: Sample, values: Sequence[Value], asked: Rows) -> Iterator[Floats]:
        """Predictions after some rounds, with one fit for each number of leaves."""
        assert sample.base is not None
        Z, base = with_node(asked, node_codes(sample)), sample.base.predict(asked.X, asked.owner)
        for leaves in dict.fromkeys(each for each, _ in values):
            rounds = [int(many) for each, many in values if each == leaves]
            trees = _fitted(sample, int(leaves), max(rounds))
            for done, raw in enumerate(_staged(trees, Z), start=1):
                if done in rounds:
                    yield joined(sample.target, base, raw)


def _fitted(sample: Sample, leaves: int, rounds: int) -> Any:
    """Trees, fitted to what the base model leaves, as a folder can hold them."""
    trees = _grown(sample, leaves, rounds)
    trees._preprocessor = None  # scikit-learn would put categories first and count them: codes are so already
    return trees


def _grown(sample: Sample, leaves: int, rounds: int) -> Any:
    assert sample.base is not None
    target, rows = sample.target, sample.rows
    Z = with_node(rows, node_codes(sample))
    rate = MANY[1] if leaves in MANY[0] else FEW[1]
    category = [0] if sample.node_count <= MOST_NODES else None
    options = {
        "max_leaf_nodes": leaves, "learning_rate": rate, "max_iter": rounds, "early_stopping": False,
        "categorical_features": category, "random_state": sample.seed,
    }  # fmt: skip
    base = sample.base.predict(rows.X, rows.owner)
    if len(target.classes) > 2:
        return HistGradientBoostingClassifier(**options).fit(Z, rows.y)
    if target.kind == "count":
        ratio, weight = rows.y / np.maximum(base, TINY), np.maximum(base, TINY)
        return HistGradientBoostingRegressor(loss="poisson", **options).fit(Z, ratio, sample_weight=weight)
    if target.kind == "quantile":
        return HistGradientBoostingRegressor(loss="quantile", quantile=target.level, **options).fit(Z, rows.y - base)
    expected = base[:, 1] if target.classes else base
    return HistGradientBoostingRegressor(**options).fit(Z, rows.y - expected)


def joined(target: Target, base: Floats, raw: Floats) -> Floats:
    """The base model's prediction plus the trees', for counts times; trees alone for more than two classes."""
    if len(target.classes) > 2:
        return raw
    if target.kind == "count":
        return np.maximum(base * raw, TINY)
    if target.kind != "classes":
        return base + raw
    p = np.clip(base[:, 1] + raw, 0.0, 1.0)
    return np.stack([1 - p, p], axis=1)


def _raw(trees: Any, Z: Floats) -> Floats:
    return np.asarray(trees.predict_proba(Z) if hasattr(trees, "predict_proba") else trees.predict(Z))


def _staged(trees: Any, Z: Floats) -> Iterator[Floats]:
    return iter(trees.staged_predict_proba(Z) if hasattr(trees, "predict_proba") else trees.staged_predict(Z))
