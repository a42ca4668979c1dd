"""Abdurakhmanova, SarcheshmehPour, Jung: Towards Model-Agnostic Federated Learning over Networks (2025).

Section IV-A (figures 1 and 2: clusters), IV-B (figures 3 and 4: mixtures) and V (figure 5: the bound on the variation).
The paper's α is λ here. 150 nodes with 10 samples each, 100 public points from N(0, I) at every node. The error of
parameters is (18), divided by the number of features; that of predictions is the mean square on 100 validation samples.

What the paper leaves open, and what is taken here: α for figure 2 and the left and right part of figure 4 is 0.001,
and 0.1 where the middle part of figure 4 reads "strong"; the noise of figure 4 is that of figure 3, σ = 0, 1, 5;
Algorithm 3 rounds m_i ρ by largest remainders. The paper takes one step of RMSprop per round, 500 of them, which for
α = 0 and many features has not converged: nodes alone are shown so, and exactly (the minimiser of least norm).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas
import scipy.linalg
from sklearn.tree import DecisionTreeRegressor

from kinfolk.algorithms import IFCA, FedAvg, Local, Pooled
from kinfolk.algorithms.fedrelax import FedRelax
from kinfolk.algorithms.ifca import Uniform
from kinfolk.datasets import Synthetic, mixture_regression
from kinfolk.engine.fit import Tolerance, fit
from kinfolk.engine.run import Run
from kinfolk.experiments.outcome import Claim, Outcome
from kinfolk.experiments.unfinished import once
from kinfolk.local_models.least_squares import LinearModel, RMSprop
from kinfolk.network import public
from kinfolk.network.graph import Graph
from kinfolk.network.graphs import stochastic_block
from kinfolk.network.network import Network
from kinfolk.typing import Floats

SAMPLES, VALIDATION = 10, 100
PAPER_ROUNDS = 500
LAMS = (0.01, 0.05)
ALONE, EXACT, STEPS = "alone, least norm", "exact", "RMSprop"
TREE_LAM = 0.001
TREE_ROUNDS = 5

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

Record = dict[str, Any]


# ---------------------------------------------------------------------- networks


def _clustered(
    sizes: tuple[int, ...], features: int, noise: float, seed: int, p_in: float = 0.8, p_out: float = 0.2
) -> Synthetic:
    """Section IV-A: nodes of a cluster share w̄ ~ N(0, I)."""
    graph, cluster = stochastic_block(sizes, p_in, p_out, seed=seed)
    rng = np.random.default_rng([seed, 1])
    truth = rng.normal(size=(len(sizes), features))[cluster]
    weights = np.repeat(truth[:, None], SAMPLES + VALIDATION, axis=1)
    return Synthetic(_network(graph, weights, noise, seed, rng), truth, cluster)


def _mixture(node_count: int, features: int, noise: float, seed: int) -> Network:
    """Algorithm 3: a node draws each sample from one of three regressions, in its own proportions ρ_i."""
    return mixture_regression(node_count, features=features, noise=noise, seed=seed).network


def _network(graph: Graph, weights: Floats, noise: float, seed: int, rng: np.random.Generator) -> Network:
    """y = x'w̄ + σ ε with w̄ (nodes, samples, features); the last samples of a node are for validation."""
    X = rng.normal(size=weights.shape)
    y = np.einsum("imd,imd->im", X, weights) + noise * rng.normal(size=weights.shape[:2])
    train, rest = ([(x[part], t[part]) for x, t in zip(X, y, strict=True)] for part in _SPLIT)
    network = Network(graph, train, test=rest)
    return network.with_public(public.standard_normal(network, per_node=True, seed=seed))


_SPLIT = (slice(None, SAMPLES), slice(SAMPLES, None))


# ---------------------------------------------------------------------- runs


def _linear_runs(network: Network, lams: tuple[float, ...], seed: int) -> Iterator[tuple[float, str, Run]]:
    """Nodes alone, and FedRelax exactly and with the paper's optimiser: (α, method, run)."""
    yield 0.0, ALONE, fit(network, Local(), rounds=0)
    yield 0.0, STEPS, _steps(network, 0.0, seed)
    for lam in lams:
        yield lam, EXACT, _exact(network, lam)
        yield lam, STEPS, _steps(network, lam, seed)


def _exact(network: Network, lam: float) -> Run:
    """Exact local minimisation, until predictions no longer move."""
    return fit(network, FedRelax(LinearModel(), lam), rounds=2_000, stop=Tolerance(1e-6), measure_every=50)


def _steps(network: Network, lam: float, seed: int, rounds: int = PAPER_ROUNDS, start: Run | None = None) -> Run:
    """One step of RMSprop per node and round."""
    algorithm = FedRelax(LinearModel(step=RMSprop()), lam)
    return fit(network, algorithm, rounds=rounds, stop=None, measure_every=PAPER_ROUNDS, seed=seed, start=start)


def _parameters(run: Run) -> Floats:
    """(nodes, features)."""
    models = run.models
    w: Floats = models.w if hasattr(models, "w") else np.stack([fitted.w for fitted in models.fitted])
    return w


def _parameter_error(problem: Synthetic, run: Run) -> float:
    """(18), averaged over the nodes."""
    out: float = problem.error(_parameters(run)) / problem.truth.shape[1]
    return out


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
        problem = _clustered(sizes, features, noise, seed)
        for lam, method, run in _linear_runs(problem.network, LAMS, seed):
            mse = _parameter_error(problem, run)
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
        problem = _clustered(sizes, features, 0.0, seed)
        for method, run in _fig1c_runs(problem, seed):
            records.append({"method": method, "seed": seed, "mse": _parameter_error(problem, run)})
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
    for lam, method, run in _linear_runs(network, LAMS, seed):
        yield (f"FedRelax, {_method_name(lam, method)}" if lam else _method_name(lam, method)), run
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
        problem = _clustered(sizes, features, noise, seed)
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


# ---------------------------------------------------------------------- figures 3 and 4: mixtures

PANELS = ("d", "α", "σ")  # what each panel varies; α = 0.01 (trees 0.001), σ = 0 and d = 10 elsewhere


def fig3(seeds: int = 5, quick: bool = False) -> Outcome:
    """FedRelax, figure 3: mixtures, linear models."""
    node_count, records = 30 if quick else 150, []
    cases = _mixture_cases((2, 10) if quick else (2, 10, 50), (0.0, 5.0) if quick else (0.0, 1.0, 5.0))
    for (features, noise), seed in itertools.product(cases, range(1 if quick else seeds)):
        network = _mixture(node_count, features, noise, seed)
        for lam, method, run in _linear_runs(network, LAMS, seed):
            records.append({"d": features, "σ": noise, "α": lam, "method": method, "seed": seed, "mse": run.error()})
    frame = pandas.DataFrame(records)
    means = frame.pivot_table(index=["d", "σ"], columns=["α", "method"], values="mse")
    names = {(lam, method): _method_name(lam, method) for lam, method in zip(frame["α"], frame["method"], strict=True)}
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


def _method_name(lam: float, method: str) -> str:
    """As it stands in tables and legends."""
    if method == ALONE:
        return method
    return f"α = {lam:g}, {method}" if lam else f"alone, {method}"


def _mixture_cases(dimensions: tuple[int, ...], noises: tuple[float, ...]) -> list[tuple[int, float]]:
    """(d, σ): every d without noise, and every noise at d = 10."""
    return list(dict.fromkeys([*((d, 0.0) for d in dimensions), *((10, noise) for noise in noises)]))


def _mixture_claim(means: Any, lam: float, method: str) -> Claim:
    """Whether pooling lowers the validation error for every d and σ."""
    ratio = means[lam, EXACT] / means[0.0, method]
    rival = "nodes alone, least norm" if method == ALONE else "the paper's 500 steps alone"
    where = "; ".join(f"d = {d}, σ = {noise:g}: {value:.2g}" for (d, noise), value in ratio.items())
    return Claim(f"α = {lam:g} is better than {rival}, for every d and σ", bool((ratio < 1).all()), f"ratio {where}")


def fig4(seeds: int = 5, quick: bool = False) -> Outcome:
    """FedRelax, figure 4: mixtures, trees."""
    node_count, strong = 20 if quick else 150, 0.1
    dimensions, noises = ((2, 10), (0.0, 5.0)) if quick else ((2, 10, 50), (0.0, 1.0, 5.0))
    cases = [(d, noise, TREE_LAM) for d, noise in _mixture_cases(dimensions, noises)]
    cases += [(2, 0.0, strong), (10, 0.0, strong)]
    records = []
    for (features, noise, lam), seed in itertools.product(cases, range(1 if quick else seeds)):
        network = _mixture(node_count, features, noise, seed)
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


# ---------------------------------------------------------------------- figure 5: the bound on the variation

VARIATION_ROUNDS = (0, 10, 20, 50, 100, 200, 300, 400, 500)


def fig5a(seeds: int = 5, quick: bool = False) -> Outcome:
    """FedRelax, figure 5a: variation within a cluster and its bound (25), by the noise."""
    return _variation_outcome("fedrelax-fig5a", "σ", (0.1, 5.0) if quick else (0.1, 1.0, 5.0), seeds, quick)


def fig5b(seeds: int = 5, quick: bool = False) -> Outcome:
    """FedRelax, figure 5b: variation within a cluster and its bound (25), by how well it is joined."""
    return _variation_outcome("fedrelax-fig5b", "p_in", (0.2, 1.0) if quick else (0.2, 0.6, 1.0), seeds, quick)


def _variation_outcome(name: str, along: str, values: tuple[float, ...], seeds: int, quick: bool) -> Outcome:
    node_count, lams, records = 20 if quick else 50, (1e-4, 1e-2, 1e-1), []
    for value, lam, seed in itertools.product(values, lams, range(1 if quick else seeds)):
        noise, p_in = (value, 0.8) if along == "σ" else (0.1, value)
        problem = _clustered((node_count,), 10, noise, seed, p_in)
        bound = _variation_bound(problem, lam)
        for count, found in once((along, value, lam, seed), _variations, problem.network, lam, seed):
            row = {"round": count, "variation": found, "bound": bound, "seed": seed}
            records.append({along: value, "α": lam, **row})
    frame = pandas.DataFrame(records)
    means = frame.groupby([along, "α", "round"])[["variation", "bound"]].mean()
    last = means.xs(PAPER_ROUNDS, level="round")
    return Outcome(
        name,
        f"Figure {name[-2:]}: variation Σ‖w_i − mean‖² and its bound (25) after 500 rounds",
        f"One cluster of {node_count} nodes, d = 10, {'p_in = 0.8' if along == 'σ' else 'σ = 0.1'}; a step of RMSprop "
        "per round. (25) is proved for the coupling ‖w_i − w_j‖².",
        frame,
        last.reset_index(),
        _variation_claims(last, along),
        lambda figure, runs: _draw_variation(figure, runs, along),
    )


def _variation_bound(problem: Synthetic, lam: float) -> float:
    """(25): Σ_i L_i(w̄) / (α λ₂)."""
    data = problem.network.data
    wrong = (data.y - np.einsum("rd,rd->r", data.X, problem.truth[data.owner])) ** 2
    laplacian = scipy.sparse.csgraph.laplacian(problem.network.graph.to_sparse()).toarray()
    return float(wrong.sum() / SAMPLES / (lam * scipy.linalg.eigvalsh(laplacian)[1]))


def _variations(network: Network, lam: float, seed: int) -> Iterator[tuple[int, float]]:
    """Σ_i ‖w_i − mean‖² (22) after some rounds."""
    run = None
    for before, count in itertools.pairwise((0, *VARIATION_ROUNDS)):
        run = _steps(network, lam, seed, rounds=count - before, start=run)
        w = _parameters(run)
        yield count, float(((w - w.mean(axis=0)) ** 2).sum())


def _variation_claims(last: Any, along: str) -> list[Claim]:
    ratio, by_lam = last["variation"] / last["bound"], last["variation"].unstack("α")
    more, falls = by_lam.diff().iloc[1:], by_lam.T.diff().iloc[1:]
    expected = (more > 0) if along == "σ" else (more < 0)
    text = "The more noise, the more variation" if along == "σ" else "The better joined, the less variation"
    return [
        Claim(
            "The variation is below the bound (25) after 500 rounds",
            bool((ratio < 1).all()),
            f"{ratio.min():.1g} to {ratio.max():.1g} of it",
        ),
        Claim("The larger α, the less variation", bool((falls < 0).to_numpy().all()), _extremes(by_lam)),
        Claim(text, bool(expected.to_numpy().all()), _extremes(by_lam.T)),
    ]


def _extremes(table: Any) -> str:
    """The first and the last column of every row."""
    first, last = table.columns[0], table.columns[-1]
    return "; ".join(
        f"{table.index.name} = {name:g}: {row[first]:.2g} at {first:g}, {row[last]:.2g} at {last:g}"
        for name, row in table.iterrows()
    )


# ---------------------------------------------------------------------- pictures


def _draw_lines(figure: Any, runs: pandas.DataFrame, along: str, title: str) -> None:
    """Error against d or σ, a line per α and method."""
    axes = figure.add_subplot()
    styles = {ALONE: ":", EXACT: "-", STEPS: "--"}
    colours = {lam: f"C{k}" for k, lam in enumerate(sorted(runs["α"].unique()))}
    for lam, method in dict.fromkeys(zip(runs["α"], runs["method"], strict=True)):
        part = runs[(runs["α"] == lam) & (runs["method"] == method)]
        label = _method_name(lam, method)
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


def _draw_tree_mixtures(figure: Any, runs: pandas.DataFrame) -> None:
    quiet, weak = runs["σ"] == 0, runs["α"] == TREE_LAM
    parts = {"d": runs[quiet & weak], "α": runs[quiet & (runs["d"] == 2)], "σ": runs[weak & (runs["d"] == 10)]}
    titles = {"d": f"α = {TREE_LAM:g}, σ = 0", "α": "d = 2, σ = 0", "σ": f"d = 10, α = {TREE_LAM:g}"}
    for axes, along in zip(figure.subplots(1, 3, sharey=True), PANELS, strict=True):
        _draw_rounds(axes, parts[along], along, "normalised", titles[along])
        axes.label_outer()
    figure.suptitle("Figure 4: mixtures of three regressions, trees (below 1: pooling helps)")


def _draw_variation(figure: Any, runs: pandas.DataFrame, along: str) -> None:
    """A panel per α: variation (solid) and bound (dashed) by round."""
    lams = sorted(runs["α"].unique())
    panels = figure.subplots(1, len(lams), sharey=True)
    for axes, lam in zip(panels, lams, strict=True):
        for k, (value, part) in enumerate(runs[runs["α"] == lam].groupby(along)):
            mean = part.groupby("round")[["variation", "bound"]].mean()
            axes.plot(
                mean.index, mean["variation"], color=f"C{k}", marker="o", markersize=3, label=f"{along} = {value:g}"
            )
            axes.plot(mean.index, mean["bound"], color=f"C{k}", linestyle="--")
        axes.set_yscale("log")
        axes.set_title(f"α = {lam:g}", fontsize=10)
        axes.grid(alpha=0.3)
    figure.supxlabel("round")
    figure.supylabel("variation Σ‖w_i − mean‖² (solid), bound (25) (dashed)")
    figure.suptitle(f"Figure 5: one cluster, by {along}")
    panels[0].legend(fontsize=8)
