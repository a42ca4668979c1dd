"""How fast is GTVMin? Rivals solve the same objective in the same process; what counts are the ratios.

    python benchmarks/gtvmin.py            all cases
    python benchmarks/gtvmin.py --quick    the small ones

Columns: rounds and seconds to a relative KKT residual of 1e-6 with the default steps and with the published ones, the
certified relative sub-optimality, and the seconds of CVXPY's solvers (construction apart). Compilation is not counted:
every case is run once for two rounds before the clock starts. A last table compares paths of 30 values of λ over two
decades with as many fits from zero, every value to the same 1e-6.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import cvxpy
import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from kinfolk import (
    AbsoluteNorm,
    Data,
    EuclideanNorm,
    GTVMin,
    Logistic,
    Network,
    Squared,
    SquaredNorm,
    datasets,
    fit,
    graphs,
)
from kinfolk.demo import hidden_counties, standardised
from kinfolk.selection import path
from kinfolk.testing import difficult_network

SEED = 100  # not used for tuning
PUBLISHED_ROUNDS = 20_000


@dataclass(frozen=True)
class Case:
    """A problem to solve."""

    name: str
    network: Callable[[], Network]
    algorithm: GTVMin
    solvers: tuple[str, ...] = ("CLARABEL", "SCS")


def table1(features: int = 100, hidden: float = 0.0) -> Network:
    """The network of Table I of the GTV paper."""
    rng = np.random.default_rng(SEED)
    graph, block = graphs.stochastic_block([100, 100], 0.5, 0.01, seed=SEED)
    truth = 0.5 * rng.integers(0, 2, (2, features))
    sets: list[Any] = []
    for node in range(200):
        X = rng.normal(size=(10, features))
        y = X @ truth[block[node]] + 1e-3 * rng.normal(size=10)
        sets.append(None if rng.random() < hidden else (X, y))
    return Network(graph, sets)


def chain() -> Network:
    """Two clusters in a row with a weak link."""
    rng = np.random.default_rng(SEED)
    truth = rng.normal(size=(2, 2))
    sets = [(X := rng.normal(size=(5, 2)), X @ truth[k // 50] + 0.1 * rng.normal(size=5)) for k in range(100)]
    return Network(graphs.chain(100, weak_link=0.1), sets)


def counties() -> Network:
    """The US counties, a fifth of them hidden."""
    dataset = datasets.load_us_counties()
    hidden = hidden_counties(len(dataset.frame), SEED)
    return standardised(dataset, hidden).network(test=hidden)


def two_classes() -> Network:
    """Two clusters of classifiers."""
    rng = np.random.default_rng(SEED)
    graph, block = graphs.stochastic_block([50, 50], 0.5, 0.02, seed=SEED)
    truth = rng.normal(size=(2, 5))
    sets = [
        (X := rng.normal(size=(20, 5)), (X @ truth[block[k]] + 0.3 * rng.normal(size=20) > 0).astype(float))
        for k in range(100)
    ]
    return Network(graph, sets)


def spatial(node_count: int) -> Network:
    """Points in the plane, ten neighbours on average, ten features, one sample each."""
    rng = np.random.default_rng(SEED)
    graph = graphs.knn(rng.random((node_count, 2)), 8)
    X = rng.normal(size=(node_count, 10))
    return Network(graph, Data(X, X[:, 0] + 0.1 * rng.normal(size=node_count), np.arange(node_count + 1)))


WITH_INTERCEPT = Squared(intercept=True)
CASES = [
    # Clarabel takes minutes here: SCS is CVXPY's best.
    Case("Table I, ‖·‖₂, averaged", table1, GTVMin(Squared(), EuclideanNorm(), 1e-2), ("SCS",)),
    Case("Table I, ‖·‖₂, summed", table1, GTVMin(Squared("sum"), EuclideanNorm(), 1e-2), ()),
    Case("Table I, ‖·‖₁, averaged", table1, GTVMin(Squared(), AbsoluteNorm(), 1e-2), ()),
    Case("Table I, ‖·‖₁, summed", table1, GTVMin(Squared("sum"), AbsoluteNorm(), 1e-2), ()),
    Case("60 % of nodes without data", lambda: table1(20, 0.6), GTVMin(Squared(), EuclideanNorm(), 1e-2)),
    Case("chain, weak link", chain, GTVMin(lam=0.1)),
    Case("counties, ‖·‖₂, λ = 0.3", counties, GTVMin(WITH_INTERCEPT, EuclideanNorm(), 0.3)),
    Case("counties, ½‖·‖², λ = 0.3", counties, GTVMin(WITH_INTERCEPT, SquaredNorm(), 0.3)),
    Case("logistic", two_classes, GTVMin(Logistic(), EuclideanNorm(), 0.05)),
]


def build(network: Network, algorithm: GTVMin) -> cvxpy.Problem:
    """The same objective for CVXPY, with all edges in one expression."""
    graph, loss = network.graph, algorithm.loss
    width = network.data.feature_count + int(loss.intercept)
    w = cvxpy.Variable((graph.node_count, width))
    X = np.hstack([network.data.X, np.ones((len(network.data.y), int(loss.intercept)))])
    z = cvxpy.sum(cvxpy.multiply(X, w[network.data.owner]), axis=1)
    share = np.ones(len(X)) if loss.reduction == "sum" else 1.0 / network.data.sizes[network.data.owner]
    y = network.data.y
    rows = cvxpy.square(z - y) if isinstance(loss, Squared) else cvxpy.logistic(z) - cvxpy.multiply(y, z)
    v = w[graph.head] - w[graph.tail]
    charge = {
        EuclideanNorm: lambda: cvxpy.norm(v, 2, axis=1),
        AbsoluteNorm: lambda: cvxpy.norm(v, 1, axis=1),
        SquaredNorm: lambda: 0.5 * cvxpy.sum(cvxpy.square(v), axis=1),
    }[type(algorithm.coupling)]()
    return cvxpy.Problem(cvxpy.Minimize(share @ rows + (algorithm.lam * graph.weights) @ charge))


def solve(network: Network, algorithm: GTVMin, solver: str) -> tuple[float, float]:
    """Seconds that a solver of CVXPY takes, and those of construction."""
    began = time.perf_counter()
    problem = build(network, algorithm)
    problem.get_problem_data(getattr(cvxpy, solver))
    construction = time.perf_counter() - began
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        problem.solve(solver=getattr(cvxpy, solver))
    return time.perf_counter() - began, construction


def timed(network: Network, algorithm: GTVMin, rounds: int = PUBLISHED_ROUNDS) -> tuple[Any, float]:
    """A run to 1e-6 and its seconds, after the kernels have been compiled."""
    fit(network, algorithm, rounds=2, progress=False)
    began = time.perf_counter()
    run = fit(network, algorithm, rounds=rounds, progress=False)
    return run, time.perf_counter() - began


def compare(cases: list[Case]) -> Table:
    """One row per case."""
    table = Table(title="To a relative KKT residual of 1e-6")
    for column in ("case", "rounds", "s", "published", "s", "ratio", "certified", "CVXPY s", "ratio"):
        table.add_column(column, justify="left" if column == "case" else "right")
    ratios = []
    for case in track(cases, "solving", transient=True):
        network = case.network()
        run, seconds = timed(network, case.algorithm)
        paper, paper_seconds = timed(network, replace(case.algorithm, steps="published"))
        ratios.append(run.rounds / paper.rounds)
        times = {name: solve(network, case.algorithm, name) for name in case.solvers}
        best = min(times, key=lambda name: times[name][0]) if times else None
        shown = "" if best is None else f"{times[best][0]:.2g} {best} (+{times[best][1]:.2g})"
        gain = "" if best is None else f"{times[best][0] / seconds:.2g}×"
        reached = f"{paper.rounds:,}" if paper.stopped.startswith("converged") else f">{paper.rounds:,}"
        table.add_row(
            case.name, f"{run.rounds:,}", f"{seconds:.2f}", reached, f"{paper_seconds:.2f}", f"{1 / ratios[-1]:.1f}×",
            f"{run.certificate.relative:.0e}", shown, gain,
        )  # fmt: skip
    table.caption = f"Rounds, published over default: median {1 / np.median(ratios):.1f}, least {1 / max(ratios):.1f}"
    return table


def scaling(sizes: list[int]) -> Table:
    """Seconds a round on spatial graphs, against the time to copy what a round must read and write once."""
    table = Table(title="Ten features, about ten neighbours, one sample a node, ‖·‖₂")
    for column in ("nodes", "edges", "ms a round", "floor ms", "ratio"):
        table.add_column(column, justify="right")
    for size in sizes:
        network = spatial(size)
        algorithm = GTVMin(lam=0.1)
        fit(network, algorithm, rounds=2, stop=None, progress=False)
        began = time.perf_counter()
        fit(network, algorithm, rounds=20, stop=None, progress=False, measure_every=1_000)
        none = time.perf_counter()
        fit(network, algorithm, rounds=0, stop=None, progress=False)
        # The first ten rounds are measured, each at about the cost of a round.
        each = ((none - began) - (time.perf_counter() - none)) / 31
        u = np.zeros((network.graph.edge_count, 10))
        w = np.zeros((size, 10))
        floor = min(_copy(u) + 2 * _copy(w) for _ in range(5))
        edges = network.graph.edge_count
        table.add_row(f"{size:,}", f"{edges:,}", f"{1e3 * each:.1f}", f"{1e3 * floor:.1f}", f"{each / floor:.1f}")
    return table


PATHS = [
    ("small difficult network, ‖·‖₂", difficult_network, GTVMin(), 0.01),
    ("small difficult network, ‖·‖₁", difficult_network, GTVMin(coupling=AbsoluteNorm()), 0.01),
    ("chain, weak link", chain, GTVMin(), 0.01),
    ("counties, ‖·‖₂", counties, GTVMin(WITH_INTERCEPT), 0.03),
    ("Table I, ‖·‖₂, averaged", table1, GTVMin(), 1e-3),
    ("Table I, ‖·‖₁, summed", table1, GTVMin(Squared("sum"), AbsoluteNorm()), 1e-3),
]


def paths(cases: list[tuple[str, Callable[[], Network], GTVMin, float]], count: int = 30) -> Table:
    """What a path costs, in fits from zero."""
    table = Table(title=f"Paths of {count} values of λ over two decades")
    for column in ("case", "λ from", "cold rounds", "s", "path rounds", "s", "cold solves", "in s"):
        table.add_column(column, justify="left" if column == "case" else "right")
    for name, make, algorithm, smallest in track(cases, "following", transient=True):
        network, lams = make(), np.geomspace(smallest, 100 * smallest, count)
        cold = [timed(network, replace(algorithm, lam=lam)) for lam in lams]
        began = time.perf_counter()
        runs = [run for _, run in path(network, algorithm, lams, rounds=PUBLISHED_ROUNDS, progress=False)]
        seconds = time.perf_counter() - began
        assert all(run.stopped.startswith("converged") for run in [*runs, *(run for run, _ in cold)])
        cold_rounds, cold_seconds = sum(run.rounds for run, _ in cold), sum(each for _, each in cold)
        table.add_row(
            name, f"{smallest:g}", f"{cold_rounds:,}", f"{cold_seconds:.1f}", f"{runs[-1].rounds:,}", f"{seconds:.1f}",
            f"{count * runs[-1].rounds / cold_rounds:.1f}", f"{count * seconds / cold_seconds:.1f}",
        )  # fmt: skip
    return table


def _copy(array: Any) -> float:
    target = np.empty_like(array)
    began = time.perf_counter()
    np.copyto(target, array)
    return time.perf_counter() - began


def main() -> None:
    """Print the three tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    console = Console(width=140)
    console.print(compare(CASES[4:] if quick else CASES))
    console.print(scaling([10_000] if quick else [10_000, 100_000]))
    console.print(paths(PATHS[:3] if quick else PATHS))


if __name__ == "__main__":
    main()
