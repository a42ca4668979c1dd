"""Run: what comes out of ``fit``."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas

from kinfolk.checks import InputError, as_floats, listing
from kinfolk.engine.numbers import number
from kinfolk.engine.privacy import Privacy
from kinfolk.engine.protocol import Snapshot
from kinfolk.engine.saved_run import Account, save_run
from kinfolk.network.network import Network
from kinfolk.network.problem import Problem
from kinfolk.typing import Floats, Ints

Row = dict[str, float]  # of the history


@dataclass
class Position:
    """Where the round loop is: with a snapshot, all that is needed to go on."""

    origin: int  # the round in which the history begins
    count: int  # the last round made
    due: int  # rounds after the origin at which the algorithm may next propose its answer
    rows: list[Row]  # of the history
    extra: bool = False  # whether the last row is there only because the run ended


@dataclass
class Run:
    """A finished run, as ``fit`` returns it: the models of all nodes, how it went, and how good the answer is.

    A run over a ``Problem`` has no models, no state and no certificate here: they stay with the rows, at the sites.

    Attributes
    ----------
    problem : Problem
        What was learnt from: a ``Network``, or a ``Problem`` whose rows are at the sites.
    algorithm : Algorithm
        How it was learnt, with its parameters.
    history : pandas.DataFrame
        One row per measured round, with the round as index.
    stopped : str
        Why the run stopped.
    rounds : int
        The number of the last round; a run that goes on from another counts from there.
    seed : int
        The seed of ``fit``.
    privacy : Privacy or None
        What noise on messages promises, node by node; None without noise.

    >>> from kinfolk import GTVMin, Network, fit, graphs
    >>> network = Network(graphs.chain(2), [([[1.0]], [0.0]), ([[1.0]], [1.0])])
    >>> run = fit(network, GTVMin(lam=0.5))
    >>> run.predict([[2.0], [2.0]], node=[0, 1]).round(3).tolist()
    [0.5, 1.5]
    """

    problem: Problem
    algorithm: Any  # an Algorithm; its parameters are the user's business
    stopped: str
    rounds: int
    seed: int = 0
    privacy: Privacy | None = None
    position: Position = field(repr=False, kw_only=True)
    altered: bool = field(default=False, repr=False)  # whether the state is no longer what the messages belong to
    _models: Any = field(default=None, repr=False)
    _snapshot: Snapshot | None = field(default=None, repr=False)
    _certificate: Any = field(default=None, repr=False)  # of this state, if the run was asked for it

    @cached_property
    def history(self) -> pandas.DataFrame:
        """One row per measured round, with the round as index; made when it is looked at."""
        history = pandas.DataFrame(self.position.rows).set_index("round")
        history["seconds_per_round"] = history["seconds"].diff() / history.index.to_series().diff()
        return history

    @property
    def last_row(self) -> Row:
        """The last row of the history."""
        return self.position.rows[-1]

    @property
    def models(self) -> Any:
        """The tailored models, see ``kinfolk.engine.protocol.Models``."""
        if self._models is None:
            raise self._elsewhere("models")
        return self._models

    @property
    def snapshot(self) -> Snapshot:
        """The state of the whole network, and all that was sent last."""
        if self._snapshot is None:
            raise self._elsewhere("the state")
        return self._snapshot

    @property
    def state(self) -> Any:
        """The algorithm's state over the whole network."""
        return self.snapshot.state

    @property
    def network(self) -> Network:
        """The network that was learnt from."""
        return self._here("the rows")

    def with_state(self, state: Any) -> Run:
        """The same run with another state, to start from."""
        return replace(self, _snapshot=replace(self.snapshot, state=state), altered=True, _certificate=None)

    def _here(self, what: str) -> Network:
        if not isinstance(self.problem, Network):
            raise self._elsewhere(what)
        return self.problem

    def _elsewhere(self, what: str) -> InputError:
        return InputError(
            f"Expected a run with its rows here for {what}, the rows and models of this one stay at the sites: ask "
            "there."
        )

    @property
    def notes(self) -> list[str]:
        """What a user should know before trusting the answer."""
        problem = self.problem
        along_edges = self.algorithm.learns_along_edges(problem)
        notes: list[str] = problem.remarks() if along_edges else problem.scale_remarks()
        if self._snapshot is None:
            notes.append("The rows are elsewhere: this run has no models, no errors of rows and no sharp certificate.")
        notes += [] if self.privacy is None else [str(self.privacy)]
        last = {str(name): float(value) for name, value in self.history.iloc[-1].items()}
        return [*notes, *self.algorithm.remarks(problem), *self.algorithm.findings(last)]

    @cached_property
    def certificate(self) -> Any:
        """How far the answer is from the best one, with a proof; None where the algorithm has no such notion."""
        site = self._here("the sharp certificate").site
        if self._certificate is not None:
            return self._certificate
        return self.algorithm.certify(site, self.state, self.snapshot.inbox(site.nodes))

    @cached_property
    def account(self) -> Account:
        """What is known of this run without its rows, as plain data."""
        return Account.of(self)

    def save(self, folder: str | Path) -> Path:
        """Write the models, the history and the account into a new folder; no rows, and nothing that is unpickled.

        Parameters
        ----------
        folder : str or Path
            A folder that does not exist yet.

        Returns
        -------
        Path
            The folder.
        """
        if Path(folder).exists():
            raise InputError(f"Expected a new folder for the run, {str(folder)!r} exists: choose another name.")
        save_run(self, Path(folder))
        return Path(folder)

    def predict(self, X: Any, node: Iterable[Hashable]) -> Any:
        """Predict every row of ``X`` with the model of its node, given by name.

        A data frame is read by the names of the features, anything else by position. NaN: the node has no model.
        """
        return self.models.predict(*self._rows(X, node))

    def predict_proba(self, X: Any, node: Iterable[Hashable]) -> Any:
        """The probabilities of the classes for every row of ``X``, shape (rows, classes)."""
        if not hasattr(self.models, "predict_proba"):
            raise InputError("Expected models that know probabilities, got a regression: use predict.")
        return self.models.predict_proba(*self._rows(X, node))

    def _rows(self, X: Any, node: Iterable[Hashable]) -> tuple[Floats, Ints]:
        """The features and node numbers of some rows, checked."""
        features = self.problem.features
        if isinstance(X, pandas.DataFrame):
            missing = [name for name in features if name not in X.columns]
            if missing:
                raise InputError(f"Expected columns {listing(features)}, the table has no {listing(missing)}.")
            X = X[features]
        rows = as_floats(X, "the features", 2)
        numbers = self.problem.graph.numbers(node)
        if rows.shape != (len(numbers), len(features)):
            raise InputError(
                f"Expected {len(features)} features and one node for every row, got features of shape {rows.shape} "
                f"and {len(numbers)} nodes."
            )
        return rows, numbers

    def error(self) -> float:
        """Mean error on the test data; rows of nodes without a model are left out."""
        test = self._here("the error of rows").test
        if test is None:
            raise InputError("Expected a network with test data for the error, got none: pass test= to Network.")
        return float(np.nanmean(self.models.error(test.X, test.y, test.owner)))

    def __repr__(self) -> str:
        last = ", ".join(f"{name} {number(self.history[name].iloc[-1], 4)}" for name in self.history.columns[:2])
        name = type(self.algorithm).__name__
        return f"Run({name} on {self.problem.graph.node_count:,} nodes; {self.stopped}; {last})"
