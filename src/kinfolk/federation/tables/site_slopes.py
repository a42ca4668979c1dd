"""Random slopes at one site: deviations of its nodes stay here, sums over them leave."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from kinfolk.federation.tables.site_table import Answer, SiteTable
from kinfolk.federation.tables.unseen import Unseen
from kinfolk.objective.local_losses import LinearLosses
from kinfolk.tables.members.slopes import (
    Eliminated,
    Gathered,
    Strengths,
    eliminated,
    gathered,
    height,
    output_losses,
    own_steps,
    strengths_of,
)
from kinfolk.typing import Bools, Floats

Cell = tuple[int, int, int]  # part, value and score: a fit
TOO_HIGH = 1e6  # times the objective at zero: nothing is solved there, and the objective is told as so much


class Place(NamedTuple):
    """Where all fits are."""

    w0: Floats  # (parts, values, scores, width) common models
    u: dict[Cell, Floats]  # (nodes, width) deviations
    kept: dict[Cell, Eliminated]  # from which deviations follow a step of the common model

    def models(self, cell: Cell) -> Floats:
        """The models of a fit (nodes, width)."""
        return np.asarray(self.w0[cell] + self.u[cell])

    def moved(self, step: Floats, size: Floats) -> Place:
        """After a step of so many parts; where that is none, fits stay."""
        u = {cell: self.u[cell] + size[cell] * own_steps(self.kept[cell], step[cell]) for cell in _cells(size > 0)}
        return Place(self.w0 + size[..., None] * step, {**self.u, **u}, dict(self.kept))

    def with_cells(self, which: Bools, other: Place) -> Place:
        """Some of the fits where they are in another place."""
        cells = _cells(which)
        u, kept = {cell: other.u[cell] for cell in cells}, {cell: other.kept[cell] for cell in cells}
        return Place(np.where(which[..., None], other.w0, self.w0), self.u | u, self.kept | kept)


@dataclass
class SiteSlopes:
    """The fits of random slopes, as far as they are: one for every part, value and score.

    Parameters
    ----------
    table : SiteTable
        Has the rows.
    unseen : Unseen
        Keeps the predictions.
    """

    table: SiteTable
    unseen: Unseen

    def begin(self, strengths: Floats, ridge: float) -> Answer:
        """Start all fits at zero."""
        self.losses = [output_losses(self.table.target, data) for data in self.table.part_data]
        width, nodes = self.losses[0][0].width, len(self.table.nodes)
        self.strengths: list[Strengths] = [strengths_of(tuple(each), ridge, width - 1) for each in strengths.tolist()]
        w0 = np.zeros((len(self.losses), len(strengths), self.table.target.outputs, width))
        every = np.ones(w0.shape[:3], dtype=bool)
        self.at = self.before = Place(w0, {cell: np.zeros((nodes, width)) for cell in _cells(every)}, {})
        self.most = np.full(every.shape, np.inf)
        self.most = TOO_HIGH * (1 + np.abs(self._heights(self.at, every)))
        return {}, self._arrived(every)

    def move(self, step: Floats, size: Floats, back: Bools) -> Answer:
        """Take a step, or part of it, and tell the objective there; ``back``: fits that take back the last one first.

        Fits that take none stay.
        """
        self.before = self.at.with_cells(back, self.before)
        self.at = self.before.moved(step, size)
        return {}, self._arrived(size > 0)

    def try_(self, step: Floats, sizes: Floats, left: Bools) -> Answer:
        """The objective of fits that go on after parts of the last step, in place of it."""
        return {}, {"height": np.stack([self._heights(self.before.moved(step, size * left), left) for size in sizes])}

    def end(self) -> Answer:
        """Predict what was not seen."""
        values = range(len(self.strengths))
        return self.unseen.validated("slopes", lambda fold: [self.models(fold, value) for value in values])

    def models(self, part: int, value: int) -> Floats:
        """The models that were learnt from a part (scores, nodes, width)."""
        return np.stack([self.at.models((part, value, score)) for score in range(self.at.w0.shape[2])])

    def _losses(self, cell: Cell) -> LinearLosses:
        return self.losses[cell[0]][cell[2]]

    def _arrived(self, left: Bools) -> dict[str, Any]:
        """The objective of fits that go on, and what is left to solve for their common models, summed over nodes."""
        w0, width = self.at.w0, self.at.w0.shape[-1]
        common, pull = np.zeros((*w0.shape, width)), np.zeros(w0.shape)
        at_zero, heights = not w0.any(), self._heights(self.at, left)
        first: dict[tuple[int, int], Gathered] = {}  # at zero all values are alike
        for cell in _cells(left & (heights < self.most)):  # others will be taken back
            losses, here = self._losses(cell), (cell[0], cell[2])
            if at_zero and here not in first:
                first[here] = gathered(losses, np.zeros((losses.node_count, width)))
            sent = first[here] if at_zero else gathered(losses, self.at.models(cell))
            strengths = self.strengths[cell[1]]
            (common[cell], pull[cell]), self.at.kept[cell] = eliminated(sent, strengths, self.at.u[cell])
        return {"height": heights, "common": common, "pull": pull}

    def _heights(self, at: Place, left: Bools) -> Floats:
        """The objective of fits that go on, but for what draws the common model; zero for others."""
        out = np.zeros(at.w0.shape[:3])
        for cell in _cells(left):
            strengths = self.strengths[cell[1]]._replace(common=np.zeros(at.w0.shape[3]))
            with np.errstate(over="ignore", invalid="ignore"):
                out[cell] = height(self._losses(cell), strengths, at.w0[cell], at.u[cell])
            if self._too_steep(cell, at.models(cell)):
                out[cell] = np.inf
        return np.where(out < self.most, out, self.most)

    def _too_steep(self, cell: Cell, w: Floats) -> bool:
        """Whether models of nodes are none that were fitted."""
        if not self.table.target.classes:
            return False
        losses = self._losses(cell)
        return self.table.too_steep(float(losses.value(w).sum()), losses.predict(w))


def _cells(where: Bools) -> list[Cell]:
    return [(part, value, score) for part, value, score in np.argwhere(where).tolist()]
