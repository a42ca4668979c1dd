"""Which rows are held out: for the test, once; and inside the training rows, part after part, to choose."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas

from kinfolk.checks import InputError
from kinfolk.network.folds import places_of_rows, row_folds
from kinfolk.tables.columns import Columns
from kinfolk.tables.encoding import as_times
from kinfolk.tables.settings import Settings
from kinfolk.typing import Bools, Floats, Ints

VALIDATION = 1  # keys the draw of folds; that of the test rows has 0
FIRST_PART = 0.4  # of the training time that no fold is taken from
Fold = tuple[Bools, Bools]  # rows to learn from, and rows to predict


def held_out_rows(table: pandas.DataFrame, columns: Columns, settings: Settings, owner: Ints) -> Bools:
    """The rows that are held out: those marked, the last in time, or a share of every node's rows at random.

    A node with a single row is held out as a whole with the probability of the share.
    """
    if columns.mark is not None:
        held_out = _marked(table[columns.mark], columns.mark)
    elif columns.time is not None:
        times = table_times(table, columns.time)
        held_out = times > np.quantile(times, 1 - float(settings.test), method="lower")
    else:
        held_out = places_of_rows(owner, settings.seed) < float(settings.test)
    if held_out.all() or not held_out.any():
        raise InputError(
            f"Expected rows to learn from and rows to test with, got {held_out.sum():,} test rows of "
            f"{len(table):,}: mark others, or change the share (rows of the same time stay together)."
        )
    return held_out


def _marked(column: pandas.Series, name: str) -> Bools:
    """A column of true and false, 1 and 0, or the words train and test."""
    words = column.astype(str).str.strip().str.lower()
    meaning = dict.fromkeys(("true", "t", "1", "1.0", "yes", "y", "test"), True)
    meaning |= dict.fromkeys(("false", "f", "0", "0.0", "no", "n", "train"), False)
    unknown = [word for word in words.unique() if word not in meaning]
    if unknown:
        raise InputError(f"Expected true and false, or test and train, in column {name!r}, got {unknown[0]!r}.")
    return words.map(meaning).to_numpy(dtype=bool)


def table_times(table: pandas.DataFrame, name: str) -> Floats:
    """The times of all rows, or a sentence."""
    try:
        times = as_times(table[name])
    except (ValueError, TypeError):
        times = np.full(len(table), np.nan)
    lost = int(np.isnan(times).sum())
    if lost:
        raise InputError(
            f"Expected dates such as 2026-01-31 or numbers in column {name!r}, got others in {lost:,} rows."
        )
    return times


def folds(owner: Ints, times: Floats | None, count: int, seed: int) -> Iterator[Fold]:
    """The parts of the training rows that are predicted in turn, from the others, or from those before them."""
    if times is None:
        part = row_folds(owner, count, seed, VALIDATION)
        yield from ((part != fold, part == fold) for fold in range(count))
        return
    for fold in range(count):
        low, high = (
            np.quantile(times, FIRST_PART + (1 - FIRST_PART) * (fold + k) / count, method="lower") for k in (0, 1)
        )
        if (times <= low).any() and ((times > low) & (times <= high)).any():
            yield times <= low, (times > low) & (times <= high)
