"""Reading tables: CSV, Parquet and JSON lines, compressed or not. What cannot be read is refused in one sentence."""

from __future__ import annotations

import bz2
import csv
import gzip
import lzma
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas
from pyarrow import parquet

from kinfolk.checks import InputError
from kinfolk.network.fingerprint import fingerprint as fingerprint_of
from kinfolk.tables.numerals import decimal_mark, has_doubtful_numeral, is_coded

OPENERS: Mapping[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
DELIMITERS = ",;\t|"
LONGEST_LINE = 1_000_000  # characters of the first two
UNPACKED, TIMES = (
    1_000_000_000,
    100,
)  # bytes, and bytes for each in the file: more are no table, but made to fill memory
PIECE, OVERLAP = 4_000_000, 100  # bytes
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
        _check_size(path, packed)
        table = reader(path)
    except InputError:
        raise
    except UnicodeDecodeError as error:
        raise InputError(
            f"Expected a table in {path.name!r} in UTF-8, got bytes that are none: save it as CSV in UTF-8."
        ) from error
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
    delimiter = _delimiter(path)
    options: dict[str, Any] = {"sep": delimiter, "encoding": "utf-8-sig", "low_memory": False}
    table: pandas.DataFrame = pandas.read_csv(path, **options)
    numeric = [name for name in table.columns if table[name].dtype.kind in "iuf"]
    texts = {name: table[name].astype(str) for name in table.columns if table[name].dtype.kind == "O"}
    if numeric and _may_be_misread(path, delimiter):
        texts |= dict(pandas.read_csv(path, **options, usecols=numeric, dtype=str).items())
    texts = {str(name): column[table[name].notna()] for name, column in texts.items()}
    coded = {name: str for name, column in texts.items() if is_coded(column)}
    decimal = decimal_mark({name: texts[name] for name in texts if name not in coded}, delimiter, path.name)
    if coded or decimal != ".":
        table = pandas.read_csv(path, **options, dtype=coded, decimal=decimal)
    return table


def _may_be_misread(path: Path, delimiter: str) -> bool:
    """Whether some cell may be no number although it can be read as one."""
    with _opener(path)(path, "rb") as file:
        before = b"\n"
        while piece := file.read(PIECE):
            if has_doubtful_numeral(before + piece, delimiter):
                return True
            before = piece[-OVERLAP:]
    return False


def _opener(path: Path) -> Callable[..., Any]:
    return OPENERS.get(path.suffix.lower(), open)


def _delimiter(path: Path) -> str:
    """The delimiter of the first line, which names every column once."""
    with _opener(path)(path, "rt", encoding="utf-8-sig", newline="") as file:
        first, second = file.readline(LONGEST_LINE), file.readline(LONGEST_LINE)
    if "\0" in first:
        raise InputError(f"Expected a table in {path.name!r}, got binary data.")
    if LONGEST_LINE in (len(first), len(second)):
        raise InputError(
            f"Expected names of columns and rows in {path.name!r}, got a line of {LONGEST_LINE:,} characters and more: "
            "check that it is a table."
        )
    delimiter = max(DELIMITERS, key=first.count)
    names, row = (next(csv.reader([line], delimiter=delimiter), []) for line in (first, second))
    twice = [name for k, name in enumerate(names) if name and name in names[:k]]
    if twice:
        raise InputError(
            f"Expected columns with different names in {path.name!r}, got {twice[0]!r} twice: rename one of them."
        )
    if len(row) > len(names):
        raise InputError(
            f"Expected rows as long as the header of {path.name!r} with its {len(names)} names, got {len(row)} cells "
            "in the first: name all columns, or remove the last delimiter of each row."
        )
    return delimiter


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


def _check_size(path: Path, packed: bool) -> None:
    """Refuse a small file that holds far more than it should."""
    most = max(UNPACKED, TIMES * path.stat().st_size)
    if path.suffix.lower() in (".parquet", ".pq"):
        about = parquet.ParquetFile(path).metadata
        size = 8 * about.num_rows * about.num_columns
    else:
        size = _unpacked(path, most) if packed else 0
    if size > most:
        raise InputError(
            f"Expected a table in {path.name!r}, its {path.stat().st_size:,} bytes unpack to more than {most:,}: "
            "unpack it yourself if you trust it."
        )


def _unpacked(path: Path, most: int) -> int:
    """The size of what is packed; once it is more than ``most``, that is enough."""
    size = 0
    with OPENERS[path.suffix.lower()](path, "rb") as file:
        while size <= most and (piece := file.read(PIECE)):
            size += len(piece)
    return size


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
    if kind in "biuf":
        return column.to_numpy()
    return (column.map(repr) if column.dtype == object else column.astype(str)).to_numpy(dtype=object)
