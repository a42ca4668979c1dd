"""A federation: the answers of one process to the last bit, whoever is killed; sealed; and nothing left behind."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas
import pytest
from sklearn.tree import DecisionTreeRegressor

from federated import Direct, assert_same_run, federation_of, rows_of, services_of, site_names
from kinfolk import FedAvg, FedRelax, Graph, GTVMin, InProcess, InputError, LinearModel, fit
from kinfolk.engine.protocol import Missing
from kinfolk.engine.wire import Blob, Expected, Slot
from kinfolk.federation import joining, site_run
from kinfolk.federation.carrier import refusal_in
from kinfolk.federation.coordinator import Federation
from kinfolk.federation.joining import Schema
from kinfolk.federation.keys import OVERHEAD, Peer, Pins, Sealer, SiteKey, fingerprint_of
from kinfolk.federation.messages import refusal
from kinfolk.federation.rows import SiteRows
from kinfolk.federation.service import SiteService, algorithm_of
from kinfolk.federation.sockets import SocketPost, receive_frame, send_frame, serve
from kinfolk.network.data import Data
from kinfolk.testing import difficult_network
from shipped import SHIPPED, options

pytest.importorskip("cryptography", reason="the package cryptography is not installed")
HERE = Path(__file__).parent
SHORT = {"rounds": 8, "stop": None, "measure_every": 3, "progress": False}


@contextlib.contextmanager
def direct(network, place, algorithm=None, count=3, **settings):
    """A federation whose services are called directly."""
    services = services_of(network, count, place, algorithm)
    federation = federation_of(network, count, Direct(services), **settings)
    try:
        yield federation, services
    finally:
        federation.close()
        for service in services.values():
            service.close()


@contextlib.contextmanager
def threads(services, address):
    """Serve some sites, each in a thread, until the coordinator ends the federation."""
    running = [threading.Thread(target=serve, args=(service, address), daemon=True) for service in services.values()]
    for thread in running:
        thread.start()
    try:
        yield
    finally:
        for thread in running:
            thread.join(30)
            assert not thread.is_alive()
        for service in services.values():
            service.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def site_process(folder, site, count, port, *names) -> subprocess.Popen:
    command = [sys.executable, HERE / "site_process.py", folder, site, count, port, *names]
    return subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True, cwd=HERE)


# ---------------------------------------------------------------------- the same bits


def test_every_shipped_algorithm_over_sockets_ends_at_the_same_bits(tmp_path):
    """A process for every site, which stays for all algorithms."""
    names, port = [name for name in SHIPPED if name != "GTVMin direct"], free_port()  # that one needs all nodes at once
    processes = [site_process(tmp_path, site, 2, port, *names) for site in range(2)]
    try:
        for name in names:
            make_network, make_algorithm = SHIPPED[name]
            network, algorithm = make_network(), make_algorithm()
            here = fit(network, algorithm, engine=InProcess(2), **options(name))
            with SocketPost(port) as post:
                federation = federation_of(network, 2, post, patience=200.0)
                there = fit(federation.gather(), algorithm, engine=federation, **options(name))
            assert_same_run(here, there, {})
        assert [process.wait(60) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.mark.parametrize("logged", [50, 3])  # 3: states are saved on the way
@pytest.mark.parametrize(
    "name", ["GTVMin", "FedAvg", "BiGFL learnt", "FedRelax trees", "FedCG teacher", "FedRelax classes"]
)
def test_models_at_the_sites_are_the_same_and_so_they_are_after_a_restart(name, logged, tmp_path, monkeypatch):
    """The services are made anew from their folders after every fourth request."""
    monkeypatch.setattr(site_run, "LOGGED", logged)
    make_network, make_algorithm = SHIPPED[name]
    network, algorithm = make_network(), make_algorithm()
    here = fit(network, algorithm, engine=InProcess(3), **options(name))
    with direct(network, tmp_path, algorithm) as (federation, services):
        restarting(federation.post, services, network, tmp_path, algorithm, every=4)
        there = fit(federation.gather(), algorithm, engine=federation, **options(name))
        assert_same_run(here, there, services)


def restarting(post, services, network, folder, algorithm, every):
    """Let one service after the other be made anew from its folder, after its work but before it answers."""
    ask, asked = post.ask, [0]

    def anew(blobs, most, seconds):
        answers = ask(blobs, most, seconds)
        asked[0] += 1
        if asked[0] % every == 0:
            name = site_names(3)[asked[0] // every % 3]
            services[name].close()
            services[name] = SiteService(name, rows_of(network, 3)[name], folder / name, algorithm)
            if name in blobs:
                answers[name] = services[name].answer(blobs[name])
        return answers

    post.ask = anew


def test_a_killed_site_goes_on_from_its_folder(tmp_path):
    """kill -9 in the middle of a run, twice; the coordinator waits for it."""
    network, algorithm, port = difficult_network(), GTVMin(lam=0.1), free_port()
    services = services_of(network, 3, tmp_path)
    victim = services.pop("site 1")
    victim.close()
    here = fit(network, algorithm, engine=InProcess(3), **options("GTVMin"))
    process = [site_process(tmp_path / "own", 1, 3, port, "GTVMin")]
    killed = []

    def killer(row, snapshot):
        if row["round"] in (3, 6):
            process[0].kill()
            process[0].wait()
            killed.append(row["round"])
            process[0] = site_process(tmp_path / "own", 1, 3, port, "GTVMin")

    try:
        with SocketPost(port) as post, threads(services, post.address):
            federation = federation_of(network, 3, post, patience=200.0)
            run = fit(federation.gather(), algorithm, engine=federation, callbacks=[killer], **options("GTVMin"))
            post.close()
        assert process[0].wait(60) == 0
    finally:
        process[0].kill()
        process[0].wait()
    assert killed == [3, 6]
    assert_same_run(here, run, services)


@pytest.mark.parametrize("name", ["GTVMin", "FedAvg"])
def test_a_killed_coordinator_goes_on_from_its_folder(name, tmp_path):
    network, algorithm, port = SHIPPED[name][0](), SHIPPED[name][1](), free_port()
    services = services_of(network, 3, tmp_path, algorithm)
    command = [sys.executable, HERE / "coordinator_process.py", tmp_path / "coordinator", port, name]
    with threads(services, ("127.0.0.1", port)):
        for killed in ("2", "5"):
            done = subprocess.run(list(map(str, [*command, killed])), cwd=HERE, timeout=120)
            assert done.returncode == -signal.SIGKILL
        subprocess.run(list(map(str, command)), cwd=HERE, timeout=120, check=True)
    here = fit(network, algorithm, engine=InProcess(3), **options(name))
    history = pandas.read_csv(tmp_path / "coordinator" / "history.csv", index_col="round")
    np.testing.assert_array_equal(history.to_numpy(), here.history[history.columns].to_numpy())
    own = services["site 2"].rows.test
    numbers = network.graph.numbers(services["site 2"].rows.nodes)
    expected = here.models.predict(own.X, numbers[own.owner])
    np.testing.assert_array_equal(services["site 2"].models.predict(own.X, own.owner), expected)


class KilledError(Exception):
    """Stands for the end of a coordinator."""


def test_a_coordinator_goes_on_in_the_second_of_two_runs(tmp_path):
    """A path of λ: the run that had ended is not begun again at the sites."""
    network, done = difficult_network(), []

    def stop(row, snapshot):
        if row["round"] == 5:
            raise KilledError

    here = [fit(network, GTVMin(lam=lam), engine=InProcess(3), **SHORT) for lam in (0.1, 0.3)]
    with direct(network, tmp_path, folder=tmp_path / "coordinator") as (federation, services):
        problem = federation.gather()
        fit(problem, GTVMin(lam=0.1), engine=federation, **SHORT)
        with pytest.raises(KilledError):
            fit(problem, GTVMin(lam=0.3), engine=federation, callbacks=[stop], **SHORT)
        with pytest.raises(InputError, match="Expected a folder that nobody uses"):
            federation_of(network, 3, federation.post, folder=tmp_path / "coordinator")
        federation.close()
        again = federation_of(network, 3, federation.post, folder=tmp_path / "coordinator")
        problem = again.gather()
        done = [fit(problem, GTVMin(lam=lam), engine=again, **SHORT) for lam in (0.1, 0.3)]
        assert_same_run(here[0], done[0], {})
        assert_same_run(here[1], done[1], services)
        again.close()


def test_other_arguments_do_not_go_on_from_a_journal(tmp_path):
    network = difficult_network()
    with direct(network, tmp_path, folder=tmp_path / "coordinator") as (federation, _):
        fit(federation.gather(), GTVMin(), engine=federation, **SHORT)
    for algorithm, settings in ((GTVMin(lam=0.7), SHORT), (GTVMin(), {**SHORT, "participation": 0.5})):
        with (
            direct(network, tmp_path, folder=tmp_path / "coordinator") as (federation, _),
            pytest.raises(InputError, match="Expected the run that the journal of this coordinator has begun"),
        ):
            fit(federation.gather(), algorithm, engine=federation, **settings)


# ---------------------------------------------------------------------- requests that come again, sites that are away


def test_a_repeated_request_gets_the_stored_answer_and_an_old_one_is_refused(tmp_path):
    with direct(difficult_network(), tmp_path) as (federation, services):
        fit(federation.gather(), GTVMin(), engine=federation, **SHORT)
        requests = [blob for name, to, blob in federation.post.log if (name, to) == ("site 0", "site")]
        answers = [blob for name, to, blob in federation.post.log if (name, to) == ("site 0", "coordinator")]
        assert services["site 0"].answer(requests[-1]) == answers[-1]
        why, _ = refusal_in(services["site 0"].answer(requests[-2]))
        assert "it is too old" in why
        assert services["site 0"].answer(requests[1]) == answers[1]  # the same join is the same run
        assert services["site 0"].answer(requests[-1]) == answers[-1]


@pytest.mark.parametrize("before", [True, False])  # it got the request and did its work, or not
@pytest.mark.parametrize("algorithm", [GTVMin(), FedAvg()], ids=lambda a: type(a).__name__)
def test_a_site_that_is_silent_is_away_for_the_round_and_comes_back(algorithm, before, tmp_path):
    network = difficult_network()
    silent = {2: "site 1", 5: "site 0"}
    gone = {2: rows_of(network, 3)["site 1"].nodes, 5: rows_of(network, 3)["site 0"].nodes}
    here = fit(
        network, algorithm, engine=InProcess(3), **SHORT,
        participation=lambda round_: [node for node in network.names if node not in gone.get(round_, [])],
    )  # fmt: skip
    with direct(network, tmp_path) as (federation, services):
        ask = federation.post.ask

        def losing(blobs, most, seconds):
            lost = {name for name, blob in blobs.items() if f'"work":"step","round":{round_of(name)},' in str(blob)}
            reached = {name: blob for name, blob in blobs.items() if before or name not in lost}
            answers = ask(reached, most, seconds)
            return {name: Missing("gone") if name in lost else answers[name] for name in blobs}

        def round_of(name):
            return next((round_ for round_, who in silent.items() if who == name), -1)

        federation.post.ask = losing
        there = fit(federation.gather(), algorithm, engine=federation, **SHORT)
        assert_same_run(here, there, services)


class Lying(SiteService):
    """A site that sends NaN in round 3, or worse."""

    lie = "nan"

    def answer(self, content):
        run = self.run
        if run is not None and '"work":"step","round":3,' in str(content) and not hasattr(run, "lied"):
            run.lied, worked = True, run.worker.answer
            run.worker.answer = lambda request: self._lie(worked(request))
        return super().answer(content)

    def _lie(self, answer):
        if self.lie == "nan":
            self.run.worker.sent["w_bar"][:] = np.nan
        wrong = {"nan": np.nan, "huge": 1e200}.get(self.lie, 0.0)
        letters = {site: {"w_bar": rows["w_bar"] + wrong} for site, rows in answer.neighbours.items()}
        if self.lie == "shape":
            letters = {site: {"w_bar": rows["w_bar"][:1]} for site, rows in letters.items()}
        return answer._replace(neighbours=letters)


LIES = [("nan", "it could not compute"), ("huge", "got larger ones"), ("shape", "at most, got")]


@pytest.mark.parametrize(("lie", "why"), LIES)
def test_a_site_that_sends_what_cannot_be_used_is_away_and_named(lie, why, tmp_path, monkeypatch):
    """It notices itself, or its neighbours do; the others go on without it."""
    network = difficult_network()
    monkeypatch.setattr(Lying, "lie", lie)
    services = services_of(network, 3, tmp_path)
    services["site 1"].close()
    services["site 1"] = Lying("site 1", rows_of(network, 3)["site 1"], tmp_path / "site 1")
    federation, missing = federation_of(network, 3, Direct(services)), []
    problem, opened = federation.gather(), federation.open

    def watched(*given):
        carrier = opened(*given)
        exchange = carrier.exchange

        def noting(requests):
            answers = exchange(requests)
            missing.extend((site, each.why) for site, each in answers.items() if isinstance(each, Missing))
            return answers

        carrier.exchange = noting
        return carrier

    federation.open = watched
    run = fit(problem, GTVMin(), engine=federation, **{**SHORT, "rounds": 6, "measure_every": None})
    assert run.rounds == 6
    assert len(missing) >= 3
    assert {site for site, _ in missing} == {1}
    assert all(why in sentence for _, sentence in missing)
    for service in services.values():
        service.close()


def test_a_site_that_is_away_when_rounds_are_measured_leaves_a_gap_in_the_history(tmp_path):
    network, asked = difficult_network(), []
    with direct(network, tmp_path) as (federation, _):
        ask = federation.post.ask

        def losing(blobs, most, seconds):
            answers = dict(ask(blobs, most, seconds))
            if '"work":"measure"' in str(blobs.get("site 2")):
                asked.append(len(asked))
                if asked[-1] in (3, 4, 5):
                    answers["site 2"] = Missing("gone")
            return answers

        federation.post.ask = losing
        there = fit(federation.gather(), GTVMin(), engine=federation, **SHORT)
    here = fit(network, GTVMin(), engine=InProcess(3), **SHORT)
    assert there.history.index.tolist() == [0, 1, 2, 6, 7, 8]
    np.testing.assert_array_equal(there.history["objective"], here.history["objective"].loc[[0, 1, 2, 6, 7, 8]])


def test_the_model_of_a_site_is_its_own_choice(tmp_path):
    network = difficult_network()
    models = {"site 0": LinearModel(), "site 1": DecisionTreeRegressor(max_depth=2), "site 2": LinearModel(ridge=0.5)}
    services = {
        name: SiteService(name, rows, tmp_path / name, FedRelax(models[name], lam=0.2))
        for name, rows in rows_of(network, 3).items()
    }
    federation = federation_of(network, 3, Direct(services))
    fit(federation.gather(), FedRelax(LinearModel(), lam=0.2), engine=federation, **SHORT)
    home = np.repeat(site_names(3), [len(service.rows.nodes) for service in services.values()])
    here = fit(network, FedRelax(lambda node: models[home[node]], lam=0.2), engine=InProcess(3), **SHORT)
    for service in services.values():
        own, numbers = service.rows.test, network.graph.numbers(service.rows.nodes)
        expected = here.models.predict(own.X, numbers[own.owner])
        np.testing.assert_array_equal(service.models.predict(own.X, own.owner), expected)
        service.close()


# ---------------------------------------------------------------------- seals


def test_the_relay_sees_none_of_the_known_arrays(tmp_path, monkeypatch):
    """All that a site sends to another, and all rows, against all bytes that pass the coordinator."""
    network, known, seal = difficult_network(), [], Sealer.seal

    def remembered(self, site, number, content):
        known.append(content)
        return seal(self, site, number, content)

    monkeypatch.setattr(Sealer, "seal", remembered)
    with direct(network, tmp_path) as (federation, _):
        fit(federation.gather(), GTVMin(), engine=federation, **SHORT)
        relay = b"".join(federation.post.carried)
        letters = [row.tobytes() for content in known for row in rows_in(content)]
        rows = [row.tobytes() for row in np.concatenate([network.data.X, network.test.X])]
        assert len(letters) > 100
        assert not any(each in relay for each in [*letters, *rows])
        assert network.data.y.tobytes() not in relay


def rows_in(content):
    """The rows of a letter of GTVMin that are not zero, 24 bytes each."""
    rows = Blob.decode(content, Expected(("letter",), {"w_bar": Slot("float64", (24, 3))})).arrays["w_bar"]
    return rows[(rows != 0).all(axis=1)]


def test_what_the_coordinator_must_read_is_there_to_be_found(tmp_path):
    """The test above can fail: models that go to the coordinator are found in its bytes."""
    network = difficult_network()
    with direct(network, tmp_path) as (federation, services):
        fit(federation.gather(), FedAvg(), engine=federation, **SHORT)
        assert services["site 0"].models.w[0].tobytes() in b"".join(federation.post.carried)


@pytest.mark.parametrize("how", ["changed", "sent back", "old"])
def test_a_letter_that_was_tampered_with_is_refused_and_its_sender_named(how, tmp_path):
    """In round 4 the relay gives site 0 another letter of site 1. That one is away for the round, and is named."""
    with direct(difficult_network(), tmp_path) as (federation, _):
        problem, ask, seen, why = federation.gather(), federation.post.ask, [], []

        def tampering(blobs, most, seconds):
            if '"work":"step","round":4,' in str(blobs.get("site 0")) and not why:
                terms = federation_terms(federation, "site 0")
                blobs = {**blobs, "site 0": tampered(terms, blobs["site 0"], how, seen)}
            answers = ask(blobs, most, seconds)
            if '"work":"step"' in str(blobs.get("site 0")):
                seen.append((blobs["site 0"], answers["site 0"]))
            why.extend(found[0] for found in map(refusal_in, answers.values()) if found is not None)
            return answers

        federation.post.ask = tampering
        run = fit(problem, GTVMin(), engine=federation, **SHORT)
        assert len(why) == 1
        assert ("got an old one again" if how == "old" else "got one that does not open") in why[0]
        assert "site 1" in why[0]
        assert run.stopped == "stopped after the 8 rounds it was given"


def federation_terms(federation, name):
    return federation.post.services[name].run.terms


def tampered(terms, blob, how, seen):
    """The request to site 0 with another letter of site 1."""
    found = Blob.decode(blob, terms.request)
    letter = found.arrays["letter/1"]
    if how == "changed":
        letter = letter.copy()
        letter[OVERHEAD] ^= 1
    elif how == "sent back":
        letter = Blob.decode(seen[-1][1], terms.answer).arrays["letter/1"][: len(letter)]
    else:
        letter = Blob.decode(seen[0][0], terms.request).arrays["letter/1"]
    return replace(found, arrays={**found.arrays, "letter/1": letter}).encode()


def test_a_seal_binds_sender_receiver_run_and_number(tmp_path):
    keys = {name: SiteKey.at(made(tmp_path / name)) for name in "ab"}
    peers = {name: {0: Peer(other, keys[other].public)} for name, other in (("a", "b"), ("b", "a"))}
    a, b = (Sealer(keys[name], name, bytes(16), peers[name]) for name in "ab")
    letter = a.seal(0, 7, b"secret")
    assert b.open(0, letter) == (7, b"secret")
    assert b"secret" not in letter
    assert len(letter) == 6 + OVERHEAD
    other_run = Sealer(keys["b"], "b", bytes([1] * 16), peers["b"])
    later = (8).to_bytes(8, "little") + letter[8:]
    for opener, given in ((other_run, letter), (b, later), (a, letter), (b, letter[:-1]), (b, b""), (b, letter[:20])):
        with pytest.raises(InputError, match="got one that does not open"):
            opener.open(0, given)


def made(folder):
    folder.mkdir()
    return folder


def test_keys_are_kept_pinned_and_shown(tmp_path):
    key = SiteKey.at(tmp_path)
    assert SiteKey.at(tmp_path).public == key.public
    assert (tmp_path / "key").stat().st_mode & 0o077 == 0
    Pins(tmp_path).check({0: Peer("north", bytes(32))})
    Pins(tmp_path).check({0: Peer("north", bytes(32)), 1: Peer("south", key.public)})
    with pytest.raises(
        InputError, match=f"with the key {fingerprint_of(bytes(32))}, got one with {fingerprint_of(key.public)}"
    ):
        Pins(tmp_path).check({0: Peer("north", key.public)})


def test_a_site_whose_key_has_changed_is_refused_by_its_neighbours(tmp_path):
    network = difficult_network()
    with direct(network, tmp_path) as (federation, _):
        fit(federation.gather(), GTVMin(), engine=federation, **SHORT)
    (tmp_path / "site 1" / "key").unlink()
    with (
        direct(network, tmp_path) as (federation, _),
        pytest.raises(InputError, match=r"Site 'site 0' refuses\. Expected site 'site 1' with the key"),
    ):
        fit(federation.gather(), GTVMin(), engine=federation, **SHORT)


# ---------------------------------------------------------------------- joining, in a sentence each


def rows(nodes=("a",), features=("x", "y"), labels=(0.0, 1.0), **changes):
    X = np.arange(2.0 * len(labels)).reshape(-1, 2)
    data = Data(X, np.array(labels), np.array([0, *[len(labels)] * len(nodes)]))
    return SiteRows(list(nodes), list(features), **{"data": data, **changes})


def gathered(tmp_path, task="numbers", features=None, **sites):
    services = {name: SiteService(name, found, tmp_path / name) for name, found in sites.items()}
    try:
        graph = Graph.from_edges([("a", "b")])
        federation = Federation(graph, list(sites), Direct(services), Schema(features, task))
        return federation.gather(), federation.members
    finally:
        for service in services.values():
            service.close()


@pytest.mark.parametrize(
    ("sites", "sentence"),
    [
        ({"two": rows(["b"], ["x", "z"])}, "Expected the columns 'x', 'y' at site 'two', as at 'one', got 'x', 'z'"),
        ({"two": rows(["c"])}, "Expected nodes of the graph at site 'two', got 'c': add them to the graph"),
        ({"two": rows(["a"])}, "Expected every node at one site, 'a' at 'two' has two"),
        ({}, "Expected every node of the graph at a site, nobody has 'b': wait for that site"),
    ],
)
def test_sites_that_do_not_fit_get_a_sentence(sites, sentence, tmp_path):
    with pytest.raises(InputError, match=sentence):
        gathered(tmp_path, one=rows(), **sites)


def test_a_site_that_answers_for_another_gets_a_sentence(tmp_path):
    service = SiteService("two", rows(), tmp_path)
    federation = Federation(Graph.from_edges([("a", "b")]), ["one"], Direct({"one": service}), Schema(None, "numbers"))
    with contextlib.closing(service), pytest.raises(InputError, match="Expected site 'one', it calls itself 'two'"):
        federation.gather()


def test_labels_that_do_not_fit_get_a_sentence(tmp_path):
    with pytest.raises(InputError, match=r"only site 'two' has 2.0: leave those rows out"):
        gathered(tmp_path, "classes", one=rows(labels=(0, 1, 1)), two=rows(["b"], labels=(0, 1, 2)))
    with pytest.raises(InputError, match=r"Site 'two' refuses\. Expected classes as labels"):
        gathered(tmp_path, "classes", one=rows(labels=(0, 1, 1)), two=rows(["b"], labels=(0, 0.5)))
    many = Data(np.ones((1, 2)), np.ones((1, 3)), np.array([0, 1]))
    with pytest.raises(InputError, match="Expected as many targets at site 'two' as at 'one'"):
        gathered(tmp_path, one=rows(), two=rows(["b"], data=many))
    problem, members = gathered(tmp_path, "classes", one=rows(), two=rows(["b"], ["y", "x"]), features=["x", "y"])
    assert problem.classes.tolist() == [0.0, 1.0]
    assert set(members.fingerprints) == {"one", "two"}


def test_a_site_without_rows_and_a_site_without_a_column_get_a_sentence(tmp_path):
    with pytest.raises(InputError, match="Expected rows at this site, got none"):
        SiteService("one", rows(labels=()), tmp_path)
    with pytest.raises(InputError, match=r"Site 'one' refuses\. .* this site has rows without 'q'; with 'y'"):
        gathered(tmp_path, features=["x", "q"], one=rows(), two=rows(["b"]))


def test_versions_that_differ_get_a_sentence(tmp_path, monkeypatch):
    with direct(difficult_network(), tmp_path) as (federation, _):
        hello = federation.schema.hello("kinfolk")
        monkeypatch.setattr(joining, "__version__", "99.0")
        with pytest.raises(InputError, match=r"Expected kinfolk 99.0 with protocol 3 at the coordinator, got"):
            joining.read_hello(hello)


def test_a_key_that_two_sites_have_gets_a_sentence(tmp_path):
    made(tmp_path / "one"), made(tmp_path / "two")
    SiteKey.at(tmp_path / "one")
    (tmp_path / "two" / "key").write_bytes((tmp_path / "one" / "key").read_bytes())
    with pytest.raises(InputError, match="Expected a key of its own at site 'two', it has that of 'one'"):
        gathered(tmp_path, one=rows(), two=rows(["b"]))


def test_a_folder_that_is_in_use_and_rows_that_have_changed_get_a_sentence(tmp_path):
    network = difficult_network()
    with direct(network, tmp_path) as (federation, _):
        fit(federation.gather(), GTVMin(), engine=federation, **SHORT)
        with pytest.raises(InputError, match="Expected a folder that nobody uses"):
            SiteService("site 0", rows_of(network, 3)["site 0"], tmp_path / "site 0")
    other = rows_of(difficult_network(seed=1), 3)["site 0"]
    with pytest.raises(InputError, match="Expected the rows that site 'site 0' has begun the present run with"):
        SiteService("site 0", other, tmp_path / "site 0")


def test_an_algorithm_travels_as_a_name_and_numbers_and_what_holds_code_is_the_sites_own(tmp_path):
    network = difficult_network()
    with (
        direct(network, tmp_path / "a", FedRelax(LinearModel())) as (federation, _),
        pytest.raises(InputError, match=r"Site 'site 0' refuses\. .*the algorithm: lam is"),
    ):
        fit(federation.gather(), FedRelax(LinearModel(), lam=0.77), engine=federation, **SHORT)
    with (
        direct(network, tmp_path / "b") as (federation, _),
        pytest.raises(InputError, match=r"Expected names of kinfolk and numbers, got 'sklearn\.tree"),
    ):
        fit(federation.gather(), FedRelax(DecisionTreeRegressor()), engine=federation, **SHORT)


@pytest.mark.parametrize(
    "spec",
    [
        {"type": "os.system", "fields": {"command": "true"}},
        {"code": "builtins.eval", "fingerprint": ""},
        {"type": "kinfolk.algorithms.gtvmin.algorithm.GTVMin", "fields": {"no such": 1}},
        {"type": "kinfolk.algorithms.gtvmin.algorithm.GTVMin", "fields": {"lam": "much"}},
        {"type": "kinfolk.algorithms.gtvmin.algorithm.GTVMin"},
        {"type": "kinfolk.objective.losses.Squared", "fields": {}},
        {"list": [1]},
        {"mapping": [[{"list": []}, 1]]},
        {},
    ],
)
def test_a_spec_cannot_name_code(spec):
    with pytest.raises(InputError):
        algorithm_of(spec)


def test_a_federation_has_no_states_to_start_from(tmp_path):
    network = difficult_network()
    before = fit(network, GTVMin(), rounds=1, stop=None, progress=False)
    with direct(network, tmp_path) as (federation, _):
        problem = federation.gather()
        with pytest.raises(InputError, match="the states of a federation stay at its sites"):
            fit(problem, GTVMin(), engine=federation, start=before, **SHORT)
        with pytest.raises(InputError, match="Expected the problem of this federation, got another"):
            fit(network.problem, GTVMin(), engine=federation, **SHORT)


def test_errors_of_a_site_do_not_tell_of_its_rows(tmp_path, monkeypatch):
    """What fails at a site is told by its kind alone; the rest is in its own log."""
    network = difficult_network()

    def secret(*_):
        raise ValueError("row 17 has the value 3.14159")

    with direct(network, tmp_path) as (federation, _):
        problem = federation.gather()
        monkeypatch.setattr(GTVMin, "init", secret)
        with pytest.raises(InputError, match=r"could not compute \(ValueError\); its own log has more") as caught:
            fit(problem, GTVMin(), engine=federation, **SHORT)
        assert "3.14" not in str(caught.value)
        assert not any(b"3.14" in each for each in federation.post.carried)


# ---------------------------------------------------------------------- sockets


def test_a_port_in_use_gets_a_sentence():
    with SocketPost() as post, pytest.raises(InputError, match=r"Expected a free port at 127\.0\.0\.1"):
        SocketPost(post.address[1])
    SocketPost(post.address[1]).close()  # it is free again


def test_a_coordinator_that_cannot_be_reached_is_tried_again_then_the_site_stops(tmp_path):
    told = []
    with (
        contextlib.closing(SiteService("one", rows(), tmp_path)) as service,
        pytest.raises(InputError, match=r"it cannot be reached since 1 seconds .*it goes on where it was"),
    ):
        serve(service, ("127.0.0.1", free_port()), patience=1.0, tell=told.append)
    assert len(told) == 1
    assert told[0].endswith("cannot be reached: trying again.")


def test_a_site_that_never_connects_is_missing_after_the_deadline():
    with SocketPost() as post:
        began = time.monotonic()
        answer = post.ask({"nobody": b""}, {"nobody": 10}, 0.3)["nobody"]
        assert time.monotonic() - began < 5
    assert answer == Missing("no answer in time, it is not connected")


def test_a_request_is_sent_again_when_no_answer_comes():
    """A connection that stays silent, one that breaks, one that sends too much; then an answer."""
    with SocketPost(resend=0.2) as post:

        def site():
            for behave in (lambda c: time.sleep(0.5), lambda c: c.close(), lambda c: send_frame(c, b"x")):
                with socket.create_connection(post.address) as connection:
                    send_frame(connection, b"one")
                    assert receive_frame(connection, 10) == b"asked"
                    behave(connection)
                    with contextlib.suppress(OSError):
                        connection.recv(1)

        thread = threading.Thread(target=site)
        thread.start()
        assert post.ask({"one": b"asked"}, {"one": 10}, 20)["one"] == b"x"
    thread.join(10)
    assert not thread.is_alive()


def test_a_frame_that_claims_too_much_is_refused_before_it_is_read():
    left, right = socket.socketpair()
    with left, right:
        left.sendall((2**60).to_bytes(8, "little"))
        with pytest.raises(InputError, match="Expected a message of at most 100 bytes, got one of 1,152,921"):
            receive_frame(right, 100)


def test_refusals_are_read_whatever_their_length():
    assert refusal_in(refusal(joining.Key(), "é" * 10_000, 3))[1] == 3
    assert refusal_in(b"") is None


SCRIPT = """
import signal, sys, threading, time
from pathlib import Path
from federated import *
from kinfolk import GTVMin, fit
from kinfolk.federation.sockets import SocketPost, serve
from kinfolk.testing import difficult_network

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background ignores it

def stay(row, snapshot):
    if row["round"] == 2:
        print(post.address[1], flush=True)
        if sys.argv[2] == "failure":
            raise ZeroDivisionError
        if sys.argv[2] == "wait":
            time.sleep(600)

network = difficult_network()
services = services_of(network, 3, Path(sys.argv[1]))
with SocketPost() as post:
    for service in services.values():
        threading.Thread(target=serve, args=(service, post.address), daemon=True).start()
    federation = federation_of(network, 3, post)
    fit(federation.gather(), GTVMin(), rounds=3, stop=None, engine=federation, callbacks=[stay], progress=False)
"""


@pytest.mark.parametrize("how", ["success", "failure", "wait"])
def test_no_port_and_no_file_beside_the_folders_is_left_behind(how, tmp_path):
    """After success, failure and Ctrl-C."""
    place = made(tmp_path / "tmp")
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "sites"), how], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True, cwd=HERE, env={**os.environ, "TMPDIR": str(place), "PYTHONPATH": os.pathsep.join([str(HERE)])},
    )  # fmt: skip
    port = int(process.stdout.readline())
    if how == "wait":
        process.send_signal(signal.SIGINT)
    process.stdout.read()
    assert (process.wait(60) == 0) == (how == "success")
    SocketPost(port).close()
    assert list(place.iterdir()) == []
    assert {path.name for path in (tmp_path / "sites" / "site 0").iterdir()} == {
        "key", "lock", "pins.json", "rows", "current", "runs", "left.csv"
    }  # fmt: skip
