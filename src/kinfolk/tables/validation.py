"""Validation: what every member predicts for training rows that it had not seen, and which value suits it best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kinfolk.progress import Bar
from kinfolk.tables.blend import row_weights
from kinfolk.tables.journal import Journal
from kinfolk.tables.members.member import Member, Sample, Value
from kinfolk.tables.prepared import Prepared
from kinfolk.typing import Bools, Floats, Ints

LEAST_ROWS, CLEARLY = 100, 3.0  # rows that tell values apart, and standard errors


@dataclass(frozen=True, eq=False)
class Validation:
    """How a member did on training rows that it had not seen."""

    member: Member
    values: Sequence[Value]
    errors: Floats  # (values, folds); NaN where a value was no longer tried
    shares: Floats  # (folds,) how much each fold counts: by its rows, and later ones more where folds are times
    best: int
    predicted: Floats  # (rows,) or (rows, classes) with the best value; NaN where a row was never predicted
    error: float  # of these predictions

    @property
    def value(self) -> Value:
        """The value with the smallest error: this is where λ is chosen."""
        return self.values[self.best]


class Race:
    """Values that may still turn out to be the best: the others are not tried on later folds (Maron and Moore 1994).

    A value drops out if its losses are larger than those of the best so far by three standard errors, row by row.

    >>> race = Race(2)
    >>> race.add(np.stack([np.zeros(200), np.random.default_rng(0).normal(1.0, 1.0, 200)]))
    >>> race.runners.tolist()
    [0]
    """

    def __init__(self, count: int) -> None:
        self.runners: Ints = np.arange(count)
        self._rows = 0
        self._sums, self._products = np.zeros(count), np.zeros((count, count))

    def add(self, losses: Floats) -> None:
        """Add the losses (runners, rows) on a fold."""
        self._rows += losses.shape[1]
        self._sums, self._products = self._sums + losses.sum(axis=1), self._products + losses @ losses.T
        if self._rows >= LEAST_ROWS:
            self._drop_out()

    def _drop_out(self) -> None:
        mean, product = self._sums / self._rows, self._products / self._rows
        best = int(np.argmin(np.where(np.isnan(mean), np.inf, mean)))
        behind, square = mean - mean[best], np.diag(product)
        variance = square - 2 * product[best] + square[best] - behind**2
        kept = behind <= CLEARLY * np.sqrt(np.maximum(variance, 0.0) / self._rows)
        kept[best] = True
        self.runners, self._sums, self._products = self.runners[kept], self._sums[kept], self._products[kept][:, kept]


def validate(
    prepared: Prepared, member: Member, whole: Sample, samples: Sequence[Sample], fallback: Floats | None,
    journal: Journal, bar: Bar, key: str = "", values: Sequence[Value] | None = None,
) -> Validation:  # fmt: skip
    """Predict every fold from the others; where a node has no model the ``fallback`` predicts.

    All values are tried, but those of a member that ``races`` only until they are clearly worse than another.
    """
    train, folds = prepared.training, prepared.folding.folds
    values = list(member.values(whole) if values is None else values)
    bar.expect(len(values) * len(folds))
    shape = (len(values), *_shape(prepared, len(train.y)))
    predicted, errors = np.full(shape, np.nan, dtype=np.float32), np.full((len(values), len(folds)), np.nan)
    race = Race(len(values))
    for k, (sample, (_, held)) in enumerate(zip(samples, folds, strict=True)):
        before, tried = bar.count, [values[each] for each in race.runners]

        def predictions(sample: Sample = sample, held: Bools = held, tried: Sequence[Value] = tried) -> Floats:
            out = []
            for each in member.predictions(sample, tried, whole.rows.take(held)):
                bar.advance(1, member.name)
                out.append(each.astype(np.float32))
            return np.stack(out)

        found = journal.cached(f"{key}{member.key} {tried} {k}", predictions)
        bar.update(before + len(values), member.name)
        if fallback is not None:
            found = np.where(np.isnan(found), fallback[held], found)
        losses = np.stack([prepared.target.loss(each.astype(np.float64), train.y[held]) for each in found])
        for each, prediction, error in zip(race.runners, found, losses.mean(axis=1), strict=True):
            predicted[each, held], errors[each, k] = prediction, error
        if member.races and prepared.folding.kind != "times":  # earlier times need not be like later ones
            race.add(losses)
    shares = fold_shares(prepared)
    mean = np.where(np.isnan(errors), np.inf, errors) @ shares
    best = int(np.argmin(mean))
    return Validation(member, values, errors, shares, best, predicted[best].astype(np.float64), float(mean[best]))


def _shape(prepared: Prepared, rows: int) -> tuple[int, ...]:
    classes = len(prepared.target.classes)
    return (rows, classes) if classes else (rows,)


def fold_shares(prepared: Prepared) -> Floats:
    """How much every fold counts (folds,), with sum 1."""
    weight = row_weights(prepared.folding)
    return np.array([weight[held].sum() for _, held in prepared.folding.folds])
