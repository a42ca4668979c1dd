"""fit(): the round loop, once for every algorithm and engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from kinfolk.checks import AtLeast, Between, InputError, check_parameters, check_value
from kinfolk.engine.checkpoint import Checkpoint, Checkpoints, check_alike, same_network
from kinfolk.engine.in_process import InProcess
from kinfolk.engine.loop import FIRST_FINISH, ONLY_THE_ENDS, Callback, Edges, Loop, Participation, Settings, Stop
from kinfolk.engine.protocol import Algorithm, Carrier, Engine, Turn
from kinfolk.engine.run import Position, Run
from kinfolk.engine.session import Session
from kinfolk.engine.specs import spec_of
from kinfolk.network.graph import Graph
from kinfolk.network.problem import Problem
from kinfolk.typing import Bools

HOPELESS = 1e-3  # of the residual that was asked for: a proof that is weak by then stays so


@dataclass(frozen=True)
class Tolerance:
    """Stop when the residual of the algorithm is at most ``residual``, and its certificate, if any, proves the answer.

    Parameters
    ----------
    residual : float
        How well the optimality conditions must hold.
    proven : float or None
        How near the optimum the answer must be proven to be, as a part of the objective; no more is asked than
        ``residual``. If the residual falls to a thousandth of what was asked and the proof is still too weak, the run
        stops and says so. None: no proof is made, for answers that are only compared.
    """

    residual: Annotated[float, AtLeast(0)] = 1e-6
    proven: Annotated[float, AtLeast(0)] | None = 1e-6

    @property
    def sharp(self) -> float | None:
        """How sharp a certificate is enough; None: none is asked for."""
        return None if self.proven is None else max(self.proven, self.residual)

    def __call__(self, row: Mapping[str, float]) -> str | None:
        """Why to stop after this row of the history, or None."""
        if not row["residual"] <= self.residual:
            return None
        reached = f"residual {row['residual']:.1e} ≤ {self.residual:.1e} after {row['round']:,} rounds"
        proven = row.get("proven", 0.0)
        if self.sharp is None or proven <= self.sharp:
            return f"converged: {reached}"
        if row["residual"] <= HOPELESS * self.residual:
            return f"stopped: {reached}, but the answer is proven to {proven:.1e} of the objective only"
        return None


def proof_asked_by(stop: Stop | None) -> float | None:
    """How sharp a certificate a stop rule asks for; as sharp as possible where a rule does not tell."""
    return stop.sharp if isinstance(stop, Tolerance) else 0.0


def fit(
    network: Problem,
    algorithm: Algorithm[Any],
    *,
    rounds: int = 10_000,
    stop: Stop | None = Tolerance(),
    engine: Engine = InProcess(),
    participation: Participation = 1.0,
    edges: Edges | None = None,
    seed: int = 0,
    start: Run | None = None,
    measure_every: int | None = 10,
    callbacks: Iterable[Callback] = (),
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 100,
    checkpoint_failure: Literal["stop", "go on"] = "stop",
    progress: bool = True,
) -> Run:
    """Train one tailored model for every node of a network.

    Parameters
    ----------
    network : Network or Problem
        What to learn from. With a ``Problem`` the rows are at the sites of the engine, and so are the models.
    algorithm : Algorithm
        How to learn.
    rounds : int
        At most this many; none is legal.
    stop : callable or None
        Looks at each new row of the history and returns why to stop, or None; None never stops early. With a stop
        rule, an algorithm that can finish by itself may do so instead of a round, if that lowers the residual.
    engine : Engine
        Where the sites run.
    participation : float or callable
        The share of nodes that take part in a round, or a function from the round's number to their names. A share is
        drawn among the nodes with data; where nodes learn from neighbours, among all. Those away keep their state.
    edges : callable, optional
        From the round's number to the edges that carry in that round: a mask (edges,), or pairs of names of nodes.
    seed : int
        Keys all randomness, by node and round.
    start : Run, optional
        A run to go on from: its state and its round number; its history too if network and algorithm are the same.
    measure_every : int or None
        How often the history gets a row (the first ten rounds always do). None: only before the first round and after
        the last one, where measuring takes longer than a round.
    callbacks : iterable of callables
        Called as ``callback(row, snapshot)`` with every new row of the history; ``snapshot()`` gives the present state.
    checkpoint : path, optional
        A folder that keeps the state of the run, written anew every ``checkpoint_every`` rounds. After a crash
        ``kinfolk.resume`` goes on from it, and ends as the undisturbed run would have.
    checkpoint_every : int
        Rounds between two checkpoints.
    checkpoint_failure : {"stop", "go on"}
        What to do when a checkpoint cannot be written, as on a full disk.
    progress : bool
        Show a progress bar on a terminal if it takes more than a second.

    Returns
    -------
    Run
        Models, history, and how good the answer is.

    >>> import numpy as np
    >>> from kinfolk import GTVMin, Network, fit, graphs
    >>> x = np.ones((1, 1))
    >>> network = Network(graphs.chain(3), [(x, [0.0]), None, (x, [1.0])])
    >>> run = fit(network, GTVMin(lam=10.0))
    >>> run.models.w.round(3).tolist()
    [[0.5], [0.5], [0.5]]
    """
    check_value("rounds", "fit", rounds, Annotated[int, AtLeast(0)])
    check_value("measure_every", "fit", measure_every, Annotated[int, AtLeast(1)] | None)
    last = rounds + (start.rounds if isinstance(start, Run) else 0)
    settings = Settings(
        rounds, last, stop, participation, edges, seed, measure_every or ONLY_THE_ENDS, engine, proof_asked_by(stop)
    )  # fmt: skip
    check_arguments(network, algorithm, settings)
    _check_start(network, algorithm, start)
    mask = _mask_of(network, edges)
    if mask is not None and rounds:
        mask(last - rounds + 1)  # refused before any work
    carrier = engine.open(network, algorithm)
    session = Session(network, algorithm, carrier, mask, everybody=settings.participation == 1.0)
    if session.privacy is not None and (start is not None or checkpoint is not None):
        raise InputError(
            "Expected neither start= nor checkpoint= with noise, got one: what was sent before would not be counted."
        )
    checkpoints = None
    if checkpoint is not None:
        _check_sees_all(session.carrier)
        checkpoints = Checkpoints.new(checkpoint, checkpoint_every, checkpoint_failure)
    try:
        begin = partial(_begin, session, start, settings)
        return Loop(session, settings, begin, tuple(callbacks), checkpoints, progress).run()
    finally:
        if checkpoints is not None:
            checkpoints.close()


def go_on(
    saved: Checkpoint,
    network: Problem,
    algorithm: Algorithm[Any],
    settings: Settings,
    *,
    callbacks: Iterable[Callback],
    checkpoints: Checkpoints | None,
    progress: bool,
) -> Run:
    """The run that a checkpoint was taken of, to its end; see ``kinfolk.resume``."""
    check_arguments(network, algorithm, settings)
    carrier = settings.engine.open(network, algorithm)
    _check_sees_all(carrier)
    mask = _mask_of(network, settings.edges)
    session = Session(network, algorithm, carrier, mask, everybody=settings.participation == 1.0)
    if carrier.lost != saved.lost:
        raise InputError(f"Expected an engine that loses {saved.lost:.0%} of the messages, got {carrier.lost:.0%}.")
    session.begin(Turn(0, np.arange(network.graph.node_count), settings.seed))  # to know what a state looks like
    check_alike(session.snapshot(), saved.snapshot)

    def begin() -> Position:
        session.restore(saved.snapshot)
        return replace(saved.position, rows=list(saved.position.rows))

    return Loop(session, settings, begin, tuple(callbacks), checkpoints, progress).run(saved.stopped)


def _begin(session: Session, start: Run | None, settings: Settings) -> Position:
    """Round 0, or where another run ended; with its history, if it is of the same problem."""
    everybody = np.arange(session.problem.graph.node_count)
    if start is None:
        session.begin(Turn(0, everybody, settings.seed))
        return Position(0, 0, FIRST_FINISH, [])
    session.restore(start.snapshot)
    same = not start.altered and spec_of(start.algorithm) == spec_of(session.algorithm)
    if same and same_network(start.problem, session.problem):
        before = start.position
        rows = before.rows[:-1] if before.extra else before.rows
        return Position(before.origin, start.rounds, before.due, [dict(row) for row in rows])
    session.begin(Turn(start.rounds, everybody, settings.seed), warm=True)
    return Position(start.rounds, start.rounds, 0, [])


# ---------------------------------------------------------------------- bad input


def check_arguments(network: Problem, algorithm: Algorithm[Any], settings: Settings) -> None:
    """Refuse what cannot work before any work starts."""
    if not isinstance(network, Problem):
        raise InputError(f"Expected a Network, got {type(network).__name__}: build one with Network(graph, data).")
    if not isinstance(algorithm, Algorithm):
        raise InputError(
            f"Expected an algorithm such as GTVMin(lam=0.1), got {algorithm!r}. One of yours is a subclass of "
            "kinfolk.Algorithm."
        )
    engine = settings.engine
    if isinstance(engine, type) or not hasattr(engine, "open"):
        raise InputError(f"Expected an engine such as InProcess(), got {engine!r}.")
    if settings.stop is not None and not callable(settings.stop):
        raise InputError(f"Expected a stop rule such as Tolerance(1e-8), got {settings.stop!r}.")
    for thing in (algorithm, engine, settings.stop):
        if is_dataclass(thing):
            check_parameters(thing)
    check_value("seed", "fit", settings.seed, Annotated[int, AtLeast(0)])
    if not callable(settings.participation):
        check_value("participation", "fit", settings.participation, Annotated[float, Between(0, 1, open_low=True)])
    if settings.edges is not None and not callable(settings.edges):
        raise InputError(f"Expected a function from a round to a mask of edges, got {settings.edges!r}.")
    algorithm.check(network)


def _mask_of(problem: Problem, edges: Edges | None) -> Callable[[int], Bools] | None:
    """The user's function, with what it returns checked."""
    if edges is None:
        return None

    known: dict[int, Bools] = {}  # the last one: what is looked at before any work is not asked for again

    def checked(round_: int) -> Bools:
        if round_ in known:
            return known[round_]
        given = edges(round_)
        mask = given if isinstance(given, np.ndarray) else _mask_of_pairs(problem.graph, given, round_)
        if mask.dtype != bool or mask.shape != (problem.graph.edge_count,):
            raise InputError(
                f"Expected True or False for each of {problem.graph.edge_count} edges in round {round_}, got "
                f"{mask.dtype} of shape {mask.shape}."
            )
        known.clear()
        known[round_] = mask
        return mask

    return checked


def _mask_of_pairs(graph: Graph, given: Any, round_: int) -> Bools:
    """A mask from a list of True and False, or from pairs of names."""
    if not isinstance(given, Iterable) or isinstance(given, str):
        raise InputError(
            f"Expected a mask of edges, or pairs of names of nodes, for round {round_}, got {given!r}: an empty list "
            "where none carries."
        )
    listed = list(given)
    if all(isinstance(each, bool | np.bool_) for each in listed) and listed:
        return np.asarray(listed)
    odd = [pair for pair in listed if not (isinstance(pair, Sequence) and not isinstance(pair, str) and len(pair) == 2)]
    if odd:
        raise InputError(f"Expected pairs of names of nodes as edges in round {round_}, got {odd[0]!r}.")
    try:
        ends = np.sort(graph.numbers([name for pair in listed for name in pair]).reshape(-1, 2), axis=1)
    except TypeError as error:
        raise InputError(f"Expected pairs of names of nodes as edges in round {round_}, got {listed!r:.80}.") from error
    wanted, known = ends[:, 0] * graph.node_count + ends[:, 1], graph.head * graph.node_count + graph.tail
    unknown = np.flatnonzero(~np.isin(wanted, known))
    if len(unknown):
        raise InputError(
            f"Expected edges of the graph in round {round_}, got one between {listed[unknown[0]][0]!r} and "
            f"{listed[unknown[0]][1]!r}, which it does not join."
        )
    return np.isin(known, wanted)


def _check_start(network: Problem, algorithm: Algorithm[Any], start: Run | None) -> None:
    if start is None:
        return
    if not isinstance(start, Run) or type(start.algorithm) is not type(algorithm):
        raise InputError(f"Expected a run of {type(algorithm).__name__} to start from, got {start!r}.")
    ours, theirs = network.graph, start.problem.graph
    same = np.array_equal(ours.head, theirs.head) and np.array_equal(ours.tail, theirs.tail)
    if not same or ours.node_count != theirs.node_count:
        raise InputError(f"Expected a start on the same graph ({ours!r}), got one on {theirs!r}: start afresh.")
    if not algorithm.starts_from(network, start.algorithm, start.problem):
        raise InputError(
            "Expected a start with as many parameters, got other features, another intercept or another module."
        )


def _check_sees_all(carrier: Carrier) -> None:
    if not carrier.sees_all:
        raise InputError("Expected an engine that sees all states for a checkpoint, got one that does not.")
