"""How fast is FedRelax? Rivals do the same work in the same process; what counts are the ratios.

    python benchmarks/fedrelax.py            all cases
    python benchmarks/fedrelax.py --quick    fewer rounds of the slow rivals, scaled up

150 nodes in three clusters, ten samples each, 100 public points. Linear models go to a fixed point (residual 1e-8); the
rivals are the paper's procedure written plainly (a loop over nodes, one step of torch's RMSprop per node and round, 500
rounds) and a plain NumPy program with dense matrices and inverses made beforehand. Trees: one round, against a fit per
node to all rows that its neighbours have labelled, and one thread against all processors.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.tree import DecisionTreeRegressor

from kinfolk import FedRelax, LinearModel, Network, Tolerance, fit, graphs, public

SEED = 100  # not used for tuning
LAM = 0.01
PAPER_ROUNDS = 500


def clusters(features: int, per_node: bool = False) -> tuple[Network, Any]:
    """The network of figure 1 of the paper, and the true parameters."""
    rng = np.random.default_rng(SEED)
    graph, block = graphs.stochastic_block([50] * 3, 0.8, 0.2, seed=SEED)
    truth = rng.normal(size=(3, features))[block]
    sets = [(X := rng.normal(size=(10, features)), X @ w) for w in truth]
    network = Network(graph, sets)
    return network.with_public(public.standard_normal(network, per_node=per_node, seed=SEED)), truth


def timed(work: Callable[[], Any], repeats: int = 1) -> tuple[Any, float]:
    """What ``work`` gives, and the least seconds that it took."""
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        result = work()
        seconds.append(time.perf_counter() - began)
    return result, min(seconds)


# ---------------------------------------------------------------------- linear models


def ours(network: Network, features: int) -> Any:
    """FedRelax to a residual of 1e-8: (nodes, features)."""
    fresh = Network(network.graph, [network.data[i] for i in range(network.graph.node_count)], public=network.public)
    run = fit(fresh, FedRelax(LinearModel(), LAM), stop=Tolerance(1e-8), progress=False)
    return np.stack([fitted.w for fitted in run.models.fitted])


def plain_numpy(network: Network, features: int) -> Any:
    """The same rounds with dense matrices, inverses made beforehand and the same stop."""
    A = network.graph.to_sparse().toarray()
    P = network.public.points
    X, y = network.data.X.reshape(-1, 10, features), network.data.y.reshape(-1, 10)
    rate = LAM * 10 / len(P)
    own = np.einsum("nmd,nm->nd", X, y)
    gram = X.swapaxes(1, 2) @ X
    inverse = np.linalg.inv(gram + rate * A.sum(axis=1)[:, None, None] * (P.T @ P))
    w = (np.linalg.pinv(gram, hermitian=True) @ own[:, :, None])[:, :, 0]
    said = w @ P.T
    while True:
        b = own + rate * (A @ said) @ P
        w = (inverse @ b[:, :, None])[:, :, 0]
        before, said = said, w @ P.T
        if np.linalg.norm(said - before) <= 1e-8 * np.linalg.norm(said):
            return w


def plain_torch(network: Network, features: int, rounds: int) -> Any:
    """The paper's procedure: a loop over nodes, one step of RMSprop each."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    P = torch.tensor(network.public.points, dtype=torch.float32)
    adjacency = network.graph.to_sparse().tocsr()
    neighbours = [torch.tensor(adjacency[[i]].indices, dtype=torch.long) for i in range(adjacency.shape[0])]
    sets = [tuple(torch.tensor(part, dtype=torch.float32) for part in network.data[i]) for i in range(len(neighbours))]
    layers = [torch.nn.Linear(features, 1, bias=False) for _ in sets]
    optimisers = [torch.optim.RMSprop(layer.parameters(), lr=0.01) for layer in layers]
    for _ in range(rounds):
        with torch.no_grad():
            said = torch.stack([layer(P)[:, 0] for layer in layers])
        for layer, optimiser, (X, y), others in zip(layers, optimisers, sets, neighbours, strict=True):
            optimiser.zero_grad()
            apart = ((layer(P)[:, 0] - said[others]) ** 2).mean(dim=1).sum()
            loss = torch.nn.functional.mse_loss(layer(X)[:, 0], y) + LAM * apart
            loss.backward()
            optimiser.step()
    return np.stack([layer.weight.detach().numpy()[0] for layer in layers])


def linear(quick: bool, features: int = 50) -> Table:
    """One row per program."""
    network, truth = clusters(features)
    ours(network, features)  # compiles
    w, seconds = timed(lambda: ours(network, features), 5)
    plain, plain_seconds = timed(lambda: plain_numpy(network, features), 5)
    rounds = 20 if quick else PAPER_ROUNDS
    stepped, torch_seconds = timed(lambda: plain_torch(network, features, rounds))
    torch_seconds *= PAPER_ROUNDS / rounds
    table = Table(title=f"Linear models, 150 nodes, d = {features}, one common set of 100 points")
    for column in ("program", "s", "times ours", "error (18)", "largest difference from ours"):
        table.add_column(column, justify="left" if column == "program" else "right")
    for name, result, took in (
        ("kinfolk, residual 1e-8", w, seconds),
        ("plain NumPy, residual 1e-8", plain, plain_seconds),
        ("plain PyTorch, 500 rounds" + (", scaled up" if quick else ""), stepped, torch_seconds),
    ):
        error = ((result - truth) ** 2).mean()
        table.add_row(name, f"{took:.3f}", f"{took / seconds:.2f}", f"{error:.4f}", f"{np.abs(result - w).max():.0e}")
    return table


# ---------------------------------------------------------------------- trees


def one_round(network: Network) -> Any:
    """FedRelax with trees: every node alone, then one round."""
    return fit(network, FedRelax(DecisionTreeRegressor(max_depth=5), LAM), rounds=1, stop=None, progress=False)


def unmerged_fits(network: Network) -> list[Any]:
    """A round written plainly: a fit per node to all rows that neighbours have labelled, one after the other."""
    count, points = network.graph.node_count, network.public.points
    alone = [DecisionTreeRegressor(max_depth=5).fit(*network.data[i]) for i in range(count)]
    sets = points if points.ndim == 3 else [points] * count
    said = [tree.predict(rows) for tree, rows in zip(alone, sets, strict=True)]
    adjacency = network.graph.to_sparse().tocsr()
    return [_unmerged_fit(network, i, adjacency[[i]].indices, sets, said) for i in range(count)]


def _unmerged_fit(network: Network, node: int, neighbours: Any, sets: Any, said: list[Any]) -> Any:
    X, y = network.data[node]
    rows = np.concatenate([X, *(sets[j] for j in neighbours)])
    label = np.concatenate([y, *(said[j] for j in neighbours)])
    weight = np.r_[np.ones(len(y)), np.full(len(rows) - len(y), LAM * len(y) / len(sets[0]))]
    return DecisionTreeRegressor(max_depth=5).fit(rows, label, sample_weight=weight)


def trees(features: int = 10) -> Table:
    """One row per kind of public points."""
    table = Table(title=f"Trees of depth 5, 150 nodes, d = {features}: one round")
    for column in ("public points", "kinfolk s", "one thread s", "unmerged fits s", "one thread", "unmerged"):
        table.add_column(column, justify="left" if column == "public points" else "right")
    for name, per_node in (("one common set", False), ("a set per node", True)):
        network, _ = clusters(features, per_node)
        one_round(network)
        _, seconds = timed(lambda network=network: one_round(network), 2)
        with mock.patch("os.cpu_count", return_value=1):
            _, single = timed(lambda network=network: one_round(network), 2)
        _, plain = timed(lambda network=network: unmerged_fits(network))
        shown = (f"{value:.2f}" for value in (seconds, single, plain))
        table.add_row(name, *shown, f"{single / seconds:.2f}×", f"{plain / seconds:.1f}×")
    return table


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    console = Console(width=120)
    console.print(linear(quick))
    console.print(trees())


if __name__ == "__main__":
    main()
