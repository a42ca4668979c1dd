"""FedGD: plain gradient descent on the GTV objective, the simplest thing that could work.

SarcheshmehPour, Tian, Zhang, Jung: Clustered Federated Learning via Generalized Total Variation Minimization
(2023), eq (16), of which section IV says that subgradient methods solve it, but slowly.

    min_w  Σ_i L_i(w_i) + λ Σ_edges A_ij φ(w_i − w_j)                 each edge once; L_i as the loss states it

    g_e <- a subgradient of λ A_e φ at (Dw)_e                                                                 (1)
    w_i <- w_i − t_i / c_k (∇L_i(w_i) + (Dᵀg)_i),    t_i = 1 / (smoothness of L_i + 2λ Σ_j A_ij)              (2)

Neighbours hear w, and nothing else; no coordinator is needed. In round k, c_k = 1 where φ is smooth (then t_i is safe
for φ = ½‖·‖²), and c_k = √(1 + k/1000) where it is a norm: subgradients do not fade near the solution, so steps must.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import numpy as np

from kinfolk.algorithms.linear import LinearProgram, ratio, squares
from kinfolk.checks import AtLeast, Positive
from kinfolk.couplings import Coupling, SquaredNorm
from kinfolk.losses import Loss, Squared
from kinfolk.program import Arrays, Inbox, Outbox, PerNode, Turn
from kinfolk.site import Site
from kinfolk.typing import Floats

FADING = 1_000  # rounds after which steps for a norm begin to shrink
SHARPNESS = 1e12  # σ at which the prox of the conjugate at σv is a subgradient at v, to rounding


class State(NamedTuple):
    """Parameters."""

    w: PerNode  # (nodes, parameters)


@dataclass(frozen=True)
class FedGD(LinearProgram):
    """Tailored linear models by gradient descent on the GTV objective.

    ``step_size`` replaces all t_i of (2). The residual is the size of the (sub)gradient against its size at zero; where
    φ is a norm it does not vanish, and the number of rounds decides.

    >>> from kinfolk import Network, fit, graphs
    >>> x = [[1.0]]
    >>> network = Network(graphs.chain(2), [(x, [0.0]), (x, [1.0])])
    >>> fit(network, FedGD(lam=1.0)).models.w.round(3).tolist()
    [[0.25], [0.75]]
    """

    loss: Loss = Squared()
    coupling: Coupling = SquaredNorm()
    lam: Annotated[float, AtLeast(0)] = 0.1
    step_size: Annotated[float, Positive()] | None = None

    needs_slope: ClassVar[bool] = True

    def init(self, site: Site, turn: Turn) -> tuple[State, Outbox]:
        """Start at zero."""
        w = np.zeros((site.node_count, site.bound(self.loss).width))
        return State(w), Outbox({"w": w})

    def step(self, site: Site, state: State, inbox: Inbox, turn: Turn) -> tuple[State, Outbox]:
        """(1) and (2)."""
        slope = site.bound(self.loss).gradient(state.w) + self._pull(site, state.w, inbox["w"])
        fading = np.sqrt(1 + turn.round / FADING) if self.coupling.is_norm else 1.0
        w = state.w - self._step_sizes(site)[:, None] / fading * slope  # (2)
        return State(w), Outbox({"w": w})

    def _pull(self, site: Site, w: Floats, heard: Floats) -> Floats:
        """(Dᵀg)_i, with g from (1): for large σ, the prox of σ(λA φ)* at σv is the gradient of λA φ at v."""
        change = SHARPNESS * site.difference(w, heard)
        sharp = np.full(len(change), SHARPNESS)
        return site.divergence(self.coupling.dual_prox(change, sharp, self.lam * site.weights))  # (1)

    def _step_sizes(self, site: Site) -> Floats:
        """t_i; a node with neither data nor neighbours stays where it is, whatever its step."""
        if self.step_size is not None:
            return np.full(site.node_count, self.step_size)
        bend = site.bound(self.loss).smoothness + 2 * self.lam * site.edge_sum(site.weights)
        return 1.0 / np.where(bend > 0, bend, 1.0)

    def measure(self, site: Site, state: State, inbox: Inbox) -> Arrays:
        """Both terms of the objective, and the subgradient."""
        bound = site.bound(self.loss)
        variation = self.lam * site.weights * self.coupling.value(site.difference(state.w, inbox["w"]))
        return {
            "objective": bound.value(state.w) + site.at_smaller_end(variation),
            "slope": squares(bound.gradient(state.w) + self._pull(site, state.w, inbox["w"])),
            "resting": squares(bound.gradient_at_zero),
        }

    def summary(self, totals: Mapping[str, float]) -> Mapping[str, float]:
        """Objective, and the relative size of the subgradient."""
        residual = ratio(np.sqrt(totals["slope"]), np.sqrt(totals["resting"]))
        return {"objective": totals["objective"], "residual": residual}
