"""The contract: what an algorithm is, what an engine is, and what travels between them.

An algorithm keeps a state, receives what the neighbours (or the coordinator) sent, computes, and sends something. It is
written once, for a site, and runs anywhere. The state is a NamedTuple whose fields declare which axis they have, so
that participation, re-partition and checkpoints are generic::

    class State(NamedTuple):
        w: PerNode          # (nodes, features)
        u: PerEdge          # (edges, features), a copy at either end

An engine opens a carrier, and a carrier exchanges messages with the workers of the sites; nothing more is asked of it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import (
    Annotated,
    Any,
    ClassVar,
    Generic,
    Literal,
    NamedTuple,
    Protocol,
    TypeVar,
    get_type_hints,
    runtime_checkable,
)

import numpy as np

from kinfolk import kernels
from kinfolk.checks import InputError, listing
from kinfolk.network.problem import Problem
from kinfolk.network.site import Site
from kinfolk.typing import Bools, Ints

PerNode = Annotated[Any, "node"]
PerEdge = Annotated[Any, "edge"]

Arrays = Mapping[str, Any]  # name -> array
SiteId = int
PREDICTIONS = "predictions on public points"  # the content of what is sent, where these are compared


# ---------------------------------------------------------------------- what an algorithm sees and sends


@dataclass(frozen=True)
class Turn:
    """One exchange of one round: their numbers, who takes part, and randomness keyed by (seed, node, round)."""

    round: int
    active: Ints  # numbers of the nodes that take part
    seed: int
    exchange: int = 0  # within the round

    def rng(self, node: int, name: str = "") -> np.random.Generator:
        """A generator for one node in this round: the same on every engine and any number of sites.

        Two draws of the same node that must not be alike have different names.

        >>> turn = Turn(round=3, active=np.arange(2), seed=0)
        >>> turn.rng(1).random() == turn.rng(1).random(), turn.rng(1).random() == turn.rng(1, "batch").random()
        (True, False)
        """
        key = [0, self.seed, int(node), self.round]
        if self.exchange or name:
            key += [self.exchange, *name.encode()]
        return np.random.default_rng(key)

    def keys(self, nodes: Ints, name: str = "") -> Any:
        """A key (uint64) for each of some nodes in this round, for draws that a kernel makes for all of them at once.

        >>> turn = Turn(round=3, active=np.arange(2), seed=0)
        >>> bool(turn.keys(np.array([0, 1]))[1] == turn.keys(np.array([1]))[0])
        True
        """
        words = np.array([int(self.seed) % 2**64, self.round, self.exchange, *name.encode()], dtype=np.uint64)
        return kernels.node_keys(words, np.asarray(nodes, dtype=np.int64))


@dataclass(frozen=True)
class Outbox:
    """What the nodes of a site send: arrays with the node axis first, to the neighbours and to the coordinator."""

    neighbours: Arrays = field(default_factory=dict)
    coordinator: Arrays = field(default_factory=dict)


@dataclass(frozen=True)
class Reply:
    """What the coordinator answers: arrays for everybody, and arrays with one row per sender of the round."""

    to_all: Arrays = field(default_factory=dict)
    to_each: Arrays = field(default_factory=dict)


class Received(dict[str, Any]):
    """Arrays by name; a name that nobody has sent gets a sentence."""

    def __init__(self, arrays: Arrays, sender: str) -> None:
        super().__init__(arrays)
        self.sender = sender

    def __missing__(self, name: str) -> Any:
        raise InputError(
            f"Expected {self.sender} to send {name!r}, it sends {listing(self) if self else 'nothing'}: "
            "put it into the Outbox or the Reply of the step before."
        )


@dataclass(frozen=True)
class Inbox:
    """What the nodes of a site receive. ``inbox["w"]`` holds one row per neighbour elsewhere (``site.outside``)."""

    neighbours: Arrays
    to_all: Arrays
    to_each: Arrays  # one row per own node
    sent: Arrays = field(default_factory=dict)  # what the own nodes last sent to neighbours, as these received it

    def __getitem__(self, name: str) -> Any:
        return self.neighbours[name]


class Models(Protocol):
    """The tailored models of some nodes."""

    def predict(self, X: Any, node: Any) -> Any:
        """Predict every row of ``X`` with the model of its ``node`` (row numbers into these models)."""

    def error(self, X: Any, y: Any, node: Any) -> Any:
        """The error of every row: squared error, or 1 for a wrong class."""


@dataclass(frozen=True)
class Sent:
    """One array that leaves a node: what it is, and the largest shape and the type of a node's part of it."""

    content: str  # in the field's nouns: "parameters", "gradient", or ``PREDICTIONS``
    shape: tuple[int, ...] = ()
    dtype: str = "float64"
    gaps: bool = False  # whether NaN may stand where a node has nothing to send
    noisy: bool = False  # whether it may come with noise: then edges are computed from ``Inbox.sent``
    public: bool = False  # whether it tells nothing of rows but their number

    @property
    def largest_bytes(self) -> int:
        """The most bytes that it takes for a node.

        >>> Sent("parameters", (10,)).largest_bytes
        80
        """
        return math.prod(self.shape) * self.itemsize

    @property
    def read_exactly(self) -> bool:
        """Whether it tells of rows, and never comes with noise."""
        return not (self.noisy or self.public)

    @property
    def itemsize(self) -> int:
        """Bytes of one number."""
        return np.dtype(self.dtype).itemsize


NUMBER, WHOLE_NUMBER = Sent("number"), Sent("whole number", dtype="int64")


@dataclass(frozen=True)
class Sends:
    """All that may leave a node: by name, to its neighbours and to the coordinator."""

    neighbours: Mapping[str, Sent] = field(default_factory=dict)
    coordinator: Mapping[str, Sent] = field(default_factory=dict)


@dataclass(frozen=True)
class Replies:
    """All that a coordinator may answer: arrays by name with their largest shapes, for all and for each sender."""

    to_all: Mapping[str, Sent] = field(default_factory=dict)
    to_each: Mapping[str, Sent] = field(default_factory=dict)  # the shape of a node's part


# ---------------------------------------------------------------------- an algorithm

S = TypeVar("S")
M = TypeVar("M")


TO_SCALE = "bring features and target to the scale of 1"
SMALLER_STEPS = f"take a smaller step_size, or {TO_SCALE}"


class Algorithm(ABC, Generic[S]):
    """A frozen dataclass of hyper-parameters with these functions; five are needed, the others have defaults.

    ``init`` is round 0: every node is present, and what it sends is received in round 1. ``measure`` gives scalars per
    node; they are added up in node order and handed to ``summary``, whose ``residual`` the stop rule looks at.
    """

    steps_in_place: ClassVar[bool] = False  # whether ``step`` overwrites the arrays of the state it is given
    if_diverged: ClassVar[str] = TO_SCALE  # what a user can do then
    own_choice: ClassVar[tuple[str, ...]] = ()  # fields that every site of a federation may choose for itself

    @abstractmethod
    def init(self, site: Site, turn: Turn) -> tuple[S, Outbox]:
        """The first state of every own node, and what it sends. ``site.live`` is None if every message will come."""

    @abstractmethod
    def step(self, site: Site, state: S, inbox: Inbox, turn: Turn) -> tuple[S, Outbox]:
        """One exchange: receive, compute, send."""

    @abstractmethod
    def measure(self, site: Site, state: S, inbox: Inbox) -> Arrays:
        """Scalars per own node whose sums over the network show how far the run is."""

    @abstractmethod
    def summary(self, totals: Mapping[str, float]) -> Mapping[str, float]:
        """The history's columns from the sums of ``measure``: ``objective``, ``residual``, and others.

        ``residual`` must vanish at the solution.
        """

    @abstractmethod
    def models(self, site: Site, state: S, inbox: Inbox) -> Models:
        """The models of the own nodes; the inbox has the coordinator's last reply."""

    def sends(self, problem: Problem) -> Sends | None:
        """All that may leave a node; None: unknown. What an outbox holds is compared with it."""
        return None

    def check(self, problem: Problem) -> None:
        """Refuse a problem that cannot be solved, with a sentence; the rows are not here."""

    def check_data(self, site: Site) -> None:
        """Refuse rows that cannot be learnt from, with a sentence, where they are."""

    def remarks(self, problem: Problem) -> list[str]:
        """What a user should know before trusting the answer."""
        return []

    def findings(self, row: Mapping[str, float]) -> list[str]:
        """What a user should know of how the run went, from the last row of its history."""
        return []

    def learns_along_edges(self, problem: Problem) -> bool:
        """Whether a node learns from its neighbours: then nodes without data take part, too.

        By default, whether neighbours send each other something.
        """
        sends = self.sends(problem)
        return sends is None or bool(sends.neighbours)

    def exchanges(self, round_: int, memory: Any) -> int:
        """How many exchanges a round takes; ``turn.exchange`` counts them. The same nodes take part in all of them.

        ``memory`` is the coordinator's before the round; None without one.
        """
        return 1

    def first_exchanges(self, memory: Any) -> int:
        """How many exchanges round 0 takes: ``init`` or ``resume``, and then ``step`` with ``turn.exchange`` > 0.

        Every node takes part in all of them. ``memory`` is the coordinator's first; None without one.
        """
        return 1

    def starts_from(self, problem: Problem, other: Algorithm[Any], before: Problem) -> bool:
        """Whether a run may go on from the state of one of ``other``, an algorithm of the same type, on ``before``.

        By default, if what leaves a node has the same names and shapes.
        """
        return problem.feature_count == before.feature_count and _shapes(self, problem) == _shapes(other, before)

    def resume(self, site: Site, state: S, turn: Turn) -> tuple[S, Outbox]:
        """Round 0 from the state of a run with other hyper-parameters or data; by default it starts cold."""
        return self.init(site, turn)

    def extrapolate(self, site: Site, past: Sequence[tuple[float, S]]) -> S:
        """A guess at the state from those for other values of λ, [(λ, state)]; by default the last one."""
        return past[-1][1]

    def overview(self, site: Site, state: S) -> Mapping[str, float]:
        """Columns of the history that need all nodes at once, on a site that holds every node.

        Where an engine does not see all states, they are missing.
        """
        return {}

    def certify(self, site: Site, state: S, inbox: Inbox, enough: float = 0.0) -> Any:
        """A proof of how good the answer is, on a site that holds every node; None where there is no such notion.

        No sharper one is needed than ``enough``, as a part of the objective.
        """
        return None

    def finish(self, site: Site, state: S, inbox: Inbox, effort: float) -> tuple[S, Outbox] | None:
        """A better state and what would be sent with it, at the cost of about ``effort`` rounds, or None.

        Asked for on a site that holds every node. It leaves ``state`` alone; ``fit`` keeps the proposal only if the
        residual falls.
        """
        return None

    def complete(self, site: Site, models: Any) -> Any:
        """The models with gaps filled, on a site that holds every node."""
        return models


class Coordinated(Algorithm[S], Generic[S, M]):
    """An algorithm in which a coordinator takes part; its memory is replaced, never changed in place."""

    @abstractmethod
    def start(self, problem: Problem, turn: Turn, before: M | None = None) -> M:
        """The coordinator's first memory; ``before`` is that of a run with other hyper-parameters to go on from."""

    @abstractmethod
    def combine(self, memory: M, outbox: Arrays, turn: Turn) -> tuple[M, Reply]:
        """Read what this round's senders (``turn.active``, one row each) sent, and answer."""

    def reads(self, round_: int) -> bool:
        """Whether nodes may send to the coordinator in a round after the first; by default in every one.

        Where it does not read, engines need not wait for it.
        """
        return True

    def replies(self, problem: Problem) -> Replies | None:
        """All that the coordinator may answer, to which every reply is held; None: unknown.

        Sites in other processes refuse what is not declared, so without it an algorithm runs in one process only.
        """
        return None


def _shapes(algorithm: Algorithm[Any], problem: Problem) -> dict[str, Any]:
    """The shapes of what leaves a node, by name."""
    sends = algorithm.sends(problem)
    declared = {} if sends is None else {**sends.coordinator, **sends.neighbours}
    return {name: (sent.shape, sent.dtype) for name, sent in declared.items()}


def axes_of(state: Any) -> dict[str, str]:
    """The axis of every field of a state: "node" or "edge"."""
    if not hasattr(state, "_fields"):
        raise InputError(f"Expected a NamedTuple as state, got {type(state).__name__}.")
    kind = type(state)
    if kind not in _AXES:
        _AXES[kind] = _axes(kind)
    return _AXES[kind]


_AXES: dict[type, dict[str, str]] = {}  # reading annotations takes longer than a small step


def _axes(kind: Any) -> dict[str, str]:
    hints = get_type_hints(kind, include_extras=True)
    axes = {name: getattr(hints.get(name), "__metadata__", ("",))[0] for name in kind._fields}
    unknown = [name for name, axis in axes.items() if axis not in ("node", "edge")]
    if unknown:
        raise InputError(
            f"Expected an axis for the field {unknown[0]!r} of {kind.__name__}, got none: annotate it with PerNode or "
            "PerEdge."
        )
    return axes


# ---------------------------------------------------------------------- what travels, and an engine


@dataclass(frozen=True)
class Request:
    """What a site is asked to do, and what it needs for that."""

    work: Literal["begin", "resume", "step", "finish", "measure"]
    turn: Turn
    inbox: Mapping[SiteId, Arrays] = field(default_factory=dict)  # from the other sites
    to_all: Arrays = field(default_factory=dict)
    to_each: Arrays = field(default_factory=dict)  # one row per own node
    carries: Bools | None = None  # (edges of the site,) None: all carry; in round 0: in every round that comes
    effort: float = 0.0


class Messages(NamedTuple):
    """What a site answers. Arrays only."""

    neighbours: Mapping[SiteId, Arrays]  # for every other site: rows of the own nodes that have an edge to it
    coordinator: Arrays  # one row per sender
    senders: Ints  # numbers of the nodes that sent it
    scalars: Arrays  # what was measured, one number per own node
    row_bytes: int  # what a node sends to a neighbour


class Missing(NamedTuple):
    """No answer."""

    why: str
    letters: bool = False  # whether the site is there, but what it sent to others last cannot be used


class SiteSnapshot(NamedTuple):
    """A site between two rounds."""

    state: Any
    sent: Arrays  # what each own node last sent to its neighbours


class Scope(NamedTuple):
    """What a site is about: the numbers of its nodes and of the edges that touch them, in its order."""

    nodes: Ints
    edges: Ints


class Carrier(Protocol):
    """All that an engine is: it brings requests to the sites, and answers back."""

    @property
    def sites(self) -> Sequence[Scope]:
        """Nodes and edges of every site."""

    @property
    def sees_all(self) -> bool:
        """Whether states may be collected: for certificates, polishing and row-wise predictions."""

    @property
    def whole(self) -> Site | None:
        """The one site that holds every node, in an order of its own, where it is here; None otherwise."""

    @property
    def lost(self) -> float:
        """Share of messages between neighbours that get lost."""

    def exchange(self, requests: Mapping[SiteId, Request]) -> Mapping[SiteId, Messages | Missing]:
        """Bring every site its request; its answer, or why there is none."""

    def settle(self, *, keep: bool) -> bool:
        """End a round at every site: keep what it did, or go back. False: some site could not go back."""

    def save(self, *, copy: bool) -> Sequence[SiteSnapshot]:
        """The state of every site; only where ``sees_all``."""

    def load(self, snapshots: Sequence[SiteSnapshot]) -> None:
        """Go on from these states; only where ``sees_all``."""


@runtime_checkable
class Chaining(Carrier, Protocol):
    """A carrier whose sites can go on from round to round while nobody waits for their answers."""

    @property
    def ahead(self) -> int:
        """How many rounds may be asked for before somebody waits."""

    def send(self, requests: Mapping[SiteId, Request]) -> Mapping[SiteId, Mapping[SiteId, Arrays]]:
        """Ask for an exchange, and do not wait; what stands for what every site will send to the others."""

    def wait(self) -> Sequence[Sequence[int | None]]:
        """Wait for all that was sent. For every round that was made, ``row_bytes`` of its exchanges.

        If that is fewer than were sent, something failed; the sites are as the last round that was made left them.
        """


@runtime_checkable
class Spending(Carrier, Protocol):
    """A carrier that knows what noise its sites have added."""

    def privacy(self, names: Sequence[Hashable]) -> Any:
        """What has been spent, a ``Privacy``; None without noise."""


class Engine(Protocol):
    """Where the sites are."""

    def open(self, problem: Problem, algorithm: Algorithm[Any]) -> Carrier:
        """Get the sites ready to run ``algorithm``, or refuse with a sentence."""


@dataclass(frozen=True)
class Snapshot:
    """A run between two rounds: the state of the whole network and all that was sent last."""

    state: Any
    sent: Arrays  # (nodes, ...) what each node last sent to its neighbours
    memory: Any  # the coordinator's
    to_all: Arrays
    to_each: Arrays  # (nodes, ...)
    bytes_sent: int
    row_bytes: int

    def inbox(self, nodes: Ints) -> Inbox:
        """What a site that holds every node has received last."""
        nothing = {name: rows[:0] for name, rows in self.sent.items()}
        return Inbox(nothing, self.to_all, {name: rows[nodes] for name, rows in self.to_each.items()})
