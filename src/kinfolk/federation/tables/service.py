"""TableService: one site of a federation that learns from tables. It answers queries, within limits."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas

from kinfolk.checks import InputError
from kinfolk.engine.protocol import Arrays
from kinfolk.engine.wire import Key, WireError
from kinfolk.federation.allowance import Allowance
from kinfolk.federation.carrier import refusal_in
from kinfolk.federation.ledger import Entry
from kinfolk.federation.messages import refusal
from kinfolk.federation.service import ENDED, Service, peek
from kinfolk.federation.tables.handlers import SiteHandlers
from kinfolk.federation.tables.kept import SiteBlend
from kinfolk.federation.tables.key_exchange import KeyExchange
from kinfolk.federation.tables.packing import texts
from kinfolk.federation.tables.queries import QUERIES, Queries, answer, opened, read_query
from kinfolk.federation.tables.query_limits import BEFORE_MODELS, QueryLimits, check_often
from kinfolk.federation.tables.site_journal import Begun, SiteJournal
from kinfolk.federation.tables.site_page import site_facts
from kinfolk.federation.tables.site_reading import Response
from kinfolk.federation.traffic import COORDINATOR
from kinfolk.network.fingerprint import fingerprint
from kinfolk.report.site import SiteFacts
from kinfolk.tables.local_party import LocalParty
from kinfolk.tables.settings import Settings
from kinfolk.version import __version__

log = logging.getLogger(__name__)
NEIGHBOURS = "neighbouring sites"
FIRST = ("introduce", "describe")  # queries that begin a job


class TableService(Service):
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
        super().__init__(name, folder)
        self.given, self.units = table.rename(columns=str), units or {}
        self.blend: SiteBlend | None = None  # of the last job that has finished
        self.secure, self.settings, self.jobs, self.fewest = secure, settings, allowance, fewest
        self.sites = sites
        self._forget()
        self.memory = SiteJournal(self.folder)
        self._recall()

    def _forget(self) -> None:
        """Nothing is known of any job."""
        self.handlers = SiteHandlers(self.name, self.given, self.units, self.settings)
        self.keys = KeyExchange(self.name, self.key, self.folder, self._table_mark, self.sites, self.fewest)
        self._last: tuple[bytes, bytes] | None = None  # what was asked, and what was answered
        self._begun: Begun | None = None
        self._number = 0  # of the last message: no other may have it, as masks are for one answer
        self._answered_so_far: Counter[str] = Counter()  # how many queries of each kind

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
            found = self._work(content)
            self.memory.check_same(found, before, self.name)
            self._last = content, found
        self.ledger.resting = False

    def close(self) -> None:
        """Let go of the folder."""
        self.memory.close()
        super().close()

    @property
    def kinds(self) -> Mapping[str, Callable[[bytes], bytes]]:
        """Queries, and nothing else."""
        return {"work": self._once}

    def _once(self, content: bytes) -> bytes:
        """Answer, and keep what was asked before the answer leaves; what comes again gets the same answer."""
        if self._last is not None and self._last[0] == content:
            return self._last[1]
        found = self._work(content)
        if self._begun is not None and refusal_in(found) is None:
            self.memory.keep(content, found)
            self._last = content, found
        return found

    @property
    def party(self) -> LocalParty:
        """The rows and models of the present job."""
        return self.handlers.learning

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

    # ------------------------------------------------------------------ queries

    def _work(self, content: bytes) -> bytes:
        """Answer all queries of a message; the first message of a job begins it, and ends the one before."""
        key, message = peek(content)[1], opened(content)
        queries = message.queries
        new = self._begun is None or key.run != self._begun.job
        if new and (not queries or queries[0][0] not in FIRST):
            raise WireError("Expected a job that begins with a description, got another query: begin anew.")
        self._check_number(0 if new else self._number, key.number)
        if new:
            if self.jobs is not None:
                self.jobs.begin(key.run, self.name, self.folder)
            self._forget()
            self._begun = self.memory.begin(key.run, self._mark)
            (self.folder / ENDED).unlink(missing_ok=True)
        answers, asked = Queries(), Queries()
        for name, inner in queries:
            about, arrays = read_query(name, inner, self.handlers.sizes)
            asked.append((name, about, arrays))
            self._check_limits(name, arrays)
            try:
                words, found = self._done(name, about, arrays, key.number)
            except WireError:
                raise
            except InputError:  # its text may hold values of rows: it stays here
                log.exception("site %s cannot work with its table", self.name)
                return refusal(
                    key, "Expected a table that can be learnt from, got another; the log of the site has more."
                )
            self._answered_so_far[name] += 1
            declared = QUERIES[name].response
            answers.append((name, words, {k: _as_declared(each, declared[k].dtype) for k, each in found.items()}))
        self._number = key.number
        return self._told(key, asked, message.digests, answers)

    def _check_limits(self, name: str, arrays: Arrays) -> None:
        """Refuse what the settings do not need."""
        before = self._answered_so_far[name]
        if name in BEFORE_MODELS:
            check_often(name, before, BEFORE_MODELS[name])
        elif self._answered_so_far["encode"]:
            rows = self.party.rows
            QueryLimits.of(rows.settings, rows.target).check(name, arrays, before)
        if self.secure and self.keys.masks is None and QUERIES[name].sums:
            raise WireError(f"Expected secure sums, as site {self.name!r} wants them: learn with secure=True.")

    def _check_number(self, last: int, number: int) -> None:
        if number <= last:
            raise WireError(f"Expected a message after number {last}, got {number}: it is too old.")
        if last and number > last + 1:
            raise WireError(
                f"Expected message {last + 1}, got {number}: what site {self.name!r} has kept of the job is not "
                "whole; begin anew."
            )

    def _told(self, key: Key, asked: Queries, digests: list[str], answers: Queries) -> bytes:
        """An answer, with sums masked, entered in the log of what left."""
        sums = {
            f"{k}/{each}": values
            for k, (name, _, arrays) in enumerate(answers)
            for each, values in arrays.items()
            if QUERIES[name].response[each].reader == "sum"
        }
        if self.keys.masks is not None and sums:
            masked = self.keys.masked(key.number, sums, asked, digests)
            answers = [
                (name, words, {each: masked.get(f"{k}/{each}", values) for each, values in arrays.items()})
                for k, (name, words, arrays) in enumerate(answers)
            ]
        content, entries, size = answer(key, answers), list[Entry](), 0
        for name, _, arrays in answers:
            for each, values in arrays.items():
                size += values.nbytes
                array = QUERIES[name].response[each]
                reader = NEIGHBOURS if array.reader == "neighbours" else COORDINATOR
                entries.append(Entry(reader, array.content, values.size, values.nbytes))
        texts = [QUERIES[name].text for name, _, _ in answers if QUERIES[name].text]
        entries += [Entry(COORDINATOR, each, 0, (len(content) - size) // len(texts)) for each in texts]
        self.ledger.add(key.run, key.number, entries)
        log.info("site %s answered %s: %d bytes left it", self.name, [name for name, _, _ in answers], len(content))
        return content

    def _done(self, name: str, about: Mapping[str, Any], arrays: Arrays, number: int) -> Response:
        if name == "introduce":
            assert self._begun is not None
            return self.keys.introduce(self._begun.secret)
        if name == "exchange keys":
            assert self._begun is not None
            found = self.keys.exchange_keys(about)
            self.handlers.sealer = self.keys.sealer(self._begun.job, self._begun.secret)
            self.handlers.masked = self.secure or self.keys.masks is not None
            return found
        if name == "describe":
            self.keys.check_agreed(texts(about, "sites"))
        found = self.handlers.answered(name, about, arrays, number)
        if name == "test":
            self.blend = SiteBlend.of(self.party)
        return found

    def facts(self, federation: str) -> SiteFacts | None:
        """What the page of this site shows; None before a job has finished. It has rows, and stays here."""
        if self.handlers.outcome is None:
            return None
        return site_facts(self.party, self.handlers.outcome, federation, self.name, self.folder)


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
