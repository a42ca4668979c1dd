"""learn(): from a table to tailored models, an honest comparison, and a judgement."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import numpy as np
import pandas

from kinfolk.checks import InputError
from kinfolk.engine.fit import Tolerance, fit
from kinfolk.network.graph import Graph
from kinfolk.network.network import Network
from kinfolk.progress import Bar, progress_bar
from kinfolk.tables.candidates import Candidate, Fit
from kinfolk.tables.choosing import ROUGH, Forgetful, Journal, Training, Validation, validate
from kinfolk.tables.columns import as_texts, find_columns, node_names
from kinfolk.tables.encoding import Encoder, encode, plain
from kinfolk.tables.families import family_of
from kinfolk.tables.kin import control_graph, kinship
from kinfolk.tables.outcome import table_run
from kinfolk.tables.reading import fingerprint
from kinfolk.tables.settings import Settings
from kinfolk.tables.splits import folds, held_out_rows, table_times
from kinfolk.tables.stages import Chosen, Learnt, Prepared
from kinfolk.tables.tablerun import TableRun
from kinfolk.tables.target import Target
from kinfolk.typing import Floats

FINE = 1e-6  # how exactly the answer is fitted
MOST_ROUNDS = 10_000


def learn(
    table: pandas.DataFrame,
    *,
    node: str,
    target: str,
    edges: pandas.DataFrame | None = None,
    model: Any = "ridge",
    progress: bool = True,
    journal: Journal | None = None,
    **settings: Any,
) -> TableRun:
    """Tailored models for every node of a table, compared with every node alone and one model for all.

    Parameters
    ----------
    table : rows carry a node, a target and features.
    node, target : names of these columns.
    edges : pairs of nodes, and perhaps weights, if a graph is known.
    model : a name (``"ridge"``, ``"linear"``, ``"tree"``, ``"forest"``, ``"boosting"``), or an estimator.
    progress : show a progress bar on a terminal.
    journal : where finished work is kept so that an interrupted run can go on.
    settings : the others of ``kinfolk.tables.Settings``: features, coords, graph, method, lam, test, time, ...

    >>> rng = np.random.default_rng(0)
    >>> shops = pandas.DataFrame({"shop": np.repeat(list("abcd"), 20), "price": rng.normal(size=80)})
    >>> shops["sales"] = np.repeat([1.0, 1.0, -1.0, -1.0], 20) * shops["price"] + 0.1 * rng.normal(size=80)
    >>> run = learn(shops, node="shop", target="sales", progress=False)
    >>> run.predict(pandas.DataFrame({"shop": ["a", "d"], "price": [1.0, 1.0]})).round(1).tolist()
    [1.0, -1.0]
    """
    named = model if isinstance(model, str) else f"given: {type(model).__name__}"
    chosen = Settings(node=node, target=target, model=named, **_as_tuples(settings))
    return learn_prepared(prepare(table, chosen, edges=edges, model=model), progress=progress, journal=journal)


def _as_tuples(settings: dict[str, Any]) -> dict[str, Any]:
    known = [field.name for field in dataclasses.fields(Settings)]
    unknown = [name for name in settings if name not in known]
    if unknown:
        raise InputError(f"Expected settings such as lam or coords, got {unknown[0]!r}: known are {', '.join(known)}.")
    plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in settings.items()}
    for name in ("features", "categorical", "coords"):
        if name in plain:
            plain[name] = tuple(plain[name].split(",") if isinstance(plain[name], str) else map(str, plain[name]))
    return plain


def learn_prepared(prepared: Prepared, *, progress: bool = True, journal: Journal | None = None) -> TableRun:
    """``learn``, after ``prepare`` has refused what cannot work."""
    began = time.perf_counter()
    with progress_bar("learning", 0, enabled=progress) as bar:
        chosen = _choose(prepared, journal or Forgetful(), bar)
        learnt = _learn(chosen, bar)
    return table_run(prepared, chosen, learnt, time.perf_counter() - began)


# ---------------------------------------------------------------------- what the table says


def prepare(table: pandas.DataFrame, settings: Settings, *, edges: Any = None, model: Any = None) -> Prepared:
    """Refuse what cannot work; split; encode, fitted to the training rows alone. ``model``: one that has no name."""
    settings.check()
    if not isinstance(table, pandas.DataFrame):
        raise InputError(f"Expected a data frame, got {type(table).__name__}: read a file with kinfolk.read_table.")
    table = table.rename(columns=str)
    edges = edges if edges is None or isinstance(edges, pandas.DataFrame) else pandas.DataFrame(list(edges))
    columns = find_columns(table, settings)
    mark, count, notes = fingerprint(table), len(table), list(columns.notes)
    lost = table[columns.target].isna()
    if lost.any():
        notes.append(f"{int(lost.sum()):,} rows without a target were left out.")
        table = table[~lost]
    names = sorted(as_texts(table[columns.node]).unique())
    owner = np.searchsorted(np.array(names, dtype=object), node_names(table, columns.node)).astype(np.int64)
    held_out = held_out_rows(table, columns, settings, owner)
    target = Target.of(table[columns.target], ~held_out, settings)
    family = family_of(settings.model if model is None else model, target)
    family.check(settings.method)
    y = target.encode(table[columns.target])
    notes += target.notes
    unseen = held_out & np.isnan(y)
    if (unseen == held_out).all():
        raise InputError("Expected test rows of classes that training rows have, got none: hold out other rows.")
    if unseen.any():
        notes.append(f"{int(unseen.sum()):,} test rows have a class that no training row has: not tested.")
    kin, places = kinship(table, columns, settings, names, edges)
    encoder = Encoder.fit(plain(table[~held_out], columns), columns)
    X = encode(encoder, table, columns)
    times = table_times(table, columns.time)[~held_out] if columns.time else None
    train = ~held_out
    training = Training(
        X[train], y[train], owner[train], names, encoder.get_feature_names_out(), target, kin,
        list(folds(owner[train], times, settings.folds, settings.seed)), settings.seed,
    )  # fmt: skip
    return Prepared(
        settings=settings,
        fingerprint=mark,
        kinship_mark="" if edges is None else fingerprint(edges),
        row_count=count,
        table=table,
        family=family,
        columns=columns,
        encoder=encoder,
        target=target,
        owner=owner,
        X=X,
        y=y,
        held_out=held_out & ~unseen,
        training=training,
        places=places,
        notes=notes,
    )


# ---------------------------------------------------------------------- what is chosen inside the training rows


def _choose(prepared: Prepared, journal: Journal, bar: Bar) -> Chosen:
    """Predict parts of the training rows from the others with every candidate and strength."""
    training, family, settings = prepared.training, prepared.family, prepared.settings
    network, parts = training.network(), [training.network(rows) for rows, _ in training.folds]

    def tried(candidate: Candidate, where: list[Network], fallback: Floats | None) -> Validation:
        return validate(training, candidate, where, fallback, journal, bar)

    pooled, alone = family.baselines()
    bar.expect((len(pooled.strengths) + len(alone.strengths)) * len(parts))
    found = {"pooled": tried(pooled, parts, None)}
    fallback = found["pooled"].row_loss
    found["alone"] = tried(alone, parts, fallback)
    first = next(pooled.fits(network, [found["pooled"].strength], ROUGH))
    candidates = family.tailored(settings.method, network, first, found["alone"].strength)
    candidates = [_with_lam(each, settings.lam) for each in candidates]
    bar.expect(sum(len(each.strengths) for each in candidates) * len(parts))
    found["tailored"] = min((tried(each, parts, fallback) for each in candidates), key=lambda each: each.error)
    usable = found["tailored"].candidate.uses_graph
    control, rewired = _controls(network, parts, settings.seed) if usable else (None, [])
    if control is not None:
        shadow = dataclasses.replace(found["tailored"].candidate, role="control")
        bar.expect(len(shadow.strengths) * len(parts))
        found["control"] = tried(shadow, rewired, fallback)
    return Chosen(network, found, control)


def _controls(network: Network, parts: list[Network], seed: int) -> tuple[Graph | None, list[Network]]:
    """Random graphs with the same degrees, for all rows and for every part; None if one cannot be drawn."""
    drawn = {id(each.graph): each.graph for each in [network, *parts]}
    random = {key: control_graph(graph, seed) for key, graph in drawn.items()}
    if any(graph is None for graph in random.values()):
        return None, []
    rewired = [part.with_graph(graph) for part in parts if (graph := random[id(part.graph)]) is not None]
    return random[id(network.graph)], rewired


def _with_lam(candidate: Candidate, lam: Any) -> Candidate:
    return candidate if lam == "auto" else dataclasses.replace(candidate, strengths=(float(lam),))


# ---------------------------------------------------------------------- the answer


def _learn(chosen: Chosen, bar: Bar) -> Learnt:
    """Fit everything to all training rows; the tailored models also along λ."""
    fits: dict[str, Fit] = {}
    for role, validation in chosen.validations.items():
        network = chosen.network
        if role == "control":
            assert chosen.control is not None
            network = network.with_graph(chosen.control)
        if role != "tailored":
            fits[role] = _as_validated(validation, network)
    best = chosen.validations["tailored"]
    bar.expect(len(best.candidate.strengths))
    along = []
    for each in best.candidate.fits(chosen.network, best.candidate.strengths, ROUGH):
        along.append(each)
        bar.advance(1, "along λ")
    fits["tailored"] = _refined(best.candidate, chosen.network, along[best.best])
    return Learnt(fits, along)


def _as_validated(validation: Validation, network: Network) -> Fit:
    """The best strength, reached along the smaller ones as it was in cross-validation."""
    strengths = sorted(validation.candidate.strengths)[: validation.best + 1]
    strengths = strengths if validation.candidate.warm_start else strengths[-1:]
    *_, last = validation.candidate.fits(network, strengths, ROUGH)
    return last


def _refined(candidate: Candidate, network: Network, rough: Fit) -> Fit:
    """The answer itself, from the start, so that its history and its cost are those of one run."""
    began = time.perf_counter()
    if not candidate.converges:
        return rough
    run = fit(network, candidate.algorithm(rough.strength), rounds=MOST_ROUNDS, stop=Tolerance(FINE), progress=False)
    return Fit(rough.strength, run.models, run, time.perf_counter() - began)
