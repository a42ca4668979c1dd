"""FedCG: layers with branches, the graph network, domains found and given, and the algorithm as a whole."""

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import normalized_mutual_info_score
from torch import nn
from torch.func import vmap

from kinfolk import FedAvg, FedCG, InProcess, InputError, Network, TorchLoss, datasets, fit, graphs, what_leaves
from kinfolk.algorithms.fedcg import (
    ClassMeans,
    ClientWeights,
    DomainGraph,
    GivenDomains,
    MixedClients,
    TeacherStudent,
)
from kinfolk.algorithms.fedcg.features import RandomFeatures
from kinfolk.algorithms.fedcg.spectral import spectral_partition
from kinfolk.modules.domains import DomainResidual, compared_activations, with_domains
from kinfolk.modules.flat import FlatModule
from kinfolk.report.domains import domain_facts, write_domains
from kinfolk.testing import check_algorithm, difficult_network

SHARED = Path(__file__).parents[2] / "shared" / "data"
HARD = torch.eye(3)[[0, 1, 1, 2, 0]].double()


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def soft_weights(rows=5, domains=3):
    return torch.softmax(torch.randn(rows, domains).double(), dim=1)


# ---------------------------------------------------------------------- layers


def by_hand(layer, z, weights, adjacency, W, relu):
    """Eq (4) and (5) for a linear layer, written out domain by domain; one W for every filter."""
    V = torch.cat([layer.branch_weight, layer.branch_bias[..., None]], dim=2)  # (domains, outputs, inputs + 1)
    V = torch.einsum("de,eop,pq->doq", adjacency, V, W)
    V = torch.relu(V) if relu else V
    residual = sum(weights[:, d, None] * (z @ V[d, :, :-1].T + V[d, :, -1]) for d in range(weights.shape[1]))
    return layer.agnostic(z) + layer.scale * residual


@pytest.mark.parametrize("weights", [HARD, soft_weights(), HARD[1:3].repeat(3, 1)[:5]], ids=["hard", "soft", "one"])
@pytest.mark.parametrize("relu", [False, True])
def test_a_linear_layer_is_eq_4_and_5(weights, relu):
    network = with_domains(nn.Sequential(nn.Linear(4, 2)), ["0"], 3, graph=DomainGraph("full", relu=relu)).double()
    layer = network.residuals["0"]
    with torch.no_grad():
        layer.scale.fill_(0.7)
        layer.graph.projections[0].whole.add_(0.1 * torch.randn(5, 5).double())
        network.adjacency.copy_(torch.softmax(torch.randn(3, 3), dim=1))
    z, W = torch.randn(5, 4).double(), layer.graph.projections[0].whole
    expected = by_hand(layer, z, weights, network.adjacency, W, relu)
    torch.testing.assert_close(network(z, weights), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(network.precomputed()(z, weights), expected, rtol=1e-12, atol=1e-12)


def test_without_the_agnostic_part_branches_start_as_the_layer():
    plain = nn.Sequential(nn.Conv2d(2, 3, 3)).double()
    network = with_domains(plain, ["0"], 4, agnostic=False).double()
    z = torch.randn(6, 2, 5, 5).double()
    torch.testing.assert_close(network(z, soft_weights(6, 4)), plain(z), rtol=1e-12, atol=1e-12)
    assert network.residuals["0"].scale is None


@pytest.mark.parametrize(
    "graph", [DomainGraph("full"), DomainGraph(), DomainGraph(shared=False), DomainGraph(layers=2)]
)
def test_w_starts_at_the_identity(graph):
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(36, 2)).double()
    z, weights = torch.randn(5, 1, 5, 5).double(), soft_weights()
    same, plain = (with_domains(module, ["0", "2"], 3, graph=each).double() for each in (graph, None))
    for network in (same, plain):  # what the graph network draws comes between the branches
        for k, name in enumerate(network.branch_names):
            value = network.get_parameter(name)
            value.data.copy_(torch.linspace(-1, 1, value.numel()).view(value.shape) * (k + 1))
    torch.testing.assert_close(same(z, weights), plain(z, weights), rtol=1e-12, atol=1e-12)


def test_a_random_bottleneck_is_another_reading():
    graph = DomainGraph(residual=False)
    network = with_domains(nn.Sequential(nn.Linear(40, 2)), ["0"], 3, graph=graph)
    assert network.residuals["0"].graph.projections[0].up.abs().min() > 0


def test_batch_normalisation_has_statistics_for_every_domain():
    network = with_domains(nn.Sequential(nn.BatchNorm1d(2)), ["0"], 3).double().train()
    z = torch.randn(60, 2).double() * torch.tensor([1.0, 5.0]) + 3
    label = torch.arange(60) % 2  # nobody in domain 2
    network(z, torch.eye(3).double()[label])
    layer = network.residuals["0"]
    for d in (0, 1):
        alone = nn.BatchNorm1d(2).double().train()
        alone(z[label == d])
        torch.testing.assert_close(layer.branch_running_mean[d], alone.running_mean)
        torch.testing.assert_close(layer.branch_running_var[d], alone.running_var)
    assert (layer.branch_running_mean[2] == 0).all()
    assert (layer.branch_running_var[2] == 1).all()


def test_batch_normalisation_at_test_mixes_outputs_not_statistics():
    network = with_domains(nn.Sequential(nn.BatchNorm1d(2)), ["0"], 2).double()
    layer = network.residuals["0"]
    layer.branch_running_mean.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    layer.branch_running_var.copy_(torch.tensor([[1.0, 4.0], [9.0, 16.0]]))
    network.eval()
    z, weights = torch.randn(5, 2).double(), soft_weights(5, 2)
    alone = [network(z, torch.eye(2).double()[[d] * 5]) for d in (0, 1)]
    torch.testing.assert_close(network(z, weights), weights[:, :1] * alone[0] + weights[:, 1:] * alone[1])


def test_any_other_layer_can_have_branches():
    class Curved(nn.Module):
        def __init__(self):
            super().__init__()
            self.power = nn.Parameter(torch.tensor([1.5, 2.5]))

        def forward(self, z):
            return z.abs() ** self.power

    network = with_domains(nn.Sequential(Curved()), ["0"], 2).double()
    layer = network.residuals["0"]
    with torch.no_grad():
        layer.branch_power.copy_(torch.tensor([[1.0, 1.0], [3.0, 2.0]]))
        layer.scale.fill_(0.5)
    z, weights = torch.randn(5, 2).double(), soft_weights(5, 2)
    mixed = sum(weights[:, d, None] * z.abs() ** layer.branch_power[d] for d in (0, 1))
    torch.testing.assert_close(network(z, weights), layer.agnostic(z) + 0.5 * mixed)


def test_what_would_overflow_is_clipped():
    layer = DomainResidual(nn.Linear(1, 1), 1, clip=4.0)
    with torch.no_grad():
        layer.scale.fill_(1e30)
    assert layer._branches(torch.eye(1))["weight"].abs().max() <= 4.0


def test_no_tensor_is_kept_after_a_call_not_even_of_a_mapped_one():
    network = with_domains(nn.Sequential(nn.Linear(4, 2)), ["0"], 3, graph=DomainGraph(), one_per_node=True).train()
    parts = {name: torch.stack([value, 2 * value]) for name, value in network.named_parameters()}
    z, weights = torch.randn(2, 5, 4), torch.eye(3)[torch.tensor([[1] * 5, [2] * 5])]
    out = vmap(lambda own, z, w: torch.func.functional_call(network, own, (z, w)))(parts, z, weights)
    assert out.shape == (2, 5, 2)
    copy.deepcopy(network)
    kept = [value for part in network.modules() for value in vars(part).values() if torch.is_tensor(value)]
    assert kept == []


def test_the_activations_of_branches_are_compared():
    network = with_domains(nn.Sequential(nn.Linear(4, 2)), ["0"], 3).double()
    z = torch.randn(5, 4).double()
    flat = FlatModule.of(network, side=3)
    ((branch, agnostic),) = np.array(
        compared_activations(flat, flat.tensor(flat.start), torch.cat([z, HARD], dim=1))
    ).transpose(0, 2, 1)
    layer = network.residuals["0"]
    np.testing.assert_allclose(agnostic, layer.agnostic(z).detach().square().sum(dim=1))
    np.testing.assert_allclose(branch, (network(z, HARD) - layer.agnostic(z)).detach().square().sum(dim=1))


# ---------------------------------------------------------------------- domains


@pytest.mark.parametrize("domains", [1, 2, 4])
def test_a_spectral_partition_finds_how_many_domains_there_are(domains):
    rng = np.random.default_rng(domains)
    true = np.arange(160) % domains
    vectors = 12 * rng.normal(size=(domains, 30))[true] + rng.normal(size=(160, 30))
    found = spectral_partition(((vectors[:, None] - vectors) ** 2).sum(axis=2), None, 8, 0)
    assert found.domains == domains
    assert normalized_mutual_info_score(true, found.label) == pytest.approx(1.0)


def clients_of(count=60, rows=20, classes=2, seed=0, shift=6.0):
    """Clients of two domains: inputs lie elsewhere, and labels are turned round."""
    rng = np.random.default_rng(seed)
    data = []
    for k in range(count):
        X = rng.normal(size=(rows, 3)) + shift * (k % 2) * np.array([1.0, -1.0, 0.0])
        data.append((X, ((X[:, 2] > 0) != (k % 2 == 1)).astype(float) % classes))
    return data


def small_module():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))


LOSS = TorchLoss(small_module(), "cross-entropy", step_size=0.5)


def network_of(held_out=4, **options):
    return Network(graphs.edgeless(60 + held_out), [*clients_of(**options), *[None] * held_out])


def found_by(discovery, domains, network=None):
    """What the coordinator knows of domains, and each node, after round 0."""
    network = network_of() if network is None else network
    run = fit(network, FedCG(LOSS, layers=["2"], domains=domains, discovery=discovery), rounds=0, progress=False)
    return run.snapshot.memory, run.snapshot.to_each["domain"], network


@pytest.mark.parametrize("discovery", [ClassMeans(), ClassMeans(by_class=False), ClientWeights()])
def test_domains_of_clients_are_found_before_round_1(discovery):
    domains = "find" if discovery.finds_count else 2
    memory, domain, _ = found_by(discovery, domains)
    assert memory.domains == 2
    assert (domain[60:] == -1).all()  # they have no rows
    assert normalized_mutual_info_score(np.arange(60) % 2, domain[:60]) == pytest.approx(1.0)
    new, _ = zip(*clients_of(seed=1), strict=True)
    guess = discovery.scores(np.concatenate(new), memory.found).argmax(axis=1)
    assert normalized_mutual_info_score(np.repeat(domain[:60], 20), guess) > 0.9


def test_the_student_is_a_ridge_regression_of_all_rows():
    discovery = ClassMeans()
    memory, domain, network = found_by(discovery, "find")
    psi = RandomFeatures(32, None, 1).of(network.data.X)
    psi = np.concatenate([psi, np.ones((len(psi), 1))], axis=1)
    label = domain[network.data.owner]
    weight = 1.0 / np.bincount(label)[label]
    gram = (psi * weight[:, None]).T @ psi
    ridge = 1e-3 * np.trace(gram) / len(gram) * np.eye(len(gram))
    expected = np.linalg.solve(gram + ridge, (psi * weight[:, None]).T @ np.eye(2)[label])
    np.testing.assert_allclose(memory.found["student"], expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())


def test_what_a_client_sends_is_declared_with_sizes():
    table = what_leaves(FedCG(LOSS, layers=["2"], discovery=ClassMeans()), network_of()).set_index("name")
    assert {"w", "share", "gram", "moment", "sums", "counts", "squares", "rows"} == set(table.index)
    assert "class" in table.loc["counts", "content"]
    free = what_leaves(FedCG(LOSS, layers=["2"], discovery=ClassMeans(by_class=False)), network_of()).set_index("name")
    assert "class" not in " ".join(free["content"])


def test_new_clients_vote_and_lone_rows_decide_for_themselves():
    run = fit(
        network_of(), FedCG(LOSS, layers=["2"], local_steps=3), rounds=30, stop=None, participation=0.3, progress=False
    )
    X = np.array([[0.0, 0.0, 1.0], [6.0, -6.0, 1.0], [6.0, -6.0, -1.0]])
    models = run.models
    first = models.domain[0]
    assert models.domains(X).argmax(axis=1).tolist() == [first, 1 - first, 1 - first]
    held_out = np.full(3, 60)
    assert set(models.weights(X, held_out).argmax(axis=1)) == {1 - first}  # two of three
    alone = replace(models, assign="row").weights(X, held_out)
    assert alone.argmax(axis=1).tolist() == [first, 1 - first, 1 - first]
    soft = replace(models, assign="soft").weights(X, held_out)
    np.testing.assert_allclose(soft.sum(axis=1), 1.0)
    assert ((soft > 0) & (soft < 1)).any()
    assert models.weights(X[1:2], np.array([0])).argmax() == first  # a client that is known has its domain


def mixed_clients(count, seed):
    """Rows of three domains far from each other, two of them at every client; in each the classes lie differently."""
    rng = np.random.default_rng(seed)
    centre = np.array([[[6, 0], [7, 3]], [[-6, 2], [-3, 6]], [[0, -8], [-4, -7]]], dtype=float)  # of domain and class
    data, domain = [], []
    for k in range(count):
        own = np.array([(0, 1), (0, 2), (1, 2)][k % 3])[rng.integers(0, 2, 24)]
        y = rng.integers(0, 2, 24)
        data.append((np.column_stack([centre[own, y] + rng.normal(size=(24, 2)), np.ones(24)]), y.astype(float)))
        domain.append(own)
    return data, np.concatenate(domain)


def test_domains_of_rows_are_found_where_clients_hold_two():
    (data, true), (new, new_true) = mixed_clients(60, 0), mixed_clients(9, 1)
    network = Network(graphs.edgeless(69), [*data, *[None] * 9])
    algorithm = FedCG(LOSS, layers=["2"], domains=3, discovery=MixedClients(), local_steps=2)
    run = fit(network, algorithm, rounds=2, stop=None, participation=0.2, progress=False)
    models, owner = run.models, np.repeat(np.arange(60), 24)
    found = models.discovery.labels(network.data.X, owner, np.full(len(owner), -1), models.found)
    assert normalized_mutual_info_score(true, found) > 0.95
    X, node = np.concatenate([X for X, _ in new]), np.repeat(np.arange(60, 69), 24)
    taken = models.weights(X, node)
    assert normalized_mutual_info_score(new_true, taken.argmax(axis=1)) > 0.95
    np.testing.assert_allclose(taken.sum(axis=1), 1.0)
    np.testing.assert_allclose(models.domains(X).sum(axis=1), 1.0)
    by_client, _ = zip(*data, strict=True)
    one_vector = fit(network, replace(algorithm, discovery=ClassMeans()), rounds=0, progress=False).models
    rival = one_vector.weights(np.concatenate(by_client), owner).argmax(axis=1)
    assert normalized_mutual_info_score(true, rival) < 0.6  # pairs of domains


def test_the_rows_of_a_client_tell_which_domains_it_holds():
    scores = np.log([[0.9, 0.1, 0.05]] * 6 + [[0.05, 0.9, 0.1]] * 6 + [[0.3, 0.1, 0.31]])
    discovery = MixedClients()
    assert discovery.agreed(scores, np.zeros(13, dtype=int)).argmax(axis=1).tolist() == [0] * 6 + [1] * 6 + [0]
    assert discovery.agreed(scores, np.arange(13)).argmax(axis=1)[-1] == 2  # alone


def test_mixed_clients_need_classes_and_a_number_of_domains():
    numbers = Network(graphs.edgeless(4), [(np.zeros((3, 3)), [0.1, 0.2, 0.3])] * 4)
    regression = TorchLoss(nn.Sequential(nn.Linear(3, 1)))
    with pytest.raises(InputError, match="Expected classes as labels for MixedClients"):
        fit(numbers, FedCG(regression, layers=["0"], domains=2, discovery=MixedClients()), rounds=1)
    with pytest.raises(InputError, match="domains"):
        fit(network_of(), FedCG(LOSS, layers=["2"], discovery=MixedClients()), rounds=1)


def test_a_collapse_is_said_in_the_notes():
    classifier = nn.Linear(3, 3)
    with torch.no_grad():
        classifier.weight.zero_()
        classifier.bias.copy_(torch.tensor([9.0, 0.0, 0.0]))

    class Fixed(nn.Linear):  # draws nothing: the teacher puts all rows into domain 0
        def reset_parameters(self):
            with torch.no_grad():
                self.weight.zero_()
                self.bias.copy_(torch.tensor([9.0, 0.0, 0.0]))

    discovery = TeacherStudent(module=Fixed(3, 3), every=2)
    run = fit(
        network_of(),
        FedCG(LOSS, layers=["2"], domains=3, discovery=discovery, assign="row"),
        rounds=3,
        stop=None,
        progress=False,
    )
    assert run.history["used"].iloc[-1] == 1
    assert run.notes[-1].startswith("The domains have collapsed: 100.0% of the rows")


def test_the_teacher_becomes_the_student_every_t_rounds():
    discovery = TeacherStudent(module=nn.Linear(3, 2), every=2, step_size=0.1, batch=None)
    algorithm = FedCG(LOSS, layers=["2"], domains=2, discovery=discovery)
    options = {"stop": None, "progress": False}
    run = fit(network_of(), algorithm, rounds=1, **options)
    first = run.snapshot.memory.found
    assert not np.array_equal(first["teacher"], first["student"])
    second = fit(network_of(), algorithm, rounds=2, **options).snapshot.memory.found
    np.testing.assert_array_equal(second["teacher"], second["student"])
    third = fit(network_of(), algorithm, rounds=3, **options).snapshot.memory.found
    np.testing.assert_array_equal(third["teacher"], second["teacher"])


def test_one_domain_is_fedavg():
    data = [(X, (X[:, 2] > 0).astype(float)) for X, _ in clients_of(shift=0.0)]
    network = Network(graphs.edgeless(64), [*data, *[None] * 4])
    options = {"rounds": 8, "stop": None, "participation": 0.3, "progress": False}
    work = {"local_epochs": 2, "batch": 5}
    run, average = (
        fit(network, algorithm, **options) for algorithm in (FedCG(LOSS, layers=["2"], **work), FedAvg(LOSS, **work))
    )
    assert run.notes[-1] == "One domain was found: the network has no branches, and this is FedAvg."
    np.testing.assert_allclose(run.models.w, average.models.w, rtol=1e-12, atol=1e-12)


# ---------------------------------------------------------------------- rounds


def with_column(network):
    """The same network with a domain as the last feature of every row."""

    def widened(data):
        sets = (data[k] for k in range(data.node_count))
        return [(np.column_stack([X, np.arange(len(X)) % 3]), y) if len(X) else None for X, y in sets]

    return Network(network.graph, widened(network.data), test=widened(network.test))


def classes():
    return difficult_network(classes=True)


CASES = {
    "found": (classes, lambda: FedCG(LOSS, layers=["2"], discovery=ClassMeans(), local_steps=2)),
    "mixed": (classes, lambda: FedCG(LOSS, layers=["2"], domains=2, discovery=MixedClients(), batch=2)),
    "clients' weights": (
        classes,
        lambda: FedCG(LOSS, layers=["0"], domains=2, discovery=ClientWeights(passes=2), batch=2),
    ),
    "given": (
        lambda: with_column(classes()),
        lambda: FedCG(
            LOSS, layers="all", domains=3, discovery=GivenDomains(), adjacency=np.ones((3, 3)), branch_average="members"
        ),
    ),
    "teacher and student": (
        classes,
        lambda: FedCG(
            LOSS,
            layers=["2"],
            domains=2,
            discovery=TeacherStudent(module=nn.Linear(3, 2).double(), step_size=0.1),
            assign="soft",
        ),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_it_keeps_the_promises_of_an_algorithm(name):
    network, algorithm = CASES[name]
    check_algorithm(algorithm(), network(), rounds=7)


def test_a_round_is_a_step_down_the_mean_gradient_of_the_network_with_branches():
    """Everybody present, one step on all rows, clients weighted by rows: one step of torch on all rows together."""
    network = with_column(classes())
    loss = replace(LOSS, reduction="sum", step_size=0.1)
    algorithm = FedCG(
        loss, layers=["0", "2"], domains=3, discovery=GivenDomains(), adjacency="uniform", graph=DomainGraph("full")
    )
    run = fit(network, algorithm, rounds=1, stop=None, progress=False)
    flat = algorithm.loss_of(3, 3).flat(3)
    begun = fit(network, algorithm, rounds=0, progress=False).snapshot.memory.w
    module = flat.module_of(begun)
    X, y = torch.tensor(network.data.X), torch.tensor(network.data.y).long()
    value = nn.functional.cross_entropy(module(X[:, :3], torch.eye(3).double()[X[:, 3].long()]), y)
    value.backward()
    moved = flat.module_of(run.snapshot.memory.w)
    for (name, before), (_, after) in zip(module.named_parameters(), moved.named_parameters(), strict=True):
        slope = torch.zeros_like(before) if before.grad is None else before.grad
        torch.testing.assert_close(after, before - 0.1 * slope, rtol=1e-10, atol=1e-10, msg=name)


def test_the_adjacency_follows_the_distances_of_branches():
    network = with_column(classes())
    algorithm = FedCG(LOSS, layers=["2"], domains=3, discovery=GivenDomains(), beta=0.3)
    run = fit(network, algorithm, rounds=3, stop=None, progress=False)
    flat = algorithm.loss_of(3, 3).flat(3)
    w = run.snapshot.memory.w
    V = np.concatenate([w[flat.part(name)[0]].reshape(3, -1) for name in flat.template.branch_names], axis=1)
    A = run.models.adjacency
    near = [[0 if i == j else 1 / np.linalg.norm(V[i] - V[j]) for j in range(3)] for i in range(3)]
    expected = 0.3 * np.eye(3) + 0.7 * np.array(near) / np.sum(near, axis=1, keepdims=True)
    np.testing.assert_allclose(A, expected, rtol=1e-10)
    np.testing.assert_allclose(A.sum(axis=1), 1.0)


def test_two_domains_with_equal_weights_are_one_branch_and_the_notes_say_so():
    options = {"rounds": 3, "stop": None, "progress": False}
    half, usual = (fit(network_of(), FedCG(LOSS, layers=["2"], **each), **options) for each in ({"beta": 0.5}, {}))
    alike, different = (dict(run.models[0].named_parameters())["network.2.branch_weight"] for run in (half, usual))
    torch.testing.assert_close(alike[0], alike[1])
    assert (different[0] - different[1]).abs().max() > 1e-3
    assert half.notes[-1].startswith("With two domains and β = ½ both branches are the same")
    assert usual.notes == []


@pytest.mark.parametrize(("first", "same"), [("identity", True), ("random", False)])
def test_the_adjacency_starts_as_it_is_told(first, same):
    begun = fit(
        with_column(classes()),
        FedCG(LOSS, layers=["2"], domains=3, discovery=GivenDomains(), first=first),
        rounds=0,
        progress=False,
    )
    assert np.array_equal(begun.models.adjacency, np.eye(3)) == same


def test_branches_can_be_averaged_over_their_members():
    """A client in one domain moves its own branch, and the mean over members is not drawn back by others."""
    data = [(np.column_stack([X, np.full(len(X), k % 2)]), y) for k, (X, y) in enumerate(clients_of(4))]
    network = Network(graphs.edgeless(4), data)
    options = {"rounds": 1, "stop": None, "progress": False}
    common = {"layers": ["2"], "domains": 2, "discovery": GivenDomains(), "graph": None}
    everyone, members = (
        fit(network, FedCG(LOSS, **common, branch_average=how), **options).snapshot.memory.w
        for how in ("all", "members")
    )
    algorithm = FedCG(LOSS, **common)
    start, flat = algorithm.loss_of(2, 3).start(3), algorithm.loss_of(2, 3).flat(3)
    for name in flat.template.branch_names:
        where, _ = flat.part(name)
        np.testing.assert_allclose(members[where] - start[where], 2 * (everyone[where] - start[where]), atol=1e-12)


def test_sampled_clients_over_seven_sites_in_32_bits_learn_both_domains():
    test = clients_of(64, rows=50, seed=9)
    network = Network(graphs.edgeless(64), [*clients_of(), *[None] * 4], test=test)
    loss = replace(LOSS, precision="float32")
    run = fit(
        network, FedCG(loss, layers=["2"], local_epochs=2, batch=10), rounds=40, stop=None, participation=0.2,
        engine=InProcess(7), measure_every=None, progress=False,
    )  # fmt: skip
    assert len(run.history) == 2  # before the first round, and after the last
    assert run.error() < 0.2
    assert run.history["domains"].iloc[-1] == run.history["used"].iloc[-1] == 2
    assert run.history["branch 2"].iloc[-1] > 0


# ---------------------------------------------------------------------- bad input


def refused(**options):
    with pytest.raises(InputError) as caught:
        fit(network_of(), FedCG(**{"loss": LOSS, "layers": ["2"], **options}), rounds=1, progress=False)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_bad_input_gets_a_sentence():
    assert "must be a whole number ≥ 1 or 'find'. Got 0" in refused(domains=0)
    assert "as many domains as nodes with data (60)" in refused(domains=61)
    assert "layers of the module ('0', '2'), got '7'" in refused(layers=["7"])
    assert "a list of layers such as ['conv2'], or 'all', for FedCG, got '2'" in refused(layers="2")
    assert "got []" in refused(layers=[])
    assert "a list of layers such as ['conv2'], or 'all', for FedCG, got None" in refused(layers=None)
    assert "every layer once" in refused(layers=["2", "2"])
    assert "must be a TorchLoss" in refused(loss=None)
    assert "got shape (2, 3)" in refused(adjacency=np.ones((2, 3)), domains=2)
    assert "similarities ≥ 0" in refused(adjacency=-np.ones((2, 2)), domains=2)
    assert "'learnt', 'uniform', 'identity' or an array" in refused(adjacency="near")
    assert "a square array of numbers, got a list that is none" in refused(adjacency=[[1, 2], [3]], domains=2)
    for kind in (ClassMeans, ClientWeights, MixedClients, TeacherStudent):
        assert f"1 × 2 × 2 = 4 pixels for {kind.__name__}" in refused(discovery=kind(image=(1, 2, 2)), domains=2)
        for image in ((4, 4), "28", (0, 2, 2), (1, 2, 1.5)):
            assert f"three whole numbers ≥ 1, for {kind.__name__}, got {image!r}" in refused(
                discovery=kind(image=image), domains=2
            )
    assert "which cannot find it" in refused(discovery=ClientWeights())
    assert "image=(channels, height, width) or a module" in refused(discovery=TeacherStudent(), domains=2)
    assert "domain from 0 to 1 as the last feature" in refused(discovery=GivenDomains(), domains=2)
    assert "take DomainGraph(shared=True)" in refused(
        loss=TorchLoss(nn.Sequential(nn.Linear(3, 3000), nn.Linear(3000, 2)), "cross-entropy"),
        layers=["0"], domains=2, graph=DomainGraph("full", shared=False),
    )  # fmt: skip


def test_labels_outside_the_classes_are_refused():
    data = [(X, y + 5) for X, y in clients_of(4)]
    with pytest.raises(InputError, match="labels 0, 1, "):
        fit(Network(graphs.edgeless(4), data), FedCG(LOSS, layers=["2"]), progress=False)


# ---------------------------------------------------------------------- digits


@pytest.mark.skipif(not (SHARED / "mnist_writers").is_dir(), reason="needs ../shared/data: MNIST by writer")
def test_rotations_of_digits_are_found():
    with datasets.looking_in(SHARED):
        clients = datasets.writers_by_rotation(41).first(40, 120, 40, 41)
    module = nn.Sequential(nn.Linear(784, 10))
    algorithm = FedCG(TorchLoss(module, "cross-entropy"), layers=["0"], discovery=ClassMeans(image=clients.shape))
    run = fit(clients.network(), algorithm, rounds=0, progress=False)
    assert run.snapshot.memory.domains == 4
    _, first = np.unique(clients.client, return_index=True)
    true, training = clients.domain[first], ~clients.held_out
    assert normalized_mutual_info_score(true[training], run.models.domain[training]) > 0.95
    X, _, client = clients.held_out_rows()
    voted = run.models.weights(X.astype(float), client).argmax(axis=1)
    assert normalized_mutual_info_score(clients.domain[clients.held_out[clients.client]], voted) > 0.95


# ---------------------------------------------------------------------- the page


def test_the_page_of_domains_has_sizes_and_the_adjacency(tmp_path):
    algorithm = FedCG(LOSS, layers=["2"], local_steps=2)
    run = fit(network_of(), algorithm, rounds=12, stop=None, participation=0.5, progress=False)
    facts = domain_facts(run)
    assert facts.branches == 2
    assert facts.clients.tolist() == [30, 30]
    assert facts.rows.sum() == 20 * (run.state.counts.sum(axis=1) > 0).sum()
    np.testing.assert_array_equal(facts.adjacency, run.models.adjacency)
    text = write_domains(run, tmp_path / "new" / "domains.html").read_text(encoding="utf-8")
    assert "<h1>2 domains</h1>" in text
    assert "How close branches are" in text
    with pytest.raises(InputError, match="a run of FedCG"):
        domain_facts(fit(network_of(), FedAvg(LOSS), rounds=1, progress=False))


# ---------------------------------------------------------------------- what nodes with much work do


@pytest.mark.parametrize("norm", [False, True])
def test_nodes_one_by_one_descend_as_all_nodes_at_once(norm):
    layers = [nn.Linear(3, 8), nn.BatchNorm1d(8) if norm else nn.Tanh(), nn.Linear(8, 2)]
    losses = [
        TorchLoss(nn.Sequential(*layers), "cross-entropy", ridge=0.1, batching=how) for how in ("always", "never")
    ]
    network = network_of()
    options = {"rounds": 4, "stop": None, "participation": 0.4, "progress": False}
    together, apart = (
        fit(network, FedAvg(loss, local_epochs=2, batch=6, step_size=0.1), **options).models.w for loss in losses
    )
    np.testing.assert_allclose(apart, together, rtol=1e-10, atol=1e-10)


def test_nodes_with_different_numbers_of_rows_descend_at_once_as_one_by_one():
    rng = np.random.default_rng(0)
    sizes = (20, 23, 17, 26)  # batches and numbers of batches differ; the last node has no rows
    data = [(rng.normal(size=(n, 3)), rng.integers(0, 2, n).astype(float)) for n in sizes]
    network = Network(graphs.edgeless(5), [*data, None])
    found = {}
    for how in ("always", "never"):
        loss = TorchLoss(small_module(), "cross-entropy", reduction="sum", ridge=0.1, batching=how)
        algorithm = FedAvg(loss, local_epochs=2, batch=6, step_size=0.1)
        assert algorithm._walks(network.site.local_losses(loss))
        found[how] = fit(network, algorithm, rounds=5, stop=None, progress=False).models.w
    np.testing.assert_allclose(found["always"], found["never"], rtol=0, atol=1e-12)


def test_a_module_that_draws_is_computed_node_by_node_and_keyed():
    loss = TorchLoss(
        nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2)), "cross-entropy", batching="never"
    )
    options = {"rounds": 3, "stop": None, "participation": 0.4, "progress": False}
    first, again = (fit(network_of(), FedAvg(loss, batch=6), **options).models.w for _ in range(2))
    np.testing.assert_array_equal(first, again)
