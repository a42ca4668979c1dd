"""Shapes of φ: how some numbers make a matrix that acts on the parameters of a node, θ ↦ θφ.

A matrix over all parameters has as many numbers as there are pairs of parameters, and more than a few nodes can
determine. So φ may be one number per layer, a matrix per layer, or the identity less a matrix of low rank:

    φ = diag(φ_l on the parameters of layer l)                                            ``NumberPerLayer``
    φ = diag(Φ_k on every row of part k), a number for biases                             ``MatrixPerLayer``
    φ = I − UUᵀ, U with ``rank`` columns                                                  ``LowRank``
    φ any matrix                                                                          ``FullMatrix``

All are kept at ‖φ‖₂ ≤ 1, above which the game of (10.17) may have no rest. Among symmetric matrices within that bound,
I − UUᵀ with ‖U‖₂² ≤ 2 is every one that differs from the identity by a matrix of low rank.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np

from kinfolk.checks import AtLeast, InputError
from kinfolk.typing import Floats, Ints

Layout = Mapping[str, tuple[int, ...]]  # the shapes of the parts of a parameter vector, in their order
MOST_NUMBERS = 20_000_000  # of φ: 160 MB
FIRST_LENGTH = 0.1  # of the columns of U: at 0 the derivative vanishes


class Distance(NamedTuple):
    """½‖φ − I‖² and its derivative."""

    value: float
    slope: Floats


class Shape(ABC):
    """How numbers (size,) make φ (parameters, parameters); vectors are rows, θφ."""

    @abstractmethod
    def size(self, layout: Layout) -> int:
        """How many numbers."""

    @abstractmethod
    def identity(self, layout: Layout) -> Floats:
        """The numbers of φ = I."""

    def beginning(self, layout: Layout, rng: np.random.Generator) -> Floats:
        """Where learning begins: φ = I, or near it where the derivative vanishes there."""
        return self.identity(layout)

    @abstractmethod
    def times(self, layout: Layout, phi: Floats, x: Floats, *, transposed: bool = False) -> Floats:
        """xφ, or xφᵀ, of every row."""

    @abstractmethod
    def derivative(self, layout: Layout, phi: Floats, left: Floats, right: Floats) -> Floats:
        """The derivative of Σ_i ⟨right_i, left_i φ⟩ in the numbers of φ."""

    @abstractmethod
    def projected(self, layout: Layout, phi: Floats) -> Floats:
        """The nearest φ with ‖φ‖₂ ≤ 1."""

    @abstractmethod
    def distance(self, layout: Layout, phi: Floats) -> Distance:
        """½‖φ − I‖², with φ as a matrix."""

    @abstractmethod
    def unit(self, layout: Layout) -> float:
        """How long a step of size 1 is in the numbers of φ: about as long as the identity."""

    def fitted(self, layout: Layout, left: Floats, right: Floats, ridge: float) -> Floats:
        """argmin Σ_i ‖left_i φ − right_i‖² + ridge ‖φ − I‖², with ridge relative to the mean square of left."""
        raise InputError(
            f"Expected a φ that a regression can find (NumberPerLayer, MatrixPerLayer or FullMatrix), got "
            f"{type(self).__name__}."
        )


@dataclass(frozen=True)
class NumberPerLayer(Shape):
    """One number for all parameters of a layer, weights and biases; one for all of a linear model.

    >>> NumberPerLayer().times({"0.weight": (1, 2), "1.weight": (1, 1)}, np.array([2.0, 3.0]), np.ones((1, 3)))
    array([[2., 2., 3.]])
    """

    def size(self, layout: Layout) -> int:
        """Number of layers."""
        return len(dict.fromkeys(map(_layer, layout)))

    def identity(self, layout: Layout) -> Floats:
        """Ones."""
        return np.ones(self.size(layout))

    def times(self, layout: Layout, phi: Floats, x: Floats, *, transposed: bool = False) -> Floats:
        """Every number with that of its layer."""
        return np.asarray(x * phi[_layers(layout)])

    def derivative(self, layout: Layout, phi: Floats, left: Floats, right: Floats) -> Floats:
        """Sums of products by layer."""
        return np.asarray(np.bincount(_layers(layout), (left * right).sum(axis=0), self.size(layout)), dtype=np.float64)

    def projected(self, layout: Layout, phi: Floats) -> Floats:
        """Between −1 and 1."""
        return np.clip(phi, -1.0, 1.0)

    def distance(self, layout: Layout, phi: Floats) -> Distance:
        """Every parameter counts."""
        sizes = np.bincount(_layers(layout), minlength=self.size(layout))
        return Distance(float(0.5 * (sizes * (phi - 1.0) ** 2).sum()), sizes * (phi - 1.0))

    def unit(self, layout: Layout) -> float:
        """√(number of layers)."""
        return math.sqrt(self.size(layout))

    def fitted(self, layout: Layout, left: Floats, right: Floats, ridge: float) -> Floats:
        """A regression with one slope by layer."""
        layers, count = _layers(layout), self.size(layout)
        square = np.bincount(layers, (left**2).sum(axis=0), count)
        product = np.bincount(layers, (left * right).sum(axis=0), count)
        pull = ridge * square
        return np.where(square > 0, (product + pull) / np.where(square > 0, square + pull, 1.0), 1.0)


class Block(NamedTuple):
    """A part of the parameters on which a matrix of its own acts."""

    parameters: slice
    numbers: slice
    width: int  # of the matrix; its rows are those of the part


@dataclass(frozen=True)
class Blocks(Shape):
    """A square matrix for each of some parts of the parameters."""

    @abstractmethod
    def blocks(self, layout: Layout) -> Iterator[Block]:
        """The parts."""

    def size(self, layout: Layout) -> int:
        """Squares of the widths."""
        return sum(block.width**2 for block in self.blocks(layout))

    def identity(self, layout: Layout) -> Floats:
        """A unit matrix for every part."""
        return np.concatenate([np.eye(block.width).ravel() for block in self.blocks(layout)])

    def times(self, layout: Layout, phi: Floats, x: Floats, *, transposed: bool = False) -> Floats:
        """The rows of every part with its matrix."""
        out = np.empty_like(x)
        for block in self.blocks(layout):
            matrix = _matrix(phi, block)
            out[:, block.parameters] = (_rows(x, block) @ (matrix.T if transposed else matrix)).reshape(len(x), -1)
        return out

    def derivative(self, layout: Layout, phi: Floats, left: Floats, right: Floats) -> Floats:
        """leftᵀ right of every part."""
        return np.concatenate([(_rows(left, b).T @ _rows(right, b)).ravel() for b in self.blocks(layout)])

    def projected(self, layout: Layout, phi: Floats) -> Floats:
        """Singular values are cut at 1."""
        return np.concatenate([_cut(_matrix(phi, block), 1.0).ravel() for block in self.blocks(layout)])

    def distance(self, layout: Layout, phi: Floats) -> Distance:
        """A matrix counts as often as its part has rows."""
        value, slopes = 0.0, []
        for block in self.blocks(layout):
            away = _matrix(phi, block) - np.eye(block.width)
            count = (block.parameters.stop - block.parameters.start) // block.width
            value += 0.5 * count * float((away**2).sum())
            slopes.append(count * away.ravel())
        return Distance(value, np.concatenate(slopes))

    def unit(self, layout: Layout) -> float:
        """The size of the unit matrices."""
        return math.sqrt(sum(block.width for block in self.blocks(layout)))

    def fitted(self, layout: Layout, left: Floats, right: Floats, ridge: float) -> Floats:
        """Ridge regression of every part."""
        return np.concatenate(
            [_regression(_rows(left, b), _rows(right, b), ridge).ravel() for b in self.blocks(layout)]
        )


@dataclass(frozen=True)
class MatrixPerLayer(Blocks):
    """A matrix for every part with several axes, on its rows (the inputs of a layer), and a number for every bias.

    >>> MatrixPerLayer().size({"weight": (4, 3), "bias": (4,)})
    10
    """

    def blocks(self, layout: Layout) -> Iterator[Block]:
        """One for every part."""
        return _blocks(layout, [math.prod(shape[1:]) for shape in layout.values()])


@dataclass(frozen=True)
class FullMatrix(Blocks):
    """Any matrix over all parameters, as in the chapter: for small models.

    >>> FullMatrix().size({"weight": (4, 3), "bias": (4,)})
    256
    """

    def blocks(self, layout: Layout) -> Iterator[Block]:
        """One for everything."""
        width = sum(map(math.prod, layout.values()))
        return _blocks({"all": (width,)}, [width])


@dataclass(frozen=True)
class LowRank(Shape):
    """φ = I − UUᵀ over all parameters, U (parameters, rank).

    Parameters
    ----------
    rank : int
        Columns of U: in how many directions φ may differ from the identity.
    """

    rank: Annotated[int, AtLeast(1)] = 8

    def size(self, layout: Layout) -> int:
        """Numbers of U."""
        return self.rank * sum(map(math.prod, layout.values()))

    def identity(self, layout: Layout) -> Floats:
        """U = 0."""
        return np.zeros(self.size(layout))

    def beginning(self, layout: Layout, rng: np.random.Generator) -> Floats:
        """A short U at random: at 0 the derivative vanishes."""
        columns = rng.normal(size=(self.size(layout) // self.rank, self.rank))
        return np.asarray((FIRST_LENGTH * columns / np.linalg.norm(columns, axis=0)).ravel())

    def _columns(self, phi: Floats) -> Floats:
        return phi.reshape(-1, self.rank)

    def times(self, layout: Layout, phi: Floats, x: Floats, *, transposed: bool = False) -> Floats:
        """x − (xU)Uᵀ."""
        columns = self._columns(phi)
        return np.asarray(x - (x @ columns) @ columns.T)

    def derivative(self, layout: Layout, phi: Floats, left: Floats, right: Floats) -> Floats:
        """−(leftᵀ right + rightᵀ left) U."""
        columns = self._columns(phi)
        return np.asarray(-(left.T @ (right @ columns) + right.T @ (left @ columns)).ravel())

    def projected(self, layout: Layout, phi: Floats) -> Floats:
        """‖U‖₂² ≤ 2."""
        return _cut(self._columns(phi), math.sqrt(2.0)).ravel()

    def distance(self, layout: Layout, phi: Floats) -> Distance:
        """½‖UUᵀ‖²."""
        columns = self._columns(phi)
        small = columns.T @ columns
        return Distance(float(0.5 * (small**2).sum()), 2.0 * (columns @ small).ravel())

    def unit(self, layout: Layout) -> float:
        """√rank: as long as orthonormal columns."""
        return math.sqrt(self.rank)


def check_size(shape: Shape, layout: Layout) -> None:
    """Refuse a φ with too many numbers to keep."""
    size = shape.size(layout)
    if size > MOST_NUMBERS:
        raise InputError(
            f"Expected a φ of at most {MOST_NUMBERS:,} numbers, got {size:,} with {type(shape).__name__} for "
            f"{sum(map(math.prod, layout.values())):,} parameters: take NumberPerLayer, or LowRank."
        )


def _layer(name: str) -> str:
    """The layer of a part: 'hidden.weight' and 'hidden.bias' belong to 'hidden'."""
    return name.rpartition(".")[0]


def _layers(layout: Layout) -> Ints:
    """(parameters,) the number of each one's layer."""
    numbers = {layer: k for k, layer in enumerate(dict.fromkeys(map(_layer, layout)))}
    return np.repeat([numbers[_layer(name)] for name in layout], [math.prod(shape) for shape in layout.values()])


def _blocks(layout: Layout, widths: list[int]) -> Iterator[Block]:
    parameter = number = 0
    for shape, width in zip(layout.values(), widths, strict=True):
        length = math.prod(shape)
        yield Block(slice(parameter, parameter + length), slice(number, number + width**2), width)
        parameter, number = parameter + length, number + width**2


def _rows(x: Floats, block: Block) -> Floats:
    return x[:, block.parameters].reshape(-1, block.width)


def _matrix(phi: Floats, block: Block) -> Floats:
    return phi[block.numbers].reshape(block.width, block.width)


def _cut(matrix: Floats, most: float) -> Floats:
    """The nearest matrix without a singular value above ``most``."""
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    return matrix if values[0] <= most else np.asarray((left * np.minimum(values, most)) @ right)


def _regression(left: Floats, right: Floats, ridge: float) -> Floats:
    """argmin ‖left φ − right‖² + ridge · mean square · ‖φ − I‖²."""
    gram, width = left.T @ left, left.shape[1]
    pull = ridge * np.trace(gram) / width * np.eye(width)
    if not gram.any():
        return np.eye(width)
    return np.asarray(np.linalg.lstsq(gram + pull, left.T @ right + pull, rcond=None)[0])
