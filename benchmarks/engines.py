"""What does a round cost on each engine? The same partition into two sites, one engine after the other in turn.

    python benchmarks/engines.py

GTVMin on rings of 150 and 3,107 nodes, and FedRelax with forests on 24 nodes, where local
work takes long. Shown is the median of several repetitions, in milliseconds per round, and the ratio to one process.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.ensemble import RandomForestRegressor

from kinfolk import FedRelax, GTVMin, InProcess, Network, Ray, fit, graphs, public

REPETITIONS = 5


def chain_of_neighbours(nodes: int, features: int = 10) -> Network:
    """Nodes on a ring that know the next three, ten rows each."""
    rng = np.random.default_rng(0)
    angle = np.arange(nodes) * 2 * np.pi / nodes
    places = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    data = [(rng.normal(size=(10, features)), rng.normal(size=10)) for _ in range(nodes)]
    return Network(graphs.knn(places, 6), data)


def forests(nodes: int = 24) -> Network:
    """Few nodes with 500 rows each, and common points."""
    rng = np.random.default_rng(0)
    network = Network(graphs.chain(nodes), [(rng.normal(size=(500, 8)), rng.normal(size=500)) for _ in range(nodes)])
    return network.with_public(public.standard_normal(network, 50))


def seconds_per_round(network: Network, algorithm: Any, engine: Any, rounds: int) -> float:
    """The time of so many rounds after a first part, which sets everything up."""
    settings: dict[str, Any] = {"stop": None, "measure_every": None, "progress": False, "engine": engine}
    began = fit(network, algorithm, rounds=2, **settings)
    short, long = (
        _seconds(lambda count=count: fit(network, algorithm, rounds=count, start=began, **settings))
        for count in (1, rounds + 1)
    )
    return (long - short) / rounds


def _seconds(work: Any) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


CASES: dict[str, tuple[Network, Any, int]] = {
    "GTVMin, 150 nodes": (chain_of_neighbours(150), GTVMin(), 200),
    "GTVMin, 3,107 nodes": (chain_of_neighbours(3107), GTVMin(), 200),
    "FedRelax, 24 forests of 20 trees": (forests(), FedRelax(RandomForestRegressor(20)), 2),
}


def main() -> None:
    """Measure, and print a table."""
    engines = {"in process": InProcess(2), "Ray, 2 actors": Ray(2)}
    table = Table("", *(f"{name}, ms per round" for name in engines), "Ray / in process")
    for title, (network, algorithm, rounds) in CASES.items():
        times: dict[str, list[float]] = {name: [] for name in engines}
        for _ in range(REPETITIONS):
            for name, engine in engines.items():
                times[name].append(1e3 * seconds_per_round(network, algorithm, engine, rounds))
        here, there = (statistics.median(found) for found in times.values())
        table.add_row(title, f"{here:,.2f}", f"{there:,.2f}", f"{there / here:.2f}")
    Ray().close()
    Console().print(table)


if __name__ == "__main__":
    main()
