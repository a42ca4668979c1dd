"""FedProx: FedAvg whose local work is held near the common model.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks (2020), Algorithm 2.

In a round every node present starts from the common w, and takes local steps for

    min_{w_i}  F_i(w_i) + (µ / 2) ‖w_i − w‖²;      the coordinator:  w <- Σ q_i w_i / Σ q_i                        (1)

with q_i and F_i as in FedAvg, which is µ = 0. The paper samples nodes by their numbers of rows and averages plainly;
here a share of nodes is drawn evenly and the average is weighted, as in FedAvg. A large µ keeps nodes together, and
makes a round achieve less; the fixed point of several local steps is still not the pooled model when nodes differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from kinfolk.algorithms.fedavg import FedAvg
from kinfolk.algorithms.local_work import Addition
from kinfolk.checks import AtLeast, InputError
from kinfolk.network.problem import Problem
from kinfolk.network.site import Site
from kinfolk.typing import Floats


@dataclass(frozen=True)
class FedProx(FedAvg):
    """One model for all, or for every cluster; local steps are pulled back to it.

    Everything else is set as in ``FedAvg``. The safe step size of linear models counts µ as curvature.

    Parameters
    ----------
    mu : float
        µ, how strongly. On F_i, the mean loss of a node.

    >>> from kinfolk import Network, fit, graphs
    >>> network = Network(graphs.edgeless(2), [([[1.0]], [1.0]), ([[2.0]], [3.0])])
    >>> fit(network, FedProx(mu=1.0, local_steps=5)).models.w.round(3).tolist()
    [[1.303], [1.303]]
    """

    mu: Annotated[float, AtLeast(0)] = 0.1

    def check(self, problem: Problem) -> None:
        """Models are averaged: the pull is zero where gradients are."""
        super().check(problem)
        if self.average != "models":
            raise InputError("Expected average='models' for FedProx, got 'gradients': use FedAvg, which is the same.")

    def curvature(self, site: Site) -> Floats:
        """How curved F_i and the pull are."""
        return super().curvature(site) + (self.mu if self.needs_curvature else 0.0)

    def addition(self, site: Site, common: Floats) -> Addition | None:
        """The gradient of the pull."""
        return None if self.mu == 0 else lambda w: self.mu * (w - common)
