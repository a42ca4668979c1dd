"""Linear systems over a graph, by a factorisation in fronts."""

from __future__ import annotations

import numpy as np
import pytest

from kinfolk import GTVMin, Network, Tolerance, fit, graphs, kernels
from kinfolk.algorithms.gtvmin.systems import GraphSystem
from kinfolk.objective.couplings import MaximumNorm

WIDTHS = (1, 3, 4, 6)


def graph_of(kind):
    """Ends of edges and the number of nodes: a grid, a graph in pieces with a lonely node, a clique."""
    rng = np.random.default_rng(3)
    if kind == "grid":
        place = np.arange(48).reshape(6, 8)
        ends = (place[:, 1:], place[:, :-1]), (place[1:], place[:-1])
        pairs = np.hstack([[one.ravel(), other.ravel()] for one, other in ends])
        return pairs.astype(np.int64), 48
    if kind == "pieces":
        low = np.sort(rng.integers(0, 15, (2, 40)), axis=0)
        both = np.unique(np.hstack([low, low + 15]), axis=1)
        return both[:, both[0] < both[1]].astype(np.int64), 31
    return np.array(np.triu_indices(9, 1), dtype=np.int64), 9


@pytest.mark.parametrize("kind", ["grid", "pieces", "clique"])
@pytest.mark.parametrize("width", WIDTHS)
def test_a_factorised_system_solves_as_a_dense_one(kind, width):
    (head, tail), count = graph_of(kind)
    rng = np.random.default_rng(width)
    at_nodes, at_edges = (each @ each.transpose(0, 2, 1) for each in (
        rng.normal(size=(size, width, width)) for size in (count, len(head))
    ))  # fmt: skip
    dense = np.zeros((count, width, count, width))
    dense[np.arange(count), :, np.arange(count)] += at_nodes
    for e, (i, j) in enumerate(zip(head, tail, strict=True)):
        for a, b, sign in ((i, i, 1), (j, j, 1), (i, j, -1), (j, i, -1)):
            dense[a, :, b] += sign * at_edges[e]
    solver = GraphSystem(count, width, head, tail).factorised(at_nodes, at_edges, 1e-13)
    rhs = rng.normal(size=(count, width))
    expected = np.linalg.solve(dense.reshape(count * width, -1), rhs.ravel()).reshape(count, width)
    np.testing.assert_allclose(solver.rough(rhs), expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())
    np.testing.assert_allclose(solver.solve(rhs, 1e-12, 10), expected, rtol=1e-8, atol=1e-9 * np.abs(expected).max())


def test_columns_come_right_after_all_that_hand_up_to_them():
    parents = np.array([3, 4, 3, 5, 6, -1, -1, 6])
    place = kernels.postorder(parents)
    assert sorted(place) == list(range(8))
    below = {j: {j} for j in range(8)}
    for j in range(8):  # parents have larger numbers
        if parents[j] >= 0:
            below[parents[j]] |= below[j]
    for j, own in below.items():
        places = sorted(place[list(own)])
        assert places == list(range(places[0], places[0] + len(own)))
        assert places[-1] == place[j]


def test_a_finish_does_not_keep_a_strict_rule_from_being_met():
    rng = np.random.default_rng(0)
    network = Network(graphs.chain(30), [(rng.normal(size=(4, 2)), rng.normal(size=4)) for _ in range(30)])
    usual, sharp = (
        fit(network, GTVMin(coupling=MaximumNorm(), lam=0.3), stop=Tolerance(each)) for each in (1e-6, 1e-9)
    )
    for run, asked in ((usual, 1e-6), (sharp, 1e-9)):
        assert run.stopped.startswith("converged")
        assert run.rounds <= 100
        assert run.last_row["residual"] <= asked
    np.testing.assert_allclose(usual.models.w, sharp.models.w, atol=1e-4)
