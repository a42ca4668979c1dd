"""What a member of the blend is: fits for some values of its parameters, and predictions from them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from kinfolk.network.graph import Graph
from kinfolk.network.network import Network
from kinfolk.tables.members.scores import LinearScores
from kinfolk.tables.rows import Rows
from kinfolk.tables.target import Target
from kinfolk.typing import Floats

Needs = Literal["own rows", "neighbours", "sums", "rows of all"]  # what a site must let others know, from least to most
Value = tuple[float, ...]  # of a member's parameters


@dataclass(frozen=True, eq=False)
class Sample:
    """Rows that members may learn from, and what is known of their nodes."""

    rows: Rows
    network: Network  # the same rows at their nodes, with the graph of who may be kin
    wide: Graph | None  # more neighbours, weighted by distance
    places: Floats | None  # (nodes, 2)
    globe: bool  # whether places are latitude and longitude
    target: Target
    seed: int
    base: LinearScores | None = None  # one model for all, fitted to these rows
    ridge: float = 0.0  # the ridge term that suits it
    own: LinearScores | None = None  # models of nodes, fitted to these rows, where they suit better than one for all
    shared: LinearScores | None = None  # one model with an intercept per node, without what grows with time
    trend: tuple[int, ...] = ()  # features that grow with time, where later times are predicted
    times: Floats | None = None  # (rows,) where later times are predicted

    @property
    def node_count(self) -> int:
        """Number of nodes."""
        return self.network.graph.node_count


class Fitted(Protocol):
    """What a member has learnt."""

    def predict(self, rows: Rows) -> Floats:
        """Numbers (rows,) or probabilities (rows, classes), as the target is encoded; NaN where it has no model."""

    def elsewhere(self, rows: Rows) -> Floats | None:
        """The same for rows of nodes that were never seen; None if these are like the nodes nearby."""


class Member(ABC):
    """A way to learn from all rows of a table.

    Attributes
    ----------
    name : str
        As the leaderboard and ``members`` call it.
    needs : {"own rows", "neighbours", "sums", "rows of all"}
        What a site must let others know.
    parameters : tuple of str
        What is chosen by cross-validation.
    races : bool
        Whether values that are clearly worse than another need not be tried to the end.
    """

    name: str
    needs: Needs
    parameters: tuple[str, ...] = ()
    races: bool = True

    @property
    def key(self) -> str:
        """Tells its work from that of others."""
        return self.name

    def missing(self, sample: Sample) -> str | None:
        """Why it cannot learn from such rows; None if it can."""
        return None

    @abstractmethod
    def values(self, sample: Sample) -> Sequence[Value]:
        """What to try for its parameters."""

    @abstractmethod
    def fits(self, sample: Sample, values: Sequence[Value]) -> Iterator[Any]:
        """What is learnt from a sample, value by value."""

    def final(self, sample: Sample, value: Value) -> Any:
        """What is learnt with one value, to predict with: also rows of nodes that were never seen."""
        return next(iter(self.fits(sample, [value])))

    def predictions(self, sample: Sample, values: Sequence[Value], asked: Rows) -> Iterator[Floats]:
        """Predictions of other rows, value by value."""
        return (fitted.predict(asked) for fitted in self.fits(sample, values))
