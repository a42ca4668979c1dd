"""Sends broken messages to a site and to a coordinator: no crash, no hang, no memory beyond what is declared.

    python tests/fuzz.py 100000

Whole messages of a real run (hello, join, requests, answers) are cut, padded, mixed and changed at random places. A
site must answer each with bytes, a refusal mostly; a coordinator must read or refuse each answer.
"""

from __future__ import annotations

import logging
import random as random_
import sys
import tempfile
import time
import tracemalloc
from collections import Counter
from pathlib import Path

from federated import Direct, federation_of, services_of
from kinfolk import FedAvg, GTVMin, InputError, fit
from kinfolk.engine.wire import HEAD
from kinfolk.federation.carrier import refusal_in
from kinfolk.federation.joining import Introduction
from kinfolk.federation.service import SiteService, peek, read_joined
from kinfolk.testing import difficult_network

SECONDS = 20.0  # for one message, on a busy machine
SPARE = 2**25  # bytes: of the run itself, the rebuilt algorithm and its data


def numbered(content: bytes, run: bytes, number: int) -> bytes:
    """The same message in another run, with another number."""
    magic, kind, _, query, _, length, count = HEAD.unpack_from(content)
    return HEAD.pack(magic, kind, run, query, number, length, count) + content[HEAD.size :]


def mutated(content: bytes, random: random_.Random) -> bytes:
    """Bytes like others: changed, cut, padded, doubled or moved."""
    out = bytearray(content)
    for _ in range(random.randint(1, 3)):
        how, at = random.randrange(6), random.randrange(len(out) + 1)
        if how == 0 and out:
            out[min(at, len(out) - 1)] ^= 1 << random.randrange(8)
        elif how == 1:
            out = out[:at]
        elif how == 2:
            out[at:at] = random.randbytes(random.randint(1, 16))
        elif how == 3:
            out[at : at + 8] = random.choice([b"\xff" * 8, bytes(8), b"\x00\x00\x00\x00\x00\x00\x00\x80"])
        elif how == 4:
            out[at : at + random.randint(1, 20)] = b""
        elif out:
            out[min(at, len(out) - 1)] = random.randrange(256)
    return bytes(out)


class Fuzz:
    """A federation of three sites in the middle of a run, and all messages that led there."""

    def __init__(self, folder: Path) -> None:
        logging.disable(logging.CRITICAL)
        self.folder, self.network = folder, difficult_network()
        self._start(0)

    def _start(self, k: int) -> None:
        algorithm = (GTVMin(), FedAvg())[k % 2]
        self.services = services_of(self.network, 3, self.folder / str(k))
        self.post = Direct(self.services)
        federation = federation_of(self.network, 3, self.post)
        problem, carriers, opened = federation.gather(), [], federation.open
        federation.open = lambda *given: carriers.append(opened(*given)) or carriers[0]
        fit(problem, algorithm, engine=federation, rounds=4, stop=None, progress=False)
        self.carrier = carriers[0]

    def run(self, count: int, seed: int) -> Counter:
        """Send so many messages; how many were refused and accepted."""
        random, counts = random_.Random(seed), Counter()
        tracemalloc.start()
        try:
            for k in range(count):
                if k and k % 5_000 == 0:
                    self._close()
                    self._start(k // 5_000)
                counts[self._one(random)] += 1
        finally:
            tracemalloc.stop()
            self._close()
            logging.disable(logging.NOTSET)
        return counts

    def _one(self, random: random_.Random) -> str:
        name, to, content = random.choice(self.post.log)
        service = self.services[name]
        if random.random() < 0.5 and peek(content)[0] == "request" and service.run is not None:
            content = numbered(
                content, service.run.join.key.run, min(service.run.number + 1, 2**64 - 1)
            )  # not refused for its age
        if random.random() < 0.9:
            content = mutated(content, random)
        tracemalloc.reset_peak()
        before, began = tracemalloc.get_traced_memory()[0], time.monotonic()
        accepted = self._to_site(service, content) if to == "site" else self._to_coordinator(name, content)
        assert time.monotonic() - began < SECONDS
        assert tracemalloc.get_traced_memory()[1] - before < SPARE + 4 * len(content)
        return "accepted" if accepted else "refused"

    def _to_site(self, service: SiteService, content: bytes) -> bool:
        answer = service.answer(content)
        assert isinstance(answer, bytes)
        return refusal_in(answer) is None

    def _to_coordinator(self, name: str, content: bytes) -> bool:
        try:
            kind, key = peek(content)
            if kind == "introduction":
                Introduction.decode(content, self.network.graph.node_count)
            elif kind == "joined":
                read_joined(content, key)
            else:
                self.carrier.terms[int(name[-1])].decode_answer(content, key)
        except InputError:
            return False
        return True

    def _close(self) -> None:
        for service in self.services.values():
            service.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        print(dict(Fuzz(Path(place)).run(int(sys.argv[1]), seed=1)))
