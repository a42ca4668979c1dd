"""The GTV objective handed to an optimiser of torch: what one would try first.

SarcheshmehPour, Tian, Zhang, Jung: Clustered Federated Learning via Generalized Total Variation Minimization
(2023), eq (16).

    min_w  Σ_i L_i(w_i) + λ Σ_edges A_ij φ(w_i − w_j)                 each edge once; L_i as the loss states it

    s_i <- ∇L_i(w_i) + (Dᵀg)_i,    g_e a subgradient of λ A_e φ at (Dw)_e                                     (1)
    w_i <- one step of the optimiser from w_i down s_i, which also renews what it remembers of node i         (2)

Neighbours receive w, and nothing else; no coordinator is needed. Adam (Kingma, Ba 2015) remembers m_i and v_i, and in
the k-th step of node i, with everything by element, (2) is

    m_i <- β₁ m_i + (1 − β₁) s_i        v_i <- β₂ v_i + (1 − β₂) s_i²
    w_i <- w_i − t (m_i / (1 − β₁ᵏ)) / (√(v_i / (1 − β₂ᵏ)) + ε)

Steps are counted by node, as one that was away has taken fewer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from kinfolk.algorithms.descent import Descent
from kinfolk.checks import InputError, Positive
from kinfolk.engine.protocol import Inbox, Outbox, PerNode, Turn
from kinfolk.modules import layer
from kinfolk.network.problem import Problem
from kinfolk.network.site import Site

if TYPE_CHECKING:
    from kinfolk.modules.optimisers import Stepper


class State(NamedTuple):
    """Parameters, and what the optimiser remembers."""

    w: PerNode  # (nodes, parameters)
    entries: PerNode  # (nodes, entries, parameters), such as Adam's k, m and v
    taken: PerNode  # (nodes,) number of steps


@dataclass(frozen=True)
class TorchDescent(Descent[State]):
    """Tailored models by an optimiser of torch on the GTV objective; needs ``pip install "kinfolk[torch]"``.

    Parameters
    ----------
    loss : NodeLoss
        What is minimised at every node.
    coupling : Coupling
        φ, what a difference between neighbours costs.
    lam : float
        λ.
    optimiser : str, type or partial
        The name of a class in ``torch.optim``, such a class, or a ``functools.partial`` of one. It must move
        every node by itself: LBFGS, Adafactor and Muon, which mix them, are refused.
    step_size : float
        Torch's ``lr``, for all rounds. Where φ is a norm it decides how near the run comes.
    options : mapping
        What else the class takes, such as ``{"betas": (0.9, 0.99)}``. A weight decay (AdamW has one by
        default) changes the objective, and with it the answer.

    >>> from kinfolk import Network, fit, graphs
    >>> x = [[1.0]]
    >>> network = Network(graphs.chain(2), [(x, [0.0]), (x, [1.0])])
    >>> fit(network, TorchDescent(lam=1.0)).models.w.round(3).tolist()
    [[0.25], [0.75]]
    """

    optimiser: Any = "Adam"
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
        self._stepper.check(self.optimiser if isinstance(self.optimiser, str) else repr(self.optimiser))

    def init(self, site: Site, turn: Turn) -> tuple[State, Outbox]:
        """Start from the initial parameters of the loss, with nothing to remember."""
        state = State(*self._stepper.first(self.origin(site)))
        return state, Outbox({"w": state.w})

    def step(self, site: Site, state: State, inbox: Inbox, turn: Turn) -> tuple[State, Outbox]:
        """(1) and (2)."""
        slope = self.slope(site, state.w, inbox)  # (1)
        state = State(*self._stepper.advanced(*state, slope))  # (2)
        return state, Outbox({"w": state.w})

    @cached_property
    def _stepper(self) -> Stepper:
        optimisers = layer("optimisers", "TorchDescent")
        kind = optimisers.optimiser_class(self.optimiser, "TorchDescent")
        out: Stepper = optimisers.Stepper(partial(kind, **self.options), self.step_size)
        return out
