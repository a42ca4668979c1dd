"""Tables that a review of the blend found to go wrong."""

import json

import cvxpy
import numpy as np
import pandas
import pytest
from sklearn.linear_model import Ridge

from folders import sealed
from kinfolk.checks import InputError
from kinfolk.tables import learn, load
from kinfolk.tables.blend import prior_weights
from kinfolk.tables.splits import Folding
from kinfolk.tables.target import Target
from parties import weights_of


def nodes_and_rows(nodes, rows, seed=0):
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(nodes), rows)
    return rng, owner, rng.normal(size=nodes * rows)


@pytest.mark.parametrize("smallest", [1e-1, 1e-3, 1e-5, 1e-8])
def test_weights_find_a_member_that_is_far_better(smallest):
    rng = np.random.default_rng(int(-np.log10(smallest)))
    y, owner = rng.normal(size=200), np.zeros(200, dtype=np.int64)
    sizes = {"pooled": 1.0, "slopes": 0.5, "tailored": smallest, "boosted": 0.9}
    predicted = {name: y + size * rng.normal(size=200) for name, size in sizes.items()}
    everything = np.ones(200, dtype=bool)
    found = weights_of(predicted, y, owner, Target(), Folding("rows", [(everything, everything)]))
    blend = sum(weight * predicted[name] for name, weight in found.items())
    assert np.mean((blend - y) ** 2) <= 1.05 * np.mean((predicted["tailored"] - y) ** 2)


def test_weights_are_those_of_cvxpy():
    rng = np.random.default_rng(7)
    y, everything = rng.normal(size=200), np.ones(200, dtype=bool)
    common = rng.normal(size=200)
    predicted = {
        name: y + size * (rng.normal(size=200) + common)
        for name, size in {"pooled": 1.0, "slopes": 0.5, "tailored": 0.4, "boosted": 0.9}.items()
    }
    folding = Folding("rows", [(everything, everything)])
    found = weights_of(predicted, y, np.zeros(200, dtype=np.int64), Target(), folding)
    errors = np.stack([each - y for each in predicted.values()])
    sizes = np.median(np.abs(errors), axis=0)
    errors *= np.minimum(1, 3 * sizes.mean() / sizes)
    prior, pull = prior_weights(list(predicted), 200), 3 / 200
    best = (errors**2).mean(axis=1).min()
    w = cvxpy.Variable(4, nonneg=True)
    scaled = errors / np.sqrt(200 * best)
    cost = cvxpy.sum_squares(scaled.T @ w) + pull * cvxpy.sum(cvxpy.square(w - prior) / (4 * prior))
    cvxpy.Problem(cvxpy.Minimize(cost), [cvxpy.sum(w) == 1]).solve(solver="CLARABEL")
    ours = np.array(list(found.values()))
    assert cost_of(ours, scaled, prior, pull) <= cost_of(w.value, scaled, prior, pull) * (1 + 1e-4) + 1e-9


def test_a_few_rows_do_not_decide_on_weights():
    """Both members fail at one row, by chance the better one fails more; classes have no such rows."""
    rng = np.random.default_rng(3)
    y, everything = rng.normal(size=400), np.ones(400, dtype=bool)
    predicted = {name: y + size * rng.normal(size=400) for name, size in {"pooled": 1.0, "slopes": 0.3}.items()}
    folding, owner = Folding("rows", [(everything, everything)]), np.zeros(400, dtype=np.int64)
    before = weights_of(predicted, y, owner, Target(), folding)
    predicted["slopes"][0], predicted["pooled"][0] = y[0] + 100, y[0] + 30
    after = weights_of(predicted, y, owner, Target(), folding)
    assert before["slopes"] > 0.85
    assert after["slopes"] > 0.8
    errors = np.stack([each - y for each in predicted.values()])
    assert (errors[1] ** 2).mean() > 5 * (errors[0] ** 2).mean()  # else these rows would prove nothing


def cost_of(w, scaled, prior, pull):
    return float(((w @ scaled) ** 2).sum() + pull * ((w - prior) ** 2 / (4 * prior)).sum())


def test_a_blend_of_nearly_exact_members_is_nearly_exact():
    rng, owner, x = nodes_and_rows(60, 6)
    table = pandas.DataFrame({"n": owner, "x": x, "y": rng.normal(size=60)[owner] + x + 1e-3 * rng.normal(size=360)})
    board = learn(table, node="n", target="y", progress=False).leaderboard["error"]
    assert board["final"] <= 1.05 * board[["intercepts", "slopes"]].min()


def test_targets_with_thousands_separators_have_a_page(tmp_path):
    rng, owner, x = nodes_and_rows(5, 30)
    table = pandas.DataFrame(
        {"n": owner, "x": x, "y": [f"{1200 + 300 * each:,.0f}" for each in x + rng.normal(size=150)]}
    )
    run = learn(table, node="n", target="y", progress=False)
    run.save(tmp_path / "run")
    assert np.isfinite(load(tmp_path / "run").predictions["target"].to_numpy(dtype=float)).all()


def test_rows_of_a_new_node_are_predicted_by_their_own_place():
    rng = np.random.default_rng(1)
    spots = rng.uniform(0, 10, size=(40, 2))
    owner = np.repeat(np.arange(40), 10)
    x = rng.normal(size=400)
    table = pandas.DataFrame({"n": owner, "px": spots[owner, 0], "py": spots[owner, 1], "x": x})
    table["y"] = 3 * table["px"] + x + 0.1 * rng.normal(size=400)
    run = learn(table, node="n", target="y", features=["x"], coords=["px", "py"], progress=False)
    new = pandas.DataFrame({"n": ["new", "new"], "px": [1.0, 9.0], "py": [5.0, 5.0], "x": [0.0, 0.0]})
    found = run.predict(new)
    np.testing.assert_allclose(run.predict(new[::-1])[::-1], found)
    assert found.iloc[0] < 10 < found.iloc[1]


@pytest.mark.parametrize("kind", ["classes", "counts"])
def test_a_window_of_time_with_one_class_or_without_counts(kind):
    rng = np.random.default_rng(2)
    time = np.tile(np.arange(40), 6)
    table = pandas.DataFrame({"n": np.repeat(np.arange(6), 40), "t": time, "x": rng.normal(size=240)})
    late = rng.integers(0, 3, size=240)
    y = np.where(time < 22, 0, late)
    table["y"] = np.array(["a", "b", "c"])[y] if kind == "classes" else y
    task = {"task": "count"} if kind == "counts" else {}
    board = learn(table, node="n", target="y", time="t", progress=False, **task).leaderboard
    assert np.isfinite(board["error"]).all()


def test_an_estimator_that_predicts_negative_counts():
    rng, owner, x = nodes_and_rows(8, 30)
    table = pandas.DataFrame({"n": owner, "x": x, "y": rng.poisson(np.exp(0.3 + x))})
    run = learn(table, node="n", target="y", task="count", members=["pooled", Ridge()], progress=False)
    assert np.isfinite(run.leaderboard["error"]).all()
    assert run.weights["pooled"] > run.weights["Ridge"]


def test_only_members_that_are_named_have_a_weight():
    _, owner, x = nodes_and_rows(8, 20)
    table = pandas.DataFrame({"n": owner, "x": x, "y": np.sin(owner) * x})
    run = learn(table, node="n", target="y", members=["pooled", "slopes"], progress=False)
    assert set(run.weights.index) == {"pooled", "slopes"}
    assert run.leaderboard["part"]["tailored"] == "baseline"


def test_weights_of_a_folder_must_be_shares(tmp_path):
    _, owner, x = nodes_and_rows(4, 20)
    table = pandas.DataFrame({"n": owner, "x": x, "y": np.sin(owner) * x})
    learn(table, node="n", target="y", members=["pooled", "slopes"], progress=False).save(tmp_path / "run")
    file = tmp_path / "run" / "metrics.json"
    metrics = json.loads(file.read_text())
    for entry in metrics["entries"].values():
        entry["weight"] = None if entry["weight"] is None else 0.0
    file.write_text(json.dumps(metrics))
    with pytest.raises(InputError, match=r"metrics\.json is missing or damaged"):
        load(sealed(tmp_path / "run"))


def test_a_trend_is_kept_where_it_helps_and_dropped_where_it_does_not():
    rng = np.random.default_rng(3)
    year = np.tile(np.arange(1990, 2020), 10)
    table = pandas.DataFrame({"state": np.repeat(np.arange(10), 30), "year": year, "x": rng.normal(size=300)})
    rising = table.assign(y=2.0 * (year - 1990) + table["x"] + rng.normal(size=300))
    level = table.assign(y=table["x"] + rng.normal(size=300) + 3 * np.sin(year * 7.0))
    options = {"node": "state", "target": "y", "time": "year", "progress": False}
    kept, dropped = learn(rising, **options), learn(level, **options)
    assert kept.leaderboard["error"]["final"] < 2.0
    assert not any("no trend" in note for note in kept.notes)
    assert any("no trend" in note for note in dropped.notes)
    later = level.assign(year=level["year"] + 1000)
    np.testing.assert_allclose(dropped.predict(later), dropped.predict(level), atol=1e-9)
