"""GTV minimisation: CVXPY, closed forms and the certificate are the oracles."""

from dataclasses import replace

import cvxpy
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.special import xlogy

import probes
from kinfolk import (
    AbsoluteNorm,
    EuclideanNorm,
    Graph,
    GTVMin,
    InProcess,
    InputError,
    Local,
    Logistic,
    Network,
    Pooled,
    Squared,
    SquaredNorm,
    Tolerance,
    fit,
    found_clusters,
    graphs,
)
from kinfolk.algorithms.gtvmin import Inexact
from kinfolk.objective.couplings import MaximumNorm, PNorm, QuadraticForm
from kinfolk.objective.losses import Absolute, Huber, Loss, Poisson, Quantile, SquaredDistance
from kinfolk.testing import check_algorithm, difficult_network

COUPLINGS = [EuclideanNorm(), AbsoluteNorm(), SquaredNorm()]
SINGULAR = QuadraticForm(((1.0, 0.5, 0.0), (0.5, 1.0, 0.0), (0.0, 0.0, 0.0)))
ALL_COUPLINGS = [*COUPLINGS, MaximumNorm(), PNorm(p=1.5), PNorm(p=4.0), SINGULAR]
LOSSES = [
    Squared(), Squared("sum", 0.1, True), Logistic(), Logistic("sum", 0.2, True), Huber(delta=0.2), Poisson(),
    Absolute(), Absolute("sum", 0.1, True), SquaredDistance(), SquaredDistance("sum", 0.1),
]  # fmt: skip
PRECISE = Tolerance(1e-9)


def smallest_objective(network: Network, algorithm: GTVMin) -> float:
    """The optimum according to CVXPY."""
    loss, width = algorithm.loss, network.data.feature_count
    w = cvxpy.Variable((network.graph.node_count, width + loss.intercept))
    rows = {
        Squared: lambda z, y: cvxpy.square(z - y),
        Logistic: lambda z, y: cvxpy.logistic(z) - cvxpy.multiply(y, z),
        Huber: lambda z, y: cvxpy.huber(z - y, loss.delta),
        Poisson: lambda z, y: cvxpy.exp(z) - cvxpy.multiply(y, z) + xlogy(y, y) - y,
        Absolute: lambda z, y: cvxpy.abs(z - y),
        Quantile: lambda z, y: cvxpy.maximum(loss.level * (y - z), (1 - loss.level) * (z - y)),
        SquaredDistance: lambda z, y: cvxpy.square(z - y),
    }[type(loss)]
    terms = []
    for node in range(network.graph.node_count):
        X, y = network.data[node]
        if len(y):
            z = X @ w[node, :width] + (w[node, width] if loss.intercept else 0)
            if isinstance(loss, SquaredDistance):
                z, y = cvxpy.vstack([w[node]] * len(X)), X
            terms.append(cvxpy.sum(rows(z, y)) / (len(X) if loss.reduction == "mean" else 1))
            terms.append(loss.ridge / 2 * cvxpy.sum_squares(w[node, :width]))
    coupling = algorithm.coupling
    charge = {
        EuclideanNorm: cvxpy.norm2,
        AbsoluteNorm: cvxpy.norm1,
        SquaredNorm: lambda v: cvxpy.sum_squares(v) / 2,
        MaximumNorm: cvxpy.norm_inf,
        PNorm: lambda v: cvxpy.pnorm(v, coupling.p),
        QuadraticForm: lambda v: cvxpy.quad_form(v, np.array(coupling.Q)) / 2,
    }[type(coupling)]
    for head, tail, weight in zip(network.graph.head, network.graph.tail, network.graph.weights, strict=True):
        terms.append(algorithm.lam * weight * charge(w[head] - w[tail]))
    problem = cvxpy.Problem(cvxpy.Minimize(cvxpy.sum(terms)))
    problem.solve(solver=cvxpy.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)
    return float(problem.value)


@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
@pytest.mark.parametrize("coupling", ALL_COUPLINGS, ids=repr)
@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_agrees_with_cvxpy_and_the_certificate_bounds_the_truth(loss, coupling):
    if isinstance(coupling, QuadraticForm):
        loss = replace(loss, ridge=0.1)  # a direction without coupling has no minimum where nodes separate classes
    if loss.intercept and isinstance(coupling, QuadraticForm):
        coupling = QuadraticForm(tuple(map(tuple, np.diag([1.0, 2.0, 0.0, 0.5]).tolist())))
    network = network_for(loss)
    algorithm = GTVMin(loss, coupling, lam=0.1)
    best = smallest_objective(network, algorithm)
    for accuracy in (1e-2, 1e-4, 1e-9):
        run = fit(network, algorithm, stop=Tolerance(accuracy), rounds=20_000)
        assert run.stopped.startswith("converged")
        certificate = run.certificate
        truth = certificate.objective - best
        assert certificate.bound >= truth - 1e-8 * best
        assert certificate.residual <= accuracy
        assert certificate.objective == pytest.approx(run.history["objective"].iloc[-1], rel=1e-12)
    assert abs(truth) <= 1e-6 * best
    assert certificate.relative <= 1e-6
    unbounded = isinstance(loss, Logistic | Poisson) and (loss.ridge == 0 or loss.intercept)
    assert certificate.radius_is_assumed == (unbounded or isinstance(coupling, QuadraticForm))


ODD_LOSSES = [
    Squared(), Logistic(ridge=0.01), Huber(delta=0.2), Poisson(ridge=0.01), Absolute(),
    Quantile(intercept=True, level=0.7), SquaredDistance(),
]  # fmt: skip
ODD_COUPLINGS = [*COUPLINGS, MaximumNorm(), PNorm(p=4.0), None]


@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
@pytest.mark.parametrize(("decades", "features"), [(3.0, 4), (0.5, 40)], ids=["six decades", "40 features"])
@pytest.mark.parametrize("coupling", ODD_COUPLINGS, ids=repr)
@pytest.mark.parametrize("loss", ODD_LOSSES, ids=repr)
def test_every_loss_and_coupling_on_odd_networks(loss, coupling, decades, features):
    if coupling is None:
        coupling, loss = half_blind(features + loss.intercept), replace(loss, ridge=0.1)
    network, algorithm = odd_network(loss, decades, features), GTVMin(loss, coupling, lam=0.1)
    # Where both terms are piecewise linear the rounds are many: the certificate has to know how far they got.
    piecewise_linear = not loss.smooth and isinstance(coupling, AbsoluteNorm | MaximumNorm)
    run = fit(network, algorithm, stop=Tolerance(1e-7), rounds=2_000 if piecewise_linear else 20_000)
    best, certificate, scale = smallest_objective(network, algorithm), run.certificate, run.history["objective"].iloc[0]
    truth = certificate.objective - best
    assert certificate.bound >= truth - 1e-8 * scale
    if not piecewise_linear:
        assert run.stopped.startswith("converged")
    assert certificate.bound <= (1e-2 if piecewise_linear else 1e-4) * scale
    assert np.isfinite(run.models.w).all()


def odd_network(loss: Loss, decades: float, features: int) -> Network:
    """Two samples per node and more features, two nodes without data, one alone, weights over 2 · ``decades``."""
    rng = np.random.default_rng(0)
    ends = [(0, 1), (0, 2), (1, 2), (2, 3), (3, 4), (3, 5), (4, 5), (5, 6), (1, 6)]
    exponents = np.r_[decades, -decades, rng.uniform(-decades, decades, len(ends) - 2)]
    truth = rng.normal(size=(2, features)) / np.sqrt(features)

    def samples(node):
        X = rng.normal(size=(2, features))
        z = X @ truth[node % 2] + 0.3 * rng.normal(size=2)
        labels = {Logistic: rng.permutation([0.0, 1.0]), Poisson: np.floor(np.exp(z))}
        return X, labels.get(type(loss), z)

    return Network(Graph(8, ends, 10.0**exponents), [None if k in (2, 6) else samples(k) for k in range(8)])


def half_blind(width: int) -> QuadraticForm:
    """A quadratic coupling that does not see the last parameter."""
    Q = np.eye(width)
    Q[0, 1] = Q[1, 0] = 0.5
    Q[-1, -1] = 0.0
    return QuadraticForm(tuple(map(tuple, Q.tolist())))


def network_for(loss: Loss) -> Network:
    """The difficult network with labels that the loss admits."""
    network = difficult_network(classes=isinstance(loss, Logistic))
    if not isinstance(loss, Poisson):
        return network
    counts = [(X, np.floor(np.exp(np.clip(y, -2, 2)))) for X, y in map(network.data.__getitem__, range(24))]
    return Network(network.graph, counts)


@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 10**6),
    lam=st.sampled_from([1e-3, 0.1, 1.0, 30.0]),
    coupling=st.sampled_from(COUPLINGS),
    decades=st.sampled_from([0.0, 3.0]),
    hidden=st.sampled_from([0.0, 0.6]),
)
def test_random_networks_agree_with_cvxpy(seed, lam, coupling, decades, hidden):
    rng = np.random.default_rng(seed)
    graph, _ = graphs.stochastic_block([6, 6], 0.6, 0.1, seed=seed)
    graph = Graph(12, np.stack([graph.head, graph.tail], 1), 10.0 ** rng.uniform(-decades, decades, graph.edge_count))
    sets = [None if rng.random() < hidden else (rng.normal(size=(2, 3)), rng.normal(size=2)) for _ in range(12)]
    sets[0] = (rng.normal(size=(2, 3)), rng.normal(size=2))
    network, algorithm = Network(graph, sets), GTVMin(coupling=coupling, lam=lam)
    best = smallest_objective(network, algorithm)
    # Weights up to 30,000 charge the smallest difference: the residual must be that much smaller.
    run = fit(network, algorithm, stop=Tolerance(1e-12 if decades else 1e-11), rounds=50_000)
    scale = run.history["objective"].iloc[0]
    truth = run.certificate.objective - best
    assert run.certificate.bound >= truth - 1e-8 * scale
    assert truth <= 1e-6 * scale


@pytest.mark.parametrize("loss", [Squared(), Squared("sum", 0.1, True)], ids=repr)
@pytest.mark.parametrize("lam", [1e-3, 0.1, 10.0])
def test_direct_solve_agrees_with_the_rounds(loss, lam):
    network = difficult_network()
    direct = fit(network, GTVMin(loss, SquaredNorm(), lam, steps="direct"))
    rounds = fit(network, GTVMin(loss, SquaredNorm(), lam), stop=Tolerance(1e-12), rounds=50_000)
    assert direct.rounds == 1
    assert direct.certificate.residual < 1e-12
    assert direct.certificate.relative < 1e-10
    np.testing.assert_allclose(rounds.state.w, direct.state.w, atol=1e-8)
    laplacian = np.kron(network.graph.laplacian.toarray(), np.eye(direct.state.w.shape[1]))
    losses = network.site.local_losses(loss)
    gradient = losses.gradient(direct.state.w).ravel() + lam * laplacian @ direct.state.w.ravel()
    np.testing.assert_allclose(gradient, 0, atol=1e-10)


def test_direct_solve_of_a_singular_system_is_a_solution():
    x = np.array([[1.0, 0.0]])
    network = Network(graphs.chain(4, weak_link=0.0), [(x, [1.0]), None, None, None])
    run = fit(network, GTVMin(coupling=SquaredNorm(), steps="direct", uninformed="pooled"))
    np.testing.assert_allclose(run.models.w, [[1.0, 0.0]] * 4, atol=1e-9)


def test_published_steps_are_algorithm_1():
    network = difficult_network()
    paper = fit(network, probes.PaperGTVMin(lam=0.1), rounds=29, stop=None)
    ours = fit(network, GTVMin(lam=0.1, steps="published"), rounds=30, stop=None)
    connected = network.graph.degrees > 0  # a lone node starts at its minimum here, at zero in the paper
    np.testing.assert_allclose(ours.state.w_new[connected], paper.state.w[connected], atol=1e-13)
    np.testing.assert_allclose(ours.state.u, paper.state.u, atol=1e-13)


def test_two_nodes_in_closed_form():
    # min (a − 0)² + (b − 1)² + λ|a − b|: a = λ/2, b = 1 − λ/2 until they meet at ½.
    network = Network(graphs.chain(2), [([[1.0]], [0.0]), ([[1.0]], [1.0])])
    for lam, expected in ((0.4, [0.2, 0.8]), (1.0, [0.5, 0.5]), (5.0, [0.5, 0.5])):
        run = fit(network, GTVMin(lam=lam), stop=Tolerance(1e-10))
        np.testing.assert_allclose(run.models.w[:, 0], expected, atol=1e-8)


def test_no_coupling_is_local_and_strong_coupling_is_pooled():
    network = Network(graphs.complete(5), difficult_sets(5))
    alone, together = fit(network, Local()), fit(network, Pooled())
    np.testing.assert_allclose(fit(network, GTVMin(lam=0.0), stop=PRECISE).models.w, alone.models.w, atol=1e-6)
    for coupling in (EuclideanNorm(), AbsoluteNorm()):
        run = fit(network, GTVMin(coupling=coupling, lam=1e3), stop=PRECISE)
        np.testing.assert_allclose(run.models.w, together.models.w, atol=1e-6)


def difficult_sets(count: int) -> list:
    rng = np.random.default_rng(3)
    return [(rng.normal(size=(4, 2)), rng.normal(size=4)) for _ in range(count)]


def test_isolated_nodes_stay_local_and_uninformed_ones_are_said():
    x = np.ones((1, 1))
    network = Network(Graph(4, [[0, 1]]), [(x, [1.0]), None, (x, [5.0]), None])
    run = fit(network, GTVMin(lam=1.0))
    np.testing.assert_allclose(run.models.w[:3, 0], [1.0, 1.0, 5.0], atol=1e-5)
    assert np.isnan(run.models.w[3, 0])
    assert np.isnan(run.predict([[1.0]], [3])[0])
    assert run.notes == [
        "The graph has 3 components: nothing is learnt across them.",
        "2 nodes have no neighbour (2, 3): they learn from their own data only.",
        "1 node has no data and no connection to any (3): nothing can be learnt there.",
        "Such nodes get no model (NaN).",
    ]
    pooled = fit(network, GTVMin(lam=1.0, uninformed="pooled"))
    np.testing.assert_allclose(pooled.models.w[:, 0], [1.0, 1.0, 5.0, 3.0], atol=1e-5)
    assert pooled.notes[-1] == "Such nodes get the pooled model."


@pytest.mark.parametrize("coupling", COUPLINGS, ids=lambda c: type(c).__name__)
def test_balanced_steps_need_no_more_rounds_than_published_ones(coupling):
    rng = np.random.default_rng(5)
    graph, block = graphs.stochastic_block([40, 40], 0.3, 0.02, seed=5)
    truth = rng.normal(size=(2, 4))
    sets = [(X := rng.normal(size=(3, 4)), X @ truth[block[i]] + 0.1 * rng.normal(size=3)) for i in range(80)]
    network = Network(graph, sets)
    for lam in (0.01, 0.1, 1.0):
        rounds = [
            fit(network, GTVMin(coupling=coupling, lam=lam, steps=steps), rounds=30_000).rounds
            for steps in ("balanced", "published")
        ]
        assert rounds[0] <= rounds[1]


@pytest.mark.parametrize(("participation", "lost"), [(0.5, 0.0), (1.0, 0.3)])
def test_absent_nodes_and_lost_messages_change_the_way_not_the_answer(participation, lost):
    network, algorithm = difficult_network(), GTVMin(lam=0.1)
    everybody = fit(network, algorithm, stop=PRECISE)
    some = fit(
        network, algorithm, participation=participation, engine=InProcess(3, lost), stop=Tolerance(1e-8), rounds=30_000
    )
    assert some.stopped.startswith("converged")
    np.testing.assert_allclose(some.models.w, everybody.models.w, atol=1e-5)


ALGORITHMS = [
    GTVMin(lam=0.1),
    GTVMin(Squared("sum", 0.1, True), AbsoluteNorm(), 0.5),
    GTVMin(coupling=SquaredNorm(), steps="published"),
    GTVMin(uninformed="pooled"),
    GTVMin(inexact=Inexact()),
    GTVMin(Absolute(), lam=0.1),
    GTVMin(Quantile("sum", 0.1, True, level=0.8), AbsoluteNorm(), lam=0.1),
    GTVMin(SquaredDistance(), lam=0.1),
]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=repr)
def test_runs_everywhere(algorithm):
    check_algorithm(algorithm, rounds=25)


def test_logistic_runs_everywhere():
    check_algorithm(GTVMin(Logistic(), lam=0.1), difficult_network(classes=True), rounds=25)


@pytest.mark.parametrize("loss", [Squared(), Logistic()], ids=repr)
def test_inexact_updates_converge_if_their_errors_shrink_and_only_then(loss):
    network = network_for(loss)
    exact = fit(network, GTVMin(loss, lam=0.1), stop=PRECISE)
    shrinking = fit(network, GTVMin(loss, lam=0.1, inexact=Inexact(0.1, power=2.0)), rounds=6000)
    assert shrinking.stopped.startswith("converged")
    np.testing.assert_allclose(shrinking.models.w, exact.models.w, atol=1e-4)
    constant = fit(network, GTVMin(loss, lam=0.1, inexact=Inexact(0.1, power=0.0)), rounds=6000)
    assert constant.history["residual"].iloc[-100:].min() > 1e-3


def test_gradient_prox_is_as_accurate_as_promised():
    network, rng = difficult_network(), np.random.default_rng(0)
    losses, tau = network.site.local_losses(Squared()), 10.0 ** rng.uniform(-2, 1, 24)
    v, start = rng.normal(size=(2, 24, 3))
    for accuracy in (1e-1, 1e-4):
        error = np.linalg.norm(losses.prox_by_gradient(v, tau, accuracy, start) - losses.prox(v, tau), axis=1)
        assert error.max() <= accuracy
        assert error.max() > 1e-3 * accuracy


@pytest.mark.parametrize("coupling", COUPLINGS, ids=repr)
def test_one_pass_over_the_edges_gives_what_separate_steps_give(coupling):
    class Separate(type(coupling)):
        kernel_coefficients = None

    network = difficult_network()
    fused, separate = (fit(network, GTVMin(coupling=c), rounds=37, stop=None) for c in (coupling, Separate()))
    np.testing.assert_allclose(fused.state.u, separate.state.u, atol=1e-12)
    np.testing.assert_allclose(fused.models.w, separate.models.w, atol=1e-12)


def test_certificate_in_plain_words():
    run = fit(difficult_network(), GTVMin(lam=0.1))
    assert str(run.certificate).startswith("The objective is ")
    assert "No other choice of parameters lowers it by more than" in str(run.certificate)
    assert "assumes" not in str(run.certificate)
    logistic = fit(difficult_network(classes=True), GTVMin(Logistic(), lam=0.1)).certificate
    assert "This assumes that a best choice lies within" in str(logistic)


def test_certificate_is_honest_about_nearly_collinear_features():
    i = np.arange(40.0)
    a, b = np.cos(i), np.sin(i)
    b -= a * (a @ b) / (a @ a)
    X = np.c_[a, a + 1e-7 * b]
    network = Network(graphs.chain(2), [(X[:20], b[:20]), (X[20:], b[20:])])
    certificate = fit(network, GTVMin(lam=1.0)).certificate
    exact = np.array([[-1e7, 1e7]] * 2)
    best = network.site.local_losses(Squared()).value(exact).sum()
    assert certificate.bound >= certificate.objective - best


def test_direct_solve_of_features_on_very_different_scales():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 2)) * [5e4, 0.01]
    y = X @ [1e-5, 50.0] + 0.1 * rng.normal(size=30)
    network = Network(graphs.chain(3), [(X[k : k + 10], y[k : k + 10]) for k in (0, 10, 20)])
    lam = 1e-3
    run = fit(network, GTVMin(Squared(intercept=True), SquaredNorm(), lam, steps="direct"))
    rows = np.zeros((30, 9))
    for k in range(3):
        rows[10 * k : 10 * k + 10, 3 * k : 3 * k + 3] = np.c_[X[10 * k : 10 * k + 10], np.ones(10)] / np.sqrt(10)
    difference = np.kron([[1, -1, 0], [0, 1, -1]], np.sqrt(lam / 2) * np.eye(3))
    system, target = np.vstack([rows, difference]), np.r_[y / np.sqrt(10), np.zeros(6)]
    scale = np.linalg.norm(system, axis=0)
    best = np.linalg.lstsq(system / scale, target, rcond=None)[0] / scale
    np.testing.assert_allclose(run.models.w.ravel(), best, rtol=1e-6)


def test_without_coupling_nodes_without_data_have_no_model():
    network = Network(graphs.chain(2), [([[1.0]], [1.0]), None])
    run = fit(network, GTVMin(lam=0.0))
    assert np.isnan(run.models.w).ravel().tolist() == [False, True]
    assert run.notes == ["λ is 0: every node learns alone, and nodes without data learn nothing."]


def test_certificate_sees_a_wrong_answer():
    network = difficult_network()
    run = fit(network, GTVMin(lam=0.1), stop=PRECISE)
    spoilt = run.state._replace(w=run.state.w + 0.1, w_bar=run.state.w_bar + 0.1)
    certificate = run.algorithm.certify(network.site, spoilt, run.snapshot.inbox(network.site.nodes))
    truth = certificate.objective - run.certificate.objective
    assert truth > 1e-3
    assert certificate.bound >= truth
    assert certificate.residual > 1e-3


@pytest.mark.parametrize(
    ("algorithm", "sentence"),
    [
        (GTVMin(Squared), "The 'loss' parameter of GTVMin must be a NodeLoss. Got <class"),
        (GTVMin(coupling="l2"), "The 'coupling' parameter of GTVMin must be a Coupling. Got 'l2' instead."),
        (GTVMin(coupling=QuadraticForm(((1.0,),))), "Expected a symmetric Q of shape (3, 3), got shape (1, 1)."),
        (GTVMin(coupling=QuadraticForm(((1.0, 0, 0), (0, -1.0, 0), (0, 0, 1.0)))), "got the eigenvalue -1."),
        (GTVMin(lam=-1), "The 'lam' parameter of GTVMin must be a number ≥ 0. Got -1 instead."),
        (GTVMin(lam=float("nan")), "The 'lam' parameter of GTVMin must be a number ≥ 0. Got nan instead."),
        (GTVMin(lam="auto"), "The 'lam' parameter of GTVMin must be a number ≥ 0. Got 'auto' instead."),
        (GTVMin(steps="fast"), "The 'steps' parameter of GTVMin must be one of 'balanced', 'published', 'direct'."),
        (GTVMin(Squared("median")), "The 'reduction' parameter of Squared must be one of 'mean', 'sum'."),
        (GTVMin(Squared(ridge=-1.0)), "The 'ridge' parameter of Squared must be a number ≥ 0. Got -1.0 instead."),
        (GTVMin(Squared(intercept=1)), "The 'intercept' parameter of Squared must be True or False. Got 1 instead."),
        (GTVMin(SquaredDistance(intercept=True)), "The 'intercept' parameter of SquaredDistance must be"),
        (GTVMin(Quantile(level=1.0)), "The 'level' parameter of Quantile must be a number in (0, 1). Got 1.0 instead."),
        (
            GTVMin(Absolute(), inexact=Inexact()),
            "Expected a loss of bounded curvature for gradient steps, got Absolute.",
        ),
        (GTVMin(steps="direct"), "can be 'direct' only for Squared loss with SquaredNorm coupling. Got Squared with"),
    ],
)
def test_wrong_parameters_get_a_sentence(algorithm, sentence):
    with pytest.raises(InputError) as error:
        fit(difficult_network(), algorithm)
    assert sentence in str(error.value)


def test_two_medians_in_closed_form():
    # min |a| + |a − 1| + |a − 5| + |b − 9| + λ|a − b|: below λ = 1 nobody gives way, and the node of three costs 5 at
    # its median; above, b joins a, and together they cost 13 anywhere between 1 and 5.
    network = Network(graphs.chain(2), [(np.ones((3, 1)), [0.0, 1.0, 5.0]), ([[1.0]], [9.0])])
    apart, together = (fit(network, GTVMin(Absolute("sum"), lam=lam), stop=Tolerance(1e-10)) for lam in (0.9, 1.5))
    np.testing.assert_allclose(apart.models.w[:, 0], [1.0, 9.0], atol=1e-8)
    assert apart.certificate.objective == pytest.approx(5 + 0.9 * 8, rel=1e-8)
    assert together.certificate.objective == pytest.approx(13, rel=1e-8)
    assert np.ptp(together.models.w) < 1e-8


def test_outliers_do_not_move_the_absolute_loss():
    rng = np.random.default_rng(0)
    graph, planted = graphs.stochastic_block([10, 10], 0.8, 0.05, seed=0)
    truth = np.array([[1.0, 2.0], [-1.0, 0.5]])[planted]
    sets = [(X := rng.normal(size=(6, 2)), X @ w + np.r_[50.0, np.zeros(5)]) for w in truth]
    off = {
        type(loss): np.abs(fit(Network(graph, sets), GTVMin(loss, lam=0.3)).models.w - truth).max()
        for loss in (Absolute(), Squared())
    }
    assert off[Absolute] < 1e-4
    assert off[Squared] > 1.0


def test_convex_clustering_is_squared_loss_with_an_identity_for_every_point():
    rng = np.random.default_rng(1)
    points = rng.normal(size=(9, 4))
    graph = graphs.complete(9)
    spelt_out = Network(graph, [(np.eye(4), point) for point in points])
    for coupling in (EuclideanNorm(), SquaredNorm()):
        ours = fit(Network.of_points(graph, points), GTVMin(SquaredDistance(), coupling, 0.05), stop=PRECISE)
        theirs = fit(spelt_out, GTVMin(Squared("sum"), coupling, 0.05), stop=PRECISE)
        np.testing.assert_allclose(ours.models.w, theirs.models.w, atol=1e-8)
        assert ours.certificate.objective == pytest.approx(theirs.certificate.objective, rel=1e-9)
    direct = fit(Network.of_points(graph, points), GTVMin(SquaredDistance(), SquaredNorm(), 0.05, steps="direct"))
    np.testing.assert_allclose(direct.models.w, ours.models.w, atol=1e-7)


def test_convex_clustering_finds_planted_clusters_and_needs_no_matrix_per_node():
    rng = np.random.default_rng(2)
    planted = np.repeat([0, 1, 2], 10)
    centres = 5.0 * np.eye(3, 2_000)
    points = centres[planted] + 0.005 * rng.normal(size=(30, 2_000))  # a Hessian per node would take a gigabyte
    network = Network.of_points(graphs.complete(30), points)
    run = fit(network, GTVMin(SquaredDistance(), lam=0.1))
    np.testing.assert_array_equal(found_clusters(run), planted)
    assert run.certificate.relative < 1e-6
    np.testing.assert_allclose(run.models.w.sum(axis=0), points.sum(axis=0), atol=1e-6)


def test_direct_needs_the_whole_network():
    with pytest.raises(InputError, match="Expected all nodes in one site for steps='direct'"):
        fit(difficult_network(), GTVMin(coupling=SquaredNorm(), steps="direct"), engine=InProcess(2))


def test_any_parameters_can_be_certified():
    network, algorithm = difficult_network(), GTVMin(lam=0.1)
    run = fit(network, algorithm, stop=PRECISE)
    best = run.certificate
    u = algorithm.coupling.dual_prox(run.state.u, np.ones(len(run.state.u)), 0.1 * network.graph.weights)
    again = algorithm.certificate_of(network, run.state.w_bar, u)
    assert again.objective == pytest.approx(best.objective)
    assert again.relative <= 1e-5
    rng = np.random.default_rng(0)
    for size in (1e-3, 1e-1):
        w = run.state.w_bar + size * rng.normal(size=run.state.w_bar.shape)
        found = algorithm.certificate_of(network, w, np.zeros_like(u))
        assert found.bound >= found.objective - best.objective
        assert found.residual > again.residual
