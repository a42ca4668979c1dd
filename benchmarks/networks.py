"""How much faster are the networks of many nodes trained in one computation than one after another?

    python benchmarks/networks.py [--mnist mnist.npz] [--threads 1]

Forty networks 784-100-10 with 20 to 50 digits each, full batches of Adam; smaller ones beside them, as what is gained
is the overhead per node. Without MNIST the inputs are random numbers of its size, which takes as long. Shown is the
median of several repetitions, one kind of training after the other in turn, and the largest difference of parameters.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from kinfolk import TorchModel
from kinfolk.local_models.torch_training import (
    NodeTraining,
    TorchFit,
    TrainingSetup,
    as_arrays,
    train_apart,
    train_together,
)
from kinfolk.local_models.weighted_rows import WeightedRows

NODES, CLASSES, EPOCHS, REPETITIONS = 40, 10, 20, 5


@dataclass(frozen=True)
class Case:
    """A shape of network and an optimiser."""

    widths: tuple[int, ...]
    optimiser: str = "Adam"

    @property
    def model(self) -> TorchModel:
        """The model of all nodes."""
        layers: list[Any] = []
        for before, after in zip(self.widths, self.widths[1:], strict=False):
            layers += [nn.Linear(before, after), nn.ReLU()]
        module = nn.Sequential(*layers[:-1])
        return TorchModel(module, "cross-entropy", self.optimiser, step_size=1e-3, epochs=EPOCHS)

    def __str__(self) -> str:
        return f"{'-'.join(map(str, self.widths))}, {self.optimiser}"


CASES = [Case((784, 100, 10)), Case((784, 100, 10), "SGD"), Case((64, 32, 10)), Case((8, 16, 10))]


def digits(path: Path | None, features: int) -> list[WeightedRows]:
    """Some digits for every node, or random inputs of the size."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(20, 51, NODES)
    total = int(sizes.sum())
    X, y = rng.random((total, features)), rng.integers(0, CLASSES, total)
    if path is not None and features == 784:
        stored = np.load(path)
        rows = rng.choice(len(stored["y_train"]), total, replace=False)
        X, y = stored["x_train"][rows].reshape(total, -1) / 255, stored["y_train"][rows]
    cuts = np.cumsum(sizes)[:-1]
    parts = zip(np.split(X, cuts), np.split(np.eye(CLASSES)[y], cuts), sizes, strict=True)
    return [WeightedRows(rows, target, np.ones(size)) for rows, target, size in parts]


def trainings(model: TorchModel, sets: list[WeightedRows]) -> list[NodeTraining]:
    """Nodes before their first step."""
    features = sets[0].X.shape[1]
    fits = [TorchFit(as_arrays(model._module(k, features)), {}, 0) for k in range(len(sets))]
    return [NodeTraining(*pair, k) for k, pair in enumerate(zip(sets, fits, strict=True))]


def seconds(
    train: Callable[[TrainingSetup, list[NodeTraining]], None], setup: TrainingSetup, nodes: list[NodeTraining]
) -> float:
    """How long the training of all nodes takes."""
    before = time.perf_counter()
    train(setup, nodes)
    return time.perf_counter() - before


def compare(case: Case, sets: list[WeightedRows]) -> tuple[float, float, float]:
    """Seconds together and apart, and the largest difference between the parameters that they end with."""
    model, taken = case.model, []
    setup = model._setup(case.widths[0], CLASSES)
    for _ in range(REPETITIONS + 1):  # the first warms up
        joint, apart = trainings(model, sets), trainings(model, sets)
        taken.append((seconds(train_together, setup, joint), seconds(train_apart, setup, apart)))
    together, alone = np.median(taken[1:], axis=0)
    difference = max(
        float(np.abs(one.fit.arrays[name] - other.fit.arrays[name]).max())
        for one, other in zip(joint, apart, strict=True)
        for name in one.fit.arrays
    )
    return float(together), float(alone), difference


def main() -> None:
    """Print a table."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--mnist", type=Path, help="mnist.npz with x_train and y_train")
    options.add_argument("--threads", type=int, default=1, help="of torch")
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    table = Table(title=f"{NODES} networks, {EPOCHS} steps, torch {torch.__version__}, threads: {given.threads}")
    for column in ("network", "together (s)", "one by one (s)", "ratio", "difference"):
        table.add_column(column, justify="left" if column == "network" else "right")
    for case in CASES:
        together, alone, difference = compare(case, digits(given.mnist, case.widths[0]))
        table.add_row(str(case), f"{together:.2f}", f"{alone:.2f}", f"{alone / together:.1f}", f"{difference:.0e}")
    Console(width=80).print(table)


if __name__ == "__main__":
    main()
