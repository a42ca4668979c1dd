"""Where the interior-point method starts and what becomes of its flows; CVXPY judges its answers in ``test_polish``."""

import numpy as np
import pytest

from kinfolk import GTVMin, fit
from kinfolk.algorithms.gtvmin import finish, interior
from kinfolk.algorithms.gtvmin.balance import UNBALANCED
from kinfolk.algorithms.gtvmin.cones import Balls, Boxes, central_difference
from kinfolk.algorithms.gtvmin.instance import Instance
from kinfolk.algorithms.gtvmin.optimality import parts_at, relative, residual_at
from kinfolk.algorithms.gtvmin.systems import system_of
from kinfolk.testing import difficult_network


@pytest.mark.parametrize("mu", [1e-3, 1.0, 30.0])
@pytest.mark.parametrize("width", [1, 3])
def test_a_start_on_the_central_path_keeps_difference_and_flow_together(mu, width):
    rng = np.random.default_rng(4)
    v, u = rng.normal(size=(50, width)), rng.normal(size=(50, width))
    v[0] = u[0] = 0.0
    sigma, radius = rng.uniform(0.1, 10.0, size=(2, 50, 1))
    found = central_difference(v, u, sigma, radius, mu / radius / 2)
    flow = Balls(found, radius[:, 0], mu).u
    np.testing.assert_allclose(found + flow / sigma, v + u / sigma, rtol=1e-3, atol=1e-9)
    if width == 1:
        found = central_difference(v, u, sigma, radius, mu / radius)
        flow = Boxes(found, -radius, radius, np.zeros_like(v), mu).u
        np.testing.assert_allclose(found + flow / sigma, v + u / sigma, rtol=1e-3, atol=1e-9)


def steps_to(network, algorithm, w, u):
    """Steps to a gap of 1e-6 from (w, u)."""
    site = network.site
    problem = Instance(site, site.local_losses(algorithm.loss), algorithm.coupling, algorithm.lam * site.weights)
    start = w, u, np.ones(len(u))
    return interior.solve(problem, start, system_of(site, w.shape[1]), lambda w, u: 0.0).steps


def test_a_start_at_a_neighbouring_lam_saves_steps():
    network, algorithm = difficult_network(), GTVMin(lam=0.11)
    near, here = fit(network, GTVMin(lam=0.1)).state, fit(network, algorithm).state
    cold = steps_to(network, algorithm, np.zeros_like(here.w), np.zeros_like(here.u))
    assert steps_to(network, algorithm, near.w, 1.1 * near.u) <= cold - 2


def complementarity(lines, state):
    """By how much it is missed, relative."""
    return relative({name: part.sum() for name, part in parts_at(lines, state).items()})[1]


def test_flows_short_of_the_border_are_taken_there():
    network, algorithm = difficult_network(), GTVMin(lam=0.1)
    solved = fit(network, algorithm).state
    state = solved._replace(u=(1 - 1e-5) * solved.u)
    lines = algorithm.lines(network.site, UNBALANCED.to_all)
    placed = finish._with_flows_in_place(lines, state)
    missed = [complementarity(lines, each) for each in (state, placed)]
    assert missed[1] < 0.5 * missed[0]
    assert residual_at(lines, placed) < residual_at(lines, state)
