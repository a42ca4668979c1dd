"""Workplaces: where a run is written. It is complete in its folder, or beside it and called unfinished.

Every file is listed with its checksum before it is written, so that work can be resumed, and nothing else is ever
removed. One process at a time has a workplace; its lock ends with it, also if it is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kinfolk.checks import InputError
from kinfolk.engine.files import write_whole
from kinfolk.engine.locking import LOCK, locked
from kinfolk.tables.manifest import MANIFEST, Manifest, checksum, listed_in

UNFINISHED = ".unfinished"
LEDGER = "written.sha256"  # what was written so far, and perhaps one file more
MARKS = "resume.json"  # what must not have changed for a run to be resumed
JOURNAL = "journal"  # the folder of finished work
REPLACED = "replaced"  # the folder of a run that a new one replaces
LONGEST = 255 - len(UNFINISHED)  # name of a folder, in bytes


def unfinished(folder: Path) -> Path:
    """Where a run is kept until it is complete: beside its folder."""
    return folder.with_name(folder.name + UNFINISHED)


def check_free(folder: Path, force: bool) -> Path:
    """The folder in full, if a run can be written there; what holds something else than a run is never touched."""
    given, folder = str(folder), Path(os.path.realpath(folder))
    here = Path.cwd()
    if folder == here or folder in here.parents or not folder.name:
        raise InputError(f"Expected a new folder for the run, {given!r} is the one you are in or above: name another.")
    if len(os.fsencode(folder.name)) > LONGEST:
        raise InputError(f"Expected a name of at most {LONGEST} bytes for the folder of the run, got {given[:50]!r}...")
    if os.path.ismount(folder):
        raise InputError(f"Expected a folder for the run that can be renamed, {given!r} is a disk: name one inside it.")
    try:
        free = not folder.exists()
    except OSError as error:
        raise InputError(f"Expected a folder for the run, cannot use {given[:50]!r}: {error.strerror}.") from error
    if free:
        return folder
    if not _is_run(folder) and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(
            f"Expected a folder for the run, {given!r} holds something else, or a run that is damaged or of another "
            "version of kinfolk: choose another name, or move it away."
        )
    if _is_run(folder) and not force:
        raise InputError(
            f"Expected a new folder, {given!r} already holds a run: choose another, or use force (--force)."
        )
    return folder


def _is_run(folder: Path) -> bool:
    return Manifest.read(folder / MANIFEST) is not None


class Workplace:
    """The folder of a run in the making, which no other process writes to.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp()) / "run"
    >>> with Workplace.opened(folder) as work:
    ...     work.write("a.txt", b"a")
    ...     work.complete(["a.txt"])
    >>> sorted(file.name for file in folder.iterdir())
    ['a.txt', 'manifest.sha256']
    """

    def __init__(self, folder: Path, handle: Any) -> None:
        self.folder, self.place = folder, unfinished(folder)
        self._handle = handle
        text = _text(self.place / LEDGER)
        self._listed = listed_in(text)
        if text and not text.endswith("\n"):
            self._append("\n")
        if LOCK not in self._listed:
            self._list(LOCK, checksum(b""))

    @classmethod
    @contextlib.contextmanager
    def opened(cls, folder: Path) -> Iterator[Workplace]:
        """A workplace that is locked; InputError if another process has it, or if it holds something else."""
        place = unfinished(folder)
        _check_own(place)
        try:
            place.mkdir(parents=True, exist_ok=True)
            handle = locked(
                place,
                f"Expected a folder that nobody writes to, another run is writing to {str(folder)!r}: wait until it "
                "has ended, or choose another folder (--out).",
            )
        except OSError as error:
            raise InputError(f"Expected a folder for the run, cannot make {str(place)!r}: {error.strerror}.") from error
        with handle, _full_disk(place):
            yield cls(folder, handle)

    # ------------------------------------------------------------------ files

    def write(self, name: str, content: bytes) -> None:
        """List a file, then write it, whole."""
        self._list(name, checksum(content))
        write_whole(self.place / name, content)

    def read(self, name: str) -> bytes | None:
        """The content of a file that is as it was written; None for any other."""
        if name not in self._listed or Manifest(self._listed).fault(self.place, name):
            return None
        return (self.place / name).read_bytes()

    def _list(self, name: str, digest: str) -> None:
        self._append(f"{digest}  {name}\n")
        self._listed[name] = digest

    def _append(self, text: str) -> None:
        with (self.place / LEDGER).open("a", encoding="utf-8") as file:
            file.write(text)

    # ------------------------------------------------------------------ resuming

    def resume(self, marks: Mapping[str, Any], force: bool) -> bool:
        """Whether there is work with these marks to go on with; without any, or with force, begin anew."""
        before = self.read(MARKS)
        if set(self._listed) - {LOCK, MARKS} and not force:
            if before is not None and json.loads(before) == marks:
                return True
            raise InputError(
                f"Expected to resume the unfinished run in {str(self.place)!r}, but it has other settings, edges or "
                "another table: repeat its command, or start afresh with --force."
            )
        self.clear()
        self.write(MARKS, json.dumps(marks).encode())
        return False

    @property
    def is_complete(self) -> bool:
        """Whether all was written, and only the name is missing."""
        found = Manifest.read(self.place / MANIFEST)
        return found is not None and not any(found.fault(self.place, name) for name in found.checksums)

    def clear(self) -> None:
        """Remove all that was written, but the lock."""
        if Manifest.read(self.place / MANIFEST) is not None:
            (self.place / MANIFEST).unlink()
        written = {name: digest for name, digest in self._listed.items() if name != LOCK}
        Manifest(written).remove(self.place, drafts=True)
        self._listed = {LOCK: checksum(b"")}
        write_whole(self.place / LEDGER, f"{checksum(b'')}  {LOCK}\n".encode())

    def abandon(self) -> None:
        """Leave nothing behind of what was written."""
        self.clear()
        _tidy(self.place)
        with contextlib.suppress(OSError):  # files of the user's own stay
            self.place.rmdir()

    # ------------------------------------------------------------------ the end

    def complete(self, names: list[str]) -> None:
        """List the files of the run in its manifest, and let the folder take its name."""
        write_whole(self.place / MANIFEST, Manifest({name: self._listed[name] for name in names}).content)
        self.take_name()

    def take_name(self) -> None:
        """Move the complete run to its folder, and remove what is left of the work and of a run that it replaces."""
        if self.folder.exists():
            self.folder.replace(self.place / REPLACED)
        self.place.replace(self.folder)
        kept = Manifest.read(self.folder / MANIFEST)
        assert kept is not None
        work = {name: digest for name, digest in self._listed.items() if name not in kept.checksums}
        Manifest(work).remove(self.folder, drafts=True)
        _tidy(self.folder)
        _put_back(self.folder / REPLACED, self.folder)


def _check_own(place: Path) -> None:
    """Refuse a workplace that holds something else."""
    there = {file.name for file in place.iterdir()} if place.is_dir() else set()
    if (place.exists() or place.is_symlink()) and (not place.is_dir() or (there - {LOCK} and LEDGER not in there)):
        raise InputError(
            f"Expected {str(place)!r} to be free for work in progress, it holds something else: move it away, or "
            "choose another folder for the run (--out)."
        )


def _text(file: Path) -> str:
    return file.read_bytes().decode(errors="replace") if file.is_file() else ""


def _tidy(place: Path) -> None:
    for name in (LEDGER, LOCK):
        (place / name).unlink(missing_ok=True)


def _put_back(old: Path, folder: Path) -> None:
    """Remove a run that was replaced. Files beside it, or altered, are the user's: they stay in the folder."""
    if not old.is_dir():
        return
    manifest = Manifest.read(old / MANIFEST)
    if manifest is not None:
        manifest.remove(old)
        (old / MANIFEST).unlink()
    for file in old.iterdir():
        if not (folder / file.name).exists():
            file.replace(folder / file.name)
    with contextlib.suppress(OSError):  # names that the new run has, too
        old.rmdir()


@contextlib.contextmanager
def _full_disk(place: Path) -> Iterator[None]:
    """A file that cannot be written becomes one sentence; what was finished stays."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"Expected to write the run to {str(place)!r}, the system refuses it ({error.strerror or error}): mend "
            "that, and the same command goes on."
        ) from error
