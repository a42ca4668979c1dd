"""A post that keeps what sites answered, so that a coordinator that dies goes on where it was.

What a coordinator asks follows from its arguments and from the answers so far. So after a crash the same call asks the
same again; what is on the disk is not brought to the sites a second time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from kinfolk.checks import InputError
from kinfolk.engine.protocol import Missing
from kinfolk.federation.carrier import Post, Record, refusal_in
from kinfolk.federation.files import Journal, locked
from kinfolk.network.fingerprint import fingerprint

ANSWERS = "answers"


class RecallingPost:
    """Carries blobs by another post, unless their answers are known from a process that has died.

    Parameters
    ----------
    post : Post
        What carries messages.
    sites : sequence of str
        The names of all sites.
    folder : Path
        Where answers are kept, each whole and with a checksum, before they are used. Nobody else may work in it.
    about : str
        What the job is; a folder that was begun with something else is refused.
    gone : bool
        Whether a site that does not answer in time is gone for good, so that this is kept as well; otherwise it is
        asked again after a crash.
    """

    def __init__(
        self, post: Post, sites: Sequence[str], folder: Path, about: str = "", *, gone: bool = False
    ) -> None:  # fmt: skip
        self.post, self.sites, self.number, self.gone = post, list(sites), 0, gone
        self._lock = locked(folder)
        self._journal = Journal(folder / ANSWERS)
        try:
            self._record = Record(self._journal, fingerprint(about, *self.sites))
        except InputError as error:
            self.close()
            raise InputError(
                f"Expected the job that was begun in {str(folder)!r}, got other settings, sites or another version: "
                "bring them back, or remove the folder to begin anew."
            ) from error

    @property
    def job(self) -> bytes:
        """Names the job; the same after a crash."""
        return self._record.run

    @property
    def recalled(self) -> int:
        """How many exchanges are known from before."""
        return len(self._record.known)

    def ask(self, blobs: Mapping[str, bytes], most: Mapping[str, int], seconds: float) -> Mapping[str, bytes | Missing]:
        """Ask, unless it is known; a refusal is not kept: its cause may be mended."""
        self.number += 1
        asked = fingerprint(*(part for name, blob in sorted(blobs.items()) for part in (name, blob.hex())))
        past = self._record.past(self.number, asked)
        if past is not None:
            return {self.sites[site]: answer for site, answer in past.items()}
        found = self.post.ask(blobs, most, seconds)
        if all(self.gone if isinstance(each, Missing) else refusal_in(each) is None for each in found.values()):
            self._record.add(asked, {self.sites.index(name): answer for name, answer in found.items()})
        return found

    def close(self) -> None:
        """Let go of the folder."""
        self._journal.close()
        self._lock.close()
