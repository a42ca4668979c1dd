"""The layer under TorchLoss and TorchModel: against a plain loop over modules of torch, node by node."""

import copy
import pickle
from functools import partial

import numpy as np
import pytest

from kinfolk import (
    DFL,
    IFCA,
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
    TorchLoss,
    TorchModel,
    fit,
    graphs,
)
from kinfolk.algorithms.ifca import Redrawn, Uniform
from kinfolk.algorithms.torch_descent import TorchDescent
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


def test_labels_with_one_column_are_labels():
    flat = ragged()
    network = Network(flat.graph, [(X, y[:, None]) for X, y in map(flat.data.__getitem__, range(6))])
    assert network.data.y.shape == flat.data.y.shape
    one, other = (fit(n, FedAvg(TorchLoss(net()), local_steps=2), rounds=3, **OPTIONS) for n in (network, flat))
    np.testing.assert_allclose(one.models.w, other.models.w, rtol=1e-12)
    errors = [run.models.error(n.data.X, n.data.y, n.data.owner) for run, n in ((one, network), (other, flat))]
    np.testing.assert_allclose(*errors, rtol=1e-12)


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


class Overwrites(nn.Module):
    """Writes to its rows, but only to some of them."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.line = nn.Linear(3, 1)

    def forward(self, x):
        return self.line(x.mul_(torch.where(x.abs() > 10, 0.5, 1.0)))


def test_rows_that_are_overwritten_now_and_then_stay_as_they_were():
    network = ragged(nodes=9)
    X = network.data.X.copy()
    X[17, 0] = 40.0
    network = Network(network.graph, Data(X, network.data.y, network.data.starts))
    fit(network, FedAvg(TorchLoss(Overwrites()), local_steps=3, step_size=1e-3), rounds=3, **OPTIONS)
    np.testing.assert_array_equal(network.site.data.X, X)
    losses = TorchLoss(Overwrites()).bind(network.data)
    np.testing.assert_array_equal(losses.value(losses.start), losses.value(losses.start))


class Centres(nn.Module):
    """Its output for a row depends on the others, which does not show where its head is zero."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.head = nn.Linear(3, 4), nn.Linear(4, 1)
        nn.init.zeros_(self.head.weight)

    def forward(self, x):
        h = torch.tanh(self.first(x))
        return self.head(h - h.mean(dim=0))


class Functional(nn.Module):
    """Draws, and no layer of it says so."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(3, 8), nn.Linear(8, 1)

    def forward(self, x):
        h = nn.functional.dropout(torch.tanh(self.first(x)), 0.3, self.training)
        return self.last(nn.functional.dropout(h, 0.3, self.training))


@pytest.mark.parametrize("make", [Centres, Functional], ids=["looks at other rows", "draws twice"])
@pytest.mark.parametrize("batch", [None, 4])
def test_odd_modules_give_the_same_on_any_number_of_sites_and_whoever_is_present(make, batch):
    rng = np.random.default_rng(0)
    sets = [(rng.normal(size=(m, 3)), rng.normal(size=m)) for m in (1, 3, 4, 3, 10, 4)]
    network = Network(graphs.edgeless(6), sets)
    loss = make()
    algorithm = DFL(TorchLoss(loss), local_steps=2, batch=batch, step_size=0.1)
    one, many = (fit(network, algorithm, rounds=3, engine=InProcess(n), **OPTIONS).models.w for n in (1, 6))
    np.testing.assert_allclose(one, many, rtol=1e-10, atol=1e-12)
    few = fit(network, algorithm, rounds=3, participation=lambda _: [1, 2], **OPTIONS).models.w
    np.testing.assert_allclose(few[1:3], one[1:3], rtol=1e-10, atol=1e-12)


def test_where_nothing_is_keyed_what_draws_is_the_same_every_time_and_the_generator_of_torch_stays():
    network = ragged()
    state = torch.random.get_rng_state()
    for module in (Functional(), nn.Sequential(net(), nn.Dropout(0.5))):
        for algorithm in (Local(TorchLoss(module, minimise_steps=20)), GTVMin(TorchLoss(module, steps=2))):
            state = torch.random.get_rng_state()
            one, other = (fit(network, algorithm, rounds=2, **OPTIONS).models.w for _ in range(2))
            np.testing.assert_array_equal(one, other)
            assert torch.equal(state, torch.random.get_rng_state())


def test_a_token_outside_the_table_is_refused_wherever_it_stands():
    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.head = nn.Embedding(7, 3), nn.Linear(6, 1)

        def forward(self, x):
            return self.head(self.table(x.long()).flatten(1))

    rng = np.random.default_rng(0)
    sets = [(rng.integers(0, 7, (40, 2)).astype(float), rng.normal(size=40)) for _ in range(3)]
    network = Network(graphs.chain(3), sets)
    run = fit(network, FedAvg(TorchLoss(Tokens())), rounds=1, **OPTIONS)
    with pytest.raises(InputError, match="Expected rows that the module of TorchLoss can read"):
        run.predict([[1.0, 9.0]] * 2, node=[0, 1])
    sets[1][0][17, 1] = 9.0
    with pytest.raises(InputError, match="Expected rows that the module of TorchLoss can read"):
        fit(Network(graphs.chain(3), sets), FedAvg(TorchLoss(Tokens())), rounds=1)


def test_running_variances_stay_positive():
    rng = np.random.default_rng(0)
    sets = [(rng.normal(size=(12, 3)) * 10.0 ** rng.uniform(-1, 1), rng.normal(size=12)) for _ in range(8)]
    network = Network(graphs.star(8), sets)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5, momentum=0.5), nn.Tanh(), nn.Linear(5, 1))
    for algorithm in (
        DFL(TorchLoss(module), local_steps=3, batch=4),
        SCAFFOLD(TorchLoss(module), local_steps=20, server_step=3.0, step_size=0.01),
        IFCA(TorchLoss(module), model_count=2, initial=Uniform(-1.0, 1.0)),
    ):
        run = fit(network, algorithm, rounds=10, **OPTIONS)
        assert (run.models.part("1.running_var") > 0).all()
        assert np.isfinite(run.models.w).all()


def test_a_module_that_is_trained_between_two_fits_starts_where_it_is_then():
    network, module = ragged(), net()
    algorithm = FedAvg(TorchLoss(module), step_size=1e-9)
    fit(network, algorithm, rounds=1, **OPTIONS)
    with torch.no_grad():
        module[0].weight += 1.0
    run = fit(network, algorithm, rounds=1, **OPTIONS)
    np.testing.assert_allclose(run.models.part("0.weight")[0], module[0].weight.detach().numpy(), atol=1e-6)


def test_rows_do_not_travel_with_a_loss():
    network, loss = ragged(), TorchLoss(net())
    fit(network, FedAvg(loss), rounds=1, **OPTIONS)
    stored = pickle.dumps(loss)
    assert network.data.X[0].tobytes() not in stored
    np.testing.assert_array_equal(pickle.loads(stored).start(3), loss.start(3))


def test_a_loss_that_has_seen_other_labels_is_tried_anew():
    def absolute(prediction, label):
        return (prediction - label).abs()

    loss = TorchLoss(net(outputs=2), absolute)
    with pytest.raises(InputError, match=r"one value for each of 8 rows, got shape \(8, 2\)"):
        fit(ragged(outputs=2), FedAvg(loss), rounds=1)
    single = TorchLoss(net(), absolute)
    fit(ragged(), FedAvg(single), rounds=1, **OPTIONS)
    with pytest.raises(InputError, match="Expected a module with 2 outputs"):
        fit(ragged(outputs=2), FedAvg(single), rounds=1)


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


class Bare(nn.Module):
    """A parameter that no layer draws."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return x @ self.w


def test_statistics_that_count_batches_are_refused_every_time():
    loss = TorchLoss(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2, momentum=None), nn.Linear(2, 1)))
    for _ in range(2):
        with pytest.raises(InputError, match="Expected a momentum for the running statistics of layer '1', got None"):
            fit(ragged(), FedAvg(loss), rounds=1)


def test_batch_normalisation_needs_two_rows_alone_too():
    with pytest.raises(InputError, match=r"can be trained on 1 row in TorchLoss, .* more than 1 value per"):
        fit(ragged(least=1), Local(TorchLoss(normalised())), rounds=0)


def test_a_tuple_is_no_prediction_in_fedrelax_either():
    network = ragged()
    with pytest.raises(InputError, match="Expected a module and a loss for rows of 3 features, got: "):
        fit(network.with_public(network.data.X[:3]), FedRelax(TorchModel(nn.GRU(3, 1))), rounds=1)


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
        (FedAvg(TorchLoss(normalised()), local_epochs=1, batch=2), "can be trained on 1 row in TorchLoss"),
        (FedAvg(TorchLoss(net(), ["squared"])), "The 'loss' parameter of TorchLoss must be one of"),
        (IFCA(TorchLoss(Bare()), model_count=2, initial=Redrawn()), "layers that draw their parameters"),
        (FedAvg(TorchLoss(net(outputs=2))), "one output for squared errors, got 2: give y the shape"),
        (FedAvg(TorchLoss(net(), "hinge")), "The 'loss' parameter of TorchLoss must be one of 'squared'"),
        (FedAvg(TorchLoss(net(), lambda p, y: (p - y).sum())), r"one value for each of 8 rows, got shape \(\)"),
        (FedAvg(TorchLoss(net(), lambda p, y: p @ y[:, None].T.T)), "Expected a loss of outputs|one value for each"),
        (FedAvg(TorchLoss(net(), device="tpu")), "Expected a device that torch has here, such as 'cpu', got 'tpu'"),
        (FedAvg(TorchLoss(net(), precision="float16")), "must be one of 'float64', 'float32'"),
        (FedAvg(TorchLoss(nn.GRU(3, 1))), "got a tuple for 8 rows: add .* or return the prediction alone"),
        (FedAvg(TorchLoss(nn.Linear(3, 1, dtype=torch.complex64))), "real parameters, got complex ones"),
        (FedAvg(optimiser=partial(torch.optim.SGD, lr=0.1), step_size=0.1), "as step_size, got lr in the optimiser"),
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
