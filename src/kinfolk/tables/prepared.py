"""From a table to what learning sees: refuse what cannot work, split, encode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas

from kinfolk.checks import InputError, comma_list
from kinfolk.report.facts import Note, on_globe
from kinfolk.tables.cautions import cautions, far_numbers
from kinfolk.tables.columns import as_texts, check_names, find_columns, node_names
from kinfolk.tables.design import NO_TIMES, Design
from kinfolk.tables.encoding import Encoder, encode, plain
from kinfolk.tables.families import Family, family_of
from kinfolk.tables.graph_source import GraphSource, graph_source, wide_graph
from kinfolk.tables.members.member import Member
from kinfolk.tables.members.own import own_members
from kinfolk.tables.own_code import given_name
from kinfolk.tables.places import filled, node_places, row_places
from kinfolk.tables.reading import fingerprint
from kinfolk.tables.rows import Rows
from kinfolk.tables.settings import Settings
from kinfolk.tables.splits import folding_like_the_test, held_in, held_out_rows, held_together
from kinfolk.tables.table_rows import TableRows
from kinfolk.tables.target import Target, known_targets, target_notes
from kinfolk.typing import Floats


@dataclass(frozen=True, eq=False)
class Prepared:
    """A table, ready to learn from: what is known of it, and its rows."""

    design: Design
    rows: TableRows
    fingerprint: str  # of the table
    edges_fingerprint: str  # of the edges, if some were given
    row_count: int

    @property
    def settings(self) -> Settings:
        """What was asked for."""
        return self.design.settings


def prepare_given(
    table: pandas.DataFrame, given: Mapping[str, Any], *, edges: Any = None, tested: bool = True
) -> Prepared:
    """``prepare``, with settings by name; the model and members may be objects."""
    model, members = given["model"], given["members"]
    members = comma_list(members) if isinstance(members, str) else members
    named = model if isinstance(model, str) else given_name(model)
    called = tuple(each if isinstance(each, str) else given_name(each) for each in members)
    own = [each for each in members if not isinstance(each, str)]
    settings = Settings.of({**given, "model": named, "members": called})
    return prepare(table, settings, edges=edges, model=model, members=own, tested=tested)


def prepare(
    table: pandas.DataFrame, settings: Settings, *, edges: Any = None, model: Any = None, members: Sequence[Any] = (),
    tested: bool = True,
) -> Prepared:  # fmt: skip
    """Refuse what cannot work; split; encode, fitted to the training rows alone.

    ``model`` and ``members`` are objects that have no name a file could hold. If nothing is to be ``tested``, all rows
    are training rows.
    """
    settings.check()
    if not isinstance(table, pandas.DataFrame):
        raise InputError(f"Expected a data frame, got {type(table).__name__}: read a file with kinfolk.read_table.")
    given = table.rename(columns=str)
    edges = edges_table(edges)
    table = given[known_targets(given[settings.target])] if settings.target in given else given
    timed = table[table[settings.time].notna()] if settings.time in table else table
    timeless, table = len(table) - len(timed), timed
    columns = find_columns(table, settings)
    names = sorted(as_texts(table[columns.node]).unique())
    check_names(names, columns.node)
    owner = np.searchsorted(np.array(names, dtype=object), node_names(table, columns.node)).astype(np.int64)
    place = row_places(table, columns)
    units = held_together(settings, owner, place, names, columns.coords)
    none = np.zeros(len(table), dtype=bool)
    held_out = held_out_rows(table, columns, settings, owner, units) if tested else none
    target = Target.of(table[columns.target], ~held_out, settings)
    family = family_of(settings.model if model is None else model, target)
    family.check(settings.method)
    own = own_members(settings.named_members(()), members, family.members, target)
    y = target.encode(table[columns.target])
    unseen = held_out & np.isnan(y)
    if tested and (unseen == held_out).all():
        raise InputError("Expected test rows of classes that training rows have, got none: hold out other rows.")
    places = None if place is None else node_places(place, owner, ~held_out, names, columns.coords)
    source = graph_source(places, columns, settings, names, edges)
    folding, found = folding_like_the_test(table, columns, settings, owner, units, held_out, family.folds)
    encoder = Encoder.fit(plain(table[~held_out], columns), columns)
    encoder = encoder.for_later_times() if folding.kind == "times" else encoder
    place = None if place is None or places is None else filled(place, owner, places)
    rows = Rows(encode(encoder, table, columns), y, owner, place)
    notes = [
        *columns.notes,
        *_counted("rows without a target", len(given) - len(table) - timeless),
        *_counted("rows without a time", timeless),
        *target_notes(table[columns.target][~held_out], target, settings),
        *found,
        *_counted("test rows of unseen classes", int(unseen.sum())),
        *cautions(columns, target, y, owner, held_out),
        *far_numbers(columns, encoder, rows.X),
    ]
    marks = fingerprint(given), "" if edges is None else fingerprint(edges)
    mine = TableRows(settings, columns, encoder, target, names, table, rows, held_out & ~unseen, folding)
    return Prepared(design_of(mine, family, source, places, notes, own), mine, *marks, len(given))


def design_of(
    rows: TableRows, family: Family, source: GraphSource, places: Floats | None, notes: list[Note],
    own: dict[str, Member],
) -> Design:  # fmt: skip
    """What is known of a table whose rows are all here."""
    count, folding = len(rows.nodes), rows.folding
    return Design(
        rows.settings, rows.columns, rows.encoder, rows.target, family, rows.nodes, [np.arange(count)],
        train_rows=np.bincount(rows.training.owner, minlength=count),
        test_rows=np.bincount(rows.test.owner, minlength=count),
        part_rows=rows.part_rows, held=rows.held, kind=folding.kind,
        test_times=NO_TIMES if rows.test_times is None else np.unique(rows.test_times),
        predicted_times=NO_TIMES if folding.times is None else np.unique(folding.times[held_in(folding.folds) >= 0]),
        time=folding.column, places=places, source=source,
        wide=wide_graph(places, on_globe(rows.columns.coords), rows.nodes), notes=notes, own_members=own,
    )  # fmt: skip


def edges_table(edges: Any) -> pandas.DataFrame | None:
    """Edges as a table: pairs of nodes, and perhaps weights."""
    return edges if edges is None or isinstance(edges, pandas.DataFrame) else pandas.DataFrame(list(edges))


def _counted(kind: str, count: int) -> list[Note]:
    return [Note(kind, {"count": count})] if count else []
