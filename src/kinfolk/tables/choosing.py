"""Choosing and fitting: cross-validation decides on values, members and weights; then members are fitted to all rows.

This is the way from training rows to models, the same for ``learn`` and for the estimators of scikit-learn. What needs
test rows is in ``comparison.py``.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from kinfolk.engine.fit import Tolerance, fit
from kinfolk.engine.run import Run
from kinfolk.network.network import Network
from kinfolk.progress import Bar
from kinfolk.report.facts import Part
from kinfolk.tables.blend import blend_weights, blended
from kinfolk.tables.entry import Entry
from kinfolk.tables.families import RELAX_ROUNDS, Candidate, degree
from kinfolk.tables.intervals import Intervals, Windows
from kinfolk.tables.journal import Journal
from kinfolk.tables.members.boosted import Boosted, BoostedFromNothing
from kinfolk.tables.members.classes import ClassIntercepts
from kinfolk.tables.members.intercepts import NodeIntercepts
from kinfolk.tables.members.member import Fitted, Member, Sample, Value
from kinfolk.tables.members.recent import recent_members
from kinfolk.tables.members.slopes import RandomSlopes
from kinfolk.tables.members.together import ROUGH, RunFit, Together, outputs
from kinfolk.tables.prepared import Prepared
from kinfolk.tables.splits import Folding, held_in
from kinfolk.tables.study import Study
from kinfolk.tables.validation import Validation

FINE = 1e-6  # how exactly the answer is fitted
MOST_ROUNDS = 10_000
FLOAT = 8  # bytes
FEW_RESIDUALS = 10  # fewer give no intervals
WORTH_THREADS = 1_000_000  # numbers; with fewer, threads wait for each other longer than they work
PLACED = ("intercepts", "tailored", "wide", "trees", "boosted")  # what graphs and places make a difference to


@contextmanager
def worthwhile_threads(prepared: Prepared) -> Iterator[None]:
    """One thread for small tables."""
    with threadpool_limits(1 if prepared.training.X.size < WORTH_THREADS else None):
        yield


@dataclass(frozen=True, eq=False)
class Choice:
    """What cross-validation found; what follows from it is worked out when it is asked for."""

    study: Study
    validations: dict[str, Validation]  # of one model for all and the members
    alone: Validation
    tailored: Candidate
    missing: dict[str, str]  # members that cannot learn from such rows, and why

    @property
    def prepared(self) -> Prepared:
        """The table."""
        return self.study.prepared

    @cached_property
    def control(self) -> tuple[Study, dict[str, Validation]] | None:
        """Members that graphs and places make a difference to, with both drawn at random; None without such graphs."""
        shuffled = self.study.shuffled()
        if shuffled is None or not any(_uses_graph(each.member) for each in self.validations.values()):
            return None
        placed = self.study.whole.places is not None
        again = {
            name: shuffled.validate(each.member, _fewer(each, shuffled.whole))
            for name, each in self.validations.items()
            if name in PLACED and (placed or _uses_graph(each.member))
        }
        return shuffled, again

    @cached_property
    def left_out(self) -> dict[str, str]:
        """Members that do not take part, and why; a graph by similarity has to be better than one by chance."""
        by_similarity = self.prepared.source.origin.kind == "similarity"
        if not by_similarity or self.control is None:
            return self.missing
        again = self.control[1]
        if self.validations["tailored"].error < again["tailored"].error:
            return self.missing
        return {**self.missing, "tailored": "a random graph does as well"}

    @cached_property
    def weights(self) -> dict[str, float]:
        """The weight of every member of the blend."""
        return self.weights_of(self.validations)

    def weights_of(self, validations: dict[str, Validation]) -> dict[str, float]:
        """The same, had these been the predictions of rows that members had not seen."""
        prepared, train = self.prepared, self.prepared.training
        predicted = {name: each.predicted for name, each in _blended(prepared, validations, self.left_out).items()}
        return blend_weights(predicted, train.y, train.owner, prepared.target, prepared.folding)

    @cached_property
    def path_runs(self) -> list[Run]:
        """The tailored models of the first output for all values of λ, fitted to all training rows."""
        study, values = self.study, self.tailored.values
        study.bar.expect(len(values))
        out = []
        network = outputs(study.whole, False, self.tailored.linear)[0]
        for run in self.tailored.runs(network, values, ROUGH):
            out.append(run)
            study.bar.advance(1, "along λ")
        return out

    def entry(self, name: str) -> Entry:
        """What a member, or every node alone, has learnt from all training rows with its best value."""
        validation = self.alone if name == "alone" else self.validations[name]
        part: Part = "member" if name in self.weights or name in self.left_out else "baseline"
        weight = self.weights.get(name, 0.0) if part == "member" else None
        began, member = time.perf_counter(), validation.member
        fitted = self._final(validation)
        seconds = time.perf_counter() - began
        method = member.candidate.method if isinstance(member, Together) else ""
        values = np.array(validation.values, dtype=np.float64).reshape(len(validation.values), -1)
        return Entry(
            member.name, part, method, member.parameters, values, validation.errors, validation.shares, validation.best,
            weight, member.needs, _sent(member, self.study.whole, fitted), seconds, fitted,
        )  # fmt: skip

    def _final(self, validation: Validation) -> Fitted:
        member = validation.member
        if member.name == "tailored" and isinstance(member, Together):
            return self.tailored_fit
        fitted: Fitted = member.final(self.study.whole, validation.value)
        return fitted

    @cached_property
    def tailored_fit(self) -> RunFit:
        """Tailored models are fitted as exactly as can be, from the start: history and cost are those of one run."""
        validation, whole, candidate = self.validations["tailored"], self.study.whole, self.tailored
        if not candidate.converges:
            return RunFit((self.path_runs[validation.best],), whole.target)
        algorithm = candidate.algorithm(validation.value[0])
        options: dict[str, Any] = {"rounds": MOST_ROUNDS, "stop": Tolerance(FINE), "progress": False}
        networks = enumerate(outputs(whole, False, candidate.linear))
        runs = [fit(each, algorithm, start=self.start(each, algorithm, k), **options) for k, each in networks]
        return RunFit(tuple(runs), whole.target)

    def start(self, network: Network, algorithm: Any, output: int) -> Run | None:
        """A run that the tailored models of an output start from; none here."""
        return None

    @cached_property
    def intervals(self) -> Intervals | None:
        """Widths of prediction intervals, from training rows that the blend had not seen; None for classes."""
        prepared, target, train = self.prepared, self.prepared.target, self.prepared.training
        unseen = blended([self.validations[name].predicted for name in self.weights], list(self.weights.values()))
        if target.classes or np.isfinite(unseen).sum() < FEW_RESIDUALS:
            return None
        truth, pooled = target.decode(train.y), self.validations["pooled"].predicted
        new = unseen if prepared.folding.kind == "nodes" else pooled  # what nodes never seen would get
        predicted, elsewhere = target.decode(unseen), truth - target.decode(new)
        nodes, windows = len(prepared.names), _windows(prepared.folding)
        return Intervals.fit(truth - predicted, predicted, train.owner, nodes, elsewhere, windows)


def choose(prepared: Prepared, journal: Journal, bar: Bar) -> Choice:
    """Let every member predict parts of the training rows from the others; test rows play no part."""
    prepared = _with_useful_trend(prepared, journal, bar)
    study = Study.of(prepared, journal, bar)
    pooled, alone = (Together(each) for each in prepared.family.baselines())
    first = study.validate(pooled)
    study = study.with_base(first)
    validations = {"pooled": first}
    by_itself = study.validate(alone)
    tailored = tailored_candidate(study, first, by_itself)
    wanted, missing = wanted_members(prepared, study.whole, tailored)
    for member in wanted:
        known = by_itself if member.name == "alone" else None
        validations[member.name] = known or study.validate(member)
        study = passed_on(study, validations, member)
    return Choice(study, validations, by_itself, tailored, missing)


def passed_on(study: Study, validations: Mapping[str, Validation], member: Member) -> Study:
    """What later members take over from one: slopes that come with intercepts, and models that others stand on."""
    found = validations[member.name]
    if isinstance(member, NodeIntercepts):  # the ridge term that suits its slopes suits random slopes
        study = study.with_ridge(found.value[-1])
        return study if study.whole.times is None else study.with_shared(found)
    if isinstance(member, RandomSlopes) and found.error < validations["pooled"].error:
        return study.with_own(found)
    return study


def _with_useful_trend(prepared: Prepared, journal: Journal, bar: Bar) -> Prepared:
    """The table with or without the features that grow with time, whichever suits one model for all."""
    if not prepared.trend:
        return prepared
    pooled, _ = (Together(each) for each in prepared.family.baselines())
    bare = prepared.without_trend()
    kept = Study.of(prepared, journal, bar).validate(pooled)
    dropped = Study.of(bare, journal, bar).validate(pooled)
    return bare if dropped.error < kept.error else prepared


def tailored_candidate(study: Study, pooled: Validation, alone: Validation) -> Candidate:
    """The method that is asked for, with the ridge terms that suit the baselines, and λ to choose from."""
    prepared, settings = study.prepared, study.prepared.settings
    network = outputs(study.whole, False, prepared.family.linear)[0]
    run = next(iter(pooled.member.fits(study.whole, [pooled.value]))).runs[0]
    candidate = prepared.family.tailored(settings.method, network, run, alone.value[0])
    if settings.lam == "auto":
        return candidate
    rounds = max(candidate.rounds, RELAX_ROUNDS)  # no values before it lead to this one
    return dataclasses.replace(candidate, values=(float(settings.lam),), rounds=rounds)


def wanted_members(prepared: Prepared, whole: Sample, tailored: Candidate) -> tuple[list[Member], dict[str, str]]:
    """The members besides one model for all, in the order in which they learn, and why others are left out."""
    named = {*(prepared.settings.members or prepared.family.members), "tailored"}
    several = len(prepared.target.classes) > 2
    known: list[Member] = [
        *([] if prepared.folding.kind == "nodes" else [Together(prepared.family.baselines()[1])]),
        ClassIntercepts() if several else NodeIntercepts(), RandomSlopes(), Together(tailored),
        _more_neighbours(tailored, whole), *([] if several else [BoostedFromNothing()]), Boosted(),
        *(each for each in recent_members() if each.missing(whole) is None or each.name in prepared.settings.members),
    ]  # fmt: skip
    wanted = [*(each for each in known if each.name in named), *prepared.own_members.values()]
    missing = {each.name: each.missing(whole) for each in wanted}
    return (
        [each for each in wanted if missing[each.name] is None],
        {name: why for name, why in missing.items() if why is not None},
    )


def _blended(prepared: Prepared, validations: dict[str, Validation], left_out: dict[str, str]) -> dict[str, Validation]:
    """Those that the blend is made of: the members that are wanted, or one model for all if none is left."""
    named = prepared.settings.members or prepared.family.members
    names = {each.name for name, each in prepared.own_members.items() if name in named} | set(named)
    found = {name: each for name, each in validations.items() if name in names and name not in left_out}
    return found or {"pooled": validations["pooled"]}


def _windows(folding: Folding) -> Windows | None:
    """When training rows were predicted, where later times are."""
    return None if folding.times is None else Windows(held_in(folding.folds), folding.times)


def _more_neighbours(tailored: Candidate, whole: Sample) -> Together:
    """The same method on the wide graph, with λ in units of its degrees."""
    if whole.wide is None or tailored.parameter != "lam":
        return Together(tailored, "wide", True)
    scale = degree(whole.network) / degree(whole.network.with_graph(whole.wide))
    return Together(dataclasses.replace(tailored, values=tuple(scale * lam for lam in tailored.values)), "wide", True)


def _sent(member: Member, whole: Sample, fitted: Fitted) -> float:
    """Bytes that would leave nodes: none, every row where all are needed, sums, or the messages of a run."""
    if isinstance(fitted, RunFit) and member.needs != "rows of all":
        return sum(float(run.history["bytes"].iloc[-1]) for run in fitted.runs)
    if member.needs == "own rows":
        return 0.0
    width = whole.rows.X.shape[1] + 1
    if member.needs == "rows of all":
        return float(FLOAT * len(whole.rows.y) * width)
    return float(FLOAT * whole.node_count * width * (width + 1))


def _fewer(validation: Validation, whole: Sample) -> list[Value]:
    """Values for the control: every second λ, and else what suits the member, with a covariance of its own."""
    member, best = validation.member, validation.value
    if _uses_graph(member):
        return sorted({*list(validation.values)[::2], best})
    if isinstance(member, NodeIntercepts):
        return [value for value in member.values(whole) if value[-1] == best[-1]]
    return [best]


def _uses_graph(member: Member) -> bool:
    return isinstance(member, Together) and member.candidate.uses_graph
