"""One job at one site: its rows, what members have learnt of them, and the test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from kinfolk.engine.protocol import Arrays
from kinfolk.engine.wire import WireError
from kinfolk.federation.tables.agreeing import MEMBERS
from kinfolk.federation.tables.kept import Kept, SiteBlend
from kinfolk.federation.tables.site_slopes import SiteSlopes
from kinfolk.federation.tables.site_table import Answer, SiteTable
from kinfolk.federation.tables.site_test import SiteTest
from kinfolk.federation.tables.site_tied import SiteTied
from kinfolk.federation.tables.site_trees import SiteTrees
from kinfolk.federation.tables.unseen import Unseen
from kinfolk.report.site import Outcome
from kinfolk.tables.members.boosted import SITE_BOOSTED, SITE_TIED
from kinfolk.tables.members.scores import LinearScores
from kinfolk.tables.members.slopes import LinearFit
from kinfolk.typing import Floats

CONTROL = "control "


class SiteJob:
    """What a site has worked out since it was asked to describe its table.

    Parameters
    ----------
    table : SiteTable
        Its rows.
    """

    def __init__(self, table: SiteTable) -> None:
        self.table, self.unseen = table, Unseen(table)
        self.slopes = SiteSlopes(table, self.unseen)
        self.trees = SiteTrees(table, self.unseen, self.slopes)
        self.tied = SiteTied(table, self.unseen, self.trees)
        self.test: SiteTest | None = None
        self.weights: dict[str, float] = {}
        self.outcome: Outcome | None = None  # what all sites were told

    def finish(
        self, graphs: Mapping[str, Sequence[Floats]], weights: Mapping[str, float], control: Mapping[str, float],
        arrays: Arrays,
    ) -> Answer:  # fmt: skip
        """Keep what predicts; errors of the test rows, as sums. ``graphs``: by name, the models of every score."""
        names = {name.removeprefix(CONTROL) for name in (*graphs, *weights, *control)}
        if not names <= set(MEMBERS):
            raise WireError(f"Expected members among {', '.join(MEMBERS)}, got others.")
        if len(arrays["boosted"]) > 1:
            raise WireError("Expected trees of one plan at most, got several.")
        table = self.table
        models: dict[str, Kept] = {"pooled": self._linear(arrays["pooled"][:, None, :])}
        if int(arrays["slopes"]) >= 0:
            models["slopes"] = self._linear(self.slopes.models(len(table.folds), int(arrays["slopes"])))
        models |= {name: self._linear(np.stack(w)) for name, w in graphs.items()}
        has_rows = len(table.training.y) > 0
        for value in arrays["boosted"].tolist():
            models[SITE_BOOSTED] = self.trees.fitted(tuple(value)) if has_rows else models["pooled"]
        if int(arrays["tied"]) >= 0:
            models[SITE_TIED] = self.tied.fitted(int(arrays["tied"])) or models["pooled"]
        models["alone"] = self._alone(float(arrays["alone"])) if has_rows else models["pooled"]
        self.models, self.weights = models, dict(weights)
        widths = (arrays[name] for name in ("shrinkage", "level", "inside", "outside"))
        self.intervals = self.unseen.intervals(*widths)
        self.test = SiteTest(table, models, weights, control)
        return self.test.sums(arrays["moments"])

    def _alone(self, ridge: float) -> LinearFit:
        whole = self.table.sample(len(self.table.folds))
        found = next(iter(self.unseen.alone_member.fits(whole, [(ridge,)])))
        assert found.scores is not None
        return LinearFit(found.scores)

    def _linear(self, w: Floats) -> LinearFit:
        return LinearFit(LinearScores(w, self.table.target))

    def told(self, outcome: Outcome) -> None:
        """Keep how it has ended at all sites, once it has ended here."""
        if self.test is None:
            raise WireError("Expected how it has ended after the test, got it before.")
        self.outcome = outcome

    @property
    def tested(self) -> SiteTest:
        """The test, when there is one."""
        if self.test is None:
            raise WireError("Expected questions about a test after it, got one before.")
        return self.test

    @property
    def blend(self) -> SiteBlend:
        """What predicts, when all is done."""
        table = self.table
        models = {name: self.models[name] for name in dict.fromkeys(["pooled", *self.weights])}
        return SiteBlend(
            table.columns, table.encoder, table.target, table.nodes, models, self.weights, self.intervals
        )  # fmt: skip
