"""The page of a run of FedCG: its domains, how large they are, and how close their branches have come."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go
import plotly.offline

from kinfolk.algorithms.fedcg.models import DomainModels
from kinfolk.checks import InputError
from kinfolk.engine.run import Run
from kinfolk.report.colours import MAIN, QUIET, group_colour
from kinfolk.report.page import templates
from kinfolk.typing import Floats, Ints

HEIGHT = 320


class DomainFacts(NamedTuple):
    """What is known of the domains of a run."""

    branches: int  # 0: one domain was found, and there are none
    clients: Ints  # (domains,) nodes that were told a domain; zeros where rows decide
    rows: Floats  # (domains,) rows of the nodes that have taken part
    adjacency: Floats  # (domains, domains)


def domain_facts(run: Run) -> DomainFacts:
    """The domains of a run of FedCG.

    Parameters
    ----------
    run : Run
        A run of ``FedCG`` with its rows here.

    Returns
    -------
    DomainFacts
        Number and sizes of the domains, and the adjacency of their branches.
    """
    models = run.models
    if not isinstance(models, DomainModels):
        raise InputError(f"Expected a run of FedCG for its domains, got one of {type(run.algorithm).__name__}.")
    count = max(models.domain_count, 1)
    told = models.domain[models.domain >= 0]
    clients = np.bincount(told, minlength=count)[:count]
    return DomainFacts(models.domain_count, clients, run.state.counts.sum(axis=0)[:count], models.adjacency)


def write_domains(run: Run, path: str | Path) -> Path:
    """Write the page of the domains of a run, one file that needs no network.

    Parameters
    ----------
    run : Run
        A run of ``FedCG``.
    path : path
        The file to write; folders are made.

    Returns
    -------
    Path
        The file.
    """
    facts, path = domain_facts(run), Path(path)
    figures = {"sizes": _sizes(facts), "adjacency": _adjacency(facts), "branches": _branches(run)}
    page = templates().get_template("domains.html")
    text = page.render(
        facts=facts, notes=run.notes, rounds=run.rounds, nodes=run.problem.graph.node_count,
        learning=int(run.problem.has_data.sum()), stopped=run.stopped, plotly=plotly.offline.get_plotlyjs(),
        figures={name: figure.to_plotly_json() for name, figure in figures.items() if figure is not None},
    )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def _layout(figure: go.Figure, **options: Any) -> go.Figure:
    margin = {"l": 60, "r": 20, "t": 20, "b": 50}
    return figure.update_layout(template="plotly_white", height=HEIGHT, margin=margin, **options)


def _sizes(facts: DomainFacts) -> go.Figure:
    names = [f"domain {d}" for d in range(len(facts.rows))]
    colours = [group_colour(d) for d in range(len(names))]
    bars = go.Bar(
        x=names, y=facts.rows.tolist(), marker={"color": colours}, customdata=facts.clients.tolist(),
        hovertemplate="%{x}: %{y:,} rows, %{customdata:,} clients<extra></extra>",
    )  # fmt: skip
    return _layout(go.Figure(bars), yaxis={"title": "rows that took part"})


def _adjacency(facts: DomainFacts) -> go.Figure | None:
    if facts.branches < 2:
        return None
    names = [f"domain {d}" for d in range(facts.branches)]
    heat = go.Heatmap(
        x=names, y=names, z=facts.adjacency.round(4).tolist(), colorscale=[[0, "#ffffff"], [1, MAIN]], zmin=0,
        zmax=1, texttemplate="%{z:.2f}",
        hovertemplate="%{y} takes %{z:.3f} of %{x}<extra></extra>",
    )  # fmt: skip
    return _layout(go.Figure(heat), yaxis={"autorange": "reversed"})


def _branches(run: Run) -> go.Figure | None:
    columns = [name for name in run.history.columns if str(name).startswith("branch ")]
    if not columns or len(run.history) < 2:
        return None
    lines = [
        go.Scatter(x=run.history.index.tolist(), y=run.history[name].tolist(), name=name.removeprefix("branch "),
                   line={"color": group_colour(k)})
        for k, name in enumerate(columns)
    ]  # fmt: skip
    figure = go.Figure(lines).add_hline(y=1.0, line={"color": QUIET, "dash": "dot"})
    return _layout(figure, xaxis={"title": "round"}, yaxis={"title": "‖branch‖ / ‖shared part‖", "rangemode": "tozero"})
