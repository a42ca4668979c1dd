"""The ledger of a site: what left it, to whom, when, and how many bytes. A table that its owner can open anywhere."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas

from kinfolk.checks import InputError
from kinfolk.federation.files import append_rows

NAME = "left.csv"
COLUMNS = ("time", "run", "round", "to", "what", "numbers", "bytes")


@dataclass(frozen=True)
class Entry:
    """Something that leaves a site."""

    to: str  # the coordinator, or the name of another site
    what: str
    numbers: int
    bytes: int

    @classmethod
    def of(cls, to: str, contents: Iterable[str], arrays: Iterable[Any], size: int | None = None) -> Self:
        """Some arrays with what they are; ``size``: their bytes when sealed.

        >>> Entry.of("north", ["parameters", "parameters"], [np.zeros(2), np.zeros(1)])
        Entry(to='north', what='parameters', numbers=3, bytes=24)
        """
        held = [np.asarray(each) for each in arrays]
        what = ", ".join(dict.fromkeys(contents))
        return cls(
            to, what, sum(each.size for each in held), sum(each.nbytes for each in held) if size is None else size
        )


class Ledger:
    """The table ``left.csv`` in the folder of a site; rows are only ever added."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self.resting = False  # while what has left already is worked out again

    def add(self, run: bytes, round_: int, entries: Iterable[Entry]) -> None:
        """Write down what is about to leave."""
        if self.resting:
            return
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        rows = [(now, run.hex()[:8], round_, each.to, each.what, each.numbers, each.bytes) for each in entries]
        append_rows(self.path, COLUMNS, rows)


def sent_in_all(folder: Path) -> pandas.DataFrame:
    """What left a site in all, by receiver and content.

    Parameters
    ----------
    folder : Path
        Of the site.

    Returns
    -------
    pandas.DataFrame
        Columns ``to``, ``what``, ``messages``, ``numbers`` and ``bytes``.
    """
    path = folder / NAME
    if not path.exists():
        return pandas.DataFrame(columns=["to", "what", "messages", "numbers", "bytes"])
    try:
        found = pandas.read_csv(path, keep_default_na=False)
        found = found.astype({"numbers": int, "bytes": int})[list(COLUMNS)]
    except (ValueError, KeyError, UnicodeDecodeError) as error:
        raise InputError(f"Expected what has left the site in {str(path)!r}, it is damaged: move it away.") from error
    return (
        found.groupby(["to", "what"], sort=False)
        .agg(messages=("round", "size"), numbers=("numbers", "sum"), bytes=("bytes", "sum"))
        .reset_index()
    )
