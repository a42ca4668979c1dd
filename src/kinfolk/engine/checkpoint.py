"""Checkpoints: a run between two rounds in one file, whole or not there.

A folder holds ``checkpoint.safetensors``: the arrays of a snapshot, and in its header as JSON where the loop is, what
was run and on what. A new one is written beside it, forced to the disk, and takes its place in one step.
"""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Literal

import safetensors.numpy
from safetensors import SafetensorError, safe_open

from kinfolk.checks import InputError, listing
from kinfolk.engine.packing import Packer, Tree, Unpacker
from kinfolk.engine.protocol import Snapshot
from kinfolk.engine.run import Position
from kinfolk.engine.specs import Spec, differences, types_in
from kinfolk.network.fingerprint import fingerprint, fingerprints
from kinfolk.network.problem import Problem
from kinfolk.version import __version__

try:
    import fcntl
except ImportError:  # Windows: two runs into one folder are not noticed there
    fcntl = None  # type: ignore[assignment]

FILE, DRAFT, LOCK = "checkpoint.safetensors", "checkpoint.part", "lock"
FORMAT = 1


@dataclass(frozen=True)
class Checkpoint:
    """A run between two rounds: the snapshot, where the loop is, and what was run."""

    snapshot: Snapshot
    position: Position
    stopped: str | None  # why the run ended; None: it goes on
    specs: dict[str, Spec]  # of the algorithm and of all else that may hold code
    numbers: dict[str, int]  # the other arguments of ``fit``


@dataclass(frozen=True)
class Stored:
    """The header of a checkpoint: all that can be known before its state is read."""

    text: str  # JSON
    digest: str
    path: Path

    @cached_property
    def header(self) -> dict[str, Any]:
        """What stands in it."""
        return dict(json.loads(self.text))

    @property
    def specs(self) -> dict[str, Spec]:
        """What was run."""
        with _damage(self.path):
            return dict(self.header["specs"])

    @property
    def numbers(self) -> dict[str, int]:
        """The other arguments of ``fit``."""
        with _damage(self.path):
            return {name: int(self.header["numbers"][name]) for name in ("rounds", "last", "measure_every", "seed")}

    def check(self, problem: Problem, specs: dict[str, Spec]) -> None:
        """Refuse to go on with another network, algorithm or rule; say what differs."""
        with _damage(self.path):
            self._check(fingerprints(problem), specs)

    def _check(self, now: dict[str, str], specs: dict[str, Spec]) -> None:
        changed = [part for part, mark in self.header["network"].items() if now.get(part) != mark]
        if changed:
            raise InputError(
                f"Expected the network that the checkpoint in {str(self.path)!r} was made on, got one with other "
                f"{listing(changed)}: pass that network, or start afresh."
            )
        found = [text for name in specs for text in differences(self.specs[name], specs[name], f"the {name}")]
        if found:
            raise InputError(
                f"Expected what the checkpoint in {str(self.path)!r} was made with: {'; '.join(found[:5])}. Pass the "
                "same, or start afresh."
            )

    def read(self, algorithm: Any, trusted: Sequence[str]) -> Checkpoint:
        """The whole checkpoint."""
        with _damage(self.path):
            arrays = dict(safetensors.numpy.load_file(self.path))
            if digest(self.text, arrays) != self.digest:
                raise ValueError("the digest differs")
            unpacker = Unpacker(arrays, algorithm, trusted)
            snapshot = Snapshot(**{name: unpacker.unpack(tree) for name, tree in self.header["snapshot"].items()})
            position = Position(**self.header["position"])
        return Checkpoint(snapshot, position, self.header["stopped"], self.specs, self.numbers)


def open_checkpoint(folder: str | Path) -> Stored:
    """The checkpoint in a folder, as far as it can be known without its state."""
    path = Path(folder) / FILE
    if not path.is_file():
        raise InputError(f"Expected a checkpoint in {str(folder)!r}, found none: pass the folder given to fit.")
    with _damage(path):
        with safe_open(path, "numpy") as opened:
            stored = Stored(opened.metadata()["kinfolk"], opened.metadata()["digest"], path)
        found = stored.header["format"]
        if found != FORMAT:
            raise InputError(
                f"Expected a checkpoint of format {FORMAT}, {str(path)!r} has format {found}, written by kinfolk "
                f"{stored.header['version']}: use that version."
            )
    return stored


def digest(text: str, arrays: Mapping[str, Any]) -> str:
    """A hash of all that a checkpoint holds, so that damage is noticed."""
    return fingerprint(text, *(part for name in sorted(arrays) for part in (name, arrays[name])))


@contextlib.contextmanager
def _damage(path: Path) -> Iterator[None]:
    """What a damaged file does to its reader, as a sentence."""
    try:
        yield
    except InputError:
        raise
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise InputError(
            f"Expected a whole checkpoint in {str(path)!r}, it is damaged ({type(error).__name__}): start afresh."
        ) from error


class Checkpoints:
    """A folder that keeps the last checkpoint of one run.

    Parameters
    ----------
    folder : Path
        Where it is.
    every : int
        Rounds between two of them.
    failure : {"stop", "go on"}
        What to do when one cannot be written.
    """

    def __init__(self, folder: Path, every: int, failure: Literal["stop", "go on"]) -> None:
        self.folder, self.every, self.failure = folder, every, failure
        self.warned = False
        self._marks: dict[str, str] | None = None  # of the network
        self._lock = self._locked()

    @classmethod
    def new(cls, folder: str | Path, every: int, failure: Literal["stop", "go on"]) -> Checkpoints:
        """A folder that has no checkpoint yet; it is made if need be."""
        place = Path(folder)
        if (place / FILE).exists():
            raise InputError(
                f"Expected a folder without a checkpoint, {str(place)!r} has one: go on from it with "
                "kinfolk.resume, or choose another folder."
            )
        try:
            place.mkdir(parents=True, exist_ok=True)
            return cls(place, every, failure)
        except OSError as error:
            raise InputError(
                f"Expected a folder for checkpoints, cannot use {str(place)!r}: {error.strerror}."
            ) from error

    def _locked(self) -> IO[str]:
        """A lock that ends with the process, however that ends."""
        handle = (self.folder / LOCK).open("w")
        try:
            if fcntl is not None:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            handle.close()
            raise InputError(
                f"Expected a folder of checkpoints that nobody uses, another run writes to {str(self.folder)!r}: "
                "wait for it, or choose another folder."
            ) from error
        return handle

    def close(self) -> None:
        """Let others use the folder."""
        self._lock.close()

    def write(self, problem: Problem, checkpoint: Checkpoint) -> str | None:
        """Replace the checkpoint by a newer one; a sentence if that failed and the run is to stop."""
        packer = Packer()
        snapshot = checkpoint.snapshot
        header: dict[str, Tree] = {
            "format": FORMAT,
            "version": __version__,
            "network": self._fingerprints(problem),
            "specs": checkpoint.specs,
            "numbers": checkpoint.numbers,
            "position": asdict(checkpoint.position),
            "stopped": checkpoint.stopped,
            "snapshot": {name: packer.pack(getattr(snapshot, name)) for name in snapshot.__dataclass_fields__},
        }
        text = json.dumps(header, default=_plain)
        metadata = {"kinfolk": text, "digest": digest(text, packer.arrays)}
        content = safetensors.numpy.save(packer.arrays, metadata=metadata)
        try:
            self._replace(content)
        except OSError as error:
            return self._failed(error)
        return None

    def _fingerprints(self, problem: Problem) -> dict[str, str]:
        if self._marks is None:
            self._marks = fingerprints(problem)
        return self._marks

    def _replace(self, content: bytes) -> None:
        draft = self.folder / DRAFT
        with draft.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self.folder / FILE)
        directory = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _failed(self, error: OSError) -> str | None:
        with contextlib.suppress(OSError):
            (self.folder / DRAFT).unlink(missing_ok=True)
        sentence = f"the checkpoint in {str(self.folder)!r} could not be written: {error.strerror or error}"
        if self.failure == "stop":
            return f"stopped: {sentence}"
        if not self.warned:
            warnings.warn(f"The run goes on, although {sentence}.", RuntimeWarning, stacklevel=2)
            self.warned = True
        return None

    def read(self, algorithm: Any) -> Checkpoint | None:
        """The last checkpoint that was written, of the run at hand; None if there is none."""
        if not (self.folder / FILE).is_file():
            return None
        return open_checkpoint(self.folder).read(algorithm, types_in(algorithm))


def same_network(one: Problem, other: Problem) -> bool:
    """Whether two networks are the same, be they one object or not."""
    return one is other or fingerprints(one) == fingerprints(other)


def _plain(value: Any) -> Any:
    return value.item()
