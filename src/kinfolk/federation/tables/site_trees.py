"""Boosting at one site: trees of its own, on what linear models of all sites leave of its rows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from kinfolk.engine.wire import WireError
from kinfolk.federation.tables.site_slopes import SiteSlopes
from kinfolk.federation.tables.site_table import Answer, SiteTable
from kinfolk.federation.tables.unseen import Unseen
from kinfolk.tables.members.boosted import FEW, MANY, ROUNDS, BoostedAtSite, BoostedFit
from kinfolk.tables.members.member import Sample, Value
from kinfolk.tables.members.scores import LinearScores
from kinfolk.typing import Floats

MOST_PLANS = 256


@dataclass
class SiteTrees:
    """Trees that learn from the rows of a site alone; nothing of them leaves but sums of losses.

    Parameters
    ----------
    table : SiteTable
        Has the rows.
    unseen : Unseen
        Keeps the predictions.
    slopes : SiteSlopes
        Models of nodes that trees may stand on.
    """

    table: SiteTable
    unseen: Unseen
    slopes: SiteSlopes

    def validate(self, base: Floats, slopes: int, values: Floats) -> Answer:
        """Predict what was not seen; ``base``: one model for all, by part; ``slopes``: the best of them, or −1."""
        check_plans(values)
        self.base, self.best = base, slopes
        return self.unseen.learnt(BoostedAtSite(), [tuple(each) for each in values.tolist()], self._sample)

    def fitted(self, value: Value) -> BoostedFit:
        """Trees that have learnt from all training rows."""
        check_plans(np.array([value]))
        return next(iter(BoostedAtSite().fits(self._sample(len(self.table.folds)), [value])))

    def base_of(self, part: int) -> LinearScores:
        """Random slopes where these suit better, else one model for all."""
        return self._pooled(part) if self.best < 0 else self._own(part)

    def _pooled(self, part: int) -> LinearScores:
        return LinearScores(self.base[part][:, None, :], self.table.target)

    def _own(self, part: int) -> LinearScores:
        return LinearScores(self.slopes.models(part, self.best), self.table.target)

    def _sample(self, part: int) -> Sample:
        """The rows of a part, with what trees may stand on."""
        own = None if self.best < 0 else self._own(part)
        return replace(self.table.sample(part), base=self._pooled(part), own=own)


def check_plans(values: Floats) -> None:
    """Refuse trees that would keep a site busy for long; leaves and rounds are the first two of every plan."""
    leaves, rounds = values[:, :2].T
    if len(values) > MOST_PLANS or (leaves > max(*FEW[0], *MANY[0])).any() or (rounds > max(ROUNDS)).any():
        raise WireError(f"Expected at most {MOST_PLANS} plans for trees of usual sizes, got others.")
