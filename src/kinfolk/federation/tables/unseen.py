"""Rows that members have not learnt from: their predictions stay at the site, sums of losses leave."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from kinfolk.engine.wire import WireError
from kinfolk.federation.tables.site_table import Answer, SiteTable
from kinfolk.tables.blend import blend_cost, blended, error_products, error_sizes, tamed
from kinfolk.tables.families import family_of
from kinfolk.tables.intervals import Intervals, Moments, Scales, TimeSums
from kinfolk.tables.levels import SLOPES, Growth, Level
from kinfolk.tables.members.member import Fitted, Member, Sample, Value
from kinfolk.tables.members.scores import LinearScores
from kinfolk.tables.members.together import Together
from kinfolk.typing import Bools, Floats, Ints

BIN_EDGES = np.sinh(np.linspace(-np.arcsinh(1e3), np.arcsinh(1e3), 4_001))  # of residuals; at 2 they are .009 apart


class Unseen:
    """What members predict of training rows that they have not learnt from, fold by fold.

    Parameters
    ----------
    table : SiteTable
        Has the rows and the folds.
    """

    def __init__(self, table: SiteTable) -> None:
        self.table = table
        self.predicted: dict[str, Floats] = {}  # by member, (values, training rows, ...)
        self.fallback: Floats | None = None  # of one model for all, where a node has no model

    # ------------------------------------------------------------------ members

    def pooled(self, name: str, w: Floats) -> Answer:
        """One model for all predicts what it has not seen; ``w``: (folds, values, scores, width)."""
        return self.validated(name, lambda fold: list(w[fold][:, :, None, :]))

    def alone(self, pooled: str, best: int, without: Ints, ridges: Floats) -> Answer:
        """Every node alone, with each ridge term; from now on the best model for all stands in where there is none."""
        self.predicted["pooled"] = self.predicted[pooled]
        self.fallback = self.predicted[pooled][best]
        self.table.leave_out(without)
        return self.learnt(self.alone_member, [(float(ridge),) for ridge in ridges], self.table.sample)

    @property
    def alone_member(self) -> Together:
        """Every node alone."""
        return Together(family_of(self.table.settings.model, self.table.target).baselines()[1])

    def score(self, name: str, value: Ints, part: Ints, score: Ints, models: Sequence[Floats]) -> Answer:
        """Models on a graph predict what they have not seen; they were learnt by lanes."""
        keys = zip(part.tolist(), value.tolist(), score.tolist(), strict=True)
        w, scores = dict(zip(keys, models, strict=True)), range(self.table.target.outputs)

        def by_value(fold: int) -> list[Floats]:
            return [np.stack([w[fold, k, each] for each in scores]) for k in range(1 + int(value.max()))]

        return self.validated(name, by_value)

    def validated(self, name: str, models: Callable[[int], Sequence[Floats]]) -> Answer:
        """Predict every fold with linear models, (scores, nodes or 1, width) for each value."""

        def predictions(fold: int, held: Bools) -> list[Floats]:
            rows = self.table.training.take(held)
            return [LinearScores(w, self.table.target).predict(rows.X, rows.owner) for w in models(fold)]

        return self._judged(name, predictions)

    def learnt(self, member: Member, values: Sequence[Value], sample: Callable[[int], Sample]) -> Answer:
        """Predict every fold with a member that learns from the rows of this site; ``sample``: from a part.

        Where there are none, one model for all predicts.
        """
        classes = [len(self.table.target.classes)] if self.table.target.classes else []

        def predictions(fold: int, held: Bools) -> Sequence[Floats]:
            if not len(self.table.part_data[fold].y):
                return list(np.full((len(values), int(held.sum()), *classes), np.nan))
            return list(member.predictions(sample(fold), values, self.table.training.take(held)))

        return self._judged(member.name, predictions)

    def predicted_by(self, name: str, fits: Callable[[int], Sequence[Fitted | None]]) -> Answer:
        """Predict every fold with what was learnt of the others, by value; None: nothing was."""
        target = self.table.target
        classes = [len(target.classes)] if target.classes else []

        def predictions(fold: int, held: Bools) -> list[Floats]:
            rows = self.table.training.take(held)
            nothing = np.full((len(rows.y), *classes), np.nan)
            return [nothing if fitted is None else fitted.predict(rows) for fitted in fits(fold)]

        return self._judged(name, predictions)

    def _judged(self, name: str, predictions: Callable[[int, Bools], Sequence[Floats]]) -> Answer:
        """Keep predictions, with those of one model for all where there are none; sums of losses (values, folds)."""
        target, y, folds = self.table.target, self.table.training.y, self.table.folds
        found = [np.asarray(predictions(fold, held), dtype=np.float32) for fold, (_, held) in enumerate(folds)]
        predicted = np.full((len(found[0]), len(y), *found[0].shape[2:]), np.nan, dtype=np.float32)
        for each, (_, held) in zip(found, folds, strict=True):
            predicted[:, held] = each
        if self.fallback is not None:
            predicted = np.where(np.isnan(predicted), self.fallback, predicted)
        self.predicted[name] = predicted
        losses = np.zeros((len(predicted), len(folds)))
        for fold, (_, held) in enumerate(folds):
            losses[:, fold] = [target.loss(each[held].astype(np.float64), y[held]).sum() for each in predicted]
        return {}, {"losses": losses}

    # ------------------------------------------------------------------ weights

    def sizes(self, names: Sequence[str], best: Ints, factors: Floats) -> Answer:
        """How large the errors of members are on rows that they had not seen, where numbers are predicted."""
        stacked, y, weight = self._stacked(names, best, factors)
        return {}, {"sizes": np.float64(weight @ error_sizes(stacked, y)), "weight": np.float64(weight.sum())}

    def products(self, names: Sequence[str], best: Ints, factors: Floats, typical: float) -> Answer:
        """Products of these errors; ``typical``: how large they are in the mean, where numbers are predicted."""
        stacked, y, weight = self._stacked(names, best, factors)
        target, seen = self.table.target, {"seen": np.int64(len(y)), "weight": np.float64(weight.sum())}
        if target.kind == "number":
            weight = tamed(weight, error_sizes(stacked, y), typical)
        return {}, {"products": error_products(stacked, y, weight, target), **seen}

    def costs(self, names: Sequence[str], best: Ints, factors: Floats, weights: Floats) -> Answer:
        """The loss of a blend on rows that its members had not seen, and its derivatives in the weights."""
        stacked, y, weight = self._stacked(names, best, factors)
        cost, slopes = blend_cost(stacked, y, weight, self.table.target, weights)
        told = {"cost": np.float64(cost), "slopes": slopes}
        return {}, {**told, "seen": np.int64(len(y)), "weight": np.float64(weight.sum())}

    def _stacked(self, names: Sequence[str], best: Ints, factors: Floats) -> tuple[Floats, Floats, Floats]:
        """Predictions of members (members, rows, ...), targets and weights, of rows that all have predicted."""
        y = self.table.training.y
        stacked = np.stack([self._best(name, value) for name, value in zip(names, best.tolist(), strict=True)])
        seen = np.isfinite(stacked.reshape(len(stacked), len(y), -1)).all(axis=(0, 2))
        weight = np.zeros(len(y))
        for factor, (_, held) in zip(factors, self.table.folds, strict=True):
            weight[held] = factor
        return stacked[:, seen], y[seen], weight[seen]

    def _best(self, name: str, value: int) -> Floats:
        return np.asarray(self.predicted[name][value], dtype=np.float64)

    # ------------------------------------------------------------------ intervals

    def residuals(self, names: Sequence[str], best: Ints, weights: Floats) -> Answer:
        """Residuals of the blend on rows that it had not seen, as moments by window of time and node."""
        table, target = self.table, self.table.target
        found = [self._best(name, value) for name, value in zip(names, best.tolist(), strict=True)]
        unseen = blended(found, weights.tolist())
        truth = target.decode(table.training.y)
        assert self.fallback is not None
        new = unseen if table.whole_nodes else self.fallback  # what nodes never seen would get
        self._unseen, self._residuals = unseen, (truth - target.decode(unseen), truth - target.decode(new))
        values, known = self._residuals[0], ~np.isnan(self._residuals[0])
        owner, count = table.training.owner, len(table.nodes)
        self._moments = Moments.of(values[known], owner[known], count, table.window[known], table.window_count)
        return {}, self._moments._asdict()

    def levels(self) -> Answer:
        """How many predictions these residuals have, their sum and that of their squares, as learning sees them."""
        known = self._unseen[~np.isnan(self._residuals[0])]
        return {}, {"sums": np.array([len(known), known.sum(), (known**2).sum()])}

    def growth(self, shrinkage: Floats, level: Floats, times: Floats) -> Answer:
        """How residuals change with the level of predictions: sums over all nodes, by window of time."""
        ratio, owner, window, predicted = self._ratios(shrinkage)
        nodes, windows = len(self.table.nodes), self.table.window_count
        found = Growth.of(ratio, _level(level).of(predicted), owner, window, nodes, windows)
        sums = self._by_time(ratio, 0, times)
        return {}, {"squares": found.squares, "time_rows": sums.rows, "time_squares": sums.squares}

    def reach(self, shrinkage: Floats, level: Floats, unit: float, times: Floats) -> Answer:
        """How far residuals reach, in units of the scale of their node, and those of one model for all.

        In bins; and where later times are predicted, as sums by time.
        """
        new = self._residuals[1]
        ratio, owner, _, predicted = self._ratios(shrinkage)
        growing = _level(level)
        ratio = ratio / growing.factor(predicted, self._usual(growing)[owner])
        far = new[~np.isnan(new)] / unit
        sums = [self._by_time(each, kind, times) for kind, each in enumerate((ratio, far))]
        return {}, {
            "inside": _binned(ratio),
            "outside": _binned(far),
            "time_rows": np.stack([each.rows for each in sums]),
            "time_squares": np.stack([each.squares for each in sums]),
        }

    def intervals(self, shrinkage: Floats, level: Floats, inside: Floats, outside: Floats) -> Intervals | None:
        """The widths of prediction intervals of the own nodes; None where there are no quantiles of residuals."""
        if not shrinkage.size:
            return None
        growing = _level(level)
        scales, usual = self._scales(shrinkage), self._usual(growing)
        return Intervals.of_scales(scales, self._moments, inside, outside, usual, growing)

    def _ratios(self, shrinkage: Floats) -> tuple[Floats, Ints, Ints, Floats]:
        """Residuals in units of the scale of their node, their nodes and windows, and what was predicted."""
        table, values = self.table, self._residuals[0]
        known = ~np.isnan(values)
        owner, window = table.training.owner[known], table.window[known]
        ratio = self._scales(shrinkage).ratios(values[known], owner, window, self._moments)
        return ratio, owner, window, table.target.decode(self._unseen[known])

    def _usual(self, level: Level) -> Floats:
        """The mean level of the predictions of every node."""
        table, known = self.table, ~np.isnan(self._residuals[0])
        predicted = table.target.decode(self._unseen[known])
        return level.usual(predicted, table.training.owner[known], len(table.nodes))

    def _by_time(self, values: Floats, kind: int, times: Floats) -> TimeSums:
        """Residuals of a kind, in some unit, added up by time; nothing where no later times are predicted."""
        if not len(times):
            return TimeSums(np.zeros(0, dtype=np.int64), np.zeros(0))
        return TimeSums.of(values, self.table.times[self.table.train][~np.isnan(self._residuals[kind])], times)

    def _scales(self, shrinkage: Floats) -> Scales:
        windows = self.table.window_count
        if shrinkage.shape[1] not in (1, 1 + windows):
            raise WireError(f"Expected scales without each of {windows} windows of time, got {shrinkage.shape[1] - 1}.")
        return Scales.from_array(shrinkage)


def _level(told: Floats) -> Level:
    level = Level(*told.tolist())
    if level.unit < 0 or not SLOPES[0] <= level.slope <= SLOPES[-1]:
        raise WireError("Expected a deviation of predictions of 0 or more and a slope from −1 to 1, got others.")
    return level


def _binned(values: Floats) -> Ints:
    return np.bincount(np.searchsorted(BIN_EDGES, values), minlength=len(BIN_EDGES) + 1)


def bin_middles() -> Floats:
    """A value for every bin of residuals."""
    inner = (BIN_EDGES[1:] + BIN_EDGES[:-1]) / 2
    return np.concatenate([BIN_EDGES[:1], inner, BIN_EDGES[-1:]])
