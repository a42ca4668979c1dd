"""pFedMe against a plain second implementation, the closed form of its fixed point, and GTV minimisation on a star."""

import numpy as np
import pytest

from kinfolk import Graph, GTVMin, Logistic, Network, PFedMe, Squared, SquaredNorm, Tolerance, fit
from kinfolk.testing import check_algorithm, difficult_network


@pytest.mark.parametrize(
    "algorithm",
    [PFedMe(), PFedMe(Squared("sum", 0.1, True), lam=5.0, local_rounds=3, step_size=0.1, mixing=0.7)],
    ids=repr,
)
def test_runs_everywhere(algorithm):
    check_algorithm(algorithm)


def test_classifiers_run_everywhere():
    check_algorithm(PFedMe(Logistic(), local_rounds=2), difficult_network(classes=True))


def quadratics(network):
    """H and b of L(θ) = ½ θ'Hθ − b'θ + const at the nodes with data."""
    sets = [network.data[k] for k in np.flatnonzero(network.data.sizes)]
    return [(2 * X.T @ X / len(y), 2 * X.T @ y / len(y)) for X, y in sets]


def published(parts, lam, local_rounds, step, mixing, rounds):
    """Algorithm 1 of the paper, node by node; the common model and the own ones."""
    common, own = np.zeros(3), {}
    for _ in range(rounds):
        said = []
        for k, (H, b) in enumerate(parts):
            w = common
            for _ in range(local_rounds):
                own[k] = np.linalg.solve(H + lam * np.eye(3), b + lam * w)
                w = w - step * lam * (w - own[k])
            said.append(w)
        common = (1 - mixing) * common + mixing * np.mean(said, axis=0)
    return np.array(list(own.values()))


def test_rounds_are_those_of_a_plain_second_implementation():
    network = difficult_network()
    known = {"lam": 3.0, "local_rounds": 4, "mixing": 0.8}
    run = fit(network, PFedMe(**known, step_size=0.2), rounds=9, stop=None)
    own = published(quadratics(network), **known, step=0.2, rounds=9)
    np.testing.assert_allclose(run.models.w[network.data.sizes > 0], own, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("local_rounds", [1, 6])
def test_it_settles_at_the_fixed_point(local_rounds):
    """R local rounds are affine, w -> M w + c; the mean over nodes has one fixed point."""
    network, lam, step = difficult_network(), 2.0, 0.3
    slope, shift = np.zeros((3, 3)), np.zeros(3)
    parts = quadratics(network)
    for H, b in parts:
        inverse = np.linalg.inv(H + lam * np.eye(3))
        once = np.eye(3) - step * lam * (np.eye(3) - lam * inverse)
        powers = [np.linalg.matrix_power(once, r) for r in range(local_rounds + 1)]
        slope += powers[-1] / len(parts)
        shift += sum(powers[:-1]) @ (step * lam * inverse @ b) / len(parts)
    fixed = np.linalg.solve(np.eye(3) - slope, shift)
    algorithm = PFedMe(lam=lam, step_size=step, local_rounds=local_rounds)
    run = fit(network, algorithm, stop=Tolerance(1e-13))
    np.testing.assert_allclose(run.state.common[0], fixed, atol=1e-9)


def test_one_local_round_is_gtv_minimisation_on_a_star():
    network, lam = difficult_network(), 1.5
    informed = np.flatnonzero(network.data.sizes)
    star = Graph(len(informed) + 1, [(0, k + 1) for k in range(len(informed))])
    around = Network(star, [None, *(network.data[k] for k in informed)])
    known = fit(around, GTVMin(coupling=SquaredNorm(), lam=lam, steps="direct"), rounds=1)
    run = fit(network, PFedMe(lam=lam), stop=Tolerance(1e-13))
    np.testing.assert_allclose(run.models.w[informed], known.models.w[1:], atol=1e-9)
    assert run.history["objective"].iloc[-1] == pytest.approx(known.history["objective"].iloc[-1])
