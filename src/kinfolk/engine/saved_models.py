"""Models in files. Nothing is unpickled: linear models are arrays and names, estimators go through ``stored``."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from sklearn.dummy import DummyClassifier, DummyRegressor

from kinfolk.checks import InputError, check_parameters
from kinfolk.local_models.estimators import AsClassifier, Estimator, OneClass
from kinfolk.local_models.fitted import FittedModels
from kinfolk.local_models.least_squares import LinearFit, LinearModel
from kinfolk.local_models.stored import dump_estimators, load_estimators
from kinfolk.objective import losses
from kinfolk.objective.linear_models import LinearModels

ARRAYS, ESTIMATORS = "models.safetensors", "models.skops"
LINEAR: Mapping[str, type[losses.Loss] | type[LinearModel]] = {  # what parameters may belong to
    kind.__name__: kind
    for kind in (
        losses.Squared, losses.Logistic, losses.Huber, losses.Poisson, losses.Absolute, losses.Quantile, LinearModel,
    )
}  # fmt: skip
WRAPPERS: Mapping[str, type[Estimator]] = {"Estimator": Estimator, "AsClassifier": AsClassifier}


def model_file(models: Any, called: str) -> tuple[str, bytes]:
    """The name and the content of a file: linear models as arrays, estimators with ``dump_estimators``."""
    if isinstance(models, LinearModels):
        return ARRAYS, _linear_bytes(models.w, models.loss)
    if isinstance(models, FittedModels) and isinstance(models.kinds[0], LinearModel):
        return ARRAYS, _linear_bytes(_stacked(models.fitted), dataclasses.replace(models.kinds[0], step=None))
    if isinstance(models, FittedModels) and type(models.kinds[0]) in WRAPPERS.values():
        classes = None if models.classes is None else models.classes.tolist()
        kept = {"wrapper": type(models.kinds[0]).__name__, "fitted": list(models.fitted), "classes": classes}
        return ESTIMATORS, dump_estimators(kept, f"the {called} models")
    raise InputError(
        f"Expected linear models or estimators to save, got {type(getattr(models, 'kinds', [models])[0]).__name__}:"
        " predict in the same session."
    )


def read_models(
    folder: Path, node_count: int, feature_count: int, trusted: Sequence[str]
) -> LinearModels | FittedModels:
    """The models of so many nodes, for so many features."""
    if (folder / ARRAYS).is_file():
        return _read_linear(folder / ARRAYS, node_count, feature_count)
    return _read_estimators(folder / ESTIMATORS, node_count, feature_count, trusted)


def array_bytes(arrays: Mapping[str, Any], words: dict[str, str] | None = None) -> bytes:
    """Arrays, and some words beside them, as the content of a file."""
    solid = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    content: bytes = safetensors.numpy.save(solid, metadata=words)
    return content


def read_arrays(file: Path) -> tuple[Mapping[str, str], dict[str, Any]]:
    """The words and the arrays of a file."""
    content = file.read_bytes()
    arrays = safetensors.numpy.load(content)
    size = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + size]).get("__metadata__", {}), arrays


def plain(value: Any) -> Any:
    """A value as JSON can hold it: numbers and arrays of NumPy as numbers, all else as text."""
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else str(value)


def _linear_bytes(w: Any, belongs_to: losses.Loss | LinearModel) -> bytes:
    """Parameters, and the loss or the model that they belong to: its name and its options."""
    kind = type(belongs_to)
    known = LINEAR.get(kind.__name__) is kind
    words = {
        "kind": kind.__name__ if known else f"{kind.__module__}.{kind.__name__}",
        "options": json.dumps(dataclasses.asdict(belongs_to), default=plain),
    }
    return array_bytes({"w": w}, words)


def _stacked(fits: Sequence[LinearFit | None]) -> Any:
    """Parameters (nodes, parameters); NaN where a node has none."""
    width = next(len(fit.w) for fit in fits if fit is not None)
    return np.array([np.full(width, np.nan) if fit is None else fit.w for fit in fits])


def _read_linear(file: Path, size: int, feature_count: int) -> LinearModels | FittedModels:
    words, arrays = read_arrays(file)
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


def _read_estimators(file: Path, size: int, feature_count: int, trusted: Sequence[str]) -> FittedModels:
    kept = load_estimators(file.read_bytes(), f"the models in {f'{file.parent.name}/{file.name}'!r}", trusted)
    widths = {getattr(model, "n_features_in_", feature_count) for model in kept["fitted"]}
    if len(kept["fitted"]) != size or widths != {feature_count}:
        raise ValueError(f"{len(kept['fitted'])} models for {widths} features")
    fitted = np.empty(size, dtype=object)
    fitted[:] = kept["fitted"]
    classes = None if kept["classes"] is None else np.array(kept["classes"], dtype=np.float64)
    stands = DummyRegressor() if classes is None else DummyClassifier()
    some = next((model for model in fitted if model is not None and not isinstance(model, OneClass)), stands)
    return FittedModels(fitted, [WRAPPERS[kept["wrapper"]](some)] * size, classes)
