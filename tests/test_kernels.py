"""Compiled loops give the same bits wherever their arrays lie in memory."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from kinfolk import kernels
from kinfolk.kernels import balls, cholesky, edges, rows

EDGES, NODES = 33, 16
RNG = np.random.default_rng(0)
HEAD = RNG.integers(0, NODES - 4, EDGES)
TAIL = HEAD + 1 + RNG.integers(0, 3, EDGES)
SCALES, WEIGHTS = RNG.random((2, EDGES)) + 0.5


def side_by_side(arrays: list[Any], rng: np.random.Generator) -> list[Any]:
    """Copies of some arrays in one piece of memory, in any order and with small gaps or none between them."""
    gaps = rng.integers(0, 12, len(arrays)) * rng.integers(0, 2, len(arrays))
    memory = np.empty(sum(values.size for values in arrays) + int(gaps.sum()))
    out: list[Any] = [None] * len(arrays)
    end = 0
    for k in rng.permutation(len(arrays)):
        begin = end + int(gaps[k])
        end = begin + arrays[k].size
        out[k] = memory[begin:end].reshape(arrays[k].shape)
        out[k][...] = arrays[k]
    return out


def dual_step(u: Any, other: Any, values: Any, flow: Any) -> None:
    coupling = (1.0, kernels.HUGE, 0.0)
    kernels.dual_step(u, values, HEAD, TAIL, 0.3, True, WEIGHTS, 0.8, coupling, 1.6, flow)


def dual_look(u: Any, other: Any, values: Any, flow: Any) -> None:
    coupling, numbers = (1.0, kernels.HUGE, 0.0), other.reshape(-1)[: 3 * EDGES].reshape(3, EDGES)
    kernels.dual_look(u, values, HEAD, TAIL, 0.3, True, WEIGHTS, 0.8, coupling, flow, *numbers)


def add_elastic_flows(u: Any, other: Any, values: Any, flow: Any) -> None:
    kernels.add_elastic_flows(flow, values, HEAD, TAIL, SCALES, u, WEIGHTS, 0.9)


def add_elastic_response(u: Any, other: Any, values: Any, flow: Any) -> None:
    kernels.add_elastic_response(u, values, HEAD, TAIL, SCALES, other, WEIGHTS, 0.9)


def conjugate_step(u: Any, other: Any, values: Any, flow: Any) -> None:
    flow[0, 0] = kernels.conjugate_step(values, flow, u[:NODES], other[:NODES], 0.3, other[NODES:])


@pytest.mark.parametrize("width", [3, 10])
@pytest.mark.parametrize("work", [dual_step, dual_look, add_elastic_flows, add_elastic_response, conjugate_step])
def test_the_last_bit_does_not_depend_on_where_arrays_lie(work: Callable[..., None], width: int) -> None:
    """Runs of 200 sites on Ray were off by the last bit now and then."""
    rng, seen = np.random.default_rng(0), set()
    arrays = [rng.normal(size=(count, width)) for count in (EDGES, EDGES, NODES, NODES)]
    for _ in range(2000):
        placed = side_by_side(arrays, rng)
        work(*placed)
        seen.add(b"".join(values.tobytes() for values in placed))
    assert len(seen) == 1


def innermost_loops(tree: ast.AST) -> Iterator[ast.For]:
    """Loops without a loop in them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.For) and sum(isinstance(each, ast.For) for each in ast.walk(node)) == 1:
            yield node


def uses(tree: ast.AST, name: str) -> bool:
    """Whether a name occurs in some code."""
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(tree))


def takes_a_sum(loop: ast.For, index: str) -> bool:
    """Whether a loop adds up into one place."""
    return any(isinstance(node, ast.AugAssign) and not uses(node.target, index) for node in ast.walk(loop))


def writes(loop: ast.For) -> bool:
    """Whether a loop writes to an array."""
    return any(isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) for node in ast.walk(loop))


@pytest.mark.parametrize("module", [balls, cholesky, edges, rows])
def test_a_loop_that_reorders_a_sum_writes_to_no_array(module: ModuleType) -> None:
    """A loop that does both is compiled twice, and how far apart its arrays lie chooses between the two.

    Arrays that a loop makes for itself cannot be placed by a test as above, hence this look at the source.
    """
    summing, both = [], []
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.FunctionDef) and any(uses(each, "REORDERED") for each in node.decorator_list):
            for loop in innermost_loops(node):
                assert isinstance(loop.target, ast.Name)
                if takes_a_sum(loop, loop.target.id):
                    summing.append(node.name)
                    both += [node.name] if writes(loop) else []
    assert summing
    assert both == []
