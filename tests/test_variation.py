"""Bound (25) of FedRelax: where it holds, where it does not, and in which metric."""

import networkx
import numpy as np
import pytest

from kinfolk import FedRelax, InputError, LinearModel, Network, Tolerance, fit, graphs, public
from kinfolk.theory import VariationBound, variation_bound
from kinfolk.theory.variation import algebraic_connectivity

PRECISE = Tolerance(1e-9)


def one_cluster(seed=0, *, nodes=20, samples=10, features=5, noise=1.0, p_in=0.8):
    """Data of (23), and the parameters that all nodes share."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=features)
    X = rng.normal(size=(nodes, samples, features))
    y = X @ truth + noise * rng.normal(size=(nodes, samples))
    graph, _ = graphs.stochastic_block([nodes], p_in, 0.0, seed=seed)
    return Network(graph, list(zip(X, y, strict=True))), truth


def relax(network, lam, **model):
    return fit(network, FedRelax(LinearModel(**model), lam=lam), rounds=5_000, stop=PRECISE)


@pytest.mark.parametrize("lam", [1e-3, 1e-2, 0.1])
@pytest.mark.parametrize("noise", [0.1, 1.0, 5.0])
def test_the_bound_holds_on_the_data_of_the_paper(lam, noise):
    network, truth = one_cluster(noise=noise)
    network = network.with_public(public.standard_normal(network, 100))
    found = variation_bound(relax(network, lam), truth)
    residual = network.data.y - network.data.X @ truth
    assert found.tolerance == pytest.approx(sum((residual.reshape(20, 10) ** 2).mean(axis=1)))
    assert found.assumption_holds
    assert found.holds
    assert found.holds_in_predictions
    assert found.observed_in_predictions <= found.bound / 2, "half of (25), by convexity"
    assert found.observed <= found.stretch * found.observed_in_predictions * (1 + 1e-9)
    assert "bound (25) holds" in str(found)


def test_more_coupling_and_more_edges_mean_less_variation():
    network, truth = one_cluster()
    found = [variation_bound(relax(network.with_public(np.eye(5)), lam), truth) for lam in (0.01, 0.1, 1.0)]
    assert found[0].observed > found[1].observed > found[2].observed
    assert found[0].bound == pytest.approx(100 * found[2].bound)


@pytest.mark.parametrize("seed", range(3))
def test_any_reference_will_do_and_the_pooled_one_gives_the_smallest_tolerance(seed):
    """Nodes with parameters of their own: no cluster at all."""
    rng = np.random.default_rng(seed)
    sets = [(X := rng.normal(size=(6, 3)), X @ rng.normal(size=3) + 1.0) for _ in range(12)]
    network = Network(graphs.stochastic_block([12], 0.5, 0.0, seed=seed)[0], sets)
    network = network.with_public(public.like_the_data(network, 30))
    run = relax(network, 0.3, intercept=True, ridge=0.2)
    pooled = variation_bound(run)
    others = [variation_bound(run, rng.normal(size=4)) for _ in range(20)]
    assert pooled.tolerance <= min(other.tolerance for other in others)
    assert all(bound.observed_in_predictions <= bound.bound / 2 for bound in (pooled, *others))


def test_the_bound_fails_where_its_assumption_is_violated():
    network, truth = one_cluster(noise=5.0)
    run = relax(network.with_public(np.eye(5)), 0.01)
    needed = variation_bound(run, truth).needed
    broken = variation_bound(run, truth, tolerance=1e-3 * needed)
    assert not broken.assumption_holds
    assert not broken.holds
    assert not broken.holds_in_predictions
    assert "bound (25) does not hold" in str(broken)
    assert "Assumption (24) is violated" in str(broken)
    assert variation_bound(run, truth, tolerance=2 * needed).assumption_holds


def test_as_printed_it_needs_the_factor_of_the_metric():
    """Public points that hardly vary in one feature do not couple its parameter: only predictions are bounded."""
    network, truth = one_cluster(samples=2, noise=1.0)
    points = np.random.default_rng(5).normal(size=(100, 5)) * [1, 1, 1, 1, 1e-3]
    found = variation_bound(relax(network.with_public(points), 1.0), truth)
    assert found.assumption_holds
    assert not found.holds
    assert found.holds_in_predictions
    assert found.observed <= found.stretch * found.bound
    assert found.stretch > 1e5


def test_fewer_points_than_parameters_bound_nothing_in_parameters():
    network, truth = one_cluster()
    found = variation_bound(relax(network.with_public(np.eye(5)[:3]), 1.0), truth)
    assert found.stretch == np.inf
    assert "For parameters nothing is proved" in str(found)
    assert found.holds_in_predictions


def test_without_noise_all_models_are_equal():
    network, truth = one_cluster(noise=0.0)
    found = variation_bound(relax(network.with_public(np.eye(5)), 1.0), truth)
    assert found.bound < 1e-20
    assert found.holds


def test_own_points_and_components_are_said():
    network, truth = one_cluster()
    apart = network.with_public(public.standard_normal(network, 50, per_node=True))
    assert "nothing is proved" in str(variation_bound(relax(apart, 0.1), truth))
    cut = network.with_graph(graphs.edgeless(20)).with_public(np.eye(5))
    found = variation_bound(fit(cut, FedRelax(LinearModel(), lam=1.0)), truth)
    assert found.bound == np.inf
    assert "The graph is not connected" in str(found)


def test_parameters_may_come_from_elsewhere():
    network, truth = one_cluster()
    w = np.tile(truth, (20, 1))
    w[0] += 1.0
    found = VariationBound.of(network, w, 2.0, truth=truth)
    assert found.observed == pytest.approx(5 * 19 / 20)  # Σ (x_i − mean)² of one 1 among 20, in 5 coordinates
    assert found.observed_in_predictions == pytest.approx(found.observed)


@pytest.mark.parametrize("nodes", [30, 700])
def test_connectivity_against_networkx(nodes):
    graph = graphs.knn(np.random.default_rng(nodes).random((nodes, 2)), 12, scale=0.5)
    laplacian = networkx.laplacian_matrix(graph.to_networkx()).toarray()
    assert algebraic_connectivity(graph) == pytest.approx(np.linalg.eigvalsh(laplacian)[1], rel=1e-8)
    assert algebraic_connectivity(graphs.edgeless(3)) == algebraic_connectivity(graphs.complete(1)) == 0.0


def test_what_the_bound_is_not_for_gets_a_sentence():
    from sklearn.linear_model import Ridge

    network, truth = one_cluster(nodes=4)
    network = network.with_public(np.eye(5))
    with pytest.raises(InputError, match="same LinearModel at every node"):
        variation_bound(fit(network, FedRelax(Ridge(), lam=0.1), rounds=1), truth)
    with pytest.raises(InputError, match="as \\(25\\) assumes"):
        variation_bound(fit(network, FedRelax(LinearModel(), weighting="literal"), rounds=1), truth)
    run = fit(network, FedRelax(LinearModel(), lam=0.1), rounds=1)
    with pytest.raises(InputError, match="Expected 5 true parameters, got 2"):
        variation_bound(run, truth[:2])
    with pytest.raises(InputError, match="Expected parameters for 4 nodes and 5 features"):
        VariationBound.of(network, np.zeros((4, 9)), 1.0)
    with pytest.raises(InputError, match="The 'lam' parameter of VariationBound must be a number > 0"):
        VariationBound.of(network, np.zeros((4, 5)), 0.0)
