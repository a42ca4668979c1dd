"""Random slopes at one site: deviations of its nodes stay here, sums over them leave."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
        self.w0 = np.zeros((len(self.losses), len(strengths), self.table.target.outputs, width))
        every = np.ones(self.w0.shape[:3], dtype=bool)
        self.u = {cell: np.zeros((nodes, width)) for cell in _cells(every)}
        self.kept: dict[Cell, Eliminated] = {}
        return {}, {"height": self._heights(self.w0, self.u, every), **self._gathered(every)}

    def try_(self, step: Floats, sizes: Floats, left: Bools) -> Answer:
        """The objective of fits that go on after parts of a step."""
        return {}, {"height": np.stack([self._heights(*self._moved(step, size * left), left) for size in sizes])}

    def move(self, step: Floats, size: Floats) -> Answer:
        """Take a step, or part of it; fits that take none are finished."""
        self.w0, self.u = self._moved(step, size)
        return {}, self._gathered(size > 0)

    def end(self) -> Answer:
        """Predict what was not seen."""
        values = range(self.w0.shape[1])
        return self.unseen.validated("slopes", lambda fold: [self.models(fold, value) for value in values])

    def models(self, part: int, value: int) -> Floats:
        """The models that were learnt from a part (scores, nodes, width)."""
        scores = range(self.w0.shape[2])
        return np.stack([self.w0[part, value, score] + self.u[part, value, score] for score in scores])

    def _losses(self, cell: Cell) -> LinearLosses:
        return self.losses[cell[0]][cell[2]]

    def _gathered(self, left: Bools) -> dict[str, Any]:
        """What is left to solve for the common models of fits that go on, summed over nodes."""
        width = self.w0.shape[-1]
        common, pull = np.zeros((*self.w0.shape, width)), np.zeros(self.w0.shape)
        at_zero = not self.w0.any()
        first: dict[tuple[int, int], Gathered] = {}  # at zero all values are alike
        for cell in _cells(left):
            losses, here = self._losses(cell), (cell[0], cell[2])
            if at_zero and here not in first:
                first[here] = gathered(losses, np.zeros((losses.node_count, width)))
            sent = first[here] if at_zero else gathered(losses, self.w0[cell] + self.u[cell])
            (common[cell], pull[cell]), self.kept[cell] = eliminated(sent, self.strengths[cell[1]], self.u[cell])
        return {"common": common, "pull": pull}

    def _heights(self, w0: Floats, u: dict[Cell, Floats], left: Bools) -> Floats:
        """The objective of fits that go on, but for what draws the common model; zero for others."""
        out = np.zeros(w0.shape[:3])
        for cell in _cells(left):
            strengths = self.strengths[cell[1]]._replace(common=np.zeros(w0.shape[3]))
            out[cell] = height(self._losses(cell), strengths, w0[cell], u[cell])
        return out

    def _moved(self, step: Floats, size: Floats) -> tuple[Floats, dict[Cell, Floats]]:
        """All fits after a step of so many parts; where that is none, they stay."""
        moved = {cell: self.u[cell] + size[cell] * own_steps(self.kept[cell], step[cell]) for cell in _cells(size > 0)}
        return self.w0 + size[..., None] * step, {**self.u, **moved}


def _cells(where: Bools) -> list[Cell]:
    return [(part, value, score) for part, value, score in np.argwhere(where).tolist()]
