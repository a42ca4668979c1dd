"""What does an exchange cost over Flower? Two sites and a SuperLink on this machine, with TLS and keys.

    python benchmarks/flower.py

GTVMin on a ring of 150 nodes. Shown is the median of the rounds, each of which is two exchanges: a step and a
measurement. First sites that are nodes of Flower themselves, then sites behind SuperNodes.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import statistics
import tempfile
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path

from engines import chain_of_neighbours
from rich.console import Console
from rich.table import Table

from kinfolk import GTVMin, Network
from kinfolk.federation.flower.certificates import Contact, CoordinatorKey, make_node_key
from kinfolk.federation.flower.coordinator import KEY, PROGRESS
from kinfolk.federation.flower.plan import Plan
from kinfolk.federation.flower.processes import free_port, stopped_by_signals
from kinfolk.federation.flower.site import Way, serve
from kinfolk.federation.flower.superlink import CERTIFICATES, SuperLink
from kinfolk.federation.joining import Schema
from kinfolk.federation.rows import SiteRows
from kinfolk.federation.service import SiteService
from kinfolk.network.site import sites_of

ROUNDS, PATIENCE = 8, 600.0
WAYS: tuple[Way, ...] = ("direct", "supernode")


def site(name: str, rows: SiteRows, root: Path, contact: Contact, way: Way) -> None:
    """One site, in a process of its own."""
    with contextlib.closing(SiteService(name, rows, root / name)) as service, stopped_by_signals() as stop:
        serve(service, contact, root / "keys" / name, stop, way=way)


@contextlib.contextmanager
def sites(rows: dict[str, SiteRows], root: Path, contact: Contact, way: Way) -> Iterator[None]:
    """A process for every site."""
    start = get_context("spawn").Process
    processes = [start(target=site, args=(name, each, root, contact, way)) for name, each in rows.items()]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            if process.pid is not None and process.is_alive():
                os.kill(process.pid, signal.SIGTERM)
            process.join()


def seconds_per_exchange(network: Network, way: Way, root: Path) -> float:
    """Run a federation, and look when its rounds ended."""
    rows = {f"site {k}": SiteRows.of(network, part.nodes) for k, part in enumerate(sites_of(network, 2))}
    nodes = {name: make_node_key(root / "keys" / name) for name in rows}
    options = {"rounds": ROUNDS, "tolerance": None}
    Plan("benchmark", network.graph, nodes, Schema(network.features), GTVMin(), options=options).write(root)
    with SuperLink(root, free_port(), nodes) as link:
        contact = Contact.of(link.address, root / CERTIFICATES, CoordinatorKey.at(root / KEY))
        with sites(rows, root, contact, way):
            link.wait_for_run(link.start_run(), PATIENCE)
    times = [json.loads(line)["time"] for line in (root / PROGRESS).read_text().splitlines()]
    return statistics.median(after - before for before, after in itertools.pairwise(times)) / 2


def main() -> None:
    """Measure, and print a table."""
    table = Table("how a site runs", "seconds per exchange")
    for way in WAYS:
        with tempfile.TemporaryDirectory() as folder:
            table.add_row(way, f"{seconds_per_exchange(chain_of_neighbours(150), way, Path(folder)):.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
