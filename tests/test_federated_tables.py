"""The main job across sites: the answer of one table, from sums and numbers per node; differences refused."""

import json
import threading
from pathlib import Path

import numpy as np
import pandas
import pytest

from kinfolk import InputError, learn
from kinfolk.engine.wire import Blob, Key
from kinfolk.federation.carrier import refusal_in
from kinfolk.federation.sockets import SocketPost, serve
from kinfolk.federation.tables.learning import learn_together
from kinfolk.federation.tables.service import TableService
from kinfolk.federation.tables.site_table import LEAST_NAMED
from kinfolk.federation.tables.works import NUMBERS, WORKS, question
from kinfolk.tables import Settings

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


def together(tables, folder, edges=None, **settings):
    """Learn together with sites that are called directly; the run, the post and the services."""
    services = {name: TableService(name, table, Path(folder) / name) for name, table in tables.items()}
    post = Direct(services)
    try:
        run = learn_together(post, list(services), Settings.of(settings), edges=edges)
        assert run.judgement is not None  # its last question is asked while sites are there
    finally:
        for service in services.values():
            service.close()
    return run, post, services


def assert_same(run, pooled, digits=4):
    """The same values are chosen, and weights, errors and the judgement are those of one table."""
    for name, validated in run.validations.items():
        np.testing.assert_allclose(validated.value, pooled.entries[name].value, rtol=1e-9, err_msg=name)
    ours, theirs = run.leaderboard, pooled.leaderboard
    assert set(ours.index) <= set(theirs.index)
    for column in ("error", "validated"):
        np.testing.assert_allclose(
            ours[column].astype(float), theirs.loc[ours.index, column].astype(float), rtol=10.0**-digits
        )
    np.testing.assert_allclose(list(run.weights.values()), pooled.weights[list(run.weights)], atol=2e-3)
    assert run.judgement.text == pooled.judgement.text


# ---------------------------------------------------------------------- the same answer


def test_numbers_on_a_map(tmp_path):
    table = shops(6, 12)
    settings = {"node": "shop", "target": "sales", "members": MEMBERS, "folds": 2, "neighbours": 2}
    run, post, services = together(cut(table, 2), tmp_path, **settings)
    pooled = learn(table, progress=False, **settings)
    assert_same(run, pooled)
    assert set(run.leaderboard.index) == {"final", "pooled", "slopes", "tailored", "wide", "alone", "control"}
    assert post.exchanges == run.exchanges + 1  # with the one that the judgement asks
    own = cut(table, 2)["site 1"]
    ours, theirs = services["site 1"].predict(own, interval=0.8), pooled.predict(own, interval=0.8)
    np.testing.assert_allclose(ours["sales"], theirs["sales"], rtol=0, atol=2e-3)
    width = (theirs["high"] - theirs["low"]).to_numpy()
    np.testing.assert_allclose(ours["high"] - ours["low"], width, rtol=0.02)  # bins of residuals are that wide


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
    settings = {"node": "node", "target": "use", "time": "day", "members": "pooled,slopes,tailored", "lam": 2.0}
    edges = [("a", "b"), ("b", "c"), ("c", "d")]
    run, *_ = together(cut(table, 2, "node"), tmp_path, edges=edges, **settings)
    pooled = learn(table, edges=edges, progress=False, **settings)
    assert_same(run, pooled)
    assert run.judgement.unit == "times"
    assert run.trend_left_out == ("no trend" in [note.kind for note in pooled.remarks])


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
        left = {(each.work, each.content) for each in service.left}
        declared = {(work, array.content) for work, each in WORKS.items() for array in each.gives.values()}
        assert left <= declared | {(work, each.text) for work, each in WORKS.items() if each.text}
        sent = b"".join(answer for site, answer in post.answers if site == name)
        own = cut(table, 2)[name]
        for column in ("price", "size", "sales"):
            found = sum(np.float64(value).tobytes() in sent for value in own[column] if value)
            assert found == 0
    told = [note.values["member"] for note in run.facts if note.kind == "member left out"]
    assert told == []
    run, *_ = together(cut(table, 2), tmp_path / "all", node="shop", target="sales", folds=2, lam=1.0)
    told = {note.values["member"] for note in run.facts if note.kind == "member left out"}
    assert told == {"intercepts", "boosted"}
    assert "'boosted' takes no part: it needs the rows of all." in run.notes


def test_rare_categories_are_not_named(tmp_path):
    table = shops(4, 30)
    table["kind"] = np.where(np.arange(len(table)) < LEAST_NAMED - 1, "secret", table["kind"])
    run, post, _ = together(cut(table, 2), tmp_path, node="shop", target="sales", members="pooled", folds=2, lam=1.0)
    assert b"secret" not in b"".join(answer for _, answer in post.answers)
    assert "kind_infrequent_sklearn" in run.ready.encoder.get_feature_names_out()
    assert "'a'" not in str([note.values for note in run.facts])


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
        ({"hold": "nodes"}, "share of the rows of every node"),
        ({"members": "pooled,thief.py:Member"}, "members among pooled"),
        ({"task": "quantile"}, "as the task of a federation"),
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


def test_questions_out_of_turn_or_of_other_shapes_are_refused(tmp_path):
    service = TableService("a", shops(4, 12), tmp_path)
    for name, work in WORKS.items():
        arrays = {each: np.zeros([3] * len(array.axes), array.dtype) for each, array in work.takes.items()}
        if name != "describe":
            assert refusal_in(service.answer(question(bytes(16), 1, name, {}, arrays)[1])) is not None, name
    describe = question(bytes(16), 1, "describe", {"node": "shop", "target": "sales"}, {})[1]
    assert refusal_in(service.answer(describe)) is None
    numbers = {"numbers": np.arange(99), "cut": np.float64(0)}  # more than there are nodes
    assert "Expected 'numbers'" in refusal_in(service.answer(question(bytes(16), 2, "count", {}, numbers)[1]))[0]
    unknown = Blob("work", Key(bytes(16), len(NUMBERS), 3), json.dumps({"about": {}})).encode()
    assert "Expected one of" in refusal_in(service.answer(unknown))[0]
    service.close()
