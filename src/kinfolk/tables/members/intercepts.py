"""Node intercepts: one model for all, and a shift at every node that is like that of nodes nearby.

The shifts are a Gaussian process over the places of nodes plus an independent part, or the independent part alone where
no places are known:

    b ~ N(0, K),  K_ij = s² e^(−d_ij / r) + t² 1[i = j],  observed: the mean rest of each node, with variance φ / h_i

h_i is the curvature of a node's loss (its number of rows, for squared errors). r, s, t and, where no node has two rows,
φ are those with the largest marginal likelihood. Nodes send two numbers each: slope and curvature of their loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize
from sklearn.neighbors import NearestNeighbors

from kinfolk.objective.losses import Loss, Squared
from kinfolk.tables.families import RIDGES
from kinfolk.tables.members.linear_fit import LinearFit
from kinfolk.tables.members.member import Access, RowMember, TrainingSet, Value
from kinfolk.tables.members.scores import LinearScores, derivatives, loss_of
from kinfolk.typing import Floats, Ints

if TYPE_CHECKING:
    from kinfolk.tables.cross_validation import CrossValidation, Validation

EXACT = 1_000  # nodes; with more, each is predicted from those nearest to it
NEAREST = 30
LIKELIHOOD = 300  # nodes from which the parameters are estimated
TURNS, SETTLED = 20, 1e-3  # of Newton's method, and the change of shifts at which they end
LEAST_CURVATURE = 1e-9
EARTH = 6371.0
NO_RIDGE = 1e-8


@dataclass(frozen=True)
class Covariance:
    """The covariance of shifts, and the noise of a row."""

    radius: float
    near: float  # s²
    apart: float  # t²
    noise: float  # φ

    def between(self, distance: Floats) -> Floats:
        """Of the part that nearby nodes share."""
        return self.near * np.exp(-distance / self.radius)


class NodeIntercepts(RowMember):
    """One model for all with an intercept per node."""

    name = "intercepts"
    access: Access = "sums"
    parameters = ("radius", "near", "apart", "noise", "ridge")
    inputs = ("pooled",)
    uses_places = True

    def __init__(self, ridges: Sequence[float] = RIDGES) -> None:
        self.ridges = ridges

    def tuned_control(self, cv: CrossValidation, best: Validation) -> Validation:
        """With the best ridge term, and a covariance of its own."""
        return cv.validate(NodeIntercepts((best.value[-1],)), control=True)

    def values(self, training: TrainingSet) -> Sequence[Value]:
        """The most likely covariance, with every ridge term."""
        problem = Common.of(training, self.ridges[0] if len(self.ridges) == 1 else training.ridge)
        first = most_likely(training, problem.rest(problem.start, None))
        w, shift = problem.fitted(smoother(training, first))
        covariance = most_likely(training, problem.rest(w, shift))
        return [(*vars(covariance).values(), ridge) for ridge in self.ridges]

    def fits(self, training: TrainingSet, values: Sequence[Value]) -> Iterator[LinearFit]:
        """Model and shifts, given the covariance."""
        smoothers: dict[Covariance, Smoother] = {}
        for *value, ridge in values:
            covariance = Covariance(*value)
            smooth = smoothers.setdefault(covariance, smoother(training, covariance))
            w, shift = Common.of(training, ridge).fitted(smooth)
            own = np.column_stack([np.tile(w[:-1], (len(shift), 1)), w[-1] + shift])
            common = w[None] if training.places is None else None  # places tell what the shift there is like
            yield LinearFit(LinearScores(own[None], training.target, common=common))


@dataclass(frozen=True, eq=False)
class Rest:
    """What the model for all leaves at every node: mean and weight."""

    mean: Floats  # (nodes,) 0 without rows
    weight: Floats  # (nodes,) h_i, 0 without rows
    noise: float | None  # φ; None where no node has two rows


@dataclass(frozen=True, eq=False)
class Common:
    """One model for all and the shifts of all nodes, fitted together. More than two classes have another member."""

    loss: Loss
    X: Floats  # (rows, parameters), ones last
    y: Floats
    owner: Ints
    node_count: int
    ridge: Floats  # (parameters,)
    start: Floats  # (parameters,) the model for all without shifts

    @classmethod
    def of(cls, training: TrainingSet, strength: float) -> Common:
        """The problem of a training that has a base."""
        assert training.base is not None
        X = np.column_stack([training.rows.X, np.ones(len(training.rows.y))])
        ridge = np.r_[np.full(X.shape[1] - 1, max(strength, NO_RIDGE)), 0.0]
        rows, count = training.rows, training.node_count
        return cls(loss_of(training.target), X, rows.y, rows.owner, count, ridge, training.base.w[0, 0])

    def fitted(self, smooth: Smoother) -> tuple[Floats, Floats]:
        """The model (parameters,) and the shifts (nodes,)."""
        w, shift = self.start, np.zeros(self.node_count)
        for _ in range(TURNS):
            before = shift
            w, shift = self.stepped(w, shift, smooth)
            settled = np.abs(shift - before).max(initial=0.0) <= SETTLED * np.abs(shift).max(initial=0.0)
            if settled or isinstance(self.loss, Squared):  # one step is exact
                break
        return w, shift

    def rest(self, w: Floats, shift: Floats | None) -> Rest:
        """What the model leaves at every node, to second order around a shift."""
        z = self.X @ w
        slope, curvature = derivatives(self.loss, z if shift is None else z + shift[self.owner], self.y)
        curvature = np.maximum(curvature, LEAST_CURVATURE)
        weight = self.sums(curvature)
        mean = -self.sums(slope) / np.maximum(weight, 1e-300)
        within = -slope / curvature - mean[self.owner]
        freedom = len(self.y) - int((weight > 0).sum())
        noise = float((curvature * within**2).sum()) / freedom if freedom >= 5 else None
        return Rest(np.where(weight > 0, mean + (0.0 if shift is None else shift), 0.0), weight, noise)

    def stepped(self, w: Floats, shift: Floats, smooth: Smoother) -> tuple[Floats, Floats]:
        """Model and shifts after a Newton step in both: the shifts are linear in the model, b = S (r̄ − X̄ w)."""
        z = self.X @ w + shift[self.owner]
        slope, curvature = derivatives(self.loss, z, self.y)
        curvature = np.maximum(curvature, LEAST_CURVATURE)
        weight, wanted = self.sums(curvature), z - slope / curvature
        sums = np.column_stack([self.sums(curvature * each) for each in (*self.X.T, wanted)])
        smoothed = smooth(weight, sums / np.maximum(weight, 1e-300)[:, None])
        weighed, follow, free = self.X * curvature[:, None], smoothed[:, :-1], smoothed[:, -1]
        matrix = weighed.T @ (self.X - follow[self.owner]) + np.diag(self.ridge)
        matrix[np.diag_indices(len(w))] += 1e-10 * max(float(np.trace(matrix)) / len(w), 1e-10)
        w = np.asarray(np.linalg.solve(matrix, weighed.T @ (wanted - free[self.owner])), dtype=np.float64)
        return w, free - follow @ w

    def sums(self, values: Floats) -> Floats:
        """Of the rows of each node."""
        return np.asarray(np.bincount(self.owner, values, minlength=self.node_count), dtype=np.float64)


def most_likely(training: TrainingSet, rest: Rest) -> Covariance:
    """The covariance with the largest marginal likelihood, estimated from some of the nodes."""
    known = np.flatnonzero(rest.weight > 0)
    rng = np.random.default_rng([training.seed, 11])
    some = np.sort(rng.choice(known, LIKELIHOOD, replace=False)) if len(known) > LIKELIHOOD else known
    mean, weight = rest.mean[some], rest.weight[some]
    size = float(np.average(mean**2, weights=weight)) or 1e-12
    noise = rest.noise if rest.noise is not None else 0.5 * size * float(np.median(weight))
    there = None if training.places is None else training.places[some]
    distance = None if there is None else distances(there, there, training.globe)
    typical = 1.0 if distance is None else float(np.median(distance[distance > 0])) if (distance > 0).any() else 1.0

    def covariance(log: Floats) -> Covariance:
        free = np.exp(np.clip(log, -12, 8))
        near = 0.0 if distance is None else size * free[1]
        return Covariance(typical * free[0], near, size * free[2], noise * (free[3] if rest.noise is None else 1.0))

    def cost(log: Floats) -> float:
        return -likelihood(covariance(log), mean, weight, distance) + 0.05 * float(log @ log) / 2

    starts = [np.array([0.0, -0.7, -0.7, 0.0]), np.array([-2.0, -0.7, -2.0, 0.0])][: 1 if distance is None else 2]
    found = [minimize(cost, start, method="L-BFGS-B", options={"maxiter": 25}) for start in starts]
    return covariance(min(found, key=lambda each: float(each.fun)).x)


def likelihood(covariance: Covariance, mean: Floats, weight: Floats, distance: Floats | None) -> float:
    """The logarithm of the marginal likelihood of the nodes' mean rests."""
    spread = np.diag(covariance.apart + covariance.noise / weight)
    if distance is not None:
        spread = spread + covariance.between(distance)
    try:
        factor = cho_factor(spread, lower=True, check_finite=False)
    except np.linalg.LinAlgError:
        return -np.inf
    return float(-0.5 * mean @ cho_solve(factor, mean, check_finite=False) - np.log(np.diag(factor[0])).sum())


Smoother = Callable[[Floats, Floats], Floats]  # from weights and means at nodes to posterior means of all shifts


def smoother(training: TrainingSet, covariance: Covariance) -> Smoother:
    """The posterior mean of shifts, given weights (nodes,) and what nodes have in the mean (nodes, columns).

    It is linear in the means; what depends on weights alone is computed once.
    """
    if training.places is None:
        return partial(_apart, covariance)
    make = _exact if training.node_count <= EXACT else _nearby
    kept: dict[bytes, Callable[[Floats], Floats]] = {}

    def smooth(weight: Floats, means: Floats) -> Floats:
        key = weight.tobytes()
        if key not in kept:
            kept.clear()
            known = np.flatnonzero(weight > 0)
            kept[key] = make(training, covariance, covariance.noise / weight[known], known)
        return kept[key](means)

    return smooth


def _apart(covariance: Covariance, weight: Floats, means: Floats) -> Floats:
    """Each node by itself."""
    trust = covariance.apart / (covariance.apart + covariance.noise / np.maximum(weight, 1e-300))
    return np.where(weight > 0, trust, 0.0)[:, None] * means


def _exact(training: TrainingSet, covariance: Covariance, noise: Floats, known: Ints) -> Callable[[Floats], Floats]:
    """All nodes from all that have rows."""
    assert training.places is not None
    across = covariance.between(distances(training.places, training.places[known], training.globe))
    across[known, np.arange(len(known))] += covariance.apart
    factor = cho_factor(across[known] + np.diag(noise), lower=True)
    return lambda means: np.asarray(across @ cho_solve(factor, means[known]))


def _nearby(training: TrainingSet, covariance: Covariance, noise: Floats, known: Ints) -> Callable[[Floats], Floats]:
    """Every node from the nearest that have rows, itself among them: one small system each."""
    assert training.places is not None
    places, globe = training.places, training.globe
    metric, turn = ("haversine", np.radians) if globe else ("euclidean", np.asarray)
    search = NearestNeighbors(metric=metric).fit(turn(places[known]))
    away, near = search.kneighbors(turn(places), n_neighbors=min(NEAREST, len(known)))
    weight = np.empty(near.shape)
    for part in np.array_split(np.arange(len(places)), max(len(places) // 2_000, 1)):
        who = near[part]  # (part, nearest)
        itself = known[who] == part[:, None]
        across = covariance.between(away[part] * (EARTH if globe else 1.0)) + covariance.apart * itself
        spread = covariance.between(among(places[known[who]], globe))
        spread += np.eye(who.shape[1]) * (covariance.apart + noise[who])[:, None, :]
        weight[part] = np.linalg.solve(spread, across[:, :, None])[:, :, 0]
    return lambda means: np.stack([np.einsum("nk,nk->n", weight, each[known][near]) for each in means.T], axis=1)


def distances(one: Floats, other: Floats, globe: bool) -> Floats:
    """Between all pairs (one, other), in kilometres on the globe."""
    if not globe:
        return np.asarray(np.sqrt(((one[:, None] - other[None]) ** 2).sum(axis=2)))
    return _great_circle(one[:, None], other[None])


def among(places: Floats, globe: bool) -> Floats:
    """Between all pairs of each group (groups, size, 2): (groups, size, size)."""
    if not globe:
        return np.asarray(np.sqrt(((places[:, :, None] - places[:, None]) ** 2).sum(axis=3)))
    return _great_circle(places[:, :, None], places[:, None])


def _great_circle(one: Floats, other: Floats) -> Floats:
    one, other = np.radians(one), np.radians(other)
    half = (one - other) / 2
    chord = np.sin(half[..., 0]) ** 2 + np.cos(one[..., 0]) * np.cos(other[..., 0]) * np.sin(half[..., 1]) ** 2
    return np.asarray(2 * EARTH * np.arcsin(np.sqrt(np.clip(chord, 0, 1))))
