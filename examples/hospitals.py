"""Four hospitals that may not share patients: who has heart disease?

    python examples/hospitals.py --data FOLDER            a minute
    python examples/hospitals.py --data FOLDER --quick    two splits

FOLDER holds heart_disease.csv (UCI 45: A. Janosi; W. Steinbrunn; M. Pfisterer; R. Detrano), or KINFOLK_DATA names it.
Every hospital fits a logistic regression; all four are neighbours, and compare predictions on points drawn from the
mean and covariance of all features. λ is chosen by cross-validation inside the training rows.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas
from rich.console import Console
from rich.table import Table
from sklearn.linear_model import LogisticRegression

from kinfolk import FedRelax, Graph, Network, fit, public
from kinfolk.engine.selection import select_lam

FEATURES = ["age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak"]
LAMS = [0.01, 0.1, 1.0, 10.0, 100.0]
MODEL = LogisticRegression(max_iter=1_000)


def patients(folder: Path) -> pandas.DataFrame:
    """Patients with all features known; those that are mostly missing outside Cleveland are left out."""
    table = pandas.read_csv(folder / "heart_disease.csv")[["site", *FEATURES, "num"]].dropna()
    return table.assign(num=(table["num"] > 0).astype(float))


def hospitals(table: pandas.DataFrame, seed: int) -> Network:
    """A fifth of the patients of every hospital held out; features scaled by the moments of the others."""
    test = np.random.default_rng(seed).random(len(table)) < 0.2
    known = table.loc[~test, FEATURES]
    scaled = table.assign(**((table[FEATURES] - known.mean()) / known.std()))
    names = sorted(table["site"].unique())
    graph = Graph.from_edges(itertools.combinations(names, 2))
    network = Network.from_frame(scaled, node="site", target="num", features=FEATURES, graph=graph, test=test)
    return network.with_public(public.like_the_data(network, 200, seed=seed))


def errors(network: Network, seed: int) -> dict[str, Any]:
    """The share of wrong answers for held-out patients of every hospital: alone, one model for all, and tailored."""
    lam = select_lam(network, FedRelax(MODEL), LAMS, over="samples", folds=3, seed=seed, rounds=10).lam
    runs = {lam: fit(network, FedRelax(MODEL, lam), rounds=10, progress=False).models for lam in (0.0, lam)}
    test = network.test
    pooled = MODEL.fit(network.data.X, network.data.y).predict(test.X)
    wrong = {
        "alone": runs[0.0].error(test.X, test.y, test.owner),
        "one for all": (pooled != test.y).astype(float),
        "tailored": runs[lam].error(test.X, test.y, test.owner),
    }
    count = np.bincount(test.owner, minlength=4)
    return {name: np.bincount(test.owner, rows, minlength=4) / count for name, rows in wrong.items()} | {"lam": lam}


def main() -> None:
    """Print the mean and the spread over random splits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("KINFOLK_DATA", ".")))
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if not (options.data / "heart_disease.csv").exists():
        sys.exit(f"Expected heart_disease.csv in {options.data}: name its folder with --data or KINFOLK_DATA.")
    table = patients(options.data)
    splits = [(network := hospitals(table, seed), errors(network, seed)) for seed in range(2 if options.quick else 20)]
    shown = Table(title=f"Wrong answers for held-out patients, mean and spread over {len(splits)} splits")
    for column in ("hospital", "patients", "alone", "one for all", "tailored"):
        shown.add_column(column, justify="left" if column == "hospital" else "right")
    for k, name in enumerate(splits[0][0].names):
        cells = [np.array([found[way][k] for _, found in splits]) for way in ("alone", "one for all", "tailored")]
        count = str(int((table["site"] == name).sum()))
        shown.add_row(str(name), count, *(f"{100 * cell.mean():.1f} ± {100 * cell.std():.1f} %" for cell in cells))
    Console(width=80).print(shown)
    print(f"λ chosen: {sorted({found['lam'] for _, found in splits})}")


if __name__ == "__main__":
    main()
