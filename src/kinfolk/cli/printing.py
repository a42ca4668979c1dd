"""What the commands print: tables that fit into 80 columns, and the same for programs."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pandas
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from kinfolk.tables import TableRun
from kinfolk.tables.judging import percent

SIZES = ("B", "kB", "MB", "GB", "TB")


def print_run(run: TableRun, console: Console) -> None:
    """The leaderboard, the judgement, and what a user should know."""
    console.print(_leaderboard(run))
    taken = run.nodes["model"].value_counts()
    shares = ", ".join(f"{kind} {100 * taken[kind] / len(run.nodes):.0f} %" for kind in taken.index)
    console.print(f"{_caption(run)} In the end the nodes take: {shares}.\n", highlight=False, markup=False)
    console.print(Text(run.judgement.text, style="bold"))
    for note in run.notes:
        console.print(f"· {note}", highlight=False, markup=False)
    if run.about["certificate"]:
        console.print(f"· Certificate: {run.about['certificate']}", highlight=False, markup=False)


def _caption(run: TableRun) -> str:
    what = "Brier score (0: always right)" if run.target.classes else f"root mean squared error of {run.columns.target}"
    against = "alone" if "alone" in run.leaderboard.index else "pooled"
    tested = f"mean over nodes, {run.about['test_rows']:,} held-out rows"
    return f"Error: {what}, {tested}. Helped, hurt: nodes, against {against}."


def _leaderboard(run: TableRun) -> Table:
    table = Table(
        title=Text(f"{len(run.nodes):,} nodes, {run.graph.edge_count:,} edges: {run.about['graph']}"),
        title_justify="left",
    )
    table.add_column("method", ratio=1)
    for column in ("error", *(["wrong"] if run.target.classes else []), "helped", "hurt", "seconds", "sent"):
        table.add_column(column, justify="right", no_wrap=True)
    best = run.leaderboard["error"].min()
    for _, row in run.leaderboard.iterrows():
        cells = [
            escape(row["method"]),
            f"{row['error']:.4g}" if row["error"] != best else f"[bold]{row['error']:.4g}[/bold]",
        ]
        if run.target.classes:
            cells.append(f"{row['wrong']:.1f} %")
        cells += [_share(row["helped"]), _share(row["hurt"]), f"{row['seconds']:.2g}", size(row["bytes"])]
        table.add_row(*cells)
    return table


def _share(value: float) -> str:
    return "" if value is None or np.isnan(value) else f"{value:.0f} %"


def size(count: float) -> str:
    """Bytes in words.

    >>> size(0), size(2_500_000)
    ('0 B', '2.5 MB')
    """
    power = min(int(np.log10(max(count, 1)) // 3), len(SIZES) - 1)
    return f"{count / 1000**power:.3g} {SIZES[power]}"


def print_comparison(found: pandas.DataFrame, console: Console) -> None:
    """Methods side by side."""
    table = Table(title="The same held-out rows for all", title_justify="left")
    table.add_column("method", ratio=1)
    for column in ("error", "gain (95 %)", "helped", "hurt", "seconds", "sent"):
        table.add_column(column, justify="right", no_wrap=True)
    for _, row in found.iterrows():
        gain = "" if np.isnan(row["gain"]) else f"{percent(row['gain'])} ({percent(row['low'])}–{percent(row['high'])})"
        cells = [escape(str(row["method"])), f"{row['error']:.4g}", gain, _share(row["helped"]), _share(row["hurt"])]
        table.add_row(*cells, f"{row['seconds']:.2g}", size(row["bytes"]))
    console.print(table)
    console.print("Gain: per cent less error than the better of alone and pooled, and its interval.", highlight=False)


def summary(run: TableRun) -> dict[str, Any]:
    """Leaderboard and judgement for programs."""
    return {
        "leaderboard": json.loads(run.leaderboard.reset_index().to_json(orient="records")),
        "judgement": dataclasses.asdict(run.judgement),
    }
