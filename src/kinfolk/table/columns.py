"""Columns: which column of a table is what."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas

from kinfolk.checks import InputError, listing
from kinfolk.table.settings import Settings

PLACES = (("lat", "lon"), ("latitude", "longitude"), ("lat", "lng"), ("lat", "long"), ("y", "x"))
DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
MOSTLY = 0.5  # a text column with a larger share of numbers is a column of numbers with mistakes
NAMES_OF_ROWS = 0.5  # a text column with a larger share of different values tells nothing
FEW_TEXTS = 50  # ... if there are more than these


@dataclass(frozen=True)
class Columns:
    """What each column is for."""

    node: str
    target: str
    numbers: tuple[str, ...]
    categories: tuple[str, ...]
    dates: tuple[str, ...]
    coords: tuple[str, ...]  # (latitude, longitude), (x, y) or none
    time: str | None
    mark: str | None  # the column that marks test rows
    notes: tuple[str, ...]  # what was left out, and why

    @property
    def features(self) -> tuple[str, ...]:
        """All columns that a prediction is made from."""
        return self.numbers + self.categories + self.dates


def find_columns(table: pandas.DataFrame, settings: Settings) -> Columns:
    """Which column is what, refusing tables from which nothing can be learnt."""
    _check_there(table, settings)
    mark = settings.test if isinstance(settings.test, str) else None
    coords = _coords(table, settings)
    taken = {settings.node, settings.target, mark, *coords}
    chosen = settings.features or tuple(map(str, (name for name in table.columns if name not in taken)))
    notes = (
        []
        if not coords or settings.features
        else [
            f"The coordinates {listing(coords)} are places of nodes, no features, unless they are listed as such."
        ]
    )
    numbers, categories, dates = [], [], []
    for name in chosen:
        column = table[name]
        _check_finite(column, name)
        if column.isna().all():
            raise InputError(f"Expected values in column {name!r}, all are missing: leave it out with features.")
        if column.nunique() <= 1:
            notes.append(f"Column {name!r} has the same value everywhere: left out.")
        elif _is_date(column):
            dates.append(name)
        elif name not in settings.categorical and _is_number(column, name):
            numbers.append(name)
        elif _names_rows(column) and name not in settings.categorical:
            notes.append(f"Column {name!r} has another text in most rows: left out.")
        else:
            categories.append(name)
    if not numbers + categories + dates:
        raise InputError(
            f"Expected a feature to predict {settings.target!r} from, got none: the table has no other usable column."
        )
    return Columns(
        settings.node, settings.target, tuple(numbers), tuple(categories), tuple(dates), coords, settings.time, mark,
        tuple(notes),
    )  # fmt: skip


def _check_there(table: pandas.DataFrame, settings: Settings) -> None:
    named = [settings.node, settings.target, *settings.features, *settings.categorical, *settings.coords]
    named += [name for name in (settings.time, settings.test) if isinstance(name, str)]
    missing = [name for name in named if name not in table.columns]
    if missing:
        raise InputError(f"Expected a column {missing[0]!r}, the table has {listing(map(str, table.columns), 12)}.")
    if table.columns.duplicated().any():
        raise InputError(
            f"Expected columns with different names, got {table.columns[table.columns.duplicated()][0]!r} twice."
        )
    if settings.target in settings.features or settings.node == settings.target:
        raise InputError(
            f"Expected features and a node other than the target {settings.target!r}: leave it out of them."
        )
    lost = int(table[settings.node].isna().sum())
    if lost:
        raise InputError(
            f"Expected a node in every row, column {settings.node!r} has none in {lost:,} rows: fill or drop them."
        )
    if table[settings.node].nunique() < 2:
        raise InputError(
            f"Expected at least two nodes, column {settings.node!r} names only {table[settings.node].iloc[0]!r}: "
            "a single data set needs no network."
        )
    if table[settings.target].nunique() < 2:
        raise InputError(
            f"Expected a target that varies, column {settings.target!r} has one value only: nothing is to be learnt."
        )


def _coords(table: pandas.DataFrame, settings: Settings) -> tuple[str, ...]:
    """The columns of the coordinates: those named, or some that look like it."""
    if settings.coords or settings.graph not in ("auto", "coordinates"):
        return settings.coords
    lower = {str(name).lower(): str(name) for name in table.columns}
    for pair in PLACES:
        if all(name in lower for name in pair) and not {lower[name] for name in pair} & {
            settings.node,
            settings.target,
        }:
            return tuple(lower[name] for name in pair)
    if settings.graph == "coordinates":
        raise InputError(
            "Expected columns with coordinates, found none called lat and lon or x and y: name them with coords."
        )
    return ()


def _is_date(column: pandas.Series) -> bool:
    if pandas.api.types.is_datetime64_any_dtype(column):
        return True
    if not pandas.api.types.is_string_dtype(column):
        return False
    known = column.dropna()
    if not DATE.match(str(known.iloc[0])):
        return False
    return bool(pandas.to_datetime(known, errors="coerce", format="ISO8601").notna().all())


def _check_finite(column: pandas.Series, name: str) -> None:
    if pandas.api.types.is_float_dtype(column):
        infinite = int(np.isinf(column.to_numpy(dtype=np.float64, na_value=np.nan)).sum())
        if infinite:
            raise InputError(f"Expected finite numbers in {name!r}, got infinity in {infinite:,} rows: mend these.")


def _is_number(column: pandas.Series, name: str) -> bool:
    """Whether a column holds numbers; a column of numbers with a few texts in it is refused."""
    if pandas.api.types.is_bool_dtype(column) or isinstance(column.dtype, pandas.CategoricalDtype):
        return False
    if pandas.api.types.is_numeric_dtype(column):
        return True
    known = column.dropna()
    read = pandas.to_numeric(known.astype(str), errors="coerce")
    wrong = read.isna().to_numpy()
    if wrong.all() or wrong.mean() > MOSTLY:
        return False
    if wrong.any():
        first = known[wrong].iloc[0]
        raise InputError(
            f"Expected numbers in column {name!r}, got {first!r} and the like in {wrong.sum():,} of {len(known):,} "
            "rows: mend these, or say that the column is categorical."
        )
    return True


def _names_rows(column: pandas.Series) -> bool:
    different = column.nunique()
    return bool(different > FEW_TEXTS and different > NAMES_OF_ROWS * len(column))


def node_names(table: pandas.DataFrame, node: str) -> Any:
    """The node of every row, as text: the same in any kind of file."""
    return table[node].map(str).to_numpy(dtype=object)
