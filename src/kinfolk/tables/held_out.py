"""The errors of held-out rows, method by method: what every comparison starts from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas

from kinfolk.tables.node_gains import NodeSums
from kinfolk.tables.target import Target
from kinfolk.tables.uncertainty import Influence, SummedRatio, log_ratio
from kinfolk.typing import Floats, Ints

WORST = -999.0  # per cent: what is next to no error cannot be compared with
LEVEL_ROWS = 2  # of all nodes, that count for the level of a node's loss


class ComparedErrors(ABC):
    """The errors of test rows, as far as a judgement needs them: in sums, wherever the rows are."""

    target: Target  # has the units in which errors are shown

    @property
    @abstractmethod
    def methods(self) -> Collection[str]:
        """What is compared."""

    @property
    @abstractmethod
    def row_count(self) -> int:
        """Number of test rows."""

    @property
    @abstractmethod
    def time_count(self) -> int | None:
        """Number of different times, if later times are predicted."""

    @abstractmethod
    def mean(self, method: str) -> float:
        """The mean over nodes of their mean errors."""

    @abstractmethod
    def nearer(self, method: str, reference: str) -> float:
        """Per cent of the rows on which a method errs less than another."""

    @abstractmethod
    def ratio(self, method: str, baseline: str) -> SummedRatio:
        """The logarithm of the ratio of two mean errors, with the influences on it."""

    @abstractmethod
    def gains(self, method: str, baseline: str, node_count: int = 0) -> NodeSums:
        """For each test row the loss of the baseline minus that of a method, relative to the node's; by node."""

    def less(self, loss: Any, reference: Any) -> Any:
        """Per cent by which an error is below another, both as they are shown; at least ``WORST``."""
        with np.errstate(divide="ignore", invalid="ignore"):
            less = 100 * (1 - np.divide(self.target.shown(loss), self.target.shown(reference)))
        return np.where((loss == 0) & (reference == 0), 0.0, np.maximum(less, WORST))


@dataclass(frozen=True, eq=False)
class HeldOutErrors(ComparedErrors):
    """The errors of test rows, method by method, and whose they are."""

    rows: dict[str, Floats]  # method -> (rows,)
    owner: Ints  # (rows,)
    target: Target  # has the units in which errors are shown
    times: Floats | None = None  # (rows,) if later times are predicted

    def by_node(self, node_count: int) -> pandas.DataFrame:
        """The mean error of every node and method; NaN without test rows."""
        count = np.bincount(self.owner, minlength=node_count)
        with np.errstate(invalid="ignore"):
            return pandas.DataFrame(
                {name: np.bincount(self.owner, loss, minlength=node_count) / count for name, loss in self.rows.items()}
            )

    def mean(self, method: str) -> float:
        """The mean over nodes of their mean errors."""
        count = np.bincount(self.owner)
        total = np.bincount(self.owner, self.rows[method])
        return float((total[count > 0] / count[count > 0]).mean())

    def nearer(self, method: str, reference: str) -> float:
        """Per cent of the rows on which a method errs less than another."""
        return 100 * float((self.rows[method] < self.rows[reference]).mean())

    @property
    def methods(self) -> Collection[str]:
        """What is compared."""
        return self.rows

    @property
    def row_count(self) -> int:
        """Number of test rows."""
        return len(self.owner)

    @property
    def time_count(self) -> int | None:
        """Number of different times, if later times are predicted."""
        return None if self.times is None else len(np.unique(self.times))

    def ratio(self, method: str, baseline: str) -> SummedRatio:
        """The logarithm of the ratio of two mean errors, with the influences on it."""
        found = log_ratio(self.rows[method], self.rows[baseline], self.owner)
        return SummedRatio(found.value, Influence.of(found.influence, self.owner, self.times))

    def gains(self, method: str, baseline: str, node_count: int = 0) -> NodeSums:
        """Relative gains of rows, added up by node."""
        found = self.relative_gains(method, baseline, self.mean(baseline))
        return NodeSums.of(found, self.owner, node_count)

    def relative_gains(self, method: str, baseline: str, mean: float) -> Floats:
        """For each test row the loss of the baseline minus that of a method, in parts of the baseline's loss there.

        That loss is the mean of the node's *other* rows and of ``LEVEL_ROWS`` rows with the ``mean`` loss of all nodes:
        with few rows it would be noise.
        """
        base = self.rows[baseline]
        total, sizes = np.bincount(self.owner, base)[self.owner], np.bincount(self.owner)[self.owner]
        level = (total - base + LEVEL_ROWS * mean) / (sizes - 1 + LEVEL_ROWS)
        difference = base - self.rows[method]
        return np.divide(difference, level, out=np.zeros_like(difference), where=level > 0)
