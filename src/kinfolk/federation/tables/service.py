"""TableService: one site of a federation that learns from tables. It answers works, and takes part in lanes."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import pandas

from kinfolk.algorithms import GTVMin
from kinfolk.algorithms.newton import Newton
from kinfolk.checks import InputError, listing
from kinfolk.engine.protocol import Algorithm, Arrays
from kinfolk.engine.specs import Spec
from kinfolk.engine.wire import Key, WireError
from kinfolk.federation.allowance import Allowance
from kinfolk.federation.carrier import refusal_in
from kinfolk.federation.files import read_json, replace_file
from kinfolk.federation.joining import Join
from kinfolk.federation.keys import Peer, Pins
from kinfolk.federation.ledger import Entry
from kinfolk.federation.messages import refusal
from kinfolk.federation.rows import SiteRows
from kinfolk.federation.service import ENDED, SiteService, peek
from kinfolk.federation.site_run import SiteRun
from kinfolk.federation.tables.agreeing import Agreed, check_settings, mark_of
from kinfolk.federation.tables.kept import SiteBlend
from kinfolk.federation.tables.masks import Masks, salt_of
from kinfolk.federation.tables.remembering import Begun, Memory
from kinfolk.federation.tables.site_job import SiteJob
from kinfolk.federation.tables.site_page import outcome_of, site_facts
from kinfolk.federation.tables.site_table import Answer, SiteTable
from kinfolk.federation.tables.site_tied import POINTS
from kinfolk.federation.tables.works import WORKS, answer, read_question
from kinfolk.federation.traffic import COORDINATOR
from kinfolk.network.data import Data
from kinfolk.network.fingerprint import fingerprint
from kinfolk.objective.linear_models import LinearModels
from kinfolk.report.site import SiteFacts
from kinfolk.tables.columns import Columns, check_there
from kinfolk.tables.dates import READERS
from kinfolk.tables.encoding import Encoder
from kinfolk.tables.settings import Settings
from kinfolk.tables.target import Kind, Target, known_targets
from kinfolk.typing import Floats
from kinfolk.version import __version__

log = logging.getLogger(__name__)
NOT_YET = SiteRows(["?"], ["?"], Data(np.zeros((1, 1)), np.zeros(1), np.array([0, 1])))  # before rows are encoded


COMPANY = "summed-with.json"
FIRST = ("introduce", "describe")  # questions that begin a job
ONCE = ("describe", "count", "encode")  # they decide which rows are summed: many such sums would tell single rows
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
        self._present: SiteJob | None = None
        self._last: tuple[bytes, bytes] | None = None  # what was asked, and what was answered
        self._begun: Begun | None = None
        self._number = 0  # of the last question: no other may have it, as masks are for one answer
        self._salt = b""
        self._masks: Masks | None = None
        self._company: dict[str, Any] = {}  # with whom sums are made
        self._sizes: dict[str, int] = {}
        self._settled: set[str] = set()  # questions that were answered, of those that are answered once

    @cached_property
    def _mark(self) -> str:
        """Of the table and of what the owner has agreed to; others are another job."""
        agreed = None if self.settings is None else self.settings.to_toml()
        return fingerprint(self._table_mark, repr([dict(self.units), self.secure, agreed, __version__]))

    @cached_property
    def _table_mark(self) -> str:
        rows = pandas.util.hash_pandas_object(self.given).to_numpy()
        return fingerprint(rows, repr(list(map(str, self.given.columns))))

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
        if self._present is None:
            raise WireError("Expected a table that was described first, got another question.")
        return self._present

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
        self._check_agreed(join.peers.values())
        return super()._made(join)

    def _algorithm(self, spec: Spec) -> Algorithm[Any]:
        """What a lane runs: models on graphs, and no other algorithm, as the coordinator would read more of that."""
        found = super()._algorithm(spec)
        if not isinstance(found, GTVMin | Newton):
            raise WireError(f"Expected models on a graph in a lane, got {type(found).__name__}.")
        if isinstance(found, Newton) and found.common and (self.secure or self._masks is not None):
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
        name, about, arrays = read_question(content, key, {} if new else self._sizes)
        if new and name not in FIRST:
            raise WireError("Expected a job that begins with a description, got another question: begin anew.")
        self._check_number(0 if new else self._number, key.number)
        if new:
            if self.jobs is not None:
                self.jobs.begin(key.run, self.name, self.folder)
            self._forget()
            self._begun = self.memory.begin(key.run, self._mark)
            (self.folder / ENDED).unlink(missing_ok=True)
        if name in self._settled:
            raise WireError(f"Expected the question {name!r} once in a job, got it again: begin anew.")
        if self.secure and self._masks is None and WORKS[name].summed:
            raise WireError(f"Expected secure sums, as site {self.name!r} wants them: learn with secure=True.")
        try:
            text, out = self._done(name, about, arrays)
        except WireError:
            raise
        except InputError:  # its text may hold values of rows: it stays here
            log.exception("site %s cannot work with its table", self.name)
            return refusal(key, "Expected a table that can be learnt from, got another; the log of the site has more.")
        self._number = key.number
        self._settled |= {name} & set(ONCE)
        return self._told(key, name, text, out)

    def _check_number(self, last: int, number: int) -> None:
        if number <= last:
            raise WireError(f"Expected a question after number {last}, got {number}: it is too old.")
        if last and number > last + 1:
            raise WireError(
                f"Expected question {last + 1}, got {number}: what site {self.name!r} has kept of the job is not "
                "whole; begin anew."
            )

    def _told(self, key: Key, name: str, text: Mapping[str, Any], arrays: Arrays) -> bytes:
        """An answer, entered in the log of what left."""
        plain = {each: _as_declared(values, WORKS[name].gives[each].dtype) for each, values in arrays.items()}
        if self._masks is not None and WORKS[name].summed:
            self._keep_company()
            plain = self._masks.masked(key.number, plain)
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
        works = {
            "introduce": self._introduce, "masks": self._masked_with,
            "describe": self._describe, "count": self._count, "scale": self._scale, "encode": self._encode,
            "alone": self._alone, "score": self._score, "sizes": self._error_sizes, "products": self._products,
            "costs": self._costs, "finish": self._finish, "gains": self._gains, "pooled": self._pooled,
            "residuals": self._residuals, "outcome": self._outcome,
        }  # fmt: skip
        if name in works:
            return works[name](about, arrays)
        job = self.job
        plain: dict[str, Callable[..., Answer]] = {  # their arrays are their arguments
            "derivatives": job.table.derivatives, "traces": job.table.traces, "totals": job.table.totals,
            "kin sums": job.table.kin_sums, "kin": job.table.kin, "slopes begin": job.slopes.begin,
            "slopes try": job.slopes.try_, "slopes move": job.slopes.move, "slopes end": job.slopes.end,
            "boosted": job.trees.validate, "reach": job.unseen.reach, "tied begin": job.tied.begin,
            "tied step": job.tied.step, "tied end": job.tied.end,
        }  # fmt: skip
        return plain[name](**{each: _scalar(values) for each, values in arrays.items()})

    def _introduce(self, about: Mapping[str, Any], arrays: Arrays) -> Answer:
        """Begin a job with secure sums: another salt than in any job before, so that no mask is used again."""
        assert self._begun is not None
        self._salt, self._masks = salt_of(self._begun.secret), None
        return {"key": self.key.public.hex(), "salt": self._salt.hex()}, {}

    def _masked_with(self, about: Mapping[str, Any], arrays: Arrays) -> Answer:
        """From now on, what is summed is masked."""
        try:
            known = {
                Peer(str(name), bytes.fromhex(each["key"])): bytes.fromhex(each["salt"])
                for name, each in about["sites"].items()
            }
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise WireError("Expected the keys of all sites, got something else.") from error
        own = Peer(self.name, self.key.public)
        others = {peer: salt for peer, salt in known.items() if peer != own}
        if known.get(own) != self._salt or not others or any(peer.name == self.name for peer in others):
            raise WireError("Expected the keys of this site and of others, got something else.")
        self._check_agreed(others)
        Pins(self.folder).check(dict(enumerate(others)))
        self._check_company({peer.name for peer in known})
        self._masks = Masks(self.key, self.name, self._salt, others)
        return {}, {}

    def _check_agreed(self, peers: Iterable[Peer]) -> None:
        """Refuse sites that the owner has not agreed to: a coordinator could have made them up."""
        strangers = [] if self.sites is None else [peer.name for peer in peers if peer.name not in self.sites]
        if strangers:
            raise WireError(f"Expected the agreed sites, got {listing(strangers)} besides: invite anew.")

    def _check_company(self, names: set[str]) -> None:
        """Masked sums of a table are made with the same sites, or with fewer if the owner has agreed to that."""
        path = self.folder / COMPANY
        before = read_json(path)
        same_rows = before.get("rows") == self._table_mark
        known = set(before.get("sites", names)) if same_rows else names
        if names != known and not (names < known and self.fewest is not None and len(names) >= self.fewest):
            raise WireError(
                f"Expected sums with the sites of before ({listing(sorted(known))}), got others: the difference would "
                f"tell the part of one of them. If its owner agrees, remove {COMPANY!r} from the folder of site "
                f"{self.name!r}."
            )
        self._company = {"rows": self._table_mark, "sites": sorted(names)}

    def _keep_company(self) -> None:
        """Before the first masked answer leaves: from now on, sums are made with these sites."""
        path = self.folder / COMPANY
        if read_json(path) != self._company:
            replace_file(path, json.dumps(self._company).encode())

    def _describe(self, about: Mapping[str, Any], arrays: Arrays) -> Answer:
        settings = Settings.of(about)
        check_settings(settings)
        if self.settings is not None and settings != self.settings:
            raise WireError(
                f"Expected what the owner of site {self.name!r} has agreed to learn, got other settings: send a new "
                "invitation."
            )
        try:
            check_there(self.given, settings)
        except InputError as error:  # about names of columns: the others may know
            raise WireError(str(error)) from error
        if not known_targets(self.given[settings.target]).any():
            raise WireError(
                f"Expected rows with a target {settings.target!r}, got none: check the file, or leave the federation."
            )
        self._present = SiteJob(SiteTable(self.given, self.units, settings))
        self._sizes = {"nodes": len(self.job.table.nodes), "four": 4, "three": 3, "points": POINTS}
        return self.job.table.describe()

    def _count(self, about: Mapping[str, Any], arrays: Arrays) -> Answer:
        settings = self.job.table.settings
        names = {each: tuple(_texts(about, each)) for each in ("numbers", "categories", "dates", "coords")}
        columns = Columns(settings.node, settings.target, **names, time=settings.time, mark=mark_of(settings), notes=())
        written = dict(zip(names["dates"], _texts(about, "written"), strict=True))
        if not set(written.values()) <= set(READERS):
            raise WireError("Expected ways to write dates that are known, got others.")
        agreed = Agreed(columns, written, [])
        return self.job.table.count(agreed, arrays["numbers"], float(arrays["cut"]), arrays["tested"])

    def _scale(self, about: Mapping[str, Any], arrays: Arrays) -> Answer:
        count = len(arrays["centre"])
        encoder = _encoder(about, np.zeros(count), np.ones(count))
        return self.job.table.scale(encoder, _target(about), arrays["centre"], float(arrays["target_centre"]))

    def _encode(self, about: Mapping[str, Any], arrays: Arrays) -> Answer:
        encoder = _encoder(about, arrays["centre"], arrays["scale"])
        target = _target(about, float(arrays["target_centre"]), float(arrays["target_spread"]))
        folds = about.get("folds")
        if not isinstance(folds, int) or not 0 < folds < 1_000:
            raise WireError("Expected a number of folds, got something else.")
        text, out = self.job.table.encode(encoder, target, folds, arrays["starts"], arrays["node_folds"])
        width, count = len(encoder.get_feature_names_out()) + 1, len(self.job.table.folds)
        self._sizes |= {"width": width, "folds": count, "parts": count + 1, "two": 2}
        self._sizes |= {"kinds": max(len(target.classes), 1), "scores": target.outputs}
        self.rows = self.part(count * target.outputs)
        return text, out

    def _pooled(self, about: Mapping[str, Any], arrays: Arrays) -> Answer:
        return self.job.unseen.pooled(_text(about, "name"), arrays["w"])

    def _alone(self, about: Mapping[str, Any], arrays: Arrays) -> Answer:
        return self.job.unseen.alone(_text(about, "pooled"), int(arrays["best"]), arrays["without"], arrays["ridges"])

    def _score(self, about: Mapping[str, Any], arrays: Arrays) -> Answer:
        models = [self._lane_models(lane) for lane in arrays["lane"].tolist()]
        value, part, score = (arrays[each] for each in ("value", "part", "score"))
        return self.job.unseen.score(_text(about, "name"), value, part, score, models)

    def _error_sizes(self, about: Mapping[str, Any], arrays: Arrays) -> Answer:
        return self.job.unseen.sizes(_texts(about, "names"), arrays["best"], arrays["factors"])

    def _products(self, about: Mapping[str, Any], arrays: Arrays) -> Answer:
        best, factors, typical = arrays["best"], arrays["factors"], float(arrays["typical"])
        return self.job.unseen.products(_texts(about, "names"), best, factors, typical)

    def _costs(self, about: Mapping[str, Any], arrays: Arrays) -> Answer:
        best, factors, weights = (arrays[each] for each in ("best", "factors", "weights"))
        return self.job.unseen.costs(_texts(about, "names"), best, factors, weights)

    def _residuals(self, about: Mapping[str, Any], arrays: Arrays) -> Answer:
        return self.job.unseen.residuals(_texts(about, "names"), arrays["best"], arrays["weights"])

    def _finish(self, about: Mapping[str, Any], arrays: Arrays) -> Answer:
        scores, lanes, named = self.job.table.target.outputs, arrays["lanes"].tolist(), _texts(about, "graphs")
        if len(lanes) != scores * len(named):
            raise WireError(f"Expected {scores} lanes for every graph, got {len(lanes)} for {len(named)}.")
        models = [self._lane_models(lane) for lane in lanes]
        graphs = {name: models[k * scores : (k + 1) * scores] for k, name in enumerate(named)}
        weights, control = (
            dict(zip(_texts(about, each), arrays[each].tolist(), strict=True)) for each in ("weights", "control")
        )
        found = self.job.finish(graphs, weights, control, arrays)
        self.blend = self.job.blend
        return found

    def _gains(self, about: Mapping[str, Any], arrays: Arrays) -> Answer:
        return self.job.tested.gains(_text(about, "method"), _text(about, "baseline"), float(arrays["level"]))

    def _outcome(self, about: Mapping[str, Any], arrays: Arrays) -> Answer:
        """Keep what the coordinator tells in the end, for the page of this site."""
        self.job.told(outcome_of(about, arrays))
        return {}, {}

    def facts(self, federation: str) -> SiteFacts | None:
        """What the page of this site shows; None before a job has finished. It has rows, and stays here."""
        job = self._present
        if job is None or job.outcome is None:
            return None
        return site_facts(job, job.outcome, federation, self.name, self.folder)

    def _lane_models(self, lane: int) -> Floats:
        if lane not in self.runs:
            raise WireError(f"Expected a lane of the present run, got {lane}.")
        return cast(LinearModels, self.runs[lane].models).w


def _as_declared(values: Any, dtype: str) -> Any:
    return np.ascontiguousarray(values, dtype=dtype).reshape(np.shape(values))


def _scalar(values: Any) -> Any:
    return values if values.ndim else values.item()


def _text(about: Mapping[str, Any], name: str) -> str:
    found = about.get(name)
    if not isinstance(found, str):
        raise WireError(f"Expected a text {name!r}, got something else.")
    return found


def _texts(about: Mapping[str, Any], name: str) -> list[str]:
    found = about.get(name)
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise WireError(f"Expected texts {name!r}, got something else.")
    return found


def _encoder(about: Mapping[str, Any], centre: Floats, scale: Floats) -> Encoder:
    try:
        return Encoder.of(about["encoder"], {"centre": centre, "scale": scale})
    except (ValueError, TypeError, KeyError) as error:
        raise WireError(f"Expected an encoder, got something else ({type(error).__name__}).") from error


def _target(about: Mapping[str, Any], centre: float = 0.0, spread: float = 1.0) -> Target:
    classes, kind, level = (about.get(name) for name in ("classes", "kind", "level"))
    if not isinstance(classes, list) or not all(isinstance(each, str | int | float | bool) for each in classes):
        raise WireError("Expected classes of the target, got something else.")
    if kind not in get_args(Kind) or (kind == "classes") != bool(classes):
        raise WireError(f"Expected a kind of target among {', '.join(get_args(Kind))}, got something else.")
    if not isinstance(level, float) or not 0 < level < 1:
        raise WireError("Expected the level of a quantile between 0 and 1, got something else.")
    return Target(tuple(classes), centre, spread, cast(Kind, kind), level)
