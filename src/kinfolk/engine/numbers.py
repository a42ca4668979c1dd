"""Numbers as people write them."""

from __future__ import annotations

import math
from typing import Any

import pandas

TOO_LONG = 1e15  # from here on a power of ten is easier to read


def number(value: Any, digits: int = 3) -> str:
    """A number in few digits, as a person writes it.

    >>> number(1234567.0), number(0.012345), number(12.0), number(float("nan")), number(1e30)
    ('1,234,567', '0.0123', '12', '–', '1.00e+30')
    """
    if value is None or pandas.isna(value):
        return "–"
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if value < 0:
        return "−" + number(-value, digits)
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    if decimals > digits + 2 or abs(value) >= TOO_LONG:
        return f"{value:.{digits - 1}e}"
    text = f"{value:,.{max(decimals, 0)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
