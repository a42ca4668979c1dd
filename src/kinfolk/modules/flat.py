"""A module of torch whose trained parameters and floating buffers are one vector.

The vector has the parameters that training moves, in the order of ``named_parameters``, then the floating buffers,
which a forward pass may renew: the running statistics of batch normalisation. Frozen parameters stay in the module, and
are neither moved nor sent.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch.func import functional_call

from kinfolk.checks import InputError, first_line
from kinfolk.typing import Floats

Mode = Literal["evaluation", "training", "calm"]  # calm: training, but layers known to draw are off
SIZING_SEED = 0  # of the parameters that lazy layers draw when they learn their sizes
DROPPING = (torch.nn.MultiheadAttention, torch.nn.RNNBase)  # have a share of dropout themselves
DRAWING = (torch.nn.modules.dropout._DropoutNd, torch.nn.RReLU, torch.nn.FractionalMaxPool2d)


@dataclass(frozen=True, eq=False)
class FlatModule:
    """A copy of a module; the one given is never changed, nor called."""

    template: Any  # never called: what a module keeps of a call cannot always be copied
    shapes: dict[str, tuple[int, ...]]  # of the parts of the vector, in its order
    trained: int  # how many numbers of the vector are trained; the others are buffers
    start: Floats  # (size,)
    side: int = 0  # how many of the last features the module takes as a second argument

    @classmethod
    def of(cls, module: Any, precision: str = "float64", device: str = "cpu", side: int = 0) -> FlatModule:
        """A copy of ``module`` in a precision and on a device.

        >>> flat = FlatModule.of(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)))
        >>> list(flat.shapes), flat.trained, flat.size
        (['0.weight', '0.bias', '1.weight', '1.bias', '1.running_mean', '1.running_var'], 12, 16)
        """
        if not isinstance(module, torch.nn.Module):
            raise InputError(f"The 'module' parameter of TorchLoss must be a torch.nn.Module. Got {module!r} instead.")
        if any(value.is_complex() for value in [*module.parameters(), *module.buffers()]):
            raise InputError("Expected a module with real parameters, got complex ones.")
        module = copied(module).to(dtype=getattr(torch, precision), device=_device(device))
        trained = {name: value for name, value in module.named_parameters() if value.requires_grad}
        if not trained:
            raise InputError("Expected a module with parameters to learn, got one without.")
        buffers = {name: value for name, value in module.named_buffers() if value.is_floating_point()}
        parts = {**trained, **buffers}
        return cls(
            module,
            {name: tuple(value.shape) for name, value in parts.items()},
            sum(value.numel() for value in trained.values()),
            np.concatenate([_as_numbers(value).reshape(-1) for value in parts.values()]),
            side,
        )

    def __reduce__(self) -> Any:  # what was kept of a call is left behind
        return FlatModule.of, (self.template, str(self.dtype).removeprefix("torch."), str(self.device), self.side)

    @property
    def size(self) -> int:
        """Length of the vector."""
        return len(self.start)

    @property
    def has_buffers(self) -> bool:
        """Whether there are buffers, which a forward pass in training may renew."""
        return self.trained < self.size

    @cached_property
    def dtype(self) -> Any:
        """Of parameters and computations."""
        return next(self.template.parameters()).dtype

    @cached_property
    def device(self) -> Any:
        """Where computations run."""
        return next(self.template.parameters()).device

    @cached_property
    def moves(self) -> Any:
        """(size,) the mask of what training moves; the others are buffers."""
        return np.arange(self.size) < self.trained

    @cached_property
    def penalised(self) -> Floats:
        """(size,) 1 for what a ridge term penalises, and 0 for biases (one axis) and buffers."""
        weights = [np.full(math.prod(shape), float(len(shape) > 1)) for shape in self.shapes.values()]
        return np.where(self.moves, np.concatenate(weights), 0.0)

    @cached_property
    def _slices(self) -> dict[str, slice]:
        ends = np.cumsum([0, *(math.prod(shape) for shape in self.shapes.values())]).tolist()
        return {name: slice(ends[k], ends[k + 1]) for k, name in enumerate(self.shapes)}

    @cached_property
    def buffer_names(self) -> list[str]:
        """The names of the floating buffers."""
        return [name for name, where in self._slices.items() if where.start >= self.trained]

    def part(self, name: str) -> tuple[slice, tuple[int, ...]]:
        """Where a parameter or buffer stands in the vector, and its shape.

        >>> FlatModule.of(torch.nn.Linear(3, 2)).part("bias")
        (slice(6, 8, None), (2,))
        """
        if name not in self.shapes:
            frozen = name in dict(self.template.named_parameters())
            why = "which is frozen and stays in the module" if frozen else "which the module has not"
            raise InputError(f"Expected the name of a part such as {next(iter(self.shapes))!r}, got {name!r}, {why}.")
        return self._slices[name], self.shapes[name]

    def named(self, w: Any) -> dict[str, Any]:
        """The parts of a vector (size,), or of its trained part, by name."""
        names, lengths = self._lengths if len(w) == self.size else self._trained_lengths
        return {name: part.view(self.shapes[name]) for name, part in zip(names, w.split(lengths), strict=True)}

    @cached_property
    def _lengths(self) -> tuple[list[str], list[int]]:
        return list(self.shapes), [math.prod(shape) for shape in self.shapes.values()]

    @cached_property
    def _trained_lengths(self) -> tuple[list[str], list[int]]:
        names, lengths = self._lengths
        count = len(names) - len(self.buffer_names)
        return names[:count], lengths[:count]

    def call(self, parts: dict[str, Any], X: Any, mode: Mode) -> Any:
        """The output of the module for rows X with parameters and buffers by name, which it may renew in place."""
        return functional_call(self._in_mode(mode), parts, self.arguments(X))

    def outputs(self, w: Any, X: Any, mode: Mode = "evaluation") -> Any:
        """The output of the module with the vector w (size,) for rows X, as tensors."""
        return self.call(self.named(w), X, mode)

    def outputs_and_buffers(self, trained: Any, buffers: Any, X: Any, mode: Mode) -> tuple[Any, Any]:
        """The output of the module, and the buffers after it; ``buffers`` are left as they are."""
        parts = self.named(trained)
        for name in self.buffer_names:
            where = self._slices[name]
            own = buffers[where.start - self.trained : where.stop - self.trained]
            parts[name] = own.detach().view(self.shapes[name]).clone()  # it may be renewed in place
        output = self.call(parts, X, mode)
        renewed = [parts[name].reshape(-1) for name in self.buffer_names]
        return output, torch.cat(renewed) if renewed else buffers

    def arguments(self, X: Any) -> tuple[Any, ...]:
        """What the module is called with for rows X."""
        return (X,) if not self.side else (X[..., : -self.side], X[..., -self.side :])

    def _in_mode(self, mode: Mode) -> Any:
        """A copy of the module to call."""
        if mode not in self._called:
            module = copied(self.template).train(mode != "evaluation")
            if mode == "calm":
                for part in module.modules():
                    if isinstance(part, DRAWING):
                        part.eval()
                    if isinstance(part, DROPPING):
                        part.dropout = 0.0
            self._called[mode] = module
        return self._called[mode]

    @cached_property
    def _called(self) -> dict[str, Any]:
        return {}

    def module_of(self, w: Floats) -> Any:
        """A module of its own with the vector w, as in evaluation."""
        module = copied(self.template).eval()
        self._load(module, w)
        return module

    def resident(self, w: Floats) -> tuple[Any, list[Any]]:
        """The one copy that is kept for training, with the vector w, and what is trained of it.

        Steps on its own parameters are quicker than steps on a vector that is cut into parts for every call.
        """
        module = self._in_mode("training")
        self._load(module, w)
        parts = dict(module.named_parameters())
        return module, [parts[name] for name in self._trained_lengths[0]]

    def vector_of(self, module: Any) -> Floats:
        """The parameters and buffers of a copy, as the vector of a node."""
        parts = self._parts_of(module)
        return np.concatenate([_as_numbers(parts[name]).reshape(-1) for name in self.shapes])

    @property
    def trained_count(self) -> int:
        """How many of the parts, the first ones, are trained."""
        return len(self._trained_lengths[0])

    def stacked(self, w: Floats) -> dict[str, Any]:
        """The parts of vectors (nodes, size) by name, each (nodes, ...): copies to be trained."""
        split = self.tensor(w).split(self._lengths[1], dim=1)
        return {
            name: part.reshape(len(w), *self.shapes[name]).contiguous()
            for name, part in zip(self.shapes, split, strict=True)
        }

    def vectors_of(self, parts: dict[str, Any]) -> Floats:
        """Such parts as vectors again."""
        return _as_numbers(torch.cat([part.reshape(len(part), -1) for part in parts.values()], dim=1))

    def _load(self, module: Any, w: Floats) -> None:
        """Write the vector w into a copy."""
        parts = self._parts_of(module)
        with torch.no_grad():
            for name, value in self.named(self.tensor(w)).items():
                parts[name].copy_(value)

    @staticmethod
    def _parts_of(module: Any) -> dict[str, Any]:
        return dict([*module.named_parameters(), *module.named_buffers()])

    def redrawn(self, seed: int) -> Floats:
        """The vector with parameters drawn anew, each layer as it draws its own."""
        module = copied(self.template)
        with drawing_from(seed):
            redraw(module)
        return self.vector_of(module)

    def tensor(self, values: Any) -> Any:
        """Numbers in the precision and on the device of the module; a copy."""
        return torch.tensor(np.asarray(values), dtype=self.dtype, device=self.device)

    def shared(self, w: Floats) -> Any:
        """The same for parameters, without a copy where none is needed: nothing writes to them."""
        writeable = w if w.flags.writeable else w.copy()  # torch knows no other arrays
        return torch.as_tensor(writeable, dtype=self.dtype, device=self.device)

    def numbers_of_a_row(self, X: Any) -> int:
        """About how many numbers are kept for a row of X (rows, features) while slopes are computed."""
        counted = [X.shape[1]]
        module = copied(self.template).eval()
        for part in module.modules():
            part.register_forward_hook(lambda _, __, output: counted.append(_numbers_in(output)))
        with torch.no_grad():
            module(*self.arguments(X))
        return max(1, int(sum(counted)) // len(X))


def sized(module: Any, rows: Any, side: int = 0, seed: int = SIZING_SEED) -> Any:
    """``module`` itself, or a copy whose lazy layers have learnt their sizes from rows; what they draw is keyed."""
    if not is_lazy(module):
        return module
    module = copied(module)
    with drawing_from(seed), torch.no_grad():
        module(rows) if not side else module(rows[:, :-side], rows[:, -side:])
    return module


def is_lazy(module: Any) -> bool:
    """Whether some layer has yet to learn its size."""
    values = [*module.parameters(), *module.buffers()] if isinstance(module, torch.nn.Module) else []
    return any(torch.nn.parameter.is_lazy(value) for value in values)


def copied(module: Any) -> Any:
    """A deep copy of a module, even of one that keeps an activation of an earlier call."""
    memo: dict[int, Any] = {}
    for part in module.modules():
        for kept in _tensors_in(vars(part)):
            if not kept.is_leaf:
                memo[id(kept)] = kept.detach().clone()
    try:
        return copy.deepcopy(module, memo)
    except (TypeError, RuntimeError) as error:
        raise InputError(f"Expected a module that can be copied, got one that cannot: {first_line(error)}.") from error


def redraw(module: Any) -> None:
    """Let every layer that can draw its parameters anew."""
    for part in module.modules():
        if hasattr(part, "reset_parameters"):
            part.reset_parameters()


@contextmanager
def drawing_from(seed: int) -> Iterator[None]:
    """Random numbers of torch from a seed; the generator of the process is left as it was."""
    state = torch.random.get_rng_state()
    torch.default_generator.manual_seed(seed)  # torch.manual_seed takes a millisecond
    try:
        yield
    finally:
        torch.random.set_rng_state(state)


def check_momentum(module: Any) -> None:
    """Refuse running statistics that count batches: such counts cannot be averaged over nodes."""
    for name, part in module.named_modules():
        normalises = isinstance(part, torch.nn.modules.batchnorm._NormBase) and part.track_running_stats
        if normalises and part.momentum is None:
            raise InputError(
                f"Expected a momentum for the running statistics of layer {name!r}, got {part.momentum}: a mean over "
                "all batches cannot be averaged over nodes."
            )


def _device(name: str) -> Any:
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"Expected a device that torch has here, such as 'cpu', got {name!r}.") from error


def _as_numbers(value: Any) -> Floats:
    out: Floats = value.detach().cpu().numpy().astype(np.float64)
    return out


def _numbers_in(output: Any) -> int:
    return sum(each.numel() for each in _tensors_in(output))


def _tensors_in(value: Any) -> Iterator[Any]:
    """The tensors in containers, however nested; not those of a module, which has its own."""
    if torch.is_tensor(value):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _tensors_in(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors_in(each)
