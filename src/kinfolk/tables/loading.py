"""Loading runs: a folder is checked against its manifest, then each part is read with suspicion.

A folder may come from anybody: nothing in it is unpickled, and none of its code is run. Checksums notice damage; what
somebody else wrote on purpose is refused where a part does not fit the others.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Any, get_args

import networkx
import numpy as np
import pandas

from kinfolk.checks import InputError, printable
from kinfolk.network.array_files import read_arrays
from kinfolk.network.graph import Graph
from kinfolk.report.facts import Changes, GraphOrigin, Made, Note, Part, Role
from kinfolk.tables.columns import Columns
from kinfolk.tables.encoding import Encoder
from kinfolk.tables.entry import Entry
from kinfolk.tables.held_out import HeldOutErrors
from kinfolk.tables.intervals import STEPS, Intervals
from kinfolk.tables.levels import Level
from kinfolk.tables.manifest import MANIFEST, Manifest
from kinfolk.tables.members.saving import MODEL_FILES, Reader
from kinfolk.tables.own_code import code_files, trusted_types
from kinfolk.tables.path import path_of
from kinfolk.tables.settings import Settings, read_toml
from kinfolk.tables.storage import CHANGES, FORMAT, INTERVALS, LOSS, PAGE, TIME, for_xml
from kinfolk.tables.table_run import TableRun
from kinfolk.tables.target import Target
from kinfolk.tables.workplace import unfinished


def load(folder: str | Path, *, trusted: Sequence[str] = ()) -> TableRun:
    """A run that was saved. No code of the folder is run, whoever it comes from.

    Parameters
    ----------
    folder : str or Path
        The folder of a finished run.
    trusted : Sequence[str]
        What else may be used: full names of types of models, such as ``"mine.Ridge"``, or files of your own that define
        them, such as ``"mine.py"``. A file is run, so name only one that you know.

    Returns
    -------
    TableRun
        The run, which predicts as before.

    Raises
    ------
    InputError
        If the folder is no finished run, is damaged, has another format, or holds types that are not known.
    """
    folder = Path(folder)
    trusted = [trusted] if isinstance(trusted, str) else list(trusted)
    _check_whole(folder, models=True)
    with _reading(folder, "run.toml"):
        sources = [each for each in code_files(read_toml(folder / "run.toml")["settings"]) if each[0] != "method"]
    if sources and not trusted:
        what, source = sources[0]
        typed = printable(shlex.quote(str(source)))
        raise InputError(
            f"Expected a {what} that kinfolk knows, that of this run comes from {str(source)!r}: read that file, and "
            f"if you trust it, add --trust {typed} (in Python: trusted=[{str(source)!r}])."
        )
    return _loaded(folder, True, trusted_types(trusted))


def load_results(folder: Path) -> TableRun:
    """A run without its models: what it found, to look at."""
    _check_whole(folder, models=False)
    return _loaded(folder, False, [])


def _loaded(folder: Path, models: bool, trusted: Sequence[str]) -> TableRun:
    """Read what is stored, and derive the rest, so that whatever does not fit together is noticed."""
    with _reading(folder, "metrics.json"):
        metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
        target, columns = Target(**_tupled(metrics["target"])), Columns(**_tupled({**metrics["columns"], "notes": []}))
        origin, made = GraphOrigin(**_tupled(metrics["origin"])), Made(**metrics["made"])
        remarks, tried = [Note(**note) for note in metrics["remarks"]], dict(metrics["entries"])
    with _reading(folder, "run.toml"):
        settings = Settings.of(read_toml(folder / "run.toml")["settings"])
    with _reading(folder, "nodes.parquet"):
        nodes = pandas.read_parquet(_opened(folder / "nodes.parquet"), columns=["node", "train_rows"])
        names, train_rows = [str(name) for name in nodes["node"]], nodes["train_rows"].to_numpy(dtype=np.int64)
    with _reading(folder, "graph.graphml"):
        graph, flow, places = _read_graph(folder / "graph.graphml", names)
    with _reading(folder, "encoder.safetensors"):
        words, arrays = read_arrays(folder / "models" / "encoder.safetensors")
        encoder = Encoder.of(json.loads(words["columns"]), arrays)
        if encoder.columns != set(columns.features):
            raise ValueError("other columns than those of the table")
    reader = Reader(target, len(names), len(encoder.get_feature_names_out()), places, trusted)
    entries: dict[str, Entry] = {}
    for name, kept in tried.items():
        with _reading(folder, f"the model {name!r}"):
            entries[name] = _read_entry(name, folder / "models" / _inside(name), kept, reader, models)
    with _reading(folder, "metrics.json"):
        _check_weights(entries)
    with _reading(folder, "intervals.safetensors"):
        intervals = _read_intervals(folder / "models" / INTERVALS, len(names)) if metrics["intervals"] else None
    with _reading(folder, "path.safetensors"):
        arrays = read_arrays(folder / "path.safetensors")[1]
        path = path_of(target, entries[Role.TAILORED], **arrays, **_tupled(metrics["path"]))
    with _reading(folder, "predictions.parquet"):
        predictions = pandas.read_parquet(_opened(folder / "predictions.parquet"))
        errors = _errors(predictions, names, target)
    with _reading(folder, CHANGES):
        changes = _read_changes(folder / CHANGES, metrics["changes"], names)
    run = TableRun(
        settings=settings, columns=columns, encoder=encoder, target=target, graph=graph, places=places,
        entries=entries, flow=flow, path=path, train_rows=train_rows,
        errors=errors, intervals=intervals,
        predictions=predictions.drop(columns=[f"{LOSS}{role}" for role in errors.rows] + [TIME], errors="ignore"),
        remarks=remarks, origin=origin, made=made, changes=changes,
    )  # fmt: skip
    with _reading(folder, "a part"):
        _ = run.leaderboard, run.nodes, run.edges, run.judgement, run.notes
    return run


def _opened(file: Path) -> BytesIO:
    """A file whose name may be one that pyarrow cannot write."""
    return BytesIO(file.read_bytes())


def _read_entry(name: str, folder: Path, kept: Mapping[str, Any], reader: Reader, models: bool) -> Entry:
    values, errors = np.array(kept["values"], dtype=np.float64), np.array(kept["errors"], dtype=np.float64)
    shares = np.array(kept["shares"], dtype=np.float64)
    if kept["part"] not in get_args(Part) or len(values) != len(errors) or not 0 <= kept["best"] < max(len(values), 1):
        raise ValueError("a choice of other values")
    if len(errors) and errors.shape[1:] != shares.shape:
        raise ValueError("shares of other folds")
    fitted, stored = None, kept["stored"]
    if stored is not None:
        fitted = reader.read(stored, folder) if models else reader.without_models(stored, folder)
    weight = None if kept["weight"] is None else float(kept["weight"])
    return Entry(
        name, kept["part"], str(kept["method"]), tuple(map(str, kept["parameters"])), values, errors, shares,
        int(kept["best"]), weight, str(kept["needs"]), float(kept["sent"]), float(kept["seconds"]), fitted,
    )  # fmt: skip


def _check_weights(entries: Mapping[str, Entry]) -> None:
    """Weights of members are shares of one; others have none."""
    weights = [entry.weight for entry in entries.values() if entry.weight is not None]
    parts = {entry.part for entry in entries.values() if entry.weight is not None}
    if parts != {"member"} or min(weights) < 0 or not np.isclose(sum(weights), 1.0):
        raise ValueError("weights that are no shares")


def _read_intervals(file: Path, node_count: int) -> Intervals:
    arrays = read_arrays(file)[1]
    sizes = {**dict.fromkeys(("scale", "seen", "usual"), node_count), "growth": len(Level._fields)}
    sizes |= {"quantiles": STEPS + 1, "unseen": STEPS + 1}
    if {name: array.shape for name, array in arrays.items()} != {name: (size,) for name, size in sizes.items()}:
        raise ValueError("intervals of other nodes")
    if arrays["seen"].dtype != bool or not all(np.isfinite(array).all() for array in arrays.values()):
        raise ValueError("widths that are none")
    if (arrays["scale"] < 0).any() or any((np.diff(arrays[name]) < 0).any() for name in ("quantiles", "unseen")):
        raise ValueError("widths that are none")
    if Level(*arrays["growth"].tolist()).unit < 0:
        raise ValueError("levels that are none")
    return Intervals(**arrays)


def _read_changes(file: Path, kept: Mapping[str, Any] | None, names: list[str]) -> Changes | None:
    if kept is None:
        return None
    nodes = pandas.read_parquet(file).set_index("node")
    found = Changes(nodes, **_tupled(dict(kept)))
    if [str(name) for name in nodes.index] != names or not all(size > 0 for size in found.parts):
        raise ValueError("changes of other nodes")
    return found


def _inside(name: str) -> str:
    """A name that is that of a folder, and of no other place."""
    if Path(name).name != name or name in ("", ".", ".."):
        raise ValueError(f"a member called {name!r}")
    return name


def _errors(predictions: pandas.DataFrame, names: list[str], target: Target) -> HeldOutErrors:
    number = {name: k for k, name in enumerate(names)}
    marked = [str(column) for column in predictions if str(column).startswith(LOSS)]
    losses = {column.removeprefix(LOSS): predictions[column].to_numpy() for column in marked}
    if not all(np.isfinite(loss).all() and (loss >= 0).all() for loss in losses.values()) or not len(predictions):
        raise ValueError("losses that are none")
    times = predictions[TIME].to_numpy(dtype=np.float64) if TIME in predictions else None
    owner = np.array([number[name] for name in predictions["node"]], dtype=np.int64)
    return HeldOutErrors(losses, owner, target, times)


def _check_whole(folder: Path, models: bool) -> None:
    """Refuse what is no finished run, has another format, or has a file that is missing or altered."""
    if not (folder / "metrics.json").exists() and not (folder / MANIFEST).exists():
        half = "is unfinished: run the same command again to finish it"
        state = half if unfinished(folder).is_dir() else "is no such folder"
        raise InputError(f"Expected the folder of a finished run, {str(folder)!r} {state}.")
    _check_format(folder)
    manifest = Manifest.read(folder / MANIFEST)
    if manifest is None:
        raise InputError(
            f"Expected a complete run in {str(folder)!r}, the list of its files {MANIFEST!r} is missing or damaged: "
            "get the folder again, or fit again."
        )
    manifest.check(folder, lambda name: name != PAGE and (models or PurePosixPath(name).name not in MODEL_FILES))


@contextmanager
def _reading(folder: Path, what: str) -> Iterator[None]:
    """Whatever goes wrong with a part of a run becomes one sentence."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # readers of damaged files raise anything
        brief = printable(f"{type(error).__name__}: {str(error).strip()[:100]}")
        raise InputError(
            f"Expected a complete run in {str(folder)!r}, {what} is missing or damaged ({brief}): fit again, or get "
            "the folder again."
        ) from error


def _check_format(folder: Path) -> None:
    """Refuse a run of another format, as far as that can be read."""
    file = folder / "metrics.json"
    try:
        found = json.loads(file.read_text(encoding="utf-8") if file.is_file() else "")["format"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return  # damaged, which the checksums tell
    if found != FORMAT:
        raise InputError(
            f"Expected a run of format {FORMAT}, {str(folder)!r} has format {found!r} of another version of kinfolk: "
            f"use that version, or fit again with kinfolk fit {printable(shlex.quote(str(folder / 'run.toml')))}."
        )


def _tupled(values: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def _read_graph(file: Path, names: list[str]) -> tuple[Graph, Any, Any]:
    """The graph, the flows of its edges, and the places of its nodes, if they are there."""
    stored = networkx.read_graphml(file)
    number = {for_xml(name): k for k, name in enumerate(names)}
    rows = [
        (*sorted((number[a], number[b])), value["weight"], value["flow"]) for a, b, value in stored.edges(data=True)
    ]
    edges = pandas.DataFrame(sorted(rows), columns=["head", "tail", "weight", "flow"])
    graph = Graph(
        len(names), edges[["head", "tail"]].to_numpy(dtype=np.int64).reshape(-1, 2), edges["weight"].to_numpy(), names
    )
    spots = [(stored.nodes[name].get("latitude"), stored.nodes[name].get("longitude")) for name in number]
    places = None if any(spot[0] is None for spot in spots) else np.array(spots, dtype=np.float64)
    return graph, edges["flow"].to_numpy(dtype=np.float64), places
