"""The demo: does learning together help 3,107 counties with one data point each?"""

from __future__ import annotations

import importlib.util
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas
from rich.console import Console
from rich.table import Table

from kinfolk.algorithms import GTVMin, Pooled
from kinfolk.checks import AtLeast, InputError, check_value
from kinfolk.couplings import EuclideanNorm, SquaredNorm
from kinfolk.datasets import Dataset, load_us_counties
from kinfolk.graphs import random_like
from kinfolk.losses import Squared
from kinfolk.network import Network
from kinfolk.run import Run, fit
from kinfolk.selection import select_lam
from kinfolk.typing import Bools, Floats

HIDDEN_SHARE = 0.2
CAPTION = (
    "Mean squared error of the log turnout, standardised; λ by cross-validation on the counties that are not hidden. "
    "Alone is impossible: a hidden county has no data, and any other has one point for four parameters."
)
LAMS = tuple(float(lam) for lam in 10.0 ** np.arange(-1.5, 1.1, 0.5))


@dataclass(frozen=True)
class Row:
    """A line of the table: a method, its error on the hidden counties, and its λ."""

    method: str
    run: Run
    lam: float | None = None


def counties_demo(out: Path, seed: int = 0) -> list[Row]:
    """Hide a fifth of the counties, learn a model for every county, and say how well hidden ones are predicted."""
    path = out / "counties.png"
    _check_demo(path, seed)
    began = time.perf_counter()
    console = Console()
    counties = load_us_counties()
    hidden = hidden_counties(len(counties.frame), seed)
    network = standardised(counties, hidden).network(test=hidden)
    console.print(
        f"[bold]{counties.title}[/bold]: {network.graph.node_count:,} counties, {network.graph.edge_count:,} borders, "
        f"one data point each. The data of {hidden.sum()} counties are hidden.\n",
        highlight=False,
    )
    rows = compare(network, seed)
    console.print(_table(rows))
    console.print(CAPTION + "\n", highlight=False)
    tailored = rows[1]
    console.print(_judgement(rows), highlight=False)
    console.print(f"\n[bold]Certificate[/bold] ({tailored.method}): {tailored.run.certificate}", highlight=False)
    console.print(f"\n[bold]Notes[/bold]: {' '.join(tailored.run.notes)}", highlight=False)
    draw_map(counties.frame, tailored.run, network, path)
    seconds = time.perf_counter() - began
    console.print(f"\nMap of what was learnt: [bold]{path}[/bold]   ({seconds:.0f} seconds in all)", highlight=False)
    return rows


def _check_demo(path: Path, seed: int) -> None:
    """Refuse what would fail at the end before any work starts."""
    check_value("seed", "demo", seed, Annotated[int, AtLeast(0)])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"Expected a folder for the map, cannot make {str(path.parent)!r}: {error.strerror}."
        ) from error
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError('Expected matplotlib for the map: install it with pip install "kinfolk[plot]".')


def hidden_counties(count: int, seed: int) -> Bools:
    """Which counties are hidden."""
    hidden = np.zeros(count, dtype=bool)
    hidden[np.random.default_rng(seed).choice(count, round(HIDDEN_SHARE * count), replace=False)] = True
    return hidden


def standardised(dataset: Dataset, hidden: Bools) -> Dataset:
    """Target and features with mean 0 and deviation 1 over the rows that are not hidden."""
    frame = dataset.frame.copy()
    columns = [dataset.target, *dataset.features]
    seen = frame.loc[~hidden, columns]
    frame[columns] = (frame[columns] - seen.mean()) / seen.std(ddof=0)
    return replace(dataset, frame=frame)


def compare(network: Network, seed: int) -> list[Row]:
    """One model for all, GTV minimisation with two couplings, and the control on a random graph."""
    loss = Squared(intercept=True)
    smooth = GTVMin(loss, SquaredNorm())
    clustered = GTVMin(loss, EuclideanNorm())
    shuffled = network.with_graph(random_like(network.graph, seed=seed))
    return [
        Row("One model for all", fit(network, Pooled(loss))),
        _chosen("GTVMin, φ = ½‖·‖²", network, smooth, seed),
        _chosen("GTVMin, φ = ‖·‖₂", network, clustered, seed),
        _chosen("GTVMin, φ = ½‖·‖², random graph", shuffled, smooth, seed),
    ]


def _chosen(method: str, network: Network, algorithm: GTVMin, seed: int) -> Row:
    """Fit with the λ that cross-validation on the counties that are not hidden prefers."""
    lam = select_lam(network, algorithm, LAMS, folds=3, seed=seed).lam
    return Row(method, fit(network, replace(algorithm, lam=lam)), lam)


def _table(rows: list[Row]) -> Table:
    table = Table(title="Error on hidden counties", title_justify="left")
    table.add_column("method")
    table.add_column("error", justify="right")
    table.add_column("λ", justify="right")
    table.add_column("rounds", justify="right")
    for row in rows:
        lam = "" if row.lam is None else f"{row.lam:.2g}"
        table.add_row(row.method, f"{row.run.error():.3f}", lam, f"{row.run.rounds:,}")
    table.add_row("Every county alone", "–", "", "")
    return table


def _judgement(rows: list[Row]) -> str:
    pooled, tailored, _, control = (row.run.error() for row in rows)
    gain, by_chance = 100 * (1 - tailored / pooled), 100 * (1 - control / pooled)
    if gain <= 0:
        return f"Learning together does not help here: one model for all is better by {-gain:.0f} %."
    words = f"Models learnt with neighbours have {gain:.0f} % less error than one model for all. "
    if by_chance < gain / 2:
        return (
            words + f"It is the graph that helps: neighbours drawn at random change the error by {-by_chance:+.0f} %."
        )
    return words + f"But neighbours drawn at random lower it by {by_chance:.0f} %: the graph matters little."


def draw_map(frame: pandas.DataFrame, run: Run, network: Network, path: Path, feature: str = "log_college") -> None:
    """Draw every county as a point coloured by a learnt coefficient."""
    from matplotlib.figure import Figure

    coefficient: Floats = run.models.w[:, network.features.index(feature)]
    figure = Figure(figsize=(10, 5.8), layout="constrained")
    axes: Any = figure.add_subplot()
    limit = float(np.nanquantile(np.abs(coefficient), 0.99))
    kind = {"c": coefficient, "cmap": "RdBu_r", "vmin": -limit, "vmax": limit, "s": 14, "linewidths": 0}
    points = axes.scatter(frame["lon"], frame["lat"], **kind)
    axes.set_aspect(1 / np.cos(np.radians(38)))
    axes.axis("off")
    axes.set_title(f"Effect of {feature.removeprefix('log_')} on turnout, one model per county (1980)")
    figure.colorbar(points, ax=axes, shrink=0.7, label="coefficient (standardised logs)", pad=0.02)
    figure.savefig(path, dpi=150)
