"""Site: what one process may see, and the graph calculus on it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse

from kinfolk import kernels
from kinfolk.data import Data
from kinfolk.network import Network
from kinfolk.typing import Bools, Floats, Ints

if TYPE_CHECKING:
    from kinfolk.losses import BoundLoss, Loss

REMEMBERED_LOSSES = 4


@dataclass(frozen=True, eq=False)
class Site:
    """Some nodes, their data, the edges that touch them, and nothing else.

    Own nodes have the local numbers 0 .. own − 1; the neighbours that live elsewhere follow. Each edge is stored
    once, in the order of the whole graph, so sums run in the same order wherever they are computed.

    In a round, a program is handed the site *as it is this round*: nodes that are away are gone from it, and an
    edge that does not carry (an end is away, a message was lost) is dead: its difference is zero, it is left out
    of neighbour sums, and what the state holds for it stays as it was. So a program needs no masks of its own.
    """

    nodes: Ints  # (own,) numbers in the whole network, ascending
    outside: Ints  # (foreign,) numbers of neighbours that live elsewhere, ascending
    edges: Ints  # (edges,) numbers in the whole graph, ascending
    head: Ints  # (edges,) local numbers
    tail: Ints  # (edges,) local numbers
    weights: Floats  # (edges,) A_ij
    live: Bools | None  # (edges,) None: all carry
    degrees: Ints  # (own + foreign,) numbers of neighbours
    data: Data  # of own nodes
    informed: Bools  # (own,) has data, or is connected to a node that has
    public: Floats | None = None  # (points, features)
    test: Data | None = None  # of own nodes
    _bound: dict[Any, Any] = field(default_factory=dict, repr=False)
    _whole: tuple[Site, Ints] | None = field(default=None, repr=False)  # the site this is a part of, and which nodes

    @property
    def node_count(self) -> int:
        """Number of own nodes."""
        return len(self.nodes)

    @property
    def own_degrees(self) -> Ints:
        """Number of neighbours of every own node."""
        return self.degrees[: self.node_count]

    @property
    def smaller_end(self) -> Bools:
        """(edges,) whether the smaller end is ours: that is where an edge is counted."""
        return self.head < self.node_count

    @cached_property
    def incidence(self) -> scipy.sparse.csr_array:
        """(own, edges): +1 at the head, −1 at the tail."""
        ends = np.concatenate([self.head, self.tail])
        signs = np.repeat([1.0, -1.0], len(self.head))
        columns = np.tile(np.arange(len(self.head)), 2)
        own = ends < self.node_count
        shape = (self.node_count, len(self.head))
        return scipy.sparse.csr_array((signs[own], (ends[own], columns[own])), shape=shape)

    def values(self, own: Floats, heard: Floats) -> Floats:
        """What is known of own nodes and of neighbours elsewhere, by local number."""
        return np.concatenate([own, heard]) if len(heard) else np.ascontiguousarray(own)

    def difference(self, own: Floats, heard: Floats) -> Floats:
        """D w: the value at the smaller end minus the value at the larger, per edge; zero where the edge is dead."""
        values = self.values(own, heard)
        if values.ndim == 2:
            change = kernels.difference(values, self.head, self.tail)
        else:
            change = values[self.head] - values[self.tail]
        if self.live is not None:
            change[~self.live] = 0.0
        return change

    @cached_property
    def missed(self) -> Floats:
        """(own,) number of messages of neighbours that do not come this round."""
        dead = np.zeros(len(self.head)) if self.live is None else (~self.live).astype(np.float64)
        return self.edge_sum(dead)

    def carried(self, new: Floats, old: Floats) -> Floats:
        """``new`` where the edge carries, ``old`` where it is dead."""
        return new if self.live is None else np.where(self.live[:, None], new, old)

    def divergence(self, flow: Floats) -> Floats:
        """Dᵀu: what flows out of every own node, over all its edges."""
        return _times(self.incidence, flow)

    def neighbour_sum(self, own: Floats, heard: Floats, weights: Floats | None = None) -> Floats:
        """Σ_j A_ij w_j over the neighbours that were heard, per own node; ``weights`` (edges,) replace the A_ij."""
        values = self.values(own, heard)
        return _times(self._adjacency(weights), values)

    def _adjacency(self, weights: Floats | None) -> scipy.sparse.csr_array:
        """(own, own + foreign) weights of the live edges; a row lists them in the order of the whole graph."""
        ends = np.stack([self.head, self.tail], axis=1).ravel()
        others = np.stack([self.tail, self.head], axis=1).ravel()
        counted = ends < self.node_count
        if self.live is not None:
            counted &= np.repeat(self.live, 2)
        values = np.repeat(self.weights if weights is None else weights, 2)[counted]
        order = np.argsort(ends[counted], kind="stable")
        starts = np.searchsorted(ends[counted][order], np.arange(self.node_count + 1))
        shape = (self.node_count, self.node_count + len(self.outside))
        return scipy.sparse.csr_array((values[order], others[counted][order], starts), shape=shape)

    def edge_sum(self, per_edge: Floats) -> Floats:
        """Sum a number per edge at both ends, per own node; all edges of an own node count, dead or alive."""
        ends = np.stack([self.head, self.tail], axis=1).ravel()
        own = ends < self.node_count
        return np.bincount(ends[own], np.repeat(per_edge, 2)[own], minlength=self.node_count).astype(np.float64)

    def at_smaller_end(self, per_edge: Floats) -> Floats:
        """Sum a number per edge at its smaller end, so that over all sites every edge counts once."""
        counted = self.smaller_end
        return np.bincount(self.head[counted], per_edge[counted], minlength=self.node_count).astype(np.float64)

    def bound(self, loss: Loss) -> BoundLoss:
        """The local losses L_i: ``loss`` bound to the data of every own node, prepared once."""
        if loss not in self._bound:
            if len(self._bound) == REMEMBERED_LOSSES:
                self._bound.pop(next(iter(self._bound)))
            self._bound[loss] = loss.bind(self.data) if self._whole is None else self._part_of_whole(loss)
        return self._bound[loss]

    def _part_of_whole(self, loss: Loss) -> BoundLoss:
        assert self._whole is not None
        site, nodes = self._whole
        return site.bound(loss).take(nodes)

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
            data=self.data.take(kept),
            informed=self.informed[kept],
            public=self.public,
            test=None,
            _whole=(self, kept),
        )

    def edges_touching(self, present: Bools) -> Bools:
        """(edges,) whether an edge touches a present own node."""
        at_work = np.concatenate([present, np.zeros(len(self.outside), dtype=bool)])
        return at_work[self.head] | at_work[self.tail]


def _times(matrix: scipy.sparse.csr_array, values: Floats) -> Floats:
    """matrix @ values along the first axis, whatever the others are."""
    flat = matrix @ values.reshape(len(values), math.prod(values.shape[1:]))
    return flat.reshape(matrix.shape[0], *values.shape[1:])


class _LocalNumbers:
    """Local numbers for the ends of edges: own nodes first, then the neighbours elsewhere."""

    def __init__(self, nodes: Ints, head: Ints, tail: Ints) -> None:
        ends = np.concatenate([head, tail])
        self.outside = np.setdiff1d(ends, nodes)
        self.everyone = np.concatenate([nodes, self.outside])
        local = _positions(ends, self.everyone)
        self.head, self.tail = local[: len(head)], local[len(head) :]


def _positions(values: Ints, among: Ints) -> Ints:
    """Where each of ``values`` stands in ``among``, which holds it once."""
    order = np.argsort(among)
    return order[np.searchsorted(among, values, sorter=order)]


def sites_of(network: Network, count: int) -> list[Site]:
    """Cut a network into ``count`` sites of consecutive nodes (fewer if there are fewer nodes).

    >>> from kinfolk import graphs
    >>> network = Network(graphs.chain(4), [([[1.0]], [1.0])] * 4)
    >>> [site.nodes.tolist() for site in sites_of(network, 2)], sites_of(network, 2)[0].outside.tolist()
    ([[0, 1], [2, 3]], [2])
    """
    if count == 1:
        return [network.site]
    blocks = np.array_split(np.arange(network.graph.node_count), min(count, network.graph.node_count))
    return [site_of(network, block) for block in blocks]


def site_of(network: Network, nodes: Ints) -> Site:
    """The site of a block of consecutive nodes."""
    graph = network.graph
    first, last = nodes[0], nodes[-1]
    mine = ((graph.head >= first) & (graph.head <= last)) | ((graph.tail >= first) & (graph.tail <= last))
    edges = np.flatnonzero(mine)
    numbered = _LocalNumbers(nodes, graph.head[edges], graph.tail[edges])
    return Site(
        nodes=nodes,
        outside=numbered.outside,
        edges=edges,
        head=numbered.head,
        tail=numbered.tail,
        weights=graph.weights[edges],
        live=None,
        degrees=graph.degrees[numbered.everyone],
        data=network.data.take(nodes),
        informed=network.informed[nodes],
        public=network.public,
        test=None if network.test is None else network.test.take(nodes),
    )
