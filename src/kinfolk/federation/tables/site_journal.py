"""What a site keeps of a job, so that a process that was killed goes on: all that it was asked, in order.

A job is deterministic: a process that starts again repeats what it was asked, and is where the one before was. What is
random, such as keys of masks, follows from a secret that is kept as well.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from kinfolk.checks import InputError
from kinfolk.federation.files import Journal, replace_file

QUESTIONS, RECORDED = "questions", "recorded"
JOB, SECRET, DIGEST = 16, 32, 16  # bytes


class Begun(NamedTuple):
    """A job as it was begun."""

    job: bytes
    secret: bytes  # known here alone
    mark: str  # of the table, and of what the owner has agreed to


class SiteJournal:
    """The questions of the present job, in a file.

    Parameters
    ----------
    folder : Path
        Of the site.
    """

    def __init__(self, folder: Path) -> None:
        self.journal = Journal(folder / QUESTIONS)
        self._found = list(self.journal.found)

    @property
    def begun(self) -> Begun | None:
        """The job of the process before this one."""
        return questions_of(self._found)[0]

    def check(self, mark: str, site: str) -> None:
        """Refuse to go on with other rows."""
        if self.begun is not None and self.begun.mark != mark:
            raise InputError(
                f"Expected the table and the agreement that site {site!r} has begun the present job with, got others: "
                f"bring them back, or remove {str(self.journal.path)!r} to begin anew."
            )

    def begin(self, job: bytes, mark: str) -> Begun:
        """Forget the job before, and begin another, with a secret of its own."""
        begun = Begun(job, os.urandom(SECRET), mark)
        self.forget()
        self.journal.append(begun.job + begun.secret + begun.mark.encode())
        return begun

    def forget(self) -> None:
        """There is no job."""
        self._found = []
        self.journal.clear()

    def record(self) -> None:
        """Keep all that was asked in the present job, for an audit, until another is recorded."""
        replace_file(self.journal.path.with_name(RECORDED), self.journal.path.read_bytes(), mode=0o600)

    def keep(self, question: bytes, answer: bytes) -> None:
        """Keep a question, and what its answer was, before the answer leaves."""
        self.journal.append(_digest(answer) + question)

    def repeated(self) -> Iterator[tuple[bytes, bytes]]:
        """What was asked before, and the digest of what was answered."""
        found, self._found = self._found[1:], []
        return ((record[DIGEST:], record[:DIGEST]) for record in found)

    def check_same(self, answer: bytes, before: bytes, site: str) -> None:
        """The same table and the same program give the same answers, to the bit."""
        if _digest(answer) != before:
            raise InputError(
                f"Expected the answers that site {site!r} has given before, its rows now give others: start it with "
                "the same version and as many threads (OMP_NUM_THREADS), or remove "
                f"{str(self.journal.path)!r} to begin anew."
            )

    def close(self) -> None:
        """Let go of the file."""
        self.journal.close()


def questions_of(records: Sequence[bytes]) -> tuple[Begun | None, list[bytes]]:
    """How a job was begun, and all that was asked, from the records of a journal."""
    if not records:
        return None, []
    first, *others = records
    begun = Begun(first[:JOB], first[JOB : JOB + SECRET], first[JOB + SECRET :].decode())
    return begun, [record[DIGEST:] for record in others]


def _digest(answer: bytes) -> bytes:
    return hashlib.blake2b(answer, digest_size=DIGEST).digest()
