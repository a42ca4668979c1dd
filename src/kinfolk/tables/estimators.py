"""Estimators of scikit-learn: the blend over a data frame with a node column.

They fit what ``learn`` fits, by the same functions (``prepare``, then ``fit_blend``), to all rows that they are given:
``learn`` holds out test rows and judges, here that is left to ``cross_validate`` and the like.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np
import pandas
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    check_array,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from kinfolk.checks import InputError, comma_list, listing
from kinfolk.tables.columns import as_texts
from kinfolk.tables.fitted_blend import FittedBlend, Unknown, check_unknown, fit_blend
from kinfolk.tables.graph_source import named_ends
from kinfolk.tables.prepared import prepare_given
from kinfolk.typing import Floats

ONE_NODE = "all"  # the node of every row if no column names nodes
LEAST_ROWS = 2
PLAIN = ("graph", "neighbours", "model", "method", "lam", "hold", "folds", "members", "seed")  # settings of that name
Column = str | int  # by name or by position


@dataclass(eq=False, repr=False)
class Tailored(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """What both estimators share: the parameters, how X becomes a table, and how its rows are predicted."""

    node: Column | None = None
    _: KW_ONLY
    edges: Any = None
    coords: Sequence[Column] = ()
    graph: str = "auto"
    neighbours: int = 5
    categorical: Sequence[Column] = ()
    time: Column | None = None
    hold: str = "rows"
    model: Any = "ridge"
    method: str = "auto"
    lam: float | str = "auto"
    members: Sequence[Any] = ()
    folds: int | str = "auto"
    unknown: Unknown = "neighbours"
    seed: int = 0

    def _fit(self, table: pandas.DataFrame, y: Any, **task: Any) -> Self:
        """Fit the blend to all rows; X and y have been checked."""
        check_unknown(self.unknown)
        node, target = _free_name("node", table), _free_name("target", table)
        table = table.assign(**{target: y})
        if self.node is None:
            table[node] = ONE_NODE
        else:
            node = self._name(self.node)
        settings = {
            **{name: getattr(self, name) for name in PLAIN},
            "node": node, "target": target, "time": None if self.time is None else self._name(self.time),
            "coords": self._names(self.coords), "categorical": self._names(self.categorical), **task,
        }  # fmt: skip
        prepared = prepare_given(table, settings, edges=self._inner_edges(table, node), tested=False)
        self.blend_: FittedBlend = fit_blend(prepared)
        return self

    def _predicted(self, X: Any, **options: Any) -> Any:
        table = self._asked(X)
        return self.blend_.predict(table, unknown=self.unknown, edges=self.edges, **options)

    def _asked(self, X: Any) -> pandas.DataFrame:
        """Rows to predict, as a table."""
        check_is_fitted(self)
        table = self._table(X, reset=False)
        return table if self.node is not None else table.assign(**{self.blend_.columns.node: ONE_NODE})

    def _table(self, X: Any, reset: bool) -> pandas.DataFrame:
        """X, once it is checked, with the names of its columns: its own, or x0, x1, ... where these are not texts."""
        least = LEAST_ROWS if reset else 1
        if isinstance(X, pandas.DataFrame):
            validate_data(self, X, reset=reset, skip_check_array=True)
            if len(X) < least:
                raise InputError(f"Expected {least} or more rows in X, got {len(X)}.")
        else:
            X = validate_data(self, X, reset=reset, ensure_all_finite="allow-nan", ensure_min_samples=least)
        return pandas.DataFrame(X).set_axis(self._known_names, axis=1)

    @property
    def _known_names(self) -> list[str]:
        return list(getattr(self, "feature_names_in_", (f"x{k}" for k in range(self.n_features_in_))))

    def _name(self, column: Column) -> str:
        """The name of a column that is given by name or by position."""
        if isinstance(column, bool) or not isinstance(column, int | np.integer):
            return str(column)
        if not 0 <= column < self.n_features_in_:
            raise InputError(f"Expected the position of a column below {self.n_features_in_}, got {column}.")
        return self._known_names[column]

    def _names(self, columns: Sequence[Column]) -> tuple[str, ...]:
        return tuple(map(self._name, comma_list(columns) if isinstance(columns, str) else columns))

    def _inner_edges(self, table: pandas.DataFrame, node: str) -> pandas.DataFrame | None:
        """The edges whose ends both have rows: parts of a table are fitted with the edges of the whole."""
        if self.edges is None or node not in table:
            return None
        edges = pandas.DataFrame(self.edges)
        ends, known = named_ends(edges), set(as_texts(table[node]))
        inner = np.array([a in known and b in known for a, b in ends], dtype=bool)
        if not inner.any():
            raise InputError(
                f"Expected edges between nodes of X, got none that join two of {listing(sorted(known))}: correct the "
                "names, or leave out edges."
            )
        return edges[inner]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


def _free_name(wanted: str, table: pandas.DataFrame) -> str:
    """A name that no column has."""
    return wanted if wanted not in table else _free_name(f"{wanted}_", table)


@dataclass(eq=False, repr=False)
class TailoredRegressor(RegressorMixin, Tailored):  # type: ignore[misc]
    """One tailored model for every node, as a regressor of scikit-learn.

    X is a data frame with a column that names the node of each row, and features: numbers, categories, dates. It fits
    the blend that ``kinfolk.learn`` fits, to all rows; members, their weights and their parameters are chosen by
    cross-validation inside ``fit``.

    Parameters
    ----------
    node : str, int or None
        Column of X with the node of each row, by name or by position. ``None``: all rows belong to one node.
    edges : pandas.DataFrame or sequence of pairs, optional
        Pairs of nodes, and perhaps weights, if a graph is known. Those of nodes without rows serve to predict them.
    coords : sequence of str or int
        Columns with latitude and longitude (or x and y); ``()`` looks for columns with such names.
    graph : {"auto", "coordinates", "similarity", "complete"}
        Where the graph comes from if there are no edges; as for ``kinfolk.learn``.
    neighbours : int
        How many neighbours a node chooses.
    categorical : sequence of str or int
        Columns of numbers that are names of categories.
    time : str or int, optional
        Column of times: parts of cross-validation are then later times.
    hold : {"rows", "nodes", "regions"}
        What parts of cross-validation are without a time; ``"nodes"`` or ``"regions"`` if new nodes will be predicted.
    model : str or estimator
        ``"ridge"``, ``"linear"``, ``"tree"``, ``"forest"``, ``"boosting"``, or an estimator.
    method : str
        ``"auto"``, ``"gtvmin"``, ``"gtvmin-smooth"``, ``"fedrelax"``, ``"ifca"`` or ``file.py:Name``.
    lam : float or "auto"
        λ of the tailored models; ``"auto"`` chooses it.
    members : sequence
        Members of the blend: ``"pooled"``, ``"alone"``, ``"intercepts"``, ``"slopes"``, ``"tailored"``, ``"wide"``,
        ``"trees"``, ``"boosted"``, or estimators; all eight by default. A list replaces these, ``["+", MyGAM()]``
        adds to them.
    folds : int or "auto"
        Number of parts for cross-validation.
    unknown : {"neighbours", "pooled", "refuse"}
        Nodes without rows in ``fit``: their known neighbours predict, by edges or coordinates, and the model of all
        where there are none; the model of all; or they are refused if they have no known neighbours.
    seed : int
        Seed of all that is drawn.
    task : {"regression", "count", "quantile"}
        Whether the mean of a number, the mean of a count or a quantile of a number is predicted.
    quantile : float
        The quantile that the task ``"quantile"`` predicts, between 0 and 1.

    Attributes
    ----------
    blend_ : FittedBlend
        What was fitted: ``blend_.weights`` has the weight of every member, ``blend_.graph`` who may be kin.
    n_features_in_ : int
        Number of columns of X, the node among them.
    feature_names_in_ : array of str
        Names of the columns, if X was a data frame.

    >>> rng = np.random.default_rng(0)
    >>> X = pandas.DataFrame({"shop": np.repeat(list("abcd"), 20), "price": rng.normal(size=80)})
    >>> y = np.repeat([1.0, 1.0, -1.0, -1.0], 20) * X["price"] + 0.1 * rng.normal(size=80)
    >>> model = TailoredRegressor("shop").fit(X, y)
    >>> model.predict(pandas.DataFrame({"shop": ["a", "d"], "price": [1.0, 1.0]})).round().tolist()
    [1.0, -1.0]
    >>> bool(model.score(X, y) > 0.95)
    True
    """

    task: str = "regression"
    quantile: float = 0.5

    def fit(self, X: Any, y: Any) -> Self:
        """Choose and fit the blend.

        Parameters
        ----------
        X : pandas.DataFrame or array of float
            Rows with a node and features.
        y : array of float, shape (rows,)
            What to predict.

        Returns
        -------
        TailoredRegressor
            Itself.
        """
        table, numbers = self._table(X, reset=True), column_or_1d(y, warn=True)
        numbers = check_array(numbers, ensure_2d=False, dtype=np.float64, ensure_min_samples=0, input_name="y")
        check_consistent_length(table, numbers)
        return self._fit(table, numbers, task=self.task, quantile=self.quantile)

    def predict(self, X: Any) -> Floats:
        """Predict every row.

        Parameters
        ----------
        X : pandas.DataFrame or array of float
            Rows with the columns of ``fit``.

        Returns
        -------
        array of float, shape (rows,)
            The predictions.
        """
        return np.asarray(self._predicted(X), dtype=np.float64)

    def predict_interval(self, X: Any, level: float = 0.9) -> Floats:
        """Prediction intervals, with a width for every node.

        Widths come from rows that were predicted without being learnt from, in the cross-validation inside ``fit``.

        Parameters
        ----------
        X : pandas.DataFrame or array of float
            Rows with the columns of ``fit``.
        level : float
            The share of rows whose target shall lie inside, between 0 and 1.

        Returns
        -------
        array of float, shape (rows, 2)
            The lower and the upper end.
        """
        return np.asarray(self._predicted(X, interval=level)[["low", "high"]], dtype=np.float64)


@dataclass(eq=False, repr=False)
class TailoredClassifier(ClassifierMixin, Tailored):  # type: ignore[misc]
    """One tailored model for every node, as a classifier of scikit-learn.

    Parameters are those of ``TailoredRegressor``, without ``task`` and ``quantile``.

    Attributes
    ----------
    classes_ : array
        The classes, in order.
    blend_ : FittedBlend
        What was fitted; it knows classes by their number.
    n_features_in_ : int
        Number of columns of X, the node among them.
    feature_names_in_ : array of str
        Names of the columns, if X was a data frame.

    >>> rng = np.random.default_rng(0)
    >>> X = pandas.DataFrame({"shop": np.repeat(list("abcd"), 30), "price": rng.normal(size=120)})
    >>> sells = np.repeat([1.0, 1.0, -1.0, -1.0], 30) * X["price"] > 0
    >>> model = TailoredClassifier("shop").fit(X, np.where(sells, "yes", "no"))
    >>> model.predict(pandas.DataFrame({"shop": ["a", "d"], "price": [1.0, 1.0]})).tolist()
    ['yes', 'no']
    >>> model.classes_.tolist()
    ['no', 'yes']
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Choose and fit the blend.

        Parameters
        ----------
        X : pandas.DataFrame or array of float
            Rows with a node and features.
        y : array, shape (rows,)
            The class of every row: texts, whole numbers, or true and false.

        Returns
        -------
        TailoredClassifier
            Itself.
        """
        table, labels = self._table(X, reset=True), column_or_1d(y, warn=True)
        check_consistent_length(table, labels)
        if pandas.isna(labels).any():
            raise InputError(f"Expected a class in every row of y, got none in {pandas.isna(labels).sum():,} rows.")
        check_classification_targets(labels)
        self.classes_, codes = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError(f"Expected two classes at least in y, got one class: {str(labels[0])!r} in all rows.")
        return self._fit(table, codes, task="classification")

    def predict(self, X: Any) -> Any:
        """Predict the class of every row.

        Parameters
        ----------
        X : pandas.DataFrame or array of float
            Rows with the columns of ``fit``.

        Returns
        -------
        array, shape (rows,)
            Some of ``classes_``.
        """
        found = self.predict_proba(X).argmax(axis=1)
        return self.classes_[found]

    def predict_proba(self, X: Any) -> Floats:
        """The probability of every class for every row.

        Parameters
        ----------
        X : pandas.DataFrame or array of float
            Rows with the columns of ``fit``.

        Returns
        -------
        array of float, shape (rows, classes)
            Probabilities, in the order of ``classes_``.
        """
        table = self._asked(X)
        found = self.blend_.predict_proba(table, unknown=self.unknown, edges=self.edges)
        return np.asarray(found, dtype=np.float64)
