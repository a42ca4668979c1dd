"""The design: what is known of a table, or of those of several sites, once rows are encoded. It has no rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from kinfolk.network.graph import Graph
from kinfolk.report.facts import Note, on_globe
from kinfolk.tables.blend import evidence_of_times, fold_factors
from kinfolk.tables.columns import Columns
from kinfolk.tables.encoding import Encoder
from kinfolk.tables.families import Family
from kinfolk.tables.graph_source import GraphSource
from kinfolk.tables.settings import Settings
from kinfolk.tables.target import Target
from kinfolk.typing import Floats, Ints

NO_TIMES = np.empty(0)


@dataclass(frozen=True, eq=False)
class Design:
    """What is learnt from, in names, scales and numbers of rows.

    Attributes
    ----------
    settings, columns, encoder, target, family
        What was asked for, what each column is for, and how it becomes numbers.
    names : list of str
        Of the nodes.
    numbers : list of array of int
        The nodes of every party.
    train_rows, test_rows : array of int, shape (nodes,)
        Rows of every node.
    part_rows : array of int, shape (folds + 1, nodes)
        Rows that are learnt from without each fold; the last part is all training rows.
    held : array of int, shape (folds,)
        Rows that each fold predicts.
    kind : {"rows", "nodes", "times"}
        What the rows of a fold share.
    test_times, predicted_times : array of float
        The different times of the test and of cross-validation; none where no later times are predicted.
    time : str or None
        The column with the times, where later times are predicted.
    places : array of float, shape (nodes, 2), or None
        Where the nodes are.
    source : GraphSource
        How the graph comes about.
    wide : Graph or None
        The graph with more neighbours.
    notes : list of Note
        What a user should know.
    own_members : dict
        Members that are the user's own, by name.
    trend_left_out : bool
        Whether features that grow with time are at zero.
    """

    settings: Settings
    columns: Columns
    encoder: Encoder
    target: Target
    family: Family
    names: list[str]
    numbers: list[Ints]
    train_rows: Ints
    test_rows: Ints
    part_rows: Ints
    held: Ints
    kind: Literal["rows", "nodes", "times"]
    test_times: Floats
    predicted_times: Floats
    time: str | None
    places: Floats | None
    source: GraphSource
    wide: Graph | None
    notes: list[Note]
    own_members: dict[str, Any] = field(default_factory=dict)
    trend_left_out: bool = False

    @property
    def node_count(self) -> int:
        """Number of nodes."""
        return len(self.names)

    @property
    def width(self) -> int:
        """Number of parameters of a linear model."""
        return len(self.encoder.get_feature_names_out()) + 1

    @property
    def folds(self) -> int:
        """Number of folds."""
        return len(self.held)

    @property
    def timed(self) -> bool:
        """Whether later times are predicted."""
        return self.kind == "times"

    @property
    def globe(self) -> bool:
        """Whether places are latitude and longitude."""
        return on_globe(self.columns.coords)

    @property
    def factors(self) -> Floats:
        """How much a row of every fold counts."""
        return fold_factors(self.kind, self.folds)

    @property
    def shares(self) -> Floats:
        """How much every fold counts, with sum 1."""
        weight = self.factors * self.held
        return np.asarray(weight / weight.sum())

    @property
    def trend(self) -> tuple[int, ...]:
        """The features that grow with time, where later times are predicted; none if they have been left out."""
        return () if self.trend_left_out else self.encoder.trend(self.time)

    @property
    def local_models_possible(self) -> bool:
        """Whether some tested node has training rows."""
        return bool((self.train_rows[self.test_rows > 0] > 0).any())

    def evidence(self, seen: int) -> int:
        """How many rows, nodes or different times were predicted in cross-validation; not too few times."""
        if self.kind == "times":
            return evidence_of_times(len(self.predicted_times), seen)
        return seen if self.kind == "rows" else int((self.train_rows > 0).sum())

    def by_node(self, answers: Sequence[Any]) -> Any:
        """Arrays of all parties, whose last axis are their nodes, put together."""
        first = np.asarray(answers[0])
        out = np.full((*first.shape[:-1], self.node_count), np.nan if first.dtype.kind == "f" else 0)
        for numbers, values in zip(self.numbers, answers, strict=True):
            out[..., numbers] = values
        return out.astype(first.dtype)


def without_trend(design: Design) -> Design:
    """The same with features that grow with time at zero."""
    note = Note("no trend", {"column": design.time})
    encoder = design.encoder.without(design.trend)
    return replace(design, encoder=encoder, trend_left_out=True, notes=[*design.notes, note])
