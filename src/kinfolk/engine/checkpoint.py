"""Checkpoints: a run between two rounds in one file, whole or not there.

A folder holds ``checkpoint.safetensors``: the arrays of a snapshot, and in its header as JSON where the loop is, what
was run and on what. A new one is written beside it, forced to the disk, and takes its place in one step.
"""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError, safe_open

from kinfolk.checks import AtLeast, InputError, check_value, listing
from kinfolk.engine.files import write_whole
from kinfolk.engine.locking import locked
from kinfolk.engine.protocol import Snapshot
from kinfolk.engine.run import Position
from kinfolk.engine.specs import Spec, differences, types_in
from kinfolk.local_models.packing import Packer, Tree, Unpacker
from kinfolk.network.fingerprint import fingerprint, fingerprints
from kinfolk.network.problem import Problem
from kinfolk.version import __version__

FILE = "checkpoint.safetensors"
FORMAT = 1


@dataclass(frozen=True)
class Checkpoint:
    """A run between two rounds: the snapshot, where the loop is, and what was run."""

    snapshot: Snapshot
    position: Position
    stopped: str | None  # why the run ended; None: it goes on
    specs: dict[str, Spec]  # of the algorithm and of all else that may hold code
    numbers: dict[str, int]  # the other arguments of ``fit``
    lost: float  # share of messages that get lost


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
        with damage_noticed(self.path):
            return dict(self.header["specs"])

    @property
    def numbers(self) -> dict[str, int]:
        """The other arguments of ``fit``."""
        with damage_noticed(self.path):
            return {name: int(self.header["numbers"][name]) for name in ("rounds", "last", "measure_every", "seed")}

    @property
    def ended(self) -> bool:
        """Whether the run had come to its end."""
        return self.header.get("stopped") is not None

    def check(self, problem: Problem, specs: dict[str, Spec]) -> None:
        """Refuse to resume with another network, algorithm or rule; name what differs."""
        with damage_noticed(self.path):
            self._check(fingerprints(problem), specs)

    def _check(self, now: dict[str, str], specs: dict[str, Spec]) -> None:
        before = self.header["network"]
        changed = [part for part in {**before, **now} if now.get(part) != before.get(part)]
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
        with damage_noticed(self.path):
            arrays = dict(safetensors.numpy.load_file(self.path))
            if digest(self.text, arrays) != self.digest:
                raise ValueError("the digest differs")
            unpacker = Unpacker(arrays, algorithm, trusted)
            snapshot = Snapshot(**{name: unpacker.unpack(tree) for name, tree in self.header["snapshot"].items()})
            position = Position(**self.header["position"])
            if not all(row.keys() >= {"round", "residual", "objective", "seconds"} for row in position.rows):
                raise ValueError("rows of the history without their columns")
            lost = float(self.header["lost"])
        return Checkpoint(snapshot, position, self.header["stopped"], self.specs, self.numbers, lost)


def open_checkpoint(folder: str | Path) -> Stored:
    """The checkpoint in a folder, as far as it can be known without its state."""
    path = Path(folder) / FILE
    if not path.is_file():
        raise InputError(f"Expected a checkpoint in {str(folder)!r}, found none: pass the folder given to fit.")
    with damage_noticed(path):
        with safe_open(path, "numpy") as opened:
            stored = Stored(opened.metadata()["kinfolk"], opened.metadata()["digest"], path)
        found, version = stored.header["format"], stored.header["version"]
        if (found, version) != (FORMAT, __version__):
            raise InputError(
                f"Expected a checkpoint of format {FORMAT} by kinfolk {__version__}, {str(path)!r} has format {found}, "
                f"written by kinfolk {version}: use that version."
            )
    return stored


def check_alike(expected: Snapshot, found: Snapshot) -> None:
    """Refuse arrays that are not of the shapes and types that this run works with."""
    if type(found.state) is not type(expected.state) or set(found.sent) != set(expected.sent):
        raise InputError("Expected the state of this algorithm in the checkpoint, got another one: start afresh.")
    pairs = [*zip(expected.state, found.state, strict=True), *((expected.sent[k], found.sent[k]) for k in found.sent)]
    pairs += [(expected.to_all[name], values) for name, values in found.to_all.items() if name in expected.to_all]
    pairs += [(expected.to_each[name], rows) for name, rows in found.to_each.items() if name in expected.to_each]
    for ours, theirs in pairs:
        ours, theirs = np.asarray(ours), np.asarray(theirs)
        if (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape):
            raise InputError(
                f"Expected {ours.dtype} of shape {ours.shape} in the checkpoint, got {theirs.dtype} of shape "
                f"{theirs.shape}: it is damaged or was made on another network; start afresh."
            )


def digest(text: str, arrays: Mapping[str, Any]) -> str:
    """A hash of all that a checkpoint holds, so that damage is noticed."""
    return fingerprint(text, *(part for name in sorted(arrays) for part in (name, arrays[name])))


@contextlib.contextmanager
def damage_noticed(path: Path) -> Iterator[None]:
    """What a damaged file does to its reader, as a sentence."""
    try:
        yield
    except InputError:
        raise
    except (SafetensorError, OSError, LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
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
        self._lock = locked(
            folder,
            f"Expected a folder of checkpoints that nobody uses, another run writes to {str(folder)!r}: wait for it, "
            "or choose another folder.",
        )

    @classmethod
    def new(cls, folder: str | Path, every: int, failure: Literal["stop", "go on"]) -> Checkpoints:
        """A folder that has no checkpoint yet; it is made if need be."""
        place = Path(folder)
        if (place / FILE).exists():
            raise InputError(
                f"Expected a folder without a checkpoint, {str(place)!r} has one: go on from it with "
                "kinfolk.resume, or choose another folder."
            )
        return cls.again(place, every, failure)

    @classmethod
    def again(cls, folder: str | Path, every: int, failure: Literal["stop", "go on"]) -> Checkpoints:
        """A folder for the checkpoints of a run; it is made if need be."""
        place = Path(folder)
        check_value("checkpoint_every", "fit", every, Annotated[int, AtLeast(1)])
        check_value("checkpoint_failure", "fit", failure, Literal["stop", "go on"])
        try:
            place.mkdir(parents=True, exist_ok=True)
            return cls(place, every, failure)
        except OSError as error:
            raise InputError(
                f"Expected a folder for checkpoints, cannot use {str(place)!r}: {error.strerror}."
            ) from error

    def close(self) -> None:
        """Let others use the folder."""
        self._lock.close()

    def write(self, problem: Problem, checkpoint: Checkpoint) -> str | None:
        """Replace the checkpoint by a newer one; a sentence if that failed and the run is to stop."""
        try:
            write_whole(self.folder / FILE, self._content(problem, checkpoint), forced=True)
        except (OSError, SafetensorError, InputError) as error:  # a full disk, or a state that cannot be written
            return self._failed(error)
        return None

    def _content(self, problem: Problem, checkpoint: Checkpoint) -> bytes:
        packer, snapshot = Packer(), checkpoint.snapshot
        header: dict[str, Tree] = {
            "format": FORMAT,
            "version": __version__,
            "network": self._fingerprints(problem),
            "specs": checkpoint.specs,
            "numbers": checkpoint.numbers,
            "position": asdict(checkpoint.position),
            "stopped": checkpoint.stopped,
            "lost": checkpoint.lost,
            "snapshot": {name: packer.pack(getattr(snapshot, name)) for name in snapshot.__dataclass_fields__},
        }
        text = json.dumps(header, default=lambda number: number.item())
        metadata = {"kinfolk": text, "digest": digest(text, packer.arrays)}
        content: bytes = safetensors.numpy.save(packer.arrays, metadata=metadata)
        return content

    def _fingerprints(self, problem: Problem) -> dict[str, str]:
        if self._marks is None:
            self._marks = fingerprints(problem)
        return self._marks

    def _failed(self, error: Exception) -> str | None:
        sentence = (
            f"the checkpoint in {str(self.folder)!r} could not be written: {getattr(error, 'strerror', None) or error}"
        )
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
