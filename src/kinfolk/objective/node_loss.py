"""What an algorithm that exchanges parameters must know of a loss, whatever the model: L_i and what follows from it.

``losses`` has convex losses of linear models, ``torch_loss`` those of modules of torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from kinfolk.network.data import Data
from kinfolk.typing import Bools, Floats, Ints

if TYPE_CHECKING:
    from kinfolk.objective.local_losses import LinearLosses, Spectrum


class ParametricModels(Protocol):
    """The models of some nodes, one parameter vector each; NaN where a node has no model."""

    @property
    def w(self) -> Floats:
        """The parameters, (nodes, parameters)."""

    def predict(self, X: Any, node: Any) -> Floats:
        """Predict every row of ``X`` with the model of its ``node`` (row numbers into these models)."""

    def error(self, X: Any, y: Any, node: Any) -> Floats:
        """The error of every row."""


class NodeLoss(ABC):
    """How a model with a parameter vector is scored at a node."""

    reduction: Any  # "mean": L_i is a mean over the samples of a node, "sum": a sum
    smooth: ClassVar[bool] = True  # whether every L_i has a gradient everywhere
    convex: ClassVar[bool] = True  # whether every L_i is convex, so that what is stationary is best
    most_curvature: ClassVar[float]  # an upper bound on how curved a sample's loss is in its prediction, ∞: none

    @abstractmethod
    def width(self, feature_count: int) -> int:
        """Number of parameters of a node's model."""

    def start(self, feature_count: int) -> Floats:
        """Where every node begins, (parameters,): zero for linear models."""
        return np.zeros(self.width(feature_count))

    @abstractmethod
    def bind(self, data: Data) -> LocalLosses:
        """The local losses L_i for the data of some nodes."""

    @abstractmethod
    def check_data(self, data: Data) -> None:
        """Refuse samples that the loss cannot score."""

    @abstractmethod
    def models(self, w: Floats) -> ParametricModels:
        """The models with parameters w (nodes, parameters)."""


class LocalLosses(ABC):
    """The local losses L_i of some nodes; parameters are arrays of shape (nodes, parameters).

    A node without data has L_i = 0. ``with_duals`` and ``prox_spectrum`` say what some losses offer beyond that.
    """

    @property
    def with_duals(self) -> LinearLosses | None:
        """These losses, if they are convex functions of linear predictions: certificates need their dual variables."""
        return None

    @property
    def prox_spectrum(self) -> Spectrum | None:
        """Eigenvectors of every node's Hessian, if the L_i are quadratic and ``prox`` works with them."""
        return None

    @property
    @abstractmethod
    def node_count(self) -> int:
        """Number of nodes."""

    @property
    @abstractmethod
    def width(self) -> int:
        """Number of parameters of a node's model."""

    @property
    @abstractmethod
    def has_data(self) -> Bools:
        """Whether a node has samples."""

    @property
    def start(self) -> Floats:
        """Where every node begins: the same parameters for all, zero for linear models."""
        return np.zeros((self.node_count, self.width))

    @abstractmethod
    def value(self, w: Floats) -> Floats:
        """L_i(w_i) of every node."""

    @abstractmethod
    def gradient(self, w: Floats) -> Floats:
        """∇L_i(w_i)."""

    def descent(self, w: Floats) -> Floats:
        """What vanishes at a minimiser of L_i: the gradient, unless L_i has kinks."""
        return self.gradient(w)

    @cached_property
    def gradient_at_start(self) -> Floats:
        """∇L_i where every node begins: the scale against which gradients are judged."""
        return self.gradient(self.start)

    @property
    @abstractmethod
    def trace(self) -> Floats:
        """About tr ∇²L_i; it sets the first step sizes."""

    @property
    @abstractmethod
    def smoothness(self) -> Floats:
        """A Lipschitz constant of ∇L_i, where one is known."""

    @abstractmethod
    def prox(self, v: Floats, tau: Floats, start: Floats | None = None) -> Floats:
        """argmin_w L_i(w) + ‖w − v_i‖² / (2 τ_i), or near it, looked for from ``start``."""

    @abstractmethod
    def prox_by_gradient(self, v: Floats, tau: Floats, accuracy: float, start: Floats) -> Floats:
        """The prox up to an error of ``accuracy`` at every node, where that can be promised."""

    @abstractmethod
    def minimise(self) -> Floats:
        """A minimiser of every L_i, or near it; where the node began if it has no data."""

    @abstractmethod
    def take(self, nodes: Ints) -> LocalLosses:
        """The local losses of some nodes."""

    @abstractmethod
    def pool(self, group: Ints, group_count: int) -> LocalLosses:
        """The sums of the local losses of each group, as if a group were one node."""
