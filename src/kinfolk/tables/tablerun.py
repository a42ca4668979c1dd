"""TableRun: what comes out of a table. Tailored models, the comparison with baselines, and a page to look at."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import pandas

from kinfolk.checks import InputError, listing
from kinfolk.network.graph import Graph
from kinfolk.report.facts import KINDS, on_globe
from kinfolk.tables.columns import Columns, node_names
from kinfolk.tables.encoding import Encoder, encode
from kinfolk.tables.judging import Judgement
from kinfolk.tables.kin import named_ends, nearest_known
from kinfolk.tables.nodemodels import NodeModels
from kinfolk.tables.settings import Settings
from kinfolk.tables.target import Target
from kinfolk.typing import Floats, Ints

if TYPE_CHECKING:
    from kinfolk.report.plots import Plots

Unknown = Literal["refuse", "pooled"]


@dataclass(frozen=True, eq=False)
class LamPath:
    """What tailored models look like along λ."""

    lams: Floats  # (values,) ascending
    chosen: int
    errors: Floats  # (values,) in cross-validation, as the leaderboard counts it; NaN where none was made
    spread: Floats  # (values,) standard error over folds
    groups: Ints  # (values, nodes)
    signature: Floats  # (values, nodes, numbers) coefficients, or what the models say, in few numbers
    names: tuple[str, ...]  # of these numbers
    coefficients: bool  # whether they are coefficients


@dataclass(eq=False)
class TableRun:
    """A finished run on a table: predict with it, look at it, save it."""

    settings: Settings
    columns: Columns
    encoder: Encoder
    target: Target
    graph: Graph
    places: Floats | None  # (nodes, 2) as the columns of coordinates say
    models: NodeModels
    nodes: pandas.DataFrame  # one row per node, by name
    leaderboard: pandas.DataFrame  # one row per method
    judgement: Judgement
    path: LamPath
    edges: pandas.DataFrame  # head, tail, weight, flow
    history: pandas.DataFrame  # of the tailored run, by round
    predictions: pandas.DataFrame  # held-out rows
    notes: list[str]
    about: dict[str, Any]  # versions, seconds, what was exchanged, the fingerprint of the table

    @property
    def clusters(self) -> pandas.Series:
        """The group of kin that every node belongs to, numbered from the largest."""
        return self.nodes["group"]

    @property
    def plot(self) -> Plots:
        """Figures: ``plot.network()``, ``plot.path()``, ``plot.convergence()``, ``plot.gain()``."""
        from kinfolk.report.plots import Plots

        return Plots(self)

    def predict(
        self, table: pandas.DataFrame, *, which: str = "final", unknown: Unknown = "refuse", edges: Any = None
    ) -> pandas.Series:
        """The prediction for every row of a table that has the node and the features.

        A node that was never seen gets the mean of its neighbours' predictions, if the table has its coordinates or
        ``edges`` (a table of pairs of nodes) name its neighbours; else it is refused, or predicted by the model of all
        with ``unknown="pooled"``. ``which``: ``"final"`` models, or all ``"tailored"``, ``"alone"`` or ``"pooled"``.
        """
        said = self._say(table, which, unknown, edges)
        return pandas.Series(self.target.decode(said), index=table.index, name=self.columns.target)

    def predict_proba(
        self, table: pandas.DataFrame, *, which: str = "final", unknown: Unknown = "refuse", edges: Any = None
    ) -> pandas.DataFrame:
        """The probability of every class for every row of a table."""
        if not self.target.classes:
            raise InputError("Expected classes for probabilities, this run predicts numbers: use predict.")
        return pandas.DataFrame(
            self._say(table, which, unknown, edges), index=table.index, columns=list(self.target.classes)
        )

    def _say(self, table: pandas.DataFrame, which: str, unknown: Unknown, edges: Any) -> Floats:
        if which not in ("final", *KINDS):
            raise InputError(f"Expected one of final, {', '.join(KINDS)} to predict with, got {which!r}.")
        if unknown not in get_args(Unknown):
            raise InputError(f"Expected unknown nodes to be one of {', '.join(get_args(Unknown))}, got {unknown!r}.")
        if self.columns.node not in table.columns:
            raise InputError(
                f"Expected a column {self.columns.node!r}, the table has {listing(map(str, table.columns), 12)}."
            )
        if table.empty:
            raise InputError("Expected rows to predict, got none.")
        X = encode(self.encoder, table, self.columns)
        names = node_names(table, self.columns.node)
        number = {name: k for k, name in enumerate(self.graph.names)}
        owner = np.array([number.get(name, -1) for name in names], dtype=np.int64)
        known = owner >= 0
        out = np.full((len(X), *([len(self.target.classes)] if self.target.classes else [])), np.nan)
        out[known] = self.models.say(which, X[known], owner[known])
        if not known.all():
            out[~known] = self._say_unknown(table[~known], X[~known], names[~known], which, unknown, edges)
        return out

    def _say_unknown(
        self, table: pandas.DataFrame, X: Floats, names: Any, which: str, unknown: Unknown, edges: Any
    ) -> Floats:
        """The mean of what the neighbours of unknown nodes say, or the pooled model if that is allowed."""
        if unknown == "pooled":
            return self.models.say("pooled", X, np.zeros(len(X), dtype=np.int64))
        near = self._near(table, names, edges)
        lost = [name for name in dict.fromkeys(names) if not len(near.get(name, ()))]
        if lost:
            raise InputError(
                f"Expected nodes that were learnt, got {listing(lost)}: give their coordinates or edges, or allow the "
                "model of all with unknown='pooled' (--unknown pooled)."
            )
        return np.array([
            self.models.say(which, np.repeat(row[None], len(near[name]), axis=0), np.asarray(near[name])).mean(axis=0)
            for row, name in zip(X, names, strict=True)
        ])  # fmt: skip

    def _near(self, table: pandas.DataFrame, names: Any, edges: Any) -> dict[str, list[int]]:
        """The known neighbours of unknown nodes, by name."""
        number = {str(name): k for k, name in enumerate(self.graph.names)}
        if edges is not None:
            near: dict[str, list[int]] = {}
            for a, b in named_ends(pandas.DataFrame(edges)):
                for new, old in ((a, b), (b, a)):
                    if old in number:
                        near.setdefault(new, []).append(number[old])
            return near
        if self.places is None or any(name not in table.columns for name in self.columns.coords):
            return {}
        spots = table[list(self.columns.coords)].apply(pandas.to_numeric, errors="coerce").to_numpy(dtype=np.float64)
        if np.isnan(spots).any():
            raise InputError(f"Expected coordinates of {names[np.isnan(spots).any(axis=1)][0]!r}, got none: fill them.")
        found = nearest_known(spots, self.places, self.settings.neighbours, on_globe(self.columns.coords))
        return {name: [int(k) for k in row] for name, row in zip(names, found, strict=True)}

    def save(self, folder: str | Path, *, force: bool = False) -> Path:
        """Write everything into a new folder: models, tables and the page; all of it, or nothing."""
        from kinfolk.tables.storage import save

        return save(self, Path(folder), force=force)

    def report(self, path: str | Path) -> Path:
        """Write the page: one file that works offline."""
        from kinfolk.report import write_page

        return write_page(self, Path(path))

    def _repr_html_(self) -> str:
        from kinfolk.report import notebook_html

        return notebook_html(self)

    def __repr__(self) -> str:
        size = f"{len(self.nodes):,} nodes, {self.graph.edge_count:,} edges"
        return f"TableRun({size}; learning together: {self.judgement.verdict})"
