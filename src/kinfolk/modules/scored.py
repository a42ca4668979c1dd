"""A flat module and a loss of rows: values and slopes of many nodes, computed at once where that changes nothing.

Whether it does is tried on some rows, once for every mode: a module may look at several rows at once (batch
normalisation), draw (dropout), or do something that torch cannot map over nodes. Nodes with much work in a step descend
one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch.func import vmap

from kinfolk.checks import InputError, first_line
from kinfolk.modules.flat import FlatModule, Mode, drawing_from
from kinfolk.modules.row_losses import RowLoss
from kinfolk.modules.stacked import MappedModule, ModuleOfNodes, StackedModule
from kinfolk.modules.stacks import MOST_NUMBERS, Stack, stacks
from kinfolk.typing import Floats, Ints

TRIAL_ROWS = 4
MUCH = 300_000  # numbers that a node keeps in a step, from which on one computation for all nodes gains nothing

Batching = Literal["auto", "always", "never"]


class Traits(NamedTuple):
    """What a trial has shown."""

    by_row: bool  # the output for a row depends on no other, and no buffer on all of them
    renews: bool  # a forward pass changes buffers
    why_apart: str | None  # why nodes cannot be mapped over; None: they can
    draws: bool  # the output is random


class StackSlopes(NamedTuple):
    """Gradients, and the buffers after the forward pass, one row for every node of a stack."""

    gradient: Any  # (nodes, trained)
    buffers: Any


@dataclass(frozen=True, eq=False)
class ScoredModule:
    """A module that is scored on rows, Σ_r weight_r ℓ(h(x_r; w), y_r) at every node.

    ``X`` and ``y`` are rows to try it on, with labels that it can predict.
    """

    flat: FlatModule
    loss: RowLoss
    X: Floats
    y: Floats
    batching: Batching = "auto"  # whether slopes of nodes are one computation, or one for every node

    def stacks(self, starts: Ints, mode: Mode) -> list[Stack]:
        """Rows of nodes, as much at once as fits into memory."""
        return list(stacks(starts, self.most_rows, by_row=self.traits(mode).by_row))

    @cached_property
    def most_rows(self) -> int:
        """How many rows may be computed at once."""
        return max(1, MOST_NUMBERS // self._numbers_of_a_row)

    @cached_property
    def _numbers_of_a_row(self) -> int:
        return self.flat.numbers_of_a_row(self.flat.tensor(self.X))

    @cached_property
    def _memory(self) -> dict[str, Any]:
        """What trials have shown."""
        return {}

    # ------------------------------------------------------------------ values and slopes of a stack, as tensors

    def values(self, w: Any, X: Any, y: Any, weight: Any) -> Any:
        """(nodes,) in evaluation."""
        return self._scores("evaluation", None, *self._parts(w), X, y, weight)[0]

    def slopes(self, w: Any, X: Any, y: Any, weight: Any, mode: Mode, seeds: Any = None) -> StackSlopes:
        """Gradients; in training also the buffers that the forward pass leaves."""
        trained, buffers = self._parts(w)
        trained = trained.detach().requires_grad_()
        value, renewed = self._scores(mode, seeds, trained, buffers, X, y, weight)
        (gradient,) = torch.autograd.grad(value.sum(), trained)
        return StackSlopes(gradient, renewed.detach())

    def walks_alone(self, rows: int) -> bool:
        """Whether steps of descent on so many rows are made node by node: one large computation is not quicker then."""
        traits = self.traits("training")
        if traits.draws or (self.batching == "always" and traits.why_apart is None):
            return False
        much = rows * self._numbers_of_a_row >= MUCH
        return traits.why_apart is not None or self.batching == "never" or much

    def walked(self, w: Floats, ridge: float, batches: Sequence[tuple[Any, Any]], lengths: Sequence[float]) -> Floats:
        """Where plain descent on batches (X, y) leads a node from w (size,): a step of its length on each."""
        module, trained = self.flat.resident(w)
        for (X, y), length in zip(batches, lengths, strict=True):
            value = self.loss.of_rows(module(*self.flat.arguments(X)), y).mean()
            slopes = torch.autograd.grad(value, trained, allow_unused=True, materialize_grads=True)
            with torch.no_grad():
                for part, slope in zip(trained, slopes, strict=True):
                    decayed = slope.add(part, alpha=ridge) if ridge and part.ndim > 1 else slope
                    part.sub_(decayed, alpha=length)
        return self.flat.vector_of(module)

    def walks_together(self, rows: int) -> bool:
        """Whether nodes whose steps have so many rows can make them at once, with rows that only fill up."""
        traits = self.traits("training")
        return traits.why_apart is None and traits.by_row and rows <= self.most_rows

    def walked_together(
        self, w: Floats, ridge: Floats, batches: Iterable[tuple[Any, Any, Any]], lengths: Iterable[float]
    ) -> Floats:
        """Where plain descent leads nodes from w (nodes, size): steps on (X, y, weight), each (nodes, rows, ...).

        The parameters stay tensors for all steps: to cut them from vectors for every step costs as much as the step.
        """
        return self._walked_with(self._of_nodes, w, ridge, batches, lengths)

    def _walked_with(
        self, module: ModuleOfNodes, w: Floats, ridge: Floats, batches: Iterable[Any], lengths: Iterable[float]
    ) -> Floats:
        trained = module.load(w)
        decay = self.flat.tensor(ridge) if ridge.any() else None
        for (X, y, weight), length in zip(batches, lengths, strict=True):
            value = module.score(self.loss, X, y, weight)
            slopes = torch.autograd.grad(value, trained, allow_unused=True, materialize_grads=True)
            with torch.no_grad():
                for part, slope in zip(trained, slopes, strict=True):
                    if decay is not None and part.ndim > 2:
                        working = decay * (weight.sum(dim=1) > 0)
                        slope = slope + working.view(-1, *[1] * (part.ndim - 1)) * part
                    part.sub_(slope, alpha=length)
        return module.vectors()

    @cached_property
    def _of_nodes(self) -> ModuleOfNodes:
        """The module of all nodes: with stacked layers if they lead to the same place, tried with one step."""
        mapped, stacked = MappedModule(self.flat), StackedModule.of(self.flat)
        if stacked is None:
            return mapped
        w, ridge = np.stack([self.flat.start, self._moved_start]), np.zeros(2)
        X, y = (self.flat.tensor(np.stack([values, values[::-1]])) for values in (self.X, self.y))
        step = [(X, y, torch.ones_like(X[..., 0]))]
        try:
            one, other = (self._walked_with(module, w, ridge, step, [1.0]) - w for module in (stacked, mapped))
        except Exception:  # whatever a user's module raises
            return mapped
        return stacked if _close(self.flat.tensor(one), self.flat.tensor(other)) else mapped

    def hessian_product(self, w: Any, v: Any, X: Any, y: Any, weight: Any) -> Any:
        """∇² times v, (nodes, trained), in evaluation."""
        trained, buffers = self._parts(w)
        trained = trained.detach().requires_grad_()
        value, _ = self._scores("evaluation", None, trained, buffers, X, y, weight)
        (gradient,) = torch.autograd.grad(value.sum(), trained, create_graph=True)
        if not gradient.requires_grad:  # a loss that is linear in the parameters
            return torch.zeros_like(trained)
        (product,) = torch.autograd.grad((gradient * v).sum(), trained, allow_unused=True)
        return torch.zeros_like(trained) if product is None else product

    def gauss_newton(self, w: Any, X: Any, y: Any, weight: Any) -> Callable[[Any], Any]:
        """Products with Jᵀ ℓ″ J, (nodes, trained), in evaluation: J v by differentiating Jᵀu, which is linear in u."""
        trained, buffers = self._parts(w)
        trained = trained.detach().requires_grad_()
        outputs = self.outputs(torch.cat([trained, buffers], dim=1), X)
        u = torch.zeros_like(outputs, requires_grad=True)
        (pulled,) = torch.autograd.grad((outputs * u).sum(), trained, create_graph=True)  # Jᵀu
        known = outputs.detach().requires_grad_()
        (slope,) = torch.autograd.grad(self._row_values(known, y, weight).sum(), known, create_graph=True)

        def product(v: Any) -> Any:
            if not slope.requires_grad:  # a loss that is linear in the outputs
                return torch.zeros_like(v)
            (turned,) = torch.autograd.grad((pulled * v).sum(), u, retain_graph=True)  # J v
            (bent,) = torch.autograd.grad((slope * turned).sum(), known, retain_graph=True)  # ℓ″ J v
            (out,) = torch.autograd.grad((outputs * bent).sum(), trained, retain_graph=True)
            return out

        return product

    def _row_values(self, outputs: Any, y: Any, weight: Any) -> Any:
        """(nodes, rows) weighted losses of known outputs."""
        return self._map(
            lambda output, label, each: each * self.loss.of_rows(output, label), "evaluation", None, outputs, y, weight
        )

    def _parts(self, w: Any) -> tuple[Any, Any]:
        """What is trained, and the buffers."""
        return w[:, : self.flat.trained], w[:, self.flat.trained :]

    def outputs(self, w: Any, X: Any) -> Any:
        """(nodes, rows, outputs) in evaluation."""
        return self._map(self.flat.outputs, "evaluation", None, w, X)

    def _scores(self, mode: Mode, seeds: Any, *tensors: Any) -> tuple[Any, Any]:
        """Values and buffers of all nodes."""
        values: tuple[Any, Any] = self._map(partial(self._score, mode), mode, seeds, *tensors)
        return values

    def _score(self, mode: Mode, trained: Any, buffers: Any, X: Any, y: Any, weight: Any) -> tuple[Any, Any]:
        """Value and buffers of one node; without labels the sum of its outputs."""
        if self.flat.has_buffers:
            outputs, buffers = self.flat.outputs_and_buffers(trained, buffers, X, mode)
        else:
            outputs = self.flat.outputs(trained, X, mode)
        return (weight * self.loss.of_rows(outputs, y)).sum() if len(self.y) else outputs.sum(), buffers

    def _map(self, function: Callable[..., Any], mode: Mode, seeds: Any, *tensors: Any) -> Any:
        """A function of one node, for all of them; without seeds every node and step draws the same."""
        if self.traits(mode).why_apart is None:
            return vmap(function)(*tensors)
        return self._one_by_one(function, seeds, *tensors)

    def _one_by_one(self, function: Callable[..., Any], seeds: Any, *tensors: Any) -> Any:
        parts = []
        for k in range(len(tensors[0])):
            with drawing_from(0 if seeds is None else int(seeds[k]) % 2**63):
                parts.append(function(*(tensor[k] for tensor in tensors)))
        if isinstance(parts[0], tuple):
            return tuple(torch.stack(each) for each in zip(*parts, strict=True))
        return torch.stack(parts)

    # ------------------------------------------------------------------ trials

    def traits(self, mode: Mode) -> Traits:
        """Whether rows are treated one by one, and nodes can be computed at once; tried once for every mode."""
        if mode not in self._memory:
            why, renews = self._why_apart(mode), self._renews(mode)
            draws = self._draws(mode)
            by_row = not draws and not renews and self._is_by_row(mode)  # filling up would change what is drawn
            self._memory[mode] = Traits(by_row, renews, why, draws)
        out: Traits = self._memory[mode]
        return out

    def check_output(self, owner: str) -> int:
        """Refuse a module that cannot read the rows, or a loss that has no value for each; the number of outputs."""
        if "outputs" not in self._memory:
            self._memory["outputs"] = self._checked_output(owner)
        out: int = self._memory["outputs"]
        return out

    def _checked_output(self, owner: str) -> int:
        X, y = self.flat.tensor(self.X), self.flat.tensor(self.y)
        try:
            with torch.no_grad(), drawing_from(0):
                outputs = self.flat.outputs(self.flat.tensor(self.flat.start), X)
        except Exception as error:  # whatever a user's module raises
            raise InputError(
                f"Expected a module that reads rows of {self.X.shape[1]} features in {owner}, got one that does not: "
                f"{first_line(error)}"
            ) from error
        if not torch.is_tensor(outputs) or outputs.ndim not in (1, 2) or len(outputs) != len(X):
            got = f"shape {tuple(outputs.shape)}" if torch.is_tensor(outputs) else f"a {type(outputs).__name__}"
            raise InputError(
                f"Expected a module that maps (rows, features) to (rows, outputs), got {got} for {len(X)} rows: add a "
                "layer such as torch.nn.Flatten(), or return the prediction alone."
            )
        count = 1 if outputs.ndim == 1 else int(outputs.shape[1])
        self.loss.check(count, self.y, owner)
        self._check_loss(outputs, y, owner)
        return count

    def _check_loss(self, outputs: Any, y: Any, owner: str) -> None:
        try:
            with torch.no_grad():
                lost = self.loss.of_rows(outputs, y)
        except Exception as error:
            raise InputError(
                f"Expected a loss of outputs {tuple(outputs.shape)} and labels {tuple(y.shape)} in {owner}, got: "
                f"{first_line(error)}"
            ) from error
        if tuple(lost.shape) != (len(y),):
            raise InputError(
                f"Expected a loss with one value for each of {len(y)} rows, got shape {tuple(lost.shape)}."
            )

    def check_rows(self, X: Floats, owner: str) -> None:
        """Refuse rows that the module cannot read: mapped over nodes, an index out of range is not noticed."""
        w = self.flat.tensor(self.flat.start)
        try:
            with torch.no_grad():
                for first in range(0, len(X), self.most_rows):
                    self.flat.outputs(w, self.flat.tensor(X[first : first + self.most_rows]))
        except Exception as error:  # whatever a user's module raises
            raise InputError(
                f"Expected rows that the module of {owner} can read, got some that it cannot: {first_line(error)}."
            ) from error

    @cached_property
    def looks_up(self) -> bool:
        """Whether the module looks up rows of a table by numbers among the features."""
        return any(
            isinstance(part, torch.nn.Embedding | torch.nn.EmbeddingBag) for part in self.flat.template.modules()
        )

    def check_training(self, rows: int, owner: str) -> None:
        """Refuse a module that cannot be trained on so few rows, as batch normalisation cannot on one."""
        if rows in self._memory.setdefault("trained on", set()):
            return
        X, y = (self.flat.tensor(np.resize(values, (rows, *values.shape[1:]))) for values in (self.X, self.y))
        w = self.flat.tensor(self.flat.start)[None]
        try:
            with drawing_from(0):
                self.slopes(w, X[None], y[None], torch.ones_like(X[None, :, 0]), "training")
        except Exception as error:
            raise InputError(
                f"Expected a module that can be trained on {rows} row{'s' if rows > 1 else ''} in {owner}, as a step "
                f"at the smallest node is, got: {first_line(error)}"
            ) from error
        self._memory["trained on"].add(rows)

    def _is_by_row(self, mode: Mode) -> bool:
        """Whether the loss of a row depends on no other, at parameters where nothing is zero by chance."""
        X, first = np.unique(self.X, axis=0, return_index=True)
        if len(X) < 2:
            return False
        rows = self.flat.tensor(X)
        labels = self.flat.tensor(self.y[first]) if len(self.y) else None
        whole, part = self._row_scores(rows, labels, mode), self._row_scores(rows[:-1], labels, mode)
        return _close(whole[: len(part)], part)

    def _row_scores(self, X: Any, y: Any, mode: Mode) -> Any:
        outputs, _ = self._tried(X, mode)
        return outputs if y is None else self.loss.of_rows(outputs, y[: len(X)])

    def _draws(self, mode: Mode) -> bool:
        one, other = (self._tried(self._rows_to_try, mode, seed)[0] for seed in (0, 1))
        return not torch.equal(one, other)

    def _renews(self, mode: Mode) -> bool:
        if mode == "evaluation" or not self.flat.has_buffers:
            return False
        before = self.flat.tensor(self._moved_start)[self.flat.trained :]
        return not torch.equal(before, self._tried(self._rows_to_try, mode)[1])

    @property
    def _moved_start(self) -> Floats:
        """Parameters near the start of which none is zero; the buffers are those of the start."""
        noise = np.random.default_rng(0).normal(size=self.flat.trained)
        out = self.flat.start.copy()
        out[: self.flat.trained] += 0.1 * noise
        return out

    @property
    def _rows_to_try(self) -> Any:
        return self.flat.tensor(np.resize(self.X, (max(TRIAL_ROWS, len(self.X)), self.X.shape[1])))

    def _tried(self, X: Any, mode: Mode, seed: int = 0) -> tuple[Any, Any]:
        """Output and buffers of the module, near where it starts."""
        start = self.flat.tensor(self._moved_start)
        with torch.no_grad(), drawing_from(seed):
            return self.flat.outputs_and_buffers(start[: self.flat.trained], start[self.flat.trained :], X, mode)

    def _why_apart(self, mode: Mode) -> str | None:
        """Why torch cannot map the module over nodes; None if it can."""
        X, y = (self.flat.tensor(np.stack([values, values[::-1]])) for values in (self.X, self.y))
        trained, buffers = self._parts(self.flat.tensor(np.stack([self.flat.start, self._moved_start])))
        tensors = trained.detach().requires_grad_(), buffers, X, y, torch.ones_like(X[..., 0])
        score = partial(self._score, mode)
        try:
            with drawing_from(0), torch.enable_grad():
                together = vmap(score)(*tensors)
                together[0].sum().backward()
                apart = self._one_by_one(score, None, *tensors)
        except Exception as error:  # whatever vmap cannot map
            return first_line(error)
        same = all(_close(one, other) for one, other in zip(together, apart, strict=True))
        return None if same else "it gives other values for several nodes at once"


def _close(one: Any, other: Any) -> bool:
    """Whether two tensors are equal up to rounding, beside the size of what is in them."""
    tolerance = 1e-9 if one.dtype == torch.float64 else 1e-4
    size = float(other.detach().abs().max()) if other.numel() else 0.0
    return bool(torch.allclose(one, other, rtol=tolerance, atol=tolerance * size, equal_nan=True))
