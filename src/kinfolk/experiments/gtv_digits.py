"""Networks of handwritten digits, as in section VI-C of the GTV paper; what is assumed stands in ``gtv_mnist``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kinfolk.checks import InputError
from kinfolk.datasets import Digits
from kinfolk.network.graphs import edgeless
from kinfolk.network.network import Network
from kinfolk.objective.torch_loss import TorchLoss
from kinfolk.similarity import EmbeddedDivergence, nearest_kin
from kinfolk.typing import Floats, Ints

PAIRS = ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9))  # Table II
NEAREST = 4
STEP_SIZE, STEPS = 0.1, 5  # of every local update


@dataclass(frozen=True)
class Setting:
    """How large the experiment is."""

    nodes: int = 20  # in a cluster
    train: int = 400  # images of a node
    validation: int = 100
    embedded: int = 100  # images of a node that t-SNE lays out
    hidden: int = 100
    rounds: int = 50


FULL, QUICK = Setting(), Setting(nodes=6, train=30, validation=40, embedded=30, hidden=10, rounds=10)


@dataclass(frozen=True, eq=False)
class Problem:
    """Digits over a network, and how the module of every node is scored."""

    network: Network
    cluster: Ints  # (nodes,)
    loss: TorchLoss
    seed: int

    @property
    def crossing(self) -> int:
        """How many edges join different clusters."""
        graph = self.network.graph
        return int((self.cluster[graph.head] != self.cluster[graph.tail]).sum())


def draw_problem(digits: Digits, clusters: int, setting: Setting, seed: int) -> Problem:
    """Some clusters of nodes, who learns from which images, and who is joined with whom."""
    rng, size = np.random.default_rng(seed), setting.train + setting.validation
    rows = np.concatenate([_rows(digits, pair, (setting.nodes, size), rng) for pair in PAIRS[:clusters]])
    learnt, held_out = (
        [(_pixels(digits, own), digits.y_train[own]) for own in rows[:, part]]
        for part in (slice(None, setting.train), slice(setting.train, None))
    )
    apart = edgeless(len(rows))
    seen = Network(apart, [(X[: setting.embedded], y[: setting.embedded]) for X, y in learnt])
    graph = nearest_kin(seen, EmbeddedDivergence(seed=seed), k=NEAREST, scale=1.0)
    cluster = np.repeat(np.arange(clusters), setting.nodes)
    loss = TorchLoss(_module(setting.hidden, seed), "cross-entropy", step_size=STEP_SIZE, steps=STEPS)
    return Problem(Network(graph, learnt, test=held_out), cluster, loss, seed)


def _rows(digits: Digits, pair: tuple[int, int], shape: tuple[int, int], rng: np.random.Generator) -> Ints:
    """Which images of two digits the nodes of a cluster have, (nodes, images)."""
    shown = rng.permutation(np.flatnonzero(np.isin(digits.y_train, pair)))
    if len(shown) < shape[0] * shape[1]:
        raise InputError(f"Expected {shape[0] * shape[1]:,} images of {pair[0]} and {pair[1]}, found {len(shown):,}.")
    return shown[: shape[0] * shape[1]].reshape(shape)


def _pixels(digits: Digits, rows: Ints) -> Floats:
    pixels: Floats = digits.x_train[rows].reshape(len(rows), -1) / 255.0
    return pixels


def _module(hidden: int, seed: int) -> Any:
    """(42), without the soft-max, which the loss has."""
    try:
        import torch
    except ImportError as error:
        raise InputError('Expected torch for figures 5 to 7: install it with pip install "kinfolk[torch]".') from error
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = torch.nn.Linear(28 * 28, hidden, bias=False), torch.nn.Linear(hidden, 10, bias=False)
    return torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1])
