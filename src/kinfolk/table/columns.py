"""Columns: which column of a table is what, and how features become numbers, learnt from the training rows alone."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pandas
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from kinfolk.checks import InputError, listing
from kinfolk.table.settings import Settings
from kinfolk.typing import Bools, Floats

PLACES = (("lat", "lon"), ("latitude", "longitude"), ("lat", "lng"), ("lat", "long"), ("y", "x"))
DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
MOST_CATEGORIES = 20  # more are joined into one
MOSTLY = 0.5  # a text column with a larger share of numbers is a column of numbers with mistakes
NAMES_OF_ROWS = 0.5  # a text column with a larger share of different values tells nothing
FEW_TEXTS = 50  # ... if there are more than these
MOST_CLASSES = 10  # a column of at most so many whole numbers is read as classes
DAY = 86_400.0  # seconds
PERIODS = {"hour": DAY, "weekday": 7 * DAY, "season": 365.25 * DAY}


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
            f"The coordinates {listing(coords)} say who is near; they are no features unless they are listed as such."
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


def as_times(column: pandas.Series) -> Floats:
    """Dates as seconds, numbers as they are; NaN where missing."""
    if pandas.api.types.is_numeric_dtype(column):
        return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
    times = pandas.to_datetime(column, errors="coerce", format="ISO8601", utc=True)
    seconds = (times - pandas.Timestamp(0, tz="UTC")).dt.total_seconds()
    return np.asarray(seconds, dtype=np.float64)


class Calendar(TransformerMixin, BaseEstimator):
    """Dates as numbers: the hour, the weekday and the season as points on a circle, and days since the first.

    A circle is used only if the dates it was fitted to go all the way round: nothing is known of the rest of it.

    Parameters
    ----------
    trend : whether days since the first date count; not where later dates are to be predicted.

    >>> days = pandas.DataFrame({"day": pandas.date_range("2026-01-01", periods=14)})
    >>> Calendar().fit(days).get_feature_names_out()
    array(['day days', 'day weekday sin', 'day weekday cos'], dtype=object)
    """

    def __init__(self, trend: bool = True) -> None:
        self.trend = trend

    def fit(self, X: pandas.DataFrame, y: Any = None) -> Self:
        """Note where the dates begin, and which circles they complete."""
        times = {str(name): as_times(X[name]) for name in X.columns}
        self.first_ = {name: float(np.nanmin(column)) for name, column in times.items()}
        self.circles_ = {name: _circles(column) for name, column in times.items()}
        return self

    def transform(self, X: pandas.DataFrame) -> Floats:
        """The dates as numbers; a missing date is as the first."""
        parts = [np.empty((len(X), 0))]
        for name, first in self.first_.items():
            times = as_times(X[name])
            times = np.where(np.isnan(times), first, times)
            parts += [(times[:, None] - first) / DAY] if self.trend else []
            for circle in self.circles_[name]:
                angle = 2 * np.pi * times / PERIODS[circle]
                parts.append(np.stack([np.sin(angle), np.cos(angle)], axis=1))
        return np.concatenate(parts, axis=1)

    def get_feature_names_out(self, input_features: Any = None) -> Any:
        """Names of the numbers."""
        names = []
        for column, circles in self.circles_.items():
            names += [f"{column} days"] if self.trend else []
            names += [f"{column} {circle} {part}" for circle in circles for part in ("sin", "cos")]
        return np.array(names, dtype=object)


def _circles(times: Floats) -> list[str]:
    """The circles that some times go round at least once, without stopping always at the same place."""
    known = np.unique(times[~np.isnan(times)])
    resolution = float(np.diff(known).min()) if len(known) > 1 else np.inf
    span = float(known[-1] - known[0]) + resolution
    return [name for name, period in PERIODS.items() if resolution < period <= span]


def make_encoder(columns: Columns) -> ColumnTransformer:
    """A pipeline of scikit-learn that turns the features into numbers on one scale; missing values are filled."""
    filled = make_pipeline(SimpleImputer(strategy="median", add_indicator=True), StandardScaler())
    one_of = OneHotEncoder(
        drop="if_binary", max_categories=MOST_CATEGORIES, handle_unknown="infrequent_if_exist", sparse_output=False
    )
    later = [name for name in columns.dates if name == columns.time]
    steps = [
        ("numbers", filled, list(columns.numbers)),
        ("categories", one_of, list(columns.categories)),
        ("dates", make_pipeline(Calendar(), StandardScaler()), [name for name in columns.dates if name not in later]),
        ("time", Calendar(trend=False), later),
    ]
    return ColumnTransformer([step for step in steps if step[2]], verbose_feature_names_out=False)


def plain(table: pandas.DataFrame, columns: Columns) -> pandas.DataFrame:
    """The feature columns with one type each: numbers as floats, categories as texts, dates as they are."""
    missing = [name for name in columns.features if name not in table.columns]
    if missing:
        raise InputError(f"Expected columns {listing(columns.features, 12)}, the table has no {listing(missing)}.")
    out = {}
    for name in columns.numbers:
        read = pandas.to_numeric(table[name], errors="coerce")
        wrong = (read.isna() & table[name].notna()).to_numpy()
        if wrong.any():
            raise InputError(
                f"Expected numbers in column {name!r}, got {table[name][wrong].iloc[0]!r}: mend these rows."
            )
        out[name] = read.to_numpy(dtype=np.float64, na_value=np.nan)
    for name in columns.categories:
        out[name] = table[name].astype(object).where(table[name].notna(), "missing").map(str).to_numpy(dtype=object)
    for name in columns.dates:
        out[name] = table[name].to_numpy()
    return pandas.DataFrame(out, index=table.index, columns=list(columns.features))


def encode(encoder: ColumnTransformer, table: pandas.DataFrame, columns: Columns) -> Floats:
    """The features of a table as numbers (rows, numbers); a category never seen before is like a rare one, or none."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Found unknown categories", UserWarning)
        return np.asarray(encoder.transform(plain(table, columns)), dtype=np.float64)


def node_names(table: pandas.DataFrame, node: str) -> Any:
    """The node of every row, as text: the same in any kind of file."""
    return table[node].map(str).to_numpy(dtype=object)


@dataclass(frozen=True)
class Target:
    """The target as learning sees it: numbers with mean 0 and deviation 1, or the numbers of classes."""

    classes: tuple[Any, ...] = ()  # none: a number
    centre: float = 0.0
    spread: float = 1.0

    @property
    def classifies(self) -> bool:
        """Whether classes are predicted."""
        return bool(self.classes)

    @classmethod
    def of(cls, column: pandas.Series, train: Bools, settings: Settings) -> Target:
        """What kind of target it is, from the training rows; its mean and deviation."""
        known = column[train]
        if settings.task == "classification" or (settings.task == "auto" and _looks_like_classes(column)):
            return cls(
                tuple(sorted(known.map(_plain_value).unique().tolist(), key=lambda value: (str(type(value)), value)))
            )
        read = pandas.to_numeric(known, errors="coerce")
        wrong = read.isna().to_numpy()
        if wrong.any() or np.isinf(read).any():
            shown = known[wrong].iloc[0] if wrong.any() else np.inf
            raise InputError(
                f"Expected numbers in the target column {column.name!r}, got {shown!r} and the like: mend these rows, "
                "or say that the task is classification."
            )
        values = read.to_numpy(dtype=np.float64)
        spread = float(values.std())
        if spread == 0:
            raise InputError(
                f"Expected a target that varies, column {column.name!r} has one value in the training rows."
            )
        return cls((), float(values.mean()), spread)

    def encode(self, column: pandas.Series) -> Floats:
        """Targets as learning sees them; NaN for a class that no training row has."""
        if not self.classes:
            return (
                pandas.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan) - self.centre
            ) / self.spread
        number = {value: float(k) for k, value in enumerate(self.classes)}
        return np.array([number.get(_plain_value(value), np.nan) for value in column])

    def shown(self, loss: Any) -> Any:
        """Mean losses as they are shown: root mean squared errors; Brier scores as they are."""
        return loss if self.classes else np.sqrt(loss)

    def decode(self, said: Floats) -> Any:
        """Predictions as the user knows them: numbers in the target's units, or names of classes."""
        if not self.classes:
            return self.centre + self.spread * said
        return np.array(self.classes, dtype=object)[said.argmax(axis=1)]

    def loss(self, said: Floats, y: Floats) -> Floats:
        """The error of every row: squared, in the target's units; for classes the Brier score Σ_k (p_k − 1[y = k])²."""
        if not self.classes:
            return (self.spread * (said - y)) ** 2
        hit: Floats = (y[:, None] == np.arange(len(self.classes))).astype(np.float64)
        return ((said - hit) ** 2).sum(axis=1)


def _plain_value(value: Any) -> Any:
    """A class by its plain Python value, so that 1, 1.0 and np.int64(1) are the same."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | float | np.number):
        return int(value) if float(value).is_integer() else float(value)
    return str(value)


def _looks_like_classes(column: pandas.Series) -> bool:
    known = column.dropna()
    if pandas.api.types.is_bool_dtype(known) or not pandas.api.types.is_numeric_dtype(known):
        read = (
            pandas.to_numeric(known.astype(str), errors="coerce") if not pandas.api.types.is_bool_dtype(known) else None
        )
        return read is None or bool(read.isna().mean() > MOSTLY)
    if known.nunique() == 2:
        return True
    return bool(known.nunique() <= MOST_CLASSES and (known == np.floor(known)).all())
