"""A federation over Flower: SuperLink, TLS, keys, a process for every site; the same bits as in one process."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pandas
import pytest

from federated import assert_same_run, rows_of, site_names
from flower_site import MODELS, service_at
from kinfolk import FedRelax, GTVMin, InProcess, InputError, LinearModel, fit
from kinfolk.federation.flower import tether
from kinfolk.federation.flower.certificates import Contact, CoordinatorKey, make_node_key
from kinfolk.federation.flower.coordinator import HISTORY, JOURNALS, KEY, PROGRESS
from kinfolk.federation.flower.fleet import Fleet
from kinfolk.federation.flower.plan import Plan
from kinfolk.federation.flower.processes import check_port, free_port
from kinfolk.federation.flower.site import HOME, socket_folder
from kinfolk.federation.flower.superlink import CERTIFICATES, SuperLink
from kinfolk.federation.joining import Schema
from kinfolk.testing import difficult_network

pytest.importorskip("flwr", reason='Flower is not installed: pip install "kinfolk[flower]"')
HERE = Path(__file__).parent
COUNT = 4
ROUNDS = 4  # with joining, and a measurement for every round, twelve exchanges
OPTIONS = {"rounds": ROUNDS, "measure_every": 3}


class Sites:
    """Processes of sites, each in a group of its own."""

    def __init__(self, folder, ways):
        self.folder, self.ways = folder, ways
        self.processes = {}

    def __enter__(self):
        for site in range(len(self.ways)):
            self.start(site)
        return self

    def start(self, site):
        words = [sys.executable, HERE / "flower_site.py", self.folder, site, len(self.ways), self.ways[site]]
        with self.log(site).open("a") as log:
            self.processes[site] = subprocess.Popen(
                list(map(str, words)), stdout=log, stderr=log, cwd=HERE, start_new_session=True
            )

    def log(self, site):
        return self.folder / f"site-{site}.log"

    def kill(self, site):
        os.killpg(self.processes[site].pid, signal.SIGKILL)
        self.processes[site].wait()

    def check(self):
        for site, process in self.processes.items():
            assert process.poll() in (None, 0), self.log(site).read_text()

    def __exit__(self, *_):
        for site, process in self.processes.items():
            if process.poll() is None:
                self.kill(site)


def rows_so_far(folder):
    """The rows of the history that the coordinator has written."""
    path = folder / PROGRESS
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait_for_round(number, folder, sites, seconds=240):
    deadline = time.monotonic() + seconds
    while not any(row["round"] >= number for row in rows_so_far(folder)):
        sites.check()
        assert time.monotonic() < deadline, (folder / "flower" / "superlink.log").read_text()[-2000:]
        time.sleep(0.2)


def keys_of(folder, count):
    """Keys that sites sign in with; their public parts."""
    return {name: make_node_key(folder / "keys" / name) for name in site_names(count)}


def planned(folder, network, algorithm, nodes):
    """Write the plan of a federation."""
    schema, options = Schema(network.features), {**OPTIONS, "tolerance": None}
    Plan("test", network.graph, nodes, schema, algorithm, network.public, options).write(folder)


def invite(folder, address):
    contact = Contact.of(address, folder / CERTIFICATES, CoordinatorKey.at(folder / KEY))
    (folder / "contact.json").write_text(json.dumps(asdict(contact)))


def assert_same_as_here(folder, network, algorithm, count):
    """History and models are those of one process, to the last bit."""
    if isinstance(algorithm, FedRelax):
        homes = {node: site for site, rows in enumerate(rows_of(network, count).values()) for node in rows.nodes}
        algorithm = replace(algorithm, model=lambda node: MODELS[homes[node]])
    here = fit(network, algorithm, engine=InProcess(count), stop=None, progress=False, **OPTIONS)
    history = pandas.read_csv(folder / HISTORY, index_col=0, dtype=str).astype(float)  # to the last bit
    with contextlib.ExitStack() as stack:
        services = [stack.enter_context(contextlib.closing(service_at(folder, site, count))) for site in range(count)]
        there = SimpleNamespace(history=history, stopped=here.stopped)
        assert_same_run(here, there, {service.name: service for service in services})


def test_a_federation_over_flower_ends_at_the_same_bits_and_leaves_nothing_behind(tmp_path):
    """Four sites with models of their own, one behind a SuperNode; it and another are killed with -9 on the way."""
    network, algorithm, port = difficult_network(), FedRelax(LinearModel(), lam=0.2), free_port()
    nodes = keys_of(tmp_path, COUNT)
    planned(tmp_path, network, algorithm, nodes)
    known = {}
    with SuperLink(tmp_path, port, nodes) as link:
        invite(tmp_path, link.address)
        with Sites(tmp_path, ["direct", "direct", "direct", "supernode"]) as sites:
            run = link.start_run(end_sites=True)
            wait_for_round(1, tmp_path, sites)
            known |= tether.descendants(os.getpid())
            for site in (1, 3):
                sites.kill(site)
                sites.start(site)
            outcome = link.wait_for_run(run, 300)
            known |= tether.descendants(os.getpid())
            assert [process.wait(60) for process in sites.processes.values()] == [0, 0, 0, 0]  # they were told to end
    assert outcome["rounds"] == ROUNDS
    assert len(known) > 10  # two of them for the SuperLink, three for the SuperNode
    assert tether.alive(known) == []
    check_port("127.0.0.1", port)
    assert not socket_folder(tmp_path / "sites" / "site 3" / HOME).exists()
    assert_same_as_here(tmp_path, network, algorithm, COUNT)


def assert_strangers_are_refused(folder):
    """A key that was not registered does not sign in."""
    make_node_key(folder / "stranger")
    contact = Contact(**json.loads((folder / "contact.json").read_text()))
    with (
        Fleet(contact, folder / "stranger", folder / "memory") as fleet,
        pytest.raises(InputError, match=r"Expected a key that the SuperLink at .* knows, it refuses that of this site"),
    ):
        fleet.connect(threading.Event(), 0.0, print)


def test_a_superlink_that_is_killed_and_started_again_goes_on(tmp_path):
    """The coordinator dies with it; sites sign in again, and what they have answered is not asked for again.

    A key that nobody knows, and a plan that does not fit, are refused in between.
    """
    network, algorithm, port = difficult_network(), GTVMin(lam=0.1), free_port()
    nodes = keys_of(tmp_path, 2)
    planned(tmp_path, network, algorithm, nodes)
    with contextlib.ExitStack() as stack:
        with SuperLink(tmp_path, port, nodes) as link:
            invite(tmp_path, link.address)
            sites = stack.enter_context(Sites(tmp_path, ["direct", "direct"]))
            link.start_run()
            wait_for_round(2, tmp_path, sites)
            os.kill(link.program.pid, signal.SIGKILL)
        answered = (tmp_path / JOURNALS / "answers-1").stat().st_size
        with SuperLink(tmp_path, port, nodes) as link:
            assert_strangers_are_refused(tmp_path)
            replace(Plan.read(tmp_path), schema=Schema(["income"])).write(tmp_path)
            with pytest.raises(InputError, match=r"^Site 'site 0' refuses\. Expected the columns 'income'"):
                link.wait_for_run(link.start_run(), 300)
            planned(tmp_path, network, algorithm, nodes)
            outcome = link.wait_for_run(link.start_run(), 300)
            for process in sites.processes.values():
                process.terminate()
            assert [process.wait(60) for process in sites.processes.values()] == [0, 0]
            assert link.online() == []  # they said goodbye
    assert answered > 1000
    assert outcome["rounds"] == ROUNDS
    assert_same_as_here(tmp_path, network, algorithm, 2)
