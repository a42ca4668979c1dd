"""kinfolk: one tailored model for every local data set in a network."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0.dev0"

if TYPE_CHECKING:
    from kinfolk import datasets, graphs, public, similarity, testing
    from kinfolk.algorithms import (
        IFCA,
        Clustered,
        FedAvg,
        FedGD,
        Given,
        GTVMin,
        Inexact,
        Local,
        OneOf,
        PFedMe,
        Pooled,
        Redrawn,
        TorchDescent,
        Uniform,
    )
    from kinfolk.checks import InputError
    from kinfolk.couplings import AbsoluteNorm, EuclideanNorm, MaximumNorm, PNorm, QuadraticForm, SquaredNorm
    from kinfolk.data import Data
    from kinfolk.engines import InProcess
    from kinfolk.graph import Graph
    from kinfolk.losses import Absolute, Huber, Logistic, Poisson, Quantile, Squared, SquaredDistance
    from kinfolk.network import Network
    from kinfolk.recovery import constant_above, found_clusters, guaranteed_recovery, variation_bound
    from kinfolk.run import Run, Tolerance, fit
    from kinfolk.table import TableRun, learn, load, read_table
    from kinfolk.torch_loss import TorchLoss

# Where each public name lives. Imported on first use, so that ``import kinfolk`` and ``kinfolk --help`` are quick.
_HOMES = {
    "algorithms": [
        "IFCA",
        "Clustered",
        "FedAvg",
        "FedGD",
        "GTVMin",
        "Given",
        "Inexact",
        "Local",
        "OneOf",
        "PFedMe",
        "Pooled",
        "Redrawn",
        "TorchDescent",
        "Uniform",
    ],
    "algorithms.fedrelax": ["FedRelax"],
    "checks": ["InputError"],
    "couplings": ["AbsoluteNorm", "EuclideanNorm", "MaximumNorm", "PNorm", "QuadraticForm", "SquaredNorm"],
    "data": ["Data"],
    "engines": ["InProcess"],
    "graph": ["Graph"],
    "losses": ["Absolute", "Huber", "Logistic", "Poisson", "Quantile", "Squared", "SquaredDistance"],
    "models.discrepancies": [
        "CrossEntropy",
        "Discrepancy",
        "SquaredError",
        "SquaredProbabilities",
        "SymmetricCrossEntropy",
    ],
    "models.estimators": ["AsClassifier", "Resampled"],
    "models.keras_model": ["KerasModel"],
    "models.least_squares": ["LinearModel", "RMSprop"],
    "models.torch_model": ["TorchModel"],
    "network": ["Network"],
    "recovery": ["constant_above", "found_clusters", "guaranteed_recovery", "variation_bound"],
    "run": ["Run", "Tolerance", "fit"],
    "table": ["TableRun", "learn", "load", "read_table"],
    "torch_loss": ["TorchLoss"],
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_MODULES = ("datasets", "graphs", "public", "similarity", "testing")

__all__ = [*_HOME_OF, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        return getattr(importlib.import_module(f"kinfolk.{_HOME_OF[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"kinfolk.{name}")
    raise AttributeError(f"module 'kinfolk' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
