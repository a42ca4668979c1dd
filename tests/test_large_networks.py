"""GTV minimisation on large networks: the proof with repaired dual variables, the common start, and memory."""

import tracemalloc
from unittest import mock

import numpy as np
import pytest

from kinfolk import AbsoluteNorm, EuclideanNorm, GTVMin, Logistic, Network, Squared, Tolerance, fit, graphs
from kinfolk.algorithms.gtvmin import borrowing, certificate, duals, warm_start
from kinfolk.algorithms.gtvmin.duals import Duals
from kinfolk.algorithms.gtvmin.instance import Instance
from kinfolk.algorithms.gtvmin.repair import Trees
from kinfolk.engine.protocol import Turn
from kinfolk.engine.reordering import in_order_in_place
from kinfolk.network.data import Data
from kinfolk.network.site import Site, ordered_site
from kinfolk.objective.couplings import MaximumNorm
from kinfolk.objective.losses import Huber, SquaredDistance

LARGEST_PEAK = 2.8  # times the state of a run, at any time of it; a second copy of the flows makes it more


def spatial(count: int, features: int = 3, classes: bool = False) -> Network:
    """Points in the plane with one sample each."""
    rng = np.random.default_rng(7)
    graph = graphs.knn(rng.random((count, 2)), 5)
    X = rng.normal(size=(count, features))
    y = X[:, 0] + 0.3 * rng.normal(size=count)
    return Network(graph, Data(X, (y > 0).astype(float) if classes else y, np.arange(count + 1)))


class OnlyRounds(GTVMin):
    """Without a finish, which networks that are larger still do not have."""

    def finish(self, site, state, inbox, effort):
        return None


def instance(site: Site, algorithm: GTVMin) -> Instance:
    losses = site.local_losses(algorithm.loss).with_duals
    return Instance(site, losses, algorithm.coupling, algorithm.lam * site.weights)


@pytest.mark.parametrize("loss", [Squared(), Squared(ridge=0.1), SquaredDistance(), Logistic()], ids=repr)
def test_repaired_dual_variables_balance_exactly(loss):
    network = spatial(150, classes=isinstance(loss, Logistic))
    problem = instance(network.site, GTVMin(loss, lam=0.1))
    rng = np.random.default_rng(0)
    w = rng.normal(size=(150, 3))
    u = 0.01 * rng.normal(size=(len(problem.weights), 3))
    before = Duals(problem.losses.dual(w), problem.losses.ridge * w, u.copy(), w)
    missed = np.linalg.norm(before.violation(problem), axis=1)
    after = Trees.of(problem, u).repaired(before)
    assert np.abs(after.violation(problem)).max() <= 1e-12 * missed.max()
    assert np.linalg.norm(after.u - u, axis=1).max() <= missed.sum()  # what flows is what was missing
    assert missed.max() > 0.1


@pytest.mark.parametrize("loss", [Squared(), Squared(intercept=True), SquaredDistance(), Logistic()], ids=repr)
def test_the_gram_matrices_of_groups_are_those_of_pooled_losses(loss):
    losses = spatial(60, classes=isinstance(loss, Logistic)).site.local_losses(loss)
    rng = np.random.default_rng(0)
    group, factor = rng.integers(0, 7, 60), rng.random(losses.y.shape)
    order = np.argsort(group[losses.owner], kind="stable")
    np.testing.assert_allclose(
        losses.group_gram(factor, group, 7), losses.pool(group, 7).gram(factor[order]), rtol=1e-13, atol=1e-13
    )


@pytest.mark.parametrize(("size", "kind"), [(1.0, np.float32), (1e-30, np.float64), (1e30, np.float64)])
def test_a_rough_solve_takes_32_bits_where_they_can_hold_it(size, kind):
    problem = instance(spatial(150).site, GTVMin(lam=0.1))
    rng = np.random.default_rng(0)
    w, rhs = rng.normal(size=(150, 3)), size * rng.normal(size=(150, 3))
    u = rng.normal(size=(len(problem.weights), 3))
    u *= problem.weights[:, None] / np.linalg.norm(u, axis=1, keepdims=True)  # on the border of the balls
    curvature = problem.losses.elasticity(w, problem.losses.dual(w))
    elasticity = duals._Elasticity(problem, duals.stiffness_at(problem, w), u)
    x = duals._iterative_solver(problem, curvature, elasticity, 0.01)(rhs.copy())
    assert x.dtype == kind
    exact = problem.site.divergence(elasticity.flow(problem.difference(x.astype(np.float64))))
    problem.losses.add_curved(exact, curvature, x.astype(np.float64))
    diagonal = problem.losses.gram_diagonal(curvature) + elasticity.diagonal(3)
    left, before = (np.sqrt((each**2 / diagonal).sum()) for each in (exact - rhs, rhs))
    assert 0 < left <= 0.0101 * before


def test_the_numbers_of_a_large_site_are_short_and_those_of_the_graph():
    network = spatial(300)
    site, graph = ordered_site(network), network.graph
    assert site.head.dtype == site.tail.dtype == site.edges.dtype == np.int32
    np.testing.assert_array_equal(site.nodes[site.head], graph.head[site.edges])
    np.testing.assert_array_equal(site.nodes[site.tail], graph.tail[site.edges])
    np.testing.assert_array_equal(np.sort(site.edges), np.arange(graph.edge_count))


def test_a_tree_holds_enough_samples_and_not_many_more():
    problem = instance(spatial(600).site, GTVMin(lam=0.1))
    trees = Trees.of(problem, np.zeros((len(problem.weights), 3)))
    sizes = np.bincount(trees.group)
    assert sizes.min() >= 6
    assert sizes.max() <= 24
    assert trees.degree.sum() == 2 * (600 - len(sizes))  # as many edges as trees have


@pytest.mark.parametrize(
    ("loss", "coupling"),
    [
        (Squared(), EuclideanNorm()),
        (Squared(), AbsoluteNorm()),
        (Squared(), MaximumNorm()),
        (Squared(ridge=0.1), EuclideanNorm()),
        (Huber(delta=0.1), EuclideanNorm()),
        (Logistic(), EuclideanNorm()),
        (SquaredDistance(), EuclideanNorm()),
    ],
    ids=repr,
)
def test_the_proof_for_large_networks_is_sound_and_nearly_as_sharp_as_the_residual(loss, coupling):
    network, algorithm = spatial(150, classes=isinstance(loss, Logistic)), GTVMin(loss, coupling, lam=0.05)
    best = fit(network, algorithm, progress=False).certificate
    assert best.relative <= 1e-6
    for rounds in (60, 200) if loss.smooth and not isinstance(loss, Logistic) else (200,):
        with mock.patch.object(certificate, "LARGE", 0), mock.patch.object(duals, "DIRECT_COST", 0.0):
            rough = fit(network, algorithm, rounds=rounds, stop=None, progress=False).certificate
        truth = rough.objective - best.objective
        assert rough.bound >= truth - best.bound
        assert rough.relative <= max(3 * truth / rough.scale, 10 * rough.residual, certificate.SHARP_ENOUGH)


def test_a_proof_ends_where_it_is_enough():
    network, algorithm = spatial(150), GTVMin(lam=0.05)
    run = fit(network, algorithm, rounds=200, stop=None, progress=False)
    inbox = run.snapshot.inbox(network.site.nodes)
    with mock.patch.object(certificate, "LARGE", 0), mock.patch.object(duals, "DIRECT_COST", 0.0):
        sharp = algorithm.certify(network.site, run.state, inbox)
        enough = algorithm.certify(network.site, run.state, inbox, 0.1)
    assert sharp.relative <= enough.relative <= 0.1


def test_a_large_network_starts_from_a_common_model_and_is_proven():
    network = spatial(12_000)
    start = GTVMin(lam=0.1).init(network.site, Turn(0, np.arange(12_000), 0))[0].w
    assert (start == start[0]).all()
    np.testing.assert_allclose(start[0], np.linalg.lstsq(network.data.X, network.data.y)[0], rtol=1e-8)
    runs = [fit(network, OnlyRounds(lam=0.1), stop=Tolerance(each, each), progress=False) for each in (1e-2, 1e-3)]
    rough, sharp = (run.certificate for run in runs)
    assert rough.relative <= 1e-2
    assert sharp.relative <= 1e-3
    assert rough.objective - rough.bound <= sharp.objective <= rough.objective  # the proofs agree
    with mock.patch.object(warm_start, "LARGE", 20_000):
        from_zero = fit(network, OnlyRounds(lam=0.1), stop=Tolerance(1e-3, 1e-3), progress=False)
    assert runs[1].rounds < from_zero.rounds
    assert from_zero.certificate.objective == pytest.approx(sharp.objective, rel=2e-3)


@pytest.mark.parametrize("lam", [1e-25, 1e25])
def test_numbers_that_32_bits_cannot_hold_spoil_no_proof(lam):
    network = spatial(150)
    scaled = Network(network.graph, Data(network.data.X, lam * network.data.y, network.data.starts))
    algorithm = GTVMin(lam=0.05 * lam)
    run = fit(scaled, algorithm, rounds=200, stop=None, progress=False)
    with mock.patch.object(certificate, "LARGE", 0), mock.patch.object(duals, "DIRECT_COST", 0.0):
        found = algorithm.certify(scaled.site, run.state, run.snapshot.inbox(scaled.site.nodes))
    assert found.relative <= 1e-3


class FullDisk:
    """A file that has no room."""

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def write(self, content):
        raise OSError("no space left on device")


def no_folder(**options):
    raise FileNotFoundError("no usable temporary directory")


@pytest.mark.parametrize("disk", [None, lambda **options: FullDisk(), no_folder])
def test_what_lay_in_borrowed_memory_comes_back(disk, monkeypatch):
    lent = disk is None
    if not lent:
        monkeypatch.setattr(borrowing.tempfile, "TemporaryFile", disk)
    numbers = np.random.default_rng(0).normal(size=(70, 3))
    before = numbers.copy()

    def fail():
        with borrowing.borrowed(numbers) as scratch:
            assert (scratch is numbers) == lent
            scratch[:] = 0.0
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    np.testing.assert_array_equal(numbers, before)


def test_arrays_that_may_not_be_overwritten_are_copied():
    fixed = np.zeros((4, 2))
    fixed.flags.writeable = False
    for array in (fixed, np.zeros((4, 4))[:, ::2], np.zeros((0, 2))):
        with borrowing.borrowed(array) as scratch:
            np.testing.assert_array_equal(scratch, array)
            assert scratch is not array


def test_a_proof_leaves_the_state_as_it_was():
    network, algorithm = spatial(150), GTVMin(lam=0.05)
    run = fit(network, algorithm, rounds=60, stop=None, progress=False)
    before = [field.copy() for field in run.state]
    with mock.patch.object(certificate, "LARGE", 0), mock.patch.object(duals, "DIRECT_COST", 0.0):
        algorithm.certify(network.site, run.state, run.snapshot.inbox(network.site.nodes))
    for field, copied in zip(run.state, before, strict=True):
        np.testing.assert_array_equal(field, copied)


def test_arrays_are_put_in_order_where_they_lie():
    rng = np.random.default_rng(0)
    places, rows, other, fixed = rng.permutation(50), *rng.normal(size=(2, 50, 3)), rng.normal(size=(50, 3))
    rows, other = rows.copy(), other.copy()
    fixed.flags.writeable = False
    given = [rows, other, rows, other[:, 1], fixed, rng.integers(0, 9, 50)]
    expected = []
    for each in given:
        expected.append(np.empty_like(each))
        expected[-1][places] = each
    found = in_order_in_place([(each, places) for each in given])
    for each, right in zip(found, expected, strict=True):
        np.testing.assert_array_equal(each, right)
    assert found[0] is found[2] is rows
    assert found[1] is not other  # since another array lies in its memory


def test_the_last_state_of_a_large_network_is_in_the_order_of_the_network():
    network, asked = spatial(6_000, features=2), {"rounds": 12, "stop": None, "progress": False}
    snapshots = []
    run = fit(network, GTVMin(lam=0.1), callbacks=[lambda row, snapshot: snapshots.append(snapshot())], **asked)
    for name in ("w", "w_bar", "u", "missed"):
        np.testing.assert_array_equal(getattr(run.state, name), getattr(snapshots[-1].state, name))
    np.testing.assert_array_equal(run.snapshot.sent["w_bar"], snapshots[-1].sent["w_bar"])
    whole = fit(network, GTVMin(lam=0.1), rounds=12, stop=None, start=fit(network, GTVMin(lam=0.1), rounds=0))
    np.testing.assert_array_equal(whole.state.u, run.state.u)


def test_a_fit_and_its_proof_need_little_memory(monkeypatch):
    monkeypatch.setattr(duals, "solves_directly", lambda problem: False)  # as on networks that are larger still
    network, asked = spatial(12_000, features=10), {"stop": Tolerance(1e-2, 1e-2), "progress": False}
    fit(network, OnlyRounds(lam=0.1), **asked)  # compiles what is not compiled
    tracemalloc.start()
    try:
        run = fit(network, OnlyRounds(lam=0.1), **asked)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    numbers = sum(field.size for field in run.state)
    assert peak <= LARGEST_PEAK * 8 * numbers
