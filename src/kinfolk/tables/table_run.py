"""TableRun: what comes out of a table. The runs of all methods on the same rows, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas

from kinfolk.checks import InputError
from kinfolk.engine.run import Run
from kinfolk.engine.saved_run import Account, SavedRun
from kinfolk.network.network import Network
from kinfolk.report.facts import Changes, ClassScores, GraphOrigin, Judgement, LamPath, Made, Note, Role, RunFacts
from kinfolk.report.words import TITLES, note_text
from kinfolk.tables import results
from kinfolk.tables.class_scores import class_scores
from kinfolk.tables.fitted_blend import FittedBlend
from kinfolk.tables.held_out import HeldOutErrors
from kinfolk.tables.judging import judge
from kinfolk.tables.members.graph_member import FittedRuns
from kinfolk.typing import Floats, Ints

if TYPE_CHECKING:
    from kinfolk.report.plots import Plots
    from kinfolk.tables.extending import Given
    from kinfolk.tables.updating import Tables


@dataclass(eq=False)
class TableRun(FittedBlend):
    """A finished run on a table: predict with it, look at it, save it.

    It is a fitted blend beside all that it was compared with. Functions that take a ``Run``, such as ``found_clusters``
    and ``variation_bound``, use the run of the tailored models.

    Attributes
    ----------
    settings, columns, encoder, target, graph, places, entries, intervals
        Those of ``FittedBlend``; the entries are the members, every node alone, the control and rivals.
    origin : GraphOrigin
        Where the graph came from.
    flow : array of float, shape (edges,)
        How strongly the ends of each edge pull at each other.
    path : LamPath
        The tailored models along λ.
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
    changes : Changes or None
        What the last update changed; None for a run that was not updated.
    given : Given or None
        The table that was learnt from, for an update; None for a run that was loaded, as folders keep no rows.
    """

    origin: GraphOrigin
    flow: Floats
    path: LamPath
    train_rows: Ints
    errors: HeldOutErrors
    predictions: pandas.DataFrame
    remarks: list[Note]
    made: Made
    changes: Changes | None = None
    given: Given | None = None

    # ------------------------------------------------------------------ what follows

    leaderboard = cached_property(results.leaderboard)
    nodes = cached_property(results.nodes)
    edges = cached_property(results.edges)

    @cached_property
    def judgement(self) -> Judgement:
        """Whether learning together helps."""
        used = [str(name) for name, weight in self.weights.items() if weight]
        own = used if self.settings.own_members_only and Role.POOLED not in used else []
        return judge(self.errors, self.graph, self.baselines, not self.alone_is_possible, own)

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
        about_one_member = (f"{TITLES[Role.TAILORED].capitalize()}: {note}" for note in self.account.notes)
        return [*map(note_text, self.remarks), *about_one_member]

    # ------------------------------------------------------------------ the runs

    @property
    def runs(self) -> Mapping[str, Run | SavedRun]:
        """The runs by name; ``run.runs["tailored"]`` is that of the tailored models."""
        fits = {name: entry.fitted for name, entry in self.entries.items()}
        return {name: each.runs[0] for name, each in fits.items() if isinstance(each, FittedRuns)}

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

    # ------------------------------------------------------------------ going on

    def update(
        self, new_rows: pandas.DataFrame, *, edges: Any = None, table: Tables | None = None,
        table_edges: Any = None, trusted: Sequence[str] = (), progress: bool = True,
    ) -> TableRun:  # fmt: skip
        """The run with new rows and new nodes: the same choices, fitted to the old training rows and the new ones.

        Scales, λ, members, weights and test rows stay; GTV minimisation starts from the answer of this run. The errors
        on the test rows are those of the new models. This run stays as it is.

        Parameters
        ----------
        new_rows : pandas.DataFrame
            Rows with a node, a target and the features, none of which is in the table of the run.
        edges : pandas.DataFrame or sequence of pairs, optional
            More pairs of nodes, where the graph came from edges.
        table : pandas.DataFrame or sequence of pandas.DataFrame, optional
            The table that this run was learnt from, or that table and the rows of its updates; needed for a run that
            was loaded. It must be unchanged.
        table_edges : pandas.DataFrame or sequence of pairs, optional
            Its edges, if it had some.
        trusted : sequence of str
            Files with code of your own that the settings of a loaded run name; they are run.
        progress : bool
            Whether to show a progress bar on a terminal.

        Returns
        -------
        TableRun
            A complete run, with what was changed in ``changes``.

        >>> from kinfolk import learn
        >>> rng = np.random.default_rng(0)
        >>> shops = pandas.DataFrame({"shop": np.repeat(list("abcde"), 20), "price": rng.normal(size=100)})
        >>> shops["sales"] = np.repeat([1.0, 1.0, -1.0, -1.0, -1.0], 20) * shops["price"] + 0.1 * rng.normal(size=100)
        >>> run = learn(shops[:80], node="shop", target="sales", progress=False)
        >>> more = run.update(shops[80:], progress=False)
        >>> more.changes.new_nodes, more.changes.new_rows
        (['e'], 20)
        """
        from kinfolk.tables.updating import updated

        return updated(
            self, new_rows, edges=edges, table=table, table_edges=table_edges, trusted=trusted, progress=progress
        )

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
