"""Estimators of scikit-learn, and whatever follows its contract, as local models."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from sklearn import config_context
from sklearn.base import BaseEstimator, clone, is_classifier
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.pipeline import Pipeline
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
from sklearn.utils.validation import has_fit_parameter

from kinfolk.checks import InputError, LearningError
from kinfolk.local_models.binning import binned
from kinfolk.local_models.discrepancies import Discrepancy, SquaredProbabilities, SymmetricCrossEntropy
from kinfolk.local_models.fitted import ESTIMATORS, FittedModels, unsaved
from kinfolk.local_models.stored import dump_estimators, load_estimators
from kinfolk.local_models.weighted_rows import TrainingSets, WeightedRows
from kinfolk.network.problem import Problem
from kinfolk.typing import Floats

THREADS_FROM = 1_000  # rows
EXACT_SOLVERS = ("lbfgs", "newton-cg", "newton-cholesky")  # of LogisticRegression; the others go through single rows


@dataclass(frozen=True)
class Estimator:
    """Any regressor or classifier with ``fit(X, y, sample_weight=...)`` and ``predict``; cloned before every fit.

    Classifiers use ``predict_proba``, or vote where they have none. Fits run in threads, one per processor.
    """

    estimator: Any

    @property
    def classifies(self) -> bool:
        """Whether it predicts classes."""
        return bool(is_classifier(self.estimator))

    @property
    def merges(self) -> bool:
        """True for fits that are known to depend on weighted squared errors, or weights of classes, alone."""
        model = self.estimator
        if isinstance(model, LogisticRegression):
            return model.class_weight is None and model.solver in EXACT_SOLVERS
        if isinstance(model, DecisionTreeClassifier):
            return model.class_weight is None and _counts_no_rows(model)
        if isinstance(model, DecisionTreeRegressor):
            return model.criterion == "squared_error" and _counts_no_rows(model)
        return isinstance(model, LinearRegression | Ridge)

    def learns(self, discrepancy: Discrepancy) -> bool:
        """Whatever has rows; of squared errors of probabilities only trees that split by them, the Gini impurity."""
        if isinstance(discrepancy, SquaredProbabilities):
            return isinstance(self.estimator, DecisionTreeClassifier) and self.estimator.criterion == "gini"
        return not isinstance(discrepancy, SymmetricCrossEntropy)

    def check(self) -> None:
        """Refuse what has no fit and predict, or cannot weigh its rows."""
        name = type(self.estimator).__name__
        if isinstance(self.estimator, type):
            raise InputError(f"Expected a model such as {self.estimator.__name__}(), got the class: add parentheses.")
        missing = [what for what in ("fit", "predict") if not hasattr(self.estimator, what)]
        if missing:
            raise InputError(f"Expected a model with fit and predict, got {name} without {missing[0]}.")
        if self._weight_name is None:
            raise InputError(
                f"Expected a model whose fit takes sample_weight, got {name}: wrap it as Resampled({name}(...))."
            )

    @cached_property
    def _weight_name(self) -> str | None:
        """The name under which fit takes weights; a pipeline hands them to its last step."""
        model, prefix = self.estimator, ""
        while isinstance(model, Pipeline):
            step, model = model.steps[-1]
            prefix += f"{step}__"
        return f"{prefix}sample_weight" if has_fit_parameter(model, "sample_weight") else None

    @cached_property
    def _seeds(self) -> list[str]:
        """The names of seeds that are left open."""
        parameters = self.estimator.get_params(deep=True) if hasattr(self.estimator, "get_params") else {}
        return [name for name, value in parameters.items() if name.endswith("random_state") and value is None]

    def remarks(self, problem: Problem) -> list[str]:
        """None."""
        return []

    def fit_nodes(self, sets: TrainingSets) -> list[Any]:
        """One fit per node, in threads."""
        merged = self.merges and sets.merging
        bare = clone(self.estimator)
        rows = sets.predicted.shape[1] * (1.0 if merged else float(sets.site.own_degrees.mean()))
        return in_threads(lambda node: self._fit(bare, sets, int(node), merged), sets.nodes, rows)

    def _fit(self, bare: Any, sets: TrainingSets, node: int, merged: bool) -> Any:
        site, weighted = sets.site, sets.rows(node, merged)
        if not len(weighted.weight):
            return None
        X, y, weight = self._rows(weighted, site.classes)
        if self.classifies and y.ndim == 1 and (y == y[0]).all():
            return OneClass(y[0])
        try:
            seeded = _seeded(copy.deepcopy(bare), self._seeds, lambda: sets.seed(node))
            # Rows were checked when the network was made.
            with config_context(assume_finite=True, skip_parameter_validation=True):
                X, unchecked = _ready(bare, X)
                X = binned(X, weight, bare.max_bins) if _has_bins(bare) else X
                return seeded.fit(X, y, **{str(self._weight_name): weight}, **unchecked)
        except Exception as error:  # whatever a model raises, the node is named and the run is kept
            what = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
            raise LearningError(f"Node {site.names[node]!r} could not be fitted ({what}).") from error

    def _rows(self, weighted: WeightedRows, classes: Floats | None) -> WeightedRows:
        """A lesson as the estimator takes it."""
        return _row_per_class(weighted, classes) if self.classifies else weighted

    def predict_nodes(self, fitted: Sequence[Any], X: Sequence[Floats], classes: Floats | None) -> list[Floats]:
        """Predictions, or probabilities, in threads."""

        def predict(k: int) -> Floats:
            with config_context(assume_finite=True):
                return self._predict(fitted[k], X[k], classes)

        return in_threads(predict, range(len(fitted)), float(np.mean([len(rows) for rows in X])) if X else 0.0)

    def _predict(self, fitted: Any, X: Floats, classes: Floats | None) -> Floats:
        X, unchecked = _ready(fitted, X)
        if classes is None or not self.classifies:
            return np.asarray(fitted.predict(X, **unchecked), dtype=np.float64)
        return _probabilities(fitted, X, classes, unchecked)

    def to_file(self, fitted: Any, classes: Floats | None, called: str) -> tuple[str, bytes]:
        """The name and the content of a file with the fits of all nodes, for ``read_estimators``."""
        if type(self) not in WRAPPERS.values():
            raise unsaved(self)
        labels = None if classes is None else classes.tolist()
        kept = {"wrapper": type(self).__name__, "fitted": list(fitted), "classes": labels}
        return ESTIMATORS, dump_estimators(kept, f"the {called} models")


@dataclass(frozen=True)
class AsClassifier(Estimator):
    """A regressor as a classifier: it learns the probabilities of all classes by least squares.

    Certain labels are 0 and 1, neighbours' labels are their predictions. What is predicted is moved to the nearest
    probabilities, which is never farther from any. Needs a regressor for several numbers at once, as most linear
    models, trees and forests are, or scikit-learn's ``MultiOutputRegressor`` around another.

    >>> from sklearn.linear_model import LinearRegression
    >>> from kinfolk import FedRelax, Network, fit, graphs
    >>> network = Network(graphs.chain(1), [([[0.0], [1.0], [2.0]], [0, 1, 1])], public=[[1.0]])
    >>> run = fit(network, FedRelax(AsClassifier(LinearRegression())))
    >>> run.predict_proba([[0.0], [2.0]], node=[0, 0]).round(3)
    array([[0.833, 0.167],
           [0.   , 1.   ]])
    """

    @property
    def classifies(self) -> bool:
        """True."""
        return True

    def check(self) -> None:
        """Refuse what is no regressor, or cannot weigh its rows."""
        super().check()
        if is_classifier(self.estimator):
            name = type(self.estimator).__name__
            raise InputError(f"Expected a regressor for AsClassifier, got {name}: it needs no AsClassifier.")

    def learns(self, discrepancy: Discrepancy) -> bool:
        """Whatever has rows with probabilities."""
        return not isinstance(discrepancy, SymmetricCrossEntropy)

    def _rows(self, weighted: WeightedRows, classes: Floats | None) -> WeightedRows:
        return weighted

    def _predict(self, fitted: Any, X: Floats, classes: Floats | None) -> Floats:
        X, unchecked = _ready(fitted, X)
        return nearest_probabilities(np.asarray(fitted.predict(X, **unchecked), dtype=np.float64))


@dataclass(frozen=True)
class OneClass:
    """The model of a node that has only ever seen one class."""

    label: float

    @property
    def classes_(self) -> Floats:
        """The one class."""
        return np.array([self.label])

    def predict_proba(self, X: Floats) -> Floats:
        """Certainty."""
        return np.ones((len(X), 1))


class Resampled(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """An estimator whose fit cannot weigh rows: it is given rows drawn with replacement in proportion to their weights.

    Parameters
    ----------
    estimator : any regressor or classifier.
    rows : how many rows to draw; by default as many as there are rows with weight.
    random_state : seed of the draw.

    >>> from sklearn.neighbors import KNeighborsRegressor
    >>> model = Resampled(KNeighborsRegressor(1), random_state=0)
    >>> model.fit([[0.0], [1.0]], [5.0, 7.0], sample_weight=[1.0, 0.0]).predict([[1.0]])
    array([5.])
    """

    def __init__(self, estimator: Any, rows: int | None = None, random_state: int | None = None) -> None:
        self.estimator = estimator
        self.rows = rows
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Resampled:
        """Draw rows, and fit the estimator to them."""
        X, y = np.asarray(X), np.asarray(y)
        weight = np.ones(len(y)) if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
        size = int((weight > 0).sum()) if self.rows is None else self.rows
        drawn = np.random.default_rng(self.random_state).choice(len(y), size, p=weight / weight.sum())
        self.estimator_ = clone(self.estimator).fit(X[drawn], y[drawn])
        return self

    def predict(self, X: Any) -> Any:
        """What the estimator predicts."""
        return self.estimator_.predict(X)

    def __getattr__(self, name: str) -> Any:
        # Probabilities and classes are the estimator's, and exist if it has them.
        if name in ("predict_proba", "classes_") and "estimator_" in self.__dict__:
            return getattr(self.estimator_, name)
        raise AttributeError(f"Resampled has no attribute {name!r}")

    def __sklearn_tags__(self) -> Any:
        return self.estimator.__sklearn_tags__()


WRAPPERS: Mapping[str, type[Estimator]] = {"Estimator": Estimator, "AsClassifier": AsClassifier}  # in files


def read_estimators(file: Path, size: int, feature_count: int, trusted: Sequence[str]) -> FittedModels:
    """The estimators of so many nodes, for so many features; see ``load_estimators``."""
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


def in_threads(work: Callable[[Any], Any], items: Any, rows: float) -> list[Any]:
    """``work`` on every item, on all processors of this process if there are many ``rows`` to an item.

    Trees and many other estimators let go of the interpreter's lock; for a few rows threads would only fight for it.
    """
    items = list(items)
    count = min(_processors(), len(items))
    if count <= 1 or rows < THREADS_FROM:
        return [work(item) for item in items]
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, items))


def _processors() -> int:
    """How many this process may use, where the system tells; otherwise, how many there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _counts_no_rows(tree: Any) -> bool:
    """Whether a tree looks at weights only, so that a row twice is a row of twice the weight."""
    return tree.min_samples_leaf == 1 and tree.min_samples_split == 2 and tree.max_leaf_nodes is None


def _ready(model: Any, X: Floats) -> tuple[Any, dict[str, bool]]:
    """Rows, and how a model takes them without another look; trees spend more time on checks than on short fits."""
    if isinstance(model, DecisionTreeRegressor | DecisionTreeClassifier):
        with np.errstate(over="ignore"):  # a number too large for a tree is infinite, and on the same side of any split
            return np.ascontiguousarray(X, dtype=np.float32), {"check_input": False}
    return X, {}


def _has_bins(model: Any) -> bool:
    """Whether a model puts features into bins, none of which is a category."""
    bins = isinstance(model, HistGradientBoostingRegressor | HistGradientBoostingClassifier)
    return bins and (model.categorical_features is None or isinstance(model.categorical_features, str))


def _seeded(estimator: Any, names: list[str], seed: Callable[[], int]) -> Any:
    """The estimator with a seed wherever it would draw one: the same run again gives the same models."""
    return estimator.set_params(**dict.fromkeys(names, seed())) if names else estimator


def _row_per_class(weighted: WeightedRows, classes: Floats | None) -> WeightedRows:
    """A soft label becomes one weighted row per class, which is exactly cross-entropy; nothing weighs nothing."""
    assert classes is not None
    weight = weighted.weight[:, None] * weighted.target
    rows, label = np.nonzero(weight > 0)
    return WeightedRows(weighted.X[rows], classes[label], weight[rows, label])


def nearest_probabilities(values: Floats) -> Floats:
    """The probabilities (rows, classes) nearest to any numbers.

    >>> nearest_probabilities(np.array([[0.2, 0.8], [-0.2, 1.2], [0.6, 0.6]]))
    array([[0.2, 0.8],
           [0. , 1. ],
           [0.5, 0.5]])
    """
    largest_first = -np.sort(-values, axis=1)
    excess = (np.cumsum(largest_first, axis=1) - 1) / np.arange(1, values.shape[1] + 1)
    positive = (largest_first > excess).sum(axis=1)
    return np.maximum(values - np.take_along_axis(excess, positive[:, None] - 1, axis=1), 0.0)


def _probabilities(fitted: Any, X: Floats, classes: Floats, options: dict[str, bool]) -> Floats:
    """Probabilities in the order of ``classes``, zero for those that a model has not seen; votes where it has none."""
    out = np.zeros((len(X), len(classes)))
    if not hasattr(fitted, "predict_proba"):
        out[np.arange(len(X)), np.searchsorted(classes, fitted.predict(X))] = 1.0
        return out
    out[:, np.searchsorted(classes, fitted.classes_)] = fitted.predict_proba(X, **options)
    return out
