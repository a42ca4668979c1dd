"""Run directories: all about a run on a table in one folder, complete or not there. Nothing is ever unpickled."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pandas
import safetensors.numpy
import tomli_w

from kinfolk.checks import InputError, listing
from kinfolk.local_models.estimators import OneClass, as_local_model
from kinfolk.local_models.fitted import FittedModels
from kinfolk.network.graph import Graph
from kinfolk.objective import losses
from kinfolk.objective.linear_models import LinearModels
from kinfolk.report.facts import KINDS
from kinfolk.tables.candidates import Shared
from kinfolk.tables.columns import Columns
from kinfolk.tables.families import from_file
from kinfolk.tables.judging import Judgement
from kinfolk.tables.nodemodels import NodeModels
from kinfolk.tables.settings import Settings, read_toml
from kinfolk.tables.tablerun import LamPath, TableRun
from kinfolk.tables.target import Target

UNFINISHED = ".unfinished"
KNOWN = ("sklearn.", "numpy.", "kinfolk.")  # where types of models come from that are loaded without asking


# ---------------------------------------------------------------------- a folder that is complete, or called unfinished


def unfinished(folder: Path) -> Path:
    """Where a run is kept until it is complete: beside its folder."""
    return folder.with_name(folder.name + UNFINISHED)


def check_free(folder: Path, force: bool) -> None:
    """Refuse to overwrite what is there, unless told to; a folder that is no run is never touched."""
    if not folder.exists():
        return
    if not (folder / "run.toml").is_file() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"Expected a folder for the run, {str(folder)!r} holds something else: choose another name.")
    if (folder / "run.toml").is_file() and not force:
        raise InputError(
            f"Expected a new folder, {str(folder)!r} already holds a run: choose another, or use force (--force)."
        )


def start_over(work: Path, marks: dict[str, Any], force: bool) -> bool:
    """Make the folder of an unfinished run; True if it goes on from one with the same settings and table."""
    before = work / "run.toml"
    if before.is_file() and not force:
        if tomllib.loads(before.read_text(encoding="utf-8")) == marks and (work / "journal").is_dir():
            return True
        if (work / "journal").is_dir():
            raise InputError(
                f"Expected to go on with the unfinished run in {str(work)!r}, but it has other settings, edges or "
                "another table: repeat its command, or start afresh with --force."
            )
    shutil.rmtree(work, ignore_errors=True)
    try:
        work.mkdir(parents=True)
    except OSError as error:
        raise InputError(f"Expected a folder for the run, cannot make {str(work)!r}: {error.strerror}.") from error
    return False


class FolderJournal:
    """Finished work in a folder, one file of arrays each; an interrupted run goes on from it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def kept(self, key: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The arrays under this key: read, or made and written."""
        path = self.folder / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.safetensors"
        if path.is_file():
            return dict(safetensors.numpy.load_file(path))
        arrays = make()
        self.folder.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".part")
        _write_arrays(partial, arrays)
        partial.replace(path)
        return arrays


def save(run: TableRun, folder: Path, *, force: bool = False, repeat: dict[str, Any] | None = None) -> Path:
    """Write a run: into a folder beside it, which takes its name when all is there."""
    check_free(folder, force)
    work = unfinished(folder)
    work.mkdir(parents=True, exist_ok=True)
    _write(run, work, repeat or {})
    shutil.rmtree(work / "journal", ignore_errors=True)
    if folder.exists():
        shutil.rmtree(folder)
    work.replace(folder)
    return folder


def _write(run: TableRun, folder: Path, repeat: dict[str, Any]) -> None:
    models = folder / "models"
    shutil.rmtree(models, ignore_errors=True)
    models.mkdir()
    run.history.reset_index().to_parquet(folder / "history.parquet", index=False)
    run.predictions.to_parquet(folder / "predictions.parquet", index=False)
    run.nodes.reset_index().to_parquet(folder / "nodes.parquet", index=False)
    _write_path(run.path, folder / "path.safetensors")
    for kind in KINDS:
        _write_models(run.models.kinds[kind], models / kind)
    _dump_estimator(run.encoder, models / "encoder.skops")
    _write_graph(run, folder / "graph.graphml")
    (folder / "metrics.json").write_text(json.dumps(_metrics(run), indent=1, default=_plain), encoding="utf-8")
    made = {"made": {name: run.about[name] for name in ("kinfolk", "python", "numpy", "fingerprint")}}
    (folder / "run.toml").write_text(
        tomli_w.dumps({**repeat, "settings": run.settings.to_toml(), **made}), encoding="utf-8"
    )
    run.report(folder / "report.html")


def _metrics(run: TableRun) -> dict[str, Any]:
    """All numbers and words that are not in another file."""
    return {
        "leaderboard": json.loads(run.leaderboard.reset_index().to_json(orient="records")),
        "judgement": dataclasses.asdict(run.judgement),
        "columns": dataclasses.asdict(run.columns),
        "target": dataclasses.asdict(run.target),
        "notes": run.notes,
        "about": run.about,
        "path": {"chosen": run.path.chosen, "names": run.path.names, "coefficients": run.path.coefficients},
    }


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else str(value)


def _write_arrays(file: Path, arrays: dict[str, Any], words: dict[str, str] | None = None) -> None:
    plain = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    file.write_bytes(safetensors.numpy.save(plain, metadata=words))


def _write_path(path: LamPath, file: Path) -> None:
    arrays = {name: getattr(path, name) for name in ("lams", "errors", "spread", "groups", "signature")}
    arrays["signature"] = arrays["signature"].astype(np.float32)
    _write_arrays(file, arrays)


def _write_graph(run: TableRun, file: Path) -> None:
    """The graph for other programs: names, groups, places and gains of nodes, weights and flows of edges."""
    graph = networkx.Graph()
    for k, (name, row) in enumerate(run.nodes.iterrows()):
        graph.add_node(str(name), group=int(row["group"]), model=str(row["model"]), number=k)
        if run.places is not None:
            graph.nodes[str(name)].update(latitude=float(run.places[k, 0]), longitude=float(run.places[k, 1]))
    names = list(map(str, run.nodes.index))
    for head, tail, weight, flow in run.edges.to_numpy().tolist():
        graph.add_edge(names[int(head)], names[int(tail)], weight=weight, flow=flow)
    networkx.write_graphml(graph, file)


# ---------------------------------------------------------------------- models


def _write_models(models: Any, stem: Path) -> None:
    """Parameters as safetensors, estimators with skops."""
    inner = models.models if isinstance(models, Shared) else models
    if isinstance(inner, LinearModels):
        words = {"loss": type(inner.loss).__name__, "options": json.dumps(dataclasses.asdict(inner.loss))}
        _write_arrays(stem.with_suffix(".safetensors"), {"w": inner.w}, words)
        return
    if not isinstance(inner, FittedModels):
        raise InputError(f"Expected linear models or estimators to save, got {type(inner).__name__}.")
    classes = None if inner.classes is None else inner.classes.tolist()
    kept = [model if not isinstance(model, OneClass) else {"only": model.label} for model in inner.fitted]
    _dump_estimator({"fitted": kept, "classes": classes}, stem.with_suffix(".skops"))


def _read_models(stem: Path, shared: bool, trusted: list[str]) -> Any:
    if stem.with_suffix(".safetensors").is_file():
        inner: Any = _read_linear(stem.with_suffix(".safetensors"))
    else:
        inner = _read_fitted(stem.with_suffix(".skops"), trusted)
    return Shared(inner) if shared else inner


def _read_linear(file: Path) -> LinearModels:
    with safetensors.safe_open(file, "numpy") as opened:
        words, w = opened.metadata(), opened.get_tensor("w")
    kind = getattr(losses, words["loss"], None)
    if kind is None or not isinstance(kind, type) or not issubclass(kind, losses.Loss):
        raise InputError(f"Expected models with a known loss in {file.name!r}, got {words['loss']!r}.")
    return LinearModels(w, kind(**json.loads(words["options"])))


def _read_fitted(file: Path, trusted: list[str]) -> FittedModels:
    kept = _load_estimator(file, trusted)
    fitted = np.empty(len(kept["fitted"]), dtype=object)
    fitted[:] = [OneClass(model["only"]) if isinstance(model, dict) else model for model in kept["fitted"]]
    some = next((model for model in fitted if model is not None and not isinstance(model, OneClass)), None)
    kind = as_local_model(some)
    return FittedModels(fitted, [kind] * len(fitted), None if kept["classes"] is None else np.array(kept["classes"]))


def _dump_estimator(thing: Any, file: Path) -> None:
    import skops.io  # slow: it looks at every module of scikit-learn

    try:
        skops.io.dump(thing, file)
    except Exception as error:  # whatever an estimator of the user's own does not let be written
        raise InputError(
            f"Expected models that skops can write, got some that it cannot ({type(error).__name__}: {error}): the run "
            "cannot be saved with them; use an estimator of scikit-learn, or predict in the same session."
        ) from error


def _load_estimator(file: Path, trusted: list[str]) -> Any:
    import skops.io

    named = skops.io.get_untrusted_types(file=file)
    unknown = [kind for kind in named if not kind.startswith(KNOWN) and kind not in trusted]
    if unknown:
        raise InputError(
            f"Expected models of known types in {file.name!r}, got {listing(unknown)}: if you trust where they come "
            "from, name them with trusted (--trust)."
        )
    return skops.io.load(file, trusted=named)


# ---------------------------------------------------------------------- reading


def load(folder: str | Path, *, trusted: tuple[str, ...] | list[str] = ()) -> TableRun:
    """A run that was saved. Types of models that are not known are refused, unless they are named as trusted."""
    folder = Path(folder)
    if not folder.is_dir() or not (folder / "metrics.json").is_file():
        state = (
            "is unfinished: run the same command again to finish it"
            if unfinished(folder).is_dir()
            else "is no such folder"
        )
        raise InputError(f"Expected the folder of a finished run, {str(folder)!r} {state}.")
    try:
        return _read(folder, list(trusted))
    except (KeyError, TypeError, OSError, json.JSONDecodeError) as error:
        raise InputError(
            f"Expected a complete run in {str(folder)!r}, something is missing or damaged ({error!r})."
        ) from error


def _read(folder: Path, trusted: list[str]) -> TableRun:
    metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    settings = Settings.from_toml(read_toml(folder / "run.toml")["settings"])
    if trusted and ".py:" in settings.model:
        from_file(settings.model, "the model of this run", [])  # the user's own file, and named as trusted
    target = Target(**_tupled(metrics["target"]))
    columns = Columns(**_tupled(metrics["columns"]))
    nodes = pandas.read_parquet(folder / "nodes.parquet").set_index("node")
    graph, edges, places = _read_graph(folder / "graph.graphml", list(map(str, nodes.index)))
    kinds = {kind: _read_models(folder / "models" / kind, kind == "pooled", trusted) for kind in KINDS}
    along: dict[str, Any] = {**safetensors.numpy.load_file(folder / "path.safetensors"), **_tupled(metrics["path"])}
    return TableRun(
        settings=settings,
        columns=columns,
        encoder=_load_estimator(folder / "models" / "encoder.skops", trusted),
        target=target,
        graph=graph,
        places=places,
        models=NodeModels(target, kinds, nodes["model"].to_numpy(dtype=object)),
        nodes=nodes,
        leaderboard=pandas.DataFrame(metrics["leaderboard"]).set_index("role"),
        judgement=Judgement(**metrics["judgement"]),
        path=LamPath(**along),
        edges=edges,
        history=pandas.read_parquet(folder / "history.parquet").set_index("round"),
        predictions=pandas.read_parquet(folder / "predictions.parquet"),
        notes=metrics["notes"],
        about=metrics["about"],
    )


def _tupled(values: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def _read_graph(file: Path, names: list[str]) -> tuple[Graph, pandas.DataFrame, Any]:
    stored = networkx.read_graphml(file)
    number = {name: k for k, name in enumerate(names)}
    rows = [
        (*sorted((number[a], number[b])), value["weight"], value["flow"]) for a, b, value in stored.edges(data=True)
    ]
    edges = pandas.DataFrame(sorted(rows), columns=["head", "tail", "weight", "flow"])
    graph = Graph(
        len(names), edges[["head", "tail"]].to_numpy(dtype=np.int64).reshape(-1, 2), edges["weight"].to_numpy(), names
    )
    spots = [(stored.nodes[name].get("latitude"), stored.nodes[name].get("longitude")) for name in names]
    places = None if any(spot[0] is None for spot in spots) else np.array(spots, dtype=np.float64)
    return graph, edges, places
