"""FedGD: plain gradient descent on the GTV objective, the simplest thing that could work.

SarcheshmehPour, Tian, Zhang, Jung: Clustered Federated Learning via Generalized Total Variation Minimization
(2023), eq (16), which subgradient methods solve, but slowly (section IV).

    min_w  Σ_i L_i(w_i) + λ Σ_edges A_ij φ(w_i − w_j)                 each edge once; L_i as the loss states it

    s_i <- ∇L_i(w_i) + (Dᵀg)_i,    g_e a subgradient of λ A_e φ at (Dw)_e                                     (1)
    w_i <- w_i − t_i / c_k s_i,    t_i = 1 / (smoothness of L_i + 2λ Σ_j A_ij)                                (2)

Neighbours receive w, and nothing else; no coordinator is needed. In round k, c_k = 1 where φ is smooth (then t_i is
safe for φ = ½‖·‖²), and c_k = √(1 + k/1000) where it is a norm: subgradients do not fade near the solution, so steps
must.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import numpy as np

from kinfolk.algorithms.descent import Descent
from kinfolk.algorithms.parametric import check_step_size
from kinfolk.checks import Positive
from kinfolk.engine.protocol import Inbox, Outbox, PerNode, Turn
from kinfolk.network.problem import Problem
from kinfolk.network.site import Site
from kinfolk.typing import Floats

FADING = 1_000  # rounds after which steps for a norm begin to shrink


class State(NamedTuple):
    """Parameters."""

    w: PerNode  # (nodes, parameters)


@dataclass(frozen=True)
class FedGD(Descent[State]):
    """Tailored models by gradient descent on the GTV objective.

    Parameters
    ----------
    loss : NodeLoss
        What is minimised at every node.
    coupling : Coupling
        φ, what a difference between neighbours costs.
    lam : float
        λ.
    step_size : float, optional
        Replaces all t_i of (2).

    The residual is the size of the (sub)gradient against that of the losses at
    the start; where φ is a norm it does not vanish, and the number of rounds decides.

    >>> from kinfolk import Network, fit, graphs
    >>> x = [[1.0]]
    >>> network = Network(graphs.chain(2), [(x, [0.0]), (x, [1.0])])
    >>> fit(network, FedGD(lam=1.0)).models.w.round(3).tolist()
    [[0.25], [0.75]]
    """

    step_size: Annotated[float, Positive()] | None = None

    needs_slope: ClassVar[bool] = True

    def check(self, problem: Problem) -> None:
        """A step size where the curvature of the loss has no bound."""
        super().check(problem)
        check_step_size(self, self.step_size)

    def init(self, site: Site, turn: Turn) -> tuple[State, Outbox]:
        """Start from the initial parameters of the loss."""
        w = self.origin(site)
        return State(w), Outbox({"w": w})

    def step(self, site: Site, state: State, inbox: Inbox, turn: Turn) -> tuple[State, Outbox]:
        """(1) and (2)."""
        slope = self.slope(site, state.w, inbox)  # (1)
        fading = np.sqrt(1 + turn.round / FADING) if self.coupling.is_norm else 1.0
        w = state.w - self._step_sizes(site)[:, None] / fading * slope  # (2)
        return State(w), Outbox({"w": w})

    def _step_sizes(self, site: Site) -> Floats:
        """t_i; a node with neither data nor neighbours stays where it is, whatever its step."""
        if self.step_size is not None:
            return np.full(site.node_count, self.step_size)
        bend = site.local_losses(self.loss).smoothness + 2 * self.lam * site.edge_sum(site.weights)
        return 1.0 / np.where(bend > 0, bend, 1.0)
