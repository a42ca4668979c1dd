"""learn(): from a table to tailored models, a comparison on the same held-out rows, and a judgement."""

from __future__ import annotations

import dataclasses
import platform
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas

from kinfolk.checks import InputError
from kinfolk.engine.run import Run
from kinfolk.progress import progress_bar
from kinfolk.report.facts import Made, Note, Role
from kinfolk.tables.comparison import add_rivals, entries_of
from kinfolk.tables.extending import Given
from kinfolk.tables.job import Tuning, interval_widths, tested, tune
from kinfolk.tables.journal import Journal
from kinfolk.tables.judging import gains_over, over_better
from kinfolk.tables.local_party import LocalParty
from kinfolk.tables.members.graph_member import NO_PLACES
from kinfolk.tables.party import OneParty, Widths
from kinfolk.tables.path import edge_flows, lam_path
from kinfolk.tables.prepared import Prepared, edges_table, prepare, prepare_given
from kinfolk.tables.results import held_out_predictions
from kinfolk.tables.settings import Settings
from kinfolk.tables.table_rows import worthwhile_threads
from kinfolk.tables.table_run import TableRun
from kinfolk.version import __version__


def learn(
    table: pandas.DataFrame,
    *,
    node: str,
    target: str,
    edges: Any = None,
    model: Any = "ridge",
    members: Sequence[Any] = (),
    progress: bool = True,
    journal: Journal | None = None,
    **settings: Any,
) -> TableRun:
    """Tailored models for every node of a table, compared with every node alone and one model for all.

    Parameters
    ----------
    table : pandas.DataFrame
        Rows with a node, a target and features.
    node : str
        Column with the node each row belongs to.
    target : str
        Column to predict.
    edges : pandas.DataFrame or sequence of pairs, optional
        Pairs of nodes, and perhaps weights, if a graph is known.
    model : str or estimator
        ``"ridge"``, ``"linear"``, ``"tree"``, ``"forest"``, ``"boosting"``, ``file.py:Name``, or an estimator.
    members : sequence
        Members of the ensemble: names as in ``kinfolk.tables.Settings``, or estimators of your own beside them. A list
        replaces the usual members; ``["+", MyGAM()]`` adds to them.
    progress : bool
        Whether to show a progress bar on a terminal.
    journal : Journal, optional
        Stores finished work so that an interrupted run can resume.
    **settings
        The others of ``kinfolk.tables.Settings``: features, coords, graph, method, lam, test, time, ...

    Returns
    -------
    TableRun
        Models, comparison and judgement.

    >>> rng = np.random.default_rng(0)
    >>> shops = pandas.DataFrame({"shop": np.repeat(list("abcd"), 20), "price": rng.normal(size=80)})
    >>> shops["sales"] = np.repeat([1.0, 1.0, -1.0, -1.0], 20) * shops["price"] + 0.1 * rng.normal(size=80)
    >>> run = learn(shops, node="shop", target="sales", progress=False)
    >>> run.predict(pandas.DataFrame({"shop": ["a", "d"], "price": [1.0, 1.0]})).round().tolist()
    [1.0, -1.0]
    """
    given = {"node": node, "target": target, "model": model, "members": members, **settings}
    prepared = prepare_given(table, given, edges=edges)
    run = learn_prepared(prepared, progress=progress, journal=journal)
    own = [each for each in members if not isinstance(each, str)]
    run.given = Given.of(table, edges_table(edges), None if isinstance(model, str) else model, own)
    return run


def learn_prepared(prepared: Prepared, *, progress: bool = True, journal: Journal | None = None) -> TableRun:
    """``learn``, after ``prepare`` has refused what cannot work: choose, fit, then read the test rows, once."""
    began = time.perf_counter()
    with progress_bar("learning", 0, enabled=progress) as bar, worthwhile_threads(prepared.rows):
        tuning = tune(OneParty(LocalParty(prepared.rows, journal=journal, bar=bar)), prepared.design)
        return run_of(prepared, tuning, interval_widths(tuning), began)


def run_of(prepared: Prepared, tuning: Tuning, widths: Widths | None, began: float) -> TableRun:
    """The run that tuned members make; ``began``: when the work did."""
    design, party = tuning.design, tuning.cv.parties.single
    tested(tuning, widths)
    entries = entries_of(tuning, party)
    rivals, not_compared = add_rivals(design, party)
    party.compared(design.test_times)
    path = _path_runs(tuning, party)
    target, graph, tailored = design.target, tuning.cv.scene.graphs[-1], party.finals[Role.TAILORED]
    versions, seconds = (__version__, platform.python_version(), np.__version__), time.perf_counter() - began
    return TableRun(
        settings=design.settings, columns=design.columns, encoder=design.encoder, target=target, graph=graph,
        places=design.places, entries={**entries, **rivals}, intervals=party.intervals, origin=design.source.origin,
        flow=edge_flows(graph, tailored.runs[0], target),
        path=lam_path(target, graph, entries[Role.TAILORED], path),
        train_rows=design.train_rows, errors=party.tested,
        predictions=held_out_predictions(party.rows, party.predicted),
        remarks=[*design.notes, *_remarks(tuning, {**tuning.left_out, **not_compared})],
        made=Made(*versions, prepared.fingerprint, prepared.row_count, round(seconds, 2)),
    )  # fmt: skip


def _path_runs(tuning: Tuning, party: LocalParty) -> list[Run]:
    """The tailored models of the first output for all values of λ; where values are kept, those of the answer."""
    if tuning.cv.kept:
        return [party.finals[Role.TAILORED].runs[0]]
    party.bar.expect(1)
    runs = tuning.tailored.path(party.training_set(party.rows.whole, {}))
    party.bar.advance(1, "along λ")
    return runs


def _remarks(tuning: Tuning, left_out: Mapping[str, str]) -> list[Note]:
    """Why a line is missing in the comparison, or not what it seems."""
    design = tuning.design
    tested_nodes = design.test_rows > 0
    bare = int((design.train_rows[tested_nodes] == 0).sum())
    shown = {name: why for name, why in left_out.items() if why != NO_PLACES}
    notes = [Note("member left out", {"member": name, "why": why}) for name, why in shown.items()]
    if not design.local_models_possible:
        notes.append(Note("alone is impossible"))
    elif bare:
        notes.append(Note("nodes without training rows", {"count": bare}))
    if tuning.tailored.candidate.method == "ifca":
        notes.append(Note("graph not used"))
    elif not tuning.control:
        notes.append(Note("no control"))
    return notes


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
    members = (Role.POOLED.value, Role.TAILORED.value)
    each = [dataclasses.replace(settings, method=method, members=members) for method in methods]
    ready = [prepare(table, chosen, edges=edges) for chosen in each]
    for method, prepared in zip(methods, ready, strict=True):
        run = learn_prepared(prepared, progress=progress, journal=journal)
        over_each = gains_over(run.errors, run.graph, run.baselines, Role.TAILORED, not run.alone_is_possible)
        board, judged = run.leaderboard, over_better(over_each)[1]
        rows[method] = {**board.loc[Role.TAILORED], "gain": judged.gain, "low": judged.low, "high": judged.high}
        for role in (role for role in (Role.ALONE, Role.POOLED) if role in board.index):
            rows[role.value] = {**board.loc[role], "gain": np.nan, "low": np.nan, "high": np.nan}
    found = pandas.DataFrame.from_dict(rows, orient="index").rename_axis("name")
    return found.sort_values("error")
