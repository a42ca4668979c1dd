"""What makes the choice of values quick, each against the slow way: bins, races, outputs side by side, no rounds."""

import dataclasses

import numpy as np
import pandas
import pytest
from sklearn.ensemble import HistGradientBoostingRegressor

from kinfolk import EuclideanNorm, FedRelax, GTVMin, Network, SquaredNorm, datasets, fit, graphs
from kinfolk.algorithms.gtvmin.quadratic import minimisers
from kinfolk.checks import LearningError
from kinfolk.engine.fit import Tolerance
from kinfolk.local_models.binning import binned
from kinfolk.objective.losses import Logistic, Squared
from kinfolk.tables import Settings, learn
from kinfolk.tables.families import smooth_candidate
from kinfolk.tables.job import tune
from kinfolk.tables.local_party import LocalParty
from kinfolk.tables.members.boosted import BoostedTrees
from kinfolk.tables.members.graph_member import GraphMember
from kinfolk.tables.party import OneParty
from kinfolk.tables.prepared import prepare, prepare_given
from kinfolk.tables.racing import Race


def chain_of(nodes, labels=None, seed=0):
    """A chain whose nodes have a few rows each; the third has none."""
    rng = np.random.default_rng(seed)
    data = []
    for node in range(nodes):
        X = rng.normal(size=(6, 2))
        y = X[:, 0] + 0.3 * node + rng.normal(size=6)
        data.append(None if node == 2 else (X, y if labels is None else (y > 0).astype(float)))
    return Network(graphs.chain(nodes), data)


# ---------------------------------------------------------------------- bins


def test_bins_end_at_weighted_quantiles():
    rng = np.random.default_rng(0)
    values, weight = rng.normal(size=500), rng.choice([0.1, 1.0, 5.0], 500)
    borders = np.quantile(values, np.arange(1, 16) / 16, method="inverted_cdf", weights=weight)
    found = binned(values[:, None], weight, 16).ravel()
    number = np.searchsorted(borders, values)
    assert len(np.unique(found)) == 16
    for each in range(16):
        np.testing.assert_allclose(found[number == each], values[number == each].mean())


def test_few_values_stay_as_they_are():
    X = np.random.default_rng(0).choice([1.0, 2.0, 7.0], size=(900, 2))
    assert (binned(X, np.ones(900), 3) == X).all()


def test_categories_are_no_numbers_that_bins_could_hold():
    """Scikit-learn refuses more categories than bins; they may not be moved so that they seem fewer."""
    X = np.arange(40.0)[:, None]
    model = HistGradientBoostingRegressor(categorical_features=[0], max_bins=16)
    network = Network(graphs.chain(2), [(X, X[:, 0]), (X, X[:, 0])], public=X[:3])
    with pytest.raises(LearningError, match="cardinality"):
        fit(network, FedRelax(model))


# ---------------------------------------------------------------------- races


def test_values_that_are_clearly_worse_drop_out():
    rng = np.random.default_rng(0)
    noise, apart = rng.normal(size=(2, 400)) ** 2
    apart -= apart.mean()
    losses = np.stack([noise, noise + 0.01 + 0.1 * apart, noise + 0.1, noise + 0.1 + 3 * apart])
    race = Race(4)
    race.add(losses[:, :50])
    assert race.runners.tolist() == [0, 1, 2, 3]  # too few rows to tell
    race.add(losses[:, 50:])
    assert race.runners.tolist() == [0, 1, 3]
    race.add(np.stack([noise + 1, noise, noise + 1]))
    assert race.runners.tolist() == [1]


def tuned_on(classes, seed=0):
    """A table of ten nodes that differ."""
    rng = np.random.default_rng(seed)
    node = np.repeat(np.arange(10), 40)
    a, b = rng.normal(size=(2, 400))
    y = a * (node % 2) + np.sin(b) + 0.5 * rng.normal(size=400)
    table = pandas.DataFrame({"node": node, "a": a, "b": b, "y": y})
    if classes:
        table["y"] = np.array(list("klm"))[np.digitize(y, [-0.5, 0.5])]
    return tuned_from(table, node="node", target="y")


def tuned_from(table, **settings):
    """The pooled and tailored models of a table, and all its training rows."""
    prepared = prepare(table, Settings.of({**settings, "members": ("pooled", "tailored")}))
    party = LocalParty(prepared.rows)
    return tune(OneParty(party), prepared.design), party, party.training_set(party.rows.whole, {"pooled": 0})


def test_a_race_is_won_by_the_value_that_is_best_in_all_folds():
    cv = tuned_on(classes=False)[0].cv
    quick, member = BoostedTrees("boosted"), BoostedTrees("boosted")
    member.races = False
    found, all_tried = cv.validate(quick), cv.validate(member)
    assert (found.value, found.error) == (all_tried.value, all_tried.error)
    assert [bool(np.isnan(each.errors).any()) for each in (found, all_tried)] == [True, False]


# ---------------------------------------------------------------------- outputs side by side


@pytest.mark.parametrize("role", ["pooled", "alone", "tailored"])
def test_outputs_side_by_side_are_those_learnt_one_by_one(role):
    tuning, party, training = tuned_on(classes=True)
    pooled, alone = (GraphMember(each) for each in tuning.design.family.baselines())
    member = {"pooled": pooled, "alone": alone, "tailored": tuning.tailored}[role]
    values, test = list(member.values(training))[3:6], party.rows.test
    at_once = member.predictions(training, values, test)
    one_by_one = (fitted.predict(test) for fitted in member.fits(training, values, Tolerance(1e-9, None)))
    for ours, theirs in zip(at_once, one_by_one, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)


# ---------------------------------------------------------------------- what predicts


def test_models_that_predict_are_proven():
    """With a small λ the residual of candidates is small far from the optimum: predictions erred twice as much."""
    counties = datasets.named_table("counties").frame
    south = counties[(counties["lat"] < 36.5) & (counties["lon"] > -92)]
    tuning, _, training = tuned_from(south, node="county", target="log_turnout")
    loss = dataclasses.replace(tuning.tailored.candidate.algorithm(1.0).loss, ridge=1.0 / training.node_count)
    member, value = GraphMember(smooth_candidate(loss, [1e-6]), "wide", wide=True), (1e-6,)
    rough, final = next(iter(member.fits(training, [value]))), member.final(training, value)
    assert rough.runs[0].certificate.relative > 0.1
    assert final.runs[0].certificate.relative < 1e-4


# ---------------------------------------------------------------------- no rounds


def test_minimisers_of_squares_solve_the_linear_system():
    network, lam = chain_of(5), 0.7
    ends = np.arange(4)
    D = np.zeros((4, 5))
    D[ends, ends], D[ends, ends + 1] = 1.0, -1.0
    H, right = np.kron(lam * D.T @ D, np.eye(2)), np.zeros(10)
    starts = network.data.starts
    for node in range(5):
        X, y = (part[starts[node] : starts[node + 1]] for part in (network.data.X, network.data.y))
        H[2 * node : 2 * node + 2, 2 * node : 2 * node + 2] += 2 * X.T @ X
        right[2 * node : 2 * node + 2] = 2 * X.T @ y
    found = minimisers(network, Squared("sum"), SquaredNorm(), [0.1, lam], 1e-12)
    np.testing.assert_allclose(found[1].ravel(), np.linalg.solve(H, right), atol=1e-8)


def test_minimisers_of_classes_are_those_of_rounds():
    network, loss = chain_of(6, labels=(0.0, 1.0)), Logistic("sum", ridge=0.1)
    for lam, w in zip((0.01, 1.0), minimisers(network, loss, SquaredNorm(), (0.01, 1.0), 1e-10), strict=True):
        run = fit(network, GTVMin(loss, SquaredNorm(), lam), stop=Tolerance(1e-9), rounds=10_000)
        np.testing.assert_allclose(w, run.models.w, atol=1e-6)


def test_what_newton_does_not_cover_has_no_minimisers():
    network = chain_of(4)
    assert minimisers(network, Squared("sum"), EuclideanNorm(), [1.0], 1e-6) is None


def test_a_candidate_that_newton_does_not_solve_is_run():
    tuning, _, training = tuned_on(classes=False)
    smooth = tuning.tailored.candidate
    rounds = dataclasses.replace(smooth, smooth=False)
    values = smooth.values[2:4]
    found = (list(each.parameters(training.network, values, Tolerance(1e-9))) for each in (smooth, rounds))
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-3)


# ---------------------------------------------------------------------- what the job asks for


def nodes_of_two_kinds(rows=25):
    rng = np.random.default_rng(0)
    node = np.repeat(np.arange(12), rows)
    a, b = rng.normal(size=(2, len(node)))
    y = a * np.where(node % 2, 1, -1) + 0.3 * rng.normal(size=len(node))
    return pandas.DataFrame({"node": node, "a": a, "b": b, "y": y, "t": np.tile(np.arange(rows), 12)})


def test_a_method_that_uses_no_graph_has_no_control():
    """Kin by similarity are compared with a random graph; clusters without a graph are not."""
    table = nodes_of_two_kinds().drop(columns="t")
    options = {"node": "node", "target": "y", "neighbours": 2, "members": ["pooled", "tailored"], "progress": False}
    run = learn(table, method="ifca", **options)
    assert run.weights["tailored"] > 0.9
    assert "control" not in run.leaderboard.index
    assert "control" in learn(table, **options).leaderboard.index


def test_models_of_any_family_leave_out_what_grows_with_time():
    """Ups and downs are no trend: trees that see the time go on with the last one, those that do not are better."""
    table = nodes_of_two_kinds().assign(y=lambda rows: rows["y"] + 3 * (-1.0) ** (rows["t"] // 3))
    options = {"node": "node", "target": "y", "time": "t", "neighbours": 2, "model": "tree", "progress": False}
    run = learn(table, **options)
    assert "no trend" in [note.kind for note in run.remarks]
    assert "control" in run.leaderboard.index
    for role in ("final", "pooled", "alone", "tailored"):
        np.testing.assert_array_equal(run.predict(table, role=role), run.predict(table.assign(t=0), role=role))


def test_what_is_not_tested_has_no_control_unless_it_decides_about_a_member():
    table = nodes_of_two_kinds().assign(x=lambda rows: rows["node"] % 4, z=lambda rows: rows["node"] // 4)
    given = {"node": "node", "target": "y", "model": "ridge", "members": ("pooled", "tailored"), "neighbours": 2}
    for coords, compared in ((("x", "z"), False), ((), True)):
        prepared = prepare_given(table, {**given, "coords": coords, "features": "a,b"}, tested=False)
        assert bool(tune(OneParty(LocalParty(prepared.rows)), prepared.design).control) == compared
