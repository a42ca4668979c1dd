"""What an algorithm that exchanges parameters must know of a loss, whatever the model: L_i and what follows from it.

``losses`` has convex losses of linear models, ``torch_loss`` those of modules of torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np

from kinfolk.checks import InputError
from kinfolk.network.data import Data
from kinfolk.typing import Bools, Floats, Ints

if TYPE_CHECKING:
    from kinfolk.objective.local_losses import LinearLosses
    from kinfolk.objective.spectrum import Spectrum


class ParametricModels(Protocol):
    """The models of some nodes, one parameter vector each; NaN where a node has no model."""

    @property
    def w(self) -> Floats:
        """The parameters, (nodes, parameters)."""

    def predict(self, X: Any, node: Any) -> Floats:
        """Predict every row of ``X`` with the model of its ``node`` (row numbers into these models)."""

    def error(self, X: Any, y: Any, node: Any) -> Floats:
        """The error of every row."""


class Slopes(NamedTuple):
    """What a forward and a backward pass give, (nodes, parameters) each."""

    gradient: Floats
    renewed: Floats  # the parameters, with the running statistics that the forward pass leaves; others have none


class Batches(Protocol):
    """The rows of every node in every step of a round."""

    def of_node(self, node: int) -> list[Ints]:
        """The rows of the steps of a node, one array for each step."""


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

    def trained(self, feature_count: int) -> int:
        """How many of them local steps move; running statistics follow them."""
        return self.width(feature_count)

    def layout(self, feature_count: int) -> dict[str, tuple[int, ...]]:
        """The shapes of the parts of what is trained, in their order; one row for linear models."""
        return {"w": (1, self.width(feature_count))}

    @abstractmethod
    def bind(self, data: Data) -> LocalLosses:
        """The local losses L_i for the data of some nodes."""

    @abstractmethod
    def check_data(self, data: Data) -> None:
        """Refuse samples that the loss cannot score."""

    @abstractmethod
    def models(self, w: Floats) -> ParametricModels:
        """The models with parameters w (nodes, parameters)."""

    def check_training(self, data: Data, rows: int) -> None:
        """Refuse so few samples that a model cannot be trained on them; by default one is enough."""
        return None

    @property
    def unpenalised(self) -> NodeLoss:
        """The same loss without a ridge term: what predictions are judged by."""
        return self

    @property
    def own_step_size(self) -> float | None:
        """The step size of local work where an algorithm is given none."""
        return None

    @property
    def own_optimiser(self) -> Any:
        """The optimiser of local work where an algorithm is given none."""
        return "SGD"

    def redrawn(self, rng: np.random.Generator, feature_count: int) -> Floats:
        """Parameters drawn anew, as the model draws its own."""
        raise InputError(
            f"Expected a loss whose models draw their own parameters, got {type(self).__name__}: start with "
            "Uniform(low, high), OneOf(values) or Given(centres)."
        )


class LocalLosses(ABC):
    """The local losses L_i of some nodes; parameters are arrays of shape (nodes, parameters).

    A node without data has L_i = 0. ``with_duals`` and ``prox_spectrum`` declare what some losses offer beyond that.
    """

    starts: Ints  # (nodes + 1,) where the samples of every node start

    @property
    def with_duals(self) -> LinearLosses | None:
        """These losses, if they are convex functions of linear predictions: certificates need their dual variables."""
        return None

    @property
    def prox_spectrum(self) -> Spectrum | None:
        """Eigenvectors of every node's Hessian, if the L_i are quadratic and ``prox`` works with them."""
        return None

    def forget(self) -> None:  # noqa: B027 - most keep nothing large
        """Let go of what ``prox`` has prepared, where that is large; it is made anew when it is asked for."""

    @property
    @abstractmethod
    def node_count(self) -> int:
        """Number of nodes."""

    @property
    @abstractmethod
    def width(self) -> int:
        """Number of parameters of a node's model."""

    @property
    def trained(self) -> int:
        """How many of the parameters local steps move; running statistics follow them."""
        return self.width

    @property
    def renews_statistics(self) -> bool:
        """Whether parameters include running statistics, which local work renews."""
        return False

    @property
    @abstractmethod
    def has_data(self) -> Bools:
        """Whether a node has samples."""

    @property
    @abstractmethod
    def share(self) -> Floats:
        """q_i with L_i = q_i F_i, F_i the mean loss: the number of samples (sum), or whether there are any (mean)."""

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

    @abstractmethod
    def hessian_product(self, w: Floats, v: Floats) -> Floats:
        """∇²L_i(w_i) v_i."""

    def gauss_newton(self, w: Floats) -> Callable[[Floats], Floats]:
        """Products v ↦ B_i v with a B_i ⪰ 0 near ∇²L_i(w_i): the model is taken as linear around w_i."""
        return lambda v: self.hessian_product(w, v)

    @abstractmethod
    def means_on(self, rows: Ints, starts: Ints) -> LocalLosses:
        """F_i on some of the rows, of which those of node i are ``rows[starts[i]:starts[i + 1]]``."""

    @cached_property
    def means(self) -> LocalLosses:
        """F_i on all rows; L_i itself where it is a mean."""
        if (self.share <= 1).all():
            return self
        return self.means_on(np.arange(self.starts[-1]), self.starts)

    def training_slopes(self, w: Floats, keys: Any = None) -> Slopes:
        """∇L_i(w_i) as a local step sees it; what a model draws is keyed by ``keys`` (nodes,), off without them."""
        return Slopes(self.gradient(w), w)

    def walks(self, rows: int, filled: float) -> bool:
        """Whether all steps of plain descent in a round are made by ``walked``.

        A step has at most so many rows; ``filled`` rows would be computed for each that counts if all nodes made steps
        of that size at once.
        """
        return False

    def walked(self, w: Floats, batches: Batches, rows: int, lengths: Floats) -> Floats:
        """Where steps of plain descent on F_i, of these lengths and of at most so many rows, lead nodes from w."""
        raise NotImplementedError("only losses that walk have steps of their own")

    def descent(self, w: Floats) -> Floats:
        """What vanishes at a minimiser of L_i: the gradient, unless L_i has kinks."""
        return self.gradient(w)

    @cached_property
    def value_at_start(self) -> Floats:
        """L_i where every node begins: the scale against which objectives are judged."""
        return self.value(self.start)

    @cached_property
    def gradient_at_start(self) -> Floats:
        """∇L_i where every node begins: the scale against which gradients are judged."""
        return self.gradient(self.start)

    @cached_property
    def resting(self) -> Floats:
        """(nodes,) ‖∇L_i‖² where every node begins."""
        return np.asarray(np.einsum("ij,ij->i", self.gradient_at_start, self.gradient_at_start))

    @property
    @abstractmethod
    def trace(self) -> Floats:
        """About tr ∇²L_i; it sets the first step sizes."""

    @property
    @abstractmethod
    def smoothness(self) -> Floats:
        """A Lipschitz constant of ∇L_i, where one is known."""

    @property
    def smoothness_of_rows(self) -> Floats:
        """The same for the mean over any samples of a node, however few."""
        return np.full(self.node_count, np.inf)

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
