"""What others could tell of a hospital, by its number of rows, without and with noise.

    python benchmarks/audit_hospitals.py --data FOLDER

The four hospitals (UCI) in one process: FedRelax with linear models, four rounds, five columns of numbers. The first
hospital has fewer and fewer rows. It prints the table of docs/how-to/privacy.md.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas

from kinfolk import FedRelax, LinearModel, Network, fit, graphs, public
from kinfolk.datasets import looking_in
from kinfolk.datasets.tables import named_table
from kinfolk.engine.noise import Noise
from kinfolk.federation.audit import COORDINATOR, OTHERS, POPULATION, Audit, RecordedRun
from kinfolk.federation.coordinator import Federation
from kinfolk.federation.joining import Schema
from kinfolk.federation.rows import SiteRows
from kinfolk.federation.service import Agreed, SiteService
from kinfolk.federation.site_run import Care

COLUMNS = ["age", "trestbps", "chol", "thalach", "oldpeak"]
SIZES = (1, 5, 30, 200)
NOISES = {"none": None, "σ = 2 clip": Noise(2.0, 4.0), "σ = 8 clip": Noise(2.0, 16.0)}
NEIGHBOUR = "site 1"
TRIALS, ROUNDS = 40, 4
HEAD = "| rows | noise | knows all other rows: AUC | knows what rows look like: AUC | coordinator: AUC | row found |"


class Called:
    """Carries blobs by calling services in this process."""

    def __init__(self, services: dict[str, SiteService]) -> None:
        self.services = services

    def ask(self, blobs: Any, most: Any, seconds: float) -> dict[str, bytes]:
        """The answers of all sites."""
        return {name: self.services[name].answer(blob) for name, blob in blobs.items()}


def hospitals(size: int) -> Network:
    """Four nodes; the first has so many rows to learn from. Columns have mean 0 and deviation 1."""
    with looking_in(DATA):
        table = named_table("hospitals").frame
    X = table[COLUMNS].apply(pandas.to_numeric, errors="coerce")
    X = ((X - X.mean()) / X.std()).fillna(0.0).to_numpy()
    node = table[named_table_node(table)].astype(str).to_numpy()
    y = (pandas.factorize(table["disease"], sort=True)[0]).astype(float)
    rng, sets, test = np.random.default_rng(0), [], []
    for k, name in enumerate(np.unique(node)):
        rows = rng.permutation(np.flatnonzero(node == name))
        learnt, held_out = rows[: size if k == 0 else -40], rows[-90:] if k == 0 else rows[-40:]
        sets.append((X[learnt], y[learnt]))
        test.append((X[held_out], y[held_out]))
    network = Network(graphs.complete(4), sets, test=test, features=COLUMNS)
    return Network(
        graphs.complete(4), sets, test=test, features=COLUMNS, public=public.standard_normal(network, 10, seed=0)
    )  # fmt: skip


def named_table_node(table: pandas.DataFrame) -> str:
    """The column with the hospital."""
    return next(name for name in table.columns if table[name].nunique() == 4 and "cleveland" in set(table[name]))


def recorded(network: Network, folder: Path) -> RecordedRun:
    """A run of all four, as the first has recorded it."""
    names = [f"site {k}" for k in range(4)]
    rows = {name: SiteRows.of(network, np.array([k])) for k, name in enumerate(names)}
    algorithm = FedRelax(LinearModel(), lam=0.5)
    services = {
        name: SiteService(name, each, folder / name, algorithm, care=Care(record=True)) for name, each in rows.items()
    }
    federation = Federation(network.graph, names, Called(services), Schema(network.features, "numbers"), network.public)
    fit(federation.gather(), algorithm, rounds=ROUNDS, stop=None, engine=federation, progress=False)
    for service in services.values():
        service.close()
    return RecordedRun.read("site 0", folder / "site 0", rows["site 0"], Agreed(None, [algorithm], names))  # type: ignore[arg-type]


def main() -> None:
    """Print the table."""
    print(HEAD, flush=True)
    for size in SIZES:
        with tempfile.TemporaryDirectory() as place:
            run = recorded(hospitals(size), Path(place))
            for name, noise in NOISES.items():
                attack = Audit(run, 0, noise, TRIALS)
                found = attack.membership()
                rebuilt = attack.reconstruction()[NEIGHBOUR, OTHERS] if size == 1 else np.nan
                cells = [found[NEIGHBOUR, OTHERS].auc, found[NEIGHBOUR, POPULATION].auc]
                cells += [found[COORDINATOR, POPULATION].auc, rebuilt]
                print(f"| {size} | {name} | " + " | ".join(f"{each:.2f}" for each in cells) + " |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    DATA = parser.parse_args().data
    main()
