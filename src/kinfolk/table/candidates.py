"""Candidates: the ways to learn from a network that are compared, each with the strengths that it is tried with.

Three kinds stand beside each other, for any model: every node alone, one model for all (the same, with all rows at one
node), and tailored models. A strength is λ for tailored models, the ridge term for linear ones without neighbours.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator, is_classifier
from sklearn.ensemble import (
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from kinfolk import graphs, public
from kinfolk.algorithms import GTVMin, Local
from kinfolk.algorithms.fedrelax import FedRelax
from kinfolk.checks import InputError
from kinfolk.couplings import Coupling, EuclideanNorm, SquaredNorm
from kinfolk.data import Data
from kinfolk.losses import Logistic, Loss, Squared
from kinfolk.models.local import FittedModels
from kinfolk.network import Network
from kinfolk.run import Run, Tolerance, fit
from kinfolk.selection import path
from kinfolk.table.columns import Target
from kinfolk.typing import Floats, Ints

Role = Literal["alone", "pooled", "tailored", "control"]
RIDGES = tuple(float(ridge) for ridge in 10.0 ** np.arange(-2, 5))
NO_RIDGE = 1e-8
SMOOTH_STRENGTHS = tuple(float(part) for part in 10.0 ** np.arange(-3, 2.1, 0.5))
NORM_STRENGTHS = tuple(float(part) for part in 10.0 ** np.arange(-2, 1.1, 0.375))
RELAX_STRENGTHS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
RELAX_ROUNDS = 8  # models that are no linear ones rarely come to rest
PUBLIC_POINTS = 100


class Fit(NamedTuple):
    """What was learnt with one strength."""

    strength: float
    models: Any
    run: Run
    seconds: float


@dataclass(frozen=True, eq=False)
class Candidate:
    """A way to learn: how a strength becomes an algorithm, and on which network it runs."""

    role: Role
    title: str
    strengths: tuple[float, ...]
    algorithm: Callable[[float], Any]
    rounds: int = 1_000

    def fits(self, network: Network, strengths: Sequence[float], accuracy: float) -> Iterator[Fit]:
        """What is learnt with each strength, from the smallest up; neighbours' λ along a path, each from the last."""
        runs = (
            self._path(network, strengths, accuracy)
            if self.role in ("tailored", "control")
            else self._apart(network, strengths)
        )
        while True:
            began = time.perf_counter()
            try:
                strength, run = next(runs)
            except StopIteration:
                return
            models = Shared(run.models) if self.role == "pooled" else run.models
            yield Fit(strength, models, run, time.perf_counter() - began)

    def _path(self, network: Network, strengths: Sequence[float], accuracy: float) -> Iterator[tuple[float, Run]]:
        options: dict[str, Any] = {"rounds": self.rounds, "stop": Tolerance(accuracy), "measure_every": 20}
        return path(network, self.algorithm(strengths[0]), strengths, progress=False, **options)

    def _apart(self, network: Network, strengths: Sequence[float]) -> Iterator[tuple[float, Run]]:
        where = merged(network) if self.role == "pooled" else network
        return ((each, fit(where, self.algorithm(each), rounds=0, progress=False)) for each in sorted(strengths))


@dataclass(frozen=True, eq=False)
class Shared:
    """One model that all nodes have."""

    models: Any  # of a network with one node

    def predict(self, X: Any, node: Any) -> Any:
        """What the one model says."""
        return self.models.predict(X, np.zeros(len(X), dtype=np.int64))

    def predict_proba(self, X: Any, node: Any) -> Any:
        """The probabilities that the one model says."""
        return self.models.predict_proba(X, np.zeros(len(X), dtype=np.int64))


def merged(network: Network) -> Network:
    """All rows at one node."""
    data = network.data
    together = Data(data.X, data.y, np.array([0, len(data.y)], dtype=np.int64))
    shared = None if network.public is None else network.public.points.reshape(-1, data.feature_count)
    return Network(graphs.edgeless(1), together, public=shared, features=network.features)


def say(models: Any, target: Target, X: Floats, node: Ints) -> Floats:
    """What models say of rows: numbers (rows,) or probabilities (rows, classes); NaN where a node has no model."""
    if not target.classes:
        return np.asarray(models.predict(X, node))
    said = np.asarray(models.predict_proba(X, node))
    known = getattr(models, "models", models)
    classes = known.classes if isinstance(known, FittedModels) else np.arange(2.0)
    out = np.zeros((len(X), len(target.classes)))
    out[:, classes.astype(np.int64)] = said
    return np.where(np.isnan(said[:, :1]), np.nan, out)


# ---------------------------------------------------------------------- families of models


@dataclass(frozen=True)
class Linear:
    """Linear models, or logistic ones: alone and pooled with a ridge term that is chosen, together by GTVMin."""

    loss: Loss
    ridges: tuple[float, ...]

    def network(self, network: Network, seed: int) -> Network:
        """The network as it is: parameters are exchanged, no predictions."""
        return network

    def baselines(self) -> tuple[Candidate, Candidate]:
        """One model for all, and every node alone."""

        def algorithm(ridge: float) -> Local:
            return Local(replace(self.loss, ridge=ridge))

        return (
            Candidate("pooled", "one model for all", self.ridges, algorithm),
            Candidate("alone", "every node alone", self.ridges, algorithm),
        )

    def tailored(self, method: str, network: Network, pooled: Fit) -> list[Candidate]:
        """GTV minimisation whose λ leads from models learnt alone to the pooled one."""
        couplings = COUPLINGS.get(method)
        if couplings is None:
            if method == "fedrelax":
                return self._as_estimator().tailored(method, network, pooled)
            raise InputError(_no_such_method(method, "linear models", [*COUPLINGS, "fedrelax"]))
        ridge = pooled.strength / network.graph.node_count  # one for each node: λ = ∞ gives the pooled model
        loss = replace(self.loss, ridge=ridge)
        return [
            Candidate(
                "tailored",
                f"tailored: GTVMin, φ = {name}",
                tuple(part * scale for part in parts),
                lambda lam, coupling=coupling: GTVMin(loss, coupling, lam),
            )
            for name, coupling, parts, scale in (self._scaled(each, loss, network, pooled) for each in couplings)
        ]

    def _scaled(
        self, coupling: Coupling, loss: Loss, network: Network, pooled: Fit
    ) -> tuple[str, Coupling, Any, float]:
        """The λ at which a coupling weighs as much as the data of a typical node."""
        bound, degree = network.site.bound(loss), float(network.graph.weighted_degrees.mean()) or 1.0
        known = bound.has_data
        if isinstance(coupling, SquaredNorm):
            return "½‖·‖²", coupling, SMOOTH_STRENGTHS, float(np.median(bound.trace[known])) / bound.width / degree
        pull = np.linalg.norm(
            bound.gradient(np.broadcast_to(pooled.run.models.w, (len(known), bound.width)).copy()), axis=1
        )
        return "‖·‖₂", coupling, NORM_STRENGTHS, float(np.median(pull[known])) / degree

    def _as_estimator(self) -> Estimators:
        return Estimators(Ridge() if isinstance(self.loss, Squared) else LogisticRegression(max_iter=1_000))


@dataclass(frozen=True)
class Estimators:
    """Models of scikit-learn, or whatever follows its contract: together by FedRelax."""

    estimator: Any

    def network(self, network: Network, seed: int) -> Network:
        """The network with public points on which neighbours compare predictions."""
        return network.with_public(public.like_the_data(network, PUBLIC_POINTS, seed=seed))

    def baselines(self) -> tuple[Candidate, Candidate]:
        """One model for all, and every node alone."""

        def algorithm(_: float) -> FedRelax:
            return FedRelax(self.estimator, 0.0)

        return (
            Candidate("pooled", "one model for all", (0.0,), algorithm),
            Candidate("alone", "every node alone", (0.0,), algorithm),
        )

    def tailored(self, method: str, network: Network, pooled: Fit) -> list[Candidate]:
        """FedRelax, with λ in units of the mean degree."""
        if method not in ("auto", "fedrelax"):
            raise InputError(_no_such_method(method, f"{type(self.estimator).__name__} models", ["auto", "fedrelax"]))
        degree = float(network.graph.weighted_degrees.mean()) or 1.0
        return [
            Candidate(
                "tailored",
                "tailored: FedRelax",
                tuple(part / degree for part in RELAX_STRENGTHS),
                lambda lam: FedRelax(self.estimator, lam),
                rounds=RELAX_ROUNDS,
            )
        ]


Family = Linear | Estimators
COUPLINGS: dict[str, tuple[Coupling, ...]] = {
    "auto": (SquaredNorm(), EuclideanNorm()),
    "gtvmin": (EuclideanNorm(),),
    "gtvmin-smooth": (SquaredNorm(),),
}


def _no_such_method(method: str, models: str, known: list[str]) -> str:
    return f"Expected a method for {models}, one of {', '.join(known)}, or file.py:Name, got {method!r}."


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
    "boosting": _estimators(GradientBoostingRegressor(n_estimators=50), GradientBoostingClassifier(n_estimators=50)),
}


def family_of(model: Any, target: Target) -> Family:
    """The family of a model: by name, from a file, or an estimator itself."""
    if isinstance(model, str) and model in MODELS:
        return MODELS[model](target)
    estimator = from_file(model, "a model") if isinstance(model, str) else model
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


def from_file(place: str, what: str) -> Any:
    """An object from ``file.py:Name``, in a file of the user's own."""
    file, _, name = place.rpartition(":")
    if not file.endswith(".py"):
        raise InputError(f"Expected {what} by name ({', '.join(MODELS)}) or as file.py:Name, got {place!r}.")
    source = Path(file)
    if not source.is_file():
        raise InputError(f"Expected {what} in {file!r}, found no such file.")
    spec = importlib.util.spec_from_file_location(source.stem, source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, name):
        raise InputError(f"Expected {what} called {name!r} in {file!r}, found none.")
    return getattr(module, name)
