"""FederatedRun: what the coordinator knows when sites have learnt together. The models stay at the sites."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas

from kinfolk.checks import InputError
from kinfolk.federation.tables.asking import Sites, Told
from kinfolk.federation.tables.fitting import Validated
from kinfolk.network.graph import Graph
from kinfolk.report.facts import Judgement, Note, Role
from kinfolk.report.words import note_text
from kinfolk.tables.held_out import ComparedErrors
from kinfolk.tables.judging import judge
from kinfolk.tables.node_gains import NodeSums, node_gains
from kinfolk.tables.target import Target
from kinfolk.tables.uncertainty import TINY, Influence, SummedRatio
from kinfolk.typing import Floats, Ints

if TYPE_CHECKING:
    from kinfolk.federation.tables.preparing import Ready


@dataclass(frozen=True, eq=False)
class GatheredErrors(ComparedErrors):
    """The errors of test rows, as sums by node and by time; relative gains are asked for when they are needed."""

    target: Target
    names: list[str]  # of what is compared
    sizes: Ints  # (nodes,) test rows
    sums: Floats  # (methods, nodes)
    products: Floats  # (methods, methods, nodes)
    nearer_rows: Ints  # (methods, methods)
    by_time: Floats  # (methods + 1, times), each node counted once; the last counts the rows
    timed: bool
    ready: Ready
    sites: Sites

    @classmethod
    def of(cls, ready: Ready, sites: Sites, told: list[Told]) -> GatheredErrors:
        """Put together what all sites told."""
        names = told[0].about.get("methods")
        if not isinstance(names, list) or any(each.about.get("methods") != names for each in told):
            raise InputError("Expected the same comparison at all sites, got others: install the same version.")
        sums, products, sizes = (
            ready.by_node([each.arrays[name] for each in told]) for name in ("sums", "products", "sizes")
        )
        nearer, by_time = (sum(each.arrays[name] for each in told) for name in ("nearer", "by_time"))
        return cls(ready.target, names, sizes, sums, products, nearer, by_time, ready.timed, ready, sites)

    @property
    def methods(self) -> Collection[str]:
        """What is compared."""
        return self.names

    @property
    def row_count(self) -> int:
        """Number of test rows."""
        return int(self.sizes.sum())

    @property
    def time_count(self) -> int | None:
        """Number of different times, if later times are predicted."""
        return self.by_time.shape[1] if self.timed else None

    def by_node(self) -> pandas.DataFrame:
        """The mean error of every node and method; NaN without test rows."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return pandas.DataFrame(dict(zip(self.names, self.sums / self.sizes, strict=True)))

    def mean(self, method: str) -> float:
        """The mean over nodes of their mean errors."""
        tested = self.sizes > 0
        return float((self.sums[self._number(method)][tested] / self.sizes[tested]).mean())

    def nearer(self, method: str, reference: str) -> float:
        """Per cent of the rows on which a method errs less than another."""
        return 100 * float(self.nearer_rows[self._number(method), self._number(reference)]) / self.row_count

    def _number(self, method: str) -> int:
        return self.names.index(method)

    def ratio(self, method: str, baseline: str) -> SummedRatio:
        """The logarithm of the ratio of two mean errors; influences u = w (a/A − b/B) as quadratic forms of sums."""
        a, b = self._number(method), self._number(baseline)
        means = np.array([self.mean(method), self.mean(baseline)])
        floor = TINY * means.max() or 1.0
        A, B = means + floor
        tested = self.sizes > 0
        weight = np.divide(1.0, self.sizes * tested.sum(), out=np.zeros(len(self.sizes)), where=tested)
        rest = floor * (1 / A - 1 / B)
        linear = self.sums[a] / A - self.sums[b] / B
        total = weight * (linear + rest * self.sizes)
        squares = self.products[a, a] / A**2 - 2 * self.products[a, b] / (A * B) + self.products[b, b] / B**2
        squares = weight**2 * (squares + 2 * rest * linear + rest**2 * self.sizes)
        by_time = None
        if self.timed:
            by_time = (self.by_time[a] / A - self.by_time[b] / B + rest * self.by_time[-1]) / tested.sum()
        return SummedRatio(float(np.log(A / B)), Influence(self.sizes, total, squares, by_time))

    def gains(self, method: str, baseline: str, node_count: int = 0) -> NodeSums:
        """Relative gains of rows, added up by node at the sites."""
        about = {"method": str(method), "baseline": str(baseline)}
        told = self.sites.ask("gains", about, level=self.mean(baseline))
        total, squares = (self.ready.by_node([each.arrays[name] for each in told]) for name in ("total", "squares"))
        return NodeSums(self.sizes, total, squares)


@dataclass(eq=False)
class FederatedRun:
    """What came of learning together, as far as a coordinator may know it: numbers per node, no rows, no models.

    Attributes
    ----------
    ready : Ready
        Columns, encoder, target, nodes.
    graph : Graph
        Which nodes may be kin.
    validations : dict of str to Validated
        How members did on rows that they had not seen, and the values that were chosen.
    weights : dict of str to float
        The weight of every member of the blend.
    left_out : dict of str to str
        Members that take no part, and why.
    errors : GatheredErrors
        Errors of the test rows, as sums by node.
    trend_left_out : bool
        Whether features that grow with time are not used.
    lanes, lane_exchanges : int
        Fits that were made in lanes, and the messages to every site that these took.
    gone : dict of str to str
        Sites that did not answer, so that all began anew without them, and why.
    """

    ready: Ready
    graph: Graph
    validations: dict[str, Validated]
    weights: dict[str, float]
    left_out: dict[str, str]
    errors: GatheredErrors
    trend_left_out: bool
    lanes: int
    lane_exchanges: int
    gone: dict[str, str] = field(default_factory=dict)

    @property
    def questions(self) -> int:
        """Questions about the table of every site, so far."""
        return self.errors.sites.number

    @property
    def exchanges(self) -> int:
        """Messages to every site in all, with the one that introduced it."""
        return self.questions + self.lane_exchanges + 1

    @cached_property
    def leaderboard(self) -> pandas.DataFrame:
        """The blend, its members, baselines and control on the test rows: weight, error in cross-validation, error."""
        target, shown = self.ready.target, self.ready.target.shown
        kept = [name for name in self.errors.names if self.alone_is_possible or name != Role.ALONE]
        rows = {name: self._line(name) | {"error": float(shown(self.errors.mean(name)))} for name in kept}
        assert target is not None
        return pandas.DataFrame.from_dict(rows, orient="index").rename_axis("name")

    def _line(self, name: str) -> dict[str, Any]:
        validated = self.validations.get(name)
        error = np.nan if validated is None else float(self.ready.target.shown(validated.error))
        value = () if validated is None else validated.value
        return {"weight": self.weights.get(name), "value": value, "validated": error}

    @property
    def alone_is_possible(self) -> bool:
        """Whether some tested node has training rows."""
        return bool((self.ready.train_rows[self.errors.sizes > 0] > 0).any())

    @cached_property
    def judgement(self) -> Judgement:
        """Whether learning together helps."""
        baselines = [Role.ALONE, Role.POOLED] if self.alone_is_possible else [Role.POOLED]
        return judge(self.errors, self.graph, baselines, not self.alone_is_possible)

    @cached_property
    def nodes(self) -> pandas.DataFrame:
        """One row per node: its site's rows, errors in the units of the leaderboard, and gains, shrunk."""
        errors, shown = self.errors.by_node(), self.ready.target.shown
        gain, error = node_gains(self.errors, Role.FINAL, self.judgement.against, self.graph.node_count)
        columns = {f"error_{name}": shown(errors[name].to_numpy()) for name in self.errors.names}
        rows = {"train_rows": self.ready.train_rows, "test_rows": self.errors.sizes}
        index = pandas.Index(self.ready.names, name="node")
        return pandas.DataFrame({**rows, **columns, "gain": gain, "gain_error": error}, index=index)

    @property
    def facts(self) -> list[Note]:
        """What a user should know, as data."""
        found = [Note("member left out", {"member": name, "why": why}) for name, why in self.left_out.items()]
        found += [Note("site left out", {"site": name, "why": why}) for name, why in self.gone.items()]
        if self.trend_left_out:
            found.append(Note("no trend", {"column": self.ready.settings.time}))
        if Role.CONTROL not in self.errors.names:
            found.append(Note("no control"))
        return [*self.ready.notes, *found]

    @property
    def notes(self) -> list[str]:
        """The same in words."""
        return [note_text(note) for note in self.facts]

    def __repr__(self) -> str:
        size = f"{len(self.ready.numbers)} sites, {self.graph.node_count:,} nodes, {self.exchanges} exchanges"
        return f"FederatedRun({size}; learning together: {self.judgement.verdict})"
