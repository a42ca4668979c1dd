"""Local, pooled, clustered and FedAvg: scikit-learn and each other are the oracles."""

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge

from kinfolk import FedAvg, FedGD, InputError, Local, Logistic, Network, Pooled, Squared, Tolerance, fit, graphs
from kinfolk.objective.losses import Absolute, Poisson, SquaredDistance
from kinfolk.testing import check_algorithm, difficult_network

NEEDS_SMOOTH = "Expected a smooth loss for {}, got Absolute: use GTVMin"


@pytest.mark.parametrize(
    ("algorithm", "sentence"),
    [
        (Pooled(Absolute()), NEEDS_SMOOTH.format("Pooled")),
        (Pooled(Absolute(), clusters=(0,) * 24), NEEDS_SMOOTH.format("Pooled")),
        (FedGD(Absolute()), NEEDS_SMOOTH.format("FedGD")),
        (FedAvg(Absolute()), "must be a number > 0 for Absolute, whose curvature has no bound. Got None instead."),
    ],
)
def test_what_needs_a_slope_says_so(algorithm, sentence):
    with pytest.raises(InputError) as error:
        fit(difficult_network(), algorithm)
    assert sentence in str(error.value)


def test_baselines_for_points_are_means():
    points = np.array([[0.0, 1.0], [2.0, 1.0], [7.0, 7.0]])
    network = Network.of_points(graphs.edgeless(3), points)
    loss = SquaredDistance()
    np.testing.assert_allclose(fit(network, Local(loss)).models.w, points)
    np.testing.assert_allclose(fit(network, Pooled(loss)).models.w, [points.mean(axis=0)] * 3)
    known = fit(network, Pooled(loss, clusters=(0, 0, 1))).models.w
    np.testing.assert_allclose(known, [[1.0, 1.0], [1.0, 1.0], [7.0, 7.0]])
    np.testing.assert_allclose(fit(network, FedAvg(loss)).models.w, [points.mean(axis=0)] * 3, atol=1e-5)


HALVES = tuple(int(k) for k in np.arange(24) % 2)


@pytest.mark.parametrize(
    "algorithm",
    [
        Local(),
        Pooled(),
        Pooled(clusters=HALVES),
        FedAvg(),
        FedAvg(local_steps=3, step_size=0.01),
        FedAvg(Squared("sum", 0.1, True), average="gradients"),
    ],
    ids=repr,
)
def test_runs_everywhere(algorithm):
    check_algorithm(algorithm)


@pytest.mark.parametrize("algorithm", [Local(Logistic(ridge=0.1)), Pooled(Logistic()), FedAvg(Logistic())], ids=repr)
def test_classifiers_run_everywhere(algorithm):
    check_algorithm(algorithm, difficult_network(classes=True))


def test_pooled_is_scikit_learns_model_on_all_rows():
    data = difficult_network().data
    run = fit(difficult_network(), Pooled(Squared("sum", intercept=True)))
    reference = LinearRegression().fit(data.X, data.y)
    np.testing.assert_allclose(run.models.w[7], [*reference.coef_, reference.intercept_], rtol=1e-10)
    holders = (data.sizes > 0).sum()  # the ridge term is one per node with data
    run = fit(difficult_network(), Pooled(Squared("sum", ridge=0.5)))
    np.testing.assert_allclose(
        run.models.w[0], Ridge(0.25 * holders, fit_intercept=False).fit(data.X, data.y).coef_, rtol=1e-10
    )


def test_pooled_logistic_is_scikit_learns():
    network = difficult_network(classes=True)
    run = fit(network, Pooled(Logistic("sum")), stop=Tolerance(1e-12))
    reference = LogisticRegression(C=np.inf, fit_intercept=False, tol=1e-12, solver="newton-cholesky")
    reference.fit(network.data.X, network.data.y)
    np.testing.assert_allclose(run.models.w[0], reference.coef_[0], rtol=1e-6)
    assert run.rounds < 15


def test_clustered_pools_within_clusters_only():
    network = difficult_network()
    run = fit(network, Pooled(clusters=HALVES))
    for half in (0, 1):
        rows = network.data.owner % 2 == half
        scale = np.sqrt(1 / network.data.sizes[network.data.owner[rows]])
        expected = np.linalg.lstsq(scale[:, None] * network.data.X[rows], scale * network.data.y[rows], rcond=None)[0]
        np.testing.assert_allclose(run.models.w[half::2], [expected] * 12, rtol=1e-9)


def test_local_is_least_squares_and_nan_without_data():
    network = difficult_network()
    w = fit(network, Local()).models.w
    X, y = network.data[0]
    np.testing.assert_allclose(w[0], np.linalg.lstsq(X, y, rcond=None)[0])
    assert np.isnan(w[network.data.sizes == 0]).all()


@pytest.mark.parametrize("loss", [Squared(), Squared("sum", 0.1, True)], ids=repr)
@pytest.mark.parametrize("average", ["models", "gradients"])
def test_fedavg_with_one_local_step_finds_the_pooled_model(loss, average):
    network = difficult_network()
    run = fit(network, FedAvg(loss, average=average), stop=Tolerance(1e-12), rounds=100_000)
    np.testing.assert_allclose(run.models.w, fit(network, Pooled(loss)).models.w, atol=1e-7)


def test_more_local_steps_settle_elsewhere_when_nodes_differ():
    network = difficult_network()
    run = fit(network, FedAvg(local_steps=20), stop=Tolerance(1e-12))
    assert np.abs(run.models.w - fit(network, Pooled()).models.w).max() > 1e-3


def test_clusters_must_fit_the_network():
    with pytest.raises(InputError, match="Expected the cluster of each of 24 nodes, got 2"):
        fit(difficult_network(), Pooled(clusters=(0, 1)))
    with pytest.raises(InputError, match="Expected clusters as whole numbers from 0, got 0, -1"):
        fit(Network(graphs.chain(2), [([[1.0]], [1.0]), None]), Pooled(clusters=(0, -1)))
    with pytest.raises(InputError, match="Expected data in every cluster, got none in cluster 1"):
        fit(Network(graphs.chain(2), [([[1.0]], [1.0]), None]), Pooled(clusters=(0, 1)))


@pytest.mark.parametrize("participation", [0.05, 0.5])
@pytest.mark.parametrize("loss", [Squared(), Logistic("sum")], ids=repr)
def test_pooled_waits_for_everybody(participation, loss):
    network = difficult_network(classes=isinstance(loss, Logistic))
    best = fit(network, Pooled(loss), stop=Tolerance(1e-9)).models.w
    run = fit(network, Pooled(loss), stop=Tolerance(1e-9), participation=participation, rounds=20_000)
    assert run.stopped.startswith("converged")
    np.testing.assert_allclose(run.snapshot.to_all["w"][0], best[0], atol=1e-6)


def test_pooled_is_exact_for_features_of_different_scale():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 3)) * [5e4, 1.0, 3e-3]
    y = X @ [1e-5, 1.0, 300.0] + rng.normal(size=40)
    network = Network(graphs.chain(2), [(X[:20], y[:20]), (X[20:], y[20:])])
    scale = np.linalg.norm(X, axis=0)
    expected = np.linalg.lstsq(X / scale, y, rcond=None)[0] / scale
    np.testing.assert_allclose(fit(network, Pooled()).models.w[0], expected, rtol=1e-6)


def test_fedavg_needs_a_step_size_where_curvature_has_no_bound():
    with pytest.raises(InputError, match="The 'step_size' parameter of FedAvg must be a number > 0 for Poisson"):
        fit(difficult_network(classes=True), FedAvg(Poisson()))


def test_gradient_averaging_with_few_nodes_does_not_explode():
    rng = np.random.default_rng(0)
    sets = [(rng.normal(size=(3, 2)) * (100 if k == 0 else 1), rng.normal(size=3)) for k in range(50)]
    run = fit(Network(graphs.edgeless(50), sets), FedAvg(average="gradients"), participation=0.1, rounds=300)
    assert run.history["objective"].iloc[-1] <= run.history["objective"].iloc[0]
