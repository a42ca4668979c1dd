"""Who reads what in a federation, in words made from what the algorithm declares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kinfolk.checks import InputError
from kinfolk.engine.protocol import Algorithm, Sent
from kinfolk.network.problem import Problem


def who_reads(algorithm: Algorithm[Any], problem: Problem) -> list[str]:
    """What neighbours read, what the coordinator must read, and what it reads for the history: a sentence each.

    Parameters
    ----------
    algorithm : Algorithm
        What is to be run.
    problem : Network or Problem
        What it is to be run on; it decides the sizes.

    Returns
    -------
    list of str

    >>> from kinfolk import FedGD, FedAvg
    >>> from kinfolk.testing import difficult_network
    >>> print(*who_reads(FedGD(), difficult_network())[:2], sep="\\n")
    Neighbours read, sealed against everybody else: parameters (3 numbers).
    The coordinator reads no message of FedGD.
    >>> print(*who_reads(FedAvg(), difficult_network())[:2], sep="\\n")
    Neighbours send each other nothing.
    The coordinator of FedAvg must read, of every node: parameters after local steps (3 numbers), whether it has rows
    (1 number), largest curvature of the loss, once (1 number).
    """
    sends, name = algorithm.sends(problem), type(algorithm).__name__
    if sends is None:
        raise InputError(
            f"Expected an algorithm that declares what leaves a node, got {name}, which does not: give it a method "
            "sends()."
        )
    near = f"Neighbours read, sealed against everybody else: {_listed(sends.neighbours)}."
    far = f"The coordinator of {name} must read, of every node: {_listed(sends.coordinator)}."
    return [
        near if sends.neighbours else "Neighbours send each other nothing.",
        far if sends.coordinator else f"The coordinator reads no message of {name}.",
        "For the history the coordinator reads what is measured at a node, such as its loss: a few numbers each.",
    ]


def _listed(arrays: Mapping[str, Sent]) -> str:
    sizes: dict[str, int] = {}  # arrays with the same content are counted together
    for sent in arrays.values():
        sizes[sent.content] = sizes.get(sent.content, 0) + sent.largest_bytes // sent.itemsize
    return ", ".join(f"{content} ({count:,} number{'s' if count != 1 else ''})" for content, count in sizes.items())
