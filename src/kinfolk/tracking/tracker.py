"""What all trackers have in common: rows of a history while a run goes on, and a finished run as a whole."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Self

import pandas

from kinfolk.checks import InputError
from kinfolk.engine.run import Run
from kinfolk.engine.saved_run import SavedRun
from kinfolk.report.facts import Role
from kinfolk.tables.table_run import TableRun
from kinfolk.version import __version__


class Tracker(ABC):
    """A callback of ``fit`` that logs every row of the history; ``log`` adds what is known when a run has ended.

    It is a context manager, and closes what it has opened. The rows of the data are never logged.
    """

    def __init__(self) -> None:
        self._last = -1  # the last round that was logged

    def __call__(self, row: Mapping[str, float], snapshot: Callable[[], Any]) -> None:
        """Log a row of the history; ``fit`` calls this."""
        self._row({str(name): float(value) for name, value in row.items()})

    def log(self, run: Run | SavedRun | TableRun) -> None:
        """Log a finished run: its parameters, its results, and what is missing of its history.

        Parameters
        ----------
        run : Run, SavedRun or TableRun
            As ``fit``, ``learn`` and ``load`` return it. Of a run on a table the history is that of the tailored
            models.
        """
        if not isinstance(run, Run | SavedRun | TableRun):
            raise InputError(f"Expected a run to log, as fit, learn and load return it, got {type(run).__name__}.")
        for row in run.history.reset_index().to_dict(orient="records"):
            if row["round"] > self._last:
                self._row({str(name): float(value) for name, value in row.items()})
        self.parameters(parameters_of(run))
        self.texts(sentences_of(run))
        if isinstance(run, TableRun):
            self.numbers(results_of(run), self._last)
            self.page(run)

    def _row(self, row: dict[str, float]) -> None:
        self._last = max(int(row.pop("round")), 0)
        self.numbers(row, self._last)

    @abstractmethod
    def numbers(self, values: Mapping[str, float], step: int) -> None:
        """Log numbers at a step."""

    @abstractmethod
    def parameters(self, values: Mapping[str, Any]) -> None:
        """Log what a run was made with."""

    @abstractmethod
    def texts(self, values: Mapping[str, str]) -> None:
        """Log sentences; those that are empty are left out."""

    @abstractmethod
    def page(self, run: TableRun) -> None:
        """Log the page of a run, where a tracker keeps files."""

    @abstractmethod
    def close(self, failed: bool = False) -> None:
        """Finish what was logged."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(failed=kind is not None)


def parameters_of(run: Run | SavedRun | TableRun) -> dict[str, Any]:
    """What a run was made with.

    >>> from kinfolk import GTVMin, fit
    >>> from kinfolk.testing import difficult_network
    >>> found = parameters_of(fit(difficult_network(), GTVMin(lam=0.5), rounds=1, stop=None))
    >>> found["algorithm"], found["lam"], found["nodes"]
    ('GTVMin', 0.5, 24)
    """
    known: dict[str, Any] = {"algorithm": run.account.algorithm, "kinfolk": __version__}
    if isinstance(run, Run):
        known |= {"nodes": run.problem.graph.node_count, "edges": run.problem.graph.edge_count, "seed": run.seed}
        known |= {field.name: getattr(run.algorithm, field.name) for field in dataclasses.fields(run.algorithm)}
    if isinstance(run, TableRun):
        known |= {"nodes": run.graph.node_count, "edges": run.graph.edge_count, "graph": run.origin.kind}
        known |= {"table": run.made.fingerprint, "rows": run.made.rows, **run.settings.to_toml()}
        chosen = run.entries[Role.TAILORED]
        known |= dict(zip(chosen.parameters, chosen.value, strict=True))
    return known


def results_of(run: TableRun) -> dict[str, float]:
    """Errors on the held-out rows, weights of the blend, and the gain over the better baseline."""
    board = run.leaderboard
    errors = {f"error/{name}": float(value) for name, value in board["error"].items()}
    weights = {f"weight/{name}": float(value) for name, value in run.weights.items()}
    judged = run.judgement
    gains = {"gain": judged.gain, "gain/low": judged.low, "gain/high": judged.high}
    known = {name: float(value) for name, value in gains.items() if value is not None}
    return {**errors, **weights, **known, "seconds/all": run.made.seconds}


def sentences_of(run: Run | SavedRun | TableRun) -> dict[str, str]:
    """How a run ended, and what a user should know; empty where there is nothing to tell."""
    account = run.account
    judged = {"judgement": run.judgement.text} if isinstance(run, TableRun) else {}
    notes = run.notes if isinstance(run, TableRun) else account.notes
    return {**judged, "stopped": account.stopped, "certificate": account.certificate, "notes": "\n".join(notes)}


def finite(values: Mapping[str, float]) -> dict[str, float]:
    """Numbers without those that no tracker can draw.

    >>> finite({"objective": 1.0, "seconds_per_round": math.nan})
    {'objective': 1.0}
    """
    return {name: value for name, value in values.items() if not pandas.isna(value) and math.isfinite(value)}
