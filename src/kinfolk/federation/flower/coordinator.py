"""What the ServerApp does: it runs the plan of a folder, and leaves there how it went."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas

from kinfolk.checks import InputError
from kinfolk.engine.fit import fit
from kinfolk.engine.protocol import Algorithm, Missing
from kinfolk.engine.run import Run
from kinfolk.federation.carrier import Post
from kinfolk.federation.coordinator import Federation
from kinfolk.federation.files import replace_file
from kinfolk.federation.flower.certificates import CoordinatorKey
from kinfolk.federation.flower.plan import Plan
from kinfolk.federation.flower.post import FlowerPost
from kinfolk.federation.named import ALONE, TAILORED
from kinfolk.federation.recalling import RecallingPost
from kinfolk.federation.tables.federated_job import learn_together
from kinfolk.federation.tables.federated_run import FederatedRun
from kinfolk.network.fingerprint import fingerprint
from kinfolk.tables.settings import Settings
from kinfolk.version import __version__

KEY, PROGRESS, HISTORY, OUTCOME = "coordinator.key", "progress.jsonl", "history.csv", "outcome.json"
JOURNALS, MEMBERS, TRAFFIC, MAIN = "journals", "members.json", "traffic.json", TAILORED
FIT, FITTED = "fit", "fit.json"
BESIDE_ROUNDS = 50  # of what it is compared with


def coordinate(grid: Any, folder: Path, *, end_sites: bool = False) -> None:
    """Run the plan in a folder over the Grid of a ServerApp.

    A run that has begun goes on: its journal is in the folder. Who takes part is in ``members.json``; new rows of the
    history are added to ``progress.jsonl`` as they come; in the end there are ``history.csv`` and ``outcome.json``,
    which has ``stopped`` or ``error``, and for everything that was run its last row.
    """
    (folder / OUTCOME).unlink(missing_ok=True)
    outcome: dict[str, Any] = {}
    try:
        plan = Plan.read(folder)
        post = FlowerPost(grid, plan.nodes, CoordinatorKey.at(folder / KEY))
        outcome = (_ran if plan.fit is None else _fitted)(plan, post, folder)
        if end_sites:
            post.end()
    except BaseException as error:
        outcome = {"error": _why(error)}
        raise
    finally:
        replace_file(folder / OUTCOME, json.dumps(outcome).encode())


def _ran(plan: Plan, post: FlowerPost, folder: Path) -> dict[str, Any]:
    """Run the algorithm of the plan, and what it is compared with."""
    runs = _runs(plan, post, folder)
    last = {name: _numbers(each.history.iloc[-1]) for name, each in runs.items()}
    run = runs[MAIN]
    return {"stopped": run.stopped, "rounds": run.rounds, "notes": list(run.notes), "last": last}


def _fitted(plan: Plan, post: FlowerPost, folder: Path) -> dict[str, Any]:
    """Let the sites learn together from their tables; what came out is kept as plain data."""
    assert plan.fit is not None
    post.wait_for_all(plan.patience)
    (folder / PROGRESS).write_text("")
    about = fingerprint(json.dumps(dict(plan.fit), sort_keys=True), *(_edges_of(plan)), __version__)
    gone = plan.fit["fewest"] is not None
    with contextlib.closing(RecallingPost(post, list(plan.nodes), folder / JOURNALS, about, gone=gone)) as recalling:
        run, results = _learnt(plan, recalling, folder)
    replace_file(folder / FITTED, json.dumps(results).encode())
    shutil.rmtree(folder / JOURNALS)  # the next job is a new one
    return {"stopped": f"ended after {run.exchanges} exchanges with every site", "rounds": run.exchanges,
            "notes": run.notes, "last": {}}  # fmt: skip


def _edges_of(plan: Plan) -> tuple[Any, ...]:
    return plan.graph.head, plan.graph.tail, plan.graph.weights


def _learnt(plan: Plan, recalling: RecallingPost, folder: Path) -> tuple[FederatedRun, dict[str, Any]]:
    assert plan.fit is not None
    counted = Counted(recalling, folder / PROGRESS)
    names = plan.graph.names
    ends = [[names[a], names[b], w] for a, b, w in zip(*_edges_of(plan), strict=True)]
    edges = pandas.DataFrame(ends, columns=["head", "tail", "weight"]) if ends else None
    run = learn_together(
        counted, list(plan.nodes), Settings.of(plan.fit["settings"]), edges=edges, patience=plan.patience,
        secure=plan.fit["secure"], job=recalling.job, fewest=plan.fit["fewest"],
    )  # fmt: skip
    return run, results_of(run)


class Counted:
    """A post that counts its exchanges in a file."""

    def __init__(self, post: Post, path: Path) -> None:
        self.post, self.path, self.number = post, path, 0

    def ask(self, blobs: Mapping[str, bytes], most: Mapping[str, int], seconds: float) -> Mapping[str, bytes | Missing]:
        """Ask all sites at once."""
        self.number += 1
        with self.path.open("a") as file:
            file.write(json.dumps({"run": FIT, "time": time.time(), "round": self.number}) + "\n")
        return self.post.ask(blobs, most, seconds)


def results_of(run: FederatedRun) -> dict[str, Any]:
    """What the coordinator knows after learning together, as plain data."""
    judgement, board = run.judgement, run.leaderboard
    lines = [{"name": name, "weight": row["weight"], "error": row["error"]} for name, row in board.iterrows()]
    nodes = json.loads(run.nodes.reset_index().to_json(orient="records"))
    found = {
        "leaderboard": lines, "judgement": judgement.text, "verdict": judgement.verdict, "nodes": nodes,
        "exchanges": run.exchanges,
    }  # fmt: skip
    return {**json.loads(json.dumps(found, default=float)), "notes": run.notes, "kind": run.design.target.kind}


def _why(error: BaseException) -> str:
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, Exception):
        return f"The coordinator failed ({type(error).__name__}: {error})."
    return "The run was stopped; the next one goes on from there."


def _runs(plan: Plan, post: FlowerPost, folder: Path) -> dict[str, Run]:
    """What is compared first, then what it is about: models of the last run stay at the sites."""
    post.wait_for_all(plan.patience)
    federation = Federation(
        plan.graph, list(plan.nodes), post, plan.schema, plan.public,
        folder=folder / JOURNALS, patience=plan.patience, name=plan.name,
    )  # fmt: skip
    runs: dict[str, Run] = {}
    with contextlib.closing(federation):
        problem = federation.gather()
        replace_file(folder / MEMBERS, json.dumps(_known_of(federation), indent=1).encode())
        (folder / PROGRESS).write_text("")
        for name, algorithm in {**plan.beside, MAIN: plan.algorithm}.items():
            assert isinstance(algorithm, Algorithm)
            callbacks = [_progress(folder / PROGRESS, name), _traffic(folder / TRAFFIC, federation)]
            options = plan.fit_options if name == MAIN else {"rounds": 0 if name == ALONE else BESIDE_ROUNDS}
            runs[name] = fit(problem, algorithm, engine=federation, callbacks=callbacks, progress=False, **options)
        runs[MAIN].history.to_csv(folder / HISTORY)
    shutil.rmtree(folder / JOURNALS)  # the next run is a new one
    return runs


def _known_of(federation: Federation) -> dict[str, Any]:
    """What the coordinator knows of every site."""
    members = federation.members
    assert members is not None
    return {
        name: {"nodes": len(each.nodes), "with_rows": int(each.has_data.sum()), "key": members.fingerprints[name]}
        for name, each in zip(members.names, members.introductions, strict=True)
    }


def _progress(path: Path, name: str) -> Callable[[Any, Any], None]:
    """A callback that adds every row of the history to a file, with what is run and the time."""

    def add(row: Any, snapshot: Any) -> None:
        with path.open("a") as file:
            file.write(json.dumps({"run": name, "time": time.time(), **_numbers(row)}) + "\n")

    return add


def _traffic(path: Path, federation: Federation) -> Callable[[Any, Any], None]:
    """A callback that keeps what every site has sent so far."""
    return lambda row, snapshot: replace_file(path, json.dumps(federation.traffic.as_rows()).encode())


def _numbers(row: Any) -> dict[str, float | None]:
    """A row of the history as JSON holds it."""
    return {str(name): float(value) if np.isfinite(value) else None for name, value in row.items()}
