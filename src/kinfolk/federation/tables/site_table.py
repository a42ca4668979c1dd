"""The table of one site. Each method does one work on its rows and returns what leaves: sums, or numbers per node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas

from kinfolk.checks import InputError
from kinfolk.engine.protocol import Arrays
from kinfolk.engine.wire import WireError
from kinfolk.federation.rows import SiteRows
from kinfolk.federation.tables.agreeing import Agreed, Description
from kinfolk.federation.tables.kept import SiteBlend
from kinfolk.network import graphs
from kinfolk.network.data import Data
from kinfolk.network.folds import places_of_rows, row_folds
from kinfolk.network.network import Network
from kinfolk.objective.local_losses import LinearLosses
from kinfolk.report.facts import Role, on_globe
from kinfolk.similarity import DeviationDistance
from kinfolk.tables.blend import blended, error_products
from kinfolk.tables.columns import as_numbers, node_names, plain_value
from kinfolk.tables.dates import as_times
from kinfolk.tables.encoding import Encoder, plain
from kinfolk.tables.families import family_of
from kinfolk.tables.held_out import HeldOutErrors
from kinfolk.tables.intervals import Intervals, Moments, Shrinkage
from kinfolk.tables.members.member import Sample
from kinfolk.tables.members.scores import LinearScores, loss_of, predictions
from kinfolk.tables.members.slopes import (
    Eliminated,
    Gathered,
    Strengths,
    eliminated,
    gathered,
    height,
    output_losses,
    own_steps,
    strengths_of,
)
from kinfolk.tables.members.together import Together
from kinfolk.tables.places import node_places, row_places
from kinfolk.tables.rows import Rows
from kinfolk.tables.settings import Settings
from kinfolk.tables.splits import VALIDATION, Fold, table_times, windows_between
from kinfolk.tables.target import MANY_CLASSES, Target, known_targets
from kinfolk.typing import Bools, Floats, Ints

LEAST_NAMED = 5  # rows: a category with fewer at a site is not named by it
BIN_EDGES = np.sinh(np.linspace(-np.arcsinh(1e3), np.arcsinh(1e3), 4_001))  # of residuals; at 2 they are .009 apart
Answer = tuple[dict[str, Any], Arrays]


@dataclass
class _Slopes:
    """The fits of random slopes, as far as they are: one for every part and value."""

    strengths: list[Strengths]
    losses: list[LinearLosses]  # by part
    w0: Floats  # (parts, values, width)
    u: list[list[Floats]]  # (parts, values) of (nodes, width)
    kept: list[dict[int, Eliminated]]  # by part and value


class SiteTable:
    """The rows of one site, and what has been worked out of them."""

    def __init__(self, table: pandas.DataFrame, units: Mapping[str, str]) -> None:
        self.given, self.units = table.rename(columns=str), units
        self.settings: Settings | None = None
        self.predicted: dict[str, Floats] = {}  # by member, (values, training rows, ...) of rows not learnt from
        self.models: dict[str, LinearScores] = {}  # by member, when all is done
        self.weights: dict[str, float] = {}
        self.intervals: Intervals | None = None

    # ------------------------------------------------------------------ what is there

    def describe(self, settings: Settings) -> Answer:
        """Names and kinds, and how many rows there are at each time if later ones are tested."""
        table = self.given
        if settings.target in table:
            table = table[known_targets(table[settings.target])]
        if settings.time in table:
            table = table[table[settings.time].notna()]
        description = Description.of(table, settings, self.units)
        self.settings, self.table, self.nodes = settings, table, description.nodes
        times, rows = np.unique(self.times, return_counts=True) if settings.time else (np.empty(0), np.empty(0))
        return description.to_json(), {"times": times, "time_rows": rows.astype(np.int64)}

    @cached_property
    def times(self) -> Floats:
        """The times of all rows, where later ones are tested."""
        assert self.settings is not None
        assert self.settings.time is not None
        return table_times(self.table, self.settings.time)

    @cached_property
    def owner(self) -> Ints:
        """The own number of the node of every row."""
        names = node_names(self.table, self._settings.node)
        return np.asarray(np.searchsorted(np.array(self.nodes, dtype=object), names), dtype=np.int64)

    @property
    def _settings(self) -> Settings:
        if self.settings is None:
            raise WireError("Expected a table that was described first, got another question.")
        return self.settings

    def count(self, agreed: Agreed, numbers: Ints, cut: float) -> Answer:
        """Split; sums of columns of training rows, categories and classes, and where nodes are."""
        settings, columns = self._settings, agreed.columns
        self.columns, self.numbers = columns, numbers
        self.held_out = self.times > cut if settings.time else self._random_rows(settings)
        self.train = ~self.held_out
        rows = plain(self.table[self.train], columns)
        dates, date_rows = self._dates(agreed)
        count = len(self.nodes)
        text = {"categories": {name: _counts(rows[name]) for name in columns.categories}, "labels": self._labels()}
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
        target = as_numbers(self.table[self._settings.target])[0][self.train]
        return {}, {
            "known": (~np.isnan(values)).sum(axis=1),
            "sums": np.nansum(values, axis=1),
            "target_sum": np.float64(0.0 if np.isnan(target).any() else target.sum()),
        }

    def _random_rows(self, settings: Settings) -> Bools:
        return places_of_rows(self.numbers[self.owner], settings.seed) < float(settings.test)

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
        known = self.table[self._settings.target][self.train]
        labels = sorted(known.map(plain_value).unique().tolist(), key=lambda value: (str(type(value)), value))
        texts = any(isinstance(label, str | bool) for label in labels)
        as_asked = self._settings.task == "classification" and len(labels) <= MANY_CLASSES
        return labels if texts or as_asked or len(labels) <= 2 else None

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
        about = target.encode(self.table[self._settings.target])[self.train] - target_centre
        squares = float((about**2).sum()) if target.kind == "number" else 0.0
        return {}, {
            "sums": raw.sum(axis=1),
            "squares": ((raw - centre[:, None]) ** 2).sum(axis=1),
            "target_squares": np.float64(squares),
        }

    def encode(self, encoder: Encoder, target: Target, fold_count: int, starts: Floats, node_folds: Ints) -> Answer:
        """Encode all rows, and make the parts of cross-validation."""
        self.encoder, self.target = encoder, target
        X = encoder.transform(plain(self.table, self.columns))
        y = target.encode(self.table[self._settings.target])
        if np.isnan(y[self.train]).any():
            raise InputError("Expected a target in every training row, got a class that nobody has agreed on.")
        self.rows = Rows(X, y, self.owner)
        self.training, self.test = self.rows.take(self.train), self.rows.take(self.held_out & ~np.isnan(y))
        self.folds = self._folds(fold_count, starts, node_folds)
        self.whole_nodes = bool(len(node_folds))  # whether whole nodes are predicted
        count, owner = len(self.nodes), self.training.owner
        parts = [np.bincount(owner[learnt], minlength=count) for learnt in self.parts]
        held = np.array([held.sum() for _, held in self.folds])
        return {}, {"part_rows": np.stack(parts), "held": held}

    def _folds(self, count: int, starts: Floats, node_folds: Ints) -> list[Fold]:
        if self._settings.time:
            return list(windows_between(self.times[self.train], starts))
        owner = self.training.owner
        drawn = row_folds(self.numbers[owner], count, self._settings.seed, VALIDATION) if len(owner) else owner
        fold = node_folds[owner] if len(node_folds) else drawn
        return [(fold != part, fold == part) for part in range(count)]

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
        """The rows of a part, as a site of a federation has them."""
        if not 0 <= number < len(self.part_data):
            raise WireError(f"Expected a part from 0 to {len(self.part_data) - 1}, got {number}.")
        return SiteRows(self.nodes, self.encoder.get_feature_names_out(), self.part_data[number])

    # ------------------------------------------------------------------ one model for all, and nodes alone

    def derivatives(self, w: Floats, part: Ints) -> Answer:
        """Loss, gradient and Hessian of some models on some parts, summed over rows."""
        loss, width = loss_of(self.target), w.shape[1]
        out = {"loss": np.zeros(len(w)), "gradient": np.zeros_like(w), "hessian": np.zeros((len(w), width, width))}
        for number in np.unique(part):
            data = self.part_data[number]
            X = _with_ones(data.X)
            for k in np.flatnonzero(part == number):
                z = X @ w[k]
                out["loss"][k] = loss.value(z, data.y).sum()
                out["gradient"][k] = X.T @ loss.slope(z, data.y)
                out["hessian"][k] = (X * loss.curvature(z, data.y)[:, None]).T @ X
        return {}, out

    def pooled(self, name: str, w: Floats) -> Answer:
        """One model for all predicts what it has not seen."""
        return self._validated(name, w.shape[1], lambda fold, rows: [_with_ones(rows.X) @ each for each in w[fold]])

    def _validated(self, name: str, count: int, scores: Callable[[int, Rows], Sequence[Floats]]) -> Answer:
        """Predict every fold with all values from linear scores; sums of losses (values, folds)."""
        classes = [len(self.target.classes)] if self.target.classes else []
        predicted = np.full((count, len(self.training.y), *classes), np.nan, dtype=np.float32)
        for fold, (_, held) in enumerate(self.folds):
            for k, each in enumerate(scores(fold, self.training.take(held))):
                predicted[k, held] = predictions(self.target, each[None])
        return self._judged(name, predicted)

    def _judged(self, name: str, predicted: Any) -> Answer:
        """Keep predictions, with those of one model for all where there are none; sums of losses (values, folds)."""
        if "fallback" in self.predicted:
            predicted = np.where(np.isnan(predicted), self.predicted["fallback"], predicted)
        self.predicted[name] = predicted
        losses = np.zeros((len(predicted), len(self.folds)))
        for fold, (_, held) in enumerate(self.folds):
            y = self.training.y[held]
            losses[:, fold] = [self.target.loss(each[held].astype(np.float64), y).sum() for each in predicted]
        return {}, {"losses": losses}

    def alone(self, pooled: str, best: int, without: Ints, ridges: Floats) -> Answer:
        """Every node alone, with each ridge term; from now on the best model for all stands in where there is none."""
        self.predicted["pooled"] = self.predicted[pooled]
        self.predicted["fallback"] = self.predicted[pooled][best]
        self._leave_out(without)
        member = self._alone_member
        values = [(float(ridge),) for ridge in ridges]
        first = self.predicted["pooled"]
        predicted = np.full((len(values), *first.shape[1:]), np.nan, dtype=np.float32)
        for number, (_, held) in enumerate(self.folds):
            asked = self.training.take(held)
            for k, each in enumerate(member.predictions(self._sample(number), values, asked)):
                predicted[k, held] = each
        return self._judged("alone", predicted)

    def _leave_out(self, features: Ints) -> None:
        """Put features that grow with time to zero."""
        if not len(features):
            return
        self.encoder = self.encoder.without(features.tolist())
        for name in ("rows", "training", "test"):
            rows = getattr(self, name)
            X = rows.X.copy()
            X[:, features] = 0.0
            setattr(self, name, rows._replace(X=X))
        self.__dict__.pop("part_data", None)

    @cached_property
    def _alone_member(self) -> Together:
        return Together(family_of(self._settings.model, self.target).baselines()[1])

    def _sample(self, part: int) -> Sample:
        data = self.part_data[part]
        network = Network(graphs.edgeless(len(self.nodes), self.nodes), data)
        rows = self.training.take(self.parts[part])
        return Sample(rows, network, None, None, on_globe(self.columns.coords), self.target, self._settings.seed)

    # ------------------------------------------------------------------ random slopes

    def slopes_begin(self, strengths: Floats, ridge: float) -> Answer:
        """Start all fits of random slopes at zero."""
        losses = [output_losses(self._sample(part))[0] for part in range(len(self.parts))]
        count, width = len(strengths), losses[0].width
        each = [strengths_of((mu0, mu1), ridge, width - 1) for mu0, mu1 in strengths.tolist()]
        u = [[np.zeros((len(self.nodes), width)) for _ in each] for _ in losses]
        self._slopes = _Slopes(each, losses, np.zeros((len(losses), count, width)), u, [{} for _ in losses])
        every = np.ones((len(losses), count), dtype=bool)
        return {}, {"height": self._heights(self._slopes.w0, u, every), **self._gathered(every)}

    def _gathered(self, left: Bools) -> dict[str, Any]:
        """What is left to solve for the common models of fits that go on, summed over nodes."""
        fits = self._slopes
        parts, values, width = fits.w0.shape
        common, pull = np.zeros((parts, values, width, width)), np.zeros((parts, values, width))
        at_zero = not fits.w0.any()
        for part, losses in enumerate(fits.losses):
            first = gathered(losses, np.zeros((losses.node_count, width))) if at_zero else None
            for k in np.flatnonzero(left[part]).tolist():
                strengths = fits.strengths[k]
                sent: Gathered = first or gathered(losses, fits.w0[part, k] + fits.u[part][k])
                reduced, kept = eliminated(sent, strengths, fits.u[part][k])
                common[part, k], pull[part, k] = reduced
                fits.kept[part][k] = kept
        return {"common": common, "pull": pull}

    def _heights(self, w0: Floats, u: list[list[Floats]], left: Bools) -> Floats:
        """The objective of fits that go on (parts, values), but for what draws the common model; zero for others."""
        fits, out = self._slopes, np.zeros(w0.shape[:2])
        for part, k in np.argwhere(left).tolist():
            strengths = fits.strengths[k]._replace(common=np.zeros(w0.shape[2]))
            out[part, k] = height(fits.losses[part], strengths, w0[part, k], u[part][k])
        return out

    def _moved(self, step: Floats, size: Floats) -> tuple[Floats, list[list[Floats]]]:
        """All fits after a step of so many parts; where that is none, they stay."""
        fits = self._slopes
        u = [list(each) for each in fits.u]
        for part, k in np.argwhere(size > 0).tolist():
            u[part][k] = u[part][k] + size[part, k] * own_steps(fits.kept[part][k], step[part, k])
        return fits.w0 + size[:, :, None] * step, u

    def slopes_try(self, step: Floats, sizes: Floats, left: Bools) -> Answer:
        """The objective of fits that go on after parts of a step."""
        return {}, {"height": np.stack([self._heights(*self._moved(step, size * left), left) for size in sizes])}

    def slopes_move(self, step: Floats, size: Floats) -> Answer:
        """Take a step, or part of it; fits that take none are finished."""
        self._slopes.w0, self._slopes.u = self._moved(step, size)
        return {}, self._gathered(size > 0)

    def slopes_end(self) -> Answer:
        """Random slopes predict what they have not seen."""
        fits = self._slopes

        def scores(fold: int, rows: Rows) -> list[Floats]:
            own = [fits.w0[fold, k] + each for k, each in enumerate(fits.u[fold])]
            return [np.einsum("rk,rk->r", _with_ones(rows.X), w[rows.owner]) for w in own]

        return self._validated("slopes", len(fits.strengths), scores)

    # ------------------------------------------------------------------ graphs, and models on them

    def traces(self, ridge: float) -> Answer:
        """The curvature of the loss of every node."""
        loss = replace(loss_of(self.target), ridge=ridge)
        return {}, {"trace": LinearLosses.of(loss, self.part_data[-1]).trace}

    @cached_property
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

    def score(self, name: str, value: Ints, part: Ints, models: Sequence[Floats]) -> Answer:
        """Models on a graph predict what they have not seen; they were learnt by lanes."""
        count = 1 + int(value.max())
        by_cell = {(int(p), int(v)): w for p, v, w in zip(part, value, models, strict=True)}

        def scores(fold: int, rows: Rows) -> list[Floats]:
            X = _with_ones(rows.X)
            return [np.einsum("rk,rk->r", X, by_cell[fold, k][rows.owner]) for k in range(count)]

        return self._validated(name, count, scores)

    # ------------------------------------------------------------------ the blend, and the test

    def products(self, names: Sequence[str], best: Ints, factors: Floats) -> Answer:
        """Products of the errors of members on rows that they had not seen."""
        y = self.training.y
        stacked = np.stack([self.predicted[name][k].astype(np.float64) for name, k in zip(names, best, strict=True)])
        seen = np.isfinite(stacked.reshape(len(stacked), len(y), -1)).all(axis=(0, 2))
        weight = np.zeros(len(y))
        for factor, (_, held) in zip(factors, self.folds, strict=True):
            weight[held] = factor
        found = error_products(stacked[:, seen], y[seen], weight[seen], self.target)
        return {}, {"products": found, "seen": np.int64(seen.sum()), "weight": np.float64(weight.sum())}

    def residuals(self, names: Sequence[str], best: Ints, weights: Floats) -> Answer:
        """Residuals of the blend on rows that it had not seen, as moments by node."""
        unseen = blended([self._unseen(name, k) for name, k in zip(names, best, strict=True)], weights.tolist())
        truth = self.target.decode(self.training.y)
        new = unseen if self.whole_nodes else self.predicted["fallback"]  # what nodes never seen would get
        self._residuals = truth - self.target.decode(unseen), truth - self.target.decode(new)
        values, known = self._residuals[0], ~np.isnan(self._residuals[0])
        self._moments = Moments.of(values[known], self.training.owner[known], len(self.nodes))
        return {}, self._moments._asdict()

    def _unseen(self, name: str, value: int) -> Floats:
        return np.asarray(self.predicted[name][value], dtype=np.float64)

    def reach(self, shrinkage: Floats, spread: float) -> Answer:
        """How far residuals reach, in units of the scale of their node, and those of one model for all; in bins."""
        values, new = self._residuals
        known, shrink = ~np.isnan(values), Shrinkage(*shrinkage.tolist())
        ratio = shrink.ratios(values[known], self.training.owner[known], self._moments)
        return {}, {"inside": _binned(ratio), "outside": _binned(new[~np.isnan(new)] / spread)}

    def keep_intervals(self, shrinkage: Floats, inside: Floats, outside: Floats) -> None:
        """Keep the widths of prediction intervals of the own nodes."""
        sizes, squares, _ = self._moments
        scale = Shrinkage(*shrinkage.tolist()).scale(squares, sizes)
        self.intervals = Intervals(scale, sizes > 0, inside, outside)

    def finish(self, models: Mapping[str, Floats], alone: float, weights: Mapping[str, float],
               control: Mapping[str, float], moments: Floats) -> Answer:  # fmt: skip
        """Keep the models; errors of the test rows, as sums by node and by time. ``models``: w by name."""
        self.models = {name: LinearScores(w[None], self.target) for name, w in models.items()}
        fitted = next(iter(self._alone_member.fits(self._sample(len(self.folds)), [(alone,)])))
        assert fitted.scores is not None
        self.models["alone"], self.weights = fitted.scores, dict(weights)
        test = self.test
        raw = {name: scores.predict(test.X, test.owner) for name, scores in self.models.items()}
        found = {name: np.where(np.isnan(each), raw["pooled"], each) for name, each in raw.items()}
        shown = {name: each for name, each in found.items() if not name.startswith("control ")}
        compared = {Role.FINAL.value: _blend(found, weights), **shown}
        if control:
            compared[Role.CONTROL.value] = _blend(found, control)
        losses = {name: self.target.loss(each, test.y) for name, each in compared.items()}
        self.errors = HeldOutErrors(losses, test.owner, self.target)
        return {"methods": list(losses)}, self._error_sums(moments)

    def _error_sums(self, moments: Floats) -> dict[str, Any]:
        losses, owner, count = np.stack(list(self.errors.rows.values())), self.test.owner, len(self.nodes)
        products = np.zeros((len(losses), len(losses), count))
        for a, first in enumerate(losses):
            for b, second in enumerate(losses):
                products[a, b] = np.bincount(owner, first * second, minlength=count)
        by_time = np.zeros((len(losses) + 1, len(moments)))
        if len(moments):
            when = np.searchsorted(moments, self.times[self.held_out & ~np.isnan(self.rows.y)])
            share = 1 / np.bincount(owner, minlength=count)[owner]
            ones = np.ones((1, len(owner)))
            by_time = np.stack(
                [np.bincount(when, share * each, len(moments)) for each in np.concatenate([losses, ones])]
            )
        return {
            "sizes": np.bincount(owner, minlength=count),
            "sums": np.stack([np.bincount(owner, each, minlength=count) for each in losses]),
            "products": products,
            "nearer": np.array([[int((a < b).sum()) for b in losses] for a in losses]),
            "by_time": by_time,
        }

    def slopes_models(self, best: int) -> Floats:
        """The models of random slopes, learnt from all training rows (nodes, width)."""
        fits = self._slopes
        return np.asarray(fits.w0[-1, best] + fits.u[-1][best])

    def gains(self, method: str, baseline: str, level: float) -> Answer:
        """Relative gains of the test rows, as sums by node; ``level``: the mean error of the baseline at all nodes."""
        gains, count = self.errors.relative_gains(method, baseline, level), len(self.nodes)
        owner = self.test.owner
        return {}, {
            "total": np.bincount(owner, gains, minlength=count),
            "squares": np.bincount(owner, gains**2, minlength=count),
        }

    # ------------------------------------------------------------------ predicting, here

    @property
    def blend(self) -> SiteBlend:
        """What predicts, when all is done."""
        if not self.models:
            raise InputError("Expected a federation that has finished, this one has not: wait.")
        models = {name: self.models[name].w[0] for name in dict.fromkeys(["pooled", *self.weights])}
        return SiteBlend(self.columns, self.encoder, self.target, self.nodes, models, self.weights, self.intervals)


def _blend(found: Mapping[str, Floats], weights: Mapping[str, float]) -> Floats:
    return blended([found[name] for name in weights], list(weights.values()))


def _binned(values: Floats) -> Ints:
    return np.bincount(np.searchsorted(BIN_EDGES, values), minlength=len(BIN_EDGES) + 1)


def bin_middles() -> Floats:
    """A value for every bin of residuals."""
    inner = (BIN_EDGES[1:] + BIN_EDGES[:-1]) / 2
    return np.concatenate([BIN_EDGES[:1], inner, BIN_EDGES[-1:]])


def _with_ones(X: Floats) -> Floats:
    return np.hstack([X, np.ones((len(X), 1))])


def _counts(column: pandas.Series) -> dict[str, Any]:
    """How often every category occurs, without the names of rare ones."""
    found = Counter(map(str, column))
    named = {name: count for name, count in found.items() if count >= LEAST_NAMED}
    return {"counts": named, "others": sum(found.values()) - sum(named.values())}
