"""Site: what one process may see, and the graph calculus on it."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol, Self, TypeVar

import numpy as np
import scipy.sparse
from scipy.sparse.csgraph import reverse_cuthill_mckee

from kinfolk import kernels
from kinfolk.network.data import Data, in_order
from kinfolk.network.graph import Extremes
from kinfolk.network.network import Network
from kinfolk.network.problem import Problem
from kinfolk.typing import Bools, Floats, Ints


class Takes(Protocol):
    """The losses of some nodes, of which a part can be taken."""

    def take(self, nodes: Ints) -> Self:
        """Those of some of the nodes."""


L = TypeVar("L", bound=Takes)
L_co = TypeVar("L_co", bound=Takes, covariant=True)


class Binds(Protocol[L_co]):
    """A loss: with the data of some nodes it gives their local losses."""

    def bind(self, data: Data) -> L_co:
        """The local losses."""


REMEMBERED_LOSSES = 4
EDGE_BLOCK = 8_192
ORDERED_FROM = 5_000  # nodes; smaller networks fit into a processor's cache as they are


@dataclass(frozen=True, eq=False)
class Site:
    """Some nodes, their data, the edges that touch them, and nothing else.

    Own nodes have the local numbers 0 .. own − 1; the neighbours that live elsewhere follow. Each edge is stored
    once, from its smaller to its larger end in the whole network.

    In a round, a program is handed the site *as it is this round*: nodes that are away are gone from it, and an
    edge that does not carry (an end is away, a message was lost) is dead: its difference is zero, it is left out
    of neighbour sums, and what the state holds for it stays as it was. So a program needs no masks of its own.
    """

    nodes: Ints  # (own,) numbers in the whole network
    outside: Ints  # (foreign,) numbers of neighbours that live elsewhere, ascending
    edges: Ints  # (edges,) numbers in the whole graph
    head: Ints  # (edges,) local numbers
    tail: Ints  # (edges,) local numbers
    weights: Floats  # (edges,) A_ij
    live: Bools | None  # (edges,) None: all carry
    degrees: Ints  # (own + foreign,) numbers of neighbours
    colours: Ints  # (own,) neighbours differ
    colour_count: int  # in the whole graph
    extremes: Extremes  # of the whole graph
    data: Data  # of own nodes
    informed: Bools  # (own,) has data, or is connected to a node that has
    public: Floats | None = None  # (points, features), or (own + foreign, points, features): a set per node
    names: Any = ()  # (own,) what ``Problem.names_of`` gives
    classes: Floats | None = None  # the labels that occur anywhere in the network, if these are few whole numbers
    test: Data | None = None  # of own nodes
    _local_losses: dict[Any, Any] = field(default_factory=dict, repr=False)
    _kept: dict[Any, Any] = field(default_factory=dict, repr=False)
    part: Part | None = field(default=None, repr=False)  # of which site this is what a round sees

    @property
    def node_count(self) -> int:
        """Number of own nodes."""
        return len(self.nodes)

    @property
    def own_degrees(self) -> Ints:
        """Number of neighbours of every own node."""
        return self.degrees[: self.node_count]

    @cached_property
    def root_degrees(self) -> Floats:
        """(own,) Σ_j √A_ij."""
        return self.edge_sum(np.sqrt(self.weights))

    @property
    def edge_blocks(self) -> Iterator[slice]:
        """The edges in blocks whose temporaries fit into a processor's cache."""
        return (slice(first, first + EDGE_BLOCK) for first in range(0, len(self.head), EDGE_BLOCK))

    @cached_property
    def incidence(self) -> scipy.sparse.csr_array:
        """(own, edges): +1 at the head, −1 at the tail."""
        ends = np.concatenate([self.head, self.tail])
        signs = np.repeat([1.0, -1.0], len(self.head))
        columns = np.tile(np.arange(len(self.head)), 2)
        own = ends < self.node_count
        shape = (self.node_count, len(self.head))
        return scipy.sparse.csr_array((signs[own], (ends[own], columns[own])), shape=shape)

    def values(self, own: Floats, received: Floats) -> Floats:
        """What is known of own nodes and of neighbours elsewhere, by local number."""
        return np.concatenate([own, received]) if len(received) else np.ascontiguousarray(own)

    def difference(self, own: Floats, received: Floats) -> Floats:
        """D w: the value at the smaller end minus the value at the larger, per edge; zero where the edge is dead."""
        return self.difference_on(slice(None), self.values(own, received))

    def difference_on(self, block: slice, values: Floats) -> Floats:
        """``difference`` on a block of edges, of ``values`` by local number."""
        head, tail = self.head[block], self.tail[block]
        change = kernels.difference(values, head, tail) if values.ndim == 2 else values[head] - values[tail]
        if self.live is not None:
            change[~self.live[block]] = 0.0
        return change

    @cached_property
    def missed(self) -> Floats:
        """(own,) number of messages of neighbours that do not come this round."""
        if self.live is None:
            return np.broadcast_to(0.0, self.node_count)
        return self.edge_sum((~self.live).astype(np.float64))

    def carried(self, new: Floats, old: Floats, block: slice = slice(None)) -> Floats:
        """``new`` where the edge carries, ``old`` where it is dead; both on a block of edges."""
        return new if self.live is None else np.where(self.live[block][:, None], new, old)

    def divergence(self, flow: Floats) -> Floats:
        """Dᵀu: what flows out of every own node, over all its edges."""
        out = np.zeros((len(self.degrees), math.prod(flow.shape[1:])))
        kernels.add_flows(out, flow.reshape(len(flow), out.shape[1]), self.head, self.tail)
        return out[: self.node_count].reshape(self.node_count, *flow.shape[1:])

    def add_divergence(self, out: Floats, flow: Floats) -> None:
        """Add Dᵀu to ``out`` (own, ...), where no neighbour lives elsewhere."""
        kernels.add_flows(out, flow, self.head, self.tail)

    def neighbour_sum(self, own: Floats, received: Floats, weights: Floats | None = None) -> Floats:
        """Σ_j A_ij w_j over the neighbours with values, per own node; ``weights`` (edges,) replace the A_ij."""
        values = self.values(own, received)
        return _times(self.adjacency if weights is None else self._adjacency(weights), values)

    @cached_property
    def adjacency(self) -> scipy.sparse.csr_array:
        """(own, own + foreign) weights A_ij of the live edges."""
        return self._adjacency(self.weights)

    def _adjacency(self, weights: Floats) -> scipy.sparse.csr_array:
        """(own, own + foreign) weights of the live edges; a row lists them in the order of the site's edges."""
        ends = np.stack([self.head, self.tail], axis=1).ravel()
        others = np.stack([self.tail, self.head], axis=1).ravel()
        counted = ends < self.node_count
        if self.live is not None:
            counted &= np.repeat(self.live, 2)
        values = np.repeat(weights, 2)[counted]
        order = np.argsort(ends[counted], kind="stable")
        starts = np.searchsorted(ends[counted][order], np.arange(self.node_count + 1))
        shape = (self.node_count, self.node_count + len(self.outside))
        return scipy.sparse.csr_array((values[order], others[counted][order], starts), shape=shape)

    def edge_sum(self, per_edge: Floats) -> Floats:
        """Sum a number per edge at both ends, per own node; all edges of an own node count, dead or alive."""
        values = np.ascontiguousarray(per_edge, dtype=np.float64)
        return kernels.edge_sum(values, self.head, self.tail, len(self.degrees))[: self.node_count]

    def at_smaller_end(self, per_edge: Floats) -> Floats:
        """Sum a number per edge at its smaller end, so that over all sites every edge counts once."""
        sums = np.bincount(self.head, per_edge, minlength=self.node_count)
        return sums[: self.node_count].astype(np.float64)

    def local_losses(self, loss: Binds[L]) -> L:
        """The local losses L_i: ``loss`` bound to the data of every own node, prepared once."""
        if loss not in self._local_losses:
            if len(self._local_losses) == REMEMBERED_LOSSES:
                self._local_losses.pop(next(iter(self._local_losses)))
            self._local_losses[loss] = loss.bind(self.data) if self.part is None else self.part.local_losses(loss)
        out: L = self._local_losses[loss]
        return out

    def kept(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """What ``make`` gives, prepared once and kept under ``key`` for as long as this site lives."""
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    def as_of_round(self, present: Bools, live: Bools) -> Site:
        """This site with only the ``present`` own nodes at work and only the ``live`` edges carrying."""
        kept = np.flatnonzero(present)
        everyone = np.concatenate([self.nodes, self.outside])
        touching = np.flatnonzero(self.edges_touching(present))
        head, tail = everyone[self.head[touching]], everyone[self.tail[touching]]
        nodes = self.nodes[kept]
        numbered = _LocalNumbers(nodes, head, tail)
        return Site(
            nodes=nodes,
            outside=numbered.outside,
            edges=self.edges[touching],
            head=numbered.head,
            tail=numbered.tail,
            weights=self.weights[touching],
            live=live[touching],
            degrees=self.degrees[_positions(numbered.everyone, everyone)],
            colours=self.colours[kept],
            colour_count=self.colour_count,
            extremes=self.extremes,
            data=self.data.take(kept),
            informed=self.informed[kept],
            public=self._public_of(numbered.everyone, everyone),
            names=self.names[kept],
            classes=self.classes,
            test=None,
            part=Part(self, kept, touching),
        )

    @cached_property
    def own_ends(self) -> Bools:
        """(2 edges,) whether an end of an edge is ours: edge by edge, its smaller end first."""
        out: Bools = np.stack([self.head, self.tail], axis=1).ravel() < self.node_count
        return out

    def with_own_neighbours(self) -> Site:
        """This site as if over every edge an own node had a neighbour elsewhere that no other node knows.

        For what the two ends of an edge know of each other, which need not be what others know of them. The neighbours
        are in the order of ``own_ends``.
        """
        ends, others = np.stack([self.head, self.tail], axis=1), np.stack([self.tail, self.head], axis=1)
        others = others.ravel()[self.own_ends]
        numbers, known = np.arange(len(others)), np.concatenate([np.arange(self.node_count), others])
        public = self.public if self.public is None or self.public.ndim == 2 else self.public[known]
        return replace(
            self, outside=numbers, edges=numbers, head=ends.ravel()[self.own_ends], tail=self.node_count + numbers,
            weights=np.repeat(self.weights, 2)[self.own_ends], live=None, degrees=self.degrees[known], public=public,
            _kept={},
        )  # fmt: skip

    def _public_of(self, some: Ints, everyone: Ints) -> Floats | None:
        """The public points of some of the nodes that this site knows."""
        if self.public is None or self.public.ndim == 2:
            return self.public
        return self.public[_positions(some, everyone)]

    def edges_touching(self, present: Bools) -> Bools:
        """(edges,) whether an edge touches a present own node."""
        at_work = np.concatenate([present, np.zeros(len(self.outside), dtype=bool)])
        out: Bools = at_work[self.head] | at_work[self.tail]
        return out


def _times(matrix: scipy.sparse.csr_array, values: Floats) -> Floats:
    """matrix @ values along the first axis, whatever the others are."""
    flat = matrix @ values.reshape(len(values), math.prod(values.shape[1:]))
    out: Floats = flat.reshape(matrix.shape[0], *values.shape[1:])
    return out


@dataclass(frozen=True, eq=False)
class Part:
    """The nodes and edges of a site that a round sees, by their places in it."""

    site: Site
    nodes: Ints
    edges: Ints

    def local_losses(self, loss: Binds[L]) -> L:
        """The local losses of these nodes."""
        return self.site.local_losses(loss).take(self.nodes)


def _public(problem: Problem, everyone: Ints) -> Floats | None:
    """The public points that a site knows: its own and those of its neighbours elsewhere."""
    if problem.public is None:
        return None
    return problem.public.points[everyone] if problem.public.per_node else problem.public.points


class _LocalNumbers:
    """Local numbers for the ends of edges: own nodes first, then the neighbours elsewhere."""

    def __init__(self, nodes: Ints, head: Ints, tail: Ints) -> None:
        count = 1 + max((int(numbers.max()) for numbers in (nodes, head, tail) if len(numbers)), default=0)
        elsewhere = np.zeros(count, dtype=bool)
        elsewhere[head] = elsewhere[tail] = True
        elsewhere[nodes] = False
        self.outside = np.flatnonzero(elsewhere)
        self.everyone = np.concatenate([nodes, self.outside])
        place = np.empty(count, dtype=np.int64)
        place[self.everyone] = np.arange(len(self.everyone))
        self.head, self.tail = place[head], place[tail]


def _positions(values: Ints, among: Ints) -> Ints:
    """Where each of ``values`` stands in ``among``, which holds it once."""
    order = np.argsort(among)
    return order[np.searchsorted(among, values, sorter=order)]


def sites_of(network: Network, count: int) -> list[Site]:
    """Cut a network into ``count`` sites of consecutive nodes (fewer if there are fewer nodes).

    A single large site numbers its nodes such that neighbours lie close to each other in memory.

    >>> from kinfolk import graphs
    >>> network = Network(graphs.chain(4), [([[1.0]], [1.0])] * 4)
    >>> [site.nodes.tolist() for site in sites_of(network, 2)], sites_of(network, 2)[0].outside.tolist()
    ([[0, 1], [2, 3]], [2])
    """
    return [site_at(network, count, k) for k in range(min(count, network.graph.node_count))]


def site_at(network: Network, count: int, k: int) -> Site:
    """One of the sites that ``sites_of`` gives, without making the others."""
    if count == 1:
        return network.site if network.graph.node_count < ORDERED_FROM else ordered_site(network)
    blocks = np.array_split(np.arange(network.graph.node_count), min(count, network.graph.node_count))
    return site_of(network, blocks[k])


def ordered_site(network: Network) -> Site:
    """The site of all nodes in reverse Cuthill–McKee order, its edges by their heads: passes over it are local.

    >>> from kinfolk import graphs
    >>> ordered_site(Network(graphs.star(4), [None, None, None, ([[1.0]], [1.0])])).nodes.tolist()
    [3, 2, 0, 1]
    """
    graph = network.graph
    nodes = reverse_cuthill_mckee(graph.to_sparse(), symmetric_mode=True).astype(np.int64)
    place = np.empty_like(nodes)
    place[nodes] = np.arange(len(nodes))
    site = _site(network, nodes, np.lexsort((place[graph.tail], place[graph.head])))
    return replace(site, edges=short(site.edges), head=short(site.head), tail=short(site.tail))


def short(numbers: Ints) -> Ints:
    """Numbers from 0 on in 32 bits, where they fit: a large site has three for every edge."""
    return numbers.astype(np.int32) if numbers.max(initial=0) <= np.iinfo(np.int32).max else numbers


def site_of(network: Network, nodes: Ints) -> Site:
    """The site of a block of consecutive nodes."""
    graph = network.graph
    first, last = nodes[0], nodes[-1]
    mine = ((graph.head >= first) & (graph.head <= last)) | ((graph.tail >= first) & (graph.tail <= last))
    return _site(network, nodes, np.flatnonzero(mine))


def _site(network: Network, nodes: Ints, edges: Ints) -> Site:
    """The site of some nodes and the edges that touch them, in the orders given."""
    test = None if network.test is None else network.test.take(nodes)
    return replace(scene_of(network, nodes, edges), data=network.data.take(nodes), test=test)


def scene_of(problem: Problem, nodes: Ints, edges: Ints) -> Site:
    """A site without its rows: what a coordinator can tell those who have them.

    >>> from kinfolk import graphs
    >>> chain = Problem(graphs.chain(3), features=["x"], has_data=[True, False, True])
    >>> scene_of(chain, np.array([0, 1]), np.array([0, 1])).outside
    array([2])
    """
    graph = problem.graph
    if in_order(nodes, graph.node_count):  # the whole network as it is, of which nothing is copied
        head, tail, weights, everyone, outside = graph.head, graph.tail, graph.weights, nodes, nodes[:0]
    else:
        numbered = _LocalNumbers(nodes, graph.head[edges], graph.tail[edges])
        head, tail, weights = numbered.head, numbered.tail, graph.weights[edges]
        everyone, outside = numbered.everyone, numbered.outside
    return Site(
        nodes=nodes,
        outside=outside,
        edges=edges,
        head=head,
        tail=tail,
        weights=weights,
        live=None,
        degrees=graph.degrees[everyone],
        colours=graph.colours[nodes],
        colour_count=int(graph.colours.max()) + 1,
        extremes=graph.extremes,
        data=Data.none(len(nodes), problem.feature_count),
        informed=problem.informed[nodes],
        public=_public(problem, everyone),
        names=problem.names_of(nodes),
        classes=problem.classes,
    )
