"""The test at one site: what members predict of its held-out rows stays here, sums of errors leave."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from kinfolk.federation.tables.site_table import Answer, SiteTable
from kinfolk.report.facts import Role
from kinfolk.tables.blend import blended
from kinfolk.tables.held_out import HeldOutErrors
from kinfolk.tables.members.member import Fitted
from kinfolk.typing import Floats


class SiteTest:
    """The test rows of a site, predicted by all that is compared.

    Parameters
    ----------
    table : SiteTable
        Has the rows.
    models : mapping of str to Fitted
        What was learnt from all training rows, by member.
    weights, control : mapping of str to float
        The weights of the blend, and of the blend on random graphs; none without such graphs.
    """

    def __init__(
        self, table: SiteTable, models: Mapping[str, Fitted], weights: Mapping[str, float], control: Mapping[str, float]
    ) -> None:
        raw = {name: fitted.predict(table.test) for name, fitted in models.items()}
        found = {name: np.where(np.isnan(each), raw[Role.POOLED], each) for name, each in raw.items()}
        shown = {name: each for name, each in found.items() if not name.startswith("control ")}
        self.table = table
        self.predicted = {Role.FINAL.value: _blend(found, weights), **shown}
        if control:
            self.predicted[Role.CONTROL.value] = _blend(found, control)
        losses = {name: table.target.loss(each, table.test.y) for name, each in self.predicted.items()}
        self.errors = HeldOutErrors(losses, table.test.owner, table.target)

    def sums(self, moments: Floats) -> Answer:
        """Errors of the test rows, as sums by node, and by time where there are ``moments``."""
        owner, count = self.table.test.owner, len(self.table.nodes)
        losses = np.stack(list(self.errors.rows.values()))
        products = np.zeros((len(losses), len(losses), count))
        for a, first in enumerate(losses):
            for b, second in enumerate(losses):
                products[a, b] = np.bincount(owner, first * second, minlength=count)
        return {"methods": list(self.errors.rows)}, {
            "sizes": np.bincount(owner, minlength=count),
            "sums": np.stack([np.bincount(owner, each, minlength=count) for each in losses]),
            "products": products,
            "nearer": np.array([[int((a < b).sum()) for b in losses] for a in losses]),
            "by_time": self._by_time(losses, moments),
        }

    def _by_time(self, losses: Floats, moments: Floats) -> Floats:
        """Sums of errors at every time, each node counted once; the last series counts the rows."""
        if not len(moments):
            return np.zeros((len(losses) + 1, 0))
        table, owner = self.table, self.table.test.owner
        when = np.searchsorted(moments, table.times[table.held_out & ~np.isnan(table.rows.y)])
        share = 1 / np.bincount(owner, minlength=len(table.nodes))[owner]
        series = np.concatenate([losses, np.ones((1, len(owner)))])
        return np.stack([np.bincount(when, share * each, len(moments)) for each in series])

    def gains(self, method: str, baseline: str, level: float) -> Answer:
        """Relative gains of the test rows, as sums by node; ``level``: the mean error of the baseline at all nodes."""
        gains, count = self.errors.relative_gains(method, baseline, level), len(self.table.nodes)
        owner = self.table.test.owner
        return {}, {
            "total": np.bincount(owner, gains, minlength=count),
            "squares": np.bincount(owner, gains**2, minlength=count),
        }


def _blend(found: Mapping[str, Any], weights: Mapping[str, float]) -> Floats:
    return blended([found[name] for name in weights], list(weights.values()))
