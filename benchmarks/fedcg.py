"""How fast is a round of clients with images? Rivals do the same steps in the same process; what counts are the ratios.

    python benchmarks/fedcg.py

A network of two convolutions and two dense layers, in 32 bits, 100 images of 28 × 28 pixels a client, one pass. FedAvg
of kinfolk, computed as it decides by itself, all clients at once, and client by client, against a loop over clients,
each with a module and an optimiser of torch; each with one thread of torch and with all that it would take. The better
loop counts. Then FedCG with four branches, and 4 clients present of 60 and of 600. The least of several repetitions of
wall time, one program after the other.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from kinfolk import FedAvg, FedCG, Network, TorchLoss, fit, graphs
from kinfolk.algorithms.fedcg import GivenDomains
from kinfolk.experiments.fedcg import network_of_digits

ROWS, STEP, ROUNDS, REPETITIONS = 100, 0.1, 3, 9
CASES = ((5, 50), (5, 20), (5, 10), (10, 50), (10, 20), (10, 10), (10, 5))


def images(clients: int, domains: int = 0) -> Network:
    """Random images with random digits, and a domain as the last feature where there are some."""
    rng = np.random.default_rng(0)
    data = []
    for k in range(clients):
        X = rng.random((ROWS, 784))
        X = np.column_stack([X, np.full(ROWS, k % domains)]) if domains else X
        data.append((X, rng.integers(0, 10, ROWS).astype(float)))
    return Network(graphs.edgeless(clients), data)


def ours(network: Network, algorithm: Any, **options: Any) -> Callable[[], Any]:
    """kinfolk, going on from round 0, with nothing measured but the ends."""
    settings: dict[str, Any] = {"stop": None, "measure_every": None, "progress": False, **options}
    began = fit(network, algorithm, rounds=1, **settings)
    return lambda: fit(network, algorithm, rounds=ROUNDS, start=began, **settings)


def measured(network: Network, algorithm: Any, **options: Any) -> Callable[[], Any]:
    """The same without rounds: what is to be subtracted."""
    settings: dict[str, Any] = {"stop": None, "measure_every": None, "progress": False, **options}
    began = fit(network, algorithm, rounds=1, **settings)
    return lambda: fit(network, algorithm, rounds=0, start=began, **settings)


def loop(network: Network, start: Any, batch: int) -> Callable[[], None]:
    """One module and one optimiser for every client, one client after the other."""
    sets = [network.data[k] for k in range(network.graph.node_count)]
    tensors = [(torch.tensor(X, dtype=torch.float32), torch.tensor(y).long()) for X, y in sets]

    def run() -> None:
        common = copy.deepcopy(start)
        for _ in range(ROUNDS):
            models = [copy.deepcopy(common) for _ in tensors]
            for own, (X, y) in zip(models, tensors, strict=True):
                optimiser, order = torch.optim.SGD(own.parameters(), lr=STEP), torch.randperm(len(X))
                for first in range(0, len(X), batch):
                    rows = order[first : first + batch]
                    optimiser.zero_grad()
                    nn.functional.cross_entropy(own(X[rows]), y[rows]).backward()
                    optimiser.step()
            with torch.no_grad():
                for parts in zip(common.parameters(), *(own.parameters() for own in models), strict=True):
                    parts[0].copy_(torch.stack(parts[1:]).mean(dim=0))

    return run


def least(programs: dict[str, Callable[[], Any]], threads: int) -> dict[str, float]:
    """Milliseconds of every program."""
    taken: dict[str, list[float]] = {name: [] for name in programs}
    torch.set_num_threads(threads)
    for _ in range(REPETITIONS + 1):  # the first warms up
        for name, work in programs.items():
            began = time.perf_counter()
            work()
            taken[name].append(1000 * (time.perf_counter() - began))
    return {name: min(spent[1:]) for name, spent in taken.items()}


def rounds_of(programs: dict[str, tuple[Callable[[], Any], Callable[[], Any]]], threads: int) -> dict[str, float]:
    """Milliseconds a round of programs, each given with what is to be subtracted."""
    spent = least({f"{name} {k}": work for name, both in programs.items() for k, work in enumerate(both)}, threads)
    return {name: (spent[f"{name} 0"] - spent[f"{name} 1"]) / ROUNDS for name in programs}


def compare(clients: int, batch: int, threads: Sequence[int]) -> list[str]:
    """A row of the first table: milliseconds a round, and how many times as fast as the better loop."""
    network, start = images(clients), network_of_digits(0)
    programs: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "loop": (loop(network, start, batch), lambda: None)
    }
    for how in ("auto", "always", "never"):
        loss = TorchLoss(start, "cross-entropy", precision="float32", step_size=STEP, batching=how)
        algorithm = FedAvg(loss, local_epochs=1, batch=batch)
        programs[how] = ours(network, algorithm), measured(network, algorithm)
    spent = [rounds_of(programs, count) for count in threads]
    best = min(each["loop"] for each in spent)
    cells = [" / ".join(f"{each[name]:.0f}" for each in spent) for name in programs]
    return [f"{clients} × {batch}", *cells, " / ".join(f"{best / each['auto']:.2f}" for each in spent)]


def away(threads: int) -> tuple[float, float]:
    """Milliseconds a round with 4 clients present, of 60 and of 600, with four branches."""
    spent = {}
    for clients in (60, 600):
        loss = TorchLoss(network_of_digits(0), "cross-entropy", precision="float32", step_size=STEP)
        algorithm = FedCG(loss, layers=["conv2"], domains=4, discovery=GivenDomains(), local_epochs=1, batch=20)
        network, share = images(clients, domains=4), 4 / clients
        both = ours(network, algorithm, participation=share), measured(network, algorithm, participation=share)
        spent[clients] = rounds_of({"FedCG": both}, threads)["FedCG"]
    return spent[60], spent[600]


def main() -> None:
    """Print two tables."""
    most, console = torch.get_num_threads(), Console(width=80)
    threads = sorted({1, most})
    counts = " / ".join(map(str, threads))
    table = Table(title=f"FedAvg on images, ms a round; threads of torch {torch.__version__}: {counts}")
    for column in ("clients × batch", "loop", "kinfolk", "at once", "one by one", "times as fast"):
        table.add_column(column, justify="right")
    for clients, batch in CASES:
        table.add_row(*compare(clients, batch, threads))
    console.print(table)
    few, many = away(most)
    console.print(f"FedCG, 4 clients present: {few:.0f} ms a round of 60, {many:.0f} ms of 600, ratio {many / few:.2f}")


if __name__ == "__main__":
    main()
