"""Squared loss with the coupling ½‖·‖²: one sparse linear system instead of rounds.

``DirectUpdates`` stands where ``FastUpdates`` stands otherwise: both variables jump to the solution, where (1) and (2)
no longer move them.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import scipy.sparse
import scipy.sparse.linalg

from kinfolk.algorithms.gtvmin.updates import FastUpdates
from kinfolk.checks import InputError
from kinfolk.network.site import Site
from kinfolk.objective.couplings import Coupling, SquaredNorm
from kinfolk.objective.local_losses import LinearLosses
from kinfolk.objective.losses import Squared
from kinfolk.objective.node_loss import NodeLoss
from kinfolk.typing import Floats

REFINEMENTS = 20


def check(loss: NodeLoss, coupling: Coupling) -> None:
    """Refuse a problem that is not one linear system with the same weight for every parameter of an edge."""
    if not (isinstance(loss, Squared) and isinstance(coupling, SquaredNorm)):
        raise InputError(
            "The 'steps' parameter of GTVMin can be 'direct' only for Squared loss with SquaredNorm coupling. Got "
            f"{type(loss).__name__} with {type(coupling).__name__}: use steps='balanced'."
        )


class DirectUpdates(FastUpdates):
    """The solution in place of (1) and (2)."""

    @cached_property
    def _solution(self) -> Floats:
        """w; found once, for both lines."""
        losses = self.losses.with_duals
        if len(self.site.outside) or self.site.live is not None or losses is None:
            raise InputError(
                "Expected all nodes in one site for steps='direct', got several sites, absent nodes or lost "
                "messages: use engine=InProcess() with everybody present, or steps='balanced'."
            )
        return solve_quadratic(self.site, losses, self.weights)

    def dual(self, u: Floats, values: Floats) -> tuple[Floats, Floats]:
        """u = λA Dw, the gradient of the coupling; and Dᵀu."""
        u = self.weights[:, None] * self.site.difference(self._solution, self._solution[:0])
        return u, self.site.divergence(u)

    def primal(self, w: Floats, w_bar: Floats, flow: Floats, round_: int) -> tuple[Floats, Floats]:
        """w, twice: 2 w_new − w is the same where nothing moves."""
        return self._solution, self._solution.copy()


def solve_quadratic(site: Site, losses: LinearLosses, weights: Floats) -> Floats:
    """Minimise Σ_i L_i(w_i) + ½ Σ_e weights_e ‖(Dw)_e‖² on a site that holds every node.

    Where the answer is not unique (a component whose rows do not span all directions) the system is singular. So it
    is scaled to a unit diagonal, a little is added there and taken back by refinement, which converges to a solution.

    Quick on graphs that small cuts take apart (maps, chains, trees). On a random graph the factors fill up: there the
    rounds of ``steps="balanced"`` are far quicker.
    """
    width = losses.width
    zero = np.zeros((site.node_count, width))
    hessian = scipy.sparse.block_diag(losses.hessian(zero), format="csc")
    incidence = scipy.sparse.kron(site.incidence, scipy.sparse.eye_array(width), format="csc")
    system = (hessian + incidence @ scipy.sparse.diags_array(np.repeat(weights, width)) @ incidence.T).tocsc()
    diagonal = system.diagonal()
    scale = scipy.sparse.diags_array(1.0 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0)))
    system = (scale @ system @ scale).tocsc()
    shifted = system + 1e-10 * scipy.sparse.eye_array(system.shape[0], format="csc")
    factor = scipy.sparse.linalg.splu(
        shifted, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True}
    )
    target = scale @ -losses.gradient(zero).ravel()
    w = factor.solve(target)
    best, size = w, np.inf
    for _ in range(REFINEMENTS):
        rest = target - system @ w
        if np.linalg.norm(rest) >= 0.5 * size:
            break
        best, size = w, float(np.linalg.norm(rest))
        w = w + factor.solve(rest)
    return np.asarray((scale @ best).reshape(site.node_count, width), dtype=np.float64)
