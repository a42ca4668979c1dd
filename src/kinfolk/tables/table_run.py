"""TableRun: what comes out of a table. The runs of all methods on the same rows, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from kinfolk.report.facts import MODEL_ROLES, GraphOrigin, Judgement, LamPath, Made, Note, Role, RunFacts, on_globe
from kinfolk.report.words import note_text
from kinfolk.tables import results
from kinfolk.tables.columns import Columns, node_names
from kinfolk.tables.encoding import Encoder, encode
from kinfolk.tables.families import Parameter
from kinfolk.tables.graph_source import named_ends, nearest_known
from kinfolk.tables.held_out import HeldOutErrors
from kinfolk.tables.judging import judge
from kinfolk.tables.settings import Settings
from kinfolk.tables.target import Target
from kinfolk.tables.validation import Validation
from kinfolk.typing import Floats, Ints

if TYPE_CHECKING:
    from kinfolk.report.plots import Plots

Unknown = Literal["refuse", "pooled"]


@dataclass(frozen=True, eq=False)
class Member:
    """One method in the comparison: which values of its parameter were tried, and the run with the best one."""

    method: str  # as ``Settings.method`` names it; "" for baselines
    parameter: Parameter
    values: Floats  # (values,) ascending
    errors: Floats  # (values, folds) in cross-validation
    best: int
    run: Run | SavedRun
    seconds: float  # of the run

    @classmethod
    def of(cls, validation: Validation, run: Run, seconds: float) -> Member:
        """What was chosen, and the run with it."""
        tried = validation.candidate
        return cls(
            tried.method, tried.parameter, np.array(tried.values), validation.errors, validation.best, run, seconds
        )

    @property
    def value(self) -> float:
        """The value that was chosen."""
        return float(self.values[self.best])


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
    members : dict of Role to Member
        The runs of tailored models, of nodes alone, of one model for all and of the control.
    flow : array of float, shape (edges,)
        How strongly the ends of each edge pull at each other.
    path : LamPath
        The tailored models along λ.
    roles : sequence of Role, one per node
        The model that each node ends with.
    train_rows : array of int, shape (nodes,)
        Number of training rows.
    errors : HeldOutErrors
        The errors of the test rows, method by method.
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
    members: dict[Role, Member]
    flow: Floats
    path: LamPath
    roles: Sequence[Role]
    train_rows: Ints
    errors: HeldOutErrors
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
        validated = {role: self.members[role].errors[self.members[role].best].mean() for role in MODEL_ROLES}
        recommended = min(MODEL_ROLES, key=lambda role: validated[role])
        return judge(self.errors, self.graph, recommended, self.baselines)

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
    def runs(self) -> Mapping[Role, Run | SavedRun]:
        """The runs by role; ``run.runs["tailored"]`` is that of the tailored models."""
        return {role: member.run for role, member in self.members.items()}

    @property
    def models(self) -> Any:
        """The tailored models."""
        return self.members[Role.TAILORED].run.models

    @property
    def history(self) -> pandas.DataFrame:
        """The history of the tailored run, by round."""
        return self.members[Role.TAILORED].run.history

    @property
    def account(self) -> Account:
        """The account of the tailored run, without its rows."""
        return self.members[Role.TAILORED].run.account

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
        run = self.members[Role.TAILORED].run
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
        self, table: pandas.DataFrame, *, role: str = Role.FINAL, unknown: Unknown = "refuse", edges: Any = None
    ) -> pandas.Series:
        """Predict every row of a table that has the node and the features.

        Parameters
        ----------
        table : pandas.DataFrame
            The rows.
        role : {"final", "tailored", "alone", "pooled"}
            Which models predict; ``"final"``: the best validated model of each node.
        unknown : {"refuse", "pooled"}
            What to do with nodes that were never seen and have no known neighbours: refuse them, or predict with the
            model of all.
        edges : pandas.DataFrame or sequence of pairs, optional
            Pairs of nodes. A node that was never seen gets the mean of its neighbours' predictions, if ``edges`` name
            them or the table has its coordinates.

        Returns
        -------
        pandas.Series
            Numbers or classes, with the index of the table.
        """
        found = self._predicted(table, role, unknown, edges)
        return pandas.Series(self.target.decode(found), index=table.index, name=self.columns.target)

    def predict_proba(
        self, table: pandas.DataFrame, *, role: str = Role.FINAL, unknown: Unknown = "refuse", edges: Any = None
    ) -> pandas.DataFrame:
        """The probability of every class for every row of a table; parameters as for ``predict``."""
        if not self.target.classes:
            raise InputError("Expected classes for probabilities, this run predicts numbers: use predict.")
        found = self._predicted(table, role, unknown, edges)
        return pandas.DataFrame(found, index=table.index, columns=list(self.target.classes))

    def predict_encoded(self, role: str, X: Floats, node: Ints) -> Floats:
        """Predict encoded rows of nodes given by number: numbers (rows,) or probabilities (rows, classes).

        Where a node has no model of this role, the model of all predicts.
        """
        models = {each: self.members[each].run.models for each in MODEL_ROLES}
        return predict_by_role(models, self.roles, self.target, Role(role), X, node)

    def _predicted(self, table: pandas.DataFrame, role: str, unknown: Unknown, edges: Any) -> Floats:
        if role not in (Role.FINAL, *MODEL_ROLES):
            raise InputError(f"Expected one of {', '.join((Role.FINAL, *MODEL_ROLES))} to predict with, got {role!r}.")
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
        owner = np.array([self._number.get(name, -1) for name in names], dtype=np.int64)
        known = owner >= 0
        out = np.full((len(X), *([len(self.target.classes)] if self.target.classes else [])), np.nan)
        out[known] = self.predict_encoded(role, X[known], owner[known])
        if not known.all():
            out[~known] = self._predicted_elsewhere(table[~known], X[~known], names[~known], role, unknown, edges)
        return out

    @cached_property
    def _number(self) -> dict[str, int]:
        return {str(name): k for k, name in enumerate(self.graph.names)}

    def _predicted_elsewhere(
        self, table: pandas.DataFrame, X: Floats, names: Any, role: str, unknown: Unknown, edges: Any
    ) -> Floats:
        """The mean prediction of the neighbours of unknown nodes, or the pooled model if that is allowed."""
        if unknown == "pooled":
            return self.predict_encoded(Role.POOLED, X, np.zeros(len(X), dtype=np.int64))
        near = self._near(table, names, edges)
        lost = [name for name in dict.fromkeys(names) if not len(near.get(name, ()))]
        if lost:
            raise InputError(
                f"Expected nodes that were learnt, got {listing(lost)}: give their coordinates or edges, or allow the "
                "model of all with unknown='pooled' (--unknown pooled)."
            )
        return np.array([
            self.predict_encoded(role, np.repeat(row[None], len(near[name]), axis=0), np.array(near[name])).mean(axis=0)
            for row, name in zip(X, names, strict=True)
        ])  # fmt: skip

    def _near(self, table: pandas.DataFrame, names: Any, edges: Any) -> dict[str, list[int]]:
        """The known neighbours of unknown nodes, by name."""
        if edges is not None:
            near: dict[str, list[int]] = {}
            for a, b in named_ends(pandas.DataFrame(edges)):
                for new, old in ((a, b), (b, a)):
                    if old in self._number:
                        near.setdefault(new, []).append(self._number[old])
            return near
        if self.places is None or any(name not in table.columns for name in self.columns.coords):
            return {}
        spots = table[list(self.columns.coords)].apply(pandas.to_numeric, errors="coerce").to_numpy(dtype=np.float64)
        if np.isnan(spots).any():
            raise InputError(f"Expected coordinates of {names[np.isnan(spots).any(axis=1)][0]!r}, got none: fill them.")
        found = nearest_known(spots, self.places, self.settings.neighbours, on_globe(self.columns.coords))
        return {name: [int(k) for k in row] for name, row in zip(names, found, strict=True)}

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


def predict_by_role(
    models: Mapping[Role, Any], roles: Sequence[Role], target: Target, role: Role, X: Floats, node: Ints
) -> Floats:
    """Predict encoded rows with the models of one role, or with those that each node ends with."""
    everywhere = np.zeros_like(node)  # the pooled model is that of one common node
    out = target.predicted(models[Role.POOLED], X, everywhere)
    ends = np.array([each.value for each in roles])[node] if role is Role.FINAL else np.full(len(node), role.value)
    for each in models:
        rows = ends == each.value
        if each is not Role.POOLED and rows.any():
            found = target.predicted(models[each], X[rows], node[rows])
            out[rows] = np.where(np.isnan(found), out[rows], found)
    return out
