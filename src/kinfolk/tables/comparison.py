"""The comparison: members validated and fitted, the blend, every node alone, the control and the rivals."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from kinfolk.checks import LearningError
from kinfolk.engine.fit import Tolerance, fit
from kinfolk.engine.run import Run
from kinfolk.network.graph import Graph
from kinfolk.progress import Bar
from kinfolk.report.facts import Part, Role, on_globe
from kinfolk.tables.blend import blend_weights, blended
from kinfolk.tables.families import Candidate, degree
from kinfolk.tables.graph_source import control_graph, wide_graph
from kinfolk.tables.journal import Journal
from kinfolk.tables.members.boosted import Boosted
from kinfolk.tables.members.classes import ClassIntercepts
from kinfolk.tables.members.intercepts import NodeIntercepts
from kinfolk.tables.members.member import Fitted, Member, Sample, Value
from kinfolk.tables.members.slopes import RandomSlopes
from kinfolk.tables.members.together import ROUGH, RunFit, Together, outputs
from kinfolk.tables.prepared import Prepared
from kinfolk.tables.rivals import CHEAP, OTHERS, Rival
from kinfolk.tables.rows import Rows
from kinfolk.tables.validation import Validation, validate
from kinfolk.typing import Floats, Ints

FINE = 1e-6  # how exactly the answer is fitted
MOST_ROUNDS = 10_000
FLOAT = 8  # bytes
WORTH_THREADS = 1_000_000  # numbers; with fewer, threads wait for each other longer than they work
PLACED = ("intercepts", "tailored", "wide", "boosted")  # what graphs and places make a difference to


@dataclass(frozen=True, eq=False)
class Entry:
    """One line of the comparison: which values of its parameters were tried, and what it has learnt with the best."""

    name: str
    part: Part
    method: str  # as ``Settings.method`` names it; "" where there is none
    parameters: tuple[str, ...]
    values: Floats  # (values, parameters)
    errors: Floats  # (values, folds) in cross-validation
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

        def based(sample: Sample) -> Sample:
            fitted = next(iter(pooled.member.fits(sample, [pooled.value])))
            return dataclasses.replace(sample, base=fitted.scores, ridge=pooled.value[0])

        return dataclasses.replace(
            self, whole=based(self.whole), parts=[based(each) for each in self.parts], fallback=pooled.predicted
        )

    def with_ridge(self, ridge: float) -> Study:
        """The same, with another ridge term for members that come later."""
        whole, *parts = (dataclasses.replace(each, ridge=ridge) for each in (self.whole, *self.parts))
        return dataclasses.replace(self, whole=whole, parts=parts)

    def shuffled(self) -> Study | None:
        """The control: graphs with the same degrees and places, drawn at random; None if there is no other graph."""
        seed = self.prepared.settings.seed
        order = np.random.default_rng([seed, 5]).permutation(self.whole.node_count)
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
    return Sample(seen, network, wide, prepared.places, globe, prepared.target, settings.seed, trend=prepared.trend)


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
    if wide is not None:
        there = np.argsort(order)  # the node that is now at each place
        ends = np.stack([there[wide.head], there[wide.tail]], axis=1)
        wide = Graph(wide.node_count, ends, wide.weights, wide.names)
    return dataclasses.replace(sample, rows=rows, network=sample.network.with_graph(graph), places=places, wide=wide)


# ---------------------------------------------------------------------- members


@dataclass(frozen=True, eq=False)
class Comparison:
    """What came out: the entries, the weights of the blend, and its predictions of training rows it had not seen."""

    entries: dict[str, Entry]
    test: dict[str, Floats]  # predictions of the test rows, by name
    unseen: Floats  # predictions of the blend for training rows, NaN where a row was never predicted
    unseen_pooled: Floats  # ... and of one model for all
    path_runs: list[Run]  # the tailored models along λ
    left_out: dict[str, str]  # members that did not take part, and why


def with_useful_trend(prepared: Prepared, journal: Journal, bar: Bar) -> Prepared:
    """The table with or without the features that grow with time, whichever suits one model for all."""
    if not prepared.trend:
        return prepared
    pooled, _ = (Together(each) for each in prepared.family.baselines())
    bare = prepared.without_trend()
    kept = Study.of(prepared, journal, bar).validate(pooled)
    dropped = Study.of(bare, journal, bar).validate(pooled)
    return bare if dropped.error < kept.error else prepared


def compared(prepared: Prepared, journal: Journal, bar: Bar) -> Comparison:
    """Validate and fit everything; the test rows are only predicted."""
    with threadpool_limits(1 if prepared.training.X.size < WORTH_THREADS else None):
        return _compared(prepared, journal, bar)


def _compared(prepared: Prepared, journal: Journal, bar: Bar) -> Comparison:
    study = Study.of(prepared, journal, bar)
    pooled, alone = (Together(each) for each in prepared.family.baselines())
    first = study.validate(pooled)
    study = study.with_base(first)
    validations = {"pooled": first}
    by_itself = study.validate(alone)
    tailored = _tailored(study, first, by_itself)
    wanted, left_out = _wanted(prepared, study.whole, tailored)
    for member in wanted:
        validations[member.name] = study.validate(member)
        if isinstance(member, NodeIntercepts):  # the ridge term that suits its slopes suits random slopes
            study = study.with_ridge(validations[member.name].value[-1])
    control = _control(study, validations, tailored, left_out)
    weights = _weights(prepared, _blended(prepared, validations, left_out))
    path_runs = _path_runs(tailored, study)
    entries: dict[str, Entry] = {}
    test: dict[str, Floats] = {}
    for name, each in (validations | {"alone": by_itself}).items():
        part: Part = "member" if name in weights or name in left_out else "baseline"
        weight = weights.get(name, 0.0) if part == "member" else None
        entries[name] = _entry(each, study, part, weight, path_runs)
        test[name] = _filled(_predicted(entries[name], study.test), test.get("pooled"))
    final = [test[name] for name in weights]
    test = {Role.FINAL.value: blended(final, list(weights.values())), **test}
    unseen = blended([validations[name].predicted for name in weights], list(weights.values()))
    if control is not None:
        entries["control"], test["control"] = control
    for rival in (*CHEAP, *(OTHERS if prepared.settings.rivals else ())):
        why = rival.applies(prepared.training, prepared.target)
        try:
            if why is None:
                entries[rival.name], test[rival.name] = _rival(rival, prepared, bar)
        except LearningError as error:
            why = str(error)
        if why is not None and prepared.settings.rivals:
            left_out[rival.name] = why
    return Comparison(entries, test, unseen, first.predicted, path_runs, left_out)


def _predicted(entry: Entry, rows: Rows) -> Floats:
    assert entry.fitted is not None
    return entry.fitted.predict(rows)


def _rival(rival: Rival, prepared: Prepared, bar: Bar) -> tuple[Entry, Floats]:
    """A method of others: fitted to the training rows, it predicts the test rows."""
    bar.expect(1)
    began = time.perf_counter()
    found = rival.predict(prepared.training, prepared.test, prepared.target, len(prepared.names))
    bar.advance(1, rival.name)
    sent = float(FLOAT * prepared.training.X.size)
    return _only_compared(rival.name, "rival", "", sent, began), found


def _only_compared(name: str, part: Part, method: str, sent: float, began: float) -> Entry:
    """A line without values that were chosen, and without models."""
    none, seconds = np.empty((0, 0)), time.perf_counter() - began
    return Entry(name, part, method, (), none, none, np.empty(0), 0, None, "rows of all", sent, seconds, None)


def _filled(found: Floats, fallback: Floats | None) -> Floats:
    """Predictions; where a node has no model, those of one model for all."""
    return found if fallback is None else np.where(np.isnan(found), fallback, found)


def _tailored(study: Study, pooled: Validation, alone: Validation) -> Candidate:
    """The method that is asked for, with the ridge terms that suit the baselines, and λ to choose from."""
    prepared, settings = study.prepared, study.prepared.settings
    network = outputs(study.whole, False, prepared.family.linear)[0]
    run = next(iter(pooled.member.fits(study.whole, [pooled.value]))).runs[0]
    candidate = prepared.family.tailored(settings.method, network, run, alone.value[0])
    return candidate if settings.lam == "auto" else dataclasses.replace(candidate, values=(float(settings.lam),))


def _wanted(prepared: Prepared, whole: Sample, tailored: Candidate) -> tuple[list[Member], dict[str, str]]:
    """The members besides one model for all, and why others are left out."""
    named = prepared.settings.members or prepared.family.members
    known: dict[str, Member] = {
        each.name: each
        for each in (
            ClassIntercepts() if len(prepared.target.classes) > 2 else NodeIntercepts(), RandomSlopes(),
            Together(tailored), _more_neighbours(tailored, whole), Boosted(),
        )
    }  # fmt: skip
    found, left_out = [], {}
    for name in (name for name in dict.fromkeys((*named, "tailored")) if name != "pooled"):
        member = prepared.own_members[name] if name in prepared.own_members else known[name]
        why = member.missing(whole)
        if why is None:
            found.append(member)
        else:
            left_out[name] = why
    return found, left_out


def _blended(prepared: Prepared, validations: dict[str, Validation], left_out: dict[str, str]) -> dict[str, Validation]:
    """Those that the blend is made of: the members that are wanted, or one model for all if none is left."""
    named = prepared.settings.members or prepared.family.members
    names = {each.name for name, each in prepared.own_members.items() if name in named} | set(named)
    found = {name: each for name, each in validations.items() if name in names and name not in left_out}
    return found or {"pooled": validations["pooled"]}


def _more_neighbours(tailored: Candidate, whole: Sample) -> Together:
    """The same method on the wide graph, with λ in units of its degrees."""
    if whole.wide is None or tailored.parameter != "lam":
        return Together(tailored, "wide", True)
    scale = degree(whole.network) / degree(whole.network.with_graph(whole.wide))
    return Together(dataclasses.replace(tailored, values=tuple(scale * lam for lam in tailored.values)), "wide", True)


def _weights(prepared: Prepared, validations: dict[str, Validation]) -> dict[str, float]:
    train = prepared.training
    predicted = {name: each.predicted for name, each in validations.items()}
    return blend_weights(predicted, train.y, train.owner, prepared.target, prepared.folding)


def _entry(validation: Validation, study: Study, part: Part, weight: float | None, path_runs: list[Run]) -> Entry:
    """What a member has learnt from all training rows with its best value."""
    began, member = time.perf_counter(), validation.member
    fitted = _final(validation, study, path_runs)
    seconds = time.perf_counter() - began
    method = member.candidate.method if isinstance(member, Together) else ""
    values = np.array(validation.values, dtype=np.float64).reshape(len(validation.values), -1)
    return Entry(
        member.name, part, method, member.parameters, values, validation.errors, validation.shares, validation.best,
        weight, member.needs, _sent(member, study.whole, fitted), seconds, fitted,
    )  # fmt: skip


def _final(validation: Validation, study: Study, path_runs: list[Run]) -> Fitted:
    """The tailored models are fitted as exactly as can be, from the start: history and cost are those of one run."""
    member = validation.member
    if member.name != "tailored" or not isinstance(member, Together):
        fitted: Fitted = next(iter(member.fits(study.whole, [validation.value])))
        return fitted
    if not member.candidate.converges:
        return RunFit((path_runs[validation.best],), study.whole.target)
    algorithm = member.candidate.algorithm(validation.value[0])
    networks = outputs(study.whole, member.wide, member.candidate.linear)
    stop = Tolerance(FINE)
    runs = [fit(network, algorithm, rounds=MOST_ROUNDS, stop=stop, progress=False) for network in networks]
    return RunFit(tuple(runs), study.whole.target)


def _path_runs(candidate: Candidate, study: Study) -> list[Run]:
    """The tailored models of the first output for all values of λ, fitted to all training rows."""
    study.bar.expect(len(candidate.values))
    out = []
    network = outputs(study.whole, False, candidate.linear)[0]
    for run in candidate.runs(network, candidate.values, ROUGH):
        out.append(run)
        study.bar.advance(1, "along λ")
    return out


def _sent(member: Member, whole: Sample, fitted: Fitted) -> float:
    """Bytes that would leave nodes: every row where all are needed, sums otherwise, or the messages of a run."""
    if isinstance(fitted, RunFit) and member.needs != "rows of all":
        return sum(float(run.history["bytes"].iloc[-1]) for run in fitted.runs)
    width = whole.rows.X.shape[1] + 1
    if member.needs == "rows of all":
        return float(FLOAT * len(whole.rows.y) * width)
    return float(FLOAT * whole.node_count * width * (width + 1))


def tailored_run(entry: Entry) -> Run:
    """The run of the tailored models, of the first output."""
    assert isinstance(entry.fitted, RunFit)
    run = entry.fitted.runs[0]
    assert isinstance(run, Run)
    return run


# ---------------------------------------------------------------------- the control


def _control(
    study: Study, validations: dict[str, Validation], tailored: Candidate, left_out: dict[str, str]
) -> tuple[Entry, Floats] | None:
    """The blend on graphs and places drawn at random; a graph by similarity that is no better is not used."""
    shuffled = study.shuffled()
    if shuffled is None or not any(_uses_graph(each.member) for each in validations.values()):
        return None
    began = time.perf_counter()
    placed = study.whole.places is not None
    again = {
        name: shuffled.validate(each.member, _fewer(each, shuffled.whole))
        for name, each in validations.items()
        if name in PLACED and (placed or _uses_graph(each.member))
    }
    if study.prepared.source.origin.kind == "similarity" and validations["tailored"].error >= again["tailored"].error:
        left_out["tailored"] = "a random graph does as well"
    both = validations | again
    weights = _weights(study.prepared, _blended(study.prepared, both, left_out))
    pooled = validations["pooled"]
    fallback = next(iter(pooled.member.fits(study.whole, [pooled.value]))).predict(study.test)
    found: list[Floats] = []
    for name in weights:
        where = shuffled if name in again else study
        fitted = next(iter(both[name].member.fits(where.whole, [both[name].value])))
        found.append(_filled(fitted.predict(where.test), fallback))
    entry = _only_compared("control", "control", tailored.method, 0.0, began)
    return entry, blended(found, list(weights.values()))


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
