"""BiG-FL: the game, its hypergradient and its default upper and lower levels, each against an oracle."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.sparse.linalg
from numpy.testing import assert_allclose, assert_array_equal

from kinfolk import (
    BiGFL,
    Graph,
    GTVMin,
    InProcess,
    InputError,
    Local,
    Network,
    Squared,
    SquaredNorm,
    Tolerance,
    TorchLoss,
    fit,
    graphs,
)
from kinfolk.algorithms.bigfl import (
    Adjoint,
    Common,
    CosineEmbedding,
    FullMatrix,
    GraphEmbedding,
    HeldOutError,
    LaplacianCoupling,
    LowerLevel,
    LowRank,
    MatrixPerLayer,
    NumberPerLayer,
    Regression,
    UpperLevel,
)
from kinfolk.algorithms.bigfl.adjoint import Krylov, conjugate_gradients, largest_curvature
from kinfolk.algorithms.bigfl.lower import Links
from kinfolk.algorithms.bigfl.upper import draw_negatives, held_out_rows
from kinfolk.algorithms.local_work import Decay
from kinfolk.network.data import Data
from kinfolk.objective.losses import Absolute
from kinfolk.testing import check_algorithm, difficult_network

SHAPES = [NumberPerLayer(), MatrixPerLayer(), LowRank(2), FullMatrix()]
LAYOUT = {"0.weight": (3, 2), "0.bias": (3,), "1.weight": (1, 3), "1.bias": (1,)}
WIDTH = 13


def ring(seed: int = 0, nodes: int = 8, rows: int = 6, features: int = 3, noise: float = 0.3) -> Network:
    """A ring with a chord, and heterogeneous linear data."""
    rng = np.random.default_rng(seed)
    edges = [(k, (k + 1) % nodes) for k in range(nodes)] + [(0, nodes // 2)]
    graph = Graph(nodes, [tuple(sorted(edge)) for edge in edges], rng.uniform(0.5, 2.0, len(edges)))
    w = rng.normal(size=(nodes, features))
    X = rng.normal(size=(nodes, rows, features))
    y = np.einsum("nrf,nf->nr", X, w) + noise * rng.normal(size=(nodes, rows))
    return Network(graph, list(zip(X, y, strict=True)))


def matrix_of(shape: Any, layout: Any, phi: Any) -> Any:
    width = sum(int(np.prod(part)) for part in layout.values())
    return shape.times(layout, phi, np.eye(width))


def dense_game(network: Network, data: Data, lam: float, kappa: float, phi: Any, L: Any) -> Any:
    """Where the game rests for linear models: one linear system, with φ as a matrix (features, features)."""
    losses = Squared().bind(data)
    n, d = data.node_count, data.feature_count
    zero = np.zeros((n, d))
    system, right = np.zeros((n, d, n, d)), -losses.gradient(zero)
    hessian = losses.hessian(zero)
    for i in range(n):
        C = L[i, i] * phi - np.eye(d)
        system[i, :, i, :] += hessian[i] + kappa * np.eye(d)
        for j in range(n):
            inner = L[i, j] * phi - (i == j) * np.eye(d)  # r_i = Σ_j θ_j inner, slope r_i Cᵀ
            system[i, :, j, :] += lam * (inner @ C.T).T
    return np.linalg.solve(system.reshape(n * d, n * d), right.ravel()).reshape(n, d)


# ---------------------------------------------------------------------- the game


@pytest.mark.parametrize("propagation", ["normalised adjacency", "mean"])
def test_the_game_with_the_identity_is_a_linear_system(propagation):
    network, lower = difficult_network(), GraphEmbedding(propagation=propagation)
    run = fit(
        network, BiGFL(lam=0.5, kappa=0.1, lower=lower), rounds=20_000, stop=Tolerance(1e-14), progress=False,
        measure_every=500,
    )  # fmt: skip
    L = lower.matrix(Links.of(network.graph)).toarray()
    expected = dense_game(network, network.data, 0.5, 0.1, np.eye(3), L)
    assert_allclose(run.models.w, expected, atol=1e-10 * np.abs(expected).max())


def test_the_game_with_a_given_phi_and_half_of_the_nodes_present():
    network, rng = ring(), np.random.default_rng(0)
    phi = FullMatrix().projected({"w": (1, 3)}, rng.normal(size=9))
    lower = GraphEmbedding(FullMatrix())
    algorithm = BiGFL(lam=0.7, kappa=0.05, phi=phi, lower=lower, local_steps=3)
    run = fit(network, algorithm, rounds=6_000, stop=None, participation=0.5, progress=False, measure_every=1000)
    L = lower.matrix(Links.of(network.graph)).toarray()
    expected = dense_game(network, network.data, 0.7, 0.05, phi.reshape(3, 3), L)
    assert_allclose(run.models.w, expected, atol=1e-10)
    assert_array_equal(algorithm.phi_of(run), phi)


def test_propagation_matrices():
    links = Links.of(graphs.star(4))
    A = links.matrix(links.weights).toarray() + np.eye(4)
    root = 1 / np.sqrt(A.sum(axis=1))
    assert_allclose(GraphEmbedding().matrix(links).toarray(), root[:, None] * A * root)
    assert_allclose(GraphEmbedding(propagation="mean").matrix(links).sum(axis=1), 1)
    assert GraphEmbedding().bound(links).max() == 2 * (1 + 1 / 2)  # however many neighbours a hub has


def test_the_laplacian_control_is_gtv_minimisation():
    network = ring()
    weighted = network.graph.weighted_degrees.max()
    ours = fit(network, BiGFL(lam=0.5, kappa=0.0, lower=LaplacianCoupling()), stop=Tolerance(1e-13), progress=False)
    theirs = fit(network, GTVMin(coupling=SquaredNorm(), lam=0.5 / weighted), stop=Tolerance(1e-13), progress=False)
    assert_allclose(ours.models.w, theirs.models.w, atol=1e-9)


def test_without_lam_every_node_learns_alone():
    network = ring()
    run = fit(network, BiGFL(lam=0.0, kappa=0.0), stop=Tolerance(1e-12), progress=False)
    assert_allclose(run.models.w, fit(network, Local(), progress=False).models.w, atol=1e-8)


def test_nodes_without_data_rest_where_they_are_drawn_to():
    network = Network(graphs.chain(3), [([[1.0]], [1.0]), None, ([[1.0]], [3.0])])
    run = fit(network, BiGFL(lam=1.0, kappa=0.0, batch=1, local_epochs=1), stop=Tolerance(1e-12), progress=False)
    root = np.sqrt([2, 3, 2])
    L = (np.eye(3) + np.diag([1, 1], 1) + np.diag([1, 1], -1)) / np.outer(root, root)
    assert_allclose((L @ run.models.w)[1], run.models.w[1], atol=1e-9)  # (1 − L_11) r_1 = 0


# ---------------------------------------------------------------------- shapes of φ


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: type(shape).__name__)
def test_shapes_are_matrices(shape):
    rng = np.random.default_rng(0)
    phi = shape.beginning(LAYOUT, rng) + 0.3 * rng.normal(size=shape.size(LAYOUT))
    assert phi.shape == (shape.size(LAYOUT),)
    x, left, right = rng.normal(size=(3, 5, WIDTH))
    matrix = matrix_of(shape, LAYOUT, phi)
    assert_allclose(shape.times(LAYOUT, phi, x), x @ matrix, atol=1e-12)
    assert_allclose(shape.times(LAYOUT, phi, x, transposed=True), x @ matrix.T, atol=1e-12)
    assert_allclose(matrix_of(shape, LAYOUT, shape.identity(LAYOUT)), np.eye(WIDTH))
    away = matrix - np.eye(WIDTH)
    assert_allclose(shape.distance(LAYOUT, phi).value, 0.5 * (away**2).sum())
    for k in rng.choice(len(phi), 3):
        ahead, behind = (phi + sign * 1e-6 * (np.arange(len(phi)) == k) for sign in (1, -1))
        slope = [(right * shape.times(LAYOUT, at, left)).sum() for at in (ahead, behind)]
        assert_allclose(
            shape.derivative(LAYOUT, phi, left, right)[k], (slope[0] - slope[1]) / 2e-6, atol=1e-7, rtol=1e-7
        )
        value = [shape.distance(LAYOUT, at).value for at in (ahead, behind)]
        assert_allclose(shape.distance(LAYOUT, phi).slope[k], (value[0] - value[1]) / 2e-6, atol=1e-6)
    inside = shape.projected(LAYOUT, 3 * phi)
    assert np.linalg.norm(matrix_of(shape, LAYOUT, inside), 2) <= 1 + 1e-12
    assert_allclose(shape.projected(LAYOUT, inside), inside, atol=1e-12)


@pytest.mark.parametrize("shape", [NumberPerLayer(), MatrixPerLayer(), FullMatrix()], ids=lambda s: type(s).__name__)
def test_regression_is_the_least_squares_fit(shape):
    rng = np.random.default_rng(1)
    left, right = rng.normal(size=(2, 40, WIDTH))
    found = shape.fitted(LAYOUT, left, right, 0.0)
    slope = 2 * (shape.times(LAYOUT, found, left) - right)
    assert_allclose(shape.derivative(LAYOUT, found, left, slope), 0, atol=1e-9)
    held = shape.fitted(LAYOUT, left, right, 1e9)
    assert_allclose(held, shape.identity(LAYOUT), atol=1e-6)


# ---------------------------------------------------------------------- derivatives of the lower level


@dataclass(frozen=True)
class EdgeWeights(LowerLevel):
    """A second instance of the two levels: P_i = ½ Σ_j exp(φ_ij) ‖θ_i − θ_j‖², a strength learnt for every edge."""

    def identity(self, links, layout):
        return np.zeros(len(links.head))

    def bound(self, links):
        return 2.0 * np.exp(2.0) * np.bincount(np.r_[links.head, links.tail], minlength=links.node_count)

    def projected(self, layout, phi):
        return np.clip(phi, -6.0, 2.0)

    def _laplacian(self, links, phi):
        between = links.matrix(np.exp(phi))
        return scipy.sparse.diags_array(between.sum(axis=1)) - between

    def messages(self, links, layout, phi, w):
        between = links.matrix(np.exp(phi))
        return {
            "around": between @ w,
            "squares": between @ (w**2).sum(axis=1),
            "weight": between.sum(axis=1)[:, None],
        }

    def value(self, layout, phi, w, received):
        own = received["weight"][:, 0] * (w**2).sum(axis=1)
        return 0.5 * (own - 2 * (w * received["around"]).sum(axis=1) + received["squares"])

    def slope(self, layout, phi, w, received):
        return received["weight"] * w - received["around"]

    def own_product(self, layout, phi, w, received, v):
        return received["weight"] * v

    def adjoint_product(self, links, layout, phi, w, v):
        return self._laplacian(links, phi) @ v

    def phi_product(self, links, layout, phi, w, v):
        apart, along = w[links.head] - w[links.tail], v[links.head] - v[links.tail]
        return np.exp(phi) * (apart * along).sum(axis=1)


@dataclass(frozen=True)
class Ridge(LowerLevel):
    """P_i = ½ exp(φ) ‖θ_i‖²: the strength of a ridge penalty, a bilevel problem with a closed form."""

    def identity(self, links, layout):
        return np.zeros(1)

    def bound(self, links):
        return np.full(links.node_count, np.exp(4.0))

    def projected(self, layout, phi):
        return np.clip(phi, -8.0, 4.0)

    def messages(self, links, layout, phi, w):
        return {}

    def value(self, layout, phi, w, received):
        return 0.5 * np.exp(phi[0]) * (w**2).sum(axis=1)

    def slope(self, layout, phi, w, received):
        return np.exp(phi[0]) * w

    def own_product(self, layout, phi, w, received, v):
        return np.exp(phi[0]) * v

    def adjoint_product(self, links, layout, phi, w, v):
        return np.exp(phi[0]) * v

    def phi_product(self, links, layout, phi, w, v):
        return np.exp(phi) * (w * v).sum()


LOWERS = [*(GraphEmbedding(shape) for shape in SHAPES), LaplacianCoupling(), EdgeWeights(), Ridge()]


@pytest.mark.parametrize("lower", LOWERS, ids=lambda each: f"{type(each).__name__} {getattr(each, 'shape', '')}")
def test_derivatives_of_lower_levels(lower):
    rng, links = np.random.default_rng(2), Links.of(ring().graph)
    phi = lower.beginning(links, LAYOUT, rng)
    phi = phi + 0.3 * rng.normal(size=phi.shape)
    w, v = rng.normal(size=(2, links.node_count, WIDTH))

    def slope(phi, w):
        return lower.slope(LAYOUT, phi, w, lower.messages(links, LAYOUT, phi, w))

    def value(w, received):
        return lower.value(LAYOUT, phi, w, received).sum()

    received, small = lower.messages(links, LAYOUT, phi, w), 1e-6
    along = rng.normal(size=w.shape)
    numeric = (value(w + small * along, received) - value(w - small * along, received)) / (2 * small)
    assert_allclose((slope(phi, w) * along).sum(), numeric, rtol=1e-6, atol=1e-6)
    ahead, behind = (lower.slope(LAYOUT, phi, w + sign * small * along, received) for sign in (1, -1))
    product = lower.own_product(LAYOUT, phi, w, received, along)
    assert_allclose(product, (ahead - behind) / (2 * small), rtol=1e-6, atol=1e-6)
    turned = (slope(phi, w + small * along) - slope(phi, w - small * along)) / (2 * small)
    product = lower.adjoint_product(links, LAYOUT, phi, w, v)
    assert_allclose((product * along).sum(), (v * turned).sum(), rtol=1e-6, atol=1e-6)
    if len(phi):
        aside = rng.normal(size=phi.shape)
        turned = (slope(phi + small * aside, w) - slope(phi - small * aside, w)) / (2 * small)
        product = lower.phi_product(links, LAYOUT, phi, w, v)
        assert_allclose((product * aside).sum(), (v * turned).sum(), rtol=1e-6, atol=1e-6)


# ---------------------------------------------------------------------- (10.14)


def test_the_cosine_embedding_loss_as_printed():
    network, lower, rng = ring(nodes=12), GraphEmbedding(FullMatrix()), np.random.default_rng(3)
    links, layout = Links.of(network.graph), {"w": (1, 3)}
    phi, w = rng.normal(size=9), rng.normal(size=(12, 3))
    upper = CosineEmbedding(negatives=4)
    common = partial(upper.common, lower, links, layout)
    found = common(phi, w, np.random.default_rng(5))
    H = lower.matrix(links).toarray() @ w @ phi.reshape(3, 3)
    unit = H / np.linalg.norm(H, axis=1)[:, None]
    joined = links.matrix(links.weights).toarray() > 0
    node, drawn = draw_negatives(links, 4, np.random.default_rng(5))
    assert not joined[node, drawn].any()
    assert (node != drawn).all()
    assert len({(i, j) for i, j in zip(node, drawn, strict=True)}) == 48
    cosine = unit @ unit.T
    near = sum(1 - cosine[i, j] for i in range(12) for j in range(12) if joined[i, j]) / 12
    far = np.maximum(cosine[node, drawn], 0).reshape(12, 4).mean(axis=1).mean()
    assert_allclose(found.value, near + far)
    small = 1e-6
    for name, at in (("phi", phi), ("w", w)):
        along = rng.normal(size=at.shape)
        ends = [
            common(**{"phi": phi, "w": w, name: at + sign * small * along}, rng=np.random.default_rng(5)).value
            for sign in (1, -1)
        ]
        assert_allclose((getattr(found, name) * along).sum(), (ends[0] - ends[1]) / (2 * small), rtol=1e-6, atol=1e-8)


# ---------------------------------------------------------------------- the hypergradient, linear


@dataclass(frozen=True)
class Elsewhere(GraphEmbedding):
    """An embedding whose φ begins away from the identity."""

    def beginning(self, links, layout, rng):
        near = self.shape.beginning(layout, rng)
        return self.shape.projected(layout, near + 0.4 * np.random.default_rng(9).normal(size=near.shape))


def split(network: Network, share: float) -> tuple[Data, Data]:
    held = held_out_rows(network.data.sizes, share)
    return network.data.keep(~held), network.data.keep(held)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: type(shape).__name__)
@pytest.mark.parametrize("upper", [HeldOutError(0.3), CosineEmbedding(negatives=3)], ids=lambda u: type(u).__name__)
def test_hypergradients_of_linear_games_against_differences(shape, upper):
    """To 1e-6, at a φ that is not the identity; undamped, as printed."""
    network, lam, kappa, lam_upper = ring(), 0.6, 0.05, 0.01
    lower, layout = Elsewhere(shape), {"w": (1, 3)}
    algorithm = BiGFL(
        lam=lam, kappa=kappa, phi="learn", lower=lower, upper=upper, lam_upper=lam_upper, warm_up=3_000, phi_every=1,
        phi_steps=1, controls=False, phi_step_size=1e-12, adjoint=Adjoint(damping=0.0, exchanges=20),
    )  # fmt: skip
    run = fit(network, algorithm, rounds=3_001, stop=None, progress=False, measure_every=3_001)
    memory = run.snapshot.memory
    assert memory.facts.adjoint_residual < 1e-10
    links = Links.of(network.graph)
    L = lower.matrix(links).toarray()
    learnt, held = split(network, upper.held_out) if upper.held_out else (network.data, None)

    def f(phi):
        w = dense_game(network, learnt, lam, kappa, matrix_of(shape, layout, phi), L)
        rng = np.random.default_rng([8, 0, 3_001])
        value = upper.common(lower, links, layout, phi, w, rng).value + lam_upper * shape.distance(layout, phi).value
        return value if held is None else value + Squared().bind(held).value(w).mean()

    phi = lower.beginning(links, layout, np.random.default_rng([7, 0]))
    numeric = []
    for k in range(len(phi)):
        e = 1e-5 * (np.arange(len(phi)) == k)
        numeric.append((f(phi + e) - f(phi - e)) / 2e-5)
    assert_allclose(memory.hypergradient, numeric, atol=1e-6 * np.abs(numeric).max())
    assert_allclose(memory.facts.upper, f(phi), rtol=1e-8)


def test_plain_gmres_and_the_preconditioned_solve_agree_where_both_are_exact():
    def hypergradient(adjoint):
        algorithm = BiGFL(lam=0.5, phi="learn", warm_up=50, phi_every=1, phi_steps=1, controls=False, adjoint=adjoint)
        run = fit(ring(), algorithm, rounds=51, stop=None, progress=False, measure_every=51)
        return run.snapshot.memory.hypergradient

    exact = hypergradient(Adjoint(damping=0.1, exchanges=24))
    assert_allclose(hypergradient(Adjoint(damping=0.1, exchanges=24, preconditioned=False)), exact, rtol=1e-8)
    assert_allclose(hypergradient(Adjoint(damping=0.1, exchanges=5)), exact, rtol=1e-3)


def test_the_damping_is_one_over_the_way_of_each_node():
    network = ring()
    algorithm = BiGFL(
        lam=0.5, phi="learn", warm_up=10, phi_every=5, phi_steps=2, controls=False, step_size=Decay(0.1), local_steps=3,
        adjoint=Adjoint(exchanges=24),
    )  # fmt: skip
    run = fit(network, algorithm, rounds=20, stop=None, progress=False)
    assert_allclose(run.state.way, sum(0.1 / np.sqrt(k + 1) for k in range(15 * 3, 20 * 3)))
    first = sum(0.1 / np.sqrt(k + 1) for k in range(10 * 3, 15 * 3))  # since the end of the warm-up
    hypergradient = []
    for damping in (None, 1 / first, 1.1 / first):
        other = replace(algorithm, adjoint=Adjoint(exchanges=24, damping=damping))
        run = fit(network, other, rounds=15, stop=None, progress=False)
        hypergradient.append(run.snapshot.memory.hypergradient)
    assert_allclose(hypergradient[1], hypergradient[0], rtol=1e-8)
    assert abs(hypergradient[2] / hypergradient[0] - 1) > 1e-3


def test_the_edges_may_be_learnt_instead():
    """The second instance: strengths of edges by held-out error, against differences; and they find who is kin."""
    network = ring()
    upper, lower = HeldOutError(0.3), EdgeWeights()
    algorithm = BiGFL(
        lam=0.6, kappa=0.05, phi="learn", lower=lower, upper=upper, warm_up=6_000, phi_every=1, phi_steps=1,
        controls=False, phi_step_size=1e-12, adjoint=Adjoint(damping=0.0, exchanges=24),
    )  # fmt: skip
    run = fit(network, algorithm, rounds=6_001, stop=None, progress=False, measure_every=6_001)
    learnt, held = split(network, 0.3)
    bare = Network(network.graph, learnt)

    def f(phi):
        weighted = Graph(8, np.stack([network.graph.head, network.graph.tail], axis=1), np.exp(phi))
        losses = Squared().bind(bare.data)
        hessian, right = losses.hessian(np.zeros((8, 3))), -losses.gradient(np.zeros((8, 3)))
        system = np.kron(weighted.laplacian.toarray(), 0.6 * np.eye(3)) + 0.05 * np.eye(24)
        for k in range(8):
            system[3 * k : 3 * k + 3, 3 * k : 3 * k + 3] += hessian[k]
        return Squared().bind(held).value(np.linalg.solve(system, right.ravel()).reshape(8, 3)).mean()

    eye = np.eye(9) * 1e-5
    numeric = [(f(e) - f(-e)) / 2e-5 for e in eye]
    assert_allclose(run.snapshot.memory.hypergradient, numeric, atol=1e-6 * np.abs(numeric).max())


def test_strong_edges_are_learnt_within_clusters():
    rng = np.random.default_rng(0)
    graph, cluster = graphs.stochastic_block([6, 6], 0.9, 0.5, seed=1)
    truth = np.array([[1.0, 1.0, -1.0], [-1.0, 1.0, 1.0]])[cluster]
    X = rng.normal(size=(12, 6, 3))
    network = Network(graph, [(x, x @ w + 0.1 * rng.normal(size=6)) for x, w in zip(X, truth, strict=True)])
    algorithm = BiGFL(
        lam=0.2, phi="learn", lower=EdgeWeights(), upper=HeldOutError(0.4), phi_step_size=Decay(0.5), controls=False
    )
    run = fit(network, algorithm, rounds=900, stop=None, progress=False, measure_every=900)
    phi = algorithm.phi_of(run)
    within = cluster[graph.head] == cluster[graph.tail]
    assert phi[within].mean() > phi[~within].mean() + 1.0
    plain = fit(network, replace(algorithm, phi="identity"), rounds=900, stop=None, progress=False)
    assert np.linalg.norm(run.models.w - truth) < 0.7 * np.linalg.norm(plain.models.w - truth)


def test_a_bilevel_ridge_problem_with_a_closed_form():
    """The strength of a ridge penalty by held-out error: the hypergradient, and the best strength by a fine grid."""
    network = ring(seed=3, nodes=6, rows=8, features=5, noise=2.0)
    learnt, held = split(network, 0.5)
    losses, held_out = Squared().bind(learnt), Squared().bind(held)
    hessian, right = losses.hessian(np.zeros((6, 5))), -losses.gradient(np.zeros((6, 5)))

    def f(phi):
        w = np.linalg.solve(hessian + np.exp(phi) * np.eye(5), right[..., None])[..., 0]
        return held_out.value(w).mean()

    algorithm = BiGFL(
        lam=1.0, kappa=0.0, phi="learn", lower=Ridge(), upper=HeldOutError(0.5), controls=False, warm_up=2_000,
        phi_every=200, phi_steps=40, phi_step_size=Decay(1.0, 1.0), adjoint=Adjoint(damping=0.0),
    )  # fmt: skip
    seen = []
    fit(
        network, algorithm, rounds=10_000, stop=None, progress=False, measure_every=200,
        callbacks=[lambda row, snapshot: seen.append(snapshot().memory)],
    )  # fmt: skip
    first = next(memory for memory in seen if memory.facts.phi_steps == 1)
    assert_allclose(first.hypergradient, (f(1e-5) - f(-1e-5)) / 2e-5, rtol=1e-5)
    grid = np.linspace(-8, 4, 2_001)
    best = grid[np.argmin([f(phi) for phi in grid])]
    assert -7.9 < best < 3.9
    assert_allclose(seen[-1].phi[0], best, atol=0.05)


# ---------------------------------------------------------------------- the hypergradient, networks


def networks(nodes: int, seed: int = 0) -> tuple[Network, Any]:
    """A chain of nodes with teachers of their own, and the network 8-16-16-8."""
    import torch

    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(*shape) for shape in ((8, 16), (16, 16), (16, 8))]
    module = torch.nn.Sequential(layers[0], torch.nn.Tanh(), layers[1], torch.nn.Tanh(), layers[2])
    data = []
    for _ in range(nodes):
        first, second = rng.normal(size=(8, 8)), rng.normal(size=(8, 8))
        X = rng.uniform(-1, 1, (12, 8))
        data.append((X, 0.3 * np.tanh(X @ first) @ second))
    return Network(graphs.chain(nodes), data), module


class TorchGame:
    """The game of three networks in plain torch, a second implementation: numbers per layer, held-out error."""

    def __init__(self, network: Network, module: Any, lam: float, share: float) -> None:
        import torch
        from torch.func import functional_call, vmap

        self.torch, self.lam = torch, lam
        learnt, held = split(network, share)
        self.learnt, self.held = self._stacked(learnt), self._stacked(held)
        names, shapes = zip(*((name, value.shape) for name, value in module.named_parameters()), strict=True)
        sizes = [shape.numel() for shape in shapes]
        self.layer = torch.repeat_interleave(torch.tensor([0, 0, 1, 1, 2, 2]), torch.tensor(sizes))
        self.L = torch.tensor(GraphEmbedding().matrix(Links.of(network.graph)).toarray())
        double = module.double()
        self.start = torch.cat([value.detach().reshape(-1) for value in double.parameters()]).repeat(len(self.L), 1)

        def said(theta, X):
            parts = [part.view(shape) for part, shape in zip(theta.split(sizes), shapes, strict=True)]
            return functional_call(double, dict(zip(names, parts, strict=True)), (X,))

        self.said = vmap(said)

    def _stacked(self, data: Data) -> Any:
        pairs = [data[k] for k in range(data.node_count)]
        return tuple(self.torch.tensor(np.stack(values)) for values in zip(*pairs, strict=True))

    def error(self, theta: Any, rows: Any) -> Any:
        return ((self.said(theta, rows[0]) - rows[1]) ** 2).sum(dim=-1).mean(dim=-1)

    def slope(self, theta: Any, phi: Any) -> Any:
        """∂g_i/∂θ_i, differentiable in θ and φ."""
        loss = self.error(theta, self.learnt).sum()
        (gradient,) = self.torch.autograd.grad(loss, theta, create_graph=True)
        scale = phi[self.layer]
        rest = (self.L @ theta) * scale - theta
        own = self.torch.diagonal(self.L)[:, None] * scale - 1
        return gradient + self.lam * rest * own

    def played(self, theta: Any, phi: Any, steps: int, beta: float) -> Any:
        for _ in range(steps):
            theta = theta - beta * self.slope(theta, phi)
        return theta


@pytest.mark.parametrize("delta", [0.01, 0.1])
def test_hypergradients_of_anchored_networks_against_differences(delta):
    """8-16-16-8: the damped adjoint is the exact one of the game with (δ/2)‖θ_i − θ_i before‖² added, to 1e-3."""
    torch = pytest.importorskip("torch")
    network, module = networks(nodes=2)
    loss, lam = TorchLoss(module, step_size=0.05), 0.3
    run = fit(
        network, BiGFL(loss, lam=lam, kappa=0.0, phi="learn", upper=HeldOutError(0.25), controls=False, phi_steps=1),
        rounds=300, stop=None, progress=False, measure_every=300,
    )  # fmt: skip
    game = TorchGame(network, module, lam, 0.25)
    anchor = torch.tensor(run.state.w[:, 0])

    def slope(theta, phi):
        theta = theta if theta.requires_grad else theta.detach().requires_grad_()
        return (game.slope(theta, phi) + delta * (theta - anchor)).reshape(-1)

    def rest(phi, theta):
        """Implicit steps down the slopes, longer and longer, with the exact Jacobian: Newton in the end."""
        held, here = 1.0, slope(theta, phi)
        for _ in range(60):
            if here.norm() < 1e-12:
                break
            jacobian = torch.autograd.functional.jacobian(
                lambda t: slope(t.view_as(anchor), phi), theta.reshape(-1), vectorize=True
            )
            step = torch.linalg.solve(jacobian + held * torch.eye(len(here)), here)
            theta = (theta - step.view_as(theta)).detach()
            there = slope(theta, phi)
            held, here = held * min((there.norm() / here.norm()).item(), 0.7), there
        assert here.norm() < 1e-9
        return theta

    ones = torch.ones(3, dtype=torch.float64)
    centre = rest(ones, anchor)
    along = torch.tensor([0.6, -0.5, 0.7], dtype=torch.float64)
    ends = [game.error(rest(ones + sign * 1e-5 * along, centre), game.held).mean().item() for sign in (1, -1)]
    numeric = (ends[0] - ends[1]) / 2e-5
    algorithm = BiGFL(
        loss, lam=lam, kappa=0.0, phi="learn", upper=HeldOutError(0.25), controls=False, warm_up=0, phi_every=1,
        phi_steps=1, step_size=1e-12, phi_step_size=1e-12,
        adjoint=Adjoint(damping=delta, exchanges=150, solve_steps=300),
    )  # fmt: skip
    began = fit(network, algorithm, rounds=0, progress=False)
    began = began.with_state(began.state._replace(w=centre.numpy()[:, None]))
    exact = fit(network, algorithm, rounds=1, progress=False, start=began).snapshot.memory
    assert exact.facts.adjoint_residual < 1e-6
    assert_allclose(exact.hypergradient @ along.numpy(), numeric, atol=1e-3 * np.linalg.norm(exact.hypergradient))
    if delta >= 0.1:  # the usual one is 1/(.05 · 20) = 1
        usual = replace(algorithm, adjoint=Adjoint(damping=delta))
        few = fit(network, usual, rounds=1, progress=False, start=began).snapshot.memory
        assert few.facts.exchanges == 4
        assert few.facts.adjoint_residual < 0.1
        assert cosine(few.hypergradient, exact.hypergradient) > 0.99


def cosine(one: Any, other: Any) -> float:
    return float(np.dot(one, other) / np.linalg.norm(one) / np.linalg.norm(other))


def test_hypergradients_of_networks_against_the_back_propagated_steps():
    """Cosine ≥ .98 with the derivative of T = 20 steps at four exchanges; the undamped adjoint is far off."""
    torch = pytest.importorskip("torch")
    found = []
    for seed in range(3):
        network, module = networks(nodes=5, seed=seed)
        loss, lam, beta = TorchLoss(module, step_size=0.05), 0.3, 0.05
        algorithm = BiGFL(loss, lam=lam, kappa=0.0, phi="learn", upper=HeldOutError(0.25), controls=False, phi_steps=1)
        before = fit(network, algorithm, rounds=300, stop=None, progress=False, measure_every=300)
        after = fit(network, algorithm, rounds=20, start=before, stop=None, progress=False)
        game = TorchGame(network, module, lam, 0.25)
        phi = torch.ones(3, dtype=torch.float64, requires_grad=True)
        theta = torch.tensor(before.state.w[:, 0]).requires_grad_()
        error = game.error(game.played(theta, phi, 20, beta), game.held).mean()
        (exact,) = torch.autograd.grad(error, phi)
        assert_allclose(error.item(), after.history["validation"].iloc[-1], rtol=1e-9)
        literal = replace(algorithm, adjoint=Adjoint(damping=0.0, exchanges=40, preconditioned=False, trust=1e9))
        printed = fit(network, literal, rounds=320, stop=None, progress=False, measure_every=320)
        found.append([cosine(run.snapshot.memory.hypergradient, exact) for run in (after, printed)])
    damped, undamped = np.array(found).T
    assert (damped >= 0.98).all(), damped
    assert np.mean(undamped) < np.mean(damped) - 0.02, undamped


# ---------------------------------------------------------------------- the solve


def test_the_flexible_krylov_method_is_gmres():
    rng = np.random.default_rng(0)
    A, b = np.eye(12) + 0.3 * rng.normal(size=(12, 12)), rng.normal(size=(4, 3))
    krylov, residuals = Krylov.of(b), []
    theirs = scipy.sparse.linalg.gmres(
        A, b.ravel(), restart=12, maxiter=1, rtol=1e-14, callback=residuals.append, callback_type="pr_norm"
    )[0]
    for k in range(12):
        krylov = krylov.extended(krylov.next, (A @ krylov.next.ravel()).reshape(4, 3))
        assert_allclose(krylov.solution().residual, residuals[k], atol=1e-12)
    assert_allclose(krylov.solution().v.ravel(), theirs, atol=1e-9)
    assert_allclose(krylov.extended(krylov.next, np.zeros((4, 3))).solution().v.ravel(), theirs, atol=1e-9)
    nothing = Krylov.of(np.zeros((4, 3)))
    assert nothing.extended(nothing.next, nothing.next).solution().residual == 0


def test_conjugate_gradients_of_every_node_by_itself():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(5, 4, 4))
    B = root @ root.transpose(0, 2, 1) + np.eye(4)
    B[3] = 0.0  # does not bend
    right = rng.normal(size=(5, 4))
    right[4] = 0.0

    def product(v):
        return np.einsum("nij,nj->ni", B, v)

    z = conjugate_gradients(product, right, 50, 1e-12)
    assert_allclose(product(z)[[0, 1, 2]], right[[0, 1, 2]], atol=1e-9)
    assert (z[3:] == 0).all()
    alone = conjugate_gradients(lambda v: np.einsum("nij,nj->ni", B[1:2], v), right[1:2], 3)
    assert_allclose(conjugate_gradients(product, right, 3)[1:2], alone, rtol=1e-12)
    most, _ = largest_curvature(product, rng.normal(size=(5, 4)), 300)
    assert_allclose(most, np.linalg.eigvalsh(B)[:, -1], rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("loss", ["squared", "cross-entropy"])
def test_gauss_newton_products_of_modules(loss):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    sizes = [5, 0, 3]
    y = (lambda m: rng.normal(size=(m, 2))) if loss == "squared" else (lambda m: rng.integers(0, 2, m).astype(float))
    data = Data.from_nodes([(rng.normal(size=(m, 3)), y(m)) if m else None for m in sizes])
    losses = TorchLoss(module, loss, ridge=0.1).bind(data)
    w = losses.start + 0.3 * rng.normal(size=losses.start.shape)
    v = rng.normal(size=w.shape)
    found = losses.gauss_newton(w)(v)
    flat = TorchLoss(module, loss).flat(3)
    for node, size in enumerate(sizes):
        expected = 0.1 * np.where([1] * 12 + [0] * 4 + [1] * 8 + [0] * 2, v[node], 0) if size else np.zeros(26)
        for x in data[node][0] if size else ():
            row = torch.tensor(x)[None]
            at = torch.tensor(w[node])
            J = torch.autograd.functional.jacobian(lambda t: flat.outputs(t, row)[0], at).numpy()  # noqa: B023
            h = flat.outputs(at, row)[0].detach().numpy()
            p = np.exp(h) / np.exp(h).sum()
            bend = 2 * np.eye(2) if loss == "squared" else np.diag(p) - np.outer(p, p)
            expected = expected + J.T @ bend @ J @ v[node] / size
        assert_allclose(found[node], expected, atol=1e-10)


# ---------------------------------------------------------------------- as an algorithm

QUICK = {"warm_up": 2, "phi_every": 3, "phi_steps": 2}


def small_module() -> Any:
    import torch

    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))


@pytest.mark.parametrize(
    "algorithm",
    [
        lambda: BiGFL(lam=0.5, local_steps=2, batch=2),
        lambda: BiGFL(lam=0.5, phi="learn", lower=GraphEmbedding(FullMatrix()), **QUICK),
        lambda: BiGFL(lam=0.5, phi="learn", lower=GraphEmbedding(LowRank(1)), upper=CosineEmbedding(2), **QUICK),
        lambda: BiGFL(lam=0.5, phi="learn", lower=GraphEmbedding(FullMatrix()), upper=Regression(), **QUICK),
        lambda: BiGFL(lam=0.5, phi="learn", lower=EdgeWeights(), controls=False, **QUICK),
        lambda: BiGFL(
            TorchLoss(small_module()),
            lam=0.2,
            phi="learn",
            controls=False,
            adjoint=Adjoint(None, 2, True, 5, batch=2),
            **QUICK,
        ),
    ],
    ids=["identity", "full", "printed", "regression", "edges", "torch"],
)
def test_it_keeps_the_promises_of_algorithms(algorithm):
    """Sites agree, absent nodes stay, data are left alone, and 12 rounds are 5 and 7 more; with half present, too."""
    check_algorithm(algorithm())


def test_the_history_has_what_was_compared():
    run = fit(difficult_network(), BiGFL(lam=0.5, phi="learn", **QUICK), rounds=30, stop=None, progress=False)
    last = run.history.iloc[-1]
    names = ["training", "upper", "adjoint_residual", "stability", "exchanges", "skipped", "phi_steps", "phi_distance"]
    for name in names:
        assert np.isfinite(last[name]), name
    assert last["exchanges"] == 2 * 4
    assert 0.5 < last["stability"] < 2  # the safe step is a bound, and no wild one
    assert (run.history["residual"] == np.inf)[:8].all()
    assert np.isfinite(last["residual"])
    same = fit(difficult_network(), BiGFL(lam=0.5), rounds=30, stop=None, progress=False)
    frozen = fit(
        difficult_network(), BiGFL(lam=0.5, phi="learn", phi_step_size=1e-12, **QUICK), rounds=3_000, stop=None,
        progress=False, measure_every=3_000,
    )  # fmt: skip
    rested = fit(difficult_network(), BiGFL(lam=0.5), rounds=3_000, stop=None, progress=False, measure_every=3_000)
    assert_allclose(frozen.history["error_identity"].iloc[-1], rested.error(), rtol=1e-6)
    assert_allclose(frozen.history["error"].iloc[-1], frozen.history["error_identity"].iloc[-1], rtol=1e-6)
    assert "error_identity" not in same.history
    assert any("with φ = I" in note and "alone" in note for note in run.notes)


def test_a_step_that_cannot_be_trusted_is_skipped_and_said():
    strict = BiGFL(lam=0.5, phi="learn", adjoint=Adjoint(exchanges=1, preconditioned=False, trust=1e-9), **QUICK)
    run = fit(ring(), strict, rounds=8, stop=None, progress=False)
    assert run.history["skipped"].iloc[-1] == 2
    assert_array_equal(strict.phi_of(run), [1.0])
    assert any("2 of 2 steps of φ were skipped" in note and "take more exchanges" in note for note in run.notes)
    long = BiGFL(lam=0.5, phi="learn", step_size=2.0, **QUICK)
    run = fit(ring(), long, rounds=8, stop=None, progress=False)
    assert run.history["stability"].iloc[-1] > 2
    assert run.history["skipped"].iloc[-1] == 2
    assert any("take a smaller step_size" in note for note in run.notes)


def test_a_phi_that_was_learnt_serves_another_network():
    network = reflected(0)
    algorithm = BiGFL(lam=1.0, phi="learn", upper=Regression(), lower=GraphEmbedding(FullMatrix()), warm_up=100)
    run = fit(network, algorithm, rounds=800, stop=None, progress=False, measure_every=800)
    phi = algorithm.phi_of(run)
    other = reflected(1)
    given = fit(other, replace(algorithm, phi=phi), rounds=800, stop=None, progress=False, measure_every=800)
    plain = fit(other, replace(algorithm, phi="identity"), rounds=800, stop=None, progress=False, measure_every=800)
    assert given.error() < 0.7 * plain.error()


def reflected(seed: int, reflect: bool = True) -> Network:
    """Neighbours whose first of two coefficients have opposite signs: six each, on a ring."""
    rng = np.random.default_rng(seed)
    sign = np.array([[1.0, 1.0], [-1.0 if reflect else 1.0, 1.0]])[np.arange(20) % 2]
    truth = sign * (np.array([2.0, 1.0]) + 0.1 * rng.normal(size=(20, 2)))

    def rows(count):
        X = rng.normal(size=(20, count, 2))
        return [(x, x @ w + 0.3 * rng.normal(size=count)) for x, w in zip(X, truth, strict=True)]

    edges = sorted({tuple(sorted((k, (k + apart) % 20))) for k in range(20) for apart in (1, 3, 5)})
    return Network(Graph(20, edges), rows(3), test=rows(30))


@pytest.mark.parametrize(("reflect", "least", "most"), [(True, -1.0, -0.3), (False, 0.8, 1.0)])
def test_a_reflection_is_found_where_there_is_one(reflect, least, most):
    """φ, a matrix for two coefficients: the sign by which neighbours differ in the first, by held-out error."""
    network = reflected(0, reflect)
    lower = GraphEmbedding(MatrixPerLayer())
    run = fit(
        network, BiGFL(lam=0.3, phi="learn", lower=lower, upper=HeldOutError(0.34)), rounds=1_500, stop=None,
        progress=False, measure_every=1_500,
    )  # fmt: skip
    phi = run.algorithm.phi_of(run).reshape(2, 2)
    last = run.history.iloc[-1]
    assert least <= phi[0, 0] <= most
    assert phi[1, 1] > 0.3
    if reflect:
        assert last["error"] < 0.7 * min(last["error_identity"], last["error_laplacian"])
        assert last["error"] < last["error_local"]
    else:
        assert last["error"] < 1.15 * last["error_identity"]


def test_what_leaves_a_node_is_declared():
    network = ring()
    learnt = BiGFL(phi="learn").sends(network).coordinator
    assert learnt["w"].shape == (4, 3)
    assert set(BiGFL().sends(network).coordinator) == {"w", "curvature"}
    assert BiGFL().sends(network).coordinator["w"].shape == (1, 3)


# ---------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kappa": -1.0}, "'kappa' parameter of BiGFL must be a number ≥ 0. Got -1.0 instead"),
        ({"phi": "learned"}, "'phi' parameter of BiGFL must be 'identity', 'learn' or an array. Got 'learned'"),
        ({"phi": np.ones(2)}, "Expected 1 numbers for φ on this model, got 2"),
        ({"phi": np.ones(3), "lower": EdgeWeights()}, "Expected 9 numbers for φ on this model, got 3"),
        ({"phi": np.ones(5), "lower": LaplacianCoupling()}, "Expected 0 numbers for φ on this model, got 5"),
        ({"phi": None}, "'phi' parameter of BiGFL must be 'identity', 'learn' or an array. Got None"),
        ({"phi": [1.5]}, "Expected a φ that the lower level admits"),
        ({"phi": "learn", "lam": 0.0}, "Expected a game that depends on φ for phi='learn', got lam=0"),
        ({"phi": "learn", "lower": LaplacianCoupling()}, "got LaplacianCoupling, which has none"),
        ({"loss": Absolute(), "step_size": 0.01}, "Expected a smooth loss for BiGFL"),
        ({"phi": "learn", "upper": CosineEmbedding()}, r"Expected at least 10 nodes that are no neighbours .* got 4"),
        ({"phi": "learn", "upper": CosineEmbedding(2), "lower": EdgeWeights()}, "Expected GraphEmbedding as the lower"),
        ({"phi": "learn", "upper": Regression(), "lower": EdgeWeights()}, "Expected GraphEmbedding as the lower"),
        ({"phi": "learn", "upper": Regression(), "lower": GraphEmbedding(LowRank())}, "that a regression can find"),
        ({"lower": GraphEmbedding(propagation="gcn")}, "Expected 'normalised adjacency', 'mean', or a matrix"),
        ({"lower": GraphEmbedding(propagation=np.eye(3))}, r"Expected finite numbers \(8, 8\) for propagation"),
        ({"lower": GraphEmbedding(propagation=object())}, "Expected a matrix of numbers for propagation"),
        ({"phi": "learn", "upper": HeldOutError(1.0)}, "'share' parameter of HeldOutError must be"),
        ({"phi": "learn", "phi_step_size": -1.0}, "'phi_step_size' parameter of BiGFL must be"),
        ({"phi": "learn", "optimiser": "Adam", "step_size": 0.1}, "Expected plain descent for BiGFL"),
        ({"lower": GraphEmbedding(LowRank(0))}, "'rank' parameter of LowRank must be"),
    ],
)  # fmt: skip
def test_bad_settings_are_refused_in_a_sentence(change, message):
    with pytest.raises(InputError, match=message):
        fit(ring(), BiGFL(**change), rounds=1, progress=False)


def test_a_graph_without_edges_has_nothing_to_learn_phi_from():
    network = ring().with_graph(graphs.edgeless(8))
    with pytest.raises(InputError, match="Expected a graph with edges for BiGFL"):
        fit(network, BiGFL(phi="learn"), rounds=1, progress=False)
    run = fit(network, BiGFL(lam=5.0, kappa=0.0), stop=Tolerance(1e-10), progress=False)  # φ = I: everybody alone
    assert_allclose(run.models.w, fit(network, Local(), progress=False).models.w, atol=1e-7)


def test_a_game_that_diverges_is_a_sentence_and_keeps_the_state_before():
    with np.errstate(all="ignore"):
        run = fit(ring(), BiGFL(lam=0.5, step_size=50.0), rounds=500, stop=None, progress=False)
    assert "diverged in round" in run.stopped
    assert "smaller step_size" in run.stopped
    assert np.isfinite(run.models.w).all()


def test_too_large_a_phi_is_refused_before_any_work():
    torch = pytest.importorskip("torch")
    network = Network(graphs.chain(2), [(np.ones((2, 5_000)), [0.0, 1.0])] * 2)
    large = BiGFL(TorchLoss(torch.nn.Linear(5_000, 1)), lower=GraphEmbedding(FullMatrix()))
    with pytest.raises(InputError, match="Expected a φ of at most 20,000,000 numbers, got 25,010,001 with FullMatrix"):
        fit(network, large, rounds=1, progress=False)


def test_a_learnt_run_is_resumed_bit_for_bit(tmp_path):
    import kinfolk

    def algorithm():
        return BiGFL(lam=0.5, phi="learn", lower=GraphEmbedding(FullMatrix()), **QUICK)

    network, options = difficult_network(), {"stop": None, "progress": False, "participation": 0.5}
    whole = fit(network, algorithm(), rounds=12, **options)
    fit(network, algorithm(), rounds=12, checkpoint=tmp_path / "run", checkpoint_every=5, **options)

    def stop(row, snapshot):
        if row["round"] == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(
            network,
            algorithm(),
            rounds=12,
            checkpoint=tmp_path / "cut",
            checkpoint_every=3,
            callbacks=[stop],
            **options,
        )
    resumed = kinfolk.resume(tmp_path / "cut", network, algorithm(), participation=0.5, stop=None, progress=False)
    assert_array_equal(resumed.models.w, whole.models.w)
    assert_array_equal(resumed.snapshot.memory.phi, whole.snapshot.memory.phi)
    on_sites = fit(network, algorithm(), rounds=12, engine=InProcess(5), **options)
    assert_allclose(on_sites.models.w, whole.models.w, atol=1e-10)


def test_an_upper_level_of_ones_own():
    """Anything that is differentiable may be learnt for: here embeddings of length one."""

    @dataclass(frozen=True)
    class UnitLength(UpperLevel):
        def common(self, lower, links, layout, phi, w, rng):
            H = lower.embedded(links, layout, phi, w)
            away = (H**2).sum(axis=1) - 1.0
            by_phi, by_w = lower.embedded_slopes(links, layout, phi, w, 4.0 * away[:, None] * H)
            return Common(float((away**2).sum()), by_phi, by_w)

    network = ring()
    algorithm = BiGFL(
        lam=0.5, phi="learn", upper=UnitLength(), controls=False, warm_up=3_000, phi_every=1, phi_steps=1,
        phi_step_size=1e-12, adjoint=Adjoint(damping=0.0, exchanges=20),
    )  # fmt: skip
    memory = fit(network, algorithm, rounds=3_001, stop=None, progress=False, measure_every=3_001).snapshot.memory
    L = GraphEmbedding().matrix(Links.of(network.graph)).toarray()

    def f(phi):
        H = L @ dense_game(network, network.data, 0.5, 1e-4, phi * np.eye(3), L) * phi
        return (((H**2).sum(axis=1) - 1) ** 2).sum()

    assert_allclose(memory.hypergradient[0], (f(1 + 1e-5) - f(1 - 1e-5)) / 2e-5, rtol=1e-5)


# ---------------------------------------------------------------------- what a review found


def test_phi_is_learnt_anew_along_a_path():
    """A run that goes on from another with other settings has a warm-up and steps of φ of its own."""
    network = reflected(0)
    algorithm = BiGFL(lam=0.1, phi="learn", upper=Regression(), lower=GraphEmbedding(FullMatrix()), warm_up=20)
    options = {"rounds": 650, "stop": None, "progress": False, "measure_every": 650}
    first = fit(network, algorithm, **options)
    then = fit(network, replace(algorithm, lam=0.3), start=first, **options)
    cold = fit(network, replace(algorithm, lam=0.3), **options)
    assert then.history["phi_steps"].iloc[-1] == 30
    assert_allclose(algorithm.phi_of(then), algorithm.phi_of(cold), atol=0.05)
    assert then.history["phi_distance"].iloc[0] > 0.5  # it goes on from the φ of the first


def test_runs_go_on_from_each_other_whatever_their_phi():
    network, options = ring(), {"stop": None, "progress": False}
    plain = fit(network, BiGFL(lam=0.5), rounds=50, **options)
    learnt = fit(network, BiGFL(lam=0.5, phi="learn", **QUICK), rounds=8, start=plain, **options)
    assert learnt.history["phi_steps"].iloc[-1] == 2
    given = fit(network, BiGFL(lam=0.5, phi=learnt.algorithm.phi_of(learnt)), rounds=3, start=learnt, **options)
    assert_array_equal(given.algorithm.phi_of(given), learnt.algorithm.phi_of(learnt))
    matrix = GraphEmbedding(FullMatrix())
    whole = fit(network, BiGFL(lam=0.5, phi="learn", lower=matrix, **QUICK), rounds=8, start=learnt, **options)
    rank = BiGFL(lam=0.5, phi="learn", lower=GraphEmbedding(LowRank(3)), **QUICK)
    again = fit(network, rank, rounds=0, start=whole, **options)  # as many numbers, of another meaning
    assert again.history["phi_distance"].iloc[-1] < 0.1
    wider = ring(features=4)
    with pytest.raises(InputError, match="Expected a start with as many parameters"):
        fit(wider, BiGFL(), rounds=1, start=plain, **options)


def test_a_ridge_term_is_no_part_of_the_held_out_error():
    network = ring()
    loss = Squared(ridge=5.0)
    algorithm = BiGFL(loss, lam=0.5, phi="learn", upper=HeldOutError(0.3), controls=False, **QUICK)
    run = fit(network, algorithm, rounds=8, stop=None, progress=False)
    held = split(network, 0.3)[1]
    assert_allclose(run.history["validation"].iloc[-1], Squared().bind(held).value(run.models.w).mean(), rtol=1e-9)


def test_the_way_is_that_of_one_interval_with_half_of_the_nodes_present():
    algorithm = BiGFL(lam=0.5, phi="learn", step_size=0.05, warm_up=5, phi_every=10, phi_steps=3, controls=False)
    run = fit(ring(), algorithm, rounds=35, stop=None, progress=False, participation=0.5)
    assert (run.state.way <= 10 * 0.05 + 1e-12).all()
    assert (run.state.way > 0).all()


def test_modules_with_buffers_or_without_second_derivatives_are_refused_in_a_sentence():
    torch = pytest.importorskip("torch")

    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(3, 1)
            self.register_buffer("scale", torch.ones(1))

        def forward(self, x):
            return self.linear(x) * self.scale

    with pytest.raises(InputError, match="Expected a module without floating buffers for BiGFL"):
        fit(ring(), BiGFL(TorchLoss(Scaled())), rounds=1, progress=False)

    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, slope):
            return 3 * ctx.saved_tensors[0] ** 2 * slope

    class Cubed(torch.nn.Linear):
        def forward(self, x):
            return Once.apply(super().forward(x))

    with pytest.raises(InputError, match="Expected a model that can be differentiated twice for phi='learn'"):
        fit(ring(), BiGFL(TorchLoss(Cubed(3, 1)), phi="learn"), rounds=1, progress=False)


def test_slopes_that_are_no_numbers_skip_the_step():
    with np.errstate(all="ignore"):
        krylov = Krylov.of(np.array([[np.inf, 1.0]]))
        krylov = krylov.extended(krylov.next, krylov.next)
    assert krylov.solution().residual == np.inf
    assert_array_equal(krylov.solution().v, [[0, 0]])


def test_a_run_too_short_to_learn_phi_says_so():
    run = fit(ring(), BiGFL(lam=0.5, phi="learn"), rounds=100, stop=None, progress=False, measure_every=100)
    assert run.notes[0].startswith("0 of 30 steps of φ were tried: it takes 900 rounds to learn φ")


def test_rows_too_few_to_hold_out_are_a_sentence():
    network = Network(graphs.chain(3), [([[1.0]], [1.0])] * 3)
    run = fit(network, BiGFL(lam=0.5, phi="learn", **QUICK), rounds=8, stop=None, progress=False)
    assert "Expected nodes with two rows or more, of which some can be held out" in run.stopped


def test_a_layer_has_one_number_whatever_its_name():
    torch = pytest.importorskip("torch")
    assert NumberPerLayer().size(TorchLoss(torch.nn.Linear(3, 1)).layout(3)) == 1
    assert NumberPerLayer().size(LAYOUT) == 2
    assert NumberPerLayer().size(Squared().layout(3)) == 1


def test_negatives_at_a_hub():
    links = Links.of(graphs.star(40))
    with pytest.raises(InputError, match="got 0 for node 0"):
        CosineEmbedding(1).check(Network(graphs.star(40), [([[1.0]], [1.0])] * 40), GraphEmbedding())
    most = Links(12, np.zeros(5, dtype=int), np.arange(1, 6), np.ones(5))
    node, drawn = draw_negatives(most, 6, np.random.default_rng(0))
    assert sorted(drawn[node == 0]) == list(range(6, 12))
    assert all(len(set(drawn[node == k])) == 6 for k in range(12))
    assert not ((node > 0) & (node < 6) & (drawn == 0)).any()
    assert links.node_count == 40
