"""What the commands print: tables that fit into 80 columns, and the same for programs."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any

import numpy as np
import pandas
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kinfolk.checks import printable
from kinfolk.tables import TableRun
from kinfolk.tables.judging import percent

SIZES = ("B", "kB", "MB", "GB", "TB")


def shown(text: Any, style: str = "") -> Text:
    """Text as it is, for rich: no markup, no emoji codes, and escapes for what does not print."""
    return Text(printable(str(text)), style=style)


def tell(text: str) -> None:
    """Print what is exact, for files and programs; a terminal gets escapes for what does not print, line by line."""
    print("\n".join(map(printable, text.split("\n"))) if sys.stdout.isatty() else text, flush=True)


def print_run(run: TableRun, console: Console) -> None:
    """The leaderboard, the judgement, and what a user should know."""
    console.print(_leaderboard(run))
    taken = run.nodes["model"].value_counts()
    shares = ", ".join(f"{kind} {100 * taken[kind] / len(run.nodes):.0f} %" for kind in taken.index)
    console.print(shown(f"{_caption(run)} In the end the nodes take: {shares}."))
    console.print()
    console.print(shown(run.judgement.text, style="bold"))
    for note in run.notes:
        console.print(shown(f"· {note}"))
    if run.about["certificate"]:
        console.print(shown(f"· Certificate: {run.about['certificate']}"))


def _caption(run: TableRun) -> str:
    what = "Brier score (0: always right)" if run.target.classes else f"root mean squared error of {run.columns.target}"
    against = "alone" if "alone" in run.leaderboard.index else "pooled"
    tested = f"mean over nodes, {run.about['test_rows']:,} held-out rows"
    return f"Error: {what}, {tested}. Helped, hurt: nodes, against {against}."


def _leaderboard(run: TableRun) -> Table:
    table = Table(
        title=shown(f"{len(run.nodes):,} nodes, {run.graph.edge_count:,} edges: {run.about['graph']}"),
        title_justify="left",
    )
    table.add_column("method", ratio=1)
    for column in ("error", *(["wrong"] if run.target.classes else []), "helped", "hurt", "seconds", "sent"):
        table.add_column(column, justify="right", no_wrap=True)
    best = run.leaderboard["error"].min()
    for _, row in run.leaderboard.iterrows():
        cells: list[str | Text] = [
            shown(row["method"]),
            shown(f"{row['error']:.4g}", style="bold" if row["error"] == best else ""),
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
        cells: list[str | Text] = [
            shown(row["method"]),
            f"{row['error']:.4g}",
            gain,
            _share(row["helped"]),
            _share(row["hurt"]),
        ]
        table.add_row(*cells, f"{row['seconds']:.2g}", size(row["bytes"]))
    console.print(table)
    console.print("Gain: per cent less error than the better of alone and pooled, and its interval.", highlight=False)


def summary(run: TableRun) -> dict[str, Any]:
    """Leaderboard and judgement for programs."""
    return {
        "leaderboard": json.loads(run.leaderboard.reset_index().to_json(orient="records")),
        "judgement": dataclasses.asdict(run.judgement),
    }
