"""Does a federation stay right when it is treated badly? Twice in a row, with a full account.

    make stress, or python benchmarks/stress.py [ray] [cluster] [flower]

On Ray: 200 sites on four actors, four of which die of -9 in rounds that nobody looks at. The run must end at the same
bits as in one process.

On a cluster: a head of Ray and a second node that has joined it, both on this machine, with a token that is made for
them; an actor on each, one of which is killed. The same bits again.

Over Flower: a SuperLink with TLS, and eight sites with registered keys, a process each. One site lies: it sends 10⁶ as
the parameters of its nodes. Two sites are killed with -9 and started again, one of them twice; one is stopped (SIGSTOP)
for a while and goes on. The run must end at the same bits as in one process with the same lie; and that lie must not
have moved the honest nodes further than λΣA allows.

In the end no process may be left, no port, and no temporary folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas
from engines import chain_of_neighbours

from kinfolk import GTVMin, InProcess, Network, Ray, fit
from kinfolk.engine.protocol import Inbox, Messages, Outbox, Request, Turn
from kinfolk.engine.ray_actors import POOLS
from kinfolk.federation.flower import tether
from kinfolk.federation.flower.certificates import Contact, CoordinatorKey, make_node_key
from kinfolk.federation.flower.coordinator import HISTORY, KEY, PROGRESS
from kinfolk.federation.flower.plan import Plan
from kinfolk.federation.flower.processes import check_port, free_port, stopped_by_signals
from kinfolk.federation.flower.site import serve
from kinfolk.federation.flower.superlink import CERTIFICATES, SuperLink
from kinfolk.federation.joining import Schema
from kinfolk.federation.rows import SiteRows
from kinfolk.federation.service import SiteService
from kinfolk.network.site import Site, sites_of

BEGAN = float(os.environ.setdefault("STRESS_BEGAN", str(time.time())))  # processes of their own have the same
SITES, LIAR, ROUNDS, PATIENCE = 8, 7, 9, 900.0
LIE, LAM = 1e6, 0.1


def tell(what: str) -> None:
    """One line of the account."""
    print(f"{time.time() - BEGAN:7.1f} s  {what}", flush=True)


class Wrong(Exception):  # noqa: N818
    """Something is not as promised."""


def check(holds: bool, what: str) -> None:
    """One promise."""
    if not holds:
        raise Wrong(what)
    tell(f"right: {what}")


def same_history(here: Any, there: Any) -> bool:
    """Whether two histories are the same to the last bit, but for the seconds."""
    columns = [name for name in here.columns if not name.startswith("seconds") and name in there.columns]
    return {"objective", "residual", "bytes"} <= set(columns) and bool(
        (here[columns].to_numpy() == there[columns].to_numpy()).all()
    )


class Leftovers:
    """No process, port or temporary folder may be left."""

    def __init__(self) -> None:
        self.processes: dict[int, Any] = {}
        self.ports: list[int] = []

    def watch(self) -> None:
        """Remember all processes that have been started."""
        self.processes |= tether.descendants(os.getpid())

    def check(self, folder: Path) -> None:
        """All of them are gone."""
        deadline = time.monotonic() + 30
        while self._left() and time.monotonic() < deadline:
            time.sleep(0.2)
        count, left = len(self.processes), [_command(pid) for pid in self._left()]
        check(not left, f"of {count} processes none is left{''.join(f'; {each}' for each in left)}")
        for port in self.ports:
            check_port("127.0.0.1", port)
        check(True, "no port is left")
        check(not folder.exists() or not list(folder.iterdir()), "no temporary file is left")

    def _left(self) -> list[int]:
        """Without the process of Python that watches over shared memory, which ends with this one."""
        return [pid for pid in tether.alive(self.processes) if "resource_tracker" not in _command(pid)]


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")[:120]
    return ""


# ---------------------------------------------------------------------- Ray


@dataclass(frozen=True)
class Dying(GTVMin):
    """Processes die in some rounds, once each; a file in ``marks`` says that they have."""

    marks: str = ""

    def step(self, site: Site, state: Any, inbox: Inbox, turn: Turn) -> tuple[Any, Outbox]:
        """Die, or step."""
        mark = Path(self.marks) / str(turn.round)
        if self.marks and turn.round in (13, 27, 38, 44) and turn.round % 4 == int(site.nodes.min()) // 10 % 4:
            with contextlib.suppress(FileExistsError):
                mark.touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)
        return super().step(site, state, inbox, turn)


def ray() -> None:
    """200 sites on four actors."""
    network, settings = chain_of_neighbours(2000), {"rounds": 60, "stop": None, "measure_every": 20, "progress": False}
    here = fit(network, GTVMin(lam=LAM), engine=InProcess(200), **settings)
    tell("Ray: 2,000 nodes in 200 sites; the undisturbed run is made")
    with tempfile.TemporaryDirectory() as marks:
        there = fit(network, Dying(lam=LAM, marks=marks), engine=Ray(4, 200), **settings)
        killed = sorted(int(path.name) for path in Path(marks).iterdir())
    tell(f"Ray: processes died with -9 in rounds {killed}")
    check(len(killed) == 4, "four actors were killed")
    check(same_history(here.history, there.history), "200 sites on Ray: the history has the same bits")
    check(bool((here.models.w == there.models.w).all()), "200 sites on Ray: the models have the same bits")
    leftovers, folder = Leftovers(), Path(POOLS[None].folder or "")
    leftovers.watch()
    Ray().close()
    leftovers.check(folder)


# ---------------------------------------------------------------------- a cluster


def start_node(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    """A node of a cluster on this machine, with one processor, that runs until it is ended."""
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=1", "--disable-usage-stats"]
    with (folder / "log").open("ab") as log:
        return subprocess.Popen([*command, "--node-ip-address=127.0.0.1", *words], stdout=log, stderr=log)


def use_cluster(address: str, nodes: int) -> None:
    """Run on a cluster; an actor is killed on the way. In a process of its own, which has the cluster's token."""
    network = chain_of_neighbours(60)
    settings: dict[str, Any] = {"rounds": 25, "stop": None, "measure_every": 20, "progress": False}
    here = fit(network, GTVMin(lam=LAM), engine=InProcess(2), **settings)
    engine, killed = Ray(2, address=address), list[int]()

    def kill(row: Any, snapshot: Any) -> None:
        if row["round"] == 5:
            pool = POOLS[address]
            alive = sum(node["Alive"] for node in pool.ray.nodes())
            check(alive == nodes, f"the cluster at {address} has {nodes} nodes of one processor, for an actor each")
            killed.append(pool.ray.get(pool.actors[1].ready.remote()))
            os.kill(killed[0], signal.SIGKILL)
            tell("cluster: the second actor gets SIGKILL")

    there = fit(network, GTVMin(lam=LAM), engine=engine, callbacks=[kill], **settings)
    check(bool(killed) and same_history(here.history, there.history), "the cluster: the history has the same bits")
    check(bool((here.models.w == there.models.w).all()), "the cluster: the models have the same bits")
    engine.close()


def cluster() -> None:
    """Two nodes of Ray on this machine stand for several machines."""
    leftovers, port = Leftovers(), 6399  # Ray gives others to its processes
    leftovers.ports.append(port)
    with tempfile.TemporaryDirectory(prefix="r") as name:
        folder, address = Path(name), f"127.0.0.1:{port}"
        (folder / "token").write_text(secrets.token_hex(32))
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(folder / "token")}
        head = ["--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={folder}"]
        nodes = [start_node(folder, *head), start_node(folder, f"--address={address}")]
        try:
            wait_for_nodes(folder, nodes)
            process = get_context("spawn").Process(target=use_cluster, args=(address, len(nodes)))
            process.start()
            process.join()
            leftovers.watch()
            check(process.exitcode == 0, "the cluster was used from a process of its own")
        finally:
            for node in reversed(nodes):
                node.terminate()
            for node in nodes:
                node.wait(60)
            for variable in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH"):
                del os.environ[variable]
    leftovers.check(folder)


def wait_for_nodes(folder: Path, nodes: list[subprocess.Popen[bytes]]) -> None:
    """Until both have started; the second tries again until the head is there."""
    deadline = time.monotonic() + PATIENCE
    while (started := (folder / "log").read_text(errors="replace").count("Ray runtime started")) < len(nodes):
        if time.monotonic() > deadline or any(node.poll() is not None for node in nodes):
            raise Wrong(f"{len(nodes)} nodes of a cluster started (now {started})")
        time.sleep(0.2)
    tell(f"cluster: {started} nodes have started")


# ---------------------------------------------------------------------- Flower


@dataclass(frozen=True)
class Lied(GTVMin):
    """Some nodes tell their neighbours a lie, in one process."""

    liars: tuple[int, ...] = ()

    def step(self, site: Site, state: Any, inbox: Inbox, turn: Turn) -> tuple[Any, Outbox]:
        """Step, and lie."""
        state, sent = super().step(site, state, inbox, turn)
        told = np.where(np.isin(site.nodes, self.liars)[:, None], LIE, sent.neighbours["w_bar"])
        return state, Outbox({"w_bar": told}, sent.coordinator)


class Liar(SiteService):
    """A site that tells all others a lie."""

    def answer(self, content: bytes) -> bytes:
        """Answer; from the first request of a run on, with a lie."""
        if self.run is not None and "answer" not in vars(self.run.worker):
            vars(self.run.worker)["answer"] = self._lying(self.run.worker.answer)
        return super().answer(content)

    def _lying(self, honest: Callable[[Request], Any]) -> Callable[[Request], Any]:
        def lying(request: Request) -> Any:
            answer = honest(request)
            if not isinstance(answer, Messages) or request.work != "step":
                return answer
            told = {site: {"w_bar": np.full_like(rows["w_bar"], LIE)} for site, rows in answer.neighbours.items()}
            worker = self.run.worker  # edges are computed from what was sent, here as at the other end
            worker.sent = {"w_bar": np.full_like(worker.sent["w_bar"], LIE)}
            return answer._replace(neighbours=told)

        return lying


def site(number: int, rows: SiteRows, root: Path, contact: Contact) -> None:
    """One site, in a process of its own."""
    os.setsid()
    name, kind = f"site {number}", Liar if number == LIAR else SiteService
    with contextlib.closing(kind(name, rows, root / name)) as service, stopped_by_signals() as stop:
        serve(service, contact, root / "keys" / name, stop)


class Sites:
    """The processes of all sites."""

    def __init__(self, rows: list[SiteRows], root: Path, contact: Contact) -> None:
        self.rows, self.root, self.contact = rows, root, contact
        self.processes: dict[int, Any] = {}

    def start(self, number: int) -> None:
        """Start a site; it goes on from its folder."""
        given = (number, self.rows[number], self.root, self.contact)
        self.processes[number] = get_context("spawn").Process(target=site, args=given)
        self.processes[number].start()

    def send(self, number: int, what: signal.Signals) -> None:
        """Send a signal."""
        os.kill(self.processes[number].pid, what)
        tell(f"Flower: site {number} gets {what.name}")

    def restart(self, number: int) -> None:
        """Kill a site, and start it again."""
        self.send(number, signal.SIGKILL)
        self.processes[number].join()
        self.start(number)
        tell(f"Flower: site {number} is started again")

    def __enter__(self) -> Sites:
        for number in range(SITES):
            self.start(number)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            process.kill()
            process.join()


def wait_for_round(number: int, root: Path, sites: Sites) -> None:
    """Until the coordinator has written a row of the history."""
    deadline = time.monotonic() + PATIENCE
    while (rounds := rows_so_far(root)) < number:
        failed = [k for k, process in sites.processes.items() if process.exitcode]
        if failed or time.monotonic() > deadline:
            raise Wrong(f"round {number} came to an end (now {rounds}; sites that failed: {failed})")
        time.sleep(0.2)
    tell(f"Flower: round {rounds} is made")


def rows_so_far(root: Path) -> int:
    """The last round in the coordinator's progress; −1: none."""
    path = root / PROGRESS
    lines = path.read_text().splitlines() if path.exists() else []
    return int(json.loads(lines[-1])["round"]) if lines else -1


def maltreat(sites: Sites, root: Path, leftovers: Leftovers) -> None:
    """Kills, restarts, and a process that is stopped for a while."""
    wait_for_round(1, root, sites)
    leftovers.watch()
    sites.restart(1)
    wait_for_round(3, root, sites)
    sites.send(2, signal.SIGSTOP)
    time.sleep(15)
    sites.send(2, signal.SIGCONT)
    wait_for_round(5, root, sites)
    sites.restart(4)
    sites.restart(1)
    leftovers.watch()


def flower() -> None:
    """Eight sites over TLS."""
    network, leftovers = chain_of_neighbours(40, features=3), Leftovers()
    lied = Lied(lam=LAM, liars=tuple(sites_of(network, SITES)[LIAR].nodes.tolist()))
    settings: dict[str, Any] = {"stop": None, "measure_every": 1, "progress": False, "engine": InProcess(SITES)}
    here = fit(network, lied, rounds=ROUNDS, **settings)
    tell(f"Flower: 40 nodes in {SITES} sites, of which site {LIAR} lies; the undisturbed run is made")
    with tempfile.TemporaryDirectory() as folder, temporary_files_in(Path(folder) / "tmp") as place:
        run_over_flower(network, Path(folder), here, leftovers)
        leftovers.check(place)
    check_bound(network, lied.liars, fit(network, lied, rounds=1000, **settings).models.w)


@contextlib.contextmanager
def temporary_files_in(place: Path) -> Iterator[Path]:
    """All temporary files of this process and its children are made there."""
    place.mkdir()
    before = os.environ.get("TMPDIR")
    tempfile.tempdir = os.environ["TMPDIR"] = str(place)
    try:
        yield place
    finally:
        tempfile.tempdir = None
        os.environ.pop("TMPDIR")
        os.environ.update({} if before is None else {"TMPDIR": before})


def run_over_flower(network: Network, root: Path, here: Any, leftovers: Leftovers) -> None:
    """Maltreat a federation, and compare it with the undisturbed run."""
    parts, port = sites_of(network, SITES), free_port()
    leftovers.ports.append(port)
    rows = [SiteRows.of(network, part.nodes) for part in parts]
    nodes = {f"site {k}": make_node_key(root / "keys" / f"site {k}") for k in range(SITES)}
    options = {"rounds": ROUNDS, "tolerance": None, "measure_every": 1}
    Plan("stress", network.graph, nodes, Schema(network.features), GTVMin(lam=LAM), options=options).write(root)
    with SuperLink(root, port, nodes) as link:
        contact = Contact.of(link.address, root / CERTIFICATES, CoordinatorKey.at(root / KEY))
        tell(f"Flower: the SuperLink listens with TLS at {link.address}")
        with Sites(rows, root, contact) as sites:
            run = link.start_run(end_sites=True)
            maltreat(sites, root, leftovers)
            outcome = link.wait_for_run(run, PATIENCE)
            tell(f"Flower: {outcome['stopped']}")
            for process in sites.processes.values():
                process.join(120)
            ended = [process.exitcode for process in sites.processes.values()]
            check(ended == [0] * SITES, "all sites ended when they were told to")
    there = pandas.read_csv(root / HISTORY, index_col=0, dtype=str).astype(float)
    check(same_history(here.history, there), "eight sites over Flower: the history has the same bits")
    honest = [k for k in range(SITES) if k != LIAR]  # what a liar has repeated of its journal is no lie
    w = np.concatenate([models_at(k, rows[k], root) for k in honest])
    order = np.concatenate([parts[k].nodes for k in honest])
    check(bool((w == here.models.w[order]).all()), "eight sites over Flower: honest models have the same bits")


def models_at(number: int, rows: SiteRows, root: Path) -> Any:
    """The parameters that a site has in its folder."""
    with contextlib.closing(SiteService(f"site {number}", rows, root / f"site {number}")) as service:
        return service.models.w  # type: ignore[attr-defined]


def check_bound(network: Network, liars: tuple[int, ...], w: Any) -> None:
    """At rest the slope of an honest node's loss is at most λ times the weights of its edges."""
    graph, slopes = network.graph, []
    weights = np.bincount(graph.head, graph.weights, len(w)) + np.bincount(graph.tail, graph.weights, len(w))
    for node in range(len(w)):
        X, y = network.data[node]
        slopes.append(np.linalg.norm(2 * X.T @ (X @ w[node] - y) / len(X)))
    honest = ~np.isin(np.arange(len(w)), liars)
    share = (np.array(slopes) / (LAM * weights))[honest]
    check(bool((share <= 1 + 1e-6).all()), f"no honest node is moved further than {share.max():.3f} of what λΣA allows")


def main(*chosen: str) -> None:
    """All parts, or those that are named, twice in a row."""
    parts = {"ray": ray, "cluster": cluster, "flower": flower}
    for time_ in (1, 2):
        for name in chosen or parts:
            tell(f"---- {name}, {time_} of 2")
            parts[name]()
    check(True, "all of it, twice in a row")


if __name__ == "__main__":
    main(*sys.argv[1:])
