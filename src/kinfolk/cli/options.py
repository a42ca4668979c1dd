"""Options that several commands share, and the one way in which a command fails."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import wraps
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer

Table = Annotated[Path, typer.Argument(help="A table (CSV, Parquet, JSON lines), or a run.toml to repeat.")]
Edges = Annotated[Path | None, typer.Option(help="A table of pairs of nodes, and perhaps weights.")]
Json = Annotated[bool, typer.Option("--json", help="Print leaderboard and judgement for programs.")]
Trust = Annotated[
    str | None,
    typer.Option(metavar="A,B", help="Types of models to load, such as mine.Ridge, or files to run, such as mine.py."),
]
SETTINGS = {  # those of ``kinfolk.tables.Settings``: the type, what it takes, and what it is
    "node": (str, None, "Column with the node each row belongs to."),
    "target": (str, None, "Column to predict."),
    "features": (str, "A,B", "Columns to predict from. [default: all others]"),
    "categorical": (str, "A,B", "Columns of numbers that name categories."),
    "coords": (str, "LAT,LON", "Columns with the positions of nodes."),
    "graph": (str, None, "auto, coordinates, similarity or complete. [default: auto]"),
    "neighbours": (int, None, "How many neighbours a node chooses. [default: 5]"),
    "model": (str, None, "ridge, linear, tree, forest, boosting or file.py:Name. [default: ridge]"),
    "method": (str, None, "auto, gtvmin, gtvmin-smooth, fedrelax, ifca or file.py:Name. [default: auto]"),
    "lam": (str, None, "λ: auto (cross-validation) or a number. [default: auto]"),
    "test": (str, None, "Share of rows held out, or a column that marks them. [default: 0.2]"),
    "time": (str, None, "Column of dates or numbers: the last rows are held out."),
    "hold": (str, None, "What is held out by share: rows, nodes or regions of the map. [default: rows]"),
    "task": (str, None, "auto, regression, classification, count or quantile. [default: auto]"),
    "quantile": (float, None, "The quantile to predict, for the task quantile. [default: 0.5]"),
    "folds": (str, None, "Parts for cross-validation, or auto. [default: auto]"),
    "members": (str, "A,B", "Members: a list replaces the usual ones, +file.py:Name adds one to them. [default: all]"),
    "seed": (int, None, "Seed of all random draws. [default: 0]"),
}


def one_sentence(command: Callable[..., None]) -> Callable[..., None]:
    """A command for which bad input becomes one sentence on standard error and exit code 1."""

    @wraps(command)
    def run(*words: Any, **options: Any) -> None:
        from kinfolk.checks import InputError, printable

        print_anywhere()
        try:
            command(*words, **options)
        except BrokenPipeError:
            raise
        except (InputError, OSError, MemoryError) as error:
            print(f"kinfolk: {printable(_sentence(error))}", file=sys.stderr)
            raise typer.Exit(1) from None

    return run


def print_anywhere() -> None:
    """Let a terminal without a letter show a question mark: a run is not lost for it."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError):
        about = f" {str(error.filename)!r}" if error.filename is not None else ""
        return f"Expected files that can be read and written, the system refuses{about}: {error.strerror or error}."
    if isinstance(error, MemoryError):
        return "Expected data that fit into memory, got more: take fewer rows or columns."
    return str(error)


def with_settings(*left_out: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command with options for the settings; it gets those that the user chose as ``given``."""
    options = {name: option for name, option in SETTINGS.items() if name not in left_out}

    def extended(command: Callable[..., None]) -> Callable[..., None]:
        def run(**words: Any) -> None:
            chosen = {name: _typed(name, words.pop(name)) for name in options}
            command(given={name: value for name, value in chosen.items() if value is not None}, **words)

        own = inspect.signature(command, eval_str=True).parameters
        table, *others = (each.replace(kind=each.KEYWORD_ONLY) for name, each in own.items() if name != "given")
        settings = [
            table.replace(
                name=name, default=None, annotation=Annotated[kind | None, typer.Option(metavar=m, help=text)]
            )
            for name, (kind, m, text) in options.items()
        ]
        run.__signature__ = inspect.Signature([table, *settings, *others])  # type: ignore[attr-defined]
        run.__name__, run.__doc__, run.__annotations__ = command.__name__, command.__doc__, {}
        return run

    return extended


def _typed(name: str, value: Any) -> Any:
    """λ, the share of test rows and the number of folds as numbers, where they are."""
    try:
        if name == "folds" and value is not None:
            return int(value)
        return float(value) if name in ("lam", "test") and value is not None else value
    except ValueError:
        return value
