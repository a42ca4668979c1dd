"""Measures of which only numbers leave a node: shares, parameters, predictions, quantiles."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from kinfolk.algorithms.fedrelax import FedRelax
from kinfolk.checks import AtLeast, InputError, Positive, check_parameters
from kinfolk.engine.protocol import Turn
from kinfolk.local_models.least_squares import LinearModel
from kinfolk.network.data import Data
from kinfolk.network.graphs import as_shares
from kinfolk.network.network import Network
from kinfolk.objective.losses import Loss, Squared
from kinfolk.similarity.joining import Needs, Placed
from kinfolk.typing import Bools, Floats, Ints


@dataclass(frozen=True)
class MixingDistance(Placed):
    """The part of the data that two nodes do not have in common: 1 − Σ_k min(ρ_ik, ρ_jk), after eq (21) of FedRelax.

    It is half of ‖ρ_i − ρ_j‖₁. ``graphs.overlap`` gives the graph of the paper, with (21) itself as weights.

    Parameters
    ----------
    mixing : the mixing vectors ρ (nodes, kinds); None for the shares of the classes among a node's labels.

    >>> from kinfolk import graphs
    >>> x = np.ones((2, 1))
    >>> MixingDistance().distances(Network(graphs.chain(2), [(x, [0.0, 1.0]), (x, [1.0, 1.0])]))
    array([[0. , 0.5], [0.5, 0. ]])
    """

    mixing: Any = field(default=None, hash=False, compare=False)

    metric: ClassVar[Literal["cityblock"]] = "cityblock"
    needs: ClassVar[Needs] = "numbers only"
    leaves: ClassVar[str] = "the shares of the kinds of data that a node has"

    def places(self, network: Network) -> Floats:
        """Half of the mixing vectors."""
        shares = class_shares(network) if self.mixing is None else as_shares(self.mixing)
        if len(shares) != network.graph.node_count:
            raise InputError(f"Expected {network.graph.node_count} mixing vectors, got {len(shares)}.")
        return 0.5 * shares


def class_shares(network: Network) -> Floats:
    """The share of every class among the labels of a node (nodes, classes); NaN without data.

    >>> from kinfolk import graphs
    >>> class_shares(Network(graphs.chain(2), [(np.ones((4, 1)), [0.0, 1.0, 1.0, 1.0]), None]))
    array([[0.25, 0.75], [ nan,  nan]])
    """
    classes, data = network.classes, network.data
    if classes is None:
        raise InputError("Expected whole numbers as labels to count classes, got others: give the mixing vectors.")
    cell = data.owner * len(classes) + np.searchsorted(classes, data.y)
    counts = np.bincount(cell, minlength=data.node_count * len(classes)).reshape(data.node_count, len(classes))
    sizes = data.sizes[:, None]
    out: Floats = np.divide(counts, sizes, out=np.full(counts.shape, np.nan), where=sizes > 0)
    return out


@dataclass(frozen=True)
class ParameterDistance(Placed):
    """‖w_i − w_j‖ of linear models that every node fits alone.

    Features should be on one scale. The ridge term keeps nodes with few samples from being far from all others.

    Parameters
    ----------
    loss : what is minimised at every node.

    >>> from kinfolk import graphs
    >>> x = np.ones((1, 1))
    >>> network = Network(graphs.chain(2), [(x, [0.0]), (x, [3.0])])
    >>> ParameterDistance(Squared(ridge=1.0)).distances(network)
    array([[0., 2.], [2., 0.]])
    """

    loss: Loss = Squared(ridge=0.1)

    needs: ClassVar[Needs] = "numbers only"
    leaves: ClassVar[str] = "the parameters of a model that the node has fitted alone"

    def places(self, network: Network) -> Floats:
        """The local minimisers."""
        self.loss.check_labels(network.data.y)
        losses = network.site.local_losses(self.loss)
        return np.where(losses.has_data[:, None], losses.minimise(), np.nan)


@dataclass(frozen=True)
class DeviationDistance(Placed):
    """‖d_i − d_j‖, where d_i is how the linear model of node i differs from the pooled one.

        d_i = argmin_d Σ_r (y_r − x_r'w̄ − x_r'd)² + shrinkage ‖d‖²    over the rows r of node i, with an intercept

    A node with few rows is near the pooled model w̄, and so are all of its kind. Features should be on one scale.

    Parameters
    ----------
    classes : int
        Number of classes if the labels are classes 0, 1, ...: then there is one d_i for each. 0: labels are numbers.
    shrinkage : float
        Rows that the pooled model counts for.

    >>> from kinfolk import graphs
    >>> x = [[-1.0], [1.0]]
    >>> network = Network(graphs.chain(3), [(x, [-1.0, 1.0]), (x, [-1.0, 1.0]), (x, [1.0, -1.0])])
    >>> DeviationDistance(shrinkage=2.0).distances(network).round(2)
    array([[0., 0., 1.], [0., 0., 1.], [1., 1., 0.]])
    """

    classes: Annotated[int, AtLeast(0)] = 0
    shrinkage: Annotated[float, Positive()] = 10.0

    needs: ClassVar[Needs] = "numbers only"
    leaves: ClassVar[str] = "sums of products for a common linear model, and how the node's own model differs from it"

    def places(self, network: Network) -> Floats:
        """The differences d_i, those of all classes side by side."""
        return self.deviations(network.data, self.pooled(*self.sums(network.data)))

    def sums(self, data: Data) -> tuple[Floats, Floats]:
        """X'X (parameters, parameters) and X'Y (parameters, outputs): sums over nodes, and over sites."""
        X, Y = self._rows(data)
        return X.T @ X, X.T @ Y

    def pooled(self, gram: Floats, products: Floats) -> Floats:
        """The pooled models w̄ (parameters, outputs)."""
        columns = [np.linalg.lstsq(gram + np.eye(len(gram)), each, rcond=None)[0] for each in products.T]
        return np.stack(columns, axis=1)

    def deviations(self, data: Data, pooled: Floats) -> Floats:
        """The differences d_i of some nodes, given the pooled models."""
        X, Y = self._rows(data)
        loss = Squared(reduction="sum", ridge=2 * self.shrinkage)
        rest = (y - X @ w for y, w in zip(Y.T, pooled.T, strict=True))
        parts = [loss.bind(Data(X, each, data.starts)).minimise() for each in rest]
        return np.where(data.sizes[:, None] > 0, np.concatenate(parts, axis=1), np.nan)

    def _rows(self, data: Data) -> tuple[Floats, Floats]:
        """Features with a column of ones, and a column for every output."""
        wanted = [(data.y == k).astype(float) for k in range(self.classes)] or [data.y]
        return np.column_stack([data.X, np.ones(len(data.X))]), np.stack(wanted, axis=1)


@dataclass(frozen=True)
class PredictionDistance(Placed):
    """The root mean square difference of predictions on common public points, by models fitted at every node alone.

    Any model will do. For linear models it is the distance of parameters in the metric of the public points, so that
    the units of features play no part.

    Parameters
    ----------
    model : an estimator, or what else ``FedRelax`` takes; for classifiers probabilities are compared.
    seed : for models that draw at random.

    >>> from sklearn.tree import DecisionTreeRegressor
    >>> from kinfolk import graphs
    >>> x = [[0.0], [1.0]]
    >>> network = Network(graphs.chain(2), [(x, [0.0, 1.0]), (x, [0.0, 3.0])], public=[[1.0]])
    >>> PredictionDistance(DecisionTreeRegressor()).distances(network)
    array([[0., 2.], [2., 0.]])
    """

    model: Any = LinearModel(ridge=0.1)
    seed: int = 0

    needs: ClassVar[Needs] = "numbers only"
    leaves: ClassVar[str] = "predictions on public points, of a model that the node has fitted alone"

    def places(self, network: Network) -> Floats:
        """The predictions, over the root of the number of points."""
        alone = FedRelax(self.model, lam=0.0)
        alone.check(network)
        check_parameters(alone)
        if network.public is not None and network.public.per_node:
            raise InputError(
                "Expected one common set of public points, got a set per node: predictions on different points "
                "cannot be compared. Use network.with_public with an array (points, features)."
            )
        state, _ = alone.init(network.site, Turn(0, network.site.nodes, self.seed))
        points: int = state.predicted.shape[1]
        return np.asarray(state.predicted.reshape(len(state.predicted), -1) / np.sqrt(points))


@dataclass(frozen=True)
class QuantileDistance(Placed):
    """The Wasserstein distance of every feature and of the label, averaged over these coordinates.

        W₁(i, j) = ∫₀¹ |F_i⁻¹(q) − F_j⁻¹(q)| dq,    by the midpoint rule on ``quantiles`` equal steps

    Exact where the sizes of all nodes divide ``quantiles``; otherwise off by at most 1 / ``quantiles`` of the ranges
    of both nodes together. How features and labels depend on each other is not seen: nodes with
    x ~ N(0, I) and parameters of equal length look alike.

    Parameters
    ----------
    quantiles : how many leave a node, per coordinate; each is the value of a row, so fewer reveal less.
    standardise : divide every coordinate by its standard deviation over all rows, for which sums leave a node.

    >>> from kinfolk import graphs
    >>> network = Network(graphs.chain(2), [([[0.0], [1.0]], [0.0, 0.0]), ([[2.0], [5.0]], [0.0, 0.0])])
    >>> QuantileDistance(2, standardise=False).distances(network)
    array([[0.  , 1.5], [1.5, 0.  ]])
    """

    quantiles: Annotated[int, AtLeast(1)] = 20
    standardise: bool = True

    metric: ClassVar[Literal["cityblock"]] = "cityblock"
    needs: ClassVar[Needs] = "numbers only"
    leaves: ClassVar[str] = (
        "quantiles of every feature and of the label (values of rows), and sums for standard deviations"
    )

    def places(self, network: Network) -> Floats:
        """The quantiles, over their number."""
        data = network.data
        columns = np.column_stack([data.X, data.y])
        if self.standardise:
            spread = columns.std(axis=0)
            columns = columns / np.where(spread > 0, spread, 1.0)
        known = data.sizes > 0
        found = np.full((data.node_count, columns.shape[1] * self.quantiles), np.nan)
        found[known] = self._quantiles(columns, data.owner, data.starts, known)
        return np.asarray(found / found.shape[1])

    def _quantiles(self, columns: Floats, owner: Ints, starts: Ints, known: Bools) -> Floats:
        """F_i⁻¹ at the midpoints of equal steps (known nodes, coordinates · quantiles)."""
        middle = 2 * np.arange(self.quantiles) + 1
        rows = starts[:-1][known, None] + middle * np.diff(starts)[known, None] // (2 * self.quantiles)
        ordered = [column[np.lexsort((column, owner))] for column in columns.T]
        return np.concatenate([column[rows] for column in ordered], axis=1)
