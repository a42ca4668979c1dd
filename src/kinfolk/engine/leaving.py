"""What leaves a node: an algorithm's own declaration, as a table to read."""

from __future__ import annotations

from typing import Any

import pandas

from kinfolk.checks import InputError
from kinfolk.engine.protocol import Algorithm
from kinfolk.network.problem import Problem


def what_leaves(algorithm: Algorithm[Any], problem: Problem) -> pandas.DataFrame:
    """All that may leave a node, as the algorithm declares it; more is refused when it runs.

    Parameters
    ----------
    algorithm : Algorithm
        What is to be run.
    problem : Network or Problem
        What it is to be run on; it decides the sizes.

    Returns
    -------
    pandas.DataFrame
        One row per array: to whom it goes, what it is, and how many numbers and bytes it has for a node.

    >>> from kinfolk import FedGD
    >>> from kinfolk.testing import difficult_network
    >>> print(what_leaves(FedGD(), difficult_network()).to_string(index=False))
            to name    content  numbers  bytes
    neighbours    w parameters        3     24
    """
    rows = declared(algorithm, problem)
    if rows is None:
        raise InputError(
            f"Expected an algorithm that declares what leaves a node, got {type(algorithm).__name__}, which does not: "
            "give it a method sends()."
        )
    return pandas.DataFrame(rows, columns=["to", "name", "content", "numbers", "bytes"])


def declared(algorithm: Algorithm[Any], problem: Problem) -> tuple[dict[str, Any], ...] | None:
    """The rows of ``what_leaves`` as plain data; None if the algorithm does not declare what leaves a node."""
    sends = algorithm.sends(problem)
    if sends is None:
        return None
    return tuple(
        {"to": to, "name": name, "content": sent.content, "numbers": sent.largest_bytes // sent.itemsize}
        | {"bytes": sent.largest_bytes}
        for to, arrays in (("neighbours", sends.neighbours), ("coordinator", sends.coordinator))
        for name, sent in arrays.items()
    )
