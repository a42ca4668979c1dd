"""The upper level: what φ is learnt for.

    f(φ, θ) = common(φ, θ) + mean over nodes of V_i(θ_i) + (λ_upper / 2) ‖φ − I‖²

``common`` is the coordinator's and needs no data; V_i is the mean loss of the rows that node i holds out, if any.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import numpy as np

from kinfolk.algorithms.bigfl.lower import GraphEmbedding, Links, LowerLevel
from kinfolk.algorithms.bigfl.shapes import Layout
from kinfolk.checks import AtLeast, Between, InputError
from kinfolk.network.data import Data
from kinfolk.network.problem import Problem
from kinfolk.objective.node_loss import LocalLosses, NodeLoss
from kinfolk.typing import Bools, Floats, Ints

HELD_OUT = 6  # keys the draw of rows
TINY = 1e-300


class Common(NamedTuple):
    """The coordinator's part of f, and its derivatives."""

    value: float
    phi: Floats  # (numbers of φ,)
    w: Floats  # (nodes, parameters)


class UpperLevel:
    """What φ is learnt for: by descent along the hypergradient, or at once from θ."""

    descends: ClassVar[bool] = True  # whether φ is learnt by descent; otherwise ``fitted`` finds it

    @property
    def held_out(self) -> float:
        """The share of its rows that every node holds out from local work while φ is learnt."""
        return 0.0

    def check(self, problem: Problem, lower: LowerLevel) -> None:
        """Refuse a graph or a lower level that does not fit."""

    def common(
        self, lower: LowerLevel, links: Links, layout: Layout, phi: Floats, w: Floats, rng: np.random.Generator
    ) -> Common:
        """What the coordinator computes of f from the parameters of all nodes; zero by default."""
        return Common(0.0, np.zeros_like(phi), np.zeros_like(w))

    def fitted(self, lower: LowerLevel, links: Links, layout: Layout, w: Floats) -> Floats:
        """φ from the parameters of all nodes, where ``descends`` is False."""
        raise NotImplementedError


@dataclass(frozen=True)
class HeldOutError(UpperLevel):
    """The mean loss of rows that nodes hold out: learn the φ with which they predict best.

    Once φ is learnt, local work takes all rows.

    Parameters
    ----------
    share : float
        Of the rows of every node; at least one, of two rows or more.
    """

    share: Annotated[float, Between(0, 1, open_low=True, open_high=True)] = 0.2

    @property
    def held_out(self) -> float:
        """``share``."""
        return self.share


@dataclass(frozen=True)
class CosineEmbedding(UpperLevel):
    """(10.14) as printed: embeddings of neighbours are alike, those of nodes that are not joined are not.

    (1/n) Σ_i Σ_{j ∈ N_i} (1 − cos(H_i, H_j)) + (1/n) Σ_i E_j max(0, cos(H_i, H_j)),  j drawn among no neighbours of i

    Parameters
    ----------
    negatives : int
        How many j are drawn, anew in every step.
    """

    negatives: Annotated[int, AtLeast(1)] = 10

    def check(self, problem: Problem, lower: LowerLevel) -> None:
        """Embeddings, and as many nodes as are drawn."""
        if not isinstance(lower, GraphEmbedding):
            raise InputError(
                f"Expected GraphEmbedding as the lower level of CosineEmbedding, got {type(lower).__name__}, which "
                "has no embeddings: take HeldOutError."
            )
        graph = problem.graph
        left = graph.node_count - 1 - graph.degrees
        if (left < self.negatives).any():
            node = int(left.argmin())
            raise InputError(
                f"Expected at least {self.negatives} nodes that are no neighbours of each node, as many as negatives "
                f"are drawn, got {left[node]} for node {graph.names[node]!r}: draw fewer."
            )

    def common(
        self, lower: LowerLevel, links: Links, layout: Layout, phi: Floats, w: Floats, rng: np.random.Generator
    ) -> Common:
        """(10.14) without its last term, and its derivatives through H."""
        assert isinstance(lower, GraphEmbedding)
        H = lower.embedded(links, layout, phi, w)
        size = np.sqrt(np.maximum((H**2).sum(axis=1), TINY))
        unit = H / size[:, None]
        count = links.node_count
        alike, apart = (links.head, links.tail), draw_negatives(links, self.negatives, rng)
        near = (unit[alike[0]] * unit[alike[1]]).sum(axis=1)  # every edge counts at both of its ends
        far = (unit[apart[0]] * unit[apart[1]]).sum(axis=1)
        value = (2.0 * (1.0 - near).sum() + np.maximum(far, 0.0).sum() / self.negatives) / count
        slope = np.zeros_like(H)
        for ends, cosine, weight in (
            (alike, near, np.full(len(near), -2.0 / count)),
            (apart, far, (far > 0) / (self.negatives * count)),
        ):
            for i, j in (ends, ends[::-1]):
                turned = (unit[j] - cosine[:, None] * unit[i]) / size[i, None]
                np.add.at(slope, i, weight[:, None] * turned)
        return Common(float(value), *lower.embedded_slopes(links, layout, phi, w, slope))


@dataclass(frozen=True)
class Regression(UpperLevel):
    """No hypergradient: φ is the ridge regression of θ on Lθ, in turn with the lower level.

    It minimises Σ_i ‖(Lθφ)_i − θ_i‖² + ridge ‖φ − I‖² for the present θ. For linear models.

    Parameters
    ----------
    ridge : float
        Relative to the mean square of Lθ.
    """

    ridge: Annotated[float, AtLeast(0)] = 0.1

    descends: ClassVar[bool] = False

    def check(self, problem: Problem, lower: LowerLevel) -> None:
        """A φ that a regression can find."""
        if not isinstance(lower, GraphEmbedding):
            raise InputError(
                f"Expected GraphEmbedding as the lower level of Regression, got {type(lower).__name__}: take "
                "HeldOutError."
            )
        lower.shape.fitted({"w": (1, 1)}, np.ones((1, 1)), np.ones((1, 1)), self.ridge)

    def fitted(self, lower: LowerLevel, links: Links, layout: Layout, w: Floats) -> Floats:
        """The regression."""
        assert isinstance(lower, GraphEmbedding)
        return lower.fitted(links, layout, w, self.ridge)


# ---------------------------------------------------------------------- what is drawn


def draw_negatives(links: Links, count: int, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """``count`` different nodes for every node that are neither itself nor its neighbours, as pairs.

    >>> links = Links(4, np.array([0, 1]), np.array([1, 2]), np.ones(2))
    >>> sorted(zip(*(ends.tolist() for ends in draw_negatives(links, 1, np.random.default_rng(0)))))
    [(0, 3), (1, 3), (2, 3), (3, 1)]
    """
    n, node = links.node_count, np.arange(links.node_count)
    closed = np.concatenate([links.head * n + links.tail, links.tail * n + links.head, node * (n + 1)])
    owner, other = np.divmod(np.sort(closed), n)  # whom a node may not draw, in order
    starts = np.searchsorted(owner, np.arange(n + 1))
    left = n - np.diff(starts)
    ranks = np.full((n, count), -1, dtype=np.int64)  # among those left, all different (Floyd's method)
    for k in range(count):
        last = left - count + k
        drawn = rng.integers(0, last + 1)
        ranks[:, k] = np.where((ranks == drawn[:, None]).any(axis=1), last, drawn)
    # The r-th of those left is r plus the number of closed ones before it.
    before = owner * (n + 1) + other - (np.arange(len(other)) - starts[owner])
    found = np.searchsorted(before, (node[:, None] * (n + 1) + ranks).ravel(), side="right") - np.repeat(
        starts[:-1], count
    )
    return np.repeat(node, count), ranks.ravel() + found


@dataclass(frozen=True)
class Rows:
    """A loss on the rows that nodes learn from, or on those that they hold out.

    Which rows depends on the number of rows alone, so that a node need not know its number: a share of them at random.
    """

    loss: NodeLoss
    share: float
    held_out: bool

    def bind(self, data: Data) -> LocalLosses:
        """The local losses of these rows."""
        return self.loss.bind(data.keep(held_out_rows(data.sizes, self.share) == self.held_out))


def held_out_rows(sizes: Ints, share: float) -> Bools:
    """Which rows of nodes with so many are held out: a share, at least one of two or more, none of one.

    >>> held_out_rows(np.array([1, 2, 5]), 0.4).sum()
    np.int64(3)
    """
    marks: dict[int, Bools] = {}
    for size in np.unique(sizes).tolist():
        mark = np.zeros(size, dtype=bool)
        count = max(1, round(share * size)) if size > 1 else 0
        mark[np.random.default_rng([HELD_OUT, size]).permutation(size)[: min(count, size - 1) if size else 0]] = True
        marks[size] = mark
    return np.concatenate([np.zeros(0, dtype=bool), *(marks[size] for size in sizes.tolist())])
