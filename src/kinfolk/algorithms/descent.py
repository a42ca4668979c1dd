"""What FedGD and TorchDescent share: the slope of the GTV objective, and how far it is from zero.

SarcheshmehPour, Tian, Zhang, Jung: Clustered Federated Learning via Generalized Total Variation Minimization
(2023), eq (16).

    min_w  Σ_i L_i(w_i) + λ Σ_edges A_ij φ(w_i − w_j)                 each edge once; L_i as the loss states it

    g_e <- a subgradient of λ A_e φ at (Dw)_e                                                                 (1)
    s_i <- ∇L_i(w_i) + (Dᵀg)_i                                                                                (2)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from kinfolk.algorithms.parametric import ParametricAlgorithm, ratio, squares
from kinfolk.checks import AtLeast
from kinfolk.engine.protocol import SMALLER_STEPS, Arrays, Inbox, S, Sends, Sent
from kinfolk.network.problem import Problem
from kinfolk.network.site import Site
from kinfolk.objective.couplings import Coupling, SquaredNorm
from kinfolk.objective.losses import Squared
from kinfolk.objective.node_loss import NodeLoss
from kinfolk.typing import Floats

SHARPNESS = 1e12  # σ at which the prox of the conjugate at σv is a subgradient at v, to rounding


@dataclass(frozen=True)
class Descent(ParametricAlgorithm[S]):
    """Tailored models by steps down the slope of the GTV objective. Neighbours receive w, and nothing else.

    The residual is the size of the slope against that of the losses at the start; where φ is a norm it does not vanish,
    and the number of rounds decides.
    """

    loss: NodeLoss = Squared()
    coupling: Coupling = SquaredNorm()
    lam: Annotated[float, AtLeast(0)] = 0.1

    if_diverged: ClassVar[str] = SMALLER_STEPS

    def sends(self, problem: Problem) -> Sends:
        """Neighbours receive the parameters."""
        return Sends(neighbours={"w": Sent("parameters", (self.width(problem),), noisy=True)})

    def origin(self, site: Site) -> Floats:
        """The initial parameters of the loss, at every node."""
        return site.local_losses(self.loss).start

    def slope(self, site: Site, w: Floats, inbox: Inbox) -> Floats:
        """s_i; for large σ, the prox of σ(λA φ)* at σv is a subgradient of λA φ at v."""
        change = SHARPNESS * site.difference(inbox.sent["w"], inbox["w"])
        sharp = np.full(len(change), SHARPNESS)
        g = self.coupling.dual_prox(change, sharp, self.lam * site.weights)  # (1)
        return site.local_losses(self.loss).gradient(w) + site.divergence(g)  # (2)

    def measure(self, site: Site, state: Any, inbox: Inbox) -> Arrays:
        """Both terms of the objective, and the slope."""
        losses = site.local_losses(self.loss)
        variation = self.lam * site.weights * self.coupling.value(site.difference(inbox.sent["w"], inbox["w"]))
        return {
            "objective": losses.value(state.w) + site.at_smaller_end(variation),
            "slope": squares(self.slope(site, state.w, inbox)),
            "resting": losses.resting,
        }

    def summary(self, totals: Mapping[str, float]) -> Mapping[str, float]:
        """Objective, and the relative size of the slope."""
        residual = ratio(np.sqrt(totals["slope"]), np.sqrt(totals["resting"]))
        return {"objective": totals["objective"], "residual": residual}
