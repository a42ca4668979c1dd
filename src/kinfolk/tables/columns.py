"""Columns: which column of a table is what."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas

from kinfolk.checks import InputError, listing
from kinfolk.report.facts import Note, on_globe
from kinfolk.tables.dates import written_like
from kinfolk.tables.settings import Settings
from kinfolk.typing import Bools, Floats

PLACES = (("lat", "lon"), ("latitude", "longitude"), ("lat", "lng"), ("lat", "long"), ("x", "y"))
LARGEST_DEGREES = (90.0, 360.0)  # of latitude and longitude
OTHER_DATE = r"\d{1,2}[./]\d{1,2}[./]\d{2,4}"
MOSTLY = 0.5
FEW = 0.05  # numbers with a larger share of texts among them are categories; with a smaller one there are mistakes
MISSING = ("?", "-", "--", ".", "..", "*", "na", "n/a", "nan", "none", "null", "unknown", "missing")  # among numbers
THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?")  # such as 1,200.50
LARGEST = 1e100  # number: squares of larger ones, added up, may be infinite
FIRST_ROWS = 5  # that a sentence lists
NAMES_OF_ROWS = 0.5  # a text column with a larger share of different values is useless
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
    notes: tuple[Note, ...]  # what was left out, and why

    @property
    def features(self) -> tuple[str, ...]:
        """All columns that a prediction is made from."""
        return self.numbers + self.categories + self.dates


def find_columns(table: pandas.DataFrame, settings: Settings) -> Columns:
    """Which column is what, refusing tables from which nothing can be learnt."""
    check_there(table, settings)
    if table[settings.target].nunique() < 2:
        raise InputError(
            f"Expected a target that varies, column {settings.target!r} has one value only: nothing is to be learnt."
        )
    mark = settings.test if isinstance(settings.test, str) else None
    coords = find_coords(table, settings)
    moving = bool(coords) and not settled(table, settings.node, list(coords))
    chosen = chosen_columns(table, settings, coords, moving)
    usable, notes = _by_kind(table, chosen, settings)
    only_places = bool(coords) and not any(usable) and not settings.features
    if only_places:
        usable = _by_kind(table, coords, settings)[0]
    if not any(usable):
        if settings.features:
            raise InputError(
                f"Expected a feature to predict {settings.target!r} from, got columns that are empty or constant: list "
                "others, or leave the features out."
            )
        notes.append(Note("no features"))
    kind = "only coordinates" if only_places else "coordinates of rows" if moving else "coordinates"
    about = [Note(kind, {"columns": list(coords)})] if coords and not settings.features else []
    about += [] if coords or settings.features else _places_of_some_nodes(table, settings)
    return Columns(settings.node, settings.target, *usable, coords, settings.time, mark, (*about, *notes))


def chosen_columns(
    table: pandas.DataFrame, settings: Settings, coords: tuple[str, ...], moving: bool
) -> tuple[str, ...]:
    """The columns that are named as features, or all that have no other part; ``moving``: rows have own places."""
    taken = {settings.node, settings.target, settings.test, *(() if moving else coords)}
    others = (name for name in table.columns if name not in taken)
    return tuple(dict.fromkeys(settings.features)) or tuple(map(str, others))


def _by_kind(
    table: pandas.DataFrame, chosen: tuple[str, ...], settings: Settings
) -> tuple[tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]], list[Note]]:
    """The usable ones of some columns, as numbers, categories and dates; and why others are left out."""
    found: dict[str, list[str]] = {"number": [], "category": [], "date": []}
    notes = []
    for name in chosen:
        kind = kind_of(table[name], name, settings)
        if kind != "empty column" and table[name].nunique() <= 1:
            kind = "constant column"
        if kind in found:
            found[kind].append(name)
        else:
            notes.append(Note(kind, {"column": name}))
    return (tuple(found["number"]), tuple(found["category"]), tuple(found["date"])), notes


def kind_of(column: pandas.Series, name: str, settings: Settings) -> str:
    """What a column holds: number, category or date; or why it is of no use, as the kind of a note."""
    _check_values(column, name)
    if column.isna().all():
        return "empty column"
    if written_like(column) is not None:
        return "date"
    if name not in settings.categorical and _is_number(column, name):
        return "number"
    if _looks_like_date(column):
        return "unreadable dates"
    return "names of rows" if _names_rows(column) and name not in settings.categorical else "category"


def check_there(table: pandas.DataFrame, settings: Settings) -> None:
    """Refuse a table without the columns that are named, or in which they make no sense."""
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
    for name in (settings.node, settings.target):
        _check_cells(table[name], name)
    lost = int(table[settings.node].isna().sum())
    if lost:
        raise InputError(
            f"Expected a node in every row, column {settings.node!r} has none in {lost:,} rows: fill or drop them."
        )


def find_coords(table: pandas.DataFrame, settings: Settings) -> tuple[str, ...]:
    """The columns of the coordinates, latitude first: those named, or some that look like it."""
    if len(settings.coords) == 2 and settings.coords[1].lower().startswith("lat"):
        return settings.coords[::-1]
    if settings.coords:
        return settings.coords
    lower = {str(name).lower(): str(name) for name in table.columns}
    for pair in PLACES:
        names = [lower[name] for name in pair if name in lower]
        free = len(names) == 2 and not {settings.node, settings.target, settings.time, settings.test} & set(names)
        if free and _are_places(table, settings.node, names):
            return tuple(names)
    if settings.graph == "coordinates":
        raise InputError(
            "Expected columns with coordinates, found none called lat and lon or x and y: name them with coords."
        )
    return ()


def _are_places(table: pandas.DataFrame, node: str, names: list[str]) -> bool:
    """Whether columns place every node: latitudes and longitudes in degrees, or one x and y for each node."""
    read = table[names].apply(pandas.to_numeric, errors="coerce")
    known = read.notna().all(axis=1)
    if len(read[known].drop_duplicates()) < 2:
        return False
    if (read.isna() & table[names].notna()).any(axis=None) or table[node][known].nunique() < table[node].nunique():
        return False
    if not on_globe(tuple(names)):
        return settled(table, node, names) and bool(np.isfinite(read[known]).all(axis=None))
    return bool((np.abs(read[known].to_numpy()) <= LARGEST_DEGREES).all())


def _places_of_some_nodes(table: pandas.DataFrame, settings: Settings) -> list[Note]:
    """A note if latitudes and longitudes are there, but not of every node."""
    lower = {str(name).lower(): str(name) for name in table.columns}
    for names in ([lower[name] for name in pair if name in lower] for pair in PLACES):
        if len(names) == 2 and on_globe(tuple(names)) and settings.target not in names:
            placed = table[settings.node][table[names].notna().all(axis=1)].nunique()
            count = table[settings.node].nunique() - placed
            return [Note("nodes without a place", {"columns": names, "count": count})] if placed and count else []
    return []


def settled(table: pandas.DataFrame, node: str, names: list[str]) -> bool:
    """Whether columns have one value for every node, as places do."""
    return bool((table.groupby(node)[names].nunique() <= 1).to_numpy().all())


def _looks_like_date(column: pandas.Series) -> bool:
    return bool(column.dropna().astype(str).str.match(OTHER_DATE).mean() > MOSTLY)


def _check_values(column: pandas.Series, name: str) -> None:
    _check_cells(column, name)
    if _is_complex(column):
        raise InputError(
            f"Expected real numbers in {name!r}, got complex ones: give real and imaginary parts a column."
        )
    if pandas.api.types.is_float_dtype(column):
        infinite = int(np.isinf(column.to_numpy(dtype=np.float64, na_value=np.nan)).sum())
        if infinite:
            raise InputError(f"Expected finite numbers in {name!r}, got infinity in {infinite:,} rows: correct these.")
        check_size(np.abs(column.to_numpy(dtype=np.float64, na_value=np.nan)), name)


def check_size(sizes: Floats, name: str) -> None:
    """Refuse numbers whose squares cannot be added up."""
    if np.nanmax(sizes, initial=0.0) > LARGEST:
        raise InputError(f"Expected numbers up to {LARGEST:g} in {name!r}, got {np.nanmax(sizes):g}: change the unit.")


def _check_cells(column: pandas.Series, name: str) -> None:
    """Refuse cells that hold several values, or bytes."""
    held = set(column.map(type)) if column.dtype == object else set()
    if any(issubclass(kind, list | dict | tuple | set | np.ndarray) for kind in held):
        raise InputError(f"Expected one value in each cell of {name!r}, got lists: spread them over columns.")
    if bytes in held:
        raise InputError(f"Expected texts in {name!r}, got bytes: decode them.")


def _is_complex(column: pandas.Series) -> bool:
    if column.dtype == object:
        return bool(column.map(lambda value: isinstance(value, complex)).any())
    return bool(pandas.api.types.is_complex_dtype(column))


def _is_number(column: pandas.Series, name: str) -> bool:
    """Whether a column holds numbers; a column of numbers with a few texts in it is refused."""
    if pandas.api.types.is_bool_dtype(column) or isinstance(column.dtype, pandas.CategoricalDtype):
        return False
    if pandas.api.types.is_numeric_dtype(column):
        return True
    read, wrong = as_numbers(column)
    if wrong.sum() > FEW * column.notna().sum() or np.isnan(read).all():
        return False
    if wrong.any():
        raise InputError(
            f"Expected numbers in column {name!r}, got {some_rows(column, wrong)}: correct these, or list the column "
            "as categorical."
        )
    return True


def as_numbers(column: pandas.Series) -> tuple[Floats, Bools]:
    """Numbers, NaN where they are missing or marked as missing; and which cells hold something else.

    >>> as_numbers(pandas.Series(["1", "2.5", "?", None, "3+", "1,200"]))
    (array([1.0e+00, 2.5e+00,     nan,     nan,     nan, 1.2e+03]),
     array([False, False, False, False,  True, False]))
    """
    if _is_complex(column) or pandas.api.types.is_datetime64_any_dtype(column):
        return np.full(len(column), np.nan), column.notna().to_numpy(dtype=bool)
    if pandas.api.types.is_timedelta64_dtype(column):
        column = column.dt.total_seconds()
    read = pandas.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan, copy=True)
    wrong = np.isnan(read) & column.notna().to_numpy(dtype=bool)
    if wrong.any():
        codes, texts = pandas.factorize(column[wrong].astype(str))
        read[wrong] = np.array([_number_in(text) for text in texts])[codes]
        wrong[wrong] = (~texts.str.strip().str.lower().isin(MISSING))[codes] & np.isnan(read[wrong])
    return read, wrong


def _number_in(text: str) -> float:
    return float(text.replace(",", "")) if THOUSANDS.fullmatch(text.strip()) else np.nan


def some_rows(column: pandas.Series, which: Bools) -> str:
    """The first of some cells, how many there are, and the index of the first rows that have them.

    >>> some_rows(pandas.Series(["dear", "1", "cheap"]), np.array([True, False, True]))
    "'dear' and the like in 2 of 3 rows (index 0, 2)"
    """
    shown = ", ".join(map(str, column.index[which][:FIRST_ROWS])) + (", ..." if which.sum() > FIRST_ROWS else "")
    return f"{column[which].iloc[0]!r} and the like in {which.sum():,} of {len(column):,} rows (index {shown})"


def _names_rows(column: pandas.Series) -> bool:
    different = column.nunique()
    return bool(different > FEW_TEXTS and different > NAMES_OF_ROWS * len(column))


def as_texts(column: pandas.Series) -> pandas.Series:
    """Values as text, the same in any kind of file: 3, 3.0 and "3" are one.

    >>> as_texts(pandas.Series([3.0, 4.0])).tolist(), as_texts(pandas.Series(["a", 3])).tolist()
    (['3', '4'], ['a', '3'])
    """
    if column.dtype == object:  # may hold True beside 1, which are one to a hash table
        return column.map(lambda value: str(plain_value(value))).astype(object)
    codes, values = pandas.factorize(column, use_na_sentinel=False)
    texts = np.array([str(plain_value(value)) for value in values], dtype=object)
    return pandas.Series(texts[codes], index=column.index, name=column.name, dtype=object)


def plain_value(value: Any) -> Any:
    """A value as plain Python, so that 1, 1.0 and np.int64(1) are the same."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | float | np.number):
        return int(value) if float(value).is_integer() else float(value)
    return str(value)


def check_names(names: list[str], node: str) -> None:
    """Refuse names of nodes that look the same."""
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(unicodedata.normalize("NFC", name.strip()), name)
        if other != name:
            raise InputError(
                f"Expected nodes in column {node!r} whose names differ by more than spaces, got {other!r}, {name!r}: "
                "write them in one way."
            )


def node_names(table: pandas.DataFrame, node: str) -> Any:
    """The node of every row, as text."""
    return as_texts(table[node]).to_numpy(dtype=object)
