"""What a site answers to each question about its table: the words of a question are checked, then its job works."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast, get_args

import numpy as np
import pandas

from kinfolk.checks import InputError
from kinfolk.engine.protocol import Arrays
from kinfolk.engine.wire import WireError
from kinfolk.federation.site_run import SiteRun
from kinfolk.federation.tables.agreeing import Agreed, check_settings, mark_of
from kinfolk.federation.tables.bounds import check_kind, most_folds
from kinfolk.federation.tables.site_job import SiteJob
from kinfolk.federation.tables.site_page import outcome_of
from kinfolk.federation.tables.site_table import Answer, SiteTable
from kinfolk.federation.tables.site_tied import POINTS
from kinfolk.objective.linear_models import LinearModels
from kinfolk.tables.columns import Columns, check_there
from kinfolk.tables.dates import READERS
from kinfolk.tables.encoding import Encoder
from kinfolk.tables.settings import Settings
from kinfolk.tables.target import Kind, Target, known_targets
from kinfolk.typing import Floats


class TableAnswers:
    """The answers of one site to questions about its table, in one job.

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
    runs : mapping of int to SiteRun
        The lanes of the present run, which fit models on graphs.
    """

    def __init__(
        self, site: str, given: pandas.DataFrame, units: Mapping[str, str], agreed: Settings | None,
        runs: Mapping[int, SiteRun],
    ) -> None:  # fmt: skip
        self.site, self.given, self.units, self.agreed = site, given, units, agreed
        self.runs = runs
        self.present: SiteJob | None = None
        self.sizes: dict[str, int] = {}  # of axes

    @property
    def job(self) -> SiteJob:
        """The present job."""
        if self.present is None:
            raise WireError("Expected a table that was described first, got another question.")
        return self.present

    def answered(self, name: str, about: Mapping[str, Any], arrays: Arrays) -> Answer:
        """The answer to the question ``name``; ``about``: its words, ``arrays``: its numbers."""
        works = {
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
            "boosted": job.trees.validate, "levels": job.unseen.levels, "growth": job.unseen.growth,
            "reach": job.unseen.reach, "tied begin": job.tied.begin, "tied step": job.tied.step,
            "tied end": job.tied.end,
        }  # fmt: skip
        return plain[name](**{each: _scalar(values) for each, values in arrays.items()})

    def _describe(self, about: Mapping[str, Any], arrays: Arrays) -> Answer:
        settings = Settings.of(about)
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
        self.present = SiteJob(SiteTable(self.given, self.units, settings))
        self.sizes = {"nodes": len(self.job.table.nodes), "four": 4, "three": 3, "points": POINTS}
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
        target = _target(about)
        check_kind(self.job.table.settings, target)
        return self.job.table.scale(encoder, target, arrays["centre"], float(arrays["target_centre"]))

    def _encode(self, about: Mapping[str, Any], arrays: Arrays) -> Answer:
        encoder = _encoder(about, arrays["centre"], arrays["scale"])
        target = _target(about, float(arrays["target_centre"]), float(arrays["target_spread"]))
        check_kind(self.job.table.settings, target)
        folds, most = about.get("folds"), most_folds(self.job.table.settings)
        if not isinstance(folds, int) or not 0 < folds <= most or len(arrays["starts"]) > most:
            raise WireError(f"Expected from 1 to {most} folds, as the settings need, got others.")
        text, out = self.job.table.encode(encoder, target, folds, arrays["starts"], arrays["node_folds"])
        width, count = len(encoder.get_feature_names_out()) + 1, len(self.job.table.folds)
        self.sizes |= {"width": width, "folds": count, "parts": count + 1, "two": 2}
        self.sizes |= {"kinds": max(len(target.classes), 1), "scores": target.outputs}
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
        return self.job.finish(graphs, weights, control, arrays)

    def _gains(self, about: Mapping[str, Any], arrays: Arrays) -> Answer:
        return self.job.tested.gains(_text(about, "method"), _text(about, "baseline"), float(arrays["level"]))

    def _outcome(self, about: Mapping[str, Any], arrays: Arrays) -> Answer:
        """Keep what the coordinator tells in the end, for the page of this site."""
        self.job.told(outcome_of(about, arrays))
        return {}, {}

    def _lane_models(self, lane: int) -> Floats:
        if lane not in self.runs:
            raise WireError(f"Expected a lane of the present run, got {lane}.")
        return cast(LinearModels, self.runs[lane].models).w


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
