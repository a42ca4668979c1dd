"""Optimisers of torch: looked up in one place, tried whether they move every node by itself, and stepped as functions.

An optimiser gets the parameters of many nodes as one tensor (nodes, parameters). That gives what each node would get
alone if it treats numbers one by one: not LBFGS, Adafactor and Muon.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import torch

from kinfolk.checks import InputError, first_line
from kinfolk.typing import Floats, Ints

TRIAL_STEPS = 3  # by then an optimiser that mixes nodes has shown it
Make = Callable[..., Any]  # (tensors, lr=...) -> an optimiser


def optimiser_class(given: Any, owner: str) -> Make:
    """A class in ``torch.optim`` by its name, such a class, or what makes one: ``partial(SGD, momentum=0.9)``.

    >>> optimiser_class("Adam", "FedAvg").__name__
    'Adam'
    """
    found: Any = getattr(torch.optim, given, None) if isinstance(given, str) else given
    kind = found.func if isinstance(found, partial) else found
    if not (isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)):
        shown = " ".join(repr(given).split())  # an optimiser takes many lines
        raise InputError(
            f"The 'optimiser' parameter of {owner} must be a class in torch.optim, or the name of one. Got {shown} "
            "instead."
        )
    if isinstance(found, partial) and "lr" in found.keywords:
        raise InputError(
            f"Expected the step size of {owner} as step_size, got lr in the optimiser: leave it out there."
        )
    out: Make = found
    return out


def check_by_element(make: Make, name: Any, step_size: float) -> None:
    """Refuse an optimiser whose steps for a node depend on other nodes."""
    slopes = np.random.default_rng(0).normal(size=(TRIAL_STEPS, 2, 3))
    try:
        together, *alone = (_plain_steps(make, slopes[:, nodes], step_size) for nodes in ([0, 1], [0], [1]))
    except (TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise InputError(
            f"Expected an optimiser that steps after a gradient, got {name!r}: {first_line(error)}"
        ) from error
    if not np.allclose(together, np.concatenate(alone), rtol=1e-9, atol=1e-12):
        raise InputError(f"Expected an optimiser that moves every number by itself, got {name!r}.")


def _plain_steps(make: Make, slopes: Floats, step_size: float) -> Floats:
    """Where torch gets, from ones, down the slopes (steps, nodes, parameters)."""
    descent = Descent(make, np.ones(slopes.shape[1:]), step_size)
    for slope in slopes:
        descent.step(slope)
    return descent.w


class Descent:
    """Steps of a new optimiser for many nodes."""

    def __init__(self, make: Make, start: Floats, step_size: float) -> None:
        self._w = torch.tensor(start, requires_grad=True)
        self._optimiser = make([self._w], lr=step_size)

    @property
    def w(self) -> Floats:
        """(nodes, parameters) where it is; a view."""
        out: Floats = self._w.detach().numpy()
        return out

    def step(self, slope: Floats, step_size: float | None = None) -> None:
        """One step down a slope (nodes, parameters)."""
        if step_size is not None:
            for group in self._optimiser.param_groups:
                group["lr"] = step_size
        self._w.grad = torch.from_numpy(np.ascontiguousarray(slope))
        self._optimiser.step()


class Entry(NamedTuple):
    """Something that an optimiser remembers of a parameter tensor."""

    name: str
    by_element: bool  # or one number for the tensor, such as a number of steps
    dtype: Any


class Memory(NamedTuple):
    """Where nodes are, and what an optimiser remembers of them."""

    w: Floats  # (nodes, parameters)
    entries: Floats  # (nodes, entries, parameters), such as Adam's k, m and v
    taken: Ints  # (nodes,) number of steps


class Stepper:
    """Steps of an optimiser as a function: what it remembers goes in and comes out."""

    def __init__(self, make: Make, step_size: float) -> None:
        self.make, self.step_size = partial(make, lr=step_size), step_size

    def check(self, name: Any) -> None:
        """Refuse an optimiser whose steps for a node depend on other nodes, or on more than it remembers of it."""
        slopes = np.random.default_rng(0).normal(size=(TRIAL_STEPS, 2, 3))
        try:
            together = _plain_steps(self.make, slopes, self.step_size)
            alone = [self._own_steps(slopes[:, [node]]) for node in (0, 1)]
        except (TypeError, ValueError, RuntimeError, AttributeError) as error:
            raise InputError(
                f"Expected an optimiser that can move every node by itself, got {name}: {error}"
            ) from error
        if not np.allclose(together, np.concatenate(alone), rtol=1e-10, atol=1e-12):
            raise InputError(f"Expected an optimiser that moves every node by itself, got {name}, which does not.")

    def _own_steps(self, slopes: Floats) -> Floats:
        """Where steps by states lead, from ones."""
        here = self.first(np.ones(slopes.shape[1:]))
        for slope in slopes:
            here = self.advanced(*here, slope)
        return here.w

    def first(self, w: Floats) -> Memory:
        """Nothing to remember, no steps taken."""
        return Memory(w, np.zeros((len(w), len(self.entries), w.shape[1])), np.zeros(len(w), dtype=np.int64))

    def advanced(self, w: Floats, entries: Floats, taken: Ints, slope: Floats) -> Memory:
        """After one step. Nodes that have taken as many steps share a tensor, and the numbers kept for it."""
        before = Memory(w, entries, taken)
        groups = [np.flatnonzero(before.taken == count) for count in np.unique(before.taken)]
        tensors = [torch.tensor(before.w[nodes], requires_grad=True) for nodes in groups]
        optimiser = self.make(tensors)
        for tensor, nodes in zip(tensors, groups, strict=True):
            tensor.grad = torch.tensor(slope[nodes])
            if before.taken[nodes[0]]:
                optimiser.state[tensor] = self._remembered(before.entries[nodes])
        optimiser.step()
        w, entries = np.empty_like(w), np.empty_like(entries)
        for tensor, nodes in zip(tensors, groups, strict=True):
            w[nodes] = tensor.detach().numpy()
            for k, entry in enumerate(self.entries):
                entries[nodes, k] = torch.as_tensor(optimiser.state[tensor][entry.name]).numpy()
        return Memory(w, entries, before.taken + 1)

    def _remembered(self, entries: Floats) -> dict[str, Any]:
        """What the optimiser knows of some nodes, as it keeps it."""
        return {
            entry.name: torch.tensor(entries[:, k] if entry.by_element else entries[0, k, 0], dtype=entry.dtype)
            for k, entry in enumerate(self.entries)
        }

    @cached_property
    def entries(self) -> list[Entry]:
        """What the optimiser remembers after a step."""
        tensor = torch.zeros((2, 3), dtype=torch.float64, requires_grad=True)
        tensor.grad = torch.ones_like(tensor)
        optimiser = self.make([tensor])
        optimiser.step()
        kept = {name: torch.as_tensor(value) for name, value in optimiser.state[tensor].items() if value is not None}
        return [Entry(name, value.ndim > 0, value.dtype) for name, value in sorted(kept.items())]
