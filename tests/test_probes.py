"""The probes run everywhere, and do what their papers say."""

import numpy as np
import pytest

import probes
from kinfolk import InProcess, Network, Pooled, Squared, fit, graphs
from kinfolk.testing import check_algorithm, difficult_network

PROBES = [
    probes.PaperGTVMin(),
    probes.SampledFedAvg(),
    probes.GradientTracking(),
    probes.GradientTracking(local_steps=5),
    probes.FedRelaxTrees(),
    probes.TwoLevel(),
    probes.Scaffold(),
    probes.PowerMean(),
]


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: type(probe).__name__)
def test_probe_runs_everywhere(probe):
    check_algorithm(probe)


def heterogeneous_network() -> Network:
    rng = np.random.default_rng(1)
    sets = [(rng.normal(size=(5, 3)), rng.normal(size=5)) for _ in range(12)]
    graph, _ = graphs.stochastic_block([12], 0.4, 0.0, seed=3)
    assert graph.components.max() == 0
    return Network(graph, sets)


@pytest.mark.parametrize("local_steps", [1, 5])
@pytest.mark.parametrize(("participation", "lost"), [(1.0, 0.0), (1.0, 0.3)])
def test_gradient_tracking_solves_heterogeneous_least_squares_exactly(local_steps, participation, lost):
    network = heterogeneous_network()
    best = fit(network, Pooled()).models.w
    probe = probes.GradientTracking(local_steps=local_steps)
    run = fit(network, probe, rounds=4000, stop=None, measure_every=4000, engine=InProcess(lost=lost))
    np.testing.assert_allclose(run.models.w, best, atol=1e-12)
    gradient = network.site.local_losses(Squared()).gradient(run.models.w)
    np.testing.assert_allclose(run.state.tracker.mean(axis=0), gradient.mean(axis=0), atol=1e-13)


def test_scaffold_finds_the_pooled_model_although_nodes_are_sampled():
    network = heterogeneous_network()
    best = fit(network, Pooled()).models.w
    run = fit(network, probes.Scaffold(), rounds=6000, stop=None, measure_every=6000, participation=0.5)
    np.testing.assert_allclose(run.models.w, best, atol=1e-9)


def test_a_held_out_node_is_scored_with_the_model_of_the_coordinator():
    network = heterogeneous_network()
    names = list(network.names)
    run = fit(network, probes.Scaffold(), rounds=50, stop=None, participation=lambda _: names[:-2])
    np.testing.assert_array_equal(run.models.w[-1], run.snapshot.to_all["w"])
    assert np.abs(run.models.w[-1]).max() > 0.01
    np.testing.assert_array_equal(run.state.w[-1], 0.0)  # its state stayed as it was


def test_an_update_of_several_exchanges_counts_once_in_the_history_and_thrice_in_bytes():
    network = difficult_network()
    run = fit(network, probes.PowerMean(), rounds=4, stop=None, participation=0.5, seed=3)
    assert run.history.index.tolist() == [0, 1, 2, 3, 4]
    assert run.snapshot.to_all["exchanges"] == 12
    present = round(0.5 * 24)
    carrying = []
    for round_ in range(1, 5):
        active = np.isin(np.arange(24), np.random.default_rng([1, 3, round_]).choice(24, present, replace=False))
        carrying.append(int((active[network.graph.head] & active[network.graph.tail]).sum()))
    spoken = present * (8 + 16)  # one number to the coordinator, two back
    expected = [3 * (2 * edges * 3 * 8 + spoken) for edges in carrying]
    assert run.history["bytes"].diff().dropna().tolist() == expected


def test_sampled_fedavg_averages_only_who_spoke():
    network = difficult_network()
    run = fit(network, probes.SampledFedAvg(), rounds=1, stop=None, participation=lambda _: [0, 5])
    gradient = network.site.local_losses(Squared()).gradient
    w = np.zeros((24, 3))
    for _ in range(2):
        w -= 0.02 * gradient(w)
    np.testing.assert_allclose(run.snapshot.to_all["w"], (w[0] + w[5]) / 2, rtol=1e-14)


def test_two_level_gradient_agrees_with_finite_differences():
    network = difficult_network()
    probe = probes.TwoLevel(inner=8000, step_size=0.04, upper_step=0.0)
    run = fit(network, probe, rounds=2 * probe.inner + 1, stop=None, measure_every=10**6)
    width = network.data.feature_count
    numeric = np.zeros((width, width))
    for k in range(width):
        for j in range(width):
            shift = np.zeros((width, width))
            shift[k, j] = 1e-5
            above, below = (upper_objective(network, probe, np.eye(width) + s * shift) for s in (1, -1))
            numeric[k, j] = (above - below) / 2e-5
    np.testing.assert_allclose(run.snapshot.to_all["gradient"], numeric, atol=1e-6 * np.abs(numeric).max())


def upper_objective(network: Network, probe: probes.TwoLevel, phi: np.ndarray) -> float:
    """f at the equilibrium of the game, by one dense linear solve."""
    n, d = network.graph.node_count, network.data.feature_count
    adjacency = (network.graph.to_sparse().toarray() > 0) + np.eye(n)
    scale = 1 / np.sqrt(adjacency.sum(axis=1))
    L = scale[:, None] * adjacency * scale
    losses = network.site.local_losses(probe.loss)
    zero = np.zeros((n, d))
    system = np.zeros((n, d, n, d))
    for i in range(n):
        pull = L[i, i] * phi - np.eye(d)
        for j in range(n):
            reaction = pull if i == j else L[i, j] * phi
            system[i, :, j, :] = probe.lam * (reaction @ pull.T).T
        system[i, :, i, :] += losses.hessian(zero)[i]
    w = np.linalg.solve(system.reshape(n * d, n * d), -losses.gradient(zero).ravel())
    return 0.5 * float(w @ w)
