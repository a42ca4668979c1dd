"""What others could tell of the rows of a site, measured: attacks on what a recorded run sent.

A site that takes part with ``record`` keeps every request that it was sent. Afterwards, beside its rows, the run is
repeated: once as it was, and often with other rows at one node, while all that came from others stays the same. What
each place reads (every neighbouring site, the coordinator, the relay) is then attacked. Nothing leaves the site.

Membership: the most unusual row of a node, or another in its place. One adversary knows all other rows of the node, as
in the definition of differential privacy; another knows only what rows look like, from those of other nodes or held
out. Reconstruction: the row itself, by the same two.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import pandas

from kinfolk.checks import InputError
from kinfolk.engine.noise import Noise
from kinfolk.engine.protocol import Algorithm, Messages
from kinfolk.engine.worker import routes_of
from kinfolk.federation.attacks import Told, reconstructed, told_apart
from kinfolk.federation.files import Journal
from kinfolk.federation.joining import Join
from kinfolk.federation.keys import SiteKey
from kinfolk.federation.ledger import Ledger
from kinfolk.federation.rows import SiteRows
from kinfolk.federation.service import CURRENT, Agreed, kept_mark
from kinfolk.federation.site_run import JOINED, RECORDED, Care, SiteRun, run_folder
from kinfolk.federation.spending import noise_of, spent
from kinfolk.progress import Bar, progress_bar
from kinfolk.report.privacy_words import AUDIT_KNOWS
from kinfolk.typing import Bools, Floats, Ints

COORDINATOR, RELAY = "coordinator", "relay"
OTHERS, POPULATION = AUDIT_KNOWS
FEWEST, DRAWN = 10, 100  # rows to know what rows look like; normal draws where there are fewer
MOST_COMPARED = 2_000  # numbers that a reconstruction looks at
WORLDS = 4  # with the row and without, for either knowledge
Views = dict[str, Floats]  # what every place reads of one node


class Effort(NamedTuple):
    """Of a reconstruction."""

    starts: int = 3
    evaluations: int = 40  # of the solver, from every start


THOROUGH = Effort()


class Recorded(Protocol):
    """Something that a site has recorded, and that can be repeated with other rows at one node."""

    @property
    def name(self) -> str:
        """Of the site."""

    @property
    def rows(self) -> SiteRows:
        """Its rows."""

    @property
    def effort(self) -> Effort:
        """How much of it a reconstruction takes."""

    @property
    def classes(self) -> bool:
        """Whether labels are classes."""

    @property
    def units(self) -> tuple[Any, Any] | None:
        """Centre and width of every column, where columns are scaled."""

    @property
    def reading_sites(self) -> Ints:
        """How many other sites read messages of each node."""

    def views(self, rows: SiteRows, node: int, noise: Noise | None) -> Views:
        """What every place would have read of a node (its row number)."""

    def guesses(self, place: str, observed: Floats, known: Floats, count: int) -> list[Floats]:
        """Rows that follow at once from what a place has read, if it knows all rows but so many."""


@dataclass(frozen=True, eq=False)
class RecordedRun:
    """A run of a site as it was recorded: all that it was asked, and its rows.

    Parameters
    ----------
    name : str
        Of the site.
    joined : bytes
        What the coordinator had told of the run.
    algorithm : Algorithm
        What was run.
    rows : SiteRows
        Its rows.
    key : SiteKey
        Of the site, which opens the letters that it received.
    requests : list of bytes
        What it was asked.
    noise : Noise, optional
        With which it was run.
    """

    name: str
    joined: bytes
    algorithm: Algorithm[Any]
    rows: SiteRows
    key: SiteKey
    requests: Sequence[bytes]
    noise: Noise | None = None
    effort: Effort = THOROUGH

    @classmethod
    def read(cls, name: str, folder: Path, rows: SiteRows, agreed: Agreed) -> RecordedRun:
        """The last run in the folder of a site, with the rows that it was made with."""
        current = folder / CURRENT
        kept = run_folder(folder, current.read_text() if current.exists() else "")
        requests = records_of(kept / RECORDED) if (kept / JOINED).exists() and (kept / RECORDED).exists() else []
        if not requests:
            raise InputError(
                f"Expected a run that was recorded in {str(folder)!r}, found none: take part with --record."
            )
        if kept_mark(folder) != rows.mark:
            raise InputError(f"Expected the rows that site {name!r} has taken part with, got others: pass that table.")
        joined = (kept / JOINED).read_bytes()
        join = Join.decode(joined, list(rows.nodes))
        algorithm = agreed.algorithm(join.spec)
        if algorithm is None:
            raise InputError("Expected the run of this invitation, the folder has one of another: pass its invitation.")
        ordered = rows.with_features(join.features)
        return cls(name, joined, algorithm, ordered, SiteKey.at(folder), requests, noise_of(kept))

    def _join(self) -> Join:
        """Decoded anew, as what is computed from rows is kept with it."""
        return Join.decode(self.joined, list(self.rows.nodes))

    @cached_property
    def join(self) -> Join:
        """What the coordinator had told of the run; without rows."""
        return self._join()

    @property
    def classes(self) -> bool:
        """Whether labels are classes."""
        return self.join.scene.classes is not None

    @property
    def units(self) -> tuple[Any, Any] | None:
        """Centre and width of every column, where columns are scaled."""
        return self.join.units

    def guesses(self, place: str, observed: Floats, known: Floats, count: int) -> list[Floats]:
        """None: what is sent is no sum of rows."""
        return []

    def replayed(self, rows: SiteRows, noise: Noise | None) -> Iterator[tuple[Messages, bytes]]:
        """All that the site would have sent with other rows, open and sealed."""
        run = self._again(rows, noise, Path())  # nothing leaves, so nothing is written down
        for content in self.requests:
            yield run.replay(content)

    def _again(self, rows: SiteRows, noise: Noise | None, accounts: Path) -> SiteRun:
        key, ledger = self.key, Ledger(accounts)
        return SiteRun(self._join(), self.algorithm, rows, key, self.name, None, ledger, care=Care(noise))

    def promised(self, noise: Noise) -> pandas.DataFrame:
        """What noise promises for this run, receiver by receiver, counted as at a site that takes part with it.

        Parameters
        ----------
        noise : Noise
            That of the run, or another.

        Returns
        -------
        pandas.DataFrame
            As of ``kinfolk.federation.spending.spent``.
        """
        with tempfile.TemporaryDirectory() as accounts:
            run = self._again(self.rows, noise, Path(accounts))
            for content in self.requests:
                run.replay(content)
                run.spend(noise, run.terms.decode_request(content))
            return spent(Path(accounts))

    @cached_property
    def _routes(self) -> dict[str, Ints]:
        return {self.join.peers[k].name: own for k, own in routes_of(self.join.scene, self.join.homes).items()}

    @property
    def reading_sites(self) -> Ints:
        """How many other sites read messages of each node."""
        nodes = np.concatenate([np.empty(0, dtype=np.int64), *self._routes.values()])
        return np.bincount(nodes, minlength=len(self.rows.nodes))

    def views(self, rows: SiteRows, node: int, noise: Noise | None) -> Views:
        """What every place would have read of a node (its row number)."""
        parts: dict[str, list[Floats]] = {name: [] for name, own in self._routes.items() if node in own}
        parts |= {COORDINATOR: [], RELAY: []}
        number = self.join.scene.nodes[node]
        for told, sealed in self.replayed(rows, noise):
            for site, arrays in told.neighbours.items():
                name = self.join.peers[site].name
                if name in parts:
                    parts[name] += [values[self._routes[name] == node].ravel() for values in arrays.values()]
            parts[COORDINATOR] += [values[told.senders == number].ravel() for values in told.coordinator.values()]
            parts[COORDINATOR] += [np.atleast_1d(values[node]).ravel() for values in told.scalars.values()]
            parts[RELAY].append(np.array([len(sealed)], dtype=np.float64))
        return {name: finite(np.concatenate(part)) for name, part in parts.items() if part}


def records_of(path: Path) -> list[bytes]:
    """All records of a journal, which stays as it is; what a site that was killed was asked again stands there once."""
    with tempfile.TemporaryDirectory() as place:
        journal = Journal(Path(shutil.copy(path, place)))
        journal.close()
        return [each for each, before in zip(journal.found, [b"", *journal.found], strict=False) if each != before]


def finite(values: Any) -> Floats:
    """Zero in the place of what is no number, such as the way that a model has made before there was one."""
    return np.nan_to_num(np.asarray(values, dtype=np.float64), posinf=0.0, neginf=0.0)


# ---------------------------------------------------------------------- the games


@dataclass(frozen=True, eq=False)
class Audit:
    """Attacks on the messages of one node in a recorded run.

    Parameters
    ----------
    run : Recorded
        What was sent.
    node : int
        Which node of the site, by its row number.
    noise : Noise, optional
        What is sent has this noise; None: none.
    trials : int
        How often each world is played.
    seed : int
        Of all draws but the noise.
    played : callable
        Is called whenever the run has been repeated.
    """

    run: Recorded
    node: int
    noise: Noise | None = None
    trials: int = 100
    seed: int = 0
    played: Callable[[], None] = lambda: None

    @cached_property
    def _own(self) -> tuple[Floats, Floats]:
        X, y = self.run.rows.data[self.node]
        return np.where(np.isnan(X), self._pool[0].mean(axis=0), X), y

    @cached_property
    def _pool(self) -> tuple[Floats, Floats]:
        """What rows look like: those of other nodes here and held-out ones, or, if these are few, normal draws."""
        data, test = self.run.rows.data, self.run.rows.test
        others = data.owner != self.node
        X, y = data.X[others], data.y[others]
        if test is not None:
            X, y = np.concatenate([X, test.X]), np.concatenate([y, test.y])
        if len(y) < FEWEST:
            units = self.run.units
            centre, width = (np.nanmean(data.X, axis=0), 1.0) if units is None else units
            rng = np.random.default_rng(self.seed)
            X = centre + width * rng.normal(size=(DRAWN, data.feature_count))
            y = rng.choice(data.y, DRAWN) + (0.0 if self.run.classes else rng.normal(size=DRAWN))
        return np.where(np.isnan(X), np.nan_to_num(np.nanmean(X, axis=0)), X), y

    @cached_property
    def _scale(self) -> Floats:
        """Deviations of features, and of the label where it is a number."""
        X, y = self._pool
        spread = np.append(X.std(axis=0), 1.0 if self.run.classes else y.std())
        return np.asarray(np.where(spread > 0, spread, 1.0))

    @cached_property
    def _target(self) -> int:
        """The most unusual row of the node: the one that is told of most."""
        X, y = self._own
        rows, pool = np.column_stack([X, y]), np.column_stack(self._pool)
        return int(np.argmax((((rows - pool.mean(axis=0)) / self._scale) ** 2).sum(axis=1)))

    def _with(self, X: Floats, y: Floats) -> SiteRows:
        """The rows of the site with others at the node, equally many."""
        data = self.run.rows.data
        here = slice(data.starts[self.node], data.starts[self.node + 1])
        all_X, all_y = data.X.copy(), data.y.copy()
        all_X[here], all_y[here] = X, y
        return replace(self.run.rows, data=replace(data, X=all_X, y=all_y))

    def _read(self, X: Floats, y: Floats, noise: Noise | None) -> Views:
        found = self.run.views(self._with(X, y), self.node, noise)
        self.played()
        return found

    def membership(self) -> dict[tuple[str, str], Told]:
        """How well each place, with either knowledge, tells whether the row was there."""
        rng = np.random.default_rng(self.seed)
        draws = {OTHERS: self._other_rows_known(rng), POPULATION: self._population_known(rng)}
        out = {}
        for knows, (inside, outside) in draws.items():
            for place in inside[0]:
                worlds = [np.stack([each[place] for each in world]) for world in (inside, outside)]
                out[place, knows] = told_apart(*worlds)
        return out

    def _other_rows_known(self, rng: np.random.Generator) -> tuple[list[Views], list[Views]]:
        """The node as it is, and with one other row in the place of the target; without noise nothing else varies."""
        X, y = self._own
        k = rng.integers(len(self._pool[1]))
        X_out, y_out = X.copy(), y.copy()
        X_out[self._target], y_out[self._target] = self._pool[0][k], self._pool[1][k]
        if self.noise is None:
            return [self._read(X, y, None)] * 4, [self._read(X_out, y_out, None)] * 4
        return self._played(lambda: (X, y)), self._played(lambda: (X_out, y_out))

    def _population_known(self, rng: np.random.Generator) -> tuple[list[Views], list[Views]]:
        """Rows drawn from the population; inside, one of them is the target."""
        X, y = self._own
        count, pool = len(y), self._pool

        def drawn() -> tuple[Floats, Floats]:
            k = rng.integers(len(pool[1]), size=count)
            return pool[0][k].copy(), pool[1][k].copy()

        def with_target() -> tuple[Floats, Floats]:
            X_in, y_in = drawn()
            X_in[0], y_in[0] = X[self._target], y[self._target]
            return X_in, y_in

        return self._played(with_target), self._played(drawn)

    def _played(self, rows: Callable[[], tuple[Floats, Floats]]) -> list[Views]:
        return [self._read(*rows(), self.noise) for _ in range(self.trials)]

    def reconstruction(self) -> dict[tuple[str, str], float]:
        """Error of the best guess at the row, as a part of that of guessing the mean of the population.

        Who knows what rows look like takes all rows of the node for equal: with one row nothing is lost by that.
        """
        X, y = self._own
        observed, rng = self._read(X, y, self.noise), np.random.default_rng(self.seed)
        truth, pool = np.append(X[self._target], y[self._target]), np.column_stack(self._pool)
        mean = pool.mean(axis=0)
        starts = [mean, *pool[rng.integers(len(pool), size=self.run.effort.starts - 1)]]
        free = np.append(np.ones(X.shape[1], dtype=bool), not self.run.classes)

        def error(guess: Floats) -> float:
            return float(np.linalg.norm(((guess - truth) / self._scale)[free]))

        out = {(RELAY, knows): 1.0 for knows in (OTHERS, POPULATION)}  # sizes tell of no row
        known: dict[tuple[bytes, bytes], float] = {}  # neighbours read the same, and of one row nothing else is known
        for knows in (OTHERS, POPULATION):
            chosen = np.arange(len(y)) == self._target if knows == OTHERS else np.ones(len(y), dtype=bool)
            for place in observed.keys() - {RELAY}:
                case = observed[place].tobytes(), chosen.tobytes()
                if case not in known:
                    known_rows = np.column_stack([self.run.rows.data.X, self.run.rows.data.y])[~self._among_all(chosen)]
                    at_once = self.run.guesses(place, observed[place], known_rows, int(chosen.sum()))
                    guess = self._guess(place, observed[place], chosen, free, truth, [*at_once, *starts])
                    known[case] = error(guess) / (error(mean) or 1.0)
                out[place, knows] = known[case]
        return out

    def _among_all(self, chosen: Bools) -> Bools:
        """Rows of the node, as rows of the site."""
        data = self.run.rows.data
        out = np.zeros(len(data.y), dtype=bool)
        out[data.starts[self.node] : data.starts[self.node + 1]] = chosen
        return out

    def _guess(
        self, place: str, observed: Floats, chosen: Bools, free: Bools, truth: Floats, starts: Sequence[Floats]
    ) -> Floats:
        """The row that explains best what a place has read; a class is taken as known."""
        X, y = self._own

        def full(row: Floats) -> Floats:
            out = truth.copy()
            out[free] = row * self._scale[free]
            return out

        def read(row: Floats) -> Floats:
            X_new, y_new = X.copy(), y.copy()
            X_new[chosen], y_new[chosen] = full(row)[:-1], full(row)[-1]
            return self._read(X_new, y_new, None)[place][some]

        some = _spread(len(observed))
        begin = [(start / self._scale)[free] for start in starts]
        found = reconstructed(read, observed[some], begin, self.run.effort.evaluations)
        return full(found)


def _spread(count: int) -> Ints:
    """Some of many numbers, the first ones among them: a reconstruction takes longer, the more it compares."""
    if count <= MOST_COMPARED:
        return np.arange(count)
    later = np.linspace(MOST_COMPARED // 2, count - 1, MOST_COMPARED // 2).astype(np.int64)
    return np.unique(np.concatenate([np.arange(MOST_COMPARED // 2), later]))


def audit(run: Recorded, nodes: int = 3, *, noise: Noise | None = None, trials: int = 100) -> pandas.DataFrame:
    """What each place could tell of the nodes of a site that have fewest rows.

    Parameters
    ----------
    run : Recorded
        A run of the site.
    nodes : int
        How many nodes are attacked: those with fewest rows, which tell most; among equals those that most sites read.
    noise : Noise, optional
        What is sent has this noise; None: none.
    trials : int
        How often each world is played.

    Returns
    -------
    pandas.DataFrame
        A row for each node, place, and knowledge of the adversary: ``auc`` (0.5 is guessing), ``hits`` at 1 % false
        alarms, ``reconstruction`` (1 is guessing the mean, 0 the row itself).
    """
    sizes = run.rows.data.sizes
    chosen = [k for k in np.lexsort([-run.reading_sites, sizes]).tolist() if sizes[k]][:nodes]
    lines = []
    with progress_bar(f"attacks on site {run.name}", trials * WORLDS * len(chosen)) as bar:
        for node in chosen:
            attack = Audit(run, node, noise, trials, played=lambda: _repeated(bar))
            members, rebuilt = attack.membership(), attack.reconstruction()
            lines += [
                {
                    "node": run.rows.nodes[node], "rows": int(sizes[node]), "place": place, "knows": knows,
                    "auc": told.auc, "hits": told.hits, "reconstruction": rebuilt[place, knows],
                }
                for (place, knows), told in members.items()
            ]  # fmt: skip
    return pandas.DataFrame(lines)


def _repeated(bar: Bar) -> None:
    """One more repetition; how many a reconstruction needs is not known before."""
    if bar.count >= bar.total:
        bar.expect(1)
    bar.advance(1, "runs repeated")
