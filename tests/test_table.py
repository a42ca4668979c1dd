"""Learning from a table: splits, encoding, choices inside the training rows, run directories."""

import json

import numpy as np
import pandas
import pytest
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

import kinfolk
from folders import sealed
from kinfolk.checks import InputError
from kinfolk.engine.saved_run import load_run
from kinfolk.network.folds import places_of_rows, row_folds
from kinfolk.tables import Settings, learn, load, read_table
from kinfolk.tables.columns import find_columns
from kinfolk.tables.encoding import Encoder, encode, plain
from kinfolk.tables.groups import groups
from kinfolk.tables.prepared import prepare
from kinfolk.tables.reading import fingerprint
from kinfolk.tables.rows import Rows
from kinfolk.tables.target import Target
from kinfolk.tables.workplace import unfinished

pytestmark = pytest.mark.usefixtures("few_trees")


def shops(rows=30, noise=0.3, seed=0, count=8):
    """Shops of two kinds, with a price, a weekday and a district."""
    rng = np.random.default_rng(seed)
    node = np.repeat(np.arange(count), rows)
    price, kind = rng.normal(size=len(node)), node < count // 2
    district = rng.choice(["north", "south"], size=len(node))
    sales = np.where(kind, 1.0, -1.0) * price + 2.0 * (district == "north") + noise * rng.normal(size=len(node)) + 10
    day = pandas.Timestamp("2026-01-01") + pandas.to_timedelta(np.tile(np.arange(rows), count), unit="D")
    names = [f"shop {k}" for k in node]
    return pandas.DataFrame({"shop": names, "day": day, "price": price, "district": district, "sales": sales})


@pytest.fixture(scope="module")
def run():
    return learn(shops(), node="shop", target="sales", features=["price", "district"], progress=False)


# ---------------------------------------------------------------------- reading


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.csv.gz", "t.parquet", "t.jsonl", "t.jsonl.gz", "t.csv.xz"])
def test_every_kind_of_file_is_the_same_table(tmp_path, name):
    table = shops(3).drop(columns="day")
    path = tmp_path / name
    if "csv" in name or "tsv" in name:
        table.to_csv(path, index=False, sep="\t" if "tsv" in name else ",")
    elif "json" in name:
        table.to_json(path, orient="records", lines=True, double_precision=15)
    else:
        table.to_parquet(path)
    found = read_table(path)
    assert list(found.columns) == list(table.columns)
    np.testing.assert_allclose(found["sales"], table["sales"], rtol=1e-12)
    assert found["shop"].tolist() == table["shop"].tolist()


def test_codes_with_leading_zeros_stay_as_they_are(tmp_path):
    (tmp_path / "t.csv").write_text("county,y\n01001,1\n36059,2\n")
    assert read_table(tmp_path / "t.csv")["county"].tolist() == ["01001", "36059"]


def test_fingerprint_sees_values_order_and_names():
    table = pandas.DataFrame({"a": [1.0, np.nan], "b": ["x", None]})
    others = [table.iloc[::-1], table.rename(columns={"a": "c"}), table.fillna({"b": "y"}), table.fillna({"a": 0.0})]
    assert len({fingerprint(each) for each in [table, *others]}) == 5
    assert fingerprint(table.copy()) == fingerprint(table)


# ---------------------------------------------------------------------- columns and encoding


def test_encoding_is_learnt_from_the_training_rows_alone():
    table = shops(10)
    table.loc[::7, "price"] = np.nan
    train = np.arange(len(table)) % 2 == 0
    columns = find_columns(table, Settings("shop", "sales"))
    spoilt = table.copy()
    spoilt.loc[~train, "price"] = 1e6
    spoilt.loc[~train, "district"] = "moon"
    numbers = [encode(Encoder.fit(plain(t[train], columns), columns), t, columns) for t in (table, spoilt)]
    np.testing.assert_array_equal(numbers[0][train], numbers[1][train])
    known = table["price"][train]
    filled = known.fillna(known.mean())
    np.testing.assert_allclose(numbers[0][train, 0], (filled - filled.mean()) / filled.std(ddof=0), atol=1e-15)


def test_a_circle_of_the_calendar_needs_a_whole_round():
    table = shops(10)
    columns = find_columns(table, Settings("shop", "sales"))
    names = Encoder.fit(plain(table, columns), columns).get_feature_names_out()
    assert {"day weekday sin", "day weekday cos", "day days"} <= set(names)
    assert not any("season" in name or "hour" in name for name in names)


def test_columns_that_cannot_help_are_left_out_with_a_note():
    table = shops(10).assign(same=1, comment=lambda t: [f"text {k}" for k in range(len(t))])
    columns = find_columns(table, Settings("shop", "sales"))
    assert "same" not in columns.features
    assert "comment" not in columns.features
    assert len(columns.notes) == 2


@pytest.mark.parametrize(
    ("values", "task", "classes"),
    [
        (["yes", "no"], "auto", ("no", "yes")),
        ([True, False], "auto", (False, True)),
        ([0, 1], "auto", (0, 1)),
        ([1, 2, 3], "auto", ()),
        ([1, 2, 3], "classification", (1, 2, 3)),
        ([1, 2], "auto", (1, 2)),
        ([1.0, 2.0, 3.0], "regression", ()),
        ([1.5, 2.0, 3.0], "auto", ()),
        ([1.5, 2.0, 3.0], "classification", (1.5, 2, 3)),
        (list(range(40)), "auto", ()),
    ],
)
def test_the_task_is_recognised_and_can_be_forced(values, task, classes):
    column = pandas.Series(values, name="y")
    found = Target.of(column, np.ones(len(column), dtype=bool), Settings("n", "y", task=task))
    assert found.classes == classes
    if classes:
        assert (found.encode(column) == [classes.index(value) for value in values]).all()


# ---------------------------------------------------------------------- splits


def test_a_share_of_every_node_is_held_out():
    prepared = prepare(shops(), Settings("shop", "sales", test=0.2))
    assert (np.bincount(prepared.rows.test.owner) == 6).all()
    single = shops(1, count=200)
    held = prepare(single.assign(day=range(200)), Settings("shop", "sales", test=0.25)).rows.held_out
    assert 30 <= held.sum() <= 70


def test_the_last_rows_in_time_are_held_out_and_folds_look_back():
    table = shops()
    prepared = prepare(table, Settings("shop", "sales", time="day"))
    assert table["day"][~prepared.rows.held_out].max() < table["day"][prepared.rows.held_out].min()
    assert prepared.rows.folding.kind == "times"
    times = prepared.rows.folding.times
    assert len(prepared.rows.folding.folds) == 3
    for before, after in prepared.rows.folding.folds:
        assert times[before].max() < times[after].min()


def test_folds_are_disjoint_and_complete():
    prepared = prepare(shops(), Settings("shop", "sales", folds=4))
    parts = prepared.rows.folding.folds
    assert prepared.rows.folding.kind == "rows"
    assert len(parts) == 4
    assert sum(held.astype(int) for _, held in parts).tolist() == [1] * len(prepared.rows.training.y)
    assert all((seen == ~held).all() for seen, held in parts)


def test_a_site_knows_the_folds_of_its_own_rows():
    """Folds depend on the seed and the node, not on who else is there."""
    owner = np.random.default_rng(0).integers(0, 30, 400)
    everyone = places_of_rows(owner, seed=4)
    for node in range(30):
        mine = np.flatnonzero(owner == node)
        np.testing.assert_array_equal(everyone[mine], places_of_rows(owner[mine], seed=4))
    assert not np.array_equal(everyone, places_of_rows(owner, seed=5))
    assert not np.array_equal(everyone, places_of_rows(owner, seed=4, stream=1))


def test_rows_are_spread_evenly():
    """Every node has about the same share in each fold, and a single row is in each with the same probability."""
    fold = row_folds(np.repeat(np.arange(40), 17), 4, seed=0).reshape(40, 17)
    counts = np.array([np.bincount(rows, minlength=4) for rows in fold])
    assert counts.min() >= 4
    assert counts.max() <= 5
    single = np.bincount(row_folds(np.arange(8_000), 4, seed=0), minlength=4)
    assert (abs(single - 2_000) < 4 * np.sqrt(8_000 * 0.25 * 0.75)).all()


def test_marked_rows_are_the_test():
    table = shops().assign(part=lambda t: np.where(np.arange(len(t)) % 5 == 0, "test", "train"))
    prepared = prepare(table, Settings("shop", "sales", test="part"))
    assert (prepared.rows.held_out == (table["part"] == "test")).all()
    assert "part" not in prepared.rows.columns.features


# ---------------------------------------------------------------------- learning


def test_kin_are_found_and_learning_together_helps():
    table = shops(12, 0.7, count=40)
    few = learn(table, node="shop", target="sales", features=["price", "district"], progress=False)
    assert few.judgement.verdict == "helps"
    assert few.judgement.low > 0
    board = few.leaderboard["error"]
    assert board["tailored"] < board[["alone", "pooled"]].min()
    alone, pooled = few.leaderboard.loc["alone"], few.leaderboard.loc["pooled"]
    assert alone["bytes"] == 0
    assert pooled["bytes"] == 8 * few.train_rows.sum() * (len(few.features) + 1)


def test_groups_of_kin(run):
    assert run.clusters.tolist() == [0] * 4 + [1] * 4 or run.clusters.tolist() == [1] * 4 + [0] * 4


def test_where_nodes_have_nothing_in_common_the_blend_is_as_good_as_alone():
    rng = np.random.default_rng(1)
    slope = np.repeat(rng.normal(size=30) * 5, 60)
    x = rng.normal(size=1800)
    table = pandas.DataFrame({"n": np.repeat(np.arange(30), 60), "x": x, "y": slope * x + 0.01 * rng.normal(size=1800)})
    edges = pandas.DataFrame({"a": np.arange(29), "b": np.arange(1, 30)})
    found = learn(table, node="n", target="y", edges=edges, lam=1e4, progress=False)
    assert found.judgement.verdict == "no clear difference"
    assert found.leaderboard["error"]["final"] <= 1.001 * found.leaderboard["error"]["alone"]
    assert found.weights["tailored"] == 0
    assert found.weights[["slopes", "alone", "boosted"]].sum() > 0.99  # trees stand on slopes here


def test_baselines_are_those_of_scikit_learn(run):
    table = shops()
    prepared = prepare(table, run.settings)
    training, truth = prepared.rows.training, prepared.rows.test.y
    ridge = {name: run.entries[name].value[0] for name in ("pooled", "alone")}
    # ours: Σ (z − y)² + (ridge / 2)‖w‖²
    pooled = Ridge(ridge["pooled"] / 2).fit(training.X, training.y)
    np.testing.assert_allclose(
        run.predict_rows("pooled", prepared.rows.rows), pooled.predict(prepared.rows.rows.X), atol=1e-8
    )
    errors = []
    for node in range(8):
        mine, tested = training.owner == node, prepared.rows.test.owner == node
        alone = Ridge(ridge["alone"] / 2).fit(training.X[mine], training.y[mine])
        said = alone.predict(prepared.rows.test.X[tested])
        errors.append(np.mean((prepared.rows.target.spread * (said - truth[tested])) ** 2))
    assert run.leaderboard["error"]["alone"] == pytest.approx(np.sqrt(np.mean(errors)), rel=1e-6)
    assert run.nodes["error_alone"].to_numpy() == pytest.approx(np.sqrt(errors), rel=1e-6)


def test_a_large_lam_gives_the_pooled_model():
    """One ridge for all, whose strength is the sum of those of the nodes."""
    table = shops()
    options = {"node": "shop", "target": "sales", "features": ["price", "district"], "graph": "complete"}
    far = learn(table, lam=1e6, method="gtvmin-smooth", progress=False, **options)
    prepared = prepare(table, far.settings)
    pooled = Ridge(8 * far.algorithm.loss.ridge / 2).fit(prepared.rows.training.X, prepared.rows.training.y)
    np.testing.assert_allclose(
        far.predict_rows("tailored", prepared.rows.rows), pooled.predict(prepared.rows.rows.X), atol=1e-4
    )
    assert 8 * far.algorithm.loss.ridge <= far.entries["pooled"].value[0]


def test_test_targets_are_not_looked_at():
    table = shops()
    settings = {"node": "shop", "target": "sales", "features": ["price", "district"], "progress": False}
    held_out = prepare(table, Settings("shop", "sales", features=("price", "district"))).rows.held_out
    spoilt = table.copy()
    spoilt.loc[held_out, "sales"] = 1e3 * np.random.default_rng(3).normal(size=held_out.sum())
    one, other = learn(table, **settings), learn(spoilt, **settings)
    np.testing.assert_array_equal(one.models.w, other.models.w)
    assert {name: each.value for name, each in one.entries.items()} == {
        name: each.value for name, each in other.entries.items()
    }
    assert one.weights.to_dict() == other.weights.to_dict()
    np.testing.assert_array_equal(one.predict(table), other.predict(table))
    assert (one.leaderboard["error"] < other.leaderboard["error"]).all()


def test_the_same_seed_gives_the_same_run(run):
    again = learn(shops(), node="shop", target="sales", features=["price", "district"], progress=False)
    pandas.testing.assert_frame_equal(
        run.leaderboard.drop(columns="seconds"), again.leaderboard.drop(columns="seconds")
    )


@pytest.mark.parametrize("model", ["tree", DecisionTreeRegressor(max_depth=3), "linear", "forest", "boosting"])
def test_other_models(model):
    found = learn(shops(40, count=3), node="shop", target="sales", model=model, lam=0.5, folds=2, progress=False)
    assert set(found.leaderboard.index) >= {"final", "tailored", "alone", "pooled"}
    assert found.leaderboard["error"]["tailored"] < np.std(shops(40, count=3)["sales"])
    assert found.account.algorithm == ("GTVMin" if model == "linear" else "FedRelax")
    assert bool(found.account.public) == (model != "linear")


def classes(table, count=2):
    cut = pandas.qcut(table["sales"], count, labels=False)
    return table.assign(sales=np.array(["low", "middle", "high"])[cut.to_numpy()])


@pytest.mark.parametrize(("count", "model"), [(2, "ridge"), (3, "ridge"), (3, "tree")])
def test_classes(count, model):
    table = classes(shops(14, count=4), count)
    found = learn(table, node="shop", target="sales", model=model, features=["price"], folds=2, progress=False)
    chance = found.predict_proba(table)
    assert list(chance.columns) == sorted(table["sales"].unique())
    np.testing.assert_allclose(chance.sum(axis=1), 1.0)
    assert (found.predict(table) == chance.idxmax(axis=1)).all()
    truth = found.predictions["target"].to_numpy()
    chances = found.predictions[[f"probability of {label}" for label in chance.columns]].to_numpy()
    hit = truth[:, None] == np.array(chance.columns)
    brier = ((chances - hit) ** 2).sum(axis=1)
    by_node = pandas.Series(brier).groupby(found.predictions["node"]).mean()
    assert found.leaderboard["error"]["final"] == pytest.approx(by_node.mean())
    wrong = 100 * np.mean(found.predictions["final"].to_numpy() != truth)
    assert found.leaderboard["wrong"]["final"] == pytest.approx(wrong)


def test_a_node_that_has_seen_one_class_only():
    table = classes(shops(14, count=4))
    table.loc[table["shop"] == "shop 0", "sales"] = "low"
    found = learn(table, node="shop", target="sales", model="tree", features=["price"], progress=False)
    assert np.isfinite(found.leaderboard["error"]).all()


# ---------------------------------------------------------------------- outsiders


def test_outsiders_are_served_and_do_no_harm():
    """Two outsiders among kin, and a λ that makes all alike: the blend is as good as the best of its members."""
    table = shops(40, 0.5, count=12)
    stranger = table["shop"].isin(["shop 0", "shop 11"])
    table.loc[stranger, "sales"] = 10 + 8 * table.loc[stranger, "price"]
    edges = [(f"shop {i}", f"shop {j}") for i in range(12) for j in range(i + 1, 12)]
    frame = pandas.DataFrame(edges, columns=["a", "b"])
    found = learn(table, node="shop", target="sales", features=["price"], edges=frame, lam=300.0, progress=False)
    board = found.leaderboard["error"]
    assert board["final"] <= board.drop("final").min() * 1.05
    error = found.nodes[["error_final", "error_tailored"]].T
    assert (error[["shop 0", "shop 11"]].loc["error_final"] < error[["shop 0", "shop 11"]].loc["error_tailored"]).all()


# ---------------------------------------------------------------------- groups of kin


def test_groups_explain_most_of_the_variance():
    rng = np.random.default_rng(0)
    kind = np.repeat(np.arange(3), 20)
    signature = np.array([[0.0, 0.0], [5.0, 0.0], [0.0, 5.0]])[kind] + 0.1 * rng.normal(size=(60, 2))
    graph, _ = kinfolk.graphs.stochastic_block([20, 20, 20], 0.5, 0.05)
    found = groups(graph, signature, remaining=5.0)
    assert len(np.unique(found)) == 3
    assert all(len(np.unique(found[kind == k])) == 1 for k in range(3))


# ---------------------------------------------------------------------- one result, built from runs


def test_a_table_run_keeps_its_runs(run):
    assert {role: type(each) for role, each in run.runs.items()} == dict.fromkeys(run.runs, kinfolk.Run)
    assert set(run.runs) == {"tailored", "alone"}  # the pooled model comes from sums; so few nodes have no other graph
    assert run.runs["tailored"].models is run.models
    assert run.certificate is run.runs["tailored"].certificate
    assert run.certificate.residual < 1e-6
    assert str(run.certificate) == run.account.certificate
    assert run.account.rounds == run.runs["tailored"].rounds


def test_found_clusters_of_a_table_run():
    found = learn(shops(40, 0.1), node="shop", target="sales", features=["price", "district"], graph="complete",
                  method="gtvmin", progress=False)  # fmt: skip
    np.testing.assert_array_equal(kinfolk.found_clusters(found), kinfolk.found_clusters(found.runs["tailored"]))
    assert found.algorithm.lam == found.entries["tailored"].value[0]
    fused = learn(shops(40, 0.1), node="shop", target="sales", features=["price"], graph="complete", lam=1e6,
                  method="gtvmin", progress=False)  # fmt: skip
    assert kinfolk.found_clusters(fused).tolist() == [0] * 8


def test_variation_bound_of_a_table_run():
    table = shops(40, 0.3)
    named = {"node": "shop", "target": "sales", "features": ["price"], "graph": "complete", "progress": False}
    found = learn(table, method="fedrelax", lam=1.0, **named)
    ours, direct = kinfolk.variation_bound(found), kinfolk.variation_bound(found.runs["tailored"])
    assert (ours.observed, ours.bound) == (direct.observed, direct.bound)
    w = np.stack([fitted.w for fitted in found.models.fitted])
    assert ours.observed == pytest.approx(((w - w.mean(axis=0)) ** 2).sum())


def test_a_loaded_run_has_no_rows(run, tmp_path):
    again = load(run.save(tmp_path / "run"))
    assert again.account == run.account
    np.testing.assert_array_equal(again.models.w, run.models.w)
    pandas.testing.assert_frame_equal(again.leaderboard, run.leaderboard, check_dtype=False)
    for ask in (lambda: again.certificate, lambda: kinfolk.found_clusters(again), lambda: again.network):
        with pytest.raises(InputError, match="a folder keeps no rows"):
            ask()


def test_one_run_is_saved_alone(run, tmp_path):
    folder = run.runs["tailored"].save(tmp_path / "alone")
    again = load_run(folder, 8, len(run.features))
    assert again.account == run.account
    np.testing.assert_array_equal(again.models.w, run.models.w)
    pandas.testing.assert_frame_equal(again.history, run.history)
    with pytest.raises(InputError, match="Expected a new folder"):
        run.runs["tailored"].save(folder)


def test_a_run_that_cannot_be_saved_leaves_nothing(tmp_path):
    network = kinfolk.testing.difficult_network()
    run = kinfolk.fit(network, kinfolk.Local(kinfolk.Squared()), rounds=0)
    run._models = object()
    with pytest.raises(InputError, match="Expected linear models or estimators to save, got object"):
        run.save(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------- predicting and keeping


def test_a_saved_run_says_the_same(run, tmp_path):
    table = shops(5, seed=9)
    folder = run.save(tmp_path / "run")
    again = load(folder)
    np.testing.assert_array_equal(run.predict(table), again.predict(table))
    pandas.testing.assert_frame_equal(run.nodes, again.nodes, check_dtype=False)
    assert again.judgement == run.judgement
    assert again.settings == run.settings
    np.testing.assert_allclose(again.path.signature, run.path.signature, rtol=1e-5)
    assert again.graph.edge_count == run.graph.edge_count
    assert not unfinished(folder).exists()
    names = {
        "run.toml",
        "metrics.json",
        "predictions.parquet",
        "models",
        "graph.graphml",
        "report.html",
    }
    assert names <= {path.name for path in folder.iterdir()}
    assert not list(folder.rglob("*.pkl"))


@pytest.mark.parametrize("kind", ["regression", "classification"])
def test_saved_trees_say_the_same(tmp_path, kind):
    table = shops(14, count=4)
    table = table if kind == "regression" else classes(table)
    model = DecisionTreeRegressor(max_depth=3) if kind == "regression" else DecisionTreeClassifier(max_depth=3)
    found = learn(table, node="shop", target="sales", model=model, features=["price", "day"], progress=False)
    assert (found.predict(table) == load(found.save(tmp_path / "run")).predict(table)).all()


def test_held_out_predictions_are_those_of_predict(run):
    table = shops()
    said = run.predict(table)
    rows = run.predictions["row"]
    np.testing.assert_allclose(run.predictions["final"], said.loc[rows])
    np.testing.assert_allclose(run.predictions["target"], table["sales"].loc[rows])


def test_a_run_is_not_overwritten(run, tmp_path):
    folder = run.save(tmp_path / "run")
    with pytest.raises(InputError, match="already holds a run"):
        run.save(folder)
    run.save(folder, force=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("dear")
    with pytest.raises(InputError, match="holds something else"):
        run.save(tmp_path / "other", force=True)
    assert (tmp_path / "other" / "letter.txt").read_text() == "dear"


def test_models_of_unknown_types_are_not_loaded(tmp_path):
    class Own(LinearRegression):
        pass

    Own.__module__, Own.__qualname__ = "somebody", "Own"
    import sys
    import types

    sys.modules["somebody"] = types.ModuleType("somebody")
    sys.modules["somebody"].Own = Own
    try:
        found = learn(shops(12), node="shop", target="sales", model=Own(), features=["price"], progress=False)
        folder = found.save(tmp_path / "run")
        with pytest.raises(InputError, match=r"known types.*somebody\.Own.*--trust"):
            load(folder)
        assert (load(folder, trusted=["somebody.Own"]).predict(shops(2)) == found.predict(shops(2))).all()
    finally:
        del sys.modules["somebody"]


def test_a_damaged_run_is_refused(run, tmp_path):
    folder = run.save(tmp_path / "run")
    (folder / "nodes.parquet").unlink()
    with pytest.raises(InputError, match=r"'nodes\.parquet' is missing"):
        load(folder)
    with pytest.raises(InputError, match=r"nodes\.parquet is missing or damaged"):
        load(sealed(folder))
    (folder / "metrics.json").write_text("{")
    with pytest.raises(InputError, match=r"'metrics\.json' is not as it was written"):
        load(folder)
    with pytest.raises(InputError, match=r"metrics\.json is missing or damaged"):
        load(sealed(folder))
    with pytest.raises(InputError, match="no such folder"):
        load(tmp_path / "nothing")


def test_unknown_nodes():
    rng = np.random.default_rng(0)
    table = shops().merge(
        pandas.DataFrame({"shop": [f"shop {k}" for k in range(8)], "lat": np.arange(8.0), "lon": 0.0})
    )
    found = learn(table, node="shop", target="sales", features=["price", "district"], neighbours=2, progress=False)
    new = table.head(3).assign(shop="new", lat=2.4, lon=0.1, price=rng.normal(size=3))
    near = [found.predict(new.assign(shop=name), role="tailored").to_numpy() for name in ("shop 2", "shop 3")]
    np.testing.assert_allclose(found.predict(new, role="tailored"), np.mean(near, axis=0))
    bare = new.drop(columns=["lat", "lon"])
    with pytest.raises(InputError, match=r"got 'new'.*unknown"):
        found.predict(bare)
    edges = pandas.DataFrame({"a": ["new"], "b": ["shop 7"]})
    kin = found.predict(bare.assign(shop="shop 7"), role="tailored")
    np.testing.assert_allclose(found.predict(bare, edges=edges, role="tailored"), kin)
    pooled = found.predict(bare, unknown="pooled")
    prepared = prepare(table, found.settings)
    anywhere = Rows(encode(found.encoder, bare, found.columns), np.zeros(3), np.zeros(3, int), None)
    np.testing.assert_allclose(pooled, prepared.rows.target.decode(found.predict_rows("pooled", anywhere)))


def test_values_have_one_text_whatever_their_type():
    """A missing cell makes whole numbers floats: categories and nodes stay what they were."""
    table = shops(20).assign(code=lambda t: (np.arange(len(t)) % 3) + 1, shop=lambda t: t["shop"].str[-1].astype(int))
    found = learn(
        table, node="shop", target="sales", features="code,price", categorical="code", lam=1.0, progress=False
    )
    floats = table.assign(code=table["code"].astype(float), shop=table["shop"].astype(float))
    np.testing.assert_array_equal(found.predict(table), found.predict(floats))


def test_dates_that_cannot_be_read_are_refused():
    table = shops(20)
    found = learn(table, node="shop", target="sales", features=["day", "price"], lam=1.0, progress=False)
    with pytest.raises(InputError, match=r"Expected dates such as .* got '28\.06\.2024'"):
        found.predict(table.assign(day="28.06.2024"))


def test_predict_with_one_kind_of_models(run):
    table = shops(4)
    for role in ("final", "alone", *run.weights.index):
        rows = Rows(encode(run.encoder, table, run.columns), np.zeros(32), np.repeat(np.arange(8), 4), None)
        np.testing.assert_allclose(run.predict(table, role=role), run.target.decode(run.predict_rows(role, rows)))
    with pytest.raises(InputError, match="Expected one of final"):
        run.predict(table, role="best")


@pytest.mark.parametrize("name", ["group", "final", "gain", "train_rows", "node"])
def test_columns_may_be_called_anything(name, tmp_path):
    table = shops(12, count=4).rename(columns={"shop": name, "sales": "speed [m/s]"})
    found = learn(table, node=name, target="speed [m/s]", features=["price"], lam=1.0, folds=2, progress=False)
    again = load(found.save(tmp_path / "run"))
    pandas.testing.assert_frame_equal(again.nodes, found.nodes, check_dtype=False)
    np.testing.assert_array_equal(again.predict(table), found.predict(table))


def test_plain_python_inputs(tmp_path):
    table = shops(12, count=4).set_index(["shop", "price"], drop=False)
    edges = [("shop 0", "shop 1"), ("shop 1", "shop 0"), ("shop 2", "shop 3"), ("shop 1", "shop 2")]
    found = learn(table, node="shop", target="sales", features=np.array(["price"]), edges=edges, seed=np.int64(3),
                  lam=1.0, progress=False)  # fmt: skip
    assert found.graph.edge_count == 3
    found.save(tmp_path / "run")


def test_latitude_comes_first_whatever_the_order():
    table = shops(3).assign(lat=lambda t: t["shop"].str[-1].astype(float), lon=0.0)
    assert find_columns(table, Settings("shop", "sales", coords=("lon", "lat"))).coords == ("lat", "lon")


def test_decimal_commas_and_codes_in_json(tmp_path):
    (tmp_path / "t.csv").write_text("shop;sales\na;1,5\nb;-2,5\n")
    assert read_table(tmp_path / "t.csv")["sales"].tolist() == [1.5, -2.5]
    (tmp_path / "t.jsonl").write_text('{"shop": "01", "sales": 1}\n{"shop": "1", "sales": 2}\n')
    assert read_table(tmp_path / "t.jsonl")["shop"].tolist() == ["01", "1"]


def test_metrics_are_plain_json(run, tmp_path):
    found = json.loads((run.save(tmp_path / "run") / "metrics.json").read_text())
    assert found["judgement"]["verdict"] == run.judgement.verdict
    assert {row["name"] for row in found["leaderboard"]} == set(run.leaderboard.index)
