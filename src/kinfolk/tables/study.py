"""The study: all training rows and the parts of cross-validation, as members see them; the control has others."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kinfolk.network.graph import Graph
from kinfolk.progress import Bar
from kinfolk.report.facts import on_globe
from kinfolk.tables.graph_source import control_graph, wide_graph
from kinfolk.tables.journal import Journal
from kinfolk.tables.members.member import Member, Sample, Value
from kinfolk.tables.members.scores import LinearScores
from kinfolk.tables.prepared import Prepared
from kinfolk.tables.rows import Rows
from kinfolk.tables.validation import Validation, validate
from kinfolk.typing import Floats, Ints


@dataclass(frozen=True, eq=False)
class Study:
    """All training rows and the parts of cross-validation, as members see them."""

    prepared: Prepared
    whole: Sample
    parts: Sequence[Sample]
    test: Rows
    journal: Journal
    bar: Bar
    fallback: Floats | None = None  # predictions of one model for all, where a node has no model
    key: str = ""

    @classmethod
    def of(cls, prepared: Prepared, journal: Journal, bar: Bar) -> Study:
        """The samples of a table."""
        parts = [_sample(prepared, rows) for rows, _ in prepared.folding.folds]
        key = "no trend " if prepared.trend_left_out else ""  # tells its work from that with it
        return cls(prepared, _sample(prepared), parts, prepared.test, journal, bar, key=key)

    def validate(self, member: Member, values: Sequence[Value] | None = None) -> Validation:
        """How a member does on rows that it has not seen, with all of its values or some."""
        return validate(
            self.prepared, member, self.whole, self.parts, self.fallback, self.journal, self.bar, self.key, values
        )

    def with_base(self, pooled: Validation) -> Study:
        """The same, with one model for all as the base of other members."""

        ridge = pooled.value[0]
        study = self._with(lambda sample: dataclasses.replace(sample, base=_scores(pooled, sample), ridge=ridge))
        return dataclasses.replace(study, fallback=pooled.predicted)

    def with_own(self, slopes: Validation) -> Study:
        """The same, with models of nodes that trees may stand on."""
        return self._with(lambda sample: dataclasses.replace(sample, own=_scores(slopes, sample)))

    def with_shared(self, intercepts: Validation) -> Study:
        """The same, with one model and an intercept per node that latest levels stand on."""
        return self._with(
            lambda sample: dataclasses.replace(sample, shared=_scores(intercepts, _without_trend(sample)))
        )

    def with_ridge(self, ridge: float) -> Study:
        """The same, with another ridge term for members that come later."""
        return self._with(lambda sample: dataclasses.replace(sample, ridge=ridge))

    def _with(self, change: Callable[[Sample], Sample]) -> Study:
        """The same with other samples."""
        return dataclasses.replace(self, whole=change(self.whole), parts=[change(each) for each in self.parts])

    def shuffled(self) -> Study | None:
        """The control: graphs with the same degrees and places, drawn at random; None if there is no other graph."""
        seed = self.prepared.settings.seed
        order = shuffled_order(self.whole.node_count, seed)
        drawn = [_shuffled(each, order, seed) for each in (self.whole, *self.parts)]
        if any(each is None for each in drawn):
            return None
        whole, *parts = (each for each in drawn if each is not None)
        test = self.test if self.whole.places is None else _moved(self.test, self.whole.places, order)
        return dataclasses.replace(self, whole=whole, parts=parts, test=test, key=f"control {self.key}")


def _sample(prepared: Prepared, rows: Any = slice(None)) -> Sample:
    seen = prepared.training.take(rows)
    globe = on_globe(prepared.columns.coords)
    wide = wide_graph(prepared.places, globe, prepared.names)
    network, settings = prepared.network(rows), prepared.settings
    times = prepared.training_times
    return Sample(
        seen, network, wide, prepared.places, globe, prepared.target, settings.seed, trend=prepared.trend,
        times=None if times is None else times[rows],
    )  # fmt: skip


def _without_trend(sample: Sample) -> Sample:
    """The same rows with features that grow with time at zero, for members that do not look at the network."""
    X = sample.rows.X.copy()
    X[:, list(sample.trend)] = 0.0
    return dataclasses.replace(sample, rows=sample.rows._replace(X=X))


def _scores(validation: Validation, sample: Sample) -> LinearScores | None:
    """The linear models that a member learns from a sample with its best value; None if they are not linear."""
    scores: LinearScores | None = validation.member.final(sample, validation.value).scores
    return scores


def _moved(rows: Rows, places: Floats, order: Ints) -> Rows:
    """Rows at the place of another node."""
    return rows if rows.place is None else rows._replace(place=rows.place + (places[order] - places)[rows.owner])


def _shuffled(sample: Sample, order: Ints, seed: int) -> Sample | None:
    """Other nodes at every place, and other neighbours."""
    graph = control_graph(sample.network.graph, seed)
    if graph is None:
        return None
    rows, places, wide = sample.rows, sample.places, sample.wide
    if places is not None:
        rows, places = _moved(rows, places, order), places[order]
    wide = None if wide is None else moved_graph(wide, order)
    return dataclasses.replace(sample, rows=rows, network=sample.network.with_graph(graph), places=places, wide=wide)


def shuffled_order(node_count: int, seed: int) -> Ints:
    """For every node, another one at whose place it is in the control."""
    return np.random.default_rng([seed, 5]).permutation(node_count)


def moved_graph(graph: Graph, order: Ints) -> Graph:
    """The graph of places with other nodes there."""
    there = np.argsort(order)  # the node that is now at each place
    return Graph(graph.node_count, np.stack([there[graph.head], there[graph.tail]], axis=1), graph.weights, graph.names)
