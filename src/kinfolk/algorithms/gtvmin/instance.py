"""An instance of GTV minimisation, as certificates and polishing see it: the whole network on one site."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from kinfolk.network.site import Site
from kinfolk.objective.couplings import Coupling
from kinfolk.objective.local_losses import LinearLosses
from kinfolk.typing import Floats, Ints


@dataclass(frozen=True)
class Instance:
    """P(w) = Σ_i L_i(w_i) + Σ_e λA_e φ((Dw)_e) on a site that holds every node."""

    site: Site
    losses: LinearLosses
    coupling: Coupling
    weights: Floats  # (edges,) λA_e

    def objective(self, w: Floats) -> float:
        """P(w)."""
        return float(self.losses.value(w).sum() + self.variation(w).sum())

    def variation(self, w: Floats) -> Floats:
        """λA_e φ((Dw)_e) of every edge."""
        out, values = np.empty_like(self.weights), np.ascontiguousarray(w)
        for block in self.site.edge_blocks:
            out[block] = self.weights[block] * self.coupling.value(self.site.difference_on(block, values))
        return out

    def difference(self, w: Floats) -> Floats:
        """D w."""
        return self.site.difference(w, w[:0])

    def flow_cost(self, u: Floats) -> Floats:
        """λA_e φ*(u_e / (λA_e)) of every edge; without weight only u_e = 0 is free."""
        return self.coupling.weighted_conjugate(u, self.weights)

    @cached_property
    def components(self) -> tuple[int, Ints]:
        """Number of components that edges with weight join, and the component of every node."""
        count, label = connected_components(self.along_edges(np.ones_like(self.weights)), directed=False)
        return count, label.astype(np.int64)

    def along_edges(self, values: Floats) -> csr_array:
        """A value for every edge that couples its ends, as a matrix (nodes, nodes)."""
        couples: Any = self.weights > 0
        couples = slice(None) if couples.all() else couples  # of which nothing is copied
        ends = (self.site.head[couples], self.site.tail[couples])
        return csr_array((values[couples], ends), shape=(self.site.node_count, self.site.node_count))

    @property
    def round_cost(self) -> float:
        """Of a round of the algorithm, in operations, about; some are spent on any network."""
        return 4e5 + 30.0 * (len(self.weights) + self.site.node_count) * self.losses.width
