"""Boosting at each site, tied by FedRelax: sites compare what their trees predict on public points, in sums alone.

    min  mean over own rows of (rest − f)² + λ · mean over points of (f − mean of the other sites' f)²

f are trees on what the common models leave of a row; the nodes play no part in them, as no point belongs to a node.
Points are drawn from the agreed scales, the same at all sites: they are nobody's rows. A site learns the sum over all
sites from the coordinator, and takes its own part off.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor

from kinfolk.federation.tables.site_table import Answer, SiteTable
from kinfolk.federation.tables.site_trees import SiteTrees, check_plans
from kinfolk.federation.tables.unseen import Unseen
from kinfolk.local_models.binning import binned
from kinfolk.tables.encoding import Encoder
from kinfolk.tables.members.boosted import SITE_TIED, BoostedFit
from kinfolk.tables.members.scores import LinearScores
from kinfolk.tables.members.trees import Trees
from kinfolk.tables.rows import Rows
from kinfolk.typing import Bools, Floats, Ints

POINTS, STREAM, RATE = 100, 17, 0.05
Cell = tuple[int, int]  # part and value


@dataclass
class SiteTied:
    """Trees of a site that are drawn towards those of the other sites.

    Parameters
    ----------
    table : SiteTable
        Has the rows.
    unseen : Unseen
        Keeps the predictions of rows that were not learnt from.
    trees : SiteTrees
        Has what trees stand on.
    """

    table: SiteTable
    unseen: Unseen
    trees: SiteTrees
    fits: dict[Cell, BoostedFit] = field(default_factory=dict)

    def begin(self, base: Floats, slopes: int, values: Floats) -> Answer:
        """Fit alone; sums of what is predicted on public points. ``values``: leaves, rounds and λ."""
        check_plans(values)
        self.trees.base, self.trees.best = base, slopes
        self.values, self.points = values, public_points(self.table.encoder, self.table.settings.seed)
        self.fits = {}
        self.own = np.zeros((len(base), len(values), POINTS))
        self.speaks = np.array([len(data.y) > 0 for data in self.table.part_data], dtype=np.int64)
        return self._learnt(np.zeros_like(self.own), np.zeros(len(base), dtype=bool))

    def step(self, total: Floats, speaking: Ints) -> Answer:
        """Learn from own rows and from what the others predict; ``total`` and ``speaking``: sums over sites."""
        others = speaking - self.speaks
        mean = (total - self.own) / np.maximum(others, 1)[:, None, None]
        return self._learnt(mean, others > 0)

    def end(self) -> Answer:
        """Predict what was not seen."""
        values = range(len(self.values))
        return self.unseen.predicted_by(SITE_TIED, lambda fold: [self.fits.get((fold, value)) for value in values])

    def fitted(self, value: int) -> BoostedFit | None:
        """The trees that have learnt from all training rows; None if nobody had any."""
        return self.fits.get((len(self.table.folds), value))

    def _learnt(self, labels: Floats, told: Bools) -> Answer:
        """Fit all parts that have rows, or labels of others (``told``), and predict the points."""
        nobody = Rows(self.points, np.full(POINTS, np.nan), np.zeros(POINTS, dtype=np.int64))
        for part in np.flatnonzero(told | (self.speaks > 0)).tolist():
            scores, rows = self.trees.base_of(part), self.table.training.take(self.table.parts[part])
            for value, (leaves, rounds, lam) in enumerate(self.values.tolist()):
                weight = lam * max(len(rows.y), 1) / POINTS if told[part] else 0.0
                trees = self._trees(rows, scores, int(leaves), int(rounds), labels[part, value], weight)
                self.fits[part, value] = BoostedFit(trees, scores)
                self.own[part, value] = trees.sums(nobody)[:, 0]
            self.speaks[part] = 1
        return {}, {"predicted": self.own, "speaking": self.speaks}

    def _trees(
        self, rows: Rows, scores: LinearScores, leaves: int, rounds: int, labels: Floats, weight: float
    ) -> Trees:
        """Trees for own rows, each of which counts 1, and for labelled points, each of which counts ``weight``."""
        base = scores.predict(rows.X, rows.owner)
        rest = rows.y - (base[:, 1] if self.table.target.classes else base)
        X, y, counts = rows.X, rest, np.ones(len(rest))
        if weight > 0:
            X, y = np.vstack([X, self.points]), np.r_[rest, labels]
            counts = np.r_[counts, np.full(POINTS, weight)]
        model = HistGradientBoostingRegressor(
            max_leaf_nodes=leaves, learning_rate=RATE, max_iter=rounds, early_stopping=False,
            random_state=self.table.settings.seed,
        )  # fmt: skip
        fitted = model.fit(np.column_stack([np.zeros(len(X)), binned(X, counts)]), y, sample_weight=counts)
        return Trees.of(fitted, np.zeros(len(self.table.nodes)))


def public_points(encoder: Encoder, seed: int) -> Floats:
    """Encoded rows that nobody has: numbers are normal with the agreed means and deviations, categories as frequent."""
    names = encoder.get_feature_names_out()
    rng = np.random.default_rng([seed, STREAM])
    points = rng.normal(size=(POINTS, len(names)))
    number = {name: k for k, name in enumerate(names)}
    for column in encoder.categories:
        at = [number[name] for name in column.outputs]
        drawn = rng.random(POINTS)[:, None]
        upper = np.cumsum(np.clip(encoder.centre[at], 0.0, 1.0))
        inside = (drawn < upper) & (drawn >= np.r_[0.0, upper[:-1]])
        points[:, at] = (inside - encoder.centre[at]) / encoder.scale[at]
    return points
