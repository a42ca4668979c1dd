"""What does a round cost on each engine? The same partition into two sites, one engine after the other in turn.

    python benchmarks/engines.py [WORD]      # only cases with this word

GTVMin on rings of 150 and 3,107 nodes, and FedRelax with forests on 24 nodes, where local work takes long. In this
process on one processor, and so with one thread at a time; on two actors of Ray; and in a federation of two processes
over sockets, whose sites keep every request on the disk before they answer. As users get it: every tenth round is
measured, and on Ray the others are chained from actor to actor; the rounds before are not counted, as the first ten are
measured one by one. Shown is the median of several repetitions, in milliseconds per round, the ratio to one process,
and how often as fast Ray is.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.ensemble import RandomForestRegressor

from kinfolk import FedRelax, GTVMin, InProcess, Network, Ray, fit, graphs, public
from kinfolk.federation.coordinator import Federation
from kinfolk.federation.joining import Schema
from kinfolk.federation.rows import SiteRows
from kinfolk.federation.service import SiteService
from kinfolk.federation.sockets import SocketPost, serve
from kinfolk.network.problem import Problem
from kinfolk.network.site import sites_of

REPETITIONS = 3


def chain_of_neighbours(nodes: int, features: int = 10) -> Network:
    """Nodes on a ring that know the next three, ten rows each."""
    rng = np.random.default_rng(0)
    angle = np.arange(nodes) * 2 * np.pi / nodes
    places = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    data = [(rng.normal(size=(10, features)), rng.normal(size=10)) for _ in range(nodes)]
    return Network(graphs.knn(places, 6), data)


def forests(nodes: int = 24) -> Network:
    """Few nodes with 500 rows each, and common points."""
    rng = np.random.default_rng(0)
    network = Network(graphs.chain(nodes), [(rng.normal(size=(500, 8)), rng.normal(size=500)) for _ in range(nodes)])
    return network.with_public(public.standard_normal(network, 50))


def seconds_per_round(problem: Problem, algorithm: Any, engine: Any, before: int, rounds: int) -> float:
    """The time of so many rounds, without those before and what a run costs however short it is."""
    settings: dict[str, Any] = {"stop": None, "progress": False, "engine": engine}
    short, long = (
        _seconds(lambda count=count: fit(problem, algorithm, rounds=count, **settings))
        for count in (before, before + rounds)
    )
    return (long - short) / rounds


@contextlib.contextmanager
def one_processor() -> Iterator[None]:
    """This process, and all its threads, on one processor."""
    every = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(every)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, every)


def _seconds(work: Any) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


CASES: dict[str, tuple[Network, Any, int, int]] = {  # rounds before, and rounds that are counted
    "GTVMin, 150 nodes": (chain_of_neighbours(150), GTVMin(), 10, 100),
    "GTVMin, 3,107 nodes": (chain_of_neighbours(3107), GTVMin(), 10, 100),
    "FedRelax, 24 forests of 20 trees": (forests(), FedRelax(RandomForestRegressor(20)), 1, 2),
}


def site(name: str, rows: SiteRows, algorithm: Any, folder: str, address: tuple[str, int]) -> None:
    """One site of the federation, in a process of its own."""
    serve(SiteService(name, rows, Path(folder) / name, algorithm), address)


@contextlib.contextmanager
def federation(network: Network, algorithm: Any) -> Iterator[Federation]:
    """A federation of two processes."""
    processes = []
    with tempfile.TemporaryDirectory() as folder, SocketPost() as post:
        for k, part in enumerate(sites_of(network, 2)):
            given = (f"site {k}", SiteRows.of(network, part.nodes), algorithm, folder, post.address)
            processes.append(get_context("spawn").Process(target=site, args=given))
            processes[-1].start()
        yield Federation(network.graph, ["site 0", "site 1"], post, Schema(network.features), network.public)
        post.close()
        for process in processes:
            process.join()


def main(word: str = "") -> None:
    """Measure, and print a table."""
    columns = ("in process", "Ray", "federation")
    table = Table("ms per round", *columns, "Ray / in process", "federation / in process", "Ray: times as fast")
    for title, (network, algorithm, *counts) in CASES.items():
        if word not in title:
            continue
        with federation(network, algorithm) as far:
            engines: list[tuple[Problem, Any]] = [(network, InProcess(2)), (network, Ray(2)), (far.gather(), far)]
            times: list[list[float]] = [[] for _ in engines]
            for repetition in range(1 + REPETITIONS):
                for k, (problem, engine) in enumerate(engines):
                    with one_processor() if engine == InProcess(2) else contextlib.nullcontext():
                        taken = 1e3 * seconds_per_round(problem, algorithm, engine, *counts)
                    if repetition:  # the first one compiles
                        times[k].append(taken)
        here, actors, apart = (statistics.median(found) for found in times)
        ratios = (f"{actors / here:.2f}", f"{apart / here:.2f}", f"{here / actors:.2f}")
        table.add_row(title, f"{here:,.2f}", f"{actors:,.2f}", f"{apart:,.2f}", *ratios)
    Ray().close()
    Console().print(table)


if __name__ == "__main__":
    main(*sys.argv[1:])
