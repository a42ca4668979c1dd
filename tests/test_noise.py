"""Noise on what leaves a node: both ends of an edge see the same, runs repeat, and (ε, δ) is what theory says."""

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from kinfolk import (
    DFL,
    SCAFFOLD,
    FedAvg,
    FedGD,
    FedRelax,
    GTVMin,
    InProcess,
    InputError,
    LinearModel,
    Network,
    SquaredNorm,
    fit,
    graphs,
)
from kinfolk.engine.noise import Noise
from kinfolk.engine.privacy import epsilon
from kinfolk.engine.protocol import Algorithm
from kinfolk.testing import difficult_network

SOME = Noise(clip=2.0, scale=0.1)
BEARING = [
    GTVMin(lam=0.1, steps="published"),
    GTVMin(lam=0.1, coupling=SquaredNorm()),
    FedGD(),
    DFL(step_size=0.01),
    FedAvg(step_size=0.01),
    FedRelax(LinearModel()),
]


def predictions(algorithm, sites=1, noise=SOME, seed=0):
    network = difficult_network()
    engine = InProcess(sites=sites, noise=noise)
    run = fit(network, algorithm, rounds=12, stop=None, engine=engine, participation=0.7, seed=seed, progress=False)
    return run.predict(np.ones((network.graph.node_count, len(network.features))), network.names)


@pytest.mark.parametrize("algorithm", BEARING, ids=lambda each: type(each).__name__)
def test_with_noise_a_run_repeats_and_is_the_same_on_any_number_of_sites(algorithm):
    one = predictions(algorithm)
    np.testing.assert_array_equal(one, predictions(algorithm))
    np.testing.assert_allclose(one, predictions(algorithm, sites=3), rtol=0, atol=1e-10)
    assert np.nanmax(np.abs(one - predictions(algorithm, seed=1))) > 1e-4
    assert np.nanmax(np.abs(one - predictions(algorithm, noise=None))) > 1e-4


@pytest.mark.parametrize("algorithm", BEARING, ids=lambda each: type(each).__name__)
def test_clipping_far_away_and_no_noise_change_nothing(algorithm):
    np.testing.assert_array_equal(
        predictions(algorithm, noise=Noise(clip=1e9, scale=0.0)), predictions(algorithm, noise=None)
    )


def test_both_ends_of_an_edge_keep_the_same_dual():
    network, algorithm = difficult_network(), GTVMin(lam=0.1, steps="published")
    carrier = InProcess(sites=3, noise=Noise(clip=1.0, scale=0.3)).open(network, algorithm)
    engine = _Opened(carrier)
    fit(network, algorithm, rounds=20, stop=None, engine=engine, participation=0.7, progress=False)
    duals: dict[int, list] = {}
    for worker in carrier.workers:
        for edge, u in zip(worker.site.edges.tolist(), worker.state.u, strict=True):
            duals.setdefault(edge, []).append(u)
    twice = [np.ptp(copies, axis=0).max() for copies in duals.values() if len(copies) == 2]
    assert len(twice) > 3
    assert max(twice) == 0.0


class _Opened:
    """An engine whose carrier is at hand."""

    def __init__(self, carrier):
        self.carrier = carrier

    def open(self, problem, algorithm):
        return self.carrier


def test_messages_are_clipped_and_their_noise_has_the_right_size():
    rows = {"w": np.full((4000, 2), 3.0), "v": np.full((4000, 1), np.nan)}
    rng = np.random.default_rng(0)
    out = Noise(clip=1.0, scale=0.5).added(rows, np.ones(4000, dtype=bool), lambda row: rng)
    assert np.isnan(out["v"]).all()
    np.testing.assert_allclose(out["w"].mean(axis=0), [0.5**0.5] * 2, atol=4 * 0.5 / 4000**0.5)
    np.testing.assert_allclose(out["w"].std(axis=0), 0.5, rtol=0.05)


def exact_epsilon(mu, delta):
    """ε of a Gaussian mechanism: Balle and Wang (2018), theorem 8."""

    def excess(eps):
        return norm.cdf(mu / 2 - eps / mu) - np.exp(eps + norm.logcdf(-mu / 2 - eps / mu)) - delta

    return brentq(excess, 0, 1e3)


def renyi_epsilon(multiplier, messages, delta):
    """From Rényi divergences α / 2σ², converted as Canonne, Kamath and Steinke (2020), proposition 12."""
    a = np.linspace(1.01, 500, 200_000)
    return (messages * a / (2 * multiplier**2) + np.log1p(-1 / a) - np.log(delta * a) / (a - 1)).min()


@pytest.mark.parametrize(("multiplier", "messages"), [(10.0, 100), (5.0, 20), (40.0, 61), (2.0, 1)])
def test_epsilon_is_that_of_theory(multiplier, messages):
    found = epsilon(multiplier, messages, 1e-5)
    assert found == pytest.approx(renyi_epsilon(multiplier, messages, 1e-5), rel=0.01)
    exact = exact_epsilon(messages**0.5 / multiplier, 1e-5)  # messages add up to one with a smaller deviation
    assert exact < found < 1.25 * exact


def test_what_was_spent_counts_the_messages_of_every_node():
    network = Network(graphs.chain(3), [([[1.0]], [1.0]), ([[1.0]], [2.0]), ([[1.0]], [3.0])])
    noise = Noise(clip=1.0, scale=20.0)
    run = fit(
        network, FedGD(), rounds=4, stop=None, engine=InProcess(noise=noise), progress=False,
        participation=lambda round_: [0, 1] if round_ == 2 else [0, 1, 2],
    )  # fmt: skip
    table = run.privacy.table()
    assert table["messages to neighbours"].tolist() == [5, 5, 4]  # with round 0
    assert table["ε, neighbours"].tolist() == [epsilon(10.0, 5, 1e-5)] * 2 + [epsilon(10.0, 4, 1e-5)]
    assert table["ε, coordinator"].tolist() == [0.0] * 3
    assert str(run.privacy) in run.notes
    assert fit(network, FedGD(), rounds=1, progress=False).privacy is None


def test_nothing_is_promised_where_the_coordinator_reads_without_noise():
    network = difficult_network()

    def spent(algorithm):
        engine = InProcess(noise=Noise(clip=1.0, scale=1.0))
        return fit(network, algorithm, rounds=2, stop=None, engine=engine, progress=False).privacy

    for algorithm, read in [
        (GTVMin(), "curvature of the loss, once"),
        (FedAvg(), "largest curvature of the loss, once"),
    ]:
        privacy = spent(algorithm)
        assert read in privacy.exact
        assert np.isinf(privacy.table()[["ε, neighbours", "ε, coordinator", "ε, together"]]).all(axis=None)
        assert "promises nothing" in str(privacy)
    for algorithm in (GTVMin(steps="published"), FedAvg(step_size=0.01)):
        assert np.isfinite(spent(algorithm).table()["ε, together"]).all()


def test_an_adversary_with_the_messages_tells_two_data_sets_apart_no_better_than_promised():
    """All that a node sends in two worlds, many times over: no threshold beats (ε, δ)."""
    spent = epsilon(2.0, 4, 1e-2)
    scores = {}
    for world, label in {"in": 5.0, "out": -5.0}.items():
        network = Network(graphs.chain(2), [([[1.0]], [label]), ([[1.0]], [0.0])])
        drawn = []
        for seed in range(300):
            carrier = InProcess(noise=Noise(clip=1.0, scale=4.0)).open(network, FedGD(step_size=1.0))
            sent = []
            rounds = _Recording(carrier, sent)
            fit(network, FedGD(step_size=1.0), rounds=3, stop=None, engine=_Opened(rounds), seed=seed, progress=False)
            drawn.append(np.sum(sent[1:]))
        scores[world] = np.array(drawn)
    assert scores["in"].mean() - scores["out"].mean() > 2.0  # there is something to tell
    for threshold in np.linspace(-15, 15, 31):
        hit, alarm = (scores["in"] > threshold).mean(), (scores["out"] > threshold).mean()
        slack = 4 * np.sqrt(max(hit * (1 - hit), 1e-3) / 300)
        assert hit <= np.exp(spent) * alarm + 1e-2 + slack * np.exp(spent)


class _Recording:
    """A carrier that keeps what node 0 sends."""

    def __init__(self, carrier, sent):
        self.carrier, self.kept = carrier, sent

    def __getattr__(self, name):
        return getattr(self.carrier, name)

    def exchange(self, requests):
        out = self.carrier.exchange(requests)
        if next(iter(requests.values())).work != "measure":
            self.kept.append(self.carrier.workers[0].sent["w"][0].copy())
        return out


class Silent(FedGD):
    sends = Algorithm.sends


@pytest.mark.parametrize(
    ("algorithm", "sentence"),
    [
        (DFL(step_size=0.01, tracking=True), "DFL sends them 'mean gradient', whose errors would add up"),
        (SCAFFOLD(), "SCAFFOLD sends nothing of the kind"),
        (Silent(), "give it a method sends"),
    ],
)
def test_algorithms_that_cannot_bear_noise_are_refused(algorithm, sentence):
    with pytest.raises(InputError, match=sentence):
        fit(difficult_network(), algorithm, engine=InProcess(noise=Noise(clip=1.0, scale=1.0)))


def test_noise_is_refused_where_it_could_not_be_counted(tmp_path):
    network, engine = difficult_network(), InProcess(noise=Noise(clip=1.0, scale=1.0))
    with pytest.raises(InputError, match="would not be counted"):
        fit(network, FedGD(), engine=engine, checkpoint=tmp_path / "kept")
    assert not (tmp_path / "kept").exists()
    with pytest.raises(InputError, match="would not be counted"):
        fit(network, FedGD(), engine=engine, start=fit(network, FedGD(), rounds=1, progress=False))
    for wrong in (Noise(clip=0.0, scale=1.0), Noise(clip=1.0, scale=-1.0), Noise(clip=1.0, scale=1.0, delta=1.0)):
        with pytest.raises(InputError, match="of Noise must be"):
            fit(network, FedGD(), engine=InProcess(noise=wrong))
