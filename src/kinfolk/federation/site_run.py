"""One run at one site: its worker, its seals, and a folder from which it goes on after a crash.

What a request asks for is on the disk before the answer leaves. After some requests the state is saved and they go; a
process that starts again loads the state and repeats the rest, which gives the same state and the same last answer.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.numpy

from kinfolk.checks import InputError
from kinfolk.engine.checkpoint import damage_noticed
from kinfolk.engine.noise import Noise, NoisyOutbox
from kinfolk.engine.protocol import Algorithm, Arrays, Messages, Models, Request, SiteId, SiteSnapshot, Turn
from kinfolk.engine.specs import types_in
from kinfolk.engine.wire import Blob, WireError
from kinfolk.engine.worker import SiteWorker
from kinfolk.federation.allowance import Allowance
from kinfolk.federation.files import Journal, replace_file
from kinfolk.federation.joining import Join
from kinfolk.federation.keys import Sealer, SealError, SiteKey
from kinfolk.federation.ledger import Entry, Ledger
from kinfolk.federation.messages import UNUSABLE, Asked, Terms, refusal, usable
from kinfolk.federation.rows import SiteRows
from kinfolk.federation.spending import SecretNoise, Spending, SpentError
from kinfolk.local_models.packing import Packer, Unpacker

log = logging.getLogger(__name__)
JOINED, STATE, REQUESTS, RECORDED = "join", "state.safetensors", "requests", "recorded"
LOGGED = 50  # requests that are repeated at most after a crash
LOGGED_BYTES = 2**26
MOST_MESSAGE = 2**31  # bytes


def run_folder(root: Path, run: str) -> Path:
    """Where a run is kept."""
    return root / "runs" / run


class BadLetterError(InputError):
    """The letter of another site cannot be used."""

    def __init__(self, sentence: str, site: SiteId) -> None:
        super().__init__(sentence)
        self.site = site


class _Last(NamedTuple):
    """The last request, and what was answered."""

    request: bytes
    answer: bytes


class Care(NamedTuple):
    """What the owner of a site wants beyond what is agreed on."""

    noise: Noise | None = None  # on what leaves a node
    record: bool = False  # whether to keep all requests, for an audit
    epsilon: float | None = None  # the largest that may be spent on any receiver


class SiteRun:
    """One run at one site.

    Parameters
    ----------
    join : Join
        What the coordinator has told of the run.
    algorithm : Algorithm
        What is run, built here from names and numbers, or given by the owner of the site.
    rows : SiteRows
        The rows, with the features in the order of the federation.
    key : SiteKey
        Of this site.
    name : str
        Of this site.
    folder : Path, optional
        Where the run is kept; None: it is repeated for an audit.
    ledger : Ledger
        Where it is written down what leaves.
    allowance : Allowance, optional
        How many rounds the site takes part in; None: without bounds.
    care : Care
        Whether there is noise on what leaves, and whether requests are kept for an audit.
    """

    def __init__(
        self,
        join: Join,
        algorithm: Algorithm[Any],
        rows: SiteRows,
        key: SiteKey,
        name: str,
        folder: Path | None,
        ledger: Ledger,
        allowance: Allowance | None = None,
        care: Care = Care(),
    ) -> None:
        self.join, self.algorithm, self.folder, self.ledger = join, algorithm, folder, ledger
        self.allowance, self.care = allowance, care
        self.joined = b""  # the join as it came
        sends = algorithm.sends(join.problem)
        if sends is None:
            raise InputError(
                f"Expected an algorithm that declares what leaves a node, {type(algorithm).__name__} does not: give it "
                "a method sends()."
            )
        site = join.filled(rows)
        try:
            algorithm.check_data(site)
        except InputError as error:  # its text may hold values of rows: it stays here
            log.exception("site %s cannot learn from its rows", name)
            raise InputError(
                f"Expected rows that {type(algorithm).__name__} can learn from, those of site {name!r} are others; its "
                "own log has more."
            ) from error
        self.terms: Terms = join.terms(sends)
        if max(self.terms.request.largest, self.terms.answer.largest) > MOST_MESSAGE:
            raise InputError(
                f"Expected messages of {MOST_MESSAGE:,} bytes at most, {type(algorithm).__name__} declares larger "
                "ones: choose smaller models."
            )
        self.sealer = Sealer(key, name, join.key.run, join.peers)
        self.secret = None if care.noise is None else SecretNoise.new(care.noise)
        blurred = None
        if care.noise is not None:
            care.noise.check(algorithm, sends)
            blurred = NoisyOutbox(care.noise, sends, site, self._rng)
        self.worker = SiteWorker(site, algorithm, join.homes, sends, undoable=True, noise=blurred)
        self.done = self.settled = 0  # numbers of the last request that was work, and of the last that counts or not
        self.number = 0  # of the last request
        self.heard: dict[SiteId, int] = {}  # numbers of the last letters that count
        self._heard = dict(self.heard)
        self._last: _Last | None = None
        self._measured: Request | None = None
        self._leaving: list[Entry] = []  # what the present answer holds
        self._round = 0
        self._logged = 0  # requests since the state was saved
        self.journal: Journal | None = None
        self.record: Journal | None = None
        self.told: Messages | None = None  # what the last answer holds, not sealed
        self._repeats = False  # what has been counted before

    def _rng(self, turn: Turn, node: int, name: str, message: Arrays) -> np.random.Generator:
        """The noise of a message: another one for every request."""
        assert self.secret is not None
        return self.secret.rng(self.number, turn, node, name, message)

    # ------------------------------------------------------------------ on the disk

    def keep(self, content: bytes) -> None:
        """Make the folder of a new run; those of others go."""
        assert self.folder is not None
        self.joined = content
        for other in self.folder.parent.glob("*"):
            shutil.rmtree(other)
        self.folder.mkdir(parents=True)
        if self.secret is not None:
            self.secret.keep(self.folder)
        replace_file(self.folder / JOINED, content)
        self.journal = Journal(self.folder / REQUESTS)
        self.record = Journal(self.folder / RECORDED) if self.care.record else None

    def go_on(self) -> None:
        """Where the process before has ended."""
        assert self.folder is not None
        self.joined = (self.folder / JOINED).read_bytes()
        self.secret = SecretNoise.kept(self.folder, self.care.noise)
        self.record = Journal(self.folder / RECORDED) if self.care.record else None
        path = self.folder / STATE
        if path.exists():
            with damage_noticed(path):
                self._load(path.read_bytes())
        self.journal = Journal(self.folder / REQUESTS)
        self._repeats = True
        for content in self.journal.found:
            asked = self.terms.decode_request(content)
            if asked.key.number > self.number:
                self._last = _Last(content, self._answered(asked))
        self._repeats = False
        self._logged = len(self.journal.found)

    def _save(self) -> None:
        """Write the state between two rounds; the requests that led to it can go."""
        assert self.journal is not None
        assert self.folder is not None
        packer, snapshot = Packer(), self.worker.save(copy=False)
        header = {
            "number": self.number, "done": self.done, "heard": [[site, number] for site, number in self.heard.items()],
            "state": packer.pack(snapshot.state), "sent": packer.pack(dict(snapshot.sent)),
        }  # fmt: skip
        replace_file(
            self.folder / STATE, safetensors.numpy.save(packer.arrays, metadata={"kinfolk": json.dumps(header)})
        )
        self.journal.clear()
        self._logged = 0

    def _load(self, content: bytes) -> None:
        length = int.from_bytes(content[:8], "little")
        header = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["kinfolk"])
        unpacker = Unpacker(safetensors.numpy.load(content), self.algorithm, types_in(self.algorithm))
        state, sent = unpacker.unpack(header["state"]), unpacker.unpack(header["sent"])
        self.worker.load(SiteSnapshot(state, sent))
        self.number, self.done, self.settled = header["number"], header["done"], header["done"]
        self.heard = {site: number for site, number in header["heard"]}
        self._heard = dict(self.heard)

    # ------------------------------------------------------------------ requests

    def answer(self, content: bytes) -> bytes:
        """Answer a request; one that comes again gets the same answer."""
        if self._last is not None and content == self._last.request:
            return self._last.answer
        asked = self.terms.decode_request(content)
        if asked.key.number <= self.number:
            raise WireError(f"Expected a request after number {self.number}, got {asked.key.number}: it is too old.")
        if max(asked.kept, asked.open) > self.done:
            raise WireError(
                f"Expected a request that follows number {self.done}, got one that follows "
                f"{max(asked.kept, asked.open)}: what this site has kept of the run is not whole; begin anew."
            )
        if self.allowance is not None:
            self.allowance.check(asked.request.turn.round, asked.key.number, self.sealer.name)
        self._settle(asked)
        full = self.journal is not None and (self._logged >= LOGGED or self.journal.size > LOGGED_BYTES)
        if full and self.settled == self.done:
            self._save()
        answer = self._answered(asked)
        self._round = asked.request.turn.round or self._round  # a measurement has none
        self.ledger.add(asked.key.run, self._round, self._leaving)  # before anything else: better twice than not
        if self.care.noise is not None and self._leaving:
            self.spend(self.care.noise, asked)
        if self.record is not None:
            self.record.append(content)
        if self.journal is not None:
            self.journal.append(content)
            self._logged += 1
        self._last = _Last(content, answer)
        return answer

    def spend(self, noise: Noise, asked: Asked) -> None:
        """Write down who reads messages with noise; with what the coordinator reads exactly, noise promises nothing."""
        assert self.told is not None
        Spending(self.ledger.path.parent).add(asked.key.run, asked.key.number, *self._spent_on(noise, self.told))

    def _spent_on(self, noise: Noise, told: Messages) -> tuple[Noise, list[str]]:
        """The noise of messages, and who reads them."""
        read = [self.terms.sends.coordinator[name] for name in told.coordinator]
        exact = any(sent.read_exactly for sent in read)
        receivers = [self.join.peers[site].name for site in told.neighbours]
        receivers += ["coordinator"] if exact or any(sent.noisy for sent in read) else []
        return replace(noise, scale=0.0) if exact else noise, receivers

    def _check_spent(self, told: Messages) -> None:
        """Refuse to send what would promise less than the owner has agreed to."""
        if self.care.noise is not None and self.care.epsilon is not None and not self._repeats:
            noise, receivers = self._spent_on(self.care.noise, told)
            Spending(self.ledger.path.parent).check(noise, receivers, self.care.epsilon, self.sealer.name)

    def replay(self, content: bytes) -> tuple[Messages, bytes]:
        """Answer a request of a run that is over once more, for an audit: what is told, and as it would leave."""
        answer = self._answered(self.terms.decode_request(content))
        if self.told is None:
            raise InputError("Expected a recorded run that can be repeated, a request of it fails: record another.")
        return self.told, answer

    def _answered(self, asked: Asked) -> bytes:
        """Do what is asked for; where that fails, the round has not happened here."""
        self._settle(asked)
        self.number, self._leaving, self.told = asked.key.number, [], None
        try:
            return self._worked(asked)
        except BadLetterError as error:
            why, blamed = str(error), error.site
        except SpentError as error:
            why, blamed = str(error), -1
        except Exception as error:  # its text may hold values of rows: it stays here
            log.exception("site %s cannot answer request %d", self.sealer.name, self.number)
            why, blamed = f"it could not compute ({type(error).__name__}); its own log has more", -1
        self.worker.settle(False)
        self._heard = dict(self.heard)
        return refusal(asked.key, why, blamed)

    def _worked(self, asked: Asked) -> bytes:
        number = asked.key.number
        letters = {site: self._opened(site, letter, number) for site, letter in asked.request.inbox.items()}
        absent = {site: self._nothing(rows) for site, rows in self.terms.received.items() if site not in letters}
        request = replace(asked.request, inbox={**absent, **letters})
        answer = self.worker.answer(request)
        assert isinstance(answer, Messages)  # ``finish`` is not asked for
        sends = self.terms.sends
        if not (usable(self.worker.sent, sends.neighbours) and usable(answer.coordinator, sends.coordinator)):
            raise InputError(UNUSABLE)
        self._check_spent(answer)
        if request.work == "measure":
            self._measured = request
        else:
            self.done = number
        if request.work in ("begin", "resume"):
            self.settled = number
        sealed = {site: self._sealed(site, number, rows) for site, rows in answer.neighbours.items()}
        self._leaving, self.told = list(self._entries(answer, sealed)), answer
        return self.terms.encode_answer(asked.key, answer, sealed)

    def _entries(self, answer: Messages, sealed: Mapping[SiteId, bytes]) -> Iterator[Entry]:
        """What an answer holds, and for whom."""
        sends = self.terms.sends
        if answer.coordinator:
            contents = (sends.coordinator[name].content for name in answer.coordinator)
            yield Entry.of("coordinator", contents, answer.coordinator.values())
        if answer.scalars:
            yield Entry.of("coordinator", [f"measured: {', '.join(answer.scalars)}"], answer.scalars.values())
        for site, rows in answer.neighbours.items():
            contents = (sends.neighbours[name].content for name in rows)
            yield Entry.of(self.join.peers[site].name, contents, rows.values(), len(sealed[site]))

    def _settle(self, asked: Asked) -> None:
        """Work up to ``kept`` counts; later work does not, unless its round is still going on."""
        if self.settled < self.done != asked.open:
            keep = self.done <= asked.kept
            self.worker.settle(keep)
            self.heard = dict(self._heard) if keep else self.heard
            self._heard = dict(self.heard)
            self.settled = self.done

    # ------------------------------------------------------------------ letters

    def _nothing(self, rows: int) -> Arrays:
        """In place of a letter of a site that does not take part; no edge carries from there."""
        return {name: np.zeros((rows, *sent.shape[1:]), dtype=sent.dtype) for name, sent in self.worker.sent.items()}

    def _sealed(self, site: SiteId, number: int, rows: Arrays) -> bytes:
        return self.sealer.seal(site, number, Blob("letter", arrays=rows).encode())

    def _opened(self, site: SiteId, letter: Any, number: int) -> Arrays:
        """What another site has sent: as declared, finite, and not older than what it sent before."""
        sender = self.join.peers[site].name
        try:
            stamp, content = self.sealer.open(site, letter.tobytes())
            arrays = Blob.decode(content, self.terms.letter(self.terms.received[site])).arrays
        except (SealError, WireError) as error:
            raise BadLetterError(str(error), site) from error
        if not self.heard.get(site, 0) <= stamp < number:
            raise BadLetterError(f"Expected a new letter of site {sender!r}, got an old one again.", site)
        if set(arrays) != set(self.terms.sends.neighbours):
            raise BadLetterError(f"Expected all that is declared from site {sender!r}, got less.", site)
        if not usable(arrays, self.terms.sends.neighbours):
            raise BadLetterError(f"{UNUSABLE} They are from site {sender!r}.", site)
        self._heard[site] = stamp
        return arrays

    # ------------------------------------------------------------------ what comes out

    @property
    def measured(self) -> bool:
        """Whether there are models: a measurement has been asked for."""
        return self._measured is not None

    @property
    def models(self) -> Models:
        """The models of the own nodes, as of the last measurement. They stay here."""
        if self._measured is None:
            raise InputError("Expected a run that was measured for its models, this one has not begun: wait.")
        return self.worker.models(self._measured)

    def close(self) -> None:
        """Let go of the folder."""
        for journal in (self.journal, self.record):
            if journal is not None:
                journal.close()
