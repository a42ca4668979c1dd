"""SarcheshmehPour, Tian, Zhang, Jung: Clustered Federated Learning via Generalized Total Variation Minimization (2023).

Section VI-A (Table I, figure 2) and VI-B (figures 3 and 4). The error is the MSE (41), not divided by the number of
features. Every run of ``GTVMin`` goes on until the optimality conditions hold, or for the paper's number of rounds.

What the paper leaves open, and what is taken here: the summed loss and φ = ‖·‖₁ give the figure of Table I (the
averaged loss with φ = ‖·‖₂ is a row of its own); figure 2 divides 200 nodes; the chains have 2 × 50 nodes, data as in
Table I, the averaged loss (40) and φ = ‖·‖₁. The star graph is two stars whose centres are joined.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import pandas

from kinfolk.algorithms import IFCA, FedAvg, FedGD, GTVMin, Pooled, TorchDescent
from kinfolk.algorithms.ifca import OneOf
from kinfolk.datasets import Synthetic, block_regression, chain_regression, star_regression
from kinfolk.engine.fit import Tolerance, fit
from kinfolk.engine.run import Run
from kinfolk.experiments.outcome import Claim, Outcome
from kinfolk.objective.couplings import AbsoluteNorm, EuclideanNorm
from kinfolk.objective.losses import Squared
from kinfolk.theory import guaranteed_recovery
from kinfolk.typing import Floats

LAM = 1e-2  # sections VI-A
SUMMED_LOSS = Squared("sum")
SUMMED = GTVMin(SUMMED_LOSS, AbsoluteNorm(), LAM)
AVERAGED = GTVMin(Squared(), EuclideanNorm(), LAM)
PAPER = {"GTVMin, summed, ‖·‖₁": 1.42e-5, "IFCA, start {0, 1}": 2.82, "FedAvg": 2.86}  # Table I
DESCENTS: dict[str, FedGD | TorchDescent] = {"FedGD": FedGD(SUMMED_LOSS, SUMMED.coupling, LAM)}
if find_spec("torch"):
    DESCENTS["Adam (torch)"] = TorchDescent(SUMMED_LOSS, SUMMED.coupling, LAM)
IFCA_STARTS = {"{0, ½}": OneOf((0.0, 0.5)), "{0, 1}": OneOf((0.0, 1.0)), "{0, 5}": OneOf((0.0, 5.0))}

Record = dict[str, Any]


# ---------------------------------------------------------------------- Table I: two clusters


def table1(seeds: int = 5, quick: bool = False) -> Outcome:
    """Table I: 2 × 100 nodes, 10 samples of 100 features each."""
    records, facts, rounds = [], [], 300 if quick else 1_000
    for seed in range(1 if quick else seeds):
        problem = block_regression(seed=seed)
        runs = dict(_table1_runs(problem, seed, rounds))
        records += [
            {"method": name, "seed": seed, "mse": problem.error(_parameters(run))} for name, run in runs.items()
        ]
        facts.append(_theory(problem, runs["GTVMin, averaged, ‖·‖₂"]))
    frame = pandas.DataFrame(records)
    by_method = frame.groupby("method", sort=False)["mse"]
    table = by_method.agg(["median", "min", "max"]).reset_index()
    table["paper"] = table["method"].map(PAPER)
    return Outcome(
        "gtv-table1",
        "Table I: MSE (41) of the estimated parameters",
        "IFCA (given K = 2, one start) averages gradients with step 0.3; entries start at one of the two numbers. "
        "FedAvgC and the oracle are given the clusters. FedGD and Adam (a row only with torch installed) go down "
        "subgradients of the first row's objective; the paper has neither.",
        frame,
        table,
        _table1_claims(dict(zip(table["method"], table["median"], strict=True)), pandas.DataFrame(facts), rounds),
        _draw_methods,
    )


def _table1_runs(problem: Synthetic, seed: int, rounds: int) -> Iterator[tuple[str, Run]]:
    known = tuple(problem.cluster.tolist())
    yield "GTVMin, summed, ‖·‖₁", _fit(problem, SUMMED, rounds)
    yield "GTVMin, averaged, ‖·‖₂", _fit(problem, AVERAGED, rounds)
    for name, initial in IFCA_STARTS.items():
        yield f"IFCA, start {name}", _fit(problem, _ifca(2, initial), 400, seed)
    yield "FedAvg", _fit(problem, FedAvg(), 1_000)
    yield "FedAvgC (clusters known)", _fit(problem, FedAvg(clusters=known), 1_000)
    yield "Oracle (clusters known)", _fit(problem, Pooled(clusters=known), 10)
    for name, descent in DESCENTS.items():
        early = _fit(problem, descent, rounds)
        yield f"{name}, {rounds:,} rounds", early
        later = fit(problem.network, descent, rounds=2 * rounds, start=early, measure_every=100)
        yield f"{name}, {later.rounds:,} rounds", later


def _ifca(count: int, initial: OneOf, starts: int = 1) -> IFCA:
    """With a step that the pooled loss allows, nearly ten times what every single node would: it settles quickly."""
    return IFCA(average="gradients", step_size=0.3, model_count=count, initial=initial, starts=starts)


def _theory(problem: Synthetic, run: Run) -> Record:
    """Theorem 2 at the answer of the averaged problem: (35), (36) and (37), for the cluster that fulfils them worst."""
    w, algorithm = _parameters(run), run.algorithm
    promise = guaranteed_recovery(
        problem.network, problem.cluster.tolist(), algorithm.lam, algorithm.loss, algorithm.coupling
    )
    facts: Record = {"possible": promise.lam_above is not None, "left": 0.0, "right": np.inf, "bound": np.inf}
    facts |= {"spread": 0.0, "deviation": 0.0}
    for found in promise.clusters:
        mine = w[found.nodes]
        if found.cut is not None and found.cut.asked / found.cut.available > facts["left"] / facts["right"]:
            facts["left"], facts["right"] = found.cut.asked, found.cut.available
        facts["bound"] = min(facts["bound"], found.deviation)
        facts["spread"] = max(facts["spread"], np.linalg.norm(mine - mine.mean(axis=0), axis=1).max())
        facts["deviation"] = max(facts["deviation"], np.linalg.norm(mine - found.minimiser, axis=1).max())
    return facts


def _table1_claims(mse: dict[str, float], facts: pandas.DataFrame, rounds: int) -> list[Claim]:
    gtv, near, far = mse["GTVMin, summed, ‖·‖₁"], mse["IFCA, start {0, ½}"], mse["IFCA, start {0, 1}"]
    lost, plain = mse["IFCA, start {0, 5}"], mse["FedAvg"]
    slow = min(mse[f"{name}, {rounds:,} rounds"] for name in DESCENTS)
    deviation, bound, spread = facts["deviation"].max(), facts["bound"].min(), facts["spread"].max()
    least = facts.iloc[int((facts["left"] / facts["right"]).argmin())]  # the network that comes nearest to (35)
    return [
        Claim("Algorithm 1 reaches an MSE of 1.42e-5", 1e-5 <= gtv <= 2.1e-5, f"{gtv:.2e}"),
        Claim("FedAvg stays at 2.86", 2.0 <= plain <= 4.5, f"{plain:.2f}, one model for both clusters"),
        Claim("IFCA stays at 2.82, started in {0, 1}", far > 1, f"{far:.1e}"),
        Claim(
            "IFCA stays at 2.82, started ten times too large, in {0, 5}", lost > 1, f"{lost:.2f}, FedAvg {plain:.2f}"
        ),
        Claim("Algorithm 1 is better than FedAvg", gtv < plain, f"{gtv:.1e} against {plain:.1f}"),
        Claim("Algorithm 1 is better than IFCA started in {0, 1}", gtv < far, f"{gtv:.1e} against {far:.1e}"),
        Claim("... started at the scale of the weights, {0, ½}", gtv < near, f"{gtv:.1e} against {near:.1e}"),
        Claim("... started in {0, 5}", gtv < lost, f"{gtv:.1e} against {lost:.1f}"),
        Claim("Nodes of a cluster get the same model (36)", spread < 1e-6, f"they differ by {spread:.0e} at most"),
        Claim("The deviation from the oracle obeys (37)", deviation <= bound, f"{deviation:.1e} ≤ {bound:.1e}"),
        Claim(
            "Condition (35) holds where clusters are recovered",
            bool(facts["possible"].any()),
            f"for no λ; a set asks for {least['left']:,.0f} and its edges carry {least['right']:,.0f}",
        ),
        Claim(
            "Subgradient steps are slower (section IV)",
            slow > 10 * gtv,
            f"{slow:.1g} or more after {rounds:,} rounds",
        ),
    ]


def _draw_methods(figure: Any, runs: pandas.DataFrame) -> None:
    axes = figure.add_subplot()
    names = list(dict.fromkeys(runs["method"]))
    height = [names.index(name) for name in runs["method"]]
    axes.scatter(runs["mse"], height, s=30, alpha=0.7, label="here, one point per seed")
    paper = [name for name in names if name in PAPER]
    axes.scatter([PAPER[n] for n in paper], [names.index(n) for n in paper], marker="x", c="k", label="paper")
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("MSE (41)")
    axes.set_title("Table I: two clusters of 100 nodes")
    axes.grid(axis="x", alpha=0.3)
    axes.legend()


# ---------------------------------------------------------------------- figure 2: more clusters


def fig2(seeds: int = 5, quick: bool = False) -> Outcome:
    """Figure 2: 200 nodes in 2 to 10 clusters."""
    counts = (2, 4) if quick else (2, 4, 5, 8, 10)
    node_count = 80 if quick else 200
    records = []
    for count, seed in itertools.product(counts, range(1 if quick else seeds)):
        problem = block_regression((node_count // count,) * count, seed=seed)
        for name, run in _fig2_runs(problem, count, seed):
            mse = problem.error(_parameters(run))
            records.append({"method": name, "clusters": count, "seed": seed, "mse": mse})
    frame = pandas.DataFrame(records)
    medians = frame.pivot_table(index="method", columns="clusters", values="mse", aggfunc="median", sort=False)
    return Outcome(
        "gtv-fig2",
        "Figure 2: median MSE (41) by number of clusters",
        f"{node_count} nodes, p_in = 0.5, p_out = 0.01, λ = 0.01, summed loss, φ = ‖·‖₁. IFCA is given the number of "
        "clusters, FedAvgC the clusters. The paper prints no numbers.",
        frame,
        medians.reset_index(),
        _fig2_claims(medians),
        _draw_counts,
    )


def _fig2_runs(problem: Synthetic, count: int, seed: int) -> Iterator[tuple[str, Run]]:
    known = tuple(problem.cluster.tolist())
    yield "GTVMin", _fit(problem, SUMMED, 2_000)
    for name in ("{0, ½}", "{0, 1}"):
        yield f"IFCA, start {name}", _fit(problem, _ifca(count, IFCA_STARTS[name]), 400, seed)
    yield "IFCA, best of 10 {0, ½}", _fit(problem, _ifca(count, IFCA_STARTS["{0, ½}"], starts=10), 400, seed)
    yield "FedAvg", _fit(problem, FedAvg(), 1_000)
    yield "FedAvgC", _fit(problem, FedAvg(clusters=known), 2_000)


def _fig2_claims(medians: Any) -> list[Claim]:
    def everywhere(better: str, worse: str, text: str) -> Claim:
        ratio = medians.loc[worse] / medians.loc[better]
        where = ", ".join(f"{k}: {value:.1e}" for k, value in ratio.items())
        return Claim(text, bool((ratio > 1).all()), f"ratio for {where}")

    most = medians.loc["GTVMin"].max()
    return [
        Claim("Algorithm 1 learns the models for every number of clusters", most < 1e-2, f"MSE at most {most:.1e}"),
        everywhere("GTVMin", "FedAvg", "Algorithm 1 is better than FedAvg for every number of clusters"),
        everywhere("GTVMin", "IFCA, start {0, 1}", "Algorithm 1 is better than IFCA started in {0, 1}"),
        everywhere("GTVMin", "IFCA, start {0, ½}", "Algorithm 1 is better than IFCA started in {0, ½}"),
        everywhere("GTVMin", "IFCA, best of 10 {0, ½}", "Algorithm 1 is better than the best of ten such starts"),
        everywhere("FedAvgC", "GTVMin", "FedAvgC, given the clusters, is the benchmark: Algorithm 1 stays above it"),
    ]


def _draw_counts(figure: Any, runs: pandas.DataFrame) -> None:
    axes = figure.add_subplot()
    for (name, part), marker in zip(runs.groupby("method", sort=False), "os^vDX", strict=False):
        _draw_range(axes, part.groupby("clusters")["mse"], marker=marker, label=name)
    axes.set_yscale("log")
    axes.set_xlabel("number of clusters")
    axes.set_ylabel("MSE (41), median and range over seeds")
    axes.set_title("Figure 2: clusters of a stochastic block model")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper")


# ---------------------------------------------------------------------- figures 3 and 4: chain and star

GRAPHS: dict[str, Callable[..., Synthetic]] = {"chain": chain_regression, "star": star_regression}
LAMS = (1e-3, 1e-2, 1e-1)
SETTING = "Two clusters of {} nodes, averaged loss (40), φ = ‖·‖₁; the paper prints no numbers and no star."


def fig3(seeds: int = 5, quick: bool = False) -> Outcome:
    """Figure 3: chain and star, no noise, by the share ρ with data."""
    shares = (0.6, 1.0) if quick else (0.2, 0.4, 0.6, 0.8, 1.0)
    return _sweep("gtv-fig3", "Figure 3: median MSE (41), no noise", "ρ", shares, seeds, quick)


def fig4(seeds: int = 5, quick: bool = False) -> Outcome:
    """Figure 4: chain and star, data at 6 of 10 nodes, by the noise σ."""
    noises = (0.0, 1.0) if quick else (0.0, 0.01, 0.1, 1.0)
    return _sweep("gtv-fig4", "Figure 4: median MSE (41), ρ = 0.6", "σ", noises, seeds, quick)


def _sweep(name: str, title: str, along: str, values: tuple[float, ...], seeds: int, quick: bool) -> Outcome:
    """Chain and star over λ, ε, and the share or the noise."""
    size, links, rounds = (20, (0.01, 0.5), 1_000) if quick else (50, (0.01, 0.1, 0.5), 2_000)
    grid = itertools.product(GRAPHS, LAMS, links, values, range(1 if quick else seeds))
    records = []
    for graph, lam, link, value, seed in grid:
        share, noise = (value, 0.0) if along == "ρ" else (0.6, value)
        problem = GRAPHS[graph](size, link=link, share=share, noise=noise, seed=seed)
        run = _fit(problem, GTVMin(Squared(), AbsoluteNorm(), lam), rounds, accuracy=1e-7)
        mse = problem.error(_parameters(run))
        records.append({"graph": graph, "λ": lam, "ε": link, along: value, "seed": seed, "mse": mse})
    frame = pandas.DataFrame(records)
    medians = frame.pivot_table(index=["graph", "λ", "ε"], columns=along, values="mse", aggfunc="median", sort=False)
    table = medians.rename(columns=lambda value: f"{along} = {value:g}").reset_index()
    claims = _share_claims(medians) if along == "ρ" else _noise_claims(medians)
    note = SETTING.format(size)
    return Outcome(
        name, title, note, frame, table, claims, lambda figure, runs: _draw_sweep(figure, runs, along, title)
    )


def _share_claims(medians: Any) -> list[Claim]:
    chain, star = medians.loc["chain"], medians.loc["star"]
    few, some, every = medians.columns.min(), medians.columns[len(medians.columns) // 2], medians.columns.max()
    low, middle, high = LAMS
    return [
        Claim(
            "The more nodes have data, the smaller the error",
            bool((medians[every] < medians[few]).all()),
            f"ρ = {few:g} to {every:g} lowers it by {(medians[few] / medians[every]).min():.1g} times at least",
        ),
        _weaker_link(medians, every),
        Claim(
            "λ must be large enough to pool (35): a small one fails on a chain where few nodes have data",
            bool((chain.loc[low, some] > 10 * chain.loc[middle, some]).all()),
            f"ρ = {some:g}: {chain.loc[low, some].min():.1e} or more at λ = {low:g}, "
            f"{chain.loc[middle, some].max():.1e} or less at {middle:g}",
        ),
        Claim(
            "λ must be small enough for a small bias (37): with data everywhere, less is better",
            bool((chain.loc[middle, every] < chain.loc[high, every]).all()),
            f"ρ = 1: {chain.loc[middle, every].max():.1e} or less at λ = {middle:g}, "
            f"{chain.loc[high, every].max():.1e} or less at {high:g}",
        ),
        Claim(
            "A star pools better than a chain: its nodes are two steps apart",
            bool((star <= 1.001 * chain).to_numpy().all()),  # once both are pooled, the errors are the same
            f"error of the star over that of the chain: {(star / chain).to_numpy().min():.2g} "
            f"to {(star / chain).to_numpy().max():.2g}",
        ),
    ]


def _weaker_link(medians: Any, value: float) -> Claim:
    """Whether ε matters, at one share or noise."""
    by_link = medians[value].unstack("ε")
    weakest, strongest = by_link.columns.min(), by_link.columns.max()
    ratio = by_link[strongest] / by_link[weakest]
    return Claim(
        f"The weaker the edge between clusters, the smaller the error, at {medians.columns.name} = {value:g}",
        bool((ratio > 1).all()),
        f"ε = {strongest:g} has {ratio.min():.2g} to {ratio.max():.2g} times the error of ε = {weakest:g}",
    )


def _noise_claims(medians: Any) -> list[Claim]:
    none, most = medians.columns.min(), medians.columns.max()
    ratio = medians[most] / medians[none]
    return [
        Claim(
            "The more noise, the larger the error",
            bool((ratio > 1).all()),
            f"σ = {none:g} to {most:g} raises it {ratio.min():.1g} to {ratio.max():.1g} times",
        ),
        _weaker_link(medians, none),
        _weaker_link(medians, most),
    ]


def _draw_sweep(figure: Any, runs: pandas.DataFrame, along: str, title: str) -> None:
    lams = sorted(runs["λ"].unique())
    panels = figure.subplots(len(GRAPHS), len(lams), sharex=True, sharey=True)
    for (row, graph), (column, lam) in itertools.product(enumerate(GRAPHS), enumerate(lams)):
        axes, part = panels[row][column], runs[(runs["graph"] == graph) & (runs["λ"] == lam)]
        for link, line in part.groupby("ε"):
            _draw_range(axes, line.groupby(along)["mse"], marker="o", label=f"ε = {link:g}")
        axes.set_yscale("log")
        axes.set_title(f"{graph}, λ = {lam:g}", fontsize=10)
        axes.grid(alpha=0.3)
    figure.supxlabel(along)
    figure.supylabel("MSE (41), median and range over seeds")
    figure.suptitle(title.replace("median ", ""))
    panels[0][-1].legend(fontsize=8)


def _draw_range(axes: Any, groups: Any, **style: Any) -> None:
    """A line through the medians of groups, evenly spaced, with bars from the smallest to the largest value."""
    middle, place = groups.median(), range(len(groups))
    bars = [middle - groups.min(), groups.max() - middle]
    axes.errorbar(place, middle, yerr=bars, markersize=5, linewidth=1.2, capsize=2, alpha=0.8, **style)
    axes.set_xticks(place, [f"{value:g}" for value in middle.index])


def _parameters(run: Run) -> Floats:
    w: Floats = run.models.w
    return w


def _fit(problem: Synthetic, algorithm: Any, rounds: int, seed: int = 0, accuracy: float = 1e-8) -> Run:
    """Run until the residual is small, or for so many rounds."""
    return fit(problem.network, algorithm, rounds=rounds, stop=Tolerance(accuracy), measure_every=50, seed=seed)
