"""Several methods on the same rows of a table."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas

from kinfolk.checks import InputError
from kinfolk.tables.choosing import Arrays
from kinfolk.tables.learning import learn_prepared, prepare
from kinfolk.tables.settings import Settings


class Remembering:
    """A journal in memory: what methods have in common is done once."""

    def __init__(self) -> None:
        self.known: dict[str, Arrays] = {}

    def kept(self, key: str, make: Callable[[], Arrays]) -> Arrays:
        """The arrays under this key."""
        if key not in self.known:
            self.known[key] = make()
        return self.known[key]


def compare(
    table: pandas.DataFrame, methods: Sequence[str], settings: Settings, *, edges: Any = None, progress: bool = True
) -> pandas.DataFrame:
    """A leaderboard of several methods and the baselines: the same split, each with its own best λ.

    ``gain`` is per cent less error than the better baseline, with a 95 % interval from ``low`` to ``high``.
    """
    if not methods:
        raise InputError("Expected methods to compare, such as gtvmin,fedrelax, got none.")
    journal = Remembering()
    rows: dict[str, dict[Any, Any]] = {}
    ready = [prepare(table, dataclasses.replace(settings, method=method), edges=edges) for method in methods]
    for method, prepared in zip(methods, ready, strict=True):
        run = learn_prepared(prepared, progress=progress, journal=journal)
        verdict = {name: getattr(run.judgement, name) for name in ("gain", "low", "high")}
        rows[method] = {**run.leaderboard.loc["tailored"].to_dict(), **verdict, "method": method}
        for role in (role for role in ("alone", "pooled") if role in run.leaderboard.index):
            rows[role] = {**run.leaderboard.loc[role].to_dict(), "gain": np.nan, "low": np.nan, "high": np.nan}
    found = pandas.DataFrame(list(rows.values()), index=pandas.Index(list(rows), name="name"))
    return found.sort_values("error")
