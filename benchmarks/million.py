"""How much memory does a million nodes on Ray take, all processes together?

    python benchmarks/million.py [NODES] [NEXT] [FEATURES]

A ring on which every node knows the next ones (three: three million edges), a row for every node, GTVMin for 20 rounds
on two actors. Shown is the largest sum over all processes of what each has in memory, shared parts counted once (PSS),
and seconds per round.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from pathlib import Path

import numpy as np

from kinfolk import Graph, GTVMin, InProcess, Network, Ray, fit
from kinfolk.federation.flower.tether import descendants
from kinfolk.network.data import Data

ROUNDS = 20


def ring(nodes: int, next_: int, features: int) -> Network:
    """Nodes that know the next ones, a row each."""
    rng = np.random.default_rng(0)
    here = np.repeat(np.arange(nodes), next_)
    there = (here + np.tile(np.arange(1, next_ + 1), nodes)) % nodes
    X = rng.normal(size=(nodes, features))
    y = X.sum(axis=1) + rng.normal(size=nodes)
    return Network(Graph(nodes, np.stack([here, there], axis=1)), Data.from_rows(X, y, np.arange(nodes), nodes))


def memory() -> int:
    """Bytes of this process and of all that it has started; what they share counts once."""
    total = 0
    for pid in (os.getpid(), *descendants(os.getpid())):
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return 1024 * total


class Peak(threading.Thread):
    """Looks at the memory again and again."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.largest, self.ended = 0, threading.Event()

    def run(self) -> None:
        """Until it is ended."""
        while not self.ended.wait(0.2):
            self.largest = max(self.largest, memory())


def main(nodes: str = "1000000", next_: str = "3", features: str = "2") -> None:
    """Measure, and print."""
    peak = Peak()
    network = ring(int(nodes), int(next_), int(features))
    print(f"{network}: {memory() / 1e9:.2f} GB", flush=True)
    peak.start()
    engine, settings = Ray(2), {"stop": None, "measure_every": None, "progress": False}
    began = time.perf_counter()
    fit(network, GTVMin(), rounds=1, engine=engine, **settings)
    middle = time.perf_counter()
    there = fit(network, GTVMin(), rounds=1 + ROUNDS, engine=engine, **settings)
    seconds = time.perf_counter() - middle
    peak.ended.set()
    took = f"first fit {middle - began:.1f} s, {1 + ROUNDS} rounds {seconds:.1f} s"
    print(f"Ray: {peak.largest / 1e9:.2f} GB at most; {took}", flush=True)
    engine.close()
    here = fit(network, GTVMin(), rounds=1 + ROUNDS, engine=InProcess(2), **settings)
    print(f"the same bits as in one process: {bool((here.models.w == there.models.w).all())}")


if __name__ == "__main__":
    main(*sys.argv[1:])
