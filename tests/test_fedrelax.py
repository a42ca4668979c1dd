"""FedRelax: GTV minimisation, unmerged fits and the contract of scikit-learn are the oracles."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.ensemble import GradientBoostingRegressor, RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeRegressor

from kinfolk import (
    FedRelax,
    GTVMin,
    InProcess,
    InputError,
    LinearModel,
    Network,
    Squared,
    Tolerance,
    fit,
    graphs,
    public,
)
from kinfolk.local_models.estimators import Estimator, Resampled
from kinfolk.local_models.least_squares import RMSprop
from kinfolk.objective.couplings import QuadraticForm
from kinfolk.testing import check_algorithm, difficult_network

X1 = np.array([[0.0], [1.0], [2.0]])


def three_clusters(features=5, seed=0, size=8, samples=6, per_node=False):
    rng = np.random.default_rng(seed)
    graph, block = graphs.stochastic_block([size] * 3, 0.8, 0.1, seed=seed)
    truth = rng.normal(size=(3, features))

    def draw(node, count):
        X = rng.normal(size=(count, features))
        return X, X @ truth[block[node]]

    nodes = range(3 * size)
    network = Network(graph, [draw(k, samples) for k in nodes], test=[draw(k, 30) for k in nodes])
    return network.with_public(public.standard_normal(network, 40, per_node=per_node, seed=seed))


def per_node(network, seed=0):
    return network.with_public(public.standard_normal(network, 7, per_node=True, seed=seed))


# ---------------------------------------------------------------------- what it converges to


def test_linear_fixed_point_is_gtv_minimisation_with_a_quadratic_form():
    network = three_clusters()
    points = network.public.points
    form = QuadraticForm(tuple(map(tuple, 2 * points.T @ points / len(points))))
    best = fit(network, GTVMin(Squared(), form, lam=0.3), stop=Tolerance(1e-13), rounds=50_000).models.w
    run = fit(network, FedRelax(LinearModel(), lam=0.3), stop=Tolerance(1e-14), rounds=5_000)
    ours = np.stack([run.models[k].w for k in range(len(best))])
    np.testing.assert_allclose(ours, best, atol=1e-10)


@pytest.mark.parametrize("own_sets", [False, True])
def test_linear_model_is_ridge_of_scikit_learn(own_sets):
    network = per_node(difficult_network()) if own_sets else difficult_network()
    pair = LinearModel(ridge=0.5, intercept=True), Ridge(alpha=0.5)
    runs = [fit(network, FedRelax(model, lam=0.2), rounds=6, stop=None) for model in pair]
    X, owner = network.test.X, network.test.owner
    np.testing.assert_allclose(runs[0].models.predict(X, owner), runs[1].models.predict(X, owner), atol=1e-9)
    np.testing.assert_allclose(runs[0].history["objective"], runs[1].history["objective"], rtol=1e-8)


def test_one_step_of_rmsprop_per_round_reaches_the_same_point():
    network = three_clusters()
    exact = fit(network, FedRelax(LinearModel(), lam=0.5), stop=Tolerance(1e-12), rounds=3_000)
    steps = fit(network, FedRelax(LinearModel(step=RMSprop()), lam=0.5), stop=None, rounds=3_000, measure_every=1_000)
    ours, best = (np.stack([run.models[k].w for k in range(24)]) for run in (steps, exact))
    assert np.abs(ours - best).max() < 0.02  # a constant step of 0.01 ends in a neighbourhood
    early = fit(network, FedRelax(LinearModel(step=RMSprop()), lam=0.5), stop=None, rounds=10)
    assert np.abs(np.stack([early.models[k].w for k in range(24)]) - best).max() > 0.3


def test_zero_lam_leaves_every_node_alone():
    network = three_clusters()
    tree = DecisionTreeRegressor(max_depth=2, random_state=0)
    run = fit(network, FedRelax(tree, lam=0.0), rounds=3)
    alone = np.concatenate([tree.fit(*network.data[k]).predict(network.test[k][0]) for k in range(24)])
    np.testing.assert_array_equal(run.models.predict(network.test.X, network.test.owner), alone)


def test_colours_converge_where_together_oscillates():
    # Two strongly coupled nodes take over each other's model in every round, and never meet.
    network = Network(graphs.chain(2), [([[1.0]], [1.0]), ([[1.0]], [3.0])], public=[[1.0]])
    together, colours = (
        fit(network, FedRelax(LinearModel(), lam=1e6, order=order), rounds=20, stop=None).history["disagreement"]
        for order in ("together", "colours")
    )
    assert together.iloc[-1] > 0.99 * together.iloc[0]
    assert colours.iloc[-1] < 1e-9 * colours.iloc[0]


def test_a_sweep_over_the_colours_updates_every_node_once_and_no_neighbours_together():
    network = difficult_network()
    graph, algorithm = network.graph, FedRelax(Ridge(), lam=0.3, order="colours")
    run = fit(network, algorithm, rounds=0)
    for sweep in range(2):
        updates = np.zeros(graph.node_count, dtype=int)
        for _ in range(graph.colours.max() + 1):
            before = run.state.fitted
            run = fit(network, algorithm, rounds=1, stop=None, start=run, engine=InProcess(sites=1 + 6 * sweep))
            moved = np.array([new is not old for new, old in zip(run.state.fitted, before, strict=True)])
            assert not (moved[graph.head] & moved[graph.tail]).any()
            updates += moved
        learns = graph.components == graph.components[0]  # data reach it from the first sweep on
        np.testing.assert_array_equal(updates[learns], 1)


def test_colours_are_block_coordinate_descent():
    # With a quadratic coupling (every edge counts once) each sweep lowers the objective of GTV minimisation.
    network, lam = three_clusters(), 0.5
    points = network.public.points
    form = QuadraticForm(tuple(map(tuple, 2 * points.T @ points / len(points))))
    objective = []
    run = fit(network, FedRelax(LinearModel(), lam, order="colours"), rounds=0)
    for _ in range(30):
        w = np.stack([run.models[k].w for k in range(24)])
        squares = np.bincount(
            network.data.owner, ((network.data.X * w[network.data.owner]).sum(1) - network.data.y) ** 2
        )
        edges = network.graph.weights @ form.value(w[network.graph.head] - w[network.graph.tail])
        objective.append((squares / network.data.sizes).sum() + lam * edges)
        run = fit(network, run.algorithm, rounds=1, stop=None, start=run)
    assert (np.diff(objective) < 1e-12).all()
    assert objective[-1] < 0.5 * objective[0]


def test_start_at_zero_and_start_alone_end_alike():
    network = three_clusters()
    runs = [
        fit(network, FedRelax(LinearModel(), 0.3, start), stop=Tolerance(1e-13), rounds=5_000)
        for start in ("zero", "local")
    ]
    first, second = (np.stack([run.models[k].w for k in range(24)]) for run in runs)
    np.testing.assert_allclose(first, second, atol=1e-9)


# ---------------------------------------------------------------------- merging


@pytest.mark.parametrize(
    "model", [Ridge(0.1), LinearRegression(), DecisionTreeRegressor(max_depth=3, random_state=0)], ids=repr
)
def test_merging_the_labels_of_a_point_is_exact_where_it_is_declared(model):
    network, lam = three_clusters(), 0.4

    class Unmerged(Estimator):
        merges = False

    merged, plain = (fit(network, FedRelax(kind(model), lam), rounds=1, stop=None) for kind in (Estimator, Unmerged))
    assert Estimator(model).merges
    for k in range(24):
        X = np.vstack([network.data[k][0], network.public.points])  # where a tree was trained
        np.testing.assert_allclose(merged.models[k].predict(X), plain.models[k].predict(X), atol=1e-9)


@pytest.mark.parametrize(
    "model",
    [RandomForestRegressor(), GradientBoostingRegressor(), make_pipeline(StandardScaler(), Ridge()),
     DecisionTreeRegressor(min_samples_leaf=5)],
    ids=repr,
)  # fmt: skip
def test_merging_is_off_where_rows_are_counted(model):
    assert not Estimator(model).merges


def test_a_run_says_which_points_and_whether_labels_were_merged():
    notes = " ".join(fit(three_clusters(), FedRelax(LinearModel()), rounds=1).notes)
    assert "40 public points, one common set, drawn from N(0, I)" in notes
    assert "merged into one weighted row at 24 of 24 nodes" in notes
    notes = " ".join(fit(three_clusters(per_node=True), FedRelax(LinearModel()), rounds=1).notes)
    assert "a set of its own for every node" in notes
    assert "at 0 of 24 nodes" in notes


# ---------------------------------------------------------------------- any model at any node


def test_many_kinds_of_models_in_one_network_come_to_agree():
    network = three_clusters(samples=12)
    kinds = [
        DecisionTreeRegressor(max_depth=4), Ridge(), GradientBoostingRegressor(n_estimators=20), LinearModel(),
        Resampled(KNeighborsRegressor(3)), make_pipeline(StandardScaler(), Ridge()),
    ]  # fmt: skip
    models = {name: kinds[k % len(kinds)] for k, name in enumerate(network.names)}
    alone = fit(network, FedRelax(models, lam=0.0), rounds=1, stop=None)
    run = fit(network, FedRelax(models, lam=1.0), rounds=6, stop=None)
    # What the first fits disagree by, at the same λ, is in the first row.
    assert run.history["disagreement"].iloc[-1] < 0.7 * run.history["disagreement"].iloc[0]
    assert np.isfinite(run.error())
    assert np.isfinite(alone.error())
    assert {type(run.models[k]).__name__ for k in range(6)} == {
        "DecisionTreeRegressor", "Ridge", "GradientBoostingRegressor", "LinearFit", "Resampled", "Pipeline",
    }  # fmt: skip


@pytest.mark.parametrize("step", [None, RMSprop()], ids=["exact", "steps"])
def test_fits_kept_in_one_array_are_those_kept_as_objects(step):
    network = difficult_network()
    linear = LinearModel(intercept=True, step=step)
    rows = fit(network, FedRelax(linear, lam=0.3), rounds=5, stop=None)
    objects = fit(network, FedRelax(dict.fromkeys(network.names, linear), lam=0.3), rounds=5, stop=None)
    assert (rows.state.fitted.dtype, objects.state.fitted.dtype) == (np.float64, object)
    for ours, theirs in zip(rows.models.fitted, objects.models.fitted, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            np.testing.assert_array_equal(ours.w, theirs.w)
            np.testing.assert_array_equal(ours.v is None, theirs.v is None)
    np.testing.assert_array_equal(rows.history["objective"], objects.history["objective"])


def test_steps_of_linear_models_beside_models_of_another_kind():
    network = three_clusters(samples=12)
    kinds = [LinearModel(step=RMSprop()), DecisionTreeRegressor(max_depth=4)]
    run = fit(network, FedRelax(lambda name: kinds[name % 2], lam=1.0), rounds=3, stop=None)
    assert np.isfinite(run.error())


@pytest.mark.parametrize("network", [difficult_network(), per_node(difficult_network())], ids=["common", "own sets"])
@pytest.mark.parametrize(
    "algorithm",
    [
        FedRelax(LinearModel(), lam=0.3),
        FedRelax(LinearModel(step=RMSprop()), lam=0.3, order="colours"),
        FedRelax(DecisionTreeRegressor(max_depth=3), lam=0.3, recall=5),
    ],
    ids=["linear", "steps, colours", "trees, recall"],
)
def test_runs_anywhere(algorithm, network):
    check_algorithm(algorithm, network, rounds=8)


def test_classifiers_run_anywhere():
    check_algorithm(FedRelax(LogisticRegression(), lam=0.3), difficult_network(classes=True), rounds=6)


def test_soft_labels_are_cross_entropy():
    network = difficult_network(classes=True)
    model = LogisticRegression(C=1.0, tol=1e-10, max_iter=10_000)
    run = fit(network, FedRelax(model, lam=0.5), rounds=2, stop=None)
    before = fit(network, FedRelax(model, lam=0.5), rounds=1, stop=None)
    node, points = 0, network.public.points
    neighbours = np.flatnonzero(network.graph.to_sparse().toarray()[node])
    weights = network.graph.to_sparse().toarray()[node, neighbours]
    X, y = network.data[node]
    rows, labels, share = [X], [y], [np.ones(len(y))]
    for j, a in zip(neighbours, weights, strict=True):
        p = before.models.predict_proba(points, np.full(len(points), j))
        if np.isnan(p).any():
            continue
        for c in (0, 1):
            rows.append(points), labels.append(np.full(len(points), float(c)))
            share.append(0.5 * a * len(y) / len(points) * p[:, c])
    direct = model.fit(np.vstack(rows), np.concatenate(labels), np.concatenate(share))
    ours = run.models[node]
    np.testing.assert_allclose(ours.coef_, direct.coef_, atol=1e-5)


def test_classes_that_a_node_has_not_seen():
    data = [(X1, [0, 1, 2]), (X1, [0, 0, 0]), (X1, [2, 1, 1]), None]
    network = Network(graphs.chain(4), data, public=np.linspace(0, 2, 9)[:, None])
    run = fit(network, FedRelax(RandomForestClassifier(10), lam=5.0), rounds=4, stop=None)
    p = run.predict_proba(np.tile(X1, (4, 1)), node=np.repeat(range(4), 3))
    assert p.shape == (12, 3)
    np.testing.assert_allclose(p.sum(axis=1), 1.0)
    assert p[3:6, 1:].max() > 0  # the second node has heard of classes that it never saw
    assert set(run.predict(X1, node=[3, 3, 3])) <= {0.0, 1.0, 2.0}  # and the last has a model without any data


def test_classifiers_without_probabilities_vote():
    network = difficult_network(classes=True)
    run = fit(network, FedRelax(SVC(), lam=0.5), rounds=3, stop=None)
    said = run.state.predicted[~np.isnan(run.state.predicted).any(axis=(1, 2))]
    assert set(np.unique(said)) == {0.0, 1.0}
    assert 0 <= run.error() <= 1


def test_the_same_seed_gives_the_same_run():
    network = three_clusters()
    forest = FedRelax(RandomForestRegressor(5), lam=0.5)
    same, again, other = (fit(network, forest, rounds=2, stop=None, seed=s).state.predicted for s in (1, 1, 2))
    np.testing.assert_array_equal(same, again)
    assert np.abs(same - other).max() > 0


def test_recall_keeps_a_model_near_to_what_it_was():
    network = three_clusters()
    first, kept = (
        fit(network, FedRelax(LinearModel(), lam=1.0, recall=points), rounds=1, stop=None).history["residual"].iloc[-1]
        for points in (0, 200)
    )
    assert kept < 0.5 * first


def test_literal_weighting_leaves_the_factor_out():
    network = three_clusters()  # six samples, forty points
    literal = fit(network, FedRelax(LinearModel(), 0.06, weighting="literal"), rounds=5, stop=None)
    average = fit(network, FedRelax(LinearModel(), 0.4, weighting="average"), rounds=5, stop=None)
    np.testing.assert_allclose(literal.state.predicted, average.state.predicted, atol=1e-10)


# ---------------------------------------------------------------------- public points


def test_points_like_the_data_have_its_moments():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 2)) @ [[2.0, 1.0], [0.0, 0.5]] + [3.0, -1.0]
    network = Network(graphs.chain(1), [(X, X[:, 0])])
    drawn = public.like_the_data(network, 200_000).points
    np.testing.assert_allclose(drawn.mean(axis=0), X.mean(axis=0), atol=0.02)
    np.testing.assert_allclose(np.cov(drawn.T), np.cov(X.T, bias=True), atol=0.05)


def test_a_share_of_features_is_made_of_rows():
    network = three_clusters()
    shared = public.share_of_features(network, 0.25)
    assert len(shared.points) == 36
    assert all((point == network.data.X).all(axis=1).any() for point in shared.points)
    assert "revealed" in str(shared)


# ---------------------------------------------------------------------- bad input


class NoPredict(BaseEstimator):
    def fit(self, X, y, sample_weight=None):
        return self


class Odd(RegressorMixin, BaseEstimator):
    def __init__(self, answer="nan"):
        self.answer = answer

    def fit(self, X, y, sample_weight=None):
        if self.answer == "raise" and len(y) > 6:
            raise RuntimeError("no more memory")
        return self

    def predict(self, X):
        return (
            np.full(len(X), np.nan)
            if self.answer == "nan"
            else np.zeros((len(X), 2 if self.answer == "wide" else 1))[:, 0 if self.answer == "raise" else slice(None)]
        )


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (NoPredict(), "Expected a model with fit and predict, got NoPredict without predict"),
        (KNeighborsRegressor(), r"whose fit takes sample_weight, got KNeighborsRegressor: wrap it as Resampled"),
        (make_pipeline(StandardScaler(), KNeighborsClassifier()), "sample_weight, got Pipeline"),
        (Ridge, r"got the class: add parentheses"),
        ({0: Ridge()}, "Expected a model for every node, got none for 1, 2, 3"),
        (lambda name: Ridge() if name else SVC(), "either regressors or classifiers at all nodes, got both"),
        (SVC(), "Expected whole numbers as labels for classifiers"),
        (Odd("nan"), "Expected finite predictions of shape (40,) from node 0, got NaN or infinity"),
        (Odd("wide"), "Expected finite predictions of shape (40,) from node 0, got shape (40, 2)"),
        (LinearModel(ridge=-1.0), "The 'ridge' parameter of LinearModel must be a number ≥ 0. Got -1.0 instead."),
    ],
)
def test_bad_models_get_a_sentence(model, sentence):
    with pytest.raises(InputError) as error:
        fit(three_clusters(), FedRelax(model, lam=0.1), rounds=1)
    assert sentence in str(error.value)


def test_without_public_points_there_is_a_sentence():
    with pytest.raises(InputError, match="with_public"):
        fit(Network(graphs.chain(1), [(X1, [1.0, 2.0, 3.0])]), FedRelax(Ridge()))


@pytest.mark.parametrize(
    ("points", "sentence"),
    [
        (np.zeros((3, 2)), "Expected public points with 1 features, got 2"),
        (np.zeros((3, 4, 1)), "Expected a set of public points for each of the 1 nodes, got 3"),
        (np.zeros((0, 1)), "Expected at least one public point"),
        (np.zeros(3), "2 or 3 axes"),
    ],
)
def test_bad_public_points_get_a_sentence(points, sentence):
    with pytest.raises(InputError, match=sentence):
        Network(graphs.chain(1), [(X1, [1.0, 2.0, 3.0])], public=points)


@pytest.mark.parametrize("sites", [1, 5])
def test_a_node_whose_fit_raises_is_named_and_nothing_is_lost(sites):
    network = three_clusters()
    models = {name: Odd("raise") if name == 7 else Ridge() for name in network.names}
    run = fit(network, FedRelax(models, lam=0.3), rounds=4, stop=None, engine=InProcess(sites))
    assert run.stopped == "stopped before round 1: Node 7 could not be fitted (RuntimeError: no more memory)."
    assert run.rounds == 0
    began = fit(network, FedRelax(models, lam=0.3), rounds=0)
    np.testing.assert_array_equal(run.state.predicted, began.state.predicted)
    models[7] = Ridge()
    assert fit(network, FedRelax(models, lam=0.3), rounds=2, start=run).rounds == 2


# ---------------------------------------------------------------------- real data


SHARED = Path(__file__).parents[2] / "shared" / "data"


@pytest.mark.parametrize(
    ("example", "folder", "file", "options"),
    [
        ("hospitals", "heart_disease", "heart_disease.csv", ["--quick"]),
        ("stations", "fmi_weather", "fmi_daily_2026.csv.gz", []),
    ],
)
def test_examples_on_real_data(example, folder, file, options):
    script = [sys.executable, str(Path(__file__).parents[1] / "examples" / f"{example}.py"), "--data"]
    missing = subprocess.run([*script, "nowhere"], capture_output=True, text=True, check=False)
    assert missing.returncode == 1
    assert missing.stderr == f"Expected {file} in nowhere: name its folder with --data or KINFOLK_DATA.\n"
    if not (SHARED / folder / file).exists():
        pytest.skip(f"{file} is not here")
    run = subprocess.run([*script, str(SHARED / folder), *options], capture_output=True, text=True, check=True)
    assert all(way in run.stdout for way in ("alone", "one for all", "tailored"))
    assert max(map(len, run.stdout.splitlines())) <= 80


def test_a_node_without_data_keeps_its_model_when_nobody_is_there():
    network = Network(graphs.chain(2), [(X1, [0.0, 1.0, 2.0]), None], public=X1)
    run = fit(
        network, FedRelax(Ridge(), lam=1.0), rounds=3, stop=None, participation=lambda r: [0, 1] if r < 3 else [1]
    )
    assert np.isfinite(run.predict(X1, node=[1, 1, 1])).all()
