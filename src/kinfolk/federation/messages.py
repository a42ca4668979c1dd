"""Requests and answers as blobs, and all that may be in them: what the algorithm declares, for so many nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, cast

import numpy as np

from kinfolk.engine.protocol import Arrays, Messages, Replies, Request, Scope, Sends, Sent, SiteId, Turn
from kinfolk.engine.wire import Blob, Expected, Key, Slot, WireError, read, written
from kinfolk.federation.keys import OVERHEAD
from kinfolk.typing import Ints

SHORT = 400  # bytes of the text of a request or an answer
SENTENCE = 8_000  # of a refusal, however its letters are written
MOST_LETTERS = 600
LARGEST = 1e100  # of what is sent
UNUSABLE = f"Expected numbers up to {LARGEST:g}, got larger ones or NaN."
SCALARS = 64  # numbers that may be measured at a node
WORKS = ("begin", "resume", "step", "measure")
REQUEST = {
    "work": str,
    "round": int,
    "exchange": int,
    "seed": int,
    "kept": int,
    "open": int,
    "everybody": bool,
    "carries": bool,
}
REFUSAL = Expected(("refusal",), text=SENTENCE)


class Asked(NamedTuple):
    """A request as a site receives it; letters are still closed."""

    key: Key
    kept: int  # the number of the last request whose work counts
    open: int  # that of the last one of the round that goes on; 0: a new one begins
    request: Request


@dataclass(frozen=True)
class Terms:
    """What the messages between the coordinator and one site may hold."""

    node_count: int  # of the whole network
    scope: Scope
    received: Mapping[SiteId, int]  # rows of the letters from every other site
    routed: Mapping[SiteId, int]  # rows of the letters to them
    sends: Sends
    replies: Replies

    def letter(self, rows: int) -> Expected:
        """A letter about so many nodes."""
        return Expected(("letter",), {name: Slot.of(sent, rows) for name, sent in self.sends.neighbours.items()})

    def _letters(self, rows: Mapping[SiteId, int]) -> dict[str, Slot]:
        sizes = {site: self.letter(count).largest + OVERHEAD for site, count in rows.items()}
        return {f"letter/{site}": Slot("uint8", (size,)) for site, size in sizes.items()}

    @cached_property
    def request(self) -> Expected:
        """What a site may be sent."""
        own, edges = len(self.scope.nodes), len(self.scope.edges)
        slots = {
            "active": Slot("int64", (self.node_count,)),
            "carries": Slot("bool", (edges,), 1),
            **{f"to_all/{name}": Slot.of(sent) for name, sent in self.replies.to_all.items()},
            **{f"to_each/{name}": Slot.of(sent, own) for name, sent in self.replies.to_each.items()},
            **self._letters(self.received),
        }
        return Expected(("request",), slots, SHORT)

    @cached_property
    def answer(self) -> Expected:
        """What a site may answer."""
        own = len(self.scope.nodes)
        slots = {
            "senders": Slot("int64", (own,)),
            **{f"coordinator/{name}": _of_some(sent, own) for name, sent in self.sends.coordinator.items()},
            **self._letters(self.routed),
        }
        return Expected(("answer",), slots, SHORT, {"scalar/": (SCALARS, Slot("float64", (own,), 1))})

    # ------------------------------------------------------------------ the coordinator's side

    def encode_request(self, key: Key, kept: int, open_: int, request: Request) -> bytes:
        """A request as bytes; its letters stay closed."""
        turn, everybody = request.turn, len(request.turn.active) == self.node_count
        arrays: dict[str, Any] = {} if everybody else {"active": turn.active}
        if request.carries is not None:
            arrays["carries"] = request.carries
        arrays |= {f"letter/{site}": letter for site, letter in request.inbox.items()}
        arrays |= {f"to_all/{name}": np.asarray(values) for name, values in request.to_all.items()}
        arrays |= {f"to_each/{name}": values for name, values in request.to_each.items()}
        text = written(
            work=request.work, round=turn.round, exchange=turn.exchange, seed=turn.seed, kept=kept, open=open_,
            everybody=everybody, carries=request.carries is not None,
        )  # fmt: skip
        return Blob("request", key, text, arrays).encode()

    def decode_answer(self, content: bytes, key: Key) -> Messages:
        """What a site answered, checked."""
        blob = Blob.decode(content, self.answer)
        if blob.key != key:
            raise WireError(f"Expected the answer to request {key.number}, got that to {blob.key.number}.")
        row_bytes = read(blob.text, {"row_bytes": int})["row_bytes"]
        senders = blob.arrays.get("senders", np.empty(0, dtype=np.int64))
        if len(np.unique(senders)) < len(senders) or not np.isin(senders, self.scope.nodes).all():
            raise WireError("Expected senders among the nodes of the site, got others.")
        coordinator = _under("coordinator/", blob.arrays)
        if any(len(rows) != len(senders) for rows in coordinator.values()):
            raise WireError(f"Expected a row for each of {len(senders)} senders, got other numbers of rows.")
        if not usable(coordinator, self.sends.coordinator):
            raise WireError(UNUSABLE)
        letters = {int(name): letter for name, letter in _under("letter/", blob.arrays).items()}
        most = sum(sent.largest_bytes for sent in self.sends.neighbours.values())
        if not 0 <= row_bytes <= most:
            raise WireError(f"Expected at most {most:,} bytes from a node to a neighbour, got {row_bytes:,}.")
        return Messages(letters, coordinator, senders, _under("scalar/", blob.arrays), row_bytes)

    # ------------------------------------------------------------------ the site's side

    def decode_request(self, content: bytes) -> Asked:
        """A request that has arrived, checked."""
        blob = Blob.decode(content, self.request)
        fields = read(blob.text, REQUEST)
        if fields["work"] not in WORKS or min(fields["round"], fields["exchange"], fields["seed"]) < 0:
            raise WireError(f"Expected one of {', '.join(WORKS)} in a round, got {fields['work']!r:.40}.")
        everybody = fields["everybody"]
        active = np.arange(self.node_count) if everybody else blob.arrays.get("active")
        if active is None or (not everybody and not _ascends(active, self.node_count)):
            raise WireError("Expected ascending numbers of the nodes that take part, got others.")
        carries = blob.arrays.get("carries")
        if (carries is not None) != fields["carries"]:
            raise WireError("Expected which edges carry, got nothing.")
        letters = {int(name): letter for name, letter in _under("letter/", blob.arrays).items()}
        if fields["work"] in ("step", "measure") and carries is None and set(letters) != set(self.received):
            raise WireError("Expected a letter from every neighbouring site, got fewer.")
        turn = Turn(fields["round"], cast(Ints, active), fields["seed"], fields["exchange"])
        to_all, to_each = _under("to_all/", blob.arrays), _under("to_each/", blob.arrays)
        request = Request(fields["work"], turn, letters, to_all, to_each, carries)
        return Asked(blob.key, fields["kept"], fields["open"], request)

    def encode_answer(self, key: Key, answer: Messages, letters: Mapping[SiteId, bytes]) -> bytes:
        """An answer as bytes, with letters that are closed."""
        arrays: dict[str, Any] = {"senders": answer.senders} if answer.coordinator else {}  # nobody else asks for them
        arrays |= {f"coordinator/{name}": values for name, values in answer.coordinator.items()}
        arrays |= {f"scalar/{name}": np.asarray(rows, dtype=np.float64) for name, rows in answer.scalars.items()}
        arrays |= {f"letter/{site}": np.frombuffer(letter, dtype=np.uint8) for site, letter in letters.items()}
        return Blob("answer", key, written(row_bytes=answer.row_bytes), arrays).encode()


def refusal(key: Key, why: str, blamed: int = -1) -> bytes:
    """Why a site does not answer, and whose letter is to blame, if one is."""
    return Blob("refusal", key, written(why=why[:MOST_LETTERS], blamed=blamed)).encode()


def read_refusal(content: bytes) -> tuple[str, int]:
    """The sentence of a refusal, and who is to blame."""
    fields = read(Blob.decode(content, REFUSAL).text, {"why": str, "blamed": int})
    return fields["why"], fields["blamed"]


def usable(arrays: Arrays, declared: Mapping[str, Sent]) -> bool:
    """Whether all numbers are finite and not absurdly large: others would spread from node to node."""
    return all(_usable(values, declared[name].gaps) for name, values in arrays.items() if values.dtype.kind == "f")


def _usable(values: Any, gaps: bool) -> bool:
    good = np.abs(values) <= np.float64(LARGEST)
    return bool((good | np.isnan(values) if gaps else good).all())


def _of_some(sent: Sent, own: int) -> Slot:
    return Slot(sent.dtype, (own, *sent.shape))


def _under(prefix: str, arrays: Arrays) -> dict[str, Any]:
    return {name.removeprefix(prefix): values for name, values in arrays.items() if name.startswith(prefix)}


def _ascends(active: Ints, node_count: int) -> bool:
    inside = not len(active) or (active[0] >= 0 and active[-1] < node_count)
    return bool(inside and (np.diff(active) > 0).all())
