"""Several methods on the same rows of a table."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas

from kinfolk.checks import InputError
from kinfolk.report.facts import Role
from kinfolk.tables.journal import Journal
from kinfolk.tables.learning import learn_prepared
from kinfolk.tables.prepared import prepare
from kinfolk.tables.settings import Settings


def compare(
    table: pandas.DataFrame, methods: Sequence[str], settings: Settings, *, edges: Any = None, progress: bool = True
) -> pandas.DataFrame:
    """A leaderboard of several methods and the baselines: the same split, each with its own best λ.

    Parameters
    ----------
    table : pandas.DataFrame
        Rows with a node, a target and features.
    methods : sequence of str
        Methods, as ``Settings.method`` names them.
    settings : Settings
        All but the method.
    edges : pandas.DataFrame or sequence of pairs, optional
        Pairs of nodes, and perhaps weights, if a graph is known.
    progress : bool
        Whether to show a progress bar on a terminal.

    Returns
    -------
    pandas.DataFrame
        One row per method or baseline, the best first. ``gain`` is per cent less error than the better baseline, with a
        95 % interval from ``low`` to ``high``.
    """
    if not methods:
        raise InputError("Expected methods to compare, such as gtvmin,fedrelax, got none.")
    journal = Journal()
    rows: dict[str, dict[Any, Any]] = {}
    ready = [prepare(table, dataclasses.replace(settings, method=method), edges=edges) for method in methods]
    for method, prepared in zip(methods, ready, strict=True):
        run = learn_prepared(prepared, progress=progress, journal=journal)
        board, judged = run.leaderboard, run.judgement
        rows[method] = {**board.loc[Role.TAILORED], "gain": judged.gain, "low": judged.low, "high": judged.high}
        for role in (role for role in (Role.ALONE, Role.POOLED) if role in board.index):
            rows[role.value] = {**board.loc[role], "gain": np.nan, "low": np.nan, "high": np.nan}
    found = pandas.DataFrame.from_dict(rows, orient="index").rename_axis("name")
    return found.sort_values("error")
