"""Lu, Xing, Yu: Graph-Aware Federated Learning, section 10.5.1 (figure 10.3), and the question whether φ is worth it.

What the chapter leaves open in figure 10.3, and what is taken here: sigmoid after the first two layers, a linear
output, no biases (so that 512 parameters are left), steps of size .15 on full batches, τ = 5, 400 rounds, λ = .06 (.03
in the chapter's scaling), κ = 1e-4. The model of DFL-GT is the mean over nodes, as nobody has it otherwise. On the
homologous graph every method learns anew from the rows of its nodes; only φ is carried over. Learnt φ: a number per
layer, 60 rounds of warm-up, a step of φ every 4 rounds (T = 20), 30 of them. λ_upper of (10.14) is the chapter's λ.

``gfl-phi`` asks whether learning φ helps: on truths of which φ* is known (see ``gfl_truths``), with every upper level,
beside φ = I, φ*, nodes alone and a Laplacian coupling; all with λ = .3, 1,500 rounds of one step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas

from kinfolk.algorithms.bigfl import (
    BiGFL,
    CosineEmbedding,
    FullMatrix,
    GraphEmbedding,
    HeldOutError,
    LaplacianCoupling,
    LowRank,
    NumberPerLayer,
    Regression,
)
from kinfolk.algorithms.dfl import DFL
from kinfolk.algorithms.fedavg import FedAvg
from kinfolk.algorithms.fesem import FeSEM
from kinfolk.engine.fit import fit
from kinfolk.engine.protocol import Snapshot
from kinfolk.engine.run import Run
from kinfolk.experiments.gfl_truths import CENTRES, Drawn, linear_truth, network_truth, student, table_10_1
from kinfolk.experiments.outcome import Claim, Outcome
from kinfolk.experiments.unfinished import once
from kinfolk.network.network import Network
from kinfolk.objective.losses import Squared
from kinfolk.objective.torch_loss import TorchLoss

FEDAVG, TRACKING, FESEM = "FedAvg", "DFL-GT", "FeSEM, K = 3"
ALONE, LAPLACIAN, IDENTITY = "alone", "Laplacian", "BiG-FL, φ = I"
PRINTED, HELD_OUT, LOW_RANK = "BiG-FL, φ by (10.14)", "BiG-FL, φ by held-out error", "the same, rank 8"
FITTED, ORACLE = "BiG-FL, φ by regression", "BiG-FL, φ* given"
VARIANTS = (ALONE, LAPLACIAN, IDENTITY, PRINTED, HELD_OUT, LOW_RANK, FITTED, ORACLE)  # of gfl-phi
METHODS = (FEDAVG, TRACKING, FESEM, ALONE, LAPLACIAN, IDENTITY, PRINTED, HELD_OUT)  # of figure 10.3
GRAPHS = ("train", "homologous")
MEASURED = 20  # times in a run

Record = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """How large figure 10.3 is."""

    nodes: int = 50
    rounds: int = 400
    cases: tuple[str, ...] = ("100 rows", "10 rows, smoothed")
    warm_up: int = 60
    phi_steps: int = 30


FULL, QUICK = Setting(), Setting(nodes=20, rounds=20, cases=("10 rows, smoothed",), warm_up=8, phi_steps=2)
STEP, TAU, EVERY, LAM = 0.15, 5, 4, 0.06


# ---------------------------------------------------------------------- figure 10.3


def fig3(seeds: int = 5, quick: bool = False) -> Outcome:
    """Figure 10.3: FedAvg, DFL-GT, FeSEM and BiG-FL on the synthetic graphs of Table 10.1."""
    setting, count = QUICK if quick else FULL, 1 if quick else seeds
    frame = pandas.DataFrame([record for seed in range(count) for record in _figure(setting, seed)])
    ends = last_rows(frame, ["case", "graph", "method", "seed"])
    return Outcome(
        "gfl-fig3",
        "Figure 10.3: relative error on the test rows of a node",
        f"{setting.nodes} nodes, network 8-16-16-8 without biases, {setting.rounds} rounds of {TAU} steps, λ = {LAM}; "
        f"means over {count} draw{'s' if count > 1 else ''}. On the homologous graph all learn anew, with the same φ.",
        frame,
        _table(ends, ["case", "graph"]),
        [claim for case in setting.cases for claim in _figure_claims(ends[ends["case"] == case], case)],
        _draw_figure,
    )


def _figure(setting: Setting, seed: int) -> Iterator[Record]:
    for case in setting.cases:
        rows, smoothed = (100, False) if case == "100 rows" else (10, True)
        networks = [
            table_10_1(seed, graph, nodes=setting.nodes, rows=rows, smoothed=smoothed).network for graph in (0, 1)
        ]
        loss = TorchLoss(student(seed, "Sigmoid", biases=False), step_size=STEP)
        for method, algorithm in _competitors(loss, setting).items():
            for record in once((case, method, seed), _on_both, algorithm, networks, setting.rounds):
                yield {"case": case, "method": method, "seed": seed, **record}


def _competitors(loss: TorchLoss, setting: Setting) -> dict[str, Any]:
    work: dict[str, Any] = {"local_steps": TAU}
    plain = BiGFL(loss, lam=LAM, **work)
    learnt = replace(
        plain, phi="learn", controls=False, warm_up=setting.warm_up, phi_every=EVERY, phi_steps=setting.phi_steps
    )
    return {
        FEDAVG: FedAvg(loss, **work),
        TRACKING: DFL(loss, tracking=True, **work),
        FESEM: FeSEM(loss, model_count=CENTRES, lam=LAM / 2, **work),
        ALONE: replace(plain, lam=0.0),
        LAPLACIAN: replace(plain, lower=LaplacianCoupling()),
        IDENTITY: plain,
        PRINTED: replace(learnt, upper=CosineEmbedding(), lam_upper=LAM / 2),
        HELD_OUT: learnt,
    }


def _on_both(algorithm: Any, networks: list[Network], rounds: int) -> Iterator[Record]:
    """A method on the graph it learns on, and on a homologous one, with the φ of the first."""
    for graph, network in zip(GRAPHS, networks, strict=True):
        curve: list[Record] = []
        run = fit(
            network, algorithm, rounds=rounds, stop=None, progress=False, measure_every=max(1, rounds // MEASURED),
            callbacks=[_watch(algorithm, network, curve)],
        )  # fmt: skip
        facts = {**steps_of_phi(run), "stopped": run.stopped}
        yield from ({"graph": graph, **facts, **record} for record in curve)
        if isinstance(algorithm, BiGFL) and algorithm.learns:
            algorithm = replace(algorithm, phi=algorithm.phi_of(run))


def steps_of_phi(run: Run) -> Record:
    """How many steps of φ were tried and skipped."""
    last = run.history.iloc[-1]
    return {"tried": last.get("phi_steps", 0.0) + last.get("skipped", 0.0), "skipped": last.get("skipped", 0.0)}


def _watch(algorithm: Any, network: Network, curve: list[Record]) -> Callable[..., None]:
    """Keep the error of every round that is measured; that of DFL is of the mean model."""

    def look(row: Mapping[str, float], snapshot: Callable[[], Snapshot]) -> None:
        error = row["error"]
        if isinstance(algorithm, DFL):
            test, w = network.test, snapshot().state.w
            assert test is not None
            error = float(algorithm.loss.models(w.mean(axis=0)[None]).error(test.X, test.y, 0 * test.owner).mean())
        curve.append({"round": int(row["round"]), "error": error})

    return look


def last_rows(runs: pandas.DataFrame, keys: list[str]) -> pandas.DataFrame:
    """The last row of every run, which may have stopped before the others."""
    return runs.sort_values("round", kind="stable").groupby(keys, sort=False).tail(1)


def skipped(ends: pandas.DataFrame, methods: list[str]) -> list[str]:
    """The mean share of steps of φ that were skipped, by method; empty where none was tried."""
    share = ends[ends["tried"] > 0].groupby("method").apply(lambda own: (own["skipped"] / own["tried"]).mean())
    return [f"{share[method]:.0%}" if method in share.index else "" for method in methods]


def _table(ends: pandas.DataFrame, columns: list[str]) -> pandas.DataFrame:
    means = ends.groupby(["method", *columns], sort=False)["error"].mean().unstack(columns)
    methods = list(METHODS)
    means = means.reindex(methods)
    means.columns = [", ".join(name) for name in means.columns]
    return means.map(lambda value: f"{value:.3f}").reset_index().assign(skipped=skipped(ends, methods))


def _errors(ends: pandas.DataFrame, graph: str = "train") -> Any:
    """(methods, seeds)."""
    return ends[ends["graph"] == graph].pivot(index="method", columns="seed", values="error")


def _figure_claims(ends: pandas.DataFrame, case: str) -> list[Claim]:
    claims = []
    for graph in GRAPHS:
        errors, where = _errors(ends, graph), f"{case}, {graph} graph"
        claims += [
            lower_error(f"FeSEM is ahead of FedAvg ({where})", errors, FESEM, FEDAVG),
            lower_error(f"BiG-FL, φ by (10.14), is ahead of FeSEM ({where})", errors, PRINTED, FESEM),
            lower_error(f"BiG-FL, φ by (10.14), is ahead of φ = I ({where})", errors, PRINTED, IDENTITY),
            lower_error(f"BiG-FL, φ by held-out error, is ahead of φ = I ({where})", errors, HELD_OUT, IDENTITY),
            lower_error(f"BiG-FL, φ by (10.14), is ahead of nodes alone ({where})", errors, PRINTED, ALONE),
            lower_error(
                f"BiG-FL, φ by (10.14), is ahead of a Laplacian coupling ({where})", errors, PRINTED, LAPLACIAN
            ),
        ]
    return claims


def lower_error(text: str, errors: Any, one: str, other: str) -> Claim:
    """Whether one method has a lower mean error than another; ``errors`` (methods, seeds)."""
    ours, theirs = errors.loc[one], errors.loc[other]
    wins = int((ours < theirs).sum())
    numbers = f"{ours.mean():.3f} against {theirs.mean():.3f}; lower in {wins} of {len(ours)} draws"
    return Claim(text, bool(ours.mean() < theirs.mean()), numbers)


def _draw_figure(figure: Any, runs: pandas.DataFrame) -> None:
    """The error by round, a panel for every case and graph."""
    cases = list(dict.fromkeys(runs["case"]))
    panels = figure.subplots(len(cases), len(GRAPHS), squeeze=False, sharex=True, sharey="row")
    for row, case in zip(panels, cases, strict=True):
        for axes, graph in zip(row, GRAPHS, strict=True):
            for method in METHODS:
                own = runs[(runs["case"] == case) & (runs["graph"] == graph) & (runs["method"] == method)]
                axes.plot(own.groupby("round")["error"].mean(), label=method)
            axes.set(title=f"{case}, {graph} graph", yscale="log")
            axes.grid(alpha=0.3)
        row[0].set_ylabel("relative error")
    for axes in panels[-1]:
        axes.set_xlabel("round")
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)


# ---------------------------------------------------------------------- does learning φ help?


@dataclass(frozen=True)
class PhiSetting:
    """How large the comparison is."""

    nodes: int = 50
    rounds: int = 1_500
    warm_up: int = 300
    phi_steps: int = 30
    truths: tuple[str, ...] = ("linear, reflected", "linear, kin", "networks, reflected", "networks, kin")


PHI_FULL = PhiSetting()
PHI_QUICK = PhiSetting(nodes=24, rounds=300, warm_up=60, phi_steps=10, truths=("linear, reflected", "linear, kin"))
PHI_LAM, PHI_STEP = 0.3, 0.05


def phi(seeds: int = 5, quick: bool = False) -> Outcome:
    """Does learning φ help? BiG-FL with every upper level, on truths whose φ* is known."""
    setting, count = PHI_QUICK if quick else PHI_FULL, 1 if quick else seeds
    frame = pandas.DataFrame([record for seed in range(count) for record in _phi_records(setting, seed)])
    ends = last_rows(frame, ["truth", "graph", "method", "seed"])
    return Outcome(
        "gfl-phi",
        "Relative error on test rows: train graph, and homologous graph with the φ of the first",
        f"{setting.nodes} nodes, λ = {PHI_LAM}, {setting.rounds:,} rounds, {setting.phi_steps} steps of φ; means over "
        f"{count} draw{'s' if count > 1 else ''}. φ is a matrix for linear models, a number per layer for networks.",
        frame,
        _phi_table(ends),
        [claim for truth in setting.truths for claim in _phi_claims(ends[ends["truth"] == truth], truth)],
        _draw_phi,
    )


def _phi_records(setting: PhiSetting, seed: int) -> Iterator[Record]:
    for truth in setting.truths:
        linear, reflected = truth.startswith("linear"), truth.endswith("reflected")
        draw = linear_truth if linear else network_truth
        drawn = [draw(seed, graph, nodes=setting.nodes, reflected=reflected) for graph in (0, 1)]
        networks = [each.network for each in drawn]
        for method, algorithm in _variants(drawn[0], setting, seed, linear=linear).items():
            for record in once((truth, method, seed), _on_both, algorithm, networks, setting.rounds):
                yield {"truth": truth, "method": method, "seed": seed, **record}


def _variants(drawn: Drawn, setting: PhiSetting, seed: int, *, linear: bool) -> dict[str, BiGFL]:
    """φ = I, given and learnt for every upper level, and what it is compared with."""
    loss = Squared() if linear else TorchLoss(student(seed, "Tanh", biases=True), step_size=PHI_STEP)
    lower = GraphEmbedding(FullMatrix() if linear else NumberPerLayer())
    plain = BiGFL(loss, lam=PHI_LAM, lower=lower, warm_up=setting.warm_up, phi_steps=setting.phi_steps, controls=False)
    learnt = replace(plain, phi="learn", upper=HeldOutError(0.34 if linear else 0.2))  # 2 of 6 rows, 3 of 16
    out = {
        ALONE: replace(plain, lam=0.0),
        LAPLACIAN: replace(plain, lower=LaplacianCoupling()),
        IDENTITY: plain,
        PRINTED: replace(learnt, upper=CosineEmbedding(), lam_upper=PHI_LAM / 2),
        HELD_OUT: learnt,
        LOW_RANK: replace(learnt, lower=GraphEmbedding(LowRank(8))),
        FITTED: replace(learnt, upper=Regression()),
        ORACLE: replace(plain, phi=drawn.phi),
    }
    return out


def _phi_table(ends: pandas.DataFrame) -> pandas.DataFrame:
    """A row for every method: train / homologous for every truth."""
    means = ends.groupby(["method", "truth", "graph"])["error"].mean()
    rows, methods = [], list(VARIANTS)
    for method, share in zip(methods, skipped(ends, methods), strict=True):
        pairs = {
            truth: " / ".join(f"{means[method, truth, graph]:.3f}" for graph in GRAPHS)
            for truth in dict.fromkeys(ends["truth"])
        }
        rows.append({"method": method, **pairs, "skipped": share})
    return pandas.DataFrame(rows)


def _phi_claims(ends: pandas.DataFrame, truth: str) -> list[Claim]:
    claims = []
    for graph in GRAPHS:
        errors, where = _errors(ends, graph), f"{truth}, {graph} graph"
        claims += [
            lower_error(f"φ by (10.14) is ahead of φ = I ({where})", errors, PRINTED, IDENTITY),
            lower_error(f"φ by held-out error is ahead of φ = I ({where})", errors, HELD_OUT, IDENTITY),
            lower_error(f"φ by held-out error is ahead of nodes alone ({where})", errors, HELD_OUT, ALONE),
            lower_error(f"φ by regression is ahead of φ by held-out error ({where})", errors, FITTED, HELD_OUT),
        ]
    return claims


def _draw_phi(figure: Any, runs: pandas.DataFrame) -> None:
    """A bar for every method and graph, a panel for every truth."""
    ends = last_rows(runs, ["truth", "graph", "method", "seed"])
    truths, methods = list(dict.fromkeys(ends["truth"])), list(VARIANTS)
    panels = figure.subplots(1, len(truths), squeeze=False, sharey=True)[0]
    for axes, truth in zip(panels, truths, strict=True):
        own = ends[ends["truth"] == truth]
        for k, graph in enumerate(GRAPHS):
            errors = own[own["graph"] == graph].groupby("method")["error"]
            place = np.arange(len(methods)) - 0.2 + 0.4 * k
            axes.barh(place, errors.mean().reindex(methods), 0.38, xerr=errors.std().reindex(methods), label=graph)
        axes.set(title=truth.replace(", ", ",\n"), xlabel="relative error")
        axes.grid(alpha=0.3, axis="x")
    panels[0].set_yticks(range(len(methods)), methods, fontsize=7)
    panels[0].invert_yaxis()
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=8)
