"""Members that are algorithms: the pooled model, local models, and tailored models on a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from kinfolk.algorithms import GTVMin
from kinfolk.engine.fit import Tolerance, fit
from kinfolk.engine.run import Run
from kinfolk.engine.saved_run import SavedRun
from kinfolk.network.graph import Graph
from kinfolk.network.network import Network
from kinfolk.objective.linear_models import LinearModels
from kinfolk.objective.losses import Loss
from kinfolk.report.facts import Role
from kinfolk.tables.families import Candidate, merged, side_by_side
from kinfolk.tables.joint import JointFits, on_graph, validated
from kinfolk.tables.members.member import Access, RowMember, TrainingSet, Value
from kinfolk.tables.members.scores import LinearScores, labels
from kinfolk.tables.party import Call, Party, Scene
from kinfolk.tables.rows import Rows
from kinfolk.tables.target import Target
from kinfolk.typing import Floats

if TYPE_CHECKING:
    from kinfolk.tables.cross_validation import CrossValidation, Validation
    from kinfolk.tables.design import Design

FINE = 1e-6  # how exactly the answer is fitted
MOST_ROUNDS = 10_000
ROUGH = Tolerance(1e-4, None)  # for candidates that are only compared
PROVEN = Tolerance(1e-6, 1e-6)  # for those that predict: with small λ a small residual alone promises little
NO_PLACES = "there are no places"
ACCESS: dict[Role, Access] = {Role.POOLED: "rows of all", Role.ALONE: "own rows", Role.TAILORED: "neighbours"}


@dataclass(frozen=True, eq=False)
class FittedRuns:
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

    def predict_new_nodes(self, rows: Rows) -> Floats | None:
        """Predict rows of nodes that were never seen: one model for all does, others leave it to nodes nearby."""
        return self.predict(rows) if self.pooled else None


class GraphMember(RowMember):
    """An algorithm as a member: how its parameter becomes runs is the candidate's.

    Parameters
    ----------
    candidate : Candidate
        How a value becomes an algorithm.
    name : str, optional
        By default that of the candidate's role.
    wide : bool
        Whether it runs on the graph with more neighbours.
    exact : bool, optional
        Whether the final fit is as exact as can be, from the start, so that history and cost are those of one run; by
        default that of the tailored models is.
    start : callable, optional
        From a network, an algorithm and the number of an output to a run that the final fit starts from.
    """

    def __init__(
        self, candidate: Candidate, name: str | None = None, wide: bool = False, exact: bool | None = None,
        start: Callable[[Network, Any, int], Run | None] | None = None,
    ) -> None:  # fmt: skip
        self.candidate, self.wide, self.start = candidate, wide, start
        self.name = name or candidate.role.value
        self.exact = self.name == Role.TAILORED if exact is None else exact
        self.access = ACCESS[candidate.role]
        self.parameters = (candidate.parameter,)
        tailored = candidate.role is Role.TAILORED
        self.races = not tailored  # the whole path of λ is shown
        self.uses_graph = tailored and candidate.uses_graph
        self.inputs = () if candidate.role is Role.POOLED else ("pooled",)
        self.across_parties = candidate.smooth or candidate.role is Role.ALONE

    @property
    def key(self) -> str:
        """Name and method."""
        return f"{self.name} {self.candidate.method}"

    def unsupported_reason(self, design: Design) -> str | None:
        """The graph with more neighbours needs places, and a method that uses graphs."""
        return NO_PLACES if self.wide and (design.wide is None or not self.candidate.uses_graph) else None

    def grid(self, design: Design, inputs: Sequence[str]) -> Sequence[Value]:
        """Those of the candidate."""
        return [(value,) for value in self.candidate.values]

    def values(self, training: TrainingSet) -> Sequence[Value]:
        """Those of the candidate."""
        return [(value,) for value in self.candidate.values]

    def fits(self, training: TrainingSet, values: Sequence[Value], stop: Tolerance = ROUGH) -> Iterator[FittedRuns]:
        """The runs, value by value, each started from the one before."""
        plain = [value for (value,) in values]
        series = [self.candidate.runs(network, plain, stop) for network in self._networks(training)]
        pooled = self.candidate.role is Role.POOLED
        return (FittedRuns(runs, training.target, pooled) for runs in zip(*series, strict=True))

    def final(self, training: TrainingSet, value: Value) -> FittedRuns:
        """The runs at one value, to predict with."""
        candidate = self.candidate
        if not self.exact:
            return next(iter(self.fits(training, [value], PROVEN)))
        if not candidate.converges:
            return FittedRuns((self.path(training, value)[-1],), training.target)
        algorithm = candidate.algorithm(value[0])
        options: dict[str, Any] = {"rounds": MOST_ROUNDS, "stop": Tolerance(FINE), "progress": False}
        starts = self.start or (lambda network, algorithm, output: None)
        runs = [
            fit(network, algorithm, start=starts(network, algorithm, k), **options)
            for k, network in enumerate(self._networks(training))
        ]
        return FittedRuns(tuple(runs), training.target)

    def path(self, training: TrainingSet, value: Value | None = None) -> list[Run]:
        """The tailored models of the first output for all values, or up to one where runs start from those before."""
        lams = list(self.candidate.values)
        if value is not None:
            lams = lams[: lams.index(value[0]) + 1] if self.candidate.warm_start else [value[0]]
        return list(self.candidate.runs(self._networks(training)[0], lams, ROUGH))

    def predictions(self, training: TrainingSet, values: Sequence[Value], asked: Rows) -> Iterator[Floats]:
        """Predictions of other rows; linear models of all outputs are learnt at once where that comes to the same."""
        if not (self.candidate.linear and self.candidate.separates):
            yield from super().predictions(training, values, asked)
            return
        networks = self._networks(training)
        shape = len(networks), networks[0].graph.node_count, -1
        for w in self.candidate.parameters(side_by_side(networks), [value for (value,) in values], ROUGH):
            yield LinearScores(w.reshape(shape), training.target).predict(asked.X, asked.owner)

    def _networks(self, training: TrainingSet) -> list[Network]:
        """The network of every output, for the pooled model with all rows at one node."""
        networks = outputs(training, self.wide, self.candidate.linear)
        return [merged(each) for each in networks] if self.candidate.role is Role.POOLED else networks

    # ------------------------------------------------------------------ tuning

    def tuned(self, cv: CrossValidation) -> Validation:
        """One party fits its rows; several solve for the models at their borders."""
        if cv.parties.single is not None or not self.uses_graph:
            return cv.validate(self)
        return tuned_together(cv, [self])[0]

    def tuned_control(self, cv: CrossValidation, best: Validation) -> Validation:
        """Every second value, and the best."""
        again = GraphMember(self.candidate, self.name, self.wide, exact=False)
        return cv.validate(again, self.control_values(best), control=True)

    def control_values(self, best: Validation) -> list[Value]:
        """Every second value, and the best."""
        return sorted({*list(best.values)[::2], best.value}) if self.uses_graph else [best.value]

    def graphs(self, scene: Scene) -> Sequence[Graph]:
        """The graphs of all parts."""
        if not self.wide:
            return scene.graphs
        assert scene.wide is not None
        return [scene.wide] * len(scene.graphs)


def tuned_together(
    cv: CrossValidation, members: Sequence[GraphMember], best: Sequence[Validation] | None = None
) -> list[Validation]:
    """Members on graphs that several parties learn, all at the same time; ``best``: on a random graph instead."""
    control = best is not None
    scene = cv.scene if not control else cv.drawn
    assert scene is not None
    at, batches, grids = cv.found["pooled"].best, list[JointFits](), []
    for k, member in enumerate(members):
        values = member.grid(cv.design, ()) if best is None else member.control_values(best[k])
        name = f"control {member.name}" if control else member.name
        lams, algorithm = [lam for (lam,) in values], member.candidate.algorithm(values[0][0])
        assert isinstance(algorithm, GTVMin)
        assert isinstance(algorithm.loss, Loss)
        graphs, pooled = member.graphs(scene), cv.pooled_models[:, at]
        batches.append(on_graph(cv.parties, cv.design, name, graphs, lams, algorithm.loss.ridge, pooled, at))
        grids.append(values)
    calls = [
        Call(Party.validate, name=each.name, values=values, batch=each.name, chosen={"pooled": at})
        for each, values in zip(batches, grids, strict=True)
    ]
    answers = validated(cv, batches, calls)
    return [
        cv.judged(member, answer, values, batch.name)
        for member, answer, values, batch in zip(members, answers, grids, batches, strict=True)
    ]


def outputs(training: TrainingSet, wide: bool, linear: bool) -> list[Network]:
    """The network of every output: the same nodes, with its labels."""
    network = training.network
    if wide:
        assert training.wide is not None
        network = network.with_graph(training.wide)
    if not linear or len(training.target.classes) <= 2:
        return [network]
    data = network.data
    return [
        Network(network.graph, replace(data, y=y), public=network.public, features=network.features)
        for y in labels(training.target, data.y)
    ]
