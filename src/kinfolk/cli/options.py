"""Options that several commands share, and the one way in which a command fails."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

Table = Annotated[Path, typer.Argument(help="A table (CSV, Parquet, JSON lines), or a run.toml to repeat.")]
Node = Annotated[str | None, typer.Option(help="Column with the node each row belongs to.")]
Target = Annotated[str | None, typer.Option(help="Column to predict.")]
Features = Annotated[str | None, typer.Option(metavar="A,B", help="Columns to predict from. [default: all others]")]
Categorical = Annotated[str | None, typer.Option(metavar="A,B", help="Columns of numbers that name categories.")]
Coords = Annotated[str | None, typer.Option(metavar="LAT,LON", help="Columns with the positions of nodes.")]
Edges = Annotated[Path | None, typer.Option(help="A table of pairs of nodes, and perhaps weights.")]
GraphKind = Annotated[
    str | None, typer.Option("--graph", help="auto, coordinates, similarity or complete. [default: auto]")
]
Neighbours = Annotated[int | None, typer.Option(help="How many neighbours a node chooses. [default: 5]")]
Model = Annotated[
    str | None, typer.Option(help="ridge, linear, tree, forest, boosting or file.py:Name. [default: ridge]")
]
Method = Annotated[
    str | None, typer.Option(help="auto, gtvmin, gtvmin-smooth, fedrelax, ifca or file.py:Name. [default: auto]")
]
Lam = Annotated[str | None, typer.Option(help="λ: auto (cross-validation) or a number. [default: auto]")]
Test = Annotated[str | None, typer.Option(help="Share of rows held out, or a column that marks them. [default: 0.2]")]
Time = Annotated[str | None, typer.Option(help="Column of dates or numbers: the last rows are held out.")]
Task = Annotated[str | None, typer.Option(help="auto, regression or classification. [default: auto]")]
Folds = Annotated[int | None, typer.Option(help="Parts for cross-validation. [default: 3]")]
Seed = Annotated[int | None, typer.Option(help="Seed of all random draws. [default: 0]")]
Json = Annotated[bool, typer.Option("--json", help="Print leaderboard and judgement for programs.")]
Trust = Annotated[
    str | None,
    typer.Option(metavar="A,B", help="Types of models to load, such as mine.Ridge, or files to run, such as mine.py."),
]


@contextmanager
def one_sentence() -> Iterator[None]:
    """Bad input becomes one sentence on standard error and exit code 1."""
    from kinfolk.checks import InputError, printable

    try:
        yield
    except InputError as error:
        print(f"kinfolk: {printable(str(error))}", file=sys.stderr)
        raise typer.Exit(1) from None


def number_or_word(text: str | None) -> Any:
    """A number if it is one, else the word itself."""
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        return text


def chosen(**given: Any) -> dict[str, Any]:
    """The settings that were given, each in its type."""
    for name in ("lam", "test"):
        given[name] = number_or_word(given[name])
    return {name: value for name, value in given.items() if value is not None}
