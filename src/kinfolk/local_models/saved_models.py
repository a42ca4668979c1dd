"""Models in files. They write themselves: linear models as arrays and names, estimators as ``stored`` has them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from kinfolk.checks import InputError, check_parameters
from kinfolk.local_models.fitted import ESTIMATORS, FittedModels
from kinfolk.local_models.least_squares import LinearFit, LinearModel
from kinfolk.network.array_files import read_arrays
from kinfolk.objective import losses
from kinfolk.objective.linear_models import ARRAYS, LinearModels

FILES = (ARRAYS, ESTIMATORS)  # one of them holds the models
LINEAR: Mapping[str, type[losses.Loss] | type[LinearModel]] = {  # what parameters may belong to
    kind.__name__: kind
    for kind in (
        losses.Squared, losses.Logistic, losses.Huber, losses.Poisson, losses.Absolute, losses.Quantile, LinearModel,
    )
}  # fmt: skip


def read_models(
    folder: Path, node_count: int, feature_count: int, trusted: Sequence[str]
) -> LinearModels | FittedModels:
    """The models of so many nodes, for so many features."""
    if (folder / ARRAYS).is_file():
        return _read_linear(folder / ARRAYS, node_count, feature_count)
    from kinfolk.local_models.estimators import read_estimators  # slow, and linear models need no scikit-learn

    return read_estimators(folder / ESTIMATORS, node_count, feature_count, trusted)


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
