"""The command line. Slow imports wait until a command needs them, so that ``kinfolk --help`` answers at once."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="One tailored model for every local data set in a network.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback()
def main() -> None:
    """One tailored model for every local data set in a network."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the map.")] = Path("out"),
    seed: Annotated[int, typer.Option(help="Which counties are hidden.")] = 0,
) -> None:
    """A model for each of 3,107 US counties, in half a minute."""
    from kinfolk.checks import InputError
    from kinfolk.demo import counties_demo

    try:
        counties_demo(out, seed)
    except InputError as error:
        print(f"kinfolk: {error}", file=sys.stderr)
        raise typer.Exit(1) from None


@app.command()
def reproduce(
    name: Annotated[str | None, typer.Argument(help="Which table or figure; --list shows the names.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the CSV and the PNG.")] = Path("out"),
    seeds: Annotated[int, typer.Option(min=1, help="Number of random networks.")] = 5,
    quick: Annotated[bool, typer.Option("--quick", help="A smaller setting, in seconds.")] = False,
    data: Annotated[
        Path | None, typer.Option(help="Folder with data that do not come with kinfolk, else KINFOLK_DATA.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="Show what can be reproduced.")] = False,
) -> None:
    """A table or a figure of a paper, and which claims hold."""
    from rich.console import Console

    from kinfolk.checks import InputError
    from kinfolk.datasets import looking_in
    from kinfolk.experiments import EXPERIMENTS, find

    if list_:
        for known, experiment in EXPERIMENTS.items():
            print(f"{known:<14} {(experiment.__doc__ or '').strip()}")
        return
    try:
        with looking_in(data):
            outcome = find(name or "")(seeds=seeds, quick=quick)
        outcome.show(Console())
        print("Written: " + ", ".join(map(str, outcome.write(out))))
    except InputError as error:
        print(f"kinfolk: {error}", file=sys.stderr)
        raise typer.Exit(1) from None


@app.command()
def version() -> None:
    """Print the version."""
    import kinfolk

    print(kinfolk.__version__)
