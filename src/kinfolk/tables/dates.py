"""Dates as people write them. A way of writing is known by an example of it, which is what a sentence shows."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from functools import partial

import numpy as np
import pandas

from kinfolk.typing import Floats

ISO = "2026-01-31"
OF_DAY = ("", " %H:%M", " %H:%M:%S")  # what may follow a date


def _iso(texts: pandas.Series) -> pandas.Series:
    return pandas.to_datetime(texts, errors="coerce", format="ISO8601", utc=True)


def _quarters(texts: pandas.Series) -> pandas.Series:
    """The first day of each quarter."""
    parts = texts.astype("string").str.extract(
        r"(?i)^(?:(?P<a>\d{4})[- ]?Q(?P<b>[1-4])|Q(?P<c>[1-4])[- ]?(?P<d>\d{4}))$"
    )
    year, quarter = parts["a"].fillna(parts["d"]), parts["b"].fillna(parts["c"])
    month = 3 * pandas.to_numeric(quarter, errors="coerce") - 2
    return _iso(year.str.cat(month.astype("Int64").astype("string").str.zfill(2), sep="-"))


def _by_format(form: str, texts: pandas.Series) -> pandas.Series:
    read = [pandas.to_datetime(texts, errors="coerce", format=form + rest, utc=True) for rest in OF_DAY]
    return read[0].fillna(read[1]).fillna(read[2])


READERS: dict[str, tuple[str, Callable[[pandas.Series], pandas.Series]]] = {
    ISO: (r"\d{4}-\d{2}", _iso),
    "2026Q1": (r"(?i)\d{4}[- ]?Q[1-4]$|Q[1-4][- ]?\d{4}$", _quarters),
    "31.01.2026": (r"\d{1,2}\.\d{1,2}\.\d{4}", partial(_by_format, "%d.%m.%Y")),
    "01/31/2026": (r"\d{1,2}/\d{1,2}/\d{4}", partial(_by_format, "%m/%d/%Y")),
    "31/01/2026": (r"\d{1,2}/\d{1,2}/\d{4}", partial(_by_format, "%d/%m/%Y")),
}


def written_like(column: pandas.Series) -> str | None:
    """An example of how the dates of a column are written; None if they are no dates, or day and month may be mixed up.

    >>> written_like(pandas.Series(["01/31/2026", "02/01/2026"])), written_like(pandas.Series(["01/02/2026"]))
    ('01/31/2026', None)
    """
    known = column.dropna()
    if not len(known):
        return None
    if pandas.api.types.is_datetime64_any_dtype(column) or isinstance(known.iloc[0], datetime.date):
        return ISO
    if not pandas.api.types.is_string_dtype(column):
        return None
    first, texts = str(known.iloc[0]), known.drop_duplicates()
    fitting = [
        way for way, (form, read) in READERS.items() if re.match(form, first) and bool(read(texts).notna().all())
    ]
    return fitting[0] if len(fitting) == 1 else None


def as_times(column: pandas.Series, written: str | None = None) -> Floats:
    """Dates as seconds, numbers as they are; NaN where missing or not written as expected.

    >>> as_times(pandas.Series(["2026Q1", None])).tolist(), as_times(pandas.Series([3.5])).tolist()
    ([1767225600.0, nan], [3.5])
    """
    if pandas.api.types.is_numeric_dtype(column):
        return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
    is_text = pandas.api.types.is_string_dtype(column) and not pandas.api.types.is_datetime64_any_dtype(column)
    way = (written or written_like(column) or ISO) if is_text else ISO
    micros = READERS[way][1](column).dt.as_unit("us")
    return np.where(micros.isna(), np.nan, micros.astype(np.int64) / 1e6)
