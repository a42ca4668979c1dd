"""Runs in folders: the models, the history, and an account of how it went. The rows of the nodes stay out of it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas

from kinfolk.engine.leaving import declared
from kinfolk.engine.protocol import PREDICTIONS
from kinfolk.local_models.fitted import model_file
from kinfolk.local_models.saved_models import read_models

if TYPE_CHECKING:
    from kinfolk.engine.run import Run


@dataclass(frozen=True)
class Account:
    """What is known of a run without its rows, as plain data.

    Parameters
    ----------
    algorithm : str
        Name of its type.
    rounds : int
        Rounds made.
    stopped : str
        Why it stopped.
    sends : tuple of dict, or None
        What the algorithm declares to leave a node, see ``what_leaves``; None if it does not declare it.
    public : str
        The public points on which neighbours compared predictions; empty if they did not.
    notes : tuple of str
        What a user should know before trusting the answer.
    certificate : str
        How far the answer is from the best one; empty where that is not known.
    """

    algorithm: str
    rounds: int
    stopped: str
    sends: tuple[dict[str, Any], ...] | None
    public: str
    notes: tuple[str, ...]
    certificate: str

    @classmethod
    def of(cls, run: Run) -> Account:
        """The account of a run whose rows are here."""
        sends = declared(run.algorithm, run.problem)
        public = str(run.problem.public) if any(each["content"] == PREDICTIONS for each in sends or ()) else ""
        certificate = "" if run.certificate is None else str(run.certificate)
        name = type(run.algorithm).__name__
        return cls(name, run.rounds, run.stopped, sends, public, tuple(run.notes), certificate)


@dataclass(frozen=True, eq=False)
class SavedRun:
    """A run as a folder keeps it: it predicts, but has no rows, no state and no algorithm to go on with."""

    models: Any  # None where they were left out
    history: pandas.DataFrame
    account: Account


def run_files(run: Run | SavedRun, called: str) -> Iterator[tuple[str, bytes]]:
    """The files of a run, by name: its models, ``run.json`` and ``history.parquet``."""
    yield model_file(run.models, called)
    yield "run.json", json.dumps(asdict(run.account), indent=1).encode()
    yield "history.parquet", run.history.reset_index().to_parquet(index=False)


def save_run(run: Run | SavedRun, folder: Path) -> None:
    """Write a run into a new folder, all of it or nothing."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".run-") as place:
        draft = Path(place) / folder.name
        draft.mkdir()
        for name, content in run_files(run, folder.name):
            (draft / name).write_bytes(content)
        draft.replace(folder)


def load_run(
    folder: Path, node_count: int, feature_count: int, *, trusted: Sequence[str] = (), models: bool = True
) -> SavedRun:
    """The run in a folder, for so many nodes and features; without its models where they are not needed.

    Types of estimators must be known to kinfolk or named in ``trusted``; see ``kinfolk.load``.
    """
    read: dict[str, Any] = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    plain: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in read.items()}
    history = pandas.read_parquet(BytesIO((folder / "history.parquet").read_bytes())).set_index("round")
    return SavedRun(
        read_models(folder, node_count, feature_count, trusted) if models else None, history, Account(**plain)
    )
