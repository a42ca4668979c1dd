"""Newton's method by conjugate gradients across sites: the solution of one linear system, in tens of exchanges."""

import numpy as np
import pytest

from federated import Direct, federation_of, services_of
from kinfolk import GTVMin, InputError, Network, SquaredNorm, Tolerance, fit, graphs
from kinfolk.algorithms.newton import MOST, Newton
from kinfolk.engine.in_process import InProcess
from kinfolk.objective.losses import Absolute, Logistic, Squared
from kinfolk.testing import difficult_network

TIGHT = {"stop": Tolerance(1e-9, None), "rounds": 200, "measure_every": 1, "progress": False}


class Counted(Newton):
    """Counts the exchanges."""

    made = 0

    def combine(self, memory, outbox, turn):
        type(self).made += 1
        return super().combine(memory, outbox, turn)


def groups(seed=0, *, classes=False):
    """Twelve nodes in a row whose features have other scales; two have no rows."""
    rng = np.random.default_rng(seed)
    data = []
    for k in range(12):
        X = rng.normal(size=(8, 3)) * [1.0, 30.0, 0.1]
        y = X @ [1.0, 0.1, np.sin(k)] + rng.normal(size=8)
        data.append(None if k in (4, 5) else (X, (y > 0).astype(float) if classes else y))
    return Network(graphs.chain(12), data)


@pytest.mark.parametrize("sites", [1, 3])
@pytest.mark.parametrize("common", [True, False])
@pytest.mark.parametrize("lam", [1e-3, 1.0, 1e4])
def test_it_is_the_solution_of_the_linear_system(sites, common, lam):
    network, loss = groups(), Squared(ridge=0.1, intercept=True)
    exact = fit(network, GTVMin(loss, SquaredNorm(), lam, steps="direct"), rounds=1, progress=False).models.w
    found = fit(network, Newton(loss, lam, 1e-10, common), engine=InProcess(sites), **TIGHT)
    assert found.stopped.startswith("converged")
    np.testing.assert_allclose(found.models.w, exact, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("origin", [(), (0.0, 0.0, 0.0), (8.0, -1.0, 40.0)])
def test_classes_and_a_step_that_goes_too_far(origin):
    """From far away Newton's step overshoots, and is halved until the objective falls."""
    network, loss = groups(classes=True), Logistic(ridge=0.5)
    here = fit(network, GTVMin(loss, SquaredNorm(), 2.0), stop=Tolerance(1e-11, None), progress=False)
    found = fit(network, Newton(loss, 2.0, 1e-9, origin=origin), engine=InProcess(3), **TIGHT)
    assert found.stopped.startswith("converged")
    np.testing.assert_allclose(found.models.w, here.models.w, rtol=1e-6, atol=1e-8)
    assert (np.diff(found.history["objective"]) <= 1e-9).all()


def test_a_common_model_saves_exchanges_where_all_move_together():
    made = []
    for common in (True, False):
        Counted.made = 0
        fit(groups(), Counted(Squared(ridge=0.1), 1e5, 1e-7, common), **TIGHT | {"stop": Tolerance(1e-7, None)})
        made.append(Counted.made)
    assert made[0] < 40
    assert made[0] <= made[1]


def test_sites_elsewhere_end_at_the_same_bits(tmp_path):
    pytest.importorskip("cryptography", reason="the package cryptography is not installed")
    network, algorithm = difficult_network(), Newton(lam=3.0, accuracy=1e-8)
    here = fit(network, algorithm, engine=InProcess(3), **TIGHT | {"stop": Tolerance(1e-8, None)})
    services = services_of(network, 3, tmp_path)
    federation = federation_of(network, 3, Direct(services))
    there = fit(federation.gather(), algorithm, engine=federation, **TIGHT | {"stop": Tolerance(1e-8, None)})
    columns = ["objective", "residual"]
    np.testing.assert_array_equal(there.history[columns].to_numpy(), here.history[columns].to_numpy())
    for service in services.values():
        service.close()


def test_what_is_common_is_sent_as_sums_of_a_site():
    """Only the first row of a site has any, and without it nothing of the kind leaves."""
    network = difficult_network()
    seen = []

    class Seeing(Newton):
        def combine(self, memory, outbox, turn):
            seen.append({name: np.any(values, axis=tuple(range(1, values.ndim))) for name, values in outbox.items()})
            return super().combine(memory, outbox, turn)

    fit(network, Seeing(lam=1.0), engine=InProcess(3), **TIGHT | {"rounds": 2})
    assert max(each["sum"].sum() for each in seen if "sum" in each) == 3
    assert seen[0]["bend"].sum() == 3
    seen.clear()
    fit(network, Seeing(lam=1.0, common=False), engine=InProcess(3), **TIGHT | {"rounds": 2})
    assert all(set(each) == {"numbers"} for each in seen)


def test_rounds_are_as_long_as_needed():
    assert Newton().exchanges(1, Newton().start(None, None)) < MOST


def test_bad_input():
    network = groups()
    with pytest.raises(InputError, match="smooth loss for Newton"):
        fit(network, Newton(Absolute()), progress=False)
    with pytest.raises(InputError, match="origin with 3 parameters, got 2"):
        fit(network, Newton(origin=(1.0, 2.0)), progress=False)
    with pytest.raises(InputError, match="Expected everybody in every round of Newton"):
        fit(network, Newton(), participation=0.5, progress=False, rounds=3)
