"""Fitted members in folders: coefficients and trees as arrays, runs by ``saved_run``, own estimators by ``stored``."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import clone

from kinfolk.checks import InputError
from kinfolk.engine.saved_run import load_run, run_files
from kinfolk.local_models import saved_models
from kinfolk.local_models.estimators import Estimator
from kinfolk.local_models.least_squares import LinearModel
from kinfolk.local_models.stored import dump_estimators, load_estimators
from kinfolk.local_models.stored_reader import RefusedTypeError
from kinfolk.local_models.weighted_rows import as_local_model
from kinfolk.network.array_files import array_bytes, read_arrays
from kinfolk.tables.members.boosted import BoostedFit
from kinfolk.tables.members.graph_member import FittedRuns
from kinfolk.tables.members.linear_fit import LinearFit
from kinfolk.tables.members.own import OwnEstimator, OwnFit, with_node
from kinfolk.tables.members.scores import LinearScores, Link
from kinfolk.tables.members.trees import Trees
from kinfolk.tables.own_code import code_file
from kinfolk.tables.target import Target
from kinfolk.typing import Floats

if TYPE_CHECKING:
    from kinfolk.tables.prepared import Prepared

ARRAYS, ESTIMATOR = "arrays.safetensors", "estimator.skops"
BASE = "base"  # the array of coefficients that trees stand on
COMMON = "common"  # the array of coefficients for nodes that were never seen, if there is one
MODEL_FILES = (ARRAYS, ESTIMATOR, *saved_models.FILES)
OWN: Link = "own"
SOFTMAX: Link = "softmax"
PACKAGES = {"numpy": "NumPy", "scipy": "SciPy", "sklearn": "scikit-learn"}
FEW = 40  # rows of a trial
SIZES = ("n_estimators", "max_iter")  # parameters whose size does not matter to whether a model can be saved
KINDS = {LinearFit: "linear", FittedRuns: "runs", BoostedFit: "boosted", OwnFit: "own"}


def kind_of(fitted: Any) -> str:
    """How a fitted member is stored."""
    return KINDS[type(fitted)]


def fitted_files(fitted: Any, name: str) -> Iterator[tuple[str, bytes]]:
    """The files of what a member has learnt, by name."""
    if isinstance(fitted, FittedRuns):
        for k, run in enumerate(fitted.runs):
            yield from ((f"{k}/{file}", content) for file, content in run_files(run, name))
    elif isinstance(fitted, OwnFit):
        yield ESTIMATOR, estimator_bytes(fitted.estimator, f"Member {name}")
    elif isinstance(fitted, LinearFit):
        yield ARRAYS, array_bytes({"w": fitted.scores.w, **_common(fitted.scores)}, {"link": fitted.scores.link})
    else:
        yield ARRAYS, array_bytes({**fitted.trees.to_arrays(), BASE: fitted.base.w, **_common(fitted.base)})


def estimator_bytes(fitted: Any, name: str) -> bytes:
    """A fitted estimator of the user's own, to be stored, or a sentence that says what in it cannot be."""
    try:
        return dump_estimators(fitted, name)
    except RefusedTypeError as error:
        package, kind = error.name.partition(".")[0], "type" if error.loader == "TypeNode" else "function"
        held = f"a {PACKAGES[package]} {kind}" if package in PACKAGES else f"the {kind} {error.name}"
        raise InputError(f"{name} cannot be saved: it contains {held}. Use a class that stores arrays only.") from error


def check_storable(prepared: Prepared) -> None:
    """Refuse members and a model of the user's own that cannot be saved, before they are fitted: a small trial."""
    rows, settings, model = prepared.rows.training, prepared.settings, as_local_model(prepared.design.family.learns)
    some = np.linspace(0, len(rows.y) - 1, FEW).astype(np.int64)
    if prepared.design.target.classes:
        some = np.union1d(some, np.unique(rows.y, return_index=True)[1])  # one of every class at least
    rows = rows.take(some)
    own = [each for each in prepared.design.own_members.values() if isinstance(each, OwnEstimator)]
    tried = [(f"Member {each.name}", each.estimator, with_node(rows)) for each in own]
    if code_file(settings.model) is not None and not isinstance(model, LinearModel):
        name = f"Model {settings.model.rpartition(':')[2]}"
        if not isinstance(model, Estimator):
            raise InputError(f"{name} cannot be saved: it is no estimator. Use a class with fit and predict.")
        tried.append((name, model.estimator, rows.X))
    for name, estimator, X in tried:
        fitted = _trial(estimator, X, rows.y)
        if fitted is not None:
            estimator_bytes(fitted, name)


def _trial(estimator: Any, X: Floats, y: Floats) -> Any:
    """A copy with few parts, fitted; None if that fails: the real fit tells why."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            few = {name: 2 for name in estimator.get_params() if name.rpartition("__")[2] in SIZES}
            return clone(estimator).set_params(**few).fit(X, y)
        except Exception:  # whatever an estimator of the user's own does not like about a few rows
            return None


class Reader:
    """Reads the members of one run: they share the target, the nodes and the features."""

    def __init__(
        self, target: Target, node_count: int, feature_count: int, places: Floats | None, trusted: Sequence[str]
    ) -> None:
        self.target, self.node_count, self.feature_count, self.trusted = target, node_count, feature_count, trusted
        self.inputs = feature_count + (0 if places is None else 2) + 1
        self.outputs = target.outputs
        self._readers: Mapping[str, Callable[[Path], Any]] = {
            "linear": self._linear, "runs": self._runs, "boosted": self._boosted, "own": self._own,
        }  # fmt: skip

    def read(self, kind: str, folder: Path) -> Any:
        """A fitted member."""
        return self._readers[kind](folder)

    def without_models(self, kind: str, folder: Path) -> FittedRuns | None:
        """The account of runs, to look at; nothing that predicts."""
        if kind != "runs":
            return None
        return FittedRuns((load_run(folder / "0", 0, 0, models=False),), self.target, folder.name == "pooled")

    def _linear(self, folder: Path) -> LinearFit:
        words, arrays = read_arrays(folder / ARRAYS)
        counts = (1, self.node_count)
        return LinearFit(self._scores(arrays["w"], arrays.get(COMMON), counts, _link(words["link"])))

    def _scores(self, w: Floats, common: Floats | None, counts: tuple[int, ...], link: Link = OWN) -> LinearScores:
        """Coefficients of as many nodes as ``counts`` allows."""
        width = self.feature_count + 1
        if common is not None and (common.dtype != np.float64 or common.shape != (self.outputs, width)):
            raise ValueError(f"common coefficients of shape {common.shape}")
        if w.dtype != np.float64 or w.shape not in [(self.outputs, nodes, width) for nodes in counts]:
            raise ValueError(f"coefficients of shape {w.shape}")
        return LinearScores(w, self.target, link, common)

    def _runs(self, folder: Path) -> FittedRuns:
        pooled = folder.name == "pooled"
        count = len([each for each in folder.iterdir() if each.is_dir()])
        size = 1 if pooled else self.node_count
        runs = [load_run(folder / str(k), size, self.feature_count, trusted=self.trusted) for k in range(count)]
        if not runs or (len(runs) > 1 and len(runs) != len(self.target.classes)):
            raise ValueError(f"{len(runs)} runs")
        return FittedRuns(tuple(runs), self.target, pooled)

    def _boosted(self, folder: Path) -> BoostedFit:
        arrays = dict(read_arrays(folder / ARRAYS)[1])
        base = self._scores(arrays.pop(BASE), arrays.pop(COMMON, None), (1, self.node_count))
        if len(arrays["baseline"]) != self.outputs:
            raise ValueError("trees of another target")
        return BoostedFit(Trees.from_arrays(arrays, self.node_count, self.inputs), base)

    def _own(self, folder: Path) -> OwnFit:
        found = load_estimators((folder / ESTIMATOR).read_bytes(), f"the model in {folder.name!r}", self.trusted)
        width = getattr(found, "n_features_in_", self.inputs)
        if width != self.inputs:
            raise ValueError(f"a model of {width} features")
        return OwnFit(found, self.target)


def _common(scores: LinearScores) -> dict[str, Floats]:
    return {} if scores.common is None else {COMMON: scores.common}


def _link(name: str) -> Link:
    """A link by name."""
    return {"own": OWN, "softmax": SOFTMAX}[name]
