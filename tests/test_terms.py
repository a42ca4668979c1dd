"""Losses and couplings pass the public checks, and the checks can fail."""

from dataclasses import dataclass

import numpy as np
import pytest

from kinfolk import (
    AbsoluteNorm,
    EuclideanNorm,
    Huber,
    Logistic,
    MaximumNorm,
    PNorm,
    Poisson,
    QuadraticForm,
    Squared,
    SquaredNorm,
)
from kinfolk.testing import check_coupling, check_loss, difficult_network

LOSSES = [
    kind(reduction, ridge, intercept)
    for kind in (Squared, Logistic)
    for reduction in ("mean", "sum")
    for ridge in (0.0, 0.3)
    for intercept in (False, True)
]


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_losses(loss):
    check_loss(loss)


@pytest.mark.parametrize(
    "loss", [Huber(), Huber("sum", 0.1, True, delta=0.3), Poisson(), Poisson("sum", 0.2)], ids=repr
)
def test_more_losses(loss):
    check_loss(loss, np.arange(5.0))


QUADRATIC = QuadraticForm(tuple(map(tuple, np.diag([1.0, 2.0, 0.1, 3.0]).tolist())))
SINGULAR = QuadraticForm(tuple(map(tuple, np.diag([1.0, 2.0, 0.0, 3.0]).tolist())))
NORMS = [EuclideanNorm(), AbsoluteNorm(), MaximumNorm(), PNorm(p=1.05), PNorm(p=1.5), PNorm(p=3.0), PNorm(p=40.0)]


@pytest.mark.parametrize("coupling", [*NORMS, SquaredNorm(), QUADRATIC, SINGULAR], ids=repr)
def test_couplings(coupling):
    check_coupling(coupling)


def test_a_wrong_loss_is_found():
    @dataclass(frozen=True)
    class Halved(Squared):
        def conjugate(self, b, y):
            return b**2 / 2 + b * y

    with pytest.raises(AssertionError, match="conjugate does not fit value"):
        check_loss(Halved())


def test_a_wrong_coupling_is_found():
    @dataclass(frozen=True)
    class Loose(EuclideanNorm):
        def dual_prox(self, v, sigma, weights):
            return super().dual_prox(v, sigma, 2 * weights)

    with pytest.raises(AssertionError):
        check_coupling(Loose())


def test_a_node_without_data_has_no_loss_not_even_ridge():
    network = difficult_network()
    bound = network.site.bound(Squared(ridge=1.0))
    bare = network.data.sizes == 0
    w = np.ones((24, 3))
    assert (bound.value(w)[bare] == 0).all()
    assert (bound.value(w)[~bare] > 1.5).all()
    np.testing.assert_array_equal(bound.prox(w, np.ones(24))[bare], w[bare])


@pytest.mark.parametrize("loss", [Squared(), Squared("sum", 0.1, True), Logistic(ridge=0.1, intercept=True)], ids=repr)
def test_local_minimisers_have_no_gradient(loss):
    network = difficult_network(classes=isinstance(loss, Logistic))
    bound = network.site.bound(loss)
    np.testing.assert_allclose(bound.gradient(bound.minimise()), 0, atol=1e-9)


def test_minimiser_of_the_squared_loss_has_least_norm():
    network = difficult_network()
    w = network.site.bound(Squared()).minimise()
    for node in range(24):
        X, y = network.data[node]
        if len(y):
            np.testing.assert_allclose(w[node], np.linalg.lstsq(X, y, rcond=None)[0], atol=1e-10)


def test_pooled_loss_is_the_sum_of_local_losses():
    network = difficult_network()
    for loss in (Squared(ridge=0.2), Squared("sum"), Logistic("sum", 0.3)):
        bound = network.site.bound(loss)
        group = np.arange(24) % 2
        w = np.random.default_rng(0).normal(size=(2, 3))
        summed = np.bincount(group, bound.value(w[group]))
        np.testing.assert_allclose(bound.pool(group, 2).value(w), summed)
