"""Are the sentences about a run true? Simulated tables whose truth is known.

    python benchmarks/calibration.py                  judgements (400 in a cell), nodes, intervals: some ten minutes
    python benchmarks/calibration.py --quick          a few cells
    python benchmarks/calibration.py --learn          tables through ``kinfolk.learn``, besides
    python benchmarks/calibration.py --blend          what the blend costs beside its best member, and nothing else
    python benchmarks/calibration.py --all            all of this
    python benchmarks/calibration.py --all --keep F   the same; lines are kept in file F, and a second call goes on

Nodes lie on a square, each with the five nearest as neighbours, and have linear models of three features. In the world
*same* all have one model, in *unrelated* each its own, in *clusters* three regions differ, in *smooth* models change
with the place, and in *outsiders* one node in ten differs from all others. Truth is the expected loss of the fitted
models on fresh rows, in closed form: ‖ŵ − w‖² + σ². A cell counts how often the 95 % interval of the judgement contains
the true gain over the truly better baseline, and how often its verdict is false. It fails if the Monte Carlo interval
excludes the bound: coverage of 90 % at least, false verdicts in 5 % at most.

Fitting costs much more than judging. So the big table fits nodes alone, one model for all, and models in between (with
a normal prior around the model of all) in closed form; ``--learn`` sends fewer tables through the whole package.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pandas
import scipy.signal
import scipy.sparse
import scipy.stats

import kinfolk
from kinfolk import graphs
from kinfolk.network.folds import places_of_rows
from kinfolk.report.facts import Judgement, Role
from kinfolk.tables import Settings
from kinfolk.tables.fitted_blend import blend_of
from kinfolk.tables.held_out import HeldOutErrors
from kinfolk.tables.intervals import Intervals
from kinfolk.tables.job import interval_widths, tune
from kinfolk.tables.judging import judge
from kinfolk.tables.local_party import LocalParty
from kinfolk.tables.node_gains import node_gains
from kinfolk.tables.party import OneParty
from kinfolk.tables.prepared import design_of, prepare_given
from kinfolk.tables.rows import Rows
from kinfolk.tables.splits import Folding
from kinfolk.tables.table_rows import TableRows
from kinfolk.tables.target import Target

WORLDS = ("same", "unrelated", "clusters", "smooth", "outsiders")
FEATURES = 3
SHARE = 0.2  # of the rows that are held out
NEIGHBOURS = 5
COVERED, FALSE = 0.90, 0.05  # the bounds
BETWEEN = (0.01, 0.1, 1.0)  # variances of the prior of models between one for all and each alone
BASELINES = (Role.ALONE, Role.POOLED)
METHODS = (Role.ALONE, Role.POOLED, Role.FINAL)
LEVEL = 0.9  # of prediction intervals
WINDOWS = 3  # of time, that residuals come from
LATER = ((0.0, 0.0), (0.0, 0.5), (0.7, 0.5), (0.9, 0.0), (0.9, 0.5))  # memory of residuals, part common to all nodes
OPTIONS: dict[str, Any] = {"node": "node", "target": "target", "coords": ("x", "y"), "features": ("a", "b", "c")}
HEAD = (
    "| cell | judgements | true gain, median % | with an interval % | covered % | helps % | false % | |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- |"
)


@dataclass
class Cell:
    """What was counted in one cell."""

    name: str
    judged: int = 0
    told: int = 0  # with an interval
    covered: int = 0
    helps: int = 0
    false: int = 0
    truths: list[float] = field(default_factory=list)

    def add(self, judged: Judgement, truth: dict[str, float]) -> None:
        """Count a judgement; ``truth`` has the expected loss of every method."""
        best = min(truth[role] for role in BASELINES)
        gain = gain_of(truth[Role.FINAL], best)
        self.judged += 1
        self.truths.append(gain)
        self.helps += judged.verdict == "helps"
        self.false += (judged.verdict == "helps" and gain <= 0) or (judged.verdict == "does not help" and gain >= 0)
        if judged.low is not None and judged.high is not None:
            self.told += 1
            self.covered += judged.low <= gain <= judged.high

    @property
    def fails(self) -> bool:
        """Whether a Monte Carlo interval excludes its bound."""
        covers = not self.told or within(self.covered, self.told)[1] >= COVERED
        return not covers or within(self.false, self.judged)[0] > FALSE

    @property
    def line(self) -> str:
        """A line of the table."""
        covered = f"{100 * self.covered / self.told:.1f}" if self.told else "–"
        shares = (f"{100 * each / self.judged:.1f}" for each in (self.told, self.helps, self.false))
        told, helps, false = shares
        return (
            f"| {self.name} | {self.judged} | {np.median(self.truths):.1f} | {told} | {covered} | {helps} | {false} | "
            f"{'**fails**' if self.fails else 'holds'} |"
        )


def within(hits: int, count: int) -> tuple[float, float]:
    """The Monte Carlo interval of a share: 95 %, by Wilson's formula."""
    found = scipy.stats.binomtest(hits, count).proportion_ci(0.95, "wilson")
    return float(found.low), float(found.high)


def gain_of(loss: float, base: float) -> float:
    """Per cent less root mean squared error."""
    return 100 * (1 - np.sqrt(loss / base))


# ---------------------------------------------------------------------- worlds


def places(rng: np.random.Generator, nodes: int) -> Any:
    """Places on a square."""
    return 10 * rng.random((nodes, 2))


def true_models(world: str, rng: np.random.Generator, spots: Any) -> Any:
    """The coefficients of every node (nodes, features)."""
    nodes = len(spots)
    common = rng.normal(size=FEATURES)
    if world == "unrelated":
        return rng.normal(size=(nodes, FEATURES))
    if world == "clusters":
        return rng.normal(size=(3, FEATURES))[np.minimum((spots[:, 0] * 0.3).astype(int), 2)]
    if world == "smooth":
        return common + np.sin(spots @ rng.normal(scale=0.3, size=(2, FEATURES)))
    outside = rng.random(nodes) < 0.1 if world == "outsiders" else np.zeros(nodes, dtype=bool)
    return np.where(outside[:, None], common + 2 * rng.normal(size=(nodes, FEATURES)), common)


def fitted(X: Any, y: Any, owner: Any, nodes: int, between: float) -> dict[str, Any]:
    """Ridge regressions (nodes, features): alone, one for all, and in between (``between``: variance of the prior)."""
    whose = scipy.sparse.csr_array((np.ones(len(owner)), (owner, np.arange(len(owner)))), (nodes, len(owner)))
    grams = (whose @ (X[:, :, None] * X[:, None, :]).reshape(len(X), -1)).reshape(nodes, X.shape[1], X.shape[1])
    sums = whose @ (X * y[:, None])
    eye = np.eye(X.shape[1])
    pooled = np.linalg.solve(grams.sum(0) + 1e-3 * eye, sums.sum(0))
    alone = np.linalg.solve(grams + 0.3 * eye, sums[..., None])[..., 0]
    mixed = np.linalg.solve(grams + eye / between, (sums + pooled / between)[..., None])[..., 0]
    return {Role.ALONE: alone, Role.POOLED: np.tile(pooled, (nodes, 1)), Role.FINAL: mixed}


def held_out_errors(models: dict[str, Any], truth: Any, rows: tuple[Any, Any, Any], times: Any = None) -> Any:
    """The errors of fitted models on test rows, and their expected losses at all nodes."""
    X, y, owner = rows
    losses = {role.value: ((X * models[role][owner]).sum(1) - y) ** 2 for role in METHODS}
    expected = {role: 1 + ((models[role] - truth) ** 2).sum(1) for role in METHODS}
    return HeldOutErrors(losses, owner, Target(), times), expected


def judged(errors: HeldOutErrors, expected: dict[str, Any], graph: Any) -> Any:
    """The judgement, and the expected losses in the mean over the tested nodes."""
    tested = np.unique(errors.owner)
    truth = {role: float(each[tested].mean()) for role, each in expected.items()}
    return judge(errors, graph, BASELINES), truth


def tables_of_rows(world: str, nodes: int, rows: int) -> Iterator[tuple[HeldOutErrors, dict[str, Any], Any]]:
    """Tables with rows held out at random, seed by seed: errors, expected losses, graph."""
    for seed in itertools.count():
        rng = np.random.default_rng([seed, WORLDS.index(world), nodes, rows])
        spots = places(rng, nodes)
        truth = true_models(world, rng, spots)
        graph = graphs.knn(spots, min(NEIGHBOURS, nodes - 1))
        owner = np.repeat(np.arange(nodes), rows)
        X = rng.normal(size=(len(owner), FEATURES))
        y = (X * truth[owner]).sum(1) + rng.normal(size=len(owner))
        test = places_of_rows(owner, seed) < SHARE
        if test.any():  # few rows may have none
            models = fitted(X[~test], y[~test], owner[~test], nodes, rng.choice(BETWEEN))
            yield *held_out_errors(models, truth, (X[test], y[test], owner[test])), graph


def rows_cell(world: str, nodes: int, rows: int, count: int) -> Cell:
    """Rows held out at random."""
    cell = Cell(f"{world}, {nodes} nodes × {rows} rows")
    for each in itertools.islice(tables_of_rows(world, nodes, rows), count):
        cell.add(*judged(*each))
    return cell


def times_cell(world: str, nodes: int, times: int, memory: float, common: float, count: int) -> Cell:
    """The last times held out, where noise at a node remembers, and part of it is common to all nodes."""
    shared = f", {common:.0%} of the noise common" if common else ""
    cell = Cell(f"{world}, {nodes} node{'s' * (nodes > 1)} × {times} times, memory {memory:g}{shared}")
    for seed in range(count):
        rng = np.random.default_rng([seed, WORLDS.index(world), nodes, times, 1])
        spots = places(rng, nodes)
        truth = np.column_stack([true_models(world, rng, spots), np.zeros(nodes)])
        graph = graphs.knn(spots, min(NEIGHBOURS, nodes - 1)) if nodes > 1 else graphs.edgeless(1)
        before = 60
        own, all_alike = (remembering(rng, before + times, width, memory) for width in (nodes, 1))
        noise = np.sqrt(1 - common) * own + np.sqrt(common) * all_alike
        X = np.concatenate([rng.normal(size=(before + times, nodes, FEATURES)), np.ones((before + times, nodes, 1))], 2)
        y = (X * truth).sum(2) + noise
        owner, when = np.tile(np.arange(nodes), before + times), np.repeat(np.arange(before + times), nodes)
        X, y, test = X.reshape(-1, FEATURES + 1), y.ravel(), when >= before
        models = fitted(X[~test], y[~test], owner[~test], nodes, rng.choice(BETWEEN))
        rows = X[test], y[test], owner[test]
        cell.add(*judged(*held_out_errors(models, truth, rows, when[test].astype(np.float64)), graph))
    return cell


def remembering(rng: np.random.Generator, length: int, width: int, memory: float) -> Any:
    """Series of variance 1 whose values remember the one before (length, width)."""
    fresh = rng.normal(size=(length, width))
    fresh[1:] *= np.sqrt(1 - memory**2)
    return scipy.signal.lfilter([1.0], [1.0, -memory], fresh, axis=0)


def cells(quick: bool, count: int) -> Iterator[Cell]:
    """All cells, or a few."""
    return (make() for make in cell_makers(quick, count))


def cell_makers(quick: bool, count: int) -> Iterator[partial[Cell]]:
    """What makes them, one by one."""
    sizes = [(12, 6), (50, 12)] if quick else list(itertools.product((4, 12, 50, 200), (3, 12, 50)))
    for world, (nodes, rows) in itertools.product(WORLDS, sizes):
        yield partial(rows_cell, world, nodes, rows, count)
    series = [(4, 40)] if quick else list(itertools.product((1, 4, 12, 40), (5, 20, 60, 200)))
    for (nodes, times), (memory, common) in itertools.product(series, ((0.0, 0.0), (0.9, 0.0), (0.9, 0.5))):
        if nodes > 1 or not common:
            yield partial(times_cell, "smooth", nodes, times, memory, common, count)


def cell_line(make: partial[Cell]) -> str:
    """The line of a cell."""
    return make().line


# ---------------------------------------------------------------------- nodes


def nodes_line(world: str, nodes: int, rows: int, count: int) -> str:
    """What is told about nodes: gains within two standard errors, shares that contain the truth, and wrong names."""
    inside, shares, wrong = [], [], []
    for errors, expected, graph in itertools.islice(tables_of_rows(world, nodes, rows), count):
        found, _ = judged(errors, expected, graph)
        truth = 100 * (1 - np.sqrt(expected[Role.FINAL] / expected[found.against]))
        gain, error = node_gains(errors, Role.FINAL, found.against, nodes)
        tested = ~np.isnan(gain)
        inside += (np.abs(gain - truth) <= 2 * error)[tested].tolist()
        if found.better is not None:
            low, high = found.better
            shares.append(round(low) <= round(100 * np.mean(truth[tested] > 0)) <= round(high))
        wrong.append(np.mean([truth[int(name)] >= 0 for name in found.worse]) if found.worse else 0.0)
    told = f"{100 * np.mean(shares):.0f} of {len(shares)}" if shares else "none told"
    return (
        f"| {world}, {nodes} nodes × {rows} rows | {count} | {100 * np.mean(inside):.1f} | {told} | "
        f"{100 * np.mean(wrong):.1f} |"
    )


# ---------------------------------------------------------------------- prediction intervals


class Windows(NamedTuple):
    """When rows were predicted, where later times are."""

    number: Any  # (rows,) of the window that each row was predicted in
    times: Any  # (rows,)


def party_of(rows: Rows, target: Target, nodes: int, folding: Folding) -> LocalParty:
    """A party with rows that are no table: nothing is held out, and there is no graph."""
    names = [f"x{k}" for k in range(rows.X.shape[1])]
    encoder = SimpleNamespace(get_feature_names_out=lambda: names, trend=lambda column: ())
    none = np.zeros(len(rows.y), dtype=bool)
    given = Settings("node", "y"), SimpleNamespace(coords=()), encoder, target, [str(k) for k in range(nodes)]
    return LocalParty(TableRows(*given, pandas.DataFrame(), rows, none, folding))


def design_for(party: LocalParty) -> Any:
    """What is known of these rows."""
    return design_of(party.rows, None, None, None, [], {})


def intervals_of(
    residuals: Any, predicted: Any, owner: Any, nodes: int, elsewhere: Any = None, windows: Windows | None = None
) -> Intervals | None:
    """The intervals of a job whose ensemble has these residuals (NaN: not predicted); None if they are too few.

    ``elsewhere``: residuals of a model that knows nothing of nodes; by default the same.
    """
    everything = np.ones(len(owner), dtype=bool)
    folding = Folding("rows", [(everything, everything)])
    if windows is not None:
        folds = [(windows.number < k, windows.number == k) for k in range(1 + int(windows.number.max()))]
        folding = Folding("times", folds, windows.times, windows.times)
    y = predicted + np.nan_to_num(residuals)
    party = party_of(Rows(np.zeros((len(y), 1)), y, owner), Target(), nodes, folding)
    party.out_of_fold.predicted["all"] = (y - residuals)[None]
    party.out_of_fold.fallback = y - (residuals if elsewhere is None else elsewhere)
    found: Any = SimpleNamespace(
        design=design_for(party), cv=SimpleNamespace(parties=OneParty(party)), weights={"all": 1.0},
        validations={"all": SimpleNamespace(best=0)},
    )  # fmt: skip
    widths = interval_widths(found)
    return None if widths is None else party.out_of_fold.intervals(widths)


def interval_coverage(seed: int, nodes: int, rows: int, spread: float) -> tuple[float, float, float]:
    """Coverage over fresh rows: of all, at the tenth percentile of nodes, and at nodes that were never seen.

    Deviations of nodes differ (log-normal with ``spread``), and their noise has heavy tails (Student's t with 5).
    Predictions have nothing to do with it.
    """
    rng = np.random.default_rng([seed, nodes, rows])
    predicted = np.random.default_rng([seed, nodes, rows, 3]).normal(size=nodes * (rows + 800))
    scale = np.exp(spread * rng.normal(size=2 * nodes))
    known, fresh = np.repeat(np.arange(nodes), rows), np.repeat(np.arange(2 * nodes), 400)
    residuals = scale[known] * rng.standard_t(5, size=len(known))
    found = intervals_of(residuals, predicted[: len(known)], known, nodes)
    truth = scale[fresh] * rng.standard_t(5, size=len(fresh))
    inside = covered(found, truth, predicted[len(known) :], np.where(fresh < nodes, fresh, -1))
    by_node = np.bincount(fresh, inside) / 400
    return float(by_node[:nodes].mean()), float(np.quantile(by_node[:nodes], 0.1)), float(by_node[nodes:].mean())


def covered(found: Intervals, residuals: Any, predicted: Any, owner: Any) -> Any:
    """Whether the truth of rows is within their intervals."""
    low, high = found.interval(predicted, owner, LEVEL)
    return (low <= predicted + residuals) & (predicted + residuals <= high)


def interval_line(nodes: int, rows: int, spread: float, count: int) -> str:
    """Prediction intervals at 90 %: means over tables."""
    found = 100 * np.mean([interval_coverage(seed, nodes, rows, spread) for seed in range(count)], axis=0)
    return f"| {nodes} × {rows} | {spread:g} | " + " | ".join(f"{each:.1f}" for each in found) + " |"


def level_coverage(seed: int, nodes: int, rows: int, growth: float) -> tuple[float, float, float]:
    """Coverage over fresh rows: of all, of the quarter with the smallest predictions, and with the largest.

    Deviations grow with the prediction, by a factor of exp(``growth``) for a deviation of predictions within a node.
    """
    rng = np.random.default_rng([seed, nodes, rows, 4])
    mean = rng.normal(size=nodes)

    def drawn(count: int) -> tuple[Any, Any, Any]:
        owner = np.repeat(np.arange(nodes), count)
        predicted = mean[owner] + rng.normal(size=len(owner))
        return np.exp(growth * predicted) * rng.standard_t(5, size=len(owner)), predicted, owner

    found = intervals_of(*drawn(rows), nodes)
    fresh = drawn(400)
    inside, ends = covered(found, *fresh), np.quantile(fresh[1], [0.25, 0.75])
    return inside.mean(), inside[fresh[1] < ends[0]].mean(), inside[fresh[1] > ends[1]].mean()


def level_line(nodes: int, rows: int, growth: float, count: int) -> str:
    """Prediction intervals at 90 % where residuals grow with predictions: means over tables."""
    found = 100 * np.mean([level_coverage(seed, nodes, rows, growth) for seed in range(count)], axis=0)
    return f"| {nodes} × {rows} | {growth:g} | " + " | ".join(f"{each:.1f}" for each in found) + " |"


def later_coverage(seed: int, nodes: int, times: int, memory: float, common: float) -> float:
    """Coverage of the times that follow, half as many, where residuals remember and have a part common to all nodes."""
    rng = np.random.default_rng([seed, nodes, times, 2])
    own, all_alike = (remembering(rng, times + times // 2, width, memory) for width in (nodes, 1))
    residuals = np.exp(0.3 * rng.normal(size=nodes)) * (np.sqrt(1 - common) * own + np.sqrt(common) * all_alike)
    owner, when = np.tile(np.arange(nodes), len(residuals)), np.repeat(np.arange(len(residuals)), nodes)
    values, test = residuals.ravel(), when >= times
    windows = Windows(when[~test] * WINDOWS // times, when[~test].astype(np.float64))
    predicted = remembering(np.random.default_rng([seed, nodes, times, 3]), len(residuals), nodes, memory).ravel()
    found = intervals_of(values[~test], predicted[~test], owner[~test], nodes, windows=windows)
    return float(covered(found, values[test], predicted[test], owner[test]).mean())


def later_line(nodes: int, times: int, count: int) -> str:
    """Prediction intervals at 90 % for later times: means over tables."""
    found = [100 * np.mean([later_coverage(seed, nodes, times, *kind) for seed in range(count)]) for kind in LATER]
    return f"| {nodes} × {times} | " + " | ".join(f"{each:.1f}" for each in found) + " |"


# ---------------------------------------------------------------------- through the whole package


def simulated_table(world: str, seed: int, nodes: int, rows: int, fresh: bool = False) -> pandas.DataFrame:
    """A table of a world; ``fresh`` rows have the same truth."""
    rng = np.random.default_rng([seed, WORLDS.index(world), nodes])
    spots = places(rng, nodes)
    truth = true_models(world, rng, spots)
    rng = np.random.default_rng([seed, fresh, 2])
    owner = np.repeat(np.arange(nodes), rows)
    X = rng.normal(size=(len(owner), FEATURES))
    found = pandas.DataFrame(X, columns=list("abc")).assign(node=owner, x=spots[owner, 0], y=spots[owner, 1])
    found["mean"] = (X * truth[owner]).sum(1)
    return found.assign(target=found["mean"] + rng.normal(size=len(owner)))


def learnt(world: str, seed: int, nodes: int, rows: int) -> tuple[Any, dict[str, float]]:
    """A run of the whole package, and the expected loss of every name of its leaderboard at the tested nodes."""
    run = kinfolk.learn(simulated_table(world, seed, nodes, rows), seed=seed, progress=False, **OPTIONS)
    return run, expected_losses(run, simulated_table(world, seed, nodes, 200, fresh=True))


def expected_losses(run: Any, fresh: pandas.DataFrame) -> dict[str, float]:
    """The mean loss on fresh rows of the tested nodes, of the blend and of all that was fitted."""
    tested = run.nodes.index[run.nodes["test_rows"] > 0]
    rows = fresh[fresh["node"].astype(str).isin(tested)]
    names = [Role.FINAL, *(name for name, entry in run.entries.items() if entry.fitted is not None)]
    return {name: float(((run.predict(rows, role=name) - rows["target"]) ** 2).mean()) for name in names}


def above_best_member(losses: dict[str, float]) -> float:
    """Per cent by which the error of the models that predict exceeds that of the best single member."""
    best = min(loss for name, loss in losses.items() if name != Role.FINAL)
    return -gain_of(losses[Role.FINAL], best)


def blend_losses(world: str, seed: int, nodes: int, rows: int) -> dict[str, float]:
    """The expected loss of the blend and of every member, all fitted to one table without a test."""
    given = {**OPTIONS, "seed": seed, "model": "ridge", "members": ()}
    prepared = prepare_given(simulated_table(world, seed, nodes, rows), given, tested=False)
    tuning = tune(OneParty(LocalParty(prepared.rows)), prepared.design)
    blend = blend_of(tuning, list(tuning.validations))
    fresh = simulated_table(world, seed, nodes, 20, fresh=True)
    names = (Role.FINAL.value, *tuning.weights)
    return {name: 1 + float(((blend.predict(fresh, role=name) - fresh["mean"]) ** 2).mean()) for name in names}


def blend_line(world: str, nodes: int, rows: int, count: int) -> str:
    """What the blend costs: per cent above the member with the smallest loss over all tables, its standard error."""
    found = pandas.DataFrame([blend_losses(world, seed, nodes, rows) for seed in range(count)]).dropna(axis=1)
    best = found.drop(columns=Role.FINAL.value).mean().idxmin()
    above = 50 * np.log(found[Role.FINAL.value] / found[best])
    error = f"{above.std() / np.sqrt(count):.2f}" if count > 1 else "–"
    return f"| {world}, {nodes} nodes × {rows} rows | {count} | {best} | {above.mean():.2f} | {error} |"


def learnt_line(world: str, count: int) -> str:
    """Judgements of whole runs of a world, and what the blend costs."""
    cell, costs = Cell(f"{world}, through kinfolk.learn"), []
    for seed in range(count):
        nodes, rows = ((12, 6), (30, 6), (30, 12), (60, 3))[seed % 4]
        run, losses = learnt(world, seed, nodes, rows)
        cell.add(run.judgement, losses)
        costs.append(above_best_member(losses))
    return (
        f"{cell.line}\n|  | above the best member: {np.mean(costs):.2f} % in the mean, {np.max(costs):.2f} % at most |"
    )


# ---------------------------------------------------------------------- the command


def key_of(make: partial[str]) -> str:
    """What tells a line from all others: the function that makes it, and its arguments."""
    inner = make.args[0] if isinstance(make.args[0], partial) else make
    return f"{inner.func.__name__} {inner.args}"


class Kept:
    """Lines that are finished, in a file if one is named: a command that was stopped goes on after them."""

    def __init__(self, file: Path | None) -> None:
        self.file = file
        there = file is not None and file.exists()
        self.lines: dict[str, str] = dict(map(json.loads, file.read_text().splitlines())) if file and there else {}

    def line(self, make: partial[str]) -> str:
        """A line, made unless the file has it."""
        key = key_of(make)
        if key not in self.lines:
            self.lines[key] = make()
            if self.file is not None:
                with self.file.open("a") as out:
                    out.write(json.dumps([key, self.lines[key]]) + "\n")
        return self.lines[key]


@dataclass(frozen=True)
class Part:
    """A table: its head, and what makes its lines."""

    head: str
    lines: list[partial[str]]


def rule(names: str) -> str:
    """The head of a table."""
    return f"| {names} |\n|" + " --- |" * (names.count("|") + 1)


def parts(quick: bool, count: int | None) -> dict[str, Part]:
    """All tables; ``count``: tables or judgements in a cell, instead of the usual number."""
    judged = count or (100 if quick else 400)
    later = " | ".join(f"memory {memory:g}, {common:.0%} common" for memory, common in LATER)
    sizes, spreads = ((20, 3), (20, 50), (100, 10), (100, 50)), (0.0, 0.3, 0.6)
    return {
        "judgements": Part(HEAD, [partial(cell_line, make) for make in cell_makers(quick, judged)]),
        "nodes": Part(
            rule("cell | judgements | gains within two errors % | shares that hold % | wrongly named %"),
            [
                partial(nodes_line, world, *size, 10 if quick else 100)
                for world, size in itertools.product(WORLDS, ((50, 5), (50, 50), (200, 15)))
            ],
        ),
        "intervals": Part(
            rule("nodes × rows | spread of deviations | all rows % | tenth percentile of nodes % | nodes never seen %"),
            [
                partial(interval_line, *size, spread, 5 if quick else 40)
                for size, spread in itertools.product(sizes, spreads)
            ],
        ),
        "levels": Part(
            rule("nodes × rows | growth | all rows % | smallest predictions % | largest predictions %"),
            [
                partial(level_line, *size, growth, 5 if quick else 40)
                for size, growth in itertools.product(sizes, (0.0, 0.2, 0.5))
            ],
        ),
        "later": Part(
            rule(f"nodes × times | {later}"),
            [
                partial(later_line, nodes, times, 10 if quick else 200)
                for nodes, times in itertools.product((4, 20, 100), (16, 60, 240))
            ],
        ),
        "learn": Part(HEAD, [partial(learnt_line, world, 8 if quick else 80) for world in WORLDS]),
        "blend": Part(
            rule("cell | tables | best member | blend above it % | standard error"),
            [
                partial(blend_line, world, 50, rows, count or 5)
                for world, rows in itertools.product(WORLDS, (6,) if quick else (3, 6, 12, 50))
            ],
        ),
    }


def wanted(given: argparse.Namespace) -> list[str]:
    """The names of the tables that are asked for."""
    usual = ["judgements", "nodes", "intervals", "levels", "later"]
    if given.all:
        return [*usual, "learn", "blend"]
    return ["blend"] if given.blend else [*usual, *(["learn"] if given.learn else [])]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few cells")
    parser.add_argument("--learn", action="store_true", help="tables through kinfolk.learn, besides")
    parser.add_argument("--blend", action="store_true", help="what the blend costs, and nothing else")
    parser.add_argument("--all", action="store_true", help="everything")
    parser.add_argument("--count", type=int, help="judgements, or tables of the blend, in a cell")
    parser.add_argument("--keep", type=Path, help="file that keeps finished lines, to go on after a stop")
    given = parser.parse_args()
    kept, found = Kept(given.keep), parts(given.quick, given.count)
    for name in wanted(given):
        print(found[name].head)
        lines = []
        for make in found[name].lines:
            lines.append(kept.line(make))
            print(lines[-1], flush=True)
        failed = (
            f"\n{sum('**fails**' in line for line in lines)} of {len(lines)} cells fail" if name == "judgements" else ""
        )
        print(failed)


if __name__ == "__main__":
    main()
