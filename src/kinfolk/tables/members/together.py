"""Members that are algorithms: one model for all, every node alone, and tailored models on a graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from kinfolk.engine.fit import Tolerance
from kinfolk.engine.run import Run
from kinfolk.engine.saved_run import SavedRun
from kinfolk.network.network import Network
from kinfolk.objective.linear_models import LinearModels
from kinfolk.report.facts import Role
from kinfolk.tables.families import Candidate, merged, side_by_side
from kinfolk.tables.members.member import Member, Needs, Sample, Value
from kinfolk.tables.members.scores import LinearScores, labels
from kinfolk.tables.rows import Rows
from kinfolk.tables.target import Target
from kinfolk.typing import Floats

ROUGH = Tolerance(1e-4, None)  # for candidates that are only compared
PROVEN = Tolerance(1e-4, 1e-4)  # for those that predict: with small λ a small residual alone promises little
NO_PLACES = "there are no places"
NEEDS: dict[Role, Needs] = {Role.POOLED: "rows of all", Role.ALONE: "own rows", Role.TAILORED: "neighbours"}


@dataclass(frozen=True, eq=False)
class RunFit:
    """The runs of all outputs: one, unless there are more than two classes and models are linear."""

    runs: tuple[Run | SavedRun, ...]
    target: Target
    pooled: bool = False  # whether there is one model for all nodes

    @cached_property
    def scores(self) -> LinearScores | None:
        """The linear models, if they are linear."""
        models = [run.models for run in self.runs]
        if not all(isinstance(each, LinearModels) for each in models):
            return None
        return LinearScores(np.stack([each.w for each in models]), self.target)

    def predict(self, rows: Rows) -> Floats:
        """Predict rows; NaN where a node has no model."""
        if self.scores is not None:
            return self.scores.predict(rows.X, rows.owner)
        node = np.zeros_like(rows.owner) if self.pooled else rows.owner
        return self.target.predicted(self.runs[0].models, rows.X, node)

    def elsewhere(self, rows: Rows) -> Floats | None:
        """Predict rows of nodes that were never seen: one model for all does, others leave it to nodes nearby."""
        return self.predict(rows) if self.pooled else None


class Together(Member):
    """An algorithm as a member: how its parameter becomes runs is the candidate's."""

    def __init__(self, candidate: Candidate, name: str | None = None, wide: bool = False) -> None:
        self.candidate, self.wide = candidate, wide
        self.name = name or candidate.role.value
        self.needs = NEEDS[candidate.role]
        self.parameters = (candidate.parameter,)
        self.races = candidate.role is not Role.TAILORED  # the whole path of λ is shown

    @property
    def key(self) -> str:
        """Name and method."""
        return f"{self.name} {self.candidate.method}"

    def missing(self, sample: Sample) -> str | None:
        """The wide graph needs places, and a method that uses graphs."""
        return NO_PLACES if self.wide and (sample.wide is None or not self.candidate.uses_graph) else None

    def values(self, sample: Sample) -> Sequence[Value]:
        """Those of the candidate."""
        return [(value,) for value in self.candidate.values]

    def fits(self, sample: Sample, values: Sequence[Value], stop: Tolerance = ROUGH) -> Iterator[RunFit]:
        """The runs, value by value, each started from the one before."""
        plain = [value for (value,) in values]
        series = [self.candidate.runs(network, plain, stop) for network in self._networks(sample)]
        pooled = self.candidate.role is Role.POOLED
        return (RunFit(runs, sample.target, pooled) for runs in zip(*series, strict=True))

    def final(self, sample: Sample, value: Value) -> RunFit:
        """The runs at one value, to predict with."""
        return next(iter(self.fits(sample, [value], PROVEN)))

    def predictions(self, sample: Sample, values: Sequence[Value], asked: Rows) -> Iterator[Floats]:
        """Predictions of other rows; linear models of all outputs are learnt at once where that comes to the same."""
        if not (self.candidate.linear and self.candidate.separates):
            yield from super().predictions(sample, values, asked)
            return
        networks = self._networks(sample)
        shape = len(networks), networks[0].graph.node_count, -1
        for w in self.candidate.parameters(side_by_side(networks), [value for (value,) in values], ROUGH):
            yield LinearScores(w.reshape(shape), sample.target).predict(asked.X, asked.owner)

    def _networks(self, sample: Sample) -> list[Network]:
        """The network of every output, for one model for all with all rows at one node."""
        networks = outputs(sample, self.wide, self.candidate.linear)
        return [merged(each) for each in networks] if self.candidate.role is Role.POOLED else networks


def outputs(sample: Sample, wide: bool, linear: bool) -> list[Network]:
    """The network of every output: the same nodes, with its labels."""
    network = sample.network
    if wide:
        assert sample.wide is not None
        network = network.with_graph(sample.wide)
    if not linear or len(sample.target.classes) <= 2:
        return [network]
    data = network.data
    return [
        Network(network.graph, replace(data, y=y), public=network.public, features=network.features)
        for y in labels(sample.target, data.y)
    ]
