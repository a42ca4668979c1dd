"""The finish for ‖·‖_p: CVXPY, certificates, differences and the slope of the norm are the oracles."""

import numpy as np
import pytest

from kinfolk import EuclideanNorm, Graph, GTVMin, Network, Squared, fit
from kinfolk.algorithms.gtvmin.power_balls import PowerBalls
from kinfolk.objective.couplings import PNorm
from kinfolk.objective.losses import Absolute
from test_gtvmin import network_for, smallest_objective

POWERS = [1.05, 1.3, 1.5, 2.0, 3.0, 8.0, 100.0]
RADIUS = np.array([0.3, 1.0, 20.0])
DIFFERENCES = np.array([[0.4, -1.0, 0.2, 0.0], [1e-3, 0.5, -2.0, 0.7], [5.0, 0.1, 0.1, -3.0]])


@pytest.mark.filterwarnings("ignore:Solution may be inaccurate", "ignore:pnorm with p=")
@pytest.mark.parametrize("loss", [Squared(), Absolute()], ids=repr)
@pytest.mark.parametrize("p", [1.3, 1.5, 3.0, 8.0])
def test_default_runs_end_early_with_the_optimum_of_cvxpy(p, loss):
    network, algorithm = network_for(loss), GTVMin(loss, PNorm(p), lam=0.2)
    run, best = fit(network, algorithm), smallest_objective(network, algorithm)
    assert run.stopped.startswith("converged")
    assert "polished from" in run.stopped
    assert run.rounds <= 41
    assert abs(run.certificate.objective - best) <= 1e-6 * best
    assert run.certificate.relative <= 1e-6


@pytest.mark.parametrize("loss", [Squared(ridge=0.1), Absolute("sum")], ids=repr)
@pytest.mark.parametrize("p", [1.05, 100.0])
def test_weights_over_eight_decades_are_proven_for_the_largest_and_smallest_p(p, loss):
    rng = np.random.default_rng(3)
    ends = [(i, j) for i in range(12) for j in range(i) if rng.random() < 0.3]
    graph = Graph(12, ends, 10.0 ** rng.uniform(-4, 4, len(ends)))
    sets = [None if node % 4 == 3 else (rng.normal(size=(3, 4)), rng.normal(size=3)) for node in range(12)]
    run = fit(Network(graph, sets), GTVMin(loss, PNorm(p), lam=30.0))
    assert "polished from" in run.stopped
    assert run.certificate.relative <= 1e-6


def test_with_p_2_the_answer_is_that_of_the_euclidean_norm():
    network = network_for(Squared())
    ours, theirs = (fit(network, GTVMin(coupling=each, lam=0.2)) for each in (PNorm(2.0), EuclideanNorm()))
    np.testing.assert_allclose(ours.models.w, theirs.models.w, atol=1e-5)


@pytest.mark.parametrize("p", POWERS)
def test_a_start_with_a_small_target_is_the_slope_of_the_norm(p):
    start = PowerBalls(DIFFERENCES, RADIUS, p, mu=1e-12)
    value = PNorm(p).value(DIFFERENCES)
    np.testing.assert_allclose((start.u * DIFFERENCES).sum(axis=1), RADIUS * value, rtol=1e-6)
    assert (PNorm(p).dual_norm(start.u) <= RADIUS * (1 + 1e-12)).all()
    assert start.gap() <= 1e-6 * (RADIUS * value).sum()


@pytest.mark.parametrize("p", POWERS)
def test_stiffness_is_the_derivative_of_flows(p):
    mu, step = 0.05, 1e-5
    omega = PowerBalls(DIFFERENCES, RADIUS, p, mu).stiffness()
    for k in range(4):
        ahead, behind = (PowerBalls(DIFFERENCES + s * np.eye(4)[k], RADIUS, p, mu).u for s in (step, -step))
        np.testing.assert_allclose(omega[:, :, k], (ahead - behind) / (2 * step), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("p", POWERS)
def test_steps_with_fixed_differences_end_where_a_start_begins(p):
    cone, goal = PowerBalls(0 * DIFFERENCES, RADIUS, p, mu=1.0), PowerBalls(DIFFERENCES, RADIUS, p, mu=0.01)
    with np.errstate(over="ignore"):  # the way to a border that is infinitely far
        for _ in range(60):
            cone.aim(DIFFERENCES, 0.01, second_order=False)
            cone.follow(np.zeros_like(DIFFERENCES))
            cone.move(min(1.0, 0.9 * cone.longest()))
    np.testing.assert_allclose(cone.u, goal.u, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(cone.gap(), goal.gap(), rtol=1e-6)
