"""A module of torch at every node, all of one shape: its parameters are one vector per node, scored by a ``TorchLoss``.

    L_i(w) = c_i Σ_r ℓ(h(x_r; w), y_r) + (ridge / 2) ‖w without biases‖²,    c_i = 1 (sum) or 1 / m_i (mean)

with h the module. L_i is as a rule not convex: there is no certificate, a prox is a few steps of an optimiser, and
where a run ends depends on where it starts. All nodes start with the parameters that the module has, since parameters
of different nodes can only be compared if their hidden units mean the same.

torch is imported when it is first needed: ``pip install "kinfolk[torch]"``.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from kinfolk.checks import AtLeast, InputError, Positive
from kinfolk.network.data import Data, rows_of, starts_of
from kinfolk.objective.node_loss import LocalLosses, NodeLoss
from kinfolk.typing import Bools, Floats, Ints

PROBES = 8  # random directions along which curvature is measured
PROBE_LENGTH = 1e-3


@dataclass(frozen=True)
class TorchLoss(NodeLoss):
    """How a module of torch is scored at a node, and how its parameters are looked for.

    Parameters
    ----------
    module : maps rows of features to predictions, (rows, features) to (rows, outputs). It is never changed; its present
        parameters are where all nodes start. Numbers are 64-bit. It works as in evaluation: dropout is off.
    score : ``"squared"`` for ℓ = (h − y)² with one output, ``"cross-entropy"`` for ℓ = −log softmax(h)_y with an output
        for each of the classes 0, 1, ...
    reduction, ridge : as for linear models; biases (parameters with one axis) are not penalised.
    optimiser : the name of a class in ``torch.optim``, such a class, or what makes one: ``partial(SGD, momentum=0.9)``.
        It must treat every number by itself: not LBFGS. A prox starts a new one, so Adam, whose first steps are as long
        whatever the slope, keeps trembling; SGD settles.
    step_size : its ``lr``.
    steps : of the optimiser, in every local update.
    minimise_steps : of the optimiser, where a node learns alone to the end.

    >>> import torch
    >>> from kinfolk import GTVMin, Network, fit, graphs
    >>> network = Network(graphs.chain(2), [([[0.0], [1.0]], [1.0, 3.0]), None])
    >>> loss = TorchLoss(torch.nn.Linear(1, 1), step_size=0.3)
    >>> fit(network, GTVMin(loss, lam=1.0)).predict([[2.0], [2.0]], node=[0, 1]).round(3).tolist()
    [5.0, 5.0]
    """

    module: Any
    score: Literal["squared", "cross-entropy"] = "squared"
    reduction: Literal["mean", "sum"] = "mean"
    ridge: Annotated[float, AtLeast(0)] = 0.0
    optimiser: Any = "SGD"
    step_size: Annotated[float, Positive()] = 0.05
    steps: Annotated[int, AtLeast(1)] = 20
    minimise_steps: Annotated[int, AtLeast(1)] = 1_000

    convex: ClassVar[bool] = False
    most_curvature: ClassVar[float] = np.inf

    @cached_property
    def flat(self) -> FlatModule:
        """The module, with its parameters as one vector."""
        return FlatModule.of(self.module)

    @property
    def scoring(self) -> Scoring:
        """What predictions and labels are."""
        return SCORINGS[self.score]

    def width(self, feature_count: int) -> int:
        """Number of parameters of the module."""
        return len(self.flat.start)

    def start(self, feature_count: int) -> Floats:
        """The parameters that the module has."""
        return self.flat.start.copy()

    def bind(self, data: Data) -> ModuleLosses:
        """The local losses L_i for the data of some nodes."""
        scale = np.ones(len(data.y)) if self.reduction == "sum" else 1.0 / data.sizes[data.owner]
        return ModuleLosses(self, data.X, data.y, data.starts, scale, np.where(data.sizes > 0, self.ridge, 0.0))

    def models(self, w: Floats) -> ModuleModels:
        """The modules with parameters w (nodes, parameters)."""
        return ModuleModels(w, self)

    def check_data(self, data: Data) -> None:
        """Refuse an optimiser that is none, features that the module cannot read, and labels that it cannot predict."""
        self._check_optimiser()
        self.scoring.check(self._outputs(data.feature_count), data.y)

    def _outputs(self, feature_count: int) -> int:
        """How many numbers the module says of a row."""
        torch, flat = _torch(), self.flat
        try:
            said = flat.one(torch.tensor(flat.start), torch.zeros((2, feature_count), dtype=torch.float64))
        except (RuntimeError, ValueError, IndexError) as error:
            raise InputError(
                f"Expected a module that reads rows of {feature_count} features, got one that does not: {error}"
            ) from error
        if said.ndim != 2 or len(said) != 2:
            raise InputError(
                f"Expected a module that maps (rows, features) to (rows, outputs), got shape {tuple(said.shape)} for "
                "two rows: add a layer such as torch.nn.Flatten()."
            )
        return int(said.shape[1])

    def descended(self, slope: Callable[[Any], Any], start: Floats, steps: int) -> Floats:
        """Where some steps of a new optimiser lead from ``start`` (nodes, parameters), down a slope at every node."""
        w = _torch().tensor(start)
        optimiser = self._optimiser_of(w)
        for _ in range(steps):
            w.grad = slope(w)
            optimiser.step()
        return np.asarray(w.numpy())

    def _check_optimiser(self) -> None:
        """Refuse an optimiser that moves a node by what it sees of another."""
        rows = np.array([[1.0, 2.0], [-3.0, 0.5]])
        try:
            together, *alone = (self.descended(_slope_of_half_square, part, 3) for part in (rows, rows[:1], rows[1:]))
        except TypeError as error:
            raise InputError(f"Expected an optimiser that steps after a gradient, got {self.optimiser!r}.") from error
        if not np.allclose(together, np.concatenate(alone), rtol=1e-9):
            raise InputError(f"Expected an optimiser that moves every number by itself, got {self.optimiser!r}.")

    def _optimiser_of(self, w: Any) -> Any:
        """A new optimiser of a tensor."""
        known = _torch().optim
        kind = getattr(known, self.optimiser, None) if isinstance(self.optimiser, str) else self.optimiser
        if not callable(kind):
            raise InputError(
                "The 'optimiser' parameter of TorchLoss must be a class in torch.optim, or the name of one. "
                f"Got {self.optimiser!r} instead."
            )
        return kind([w], lr=self.step_size)

    def redrawn(self, rng: np.random.Generator) -> Floats:
        """Parameters drawn anew, each layer as it draws its own."""
        torch, module = _torch(), copy.deepcopy(self.module)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(rng.integers(2**62)))
            for part in module.modules():
                if hasattr(part, "reset_parameters"):
                    part.reset_parameters()
        return FlatModule.of(module).start


@dataclass(frozen=True, eq=False)
class FlatModule:
    """A copy of a module whose parameters are one vector."""

    module: Any  # in 64 bits and as in evaluation
    shapes: dict[str, tuple[int, ...]]
    start: Floats  # (parameters,)
    penalised: Floats  # (parameters,) 1, and 0 for biases

    @classmethod
    def of(cls, module: Any) -> FlatModule:
        """A copy of ``module``; later changes of the one do not reach the other."""
        if not isinstance(module, _torch().nn.Module):
            raise InputError(f"The 'module' parameter of TorchLoss must be a torch.nn.Module. Got {module!r} instead.")
        if any(_torch().nn.parameter.is_lazy(value) for value in module.parameters()):
            raise InputError("Expected a module whose layers know their sizes, got one that learns them from its rows.")
        module = copy.deepcopy(module).double().eval()
        parameters = {name: value.detach().numpy() for name, value in module.named_parameters()}
        if not parameters:
            raise InputError("Expected a module with parameters to learn, got one without.")
        start = np.concatenate([value.reshape(-1) for value in parameters.values()])
        penalised = np.concatenate([np.full(value.size, float(value.ndim > 1)) for value in parameters.values()])
        return cls(module, {name: value.shape for name, value in parameters.items()}, start, penalised)

    def each(self, w: Any, X: Any) -> Any:
        """What each node's module says of the node's rows, for tensors (nodes, parameters), (nodes, rows, features)."""
        return _torch().vmap(self.one)(w, X)

    def one(self, w: Any, X: Any) -> Any:
        """What the module with parameters w (parameters,) says of rows X."""
        parts = w.split([int(np.prod(shape)) for shape in self.shapes.values()])
        named = {name: part.view(shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}
        return _torch().func.functional_call(self.module, named, (X,))


@dataclass(frozen=True, eq=False)
class ModuleLosses(LocalLosses):
    """The local losses L_i of some nodes, all computed at once."""

    loss: TorchLoss
    X: Floats  # (rows, features)
    y: Floats  # (rows,)
    starts: Ints  # (nodes + 1,)
    scale: Floats  # (rows,) c_i
    ridge: Floats  # (nodes,)

    @property
    def node_count(self) -> int:
        """Number of nodes."""
        return len(self.starts) - 1

    @property
    def width(self) -> int:
        """Number of parameters of the module."""
        return len(self.loss.flat.start)

    @cached_property
    def has_data(self) -> Bools:
        """Whether a node has samples."""
        return np.diff(self.starts) > 0

    @property
    def start(self) -> Floats:
        """The parameters of the module, at every node."""
        return np.tile(self.loss.flat.start, (self.node_count, 1))

    # ------------------------------------------------------------------ value and derivatives

    def value(self, w: Floats) -> Floats:
        """L_i(w_i) of every node."""
        out = np.zeros(self.node_count)
        if self.has_data.any():
            with _torch().no_grad():
                out[self.has_data] = self._values(_torch().tensor(w[self.has_data])).numpy()
        return out

    def gradient(self, w: Floats) -> Floats:
        """∇L_i(w_i)."""
        out = np.zeros((self.node_count, self.width))
        if self.has_data.any():
            out[self.has_data] = self._slopes(_torch().tensor(w[self.has_data])).numpy()
        return out

    def _slopes(self, w: Any) -> Any:
        """∇L_i at the nodes with data, as a tensor."""
        w = w.detach().requires_grad_()
        self._values(w).sum().backward()
        return w.grad

    def _values(self, w: Any) -> Any:
        """L_i at the nodes with data, as a tensor."""
        X, y, scale, ridge, penalised = self._tensors
        values = (scale * self.loss.scoring.rows(self.loss.flat.each(w, X), y)).sum(dim=1)
        return values + 0.5 * ridge * (penalised * w**2).sum(dim=1) if ridge.any() else values

    @cached_property
    def _tensors(self) -> tuple[Any, ...]:
        """Rows, labels and c_i by node, at nodes with data; a short node repeats its first row with weight zero."""
        torch, here = _torch(), np.flatnonzero(self.has_data)
        rows, counted = padded(self.starts, here)
        arrays = self.X[rows], self.y[rows], self.scale[rows] * counted, self.ridge[here], self.loss.flat.penalised
        return tuple(torch.tensor(array) for array in arrays)

    @cached_property
    def trace(self) -> Floats:
        """About tr ∇²L_i where all start: how far the gradient turns along random signs, in size."""
        signs = np.random.default_rng(0).choice([-1.0, 1.0], (PROBES, self.width))
        turns = [
            ((self.gradient(self.start + PROBE_LENGTH * s) - self.gradient_at_start) * s).sum(axis=1) for s in signs
        ]
        return np.asarray(np.abs(np.mean(turns, axis=0)) / PROBE_LENGTH)

    @property
    def smoothness(self) -> Floats:
        """None is known."""
        return np.full(self.node_count, np.inf)

    # ------------------------------------------------------------------ minimisers

    def prox(self, v: Floats, tau: Floats, start: Floats | None = None) -> Floats:
        """Near argmin_w L_i(w) + ‖w − v_i‖² / (2 τ_i), by ``steps`` of the optimiser from ``start``."""
        torch, here = _torch(), self.has_data
        anchor, pull = torch.tensor(v[here]), torch.tensor(1.0 / tau[here])[:, None]  # copies: v stays where it is
        shorter = 1.0 + self.loss.step_size * pull  # steps that suit L_i alone suit L_i with any pull

        def slope(w: Any) -> Any:  # in place: where models are large, new memory costs more than arithmetic
            return self._slopes(w).addcmul_(pull, w - anchor).div_(shorter)

        out = v.copy()
        if here.any():
            out[here] = self.loss.descended(slope, (v if start is None else start)[here], self.loss.steps)
        return out

    def prox_by_gradient(self, v: Floats, tau: Floats, accuracy: float, start: Floats) -> Floats:
        """Nothing can be promised where no bound on the curvature is known."""
        raise InputError("Expected a loss of bounded curvature for gradient steps, got TorchLoss.")

    def minimise(self) -> Floats:
        """Near a minimiser of every L_i, by ``minimise_steps`` of the optimiser; the start at nodes without data."""
        out = self.start
        if self.has_data.any():
            out[self.has_data] = self.loss.descended(self._slopes, out[self.has_data], self.loss.minimise_steps)
        return out

    # ------------------------------------------------------------------ parts and sums

    def take(self, nodes: Ints) -> ModuleLosses:
        """The local losses of some nodes."""
        rows = rows_of(self.starts, nodes)
        return ModuleLosses(
            self.loss, self.X[rows], self.y[rows], starts_of(self.starts, nodes), self.scale[rows], self.ridge[nodes]
        )

    def pool(self, group: Ints, group_count: int) -> ModuleLosses:
        """The sums of the local losses of each group, as if a group were one node."""
        owner = group[np.repeat(np.arange(self.node_count), np.diff(self.starts))]
        order = np.argsort(owner, kind="stable")
        starts = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=group_count))]).astype(np.int64)
        ridge = np.zeros(group_count)
        np.add.at(ridge, group, self.ridge)
        return ModuleLosses(self.loss, self.X[order], self.y[order], starts, self.scale[order], ridge)


@dataclass(frozen=True, eq=False)
class ModuleModels:
    """One parameter vector per node for the same module. A node whose parameters are NaN has no model."""

    w: Floats  # (nodes, parameters)
    loss: TorchLoss

    def __getitem__(self, node: int) -> Any:
        """The module of a node, by its number: a copy, in 64 bits."""
        module = copy.deepcopy(self.loss.flat.module)
        _torch().nn.utils.vector_to_parameters(_torch().tensor(self.w[node]), module.parameters())
        return module

    def outputs(self, X: Any, node: Any) -> Floats:
        """What the module of its node says of every row, (rows, outputs); NaN where the node has no model."""
        torch, X, node = _torch(), np.asarray(X, dtype=np.float64), np.asarray(node, dtype=np.int64)
        order = np.argsort(node, kind="stable")
        nodes, sizes = np.unique(node, return_counts=True)
        starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        rows, counted = padded(starts, np.arange(len(nodes)))
        with torch.no_grad():
            said = self.loss.flat.each(torch.tensor(self.w[nodes]), torch.tensor(X[order][rows])).numpy()
        out = np.empty((len(X), said.shape[-1]))
        out[order] = said[counted]
        return out

    def predict(self, X: Any, node: Any) -> Floats:
        """What the model of its node answers to every row; NaN where the node has no model."""
        said = self.outputs(X, node)
        return np.where(np.isnan(said[:, 0]), np.nan, self.loss.scoring.answer(said))

    def predict_proba(self, X: Any, node: Any) -> Floats:
        """The probability of every class, shape (rows, classes)."""
        return self.loss.scoring.probability(self.outputs(X, node))

    def error(self, X: Any, y: Any, node: Any) -> Floats:
        """Squared error of every row, or 1 for a wrong class; NaN where the node has no model."""
        answer = self.predict(X, node)
        return np.where(np.isnan(answer), np.nan, self.loss.scoring.error(answer, np.asarray(y)))


class Scoring(ABC):
    """What predictions and labels are."""

    @abstractmethod
    def check(self, outputs: int, y: Floats) -> None:
        """Refuse labels that a module with so many outputs cannot predict."""

    @abstractmethod
    def rows(self, said: Any, y: Any) -> Any:
        """ℓ of every row, for tensors (nodes, rows, outputs) and (nodes, rows)."""

    @abstractmethod
    def answer(self, said: Floats) -> Floats:
        """The prediction for every row of (rows, outputs)."""

    def probability(self, said: Floats) -> Floats:
        """The probabilities of the classes."""
        raise InputError(
            "Expected a module scored by cross-entropy for probabilities, got squared errors: use predict."
        )

    @abstractmethod
    def error(self, answer: Floats, y: Floats) -> Floats:
        """The error that a user looks at."""


class Numbers(Scoring):
    """A number is predicted, and scored by the squared error without the factor ½."""

    def check(self, outputs: int, y: Floats) -> None:
        """One output."""
        if outputs != 1:
            raise InputError(f"Expected a module with one output for squared errors, got {outputs}.")

    def rows(self, said: Any, y: Any) -> Any:
        """(h − y)²."""
        return (said[..., 0] - y) ** 2

    def answer(self, said: Floats) -> Floats:
        """The output itself."""
        return said[:, 0]

    def error(self, answer: Floats, y: Floats) -> Floats:
        """Squared."""
        return (answer - y) ** 2


class Classes(Scoring):
    """One of the classes 0, 1, ... is predicted, and scored by the cross-entropy."""

    def check(self, outputs: int, y: Floats) -> None:
        """Labels 0, 1, ... outputs − 1."""
        bad = ~np.isin(y, np.arange(outputs))
        if outputs < 2 or bad.any():
            got = f"a label {y[bad][0]:g}" if bad.any() else "one output: give it one for either class"
            raise InputError(
                f"Expected labels 0, 1, ... and an output for each of them, got {outputs} outputs and {got}."
            )

    def rows(self, said: Any, y: Any) -> Any:
        """−log softmax(h)_y."""
        return said.logsumexp(dim=-1) - said.gather(-1, y.long()[..., None])[..., 0]

    def answer(self, said: Floats) -> Floats:
        """The most probable class."""
        return np.asarray(said.argmax(axis=1).astype(np.float64))

    def probability(self, said: Floats) -> Floats:
        """softmax(h)."""
        power = np.exp(said - said.max(axis=1, keepdims=True))
        return np.asarray(power / power.sum(axis=1, keepdims=True))

    def error(self, answer: Floats, y: Floats) -> Floats:
        """1 for a wrong class."""
        return np.asarray((answer != y).astype(np.float64))


SCORINGS: dict[str, Scoring] = {"squared": Numbers(), "cross-entropy": Classes()}


def padded(starts: Ints, nodes: Ints) -> tuple[Ints, Bools]:
    """Row numbers of some nodes that have rows, (nodes, most rows), and which of them count; others repeat the first.

    >>> padded(np.array([0, 1, 3]), np.array([0, 1]))
    (array([[0, 0], [1, 2]]), array([[ True, False], [ True,  True]]))
    """
    first, size = starts[nodes, None], (starts[nodes + 1] - starts[nodes])[:, None]
    place = np.arange(size.max())
    return np.where(place < size, first + place, first), place < size


def _slope_of_half_square(w: Any) -> Any:
    return w.clone()


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise InputError('Expected torch for TorchLoss: install it with pip install "kinfolk[torch]".') from error
    return torch
