"""What noise costs: error on held-out rows beside ε, on the counties of 1980 and on synthetic clusters.

    python benchmarks/noise_cost.py

It prints the table of docs/how-to/privacy.md. Everything is drawn from seeds; errors are means over two of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kinfolk import FedAvg, GTVMin, InProcess, Local, Network, SquaredNorm, fit, graphs
from kinfolk.datasets import load_us_counties
from kinfolk.engine.noise import Noise

MULTIPLIERS = (0.1, 1.0, 4.0, 16.0)  # deviation of the noise, as a multiple of 2 clip
SEEDS = 2
HEAD = "| data | algorithm | noise / 2 clip | ε at δ = 1e-5 | mean squared error | without noise |"


def counties() -> Network:
    """Every fifth county is held out; features and target have mean 0 and deviation 1."""
    found = load_us_counties()
    table = found.frame[["log_college", "log_homeownership", "log_income", found.target]].to_numpy()
    table = (table - table.mean(axis=0)) / table.std(axis=0)
    held_out = np.random.default_rng(0).permutation(len(table)) % 5 == 0
    rows = [(row[None, :-1], row[-1:]) for row in table]
    learnt = [None if out else row for row, out in zip(rows, held_out, strict=True)]
    return Network(
        found.graph, learnt, test=[row if out else None for row, out in zip(rows, held_out, strict=True)]
    )  # fmt: skip


def clusters(size: int) -> Network:
    """Two clusters of 50 nodes with opposite models and so many rows each; 20 more to test."""
    graph, cluster = graphs.stochastic_block([50, 50], 0.2, 0.01, seed=1)
    rng = np.random.default_rng(1)

    def drawn(node: int, count: int) -> tuple[Any, Any]:
        X = rng.normal(size=(count, 2))
        return X, (1 - 2 * cluster[node]) * (X @ [1.0, 0.5]) + 0.5 * rng.normal(size=count)

    return Network(graph, [drawn(k, size) for k in range(100)], test=[drawn(k, 20) for k in range(100)])


def line(network: Network, algorithm: Any, rounds: int, noise: Noise | None) -> tuple[float, float]:
    """Error, and ε against all who read."""
    errors, spent = [], np.inf
    for seed in range(SEEDS if noise is not None else 1):
        run = fit(
            network, algorithm, rounds=rounds, stop=None, engine=InProcess(noise=noise), seed=seed,
            measure_every=None, progress=False,
        )  # fmt: skip
        errors.append(run.error())
        spent = np.inf if run.privacy is None else float(run.privacy.table()["ε, together"].max())
    return float(np.mean(errors)), spent


def main() -> None:
    """Print the table."""
    here = counties()
    cases = [
        ("counties", here, "FedAvg, 10 rounds, one model", FedAvg(average="gradients", step_size=0.5), 10),
        ("counties", here, "GTVMin, 20 rounds", GTVMin(coupling=SquaredNorm(), lam=1.0, steps="published"), 20),
        ("clusters", clusters(3), "GTVMin, 20 rounds", GTVMin(lam=0.1, steps="published"), 20),
    ]
    print(HEAD)
    for data, network, name, algorithm, rounds in cases:
        exact, _ = line(network, algorithm, rounds, None)
        for multiplier in MULTIPLIERS:
            error, spent = line(network, algorithm, rounds, Noise(1.0, 2.0 * multiplier))
            print(f"| {data} | {name} | {multiplier:g} | {spent:.3g} | {error:.3f} | {exact:.3f} |", flush=True)
    alone = line(clusters(3), Local(), 1, None)[0]
    print(f"clusters, every node alone: {alone:.3f}")


if __name__ == "__main__":
    main()
