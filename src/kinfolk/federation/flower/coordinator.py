"""What the ServerApp does: it runs the plan of a folder, and leaves there how it went."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kinfolk.checks import InputError
from kinfolk.engine.fit import fit
from kinfolk.engine.protocol import Algorithm
from kinfolk.engine.run import Run
from kinfolk.federation.coordinator import Federation
from kinfolk.federation.files import replace_file
from kinfolk.federation.flower.certificates import CoordinatorKey
from kinfolk.federation.flower.plan import Plan
from kinfolk.federation.flower.post import FlowerPost

KEY, PROGRESS, HISTORY, OUTCOME = "coordinator.key", "progress.jsonl", "history.csv", "outcome.json"
JOURNALS = "journals"


def coordinate(grid: Any, folder: Path, *, end_sites: bool = False) -> None:
    """Run the plan in a folder over the Grid of a ServerApp.

    A run that has begun goes on: its journal is in the folder. New rows of the history are added to ``progress.jsonl``
    as they come; in the end there are ``history.csv`` and ``outcome.json``, which has ``stopped`` or ``error``.
    """
    (folder / OUTCOME).unlink(missing_ok=True)
    outcome: dict[str, Any] = {}
    try:
        plan = Plan.read(folder)
        post = FlowerPost(grid, plan.nodes, CoordinatorKey.at(folder / KEY))
        run = _run(plan, post, folder)
        outcome = {"stopped": run.stopped, "rounds": run.rounds}
        if end_sites:
            post.end()
    except BaseException as error:
        outcome = {"error": _why(error)}
        raise
    finally:
        replace_file(folder / OUTCOME, json.dumps(outcome).encode())


def _why(error: BaseException) -> str:
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, Exception):
        return f"The coordinator failed ({type(error).__name__}: {error})."
    return "The run was stopped; the next one goes on from there."


def _run(plan: Plan, post: FlowerPost, folder: Path) -> Run:
    post.wait_for_all(plan.patience)
    assert isinstance(plan.algorithm, Algorithm)
    federation = Federation(
        plan.graph, list(plan.nodes), post, plan.schema, plan.public,
        folder=folder / JOURNALS, patience=plan.patience, name=plan.name,
    )  # fmt: skip
    with contextlib.closing(federation):
        (folder / PROGRESS).write_text("")
        callbacks, options = [_progress(folder / PROGRESS)], plan.fit_options
        run = fit(
            federation.gather(), plan.algorithm, engine=federation, callbacks=callbacks, progress=False, **options
        )
        run.history.to_csv(folder / HISTORY)
    shutil.rmtree(folder / JOURNALS)  # the next run is a new one
    return run


def _progress(path: Path) -> Callable[[Any, Any], None]:
    """A callback that adds every row of the history to a file, with the time."""

    def add(row: Any, snapshot: Any) -> None:
        numbers = {name: float(value) for name, value in row.items()}
        with path.open("a") as file:
            file.write(json.dumps({"time": time.time(), **numbers}) + "\n")

    return add
