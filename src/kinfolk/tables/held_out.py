"""The errors of held-out rows, method by method: what every comparison starts from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas

from kinfolk.checks import InputError
from kinfolk.tables.node_gains import NodeSums
from kinfolk.tables.party import Answer, Call, Parties, Party, TestSums
from kinfolk.tables.target import Target
from kinfolk.tables.uncertainty import TINY, Influence, SummedRatio
from kinfolk.typing import Floats, Ints

if TYPE_CHECKING:
    from kinfolk.tables.design import Design

WORST = -999.0  # per cent: what is next to no error cannot be compared with
LEVEL_ROWS = 2  # of all nodes, that count for the level of a node's loss
NO_TIMES = np.empty(0)


@dataclass(frozen=True, eq=False)
class TestErrors:
    """The errors of test rows in sums, which is all that a judgement needs, wherever the rows are.

    Parameters
    ----------
    target : Target
        Has the units in which errors are shown.
    found : TestSums
        The sums, of the nodes of all parties.
    timed : bool
        Whether later times are predicted.
    relative_gains : callable
        From a method, a baseline and the mean error of the baseline to relative gains of rows, added up by node.
    """

    target: Target
    found: TestSums
    timed: bool
    relative_gains: Callable[[str, str, float], NodeSums]

    @classmethod
    def of(cls, design: Design, parties: Parties, answer: Answer[TestSums]) -> TestErrors:
        """Put together what all parties answer."""
        names = answer.each[0].methods
        if any(each.methods != names for each in answer.each):
            raise InputError("Expected the same comparison at all sites, got others: install the same version.")
        sizes, sums, products = (
            design.by_node([getattr(each, name) for each in answer.each]) for name in ("sizes", "sums", "products")
        )
        nearer, by_time = (
            np.sum([getattr(each, name) for each in answer.each], axis=0) for name in ("nearer", "by_time")
        )

        def gains(method: str, baseline: str, level: float) -> NodeSums:
            found = parties.each(Call(Party.gains, method=method, baseline=baseline, level=level))
            total, squares = (design.by_node([getattr(each, name) for each in found]) for name in ("total", "squares"))
            return NodeSums(sizes, total, squares)

        return cls(design.target, TestSums(names, sizes, sums, products, nearer, by_time), design.timed, gains)

    def summed(self, node_count: int) -> TestErrors:
        """These."""
        return self

    @property
    def methods(self) -> list[str]:
        """What is compared."""
        return self.found.methods

    @property
    def sizes(self) -> Ints:
        """Test rows of every node."""
        return self.found.sizes

    @property
    def row_count(self) -> int:
        """Number of test rows."""
        return int(self.found.sizes.sum())

    @property
    def time_count(self) -> int | None:
        """Number of different times, if later times are predicted."""
        return self.found.by_time.shape[1] if self.timed else None

    def by_node(self) -> pandas.DataFrame:
        """The mean error of every node and method; NaN without test rows."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return pandas.DataFrame(dict(zip(self.methods, self.found.sums / self.found.sizes, strict=True)))

    def mean(self, method: str) -> float:
        """The mean over nodes of their mean errors."""
        tested = self.sizes > 0
        return float((self.found.sums[self._number(method)][tested] / self.sizes[tested]).mean())

    def nearer(self, method: str, reference: str) -> float:
        """Per cent of the rows on which a method errs less than another."""
        return 100 * float(self.found.nearer[self._number(method), self._number(reference)]) / self.row_count

    def _number(self, method: str) -> int:
        return self.methods.index(method)

    def ratio(self, method: str, baseline: str) -> SummedRatio:
        """The logarithm of the ratio of two mean errors; influences u = w (a/A − b/B) as quadratic forms of sums."""
        a, b, sums, products = self._number(method), self._number(baseline), self.found.sums, self.found.products
        means = np.array([self.mean(method), self.mean(baseline)])
        floor = TINY * means.max() or 1.0
        A, B = means + floor
        tested = self.sizes > 0
        weight = np.divide(1.0, self.sizes * tested.sum(), out=np.zeros(len(self.sizes)), where=tested)
        rest = floor * (1 / A - 1 / B)
        linear = sums[a] / A - sums[b] / B
        total = weight * (linear + rest * self.sizes)
        squares = products[a, a] / A**2 - 2 * products[a, b] / (A * B) + products[b, b] / B**2
        squares = weight**2 * (squares + 2 * rest * linear + rest**2 * self.sizes)
        by_time = None
        if self.timed:
            each = self.found.by_time
            by_time = (each[a] / A - each[b] / B + rest * each[-1]) / tested.sum()
        return SummedRatio(float(np.log(A / B)), Influence(self.sizes, total, squares, by_time))

    def gains(self, method: str, baseline: str) -> NodeSums:
        """For each test row the loss of the baseline minus that of a method, relative to the node's; by node."""
        return self.relative_gains(str(method), str(baseline), self.mean(baseline))

    def less(self, loss: Any, reference: Any) -> Any:
        """Per cent by which an error is below another, both as they are shown; at least ``WORST``."""
        with np.errstate(divide="ignore", invalid="ignore"):
            less = 100 * (1 - np.divide(self.target.shown(loss), self.target.shown(reference)))
        return np.where((loss == 0) & (reference == 0), 0.0, np.maximum(less, WORST))


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
        return float(self.by_node(0)[method].mean())

    def sums(self, node_count: int, times: Floats = NO_TIMES) -> TestSums:
        """Added up by node, and by time where there are times."""
        names, losses = list(self.rows), np.stack(list(self.rows.values()))
        products = np.zeros((len(losses), len(losses), node_count))
        for a, first in enumerate(losses):
            for b, second in enumerate(losses[: a + 1]):
                products[a, b] = products[b, a] = np.bincount(self.owner, first * second, minlength=node_count)
        sizes = np.bincount(self.owner, minlength=node_count)
        sums = np.stack([np.bincount(self.owner, each, minlength=node_count).astype(np.float64) for each in losses])
        nearer = np.array([[int((a < b).sum()) for b in losses] for a in losses])
        return TestSums(names, sizes, sums, products, nearer, self._by_time(losses, sizes, times))

    def _by_time(self, losses: Floats, sizes: Ints, times: Floats) -> Floats:
        """Sums of errors at every time, each node counted once; the last series counts the rows."""
        if not len(times) or self.times is None:
            return np.zeros((len(losses) + 1, 0))
        when, series = np.searchsorted(times, self.times), np.concatenate([losses, np.ones((1, len(self.owner)))])
        return np.stack([np.bincount(when, each / sizes[self.owner], len(times)) for each in series])

    def summed(self, node_count: int) -> TestErrors:
        """In sums, as a judgement needs them."""
        count = max(node_count, 1 + int(self.owner.max()))
        found = self.sums(count, NO_TIMES if self.times is None else np.unique(self.times))

        def gains(method: str, baseline: str, level: float) -> NodeSums:
            return NodeSums.of(self.relative_gains(method, baseline, level), self.owner, count)

        return TestErrors(self.target, found, self.times is not None, gains)

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
