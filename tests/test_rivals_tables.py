"""Rivals on the rows of a table: closed forms and second implementations are the yardsticks."""

import builtins
import importlib.util
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import WhiteKernel
from sklearn.linear_model import LogisticRegression, Ridge

from kinfolk import InputError
from kinfolk.checks import LearningError
from kinfolk.datasets import NamedTable, named_table
from kinfolk.tables import comparison
from kinfolk.tables.learning import learn_prepared
from kinfolk.tables.prepared import prepare
from kinfolk.tables.rivals import CHEAP, OTHERS, linear, mixed, places, rival, trees
from kinfolk.tables.rows import Rows
from kinfolk.tables.settings import Settings

ALL = {each.name: each for each in (*CHEAP, *OTHERS)}
NODES = 8


@dataclass(frozen=True)
class Asked:
    """A target of any kind, with the losses that rivals ask for."""

    kind: str = "number"
    classes: tuple = ()
    level: float = 0.5

    def loss(self, predicted, y):
        if self.kind == "classes":
            return ((predicted - (y[:, None] == np.arange(len(self.classes)))) ** 2).sum(axis=1)
        if self.kind == "count":
            return 2 * (np.where(y > 0, y * np.log(np.maximum(y, 1) / predicted), 0) - y + predicted)
        if self.kind == "quantile":
            return np.maximum(self.level * (y - predicted), (self.level - 1) * (y - predicted))
        return (predicted - y) ** 2


TARGETS = {
    "number": Asked(),
    "two classes": Asked("classes", ("no", "yes")),
    "three classes": Asked("classes", ("a", "b", "c")),
    "count": Asked("count"),
    "quantile": Asked("quantile", level=0.9),
}


def rows(count, target=TARGETS["number"], seed=0):
    """Nodes on a line; the intercept and a slope of a node grow along it."""
    rng = np.random.default_rng(seed)
    owner = rng.integers(0, NODES, size=count)
    place = np.column_stack([owner / NODES, owner % 2]).astype(float)
    X = rng.normal(size=(count, 2))
    signal = X[:, 0] + 2 * place[:, 0] * (1 + X[:, 1]) - 1
    if target.kind == "classes":
        y = np.digitize(2 * signal + rng.logistic(size=count), [0.0, 1.5][: len(target.classes) - 1]).astype(float)
    elif target.kind == "count":
        y = rng.poisson(np.exp(0.5 * signal)).astype(float)
    else:
        y = signal + 0.3 * rng.normal(size=count)
    return Rows(X, y, owner, place)


# ---------------------------------------------------------------------- all of them


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("name", ALL)
def test_every_rival_predicts_or_has_a_reason(name, kind):
    target, each = TARGETS[kind], ALL[name]
    training, asked = rows(1_500, target), rows(300, target, seed=1)
    reason = each.applies(training, target)
    if reason:
        assert reason == f"it does not predict {rival.PLURALS[target.kind]}"
        return
    found = each.predict(training, asked, target, NODES)
    assert np.isfinite(found).all()
    if target.kind == "classes":
        assert found.shape == (300, len(target.classes))
        np.testing.assert_allclose(found.sum(axis=1), 1)
        constant = np.bincount(training.y.astype(int), minlength=len(target.classes)) / 1_500 + np.zeros((300, 1))
    else:
        assert found.shape == (300,)
        constant = np.full(300, np.quantile(training.y, 0.9) if kind == "quantile" else training.y.mean())
    if target.kind == "count":
        assert (found > 0).all()
    assert target.loss(found, asked.y).mean() < 0.9 * target.loss(constant, asked.y).mean()


def test_which_kinds_each_predicts():
    can = {name: set(each.kinds) for name, each in ALL.items()}
    assert can["boosting"] == can["lightgbm"] == can["lightgbm tuned"] == {"number", "classes", "count", "quantile"}
    assert can["dummies"] == can["ridge"] == can["interactions"] == can["forest"] == {"number", "classes", "count"}
    assert all(can[name] == {"number"} for name in ("mixed intercept", "mixed slopes", "gaussian process", "gwr"))


@pytest.mark.parametrize("name", ALL)
def test_a_node_without_training_rows_is_predicted(name):
    training, asked = rows(200), rows(50, seed=1)
    training, asked = training.take(training.owner != 3), asked.take(asked.owner == 3)
    assert np.isfinite(ALL[name].predict(training, asked, TARGETS["number"], NODES)).all()


@pytest.mark.parametrize("name", [name for name in ALL if name not in ("gwr", "gaussian process")])
def test_rows_need_no_places(name):
    training, asked = (each._replace(place=None) for each in (rows(200), rows(20, seed=1)))
    assert ALL[name].applies(training, TARGETS["number"]) is None
    assert ALL[name].predict(training, asked, TARGETS["number"], NODES).shape == (20,)


def test_reasons():
    number, bare = TARGETS["number"], rows(50)._replace(place=None)
    assert ALL["gwr"].applies(bare, number) == ALL["gaussian process"].applies(bare, number)
    assert ALL["gwr"].applies(bare, number) == "the rows have no coordinates"
    single = rows(8)._replace(owner=np.arange(8))
    assert ALL["mixed intercept"].applies(single, number) == "fewer than two nodes have several rows"
    large = replace(ALL["forest"], conditions=(rival.at_most(49, "rows", lambda training: len(training.y)),))
    assert large.applies(bare, number) == "50 rows are more than 49"
    assert ALL["dummies"].applies(bare, TARGETS["quantile"]) == "it does not predict quantiles"


@pytest.mark.parametrize("name", ["lightgbm", "lightgbm tuned", "mixed intercept", "mixed slopes"])
def test_an_extra_that_is_not_installed_is_named(name, monkeypatch):
    real = builtins.__import__
    package = ALL[name].package

    def without(wanted, *rest, **more):
        if wanted.partition(".")[0] == package:
            raise ImportError(wanted)
        return real(wanted, *rest, **more)

    for module in [module for module in sys.modules if module.partition(".")[0] == package]:
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(builtins, "__import__", without)
    sentence = rf'Expected {package} for a rival: install it with pip install "kinfolk\[rivals\]"\.'
    with pytest.raises(InputError, match=sentence):
        ALL[name].check()
    with pytest.raises(InputError, match=sentence):
        ALL[name].predict(rows(50), rows(5), TARGETS["number"], NODES)


def test_a_strength_is_the_one_with_the_least_loss_in_held_out_rows():
    training = rows(300)
    assert rival.choose([1, 2, 3], training, TARGETS["number"], lambda _, asked: [0, asked.y, 1]) == 2
    few = rival.some_nodes(training, 100)
    sizes = np.bincount(training.owner)
    assert 0 < len(few.y) <= 100
    assert all((few.owner == node).sum() == sizes[node] for node in np.unique(few.owner))
    assert len(np.unique(rival.some_nodes(training, 1).owner)) == 1


# ---------------------------------------------------------------------- penalised regression


def dense(rows_, *, slopes):
    hot = np.eye(NODES)[rows_.owner]
    products = (hot[:, :, None] * rows_.X[:, None]).reshape(len(rows_.y), -1)
    return np.column_stack([rows_.X, hot, products] if slopes else [rows_.X, hot])


@pytest.mark.parametrize(("name", "slopes"), [("dummies", False), ("interactions", True)])
def test_dummies_are_the_closed_form(name, slopes, monkeypatch):
    training, asked = rows(120), rows(30, seed=1)
    monkeypatch.setattr(linear, "STRENGTHS", (5.0,))
    X, new = dense(training, slopes=slopes), dense(asked, slopes=slopes)
    centred, mean = X - X.mean(axis=0), training.y.mean()
    w = np.linalg.solve(centred.T @ centred + 5 * np.eye(X.shape[1]), centred.T @ (training.y - mean))
    found = ALL[name].predict(training, asked, TARGETS["number"], NODES)
    np.testing.assert_allclose(found, mean + (new - X.mean(axis=0)) @ w, atol=1e-4)


@pytest.mark.parametrize("kind", ["two classes", "three classes"])
def test_dummies_of_classes_are_a_dense_logistic_regression(kind, monkeypatch):
    target = TARGETS[kind]
    training, asked = rows(200, target), rows(30, target, seed=1)
    monkeypatch.setattr(linear, "STRENGTHS", (2.0,))
    oracle = LogisticRegression(C=0.5, tol=1e-8, max_iter=10_000).fit(dense(training, slopes=False), training.y)
    found = ALL["dummies"].predict(training, asked, target, NODES)
    np.testing.assert_allclose(found, oracle.predict_proba(dense(asked, slopes=False)), atol=2e-3)


def test_dummies_of_counts_have_no_slope_left(monkeypatch):
    target = TARGETS["count"]
    training = rows(300, target)
    monkeypatch.setattr(linear, "STRENGTHS", (3.0,))
    fitted = linear.fitted(linear.with_dummies, training, target, NODES)
    X, mean = dense(training, slopes=False), fitted(training)
    log = np.log(fitted(Rows(np.zeros((NODES, 2)), np.zeros(NODES), np.arange(NODES), None)))
    node = log - np.log(fitted(Rows(np.zeros((1, 2)), np.zeros(1), np.array([NODES - 1]), None)))
    gradient = X[:, 2:].T @ (mean - training.y)  # = −3 w at the nodes; differences of w are differences of logarithms
    np.testing.assert_allclose(gradient - gradient[-1], -3 * node, atol=0.05)
    np.testing.assert_allclose(mean.sum(), training.y.sum(), rtol=1e-3)  # the intercept is not shrunk


def test_rows_of_one_class_are_predicted_as_such():
    target = TARGETS["three classes"]
    training = rows(60, target)._replace(y=np.ones(60))
    np.testing.assert_array_equal(
        ALL["dummies"].predict(training, rows(3, target), target, NODES), np.tile([0, 1, 0], (3, 1))
    )


# ---------------------------------------------------------------------- trees


def test_boosting_sees_the_node_as_a_category():
    rng = np.random.default_rng(0)
    effect = rng.permutation(60) % 2 * 2.0 - 1
    owner = np.repeat(np.arange(60), 40)
    training = Rows(rng.normal(size=(2400, 1)), effect[owner], owner, None)
    asked = Rows(np.zeros((60, 1)), effect, np.arange(60), None)
    for name in ("boosting", "lightgbm"):
        np.testing.assert_allclose(ALL[name].predict(training, asked, TARGETS["number"], 60), effect, atol=0.2)


def test_boosting_takes_more_nodes_than_categories():
    training = rows(2_000)._replace(owner=np.arange(2_000) % 500)
    assert np.isfinite(ALL["boosting"].predict(training, training, TARGETS["number"], 500)).all()


def test_boosting_takes_a_class_with_a_single_row():
    target = TARGETS["three classes"]
    training = rows(12_000, target)
    training = training._replace(y=np.where(np.arange(12_000) == 5, 2.0, np.minimum(training.y, 1.0)))
    assert ALL["boosting"].predict(training, rows(5), target, NODES).shape == (5, 3)


def test_trees_see_the_place():
    training = rows(10)
    assert trees.with_node_and_place(training).shape == (10, 5)
    assert trees.with_node_and_place(training._replace(place=None)).shape == (10, 3)


@pytest.mark.parametrize("name", ["boosting", "lightgbm"])
def test_a_quantile_has_its_share_below(name):
    target = TARGETS["quantile"]
    training = rows(4_000, target)
    below = (training.y <= ALL[name].predict(training, training, target, NODES)).mean()
    assert 0.87 < below < 0.93


# ---------------------------------------------------------------------- mixed models


@pytest.mark.filterwarnings("ignore::statsmodels.tools.sm_exceptions.ConvergenceWarning")  # lost in rounding
@pytest.mark.parametrize("name", ["mixed intercept", "mixed slopes"])
def test_mixed_models_are_those_of_statsmodels(name):
    from statsmodels.regression.mixed_linear_model import MixedLM, MixedLMParams

    training, asked = rows(400), rows(20, seed=1)
    slope = np.random.default_rng(2).normal(size=NODES)[training.owner]  # no variance is zero
    training = training._replace(y=training.y + slope * training.X[:, 0])
    Z = {"mixed intercept": mixed.one, "mixed slopes": mixed.one_and_features}[name]
    model = MixedLM(training.y, mixed.one_and_features(training.X), training.owner, Z(training.X))
    width = Z(training.X).shape[1]
    oracle = model.fit(free=MixedLMParams.from_components(np.ones(3), np.eye(width)), method="bfgs")
    effects = np.array([np.asarray(oracle.random_effects[node]) for node in asked.owner])
    expected = mixed.one_and_features(asked.X) @ oracle.fe_params + (Z(asked.X) * effects).sum(axis=1)
    np.testing.assert_allclose(ALL[name].predict(training, asked, TARGETS["number"], NODES), expected, atol=1e-6)


def test_a_mixed_model_that_fails_gets_a_sentence(monkeypatch):
    from statsmodels.regression.mixed_linear_model import MixedLM

    def fails(*given, **named):
        raise np.linalg.LinAlgError("Singular matrix")

    monkeypatch.setattr(MixedLM, "fit", fails)
    with pytest.raises(LearningError, match="Expected statsmodels to fit a mixed model, it failed: Singular matrix"):
        ALL["mixed intercept"].predict(rows(50), rows(5), TARGETS["number"], NODES)


def test_columns_that_add_up_are_left_out():
    training = rows(200)
    doubled = training._replace(X=np.column_stack([training.X, training.X.sum(axis=1), np.ones(200)]))
    assert len(mixed.independent_columns(doubled.X)) == 2
    found = ALL["mixed intercept"].predict(doubled, doubled, TARGETS["number"], NODES)
    expected = ALL["mixed intercept"].predict(training, training, TARGETS["number"], NODES)
    np.testing.assert_allclose(found, expected, atol=1e-3)


# ---------------------------------------------------------------------- over places


def test_a_huge_bandwidth_is_one_ridge():
    training, asked = rows(150), rows(40, seed=1)
    oracle = Ridge(alpha=places.RIDGE_TERM).fit(training.X, training.y)
    np.testing.assert_allclose(places.locally(training, asked, 1e6), oracle.predict(asked.X), atol=1e-6)


def test_a_local_regression_is_a_weighted_ridge_place_by_place(monkeypatch):
    training, asked = rows(150), rows(40, seed=1)
    asked = asked._replace(place=asked.place + np.random.default_rng(0).normal(size=(40, 2)))
    monkeypatch.setattr(places, "AT_ONCE", 7)
    expected = []
    for x, place in zip(asked.X, asked.place, strict=True):
        squared = ((training.place - place) ** 2).sum(axis=1)
        weight = np.exp(-0.5 * (squared - squared.min()) / 0.4**2)
        expected.append(Ridge(alpha=1.0).fit(training.X, training.y, weight).predict(x[None])[0])
    np.testing.assert_allclose(places.locally(training, asked, 0.4), expected, atol=1e-6)


def test_the_process_sees_rows_at_one_place_as_their_mean():
    """With a kernel that is given, the process on means with their noise is the process on all rows."""
    training, asked = rows(150), rows(40, seed=1)
    ridge = linear.fitted(linear.features, training, TARGETS["number"], NODES)
    rest, spots = training.y - ridge(training), places.Spots.of(training)
    mean = np.bincount(spots.row, rest) / np.bincount(spots.row)
    noise = ((rest - mean[spots.row]) ** 2).sum() / (150 - NODES)
    kernel = places._process(spots.place, mean, noise / np.bincount(spots.row) + 1e-8, nugget=False).kernel_
    full = GaussianProcessRegressor(kernel, alpha=noise, optimizer=None).fit(training.place, rest)
    found = ALL["gaussian process"].predict(training, asked, TARGETS["number"], NODES)
    np.testing.assert_allclose(found, ridge(asked) + full.predict(asked.place), atol=1e-4)


def test_a_process_of_single_rows_learns_its_noise():
    rng = np.random.default_rng(0)
    place = rng.uniform(size=(150, 2))
    process = places._process(place, np.sin(4 * place[:, 0]) + 0.5 * rng.normal(size=150), np.full(150, 1e-8), True)
    assert isinstance(process.kernel_.k2, WhiteKernel)
    assert 0.15 < process.kernel_.k2.noise_level < 0.4


# ---------------------------------------------------------------------- on tables


def test_rivals_on_a_table():
    rng = np.random.default_rng(0)
    shop = np.repeat(np.arange(6), 30)
    table = pandas.DataFrame({"shop": shop, "price": rng.normal(size=180), "lat": 60.0 + shop, "lon": 20.0 + shop % 2})
    table["sales"] = 10 * shop + table["price"] + rng.normal(size=180)
    prepared = prepare(table, Settings.of({"node": "shop", "target": "sales"}))
    np.testing.assert_allclose(prepared.rows.test.place, prepared.design.places[prepared.rows.test.owner], rtol=1e-12)
    for each in CHEAP:
        assert each.applies(prepared.rows.training, prepared.rows.target) is None
        found = each.predict(prepared.rows.training, prepared.rows.test, prepared.rows.target, len(prepared.rows.nodes))
        assert np.sqrt(prepared.rows.target.loss(found, prepared.rows.test.y).mean()) < 3


def test_wind(shared_data):
    raw = pandas.read_csv(shared_data / "wind_ireland" / "wind_daily.csv.gz", parse_dates=["date"])
    known = named_table("wind", shared_data)
    assert len(known.frame) == 12 * (len(raw) - 7)
    row = known.frame[(known.frame["station"] == "Dublin") & (known.frame["day"] == "1970-03-10")].iloc[0]
    at = int(np.flatnonzero(raw["date"] == "1970-03-10")[0])
    assert (row["lat"], row["lon"]) == pytest.approx((53.4333, -6.25), abs=1e-4)
    assert row["speed_tomorrow"] == raw["DUB"][at + 1]
    assert row["speed_today"] == raw["DUB"][at]
    assert row["speed_yesterday"] == raw["DUB"][at - 1]
    assert row["speed_week"] == pytest.approx(raw["DUB"][at - 6 : at + 1].mean())
    recent = named_table("wind-recent", shared_data).frame
    assert (str(recent["day"].min().date()), str(recent["day"].max().date())) == ("1978-07-01", "1978-12-30")


# ---------------------------------------------------------------------- the example


@pytest.fixture(scope="module")
def real_data():
    path = Path(__file__).parent.parent / "examples" / "real_data.py"
    spec = importlib.util.spec_from_file_location("real_data", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def small_table(**options):
    rng = np.random.default_rng(0)
    shop = np.repeat(np.arange(6), 40)
    frame = pandas.DataFrame({"shop": shop, "price": rng.normal(size=240), "day": np.tile(np.arange(40), 6)})
    frame["sales"] = shop + (1 + shop % 2) * frame["price"] + rng.normal(size=240)
    return NamedTable("six shops", frame, {"node": "shop", "target": "sales", "features": "price", **options})


def test_splits_are_other_seeds_or_earlier_dates(real_data):
    first, second = real_data.prepared_splits(small_table(), 2)
    assert (first.settings.seed, second.settings.seed) == (0, 1)
    assert (first.rows.held_out != second.rows.held_out).any()
    first, second = real_data.prepared_splits(small_table(time="day"), 2)
    assert (first.rows.table["day"].max(), second.rows.table["day"].max()) == (39, 37)
    for split in (first.rows, second.rows):
        assert split.table["day"][split.held_out].min() > split.table["day"][~split.held_out].max()


def _fails(training, asked, target, node_count):
    raise LearningError("it failed")


def test_errors_of_rivals_are_means_over_nodes(real_data, monkeypatch):
    prepared = next(real_data.prepared_splits(small_table(), 1))
    errors, seconds = real_data.errors_and_seconds(prepared)
    assert set(errors.index) == set(seconds.index) == {"final", *ALL} - {"gwr", "gaussian process"}
    assert real_data.reasons(prepared).startswith("gaussian process: the rows have no coordinates; gwr:")
    failing = replace(ALL["ridge"], predict=_fails)
    monkeypatch.setattr(comparison, "OTHERS", (failing,))
    assert set(real_data.errors_and_seconds(prepared)[0].index) == {"final", "boosting", "dummies"}
    chosen = replace(prepared, design=replace(prepared.design, settings=replace(prepared.settings, rivals=True)))
    assert any(
        "'one regression' takes no part" in note and "it failed" in note for note in learn_prepared(chosen).notes
    )
    test, target = prepared.rows.test, prepared.rows.target
    loss = target.loss(ALL["dummies"].predict(prepared.rows.training, test, target, 6), test.y)
    by_node = pandas.Series(loss).groupby(test.owner).mean()
    assert errors["dummies"] == pytest.approx(np.sqrt(by_node.mean()))


def test_lines_of_the_table_of_rivals(real_data):
    found = pandas.DataFrame({"final": [1.0, 2.0], "ridge": [2.0, 2.0], "forest": [1.0, np.nan], "dummies": [3.0, 3.0]})
    line = real_data.rivals_line("shops", found)  # a rival that missed a split is no best one
    assert line == ["shops", "2", "1.500", "ridge", "2.000", "0.7500", "0.2500"]
    assert real_data.rivals_line("shops", found[:1])[3:] == ["forest", "1.000", "1.0000", "–"]
    names = [each.name for each in real_data.RIVALS]
    assert real_data.all_rivals_line("shops", found)[1 + names.index("dummies")] == "200.0"
    assert real_data.all_rivals_line("shops", found)[1 + names.index("gwr")] == "–"


def test_tables_of_rivals_go_between_their_marks(real_data):
    page, ends = real_data.PAGE.read_text(), (real_data.RIVALS_BEGIN, real_data.RIVALS_END)
    assert [page.count(end) for end in ends] == [1, 1]
    once = real_data.inserted(page, "some text", *ends)
    assert page.partition(real_data.RIVALS_BEGIN)[0] == once.partition(real_data.RIVALS_BEGIN)[0]
    assert page.partition(real_data.RIVALS_END)[2] == once.partition(real_data.RIVALS_END)[2]
