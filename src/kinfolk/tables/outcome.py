"""What came out: the test rows are read, once, and everything about a run is put into words and tables."""

from __future__ import annotations

import platform
from typing import Any

import numpy as np
import pandas

from kinfolk.engine.leaving import what_leaves
from kinfolk.engine.run import Run
from kinfolk.network.graph import Graph
from kinfolk.report.facts import KINDS
from kinfolk.tables.candidates import Fit
from kinfolk.tables.choosing import shrunken_gain
from kinfolk.tables.columns import node_names
from kinfolk.tables.groups import UNEXPLAINED, groups, spread
from kinfolk.tables.judging import HeldOutErrors, judge
from kinfolk.tables.nodemodels import NodeModels
from kinfolk.tables.stages import Chosen, Learnt, Prepared
from kinfolk.tables.tablerun import LamPath, TableRun
from kinfolk.typing import Floats
from kinfolk.version import __version__

MOST_NUMBERS = 12  # of a signature
TITLES = {"final": "final: each node what suits it best", "control": "control: the same on a random graph"}
ROWS = ("final", "tailored", "alone", "pooled", "control")  # of the leaderboard


def table_run(prepared: Prepared, chosen: Chosen, learnt: Learnt, seconds: float) -> TableRun:
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
    alone_is_possible = bool((chosen.network.data.sizes[np.unique(prepared.tested)] > 0).any())
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
        leaderboard=_leaderboard(prepared, chosen, learnt, errors, said, alone_is_possible),
        judgement=judge(errors, graph, recommended, alone_is_possible, settings.seed),
        path=path,
        edges=_edges(graph, learnt.fits["tailored"]),
        history=learnt.fits["tailored"].run.history,
        predictions=_predictions(prepared, said),
        notes=[
            *prepared.notes,
            *learnt.fits["tailored"].run.notes,
            *_missing_rows(prepared, chosen, alone_is_possible),
        ],
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
        index=pandas.Index(names, name="node"),
    )


def _leaderboard(
    prepared: Prepared,
    chosen: Chosen,
    learnt: Learnt,
    errors: HeldOutErrors,
    said: dict[str, Floats],
    alone_is_possible: bool,
) -> pandas.DataFrame:
    """Every method on the same test rows: error, whom it helps and hurts, seconds, bytes."""
    mean = errors.by_node(len(prepared.training.names)).dropna()
    reference = "alone" if alone_is_possible else "pooled"
    truth, rows = prepared.y[prepared.held_out], []
    for role in (role for role in ROWS if role in said and (alone_is_possible or role != "alone")):
        validation = chosen.validations.get(role)
        fitted = learnt.fits.get(role, learnt.fits["tailored"])
        row = {
            "role": role,
            "method": TITLES.get(role) or chosen.validations[role].candidate.title,
            "error": float(prepared.target.shown(mean[role].mean())),
            "helped": np.nan if role == reference else 100 * float((mean[role] < mean[reference]).mean()),
            "hurt": np.nan if role == reference else 100 * float((mean[role] > mean[reference]).mean()),
            "strength": np.nan if validation is None else validation.strength,
            "strength_name": "" if validation is None else validation.candidate.strength_name,
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


def _missing_rows(prepared: Prepared, chosen: Chosen, alone_is_possible: bool) -> list[str]:
    """Why a row is missing in the leaderboard, or not what it seems."""
    tested = np.unique(prepared.tested)
    bare = int((chosen.network.data.sizes[tested] == 0).sum())
    notes = []
    if not alone_is_possible:
        notes.append("Alone is impossible: no tested node has training rows.")
    elif bare:
        notes.append(f"{bare:,} tested nodes have no training rows: alone they are given the model of all.")
    if not chosen.validations["tailored"].candidate.uses_graph:
        notes.append("The graph plays no part in this method; it is there to look at.")
    elif "control" not in chosen.validations:
        notes.append("There is no control: no other graph has the same degrees, or too few to draw one.")
    return notes


def _path(prepared: Prepared, chosen: Chosen, learnt: Learnt) -> LamPath:
    """The tailored models along λ, in a few numbers per node; those of the answer alone where there is no λ."""
    validation, graph = chosen.validations["tailored"], chosen.network.graph
    kept = slice(None) if validation.candidate.warm_start else slice(validation.best, validation.best + 1)
    best = validation.best if validation.candidate.warm_start else 0
    described = [_signature(each) for each in learnt.along[kept]]
    signature = np.array([numbers for numbers, _ in described])
    names = described[0][1]
    target = spread(_filled(signature[best])) * UNEXPLAINED
    found = np.array([groups(graph, _filled(numbers), target) for numbers in signature])
    errors = validation.errors[kept]
    shown = prepared.target.shown(errors)
    return LamPath(
        lams=np.array([each.strength for each in learnt.along[kept]]),
        chosen=best,
        errors=prepared.target.shown(errors.mean(axis=1)),
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


def _plain_index(index: pandas.Index) -> Any:
    """Labels of rows that can be written anywhere: numbers as they are, all else as text."""
    return index if pandas.api.types.is_integer_dtype(index) else index.map(str)


def _predictions(prepared: Prepared, said: dict[str, Floats]) -> pandas.DataFrame:
    """The held-out rows: node, truth, and what every method says."""
    table, target = prepared.table[prepared.held_out], prepared.target
    truth = table[prepared.columns.target]
    frame = pandas.DataFrame(
        {"row": _plain_index(table.index), "node": node_names(table, prepared.columns.node), "target": truth.to_numpy()}
    )
    frame = frame.assign(**{role: target.decode(each) for role, each in said.items()})
    for k, label in enumerate(target.classes):
        frame[f"probability of {label}"] = said["final"][:, k]
    return frame


def _sends(run: Run) -> list[dict[str, Any]] | None:
    """What the tailored models' algorithm declares to leave a node; None if it declares nothing."""
    if run.algorithm.sends(run.problem) is None:
        return None
    table = what_leaves(run.algorithm, run.problem)
    return [{str(name): value for name, value in row.items()} for row in table.to_dict("records")]


def _about(prepared: Prepared, learnt: Learnt, seconds: float) -> dict[str, Any]:
    """How it was made: versions, the fingerprint of the table, what was exchanged, and the certificate."""
    run = learnt.fits["tailored"].run
    training = prepared.training
    return {
        "kinfolk": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "fingerprint": prepared.fingerprint,
        "rows": prepared.row_count,
        "train_rows": len(training.y),
        "test_rows": int(prepared.held_out.sum()),
        "features": training.features,
        "graph": str(training.kinship),
        "public": str(run.network.public) if hasattr(run.state, "said") else "",
        "sends": _sends(run),
        "algorithm": type(run.algorithm).__name__,
        "rounds": run.rounds,
        "stopped": run.stopped,
        "certificate": "" if run.certificate is None else str(run.certificate),
        "seconds": round(seconds, 2),
    }
