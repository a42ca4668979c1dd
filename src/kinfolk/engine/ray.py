"""Sites in the processes of Ray, on this machine or on a cluster. They stay from one fit to the next.

Boundary rows go from actor to actor; the process that calls ``fit`` sees what the coordinator reads, and no more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from kinfolk.checks import AtLeast, Between, InputError
from kinfolk.engine.protocol import Algorithm
from kinfolk.engine.ray_actors import POOLS, Pool
from kinfolk.engine.ray_carrier import RayCarrier
from kinfolk.network.network import Network
from kinfolk.network.problem import Problem


@dataclass(frozen=True)
class Ray:
    """Run sites in several processes, on this machine or on a cluster, with Ray (``kinfolk[ray]``).

    The processes start with the first fit, which takes seconds, and stay for the next ones, until ``close`` or the end
    of Python. They hold the sites of the last network: a path of λ sends no rows again. A process that dies is started
    again and brought to where it was; the answer is the same to the last bit.

    Parameters
    ----------
    actors : int
        Number of processes.
    sites : int or None
        Number of sites, spread evenly over the actors; None: one for each.
    lost : float
        Share of messages between neighbours that get lost, as in ``InProcess``.
    address : str or None
        Of a running cluster, such as "auto" or "10.0.0.5:6379"; None: this machine.

    Examples
    --------
    ``fit(network, GTVMin(lam=0.1), engine=Ray(actors=4))``
    """

    actors: Annotated[int, AtLeast(1)] = 2
    sites: Annotated[int, AtLeast(1)] | None = None
    lost: Annotated[float, Between(0, 1)] = 0.0
    address: str | None = None

    def open(self, problem: Problem, algorithm: Algorithm[Any]) -> RayCarrier:
        """Bring the sites to the actors, unless they are there, and get ready to run ``algorithm``."""
        if not isinstance(problem, Network):
            raise InputError(
                "Expected a Network for Ray, got a Problem without rows: use an engine whose sites have them."
            )
        count = min(self.sites or self.actors, problem.graph.node_count)
        pool = Pool.of(self.address)
        return RayCarrier(pool, problem, algorithm, count, min(self.actors, count), self.lost)

    def close(self) -> None:
        """End the processes; Ray itself as well, if it was started here."""
        pool = POOLS.pop(self.address, None)
        if pool is not None:
            pool.close()
