"""Abdurakhmanova, SarcheshmehPour, Jung: Towards Model-Agnostic Federated Learning over Networks (2025).

Trees: figure 2 (clusters) and figure 4 (mixtures), round by round. Settings are in ``fedrelax_runs``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas
from sklearn.tree import DecisionTreeRegressor

from kinfolk.algorithms.fedrelax import FedRelax
from kinfolk.datasets import Synthetic
from kinfolk.engine.fit import fit
from kinfolk.experiments.fedrelax_runs import (
    clustered,
    mixture,
    mixture_cases,
)
from kinfolk.experiments.outcome import Claim, Outcome
from kinfolk.experiments.unfinished import once
from kinfolk.network.network import Network

TREE_LAM = 0.001
TREE_ROUNDS = 5


# ---------------------------------------------------------------------- figure 2: clusters, trees


def fig2a(seeds: int = 5, quick: bool = False) -> Outcome:
    """FedRelax, figure 2a: trees, validation error by round and number of features."""
    values = (2, 10) if quick else (2, 10, 50)
    frame = _clustered_trees("d", values, seeds, quick)
    claims = [_falls(frame, d=value) for value in values]
    return _tree_outcome(
        "fedrelax-fig2a", "Figure 2a: validation error over that of the oracle, no noise", "d", frame, claims
    )


def fig2b(seeds: int = 5, quick: bool = False) -> Outcome:
    """FedRelax, figure 2b: trees, validation error by round and noise."""
    values = (0.0, 5.0) if quick else (0.0, 1.0, 5.0)
    frame = _clustered_trees("σ", values, seeds, quick)
    claims = [_falls(frame, **{"σ": value}) for value in values]
    return _tree_outcome(
        "fedrelax-fig2b", "Figure 2b: validation error over that of the oracle, d = 10", "σ", frame, claims
    )


def _clustered_trees(along: str, values: tuple[float, ...], seeds: int, quick: bool) -> pandas.DataFrame:
    """Three clusters of trees over the number of features or the noise: a row per round."""
    sizes, records = (6 if quick else 50,) * 3, []
    for value, seed in itertools.product(values, range(1 if quick else seeds)):
        features, noise = (int(value), 0.0) if along == "d" else (10, value)
        problem = clustered(sizes, features, noise, seed)
        oracle = _oracle_tree_error(problem)
        for count, mse in once((along, value, seed), _tree_errors, problem.network, TREE_LAM, seed):
            row = {"round": count, "mse": mse, "oracle": oracle, "normalised": mse / oracle}
            records.append({along: value, "α": TREE_LAM, "seed": seed, **row})
    return pandas.DataFrame(records)


def _tree() -> DecisionTreeRegressor:
    return DecisionTreeRegressor(max_depth=5)


def _tree_errors(network: Network, lam: float, seed: int) -> Iterator[tuple[int, float]]:
    """Validation error after every round; round 0 is every node alone."""
    algorithm = FedRelax(_tree(), lam, recall=100, weighting="literal")
    run = fit(network, algorithm, rounds=TREE_ROUNDS, stop=None, seed=seed)
    yield from enumerate(run.history["error"])


def _oracle_tree_error(problem: Synthetic) -> float:
    """Validation error of one tree per cluster, trained on all its rows."""
    data, test = problem.network.data, problem.network.test
    assert test is not None
    wrong = []
    for k in range(int(problem.cluster.max()) + 1):
        rows, held_out = problem.cluster[data.owner] == k, problem.cluster[test.owner] == k
        tree = _tree().set_params(random_state=0).fit(data.X[rows], data.y[rows])
        wrong.append((tree.predict(test.X[held_out]) - test.y[held_out]) ** 2)
    return float(np.concatenate(wrong).mean())


def _falls(frame: pandas.DataFrame, **where: float) -> Claim:
    """Whether the validation error of trees ends below where it began, round by round in the mean over seeds."""
    chosen = (frame[list(where)] == list(where.values())).all(axis=1)
    means = frame[chosen].groupby("round").mean()
    mse, at = means["mse"], ", ".join(f"{name} = {number:g}" for name, number in where.items())
    oracle = f"; oracle {means['oracle'].iloc[0]:.3g}" if "oracle" in means else ""
    return Claim(
        f"The validation error falls below that of nodes alone, {at}",
        bool(mse.iloc[-1] < mse.iloc[0]),
        " → ".join(f"{value:.3g}" for value in mse) + oracle,
    )


def _tree_outcome(name: str, title: str, along: str, frame: pandas.DataFrame, claims: list[Claim]) -> Outcome:
    means = frame.pivot_table(index="round", columns=along, values="normalised")
    table = means.rename(columns=lambda value: f"{along} = {value:g}").rename_axis(columns=None).reset_index()
    return Outcome(
        name,
        title,
        f"Trees of depth 5, α = {TREE_LAM:g}, public points weighted α, 100 recalled points (20). Round 0: alone.",
        frame,
        table,
        claims,
        lambda figure, runs: _draw_rounds(figure.add_subplot(), runs, along, "normalised", title),
    )


# ---------------------------------------------------------------------- figure 4: mixtures

PANELS = ("d", "α", "σ")  # what each panel varies; α = 0.01 (trees 0.001), σ = 0 and d = 10 elsewhere


def fig4(seeds: int = 5, quick: bool = False) -> Outcome:
    """FedRelax, figure 4: mixtures, trees."""
    node_count, strong = 20 if quick else 150, 0.1
    dimensions, noises = ((2, 10), (0.0, 5.0)) if quick else ((2, 10, 50), (0.0, 1.0, 5.0))
    cases = [(d, noise, TREE_LAM) for d, noise in mixture_cases(dimensions, noises)]
    cases += [(2, 0.0, strong), (10, 0.0, strong)]
    records = []
    for (features, noise, lam), seed in itertools.product(cases, range(1 if quick else seeds)):
        network = mixture(node_count, features, noise, seed)
        errors = once((features, noise, lam, seed), _tree_errors, network, lam, seed)
        for count, mse in errors:
            row = {"round": count, "mse": mse, "normalised": mse / errors[0][1]}
            records.append({"d": features, "σ": noise, "α": lam, "seed": seed, **row})
    frame = pandas.DataFrame(records)
    means = frame.pivot_table(index=["d", "σ", "α"], columns="round", values="normalised")
    return Outcome(
        "fedrelax-fig4",
        "Figure 4: validation error over that of nodes alone, by round; mixtures of three regressions",
        "Trees of depth 5, public points weighted α A, 100 recalled points (20). Edges (21) between all nodes.",
        frame,
        means.rename(columns=lambda count: f"round {count}").rename_axis(columns=None).reset_index(),
        [_falls(frame, **{"d": features, "σ": noise, "α": lam}) for features, noise, lam in cases]
        + [_strong_hurts(means, features, strong) for features in (2, 10)],
        _draw_tree_mixtures,
    )


def _strong_hurts(means: Any, features: int, strong: float) -> Claim:
    """Whether a strong α ends above a weak one."""
    course, weak = means.loc[features, 0.0, strong], means.loc[features, 0.0, TREE_LAM].iloc[-1]
    return Claim(
        f"α = {strong:g} ends worse than α = {TREE_LAM:g}, d = {features}",
        bool(course.iloc[-1] > weak),
        f"{course.iloc[-1]:.3g} against {weak:.3g} of nodes alone; its best is {course.min():.3g}, in round "
        f"{course.idxmin()}",
    )


# ---------------------------------------------------------------------- pictures


def _draw_rounds(axes: Any, runs: pandas.DataFrame, along: str, value: str, title: str) -> None:
    """A line per value of ``along``, round by round."""
    for number, part in runs.groupby(along):
        groups = part.groupby("round")[value]
        axes.errorbar(
            groups.mean().index,
            groups.mean(),
            yerr=groups.sem(),
            marker="o",
            markersize=4,
            capsize=2,
            label=f"{along} = {number:g}",
        )
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.set_xlabel("round")
    axes.set_ylabel("normalised validation error")
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.3, which="both")
    axes.legend()


def _draw_tree_mixtures(figure: Any, runs: pandas.DataFrame) -> None:
    quiet, weak = runs["σ"] == 0, runs["α"] == TREE_LAM
    parts = {"d": runs[quiet & weak], "α": runs[quiet & (runs["d"] == 2)], "σ": runs[weak & (runs["d"] == 10)]}
    titles = {"d": f"α = {TREE_LAM:g}, σ = 0", "α": "d = 2, σ = 0", "σ": f"d = 10, α = {TREE_LAM:g}"}
    for axes, along in zip(figure.subplots(1, 3, sharey=True), PANELS, strict=True):
        _draw_rounds(axes, parts[along], along, "normalised", titles[along])
        axes.label_outer()
    figure.suptitle("Figure 4: mixtures of three regressions, trees (below 1: pooling helps)")
