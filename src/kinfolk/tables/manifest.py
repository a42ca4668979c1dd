"""Manifests: the files that kinfolk wrote into a folder, each with its checksum.

They tell whether a folder is whole, and which files may be removed: those listed, as they were written, and no others.
The format is that of ``sha256sum``, which can check a folder as well.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from kinfolk.checks import InputError, printable
from kinfolk.engine.files import DRAFT

MANIFEST = "manifest.sha256"  # of a finished run
HEADER = "# Files that kinfolk wrote, and a checksum of this list: "
LINE = re.compile(r"([0-9a-f]{64})  (.+)")


def checksum(content: bytes) -> str:
    """The SHA-256 of some bytes, in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


@dataclass(frozen=True)
class Manifest:
    """Names of files, relative to a folder, and their checksums.

    >>> import tempfile
    >>> place = Path(tempfile.mkdtemp())
    >>> _ = (place / "a.txt").write_bytes(b"a"), (place / "letter.txt").write_bytes(b"mine")
    >>> manifest = Manifest({"a.txt": checksum(b"a")})
    >>> manifest.fault(place, "a.txt"), manifest.fault(place, "b.txt")
    ('', 'is missing')
    >>> manifest.remove(place)
    >>> [file.name for file in place.iterdir()]
    ['letter.txt']
    """

    checksums: Mapping[str, str]

    @classmethod
    def read(cls, file: Path) -> Manifest | None:
        """The manifest in a file; None if it is missing, altered, or none that kinfolk wrote."""
        try:
            head, _, rest = file.read_bytes().partition(b"\n") if file.is_file() else (b"", b"", b"")
        except OSError:
            return None
        if head.decode(errors="replace") != HEADER + checksum(rest):
            return None
        return cls(listed_in(rest.decode()))

    @property
    def content(self) -> bytes:
        """What ``read`` reads."""
        lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(self.checksums.items())).encode()
        return f"{HEADER}{checksum(lines)}\n".encode() + lines

    def fault(self, folder: Path, name: str) -> str:
        """What is wrong with a file; empty if it is as it was written."""
        file = folder / name
        try:
            if not file.is_file():
                return "is missing"
            with file.open("rb") as opened:
                same = hashlib.file_digest(opened, "sha256").hexdigest() == self.checksums.get(name)
        except OSError as error:
            return f"cannot be read ({error.strerror})"
        return "" if same else "is not as it was written"

    def check(self, folder: Path, needed: Callable[[str], bool]) -> None:
        """Refuse a folder in which a file that is needed is missing or altered."""
        for name in filter(needed, self.checksums):
            fault = self.fault(folder, name)
            if fault:
                raise InputError(
                    f"Expected a complete run in {str(folder)!r}, the file {printable(name)!r} {fault}: get the folder "
                    "again, or fit again."
                )

    def remove(self, folder: Path, *, drafts: bool = False) -> None:
        """Remove the files that are as they were written, perhaps drafts of them, and folders that are empty then."""
        inside = [name for name in self.checksums if _lies_inside(folder, name)]
        for name in inside:
            if not self.fault(folder, name):
                (folder / name).unlink()
            if drafts:
                (folder / (name + DRAFT)).unlink(missing_ok=True)
        places = {place for name in inside for place in PurePosixPath(name).parents if place.name}
        for place in sorted(places, reverse=True):
            with contextlib.suppress(OSError):  # it holds something else, or is gone
                (folder / place).rmdir()


def listed_in(text: str) -> dict[str, str]:
    """Names and checksums in the lines of a text; of a name that occurs twice the later."""
    found = map(LINE.fullmatch, text.split("\n")[:-1])
    return {each[2]: each[1] for each in found if each is not None}


def _lies_inside(folder: Path, name: str) -> bool:
    """Whether a name leads to a place in the folder, symbolic links on the way included."""
    whole = os.path.realpath((folder / name).parent)
    return os.path.commonpath([whole, os.path.realpath(folder)]) == os.path.realpath(folder)
