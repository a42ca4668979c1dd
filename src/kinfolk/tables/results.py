"""What came out, as tables: one row per method, one per node, one per edge, one per held-out row. All is derived."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas

from kinfolk.report.facts import MODEL_ROLES, Role
from kinfolk.tables.columns import node_names, plain_value
from kinfolk.tables.node_gains import node_gains
from kinfolk.tables.prepared import Prepared
from kinfolk.typing import Floats

if TYPE_CHECKING:
    from kinfolk.tables.table_run import TableRun

FLOAT = 8  # bytes


def leaderboard(run: TableRun) -> pandas.DataFrame:
    """Every role on the same test rows: error, the nodes it helps and hurts, seconds, bytes."""
    mean = run.errors.by_node(run.graph.node_count).dropna()
    reference = Role.ALONE if run.alone_is_possible else Role.POOLED
    rows = {}
    for role in (role for role in Role if role.value in mean and (run.alone_is_possible or role is not Role.ALONE)):
        member, error = run.members[Role.TAILORED if role is Role.FINAL else role], mean[role]
        better, worse = ((100 * float(each.mean())) for each in (error < mean[reference], error > mean[reference]))
        rows[role.value] = {
            "method": "" if role is Role.FINAL else member.method,
            "error": float(run.target.shown(error.mean())),
            "helped": np.nan if role is reference else better,
            "hurt": np.nan if role is reference else worse,
            "parameter": "" if role is Role.FINAL else member.parameter,
            "value": np.nan if role is Role.FINAL else member.value,
            "seconds": member.seconds,
            "bytes": _bytes(run, role),
        }
        if run.target.classifies:
            truth = run.predictions["target"].map(plain_value)
            rows[role.value]["wrong"] = 100 * float((run.predictions[role.value].map(plain_value) != truth).mean())
    return pandas.DataFrame.from_dict(rows, orient="index").rename_axis("role")


def _bytes(run: TableRun, role: Role) -> float:
    """What would have been sent in a federation; one model for all needs every row in one place."""
    if role is Role.POOLED:
        return float(FLOAT * run.train_rows.sum() * (len(run.features) + 1))
    history = run.members[Role.TAILORED if role is Role.FINAL else role].run.history
    return 0.0 if role is Role.ALONE else float(history["bytes"].iloc[-1])


def nodes(run: TableRun) -> pandas.DataFrame:
    """One row per node: sizes, errors in the units of the leaderboard, gains with their standard errors, its group.

    Gains are those of the models that predict over the baseline that is better for the whole network, drawn towards the
    mean of all nodes where test rows are few.
    """
    count = run.graph.node_count
    mean = run.errors.by_node(count)
    gain, gain_error = node_gains(run.errors, Role.FINAL, run.judgement.against, count)
    shown = {f"error_{role}": run.target.shown(mean[role].to_numpy()) for role in (Role.FINAL, *MODEL_ROLES)}
    return pandas.DataFrame(
        {
            "train_rows": run.train_rows,
            "test_rows": np.bincount(run.errors.owner, minlength=count),
            **shown,
            "gain": gain,
            "gain_error": gain_error,
            "group": run.path.groups[run.path.chosen],
            "role": [role.value for role in run.roles],
        },
        index=pandas.Index([str(name) for name in run.graph.names], name="node"),
    )


def edges(run: TableRun) -> pandas.DataFrame:
    """The edges with their weights, and how strongly their ends pull at each other."""
    graph = run.graph
    return pandas.DataFrame({"head": graph.head, "tail": graph.tail, "weight": graph.weights, "flow": run.flow})


def held_out_predictions(prepared: Prepared, predicted: Mapping[Role, Floats]) -> pandas.DataFrame:
    """The held-out rows: node, truth, and the prediction of every role."""
    table, target = prepared.table[prepared.held_out], prepared.target
    truth = table[prepared.columns.target]
    frame = pandas.DataFrame(
        {"row": _plain_index(table.index), "node": node_names(table, prepared.columns.node), "target": truth.to_numpy()}
    )
    frame = frame.assign(**{role.value: target.decode(each) for role, each in predicted.items()})
    for k, label in enumerate(target.classes):
        frame[f"probability of {label}"] = predicted[Role.FINAL][:, k]
    return frame


def _plain_index(index: pandas.Index) -> Any:
    """Labels of rows that can be written anywhere: numbers as they are, all else as text."""
    return index if pandas.api.types.is_integer_dtype(index) else index.map(str)
