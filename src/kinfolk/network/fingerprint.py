"""Fingerprints: whether two networks are the same, without comparing their rows."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from kinfolk.network.data import Data
from kinfolk.network.network import Network
from kinfolk.network.problem import Problem


def fingerprints(problem: Problem) -> dict[str, str]:
    """A fingerprint for every part of a problem, so that a difference can be named.

    >>> from kinfolk import graphs
    >>> one, other = (Network(graphs.chain(2), [([[1.0]], [y]), None]) for y in (1.0, 2.0))
    >>> [part for part, mark in fingerprints(one).items() if mark != fingerprints(other)[part]]
    ['rows']
    """
    graph, public = problem.graph, problem.public
    parts: dict[str, list[Any]] = {
        "graph": [graph.head, graph.tail, graph.weights, graph.node_count],
        "names of nodes": [] if isinstance(graph.names, range) else [repr(name) for name in graph.names],
        "names of features": list(problem.features),
        "public points": [] if public is None else [public.points],
    }
    if isinstance(problem, Network):
        parts["rows"] = _rows(problem.data)
        parts["test rows"] = [] if problem.test is None else _rows(problem.test)
    return {name: fingerprint(*values) for name, values in parts.items()}


def _rows(data: Data) -> list[Any]:
    return [data.X, data.y, data.starts]


def fingerprint(*values: Any) -> str:
    """A short hash of arrays and texts, in their order.

    >>> fingerprint(np.arange(3), "a") == fingerprint(np.arange(3), "a")
    True
    >>> fingerprint("ab", "c") == fingerprint("a", "bc")
    False
    """
    digest = hashlib.blake2b(digest_size=16)
    for value in values:
        if isinstance(value, np.ndarray):
            content = np.ascontiguousarray(value)
            digest.update(f"array {content.dtype.str} {content.shape} ".encode())
            digest.update(content.data)
        else:
            text = str(value).encode()
            digest.update(f"text {len(text)} ".encode() + text)
    return digest.hexdigest()
