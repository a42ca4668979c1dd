"""DFL, SCAFFOLD, FedProx and FeSEM: against the pooled optimum, against each other, and against what they promise."""

import numpy as np
import pytest

from kinfolk import (
    DFL,
    IFCA,
    SCAFFOLD,
    FedAvg,
    FedProx,
    FeSEM,
    InProcess,
    InputError,
    Local,
    Logistic,
    Network,
    Pooled,
    Squared,
    Tolerance,
    fit,
    graphs,
)
from kinfolk.algorithms.fesem import Clustering, Manhattan, SquaredEuclidean
from kinfolk.algorithms.ifca import Uniform
from kinfolk.algorithms.local_work import Decay
from kinfolk.engine.protocol import Turn
from kinfolk.testing import check_algorithm, difficult_network

EXACT = {"stop": None, "progress": False, "measure_every": 10_000}


def heterogeneous(nodes=12, features=3, seed=0, rows=10):
    """Nodes that differ in their inputs and in their truth, on a ring with chords."""
    rng = np.random.default_rng(seed)
    ring = [(k, (k + 1) % nodes) for k in range(nodes)]
    chords = [(k, (k + 3) % nodes) for k in range(0, nodes, 3)]
    graph = graphs.Graph(nodes, sorted({tuple(sorted(edge)) for edge in [*ring, *chords]}))
    sets = []
    for _ in range(nodes):
        X = rng.normal(size=(rows, features)) * rng.uniform(0.5, 1.5, features)
        sets.append((X, X @ rng.normal(size=features) + 0.1 * rng.normal(size=rows)))
    return Network(graph, sets)


def ragged(network, least, kinds):
    """The same network with fewer rows at some nodes."""
    nodes = range(network.graph.node_count)
    return Network(network.graph, [tuple(part[: least + k % kinds] for part in network.data[k]) for k in nodes])


def pooled(network, loss=None):
    return fit(network, Pooled(loss or Squared()), progress=False).models.w[0]


def away(run, w):
    return float(np.abs(run.models.w - w).max())


# ---------------------------------------------------------------------- they run everywhere


@pytest.mark.parametrize(
    "algorithm",
    [
        DFL(step_size=0.02),
        DFL(step_size=0.02, local_steps=3, batch=2, mixing="laplacian"),
        DFL(Squared("sum"), step_size=0.002, local_epochs=2, batch=2, mixing="maximum degree"),
        DFL(step_size=0.02, local_steps=3, tracking=True),
        DFL(step_size=Decay(0.05), local_steps=3, batch=2, tracking=True),
        SCAFFOLD(local_steps=3),
        SCAFFOLD(Squared("sum", ridge=0.1), local_epochs=2, batch=3, step_size=0.02),
        FedProx(local_steps=3, batch=2),
        FedProx(Squared("sum"), mu=1.0, local_epochs=2, batch=4),
        FeSEM(model_count=2, local_steps=3),
        FeSEM(model_count=3, lam=0.5, local_start="own", batch=2, local_epochs=1, tailored=True, starts=2),
        FeSEM(model_count=2, distance=Manhattan(), step_size=0.02, warm_up=3),
        FedAvg(batch=2, local_steps=4),
        FedAvg(batch=2, average="gradients"),
    ],
    ids=lambda algorithm: type(algorithm).__name__,
)
def test_runs_everywhere(algorithm):
    check_algorithm(algorithm)


@pytest.mark.parametrize(
    "algorithm",
    [
        DFL(Logistic(), step_size=0.1, batch=2, tracking=True),
        SCAFFOLD(Logistic(ridge=0.1), batch=2, local_steps=3),
        FeSEM(Logistic(ridge=0.1), model_count=2, local_steps=2),
    ],
    ids=lambda algorithm: type(algorithm).__name__,
)
def test_runs_everywhere_with_classes(algorithm):
    check_algorithm(algorithm, difficult_network(classes=True))


# ---------------------------------------------------------------------- DFL


@pytest.mark.parametrize("local_steps", [1, 5])
@pytest.mark.parametrize("mixing", ["metropolis-hastings", "maximum degree", "laplacian"])
def test_gradient_tracking_reaches_the_pooled_optimum_with_a_constant_step(local_steps, mixing):
    network = heterogeneous()
    w = pooled(network)
    tracking = DFL(step_size=0.02, local_steps=local_steps, tracking=True, mixing=mixing)
    run = fit(network, tracking, rounds=4_000, **EXACT)
    assert away(run, w) < 1e-12
    stalled = fit(network, DFL(step_size=0.02, local_steps=local_steps, mixing=mixing), rounds=4_000, **EXACT)
    assert away(stalled, w) > 1e-2
    assert stalled.history["residual"].iloc[-1] < 1e-12  # it has come to rest, elsewhere


def test_gradient_tracking_with_sums_weighs_nodes_by_their_rows():
    network = heterogeneous(rows=6)
    network = Network(
        network.graph,
        [(X[: 2 + k % 5], y[: 2 + k % 5]) for k, (X, y) in enumerate(map(network.data.__getitem__, range(12)))],
    )
    run = fit(network, DFL(Squared("sum"), step_size=0.005, local_steps=2, tracking=True), rounds=6_000, **EXACT)
    assert away(run, pooled(network, Squared("sum"))) < 1e-11


def test_the_mean_tracker_is_the_mean_stored_gradient_whatever_is_lost():
    network, lost = heterogeneous(), InProcess(sites=3, lost=0.2)
    algorithm = DFL(step_size=0.02, local_steps=3, batch=4, tracking=True)
    run = fit(network, algorithm, rounds=50, engine=lost, participation=0.7, **EXACT)
    scale = np.abs(run.state.gradient).max()
    np.testing.assert_allclose(run.state.tracker.mean(axis=0), run.state.gradient.mean(axis=0), atol=1e-12 * scale)
    assert scale > 0.1


def test_lost_messages_and_absent_nodes_do_not_move_the_end_of_gradient_tracking():
    network = heterogeneous()
    lossy = fit(
        network, DFL(step_size=0.01, local_steps=2, tracking=True), rounds=6_000, engine=InProcess(lost=0.2), **EXACT
    )
    assert away(lossy, pooled(network)) < 1e-11


def test_a_graph_that_varies_is_mixed_along_the_edges_that_carry():
    network = heterogeneous()
    names = list(zip(network.graph.head.tolist(), network.graph.tail.tolist(), strict=True))
    algorithm = DFL(step_size=0.01, tracking=True)

    def by_pairs(turn):
        return names[turn % 2 :: 2]

    def by_mask(turn):
        mask = np.zeros(len(names), dtype=bool)
        mask[turn % 2 :: 2] = True
        return mask

    one, other = (fit(network, algorithm, rounds=4_000, edges=edges, **EXACT) for edges in (by_pairs, by_mask))
    np.testing.assert_array_equal(one.models.w, other.models.w)
    assert away(one, pooled(network)) < 1e-11


def test_with_full_mixing_and_one_step_dfl_is_gradient_descent():
    """On a complete graph W = 1/n: every model is the mean of all, then goes down its own gradient."""
    network = heterogeneous().with_graph(graphs.complete(12))
    run = fit(network, DFL(step_size=0.02), rounds=40, **EXACT)
    losses, w = network.site.local_losses(Squared()), np.zeros((12, 3))
    for _ in range(40):
        w = w.mean(axis=0) - 0.02 * losses.gradient(w)
    np.testing.assert_allclose(run.models.w, w, atol=1e-13)


def test_consensus_and_stationarity_are_in_the_history():
    network = heterogeneous()
    run = fit(network, DFL(step_size=0.02, tracking=True), rounds=300, stop=None, progress=False)
    history = run.history
    assert history["consensus"].iloc[0] == 0
    assert history["consensus"].max() > 1e-4
    w = run.models.w
    assert history["consensus"].iloc[-1] == pytest.approx(((w - w.mean(axis=0)) ** 2).sum(axis=1).mean())
    slope = network.site.local_losses(Squared()).gradient(np.tile(w.mean(axis=0), (12, 1))).mean(axis=0)
    assert history["stationarity"].iloc[-1] == pytest.approx((slope**2).sum())
    assert history["stationarity"].iloc[-1] < 1e-6 * history["stationarity"].iloc[0]


def test_every_component_finds_a_model_of_its_own_and_that_is_said():
    ends = [(0, 1), (1, 2), (3, 4), (4, 5)]
    whole = heterogeneous(6)
    network = whole.with_graph(graphs.Graph(6, ends))
    run = fit(network, DFL(step_size=0.03, tracking=True), rounds=4_000, **EXACT)
    for part in ([0, 1, 2], [3, 4, 5]):
        own = Network(graphs.edgeless(3), [network.data[k] for k in part])
        np.testing.assert_allclose(run.models.w[part], np.tile(pooled(own), (3, 1)), atol=1e-12)
    assert run.history["consensus"].iloc[-1] < 1e-20
    assert any("Models agree within each of 2 components only" in note for note in run.notes)


def test_a_matrix_of_ones_own_is_mixed_as_it_is():
    network = heterogeneous()
    given = graphs.mixing_matrix(network.graph, "laplacian")
    options = {"step_size": 0.02, "local_steps": 2}
    named, dense, sparse = (
        fit(network, DFL(**options, mixing=mixing), rounds=20, engine=InProcess(4), **EXACT).models.w
        for mixing in ("laplacian", given.toarray(), given)
    )
    np.testing.assert_allclose(dense, named, atol=1e-14)
    np.testing.assert_array_equal(dense, sparse)


@pytest.mark.parametrize("rule", ["metropolis-hastings", "maximum degree", "laplacian"])
@pytest.mark.parametrize(
    "graph", [graphs.star(7), graphs.chain(5), difficult_network().graph, graphs.edgeless(3)], ids=repr
)
def test_mixing_matrices_are_doubly_stochastic_and_mix(rule, graph):
    matrix = graphs.mixing_matrix(graph, rule).toarray()
    np.testing.assert_allclose(matrix.sum(axis=0), 1, atol=1e-14)
    np.testing.assert_array_equal(matrix, matrix.T)
    assert (matrix >= 0).all()
    assert (np.diagonal(matrix) > 0).all()
    joined = (matrix > 0) & ~np.eye(len(matrix), dtype=bool)
    np.testing.assert_array_equal(joined, graph.to_sparse().toarray() > 0)
    components = int(graph.components.max()) + 1
    assert (np.abs(np.linalg.eigvalsh(matrix)) > 1 - 1e-12).sum() == components


# ---------------------------------------------------------------------- SCAFFOLD and FedProx


def test_scaffold_reaches_the_pooled_optimum_with_a_quarter_present_and_fedavg_does_not():
    network = heterogeneous()
    w, options = pooled(network), {"rounds": 6_000, "participation": 0.25, **EXACT}
    assert away(fit(network, SCAFFOLD(local_steps=5), **options), w) < 1e-12
    assert away(fit(network, SCAFFOLD(local_steps=5, step_size=0.01), **options), w) < 1e-12
    for rival in (FedAvg(local_steps=5), FedProx(local_steps=5, mu=0.1)):
        assert away(fit(network, rival, rounds=3_000, **EXACT), w) > 1e-3


def test_scaffold_with_sums_and_unequal_epochs_is_exact_too():
    network = ragged(heterogeneous(), 3, 7)
    run = fit(network, SCAFFOLD(Squared("sum"), local_epochs=4), rounds=6_000, participation=0.5, **EXACT)
    assert away(run, pooled(network, Squared("sum"))) < 1e-11


@pytest.mark.parametrize("batch", [None, 4])
def test_fedprox_without_a_pull_is_fedavg(batch):
    network, options = heterogeneous(), {"local_steps": 4, "batch": batch}
    one, other = (fit(network, a, rounds=20, **EXACT) for a in (FedProx(mu=0.0, **options), FedAvg(**options)))
    np.testing.assert_array_equal(one.models.w, other.models.w)


def test_fedprox_with_a_strong_pull_and_many_steps_is_the_proximal_point_of_every_node():
    network, mu = heterogeneous(), 3.0
    run = fit(network, FedProx(mu=mu, local_steps=3_000), rounds=1, **EXACT)
    exact = network.site.local_losses(Squared()).prox(np.zeros((12, 3)), np.full(12, 1 / mu)).mean(axis=0)
    np.testing.assert_allclose(run.models.w[0], exact, atol=1e-12)


def test_scaffold_goes_on_from_a_run_of_another_problem_without_its_corrections():
    network = ragged(heterogeneous(), 3, 7)
    before = fit(network, SCAFFOLD(local_steps=3), rounds=50, **EXACT)
    summed = fit(network, SCAFFOLD(Squared("sum"), local_steps=3), rounds=4_000, start=before, **EXACT)
    assert away(summed, pooled(network, Squared("sum"))) < 1e-11
    hidden = network.hide([0])
    rest = fit(hidden, SCAFFOLD(local_steps=3), rounds=4_000, start=before, **EXACT)
    assert away(rest, pooled(hidden)) < 1e-11


# ---------------------------------------------------------------------- FeSEM


@pytest.mark.parametrize(
    "work",
    [{"local_steps": 5}, {"local_epochs": 2, "batch": 3}, {"local_steps": 3, "optimiser": "Adam", "step_size": 0.01}],
)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_fesem_with_one_centre_and_no_pull_is_fedavg_to_the_last_bit(work, reduction):
    loss, options = Squared(reduction), {"rounds": 25, "participation": 0.5, **EXACT}
    network = difficult_network()
    ours = fit(network, FeSEM(loss, model_count=1, lam=0.0, **work), **options)
    np.testing.assert_array_equal(ours.models.w, fit(network, FedAvg(loss, **work), **options).models.w)


def test_fesem_with_a_growing_pull_and_local_starts_approaches_the_pooled_optimum():
    network = heterogeneous()
    w = pooled(network)
    far = [
        away(fit(network, FeSEM(model_count=1, lam=lam, local_start="own", local_steps=5), rounds=20_000, **EXACT), w)
        for lam in (1.0, 10.0, 100.0)
    ]
    assert far[0] > 3 * far[1] > 9 * far[2]
    assert far[2] < 0.01


def test_fesem_with_a_centre_for_every_node_is_local_training():
    network = heterogeneous()
    run = fit(network, FeSEM(model_count=12, lam=0.5, local_steps=5), rounds=2_000, **EXACT)
    np.testing.assert_allclose(run.models.w, fit(network, Local(), rounds=0).models.w, atol=1e-10)
    assert run.history["empty"].iloc[-1] == 0


def two_kinds(seed, nodes=20):
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=(2, 4)) * 2
    sets = []
    for k in range(nodes):
        X = rng.normal(size=(8, 4))
        sets.append((X, X @ truth[k % 2] + 0.1 * rng.normal(size=8)))
    return Network(graphs.edgeless(nodes), sets), truth


@pytest.mark.parametrize("distance", [SquaredEuclidean(), Manhattan()], ids=repr)
def test_fesem_finds_two_kinds_of_nodes(distance):
    for seed in range(5):
        network, truth = two_kinds(seed)
        run = fit(network, FeSEM(model_count=2, distance=distance, step_size=0.05, local_steps=5), rounds=200, **EXACT)
        assert np.abs(run.models.w - truth[np.arange(20) % 2]).max() < 0.3
        assert run.history["empty"].iloc[-1] == 0


def test_fesem_says_how_many_centres_are_empty():
    network, _ = two_kinds(0)
    run = fit(network, FeSEM(model_count=3, warm_up=0), rounds=5, **EXACT)  # from equal starts all are in one
    assert run.history["empty"].iloc[-1] == 2
    assert np.isfinite(run.models.w).all()


def test_fesem_counts_members_whoever_was_present_last():
    network, _ = two_kinds(0)
    sets = [*map(network.data.__getitem__, range(20)), None]
    network = Network(graphs.edgeless(21), sets)
    minority = [1, 3]  # the last round is theirs
    more = [k for k in range(20) if k % 2 == 0 or k in minority]
    network = Network(network.graph, [network.data[k] if k in more else None for k in range(21)])

    def present(round_):
        return minority if round_ == 30 else [*more, 20]

    run = fit(network, FeSEM(model_count=2, local_steps=3), rounds=30, participation=present, **EXACT)
    assert run.history["empty"].iloc[-1] == 0
    np.testing.assert_array_equal(run.models.w[20], run.models.w[0])  # without data: the centre with most members
    assert np.abs(run.models.w[20] - run.models.w[1]).max() > 0.1


@pytest.mark.parametrize("algorithm", [FeSEM(model_count=2), IFCA(model_count=2, initial=Uniform(-1.0, 1.0))], ids=repr)
def test_a_round_of_nodes_without_data_is_no_convergence(algorithm):
    network, _ = two_kinds(0)
    network = Network(graphs.edgeless(21), [*map(network.data.__getitem__, range(20)), None])
    run = fit(network, algorithm, rounds=6, participation=lambda k: [20] if k == 3 else range(20), progress=False)
    assert run.rounds == 6


def test_e_and_m_steps_lower_what_they_minimise():
    rng = np.random.default_rng(0)
    models, share = rng.normal(size=(30, 4)), rng.integers(1, 9, 30).astype(float)
    for distance in (SquaredEuclidean(), Manhattan()):
        clustering = Clustering(distance, 4, models, share)
        centres, before = models[:3], np.inf
        for _ in range(6):
            cluster = clustering.nearest(centres)
            assert (share * clustering.distances(centres).min(axis=1)).sum() <= before
            centres = clustering.centres(cluster, centres)
            cost = float((share * clustering.distances(centres)[np.arange(30), cluster]).sum())
            assert cost <= before
            before = cost
            for k in range(3):  # no centre near it is better
                own = cluster == k
                for step in 1e-3 * rng.normal(size=(5, 4)):
                    near = (share[own] * distance.value(models[own] - centres[k] - step)).sum()
                    assert near >= (share[own] * distance.value(models[own] - centres[k])).sum() - 1e-12


def test_the_tailored_model_of_fesem_lies_between_the_centre_and_the_own_minimiser():
    network, _ = two_kinds(1)
    options = {"model_count": 2, "lam": 0.5, "local_steps": 200}
    centre, own = (fit(network, FeSEM(**options, tailored=t), rounds=30, **EXACT).models.w for t in (False, True))
    exact = network.site.local_losses(Squared()).prox(centre, np.full(20, 1.0))  # λ‖·‖² = ‖·‖² / 2τ with τ = 1
    np.testing.assert_allclose(own, exact, atol=1e-6)


# ---------------------------------------------------------------------- local work


def test_full_batches_and_a_batch_as_large_as_all_rows_are_the_same():
    network = heterogeneous()
    whole, large = (fit(network, FedAvg(local_steps=3, step_size=0.05, batch=b), rounds=5, **EXACT) for b in (None, 10))
    np.testing.assert_array_equal(whole.models.w, large.models.w)


def test_an_epoch_of_batches_takes_every_row_once():
    """With steps so short that gradients hardly change, an epoch moves as far as one full step for every batch."""
    network, tiny = heterogeneous(rows=12), 1e-7
    epoch = fit(network, FedAvg(local_epochs=1, batch=4, step_size=tiny), rounds=1, **EXACT).models.w
    slope = network.site.local_losses(Squared()).gradient(np.zeros((12, 3)))
    np.testing.assert_allclose(epoch[0], -3 * tiny * slope.mean(axis=0), rtol=1e-5)


def steps_of(algorithm, network, round_=1, seed=0):
    """The rows of every step of a round."""
    turn = Turn(round_, np.arange(network.graph.node_count), seed)
    losses = network.site.local_losses(algorithm.loss)
    drawn = algorithm.plan(losses).draw(turn.keys(network.site.nodes, "batch"), losses.starts)
    return [drawn.batch(k) for k in range(int(drawn.plan.steps.max()))]


def test_batches_of_an_epoch_are_nearly_equal_and_hold_every_row():
    sizes = (11, 0, 3)
    network = Network(graphs.edgeless(3), [(np.ones((m, 1)), np.ones(m)) if m else None for m in sizes])
    steps = steps_of(FedAvg(local_epochs=2, batch=4), network)
    assert [np.diff(starts).tolist() for _, starts in steps] == [
        [3, 0, 3],
        [4, 0, 3],
        [4, 0, 0],
        *[[3, 0, 0], [4, 0, 0], [4, 0, 0]],
    ]
    for first in (0, 3):
        taken = [row for rows, starts in steps[first : first + 3] for row in rows[: starts[1]]]
        assert sorted(taken) == list(range(11))
    assert [rows[starts[2] :].tolist() for rows, starts in steps[:2]] == [
        [11, 12, 13]
    ] * 2  # all of them, in their order


def test_batches_of_steps_have_one_size_and_no_row_twice():
    network = Network(graphs.edgeless(2), [(np.ones((m, 1)), np.ones(m)) for m in (11, 3)])
    steps = steps_of(FedAvg(local_steps=5, batch=4), network)
    assert [np.diff(starts).tolist() for _, starts in steps] == [[4, 3]] * 5
    for first in (0, 2):  # two batches make a pass, and three rows of it are left out
        taken = np.concatenate([rows[:4] for rows, _ in steps[first : first + 2]])
        assert len(set(taken.tolist())) == 8
        assert taken.max() < 11


def test_draws_are_even_and_keyed():
    network = Network(graphs.edgeless(60_000), [(np.ones((4, 1)), np.ones(4))] * 60_000)
    rows = steps_of(FedAvg(batch=2), network, 3, 7)[0][0].reshape(-1, 2)
    pairs = np.bincount(((rows - 4 * np.arange(60_000)[:, None]) @ [4, 1]), minlength=16).reshape(4, 4)
    assert (np.diagonal(pairs) == 0).all()
    expected = 60_000 / 12
    assert (np.abs(pairs[~np.eye(4, dtype=bool)] - expected) < 5 * np.sqrt(expected)).all()
    turn, nodes = Turn(3, np.arange(1), 7), np.arange(60_000)
    assert len(np.unique(np.concatenate([turn.keys(nodes), turn.keys(nodes, "batch")]))) == 120_000


def test_batches_are_unbiased():
    network = heterogeneous(rows=9)
    one_step = [
        fit(network, FedAvg(batch=3, step_size=0.1), rounds=1, seed=seed, **EXACT).models.w[0] for seed in range(400)
    ]
    exact = -0.1 * network.site.local_losses(Squared()).gradient(np.zeros((12, 3))).mean(axis=0)
    spread = np.std(one_step, axis=0) / np.sqrt(400)
    assert (np.abs(np.mean(one_step, axis=0) - exact) < 4 * spread).all()
    assert (spread > 0).all()


def test_a_schedule_counts_local_steps():
    seen = []

    def schedule(t):
        seen.append(t)
        return 0.01

    fit(heterogeneous(), FedAvg(local_steps=3, step_size=schedule), rounds=2, **EXACT)
    assert [t for t in seen if t >= 0][-6:] == [0, 1, 2, 3, 4, 5]


def test_work_that_diverges_ends_the_run_with_the_last_good_state():
    network = heterogeneous()
    for algorithm in (FedAvg(step_size=1e200, local_steps=3), DFL(step_size=1e200, local_steps=3, tracking=True)):
        with np.errstate(all="ignore"):
            run = fit(network, algorithm, rounds=10, progress=False)
        assert "diverged in round" in run.stopped
        assert "take a smaller step_size" in run.stopped
        assert "node 0" in run.stopped
        assert np.isfinite(run.models.w).all()


def test_a_schedule_that_fails_later_keeps_the_rounds_made():
    listed = [0.01] * 6
    run = fit(heterogeneous(), FedAvg(local_steps=2, step_size=listed.__getitem__), rounds=10, **EXACT)
    assert run.rounds == 3
    assert "stopped before round 4: Expected a step size for step 6" in run.stopped
    assert np.isfinite(run.models.w).all()


def test_a_step_that_is_a_little_too_long_is_noticed_before_nothing_is_left():
    run = fit(heterogeneous(), DFL(step_size=1.0), rounds=3_000, stop=None, progress=False)
    assert "diverged in round" in run.stopped
    assert np.abs(run.models.w).max() < 1e30


def test_nodes_without_data_are_not_moved_by_an_optimiser():
    network = difficult_network()
    adam = DFL(step_size=0.05, optimiser="AdamW", local_steps=3)
    run = fit(network, adam, rounds=30, **EXACT)
    isolated = np.flatnonzero((network.graph.degrees == 0) | ~network.informed)
    empty = isolated[network.data.sizes[isolated] == 0]
    assert len(empty)
    np.testing.assert_array_equal(run.models.w[empty], 0)


def test_a_class_is_as_good_as_its_name_and_any_whole_number_a_seed():
    torch = pytest.importorskip("torch")
    network, options = heterogeneous(), {"rounds": 3, **EXACT}
    named, given = (fit(network, SCAFFOLD(batch=3, optimiser=o), **options) for o in ("SGD", torch.optim.SGD))
    np.testing.assert_array_equal(named.models.w, given.models.w)
    one, other = (fit(network, FedAvg(batch=3), seed=seed, **options).models.w for seed in (3, np.int64(3)))
    np.testing.assert_array_equal(one, other)


def test_an_optimiser_is_used_or_refused():
    network = heterogeneous()
    plain = fit(network, FedAvg(local_steps=3, step_size=0.05), rounds=5, **EXACT).models.w
    adam = fit(network, FedAvg(local_steps=3, step_size=0.05, optimiser="Adam"), rounds=5, **EXACT).models.w
    assert np.abs(plain - adam).max() > 1e-3
    for refuses in (SCAFFOLD, DFL):
        options = {"tracking": True} if refuses is DFL else {}
        with pytest.raises(InputError, match="Expected plain descent"):
            fit(network, refuses(step_size=0.05, optimiser="Adam", **options), rounds=1)


# ---------------------------------------------------------------------- bad input

CHAIN = graphs.chain(3)
EVERYBODY = np.full((3, 3), 1 / 3)


@pytest.mark.parametrize(
    ("algorithm", "sentence"),
    [
        (FeSEM(model_count=4), r"at most as many models as nodes with data \(3\) for FeSEM, got model_count=4"),
        (FeSEM(model_count=2, distance=Manhattan()), "must be a number > 0 for Manhattan, which has kinks"),
        (FedAvg(local_steps=0), "The 'local_steps' parameter of FedAvg must be a whole number ≥ 1. Got 0 instead"),
        (DFL(step_size=0.1, local_steps=0), "The 'local_steps' parameter of DFL must be a whole number ≥ 1"),
        (DFL(), "The 'step_size' parameter of DFL must be a number > 0, or a function. Got None"),
        (DFL(step_size=-1.0), "The 'step_size' parameter of DFL must be a number > 0. Got -1.0"),
        (
            DFL(step_size=0.1, mixing="best"),
            "Expected 'metropolis-hastings', 'maximum degree', 'laplacian', or a matrix",
        ),
        (DFL(step_size=0.1, mixing=None), "or a matrix of numbers, for mixing, got None"),
        (DFL(step_size=0.1, mixing=np.zeros((3, 3))), "doubly stochastic .* sums to 0"),
        (DFL(step_size=lambda t: 15 / t**0.5), "Expected a step size for step 0 from .*, got: float division by zero"),
        (DFL(step_size=lambda t: -1.0), "Expected step sizes > 0 from .*, got -1 for step 0"),
        (DFL(step_size=0.1, mixing=np.eye(2)), r"for 3 nodes, got shape \(2, 2\)"),
        (DFL(step_size=0.1, mixing=2 * np.eye(3)), "doubly stochastic .* row of 0 that sums to 2"),
        (DFL(step_size=0.1, mixing=[[2, -1, 0], [-1, 3, -1], [0, -1, 2]]), "doubly stochastic .* smallest entry of -1"),
        (DFL(step_size=0.1, mixing=np.roll(np.eye(3), 1, axis=0)), "symmetric .*: directed graphs cannot be mixed"),
        (DFL(step_size=0.1, mixing=EVERYBODY), "a weight between 0 and 2, which it does not join"),
        (DFL(step_size=0.1, tracking=True, local_epochs=1, batch=1), "trackers need equally many steps"),
        (FedAvg(local_steps=2, local_epochs=2), "Expected either local_steps or local_epochs for FedAvg"),
        (FedAvg(average="gradients", local_steps=2), "Expected one gradient in a round"),
        (FedAvg(optimiser="Adam"), "must be a number > 0 for another optimiser than plain descent"),
        (FedAvg(optimiser="LBFGS", step_size=0.1), "Expected an optimiser that steps after a gradient, got 'LBFGS'"),
        (FedAvg(optimiser="Adan", step_size=0.1), "must be a class in torch.optim, or the name of one. Got 'Adan'"),
        (FedProx(mu=-1.0), "The 'mu' parameter of FedProx must be a number ≥ 0"),
        (FedProx(average="gradients"), "Expected average='models' for FedProx"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_work_is_refused_in_a_sentence(algorithm, sentence):
    network = Network(CHAIN, [([[1.0], [2.0]], [1.0, 2.0])] * 3)
    with pytest.raises(InputError, match=sentence):
        fit(network, algorithm, rounds=1)


@pytest.mark.parametrize(
    ("edges", "sentence"),
    [
        (lambda _: [("a", "c")], "got one between 'a' and 'c', which it does not join"),
        (lambda _: [("a", "x")], "got unknown 'x'"),
        (lambda _: ["ab"], "Expected pairs of names of nodes as edges in round 1, got 'ab'"),
        (lambda _: None, "Expected a mask of edges, or pairs of names of nodes, for round 1, got None"),
        (lambda _: [True], r"Expected True or False for each of 2 edges in round 1, got bool of shape \(1,\)"),
        (lambda _: np.ones(2), "Expected True or False for each of 2 edges in round 1, got float64"),
    ],
)
def test_a_mask_of_unknown_edges_is_refused_before_any_work(edges, sentence):
    graph = graphs.Graph(3, CHAIN.to_frame()[["head", "tail"]].to_numpy(), names=["a", "b", "c"])
    network = Network(graph, [([[1.0]], [1.0])] * 3)
    rows = []
    with pytest.raises(InputError, match=sentence):
        fit(network, DFL(step_size=0.1), rounds=1, edges=edges, callbacks=[lambda row, _: rows.append(row)])
    assert rows == []


def test_a_directed_graph_is_refused():
    import networkx

    with pytest.raises(InputError, match="Expected an undirected graph"):
        graphs.Graph.from_networkx(networkx.DiGraph([(0, 1)]))


def test_stop_rules_see_when_tracking_has_converged():
    run = fit(heterogeneous(), DFL(step_size=0.02, tracking=True), stop=Tolerance(1e-10), progress=False)
    assert run.stopped.startswith("converged")
    assert away(run, pooled(run.network)) < 1e-8
