"""The main job across sites: the answer of one table, from sums and numbers per node; differences refused."""

import json
import os
import threading
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas
import pytest

from kinfolk import FedAvg, FedRelax, InputError, Network, fit, graphs, learn
from kinfolk.algorithms.newton import Newton
from kinfolk.engine.fit import Tolerance
from kinfolk.engine.protocol import Missing
from kinfolk.engine.wire import Blob, Key, WireError
from kinfolk.federation.carrier import refusal_in
from kinfolk.federation.files import made
from kinfolk.federation.keys import Peer, SiteKey
from kinfolk.federation.lanes import bundled
from kinfolk.federation.ledger import sent_in_all
from kinfolk.federation.service import peek
from kinfolk.federation.sockets import SocketPost, serve
from kinfolk.federation.tables.asking import Sites
from kinfolk.federation.tables.bounds import Bounds
from kinfolk.federation.tables.company import Company
from kinfolk.federation.tables.fitting import Tailored
from kinfolk.federation.tables.kept import SiteBlend
from kinfolk.federation.tables.learning import learn_together
from kinfolk.federation.tables.masks import Masks, summed, to_numbers, to_words
from kinfolk.federation.tables.preparing import prepare_together
from kinfolk.federation.tables.service import TableService
from kinfolk.federation.tables.site_page import outcome_of
from kinfolk.federation.tables.site_table import LEAST_NAMED, SiteTable
from kinfolk.federation.tables.site_trees import check_plans
from kinfolk.federation.tables.works import NUMBERS, WORKS, question, read_answer
from kinfolk.report.site import SHARES, write_site
from kinfolk.tables import Settings
from kinfolk.tables.families import Candidate
from kinfolk.tables.target import Target

pytest.importorskip("cryptography", reason="the package cryptography is not installed")
MEMBERS = "pooled,slopes,tailored,wide"


class Direct:
    """Carries blobs by calling the services; remembers what sites answered."""

    def __init__(self, services):
        self.services, self.answers, self.exchanges = services, [], 0

    def ask(self, blobs, most, seconds):
        self.exchanges += 1
        found = {name: self.services[name].answer(blob) for name, blob in blobs.items()}
        assert all(len(answer) <= most[name] for name, answer in found.items())
        self.answers += list(found.items())
        return found


def shops(count=9, rows=14, *, classes=False, seed=0):
    """Shops on a map, whose slopes vary smoothly; a column with gaps, and one of categories."""
    rng = np.random.default_rng(seed)
    place = np.sort(rng.random(count))
    table = pandas.DataFrame({
        "shop": np.repeat([f"shop {k}" for k in range(count)], rows),
        "x": np.repeat(place, rows),
        "y": np.repeat(rng.random(count), rows),
        "price": rng.normal(5, 2, size=count * rows),
        "size": rng.normal(size=count * rows),
        "kind": rng.choice(["a", "b", "c"], count * rows),
    })  # fmt: skip
    table["sales"] = (4 * table["x"] - 2) * table["price"] + table["size"] + (table["kind"] == "a")
    table["sales"] += rng.normal(size=len(table))
    table.loc[rng.random(len(table)) < 0.05, "size"] = np.nan
    if classes:
        table["sales"] = np.where(table["sales"] > table["sales"].median(), "high", "low")
    return table


def cut(table, count=3, node="shop"):
    """The tables of several sites, cut by node."""
    names = sorted(table[node].unique())
    home = table[node].map({name: k * count // len(names) for k, name in enumerate(names)})
    return {f"site {k}": table[home == k].reset_index(drop=True) for k in range(count)}


def together(tables, folder, edges=None, secure=False, **settings):
    """Learn together with sites that are called directly; the run, the post and the services."""
    services = {name: TableService(name, table, Path(folder) / name) for name, table in tables.items()}
    post = Direct(services)
    try:
        run = learn_together(post, list(services), Settings.of(settings), edges=edges, secure=secure)
        assert run.judgement is not None  # the last questions are asked while sites are there
        assert len(run.nodes) == run.ready.node_count
    finally:
        for service in services.values():
            service.close()
    return run, post, services


def assert_same(run, pooled, digits=4):
    """The same values are chosen, and weights, errors and the judgement are those of one table."""
    assert_same_errors(run, pooled, digits)
    np.testing.assert_allclose(list(run.weights.values()), pooled.weights[list(run.weights)], atol=2e-3)
    assert run.judgement.text == pooled.judgement.text


def assert_same_errors(run, pooled, digits=4):
    for name, validated in run.validations.items():
        np.testing.assert_allclose(validated.value, pooled.entries[name].value, rtol=1e-9, err_msg=name)
    ours, theirs = run.leaderboard, pooled.leaderboard
    assert set(ours.index) <= set(theirs.index)
    for column in ("error", "validated"):
        np.testing.assert_allclose(
            ours[column].astype(float), theirs.loc[ours.index, column].astype(float), rtol=10.0**-digits
        )


def assert_same_intervals(service, pooled, own, target):
    """A site predicts the same, and as widely, as one table does."""
    ours, theirs = service.predict(own, interval=0.8), pooled.predict(own, interval=0.8)
    np.testing.assert_allclose(ours[target], theirs[target], rtol=0, atol=2e-3)
    width = (theirs["high"] - theirs["low"]).to_numpy()
    np.testing.assert_allclose(ours["high"] - ours["low"], width, rtol=0.02)  # bins of residuals are that wide
    np.testing.assert_allclose(service.job.intervals.growth, pooled.intervals.growth, atol=5e-3)


# ---------------------------------------------------------------------- the same answer


def test_numbers_on_a_map(tmp_path):
    table = shops(6, 12)
    settings = {"node": "shop", "target": "sales", "members": MEMBERS, "folds": 2, "neighbours": 2}
    run, post, services = together(cut(table, 2), tmp_path, **settings)
    pooled = learn(table, progress=False, **settings)
    assert_same(run, pooled)
    assert set(run.leaderboard.index) == {"final", "pooled", "slopes", "tailored", "wide", "alone", "control"}
    assert post.exchanges == run.exchanges
    own = cut(table, 2)["site 1"]
    assert_same_intervals(services["site 1"], pooled, own, "sales")
    with pytest.raises(InputError, match="Expected nodes that this site has learnt with, such as 'shop 3', got 'new'"):
        services["site 1"].predict(own.assign(shop="new"))


def test_two_classes_and_kin_by_similarity(tmp_path):
    """Logistic losses: Newton's method on sums; the graph from how models of nodes differ."""
    table = shops(6, 20, classes=True).drop(columns=["x", "y"])
    settings = {"node": "shop", "target": "sales", "members": "pooled,slopes,tailored", "folds": 2, "lam": 1.0}
    run, _, services = together(cut(table), tmp_path, **settings)
    pooled = learn(table, progress=False, **settings)
    assert_same(run, pooled)
    np.testing.assert_allclose(run.graph.weights, pooled.graph.weights, rtol=1e-9)
    own = cut(table)["site 0"]
    assert (services["site 0"].predict(own) == pooled.predict(own).to_numpy()).mean() > 0.99


def test_later_times_and_given_edges(tmp_path):
    """Windows of time, a trend that is kept or not, and a judgement by times."""
    rng = np.random.default_rng(3)
    days, names = pandas.date_range("2026-01-01", periods=24).strftime("%Y-%m-%d"), ["a", "b", "c", "d"]
    table = pandas.DataFrame({"node": np.repeat(names, 24), "day": np.tile(days, 4), "heat": rng.normal(size=96)})
    table["use"] = np.repeat([1.0, 1.2, 2.0, 2.2], 24) * table["heat"] + np.tile(np.arange(24) / 10, 4)
    table["use"] += 0.1 * rng.normal(size=96)
    settings = {"node": "node", "target": "use", "time": "day", "members": "pooled,slopes,tailored"}
    edges = [("a", "b"), ("b", "c"), ("c", "d")]
    run, _, services = together(cut(table, 2, "node"), tmp_path, edges=edges, **settings)
    pooled = learn(table, edges=edges, progress=False, **settings)
    assert_same(run, pooled)
    assert run.judgement.unit == "times"
    for name, own in cut(table, 2, "node").items():
        assert_same_intervals(services[name], pooled, own, "use")
    with pytest.raises(WireError, match="Expected scales without each of 3 windows of time, got 1"):
        services["site 0"].job.unseen.reach(np.zeros((3, 2)), np.ones(3), 1.0, run.ready.predicted_times)
    with pytest.raises(WireError, match="a slope from −1 to 1, got others"):
        services["site 0"].job.unseen.intervals(np.zeros((3, 4)), np.array([0.0, 1.0, 9.0]), np.zeros(3), np.zeros(3))
    assert run.trend_left_out == ("no trend" in [note.kind for note in pooled.remarks])


def test_one_row_per_node(tmp_path):
    """Whole nodes are predicted from their neighbours; random slopes and nodes alone are impossible."""
    rng = np.random.default_rng(5)
    table = pandas.DataFrame({"town": [f"t{k:02d}" for k in range(40)], "x": rng.random(40), "y": rng.random(40)})
    table["age"] = rng.normal(40, 5, size=40)
    table["votes"] = np.sin(4 * table["x"]) + 0.02 * table["age"] + 0.1 * rng.normal(size=40)
    settings = {"node": "town", "target": "votes", "members": MEMBERS, "folds": 3, "lam": 1.0}
    run, *_ = together(cut(table, 2, "town"), tmp_path, **settings)
    assert_same(run, learn(table, progress=False, **settings))
    assert "alone" not in run.leaderboard.index
    assert run.left_out == {"slopes": "every node has one row"}


def kinds(count=6, rows=20, seed=2):
    """Towns with a target of each kind: three classes, a count, and a number with long tails."""
    rng = np.random.default_rng(seed)
    table = pandas.DataFrame({
        "town": np.repeat([f"t{k}" for k in range(count)], rows),
        "age": rng.normal(size=count * rows),
        "dose": rng.normal(size=count * rows),
    })  # fmt: skip
    slope = np.repeat(np.linspace(-1, 1, count), rows)
    score = slope * table["dose"] + 0.5 * table["age"]
    noise = rng.gumbel(size=(len(table), 3))
    drawn = np.argmax(np.stack([score, -score, 0.3 * table["age"]], axis=1) + noise, axis=1)
    table["class"] = np.array(["high", "low", "middle"])[drawn]
    table["calls"] = rng.poisson(np.exp(1 + 0.5 * score))
    table["wait"] = score + rng.standard_t(2, size=len(table))
    return table


@pytest.mark.parametrize(
    ("target", "task"), [("class", {}), ("calls", {"task": "count"}), ("wait", {"task": "quantile", "quantile": 0.8})]
)
def test_other_targets(target, task, tmp_path):
    """Several classes, counts and quantiles: members, weights, errors and intervals of one table."""
    table = kinds()
    table = table.drop(columns=[name for name in ("class", "calls", "wait") if name != target])
    settings = {"node": "town", "target": target, "members": "pooled,slopes,tailored", "folds": 2, "lam": 1.0, **task}
    run, _, services = together(cut(table, 3, "town"), tmp_path, **settings)
    pooled = learn(table, progress=False, **settings)
    if target == "wait":  # errors hardly depend on the weights near the best, and kinks are rounded
        assert_same_errors(run, pooled)
        np.testing.assert_allclose(list(run.weights.values()), pooled.weights[list(run.weights)], atol=0.02)
        ours, theirs = run.judgement, pooled.judgement
        assert (ours.verdict, ours.against, ours.unit) == (theirs.verdict, theirs.against, theirs.unit)
        np.testing.assert_allclose([ours.gain, ours.low, ours.high], [theirs.gain, theirs.low, theirs.high], atol=0.1)
    else:
        assert_same(run, pooled)
    own = cut(table, 3, "town")["site 1"]
    if target == "class":
        assert (services["site 1"].predict(own) == pooled.predict(own).to_numpy()).mean() > 0.99
    else:
        ours, theirs = services["site 1"].predict(own, interval=0.8), pooled.predict(own, interval=0.8)
        np.testing.assert_allclose(ours[target], theirs[target], rtol=0, atol=0.02)
        np.testing.assert_allclose(ours["high"] - ours["low"], theirs["high"] - theirs["low"], rtol=0.03)


def test_steps_of_random_slopes_that_are_too_long_are_taken_back(tmp_path):
    """Large counts: from zero, Newton's first step makes the objective grow."""
    rng = np.random.default_rng(4)
    table = pandas.DataFrame({"town": np.repeat(["a", "b", "c", "d"], 12), "age": rng.normal(size=48)})
    table["calls"] = rng.poisson(np.exp(4 + np.repeat([-1.0, 0.0, 0.5, 1.0], 12) * table["age"]))
    settings = {"node": "town", "target": "calls", "task": "count", "members": "slopes", "folds": 2, "lam": 1.0}
    run, *_ = together(cut(table, 2, "town"), tmp_path, **settings)
    assert sent_in_all(tmp_path / "site 0").set_index("what")["messages"]["objectives, summed over rows"] > 0
    pooled = learn(table, progress=False, **settings)
    for column in ("error", "validated"):
        np.testing.assert_allclose(run.leaderboard[column]["slopes"], pooled.leaderboard[column]["slopes"], rtol=1e-6)


@pytest.mark.parametrize("secure", [False, True])
def test_large_counts(secure, tmp_path):
    """First steps from zero lead far beyond, where the loss is more than a number can hold."""
    table = kinds(4, 16).drop(columns=["class", "wait"])
    table["calls"] = np.random.default_rng(0).poisson(np.exp(8 + 2 * table["age"]))
    settings = {"node": "town", "target": "calls", "task": "count", "members": "pooled", "folds": 2, "lam": 1.0}
    run, *_ = together(cut(table, 2, "town"), tmp_path, secure=secure, **settings)
    assert_same_errors(run, learn(table, progress=False, **settings))


@pytest.mark.parametrize("test", ["nodes", "marks", "marked nodes"])
def test_whole_nodes_and_marked_rows(test, tmp_path):
    table = shops(8, 12)
    table["test"] = np.where(np.arange(len(table)) % 5 == 2, "test", "train")
    if test == "marked nodes":
        table["test"] = table["shop"].isin(["shop 1", "shop 6"])
    rule = {"hold": "nodes", "test": 0.25} if test == "nodes" else {"test": "test"}
    table = table.drop(columns=["test"] if test == "nodes" else [])
    settings = {"node": "shop", "target": "sales", "members": MEMBERS, "folds": 2, "lam": 1.0, **rule}
    run, *_ = together(cut(table), tmp_path, **settings)
    assert_same(run, learn(table, progress=False, **settings))
    assert ("alone" in run.leaderboard.index) == (test == "marks")


def test_boosting_at_each_site(tmp_path):
    """Against scikit-learn at each site by hand: trees on what the common ridge leaves of the site's own rows."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    table = shops(6, 60).drop(columns=["x", "y"])
    table["sales"] += 8 * (table["price"] > 6) * (table["shop"] < "shop 3")
    settings = {"node": "shop", "target": "sales", "members": "pooled,site-boosted", "folds": 2, "lam": 1.0}
    run, _, services = together(cut(table, 2), tmp_path, **settings)
    validated = run.validations["site-boosted"]
    leaves, rounds, _, base = validated.value
    assert base == 1.0  # one model for all: there are no slopes
    squares, count, held_out = 0.0, 0, {}
    for name, service in services.items():
        job = service.job.table
        w = service.job.trees.base[:, 0]
        for part, (learnt, held) in enumerate([*job.folds, (job.train, None)]):
            rows = job.training if held is None else job.training.take(learnt)
            asked = job.test if held is None else job.training.take(held)
            codes = np.unique(rows.owner, return_inverse=True)[1]
            trees = HistGradientBoostingRegressor(
                max_leaf_nodes=int(leaves), max_iter=int(rounds), learning_rate=0.05, early_stopping=False,
                categorical_features=[0], random_state=0,
            )  # fmt: skip
            trees.fit(np.column_stack([codes, rows.X]), rows.y - rows.X @ w[part, :-1] - w[part, -1])
            found = asked.X @ w[part, :-1] + w[part, -1] + trees.predict(np.column_stack([asked.owner, asked.X]))
            errors = job.target.loss(found, asked.y)
            if held is None:
                held_out |= {(name, node): errors[asked.owner == node].mean() for node in range(3)}
            else:
                squares, count = squares + errors.sum(), count + len(errors)
    np.testing.assert_allclose(validated.error, squares / count, rtol=1e-6)
    np.testing.assert_allclose(run.leaderboard["error"]["site-boosted"], np.sqrt(np.mean(list(held_out.values()))))
    assert run.weights["site-boosted"] > 0.8
    kept = services["site 1"].blend.save(tmp_path / "kept")
    own = cut(table, 2)["site 1"]
    np.testing.assert_array_equal(SiteBlend.load(kept).predict(own), services["site 1"].predict(own))


def test_boosting_tied_by_predictions_on_public_points(tmp_path):
    """Against FedRelax of the engine, on a graph of two sites with the rests of their rows."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    table = shops(4, 40).drop(columns=["x", "y"])
    settings = {"node": "shop", "target": "sales", "members": "pooled,site-tied", "folds": 2, "lam": 1.0}
    run, post, services = together(cut(table, 2), tmp_path, **settings)
    validated = run.validations["site-tied"]
    jobs = [service.job for service in services.values()]
    points = jobs[0].tied.points
    np.testing.assert_array_equal(points, jobs[1].tied.points)  # drawn alike, and of nobody
    sent = b"".join(answer for _, answer in post.answers)
    assert not any(np.float64(value).tobytes() in sent for value in table["price"])
    errors = []
    for leaves, rounds, lam in validated.values[-2:]:
        model = HistGradientBoostingRegressor(
            max_leaf_nodes=int(leaves), max_iter=int(rounds), learning_rate=0.05, early_stopping=False, random_state=0
        )
        total = 0.0
        for part in range(2):
            bases, held, rests = [], [], []
            for job in jobs:
                w = job.trees.base[part, 0]
                learnt, asked = (job.table.training.take(rows) for rows in job.table.folds[part])
                rests.append((learnt.X, learnt.y - learnt.X @ w[:-1] - w[-1]))
                held.append(asked)
                bases.append(asked.X @ w[:-1] + w[-1])
            network = Network(graphs.chain(2), rests, public=points)
            fitted = fit(network, FedRelax(model, lam=lam), rounds=3, progress=False)
            for k, (asked, base) in enumerate(zip(held, bases, strict=True)):
                found = base + fitted.predict(asked.X, node=np.full(len(asked.y), k))
                total += jobs[k].table.target.loss(found, asked.y).sum()
        errors.append(total / run.ready.held.sum())
    np.testing.assert_allclose(validated.means[-2:], errors, rtol=1e-5)
    assert np.isfinite(run.leaderboard["error"]["site-tied"])
    kept = services["site 0"].blend.save(tmp_path / "kept")
    own = cut(table, 2)["site 0"]
    np.testing.assert_array_equal(SiteBlend.load(kept).predict(own), services["site 0"].predict(own))


@pytest.mark.parametrize("target", ["class", "calls", "wait"])
def test_boosting_of_other_targets_and_a_site_with_few_rows(target, tmp_path):
    """A site with two rows takes part; one that has none in a part gets the model of all."""
    table = kinds(4, 30)
    table = table.drop(columns=[name for name in ("class", "calls", "wait") if name != target])
    table = pandas.concat([table, table[:2].assign(town="z")], ignore_index=True)
    home = table["town"].eq("z")
    task = {"calls": {"task": "count"}, "wait": {"task": "quantile"}}.get(target, {})
    tables = {"large": table[~home].reset_index(drop=True), "small": table[home].reset_index(drop=True)}
    run, _, services = together(
        tables, tmp_path, node="town", target=target, members="pooled,site-boosted", folds=2, lam=1.0, **task
    )  # fmt: skip
    assert np.isfinite(run.leaderboard["error"].astype(float)).all()
    assert len(services["small"].predict(tables["small"])) == 2


def test_weights_are_those_of_one_table_whose_candidates_are_fitted_exactly(tmp_path, monkeypatch):
    """One row for every node and λ of all sizes: candidates that are only nearly fitted change the blend."""
    runs = Candidate.runs
    exact = Tolerance(1e-10, None)
    monkeypatch.setattr(Candidate, "runs", lambda self, network, values, stop: runs(self, network, values, exact))
    rng = np.random.default_rng(6)
    table = pandas.DataFrame({"town": [f"t{k:02d}" for k in range(30)], "x": rng.random(30), "y": rng.random(30)})
    table["age"] = rng.normal(40, 5, size=30)
    table["votes"] = np.sin(4 * table["x"]) + 0.02 * table["age"] + 0.1 * rng.normal(size=30)
    settings = {"node": "town", "target": "votes", "members": "pooled,tailored,wide", "folds": 2}
    run, *_ = together(cut(table, 2, "town"), tmp_path, **settings)
    one = learn(table, progress=False, **settings)
    assert_same(run, one)
    np.testing.assert_allclose(list(run.weights.values()), one.weights[list(run.weights)], atol=1e-4)


def test_over_sockets(tmp_path):
    table = shops(4, 12).drop(columns=["x", "y"])
    settings = {"node": "shop", "target": "sales", "members": "pooled,tailored", "folds": 2, "lam": 1.0}
    settings["graph"] = "complete"
    services = {name: TableService(name, each, tmp_path / name) for name, each in cut(table, 2).items()}
    with SocketPost() as post:
        running = [threading.Thread(target=serve, args=(each, post.address), daemon=True) for each in services.values()]
        for thread in running:
            thread.start()
        run = learn_together(post, list(services), Settings.of(settings))
        assert_same(run, learn(table, progress=False, **settings))
        assert "There is no control: no other graph has the same degrees, or too few to draw one." in run.notes
    for thread in running:
        thread.join(30)
        assert not thread.is_alive()
    for service in services.values():
        service.close()


# ---------------------------------------------------------------------- what leaves


def test_what_leaves_is_declared_and_no_row_is_in_it(tmp_path):
    table = shops(4, 30)
    table["size"] = table["size"].fillna(0.0)
    settings = {"node": "shop", "target": "sales", "members": MEMBERS, "folds": 2, "lam": 1.0}
    run, post, services = together(cut(table, 2), tmp_path, **settings)
    for name, service in services.items():
        left = sent_in_all(service.folder)
        known = sum(len(answer) for site, answer in post.answers if site == name)
        assert 0.7 * known < left["bytes"].sum() <= known  # heads of messages aside
        declared = {array.content for work in WORKS.values() for array in work.gives.values()}
        declared |= {work.text for work in WORKS.values()}
        others = set(left["what"]) - declared
        assert {what.split(",")[0] for what in others} == {
            "names of nodes and columns", "parameters", "measured: height",
            "inner products of gradients and directions",
        }  # fmt: skip
        sent = b"".join(answer for site, answer in post.answers if site == name)
        own = cut(table, 2)[name]
        for column in ("price", "size", "sales"):
            found = sum(np.float64(value).tobytes() in sent for value in own[column] if value)
            assert found == 0
    told = [note.values["member"] for note in run.facts if note.kind == "member left out"]
    assert told == []
    run, *_ = together(cut(table, 2), tmp_path / "all", node="shop", target="sales", folds=2, lam=1.0)
    told = {note.values["member"] for note in run.facts if note.kind == "member left out"}
    assert told == {"intercepts", "boosted", "trees"}
    assert "'boosting on the rest of linear models' takes no part: it needs the rows of all." in run.notes


def test_rare_categories_are_not_named(tmp_path):
    table = shops(4, 30)
    table["kind"] = np.where(np.arange(len(table)) < LEAST_NAMED - 1, "secret", table["kind"])
    run, post, _ = together(cut(table, 2), tmp_path, node="shop", target="sales", members="pooled", folds=2, lam=1.0)
    assert b"secret" not in b"".join(answer for _, answer in post.answers)
    assert "kind_infrequent_sklearn" in run.ready.encoder.get_feature_names_out()
    assert "'a'" not in str([note.values for note in run.facts])


@pytest.mark.parametrize("last", [4, 20])
def test_a_site_that_goes_away_ends_the_job(last, tmp_path):
    """In answer to questions, and in lanes."""
    services = {name: TableService(name, table, tmp_path / name) for name, table in cut(shops(4, 12), 2).items()}

    class Leaving(Direct):
        def ask(self, blobs, most, seconds):
            found = super().ask(blobs, most, seconds)
            return {**found, "site 1": Missing("it has gone")} if self.exchanges > last else found

    settings = Settings("shop", "sales", lam=1.0, folds=2, members=("pooled", "tailored"))
    with pytest.raises(InputError, match=r"Expected an answer of site 'site 1', got none \(it has gone\)"):
        learn_together(Leaving(services), list(services), settings)
    for service in services.values():
        service.close()


class Without(Direct):
    """From some exchange on a site does not answer."""

    def __init__(self, services, name, last):
        super().__init__(services)
        self.name, self.last = name, last

    def ask(self, blobs, most, seconds):
        found = super().ask(blobs, most, seconds)
        gone = {self.name: Missing("it has gone")} if self.exchanges > self.last and self.name in blobs else {}
        return {**found, **gone}


@pytest.mark.parametrize("last", [0, 4, 30])
@pytest.mark.parametrize("secure", [False, True])
def test_all_begins_anew_without_a_site_that_has_gone(last, secure, tmp_path):
    """The answer is that of the others by themselves; the notes tell."""
    tables = cut(shops(6, 12).drop(columns=["x", "y"]), 3)
    settings = Settings("shop", "sales", lam=1.0, folds=2, members=("pooled", "tailored"))
    left = {name: table for name, table in tables.items() if name != "site 1"}
    alone, *_ = together(left, tmp_path / "alone", secure=secure, **settings.to_toml())
    services = {name: TableService(name, each, tmp_path / name, fewest=2) for name, each in tables.items()}
    post = Without(services, "site 1", last)
    run = learn_together(post, list(services), settings, secure=secure, fewest=2)
    assert run.leaderboard["error"].tolist() == alone.leaderboard["error"].tolist()
    assert run.weights == alone.weights
    assert run.judgement.text == alone.judgement.text
    assert "Site 'site 1' takes no part: it has gone. All began anew without it." in run.notes
    with pytest.raises(InputError, match="Expected an answer of site 'site 1'"):
        learn_together(Without(services, "site 1", last), list(services), settings, secure=False, fewest=3)
    for service in services.values():
        service.close()


# ---------------------------------------------------------------------- secure sums


def test_a_coordinator_that_leaves_a_site_out_to_tell_its_part_is_refused(tmp_path):
    """Sums with and without a site would tell what it added; only owners can agree to that, or bring other rows."""
    tables = cut(shops(6, 12).drop(columns=["x", "y"]), 3)
    settings = Settings("shop", "sales", lam=1.0, folds=2, members=("pooled", "tailored"))
    services = {name: TableService(name, each, tmp_path / name) for name, each in tables.items()}
    learn_together(Direct(services), list(services), settings, secure=True)
    with pytest.raises(InputError, match=r"Expected sums with the sites of before .*, got others: the difference"):
        learn_together(Direct(services), ["site 0", "site 2"], settings, secure=True)
    learn_together(Direct(services), list(services), settings, secure=True)  # the same sites may go on
    services["site 0"].close()
    services["site 0"] = TableService("site 0", tables["site 0"], tmp_path / "site 0")
    with pytest.raises(InputError, match="Expected sums with the sites of before"):  # nor after a restart
        learn_together(Direct(services), ["site 0", "site 2"], settings, secure=True)
    for service in services.values():
        service.close()


def test_a_site_that_goes_before_anything_was_summed_is_left_out_freely(tmp_path):
    """Introduce, masks, describe, count: what was never summed with it cannot be told by a difference. Then totals."""
    tables = cut(shops(6, 12).drop(columns=["x", "y"]), 3)
    settings = Settings("shop", "sales", lam=1.0, folds=2, members=("pooled",))
    services = {name: TableService(name, each, tmp_path / name) for name, each in tables.items()}
    with pytest.raises(InputError, match="Expected sums with the sites of before"):
        learn_together(Without(services, "site 1", 4), list(services), settings, secure=True, fewest=2)
    for service in services.values():
        service.close()
    services = {name: TableService(name, each, tmp_path / "anew" / name) for name, each in tables.items()}
    run = learn_together(Without(services, "site 1", 3), list(services), settings, secure=True, fewest=2)
    assert list(run.gone) == ["site 1"]
    for service in services.values():
        service.close()


def test_secure_sums_give_the_same_answer_and_nothing_else(tmp_path):
    """Every number of a masked answer is as likely as any other; the sums are those without masks."""
    table = shops(6, 12).drop(columns=["x", "y"])
    settings = {"node": "shop", "target": "sales", "members": "pooled,slopes,tailored", "folds": 2, "lam": 1.0}
    plain, seen, _ = together(cut(table), tmp_path / "plain", **settings)
    run, post, _ = together(cut(table), tmp_path / "secure", secure=True, **settings)
    ours, theirs = (each.leaderboard["error"] for each in (run, plain))
    np.testing.assert_allclose(ours.drop("tailored"), theirs.drop("tailored"), rtol=1e-9)
    np.testing.assert_allclose(ours, theirs, rtol=1e-7)  # tailored models are solved for in another way
    assert run.judgement.text == plain.judgement.text
    words, numbers = summed_arrays(post, masked=True), summed_arrays(seen, masked=False)
    assert set(words) == set(numbers) == {name for name, work in WORKS.items() if work.summed} - OTHER_LOSSES
    bits = np.unpackbits(np.concatenate(words["derivatives"]).view(np.uint8))
    assert len(bits) > 20_000
    assert abs(bits.mean() - 0.5) < 4 * 0.5 / np.sqrt(len(bits))
    known = np.concatenate(numbers["derivatives"]).astype(np.float64).tobytes()
    assert not any(known[k : k + 8] in np.concatenate(words["derivatives"]).tobytes() for k in range(0, len(known), 8))


OTHER_LOSSES = {"slopes try", "costs", "boosted", "tied begin", "tied step", "tied end"}  # works that were not asked


def summed_arrays(post, masked):
    """What all sites answered to works of which only sums are needed, by work."""
    out, kinds = {}, list(WORKS)
    for _, answer in post.answers:
        kind, key = peek(answer)
        if kind == "result" and WORKS[kinds[key.lane]].summed:
            name = kinds[key.lane]
            arrays = read_answer(answer, key, name, {}, masked=masked)[1]
            out.setdefault(name, []).extend(np.ravel(each) for each in arrays.values())
    return out


def keys(folder, count=3):
    """Masks of several sites that know of each other."""
    own = {f"site {k}": (SiteKey.at(made(folder / str(k))), os.urandom(16)) for k in range(count)}
    peers = {name: (Peer(name, key.public), salt) for name, (key, salt) in own.items()}
    return [
        Masks(key, name, salt, {peer: other for at, (peer, other) in peers.items() if at != name})
        for name, (key, salt) in own.items()
    ]


def test_masks_cancel_to_the_last_bit(tmp_path):
    rng = np.random.default_rng(0)
    sites = [
        {"a": rng.normal(size=(4, 50)) * 10.0 ** rng.integers(-6, 12, size=(4, 50)), "b": np.int64(k)}
        for k in (3, 4, 9)
    ]
    parts = [masks.masked(7, each) for masks, each in zip(keys(tmp_path), sites, strict=True)]
    exact = [to_numbers(to_words(each["a"])) for each in sites]
    assert float(summed(part["b"] for part in parts)) == 16.0
    fractions = np.array(
        [[Fraction(x) + Fraction(y) + Fraction(z)] for x, y, z in zip(*map(np.ravel, exact), strict=True)]
    )
    found = np.ravel(summed(part["a"] for part in parts))
    np.testing.assert_allclose(found, fractions[:, 0].astype(float), rtol=1e-15, atol=2.0**-60)


def test_masks_are_new_for_every_question_and_job(tmp_path):
    first, other = keys(tmp_path)[0], keys(tmp_path)[0]
    zeros = {"a": np.zeros(100), "b": np.zeros(100)}
    drawn = [first.masked(1, zeros)["a"], first.masked(1, zeros)["b"], first.masked(2, zeros)["a"]]
    drawn.append(other.masked(1, zeros)["a"])  # the same keys, other salts
    assert len({each.tobytes() for each in drawn}) == 4


def test_a_folder_from_a_backup_gives_other_questions_other_masks(tmp_path):
    """The number of a question comes again, with other parameters: with equal masks the difference would be exact."""
    keys = {name: SiteKey.at(tmp_path / name) for name in ("a", "b")}
    salts = {name: os.urandom(16) for name in keys}
    about = {"sites": {name: {"key": key.public.hex(), "salt": salts[name].hex()} for name, key in keys.items()}}

    def company(name):
        found = Company(name, keys[name], tmp_path / name, "rows", None, None)
        found._salt = salts[name]
        found.meet(about)
        return found

    def masked(name, *questions):
        """The masked answer to the last of some questions, always the same numbers."""
        own = company(name)
        return [own.masked(number, {"sums": np.ones(3)}, each)["sums"] for number, each in enumerate(questions)][-1]

    np.testing.assert_array_equal(summed([masked("a", b"one", b"two"), masked("b", b"one", b"two")]), [2.0] * 3)
    first = masked("a", b"one", b"two")
    np.testing.assert_array_equal(masked("a", b"one", b"two"), first)
    for others in ((b"one", b"other"), (b"other", b"two")):
        assert (masked("a", *others) != first).all()


def test_a_site_that_wants_secure_sums_gets_them(tmp_path):
    tables = cut(shops(4, 12), 2)
    services = {name: TableService(name, each, tmp_path / name, secure=True) for name, each in tables.items()}
    with pytest.raises(InputError, match="Expected secure sums, as site 'site 0' wants them"):
        learn_together(Direct(services), list(services), Settings("shop", "sales"))
    for service in services.values():
        service.close()


def test_a_question_is_answered_once(tmp_path):
    """With masks a second answer under the same number would show what is beneath."""
    service = TableService("a", shops(4, 12), tmp_path)
    about = {"node": "shop", "target": "sales"}
    first = question(bytes(16), 5, "describe", about, {})[1]
    assert service.answer(first) == service.answer(first)
    for number in (5, 4):
        why, _ = refusal_in(service.answer(question(bytes(16), number, "describe", {**about, "seed": 1}, {})[1]))
        assert "after number 5" in why
    service.close()


@pytest.mark.parametrize("sites", [{}, {"a": {}}, {"b": {"key": "00" * 32, "salt": "00"}}, 3])
def test_keys_that_are_none_are_refused(sites, tmp_path):
    service = TableService("a", shops(4, 12), tmp_path)
    assert refusal_in(service.answer(question(bytes(16), 1, "introduce", {}, {})[1])) is None
    why, _ = refusal_in(service.answer(question(bytes(16), 2, "masks", {"sites": sites}, {})[1]))
    assert "Expected the keys" in why
    service.close()


# ---------------------------------------------------------------------- the page of a site


def test_the_page_of_a_site(tmp_path):
    """Its own rows, intervals, models and what left; nothing of other sites but what all are told."""
    table = shops(6, 20).drop(columns=["x", "y"])
    table["shop"] = "<i>" + table["shop"]
    settings = {"node": "shop", "target": "sales", "members": "pooled,tailored,site-boosted", "folds": 2, "lam": 1.0}
    run, _, services = together(cut(table, 2), tmp_path, **settings)
    service = services["site 0"]
    facts = service.facts("a & b")
    assert facts.outcome.judgement == run.judgement.text
    np.testing.assert_allclose(facts.outcome.errors, run.leaderboard["error"].astype(float))
    errors = run.nodes["error_final"]
    np.testing.assert_allclose(facts.outcome.quantiles[0], np.quantile(errors, SHARES))
    assert facts.nodes.index.tolist() == ["<i>shop 0", "<i>shop 1", "<i>shop 2"]
    np.testing.assert_allclose(facts.nodes["error_final"], errors[:3])
    np.testing.assert_allclose(facts.here["final"], np.sqrt((errors[:3] ** 2).mean()))
    own = cut(table, 2)["site 0"]
    held_out = own.loc[facts.rows["row"]]
    np.testing.assert_allclose(facts.rows["target"], held_out["sales"])
    found = service.predict(held_out, interval=0.9)
    np.testing.assert_allclose(facts.rows[["predicted", "low", "high"]], found[["sales", "low", "high"]])
    assert facts.coefficients.shape == (3, run.ready.width)
    page = write_site(facts, tmp_path / "report.html").read_text()
    assert "Site site 0 of federation a &amp; b" in page
    assert "&lt;i&gt;shop 2" in page
    assert "<i>shop" not in page.partition("<script>")[0]
    assert "shop 3" not in page  # a node of another site
    assert "sums of losses over held-out rows" in page
    assert f"hold {facts.inside * 100:.0f} % of these {len(facts.rows)}" in page


def test_the_page_of_a_site_with_classes_and_without_held_out_rows(tmp_path):
    table = kinds(4, 30).drop(columns=["calls", "wait"])
    table["test"] = (table["town"] > "t1") & (np.arange(len(table)) % 4 == 0)
    settings = {"node": "town", "target": "class", "test": "test", "members": "pooled", "folds": 2, "lam": 1.0}
    _, _, services = together(cut(table, 2, "town"), tmp_path, **settings)
    pages = [write_site(each.facts("f"), tmp_path / f"{name}.html").read_text() for name, each in services.items()]
    assert "No row was held out here." in pages[0]
    right = services["site 1"].facts("f").rows
    assert f"{100 * (right['target'] == right['predicted']).mean():.0f} % of {len(right)} are right" in pages[1]
    assert "t2: middle" in pages[1]  # coefficients of every class


OUTCOME = {"verdict": "helps", "judgement": "It helps.", "methods": ["final"], "notes": []}
QUANTILES = {"errors": np.ones(1), "quantiles": np.ones((1, 5))}


@pytest.mark.parametrize("change", [{"methods": [1]}, {"verdict": None}, {"notes": "no"}, {"more": 1}, {"methods": []}])
def test_an_outcome_that_is_none_is_refused(change):
    assert outcome_of(OUTCOME, QUANTILES).verdict == "helps"
    with pytest.raises(WireError, match="Expected how learning together has ended"):
        outcome_of({**OUTCOME, **change}, QUANTILES)
    with pytest.raises(WireError, match="Expected how learning together has ended"):
        outcome_of(OUTCOME, {**QUANTILES, "quantiles": np.ones((1, 6))})  # the page has places for five


def test_an_outcome_before_the_test_is_refused(tmp_path):
    """Otherwise there would be no page, and the site would end without keeping its models."""
    service = TableService("a", shops(4, 12), tmp_path)
    describe = question(bytes(16), 1, "describe", Settings("shop", "sales").to_toml(), {})[1]
    assert refusal_in(service.answer(describe)) is None
    found = refusal_in(service.answer(question(bytes(16), 2, "outcome", OUTCOME, QUANTILES)[1]))
    assert "Expected how it has ended after the test" in found[0]
    assert service.facts("f") is None
    service.close()


# ---------------------------------------------------------------------- refused, in a sentence


def renamed(tables):
    tables["site 1"] = tables["site 1"].rename(columns={"price": "cost"})


def as_text(tables):
    tables["site 1"]["price"] = np.where(tables["site 1"]["price"] > 5, "dear", "cheap")


def shared_node(tables):
    tables["site 1"] = pandas.concat([tables["site 1"], tables["site 0"]])


def without_target(tables):
    del tables["site 1"]["sales"]


def other_target(tables):
    tables["site 1"]["sales"] = np.where(tables["site 1"]["sales"] > 0, "high", "low")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (renamed, "at site 'site 1', as at 'site 0', got no 'price'"),
        (as_text, "column 'price', it holds a number at site 'site 0' and a category at 'site 1'"),
        (shared_node, "every node at one site, 'shop 0' is at 'site 0' and at 'site 1'"),
        (without_target, "Site 'site 1' refuses. Expected a column 'sales', the table has 'shop'"),
        (other_target, "the same kind of target at all sites, site 'site 0' has other values"),
    ],
)
def test_tables_that_differ(change, sentence, tmp_path):
    tables = cut(shops(4, 12), 2)
    change(tables)
    with pytest.raises(InputError, match=sentence):
        together(tables, tmp_path, node="shop", target="sales")


def test_a_class_that_one_site_alone_has(tmp_path):
    """It is learnt as on one table, and said; classes that are written in two ways are refused."""
    table = kinds(4, 30).drop(columns=["calls", "wait"])
    table.loc[[3, 8, 9, 17, 21, 25], "class"] = "rare"
    settings = {"node": "town", "target": "class", "members": "pooled,tailored", "folds": 2, "lam": 1.0}
    run, *_ = together(cut(table, 2, "town"), tmp_path, **settings)
    assert_same(run, learn(table, progress=False, **settings))
    assert "Class 'rare' occurs among the training rows of site 'site 0' alone." in run.notes
    tables = cut(table, 2, "town")
    tables["site 1"]["class"] = tables["site 1"]["class"].map({"high": 1, "low": 2, "middle": 3})
    with pytest.raises(InputError, match="as text or as numbers at all sites, 'site 0' and 'site 1' have different"):
        together(tables, tmp_path / "numbers", **settings, task="classification")


def test_marked_rows_that_come_later(tmp_path):
    table = shops(4, 12)
    table["day"] = np.tile(np.arange(12), 4)
    table["test"] = table["day"] > 8
    with pytest.raises(InputError, match="at all sites they come later in column 'day'"):
        together(cut(table, 2), tmp_path, node="shop", target="sales", test="test")


def test_a_site_without_rows(tmp_path):
    with pytest.raises(InputError, match="Expected rows at this site, got none"):
        TableService("a", shops(4, 12)[:0], tmp_path)
    tables = cut(shops(4, 12), 2)
    tables["site 1"]["sales"] = np.nan
    with pytest.raises(InputError, match=r"Site 'site 1' refuses. Expected rows with a target 'sales', got none"):
        together(tables, tmp_path / "without a target", node="shop", target="sales")


def test_counts_below_zero(tmp_path):
    with pytest.raises(InputError, match="Site 'site 0' refuses"):
        together(cut(shops(4, 12), 2), tmp_path, node="shop", target="sales", task="count")


def test_units_that_differ(tmp_path):
    units = ({"price": "euro"}, {"price": "dollar"})
    tables = cut(shops(4, 12), 2).items()
    services = {
        name: TableService(name, table, tmp_path / name, unit)
        for (name, table), unit in zip(tables, units, strict=True)
    }
    with pytest.raises(InputError, match="'price' in one unit, it is in 'euro' at site 'site 0' and in 'dollar' at"):
        learn_together(Direct(services), list(services), Settings("shop", "sales"))
    for service in services.values():
        service.close()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"model": "boosting"}, "one of ridge, linear as the model of a federation"),
        ({"model": "thief.py:Model"}, "one of ridge, linear as the model of a federation"),
        ({"method": "fedrelax"}, "one of auto, gtvmin-smooth as the method"),
        ({"hold": "regions"}, "whole nodes or marked rows as the test of a federation, got regions"),
        ({"members": "pooled,thief.py:Member"}, "members among pooled"),
    ],
)
def test_settings_that_need_rows_or_code(settings, sentence, tmp_path):
    with pytest.raises(InputError, match=sentence):
        together(cut(shops(4, 12), 2), tmp_path, node="shop", target="sales", **settings)


def test_a_site_refuses_settings_that_name_code(tmp_path):
    """Whatever a coordinator lets pass, a site does not."""
    service = TableService("a", shops(4, 12), tmp_path)
    settings = {"node": "shop", "target": "sales", "model": "thief.py:Model"}
    why, _ = refusal_in(service.answer(question(bytes(16), 1, "describe", settings, {})[1]))
    assert "can be learnt from" in why  # the sentence itself stays in the log of the site
    service.close()


def test_damaged_questions_get_an_answer(tmp_path):
    """Whatever bytes arrive, the site answers; it refuses all that is not what it was."""
    rng = np.random.default_rng(0)
    service = TableService("a", shops(4, 12), tmp_path)
    good = question(bytes(16), 1, "describe", {"node": "shop", "target": "sales"}, {})[1]
    asked = question(bytes(16), 2, "count", {}, {"numbers": np.arange(4), "cut": np.float64(0)})[1]
    for content in (good, asked, bundled(Key(), {0: asked, 1: good})):
        for _ in range(300):
            damaged = bytearray(content)
            for place in rng.integers(len(content), size=rng.integers(1, 4)):
                damaged[place] = rng.integers(256)
            assert isinstance(service.answer(bytes(damaged[: rng.integers(1, len(damaged) + 1)])), bytes)
    service.close()


def test_a_site_splits_its_rows_once_in_a_job(tmp_path):
    """A coordinator chooses the numbers of nodes, which decide the split: sums over many splits would tell rows."""
    service = TableService("a", shops(4, 12), tmp_path)
    describe = question(bytes(16), 1, "describe", Settings("shop", "sales").to_toml(), {})[1]
    about = {"numbers": ["price"], "categories": [], "dates": [], "coords": [], "written": []}
    arrays = {"numbers": np.arange(4), "cut": np.float64(0.0), "tested": np.zeros(4, dtype=bool)}
    count = [question(bytes(16), number, "count", about, arrays)[1] for number in (2, 3)]
    assert [refusal_in(service.answer(each)) for each in (describe, count[0], count[0])] == [None] * 3
    describe = question(bytes(16), 3, "describe", Settings("shop", "sales").to_toml(), {})[1]
    for again in (count[1], describe):
        assert "once in a job, got it again: begin anew" in refusal_in(service.answer(again))[0]
    service.close()


# ---------------------------------------------------------------------- a coordinator that asks something else


@pytest.fixture
def prepared(tmp_path):
    """Sites with classes whose rows are encoded, as a coordinator sees them; and the services."""
    services = {
        name: TableService(name, each, tmp_path / name) for name, each in cut(shops(6, 8, classes=True), 2).items()
    }
    sites = Sites(Direct(services), list(services), 60.0)
    settings = Settings("shop", "sales", lam=1.0, folds=2, members=("pooled", "slopes", "tailored"))
    yield sites, prepare_together(sites, settings, None), services
    for service in services.values():
        service.close()


def rows_told(sites, ready, services, steep, count=360):
    """How many rows are among the differences of gradients of steep models, moved over the rows in small steps."""
    along = np.random.default_rng(0).normal(size=ready.width - 1)
    at = np.linspace(-3, 3, count)[:, None]
    w = steep * np.hstack([np.tile(along / np.linalg.norm(along), (count, 1)), -at])
    part = np.full(count, ready.folds)
    found = sites.total("derivatives", w=w, part=part, score=np.zeros_like(part), rounding=0.0)
    steps = np.diff(found["gradient"], axis=0)
    single = steps[np.abs(np.abs(steps[:, -1]) - 1) < 1e-2]
    guesses = single[:, :-1] / single[:, -1:]
    rows = np.vstack([service.job.table.part_data[-1].X for service in services.values()])
    return sum(bool(len(guesses)) and bool((np.abs(guesses - row).max(axis=1) < 1e-2).any()) for row in rows), len(rows)


def test_steep_models_do_not_tell_single_rows(prepared, monkeypatch):
    found, _ = rows_told(*prepared, 1e6)
    assert found == 0
    monkeypatch.setattr(SiteTable, "too_steep", lambda self, loss, scores: False)
    found, there = rows_told(*prepared, 1e6)
    assert found > there / 3  # what is held off


def test_steps_of_random_slopes_and_origins_of_lanes_may_not_be_steep_either(prepared):
    sites, ready, services = prepared
    begun = sites.total("slopes begin", strengths=[[1.0, 1.0]], ridge=1.0)
    step = np.full((ready.folds + 1, 1, 1, ready.width), 1e6)
    moved = sites.total("slopes move", step=step, size=np.ones(step.shape[:3]), back=np.zeros(step.shape[:3], bool))
    assert (moved["height"] > 1e5 * begun["height"]).all()
    assert not moved["common"].any()
    assert not moved["pull"].any()
    with pytest.raises(WireError, match="Expected models to begin with that fit the rows of this site"):
        services["site 0"].job.table.check_origin(0, step[0, 0, 0])


def test_more_questions_or_models_than_the_settings_need_are_refused(prepared, monkeypatch):
    sites, ready, services = prepared
    with pytest.raises(InputError, match=r"at most 360 models or values in the question 'derivatives'.* got 361"):
        rows_told(sites, ready, services, 1.0, count=361)
    sites.number -= 1  # it was refused
    w = np.zeros((ready.folds, len(ready.family.ridges), 1, ready.width))
    sites.total("pooled", {"name": "pooled"}, w=w)
    with pytest.raises(InputError, match="Expected the question 'pooled' once in a job, got it again"):
        sites.total("pooled", {"name": "again"}, w=w)
    sites.number -= 1
    monkeypatch.setattr("kinfolk.federation.tables.bounds.NEWTON_STEPS", 1)
    for _ in range(3):
        rows_told(sites, ready, services, 1.0)
    with pytest.raises(InputError, match="Expected the question 'derivatives' at most 3 times in a job"):
        rows_told(sites, ready, services, 1.0)
    bounds = Bounds.of(ready.settings, ready.target)
    bounds.check_lane(bounds.lanes - 1, 3)
    for lane, runs in ((bounds.lanes, 1), (0, 4)):
        with pytest.raises(WireError, match="Expected at most 3 runs in lanes with 4 fits each"):
            bounds.check_lane(lane, runs)


def test_numbers_are_asked_about_at_zero(tmp_path):
    bounds = Bounds.of(Settings("shop", "sales"), Target())
    arrays = {
        "w": np.zeros((6, 3)),
        "part": np.arange(6),
        "score": np.zeros(6, dtype=np.int64),
        "rounding": np.zeros(()),
    }
    bounds.check("derivatives", arrays, 0)
    with pytest.raises(WireError, match="Expected derivatives of squared errors at zero"):
        bounds.check("derivatives", {**arrays, "w": np.ones((6, 3))}, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"folds": 900}, "from 1 to 2 folds, as the settings need"), ({"kind": "quantile"}, "for the task 'regression'")],
)
def test_rows_are_cut_into_as_many_parts_as_the_settings_say_and_the_target_is_theirs(change, message, tmp_path):
    """The sum over all rows without that over all but one is a row; and of quantiles, others would be told."""

    class Deviating(Sites):
        def ask(self, name, about=None, **arrays):
            return super().ask(name, {**(about or {}), **change} if name == "encode" else about or {}, **arrays)

    services = {name: TableService(name, each, tmp_path / name) for name, each in cut(shops(4, 12), 2).items()}
    sites = Deviating(Direct(services), list(services), 60.0)
    with pytest.raises(InputError, match=message):
        prepare_together(sites, Settings("shop", "sales", folds=2, task="regression"), None)
    for service in services.values():
        service.close()


@pytest.mark.parametrize(
    ("secure", "algorithm", "message"),
    [
        (False, lambda self, *_: FedAvg(self.loss, average="gradients"), "Expected models on a graph in a lane"),
        (True, lambda self, *_: Newton(self.loss, common=True), "Expected no sums of site 'site 0' alone in a lane"),
    ],
)
def test_a_coordinator_that_runs_something_else_in_lanes_is_refused(secure, algorithm, message, tmp_path, monkeypatch):
    """Gradients of every node, or sums of one site although sums are masked: no owner has agreed to that."""
    monkeypatch.setattr(Tailored, "algorithm", algorithm)
    settings = {"node": "shop", "target": "sales", "members": "pooled,tailored", "folds": 2, "lam": 1.0}
    with pytest.raises(InputError, match=message):
        together(cut(shops(4, 12), 2), tmp_path, secure=secure, **settings)


@pytest.mark.parametrize("secure", [False, True])
def test_a_site_that_nobody_has_agreed_to_is_refused(secure, tmp_path):
    """A coordinator could make it up, and so open masks and letters; as a neighbour, or where sums are masked."""
    tables = cut(shops(4, 12), 2)
    settings = Settings("shop", "sales", lam=1.0, folds=2, members=("pooled", "tailored"))
    services = {name: TableService(name, each, tmp_path / name, sites=["site 0"]) for name, each in tables.items()}
    with pytest.raises(InputError, match="Expected the agreed sites, got 'site 1' besides"):
        learn_together(Direct(services), list(services), settings, secure=secure)
    for service in services.values():
        service.close()


@pytest.mark.parametrize("values", [[[1e9, 10.0, 1.0]], [[4.0, 1e6, 1.0]], [[4.0, 2.0, 1.0]] * 300])
def test_trees_that_would_keep_a_site_busy_are_refused(values):
    with pytest.raises(WireError, match="plans for trees of usual sizes"):
        check_plans(np.array(values))


def test_questions_out_of_turn_or_of_other_shapes_are_refused(tmp_path):
    service = TableService("a", shops(4, 12), tmp_path)
    for name, work in WORKS.items():
        arrays = {each: np.zeros([3] * len(array.axes), array.dtype) for each, array in work.takes.items()}
        if name not in ("describe", "introduce"):
            assert refusal_in(service.answer(question(bytes(16), 1 + NUMBERS[name], name, {}, arrays)[1])), name
    describe = question(bytes(16), 91, "describe", {"node": "shop", "target": "sales"}, {})[1]
    assert refusal_in(service.answer(describe)) is None
    numbers = {"numbers": np.arange(99), "cut": np.float64(0)}  # more than there are nodes
    assert "Expected 'numbers'" in refusal_in(service.answer(question(bytes(16), 92, "count", {}, numbers)[1]))[0]
    unknown = Blob("work", Key(bytes(16), len(NUMBERS), 93), json.dumps({"about": {}})).encode()
    assert "Expected one of" in refusal_in(service.answer(unknown))[0]
    service.close()
