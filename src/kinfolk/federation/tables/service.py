"""TableService: one site of a federation that learns from tables. It answers works, and takes part in lanes."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas

from kinfolk.algorithms import GTVMin
from kinfolk.algorithms.newton import Newton
from kinfolk.checks import InputError
from kinfolk.engine.protocol import Algorithm, Arrays
from kinfolk.engine.specs import Spec
from kinfolk.engine.wire import WireError
from kinfolk.federation.allowance import Allowance
from kinfolk.federation.carrier import refusal_in
from kinfolk.federation.joining import Join
from kinfolk.federation.ledger import Entry
from kinfolk.federation.messages import refusal
from kinfolk.federation.rows import SiteRows
from kinfolk.federation.service import ENDED, SiteService, peek
from kinfolk.federation.site_run import SiteRun
from kinfolk.federation.tables.answering import TableAnswers
from kinfolk.federation.tables.bounds import BEFORE_MODELS, Bounds, check_often
from kinfolk.federation.tables.company import Company
from kinfolk.federation.tables.kept import SiteBlend
from kinfolk.federation.tables.remembering import Begun, Memory
from kinfolk.federation.tables.site_job import SiteJob
from kinfolk.federation.tables.site_page import site_facts
from kinfolk.federation.tables.site_table import Answer
from kinfolk.federation.tables.works import WORKS, answer, read_question
from kinfolk.federation.traffic import COORDINATOR
from kinfolk.network.data import Data
from kinfolk.network.fingerprint import fingerprint
from kinfolk.report.site import SiteFacts
from kinfolk.tables.settings import Settings
from kinfolk.version import __version__

log = logging.getLogger(__name__)
NOT_YET = SiteRows(["?"], ["?"], Data(np.zeros((1, 1)), np.zeros(1), np.array([0, 1])))  # before rows are encoded


FIRST = ("introduce", "describe")  # questions that begin a job
IN_LANES = (
    "parameters for neighbours, sealed; for the coordinator inner products and measures of every node and, unless sums "
    "are masked, gradients and curvatures summed over the nodes of this site"
)


class TableService(SiteService):
    """One site of a federation that learns from tables: bytes in, bytes out. Its rows stay here, and so do its models.

    All that it is asked is kept in its folder: a process that was killed and is started again repeats it, and goes on.

    Parameters
    ----------
    name : str
        The name of the site.
    table : pandas.DataFrame
        Its rows.
    folder : Path
        Where its key and the keys of others are kept.
    units : mapping of str to str, optional
        Units of columns, which have to be the same at all sites.
    secure : bool
        Whether to refuse sums that are not masked.
    settings : Settings, optional
        What the owner has agreed to learn; other settings are refused. None: any.
    allowance : Allowance, optional
        How many jobs the site takes part in; None: without bounds.
    fewest : int, optional
        With how many sites masked sums may be made anew if others have gone. None: only with the same as before, since
        from two sums that differ by a site its part can be told.
    sites : sequence of str, optional
        With whom the owner has agreed to learn; sums and letters with others are refused. None: with anybody.
    """

    def __init__(
        self, name: str, table: pandas.DataFrame, folder: str | Path, units: Mapping[str, str] | None = None,
        *, secure: bool = False, settings: Settings | None = None, allowance: Allowance | None = None,
        fewest: int | None = None, sites: Sequence[str] | None = None,
    ) -> None:  # fmt: skip
        if table.empty:
            raise InputError("Expected rows at this site, got none: check the file, or leave the federation.")
        super().__init__(name, NOT_YET, folder)
        self.given, self.units = table.rename(columns=str), units or {}
        self.blend: SiteBlend | None = None  # of the last job that has finished
        self.secure, self.settings, self.jobs, self.fewest = secure, settings, allowance, fewest
        self.sites = sites
        self._forget()
        self.memory = Memory(self.folder)
        self._recall()

    def _forget(self) -> None:
        """Nothing is known of any job."""
        for run in self.runs.values():
            run.close()
        self.runs, self.rows = {}, NOT_YET
        self.answers = TableAnswers(self.name, self.given, self.units, self.settings, self.runs)
        self.company = Company(self.name, self.key, self.folder, self._table_mark, self.sites, self.fewest)
        self._last: tuple[bytes, bytes] | None = None  # what was asked, and what was answered
        self._begun: Begun | None = None
        self._number = 0  # of the last question: no other may have it, as masks are for one answer
        self._answered_so_far: Counter[str] = Counter()  # how many questions of each kind
        self._lane_runs: set[bytes] = set()

    @cached_property
    def _mark(self) -> str:
        return job_mark(self._table_mark, self.units, self.settings, secure=self.secure)

    @cached_property
    def _table_mark(self) -> str:
        return table_mark(self.given)

    def _recall(self) -> None:
        """Repeat what the process before was asked; what has left already is not entered again."""
        begun = self.memory.begun
        if begun is None or (self.ended and begun.mark != self._mark):
            self.memory.forget()
            return
        self.memory.check(self._mark, self.name)
        self._begun, self.ledger.resting = begun, True
        for content, before in self.memory.repeated():
            found = self._answered[peek(content)[0]](content)
            if peek(content)[0] == "work":
                self.memory.check_same(found, before, self.name)
            self._last = content, found
        self.ledger.resting = False

    def close(self) -> None:
        """Let go of the folder."""
        self.memory.close()
        super().close()

    @property
    def kinds(self) -> Mapping[str, Callable[[bytes], bytes]]:
        """Works besides what every site answers."""
        return {**super().kinds, "work": self._once, "lanes": self._once}

    @property
    def _answered(self) -> Mapping[str, Callable[[bytes], bytes]]:
        """What changes something here, by kind of message: it is kept."""
        return {"work": self._work, "lanes": self._lanes}

    def _once(self, content: bytes) -> bytes:
        """Answer, and keep what was asked before the answer leaves; what comes again gets the same answer."""
        if self._last is not None and self._last[0] == content:
            return self._last[1]
        found = self._answered[peek(content)[0]](content)
        if self._begun is not None and refusal_in(found) is None:
            self.memory.keep(content, found)
            self._last = content, found
        return found

    @property
    def job(self) -> SiteJob:
        """The present job."""
        return self.answers.job

    def part(self, number: int) -> SiteRows:
        """The rows of a part, with the labels of a score."""
        return self.job.table.part(number)

    def predict(self, table: pandas.DataFrame, interval: float | None = None) -> Any:
        """Predict rows of own nodes with the blend; nothing leaves.

        Parameters
        ----------
        table : pandas.DataFrame
            Rows with the node and the features.
        interval : float, optional
            The share of rows whose target shall lie between ``low`` and ``high``, such as 0.9; for numbers.

        Returns
        -------
        array or pandas.DataFrame
            Numbers or classes; with an interval, the columns ``low`` and ``high`` besides.
        """
        if self.blend is None:
            raise InputError("Expected a federation that has finished, this one has not: wait.")
        return self.blend.predict(table, interval)

    def _folder_of(self, join: Join) -> Path | None:
        return None

    def _go_on(self) -> None:
        """There is nothing to go on with."""

    def _hello(self, content: bytes) -> bytes:
        if self.rows is NOT_YET:
            raise WireError("Expected rows that are encoded, this table is not yet: ask about it first.")
        return super()._hello(content)

    def _made(self, join: Join) -> SiteRun:
        self.company.check_agreed(join.peers.values())
        self._lane_runs.add(join.key.run)
        self._bounds.check_lane(join.key.lane, len(self._lane_runs))
        made = super()._made(join)
        if isinstance(made.algorithm, Newton) and made.algorithm.origin:
            self.job.table.check_origin(join.part, np.array(made.algorithm.origin))
        return made

    def _algorithm(self, spec: Spec) -> Algorithm[Any]:
        """What a lane runs: models on graphs, and no other algorithm, as the coordinator would read more of that."""
        found = super()._algorithm(spec)
        if not isinstance(found, GTVMin | Newton):
            raise WireError(f"Expected models on a graph in a lane, got {type(found).__name__}.")
        if isinstance(found, Newton) and found.common and (self.secure or self.company.masks is not None):
            raise WireError(
                f"Expected no sums of site {self.name!r} alone in a lane where sums are masked, got Newton with common "
                "models: leave these out."
            )
        return found

    # ------------------------------------------------------------------ works

    def _work(self, content: bytes) -> bytes:
        """Answer a question; the first of a job begins it, and ends the one before."""
        _, key = peek(content)
        new = self._begun is None or key.run != self._begun.job
        name, about, arrays = read_question(content, key, {} if new else self.answers.sizes)
        if new and name not in FIRST:
            raise WireError("Expected a job that begins with a description, got another question: begin anew.")
        self._check_number(0 if new else self._number, key.number)
        if new:
            if self.jobs is not None:
                self.jobs.begin(key.run, self.name, self.folder)
            self._forget()
            self._begun = self.memory.begin(key.run, self._mark)
            (self.folder / ENDED).unlink(missing_ok=True)
        self._check_bounds(name, arrays)
        if self.secure and self.company.masks is None and WORKS[name].summed:
            raise WireError(f"Expected secure sums, as site {self.name!r} wants them: learn with secure=True.")
        try:
            text, out = self._done(name, about, arrays)
        except WireError:
            raise
        except InputError:  # its text may hold values of rows: it stays here
            log.exception("site %s cannot work with its table", self.name)
            return refusal(key, "Expected a table that can be learnt from, got another; the log of the site has more.")
        self._number = key.number
        self._answered_so_far[name] += 1
        return self._told(content, name, text, out)

    def _check_bounds(self, name: str, arrays: Arrays) -> None:
        """Refuse what the settings do not need."""
        before = self._answered_so_far[name]
        if name in BEFORE_MODELS:
            check_often(name, before, BEFORE_MODELS[name])
        elif self._answered_so_far["encode"]:
            self._bounds.check(name, arrays, before)

    @property
    def _bounds(self) -> Bounds:
        return Bounds.of(self.job.table.settings, self.job.table.target)

    def _check_number(self, last: int, number: int) -> None:
        if number <= last:
            raise WireError(f"Expected a question after number {last}, got {number}: it is too old.")
        if last and number > last + 1:
            raise WireError(
                f"Expected question {last + 1}, got {number}: what site {self.name!r} has kept of the job is not "
                "whole; begin anew."
            )

    def _told(self, question: bytes, name: str, text: Mapping[str, Any], arrays: Arrays) -> bytes:
        """An answer, entered in the log of what left."""
        _, key = peek(question)
        plain = {each: _as_declared(values, WORKS[name].gives[each].dtype) for each, values in arrays.items()}
        if self.company.masks is not None and WORKS[name].summed:
            plain = dict(self.company.masked(key.number, plain, question))
        content, entries = answer(key, name, text, plain), list[Entry]()
        for each, values in plain.items():
            entries.append(Entry(COORDINATOR, WORKS[name].gives[each].content, values.size, values.nbytes))
        if WORKS[name].text:
            size = len(content) - sum(values.nbytes for values in plain.values())
            entries.append(Entry(COORDINATOR, WORKS[name].text, 0, size))
        self.ledger.add(key.run, key.number, entries)
        log.info("site %s answered %r: %d bytes left it", self.name, name, len(content))
        return content

    def _done(self, name: str, about: Mapping[str, Any], arrays: Arrays) -> Answer:
        if name == "introduce":
            assert self._begun is not None
            return self.company.introduce(self._begun.secret)
        if name == "masks":
            return self.company.meet(about)
        found = self.answers.answered(name, about, arrays)
        if name == "encode":
            self.rows = self.part(len(self.job.table.folds) * self.job.table.target.outputs)
        if name == "finish":
            self.blend = self.job.blend
        return found

    def facts(self, federation: str) -> SiteFacts | None:
        """What the page of this site shows; None before a job has finished. It has rows, and stays here."""
        job = self.answers.present
        if job is None or job.outcome is None:
            return None
        return site_facts(job, job.outcome, federation, self.name, self.folder)


def table_mark(table: pandas.DataFrame) -> str:
    """Of the rows of a site."""
    rows = pandas.util.hash_pandas_object(table).to_numpy()
    return fingerprint(rows, repr(list(map(str, table.columns))))


def job_mark(table: str, units: Mapping[str, str], settings: Settings | None, *, secure: bool) -> str:
    """Of the table, by its mark, and of what the owner has agreed to; others are another job."""
    agreed = None if settings is None else settings.to_toml()
    return fingerprint(table, repr([dict(units), secure, agreed, __version__]))


def _as_declared(values: Any, dtype: str) -> Any:
    return np.ascontiguousarray(values, dtype=dtype).reshape(np.shape(values))
