"""What an algorithm is: a node program over a site, written once and run anywhere.

A program keeps a state, hears what the neighbours (or the coordinator) said, computes, and says something. The
state is a NamedTuple whose fields say which axis they have, so that participation and re-partition are generic::

    class State(NamedTuple):
        w: PerNode          # (nodes, features)
        u: PerEdge          # (edges, features), a copy at either end
        clock: Shared       # the same everywhere
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, Protocol, TypeVar, get_type_hints, runtime_checkable

import numpy as np

from kinfolk.network.site import Site
from kinfolk.typing import Ints

PerNode = Annotated[Any, "node"]
PerEdge = Annotated[Any, "edge"]
Shared = Annotated[Any, "shared"]

Arrays = Mapping[str, Any]  # name -> array


@dataclass(frozen=True)
class Turn:
    """One round: its number, who takes part, and randomness keyed by (seed, node, round)."""

    round: int
    active: Ints  # numbers of the nodes that take part
    seed: int

    def rng(self, node: int) -> np.random.Generator:
        """A generator for one node in this round: the same on every engine and any number of sites."""
        return np.random.default_rng([0, self.seed, int(node), self.round])


@dataclass(frozen=True)
class Outbox:
    """What the nodes of a site say: arrays with the node axis first, to the neighbours and to the coordinator."""

    neighbours: Arrays = field(default_factory=dict)
    coordinator: Arrays = field(default_factory=dict)


@dataclass(frozen=True)
class Reply:
    """What the coordinator answers: arrays for everybody, and arrays with one row per speaker of the round."""

    to_all: Arrays = field(default_factory=dict)
    to_each: Arrays = field(default_factory=dict)


@dataclass(frozen=True)
class Inbox:
    """What the nodes of a site hear. ``inbox["w"]`` holds one row per neighbour elsewhere (``site.outside``)."""

    neighbours: Arrays
    to_all: Arrays
    to_each: Arrays  # one row per own node

    def __getitem__(self, name: str) -> Any:
        return self.neighbours[name]


class Models(Protocol):
    """The tailored models of some nodes."""

    def predict(self, X: Any, node: Any) -> Any:
        """Predict every row of ``X`` with the model of its ``node`` (row numbers into these models)."""

    def error(self, X: Any, y: Any, node: Any) -> Any:
        """The error of every row: squared error, or 1 for a wrong class."""


S = TypeVar("S")


class Algorithm(Protocol, Generic[S]):
    """A frozen dataclass of hyper-parameters with these functions; see below for what is optional.

    ``init`` is round 0: every node is present, and what it says is heard in round 1. A step may overwrite its
    own state. ``measure`` gives scalars per node; they are added up in node order and handed to ``summary``,
    whose ``residual`` is what the stop rule looks at.

    Optional: ``start`` and ``combine`` (see ``Coordinated``); ``check(network)`` refuses what cannot work;
    ``resume(site, state, turn)`` is round 0 from the state of a run with other hyper-parameters (without it such a
    run starts cold); ``certify(site, state, reply)`` proves how good the answer is; ``remarks(network)`` says what
    to know about it; ``extrapolate(site, past)`` guesses its state from those for other values of λ, [(λ, state)].

    Optional, where one process sees the whole network: ``finish(site, state, reply, effort)`` proposes a better state
    and what would be said with it, at the cost of about ``effort`` rounds, or None; it leaves ``state`` alone, and
    ``fit`` keeps the proposal only if the residual falls. ``complete(site, models)`` fills gaps in the models.
    """

    def init(self, site: Site, turn: Turn) -> tuple[S, Outbox]:
        """The first state of every own node, and what it says."""

    def step(self, site: Site, state: S, inbox: Inbox, turn: Turn) -> tuple[S, Outbox]:
        """One round: hear, compute, say."""

    def measure(self, site: Site, state: S, inbox: Inbox) -> Arrays:
        """Scalars per own node whose sums over the network say how far the run is."""

    def summary(self, totals: Mapping[str, float]) -> Mapping[str, float]:
        """The history's columns from the sums of ``measure``; ``residual`` must vanish at the solution."""

    def models(self, site: Site, state: S) -> Models:
        """The models of the own nodes."""


@runtime_checkable
class Coordinated(Protocol):
    """An algorithm in which a coordinator takes part."""

    def start(self, turn: Turn, before: Any = None) -> Any:
        """The coordinator's first memory; ``before`` is that of a run with other hyper-parameters to go on from."""

    def combine(self, memory: Any, outbox: Arrays, turn: Turn) -> tuple[Any, Reply]:
        """Read what this round's speakers (``turn.active``, one row each) said, and answer."""


def axes_of(state: Any) -> dict[str, str]:
    """The axis of every field of a state: "node", "edge" or "shared"."""
    hints = get_type_hints(type(state), include_extras=True)
    axes = {name: getattr(hints.get(name), "__metadata__", ("",))[0] for name in state._fields}
    unknown = [name for name, axis in axes.items() if axis not in ("node", "edge", "shared")]
    if unknown:
        raise TypeError(
            f"The field {unknown[0]!r} of {type(state).__name__} does not say its axis: "
            "annotate it with PerNode, PerEdge or Shared."
        )
    return axes
