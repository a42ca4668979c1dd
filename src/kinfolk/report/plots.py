"""Figures of a run: the network, the path along λ, convergence, and who gains."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from kinfolk.report import words
from kinfolk.report.colours import BETTER, MAIN, QUIET, WORSE, group_colour, group_symbol
from kinfolk.report.facts import Role, RunFacts
from kinfolk.report.positions import positions
from kinfolk.typing import Floats, Ints

MANY = 1_500  # nodes; more are drawn by the graphics card
MEASURES: dict[str, tuple[str, dict[str, Any]]] = {
    "gap": ("duality gap", {"color": group_colour(1)}),
    "residual": ("residual", {"color": group_colour(2), "width": 3}),
    "stationarity": ("residual: stationarity", {"color": group_colour(3), "dash": "dot"}),
    "complementarity": ("residual: complementarity", {"color": group_colour(4), "dash": "dash"}),
}
BESIDE = (Role.ALONE, Role.POOLED, Role.TAILORED)
LARGEST_LOSS = 100.0  # per cent
MOST_BINS = 50


@dataclass(frozen=True, eq=False)
class Plots:
    """The figures of one run, as Plotly figures: show them in a notebook, or write them to a file."""

    run: RunFacts

    def network(self) -> go.Figure:
        """The nodes on a map, or where a layout puts them, coloured by group; lines join neighbours."""
        spots, nodes, edges = positions(self.run), self.run.nodes, self.run.edges
        ends = spots[edges[["head", "tail"]].to_numpy()]  # (edges, 2, 2)
        lines = np.concatenate([ends, np.full((len(ends), 1, 2), np.nan)], axis=1).reshape(-1, 2)
        thin = {"color": QUIET, "width": 0.6}
        figure = go.Figure(self._scatter(lines, mode="lines", line=thin, hoverinfo="skip", showlegend=False))
        for group in np.unique(nodes["group"]):
            rows = (nodes["group"] == group).to_numpy()
            marker = {"color": group_colour(group), "symbol": group_symbol(group), "size": node_size(len(nodes)),
                      "line": {"width": 0.5, "color": "white"}}  # fmt: skip
            figure.add_trace(self._scatter(
                spots[rows], mode="markers", marker=marker, name=f"group {group}",
                text=self._labels(np.flatnonzero(rows)), hovertemplate="%{text}<extra></extra>",
            ))  # fmt: skip
        hidden = {"visible": False}
        figure.update_layout(template="plotly_white", height=560, margin=_margin(), xaxis=hidden, yaxis=hidden)
        return figure.update_yaxes(scaleanchor="x")

    def path(self) -> go.Figure:
        """The error in cross-validation along λ, with the standard error over folds; the chosen λ is marked."""
        path = self.run.path
        spread = {"type": "data", "array": path.spread, "color": QUIET, "thickness": 1, "width": 3}
        hover = "λ = %{x:.3g}<br>error %{y:.4g}<extra></extra>"
        line = go.Scatter(
            x=path.lams, y=path.errors, error_y=spread, mode="lines+markers", name="error", hovertemplate=hover,
            line={"color": MAIN}, marker={"size": 6},
        )  # fmt: skip
        best = go.Scatter(
            x=path.lams[[path.chosen]], y=path.errors[[path.chosen]], mode="markers", name="chosen",
            hovertemplate=hover, marker={"color": WORSE, "size": 12, "symbol": "circle-open", "line": {"width": 2.5}},
        )  # fmt: skip
        figure = go.Figure([line, best])
        figure.update_layout(template="plotly_white", height=300, margin=_margin(), showlegend=False)
        figure.update_xaxes(type="log", dtick=1, exponentformat="none", title="λ, the pull between neighbours")
        return figure.update_yaxes(title="error in cross-validation")

    def convergence(self) -> go.Figure:
        """Above: the objective by round. Below: how far the answer is from the best, on a log axis."""
        history = self.run.history
        figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.08)
        if "objective" in history:
            figure.add_trace(self._by_round("objective", "objective", {"color": MAIN}), row=1, col=1)
        for column, (name, line) in MEASURES.items():
            if column in history:
                figure.add_trace(self._by_round(column, name, line), row=2, col=1)
        figure.update_layout(template="plotly_white", height=460, margin=_margin())
        figure.update_layout(legend={"orientation": "h", "y": 1.03, "yanchor": "bottom", "x": 0}, hovermode="x unified")
        figure.update_yaxes(type="log", exponentformat="e", nticks=6, title="distance from the best", row=2, col=1)
        figure.update_yaxes(title="objective", row=1, col=1)
        return figure.update_xaxes(title="round", row=2, col=1)

    def gain(self) -> go.Figure:
        """The gain of every node against the rows that it has to learn from; a histogram if all have as many.

        Losses are drawn as 100 per cent at most: a few nodes with hardly any error alone would hide all others.
        """
        nodes = self.run.nodes
        known = np.flatnonzero(np.isfinite(nodes["gain"].to_numpy()))
        gain, rows = nodes["gain"].to_numpy()[known].clip(-LARGEST_LOSS), nodes["train_rows"].to_numpy()[known]
        title = "gain over the better baseline, per cent"
        if words.same_size(self.run) is not None:
            bins = min(MOST_BINS, math.ceil(2 * math.sqrt(len(gain))))
            figure = go.Figure(go.Histogram(x=gain.astype("f4"), nbinsx=bins, marker={"color": MAIN}, name="nodes"))
            figure.update_xaxes(title=title).update_yaxes(title="nodes")
        else:
            figure = go.Figure(self._scatter(
                np.stack([rows, gain], axis=1), mode="markers", text=self._labels(known),
                hovertemplate="%{text}<extra></extra>",
                marker={"color": np.where(gain < 0, WORSE, BETTER), "size": 6, "opacity": 0.7},
            ))  # fmt: skip
            wide = rows.min(initial=1) > 0 and rows.max(initial=1) > 10 * rows.min(initial=1)
            figure.update_xaxes(title="training rows", type="log" if wide else "linear")
            figure.update_yaxes(title=title, rangemode="tozero", zeroline=True, zerolinewidth=1.5)
        return figure.update_layout(template="plotly_white", height=380, margin=_margin(), showlegend=False)

    def exchange(self) -> go.Figure:
        """How much had been sent after each round."""
        history = self.run.history
        trace = go.Scatter(
            x=history.index, y=history["bytes"].to_numpy() / 1e6, mode="lines", line={"color": MAIN}, fill="tozeroy",
            fillcolor="rgba(0,114,178,.15)", hovertemplate="round %{x}: %{y:.4g} MB<extra></extra>",
        )  # fmt: skip
        figure = go.Figure(trace).update_xaxes(title="round").update_yaxes(title="megabytes sent", rangemode="tozero")
        return figure.update_layout(template="plotly_white", height=260, margin=_margin(), showlegend=False)

    def calibration(self) -> go.Figure:
        """How often something happens, against the probability that was predicted."""
        assert self.run.class_scores is not None
        predicted, happened, count = (np.array(each) for each in zip(*self.run.class_scores.calibration, strict=True))
        even = go.Scatter(x=[0, 1], y=[0, 1], mode="lines", line={"color": QUIET, "dash": "dot"}, hoverinfo="skip")
        points = go.Scatter(
            x=predicted, y=happened, mode="markers", customdata=count,
            marker={"size": 5 + 20 * np.sqrt(count / count.max()), "color": MAIN},
            hovertemplate="predicted %{x:.2f}, happened %{y:.2f}<br>%{customdata:,} rows<extra></extra>",
        )  # fmt: skip
        figure = go.Figure([even, points]).update_xaxes(title="predicted probability", range=[-0.03, 1.03])
        figure.update_yaxes(title="share that happened", range=[-0.03, 1.03])
        return figure.update_layout(template="plotly_white", height=340, margin=_margin(), showlegend=False)

    def _by_round(self, column: str, name: str, line: dict[str, Any]) -> go.Scatter:
        values = self.run.history[column].to_numpy(dtype=np.float64)
        shown = values if column == "objective" else np.where(values > 0, values, np.nan)
        return go.Scatter(x=self.run.history.index, y=shown, name=name, mode="lines", line=line)

    def _scatter(self, spots: Floats, **options: Any) -> Any:
        """Points or lines, drawn by the graphics card if there are many."""
        kind = go.Scattergl if len(self.run.nodes) > MANY else go.Scatter
        x, y = np.asarray(spots, dtype=np.float32).T
        return kind(x=np.ascontiguousarray(x), y=np.ascontiguousarray(y), **options)

    def _labels(self, numbers: Ints) -> list[str]:
        """What is shown of nodes under the pointer."""
        near, chosen = self.run.graph.degrees[numbers], self.run.nodes.iloc[numbers]
        return [
            f"<b>{html.escape(str(name))}</b><br>{rows:,} training rows, {degree} neighbours<br>"
            f"error alone {words.number(alone)}, for all {words.number(pooled)}, tailored {words.number(tailored)}"
            for name, rows, degree, alone, pooled, tailored in zip(
                chosen.index, chosen["train_rows"], near, *(chosen[f"error_{role}"] for role in BESIDE), strict=True
            )
        ]


def node_size(count: int) -> float:
    """How large nodes are drawn, in pixels.

    >>> node_size(4), node_size(3_000)
    (22.0, 4.5)
    """
    return float(np.clip(round(32 / count**0.25, 1), 4.5, 22.0))


def _margin() -> dict[str, int]:
    return {"l": 60, "r": 16, "t": 16, "b": 48}
