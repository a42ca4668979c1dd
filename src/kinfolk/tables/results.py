"""What came out, as tables: one row per method, one per node, one per edge, one per held-out row. All is derived."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas

from kinfolk.report.facts import SHOWN_ROLES, Role, probability_by
from kinfolk.tables.columns import node_names, plain_value
from kinfolk.tables.node_gains import node_gains
from kinfolk.tables.table_rows import TableRows
from kinfolk.tables.target import Target
from kinfolk.typing import Floats

if TYPE_CHECKING:
    from kinfolk.tables.table_run import TableRun


def leaderboard(run: TableRun) -> pandas.DataFrame:
    """The blend, its members, baselines, control and rivals on the same test rows: error, weight, seconds, bytes."""
    mean = run.errors.by_node(run.graph.node_count).dropna()
    kept = [name for name in mean.columns if run.alone_is_possible or name != Role.ALONE]
    rows = {name: {**_account(run, name), "error": float(run.target.shown(mean[name].mean()))} for name in kept}
    if run.target.classifies:
        truth = run.predictions["target"].map(plain_value)
        for name, row in rows.items():
            row["wrong"] = 100 * float((run.predictions[name].map(plain_value) != truth).mean())
    return pandas.DataFrame.from_dict(rows, orient="index").rename_axis("name")


def _account(run: TableRun, name: str) -> dict[str, Any]:
    """What is known of a line besides its error; the blend costs what all its members cost."""
    if name != Role.FINAL:
        entry = run.entries[name]
        costs = {"seconds": entry.seconds, "bytes": entry.sent, "needs": entry.needs}
        validated = float(run.target.shown(entry.error))
        return {"part": entry.part, "method": entry.method, "weight": entry.weight, "validated": validated, **costs}
    used = [entry for entry in run.entries.values() if entry.weight]
    pooled = max((entry.sent for entry in used if entry.needs == "rows of all"), default=0.0)
    sent = pooled + sum(entry.sent for entry in used if entry.needs != "rows of all")
    costs = {"seconds": sum(entry.seconds for entry in used), "bytes": sent, "needs": ""}
    return {"part": "final", "method": "", "weight": None, "validated": np.nan, **costs}


def nodes(run: TableRun) -> pandas.DataFrame:
    """One row per node: sizes, errors in the units of the leaderboard, gains with their standard errors, its group.

    Gains are those of the models that predict over the baseline that is better for the whole network, drawn towards the
    mean of all nodes where test rows are few. Where no tested node has training rows, none has an error alone.
    """
    count = run.graph.node_count
    mean = run.errors.by_node(count)
    if not run.alone_is_possible:
        mean[Role.ALONE] = np.nan
    gain, gain_error = node_gains(run.errors, Role.FINAL, run.judgement.against, count)
    shown = {f"error_{role}": run.target.shown(mean[role].to_numpy()) for role in (Role.FINAL, *SHOWN_ROLES)}
    return pandas.DataFrame(
        {
            "train_rows": run.train_rows,
            "test_rows": np.bincount(run.errors.owner, minlength=count),
            **shown,
            "gain": gain,
            "gain_error": gain_error,
            "group": run.path.groups[run.path.chosen],
        },
        index=pandas.Index([str(name) for name in run.graph.names], name="node"),
    )


def edges(run: TableRun) -> pandas.DataFrame:
    """The edges with their weights, and how strongly their ends pull at each other."""
    graph = run.graph
    return pandas.DataFrame({"head": graph.head, "tail": graph.tail, "weight": graph.weights, "flow": run.flow})


def held_out_predictions(rows: TableRows, predicted: Mapping[str, Floats]) -> pandas.DataFrame:
    """The held-out rows: node, truth, and the prediction of everything compared.

    For classes also the probabilities of the blend, and those of every method for the class that the blend predicts.
    """
    table, target = rows.table[rows.held_out], rows.target
    truth = table[rows.columns.target] if target.classes else pandas.Series(target.decode(rows.test.y))
    frame = pandas.DataFrame(
        {"row": _plain_index(table.index), "node": node_names(table, rows.columns.node), "target": truth.to_numpy()}
    )
    frame = frame.assign(**{name: target.decode(each) for name, each in predicted.items()})
    return frame.assign(**_probabilities(target, predicted)) if target.classes else frame


def _probabilities(target: Target, predicted: Mapping[str, Floats]) -> dict[str, Floats]:
    final = predicted[Role.FINAL]
    rows, likeliest = np.arange(len(final)), final.argmax(axis=1)
    of_classes = {f"probability of {label}": final[:, k] for k, label in enumerate(target.classes)}
    return of_classes | {probability_by(name): each[rows, likeliest] for name, each in predicted.items()}


def _plain_index(index: pandas.Index) -> Any:
    """Labels of rows that can be written anywhere: numbers as they are, all else as text."""
    return index if pandas.api.types.is_integer_dtype(index) else index.map(str)
