"""fit(): the round loop, once for every algorithm and engine; Run: what comes out."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, is_dataclass
from functools import cached_property
from typing import Annotated, Any

import numpy as np
import pandas

from kinfolk.checks import (
    AtLeast,
    Between,
    InputError,
    LearningError,
    as_floats,
    check_parameters,
    check_value,
    listing,
)
from kinfolk.engine.in_process import InProcess, Snapshot
from kinfolk.engine.protocol import Turn
from kinfolk.network.network import Network
from kinfolk.progress import progress_bar
from kinfolk.typing import Floats, Ints

Participation = float | Callable[[int], Iterable[Hashable]]
EARLY_ROUNDS = 10  # measured one by one
FIRST_FINISH = 20  # rounds before the algorithm may first propose its answer
LEAST_EFFORT = 100  # rounds that this may cost; later half as many as were made
PRESENCE = 1  # keys the draw of who takes part


@dataclass(frozen=True)
class Tolerance:
    """Stop when the residual of the algorithm is at most ``residual``."""

    residual: Annotated[float, AtLeast(0)] = 1e-6

    def __call__(self, row: Mapping[str, float]) -> str | None:
        """Why to stop after this row of the history, or None."""
        if row["residual"] <= self.residual:
            return f"converged: residual {row['residual']:.1e} ≤ {self.residual:.1e} after {row['round']:,} rounds"
        return None


@dataclass
class Run:
    """A finished run: the models of all nodes, how it went, and how good the answer is."""

    network: Network
    algorithm: Any
    models: Any  # the tailored models, see kinfolk.engine.protocol.Models
    history: pandas.DataFrame  # one row per measured round
    stopped: str  # why it stopped
    rounds: int
    snapshot: Snapshot = field(repr=False)
    seed: int = 0

    @property
    def state(self) -> Any:
        """The algorithm's state over the whole network."""
        return self.snapshot.state

    @property
    def notes(self) -> list[str]:
        """What a user should know before trusting the answer."""
        remarks = getattr(self.algorithm, "remarks", None)
        return self.network.remarks() + ([] if remarks is None else remarks(self.network))

    @cached_property
    def certificate(self) -> Any:
        """How far the answer is from the best one, with a proof; None where the algorithm has no such notion."""
        certify = getattr(self.algorithm, "certify", None)
        return None if certify is None else certify(self.network.site, self.state, self.snapshot.to_all)

    def predict(self, X: Any, node: Iterable[Hashable]) -> Any:
        """Predict every row of ``X`` with the model of its node, given by name.

        A data frame is read by the names of the features, anything else by position. NaN: the node has no model.
        """
        return self.models.predict(*self._rows(X, node))

    def predict_proba(self, X: Any, node: Iterable[Hashable]) -> Any:
        """The probabilities of the classes for every row of ``X``, shape (rows, classes)."""
        if not hasattr(self.models, "predict_proba"):
            raise InputError("Expected models that know probabilities, got a regression: use predict.")
        return self.models.predict_proba(*self._rows(X, node))  # checked just above

    def _rows(self, X: Any, node: Iterable[Hashable]) -> tuple[Floats, Ints]:
        """The features and node numbers of some rows, checked."""
        features = self.network.features
        if isinstance(X, pandas.DataFrame):
            missing = [name for name in features if name not in X.columns]
            if missing:
                raise InputError(f"Expected columns {listing(features)}, the table has no {listing(missing)}.")
            X = X[features]
        rows = as_floats(X, "the features", 2)
        numbers = self.network.graph.numbers(node)
        if rows.shape != (len(numbers), len(features)):
            raise InputError(
                f"Expected {len(features)} features and one node for every row, got features of shape {rows.shape} "
                f"and {len(numbers)} nodes."
            )
        return rows, numbers

    def error(self) -> float:
        """Mean error on the test data; rows of nodes without a model are left out."""
        test = self.network.test
        if test is None:
            raise InputError("Expected a network with test data for the error, got none: pass test= to Network.")
        return float(np.nanmean(self.models.error(test.X, test.y, test.owner)))

    def __repr__(self) -> str:
        last = ", ".join(f"{name} {self.history[name].iloc[-1]:.4g}" for name in self.history.columns[:2])
        name = type(self.algorithm).__name__
        return f"Run({name} on {self.network.graph.node_count:,} nodes; {self.stopped}; {last})"


def fit(
    network: Network,
    algorithm: Any,
    *,
    rounds: int = 10_000,
    stop: Callable[[Mapping[str, float]], str | None] | None = Tolerance(),
    engine: Any = InProcess(),
    participation: Participation = 1.0,
    seed: int = 0,
    start: Run | None = None,
    measure_every: int = 10,
    callbacks: Iterable[Callable[[Mapping[str, float]], None]] = (),
    progress: bool = True,
) -> Run:
    """Train one tailored model for every node of a network.

    Parameters
    ----------
    network, algorithm : what to learn from, and how.
    rounds : at most this many; none is legal.
    stop : looks at each new row of the history and says why to stop, or None; None never stops early. With a stop
        rule, an algorithm that can finish by itself may do so instead of a round, if that lowers the residual.
    engine : where the sites run.
    participation : the share of nodes that take part in a round, or a function from the round's number to their
        names. Those away do no work and keep their state.
    seed : keys all randomness, by node and round.
    start : a run to go on from: its state and its round number; its history too if the algorithm is the same.
    measure_every : how often the history gets a row (the first ten rounds always do).
    callbacks : called with every new row of the history.
    progress : show a progress bar on a terminal if it takes more than a second.

    >>> import numpy as np
    >>> from kinfolk import GTVMin, Network, fit, graphs
    >>> x = np.ones((1, 1))
    >>> network = Network(graphs.chain(3), [(x, [0.0]), None, (x, [1.0])])
    >>> run = fit(network, GTVMin(lam=10.0))
    >>> run.models.w.round(3).tolist()
    [[0.5], [0.5], [0.5]]
    """
    _check(network, algorithm, engine, stop, rounds, measure_every, participation, seed)
    _check_start(network, algorithm, start)
    session = engine.open(network, algorithm)
    rows = _begin(session, network, algorithm, start, seed)
    first = 0 if start is None else start.rounds
    clock, stopped = _Clock(rows), f"stopped after the {rounds:,} rounds it was given"
    finishing = _Finishing(first, warm=start is not None and not rows, enabled=stop is not None)
    with progress_bar(type(algorithm).__name__, rounds, enabled=progress) as bar:
        for count in range(first, first + rounds + 1):
            done, row = count - first, None
            if done:
                turn = _turn(network, count, participation, seed)
                row = finishing.row(session, turn, rows, clock)
                try:
                    if row is None:
                        session.step(turn)
                except LearningError as error:  # the session is as it was before this round
                    stopped, count = f"stopped before round {count:,}: {error}", count - 1
                    break
            elif rows:
                continue  # measured in the run before
            if row is None and not (done <= EARLY_ROUNDS or count % measure_every == 0 or done == rounds):
                continue
            rows.append(_row(session, count, clock) if row is None else row)
            bar.update(done, f"residual {rows[-1]['residual']:.1e}")
            for callback in callbacks:
                callback(rows[-1])
            reason = _diverged(rows[-1]) or (None if stop is None else stop(rows[-1]))
            if reason is not None:
                stopped = reason if row is None else f"{reason}, polished from {rows[-2]['residual']:.1e}"
                break
    return _finish(network, algorithm, session.snapshot(), rows, stopped, count, seed)


def _diverged(row: Mapping[str, float]) -> str | None:
    if np.isfinite(row["objective"]) and not np.isnan(row["residual"]):
        return None
    return f"diverged: the objective is {row['objective']:g} after {row['round']:,} rounds; the answer is worthless"


def _begin(session: Any, network: Network, algorithm: Any, start: Run | None, seed: int) -> list[dict[str, float]]:
    """Round 0, or where another run ended; the history so far, if it is of the same problem."""
    if start is None:
        session.init(_turn(network, 0, 1.0, seed))
        return []
    session.restore(start.snapshot)
    if start.algorithm == algorithm and start.network is network:
        records = start.history.reset_index().to_dict("records")
        return [{str(name): value for name, value in row.items()} for row in records]
    session.resume(_turn(network, start.rounds, 1.0, seed))
    return []


def _check(
    network: Network,
    algorithm: Any,
    engine: Any,
    stop: Any,
    rounds: int,
    measure_every: int,
    participation: Participation,
    seed: int,
) -> None:
    """Refuse what cannot work before any work starts."""
    if not isinstance(network, Network):
        raise InputError(f"Expected a Network, got {type(network).__name__}: build one with Network(graph, data).")
    missing = [name for name in ("init", "step", "measure", "summary", "models") if not hasattr(algorithm, name)]
    if missing or isinstance(algorithm, type):
        raise InputError(f"Expected an algorithm such as GTVMin(lam=0.1), got {algorithm!r}.")
    if isinstance(engine, type) or not hasattr(engine, "open"):
        raise InputError(f"Expected an engine such as InProcess(), got {engine!r}.")
    if stop is not None and not callable(stop):
        raise InputError(f"Expected a stop rule such as Tolerance(1e-8), got {stop!r}.")
    for thing in (algorithm, engine, stop):
        if is_dataclass(thing):
            check_parameters(thing)
    check_value("rounds", "fit", rounds, Annotated[int, AtLeast(0)])
    check_value("measure_every", "fit", measure_every, Annotated[int, AtLeast(1)])
    check_value("seed", "fit", seed, Annotated[int, AtLeast(0)])
    if not callable(participation):
        check_value("participation", "fit", participation, Annotated[float, Between(0, 1, open_low=True)])
    check = getattr(algorithm, "check", None)
    if check is not None:
        check(network)


def _check_start(network: Network, algorithm: Any, start: Run | None) -> None:
    if start is None:
        return
    if not isinstance(start, Run) or type(start.algorithm) is not type(algorithm):
        raise InputError(f"Expected a run of {type(algorithm).__name__} to start from, got {start!r}.")
    ours, theirs = network.graph, start.network.graph
    same = np.array_equal(ours.head, theirs.head) and np.array_equal(ours.tail, theirs.tail)
    if not same or ours.node_count != theirs.node_count:
        raise InputError(f"Expected a start on the same graph ({ours!r}), got one on {theirs!r}: start afresh.")
    if _widths(network, algorithm) != _widths(start.network, start.algorithm):
        raise InputError(
            "Expected a start with as many parameters, got other features, another intercept or another module."
        )


def _widths(network: Network, algorithm: Any) -> tuple[int, int | None]:
    """The numbers of features, and of parameters of a node where the algorithm has a loss that knows it."""
    features, width = network.data.feature_count, getattr(getattr(algorithm, "loss", None), "width", None)
    return features, None if width is None else width(features)


def _turn(network: Network, count: int, participation: Participation, seed: int) -> Turn:
    return Turn(count, _active(network, count, participation, seed), seed)


def _active(network: Network, count: int, participation: Participation, seed: int) -> Ints:
    node_count = network.graph.node_count
    if callable(participation):
        names = participation(count)
        if isinstance(names, str) or not isinstance(names, Iterable):
            raise InputError(f"Expected the names of those who take part in round {count}, got {names!r}.")
        return np.unique(network.graph.numbers(names))
    if participation == 1.0:
        return np.arange(node_count)
    size = max(1, round(participation * node_count))
    return np.sort(np.random.default_rng([PRESENCE, seed, count]).choice(node_count, size, replace=False))


class _Clock:
    """Seconds of work, those of the run it goes on from included."""

    def __init__(self, rows: list[dict[str, float]]) -> None:
        self.began = time.perf_counter() - (rows[-1]["seconds"] if rows else 0.0)

    def seconds(self) -> float:
        return time.perf_counter() - self.began


class _Finishing:
    """When the algorithm may propose its answer instead of a round, and whether that is taken.

    At the very start if the run goes on from a similar problem, then after 20, 40, 80, ... rounds: however often it
    fails, it costs little beside the rounds. Only where a stop rule asks for an answer, not for so many rounds.
    """

    def __init__(self, first: int, warm: bool, enabled: bool) -> None:
        self.first, self.enabled = first, enabled
        self.due = 0 if warm else FIRST_FINISH

    def row(self, session: Any, turn: Turn, rows: list[dict[str, float]], clock: _Clock) -> dict[str, float] | None:
        """The row of the history for a proposal that lowers the residual; otherwise None, and nothing has changed."""
        measured = bool(rows) and rows[-1]["round"] == turn.round - 1
        done = turn.round - 1 - self.first
        if not (self.enabled and measured and done >= self.due):
            return None
        self.due = max(FIRST_FINISH, 2 * done)
        before = session.snapshot()
        if not session.finish(turn, max(LEAST_EFFORT, done / 2)):
            return None
        row = _row(session, turn.round, clock)
        if row["residual"] < rows[-1]["residual"]:
            return row
        session.restore(before)
        return None


def _row(session: Any, count: int, clock: _Clock) -> dict[str, float]:
    """One row of the history."""
    totals, errors = session.measure()
    row: dict[str, float] = {"round": count, **session.algorithm.summary(totals)}
    if errors is not None:
        known = errors[~np.isnan(errors)]
        row["error"] = float(known.mean()) if len(known) else np.nan
    row["bytes"] = session.bytes_sent
    row["seconds"] = clock.seconds()
    return row


def _finish(
    network: Network,
    algorithm: Any,
    snapshot: Snapshot,
    rows: list[dict[str, float]],
    stopped: str,
    count: int,
    seed: int,
) -> Run:
    models = algorithm.models(network.site, snapshot.state)
    complete = getattr(algorithm, "complete", None)
    if complete is not None:
        models = complete(network.site, models)
    history = pandas.DataFrame(rows).set_index("round")
    history["seconds_per_round"] = history["seconds"].diff() / history.index.to_series().diff()
    return Run(network, algorithm, models, history, stopped, count, snapshot, seed)
