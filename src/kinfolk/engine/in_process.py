"""All sites in this process: the default engine, and the yardstick for every other one."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from kinfolk.checks import AtLeast, Between, InputError, check_parameters
from kinfolk.engine.noise import COORDINATOR, NEIGHBOURS, Noise, NoisyOutbox
from kinfolk.engine.privacy import Privacy
from kinfolk.engine.protocol import Algorithm, Messages, Missing, Request, Scope, SiteId, SiteSnapshot
from kinfolk.engine.worker import SiteWorker
from kinfolk.network.network import Network
from kinfolk.network.problem import Problem
from kinfolk.network.site import sites_of


@dataclass(frozen=True)
class InProcess:
    """Run every site in this process, one after the other.

    Parameters
    ----------
    sites : int
        Number of sites; one site holds all nodes and is the fastest, more of them show what a federation does.
    lost : float
        Share of messages between neighbours that get lost, to see what an unreliable network does. Both
        ends of an edge receive or neither does: a lost message stops its edge for the round.
    noise : Noise, optional
        Noise on all that leaves a node, as if every node were an organisation of its own, whatever the number of sites.
        It is drawn from the seed of the run, so that runs repeat: a simulation. None: no noise.
    """

    sites: Annotated[int, AtLeast(1)] = 1
    lost: Annotated[float, Between(0, 1)] = 0.0
    noise: Noise | None = None

    def open(self, problem: Problem, algorithm: Algorithm[Any]) -> WorkersHere:
        """Cut the network into sites and get ready to run ``algorithm`` on them."""
        if not isinstance(problem, Network):
            raise InputError(
                "Expected a Network for InProcess, got a Problem without rows: use an engine whose sites have them."
            )
        if self.noise is not None:
            check_parameters(self.noise)
            self.noise.check(algorithm, algorithm.sends(problem))
        return WorkersHere.of(problem, algorithm, self.sites, self.lost, self.noise)


class WorkersHere:
    """A carrier that calls the workers of its sites."""

    sees_all = True

    def __init__(self, workers: Sequence[SiteWorker], lost: float = 0.0) -> None:
        self.workers, self.lost = workers, lost
        self.sites = [Scope(worker.site.nodes, worker.site.edges) for worker in workers]
        self.whole = workers[0].site if len(workers) == 1 else None

    @classmethod
    def of(
        cls, network: Network, algorithm: Algorithm[Any], count: int, lost: float, noise: Noise | None = None
    ) -> WorkersHere:
        """Workers for a network that is cut into ``count`` sites; rows that cannot be learnt from are refused."""
        sites, sends = sites_of(network, count), algorithm.sends(network)
        home = np.empty(network.graph.node_count, dtype=np.int64)
        for k, site in enumerate(sites):
            algorithm.check_data(site)
            home[site.nodes] = k
        several = len(sites) > 1
        blurred = [None if noise is None or sends is None else NoisyOutbox(noise, sends, site) for site in sites]
        workers = [
            SiteWorker(site, algorithm, home[site.outside], sends, undoable=several, noise=each)
            for site, each in zip(sites, blurred, strict=True)
        ]
        return cls(workers, lost)

    def exchange(self, requests: Mapping[SiteId, Request]) -> dict[SiteId, Messages | Missing]:
        """Call one worker after the other."""
        return {site: self.workers[site].answer(request) for site, request in requests.items()}

    def settle(self, *, keep: bool) -> bool:
        """Tell every worker."""
        return all([worker.settle(keep) for worker in self.workers])

    def save(self, *, copy: bool) -> list[SiteSnapshot]:
        """The state of every worker."""
        return [worker.save(copy=copy) for worker in self.workers]

    def load(self, snapshots: Sequence[SiteSnapshot]) -> None:
        """Hand every worker its state."""
        for worker, snapshot in zip(self.workers, snapshots, strict=True):
            worker.load(snapshot)

    def privacy(self, names: Sequence[Hashable]) -> Privacy | None:
        """What has been spent; None without noise."""
        parts = [worker.noise for worker in self.workers if worker.noise is not None]
        if not parts:
            return None
        counts = {place: np.zeros(len(names), dtype=np.int64) for place in (NEIGHBOURS, COORDINATOR)}
        for part in parts:
            for place, count in part.counts.items():
                counts[place][part.nodes] = count
        exact = tuple(dict.fromkeys(content for part in parts for content in part.exact))
        return Privacy(parts[0].noise, names, counts[NEIGHBOURS], counts[COORDINATOR], exact)
