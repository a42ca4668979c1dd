"""Run directories: all about a run on a table in one folder, complete or not there.

A folder may come from anybody: nothing in it is unpickled, and none of its code is run. What is kinfolk's own, such as
linear models and the encoder, is written as arrays (safetensors) and JSON; estimators go through ``stored``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shlex
import shutil
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pandas
import safetensors.numpy
import tomli_w
from sklearn.dummy import DummyClassifier, DummyRegressor

from kinfolk.checks import InputError, check_parameters, printable
from kinfolk.local_models.estimators import AsClassifier, Estimator, OneClass
from kinfolk.local_models.fitted import FittedModels
from kinfolk.local_models.least_squares import LinearFit, LinearModel
from kinfolk.local_models.stored import dump_estimators, load_estimators
from kinfolk.network.graph import Graph
from kinfolk.objective import losses
from kinfolk.objective.linear_models import LinearModels
from kinfolk.report.facts import KINDS
from kinfolk.tables.candidates import Shared
from kinfolk.tables.columns import Columns
from kinfolk.tables.encoding import Encoder
from kinfolk.tables.families import code_file, trusted_types
from kinfolk.tables.judging import Judgement
from kinfolk.tables.nodemodels import NodeModels
from kinfolk.tables.settings import Settings, read_toml
from kinfolk.tables.tablerun import LamPath, TableRun
from kinfolk.tables.target import Target

UNFINISHED = ".unfinished"
FORMAT = 1  # of a folder; another one is refused
LINEAR: Mapping[str, type[losses.Loss] | type[LinearModel]] = {  # what parameters may belong to
    "Squared": losses.Squared,
    "Logistic": losses.Logistic,
    "Huber": losses.Huber,
    "Poisson": losses.Poisson,
    "Absolute": losses.Absolute,
    "Quantile": losses.Quantile,
    "LinearModel": LinearModel,
}
NODE_COLUMNS = ("train_rows", "test_rows", "gain", "gain_alone", "group", *(f"error_{kind}" for kind in KINDS))
WRAPPERS: Mapping[str, type[Estimator]] = {"Estimator": Estimator, "AsClassifier": AsClassifier}


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
    _write_arrays(
        models / "encoder.safetensors", run.encoder.to_arrays(), {"columns": json.dumps(run.encoder.to_json())}
    )
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
        "format": FORMAT,
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
        known_as = _for_xml(str(name))
        graph.add_node(known_as, group=int(row["group"]), model=str(row["model"]), number=k)
        if run.places is not None:
            graph.nodes[known_as].update(latitude=float(run.places[k, 0]), longitude=float(run.places[k, 1]))
    names = [_for_xml(str(name)) for name in run.nodes.index]
    for head, tail, weight, flow in run.edges.to_numpy().tolist():
        graph.add_edge(names[int(head)], names[int(tail)], weight=weight, flow=flow)
    networkx.write_graphml(graph, file)


def _for_xml(name: str) -> str:
    r"""A name with escapes for what XML cannot hold; different names stay different.

    >>> print(_for_xml("a\x00b"), _for_xml("a\\x00b"), _for_xml("Zürich"))
    a\x00b a\x5cx00b Zürich
    """
    return re.sub(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\\]", lambda found: f"\\x{ord(found[0]):02x}", name)


# ---------------------------------------------------------------------- models


def _write_models(models: Any, stem: Path) -> None:
    """Parameters as arrays, estimators with ``dump_estimators``."""
    inner = models.models if isinstance(models, Shared) else models
    if isinstance(inner, LinearModels):
        _write_linear(stem, inner.w, inner.loss)
    elif isinstance(inner, FittedModels) and isinstance(inner.kinds[0], LinearModel):
        _write_linear(stem, _stacked(inner.fitted), dataclasses.replace(inner.kinds[0], step=None))
    elif isinstance(inner, FittedModels) and type(inner.kinds[0]) in WRAPPERS.values():
        classes = None if inner.classes is None else inner.classes.tolist()
        kept = {"wrapper": type(inner.kinds[0]).__name__, "fitted": list(inner.fitted), "classes": classes}
        stem.with_suffix(".skops").write_bytes(dump_estimators(kept, f"the {stem.name} models"))
    else:
        raise InputError(
            f"Expected linear models or estimators to save, got {type(getattr(inner, 'kinds', [inner])[0]).__name__}: "
            "predict in the same session."
        )


def _write_linear(stem: Path, w: Any, belongs_to: losses.Loss | LinearModel) -> None:
    """Parameters, and the loss or the model that they belong to: its name and its options."""
    kind = type(belongs_to)
    known = LINEAR.get(kind.__name__) is kind
    words = {
        "kind": kind.__name__ if known else f"{kind.__module__}.{kind.__name__}",
        "options": json.dumps(dataclasses.asdict(belongs_to), default=_plain),
    }
    _write_arrays(stem.with_suffix(".safetensors"), {"w": w}, words)


def _stacked(fits: Sequence[LinearFit | None]) -> Any:
    """Parameters (nodes, parameters); NaN where a node has none."""
    width = next(len(fit.w) for fit in fits if fit is not None)
    return np.array([np.full(width, np.nan) if fit is None else fit.w for fit in fits])


def _read_models(stem: Path, node_count: int, feature_count: int, trusted: Sequence[str]) -> Any:
    """The models of one kind; those of all nodes together are one."""
    shared = stem.name == "pooled"
    size = 1 if shared else node_count
    if stem.with_suffix(".safetensors").is_file():
        inner: Any = _read_linear(stem.with_suffix(".safetensors"), size, feature_count)
    else:
        inner = _read_fitted(stem.with_suffix(".skops"), size, feature_count, trusted)
    return Shared(inner) if shared else inner


def _read_linear(file: Path, size: int, feature_count: int) -> LinearModels | FittedModels:
    words, arrays = _read_arrays(file)
    w, kind = arrays["w"], words["kind"]
    if kind not in LINEAR:
        raise InputError(f"Expected linear models of the kinds {', '.join(LINEAR)} in {file.name!r}, got {kind!r}.")
    belongs_to = LINEAR[kind](**json.loads(words["options"]))
    check_parameters(belongs_to)
    if w.dtype != np.float64 or w.shape != (size, feature_count + belongs_to.intercept):
        raise ValueError(f"parameters of shape {w.shape}")
    if isinstance(belongs_to, losses.Loss):
        return LinearModels(w, belongs_to)
    fitted = np.empty(size, dtype=object)
    fitted[:] = [None if np.isnan(row).any() else LinearFit(row) for row in w]
    return FittedModels(fitted, [belongs_to] * size, None)


def _read_fitted(file: Path, size: int, feature_count: int, trusted: Sequence[str]) -> FittedModels:
    kept = load_estimators(file.read_bytes(), f"the models in {file.name!r}", trusted)
    widths = {getattr(model, "n_features_in_", feature_count) for model in kept["fitted"]}
    if len(kept["fitted"]) != size or widths != {feature_count}:
        raise ValueError(f"{len(kept['fitted'])} models for {widths} features")
    fitted = np.empty(size, dtype=object)
    fitted[:] = kept["fitted"]
    classes = None if kept["classes"] is None else np.array(kept["classes"], dtype=np.float64)
    stands = DummyRegressor() if classes is None else DummyClassifier()
    some = next((model for model in fitted if model is not None and not isinstance(model, OneClass)), stands)
    return FittedModels(fitted, [WRAPPERS[kept["wrapper"]](some)] * size, classes)


# ---------------------------------------------------------------------- reading


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
    run = load_results(folder)
    source = code_file(run.settings.model)
    if source is not None and not trusted:
        typed = printable(shlex.quote(str(source)))
        raise InputError(
            f"Expected a model that kinfolk knows, that of this run comes from {str(source)!r}: read that file, and if "
            f"you trust it, add --trust {typed} (in Python: trusted=[{str(source)!r}])."
        )
    types = trusted_types(trusted)
    width = len(run.encoder.get_feature_names_out())
    for kind in KINDS:
        with _reading(folder, f"the {kind} models"):
            run.models.kinds[kind] = _read_models(folder / "models" / kind, len(run.nodes), width, types)
    return run


def load_results(folder: Path) -> TableRun:
    """A run without its models: what it found, to look at."""
    if not folder.is_dir() or not (folder / "metrics.json").is_file():
        state = (
            "is unfinished: run the same command again to finish it"
            if unfinished(folder).is_dir()
            else "is no such folder"
        )
        raise InputError(f"Expected the folder of a finished run, {str(folder)!r} {state}.")
    with _reading(folder, "metrics.json"):
        metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
        _check_format(metrics.get("format"), folder)
        parts = _read_metrics(metrics)
    with _reading(folder, "run.toml"):
        settings = Settings.from_toml(read_toml(folder / "run.toml")["settings"])
    with _reading(folder, "nodes.parquet"):
        nodes = pandas.read_parquet(folder / "nodes.parquet").set_index("node")
        taken = nodes["model"].to_numpy(dtype=object)
        if not set(taken) <= set(KINDS) or not set(NODE_COLUMNS) <= set(nodes.columns):
            raise ValueError("other columns or kinds of models")
    with _reading(folder, "graph.graphml"):
        graph, edges, places = _read_graph(folder / "graph.graphml", list(map(str, nodes.index)))
    with _reading(folder, "path.safetensors"):
        path = LamPath(**_read_arrays(folder / "path.safetensors")[1], **_tupled(metrics["path"]))
    with _reading(folder, "encoder.safetensors"):
        words, arrays = _read_arrays(folder / "models" / "encoder.safetensors")
        encoder = Encoder.of(json.loads(words["columns"]), arrays)
        if encoder.columns != set(parts["columns"].features):
            raise ValueError("other columns than those of the table")
    with _reading(folder, "history.parquet"):
        history = pandas.read_parquet(folder / "history.parquet").set_index("round")
    with _reading(folder, "predictions.parquet"):
        predictions = pandas.read_parquet(folder / "predictions.parquet")
    return TableRun(
        settings=settings,
        encoder=encoder,
        graph=graph,
        places=places,
        models=NodeModels(parts["target"], {}, taken),
        nodes=nodes,
        path=path,
        edges=edges,
        history=history,
        predictions=predictions,
        **parts,
    )


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


def _check_format(found: Any, folder: Path) -> None:
    if found != FORMAT:
        raise InputError(
            f"Expected a run of format {FORMAT}, {str(folder)!r} has format {found!r} of another version of kinfolk: "
            f"use that version, or fit again with kinfolk fit {printable(shlex.quote(str(folder / 'run.toml')))}."
        )


def _read_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of a run that are in metrics.json."""
    board = pandas.DataFrame(metrics["leaderboard"]).set_index("role")
    for name in ("error", "helped", "hurt", "seconds", "bytes"):
        pandas.to_numeric(board[name])
    return {
        "target": Target(**_tupled(metrics["target"])),
        "columns": Columns(**_tupled(metrics["columns"])),
        "leaderboard": board,
        "judgement": Judgement(**metrics["judgement"]),
        "notes": metrics["notes"],
        "about": metrics["about"],
    }


def _tupled(values: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def _read_arrays(file: Path) -> tuple[Mapping[str, str], dict[str, Any]]:
    """The words and the arrays of a file."""
    content = file.read_bytes()
    arrays = safetensors.numpy.load(content)
    with safetensors.safe_open(file, "numpy") as opened:
        return opened.metadata() or {}, arrays


def _read_graph(file: Path, names: list[str]) -> tuple[Graph, pandas.DataFrame, Any]:
    stored = networkx.read_graphml(file)
    number = {_for_xml(name): k for k, name in enumerate(names)}
    rows = [
        (*sorted((number[a], number[b])), value["weight"], value["flow"]) for a, b, value in stored.edges(data=True)
    ]
    edges = pandas.DataFrame(sorted(rows), columns=["head", "tail", "weight", "flow"])
    graph = Graph(
        len(names), edges[["head", "tail"]].to_numpy(dtype=np.int64).reshape(-1, 2), edges["weight"].to_numpy(), names
    )
    spots = [(stored.nodes[name].get("latitude"), stored.nodes[name].get("longitude")) for name in number]
    places = None if any(spot[0] is None for spot in spots) else np.array(spots, dtype=np.float64)
    return graph, edges, places
