"""Networks with a known truth for graph-aware learning: Table 10.1 of the chapter, and truths whose φ* is known.

``graph=0`` is the graph that a method learns on, ``graph=1`` a homologous one: other nodes from the same distribution,
with other functions, related in the same way. Labels have a mean square of 1, so an error is relative: 1 is that of
predicting 0.

*Table 10.1*: the weights of a node are drawn from a mixture of three Gaussians in 64 dimensions (centres within ±½,
standard deviation ½), reshaped to 8 × 8; nodes are joined with the 4 whose weights are nearest, edges without weights;
y = xW, x uniform in ±60, inputs and outputs divided by 60. According to the chapter outputs follow (10.13), so
truths are also smoothed by L, with 10 rows instead of 100: there learning alone is not enough.

*Kin* and *reflected*: nodes have places, functions change smoothly from place to place, and nodes are joined with
the 4 nearest. In a reflected network nodes have one of two colours and are joined with the nearest of the other
colour; the functions of one colour are mirrored. So neighbours are alike up to a φ* that is the identity or a
reflection. Linear: 10 coefficients, 6 rows; half of ten directions are mirrored. Networks: 8-16-16-8 with tanh, 16
rows; the output is mirrored. Labels have noise of size .1.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kinfolk.algorithms.bigfl.lower import GraphEmbedding, Links
from kinfolk.checks import InputError
from kinfolk.network.graph import Graph
from kinfolk.network.graphs import knn
from kinfolk.network.network import Network
from kinfolk.typing import Floats

NEIGHBOURS, TESTED = 4, 100
CENTRES, SPREAD = 3, 0.5
LINEAR_WIDTH, LINEAR_ROWS = 10, 6
SHAPES = ((8, 16), (16, 16), (16, 8))
NETWORK_ROWS, TEACHER_SCALE, VARIATION, WAVES = 16, 1.5, 0.3, 64
NOISE = 0.1


class Drawn(NamedTuple):
    """A network, and the φ* by which neighbours are related: a matrix, or a number per layer; None: not known."""

    network: Network
    phi: Floats | None


def table_10_1(seed: int, graph: int, *, nodes: int, rows: int, smoothed: bool) -> Drawn:
    """The synthetic setting of the chapter."""
    centres = np.random.default_rng(seed).uniform(-0.5, 0.5, (CENTRES, 64))
    rng = np.random.default_rng([seed, graph])
    truth = centres[np.arange(nodes) % CENTRES] + SPREAD * rng.normal(size=(nodes, 64))
    joined = _unweighted(knn(truth, NEIGHBOURS))
    if smoothed:
        truth = GraphEmbedding().matrix(Links.of(joined)) @ truth
    weights = truth.reshape(nodes, 8, 8)
    X, tested = (rng.uniform(-1.0, 1.0, (nodes, count, 8)) for count in (rows, TESTED))
    y, answers = (np.einsum("nri,nio->nro", x, weights) for x in (X, tested))
    return Drawn(_network(joined, X, y, tested, answers), None)


def linear_truth(seed: int, graph: int, *, nodes: int, reflected: bool) -> Drawn:
    """Linear functions; half of the directions are mirrored between neighbours, or none."""
    shared, rng = np.random.default_rng(seed), np.random.default_rng([seed, graph])
    turned = np.linalg.qr(shared.normal(size=(LINEAR_WIDTH, LINEAR_WIDTH)))[0]
    signs = np.where(np.arange(LINEAR_WIDTH) < (LINEAR_WIDTH // 2 if reflected else 0), -1.0, 1.0)
    mirror = (turned * signs) @ turned.T
    joined, places, colour = _places(rng, nodes, reflected)
    truth = shared.normal(size=LINEAR_WIDTH) + _smooth(rng, places, (LINEAR_WIDTH,))
    truth = np.where(colour[:, None], truth @ mirror, truth)
    X, tested = (rng.normal(size=(nodes, count, LINEAR_WIDTH)) for count in (LINEAR_ROWS, TESTED))
    y, answers = (np.einsum("nri,ni->nr", x, truth) for x in (X, tested))
    return Drawn(_network(joined, X, y, tested, answers, rng), mirror.ravel())


def network_truth(seed: int, graph: int, *, nodes: int, reflected: bool) -> Drawn:
    """Functions of a network with three layers; those of one colour are mirrored, or none."""
    shared, rng = np.random.default_rng(seed), np.random.default_rng([seed, graph])
    common = [TEACHER_SCALE * shared.normal(size=shape) / np.sqrt(shape[0]) for shape in SHAPES]
    joined, places, colour = _places(rng, nodes, reflected)
    layers = [
        base + VARIATION * _smooth(rng, places, shape) / np.sqrt(shape[0])
        for base, shape in zip(common, SHAPES, strict=True)
    ]
    sign = np.where(colour, -1.0, 1.0)[:, None, None]
    X, tested = (rng.uniform(-1.5, 1.5, (nodes, count, SHAPES[0][0])) for count in (NETWORK_ROWS, TESTED))
    y, answers = (sign * (np.tanh(np.tanh(x @ layers[0]) @ layers[1]) @ layers[2]) for x in (X, tested))
    mirror = np.array([1.0, 1.0, -1.0 if reflected else 1.0])
    return Drawn(_network(joined, X, y, tested, answers, rng), mirror)


def student(seed: int, activation: str, *, biases: bool) -> Any:
    """The network 8-16-16-8 with which all nodes start."""
    try:
        import torch
    except ImportError as error:
        raise InputError('Expected torch for this experiment: install it with pip install "kinfolk[torch]".') from error
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        first, second, last = (torch.nn.Linear(*shape, bias=biases) for shape in SHAPES)
    bend = getattr(torch.nn, activation)
    return torch.nn.Sequential(first, bend(), second, bend(), last)


def _places(rng: np.random.Generator, nodes: int, coloured: bool) -> tuple[Graph, Floats, Any]:
    """Places in the plane, colours, and who is joined: the nearest, of the other colour where there are colours."""
    places, colour = rng.normal(size=(nodes, 2)), np.arange(nodes) % 2 == 1
    distance = ((places[:, None] - places[None]) ** 2).sum(axis=-1)
    if coloured:
        distance[colour[:, None] == colour[None]] = np.inf
    np.fill_diagonal(distance, np.inf)
    nearest = np.argsort(distance, axis=1)[:, :NEIGHBOURS]
    pairs = np.sort(np.stack([np.repeat(np.arange(nodes), NEIGHBOURS), nearest.ravel()], axis=1), axis=1)
    return Graph(nodes, np.unique(pairs, axis=0)), places, colour & coloured


def _smooth(rng: np.random.Generator, places: Floats, shape: tuple[int, ...]) -> Floats:
    """A random function of the place for every entry, of variance about one."""
    waves, phase = rng.normal(scale=0.5, size=(2, WAVES)), rng.uniform(0.0, 2.0 * np.pi, WAVES)
    values = np.sqrt(2.0 / WAVES) * np.cos(places @ waves + phase)
    return np.asarray((values @ rng.normal(size=(WAVES, int(np.prod(shape))))).reshape(len(places), *shape))


def _unweighted(graph: Graph) -> Graph:
    return Graph(graph.node_count, np.stack([graph.head, graph.tail], axis=1))


def _network(
    graph: Graph, X: Floats, y: Floats, tested: Floats, answers: Floats, rng: np.random.Generator | None = None
) -> Network:
    """With labels of mean square 1, and noise in those that are learnt from."""
    outputs = answers.shape[2] if answers.ndim == 3 else 1
    size = np.sqrt(outputs * (answers**2).mean())
    y, answers = y / size, answers / size
    if rng is not None:
        y = y + NOISE / np.sqrt(outputs) * rng.normal(size=y.shape)
    return Network(graph, list(zip(X, y, strict=True)), test=list(zip(tested, answers, strict=True)))
