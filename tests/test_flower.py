"""A federation over Flower: SuperLink, TLS, keys, a process for every site; the same bits as in one process."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pandas
import pytest

from federated import assert_same_run, rows_of, site_names
from kinfolk import GTVMin, InProcess, fit
from kinfolk.federation.flower import tether
from kinfolk.federation.flower.certificates import Contact, CoordinatorKey, make_node_key
from kinfolk.federation.flower.coordinator import HISTORY, KEY, PROGRESS
from kinfolk.federation.flower.plan import Plan
from kinfolk.federation.flower.processes import free_port
from kinfolk.federation.flower.superlink import CERTIFICATES, SuperLink
from kinfolk.federation.joining import Schema
from kinfolk.federation.service import SiteService
from kinfolk.testing import difficult_network

pytest.importorskip("flwr", reason='Flower is not installed: pip install "kinfolk[flower]"')
HERE = Path(__file__).parent
COUNT = 4
OPTIONS = {"rounds": 9, "measure_every": 3}


def start_site(folder, site, way):
    """A process, in a group of its own."""
    command = [sys.executable, HERE / "flower_site.py", folder, site, COUNT, way]
    with (folder / f"site-{site}.log").open("a") as log:
        words = list(map(str, command))
        return subprocess.Popen(words, stdout=log, stderr=log, cwd=HERE, start_new_session=True)


def rows_so_far(folder):
    path = folder / PROGRESS
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait_for(condition, seconds, what, sites=()):
    deadline = time.monotonic() + seconds
    while not condition():
        assert all(site.poll() is None for site in sites), "a site has ended"
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.2)


def test_a_federation_over_flower_ends_at_the_same_bits(tmp_path):
    """Four sites, one of them behind an ordinary SuperNode; another is killed with -9 on the way, and started again."""
    began = time.monotonic()

    def note(what):
        print(f"{time.monotonic() - began:6.1f} s  {what}", flush=True)

    network, algorithm, port = difficult_network(), GTVMin(lam=0.1), free_port()
    here = fit(network, algorithm, engine=InProcess(COUNT), stop=None, progress=False, **OPTIONS)
    names = site_names(COUNT)
    nodes = {name: make_node_key(tmp_path / "keys" / name) for name in names}
    plan = Plan(
        "test", network.graph, nodes, Schema(network.features), algorithm, options={**OPTIONS, "tolerance": None}
    )
    plan.write(tmp_path)
    note("set up")
    sites = []
    try:
        with SuperLink(tmp_path, port, nodes=nodes) as link:
            note("SuperLink")
            contact = Contact.of(link.address, tmp_path / CERTIFICATES, CoordinatorKey.at(tmp_path / KEY))
            (tmp_path / "contact.json").write_text(json.dumps(asdict(contact)))
            ways = sys.modules[__name__].WAYS
            sites = [start_site(tmp_path, site, way) for site, way in enumerate(ways)]
            run = link.start_run(end_sites=True)
            note("run started")
            wait_for(lambda: len(rows_so_far(tmp_path)) >= 4, 200, "four rows", sites)
            note("killing")
            os.killpg(sites[1].pid, signal.SIGKILL)
            sites[1].wait()
            sites[1] = start_site(tmp_path, 1, "direct")
            outcome = link.wait_for_run(run, 300)
            note(outcome)
            codes = [site.wait(60) for site in sites]
            note(codes)
            known = tether.descendants(os.getpid())
    finally:
        for site in sites:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(site.pid, signal.SIGKILL)
            site.wait()
    note("closed")
    for row in rows_so_far(tmp_path):
        print(row["round"], row["time"] - rows_so_far(tmp_path)[0]["time"])
    print(len(known), tether.alive(known))


WAYS = ["direct", "direct", "direct", "supernode"]
