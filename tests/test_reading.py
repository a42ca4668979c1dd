"""Reading tables as people have them: places, folds that match the test, times, columns, targets of any kind, notes."""

import datetime

import numpy as np
import pandas
import pytest
from sklearn.metrics import mean_pinball_loss, mean_poisson_deviance

from kinfolk import graphs
from kinfolk.checks import InputError
from kinfolk.report.words import note_text
from kinfolk.tables import Settings, learn, read_table
from kinfolk.tables.columns import find_columns
from kinfolk.tables.encoding import as_times
from kinfolk.tables.graph_source import wide_graph
from kinfolk.tables.numerals import has_doubtful_numeral
from kinfolk.tables.prepared import prepare
from kinfolk.tables.splits import windows
from kinfolk.tables.target import Target

pytestmark = pytest.mark.usefixtures("few_trees")


def farms(rows=12, count=8, seed=0):
    """Farms with a soil and rain, whose fields lie around the farm."""
    rng = np.random.default_rng(seed)
    farm = np.repeat(np.arange(count), rows)
    frame = pandas.DataFrame({"farm": [f"farm {k:02}" for k in farm], "rain": rng.normal(size=len(farm))})
    frame["soil"] = rng.choice(["clay", "sand"], size=len(farm))
    frame["yield"] = 3 + 2 * frame["rain"] + (frame["soil"] == "clay") + 0.3 * rng.normal(size=len(farm))
    return frame


def placed(table, wander=0.01, seed=1):
    """Latitudes and longitudes: each farm its own, each row a bit aside."""
    rng, number = np.random.default_rng(seed), table["farm"].str[-2:].astype(int)
    aside = wander * rng.normal(size=(len(table), 2))
    return table.assign(lat=50 + 0.4 * number + aside[:, 0], lon=10 + 0.5 * number + aside[:, 1])


def prepared_of(table, **settings):
    return prepare(table, Settings.of({"node": "farm", "target": "yield", **settings}))


def kinds(notes):
    return [note.kind for note in notes]


# ---------------------------------------------------------------------- places


def test_rows_have_places_and_a_node_is_in_the_middle_of_its_training_rows():
    table = placed(farms())
    found = prepared_of(table)
    np.testing.assert_allclose(found.rows.rows.place, table[["lat", "lon"]])
    train = table[~found.rows.held_out]
    middle = train.groupby("farm")[["lat", "lon"]].mean()
    np.testing.assert_allclose(found.design.places, middle, atol=1e-3)  # so near that the globe is flat
    np.testing.assert_array_equal(found.rows.training.place, found.rows.rows.place[~found.rows.held_out])
    assert found.design.source.origin.kind == "coordinates"
    assert {"lat", "lon"} <= set(found.rows.columns.numbers)
    assert kinds(found.design.notes) == ["coordinates of rows"]
    assert "'lat' and 'lon' are used as features, and their means" in note_text(found.design.notes[0])


def test_one_place_per_node_is_no_feature():
    found = prepared_of(placed(farms(), wander=0.0))
    assert not {"lat", "lon"} & set(found.rows.columns.features)
    assert kinds(found.design.notes) == ["coordinates"]
    np.testing.assert_allclose(found.design.places[found.rows.rows.owner], found.rows.rows.place, atol=1e-9)


def test_where_a_node_has_no_place_there_are_none_and_a_note_says_so():
    table = placed(farms(), wander=0.0)
    table.loc[table["farm"] == "farm 03", "lat"] = np.nan
    found = prepared_of(table)
    assert found.design.places is None
    note = next(note for note in found.design.notes if note.kind == "nodes without a place")
    assert (
        note_text(note) == "Nodes without a place in 'lat' and 'lon': 1. So these columns are features, and no places."
    )
    assert "nodes without a place" not in kinds(prepared_of(farms()).design.notes)


def test_a_held_out_node_is_where_its_test_rows_are():
    table = placed(farms()).assign(test=lambda t: t["farm"] == "farm 03")
    found = prepared_of(table, test="test")
    np.testing.assert_allclose(found.design.places[3], table[table["test"]][["lat", "lon"]].mean(), atol=1e-3)


def test_a_missing_place_is_that_of_the_node():
    table = placed(farms())
    table.loc[[0, 30], "lat"] = np.nan
    found = prepared_of(table)
    np.testing.assert_array_equal(found.rows.rows.place[[0, 30]], found.design.places[[0, 2]])
    assert np.isfinite(found.rows.rows.place).all()


def test_guessed_columns_that_are_no_places():
    moving = farms().assign(x=lambda t: t["rain"] + 1.0, y=lambda t: t["rain"] ** 2)
    assert find_columns(moving, Settings("farm", "yield")).coords == ()
    assert find_columns(moving, Settings("farm", "yield", coords=("x", "y"))).coords == ("x", "y")
    metres = farms().assign(lat=lambda t: 1e5 + np.arange(len(t)), lon=1e6)
    assert find_columns(metres, Settings("farm", "yield")).coords == ()
    partly = placed(farms(), wander=0.0)
    partly.loc[partly["farm"] == "farm 02", "lat"] = np.nan
    assert find_columns(partly, Settings("farm", "yield")).coords == ()
    same = farms().assign(lat=60.0, lon=25.0)
    assert prepared_of(same).design.source.origin.kind == "similarity"


def test_nodes_that_share_a_place():
    table = placed(farms(), wander=0.0)
    table.loc[table["farm"] < "farm 05", ["lat", "lon"]] = 48.0, 11.0
    run = learn(table, node="farm", target="yield", neighbours=2, lam=1.0, folds=2, progress=False)
    assert np.isfinite(run.leaderboard["error"]).all()
    assert ((run.graph.head < 5) & (run.graph.tail < 5)).sum() >= 5


@pytest.mark.parametrize("metric", ["planar", "great-circle"])
def test_nearest_pairs_with_equal_places(metric):
    points = np.repeat([[0.0, 0.0], [0.0, 1.0], [40.0, 7.0]], [6, 1, 5], axis=0)
    graph = graphs.knn(points, 3, metric=metric)
    assert (graph.head != graph.tail).all()
    degrees = np.bincount(np.concatenate([graph.head, graph.tail]), minlength=12)
    assert (degrees >= 3).all()
    apart = (points[graph.head] != points[graph.tail]).any(axis=1)
    lone = (graph.head == 6) | (graph.tail == 6)
    assert (apart == lone).all()  # only the node that is alone at its place looks elsewhere


def test_the_wide_graph():
    places = np.random.default_rng(0).random((40, 2))
    graph = wide_graph(places, False, [str(k) for k in range(40)])
    distance = np.linalg.norm(places[graph.head] - places[graph.tail], axis=1)
    expected = 1 / (distance + 0.3 * np.median(distance))
    np.testing.assert_allclose(graph.weights / graph.weights[0], expected / expected[0])
    every = np.linalg.norm(places[:, None] - places, axis=2)
    nearest = np.argsort(every, axis=1)[:, 1:16]
    pairs = {tuple(sorted((i, int(j)))) for i in range(40) for j in nearest[i]}
    assert pairs == set(zip(graph.head.tolist(), graph.tail.tolist(), strict=True))
    assert wide_graph(None, False, []) is None
    assert wide_graph(places[:4], True, list("abcd")).edge_count == 6
    assert (wide_graph(np.zeros((5, 2)), True, list("abcde")).weights > 0).all()


def test_places_alone_are_features():
    """A map without other columns: what is between places is predicted from them."""
    table = placed(farms(1, 60), wander=0.0)[["farm", "lat", "lon", "yield"]].assign(country="here")
    found = prepared_of(table)
    assert found.rows.columns.numbers == ("lat", "lon")
    assert "only coordinates" in kinds(found.design.notes)
    assert "no features" in kinds(prepared_of(table[["farm", "yield"]]).design.notes)


# ---------------------------------------------------------------------- folds that match the test


def panel(years=12, count=8, seed=0):
    """Farms over years, with a trend."""
    table = farms(years, count, seed).assign(year=lambda t: 2000 + np.arange(len(t)) % years)
    return table.assign(**{"yield": table["yield"] + 0.5 * table["year"]})


def assert_disjoint(folding, rows):
    assert all(not (seen & held).any() for seen, held in folding.folds)
    assert (sum(held.astype(int) for _, held in folding.folds) <= 1).all()
    assert all(held.any() and seen.any() and len(held) == rows for seen, held in folding.folds)


def test_random_rows_are_tested_so_rows_are_folded():
    found = prepared_of(farms())
    assert found.rows.folding.kind == "rows"
    assert found.rows.folding.times is None
    assert_disjoint(found.rows.folding, len(found.rows.training.y))


@pytest.mark.parametrize("hold", ["nodes", "regions"])
def test_whole_nodes_or_regions_are_held_out_and_folded(hold):
    table = placed(farms(count=40))
    found = prepared_of(table, hold=hold, test=0.25)
    tested = set(found.rows.test.owner)
    assert not tested & set(found.rows.training.owner)
    assert 6 <= len(tested) <= 14
    assert found.rows.folding.kind == "nodes"
    assert_disjoint(found.rows.folding, len(found.rows.training.y))
    assert sum(held.sum() for _, held in found.rows.folding.folds) == len(found.rows.training.y)
    for seen, held in found.rows.folding.folds:
        assert not set(found.rows.training.owner[seen]) & set(found.rows.training.owner[held])
    others = prepared_of(table, hold=hold, test=0.25, seed=1)
    assert set(others.rows.test.owner) != tested


def test_regions_are_regions():
    """Farms lie on a line: with nodes drawn at random most held-out ones have a neighbour to learn from."""
    table = placed(farms(3, count=90))
    inside = {}
    for hold in ("nodes", "regions"):
        tested = np.unique(prepared_of(table, hold=hold).rows.test.owner)
        inside[hold] = np.mean([bool({k - 1, k + 1} - set(tested) - {-1, 90}) for k in tested])
    assert inside["regions"] < 0.6 < inside["nodes"]


def test_regions_need_places():
    with pytest.raises(InputError, match="Expected coordinates to hold out regions"):
        prepared_of(farms(), hold="regions")
    with pytest.raises(InputError, match="one rule for the test rows"):
        prepared_of(panel(), hold="nodes", time="year")


def test_marked_nodes_are_folded_by_node():
    table = farms().assign(test=lambda t: t["farm"] > "farm 05")
    found = prepared_of(table, test="test")
    assert found.rows.folding.kind == "nodes"
    assert "new nodes" in kinds(found.design.notes)
    mostly = table.assign(test=table["test"] | (table.index == 0))
    assert prepared_of(mostly, test="test").rows.folding.kind == "nodes"
    few = table.assign(test=(table["farm"] == "farm 07") | (table.index % 4 == 0))
    assert prepared_of(few, test="test").rows.folding.kind == "rows"


@pytest.mark.parametrize("dated", [False, True])
def test_marked_rows_beyond_the_training_rows_are_folded_by_time(dated):
    table = panel().assign(test=lambda t: t["year"] >= 2009, level=lambda t: t["farm"].str[-2:].astype(int))
    if dated:
        table["year"] = table["year"].astype(str) + "-06-01"
    found = prepared_of(table, test="test")
    folding = found.rows.folding
    assert folding.kind == "times"
    assert_disjoint(folding, len(found.rows.training.y))
    assert all(folding.times[seen].max() < folding.times[held].min() for seen, held in folding.folds)
    note = next(note for note in found.design.notes if note.kind == "later rows")
    assert note.values == {"column": found.rows.folding.column} == {"column": "year"}
    assert "beyond the training rows in column 'year'" in note_text(note)
    assert "year" in found.rows.columns.features


def test_a_marked_number_of_a_node_is_no_time():
    """The largest farm is held out: its size lies beyond the others, and is no time."""
    table = farms().assign(size=lambda t: t["farm"].str[-2:].astype(int), test=lambda t: t["farm"] == "farm 07")
    assert prepared_of(table, test="test").rows.folding.kind == "nodes"


def test_rows_marked_at_random_are_folded_by_row():
    table = panel().assign(test=lambda t: np.arange(len(t)) % 5 == 0)
    found = prepared_of(table, test="test")
    assert found.rows.folding.kind == "rows"
    assert "later rows" not in kinds(found.design.notes)


def test_windows_are_predicted_from_half_of_the_rows_at_least():
    rng = np.random.default_rng(0)
    for times in (rng.random(300), rng.random(300) ** 6, rng.integers(0, 4, 300), np.repeat([0.0, 1.0], [10, 290])):
        parts = list(windows(np.asarray(times, dtype=float), 3))
        assert parts
        several = len(np.unique(times)) > 3
        for before, window in parts:
            assert window.any()
            assert times[before].max() < times[window].min()
            assert before.mean() >= 0.5 or not several
        assert (parts[-1][0] | parts[-1][1]).all()


def test_a_last_time_with_many_rows_is_held_out():
    """Three years: the last has more than the share, and is the test all the same."""
    found = prepared_of(panel(3), time="year")
    assert len(np.unique(found.rows.folding.times)) == 2
    assert found.rows.held_out.mean() == pytest.approx(1 / 3)
    assert [len(held) for _, held in found.rows.folding.folds] == [16]


# ---------------------------------------------------------------------- time as a feature


@pytest.mark.parametrize("features", [None, ["rain", "soil", "year"]])
def test_the_time_is_a_feature_and_a_trend_is_learnt(features):
    """Later years are predicted: without the trend the error would be its size, two years' growth and more."""
    run = learn(panel(20), node="farm", target="yield", time="year", features=features or (), progress=False)
    assert "year" in run.columns.features
    assert run.leaderboard["error"]["pooled"] < 0.5  # noise 0.3; a step of 0.5 a year, four years ahead
    without = learn(panel(20), node="farm", target="yield", time="year", features=["rain"], progress=False)
    assert "year" not in without.columns.features
    assert without.leaderboard["error"]["pooled"] > 2.0
    assert not [note for note in run.notes if "is the time" in note]


def test_a_time_column_of_dates_has_a_trend():
    table = panel().assign(year=lambda t: pandas.to_datetime(t["year"].astype(str)))
    found = prepared_of(table, time="year")
    names = found.rows.encoder.get_feature_names_out()
    assert "year days" in names
    days = (table["year"] - pandas.Timestamp(0)).dt.days.to_numpy(dtype=float)
    train = days[~found.rows.held_out]
    np.testing.assert_allclose(found.rows.rows.X[:, names.index("year days")], (days - train.mean()) / train.std())


def test_months_are_dates():
    found = prepared_of(
        panel(36).assign(month=lambda t: [f"{2000 + k // 12 % 3}-{k % 12 + 1:02}" for k in range(len(t))])
    )
    assert found.rows.columns.dates == ("month",)
    assert "month season sin" in found.rows.encoder.get_feature_names_out()
    seasons = farms().assign(season=lambda t: np.array(["1998-99", "1999-00", "2000-01"])[np.arange(len(t)) % 3])
    assert prepared_of(seasons).rows.columns.categories == ("soil", "season")


@pytest.mark.parametrize("form", ["%m/%d/%Y", "%d/%m/%Y", "%d.%m.%Y", "%m/%d/%Y %H:%M", "quarter"])
def test_dates_as_people_write_them_are_read_like_iso(form):
    days = pandas.Series(pandas.date_range("2024-01-20", periods=96, freq="QS" if form == "quarter" else "D"))
    other = days.dt.to_period("Q").astype(str) if form == "quarter" else days.dt.strftime(form)
    iso = prepared_of(farms().assign(day=days.dt.strftime("%Y-%m-%d")), time="day")
    found = prepared_of(farms().assign(day=other), time="day")
    np.testing.assert_array_equal(found.rows.held_out, iso.rows.held_out)
    np.testing.assert_array_equal(found.rows.rows.X, iso.rows.rows.X)


def test_a_day_that_might_be_a_month_is_read_as_in_training():
    days = pandas.Series(pandas.date_range("2024-01-01", periods=96)).dt.strftime("%m/%d/%Y")
    column = prepared_of(farms().assign(day=days)).rows.encoder.dates[0]
    one = pandas.Series(["03/02/2024"])
    assert column.numbers(one)[0, 0] - column.numbers(pandas.Series(["03/01/2024"]))[0, 0] == pytest.approx(1.0)
    with pytest.raises(InputError, match="Expected dates such as 01/31/2026 in column 'day', got '2024-03-02'"):
        column.numbers(pandas.Series(["2024-03-02"]))


def test_a_time_whose_day_and_month_cannot_be_told_apart_is_refused():
    days = [f"0{k % 9 + 1}/0{k % 7 + 1}/2024" for k in range(96)]
    with pytest.raises(InputError, match="whose day and month cannot be told apart: rewrite them"):
        prepared_of(farms().assign(day=days), time="day")


def test_rows_without_a_time_are_left_out_and_that_is_noted():
    table = panel().assign(year=lambda t: t["year"].where(np.arange(len(t)) % 10 > 0))
    found = prepared_of(table, time="year")
    assert len(found.rows.rows.y) == table["year"].notna().sum()
    noted = {note.kind: note.values for note in found.design.notes}
    assert noted["rows without a time"] == {"count": int(table["year"].isna().sum())}
    assert "rows without a target" not in noted


# ---------------------------------------------------------------------- columns


def test_without_features_a_node_is_predicted_by_its_level():
    """Members with levels of nodes are right; a prediction needs the node alone."""
    rng, farm = np.random.default_rng(0), np.repeat(np.arange(12), 20)
    level = rng.normal(size=12)
    table = pandas.DataFrame(
        {"farm": [f"farm {k:02}" for k in farm], "yield": level[farm] + 0.1 * rng.normal(size=240)}
    )
    run = learn(table, node="farm", target="yield", progress=False)
    predicted = run.predict(table[["farm"]].drop_duplicates()).to_numpy()
    np.testing.assert_allclose(predicted, level, atol=0.15)
    assert run.leaderboard["error"]["final"] < 0.2 * run.leaderboard["error"]["pooled"]
    with pytest.raises(InputError, match="got columns that are empty or constant"):
        prepared_of(table.assign(rain=1.0), features="rain")


@pytest.mark.parametrize("values", [["0", "1", "2", "3+"], ["K", "1", "2", "3"], ["<1", "1", "2", "3"]])
def test_numbers_with_some_texts_are_categories(values):
    table = farms(20).assign(grade=lambda t: np.array(values)[np.arange(len(t)) % 4])
    found = prepared_of(table)
    assert "grade" in found.rows.columns.categories
    assert {f"grade_{value}" for value in values} <= set(found.rows.encoder.get_feature_names_out())


def test_a_few_texts_among_numbers_are_mistakes_and_the_rows_are_named():
    table = farms(20).assign(price=lambda t: np.arange(len(t)).astype(str))
    table.loc[[3, 17], "price"] = ["dear", "cheap"]
    with pytest.raises(InputError, match=r"numbers in column 'price', got 'dear' and .* 2 of 160 rows \(index 3, 17\)"):
        prepared_of(table)
    assert "price" in prepared_of(table, categorical="price").rows.columns.categories


def test_where_categories_begin():
    """Five per cent of texts are mistakes, one more makes a category."""
    for wrong, category in ((8, False), (9, True)):
        cells = np.array(["1", "2"] * 80, dtype=object)
        cells[:wrong] = "many"
        table = farms(20).assign(price=cells)
        if category:
            assert "price" in find_columns(table, Settings("farm", "yield")).categories
        else:
            with pytest.raises(InputError, match="'many' and the like in 8 of 160 rows"):
                find_columns(table, Settings("farm", "yield"))


def test_marks_of_missing_numbers():
    table = farms(20).assign(price=lambda t: np.where(np.arange(len(t)) % 3 == 0, "?", t["rain"].astype(str)))
    found = prepared_of(table)
    assert "price" in found.rows.columns.numbers
    names = found.rows.encoder.get_feature_names_out()
    assert "missingindicator_price" in names
    kept = found.rows.rows.X[:, names.index("price")]
    assert np.corrcoef(kept[np.arange(160) % 3 > 0], table["rain"][np.arange(160) % 3 > 0])[0, 1] > 0.9999
    assert len(np.unique(kept[::3])) == 1


def test_a_column_without_values_is_left_out():
    found = prepared_of(farms().assign(comment=np.nan))
    assert "comment" not in found.rows.columns.features
    assert "empty column" in kinds(found.design.notes)


# ---------------------------------------------------------------------- targets


def counts(seed=0):
    rng, table = np.random.default_rng(seed), farms(30)
    return table.assign(**{"yield": rng.poisson(np.exp(0.5 + 0.7 * table["rain"]))})


def test_losses_are_those_of_scikit_learn():
    rng = np.random.default_rng(0)
    y, mean = rng.poisson(2.0, size=50).astype(float), rng.gamma(2.0, size=50)
    count = Target(kind="count")
    assert count.loss(mean, y).mean() == pytest.approx(mean_poisson_deviance(y, mean))
    quantile = Target((), 3.0, 2.0, "quantile", 0.8)
    said, truth = rng.normal(size=50), rng.normal(size=50)
    expected = mean_pinball_loss(quantile.decode(truth), quantile.decode(said), alpha=0.8)
    assert quantile.loss(said, truth).mean() == pytest.approx(expected)
    assert quantile.shown(4.0) == count.shown(4.0) == 4.0
    assert Target().shown(4.0) == 2.0


def test_counts_are_predicted_as_means():
    table = counts()
    run = learn(table, node="farm", target="yield", task="count", features=["rain"], lam=1.0, folds=2, progress=False)
    said = run.predict(table)
    assert (said > 0).all()
    tested = run.predictions["row"]
    deviance = Target(kind="count").loss(run.predictions["pooled"].to_numpy(), table["yield"][tested].to_numpy(float))
    by_node = pandas.Series(deviance).groupby(run.predictions["node"]).mean()
    assert run.leaderboard["error"]["pooled"] == pytest.approx(by_node.mean())
    constant = Target(kind="count").loss(
        np.full(len(tested), table["yield"].mean()), table["yield"][tested].to_numpy(float)
    )
    assert deviance.mean() < 0.8 * constant.mean()


@pytest.mark.parametrize("level", [0.1, 0.9])
def test_quantiles_are_above_their_share_of_rows(level):
    table = farms(60, seed=3)
    run = learn(table, node="farm", target="yield", task="quantile", quantile=level, features=["rain", "soil"],
                lam=1.0, folds=2, progress=False)  # fmt: skip
    below = (table["yield"] <= run.predict(table, role="pooled")).mean()
    assert below == pytest.approx(level, abs=0.05)


def test_the_kind_is_read_from_training_rows():
    """Test rows hold a third value: the training rows have two, and these are the classes."""
    table = farms().assign(test=lambda t: np.arange(len(t)) % 4 == 0, **{"yield": np.arange(96) % 2})
    table.loc[4, "yield"] = 7
    found = prepared_of(table, test="test")
    assert found.rows.target.classes == (0, 1)
    assert "test rows of unseen classes" in kinds(found.design.notes)
    spoilt = table.assign(**{"yield": table["yield"].where(~table["test"], np.arange(96) + 0.5)})
    spoilt.loc[8, "yield"] = 1.0
    assert prepared_of(spoilt, test="test").rows.target == found.rows.target


def test_marks_of_missing_targets_are_no_targets():
    table = farms().assign(**{"yield": lambda t: t["yield"].astype(str).where(np.arange(len(t)) % 9 > 0, "?")})
    found = prepared_of(table)
    assert found.rows.target.kind == "number"
    assert len(found.rows.rows.y) == (table["yield"] != "?").sum()
    assert next(note for note in found.design.notes if note.kind == "rows without a target").values == {"count": 11}


def test_whole_numbers_with_few_values_are_numbers_and_that_is_noted():
    table = farms().assign(**{"yield": np.arange(96) % 6})
    found = prepared_of(table)
    assert found.rows.target.kind == "number"
    note = next(note for note in found.design.notes if note.kind == "whole numbers")
    assert note_text(note).startswith("The target has 6 different whole values and is read as a number")
    assert "whole numbers" not in kinds(prepared_of(table, task="regression").design.notes)
    assert prepared_of(table, task="classification").rows.target.classes == (0, 1, 2, 3, 4, 5)
    assert "classes" not in kinds(prepared_of(table.assign(**{"yield": np.arange(96) % 2})).design.notes)
    assert "classes" in kinds(prepared_of(table.assign(**{"yield": 1 + np.arange(96) % 2})).design.notes)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"task": "count"}, r"counts ≥ 0 in the target column 'yield', got .* rows \(index"),
        ({"task": "quantile", "quantile": 1.0}, "quantile"),
        ({"task": "regression", "quantile": 0.9}, "Expected the task quantile"),
        ({"task": "median"}, "task"),
        ({"hold": "cities"}, "hold"),
    ],
)
def test_targets_that_make_no_sense(settings, words):
    with pytest.raises(InputError, match=words):
        prepared_of(farms().assign(**{"yield": lambda t: t["rain"]}), **settings)


# ---------------------------------------------------------------------- notes


def test_dates_that_are_tested_at_random_are_noted():
    table = panel().assign(year=lambda t: pandas.to_datetime(t["year"].astype(str)))
    note = next(note for note in prepared_of(table).design.notes if note.kind == "dates at random")
    assert "Column 'year' has dates" in note_text(note)
    assert "dates at random" not in kinds(prepared_of(table, time="year").design.notes)
    assert "dates at random" not in kinds(prepared_of(farms()).design.notes)


def test_few_times_in_the_test_are_noted():
    note = next(note for note in prepared_of(panel(20), time="year").design.notes if note.kind == "few times")
    assert note.values == {"count": 4}
    assert note_text(note).startswith("Different times in the test: only 4.")
    assert "few times" not in kinds(prepared_of(panel(60), time="year").design.notes)


def test_a_rare_class_is_noted():
    table = farms(60).assign(**{"yield": lambda t: np.where(np.arange(len(t)) % 40 == 0, "rare", "often")})
    found = prepared_of(table)
    assert (found.rows.test.y == 1).sum() < 10 <= (found.rows.test.y == 0).sum()
    note = next(note for note in found.design.notes if note.kind == "rare class")
    assert note_text(note).startswith("Of class 'rare' fewer than 10 rows are tested")
    balanced = table.assign(**{"yield": np.where(np.arange(len(table)) % 2, "a", "b")})
    assert "rare class" not in kinds(prepared_of(balanced).design.notes)


@pytest.mark.parametrize("rows", [1000, 60])
def test_numbers_far_from_all_others_are_told(rows):
    """A comma in the wrong place is told, a rare 1 among zeros is not, also where rows are few."""
    rng = np.random.default_rng(0)
    price, y = rng.normal(size=(2, rows))
    table = pandas.DataFrame({"farm": list("ab") * (rows // 2), "price": price, "rare": 0, "yield": y})
    table.loc[3, ["price", "rare"]] = 1000, 1
    note = next(note for note in prepared_of(table).design.notes if note.kind == "far numbers")
    assert note.values == {"columns": ["price"], "count": 1}
    assert "more than ten deviations from the mean of its column: 1; columns 'price'." in note_text(note)
    assert "far numbers" not in kinds(prepared_of(table.assign(price=price)).design.notes)


def test_nodes_on_different_scales_are_noted():
    table = farms(20)
    assert "different scales" not in kinds(prepared_of(table).design.notes)
    number = table["farm"].str[-2:].astype(int)
    scaled = table.assign(**{"yield": table["yield"] * 3.0**number})
    assert "different scales" in kinds(prepared_of(scaled).design.notes)
    few = farms(3, count=40)  # three rows a node: deviations differ by chance, not tenfold
    assert "different scales" not in kinds(prepared_of(few).design.notes)


# ---------------------------------------------------------------------- what can be read in two ways


def written(place, text, name="t.csv"):
    (place / name).write_text(text)
    return place / name


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("node,a,y,y\n1,2,3,4\n", "got 'y' twice: rename one of them"),
        ('node,"y",y\n1,2,3\n', "got 'y' twice"),
        ("node,a,y\n1,2,3,4\n2,3,4,5\n", "its 3 names, got 4 cells in the first: name all columns"),
        ("node,a,y\n1,2,3\n2,3,4,5\n", "Expected 3 fields in line 3, saw 4"),
        ("n;y\na;1,5\nb;1.234\n", "got '1,5' and '1.234': write them with a decimal point"),
        ("n;y\na;1,5\nb;1.234,5\n", "got '1,5' and '1.234,5'"),
        ("n;y\na;1.234,5\n", "got '1.234,5': write them with a decimal point"),
        ("n;y\na;1,5\nb;2.5\n", "got '1,5' and '2.5'"),
        ("n;x;y\na;1,5;2.5\n", "got '1,5' and '2.5'"),
        ("n;y\na;1.234\nb;2.345\n", "got '1.234': write 1234, or 1.2340 for less than a thousand"),
        ("n\ty\na\t1,234\n", "got '1,234': write 1234, or 1.2340"),
        ('n,y\na,"1,5"\nb,"2,5"\n', "got '1,5'"),
        ("x" * 2_000_000, "a line of 1,000,000 characters and more"),
    ],
)
def test_what_can_be_read_in_two_ways_is_refused(text, words, tmp_path):
    with pytest.raises(InputError, match=r"^Expected [^\n]+") as refused:
        read_table(written(tmp_path, text))
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("n;y\na;1,5\nb;2\n", [1.5, 2.0]),
        ("n;y\na;1,5\nb;1,234\n", [1.5, 1.234]),  # the first tells what the second is
        ("n;y\na;1.5\nb;1.234\n", [1.5, 1.234]),
        ("n;x;y\na;0.5;1.234\nb;1;2.345\n", [1.234, 2.345]),
        ("n|y\na|1234\nb|-7e-3\n", [1234.0, -0.007]),
        ("n,y\na,1.234\nb,2.345\n", [1.234, 2.345]),
        ("n;d;y\na;01.02.2026;1,5\nb;02.02.2026;2,5\n", [1.5, 2.5]),
    ],
)
def test_numbers_that_can_be_read_in_one_way(text, values, tmp_path):
    assert read_table(written(tmp_path, text))["y"].tolist() == values


@pytest.mark.parametrize("late", ["007", " 007", "1E5", "0", "00"])
@pytest.mark.parametrize("first", [3, 12_000])
def test_codes_are_names_wherever_they_stand(late, first, tmp_path):
    numbers = [*range(1, first), 100_000]
    found = read_table(written(tmp_path, "node,y\n" + "".join(f"{k},1.5\n" for k in numbers) + f"{late},2\n"))["node"]
    assert found.nunique() == len(numbers) + 1
    if late != "0":
        assert found.tolist() == [*map(str, numbers), late]


def test_doubtful_bytes_are_seen_across_pieces():
    for text in ("1,2\n" * 5 + "007,1\n", "a,1\nb, 01\n", "1E5,1\n", '"01",1\n'):
        raw = b"\n" + text.encode()
        assert has_doubtful_numeral(raw, ",")
        for cut in range(1, len(raw)):
            pieces = raw[:cut], raw[max(cut - 100, 0) :]
            assert any(has_doubtful_numeral(piece, ",") for piece in pieces if len(piece) > 3)
    assert not has_doubtful_numeral(b"\nnode,date,y\n10,2026-01-05 00:01:02,-0.5e-3\n", ",")


def test_bombs_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("kinfolk.tables.reading.UNPACKED", 1_000_000)
    monkeypatch.setattr("kinfolk.tables.reading.TIMES", 1)
    table = pandas.DataFrame({"node": 0.0, "y": np.zeros(200_000)})
    for name in ("t.csv.gz", "t.csv.bz2", "t.csv.xz"):
        table.to_csv(tmp_path / name, index=False)
    table.to_parquet(tmp_path / "t.parquet")
    table.to_json(tmp_path / "t.jsonl.gz", orient="records", lines=True)
    for file in tmp_path.iterdir():
        with pytest.raises(InputError, match="unpack to more than 1,000,000: unpack it yourself"):
            read_table(file)
    monkeypatch.setattr("kinfolk.tables.reading.TIMES", 10**6)
    assert all(len(read_table(file)) == 200_000 for file in tmp_path.iterdir())


def test_nodes_that_look_the_same_are_refused():
    for one, other in (("a", "a "), ("caf\u00e9", "cafe\u0301")):
        table = pandas.DataFrame({"n": [one, other] * 20, "x": np.arange(40.0), "y": np.arange(40.0) ** 2})
        with pytest.raises(InputError, match="differ by more than spaces"):
            learn(table, node="n", target="y", progress=False)


# ---------------------------------------------------------------------- values that are no numbers, or too large


def numbers_table(**columns):
    rng = np.random.default_rng(0)
    table = pandas.DataFrame({"n": np.repeat(list("abcd"), 12), "x": rng.normal(size=48), "y": rng.normal(size=48)})
    return table.assign(**columns)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"x": np.arange(48) * (1 + 2j)}, "Expected real numbers in 'x', got complex"),
        ({"x": [1 + 2j] * 48}, "Expected real numbers in 'x', got complex"),
        ({"y": np.arange(48) * (1 + 2j)}, "few classes in the target column 'y'"),
        ({"x": [np.ones(2)] * 48}, "one value in each cell of 'x'"),
        ({"n": [{"a": 1}] * 48}, "one value in each cell of 'n'"),
        ({"y": [[1]] * 48}, "one value in each cell of 'y'"),
        ({"x": [b"a", b"b"] * 24}, "Expected texts in 'x', got bytes"),
        ({"x": np.arange(48) * 1e200}, "up to 1e+100 in 'x'"),
        ({"y": np.arange(48) * 1e200}, "up to 1e+100 in 'y'"),
        ({"y": np.arange(48) * 1e-200}, "differs by more than 1e-100"),
        ({"x": np.where(np.arange(48) == 3, np.inf, 1.0)}, "finite numbers in 'x'"),
        ({"x": ["inf", *map(str, range(47))]}, "finite numbers in column 'x'"),
    ],
)
def test_values_that_cannot_be_learnt_from(columns, words):
    with pytest.raises(InputError, match=r"^Expected [^\n]+") as refused:
        learn(numbers_table(**columns), node="n", target="y", members="pooled,slopes", progress=False)
    assert words in str(refused.value)


def test_dates_of_any_year():
    days = pandas.Series([datetime.date(1, 1, 1), datetime.date(9999, 12, 31), None])
    expected = [-62_135_596_800, 253_402_214_400, np.nan]
    np.testing.assert_array_equal(as_times(days), expected)
    np.testing.assert_array_equal(as_times(days.astype("string")), expected)


def test_a_date_that_is_a_number_is_refused_at_predict():
    table = numbers_table(day=pandas.date_range("2026-01-01", periods=48).strftime("%Y-%m-%d"))
    run = learn(table, node="n", target="y", lam=1.0, folds=2, members="pooled,slopes", progress=False)
    with pytest.raises(InputError, match=r"Expected dates such as 2026-01-31 in column 'day', got 20260131: rewrite"):
        run.predict(table.assign(day=20260131))
    basic = table.assign(day=table["day"].str.replace("-", ""))  # as text it is a way to write dates
    assert (run.predict(basic) == run.predict(table)).all()


def test_a_category_never_seen_is_halfway_between_two():
    table = numbers_table(size=["s", "m"] * 24)
    run = learn(table, node="n", target="y", lam=1.0, folds=2, members="pooled", progress=False)
    sizes = {size: run.predict(table.assign(size=size), role="pooled") for size in ("s", "m", "xl")}
    np.testing.assert_allclose(sizes["xl"], (sizes["s"] + sizes["m"]) / 2, atol=1e-12)
    assert np.abs(sizes["s"] - sizes["m"]).max() > 1e-6


def test_edges_from_a_node_to_itself_alone_are_refused():
    with pytest.raises(InputError, match="only edges from a node to itself"):
        learn(numbers_table(), node="n", target="y", edges=[("a", "a"), ("b", "b")], progress=False)


def test_one_odd_value_among_equal_ones_ends():
    """As two classes, and as a number; nodes with one class only have no best parameters without a ridge."""
    y = np.where(np.arange(48) == 0, 1.0, 3.25)  # a training row
    for task in ("auto", "regression"):
        run = learn(numbers_table(y=y), node="n", target="y", task=task, folds=2, test=0.25, progress=False)
        assert np.isfinite(run.leaderboard["error"]).all()


def test_predict_wants_a_table():
    run = learn(numbers_table(), node="n", target="y", lam=1.0, folds=2, members="pooled", progress=False)
    for given in (np.ones((3, 2)), [[1, 2]], None, {"n": ["a"]}):
        with pytest.raises(InputError, match="Expected a data frame with the node and the features, got"):
            run.predict(given)
    with pytest.raises(InputError, match="Expected text for the setting 'features', got 5"):
        learn(numbers_table(), node="n", target="y", features=5, progress=False)
