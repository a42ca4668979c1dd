"""Algorithm 3 of FedRelax: mixtures that differ from node to node."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinfolk import FedRelax, InputError, LinearModel, datasets, fit
from kinfolk.datasets.synthetic import rounded_shares


@given(st.integers(1, 300), st.integers(1, 8), st.integers(0, 2**31))
def test_rounded_sizes_add_up_and_are_off_by_less_than_one(total, kinds, seed):
    shares = np.random.default_rng(seed).dirichlet(np.ones(kinds), 5)
    counts = rounded_shares(shares, total)
    assert (counts.sum(axis=1) == total).all()
    assert (counts >= 0).all()
    assert (np.abs(counts - total * shares) < 1).all()


def test_the_default_is_the_experiment_of_the_paper():
    drawn = datasets.mixture_regression()
    network = drawn.network
    assert (network.data.sizes == 10).all()
    assert (network.test.sizes == 100).all()
    assert network.public.points.shape == (150, 100, 10)
    assert drawn.sources.shape == (3, 10)
    np.testing.assert_allclose(drawn.mixing.sum(axis=1), 1.0)
    common = np.minimum(drawn.mixing[:, None], drawn.mixing[None]).sum(axis=2)
    np.testing.assert_allclose(network.graph.to_sparse().toarray(), common - np.diag(np.diagonal(common)), atol=1e-15)
    np.testing.assert_array_equal(drawn.cluster, drawn.mixing.argmax(axis=1))


def test_every_row_belongs_to_one_source_in_the_rounded_shares():
    drawn = datasets.mixture_regression(12, samples=17, noise=0.0, seed=3)
    data = drawn.network.data
    wrong = np.abs(data.X @ drawn.sources.T - data.y[:, None])  # (rows, sources)
    source = wrong.argmin(axis=1)
    assert wrong.min(axis=1).max() < 1e-12
    counts = np.stack([np.bincount(source[data.owner == i], minlength=3) for i in range(12)])
    np.testing.assert_array_equal(counts, rounded_shares(drawn.mixing, 17))


def test_the_truth_is_the_best_linear_model_of_the_mixture():
    drawn = datasets.mixture_regression(3, features=4, samples=40_000, test_samples=0, public_points=0, noise=0.5)
    fits = np.stack([np.linalg.lstsq(*drawn.network.data[i], rcond=None)[0] for i in range(3)])
    assert drawn.error(fits) < 4 * 20 / 40_000  # d · (residual variance) / m, with room
    assert drawn.network.test is None
    assert drawn.network.public is None


def test_the_same_seed_draws_the_same_and_noise_is_noise():
    a, b, c = (datasets.mixture_regression(5, noise=noise, seed=seed) for noise, seed in ((0, 1), (0, 1), (2.0, 1)))
    np.testing.assert_array_equal(a.network.data.y, b.network.data.y)
    np.testing.assert_array_equal(a.network.data.X, c.network.data.X)
    assert 1.0 < np.std(c.network.data.y - a.network.data.y) < 3.0


def test_pooling_helps_on_mixtures():
    """Figure 3, d / m = 1: the validation error falls for α = 0.01 and 0.05."""
    network = datasets.mixture_regression(60, seed=1).network
    alone, weak, strong = (fit(network, FedRelax(LinearModel(), lam=lam)).error() for lam in (0.0, 0.01, 0.05))
    assert weak < alone
    assert strong < alone


def test_bad_sizes_get_a_sentence():
    with pytest.raises(InputError, match="The 'sources' parameter of mixture_regression must be a whole number ≥ 1"):
        datasets.mixture_regression(3, sources=0)
    with pytest.raises(InputError, match="The 'noise' parameter of mixture_regression must be a number ≥ 0"):
        datasets.mixture_regression(3, noise=-1.0)
