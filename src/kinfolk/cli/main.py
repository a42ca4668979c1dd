"""The commands: for tables first, then for papers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from kinfolk.cli.federation import federation, site
from kinfolk.cli.options import Edges, Json, Table, Trust, one_sentence, with_settings

typer.core.HAS_RICH = False  # help is plain; older versions of typer escape its brackets all the same
app = typer.Typer(
    help="One tailored model for every local data set in a network.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(federation, name="federation")
app.add_typer(site, name="site")
Folder = Annotated[Path, typer.Argument(help="Folder of a finished run.")]
DataFolder = Annotated[Path | None, typer.Option("--data", help="Folder with data sets that are not bundled.")]


@app.callback()
def main() -> None:
    """One tailored model for every local data set in a network."""


@app.command()
@with_settings()
@one_sentence
def fit(
    table: Table,
    given: dict[str, Any],
    edges: Edges = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the run. [default: TABLE-run]")] = None,
    rivals: Annotated[bool, typer.Option("--rivals", help="Compare with more methods of others.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a run that is there.")] = False,
    json: Json = False,
    trust: Trust = None,
) -> None:
    """Fit a blend of tailored models to a table, and compare it with others."""
    from kinfolk.cli.jobs import fit_table

    fit_table(table, edges, given | ({"rivals": True} if rivals else {}), out, force, json, trust)


@app.command()
@one_sentence
def predict(
    folder: Folder,
    table: Annotated[Path, typer.Argument(help="A table with the node and the features.")],
    out: Annotated[Path | None, typer.Option(help="File for the predictions. [default: printed as CSV]")] = None,
    role: Annotated[str, typer.Option(help="Which models: final (the blend), or a member by name.")] = "final",
    interval: Annotated[float | None, typer.Option(help="Add columns low and high, such as for 0.9.")] = None,
    unknown: Annotated[str, typer.Option(help="Nodes never seen: refuse, pooled or neighbours.")] = "refuse",
    edges: Edges = None,
    trust: Trust = None,
) -> None:
    """Predict the rows of a table with the models of a run."""
    from kinfolk.cli.jobs import predict_table

    predict_table(folder, table, out, role, interval, unknown, edges, trust)


@app.command()
@one_sentence
def update(
    folder: Folder,
    new_rows: Annotated[Path, typer.Argument(help="A table with rows that are new, targets included.")],
    out: Annotated[Path | None, typer.Option(help="Folder for the updated run. [default: it replaces the run]")] = None,
    edges: Annotated[Path | None, typer.Option(help="More pairs of nodes, where the graph came from edges.")] = None,
    table: Annotated[Path | None, typer.Option(help="The table of the run. [default: as run.toml has it]")] = None,
    table_edges: Annotated[Path | None, typer.Option(help="Its edges. [default: as run.toml has it]")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a run that is at --out.")] = False,
    json: Json = False,
    trust: Trust = None,
) -> None:
    """Let new rows and new nodes join a run: its choices stay, its models are fitted again."""
    from kinfolk.cli.updates import update_run

    update_run(folder, new_rows, out, edges, table, table_edges, force, json, trust)


@app.command()
@one_sentence
def serve(
    folder: Folder,
    host: Annotated[str, typer.Option(help="Address to listen on; the default can be reached from here alone.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes one that is free.")] = 8000,
    limit: Annotated[float, typer.Option(min=0.001, help="Size of the largest request, in megabytes.")] = 10.0,
    trust: Trust = None,
) -> None:
    """Serve the predictions of a run over HTTP, until it is stopped with Ctrl-C."""
    from kinfolk.cli.jobs import serve_run

    serve_run(folder, host, port, limit, trust)


@app.command()
@one_sentence
def show(folder: Folder, json: Json = False) -> None:
    """Print the leaderboard and the judgement of a run."""
    from kinfolk.cli.jobs import show_run

    show_run(folder, json)


@app.command()
@one_sentence
def report(
    folder: Folder,
    out: Annotated[Path | None, typer.Option(help="File for the page. [default: report.html in the folder]")] = None,
    trust: Trust = None,
) -> None:
    """Write the page of a run again."""
    from kinfolk.cli.jobs import write_report

    write_report(folder, out, trust)


@app.command()
@with_settings("method", "lam", "members")
@one_sentence
def compare(
    table: Table,
    given: dict[str, Any],
    methods: Annotated[str, typer.Option(metavar="A,B", help="Methods, as for fit.")],
    edges: Edges = None,
    json: Json = False,
    trust: Trust = None,
) -> None:
    """Compare several methods on the same rows of a table."""
    from kinfolk.cli.jobs import compare_methods

    compare_methods(table, edges, given, methods, json, trust)


@app.command()
@one_sentence
def data(
    name: Annotated[str | None, typer.Argument(help="Which data set; without a name, all are listed.")] = None,
    out: Annotated[Path | None, typer.Option(help="File for the table. [default: NAME.csv]")] = None,
    folder: DataFolder = None,
) -> None:
    """Write a data set as a table, and print the command that fits it."""
    from kinfolk.cli.jobs import list_data, write_data

    if name is None:
        list_data()
    else:
        write_data(name, out, folder)


@app.command()
@one_sentence
def demo(
    name: Annotated[str, typer.Argument(help="A data set of `kinfolk data`.")] = "counties",
    out: Annotated[Path, typer.Option(help="Folder for the runs.")] = Path("out"),
    folder: DataFolder = None,
    seed: Annotated[int, typer.Option(help="Seed of all random draws.")] = 0,
) -> None:
    """Fit a model for each of 3,107 US counties, and write the page."""
    from kinfolk.cli.jobs import demonstrate

    demonstrate(name, out, folder, seed)


@app.command()
@one_sentence
def reproduce(
    name: Annotated[str | None, typer.Argument(help="Which table or figure; --list shows the names.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the CSV and the PNG.")] = Path("out"),
    seeds: Annotated[int, typer.Option(min=1, help="Number of random networks.")] = 5,
    quick: Annotated[bool, typer.Option("--quick", help="A smaller setting, in seconds.")] = False,
    folder: DataFolder = None,
    list_: Annotated[bool, typer.Option("--list", help="Show what can be reproduced.")] = False,
) -> None:
    """Reproduce a table or a figure of a paper, and check its claims; interrupted, the same command goes on."""
    from rich.console import Console

    from kinfolk.datasets import looking_in
    from kinfolk.experiments import EXPERIMENTS, find
    from kinfolk.experiments.unfinished import resuming
    from kinfolk.version import __version__

    if list_:
        for known, experiment in EXPERIMENTS.items():
            print(f"{known:<14} {(experiment.__doc__ or '').strip()}")
        return
    experiment, about = find(name or ""), [name, quick, str(folder), __version__]
    kept = out / f"{name}.unfinished"
    with looking_in(folder), resuming(kept, about) as finished:
        if finished:
            parts = f"{finished} finished part{'s' if finished > 1 else ''}"
            print(f"Going on after {parts}; to begin anew, remove {kept}.")
        outcome = experiment(seeds=seeds, quick=quick)
        outcome.show(Console())
        print("Written: " + ", ".join(map(str, outcome.write(out))))


@app.command()
def version() -> None:
    """Print the version."""
    from kinfolk.version import __version__

    print(__version__)
