"""The one path for bad input: every refusal is a sentence with what was expected and what was given.

Hyper-parameters carry their range in the type, so a class needs no checking code of its own:

>>> from dataclasses import dataclass
>>> from typing import Annotated
>>> @dataclass(frozen=True)
... class Shrinkage:
...     lam: Annotated[float, AtLeast(0)] = 0.1
>>> check_parameters(Shrinkage(lam=-1))
Traceback (most recent call last):
kinfolk.checks.InputError: The 'lam' parameter of Shrinkage must be a number ≥ 0. Got -1 instead.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import numbers
import types
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from kinfolk.typing import Floats


class InputError(ValueError):
    """What the user gave cannot be used; the message has what was expected, what was given and what to do."""


class LearningError(InputError):
    """A node could not be fitted, or its model does not predict; the sentence names the node."""


@dataclass(frozen=True)
class AtLeast:
    """A range for a numeric parameter: ``low`` and everything above it, infinity excluded."""

    low: float

    def admits(self, value: Any) -> bool:
        """Whether ``value`` lies in the range."""
        return math.isfinite(value) and value >= self.low

    def __str__(self) -> str:
        return f"≥ {self.low:g}"


@dataclass(frozen=True)
class Positive:
    """A range for a numeric parameter: above zero, infinity excluded."""

    def admits(self, value: Any) -> bool:
        """Whether ``value`` lies in the range."""
        return math.isfinite(value) and value > 0

    def __str__(self) -> str:
        return "> 0"


@dataclass(frozen=True)
class Between:
    """A range for a numeric parameter: from ``low`` to ``high``, ends included unless ``open_low`` or ``open_high``."""

    low: float
    high: float
    open_low: bool = False
    open_high: bool = False

    def admits(self, value: Any) -> bool:
        """Whether ``value`` lies in the range."""
        above = self.low < value if self.open_low else self.low <= value
        out: bool = above and (value < self.high if self.open_high else value <= self.high)
        return out

    def __str__(self) -> str:
        low, high = (f"{end:,}" if isinstance(end, int) else f"{end:g}" for end in (self.low, self.high))
        return f"in {'(' if self.open_low else '['}{low}, {high}{')' if self.open_high else ']'}"


def check_parameters(thing: Any) -> None:
    """Check every hyper-parameter of a dataclass, and of the dataclasses it holds, against its type."""
    kind: type = type(thing)
    hints = _hints(kind)
    for field in dataclasses.fields(thing):
        value = getattr(thing, field.name)
        check_value(field.name, kind.__name__, value, hints[field.name])
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            check_parameters(value)


@lru_cache(maxsize=256)  # reading them again took a sixth of the time of small fits
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def check_value(name: str, owner: str, value: Any, hint: Any) -> None:
    """Refuse ``value`` unless the type ``hint`` admits it; hints that are no number or choice are not judged."""
    expected = _expectation(hint)
    if expected is not None and not _admits(value, hint):
        raise InputError(f"The '{name}' parameter of {owner} must be {expected}. Got {value!r} instead.")


def _expectation(hint: Any) -> str | None:
    """The hint in words, or None where there are none."""
    if hint is None or hint is type(None):
        return "None"
    if hint in (bool, int, float):
        return {bool: "True or False", int: "a whole number", float: "a number"}[hint]
    if isinstance(hint, type) and getattr(hint, "__module__", "").startswith("kinfolk"):
        return f"a {hint.__name__}"
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return "one of " + ", ".join(repr(choice) for choice in arguments)
    if origin is Annotated:
        kind = _expectation(arguments[0])
        return None if kind is None else " ".join([kind, *map(str, arguments[1:])])
    if origin in (Union, types.UnionType):
        parts = [_expectation(part) for part in arguments]
        return None if None in parts else " or ".join(str(part) for part in parts)
    return None


def _admits(value: Any, hint: Any) -> bool:
    if hint is None or hint is type(None):
        return value is None
    if hint is bool:
        return isinstance(value, bool | np.bool_)
    if hint in (int, float):
        kind = numbers.Integral if hint is int else numbers.Real
        return isinstance(value, kind) and not isinstance(value, bool | np.bool_)
    if isinstance(hint, type):
        return isinstance(value, hint) and not isinstance(value, type)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return value in arguments
    if origin is Annotated:
        return _admits(value, arguments[0]) and all(range_.admits(value) for range_ in arguments[1:])
    return any(_admits(value, part) for part in arguments)


def as_floats(values: Any, what: str, *dimensions: int) -> Floats:
    """``values`` as a finite float64 array with one of the numbers of axes, or a sentence about ``what``."""
    try:
        kinds = {kind for part in _columns(values) for kind in np.asarray(part).dtype.kind}
        if kinds & set("mMc"):
            raise TypeError("dates and complex numbers are no real numbers")
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"Expected real numbers for {what}, got values that are not: encode text, categories and dates first."
        ) from error
    if array.ndim not in dimensions:
        axes = " or ".join(map(str, dimensions))
        raise InputError(f"Expected an array with {axes} axes for {what}, got shape {array.shape}.")
    finite = np.isfinite(array)
    if not finite.all():
        bad = np.flatnonzero(~finite.reshape(len(array), -1).all(axis=1))
        raise InputError(
            f"Expected finite numbers for {what}, got NaN or infinity in {len(bad)} of {len(array)} rows "
            f"(first in row {bad[0]}): drop or fill these rows."
        )
    return array


def _columns(values: Any) -> list[Any]:
    """The columns of a data frame, each with its own type, or the values as they are."""
    return [values[name] for name in values.columns] if hasattr(values, "columns") else [values]


def installed(package: str, what: str, extra: str) -> Any:
    """A package that comes with an extra, imported where it is used, or a sentence.

    >>> installed("lightbgm", "a rival", "rivals")
    Traceback (most recent call last):
    kinfolk.checks.InputError: Expected lightbgm for a rival: install it with pip install "kinfolk[rivals]".
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        name = package.partition(".")[0]
        raise InputError(f'Expected {name} for {what}: install it with pip install "kinfolk[{extra}]".') from error


def first_line(error: Exception) -> str:
    """The message of an error, in one line.

    >>> first_line(ValueError("wrong shape\\nsee below"))
    'wrong shape'
    """
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def listing(items: Iterable[Any], most: int = 3) -> str:
    """The first few items, for a sentence.

    >>> listing(["a", "b", "c", "d"])
    "'a', 'b', 'c', ..."
    """
    items = list(items)
    return ", ".join(map(repr, items[:most])) + (", ..." if len(items) > most else "")


def comma_list(text: str) -> tuple[str, ...]:
    """The names in a text such as ``a,b``.

    >>> comma_list("price, district,")
    ('price', 'district')
    """
    return tuple(part.strip() for part in text.split(",") if part.strip())


def printable(text: str) -> str:
    r"""``text`` for a terminal, in one line: what is no visible character is written as an escape.

    Names from data can hold escape sequences, line breaks and marks that turn the direction of writing.

    Parameters
    ----------
    text : str
        Any text.

    Returns
    -------
    str
        The text with escapes such as ``\x1b`` for what does not print.

    >>> print(printable("shop \x1b[31m1"))
    shop \x1b[31m1
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
