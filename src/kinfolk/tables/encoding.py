"""Encoding: how features become numbers on one scale, learnt from the training rows alone. An encoder is plain data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas

from kinfolk.checks import InputError, listing
from kinfolk.tables.columns import Columns, as_numbers, as_texts, plain_value, some_rows
from kinfolk.tables.dates import ISO, READERS, as_times, written_like
from kinfolk.typing import Floats

MOST_CATEGORIES = 20  # more are joined into one
DAY = 86_400.0  # seconds
NO_FEATURE = "(no feature)"  # the name of a column of zeros, where there is nothing to predict from but the node
NOTHING_LEFT = 1e300  # a scale in which any number is next to zero
FARTHEST = 10.0  # deviations from the mean that are left of a number, where later times are predicted
PERIODS = {"hour": DAY, "weekday": 7 * DAY, "season": 365.25 * DAY}


@dataclass(frozen=True)
class NumberColumn:
    """A column of numbers: a missing one becomes the mean, and is marked in a column of its own.

    >>> price = NumberColumn.fit("price", np.array([1.0, np.nan, 4.0, 4.0]))
    >>> price.filled(np.array([np.nan, 2.0])).tolist(), price.marks(np.array([np.nan, 2.0])).tolist()
    ([[3.0], [2.0]], [[1.0], [0.0]])
    """

    name: str
    mean: float | None  # None: all training rows miss it, and only the mark is left
    marked: bool  # whether training rows miss it

    @classmethod
    def fit(cls, name: str, values: Floats) -> NumberColumn:
        """Note the mean of the training rows, and whether some are missing."""
        known = values[~np.isnan(values)]
        return cls(name, float(np.mean(known)) if len(known) else None, len(known) < len(values))

    def filled(self, values: Floats) -> Floats:
        """The numbers (rows, 1), or (rows, 0) where they are left out."""
        if np.isinf(values).any():
            raise InputError(f"Expected finite numbers in column {self.name!r}, got infinity: correct these rows.")
        if self.mean is None:
            return np.empty((len(values), 0))
        return np.where(np.isnan(values), self.mean, values)[:, None]

    def marks(self, values: Floats) -> Floats:
        """Where they are missing (rows, 1), or (rows, 0) where that is not marked."""
        return np.isnan(values)[:, None][:, : int(self.marked)].astype(np.float64)


@dataclass(frozen=True)
class CategoryColumn:
    """A column of categories: 0 or 1 for each; of two only for the second, of many only for the frequent ones.

    One that was never seen is none of them, or among the rest; beside two it is halfway.

    >>> size = CategoryColumn.fit("size", np.array(["s", "m", "m"], dtype=object))
    >>> size.shown, size.numbers(np.array(["s", "m", "xl"], dtype=object)).tolist()
    (('s',), [[1.0], [0.0], [0.5]])
    """

    name: str
    shown: tuple[str, ...]  # those with a number of their own
    rest: bool  # whether there is a number for all others
    zero: str | None = None  # of two categories the one that is 0

    @classmethod
    def fit(cls, name: str, values: Any) -> CategoryColumn:
        """Note the categories of the training rows; the rarest are joined where there are too many."""
        known, counts = np.unique(np.asarray(values, dtype=object), return_counts=True)
        return cls.of_counts(name, dict(zip(map(str, known), counts.tolist(), strict=True)))

    @classmethod
    def of_counts(cls, name: str, counts: Mapping[str, int], *, others: bool = False) -> CategoryColumn:
        """Note categories from how often each occurs; ``others``: there are more, whose names are not known."""
        known = sorted(counts)
        if len(known) > MOST_CATEGORIES:
            order = np.argsort([counts[each] for each in known], kind="stable")
            return cls(name, tuple(known[k] for k in np.sort(order[-(MOST_CATEGORIES - 1) :])), True)
        if len(known) == 2 and not others:
            return cls(name, (known[1],), False, known[0])
        return cls(name, tuple(known), others)

    @property
    def outputs(self) -> list[str]:
        """Names of the numbers."""
        return [f"{self.name}_{value}" for value in (*self.shown, *(["infrequent_sklearn"] if self.rest else []))]

    def numbers(self, values: Any) -> Floats:
        """The numbers of categories (rows, outputs)."""
        count = len(self.shown)
        found = pandas.Index(self.shown, dtype=object).get_indexer(pandas.Index(values, dtype=object))
        out: Floats = np.eye(count + 1)[np.where(found < 0, count, found)][:, : count + self.rest]
        if self.zero is not None:
            out[(found < 0) & (np.asarray(values, dtype=object) != self.zero)] = 0.5
        return out


@dataclass(frozen=True)
class DateColumn:
    """A column of dates: days since the middle; the hour, the weekday and the season as points on a circle.

    A circle is used only if the dates it was fitted to go all the way round: nothing is known of the rest of it.

    >>> days = pandas.Series(pandas.date_range("2026-01-01", periods=14))
    >>> DateColumn.fit("day", days).outputs
    ['day days', 'day weekday sin', 'day weekday cos']
    """

    name: str
    middle: float  # seconds
    circles: tuple[str, ...]  # some of ``PERIODS``
    written: str = ISO  # an example of how they are written

    @classmethod
    def fit(cls, name: str, column: pandas.Series) -> DateColumn:
        """Note where the middle of the dates is, and which circles they complete."""
        written = written_like(column) or ISO
        times = as_times(column, written)
        return cls.of_times(name, times[~np.isnan(times)], written)

    @classmethod
    def of_times(cls, name: str, times: Floats, written: str) -> DateColumn:
        """Note the same of times in seconds."""
        return cls(name, float(times.mean()) if len(times) else 0.0, tuple(_circles(times)), written)

    @property
    def outputs(self) -> list[str]:
        """Names of the numbers."""
        circles = [f"{self.name} {circle} {part}" for circle in self.circles for part in ("sin", "cos")]
        return [f"{self.name} days", *circles]

    def numbers(self, column: pandas.Series) -> Floats:
        """The dates as numbers (rows, outputs); a missing date is in the middle."""
        times = as_times(column, self.written)
        wrong = (np.isnan(times) | pandas.api.types.is_numeric_dtype(column)) & column.notna().to_numpy()
        if wrong.any():
            shown = listing([plain_value(column[wrong].iloc[0])])
            raise InputError(
                f"Expected dates such as {self.written} in column {self.name!r}, got {shown}: rewrite them."
            )
        times = np.where(np.isnan(times), self.middle, times)
        parts = [(times[:, None] - self.middle) / DAY]
        for circle in self.circles:
            angle = 2 * np.pi * times / PERIODS[circle]
            parts.append(np.stack([np.sin(angle), np.cos(angle)], axis=1))
        return np.concatenate(parts, axis=1)


def _circles(times: Floats) -> list[str]:
    """The circles that some times go round at least once, stopping at two places at least."""
    known = np.unique(times)
    if len(known) < 2:
        return []
    resolution = float(np.diff(known).min())
    span = float(known[-1] - known[0]) + resolution
    return [name for name, period in PERIODS.items() if 2 * resolution <= period <= span]


@dataclass(frozen=True, eq=False)
class Encoder:
    """How the features of a table become numbers on one scale. It is data alone; ``fit`` makes one."""

    numbers: tuple[NumberColumn, ...]
    categories: tuple[CategoryColumn, ...]
    dates: tuple[DateColumn, ...]
    centre: Floats  # (outputs,) what is subtracted from each number
    scale: Floats  # (outputs,) what it is then divided by
    farthest: float | None = None  # the most that is left of a column of numbers, above or below zero; None: all of it

    @classmethod
    def fit(cls, rows: pandas.DataFrame, columns: Columns) -> Encoder:
        """Learn from training rows.

        Parameters
        ----------
        rows : pandas.DataFrame
            The features, with one type each, as ``plain`` makes them.
        columns : Columns
            What each column is.

        Returns
        -------
        Encoder
            Numbers and dates get mean 0 and deviation 1. Categories stay 0 and 1, or are 0 where all rows have the
            same: another one, in later rows, then changes nothing.
        """
        bare = cls(
            tuple(NumberColumn.fit(name, _floats(rows[name])) for name in columns.numbers),
            tuple(CategoryColumn.fit(name, rows[name]) for name in columns.categories),
            tuple(DateColumn.fit(name, rows[name]) for name in columns.dates),
            np.zeros(1),
            np.ones(1),
        )
        raw = np.ascontiguousarray(bare.transform(rows).T)  # sums along rows in memory are the more exact ones
        return bare.scaled(raw.mean(axis=1), raw.var(axis=1), len(rows))

    def scaled(self, mean: Floats, variance: Floats, count: int) -> Encoder:
        """The same with mean 0 and deviation 1, given those of ``count`` rows that it encodes.

        The deviation is 1 where it differs from 0 by rounding alone, as in ``StandardScaler``.
        """
        rounding = np.finfo(np.float64).eps * count
        same = variance <= rounding * variance + (rounding * mean) ** 2
        deviation = np.where(same, 1.0, np.sqrt(variance))
        centred = same | np.array(self._scaled)
        return dataclasses.replace(
            self, centre=np.where(centred, mean, 0.0), scale=np.where(self._scaled, deviation, 1.0)
        )

    def for_later_times(self) -> Encoder:
        """The same, with numbers that end ten deviations from the mean.

        What hardly varied so far may change for good: in its deviations, later rows are then so far away that a linear
        model is worth nothing there.
        """
        return dataclasses.replace(self, farthest=FARTHEST)

    @property
    def columns(self) -> set[str]:
        """The columns that it reads."""
        parts: tuple[NumberColumn | CategoryColumn | DateColumn, ...] = (*self.numbers, *self.categories, *self.dates)
        return {column.name for column in parts}

    @property
    def _scaled(self) -> list[bool]:
        """Which outputs get mean 0 and deviation 1."""
        dates = sum(len(column.outputs) for column in self.dates)
        scaled = [True] * len(self._number_names) + [False] * len(self._category_names) + [True] * dates
        return scaled or [False]

    @property
    def _kept_numbers(self) -> list[str]:
        return [column.name for column in self.numbers if column.mean is not None]

    @property
    def _number_names(self) -> list[str]:
        return self._kept_numbers + [f"missingindicator_{column.name}" for column in self.numbers if column.marked]

    @property
    def _category_names(self) -> list[str]:
        return [name for column in self.categories for name in column.outputs]

    def get_feature_names_out(self) -> list[str]:
        """The name of every output."""
        return self._names or [NO_FEATURE]

    @property
    def _names(self) -> list[str]:
        return self._number_names + self._category_names + [name for column in self.dates for name in column.outputs]

    def trend(self, column: str | None) -> tuple[int, ...]:
        """The outputs that grow with the times in a column."""
        grow = () if column is None else (column, f"{column} days")
        return tuple(k for k, name in enumerate(self.get_feature_names_out()) if name in grow)

    def without(self, outputs: Sequence[int]) -> Encoder:
        """The same with some outputs at zero, whatever the rows."""
        scale = self.scale.copy()
        scale[list(outputs)] = NOTHING_LEFT
        return dataclasses.replace(self, scale=scale)

    def transform(self, rows: pandas.DataFrame) -> Floats:
        """The numbers for some rows.

        Parameters
        ----------
        rows : pandas.DataFrame
            The features, with one type each, as ``plain`` makes them.

        Returns
        -------
        Floats
            The numbers (rows, outputs).
        """
        parts = [
            np.zeros((len(rows), 0 if self._names else 1)),
            *(column.filled(_floats(rows[column.name])) for column in self.numbers),
            *(column.marks(_floats(rows[column.name])) for column in self.numbers),
            *(column.numbers(rows[column.name]) for column in self.categories),
            *(column.numbers(rows[column.name]) for column in self.dates),
        ]
        found: Floats = (np.concatenate(parts, axis=1) - self.centre) / self.scale
        if self.farthest is not None:
            numbers = found[:, : len(self._kept_numbers)]
            np.clip(numbers, -self.farthest, self.farthest, out=numbers)
        return found

    def to_json(self) -> dict[str, Any]:
        """What was noted of every column, as JSON can hold it."""
        parts = {
            kind: [list(dataclasses.astuple(column)) for column in getattr(self, kind)]
            for kind in ("numbers", "categories", "dates")
        }
        return parts if self.farthest is None else {**parts, "farthest": self.farthest}

    def to_arrays(self) -> dict[str, Floats]:
        """The scale of the outputs."""
        return {"centre": self.centre, "scale": self.scale}

    @classmethod
    def of(cls, noted: Mapping[str, Any], arrays: Mapping[str, Floats]) -> Encoder:
        """The encoder that ``to_json`` and ``to_arrays`` came from.

        Parameters
        ----------
        noted : Mapping[str, Any]
            What was noted of every column.
        arrays : Mapping[str, Floats]
            The scale of the outputs.

        Returns
        -------
        Encoder
            The same again.

        Raises
        ------
        ValueError, TypeError, KeyError
            If the parts do not fit together.
        """
        numbers = [
            NumberColumn(str(name), None if mean is None else float(mean), bool(marked))
            for name, mean, marked in noted["numbers"]
        ]
        categories = [
            CategoryColumn(str(name), tuple(map(str, shown)), bool(rest), None if zero is None else str(zero))
            for name, shown, rest, zero in noted["categories"]
        ]
        dates = [
            DateColumn(str(name), float(middle), tuple(each for each in circles if PERIODS[each]), _known_way(written))
            for name, middle, circles, written in noted["dates"]
        ]
        centre, scale = (np.asarray(arrays[name], dtype=np.float64) for name in ("centre", "scale"))
        farthest = None if noted.get("farthest") is None else float(noted["farthest"])
        encoder = cls(tuple(numbers), tuple(categories), tuple(dates), centre, scale, farthest)
        for values in (encoder.centre, encoder.scale):
            if values.shape != (len(encoder.get_feature_names_out()),) or not np.isfinite(values).all():
                raise ValueError("a scale that does not fit the columns")
        if farthest is not None and not farthest > 0:
            raise ValueError("numbers that end nowhere")
        return encoder


def _known_way(written: Any) -> str:
    if written not in READERS:
        raise ValueError("dates written in an unknown way")
    return str(written)


def _floats(column: pandas.Series) -> Floats:
    return column.to_numpy(dtype=np.float64, na_value=np.nan)


def plain(table: pandas.DataFrame, columns: Columns) -> pandas.DataFrame:
    """The feature columns with one type each: numbers as floats, categories as texts, dates as they are."""
    missing = [name for name in columns.features if name not in table.columns]
    if missing:
        raise InputError(f"Expected columns {listing(columns.features, 12)}, the table has no {listing(missing)}.")
    out = {}
    for name in columns.numbers:
        out[name], wrong = as_numbers(table[name])
        if wrong.any():
            raise InputError(
                f"Expected numbers in column {name!r}, got {some_rows(table[name], wrong)}: correct these rows."
            )
    for name in columns.categories:
        out[name] = as_texts(table[name]).where(table[name].notna(), "missing").to_numpy(dtype=object)
    for name in columns.dates:
        out[name] = table[name].to_numpy()
    return pandas.DataFrame(out, index=table.index, columns=list(columns.features))


def encode(encoder: Encoder, table: pandas.DataFrame, columns: Columns) -> Floats:
    """The features of a table as numbers (rows, outputs); a category never seen before is like a rare one, or none."""
    return encoder.transform(plain(table, columns))
