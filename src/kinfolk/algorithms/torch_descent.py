"""The GTV objective handed to an optimiser of torch: what one would try first.

SarcheshmehPour, Tian, Zhang, Jung: Clustered Federated Learning via Generalized Total Variation Minimization
(2023), eq (16).

    min_w  Σ_i L_i(w_i) + λ Σ_edges A_ij φ(w_i − w_j)                 each edge once; L_i as the loss states it

    s_i <- ∇L_i(w_i) + (Dᵀg)_i,    g_e a subgradient of λ A_e φ at (Dw)_e                                     (1)
    w_i <- one step of the optimiser from w_i down s_i, which also renews what it remembers of node i         (2)

Neighbours hear w, and nothing else; no coordinator is needed. Adam (Kingma, Ba 2015) remembers m_i and v_i, and in the
k-th step of node i, with everything by element, (2) is

    m_i <- β₁ m_i + (1 − β₁) s_i        v_i <- β₂ v_i + (1 − β₂) s_i²
    w_i <- w_i − t (m_i / (1 − β₁ᵏ)) / (√(v_i / (1 − β₂ᵏ)) + ε)

Steps are counted by node, as one that was away has taken fewer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Annotated, Any, NamedTuple

import numpy as np

from kinfolk.algorithms.descent import Descent
from kinfolk.checks import InputError, Positive
from kinfolk.engine.protocol import Inbox, Outbox, PerNode, Turn
from kinfolk.network.problem import Problem
from kinfolk.network.site import Site
from kinfolk.typing import Floats

TRIAL_STEPS = 3  # by then an optimiser that mixes nodes has shown it


class State(NamedTuple):
    """Parameters, and what the optimiser remembers."""

    w: PerNode  # (nodes, parameters)
    memory: PerNode  # (nodes, entries, parameters), such as Adam's k, m and v
    taken: PerNode  # (nodes,) number of steps


@dataclass(frozen=True)
class TorchDescent(Descent[State]):
    """Tailored models by an optimiser of torch on the GTV objective; needs ``pip install "kinfolk[torch]"``.

    Parameters
    ----------
    loss, coupling, lam : the objective.
    optimiser : the name of a class in ``torch.optim``, or such a class. It must move every node by itself: LBFGS,
        Adafactor and Muon, which mix them, are refused.
    step_size : torch's ``lr``, for all rounds. Where φ is a norm it decides how near the run comes.
    options : what else the class takes, such as ``{"betas": (0.9, 0.99)}``. A weight decay (AdamW has one unless it
        is told not to) changes the objective, and with it the answer.

    >>> from kinfolk import Network, fit, graphs
    >>> x = [[1.0]]
    >>> network = Network(graphs.chain(2), [(x, [0.0]), (x, [1.0])])
    >>> fit(network, TorchDescent(lam=1.0)).models.w.round(3).tolist()
    [[0.25], [0.75]]
    """

    optimiser: str | type = "Adam"
    step_size: Annotated[float, Positive()] = 0.01
    options: Mapping[str, Any] = field(default_factory=dict)

    def check(self, problem: Problem) -> None:
        """Labels that the loss admits, and an optimiser that moves every node by itself."""
        super().check(problem)
        if not isinstance(self.options, Mapping) or "lr" in self.options:
            raise InputError(
                "The 'options' parameter of TorchDescent must be a mapping without 'lr', which is step_size. "
                f"Got {self.options!r} instead."
            )
        self._stepper.check(self._optimiser_name)

    def init(self, site: Site, turn: Turn) -> tuple[State, Outbox]:
        """Start where the loss says, with nothing to remember."""
        state = self._stepper.first(self.origin(site))
        return state, Outbox({"w": state.w})

    def step(self, site: Site, state: State, inbox: Inbox, turn: Turn) -> tuple[State, Outbox]:
        """(1) and (2)."""
        slope = self.slope(site, state.w, inbox["w"])  # (1)
        state = self._stepper.advanced(state, slope)  # (2)
        return state, Outbox({"w": state.w})

    @property
    def _optimiser_name(self) -> str:
        return self.optimiser if isinstance(self.optimiser, str) else self.optimiser.__name__

    @cached_property
    def _stepper(self) -> Stepper:
        known = _torch().optim
        kind = getattr(known, self.optimiser, None) if isinstance(self.optimiser, str) else self.optimiser
        if not (isinstance(kind, type) and issubclass(kind, known.Optimizer)):
            raise InputError(
                "The 'optimiser' parameter of TorchDescent must be a class in torch.optim, or the name of one. "
                f"Got {self.optimiser!r} instead."
            )
        return Stepper(partial(kind, lr=self.step_size, **self.options))


class Entry(NamedTuple):
    """Something that an optimiser remembers of a parameter tensor."""

    name: str
    by_element: bool  # or one number for the tensor, such as a number of steps
    dtype: Any


class Stepper:
    """Steps of an optimiser of torch as a function of states: what it remembers goes in and comes out."""

    def __init__(self, optimiser: Callable[..., Any]) -> None:
        self.optimiser = optimiser

    def first(self, w: Floats) -> State:
        """Nothing to remember, no steps taken."""
        return State(w, np.zeros((len(w), len(self.entries), w.shape[1])), np.zeros(len(w), dtype=np.int64))

    def advanced(self, state: State, slope: Floats) -> State:
        """The state after one step. Nodes that have taken as many steps share a tensor, and the numbers kept for it."""
        torch, groups = _torch(), [np.flatnonzero(state.taken == count) for count in np.unique(state.taken)]
        tensors = [torch.tensor(state.w[nodes], requires_grad=True) for nodes in groups]
        optimiser = self.optimiser(tensors)
        for tensor, nodes in zip(tensors, groups, strict=True):
            tensor.grad = torch.tensor(slope[nodes])
            if state.taken[nodes[0]]:
                optimiser.state[tensor] = self._remembered(state.memory[nodes])
        optimiser.step()
        w, memory = np.empty_like(state.w), np.empty_like(state.memory)
        for tensor, nodes in zip(tensors, groups, strict=True):
            w[nodes] = tensor.detach().numpy()
            for k, entry in enumerate(self.entries):
                memory[nodes, k] = torch.as_tensor(optimiser.state[tensor][entry.name]).numpy()
        return State(w, memory, state.taken + 1)

    def _remembered(self, memory: Floats) -> dict[str, Any]:
        """What the optimiser knows of some nodes, in its own words."""
        torch = _torch()
        return {
            entry.name: torch.tensor(memory[:, k] if entry.by_element else memory[0, k, 0], dtype=entry.dtype)
            for k, entry in enumerate(self.entries)
        }

    @cached_property
    def entries(self) -> list[Entry]:
        """What the optimiser remembers after a step."""
        torch = _torch()
        tensor = torch.zeros((2, 3), dtype=torch.float64, requires_grad=True)
        tensor.grad = torch.ones_like(tensor)
        optimiser = self.optimiser([tensor])
        optimiser.step()
        kept = {name: torch.as_tensor(value) for name, value in optimiser.state[tensor].items() if value is not None}
        return [Entry(name, value.ndim > 0, value.dtype) for name, value in sorted(kept.items())]

    def check(self, name: str) -> None:
        """Refuse an optimiser whose steps for a node depend on other nodes, or on more than it remembers of it."""
        slopes = np.random.default_rng(0).normal(size=(TRIAL_STEPS, 2, 3))
        try:
            together = self._plain_steps(slopes)
            alone = [self._own_steps(slopes[:, [node]]) for node in (0, 1)]
        except (TypeError, ValueError, RuntimeError, AttributeError) as error:
            raise InputError(
                f"Expected an optimiser that can move every node by itself, got {name}: {error}"
            ) from error
        if not np.allclose(together, np.concatenate(alone), rtol=1e-10, atol=1e-12):
            raise InputError(f"Expected an optimiser that moves every node by itself, got {name}, which does not.")

    def _plain_steps(self, slopes: Floats) -> Floats:
        """Where torch itself gets, from ones, down the slopes (steps, nodes, parameters)."""
        torch = _torch()
        tensor = torch.ones(slopes.shape[1:], dtype=torch.float64, requires_grad=True)
        optimiser = self.optimiser([tensor])
        for slope in slopes:
            tensor.grad = torch.tensor(slope)
            optimiser.step()
        out: Floats = tensor.detach().numpy()
        return out

    def _own_steps(self, slopes: Floats) -> Floats:
        """The same by states."""
        state = self.first(np.ones(slopes.shape[1:]))
        for slope in slopes:
            state = self.advanced(state, slope)
        out: Floats = state.w
        return out


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise InputError('Expected torch for TorchDescent: install it with pip install "kinfolk[torch]".') from error
    return torch
