"""Real data sets that come with the package, as tables with a graph."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
import pandas

from kinfolk.network.graph import Graph
from kinfolk.network.network import Network


@dataclass(frozen=True)
class Dataset:
    """A table whose rows carry a node, features and a target, and the graph of its nodes."""

    title: str
    source: str
    frame: pandas.DataFrame
    graph: Graph
    node: str
    target: str
    features: tuple[str, ...]

    def network(self, test: Any = None) -> Network:
        """The network; ``test`` marks the rows that are held out."""
        return Network.from_frame(
            self.frame, node=self.node, target=self.target, features=self.features, graph=self.graph, test=test
        )


def load_us_counties() -> Dataset:
    """3,107 US counties in the presidential election of 1980: log turnout on log college, home ownership, income.

    One data point per county, and the graph of counties that touch. Columns ``lat`` and ``lon`` are for maps; the index
    of the table has FIPS codes.

    >>> load_us_counties().frame["county"]["36059"]
    'Nassau County, NY'
    >>> load_us_counties().network()
    Network(3,107 nodes, 9,063 edges, 3,107 samples, 3 features)
    """
    folder = resources.files("kinfolk.datasets") / "us_counties_1980"
    with resources.as_file(folder) as path:
        raw = pandas.read_csv(path / "counties.csv.gz", dtype={"FIPS": str})
        edges = pandas.read_csv(path / "edges.csv.gz")
        names = pandas.read_csv(path / "names.csv.gz", dtype=str).set_index("FIPS").loc[raw["FIPS"]]
    columns = {"log_turnout": "pc_turnout", "log_college": "pc_college"}
    columns |= {"log_homeownership": "pc_homeownership", "log_income": "pc_income"}
    county = (names["county"] + ", " + names["state"]).to_numpy()
    frame = pandas.DataFrame({"county": county} | {new: np.log(raw[old]) for new, old in columns.items()})
    frame[["lat", "lon"]] = raw[["lat", "lon"]]
    frame.index = pandas.Index(raw["FIPS"], name="fips")
    return Dataset(
        title="US counties in the presidential election of 1980",
        source="Pace and Barry 1997, R package spData, CC0 1.0; names: US Census Bureau, public domain",
        frame=frame,
        graph=Graph(len(frame), edges[["i", "j"]].to_numpy(), names=frame["county"].tolist()),
        node="county",
        target="log_turnout",
        features=("log_college", "log_homeownership", "log_income"),
    )
