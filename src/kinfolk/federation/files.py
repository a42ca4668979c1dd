"""Files that are whole or not there: replaced in one step, or a journal whose torn end is left out."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from kinfolk.checks import InputError
from kinfolk.engine.files import write_whole
from kinfolk.engine.locking import locked as lock_folder

RECORD = struct.Struct("<Q8s16s")  # length, its digest, and that of the record


def replace_file(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Write a file as a whole, and force it to the disk: what a site has promised must outlive it."""
    write_whole(path, content, forced=True, mode=mode)


def read_json(path: Path) -> dict[str, Any]:
    """What is in a file that this package wrote; nothing if there is none.

    >>> read_json(Path("nowhere.json"))
    {}
    """
    if not path.exists():
        return {}
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"Expected a file of kinfolk, {str(path)!r} is damaged: restore or remove it.") from error
    if not isinstance(found, dict):
        raise InputError(f"Expected a file of kinfolk, {str(path)!r} is damaged: restore or remove it.")
    return found


def append_rows(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Add rows to a table that begins with the names of its columns; it is made if need be."""
    fresh = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([*([columns] if fresh else []), *rows])


def made(folder: Path) -> Path:
    """A folder, made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def locked(folder: Path) -> IO[str]:
    """A lock on a folder, made if need be, that ends with the process, however that ends."""
    return lock_folder(
        made(folder),
        f"Expected a folder that nobody uses, another process works in {str(folder)!r}: stop it, or choose another "
        "folder.",
    )


class Journal:
    """Records in a file, one after the other; each is on the disk before ``append`` returns.

    >>> import contextlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with contextlib.closing(Journal(Path(folder) / "journal")) as journal:
    ...         journal.append(b"one")
    ...     with contextlib.closing(Journal(Path(folder) / "journal")) as journal:
    ...         list(journal.found)
    [b'one']
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        records = list(_records(path)) if path.exists() else []
        self.found = [record for record, _ in records]  # what was there already
        end = records[-1][1] if records else 0
        self._file = path.open("ab")
        self._file.truncate(end)  # a record that was being written when the process died
        self.size = end

    def append(self, record: bytes) -> None:
        """Add a record."""
        self._file.write(RECORD.pack(len(record), _length_digest(len(record)), _digest(record)) + record)
        self._file.flush()
        os.fsync(self._file.fileno())
        self.size += RECORD.size + len(record)

    def clear(self) -> None:
        """Drop all records."""
        self._file.truncate(0)
        os.fsync(self._file.fileno())
        self.size = 0

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


def _records(path: Path) -> Iterator[tuple[bytes, int]]:
    """The whole records of a journal, and where each ends.

    A crash leaves the last record unfinished: cut off, or with zeros at its end. Anything else is damage.
    """
    content, place = path.read_bytes(), 0
    while place + RECORD.size <= len(content):
        length, known, digest = RECORD.unpack_from(content, place)
        end = place + RECORD.size + length
        record = content[place + RECORD.size : end]
        named = known == _length_digest(length)
        if (named and end > len(content)) or not content[place:].strip(b"\0"):
            return
        if not named or _digest(record) != digest:
            if named and end == len(content) and content.endswith(b"\0"):
                return
            raise InputError(
                f"Expected a journal of kinfolk, {str(path)!r} is damaged: restore it, or remove it to begin anew."
            )
        yield record, end
        place = end


def _digest(record: bytes) -> bytes:
    return hashlib.blake2b(record, digest_size=16).digest()


def _length_digest(length: int) -> bytes:
    return hashlib.blake2b(length.to_bytes(8, "little"), digest_size=8).digest()
