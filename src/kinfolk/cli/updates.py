"""``kinfolk update``: where the rows of a run are, and where the updated run goes."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import typer
from rich.console import Console

from kinfolk.checks import InputError, comma_list, printable
from kinfolk.cli.printing import print_changes, print_run, shown
from kinfolk.cli.sources import edges_of, learnt_from, repeat_of
from kinfolk.tables import TableRun, load, read_table
from kinfolk.tables.loading import load_results
from kinfolk.tables.storage import PAGE, results_for_programs, save_in
from kinfolk.tables.workplace import REPLACED, Workplace, check_free, unfinished


def update_run(
    folder: Path, new_rows: Path, out: Path | None, edges: Path | None, table: Path | None, table_edges: Path | None,
    force: bool, as_json: bool, trusted: str | None,
) -> None:  # fmt: skip
    """Let new rows join a run; the folder is replaced when all is there, and not before."""
    place = out or folder
    if not folder.exists() and not unfinished(place).exists():
        raise InputError(f"Expected the folder of a finished run, {str(folder)!r} is no such folder.")
    marks = {"update": str(folder.resolve()), "rows": _digest(new_rows), "edges": _digest(edges)}
    with Workplace.opened(check_free(place, force or out is None)) as work:
        if work.resume(marks, force) and work.is_complete:
            work.take_name()
            found = load_results(work.folder)
        else:
            found = _update(work, folder, new_rows, edges, table, table_edges, trusted)
    if as_json:
        print(json.dumps({**results_for_programs(found), "folder": str(place)}))
        return
    console = Console()
    print_changes(found, console)
    print_run(found, console)
    console.print()
    if (place / REPLACED).is_dir():
        console.print("Kept, as kinfolk did not write it:", shown(place / REPLACED))
    console.print("The page:", shown(place / PAGE, style="bold"))


def _update(
    work: Workplace, folder: Path, new_rows: Path, edges: Path | None, table: Path | None, table_edges: Path | None,
    trusted: str | None,
) -> TableRun:  # fmt: skip
    """Update at a workplace; the run is saved when it returns. What ends early leaves nothing behind."""
    names, more = comma_list(trusted or ""), [] if edges is None else [edges]
    try:
        run, files = load(folder, trusted=names), learnt_from(folder, table, table_edges)
        found = run.update(
            read_table(new_rows), edges=edges_of(more), table=[read_table(each) for each in files["table"]],
            table_edges=edges_of(files["edges"]), trusted=[each for each in names if each.endswith(".py")],
        )  # fmt: skip
        save_in(work, found, repeat_of([*files["table"], new_rows], [*files["edges"], *more]))
    except KeyboardInterrupt:
        work.abandon()
        print(f"\nStopped. The run in {printable(str(folder))} is as it was.", file=sys.stderr)
        raise typer.Exit(130) from None
    except InputError:
        work.abandon()
        raise
    return found


def _digest(file: Path | None) -> str:
    """What tells a file from another; empty where there is none."""
    return hashlib.sha256(file.read_bytes()).hexdigest() if file is not None and file.is_file() else ""
