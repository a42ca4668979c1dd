"""The party whose rows are here: a table in one place, or one site of a federation beside its rows."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from kinfolk.network import graphs
from kinfolk.progress import Bar
from kinfolk.report.facts import Role, on_globe
from kinfolk.similarity import DeviationDistance
from kinfolk.tables.batches import Batch, GraphBatch, MixedBatch, PulledBatch, too_steep
from kinfolk.tables.blend import blended
from kinfolk.tables.held_out import HeldOutErrors
from kinfolk.tables.intervals import Intervals
from kinfolk.tables.journal import Journal
from kinfolk.tables.members.linear_fit import LinearFit, suited_to_new_nodes
from kinfolk.tables.members.member import RowMember, TrainingSet, Value
from kinfolk.tables.members.scores import LinearScores, labels, loss_of, rounded
from kinfolk.tables.node_gains import NodeSums
from kinfolk.tables.out_of_fold import OutOfFold
from kinfolk.tables.party import (
    Derivatives,
    Deviations,
    Errors,
    Finish,
    Gains,
    Gram,
    GraphFits,
    Losses,
    MixedFits,
    Party,
    Reaction,
    Residuals,
    Scene,
    Spread,
    Step,
    System,
    TestSums,
    Turn,
    Widths,
)
from kinfolk.tables.racing import Race
from kinfolk.tables.rows import Rows
from kinfolk.tables.table_rows import TableRows
from kinfolk.typing import Floats, Ints

TOO_HIGH = 1e15  # for a sum of losses: more is told as so much
CONTROL = "control "  # begins the names of members on a random graph
NONE: Mapping[str, int] = {}


class Source(Protocol):
    """Where the models of a member come from."""

    @property
    def values(self) -> Sequence[Value]:
        """What was tried."""

    def predictions(self, part: int, values: Ints, asked: Rows) -> Iterator[Floats]:
        """What was learnt from a part predicts of other rows, for some values by number."""

    def fitted(self, part: int, value: int) -> Any:
        """What was learnt from a part with a value, by its number."""

    def moved(self, rows: Rows) -> Rows:
        """Rows where the member looks for them: in the control, nodes are at other places."""


@dataclass(frozen=True)
class ModelSource:
    """Linear models that the job has found (parts, values, scores, parameters), one for all nodes, or in a batch."""

    party: LocalParty
    values: Sequence[Value]
    models: Callable[[int, int], LinearScores]

    def predictions(self, part: int, values: Ints, asked: Rows) -> Iterator[Floats]:
        """Predict."""
        return (self.models(part, value).predict(asked.X, asked.owner) for value in values.tolist())

    def fitted(self, part: int, value: int) -> LinearFit:
        """The models; nodes that were never seen get a common one, where there is one and it suits."""
        scores = self.models(part, value)
        if scores.common is None or self.party.scene is None:
            return LinearFit(scores)
        return LinearFit(suited_to_new_nodes(scores, self.party.training_set(part, {})))

    def moved(self, rows: Rows) -> Rows:
        """Linear models do not look at places."""
        return rows


@dataclass(frozen=True)
class MemberSource:
    """A member that learns from the rows of the party."""

    party: LocalParty
    member: RowMember
    values: Sequence[Value]
    chosen: Mapping[str, int]
    scene: Scene | None

    def predictions(self, part: int, values: Ints, asked: Rows) -> Iterator[Floats]:
        """Learn, and predict; NaN where there is nothing to learn from."""
        training = self.party.training_set(part, self.chosen, self.scene)
        tried = [self.values[k] for k in values.tolist()]
        if len(training.rows.y):
            return self.member.predictions(training, tried, asked)
        shape = [len(training.target.classes)] if training.target.classes else []
        return (np.full((len(asked.y), *shape), np.nan) for _ in tried)

    def fitted(self, part: int, value: int) -> Any:
        """Learn; a party without rows has the pooled model."""
        if not len(self.party.rows.part_data[part].y):
            return self.party.fitted(Role.POOLED, part, self.party.pooled_value)
        return self.member.final(self.party.training_set(part, self.chosen, self.scene), self.values[value])

    def moved(self, rows: Rows) -> Rows:
        """In the control, nodes are at other places."""
        return self.party.moved(rows, self.scene)


class LocalParty(Party):
    """A party whose rows are in this process.

    Parameters
    ----------
    rows : TableRows
        Its rows.
    scene : Scene, optional
        The graphs and places that members see, where the party has all rows; None: nodes without edges.
    journal : Journal, optional
        Stores finished work, so that an interrupted job can resume.
    bar : Bar, optional
        Shows progress.
    """

    def __init__(
        self, rows: TableRows, scene: Scene | None = None, journal: Journal | None = None, bar: Bar | None = None
    ) -> None:
        self.rows = copy.copy(rows)  # features may be left out here, and stay there
        self.scene, self.journal = scene, journal or Journal()
        self.bar = bar or Bar("learning", 0, enabled=False)
        self.out_of_fold = OutOfFold(self.rows)
        self.batches: dict[str, Batch] = {}
        self.sources: dict[str, Source] = {}
        self.finals: dict[str, Any] = {}  # what every member has learnt from all training rows
        self.seconds: dict[str, float] = {}  # that its final fit took
        self.predicted: dict[str, Floats] = {}  # what is predicted of the test rows
        self.tested: HeldOutErrors | None = None
        self.intervals: Intervals | None = None
        self.weights: dict[str, float] = {}
        self.pooled_value = 0
        self._scores: dict[tuple[str, int, int], LinearScores | None] = {}

    # ------------------------------------------------------------------ sums

    def moments(self, without: Sequence[int] = ()) -> Gram:
        """Sums of products, and the curvature of every node's loss."""
        if len(without):
            self.rows.leave_out(without)
        sums = [self._measure.sums(data) for data in self.rows.part_data]
        target, data = self.rows.target, self.rows.part_data[-1]
        trace = loss_of(target).bind(replace(data, y=labels(target, data.y)[0])).trace
        return Gram(np.stack([gram for gram, _ in sums]), np.stack([products for _, products in sums]), trace)

    @property
    def _measure(self) -> DeviationDistance:
        return DeviationDistance(len(self.rows.target.classes))

    def deviations(self, pooled: Floats) -> Deviations:
        """How the model of every node differs from pooled ones."""
        found = [self._measure.deviations(data, w) for data, w in zip(self.rows.part_data, pooled, strict=True)]
        return Deviations(np.stack(found))

    def derivatives(self, w: Floats, part: Ints, score: Ints, rounding: float) -> Derivatives:
        """Loss, gradient and Hessian of pooled models; kinks are rounded."""
        loss, width = loss_of(self.rows.target), w.shape[1]
        out = Derivatives(np.zeros(len(w)), np.zeros_like(w), np.zeros((len(w), width, width)))
        for number in np.unique(part):
            data = self.rows.part_data[number]
            X, y = np.hstack([data.X, np.ones((len(data.X), 1))]), labels(self.rows.target, data.y)
            for k in np.flatnonzero(part == number):
                scores = X @ w[k]
                with np.errstate(over="ignore", invalid="ignore"):
                    value, slope, curvature = rounded(loss, scores, y[score[k]], rounding)
                    total = float(value.sum())
                if not total < TOO_HIGH or too_steep(self.rows.target, total, scores):
                    out.loss[k] = TOO_HIGH  # a step that is too long: it is shortened, wherever it led
                    continue
                out.loss[k] = total
                out.gradient[k] = X.T @ slope
                out.hessian[k] = (X * curvature[:, None]).T @ X
        return out

    # ------------------------------------------------------------------ batches of fits

    def _start(self, fits: MixedFits | GraphFits) -> Floats | None:
        """The pooled models that fits start from (parts, scores, p); None: they start from zero."""
        if fits.start < 0:
            return None
        return np.stack([self.scores(Role.POOLED, part, fits.start).w[:, 0] for part in range(len(self.rows.parts))])

    def respond(self, batch: str, fits: GraphFits | None = None, turn: Turn | None = None) -> Reaction:
        """Begin a batch of fits by conjugate gradients, or go on with it."""
        if fits is not None:
            self.batches[batch] = PulledBatch(self.rows, fits, self._start(fits))
        made = self.batches[batch]
        assert isinstance(made, PulledBatch)
        return made.respond(turn)

    def eliminate(self, batch: str, fits: MixedFits | GraphFits | None = None, step: Step | None = None) -> System:
        """Begin a batch of fits, or take a step in it."""
        if fits is None:
            assert step is not None
            return self.batches[batch].advance(step)
        pooled = self._start(fits)
        made: Batch
        if isinstance(fits, MixedFits):
            made = MixedBatch(self.rows, fits, pooled)
        else:
            made = GraphBatch(self.rows, fits, pooled)
        self.batches[batch] = made
        return made.system(np.arange(len(made.part)))

    # ------------------------------------------------------------------ members

    def training_set(self, part: int, chosen: Mapping[str, int], scene: Scene | None = None) -> TrainingSet:
        """The rows of a part, as members see them; ``chosen``: the values of members that feed others."""
        rows, there = self.rows, scene or self.scene or self._apart
        times = rows.training_times
        found = TrainingSet(
            self.moved(rows.training.take(rows.parts[part]), scene), rows.part_data[part], there.graphs[part],
            there.wide, there.places, on_globe(rows.columns.coords), rows.target, rows.settings.seed,
            rows.encoder.get_feature_names_out(), trend=rows.trend,
            times=None if times is None else times[rows.parts[part]],
        )  # fmt: skip
        if Role.POOLED in chosen:
            ridge = float(self.sources[Role.POOLED].values[chosen[Role.POOLED]][0])
            found = replace(found, base=self.scores(Role.POOLED, part, chosen[Role.POOLED]), ridge=ridge)
        if "slopes" in chosen:
            found = replace(found, own=self.scores("slopes", part, chosen["slopes"]))
        if "intercepts" in chosen and times is not None:
            found = replace(found, shared=self._without_trend("intercepts", part, chosen["intercepts"]))
        return found

    @property
    def _apart(self) -> Scene:
        """No edges, and no places: what a site knows of its nodes by itself."""
        blank = graphs.edgeless(len(self.rows.nodes), self.rows.nodes)
        return Scene([blank] * len(self.rows.parts), None, None)

    def moved(self, rows: Rows, scene: Scene | None) -> Rows:
        """Rows where their nodes are in a scene."""
        before = None if self.scene is None else self.scene.places
        if rows.place is None or scene is None or scene.places is None or before is None:
            return rows
        return rows._replace(place=rows.place + (scene.places - before)[rows.owner])

    def scores(self, name: str, part: int, value: int) -> Any:
        """The linear models of a member; None if they are not linear."""
        key = name, part, value
        if key not in self._scores:
            self._scores[key] = self.fitted(name, part, value).scores
        return self._scores[key]

    def _without_trend(self, name: str, part: int, value: int) -> Any:
        """The linear models of a member that learns with features that grow with time at zero."""
        key = f"{name} without trend", part, value
        source = self.sources[name]
        if key not in self._scores:
            assert isinstance(source, MemberSource)
            training = self.training_set(part, source.chosen)
            X = training.rows.X.copy()
            X[:, list(training.trend)] = 0.0
            bare = replace(training, rows=training.rows._replace(X=X))
            self._scores[key] = source.member.final(bare, source.values[value]).scores
        return self._scores[key]

    def fitted(self, name: str, part: int, value: int) -> Any:
        """What a member has learnt from a part with a value."""
        return self.sources[name].fitted(part, value)

    def without_trend(self) -> LocalParty:
        """A party with the same rows, where features that grow with time are at zero."""
        rows = replace(self.rows)
        rows.leave_out(rows.trend)
        return LocalParty(rows, self.scene, self.journal, self.bar)

    def validate(
        self, name: str, values: Sequence[Value] | None = None, *, member: RowMember | None = None,
        models: Floats | None = None, batch: str = "", chosen: Mapping[str, int] = NONE, scene: Scene | None = None,
    ) -> Losses:  # fmt: skip
        """Predict every fold with what was learnt from the other rows."""
        source = self.source(name, values, member, models, batch, chosen, scene)
        values = source.values
        self.out_of_fold.begin(name, len(values))
        folds, kind = self.rows.folding.folds, self.rows.folding.kind
        losses, race = np.full((len(values), len(folds)), np.nan), Race(len(values))
        races = member is not None and member.races and self.scene is not None and kind != "times"
        self.bar.expect(len(values) * len(folds))
        for fold, (_, held) in enumerate(folds):
            before, runners = self.bar.count, race.runners
            found = self._predicted(name, source, fold, runners)
            self.bar.update(before + len(values), name)
            losses_of_rows = self.out_of_fold.add(name, runners, held, found)
            losses[runners, fold] = losses_of_rows.sum(axis=1)
            if races:  # earlier times need not be like later ones
                race.add(losses_of_rows)
        return Losses(losses, values)

    def source(
        self, name: str, values: Sequence[Value] | None, member: RowMember | None, models: Floats | None, batch: str,
        chosen: Mapping[str, int], scene: Scene | None,
    ) -> Source:  # fmt: skip
        """Remember where the models of a member come from."""
        target = self.rows.target
        if Role.POOLED in chosen:
            self.pooled_value = chosen[Role.POOLED]
            self.out_of_fold.fallback = self.out_of_fold.best(Role.POOLED, self.pooled_value)
        if member is not None:
            if values is None:
                values = member.values(self.training_set(self.rows.whole, chosen, scene))
            self.sources[name] = MemberSource(self, member, values, chosen, scene)
        elif models is not None:
            assert values is not None
            given = models
            self.sources[name] = ModelSource(
                self, values, lambda part, value: LinearScores(given[part, value][:, None, :], target)
            )
        else:
            assert values is not None
            made = self.batches[batch or name]
            self.sources[name] = ModelSource(self, values, made.scores)
        return self.sources[name]

    def _predicted(self, name: str, source: Source, fold: int, runners: Ints) -> Floats:
        """What a member predicts of a fold, value by value; members that learn here find it in the journal."""
        asked = source.moved(self.rows.training.take(self.rows.folding.folds[fold][1]))

        def predictions() -> Floats:
            found = []
            for each in source.predictions(fold, runners, asked):
                self.bar.advance(1, name)
                found.append(each.astype(np.float32))
            return np.stack(found)

        if not isinstance(source, MemberSource):
            return predictions()
        place = "" if source.scene is None else "control "
        trend = "no trend " if self.rows.trend_left_out else ""
        tried = [source.values[k] for k in runners.tolist()]
        found: Floats = self.journal.cached(f"{place}{trend}{source.member.key} {tried} {fold}", predictions)
        return found

    # ------------------------------------------------------------------ the ensemble

    def errors(self, names: Sequence[str], best: Ints, factors: Floats, typical: float, weights: Floats) -> Errors:
        """Errors of members on rows that they had not learnt from."""
        return self.out_of_fold.errors(names, best, factors, typical, weights)

    def residuals(self, names: Sequence[str], best: Ints, weights: Floats) -> Residuals:
        """Residuals of the ensemble on these rows."""
        return self.out_of_fold.residuals(names, best, weights)

    def spread(self, scales: Floats, level: Floats, unit: float, times: Floats) -> Spread:
        """The same residuals in units of scales."""
        return self.out_of_fold.spread(scales, level, unit, times)

    # ------------------------------------------------------------------ the test

    def final(self, name: str, value: int) -> Any:
        """What a member has learnt from all training rows; it is fitted once."""
        if name not in self.finals:
            began = time.perf_counter()
            self.finals[name] = self.fitted(name, self.rows.whole, value)
            self.seconds[name] = time.perf_counter() - began
        return self.finals[name]

    def test(self, finish: Finish, widths: Widths | None, times: Floats) -> TestSums:
        """Fit all members to all training rows, and predict the test rows."""
        self.weights = dict(finish.weights)
        self.intervals = None if widths is None else self.out_of_fold.intervals(widths)
        found: dict[str, Floats] = {}
        for name, value in finish.chosen.items():
            raw = self.final(name, value).predict(self.sources[name].moved(self.rows.test))
            found[name] = np.where(np.isnan(raw), found.get(Role.POOLED, raw), raw)
        shown = {name: each for name, each in found.items() if not name.startswith(CONTROL)}
        self.predicted = {Role.FINAL.value: _ensemble(found, finish.weights), **shown}
        if finish.control:
            self.predicted[Role.CONTROL.value] = _ensemble(found, finish.control)
        return self.compared(times)

    def compared(self, times: Floats) -> TestSums:
        """The errors of what was predicted of the test rows, as sums by node, and by time where there are times."""
        rows, count = self.rows, len(self.rows.nodes)
        losses = {name: rows.target.loss(each, rows.test.y) for name, each in self.predicted.items()}
        self.tested = HeldOutErrors(losses, rows.test.owner, rows.target, rows.test_times)
        return self.tested.sums(count, times)

    def gains(self, method: str, baseline: str, level: float) -> Gains:
        """Relative gains of test rows, by node."""
        assert self.tested is not None
        found = self.tested.relative_gains(method, baseline, level)
        sums = NodeSums.of(found, self.tested.owner, len(self.rows.nodes))
        return Gains(sums.total, sums.squares)


def _ensemble(predicted: Mapping[str, Floats], weights: Mapping[str, float]) -> Floats:
    return blended([predicted[name] for name in weights], list(weights.values()))
