"""Is GTVMin right on every instance? Random networks of unpleasant kinds, against CVXPY, by the default run.

    python benchmarks/instances.py                 300 instances
    python benchmarks/instances.py --count 30      fewer
    python benchmarks/instances.py --first 300     others

All losses and couplings; stars, chains, grids, random graphs, some in pieces; weights of edges over eight decades;
features over six; nodes without data or with fewer samples than features; classes that can be separated, nodes with one
class only; outliers of a million; λ from 0 to 1e9. The oracle is the objective at CVXPY's parameters, computed here: no
best answer can be worse, whatever CVXPY's own tolerances. An instance counts as

    wrong      called converged, but more than 1e-5 of the scale above CVXPY's objective
    unsound    the certificate claims that CVXPY's objective is impossible
    open       not called converged, and the run says so
"""

from __future__ import annotations

import argparse
import time
import warnings
from dataclasses import dataclass, replace
from typing import Any

import convex
import cvxpy
import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from kinfolk import AbsoluteNorm, EuclideanNorm, Graph, GTVMin, Logistic, Network, Squared, SquaredNorm, fit
from kinfolk.objective.couplings import MaximumNorm, PNorm, QuadraticForm
from kinfolk.objective.losses import Absolute, Huber, Poisson, Quantile, SquaredDistance

WRONG = 1e-5  # of the scale
ROUNDING = 1e-9  # of the scale
LOSSES = (Squared, SquaredDistance, Logistic, Huber, Poisson, Absolute, Quantile)
COUPLINGS = ("EuclideanNorm", "AbsoluteNorm", "SquaredNorm", "MaximumNorm", "PNorm", "QuadraticForm")


@dataclass(frozen=True)
class Instance:
    """A random problem."""

    number: int
    kind: str
    network: Network
    algorithm: GTVMin


@dataclass(frozen=True)
class Verdict:
    """What came of an instance; distances are parts of the scale."""

    instance: Instance
    run: Any
    above: float  # CVXPY's objective; negative if below; NaN if CVXPY has no answer
    proven: float  # by the certificate
    seconds: float  # of the processor

    @property
    def converged(self) -> bool:
        """Whether the run calls its answer converged."""
        return bool(self.run.stopped.startswith("converged"))

    @property
    def outcome(self) -> str:
        """ "right", "wrong", "unsound" or "open"."""
        if self.above > self.proven + ROUNDING:
            return "unsound"
        if self.converged:
            return "wrong" if self.above > WRONG else "right"
        return "open"


def instance(number: int) -> Instance:
    """The random problem of a number."""
    rng = np.random.default_rng([number, 14])
    loss_type, coupling_name = LOSSES[number % 7], COUPLINGS[number // 7 % 6]
    shape, graph = _graph(rng)
    features = int(rng.integers(1, 6))
    loss = _loss(rng, loss_type)
    width = features + int(loss.intercept)
    coupling = _coupling(rng, coupling_name, width)
    if isinstance(coupling, QuadraticForm) and loss.ridge == 0:
        loss = replace(loss, ridge=0.1)  # in a direction that is not coupled, nodes may have no minimum
    spread = rng.choice([0.0, 3.0])
    sets = _sets(rng, loss, graph.node_count, features, spread)
    lam = float(rng.choice([0.0, 1e-3, 0.1, 1.0, 30.0, 1e4, 1e9], p=[0.05, 0.15, 0.25, 0.25, 0.15, 0.1, 0.05]))
    kind = f"{loss_type.__name__}, {coupling_name}, λ = {lam:g}, {shape}" + (", wide features" if spread else "")
    return Instance(number, kind, Network(graph, sets), GTVMin(loss, coupling, lam))


def _graph(rng: Any) -> tuple[str, Graph]:
    size = int(rng.integers(4, 21))
    shape = str(rng.choice(["star", "chain", "grid", "expander", "pieces"]))
    if shape == "star":
        ends = [(0, k) for k in range(1, size)]
    elif shape == "chain":
        ends = [(k, k + 1) for k in range(size - 1)]
    elif shape == "grid":
        side = max(2, round(np.sqrt(size)))
        size, cell = side * side, np.arange(side * side).reshape(side, side)
        ends = [*zip(cell[:, :-1].ravel(), cell[:, 1:].ravel(), strict=True)]
        ends += [*zip(cell[:-1].ravel(), cell[1:].ravel(), strict=True)]
    else:
        share = 4 / size if shape == "expander" else 1.2 / size
        ends = [(i, j) for i in range(size) for j in range(i + 1, size) if rng.random() < share]
    decades = float(rng.choice([0.0, 1.0, 4.0]))
    name = shape + (", wide weights" if decades == 4 else "")
    return name, Graph(
        size, np.array(ends, dtype=int).reshape(-1, 2), 10.0 ** rng.uniform(-decades, decades, len(ends))
    )


def _loss(rng: Any, kind: Any) -> Any:
    ridge = float(rng.choice([0.0, 0.0, 0.01, 1.0]))
    extra: dict[str, Any] = {} if kind is SquaredDistance else {"intercept": bool(rng.random() < 0.4)}
    if kind is Huber:
        extra["delta"] = float(rng.choice([0.1, 1.0]))
    if kind is Quantile:
        extra["level"] = float(rng.choice([0.1, 0.5, 0.8]))
    return kind(str(rng.choice(["mean", "sum"])), ridge, **extra)


def _coupling(rng: Any, name: str, width: int) -> Any:
    if name == "PNorm":
        return PNorm(p=float(rng.choice([1.2, 1.5, 3.0, 10.0])))
    if name == "QuadraticForm":
        root = rng.normal(size=(width, max(1, width - int(rng.integers(0, 2)))))
        Q = root @ root.T
        return QuadraticForm(tuple(map(tuple, ((Q + Q.T) / 2).tolist())))
    plain = {"EuclideanNorm": EuclideanNorm, "AbsoluteNorm": AbsoluteNorm, "SquaredNorm": SquaredNorm}
    return {**plain, "MaximumNorm": MaximumNorm}[name]()


def _sets(rng: Any, loss: Any, nodes: int, features: int, spread: float) -> list[Any]:
    """Samples of every node; None: it has none."""
    truth = rng.normal(size=(2, features))
    scale = 10.0 ** rng.uniform(-spread, spread, features)
    hidden, outliers = rng.choice([0.0, 0.4]), rng.random() < 0.3
    separable = rng.random() < 0.5
    sets: list[Any] = []
    for node in range(nodes):
        if node and rng.random() < hidden:
            sets.append(None)
            continue
        X = rng.normal(size=(int(rng.integers(1, 9)), features))
        z = X @ truth[node % 2] + (0.0 if separable else 0.5) * rng.normal(size=len(X))
        sets.append((X * scale, _labels(rng, loss, z, outliers)))
    return sets


def _labels(rng: Any, loss: Any, z: Any, outliers: bool) -> Any:
    if isinstance(loss, Logistic):
        return (z > 0).astype(float)
    if isinstance(loss, Poisson):
        return np.floor(np.exp(np.clip(z, -3, 4)))
    if outliers and not isinstance(loss, SquaredDistance):
        z[rng.random(len(z)) < 0.2] += 1e6 * rng.choice([-1, 1])
    return z


def judge(given: Instance, rounds: int = 10_000) -> Verdict:
    """Solve an instance by the default run, and compare with CVXPY."""
    began = time.process_time()
    run = fit(given.network, given.algorithm, rounds=rounds, progress=False)
    seconds = time.process_time() - began
    w = oracle(given)
    ours = convex.objective(given.network, given.algorithm, np.nan_to_num(run.models.w))
    scale = scale_of(given, ours)
    above = np.nan if w is None else (ours - convex.objective(given.network, given.algorithm, w)) / scale
    return Verdict(given, run, above, run.certificate.bound / scale, seconds)


def scale_of(given: Instance, ours: float) -> float:
    """The objective, or a part of that of zero parameters where it is smaller still."""
    zero = np.zeros((given.network.graph.node_count, given.algorithm.loss.width(given.network.data.feature_count)))
    return max(ours, 1e-4 * convex.objective(given.network, given.algorithm, zero)) or 1.0


def oracle(given: Instance) -> Any:
    """CVXPY's parameters; None if it gives up."""
    problem = convex.build(given.network, given.algorithm)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            problem.solve(solver=cvxpy.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)
        except (cvxpy.SolverError, ValueError, ArithmeticError):
            return None
    w = convex.parameters(problem)
    return None if w is None or not np.isfinite(w).all() else w


def table(verdicts: list[Verdict]) -> Table:
    """One row per loss."""
    out = Table(title=f"{len(verdicts)} random instances, default runs")
    for column in ("loss", "right", "wrong", "unsound", "open", "proven to 1e-6", "no oracle", "median s", "largest s"):
        out.add_column(column, justify="left" if column == "loss" else "right")
    for name in [*(kind.__name__ for kind in LOSSES), "all"]:
        some = [v for v in verdicts if name in ("all", type(v.instance.algorithm.loss).__name__)]
        if not some:
            continue
        counts = [sum(v.outcome == outcome for v in some) for outcome in ("right", "wrong", "unsound", "open")]
        seconds = [v.seconds for v in some]
        proven = sum(v.proven <= 1e-6 for v in some)
        no_oracle = sum(bool(np.isnan(v.above)) for v in some)
        row = [*counts, proven, no_oracle, f"{np.median(seconds):.2f}", f"{max(seconds):.1f}"]
        out.add_row(name, *map(str, row))
    return out


def main() -> None:
    """Print what is not right, then the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=300)
    given = parser.parse_args()
    console = Console(width=160)
    verdicts = []
    for number in track(range(given.first, given.first + given.count), "instances", console=console, transient=True):
        verdict = judge(instance(number))
        verdicts.append(verdict)
        if verdict.outcome != "right" or verdict.proven > 1e-6 or verdict.seconds > 5:
            line = f"{number}: {verdict.outcome}, above {verdict.above:.1e}, proven {verdict.proven:.1e}, "
            line += f"{verdict.seconds:.1f} s: {verdict.instance.kind}; {verdict.run.stopped}"
            console.print(line, highlight=False, soft_wrap=True)
    console.print(table(verdicts))


if __name__ == "__main__":
    main()
