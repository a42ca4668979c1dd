"""Modules of torch and models of Keras at the nodes: one by one, least squares and each other are the oracles."""

import sys
from pathlib import Path
from runpy import run_path

import numpy as np
import pytest
import torch
from lightgbm import LGBMRegressor
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.tree import DecisionTreeRegressor
from torch import nn

import kinfolk
from kinfolk import FedRelax, InputError, KerasModel, LinearModel, Network, TorchModel, fit, graphs, public
from kinfolk.local_models.keras_training import keras  # on torch
from kinfolk.local_models.torch_training import train_apart, train_together
from kinfolk.local_models.weighted_rows import WeightedRows
from kinfolk.testing import check_algorithm, difficult_network

EXAMPLE = Path(__file__).parents[1] / "examples" / "mixed_models.py"


def net(outputs=1, width=8, features=3):
    return nn.Sequential(nn.Linear(features, width), nn.Tanh(), nn.Linear(width, outputs))


def exact(module=None, **changes):
    settings = {"epochs": 6, "precision": "float64", **changes}
    return TorchModel(net() if module is None else module, **settings)


def dense(outputs=1, **last):
    layers = [keras.Input((3,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(outputs, **last)]
    return keras.Sequential(layers)


def said(network, model, rounds=3, **options):
    return fit(network, FedRelax(model, **{"lam": 0.5, **options}), rounds=rounds, stop=None).state.predicted


def one_lesson(network, model, weighted, answers=None):
    """What one node learns from a lesson, from a start that is always the same."""
    training = model._node_training(_Given(weighted), 0, merged=False)
    train_apart(model._setup(3, answers), [training])
    return training.fit.arrays


class _Given:
    """TrainingSets of one node that starts anew."""

    before = (None,)

    def __init__(self, weighted):
        self.given = weighted

    def rows(self, node, merged):
        return self.given

    def seed(self, node):
        return 5


# ---------------------------------------------------------------------- one computation for all nodes


@pytest.mark.parametrize("classes", [False, True], ids=["numbers", "classes"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"batch": 4},
        {"patience": 2, "tolerance": 0.01, "epochs": 30},
        {"keep": "optimiser"},
        {"optimiser": torch.optim.SGD, "options": {"momentum": 0.9}},
    ],
    ids=["full batch", "batches", "early stop", "optimiser kept", "momentum"],
)
def test_together_is_one_node_after_another(changes, classes):
    network = difficult_network(classes=classes)
    changes = changes | {"loss": "cross-entropy" if classes else "squared", "module": net(2 if classes else 1)}
    joint, apart = (said(network, exact(together=together, **changes)) for together in (True, False))
    np.testing.assert_allclose(joint, apart, atol=1e-10)


def test_early_stop_ends_nodes_at_different_times():
    rng = np.random.default_rng(0)
    model = exact(patience=1, tolerance=0.02, epochs=200)
    sets = [
        WeightedRows(X, scale * X[:, 0], np.ones(6)) for scale in (0.1, 1.0, 5.0) for X in [rng.normal(size=(6, 3))]
    ]

    def steps(train):
        trainings = [model._node_training(_Given(weighted), 0, merged=False) for weighted in sets]
        train(model._setup(3, None), trainings)
        return [training.fit.steps for training in trainings]

    assert steps(train_together) == steps(train_apart)
    assert len(set(steps(train_together))) == 3
    assert max(steps(train_together)) < 200


def test_a_stack_may_be_split(monkeypatch):
    whole = said(difficult_network(), exact())
    monkeypatch.setattr("kinfolk.local_models.torch_training.MOST_NUMBERS", 100)
    np.testing.assert_allclose(said(difficult_network(), exact()), whole, atol=1e-10)


class Mixing(nn.Linear):
    def forward(self, X):
        return super().forward(X - X.mean(dim=0))


class Drawing(nn.Linear):
    def forward(self, X):
        return nn.functional.dropout(super().forward(X), 0.2, self.training)


@pytest.mark.parametrize(
    ("module", "changes"),
    [
        (nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)), {}),
        (nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 1)), {}),
        (nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.2), nn.Linear(4, 1)), {}),
        (Mixing(3, 1), {}),
        (Drawing(3, 1), {}),
        (net(), {"optimiser": "LBFGS"}),
    ],
    ids=["batch norm", "batch norm without memory", "dropout", "mixing", "drawing", "LBFGS"],
)
def test_what_cannot_be_trained_together_is_trained_apart_and_said(module, changes):
    network = large_enough()
    runs = [
        fit(network, FedRelax(exact(module, together=together, **changes), lam=0.5), rounds=2, stop=None)
        for together in (True, False)
    ]
    np.testing.assert_array_equal(runs[0].state.predicted, runs[1].state.predicted)
    notes = [note for note in runs[0].notes if "trained one after another" in note]
    assert len(notes) == 1
    assert not [note for note in runs[1].notes if "trained one after another" in note]


def large_enough(sizes=(4, 6, 5)):
    rng = np.random.default_rng(1)
    data = [(X := rng.normal(size=(size, 3)), X @ [1.0, -1.0, 0.5]) for size in sizes]
    return Network(graphs.chain(3), data, test=data, public=rng.normal(size=(7, 3)))


@pytest.mark.parametrize(
    ("model", "merges"),
    [
        (exact(), True),
        (exact(loss="cross-entropy"), True),
        (exact(batch=4), False),
        (exact(loss=lambda output, target: (output - target).abs()), False),
        (exact(nn.Sequential(nn.Linear(3, 1), nn.Dropout())), False),
        (exact(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))), False),
    ],
)
def test_labels_are_merged_where_that_changes_nothing(model, merges):
    assert model.merges == merges


@pytest.mark.parametrize("classes", [False, True], ids=["numbers", "classes"])
def test_merging_is_exact(classes, monkeypatch):
    network = difficult_network(classes=classes)
    changes = {"loss": "cross-entropy" if classes else "squared", "module": net(2 if classes else 1)}
    merged = said(network, exact(**changes))
    monkeypatch.setattr(TorchModel, "merges", False)
    np.testing.assert_allclose(said(network, exact(**changes)), merged, atol=1e-9)


# ---------------------------------------------------------------------- what is learnt


def test_a_linear_module_is_least_squares():
    network = large_enough((14, 16, 15))
    model = exact(nn.Linear(3, 1), optimiser="SGD", step_size=0.2, epochs=400)
    best = said(network, LinearModel(intercept=True), rounds=4)
    np.testing.assert_allclose(said(network, model, rounds=4), best, atol=1e-8)


def test_soft_labels_are_the_cross_entropy_of_scikit_learn():
    network = difficult_network(classes=True)
    X, y = network.data[18]
    weighted = WeightedRows(X, np.column_stack([0.9 - 0.7 * y, 0.1 + 0.7 * y]), np.ones(len(y)))
    direct = LogisticRegression(C=1e9, tol=1e-12, max_iter=10_000)
    direct.fit(np.vstack([X, X]), np.repeat([0, 1], len(y)), weighted.target.T.ravel())
    model = exact(nn.Linear(3, 2), loss="cross-entropy", optimiser="LBFGS", epochs=50, step_size=1.0)
    arrays = one_lesson(network, model, weighted, answers=2)
    np.testing.assert_allclose(arrays["weight"][1] - arrays["weight"][0], direct.coef_[0], rtol=1e-3)


@pytest.mark.parametrize("changes", [{}, {"loss": lambda output, target: (output - target).abs()}])
def test_weight_two_is_a_row_twice(changes):
    network, rng = difficult_network(), np.random.default_rng(0)
    X, y = rng.normal(size=(4, 3)), rng.normal(size=4)
    weighted = WeightedRows(X, y, np.array([1.0, 2.0, 1.0, 1.0]))
    twice = WeightedRows(np.vstack([X, X[1:2]]), np.append(y, y[1]), np.ones(5))
    plain = WeightedRows(X, y, np.ones(4))
    one, other, without = (one_lesson(network, exact(**changes), weighted) for weighted in (weighted, twice, plain))
    for name in one:
        np.testing.assert_allclose(one[name], other[name], atol=1e-12)
    assert any(np.abs(one[name] - without[name]).max() > 1e-4 for name in one)


@pytest.mark.parametrize("optimiser", ["Adam", "SGD"])
def test_an_optimiser_in_one_pass_gives_what_plain_steps_give(optimiser):
    network, plain = large_enough(), {"foreach": False}
    assert exact(optimiser=optimiser)._implementation == {"fused": True}
    assert exact(optimiser="RMSprop")._implementation == exact(options=plain)._implementation == {}
    quick, slow = (said(network, exact(optimiser=optimiser, options=options)) for options in ({}, plain))
    np.testing.assert_allclose(quick, slow, atol=1e-10)


@pytest.mark.parametrize("keep", ["nothing", "parameters", "optimiser"])
def test_rounds_go_on_where_the_last_one_ended(keep):
    network = large_enough()
    options = {"optimiser": "SGD", "step_size": 0.01, "options": {"momentum": 0.9}, "keep": keep}
    # Nobody hears anybody: twelve rounds of five steps are sixty steps, if everything is kept.
    alone = said(network, exact(epochs=5, **options), rounds=11, lam=0.0)
    long = said(network, exact(epochs=60, **options), rounds=0, lam=0.0)
    short = said(network, exact(epochs=5, **options), rounds=0, lam=0.0)
    near = np.abs(alone - long).max() < 1e-10
    assert near == (keep == "optimiser")
    assert (np.abs(alone - short).max() > 0.05) or keep == "nothing"


def test_nodes_start_from_what_is_given_or_drawn():
    network, module = large_enough(), net()
    given = fit(network, FedRelax(exact(module, start="given", step_size=1e-12)), rounds=0).models
    drawn = fit(network, FedRelax(exact(module, step_size=1e-12)), rounds=0).models
    made = fit(network, FedRelax(exact(net, step_size=1e-12)), rounds=0).models
    first = module[0].weight.detach().numpy()
    for node in range(3):
        np.testing.assert_allclose(given[node].arrays["0.weight"], first, atol=1e-9)
        assert np.abs(drawn[node].arrays["0.weight"] - first).max() > 0.01
        np.testing.assert_array_equal(drawn[node].arrays["0.weight"], made[node].arrays["0.weight"])
    assert np.abs(drawn[0].arrays["0.weight"] - drawn[1].arrays["0.weight"]).max() > 0.01


def test_frozen_parameters_stay():
    module = net()
    module[0].weight.requires_grad_(False)
    models = fit(large_enough(), FedRelax(exact(module, start="given")), rounds=1).models
    np.testing.assert_array_equal(models[0].arrays["0.weight"], module[0].weight.numpy().astype(float))
    assert np.abs(models[0].arrays["2.weight"] - module[2].weight.detach().numpy()).max() > 1e-3


def test_the_generator_of_torch_is_left_alone():
    model = exact(nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.2), nn.Linear(4, 1)))
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    said(large_enough(), model, rounds=1)
    assert torch.equal(torch.rand(2), expected)


def test_a_module_of_torch_comes_back():
    network, model = large_enough(), TorchModel(net())
    run = fit(network, FedRelax(model), rounds=1)
    X = network.test[2][0]
    module = model.module_of(run.models[2])
    assert isinstance(module, nn.Module)
    with torch.no_grad():
        ours = module(torch.tensor(X, dtype=torch.float32))[:, 0]
    np.testing.assert_allclose(run.predict(X, node=np.full(len(X), 2)), ours, atol=1e-6)


@pytest.mark.parametrize("classes", [False, True], ids=["numbers", "classes"])
def test_runs_anywhere(classes):
    model = exact(net(2 if classes else 1), loss="cross-entropy" if classes else "squared", epochs=1)
    check_algorithm(FedRelax(model, lam=0.3), difficult_network(classes=classes), rounds=6)


def test_batches_and_own_public_sets_run_anywhere():
    network = difficult_network()
    network = network.with_public(public.standard_normal(network, 7, per_node=True, seed=0))
    check_algorithm(FedRelax(exact(epochs=1, batch=4, keep="optimiser"), lam=0.3), network, rounds=6)


# ---------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (TorchModel(net(2)), "whose output has shape (rows,) or (rows, 1) for these data, got (rows, 2)"),
        (TorchModel(net(features=4)), "Expected a module and a loss for rows of 3 features, got: "),
        (TorchModel(net(), loss="hinge"), "The 'loss' parameter of TorchModel must be one of 'squared', "),
        (TorchModel(net(), loss=lambda a, b: (a - b).sum()), "a loss with one value for each of 5 rows, got shape ()"),
        (TorchModel(net(), optimiser="Adan"), "must be a class in torch.optim, or the name of one. Got 'Adan' instead"),
        (TorchModel(net(), options={"lr": 1}), "must be a mapping without 'lr'"),
        (TorchModel(3), "must be a torch.nn.Module, or a function without arguments that makes one. Got 3 instead"),
        (TorchModel(net(), epochs=0), "The 'epochs' parameter of TorchModel must be a whole number ≥ 1"),
        (TorchModel(net(), optimiser="SGD", step_size=1e30), "predictions of shape (10,) from node 0, got NaN"),
        (KerasModel(3), "The 'model' parameter of KerasModel must be a Keras model"),
        (KerasModel(dense(), optimiser="adan"), "must be the name of an optimiser of Keras. Got 'adan' instead"),
        (KerasModel(dense(), epochs=0), "The 'epochs' parameter of KerasModel must be a whole number ≥ 1"),
        (KerasModel(dense(2), epochs=1), "Expected finite predictions of shape (10,) from node 0, got shape (10, 2)"),
    ],
)  # fmt: skip
def test_bad_models_get_a_sentence(model, sentence):
    with pytest.raises(InputError) as error:
        fit(difficult_network(), FedRelax(model), rounds=1)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_too_few_logits_get_a_sentence():
    with pytest.raises(InputError, match=r"shape \(rows, 2\), logits, for these data, got \(rows, 1\)"):
        fit(difficult_network(classes=True), FedRelax(TorchModel(net(1), loss="cross-entropy")), rounds=1)


def test_memory_that_is_no_array_cannot_be_kept():
    with pytest.raises(InputError, match="whose memory is made of arrays, got 'LBFGS'"):
        fit(large_enough(), FedRelax(exact(optimiser="LBFGS", keep="optimiser")), rounds=1)


@pytest.mark.parametrize(("extra", "model"), [("torch", TorchModel(net())), ("keras", KerasModel(3))])
def test_without_an_extra_a_sentence_says_what_to_install(monkeypatch, extra, model):
    monkeypatch.delitem(sys.modules, f"kinfolk.local_models.{extra}_training")
    monkeypatch.delattr(kinfolk.local_models, f"{extra}_training")
    monkeypatch.setitem(sys.modules, extra, None)
    with pytest.raises(InputError, match=rf'Expected {extra} for \w+Model: .* pip install "kinfolk\[{extra}\]"'):
        model.check()


# ---------------------------------------------------------------------- Keras


def test_keras_is_torch():
    """The same start and the same steps of gradient descent."""
    network = large_enough()
    line = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    start = nn.Linear(3, 1)
    nn.init.zeros_(start.weight), nn.init.zeros_(start.bias)
    ours = said(network, TorchModel(start, optimiser="SGD", step_size=0.1, epochs=10, start="given"), rounds=2)
    theirs = said(network, KerasModel(line, optimiser="sgd", step_size=0.1, epochs=10), rounds=2)
    np.testing.assert_allclose(theirs, ours, atol=1e-5)


def test_a_compiled_model_keeps_its_loss_and_optimiser():
    network, line = large_enough(), keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    plain = said(network, KerasModel(line, optimiser="sgd", step_size=0.1, epochs=5), rounds=1)
    before = [weights.copy() for weights in line.get_weights()]
    line.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
    np.testing.assert_allclose(said(network, KerasModel(line, epochs=5), rounds=1), plain, atol=1e-6)
    np.testing.assert_array_equal(line.get_weights()[0], before[0])  # the model that was given is left alone


@pytest.mark.parametrize("logits", [True, False])
def test_keras_classifies(logits):
    network = difficult_network(classes=True)
    model = KerasModel(dense(2, activation=None if logits else "softmax"), "cross-entropy", logits, epochs=3)
    run = fit(network, FedRelax(model, lam=0.5), rounds=2, stop=None)
    heard = run.state.predicted[[fit is not None for fit in run.state.fitted]]
    np.testing.assert_allclose(heard.sum(axis=2), 1.0, atol=1e-5)
    assert 0 <= run.error() <= 1


def test_keras_refuses_losses_that_hear_no_probabilities():
    model = dense(2, activation="softmax")
    model.compile(loss="sparse_categorical_crossentropy")
    with pytest.raises(InputError, match="categorical_crossentropy for classes, as neighbours send prob"):
        fit(difficult_network(classes=True), FedRelax(KerasModel(model)), rounds=1)


def test_keras_goes_on_from_the_last_round_and_draws_by_seed():
    network = large_enough()
    slow = {"optimiser": "sgd", "step_size": 0.01}
    first, again = (said(network, KerasModel(dense, epochs=2, **slow), rounds=4, lam=0.0) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    straight = said(network, KerasModel(dense, epochs=10, **slow), rounds=0, lam=0.0)
    np.testing.assert_allclose(first, straight, atol=1e-6)


def test_a_model_of_keras_comes_back():
    network, model = large_enough(), KerasModel(dense, epochs=2)
    run = fit(network, FedRelax(model), rounds=1)
    X = network.test[1][0]
    ours = model.model_of(run.models[1], features=3).predict(X, verbose=0)[:, 0]
    np.testing.assert_allclose(run.predict(X, node=np.full(len(X), 1)), ours, atol=1e-6)


# ---------------------------------------------------------------------- all kinds in one network


def test_five_kinds_of_models_come_to_agree():
    rng = np.random.default_rng(0)
    w = rng.normal(size=3)

    def draw(count):
        X = rng.normal(size=(count, 3))
        return X, X @ w + 0.5 * rng.normal(size=count)

    kinds = [
        DecisionTreeRegressor(max_depth=3), Ridge(), GradientBoostingRegressor(n_estimators=20),
        TorchModel(net(), epochs=60), KerasModel(dense(), epochs=15, step_size=0.03),
    ]  # fmt: skip
    graph, _ = graphs.stochastic_block([15], 0.5, 0.0, seed=0)
    network = Network(graph, [draw(8) for _ in range(15)], test=[draw(40) for _ in range(15)])
    network = network.with_public(public.standard_normal(network, 40, seed=0))
    models = {name: kinds[k % 5] for k, name in enumerate(network.names)}
    alone = fit(network, FedRelax(models, lam=0.0), rounds=4, stop=None)
    run = fit(network, FedRelax(models, lam=1.0), rounds=4, stop=None)
    assert run.history["disagreement"].iloc[-1] < 0.5 * run.history["disagreement"].iloc[0]
    X, y, owner = network.test.X, network.test.y, network.test.owner
    ours, theirs = (
        np.bincount(owner % 5, each.models.error(X, y, owner)) / np.bincount(owner % 5) for each in (run, alone)
    )
    assert (ours < theirs * [1, 1.3, 1, 1, 1]).all()  # all but the ridge regression, which is right here, gain


def test_lightgbm_needs_nothing():
    network = large_enough()
    quiet = LGBMRegressor(n_estimators=5, min_child_samples=1, min_data_in_bin=1, verbose=-1, n_jobs=1)
    run = fit(network, FedRelax(quiet, lam=0.5), rounds=2, stop=None)
    assert np.isfinite(run.state.predicted).all()
    assert np.ptp(run.state.predicted) > 0.1


def test_the_example_runs(capsys):
    run_path(str(EXAMPLE))["main"](quick=True)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(kind in "\n".join(lines) for kind in ("tree", "ridge", "boosting", "torch", "Keras")) == 5
