"""Candidates: the ways to learn from a network that are compared, each with the strengths that it is tried with.

Three kinds stand beside each other, for any model: every node alone, one model for all (the same, with all rows at one
node), and tailored models. A strength is λ for tailored models, the ridge term for linear ones without neighbours.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from kinfolk.engine.fit import Tolerance, fit
from kinfolk.engine.run import Run
from kinfolk.engine.selection import path
from kinfolk.network import graphs
from kinfolk.network.data import Data
from kinfolk.network.network import Network
from kinfolk.objective.linear_models import LinearModels
from kinfolk.tables.target import Target
from kinfolk.typing import Floats, Ints

Role = Literal["alone", "pooled", "tailored", "control"]


class Fit(NamedTuple):
    """What was learnt with one strength."""

    strength: float
    models: Any
    run: Run
    seconds: float


@dataclass(frozen=True, eq=False)
class Candidate:
    """A way to learn: how a strength becomes an algorithm, and on which network it runs."""

    role: Role
    title: str
    strengths: tuple[float, ...]
    algorithm: Callable[[float], Any]
    rounds: int = 1_000
    warm_start: bool = True  # whether each strength starts from the one before
    strength_name: str = "λ"
    uses_graph: bool = True
    converges: bool = True  # whether it comes to rest, so that where it starts does not matter

    @property
    def key(self) -> str:
        """What tells its work from that of other candidates."""
        return f"{self.role} {self.title} {self.strengths}"

    def fits(self, network: Network, strengths: Sequence[float], accuracy: float) -> Iterator[Fit]:
        """What is learnt with each strength, from the smallest up; neighbours' λ along a path, each from the last."""
        runs = self._runs(network, sorted(strengths), accuracy)
        while True:
            began = time.perf_counter()
            try:
                strength, run = next(runs)
            except StopIteration:
                return
            models = Shared(run.models) if self.role == "pooled" else run.models
            yield Fit(strength, models, run, time.perf_counter() - began)

    def _runs(self, network: Network, strengths: Sequence[float], accuracy: float) -> Iterator[tuple[float, Run]]:
        if self.role in ("alone", "pooled"):
            where = merged(network) if self.role == "pooled" else network
            return ((each, fit(where, self.algorithm(each), rounds=0, progress=False)) for each in strengths)
        options: dict[str, Any] = {"rounds": self.rounds, "stop": Tolerance(accuracy), "measure_every": 20}
        if self.warm_start:
            return path(network, self.algorithm(strengths[0]), strengths, progress=False, **options)
        return ((each, fit(network, self.algorithm(each), progress=False, **options)) for each in strengths)


@dataclass(frozen=True, eq=False)
class Shared:
    """One model that all nodes have."""

    models: Any  # of a network with one node

    def predict(self, X: Any, node: Any) -> Any:
        """What the one model says."""
        return self.models.predict(X, np.zeros(len(X), dtype=np.int64))

    def predict_proba(self, X: Any, node: Any) -> Any:
        """The probabilities that the one model says."""
        return self.models.predict_proba(X, np.zeros(len(X), dtype=np.int64))


def merged(network: Network) -> Network:
    """All rows at one node."""
    data = network.data
    together = Data(data.X, data.y, np.array([0, len(data.y)], dtype=np.int64))
    shared = None if network.public is None else network.public.points.reshape(-1, data.feature_count)
    return Network(graphs.edgeless(1), together, public=shared, features=network.features)


def say(models: Any, target: Target, X: Floats, node: Ints) -> Floats:
    """What models say of rows: numbers (rows,) or probabilities (rows, classes); NaN where a node has no model."""
    if not target.classes:
        return np.asarray(models.predict(X, node))
    said = np.asarray(models.predict_proba(X, node))
    known = getattr(models, "models", models)
    classes = np.arange(2.0) if isinstance(known, LinearModels) else np.asarray(known.classes)
    out = np.zeros((len(X), len(target.classes)))
    out[:, classes.astype(np.int64)] = said
    return np.where(np.isnan(said[:, :1]), np.nan, out)
