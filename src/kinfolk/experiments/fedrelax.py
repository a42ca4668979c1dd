"""Abdurakhmanova, SarcheshmehPour, Jung: Towards Model-Agnostic Federated Learning over Networks (2025).

Linear models: figure 1 (clusters) and figure 3 (mixtures). Settings are in ``fedrelax_runs``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas

from kinfolk.algorithms import IFCA, FedAvg, Pooled
from kinfolk.algorithms.ifca import Uniform
from kinfolk.datasets import Synthetic
from kinfolk.engine.fit import fit
from kinfolk.engine.run import Run
from kinfolk.experiments.fedrelax_runs import (
    ALONE,
    EXACT,
    LAMS,
    PAPER_ROUNDS,
    SAMPLES,
    STEPS,
    clustered,
    linear_runs,
    method_name,
    mixture,
    mixture_cases,
    parameter_error,
)
from kinfolk.experiments.outcome import Claim, Outcome

# Measured apart from this code, means over three networks: (d, α, method) -> error (18).
MEASURED = {
    (2, 0.0, STEPS): 0.000, (2, 0.01, STEPS): 0.085, (2, 0.05, STEPS): 0.420,
    (10, 0.0, STEPS): 0.089, (10, 0.01, STEPS): 0.116, (10, 0.05, STEPS): 0.291,
    (20, 0.0, STEPS): 0.682, (20, 0.01, STEPS): 0.258, (20, 0.05, STEPS): 0.423,
    (50, 0.0, STEPS): 0.933, (50, 0.01, STEPS): 0.444, (50, 0.05, STEPS): 0.502,
    (100, 0.0, STEPS): 0.937, (100, 0.01, STEPS): 0.587, (100, 0.05, STEPS): 0.622,
    (2, 0.0, ALONE): 0.0, (10, 0.0, ALONE): 0.0, (20, 0.0, ALONE): 0.54, (50, 0.0, ALONE): 0.82,
}  # fmt: skip
MEASURED_SEEDS = 3


# ---------------------------------------------------------------------- figure 1: clusters, linear models


def fig1a(seeds: int = 5, quick: bool = False) -> Outcome:
    """FedRelax, figure 1a: linear models, error by the number of features."""
    dimensions = (2, 20) if quick else (2, 10, 20, 50, 100)
    frame = _fig1_runs("d", dimensions, seeds, quick)
    means = _means(frame, "d")
    return Outcome(
        "fedrelax-fig1a",
        "Figure 1a: mean error (18) of the parameters, no noise",
        f"Three clusters, {SAMPLES} samples per node. RMSprop: the paper's optimiser, one step in each of 500 rounds.",
        frame,
        means.reset_index(),
        _fig1a_claims(frame, means, quick),
        lambda figure, runs: _draw_lines(figure, runs, "d", "Figure 1a: three clusters, linear models, no noise"),
    )


def fig1b(seeds: int = 5, quick: bool = False) -> Outcome:
    """FedRelax, figure 1b: linear models, error by the noise."""
    noises = (0.0, 5.0) if quick else (0.0, 1.0, 5.0)
    frame = _fig1_runs("σ", noises, seeds, quick)
    means = _means(frame, "σ")
    return Outcome(
        "fedrelax-fig1b",
        "Figure 1b: mean error (18) of the parameters, d = 10",
        "As many samples as features at every node: least squares alone fits the noise, and its mean error has no "
        "bound.",
        frame,
        means.reset_index(),
        _fig1b_claims(means),
        lambda figure, runs: _draw_lines(figure, runs, "σ", "Figure 1b: three clusters, linear models, d = 10"),
    )


def _fig1_runs(along: str, values: tuple[float, ...], seeds: int, quick: bool) -> pandas.DataFrame:
    """Three clusters over the number of features or the noise: a row per run."""
    sizes, records = (10 if quick else 50,) * 3, []
    for value, seed in itertools.product(values, range(1 if quick else seeds)):
        features, noise = (int(value), 0.0) if along == "d" else (10, value)
        problem = clustered(sizes, features, noise, seed)
        for lam, method, run in linear_runs(problem.network, LAMS, seed):
            mse = parameter_error(problem, run)
            records.append({along: value, "α": lam, "method": method, "seed": seed, "mse": mse})
    return pandas.DataFrame(records)


def _means(frame: pandas.DataFrame, along: str, value: str = "mse") -> Any:
    """Means over seeds: a row per α and method, a column per value."""
    means = frame.pivot_table(index=["α", "method"], columns=along, values=value, sort=False)
    return means.rename(columns=lambda column: f"{along} = {column:g}").rename_axis(columns=None)


def _fig1a_claims(frame: pandas.DataFrame, means: Any, quick: bool) -> list[Claim]:
    alone, unfinished = means.loc[0.0, ALONE], means.loc[0.0, STEPS]
    weak = means.loc[LAMS[0], EXACT]
    few, many = means.columns[0], means.columns[means.columns.get_loc("d = 20") :]
    gap = max(float((means.loc[lam, STEPS] / means.loc[lam, EXACT] - 1).abs().max()) for lam in LAMS)
    claims = [
        _helps(f"FedRelax (α = {LAMS[0]}) is better than nodes alone for d/m ≥ 2", alone[many], weak[many]),
        _helps(f"... for d/m = {0.1 * float(few[4:]):g}", alone[[few]], weak[[few]]),
        _helps("... than the paper's 500 steps alone, for d/m ≥ 2", unfinished[many], weak[many]),
        Claim(
            "500 steps of RMSprop reach the fixed point for α > 0",
            gap < 0.1,
            f"errors differ by {100 * gap:.1f} % at most",
        ),
        Claim(
            "500 steps of RMSprop reach the least squares of nodes alone, for d/m ≥ 2",
            bool((unfinished[many] < 1.1 * alone[many]).all()),
            "they give " + _listed(unfinished[many] / alone[many]) + " times its error",
        ),
    ]
    if "d = 10" in means.columns:
        claims.insert(1, _helps("... for d/m = 1", alone[["d = 10"]], weak[["d = 10"]]))
    return claims if quick else [*claims, _agreement(frame)]


def _agreement(frame: pandas.DataFrame) -> Claim:
    """Whether means are what was measured before, within the noise of both."""
    groups = frame.groupby(["d", "α", "method"])["mse"]
    mean, spread, count = groups.mean(), groups.std(), groups.size()
    apart = {
        key: abs(mean[key] - before) / max(spread[key] * np.sqrt(1 / count[key] + 1 / MEASURED_SEEDS), 5e-4)
        for key, before in MEASURED.items()
        if key in mean.index
    }
    worst = max(apart, key=lambda key: apart[key])
    return Claim(
        "Means agree with those measured before, within three standard errors",
        apart[worst] < 3,
        f"{len(apart)} cells; the worst is {apart[worst]:.1f} away: d = {worst[0]}, α = {worst[1]:g}, {worst[2]}, "
        f"{mean[worst]:.3f} against {MEASURED[worst]:.3f}",
    )


def _fig1b_claims(means: Any) -> list[Claim]:
    none, most = means.columns[0], means.columns[-1]
    alone, unfinished = means.loc[0.0, ALONE], means.loc[0.0, STEPS]
    claims = []
    for lam in LAMS:
        weak = means.loc[lam, EXACT]
        claims += [
            _helps(f"α = {lam}: better than least squares alone at {most}", alone[[most]], weak[[most]]),
            _helps(f"α = {lam}: better than 500 steps alone at {most}", unfinished[[most]], weak[[most]]),
            _helps(f"α = {lam}: better than least squares alone at {none}", alone[[none]], weak[[none]]),
            _helps(f"α = {lam}: better than 500 steps alone at {none}", unfinished[[none]], weak[[none]]),
        ]
    return claims


def _helps(text: str, before: Any, after: Any) -> Claim:
    """Whether ``after`` is smaller than ``before`` everywhere."""
    pairs = (f"{name}: {after[name]:.2g} against {before[name]:.2g}" for name in before.index)
    return Claim(text, bool((after < before).all()), "; ".join(pairs))


def _listed(values: Any) -> str:
    return ", ".join(f"{value:.2g}" for value in values)


def fig1c(seeds: int = 5, quick: bool = False) -> Outcome:
    """FedRelax, figure 1c: five clusters, against FedAvg, IFCA and the oracle."""
    sizes, features, records = (10 if quick else 30,) * 5, 20 if quick else 50, []
    for seed in range(1 if quick else seeds):
        problem = clustered(sizes, features, 0.0, seed)
        for method, run in _fig1c_runs(problem, seed):
            records.append({"method": method, "seed": seed, "mse": parameter_error(problem, run)})
    frame = pandas.DataFrame(records)
    table = frame.groupby("method", sort=False)["mse"].agg(["mean", "min", "max"])
    return Outcome(
        "fedrelax-fig1c",
        f"Figure 1c: error (18) of the parameters, five clusters, d = {features}, no noise",
        "FedAvg and IFCA average gradients with step 0.01, for 500 rounds. IFCA starts in ±1/√d, FedAvg at zero.",
        frame,
        table.reset_index(),
        _fig1c_claims(table["mean"]),
        _draw_methods,
    )


def _fig1c_runs(problem: Synthetic, seed: int) -> Iterator[tuple[str, Run]]:
    network, limit = problem.network, 1 / np.sqrt(problem.truth.shape[1])
    for lam, method, run in linear_runs(network, LAMS, seed):
        yield (f"FedRelax, {method_name(lam, method)}" if lam else method_name(lam, method)), run
    averaging: dict[str, Any] = {"average": "gradients", "step_size": 0.01}
    options: dict[str, Any] = {"rounds": PAPER_ROUNDS, "stop": None, "measure_every": PAPER_ROUNDS, "seed": seed}
    for name, count, starts in (("K = 5", 5, 1), ("K = 5, best of ten starts", 5, 10), ("K = 2", 2, 1)):
        rival = IFCA(model_count=count, initial=Uniform(-limit, limit), starts=starts, **averaging)
        yield f"IFCA, {name}", fit(network, rival, **options)
    yield "FedAvg", fit(network, FedAvg(**averaging), **options)
    yield "Oracle (clusters known)", fit(network, Pooled(clusters=tuple(problem.cluster.tolist())), rounds=10)


def _fig1c_claims(mse: Any) -> list[Claim]:
    def better(one: str, other: str, text: str) -> Claim:
        return Claim(text, bool(mse[one] < mse[other]), f"{mse[one]:.2g} against {mse[other]:.2g}")

    ours, oracle = f"FedRelax, α = {LAMS[0]}, {EXACT}", "Oracle (clusters known)"
    return [
        better(ours, f"alone, {STEPS}", "FedRelax is better than nodes alone, 500 steps"),
        better(ours, ALONE, "FedRelax is better than nodes alone, least norm"),
        better(oracle, ours, "FedRelax does not reach the oracle"),
        Claim(
            "IFCA given K = 5 is on a par with the oracle", bool(mse["IFCA, K = 5"] < 0.01), f"{mse['IFCA, K = 5']:.2g}"
        ),
        better(
            "IFCA, K = 5, best of ten starts", ours, "IFCA given K = 5, best of ten starts, is better than FedRelax"
        ),
        better(ours, "IFCA, K = 2", "FedRelax is better than IFCA given K = 2"),
        better(ours, "FedAvg", "FedRelax is better than FedAvg"),
        better("FedAvg", f"alone, {STEPS}", "FedAvg is better than nodes alone, 500 steps"),
        better("FedAvg", ALONE, "FedAvg is better than nodes alone, least norm"),
    ]


# ---------------------------------------------------------------------- figure 3: mixtures


def fig3(seeds: int = 5, quick: bool = False) -> Outcome:
    """FedRelax, figure 3: mixtures, linear models."""
    node_count, records = 30 if quick else 150, []
    cases = mixture_cases((2, 10) if quick else (2, 10, 50), (0.0, 5.0) if quick else (0.0, 1.0, 5.0))
    for (features, noise), seed in itertools.product(cases, range(1 if quick else seeds)):
        network = mixture(node_count, features, noise, seed)
        for lam, method, run in linear_runs(network, LAMS, seed):
            records.append({"d": features, "σ": noise, "α": lam, "method": method, "seed": seed, "mse": run.error()})
    frame = pandas.DataFrame(records)
    means = frame.pivot_table(index=["d", "σ"], columns=["α", "method"], values="mse")
    names = {(lam, method): method_name(lam, method) for lam, method in zip(frame["α"], frame["method"], strict=True)}
    table = means[list(names)].set_axis(list(names.values()), axis=1)
    return Outcome(
        "fedrelax-fig3",
        "Figure 3: mean validation error, mixtures of three regressions",
        "Edges (21) between all nodes. Exact: the fixed point; RMSprop: the paper's 500 steps.",
        frame,
        table.reset_index(),
        [_mixture_claim(means, lam, method) for lam in LAMS for method in (ALONE, STEPS)],
        _draw_mixtures,
    )


def _mixture_claim(means: Any, lam: float, method: str) -> Claim:
    """Whether pooling lowers the validation error for every d and σ."""
    ratio = means[lam, EXACT] / means[0.0, method]
    rival = "nodes alone, least norm" if method == ALONE else "the paper's 500 steps alone"
    where = "; ".join(f"d = {d}, σ = {noise:g}: {value:.2g}" for (d, noise), value in ratio.items())
    return Claim(f"α = {lam:g} is better than {rival}, for every d and σ", bool((ratio < 1).all()), f"ratio {where}")


# ---------------------------------------------------------------------- pictures


def _draw_lines(figure: Any, runs: pandas.DataFrame, along: str, title: str) -> None:
    """Error against d or σ, a line per α and method."""
    axes = figure.add_subplot()
    styles = {ALONE: ":", EXACT: "-", STEPS: "--"}
    colours = {lam: f"C{k}" for k, lam in enumerate(sorted(runs["α"].unique()))}
    for lam, method in dict.fromkeys(zip(runs["α"], runs["method"], strict=True)):
        part = runs[(runs["α"] == lam) & (runs["method"] == method)]
        label = method_name(lam, method)
        groups = part.groupby(along)["mse"]
        place = range(len(groups))
        axes.errorbar(
            place, groups.mean(), yerr=groups.sem(), color=colours[lam], linestyle=styles[method], marker="o",
            markersize=4, capsize=2, label=label,
        )  # fmt: skip
        axes.set_xticks(place, [f"{value:g}" for value in groups.groups])
    axes.set_yscale("symlog", linthresh=0.1)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("features d (10 samples per node)" if along == "d" else "noise σ")
    axes.set_ylabel("error (18), mean ± standard error")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper")


def _draw_methods(figure: Any, runs: pandas.DataFrame) -> None:
    axes = figure.add_subplot()
    names = list(dict.fromkeys(runs["method"]))
    axes.scatter(runs["mse"], [names.index(name) for name in runs["method"]], s=30, alpha=0.6)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel("error (18), one point per network")
    axes.set_title("Figure 1c: five clusters, linear models, no noise")
    axes.grid(axis="x", alpha=0.3)


def _draw_mixtures(figure: Any, runs: pandas.DataFrame) -> None:
    """Exact runs over the paper's nodes alone, and over nodes alone of least norm."""
    keys = ["d", "σ", "seed"]
    panels = figure.subplots(1, 2, sharey=True)
    for axes, method in zip(panels, (STEPS, ALONE), strict=True):
        alone = runs[(runs["α"] == 0) & (runs["method"] == method)].set_index(keys)["mse"]
        for lam in LAMS:
            ours = runs[(runs["α"] == lam) & (runs["method"] == EXACT)].set_index(keys)["mse"]
            ratio = (ours / alone).groupby(["d", "σ"]).agg(["mean", "sem"])
            axes.errorbar(
                range(len(ratio)),
                ratio["mean"],
                yerr=ratio["sem"],
                marker="o",
                linestyle="none",
                capsize=2,
                label=f"α = {lam:g}",
            )
            axes.set_xticks(range(len(ratio)), [f"d = {d}\nσ = {noise:g}" for d, noise in ratio.index])
        axes.axhline(1, color="k", linewidth=0.8)
        axes.set_title(f"over nodes alone, {'500 steps' if method == STEPS else 'least norm'}", fontsize=10)
        axes.set_yscale("log")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("validation error, normalised")
    panels[0].legend()
    figure.suptitle("Figure 3: mixtures of three regressions, linear models (below 1: pooling helps)")
