"""What the page reads: the facts of a run on a table, whoever has made them."""

from __future__ import annotations

from typing import Any, Protocol

import pandas

from kinfolk.network.graph import Graph
from kinfolk.typing import Floats, Ints

KINDS = ("tailored", "alone", "pooled")  # of models that a node can end with


class PathFacts(Protocol):
    """Tailored models along λ."""

    lams: Floats  # (values,) ascending
    chosen: int
    errors: Floats  # (values,) in cross-validation; NaN where none was made
    spread: Floats  # (values,) standard error over folds
    groups: Ints  # (values, nodes)
    signature: Floats  # (values, nodes, numbers) coefficients, or predictions, in few numbers
    names: tuple[str, ...]  # of these numbers
    coefficients: bool


class RunFacts(Protocol):
    """A finished run on a table, see ``TableRun``."""

    settings: Any
    columns: Any
    target: Any
    graph: Graph
    places: Floats | None
    models: Any
    nodes: pandas.DataFrame
    leaderboard: pandas.DataFrame
    judgement: Any
    path: Any
    edges: pandas.DataFrame
    history: pandas.DataFrame
    notes: list[str]
    about: dict[str, Any]


def on_globe(coords: tuple[str, ...]) -> bool:
    """Whether coordinates are latitude and longitude, by their names."""
    return bool(coords) and coords[0].lower().startswith("lat")
