"""What is asked and answered over HTTP: the bodies of requests and responses, checked before any work."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
import pandas
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr

from kinfolk.checks import InputError, listing
from kinfolk.report.facts import Role
from kinfolk.tables.columns import node_names
from kinfolk.tables.table_run import TableRun

Whole = Annotated[StrictInt, Field(ge=-(2**63), lt=2**63)]
Cell = StrictBool | Whole | StrictFloat | StrictStr | None
Name = StrictStr | Whole


class Question(BaseModel):
    """Rows to predict, and how."""

    model_config = ConfigDict(extra="forbid")
    rows: Annotated[
        list[dict[str, Cell]], Field(min_length=1, description="The node and the features of each row; null: missing.")
    ]
    interval: Annotated[
        float | None, Field(description="The share of targets that shall lie between low and high, such as 0.9.")
    ] = None
    role: Annotated[str, Field(description="Which models: final (the blend), or a member by name.")] = Role.FINAL.value
    unknown: Annotated[
        Literal["refuse", "pooled"], Field(description="Nodes never seen: refuse them, or use the model of all.")
    ] = "refuse"
    edges: Annotated[
        list[tuple[Name, Name]] | None, Field(description="Pairs of nodes: neighbours of nodes never seen.")
    ] = None


class Prediction(BaseModel):
    """The prediction of one row."""

    node: str
    predicted: float | str
    low: float | None = None
    high: float | None = None
    probabilities: dict[str, float] | None = None


class Answer(BaseModel):
    """Predictions, in the order of the rows."""

    target: str
    predictions: list[Prediction]


class Refusal(BaseModel):
    """Why there is no answer: what was expected, what was given, and what to do."""

    error: str


class Health(BaseModel):
    """That the service is there, and with which run."""

    status: Literal["ok"] = "ok"
    kinfolk: str
    target: str
    nodes: int
    fingerprint: Annotated[str, Field(description="Of the table that was learnt from.")]


class NodeFacts(BaseModel):
    """What is known of a node; an error is null where it was not tested."""

    node: str
    train_rows: int
    test_rows: int
    error: float | None
    group: int


def answer(run: TableRun, question: Question) -> Answer:
    """Predict all rows of a question, or refuse it in one sentence."""
    table = _table(run, question.rows)
    edges = None if question.edges is None else pandas.DataFrame(question.edges, dtype=object)
    options: dict[str, Any] = {"role": question.role, "unknown": question.unknown, "edges": edges}
    found = pandas.DataFrame(run.predict(table, interval=question.interval, **options))
    found = found.rename(columns={run.columns.target: "predicted"})
    columns: dict[str, list[Any]] = {"node": list(node_names(table, run.columns.node))}
    columns |= {str(name): found[name].tolist() for name in found}
    if run.target.classes:
        columns["predicted"] = [str(label) for label in columns["predicted"]]
        columns["probabilities"] = _chances(run.predict_proba(table, **options))
    else:
        _check_finite(found)
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return Answer(target=run.columns.target, predictions=[Prediction.model_construct(**row) for row in rows])


def _chances(probabilities: pandas.DataFrame) -> list[dict[str, float]]:
    labels = [str(label) for label in probabilities.columns]
    return [dict(zip(labels, row, strict=True)) for row in probabilities.to_numpy().tolist()]


def _table(run: TableRun, rows: list[dict[str, Cell]]) -> pandas.DataFrame:
    """The rows as a table; each must have every column, as a value that is left out by mistake is none to guess."""
    wanted = (run.columns.node, *run.columns.features)
    for k, row in enumerate(rows):
        missing = [name for name in wanted if name not in row]
        if missing:
            raise InputError(
                f"Expected {listing(wanted, 12)} in every row, row {k} has no {listing(missing)}: null stands for a "
                "missing value."
            )
    return pandas.DataFrame(rows)


def _check_finite(found: pandas.DataFrame) -> None:
    lost = np.flatnonzero(~np.isfinite(found.to_numpy(dtype=np.float64)).all(axis=1))
    if len(lost):
        raise InputError(f"Expected numbers that can be predicted from, row {lost[0]} gives infinity: correct it.")
