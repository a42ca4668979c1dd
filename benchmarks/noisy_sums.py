"""One model for all from sums with noise: what a promise (ε, δ) for single rows costs in error.

    python benchmarks/noisy_sums.py --data FOLDER      hospitals and schools (not bundled)

Sites cut every row (features, 1, target) to a norm, and send the sum of its outer products with Gaussian noise on every
number: the classical perturbation of sufficient statistics. Two such sums of data that differ in one row are at most
√2 clip² apart. Noise is added by every site, or, where sums are masked, by all sites together. Errors are mean squares
on held-out rows as a part of those of the mean; the ridge term is the best of all in hindsight, and means are over 20
draws of the noise.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
from federated_tables import Called, home_of

from kinfolk.datasets.tables import named_table
from kinfolk.engine.privacy import epsilon
from kinfolk.federation.tables.requests import RemoteParties
from kinfolk.federation.tables.service import TableService
from kinfolk.federation.tables.shared_design import shared_design
from kinfolk.tables import Settings
from kinfolk.tables.families import RIDGES
from kinfolk.tables.rows import Rows
from kinfolk.typing import Floats

MULTIPLIERS = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)  # deviation of noise, in units of how much two sums can differ
DELTA, DRAWS = 1e-5, 20
NEVER = 1e9  # a norm that no row has


def encoded(name: str, folder: str | None) -> tuple[list[Floats], Floats]:
    """The training rows (features, 1, target) of four sites, and the test rows of all."""
    table = named_table(name, folder)
    settings = Settings.of(table.options)
    nodes = table.frame[settings.node].astype(str)
    home = nodes.map(home_of(name, sorted(nodes.unique())))
    parts = {site: rows.reset_index(drop=True) for site, rows in table.frame.groupby(home)}
    with tempfile.TemporaryDirectory() as place:
        services = {site: TableService(site, rows, Path(place) / site) for site, rows in parts.items()}
        shared_design(RemoteParties(Called(services), list(services), 600.0), settings, table.edges)
        parties = [service.party.rows for service in services.values()]
        for service in services.values():
            service.close()
    train, test = ([_with_target(getattr(rows, name)) for rows in parties] for name in ("training", "test"))
    return train, np.vstack(test)


def _with_target(rows: Rows) -> Floats:
    return np.column_stack([rows.X, np.ones(len(rows.y)), rows.y])


def fitted(gram: Floats, ridge: float) -> Floats:
    """Least squares from products, with a ridge term on all but the intercept."""
    width = len(gram) - 1
    penalty = np.append(np.full(width - 1, ridge), 1e-6)
    return np.asarray(np.linalg.lstsq(gram[:-1, :-1] + np.diag(penalty), gram[:-1, -1], rcond=None)[0])


def blurred(gram: Floats, scale: float, rng: np.random.Generator) -> Floats:
    """With noise on every number, and no negative eigenvalues."""
    noise = rng.normal(scale=scale, size=gram.shape)
    values, vectors = np.linalg.eigh(gram + np.triu(noise) + np.triu(noise, 1).T)
    return np.asarray((vectors * np.maximum(values, 0.0)) @ vectors.T)


def error(train: list[Floats], test: Floats, clip: float, multiplier: float, releases: int) -> float:
    """Of one model for all, as a part of that of the mean; ``releases``: how often noise is added."""
    cut = [rows * np.minimum(1.0, clip / np.linalg.norm(rows, axis=1))[:, None] for rows in train]
    gram = np.sum([rows.T @ rows for rows in cut], axis=0)
    scale = multiplier * np.sqrt(2.0) * clip**2 * np.sqrt(releases)
    found = np.zeros((DRAWS if scale else 1, len(RIDGES)))
    for draw in range(len(found)):
        noisy = blurred(gram, scale, np.random.default_rng(draw)) if scale else gram
        for k, ridge in enumerate(RIDGES):
            found[draw, k] = ((test[:, :-1] @ fitted(noisy, ridge) - test[:, -1]) ** 2).mean()
    return float(found.mean(axis=0).min() / test[:, -1].var())


def main() -> None:
    """Print a line for every table and noise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=None)
    given = parser.parse_args()
    print("| data | rows | numbers in a row | noise | ε | noise of every site | noise of all together |")
    for name in ("hospitals", "schools"):
        train, test = encoded(name, given.data)
        clip = float(np.median(np.linalg.norm(np.vstack(train), axis=1)))
        rows, width = np.vstack(train).shape
        print(f"{name}: not cut {error(train, test, NEVER, 0.0, 0):.3f}, cut to {clip:.2f}")
        for multiplier in MULTIPLIERS:
            spent = epsilon(multiplier, 1, DELTA)
            errors = [error(train, test, clip, multiplier, releases) for releases in (len(train), 1)]
            cells = [
                name,
                f"{rows:,}",
                f"{width}",
                f"{multiplier:g}",
                f"{spent:.3g}",
                *(f"{each:.3f}" for each in errors),
            ]
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
