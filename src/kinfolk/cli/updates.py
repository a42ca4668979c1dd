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
from kinfolk.tables.storage import check_free, results_for_programs, save, unfinished


def update_run(
    folder: Path, new_rows: Path, out: Path | None, edges: Path | None, table: Path | None, table_edges: Path | None,
    force: bool, as_json: bool, trusted: str | None,
) -> None:  # fmt: skip
    """Let new rows join a run; the folder is replaced when all is there, and not before."""
    place = out or folder
    if out is not None and out.resolve() != folder.resolve():
        check_free(out, force)
    _check_unfinished(place)
    run, files = load(folder, trusted=comma_list(trusted or "")), learnt_from(folder, table, table_edges)
    code = [each for each in comma_list(trusted or "") if each.endswith(".py")]
    try:
        found = run.update(
            read_table(new_rows), edges=edges_of([] if edges is None else [edges]),
            table=[read_table(each) for each in files["table"]], table_edges=edges_of(files["edges"]), trusted=code,
        )  # fmt: skip
        repeat = repeat_of([*files["table"], new_rows], [*files["edges"], *([] if edges is None else [edges])])
        save(found, place, force=True, repeat=repeat)
    except KeyboardInterrupt:
        print(f"\nStopped. The run in {printable(str(folder))} is as it was.", file=sys.stderr)
        raise typer.Exit(130) from None
    if as_json:
        print(json.dumps({**results_for_programs(found), "folder": str(place)}))
        return
    console = Console()
    print_changes(found, console)
    print_run(found, console)
    console.print()
    console.print("The page:", shown(place / "report.html", style="bold"))


def _check_unfinished(place: Path) -> None:
    """Refuse where an unfinished fit waits to be resumed."""
    if (unfinished(place) / "journal").is_dir():
        raise InputError(
            f"Expected no unfinished run beside {str(place)!r}, {str(unfinished(place))!r} waits to be resumed: finish "
            "it, remove it, or use --out."
        )
