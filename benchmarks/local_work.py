"""How fast is local work? Rivals do the same steps in the same process; what counts are the ratios.

    python benchmarks/local_work.py

FedAvg on 50 nodes with 100 rows each, a network 8-16-16-8 with sigmoids, five steps on batches of 20 rows in a round,
in 64 bits and with one thread. The rivals are a plain loop over nodes, each with a module and an optimiser of torch,
and a loop written by hand around torch's vmap. Then four nodes present of 500, against a network that has only four.
Shown is the median of several repetitions, one program after the other in turn.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.func import functional_call, vmap

from kinfolk import FedAvg, Network, TorchLoss, fit, graphs

NODES, ROWS, TAU, BATCH, STEP = 50, 100, 5, 20, 0.05
ROUNDS, FEW_ROUNDS, REPETITIONS = 100, 5, 7  # few for what is slow


def network_of(nodes: int) -> Network:
    """Nodes with random rows and eight outputs."""
    rng = np.random.default_rng(0)
    return Network(
        graphs.edgeless(nodes), [(rng.normal(size=(ROWS, 8)), rng.normal(size=(ROWS, 8))) for _ in range(nodes)]
    )


def module() -> Any:
    """8-16-16-8."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Sigmoid(), nn.Linear(16, 16), nn.Sigmoid(), nn.Linear(16, 8)).double()


def ours(network: Network, loss: TorchLoss, **options: Any) -> Callable[..., Any]:
    """kinfolk, going on from its first rounds, which are all measured; so only the last one is."""
    algorithm = FedAvg(loss, local_steps=TAU, batch=BATCH, step_size=STEP)
    settings: dict[str, Any] = {"stop": None, "measure_every": 10**6, "progress": False, **options}
    began = fit(network, algorithm, rounds=10, **settings)
    return lambda rounds: fit(network, algorithm, rounds=rounds, start=began, **settings)


def plain_loop(network: Network, start: Any, rounds: int) -> None:
    """One module and one optimiser for every node."""
    rng, common = np.random.default_rng(0), copy.deepcopy(start)
    sets = [tuple(map(torch.tensor, network.data[k])) for k in range(NODES)]
    for _ in range(rounds):
        models = [copy.deepcopy(common) for _ in range(NODES)]
        for own, (X, y) in zip(models, sets, strict=True):
            optimiser = torch.optim.SGD(own.parameters(), lr=STEP)
            for _ in range(TAU):
                rows = torch.from_numpy(rng.choice(ROWS, BATCH, replace=False))
                optimiser.zero_grad()
                ((own(X[rows]) - y[rows]) ** 2).sum(dim=1).mean().backward()
                optimiser.step()
        with torch.no_grad():
            for parts in zip(common.parameters(), *(own.parameters() for own in models), strict=True):
                parts[0].copy_(torch.stack(parts[1:]).mean(dim=0))


def by_hand(network: Network, start: Any, rounds: int) -> None:
    """All nodes at once with vmap, written for this case only."""
    rng = np.random.default_rng(0)
    X, y = (torch.tensor(part.reshape(NODES, ROWS, 8)) for part in (network.data.X, network.data.y))
    shapes = {name: value.shape for name, value in start.named_parameters()}
    sizes = [value.numel() for value in start.parameters()]
    common = torch.cat([value.detach().reshape(-1) for value in start.parameters()])
    node = torch.arange(NODES)[:, None]

    def loss(w: Any, X: Any, y: Any) -> Any:
        parts = {name: part.view(shape) for (name, shape), part in zip(shapes.items(), w.split(sizes), strict=True)}
        return ((functional_call(start, parts, (X,)) - y) ** 2).sum(dim=1).mean()

    for _ in range(rounds):
        w = common.repeat(NODES, 1)
        for _ in range(TAU):
            rows = torch.from_numpy(rng.random((NODES, ROWS)).argpartition(BATCH, axis=1)[:, :BATCH])
            w = w.detach().requires_grad_()
            vmap(loss)(w, X[node, rows], y[node, rows]).sum().backward()
            w = w.detach() - STEP * w.grad
        common = w.mean(dim=0)


def medians(programs: dict[str, tuple[Callable[[int], Any], int]]) -> dict[str, float]:
    """Milliseconds a round of every program, which is run for so many rounds."""
    taken: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(REPETITIONS + 1):  # the first warms up
        for name, (work, rounds) in programs.items():
            began = time.perf_counter()
            work(rounds)
            taken[name].append(1000 * (time.perf_counter() - began) / rounds)
    return {name: float(np.median(spent[1:])) for name, spent in taken.items()}


def main() -> None:
    """Print two tables."""
    torch.set_num_threads(1)
    network, start = network_of(NODES), module()
    loss = TorchLoss(start)
    spent = medians({
        "kinfolk": (ours(network, loss), ROUNDS),
        "plain loop, a module for every node": (lambda rounds: plain_loop(network, start, rounds), FEW_ROUNDS),
        "by hand, with vmap": (lambda rounds: by_hand(network, start, rounds), ROUNDS),
    })  # fmt: skip
    table = Table(title=f"{NODES} nodes, 8-16-16-8, τ = {TAU}, batches of {BATCH}; torch {torch.__version__}")
    for column in ("program", "ms a round", "times kinfolk"):
        table.add_column(column, justify="left" if column == "program" else "right")
    for name, each in spent.items():
        table.add_row(name, f"{each:.1f}", f"{each / spent['kinfolk']:.2f}")
    console = Console(width=80)
    console.print(table)

    few, many = network_of(4), network_of(500)
    present = medians({
        "4 of 4 nodes": (ours(few, loss), ROUNDS),
        "4 of 500 nodes": (ours(many, loss, participation=4 / 500), ROUNDS),
    })  # fmt: skip
    table = Table(title=f"FedAvg, {ROUNDS} rounds, the last of them measured")
    for column in ("present", "ms a round", "ratio"):
        table.add_column(column, justify="left" if column == "present" else "right")
    for name, each in present.items():
        table.add_row(name, f"{each:.2f}", f"{each / present['4 of 4 nodes']:.2f}")
    console.print(table)


if __name__ == "__main__":
    main()
