"""A carrier whose sites are elsewhere, over anything that carries blobs; and the record of what they answered."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from kinfolk.checks import InputError
from kinfolk.engine.protocol import Messages, Missing, Request, Scope, SiteId, SiteSnapshot
from kinfolk.engine.wire import Blob, Expected, Key, Slot, WireError, read, written
from kinfolk.federation.files import Journal
from kinfolk.federation.messages import REFUSAL, Terms, read_refusal
from kinfolk.federation.traffic import Traffic
from kinfolk.network.fingerprint import fingerprint
from kinfolk.typing import Ints

MOST_SITES = 2**12
MOST_MISSING = 2**20  # bytes of sentences on who did not answer


class Post(Protocol):
    """All that a transport is: it carries blobs to sites, and their answers back."""

    def ask(self, blobs: Mapping[str, bytes], most: Mapping[str, int], seconds: float) -> Mapping[str, bytes | Missing]:
        """Bring every site, by name, its blob; its answer of at most so many bytes, or why there is none in time."""


class Record:
    """The answers of a run, on the disk if there is a folder; what it has already is not asked for again."""

    def __init__(self, journal: Journal | None, about: str) -> None:
        self.journal = journal
        found = [] if journal is None else list(journal.found)
        self.run = found[0][:16] if found else uuid.uuid4().bytes
        if found and found[0][16:] != about.encode():
            raise InputError(
                "Expected the run that the journal of this coordinator has begun, got another algorithm or other "
                "sites: pass the same, or choose another folder."
            )
        if journal is not None and not found:
            journal.append(self.run + about.encode())
        self.known = found[1:]

    def past(self, number: int, asked: str) -> dict[SiteId, bytes | Missing] | None:
        """What was answered to a request before the process died; None: it is yet to be asked."""
        if number > len(self.known):
            return None
        content = self.known[number - 1]
        answers = {"": (MOST_SITES, Slot("uint8", (len(content),)))}
        blob = Blob.decode(content, Expected(("exchange",), {}, MOST_MISSING, answers))
        fields = read(blob.text, {"asked": str, "missing": dict})
        if fields["asked"] != asked:
            raise InputError(
                "Expected the run that the journal of this coordinator has begun, got other arguments: pass the same, "
                "or choose another folder."
            )
        out: dict[SiteId, bytes | Missing] = {int(site): Missing(why) for site, why in fields["missing"].items()}
        return out | {int(site): letter.tobytes() for site, letter in blob.arrays.items()}

    def add(self, asked: str, answers: Mapping[SiteId, bytes | Missing]) -> None:
        """Keep what was answered."""
        if self.journal is None:
            return
        missing = {site: answer.why for site, answer in answers.items() if isinstance(answer, Missing)}
        arrays = {
            str(site): np.frombuffer(answer, dtype=np.uint8)
            for site, answer in answers.items()
            if not isinstance(answer, Missing)
        }
        self.journal.append(Blob("exchange", text=written(asked=asked, missing=missing), arrays=arrays).encode())


class FederationCarrier:
    """A carrier whose sites are elsewhere. Letters between them pass through it closed."""

    sees_all = False
    whole = None
    lost = 0.0

    def __init__(
        self,
        post: Post,
        names: Sequence[str],
        terms: Sequence[Terms],
        record: Record,
        patience: float,
        join: Callable[[], None],
        traffic: Traffic | None = None,
    ) -> None:
        self._join: Callable[[], None] | None = join if record.known else None  # before the first request that is new
        self.post, self.names, self.terms, self.record, self.patience = post, names, terms, record, patience
        self.sites: list[Scope] = [each.scope for each in terms]
        self.number = 0
        self.bytes_carried = 0
        self.traffic = Traffic() if traffic is None else traffic
        self._across = _across(self.sites)
        self._kept = [0] * len(terms)  # the last request of every site whose work counts
        self._open = [0] * len(terms)  # that of the round that goes on

    def exchange(self, requests: Mapping[SiteId, Request]) -> dict[SiteId, Messages | Missing]:
        """Ask the sites, unless the record has what they answered."""
        self.number += 1
        key, asked = Key(self.record.run, number=self.number), _digest(requests)
        blobs = self.record.past(self.number, asked)
        if blobs is None:
            if self._join is not None:
                self._join()
                self._join = None
            blobs = self._asked(key, requests)
            self.record.add(asked, blobs)
        answers: dict[SiteId, Messages | Missing] = {}
        for site, request in requests.items():
            about, answer = self._read(site, key, blobs[site], requests)
            if about == site and isinstance(answer, Messages):
                self._note(site, request)
                self.traffic.add(self.names[site], answer, self.names)
            if about not in answers or isinstance(answer, Missing):
                answers[about] = answer
        return answers

    def _asked(self, key: Key, requests: Mapping[SiteId, Request]) -> dict[SiteId, bytes | Missing]:
        blobs = {
            self.names[site]: self.terms[site].encode_request(
                key, self._kept[site], self._open[site], self._without_the_unheard(site, request)
            )
            for site, request in requests.items()
        }
        most = {self.names[site]: max(self.terms[site].answer.largest, REFUSAL.largest) for site in requests}
        found = self.post.ask(blobs, most, self.patience)
        self.bytes_carried += sum(map(len, blobs.values()))
        self.bytes_carried += sum(len(each) for each in found.values() if not isinstance(each, Missing))
        return {site: found[self.names[site]] for site in requests}

    def _without_the_unheard(self, site: SiteId, request: Request) -> Request:
        """The request without letters of sites from which no edge carries: what they sent last is of no use."""
        if request.work != "step" or request.carries is None:
            return request
        heard = set(self._across[site][request.carries].tolist())
        return replace(request, inbox={other: letter for other, letter in request.inbox.items() if other in heard})

    def _read(
        self, site: SiteId, key: Key, content: bytes | Missing, requests: Mapping[SiteId, Request]
    ) -> tuple[SiteId, Messages | Missing]:
        """What a site answered, or who is missing: the site itself, or the one whose letter it refuses."""
        if isinstance(content, Missing):
            return site, content
        name = self.names[site]
        refused = refusal_in(content)
        if refused is not None:
            why, blamed = refused
            if blamed in requests and blamed in self.terms[site].received:
                return blamed, Missing(f"site {name!r} refuses the letter of {self.names[blamed]!r}: {why}", True)
            return site, Missing(f"site {name!r} refuses: {why}")
        try:
            return site, self.terms[site].decode_answer(content, key)
        except WireError as error:
            return site, Missing(f"site {name!r} sent what was not agreed on: {error}")

    def _note(self, site: SiteId, request: Request) -> None:
        if request.work in ("begin", "resume"):
            self._kept[site] = self.number
        elif request.work == "step":
            self._open[site] = self.number

    def settle(self, *, keep: bool) -> bool:
        """The sites learn of it with the next request."""
        for site, number in enumerate(self._open):
            if number and keep:
                self._kept[site] = number
            self._open[site] = 0
        return True

    def save(self, *, copy: bool) -> list[SiteSnapshot]:
        """States stay at the sites."""
        raise InputError("Expected an engine that sees all states, those of a federation stay at its sites: ask there.")

    def load(self, snapshots: Sequence[SiteSnapshot]) -> None:
        """States stay at the sites."""
        raise InputError("Expected a run without start=, the states of a federation stay at its sites: leave it out.")


def _across(sites: Sequence[Scope]) -> list[Ints]:
    """For every edge of every site, the site at its other end; an edge within a site leads to itself."""
    ends = np.full((2, 1 + max((int(edges.max(initial=-1)) for _, edges in sites), default=-1)), -1, dtype=np.int64)
    for site, (_, edges) in enumerate(sites):
        known = ends[0, edges] >= 0
        ends[1, edges[known]] = site
        ends[0, edges[~known]] = site
    ends[1] = np.where(ends[1] < 0, ends[0], ends[1])
    return [np.where(ends[0, edges] == site, ends[1, edges], ends[0, edges]) for site, (_, edges) in enumerate(sites)]


def refusal_in(answer: bytes) -> tuple[str, int] | None:
    """Why a site refuses, and whom it blames; None: it does not."""
    try:
        return read_refusal(answer)
    except WireError:
        return None


def _digest(requests: Mapping[SiteId, Request]) -> str:
    """What is asked for, letters aside."""
    present = {id(request.turn.active): request.turn.active for request in requests.values()}  # in general one array
    marks = {number: fingerprint(active) for number, active in present.items()}
    parts: list[Any] = []
    for site, request in requests.items():
        turn = request.turn
        parts += [site, request.work, turn.round, turn.exchange, turn.seed, marks[id(turn.active)]]
        for arrays in (request.to_all, request.to_each):
            parts += [part for name, values in arrays.items() for part in (name, np.asarray(values))]
        parts.append("all" if request.carries is None else request.carries)
    return fingerprint(*parts)
