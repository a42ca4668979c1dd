"""The pooled model: one linear model for all nodes, from sums over their rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinfolk.tables.members.member import Access, Member

if TYPE_CHECKING:
    from kinfolk.tables.cross_validation import CrossValidation, Validation


class PooledModel(Member):
    """One model for all; its ridge term is chosen. The job tunes it first, since others start from it."""

    name = "pooled"
    access: Access = "rows of all"
    parameters = ("ridge",)
    across_parties = True

    def tuned(self, cv: CrossValidation) -> Validation:
        """As the job has found it."""
        return cv.found[self.name]
