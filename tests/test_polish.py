"""Fuse and polish: CVXPY, the residual and the certificate are the oracles; wrong guesses must be found out."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from kinfolk import AbsoluteNorm, EuclideanNorm, GTVMin, InProcess, Logistic, Network, Squared, Tolerance, fit, graphs
from kinfolk.algorithms.gtvmin import certificate, finish
from kinfolk.algorithms.gtvmin.instance import Instance
from kinfolk.algorithms.gtvmin.polish import polish, polish_fused
from kinfolk.algorithms.gtvmin.systems import Elimination
from kinfolk.engine.protocol import Outbox
from kinfolk.engine.selection import path
from kinfolk.objective.losses import Huber, Poisson
from kinfolk.testing import difficult_network
from test_gtvmin import network_for, smallest_objective

LOSSES = [Squared(), Squared("sum", 0.1, True), Logistic("sum", 0.2, True), Huber(delta=0.2), Poisson(ridge=0.1)]
CLUSTERS = np.repeat([0, 1], 20)


@pytest.fixture(scope="module")
def planted() -> Network:
    """Two clusters of 20 nodes with three features, two samples a node."""
    rng = np.random.default_rng(1)
    graph, block = graphs.stochastic_block([20, 20], 0.5, 0.03, seed=1)
    truth = rng.normal(size=(2, 3))
    sets = [(X := rng.normal(size=(2, 3)), X @ truth[k] + 0.05 * rng.normal(size=2)) for k in block]
    return Network(graph, sets)


@dataclass(frozen=True)
class Unpolished(GTVMin):
    """The rounds alone."""

    def finish(self, site, state, reply, effort):
        return None


def problem_of(network: Network, algorithm: GTVMin) -> Instance:
    site = network.site
    return Instance(site, site.local_losses(algorithm.loss), algorithm.coupling, algorithm.lam * site.weights)


def worst_violation(problem: Instance, w, u) -> float:
    """The largest violation of the optimality conditions: balance of flows, balls, and alignment of flow and change."""
    change = problem.difference(w)
    balance = np.abs(problem.losses.gradient(w) + problem.site.divergence(u)).max()
    aligned = np.abs(problem.variation(w) - (u * change).sum(axis=1)).max()
    outside = np.abs(problem.coupling.dual_prox(u, np.ones(len(u)), problem.weights) - u).max()
    return float(max(balance, aligned, outside))


@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
@pytest.mark.parametrize("coupling", [EuclideanNorm(), AbsoluteNorm()], ids=repr)
@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_a_polished_answer_is_the_one_of_cvxpy(loss, coupling):
    network = network_for(loss)
    algorithm = GTVMin(loss, coupling, lam=0.2)
    run = fit(network, algorithm, stop=Tolerance(1e-8))
    residuals = run.history["residual"]
    assert (residuals / residuals.shift()).min() < 0.01  # by a finish, which rounds may follow to 1e-8
    assert run.rounds < fit(network, Unpolished(loss, coupling, lam=0.2), stop=Tolerance(1e-8), rounds=20_000).rounds
    best = smallest_objective(network, algorithm)
    assert abs(run.certificate.objective - best) <= 1e-6 * best
    assert run.certificate.relative <= 1e-6


def test_history_state_models_and_certificate_agree(planted):
    run = fit(planted, GTVMin(lam=0.05))
    last, before = run.history.iloc[-1], run.history.iloc[-2]
    assert run.history.index[-1] == run.rounds == run.history.index[-2] + 1
    assert run.stopped.endswith(f"polished from {before['residual']:.1e}")
    assert run.certificate.residual == pytest.approx(last["residual"], rel=1e-6)
    assert run.certificate.objective == pytest.approx(last["objective"], rel=1e-12)
    assert run.certificate.relative <= certificate.SHARP_ENOUGH
    np.testing.assert_array_equal(run.state.w_bar, run.models.w)
    np.testing.assert_array_equal(run.models.w[CLUSTERS == 0], run.models.w[:1].repeat(20, axis=0))
    assert worst_violation(problem_of(planted, run.algorithm), run.models.w, run.state.u) < 1e-9


@pytest.mark.parametrize("sites", [1, 3])
def test_going_on_from_a_polished_run(planted, sites):
    run = fit(planted, GTVMin(lam=0.05))
    before = run.state.u.copy()
    more = fit(planted, GTVMin(lam=0.05), start=run, rounds=15, stop=None, engine=InProcess(sites))
    assert more.rounds == run.rounds + 15
    assert more.history.index.is_unique
    assert more.history["residual"].iloc[-1] < 1e-9
    np.testing.assert_array_equal(run.state.u, before)


@pytest.mark.parametrize("options", [{"engine": InProcess(3)}, {"participation": 0.9}, {"engine": InProcess(lost=0.1)}])
def test_only_who_sees_everything_can_polish(planted, options):
    run = fit(planted, GTVMin(lam=0.05), **options)
    assert run.stopped.startswith("converged")
    assert "polished" not in run.stopped


@pytest.mark.parametrize("algorithm", [GTVMin(lam=0.05, steps="published"), GTVMin(lam=0.0)], ids=repr)
def test_what_is_not_polished(planted, algorithm):
    assert "polished" not in fit(planted, algorithm).stopped


def rough(planted, rounds: int = 20):
    algorithm = GTVMin(lam=0.05)
    run = fit(planted, algorithm, rounds=rounds, stop=None)
    site, w = planted.site, run.state.w_bar
    sigma = np.sqrt(site.weights) / (2 * run.snapshot.to_all["eta"])
    ahead = run.state.u + sigma[:, None] * site.difference(w, w[:0])
    u = algorithm.coupling.dual_prox(ahead, sigma, algorithm.lam * site.weights)
    return problem_of(planted, algorithm), w, u, sigma


def test_edges_fused_in_error_are_let_go():
    # 30 nodes at 0 and 30 at 1 in a row: 60 a = λ, and they meet at λ = 30 only. Fused, the middle must carry 30.
    sets = [([[1.0]], [float(k >= 30)]) for k in range(60)]
    problem = problem_of(Network(graphs.chain(60), sets), GTVMin(lam=28.0))
    guess = np.zeros((60, 1)), np.zeros((59, 1)), np.ones(59)
    w, u = polish_fused(problem, *guess, effort=1e4, fused=np.ones(59, dtype=bool))
    np.testing.assert_allclose(w[:, 0], np.repeat([28 / 60, 32 / 60], 30), atol=1e-9)
    assert worst_violation(problem, w, u) < 1e-7


def test_a_wrong_fusion_is_rejected(planted, monkeypatch):
    def everything_fused(problem, w, ahead, effort, good):
        everything = np.ones(len(ahead.u), dtype=bool)
        proposal = polish_fused(problem, w, ahead.whole, ahead.updates.sigma, effort, everything)
        assert np.ptp(proposal[0], axis=0).max() < 1e-12  # one model for all: surely wrong
        return proposal

    monkeypatch.setattr(finish, "METHODS", (everything_fused,))
    misled, alone = fit(planted, GTVMin(lam=0.05)), fit(planted, Unpolished(lam=0.05))
    assert misled.stopped == alone.stopped
    np.testing.assert_array_equal(misled.models.w, alone.models.w)
    np.testing.assert_array_equal(misled.history["residual"], alone.history["residual"])


def test_fit_keeps_no_proposal_that_is_worse(planted):
    asked = []

    @dataclass(frozen=True)
    class Boastful(GTVMin):
        def finish(self, site, state, reply, effort):
            asked.append(effort)
            w = state.w + 1.0
            return state._replace(w=w, w_bar=w.copy()), Outbox({"w_bar": w})

    boastful, alone = fit(planted, Boastful(lam=0.05)), fit(planted, Unpolished(lam=0.05))
    assert len(asked) > 1
    np.testing.assert_array_equal(boastful.models.w, alone.models.w)
    assert boastful.history.index.tolist() == alone.history.index.tolist()


def test_a_component_that_costs_too_much_is_left_alone():
    rng = np.random.default_rng(0)
    pairs = [(k, k + 1) for k in range(299) if k != 3]  # four nodes, and 296
    sets = [(X := rng.normal(size=(3, 2)), X @ rng.normal(size=2)) for _ in range(300)]
    network = Network(graphs.Graph(300, pairs), sets)
    problem, w, u, sigma = rough(network)
    w_new, u_new = polish(problem, w, u, sigma, effort=10)
    np.testing.assert_array_equal(w_new[4:], w[4:])
    np.testing.assert_array_equal(u_new[3:], u[3:])
    assert np.abs(problem.losses.gradient(w_new) + problem.site.divergence(u_new))[:4].max() < 1e-8


@pytest.mark.parametrize("coupling", [EuclideanNorm(), AbsoluteNorm()], ids=repr)
def test_a_path_costs_less_than_twelve_cold_solves(coupling):
    network, lams = difficult_network(), np.geomspace(0.01, 1.0, 30)
    algorithm = GTVMin(coupling=coupling)
    cold = [fit(network, replace(algorithm, lam=lam)) for lam in lams]
    runs = [run for _, run in path(network, algorithm, lams)]
    assert all(run.history["residual"].iloc[-1] <= 1e-6 for run in runs)
    for run, alone in zip(runs, cold, strict=True):
        assert run.history["objective"].iloc[-1] == pytest.approx(alone.history["objective"].iloc[-1], rel=1e-4)
    assert runs[-1].rounds <= 12 / 30 * sum(run.rounds for run in cold)


def test_a_path_may_hold_zero_and_the_same_value_twice(planted):
    lams = [0.0, 0.0, 0.05, 0.05, 0.1]
    for lam, run in path(planted, GTVMin(), lams, stop=Tolerance(1e-9)):
        cold = fit(planted, GTVMin(lam=lam), stop=Tolerance(1e-9))
        np.testing.assert_allclose(run.models.w, cold.models.w, atol=1e-6)


def filled(count, head, tail):
    """Entries below the diagonal in every column of the factor, by elimination of a pattern without numbers."""
    near = [set() for _ in range(count)]
    for a, b in zip(head.tolist(), tail.tolist(), strict=True):
        near[a].add(b)
        near[b].add(a)
    sizes = []
    for k in range(count):
        later = {j for j in near[k] if j > k}
        sizes.append(len(later))
        for j in later:
            near[j] |= later - {j}
    return sizes


def test_no_entry_of_the_factor_is_lost_by_cancellation():
    """An entry may be zero by chance for one matrix; the pattern is for all, and groups have several edges."""
    rng = np.random.default_rng(0)
    for _ in range(500):
        count = int(rng.integers(4, 14))
        ends = np.sort(rng.integers(0, count, (4 * count, 2)), axis=1)
        head, tail = ends[ends[:, 0] != ends[:, 1]].T
        found = Elimination.of(count, head, tail)
        assert (found.sizes - 1).tolist() == filled(count, found.place[head], found.place[tail])
