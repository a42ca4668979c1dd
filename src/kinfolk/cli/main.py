"""The commands: for tables first, then for papers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kinfolk.cli import options as o
from kinfolk.cli.options import one_sentence

app = typer.Typer(
    help="One tailored model for every local data set in a network.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
Folder = Annotated[Path, typer.Argument(help="Folder of a finished run.")]


@app.callback()
def main() -> None:
    """One tailored model for every local data set in a network."""


@app.command()
def fit(
    table: o.Table,
    node: o.Node = None,
    target: o.Target = None,
    features: o.Features = None,
    categorical: o.Categorical = None,
    coords: o.Coords = None,
    edges: o.Edges = None,
    graph: o.GraphKind = None,
    neighbours: o.Neighbours = None,
    model: o.Model = None,
    method: o.Method = None,
    lam: o.Lam = None,
    test: o.Test = None,
    time: o.Time = None,
    task: o.Task = None,
    folds: o.Folds = None,
    seed: o.Seed = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the run. [default: TABLE-run]")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a run that is there.")] = False,
    json: o.Json = False,
    trust: o.Trust = None,
) -> None:
    """Fit tailored models to a table, and compare with alone and pooled."""
    given = o.chosen(
        node=node, target=target, features=features, categorical=categorical, coords=coords, graph=graph,
        neighbours=neighbours, model=model, method=method, lam=lam, test=test, time=time, task=task, folds=folds,
        seed=seed,
    )  # fmt: skip
    with one_sentence():
        from kinfolk.checks import comma_list
        from kinfolk.cli.jobs import fit_table

        fit_table(table, edges, given, out, force, json, comma_list(trust or ""))


@app.command()
def predict(
    folder: Folder,
    table: Annotated[Path, typer.Argument(help="A table with the node and the features.")],
    out: Annotated[Path | None, typer.Option(help="File for the predictions. [default: printed as CSV]")] = None,
    role: Annotated[str, typer.Option(help="Which models: final, tailored, alone or pooled.")] = "final",
    unknown: Annotated[str, typer.Option(help="Nodes never seen: refuse them, or use the pooled model.")] = "refuse",
    edges: o.Edges = None,
    trust: o.Trust = None,
) -> None:
    """Predict the rows of a table with the models of a run."""
    with one_sentence():
        from kinfolk.checks import comma_list
        from kinfolk.cli.jobs import predict_table

        predict_table(folder, table, out, role, unknown, edges, comma_list(trust or ""))


@app.command()
def show(folder: Folder, json: o.Json = False) -> None:
    """Print the leaderboard and the judgement of a run."""
    with one_sentence():
        from kinfolk.cli.jobs import show_run

        show_run(folder, json)


@app.command()
def report(
    folder: Folder,
    out: Annotated[Path | None, typer.Option(help="File for the page. [default: report.html in the folder]")] = None,
    trust: o.Trust = None,
) -> None:
    """Write the page of a run again."""
    with one_sentence():
        from kinfolk.checks import comma_list
        from kinfolk.cli.jobs import write_report

        write_report(folder, out, comma_list(trust or ""))


@app.command()
def compare(
    table: o.Table,
    methods: Annotated[str, typer.Option(metavar="A,B", help="Methods, as for fit.")],
    node: o.Node = None,
    target: o.Target = None,
    features: o.Features = None,
    categorical: o.Categorical = None,
    coords: o.Coords = None,
    edges: o.Edges = None,
    graph: o.GraphKind = None,
    neighbours: o.Neighbours = None,
    model: o.Model = None,
    test: o.Test = None,
    time: o.Time = None,
    task: o.Task = None,
    folds: o.Folds = None,
    seed: o.Seed = None,
    json: o.Json = False,
    trust: o.Trust = None,
) -> None:
    """Compare several methods on the same rows of a table."""
    given = o.chosen(
        node=node, target=target, features=features, categorical=categorical, coords=coords, graph=graph,
        neighbours=neighbours, model=model, lam=None, test=test, time=time, task=task, folds=folds, seed=seed,
    )  # fmt: skip
    with one_sentence():
        from kinfolk.checks import comma_list
        from kinfolk.cli.jobs import compare_methods

        compare_methods(table, edges, given, comma_list(methods), json, comma_list(trust or ""))


@app.command()
def data(
    name: Annotated[str | None, typer.Argument(help="Which data set; without a name, all are listed.")] = None,
    out: Annotated[Path | None, typer.Option(help="File for the table. [default: NAME.csv]")] = None,
    folder: Annotated[Path | None, typer.Option("--data", help="Folder with data sets that are not bundled.")] = None,
) -> None:
    """Write a data set as a table, and print the command that fits it."""
    with one_sentence():
        from kinfolk.cli.jobs import list_data, write_data

        if name is None:
            list_data()
        else:
            write_data(name, out, folder)


@app.command()
def demo(
    name: Annotated[str, typer.Argument(help="A data set of `kinfolk data`.")] = "counties",
    out: Annotated[Path, typer.Option(help="Folder for the runs.")] = Path("out"),
    folder: Annotated[Path | None, typer.Option("--data", help="Folder with data sets that are not bundled.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of all random draws.")] = 0,
) -> None:
    """Fit a model for each of 3,107 US counties, and write the page."""
    with one_sentence():
        from kinfolk.cli.jobs import demonstrate

        demonstrate(name, out, folder, seed)


@app.command()
def reproduce(
    name: Annotated[str | None, typer.Argument(help="Which table or figure; --list shows the names.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the CSV and the PNG.")] = Path("out"),
    seeds: Annotated[int, typer.Option(min=1, help="Number of random networks.")] = 5,
    quick: Annotated[bool, typer.Option("--quick", help="A smaller setting, in seconds.")] = False,
    folder: Annotated[Path | None, typer.Option("--data", help="Folder with data that are not bundled.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="Show what can be reproduced.")] = False,
) -> None:
    """Reproduce a table or a figure of a paper, and check its claims."""
    from rich.console import Console

    from kinfolk.datasets import looking_in
    from kinfolk.experiments import EXPERIMENTS, find

    if list_:
        for known, experiment in EXPERIMENTS.items():
            print(f"{known:<14} {(experiment.__doc__ or '').strip()}")
        return
    with one_sentence():
        with looking_in(folder):
            outcome = find(name or "")(seeds=seeds, quick=quick)
        outcome.show(Console())
        print("Written: " + ", ".join(map(str, outcome.write(out))))


@app.command()
def version() -> None:
    """Print the version."""
    from kinfolk.version import __version__

    print(__version__)
