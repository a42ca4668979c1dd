"""The update lines (1) and (2) of GTV minimisation on one site: as they stand, and in compiled passes.

``Updates`` has the plain formulas. ``FastUpdates`` gives the same numbers (a test compares them) where the coupling and
the losses declare what a compiled pass needs: ``Coupling.kernel_coefficients`` and ``LocalLosses.prox_spectrum``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np

from kinfolk import kernels
from kinfolk.algorithms.parametric import squares
from kinfolk.checks import AtLeast, InputError, Positive
from kinfolk.network.site import Site
from kinfolk.objective.couplings import Coupling
from kinfolk.objective.node_loss import LocalLosses, NodeLoss
from kinfolk.typing import Floats, Ints


@dataclass(frozen=True)
class Inexact:
    """Local updates by gradient steps, with an error of at most ``accuracy`` / round^``power`` in every round.

    The errors add up to something finite for a power above 1, and the method still converges (section IV of the
    paper). Errors that do not shrink, power 0, leave it short of the solution.

    Parameters
    ----------
    accuracy : float
        The error that is allowed in the first round, above 0.
    power : float
        How quickly errors must shrink, at least 0.
    """

    accuracy: Annotated[float, Positive()] = 1.0
    power: Annotated[float, AtLeast(0)] = 2.0

    def at(self, round_: int) -> float:
        """The error allowed in a round."""
        return float(self.accuracy / round_**self.power)

    def check(self, loss: NodeLoss) -> None:
        """Refuse a loss whose curvature has no bound from which the length of gradient steps follows."""
        if not np.isfinite(loss.most_curvature):
            raise InputError(f"Expected a loss of bounded curvature for gradient steps, got {type(loss).__name__}.")


class Scales(NamedTuple):
    """The s_e of (3), √A_e, and their sums at the nodes; the paper's steps have s_e = 1.

    There may be millions of s_e, so they are not kept.
    """

    weights: Floats  # (edges,) A_e
    rooted: bool  # whether s_e is √A_e
    nodes: Floats  # (nodes,) the sums

    @classmethod
    def of(cls, site: Site, published: bool) -> Scales:
        """Those of a site, the paper's or √A_e."""
        return cls(site.weights, not published, site.own_degrees.astype(np.float64) if published else site.root_degrees)

    def on(self, block: slice) -> Floats:
        """The s_e on a block of edges."""
        return np.sqrt(self.weights[block]) if self.rooted else np.ones(len(self.weights[block]))


class Flows(NamedTuple):
    """What (1) gives at a point, without taking the step.

    Numbers of edges are added up at their smaller ends, and divergences at both.
    """

    variation: Floats  # (nodes,) λA φ(Dw)
    mismatch: Floats  # (nodes,) λA φ(Dw) + (λA φ)*(u_new) − ⟨u_new, Dw⟩
    moved: Floats  # (nodes,) ‖u_new − u‖² / σ
    missed: Floats  # (nodes,) ‖u_new − u‖² / σ²
    divergence: Floats  # (nodes, parameters) Dᵀu_new


Look = tuple[Floats, Floats, Floats]  # λA φ(Dw), the mismatch and ‖u_new − u‖² of every edge of a block


@dataclass(frozen=True, eq=False)
class Updates:
    """Lines (1) and (2) as they stand, with the step sizes of one round.

    Where a function takes ``values``, these are parameters by local number: own nodes first, then neighbours elsewhere.
    """

    site: Site
    loss: NodeLoss
    coupling: Coupling
    lam: float
    scales: Scales
    eta: float
    rho: float
    inexact: Inexact | None = None

    @property
    def losses(self) -> LocalLosses:
        """L_i."""
        return self.site.local_losses(self.loss)

    @property
    def weights(self) -> Floats:
        """(edges,) λA_e."""
        return self.lam * self.site.weights

    @property
    def sigma(self) -> Floats:
        """(edges,) σ_e of (3)."""
        return self.sigma_on(slice(None))

    def sigma_on(self, block: slice) -> Floats:
        """σ_e on a block of edges."""
        return np.asarray(self.scales.on(block) / (2 * self.eta))

    @property
    def tau(self) -> Floats:
        """(nodes,) τ_i of (3); a node without edges takes 1 for the sum."""
        return self.eta / np.where(self.scales.nodes > 0, self.scales.nodes, 1.0)

    def dual_prox(self, u: Floats, values: Floats, block: slice) -> tuple[Floats, Floats]:
        """u_new of (1) on a block of edges, and the differences Dw there."""
        change, sigma = self.site.difference_on(block, values), self.sigma_on(block)
        ahead = kernels.add_scaled(u[block], sigma, change)
        return self.coupling.dual_prox(ahead, sigma, self.lam * self.site.weights[block]), change

    def ahead(self, u: Floats, values: Floats, out: Floats | None = None) -> Floats:
        """u_new of (1) on all edges, in an array of its own or in ``out``, which may be u."""
        out = np.empty_like(u) if out is None else out
        for block in self.site.edge_blocks:
            out[block], _ = self.dual_prox(u, values, block)
        return out

    def dual(self, u: Floats, values: Floats) -> tuple[Floats, Floats]:
        """(1), relaxed: u <- u + ρ (u_new − u), in place; and what then flows out of every node, Dᵀu."""
        site, flow = self.site, np.zeros_like(values)
        for block in site.edge_blocks:  # so that no temporary has the size of u
            u_new, _ = self.dual_prox(u, values, block)
            u[block] = site.carried(u[block] + self.rho * (u_new - u[block]), u[block], block)
            kernels.add_flows(flow, u[block], site.head[block], site.tail[block])
        return u, flow[: site.node_count]

    def primal(self, w: Floats, w_bar: Floats, flow: Floats, round_: int) -> tuple[Floats, Floats]:
        """(2), relaxed: w <- w + ρ (w_new − w), in place; then 2 w_new − w with the w_new that (2) gives from there.

        The w_new of the round before is (w_bar + w) / 2. ``flow`` may be overwritten.
        """
        w_new = 0.5 * (w_bar + w)
        w += self.rho * (w_new - w)
        return w, 2 * self._prox(w - self.tau[:, None] * flow, w_new, round_) - w

    def _prox(self, v: Floats, start: Floats, round_: int) -> Floats:
        """The prox of τ_i L_i at v_i, exact or as near as the round asks for."""
        if self.inexact is None:
            return self.losses.prox(v, self.tau, start)
        return self.losses.prox_by_gradient(v, self.tau, self.inexact.at(round_), start)

    def flows(self, u: Floats, values: Floats) -> Flows:
        """What (1) gives at ``values``; u stays as it is."""
        site, flow = self.site, np.zeros_like(values)
        sums = np.zeros((4, len(values)))
        for block in site.edge_blocks:  # so that no temporary has a number for every edge
            variation, mismatch, moved = self.look(u, values, block, flow)
            sigma = self.sigma_on(block)
            for at_heads, per_edge in zip(sums, (variation, mismatch, moved / sigma, moved / sigma**2), strict=True):
                kernels.add_at_heads(at_heads, per_edge, site.head[block])
        variation, mismatch, moved, missed = sums[:, : site.node_count]
        return Flows(variation, mismatch, moved, missed, flow[: site.node_count])

    def look(self, u: Floats, values: Floats, block: slice, flow: Floats) -> Look:
        """Numbers of the edges of a block, whose u_new is added to ``flow``."""
        site, coupling = self.site, self.coupling
        u_new, change = self.dual_prox(u, values, block)
        weights = self.lam * site.weights[block]
        variation = weights * coupling.value(change)
        conjugate = coupling.weighted_conjugate(u_new, weights)
        kernels.add_flows(flow, u_new, site.head[block], site.tail[block])
        mismatch = variation + conjugate - np.einsum("ij,ij->i", u_new, change)
        return variation, mismatch, squares(u_new - u[block])


class Ahead(NamedTuple):
    """u_new of (1), block by block: a whole array of it is made only for those who ask."""

    updates: Updates
    u: Floats  # (edges, parameters)
    values: Floats

    def on(self, block: slice) -> Floats:
        """On a block of edges."""
        return self.updates.dual_prox(self.u, self.values, block)[0]

    @property
    def whole(self) -> Floats:
        """On all edges."""
        return self.updates.ahead(self.u, self.values)


EdgePass = tuple[Ints, Ints, float, bool, Floats, float, tuple[float, float, float]]


class FastUpdates(Updates):
    """The same lines in one compiled pass over the edges or nodes, where one exists; the plain ones elsewhere."""

    def _edge_pass(self, block: slice) -> EdgePass | None:
        """What a pass over edges needs; None for couplings that it does not cover, and where edges are dead."""
        site, coefficients = self.site, self.coupling.kernel_coefficients
        if coefficients is None or site.live is not None:
            return None
        sizes = 1 / (2 * self.eta), self.scales.rooted
        return site.head[block], site.tail[block], *sizes, site.weights[block], float(self.lam), coefficients

    def dual(self, u: Floats, values: Floats) -> tuple[Floats, Floats]:
        """(1), relaxed, in place; and Dᵀu."""
        edges = self._edge_pass(slice(None))
        if edges is None:
            return super().dual(u, values)
        flow = np.zeros_like(values)
        kernels.dual_step(u, values, *edges, self.rho, flow)
        return u, flow[: self.site.node_count]

    def primal(self, w: Floats, w_bar: Floats, flow: Floats, round_: int) -> tuple[Floats, Floats]:
        """(2), relaxed, in place; and 2 w_new − w, which overwrites ``flow``."""
        q = self.losses.prox_spectrum if self.inexact is None else None
        if q is None:
            return super().primal(w, w_bar, flow, round_)
        parts = q.basis, q.eigenvalues, q.slopes, q.linear, q.starts
        kernels.quadratic_primal_step(w, w_bar, flow, self.tau, self.rho, *parts)
        return w, flow

    def look(self, u: Floats, values: Floats, block: slice, flow: Floats) -> Look:
        """Numbers of the edges of a block, whose u_new is added to ``flow``."""
        edges = self._edge_pass(block)
        if edges is None:
            return super().look(u, values, block, flow)
        out = np.empty((3, len(edges[0])))
        kernels.dual_look(u[block], values, *edges, flow, *out)
        return out[0], out[1], out[2]
