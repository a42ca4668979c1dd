"""Local, pooled, clustered and FedAvg: scikit-learn and each other are the oracles."""

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge

from kinfolk import Clustered, FedAvg, InputError, Local, Logistic, Network, Pooled, Squared, Tolerance, fit, graphs
from kinfolk.testing import check_algorithm, difficult_network

HALVES = tuple(int(k) for k in np.arange(24) % 2)


@pytest.mark.parametrize(
    "algorithm",
    [
        Local(),
        Pooled(),
        Clustered(clusters=HALVES),
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
    run = fit(network, Clustered(clusters=HALVES))
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
    run = fit(network, FedAvg(loss, average), stop=Tolerance(1e-12), rounds=100_000)
    np.testing.assert_allclose(run.models.w, fit(network, Pooled(loss)).models.w, atol=1e-7)


def test_more_local_steps_settle_elsewhere_when_nodes_differ():
    network = difficult_network()
    run = fit(network, FedAvg(local_steps=20), stop=Tolerance(1e-12))
    assert np.abs(run.models.w - fit(network, Pooled()).models.w).max() > 1e-3


def test_clusters_must_fit_the_network():
    with pytest.raises(InputError, match="Expected the cluster of each of 24 nodes, got 2"):
        fit(difficult_network(), Clustered(clusters=(0, 1)))
    with pytest.raises(InputError, match="Expected clusters numbered from 0, got -1"):
        fit(Network(graphs.chain(2), [([[1.0]], [1.0]), None]), Clustered(clusters=(0, -1)))
