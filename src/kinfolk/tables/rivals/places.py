"""Regression over places: a Gaussian process on what one ridge leaves, and geographically weighted regression.

Distances are planar, in the units of the coordinates. Both need sums by place only: rows at the same place are
one point.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

from kinfolk.tables.rivals.linear import features, fitted
from kinfolk.tables.rivals.rival import SEED, Rival, at_most, choose, fit_quietly, has_places
from kinfolk.tables.rivals.sums import normal_equations
from kinfolk.tables.rows import Rows
from kinfolk.tables.target import Target
from kinfolk.typing import Floats, Ints

MOST_PLACES = 3_000  # of a Gaussian process
PLACES_TO_LEARN_KERNEL = 500
MOST_SUMS = 20_000_000  # places × squared columns, of local regressions
BANDWIDTHS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 4.0)  # in root mean squared distances from the centre
RIDGE_TERM = 1.0  # of a local regression
AT_ONCE = 500  # places


class Spots(NamedTuple):
    """The distinct places of rows."""

    place: Floats  # (places, 2)
    row: Ints  # (rows,) which of them

    @classmethod
    def of(cls, rows: Rows) -> Spots:
        """The places of some rows."""
        assert rows.place is not None
        place, row = np.unique(rows.place, axis=0, return_inverse=True)
        return cls(place, row.ravel())


def _place_count(training: Rows) -> int:
    return 0 if training.place is None else len(Spots.of(training).place)


def _sum_count(training: Rows) -> int:
    return int(_place_count(training) * (training.X.shape[1] + 1) ** 2)


# ---------------------------------------------------------------------- one ridge and a Gaussian process


def gaussian_process(training: Rows, asked: Rows, target: Target, node_count: int) -> Floats:
    """Predictions of one ridge, and of a Gaussian process over places on what it leaves."""
    ridge = fitted(features, training, target, node_count)
    rest, spots = training.y - ridge(training), Spots.of(training)
    count = np.bincount(spots.row)
    mean = np.bincount(spots.row, rest) / count
    again = len(rest) >= 2 * len(count)  # rows at the same place tell their noise
    within = ((rest - mean[spots.row]) ** 2).sum() / (len(rest) - len(count)) if again else 0.0
    process = _process(spots.place, mean, within / count + 1e-8, nugget=not again)
    new = Spots.of(asked)
    out: Floats = ridge(asked) + process.predict(new.place)[new.row]
    return out


def _process(place: Floats, mean: Floats, noise: Floats, nugget: bool) -> GaussianProcessRegressor:
    """A Gaussian process with covariance exp(−d/r); r by marginal likelihood, from some of many places."""
    spread = place.std(axis=0) + 1e-12
    kernel = ConstantKernel(mean.var() + 1e-6, (1e-8, 1e4)) * Matern(spread, [(1e-3 * s, 1e3 * s) for s in spread], 0.5)
    kernel = kernel + WhiteKernel(mean.var() / 2 + 1e-6, (1e-8, 1e4)) if nugget else kernel
    some = np.random.default_rng(SEED).permutation(len(place))[:PLACES_TO_LEARN_KERNEL]
    learnt = fit_quietly(GaussianProcessRegressor(kernel, alpha=noise[some]), place[some], mean[some])
    return GaussianProcessRegressor(learnt.kernel_, alpha=noise, optimizer=None).fit(place, mean)


# ---------------------------------------------------------------------- geographically weighted regression


def gwr(training: Rows, asked: Rows, target: Target, node_count: int) -> Floats:
    """Predictions of geographically weighted regression, the bandwidth by cross-validation."""
    assert training.place is not None
    unit = float(np.sqrt(training.place.var(axis=0).sum())) or 1.0
    bandwidths = [unit * share for share in BANDWIDTHS]
    best = choose(bandwidths, training, target, lambda known, rows: [locally(known, rows, h) for h in bandwidths])
    return locally(training, asked, best)


def locally(training: Rows, asked: Rows, bandwidth: float) -> Floats:
    """Predictions of a ridge at every place, training rows weighted by exp(−½ (distance / bandwidth)²).

    Parameters
    ----------
    training, asked : Rows
        Rows to learn from and rows to predict, with places.
    bandwidth : float
        In the units of the coordinates.

    Returns
    -------
    Floats
        Predictions (rows,).
    """
    spots, new = Spots.of(training), Spots.of(asked)
    gram, moment = normal_equations(_with_one(training.X), training.y, spots.row, len(spots.place))
    weights = np.concatenate(
        [_local_models(place, spots.place, bandwidth, gram, moment) for place in _portions(new.place)]
    )
    found: Floats = np.einsum("rj,rj->r", _with_one(asked.X), weights[new.row])
    return found


def _portions(place: Floats) -> list[Floats]:
    return np.array_split(place, max(1, -(-len(place) // AT_ONCE)))


def _with_one(X: Floats) -> Floats:
    return np.column_stack([np.ones(len(X)), X])


def _local_models(place: Floats, known: Floats, bandwidth: float, gram: Floats, moment: Floats) -> Floats:
    """The coefficients of the local ridge at some places (places, columns); the intercept is not shrunk."""
    squared = ((place[:, None] - known) ** 2).sum(axis=2)
    nearest = squared.min(axis=1, keepdims=True)  # weights are relative: far from all rows the nearest still count
    weight = np.exp(-0.5 * (squared - nearest) / bandwidth**2)
    width = moment.shape[1]
    penalty = RIDGE_TERM * np.eye(width)
    penalty[0, 0] = 1e-9
    local = np.tensordot(weight, gram, axes=1) + penalty
    found: Floats = np.linalg.solve(local, (weight @ moment)[..., None])[..., 0]
    return found


GAUSSIAN_PROCESS = Rival(
    "gaussian process", "one ridge and a Gaussian process over places", gaussian_process, ("number",),
    (has_places, at_most(MOST_PLACES, "places", _place_count)),
)  # fmt: skip
GWR = Rival(
    "gwr", "geographically weighted regression", gwr, ("number",),
    (has_places, at_most(MOST_SUMS, "places × squared features", _sum_count)),
)  # fmt: skip
