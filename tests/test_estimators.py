"""The estimators of scikit-learn: its own checks, its tools, and the same answers as ``learn``."""

import pickle
import re
import warnings
from pathlib import Path

import numpy as np
import pandas
import pytest
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, cross_val_predict, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from kinfolk import InputError, TailoredClassifier, TailoredRegressor, learn
from kinfolk.tables.fitted_blend import FittedBlend
from kinfolk.tables.table_run import TableRun

PAGE = Path(__file__).parent.parent / "docs" / "how-to" / "scikit-learn.md"
FAST = {"members": ("pooled", "tailored"), "folds": 2, "lam": 1.0}
CHECKED = {"members": ("pooled", "boosted"), "model": "linear", "folds": 2, "lam": 1.0}  # a quick blend that is good
pytestmark = pytest.mark.usefixtures("few_trees")  # scikit-learn's checks fit some two hundred times
BOTH = [TailoredRegressor, TailoredClassifier]


def shops(nodes=8, rows=12, seed=0, spread=0.3):
    """Shops in the west sell more when prices rise, those in the east less."""
    rng = np.random.default_rng(seed)
    shop = np.repeat(np.arange(nodes), rows)
    x = np.arange(nodes)[shop] + 0.5
    price, size = rng.normal(size=(2, len(shop)))
    slope = np.where(x < nodes / 2, 1.0, -1.0)
    X = pandas.DataFrame({"shop": [f"s{k:03d}" for k in shop], "price": price, "size": size, "x": x, "y": 0.0 * x})
    return X, slope * price + 0.5 * size + spread * rng.normal(size=len(shop))


# ---------------------------------------------------------------------- scikit-learn's own checks


def listed():
    """The checks that the page lists as those that cannot hold, with the reasons."""
    return dict(re.findall(r"^\| `(check_\w+)` \| (.+) \|$", PAGE.read_text(), re.MULTILINE))


def checked(estimator, expected=None):
    """The status of every check, by name; a check that is made more than once has the worst."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are the checks' own business
        found = check_estimator(estimator, expected_failed_checks=expected, on_fail=None, on_skip=None)
    order = ["passed", "skipped", "xfail", "failed"]
    out = {}
    for each in found:
        name, status = each["check_name"], each["status"]
        out[name] = max(out.get(name, status), status, key=order.index)
    return out


@pytest.mark.parametrize("kind", BOTH, ids=lambda kind: kind.__name__)
def test_every_check_holds_for_a_single_node(kind):
    found = checked(kind(**CHECKED))
    assert len(found) > 40
    skipped = {name for name, status in found.items() if status == "skipped"}
    assert skipped <= {"check_array_api_input"}  # skipped unless SciPy is told to
    assert {status for name, status in found.items() if name not in skipped} == {"passed"}


@pytest.mark.parametrize("kind", BOTH, ids=lambda kind: kind.__name__)
def test_with_a_column_of_nodes_only_the_checks_that_the_page_lists_fail(kind):
    found = checked(kind(0, **CHECKED), listed())
    assert {name for name, status in found.items() if status == "failed"} == set()
    assert {name for name, status in found.items() if status == "xfail"} == set(listed())


# ---------------------------------------------------------------------- the same as learn


@pytest.mark.parametrize("kind", BOTH, ids=lambda kind: kind.__name__)
def test_it_fits_what_learn_fits(kind):
    """``learn`` with marked test rows, and the estimator on the others: the same predictions, to the last digit."""
    X, y = shops(nodes=6)
    y = y if kind is TailoredRegressor else np.where(y > 0, "up", "down")
    test = np.arange(len(X)) % 4 == 1
    run = learn(X.assign(sales=y, part=test), node="shop", target="sales", test="part", folds=2, progress=False)
    model = kind("shop", folds=2).fit(X[~test], y[~test])
    assert issubclass(TableRun, FittedBlend)
    pandas.testing.assert_series_equal(model.blend_.weights[lambda w: w > 0], run.weights[lambda w: w > 0])
    np.testing.assert_array_equal(model.predict(X[test]), run.predictions["final"])
    if kind is TailoredRegressor:
        ends = run.predict(X[test], interval=0.8)[["low", "high"]]
        np.testing.assert_array_equal(model.predict_interval(X[test], 0.8), ends)
    else:
        np.testing.assert_array_equal(model.predict_proba(X[test]), run.predict_proba(X[test])[["down", "up"]])


def test_intervals_hold_what_they_promise():
    """Of 800 new rows, 640 lie inside, give or take chance: that of these rows, and of the 320 that gave the widths."""
    X, y = shops(nodes=8, rows=140, spread=1.0)
    seen = np.arange(len(X)) % 140 < 40
    ends = TailoredRegressor("shop", folds=3, members=("pooled", "tailored")).fit(X[seen], y[seen])
    low, high = ends.predict_interval(X[~seen], level=0.8).T
    inside = int(((low <= y[~seen]) & (y[~seen] <= high)).sum())
    deviation = np.sqrt(0.8 * 0.2 * (1 / 800 + 1 / 320))
    assert abs(inside / 800 - 0.8) < 3.3 * deviation  # once in 1,000


def test_counts_and_quantiles():
    X, y = shops()
    count = np.random.default_rng(1).poisson(np.exp(y / 2))
    assert (TailoredRegressor("shop", task="count", **FAST).fit(X, count).predict(X) > 0).all()
    low, high = (TailoredRegressor("shop", task="quantile", quantile=q, **FAST).fit(X, y) for q in (0.1, 0.9))
    below = [(y < each.predict(X)).mean() for each in (low, high)]
    assert below[0] < 0.3
    assert below[1] > 0.7


# ---------------------------------------------------------------------- tools of scikit-learn


def test_kinds_parameters_and_copies():
    X, y = shops()
    model = TailoredRegressor("shop", model=Ridge(2.0), seed=3)
    assert is_regressor(model)
    assert is_classifier(TailoredClassifier())
    assert model.get_params()["model__alpha"] == 2.0
    assert repr(model) == "TailoredRegressor(model=Ridge(alpha=2.0), node='shop', seed=3)"
    other = clone(model).set_params(model__alpha=5.0)
    assert (model.model.alpha, other.model.alpha) == (2.0, 5.0)
    with pytest.raises(NotFittedError):
        model.predict(X)
    fitted = TailoredRegressor("shop", **FAST).fit(X, y)
    assert fitted.n_features_in_ == 5
    assert fitted.feature_names_in_.tolist() == [*X]
    assert not hasattr(clone(fitted), "blend_")
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict(X), fitted.predict(X))


def test_a_pipeline_that_keeps_the_node_and_a_search():
    X, y = shops()
    scaled = ColumnTransformer(
        [("scale", StandardScaler(), ["price", "size"])], remainder="passthrough", verbose_feature_names_out=False
    )
    chain = make_pipeline(scaled, TailoredRegressor("shop", **FAST)).set_output(transform="pandas")
    search = GridSearchCV(chain, {"tailoredregressor__lam": [0.01, 1e6]}, cv=KFold(3, shuffle=True, random_state=0))
    assert search.fit(X, y).best_params_ == {"tailoredregressor__lam": 0.01}  # two kinds of shops: not one model
    scores = cross_validate(search.best_estimator_, X, y, cv=3, error_score="raise")["test_score"]
    assert len(scores) == 3
    np.testing.assert_allclose(search.best_estimator_.predict(X), TailoredRegressor(
        "shop", members=FAST["members"], folds=2, lam=0.01).fit(X, y).predict(X), atol=1e-8)  # fmt: skip


def test_probabilities_in_cross_validation():
    X, y = shops()
    labels = np.where(y > 0.5, "high", np.where(y < -0.5, "low", "mid"))
    found = cross_val_predict(TailoredClassifier("shop", **FAST), X, labels, cv=3, method="predict_proba")
    assert found.shape == (len(X), 3)
    np.testing.assert_allclose(found.sum(axis=1), 1.0)


# ---------------------------------------------------------------------- nodes and columns


def test_nodes_without_rows_are_predicted_by_their_neighbours():
    X, y = shops()
    seen = X["shop"] != "s003"
    model = TailoredRegressor("shop", neighbours=2, **FAST).fit(X[seen], y[seen])
    beside = [model.predict(X[~seen].assign(shop=shop)) for shop in ("s002", "s004")]
    np.testing.assert_allclose(model.predict(X[~seen]), np.mean(beside, axis=0))
    placeless = X.drop(columns=["x", "y"])
    pairs = [("s002", "s003"), ("s001", "s003"), ("s001", "s002"), ("s004", "s005"), ("s009", "s001")]
    model = TailoredRegressor("shop", edges=pairs, **FAST).fit(placeless[seen], y[seen])
    beside = [model.predict(placeless[~seen].assign(shop=shop)) for shop in ("s002", "s001")]
    np.testing.assert_allclose(model.predict(placeless[~seen]), np.mean(beside, axis=0))
    assert model.blend_.graph.edge_count == 2  # those that join nodes with rows


def test_nodes_without_rows_and_neighbours_are_predicted_by_the_model_of_all_or_refused():
    X, y = shops()
    X = X.drop(columns=["x", "y"])
    model = TailoredRegressor("shop", **FAST).fit(X, y)
    new = X.assign(shop="elsewhere")
    np.testing.assert_array_equal(model.predict(new), model.blend_.predict(X, role="pooled"))
    np.testing.assert_array_equal(
        model.set_params(unknown="pooled").predict(new), model.blend_.predict(X, role="pooled")
    )
    with pytest.raises(InputError, match="Expected nodes that were learnt, got 'elsewhere'"):
        model.set_params(unknown="refuse").predict(new)
    wide = model.set_params(unknown="neighbours").predict_interval(new)
    assert (wide[:, 1] - wide[:, 0] > (model.predict_interval(X) @ [-1, 1]).max()).all()
    scores = cross_validate(model, X, y, cv=GroupKFold(4), groups=X["shop"], error_score="raise")["test_score"]
    assert np.isfinite(scores).all()


def test_some_rows_of_new_nodes_have_neighbours_and_others_have_none():
    X, y = shops()
    model = TailoredRegressor("shop", neighbours=1, **FAST).fit(X, y)
    new = pandas.concat([X.head(2).assign(shop="near"), X.head(2).assign(shop="lost", x=np.nan), X.head(2)])
    found = model.predict(new)
    np.testing.assert_allclose(found[:2], found[4:])  # the nearest shop is at the same place
    np.testing.assert_array_equal(found[2:4], model.blend_.predict(X.head(2), role="pooled"))


def test_positions_are_as_good_as_names():
    X, y = shops()
    numbered = X.assign(shop=X["shop"].str[1:].astype(float))
    named = TailoredRegressor("shop", coords=("x", "y"), categorical=("size",), **FAST)
    placed = TailoredRegressor(0, coords=(3, 4), categorical=(2,), **FAST)
    listed_in_text = TailoredRegressor("shop", coords="x,y", categorical="size", **FAST)
    sizes = numbered.assign(size=np.sign(numbered["size"]))
    expected = named.fit(sizes, y).predict(sizes)
    np.testing.assert_array_equal(placed.fit(sizes, y).predict(sizes), expected)
    np.testing.assert_array_equal(listed_in_text.fit(sizes, y).predict(sizes), expected)
    np.testing.assert_array_equal(placed.fit(sizes.to_numpy(), y).predict(sizes.to_numpy()), expected)
    assert not hasattr(placed, "feature_names_in_")


def test_columns_may_be_called_node_and_target_and_rows_may_have_the_same_index():
    X, y = shops()
    odd = X.rename(columns={"price": "target", "size": "node"}).set_axis(np.zeros(len(X)))
    expected = TailoredRegressor("shop", **FAST).fit(X, y).predict(X)
    found = TailoredRegressor("shop", **FAST).fit(odd, pandas.Series(y, index=odd.index)).predict(odd)
    np.testing.assert_allclose(found, expected)
    free = X[["price", "size"]].rename(columns={"price": "target", "size": "node"})
    assert TailoredRegressor(**FAST).fit(free, y).blend_.graph.node_count == 1


def test_later_times_and_new_nodes_can_be_what_is_validated():
    X, y = shops()
    later = TailoredRegressor("shop", time="day", **FAST).fit(X.assign(day=np.tile(np.arange(12), 8)), y)
    assert later.blend_.columns.time == "day"
    apart = TailoredRegressor("shop", hold="nodes", **FAST).fit(X, y)
    rows = TailoredRegressor("shop", **FAST).fit(X, y)
    wide, narrow = (model.blend_.entries["pooled"].shares for model in (apart, rows))
    assert len(wide) == len(narrow) == 2
    width = [np.ptp(model.predict_interval(X.head(1))) for model in (apart, rows)]
    assert width[0] > width[1]  # predicting a new shop is harder


@pytest.mark.parametrize(
    ("options", "change", "said"),
    [
        ({"node": "store"}, {}, "Expected a column 'store'"),
        ({"node": True}, {}, "Expected a column 'True'"),
        ({"node": 9}, {}, "Expected the position of a column below 5, got 9"),
        ({"node": "shop", "edges": [("a", "b")]}, {}, "Expected edges between nodes of X, got none"),
        ({"node": "shop", "lam": -1.0}, {}, "'lam' parameter"),
        ({"node": "shop"}, {"y": np.zeros(96)}, "Expected a target that varies"),
        ({"node": "shop"}, {"y": np.zeros(95)}, "inconsistent numbers of samples"),
        ({"node": "shop"}, {"X": shops()[0].head(1), "y": [1.0]}, "Expected 2 or more rows in X, got 1"),
        ({"node": "shop"}, {"X": shops()[0].assign(shop=None)}, "Expected a node in every row"),
        ({"node": "shop", "unknown": "guess"}, {}, "Expected unknown nodes to be one of"),
    ],
)
def test_bad_input_gets_a_sentence(options, change, said):
    X, y = shops()
    given = {"X": X, "y": y, **change}
    with pytest.raises(ValueError, match=re.escape(said)):
        TailoredRegressor(**{**FAST, **options}).fit(given["X"], given["y"])


def test_rows_without_a_class_and_one_class_are_refused():
    X, y = shops()
    with pytest.raises(InputError, match="Expected a class in every row of y, got none in 96 rows"):
        TailoredClassifier("shop").fit(X, [None] * 96)
    with pytest.raises(InputError, match=r"Expected a class in every row of y, got none in \d+ rows"):
        TailoredClassifier("shop").fit(X, np.where(y > 0, 1.0, np.nan))
    with pytest.raises(InputError, match="got one class: 'same' in all rows"):
        TailoredClassifier("shop").fit(X, np.full(len(y), "same"))
