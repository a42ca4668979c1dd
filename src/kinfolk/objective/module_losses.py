"""The local losses of modules of torch, and the modules as models; ``TorchLoss`` defines how they are scored."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kinfolk.checks import InputError
from kinfolk.modules import layer
from kinfolk.network.data import rows_of, starts_of
from kinfolk.objective.node_loss import Batches, LocalLosses, Slopes
from kinfolk.typing import Bools, Floats, Ints

if TYPE_CHECKING:
    from kinfolk.modules.flat import FlatModule, Mode
    from kinfolk.modules.scored import ScoredModule
    from kinfolk.modules.stacks import Stack
    from kinfolk.objective.torch_loss import TorchLoss

PROBES = 8  # random directions along which curvature is measured
PROBE_LENGTH = 1e-3
MOST_FILLED = 1.5  # rows of steps that all nodes make at once, those that fill up included, for each that counts
NO_ROWS = np.empty(0, dtype=np.int64)


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

    def gauss_newton(self, w: Floats) -> Callable[[Floats], Floats]:
        """Products with Σ Jᵀ ℓ″ J, J the derivative of the outputs; zero for buffers.

        Outputs are computed once for all products, unless rows are too many to keep them.
        """
        made = [self._turned(w, rows) for rows in self._rows("evaluation")] if self._is_one_stack else None
        tensor = self.scored.flat.tensor

        def product(v: Floats) -> Floats:
            out = self.ridge[:, None] * self._penalised * v
            for nodes, turned in made or (self._turned(w, rows) for rows in self._rows("evaluation")):
                out[nodes, : self.trained] += _numbers(turned(tensor(v[nodes, : self.trained])))
            return out

        return product

    def _turned(self, w: Floats, rows: Rows) -> tuple[Ints, Callable[[Any], Any]]:
        """The nodes of a stack, and products with their matrices."""
        return rows.nodes, self.scored.gauss_newton(self._of(w, rows), rows.X, rows.y, rows.weight)

    @property
    def _is_one_stack(self) -> bool:
        return len(self.scored.stacks(self.starts, "evaluation")) <= 1

    def training_slopes(self, w: Floats, keys: Any = None) -> Slopes:
        """∇L_i(w_i) as in training, and w with the buffers that the forward pass leaves.

        Layers that draw are keyed by ``keys`` (nodes,), or off without them.
        """
        return self._slopes(w, "calm" if keys is None else "training", keys)

    def walks(self, rows: int, filled: float) -> bool:
        """Whether nodes make all steps of a round in one go, on so many rows in a step."""
        if self.scored.walks_alone(rows):
            return True
        return filled <= MOST_FILLED and self.scored.walks_together(rows * self.node_count)

    def walked(self, w: Floats, batches: Batches, rows: int, lengths: Floats) -> Floats:
        """Where steps of plain descent on F_i lead from w: one node after another, or all nodes step by step."""
        ridge, out, nodes = self.ridge / np.maximum(self.share, 1.0), w.copy(), np.flatnonzero(self.has_data)
        X, y = self.scored.flat.tensor(self.X), self.scored.flat.tensor(self.y)
        taken = [batches.of_node(node) for node in nodes.tolist()]
        if self.scored.walks_alone(rows):
            for node, steps in zip(nodes.tolist(), taken, strict=True):
                own = [(X[each], y[each]) for each in steps]
                out[node] = self.scored.walked(w[node], float(ridge[node]), own, lengths[: len(own)].tolist())
            return out
        together = (self._step_of_all(X, y, nodes, step) for step in zip_longest(*taken, fillvalue=NO_ROWS))
        out[nodes] = self.scored.walked_together(w[nodes], ridge[nodes], together, lengths.tolist())
        return out

    def _step_of_all(self, X: Any, y: Any, nodes: Ints, step: Sequence[Ints]) -> tuple[Any, Any, Any]:
        """Rows of all nodes and their weights; the first row of a node fills up, with weight zero."""
        sizes = np.array([len(rows) for rows in step])
        counted = np.arange(sizes.max()) < sizes[:, None]
        places = np.where(counted, 0, self.starts[nodes, None])
        places[counted] = np.concatenate(step)
        return X[places], y[places], self.scored.flat.tensor(counted / np.maximum(sizes, 1)[:, None])

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
        """The outputs of its node's module for every row, (rows, outputs); NaN where the node has no model."""
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
                outputs = _numbers(scored.outputs(w, rows))
                parts.append((order[stack.rows[stack.counted]], outputs.reshape(*stack.rows.shape, -1)[stack.counted]))
        out = np.empty((len(X), parts[0][1].shape[-1] if parts else 1))
        for rows, outputs in parts:
            out[rows] = outputs
        return out

    def predict(self, X: Any, node: Any) -> Floats:
        """The prediction of its node's model for every row: (rows,), or (rows, outputs); NaN without a model."""
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
