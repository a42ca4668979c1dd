"""The parts of a federation over Flower, without its processes: who is answered, what is sent again, and refused."""

import asyncio
import contextlib
import functools
import http.server
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from federated import services_of
from kinfolk import GTVMin, InputError, graphs
from kinfolk.engine.protocol import Missing
from kinfolk.engine.wire import Blob
from kinfolk.federation.carrier import refusal_in
from kinfolk.federation.files import locked
from kinfolk.federation.flower import post as post_module
from kinfolk.federation.flower import relay, site, tether
from kinfolk.federation.flower.certificates import (
    SERVER,
    SERVER_KEY,
    Contact,
    CoordinatorKey,
    make_certificates,
    make_node_key,
)
from kinfolk.federation.flower.fleet import Fleet
from kinfolk.federation.flower.gate import REFUSED, Gate
from kinfolk.federation.flower.plan import Plan
from kinfolk.federation.flower.post import FlowerPost
from kinfolk.federation.flower.processes import free_port
from kinfolk.federation.flower.records import blob_in, content_of
from kinfolk.federation.flower.superlink import HOME, SuperLink
from kinfolk.federation.joining import Schema
from kinfolk.testing import difficult_network

pytest.importorskip("flwr", reason='Flower is not installed: pip install "kinfolk[flower]"')


# ---------------------------------------------------------------------- asking


class FakeGrid:
    """A Grid whose nodes answer when a test lets them."""

    def __init__(self, *names):
        self.nodes = {name: self.node(name, number, "first") for number, name in enumerate(names, 1)}
        self.pushed, self.replies = [], []

    @staticmethod
    def node(name, number, activated):
        return SimpleNamespace(node_id=number, public_key=name.encode(), last_activated_at=activated)

    def get_nodes(self):
        return list(self.nodes.values())

    def push_messages(self, messages):
        first = len(self.pushed)
        self.pushed += messages
        return [str(number) for number in range(first, len(self.pushed))]

    def pull_messages(self, numbers):
        found = [reply for reply in self.replies if reply.metadata.reply_to_message_id in numbers]
        self.replies = [reply for reply in self.replies if reply not in found]
        return found

    def reply(self, number, blob=None, error="node_unavail"):
        metadata = SimpleNamespace(reply_to_message_id=str(number))
        content, why = None if blob is None else content_of(blob), SimpleNamespace(reason=error)
        self.replies.append(
            SimpleNamespace(metadata=metadata, has_content=lambda: content is not None, content=content, error=why)
        )


@pytest.fixture
def quick(monkeypatch):
    """Look often, as the ServerApp of some run."""
    monkeypatch.setattr(post_module, "LOOK", 0.02)
    monkeypatch.setattr(post_module, "pause", lambda since: 0.01)
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(f"flwr.supercore.task_identity.TaskIdentity.{name}", 1)


@pytest.fixture
def key(tmp_path):
    return CoordinatorKey.at(tmp_path / "coordinator.key")


def posted(grid, key, **options):
    return FlowerPost(grid, {name: name.encode() for name in grid.nodes}, key, **options)


def asking(post, blobs, seconds=10.0, most=100):
    """The answers of ``ask``, in a thread."""
    answers = {}
    thread = threading.Thread(target=lambda: answers.update(post.ask(blobs, dict.fromkeys(blobs, most), seconds)))
    thread.start()
    return thread, answers


def until(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_sites_are_asked_once_with_what_is_signed_for_them(quick, key):
    grid = FakeGrid("a", "b")
    thread, answers = asking(posted(grid, key), {"a": b"one", "b": b"two"})
    until(lambda: len(grid.pushed) == 2)
    contact = Contact("", "", key.public.hex())
    sent = {message.metadata.dst_node_id: blob_in(message.content) for message in grid.pushed}
    assert contact.opened("a", sent[1]) == b"one"
    assert contact.opened("b", sent[2]) == b"two"
    assert contact.opened("b", sent[1]) is None  # it is for a
    time.sleep(0.1)
    grid.reply(1, b"from b")
    grid.reply(0, b"from a")
    thread.join()
    assert answers == {"a": b"from a", "b": b"from b"}
    assert len(grid.pushed) == 2


def test_a_site_is_asked_again_when_its_successor_signs_in_or_flower_answers_in_its_place(quick, key):
    grid = FakeGrid("a")
    thread, answers = asking(posted(grid, key), {"a": b"one"})
    until(lambda: len(grid.pushed) == 1)
    grid.nodes["a"] = grid.node("a", 7, "second")
    until(lambda: len(grid.pushed) == 2)
    assert grid.pushed[1].metadata.dst_node_id == 7
    grid.reply(1)
    until(lambda: len(grid.pushed) == 3)
    grid.reply(0, b"late, but it counts")
    thread.join()
    assert answers == {"a": b"late, but it counts"}


def test_a_request_is_sent_again_after_a_while(quick, key):
    grid = FakeGrid("a")
    thread, _ = asking(posted(grid, key, resend=0.05), {"a": b"one"})
    until(lambda: len(grid.pushed) >= 4)
    grid.reply(0, b"x")
    thread.join()
    waited = np.diff([message.metadata.created_at for message in grid.pushed])[:3]
    assert (waited > [0.04, 0.09, 0.19]).all()  # less and less often: it may just be busy


def test_a_site_that_does_not_answer_in_time_is_missing_and_so_is_one_that_sends_too_much(quick, key):
    grid = FakeGrid("a", "b", "c")
    post = posted(grid, key)
    del grid.nodes["b"]
    thread, answers = asking(post, {"a": b"one", "b": b"two", "c": b"three"}, seconds=3.0)
    until(lambda: len(grid.pushed) == 2)
    grid.reply(1, bytes(5000))
    thread.join()
    assert answers == {
        "a": Missing("no answer in time, it is connected"),
        "b": Missing("no answer in time, it is not connected"),
        "c": Missing("it sent 5,000 bytes, at most 100 were expected"),
    }


def test_all_sites_are_waited_for_and_those_away_are_named(quick, key):
    grid = FakeGrid("a", "b")
    post = posted(grid, key)
    post.wait_for_all(0.0)
    del grid.nodes["b"]
    time.sleep(0.05)
    with pytest.raises(InputError, match="Expected all sites within 0 seconds, 'b' did not connect: start them"):
        post.wait_for_all(0.1)


def test_a_node_with_another_key_is_no_site(quick, key):
    """Whoever has the name of a site, but not its key, is not asked."""
    grid = FakeGrid("a")
    post = posted(grid, key)
    grid.nodes["a"].public_key = b"another"
    assert post.ask({"a": b"one"}, {"a": 100}, 0.2) == {"a": Missing("no answer in time, it is not connected")}
    assert grid.pushed == []


def test_sites_that_leave_without_an_answer_have_ended(quick, key):
    grid = FakeGrid("a", "b")
    post = posted(grid, key)
    thread = threading.Thread(target=post.end)
    thread.start()
    until(lambda: len(grid.pushed) == 2)
    grid.reply(0, b"")
    del grid.nodes["b"]
    thread.join(10)
    assert not thread.is_alive()


# ---------------------------------------------------------------------- answering


def test_only_the_coordinator_is_answered(key, tmp_path):
    (service,) = services_of(difficult_network(), 1, tmp_path / "sites").values()
    contact = Contact("", "", key.public.hex())
    hello = Schema().hello("test")
    stranger = CoordinatorKey.at(tmp_path / "stranger.key")
    for content in (b"", hello, stranger.signed("site 0", hello), key.signed("site 1", hello)):
        answer, ended = site.answer(service, contact, content)
        assert refusal_in(answer)[0] == "Expected a message that the coordinator of this federation has signed."
        assert not ended
    answer, ended = site.answer(service, contact, key.signed("site 0", hello))
    assert refusal_in(answer) is None
    assert not ended
    assert site.answer(service, contact, key.signed("site 0", Blob("end").encode())) == (b"", True)
    assert not site.answer(service, contact, Blob("end").encode())[1]
    service.close()


def test_the_relay_brings_blobs_to_the_resident_process_and_back(key, tmp_path):
    (service,) = services_of(difficult_network(), 1, tmp_path / "sites").values()
    contact, ended = Contact("", "", key.public.hex()), threading.Event()
    path = site.socket_folder(tmp_path)
    with site._private_folder(tmp_path) as folder:
        assert folder == path
        assert folder.stat().st_mode & 0o777 == 0o700
        with relay.listener(folder / "site") as listener:
            thread = threading.Thread(target=site._accept, args=(service, contact, listener, ended), daemon=True)
            thread.start()
            broken = socket.socket(socket.AF_UNIX)
            broken.connect(str(folder / "site"))
            broken.close()  # who leaves in the middle does no harm
            hello = key.signed("site 0", Schema().hello("test"))
            assert relay.ask(str(folder / "site"), hello) == site.answer(service, contact, hello)[0]
            assert relay.ask(str(folder / "site"), key.signed("site 0", Blob("end").encode())) == b""
            assert ended.wait(10)
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(10)
    assert not path.exists()
    service.close()


# ---------------------------------------------------------------------- what is refused


@pytest.fixture
def node(tmp_path):
    make_node_key(tmp_path / "node.key")
    return tmp_path / "node.key"


def test_a_superlink_that_is_not_there_is_tried_again_and_then_named(key, node, tmp_path):
    make_certificates(tmp_path / "tls")
    contact = Contact.of(f"127.0.0.1:{free_port()}", tmp_path / "tls", key)
    told = []
    with (
        Fleet(contact, node, tmp_path / "memory") as fleet,
        pytest.raises(InputError, match=r"Expected the SuperLink at 127.0.0.1:\d+, it cannot be reached since 1 "),
    ):
        fleet.connect(threading.Event(), 1.0, told.append)
    assert told == [f"The SuperLink at {contact.address} cannot be reached: trying again."]


class Refusing(http.server.BaseHTTPRequestHandler):
    """A SuperLink that does not let a site sign in: its key is not registered, or somebody else uses it."""

    def do_POST(self):
        self.send_error(403)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def superlink_with(certificates):
    """The address of a server that has such certificates, and lets nobody sign in."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / SERVER, certificates / SERVER_KEY)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        server.handle_error = lambda *_: None
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_superlink_with_another_certificate_is_refused_at_once(key, node, tmp_path):
    for name in ("ours", "theirs"):
        make_certificates(tmp_path / name)
    with (
        superlink_with(tmp_path / "theirs") as address,
        Fleet(Contact.of(address, tmp_path / "ours", key), node, tmp_path / "memory") as fleet,
        pytest.raises(InputError, match=r"Expected the certificate of this federation at .*, got another: ask"),
    ):
        fleet.connect(threading.Event(), 60.0, print)


def test_a_key_that_is_in_use_or_not_invited_gets_a_sentence(key, node, tmp_path):
    make_certificates(tmp_path / "tls")
    with (
        superlink_with(tmp_path / "tls") as address,
        Fleet(Contact.of(address, tmp_path / "tls", key), node, tmp_path / "memory") as fleet,
        pytest.raises(InputError, match=r"it refuses that of this site \(403\): another process uses it, or the site"),
    ):
        fleet.connect(threading.Event(), 0.0, print)


def test_a_key_that_is_none_is_refused(key, tmp_path):
    (tmp_path / "node.key").write_text("no key")
    with pytest.raises(InputError, match=r"Expected the key of a site in .*: ask for a new invitation"):
        Fleet(Contact("127.0.0.1:1", "", key.public.hex()), tmp_path / "node.key", tmp_path / "memory")


def test_a_port_or_a_folder_in_use_is_refused_before_anything_starts(tmp_path):
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(InputError, match=r"Expected a free port at 127.0.0.1"),
    ):
        SuperLink(tmp_path, taken.getsockname()[1], {})
    with (
        locked(tmp_path / HOME),
        pytest.raises(InputError, match="Expected a folder that nobody uses"),
    ):
        SuperLink(tmp_path, free_port(), {})
    assert tether.descendants(os.getpid()) == {}


def test_private_files_are_private(key, node, tmp_path):
    make_certificates(tmp_path / "tls")
    for path in (node, tmp_path / "coordinator.key", tmp_path / "tls" / SERVER_KEY, tmp_path / "tls" / "ca.key"):
        assert path.stat().st_mode & 0o077 == 0


def test_other_machines_get_no_further_than_sites_have_to():
    async def app(scope, receive, send):
        await send({"type": "http.response.body", "body": b"inside"})

    def asked(path, client, kind="http"):
        sent, scope = [], {"type": kind, "path": path, "client": client, "server": ("10.0.0.9", 8000)}
        asyncio.run(Gate(app)(scope, None, functools.partial(collect, sent)))
        return sent[-1].get("body", sent[-1]["type"])

    async def collect(sent, message):
        sent.append(message)

    for client in (("10.0.0.5", 1), ("::ffff:10.0.0.5", 1), ("2001:db8::1", 1), None, ("nobody", 1)):
        assert asked("/v1/fleet/pull-messages", client) == b"inside"
        for path in ("/v1/control/start-run", "/v1/runtime/pull-messages", "/", "/v1/fleetx"):
            assert asked(path, client) == REFUSED
        assert asked("/v1/control/start-run", client, "websocket") == "websocket.close"
    for client in (("127.0.0.1", 1), ("::1", 1), ("::ffff:127.0.0.1", 1), ("10.0.0.9", 1)):
        assert asked("/v1/control/start-run", client) == b"inside"


def test_a_plan_names_what_does_not_fit(tmp_path):
    plan = Plan("test", graphs.chain(2), {}, Schema(), GTVMin(), options={"wrong": 1})
    with pytest.raises(InputError, match=r"Expected options among rounds, .*, got wrong"):
        plan.write(tmp_path)
    with pytest.raises(InputError, match="Expected the plan of a federation in"):
        Plan.read(tmp_path)
    Plan("test", graphs.chain(2), {}, Schema(), "nowhere:algorithm").write(tmp_path)
    with pytest.raises(InputError, match="'nowhere:algorithm' cannot be imported"):
        Plan.read(tmp_path)


# ---------------------------------------------------------------------- processes

OWNER = """
import sys, time
from pathlib import Path
from kinfolk.federation.flower.processes import Program
program = Program([sys.executable, "-c", sys.argv[1]], Path(sys.argv[2]), Path(sys.argv[2]) / "log", grace=1.0)
print("ready", flush=True)
with program:
    time.sleep(600)
"""
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_program_and_all_that_it_has_started_end_with_their_owner(number, tmp_path):
    """However the owner ends, and whether or not the program obeys."""
    owner = OWNER.replace(
        "import Program", "import Program; from kinfolk.federation.flower import processes; processes.GRACE = 1.0"
    )
    owner = f"import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n{owner}"  # a shell may ignore it
    process = subprocess.Popen(
        [sys.executable, "-c", owner, STUBBORN, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    until(lambda: len(tether.descendants(process.pid)) == 3)  # tether, program, and what that has detached
    known = tether.descendants(process.pid)
    process.send_signal(number)
    process.wait()
    until(lambda: tether.alive(known) == [])
    process.stdout.close()
