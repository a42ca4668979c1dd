"""Dual variables of GTV minimisation that balance exactly: what is left of r is absorbed within small groups of nodes.

Neighbours are joined to trees with more samples than parameters. The samples of a tree take up the sum of its r, with
the least change of β on the scale of the losses,

    (Σ XᵀCX + ridge) y = Σ r,     β −= C X y,     γ −= ridge y,

and what then remains at the nodes of a tree adds up to zero, so that it can flow along the edges of the tree. A pass
over all nodes does that, where conjugate gradients would need hundreds of passes to come as near to r = 0; flows
change by about as much as r was.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kinfolk import kernels
from kinfolk.algorithms.gtvmin.duals import Duals
from kinfolk.algorithms.gtvmin.instance import Instance
from kinfolk.network.site import short
from kinfolk.objective.symmetric import solve_symmetric
from kinfolk.typing import Bools, Floats, Ints

ROWS_PER_PARAMETER = 2  # in a tree, at least
ROOM = 0.01  # of its radius that a flow leaves


@dataclass(frozen=True, eq=False)
class Trees:
    """Small trees of neighbouring nodes that cover the graph."""

    problem: Instance
    group: Ints  # (nodes,) the tree of every node
    degree: Ints  # (nodes,) its edges in the tree
    code: Ints  # (nodes,) which ones, see ``kernels.grow_trees``
    count: int  # of trees

    @classmethod
    def of(cls, problem: Instance, u: Floats) -> Trees:
        """Trees with more samples than parameters, as far as the graph has them; of edges with room for flows first."""
        losses, site = problem.losses, problem.site
        least = ROWS_PER_PARAMETER * losses.width
        root, degree, code = kernels.grow_trees(
            site.head, site.tail, problem.weights > 0, _roomy(problem, u), np.diff(losses.starts), least
        )
        roots, group = np.unique(root, return_inverse=True)
        return cls(problem, short(group), short(degree), short(code), len(roots))

    def repaired(self, duals: Duals) -> Duals:
        """Dual variables with r = 0, up to rounding, wherever a tree has enough samples; flows are changed in place."""
        site, curvature = self.problem.site, self.problem.losses.elasticity(duals.w, duals.beta)
        sums = kernels.group_sums(duals.violation(self.problem), self.group, self.count)
        taken = duals.along(self.problem, curvature, -self._solved(curvature, sums)[self.group])
        left = taken.violation(self.problem)
        kernels.drain(left, duals.u, site.head, site.tail, self.degree.copy(), self.code.copy())
        return taken

    def _solved(self, curvature: Floats, sums: Floats) -> Floats:
        """(trees, parameters) the y of every tree."""
        losses = self.problem.losses
        bend = losses.group_gram(curvature, self.group, self.count)
        if losses.penalised:
            np.einsum("nkk->nk", bend)[:] += kernels.group_sums(losses.ridge, self.group, self.count)
        return solve_symmetric(bend, sums)


def _roomy(problem: Instance, u: Floats) -> Bools:
    """(edges,) whether a flow lies well inside its domain."""
    out = problem.weights > 0
    if problem.coupling.is_norm:
        for block in problem.site.edge_blocks:
            out[block] &= problem.coupling.dual_norm(u[block]) < (1 - ROOM) * problem.weights[block]
    return out
