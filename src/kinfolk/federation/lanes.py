"""Lanes: several runs at the same time, whose messages travel together, one for every site and exchange.

Each lane is an ordinary run over a ``Post`` of its own. Its questions wait until every lane that is still at work has
asked; then one message goes to every site, with the questions of all lanes, and one comes back. So many fits take as
many exchanges as the longest of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from kinfolk.checks import InputError
from kinfolk.engine.protocol import Missing
from kinfolk.engine.wire import MOST_ARRAYS, Blob, Expected, Key, Slot, WireError
from kinfolk.federation.carrier import Post, refusal_in
from kinfolk.federation.messages import REFUSAL, refusal

T = TypeVar("T")
MOST_LANES = MOST_ARRAYS
Answers = Mapping[str, bytes | Missing]


# ---------------------------------------------------------------------- bundles


def bundled(key: Key, letters: Mapping[int, bytes]) -> bytes:
    """One message with those of several lanes."""
    arrays = {str(lane): np.frombuffer(letter, dtype=np.uint8) for lane, letter in letters.items()}
    return Blob("lanes", key, arrays=arrays).encode()


def bundle_expected(most: Mapping[int, int], each: int | None = None) -> Expected:
    """A bundle of lanes with so many bytes at most; with ``each``, of any lanes with so many."""
    slots = {str(lane): Slot("uint8", (size,)) for lane, size in most.items()}
    families = {} if each is None else {"": (MOST_LANES, Slot("uint8", (each,)))}
    return Expected(("lanes",), slots, families=families)


def unbundled(content: bytes, expected: Expected) -> tuple[Key, dict[int, bytes]]:
    """The messages of all lanes of a bundle.

    >>> unbundled(bundled(Key(), {7: b"to lane seven"}), bundle_expected({7: 20}))[1]
    {7: b'to lane seven'}
    """
    blob = Blob.decode(content, expected)
    if not all(name.isascii() and name.isdigit() for name in blob.arrays):
        raise WireError("Expected lanes by number, got other names.")
    return blob.key, {int(name): letter.tobytes() for name, letter in blob.arrays.items()}


# ---------------------------------------------------------------------- the coordinator's side


@dataclass(frozen=True)
class _Question:
    """What a lane asks."""

    blobs: Mapping[str, bytes]
    most: Mapping[str, int]
    seconds: float


class Lane:
    """The post of one lane."""

    def __init__(self, lanes: Lanes, number: int) -> None:
        self.lanes, self.number = lanes, number

    def ask(self, blobs: Mapping[str, bytes], most: Mapping[str, int], seconds: float) -> Answers:
        """Wait for the other lanes, then ask together with them."""
        return self.lanes.ask(self.number, _Question(blobs, most, seconds))


class Lanes:
    """Brings the questions of several lanes to the sites, together.

    Parameters
    ----------
    post : Post
        What carries messages.
    key : Key
        Of the run whose lanes they are.
    count : int
        Number of lanes.
    """

    def __init__(self, post: Post, key: Key, count: int) -> None:
        self.post, self.key = post, key
        self.exchanges = 0
        self._live = set(range(count))
        self._asked: dict[int, _Question] = {}
        self._answers: dict[int, Answers] = {}
        self._failure: BaseException | None = None
        self._changed = threading.Condition()

    def ask(self, lane: int, question: _Question) -> Answers:
        """What all sites answer a lane; whoever is the last to ask carries the questions of all."""
        with self._changed:
            self._asked[lane] = question
            self._changed.notify_all()
            while lane not in self._answers:
                if self._failure is not None:
                    raise self._failure
                if not self._live <= set(self._asked):
                    self._changed.wait()
                    continue
                asked, self._asked = self._asked, {}  # nobody else can come here before these are answered
                self._changed.release()
                try:
                    found = self._carried(asked)
                finally:
                    self._changed.acquire()
                self._answers |= found
                self._changed.notify_all()
            return self._answers.pop(lane)

    def end(self, lane: int) -> None:
        """A lane has nothing more to ask."""
        with self._changed:
            self._live.discard(lane)
            self._asked.pop(lane, None)
            self._changed.notify_all()

    def fail(self, why: BaseException) -> None:
        """All lanes end."""
        with self._changed:
            self._failure = self._failure or why
            self._changed.notify_all()

    def _carried(self, asked: Mapping[int, _Question]) -> dict[int, Answers]:
        lanes = sorted(asked)
        sites = sorted({name for question in asked.values() for name in question.blobs})
        blobs, most = {}, {}
        for name in sites:
            mine = [lane for lane in lanes if name in asked[lane].blobs]
            blobs[name] = bundled(self.key, {lane: asked[lane].blobs[name] for lane in mine})
            most[name] = bundle_expected({lane: max(asked[lane].most[name], REFUSAL.largest) for lane in mine})
        self.exchanges += 1
        largest = {name: max(each.largest, REFUSAL.largest) for name, each in most.items()}
        found = self.post.ask(blobs, largest, max(question.seconds for question in asked.values()))
        opened = {name: _opened(found[name], most[name]) for name in sites}
        return {lane: {name: opened[name](lane) for name in asked[lane].blobs} for lane in lanes}


def _opened(content: bytes | Missing, expected: Expected) -> Callable[[int], bytes | Missing]:
    """From a lane to what a site answered there, or why there is nothing."""
    if isinstance(content, Missing):
        return lambda lane: content
    refused = refusal_in(content)
    if refused is not None:
        return lambda lane: refusal(Key(), *refused)
    try:
        _, letters = unbundled(content, expected)
    except WireError as error:
        why = Missing(f"it sent what was not agreed on: {error}")
        return lambda lane: why
    return lambda lane: letters.get(lane, Missing("it left this lane out"))


def together(post: Post, key: Key, works: Sequence[Callable[[Post, int], T]]) -> tuple[list[T], int]:
    """Do several works at the same time, each with a lane of its own; what they return, and how many exchanges.

    Parameters
    ----------
    post : Post
        What carries messages.
    key : Key
        Of the run whose lanes they are.
    works : sequence of callables
        Each is called with the post and the number of its lane.

    Returns
    -------
    list, int
        In the order of the works. If one fails, all end, and its error is raised.
    """
    if len(works) > MOST_LANES:
        raise InputError(f"Expected at most {MOST_LANES:,} lanes, got {len(works):,}: do some of them later.")
    lanes = Lanes(post, key, len(works))

    def work(number: int) -> Any:
        try:
            return works[number](Lane(lanes, number), number)
        except BaseException as error:
            lanes.fail(error)
            raise
        finally:
            lanes.end(number)

    with ThreadPoolExecutor(max(len(works), 1), "lane") as pool:
        futures = [pool.submit(work, number) for number in range(len(works))]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        except BaseException as error:  # such as Ctrl-C
            lanes.fail(error)
            raise
    return [future.result() for future in futures], lanes.exchanges
