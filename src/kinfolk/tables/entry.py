"""An entry: one line of the comparison, that of a member, a baseline, the control or a rival."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from kinfolk.report.facts import Part
from kinfolk.tables.members.member import Fitted
from kinfolk.typing import Floats


@dataclass(frozen=True, eq=False)
class Entry:
    """One line of the comparison: which values of its parameters were tried, and what it has learnt with the best."""

    name: str
    part: Part
    method: str  # as ``Settings.method`` names it; "" where there is none
    parameters: tuple[str, ...]
    values: Floats  # (values, parameters)
    errors: Floats  # (values, folds) in cross-validation; NaN where a value was no longer tried
    shares: Floats  # (folds,) how much each fold counts
    best: int
    weight: float | None  # in the blend
    needs: str  # what sites must let others know
    sent: float  # bytes that a federation would send
    seconds: float
    fitted: Fitted | None  # None for what is only compared

    @property
    def value(self) -> tuple[float, ...]:
        """The values that were chosen."""
        return tuple(self.values[self.best].tolist()) if len(self.values) else ()

    @property
    def error(self) -> float:
        """In cross-validation, the mean by which values were chosen."""
        return float(self.errors[self.best] @ self.shares) if len(self.errors) else np.nan

    @classmethod
    def only_compared(cls, name: str, part: Part, method: str, sent: float, began: float) -> Entry:
        """A line without values that were chosen, and without models."""
        none, seconds = np.empty((0, 0)), time.perf_counter() - began
        return cls(name, part, method, (), none, none, np.empty(0), 0, None, "rows of all", sent, seconds, None)
