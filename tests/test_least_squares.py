"""Shortcuts of linear models at the nodes of FedRelax, against the plain linear algebra that they stand for."""

import itertools

import numpy as np
import pytest

from kinfolk import FedRelax, LinearModel, Network, fit, graphs
from kinfolk.local_models.inverses import DenseInverses, LowRankInverses
from kinfolk.objective.symmetric import invert_symmetric


def rows_of(sizes, width, seed=0):
    rng = np.random.default_rng(seed)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    return rng.normal(size=(starts[-1], width)), starts


def matrices(X, starts, G, scale):
    grams = [X[a:b].T @ X[a:b] for a, b in itertools.pairwise(starts)]
    return np.stack(grams) + scale[:, None, None] * G


@pytest.mark.parametrize("sizes", [[3, 0, 1, 4], [2, 2, 2, 2]])
def test_a_low_rank_inverse_solves_as_the_matrix_itself(sizes):
    (X, starts), points = rows_of(sizes, 8), np.random.default_rng(1).normal(size=(30, 8))
    G, scale = points.T @ points, np.array([0.1, 2.0, 1e-2, 5.0])
    b = np.random.default_rng(2).normal(size=(4, 8))
    exact = np.linalg.solve(matrices(X, starts, G, scale), b[:, :, None])[:, :, 0]
    np.testing.assert_allclose(LowRankInverses.of(X, starts, G, scale).solve(b), exact, rtol=1e-9)
    np.testing.assert_allclose(DenseInverses.of(matrices(X, starts, G, scale)).solve(b), exact, rtol=1e-9)


def test_a_low_rank_inverse_is_refused_where_it_is_not_safe():
    (X, starts), G = rows_of([3, 2], 8), np.eye(8)
    assert LowRankInverses.of(X, starts, G, np.array([1.0, 0.0])) is None  # a node that receives nothing
    assert LowRankInverses.of(X, starts, G, np.array([1.0, 1e-9])) is None
    assert LowRankInverses.of(X, starts, np.diag([1e-9, *[1.0] * 7]), np.ones(2)) is None
    assert LowRankInverses.of(*rows_of([5, 1], 8), G, np.ones(2)) is None  # no fewer numbers


@pytest.mark.parametrize("intercept", [False, True])
def test_alone_a_node_takes_the_best_fit_of_least_norm_in_units_of_its_columns(intercept):
    sizes, rng = [3, 0, 1, 12], np.random.default_rng(3)
    X, starts = rows_of(sizes, 5)
    X[:3, 1], X[:, 2] = 0.0, 100 * X[:, 2]  # a feature that is zero, and one on another scale
    y = rng.normal(size=len(X))
    sets = [(X[a:b], y[a:b]) if b > a else None for a, b in itertools.pairwise(starts)]
    network = Network(graphs.chain(4), sets, public=rng.normal(size=(7, 5)))
    start = fit(network, FedRelax(LinearModel(intercept=intercept), lam=0.0), rounds=0, stop=None).models
    wide = np.column_stack([X, np.ones(len(X))]) if intercept else X
    for node in (0, 2, 3):
        own = wide[starts[node] : starts[node + 1]]
        pinned = invert_symmetric((own.T @ own)[None])[0] @ own.T @ y[starts[node] : starts[node + 1]]
        np.testing.assert_allclose(start[node].w, pinned, rtol=1e-8, atol=1e-10)
    assert start[1] is None
