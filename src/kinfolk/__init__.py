"""kinfolk: one tailored model for every local data set in a network."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0.dev0"

if TYPE_CHECKING:
    from kinfolk import datasets, graphs, testing
    from kinfolk.algorithms import IFCA, Clustered, FedAvg, FedGD, Given, GTVMin, Local, OneOf, Pooled, Uniform
    from kinfolk.checks import InputError
    from kinfolk.couplings import AbsoluteNorm, EuclideanNorm, SquaredNorm
    from kinfolk.data import Data
    from kinfolk.engines import InProcess
    from kinfolk.graph import Graph
    from kinfolk.losses import Logistic, Squared
    from kinfolk.network import Network
    from kinfolk.run import Run, Tolerance, fit

# Where each public name lives. Imported on first use, so that ``import kinfolk`` and ``kinfolk --help`` are quick.
_HOMES = {
    "algorithms": ["IFCA", "Clustered", "FedAvg", "FedGD", "GTVMin", "Local", "Pooled"],
    "algorithms.ifca": ["Given", "OneOf", "Uniform"],
    "checks": ["InputError"],
    "couplings": ["AbsoluteNorm", "EuclideanNorm", "SquaredNorm"],
    "data": ["Data"],
    "engines": ["InProcess"],
    "graph": ["Graph"],
    "losses": ["Logistic", "Squared"],
    "network": ["Network"],
    "run": ["Run", "Tolerance", "fit"],
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_MODULES = ("datasets", "graphs", "testing")

__all__ = [
    "IFCA", "AbsoluteNorm", "Clustered", "Data", "EuclideanNorm", "FedAvg", "FedGD", "GTVMin", "Given", "Graph",
    "InProcess", "InputError", "Local", "Logistic", "Network", "OneOf", "Pooled", "Run", "Squared", "SquaredNorm",
    "Tolerance", "Uniform", "datasets", "fit", "graphs", "testing",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        return getattr(importlib.import_module(f"kinfolk.{_HOME_OF[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"kinfolk.{name}")
    raise AttributeError(f"module 'kinfolk' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
