"""Five kinds of models in one network: trees, ridge regressions, boosting, and networks of torch and Keras.

    python examples/mixed_models.py            half a minute
    python examples/mixed_models.py --quick    fewer rounds

Fifty sensors in two groups of kin measure a curved surface, each at twelve places only. Neighbours compare what they
predict at public places, whatever the kind of their models. Needs pip install "kinfolk[torch,keras]".
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures
from sklearn.tree import DecisionTreeRegressor
from torch import nn

from kinfolk import FedRelax, KerasModel, Network, Run, TorchModel, fit, graphs, public
from kinfolk.local_models.keras_training import keras

SENSORS, ROWS, NOISE = 50, 12, 0.3


def sensors(seed: int) -> Network:
    """Two groups of sensors; within a group all see the same surface."""
    rng = np.random.default_rng(seed)
    graph, group = graphs.stochastic_block([SENSORS // 2] * 2, 0.3, 0.01, seed=seed)

    def measured(node: int, count: int) -> tuple[Any, Any]:
        place = rng.uniform(-1, 1, size=(count, 2))
        height = np.sin(3 * place[:, 0]) + (1 - 2 * group[node]) * place[:, 1]
        return place, height + NOISE * rng.normal(size=count)

    nodes = range(SENSORS)
    network = Network(graph, [measured(i, ROWS) for i in nodes], test=[measured(i, 100) for i in nodes])
    return network.with_public(public.like_the_data(network, 60, seed=seed))


def kinds() -> dict[str, Any]:
    """A model of every kind, by name."""
    torch_net = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
    keras_net = keras.Sequential([keras.Input((2,)), keras.layers.Dense(32, activation="tanh"), keras.layers.Dense(1)])
    return {
        "decision tree": DecisionTreeRegressor(max_depth=5, min_samples_leaf=2),
        "ridge, cubic": make_pipeline(PolynomialFeatures(3), Ridge(0.1)),
        "boosting": GradientBoostingRegressor(n_estimators=50, max_depth=2),
        "torch network": TorchModel(torch_net, epochs=100),
        "Keras network": KerasModel(keras_net, epochs=25, step_size=0.03),
    }


def errors(run: Run, count: int) -> Any:
    """The mean squared test error by kind of model."""
    test = run.network.test
    assert test is not None
    kind = test.owner % count
    return np.bincount(kind, run.models.error(test.X, test.y, test.owner)) / np.bincount(kind)


def main(quick: bool = False, seed: int = 0) -> None:
    """Train every node alone and in company, and print what it gains."""
    network, models, rounds = sensors(seed), kinds(), 2 if quick else 8
    names = list(models)
    chosen = {name: models[names[i % len(names)]] for i, name in enumerate(network.names)}
    alone = fit(network, FedRelax(chosen, lam=0.0), rounds=rounds, stop=None)
    tailored = fit(network, FedRelax(chosen, lam=1.0), rounds=rounds, stop=None)
    table = Table()
    for column in ("kind of model", "tailored", "alone"):
        table.add_column(column, justify="left" if column == "kind of model" else "right")
    for row in zip(names, errors(tailored, len(names)), errors(alone, len(names)), strict=True):
        table.add_row(row[0], *(f"{value:.3f}" for value in row[1:]))
    console = Console(width=80)
    console.print(f"Mean squared test error of {SENSORS} sensors after {rounds} rounds (noise: {NOISE**2:.2f})")
    console.print(table)
    apart = tailored.history["disagreement"]
    console.print(f"Disagreement between neighbours fell from {apart.iloc[0]:.3g} to {apart.iloc[-1]:.3g}.")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--quick", action="store_true", help="fewer rounds")
    main(**vars(options.parse_args()))
