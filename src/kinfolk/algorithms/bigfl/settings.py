"""What cannot be learnt is refused here, in a sentence, before any work."""

from __future__ import annotations

from typing import Any

import numpy as np

from kinfolk.algorithms.bigfl.lower import Links, LowerLevel
from kinfolk.algorithms.bigfl.shapes import Layout
from kinfolk.checks import InputError, as_floats, first_line
from kinfolk.network.graph import Graph
from kinfolk.objective.node_loss import LocalLosses
from kinfolk.typing import Floats


def given_phi(phi: Any) -> Floats | None:
    """The numbers of a given φ; None for a name.

    >>> given_phi("learn"), given_phi([[1.0, 0.0], [0.0, 1.0]]).tolist()
    (None, [1.0, 0.0, 0.0, 1.0])
    """
    if isinstance(phi, str) and phi in ("identity", "learn"):
        return None
    if phi is None or isinstance(phi, str):
        raise InputError(f"The 'phi' parameter of BiGFL must be 'identity', 'learn' or an array. Got {phi!r} instead.")
    return as_floats(phi, "phi", 1, 2).ravel()


def check_given(phi: Floats, lower: LowerLevel, links: Links, layout: Layout) -> None:
    """Refuse a φ with another number of numbers, or one that the lower level does not admit."""
    size = len(lower.identity(links, layout))
    if phi.shape != (size,):
        raise InputError(f"Expected {size:,} numbers for φ on this model, got {phi.size:,}.")
    if not np.allclose(lower.projected(layout, phi), phi, atol=1e-9):
        raise InputError(
            "Expected a φ that the lower level admits (‖φ‖₂ ≤ 1 for GraphEmbedding), got one that it does not: scale "
            "it down."
        )


def check_game(lower: LowerLevel, lam: float, graph: Graph, layout: Layout) -> None:
    """Refuse a game that does not depend on φ."""
    if not graph.edge_count:
        raise InputError(
            "Expected a graph with edges for BiGFL(phi='learn'), got none: use Local, which learns at every node alone."
        )
    size = len(lower.identity(Links.of(graph), layout))
    if not size or lam == 0:
        got = "lam=0" if size else f"{type(lower).__name__}, which has none"
        raise InputError(f"Expected a game that depends on φ for phi='learn', got {got}: leave phi out.")


def check_no_buffers(trained: int, width: int) -> None:
    """Refuse numbers that follow parameters: neighbours would be drawn to each other's."""
    if trained < width:
        raise InputError(
            "Expected a module without floating buffers for BiGFL, which draws parameters to those of neighbours, got "
            "one that has some: make them no buffers, or average models, as FedAvg does."
        )


def check_curvature(losses: LocalLosses) -> None:
    """Refuse models that cannot be differentiated twice, by trial."""
    try:
        losses.hessian_product(losses.start, losses.start)
        losses.gauss_newton(losses.start)(losses.start)
    except RuntimeError as error:  # whatever torch cannot do
        raise InputError(
            f"Expected a model that can be differentiated twice for phi='learn', got one that cannot: "
            f"{first_line(error)}"
        ) from error
