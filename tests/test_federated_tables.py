"""The main job across sites: the answer of one table, from sums and numbers per node; differences refused."""

import json
import os
import threading
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas
import pytest

from kinfolk import InputError, learn
from kinfolk.engine import wire
from kinfolk.engine.protocol import Missing
from kinfolk.engine.wire import Blob, Key, WireError
from kinfolk.federation.carrier import refusal_in
from kinfolk.federation.files import made
from kinfolk.federation.keys import Peer, SiteKey
from kinfolk.federation.ledger import sent_in_all
from kinfolk.federation.service import peek
from kinfolk.federation.sockets import SocketPost, serve
from kinfolk.federation.tables.federated_job import learn_together
from kinfolk.federation.tables.kept import SiteBlend
from kinfolk.federation.tables.key_exchange import KeyExchange
from kinfolk.federation.tables.masks import Masks, summed, to_numbers, to_words
from kinfolk.federation.tables.packing import check_plans
from kinfolk.federation.tables.queries import NAMES, NUMBERS, QUERIES, digest_of, opened, questions
from kinfolk.federation.tables.query_limits import QueryLimits
from kinfolk.federation.tables.requests import RemoteParties
from kinfolk.federation.tables.service import TableService
from kinfolk.federation.tables.shared_design import shared_design
from kinfolk.federation.tables.site_page import outcome_of
from kinfolk.federation.tables.site_reading import LEAST_NAMED
from kinfolk.report.site import SHARES, write_site
from kinfolk.tables import Settings
from kinfolk.tables.party import Call, GraphFits, MixedFits, Party, Step
from kinfolk.tables.target import Target

pytest.importorskip("cryptography", reason="the package cryptography is not installed")
MEMBERS = "pooled,slopes,tailored,wide"
DESCRIBED = {"settings": {"node": "shop", "target": "sales"}, "sites": ["a"]}


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
        assert len(run.nodes) == run.design.node_count
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
    np.testing.assert_allclose(service.party.intervals.growth, pooled.intervals.growth, atol=5e-3)


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
    handlers, widths = services["site 0"].handlers, np.zeros((3, 2))
    given = {"level": np.ones(3), "unit": np.float64(1.0), "times": run.design.predicted_times}
    with pytest.raises(WireError, match="Expected scales without each of 3 windows of time, got 1"):
        handlers.answered("spread", {}, {**given, "scales": widths}, 99)
    with pytest.raises(WireError, match="a slope from −1 to 1, got others"):
        handlers.answered("spread", {}, {**given, "scales": np.zeros((3, 4)), "level": np.array([0.0, 1.0, 9.0])}, 99)
    assert run.design.trend_left_out == ("no trend" in [note.kind for note in pooled.remarks])


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
        assert_same_errors(run, pooled, digits=3)
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
        job, party = service.party.rows, service.party
        w = [party.scores("pooled", part, party.pooled_value).w[0, 0] for part in range(3)]
        for part, (learnt, held) in enumerate([*job.folding.folds, (job.train, None)]):
            rows = job.training if held is None else job.training.take(learnt)
            asked = job.test if held is None else job.training.take(held)
            codes = np.unique(rows.owner, return_inverse=True)[1]
            trees = HistGradientBoostingRegressor(
                max_leaf_nodes=int(leaves), max_iter=int(rounds), learning_rate=0.05, early_stopping=False,
                categorical_features=[0], random_state=0,
            )  # fmt: skip
            trees.fit(np.column_stack([codes, rows.X]), rows.y - rows.X @ w[part][:-1] - w[part][-1])
            found = asked.X @ w[part][:-1] + w[part][-1] + trees.predict(np.column_stack([asked.owner, asked.X]))
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


def test_weights_are_those_of_one_table_with_a_row_at_every_node(tmp_path):
    """λ of all sizes: candidates that are only nearly fitted would change the ensemble."""
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
        declared = {array.content for query in QUERIES.values() for array in query.response.values()}
        declared |= {query.text for query in QUERIES.values()}
        assert set(left["what"]) <= declared
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
    assert "kind_infrequent_sklearn" in run.design.encoder.get_feature_names_out()
    assert "'a'" not in str([note.values for note in run.facts])


@pytest.mark.parametrize("last", [2, 9])
def test_a_site_that_goes_away_ends_the_job(last, tmp_path):
    """While tables are read, and while members are fitted."""
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


@pytest.mark.parametrize("last", [0, 2, 9])
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
    """Introduce, exchange keys, describe: what was never summed with it cannot be told by a difference."""
    tables = cut(shops(6, 12).drop(columns=["x", "y"]), 3)
    settings = Settings("shop", "sales", lam=1.0, folds=2, members=("pooled",))
    services = {name: TableService(name, each, tmp_path / name) for name, each in tables.items()}
    with pytest.raises(InputError, match="Expected sums with the sites of before"):
        learn_together(Without(services, "site 1", 4), list(services), settings, secure=True, fewest=2)
    for service in services.values():
        service.close()
    services = {name: TableService(name, each, tmp_path / "anew" / name) for name, each in tables.items()}
    run = learn_together(Without(services, "site 1", 2), list(services), settings, secure=True, fewest=2)
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
    words, numbers = summed_arrays(post, "uint64"), summed_arrays(seen, "float64")
    assert set(numbers) <= set(words)  # with masks, models on graphs are found by conjugate gradients
    bits = np.unpackbits(np.concatenate(words["moments"]).view(np.uint8))
    assert len(bits) > 20_000
    assert abs(bits.mean() - 0.5) < 4 * 0.5 / np.sqrt(len(bits))
    known = np.concatenate(numbers["moments"]).astype(np.float64).tobytes()
    assert not any(known[k : k + 8] in np.concatenate(words["moments"]).tobytes() for k in range(0, len(known), 8))
    assert not summed_arrays(post, "float64")  # nothing that is summed is told as it is


def summed_arrays(post, dtype):
    """What all sites answered, as far as only its sums are needed, by query."""
    out = {}
    for _, answer in post.answers:
        if peek(answer)[0] != "result":
            continue
        for part in parts_of(answer):
            name = NAMES[peek(part)[1].query]
            sums = {each for each, array in QUERIES[name].response.items() if array.reader == "sum"}
            for each, values in arrays_in(part).items():
                if each in sums and values.dtype == dtype:
                    out.setdefault(name, []).append(np.ravel(values))
    return out


def arrays_in(content):
    """All arrays of a message, whatever they are."""
    reader = wire._Reader(content)
    _, _, length, count = reader.head()
    table = [reader.entry() for _ in range(count)]
    reader.text(length)
    return {entry.name: reader.array(entry) for entry in table}


def parts_of(content):
    """The messages within a message."""
    return [part.tobytes() for part in arrays_in(content).values()]


def question(run, number, name, about, arrays):
    """A message with one query, for one site."""
    return questions(Key(run, 0, number), [[(name, about, arrays)]])[0]


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
    known = {name: {"key": key.public.hex(), "salt": salts[name].hex()} for name, key in keys.items()}

    def exchanged(name):
        found = KeyExchange(name, keys[name], tmp_path / name, "rows", None, None)
        found._salt = salts[name]
        found.exchange_keys({"sites": known, "masked": True})
        return found

    def masked(name, *asked):
        """The masked answer to the last of some messages, always the same numbers; all sites are asked the same."""
        own, sums = exchanged(name), {"sums": np.ones(3)}
        found = []
        for k, each in enumerate(asked):
            queries = [("validate batch", {"name": each.decode()}, {"values": np.ones((1, 1))})]
            found.append(own.masked(k, sums, queries, [digest_of(queries, own=True)] * 2)["sums"])
        return found[-1]

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
    about = {"settings": {"node": "shop", "target": "sales"}, "sites": ["a"]}
    first = question(bytes(16), 5, "describe", about, {})
    assert service.answer(first) == service.answer(first)
    for number in (5, 4):
        why, _ = refusal_in(service.answer(question(bytes(16), number, "describe", {**about, "sites": ["a", "b"]}, {})))
        assert "after number 5" in why
    service.close()


@pytest.mark.parametrize("sites", [{}, {"a": {}}, {"b": {"key": "00" * 32, "salt": "00"}}, 3])
def test_keys_that_are_none_are_refused(sites, tmp_path):
    service = TableService("a", shops(4, 12), tmp_path)
    assert refusal_in(service.answer(question(bytes(16), 1, "introduce", {}, {}))) is None
    why, _ = refusal_in(service.answer(question(bytes(16), 2, "exchange keys", {"sites": sites, "masked": True}, {})))
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
    assert facts.coefficients.shape == (3, run.design.width)
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
    describe = question(bytes(16), 1, "describe", DESCRIBED, {})
    assert refusal_in(service.answer(describe)) is None
    found = refusal_in(service.answer(question(bytes(16), 2, "finish", OUTCOME, QUANTILES)))
    assert "Expected rows that are encoded first" in found[0]
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
    about = {"settings": settings, "sites": ["a"]}
    why, _ = refusal_in(service.answer(question(bytes(16), 1, "describe", about, {})))
    assert "can be learnt from" in why  # the sentence itself stays in the log of the site
    service.close()


def test_damaged_questions_get_an_answer(tmp_path):
    """Whatever bytes arrive, the site answers; it refuses all that is not what it was."""
    rng = np.random.default_rng(0)
    service = TableService("a", shops(4, 12), tmp_path)
    good = question(bytes(16), 1, "describe", DESCRIBED, {})
    asked = question(bytes(16), 2, "measure", {}, {"numbers": np.arange(4), "cut": np.float64(0)})
    both = questions(Key(bytes(16), 0, 2), [[("describe", DESCRIBED, {}), ("moments", {}, {})]])[0]
    for content in (good, asked, both):
        for _ in range(300):
            damaged = bytearray(content)
            for place in rng.integers(len(content), size=rng.integers(1, 4)):
                damaged[place] = rng.integers(256)
            assert isinstance(service.answer(bytes(damaged[: rng.integers(1, len(damaged) + 1)])), bytes)
    service.close()


def test_a_site_splits_its_rows_once_in_a_job(tmp_path):
    """A coordinator chooses the numbers of nodes, which decide the split: sums over many splits would tell rows."""
    service = TableService("a", shops(4, 12), tmp_path)
    describe = question(bytes(16), 1, "describe", DESCRIBED, {})
    about = {"numbers": ["price"], "categories": [], "dates": [], "coords": [], "written": []}
    arrays = {"numbers": np.arange(4), "cut": np.float64(0.0), "tested": np.zeros(4, dtype=bool)}
    count = [question(bytes(16), number, "measure", about, arrays) for number in (2, 3)]
    assert [refusal_in(service.answer(each)) for each in (describe, count[0], count[0])] == [None] * 3
    describe = question(bytes(16), 3, "describe", DESCRIBED, {})
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
    parties = RemoteParties(Direct(services), list(services), 60.0)
    settings = Settings("shop", "sales", lam=1.0, folds=2, members=("pooled", "slopes", "tailored"))
    yield parties, shared_design(parties, settings, None), services
    for service in services.values():
        service.close()


def rows_told(parties, design, services, steep, count=360):
    """How many rows are among the differences of gradients of steep models, moved over the rows in small steps."""
    along = np.random.default_rng(0).normal(size=design.width - 1)
    at = np.linspace(-3, 3, count)[:, None]
    w = steep * np.hstack([np.tile(along / np.linalg.norm(along), (count, 1)), -at])
    part = np.full(count, design.folds)
    found = parties.total(Call(Party.derivatives, w=w, part=part, score=np.zeros_like(part), rounding=0.0))
    steps = np.diff(found.gradient, axis=0)
    single = steps[np.abs(np.abs(steps[:, -1]) - 1) < 1e-2]
    guesses = single[:, :-1] / single[:, -1:]
    rows = np.vstack([service.party.rows.part_data[-1].X for service in services.values()])
    return sum(bool(len(guesses)) and bool((np.abs(guesses - row).max(axis=1) < 1e-2).any()) for row in rows), len(rows)


def test_steep_models_do_not_tell_single_rows(prepared, monkeypatch):
    found, _ = rows_told(*prepared, 1e6)
    assert found == 0
    monkeypatch.setattr("kinfolk.tables.local_party.too_steep", lambda target, loss, scores: False)
    found, there = rows_told(*prepared, 1e6)
    assert found > there / 3  # what is held off


def pooled(parties, design, scale=0.0):
    """Bring sites pooled models, from which fits may start."""
    models = np.full((design.folds + 1, 1, 1, design.width), scale)
    parties.ask(Call(Party.validate, name="pooled", values=[(1.0,)], models=models))


@pytest.mark.parametrize("start", [-1, 0])
def test_steps_of_mixed_models_may_not_be_steep_either(start, prepared):
    """Nor may they start from a steep model."""
    parties, design, _ = prepared
    pooled(parties, design, 1e6)
    begun = parties.total(Call(Party.eliminate, batch="slopes", fits=MixedFits(np.ones((1, 2)), start, 0.0)))
    if start < 0:
        every = np.ones(design.folds + 1, dtype=bool)
        move = np.full((design.folds + 1, design.width), 1e6)
        begun = parties.total(
            Call(Party.eliminate, batch="slopes", step=Step(move, every.astype(float), ~every, every, 0.0))
        )
    assert (begun.objective > 1e5).all()
    assert not begun.matrix.any()
    assert not begun.vector.any()


def graph_fits(design, site, boundary, lam=1.0):
    """All nodes of a site without edges between them, some of which have neighbours elsewhere."""
    parts, nodes, none = design.folds + 1, len(design.numbers[site]), np.zeros(0, dtype=np.int64)
    part = np.arange(parts)
    outward = np.zeros((parts, nodes))
    outward[:, boundary] = 1.0
    return GraphFits(
        np.full(parts, lam), part, 0 * part, 0 * part, 1.0, -1, none.reshape(0, 2), np.zeros((parts, 0)), outward,
        np.array(boundary), np.ones((parts, nodes), dtype=bool), none.reshape(0, 2), np.zeros((parts, 0)), none, 0.0,
    )  # fmt: skip


def test_how_nodes_with_few_rows_respond_to_a_pull_is_not_told(prepared, monkeypatch):
    """A weak pull would tell the curvature of a node's loss, and so its rows."""
    parties, design, _ = prepared
    own = [{"fits": graph_fits(design, site, [0, 2], 1e-9)} for site in range(2)]
    with pytest.raises(InputError, match=r"Expected boundary nodes with \d+ rows in every part"):
        parties.ask(Call(Party.eliminate, batch="tailored").each(own))
    parties.number -= 1  # it was refused
    monkeypatch.setattr("kinfolk.federation.tables.handlers.may_respond", lambda rows, width: True)
    answer = parties.ask(Call(Party.eliminate, batch="tailored").each(own))[0]
    assert np.abs(answer.each[0].matrix).max() > 0  # what is held off


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"boundary": np.array([0, 9])}, "Expected edges between own nodes"),
        ({"boundary": np.array([0, 0])}, "Expected edges between own nodes"),
        ({"part": np.array([0, 1, 7])}, "Expected numbers of a part from 0 to 2"),
        ({"score": np.array([0, 0, -1])}, "Expected numbers of a score from 0 to 0"),
        ({"lam": np.array([1.0, 1.0, -1.0])}, "Expected edges between own nodes"),
        ({"start": 4}, "Expected fits that start from zero or from a pooled model"),
        ({"ends": np.array([[0, 99]]), "weights": np.ones((3, 1))}, "Expected edges between own nodes"),
    ],
)
def test_numbers_that_would_index_what_is_not_there_are_refused(change, message, prepared):
    parties, design, _ = prepared
    own = [{"fits": graph_fits(design, site, [0, 1])._replace(**change)} for site in range(2)]
    with pytest.raises(InputError, match=message):
        parties.ask(Call(Party.eliminate, batch="tailored").each(own))


def test_values_and_members_that_were_not_tried_are_refused(prepared):
    parties, design, _ = prepared
    pooled(parties, design)
    call = {"factors": np.ones(design.folds), "typical": 0.0, "weights": np.ones(1)}
    for name, value in (("pooled", 1), ("pooled", -1), ("slopes", 0)):
        with pytest.raises(InputError, match="with values that were tried, got others"):
            parties.ask(Call(Party.errors, names=[name], best=np.array([value]), **call))
        parties.number -= 1


def test_more_queries_or_models_than_the_settings_need_are_refused(prepared, monkeypatch):
    parties, design, services = prepared
    with pytest.raises(InputError, match=r"at most 360 models or values in the query 'derivatives'.* got 361"):
        rows_told(parties, design, services, 1.0, count=361)
    parties.number -= 1  # it was refused
    pooled(parties, design)
    with pytest.raises(InputError, match="Expected the query 'validate pooled' once in a job, got it again"):
        pooled(parties, design)
    parties.number -= 1
    monkeypatch.setattr("kinfolk.federation.tables.query_limits.STEPS", 1)
    for _ in range(3):
        rows_told(parties, design, services, 1.0)
    with pytest.raises(InputError, match="Expected the query 'derivatives' at most 3 times in a job"):
        rows_told(parties, design, services, 1.0)
    limits = QueryLimits.of(design.settings, design.target)
    request = QUERIES["begin graph"].request.items()
    arrays = {name: np.ones(limits.models["begin graph"] + 1) for name, each in request if each.axes == ("fits",)}
    with pytest.raises(WireError, match="Expected at most 3 models or values in the query 'begin graph'"):
        limits.check("begin graph", arrays, 0)


def test_derivatives_of_squared_errors_are_not_told():
    """Sums of products have all of them, once."""
    limits = QueryLimits.of(Settings("shop", "sales"), Target())
    with pytest.raises(WireError, match="Expected the query 'derivatives' at most 0 times in a job"):
        limits.check("derivatives", {"w": np.zeros((6, 3))}, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"folds": 900}, "from 1 to 2 folds, as the settings need"), ({"kind": "quantile"}, "for the task 'regression'")],
)
def test_rows_are_cut_into_as_many_parts_as_the_settings_say_and_the_target_is_theirs(change, message, tmp_path):
    """The sum over all rows without that over all but one is a row; and of quantiles, others would be told."""

    class Deviating(RemoteParties):
        def ask(self, *calls):
            for call in calls:
                if call.name == "encode":
                    call.arguments = {**call.arguments, "about": {**call.arguments["about"], **change}}
            return super().ask(*calls)

    services = {name: TableService(name, each, tmp_path / name) for name, each in cut(shops(4, 12), 2).items()}
    parties = Deviating(Direct(services), list(services), 60.0)
    with pytest.raises(InputError, match=message):
        shared_design(parties, Settings("shop", "sales", folds=2, task="regression"), None)
    for service in services.values():
        service.close()


def test_a_fit_may_not_leave_out_nodes_that_have_rows(prepared):
    """With one node in it, sums over nodes would be its own, masked or not."""
    parties, design, _ = prepared
    fits = [graph_fits(design, site, [])._replace(boundary=np.empty(0, dtype=np.int64)) for site in range(2)]
    fits[0].reached[:, 1:] = False
    with pytest.raises(InputError, match="Expected all nodes that have rows in a fit, got fewer"):
        parties.ask(Call(Party.eliminate, batch="tailored").each([{"fits": each} for each in fits]))


def test_masks_cancel_only_if_all_sites_are_asked_the_same(tmp_path):
    """Models that other sites tell nothing of would leave the sums of one site alone."""
    tables = cut(shops(6, 30, classes=True), 2)
    services = {name: TableService(name, each, tmp_path / name) for name, each in tables.items()}
    parties = RemoteParties(Direct(services), list(services), 60.0, secure=True)
    design = shared_design(parties, Settings("shop", "sales", lam=1.0, folds=2, members=("pooled",)), None)
    zero = np.zeros((1, design.width))
    own = [{"w": zero}, {"w": zero + 1e5}]
    rest = {"part": np.array([2]), "score": np.array([0]), "rounding": 0.0}
    found = parties.ask(Call(Party.derivatives, **rest).each(own))[0].total
    rows = services["site 0"].party.rows.part_data[-1]
    assert not np.isclose(found.loss[0], len(rows.y) * np.log(2), rtol=0.1)
    for service in services.values():
        service.close()


def test_responses_of_boundary_nodes_are_not_told_where_sums_are_masked(tmp_path):
    """They would be read site by site: no owner has agreed to that."""
    services = {name: TableService(name, each, tmp_path / name) for name, each in cut(shops(6, 60), 2).items()}
    parties = RemoteParties(Direct(services), list(services), 60.0, secure=True)
    design = shared_design(parties, Settings("shop", "sales", lam=1.0, folds=2, members=("pooled", "tailored")), None)
    own = [{"fits": graph_fits(design, site, [0])} for site in range(2)]
    with pytest.raises(InputError, match="and no masked sums, for their response to a pull"):
        parties.ask(Call(Party.eliminate, batch="tailored").each(own))
    for service in services.values():
        service.close()


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


@pytest.mark.parametrize("values", [[[1e9, 10.0, 1.0, 0.0]], [[4.0, 1e6, 1.0, 0.0]], [[4.0, 2.0, 1.0, 0.0]] * 300])
def test_trees_that_would_keep_a_site_busy_are_refused(values):
    with pytest.raises(WireError, match="plans for trees of usual sizes"):
        check_plans(np.array(values))


def test_queries_out_of_turn_or_of_other_shapes_are_refused(tmp_path):
    service = TableService("a", shops(4, 12), tmp_path)
    for name, query in QUERIES.items():
        arrays = {each: np.zeros([3] * len(array.axes), array.dtype) for each, array in query.request.items()}
        if name not in ("describe", "introduce"):
            assert refusal_in(service.answer(question(bytes(16), 1 + NUMBERS[name], name, {}, arrays))), name
    describe = question(bytes(16), 91, "describe", DESCRIBED, {})
    assert refusal_in(service.answer(describe)) is None
    numbers = {"numbers": np.arange(99), "cut": np.float64(0)}  # more than there are nodes
    assert "Expected 'numbers'" in refusal_in(service.answer(question(bytes(16), 92, "measure", {}, numbers)))[0]
    inner = Blob("work", Key(bytes(16), len(NUMBERS), 93), json.dumps({"about": {}})).encode()
    text = json.dumps({"digests": ["00" * 16]})
    unknown = Blob("work", Key(bytes(16), 0, 93), text, {"0": np.frombuffer(inner, dtype=np.uint8)}).encode()
    assert "Expected one of" in refusal_in(service.answer(unknown))[0]
    assert opened(describe).queries[0][0] == "describe"
    service.close()
