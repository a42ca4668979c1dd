"""Updating a run beside fitting it again: seconds, and whether the answer is the same.

    python benchmarks/updates.py [--counties]

For each table a tenth of the nodes, and a tenth of the other rows, come later. *times*: how much longer a new fit
takes. *rounds*: of the tailored models, updated and from the start. *apart*: the largest difference between predictions
of the update and of a fit at the same choices that starts from nothing, in parts of the target's standard deviation.
*error*: that of the blend on the same test rows, before, updated, and chosen and fitted again with all rows.
"""

from __future__ import annotations

import argparse
import time
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas

from kinfolk import TableRun, datasets, learn
from kinfolk.tables import keeping


def shops(count: int, rows: int, seed: int = 0) -> pandas.DataFrame:
    """Shops at places, with slopes that change over the map."""
    rng = np.random.default_rng(seed)
    x, y = rng.uniform(0, 10, size=(2, count))
    node = np.repeat(np.arange(count), rows)
    features = rng.normal(size=(count * rows, 5))
    slopes = np.stack([np.sin(x), np.cos(y), x / 10, y / 10, np.ones(count)], axis=1)
    sales = (features * slopes[node]).sum(axis=1) + rng.normal(size=len(node))
    known = pandas.DataFrame({"shop": [f"{k:05d}" for k in node], "x": x[node], "y": y[node], "sales": sales})
    return known.join(pandas.DataFrame(features, columns=list("abcde")))


def split(table: pandas.DataFrame, node: str, seed: int = 0) -> tuple[pandas.DataFrame, pandas.DataFrame]:
    """The rows of the first fit, and those that come later."""
    rng = np.random.default_rng(seed)
    names = table[node].unique()
    late = table[node].isin(rng.choice(names, len(names) // 10, replace=False)) | (rng.random(len(table)) < 0.1)
    return table[~late], table[late]


def measure(name: str, table: pandas.DataFrame, options: dict[str, Any]) -> None:
    """One line of the table."""
    old, new = split(table, options["node"])
    before = learn(old, progress=False, **options)
    began = time.perf_counter()
    updated = before.update(new, progress=False)
    spent = time.perf_counter() - began
    with patch.object(keeping, "start_from", lambda *_: None):
        cold = before.update(new, progress=False)
    marked = pandas.concat([old, new]).assign(held=lambda rows: np.arange(len(rows)) < 0)
    marked.loc[marked.index.isin(before.predictions["row"]), "held"] = True
    began = time.perf_counter()
    again = learn(marked, progress=False, test="held", **options)
    anew = time.perf_counter() - began
    apart = np.abs(updated.predict(table) - cold.predict(table)).max() / updated.target.spread
    print(
        f"{name:<24} {anew:>9.1f} {spent:>9.2f} {anew / spent:>7.0f} {rounds(updated):>5}/{rounds(cold):<5} "
        f"{apart:>8.0e}  {error(before):.4f} {error(updated):.4f} {error(again):.4f}",
        flush=True,
    )


def rounds(run: TableRun) -> int:
    """Rounds of the tailored models."""
    return run.account.rounds


def error(run: TableRun) -> float:
    """Of the blend on the test rows."""
    return float(run.leaderboard["error"]["final"])


def main() -> None:
    """All tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--counties", action="store_true", help="The 3,107 counties, too: some minutes.")
    chosen = parser.parse_args()
    titles = f"{'table':<24} {'new fit s':>9} {'update s':>9} {'times':>7} {'rounds':>11} {'apart':>8}"
    print(f"{titles}  error: before updated again")
    options = {"node": "shop", "target": "sales"}
    measure("100 shops, 2,000 rows", shops(100, 20), options)
    measure("  neighbours equal", shops(100, 20), {**options, "method": "gtvmin"})
    measure("500 shops, 10,000 rows", shops(500, 20), options)
    if chosen.counties:
        known = datasets.named_table("counties", None)
        measure("3,107 counties", known.frame, dict(known.options))


if __name__ == "__main__":
    main()
