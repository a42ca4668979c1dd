"""What the commands print: tables that fit into 80 columns. The words are those of ``report.words``."""

from __future__ import annotations

import sys
from io import TextIOWrapper
from typing import Any

import pandas
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kinfolk.checks import printable
from kinfolk.report import words
from kinfolk.tables import TableRun

MOST_CHANGED = 5  # nodes


def shown(text: Any, style: str = "") -> Text:
    """Text as it is, for rich: no markup, no emoji codes, and escapes for what does not print."""
    return Text(printable(str(text)), style=style)


def print_exact(text: str) -> None:
    """Print what is exact, for files and programs; a terminal gets escapes for what does not print, line by line."""
    on_terminal = sys.stdout is not None and sys.stdout.isatty()
    if not on_terminal and isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")
    print("\n".join(map(printable, text.split("\n"))) if on_terminal else text, flush=True)


def print_run(run: TableRun, console: Console) -> None:
    """The leaderboard, the judgement, and what a user should know."""
    console.print(_leaderboard(run))
    console.print(shown(words.caption(run.facts)))
    console.print()
    console.print(shown(run.judgement.text, style="bold"))
    certificate = [f"Certificate: {run.account.certificate}"] if run.account.certificate else []
    for note in [*run.notes, *certificate]:
        console.print(shown(f"· {note}"))


def print_changes(run: TableRun, console: Console) -> None:
    """What an update did, and for whom it changed most."""
    facts = run.facts
    console.print(shown(words.changes(facts)))
    table = Table(title="Predictions changed most", title_justify="left")
    table.add_column(printable(run.columns.node), ratio=1)
    for column in ("rows before", "new rows", "error on new", "change"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, row in words.most_changed(facts, MOST_CHANGED).iterrows():
        before = "new" if pandas.isna(row["rows_before"]) else f"{row['rows_before']:,.0f}"
        numbers = [words.number(row["error_new"]), words.number(row["change"])]
        table.add_row(shown(name), before, f"{row['rows_new']:,.0f}", *numbers)
    console.print(table)
    console.print()


def _leaderboard(run: TableRun) -> Table:
    size = f"{len(run.nodes):,} nodes, {run.graph.edge_count:,} edges: {words.graph_origin(run.origin)}"
    wrong = ["wrong"] if run.target.classes else []
    table = _table(size, ["error", *wrong, "weight", "seconds"])
    best = run.leaderboard["error"].min()
    for name, row in run.leaderboard.iterrows():
        error = shown(words.number(row["error"], 4), style="bold" if row["error"] == best else "")
        rest = [f"{row[column]:.1f} %" for column in wrong]
        costs = [words.share_of_one(row["weight"]), words.seconds(row["seconds"])]
        table.add_row(shown(words.title(str(name), str(row["part"]))), error, *rest, *costs)
    return table


def _table(title: str, columns: list[str]) -> Table:
    table = Table(title=shown(title), title_justify="left")
    table.add_column("method", ratio=1)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def print_comparison(found: pandas.DataFrame, console: Console) -> None:
    """Methods side by side."""
    table = _table("The same held-out rows for all", ["error", "gain (95 %)", "seconds", "sent"])
    for name, row in found.iterrows():
        title = name if row["method"] else words.title(str(name))
        gain, costs = words.gain_with_interval(row.to_dict()), [words.seconds(row["seconds"]), words.size(row["bytes"])]
        table.add_row(shown(title), words.number(row["error"], 4), gain, *costs)
    console.print(table)
    console.print("Gain: per cent less error than the better of alone and pooled, and its interval.", highlight=False)
