"""Numerals: how numbers are written in a text file. What can be read in two ways is refused, with how to write it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import pyarrow
from pyarrow import compute

from kinfolk.checks import InputError

LEADING_ZERO = r"[-+]?0\d+"  # such as in a code of a county
CODE, WHOLE = r"\d+[eE]\d+", r"\d+"  # 1E5 is a name among whole numbers
POWER = r"([eE][-+]?\d+)?"
WAYS = {  # of writing a number with marks in it
    "comma": rf"[-+]?(\d*,(\d{{1,2}}|\d{{4,}})|(0\d*|\d{{4,}})?,\d{{3}}){POWER}",  # surely a decimal comma: 1,5
    "point": rf"[-+]?(\d*\.(\d{{1,2}}|\d{{4,}})|(0\d*|\d{{4,}})?\.\d{{3}}|\d+\.){POWER}",  # surely a decimal point: 1.5
    "maybe comma": r"[-+]?[1-9]\d{0,2},\d{3}",  # 1,234: near one, or above a thousand?
    "maybe point": r"[-+]?[1-9]\d{0,2}\.\d{3}",
    "points between thousands": r"[-+]?\d{1,3}((\.\d{3})+,\d+|(\.\d{3}){2,})",  # 1.234,5
    "commas between thousands": r"[-+]?\d{1,3}((,\d{3})+\.\d+|(,\d{3}){2,})",  # 1,234.5
}
NUMERAL = "|".join([*WAYS.values(), rf"[-+]?\d+{POWER}"])
FIRST = 1_000  # texts that are looked at before all others
DIGIT, SPACE, BEGIN = 1, 2, 3  # what a byte may be
Mark = Literal[".", ","]


def is_coded(texts: Any) -> bool:
    """Whether texts that could be read as numbers are names: some begin with a zero, or look like 1E5 among codes.

    >>> is_coded(["36059", "01001"]), is_coded(["100000", "1E5"]), is_coded(["0.5", "1e-3", "0"])
    (True, True, False)
    """
    texts = _array(texts)
    numbers = f"{LEADING_ZERO}|{NUMERAL}"
    if not (_all(texts[:FIRST], numbers) and _all(texts, numbers)):
        return False  # texts anyway
    return _any(texts, LEADING_ZERO) or (_any(texts, CODE) and _all(texts, f"{CODE}|{WHOLE}"))


def has_doubtful_numeral(raw: bytes, delimiter: str) -> bool:
    """Whether bytes of a file may hold a numeral that is doubtful: quickly, and rather too often than too rarely.

    >>> has_doubtful_numeral(b"a,7.5\\nb,-0.12e-3\\n", ","), has_doubtful_numeral(b"a,7\\nb, 007\\n", ",")
    (False, True)
    """
    cells = np.frombuffer(raw, dtype=np.uint8)
    kind = _kinds(delimiter)[cells]
    first, middle, last = kind[:-2], cells[1:-1], kind[2:]
    begins = (first == BEGIN) | ((first == SPACE) & np.concatenate([[False], kind[:-3] >= SPACE]))
    zero = (middle == ord("0")) & begins & (last == DIGIT)
    between = (first == DIGIT) & (last == DIGIT)
    marks = b"eE" if delimiter == "," else b"eE.,"
    return bool(zero.any() or any((between & (middle == mark)).any() for mark in marks))


def _kinds(delimiter: str) -> Any:
    kinds = np.zeros(256, dtype=np.uint8)
    kinds[list(b"0123456789")] = DIGIT
    kinds[ord(" ")] = SPACE
    kinds[[*b'\n\r"', ord(delimiter)]] = BEGIN
    return kinds


def decimal_mark(columns: Mapping[str, Any], delimiter: str, file: str) -> Mark:
    """The decimal mark of a file, from the texts of its columns; a sentence where that cannot be told.

    >>> decimal_mark({"sales": ["1,5", "2"]}, ";", "t.csv"), decimal_mark({"sales": ["1.5", "1.234"]}, ";", "t.csv")
    (',', '.')
    >>> decimal_mark({"sales": ["1,5", "1.234"]}, ";", "t.csv")
    Traceback (most recent call last):
    kinfolk.checks.InputError: Expected numbers written in one way in 't.csv', got '1,5' and '1.234': write ...
    """
    found = _examples(columns)
    with_commas = found.get("comma") or found.get("points between thousands")
    with_points = found.get("point") or found.get("commas between thousands")
    if delimiter == ",":  # a comma within a cell stands in quotes; a column is never written so
        with_points = with_points or ("1.5" if with_commas else None)
    _refuse_both(with_commas, with_points, file)
    if with_commas:
        _refuse_both(with_commas, found.get("maybe point") or found.get("points between thousands"), file)
        return ","
    maybe = found.get("maybe comma") or found.get("maybe point")
    if maybe and not with_points and delimiter != ",":
        thousands, near_one = re.sub("[.,]", "", maybe), maybe.replace(",", ".")
        raise InputError(
            f"Expected numbers that can be read in one way in {file!r}, got {maybe!r}: write {thousands}, or "
            f"{near_one}0 for less than a thousand."
        )
    return "."


def _refuse_both(one: str | None, other: str | None, file: str) -> None:
    if one and other:
        shown = f"{one!r} and {other!r}" if one != other else repr(one)
        raise InputError(
            f"Expected numbers written in one way in {file!r}, got {shown}: write them with a decimal "
            "point and nothing between thousands, such as 1234.5."
        )


def _examples(columns: Mapping[str, Any]) -> dict[str, str]:
    """An example for every way in which numbers are written, from the columns that hold numbers only."""
    found: dict[str, str] = {}
    for values in columns.values():
        texts = _array(values)
        if _all(texts[:FIRST], NUMERAL) and _all(texts, NUMERAL):
            for way in WAYS.keys() - found.keys():
                which = _matches(texts, WAYS[way])
                found |= {way: texts.filter(which)[0].as_py().strip()} if compute.any(which).as_py() else {}
    return found


def _array(texts: Any) -> Any:
    found = pyarrow.array(texts, pyarrow.string())
    return found.combine_chunks() if isinstance(found, pyarrow.ChunkedArray) else found


def _matches(texts: Any, pattern: str) -> Any:
    return compute.match_substring_regex(texts, rf"^\s*({pattern})\s*$")


def _any(texts: Any, pattern: str) -> bool:
    return bool(compute.any(_matches(texts, pattern)).as_py())


def _all(texts: Any, pattern: str) -> bool:
    return bool(compute.all(_matches(texts, pattern)).as_py())
