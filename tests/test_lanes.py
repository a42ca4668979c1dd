"""Lanes: several runs at the same time in one message per site and exchange, each the same as by itself."""

import threading

import numpy as np
import pytest

from federated import Direct, federation_of, services_of, site_names
from kinfolk import GTVMin, InputError, SquaredNorm, Tolerance, fit
from kinfolk.engine.protocol import Missing
from kinfolk.engine.wire import Blob, Key, WireError
from kinfolk.federation.carrier import refusal_in
from kinfolk.federation.coordinator import LaneFit
from kinfolk.federation.lanes import bundle_expected, bundled, together, unbundled
from kinfolk.federation.service import SiteService
from kinfolk.federation.sockets import SocketPost, serve
from kinfolk.network import graphs
from kinfolk.testing import difficult_network

pytest.importorskip("cryptography", reason="the package cryptography is not installed")
LAMS = (0.01, 1.0, 10.0)
OPTIONS = {"rounds": 400, "stop": Tolerance(1e-4, None), "measure_every": 5}


class Counted(Direct):
    """Counts the exchanges."""

    def __init__(self, services):
        super().__init__(services)
        self.exchanges = 0

    def ask(self, blobs, most, seconds):
        self.exchanges += 1
        return super().ask(blobs, most, seconds)


def algorithms():
    return [GTVMin(coupling=SquaredNorm(), lam=lam) for lam in LAMS]


def by_themselves(network, tmp_path):
    """The runs one after the other, the models of the first site, and the exchanges of each."""
    runs, models, exchanges = [], [], []
    for number, algorithm in enumerate(algorithms()):
        services = services_of(network, 3, tmp_path / str(number))
        post = Counted(services)
        federation = federation_of(network, 3, post)
        runs.append(fit(federation.gather(), algorithm, engine=federation, progress=False, **OPTIONS))
        models.append(services[site_names(3)[0]].models.w)
        exchanges.append(post.exchanges - 1)  # without gathering
        for service in services.values():
            service.close()
    return runs, models, exchanges


def test_lanes_are_the_same_runs_in_the_exchanges_of_the_longest(tmp_path):
    network = difficult_network()
    runs, models, exchanges = by_themselves(network, tmp_path)
    services = services_of(network, 3, tmp_path / "lanes")
    post = Counted(services)
    federation = federation_of(network, 3, post)
    federation.gather()
    found = federation.fit_lanes([LaneFit(each) for each in algorithms()], **OPTIONS)
    assert found.exchanges == post.exchanges - 1 == max(exchanges)
    assert sum(exchanges) > 2 * found.exchanges
    for lane, (here, there) in enumerate(zip(runs, found.runs, strict=True)):
        assert there.stopped == here.stopped
        columns = ["objective", "residual", "bytes"]
        np.testing.assert_array_equal(there.history[columns].to_numpy(), here.history[columns].to_numpy())
        np.testing.assert_array_equal(services[site_names(3)[0]].runs[lane].models.w, models[lane])
    for service in services.values():
        service.close()


def test_lanes_may_have_graphs_of_their_own(tmp_path):
    network = difficult_network()
    other = graphs.complete(network.graph.node_count, network.names)
    services = services_of(network, 3, tmp_path)
    federation = federation_of(network, 3, Direct(services))
    federation.gather()
    algorithm = GTVMin(coupling=SquaredNorm(), lam=0.1)
    found = federation.fit_lanes([LaneFit(algorithm), LaneFit(algorithm, graph=other)], **OPTIONS)
    alone = fit(network.with_graph(other), algorithm, progress=False)
    assert found.runs[1].history["objective"].iloc[-1] == pytest.approx(alone.history["objective"].iloc[-1], rel=1e-3)
    assert found.runs[0].history["objective"].iloc[-1] < found.runs[1].history["objective"].iloc[-1]
    for service in services.values():
        service.close()


def test_a_part_that_a_site_has_not_is_refused(tmp_path):
    network = difficult_network()
    services = services_of(network, 3, tmp_path)
    federation = federation_of(network, 3, Direct(services))
    federation.gather()
    with pytest.raises(InputError, match="got one on part 4, which it has not"):
        federation.fit_lanes([LaneFit(GTVMin()), LaneFit(GTVMin(), part=4)], **OPTIONS)
    for service in services.values():
        service.close()


def test_a_site_that_was_restarted_goes_on_in_all_lanes(tmp_path):
    network = difficult_network()
    runs, models, _ = by_themselves(network, tmp_path)
    services = services_of(network, 3, tmp_path / "lanes")
    name = site_names(3)[0]

    class Killing(Counted):
        def ask(self, blobs, most, seconds):
            if self.exchanges in (3, 9):
                old = self.services[name]
                old.close()
                self.services[name] = SiteService(name, old.rows, old.folder)
            return super().ask(blobs, most, seconds)

    federation = federation_of(network, 3, Killing(services))
    federation.gather()
    found = federation.fit_lanes([LaneFit(each) for each in algorithms()], **OPTIONS)
    for lane, (here, there) in enumerate(zip(runs, found.runs, strict=True)):
        np.testing.assert_array_equal(there.history["objective"].to_numpy(), here.history["objective"].to_numpy())
        np.testing.assert_array_equal(services[name].runs[lane].models.w, models[lane])
    for service in services.values():
        service.close()


def test_lanes_over_sockets(tmp_path):
    network = difficult_network()
    services = services_of(network, 3, tmp_path)
    with SocketPost() as post:
        running = [threading.Thread(target=serve, args=(each, post.address), daemon=True) for each in services.values()]
        for thread in running:
            thread.start()
        federation = federation_of(network, 3, post)
        federation.gather()
        found = federation.fit_lanes([LaneFit(each) for each in algorithms()], **OPTIONS)
    here = fit(network, algorithms()[1], progress=False)
    assert found.runs[1].history["objective"].iloc[-1] == pytest.approx(here.history["objective"].iloc[-1], rel=1e-3)
    for thread in running:
        thread.join(30)
        assert not thread.is_alive()
    for service in services.values():
        service.close()


# ---------------------------------------------------------------------- the mechanism by itself


class Echo:
    """Sites that answer what they are asked."""

    def __init__(self):
        self.asked = []

    def ask(self, blobs, most, seconds):
        self.asked.append({name: sorted(unbundled(blob, bundle_expected({}, 99))[1]) for name, blob in blobs.items()})
        return dict(blobs)


def test_lanes_that_end_early_do_not_hold_up_the_others():
    post = Echo()

    def work(count, lane_post, lane):
        for _ in range(count):
            assert lane_post.ask({"a": bytes([lane])}, {"a": 9}, 1.0) == {"a": bytes([lane])}
        return count

    found = together(post, Key(), [lambda lane, k, count=count: work(count, lane, k) for count in (3, 0, 5, 1)])
    assert found == ([3, 0, 5, 1], 5)
    assert [each["a"] for each in post.asked] == [[0, 2, 3], [0, 2], [0, 2], [2], [2]]


def test_a_lane_that_fails_ends_all_of_them():
    def fine(post, lane):
        while True:
            post.ask({"a": b"?"}, {"a": 9}, 1.0)

    def wrong(post, lane):
        post.ask({"a": b"?"}, {"a": 9}, 1.0)
        raise InputError("Expected nothing.")

    with pytest.raises(InputError, match="Expected nothing"):
        together(Echo(), Key(), [fine, wrong, fine])


def test_a_site_that_is_away_is_missing_in_every_lane():
    class Away:
        def ask(self, blobs, most, seconds):
            return dict.fromkeys(blobs, Missing("it sleeps"))

    found, _ = together(Away(), Key(), 2 * [lambda post, lane: post.ask({"a": b"?"}, {"a": 9}, 1.0)])
    assert found == 2 * [{"a": Missing("it sleeps")}]


@pytest.mark.parametrize("answer", [b"nonsense", bundled(Key(), {0: bytes(10_000)}), bundled(Key(), {5: b"x"})])
def test_a_bundle_that_was_not_agreed_on_is_nobodys_answer(answer):
    class Liar:
        def ask(self, blobs, most, seconds):
            return dict.fromkeys(blobs, answer)

    found, _ = together(Liar(), Key(), [lambda post, lane: post.ask({"a": b"?"}, {"a": 9}, 1.0)])
    assert isinstance(found[0]["a"], Missing)


def test_only_joins_and_requests_travel_in_lanes(tmp_path):
    (service,) = services_of(difficult_network(), 1, tmp_path).values()
    for inside in (Blob("hello").encode(), bundled(Key(), {})):
        why, _ = refusal_in(service.answer(bundled(Key(), {0: inside})))
        assert "Expected join or request in every lane" in why
    service.close()


def test_lanes_have_numbers():
    with pytest.raises(WireError, match="lanes by number"):
        unbundled(Blob("lanes", arrays={"a/b": np.zeros(3, dtype=np.uint8)}).encode(), bundle_expected({}, 9))
