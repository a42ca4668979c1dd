"""Candidates: the ways to learn from a network that are compared, each with the values of its parameter to try.

Three stand beside each other, for any model: every node alone, one model for all (the same, with all rows at one
node), and tailored models. The parameter is λ for tailored models, the ridge term for linear ones without neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from kinfolk.engine.fit import Tolerance, fit
from kinfolk.engine.protocol import Algorithm
from kinfolk.engine.run import Run
from kinfolk.engine.selection import path
from kinfolk.network import graphs
from kinfolk.network.data import Data
from kinfolk.network.network import Network
from kinfolk.report.facts import Role

Parameter = Literal["lam", "ridge", "model_count"]


@dataclass(frozen=True, eq=False)
class Candidate:
    """A way to learn: how a value of its parameter becomes an algorithm, and on which network it runs."""

    role: Role
    method: str  # as ``Settings.method`` names it; "" for baselines
    parameter: Parameter
    values: tuple[float, ...]  # to try, ascending
    algorithm: Callable[[float], Algorithm[Any]]
    rounds: int = 1_000
    warm_start: bool = True  # whether each value starts from the one before
    uses_graph: bool = True
    converges: bool = True  # whether it comes to rest, so that where it starts does not matter

    @property
    def key(self) -> str:
        """What tells its work from that of other candidates."""
        return f"{self.role} {self.method} {self.values}"

    def runs(self, network: Network, values: Sequence[float], accuracy: float) -> Iterator[Run]:
        """The run for each value, ascending; those of λ along a path, each started from the one before."""
        if self.role in (Role.ALONE, Role.POOLED):
            where = merged(network) if self.role is Role.POOLED else network
            return (fit(where, self.algorithm(each), rounds=0, progress=False) for each in values)
        options: dict[str, Any] = {"rounds": self.rounds, "stop": Tolerance(accuracy), "measure_every": 20}
        if self.warm_start:
            along = path(network, self.algorithm(values[0]), values, progress=False, **options)
            return (run for _, run in along)
        return (fit(network, self.algorithm(each), progress=False, **options) for each in values)


def merged(network: Network) -> Network:
    """All rows at one node."""
    data = network.data
    together = Data(data.X, data.y, np.array([0, len(data.y)], dtype=np.int64))
    shared = None if network.public is None else network.public.points.reshape(-1, data.feature_count)
    return Network(graphs.edgeless(1), together, public=shared, features=network.features)
