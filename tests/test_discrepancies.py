"""Discrepancies of FedRelax: direct minimisation, least squares and unmerged fits are the oracles."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neighbors import KNeighborsRegressor
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from kinfolk import FedRelax, InputError, LinearModel, Network, TorchModel, fit, graphs, public
from kinfolk.local_models.discrepancies import (
    CrossEntropy,
    Discrepancy,
    SquaredError,
    SquaredProbabilities,
    SymmetricCrossEntropy,
)
from kinfolk.local_models.estimators import AsClassifier, Estimator, nearest_probabilities
from kinfolk.testing import check_algorithm, difficult_network

LAM = 0.5


@dataclass(frozen=True)
class Votes(Discrepancy):
    """The cross-entropy with a neighbour's most probable class."""

    def value(self, label, said):
        return CrossEntropy().value(self._vote(label), said)

    def rows(self, labelled):
        return labelled._replace(target=self._vote(labelled.target))

    def _vote(self, label):
        return (label == label.max(axis=-1, keepdims=True)).astype(float)


@dataclass(frozen=True)
class AbsoluteError(Discrepancy):
    """|label − said|; models have to minimise it themselves."""

    def value(self, label, said):
        return np.abs(label - said)


def three_classes(per_node=False, seed=0):
    """A chain of four nodes whose classes overlap, so that every minimum is finite."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(3, 2))

    def draw(count):
        y = np.r_[0, 1, 2, rng.integers(0, 3, count - 3)]
        return centres[y] + 1.5 * rng.normal(size=(count, 2)), y

    network = Network(graphs.chain(4), [draw(15) for _ in range(4)], test=[draw(5) for _ in range(4)])
    return network.with_public(public.standard_normal(network, 12, per_node=per_node, seed=seed))


def logistic_module(loss):
    """A linear module that goes to its minimum in every round."""
    module = torch.nn.Linear(2, 3)
    torch.nn.init.zeros_(module.weight), torch.nn.init.zeros_(module.bias)
    return TorchModel(
        module, loss, optimiser="LBFGS", step_size=1.0, epochs=200, start="given", precision="float64",
        options={"line_search_fn": "strong_wolfe", "tolerance_grad": 1e-11, "tolerance_change": 1e-14},
    )  # fmt: skip


def neighbours_of(network, node):
    weights = network.graph.to_sparse().toarray()[node]
    others = np.flatnonzero(weights)
    return others, weights[others]


def objective_of(network, node, said, own_loss, distance):
    """(1) as a function of parameters (weight, bias) of a node whose logits are linear in x."""
    X, y = network.data[node]
    target, points = np.eye(3)[y.astype(int)], network.public.points
    others, weights = neighbours_of(network, node)

    def objective(flat):
        w = flat.reshape(3, 3)
        logits, own = points @ w[:, :2].T + w[:, 2], X @ w[:, :2].T + w[:, 2]
        apart = [a * distance(said[j], logits).mean() for j, a in zip(others, weights, strict=True)]
        return own_loss(target, own).mean() + LAM * sum(apart)

    return objective


def parameters(fitted):
    return np.column_stack([fitted.arrays["weight"], fitted.arrays["bias"]]).ravel()


def cross_entropy(label, logits):
    return -(label * log_softmax(logits, axis=1)).sum(axis=1)


def squared_probabilities(label, logits):
    return ((label - softmax(logits, axis=1)) ** 2).sum(axis=1)


def symmetric(label, logits):
    return (cross_entropy(label, logits) - (softmax(logits, axis=1) * np.log(label)).sum(axis=1)) / 2


ENTROPY = CrossEntropy(), "cross-entropy", cross_entropy, cross_entropy
SQUARED = SquaredProbabilities(), "squared probabilities", squared_probabilities, squared_probabilities
SYMMETRIC = SymmetricCrossEntropy(), "cross-entropy", cross_entropy, symmetric


@pytest.mark.parametrize(
    ("discrepancy", "loss", "own_loss", "distance"), [ENTROPY, SYMMETRIC], ids=["entropy", "symmetric"]
)
def test_a_module_of_torch_minimises_the_discrepancy(discrepancy, loss, own_loss, distance):
    network = three_classes()
    algorithm = FedRelax(logistic_module(loss), LAM, discrepancy=discrepancy)
    before = fit(network, algorithm, rounds=0)
    after = fit(network, algorithm, rounds=1, stop=None, start=before)
    for node in range(4):
        objective = objective_of(network, node, before.state.predicted, own_loss, distance)
        best = minimize(objective, np.zeros(9), method="BFGS", options={"gtol": 1e-9, "maxiter": 2_000}).x.reshape(3, 3)
        probability = softmax(network.public.points @ best[:, :2].T + best[:, 2], axis=1)
        np.testing.assert_allclose(after.state.predicted[node], probability, atol=2e-5)


@pytest.mark.parametrize(
    ("discrepancy", "loss", "own_loss", "distance"),
    [ENTROPY, SQUARED, SYMMETRIC],
    ids=["entropy", "squared", "symmetric"],
)
def test_a_step_of_torch_goes_down_the_discrepancy(discrepancy, loss, own_loss, distance):
    network = three_classes()
    model = TorchModel(torch.nn.Linear(2, 3), loss, "SGD", step_size=0.1, epochs=1, precision="float64")
    algorithm = FedRelax(model, LAM, discrepancy=discrepancy)
    before = fit(network, algorithm, rounds=0)
    after = fit(network, algorithm, rounds=1, stop=None, start=before)
    for node in range(4):
        objective = objective_of(network, node, before.state.predicted, own_loss, distance)
        was, small = parameters(before.models[node]), 1e-5 * np.eye(9)
        slope = np.array([(objective(was + shift) - objective(was - shift)) / 2e-5 for shift in small])
        share = 1 + LAM * neighbours_of(network, node)[1].sum()  # torch is given a weighted mean
        np.testing.assert_allclose(parameters(after.models[node]), was - 0.1 * slope / share, atol=1e-9)


def test_symmetric_in_stacks_and_batches():
    network, module = three_classes(per_node=True), torch.nn.Linear(2, 3)
    joint, apart = (
        TorchModel(module, "cross-entropy", epochs=4, batch=5, precision="float64", together=together)
        for together in (True, False)
    )
    said = [
        fit(
            network, FedRelax(model, LAM, "zero", discrepancy=SymmetricCrossEntropy()), rounds=3, stop=None
        ).state.predicted
        for model in (joint, apart)
    ]
    np.testing.assert_allclose(said[0], said[1], atol=1e-10)


# ---------------------------------------------------------------------- squared error of probabilities


def test_a_tree_by_gini_minimises_the_squared_error_of_probabilities():
    network = three_classes()
    gini = DecisionTreeClassifier(max_depth=3, random_state=0)
    squares = AsClassifier(DecisionTreeRegressor(max_depth=3, random_state=0))
    one, other = (
        fit(network, FedRelax(model, LAM, discrepancy=SquaredProbabilities()), rounds=1, stop=None)
        for model in (gini, squares)
    )
    for node in range(4):  # where the trees were trained, both have the same leaves
        X = np.vstack([network.data[node][0], network.public.points])
        np.testing.assert_allclose(*(run.models.predict_proba(X, np.full(len(X), node)) for run in (one, other)))
    np.testing.assert_allclose(one.history["objective"], other.history["objective"])


@pytest.mark.parametrize("per_node", [False, True])
def test_a_regressor_learns_probabilities_by_least_squares(per_node):
    network = three_classes(per_node)
    algorithm = FedRelax(AsClassifier(Ridge(0.1)), LAM, discrepancy=SquaredProbabilities())
    before = fit(network, algorithm, rounds=0)
    after = fit(network, algorithm, rounds=1, stop=None, start=before)
    X, y = network.data[1]
    points = network.public.points if per_node else [network.public.points] * 4
    others, weights = neighbours_of(network, 1)
    rows = np.vstack([X, *(points[j] for j in others)])
    target = np.vstack([np.eye(3)[y.astype(int)], *(before.state.predicted[j] for j in others)])
    weight = np.r_[np.ones(15), np.repeat(LAM * 15 / 12 * weights, 12)]
    direct = Ridge(0.1).fit(rows, target, weight)
    np.testing.assert_allclose(after.models[1].coef_, direct.coef_, atol=1e-10)
    said = after.models.predict_proba(X, np.full(15, 1))
    np.testing.assert_allclose(said, nearest_probabilities(direct.predict(X)), atol=1e-10)


def test_nearest_probabilities_are_nearest():
    rng = np.random.default_rng(0)
    values, others = rng.normal(size=(200, 4)), rng.dirichlet(np.ones(4), 200)
    nearest = nearest_probabilities(values)
    np.testing.assert_allclose(nearest.sum(axis=1), 1.0)
    assert (nearest >= 0).all()
    # The angle at a projection onto a convex set is obtuse, seen from anywhere in the set.
    assert ((values - nearest) * (others - nearest)).sum(axis=1).max() < 1e-12
    np.testing.assert_allclose(nearest_probabilities(others), others)


@pytest.mark.parametrize(
    "discrepancy", [CrossEntropy(), SquaredProbabilities(), Votes(), SymmetricCrossEntropy()], ids=repr
)
def test_the_history_adds_up_the_discrepancy(discrepancy):
    network = three_classes(per_node=True)
    model = {
        "CrossEntropy": LogisticRegression(), "Votes": LogisticRegression(),
        "SquaredProbabilities": AsClassifier(Ridge()), "SymmetricCrossEntropy": logistic_module("cross-entropy"),
    }[type(discrepancy).__name__]  # fmt: skip
    run = fit(network, FedRelax(model, LAM, discrepancy=discrepancy), rounds=2, stop=None)
    own = apart = 0.0
    for node in range(4):
        (X, y), here = network.data[node], np.full(15, node)
        own += discrepancy.loss(np.eye(3)[y.astype(int)], run.models.predict_proba(X, here)).mean()
        for j, a in zip(*neighbours_of(network, node), strict=True):
            mine = run.models.predict_proba(network.public.points[j], here[:12])
            apart += LAM * a * discrepancy.value(run.state.predicted[j], mine).mean()
    assert run.history["loss"].iloc[-1] == pytest.approx(own, rel=1e-9)
    assert run.history["disagreement"].iloc[-1] == pytest.approx(apart, rel=1e-9)


# ---------------------------------------------------------------------- one of yours


def test_a_discrepancy_of_yours_decides_what_is_learnt():
    network, model = three_classes(), LogisticRegression(tol=1e-10, max_iter=10_000)
    algorithm = FedRelax(model, LAM, discrepancy=Votes())
    before = fit(network, algorithm, rounds=0)
    after = fit(network, algorithm, rounds=1, stop=None, start=before)
    X, y = network.data[1]
    others, weights = neighbours_of(network, 1)
    rows = np.vstack([X, *[network.public.points] * len(others)])
    labels = np.r_[y, *(before.state.predicted[j].argmax(axis=1) for j in others)]
    direct = LogisticRegression(tol=1e-10, max_iter=10_000)
    direct.fit(rows, labels, np.r_[np.ones(15), np.repeat(LAM * 15 / 12 * weights, 12)])
    np.testing.assert_allclose(after.models[1].coef_, direct.coef_, atol=1e-5)
    assert "at 0 of 4 nodes" in " ".join(after.notes)  # votes of a mean are no mean of votes


def test_absolute_errors_are_compared_as_such():
    network = difficult_network()
    model = GradientBoostingRegressor(loss="absolute_error", n_estimators=5, random_state=0)
    one, other = (
        fit(network, FedRelax(model, LAM, discrepancy=discrepancy), rounds=2, stop=None)
        for discrepancy in (AbsoluteError(), None)
    )
    np.testing.assert_array_equal(one.state.predicted, other.state.predicted)  # the rows are the same
    assert one.history["objective"].iloc[-1] != pytest.approx(other.history["objective"].iloc[-1], rel=0.01)


# ---------------------------------------------------------------------- merging, sites, refusals


@pytest.mark.parametrize(
    "model",
    [LogisticRegression(tol=1e-12, max_iter=10_000), DecisionTreeClassifier(max_depth=3, random_state=0)],
    ids=repr,
)
def test_merging_probabilities_is_exact_where_it_is_declared(model):
    network = three_classes()

    class Unmerged(Estimator):
        merges = False

    merged, plain = (fit(network, FedRelax(kind(model), LAM), rounds=1, stop=None) for kind in (Estimator, Unmerged))
    assert Estimator(model).merges
    for node in range(4):
        X = np.vstack([network.data[node][0], network.public.points])
        np.testing.assert_allclose(*(run.models[node].predict_proba(X) for run in (merged, plain)), atol=1e-5)


@pytest.mark.parametrize(
    "model",
    [LogisticRegression(class_weight="balanced"), LogisticRegression(solver="saga"),
     DecisionTreeClassifier(class_weight="balanced"), DecisionTreeClassifier(min_samples_leaf=3)],
    ids=repr,
)  # fmt: skip
def test_merging_is_off_where_rows_of_classes_are_counted(model):
    assert not Estimator(model).merges


@pytest.mark.parametrize(
    "algorithm",
    [
        FedRelax(DecisionTreeClassifier(max_depth=2), 0.3, discrepancy=SquaredProbabilities()),
        FedRelax(AsClassifier(Ridge()), 0.3, discrepancy=SquaredProbabilities(), order="colours"),
        FedRelax(LogisticRegression(), 0.3, discrepancy=Votes()),
        FedRelax(
            TorchModel(torch.nn.Linear(3, 2), "cross-entropy", epochs=1, precision="float64"), 0.3, "zero",
            discrepancy=SymmetricCrossEntropy(),
        ),
    ],
    ids=["gini", "as classifier", "votes", "symmetric"],
)  # fmt: skip
def test_runs_anywhere(algorithm):
    check_algorithm(algorithm, difficult_network(classes=True), rounds=6)


ONLY_TORCH = "Expected TorchModel(loss='cross-entropy'), which can learn its second term, for Symmetric"


@pytest.mark.parametrize(
    ("model", "discrepancy", "sentence"),
    [
        (LogisticRegression(), SymmetricCrossEntropy(), f"{ONLY_TORCH}CrossEntropy(), got LogisticRegression."),
        (AsClassifier(Ridge()), SymmetricCrossEntropy(), f"{ONLY_TORCH}CrossEntropy(), got Ridge."),
        (logistic_module("squared probabilities"), SymmetricCrossEntropy(), "CrossEntropy(), got TorchModel."),
        (LogisticRegression(), SquaredProbabilities(), "AsClassifier(regressor) or TorchModel(loss='squared prob"),
        (DecisionTreeClassifier(criterion="entropy"), SquaredProbabilities(), "got DecisionTreeClassifier."),
        (logistic_module("cross-entropy"), SquaredProbabilities(), "SquaredProbabilities(), got TorchModel."),
        (SVC(), SquaredError(), "Expected a discrepancy between probabilities for classifiers, got SquaredError()."),
        (Ridge(), CrossEntropy(), "Expected a discrepancy between numbers for regressors, got CrossEntropy()."),
        (LinearModel(), AbsoluteError(), "Expected models that are fitted to weighted rows for AbsoluteError()"),
        (Ridge(), "squared", "The 'discrepancy' parameter of FedRelax must be a Discrepancy or None. Got 'squared'"),
        (AsClassifier(SVC()), None, "Expected a regressor for AsClassifier, got SVC: it needs no AsClassifier."),
        (AsClassifier(KNeighborsRegressor()), None, "got KNeighborsRegressor: wrap it as Resampled"),
        (AsClassifier(GradientBoostingRegressor()), None, "Node 0 could not be fitted (ValueError: y should be a 1d"),
    ],
)  # fmt: skip
def test_what_cannot_be_learnt_is_refused_in_a_sentence(model, discrepancy, sentence):
    with pytest.raises(InputError) as error:
        fit(three_classes(), FedRelax(model, LAM, discrepancy=discrepancy), rounds=1)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)
