"""The lower level: what the graph adds to the loss of a node, P_i(φ, θ_i, θ_−i), and its derivatives.

    g_i(φ, θ) = F_i(θ_i) + λ P_i(φ, θ_i, θ_−i) + (κ/2) ‖θ_i‖²

A node receives of the others what ``messages`` makes of their parameters; ``value``, ``slope`` and ``own_product`` run
at the node, the rest at the coordinator, which has no data:

    slope              ∂P_i/∂θ_i
    own_product        (∂²P_i/∂θ_i²) v_i
    adjoint_product    Σ_i (∂²P_i/∂θ_i∂θ_j)ᵀ v_i  of every node j
    phi_product        Σ_i (∂²P_i/∂θ_i∂φ)ᵀ v_i
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from kinfolk.algorithms.bigfl.shapes import Distance, Layout, NumberPerLayer, Shape, check_size
from kinfolk.algorithms.parametric import squares
from kinfolk.checks import InputError
from kinfolk.network.graph import Graph
from kinfolk.typing import Floats, Ints

Received = Mapping[str, Floats]


class Links(NamedTuple):
    """The graph as arrays, which a coordinator keeps."""

    node_count: int
    head: Ints
    tail: Ints
    weights: Floats

    @classmethod
    def of(cls, graph: Graph) -> Links:
        """Those of a graph."""
        return cls(graph.node_count, graph.head, graph.tail, graph.weights)

    def matrix(self, values: Floats) -> scipy.sparse.csr_array:
        """The symmetric matrix with these values on the edges, and zeros on the diagonal."""
        ends = np.concatenate([self.head, self.tail]), np.concatenate([self.tail, self.head])
        shape = (self.node_count, self.node_count)
        return scipy.sparse.csr_array((np.concatenate([values, values]), ends), shape=shape)

    @property
    def degrees(self) -> Floats:
        """(nodes,) sums of weights."""
        both = np.concatenate([self.head, self.tail])
        sums = np.bincount(both, np.concatenate([self.weights, self.weights]), self.node_count)
        return np.asarray(sums, dtype=np.float64)


class LowerLevel(ABC):
    """What the graph adds to the loss of a node. φ is a vector of numbers."""

    @abstractmethod
    def identity(self, links: Links, layout: Layout) -> Floats:
        """φ before anything is learnt."""

    def beginning(self, links: Links, layout: Layout, rng: np.random.Generator) -> Floats:
        """φ where learning begins: the identity, or near it."""
        return self.identity(links, layout)

    def check(self, links: Links, layout: Layout) -> None:  # noqa: B027 - most suit all
        """Refuse a graph or a model that does not fit."""

    @abstractmethod
    def bound(self, links: Links) -> Floats:
        """(nodes,) a bound on how curved the game of P is, for any admitted φ; the largest limits step sizes."""

    def projected(self, layout: Layout, phi: Floats) -> Floats:
        """The nearest admitted φ."""
        return phi

    def distance(self, links: Links, layout: Layout, phi: Floats) -> Distance:
        """½‖φ − identity‖², and its derivative."""
        away = phi - self.identity(links, layout)
        return Distance(float(0.5 * (away**2).sum()), away)

    def unit(self, layout: Layout, phi: Floats) -> float:
        """How long a step of size 1 is in φ."""
        return float(np.sqrt(len(phi)))

    @abstractmethod
    def messages(self, links: Links, layout: Layout, phi: Floats, w: Floats) -> dict[str, Floats]:
        """What every node is sent of the others, (nodes, ...) each."""

    @abstractmethod
    def value(self, layout: Layout, phi: Floats, w: Floats, received: Received) -> Floats:
        """P_i of every node."""

    @abstractmethod
    def slope(self, layout: Layout, phi: Floats, w: Floats, received: Received) -> Floats:
        """∂P_i/∂θ_i."""

    @abstractmethod
    def own_product(self, layout: Layout, phi: Floats, w: Floats, received: Received, v: Floats) -> Floats:
        """(∂²P_i/∂θ_i²) v_i."""

    @abstractmethod
    def adjoint_product(self, links: Links, layout: Layout, phi: Floats, w: Floats, v: Floats) -> Floats:
        """Σ_i (∂²P_i/∂θ_i∂θ_j)ᵀ v_i of every node j."""

    @abstractmethod
    def phi_product(self, links: Links, layout: Layout, phi: Floats, w: Floats, v: Floats) -> Floats:
        """Σ_i (∂²P_i/∂θ_i∂φ)ᵀ v_i."""


# ---------------------------------------------------------------------- BiG-FL


def _normalised(links: Links) -> scipy.sparse.csr_array:
    """D̃^{-1/2} Ã D̃^{-1/2} with Ã = A + I, as in graph convolutional networks."""
    root = 1.0 / np.sqrt(links.degrees + 1.0)
    between = links.matrix(links.weights * root[links.head] * root[links.tail])
    return (between + scipy.sparse.diags_array(root**2)).tocsr()


def _averaging(links: Links) -> scipy.sparse.csr_array:
    """D̃^{-1} Ã: a node's embedding is a mean."""
    share = scipy.sparse.diags_array(1.0 / (links.degrees + 1.0))
    return (share @ (links.matrix(links.weights) + scipy.sparse.eye_array(links.node_count))).tocsr()


NORMALISED = "normalised adjacency"
PROPAGATIONS: dict[str, Callable[[Links], scipy.sparse.csr_array]] = {
    NORMALISED: _normalised,
    "mean": _averaging,
}


@dataclass(frozen=True)
class GraphEmbedding(LowerLevel):
    """(10.18): a node is drawn to its embedding, a row of H = Lθφ (10.13): P_i = ½ ‖(Lθφ)_i − θ_i‖².

    Parameters
    ----------
    shape : Shape
        How numbers make φ: ``NumberPerLayer()``, ``MatrixPerLayer()``, ``LowRank(rank)`` or ``FullMatrix()``.
    propagation : str or matrix
        L: ``"normalised adjacency"`` D̃^{-1/2}(A + I)D̃^{-1/2}, which the chapter calls a Laplacian and has as its
        example; ``"mean"`` D̃^{-1}(A + I); or a matrix (nodes, nodes). A matrix with ‖L‖₂ > 1 may give a game that does
        not come to rest, and with L_ii = 1, as in a normalised Laplacian, φ = I has no pull.
    """

    shape: Shape = NumberPerLayer()
    propagation: Any = NORMALISED

    def matrix(self, links: Links) -> scipy.sparse.csr_array:
        """L."""
        if isinstance(self.propagation, str):
            return PROPAGATIONS[self.propagation](links)
        return scipy.sparse.csr_array(self.propagation, dtype=np.float64)

    def check(self, links: Links, layout: Layout) -> None:
        """An L for these nodes, and a φ that is not too large."""
        known = isinstance(self.propagation, str) and self.propagation in PROPAGATIONS
        if isinstance(self.propagation, str) and not known:
            names = ", ".join(map(repr, PROPAGATIONS))
            raise InputError(f"Expected {names}, or a matrix, for propagation, got {self.propagation!r}.")
        if not known:
            self._check_matrix(links.node_count)
        check_size(self.shape, layout)

    def _check_matrix(self, count: int) -> None:
        try:
            matrix = scipy.sparse.csr_array(self.propagation, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise InputError(f"Expected a matrix of numbers for propagation, got {self.propagation!r:.60}.") from error
        if matrix.shape != (count, count) or not np.isfinite(matrix.data).all():
            raise InputError(f"Expected finite numbers ({count}, {count}) for propagation, got shape {matrix.shape}.")

    def identity(self, links: Links, layout: Layout) -> Floats:
        """φ = I."""
        return self.shape.identity(layout)

    def beginning(self, links: Links, layout: Layout, rng: np.random.Generator) -> Floats:
        """φ = I, or near it."""
        return self.shape.beginning(layout, rng)

    def bound(self, links: Links) -> Floats:
        """(1 + |L_ii|)(1 + ‖L‖₂)."""
        matrix = abs(self.matrix(links))
        norm = (
            1.0
            if isinstance(self.propagation, str) and self.propagation == NORMALISED
            else np.sqrt(matrix.sum(axis=0).max() * matrix.sum(axis=1).max())
        )
        return np.asarray((1.0 + matrix.diagonal()) * (1.0 + norm))

    def projected(self, layout: Layout, phi: Floats) -> Floats:
        """‖φ‖₂ ≤ 1."""
        return self.shape.projected(layout, phi)

    def distance(self, links: Links, layout: Layout, phi: Floats) -> Distance:
        """½‖φ − I‖²."""
        return self.shape.distance(layout, phi)

    def unit(self, layout: Layout, phi: Floats) -> float:
        """About as long as the identity."""
        return self.shape.unit(layout)

    def messages(self, links: Links, layout: Layout, phi: Floats, w: Floats) -> dict[str, Floats]:
        """(L_i,: − L_ii) θ and L_ii, as in Algorithm 4, line 4."""
        matrix = self.matrix(links)
        own = matrix.diagonal()[:, None]
        return {"around": matrix @ w - own * w, "own": own}

    def value(self, layout: Layout, phi: Floats, w: Floats, received: Received) -> Floats:
        """½ ‖r_i‖²."""
        return 0.5 * squares(self._rest(layout, phi, w, received))

    def slope(self, layout: Layout, phi: Floats, w: Floats, received: Received) -> Floats:
        """r_i C_iᵀ."""
        return self._turned(layout, phi, received["own"], self._rest(layout, phi, w, received), transposed=True)

    def own_product(self, layout: Layout, phi: Floats, w: Floats, received: Received, v: Floats) -> Floats:
        """v_i C_i C_iᵀ."""
        own = received["own"]
        return self._turned(layout, phi, own, self._turned(layout, phi, own, v), transposed=True)

    def _rest(self, layout: Layout, phi: Floats, w: Floats, received: Received) -> Floats:
        """r_i = (Lθφ)_i − θ_i."""
        return self.shape.times(layout, phi, received["around"] + received["own"] * w) - w

    def _turned(self, layout: Layout, phi: Floats, own: Floats, x: Floats, *, transposed: bool = False) -> Floats:
        """x_i C_i with C_i = L_ii φ − I."""
        return own * self.shape.times(layout, phi, x, transposed=transposed) - x

    def adjoint_product(self, links: Links, layout: Layout, phi: Floats, w: Floats, v: Floats) -> Floats:
        """Σ_i L_ij v_i C_i φᵀ − v_j C_j."""
        matrix = self.matrix(links)
        turned = self._turned(layout, phi, matrix.diagonal()[:, None], v)
        return self.shape.times(layout, phi, matrix.T @ turned, transposed=True) - turned

    def phi_product(self, links: Links, layout: Layout, phi: Floats, w: Floats, v: Floats) -> Floats:
        """Σ_i (Lθ)_iᵀ v_i C_i + L_ii v_iᵀ r_i."""
        matrix = self.matrix(links)
        own, around = matrix.diagonal()[:, None], matrix @ w
        rest = self.shape.times(layout, phi, around) - w
        derivative = self.shape.derivative
        return derivative(layout, phi, around, self._turned(layout, phi, own, v)) + derivative(
            layout, phi, own * v, rest
        )

    # ------------------------------------------------------------------ for upper levels that look at H

    def embedded(self, links: Links, layout: Layout, phi: Floats, w: Floats) -> Floats:
        """H = Lθφ (10.13)."""
        return self.shape.times(layout, phi, self.matrix(links) @ w)

    def embedded_slopes(
        self, links: Links, layout: Layout, phi: Floats, w: Floats, slope: Floats
    ) -> tuple[Floats, Floats]:
        """The derivatives in φ and θ of a function of H whose derivative in H is ``slope``."""
        matrix = self.matrix(links)
        by_phi = self.shape.derivative(layout, phi, matrix @ w, slope)
        return by_phi, matrix.T @ self.shape.times(layout, phi, slope, transposed=True)

    def fitted(self, links: Links, layout: Layout, w: Floats, ridge: float) -> Floats:
        """φ by ridge regression of θ on Lθ."""
        return self.shape.fitted(layout, self.matrix(links) @ w, w, ridge)


# ---------------------------------------------------------------------- to compare with


@dataclass(frozen=True)
class LaplacianCoupling(LowerLevel):
    """P_i = ½ Σ_j (A_ij / D_max) ‖θ_i − θ_j‖²: the game settles where GTVMin with ``SquaredNorm`` and λ / D_max does.

    D_max is the largest sum of weights at a node. There is no φ.
    """

    def identity(self, links: Links, layout: Layout) -> Floats:
        """No numbers."""
        return np.zeros(0)

    def bound(self, links: Links) -> Floats:
        """2 D_i / D_max."""
        return 2.0 * self._degrees(links)

    def _degrees(self, links: Links) -> Floats:
        degrees = links.degrees
        return np.asarray(degrees / max(degrees.max(), np.finfo(float).tiny))

    def _scaled(self, links: Links) -> scipy.sparse.csr_array:
        return links.matrix(links.weights / max(links.degrees.max(), np.finfo(float).tiny))

    def messages(self, links: Links, layout: Layout, phi: Floats, w: Floats) -> dict[str, Floats]:
        """Σ_j A_ij θ_j, Σ_j A_ij ‖θ_j‖² and Σ_j A_ij, over D_max."""
        between = self._scaled(links)
        return {"around": between @ w, "squares": between @ squares(w), "degree": self._degrees(links)[:, None]}

    def value(self, layout: Layout, phi: Floats, w: Floats, received: Received) -> Floats:
        """½ Σ_j A_ij ‖θ_i − θ_j‖² / D_max."""
        cross = (w * received["around"]).sum(axis=1)
        return np.asarray(0.5 * (received["degree"][:, 0] * squares(w) - 2.0 * cross + received["squares"]))

    def slope(self, layout: Layout, phi: Floats, w: Floats, received: Received) -> Floats:
        """Σ_j A_ij (θ_i − θ_j) / D_max."""
        return received["degree"] * w - received["around"]

    def own_product(self, layout: Layout, phi: Floats, w: Floats, received: Received, v: Floats) -> Floats:
        """D_i v_i / D_max."""
        return received["degree"] * v

    def adjoint_product(self, links: Links, layout: Layout, phi: Floats, w: Floats, v: Floats) -> Floats:
        """The Laplacian times v."""
        return np.asarray(self._degrees(links)[:, None] * v - self._scaled(links) @ v)

    def phi_product(self, links: Links, layout: Layout, phi: Floats, w: Floats, v: Floats) -> Floats:
        """Nothing."""
        return np.zeros(0)
