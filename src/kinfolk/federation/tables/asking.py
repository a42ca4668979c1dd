"""Asking all sites the same, checking what they answer, and adding it up."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from kinfolk.checks import InputError
from kinfolk.engine.protocol import Arrays, Missing
from kinfolk.engine.wire import Key, WireError
from kinfolk.federation.carrier import Post
from kinfolk.federation.coordinator import accepted
from kinfolk.federation.messages import REFUSAL
from kinfolk.federation.tables.masks import summed
from kinfolk.federation.tables.works import WORKS, answer_expected, question, read_answer

NOTHING: Mapping[str, Any] = {}


class SiteGoneError(InputError):
    """A site does not answer, and all of them have to."""

    def __init__(self, site: str, why: str) -> None:
        super().__init__(f"Expected an answer of site {site!r}, got none ({why}): start it, and try again.")
        self.site, self.why = site, why


class Everybody:
    """A post for work in which all sites have to take part: one that does not answer ends it, with a sentence."""

    def __init__(self, post: Post) -> None:
        self.post = post

    def ask(self, blobs: Mapping[str, bytes], most: Mapping[str, int], seconds: float) -> dict[str, bytes | Missing]:
        """Ask, and insist."""
        found = self.post.ask(blobs, most, seconds)
        for name, answer in found.items():
            if isinstance(answer, Missing):
                raise SiteGoneError(name, answer.why)
        return {name: accepted(name, answer) for name, answer in found.items()}


class Told(NamedTuple):
    """What a site told."""

    about: dict[str, Any]
    arrays: Arrays


class Sites:
    """The sites of a federation, as its coordinator sees them.

    Parameters
    ----------
    post : Post
        What carries messages.
    names : sequence of str
        The names of all sites.
    patience : float
        Seconds until a site has to have answered.
    secure : bool
        Whether only sums over sites can be read of what is summed.
    job : bytes, optional
        Names the job, if it has to have the same name after a crash.
    """

    def __init__(
        self, post: Post, names: Sequence[str], patience: float, *, secure: bool = False, job: bytes | None = None
    ) -> None:  # fmt: skip
        self.secure = False  # before sites know of each other
        self.post, self.names, self.patience = Everybody(post), list(names), patience
        self.run = job or uuid.uuid4().bytes
        self._runs = 0  # in lanes
        self.number = 0  # questions so far
        self.bytes = 0  # that were carried
        self.sizes: dict[str, int] = {}  # of axes that are the same everywhere
        self.own: list[dict[str, int]] = [{} for _ in names]  # of axes that each site has its own of

        if secure:
            self._introduce()

    def named_run(self) -> bytes:
        """The name of one more run in lanes: it follows from that of the job."""
        self._runs += 1
        return derived_name(self.run, self._runs)

    def _introduce(self) -> None:
        """Tell all sites the keys of the others, for secure sums."""
        if len(self.names) < 2:
            raise InputError("Expected two sites at least for secure sums, got one: a sum over one site is its own.")
        told = self.ask("introduce")
        known = {site: each.about for site, each in zip(self.names, told, strict=True)}
        self.ask("masks", {"sites": known})
        self.secure = True

    def ask(
        self, name: str, about: Mapping[str, Any] = NOTHING, *, each: Sequence[Arrays] | None = None, **arrays: Any
    ) -> list[Told]:
        """What every site answers; ``each``: arrays for every site, besides those for all."""
        self.number += 1
        blobs, keys, most = {}, {}, {}
        sizes = {**self.sizes, **_sizes(name, arrays)}
        for k, site in enumerate(self.names):
            own = {**arrays, **(each[k] if each else {})}
            keys[site], blobs[site] = question(self.run, self.number, name, about, _plain(name, own))
            expected = answer_expected(name, {**sizes, **self.own[k]}, masked=self._masked(name))
            most[site] = max(expected.largest, REFUSAL.largest)
        found = self.post.ask(blobs, most, self.patience)
        self.bytes += sum(map(len, blobs.values())) + sum(len(a) for a in found.values() if isinstance(a, bytes))
        return [self._read(k, name, keys[site], found[site], sizes) for k, site in enumerate(self.names)]

    def _read(self, k: int, name: str, key: Key, content: Any, sizes: Mapping[str, int]) -> Told:
        site = self.names[k]
        try:
            known = {**sizes, **self.own[k]}
            return Told(*read_answer(content, key, name, known, masked=self._masked(name)))
        except WireError as error:
            raise InputError(
                f"Expected what was agreed on from site {site!r}: {error} Install the same version everywhere."
            ) from error

    def total(self, name: str, about: Mapping[str, Any] = NOTHING, **arrays: Any) -> dict[str, Any]:
        """The sums over all sites of what they answer."""
        assert WORKS[name].summed, name
        told = self.ask(name, about, **arrays)
        if self._masked(name):
            return {each: summed(one.arrays[each] for one in told) for each in WORKS[name].gives}
        return {each: sum(np.asarray(one.arrays[each]) for one in told) for each in WORKS[name].gives}

    def _masked(self, name: str) -> bool:
        return self.secure and WORKS[name].summed


def derived_name(name: bytes, number: int) -> bytes:
    """One more name that follows from another."""
    return hashlib.blake2b(name + number.to_bytes(8, "little"), digest_size=16).digest()


def _plain(name: str, arrays: Arrays) -> dict[str, Any]:
    takes = WORKS[name].takes
    return {each: np.asarray(values, dtype=takes[each].dtype) for each, values in arrays.items()}


def _sizes(name: str, arrays: Arrays) -> dict[str, int]:
    """The sizes of axes that a question decides."""
    takes = WORKS[name].takes
    return {
        axis: size
        for each, values in arrays.items()
        for axis, size in zip(takes[each].axes, np.shape(values), strict=True)
    }
