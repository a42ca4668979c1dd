"""The page of a site that has learnt with others: its own rows and models, which nobody else sees."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas
import plotly.graph_objects as go
import plotly.offline

from kinfolk.engine.files import write_output
from kinfolk.report import words
from kinfolk.report.colours import MAIN, QUIET, WORSE
from kinfolk.report.page import VERDICTS, is_page, templates

HEIGHT = 340
MOST_ROWS, MOST_NODES, MOST_FEATURES = 200, 60, 12  # that tables show
SHARES = (0.1, 0.25, 0.5, 0.75, 0.9)  # of all nodes, whose errors a site is told


@dataclass(frozen=True)
class Outcome:
    """What a coordinator tells all sites when they have learnt together.

    Parameters
    ----------
    verdict, judgement : str
        Whether learning together helps, in two words and in full.
    methods : tuple of str
        What was compared.
    errors : tuple of float
        The mean error of each over all nodes, as it is shown.
    quantiles : tuple of tuple of float
        For each the errors that ``SHARES`` of all nodes are below.
    notes : tuple of str
        What a reader should know.
    """

    verdict: str
    judgement: str
    methods: tuple[str, ...]
    errors: tuple[float, ...]
    quantiles: tuple[tuple[float, ...], ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class SiteFacts:
    """What the page of a site shows.

    Parameters
    ----------
    federation, site : str
        Their names.
    target, kind : str
        What is predicted, and whether it is a number, classes, a count or a quantile.
    outcome : Outcome
        Of all sites.
    weights : dict of str to float
        Of the members of the blend.
    here : dict of str to float
        The mean error of every method over own nodes; none without held-out rows.
    nodes : pandas.DataFrame
        By own node ``train_rows``, ``test_rows``, and the error of every method as ``error_...``.
    rows : pandas.DataFrame
        Held-out rows: ``row``, ``node``, ``target``, ``predicted``; ``low`` and ``high``, or ``probability``.
    level : float or None
        The share of rows that intervals are meant to hold; None: there are none.
    coefficients : pandas.DataFrame
        Of the tailored models: own nodes by features, and the intercept.
    sent : pandas.DataFrame
        What has left: ``to``, ``what``, ``messages``, ``numbers``, ``bytes``.
    """

    federation: str
    site: str
    target: str
    kind: str
    outcome: Outcome
    weights: dict[str, float]
    here: dict[str, float]
    nodes: pandas.DataFrame
    rows: pandas.DataFrame
    level: float | None
    coefficients: pandas.DataFrame
    sent: pandas.DataFrame

    @property
    def tested(self) -> pandas.DataFrame:
        """The own nodes with held-out rows."""
        return self.nodes[self.nodes["test_rows"] > 0]

    @property
    def inside(self) -> float | None:
        """The share of held-out rows inside their intervals; None without intervals."""
        if self.level is None or not len(self.rows):
            return None
        return float(((self.rows["target"] >= self.rows["low"]) & (self.rows["target"] <= self.rows["high"])).mean())


def write_site(facts: SiteFacts, path: Path) -> Path:
    """Write the page of a site, one file that needs no network.

    Parameters
    ----------
    facts : SiteFacts
        What is known.
    path : Path
        The file to write; only a page of kinfolk is replaced.

    Returns
    -------
    Path
        The file.
    """
    figures = {"nodes": _nodes(facts), "rows": _rows(facts)}
    text = templates().get_template("site.html").render(
        facts=facts, mood=VERDICTS.get(facts.outcome.verdict, "even"), measure=words.ERRORS[facts.kind],
        lines=_lines(facts), coefficients=_coefficients(facts), rows=facts.rows.head(MOST_ROWS).to_dict("records"),
        nodes=facts.nodes.head(MOST_NODES).reset_index().to_dict("records"), most_rows=MOST_ROWS, most_nodes=MOST_NODES,
        plotly=plotly.offline.get_plotlyjs(),
        figures={name: figure.to_plotly_json() for name, figure in figures.items() if figure is not None},
    )  # fmt: skip
    write_output(path, text.encode(), is_page)
    return path


def _lines(facts: SiteFacts) -> list[tuple[str, ...]]:
    """Title, error at all nodes and at those here, and weight of everything that was compared."""
    return [
        (words.title(name), words.number(error, 4), words.number(facts.here.get(name), 4),
         words.share_of_one(facts.weights.get(name)))
        for name, error in zip(facts.outcome.methods, facts.outcome.errors, strict=True)
    ]  # fmt: skip


def _coefficients(facts: SiteFacts) -> dict[str, Any] | None:
    """The largest coefficients, for a table with colours; None where there are none."""
    found = facts.coefficients
    if found.empty:
        return None
    largest = found.abs().max().sort_values(ascending=False, kind="stable").index[:MOST_FEATURES]
    shown = found[[name for name in found.columns if name in largest]].head(MOST_NODES)
    return {
        "features": [str(name) for name in shown.columns],
        "rows": [(str(name), values) for name, values in zip(shown.index, shown.to_numpy().tolist(), strict=True)],
        "largest": float(found.abs().max().max()) or 1.0,
        "left_out": found.shape[1] - shown.shape[1],
    }


def _nodes(facts: SiteFacts) -> go.Figure | None:
    """Errors of the own nodes, with the quantiles of all nodes as lines."""
    own = facts.tested
    if own.empty or "final" not in facts.outcome.methods:
        return None
    figure = go.Figure()
    names = [str(name) for name in own.index]
    for name, colour, symbol in (("final", MAIN, "circle"), ("alone", WORSE, "diamond")):
        if f"error_{name}" in own:
            values = [None if value != value else value for value in own[f"error_{name}"].tolist()]
            figure.add_scatter(
                x=names, y=values, mode="markers", name=words.title(name),
                marker={"color": colour, "symbol": symbol, "size": 9},
            )  # fmt: skip
    quantiles = facts.outcome.quantiles[facts.outcome.methods.index("final")]
    for share, value in zip(SHARES, quantiles, strict=True):
        figure.add_hline(
            y=value, line={"color": QUIET, "dash": "solid" if share == 0.5 else "dot", "width": 1},
            annotation_text=f"{100 * share:.0f} %", annotation_position="right",
        )  # fmt: skip
    return _laid_out(figure, "node", words.ERRORS[facts.kind], category=True)


def _rows(facts: SiteFacts) -> go.Figure | None:
    """Held-out rows: what was predicted, with its interval, against what it was; None for classes."""
    rows = facts.rows
    if facts.kind == "classes" or rows.empty:
        return None
    figure = go.Figure()
    bars = None
    if facts.level is not None:
        up, down = rows["high"] - rows["predicted"], rows["predicted"] - rows["low"]
        bars = {
            "type": "data", "symmetric": False, "array": up.tolist(), "arrayminus": down.tolist(), "color": QUIET,
            "thickness": 1, "width": 0,
        }  # fmt: skip
    figure.add_scatter(
        x=rows["target"].tolist(), y=rows["predicted"].tolist(), mode="markers", marker={"color": MAIN, "size": 6},
        error_y=bars, text=[str(name) for name in rows["node"]], name="held-out rows", showlegend=False,
    )  # fmt: skip
    ends = [float(rows["target"].min()), float(rows["target"].max())]
    figure.add_scatter(x=ends, y=ends, mode="lines", line={"color": QUIET, "dash": "dot"}, showlegend=False)
    return _laid_out(figure, facts.target, "predicted")


def _laid_out(figure: go.Figure, x: str, y: str, category: bool = False) -> go.Figure:
    return figure.update_layout(
        template="plotly_white", height=HEIGHT, margin={"l": 60, "r": 50, "t": 30, "b": 60},
        xaxis={"title": x, **({"type": "category"} if category else {})}, yaxis={"title": y},
        legend={"orientation": "h", "y": 1.15},
    )  # fmt: skip
