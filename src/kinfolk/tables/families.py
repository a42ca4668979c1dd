"""Families of models, and the methods that learn them together: by name, or from a file of the user's own.

Three ways to learn stand beside each other, for any model: every node alone, one model for all (the same, with all rows
at one node), and tailored models. The parameter that is chosen is λ for tailored models, and the ridge term for linear
ones without neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple

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

from kinfolk.algorithms import IFCA, GTVMin, Local
from kinfolk.algorithms.fedrelax import FedRelax
from kinfolk.algorithms.gtvmin.quadratic import minimisers
from kinfolk.algorithms.ifca import Uniform
from kinfolk.checks import InputError
from kinfolk.engine.fit import Tolerance, fit
from kinfolk.engine.protocol import Algorithm
from kinfolk.engine.run import Run
from kinfolk.engine.selection import path
from kinfolk.local_models.least_squares import LinearModel
from kinfolk.network import graphs
from kinfolk.network.data import Data
from kinfolk.network.graph import Graph
from kinfolk.network.network import Network
from kinfolk.objective.couplings import Coupling, EuclideanNorm, SquaredNorm
from kinfolk.objective.losses import Logistic, Loss, Squared
from kinfolk.report.facts import Role
from kinfolk.tables.members.scores import loss_of
from kinfolk.tables.own_code import from_file
from kinfolk.tables.target import Target
from kinfolk.typing import Floats

RIDGES = (0.01, 0.1, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1e3, 1e4)
NO_RIDGE = 1e-8
SMOOTH_LAMS = tuple(float(part) for part in 10.0 ** np.arange(-3, 3.1, 0.75))
MANY_ROWS = 200_000  # with more, λ is tried in larger steps
NORM_LAMS = tuple(float(part) for part in 10.0 ** np.arange(-2, 1.1, 0.375))
RELAX_LAMS = (0.05, 0.5, 5.0)
ANY_LAMS = tuple(float(part) for part in 10.0 ** np.arange(-3, 3.1))
NEAR, NEARLY = 1e-8, 1e-6  # how small gradients are where there are no rounds: in one step, and where it takes several
RELAX_ROUNDS = 3  # each fits every model anew, and starts from the answer for the λ before
ENSEMBLE_ROUNDS = 1  # the same for forests and boosting: with more, errors were no smaller
IFCA_ROUNDS, IFCA_STARTS = 300, 5
LINEAR_MEMBERS = ("pooled", "alone", "intercepts", "slopes", "tailored", "wide", "trees", "boosted")
TIMED_MEMBERS = ("recent", "recent-intercepts", "recent-slopes")  # where later times are predicted
OTHER_MEMBERS = ("pooled", "alone", "tailored")
SMALL_TREES: dict[str, Any] = {
    "learning_rate": 0.2, "max_iter": 30, "max_leaf_nodes": 8, "min_samples_leaf": 5, "early_stopping": False,
}  # fmt: skip
Parameter = Literal["lam", "ridge", "model_count"]


# ---------------------------------------------------------------------- ways to learn


@dataclass(frozen=True, eq=False)
class Candidate:
    """A way to learn: how a value of its parameter becomes an algorithm, and on which network it runs."""

    role: Role
    method: str  # as ``Settings.method`` names it; "" for baselines
    parameter: Parameter
    values: tuple[float, ...]  # to try, ascending
    algorithm: Callable[[float], Algorithm[Any]]
    rounds: int = 1_000
    warm_start: bool = True  # whether each value starts from the one before
    uses_graph: bool = True
    linear: bool = True  # whether models are linear, so that many classes need a run each
    converges: bool = True  # whether it comes to rest, so that where it starts does not matter
    smooth: bool = False  # whether it is GTV minimisation that Newton's method solves without rounds
    separates: bool = True  # whether parts of a network without edges between them are learnt as if each stood alone

    def runs(self, network: Network, values: Sequence[float], stop: Tolerance) -> Iterator[Run]:
        """The run for each value, ascending; those of λ along a path, each started from the one before."""
        if self.role in (Role.ALONE, Role.POOLED):
            return (fit(network, self.algorithm(each), rounds=0, progress=False) for each in values)
        options: dict[str, Any] = {"rounds": self.rounds, "stop": stop, "measure_every": 20}
        if self.warm_start:
            return (run for _, run in path(network, self.algorithm(values[0]), values, progress=False, **options))
        return (fit(network, self.algorithm(each), progress=False, **options) for each in values)

    def parameters(self, network: Network, values: Sequence[float], stop: Tolerance) -> Iterable[Floats]:
        """The parameters (nodes, parameters) of linear models for each value, ascending; without rounds if possible."""
        if self.smooth:
            first: Any = self.algorithm(values[0])
            precision = NEAR if isinstance(first.loss, Squared) else NEARLY
            found = minimisers(network, first.loss, first.coupling, values, precision)
            if found is not None:
                return found
        return (run.models.w for run in self.runs(network, values, stop))


def merged(network: Network) -> Network:
    """All rows at one node."""
    data = network.data
    together = Data(data.X, data.y, np.array([0, len(data.y)], dtype=np.int64))
    shared = None if network.public is None else network.public.points.reshape(-1, data.feature_count)
    return Network(graphs.edgeless(1), together, public=shared, features=network.features)


def side_by_side(networks: Sequence[Network]) -> Network:
    """One network of several with as many nodes each, without edges between them and without public points.

    >>> from kinfolk.network import graphs
    >>> network = Network(graphs.chain(2), [([[1.0]], [1.0]), ([[2.0]], [3.0])])
    >>> both = side_by_side([network, network])
    >>> both.graph, both.data.y.tolist()
    (Graph(4 nodes, 2 edges, 2 components), [1.0, 3.0, 1.0, 3.0])
    """
    if len(networks) == 1:
        return networks[0]
    parts, shift = [each.graph for each in networks], networks[0].graph.node_count
    ends = np.concatenate([np.stack([each.head, each.tail], axis=1) + k * shift for k, each in enumerate(parts)])
    graph = Graph(len(parts) * shift, ends, np.concatenate([each.weights for each in parts]))
    sizes = np.concatenate([each.data.sizes for each in networks])
    X, y = (np.concatenate([getattr(each.data, name) for each in networks]) for name in ("X", "y"))
    return Network(graph, Data(X, y, np.r_[0, np.cumsum(sizes)]), features=networks[0].features)


class PooledFit(NamedTuple):
    """The pooled model that other methods are measured by."""

    ridge: float
    w: Floats | None  # (parameters,) if it is linear


Method = Callable[[Any, Network, PooledFit], Candidate]  # from what is learnt, and the pooled model


@dataclass(frozen=True)
class Family:
    """A kind of models: how nodes learn alone, and the methods by which they learn together."""

    learns: Any  # a loss, or an estimator
    linear: bool
    ridges: tuple[float, ...]  # to choose from, for nodes alone and for one model for all
    alone: Callable[[Any, float], Any]  # from what is learnt and a ridge term to an algorithm without messages
    methods: Mapping[str, Method]

    @property
    def members(self) -> tuple[str, ...]:
        """The members of the blend that are known by name."""
        return (*LINEAR_MEMBERS, *TIMED_MEMBERS) if self.linear else OTHER_MEMBERS

    @property
    def folds(self) -> int:
        """The usual number of parts for cross-validation: fewer where each fit is slow."""
        return 5 if self.linear else 3

    def baselines(self) -> tuple[Candidate, Candidate]:
        """One model for all, and every node alone."""
        pooled, alone = (
            Candidate(role, "", "ridge", self.ridges, lambda ridge: self.alone(self.learns, ridge), linear=self.linear)
            for role in (Role.POOLED, Role.ALONE)
        )
        return pooled, alone

    def check(self, method: str) -> None:
        """Refuse a method that is not known, before any work."""
        if method not in self.known_methods:
            from_file(method, "a method", list(self.known_methods))

    @property
    def known_methods(self) -> tuple[str, ...]:
        """The methods that are known by name."""
        return (*dict.fromkeys((*(SMOOTH_METHODS if self.linear else ()), *self.methods)),)

    def tailored(self, method: str, network: Network, pooled: PooledFit, ridge: float) -> Candidate:
        """A method by name, or from a file: a function from a loss or an estimator to an algorithm with a λ.

        One ridge term for each node adds up to that of the ``pooled`` model, where λ = ∞ leads; but no more than the
        ``ridge`` that suits nodes alone: where slopes cancel, the pooled model has next to none, and its ridge term any
        size.
        """
        learns = self.learns
        if isinstance(learns, Loss):
            own = tailored_ridge(pooled.ridge, network.graph.node_count, ridge)
            learns = replace(learns, ridge=own)
        if method in self.methods:
            return self.methods[method](learns, network, pooled)
        make = from_file(method, "a method", list(self.known_methods))
        lams = tuple(part / degree(network) for part in ANY_LAMS)
        linear = isinstance(learns, Loss)
        options: dict[str, Any] = {"linear": linear, "separates": False}  # as far as is known
        return Candidate(Role.TAILORED, method, "lam", lams, lambda lam: replace(make(learns), lam=lam), **options)


def degree(network: Network) -> float:
    """The mean weighted degree: what λ is measured in."""
    return mean_degree(network.graph)


def mean_degree(graph: Graph) -> float:
    """The mean weighted degree."""
    return float(graph.weighted_degrees.mean()) or 1.0


def tailored_ridge(pooled: float, node_count: int, alone: float) -> float:
    """The ridge term of every node; see ``Family.tailored``."""
    return min(pooled / node_count, alone)


# ---------------------------------------------------------------------- methods


def smooth_lams(traces: Floats, width: int, degree: float, rows: int) -> list[float]:
    """λ to try, in units of the curvature of a typical node's loss: from traces of Hessians of nodes with data."""
    scale = float(np.median(traces)) / width / degree
    return [part * scale for part in (SMOOTH_LAMS if rows <= MANY_ROWS else SMOOTH_LAMS[::2])]


def smooth_candidate(loss: Loss, lams: Sequence[float]) -> Candidate:
    """GTV minimisation that makes neighbours similar."""
    return replace(_gtvmin("gtvmin-smooth", loss, SquaredNorm(), lams), smooth=True)


def _clusters(loss: Loss, network: Network, pooled: PooledFit) -> Candidate:
    """Neighbours become equal; λ in units of the pull of a typical node's data on the pooled model."""
    losses = network.site.local_losses(loss)
    assert pooled.w is not None
    w = np.tile(pooled.w, (network.graph.node_count, 1))
    pull = np.linalg.norm(losses.gradient(w), axis=1)[losses.has_data]
    scale = float(np.median(pull)) / degree(network)
    return _gtvmin("gtvmin", loss, EuclideanNorm(), [part * scale for part in NORM_LAMS])


def _gtvmin(method: str, loss: Loss, coupling: Coupling, lams: Sequence[float]) -> Candidate:
    return Candidate(Role.TAILORED, method, "lam", tuple(lams), lambda lam: GTVMin(loss, coupling, lam))


def _relaxed(loss: Loss, network: Network, pooled: PooledFit) -> Candidate:
    """FedRelax with the estimator that minimises the same loss."""
    if isinstance(loss, Squared):
        return _fedrelax(LinearModel(ridge=loss.ridge, intercept=True), network, pooled)
    if not isinstance(loss, Logistic):
        raise InputError("Expected numbers or classes for fedrelax with linear models, got counts or quantiles.")
    return _fedrelax(LogisticRegression(C=1 / max(loss.ridge, NO_RIDGE), max_iter=1_000), network, pooled)


def _fedrelax(model: Any, network: Network, pooled: PooledFit, rounds: int = RELAX_ROUNDS) -> Candidate:
    lams = tuple(part / degree(network) for part in RELAX_LAMS)
    make = partial(FedRelax, model)
    return Candidate(Role.TAILORED, "fedrelax", "lam", lams, make, rounds, converges=False, linear=False)


def _ifca(loss: Loss, network: Network, pooled: PooledFit) -> Candidate:
    """Clusters without a graph; their number is chosen."""

    def algorithm(count: float) -> IFCA:
        return IFCA(loss, model_count=int(count), initial=Uniform(-1.0, 1.0), starts=IFCA_STARTS)

    counts = tuple(float(k) for k in range(2, min(6, network.graph.node_count))) or (1.0,)
    options: dict[str, Any] = {
        "rounds": IFCA_ROUNDS, "warm_start": False, "uses_graph": False, "separates": False,
    }  # fmt: skip
    return Candidate(Role.TAILORED, "ifca", "model_count", counts, algorithm, **options)


SMOOTH_METHODS = ("auto", "gtvmin-smooth")  # of linear models: neighbours become similar
LINEAR_METHODS: dict[str, Method] = {"gtvmin": _clusters, "fedrelax": _relaxed, "ifca": _ifca}


# ---------------------------------------------------------------------- models by name


def _linear(target: Target, ridges: tuple[float, ...]) -> Family:
    return Family(loss_of(target), True, ridges, lambda loss, ridge: Local(replace(loss, ridge=ridge)), LINEAR_METHODS)


def _family(estimator: Any, rounds: int = RELAX_ROUNDS) -> Family:
    """Models of scikit-learn, or whatever follows its contract: together by FedRelax."""
    relaxed: Method = partial(_fedrelax, rounds=rounds)
    methods = {"auto": relaxed, "fedrelax": relaxed}
    return Family(estimator, False, (0.0,), lambda model, _: FedRelax(model, 0.0), methods)


def _estimators(
    regressor: BaseEstimator, classifier: BaseEstimator, rounds: int = RELAX_ROUNDS
) -> Callable[[Target], Family]:
    return lambda target: _family(classifier if target.classes else regressor, rounds)


MODELS: dict[str, Callable[[Target], Family]] = {
    "linear": lambda target: _linear(target, (NO_RIDGE,)),
    "ridge": lambda target: _linear(target, RIDGES),
    "tree": _estimators(DecisionTreeRegressor(max_depth=5), DecisionTreeClassifier(max_depth=5)),
    "forest": _estimators(
        RandomForestRegressor(30, min_samples_leaf=2),
        RandomForestClassifier(30, min_samples_leaf=2),
        ENSEMBLE_ROUNDS,
    ),
    "boosting": _estimators(
        HistGradientBoostingRegressor(**SMALL_TREES),
        HistGradientBoostingClassifier(**SMALL_TREES),
        ENSEMBLE_ROUNDS,
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
            f"Expected a {wanted} for this target, got {type(estimator).__name__}: set the task, or choose another."
        )
    return _family(estimator)
