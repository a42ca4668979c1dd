"""The wire format: one blob per message, with arrays of numbers and a short text; nothing in it can name code.

A blob is read in two steps. First its table: names, types and shapes, compared with what is expected, and with the
number of bytes that are there. Only then are arrays made, none larger than what was expected. What does not fit is
refused with a sentence.

=========  =======================================================================================
bytes      content
=========  =======================================================================================
4          ``kin1``
1          kind of message
16, 4, 8   key: run, query, number of the request
4, 2       length of the text, number of arrays
each       length of the name (1), name, code of the type (1), number of axes (1), axes (8 each)
rest       the text in UTF-8, then all arrays in C order, little-endian
=========  =======================================================================================
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from kinfolk.checks import InputError, listing
from kinfolk.engine.protocol import Arrays, Sent

MAGIC = b"kin1"
KINDS = (
    "hello", "introduction", "join", "joined", "request", "answer", "refusal", "letter", "exchange", "end", "ended",
    "work", "result",
)  # fmt: skip
TYPES = ("float64", "float32", "int64", "int32", "uint8", "bool", "uint64", "int8", "int16", "float16")
CODES = {np.dtype(name): code for code, name in enumerate(TYPES)}
HEAD = struct.Struct("<4sB16sIQIH")
MOST_ARRAYS, MOST_AXES, MOST_NAME = 4_096, 8, 200


class WireError(InputError):
    """A message is not what was expected."""


class Key(NamedTuple):
    """Which request of which run this is; one that comes again has the same key and gets the same answer."""

    run: bytes = bytes(16)
    query: int = 0  # which one of those that are declared, in what is asked about a table
    number: int = 0


NO_KEY = Key()


class Slot(NamedTuple):
    """What an array must be: its type, its largest shape, and how many of its first axes have just that size."""

    dtype: str
    shape: tuple[int, ...] = ()
    exact: int = 0

    @classmethod
    def of(cls, sent: Sent, *rows: int) -> Slot:
        """A slot for what an algorithm declares; ``rows``: of so many nodes."""
        return cls(sent.dtype, (*rows, *sent.shape), len(rows))

    @property
    def largest(self) -> int:
        """The most bytes it takes."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def admits(self, dtype: str, shape: tuple[int, ...]) -> bool:
        """Whether an array of this type and shape fits."""
        same = dtype == self.dtype and len(shape) == len(self.shape) and shape[: self.exact] == self.shape[: self.exact]
        return same and all(size <= most for size, most in zip(shape, self.shape, strict=True))


@dataclass(frozen=True)
class Expected:
    """What a message may hold: kinds, arrays by name, and the longest text.

    ``families`` are for arrays whose names are not known: a prefix, the most of them, and what each must be.
    """

    kinds: tuple[str, ...]
    slots: Mapping[str, Slot] = field(default_factory=dict)
    text: int = 0
    families: Mapping[str, tuple[int, Slot]] = field(default_factory=dict)

    @property
    def largest(self) -> int:
        """No blob of this sort has more bytes."""
        named = sum(slot.largest + _entry_size(len(name.encode()), slot) for name, slot in self.slots.items())
        others = sum(most * (slot.largest + _entry_size(MOST_NAME, slot)) for most, slot in self.families.values())
        return HEAD.size + self.text + named + others

    def slot(self, name: str) -> Slot | None:
        """What an array of this name must be; None: there may be none."""
        if name in self.slots:
            return self.slots[name]
        return next((slot for prefix, (_, slot) in self.families.items() if name.startswith(prefix)), None)


def _entry_size(name: int, slot: Slot) -> int:
    return 3 + name + 8 * len(slot.shape)


@dataclass(frozen=True)
class Blob:
    """One message."""

    kind: str
    key: Key = NO_KEY
    text: str = ""
    arrays: Arrays = field(default_factory=dict)

    def encode(self) -> bytes:
        """The message as bytes.

        >>> blob = Blob("letter", arrays={"w": np.zeros((2, 3))})
        >>> len(blob.encode())
        107
        """
        text = self.text.encode()
        arrays = {name: _plain(name, values) for name, values in self.arrays.items()}
        parts = [HEAD.pack(MAGIC, KINDS.index(self.kind), *self.key, len(text), len(arrays))]
        parts += [_entry(name, values) for name, values in arrays.items()]
        return b"".join([*parts, text, *(values.tobytes() for values in arrays.values())])

    @classmethod
    def decode(cls, content: bytes, expected: Expected) -> Blob:
        """The message that bytes stand for, if it is what is expected.

        >>> blob = Blob("letter", arrays={"w": np.zeros((2, 3))})
        >>> Blob.decode(blob.encode(), Expected(("letter",), {"w": Slot("float64", (2, 3), 1)})).arrays["w"].shape
        (2, 3)
        >>> Blob.decode(blob.encode(), Expected(("letter",), {"w": Slot("float64", (2, 2), 1)}))
        Traceback (most recent call last):
        kinfolk.engine.wire.WireError: Expected 'w' as float64 of shape (2, 2) at most, got float64 of shape (2, 3).
        """
        reader = _Reader(content)
        kind, key, length, count = reader.head()
        if kind not in expected.kinds:
            raise WireError(f"Expected a message of the kind {listing(expected.kinds)}, got {kind!r}.")
        if length > expected.text or count > MOST_ARRAYS:
            raise WireError(
                f"Expected at most {expected.text:,} bytes of text and {MOST_ARRAYS:,} arrays in a message of the kind "
                f"{kind!r}, got {length:,} and {count:,}."
            )
        table = [reader.entry() for _ in range(count)]
        _check_table(table, expected)
        reader.check_end(length + sum(entry.size for entry in table))
        text = reader.text(length)
        return cls(kind, key, text, {entry.name: reader.array(entry) for entry in table})


def _plain(name: str, values: Any) -> Any:
    array = np.ascontiguousarray(values).reshape(np.shape(values))
    if array.dtype not in CODES:
        raise InputError(f"Expected an array of numbers for {name!r}, got {array.dtype}.")
    return array.astype(array.dtype.newbyteorder("<"), copy=False)


def _entry(name: str, values: Any) -> bytes:
    known = name.encode()
    if len(known) > MOST_NAME:
        raise InputError(f"Expected a name of at most {MOST_NAME} bytes for an array, got {name!r:.80}.")
    kind = struct.pack(f"<BB{values.ndim}Q", CODES[values.dtype], values.ndim, *values.shape)
    return struct.pack("<B", len(known)) + known + kind


class _Entry(NamedTuple):
    """An array as the table announces it."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


def _check_table(table: list[_Entry], expected: Expected) -> None:
    """Every array is expected, once, as it is."""
    names = [entry.name for entry in table]
    if len(set(names)) < len(names):
        raise WireError("Expected every array once, got one twice.")
    for prefix, (most, _) in expected.families.items():
        found = sum(name.startswith(prefix) and name not in expected.slots for name in names)
        if found > most:
            raise WireError(f"Expected at most {most:,} arrays {prefix!r}, got {found:,}.")
    for entry in table:
        slot = expected.slot(entry.name)
        if slot is None:
            known = listing(expected.slots) if expected.slots else "no arrays"
            raise WireError(f"Expected {known} in this message, got {entry.name!r:.80}.")
        if not slot.admits(entry.dtype, entry.shape):
            raise WireError(
                f"Expected {entry.name!r} as {slot.dtype} of shape {slot.shape} at most, got {entry.dtype} of shape "
                f"{entry.shape}."
            )


class _Reader:
    """Takes a blob apart from its beginning."""

    def __init__(self, content: bytes) -> None:
        self.content, self.place = memoryview(content), 0

    def _take(self, size: int) -> memoryview:
        if self.place + size > len(self.content):
            raise WireError(f"Expected a whole message, got {len(self.content):,} bytes of it: it was cut.")
        self.place += size
        return self.content[self.place - size : self.place]

    def head(self) -> tuple[str, Key, int, int]:
        magic, kind, run, query, number, length, count = HEAD.unpack(self._take(HEAD.size))
        if magic != MAGIC or kind >= len(KINDS):
            raise WireError(
                "Expected a message of kinfolk, got something else: both ends need versions that fit together."
            )
        return KINDS[kind], Key(run, query, number), length, count

    def entry(self) -> _Entry:
        (length,) = struct.unpack("<B", self._take(1))
        name = self.text(length)
        code, axes = struct.unpack("<BB", self._take(2))
        if code >= len(TYPES) or axes > MOST_AXES or length > MOST_NAME:
            raise WireError(f"Expected an array of numbers, got one of the type {code} with {axes} axes.")
        return _Entry(name, TYPES[code], struct.unpack(f"<{axes}Q", self._take(8 * axes)))

    def check_end(self, rest: int) -> None:
        if self.place + rest != len(self.content):
            raise WireError(
                f"Expected a message of {self.place + rest:,} bytes by its table, got {len(self.content):,}."
            )

    def text(self, length: int) -> str:
        try:
            return str(self._take(length), "utf-8")
        except UnicodeDecodeError as error:
            raise WireError("Expected text in UTF-8, got other bytes.") from error

    def array(self, entry: _Entry) -> Any:
        dtype = np.dtype("uint8" if entry.dtype == "bool" else entry.dtype).newbyteorder("<")
        found = np.frombuffer(self._take(entry.size), dtype=dtype).reshape(entry.shape)
        return found.astype(entry.dtype)  # a copy, aligned and our own


# ---------------------------------------------------------------------- texts: plain data of known types

Fields = Mapping[str, type | tuple[type, ...]]


def written(**values: Any) -> str:
    """Plain data as a text."""
    return json.dumps(values, separators=(",", ":"))


def read(text: str, fields: Fields) -> dict[str, Any]:
    """The plain data of a text: just these fields, of these types.

    >>> read(written(round=3), {"round": int})
    {'round': 3}
    >>> read(written(round="three"), {"round": int})
    Traceback (most recent call last):
    kinfolk.engine.wire.WireError: Expected 'round' as int, got str.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WireError("Expected a text with plain data, got something else.") from error
    if not isinstance(found, dict) or set(found) != set(fields):
        given = listing(found) if isinstance(found, dict) and found else "none of them"
        raise WireError(f"Expected the fields {listing(fields, 20)}, got {given:.200}.")
    for name, kind in fields.items():
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if type(found[name]) not in kinds:
            wanted = " or ".join(each.__name__ for each in kinds)
            raise WireError(f"Expected {name!r} as {wanted}, got {type(found[name]).__name__}.")
    return found
