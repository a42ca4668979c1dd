"""The path, and the choice of λ."""

import numpy as np
import pytest

from kinfolk import EuclideanNorm, GTVMin, InputError, Network, Pooled, SquaredNorm, Tolerance, fit, graphs
from kinfolk.engine.selection import path, select_lam
from kinfolk.network.folds import row_folds
from kinfolk.testing import difficult_network


@pytest.mark.parametrize("coupling", [EuclideanNorm(), SquaredNorm()], ids=repr)
def test_path_gives_what_cold_starts_give(coupling):
    network = difficult_network()
    lams = 10.0 ** np.arange(-2, 1.1, 0.5)
    for lam, run in path(network, GTVMin(coupling=coupling), lams, stop=Tolerance(1e-9)):
        cold = fit(network, GTVMin(coupling=coupling, lam=lam), stop=Tolerance(1e-9))
        np.testing.assert_allclose(run.models.w, cold.models.w, atol=1e-6)


def test_samples_are_held_out_of_every_node_once():
    network = difficult_network()
    held = np.array([row_folds(network.data.owner, 3, seed=0) == part for part in range(3)])
    assert (held.sum(axis=0) == 1).all()
    for rows in held:
        counts = np.bincount(network.data.owner[rows], minlength=24)
        assert (counts <= -(-network.data.sizes // 3)).all()
        assert (counts >= network.data.sizes // 3).all()


def test_choice_over_samples_tells_kin_from_strangers():
    rng = np.random.default_rng(0)
    for truth, noise, expected in ((rng.normal(size=(20, 2)), 0.01, 1e-4), (np.ones((20, 2)), 2.0, 1.0)):
        sets = [(X := rng.normal(size=(6, 2)), X @ truth[k] + noise * rng.normal(size=6)) for k in range(20)]
        network = Network(graphs.complete(20), sets)
        assert select_lam(network, GTVMin(), [1e-4, 1.0], over="samples", folds=3).lam == expected


def test_lambda_is_chosen_without_test_data():
    rng = np.random.default_rng(0)
    graph, block = graphs.stochastic_block([15, 15], 0.5, 0.05, seed=0)
    sets = [(X := rng.normal(size=(2, 2)), X @ [1.0, block[k]] + 0.1 * rng.normal(size=2)) for k in range(30)]
    chosen = {
        select_lam(Network(graph, sets, test=test), GTVMin(), [1e-3, 0.1, 10.0], folds=3).lam
        for test in (None, sets, [(X, -50 * y) for X, y in sets])
    }
    assert chosen == {0.1}


@pytest.mark.parametrize(
    ("network", "algorithm", "options", "sentence"),
    [
        (difficult_network(), GTVMin(), {"lams": []}, "Expected values of λ to choose from, got none."),
        (difficult_network(), GTVMin(), {"lams": [1.0], "folds": 1}, "The 'folds' parameter of select_lam must be"),
        (difficult_network(), GTVMin(), {"lams": [1.0], "folds": 99}, "Expected at most as many folds as nodes with"),
        (difficult_network(), Pooled(), {"lams": [1.0]}, "Expected an algorithm with a λ, got Pooled."),
    ],
)
def test_selection_refuses_what_cannot_work(network, algorithm, options, sentence):
    with pytest.raises(InputError, match=sentence):
        select_lam(network, algorithm, **options)
