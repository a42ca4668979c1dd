"""Lines (1) and (2) of GTV minimisation: the compiled passes give what the plain formulas give."""

import numpy as np
import pytest

from kinfolk import AbsoluteNorm, EuclideanNorm, GTVMin, Logistic, Squared, SquaredNorm, fit
from kinfolk.algorithms.gtvmin import Inexact
from kinfolk.algorithms.gtvmin.updates import FastUpdates, Scales, Updates
from kinfolk.objective.couplings import MaximumNorm, PNorm, QuadraticForm
from kinfolk.objective.losses import Absolute, Huber, Poisson, Quantile, SquaredDistance
from kinfolk.testing import difficult_network
from test_gtvmin import network_for

COUPLINGS = [
    EuclideanNorm(), AbsoluteNorm(), SquaredNorm(), MaximumNorm(), PNorm(p=1.5),
    QuadraticForm(((1.0, 0.5, 0.0), (0.5, 1.0, 0.0), (0.0, 0.0, 0.0))),
]  # fmt: skip
LOSSES = [
    Squared(), Squared("sum", 0.1), SquaredDistance(), Logistic(), Huber(delta=0.2), Poisson(), Absolute(),
    Quantile("sum", 0.1, level=0.8),
]  # fmt: skip
FUSED_COUPLINGS, FUSED_LOSSES = COUPLINGS[:3], LOSSES[:2]
EXACT = {"rtol": 0, "atol": 1e-12}


class Point:
    """A random state of a network, and both ways to move on from it."""

    def __init__(self, loss=FUSED_LOSSES[0], coupling=FUSED_COUPLINGS[0], published=False, inexact=None):
        site, rng = network_for(loss).site, np.random.default_rng(0)
        width = site.local_losses(loss).width
        self.w, self.w_bar, self.flow = rng.normal(size=(3, site.node_count, width))
        # Some flows end inside their balls, some on the border.
        self.u = rng.normal(size=(len(site.weights), width)) * 10.0 ** rng.uniform(-3, 0, (len(site.weights), 1))
        arguments = site, loss, coupling, 0.3, Scales.of(site, published), 0.7, 1.6, inexact
        self.plain, self.fast = Updates(*arguments), FastUpdates(*arguments)

    def both(self, line):
        """What a line gives, plain and fast, each on arrays of its own."""
        return line(self.plain), line(self.fast)

    def dual(self, updates):
        return updates.dual(self.u.copy(), self.w_bar)

    def primal(self, updates):
        return updates.primal(self.w.copy(), self.w_bar.copy(), self.flow.copy(), 1)


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("coupling", COUPLINGS, ids=repr)
def test_the_fast_dual_step_is_the_plain_formula(coupling, published):
    point = Point(coupling=coupling, published=published)
    for plain, fast in zip(*point.both(point.dual), strict=True):
        np.testing.assert_allclose(fast, plain, **EXACT)
    lines, site = point.plain, point.plain.site
    ahead = point.u + lines.sigma[:, None] * site.difference(point.w_bar, point.w_bar[:0])
    u_new = coupling.dual_prox(ahead, lines.sigma, 0.3 * site.weights)  # (1), spelt out
    np.testing.assert_allclose(point.dual(point.fast)[0], point.u + 1.6 * (u_new - point.u), **EXACT)
    np.testing.assert_allclose(point.dual(point.fast)[1], site.divergence(point.dual(point.plain)[0]), **EXACT)


@pytest.mark.parametrize("coupling", COUPLINGS, ids=repr)
def test_the_fast_look_at_the_flows_is_the_plain_one(coupling):
    point = Point(coupling=coupling)
    plain, fast = point.both(lambda updates: updates.flows(point.u.copy(), point.w_bar))
    for name in plain._fields:
        np.testing.assert_allclose(getattr(fast, name), getattr(plain, name), **EXACT, err_msg=name)


BY_GRADIENT = [loss for loss in LOSSES if np.isfinite(loss.most_curvature)]


@pytest.mark.parametrize(
    ("loss", "inexact"),
    [*((loss, None) for loss in LOSSES), *((loss, Inexact(1e-3)) for loss in BY_GRADIENT)],
    ids=repr,
)
def test_the_fast_primal_step_is_the_plain_formula(loss, inexact):
    point = Point(loss, inexact=inexact)
    for plain, fast in zip(*point.both(point.primal), strict=True):
        np.testing.assert_allclose(fast, plain, **EXACT)
    lines = point.plain
    w = point.w + 1.6 * (0.5 * (point.w + point.w_bar) - point.w)
    w_new = lines.losses.prox(w - lines.tau[:, None] * point.flow, lines.tau)  # (2), spelt out
    np.testing.assert_allclose(point.primal(point.fast)[0], w, **EXACT)
    # Newton's method ends as near as rounding lets it, gradient steps as near as was asked for.
    atol = 1e-10 if inexact is None else 2e-3
    np.testing.assert_allclose(point.primal(point.fast)[1], 2 * w_new - w, rtol=0, atol=atol)


def test_the_fast_paths_are_taken(monkeypatch):
    def forbidden(*arguments):
        raise AssertionError("the plain formula was used")

    for name in ("dual", "primal", "look"):
        monkeypatch.setattr(Updates, name, forbidden)
    for loss in FUSED_LOSSES:
        for coupling in FUSED_COUPLINGS:
            fit(difficult_network(), GTVMin(loss, coupling), rounds=10, stop=None)
    with pytest.raises(AssertionError, match="plain formula"):
        fit(difficult_network(), GTVMin(SquaredDistance()), rounds=1, stop=None)
