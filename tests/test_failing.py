"""Failing well, over sockets: messages lost, sites away, sites that lie."""

import contextlib
import logging
import socket
import threading
from functools import partial

import cvxpy
import numpy as np
import pytest

from federated import assert_same_run, federation_of, rows_of, services_of
from kinfolk import DFL, FedRelax, GTVMin, InProcess, LinearModel, Network, fit, graphs, public
from kinfolk.engine.protocol import Missing
from kinfolk.federation.service import SiteService, peek
from kinfolk.federation.sockets import SocketPost, receive_frame, send_frame, serve
from kinfolk.objective.couplings import EuclideanNorm, SquaredNorm

pytest.importorskip("cryptography", reason="the package cryptography is not installed")
SITES = 5
QUIET = {"stop": None, "measure_every": None, "progress": False}
LOST = 0.2


def ring(nodes=10):
    """Two clusters on a ring on which every node knows the next four; ten rows each."""
    rng = np.random.default_rng(0)
    angle = 2 * np.pi * np.arange(nodes) / nodes
    truth = np.where(np.arange(nodes)[:, None] < nodes / 2, [2.0, -1.0], [-1.0, 1.0])
    data = [(X := rng.normal(size=(10, 2)), X @ w + 0.1 * rng.normal(size=10)) for w in truth]
    network = Network(graphs.knn(np.stack([np.cos(angle), np.sin(angle)], axis=1), 4), data)
    return network.with_public(public.standard_normal(network, 8))


@contextlib.contextmanager
def sites_over_sockets(network, folder, kinds=None, serving=serve):
    """A federation of five sites over sockets, each served in a thread; some are of another kind."""
    services = services_of(network, SITES, folder)
    for name, kind in (kinds or {}).items():
        services[name].close()
        services[name] = kind(name, rows_of(network, SITES)[name], folder / name)
    with SocketPost(resend=5.0) as post:
        threads = [
            threading.Thread(target=serving, args=(service, post.address), daemon=True) for service in services.values()
        ]
        for thread in threads:
            thread.start()
        yield federation_of(network, SITES, post), services
        post.close()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
    for service in services.values():
        service.close()


def parameters(models, nodes):
    """Of linear models: what they predict at the unit vectors."""
    return models.predict(np.tile(np.eye(2), (nodes, 1)), np.repeat(np.arange(nodes), 2)).reshape(nodes, 2)


def parameters_at(services, network):
    """Of all nodes, from their sites."""
    w = np.empty((network.graph.node_count, 2))
    for service in services.values():
        w[network.graph.numbers(service.rows.nodes)] = parameters(service.models, len(service.rows.nodes))
    return w


# ---------------------------------------------------------------------- messages that get lost


def losing(post):
    """One in five requests for a step does not arrive, or its answer does not: the site is away for the round."""
    ask, rng, lost = post.ask, np.random.default_rng(0), []

    def lossy(blobs, most, seconds):
        draws = {name: rng.random() if b'"work":"step"' in blob else 1.0 for name, blob in blobs.items()}
        answers = ask({name: blob for name, blob in blobs.items() if draws[name] >= LOST / 2}, most, seconds)
        lost.extend(draw < LOST for draw in draws.values() if draw < 1.0)
        return {name: Missing("lost") if draws[name] < LOST else answers[name] for name in blobs}

    post.ask = lossy
    return lost


def pooled(network):
    """The one model with the least sum of mean squared errors."""
    sets = [network.data[node] for node in range(network.graph.node_count)]
    gram = sum(X.T @ X / len(X) for X, _ in sets)
    return np.linalg.solve(gram, sum(X.T @ y / len(X) for X, y in sets))


def optimum(network, lam):
    return fit(network, GTVMin(lam=lam), progress=False).models.w


RELAXED = FedRelax(LinearModel(), lam=0.1)


def fixed_point(network):
    return parameters(fit(network, RELAXED, rounds=300, **QUIET).models, 10)


CASES = {
    "FedRelax": (RELAXED, 100, fixed_point),
    "GTVMin": (GTVMin(lam=0.1), 120, lambda network: optimum(network, 0.1)),
    "gradient tracking": (DFL(step_size=0.06, tracking=True), 220, lambda network: np.tile(pooled(network), (10, 1))),
}


@pytest.mark.parametrize("name", CASES)
def test_with_a_fifth_of_the_messages_lost_the_optimum_is_that_without_loss(name, tmp_path):
    network, (algorithm, rounds, oracle) = ring(), CASES[name]
    with sites_over_sockets(network, tmp_path) as (federation, services):
        lost = losing(federation.post)
        fit(federation.gather(), algorithm, rounds=rounds, engine=federation, **QUIET)
        found = parameters_at(services, network)
    assert 0.15 < np.mean(lost) < 0.25
    np.testing.assert_allclose(found, oracle(network), atol=1e-6)


@pytest.mark.parametrize("away", [{"engine": InProcess(lost=LOST)}, {"participation": 0.5}], ids=["lost", "away"])
@pytest.mark.parametrize("per_node", [False, True])
def test_fedrelax_learns_from_what_it_last_received_where_nothing_comes(away, per_node):
    network = ring()
    network = network.with_public(public.standard_normal(network, 8, per_node=per_node))
    fixed = fit(network, RELAXED, rounds=300, **QUIET)
    found = fit(network, RELAXED, rounds=300, **QUIET, **away)
    np.testing.assert_allclose(parameters(found.models, 10), parameters(fixed.models, 10), atol=1e-9)
    assert fixed._snapshot.state.received.size == 0  # nothing is kept where every message comes


def breaking(service, address):
    """Serve a site whose connection breaks at one in five requests, before the work is done or after."""
    rng, ended = np.random.default_rng(len(service.rows.nodes)), False
    while not ended:
        with socket.create_connection(address) as connection, contextlib.suppress(ConnectionError):
            send_frame(connection, service.name.encode())
            while (draw := rng.random()) >= LOST / 2:
                request = receive_frame(connection, service.most)
                ended = peek(request)[0] == "end"
                if ended or (answer := service.answer(request), draw < LOST)[1]:
                    break
                send_frame(connection, answer)


def test_connections_that_break_cost_time_and_nothing_else(tmp_path):
    """What was not answered is asked for again, and the site answers as before."""
    network, settings = ring(), {**QUIET, "rounds": 25}
    here = fit(network, GTVMin(), engine=InProcess(SITES), **settings)
    with sites_over_sockets(network, tmp_path, serving=breaking) as (federation, services):
        there = fit(federation.gather(), GTVMin(), engine=federation, **settings)
        assert_same_run(here, there, {})
        np.testing.assert_array_equal(parameters_at(services, network), parameters(here.models, 10))


# ---------------------------------------------------------------------- sites that lie


class Liar(SiteService):
    """A site that changes what its nodes send to their neighbours; ``lie`` makes it from what they would send."""

    def __init__(self, *given, lie):
        super().__init__(*given)
        self.lie = lie

    def answer(self, content):
        if self.run is not None and not hasattr(self.run, "honest"):
            self.run.honest, self.run.worker.answer = self.run.worker.answer, self._lying
        return super().answer(content)

    def _lying(self, request):
        answer = self.run.honest(request)
        told = {site: self.lie(letter["w_bar"], request) for site, letter in answer.neighbours.items()}
        return answer._replace(neighbours={site: {"w_bar": rows} for site, rows in told.items()})


def once(lie):
    """A lie in round 3 alone."""
    return lambda rows, request: lie(rows) if request.work == "step" and request.turn.round == 3 else rows


LIES = {
    "NaN": (once(lambda rows: rows + np.nan), "got larger ones or NaN"),
    "huge": (once(lambda rows: rows + 1e200), "got larger ones or NaN"),
    "shape": (once(lambda rows: rows[:1]), r"at most, got"),
    "type": (once(lambda rows: rows.astype(np.float32)), "got float32"),
}


@pytest.mark.parametrize("name", LIES)
def test_a_letter_that_cannot_be_used_is_dropped_for_the_round_and_its_sender_named(name, tmp_path, caplog):
    (lie, why), network = LIES[name], ring()
    numbers = network.graph.numbers(rows_of(network, SITES)["site 1"].nodes)
    of_site_1 = np.isin([network.graph.head, network.graph.tail], numbers)
    others = of_site_1[0] == of_site_1[1]  # edges
    here = fit(
        network, GTVMin(), engine=InProcess(SITES), **QUIET, rounds=6,
        edges=lambda round_: others | (round_ != 4),
    )  # fmt: skip
    with (
        caplog.at_level(logging.WARNING, "kinfolk.engine.session"),
        sites_over_sockets(network, tmp_path, {"site 1": partial(Liar, lie=lie)}) as (federation, services),
    ):
        fit(federation.gather(), GTVMin(), engine=federation, **QUIET, rounds=6)
        assert {(record.args[0], record.args[1]) for record in caplog.records} == {(4, 1)}
        assert all("the letter of 'site 1'" in record.getMessage() for record in caplog.records)
        assert all(why in record.getMessage() for record in caplog.records)
        np.testing.assert_allclose(parameters_at(services, network), parameters(here.models, 10), atol=1e-12)


LAM, HONEST = 0.1, np.arange(10) >= 2  # the two nodes of site 0 lie: a fifth
FAR = (10.0, 1e6)


def with_liars(network, folder, coupling, lie):
    """The parameters of the honest, where two nodes send the same lie in every round."""
    kinds = {"site 0": partial(Liar, lie=lambda rows, request: np.full_like(rows, lie))}
    with sites_over_sockets(network, folder, kinds) as (federation, services):
        fit(federation.gather(), GTVMin(coupling=coupling, lam=LAM), rounds=100, engine=federation, **QUIET)
        return parameters_at(services, network)[HONEST]


def by_cvxpy(network, lie=None):
    """The optimum of the honest alone, or beside neighbours whose parameters are the lie."""
    graph, w = network.graph, cvxpy.Variable((10, 2))
    losses = [cvxpy.sum_squares(X @ w[i] - y) / len(X) for i, (X, y) in enumerate(network.data[k] for k in range(10))]
    terms = [loss for loss, honest in zip(losses, HONEST, strict=True) if honest]
    for head, tail, weight in zip(graph.head, graph.tail, graph.weights, strict=True):
        ends = [w[end] if HONEST[end] else None if lie is None else np.full(2, lie) for end in (head, tail)]
        if HONEST[[head, tail]].any() and not any(end is None for end in ends):
            terms.append(LAM * weight * cvxpy.norm(ends[0] - ends[1]))
    cvxpy.Problem(cvxpy.Minimize(sum(terms))).solve(solver="CLARABEL")
    return w.value[HONEST]


def bounds(network):
    """What λΣA allows: the slope at every honest node, and the shift of all of them; and their convexity μ."""
    graph, A = network.graph, np.zeros((10, 10))
    A[graph.head, graph.tail] = A[graph.tail, graph.head] = graph.weights
    mu = np.array([np.linalg.eigvalsh(2 * X.T @ X / len(X))[0] for X, _ in (network.data[i] for i in range(10))])
    slopes, from_liars = LAM * A.sum(axis=1)[HONEST], LAM * A[:, ~HONEST].sum(axis=1)[HONEST]
    return slopes, np.sqrt((from_liars**2 / mu[HONEST]).sum()), mu[HONEST]


def slopes_at(network, w):
    """‖∇L_i(w_i)‖ of the honest."""
    sets = [network.data[i] for i in np.flatnonzero(HONEST)]
    return [np.linalg.norm(2 * X.T @ (X @ each - y) / len(X)) for (X, y), each in zip(sets, w, strict=True)]


def test_liars_move_the_others_no_further_than_their_edges_allow(tmp_path):
    network = ring()
    slopes, most, mu = bounds(network)
    alone = by_cvxpy(network)
    for lie in FAR:
        w = with_liars(network, tmp_path / str(lie), EuclideanNorm(), lie)
        shift = np.sqrt((mu * ((w - alone) ** 2).sum(axis=1)).sum())
        assert 0.3 * most < shift <= most
        assert (slopes_at(network, w) <= slopes + 1e-9).all()
        if lie == FAR[0]:
            np.testing.assert_allclose(w, by_cvxpy(network, lie), atol=1e-5)


def test_with_squares_liars_move_the_others_as_far_as_they_like(tmp_path):
    network = ring()
    slopes, most, _ = bounds(network)
    far = with_liars(network, tmp_path, SquaredNorm(), FAR[1])
    assert np.abs(far).max() > 1e4 * most
    assert max(slopes_at(network, far)) > 1e4 * slopes.max()
