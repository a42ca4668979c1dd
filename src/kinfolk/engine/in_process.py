"""All sites in this process: the default engine, and the yardstick for every other one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np

from kinfolk.checks import AtLeast, Between, LearningError
from kinfolk.engine.protocol import Arrays, Coordinated, Inbox, Outbox, Reply, Turn, axes_of
from kinfolk.network.network import Network
from kinfolk.network.site import Site, sites_of
from kinfolk.typing import Bools, Ints

LOSSES = 2  # keys the draw of which messages get lost


@dataclass(frozen=True)
class InProcess:
    """Run every site in this process, one after the other.

    Parameters
    ----------
    sites : number of sites; one site holds all nodes and is the fastest, more of them show what a federation does.
    lost : share of messages between neighbours that get lost, to see what an unreliable network does. An edge is
        heard by both ends or by neither: a lost message silences its edge for the round.
    """

    sites: Annotated[int, AtLeast(1)] = 1
    lost: Annotated[float, Between(0, 1)] = 0.0

    def open(self, network: Network, algorithm: Any) -> Session:
        """Cut the network into sites and get ready to run ``algorithm`` on them."""
        return Session(network, algorithm, sites_of(network, self.sites), self.lost)


@dataclass
class Session:
    """A run in progress: the state of every site, what was said last, and the coordinator's memory."""

    network: Network
    algorithm: Any
    sites: list[Site]
    lost: float
    states: list[Any] = field(default_factory=list)
    said: list[Arrays] = field(default_factory=list)  # per site: what each own node last said to its neighbours
    memory: Any = None
    to_all: Arrays = field(default_factory=dict)
    to_each: dict[str, Any] = field(default_factory=dict)  # (nodes, ...), the last row addressed to each
    bytes_sent: int = 0

    def init(self, turn: Turn) -> None:
        """Round 0: every node makes its first state and speaks."""
        firsts = [self.algorithm.init(site, turn) for site in self.sites]
        self._begin(firsts, turn, None)

    def resume(self, turn: Turn) -> None:
        """Round 0 again, for a problem that has changed since: from the present state where the algorithm can."""
        resume = getattr(self.algorithm, "resume", None)
        if resume is None:
            return self.init(turn)
        firsts = [resume(site, state, turn) for site, state in zip(self.sites, self.states, strict=True)]
        return self._begin(firsts, turn, self.memory)

    def _begin(self, firsts: list[tuple[Any, Outbox]], turn: Turn, before: Any) -> None:
        """Take up the first states and words; ``before`` is the coordinator's memory of another problem."""
        self.to_all, self.to_each = {}, {}
        if isinstance(self.algorithm, Coordinated):
            self.memory = self.algorithm.start(turn, before)
        self.states = [state for state, _ in firsts]
        axes_of(self.states[0])
        self.said = [outbox.neighbours for _, outbox in firsts]
        self._coordinate([(site, outbox) for site, (_, outbox) in zip(self.sites, firsts, strict=True)], turn)

    def step(self, turn: Turn) -> None:
        """One round: those present hear, compute and speak; if one of them fails, nobody has moved."""
        active = np.zeros(self.network.graph.node_count, dtype=bool)
        active[turn.active] = True
        carries = self._carrying(active, turn)
        self._count_neighbours(carries)
        # Everybody hears before anybody computes: a step may overwrite the arrays it has sent.
        present = [self._as_of_round(site, active, carries) for site in self.sites]
        inboxes = [self._inbox(here, active) for here in present]
        before = list(self.states), list(self.said), self.bytes_sent
        spoken = []
        try:
            for k, (here, inbox) in enumerate(zip(present, inboxes, strict=True)):
                if here.node_count:
                    spoken.append((here, self._step_site(k, here, inbox, turn)))
        except LearningError:
            self.states, self.said, self.bytes_sent = before
            raise
        self._coordinate(spoken, turn)

    def finish(self, turn: Turn, effort: float) -> bool:
        """Instead of a round: take up the state that the algorithm proposes, if this process sees the whole network."""
        finish = getattr(self.algorithm, "finish", None)
        everybody = len(self.sites) == 1 and not self.lost and len(turn.active) == self.network.graph.node_count
        proposed = finish(self.sites[0], self.states[0], self.to_all, effort) if finish and everybody else None
        if proposed is None:
            return False
        self.states, self.said = [proposed[0]], [proposed[1].neighbours]
        return True

    def measure(self) -> tuple[dict[str, float], Any]:
        """Sums of ``measure`` over all nodes, and the error of every row of the test data (None without).

        It sees every node's last words, whoever was present; this is bookkeeping and counts no bytes.
        """
        everyone = np.ones(self.network.graph.node_count, dtype=bool)
        measures: list[Arrays] = []
        errors: list[Any] = []
        for site, state in zip(self.sites, self.states, strict=True):
            measures.append(self.algorithm.measure(site, state, self._inbox(site, everyone)))
            if site.test is not None and len(site.test.y):
                models = self.algorithm.models(site, state)
                errors.append(models.error(site.test.X, site.test.y, site.test.owner))
        totals = {name: float(self._by_node([m[name] for m in measures]).sum()) for name in measures[0]}
        return totals, np.concatenate(errors) if errors else None

    def snapshot(self) -> Snapshot:
        """Everything a later session needs to go on, as one site holding every node would have it."""
        state, said = self.states[0], self.said[0]
        if self.sites[0] is not self.network.site:
            parts = {name: [getattr(s, name) for s in self.states] for name in state._fields}
            state = type(state)(**{name: self._whole(parts[name], axis) for name, axis in axes_of(state).items()})
            said = {name: self._by_node([words[name] for words in self.said]) for name in said}
        return Snapshot(state, said, self.memory, self.to_all, self.to_each, self.bytes_sent)

    def restore(self, snapshot: Snapshot) -> None:
        """Go on from a snapshot, whatever number of sites it was taken on."""
        state, axes = snapshot.state, axes_of(snapshot.state)
        self.states = [
            type(state)(**{k: _part(getattr(state, k), axis, site.nodes, site.edges) for k, axis in axes.items()})
            for site in self.sites
        ]
        self.said = [{name: rows[site.nodes] for name, rows in snapshot.said.items()} for site in self.sites]
        self.memory, self.to_all, self.to_each = snapshot.memory, snapshot.to_all, dict(snapshot.to_each)
        self.bytes_sent = snapshot.bytes_sent

    # ------------------------------------------------------------------ one round, in parts

    def _carrying(self, active: Bools, turn: Turn) -> Bools | None:
        """Which edges of the graph carry this round; None for all."""
        graph = self.network.graph
        if active.all() and not self.lost:
            return None
        carries = active[graph.head] & active[graph.tail]
        if self.lost:
            # Either of the two messages may be lost; keyed by the round, the same for every number of sites.
            drawn = np.random.default_rng([LOSSES, turn.seed, turn.round]).random((graph.edge_count, 2))
            carries &= (drawn >= self.lost).all(axis=1)
        return carries

    def _as_of_round(self, site: Site, active: Bools, carries: Bools | None) -> Site:
        return site if carries is None else site.as_of_round(active[site.nodes], carries[site.edges])

    def _step_site(self, k: int, here: Site, inbox: Inbox, turn: Turn) -> Outbox:
        """Step one site; where somebody is away, only the part of the state that is at work is handed over."""
        site, state = self.sites[k], self.states[k]
        if here.part is None:
            self.states[k], outbox = self.algorithm.step(site, state, inbox, turn)
            self.said[k] = outbox.neighbours
            return outbox
        nodes, edges = here.part.nodes, here.part.edges
        axes = axes_of(state)
        part = type(state)(**{name: _part(getattr(state, name), axis, nodes, edges) for name, axis in axes.items()})
        new, outbox = self.algorithm.step(here, part, inbox, turn)
        self.states[k] = type(state)(
            **{
                name: _merged(getattr(state, name), getattr(new, name), axis, nodes, edges, here.live)
                for name, axis in axes.items()
            }
        )
        self.said[k] = {name: _replaced(self.said[k][name], nodes, rows) for name, rows in outbox.neighbours.items()}
        return outbox

    def _inbox(self, site: Site, active: Bools) -> Inbox:
        """What a site hears: a row of everyone elsewhere (NaN from nodes that are away), and the coordinator."""
        away = ~active[site.outside]
        heard = {}
        for name, first in self.said[0].items():
            words = [words[name] for words in self.said]
            rows = first[:0] if len(words) == 1 and not len(away) else self._by_node(words)[site.outside]
            if np.issubdtype(rows.dtype, np.floating):
                rows[away] = np.nan
            heard[name] = rows
        return Inbox(heard, self.to_all, {name: rows[site.nodes] for name, rows in self.to_each.items()})

    def _coordinate(self, spoken: list[tuple[Site, Outbox]], turn: Turn) -> None:
        """Let the coordinator read what was said to it, and answer."""
        words = spoken[0][1].coordinator if spoken else {}
        if not words:
            return
        speakers = np.concatenate([site.nodes for site, _ in spoken])
        order = np.argsort(speakers)
        heard = {name: np.concatenate([outbox.coordinator[name] for _, outbox in spoken])[order] for name in words}
        self.memory, reply = self.algorithm.combine(self.memory, heard, turn)
        self.to_all = reply.to_all
        for name, rows in reply.to_each.items():
            silent = np.zeros((self.network.graph.node_count, *rows.shape[1:]), dtype=rows.dtype)
            self.to_each[name] = _replaced(self.to_each.get(name, silent), speakers[order], rows)
        self._count_coordinator(heard, reply, len(speakers))

    # ------------------------------------------------------------------ counting bytes, as if every node were a site

    def _count_neighbours(self, carries: Bools | None) -> None:
        edges = self.network.graph.edge_count if carries is None else int(carries.sum())
        self.bytes_sent += 2 * edges * _row_bytes(self.said[0])

    def _count_coordinator(self, heard: Arrays, reply: Reply, speakers: int) -> None:
        broadcast = sum(np.asarray(values).nbytes for values in reply.to_all.values())
        self.bytes_sent += speakers * (_row_bytes(heard) + _row_bytes(reply.to_each) + broadcast)

    def _by_node(self, parts: list[Any]) -> Any:
        """What all sites have, in the order of the nodes."""
        whole = np.empty((self.network.graph.node_count, *parts[0].shape[1:]), dtype=parts[0].dtype)
        for site, part in zip(self.sites, parts, strict=True):
            whole[site.nodes] = part
        return whole

    def _whole(self, parts: list[Any], axis: str) -> Any:
        """A state field over the whole network; an edge that two sites know is taken from its smaller end."""
        if axis == "shared":
            return parts[0]
        if axis == "node":
            return self._by_node(parts)
        whole = np.empty((self.network.graph.edge_count, *parts[0].shape[1:]), dtype=parts[0].dtype)
        for site, part in zip(self.sites, parts, strict=True):
            whole[site.edges[site.smaller_end]] = part[site.smaller_end]
        return whole


@dataclass(frozen=True)
class Snapshot:
    """A run between two rounds: the state of the whole network and all that was said last."""

    state: Any
    said: Arrays
    memory: Any
    to_all: Arrays
    to_each: Mapping[str, Any]
    bytes_sent: int


def _part(value: Any, axis: str, nodes: Ints, edges: Ints) -> Any:
    """The rows of a state field that belong to some nodes and edges."""
    return value if axis == "shared" else value[nodes if axis == "node" else edges]


def _merged(old: Any, new: Any, axis: str, nodes: Ints, edges: Ints, live: Any) -> Any:
    """A state field after a round: rows of those present, and of the edges that carried, are new."""
    if axis == "shared":
        return new
    return _replaced(old, nodes, new) if axis == "node" else _replaced(old, edges[live], new[live])


def _replaced(old: Any, rows: Ints, new: Any) -> Any:
    changed = old.copy()
    changed[rows] = new
    return changed


def _row_bytes(arrays: Mapping[str, Any]) -> int:
    return sum(values[:1].nbytes for values in map(np.asarray, arrays.values()) if len(values))
