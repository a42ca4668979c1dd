"""Random slopes: a common model, and a deviation from it at every node that is drawn towards zero.

    w_i = w_0 + u_i,    min  Σ_i Σ_r ℓ(x_r'w_i, y_r) + ½ ρ ‖w_0‖² + ½ Σ_i (μ_0 u_i0² + μ_1 Σ_j u_ij²)

By Newton's method: each node sends a gradient and a matrix of its own, the coordinator solves for w_0 and sends it back
(one exchange for squared errors). Neither rows nor deviations leave a node.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from kinfolk.network.data import Data
from kinfolk.network.graph import Graph
from kinfolk.objective.local_losses import LinearLosses
from kinfolk.objective.losses import Squared
from kinfolk.tables.members.member import Member, Needs, Sample, Value
from kinfolk.tables.members.scores import LinearScores, derivatives, labels, loss_of
from kinfolk.tables.rows import Rows
from kinfolk.tables.target import Target
from kinfolk.typing import Floats

INTERCEPT_STRENGTHS = (0.1, 0.6, 4.0, 25.0, 150.0, 1e3)
SLOPE_STRENGTHS = (0.3, 2.0, 12.0, 75.0, 450.0, 3e3)
HARDLY = (0.01, 0.01)  # where nodes have nothing in common, and little noise
NO_RIDGE = 1e-8
STEPS, ACCURACY, HALVINGS = 40, 1e-6, 12
MOST_NUMBERS = 5e7  # of all nodes' matrices


class Strengths(NamedTuple):
    """What draws parameters towards zero: ρ and μ, each (parameters,)."""

    common: Floats
    own: Floats


class Gathered(NamedTuple):
    """What all nodes send for a Newton step at their parameters."""

    gradients: Floats  # (nodes, parameters)
    matrices: Floats  # (nodes, parameters, parameters)


@dataclass(frozen=True, eq=False)
class LinearFit:
    """A linear member that has learnt."""

    scores: LinearScores

    def predict(self, rows: Rows) -> Floats:
        """Predict rows."""
        return self.scores.predict(rows.X, rows.owner)

    def elsewhere(self, rows: Rows) -> Floats | None:
        """Predict rows of nodes that were never seen."""
        model = self.scores.elsewhere
        return None if model is None else model.predict(rows.X, rows.owner)


class RandomSlopes(Member):
    """Random intercepts and slopes, with a strength for each."""

    name = "slopes"
    needs: Needs = "sums"
    parameters = ("intercept strength", "slope strength")

    def missing(self, sample: Sample) -> str | None:
        """One row per node tells nothing of slopes; too many parameters do not fit into memory."""
        sizes = sample.network.data.sizes
        if sizes.max(initial=0) < 2:
            return "every node has one row"
        return "too many coefficients" if len(sizes) * (sample.rows.X.shape[1] + 1) ** 2 > MOST_NUMBERS else None

    def values(self, sample: Sample) -> Sequence[Value]:
        """All pairs of strengths, and next to none."""
        return [HARDLY, *((mu0, mu1) for mu0 in INTERCEPT_STRENGTHS for mu1 in SLOPE_STRENGTHS)]

    def fits(self, sample: Sample, values: Sequence[Value]) -> Iterator[LinearFit]:
        """Fits for each pair, every one started from that before."""
        problems = output_losses(sample.target, sample.network.data)
        kept: list[tuple[Floats, Floats] | None] = [None] * len(problems)
        first = [gathered(losses, np.zeros((losses.node_count, losses.width))) for losses in problems]
        slopes = problems[0].width - 1
        for value in values:
            strengths = strengths_of(value, sample.ridge, slopes)
            for k, losses in enumerate(problems):
                kept[k] = minimise(losses, strengths, kept[k], first[k])
            w = np.stack([start[0] + start[1] for start in kept if start is not None])
            common = np.stack([start[0] for start in kept if start is not None])
            yield LinearFit(LinearScores(w, sample.target, common=common))

    def final(self, sample: Sample, value: Value) -> LinearFit:
        """Nodes that were never seen get the common model, or leave it to those nearby, whichever suits known nodes."""
        scores = super().final(sample, value).scores
        near = nearby(sample.network.graph, scores.w)
        common = LinearScores(scores.common[:, None], sample.target)
        rows, target = sample.rows, sample.target
        errors = [
            float(target.loss(each.predict(rows.X, rows.owner), rows.y).sum())
            for each in (common, LinearScores(near, target))
        ]
        return LinearFit(scores if errors[0] <= errors[1] else replace(scores, common=None))


def nearby(graph: Graph, w: Floats) -> Floats:
    """For every node the mean of the models of its neighbours, itself apart; its own without neighbours."""
    adjacency = graph.to_sparse() > 0
    count = np.asarray(adjacency.sum(axis=1)).ravel()[:, None]
    return np.stack([np.where(count > 0, (adjacency @ each) / np.maximum(count, 1), each) for each in w])


def output_losses(target: Target, data: Data) -> list[LinearLosses]:
    """The local losses of every output."""
    loss = loss_of(target)
    X = np.hstack([data.X, np.ones((len(data.y), 1))])
    ridge = np.zeros((len(data.sizes), X.shape[1]))
    return [LinearLosses(loss, X, y, data.starts, np.ones(len(y)), ridge) for y in labels(target, data.y)]


def gathered(losses: LinearLosses, w: Floats) -> Gathered:
    """Gradients and matrices of all nodes."""
    slope, curvature = derivatives(losses.loss, losses.predict(w), losses.y)
    return Gathered(losses.combine(slope), losses.gram(curvature))


def minimise(
    losses: LinearLosses, strengths: Strengths, start: tuple[Floats, Floats] | None, first: Gathered
) -> tuple[Floats, Floats]:
    """w_0 (parameters,) and u (nodes, parameters); ``first`` is what nodes send at zero."""
    w0, u = np.zeros(losses.width), np.zeros((losses.node_count, losses.width))
    if isinstance(losses.loss, Squared):  # one step is exact
        step0, step = newton_step(first, strengths, w0, u)
        return step0, step
    if start is not None:
        w0, u = start
    now = height(losses, strengths, w0, u)
    for _ in range(STEPS):
        step0, step = newton_step(gathered(losses, w0 + u), strengths, w0, u)
        size = 1.0
        for _ in range(HALVINGS):
            after = height(losses, strengths, w0 + size * step0, u + size * step)
            if after <= now + 1e-12 * abs(now):
                break
            size /= 2
        else:
            break
        w0, u, before, now = w0 + size * step0, u + size * step, now, after
        if before - now <= ACCURACY * (1e-3 + abs(now)) / max(losses.node_count, 1):
            break
    return w0, u


def height(losses: LinearLosses, strengths: Strengths, w0: Floats, u: Floats) -> float:
    """The objective."""
    rows = float(losses.loss.value(losses.predict(w0 + u), losses.y).sum())
    return rows + 0.5 * float(strengths.common @ w0**2) + 0.5 * float((strengths.own * u**2).sum())


class Eliminated(NamedTuple):
    """How the deviations of nodes follow a step of w_0; this stays with the nodes."""

    follow: Floats  # (nodes, parameters, parameters)
    settle: Floats  # (nodes, parameters)


class Reduced(NamedTuple):
    """What is left to solve for w_0, a sum over nodes: this is what sites send."""

    common: Floats  # (parameters, parameters)
    pull: Floats  # (parameters,)


def newton_step(sent: Gathered, strengths: Strengths, w0: Floats, u: Floats) -> tuple[Floats, Floats]:
    """The step for w_0 and all u_i: deviations are eliminated node by node, w_0 is solved for, then they follow."""
    reduced, kept = eliminated(sent, strengths, u)
    step0 = common_step(reduced, strengths, w0)
    return step0, own_steps(kept, step0)


def eliminated(sent: Gathered, strengths: Strengths, u: Floats) -> tuple[Reduced, Eliminated]:
    """Eliminate the deviations of some nodes."""
    width = sent.gradients.shape[1]
    own = sent.matrices + np.diag(strengths.own)  # (nodes, parameters, parameters)
    right = np.concatenate([sent.matrices, (sent.gradients + strengths.own * u)[:, :, None]], axis=2)
    solved = np.linalg.solve(own, right)
    follow, settle = solved[:, :, :width], solved[:, :, width]
    common = (sent.matrices - sent.matrices @ follow).sum(axis=0)
    pull = sent.gradients.sum(axis=0) - np.einsum("njk,nk->j", sent.matrices, settle)
    return Reduced(common, pull), Eliminated(follow, settle)


def common_step(reduced: Reduced, strengths: Strengths, w0: Floats) -> Floats:
    """The step of w_0."""
    width = len(w0)
    least = 1e-10 * max(float(np.trace(reduced.common)) / width, 1e-10)
    common = reduced.common + np.diag(strengths.common + least)
    return np.asarray(-np.linalg.solve(common, reduced.pull + strengths.common * w0))


def own_steps(kept: Eliminated, step0: Floats) -> Floats:
    """The steps of the deviations (nodes, parameters)."""
    return np.asarray(-kept.settle - kept.follow @ step0)


def strengths_of(value: Value, ridge: float, slopes: int) -> Strengths:
    """What draws parameters towards zero, for a pair of values."""
    mu0, mu1 = value
    return Strengths(np.r_[np.full(slopes, max(ridge, NO_RIDGE)), 0.0], np.r_[np.full(slopes, mu1), mu0])
