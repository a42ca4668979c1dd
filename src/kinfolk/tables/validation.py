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
from kinfolk.typing import Bools, Floats


@dataclass(frozen=True, eq=False)
class Validation:
    """How a member did on training rows that it had not seen."""

    member: Member
    values: Sequence[Value]
    errors: Floats  # (values, folds)
    shares: Floats  # (folds,) how much each fold counts: by its rows, and later ones more where folds are times
    best: int
    predicted: Floats  # (rows,) or (rows, classes) with the best value; NaN where a row was never predicted
    error: float  # of these predictions

    @property
    def value(self) -> Value:
        """The value with the smallest error: this is where λ is chosen."""
        return self.values[self.best]


def validate(
    prepared: Prepared, member: Member, whole: Sample, samples: Sequence[Sample], fallback: Floats | None,
    journal: Journal, bar: Bar, key: str = "", values: Sequence[Value] | None = None,
) -> Validation:  # fmt: skip
    """Predict every fold from the others with all values; where a node has no model the ``fallback`` predicts."""
    train, folds = prepared.training, prepared.folding.folds
    values = list(member.values(whole) if values is None else values)
    bar.expect(len(values) * len(folds))
    shape = (len(values), *_shape(prepared, len(train.y)))
    predicted, errors = np.full(shape, np.nan, dtype=np.float32), np.empty((len(values), len(folds)))
    for k, (sample, (_, held)) in enumerate(zip(samples, folds, strict=True)):
        before = bar.count

        def predictions(sample: Sample = sample, held: Bools = held) -> Floats:
            out = []
            for each in member.predictions(sample, values, whole.rows.take(held)):
                bar.advance(1, member.name)
                out.append(each.astype(np.float32))
            return np.stack(out)

        found = journal.cached(f"{key}{member.key} {values} {k}", predictions)
        bar.update(before + len(values), member.name)
        if fallback is not None:
            found = np.where(np.isnan(found), fallback[held], found)
        predicted[:, held] = found
        errors[:, k] = [prepared.target.loss(each.astype(np.float64), train.y[held]).mean() for each in found]
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
