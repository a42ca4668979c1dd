"""learn(): from a table to tailored models, an honest comparison, and a judgement."""

from __future__ import annotations

import dataclasses
import platform
import time
from typing import Any

import numpy as np
import pandas

import kinfolk
from kinfolk.checks import InputError
from kinfolk.graph import Graph
from kinfolk.network import Network
from kinfolk.progress import Bar, progress_bar
from kinfolk.run import Tolerance, fit
from kinfolk.table.candidates import Candidate, Family, Fit, family_of
from kinfolk.table.choosing import ROUGH, Forgetful, Journal, Training, Validation, shrunken_gain, validate
from kinfolk.table.columns import Columns, Target, encode, find_columns, make_encoder, node_names, plain
from kinfolk.table.groups import UNEXPLAINED, groups, spread
from kinfolk.table.judging import HeldOutErrors, judge
from kinfolk.table.kin import control_graph, kinship
from kinfolk.table.nodemodels import KINDS, NodeModels
from kinfolk.table.reading import fingerprint
from kinfolk.table.settings import Settings
from kinfolk.table.splits import folds, held_out_rows, table_times
from kinfolk.table.tablerun import LamPath, TableRun
from kinfolk.typing import Bools, Floats, Ints

FINE = 1e-6  # how exactly the answer is fitted
MOST_ROUNDS = 10_000
MOST_NUMBERS = 12  # of a signature
TITLES = {"final": "final: each node what suits it best", "control": "control: the same on a random graph"}
ROWS = ("final", "tailored", "alone", "pooled", "control")  # of the leaderboard


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
    settings : the others of ``kinfolk.table.Settings``: features, coords, graph, method, lam, test, time, ...

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
    return {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}


def learn_prepared(prepared: Prepared, *, progress: bool = True, journal: Journal | None = None) -> TableRun:
    """``learn``, after ``prepare`` has refused what cannot work."""
    began = time.perf_counter()
    with progress_bar("learning", 0, enabled=progress) as bar:
        chosen = _choose(prepared, journal or Forgetful(), bar)
        learnt = _learn(chosen, bar)
    return _finish(prepared, chosen, learnt, time.perf_counter() - began)


# ---------------------------------------------------------------------- what the table says


@dataclasses.dataclass(frozen=True, eq=False)
class Prepared:
    """A table as learning sees it."""

    settings: Settings
    fingerprint: str
    row_count: int
    table: pandas.DataFrame  # rows with a target
    family: Family
    columns: Columns
    encoder: Any
    target: Target
    owner: Ints  # (rows,)
    X: Floats  # (rows, features)
    y: Floats  # (rows,)
    held_out: Bools  # (rows,)
    training: Training
    places: Floats | None
    notes: list[str]

    @property
    def tested(self) -> Ints:
        """The node of every test row."""
        return self.owner[self.held_out]


def prepare(table: pandas.DataFrame, settings: Settings, *, edges: Any = None, model: Any = None) -> Prepared:
    """Refuse what cannot work; split; encode, fitted to the training rows alone. ``model``: one that has no name."""
    settings.check()
    if not isinstance(table, pandas.DataFrame):
        raise InputError(f"Expected a data frame, got {type(table).__name__}: read a file with kinfolk.read_table.")
    columns = find_columns(table, settings)
    mark, count, notes = fingerprint(table), len(table), list(columns.notes)
    lost = table[columns.target].isna()
    if lost.any():
        notes.append(f"{int(lost.sum()):,} rows without a target were left out.")
        table = table[~lost]
    names = sorted(table[columns.node].map(str).unique())
    owner = np.searchsorted(np.array(names, dtype=object), node_names(table, columns.node)).astype(np.int64)
    held_out = held_out_rows(table, columns, settings, owner)
    target = Target.of(table[columns.target], ~held_out, settings)
    family = family_of(settings.model if model is None else model, target)
    family.check(settings.method)
    y = target.encode(table[columns.target])
    unseen = held_out & np.isnan(y)
    if unseen.any():
        notes.append(f"{int(unseen.sum()):,} test rows have a class that no training row has: not tested.")
    kin, places = kinship(table, columns, settings, names, edges)
    encoder = make_encoder(columns).set_output(transform="default")
    encoder.fit(plain(table[~held_out], columns))
    X = encode(encoder, table, columns)
    times = table_times(table, columns.time)[~held_out] if columns.time else None
    train = ~held_out
    training = Training(
        X[train], y[train], owner[train], names, list(map(str, encoder.get_feature_names_out())), target, kin,
        list(folds(owner[train], times, settings.folds, settings.seed)), settings.seed,
    )  # fmt: skip
    return Prepared(
        settings=settings,
        fingerprint=mark,
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


@dataclasses.dataclass(frozen=True, eq=False)
class Chosen:
    """The best strength of every way to learn."""

    network: Network  # all training rows
    validations: dict[str, Validation]  # by role
    control: Graph | None


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
    control, rewired = _controls(network, parts, settings.seed)
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


@dataclasses.dataclass(frozen=True, eq=False)
class Learnt:
    """The answers, and the path of the tailored one."""

    fits: dict[str, Fit]  # by role
    along: list[Fit]  # the tailored one, along λ


def _learn(chosen: Chosen, bar: Bar) -> Learnt:
    """Fit everything to all training rows; the tailored models also along λ."""
    fits: dict[str, Fit] = {}
    for role, validation in chosen.validations.items():
        network = chosen.network
        if role == "control":
            assert chosen.control is not None
            network = network.with_graph(chosen.control)
        if role != "tailored":
            fits[role] = next(validation.candidate.fits(network, [validation.strength], ROUGH))
    best = chosen.validations["tailored"]
    bar.expect(len(best.candidate.strengths))
    along = []
    for each in best.candidate.fits(chosen.network, best.candidate.strengths, ROUGH):
        along.append(each)
        bar.advance(1, "along λ")
    fits["tailored"] = _refined(best.candidate, chosen.network, along[best.best])
    return Learnt(fits, along)


def _refined(candidate: Candidate, network: Network, rough: Fit) -> Fit:
    """The answer itself, from the start, so that its history and its cost are those of one run."""
    began = time.perf_counter()
    rounds = MOST_ROUNDS if candidate.rounds >= 1_000 else 2 * candidate.rounds
    run = fit(network, candidate.algorithm(rough.strength), rounds=rounds, stop=Tolerance(FINE), progress=False)
    return Fit(rough.strength, run.models, run, time.perf_counter() - began)


def _finish(prepared: Prepared, chosen: Chosen, learnt: Learnt, seconds: float) -> TableRun:
    """Read the test rows, once, and say what came out."""
    validations, graph, settings = chosen.validations, chosen.network.graph, prepared.settings
    models = NodeModels(
        prepared.target, {role: each.models for role, each in learnt.fits.items()}, _taken(prepared, chosen)
    )
    said = {role: models.say(role, prepared.X[prepared.held_out], prepared.tested) for role in ("final", *validations)}
    truth = prepared.y[prepared.held_out]
    loss = {role: prepared.target.loss(each, truth) for role, each in said.items()}
    errors = HeldOutErrors(loss, prepared.tested, prepared.target)
    path = _path(prepared, chosen, learnt)
    unaided = bool((chosen.network.data.sizes[np.unique(prepared.tested)] > 0).any())
    recommended = min(KINDS, key=lambda role: validations[role].error)
    return TableRun(
        settings=settings,
        columns=prepared.columns,
        encoder=prepared.encoder,
        target=prepared.target,
        graph=graph,
        places=prepared.places,
        models=models,
        nodes=_nodes(prepared, chosen, models, errors, path),
        leaderboard=_leaderboard(prepared, chosen, learnt, errors, said, unaided),
        judgement=judge(errors, graph, recommended, unaided, settings.seed),
        path=path,
        edges=_edges(graph, learnt.fits["tailored"]),
        history=learnt.fits["tailored"].run.history,
        predictions=_predictions(prepared, said),
        notes=[*prepared.notes, *learnt.fits["tailored"].run.notes, *_missing_rows(prepared, chosen, unaided)],
        about=_about(prepared, learnt, seconds),
    )


def _taken(prepared: Prepared, chosen: Chosen) -> Any:
    """What each node ends with: whichever is best on its own validation rows, shrunk to the network's mean gain.

    Nobody is harmed for the sake of others. A node is left alone only if that was tried on rows of its own.
    """
    loss = {role: chosen.validations[role].row_loss for role in KINDS}
    owner, count = prepared.training.owner, len(prepared.training.names)
    tried = np.bincount(owner, chosen.validations["alone"].own, minlength=count) > 0
    gains = np.zeros((len(KINDS), count))
    for k, role in enumerate(KINDS):
        if role != "tailored":
            gains[k] = shrunken_gain(loss["tailored"] - loss[role], owner, count)
    gains[KINDS.index("alone"), ~tried] = -np.inf
    return np.array(KINDS)[gains.argmax(axis=0)]


def _nodes(
    prepared: Prepared, chosen: Chosen, models: NodeModels, errors: HeldOutErrors, path: LamPath
) -> pandas.DataFrame:
    """One row per node: sizes, errors in the units of the leaderboard, the gain over its better baseline, its group."""
    names, count = prepared.training.names, len(prepared.training.names)
    mean = errors.by_node(count)
    baseline = mean[["alone", "pooled"]].min(axis=1)
    shown = {f"error_{role}": prepared.target.shown(mean[role].to_numpy()) for role in ("final", *KINDS)}
    return pandas.DataFrame(
        {
            "train_rows": np.bincount(prepared.training.owner, minlength=count),
            "test_rows": np.bincount(prepared.tested, minlength=count),
            **shown,
            "gain": errors.less(mean["tailored"], baseline),
            "gain_alone": errors.less(mean["tailored"], mean["alone"]),
            "group": path.groups[path.chosen],
            "model": models.taken,
        },
        index=pandas.Index(names, name=prepared.columns.node),
    )


def _leaderboard(
    prepared: Prepared, chosen: Chosen, learnt: Learnt, errors: HeldOutErrors, said: dict[str, Floats], unaided: bool
) -> pandas.DataFrame:
    """Every method on the same test rows: error, whom it helps and hurts, seconds, bytes."""
    mean = errors.by_node(len(prepared.training.names)).dropna()
    reference = "alone" if unaided else "pooled"
    truth, rows = prepared.y[prepared.held_out], []
    for role in (role for role in ROWS if role in said and (unaided or role != "alone")):
        validation = chosen.validations.get(role)
        fitted = learnt.fits.get(role, learnt.fits["tailored"])
        row = {
            "role": role,
            "method": TITLES.get(role) or chosen.validations[role].candidate.title,
            "error": float(prepared.target.shown(mean[role].mean())),
            "helped": np.nan if role == reference else 100 * float((mean[role] < mean[reference]).mean()),
            "hurt": np.nan if role == reference else 100 * float((mean[role] > mean[reference]).mean()),
            "strength": np.nan if validation is None else validation.strength,
            "seconds": fitted.seconds,
            "bytes": _bytes(role, prepared, fitted),
        }
        if prepared.target.classifies:
            row["wrong"] = 100 * float((said[role].argmax(axis=1) != truth).mean())
        rows.append(row)
    return pandas.DataFrame(rows).set_index("role")


def _bytes(role: str, prepared: Prepared, fitted: Fit) -> float:
    """What would have been sent in a federation; one model for all needs every row in one place."""
    if role == "pooled":
        return float(8 * prepared.training.X.size + 8 * prepared.training.y.size)
    return 0.0 if role == "alone" else float(fitted.run.history["bytes"].iloc[-1])


def _missing_rows(prepared: Prepared, chosen: Chosen, unaided: bool) -> list[str]:
    """Why a row is missing in the leaderboard, or not what it seems."""
    tested = np.unique(prepared.tested)
    bare = int((chosen.network.data.sizes[tested] == 0).sum())
    notes = []
    if not unaided:
        notes.append("Alone is impossible: no tested node has training rows.")
    elif bare:
        notes.append(f"{bare:,} tested nodes have no training rows: alone they are given the model of all.")
    if "control" not in chosen.validations:
        notes.append("There is no control: no other graph has the same degrees, or too few to draw one.")
    return notes


def _path(prepared: Prepared, chosen: Chosen, learnt: Learnt) -> LamPath:
    """The tailored models along λ, in a few numbers per node."""
    validation, graph = chosen.validations["tailored"], chosen.network.graph
    described = [_signature(each) for each in learnt.along]
    signature = np.array([numbers for numbers, _ in described])
    names = described[0][1]
    target = spread(_filled(signature[validation.best])) * UNEXPLAINED
    found = np.array([groups(graph, _filled(numbers), target) for numbers in signature])
    shown = prepared.target.shown(validation.errors)
    return LamPath(
        lams=np.array([each.strength for each in learnt.along]),
        chosen=validation.best,
        errors=shown.mean(axis=1),
        spread=shown.std(axis=1, ddof=1) / np.sqrt(shown.shape[1]) if shown.shape[1] > 1 else np.zeros(len(shown)),
        groups=found,
        signature=signature[:, :, :MOST_NUMBERS],
        names=names[:MOST_NUMBERS],
        coefficients=hasattr(learnt.along[0].models, "w"),
    )


def _signature(fitted: Fit) -> tuple[Floats, tuple[str, ...]]:
    """Numbers that describe the model of every node: parameters, or what it says of public points."""
    w = getattr(fitted.models, "w", None)
    if w is not None:
        return w, (*fitted.run.network.features, "intercept")
    said = fitted.run.state.said
    flat = said.reshape(len(said), -1)
    return flat, tuple(f"point {k}" for k in range(flat.shape[1]))


def _filled(numbers: Floats) -> Floats:
    """Nodes without a model are like the mean of the others."""
    return np.where(np.isnan(numbers), np.nanmean(numbers, axis=0), numbers)


def _edges(graph: Graph, fitted: Fit) -> pandas.DataFrame:
    """The edges with their weights, and how strongly their ends pull at each other."""
    u = getattr(fitted.run.state, "u", None)
    if u is None:
        numbers, _ = _signature(fitted)
        u = graph.weights[:, None] * (numbers[graph.head] - numbers[graph.tail]) / np.sqrt(numbers.shape[1])
    frame = pandas.DataFrame({"head": graph.head, "tail": graph.tail, "weight": graph.weights})
    return frame.assign(flow=np.nan_to_num(np.linalg.norm(u, axis=1)))


def _predictions(prepared: Prepared, said: dict[str, Floats]) -> pandas.DataFrame:
    """The held-out rows: node, truth, and what every method says."""
    table, target = prepared.table[prepared.held_out], prepared.target
    truth = table[prepared.columns.target]
    frame = pandas.DataFrame(
        {"row": table.index, "node": node_names(table, prepared.columns.node), "target": truth.to_numpy()}
    )
    frame = frame.assign(**{role: target.decode(each) for role, each in said.items()})
    for k, label in enumerate(target.classes):
        frame[f"probability of {label}"] = said["final"][:, k]
    return frame


def _about(prepared: Prepared, learnt: Learnt, seconds: float) -> dict[str, Any]:
    """How it was made: versions, the fingerprint of the table, what was exchanged, and the certificate."""
    run = learnt.fits["tailored"].run
    training = prepared.training
    return {
        "kinfolk": kinfolk.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "fingerprint": prepared.fingerprint,
        "rows": prepared.row_count,
        "train_rows": len(training.y),
        "test_rows": int(prepared.held_out.sum()),
        "features": training.features,
        "graph": str(training.kinship),
        "public": str(run.network.public) if hasattr(run.state, "said") else "",
        "algorithm": type(run.algorithm).__name__,
        "rounds": run.rounds,
        "stopped": run.stopped,
        "certificate": "" if run.certificate is None else str(run.certificate),
        "seconds": round(seconds, 2),
    }
