"""FlowerPost: blobs over the Grid of a ServerApp. Deadlines and resends are ours; names belong to registered keys."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kinfolk.checks import InputError, listing
from kinfolk.engine.protocol import Missing
from kinfolk.engine.wire import Blob
from kinfolk.federation.flower.certificates import CoordinatorKey
from kinfolk.federation.flower.pacing import pause
from kinfolk.federation.flower.records import QUERY, blob_in, content_of

log = logging.getLogger(__name__)
LOOK = 1.0  # seconds between two looks at who is there
MOST_REFUSAL = 4096  # bytes


@dataclass
class _Asked:
    """A site that is asked: what it gets, and the messages that have brought it."""

    content: bytes
    most: int
    messages: set[str] = field(default_factory=set)  # not yet answered
    latest: str = ""
    copies: int = 0
    sent: float = 0.0
    activated: str = ""  # when the process that got the last one had signed in
    why: str = "it is not connected"

    @property
    def waits(self) -> bool:
        """Whether the last message may still be answered."""
        return self.latest in self.messages

    def note(self, message: str | None, node: Any) -> None:
        """A message has been sent, if Flower has taken it."""
        self.sent, self.activated, self.why = time.monotonic(), node.last_activated_at, "it is connected"
        self.latest, self.copies = message or "", self.copies + 1
        self.messages |= {self.latest} - {""}


class FlowerPost:
    """The coordinator's end of a federation over Flower.

    Parameters
    ----------
    grid : flwr.serverapp.Grid
        Of the ServerApp.
    nodes : mapping of str to bytes
        For the name of every site the public key that it is registered with.
    key : CoordinatorKey
        Signs all requests.
    resend : float
        Seconds after which a request is sent again; then twice as many, and so on, as the site may just be busy. One
        that a process got which then died is sent again as soon as its successor has signed in.
    """

    def __init__(self, grid: Any, nodes: Mapping[str, bytes], key: CoordinatorKey, resend: float = 60.0) -> None:
        self.grid, self.nodes, self.key, self.resend = grid, nodes, key, resend
        self._online: dict[str, Any] = {}
        self._looked = -LOOK

    def online(self) -> dict[str, Any]:
        """The nodes of the sites that are there, by name."""
        if time.monotonic() >= self._looked + LOOK:
            by_key = {bytes(node.public_key): node for node in self.grid.get_nodes()}
            self._online = {name: by_key[key] for name, key in self.nodes.items() if key in by_key}
            self._looked = time.monotonic()
        return self._online

    def wait_for_all(self, seconds: float) -> None:
        """Wait until all sites are there; refuse with the names of those that are not."""
        deadline = time.monotonic() + seconds
        while len(self.online()) < len(self.nodes):
            if time.monotonic() > deadline:
                away = [name for name in self.nodes if name not in self._online]
                raise InputError(
                    f"Expected all sites within {seconds:.0f} seconds, {listing(away)} did not connect: start them, "
                    "and try again."
                )
            time.sleep(LOOK)

    # ------------------------------------------------------------------ asking

    def ask(self, blobs: Mapping[str, bytes], most: Mapping[str, int], seconds: float) -> dict[str, bytes | Missing]:
        """Ask all sites at once; one that does not answer in time is missing."""
        began = time.monotonic()
        open_ = {name: _Asked(self.key.signed(name, blob), most[name]) for name, blob in blobs.items()}
        answers: dict[str, bytes | Missing] = {}
        while open_ and time.monotonic() < began + seconds:
            self._send(open_)
            for name, answer in self._replies(open_):
                answers[name] = answer
                del open_[name]
            if open_:
                time.sleep(pause(began))
        return answers | {name: Missing(f"no answer in time, {each.why}") for name, each in open_.items()}

    def _send(self, open_: Mapping[str, _Asked]) -> None:
        """Send to those that are there what they have not got."""
        from flwr.app import Message

        if all(each.waits and time.monotonic() < each.sent + LOOK for each in open_.values()):
            return
        due = {name: node for name, node in self.online().items() if name in open_ and self._is_due(open_[name], node)}
        if not due:
            return
        messages = [Message(content_of(open_[name].content), node.node_id, QUERY) for name, node in due.items()]
        for (name, node), number in zip(due.items(), self.grid.push_messages(messages), strict=True):
            open_[name].note(number, node)

    def _is_due(self, each: _Asked, node: Any) -> bool:
        if not each.waits or each.activated != node.last_activated_at:
            return time.monotonic() >= each.sent + LOOK
        return time.monotonic() >= each.sent + self.resend * 2.0 ** (each.copies - 1)

    def _replies(self, open_: Mapping[str, _Asked]) -> Iterable[tuple[str, bytes | Missing]]:
        """The answers that have come; what Flower replies in the place of a site is none."""
        asked = {number: name for name, each in open_.items() for number in each.messages}
        for reply in self.grid.pull_messages(list(asked)) if asked else ():
            number = reply.metadata.reply_to_message_id
            name = asked[number]
            each = open_.get(name)
            if each is None:  # answered twice
                continue
            each.messages.discard(number)
            if not reply.has_content():
                each.why = str(reply.error.reason)
                log.info("site %s: %s", name, each.why)
            elif len(blob := blob_in(reply.content)) <= max(each.most, MOST_REFUSAL):
                yield name, blob
            else:
                yield name, Missing(f"it sent {len(blob):,} bytes, at most {each.most:,} were expected")

    def end(self, seconds: float = 30.0) -> None:
        """Tell all sites that are there that the federation has ended; they answer, or just leave."""
        began, blob = time.monotonic(), Blob("end").encode()
        open_ = {name: _Asked(self.key.signed(name, blob), 0) for name in self.online()}
        while open_ and time.monotonic() < began + seconds:
            self._send(open_)
            gone = {name for name, each in open_.items() if each.sent and name not in self.online()}
            for name in gone | {name for name, _ in self._replies(open_)}:
                del open_[name]
            time.sleep(pause(began))
