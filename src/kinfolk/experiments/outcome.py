"""What an experiment gives: a table, the claims it checked, and a picture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas
from rich.console import Console
from rich.table import Table

from kinfolk.checks import InputError


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, whether it holds here, and the numbers that show it."""

    text: str
    holds: bool
    numbers: str


@dataclass(frozen=True, eq=False)
class Outcome:
    """A reproduced table or figure.

    ``runs`` has a row per run, ``table`` is what is printed: medians beside the paper's values where it prints some.
    """

    name: str
    title: str
    note: str  # what was assumed where the paper is silent
    runs: pandas.DataFrame
    table: pandas.DataFrame
    claims: list[Claim]
    draw: Callable[[Any, pandas.DataFrame], None]  # (figure, runs)

    def write(self, folder: Path) -> tuple[Path, Path]:
        """Write all runs as CSV and the picture as PNG, and return both paths."""
        figure = _new_figure()
        self.draw(figure, self.runs)
        folder.mkdir(parents=True, exist_ok=True)
        csv, png = folder / f"{self.name}.csv", folder / f"{self.name}.png"
        self.runs.to_csv(csv, index=False)
        figure.savefig(png, dpi=150)
        return csv, png

    def show(self, console: Console) -> None:
        """Print the table, what was assumed, and the claims."""
        printed = Table(title=self.title, title_justify="left")
        for k, name in enumerate(self.table.columns):
            printed.add_column(str(name), justify="right" if k else "left")
        for row in self.table.itertuples(index=False):
            printed.add_row(*map(_text, row))
        console.print(printed)
        console.print(self.note, style="dim", highlight=False)
        console.print()
        judged = Table.grid(padding=(0, 1))
        for claim in self.claims:
            verdict = "[green]holds[/]" if claim.holds else "[red]fails[/]"
            judged.add_row(verdict, f"{claim.text}: {claim.numbers}")
        console.print(judged)


def _text(value: Any) -> str:
    """A cell: numbers that are measured with two digits, everything else as it is.

    >>> _text(1.6234e-05), _text(3), _text("GTVMin"), _text(float("nan"))
    ('1.6e-05', '3', 'GTVMin', '')
    """
    if not isinstance(value, float):
        return str(value)
    return "" if value != value else f"{value:.2g}"


def _new_figure() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError('Expected matplotlib for the figure: install it with pip install "kinfolk[plot]".') from error
    return Figure(figsize=(9, 5), layout="constrained")
