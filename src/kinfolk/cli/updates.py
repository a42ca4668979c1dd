"""``kinfolk update``: where the rows of a run are, and where the updated run goes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import typer
from rich.console import Console

from kinfolk.checks import InputError, comma_list, printable
from kinfolk.cli.printing import print_changes, print_run, shown
from kinfolk.cli.sources import edges_of, learnt_from, repeat_of
from kinfolk.tables import load, read_table
from kinfolk.tables.storage import PAGE, results_for_programs, save_in
from kinfolk.tables.workplace import Workplace, check_free


def update_run(
    folder: Path, new_rows: Path, out: Path | None, edges: Path | None, table: Path | None, table_edges: Path | None,
    force: bool, as_json: bool, trusted: str | None,
) -> None:  # fmt: skip
    """Let new rows join a run; the folder is replaced when all is there, and not before."""
    place = out or folder
    same = place.resolve() == folder.resolve()
    whole = check_free(place, force or same)
    run, files = load(folder, trusted=comma_list(trusted or "")), learnt_from(folder, table, table_edges)
    repeat = repeat_of([*files["table"], new_rows], [*files["edges"], *([] if edges is None else [edges])])
    code = [each for each in comma_list(trusted or "") if each.endswith(".py")]
    with Workplace.opened(whole) as work:
        work.resume({"updated": str(folder.resolve()), **repeat}, force)
        try:
            found = run.update(
                read_table(new_rows), edges=edges_of([] if edges is None else [edges]),
                table=[read_table(each) for each in files["table"]], table_edges=edges_of(files["edges"]),
                trusted=code,
            )  # fmt: skip
            save_in(work, found, repeat)
        except KeyboardInterrupt:
            work.abandon()
            print(f"\nStopped. The run in {printable(str(folder))} is as it was.", file=sys.stderr)
            raise typer.Exit(130) from None
        except InputError:
            work.abandon()
            raise
    if as_json:
        print(json.dumps({**results_for_programs(found), "folder": str(place)}))
        return
    console = Console()
    print_changes(found, console)
    print_run(found, console)
    console.print()
    console.print("The page:", shown(place / PAGE, style="bold"))
