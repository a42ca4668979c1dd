"""The layer under TorchLoss and TorchModel: against a plain loop over modules of torch, node by node."""

import copy
import pickle
from functools import partial

import numpy as np
import pytest

from kinfolk import (
    DFL,
    SCAFFOLD,
    FedAvg,
    FedGD,
    FedProx,
    FedRelax,
    FeSEM,
    GTVMin,
    InProcess,
    InputError,
    Local,
    Network,
    PFedMe,
    Squared,
    TorchDescent,
    TorchLoss,
    TorchModel,
    fit,
    graphs,
)
from kinfolk.network.data import Data
from kinfolk.testing import check_algorithm, difficult_network

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from kinfolk.modules import scored, stacks  # noqa: E402
from kinfolk.modules.flat import FlatModule, sized  # noqa: E402

OPTIONS = {"stop": None, "progress": False, "measure_every": 1_000}


def net(features=3, outputs=1, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(features, 5), nn.Tanh(), nn.Linear(5, outputs))


def normalised(features=3, outputs=1):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(features, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, outputs))


def ragged(outputs=None, seed=0, nodes=6, features=3, least=2):
    """Nodes with 2, 3, ... rows on a chain."""
    rng = np.random.default_rng(seed)
    sets = []
    for k in range(nodes):
        X = rng.normal(size=(least + k, features))
        shape = () if outputs is None else (outputs,)
        sets.append((X, X @ rng.normal(size=(features, *shape)) + 0.1 * rng.normal(size=(len(X), *shape))))
    return Network(graphs.chain(nodes), sets)


def moving(loss, nodes):
    """Vectors that differ from node to node."""
    return loss.start(3) + 0.1 * np.random.default_rng(1).normal(size=(nodes, loss.width(3)))


# ---------------------------------------------------------------------- a vector of parameters and buffers


def test_the_vector_has_trained_parameters_then_buffers_and_names():
    module = normalised()
    module[0].weight.requires_grad_(False)
    flat = FlatModule.of(module)
    assert list(flat.shapes)[-2:] == ["1.running_mean", "1.running_var"]
    assert "0.weight" not in flat.shapes
    assert flat.trained == 5 + 5 + 5 + 5 + 1
    assert flat.moves.sum() == flat.trained
    where, shape = flat.part("3.weight")
    np.testing.assert_array_equal(flat.start[where].reshape(shape), module[3].weight.detach().numpy())
    with pytest.raises(InputError, match=r"got '0\.weight', which is frozen and stays in the module"):
        flat.part("0.weight")
    with pytest.raises(InputError, match="got 'head', which the module has not"):
        flat.part("head")


def test_a_module_of_the_vector_is_the_module():
    flat = FlatModule.of(normalised())
    w = flat.start + np.arange(flat.size)
    again = flat.module_of(w)
    np.testing.assert_array_equal(FlatModule.of(again).start, w)
    X = torch.randn(4, 3, dtype=torch.float64)
    torch.testing.assert_close(again(X), flat.outputs(flat.tensor(w), X))


def test_frozen_parameters_stay_to_the_last_bit_and_are_not_sent():
    module = net()
    module[0].weight.requires_grad_(False)
    before = module[0].weight.detach().double().numpy().copy()
    network = ragged()
    for algorithm in (FedAvg, FedProx, SCAFFOLD, DFL, partial(FeSEM, model_count=2), Local):
        run = fit(network, algorithm(TorchLoss(module)), rounds=3, **OPTIONS)
        np.testing.assert_array_equal(run.models[1][0].weight.detach().numpy(), before)
        assert np.abs(run.models.part("2.weight") - module[2].weight.detach().numpy()).max() > 1e-3
    assert FedAvg(TorchLoss(module)).sends(network).coordinator["w"].shape == (5 + 5 + 1,)


def test_constants_that_are_buffers_do_no_harm():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.line = nn.Linear(3, 1)
            self.register_buffer("scale", torch.tensor([0.5, 1.0, 2.0]))
            self.register_buffer("order", torch.tensor([2, 0, 1]))

        def forward(self, x):
            return self.line((x * self.scale)[:, self.order])

    network = ragged()
    for algorithm in (FedAvg(TorchLoss(Scaled())), GTVMin(TorchLoss(Scaled(), steps=2), lam=0.1)):
        run = fit(network, algorithm, rounds=3, **OPTIONS)
        np.testing.assert_allclose(run.models.part("scale"), np.tile([0.5, 1.0, 2.0], (6, 1)), rtol=1e-15)


# ---------------------------------------------------------------------- against a loop over modules


def by_hand(module, network, steps, step_size, loss_function=nn.functional.mse_loss):
    """FedAvg's local work, node by node, in plain torch: parameters and buffers after some full steps of SGD."""
    out = []
    for k in range(network.graph.node_count):
        own = copy.deepcopy(module).double().train()
        X, y = map(torch.tensor, network.data[k])
        optimiser = torch.optim.SGD(own.parameters(), lr=step_size)
        for _ in range(steps):
            optimiser.zero_grad()
            prediction = own(X)
            loss_function(prediction if y.ndim > 1 else prediction[:, 0], y).backward()
            optimiser.step()
        parts = dict([*own.named_parameters(), *own.named_buffers()])
        out.append(torch.cat([parts[name].reshape(-1) for name in FlatModule.of(module).shapes]).detach().numpy())
    return np.stack(out)


@pytest.mark.parametrize("make", [net, normalised], ids=["plain", "batch normalisation"])
def test_local_work_is_what_a_loop_over_modules_does(make):
    network, module = ragged(), make()
    run = fit(network, FedAvg(TorchLoss(module), local_steps=4, step_size=0.1), rounds=1, **OPTIONS)
    expected = by_hand(module, network, 4, 0.1)
    np.testing.assert_allclose(run.models.w[0], expected.mean(axis=0), rtol=1e-9, atol=1e-12)
    alone = fit(network, Local(TorchLoss(module, step_size=0.1, minimise_steps=4)), rounds=0).models.w
    np.testing.assert_allclose(alone, expected, rtol=1e-9, atol=1e-12)


def test_running_statistics_are_renewed_and_averaged():
    network = ragged()
    for algorithm in (FedAvg, FedProx, SCAFFOLD, DFL, partial(DFL, tracking=True), partial(FeSEM, model_count=2)):
        run = fit(network, algorithm(TorchLoss(normalised()), step_size=0.05), rounds=5, **OPTIONS)
        assert (np.abs(run.models.part("1.running_mean")) > 1e-3).any()
        assert (run.models.part("1.running_var") > 0).all()
        assert np.isfinite(run.models.w).all()


@pytest.mark.parametrize(
    "algorithm",
    [
        FedAvg(TorchLoss(normalised()), local_steps=2, batch=2, step_size=0.05),
        DFL(TorchLoss(normalised()), local_steps=2, step_size=0.05, tracking=True),
        SCAFFOLD(TorchLoss(normalised()), local_steps=2, step_size=0.05),
        FeSEM(TorchLoss(normalised()), model_count=2, local_steps=2, warm_up=2),
        FedAvg(TorchLoss(nn.Sequential(net(), nn.Dropout(0.0), nn.Linear(1, 1))), local_steps=2),
        FedProx(TorchLoss(net()), local_steps=3, batch=2, mu=0.3),
        DFL(TorchLoss(net()), local_epochs=1, batch=2, step_size=0.05, optimiser="Adam"),
    ],
    ids=lambda algorithm: type(algorithm).__name__,
)
def test_runs_everywhere(algorithm):
    network = difficult_network()
    large_enough = Network(
        network.graph,
        [
            None if not size else (np.resize(X, (size + 1, 3)), np.resize(y, size + 1))
            for size, (X, y) in zip(network.data.sizes, map(network.data.__getitem__, range(24)), strict=True)
        ],
        test=network.test,
    )
    check_algorithm(algorithm, large_enough, rounds=7)


def test_dropout_is_drawn_in_training_keyed_and_off_in_evaluation():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 20), nn.Dropout(0.5), nn.Linear(20, 1))
    network = ragged()

    def run(seed, sites=1):
        algorithm = FedAvg(TorchLoss(module), local_steps=2, step_size=0.05)
        return fit(network, algorithm, rounds=2, seed=seed, engine=InProcess(sites), **OPTIONS)

    np.testing.assert_array_equal(run(0).models.w, run(0).models.w)
    np.testing.assert_allclose(run(0).models.w, run(0, sites=4).models.w, rtol=1e-12)
    assert np.abs(run(0).models.w - run(1).models.w).max() > 1e-4
    models = run(0).models
    np.testing.assert_array_equal(
        models.predict(network.data.X, network.data.owner), models.predict(network.data.X, network.data.owner)
    )


def test_several_outputs_are_learnt_at_once():
    network = ragged(outputs=4)
    module = net(outputs=4)

    def total(prediction, label):
        return ((prediction - label) ** 2).sum(dim=1).mean()

    run = fit(network, FedAvg(TorchLoss(module), local_steps=3, step_size=0.05), rounds=1, **OPTIONS)
    np.testing.assert_allclose(run.models.w[0], by_hand(module, network, 3, 0.05, total).mean(axis=0), rtol=1e-9)
    predictions = run.predict(network.data.X, network.data.owner)
    assert predictions.shape == network.data.y.shape
    errors = run.models.error(network.data.X, network.data.y, network.data.owner)
    np.testing.assert_allclose(errors, ((predictions - network.data.y) ** 2).sum(axis=1))


def test_one_output_of_a_linear_module_for_two_targets_is_two_linear_models():
    network = ragged(outputs=2, least=5)
    loss = TorchLoss(nn.Linear(3, 2, bias=False), step_size=0.1, minimise_steps=4_000)
    joint = fit(network, Local(loss), rounds=0).models.part("weight")
    for k in range(2):
        single = Network(network.graph, [(X, y[:, k]) for X, y in map(network.data.__getitem__, range(6))])
        np.testing.assert_allclose(joint[:, k], fit(single, Local(), rounds=0).models.w, atol=1e-5)


def test_a_side_input_reaches_the_module_as_a_second_argument():
    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.line = nn.Linear(2, 1)

        def forward(self, x, gate):
            assert x.shape[-1] == 2
            return self.line(x) * gate

    network = ragged()
    loss = TorchLoss(Gated(), side=1)
    losses, w = loss.bind(network.data), moving(loss, 6)
    X, y = network.data.X, network.data.y
    said = ((X[:, :2] * w[network.data.owner, :2]).sum(axis=1) + w[network.data.owner, 2]) * X[:, 2]
    expected = np.bincount(network.data.owner, (said - y) ** 2) / network.data.sizes
    np.testing.assert_allclose(losses.value(w), expected, rtol=1e-12)
    run = fit(network.with_public(X[:4]), FedRelax(TorchModel(Gated(), side=1, epochs=2)), rounds=1, **OPTIONS)
    assert np.isfinite(run.predict(X, network.data.owner)).all()
    with pytest.raises(InputError, match="fewer than 3 features on the side, got side=3"):
        fit(network, FedAvg(TorchLoss(Gated(), side=3)), rounds=1)


def test_any_function_of_prediction_and_label_is_a_loss():
    def absolute(prediction, label):
        return (prediction - label).abs()

    network, module = ragged(), net()
    run = fit(network, FedAvg(TorchLoss(module, absolute), local_steps=3, step_size=0.05), rounds=1, **OPTIONS)
    np.testing.assert_allclose(
        run.models.w[0], by_hand(module, network, 3, 0.05, nn.functional.l1_loss).mean(axis=0), rtol=1e-9
    )

    def hinge(logits, label):
        return torch.relu(1 - (2 * label - 1) * (logits[:, 1] - logits[:, 0]))

    hinge.classifies = True
    run = fit(
        difficult_network(classes=True), FedAvg(TorchLoss(net(outputs=2), hinge), local_steps=3), rounds=3, **OPTIONS
    )
    assert set(np.unique(run.predict(np.random.default_rng(0).normal(size=(50, 3)), [0] * 50))) <= {0.0, 1.0}


def test_thirty_two_bits_are_near_sixty_four():
    network = ragged()
    runs = [
        fit(network, FedAvg(TorchLoss(net(), precision=precision), local_steps=3), rounds=5, **OPTIONS).models
        for precision in ("float64", "float32")
    ]
    np.testing.assert_allclose(runs[0].w, runs[1].w, atol=1e-5)
    assert not np.array_equal(runs[0].w, runs[1].w)
    assert runs[1][0][0].weight.dtype == torch.float32


# ---------------------------------------------------------------------- memory


def test_chunks_do_not_change_values_slopes_or_predictions(monkeypatch):
    network = ragged(nodes=9, least=1)
    for module in (net(), normalised()):
        loss = TorchLoss(module)
        w = moving(loss, 9)
        whole = loss.bind(network.data)
        expected = (
            whole.value(w),
            whole.gradient(w),
            whole.hessian_product(w, w),
            loss.models(w).outputs(network.data.X, network.data.owner),
        )
        for most in (1, 40, 200):
            monkeypatch.setattr(scored, "MOST_NUMBERS", most)
            loss = TorchLoss(module)
            losses = loss.bind(network.data)
            found = (
                losses.value(w),
                losses.gradient(w),
                losses.hessian_product(w, w),
                loss.models(w).outputs(network.data.X, network.data.owner),
            )
            for one, other in zip(expected, found, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)
        monkeypatch.undo()


def test_stacks_hold_every_row_once_and_are_small_enough():
    starts = np.concatenate([[0], np.cumsum(np.random.default_rng(0).integers(0, 40, 50))])
    for most in (1, 7, 64, 10_000):
        for by_row in (True, False):
            made = list(stacks.stacks(starts, most, by_row=by_row))
            rows = np.concatenate([stack.rows[stack.counted] for stack in made])
            assert sorted(rows.tolist()) == list(range(starts[-1]))
            for stack in made:
                owner = np.searchsorted(starts, stack.rows, side="right") - 1
                assert (owner == stack.nodes[:, None]).all()
                assert by_row or stack.counted.all()
                assert stack.rows.size <= max(most, 1 if by_row else 40)


# ---------------------------------------------------------------------- derivatives


@pytest.mark.parametrize(
    "make", [lambda: Squared("sum", 0.3), lambda: TorchLoss(net(), ridge=0.2), lambda: TorchLoss(normalised())]
)
def test_the_hessian_product_is_the_derivative_of_the_gradient(make):
    network, loss = ragged(), make()
    losses, rng = loss.bind(network.data), np.random.default_rng(0)
    w = loss.start(3) + 0.3 * rng.normal(size=(6, loss.width(3)))
    if isinstance(loss, TorchLoss):
        w[:, losses.trained :] = np.abs(w[:, losses.trained :]) + 1
    v = rng.normal(size=w.shape)
    v[:, losses.trained :] = 0
    numeric = (losses.gradient(w + 1e-5 * v) - losses.gradient(w - 1e-5 * v)) / 2e-5
    np.testing.assert_allclose(losses.hessian_product(w, v), numeric, rtol=1e-5, atol=1e-7)


def test_the_hessian_product_of_a_linear_model_is_that_of_the_matrix():
    losses = Squared(ridge=0.3).bind(ragged().data)
    v = np.random.default_rng(0).normal(size=(6, 3))
    np.testing.assert_allclose(losses.hessian_product(v, v), np.einsum("nij,nj->ni", losses.hessian(v), v), atol=1e-13)


@pytest.mark.parametrize("make", [lambda: Squared("sum", 0.3), lambda: TorchLoss(net(), reduction="sum", ridge=0.3)])
def test_the_mean_over_all_batches_is_the_whole(make):
    """F_i on the parts of a node, averaged, is F_i, ridge term included."""
    network, loss = ragged(least=4), make()
    losses = loss.bind(network.data)
    w = loss.start(3) + np.random.default_rng(0).normal(size=(6, loss.width(3)))
    starts = network.data.starts
    halves = []
    for parity in (0, 1):
        rows = [np.arange(starts[k], starts[k] + 4)[parity::2] for k in range(6)]
        halves.append(losses.means_on(np.concatenate(rows), np.arange(0, 13, 2)).gradient(w))
    four = losses.means_on(np.concatenate([np.arange(starts[k], starts[k] + 4) for k in range(6)]), np.arange(0, 25, 4))
    np.testing.assert_allclose(np.mean(halves, axis=0), four.gradient(w), rtol=1e-10)
    np.testing.assert_allclose(losses.means.gradient(w) * network.data.sizes[:, None], losses.gradient(w), rtol=1e-10)


# ---------------------------------------------------------------------- modules with habits


class Keeps(nn.Module):
    """Keeps its last activation, as many do to look at it later."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 1)
        self.kept = {}

    def forward(self, x):
        self.hidden = torch.tanh(self.first(x))
        self.kept["hidden"] = [self.hidden]
        return self.last(self.hidden)


def test_a_module_that_keeps_an_activation_can_be_trained_copied_and_taken_out():
    network, module = ragged(), Keeps()
    copy.deepcopy(fit(network, FedAvg(TorchLoss(module)), rounds=2, **OPTIONS).algorithm)
    module(torch.zeros(2, 3))  # now it keeps one of ours
    for algorithm in (FedAvg(TorchLoss(module), local_steps=2), GTVMin(TorchLoss(module, steps=2))):
        run = fit(network, algorithm, rounds=2, **OPTIONS)
        own = copy.deepcopy(run.models[0])
        X = network.data[0][0]
        said = own(torch.tensor(X)).detach().numpy()[:, 0]
        np.testing.assert_allclose(said, run.predict(X, [0] * len(X)), rtol=1e-12)
    relaxed = FedRelax(TorchModel(module, epochs=1, start="given"))
    run = fit(network.with_public(network.data.X[:4]), relaxed, rounds=1, **OPTIONS)
    assert isinstance(relaxed.model.module_of(run.models[0]), Keeps)


def test_a_module_that_overwrites_its_rows_does_no_harm():
    network = ragged()
    before = network.data.X.copy()
    greedy = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 1))
    torch.manual_seed(0)
    polite = nn.Sequential(nn.ReLU(), nn.Linear(3, 1))
    polite.load_state_dict(greedy.state_dict())
    one, other = (fit(network, FedAvg(TorchLoss(m), local_steps=3), rounds=3, **OPTIONS) for m in (greedy, polite))
    np.testing.assert_array_equal(one.models.w, other.models.w)
    np.testing.assert_array_equal(network.data.X, before)


def test_a_flat_module_can_be_pickled_and_copied():
    flat = FlatModule.of(normalised(), "float32")
    flat.outputs(flat.tensor(flat.start), torch.zeros(2, 3))
    for again in (pickle.loads(pickle.dumps(flat)), copy.deepcopy(flat)):
        np.testing.assert_array_equal(again.start, flat.start)
        assert again.dtype == torch.float32


def test_lazy_layers_learn_their_sizes_and_draw_the_same_everywhere():
    def lazy():
        return nn.Sequential(nn.LazyLinear(4), nn.Tanh(), nn.LazyLinear(1))

    network = ragged()
    one, other = (fit(network, FedAvg(TorchLoss(lazy())), rounds=2, engine=InProcess(n), **OPTIONS) for n in (1, 3))
    np.testing.assert_allclose(one.models.w, other.models.w, rtol=1e-12)
    assert one.models.w.shape == (6, 3 * 4 + 4 + 4 + 1)
    assert tuple(one.models[0][0].weight.shape) == (4, 3)
    model = TorchModel(lazy(), epochs=2)
    run = fit(network.with_public(network.data.X[:4]), FedRelax(model), rounds=1, **OPTIONS)
    assert tuple(model.module_of(run.models[0])[0].weight.shape) == (4, 3)
    again = TorchLoss(sized(lazy(), torch.zeros(2, 3)))
    np.testing.assert_array_equal(again.start(3), TorchLoss(lazy()).start(3))


def test_what_torch_cannot_map_over_nodes_is_computed_one_by_one():
    class Stubborn(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.line = nn.Linear(3, 1)

        def forward(self, x):
            return self.line(x) * (1.0 if float(self.line.bias.detach().sum()) < 9 else 2.0)  # looks at a number

    network = ragged()
    loss, plain = TorchLoss(Stubborn()), TorchLoss(nn.Linear(3, 1))
    losses, same = loss.bind(network.data), plain.bind(network.data)
    assert losses.scored.traits("evaluation").why_apart is not None
    w = moving(loss, 6)
    np.testing.assert_allclose(losses.value(w), same.value(w), rtol=1e-12)
    np.testing.assert_allclose(losses.gradient(w), same.gradient(w), rtol=1e-12)


# ---------------------------------------------------------------------- an optimiser is used or refused


def test_algorithms_take_the_optimiser_of_the_loss_unless_they_have_their_own():
    network, module = ragged(), net()

    def learnt(loss_options, **own):
        return fit(
            network, FedAvg(TorchLoss(module, **loss_options), local_steps=3, **own), rounds=2, **OPTIONS
        ).models.w

    adam = {"optimiser": "Adam", "step_size": 0.01}
    np.testing.assert_array_equal(learnt(adam), learnt({}, **adam))
    assert np.abs(learnt(adam) - learnt({"step_size": 0.01})).max() > 1e-4
    momentum = partial(torch.optim.SGD, momentum=0.9)
    assert np.abs(learnt({}, optimiser=momentum, step_size=0.01) - learnt({"step_size": 0.01})).max() > 1e-4
    with pytest.raises(InputError, match=r"Expected plain descent for SCAFFOLD, .* got the optimiser 'Adam'"):
        fit(network, SCAFFOLD(TorchLoss(module, **adam)), rounds=1)


# ---------------------------------------------------------------------- bad input


BATCH_NORMALISED = "Expected a module without running statistics for"


@pytest.mark.parametrize(
    ("algorithm", "sentence"),
    [
        (GTVMin(TorchLoss(normalised())), f"{BATCH_NORMALISED} GTVMin"),
        (FedGD(TorchLoss(normalised()), step_size=0.1), f"{BATCH_NORMALISED} FedGD"),
        (PFedMe(TorchLoss(normalised())), f"{BATCH_NORMALISED} PFedMe"),
        (TorchDescent(TorchLoss(normalised())), f"{BATCH_NORMALISED} TorchDescent"),
        (FedAvg(TorchLoss(normalised()), average="gradients"), f"{BATCH_NORMALISED} FedAvg"),
        (FedAvg(TorchLoss(normalised()), batch=1), r"can be trained on 1 row in TorchLoss, .* more than 1 value per"),
        (FedAvg(TorchLoss(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2, momentum=None)))), "Expected a momentum"),
        (FedAvg(TorchLoss(net(outputs=2))), "one output for squared errors, got 2: give y the shape"),
        (FedAvg(TorchLoss(net(), "hinge")), "The 'loss' parameter of TorchLoss must be one of 'squared'"),
        (FedAvg(TorchLoss(net(), lambda p, y: (p - y).sum())), r"one value for each of 8 rows, got shape \(\)"),
        (FedAvg(TorchLoss(net(), lambda p, y: p @ y[:, None].T.T)), "Expected a loss of outputs|one value for each"),
        (FedAvg(TorchLoss(net(), device="tpu")), "Expected a device that torch has here, such as 'cpu', got 'tpu'"),
        (FedAvg(TorchLoss(net(), precision="float16")), "must be one of 'float64', 'float32'"),
        (FedAvg(TorchLoss(nn.LazyConv2d(3, 3))), "Expected a module that reads rows of 3 features"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_in_a_sentence(algorithm, sentence):
    with pytest.raises(InputError, match=sentence):
        fit(ragged(), algorithm, rounds=1)


def test_outputs_that_do_not_fit_the_labels_are_refused():
    network = ragged(outputs=3)
    with pytest.raises(InputError, match="Expected a module with 3 outputs, as many as a row has labels, got 2"):
        fit(network, FedAvg(TorchLoss(net(outputs=2))), rounds=1)
    with pytest.raises(InputError, match="Expected one label of every row for Squared, got 3: use TorchLoss"):
        fit(network, FedAvg(), rounds=1)
    with pytest.raises(InputError, match="Expected one label of every row for FedRelax, got 3"):
        fit(network.with_public(network.data.X[:3]), FedRelax(TorchModel(net(outputs=3))), rounds=1)
    with pytest.raises(InputError, match="the number of one class as the label of a row, got 3 labels"):
        fit(network, FedAvg(TorchLoss(net(outputs=3), "cross-entropy")), rounds=1)
    with pytest.raises(InputError, match="targets of different shapes"):
        Data.from_nodes([([[1.0]], [1.0]), ([[1.0]], [[1.0, 2.0]])])
    with pytest.raises(InputError, match=r"Expected test labels of shape \('rows', 3\)"):
        Network(network.graph, network.data, test=ragged().data)


def test_several_targets_come_from_a_table():
    import pandas

    table = pandas.DataFrame({"shop": ["a", "b"], "x": [1.0, 2.0], "sold": [1.0, 2.0], "lost": [0.0, 1.0]})
    graph = graphs.Graph.from_edges([("a", "b")])
    network = Network.from_frame(table, node="shop", target=["sold", "lost"], graph=graph)
    assert network.data.y.tolist() == [[1.0, 0.0], [2.0, 1.0]]
    assert network.features == ["x"]
    assert network.classes is None
    with pytest.raises(InputError, match="features without the target, got 'lost' among them"):
        Network.from_frame(table, node="shop", target=["sold", "lost"], features=["lost"], graph=graph)
