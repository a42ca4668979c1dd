"""Families of models, and the methods that learn them together: by name, or from a file of the user's own."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, is_classifier
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from kinfolk.algorithms import IFCA, GTVMin, Local, Uniform
from kinfolk.algorithms.fedrelax import FedRelax
from kinfolk.checks import InputError
from kinfolk.local_models.least_squares import LinearModel
from kinfolk.network.network import Network
from kinfolk.objective.couplings import Coupling, EuclideanNorm, SquaredNorm
from kinfolk.objective.losses import Logistic, Loss, Squared
from kinfolk.tables.candidates import Candidate, Fit
from kinfolk.tables.target import Target

RIDGES = tuple(float(ridge) for ridge in 10.0 ** np.arange(-2, 5))
NO_RIDGE = 1e-8
SMOOTH_STRENGTHS = tuple(float(part) for part in 10.0 ** np.arange(-3, 3.1, 0.5))
NORM_STRENGTHS = tuple(float(part) for part in 10.0 ** np.arange(-2, 1.1, 0.375))
RELAX_STRENGTHS = (0.03, 0.15, 0.7, 3.0, 15.0)
ANY_STRENGTHS = tuple(float(part) for part in 10.0 ** np.arange(-3, 3.1))
RELAX_ROUNDS = 4  # each fits every model anew, and starts from the answer for the λ before
IFCA_ROUNDS, IFCA_STARTS = 300, 5


# ---------------------------------------------------------------------- families of models


@dataclass(frozen=True)
class Linear:
    """Linear models, or logistic ones: alone and pooled with a ridge term that is chosen."""

    loss: Loss
    ridges: tuple[float, ...]

    def baselines(self) -> tuple[Candidate, Candidate]:
        """One model for all, and every node alone."""
        return _baselines(self.ridges, lambda ridge: Local(replace(self.loss, ridge=ridge)))

    def check(self, method: str) -> None:
        """Refuse a method that is not known, before any work."""
        if method not in LINEAR_METHODS:
            from_file(method, "a method", [*LINEAR_METHODS])

    def tailored(self, method: str, network: Network, pooled: Fit, alone: float) -> list[Candidate]:
        """A method by name, or from a file: a function from a loss to an algorithm with a λ.

        One ridge term for each node adds up to that of the pooled model, where λ = ∞ leads; but no more than suits
        nodes ``alone``: where slopes cancel, the pooled model has next to none, and its ridge term any size.
        """
        loss = replace(self.loss, ridge=min(pooled.strength / network.graph.node_count, alone))
        if method in LINEAR_METHODS:
            return LINEAR_METHODS[method](loss, network, pooled)
        make = from_file(method, "a method", [*LINEAR_METHODS])
        strengths = tuple(part / degree(network) for part in ANY_STRENGTHS)
        return [Candidate("tailored", f"tailored: {method}", strengths, lambda lam: replace(make(loss), lam=lam))]


@dataclass(frozen=True)
class Estimators:
    """Models of scikit-learn, or whatever follows its contract: together by FedRelax."""

    estimator: Any

    def baselines(self) -> tuple[Candidate, Candidate]:
        """One model for all, and every node alone."""
        return _baselines((0.0,), lambda _: FedRelax(self.estimator, 0.0))

    def check(self, method: str) -> None:
        """Refuse a method that is not known, before any work."""
        if method not in ("auto", "fedrelax"):
            from_file(method, f"a method for {type(self.estimator).__name__}", ["fedrelax"])

    def tailored(self, method: str, network: Network, pooled: Fit, alone: float) -> list[Candidate]:
        """FedRelax, or a function from a file, from an estimator to an algorithm with a λ."""
        if method in ("auto", "fedrelax"):
            return [_fedrelax(self.estimator, network)]
        make = from_file(method, "a method", ["fedrelax"])
        strengths = tuple(part / degree(network) for part in ANY_STRENGTHS)
        return [
            Candidate("tailored", f"tailored: {method}", strengths, lambda lam: replace(make(self.estimator), lam=lam))
        ]


Family = Linear | Estimators


def _baselines(strengths: tuple[float, ...], algorithm: Callable[[float], Any]) -> tuple[Candidate, Candidate]:
    return (
        Candidate("pooled", "one model for all", strengths, algorithm, strength_name="ridge"),
        Candidate("alone", "every node alone", strengths, algorithm, strength_name="ridge"),
    )


def degree(network: Network) -> float:
    """The mean weighted degree: what λ is measured in."""
    return float(network.graph.weighted_degrees.mean()) or 1.0


# ---------------------------------------------------------------------- methods


def _smooth(loss: Loss, network: Network, pooled: Fit) -> list[Candidate]:
    """Neighbours become similar; λ in units of the curvature of a typical node's loss."""
    losses = network.site.local_losses(loss)
    scale = float(np.median(losses.trace[losses.has_data])) / losses.width / degree(network)
    return [_gtvmin("½‖·‖²", loss, SquaredNorm(), [part * scale for part in SMOOTH_STRENGTHS])]


def _clusters(loss: Loss, network: Network, pooled: Fit) -> list[Candidate]:
    """Neighbours become equal; λ in units of the pull of a typical node's data on the pooled model."""
    losses = network.site.local_losses(loss)
    w = np.repeat(pooled.run.models.w, network.graph.node_count, axis=0)
    pull = np.linalg.norm(losses.gradient(w), axis=1)[losses.has_data]
    scale = float(np.median(pull)) / degree(network)
    return [_gtvmin("‖·‖₂", loss, EuclideanNorm(), [part * scale for part in NORM_STRENGTHS])]


def _gtvmin(name: str, loss: Loss, coupling: Coupling, lams: Sequence[float]) -> Candidate:
    return Candidate("tailored", f"tailored: GTVMin, φ = {name}", tuple(lams), lambda lam: GTVMin(loss, coupling, lam))


def _relaxed(loss: Loss, network: Network, pooled: Fit) -> list[Candidate]:
    """FedRelax with the estimator that minimises the same loss."""
    if isinstance(loss, Squared):
        return [_fedrelax(LinearModel(ridge=loss.ridge, intercept=True), network)]
    return [_fedrelax(LogisticRegression(C=1 / max(loss.ridge, NO_RIDGE), max_iter=1_000), network)]


def _fedrelax(model: Any, network: Network) -> Candidate:
    lams = tuple(part / degree(network) for part in RELAX_STRENGTHS)
    return Candidate(
        "tailored", "tailored: FedRelax", lams, lambda lam: FedRelax(model, lam), RELAX_ROUNDS, converges=False
    )


def _ifca(loss: Loss, network: Network, pooled: Fit) -> list[Candidate]:
    """Clusters without a graph; the strength is their number."""

    def algorithm(count: float) -> IFCA:
        return IFCA(loss, model_count=int(count), initial=Uniform(-1.0, 1.0), starts=IFCA_STARTS)

    counts = tuple(float(k) for k in range(2, min(6, network.graph.node_count)))
    return [
        Candidate(
            "tailored",
            "tailored: IFCA, no graph",
            counts or (1.0,),
            algorithm,
            rounds=IFCA_ROUNDS,
            warm_start=False,
            strength_name="models:",
            uses_graph=False,
        )
    ]


LINEAR_METHODS: dict[str, Callable[[Loss, Network, Fit], list[Candidate]]] = {
    "auto": lambda *problem: _smooth(*problem) + _clusters(*problem),
    "gtvmin": _clusters,
    "gtvmin-smooth": _smooth,
    "fedrelax": _relaxed,
    "ifca": _ifca,
}


# ---------------------------------------------------------------------- models by name


def _linear(target: Target, ridges: tuple[float, ...]) -> Family:
    if len(target.classes) > 2:
        return Estimators(LogisticRegression(max_iter=1_000))
    loss: Loss = (
        Logistic(reduction="sum", intercept=True) if target.classes else Squared(reduction="sum", intercept=True)
    )
    return Linear(loss, ridges)


def _estimators(regressor: BaseEstimator, classifier: BaseEstimator) -> Callable[[Target], Family]:
    return lambda target: Estimators(classifier if target.classes else regressor)


MODELS: dict[str, Callable[[Target], Family]] = {
    "linear": lambda target: _linear(target, (NO_RIDGE,)),
    "ridge": lambda target: _linear(target, RIDGES),
    "tree": _estimators(DecisionTreeRegressor(max_depth=5), DecisionTreeClassifier(max_depth=5)),
    "forest": _estimators(
        RandomForestRegressor(30, min_samples_leaf=2), RandomForestClassifier(30, min_samples_leaf=2)
    ),
    "boosting": _estimators(
        HistGradientBoostingRegressor(max_iter=50, min_samples_leaf=5, early_stopping=False),
        HistGradientBoostingClassifier(max_iter=50, min_samples_leaf=5, early_stopping=False),
    ),
}


def family_of(model: Any, target: Target) -> Family:
    """The family of a model: by name, from a file, or an estimator itself."""
    if isinstance(model, str) and model in MODELS:
        return MODELS[model](target)
    estimator = from_file(model, "a model", [*MODELS]) if isinstance(model, str) else model
    estimator = estimator() if isinstance(estimator, type) else estimator
    if not hasattr(estimator, "fit") and not hasattr(estimator, "fit_nodes"):
        raise InputError(
            f"Expected a model with fit and predict, one of {', '.join(MODELS)}, or file.py:Name, got {model!r}."
        )
    if hasattr(estimator, "fit") and bool(is_classifier(estimator)) != target.classifies:
        wanted = "classifier" if target.classifies else "regressor"
        raise InputError(
            f"Expected a {wanted} for this target, got {type(estimator).__name__}: say the task, or choose another."
        )
    return Estimators(estimator)


# ---------------------------------------------------------------------- files of the user's own


def code_file(place: Any) -> Path | None:
    """The file of ``file.py:Name``; None for anything else."""
    file = place.rpartition(":")[0] if isinstance(place, str) else ""
    return Path(file).resolve() if file.endswith(".py") else None


def from_file(place: str, what: str, known: list[str]) -> Any:
    """An object from ``file.py:Name``, in a file of the user's own. The file is run: only do so with one they named."""
    file, name = code_file(place), place.rpartition(":")[2]
    if file is None:
        raise InputError(f"Expected {what}, one of {', '.join(known)}, or file.py:Name, got {place!r}.")
    module = _run_file(file, what)
    if not hasattr(module, name):
        raise InputError(f"Expected {what} called {name!r} in {str(file)!r}, found none.")
    return getattr(module, name)


def trusted_types(trusted: Sequence[str]) -> list[str]:
    """The types that may be loaded: those named, and the classes of every ``file.py`` named, which is run.

    Parameters
    ----------
    trusted : Sequence[str]
        Full names of types, such as ``"mine.Ridge"``, and files, such as ``"mine.py"``.

    Returns
    -------
    list[str]
        Full names of types.
    """
    found = []
    for each in trusted:
        module = _run_file(Path(each).resolve(), "types of models") if each.endswith(".py") else None
        found += [each] if module is None else _own_classes(module)
    return found


def _own_classes(module: ModuleType) -> list[str]:
    if sys.modules[module.__name__] is not module:
        raise InputError(
            f"Expected a file with a name of its own, {module.__file__!r} is called like a module that is in use: "
            "rename it, and fit again."
        )
    own = [value for value in vars(module).values() if isinstance(value, type) and value.__module__ == module.__name__]
    return [f"{module.__name__}.{each.__name__}" for each in own]


def _run_file(source: Path, what: str) -> ModuleType:
    """Run a file, as a module in which saved models of its types are looked for."""
    if not source.is_file():
        raise InputError(f"Expected {what} in {str(source)!r}, found no such file.")
    spec = importlib.util.spec_from_file_location(source.stem, source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if getattr(sys.modules.get(source.stem), "__file__", str(source)) == str(source):
        sys.modules[source.stem] = module
    spec.loader.exec_module(module)
    return module
