"""How long does a proven answer take on a large network, and how much memory?

    python benchmarks/large_networks.py [NODES ...]        a million, unless told otherwise

Spatial graphs with ten neighbours on average, ten features and one sample a node, GTVMin with λ = 0.1, to a residual
and a proof of 1e-4. Every size has its own process, for its own peak of memory. Shown are processor seconds of the fit
and those of its proof, and the peaks when the network is made, when the rounds are, and at the end. Compilation is not
counted: a small network is fitted first.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from kinfolk import GTVMin, Network, Tolerance, fit, graphs
from kinfolk.network.data import Data

SEED = 100  # used for tuning
ASKED = Tolerance(1e-4, 1e-4)
SMALL = 12_000  # nodes, on which the same code runs as on a million
COLUMNS = ("nodes", "edges", "rounds", "s", "of these the proof", "proven", "GB network", "GB rounds", "GB in all")


def peak() -> float:
    """The most memory that this process has had, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def spatial(node_count: int) -> Network:
    """Points in the plane, ten neighbours on average, ten features, one sample each."""
    rng = np.random.default_rng(SEED)
    graph = graphs.knn(rng.random((node_count, 2)), 8)
    X = rng.normal(size=(node_count, 10))
    return Network(graph, Data(X, X[:, 0] + 0.1 * rng.normal(size=node_count), np.arange(node_count + 1)))


class Timed(GTVMin):
    """GTVMin that notes what its proof takes."""

    seconds, before = 0.0, 0.0

    def certify(self, *given: Any) -> Any:
        """The certificate, timed."""
        Timed.before, began = Timed.before or peak(), time.process_time()
        out = super().certify(*given)
        Timed.seconds += time.process_time() - began
        return out


def measured(size: int) -> list[str]:
    """The row of a size."""
    fit(spatial(SMALL), Timed(lam=0.1), stop=ASKED, progress=False)
    network = spatial(size)
    first, Timed.seconds, Timed.before = peak(), 0.0, 0.0
    began = time.process_time()
    run = fit(network, Timed(lam=0.1), stop=ASKED, progress=False)
    seconds = time.process_time() - began
    return [
        f"{size:,}", f"{network.graph.edge_count:,}", f"{run.rounds}", f"{seconds:.1f}", f"{Timed.seconds:.1f}",
        f"{run.certificate.relative:.1e}", f"{first:.2f}", f"{Timed.before:.2f}", f"{peak():.2f}",
    ]  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nodes", nargs="*", type=int, default=[1_000_000], help="how many nodes")
    table = Table(title="To a residual of 1e-4, proven to 1e-4")
    for column in COLUMNS:
        table.add_column(column, justify="right")
    for size in parser.parse_args().nodes:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            table.add_row(*pool.apply(measured, (size,)))
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
