"""A module of torch at every node, all of one shape: its numbers are one vector per node, scored by a ``TorchLoss``.

    L_i(w) = c_i Σ_r ℓ(h(x_r; w), y_r) + (ridge / 2) ‖w without biases‖²,    c_i = 1 (sum) or 1 / m_i (mean)

with h the module. The vector w has the parameters that are trained, then the floating buffers, such as the running
statistics of batch normalisation; frozen parameters stay in the module. L_i and its gradient are those of the module in
evaluation; local work (``training_slopes``) runs in training: layers draw, and statistics are renewed. A prox and a
minimiser are looked for in training, too, with layers that draw switched off.

L_i is as a rule not convex: there is no certificate, a prox is a few steps of an optimiser, and where a run ends
depends on where it starts. All nodes start with the parameters that the module has, since parameters of different nodes
can only be compared if their hidden units mean the same.

torch is imported when it is first needed: ``pip install "kinfolk[torch]"``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np

from kinfolk.checks import AtLeast, InputError, Positive
from kinfolk.modules import layer
from kinfolk.network.data import Data, rows_of, starts_of
from kinfolk.objective.node_loss import LocalLosses, NodeLoss, Slopes
from kinfolk.typing import Bools, Floats, Ints

if TYPE_CHECKING:
    from kinfolk.modules.flat import FlatModule, Mode
    from kinfolk.modules.row_losses import RowLoss
    from kinfolk.modules.scored import ScoredModule
    from kinfolk.modules.stacks import Stack

PROBES = 8  # random directions along which curvature is measured
PROBE_LENGTH = 1e-3
TRIED_ROWS = 8  # of the data, on which a module is tried


@dataclass(frozen=True)
class TorchLoss(NodeLoss):
    """How a module of torch is scored at a node, and how its parameters are looked for.

    Parameters
    ----------
    module : torch.nn.Module
        Maps rows of features to predictions, (rows, features) to (rows,) or (rows, outputs). It is never changed; its
        present parameters are where all nodes start. Parameters that need no gradient are frozen. Lazy layers learn
        their sizes from the data; what they draw is the same in every process.
    loss : str or callable
        ``"squared"`` for ℓ = Σ (h − y)² over the outputs; ``"cross-entropy"`` or ``"squared probabilities"`` for
        labels 0, 1, ... and an output, a logit, for each of them; or a function of (prediction, label) that gives one
        value for every row, for numbers unless its attribute ``classifies`` is true. A module with one output is
        scored on predictions of shape (rows,) where labels have that shape.
    reduction, ridge
        As for linear models; biases (parameters with one axis) are not penalised.
    optimiser : str, class or partial
        The name of a class in ``torch.optim``, such a class, or what makes one: ``partial(SGD, momentum=0.9)``. It must
        treat every number by itself: not LBFGS. A prox starts a new one, so Adam, whose first steps are as long
        whatever the slope, keeps trembling; SGD settles. Algorithms with local work, such as ``FedAvg``, take it, and
        ``step_size``, unless they are given their own.
    step_size : float
        Its ``lr``.
    steps : int
        Of the optimiser, in every prox.
    minimise_steps : int
        Of the optimiser, where a node learns alone to the end.
    side : int
        How many of the last features the module takes as a second argument: ``module(x, extra)``.
    precision : {"float64", "float32"}
        Of the computation. Parameters are kept and sent in 64 bits.
    device : str
        Where torch computes.

    >>> import torch
    >>> from kinfolk import GTVMin, Network, fit, graphs
    >>> network = Network(graphs.chain(2), [([[0.0], [1.0]], [1.0, 3.0]), None])
    >>> loss = TorchLoss(torch.nn.Linear(1, 1), step_size=0.3)
    >>> fit(network, GTVMin(loss, lam=1.0)).predict([[2.0], [2.0]], node=[0, 1]).round(3).tolist()
    [5.0, 5.0]
    """

    module: Any
    loss: Any = "squared"
    reduction: Literal["mean", "sum"] = "mean"
    ridge: Annotated[float, AtLeast(0)] = 0.0
    optimiser: Any = "SGD"
    step_size: Annotated[float, Positive()] = 0.05
    steps: Annotated[int, AtLeast(1)] = 20
    minimise_steps: Annotated[int, AtLeast(1)] = 1_000
    side: Annotated[int, AtLeast(0)] = 0
    precision: Literal["float64", "float32"] = "float64"
    device: str = "cpu"

    convex: ClassVar[bool] = False
    most_curvature: ClassVar[float] = np.inf

    def flat(self, feature_count: int) -> FlatModule:
        """The module as it is now, with its parameters and buffers as one vector."""
        flat = layer("flat", "TorchLoss")
        key = (feature_count if self._is_lazy else 0, _version(self.module))  # a lazy one learns its sizes from rows
        if key not in self._flats:
            module = self._sized(feature_count) if self._is_lazy else self.module
            made = flat.FlatModule.of(module, self.precision, self.device, self.side)
            flat.check_momentum(module)
            self._flats[key] = made
        return self._flats[key]

    def __getstate__(self) -> dict[str, Any]:
        """The settings alone: what was tried on rows, and rows, stay here."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def _sized(self, feature_count: int) -> Any:
        flat = layer("flat", "TorchLoss")
        try:
            return flat.sized(self.module, flat.torch.zeros((2, feature_count)), self.side)
        except Exception as error:  # whatever a user's module raises
            raise InputError(
                f"Expected a module that reads rows of {feature_count} features, got one that does not: {error}"
            ) from error

    @cached_property
    def _is_lazy(self) -> bool:
        out: bool = layer("flat", "TorchLoss").is_lazy(self.module)
        return out

    @cached_property
    def _flats(self) -> dict[Any, FlatModule]:
        return {}

    @property
    def row_loss(self) -> RowLoss:
        """The loss of rows."""
        out: RowLoss = layer("row_losses", "TorchLoss").row_loss(self.loss, "TorchLoss")
        return out

    def width(self, feature_count: int) -> int:
        """Length of the vector of a node: trained parameters and floating buffers."""
        return self.flat(feature_count).size

    def trained(self, feature_count: int) -> int:
        """How many numbers of it are trained; buffers follow them."""
        return self.flat(feature_count).trained

    def start(self, feature_count: int) -> Floats:
        """The parameters and buffers that the module has."""
        return self.flat(feature_count).start.copy()

    def bind(self, data: Data) -> ModuleLosses:
        """The local losses L_i for the data of some nodes."""
        scale = np.ones(len(data.y)) if self.reduction == "sum" else 1.0 / data.sizes[data.owner]
        ridge = np.where(data.sizes > 0, self.ridge, 0.0)
        return ModuleLosses(self, self._scored_on(data), data.X, data.y, data.starts, scale, ridge)

    def _scored_on(self, data: Data) -> ScoredModule:
        return self.scored(self.flat(data.feature_count), data.X, data.y)

    def scored(self, flat: FlatModule, X: Floats, y: Floats | None) -> ScoredModule:
        """The module and its loss; tried on the first rows that it sees, once for every kind of labels."""
        key = id(flat), None if y is None else y.shape[1:]
        if key not in self._scored:
            tried = np.unique(np.linspace(0, max(len(X) - 1, 0), TRIED_ROWS).astype(np.int64))
            rows = X[tried] if len(X) else np.zeros((1, X.shape[1]))
            labels = np.zeros((0, 0)) if y is None or not len(y) else y[tried]
            made: ScoredModule = layer("scored", "TorchLoss").ScoredModule(flat, self.row_loss, rows, labels)
            if y is not None and not len(y):
                return made
            self._scored[key] = made
        return self._scored[key]

    @cached_property
    def _scored(self) -> dict[Any, ScoredModule]:
        return {}

    def models(self, w: Floats) -> ModuleModels:
        """The modules with vectors w (nodes, size)."""
        known = [self.flat(0)] if not self._is_lazy else [*self._flats.values()][::-1]
        for flat in known:
            if flat.size == w.shape[1]:
                return ModuleModels(w, self, flat)
        raise InputError(f"Expected vectors of the module's size, got {w.shape[1]} numbers: a lazy one must see data.")

    def check_data(self, data: Data) -> None:
        """Refuse an optimiser that is none, features that the module cannot read, and labels that it cannot predict."""
        self._check_optimiser()
        if not len(data.y):
            return
        if self.side >= data.feature_count:
            raise InputError(f"Expected fewer than {data.feature_count} features on the side, got side={self.side}.")
        scored = self._scored_on(data)
        self.row_loss.check(scored.check_output("TorchLoss"), data.y, "TorchLoss")
        scored.check_rows(data.X, "TorchLoss")

    def check_training(self, data: Data, rows: int) -> None:
        """Refuse rows so few that the module cannot be trained on them."""
        self._scored_on(data).check_training(rows, "TorchLoss")

    def descended(self, slopes: Callable[[Floats], Slopes], start: Floats, steps: int, trained: int) -> Floats:
        """Where some steps of a new optimiser lead from ``start`` (nodes, size), down a slope at every node."""
        descent = layer("optimisers", "TorchLoss").Descent(self._make, start[:, :trained], self.step_size)
        w = start
        for _ in range(steps):
            gradient, renewed = slopes(w)
            descent.step(gradient[:, :trained])
            moved: Floats = descent.w
            w = moved if trained == w.shape[1] else np.concatenate([moved, renewed[:, trained:]], axis=1)
        return w

    @property
    def own_step_size(self) -> float:
        """For algorithms with local work that are not given one."""
        return self.step_size

    @property
    def own_optimiser(self) -> Any:
        """For algorithms with local work that are not given one."""
        return self.optimiser

    def _check_optimiser(self) -> None:
        """Refuse an optimiser that moves a node by what it sees of another."""
        layer("optimisers", "TorchLoss").check_by_element(self._make, self.optimiser, self.step_size)

    @property
    def _make(self) -> Any:
        return layer("optimisers", "TorchLoss").optimiser_class(self.optimiser, "TorchLoss")

    def redrawn(self, rng: np.random.Generator, feature_count: int) -> Floats:
        """Parameters drawn anew, each layer as it draws its own."""
        flat = self.flat(feature_count)
        drawn = flat.redrawn(int(rng.integers(2**62)))
        if np.array_equal(drawn, flat.start):
            raise InputError(
                "Expected layers that draw their parameters (reset_parameters) for Redrawn(), got none: start with "
                "Uniform(low, high), OneOf(values) or Given(centres)."
            )
        return drawn


class Rows(NamedTuple):
    """A stack of rows as tensors."""

    nodes: Ints
    X: Any  # (nodes, rows, features)
    y: Any  # (nodes, rows) or (nodes, rows, outputs)
    weight: Any  # (nodes, rows) c_i, and zero where a row only fills up

    @property
    def is_whole(self) -> bool:
        """Whether nothing was written to them: a module may overwrite its rows, as a ReLU in place does."""
        return all(tensor._version == 0 for tensor in (self.X, self.y, self.weight))


@dataclass(frozen=True, eq=False)
class ModuleLosses(LocalLosses):
    """The local losses L_i of some nodes, computed at once, as far as memory and the module allow."""

    loss: TorchLoss
    scored: ScoredModule
    X: Floats  # (rows, features)
    y: Floats  # (rows,) or (rows, outputs)
    starts: Ints  # (nodes + 1,)
    scale: Floats  # (rows,) c_i
    ridge: Floats  # (nodes,)

    @property
    def node_count(self) -> int:
        """Number of nodes."""
        return len(self.starts) - 1

    @property
    def width(self) -> int:
        """Length of the vector of a node."""
        return self.scored.flat.size

    @property
    def trained(self) -> int:
        """How many numbers of the vector are trained; buffers follow them."""
        return self.scored.flat.trained

    @property
    def renews_statistics(self) -> bool:
        """Whether a forward pass in training changes buffers, as that of batch normalisation does."""
        return self.scored.traits("calm").renews

    @cached_property
    def has_data(self) -> Bools:
        """Whether a node has samples."""
        return np.diff(self.starts) > 0

    @property
    def share(self) -> Floats:
        """q_i: the number of samples (sum), or whether there are any (mean)."""
        return self.sizes if self.loss.reduction == "sum" else self.has_data.astype(np.float64)

    @property
    def sizes(self) -> Floats:
        """Number of samples of every node."""
        return np.diff(self.starts).astype(np.float64)

    @property
    def start(self) -> Floats:
        """The parameters and buffers of the module, at every node."""
        return np.tile(self.scored.flat.start, (self.node_count, 1))

    # ------------------------------------------------------------------ value and derivatives

    def value(self, w: Floats) -> Floats:
        """L_i(w_i) of every node."""
        out: Floats = 0.5 * self.ridge * (self._penalised * w**2).sum(axis=1)
        with self._torch.no_grad():
            for rows in self._rows("evaluation"):
                out[rows.nodes] += _numbers(self.scored.values(self._of(w, rows), rows.X, rows.y, rows.weight))
        return out

    def gradient(self, w: Floats) -> Floats:
        """∇L_i(w_i); zero for buffers."""
        return self._slopes(w, "evaluation", None).gradient

    def hessian_product(self, w: Floats, v: Floats) -> Floats:
        """∇²L_i(w_i) v_i; zero for buffers."""
        out = self.ridge[:, None] * self._penalised * v
        for rows in self._rows("evaluation"):
            along = self._of(v, rows)[:, : self.trained]
            product = self.scored.hessian_product(self._of(w, rows), along, rows.X, rows.y, rows.weight)
            out[rows.nodes, : self.trained] += _numbers(product)
        return out

    def training_slopes(self, w: Floats, keys: Any = None) -> Slopes:
        """∇L_i(w_i) as in training, and w with the buffers that the forward pass leaves.

        Layers that draw are keyed by ``keys`` (nodes,), or off without them.
        """
        return self._slopes(w, "calm" if keys is None else "training", keys)

    def _slopes(self, w: Floats, mode: Mode, keys: Any) -> Slopes:
        renewed = w.copy() if mode != "evaluation" and self.trained < self.width else w
        out = None
        for rows in self._rows(mode):
            seeds = None if keys is None else keys[rows.nodes]
            slopes = self.scored.slopes(self._of(w, rows), rows.X, rows.y, rows.weight, mode, seeds)
            if renewed is not w:
                renewed[rows.nodes, self.trained :] = _numbers(slopes.buffers)
            if out is None and len(rows.nodes) == self.node_count and self.trained == self.width:  # all at once
                out = _numbers(slopes.gradient)
                continue
            out = np.zeros(w.shape) if out is None else out
            out[rows.nodes, : self.trained] += _numbers(slopes.gradient)
        out = np.zeros(w.shape) if out is None else out
        if self.ridge.any():
            out = out + self.ridge[:, None] * self._penalised * w
        return Slopes(out, renewed)

    @property
    def _penalised(self) -> Floats:
        return self.scored.flat.penalised

    @property
    def _torch(self) -> Any:
        return layer("flat", "TorchLoss").torch

    def _of(self, w: Floats, rows: Rows) -> Any:
        """The vectors of the nodes of a stack, as a tensor that is only read."""
        return self.scored.flat.shared(w if len(rows.nodes) == self.node_count else w[rows.nodes])

    def _rows(self, mode: Mode) -> Iterator[Rows]:
        """All rows in stacks. A single stack is kept, as every step needs it; several are too large to be kept."""
        by_row = self.scored.traits(mode).by_row
        kept = self._stacked.get(by_row)
        if kept is not None and kept.is_whole:
            yield kept
            return
        stacks = self.scored.stacks(self.starts, mode)
        for stack in stacks:
            rows = self._as_tensors(stack)
            if len(stacks) == 1:
                self._stacked[by_row] = rows
            yield rows

    def _as_tensors(self, stack: Stack) -> Rows:
        """Copies of the rows of a stack; quick where it holds all of them in their order, as that of a batch does."""
        tensor, shape = self.scored.flat.tensor, stack.rows.shape
        if stack.rows.size == len(self.X) and stack.counted.all() and (stack.nodes[1:] > stack.nodes[:-1]).all():
            whole = (tensor(values.reshape(*shape, *values.shape[1:])) for values in (self.X, self.y, self.scale))
            return Rows(stack.nodes, *whole)
        weight = self.scale[stack.rows] * stack.counted
        return Rows(stack.nodes, tensor(self.X[stack.rows]), tensor(self.y[stack.rows]), tensor(weight))

    @cached_property
    def _stacked(self) -> dict[bool, Rows]:
        return {}

    @cached_property
    def trace(self) -> Floats:
        """About tr ∇²L_i where all start: how far the gradient turns along random signs, in size."""
        signs = np.random.default_rng(0).choice([-1.0, 1.0], (PROBES, self.width)) * self.scored.flat.moves
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
        here = self.has_data
        part, anchor, pull = self._with_data, v[here], 1.0 / tau[here, None]
        shorter = 1.0 + self.loss.step_size * pull  # steps that suit L_i alone suit L_i with any pull

        def slopes(w: Floats) -> Slopes:  # in place: where models are large, new memory costs more than arithmetic
            gradient, renewed = part.training_slopes(w)
            away = w - anchor
            away *= pull
            gradient += away
            gradient /= shorter
            return Slopes(gradient, renewed)

        out, first = v.copy(), v if start is None else start
        if here.any():
            out[here] = self.loss.descended(slopes, first[here], self.loss.steps, self.trained)
        return out

    def prox_by_gradient(self, v: Floats, tau: Floats, accuracy: float, start: Floats) -> Floats:
        """Nothing can be promised where no bound on the curvature is known."""
        raise InputError("Expected a loss of bounded curvature for gradient steps, got TorchLoss.")

    def minimise(self) -> Floats:
        """Near a minimiser of every L_i, by ``minimise_steps`` of the optimiser; the start at nodes without data."""
        out, here = self.start, self.has_data
        if here.any():
            slopes, steps = self._with_data.training_slopes, self.loss.minimise_steps
            out[here] = self.loss.descended(slopes, out[here], steps, self.trained)
        return out

    @cached_property
    def _with_data(self) -> ModuleLosses:
        return self if self.has_data.all() else self.take(np.flatnonzero(self.has_data))

    # ------------------------------------------------------------------ parts and sums

    def take(self, nodes: Ints) -> ModuleLosses:
        """The local losses of some nodes."""
        rows = rows_of(self.starts, nodes)
        return self._on(rows, starts_of(self.starts, nodes), self.scale[rows], self.ridge[nodes])

    def means_on(self, rows: Ints, starts: Ints) -> ModuleLosses:
        """F_i = L_i / q_i on some of the rows."""
        sizes = np.diff(starts)
        ridge = np.where(sizes > 0, self.ridge / np.maximum(self.share, 1.0), 0.0)
        return self._on(rows, starts, 1.0 / np.repeat(sizes, sizes), ridge)

    def pool(self, group: Ints, group_count: int) -> ModuleLosses:
        """The sums of the local losses of each group, as if a group were one node."""
        owner = group[np.repeat(np.arange(self.node_count), np.diff(self.starts))]
        order = np.argsort(owner, kind="stable")
        starts = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=group_count))]).astype(np.int64)
        ridge = np.zeros(group_count)
        np.add.at(ridge, group, self.ridge)
        return self._on(order, starts, self.scale[order], ridge)

    def _on(self, rows: Ints, starts: Ints, scale: Floats, ridge: Floats) -> ModuleLosses:
        X, y = (np.take(values, rows, axis=0) for values in (self.X, self.y))  # quicker than indexing
        return replace(self, X=X, y=y, starts=starts, scale=scale, ridge=ridge)


@dataclass(frozen=True, eq=False)
class ModuleModels:
    """One vector per node for the same module. A node whose vector is NaN has no model."""

    w: Floats  # (nodes, size)
    loss: TorchLoss
    flat: FlatModule

    def __getitem__(self, node: int) -> Any:
        """The module of a node, by its number: a copy, in the precision of the loss."""
        return self.flat.module_of(self.w[node])

    def part(self, name: str) -> Floats:
        """A parameter or buffer of all nodes, by its name in the module: (nodes, ...)."""
        where, shape = self.flat.part(name)
        return self.w[:, where].reshape(len(self.w), *shape)

    def outputs(self, X: Any, node: Any) -> Floats:
        """What the module of its node says of every row, (rows, outputs); NaN where the node has no model."""
        X, node = np.asarray(X, dtype=np.float64), np.asarray(node, dtype=np.int64)
        order = np.argsort(node, kind="stable")
        nodes, sizes = np.unique(node, return_counts=True)
        starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        scored, parts = self.loss.scored(self.flat, X, None), []
        if scored.looks_up:
            scored.check_rows(X, "TorchLoss")
        with layer("flat", "TorchLoss").torch.no_grad():
            for stack in scored.stacks(starts, "evaluation"):
                w, rows = self.flat.tensor(self.w[nodes[stack.nodes]]), self.flat.tensor(X[order[stack.rows]])
                said = _numbers(scored.outputs(w, rows))
                parts.append((order[stack.rows[stack.counted]], said.reshape(*stack.rows.shape, -1)[stack.counted]))
        out = np.empty((len(X), parts[0][1].shape[-1] if parts else 1))
        for rows, said in parts:
            out[rows] = said
        return out

    def predict(self, X: Any, node: Any) -> Floats:
        """What the model of its node answers to every row: (rows,), or (rows, outputs); NaN without a model."""
        return self.loss.row_loss.answers(self.outputs(X, node))

    def predict_proba(self, X: Any, node: Any) -> Floats:
        """The probability of every class, shape (rows, classes)."""
        return self.loss.row_loss.probabilities(self.outputs(X, node))

    def error(self, X: Any, y: Any, node: Any) -> Floats:
        """Squared error of every row, or 1 for a wrong class; NaN where the node has no model."""
        return self.loss.row_loss.errors(self.outputs(X, node), np.asarray(y))


def _numbers(tensor: Any) -> Floats:
    """A tensor as an array of 64-bit numbers."""
    return np.asarray(tensor.detach().cpu().numpy(), dtype=np.float64)


def _version(module: Any) -> Any:
    """What changes when somebody trains or loads the module."""
    values = [*module.parameters(), *module.buffers()] if hasattr(module, "parameters") else []
    return tuple((id(value), value._version, value.requires_grad) for value in values)
