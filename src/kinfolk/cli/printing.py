"""What the commands print: tables that fit into 80 columns. The words are those of ``report.words``."""

from __future__ import annotations

import sys
from typing import Any

import pandas
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kinfolk.checks import printable
from kinfolk.report import words
from kinfolk.tables import TableRun


def shown(text: Any, style: str = "") -> Text:
    """Text as it is, for rich: no markup, no emoji codes, and escapes for what does not print."""
    return Text(printable(str(text)), style=style)


def print_exact(text: str) -> None:
    """Print what is exact, for files and programs; a terminal gets escapes for what does not print, line by line."""
    print("\n".join(map(printable, text.split("\n"))) if sys.stdout.isatty() else text, flush=True)


def print_run(run: TableRun, console: Console) -> None:
    """The leaderboard, the judgement, and what a user should know."""
    console.print(_leaderboard(run))
    console.print(shown(words.caption(run.facts)))
    console.print()
    console.print(shown(run.judgement.text, style="bold"))
    certificate = [f"Certificate: {run.account.certificate}"] if run.account.certificate else []
    for note in [*run.notes, *certificate]:
        console.print(shown(f"· {note}"))


def _leaderboard(run: TableRun) -> Table:
    size = f"{len(run.nodes):,} nodes, {run.graph.edge_count:,} edges: {words.graph_origin(run.origin)}"
    wrong = ["wrong"] if run.target.classes else []
    table = _table(size, ["error", *wrong, "helped", "hurt", "seconds", "sent"])
    best = run.leaderboard["error"].min()
    for role, row in run.leaderboard.iterrows():
        error = shown(f"{row['error']:.4g}", style="bold" if row["error"] == best else "")
        rest = [f"{row[name]:.1f} %" for name in wrong]
        table.add_row(shown(words.title(str(role), row["method"])), error, *rest, *_costs(row))
    return table


def _table(title: str, columns: list[str]) -> Table:
    table = Table(title=shown(title), title_justify="left")
    table.add_column("method", ratio=1)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _costs(row: pandas.Series) -> list[str]:
    """The last cells of a row of either table."""
    return [words.share(row["helped"]), words.share(row["hurt"]), f"{row['seconds']:.2g}", words.size(row["bytes"])]


def print_comparison(found: pandas.DataFrame, console: Console) -> None:
    """Methods side by side."""
    table = _table("The same held-out rows for all", ["error", "gain (95 %)", "helped", "hurt", "seconds", "sent"])
    for name, row in found.iterrows():
        title = name if row["method"] else words.title(str(name), "")
        table.add_row(shown(title), f"{row['error']:.4g}", words.gain_with_interval(row.to_dict()), *_costs(row))
    console.print(table)
    console.print("Gain: per cent less error than the better of alone and pooled, and its interval.", highlight=False)
