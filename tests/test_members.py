"""The members of the blend and their weights, each against a closed form, a second solver or a world that is known."""

import dataclasses
from typing import get_args

import cvxpy
import numpy as np
import pandas
import pytest
from scipy.special import expit
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor

import kinfolk
from folders import sealed
from kinfolk.checks import InputError
from kinfolk.network.array_files import array_bytes, read_arrays
from kinfolk.network.data import Data
from kinfolk.tables import Settings, learn, load
from kinfolk.tables.blend import DECAY, prior_weights
from kinfolk.tables.families import family_of
from kinfolk.tables.job import tune
from kinfolk.tables.loading import load_results
from kinfolk.tables.local_party import LocalParty
from kinfolk.tables.members import intercepts
from kinfolk.tables.members.boosted import NODES, POOLED, ZERO, BoostedTrees
from kinfolk.tables.members.classes import ClassIntercepts
from kinfolk.tables.members.graph_member import GraphMember
from kinfolk.tables.members.intercepts import Covariance, NodeIntercepts, distances
from kinfolk.tables.members.member import Access, TrainingSet
from kinfolk.tables.members.own import OwnEstimator
from kinfolk.tables.members.recent import recent_members
from kinfolk.tables.members.scores import LinearScores
from kinfolk.tables.members.slopes import RandomSlopes
from kinfolk.tables.members.trees import Trees
from kinfolk.tables.party import OneParty
from kinfolk.tables.prepared import prepare
from kinfolk.tables.rows import Rows
from kinfolk.tables.splits import Folding
from kinfolk.tables.target import Target
from parties import design_of_rows, mixed_models, weights_of

KINDS = {
    "number": Target(),
    "classes": Target(classes=("a", "b")),
    "count": Target(kind="count"),
    "quantile": Target(kind="quantile", level=0.8),
}


def drawn(target, score, rng):
    """Targets whose linear score is known."""
    if target.kind == "classes":
        return (rng.random(len(score)) < expit(score)).astype(float)
    if target.kind == "count":
        return rng.poisson(np.exp(score)).astype(float)
    return score + 0.5 * rng.normal(size=len(score))


def sample_of(kind="number", nodes=6, sizes=12, places=None, shift=0.5, seed=0, uneven=True):
    """Nodes with models that differ; one of them has no rows."""
    rng, target = np.random.default_rng(seed), KINDS[kind]
    count = np.full(nodes, sizes) if not uneven else rng.integers(2, sizes, size=nodes)
    if uneven:
        count[1] = 0
    owner = np.repeat(np.arange(nodes), count)
    X = rng.normal(size=(len(owner), 2)) + 0.3 * rng.normal(size=(nodes, 2))[owner]
    slope = np.array([0.7, -0.4]) + 0.4 * rng.normal(size=(nodes, 2))
    y = drawn(target, (X * slope[owner]).sum(axis=1) + shift * rng.normal(size=nodes)[owner], rng)
    rows = Rows(X, y, owner, None if places is None else places[owner])
    base = LinearScores(np.zeros((1, 1, 3)), target)
    return training_of(rows, nodes, target, base, 0.3, places)


def training_of(rows, nodes, target, base, ridge=0.0, places=None):
    """Rows that members may learn from, of nodes in a chain."""
    data = Data.from_rows(rows.X, rows.y, rows.owner, nodes)
    return TrainingSet(
        rows, data, kinfolk.graphs.chain(nodes), None, places, False, target, 0, ["a", "b"], base=base, ridge=ridge
    )


def one_fit(member, sample, value):
    return next(iter(member.fits(sample, [value])))


# ---------------------------------------------------------------------- random slopes

LOSSES = {
    "number": lambda z, y: cvxpy.sum_squares(z - y),
    "classes": lambda z, y: cvxpy.sum(cvxpy.logistic(z) - cvxpy.multiply(y, z)),
    "count": lambda z, y: cvxpy.sum(cvxpy.exp(z) - cvxpy.multiply(y, z)),
}


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("strengths", [(0.6, 2.0), (25.0, 0.3)])
def test_random_slopes_minimise_their_objective(kind, strengths):
    sample = sample_of(kind)
    rows, nodes = sample.rows, sample.node_count
    common, own = cvxpy.Variable(3), cvxpy.Variable((nodes, 3))
    X = np.column_stack([rows.X, np.ones(len(rows.y))])
    z = cvxpy.sum(
        cvxpy.multiply(X, np.ones((len(X), 1)) @ cvxpy.reshape(common, (1, 3), "C") + own[rows.owner]), axis=1
    )
    shrink = 0.3 * cvxpy.sum_squares(common[:2])
    shrink += strengths[0] * cvxpy.sum_squares(own[:, 2]) + strengths[1] * cvxpy.sum_squares(own[:, :2])
    cvxpy.Problem(cvxpy.Minimize(LOSSES[kind](z, rows.y) + 0.5 * shrink)).solve(solver="CLARABEL")
    found = mixed_models(sample, [strengths])[0].w[0]
    np.testing.assert_allclose(found, common.value + own.value, atol=2e-3 if kind != "number" else 1e-5)
    assert (np.abs(found[1] - common.value) < 2e-3).all()  # a node without rows has the common model


def test_random_slopes_of_a_quantile_come_near_the_least_objective():
    """Kinks are rounded: the objective is a ten-thousandth above that of cvxpy at most."""
    sample, (mu0, mu1), level = sample_of("quantile", sizes=30), (25.0, 12.0), KINDS["quantile"].level
    owner, nodes = sample.rows.owner, sample.node_count
    X = np.column_stack([sample.rows.X, np.ones(len(owner))])
    common, own = cvxpy.Variable((1, 3)), cvxpy.Variable((nodes, 3))
    rest = sample.rows.y - cvxpy.sum(cvxpy.multiply(X, np.ones((len(X), 1)) @ common + own[owner]), axis=1)
    shrink = 0.3 * cvxpy.sum_squares(common[:, :2])
    shrink += mu0 * cvxpy.sum_squares(own[:, 2]) + mu1 * cvxpy.sum_squares(own[:, :2])
    objective = cvxpy.sum(cvxpy.maximum(level * rest, (level - 1) * rest)) + 0.5 * shrink
    cvxpy.Problem(cvxpy.Minimize(objective)).solve(solver="CLARABEL")
    best = objective.value
    (found,) = mixed_models(sample, [(mu0, mu1)])
    common.value, own.value = found.common, found.w[0] - found.common
    assert best * (1 - 1e-6) <= objective.value <= best * (1 + 1e-4)


def test_random_slopes_of_numbers_are_the_block_system():
    sample, (mu0, mu1) = sample_of(), (4.0, 12.0)
    rows, nodes = sample.rows, sample.node_count
    X = np.column_stack([rows.X, np.ones(len(rows.y))])
    design = np.zeros((len(X), 3 * (nodes + 1)))
    design[:, :3] = X
    for node in range(nodes):
        mine = rows.owner == node
        design[mine, 3 * (node + 1) : 3 * (node + 2)] = X[mine]
    shrink = np.r_[0.3, 0.3, 0.0, np.tile([mu1, mu1, mu0], nodes)]
    solved = np.linalg.solve(2 * design.T @ design + np.diag(shrink), 2 * design.T @ rows.y).reshape(nodes + 1, 3)
    np.testing.assert_allclose(mixed_models(sample, [(mu0, mu1)])[0].w[0], solved[0] + solved[1:], atol=1e-7)


def test_a_batch_of_strengths_gives_what_each_gives_alone():
    for kind in ("classes", "count"):
        sample, values = sample_of(kind), [(0.6, 0.3), (0.6, 75.0), (150.0, 3e3)]
        for value, scores in zip(values, mixed_models(sample, values), strict=True):
            np.testing.assert_allclose(scores.w, mixed_models(sample, [value])[0].w, atol=1e-6)


def test_one_row_a_node_has_no_slopes():
    for owner, why in ((np.arange(5), "every node has one row"), (np.repeat(np.arange(5), 2), None)):
        design, _ = design_of_rows(np.zeros(len(owner)), owner, Target(), Folding("rows", []))
        assert RandomSlopes().unsupported_reason(design) == why


# ---------------------------------------------------------------------- node intercepts


def generalised(sample, K, noise, ridge):
    """Shifts ~ N(0, K), rows with variance noise: generalised least squares, and the posterior mean of the shifts."""
    rows = sample.rows
    X, Z = np.column_stack([rows.X, np.ones(len(rows.y))]), np.eye(sample.node_count)[rows.owner]
    V = Z @ K @ Z.T + noise * np.eye(len(X))
    shrink = np.diag(np.r_[ridge, ridge, 0.0]) / (4 * noise)  # errors count twice in Σ (z − y)² + ½ ridge ‖w‖²
    w = np.linalg.solve(X.T @ np.linalg.solve(V, X) + 2 * shrink, X.T @ np.linalg.solve(V, rows.y))
    return w, K @ Z.T @ np.linalg.solve(V, rows.y - X @ w)


@pytest.mark.parametrize("ridge", [0.01, 10.0])
@pytest.mark.parametrize("placed", [False, True])
def test_node_intercepts_are_generalised_least_squares(placed, ridge):
    places = np.random.default_rng(1).random((15, 2)) if placed else None
    sample = sample_of(nodes=15, sizes=20, places=places)
    near, apart, noise = (0.5 if placed else 0.0), 0.2, 0.4
    K = apart * np.eye(15)
    if placed:
        K += near * np.exp(-distances(places, places, False) / 0.3)
    w, shift = generalised(sample, K, noise, ridge)
    value = (0.3, near, apart, 2 * noise, ridge)  # φ is a variance times the curvature of the loss, 2
    found = one_fit(NodeIntercepts(), sample, value).scores.w[0]
    np.testing.assert_allclose(found[:, :2], np.tile(w[:2], (15, 1)), atol=1e-7)
    np.testing.assert_allclose(found[:, 2], w[2] + shift, atol=1e-7)
    assert placed == (abs(found[1, 2] - w[2]) > 0.01)  # a node without rows has that of those nearby, or none


@pytest.mark.parametrize("globe", [False, True])
def test_the_nearest_are_nearly_as_good_as_all(globe):
    """500 nodes, each from its 30 nearest: within a fortieth of the deviation of the shifts of what all give."""
    rng = np.random.default_rng(0)
    places = rng.random((500, 2)) * ([20.0, 30.0] if globe else 1.0)
    sample = dataclasses.replace(sample_of(nodes=500, sizes=6, places=places), globe=globe)
    away = distances(places, places, globe)
    covariance = Covariance(0.2 * float(np.median(away)), 1.0, 0.2, 0.5)
    K = covariance.between(away) + covariance.apart * np.eye(500)
    shift = np.linalg.cholesky(K) @ rng.normal(size=500)
    weight = np.bincount(sample.rows.owner, minlength=500).astype(float)
    known = np.flatnonzero(weight)
    noise = covariance.noise / weight[known]
    mean = np.zeros(500)
    mean[known] = shift[known] + np.sqrt(noise) * rng.normal(size=len(known))
    exact, nearby = (
        make(sample, covariance, noise, known)(mean[:, None])[:, 0] for make in (intercepts._exact, intercepts._nearby)
    )
    assert np.sqrt(np.mean((exact - nearby) ** 2)) < 0.025 * exact.std()
    assert np.mean((nearby - shift) ** 2) < 1.01 * np.mean((exact - shift) ** 2)


def test_the_covariance_is_found_again():
    """Known radius, variances and noise: estimates within the spread of such an estimate over worlds."""
    found = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        places = rng.random((300, 2))
        K = 1.0 * np.exp(-distances(places, places, False) / 0.2) + 0.3 * np.eye(300)
        owner = np.repeat(np.arange(300), 8)
        X = rng.normal(size=(len(owner), 2))
        y = X @ [1.0, 2.0] + (np.linalg.cholesky(K) @ rng.normal(size=300))[owner] + 0.5 * rng.normal(size=len(owner))
        base = LinearScores(np.r_[Ridge(0.1).fit(X, y).coef_, y.mean()].reshape(1, 1, 3), Target())
        sample = training_of(Rows(X, y, owner, places[owner]), 300, Target(), base, 0.1, places)
        found.append(NodeIntercepts().values(sample)[0][:4])
    radius, near, apart, noise = np.exp(np.log(found).mean(axis=0))
    assert 0.12 < radius < 0.33
    assert 0.6 < near < 1.6
    assert 0.2 < apart < 0.42
    assert noise == pytest.approx(2 * 0.25, rel=0.05)


def test_an_independent_intercept_is_found_again():
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(400), 6)
    X = rng.normal(size=(2400, 2))
    y = X @ [1.0, -1.0] + (0.7 * rng.normal(size=400))[owner] + rng.normal(size=2400)
    base = LinearScores(np.r_[Ridge(0.1).fit(X, y).coef_, y.mean()].reshape(1, 1, 3), Target())
    sample = training_of(Rows(X, y, owner, None), 400, Target(), base, 0.1)
    _, near, apart, noise, _ = NodeIntercepts().values(sample)[0]
    assert near == 0
    assert apart == pytest.approx(0.49, rel=0.2)
    assert noise == pytest.approx(2.0, rel=0.1)


# ---------------------------------------------------------------------- boosting


@pytest.mark.parametrize("kind", KINDS)
def test_staged_predictions_are_those_of_separate_fits(kind):
    sample = sample_of(kind, nodes=8, sizes=60)
    w = np.random.default_rng(1).normal(size=(1, 8, 3))
    sample = dataclasses.replace(sample, own=LinearScores(w, sample.target))
    plans = [(4.0, 2.0), (4.0, 30.0), (15.0, 5.0), (15.0, 20.0)]
    values = [(*plan, 1.0, base) for base in (ZERO, POOLED, NODES) for plan in plans]
    rows = sample.rows
    asked = Rows(rows.X[::3], rows.y[::3], (rows.owner[::3] + 1) % 8, None)  # node 1 was never seen
    staged = list(BoostedTrees("boosted").predictions(sample, values, asked))
    fits = [fitted.predict(asked) for fitted in BoostedTrees("boosted").fits(sample, values)]
    np.testing.assert_allclose(staged, fits, rtol=1e-12)
    assert not np.allclose(staged[0], staged[1])


@pytest.mark.parametrize("classes", [0, 3])
@pytest.mark.parametrize("categories", [False, True])
def test_trees_as_arrays_are_those_of_scikit_learn(classes, categories):
    """The same sums, for missing numbers and for nodes without rows as well."""
    rng = np.random.default_rng(0)
    owner = rng.integers(1, 7, size=300)  # node 0 has no rows
    X = rng.normal(size=(300, 2))
    X[::7, 1] = np.nan
    y = np.array([0, 3, -3, 2, -2, 4, 1.0])[owner] + X[:, 0]
    y = np.digitize(y, [-1, 2]).astype(float) if classes else y
    codes = np.r_[np.nan, np.arange(6.0)]
    kind = HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor
    made = kind(max_iter=12, min_samples_leaf=5, categorical_features=[0] if categories else None)
    made.fit(np.column_stack([codes[owner], X]), y)
    assert any(tree.nodes["is_categorical"].any() for step in made._predictors for tree in step) == categories
    asked = Rows(np.vstack([X, np.full((7, 2), np.nan)]), np.zeros(307), np.r_[owner, np.arange(7)], None)
    trees = Trees.of(made, codes)
    expected = made._raw_predict(np.column_stack([codes[asked.owner], asked.X]))
    np.testing.assert_allclose(trees.sums(asked), expected, rtol=1e-12, atol=1e-12)
    stages = list(trees.staged(asked, [1, 5, 12]))
    np.testing.assert_allclose(stages[-1], expected, rtol=1e-12, atol=1e-12)
    assert not np.allclose(stages[0], stages[1])


@pytest.mark.parametrize("present", [(0, 2), (1,)])
def test_boosting_has_a_probability_for_a_class_without_rows(present):
    """In some folds a rare class has no rows: its probability is next to nothing, and the others are not mixed up."""
    sample = sample_of(nodes=6, sizes=60)
    target = Target(classes=("a", "b", "c"))
    rows = sample.rows._replace(y=np.array(present, dtype=float)[(sample.rows.X[:, 0] > 0).astype(int) % len(present)])
    base = LinearScores(np.zeros((3, 1, 3)), target)
    fitted = one_fit(
        BoostedTrees("boosted"),
        dataclasses.replace(sample, rows=rows, target=target, base=base),
        (4.0, 60.0, 1.0, POOLED),
    )
    chance = fitted.predict(rows)
    assert chance.shape == (len(rows.y), 3)
    np.testing.assert_allclose(chance.sum(axis=1), 1.0)
    absent = [k for k in range(3) if k not in present]
    assert chance[:, absent].max() < 0.01
    assert (chance.argmax(axis=1) == rows.y).mean() > 0.98


def test_trees_know_nodes_as_categories():
    """Nodes in no order: four leaves tell them apart, and a node without rows is like the others."""
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(9), 40)[40:]  # node 0 has no rows
    level = np.array([0.0, 3.0, -3.0, 3.0, -3.0, 3.0, -3.0, 3.0, -3.0])
    X, y = rng.normal(size=(320, 1)), level[owner]
    base = LinearScores(np.zeros((1, 1, 2)), Target())
    sample = training_of(Rows(X, y, owner, None), 9, Target(), base)
    fitted = one_fit(BoostedTrees("boosted"), sample, (4.0, 200.0, 1.0, POOLED))
    asked = Rows(np.zeros((9, 1)), np.zeros(9), np.arange(9), None)
    np.testing.assert_allclose(fitted.predict(asked)[1:], level[1:], atol=1e-3)
    assert np.isfinite(fitted.predict(asked)).all()


def test_trees_stand_on_models_of_nodes():
    """Nodes of six rows are too small for trees to tell apart: on random slopes they find what is left, a kink."""
    rng = np.random.default_rng(0)
    owner, X = np.repeat(np.arange(40), 6), rng.normal(size=(240, 1))
    level = rng.normal(scale=5.0, size=40)
    y = level[owner] + np.maximum(X[:, 0], 0.0)
    table = pandas.DataFrame({"node": owner.astype(str), "x": X[:, 0], "y": y})
    run = kinfolk.learn(table, node="node", target="y", progress=False)
    assert run.entries["boosted"].value[-1] == NODES
    error = run.leaderboard["error"]
    assert error["boosted"] < 0.6 * error["slopes"]
    assert error["final"] < 0.6 * error["slopes"]
    assert error["trees"] > 5 * error["slopes"]


# ---------------------------------------------------------------------- weights


def split(rows, kind="rows", folds=4, times=None):
    part = np.arange(rows) % folds if kind != "times" else np.minimum(np.arange(rows) * folds // rows, folds - 1)
    made = [(part != k if kind != "times" else part < k, part == k) for k in range(1 if kind == "times" else 0, folds)]
    return Folding(kind, made, times, times)


def predictions_of(kind, rng, rows, members=4):
    """The truth, and predictions that are more or less wrong."""
    if kind == "classes":
        target = Target(classes=("a", "b", "c"))
        chance = rng.dirichlet(np.ones(3), size=rows)
        y = np.array([rng.choice(3, p=each) for each in chance]).astype(float)
        wrong = [rng.dirichlet(np.ones(3), size=rows) for _ in range(members)]
        return target, y, [0.5 * chance + 0.5 * each for each in wrong]
    target, score = KINDS[kind], rng.normal(size=rows)
    y = drawn(target, score, rng)
    noisy = [score + (0.2 + 0.3 * k) * rng.normal(size=rows) + 0.1 * k for k in range(members)]
    return target, y, [np.exp(each) for each in noisy] if kind == "count" else noisy


def losses_of(target, y, mixed):
    if target.kind == "count":
        return 2 * (cvxpy.multiply(y, -cvxpy.log(mixed)) + mixed)
    if target.kind == "quantile":
        return cvxpy.maximum(target.level * (y - mixed), (target.level - 1) * (y - mixed))
    return cvxpy.square(mixed - y)


NAMES = ["pooled", "slopes", "tailored", "boosted"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [12, 300])
def test_weights_minimise_their_objective(kind, rows):
    rng = np.random.default_rng(rows)
    target, y, predicted = predictions_of(kind, rng, rows)
    folding, prior = split(rows), prior_weights(NAMES, rows)
    found = weights_of(dict(zip(NAMES, predicted, strict=True)), y, np.arange(rows), target, folding)
    best = min(target.loss(each, y).mean() for each in predicted)
    w = cvxpy.Variable(4, nonneg=True)
    if kind == "classes":
        truth = np.eye(3)[y.astype(int)]
        mean = cvxpy.sum_squares(sum(w[k] * (predicted[k] - truth) for k in range(4))) / rows
    else:
        constant = 2 * np.mean(y * np.log(np.maximum(y, 1e-300)) - y) if kind == "count" else 0.0
        mean = cvxpy.sum(losses_of(target, y, np.stack(predicted, axis=1) @ w)) / rows + constant
    pull = min(1.0, 3 / rows) * cvxpy.sum(cvxpy.multiply(cvxpy.square(w - prior), 1 / (4 * prior)))
    problem = cvxpy.Problem(cvxpy.Minimize(mean / best + pull), [cvxpy.sum(w) == 1])
    problem.solve(solver="CLARABEL")
    ours = np.array(list(found.values()))
    assert ours.sum() == pytest.approx(1.0)
    assert (ours >= 0).all()
    mixed = np.tensordot(ours, np.stack(predicted), axes=1)
    height = target.loss(mixed, y).mean() / best + min(1.0, 3 / rows) * ((ours - prior) ** 2 / (4 * prior)).sum()
    assert height == pytest.approx(problem.value, rel=1e-4)
    np.testing.assert_allclose(ours, w.value, atol=0.02 if kind == "quantile" else 2e-3)


def test_what_is_equal_gets_the_weights_expected_beforehand():
    y = np.random.default_rng(0).normal(size=50)
    same = dict.fromkeys(NAMES, y + 1.0)
    found = weights_of(same, y, np.arange(50), Target(), split(50))
    trees = 0.5 * 50 / (50 + 60)
    others = dict.fromkeys(["pooled", "slopes", "tailored"], (1 - trees) / 3)
    assert found == pytest.approx({**others, "boosted": trees}, abs=1e-4)
    assert prior_weights(["pooled", "trees", "boosted"], 60).tolist() == [0.75, 0.125, 0.125]


def test_few_rows_are_little_evidence():
    """The better member gets more weight the more rows say so; from many, it gets nearly all."""
    share = []
    for rows in (3, 12, 200, 5_000):
        y = np.zeros(rows)
        error = np.tile([1.0, -1.0], rows)[:rows]
        found = weights_of({"pooled": y + 0.9 * error, "slopes": y + error}, y, np.arange(rows), Target(), split(rows))
        share.append(found["slopes"])
    assert share == sorted(share, reverse=True)
    assert share[0] > 0.25
    assert share[-1] == 0


def test_rows_that_were_never_predicted_do_not_count():
    rng = np.random.default_rng(0)
    target, y, predicted = predictions_of("number", rng, 80)
    folding = split(80, "times", 4, np.arange(80.0))
    unseen = ~np.any([held for _, held in folding.folds], axis=0)
    named = dict(zip(NAMES, predicted, strict=True))
    blind = {name: np.where(unseen, np.nan, each) for name, each in named.items()}
    found = weights_of(blind, y, np.arange(80), target, folding)
    spoilt = np.where(unseen, 1e6, y)
    assert found == weights_of(blind, spoilt, np.arange(80), target, folding)
    design, party = design_of_rows(y, np.arange(80), target, folding)
    assert design.evidence(60) == 60
    assert design.shares.sum() == pytest.approx(1.0)
    assert design.factors[0] / design.factors[-1] == pytest.approx(DECAY**2)
    party.out_of_fold.predicted["pooled"] = blind["pooled"][None]
    found = party.errors(["pooled"], np.zeros(1, dtype=np.int64), design.factors, -1.0, np.ones(1))
    assert (found.seen, found.weight) == (60, pytest.approx(20 * (1 + DECAY + DECAY**2)))


def test_evidence_is_counted_in_what_is_held_out():
    def evidence(folding, seen=40):
        return design_of_rows(np.zeros(40), np.repeat(np.arange(10), 4), Target(), folding)[0].evidence(seen)

    assert evidence(split(40)) == 40
    assert evidence(split(40, "nodes")) == 10
    assert evidence(split(40, "times", times=np.tile(np.arange(4.0), 10))) == 20  # rather than 4
    assert evidence(split(40, "times", times=np.arange(40.0)), 30) == 30


def test_half_is_expected_of_boosting():
    assert prior_weights(["pooled", "slopes"], 10).tolist() == [0.5, 0.5]
    assert prior_weights(["boosted"], 10).tolist() == [1.0]
    assert prior_weights(["boosted", "pooled", "mine"], 60).tolist() == [0.25, 0.375, 0.375]


# ---------------------------------------------------------------------- what members declare, and the control


def world(kind="number", nodes=16, rows=30, seed=0, first=0):
    """A table with places, whose models vary smoothly; the same world for every ``first``, with other rows."""
    truth, rng = np.random.default_rng(seed), np.random.default_rng([seed, first])
    lat, lon = 60 + 4 * truth.random(nodes), 20 + 6 * truth.random(nodes)
    slope, level = np.sin(lat), np.cos(lon) + 0.3 * truth.normal(size=nodes)
    owner = np.repeat(np.arange(nodes), rows)
    price, wind = rng.normal(size=(2, len(owner)))
    score = slope[owner] * price + level[owner] + 0.3 * wind
    noise = rng.normal(size=len(owner))
    y = {
        "number": lambda: 50 + 10 * (score + 0.5 * noise),
        "classes": lambda: np.array(["low", "middle", "much"])[np.digitize(score + 0.3 * noise, [-0.5, 0.7])],
        "two": lambda: np.where(score + 0.3 * noise > 0, "yes", "no"),
        "count": lambda: rng.poisson(np.exp(0.5 + 0.8 * score)),
        "quantile": lambda: 50 + 10 * (score + 0.5 * noise),
    }[kind]()
    names = np.array([f"n{k}" for k in range(nodes)])[owner]
    return pandas.DataFrame({"node": names, "lat": lat[owner], "lon": lon[owner], "price": price, "wind": wind, "y": y})


TASKS = {
    "number": {},
    "two": {},
    "classes": {},
    "count": {"task": "count"},
    "quantile": {"task": "quantile", "quantile": 0.8},
}


def test_every_member_declares_what_it_needs():
    baselines = [GraphMember(each) for each in family_of("ridge", Target()).baselines()]
    members = [NodeIntercepts(), RandomSlopes(), BoostedTrees("boosted"), OwnEstimator(Ridge()), *baselines]
    assert {member.access for member in members} <= set(get_args(Access))
    assert [each.access for each in baselines] == ["rows of all", "own rows"]


def test_the_control_puts_nodes_elsewhere():
    """Graphs, places of nodes and places of rows are another node's, in training rows, folds and test rows."""
    prepared = prepare(world(nodes=40), Settings("node", "y", folds=2, members=("pooled", "wide")))
    party = LocalParty(prepared.rows)
    drawn = tune(OneParty(party), prepared.design).cv.drawn
    (*parts, moved), whole = (party.training_set(part, {}, drawn) for part in range(3)), party.training_set(2, {})
    test = party.moved(prepared.rows.test, drawn)
    assert sorted(map(tuple, moved.places)) == sorted(map(tuple, whole.places))
    assert (moved.places != whole.places).any(axis=1).mean() > 0.5
    for sample in (moved, *parts):
        np.testing.assert_allclose(sample.rows.place, moved.places[sample.rows.owner], atol=1e-12)
    np.testing.assert_allclose(test.place, moved.places[test.owner], atol=1e-12)
    np.testing.assert_array_equal(moved.rows.X, whole.rows.X)
    np.testing.assert_array_equal(moved.rows.y, whole.rows.y)
    assert sorted(moved.graph.degrees) == sorted(whole.graph.degrees)
    assert set(zip(moved.wide.head, moved.wide.tail, strict=True)) != set(
        zip(whole.wide.head, whole.wide.tail, strict=True)
    )
    lengths = [distances(each.places, each.places, True)[each.wide.head, each.wide.tail] for each in (whole, moved)]
    np.testing.assert_allclose(np.sort(lengths[0]), np.sort(lengths[1]), rtol=1e-9)


def test_the_control_loses_what_places_tell():
    """Few rows a node: what neighbours tell is much, and nodes elsewhere do not tell it."""
    run = learn(world(nodes=60, rows=5), node="node", target="y", folds=2, progress=False)
    board = run.leaderboard["error"]
    assert board["final"] < 0.95 * board["control"]


# ---------------------------------------------------------------------- every kind of target


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run for every kind of target, and the same from its folder."""
    out = {}
    for kind, options in TASKS.items():
        run = learn(world(kind, rows=50), node="node", target="y", folds=2, progress=False, **options)
        out[kind] = run, load(run.save(tmp_path_factory.mktemp(kind) / "run"))
    return out


def constant_loss(run, kind):
    """The error of the best constant, on the same rows and in the same units."""
    truth = run.predictions["target"]
    y = run.target.encode(truth)
    if run.target.classes:
        best = np.tile([(truth == label).mean() for label in run.target.classes], (len(y), 1))
    elif kind == "quantile":
        best = np.full(len(y), np.quantile(y, 0.8))
    else:
        best = np.full(len(y), y.mean())
    loss = pandas.Series(run.target.loss(best, y)).groupby(run.predictions["node"]).mean()
    return run.target.shown(loss.mean())


@pytest.mark.parametrize("kind", TASKS)
def test_errors_are_sensible(kind, runs):
    run = runs[kind][0]
    board = run.leaderboard
    assert run.weights.sum() == pytest.approx(1.0)
    assert (run.weights >= 0).all()
    assert board["error"]["final"] < 0.8 * constant_loss(run, kind)
    assert board["error"]["final"] < 1.05 * board["error"][run.weights.index].min()
    members = board[board["part"] == "member"]
    names = ["pooled", "alone", "intercepts", "slopes", "tailored", "wide", "trees", "boosted"]
    several = len(run.target.classes) > 2  # then boosted trees stand on nothing, too
    assert list(members.index) == [name for name in names if not several or name != "trees"]
    assert members["needs"].isin(get_args(Access)).all()
    assert (members["error"].drop("pooled") < constant_loss(run, kind)).all()  # slopes of all cancel each other


@pytest.mark.parametrize("kind", TASKS)
def test_a_loaded_run_predicts_the_same(kind, runs):
    run, again = runs[kind]
    table = world(kind, first=7)
    for role in ("final", "alone", *run.weights.index):
        np.testing.assert_array_equal(run.predict(table, role=role), again.predict(table, role=role))
    assert run.weights.to_dict() == again.weights.to_dict()
    if run.target.classes:
        np.testing.assert_array_equal(run.predict_proba(table), again.predict_proba(table))
    else:
        pandas.testing.assert_frame_equal(run.predict(table, interval=0.8), again.predict(table, interval=0.8))


@pytest.mark.parametrize("kind", TASKS)
def test_the_blend_is_the_weighted_mean_of_its_members(kind, runs):
    run, table = runs[kind][0], world(kind, first=3)
    ask = run.predict_proba if run.target.classes else run.predict
    mixed = sum(weight * np.asarray(ask(table, role=name)) for name, weight in run.weights.items())
    np.testing.assert_allclose(ask(table), mixed, rtol=1e-9, atol=1e-12)
    if kind == "count":
        assert (run.predict(table) > 0).all()


@pytest.mark.parametrize("kind", TASKS)
def test_nodes_that_were_never_seen_are_predicted(kind, runs):
    run = runs[kind][1]
    new = world(kind, first=5).head(40).assign(node="new")
    ask = run.predict_proba if run.target.classes else run.predict
    assert np.isfinite(np.asarray(ask(new), dtype=float)).all()
    bare = new.drop(columns=["lat", "lon"])
    edges = pandas.DataFrame({"a": ["new"], "b": ["n3"]})
    np.testing.assert_allclose(
        ask(bare, edges=edges, role="tailored"), ask(bare.assign(node="n3"), role="tailored"), rtol=1e-12
    )
    alone = ask(bare, edges=edges, role="alone")  # what other nodes learn alone is not theirs
    np.testing.assert_allclose(alone, ask(bare.assign(node="n3"), role="pooled"))
    np.testing.assert_allclose(ask(bare, unknown="pooled"), ask(new.assign(node="n0"), role="pooled"))
    if not run.target.classes:
        found = run.predict(new, interval=0.9)
        assert (found["low"] <= found["y"]).all()
        assert (found["y"] <= found["high"]).all()


@pytest.mark.parametrize("kind", ["number", "two"])
def test_new_nodes_are_predicted_as_nodes_that_were_held_out(kind):
    """A node without rows to learn from, in the test or never seen: all but the models of neighbours are the same."""
    table = world(kind, nodes=12, rows=15)
    held = table["node"].isin(["n0", "n1", "n2", "n3"])
    run = learn(table.assign(held=held), node="node", target="y", test="held", folds=2, progress=False)
    ask = run.predict_proba if run.target.classes else run.predict
    for role in ("pooled", "slopes", "trees", "boosted"):
        new = ask(table[held].assign(node="new"), role=role)
        np.testing.assert_allclose(new, ask(table[held], role=role), rtol=1e-9, err_msg=role)
    far = abs(np.asarray(ask(table[held].assign(node="new"))) - np.asarray(ask(table[held]))).mean()
    assert far < 0.2 * np.asarray(ask(table[held])).std()


@pytest.mark.parametrize("kind", TASKS)
def test_a_loaded_run_predicts_new_nodes_the_same(kind, runs):
    run, again = runs[kind]
    new = world(kind, first=5).head(40).assign(node="new")
    for role in ("final", *run.weights.index):
        np.testing.assert_array_equal(run.predict(new, role=role), again.predict(new, role=role), err_msg=role)


@pytest.mark.parametrize("kind", ["number", "count"])
def test_intervals_cover_fresh_rows(kind, runs):
    run, fresh = runs[kind][0], world(kind, rows=200, first=9)
    found = run.predict(fresh, interval=0.9)
    covered = (found["low"] <= fresh["y"]) & (fresh["y"] <= found["high"])
    assert 0.85 <= covered.mean() <= 0.95
    wide = run.predict(fresh, interval=0.99)
    assert ((wide["high"] - wide["low"]) >= (found["high"] - found["low"])).all()


def test_a_quantile_is_one():
    """Four of five fresh rows lie below the quantile 0.8."""
    run = learn(world("quantile", rows=60), node="node", target="y", folds=2, progress=False, **TASKS["quantile"])
    fresh = world("quantile", rows=200, first=4)
    assert 0.75 <= (fresh["y"] <= run.predict(fresh)).mean() <= 0.85


def test_intervals_are_for_numbers_of_the_blend(runs):
    table = world("two").head(5)
    with pytest.raises(InputError, match="predict_proba"):
        runs["two"][0].predict(table, interval=0.9)
    with pytest.raises(InputError, match="another role"):
        runs["number"][0].predict(world().head(5), role="slopes", interval=0.9)
    with pytest.raises(InputError, match="between 0 and 1"):
        runs["number"][0].predict(world().head(5), interval=90)


# ---------------------------------------------------------------------- damage


def spoilt(run, folder, file, change):
    run.save(folder)
    change(folder / "models" / file)
    return sealed(folder)


DAMAGE = {
    "no intervals": ("intervals.safetensors", lambda file: file.unlink()),
    "intervals cut": ("intervals.safetensors", lambda file: file.write_bytes(file.read_bytes()[:100])),
    "no coefficients": ("slopes/arrays.safetensors", lambda file: file.unlink()),
    "no run": ("tailored/0/models.safetensors", lambda file: file.unlink()),
    "no base": ("pooled/arrays.safetensors", lambda file: file.unlink()),
    "no trees": ("boosted/arrays.safetensors", lambda file: file.unlink()),
    "trees cut": ("boosted/arrays.safetensors", lambda file: file.write_bytes(file.read_bytes()[:-900])),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_one_sentence(name, runs, tmp_path):
    folder = spoilt(runs["number"][0], tmp_path / "run", *DAMAGE[name])
    with pytest.raises(InputError, match=r"^Expected [^\n]*(damaged|cannot be read)"):
        load(folder)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("quantiles", np.zeros(5)),
        ("scale", np.zeros(3)),
        ("unseen", np.full(1_001, np.nan)),
        ("seen", np.ones(16)),
        ("usual", np.zeros(3)),
        ("growth", np.array([0.0, -1.0, 0.0])),
    ],
)
def test_widths_that_are_none_are_refused(name, value, runs, tmp_path):
    def change(file):
        file.write_bytes(array_bytes({**read_arrays(file)[1], name: value}))

    folder = spoilt(runs["number"][0], tmp_path / "run", "intervals.safetensors", change)
    with pytest.raises(InputError, match=r"intervals\.safetensors is missing or damaged"):
        load(folder)


TREE_DAMAGE = {
    "a column that is not there": ("feature", lambda array: array + 100),
    "a child before its parent": ("left", lambda array: np.where(array >= 0, 0, array)),
    "a child of another tree": ("right", lambda array: np.where(array >= 0, array + 10_000, array)),
    "a set that is not there": ("bitset", lambda array: array + 10_000),
    "sets of another size": ("bitsets", lambda array: array[:, :4].copy()),
    "a code that is too large": ("codes", lambda array: array + 1_000),
    "a leaf that is no number": ("value", lambda array: array * np.nan),
    "numbers of another type": ("feature", lambda array: array.astype(np.float64)),
    "leaves of two numbers": ("value", lambda array: np.stack([array, array], axis=1)),
    "outputs that are not there": ("outputs", lambda array: array + 1),
    "a base of other features": ("base", lambda array: array[:, :, 1:].copy()),
    "a base of other nodes": ("base", lambda array: np.repeat(array[:, :1], 3, axis=1)),
}


@pytest.mark.parametrize("name", TREE_DAMAGE)
def test_trees_that_lead_nowhere_are_refused(name, runs, tmp_path):
    key, altered = TREE_DAMAGE[name]

    def change(file):
        arrays = read_arrays(file)[1]
        file.write_bytes(array_bytes({**arrays, key: altered(arrays[key])}))

    folder = spoilt(runs["number"][0], tmp_path / "run", "boosted/arrays.safetensors", change)
    with pytest.raises(InputError, match="the model 'boosted' is missing or damaged"):
        load(folder)


def test_a_run_can_be_looked_at_without_its_models(runs, tmp_path):
    run = runs["number"][0]
    folder = run.save(tmp_path / "run")
    for file in (folder / "models").rglob("*.skops"):
        file.unlink()
    seen = load_results(folder)
    pandas.testing.assert_frame_equal(seen.leaderboard, run.leaderboard, check_dtype=False)
    assert seen.judgement == run.judgement


# ---------------------------------------------------------------------- members of the user's own


def test_an_estimator_of_ones_own(tmp_path):
    """It sees features, places and the number of the node, and its weight is earned."""
    table = world()
    run = learn(
        table, node="node", target="y", folds=2, progress=False, members=["pooled", "slopes", KNeighborsRegressor(3)]
    )
    assert set(run.weights.index) == {"pooled", "slopes", "KNeighborsRegressor"}
    prepared = prepare(table, dataclasses.replace(run.settings, members=()))
    train, test = prepared.rows.training, prepared.rows.test
    direct = KNeighborsRegressor(3).fit(np.column_stack([train.X, train.place, train.owner]), train.y)
    np.testing.assert_allclose(
        run.predictions["KNeighborsRegressor"],
        run.target.decode(direct.predict(np.column_stack([test.X, test.place, test.owner]))),
    )
    again = load(run.save(tmp_path / "run"))
    np.testing.assert_array_equal(run.predict(table), again.predict(table))
    assert "KNeighborsRegressor(...)" in (tmp_path / "run" / "report.html").read_text()
    assert again.settings.members == ("pooled", "slopes", "given: KNeighborsRegressor")


def test_a_type_and_a_classifier_of_ones_own():
    run = learn(world("classes"), node="node", target="y", folds=2, progress=False,
                members=["pooled", KNeighborsClassifier])  # fmt: skip
    assert "KNeighborsClassifier" in run.weights.index
    with pytest.raises(InputError, match="Expected a classifier as a member"):
        learn(world("classes"), node="node", target="y", progress=False, members=["pooled", Ridge()])
    with pytest.raises(InputError, match="got 'Ridge' twice"):
        learn(world(), node="node", target="y", progress=False, members=[Ridge(), Ridge(2.0)])


@pytest.mark.parametrize("kind", ["number", "two"])
def test_other_models_have_a_blend_and_a_page(kind, tmp_path):
    """Trees at the nodes: one for all, and tailored ones."""
    table = world(kind, nodes=6)
    run = learn(table, node="node", target="y", model="tree", folds=2, progress=False)
    assert set(run.weights.index) == {"pooled", "alone", "tailored"}
    again = load(run.save(tmp_path / "run"))
    assert (again.predict(table) == run.predict(table)).all()
    assert load_results(tmp_path / "run").judgement == run.judgement
    assert "the blend of all members" in (tmp_path / "run" / "report.html").read_text()


def test_several_classes_have_node_intercepts_like_a_regression_with_dummies():
    rng = np.random.default_rng(5)
    owner = np.repeat(np.arange(6), 40)
    X = rng.normal(size=(240, 2))
    label = np.clip(np.round(X[:, 0] + np.sin(owner) + 1), 0, 2).astype(int)
    table = pandas.DataFrame(X, columns=["a", "b"]).assign(node=owner, kind=np.array(["low", "mid", "top"])[label])
    party = LocalParty(prepare(table, Settings("node", "kind")).rows)
    sample = party.training_set(party.rows.whole, {})
    (fitted,) = ClassIntercepts().fits(sample, [(3.0,)])
    dummies = np.hstack([sample.rows.X, np.eye(6)[sample.rows.owner]])
    model = LogisticRegression(C=1 / 3.0, max_iter=2_000, tol=1e-10).fit(dummies, sample.rows.y)
    np.testing.assert_allclose(fitted.predict(sample.rows), model.predict_proba(dummies), atol=2e-3)


# ---------------------------------------------------------------------- latest levels


def wandering(times=20, nodes=12, seed=0):
    """Nodes whose levels wander from time to time; the target follows a feature as well."""
    rng = np.random.default_rng(seed)
    level = np.cumsum(rng.normal(size=(nodes, times)), axis=1)
    node, time = (each.ravel() for each in np.meshgrid(np.arange(nodes), np.arange(times), indexing="ij"))
    x = rng.normal(size=len(node))
    y = 2 * x + level.ravel() + 0.2 * rng.normal(size=len(node))
    return pandas.DataFrame({"node": [f"n{k:02d}" for k in node], "x": x, "time": 1990 + time, "y": y})


def test_latest_levels_are_weighted_means_of_what_a_model_leaves():
    sample = sample_of(seed=3)
    rows, count = sample.rows, sample.node_count
    times = np.random.default_rng(0).integers(0, 9, size=len(rows.y)).astype(float)
    own = LinearScores(np.random.default_rng(1).normal(size=(1, count, 3)), sample.target)
    sample = dataclasses.replace(sample, times=times, own=own)
    latest, of_one, of_slopes = recent_members()
    for member, base in ((latest, np.zeros((count, 3))), (of_one, np.zeros((count, 3))), (of_slopes, own.w[0])):
        for half_life, strength in ((1 / 4, 1.0), (1 / 32, 0.3)):
            found = next(iter(member.fits(sample, [(half_life, strength)]))).scores.w[0]
            for node in range(count):
                mine = rows.owner == node
                age = times[mine].max(initial=0) - times[mine]
                weight = 0.5 ** (age / (half_life * np.ptp(times)))
                rest = rows.y[mine] - np.column_stack([rows.X[mine], np.ones(mine.sum())]) @ base[node]
                shift = (weight * rest).sum() / (weight.sum() + strength)
                np.testing.assert_allclose(found[node], base[node] + np.r_[0, 0, shift], atol=1e-12)


def test_latest_levels_win_where_levels_wander_and_take_no_part_elsewhere(tmp_path):
    names = ["pooled", "intercepts", "slopes", "recent", "recent-intercepts", "recent-slopes"]
    table = wandering()
    options = {"node": "node", "target": "y", "members": names, "progress": False}
    later = learn(table, time="time", **options)
    error = later.leaderboard["error"]
    assert error["recent-intercepts"] < 0.8 * error["intercepts"]
    assert error["recent-slopes"] < 0.9 * error["slopes"]
    assert error["recent"] > error["recent-intercepts"]  # it does not know the feature
    assert later.weights[["recent", "recent-intercepts", "recent-slopes"]].sum() > 0.8
    later.save(tmp_path / "run")
    again = load(tmp_path / "run")
    for role in ("recent", "recent-intercepts", "final"):
        pandas.testing.assert_series_equal(again.predict(table, role=role), later.predict(table, role=role))
    at_random = learn(table, **options)
    assert set(at_random.weights.index) == {"pooled", "intercepts", "slopes"}
    why = {note.values["member"]: note.values["why"] for note in at_random.remarks if note.kind == "member left out"}
    assert why["recent"] == "no later times are predicted"


def test_an_update_moves_latest_levels_to_the_new_rows():
    names, table = ["pooled", "recent"], wandering()
    old, new = table[table.time < 2008], table[table.time >= 2008]
    run = learn(old, node="node", target="y", time="time", members=names, progress=False)
    before, after = (each.predict(new, role="recent") for each in (run, run.update(new, progress=False)))
    assert np.abs(after - new["y"]).mean() < 0.8 * np.abs(before - new["y"]).mean()
