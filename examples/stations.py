"""Weather stations in Finland: the highest temperature of tomorrow, from what was measured today.

    python examples/stations.py --data FOLDER

FOLDER holds fmi_daily_2026.csv.gz (Finnish Meteorological Institute, CC BY 4.0), or KINFOLK_DATA names it. Every
station has a linear model and ten days to learn from; its neighbours are the four nearest stations. The days after are
held out. λ is chosen by cross-validation inside the ten days.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import numpy as np
import pandas
from rich.console import Console
from rich.table import Table
from sklearn.linear_model import Ridge

from kinfolk import FedRelax, LinearModel, Network, fit, graphs, public
from kinfolk.engine.selection import select_lam

FEATURES = ["tmax", "tmin"]
DAYS = 10  # to learn from
LAMS = [0.01, 0.1, 1.0, 10.0, 100.0]
MODEL = LinearModel(ridge=1.0, intercept=True)


def stations(folder: Path) -> Network:
    """Pairs of a day and the next at every station, features scaled by the moments of the first days."""
    table = pandas.read_csv(folder / "fmi_daily_2026.csv.gz").sort_values(["station", "day"])
    table["target"] = table.groupby("station")["tmax"].shift(-1)
    table = table.dropna().reset_index(drop=True)
    test = table.groupby("station").cumcount() >= DAYS
    known = table.loc[~test, FEATURES]
    scaled = table.assign(**((table[FEATURES] - known.mean()) / known.std()))
    places = table.groupby("station")[["lat", "lon"]].first()
    flat = places.to_numpy() * [1.0, np.cos(np.deg2rad(65))]  # degrees of longitude are shorter in the north
    graph = graphs.knn(flat, 4, names=list(places.index))
    network = Network.from_frame(
        scaled, node="station", target="target", features=FEATURES, graph=graph, test=test.to_numpy()
    )
    return network.with_public(public.like_the_data(network, 100))


def main() -> None:
    """Print the error on the days after, and for how many stations learning together helps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("KINFOLK_DATA", ".")))
    options = parser.parse_args()
    if not (options.data / "fmi_daily_2026.csv.gz").exists():
        sys.exit(f"Expected fmi_daily_2026.csv.gz in {options.data}: name its folder with --data or KINFOLK_DATA.")
    network = stations(options.data)
    lam = select_lam(network, FedRelax(MODEL), LAMS, over="samples", folds=5).lam
    test, count = network.test, network.graph.node_count
    alone, tailored = (
        fit(network, FedRelax(MODEL, each), progress=False).models.error(test.X, test.y, test.owner)
        for each in (0.0, lam)
    )
    pooled = (Ridge().fit(network.data.X, network.data.y).predict(test.X) - test.y) ** 2
    ways = {"alone": alone, "one for all": pooled, f"tailored, λ = {lam:g}": tailored}
    seen = test.sizes > 0
    by_station = {
        way: np.bincount(test.owner, rows, minlength=count)[seen] / test.sizes[seen] for way, rows in ways.items()
    }
    shown = Table(title=f"{count} stations, {DAYS} days each: error of tomorrow's highest temperature")
    for column in ("", "root mean squared, °C", "stations better than alone"):
        shown.add_column(column, justify="right" if column else "left")
    for way, errors in by_station.items():
        better = 100 * np.mean(errors < by_station["alone"])
        shown.add_row(way, f"{np.sqrt(ways[way].mean()):.2f}", f"{better:.0f} %" if way != "alone" else "")
    Console(width=80).print(shown)


if __name__ == "__main__":
    main()
