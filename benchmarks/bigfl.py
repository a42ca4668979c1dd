"""How much does a step of φ cost? The rival does the same in the same process; what counts are the ratios.

    python benchmarks/bigfl.py

BiG-FL on 50 nodes with 100 rows each, a network 8-16-16-8 with tanh, in 64 bits and with one thread. T = 20 rounds of
the game with a step of φ at their end (four exchanges), against 20 rounds without, and against a program around
torch's vmap that plays the same 20 rounds and back-propagates through all of them. Shown is the median of several
repetitions, one program after the other in turn, and the cosine of the two derivatives.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.func import functional_call, vmap

from kinfolk import BiGFL, Network, TorchLoss, fit, graphs
from kinfolk.algorithms.bigfl import GraphEmbedding, HeldOutError, Links
from kinfolk.algorithms.bigfl.upper import held_out_rows

NODES, ROWS, STEPS, STEP, LAM, SHARE = 50, 100, 20, 0.05, 0.1, 0.2
WARM_UP, REPETITIONS = 100, 7


def problem() -> tuple[Network, Any]:
    """Nodes with functions that change along a ring, and a module."""
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    angle = 2 * np.pi * np.arange(NODES) / NODES
    X = rng.uniform(-1, 1, (NODES, ROWS, 8))
    first, second = rng.normal(size=(2, 8, 8))
    y = 0.3 * np.tanh(X @ first) * np.cos(angle)[:, None, None] + 0.3 * np.tanh(X @ second)
    edges = sorted({tuple(sorted((k, (k + apart) % NODES))) for k in range(NODES) for apart in (1, 2)})
    module = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 8)).double()
    return Network(graphs.Graph(NODES, edges), list(zip(X, y, strict=True))), module


class BackPropagation:
    """The game in plain torch, and the derivative of the held-out error by all its steps."""

    def __init__(self, network: Network, module: Any) -> None:
        held = held_out_rows(network.data.sizes, SHARE)
        parts = [network.data.keep(rows) for rows in (~held, held)]
        self.learnt, self.held = (
            [torch.tensor(np.stack(each)) for each in zip(*(part[k] for k in range(NODES)), strict=True)]
            for part in parts
        )
        named = dict(module.named_parameters())
        shapes, sizes = [value.shape for value in named.values()], [value.numel() for value in named.values()]
        self.layer = torch.repeat_interleave(torch.tensor([0, 0, 1, 1, 2, 2]), torch.tensor(sizes))
        self.L = torch.tensor(GraphEmbedding().matrix(Links.of(network.graph)).toarray())

        def said(theta: Any, X: Any) -> Any:
            parts = [part.view(shape) for part, shape in zip(theta.split(sizes), shapes, strict=True)]
            return functional_call(module, dict(zip(named, parts, strict=True)), (X,))

        self.said = vmap(said)

    def error(self, theta: Any, rows: Any) -> Any:
        """Mean squared error of every node."""
        return ((self.said(theta, rows[0]) - rows[1]) ** 2).sum(dim=-1).mean(dim=-1)

    def __call__(self, theta: Any) -> Any:
        """The derivative in φ = I of the error after STEPS steps from θ."""
        phi, theta = torch.ones(3, dtype=torch.float64, requires_grad=True), torch.tensor(theta).requires_grad_()
        for _ in range(STEPS):
            (slope,) = torch.autograd.grad(self.error(theta, self.learnt).sum(), theta, create_graph=True)
            scale = phi[self.layer]
            pull = ((self.L @ theta) * scale - theta) * (torch.diagonal(self.L)[:, None] * scale - 1)
            theta = theta - STEP * (slope + LAM * pull)
        return torch.autograd.grad(self.error(theta, self.held).mean(), phi)[0].numpy()


def main() -> None:
    """All programs in turn."""
    torch.set_num_threads(1)
    network, module = problem()
    loss = TorchLoss(module, step_size=STEP)
    learnt = BiGFL(
        loss, lam=LAM, kappa=0.0, phi="learn", upper=HeldOutError(SHARE), controls=False, warm_up=WARM_UP,
        phi_every=STEPS, phi_steps=2,
    )  # fmt: skip
    options: dict[str, Any] = {"stop": None, "progress": False, "measure_every": 10**6}
    began = fit(network, learnt, rounds=WARM_UP, **options)
    back = BackPropagation(network, module)
    plain = BiGFL(loss, lam=LAM, kappa=0.0)
    rested = fit(network, plain, rounds=WARM_UP, **options)
    found: dict[str, Any] = {}
    programs: dict[str, Callable[[], Any]] = {
        "20 rounds": lambda: fit(network, plain, rounds=STEPS, start=rested, **options),
        "20 rounds and a step of φ": lambda: found.update(
            ours=fit(network, learnt, rounds=STEPS, start=began, **options).snapshot.memory.hypergradient
        ),
        "20 rounds, back-propagated": lambda: found.update(exact=back(began.state.w[:, 0])),
    }
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(REPETITIONS):
        for name, program in programs.items():
            start = time.perf_counter()
            program()
            seconds[name].append(time.perf_counter() - start)
    ours, exact = found["ours"], found["exact"]
    table = Table("program", "ms", "ratio to 20 rounds", title="A step of φ, 50 networks 8-16-16-8")
    base = np.median(seconds["20 rounds"])
    for name, taken in seconds.items():
        table.add_row(name, f"{1e3 * np.median(taken):.0f}", f"{np.median(taken) / base:.2f}")
    console = Console()
    console.print(table)
    console.print(f"cosine of the two derivatives: {ours @ exact / np.linalg.norm(ours) / np.linalg.norm(exact):.4f}")


if __name__ == "__main__":
    main()
