"""Every node alone: the first baseline.

    w_i <- argmin_w L_i(w)

No messages. A node without data has nothing to learn from and gets no model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kinfolk.algorithms.parametric import ParametricAlgorithm, gradient_measure, gradient_summary
from kinfolk.engine.protocol import Arrays, Inbox, Outbox, PerNode, Sends, Turn
from kinfolk.network.problem import Problem
from kinfolk.network.site import Site
from kinfolk.objective.losses import Squared
from kinfolk.objective.node_loss import NodeLoss


class State(NamedTuple):
    """Parameters."""

    w: PerNode  # (nodes, parameters); NaN without data


@dataclass(frozen=True)
class Local(ParametricAlgorithm[State]):
    """Every node learns from its own data only; of several minimisers, the squared loss takes the smallest.

    >>> from kinfolk import Network, fit, graphs
    >>> network = Network(graphs.chain(2), [([[1.0], [1.0]], [1.0, 3.0]), None])
    >>> fit(network, Local()).models.w.round(6).tolist()
    [[2.0], [nan]]
    """

    loss: NodeLoss = Squared()

    @property
    def carries_statistics(self) -> bool:
        """A node renews its own."""
        return True

    def sends(self, problem: Problem) -> Sends:
        """Nothing leaves a node."""
        return Sends()

    def init(self, site: Site, turn: Turn) -> tuple[State, Outbox]:
        """w_i <- argmin L_i."""
        losses = site.local_losses(self.loss)
        return State(np.where(losses.has_data[:, None], losses.minimise(), np.nan)), Outbox()

    def step(self, site: Site, state: State, inbox: Inbox, turn: Turn) -> tuple[State, Outbox]:
        """Nothing more to do."""
        return state, Outbox()

    def measure(self, site: Site, state: State, inbox: Inbox) -> Arrays:
        """Loss and gradient, at nodes with data."""
        losses = site.local_losses(self.loss)
        return gradient_measure(site, self.loss, np.where(losses.has_data[:, None], state.w, losses.start))

    def summary(self, totals: Mapping[str, float]) -> Mapping[str, float]:
        """Objective and relative gradient."""
        return gradient_summary(totals)
