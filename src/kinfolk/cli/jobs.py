"""What the commands for tables do."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shlex
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import pandas
import typer
from pyarrow import parquet
from rich.console import Console
from rich.table import Table

from kinfolk.checks import InputError, comma_list, installed, printable
from kinfolk.cli.printing import print_comparison, print_exact, print_run, shown
from kinfolk.cli.sources import EDGES, TABLES, edges_of, files_named, repeat_of
from kinfolk.datasets import TABLES as DATA
from kinfolk.datasets import named_table
from kinfolk.engine.files import write_output
from kinfolk.tables import Settings, TableRun, load, read_table
from kinfolk.tables.journal import Journal
from kinfolk.tables.learning import compare, learn_prepared
from kinfolk.tables.loading import load_results
from kinfolk.tables.members.saving import check_storable
from kinfolk.tables.own_code import code_file, code_files
from kinfolk.tables.prepared import Prepared, prepare
from kinfolk.tables.reading import read_grown
from kinfolk.tables.settings import PLUS, read_toml
from kinfolk.tables.storage import PAGE, renew_page, results_for_programs, save_in
from kinfolk.tables.workplace import REPLACED, Workplace, check_free
from kinfolk.version import __version__

PARQUET = (".parquet", ".pq")
PACKINGS: dict[str, Any] = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz"}
FORMULA = re.compile(r"[=@+\t\r]|-(?![\d.])")


def fit_table(
    table: Path,
    edges: Path | None,
    given: dict[str, Any],
    out: Path | None,
    force: bool,
    as_json: bool,
    trusted: str | None = None,
) -> None:
    """Learn from a table, or repeat a run; write its folder, and print what came out."""
    tables, pairs, given = repeated(table, edges, given, trusted)
    folder = out or Path(f"{tables[0].name.split('.')[0]}-run")
    whole = check_free(folder, force)
    folder = whole if ".." in folder.parts else folder
    prepared = _prepared(tables, pairs, given)
    check_storable(prepared)
    with Workplace.opened(whole) as work:
        run = _fit(prepared, repeat_of(tables, pairs), work, force, Console(stderr=as_json))
    if as_json:
        print(json.dumps({**results_for_programs(run), "folder": str(folder)}))
        return
    console = Console()
    print_run(run, console)
    console.print()
    if (folder / REPLACED).is_dir():
        console.print("Kept, as kinfolk did not write it:", shown(folder / REPLACED))
    console.print("The page:", shown(folder / PAGE, style="bold"))


def repeated(
    table: Path, edges: Path | None, given: dict[str, Any], trusted: str | None
) -> tuple[list[Path], list[Path], dict[str, Any]]:
    """The files of rows and of edges, and settings: of a TOML file its content, unless an option overrides it."""
    if table.suffix != ".toml":
        for option in ("node", "target"):
            if option not in given:
                raise typer.BadParameter("a table needs it; only a run.toml does without.", param_hint=f"--{option}")
        return [table], [] if edges is None else [edges], given
    read = read_toml(table)
    if not isinstance(read.get("table"), str) or not isinstance(read.get("settings"), dict):
        raise InputError(f"Expected 'table' and [settings] in {table.name!r}, got {', '.join(read) or 'nothing'}.")
    if not isinstance(read.get("edges", ""), str):
        raise InputError(f"Expected the name of a file as 'edges' in {table.name!r}, got {read['edges']!r}.")
    _check_code({**read["settings"], **given}, given, trusted, table.name)
    tables, pairs = (files_named(read, names, table.parent) for names in (TABLES, EDGES))
    return tables, pairs if edges is None else [edges], {**read["settings"], **given}


def _check_code(settings: dict[str, Any], given: dict[str, Any], trusted: str | None, where: str) -> None:
    """Refuse to run a file of code that stands in a TOML file, unless the user has named that very file."""
    named = {file for _, file in code_files(given)}
    named |= {Path(each).resolve() for each in comma_list(trusted or "") if each.endswith(".py")}
    for what, source in code_files(settings):
        if source not in named:
            raise InputError(
                f"Expected a {what} that kinfolk knows, that of {where!r} comes from {str(source)!r}: read that file, "
                f"and if you trust it, add --trust {shlex.quote(str(source))}."
            )


def _prepared(tables: list[Path], edges: list[Path], given: dict[str, Any]) -> Prepared:
    settings = Settings.of(given)
    settings = dataclasses.replace(
        settings, model=_absolute(settings.model), method=_absolute(settings.method),
        members=tuple(map(_absolute, settings.members)),
    )  # fmt: skip
    settings.check()
    return prepare(read_grown(tables), settings, edges=edges_of(edges))


def _absolute(place: str) -> str:
    """``file.py:Name`` with the whole path, so that a run can be repeated from anywhere."""
    plus, name = PLUS * place.startswith(PLUS), place.removeprefix(PLUS)
    source = code_file(name)
    return place if source is None else f"{plus}{source}:{name.rpartition(':')[2]}"


def _fit(prepared: Prepared, repeat: dict[str, Any], work: Workplace, force: bool, console: Console) -> TableRun:
    """Learn at a workplace, or go on there; the run is saved when it returns."""
    marks = {**repeat, "settings": prepared.settings.to_toml(), "made": _marks(prepared)}
    if work.resume(marks, force):
        console.print(shown(f"Resuming from {work.place}."))
        if work.is_complete:
            work.take_name()
            return load_results(work.folder)
    try:
        run = learn_prepared(prepared, journal=Journal(work))
        save_in(work, run, repeat)
    except KeyboardInterrupt:
        where = printable(str(work.place))
        print(f"\nStopped. Finished work is kept in {where}: the same command resumes from there.", file=sys.stderr)
        raise typer.Exit(130) from None
    except InputError:
        work.abandon()
        raise
    return run


def _marks(prepared: Prepared) -> dict[str, str]:
    """What must not have changed for an unfinished run to resume."""
    sources = code_files(prepared.settings.to_toml())
    codes = [hashlib.sha256(source.read_bytes()).hexdigest() for _, source in sources]
    return {
        "kinfolk": __version__,
        "fingerprint": prepared.fingerprint,
        "edges": prepared.edges_fingerprint,
        "sources": " ".join(codes),
    }


def predict_table(
    folder: Path, table: Path, out: Path | None, role: str, interval: float | None, unknown: str, edges: Path | None,
    trusted: str | None,
) -> None:  # fmt: skip
    """Print predictions as CSV, or write them to a file."""
    run, rows = load(folder, trusted=comma_list(trusted or "")), read_table(table)
    options: dict[str, Any] = {"unknown": unknown, "role": role}
    options["edges"] = None if edges is None else read_table(edges)
    predicted = run.predict(rows, interval=interval, **options)
    named = {run.columns.target: f"predicted {run.columns.target}"}
    written = rows[[run.columns.node]].join(pandas.DataFrame(predicted).rename(columns=named))
    if run.target.classes:
        chances = run.predict_proba(rows, **options)
        written = written.join(chances.rename(columns=lambda label: f"probability of {label}"))
    if out is not None and out.exists() and any(out.samefile(each) for each in (table, edges) if each is not None):
        raise InputError(f"Expected a new file for the predictions, {str(out)!r} holds the rows: choose another name.")
    write_table(written, out)
    _warn_of_formulas(written)


def serve_run(folder: Path, host: str, port: int, limit: float, trusted: str | None) -> None:
    """Answer requests over HTTP until the process is told to stop."""
    for package in ("fastapi", "uvicorn"):
        installed(package, "kinfolk serve", "serve")
    from kinfolk.serving.ports import is_loopback, open_port
    from kinfolk.serving.server import serve
    from kinfolk.serving.service import MEGABYTE

    run = load(folder, trusted=comma_list(trusted or ""))
    listening = open_port(host, port)
    where = f"[{host}]" if ":" in host else host
    print_exact(f"Serving {folder} at http://{where}:{listening.getsockname()[1]} (Ctrl-C stops it).")
    if not is_loopback(host):
        print("kinfolk: whoever can reach this address can ask: there is no password and no TLS.", file=sys.stderr)
    serve(run, listening, host, round(limit * MEGABYTE))
    print_exact("Stopped.")


def write_table(table: pandas.DataFrame, out: Path | None) -> None:
    """A table as CSV on standard output, or as a file whose suffix gives the format."""
    if out is None:
        print_exact(table.to_csv(index=False).removesuffix("\n"))
        return
    write_output(out, _table_bytes(table, out), lambda file: _columns_in(file) == list(map(str, table.columns)))
    print_exact(str(out))


def _table_bytes(table: pandas.DataFrame, out: Path) -> bytes:
    if out.suffix in PARQUET:
        return table.to_parquet(index=False)
    packing: Any = PACKINGS.get(out.suffix)
    content = BytesIO()
    table.to_csv(content, index=False, compression=packing)
    return content.getvalue()


def _columns_in(file: Path) -> list[str]:
    """The columns of a table that is there; none if it is no table."""
    try:
        if file.suffix in PARQUET:
            return list(parquet.read_schema(file).names)
        return list(map(str, pandas.read_csv(file, nrows=0, compression=PACKINGS.get(file.suffix))))
    except (OSError, ValueError):
        return []


def _warn_of_formulas(table: pandas.DataFrame) -> None:
    """A spreadsheet takes some texts for formulas, and they may come from strangers."""
    texts = [column for _, column in table.items() if column.dtype.kind == "O"]
    if any(column.astype(str).str.match(FORMULA).any() for column in texts) or any(map(FORMULA.match, table.columns)):
        print(
            "kinfolk: some names begin with =, +, - or @, which a spreadsheet may take for formulas: import the "
            "predictions as text.",
            file=sys.stderr,
        )


def write_report(folder: Path, out: Path | None, trusted: str | None) -> None:
    """Write the page of a run again."""
    run = load(folder, trusted=comma_list(trusted or ""))
    print_exact(str(renew_page(run, folder) if out is None else run.report(out)))


def show_run(folder: Path, as_json: bool) -> None:
    """Print what came out of a run; its models are not needed."""
    run = load_results(folder)
    if as_json:
        print(json.dumps({**results_for_programs(run), "folder": str(folder)}))
    else:
        print_run(run, Console())


def compare_methods(
    table: Path, edges: Path | None, given: dict[str, Any], methods: str, as_json: bool, trusted: str | None
) -> None:
    """Print several methods on the same rows."""
    tables, pairs, given = repeated(table, edges, {**given, "method": "auto"}, trusted)
    found = compare(read_grown(tables), comma_list(methods), Settings.of(given), edges=edges_of(pairs))
    if as_json:
        print(found.reset_index().to_json(orient="records"))
    else:
        print_comparison(found, Console())


def list_data() -> None:
    """Print the data sets that are known."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, loader in DATA.items():
        table.add_row(name, (loader.__doc__ or "").strip())
    Console().print(table)
    print("\nkinfolk data NAME writes the table, and prints the command that fits it.")


def write_data(name: str, out: Path | None, folder: Path | None) -> tuple[Path, Path | None, dict[str, str]]:
    """Write a data set as a table, and its edges where it has some; print and return the options that fit it."""
    known = named_table(name, folder)
    path, beside = out or Path(f"{name}.csv"), None
    write_table(known.frame, path)
    words = ["kinfolk", "fit", str(path)]
    if known.edges is not None:
        beside = path.with_name(f"{path.name.split('.')[0]}-edges.csv")
        write_table(known.edges, beside)
        words += ["--edges", str(beside)]
    for option, value in known.options.items():
        words += [f"--{option}", value]
    print_exact(shlex.join(words))
    return path, beside, known.options


def demonstrate(name: str, out: Path, folder: Path | None, seed: int) -> None:
    """What a user would type: write a data set as a table, and fit it; a run that is there is replaced."""
    check_free(out / name, force=True)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"Expected a folder for the run, cannot make {str(out)!r}: {error.strerror}.") from error
    table, edges, options = write_data(name, out / f"{name}.csv", folder)
    print()
    fit_table(table, edges, {**options, "seed": seed}, out / name, True, False)
