"""Losses and couplings pass the public checks, and the checks can fail."""

from dataclasses import dataclass

import cvxpy
import numpy as np
import pytest

from kinfolk import AbsoluteNorm, EuclideanNorm, Logistic, Squared, SquaredNorm
from kinfolk.network.data import Data
from kinfolk.objective.couplings import Coupling, MaximumNorm, PNorm, QuadraticForm
from kinfolk.objective.losses import Absolute, Huber, Poisson, Quantile, SquaredDistance
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


KINKED = [
    kind(reduction, ridge, intercept)
    for kind in (Absolute, Quantile)
    for reduction in ("mean", "sum")
    for ridge in (0.0, 0.3)
    for intercept in (False, True)
]


@pytest.mark.parametrize(
    "loss", [*KINKED, Quantile(level=0.05), SquaredDistance(), SquaredDistance("sum", 0.2)], ids=repr
)
def test_losses_with_a_kink_and_without_labels(loss):
    check_loss(loss)
    check_loss(loss, np.arange(3.0))


def awkward_rows(kind: str, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Rows that an active-set method may stumble over."""
    rows, features = {"wide": (2, 40), "tall": (60, 3)}.get(kind, (12, 5))
    X, y = rng.normal(size=(rows, features)), rng.normal(size=rows)
    if kind == "equal":
        X, y = X[[0] * 4 + [1] * 4 + [2] * 4], y[[0] * 4 + [1] * 4 + [2] * 4]
    if kind == "contradicting":
        X = X[[0] * 6 + [1] * 6]
    if kind == "nearly collinear":
        X = np.outer(X[:, 0], X[0]) + 1e-7 * X
    if kind == "ties":
        X, y = np.sign(X), np.zeros(rows)
    if kind == "empty":
        X[::2] = 0.0
    return X, y


@pytest.mark.parametrize("kind", ["wide", "tall", "equal", "contradicting", "nearly collinear", "ties", "empty"])
def test_the_prox_of_a_kinked_loss_is_exact(kind):
    rng = np.random.default_rng(0)
    for _ in range(30):
        X, y = awkward_rows(kind, rng)
        losses = Absolute("sum").bind(Data.from_nodes([(X, y)]))
        v, tau = rng.normal(size=(1, X.shape[1])) * 10.0 ** rng.uniform(-1, 1), 10.0 ** rng.uniform(-3, 2, 1)
        for start in (None, np.zeros_like(v)):
            w, dual = losses.prox_with_dual(v, tau, start)
            assert (np.abs(dual) <= 1).all()
            pulls = tau * np.abs(X.T) @ np.abs(dual)
            np.testing.assert_array_less(np.abs(v - tau * (X.T @ dual) - w)[0], 1e-14 * (1 + pulls + np.abs(v[0])))
            rest, size = X @ w[0] - y, np.abs(y) + np.abs(X) @ (np.abs(v[0]) + pulls)
            wrong = np.where(dual < 1, np.maximum(rest, 0), 0) + np.where(dual > -1, np.maximum(-rest, 0), 0)
            np.testing.assert_array_less(wrong, 1e-12 * size + 1e-300)


@pytest.mark.parametrize(
    "loss", [Absolute(), Absolute("sum", 0.1, True), Quantile(intercept=True, level=0.2)], ids=repr
)
def test_the_minimiser_of_a_kinked_loss_is_that_of_cvxpy(loss):
    network = difficult_network()
    losses = network.site.local_losses(loss)
    w = losses.minimise()
    np.testing.assert_allclose(losses.descent(w), 0, atol=1e-12)
    for node in np.flatnonzero(losses.has_data):
        X, y = network.data[node]
        v = cvxpy.Variable(losses.width)
        z = X @ v[:3] + (v[3] if loss.intercept else 0)
        low, high = loss.slopes(y)
        rows = cvxpy.maximum(cvxpy.multiply(low, z - y), cvxpy.multiply(high, z - y))
        c = 1 if loss.reduction == "sum" else 1 / len(y)
        best = cvxpy.Problem(cvxpy.Minimize(c * cvxpy.sum(rows) + loss.ridge / 2 * cvxpy.sum_squares(v[:3])))
        assert losses.value(w)[node] == pytest.approx(best.solve(solver=cvxpy.CLARABEL), abs=1e-7)


def test_wrong_slopes_are_found():
    @dataclass(frozen=True)
    class Tilted(Absolute):
        def slopes(self, y):
            return 0.5 + 0 * y, 1 + 0 * y

    with pytest.raises(AssertionError, match="must not be positive below the kink"):
        check_loss(Tilted())


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


def test_an_ability_that_is_not_declared_is_found():
    @dataclass(frozen=True)
    class Silent(SquaredNorm):
        is_quadratic = False

    @dataclass(frozen=True)
    class Mute(EuclideanNorm):
        has_derivative = False

    for coupling, flag in ((Silent(), "is_quadratic"), (Mute(), "has_derivative")):
        with pytest.raises(AssertionError, match=f"declare {flag} = True"):
            check_coupling(coupling)


def test_a_coupling_without_one_of_the_three_functions_is_none():
    class Half(Coupling):
        is_norm = True

        def value(self, v):
            return np.abs(v).sum(axis=1)

    with pytest.raises(TypeError, match="conjugate"):
        Half()


def test_a_node_without_data_has_no_loss_not_even_ridge():
    network = difficult_network()
    losses = network.site.local_losses(Squared(ridge=1.0))
    bare = network.data.sizes == 0
    w = np.ones((24, 3))
    assert (losses.value(w)[bare] == 0).all()
    assert (losses.value(w)[~bare] > 1.5).all()
    np.testing.assert_array_equal(losses.prox(w, np.ones(24))[bare], w[bare])


@pytest.mark.parametrize("loss", [Squared(), Squared("sum", 0.1, True), Logistic(ridge=0.1, intercept=True)], ids=repr)
def test_local_minimisers_have_no_gradient(loss):
    network = difficult_network(classes=isinstance(loss, Logistic))
    losses = network.site.local_losses(loss)
    np.testing.assert_allclose(losses.gradient(losses.minimise()), 0, atol=1e-9)


def test_minimiser_of_the_squared_loss_has_least_norm():
    network = difficult_network()
    w = network.site.local_losses(Squared()).minimise()
    for node in range(24):
        X, y = network.data[node]
        if len(y):
            np.testing.assert_allclose(w[node], np.linalg.lstsq(X, y, rcond=None)[0], atol=1e-10)


def test_pooled_loss_is_the_sum_of_local_losses():
    network = difficult_network()
    for loss in (Squared(ridge=0.2), Squared("sum"), Logistic("sum", 0.3), Absolute(), SquaredDistance(ridge=0.1)):
        losses = network.site.local_losses(loss)
        group = np.arange(24) % 2
        w = np.random.default_rng(0).normal(size=(2, 3))
        summed = np.bincount(group, losses.value(w[group]))
        np.testing.assert_allclose(losses.pool(group, 2).value(w), summed)
