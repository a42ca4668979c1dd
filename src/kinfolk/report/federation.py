"""The page of a federation at its coordinator: what it may know, and nothing of any row."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas
import plotly.graph_objects as go
import plotly.offline

from kinfolk.engine.files import write_output
from kinfolk.report import words
from kinfolk.report.colours import QUIET, group_colour
from kinfolk.report.page import is_page, templates

HEIGHT = 300


@dataclass(frozen=True, eq=False)
class FederationFacts:
    """What the coordinator of a federation knows of a run.

    Parameters
    ----------
    name : str
        Of the federation.
    target : str
        What is predicted.
    classes : tuple of str
        The values of the target; none: it is a number.
    algorithm : str
        What was run.
    sites : dict
        For every site ``nodes``, ``with_rows`` and the fingerprint of its ``key``.
    histories : dict
        The history of everything that was run, by what it is: alone, pooled, tailored.
    stopped : str
        Why the run has ended.
    notes : list of str
        What a reader should know.
    readers : list of str
        Who reads what.
    """

    name: str
    target: str
    classes: tuple[str, ...]
    algorithm: str
    sites: dict[str, dict[str, Any]]
    histories: dict[str, pandas.DataFrame]
    stopped: str
    notes: list[str]
    readers: list[str]

    @property
    def errors(self) -> dict[str, float]:
        """The error of everything that was run on held-out rows, where there are some."""
        ends = {name: history["error"].iloc[-1] for name, history in self.histories.items() if "error" in history}
        return {name: float(error) for name, error in ends.items() if error is not None and error == error}

    @property
    def sent(self) -> float:
        """Bytes that nodes have sent in the main run."""
        history = self.histories.get("tailored", pandas.DataFrame())
        return float(history["bytes"].iloc[-1]) if "bytes" in history else 0.0


def write_federation(facts: FederationFacts, path: Path) -> Path:
    """Write the page of a federation, one file that needs no network.

    Parameters
    ----------
    facts : FederationFacts
        What is known.
    path : Path
        The file to write; only a page of kinfolk is replaced.

    Returns
    -------
    Path
        The file.
    """
    figures = {"progress": _progress(facts)}
    text = templates().get_template("federation.html").render(
        facts=facts, errors=words.federation_errors(facts.errors), verdict=words.federation_verdict(facts.errors),
        measure=words.federation_measure(bool(facts.classes)), plotly=plotly.offline.get_plotlyjs(),
        figures={name: figure.to_plotly_json() for name, figure in figures.items() if figure is not None},
    )  # fmt: skip
    write_output(path, text.encode(), is_page)
    return path


def write_fitted(name: str, found: dict[str, Any], sites: dict[str, dict[str, Any]], path: Path) -> Path:
    """Write the page of sites that have learnt together from tables.

    Parameters
    ----------
    name : str
        Of the federation.
    found : dict
        What the coordinator knows: leaderboard, judgement, nodes, notes, exchanges.
    sites : dict
        What is known of every site, if anything.
    path : Path
        The file to write; only a page of kinfolk is replaced.

    Returns
    -------
    Path
        The file.
    """
    lines = [
        (words.title(each["name"]), words.number(each["error"], 4), words.share_of_one(each["weight"]))
        for each in found["leaderboard"]
    ]
    nodes = sorted(found["nodes"], key=lambda each: -(each["gain"] or 0.0))
    text = templates().get_template("fitted.html").render(
        name=name, found=found, lines=lines, nodes=nodes, sites=sites, measure=words.ERRORS[found["kind"]]
    )  # fmt: skip
    write_output(path, text.encode(), is_page)
    return path


def _progress(facts: FederationFacts) -> go.Figure | None:
    """Error and residual by round, each on its own axis."""
    history = facts.histories.get("tailored", pandas.DataFrame())
    if len(history) < 2:
        return None
    figure = go.Figure()
    for k, (name, axis) in enumerate((("error", "y"), ("residual", "y2"))):
        if name in history:
            values = history[name].astype(float)
            figure.add_scatter(
                x=values.index.tolist(), y=[None if value != value else value for value in values], name=name,
                yaxis=axis, mode="lines+markers", line={"color": group_colour(k)},
            )  # fmt: skip
    pooled = facts.errors.get("pooled")
    if pooled is not None:
        figure.add_hline(y=pooled, line={"color": QUIET, "dash": "dot"}, annotation_text="one model for all")
    return figure.update_layout(
        template="plotly_white", height=HEIGHT, margin={"l": 60, "r": 70, "t": 20, "b": 50},
        xaxis={"title": "round"}, yaxis={"title": "error", "rangemode": "tozero"},
        yaxis2={"title": "residual", "type": "log", "overlaying": "y", "side": "right", "tickformat": ".0e",
                "dtick": 1},
        legend={"orientation": "h", "y": 1.15},
    )  # fmt: skip
