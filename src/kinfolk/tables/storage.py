"""Saving runs: all about a run on a table in one folder, complete or not there.

What is kinfolk's own, such as linear models and the encoder, is written as arrays (safetensors) and JSON; estimators go
through ``stored``. What follows from other files, such as the leaderboard, is written for other programs and never read
back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import tomli_w

from kinfolk.checks import InputError
from kinfolk.engine.files import write_whole
from kinfolk.network.array_files import array_bytes, plain
from kinfolk.report.page import page_html
from kinfolk.tables.entry import Entry
from kinfolk.tables.manifest import MANIFEST, Manifest, checksum
from kinfolk.tables.members.saving import fitted_files, kind_of
from kinfolk.tables.table_run import TableRun
from kinfolk.tables.workplace import Workplace, check_free

FORMAT = 7  # of a folder; another one is refused
PAGE = "report.html"
KEPT = (
    "part",
    "method",
    "parameters",
    "values",
    "errors",
    "shares",
    "best",
    "weight",
    "needs",
    "sent",
    "seconds",
)  # of an entry
TIME = "tested time"  # the column with the times of held-out rows
INTERVALS = "intervals.safetensors"
CHANGES = "changes.parquet"  # what the last update changed, by node
CHANGED = ("parts", "error_new", "error_before", "seconds")  # ... and of all nodes
LOSS = "loss "  # begins the columns with the losses of held-out rows


def save(run: TableRun, folder: Path, *, force: bool = False) -> Path:
    """Write a run into a folder beside it, which takes its name when all is there; what cannot be saved leaves none."""
    with Workplace.opened(check_free(folder, force)) as work:
        work.resume({"written by": "save"}, force)
        try:
            save_in(work, run, {})
        except InputError:
            work.abandon()
            raise
    return folder


def save_in(work: Workplace, run: TableRun, repeat: dict[str, Any]) -> None:
    """Write a run at its workplace, then let the folder take its name."""
    names = []
    for name, content in _files(run, repeat):
        work.write(name, content)
        names.append(name)
    work.complete(names)


def _files(run: TableRun, repeat: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    """The files of a run, by name."""
    yield "run.toml", _toml(run, repeat)
    for member, entry in run.entries.items():
        if entry.fitted is not None:
            for name, content in fitted_files(entry.fitted, member):
                yield f"models/{member}/{name}", content
    words = {"columns": json.dumps(run.encoder.to_json())}
    yield "models/encoder.safetensors", array_bytes(run.encoder.to_arrays(), words)
    if run.intervals is not None:
        yield f"models/{INTERVALS}", array_bytes(asdict(run.intervals))
    losses = {f"{LOSS}{role}": loss for role, loss in run.errors.rows.items()}
    losses |= {} if run.errors.times is None else {TIME: run.errors.times}
    yield "predictions.parquet", run.predictions.assign(**losses).to_parquet(index=False)
    yield "nodes.parquet", run.nodes.reset_index().to_parquet(index=False)
    if run.changes is not None:
        yield CHANGES, run.changes.nodes.reset_index().to_parquet(index=False)
    path = {"groups": run.path.groups, "signature": run.path.signature.astype(np.float32)}
    yield "path.safetensors", array_bytes(path)
    yield "graph.graphml", _graphml(run)
    yield "metrics.json", json.dumps(_metrics(run), indent=1, default=plain).encode()
    yield PAGE, page_html(run.facts).encode()


def _toml(run: TableRun, repeat: dict[str, Any]) -> bytes:
    made = {name: value for name, value in asdict(run.made).items() if isinstance(value, str)}
    return tomli_w.dumps({**repeat, "settings": run.settings.to_toml(), "made": made}).encode()


def renew_page(run: TableRun, folder: Path) -> Path:
    """Write the page of a saved run again, and list its checksum."""
    manifest = Manifest.read(folder / MANIFEST)
    assert manifest is not None
    content = page_html(run.facts).encode()
    write_whole(folder / PAGE, content)
    write_whole(folder / MANIFEST, Manifest({**manifest.checksums, PAGE: checksum(content)}).content)
    return folder / PAGE


def _metrics(run: TableRun) -> dict[str, Any]:
    """What is in no other file; leaderboard and judgement for other programs."""
    return {
        "format": FORMAT,
        **results_for_programs(run),
        **{name: asdict(getattr(run, name)) for name in ("columns", "target", "origin", "made")},
        "remarks": [asdict(note) for note in run.remarks],
        "path": {"names": run.path.names, "coefficients": run.path.coefficients},
        "entries": {name: _kept(entry) for name, entry in run.entries.items()},
        "intervals": run.intervals is not None,
        "changes": None if run.changes is None else {name: getattr(run.changes, name) for name in CHANGED},
    }


def _kept(entry: Entry) -> dict[str, Any]:
    stored = {"stored": None if entry.fitted is None else kind_of(entry.fitted)}
    return {name: getattr(entry, name) for name in KEPT} | stored


def results_for_programs(run: TableRun) -> dict[str, Any]:
    """Leaderboard and judgement as JSON can hold them."""
    return {
        "leaderboard": json.loads(run.leaderboard.reset_index().to_json(orient="records")),
        "judgement": {**asdict(run.judgement), "text": run.judgement.text},
    }


def _graphml(run: TableRun) -> bytes:
    """The graph for other programs: names, groups, places and gains of nodes, weights and flows of edges."""
    graph = networkx.Graph()
    for k, (name, row) in enumerate(run.nodes.iterrows()):
        known_as = for_xml(str(name))
        graph.add_node(known_as, group=int(row["group"]), number=k)
        if run.places is not None:
            graph.nodes[known_as].update(latitude=float(run.places[k, 0]), longitude=float(run.places[k, 1]))
    names = [for_xml(str(name)) for name in run.nodes.index]
    for head, tail, weight, flow in run.edges.to_numpy().tolist():
        graph.add_edge(names[int(head)], names[int(tail)], weight=weight, flow=flow)
    out = BytesIO()
    networkx.write_graphml(graph, out)
    return out.getvalue()


def for_xml(name: str) -> str:
    r"""A name with escapes for what XML cannot hold; different names stay different.

    >>> print(for_xml("a\x00b"), for_xml("a\\x00b"), for_xml("Zürich"))
    a\x00b a\x5cx00b Zürich
    """
    return re.sub(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\\]", lambda found: f"\\x{ord(found[0]):02x}", name)
