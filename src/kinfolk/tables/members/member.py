"""What a member of the ensemble is: fits for some values of its parameters, and predictions from them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol

from kinfolk.network import public
from kinfolk.network.data import Data
from kinfolk.network.graph import Graph
from kinfolk.network.network import Network
from kinfolk.tables.members.scores import LinearScores
from kinfolk.tables.rows import Rows
from kinfolk.tables.target import Target
from kinfolk.typing import Floats

if TYPE_CHECKING:
    from kinfolk.tables.cross_validation import CrossValidation, Validation
    from kinfolk.tables.design import Design

Access = Literal["own rows", "neighbours", "sums", "rows of all"]  # what a site must let others know, least to most
Value = tuple[float, ...]  # of a member's parameters
PUBLIC_POINTS = 100


@dataclass(frozen=True, eq=False)
class TrainingSet:
    """Rows that members may learn from, what is known of their nodes, and the models of members that feed others."""

    rows: Rows
    data: Data  # the same rows at their nodes
    graph: Graph  # which nodes may be kin
    wide: Graph | None  # more neighbours, weighted by distance
    places: Floats | None  # (nodes, 2)
    globe: bool  # whether places are latitude and longitude
    target: Target
    seed: int
    features: list[str]
    base: LinearScores | None = None  # the pooled model, fitted to these rows
    ridge: float = 0.0  # the ridge term that suits it
    own: LinearScores | None = None  # models of nodes, fitted to these rows, where they suit better than the pooled one
    shared: LinearScores | None = None  # shared slopes and node intercepts, without what grows with time
    trend: tuple[int, ...] = ()  # features that grow with time, where later times are predicted
    times: Floats | None = None  # (rows,) where later times are predicted

    @property
    def node_count(self) -> int:
        """Number of nodes."""
        return self.graph.node_count

    @cached_property
    def network(self) -> Network:
        """The nodes with their rows and the graph, and public points for methods that compare predictions."""
        network = Network(self.graph, self.data, features=self.features)
        return network.with_public(public.like_the_data(network, PUBLIC_POINTS, seed=self.seed))


class Fitted(Protocol):
    """What a member has learnt."""

    def predict(self, rows: Rows) -> Floats:
        """Numbers (rows,) or probabilities (rows, classes), as the target is encoded; NaN where it has no model."""

    def predict_new_nodes(self, rows: Rows) -> Floats | None:
        """The same for rows of nodes that were never seen; None if these are like the nodes nearby."""


class Member(ABC):
    """A way to learn from the rows of a table: what it is called, what it needs to see, and how it is tuned.

    Attributes
    ----------
    name : str
        As the leaderboard and ``members`` call it.
    access : {"own rows", "neighbours", "sums", "rows of all"}
        What a site must let others know.
    parameters : tuple of str
        What is chosen by cross-validation.
    inputs : tuple of str
        Members whose models it starts from; these are tuned before it.
    uses_graph, uses_places : bool
        Whether another graph, or other places of nodes, would change it: then it is part of the random-graph control.
    across_parties : bool
        Whether it can be learnt where rows are at several parties.
    races : bool
        Whether values that are clearly worse than another need not be tried to the end.
    """

    name: str
    access: Access
    parameters: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    uses_graph: bool = False
    uses_places: bool = False
    across_parties: bool = False
    races: bool = True

    @property
    def key(self) -> str:
        """Tells its work from that of others."""
        return self.name

    def unsupported_reason(self, design: Design) -> str | None:
        """Why this member cannot learn from such a table, as a clause for a message; None if it can."""
        return None

    @abstractmethod
    def tuned(self, cv: CrossValidation) -> Validation:
        """How each value of its parameters does on rows that were not learnt from."""

    def tuned_control(self, cv: CrossValidation, best: Validation) -> Validation:
        """The same on a random graph, for members that use graphs or places; with fewer values."""
        raise NotImplementedError


class RowMember(Member):
    """A member that learns from rows that are in one place: all rows of a table, or those of a site."""

    def grid(self, design: Design, inputs: Sequence[str]) -> Sequence[Value] | None:
        """The values to try, where they follow from the design alone; None: ``values`` has them."""
        return None

    @abstractmethod
    def values(self, training: TrainingSet) -> Sequence[Value]:
        """The values to try."""

    @abstractmethod
    def fits(self, training: TrainingSet, values: Sequence[Value]) -> Iterator[Any]:
        """What is learnt from a training set, value by value."""

    def final(self, training: TrainingSet, value: Value) -> Any:
        """What is learnt with one value, to predict with: also rows of nodes that were never seen."""
        return next(iter(self.fits(training, [value])))

    def predictions(self, training: TrainingSet, values: Sequence[Value], asked: Rows) -> Iterator[Floats]:
        """Predictions of other rows, value by value."""
        return (fitted.predict(asked) for fitted in self.fits(training, values))

    def tuned(self, cv: CrossValidation) -> Validation:
        """Each party fits its own rows."""
        return cv.validate(self)

    def tuned_control(self, cv: CrossValidation, best: Validation) -> Validation:
        """With the best value alone."""
        return cv.validate(self, [best.value], control=True)
