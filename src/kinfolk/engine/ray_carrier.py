"""A carrier over the actors of Ray, which makes those that die again.

What an actor was asked since its last saved state is kept. A new one is given that state and asked the same again, so
the run goes on and ends as if nothing had happened.
"""

from __future__ import annotations

import contextlib
import uuid
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np

from kinfolk.checks import LearningError
from kinfolk.engine.hosting import Answered, Bundle, Program, Ticket, without_everybody
from kinfolk.engine.protocol import Algorithm, Arrays, Messages, Missing, Request, Scope, SiteId, SiteSnapshot
from kinfolk.engine.ray_actors import Pool, Surroundings, packed, unpacked
from kinfolk.network.network import Network
from kinfolk.network.site import Site, site_at
from kinfolk.typing import Ints

ATTEMPTS = 3  # to answer one request, each in a new process
LOGGED = 100  # requests that are repeated at most, where an actor is made again
LOGGED_BYTES = 2**26  # or so many bytes of messages, or twice the saved state


class _Log:
    """What makes the state of an actor again: a saved state, and what was asked since."""

    def __init__(self) -> None:
        self.saved: Any = None  # a reference to bytes; None: the run has begun since
        self.calls: list[_Call] = []
        self.settled = 0  # so many calls count; the others can still be undone
        self.size = self.saved_size = 0
        self.last = LOGGED_BYTES  # bytes of the last call; as much as may be, before there is one

    def add(self, call: _Call, size: int, final: bool) -> None:
        """A call that was answered; ``final``: it cannot be undone."""
        self.calls.append(call)
        self.size += size
        self.last = size
        if final:
            self.settle(True)

    def settle(self, keep: bool) -> None:
        """Calls since the last round count, or never happened."""
        if keep:
            self.settled = len(self.calls)
        else:
            del self.calls[self.settled :]

    def restart(self, saved: Any, size: int) -> None:
        """A state was saved, and what led to it can go."""
        self.saved, self.saved_size, self.calls, self.settled, self.size = saved, size, [], 0, 0

    @property
    def long(self) -> bool:
        """Whether it is time to save the state."""
        return len(self.calls) >= LOGGED or self.size > max(LOGGED_BYTES, 2 * self.saved_size)


class _Call(NamedTuple):
    """One call of an actor's ``exchange``."""

    settled: bool  # whether the round before counts
    requests: dict[SiteId, Request]  # with tickets that count the bundles
    bundles: list[Any]  # references

    @property
    def works(self) -> set[str]:
        """What is asked for."""
        return {request.work for request in self.requests.values()}


_Asked = dict[int, tuple[_Call, list[Any]]]  # of every actor that is asked: what, and references to its answer


class RayCarrier:
    """A carrier whose sites are at the actors of a pool."""

    sees_all = True
    whole = None  # sites are elsewhere

    def __init__(
        self, pool: Pool, network: Network, algorithm: Algorithm[Any], count: int, actors: int, lost: float
    ) -> None:
        self.pool, self.network, self.algorithm, self.lost = pool, network, algorithm, lost
        self.run = uuid.uuid4().hex
        self.hosts: list[int] = (np.arange(count) * actors // count).tolist()  # the actor of every site
        self.logs = [_Log() for _ in range(actors)]
        self._asked = [False] * actors  # since the last round
        self._settled = [False] * actors  # whether a round counts that the actor does not know of yet
        self._sent: list[_Asked] = []  # exchanges of a round that nobody has waited for
        self._rounds: list[list[_Asked]] = []  # rounds that nobody has waited for
        self._key = f"{_key_of(network)} in {count} on {actors}"
        self.sites, self._homes = _scopes_and_homes(network, count)
        for k in range(actors):
            self._try(k, self._set_up)
        weakref.finalize(self, _forget, pool, self.run).atexit = False

    # ------------------------------------------------------------------ an actor, from nothing to where it was

    def _set_up(self, k: int) -> None:
        """Sites, unless they are there, and the algorithm."""
        get, actor = self.pool.ray.get, self.pool.actor(k)
        own = [site for site, host in enumerate(self.hosts) if host == k]
        if not get(actor.holds.remote(self._key)):
            for site in own:
                content = site_at(self.network, len(self.sites), site)
                get(actor.hold.remote(self._key, site, packed(_bare(content))))
        homes = {site: self._homes[site] for site in own}
        several, nodes = len(self.sites) > 1, self.network.graph.node_count
        program = Program(self.algorithm, homes, self.algorithm.sends(self.network), self.hosts, nodes, several)
        get(actor.begin.remote(self.run, Surroundings.here(), packed(program)))

    def _repeat(self, k: int) -> None:
        """Bring a new actor to where the old one was."""
        self._set_up(k)
        get, log, actor = self.pool.ray.get, self.logs[k], self.pool.actor(k)
        if log.saved is not None:
            get(actor.load.remote(self.run, log.saved))
        for call in log.calls[: log.settled]:
            get(self._call(k, call)[0])
        get(actor.settle.remote(self.run, True))
        for call in log.calls[log.settled :]:
            get(self._call(k, call)[0])

    def _try(self, k: int, work: Callable[[int], Any]) -> Any:
        """What ``work`` gives at an actor; one that dies is made again. Errors of the algorithm are raised here."""
        errors = self.pool.ray.exceptions
        for attempt in range(ATTEMPTS):
            try:
                if attempt:
                    self.pool.renew(k)
                    self._repeat(k)
                return work(k)
            except errors.RayActorError as error:
                died = str(error)
            except errors.RayTaskError as error:
                raise error.cause from None
            except errors.ObjectLostError as error:
                raise LearningError(f"messages between actors went with a machine of the cluster ({error})") from None
        raise LearningError(f"the process of actor {k} died {ATTEMPTS} times in a row: {died}")

    # ------------------------------------------------------------------ the carrier

    def exchange(self, requests: Mapping[SiteId, Request]) -> dict[SiteId, Messages | Missing]:
        """Ask all actors at once."""
        answers: dict[SiteId, Messages | Missing] = {}
        for k, (call, refs) in self._ask(requests).items():
            answers |= self._answers(k, call, refs)
        return {site: answers[site] for site in requests}

    def _ask(self, requests: Mapping[SiteId, Request]) -> _Asked:
        calls = {k: self._call_of(k, requests) for k in sorted({self.hosts[site] for site in requests})}
        asked = {k: (call, self._call(k, call)) for k, call in calls.items()}
        for k in calls:
            self._asked[k], self._settled[k] = True, False
        return asked

    def _call_of(self, k: int, requests: Mapping[SiteId, Request]) -> _Call:
        """What an actor is asked; its tickets count the bundles that go along."""
        own = {site: without_everybody(request) for site, request in requests.items() if self.hosts[site] == k}
        loose = _loose(own)
        spare = self.pool.ray.put(loose) if loose else None
        bundles: dict[Any, int] = {}
        for site, request in own.items():
            inbox: dict[SiteId, Any] = {}
            for other, sent in request.inbox.items():
                bundle = sent.bundle if isinstance(sent, Ticket) else spare
                inbox[other] = Ticket(bundles.setdefault(bundle, len(bundles)), other, site)
            own[site] = replace(request, inbox=inbox)
        return _Call(self._settled[k], own, list(bundles))

    def _call(self, k: int, call: _Call) -> list[Any]:
        remote = self.pool.actor(k).exchange.options(num_returns=2 + max(self.hosts))
        refs: list[Any] = remote.remote(self.run, call.settled, call.requests, *call.bundles)
        return refs

    def _answers(self, k: int, call: _Call, asked: list[Any]) -> dict[SiteId, Messages | Missing]:
        """What the sites of an actor answer; tickets stand for what they send to each other."""
        waiting = [asked]

        def ask(k: int) -> tuple[list[Any], Answered]:
            refs = waiting.pop() if waiting else self._call(k, call)
            return refs, self.pool.ray.get(refs[0])

        refs, answered = self._try(k, ask)
        if call.works != {"measure"}:
            self.logs[k].add(call, answered.size, final=bool(call.works & {"begin", "resume"}))
        return {site: self._ticketed(site, answer, refs) for site, answer in answered.answers.items()}

    def _ticketed(self, site: SiteId, answer: Messages | Missing, refs: list[Any]) -> Messages | Missing:
        if isinstance(answer, Missing):
            return answer
        return answer._replace(neighbours=self._tickets(site, answer.neighbours, refs))

    def _tickets(self, site: SiteId, others: Iterable[SiteId], refs: list[Any]) -> Mapping[SiteId, Arrays]:
        """Stand for what a site sends to others, whose arrays go from actor to actor."""
        tickets = {other: Ticket(refs[1 + self.hosts[other]], site, other) for other in others}
        return cast(Mapping[SiteId, Arrays], tickets)

    def settle(self, *, keep: bool) -> bool:
        """That a round counts goes with the next request; that it does not, at once."""
        asked = [k for k in range(len(self.logs)) if self._asked[k]]
        self._asked = [False] * len(self.logs)
        for k in asked:
            self._settled[k] = keep
        if self._sent:
            self._rounds.append(self._sent)
            self._sent = []
            return True
        for k in asked:
            self.logs[k].settle(keep)
        if not keep:
            return all([self._try(k, self._undone) for k in asked])
        self._shorten_logs()
        return True

    def _shorten_logs(self) -> None:
        for k, log in enumerate(self.logs):
            if log.long:
                self._try(k, self._store)

    def _undone(self, k: int) -> bool:
        return bool(self.pool.ray.get(self.pool.actor(k).settle.remote(self.run, False)))

    def _store(self, k: int) -> None:
        """Save the state of an actor where it outlives it; what led to it need not be repeated any more."""
        actor, get = self.pool.actor(k), self.pool.ray.get
        get(actor.settle.remote(self.run, True))
        size, saved = actor.save.options(num_returns=2).remote(self.run)
        self.logs[k].restart(saved, get(size))

    # ------------------------------------------------------------------ rounds that nobody waits for

    @property
    def ahead(self) -> int:
        """As many rounds as their messages fit into what is kept for a crash."""
        return min(LOGGED, LOGGED_BYTES // max(1, *(log.last for log in self.logs)))

    def send(self, requests: Mapping[SiteId, Request]) -> dict[SiteId, Mapping[SiteId, Arrays]]:
        """Ask all actors; each begins when it has the messages of the others."""
        asked = self._ask(requests)
        self._sent.append(asked)
        out = {}
        for site in requests:
            _, refs = asked[self.hosts[site]]
            out[site] = self._tickets(site, np.unique(self._homes[site]).tolist(), refs)
        return out

    def wait(self) -> list[list[int | None]]:
        """Wait for all actors. If one fails, all go back to the last round that everybody has made."""
        rounds, self._rounds = self._rounds, []
        made: list[list[int | None]] = []
        for round_ in rounds:
            answered = [self._arrived(asked) for asked in round_]
            if None in answered:
                break
            made.append([self._noted(asked, found) for asked, found in zip(round_, answered, strict=True)])
            for log in self.logs:
                log.settle(True)
        if len(made) < len(rounds):
            self._go_back(rounds)
        self._shorten_logs()
        return made

    def _arrived(self, asked: _Asked) -> list[Answered] | None:
        """What all actors answered to an exchange; None: one failed, or somebody wants to be read."""
        try:
            found: list[Answered] = self.pool.ray.get([refs[0] for _, refs in asked.values()])
        except self.pool.ray.exceptions.RayError:
            return None
        answers = (answer for each in found for answer in each.answers.values())
        return found if all(isinstance(answer, Messages) and not answer.coordinator for answer in answers) else None

    def _noted(self, asked: _Asked, answered: list[Answered] | None) -> int | None:
        """Keep an exchange for a crash; its ``row_bytes``."""
        sizes = []
        for k, found in zip(asked, answered or [], strict=True):
            self.logs[k].add(asked[k][0], found.size, final=False)
            sizes += [answer.row_bytes for answer in found.answers.values() if isinstance(answer, Messages)]
        return sizes[0] if sizes else None

    def _go_back(self, rounds: list[list[_Asked]]) -> None:
        """Bring every actor to where its log ends, once none of them is at work any more."""
        heads = [refs[0] for round_ in rounds for asked in round_ for _, refs in asked.values()]
        self.pool.ray.wait(heads, num_returns=len(heads))
        for k in range(len(self.logs)):
            self._try(k, self._repeat)
        self._settled = [False] * len(self.logs)

    # ------------------------------------------------------------------ states

    def save(self, *, copy: bool) -> list[SiteSnapshot]:
        """Fetch the states of all sites."""
        out: dict[SiteId, SiteSnapshot] = {}
        for k in range(len(self.logs)):
            out |= self._try(k, self._fetched)
        return [out[site] for site in range(len(self.sites))]

    def _fetched(self, k: int) -> dict[SiteId, SiteSnapshot]:
        _, saved = self.pool.actor(k).save.options(num_returns=2).remote(self.run)
        found: dict[SiteId, SiteSnapshot] = unpacked(self.pool.ray.get(saved))
        return found

    def load(self, snapshots: Sequence[SiteSnapshot]) -> None:
        """Send every site its state."""
        for k, log in enumerate(self.logs):
            content = packed({site: snapshots[site] for site, host in enumerate(self.hosts) if host == k})
            log.restart(self.pool.ray.put(content), len(content))
            self._try(k, self._loaded)
        self._asked = [False] * len(self.logs)
        self._settled = [False] * len(self.logs)

    def _loaded(self, k: int) -> None:
        self.pool.ray.get(self.pool.actor(k).load.remote(self.run, self.logs[k].saved))


def _scopes_and_homes(network: Network, count: int) -> tuple[list[Scope], list[Ints]]:
    """Nodes and edges of every site, and where its neighbours live; the sites are made one at a time."""
    home = np.empty(network.graph.node_count, dtype=np.int64)
    scopes, outside = [], []
    for k in range(count):
        site = site_at(network, count, k)
        home[site.nodes] = k
        scopes.append(Scope(site.nodes, site.edges))
        outside.append(site.outside)
    return scopes, [home[nodes] for nodes in outside]


def _loose(requests: Mapping[SiteId, Request]) -> Bundle:
    """What is in no bundle yet, because a run goes on from a snapshot."""
    return {
        (other, site): sent
        for site, request in requests.items()
        for other, sent in request.inbox.items()
        if not isinstance(sent, Ticket)
    }


def _bare(site: Site) -> Site:
    """A site without what it has prepared."""
    return replace(site, _local_losses={}, _kept={})


_KEYS: weakref.WeakKeyDictionary[Network, str] = weakref.WeakKeyDictionary()


def _key_of(network: Network) -> str:
    """A name for a network, the same for as long as it lives."""
    return _KEYS.setdefault(network, uuid.uuid4().hex)


def _forget(pool: Pool, run: str) -> None:
    with contextlib.suppress(Exception):  # Ray may be gone
        for actor in pool.actors:
            actor.forget.remote(run)
