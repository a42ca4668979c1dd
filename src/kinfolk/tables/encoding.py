"""Encoding: how features become numbers on one scale, learnt from the training rows alone."""

from __future__ import annotations

import warnings
from typing import Any, Self

import numpy as np
import pandas
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from kinfolk.checks import InputError, listing
from kinfolk.tables.columns import Columns, as_texts
from kinfolk.typing import Floats

MOST_CATEGORIES = 20  # more are joined into one
DAY = 86_400.0  # seconds
PERIODS = {"hour": DAY, "weekday": 7 * DAY, "season": 365.25 * DAY}


def as_times(column: pandas.Series) -> Floats:
    """Dates as seconds, numbers as they are; NaN where missing."""
    if pandas.api.types.is_numeric_dtype(column):
        return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
    times = pandas.to_datetime(column, errors="coerce", format="ISO8601", utc=True)
    seconds = (times - pandas.Timestamp(0, tz="UTC")).dt.total_seconds()
    return np.asarray(seconds, dtype=np.float64)


class Calendar(TransformerMixin, BaseEstimator):
    """Dates as numbers: the hour, the weekday and the season as points on a circle, and days since the middle.

    A circle is used only if the dates it was fitted to go all the way round: nothing is known of the rest of it.

    Parameters
    ----------
    trend : whether days count; not where later dates are to be predicted.

    >>> days = pandas.DataFrame({"day": pandas.date_range("2026-01-01", periods=14)})
    >>> Calendar().fit(days).get_feature_names_out()
    array(['day days', 'day weekday sin', 'day weekday cos'], dtype=object)
    """

    def __init__(self, trend: bool = True) -> None:
        self.trend = trend

    def fit(self, X: pandas.DataFrame, y: Any = None) -> Self:
        """Note where the middle of the dates is, and which circles they complete."""
        times = {str(name): as_times(X[name]) for name in X.columns}
        known = {name: column[~np.isnan(column)] for name, column in times.items()}
        self.middle_ = {name: float(column.mean()) if len(column) else 0.0 for name, column in known.items()}
        self.circles_ = {name: _circles(column) for name, column in known.items()}
        return self

    def transform(self, X: pandas.DataFrame) -> Floats:
        """The dates as numbers; a missing date is in the middle."""
        parts = [np.empty((len(X), 0))]
        for name, middle in self.middle_.items():
            times = as_times(X[name])
            wrong = np.isnan(times) & X[name].notna().to_numpy()
            if wrong.any():
                shown = X[name][wrong].iloc[0]
                raise InputError(f"Expected dates such as 2026-01-31 in column {name!r}, got {shown!r}: rewrite them.")
            times = np.where(np.isnan(times), middle, times)
            parts += [(times[:, None] - middle) / DAY] if self.trend else []
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
    """The circles that some times go round at least once, stopping at two places at least."""
    known = np.unique(times)
    if len(known) < 2:
        return []
    resolution = float(np.diff(known).min())
    span = float(known[-1] - known[0]) + resolution
    return [name for name, period in PERIODS.items() if 2 * resolution <= period <= span]


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
        out[name] = as_texts(table[name]).where(table[name].notna(), "missing").to_numpy(dtype=object)
    for name in columns.dates:
        out[name] = table[name].to_numpy()
    return pandas.DataFrame(out, index=table.index, columns=list(columns.features))


def encode(encoder: ColumnTransformer, table: pandas.DataFrame, columns: Columns) -> Floats:
    """The features of a table as numbers (rows, numbers); a category never seen before is like a rare one, or none."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Found unknown categories", UserWarning)
        return np.asarray(encoder.transform(plain(table, columns)), dtype=np.float64)
