"""The rounds of one run: who takes part, what is measured, when it stops, and what is kept for a crash."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from kinfolk.checks import InputError, LearningError
from kinfolk.engine.checkpoint import Checkpoint, Checkpoints
from kinfolk.engine.protocol import Engine, Snapshot, Turn
from kinfolk.engine.run import Position, Row, Run
from kinfolk.engine.session import Session, SiteAwayError
from kinfolk.engine.specs import Spec, spec_of
from kinfolk.progress import Bar, progress_bar
from kinfolk.typing import Ints

Participation = float | Callable[[int], Iterable[Hashable]]
Edges = Callable[[int], Any]
Stop = Callable[[Mapping[str, float]], str | None]
Callback = Callable[[Mapping[str, float], Callable[[], Snapshot]], None]
EARLY_ROUNDS = 10  # measured one by one
ONLY_THE_ENDS = 0  # as measure_every: neither these nor any other round before the last
FIRST_FINISH = 20  # rounds before the algorithm may first propose its answer
LEAST_EFFORT = 100  # rounds that this may cost; later half as many as were made
PROOFS, PROOFS_IF_LARGE, LARGE = 6, 2, 10_000  # certificates that may be too weak; nodes
PROOF_AGAIN = 1.5  # times the rounds of the certificate before
MARGIN_IF_LARGE = 2.0  # times the residual at which the rule must stop as well
PRESENCE = 1  # keys the draw of who takes part


@dataclass(frozen=True)
class Settings:
    """How a run is made, whatever the engine: the arguments of ``fit`` that decide what comes out."""

    rounds: int  # that were given
    last: int  # the last round that may be made
    stop: Stop | None
    participation: Participation
    edges: Edges | None
    seed: int
    measure_every: int
    engine: Engine
    proven: float | None = 0.0  # how sharp a certificate is asked for before a run is called converged; None: none is


class Loop:
    """The rounds of one run, from where ``begin`` brings the session: the same place whenever it is called."""

    def __init__(
        self,
        session: Session,
        settings: Settings,
        begin: Callable[[], Position],
        callbacks: tuple[Callback, ...],
        checkpoints: Checkpoints | None,
        progress: bool,
    ) -> None:
        self.session, self.settings, self.begin, self.position = session, settings, begin, begin()
        self.callbacks, self.checkpoints, self.progress = callbacks, checkpoints, progress
        rows = self.position.rows
        self.began = time.perf_counter() - (rows[-1]["seconds"] if rows else 0.0)
        self.diverged = False
        self.failed = False  # whether the run ends before its end, so that it can be resumed
        self.certificate: Any = None  # of the last row, where one was asked for

    def run(self, stopped: str | None = None) -> Run:
        """All rounds that are left, none if the run had stopped already; then this loop and its session are over."""
        return self._run(self._rounds(stopped))

    def _rounds(self, stopped: str | None) -> str:
        """All rounds that are left; why the run ends."""
        here, last = self.position, self.settings.last
        first = here.count
        with progress_bar(type(self.session.algorithm).__name__, last - first, enabled=self.progress) as bar:
            if stopped is None and not here.rows:
                stopped = self._record(self._row(), bar, first)
                if stopped is None and self.checkpoints is not None:
                    stopped = self._save(None)
            while stopped is None and here.count < last:
                stopped = self._round(bar, first)
        stopped = stopped or self._out_of_rounds()
        if self.diverged:
            stopped = self._best_of(stopped, first)
        if self.checkpoints is not None and not self.failed:
            stopped = self._save(stopped) or stopped
        return stopped

    def _round(self, bar: Bar, first: int) -> str | None:
        """One round, or what the algorithm proposes instead; why the run ends with it, or None."""
        here = self.position
        turn = Turn(here.count + 1, self._active(here.count + 1), self.settings.seed)
        row = self._proposal(turn)
        if row is not None:
            before = here.rows[-1]["residual"]
            here.count += 1
            stopped = self._record(row, bar, first)
            return None if stopped is None else f"{stopped}, polished from {before:.1e}"
        made = self.session.ahead(self._unseen(turn))
        if made:
            here.count += made
            return None
        try:
            self.session.step(turn)
        except LearningError as error:
            return self._failed(f"stopped before round {turn.round:,}: {error}")
        here.count += 1
        on_schedule = self._on_schedule(here.count)
        stopped = None
        if on_schedule or here.count == self.settings.last:
            try:
                row = self._row()
            except LearningError as error:
                if not isinstance(error, SiteAwayError) or here.count == self.settings.last:
                    return self._failed(f"stopped after round {here.count:,}, which could not be measured: {error}")
                return None  # the next rounds are measured again, when everybody is back
            stopped = self._record(row, bar, first)
            here.extra = not on_schedule
        if self.checkpoints is not None and stopped is None and here.count % self.checkpoints.every == 0:
            stopped = self._save(None)
        return stopped

    def _unseen(self, turn: Turn) -> Iterator[Turn]:
        """This round and the next ones, up to the one after which somebody looks."""
        while not self._looked_at(turn.round):
            yield turn
            turn = Turn(turn.round + 1, self._active(turn.round + 1), self.settings.seed)

    def _looked_at(self, count: int) -> bool:
        saved = self.checkpoints is not None and count % self.checkpoints.every == 0
        return saved or count == self.settings.last or self._on_schedule(count)

    def _on_schedule(self, count: int) -> bool:
        every = self.settings.measure_every
        return every != ONLY_THE_ENDS and (count - self.position.origin <= EARLY_ROUNDS or count % every == 0)

    def _record(self, row: Row, bar: Bar, first: int) -> str | None:
        """Take a row into the history; why to stop after it, or None."""
        stopped = self._not_finite(row) or self._judged(row)
        self.position.rows.append(row)
        bar.update(int(row["round"]) - first, f"residual {row['residual']:.1e}")
        for callback in self.callbacks:
            callback(dict(row), self.session.snapshot)
        return stopped

    def _not_finite(self, row: Row) -> str | None:
        if np.isfinite(row["objective"]) and not np.isnan(row["residual"]):
            return None
        self.diverged = True
        return f"diverged: the objective is {row['objective']:g} after {row['round']:,} rounds"

    def _out_of_rounds(self) -> str:
        """Why a run ends that no rule has stopped: its objective grows, or the rounds are made."""
        given, objectives = self.settings.rounds, [row["objective"] for row in self._learnt(self.position.rows)]
        first, last = (objectives[0], objectives[-1]) if objectives else (0.0, 0.0)
        late = self.position.count - self.position.origin >= EARLY_ROUNDS
        grows = late and last > max(objectives[:-1], default=last)
        if grows and last - first > (2 * self._more_nodes - 1) * abs(first):  # more than twice what it was
            self.diverged = True
            return f"diverged: the objective grew from {first:.3g} to {last:.3g} in {given:,} rounds"
        return f"stopped after the {given:,} rounds it was given"

    @property
    def _more_nodes(self) -> float:
        """How many times its first value an objective may reach as more and more nodes have taken part."""
        given = self.settings.participation
        return float(self.session.problem.graph.node_count) if callable(given) else 1 / given

    def _learnt(self, rows: Iterable[Row]) -> list[Row]:
        """Rows with models that have learnt: before, a residual is infinite, and an objective says nothing."""
        return [row for row in rows if np.isfinite(row["objective"]) and np.isfinite(row["residual"])]

    def _best_of(self, diverged: str, first: int) -> str:
        """Why the run ends, after going back to the round with the least objective, where the models can be seen.

        Nothing was kept for that, as hardly any run diverges: the rounds as far as there are made once more.
        """
        advice = self.session.algorithm.if_diverged
        rows = self._learnt(row for row in self.position.rows if row["round"] >= first)
        if not rows or self.session.whole_network is None:
            return f"{diverged}, so that the models are of no use: {advice}"
        last = int(min(rows, key=lambda row: row["objective"])["round"])
        again = Loop(self.session, replace(self.settings, last=last), self.begin, (), None, self.progress)
        again._rounds(None)
        self.position = again.position
        least = self.position.rows[-1]["objective"]
        return (
            f"{diverged}, so the models are those of round {self.position.count:,}, where it was {least:.3g}: {advice}"
        )

    def _judged(self, row: Row) -> str | None:
        """What the stop rule says. Where it would stop, it is asked again with the certificate's word.

        A certificate costs as much as many rounds, so one that was too weak is followed by another only after half
        as many rounds again, and after some the run ends and says so. On large networks, where it costs hundreds, the
        first waits until the residual has fallen well below what is asked for.
        """
        stop = self.settings.stop
        stopped = None if stop is None else stop(row)
        if stop is None or stopped is None or self.settings.proven is None:
            return stopped
        weak = [before["round"] for before in self.position.rows if "proven" in before]
        large = self.session.problem.graph.node_count > LARGE
        if weak and row["round"] < PROOF_AGAIN * weak[-1]:
            return None
        if large and not weak and not self._well_within(stop, row):
            return None
        self.certificate = self.session.certificate(self.settings.proven)
        if self.certificate is None:
            return stopped
        row["proven"] = float(self.certificate.relative)
        stopped = stop(row)
        if stopped is not None:
            return stopped
        if len(weak) + 1 >= (PROOFS_IF_LARGE if large else PROOFS):
            reached = f"residual {row['residual']:.1e} after {row['round']:,} rounds"
            return f"stopped: {reached}, but the answer is proven to {row['proven']:.1e} of the objective only"
        self.position.due = min(self.position.due, self.position.count - self.position.origin)
        return None

    def _well_within(self, stop: Stop, row: Row) -> bool:
        """Whether the rule would stop at a larger residual, too, or the rounds are made."""
        larger = {**row, "residual": MARGIN_IF_LARGE * row["residual"]}
        return stop(larger) is not None or row["round"] == self.settings.last

    def _row(self) -> Row:
        totals, error = self.session.measure()
        row: Row = {
            "round": self.position.count,
            **self.session.algorithm.summary(totals),
            **self.session.overview(),
        }
        if error is not None:
            row["error"] = error
        row["bytes"] = self.session.bytes_sent
        row["seconds"] = time.perf_counter() - self.began
        return row

    def _proposal(self, turn: Turn) -> Row | None:
        """The row of the history for an answer that the algorithm proposes, if that lowers the residual.

        At the very start if the run goes on from a similar problem, then after 20, 40, 80, ... rounds: however often it
        fails, it costs little beside the rounds. Only where a stop rule asks for an answer, not for so many rounds.
        """
        here = self.position
        done = here.count - here.origin
        if self.settings.stop is None or done < here.due or here.rows[-1]["round"] != here.count:
            return None
        here.due = max(FIRST_FINISH, 2 * done)
        if not self.session.propose(turn, max(LEAST_EFFORT, done / 2)):
            return None
        row = {**self._row(), "round": turn.round}
        lower = row["residual"] < here.rows[-1]["residual"]
        self.session.carrier.settle(keep=lower)
        return row if lower else None

    def _failed(self, stopped: str) -> str:
        """Why the run ends, and with which state."""
        self.failed = True
        if self.session.whole:
            return stopped
        saved = None if self.checkpoints is None else self.checkpoints.read(self.session.algorithm)
        if saved is None:
            return f"{stopped} The round was half made, and its state is what is left: keep a checkpoint to go back to."
        self.session.restore(saved.snapshot)
        self.position = saved.position
        return f"{stopped} The state is that of the checkpoint after round {saved.position.count:,}."

    @cached_property
    def _specs(self) -> dict[str, Spec]:
        """What is run, written down."""
        settings = self.settings
        return {
            "algorithm": spec_of(self.session.algorithm),
            "stop rule": spec_of(settings.stop),
            "participation": spec_of(settings.participation),
            "edges": spec_of(settings.edges),
            "engine": spec_of(settings.engine),
        }

    def _save(self, stopped: str | None) -> str | None:
        """Write a checkpoint; why to stop if that fails and is meant to stop the run."""
        assert self.checkpoints is not None
        numbers = {
            "rounds": self.settings.rounds,
            "last": self.settings.last,
            "measure_every": self.settings.measure_every,
            "seed": self.settings.seed,
        }
        lost = self.session.carrier.lost
        checkpoint = Checkpoint(self.session.snapshot(), self.position, stopped, self._specs, numbers, lost)
        failure = self.checkpoints.write(self.session.problem, checkpoint)
        self.failed = failure is not None
        return failure

    def _active(self, round_: int) -> Ints:
        """The numbers of those who take part in a round."""
        given, graph = self.settings.participation, self.session.problem.graph
        if callable(given):
            names = given(round_)
            if isinstance(names, str) or not isinstance(names, Iterable):
                raise InputError(f"Expected the names of those who take part in round {round_}, got {names!r}.")
            return np.unique(graph.numbers(names))
        if given == 1.0:
            return self._everybody
        size = max(1, round(given * len(self._candidates)))
        rng = np.random.default_rng([PRESENCE, self.settings.seed, round_])
        return np.sort(rng.choice(self._candidates, size, replace=False))

    @cached_property
    def _everybody(self) -> Ints:
        return np.arange(self.session.problem.graph.node_count)

    @cached_property
    def _candidates(self) -> Ints:
        """Among whom a share is drawn: without data a node has nothing to send to a coordinator, but can relay."""
        problem = self.session.problem
        learn = self.session.algorithm.learns_along_edges(problem)
        return self._everybody if learn else np.flatnonzero(problem.has_data)

    def _run(self, stopped: str) -> Run:
        here, session = self.position, self.session
        models = snapshot = None
        if session.whole_network is not None:
            site = session.whole_network.site
            snapshot = session.last_snapshot()
            models = session.algorithm.models(site, snapshot.state, snapshot.inbox(site.nodes))
            models = session.algorithm.complete(site, models)
        proven = bool(here.rows) and here.rows[-1]["round"] == here.count and "proven" in here.rows[-1]
        return Run(
            session.problem, session.algorithm, stopped, here.count, self.settings.seed, session.privacy,
            position=here, _models=models, _snapshot=snapshot, _certificate=self.certificate if proven else None,
        )  # fmt: skip
