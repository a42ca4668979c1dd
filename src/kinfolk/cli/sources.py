"""The files that a run was learnt from, as its run.toml names them: a table, then the rows of its updates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas

from kinfolk.checks import InputError
from kinfolk.tables import read_table
from kinfolk.tables.extending import joined_edges
from kinfolk.tables.settings import read_toml

TABLES, EDGES = ("table", "updates"), ("edges", "more_edges")  # in a run.toml: the first file, and later ones


def learnt_from(folder: Path, table: Path | None, edges: Path | None) -> dict[str, list[Path]]:
    """The files that a run was learnt from, in the order in which they came: as given, or as run.toml has them."""
    read = read_toml(folder / "run.toml")
    tables = [table] if table is not None else files_named(read, TABLES, folder)
    known = [edges] if edges is not None else files_named(read, EDGES, folder)
    if not tables:
        raise InputError(
            f"Expected the table that the run was learnt from, {str(folder / 'run.toml')!r} names none: add --table."
        )
    lost = [each for each in (*tables, *known) if not each.is_file()]
    if lost:
        raise InputError(
            f"Expected the table that the run was learnt from, found no file {str(lost[0])!r}: bring it back, or name "
            "where it is with --table and --table-edges."
        )
    return {"table": tables, "edges": known}


def files_named(read: dict[str, Any], names: tuple[str, str], folder: Path) -> list[Path]:
    """The files that a run.toml names: the first by itself, later ones as a list."""
    first, later = read.get(names[0]), read.get(names[1], [])
    if (
        not isinstance(first, str | None)
        or not isinstance(later, list)
        or not all(isinstance(each, str) for each in later)
    ):
        raise InputError(f"Expected names of files as {names[0]!r} and {names[1]!r} in run.toml, got others.")
    return [folder / each for each in ([] if first is None else [first, *later])]


def edges_of(files: list[Path]) -> pandas.DataFrame | None:
    """The edges of some files; None if there are none."""
    return joined_edges([read_table(each) for each in files]) if files else None


def repeat_of(tables: list[Path], edges: list[Path]) -> dict[str, Any]:
    """What run.toml holds to repeat a run."""
    found: dict[str, Any] = {}
    for (first, later), files in zip((TABLES, EDGES), (tables, edges), strict=True):
        places = [str(each.resolve()) for each in files]
        found |= {first: places[0]} if places else {}
        found |= {later: places[1:]} if places[1:] else {}
    return found
