"""Trees with node and place as features: boosting of scikit-learn and LightGBM, and forests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)

from kinfolk.tables.rivals.rival import SEED, Rival, at_most, choose, needed, predictions
from kinfolk.tables.rows import Rows
from kinfolk.tables.target import Target
from kinfolk.typing import Floats

MOST_CATEGORIES = 254  # of scikit-learn's boosting; more nodes are ordinal numbers
LEAVES, ROUNDS, RATE = (4, 15, 31), (50, 100, 200, 400), 0.05  # what LightGBM is tuned over
GRID = [(leaves, rounds) for leaves in LEAVES for rounds in ROUNDS]
SMALLEST_LEAF = 5  # rows, of a forest
MOST_ROWS_OF_A_FOREST = 200_000
BOOSTERS: Mapping[str, Callable[[Target], Any]] = {
    "number": lambda target: HistGradientBoostingRegressor(),
    "classes": lambda target: HistGradientBoostingClassifier(),
    "count": lambda target: HistGradientBoostingRegressor(loss="poisson"),
    "quantile": lambda target: HistGradientBoostingRegressor(loss="quantile", quantile=target.level),
}
ANY_KIND = tuple(BOOSTERS)


def with_node_and_place(rows: Rows) -> Floats:
    """The features, the number of the node, and the place if there is one (rows, columns)."""
    place = [] if rows.place is None else [rows.place]
    return np.column_stack([rows.X, rows.owner, *place])


def boosting(training: Rows, asked: Rows, target: Target, node_count: int) -> Floats:
    """Predictions of scikit-learn's histogram boosting with default settings."""
    category = [training.X.shape[1]] if node_count <= MOST_CATEGORIES else None
    model = BOOSTERS[target.kind](target).set_params(categorical_features=category, random_state=SEED)
    if target.kind == "classes" and np.unique(training.y, return_counts=True)[1].min() < 2:
        model.set_params(early_stopping=False)  # it holds out rows of every class
    model.fit(with_node_and_place(training), training.y)
    return predictions(model, with_node_and_place(asked), target)


def forest(training: Rows, asked: Rows, target: Target, node_count: int) -> Floats:
    """Predictions of a random forest."""
    kind = RandomForestClassifier if target.kind == "classes" else RandomForestRegressor
    model = kind(min_samples_leaf=SMALLEST_LEAF, max_features=1 / 3, random_state=SEED)
    model.fit(with_node_and_place(training), training.y)
    return predictions(model, with_node_and_place(asked), target)


def lightgbm(training: Rows, asked: Rows, target: Target, node_count: int) -> Floats:
    """Predictions of LightGBM with default settings."""
    return next(_boosted(training, asked, target, [100]))


def lightgbm_tuned(training: Rows, asked: Rows, target: Target, node_count: int) -> Floats:
    """Predictions of LightGBM; leaves and rounds are chosen by cross-validation."""

    def along(known: Rows, rows: Rows) -> Iterator[Floats]:
        for leaves in LEAVES:
            yield from _boosted(known, rows, target, ROUNDS, num_leaves=leaves, learning_rate=RATE)

    leaves, rounds = choose(GRID, training, target, along)
    return next(_boosted(training, asked, target, [rounds], num_leaves=leaves, learning_rate=RATE))


def _boosted(training: Rows, asked: Rows, target: Target, rounds: Any, **settings: Any) -> Iterator[Floats]:
    """Predictions of LightGBM after some numbers of rounds, with the node as a category."""
    package = needed("lightgbm")
    data = package.Dataset(
        with_node_and_place(training), training.y, categorical_feature=[training.X.shape[1]], free_raw_data=True
    )
    booster = package.train(_objective(target) | {"verbose": -1, "seed": SEED} | settings, data, max(rounds))
    X = with_node_and_place(asked)
    for count in rounds:
        found = booster.predict(X, num_iteration=count)
        yield np.stack([1 - found, found], axis=1) if target.kind == "classes" and found.ndim == 1 else found


def _objective(target: Target) -> dict[str, Any]:
    """What LightGBM minimises."""
    several = {"objective": "multiclass", "num_class": len(target.classes)}
    return {
        "number": {"objective": "regression"},
        "classes": several if len(target.classes) > 2 else {"objective": "binary"},
        "count": {"objective": "poisson"},
        "quantile": {"objective": "quantile", "alpha": target.level},
    }[target.kind]


BOOSTING = Rival("boosting", "scikit-learn's boosting with node and place", boosting, ANY_KIND)
FOREST = Rival(
    "forest", "random forest with node and place", forest, ("number", "classes", "count"),
    (at_most(MOST_ROWS_OF_A_FOREST, "rows", lambda training: len(training.y)),),
)  # fmt: skip
LIGHTGBM = Rival("lightgbm", "LightGBM with node and place", lightgbm, ANY_KIND, package="lightgbm")
LIGHTGBM_TUNED = Rival(
    "lightgbm tuned", "LightGBM with node and place, leaves and rounds by cross-validation", lightgbm_tuned, ANY_KIND,
    package="lightgbm",
)  # fmt: skip
