"""The latest rows of every node: a model, and the level at which it leaves the node's latest rows.

    f_i(x) = m_i(x) + s_i,    s_i = Σ_r d_r (y_r − m_i(x_r)) / (μ + Σ_r d_r),    d_r = 2^(−(t_i − t_r) / h)

t_i is the time of the last row of node i. This is exponential smoothing (Brown 1959) of what a model leaves: levels
change slowly, so that where later times are predicted, the last ones tell more than those long ago. The half-life h is
a share of all the time that rows cover. Each node needs its own rows and the model, no more.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from kinfolk.tables.members.linear_fit import LinearFit
from kinfolk.tables.members.member import Access, RowMember, TrainingSet, Value
from kinfolk.tables.members.scores import LinearScores
from kinfolk.typing import Floats, Ints

if TYPE_CHECKING:
    from kinfolk.tables.design import Design

HALF_LIVES = (1 / 32, 1 / 16, 1 / 8, 1 / 4)  # of the time that rows cover
STRENGTHS = (0.3, 1.0, 3.0)  # μ: so many rows at the level of the model
Base = Callable[[TrainingSet], LinearScores]


class Recent(RowMember):
    """A model and the latest level of every node; half-life and strength are chosen."""

    parameters = ("half-life", "strength")

    def __init__(self, name: str, base: Base, access: Access, inputs: tuple[str, ...] = ()) -> None:
        self.name, self.base, self.access, self.inputs = name, base, access, inputs

    def unsupported_reason(self, design: Design) -> str | None:
        """Levels are of numbers, and rows must have times."""
        if not design.timed:
            return "no later times are predicted"
        return "the target is no number" if design.target.kind != "number" else None

    def values(self, training: TrainingSet) -> Sequence[Value]:
        """All pairs."""
        return list(product(HALF_LIVES, STRENGTHS))

    def fits(self, training: TrainingSet, values: Sequence[Value]) -> Iterator[LinearFit]:
        """The model with other intercepts, for each pair."""
        assert training.times is not None
        rows, base = training.rows, self.base(training)
        rest = rows.y - base.predict(rows.X, rows.owner)
        own = np.repeat(base.w, training.node_count, axis=1) if base.w.shape[1] == 1 else base.w
        age = ages(training.times, rows.owner, training.node_count)
        for half_life, strength in values:
            w = own.copy()
            w[0, :, -1] += latest_levels(rest, rows.owner, age / half_life, strength, training.node_count)
            yield LinearFit(dataclasses.replace(base, w=w, common=_common(base)))


def recent_members() -> list[Recent]:
    """The latest level alone, that of one model with an intercept per node, and that of random slopes."""
    return [
        Recent("recent", _nothing, "own rows"),
        Recent("recent-intercepts", _intercepts, "sums", ("pooled", "intercepts")),
        Recent("recent-slopes", _slopes, "sums", ("pooled", "slopes")),
    ]


def ages(times: Floats, owner: Ints, node_count: int) -> Floats:
    """How long before the last row of its node each row is, in parts of the time that all rows cover.

    >>> ages(np.array([0.0, 4.0, 1.0, 2.0]), np.array([0, 0, 1, 1]), 2).tolist()
    [1.0, 0.0, 0.25, 0.0]
    """
    known = ~np.isnan(times)
    last = np.full(node_count, -np.inf)
    np.maximum.at(last, owner[known], times[known])
    span = float(np.ptp(times[known])) if known.any() else 0.0
    return np.asarray((last[owner] - times) / (span or 1.0))


def latest_levels(rest: Floats, owner: Ints, half_lives: Floats, strength: float, node_count: int) -> Floats:
    """s_i of every node; ``half_lives``: how many of them ago each row is, NaN where that is not known.

    >>> latest_levels(np.array([8.0, 2.0]), np.array([0, 0]), np.array([1.0, 0.0]), 0.5, 1).tolist()
    [3.0]
    """
    weight = np.nan_to_num(0.5**half_lives)
    total = np.bincount(owner, weight * rest, minlength=node_count)
    return np.asarray(total / (np.bincount(owner, weight, minlength=node_count) + strength))


def _nothing(training: TrainingSet) -> LinearScores:
    """The mean of all rows."""
    return LinearScores(np.zeros((1, training.node_count, training.rows.X.shape[1] + 1)), training.target)


def _intercepts(training: TrainingSet) -> LinearScores:
    """Shared slopes and node intercepts, or else the pooled model."""
    found = training.shared or training.base
    assert found is not None
    return found


def _slopes(training: TrainingSet) -> LinearScores:
    """Models of nodes, where they suit better than the pooled one."""
    found = training.own or training.base
    assert found is not None
    return found


def _common(base: LinearScores) -> Floats | None:
    """What nodes that were never seen get: they have no latest rows."""
    return base.w[:, 0] if base.w.shape[1] == 1 else base.common
