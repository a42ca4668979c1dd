"""Parties: who has rows. The job asks them, all at the same time; a table is one party whose rows are here.

An algorithm is a node program over a site; the main job, too, is a program over sites. What a party may be asked is
this abstract class, and nothing else. A party that is here is called. One that is elsewhere gets a message, and what it
sends back is declared (``federation.tables.queries``), added up over parties or masked.

Axes: f fits = (part, value, score) in one row; parts are the folds, then all training rows; scores are the linear
predictors, one for each of more than two classes; n own nodes; p parameters of a linear model; b boundary nodes, which
have neighbours at other parties.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, TypeVar

from kinfolk.network.graph import Graph
from kinfolk.tables.members.member import RowMember, Value
from kinfolk.typing import Bools, Floats, Ints

P = ParamSpec("P")
R = TypeVar("R")
NONE: Mapping[str, int] = {}


# ---------------------------------------------------------------------- what is asked


class Scene(NamedTuple):
    """Which nodes may be kin and where they are; that of the control is drawn at random."""

    graphs: Sequence[Graph]  # of every part
    wide: Graph | None  # with more neighbours
    places: Floats | None  # (nodes, 2)


class MixedFits(NamedTuple):
    """A batch of mixed models: every pair of strengths on every part."""

    strengths: Floats  # (values, 2) of node intercepts, and of node slopes
    start: int  # the value of the pooled model that common models start from; −1: they start from zero
    rounding: float  # how widely kinks of the loss are rounded


class GraphFits(NamedTuple):
    """A batch of smooth GTV minimisations, as one party sees it.

    min_w  Σ_i L_i(w_i) + λ/2 Σ_edges A_ij ‖w_i − w_j‖²
    """

    lam: Floats  # (f,)
    part: Ints  # (f,)
    value: Ints  # (f,) number of λ
    score: Ints  # (f,)
    ridge: float  # of every node's loss
    start: int  # the value of the pooled model that all nodes start from; −1: they start from zero
    ends: Ints  # (edges, 2) edges between own nodes, in any of the parts' graphs
    weights: Floats  # (parts, edges) 0 where the graph of a part lacks an edge
    outward: Floats  # (parts, n) the sum of the weights of edges to nodes elsewhere
    boundary: Ints  # (b,) own nodes that have such edges
    reached: Bools  # (parts, n) whether a node has rows, or is connected to one that has
    links: Ints  # (links, 2) edges from boundary nodes to m nodes elsewhere, by number; none if these stay unknown
    link_weights: Floats  # (parts, links)
    foreign: Ints  # (m,) the party of each of these nodes
    rounding: float  # how widely kinks of the loss are rounded


class Step(NamedTuple):
    """Where the fits of a batch go next."""

    move: Floats  # (f, p) step of the common model, or (f, b, p) pull of neighbours elsewhere at boundary nodes
    size: Floats  # (f,) how much of the step is taken; 0: the fit stays
    back: Bools  # (f,) whether the last step is taken back first
    again: Bools  # (f,) whether the fit goes on
    rounding: float  # how widely kinks of the loss are rounded, after the step


class Turn(NamedTuple):
    """One exchange of conjugate gradients, for the fits of a batch that are alive."""

    phase: int  # what is to be done: see ``batches.Phase``
    alive: Bools  # (f,)
    alpha: Floats  # (f,) lengths of steps; of Newton's step, how much of it is taken
    beta: Floats  # (f,)
    common: Floats  # (f, p) the common part of a direction
    rounding: float  # how widely kinks of the loss are rounded
    neighbours: Floats | None = None  # (g, m, p) what neighbours elsewhere sent, for the fits that were alive


# ---------------------------------------------------------------------- what is answered


class Gram(NamedTuple):
    """Sums of products, of every part; and how curved the loss of every node is."""

    gram: Floats  # (parts, p, p) X'X
    products: Floats  # (parts, p, outputs) X'y; of classes with 0 and 1
    trace: Floats  # (n,) of the Hessian of each node's loss without ridge term, first score, all training rows


class Deviations(NamedTuple):
    """How the linear model of every node differs from the pooled one."""

    deviations: Floats  # (parts, n, outputs · p) NaN without rows


class Derivatives(NamedTuple):
    """Loss, gradient and Hessian of pooled models, summed over rows."""

    loss: Floats  # (f,)
    gradient: Floats  # (f, p)
    hessian: Floats  # (f, p, p)


class System(NamedTuple):
    """What is left of Newton's equations when a party's nodes are eliminated, for the fits that go on.

    Of mixed models (g fits) the Schur complement of the common model, summed over parties. Of models on a graph, how
    boundary nodes respond to a pull, and where they would go if neighbours elsewhere were at zero.
    """

    objective: Floats  # (g,) without the ridge term of common models, and without edges between parties
    matrix: Floats  # (g, p, p) or (g, b · p, b · p)
    vector: Floats  # (g, p) or (g, b, p)


class Reaction(NamedTuple):
    """What a party says in an exchange of conjugate gradients, for the g fits that are alive."""

    values: Floats  # (g, b, p) of boundary nodes, for neighbours elsewhere alone
    products: Floats  # (g, 4) inner products (r, u), (v, u), (r, r), and the objective
    sums: Floats  # (g, p) of gradients over own nodes
    curvature: Floats  # (g, p, p) summed over own nodes, where a Newton step begins; else zero


class Losses(NamedTuple):
    """Sums of losses over held-out rows."""

    losses: Floats  # (values, folds) NaN where a value was no longer tried
    values: Sequence[Value]


class Errors(NamedTuple):
    """Errors of members on rows that they had not learnt from, summed over rows."""

    size: float  # absolute errors, where numbers are predicted
    products: Floats  # (members, members) of errors, where numbers or classes are predicted
    cost: float  # loss of the ensemble, where counts or quantiles are predicted
    slopes: Floats  # (members,) its derivatives in the weights
    seen: int  # rows
    weight: float  # how much they count


class Residuals(NamedTuple):
    """Residuals of the ensemble on rows that it had not learnt from."""

    sizes: Ints  # (windows, n)
    squares: Floats  # (windows, n) Σ r²
    fourths: Floats  # (windows, n) Σ r⁴
    levels: Floats  # (3,) how many there are, sums of their predictions and of squares of these


class Spread(NamedTuple):
    """Residuals in units of the scale of their node."""

    growth: Floats  # (windows, slopes) sums of squares, as if scales grew by each slope
    inside: tuple[Floats, Floats]  # values and weights, of residuals in units that grow with the level
    outside: tuple[Floats, Floats]  # the same of residuals that nodes never seen would have
    time_rows: Ints  # (3, times) residuals at each time: before levels count, inside, outside
    time_squares: Floats  # (3, times)


class TestSums(NamedTuple):
    """Errors of test rows."""

    methods: list[str]  # what is compared
    sizes: Ints  # (n,) test rows
    sums: Floats  # (methods, n)
    products: Floats  # (methods, methods, n)
    nearer: Ints  # (methods, methods) rows on which one errs less than another
    by_time: Floats  # (methods + 1, times) sums by time, each node counted once; the last counts the rows


class Gains(NamedTuple):
    """Relative gains of test rows over a baseline."""

    total: Floats  # (n,)
    squares: Floats  # (n,)


class Finish(NamedTuple):
    """What is compared on the test rows, and how it predicts."""

    chosen: Mapping[str, int]  # the value of every member, control included
    weights: Mapping[str, float]  # of the ensemble
    control: Mapping[str, float]  # of the ensemble on a random graph; none without one


class Widths(NamedTuple):
    """How prediction intervals follow from residuals; see ``intervals``."""

    scales: Floats  # (3, 1 + windows) centre, variance and noise of scales, in all and without each window
    level: Floats  # (3,) mean and deviation of predictions, and how scales grow with them
    inside: Floats  # (steps,) quantiles of residuals in units of their node's scale
    outside: Floats  # (steps,) quantiles of residuals at nodes never seen


class Party(ABC):
    """Somebody who has rows: what the job may ask."""

    @abstractmethod
    def moments(self, without: Sequence[int] = ()) -> Gram:
        """Sums of products of features and target; some features that grow with time are put to zero for good."""

    @abstractmethod
    def deviations(self, pooled: Floats) -> Deviations:
        """How the model of every node differs from pooled ones (parts, p, outputs), for a graph of similar nodes."""

    @abstractmethod
    def derivatives(self, w: Floats, part: Ints, score: Ints, rounding: float) -> Derivatives:
        """Derivatives of pooled models (f, p); kinks of losses are rounded so widely."""

    @abstractmethod
    def eliminate(self, batch: str, fits: MixedFits | GraphFits | None = None, step: Step | None = None) -> System:
        """Begin a batch of fits, or take a step in it; then eliminate the own nodes from the next Newton step."""

    @abstractmethod
    def respond(self, batch: str, fits: GraphFits | None = None, turn: Turn | None = None) -> Reaction:
        """The same by conjugate gradients, where neighbours tell each other what nobody else may read."""

    @abstractmethod
    def validate(
        self, name: str, values: Sequence[Value] | None = None, *, member: RowMember | None = None,
        models: Floats | None = None, batch: str = "", chosen: Mapping[str, int] = NONE, scene: Scene | None = None,
    ) -> Losses:  # fmt: skip
        """Let a member predict the rows that it has not learnt from.

        Its models are given (parts, values, scores, p), are those of a batch, or the ``member`` learns them here:
        from the own rows, and from members with ``chosen`` values, by number.
        """

    @abstractmethod
    def errors(self, names: Sequence[str], best: Ints, factors: Floats, typical: float, weights: Floats) -> Errors:
        """Errors of members with their best values; those larger than eight times the typical one count less."""

    @abstractmethod
    def residuals(self, names: Sequence[str], best: Ints, weights: Floats) -> Residuals:
        """Residuals of the ensemble, for prediction intervals."""

    @abstractmethod
    def spread(self, scales: Floats, level: Floats, unit: float, times: Floats) -> Spread:
        """The same residuals in units of scales."""

    @abstractmethod
    def test(self, finish: Finish, widths: Widths | None, times: Floats) -> TestSums:
        """Fit all members to all training rows, and predict the test rows: they are read here, and nowhere else."""

    @abstractmethod
    def gains(self, method: str, baseline: str, level: float) -> Gains:
        """Relative gains of test rows; ``level``: the mean error of the baseline at all nodes."""


# ---------------------------------------------------------------------- asking


class Call(Generic[R]):
    """A method of a party with its arguments: those for all parties, and those of each."""

    def __init__(self, method: Callable[Concatenate[Any, P], R], /, *args: P.args, **kwargs: P.kwargs) -> None:
        assert not args, "arguments are passed by name"
        self.name: str = method.__name__
        self.arguments: Mapping[str, Any] = kwargs
        self.own: Sequence[Mapping[str, Any]] | None = None

    def each(self, own: Sequence[Mapping[str, Any]]) -> Call[R]:
        """The same with arguments that differ from party to party."""
        self.own = own
        return self

    def of(self, number: int) -> dict[str, Any]:
        """The arguments for one party."""
        return {**self.arguments, **(self.own[number] if self.own else {})}


class Answer(NamedTuple, Generic[R]):
    """What all parties answer to one call."""

    each: list[R]  # by party; what is only read as a sum may be missing
    total: R  # added up over parties, as far as that is declared


class Parties(ABC):
    """All parties of a job."""

    @abstractmethod
    def ask(self, *calls: Call[Any]) -> list[Answer[Any]]:
        """One exchange: for every call, what all parties answer."""

    secure: bool = False  # whether only sums over parties may be read

    @property
    def single(self) -> Any:
        """The party, if there is one and its rows are here: then members may see all rows. Else None."""
        return None

    def each(self, call: Call[R]) -> list[R]:
        """What each party answers."""
        return self.ask(call)[0].each

    def total(self, call: Call[R]) -> R:
        """The sum over parties of what they answer."""
        found: R = self.ask(call)[0].total
        return found


class OneParty(Parties):
    """One party whose rows are here: to ask is to call."""

    def __init__(self, party: Party) -> None:
        self.party = party

    @property
    def single(self) -> Any:
        """The party."""
        return self.party

    def ask(self, *calls: Call[Any]) -> list[Answer[Any]]:
        """Call."""
        found = [getattr(self.party, call.name)(**call.of(0)) for call in calls]
        return [Answer([each], each) for each in found]
