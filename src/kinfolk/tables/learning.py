"""learn(): from a table to tailored models, a comparison on the same held-out rows, and a judgement."""

from __future__ import annotations

import dataclasses
import platform
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas

from kinfolk.checks import InputError
from kinfolk.engine.fit import Tolerance, fit
from kinfolk.engine.run import Run
from kinfolk.network.graph import Graph
from kinfolk.network.network import Network
from kinfolk.progress import Bar, progress_bar
from kinfolk.report.facts import Made, Note, Role
from kinfolk.tables.families import Candidate
from kinfolk.tables.graph_source import control_graph
from kinfolk.tables.held_out import HeldOutErrors
from kinfolk.tables.journal import Journal
from kinfolk.tables.judging import gain_over_better
from kinfolk.tables.path import edge_flows, lam_path
from kinfolk.tables.prepared import Prepared, prepare
from kinfolk.tables.results import held_out_predictions
from kinfolk.tables.settings import GIVEN, Settings
from kinfolk.tables.table_run import Member, TableRun, predict_by_role
from kinfolk.tables.validation import ROUGH, Validation, best_roles, validate
from kinfolk.typing import Floats
from kinfolk.version import __version__

FINE = 1e-6  # how exactly the answer is fitted
MOST_ROUNDS = 10_000


def learn(
    table: pandas.DataFrame,
    *,
    node: str,
    target: str,
    edges: Any = None,
    model: Any = "ridge",
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
    >>> run.predict(pandas.DataFrame({"shop": ["a", "d"], "price": [1.0, 1.0]})).round(1).tolist()
    [1.0, -1.0]
    """
    named = model if isinstance(model, str) else f"{GIVEN}{type(model).__name__}"
    chosen = Settings.of({"node": node, "target": target, "model": named, **settings})
    return learn_prepared(prepare(table, chosen, edges=edges, model=model), progress=progress, journal=journal)


def learn_prepared(prepared: Prepared, *, progress: bool = True, journal: Journal | None = None) -> TableRun:
    """``learn``, after ``prepare`` has refused what cannot work: choose, fit, then read the test rows, once."""
    began = time.perf_counter()
    network = prepared.network()
    with progress_bar("learning", 0, enabled=progress) as bar:
        validations, control = _choose(prepared, network, journal or Journal(), bar)
        path_runs = _path_runs(validations[Role.TAILORED], network, bar)
        timed = {role: _fitted(each, network, control, path_runs) for role, each in validations.items()}
    runs = {role: run for role, (run, _) in timed.items()}
    members = {role: Member.of(each, *timed[role]) for role, each in validations.items()}
    roles = best_roles(validations, prepared.training.owner, len(prepared.names))
    models, test = {role: run.models for role, run in runs.items()}, prepared.test
    predicted = {
        role: predict_by_role(models, roles, prepared.target, role, test.X, test.owner)
        for role in (Role.FINAL, *members)
    }
    losses = {role.value: prepared.target.loss(each, test.y) for role, each in predicted.items()}
    seconds = round(time.perf_counter() - began, 2)
    versions = __version__, platform.python_version(), np.__version__
    return TableRun(
        settings=prepared.settings, columns=prepared.columns, encoder=prepared.encoder, target=prepared.target,
        graph=network.graph, origin=prepared.source.origin, places=prepared.places, members=members,
        flow=edge_flows(network.graph, runs[Role.TAILORED], prepared.target),
        path=lam_path(prepared.target, network.graph, members[Role.TAILORED], path_runs), roles=roles,
        train_rows=network.data.sizes, errors=HeldOutErrors(losses, prepared.test.owner, prepared.target),
        predictions=held_out_predictions(prepared, predicted),
        remarks=[*prepared.notes, *_missing(prepared, network, validations)],
        made=Made(*versions, prepared.fingerprint, prepared.row_count, seconds),
    )  # fmt: skip


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
        board, judged = run.leaderboard, gain_over_better(run.errors, run.graph, run.baselines, Role.TAILORED)[1]
        rows[method] = {**board.loc[Role.TAILORED], "gain": judged.gain, "low": judged.low, "high": judged.high}
        for role in (role for role in (Role.ALONE, Role.POOLED) if role in board.index):
            rows[role.value] = {**board.loc[role], "gain": np.nan, "low": np.nan, "high": np.nan}
    found = pandas.DataFrame.from_dict(rows, orient="index").rename_axis("name")
    return found.sort_values("error")


# ---------------------------------------------------------------------- what is chosen inside the training rows


def _choose(
    prepared: Prepared, network: Network, journal: Journal, bar: Bar
) -> tuple[dict[Role, Validation], Graph | None]:
    """Predict parts of the training rows from the others with every candidate and value; λ is chosen here."""
    family, settings = prepared.family, prepared.settings
    parts = [prepared.network(rows) for rows, _ in prepared.folds]

    def tried(candidate: Candidate, where: list[Network], fallback: Floats | None) -> Validation:
        return validate(prepared, candidate, where, fallback, journal, bar)

    pooled, alone = family.baselines()
    bar.expect((len(pooled.values) + len(alone.values)) * len(parts))
    found = {Role.POOLED: tried(pooled, parts, None)}
    fallback = found[Role.POOLED].row_loss
    found[Role.ALONE] = tried(alone, parts, fallback)
    first = next(iter(pooled.runs(network, [found[Role.POOLED].value], ROUGH)))
    candidates = family.tailored(settings.method, network, first, found[Role.ALONE].value)
    if settings.lam != "auto":
        candidates = [dataclasses.replace(each, values=(float(settings.lam),)) for each in candidates]
    bar.expect(sum(len(each.values) for each in candidates) * len(parts))
    best = min((tried(each, parts, fallback) for each in candidates), key=lambda each: each.error)
    found[Role.TAILORED] = best
    control, rewired = _controls(network, parts, settings.seed) if best.candidate.uses_graph else (None, [])
    if control is not None:
        bar.expect(len(best.candidate.values) * len(parts))
        shadow = dataclasses.replace(best.candidate, role=Role.CONTROL)
        found[Role.CONTROL] = tried(shadow, rewired, fallback)
    return found, control


def _controls(network: Network, parts: list[Network], seed: int) -> tuple[Graph | None, list[Network]]:
    """Random graphs with the same degrees, for all rows and for every part; None if one cannot be drawn."""
    drawn = {id(each.graph): each.graph for each in [network, *parts]}
    random = {key: control_graph(graph, seed) for key, graph in drawn.items()}
    if any(graph is None for graph in random.values()):
        return None, []
    rewired = [part.with_graph(graph) for part in parts if (graph := random[id(part.graph)]) is not None]
    return random[id(network.graph)], rewired


# ---------------------------------------------------------------------- the answer


def _path_runs(validation: Validation, network: Network, bar: Bar) -> list[Run]:
    """The tailored models for all values of λ, fitted to all training rows."""
    bar.expect(len(validation.candidate.values))
    out = []
    for run in validation.candidate.runs(network, validation.candidate.values, ROUGH):
        out.append(run)
        bar.advance(1, "along λ")
    return out


def _fitted(validation: Validation, network: Network, control: Graph | None, path_runs: list[Run]) -> tuple[Run, float]:
    """A candidate with its best value, fitted to all training rows, and how many seconds that took."""
    candidate, began = validation.candidate, time.perf_counter()
    where = network if candidate.role is not Role.CONTROL or control is None else network.with_graph(control)
    if candidate.role in (Role.TAILORED, Role.CONTROL) and candidate.converges:
        # from the start, so that its history and its cost are those of one run
        algorithm = candidate.algorithm(validation.value)
        run = fit(where, algorithm, rounds=MOST_ROUNDS, stop=Tolerance(FINE), progress=False)
    elif candidate.role is Role.TAILORED:
        run = path_runs[validation.best]
    else:
        run = _as_validated(validation, where)
    return run, time.perf_counter() - began


def _as_validated(validation: Validation, network: Network) -> Run:
    """The best value, reached along the smaller ones as it was in cross-validation."""
    values = validation.candidate.values[: validation.best + 1]
    in_turn = validation.candidate.role is Role.CONTROL and validation.candidate.warm_start
    *_, last = validation.candidate.runs(network, values if in_turn else values[-1:], ROUGH)
    return last


def _missing(prepared: Prepared, network: Network, validations: dict[Role, Validation]) -> list[Note]:
    """Why a role is missing in the comparison, or not what it seems."""
    tested = np.unique(prepared.test.owner)
    bare = int((network.data.sizes[tested] == 0).sum())
    notes = []
    if bare == len(tested):
        notes.append(Note("alone is impossible"))
    elif bare:
        notes.append(Note("nodes without training rows", {"count": bare}))
    if not validations[Role.TAILORED].candidate.uses_graph:
        notes.append(Note("graph not used"))
    elif Role.CONTROL not in validations:
        notes.append(Note("no control"))
    return notes
