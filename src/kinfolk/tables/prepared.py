"""From a table to what learning sees: refuse what cannot work, split, encode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas

from kinfolk.checks import InputError, comma_list
from kinfolk.network import graphs, public
from kinfolk.network.data import Data
from kinfolk.network.network import Network
from kinfolk.report.facts import Note
from kinfolk.tables.cautions import cautions, far_numbers
from kinfolk.tables.columns import Columns, as_texts, check_names, find_columns, node_names
from kinfolk.tables.encoding import Encoder, encode, plain
from kinfolk.tables.families import Family, family_of
from kinfolk.tables.graph_source import GraphSource, graph_source
from kinfolk.tables.members.own import OwnEstimator, own_members
from kinfolk.tables.own_code import given_name
from kinfolk.tables.places import filled, node_places, row_places
from kinfolk.tables.reading import fingerprint
from kinfolk.tables.rows import Rows
from kinfolk.tables.settings import Settings
from kinfolk.tables.splits import Folding, folding_like_the_test, held_out_rows, held_together
from kinfolk.tables.target import Target, known_targets, target_notes
from kinfolk.typing import Bools, Floats

PUBLIC_POINTS = 100


@dataclass(frozen=True, eq=False)
class Prepared:
    """A table, ready to learn from."""

    settings: Settings
    fingerprint: str  # of the table
    edges_fingerprint: str  # of the edges, if some were given
    row_count: int
    table: pandas.DataFrame  # rows with a target
    family: Family
    columns: Columns
    encoder: Encoder
    target: Target
    names: list[str]  # of the nodes
    rows: Rows
    training: Rows
    folding: Folding  # of the training rows
    held_out: Bools  # (rows,) the test rows
    source: GraphSource
    places: Floats | None  # (nodes, 2) the middle of each node's rows
    notes: list[Note]
    own_members: dict[str, OwnEstimator]  # members of the blend that are the user's own, by name
    trend_left_out: bool = False  # whether features that grow with time are at zero

    @property
    def test(self) -> Rows:
        """The test rows."""
        return self.rows.take(self.held_out)

    @property
    def trend(self) -> tuple[int, ...]:
        """The features that grow with time, where later times are predicted; none if they have been left out."""
        return () if self.trend_left_out else self.encoder.trend(self.folding.column)

    def without_trend(self) -> Prepared:
        """The same with these features at zero."""
        encoder = self.encoder.without(self.trend)
        X = self.rows.X.copy()
        X[:, list(self.trend)] = 0.0
        rows, seen = self.rows._replace(X=X), self.training.X.copy()
        seen[:, list(self.trend)] = 0.0
        notes, training = (
            [*self.notes, Note("no trend", {"column": self.folding.column})],
            self.training._replace(X=seen),
        )
        return replace(self, encoder=encoder, rows=rows, training=training, notes=notes, trend_left_out=True)

    @property
    def training_times(self) -> Floats | None:
        """The times of the training rows, where later times are predicted; NaN where an update has none."""
        times = self.folding.all_times
        return None if times is None else times[~self.held_out & ~np.isnan(self.rows.y)]

    @property
    def test_times(self) -> Floats | None:
        """The times of the test rows, where later times are predicted."""
        return None if self.folding.all_times is None else self.folding.all_times[self.held_out]

    def network(self, rows: Any = slice(None)) -> Network:
        """The network of some training rows, with public points for methods that compare predictions."""
        taken = self.training.take(rows)
        data = Data.from_rows(taken.X, taken.y, taken.owner, len(self.names))
        blank, features = graphs.edgeless(len(self.names), self.names), self.encoder.get_feature_names_out()
        network = Network(blank, data, features=features)
        network = network.with_graph(self.source.graph(network, self.target))
        return network.with_public(public.like_the_data(network, PUBLIC_POINTS, seed=self.settings.seed))


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
    own = own_members(settings.members, members, family.members, target)
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
    return Prepared(
        settings, *marks, len(given), table, family, columns, encoder, target, names, rows, rows.take(~held_out),
        folding, held_out & ~unseen, source, places, notes, own,
    )  # fmt: skip


def edges_table(edges: Any) -> pandas.DataFrame | None:
    """Edges as a table: pairs of nodes, and perhaps weights."""
    return edges if edges is None or isinstance(edges, pandas.DataFrame) else pandas.DataFrame(list(edges))


def _counted(kind: str, count: int) -> list[Note]:
    return [Note(kind, {"count": count})] if count else []
