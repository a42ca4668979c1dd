"""Which rows are held out: for the test, once; and inside the training rows, part after part, in the same manner."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import pandas

from kinfolk.checks import InputError
from kinfolk.network.folds import node_folds, nodes_in_random_order, places_of_rows, row_folds
from kinfolk.report.facts import Note, on_globe
from kinfolk.tables.columns import Columns
from kinfolk.tables.dates import as_times, written_like
from kinfolk.tables.places import map_tiles, node_places
from kinfolk.tables.settings import Settings
from kinfolk.typing import Bools, Floats, Ints

VALIDATION = 1  # keys the draw of folds; that of the test rows has 0
FIRST_PART = 0.5  # of the training times, and of the rows, that no window is taken from
SEVERAL = 3  # different values that a column of times has in the training rows
FEW_TIMES = 10  # in the test: chance events of single times are not averaged out
Fold = tuple[Bools, Bools]  # rows to learn from, and rows to predict


@dataclass(frozen=True, eq=False)
class Folding:
    """The parts of the training rows that are predicted in turn."""

    kind: Literal["rows", "nodes", "times"]  # what the rows of a part share: nothing, whole nodes, or later times
    folds: list[Fold]
    times: Floats | None = None  # (training rows,) where parts are later times
    all_times: Floats | None = None  # (rows,) the same of all rows
    column: str | None = None  # that has these times


# ---------------------------------------------------------------------- the test


def held_together(
    settings: Settings, owner: Ints, place: Floats | None, names: list[str], coords: tuple[str, ...]
) -> Ints:
    """The unit that every row is held out with, if units are: its node, or the region of the map that has its node."""
    if settings.hold != "regions":
        return owner
    if place is None:
        raise InputError("Expected coordinates to hold out regions, found none: name them with coords.")
    nodes = node_places(place, owner, np.ones(len(owner), dtype=bool), names, coords)
    return map_tiles(nodes, on_globe(coords), settings.seed)[owner]


def held_out_rows(table: pandas.DataFrame, columns: Columns, settings: Settings, owner: Ints, units: Ints) -> Bools:
    """The rows that are held out: those marked, the last in time, whole units, or a share of every node's rows.

    A node with a single row is held out as a whole with the probability of the share.
    """
    if len(np.unique(owner)) < 2:
        raise InputError(
            f"Expected at least two nodes, column {columns.node!r} names only {table[columns.node].iloc[0]!r}: "
            "a single data set needs no network."
        )
    if columns.mark is not None:
        held_out = marked(table[columns.mark], columns.mark)
    elif columns.time is not None:
        times = table_times(table, columns.time)
        held_out = times > last_cut(times, float(settings.test))
    elif settings.hold != "rows":
        held_out = _whole_units(units, float(settings.test), settings.seed)
    else:
        held_out = places_of_rows(owner, settings.seed) < float(settings.test)
    if held_out.all() or not held_out.any():
        raise InputError(
            f"Expected rows to learn from and rows to test with, got {held_out.sum():,} test rows of "
            f"{len(table):,}: mark others, or change the share (rows of the same time stay together)."
        )
    return held_out


def marked(column: pandas.Series, name: str) -> Bools:
    """A column of true and false, 1 and 0, or the words train and test."""
    words = column.astype(str).str.strip().str.lower()
    meaning = dict.fromkeys(("true", "t", "1", "1.0", "yes", "y", "test"), True)
    meaning |= dict.fromkeys(("false", "f", "0", "0.0", "no", "n", "train"), False)
    unknown = [word for word in words.unique() if word not in meaning]
    if unknown:
        raise InputError(f"Expected true and false, or test and train, in column {name!r}, got {unknown[0]!r}.")
    return words.map(meaning).to_numpy(dtype=bool)


def last_cut(times: Floats, share: float) -> float:
    """The time after which rows are held out: the share of the rows, or those of the last time if it has more."""
    moments = np.unique(times)
    return min(float(np.quantile(times, 1 - share, method="lower")), float(moments[max(len(moments) - 2, 0)]))


def _whole_units(units: Ints, share: float, seed: int) -> Bools:
    return np.isin(units, whole_units(np.bincount(units), share, seed))


def whole_units(sizes: Ints, share: float, seed: int) -> Ints:
    """Units in random order, until about the share of the rows is held out; ``sizes``: rows of every unit.

    >>> whole_units(np.array([5, 5, 5, 5]), 0.5, seed=0).tolist()
    [0, 2]
    """
    order = nodes_in_random_order(np.flatnonzero(sizes), seed)
    rows = np.cumsum(sizes[order])
    count = 1 + int(np.argmin(np.abs(rows[:-1] - share * sizes.sum()))) if len(order) > 1 else 0
    return order[:count]


def table_times(table: pandas.DataFrame, name: str) -> Floats:
    """The times of all rows, or a sentence."""
    times = known_times(table[name])
    lost = int(np.isnan(times).sum())
    if lost:
        raise InputError(
            f"Expected dates such as 2026-01-31 or numbers in column {name!r}, got others in {lost:,} rows, or dates "
            "whose day and month cannot be told apart: rewrite them."
        )
    return times


def known_times(column: pandas.Series) -> Floats:
    """The times of rows; NaN where there is none.

    >>> known_times(pandas.Series(["2026-01-01", "soon"])).tolist()
    [1767225600.0, nan]
    """
    try:
        return as_times(column)
    except (ValueError, TypeError):
        return np.full(len(column), np.nan)


# ---------------------------------------------------------------------- inside the training rows


def folding_like_the_test(
    table: pandas.DataFrame, columns: Columns, settings: Settings, owner: Ints, units: Ints, held_out: Bools, usual: int
) -> tuple[Folding, list[Note]]:
    """Folds that are to the training rows what the test is to all: later times, nodes without rows, or some rows."""
    name = columns.time or (_later_in(table, columns, owner, held_out) if columns.mark else None)
    found = [Note("later rows", {"column": name})] if name != columns.time else []
    times = table_times(table, name) if name else np.zeros(len(table))
    every, tested, times = times, len(np.unique(times[held_out])), times[~held_out]
    found += [Note("few times", {"count": tested})] if name and 0 < tested < FEW_TIMES else []
    if len(np.unique(times)) > 1:
        return Folding("times", list(windows(times, settings.fold_count(len(times), 3))), times, every, name), found
    wanted = settings.fold_count(len(times), usual)
    units, count = units[~held_out], min(wanted, len(np.unique(units[~held_out])))
    if _new_nodes(columns, settings, owner, held_out) and count > 1:
        found += [Note("new nodes")] if columns.mark else []
        return Folding("nodes", list(_parts(node_folds(units, count, settings.seed, VALIDATION)))), found
    return Folding("rows", list(_parts(row_folds(owner[~held_out], wanted, settings.seed, VALIDATION)))), found


def _new_nodes(columns: Columns, settings: Settings, owner: Ints, held_out: Bools) -> bool:
    """Whether rows of nodes without training rows are to be predicted; without a test, as the settings have it."""
    if not held_out.any():
        return settings.hold != "rows" or len(np.unique(owner)) == len(owner)
    new = ~np.isin(owner[held_out], owner[~held_out])
    return bool(new.mean() > 0.5 if columns.mark else new.all())


def _parts(fold: Ints) -> Iterator[Fold]:
    yield from ((fold != part, fold == part) for part in np.unique(fold))


def windows(times: Floats, count: int) -> Iterator[Fold]:
    """Windows of time, each predicted from all rows before it.

    The first comes after half of the different times and of the rows at least, so that all windows are predicted from
    many rows; the others have about the same number of different times.

    >>> [(int(before.sum()), int(window.sum())) for before, window in windows(np.arange(12.0), 3)]
    [(6, 2), (8, 2), (10, 2)]
    """
    yield from windows_between(times, window_starts(times, count))


def window_starts(times: Floats, count: int) -> Floats:
    """The first time of every window."""
    moments, rows = np.unique(times, return_counts=True)
    enough = 1 + int(np.searchsorted(np.cumsum(rows), FIRST_PART * len(times)))
    first = min(max(int(np.ceil(FIRST_PART * len(moments))), enough), len(moments) - 1)
    cuts = np.linspace(first, len(moments), min(count, len(moments) - first) + 1).round()
    return np.asarray(moments[cuts[:-1].astype(np.int64)])


def windows_between(times: Floats, starts: Floats) -> Iterator[Fold]:
    """The windows that begin at some times, each up to the next."""
    yield from ((times < low, (times >= low) & (times < high)) for low, high in pairwise([*starts, np.inf]))


def held_in(folds: list[Fold]) -> Ints:
    """The number of the fold that predicts each row; −1 if none does.

    >>> held_in(list(windows_between(np.array([1.0, 2.0, 3.0, 4.0]), np.array([2.0, 4.0]))))
    array([-1,  0,  0,  1])
    """
    out = np.full(len(folds[0][1]), -1, dtype=np.int64)
    for number, (_, held) in enumerate(folds):
        out[held] = number
    return out


def _later_in(table: pandas.DataFrame, columns: Columns, owner: Ints, held_out: Bools) -> str | None:
    """The column in which all held-out rows lie beyond the training rows; a date, or the one with fewest values."""
    return next(iter(later_columns(table, columns, owner, held_out)), None)


def later_columns(table: pandas.DataFrame, columns: Columns, owner: Ints, held_out: Bools) -> list[str]:
    """The columns in which all held-out rows lie beyond the training rows: dates first, then those with few values.

    A number that belongs to the node is none: the largest node may be held out by chance.
    """
    found = {}
    for name in (name for name in table.columns if name not in (columns.node, columns.target, columns.mark)):
        dated = written_like(table[name]) is not None
        if dated or (pandas.api.types.is_numeric_dtype(table[name]) and _varies_within(table[name], owner)):
            times = as_times(table[name])
            if _beyond(times[held_out], times[~held_out]):
                found[name] = (not dated, len(np.unique(times)))
    return sorted(found, key=lambda name: found[name])


def _varies_within(column: pandas.Series, owner: Ints) -> bool:
    return bool((column.groupby(owner).nunique() > 1).any())


def _beyond(late: Floats, early: Floats) -> bool:
    if len(late) < 2 or np.isnan(late).any() or np.isnan(early).any() or len(np.unique(early)) < SEVERAL:
        return False
    return bool(late.min() >= early.max() and late.max() > early.max())
