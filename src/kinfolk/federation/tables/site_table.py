"""The rows of one site: described, split, encoded, and cut into parts. What leaves are sums, or numbers per node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas

from kinfolk.checks import InputError
from kinfolk.engine.protocol import Arrays
from kinfolk.engine.wire import WireError
from kinfolk.federation.rows import SiteRows
from kinfolk.federation.tables.agreeing import Agreed, Description
from kinfolk.network import graphs
from kinfolk.network.data import Data
from kinfolk.network.folds import places_of_rows, row_folds
from kinfolk.network.network import Network
from kinfolk.report.facts import on_globe
from kinfolk.similarity import DeviationDistance
from kinfolk.tables.columns import as_numbers, node_names, plain_value
from kinfolk.tables.dates import as_times
from kinfolk.tables.encoding import Encoder, plain
from kinfolk.tables.members.member import Sample
from kinfolk.tables.members.scores import labels, loss_of, rounded
from kinfolk.tables.places import node_places, row_places
from kinfolk.tables.rows import Rows
from kinfolk.tables.settings import Settings
from kinfolk.tables.splits import VALIDATION, Fold, held_in, later_columns, marked, table_times, windows_between
from kinfolk.tables.target import Target, known_targets
from kinfolk.typing import Bools, Floats, Ints

LEAST_NAMED = 5  # rows: a category with fewer at a site is not named by it
TOO_HIGH = 1e15  # for a sum of losses: more is told as so much
WORST, STEEPEST = 5.0, 30.0  # with classes: a loss in units of that at zero, and a score; more is told of no model
Answer = tuple[dict[str, Any], Arrays]


class SiteTable:
    """The rows of one site that have a target, and what has been worked out of them for one job.

    Parameters
    ----------
    given : pandas.DataFrame
        The table of the site.
    units : mapping of str to str
        Units of columns.
    settings : Settings
        What is to be learnt.
    """

    def __init__(self, given: pandas.DataFrame, units: Mapping[str, str], settings: Settings) -> None:
        table = given
        if settings.target in table:
            table = table[known_targets(table[settings.target])]
        if settings.time in table:
            table = table[table[settings.time].notna()]
        self.settings, self.table = settings, table
        self.description = Description.of(table, settings, units)
        self.nodes = self.description.nodes
        self._trend_left_out = False

    # ------------------------------------------------------------------ what is there

    def describe(self) -> Answer:
        """Names and kinds, the rows of every node, and how many there are at each time if later ones are tested."""
        timed = bool(self.settings.time)
        times, rows = np.unique(self.times, return_counts=True) if timed else (np.empty(0), np.empty(0))
        sizes = np.bincount(self.owner, minlength=len(self.nodes))
        told = {"times": times, "time_rows": rows.astype(np.int64), "node_rows": sizes}
        return self.description.to_json(), told

    @cached_property
    def times(self) -> Floats:
        """The times of all rows, where later ones are tested."""
        assert self.settings.time is not None
        return table_times(self.table, self.settings.time)

    @cached_property
    def owner(self) -> Ints:
        """The own number of the node of every row."""
        names = node_names(self.table, self.settings.node)
        return np.asarray(np.searchsorted(np.array(self.nodes, dtype=object), names), dtype=np.int64)

    def count(self, agreed: Agreed, numbers: Ints, cut: float, tested: Bools) -> Answer:
        """Split; sums of columns of training rows, categories and classes, and where nodes are.

        ``tested``: own nodes that are held out as a whole, where whole nodes are.
        """
        columns = agreed.columns
        self.columns, self.numbers = columns, numbers
        self.held_out = self._held_out(cut, tested)
        self.train = ~self.held_out
        rows = plain(self.table[self.train], columns)
        dates, date_rows = self._dates(agreed)
        count = len(self.nodes)
        categories = {name: _counts(rows[name]) for name in columns.categories}
        later = later_columns(self.table, columns, self.owner, self.held_out) if columns.mark else []
        text = {"categories": categories, "labels": self._labels(), "later": later}
        return text, {
            "train_rows": np.bincount(self.owner[self.train], minlength=count),
            "test_rows": np.bincount(self.owner[self.held_out], minlength=count),
            "places": self._places(),
            "dates": dates,
            "date_rows": date_rows,
        }

    def totals(self) -> Answer:
        """Sums of the columns of numbers, and of the target if it is one."""
        rows, names = plain(self.table[self.train], self.columns), self.columns.numbers
        values = np.array([rows[name].to_numpy(dtype=np.float64) for name in names]).reshape(len(names), len(rows))
        target = as_numbers(self.table[self.settings.target])[0][self.train]
        return {}, {
            "known": (~np.isnan(values)).sum(axis=1),
            "sums": np.nansum(values, axis=1),
            "target_sum": np.float64(0.0 if np.isnan(target).any() else target.sum()),
        }

    def _held_out(self, cut: float, tested: Bools) -> Bools:
        """The rows that are held out: those marked, the last in time, whole nodes, or a share of every node's rows."""
        settings = self.settings
        if isinstance(settings.test, str):
            return marked(self.table[settings.test], settings.test)
        if settings.time:
            return self.times > cut
        if settings.hold == "nodes":
            return tested[self.owner]
        return places_of_rows(self.numbers[self.owner], settings.seed) < settings.test

    def _places(self) -> Floats:
        """The centroid of every node (nodes, 2), or (nodes, 0) without coordinates."""
        place = row_places(self.table, self.columns)
        if place is None:
            return np.empty((len(self.nodes), 0))
        return node_places(place, self.owner, self.train, self.nodes, self.columns.coords)

    def _dates(self, agreed: Agreed) -> tuple[Floats, Ints]:
        """The different dates of every column of dates (columns, dates), and the rows at each; NaN fills up."""
        found = []
        for name in agreed.columns.dates:
            times = as_times(self.table[name][self.train], agreed.written[name])
            found.append(np.unique(times[~np.isnan(times)], return_counts=True))
        longest = max((len(times) for times, _ in found), default=0)
        dates, rows = np.full((len(found), longest), np.nan), np.zeros((len(found), longest), dtype=np.int64)
        for k, (times, counts) in enumerate(found):
            dates[k, : len(times)], rows[k, : len(times)] = times, counts
        return dates, rows

    def _labels(self) -> list[Any] | None:
        """The labels of training rows, if they may be classes; None for numbers."""
        known = self.table[self.settings.target][self.train]
        found = sorted(known.map(plain_value).unique().tolist(), key=lambda value: (str(type(value)), value))
        texts = any(isinstance(label, str | bool) for label in found)
        return found if texts or self.settings.task == "classification" or len(found) <= 2 else None

    # ------------------------------------------------------------------ encoding

    def scale(self, encoder: Encoder, target: Target, centre: Floats, target_centre: float) -> Answer:
        """Sums and squares of encoded features and of the target."""
        self.encoder = encoder
        self.columns = replace(
            self.columns,
            numbers=tuple(each.name for each in encoder.numbers),
            categories=tuple(each.name for each in encoder.categories),
        )
        raw = np.ascontiguousarray(encoder.transform(plain(self.table[self.train], self.columns)).T)
        about = target.encode(self.table[self.settings.target])[self.train] - target_centre
        if target.kind == "count" and (about < 0).any():
            raise InputError("Expected counts ≥ 0 as the target, got smaller ones: correct them, or set another task.")
        squares = float((about**2).sum()) if not target.classes else 0.0
        return {}, {
            "sums": raw.sum(axis=1),
            "squares": ((raw - centre[:, None]) ** 2).sum(axis=1),
            "target_squares": np.float64(squares),
        }

    def encode(self, encoder: Encoder, target: Target, fold_count: int, starts: Floats, node_folds: Ints) -> Answer:
        """Encode all rows, and make the parts of cross-validation."""
        self.encoder, self.target = encoder, target
        X = encoder.transform(plain(self.table, self.columns))
        y = target.encode(self.table[self.settings.target])
        if np.isnan(y[self.train]).any():
            raise InputError("Expected a target in every training row, got a class that nobody has agreed on.")
        unseen = int(np.isnan(y[self.held_out]).sum())  # test rows of classes that no training row has
        self.rows = Rows(X, y, self.owner)
        self.training, self.test = self.rows.take(self.train), self.rows.take(self.held_out & ~np.isnan(y))
        self.folds = self._folds(fold_count, starts, node_folds)
        self.whole_nodes = bool(len(node_folds))  # whether whole nodes are predicted
        count, owner = len(self.nodes), self.training.owner
        parts = [np.bincount(owner[learnt], minlength=count) for learnt in self.parts]
        held = np.array([held.sum() for _, held in self.folds])
        return {}, {"part_rows": np.stack(parts), "held": held, "unseen": np.int64(unseen)}

    def _folds(self, count: int, starts: Floats, node_folds: Ints) -> list[Fold]:
        if self.settings.time:
            return list(windows_between(self.times[self.train], starts))
        owner = self.training.owner
        drawn = row_folds(self.numbers[owner], count, self.settings.seed, VALIDATION) if len(owner) else owner
        fold = node_folds[owner] if len(node_folds) else drawn
        return [(fold != part, fold == part) for part in range(count)]

    @property
    def window_count(self) -> int:
        """Number of windows of time that are predicted; one where no later times are."""
        return len(self.folds) if self.settings.time else 1

    @cached_property
    def window(self) -> Ints:
        """The window of time that every training row is predicted in, −1 if in none; 0 where no later times are."""
        return held_in(self.folds) if self.settings.time else np.zeros(len(self.training.y), dtype=np.int64)

    @property
    def parts(self) -> list[Bools]:
        """What is learnt from: the training rows without each part, then all of them."""
        return [*(learnt for learnt, _ in self.folds), np.ones(len(self.training.y), dtype=bool)]

    @cached_property
    def part_data(self) -> list[Data]:
        """The rows of every part, at their nodes."""
        return [self._data(self.training.take(learnt)) for learnt in self.parts]

    def _data(self, rows: Rows) -> Data:
        return Data.from_rows(rows.X, rows.y, rows.owner, len(self.nodes))

    def part(self, number: int) -> SiteRows:
        """The rows of a part with the labels of a score, as a site of a federation has them.

        Parts have one number for each score: ``part · scores + score``.
        """
        most = len(self.part_data) * self.target.outputs
        if not 0 <= number < most:
            raise WireError(f"Expected a part from 0 to {most - 1}, got {number}.")
        data = self._labelled(*divmod(number, self.target.outputs))
        return SiteRows(self.nodes, self.encoder.get_feature_names_out(), data)

    def _labelled(self, part: int, score: int) -> Data:
        data = self.part_data[part]
        return replace(data, y=labels(self.target, data.y)[score])

    def sample(self, part: int) -> Sample:
        """The rows of a part, as members see them."""
        network = Network(graphs.edgeless(len(self.nodes), self.nodes), self.part_data[part])
        rows, globe = self.training.take(self.parts[part]), on_globe(self.columns.coords)
        return Sample(rows, network, None, None, globe, self.target, self.settings.seed, trend=self.trend)

    def leave_out(self, features: Ints) -> None:
        """Put features that grow with time to zero."""
        if not len(features):
            return
        self.encoder, self._trend_left_out = self.encoder.without(features.tolist()), True
        for name in ("rows", "training", "test"):
            rows = getattr(self, name)
            X = rows.X.copy()
            X[:, features] = 0.0
            setattr(self, name, rows._replace(X=X))
        self.__dict__.pop("part_data", None)

    @property
    def trend(self) -> tuple[int, ...]:
        """The features that grow with time; none if they have been left out."""
        return () if self._trend_left_out else self.encoder.trend(self.settings.time)

    # ------------------------------------------------------------------ sums of derivatives and products

    def derivatives(self, w: Floats, part: Ints, score: Ints, rounding: float) -> Answer:
        """Loss, gradient and Hessian of some models on some parts, summed over rows; kinks are rounded."""
        loss, size = loss_of(self.target), w.shape[1]
        out = {"loss": np.zeros(len(w)), "gradient": np.zeros_like(w), "hessian": np.zeros((len(w), size, size))}
        for number in np.unique(part):
            data = self.part_data[number]
            X, y = np.hstack([data.X, np.ones((len(data.X), 1))]), labels(self.target, data.y)
            for k in np.flatnonzero(part == number):
                value, slope, curvature = rounded(loss, X @ w[k], y[score[k]], rounding)
                steep = self.too_steep(value.sum(), X @ w[k])
                out["loss"][k] = TOO_HIGH if steep else min(value.sum(), TOO_HIGH)
                if out["loss"][k] == TOO_HIGH:  # a step that is too long: it is shortened, wherever it led
                    continue
                out["gradient"][k] = X.T @ slope
                out["hessian"][k] = (X * curvature[:, None]).T @ X
        return {}, out

    def too_steep(self, loss: float, scores: Floats) -> bool:
        """Whether a model of classes is none that was fitted; ``scores``: of the rows whose loss it is.

        Gradients of steep models tell on which side of a plane rows are, and their differences are single rows.
        """
        if self.target.kind != "classes":
            return False
        fits = loss <= WORST * np.log(2.0) * len(scores)
        return not (fits and (scores**2).sum() <= STEEPEST**2 * len(scores))

    def check_origin(self, number: int, w: Floats) -> None:
        """Refuse models to begin with in a lane that are too steep; ``number``: as of ``part``."""
        part, score = divmod(number, self.target.outputs)
        data = self._labelled(part, score)
        scores = np.hstack([data.X, np.ones((len(data.X), 1))]) @ w
        if self.too_steep(rounded(loss_of(self.target), scores, data.y, 0.0)[0].sum(), scores):
            raise WireError("Expected models to begin with that fit the rows of this site, got steeper ones.")

    def traces(self, ridge: float) -> Answer:
        """The curvature of the loss of every node; of several classes that of the first."""
        loss = replace(loss_of(self.target), ridge=ridge)
        return {}, {"trace": loss.bind(self._labelled(len(self.folds), 0)).trace}

    @property
    def _measure(self) -> DeviationDistance:
        return DeviationDistance(len(self.target.classes))

    def kin_sums(self) -> Answer:
        """Sums for a common linear model."""
        sums = [self._measure.sums(data) for data in self.part_data]
        return {}, {"gram": np.stack([gram for gram, _ in sums]), "products": np.stack([each for _, each in sums])}

    def kin(self, pooled: Floats) -> Answer:
        """How the model of every node differs from the common one."""
        found = [self._measure.deviations(data, w) for data, w in zip(self.part_data, pooled, strict=True)]
        return {}, {"deviations": np.stack(found)}


def _counts(column: pandas.Series) -> dict[str, Any]:
    """How often every category occurs, without the names of rare ones."""
    found = Counter(map(str, column))
    named = {name: count for name, count in found.items() if count >= LEAST_NAMED}
    return {"counts": named, "others": sum(found.values()) - sum(named.values())}
