"""What does a federation of a given size cost? Bytes, exchanges, memory, and the load of the relay, measured.

    python benchmarks/cost_runs.py federations [--all]      # lines are added to benchmarks/cost_runs.csv
    python benchmarks/cost_runs.py rounds [--all]           # ... to benchmarks/cost_rounds.csv

Rounds of GTVMin with sites in other processes, over sockets, sealed, with all journals. A process has one site, whose
memory is then its own, or, where there are more sites than processes, several of them in threads. Three kinds of
networks differ in what has to travel:

=====  ==========================================================================================
ring   every node knows the next three; a site is a piece of the ring and has two neighbouring sites
map    a grid; a site is a tile, its border grows as the root of its nodes
mixed  every node knows three others, wherever they are: all sites are neighbours of all
=====  ==========================================================================================

``benchmarks/cost_model.py`` fits a model to these lines.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import gc
import os
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from kinfolk import Graph, GTVMin, InProcess, Network, Tolerance, fit
from kinfolk.engine.protocol import Missing
from kinfolk.federation.carrier import Post
from kinfolk.federation.coordinator import Federation
from kinfolk.federation.joining import Schema
from kinfolk.federation.rows import SiteRows
from kinfolk.federation.service import SiteService, peek
from kinfolk.federation.sockets import SocketPost, serve
from kinfolk.network.data import Data

HERE = Path(__file__).parent
RUNS, ROUNDS_NEEDED = HERE / "cost_runs.csv", HERE / "cost_rounds.csv"
KNOWN = 3  # others that every node knows, on a ring or anywhere
ROWS = 3  # of every node
ROUNDS = 20
EXCHANGES = 1 + ROUNDS + 2  # begin, rounds, and a measurement at either end
MOST_PROCESSES, FEW_PROCESSES = 8, 4  # with a site each; where there are more sites
RESIDUAL, MOST_ROUNDS = 1e-4, 10_000


# ---------------------------------------------------------------------- networks


@dataclass(frozen=True)
class Case:
    """A network and how it is cut."""

    kind: str
    nodes: int  # about; a map has as many as fit into square tiles
    sites: int
    features: int = 4


def tiles(sites: int) -> tuple[int, int]:
    """Rows and columns of tiles, as square as possible.

    >>> tiles(200)
    (10, 20)
    """
    rows = next(k for k in range(int(sites**0.5), 0, -1) if sites % k == 0)
    return rows, sites // rows


def edges_of(case: Case) -> tuple[int, Any]:
    """The number of nodes, and pairs of nodes; consecutive nodes are at the same site."""
    if case.kind == "map":
        return _map(case)
    here = np.repeat(np.arange(case.nodes), KNOWN)
    there = here + np.tile(np.arange(1, KNOWN + 1), case.nodes)
    if case.kind == "mixed":
        there = here + np.random.default_rng(0).integers(1, case.nodes, len(here))
    pairs = np.sort(np.stack([here, there % case.nodes], axis=1), axis=1)
    return case.nodes, np.unique(pairs, axis=0)


def _map(case: Case) -> tuple[int, Any]:
    rows, columns = tiles(case.sites)
    side = max(round((case.nodes / case.sites) ** 0.5), 1)
    number = np.arange(case.sites * side**2).reshape(rows, columns, side, side)  # tile by tile
    grid = number.transpose(0, 2, 1, 3).reshape(rows * side, columns * side)
    joined = ((grid[:, :-1], grid[:, 1:]), (grid[:-1], grid[1:]))
    return grid.size, np.concatenate([np.stack([one.ravel(), other.ravel()], axis=1) for one, other in joined])


def network_of(case: Case) -> Network:
    """Noisy rows of two models, half of the nodes each, with the edges of the case."""
    nodes, pairs = edges_of(case)
    rng = np.random.default_rng(1)
    owner = np.repeat(np.arange(nodes), ROWS)
    X = rng.normal(size=(len(owner), case.features))
    y = X.sum(axis=1) * np.where(owner < nodes // 2, 1.0, -1.0) + rng.normal(size=len(owner))
    return Network(Graph(nodes, pairs), Data.from_rows(X, y, owner, nodes))


@dataclass(frozen=True)
class Counts:
    """What has to be known of a network that is cut into sites, to say what it costs."""

    nodes: float
    edges: float
    sites: float
    features: float
    boundary: float  # rows that all sites send to neighbouring sites in an exchange
    pairs: float  # letters in an exchange: of every site to each neighbouring one
    own_nodes: float  # of the largest site
    own_edges: float  # that touch it
    own_letters: float  # that it sends
    crossing: float  # edges that two sites know


def counted(graph: Graph, case: Case) -> Counts:
    """Counts of a network as it is."""
    blocks = np.array_split(np.arange(graph.node_count), case.sites)
    home = np.repeat(np.arange(case.sites), [len(block) for block in blocks])
    ends = np.stack([np.concatenate([graph.head, graph.tail]), np.concatenate([graph.tail, graph.head])])
    ends = ends[:, home[ends[0]] != home[ends[1]]]  # each crossing edge in either direction
    sent = np.unique(np.stack([home[ends[1]], ends[0]]), axis=1)  # (receiving site, node)
    letters = np.unique(np.stack([home[sent[1]], sent[0]]), axis=1)
    known = np.bincount(home[graph.head], minlength=case.sites) + np.bincount(home[graph.tail], minlength=case.sites)
    known -= np.bincount(home[graph.head][home[graph.head] == home[graph.tail]], minlength=case.sites)
    each = np.bincount(letters[0], minlength=case.sites)
    return Counts(
        graph.node_count, graph.edge_count, case.sites, case.features, sent.shape[1], letters.shape[1],
        max(map(len, blocks)), int(known.max()), int(each.max()), ends.shape[1] // 2,
    )  # fmt: skip


# ---------------------------------------------------------------------- a federation, measured


@dataclass(frozen=True)
class Measured:
    """One line of the table: a case, its counts, and what was measured."""

    kind: str
    nodes: int
    edges: int
    sites: int
    features: int
    boundary: int
    pairs: int
    own_nodes: int
    own_edges: int
    own_letters: int
    crossing: int
    processes: int  # with sites in them
    algorithm_bytes: int  # that the algorithm sent in the run, as if every node were a site
    hello_in: int  # bytes that the relay received when the sites introduced themselves
    join_out: int  # bytes that it sent for the sites to join
    step_in: int  # bytes that it received in an ordinary exchange
    step_out: int
    report_in: int  # ... in a round whose numbers the coordinator reads
    measure_in: int  # ... in a measurement
    measure_out: int
    journal: int  # bytes of the coordinator's journal for an exchange
    site_journal: int  # the same for the largest site
    site_ledger: int
    relay_cpu: float  # processor seconds of the relay per exchange
    site_cpu: float  # ... of a site, on average
    seconds: float  # per exchange
    memory: int  # peak of the process of a site; 0 where it has several
    relay_memory: int
    load: float  # of the machine


class Counting:
    """Passes everything on, and writes down bytes and seconds by what is asked for."""

    def __init__(self, post: Post) -> None:
        self.post = post
        self.bytes: dict[str, list[tuple[int, int]]] = defaultdict(list)  # sent, received

    def ask(self, blobs: Mapping[str, bytes], most: Mapping[str, int], seconds: float) -> Mapping[str, bytes | Missing]:
        """Ask the sites."""
        answers = self.post.ask(blobs, most, seconds)
        found = [answer for answer in answers.values() if not isinstance(answer, Missing)]
        self.bytes[work_of(next(iter(blobs.values())))].append((sum(map(len, blobs.values())), sum(map(len, found))))
        return answers


def work_of(blob: bytes) -> str:
    """What a message asks a site to do; a step whose numbers the coordinator reads is a report."""
    kind, _ = peek(blob)
    if kind != "request":
        return kind
    work = next(each for each in ("begin", "step", "measure") if f'"work":"{each}"'.encode() in blob)
    return "report" if work == "step" and any(f'"round":{k},'.encode() in blob for k in range(10, 99, 10)) else work


def peak_memory() -> int:
    """Bytes, of this process; since ``forget_peak``, if that was called."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def forget_peak() -> None:
    """Let the peak begin anew."""
    gc.collect()
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


class TimedService(SiteService):
    """A site that adds up the processor time of its work."""

    def __init__(self, name: str, rows: SiteRows, folder: Path) -> None:
        super().__init__(name, rows, folder)
        self.taken: list[float] = []

    def _request(self, content: bytes) -> bytes:
        began = time.thread_time()
        answer = super()._request(content)
        self.taken.append(time.thread_time() - began)
        return answer


def hosted(pipe: Connection) -> None:
    """A process with some sites; when they have ended it tells what they took."""
    sites, folder, address = pipe.recv()
    services = [TimedService(name, rows, Path(folder) / name) for name, rows in sites.items()]
    threads = [threading.Thread(target=serve, args=(service, address)) for service in services]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    journals = [sum(f.stat().st_size for f in (each.folder / "runs").rglob("requests")) for each in services]
    ledgers = [(each.folder / "left.csv").stat().st_size for each in services]
    cpu = [float(np.mean(each.taken[-EXCHANGES:])) for each in services]
    pipe.send((cpu, max(journals) // EXCHANGES, max(ledgers) // len(services[0].taken), peak_memory()))


def started(count: int) -> list[tuple[Any, Connection]]:
    """Processes that have read all modules, and nothing else yet."""
    out, context = [], get_context("fork")
    for _ in range(count):
        mine, theirs = context.Pipe()
        out.append((context.Process(target=hosted, args=(theirs,)), mine))
        out[-1][0].start()
    return out


def given_out(network: Network, case: Case, pipes: Sequence[Connection], folder: str, address: tuple[str, int]) -> None:
    """Give every process the rows of its sites."""
    blocks = np.array_split(np.arange(network.graph.node_count), case.sites)
    for pipe, numbers in zip(pipes, np.array_split(np.arange(case.sites), len(pipes)), strict=True):
        rows = {f"site {k}": SiteRows.of(network, blocks[k]) for k in numbers.tolist()}
        pipe.send((rows, folder, address))


def measured(case: Case) -> Measured:
    """A run in a federation, and what it took; to be called in a process without threads."""
    count = case.sites if case.sites <= MOST_PROCESSES else FEW_PROCESSES
    processes = started(count)
    pipes = [pipe for _, pipe in processes]
    network = network_of(case)
    counts, graph, schema = counted(network.graph, case), network.graph, Schema(network.features)
    with tempfile.TemporaryDirectory() as folder, SocketPost() as sockets:
        given_out(network, case, pipes, folder, sockets.address)
        del network
        forget_peak()
        post, names = Counting(sockets), [f"site {k}" for k in range(case.sites)]
        federation = Federation(graph, names, post, schema, folder=Path(folder) / "coordinator", patience=300)
        settings: dict[str, Any] = {"stop": None, "measure_every": None, "progress": False, "engine": federation}
        problem = federation.gather()
        fit(problem, GTVMin(), rounds=1, **settings)  # everything is compiled and read once
        began, cpu = time.perf_counter(), time.process_time()
        run = fit(problem, GTVMin(), rounds=ROUNDS, **settings)
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        journal = (Path(folder) / "coordinator" / "answers-2").stat().st_size
        peak = peak_memory()
        sockets.close()
        federation.close()
        told = [pipe.recv() for pipe in pipes]
    for process, _ in processes:
        process.join()
    site_cpu = [each for cpus, *_ in told for each in cpus]
    last = {work: each[-1] for work, each in post.bytes.items()}
    return Measured(
        case.kind, *(int(each) for each in asdict(counts).values()), count,
        int(run.history["bytes"].iloc[-1]), last["hello"][1], last["join"][0], last["step"][1], last["step"][0],
        last["report"][1], last["measure"][1], last["measure"][0], journal // EXCHANGES,
        max(each[1] for each in told), max(each[2] for each in told), cpu / EXCHANGES, float(np.mean(site_cpu)),
        seconds / EXCHANGES, max(each[3] for each in told) if count == case.sites else 0, peak, os.getloadavg()[0],
    )  # fmt: skip


@dataclass(frozen=True)
class Needed:
    """How many rounds a network needs in a federation."""

    kind: str
    lam: float
    nodes: int
    rounds: int
    seconds: float
    load: float


def needed(case: Case, lam: float) -> Needed:
    """Rounds until the residual is 1e-4, with sites in this process: nobody sees the whole network."""
    network, began, rule = network_of(case), time.process_time(), Tolerance(RESIDUAL, None)
    run = fit(network, GTVMin(lam=lam), rounds=MOST_ROUNDS, stop=rule, engine=InProcess(case.sites), progress=False)
    seconds = time.process_time() - began
    return Needed(case.kind, lam, network.graph.node_count, run.rounds, seconds, os.getloadavg()[0])


# ---------------------------------------------------------------------- tables of lines

KINDS = ("ring", "map", "mixed")
FIT = [
    *(Case(kind, 1_000, 2) for kind in KINDS),
    *(Case(kind, 10_000, 4, 10) for kind in KINDS),
    *(Case(kind, 10_000, 20) for kind in KINDS),
    *(Case(kind, 30_000, 8) for kind in ("map", "mixed")),
]
CHECK = [
    Case("map", 1_000, 200),
    Case("mixed", 3_000, 50, 6),
    Case("map", 100_000, 4, 10),
    Case("mixed", 100_000, 8),
    Case("ring", 100_000, 100),
    Case("mixed", 100_000, 200),
    Case("map", 1_000_000, 50),
    Case("map", 1_000_000, 200),
]
STRENGTHS = (0.1, 1.0, 10.0)
SIZES = [(Case(kind, nodes, 2), lam) for nodes in (1_000, 10_000) for lam in STRENGTHS for kind in KINDS]
LARGER = [(Case(kind, 100_000, 2), lam) for lam in STRENGTHS[:2] for kind in KINDS]
LARGER += [(Case("map", 30_000, 2), 10.0), (Case("mixed", 100_000, 2), 10.0), (Case("map", 1_000_000, 2), 0.1)]


def add(path: Path, lines: Sequence[Any]) -> None:
    """Lines at the end of a table."""
    fresh = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        if fresh:
            table.writerow([field.name for field in fields(lines[0])])
        table.writerows(
            [f"{value:.4g}" if isinstance(value, float) else value for value in asdict(line).values()] for line in lines
        )


def in_a_process(path: Path, work: Any, *given: Any) -> None:
    """Each case in a process of its own, so that one does not leave memory to the next."""
    process = get_context("fork").Process(target=_added, args=(path, work, *given))
    process.start()
    process.join()
    print(f"{given}: {'done' if process.exitcode == 0 else 'FAILED'}", flush=True)


def _added(path: Path, work: Any, *given: Any) -> None:
    add(path, [work(*given)])


def main() -> None:
    """Measure one case after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("federations", "rounds"))
    parser.add_argument("--all", action="store_true", help="up to a million nodes, too; most of an hour")
    given = parser.parse_args()
    if given.what == "rounds":
        for case, lam in SIZES + (LARGER if given.all else []):
            in_a_process(ROUNDS_NEEDED, needed, case, lam)
    else:
        for case in FIT + (CHECK if given.all else []):
            in_a_process(RUNS, measured, case)


if __name__ == "__main__":
    main()
