"""TableRun: what comes out of a table. The runs of all methods on the same rows, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import pandas

from kinfolk.checks import InputError, listing
from kinfolk.engine.run import Run
from kinfolk.engine.saved_run import Account, SavedRun
from kinfolk.network.graph import Graph
from kinfolk.network.network import Network
from kinfolk.report.facts import ClassScores, GraphOrigin, Judgement, LamPath, Made, Note, Role, RunFacts, on_globe
from kinfolk.report.words import note_text
from kinfolk.tables import results
from kinfolk.tables.blend import blended
from kinfolk.tables.class_scores import class_scores
from kinfolk.tables.columns import Columns, node_names
from kinfolk.tables.comparison import Entry
from kinfolk.tables.encoding import Encoder, encode
from kinfolk.tables.graph_source import named_ends, nearest_known
from kinfolk.tables.held_out import HeldOutErrors
from kinfolk.tables.intervals import Intervals
from kinfolk.tables.judging import judge
from kinfolk.tables.members.together import RunFit
from kinfolk.tables.rows import Rows
from kinfolk.tables.settings import Settings
from kinfolk.tables.target import Target
from kinfolk.typing import Floats, Ints

if TYPE_CHECKING:
    from kinfolk.report.plots import Plots

Unknown = Literal["refuse", "pooled"]


@dataclass(eq=False)
class TableRun:
    """A finished run on a table: predict with it, look at it, save it.

    Functions that take a ``Run``, such as ``found_clusters`` and ``variation_bound``, use the run of the tailored
    models.

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
    origin : GraphOrigin
        Where the graph came from.
    places : array of float, shape (nodes, 2), or None
        Positions of the nodes, as the columns of coordinates have them.
    entries : dict of str to Entry
        What was compared: the members of the blend, every node alone, the control and rivals.
    flow : array of float, shape (edges,)
        How strongly the ends of each edge pull at each other.
    path : LamPath
        The tailored models along λ.
    train_rows : array of int, shape (nodes,)
        Number of training rows.
    errors : HeldOutErrors
        The errors of the test rows, method by method.
    intervals : Intervals or None
        Widths of prediction intervals; None for classes.
    predictions : pandas.DataFrame
        The predictions for the test rows.
    remarks : list of Note
        What a user should know about how the table was read and about what is missing in the comparison.
    made : Made
        Versions, fingerprint and size of the table, and seconds.
    """

    settings: Settings
    columns: Columns
    encoder: Encoder
    target: Target
    graph: Graph
    origin: GraphOrigin
    places: Floats | None
    entries: dict[str, Entry]
    flow: Floats
    path: LamPath
    train_rows: Ints
    errors: HeldOutErrors
    intervals: Intervals | None
    predictions: pandas.DataFrame
    remarks: list[Note]
    made: Made

    # ------------------------------------------------------------------ what follows

    leaderboard = cached_property(results.leaderboard)
    nodes = cached_property(results.nodes)
    edges = cached_property(results.edges)

    @cached_property
    def judgement(self) -> Judgement:
        """Whether learning together helps."""
        return judge(self.errors, self.graph, self.baselines)

    @property
    def weights(self) -> pandas.Series:
        """The weight of every member of the blend."""
        found = {name: entry.weight for name, entry in self.entries.items() if entry.part == "member"}
        return pandas.Series(found, name="weight", dtype=float).rename_axis("member")

    @cached_property
    def class_scores(self) -> ClassScores | None:
        """How good the probabilities of classes are on the held-out rows; None for other targets."""
        if not self.target.classes:
            return None
        probabilities = self.predictions[[f"probability of {label}" for label in self.target.classes]].to_numpy()
        return class_scores(probabilities, self.target.encode(self.predictions["target"]), self.target.classes)

    @property
    def alone_is_possible(self) -> bool:
        """Whether some tested node has training rows."""
        return bool((self.train_rows[np.unique(self.errors.owner)] > 0).any())

    @property
    def baselines(self) -> list[Role]:
        """What learning together is compared with."""
        return [Role.ALONE, Role.POOLED] if self.alone_is_possible else [Role.POOLED]

    @property
    def features(self) -> list[str]:
        """Names of the encoded features."""
        return self.encoder.get_feature_names_out()

    @property
    def clusters(self) -> pandas.Series:
        """The group of kin that every node belongs to, numbered from the largest."""
        return self.nodes["group"]

    @property
    def notes(self) -> list[str]:
        """What a user should know before trusting the answer."""
        return [*map(note_text, self.remarks), *self.account.notes]

    # ------------------------------------------------------------------ the runs

    @property
    def runs(self) -> Mapping[str, Run | SavedRun]:
        """The runs by name; ``run.runs["tailored"]`` is that of the tailored models."""
        fits = {name: entry.fitted for name, entry in self.entries.items()}
        return {name: each.runs[0] for name, each in fits.items() if isinstance(each, RunFit)}

    @property
    def models(self) -> Any:
        """The tailored models."""
        return self.runs[Role.TAILORED].models

    @property
    def history(self) -> pandas.DataFrame:
        """The history of the tailored run, by round."""
        return self.runs[Role.TAILORED].history

    @property
    def account(self) -> Account:
        """The account of the tailored run, without its rows."""
        return self.runs[Role.TAILORED].account

    @property
    def network(self) -> Network:
        """The network of the training rows."""
        return self._run.network

    @property
    def algorithm(self) -> Any:
        """The algorithm of the tailored models, with the λ that was chosen."""
        return self._run.algorithm

    @property
    def state(self) -> Any:
        """The state of that algorithm."""
        return self._run.state

    @property
    def certificate(self) -> Any:
        """How far the tailored models are from the best ones; None where the algorithm has no such notion."""
        return self._run.certificate

    @property
    def _run(self) -> Run:
        run = self.runs[Role.TAILORED]
        if not isinstance(run, Run):
            raise InputError(
                "Expected a run with its rows here, this one was loaded, and a folder keeps no rows: fit again with "
                "kinfolk fit run.toml."
            )
        return run

    @property
    def facts(self) -> RunFacts:
        """What the page reads."""
        return RunFacts(**{each.name: getattr(self, each.name) for each in fields(RunFacts)})

    @property
    def plot(self) -> Plots:
        """Figures: ``plot.network()``, ``plot.path()``, ``plot.convergence()``, ``plot.gain()``."""
        from kinfolk.report.plots import Plots

        return Plots(self.facts)

    # ------------------------------------------------------------------ predicting

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
        unknown : {"refuse", "pooled"}
            What to do with nodes that were never seen: let known neighbours predict, and refuse those that have none;
            or predict with the model of all, whatever the role.
        edges : pandas.DataFrame or sequence of pairs, optional
            Pairs of nodes. A node that was never seen gets the mean of its neighbours' predictions, if ``edges`` name
            them or the table has its coordinates.
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
        low = np.maximum(low, 0.0) if self.target.kind == "count" else low
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
        used = [each for each in self.entries.values() if each.fitted is not None and each.name in (role, Role.POOLED)]
        if role == Role.FINAL:
            used = [each for each in self.entries.values() if each.weight]
        pooled = self.entries[Role.POOLED].fitted
        assert pooled is not None
        fallback = pooled.predict(rows)
        found = {each.name: each.fitted.predict(rows) for each in used if each.fitted is not None}
        filled = {name: np.where(np.isnan(each), fallback, each) for name, each in found.items()}
        if role == Role.FINAL:
            return blended(list(filled.values()), [float(each.weight or 0.0) for each in used])
        return filled[role]

    def _predicted(self, table: pandas.DataFrame, role: str, unknown: Unknown, edges: Any) -> Floats:
        known_roles = [Role.FINAL.value, *(name for name, each in self.entries.items() if each.fitted is not None)]
        if role not in known_roles:
            raise InputError(f"Expected one of {', '.join(known_roles)} to predict with, got {role!r}.")
        if unknown not in get_args(Unknown):
            raise InputError(f"Expected unknown nodes to be one of {', '.join(get_args(Unknown))}, got {unknown!r}.")
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
            own = table[list(self.columns.coords)].apply(pandas.to_numeric, errors="coerce").to_numpy(dtype=np.float64)
            out = np.where(np.isnan(own), out, own)
        return np.asarray(out)

    @cached_property
    def _number(self) -> dict[str, int]:
        return {str(name): k for k, name in enumerate(self.graph.names)}

    def _neighbours_of(
        self, table: pandas.DataFrame, names: Any, unknown: Unknown, edges: Any
    ) -> list[list[int]] | None:
        """The known neighbours of the node of every row; None where the model of all is to predict."""
        if unknown == "pooled":
            return None
        near = self._near(table, names, edges)
        lost = list(dict.fromkeys(name for name, found in zip(names, near, strict=True) if not found))
        if lost:
            raise InputError(
                f"Expected nodes that were learnt, got {listing(lost)}: give their coordinates or edges, or allow the "
                "model of all with unknown='pooled' (--unknown pooled)."
            )
        return near

    def _predicted_elsewhere(self, rows: Rows, near: list[list[int]] | None, role: str) -> Floats:
        """The mean prediction of the neighbours of unknown nodes, or the model of all."""
        if near is None:
            return self.predict_rows(Role.POOLED, rows._replace(owner=np.zeros_like(rows.owner)))
        count = np.array([len(each) for each in near])
        which = np.repeat(np.arange(len(near)), count)
        owner = np.concatenate([np.array(each, dtype=np.int64) for each in near])
        taken = rows.take(which)._replace(owner=owner)
        if taken.place is not None and self.places is not None:
            taken = taken._replace(place=np.where(np.isnan(taken.place), self.places[owner], taken.place))
        found = self.predict_rows(role, taken)
        total = np.zeros((len(near), *found.shape[1:]))
        np.add.at(total, which, found)
        return np.asarray(total / (count[:, None] if found.ndim == 2 else count))

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
        spots = table[list(self.columns.coords)].apply(pandas.to_numeric, errors="coerce").to_numpy(dtype=np.float64)
        if np.isnan(spots).any():
            raise InputError(f"Expected coordinates of {names[np.isnan(spots).any(axis=1)][0]!r}, got none: fill them.")
        found = nearest_known(spots, self.places, self.settings.neighbours, on_globe(self.columns.coords))
        return [[int(k) for k in row] for row in found]

    # ------------------------------------------------------------------ keeping and looking

    def save(self, folder: str | Path, *, force: bool = False) -> Path:
        """Write everything into a new folder: models, tables and the page; all of it, or nothing.

        Parameters
        ----------
        folder : str or Path
            The folder.
        force : bool
            Whether to replace a run that is there.

        Returns
        -------
        Path
            The folder.
        """
        from kinfolk.tables.storage import save

        return save(self, Path(folder), force=force)

    def report(self, path: str | Path) -> Path:
        """Write the page: one file that works offline."""
        from kinfolk.report.page import write_page

        return write_page(self.facts, Path(path))

    def _repr_html_(self) -> str:
        from kinfolk.report.page import summary_html

        return summary_html(self.facts)

    def __repr__(self) -> str:
        size = f"{len(self.nodes):,} nodes, {self.graph.edge_count:,} edges"
        return f"TableRun({size}; learning together: {self.judgement.verdict})"
