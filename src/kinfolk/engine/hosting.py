"""Host: the sites of one process among several.

What a site sends to the others travels in bundles, one for every host, and never through the process that asks: that
one holds a ``Ticket`` for it, which says in which bundle it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np

from kinfolk.engine.protocol import Algorithm, Arrays, Messages, Missing, Request, Sends, SiteId, SiteSnapshot
from kinfolk.engine.worker import SiteWorker
from kinfolk.network.site import Site
from kinfolk.typing import Ints

NOBODY = np.empty(0, dtype=np.int64)
Bundle = dict[tuple[SiteId, SiteId], Arrays]  # (from, to) -> what was sent


class Ticket(NamedTuple):
    """Stands for what one site sent to another: a reference to the bundle that has it, and whose it is."""

    bundle: Any
    sender: SiteId
    receiver: SiteId


class Answered(NamedTuple):
    """What the process that asks learns of an exchange at a host."""

    answers: dict[SiteId, Messages | Missing]  # without the arrays for neighbours
    size: int  # bytes of all bundles


class Program(NamedTuple):
    """What a host runs: an algorithm, and what its sites need to know of the others."""

    algorithm: Algorithm[Any]
    homes: Mapping[SiteId, Any]  # for every own site, the sites of its neighbours elsewhere
    sends: Sends | None
    hosts: Sequence[int]  # the host of every site
    node_count: int  # of the network
    undoable: bool


class Host:
    """Some sites of a network and the workers of the runs on them."""

    def __init__(self) -> None:
        self.network = ""  # whose sites these are
        self.sites: dict[SiteId, Site] = {}
        self.programs: dict[str, Program] = {}
        self.workers: dict[str, dict[SiteId, SiteWorker]] = {}

    def holds(self, network: str) -> bool:
        """Whether the sites of this network are here; what they have prepared serves every run on it."""
        return self.network == network

    def hold(self, network: str, site: SiteId, content: Site) -> None:
        """Take in a site; those of another network go."""
        if network != self.network:
            self.network, self.sites = network, {}
        self.sites[site] = content

    def begin(self, run: str, program: Program) -> None:
        """Make workers for a run; rows that cannot be learnt from are refused."""
        self.programs[run] = program
        self.workers[run] = {}
        for number, homes in program.homes.items():
            site = self.sites[number]
            program.algorithm.check_data(site)
            worker = SiteWorker(site, program.algorithm, homes, program.sends, undoable=program.undoable)
            self.workers[run][number] = worker

    def forget(self, run: str) -> None:
        """A run is over."""
        self.programs.pop(run, None)
        self.workers.pop(run, None)

    def exchange(
        self, run: str, requests: Mapping[SiteId, Request], bundles: Sequence[Bundle]
    ) -> tuple[Answered, list[Bundle]]:
        """Answer for every site; a ticket in a request counts the ``bundles``. The bundles for every host."""
        hosts, everybody = self.programs[run].hosts, np.arange(self.programs[run].node_count)
        out: list[Bundle] = [{} for _ in range(1 + max(hosts))]
        answers: dict[SiteId, Messages | Missing] = {}
        for number, request in requests.items():
            answer = self.workers[run][number].answer(_opened(request, bundles, everybody))
            if isinstance(answer, Messages):
                for other, arrays in answer.neighbours.items():
                    out[hosts[other]][number, other] = arrays
                answer = answer._replace(neighbours={other: {} for other in answer.neighbours})
            answers[number] = answer
        size = sum(values.nbytes for bundle in out for arrays in bundle.values() for values in arrays.values())
        return Answered(answers, size), out

    def settle(self, run: str, keep: bool) -> bool:
        """End a round at every site."""
        return all([worker.settle(keep) for worker in self.workers[run].values()])

    def save(self, run: str, *, copy: bool) -> dict[SiteId, SiteSnapshot]:
        """The states of all sites."""
        return {number: worker.save(copy=copy) for number, worker in self.workers[run].items()}

    def load(self, run: str, snapshots: Mapping[SiteId, SiteSnapshot]) -> None:
        """Go on from these states."""
        for number, snapshot in snapshots.items():
            self.workers[run][number].load(snapshot)


def without_everybody(request: Request) -> Request:
    """A request that does not number all nodes, where they all take part."""
    return request if request.carries is not None else replace(request, turn=replace(request.turn, active=NOBODY))


def _opened(request: Request, bundles: Sequence[Bundle], everybody: Ints) -> Request:
    """A request with the arrays that its tickets stand for, and with a reply that may be written to."""
    turn = request.turn if request.carries is not None else replace(request.turn, active=everybody)
    tickets = cast(Mapping[SiteId, Ticket], request.inbox)
    inbox = {other: bundles[ticket.bundle][ticket.sender, ticket.receiver] for other, ticket in tickets.items()}
    return replace(request, turn=turn, inbox=inbox, to_all=_own(request.to_all), to_each=_own(request.to_each))


def _own(arrays: Arrays) -> Arrays:
    """Copies: what has travelled is read-only, and compiled loops know that as another type."""
    return {name: values.copy() if isinstance(values, np.ndarray) else values for name, values in arrays.items()}
