"""The memory of the coordinator of BiG-FL, and its facts on how φ is learnt."""

from __future__ import annotations

from typing import NamedTuple

from kinfolk.algorithms.bigfl.adjoint import Krylov
from kinfolk.algorithms.bigfl.lower import Links
from kinfolk.typing import Floats


class Facts(NamedTuple):
    """How learning φ goes; the history has these as columns."""

    learning: float  # whether φ still changes
    phi_steps: float  # made
    skipped: float  # not made, because the hypergradient could not be trusted
    exchanges: float  # for adjoint equations
    upper: float  # f
    adjoint_residual: float
    stability: float  # β times a bound on the largest curvature
    phi_distance: float  # ‖φ − I‖


class Memory(NamedTuple):
    """What the coordinator keeps between two exchanges."""

    began: int  # the round before the first one
    links: Links
    layout: dict[str, tuple[int, ...]]
    lower: str  # a fingerprint of the lower level: what the numbers of φ mean
    w: Floats  # (nodes, games, parameters) as last received
    phi: Floats  # (numbers,)
    identity: Floats  # (numbers,)
    step: Floats  # (games,) step sizes that are safe
    by_phi: Floats  # (numbers,) ∂f/∂φ, between two exchanges
    krylov: Krylov | None  # between two exchanges
    hypergradient: Floats  # (numbers,) the last one
    facts: Facts
