"""Requests to all sites: one message each, what they answer is checked, and added up."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kinfolk.checks import InputError
from kinfolk.engine.protocol import Arrays, Missing
from kinfolk.engine.wire import Expected, Key, WireError
from kinfolk.federation.carrier import Post
from kinfolk.federation.coordinator import accepted
from kinfolk.federation.messages import REFUSAL
from kinfolk.federation.tables.masks import summed as masked_sum
from kinfolk.federation.tables.packing import Packed, Words, packed, unpacked
from kinfolk.federation.tables.queries import (
    QUERIES,
    largest_answer,
    questions,
    read_answer,
    response_expected,
    sizes_of,
)
from kinfolk.tables.party import Answer, Call, Parties

NOTHING: Words = {}


class SiteGoneError(InputError):
    """A site does not answer, and all of them have to."""

    def __init__(self, site: str, why: str) -> None:
        super().__init__(f"Expected an answer of site {site!r}, got none ({why}): start it, and try again.")
        self.site, self.why = site, why


class RequireAll:
    """A post for work in which all sites have to take part: one that does not answer ends it, with a sentence."""

    def __init__(self, post: Post) -> None:
        self.post = post

    def ask(self, blobs: Mapping[str, bytes], most: Mapping[str, int], seconds: float) -> dict[str, bytes]:
        """Ask, and insist."""
        found = self.post.ask(blobs, most, seconds)
        for name, answer in found.items():
            if isinstance(answer, Missing):
                raise SiteGoneError(name, answer.why)
        return {name: accepted(name, answer) for name, answer in found.items()}


class RemoteParties(Parties):
    """The sites of a federation, as its coordinator sees them: parties whose rows are elsewhere.

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
        self.post, self.names, self.patience = RequireAll(post), list(names), patience
        self.run = job or uuid.uuid4().bytes
        self.number = 0  # messages so far
        self.bytes = 0  # that were carried
        self.sizes: dict[str, int] = {"two": 2, "three": 3, "four": 4}  # of axes that are the same everywhere
        self.own: list[dict[str, int]] = [{} for _ in names]  # of axes that each site has its own of
        self._letters: dict[
            str, list[dict[int, bytes]]
        ] = {}  # by batch: for every site, what others sent it, encrypted
        self._neighbours: dict[str, list[list[int]]] = {}  # by batch and site
        self._introduced = False
        if secure:
            self._introduce(masked=True)

    def _introduce(self, *, masked: bool) -> None:
        """Tell all sites the keys of the others, for encrypted messages, and for secure aggregation if it is wanted."""
        if len(self.names) < 2:
            raise InputError("Expected two sites at least for secure sums, got one: a sum over one site is its own.")
        known = dict(zip(self.names, (about for about, _ in self.query("introduce").each), strict=True))
        self.query("exchange keys", {"sites": known, "masked": masked})
        self.secure, self._introduced = masked, True

    def ask(self, *calls: Call[Any]) -> list[Answer[Any]]:
        """One exchange: every site gets one message with all calls, and answers with one."""
        if not self._introduced and any(call.name == "respond" for call in calls):
            self._introduce(masked=False)
        wanted = [
            [self._with_letters(k, packed(call.name, call.of(k))) for call in calls] for k in range(len(self.names))
        ]
        return self._asked(wanted)

    def _with_letters(self, site: int, query: Packed) -> Packed:
        """A query of conjugate gradients with what neighbouring sites sent; it is not read here."""
        if query.name == "begin gradients":
            around = np.unique(query.arrays["foreign"]).tolist()
            known = self._neighbours.setdefault(query.about["batch"], [[] for _ in self.names])
            known[site] = around
        if query.name != "gradients":
            return query
        found = self._letters[query.about["batch"]][site]
        inbox = [found[each] for each in self._neighbours[query.about["batch"]][site]]
        sealed = np.frombuffer(b"".join(inbox), dtype=np.uint8)
        return query._replace(arrays={**query.arrays, "sealed": sealed, "lengths": [len(each) for each in inbox]})

    def _route(self, query: Packed, found: Sequence[Arrays]) -> None:
        """Keep the encrypted messages of all sites for those they are meant for."""
        batch = query.about["batch"]
        around = self._neighbours[batch]
        self._letters[batch] = [{} for _ in self.names]
        for sender, arrays in enumerate(found):
            lengths, sealed = arrays["lengths"].tolist(), arrays["sealed"].tobytes()
            if len(lengths) != len(around[sender]) or sum(lengths) != len(sealed) or min(lengths, default=0) < 0:
                raise InputError(f"Expected a message from site {self.names[sender]!r} to each neighbour, got others.")
            ends = np.cumsum([0, *lengths]).tolist()
            for receiver, start, end in zip(around[sender], ends[:-1], ends[1:], strict=True):
                self._letters[batch][receiver][sender] = sealed[start:end]

    def query(
        self, name: str, about: Words = NOTHING, *, each: Sequence[Arrays] | None = None, **arrays: Any
    ) -> Answer[Any]:
        """Ask something that is no method of a party; ``each``: arrays for every site, besides those for all."""
        sites = range(len(self.names))
        return self._asked([[Packed(name, about, {**arrays, **(each[k] if each else {})})] for k in sites])[0]

    def _asked(self, wanted: Sequence[Sequence[Packed]]) -> list[Answer[Any]]:
        """What sites answer; ``wanted``: by site, its queries."""
        self.number += 1
        key, queries = Key(self.run, 0, self.number), [each.name for each in wanted[0]]
        plain = [[(each.name, each.about, _plain(each)) for each in mine] for mine in wanted]
        blobs = dict(zip(self.names, questions(key, plain), strict=True))
        expected = {site: [self._expected(k, *each) for each in plain[k]] for k, site in enumerate(self.names)}
        most = {site: max(largest_answer(each), REFUSAL.largest) for site, each in expected.items()}
        found = self.post.ask(blobs, most, self.patience)
        self.bytes += sum(map(len, blobs.values())) + sum(map(len, found.values()))
        read = [self._read(site, key, queries, found[site], expected[site]) for site in self.names]
        for k, query in enumerate(wanted[0]):
            if query.name.endswith("gradients"):
                self._route(query, [each[k][1] for each in read])
        return [self._answer(name, [each[k] for each in read]) for k, name in enumerate(queries)]

    def _expected(self, site: int, name: str, about: Words, arrays: Arrays) -> Expected:
        known = {**self.sizes, **self.own[site]}
        sizes = {**known, **sizes_of(name, about, arrays, known)}
        return response_expected(name, sizes, masked=self.secure)

    def _read(
        self, site: str, key: Key, queries: Sequence[str], content: bytes, expected: Sequence[Expected]
    ) -> list[tuple[dict[str, Any], Arrays]]:
        try:
            return read_answer(content, key, queries, expected)
        except WireError as error:
            raise InputError(
                f"Expected what was agreed on from site {site!r}: {error} Install the same version everywhere."
            ) from error

    def _answer(self, name: str, found: Sequence[tuple[dict[str, Any], Arrays]]) -> Answer[Any]:
        """Responses of all sites, and the sums of what is read as a sum."""
        response = QUERIES[name].response
        add = masked_sum if self.secure else _sum
        sums = {
            each: add([arrays[each] for _, arrays in found]) if array.reader == "sum" else None
            for each, array in response.items()
        }
        hidden = {each for each, array in response.items() if array.reader == "sum" and self.secure}
        parts = [
            (about, {each: None if each in hidden else arrays[each] for each in response}) for about, arrays in found
        ]
        try:
            return Answer([unpacked(name, *each) for each in parts], unpacked(name, found[0][0], sums))
        except WireError as error:
            raise InputError(f"Expected what was agreed on from all sites: {error}") from error


def _sum(parts: Sequence[Any]) -> Any:
    return sum(np.asarray(each) for each in parts)


def derived_name(name: bytes, number: int) -> bytes:
    """One more name that follows from another."""
    return hashlib.blake2b(name + number.to_bytes(8, "little"), digest_size=16).digest()


def _plain(query: Packed) -> dict[str, Any]:
    request = QUERIES[query.name].request
    return {each: np.asarray(values, dtype=request[each].dtype) for each, values in query.arrays.items()}
