"""The edge test: does pooling two nodes lower their validation error?

Abdurakhmanova, SarcheshmehPour, Jung: Towards Model-Agnostic Federated Learning over Networks (2025), section II-A.
The rows of every node are dealt into folds. For fold f and an edge {i, j}, ridge regression is fitted

    alone:   w_i = (G_i + ridge)⁻¹ b_i,                  G_i = Σ x x',  b_i = Σ y x  over i's rows outside f
    pooled:  w   = (G_i + G_j + ridge)⁻¹ (b_i + b_j)

and scored on the rows of f. The test compares Σ over the rows of i and j of squared errors, alone and pooled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import numpy as np

from kinfolk import kernels
from kinfolk.checks import AtLeast, InputError, check_value
from kinfolk.network.data import Data, check_one_label
from kinfolk.network.folds import row_folds
from kinfolk.network.graph import Graph
from kinfolk.network.network import Network
from kinfolk.objective.symmetric import solve_symmetric
from kinfolk.similarity.joining import Needs
from kinfolk.typing import Bools, Floats, Ints

NUMBERS_AT_ONCE = 2**22  # entries of the matrices of edges that are solved together


@dataclass(frozen=True, eq=False)
class PoolingTest:
    """Of every candidate edge: the mean squared validation error of its ends, alone and pooled."""

    candidates: Graph
    alone: Floats  # (edges,)
    pooled: Floats  # (edges,)
    tolerance: float

    needs: ClassVar[Needs] = "pooled rows"
    leaves: ClassVar[str] = "rows, to the nodes it is tested with; for this linear model Σxx', Σyx and Σy² per fold do"

    @property
    def passed(self) -> Bools:
        """Whether pooling lowers the error, or raises it by less than the tolerance; never for a node without data."""
        return self.pooled < (1 + self.tolerance) * self.alone

    @property
    def graph(self) -> Graph:
        """The edges that passed, with their weights."""
        tested, passed = self.candidates, self.passed
        ends = np.stack([tested.head, tested.tail], axis=1)[passed]
        return Graph(tested.node_count, ends, tested.weights[passed], tested.names)

    def __str__(self) -> str:
        text = f"Pooling lowers the validation error on {self.passed.sum():,} of {len(self.passed):,} edges"
        if self.tolerance:
            text += f", or raises it by less than {100 * self.tolerance:g} %"
        untested = int(np.isnan(self.alone).sum())
        return f"{text}." + (f" {untested:,} edges end at a node without data and do not pass." if untested else "")


def pooling_test(
    network: Network,
    candidates: Graph | None = None,
    *,
    folds: int = 5,
    ridge: float = 0.1,
    intercept: bool = False,
    tolerance: float = 0.0,
    seed: int = 0,
) -> PoolingTest:
    """Test edges by the effect of pooling their ends; ``.graph`` has those that passed.

    Kin gain little from each other where samples suffice, and then chance decides: of pairs with the same true
    parameters 83 to 89 % pass, of pairs with opposite ones up to 0.2 % (3 features, 6 to 20 samples; measured). A
    ``tolerance`` such as 0.05 keeps more of the former.

    Parameters
    ----------
    network : the nodes and their data; labels are taken as numbers.
    candidates : the edges to test, such as ``nearest_kin(network, ParameterDistance(), k=10)``; by default those of
        the network's graph. Every edge costs one linear solve per fold.
    folds : into how many parts the rows of a node are dealt; a node with fewer rows is left out row by row.
    ridge : weight of ‖w‖² beside rows that count 1 each; the intercept is not penalised.
    tolerance : how much larger than alone, relatively, the error may be when pooled.
    seed : for dealing the rows.

    >>> from kinfolk import graphs
    >>> rng = np.random.default_rng(0)
    >>> truth = np.array([[1.0, 0.0], [1.0, 0.0], [-1.0, 2.0]])
    >>> X = rng.normal(size=(3, 5, 2))
    >>> sets = [(X[i], X[i] @ truth[i] + 0.3 * rng.normal(size=5)) for i in range(3)]
    >>> test = pooling_test(Network(graphs.chain(3), sets))
    >>> print(test)
    Pooling lowers the validation error on 1 of 2 edges.
    >>> test.graph.to_frame()[["head", "tail"]].values.tolist()
    [[0, 1]]
    """
    check_value("folds", "pooling_test", folds, Annotated[int, AtLeast(2)])
    for name, value in (("ridge", ridge), ("tolerance", tolerance)):
        check_value(name, "pooling_test", value, Annotated[float, AtLeast(0)])
    check_one_label(network.data.y, "pooling_test")
    tested = network.graph if candidates is None else candidates
    if tested.node_count != network.graph.node_count:
        raise InputError(f"Expected candidates among {network.graph.node_count} nodes, got {tested.node_count}.")
    data, fold = network.data, row_folds(network.data.owner, folds, seed)
    X = np.column_stack([data.X, np.ones(len(data.X))]) if intercept else np.ascontiguousarray(data.X)
    penalty = np.diag(np.r_[np.full(data.feature_count, ridge), np.zeros(int(intercept))])
    alone, pooled = np.zeros(data.node_count), np.zeros(tested.edge_count)
    for part in range(folds):
        held = Moments.of(X, data, fold == part)
        learnt = Moments.of(X, data, fold != part)
        alone += held.error(solve_symmetric(learnt.gram + penalty, learnt.cross))
        pooled += _pooled_error(tested, learnt, held, penalty)
    rows = (data.sizes[tested.head] + data.sizes[tested.tail]).astype(np.float64)
    rows[np.minimum(data.sizes[tested.head], data.sizes[tested.tail]) == 0] = np.nan
    return PoolingTest(tested, (alone[tested.head] + alone[tested.tail]) / rows, pooled / rows, float(tolerance))


class Moments(NamedTuple):
    """What squared errors of linear models need to know of the rows of every node."""

    gram: Floats  # (nodes, parameters, parameters) Σ x x'
    cross: Floats  # (nodes, parameters) Σ y x
    square: Floats  # (nodes,) Σ y²

    @classmethod
    def of(cls, X: Floats, data: Data, counted: Bools) -> Moments:
        """Of the rows that are counted."""
        factor = counted.astype(np.float64)
        return cls(
            kernels.gram(X, data.starts, factor),
            kernels.combine_rows(X, data.starts, factor * data.y),
            kernels.sum_rows(factor * data.y**2, data.starts),
        )

    def take(self, nodes: Ints) -> Moments:
        """Those of some nodes."""
        return Moments(*(part[nodes] for part in self))

    def plus(self, other: Moments) -> Moments:
        """Those of the rows of both."""
        return Moments(*(a + b for a, b in zip(self, other, strict=True)))

    def error(self, w: Floats) -> Floats:
        """Σ (y − x'w)² = Σ y² − 2 w'Σyx + w'Σxx'w, at least 0."""
        bent = (self.gram @ w[:, :, None])[:, :, 0]
        out: Floats = np.maximum(self.square + ((bent - 2 * self.cross) * w).sum(axis=1), 0.0)
        return out


def _pooled_error(graph: Graph, learnt: Moments, held: Moments, penalty: Floats) -> Floats:
    """The squared error of every edge's pooled model on the held-out rows of both ends, some edges at a time."""
    out = np.empty(graph.edge_count)
    step = max(1, NUMBERS_AT_ONCE // penalty.size)
    for start in range(0, graph.edge_count, step):
        some = slice(start, start + step)
        head, tail = graph.head[some], graph.tail[some]
        both = learnt.take(head).plus(learnt.take(tail))
        w = solve_symmetric(both.gram + penalty, both.cross)
        out[some] = held.take(head).plus(held.take(tail)).error(w)
    return out
