"""A fitted blend: the members and their weights, and how it predicts rows of nodes that it knows, and of others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, Literal, get_args

import numpy as np
import pandas

from kinfolk.checks import InputError, listing
from kinfolk.network.graph import Graph
from kinfolk.report.facts import Role, on_globe
from kinfolk.tables.blend import blended
from kinfolk.tables.columns import Columns, node_names
from kinfolk.tables.comparison import member_entry
from kinfolk.tables.encoding import Encoder, encode
from kinfolk.tables.entry import Entry
from kinfolk.tables.graph_source import named_ends, nearest_known
from kinfolk.tables.intervals import Intervals
from kinfolk.tables.job import Tuning, interval_widths, tune
from kinfolk.tables.local_party import LocalParty
from kinfolk.tables.members.member import Fitted
from kinfolk.tables.party import OneParty
from kinfolk.tables.prepared import Prepared
from kinfolk.tables.rows import Rows
from kinfolk.tables.settings import Settings
from kinfolk.tables.table_rows import worthwhile_threads
from kinfolk.tables.target import Target
from kinfolk.typing import Floats, Ints

Unknown = Literal["refuse", "pooled", "neighbours"]


@dataclass(eq=False)
class FittedBlend:
    """The blend, fitted to rows of a table: predict with it.

    Attributes
    ----------
    settings : Settings
        What was asked for.
    columns : Columns
        What each column of the table is for.
    encoder : Encoder
        How the features become numbers.
    target : Target
        The target as learning sees it.
    graph : Graph
        Which nodes may be kin.
    places : array of float, shape (nodes, 2), or None
        Positions of the nodes, as the columns of coordinates have them.
    entries : dict of str to Entry
        What was fitted: the members of the blend, and what is compared with them.
    intervals : Intervals or None
        Widths of prediction intervals; None for classes.
    """

    settings: Settings
    columns: Columns
    encoder: Encoder
    target: Target
    graph: Graph
    places: Floats | None
    entries: dict[str, Entry]
    intervals: Intervals | None

    @property
    def weights(self) -> pandas.Series:
        """The weight of every member of the blend."""
        found = {name: entry.weight for name, entry in self.entries.items() if entry.part == "member"}
        return pandas.Series(found, name="weight", dtype=float).rename_axis("member")

    def predict(
        self,
        table: pandas.DataFrame,
        *,
        role: str = Role.FINAL,
        unknown: Unknown = "refuse",
        edges: Any = None,
        interval: float | None = None,
    ) -> Any:
        """Predict every row of a table that has the node and the features.

        Parameters
        ----------
        table : pandas.DataFrame
            The rows.
        role : str
            Which models predict: ``"final"``, the blend, or a member by its name.
        unknown : {"refuse", "pooled", "neighbours"}
            What to do with nodes that were never seen. ``"refuse"``: let known neighbours predict, and refuse those
            that have none. ``"pooled"``: predict with the model of all, whatever the role. ``"neighbours"``: let known
            neighbours predict, and the model of all where there are none.
        edges : pandas.DataFrame or sequence of pairs, optional
            Pairs of nodes. A node that was never seen is predicted as one without rows if ``edges`` name neighbours or
            the table has its coordinates: each member as far as it can without the node, else as its neighbours.
        interval : float, optional
            The share of rows whose target shall lie between ``low`` and ``high``, such as 0.9; for the blend.

        Returns
        -------
        pandas.Series or pandas.DataFrame
            Numbers or classes, with the index of the table; with an interval, the columns ``low`` and ``high`` besides.
        """
        if interval is not None and (self.intervals is None or role != Role.FINAL):
            raise InputError(
                "Expected numbers predicted by the blend for intervals, got "
                + ("another role" if role != Role.FINAL else "classes, or too few rows: use predict_proba for classes")
                + "."
            )
        predicted = self.target.decode(self._predicted(table, role, unknown, edges))
        found = pandas.Series(predicted, index=table.index, name=self.columns.target)
        if interval is None or self.intervals is None:
            return found
        names = node_names(table, self.columns.node)
        owner = np.array([self._number.get(name, -1) for name in names], dtype=np.int64)
        low, high = self.intervals.interval(predicted, owner, interval)
        low = self.target.lower_end(low)
        return found.to_frame().assign(low=low, high=high)

    def predict_proba(
        self, table: pandas.DataFrame, *, role: str = Role.FINAL, unknown: Unknown = "refuse", edges: Any = None
    ) -> pandas.DataFrame:
        """The probability of every class for every row of a table; parameters as for ``predict``."""
        if not self.target.classes:
            raise InputError("Expected classes for probabilities, this run predicts numbers: use predict.")
        found = self._predicted(table, role, unknown, edges)
        return pandas.DataFrame(found, index=table.index, columns=list(self.target.classes))

    def predict_rows(self, role: str, rows: Rows) -> Floats:
        """Predict encoded rows of nodes given by number: numbers (rows,) or probabilities (rows, classes).

        Where a node has no model of this name, the model of all predicts.
        """
        pooled = self.entries[Role.POOLED].fitted
        assert pooled is not None
        fallback = pooled.predict(rows)
        used = list(self._predicting(role))
        found = [fitted.predict(rows) for _, _, fitted in used]
        filled = [np.where(np.isnan(each), fallback, each) for each in found]
        return blended(filled, [weight for weight, _, _ in used])

    def _predicting(self, role: str) -> Iterator[tuple[float, Entry, Fitted]]:
        """What predicts, with its weight: the members of the blend, or one model by name."""
        for each in self.entries.values():
            weight = float(each.weight or 0.0) if role == Role.FINAL else float(each.name == role)
            if weight and each.fitted is not None:
                yield weight, each, each.fitted

    def _predicted(self, table: pandas.DataFrame, role: str, unknown: Unknown, edges: Any) -> Floats:
        known_roles = [Role.FINAL.value, *(name for name, each in self.entries.items() if each.fitted is not None)]
        if role not in known_roles:
            raise InputError(f"Expected one of {', '.join(known_roles)} to predict with, got {role!r}.")
        check_unknown(unknown)
        if not isinstance(table, pandas.DataFrame):
            raise InputError(f"Expected a data frame with the node and the features, got {type(table).__name__}.")
        if self.columns.node not in table.columns:
            raise InputError(
                f"Expected a column {self.columns.node!r}, the table has {listing(map(str, table.columns), 12)}."
            )
        if table.empty:
            raise InputError("Expected rows to predict, got none.")
        X = encode(self.encoder, table, self.columns)
        names = node_names(table, self.columns.node)
        owner = np.array([self._number.get(name, -1) for name in names], dtype=np.int64)
        rows = Rows(X, np.full(len(X), np.nan), owner, self._places_of(table, owner))
        known = owner >= 0
        out = np.full((len(X), *([len(self.target.classes)] if self.target.classes else [])), np.nan)
        if known.any():
            out[known] = self.predict_rows(role, rows.take(known))
        if not known.all():
            near = self._neighbours_of(table[~known], names[~known], unknown, edges)
            out[~known] = self._predicted_elsewhere(rows.take(~known), near, role)
        return out

    def _places_of(self, table: pandas.DataFrame, owner: Ints) -> Floats | None:
        """Where rows are: as the table has it, else where their node is; NaN where neither is known."""
        if self.places is None:
            return None
        out = np.where(owner[:, None] >= 0, self.places[owner], np.nan)
        if all(name in table.columns for name in self.columns.coords):
            own = _spots(table, self.columns.coords)
            out = np.where(np.isnan(own), out, own)
        return np.asarray(out)

    @cached_property
    def _number(self) -> dict[str, int]:
        return {str(name): k for k, name in enumerate(self.graph.names)}

    def _neighbours_of(self, table: pandas.DataFrame, names: Any, unknown: Unknown, edges: Any) -> list[list[int]]:
        """The known neighbours of the node of every row; none where the model of all is to predict."""
        near = [[] for _ in names] if unknown == "pooled" else self._near(table, names, edges)
        lost = list(dict.fromkeys(name for name, found in zip(names, near, strict=True) if not found))
        if lost and unknown == "refuse":
            raise InputError(
                f"Expected nodes that were learnt, got {listing(lost)}: give their coordinates or edges, or allow the "
                "model of all with unknown='pooled' (--unknown pooled)."
            )
        return near

    def _predicted_elsewhere(self, rows: Rows, near: list[list[int]], role: str) -> Floats:
        """Rows of unknown nodes as if they were nodes without rows; by the model of all where nothing is near them.

        Each member predicts what it can without a node: what it leaves to the nodes nearby is the mean of what it
        predicts there.
        """
        near_by = np.array([bool(each) for each in near])
        out = self.predict_rows(Role.POOLED, rows._replace(owner=np.zeros_like(rows.owner)))
        if near_by.any():
            there, fallback = Neighbourhood(self, rows.take(near_by), [each for each in near if each]), out[near_by]
            used = list(self._predicting(role))
            found = [there.predict(entry, fitted, fallback) for _, entry, fitted in used]
            out[near_by] = blended(found, [weight for weight, _, _ in used])
        return out

    def _near(self, table: pandas.DataFrame, names: Any, edges: Any) -> list[list[int]]:
        """The known neighbours of the node, or of the place, of every row."""
        if edges is not None:
            near: dict[str, list[int]] = {}
            for a, b in named_ends(pandas.DataFrame(edges)):
                for new, old in ((a, b), (b, a)):
                    if old in self._number:
                        near.setdefault(new, []).append(self._number[old])
            return [near.get(name, []) for name in names]
        if self.places is None or any(name not in table.columns for name in self.columns.coords):
            return [[] for _ in names]
        spots = _spots(table, self.columns.coords)
        there = ~np.isnan(spots).any(axis=1)
        out: list[list[int]] = [[] for _ in names]
        if there.any():
            found = nearest_known(spots[there], self.places, self.settings.neighbours, on_globe(self.columns.coords))
            for row, nearest in zip(np.flatnonzero(there), found.tolist(), strict=True):
                out[row] = nearest
        return out


class Neighbourhood:
    """Rows of nodes that were never seen, and the known nodes near each of them."""

    def __init__(self, blend: FittedBlend, rows: Rows, near: list[list[int]]) -> None:
        count = np.array([len(each) for each in near])
        self.which = np.repeat(np.arange(len(near)), count)
        self.share = 1 / count[self.which]
        owner = np.fromiter(chain.from_iterable(near), dtype=np.int64)
        self.rows = rows
        if rows.place is not None and blend.places is not None:  # where nothing is known of it, it is amid them
            middle = self._mean(blend.places[owner])
            self.rows = rows._replace(place=np.where(np.isnan(rows.place), middle, rows.place))
        self.moved = self.rows.take(self.which)._replace(owner=owner)

    def predict(self, entry: Entry, fitted: Fitted, fallback: Floats) -> Floats:
        """What a member predicts; the fallback where it has no model, or learns nothing from other nodes."""
        if entry.needs == "own rows":
            return fallback
        found = fitted.predict_new_nodes(self.rows)
        found = self._mean(fitted.predict(self.moved)) if found is None else found
        return np.where(np.isnan(found), fallback, found)

    def _mean(self, values: Floats) -> Floats:
        """Of the nodes near every row."""
        total = np.zeros((len(self.rows.y), *values.shape[1:]))
        np.add.at(total, self.which, (values.T * self.share).T)
        return total


def check_unknown(unknown: str) -> None:
    """Refuse another way to treat nodes that were never seen."""
    if unknown not in get_args(Unknown):
        raise InputError(f"Expected unknown nodes to be one of {', '.join(get_args(Unknown))}, got {unknown!r}.")


def _spots(table: pandas.DataFrame, coords: tuple[str, ...]) -> Floats:
    """The coordinates of every row (rows, 2); NaN where there are none."""
    return np.asarray(table[list(coords)].apply(pandas.to_numeric, errors="coerce"), dtype=np.float64)


def fit_blend(prepared: Prepared) -> FittedBlend:
    """Choose the ensemble and fit what predicts in it: from a table to models, without test rows."""
    with worthwhile_threads(prepared.rows):
        tuning = tune(OneParty(LocalParty(prepared.rows)), prepared.design)
        used = [name for name in tuning.validations if name == Role.POOLED or tuning.weights.get(name)]
        return blend_of(tuning, used)


def blend_of(tuning: Tuning, names: Sequence[str]) -> FittedBlend:
    """Tuned members of one party, fitted to all training rows."""
    party, design, widths = tuning.cv.parties.single, tuning.design, interval_widths(tuning)
    return FittedBlend(
        design.settings, design.columns, design.encoder, design.target, tuning.cv.scene.graphs[-1], design.places,
        {name: member_entry(tuning, party, name) for name in names},
        None if widths is None else party.out_of_fold.intervals(widths),
    )  # fmt: skip
