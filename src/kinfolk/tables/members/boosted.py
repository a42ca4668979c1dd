"""Boosted trees that know the features, the node and the place of a row: on their own, or on residuals.

Trees on residuals start from the pooled model, or from the models of nodes where these suit better: they learn little
of nodes with a few rows themselves, since scikit-learn does not split by categories that have fewer than ten. Sites
whose rows may not be brought together have trees each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from kinfolk.local_models.binning import binned
from kinfolk.tables.members.member import Access, RowMember, TrainingSet, Value
from kinfolk.tables.members.scores import LARGEST, LinearScores
from kinfolk.tables.members.trees import Trees, node_codes, probabilities
from kinfolk.tables.rows import Rows
from kinfolk.tables.target import Target
from kinfolk.typing import Floats

if TYPE_CHECKING:
    from kinfolk.tables.design import Design

MANY_ROWS = 20_000
MOST_ROWS = 200_000  # for trees on their own
FEW, MANY = ((4, 15), 0.05), ((31,), 0.1)  # leaves, and the rate at which they are learnt
ROUNDS = (2, 5, 10, 20, 30, 45, 60, 80, 100, 130, 160, 200, 250, 300)  # that are tried
ZERO, POOLED, NODES = 0.0, 1.0, 2.0  # what trees start from: zero, the pooled model, or the models of nodes
TINY = 1e-6


@dataclass(frozen=True, eq=False)
class BoostedFit:
    """Trees on top of a base model; the way to join them depends on the kind of target."""

    trees: Trees
    base: LinearScores

    def predict(self, rows: Rows) -> Floats:
        """Predict rows."""
        return joined(self.base.target, self.base.predict(rows.X, rows.owner), self.trees.sums(rows))

    def predict_new_nodes(self, rows: Rows) -> Floats | None:
        """Predict rows of nodes that were never seen: trees know their features and places."""
        base = self.base.elsewhere
        if base is None:
            return None
        unknown = rows._replace(owner=np.full_like(rows.owner, -1))
        return joined(base.target, base.predict(rows.X, rows.owner), self.trees.sums(unknown))


class BoostedTrees(RowMember):
    """Histogram boosting; what it starts from, leaves and rounds are chosen.

    Parameters
    ----------
    name : str
        Of the member.
    residuals : bool
        Whether trees are fitted to what linear models leave, or to the target itself: such trees do not go on with what
        grows, and err otherwise.
    access : str
        What it sees: the rows of all, or those of a site, whose linear models were learnt together.
    """

    parameters = ("leaves", "rounds", "trend", "base")

    def __init__(self, name: str, *, residuals: bool = True, access: Access = "rows of all") -> None:
        self.name, self.residuals, self.access = name, residuals, access
        self.inputs = ("pooled", "slopes") if residuals else ()
        self.uses_places, self.across_parties = access == "rows of all", access != "rows of all"

    def unsupported_reason(self, design: Design) -> str | None:
        """Trees on their own would be one fit too many for large tables, and are what the others are for classes."""
        if self.residuals:
            return None
        return f"there are more than {MOST_ROWS:,} rows" if int(design.train_rows.sum()) > MOST_ROWS else None

    def grid(self, design: Design, inputs: Sequence[str]) -> Sequence[Value]:
        """What trees start from, whether they see what grows with time (they cannot go on with it), leaves and rounds.

        Trees of several classes start from zero whatever is tried. A site has as many leaves as the largest needs.
        """
        rows = max(int(design.train_rows[mine].sum()) for mine in design.numbers)
        leaves = leaves_for(rows)
        if not self.residuals:
            return plans((ZERO,), bool(design.trend), leaves[-1:])
        if "slopes" not in inputs or len(design.target.classes) > 2:
            return plans((POOLED,), bool(design.trend), leaves)
        only_nodes = rows > MANY_ROWS and len(design.numbers) == 1
        return plans((NODES,) if only_nodes else (POOLED, NODES), bool(design.trend), leaves)

    def values(self, training: TrainingSet) -> Sequence[Value]:
        """They follow from the design."""
        raise NotImplementedError

    def fits(self, training: TrainingSet, values: Sequence[Value]) -> Iterator[BoostedFit]:
        """One fit for each value."""
        for leaves, rounds, trend, base in values:
            scores = _base(training, base)
            yield BoostedFit(_fitted(training, scores, int(leaves), int(rounds), trend > 0), scores)

    def predictions(self, training: TrainingSet, values: Sequence[Value], asked: Rows) -> Iterator[Floats]:
        """Predictions after some rounds, with one fit for all of them."""
        for (leaves, trend, base), some in groupby(values, key=lambda value: (value[0], *value[2:])):
            rounds = [int(value[1]) for value in some]
            scores = _base(training, base)
            trees = _fitted(training, scores, int(leaves), max(rounds), trend > 0)
            before = scores.predict(asked.X, asked.owner)
            yield from (joined(training.target, before, sums) for sums in trees.staged(asked, rounds))


def plans(bases: Sequence[float], trend: bool, leaves: Sequence[int]) -> list[Value]:
    """Leaves, rounds, whether trees see what grows with time, and what they start from: all that is tried.

    >>> len(plans([POOLED], False, [4])), plans([POOLED], False, [4])[0]
    (14, (4.0, 2.0, 1.0, 1.0))
    """
    trends = (0.0, 1.0) if trend else (1.0,)
    found = product(bases, trends, leaves, ROUNDS)
    return [(float(each), float(rounds), trend, base) for base, trend, each, rounds in found]


def leaves_for(rows: int) -> tuple[int, ...]:
    """How many leaves trees may have that learn from so many rows."""
    return (MANY if rows > MANY_ROWS else FEW)[0]


def _base(training: TrainingSet, which: float) -> LinearScores:
    """What trees start from."""
    nothing = LinearScores(np.zeros((1, 1, training.rows.X.shape[1] + 1)), training.target)
    found = {ZERO: nothing, POOLED: training.base, NODES: training.own}[which]
    assert found is not None
    return found


def _fitted(training: TrainingSet, scores: LinearScores, leaves: int, rounds: int, trend: bool) -> Trees:
    """Trees, fitted to what the base leaves."""
    target, rows = training.target, training.rows
    codes, categories = node_codes(rows.owner, training.node_count)
    place = [] if rows.place is None else [rows.place]
    X = rows.X if trend else np.where(np.isin(np.arange(rows.X.shape[1]), training.trend), 0.0, rows.X)
    Z = np.column_stack([codes[rows.owner], X, *place])
    options: dict[str, Any] = {
        "max_leaf_nodes": leaves, "learning_rate": MANY[1] if leaves in MANY[0] else FEW[1], "max_iter": rounds,
        "early_stopping": False, "categorical_features": [0] if categories else None, "random_state": training.seed,
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
