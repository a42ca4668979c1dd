"""The errors of held-out rows, method by method: what every comparison starts from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas

from kinfolk.tables.target import Target
from kinfolk.typing import Floats, Ints

WORST = -999.0  # per cent: what is next to no error cannot be compared with


@dataclass(frozen=True, eq=False)
class HeldOutErrors:
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

    def less(self, loss: Any, reference: Any) -> Any:
        """Per cent by which an error is below another, both as they are shown; at least ``WORST``."""
        with np.errstate(divide="ignore", invalid="ignore"):
            less = 100 * (1 - np.divide(self.target.shown(loss), self.target.shown(reference)))
        return np.where((loss == 0) & (reference == 0), 0.0, np.maximum(less, WORST))

    def nearer(self, method: str, reference: str) -> float:
        """Per cent of the rows on which a method errs less than another."""
        return 100 * float((self.rows[method] < self.rows[reference]).mean())
