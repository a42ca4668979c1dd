"""What FedCG refuses, and its notes on the domains of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kinfolk.algorithms.fedcg.discovery import Discovery
from kinfolk.checks import InputError
from kinfolk.network.problem import Problem
from kinfolk.objective.torch_loss import TorchLoss

NEARLY_ALL = 0.99  # of the rows


def check_loss(loss: Any) -> None:
    """A module of torch, with one argument."""
    if not isinstance(loss, TorchLoss):
        raise InputError(f"The 'loss' parameter of FedCG must be a TorchLoss. Got {loss!r} instead.")
    if loss.side:
        raise InputError(f"Expected a module with one argument for FedCG, got TorchLoss(side={loss.side}): drop it.")


def check_paths(layers: Any) -> None:
    """Some paths, or all."""
    named = isinstance(layers, Sequence) and len(layers) > 0 and not isinstance(layers, str)
    if not named and layers != "all":
        raise InputError(f"Expected a list of layers such as ['conv2'], or 'all', for FedCG, got {layers!r}.")


def check_domains(domains: Any, most: int, discovery: Discovery, problem: Problem) -> None:
    """As many domains as there can be."""
    clients = int(problem.has_data.sum())
    if isinstance(domains, str) and domains == "find":
        if not discovery.finds_count:
            raise InputError(
                f"Expected the number of domains for {type(discovery).__name__}, which cannot find it, got "
                "domains='find': give domains=D, or take ClassMeans."
            )
        if most < 1:
            raise InputError(f"Expected most_domains ≥ 1 for FedCG, got {most}.")
    elif isinstance(domains, bool) or not isinstance(domains, int | np.integer) or domains < 1:
        raise InputError(
            f"The 'domains' parameter of FedCG must be a whole number ≥ 1 or 'find'. Got {domains!r} instead."
        )
    elif domains > clients:
        raise InputError(
            f"Expected at most as many domains as nodes with data ({clients}) for FedCG, got domains={domains}: take "
            "fewer."
        )


def check_adjacency(adjacency: Any, domains: Any) -> None:
    """A name, or a similarity ≥ 0 of every two domains."""
    if isinstance(adjacency, str):
        if adjacency not in ("learnt", "uniform", "identity"):
            raise InputError(
                "The 'adjacency' parameter of FedCG must be 'learnt', 'uniform', 'identity' or an array. Got "
                f"{adjacency!r} instead."
            )
        return
    try:
        given = np.asarray(adjacency, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"Expected similarities as the adjacency, a square array of numbers, got a {type(adjacency).__name__} that "
            "is none."
        ) from error
    if given.ndim != 2 or given.shape[0] != given.shape[1] or given.shape[0] != domains:
        raise InputError(
            f"Expected similarities of every two of domains={domains!r} as the adjacency, got shape {given.shape}: "
            "give a square array, and the number of domains."
        )
    if not (np.isfinite(given) & (given >= 0)).all():
        raise InputError("Expected similarities ≥ 0 as the adjacency, got negative ones, NaN or infinity.")


def findings(row: Mapping[str, float], *, found: bool) -> list[str]:
    """Notes on the domains, from the last row of a history."""
    count, used, largest = (row.get(name, np.nan) for name in ("domains", "used", "largest"))
    if count == 0 and found:
        return ["One domain was found: the network has no branches, and this is FedAvg."]
    if count > 1 and (used == 1 or largest > NEARLY_ALL):
        return [
            f"The domains have collapsed: {largest:.1%} of the rows that took part are in one of {count:.0f}. What was "
            "learnt is one shared branch, not domains; take ClassMeans, or give the domains."
        ]
    return []
