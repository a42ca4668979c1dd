"""Theorem 2 as a tool: brute force over subsets, CVXPY and precise solutions are the oracles."""

import cvxpy
import numpy as np
import pytest

from kinfolk import (
    AbsoluteNorm,
    EuclideanNorm,
    Graph,
    GTVMin,
    InputError,
    Logistic,
    Network,
    Pooled,
    Squared,
    SquaredNorm,
    Tolerance,
    fit,
    graphs,
)
from kinfolk.theory import constant_above, found_clusters, guaranteed_recovery
from kinfolk.theory.conditions import _Inside
from kinfolk.theory.flows import undeliverable

NORMS = [EuclideanNorm(), AbsoluteNorm()]
norms = pytest.mark.parametrize("coupling", NORMS, ids=lambda c: type(c).__name__)


def planted_network(seed, sizes=(6, 5), p_out=0.05, width=2, samples=8, noise=0.05, spread=3.0, weights=True):
    """Clusters that are dense inside, with few and weak edges between them, and a node without data."""
    rng = np.random.default_rng(seed)
    graph, planted = graphs.stochastic_block(sizes, 0.8, p_out, seed=seed)
    ends = np.stack([graph.head, graph.tail], axis=1)
    if weights:
        crossing = planted[graph.head] != planted[graph.tail]
        graph = Graph(graph.node_count, ends, rng.uniform(0.5, 2.0, len(ends)) * np.where(crossing, 0.02, 1.0))
    truth = spread * rng.normal(size=(len(sizes), width))
    data = []
    for node in range(graph.node_count):
        X = rng.normal(size=(samples, width))
        data.append((X, X @ truth[planted[node]] + noise * rng.normal(size=samples)))
    data[2] = None
    return Network(graph, data), planted


def varied_network(seed):
    return planted_network(seed, p_out=(0.0, 0.05, 0.2)[seed % 3], weights=seed % 2 == 0)


def holds_by_brute_force(network, cluster, lam):
    """(35) for one cluster, over all roots and all subsets, from the numbers that the report gives."""
    graph, nodes = network.graph, cluster.nodes
    inner = graph.to_sparse().toarray()[np.ix_(nodes, nodes)]
    leaving = graph.weighted_degrees[nodes] - inner.sum(axis=1)
    bracket = leaving + cluster.delta / lam
    if cluster.boundary > 0:
        bracket += cluster.beta * cluster.boundary / cluster.alpha
    subsets = (np.arange(1, 2 ** len(nodes))[:, None] >> np.arange(len(nodes))) & 1
    asked = subsets @ bracket
    available = ((subsets @ inner) * (1 - subsets)).sum(axis=1)
    violated = asked >= available
    return [not violated[subsets[:, root] == 0].any() for root in range(len(nodes))]


@norms
@pytest.mark.parametrize("seed", range(12))
def test_condition_and_its_range_agree_with_brute_force(seed, coupling):
    network, planted = varied_network(seed)
    for lam in 10.0 ** np.random.default_rng(seed).uniform(-4, 2, size=4):
        found = guaranteed_recovery(network, planted, lam, coupling=coupling)
        for cluster in found.clusters:
            roots = holds_by_brute_force(network, cluster, lam)
            assert cluster.well_connected == any(roots)
            if cluster.well_connected:
                assert roots[cluster.nodes.tolist().index(cluster.root)]
            else:
                assert cluster.cut.asked >= cluster.cut.available * (1 - 1e-12)
                assert cluster.root not in cluster.cut.nodes
            if cluster.lam_above is None:
                assert not any(holds_by_brute_force(network, cluster, 1e12))
            elif cluster.lam_above > 0:
                assert any(holds_by_brute_force(network, cluster, cluster.lam_above))
                assert not any(holds_by_brute_force(network, cluster, cluster.lam_above * (1 - 3e-9)))


@pytest.mark.parametrize("seed", range(40))
def test_threshold_is_the_best_root_s_worst_set_ties_included(seed):
    """Whole numbers, so that both sides of (35) are often equal; for some clusters no λ suffices."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 9))
    pairs = np.array([(i, j) for i in range(count) for j in range(i + 1, count) if rng.random() < 0.6]).reshape(-1, 2)
    weights = rng.integers(1, 7, len(pairs)).astype(float)
    fixed, delta = (rng.integers(0, top, count).astype(float) for top in (2, 3))
    inside = _Inside(pairs[:, 0].astype(int), pairs[:, 1].astype(int), weights, fixed, delta)
    subsets = ((np.arange(1, 2**count)[:, None] >> np.arange(count)) & 1).astype(bool)
    room = np.array([inside.leaving(within) for within in subsets]) - subsets @ fixed
    worst = np.where(room > 0, subsets @ delta / np.where(room > 0, room, 1.0), np.inf)
    of_root = [worst[~subsets[:, root]].max() for root in range(count)]
    above, root = inside.threshold()
    assert above == pytest.approx(min(of_root), rel=2e-9)
    assert above == np.inf or of_root[root] == min(of_root)
    # Ties are decided exactly where δ / λ is a float, and elsewhere up to its rounding.
    near = {value * factor for value in of_root if 0 < value < np.inf for factor in (1 - 1e-14, 1 + 1e-14)}
    for lam in {0.25, 0.5, 1.0, 2.0} | near:
        for candidate in range(count):
            assert (inside.violating(candidate, lam) is None) == (lam > of_root[candidate])


def test_the_cases_are_of_both_kinds():
    kinds = {
        (cluster.well_connected, cluster.lam_above is None)
        for seed in range(12)
        for cluster in guaranteed_recovery(*varied_network(seed), 0.05).clusters
    }
    assert kinds == {(True, False), (False, True), (False, False)}


@norms
@pytest.mark.parametrize("seed", range(6))
def test_what_is_guaranteed_comes_true(seed, coupling):
    network, planted = planted_network(seed, p_out=0.05, noise=0.02)
    above = guaranteed_recovery(network, planted, 1.0, Squared(), coupling).lam_above
    assert above is not None
    for lam in (1.01 * above, 3 * above):
        found = guaranteed_recovery(network, planted, lam, Squared(), coupling)
        assert found.guaranteed
        run = fit(network, GTVMin(Squared(), coupling, lam), stop=Tolerance(1e-10), rounds=50_000)
        for cluster in found.clusters:
            w = run.models.w[cluster.nodes]
            assert np.abs(w - w[0]).max() <= 1e-6 * np.abs(w).max()
            assert coupling.value(w - cluster.minimiser).max() <= cluster.deviation * (1 + 1e-6) + 1e-8


def table_one(seed):
    rng = np.random.default_rng(seed)
    graph, planted = graphs.stochastic_block([100, 100], 0.5, 0.01, seed=seed)
    truth = rng.choice([0.0, 0.5], size=(2, 100))
    rows = [rng.normal(size=(10, 100)) for _ in planted]
    return Network(
        graph, [(X, X @ truth[c] + 1e-3 * rng.normal(size=10)) for X, c in zip(rows, planted, strict=True)]
    ), planted


@norms
def test_on_the_graph_of_table_one_no_lam_is_guaranteed(coupling):
    for seed in (0, 1, 7):
        network, planted = table_one(seed)
        found = guaranteed_recovery(network, planted, 1e-2, Squared("sum"), coupling)
        assert found.lam_above is None
        assert "for no λ" in str(found)
        assert "sufficient, not necessary" in str(found)
        for cluster in found.clusters:
            # All nodes but i_0, whatever λ is: far more is asked than the edges of any i_0 have.
            fixed = cluster.beta * cluster.boundary / cluster.alpha
            assert fixed.sum() - fixed.max() > 2_600
            assert network.graph.degrees[cluster.nodes].max() < 80
            assert cluster.cut.asked > cluster.cut.available


def test_a_single_cluster():
    network, planted = planted_network(3)
    network = network.with_graph(graphs.star(11))
    found = guaranteed_recovery(network, np.zeros(11), 1.0)
    (cluster,) = found.clusters
    assert cluster.boundary == 0
    assert cluster.deviation == 0
    assert found.single_cluster_lam == pytest.approx(cluster.delta.sum())
    # On a star with the centre as i_0, (35) asks λ > max δ_i over the leaves: (38) is cruder.
    assert found.lam_above <= found.single_cluster_lam
    assert found.lam_above == pytest.approx(np.sort(cluster.delta[1:])[-1], rel=1e-8)
    assert constant_above(network).upper <= found.lam_above * (1 + 1e-8)
    assert guaranteed_recovery(network, planted, 1.0).single_cluster_lam is None


def test_lone_nodes_and_clusters_in_pieces():
    x = np.ones((1, 1))
    network = Network(graphs.edgeless(3), [(x, [1.0]), (x, [2.0]), None])
    alone = guaranteed_recovery(network, ["a", "b", "c"], 0.5)
    assert alone.guaranteed
    assert alone.lam_above == 0
    in_pieces = guaranteed_recovery(network, ["a", "a", "b"], 0.5)
    assert in_pieces.lam_above is None
    assert not in_pieces.guaranteed
    assert constant_above(network) == constant_above(network, coupling=AbsoluteNorm())
    assert constant_above(network).upper == 0


def test_without_strong_convexity_there_is_no_guarantee():
    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(6, 2)), rng.integers(0, 2, size=6).astype(float)) for _ in range(6)]
    network = Network(graphs.chain(6), data)
    plain = guaranteed_recovery(network, [0, 0, 0, 1, 1, 1], 1.0, Logistic())
    assert plain.lam_above is None
    assert "strongly convex" in str(plain)
    assert guaranteed_recovery(network, [0] * 6, 1.0, Logistic()).lam_above is not None
    ridged = guaranteed_recovery(network, [0, 0, 0, 1, 1, 1], 1.0, Logistic(ridge=0.5))
    assert ridged.clusters[0].alpha == pytest.approx(1.5)


def test_constants_in_the_absolute_norm_are_safe():
    network, planted = planted_network(1, width=4)
    found = guaranteed_recovery(network, planted, 1.0, coupling=AbsoluteNorm())
    losses = network.site.local_losses(Squared())
    hessians = losses.hessian(np.zeros((11, 4)))
    v = np.random.default_rng(0).normal(size=(2_000, 4))
    v /= np.abs(v).sum(axis=1)[:, None]
    for cluster in found.clusters:
        of_sum = hessians[cluster.nodes].sum(axis=0)
        assert 0 < cluster.alpha <= np.einsum("ri,ij,rj->r", v, of_sum, v).min()
        assert cluster.beta == pytest.approx(np.abs(hessians[cluster.nodes]).max(axis=(1, 2)))


@norms
@pytest.mark.parametrize("seed", range(8))
def test_constant_above_agrees_with_cvxpy(seed, coupling):
    rng = np.random.default_rng(seed)
    graph, _ = graphs.stochastic_block([7, 6], 0.5, 0.2 * (seed % 2), seed=seed)
    ends = np.stack([graph.head, graph.tail], axis=1)
    graph = Graph(13, ends, 10.0 ** rng.uniform(-3, 3, len(ends)))
    width = 1 + seed % 3
    network = Network(graph, [None] + [(rng.normal(size=(3, width)), rng.normal(size=3)) for _ in range(12)])
    losses, component = network.site.local_losses(Squared()), graph.components
    g = losses.gradient(losses.pool(component, component.max() + 1).minimise()[component])
    u, lam = cvxpy.Variable((len(ends), width)), cvxpy.Variable()
    dual = 2 if isinstance(coupling, EuclideanNorm) else "inf"
    shares = cvxpy.multiply(1 / graph.weights, cvxpy.norm(u, dual, axis=1))
    problem = cvxpy.Problem(cvxpy.Minimize(lam), [network.site.incidence.toarray() @ u == -g, shares <= lam])
    problem.solve(solver=cvxpy.CLARABEL)
    found = constant_above(network, coupling=coupling)
    assert found.lower <= problem.value * (1 + 1e-5)
    assert found.upper >= problem.value * (1 - 1e-5)
    assert found.upper <= found.lower * 1.01
    assert found.exact or (width > 1 and isinstance(coupling, EuclideanNorm))


@norms
def test_solutions_turn_constant_where_it_says(coupling):
    network, _ = planted_network(5, p_out=0.3, weights=False)
    found = constant_above(network, coupling=coupling)

    def spread(lam):
        run = fit(network, GTVMin(Squared(), coupling, lam), stop=Tolerance(1e-10), rounds=50_000)
        return np.abs(run.models.w - run.models.w[0]).max()

    assert spread(1.01 * found.upper) <= 1e-6
    assert spread(0.97 * found.lower) >= 1e-3


def test_flows_are_exact_where_floats_tie():
    # 0.1 + 0.2 > 0.3 in floats: equality to the last bit is a violation, a hair more is not.
    head, tail = np.array([0, 1]), np.array([2, 2])
    capacity = np.array([0.1, 0.2])
    everyone, taken = np.array([True, True, False]), np.array([0.0, 0.0, 1.0])
    assert undeliverable(head, tail, capacity, np.array([0.1, 0.2, 0.0]), taken, everyone) is not None
    assert undeliverable(head, tail, capacity, np.array([0.1, 0.2, 0.0]) * (1 - 1e-15), taken, everyone) is None


@pytest.mark.parametrize("seed", range(5))
def test_flows_agree_with_brute_force_over_six_decades(seed):
    rng = np.random.default_rng(seed)
    graph = graphs.complete(9)
    capacity = 10.0 ** rng.uniform(-3, 3, graph.edge_count)
    subsets = ((np.arange(1, 2**8)[:, None] >> np.arange(9)) & 1).astype(bool)
    crossing = subsets[:, graph.head] != subsets[:, graph.tail]
    supply = 10.0 ** rng.uniform(-3, 3, 9) * (np.arange(9) < 8)
    most = (subsets @ supply / (crossing @ capacity)).max()
    everyone, taken = np.arange(9) < 8, np.where(np.arange(9) == 8, 1e5, 0.0)
    for factor, fits in ((1 - 1e-12, True), (1 + 1e-12, False)):
        within = undeliverable(graph.head, graph.tail, capacity, factor * supply / most, taken, everyone)
        assert (within is None) == fits


# ---------------------------------------------------------------------- clusters found


def same_partition(a, b):
    return len({*zip(a, b, strict=True)}) == len({*a}) == len({*b})


@norms
@pytest.mark.parametrize("accuracy", [1e-4, 1e-8])
def test_planted_clusters_are_found(coupling, accuracy):
    for seed in range(4):
        network, planted = planted_network(seed, sizes=(12, 10, 8), p_out=0.05)
        run = fit(network, GTVMin(Squared(), coupling, 0.5), stop=Tolerance(accuracy), rounds=50_000)
        assert same_partition(found_clusters(run), planted)


def test_clusters_that_differ_less_than_the_tolerance_are_kept_apart_by_the_flow():
    x = np.ones((1, 1))
    network = Network(graphs.chain(4), [(x, [1000.0]), (x, [1000.0]), (x, [1000.3]), (x, [1000.3])])
    run = fit(network, GTVMin(lam=0.05), stop=Tolerance(1e-10))
    assert found_clusters(run).tolist() == [0, 0, 1, 1]


def test_clusters_of_other_couplings_and_of_no_coupling():
    network, planted = planted_network(0, weights=True, noise=0.01)
    similar = fit(network, GTVMin(coupling=SquaredNorm(), lam=2.0, steps="direct"), rounds=1)
    assert same_partition(found_clusters(similar, tolerance=0.1), planted)
    assert len({*found_clusters(similar, tolerance=0.0)}) == 11
    assert len({*found_clusters(fit(network, Pooled()))}) == network.graph.components.max() + 1
    alone = fit(network, GTVMin(lam=0.0))
    assert len({*found_clusters(alone)}) == 11


def test_nodes_without_a_model_stand_alone():
    x = np.ones((1, 1))
    network = Network(Graph(4, [[0, 1], [2, 3]]), [(x, [1.0]), (x, [1.0]), None, None])
    assert found_clusters(fit(network, GTVMin())).tolist() == [0, 0, 1, 2]


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda n: guaranteed_recovery(n, [0] * 11, 0.0),
            "'lam' parameter of guaranteed_recovery must be a number > 0",
        ),
        (lambda n: guaranteed_recovery(n, [0] * 3, 1.0), "Expected the cluster of each of the 11 nodes"),
        (lambda n: guaranteed_recovery(n, [0] * 11, 1.0, coupling=SquaredNorm()), "Expected a coupling among"),
        (lambda n: constant_above(n, coupling=SquaredNorm()), "Expected a coupling among"),
        (lambda n: constant_above(n, Logistic()), "Expected 0 or 1 as labels"),
        (lambda n: found_clusters(fit(n, Pooled()), tolerance=-1.0), "'tolerance' parameter of found_clusters"),
    ],
)
def test_refusals_are_sentences(call, sentence):
    with pytest.raises(InputError, match=sentence):
        call(planted_network(0)[0])
