"""Session: a run in progress. It routes messages, lets the coordinator reply, and counts bytes; it holds no rows."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice, takewhile
from typing import Any

import numpy as np

from kinfolk.checks import LearningError
from kinfolk.engine.author_checks import check_read, check_reply
from kinfolk.engine.protocol import (
    Algorithm,
    Arrays,
    Carrier,
    Chaining,
    Coordinated,
    Inbox,
    Messages,
    Missing,
    Reply,
    Request,
    SiteId,
    SiteSnapshot,
    Snapshot,
    Spending,
    Turn,
    axes_of,
)
from kinfolk.engine.reordering import in_order_in_place
from kinfolk.engine.worker import ERROR, TESTED
from kinfolk.network.network import Network
from kinfolk.network.problem import Problem
from kinfolk.typing import Bools, Ints


class SiteAwayError(LearningError):
    """A site does not answer, and all of them would have to."""


LOSSES = 2  # keys the draw of which messages get lost
REPEATS = 3  # times that a round is asked for again which nobody has answered
log = logging.getLogger(__name__)


class Session:
    """One run over a carrier, whatever it is.

    Parameters
    ----------
    problem : Problem
        What everybody may know.
    algorithm : Algorithm
        What is run.
    carrier : Carrier
        Where the sites are.
    edges : callable, optional
        From the number of a round to a mask (edges,) of those that carry.
    everybody : bool
        Whether all nodes take part in every round.
    """

    def __init__(
        self,
        problem: Problem,
        algorithm: Algorithm[Any],
        carrier: Carrier,
        edges: Callable[[int], Bools] | None = None,
        *,
        everybody: bool = True,
    ) -> None:
        self.problem, self.algorithm, self.carrier, self.edges = problem, algorithm, carrier, edges
        # Whether every message comes; where states are not seen, sites may be away.
        self._complete = everybody and edges is None and not carrier.lost and carrier.sees_all
        graph = problem.graph
        self.home = np.empty(graph.node_count, dtype=np.int64)
        for k, scope in enumerate(carrier.sites):
            self.home[scope.nodes] = k
        self._chaining = carrier if isinstance(carrier, Chaining) else None
        self._replies = algorithm.replies(problem) if isinstance(algorithm, Coordinated) else None
        # Whether there is one site, whose nodes and edges are in the order of the network.
        self._in_order = len(carrier.sites) == 1 and bool((np.diff(carrier.sites[0].nodes) > 0).all())
        self._senders = _senders(graph.head, graph.tail, self.home, len(carrier.sites))
        self.outgoing: dict[SiteId, Mapping[SiteId, Arrays]] = {}  # what every site last sent to the others
        self.memory: Any = None
        self.to_all: Arrays = {}
        self.to_each: dict[str, Any] = {}  # (nodes, ...), the last row addressed to each
        self.bytes_sent = 0
        self.row_bytes = 0
        self.whole = True  # whether the sites are between two rounds
        self._old_rows: list[tuple[str, Ints, Any]] = []  # of ``to_each``, before this round
        self._mask: Bools | None = None  # the edges that carry in this round, as the user chose

    @property
    def whole_network(self) -> Network | None:
        """The network, where its rows and all states can be seen; None where they are at the sites."""
        return self.problem if self.carrier.sees_all and isinstance(self.problem, Network) else None

    # ------------------------------------------------------------------ rounds

    def begin(self, turn: Turn, *, warm: bool = False) -> None:
        """Round 0: every node makes its first state and sends. ``warm``: from the present state."""
        self.to_all, self.to_each = {}, {}
        if not warm:
            self.bytes_sent = self.row_bytes = 0
        if isinstance(self.algorithm, Coordinated):
            self.memory = self.algorithm.start(self.problem, turn, self.memory if warm else None)
        sites, count = range(len(self.carrier.sites)), self.algorithm.first_exchanges(self.memory)
        for exchange in range(count):
            here = replace(turn, exchange=exchange)
            answers = self._answers(
                {s: self._request("step", s, here) if exchange else self._first_request(s, here, warm) for s in sites}
            )
            self._deliver(answers)
            self._coordinate(answers, here)
        if count > 1:
            self.carrier.settle(keep=True)

    def step(self, turn: Turn) -> None:
        """One round, of one exchange or several. If a site fails, nobody has moved (see ``whole``)."""
        self._old_rows, self._mask = [], None if self.edges is None else self.edges(turn.round)
        known = set(self.to_each)
        before = known, self.memory, self.to_all, self.outgoing, self.bytes_sent, self.row_bytes
        away, unheard, repeats = set[SiteId](), set[SiteId](), 0
        while True:
            try:
                missing = self._round(turn, away, unheard)
            except LearningError:
                self._back(before)
                raise
            if not missing:
                self.carrier.settle(keep=True)
                return
            self._back(before)
            unheard |= {site for site, answer in missing.items() if answer.letters}
            away |= {site for site, answer in missing.items() if not answer.letters}
            if away.issuperset(self.home[turn.active].tolist()):
                away, unheard, repeats = set(), set(), repeats + 1
            if repeats > REPEATS:
                raise LearningError(f"no site answered in round {turn.round:,}")

    def ahead(self, turns: Iterable[Turn]) -> int:
        """The first of some rounds, without waiting for the answers of each, where the carrier can do that.

        Parameters
        ----------
        turns : iterable of Turn
            Rounds after which nobody looks.

        Returns
        -------
        int
            How many were made. If the next one fails, ``step`` tells why.
        """
        carrier = self._chaining
        if carrier is None:
            return 0
        unread = takewhile(lambda turn: not self._is_read(turn.round), turns)
        states, edges = [self.outgoing], []
        for turn in islice(unread, carrier.ahead):
            self._mask, counts = None if self.edges is None else self.edges(turn.round), []
            for exchange in range(self.algorithm.exchanges(turn.round, self.memory)):
                here = replace(turn, exchange=exchange)
                carries = self._carrying(here)
                counts.append(self._carrying_count(carries))
                self.outgoing = {**self.outgoing, **carrier.send(self._requests(here, carries))}
            carrier.settle(keep=True)
            states.append(self.outgoing)
            edges.append(counts)
        made = carrier.wait()
        self.outgoing = states[len(made)]
        for counts, sizes in zip(edges, made, strict=False):
            for count, size in zip(counts, sizes, strict=True):
                self.bytes_sent += count * self.row_bytes
                self.row_bytes = self.row_bytes if size is None else size
        return len(made)

    def _is_read(self, round_: int) -> bool:
        return isinstance(self.algorithm, Coordinated) and self.algorithm.reads(round_)

    def _round(self, turn: Turn, away: set[SiteId], unheard: set[SiteId]) -> dict[SiteId, Missing]:
        """All exchanges of a round; who did not answer, or cannot be heard.

        Sites that are away do not take part. Those that are unheard do, but no edge carries between them and others.
        """
        active = turn.active if not away else turn.active[~np.isin(self.home[turn.active], list(away))]
        for exchange in range(self.algorithm.exchanges(turn.round, self.memory)):
            here = Turn(turn.round, active, turn.seed, exchange)
            carries = self._carrying(here, unheard)
            self.bytes_sent += self._carrying_count(carries) * self.row_bytes
            answers = self.carrier.exchange(self._requests(here, carries))
            missing = {site: answer for site, answer in answers.items() if isinstance(answer, Missing)}
            for site, answer in missing.items():
                log.warning("round %d goes on without site %d: %s", turn.round, site, answer.why)
            if missing:
                return missing
            messages = {site: answer for site, answer in answers.items() if isinstance(answer, Messages)}
            check_read(self.algorithm, messages, turn.round)
            self._deliver(messages)
            self._coordinate(messages, here)
        return {}

    def _back(self, before: Any) -> None:
        """Undo a round, here and at the sites."""
        known, self.memory, self.to_all, self.outgoing, self.bytes_sent, self.row_bytes = before
        for name, where, rows in reversed(self._old_rows):
            self.to_each[name][where] = rows
        self.to_each = {name: rows for name, rows in self.to_each.items() if name in known}
        self._old_rows = []
        self.whole = self.carrier.settle(keep=False) and self.whole

    def propose(self, turn: Turn, effort: float) -> bool:
        """Instead of a round: the state that the algorithm proposes; to be settled by the caller."""
        whole = self.carrier.sees_all and len(self.carrier.sites) == 1 and not self.carrier.lost and self.edges is None
        if not whole or len(turn.active) < self.problem.graph.node_count:
            return False
        answer = self.carrier.exchange({0: self._request("finish", 0, turn, effort=effort)})[0]
        return isinstance(answer, Messages)

    def measure(self) -> tuple[dict[str, float], float | None]:
        """Sums of ``measure`` over all nodes, and the mean error on the test data (None without).

        It uses every node's last messages, whoever was present; this is bookkeeping and counts no bytes.
        """
        turn = Turn(0, np.arange(self.problem.graph.node_count), 0)
        sites = range(len(self.carrier.sites))
        answers = self._answers({site: self._request("measure", site, turn) for site in sites})
        totals = {
            name: float(self._by_node([answers[site].scalars[name] for site in sites]).sum())
            for name in answers[0].scalars
        }
        if TESTED not in totals:
            return totals, None
        tested, wrong = totals.pop(TESTED), totals.pop(ERROR)
        return totals, wrong / tested if tested else np.nan

    def overview(self) -> Mapping[str, float]:
        """What the algorithm measures of all nodes at once, where that can be seen."""
        asked = type(self.algorithm).overview is not Algorithm.overview
        if not asked or self.whole_network is None:
            return {}
        return self.algorithm.overview(self.whole_network.site, self.snapshot(copy_=False).state)

    @property
    def privacy(self) -> Any:
        """What noise promises, a ``Privacy``, where the carrier knows; None without noise."""
        return self.carrier.privacy(self.problem.names) if isinstance(self.carrier, Spending) else None

    def certificate(self, enough: float = 0.0) -> Any:
        """The algorithm's proof of how good the answer is, where all states can be seen; None without one."""
        asked = type(self.algorithm).certify is not Algorithm.certify
        if not asked or self.whole_network is None:
            return None
        parts, site = self.carrier.save(copy=False), self.carrier.whole
        if site is not None:  # in the order of the rounds: passes over the edges are local, and nothing is copied
            state = parts[0].state
        else:
            site, state = self.whole_network.site, self.snapshot(copy_=False).state
        nothing = {name: rows[:0] for name, rows in parts[0].sent.items()}
        to_each = {name: rows[site.nodes] for name, rows in self.to_each.items()}
        return self.algorithm.certify(site, state, Inbox(nothing, self.to_all, to_each), enough)

    # ------------------------------------------------------------------ one exchange, in parts

    def _answers(self, requests: Mapping[SiteId, Request]) -> dict[SiteId, Messages]:
        """What every site answers; all of them must."""
        out = {}
        for site, answer in self.carrier.exchange(requests).items():
            if isinstance(answer, Missing):
                raise SiteAwayError(f"site {site} did not answer: {answer.why}")
            out[site] = answer
        return out

    def _requests(self, turn: Turn, carries: Bools | None) -> dict[SiteId, Request]:
        """What every site with somebody present is asked for; everybody receives before anybody computes."""
        sites = range(len(self.carrier.sites))
        if carries is None:
            return {site: self._request("step", site, turn) for site in sites}
        present = np.unique(self.home[turn.active]).tolist()
        return {site: self._request("step", site, turn, carries[self.carrier.sites[site].edges]) for site in present}

    def _first_request(self, site: SiteId, turn: Turn, warm: bool) -> Request:
        carries = None if self._complete else np.ones(len(self.carrier.sites[site].edges), dtype=bool)
        return Request("resume" if warm else "begin", turn, carries=carries)

    def _request(
        self, work: Any, site: SiteId, turn: Turn, carries: Bools | None = None, effort: float = 0.0
    ) -> Request:
        inbox = {other: self.outgoing[other][site] for other in self._senders[site]}
        nodes = self.carrier.sites[site].nodes
        to_each = {name: rows[nodes] for name, rows in self.to_each.items()}
        return Request(work, turn, inbox, self.to_all, to_each, carries, effort)

    def _deliver(self, answers: Mapping[SiteId, Messages]) -> None:
        """Keep what the sites sent to each other until it is received."""
        self.outgoing = {**self.outgoing, **{site: answer.neighbours for site, answer in answers.items()}}
        self.row_bytes = next((answer.row_bytes for answer in answers.values()), self.row_bytes)

    def _carrying(self, turn: Turn, unheard: Collection[SiteId] = ()) -> Bools | None:
        """Which edges of the graph carry in this exchange; None for all."""
        graph, lost = self.problem.graph, self.carrier.lost
        if len(turn.active) == graph.node_count and not lost and self._mask is None and not unheard:
            return None
        active = np.zeros(graph.node_count, dtype=bool)
        active[turn.active] = True
        carries = active[graph.head] & active[graph.tail]
        if self._mask is not None:
            carries &= self._mask
        if unheard:
            ends = self.home[graph.head], self.home[graph.tail]
            carries &= (ends[0] == ends[1]) | ~np.isin(ends, list(unheard)).any(axis=0)
        if lost:
            # Either of the two messages may be lost; keyed by the round, the same for every number of sites.
            key = [LOSSES, turn.seed, turn.round, *([turn.exchange] if turn.exchange else [])]
            carries &= (np.random.default_rng(key).random((graph.edge_count, 2)) >= lost).all(axis=1)
        return carries

    def _coordinate(self, answers: Mapping[SiteId, Messages], turn: Turn) -> None:
        """Let the coordinator read what was sent to it, and answer."""
        messages = [answer for answer in answers.values() if answer.coordinator]
        if not messages or not isinstance(self.algorithm, Coordinated):
            return
        senders = np.concatenate([answer.senders for answer in messages])
        order = np.argsort(senders)
        sent = {
            name: np.concatenate([answer.coordinator[name] for answer in messages])[order]
            for name in messages[0].coordinator
        }
        self.memory, reply = self.algorithm.combine(self.memory, sent, replace(turn, active=senders[order]))
        if self._replies is not None:
            check_reply(self.algorithm, reply, self._replies)
        self.to_all = reply.to_all
        for name, rows in reply.to_each.items():
            if name not in self.to_each:
                self.to_each[name] = np.zeros((self.problem.graph.node_count, *rows.shape[1:]), dtype=rows.dtype)
            self._old_rows.append((name, senders[order], self.to_each[name][senders[order]]))
            self.to_each[name][senders[order]] = rows
        self._count_coordinator(sent, reply, len(senders))

    # ------------------------------------------------------------------ counting bytes, as if every node were a site

    def _carrying_count(self, carries: Bools | None) -> int:
        """Messages between neighbours in an exchange: two for every edge that carries."""
        return 2 * (self.problem.graph.edge_count if carries is None else int(carries.sum()))

    def _count_coordinator(self, sent: Arrays, reply: Reply, senders: int) -> None:
        broadcast = sum(np.asarray(values).nbytes for values in reply.to_all.values())
        self.bytes_sent += senders * (_row_bytes(sent) + _row_bytes(reply.to_each) + broadcast)

    # ------------------------------------------------------------------ snapshots, where states may be collected

    def snapshot(self, *, copy_: bool = True) -> Snapshot:
        """Everything a later session needs to go on, as one site holding every node would have it."""
        parts = self.carrier.save(copy=copy_)
        state = parts[0].state
        axes = axes_of(state)
        if not self._in_order:
            state = type(state)(
                **{
                    name: self._whole([getattr(part.state, name) for part in parts], axis)
                    for name, axis in axes.items()
                }
            )
        sent = {name: self._by_node([part.sent[name] for part in parts]) for name in parts[0].sent}
        return self._snapshot(state, sent, copy.deepcopy(self.memory) if copy_ else self.memory)

    def _snapshot(self, state: Any, sent: Arrays, memory: Any) -> Snapshot:
        to_each = {name: rows.copy() for name, rows in self.to_each.items()}
        return Snapshot(state, sent, memory, dict(self.to_all), to_each, self.bytes_sent, self.row_bytes)

    def last_snapshot(self) -> Snapshot:
        """A snapshot after which this session is over: a state that is stepped in place is put in order in place, too.

        So the state of a single large site is never there twice.
        """
        if self._in_order or len(self.carrier.sites) > 1 or not self.algorithm.steps_in_place:
            return self.snapshot(copy_=False)
        (nodes, edges), (part,) = self.carrier.sites[0], self.carrier.save(copy=False)
        axes, self.whole = axes_of(part.state), False
        fields = [(getattr(part.state, name), nodes if axis == "node" else edges) for name, axis in axes.items()]
        ordered = in_order_in_place([*fields, *((rows, nodes) for rows in part.sent.values())])
        state = type(part.state)(*ordered[: len(axes)])
        return self._snapshot(state, dict(zip(part.sent, ordered[len(axes) :], strict=True)), self.memory)

    def restore(self, snapshot: Snapshot) -> None:
        """Go on from a snapshot, which stays as it is, whatever number of sites it was taken on."""
        state, axes = snapshot.state, axes_of(snapshot.state)
        parts = []
        for nodes, edges in self.carrier.sites:
            fields = {
                name: np.array(getattr(state, name)[nodes if axis == "node" else edges]) for name, axis in axes.items()
            }
            parts.append(
                SiteSnapshot(
                    type(state)(**fields), {name: np.array(rows[nodes]) for name, rows in snapshot.sent.items()}
                )
            )
        self.carrier.load(parts)
        self.memory = copy.deepcopy(snapshot.memory)
        self.to_all = dict(snapshot.to_all)
        self.to_each = {name: rows.copy() for name, rows in snapshot.to_each.items()}
        self.bytes_sent, self.row_bytes = snapshot.bytes_sent, snapshot.row_bytes
        self.outgoing = self._outgoing(snapshot.sent)
        self.whole = True

    def _outgoing(self, sent: Arrays) -> dict[SiteId, Mapping[SiteId, Arrays]]:
        """What every site had sent to the others, from what every node had sent."""
        graph = self.problem.graph
        out: dict[SiteId, Mapping[SiteId, Arrays]] = {site: {} for site in range(len(self.carrier.sites))}
        if len(self.carrier.sites) == 1:
            return out
        ends = np.concatenate([graph.head, graph.tail])
        to = self.home[np.concatenate([graph.tail, graph.head])]
        crossing = self.home[ends] != to
        pairs = np.unique(np.stack([self.home[ends[crossing]], to[crossing], ends[crossing]]), axis=1)
        cuts = np.flatnonzero((np.diff(pairs[:2], axis=1) != 0).any(axis=0)) + 1
        for group in np.split(pairs, cuts, axis=1) if pairs.shape[1] else []:
            rows = {name: values[group[2]] for name, values in sent.items()}
            out[int(group[0, 0])] = {**out[int(group[0, 0])], int(group[1, 0]): rows}
        return out

    def _by_node(self, parts: Sequence[Any]) -> Any:
        """What all sites have, in the order of the nodes."""
        if self._in_order:
            return parts[0]
        whole = np.empty((self.problem.graph.node_count, *parts[0].shape[1:]), dtype=parts[0].dtype)
        for scope, part in zip(self.carrier.sites, parts, strict=True):
            whole[scope.nodes] = part
        return whole

    def _whole(self, parts: Sequence[Any], axis: str) -> Any:
        """A state field over the whole network; an edge that two sites know is taken from its smaller end."""
        if axis == "node":
            return self._by_node(parts)
        graph = self.problem.graph
        whole = np.empty((graph.edge_count, *parts[0].shape[1:]), dtype=parts[0].dtype)
        if len(parts) == 1:
            whole[self.carrier.sites[0].edges] = parts[0]
            return whole
        for site, (scope, part) in enumerate(zip(self.carrier.sites, parts, strict=True)):
            smaller = self.home[graph.head[scope.edges]] == site
            whole[scope.edges[smaller]] = part[smaller]
        return whole


def _senders(head: Ints, tail: Ints, home: Ints, count: int) -> list[list[SiteId]]:
    """For every site, the others that an edge joins it with."""
    if count == 1:
        return [[]]
    ends = np.concatenate([np.stack([home[head], home[tail]]), np.stack([home[tail], home[head]])], axis=1)
    pairs = np.unique(ends[:, ends[0] != ends[1]], axis=1)
    return [pairs[1, pairs[0] == site].tolist() for site in range(count)]


def _row_bytes(arrays: Arrays) -> int:
    return sum(values[:1].nbytes for values in map(np.asarray, arrays.values()) if len(values))
