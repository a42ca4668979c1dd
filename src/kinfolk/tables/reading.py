"""Reading tables: CSV, Parquet and JSON lines, compressed or not. What cannot be read is refused in one sentence."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas

from kinfolk.checks import InputError
from kinfolk.network.fingerprint import fingerprint as fingerprint_of

OPENERS: Mapping[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
DELIMITERS = ",;\t|"
LEADING_ZERO = r"^0\d+$"  # such as in a code of a county: no number
DECIMAL_COMMA = r"^-?\d+,\d+$"
ROWS_LOOKED_AT = 10_000
KINDS = "CSV, Parquet or JSON lines (.csv, .tsv, .parquet, .jsonl), compressed or not (.gz, .bz2, .xz)"


def read_table(path: str | Path) -> pandas.DataFrame:
    """Read a table from a file; its suffix gives the format.

    Parameters
    ----------
    path : str or Path
        CSV, Parquet or JSON lines, compressed or not.

    Returns
    -------
    pandas.DataFrame
        The table.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "shops.csv"
    >>> _ = file.write_text("shop;sales\\na;1.5\\nb;2.5\\n")
    >>> read_table(file)["sales"].sum()
    np.float64(4.0)
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"Expected a table, found no file {str(path)!r}: check the name.")
    if path.stat().st_size == 0:
        raise InputError(f"Expected a table, the file {str(path)!r} is empty.")
    suffixes = [suffix.lower() for suffix in path.suffixes]
    packed = bool(suffixes) and suffixes[-1] in OPENERS
    kind = suffixes[-2 if packed else -1] if len(suffixes) > packed else ""
    reader = READERS.get(kind)
    if reader is None:
        raise InputError(f"Expected a table as {KINDS}, got {path.name!r}: rename or convert it.")
    try:
        table = reader(path)
    except InputError:
        raise
    except Exception as error:  # whatever a reader raises, the file is not what its suffix promises
        raise InputError(
            f"Expected a table in {path.name!r}, it cannot be read as {kind[1:]} ({_brief(error)})."
        ) from error
    if table.empty:
        raise InputError(f"Expected rows in {path.name!r}, got {len(table.columns)} columns and no row.")
    return table


def read_grown(paths: Sequence[str | Path]) -> pandas.DataFrame:
    """A table that came in several files: the columns are those of the first.

    Parameters
    ----------
    paths : sequence of str or Path
        The table, then the rows that were added.

    Returns
    -------
    pandas.DataFrame
        All rows, one after the other.
    """
    first, *later = (read_table(path) for path in paths)
    parts = [each.reindex(columns=first.columns) for each in later]
    return pandas.concat([first, *parts], ignore_index=True) if parts else first


def _read_csv(path: Path) -> pandas.DataFrame:
    opener = OPENERS.get(path.suffix.lower(), open)
    with opener(path, "rt", encoding="utf-8-sig") as file:
        first = file.readline()
    if "\0" in first:
        raise InputError(f"Expected a table in {path.name!r}, got binary data.")
    delimiter = max(DELIMITERS, key=first.count)
    texts = pandas.read_csv(path, sep=delimiter, encoding="utf-8-sig", dtype=str, nrows=ROWS_LOOKED_AT)
    coded = {name: str for name in texts.columns if texts[name].str.match(LEADING_ZERO, na=False).any()}
    commas = delimiter != "," and any(texts[name].str.match(DECIMAL_COMMA, na=False).any() for name in texts.columns)
    decimal = "," if commas else "."
    return pandas.read_csv(path, sep=delimiter, encoding="utf-8-sig", low_memory=False, dtype=coded, decimal=decimal)


def _read_json_lines(path: Path) -> pandas.DataFrame:
    return pandas.read_json(path, lines=True, dtype=False)


READERS: Mapping[str, Callable[[Path], pandas.DataFrame]] = {
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".txt": _read_csv,
    ".parquet": pandas.read_parquet,
    ".pq": pandas.read_parquet,
    ".jsonl": _read_json_lines,
    ".ndjson": _read_json_lines,
}


def _brief(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:100]}" if lines else type(error).__name__


def fingerprint(table: pandas.DataFrame) -> str:
    """A short text that changes when the table does: its columns, its values and their order.

    >>> fingerprint(pandas.DataFrame({"a": [1, 2]})) == fingerprint(pandas.DataFrame({"a": [1, 3]}))
    False
    """
    columns = (np.asarray(pandas.util.hash_array(_hashable(table[name]))) for name in table.columns)
    return fingerprint_of(repr(list(map(str, table.columns))), *columns)[:16]


def _hashable(column: pandas.Series) -> Any:
    kind = column.dtype.kind if isinstance(column.dtype, np.dtype) else "O"
    return column.to_numpy() if kind in "biuf" else column.astype(str).to_numpy(dtype=object)
