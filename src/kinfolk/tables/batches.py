"""Batches of fits at one party: its nodes are eliminated from Newton's equations, what is left goes to the job.

Many fits (parts × values × scores) are an axis of arrays. A mixed model is the case with a common model that all nodes
lean on; models on a graph lean on their neighbours, some of which are elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import IntEnum
from typing import Any

import numpy as np
import scipy.sparse
from scipy.sparse.linalg import splu

from kinfolk.network.data import Data
from kinfolk.objective.local_losses import LinearLosses
from kinfolk.objective.losses import Squared
from kinfolk.objective.symmetric import invert_symmetric
from kinfolk.tables.members.scores import LinearScores, derivatives, labels, loss_of
from kinfolk.tables.party import GraphFits, MixedFits, Reaction, Step, System, Turn
from kinfolk.tables.table_rows import TableRows
from kinfolk.tables.target import Target
from kinfolk.typing import Floats, Ints

TOO_HIGH = 1e6  # times the objective where fits start: nothing is solved there, and the objective is told as so much
WORST, STEEPEST = 5.0, 30.0  # with classes: a loss in units of that at zero, and a score; more is told of no model
LEAST = 1e-10  # of the mean curvature, added to it, where nothing else holds a model
EXACT = 2_000  # unknowns of a party, up to which J solves for all of its nodes; beyond, for each node by itself
DENSE = 400  # unknowns of a party, up to which matrices are inverted as they are
Solver = Callable[[Floats], Floats]  # from right-hand sides (unknowns, columns) to solutions


def too_steep(target: Target, loss: float, scores: Floats) -> bool:
    """Whether a model of classes is none that was fitted; ``scores``: of the rows whose loss it is.

    Gradients of steep models tell on which side of a plane rows are, and their differences are single rows.
    """
    if target.kind != "classes":
        return False
    fits = loss <= WORST * np.log(2.0) * len(scores)
    return not (fits and (scores**2).sum() <= STEEPEST**2 * len(scores))


def output_losses(target: Target, data: Data, ridge: float = 0.0) -> list[LinearLosses]:
    """The local losses of every score."""
    loss = replace(loss_of(target), ridge=ridge)
    return [LinearLosses.of(loss, replace(data, y=y)) for y in labels(target, data.y)]


class Batch:
    """Fits of linear models to the rows of a party.

    Parameters
    ----------
    rows : TableRows
        The rows.
    part, value, score : array of int, shape (fits,)
        What each fit is of.
    w : array of float, shape (fits, nodes, parameters)
        Where the models of nodes start.
    rounding : float
        How widely kinks of the loss are rounded.
    ridge : float
        The ridge term of every node's loss.
    """

    def __init__(
        self, rows: TableRows, part: Ints, value: Ints, score: Ints, w: Floats, rounding: float, ridge: float = 0.0
    ) -> None:
        self.rounding = rounding
        self.rows, self.part, self.value, self.score, self.w = rows, part, value, score, w
        self.losses = [output_losses(rows.target, data, ridge) for data in rows.part_data]
        self.before = w
        self._direction: dict[int, Floats] = {}  # that the models of each fit have moved along
        self.most = np.full(len(part), np.inf)
        start = self.objectives(np.arange(len(part)))
        self.most = TOO_HIGH * (1 + np.where(np.isfinite(start), np.abs(start), len(rows.training.y)))
        keys = zip(part.tolist(), value.tolist(), score.tolist(), strict=True)
        self._number = {key: fit for fit, key in enumerate(keys)}

    def loss(self, fit: int) -> LinearLosses:
        """The local losses of a fit."""
        return self.losses[int(self.part[fit])][int(self.score[fit])]

    def advance(self, step: Step) -> System:
        """Take a step; then what is left to solve for fits that go on."""
        if step.back.any():
            self.w = np.where(step.back[:, None, None], self.before, self.w)
        if step.again.any():  # else nobody will go back
            self.before = self.w.copy()
        for fit in np.flatnonzero(step.size > 0).tolist():
            if not step.back[fit]:  # else it is the last direction again
                self._direction[fit] = self.direction(fit, step.move[fit])
            self.w[fit] += float(step.size[fit]) * self._direction[fit]
        self.rounding = step.rounding
        return self.system(np.flatnonzero(step.again))

    def system(self, fits: Ints) -> System:
        """What is left to solve for some fits: nothing where the objective is too high, as these will go back."""
        objective = self.objectives(fits)
        solved = [
            self.eliminated(fit) if height < self.most[fit] else None
            for fit, height in zip(fits.tolist(), objective.tolist(), strict=True)
        ]
        shape = self.shape
        matrix, vector = np.zeros((len(fits), *shape[0])), np.zeros((len(fits), *shape[1]))
        for k, each in enumerate(solved):
            if each is not None:
                matrix[k], vector[k] = each
        return System(objective, matrix, vector)

    def objectives(self, fits: Ints) -> Floats:
        """The objective of some fits, as far as this party knows it."""
        found = np.empty(len(fits))
        for k, fit in enumerate(fits.tolist()):
            losses, w = self.loss(fit), self.w[fit]
            with np.errstate(over="ignore", invalid="ignore"):
                scores = losses.predict(w)
                value = float(losses.loss.value(scores, losses.y).sum())
                found[k] = value + self.penalty(fit)
            if self.steep(losses, scores):
                found[k] = np.inf
        return np.where(found < self.most[fits], found, self.most[fits])

    def steep(self, losses: LinearLosses, scores: Floats) -> bool:
        """Whether models are none that were fitted."""
        return too_steep(self.rows.target, float(losses.loss.value(scores, losses.y).sum()), scores)

    def scores(self, part: int, value: int) -> LinearScores:
        """The models that were learnt from a part with a value."""
        fits = [self._number[part, value, score] for score in range(self.rows.target.outputs)]
        return LinearScores(np.stack([self.model(fit) for fit in fits]), self.rows.target, common=self.commons(fits))

    def model(self, fit: int) -> Floats:
        """The models of a fit (nodes, parameters)."""
        return np.asarray(self.w[fit])

    def commons(self, fits: list[int]) -> Floats | None:
        """The models that nodes never seen would have (fits, parameters); None: they are like those nearby."""
        return None

    # ------------------------------------------------------------------ what differs

    @property
    def shape(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The shapes of the matrix and the vector of a fit."""
        raise NotImplementedError

    def penalty(self, fit: int) -> float:
        """What is added to the loss of rows."""
        raise NotImplementedError

    def eliminated(self, fit: int) -> tuple[Floats, Floats]:
        """The matrix and the vector of a fit."""
        raise NotImplementedError

    def direction(self, fit: int, move: Floats) -> Floats:
        """The step of the models of all nodes that goes with a move (nodes, parameters)."""
        raise NotImplementedError


class MixedBatch(Batch):
    """Mixed models: w_i = w_0 + u_i; see ``members.slopes``.

    With H_i, g_i of a node and M = diag(μ), the deviations are eliminated: u_i moves by
    −(H_i + M)⁻¹ (g_i + M u_i + H_i s) if w_0 moves by s, and what is left for s is

        S = Σ_i H_i − H_i (H_i + M)⁻¹ H_i,    Σ_i g_i − H_i (H_i + M)⁻¹ (g_i + M u_i)
    """

    def __init__(self, rows: TableRows, fits: MixedFits, pooled: Floats | None) -> None:
        width = rows.training.X.shape[1] + 1
        shape = len(rows.parts), len(fits.strengths), rows.target.outputs
        part, value, score = (each.ravel() for each in np.indices(shape))
        self.strengths = np.column_stack([np.tile(fits.strengths[:, 1:], width - 1), fits.strengths[:, 0]])[value]
        self.common = np.zeros((len(part), width)) if pooled is None else pooled[part, score]
        self.common_before = self.common
        self._sums: dict[tuple[int, int], tuple[Floats, Floats]] = {}  # of squared errors, at zero
        w = np.repeat(self.common[:, None, :], len(rows.nodes), axis=1)
        super().__init__(rows, part, value, score, w, fits.rounding)

    @property
    def shape(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """A common model has p parameters."""
        width = self.common.shape[1]
        return (width, width), (width,)

    def penalty(self, fit: int) -> float:
        """½ Σ_i μ u_i²."""
        return 0.5 * float((self.strengths[fit] * (self.w[fit] - self.common[fit]) ** 2).sum())

    def advance(self, step: Step) -> System:
        """Common models move as well."""
        start = np.where(step.back[:, None], self.common_before, self.common)
        self.common_before, self.common = start, start + step.size[:, None] * step.move
        return super().advance(step)

    def commons(self, fits: list[int]) -> Floats:
        """The common models."""
        return np.asarray(self.common[fits])

    def eliminated(self, fit: int) -> tuple[Floats, Floats]:
        """S, and the gradient that goes with it."""
        gradients, matrices = self._derivatives(fit, self.w[fit])
        pulled = gradients + self.strengths[fit] * (self.w[fit] - self.common[fit])
        own = matrices + np.diag(self.strengths[fit])
        solved = np.linalg.solve(own, np.concatenate([matrices, pulled[:, :, None]], axis=2))
        schur = (matrices - matrices @ solved[:, :, :-1]).sum(axis=0)
        return schur, gradients.sum(axis=0) - np.einsum("njk,nk->j", matrices, solved[:, :, -1])

    def direction(self, fit: int, move: Floats) -> Floats:
        """w_0 moves, and u_i follows."""
        gradients, matrices = self._derivatives(fit, self.w[fit])
        mu, u = self.strengths[fit], self.w[fit] - self.common_before[fit]
        right = gradients + mu * u + matrices @ move
        return np.asarray(move - np.linalg.solve(matrices + np.diag(mu), right[:, :, None])[:, :, 0])

    def _derivatives(self, fit: int, w: Floats) -> tuple[Floats, Floats]:
        """g_i and H_i of all nodes; squared errors have the same H_i everywhere."""
        losses = self.loss(fit)
        if not isinstance(losses.loss, Squared):
            slope, curvature = derivatives(losses.loss, losses.predict(w), losses.y, self.rounding)
            return losses.combine(slope), losses.gram(curvature)
        cell = int(self.part[fit]), int(self.score[fit])
        if cell not in self._sums:
            zero = np.zeros(len(losses.y))
            slope, curvature = losses.loss.slope(zero, losses.y), losses.loss.curvature(zero, losses.y)
            self._sums[cell] = losses.combine(slope), losses.gram(curvature)
        gradients, matrices = self._sums[cell]
        return gradients + np.einsum("njk,nk->nj", matrices, w), matrices


class GraphBatch(Batch):
    """Models on a graph; see ``GraphFits``. Neighbours elsewhere are felt as a pull at boundary nodes.

    With K the own block of the Hessian, and q_i = λ Σ_j A_ij w_j over neighbours j elsewhere, Newton's step leads to
    w − K⁻¹ g + K⁻¹ q. The party tells K⁻¹ at its boundary and where that would go with q = 0; the job finds q.
    """

    def __init__(self, rows: TableRows, fits: GraphFits, pooled: Floats | None) -> None:
        self.fits = fits
        nodes, width = len(rows.nodes), rows.training.X.shape[1] + 1
        w = np.zeros((len(fits.lam), nodes, width))
        if pooled is not None:
            w += pooled[fits.part, fits.score][:, None, :]
        self.laplacians = [_laplacian(fits.ends, weights, nodes) for weights in fits.weights]
        self._next: dict[int, tuple[Solver, Floats]] = {}  # of fits that go on: K⁻¹, and −K⁻¹ g
        super().__init__(rows, fits.part, fits.value, fits.score, w, fits.rounding, fits.ridge)

    @property
    def shape(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Boundary nodes have p parameters each."""
        count, width = len(self.fits.boundary), self.w.shape[2]
        return (count * width, count * width), (count, width)

    def steep(self, losses: LinearLosses, scores: Floats) -> bool:
        """Whether the models of any node are none that were fitted: each can be pulled by itself."""
        if self.rows.target.kind != "classes":
            return False
        values, parts = losses.loss.value(scores, losses.y), losses.starts[1:-1]
        return any(
            too_steep(self.rows.target, float(mine.sum()), own)
            for mine, own in zip(np.split(values, parts), np.split(scores, parts), strict=True)
            if len(own)
        )

    def penalty(self, fit: int) -> float:
        """The ridge terms, and the edges between own nodes."""
        w, losses = self.w[fit], self.loss(fit)
        apart = float((w * (self.laplacians[self.part[fit]] @ w)).sum())
        return 0.5 * float((losses.ridge * w**2).sum()) + 0.5 * float(self.fits.lam[fit]) * apart

    def eliminated(self, fit: int) -> tuple[Floats, Floats]:
        """K⁻¹ at the boundary, and where boundary nodes would go if neighbours elsewhere were at zero."""
        width, w, boundary = self.w.shape[2], self.w[fit], self.fits.boundary
        gradient, K = self._newton(fit)
        solve = _solver(K)
        step = solve(-gradient.reshape(-1, 1)).reshape(w.shape)
        self._next[fit] = solve, step
        unknowns = (boundary[:, None] * width + np.arange(width)).ravel()
        units = np.zeros((w.size, len(unknowns)))
        units[unknowns, np.arange(len(unknowns))] = 1.0
        response = solve(units)[unknowns] if len(unknowns) else np.zeros((0, 0))
        return response, (w + step)[boundary]

    def _newton(self, fit: int) -> tuple[Floats, scipy.sparse.csc_matrix]:
        """Gradient and Hessian of a fit, without what neighbours elsewhere pull."""
        part, lam, w, losses = self.part[fit], float(self.fits.lam[fit]), self.w[fit], self.loss(fit)
        slope, curvature = derivatives(losses.loss, losses.predict(w), losses.y, self.rounding)
        matrices = losses.gram(curvature) + losses.ridge[:, :, None] * np.eye(w.shape[1])
        held = lam * (self.laplacians[part] + scipy.sparse.diags(self.fits.outward[part]))
        gradient = losses.combine(slope) + losses.ridge * w + held @ w
        least = LEAST * max(float(np.trace(matrices.sum(axis=0))) / matrices[:, :, 0].size, LEAST)
        alone = np.where(self.fits.reached[part], least, 1.0)  # nothing is known of the others: they stay
        self._matrices = matrices = matrices + alone[:, None, None] * np.eye(w.shape[1])
        K = scipy.sparse.block_diag(list(matrices), format="csc") + scipy.sparse.kron(held, np.eye(w.shape[1]))
        return np.where(self.fits.reached[part][:, None], gradient, 0.0), K.tocsc()

    def direction(self, fit: int, move: Floats) -> Floats:
        """Newton's step under the pull of neighbours elsewhere."""
        if fit not in self._next:  # it has begun where nothing is solved
            return np.zeros_like(self.w[fit])
        solve, step = self._next[fit]
        pull = np.zeros_like(step)
        pull[self.fits.boundary] = move
        return np.asarray(step + solve(pull.reshape(-1, 1)).reshape(step.shape))

    def model(self, fit: int) -> Floats:
        """NaN where nothing could be learnt."""
        return np.where(self.fits.reached[self.part[fit]][:, None], self.w[fit], np.nan)


class Phase(IntEnum):
    """What parties do in an exchange of conjugate gradients."""

    GRADIENT = 0  # work out r = −∇P(w), from the parameters of neighbours
    FIRST = 1  # u = M r and v = K u
    STEP = 2  # of conjugate gradients
    MOVE = 3  # by so much of Newton's step x
    BACK = 4  # take back the last move first


class PulledBatch(GraphBatch):
    """The same fits by conjugate gradients: neighbours elsewhere tell each other values, the job hears inner products.

    Newton's equations K x = −∇P are solved in the form of Ghysels and Vanroose (2014), in which products with K and
    inner products are asked for in one exchange. M r = J r + 1 c, where J solves for the own nodes as if neighbours
    elsewhere stood still, and c moves all nodes of all parties together: c = (Σ_i ∇²L_i)⁻¹ Σ_i r_i. Neighbours receive
    J r; differences over edges do not see c.
    """

    def __init__(self, rows: TableRows, fits: GraphFits, pooled: Floats | None) -> None:
        super().__init__(rows, fits, pooled)
        zero = np.zeros_like(self.w)
        self.x, self.r, self.u, self.v, self.solved = (zero.copy() for _ in range(5))
        self.along = np.zeros((4, *zero.shape))  # directions of x, r, u and v
        self._systems: dict[int, tuple[Floats, Solver, Any]] = {}  # Hessians of nodes, J, and K
        self._sent = np.arange(len(self.part))  # the fits that neighbours have told of

    @property
    def told_of(self) -> Ints:
        """The fits that neighbours have told of."""
        return self._sent

    def may_go_on(self, phase: int) -> set[int]:
        """The fits that neighbours have told of, as far as that is needed."""
        return set(range(len(self.part)) if phase in (Phase.MOVE, Phase.BACK) else self._sent.tolist())

    def respond(self, turn: Turn | None) -> Reaction:
        """One exchange; None: the first, where all nodes are alike."""
        if turn is None:
            alike = np.repeat(self.w[:, :1], len(self.fits.foreign), axis=1) if len(self.rows.nodes) else None
            alike = np.zeros((len(self.part), len(self.fits.foreign), self.w.shape[2])) if alike is None else alike
            return self._gradient(self._sent, alike)
        fits, before = np.flatnonzero(turn.alive), self._sent
        self._sent, self.rounding = fits, turn.rounding
        if turn.phase in (Phase.MOVE, Phase.BACK):
            return self._moved(fits, turn)
        assert turn.neighbours is not None
        received = turn.neighbours[np.searchsorted(before, fits)]
        if turn.phase == Phase.GRADIENT:
            return self._gradient(fits, received)
        return self._conjugate(fits, turn, received)

    def _pull(self, fit: int, received: Floats) -> Floats:
        """λ Σ_j A_ij w_j over neighbours elsewhere (nodes, parameters)."""
        out: Floats = np.zeros_like(self.w[fit])
        here, there = self.fits.links.T
        weights = self.fits.lam[fit] * self.fits.link_weights[self.part[fit]]
        np.add.at(out, self.fits.boundary[here], weights[:, None] * received[there])
        return out

    def _gradient(self, fits: Ints, received: Floats) -> Reaction:
        """r = −∇P(w), and the objective with half of every edge to elsewhere."""
        curvature, objective = np.zeros((len(fits), *[self.w.shape[2]] * 2)), self.objectives(fits)
        for k, fit in enumerate(fits.tolist()):
            if not objective[k] < self.most[fit]:  # nothing is told there: the step will be taken back
                nothing = scipy.sparse.csc_matrix((self.w[fit].size, self.w[fit].size))
                self.r[fit] = 0.0
                self._systems[fit] = np.zeros((len(self.w[fit]), *[self.w.shape[2]] * 2)), np.copy, nothing
                continue
            gradient, K = self._newton(fit)
            self.r[fit] = self._pull(fit, received[k]) - gradient
            matrices = self._matrices
            self._systems[fit] = matrices, _solver(K) if K.shape[0] <= EXACT else _by_node(matrices, K), K
            curvature[k] = matrices.sum(axis=0)
            here, there = self.fits.links.T
            apart = ((self.w[fit][self.fits.boundary[here]] - received[k][there]) ** 2).sum(axis=1)
            objective[k] += 0.25 * float(self.fits.lam[fit] * (self.fits.link_weights[self.part[fit]] @ apart))
        self.u[fits] = 0.0
        self.along[:, fits] = 0.0
        self.x[fits] = 0.0
        return self._said(fits, self.r, objective, curvature)

    def _conjugate(self, fits: Ints, turn: Turn, received: Floats) -> Reaction:
        """One step along directions that are conjugate; the first works out u and v."""
        for k, fit in enumerate(fits.tolist()):
            matrices, _, K = self._systems[fit]
            common, solved = turn.common[fit], self.solved[fit]
            m = solved + common
            n = (K @ solved.ravel()).reshape(solved.shape) - self._pull(fit, received[k]) + matrices @ common
            if turn.phase == Phase.FIRST:
                self.u[fit], self.v[fit] = m, n
                continue
            alpha, beta = float(turn.alpha[fit]), float(turn.beta[fit])
            self.along[:, fit] = np.stack([self.u[fit], self.v[fit], m, n]) + beta * self.along[:, fit]
            p, s, q, z = self.along[:, fit]
            self.x[fit] += alpha * p
            self.r[fit] -= alpha * s
            self.u[fit] -= alpha * q
            self.v[fit] -= alpha * z
        return self._said(fits, self.v, np.zeros(len(fits)))

    def _moved(self, fits: Ints, turn: Turn) -> Reaction:
        """Models after part of Newton's step, for neighbours elsewhere."""
        if turn.phase == Phase.BACK:
            self.w[fits] = self.before[fits]
        self.before = self.w.copy()
        self.w[fits] += turn.alpha[fits][:, None, None] * self.x[fits]
        width = self.w.shape[2]
        nothing = np.zeros((len(fits), 4)), np.zeros((len(fits), width)), np.zeros((len(fits), width, width))
        return Reaction(self.w[fits][:, self.fits.boundary], *nothing)

    def _said(self, fits: Ints, y: Floats, objective: Floats, curvature: Floats | None = None) -> Reaction:
        """J y at the boundary, inner products, and the sum of y over own nodes."""
        for fit in fits.tolist():
            self.solved[fit] = self._systems[fit][1](y[fit].reshape(-1, 1)).reshape(y[fit].shape)
        r, u, v = self.r[fits], self.u[fits], self.v[fits]
        products = [(a * b).sum(axis=(1, 2)) for a, b in ((r, u), (v, u), (r, r))]
        if curvature is None:
            curvature = np.zeros((len(fits), *[self.w.shape[2]] * 2))
        boundary = self.solved[fits][:, self.fits.boundary]
        return Reaction(boundary, np.stack([*products, objective], axis=1), y[fits].sum(axis=1), curvature)


def _laplacian(ends: Ints, weights: Floats, nodes: int) -> scipy.sparse.csr_matrix:
    """Σ_edges A_ij (e_i − e_j)(e_i − e_j)'."""
    head, tail = ends.reshape(-1, 2).T
    where = np.concatenate([head, tail, head, tail]), np.concatenate([head, tail, tail, head])
    values = np.concatenate([weights, weights, -weights, -weights])
    return scipy.sparse.csr_matrix((values, where), shape=(nodes, nodes))


def _by_node(matrices: Floats, K: scipy.sparse.csc_matrix) -> Solver:
    """Solves for each node as if all its neighbours stood still."""
    nodes, width = matrices.shape[:2]
    held = K.diagonal().reshape(nodes, width) - np.einsum("nkk->nk", matrices)
    inverse = invert_symmetric(matrices + held[:, :, None] * np.eye(width))
    return lambda right: np.einsum("njk,nk->nj", inverse, right.reshape(nodes, width)).reshape(-1, 1)


def _solver(K: scipy.sparse.csc_matrix) -> Solver:
    if K.shape[0] > DENSE:
        factors = splu(K)
        return lambda right: np.asarray(factors.solve(right))
    inverse = np.linalg.inv(K.toarray())
    return lambda right: np.asarray(inverse @ right)
