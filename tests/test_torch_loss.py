"""Modules of torch at the nodes: a linear module is the yardstick, since all about it is known in closed form."""

import sys
from functools import partial

import numpy as np
import pytest

from kinfolk import (
    IFCA,
    FedAvg,
    FedGD,
    GTVMin,
    InputError,
    Local,
    Logistic,
    Network,
    PFedMe,
    Squared,
    SquaredNorm,
    Tolerance,
    TorchLoss,
    fit,
    graphs,
)
from kinfolk.algorithms.ifca import Redrawn
from kinfolk.algorithms.torch_descent import TorchDescent
from kinfolk.testing import check_algorithm, difficult_network

torch = pytest.importorskip("torch")


def linear(features=3, bias=False):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return torch.nn.Linear(features, 1, bias=bias)


def small_network(features=3, outputs=1, hidden=4, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return torch.nn.Sequential(torch.nn.Linear(features, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, outputs))


SHORT = TorchLoss(small_network(), steps=3, minimise_steps=5)


@pytest.mark.parametrize(
    "algorithm",
    [
        GTVMin(SHORT),
        FedAvg(SHORT, step_size=0.05, local_steps=3),
        IFCA(SHORT, step_size=0.05, model_count=2, initial=Redrawn()),
        PFedMe(SHORT),
        TorchDescent(SHORT),
        FedGD(SHORT, step_size=0.05),
    ],
    ids=lambda algorithm: type(algorithm).__name__,
)
def test_runs_everywhere(algorithm):
    check_algorithm(algorithm, rounds=7)


def test_classifiers_run_everywhere():
    loss = TorchLoss(small_network(outputs=2), "cross-entropy", steps=3, minimise_steps=5)
    check_algorithm(GTVMin(loss), difficult_network(classes=True), rounds=7)


# ---------------------------------------------------------------------- against the closed form


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_linear_module_has_the_loss_of_a_linear_model(reduction):
    data = difficult_network().data
    module = TorchLoss(linear(bias=True), reduction=reduction, ridge=0.3).bind(data)
    known = Squared(reduction, 0.3, True).bind(data)
    w = np.random.default_rng(0).normal(size=(24, 4))
    np.testing.assert_allclose(module.value(w), known.value(w), rtol=1e-12)
    np.testing.assert_allclose(module.gradient(w), known.gradient(w), rtol=1e-10, atol=1e-12)
    few = np.array([5, 3, 0])
    np.testing.assert_allclose(module.take(few).gradient(w[few]), known.gradient(w)[few], rtol=1e-10, atol=1e-12)
    group = np.arange(24) % 3
    np.testing.assert_allclose(module.pool(group, 3).value(w[:3]), known.pool(group, 3).value(w[:3]), rtol=1e-12)


def test_the_gradient_is_the_derivative_of_the_value():
    losses = TorchLoss(small_network(outputs=2), "cross-entropy", ridge=0.2).bind(difficult_network(classes=True).data)
    rng = np.random.default_rng(1)
    w, along = losses.start + rng.normal(size=(24, losses.width)), 1e-5 * rng.normal(size=(24, losses.width))
    numeric = (losses.value(w + along) - losses.value(w - along)) / 2
    np.testing.assert_allclose((losses.gradient(w) * along).sum(axis=1), numeric, rtol=1e-6, atol=1e-12)


def test_the_prox_with_enough_steps_is_the_closed_form():
    data, tau = difficult_network().data, np.resize([0.01, 0.5, 2.0], 24)
    module = TorchLoss(linear(), steps=600).bind(data)
    v = np.random.default_rng(0).normal(size=(24, 3))
    before = v.copy()
    np.testing.assert_allclose(module.prox(v, tau), Squared().bind(data).prox(v, tau), atol=1e-5)
    np.testing.assert_array_equal(v, before)


def test_the_prox_is_pulled_towards_v_as_tau_says():
    """The proximal term must not vanish: it does when v shares memory with the parameters that move."""
    losses = SHORT.bind(difficult_network().data)
    w, here = losses.start, losses.has_data
    near, far = losses.prox(w + 1.0, np.full(24, 0.1), w), losses.prox(w - 1.0, np.full(24, 0.1), w)
    assert (np.abs(near - far)[here] > 0.1).all()
    loose, tight = (losses.prox(w, np.full(24, tau), w) - w for tau in (100.0, 0.01))
    assert (np.linalg.norm(tight, axis=1) < 0.5 * np.linalg.norm(loose, axis=1))[here].all()
    np.testing.assert_array_equal(losses.prox(w + 1.0, np.full(24, 0.1), w)[~here], (w + 1.0)[~here])


def test_gtv_minimisation_with_a_linear_module_finds_the_linear_solution():
    network = difficult_network()
    known = fit(network, GTVMin(lam=0.1), stop=Tolerance(1e-8))
    loss = TorchLoss(linear(), step_size=0.02)
    run = fit(network, GTVMin(loss, lam=0.1), rounds=600, measure_every=20)
    informed = network.informed
    np.testing.assert_allclose(run.models.w[informed], known.models.w[informed], atol=1e-3)
    assert run.history["objective"].iloc[-1] == pytest.approx(known.history["objective"].iloc[-1], rel=1e-6)


def test_descent_with_a_linear_module_that_starts_at_zero_takes_the_steps_of_a_linear_model():
    module = linear()
    torch.nn.init.zeros_(module.weight)
    network = difficult_network()
    ours, known = (
        fit(network, TorchDescent(loss, lam=0.2), rounds=30, stop=None) for loss in (TorchLoss(module), Squared())
    )
    np.testing.assert_allclose(ours.models.w, known.models.w, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(ours.history["residual"], known.history["residual"], rtol=1e-8)


def test_a_module_for_two_classes_is_a_logistic_model():
    network = difficult_network(classes=True)
    data = network.data
    module = TorchLoss(torch.nn.Linear(3, 2, bias=False), "cross-entropy").bind(data)
    w = np.random.default_rng(0).normal(size=(24, 6))
    np.testing.assert_allclose(module.value(w), Logistic().bind(data).value(w[:, 3:] - w[:, :3]), rtol=1e-12)


def test_without_convexity_nothing_is_certified():
    run = fit(difficult_network(), GTVMin(SHORT), rounds=2)
    assert run.certificate is None
    assert "gap" not in run.history
    assert "gap" in fit(difficult_network(), GTVMin(), rounds=2).history


# ---------------------------------------------------------------------- does it learn?


def two_kinds(seed, nodes=16, samples=8):
    """Two clusters of nodes with curved functions of their own, too few samples to learn alone."""
    rng = np.random.default_rng(seed)
    graph, cluster = graphs.stochastic_block((nodes // 2, nodes // 2), 0.6, 0.03, seed=seed)
    direction = rng.normal(size=(2, 2))

    def draw(kind, count):
        X = rng.normal(size=(count, 2))
        z = X @ direction[kind]
        return X, (np.sin(2 * z) if kind == 0 else -np.abs(z)) + 0.1 * rng.normal(size=count)

    return Network(graph, [draw(k, samples) for k in cluster], test=[draw(k, 50) for k in cluster])


MOMENTUM = partial(torch.optim.SGD, momentum=0.9)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_neighbours_help_small_networks(seed):
    network = two_kinds(seed)
    loss = TorchLoss(small_network(2, hidden=16, seed=seed), optimiser=MOMENTUM, minimise_steps=500)
    alone = fit(network, Local(loss), rounds=0).error()
    together = fit(network, GTVMin(loss, lam=0.03), rounds=40, stop=None)
    assert together.error() < 0.5 * alone
    assert together.history["objective"].iloc[-1] < 0.2 * together.history["objective"].iloc[0]


def test_averaging_learns_and_clusters_learn_more():
    network = two_kinds(0)
    loss = TorchLoss(small_network(2, hidden=16))
    learn = {"step_size": 0.1, "local_steps": 10}
    one = fit(network, FedAvg(loss, **learn), rounds=60, stop=None)
    two = fit(network, IFCA(loss, **learn, model_count=2, initial=Redrawn()), rounds=60, stop=None)
    assert one.history["objective"].iloc[-1] < 0.9 * one.history["objective"].iloc[0]
    assert two.error() < 0.5 * one.error()


def test_pfedme_with_a_module_beats_one_model_for_all():
    network = two_kinds(0)
    loss = TorchLoss(small_network(2, hidden=16))
    one = fit(network, FedAvg(loss, step_size=0.1, local_steps=10), rounds=40, stop=None)
    own = fit(network, PFedMe(loss, lam=0.1), rounds=40, stop=None)
    assert own.error() < one.error()


# ---------------------------------------------------------------------- what comes out, and what is refused


def test_models_are_modules():
    network = difficult_network(classes=True)
    loss = TorchLoss(small_network(outputs=2), "cross-entropy", steps=3)
    models = fit(network, GTVMin(loss), rounds=2).models
    X, owner = network.test.X, network.test.owner
    probabilities = models.predict_proba(X, owner)
    reached = network.informed[owner]
    np.testing.assert_allclose(probabilities[reached].sum(axis=1), 1.0)
    np.testing.assert_array_equal(models.predict(X, owner)[reached], probabilities[reached].argmax(axis=1))
    assert np.isnan(models.predict(X, owner)[~reached]).all()
    own = models[0](torch.tensor(X[owner == 0])).softmax(dim=1).detach().numpy()
    np.testing.assert_allclose(own, probabilities[owner == 0], rtol=1e-12)


def test_the_module_given_is_left_alone():
    module = small_network()
    before = [value.clone() for value in module.parameters()]
    fit(difficult_network(), GTVMin(TorchLoss(module, steps=3, minimise_steps=5)), rounds=3)
    assert all(torch.equal(one, other) for one, other in zip(before, module.parameters(), strict=True))


def test_nodes_that_no_data_reach_can_have_the_pooled_model():
    network = difficult_network()
    run = fit(network, GTVMin(SHORT, uninformed="pooled"), rounds=1)
    assert np.isfinite(run.models.w).all()


@pytest.mark.parametrize(
    ("algorithm", "sentence"),
    [
        (GTVMin(TorchLoss(linear(5))), "Expected a module that reads rows of 3 features"),
        (GTVMin(TorchLoss(torch.nn.Linear(3, 2))), "Expected a module with one output for squared errors, got 2"),
        (GTVMin(TorchLoss(torch.nn.Flatten(0))), "Expected a module with parameters"),
        (GTVMin(TorchLoss(np.tanh)), "The 'module' parameter of TorchLoss must be a torch.nn.Module"),
        (GTVMin(TorchLoss(linear(), "cross-entropy")), "an output for each of them, got 1 outputs"),
        (GTVMin(TorchLoss(linear(), optimiser="Fastest")), "must be a class in torch.optim"),
        (GTVMin(TorchLoss(linear(), optimiser="LBFGS")), "Expected an optimiser that steps after a gradient"),
        (GTVMin(TorchLoss(linear(), optimiser="Adafactor")), "Expected an optimiser that moves every number by itself"),
        (GTVMin(TorchLoss(linear(), steps=0)), "The 'steps' parameter of TorchLoss must be a whole number ≥ 1"),
        (FedGD(TorchLoss(linear())), "The 'step_size' parameter of FedGD must be a number > 0 for TorchLoss"),
        (IFCA(Squared(), model_count=2, initial=Redrawn()), "draw their own parameters"),
        (GTVMin(TorchLoss(linear()), SquaredNorm(), steps="direct"), "can be 'direct' only for Squared loss"),
    ],
)
def test_what_cannot_work_is_refused_in_a_sentence(algorithm, sentence):
    with pytest.raises(InputError, match=sentence):
        fit(difficult_network(), algorithm, rounds=1)


def test_a_run_of_another_module_is_no_start():
    small, large = (GTVMin(TorchLoss(small_network(3, hidden=hidden, seed=0))) for hidden in (4, 8))
    run = fit(difficult_network(), small, rounds=1)
    with pytest.raises(InputError, match=r"Expected a start with as many parameters, got .* or another module"):
        fit(difficult_network(), large, rounds=1, start=run)


def test_without_torch_there_is_a_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(
        InputError, match=r'Expected torch for TorchLoss: install it with pip install "kinfolk\[torch\]"'
    ):
        fit(difficult_network(), GTVMin(TorchLoss(object())), rounds=1)
