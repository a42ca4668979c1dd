"""What a site does with each query about its table: what does not fit is refused, then its party works."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast, get_args

import numpy as np
import pandas

from kinfolk.checks import InputError
from kinfolk.engine.protocol import Arrays
from kinfolk.engine.wire import WireError
from kinfolk.federation.keys import Sealer
from kinfolk.federation.messages import LARGEST, UNUSABLE
from kinfolk.federation.tables.packing import arguments, response, texts
from kinfolk.federation.tables.query_limits import check_kind, most_folds
from kinfolk.federation.tables.schema import MEMBERS, Agreed, check_settings, mark_of
from kinfolk.federation.tables.site_page import outcome_of
from kinfolk.federation.tables.site_reading import Response, SiteReading
from kinfolk.report.site import Outcome
from kinfolk.tables.batches import PulledBatch
from kinfolk.tables.columns import Columns, check_there
from kinfolk.tables.dates import READERS
from kinfolk.tables.encoding import Encoder
from kinfolk.tables.joint import KINKS, ROUNDINGS, least_rows, may_respond
from kinfolk.tables.local_party import LocalParty
from kinfolk.tables.party import GraphFits, MixedFits, Step
from kinfolk.tables.settings import Settings
from kinfolk.tables.target import Kind, Target, known_targets
from kinfolk.typing import Floats, Ints


class SiteHandlers:
    """What a site does with each query about its table, in one job.

    Parameters
    ----------
    site : str
        Its name.
    given : pandas.DataFrame
        Its rows.
    units : mapping of str to str
        Units of columns.
    agreed : Settings, optional
        What the owner has agreed to learn; None: any.
    """

    def __init__(self, site: str, given: pandas.DataFrame, units: Mapping[str, str], agreed: Settings | None) -> None:
        self.site, self.given, self.units, self.agreed = site, given, units, agreed
        self.reading: SiteReading | None = None
        self.party: LocalParty | None = None  # when rows are encoded
        self.sealer: Sealer | None = None  # encrypts messages to neighbouring sites, when keys were exchanged
        self.masked = False  # whether sums are masked
        self.outcome: Outcome | None = None  # how it has ended at all sites
        self.sizes: dict[str, int] = {}  # of axes

    def answered(self, name: str, about: Mapping[str, Any], arrays: Arrays, number: int) -> Response:
        """The response to a query; ``about``: its words, ``arrays``: its numbers, ``number``: of its message."""
        reading = {
            "describe": self._describe, "measure": self._measure, "scale": self._scale, "encode": self._encode,
            "finish": self._finish,
        }  # fmt: skip
        if name in reading:
            return reading[name](about, arrays)
        party = self.learning
        method, given = arguments(name, about, arrays, party.rows.settings, party.rows.target)
        self._check(name, given)
        if method == "respond":
            return {}, self._respond(given, arrays, number)
        words, found = response(getattr(party, method)(**given))
        return dict(words), found

    def _respond(self, given: dict[str, Any], arrays: Arrays, number: int) -> Arrays:
        """Conjugate gradients: open what neighbouring sites sent, and encrypt what they are to receive."""
        party, batch = self.learning, given["batch"]
        assert self.sealer is not None
        if "turn" in given:
            before = party.batches[batch]
            assert isinstance(before, PulledBatch)
            given["turn"] = given["turn"]._replace(neighbours=self._opened(before, arrays, number))
        found = party.respond(**given)
        fits = party.batches[batch].fits  # type: ignore[attr-defined]
        letters = []
        for site in np.unique(fits.foreign).tolist():
            mine = np.unique(fits.links[fits.foreign[fits.links[:, 1]] == site, 0])
            letters.append(self.sealer.seal(site, number, found.values[:, mine].tobytes()))
        return {
            **response(found)[1], "sealed": np.frombuffer(b"".join(letters), dtype=np.uint8),
            "lengths": np.array([len(each) for each in letters], dtype=np.int64),
        }  # fmt: skip

    def _opened(self, batch: PulledBatch, arrays: Arrays, number: int) -> Floats:
        """What neighbouring sites sent in the exchange before (fits, nodes elsewhere, parameters)."""
        foreign, fits, width = batch.fits.foreign, len(batch.told_of), batch.w.shape[2]
        around = np.unique(foreign).tolist()
        lengths, sealed = arrays["lengths"].tolist(), arrays["sealed"].tobytes()
        if len(lengths) != len(around) or sum(lengths) != len(sealed) or min(lengths, default=0) < 0:
            raise WireError("Expected a message from every neighbouring site, got others.")
        out, ends = np.zeros((fits, len(foreign), width)), np.cumsum([0, *lengths]).tolist()
        for site, start, end in zip(around, ends[:-1], ends[1:], strict=True):
            theirs = foreign == site
            stamp, content = self.sealer.open(site, sealed[start:end])  # type: ignore[union-attr]
            if stamp >= number or len(content) != 8 * fits * int(theirs.sum()) * width:
                raise WireError("Expected what a neighbouring site sent in the exchange before, got something else.")
            values = np.frombuffer(content, dtype=np.float64).reshape(fits, -1, width)
            if not (np.abs(values) <= LARGEST).all():
                raise WireError(UNUSABLE)
            out[:, theirs] = values
        return out

    @property
    def read(self) -> SiteReading:
        """The table of the present job."""
        if self.reading is None:
            raise WireError("Expected a table that was described first, got another query.")
        return self.reading

    @property
    def learning(self) -> LocalParty:
        """The party of the present job."""
        if self.party is None:
            raise WireError("Expected rows that are encoded first, got another query.")
        return self.party

    # ------------------------------------------------------------------ reading

    def _describe(self, about: Mapping[str, Any], arrays: Arrays) -> Response:
        given = about.get("settings")
        if not isinstance(given, dict):
            raise WireError("Expected settings of what is to be learnt, got something else.")
        settings = Settings.of(given)
        check_settings(settings)
        if self.agreed is not None and settings != self.agreed:
            raise WireError(
                f"Expected what the owner of site {self.site!r} has agreed to learn, got other settings: send a new "
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
        self.reading = SiteReading(self.given, self.units, settings)
        self.sizes = {"nodes": len(self.read.nodes), "two": 2, "three": 3, "four": 4}
        return self.read.describe()

    def _measure(self, about: Mapping[str, Any], arrays: Arrays) -> Response:
        settings = self.read.settings
        names = {each: tuple(texts(about, each)) for each in ("numbers", "categories", "dates", "coords")}
        columns = Columns(settings.node, settings.target, **names, time=settings.time, mark=mark_of(settings), notes=())
        written = dict(zip(names["dates"], texts(about, "written"), strict=True))
        if not set(written.values()) <= set(READERS):
            raise WireError("Expected ways to write dates that are known, got others.")
        agreed = Agreed(columns, written, [])
        return self.read.measure(agreed, arrays["numbers"], float(arrays["cut"]), arrays["tested"])

    def _scale(self, about: Mapping[str, Any], arrays: Arrays) -> Response:
        count = len(arrays["centre"])
        encoder = _encoder(about, np.zeros(count), np.ones(count))
        target = _target(about)
        check_kind(self.read.settings, target)
        return self.read.scale(encoder, target, arrays["centre"], float(arrays["target_centre"]))

    def _encode(self, about: Mapping[str, Any], arrays: Arrays) -> Response:
        encoder = _encoder(about, arrays["centre"], arrays["scale"])
        target = _target(about, float(arrays["target_centre"]), float(arrays["target_spread"]))
        check_kind(self.read.settings, target)
        folds, most = about.get("folds"), most_folds(self.read.settings)
        if not isinstance(folds, int) or not 0 < folds <= most or len(arrays["starts"]) > most:
            raise WireError(f"Expected from 1 to {most} folds, as the settings need, got others.")
        rows, found = self.read.encode(encoder, target, folds, arrays["starts"], arrays["node_folds"])
        self.party = LocalParty(rows)
        self.sizes |= {"width": rows.training.X.shape[1] + 1, "folds": rows.whole, "parts": rows.whole + 1}
        self.sizes |= {"kinds": max(len(target.classes), 1), "scores": target.outputs}
        return found

    # ------------------------------------------------------------------ what would not fit the rows

    def _check(self, name: str, given: Mapping[str, Any]) -> None:
        """Refuse arguments that name what is not there: numbers that come from elsewhere index nothing unchecked."""
        party, rows = self.learning, self.learning.rows
        for each in ("part", "score"):
            most = len(rows.parts) if each == "part" else rows.target.outputs
            for found in (given.get(each), getattr(given.get("fits"), each, None)):
                if found is not None and not ((found >= 0) & (found < most)).all():
                    raise WireError(f"Expected numbers of a {each} from 0 to {most - 1}, got others.")
        for found in (given, *(given[each]._asdict() for each in ("fits", "step", "turn") if each in given)):
            if found.get("rounding", 0.0) not in (0.0, *ROUNDINGS, *KINKS):
                raise WireError("Expected kinks that are rounded as widely as they are, got others.")
        if name.endswith("gradients") and self.sealer is None:
            raise WireError("Expected keys of other sites before messages to them, got none.")
        if "fits" in given:
            self._check_fits(given["fits"])
            if name == "begin graph":
                self._check_boundary(given["fits"].boundary)
        elif name.startswith("step"):
            self._check_step(given["batch"], given["step"])
        elif name == "gradients":
            batch, turn = party.batches.get(given["batch"]), given["turn"]
            if not isinstance(batch, PulledBatch) or turn.common.shape != (len(batch.part), batch.w.shape[2]):
                raise WireError("Expected a step of a batch that has begun, got another.")
            if not set(np.flatnonzero(turn.alive).tolist()) <= batch.may_go_on(turn.phase):
                raise WireError("Expected fits that go on, got others.")
        elif name == "validate batch" and given["batch"] not in party.batches:
            raise WireError(f"Expected a batch that has begun, got {given['batch']!r:.40}.")
        elif name == "moments" and not set(given["without"].tolist()) <= set(rows.trend):
            raise WireError("Expected features that grow with time to be left out, got others.")
        elif name == "spread" or (name == "test" and given["widths"] is not None):
            scales = given["scales"] if name == "spread" else given["widths"].scales
            if not hasattr(party.out_of_fold, "moments") or scales.shape[1] not in (1, 1 + rows.window_count):
                raise WireError(
                    f"Expected scales without each of {rows.window_count} windows of time, got {scales.shape[1] - 1}."
                )
        chosen = dict(given.get("chosen", {}))
        if "names" in given:
            chosen = dict(zip(given["names"], given["best"].tolist(), strict=False))
        if name == "test":
            chosen = dict(given["finish"].chosen)
            used = {*given["finish"].weights, *given["finish"].control}
            if not used <= set(chosen) or "pooled" not in chosen:
                raise WireError(f"Expected members among {', '.join(MEMBERS)}, got others.")
        if name == "gains" and (
            party.tested is None or not {given["method"], given["baseline"]} <= set(party.predicted)
        ):
            raise WireError("Expected queries about a test after it, got one before.")
        for member, value in chosen.items():
            if member not in party.sources or not 0 <= int(value) < len(party.sources[member].values):
                raise WireError(f"Expected members among {', '.join(MEMBERS)} with values that were tried, got others.")

    def _check_fits(self, fits: MixedFits | GraphFits) -> None:
        party, nodes = self.learning, len(self.learning.rows.nodes)
        pooled = party.sources.get("pooled")
        if not -1 <= fits.start < (0 if pooled is None else len(pooled.values)):
            raise WireError("Expected fits that start from zero or from a pooled model, got others.")
        if isinstance(fits, MixedFits):
            if not (fits.strengths > 0).all():
                raise WireError("Expected strengths above 0, got others.")
            return
        if ((party.rows.part_rows > 0) & ~fits.reached).any():
            raise WireError("Expected all nodes that have rows in a fit, got fewer: their sums would be told.")
        inside = all(((each >= 0) & (each < nodes)).all() for each in (fits.ends, fits.boundary))
        sound = all((each >= 0).all() for each in (fits.lam, fits.weights, fits.outward)) and fits.ridge >= 0
        if self.sealer is not None:
            inside = inside and set(np.unique(fits.foreign).tolist()) <= set(self.sealer.peers)
        most = np.array([len(fits.boundary), len(fits.foreign)])
        inside = inside and bool(((fits.links >= 0) & (fits.links < most)).all())
        if (
            not inside
            or not sound
            or (fits.link_weights < 0).any()
            or len(np.unique(fits.boundary)) < len(fits.boundary)
        ):
            raise WireError("Expected edges between own nodes with weights of 0 or more, got others.")

    def _check_boundary(self, boundary: Ints) -> None:
        """Refuse to tell how nodes with few rows respond: their rows could be told. With masks, refuse all."""
        rows = self.learning.rows
        width = rows.training.X.shape[1] + 1
        if len(boundary) and (self.masked or not may_respond(rows.part_rows[:, boundary], width)):
            raise WireError(
                f"Expected boundary nodes with {least_rows(width)} rows in every part, {width} in every fold, and no "
                "masked sums, for their response to a pull, got others: take conjugate gradients."
            )

    def _check_step(self, name: str, step: Step) -> None:
        batch = self.learning.batches.get(name)
        if batch is None or step.move.shape != (len(batch.part), *batch.shape[1]):
            raise WireError("Expected a step of a batch that has begun, got another.")
        if not ((step.size >= 0) & (step.size <= 1)).all():
            raise WireError("Expected parts of a step from 0 to 1, got others.")

    # ------------------------------------------------------------------ the end

    def _finish(self, about: Mapping[str, Any], arrays: Arrays) -> Response:
        """Keep what the coordinator tells in the end, for the page of this site."""
        if self.learning.tested is None:
            raise WireError("Expected how it has ended after the test, got it before.")
        self.outcome = outcome_of(about, arrays)
        return {}, {}


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
