"""What once surprised: default runs that diverged, were called converged too early, hung, or proved nothing."""

import itertools
from unittest import mock

import numpy as np
import pytest

from kinfolk import (
    AbsoluteNorm,
    EuclideanNorm,
    Graph,
    GTVMin,
    Logistic,
    Network,
    Squared,
    SquaredNorm,
    Tolerance,
    datasets,
    fit,
    graphs,
)
from kinfolk.algorithms.gtvmin.duals import conjugate_gradients
from kinfolk.engine.protocol import Algorithm
from kinfolk.network.site import ordered_site
from kinfolk.objective.couplings import MaximumNorm, QuadraticForm
from kinfolk.objective.local_losses import LinearLosses
from kinfolk.objective.losses import Absolute, Huber, Quantile
from test_gtvmin import smallest_objective


def five_nodes() -> Network:
    ends, weights = [(0, 1), (0, 2), (0, 3), (0, 4), (1, 3), (1, 4)], [4.1e3, 1.1e-3, 2.2e-3, 5.3e-4, 2.9e3, 27]
    X = [[-0.0011, -0.0005], [0.0001, -0.005], [-0.0015, -0.0079], [-0.0016, 0.0087], [-0.0007, -0.0069]]
    y = [-1.54, 0.83, -1.78, -4.76, 2.50]
    return Network(Graph(5, ends, weights), [([x], [label]) for x, label in zip(X, y, strict=True)])


def test_weights_and_features_on_very_different_scales_do_not_diverge():
    network, algorithm = five_nodes(), GTVMin(Squared("sum", intercept=True), SquaredNorm(), lam=0.01)
    run = fit(network, algorithm)
    exact = fit(network, GTVMin(Squared("sum", intercept=True), SquaredNorm(), 0.01, steps="direct"))
    assert run.stopped.startswith("converged")
    assert run.certificate.objective == pytest.approx(exact.certificate.objective, rel=1e-6)
    assert run.certificate.objective == pytest.approx(0.2655, abs=1e-4)


def test_the_rounds_alone_do_not_diverge_on_them_either():
    run = fit(five_nodes(), GTVMin(Squared("sum", intercept=True), SquaredNorm(), lam=0.01), stop=None, rounds=3_000)
    start = run.history["objective"].iloc[0]
    assert run.history["objective"].iloc[-1] <= start


@pytest.mark.parametrize("coupling", [MaximumNorm(), EuclideanNorm(), AbsoluteNorm()], ids=repr)
@pytest.mark.parametrize("lam", [1e3, 1e6, 1e9])
def test_nothing_is_called_converged_that_is_far_from_the_optimum(coupling, lam):
    network = Network(graphs.chain(6), [([[1.0]], [float(k % 2)]) for k in range(6)])
    run = fit(network, GTVMin(coupling=coupling, lam=lam))
    assert run.stopped.startswith("converged")
    assert run.certificate.objective == pytest.approx(1.5, rel=1e-6)
    assert run.certificate.relative <= 1e-6


def test_without_finish_the_stop_rule_sees_the_gap():
    network = Network(graphs.chain(6), [([[1.0]], [float(k % 2)]) for k in range(6)])
    run = fit(network, GTVMin(coupling=MaximumNorm(), lam=1e6, steps="published"))
    assert not run.stopped.startswith("converged") or run.certificate.objective == pytest.approx(1.5, rel=1e-5)


@pytest.mark.parametrize("loss", [Squared(), Huber(), Absolute(), Logistic(ridge=0.1)], ids=repr)
def test_no_coupling_is_solved_node_by_node(loss):
    rng = np.random.default_rng(0)
    sets = [(rng.normal(size=(6, 2)) * [1e3, 1e-2], (rng.normal(size=6) > 0).astype(float)) for _ in range(5)]
    coupled, alone = Network(graphs.complete(5), sets), Network(Graph(5), sets)
    run = fit(coupled, GTVMin(loss, lam=0.0))
    assert run.rounds == 0
    assert run.stopped.startswith("converged")
    best = fit(alone, GTVMin(loss)).certificate.objective
    assert run.certificate.objective == pytest.approx(best, rel=1e-9)
    assert best == pytest.approx(smallest_objective(alone, GTVMin(loss)), rel=1e-6)


def test_going_on_without_coupling_is_solved_node_by_node():
    network = Network(graphs.chain(3), [([[1.0]], [float(k)]) for k in range(3)])
    run = fit(network, GTVMin(lam=0.0), start=fit(network, GTVMin(lam=1.0)))
    np.testing.assert_allclose(run.models.w[:, 0], [0, 1, 2], atol=1e-12)


def counted_newton_steps(work) -> int:
    steps, plain = [], LinearLosses._newton_step

    def counted(self, *given):
        steps.append(self.node_count)
        return plain(self, *given)

    with mock.patch.object(LinearLosses, "_newton_step", counted):
        work()
    return len(steps)


def test_a_prox_takes_few_newton_steps():
    rng = np.random.default_rng(0)
    network = Network(
        graphs.chain(20), [(rng.normal(size=(8, 3)), (rng.normal(size=8) > 0).astype(float)) for _ in range(20)]
    )
    losses = network.site.local_losses(Logistic())
    v, tau = rng.normal(size=(20, 3)), 10.0 ** rng.uniform(-2, 3, 20)
    assert counted_newton_steps(lambda: losses.prox(v, tau)) <= 12


def test_nodes_with_one_class_end():
    network = Network(graphs.chain(2), [(np.array([[1.0], [2.0]]), [1.0, 1.0]), ([[1.0], [3.0]], [0.0, 0.0])])
    steps = counted_newton_steps(lambda: fit(network, GTVMin(Logistic(), lam=0.0)))
    run = fit(network, GTVMin(Logistic(), lam=0.0))
    assert steps <= 100
    assert run.certificate.objective < 1e-6


@pytest.mark.parametrize("seed", range(6))
def test_huge_outliers_do_not_stop_a_lone_node_early(seed):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(8, 2))
    y = X @ [1.0, -2.0] + 0.1 * rng.normal(size=8)
    y[rng.random(8) < 0.3] += 1e6
    network = Network(Graph(1), [(X, y)])
    for delta in (0.1, 1.0):
        run = fit(network, GTVMin(Huber("sum", delta=delta)))
        assert run.stopped.startswith("converged")
        assert run.certificate.objective == pytest.approx(smallest_huber(X, y, delta), rel=1e-9)


def smallest_huber(X, y, delta) -> float:
    """Every way to tell small errors from large ones by their sign, each with its own linear system."""
    best = np.inf
    for sides in itertools.product((-1, 0, 1), repeat=len(y)):
        side = np.array(sides)
        rows = X[side == 0]
        # The slope of the objective: 2 x (x'w − y) for small errors, 2 δ x sign for large ones.
        target = rows.T @ y[side == 0] - delta * X.T @ side
        w = np.linalg.lstsq(rows.T @ rows, target, rcond=None)[0]
        size = np.abs(X @ w - y)
        best = min(best, np.where(size <= delta, size**2, 2 * delta * size - delta**2).sum())
    return float(best)


def test_the_certificate_of_a_singular_quadratic_coupling_is_sharp():
    rng = np.random.default_rng(3)
    root = rng.normal(size=(4, 2))
    Q = root @ root.T
    coupling = QuadraticForm(tuple(map(tuple, ((Q + Q.T) / 2).tolist())))
    network = Network(graphs.star(8), [(rng.normal(size=(6, 4)), rng.normal(size=6)) for _ in range(8)])
    run = fit(network, GTVMin(coupling=coupling, lam=0.3))
    assert run.certificate.relative < 1e-6


def test_the_certificate_of_the_counties_is_sharp():
    network = datasets.load_us_counties().network()
    run = fit(network, GTVMin(Squared(intercept=True, ridge=1e-3), lam=0.3))
    assert run.stopped.startswith("converged")
    assert run.certificate.relative <= 1e-6


@pytest.mark.parametrize("coupling", [AbsoluteNorm(), MaximumNorm()], ids=repr)
@pytest.mark.parametrize("loss", [Absolute(), Quantile(level=0.8, intercept=True)], ids=repr)
def test_piecewise_linear_problems_are_solved(loss, coupling):
    rng = np.random.default_rng(1)
    graph, block = graphs.stochastic_block([10, 10], 0.4, 0.05, seed=1)
    truth = rng.normal(size=(2, 3))
    sets = [(X := rng.normal(size=(4, 3)), X @ truth[k] + rng.normal(size=4)) for k in block]
    network, algorithm = Network(graph, sets), GTVMin(loss, coupling, lam=0.1)
    run = fit(network, algorithm, rounds=2_000)
    assert run.stopped.startswith("converged")
    assert run.certificate.relative <= 1e-6
    assert run.certificate.objective == pytest.approx(smallest_objective(network, algorithm), rel=1e-6)


def test_what_is_not_proven_says_so():
    network = Network(graphs.chain(6), [([[1.0]], [float(k % 2)]) for k in range(6)])
    run = fit(network, GTVMin(lam=0.3), rounds=3, stop=Tolerance())
    assert not run.stopped.startswith("converged")
    assert str(run.certificate).startswith("Not proven to one part in a million")


# ---------------------------------------------------------------------- large networks


def test_conjugate_gradients_solve_the_system():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(24, 24))
    matrix, rhs = root @ root.T + np.eye(24), rng.normal(size=(8, 3))
    diagonal = matrix.diagonal().reshape(8, 3).copy()
    expected = np.linalg.solve(matrix, rhs.ravel())

    def apply(x, out):
        out[:] = (matrix @ x.ravel()).reshape(8, 3)

    np.testing.assert_allclose(conjugate_gradients(apply, rhs, diagonal, 1e-12).ravel(), expected, rtol=1e-8)


def test_a_run_certifies_in_the_order_of_its_rounds_what_holds_in_any_order():
    rng = np.random.default_rng(0)
    graph = graphs.knn(rng.random((300, 2)), 5)
    network = Network(graph, [(X := rng.normal(size=(2, 3)), X[:, 0]) for _ in range(300)])
    with mock.patch("kinfolk.network.site.ORDERED_FROM", 10):
        run = fit(network, GTVMin(Squared("sum"), lam=0.1), stop=Tolerance(1e-4, 1e-4))
    assert not np.array_equal(ordered_site(network).nodes, np.arange(300))
    again = run.algorithm.certify(network.site, run.state, run.snapshot.inbox(network.site.nodes))
    assert run.certificate.objective == pytest.approx(again.objective, rel=1e-12)
    assert run.certificate.bound == pytest.approx(again.bound, rel=1e-3, abs=1e-12 * again.objective)


def test_on_large_networks_the_first_proof_waits_for_a_smaller_residual():
    rng = np.random.default_rng(0)
    graph = graphs.knn(rng.random((200, 2)), 5)
    network = Network(graph, [(X := rng.normal(size=(1, 3)), X[:, 0] + 0.1 * rng.normal(size=1)) for _ in range(200)])
    stop = Tolerance(1e-4, 1e-4)
    with mock.patch("kinfolk.engine.loop.LARGE", 100), mock.patch.object(GTVMin, "finish", Algorithm.finish):
        run = fit(network, GTVMin(lam=0.1), stop=stop)
        cut = fit(network, GTVMin(lam=0.1), stop=stop, rounds=run.rounds - 1, measure_every=1)
    asked = run.history[run.history["residual"] <= 1e-4]
    assert len(asked) > 1
    assert asked["proven"].notna().tolist() == [False] * (len(asked) - 1) + [True]
    assert asked["residual"].iloc[-1] <= 0.5e-4 < asked["residual"].iloc[-2]
    assert np.isfinite(cut.history["proven"].iloc[-1])
