"""Node intercepts: one model for all, and a shift at every node that is like that of nodes nearby.

The shifts are a Gaussian process over the places of nodes plus an independent part, or the independent part alone where
no places are known:

    b ~ N(0, K),  K_ij = s² e^(−d_ij / r) + t² 1[i = j],  observed: the mean rest of each node, with variance φ / h_i

h_i is the curvature of a node's loss (its number of rows, for squared errors). r, s, t and, where no node has two rows,
φ are those with the largest marginal likelihood. Nodes send two numbers each: slope and curvature of their loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize
from sklearn.neighbors import NearestNeighbors

from kinfolk.objective.losses import Loss
from kinfolk.tables.members.member import Member, Needs, Sample, Value
from kinfolk.tables.members.scores import LinearScores, derivatives, labels, loss_of
from kinfolk.tables.members.slopes import LinearFit
from kinfolk.typing import Floats, Ints

EXACT = 1_000  # nodes; with more, each is predicted from those nearest to it
NEAREST = 60
LIKELIHOOD = 400  # nodes from which the parameters are estimated
RELINEARISED = 5  # times, where the loss is not squared
EARTH = 6371.0


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


class NodeIntercepts(Member):
    """One model for all with an intercept per node."""

    name = "intercepts"
    needs: ClassVar[Needs] = "sums"
    parameters = ("radius", "near", "apart", "noise")

    def values(self, sample: Sample) -> Sequence[Value]:
        """The most likely covariance, of the first output."""
        return [tuple(vars(most_likely(sample, _pseudo(sample, 0))).values())]

    def fits(self, sample: Sample, values: Sequence[Value]) -> Iterator[LinearFit]:
        """The shifts of all nodes, given the covariance."""
        assert sample.base is not None
        for value in values:
            covariance = Covariance(*value)
            w = np.repeat(sample.base.w, sample.node_count, axis=1)
            for k in range(len(w)):
                w[k, :, -1] += _shifts(sample, covariance, k)
            yield LinearFit(LinearScores(w, sample.target))


@dataclass(frozen=True, eq=False)
class Rest:
    """What one model for all leaves at every node: mean and weight."""

    mean: Floats  # (nodes,) 0 without rows
    weight: Floats  # (nodes,) h_i, 0 without rows
    noise: float | None  # φ; None where no node has two rows


def _pseudo(sample: Sample, output: int, shift: Floats | None = None) -> Rest:
    """The rest of the base model at every node, to second order around a shift."""
    assert sample.base is not None
    X, y, owner, _ = sample.rows
    z = sample.base.linear(X, owner)[output]
    z = z if shift is None else z + shift[owner]
    return _rest(loss_of(sample.target), z, labels(sample.target, y)[output], owner, sample.node_count, shift)


def _rest(loss: Loss, z: Floats, y: Floats, owner: Ints, count: int, shift: Floats | None) -> Rest:
    slope, curvature = derivatives(loss, z, y)
    curvature = np.maximum(curvature, 1e-9)
    weight: Floats = np.bincount(owner, curvature, minlength=count).astype(np.float64)
    mean = -np.bincount(owner, slope, minlength=count) / np.maximum(weight, 1e-300)
    within = -slope / curvature - mean[owner]
    freedom = len(y) - int((weight > 0).sum())
    noise = float((curvature * within**2).sum()) / freedom if freedom >= 5 else None
    return Rest(np.where(weight > 0, mean + (0.0 if shift is None else shift), 0.0), weight, noise)


def _shifts(sample: Sample, covariance: Covariance, output: int) -> Floats:
    """The expected shift of every node (nodes,)."""
    shift = smoothed(sample, covariance, _pseudo(sample, output))
    for _ in range(0 if sample.target.kind == "number" else RELINEARISED):
        shift = smoothed(sample, covariance, _pseudo(sample, output, shift))
    return shift


def most_likely(sample: Sample, rest: Rest) -> Covariance:
    """The covariance with the largest marginal likelihood, estimated from some of the nodes."""
    known = np.flatnonzero(rest.weight > 0)
    rng = np.random.default_rng([sample.seed, 11])
    some = np.sort(rng.choice(known, LIKELIHOOD, replace=False)) if len(known) > LIKELIHOOD else known
    mean, weight = rest.mean[some], rest.weight[some]
    size = float(np.average(mean**2, weights=weight)) or 1e-12
    noise = rest.noise if rest.noise is not None else 0.5 * size * float(np.median(weight))
    distance = None if sample.places is None else distances(sample.places[some], sample.places[some], sample.globe)
    typical = 1.0 if distance is None else float(np.median(distance[distance > 0])) if (distance > 0).any() else 1.0

    def covariance(log: Floats) -> Covariance:
        free = np.exp(np.clip(log, -12, 8))
        near = 0.0 if distance is None else size * free[1]
        return Covariance(typical * free[0], near, size * free[2], noise * (free[3] if rest.noise is None else 1.0))

    def cost(log: Floats) -> float:
        return -likelihood(covariance(log), mean, weight, distance) + 0.05 * float(log @ log) / 2

    starts = [np.array([0.0, -0.7, -0.7, 0.0]), np.array([-2.0, -0.7, -2.0, 0.0])][: 1 if distance is None else 2]
    found = [minimize(cost, start, method="L-BFGS-B", options={"maxiter": 40}) for start in starts]
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


def smoothed(sample: Sample, covariance: Covariance, rest: Rest) -> Floats:
    """The posterior mean of all shifts."""
    count = sample.node_count
    trust = covariance.apart / (covariance.apart + covariance.noise / np.maximum(rest.weight, 1e-300))
    if sample.places is None:
        return np.where(rest.weight > 0, trust * rest.mean, 0.0)
    known = np.flatnonzero(rest.weight > 0)
    if count <= EXACT:
        return _exact(sample.places, sample.globe, covariance, rest, known)
    return _nearby(sample.places, sample.globe, covariance, rest, known)


def _exact(places: Floats, globe: bool, covariance: Covariance, rest: Rest, known: Ints) -> Floats:
    across = covariance.between(distances(places, places[known], globe))
    across[known, np.arange(len(known))] += covariance.apart
    spread = across[known] + np.diag(covariance.noise / rest.weight[known])
    return np.asarray(across @ np.linalg.solve(spread, rest.mean[known]))


def _nearby(places: Floats, globe: bool, covariance: Covariance, rest: Rest, known: Ints) -> Floats:
    """Every node from the nearest that have rows, itself among them: one small system each."""
    metric, turn = ("haversine", np.radians) if globe else ("euclidean", np.asarray)
    search = NearestNeighbors(metric=metric).fit(turn(places[known]))
    away, near = search.kneighbors(turn(places), n_neighbors=min(NEAREST, len(known)))
    out = np.empty(len(places))
    for part in np.array_split(np.arange(len(places)), max(len(places) // 2_000, 1)):
        who = known[near[part]]  # (part, nearest)
        itself = who == part[:, None]
        across = covariance.between(away[part] * (EARTH if globe else 1.0)) + covariance.apart * itself
        spread = covariance.between(among(places[who], globe))
        spread += np.eye(who.shape[1]) * (covariance.apart + covariance.noise / rest.weight[who])[:, None, :]
        out[part] = np.einsum("pk,pk->p", across, np.linalg.solve(spread, rest.mean[who][:, :, None])[:, :, 0])
    return out


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
