"""A table that has grown: rows that join those a run was learnt from, as learning sees them.

What the first fit decided about the table stays: which column is what, the scales of features and target, and which
rows are held out. New rows are training rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas

from kinfolk.checks import InputError, listing
from kinfolk.network import graphs
from kinfolk.network.graph import Graph
from kinfolk.network.network import Network
from kinfolk.report.facts import Note
from kinfolk.tables.columns import as_numbers, as_texts, check_names, check_size, node_names, some_rows
from kinfolk.tables.design import without_trend
from kinfolk.tables.encoding import NOTHING_LEFT, Encoder, encode
from kinfolk.tables.graph_source import graph_source, named_ends
from kinfolk.tables.places import filled, node_places, row_places
from kinfolk.tables.prepared import Prepared, design_of, prepare
from kinfolk.tables.reading import fingerprint
from kinfolk.tables.rows import Rows
from kinfolk.tables.splits import known_times
from kinfolk.tables.target import Target
from kinfolk.typing import Bools, Floats

if TYPE_CHECKING:
    from kinfolk.tables.table_run import TableRun

SAME_PLACE = 1e-6  # in the units of the coordinates
MOSTLY = 0.5  # new rows that are in the old table, too: then it is the old table that was given


@dataclass(frozen=True, eq=False)
class Given:
    """What a run was learnt from, as the user gave it; a folder keeps none of it."""

    parts: tuple[pandas.DataFrame, ...]  # the table, then the rows of each update; the columns are those of the table
    edges: pandas.DataFrame | None = None
    model: Any = None  # if it is an object
    members: Sequence[Any] = ()  # those that are objects

    @property
    def table(self) -> pandas.DataFrame:
        """All rows."""
        return pandas.concat(self.parts) if len(self.parts) > 1 else self.parts[0]

    @classmethod
    def of(cls, table: pandas.DataFrame | Sequence[pandas.DataFrame], *rest: Any) -> Given:
        """From one table, or from a table and the rows that were added to it."""
        first, *later = [table] if isinstance(table, pandas.DataFrame) else table
        first = first.rename(columns=str)
        return cls((first, *(each.rename(columns=str).reindex(columns=first.columns) for each in later)), *rest)


def prepared_before(run: TableRun, given: Given) -> Prepared:
    """The rows of a run as it saw them, or a sentence if these are not the rows that it was learnt from."""
    table = given.table
    if fingerprint(table) != run.made.fingerprint:
        raise InputError(
            f"Expected the table that the run was learnt from ({run.made.rows:,} rows, fingerprint "
            f"{run.made.fingerprint}), got {len(table):,} rows with fingerprint {fingerprint(table)}: has it changed "
            "since? Then fit again."
        )
    node = run.columns.node
    first, *later = _parts(run, given)
    edges = _among(given.edges, first[node])
    found = prepare(first, run.settings, edges=edges, model=given.model, members=given.members)
    if any(note.kind == "no trend" for note in run.remarks):
        found.rows.leave_out(found.rows.trend)
        found = dataclasses.replace(found, design=without_trend(found.design))
    for part in later:
        there = pandas.concat([found.rows.table[node], part[node]])
        found = extended(found, part, _among(given.edges, there))
    _check_same(run, found)
    return found


def _parts(run: TableRun, given: Given) -> Sequence[pandas.DataFrame]:
    """The rows of the first fit and of each update: as they came, or cut from one table."""
    sizes = [len(given.table)] if run.changes is None else run.changes.parts
    if [len(part) for part in given.parts] == list(sizes):
        return given.parts
    return [given.table.iloc[low:high] for low, high in pairwise(np.cumsum([0, *sizes]))]


def extended(before: Prepared, new: pandas.DataFrame, edges: pandas.DataFrame | None) -> Prepared:
    """A table with new training rows; columns as in the table before."""
    old = before.rows
    known = _with_target(new[old.columns.target], old.target)
    lost, new = int((~known).sum()), new[known]
    names = sorted({*old.nodes, *as_texts(new[old.columns.node])})
    check_names(names, old.columns.node)
    number = {name: k for k, name in enumerate(names)}
    moved = np.array([number[name] for name in old.nodes], dtype=np.int64)
    owner = np.array([number[name] for name in node_names(new, old.columns.node)], dtype=np.int64)
    X = encode(old.encoder, new, old.columns)
    X[:, old.encoder.scale == NOTHING_LEFT] = 0.0
    arrived = Rows(X, old.target.encode(new[old.columns.target]), owner, row_places(new, old.columns))
    rows = old.rows._replace(owner=moved[old.rows.owner])
    places = _places(before, rows, arrived, names)
    if places is not None and arrived.place is not None:
        arrived = arrived._replace(place=filled(arrived.place, owner, places))
    notes = [Note("rows without a target", {"count": lost})] if lost else []
    times, column = old.folding.all_times, old.folding.column
    all_times = None if times is None or column is None else np.r_[times, known_times(new[column])]
    after = dataclasses.replace(
        old, nodes=names, table=pandas.concat([old.table, new]), rows=_stacked(rows, arrived),
        held_out=np.r_[old.held_out, np.zeros(len(new), dtype=bool)],
        folding=dataclasses.replace(old.folding, folds=[], times=None, all_times=all_times),
    )  # fmt: skip
    design = before.design
    source = graph_source(places, old.columns, old.settings, names, edges)
    grown = design_of(after, design.family, source, places, [*design.notes, *notes], design.own_members)
    grown = dataclasses.replace(grown, trend_left_out=design.trend_left_out)
    return dataclasses.replace(before, design=grown, rows=after)


def aligned(new: pandas.DataFrame, run: TableRun, given: Given) -> pandas.DataFrame:
    """New rows with the columns of the table, or a sentence."""
    if not isinstance(new, pandas.DataFrame):
        raise InputError(f"Expected a data frame of new rows, got {type(new).__name__}: use kinfolk.read_table.")
    if new.empty:
        raise InputError("Expected new rows, got none.")
    columns, new = run.columns, new.rename(columns=str)
    if new.columns.duplicated().any():
        raise InputError(
            f"Expected columns with different names, got {new.columns[new.columns.duplicated()][0]!r} twice."
        )
    wanted = [columns.node, columns.target, *columns.features, *([] if columns.time is None else [columns.time])]
    missing = [name for name in dict.fromkeys(wanted) if name not in new]
    if missing:
        raise InputError(f"Expected the columns {listing(wanted, 12)}, the new rows have no {listing(missing)}.")
    if new[columns.node].isna().any():
        count = int(new[columns.node].isna().sum())
        raise InputError(f"Expected a node in every row, {count:,} new rows have none: fill or drop them.")
    if columns.mark is not None and columns.mark in new and new[columns.mark].nunique() > 1:
        raise InputError(
            f"Expected rows to learn from, column {columns.mark!r} marks some as test rows: leave them out."
        )
    found = new.reindex(columns=given.parts[0].columns)
    _check_new(found, given.table)
    return found


def _check_new(new: pandas.DataFrame, table: pandas.DataFrame) -> None:
    """Refuse the old table itself, or a later copy with the new rows at its end: they would count twice."""
    old, arrived = (set(_hashes(each)) for each in (table, new))
    twice = len(old & arrived)
    if twice > MOSTLY * len(arrived) and len(old) > MOSTLY * len(table):
        raise InputError(
            f"Expected rows that are new, {twice:,} of {len(new):,} are in the table of the run, too: give only "
            "those that were added since."
        )


def _hashes(table: pandas.DataFrame) -> Any:
    """A number for every row that is the same for rows with the same values."""
    return pandas.util.hash_pandas_object(table.apply(_comparable), index=False).to_numpy()


def _comparable(column: pandas.Series) -> pandas.Series:
    numeric = pandas.api.types.is_numeric_dtype(column) and not pandas.api.types.is_bool_dtype(column)
    return column.astype(np.float64) if numeric else as_texts(column)


def _with_target(column: pandas.Series, target: Target) -> Bools:
    """The rows that have a target; one that this run cannot learn is refused."""
    if target.classes:
        there = column.notna().to_numpy(dtype=bool)
        strange = there & np.isnan(target.encode(column))
        wanted = f"one of the classes {listing(target.classes, 12)}"
    else:
        values, wrong = as_numbers(column)
        there = ~np.isnan(values) | wrong
        strange = wrong | np.isinf(values) | ((values < 0) & (target.kind == "count"))
        wanted = "counts ≥ 0" if target.kind == "count" else "finite numbers"
    if strange.any():
        raise InputError(
            f"Expected {wanted} in the target column {column.name!r} of the new rows, got "
            f"{some_rows(column, strange)}: correct them, or fit again."
        )
    if not target.classes:
        check_size(np.abs(values[there]), str(column.name))
    if not there.any():
        raise InputError(f"Expected a target in the new rows, column {column.name!r} is empty.")
    return there


def _places(before: Prepared, rows: Rows, new: Rows, names: list[str]) -> Floats | None:
    """Where nodes are, with the new rows; a node that has stayed at one place must not move."""
    if rows.place is None or new.place is None or before.design.places is None:
        return None
    old = {name: place for name, place in zip(before.rows.nodes, before.design.places, strict=True)}
    here = np.array([old.get(name, (np.nan, np.nan)) for name in names])
    settled = not (np.abs(rows.place - here[rows.owner]) > SAME_PLACE).any()
    away = np.flatnonzero((np.abs(new.place - here[new.owner]) > SAME_PLACE).any(axis=1))
    if settled and len(away):
        raise InputError(
            f"Expected {names[new.owner[away[0]]]!r} where it was, the new rows have it elsewhere: correct "
            f"{before.rows.columns.coords[0]!r} and {before.rows.columns.coords[1]!r}, or fit again."
        )
    both = _stacked(rows, new)
    assert both.place is not None
    train = np.r_[before.rows.train, np.ones(len(new.y), dtype=bool)]
    return node_places(both.place, both.owner, train, names, before.rows.columns.coords)


def _stacked(first: Rows, second: Rows) -> Rows:
    place = None if first.place is None or second.place is None else np.vstack([first.place, second.place])
    return Rows(np.vstack([first.X, second.X]), np.r_[first.y, second.y], np.r_[first.owner, second.owner], place)


def joined_edges(parts: Sequence[pandas.DataFrame]) -> pandas.DataFrame:
    """Edges that came in several tables, by position: columns may have other names."""
    first, *later = parts
    for each in later:
        if each.shape[1] != first.shape[1]:
            raise InputError(
                f"Expected edges with {first.shape[1]} columns, as before, got {each.shape[1]}: with weights or "
                "without, but all alike."
            )
    return pandas.concat([first, *(each.set_axis(first.columns, axis=1) for each in later)], ignore_index=True)


def _among(edges: pandas.DataFrame | None, nodes: pandas.Series) -> pandas.DataFrame | None:
    """The edges between some nodes: later ones came with rows that came later."""
    if edges is None:
        return None
    names = set(as_texts(nodes))
    return edges.loc[[a in names and b in names for a, b in named_ends(edges)]]


# ---------------------------------------------------------------------- is it the same?


def _check_same(run: TableRun, found: Prepared) -> None:
    """Refuse if the table is not read as it was: other edges, another version, or an option that is missing."""
    rows, graph = found.rows, _graph(found)
    same = {
        "nodes": rows.nodes == [str(name) for name in run.graph.names],
        "scales of features": _same_encoders(rows.encoder, run.encoder),
        "a scale of the target": bool(np.isclose(rows.target.spread, run.target.spread)),
        "training rows": np.array_equal(found.design.train_rows, run.train_rows),
        "test rows": np.array_equal(rows.test.owner, run.errors.owner),
        "edges": np.array_equal(graph.head, run.graph.head) and np.array_equal(graph.tail, run.graph.tail)
        and np.allclose(graph.weights, run.graph.weights),
    }  # fmt: skip
    other = [name for name, holds in same.items() if not holds]
    if other:
        raise InputError(
            f"Expected to find the run in its table again, got other {listing(other)}: give the same edges, and use "
            f"the version of kinfolk that made it ({run.made.kinfolk}), or fit again."
        )


def _graph(found: Prepared) -> Graph:
    """Which nodes may be kin, from all training rows."""
    blank = graphs.edgeless(len(found.rows.nodes), found.rows.nodes)
    return found.design.source.graph(Network(blank, found.rows.part_data[-1]), found.rows.target)


def _same_encoders(first: Encoder, second: Encoder) -> bool:
    if first.get_feature_names_out() != second.get_feature_names_out():
        return False
    return bool(np.allclose(first.centre, second.centre) and np.allclose(first.scale, second.scale))
