"""The encoder beside the pipeline of scikit-learn that it stands for."""

import json

import numpy as np
import pandas
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

from kinfolk.checks import InputError
from kinfolk.tables.columns import Columns
from kinfolk.tables.encoding import DAY, FARTHEST, PERIODS, Encoder, plain

COLUMNS = Columns(
    "node", "y", ("price", "area", "empty", "same"), ("two", "three", "many", "tied", "one"), ("day", "end"), (), "end",
    None, (),
)  # fmt: skip


def table(rows, seed, letters=3):
    """Missing numbers and dates, two, three and many categories, some as frequent as others, and constants."""
    rng = np.random.default_rng(seed)
    days = pandas.Timestamp("2026-01-01") + pandas.to_timedelta(rng.integers(0, 400, size=rows), unit="D")
    frame = pandas.DataFrame({
        "price": rng.normal(size=rows),
        "area": 1e6 + 1e-3 * rng.normal(size=rows),
        "empty": np.nan,
        "same": 0.1,
        "two": rng.choice(["no", "yes"], size=rows),
        "three": rng.choice(list("abcdefgh")[:letters], size=rows),
        "many": [f"v{int(k)}" for k in rng.exponential(12, size=rows)],
        "tied": [f"t{k % 40}" for k in range(rows)],
        "one": "only",
        "day": pandas.Series(days).where(rng.random(rows) > 0.1),
        "end": days[::-1],
    })  # fmt: skip
    frame.loc[rng.random(rows) < 0.2, "price"] = np.nan
    frame.loc[rng.random(rows) < 0.2, "three"] = None
    return frame


def seconds(column):
    return (column - pandas.Timestamp(0)).dt.total_seconds().to_numpy()


def calendar(train):
    """Days since the mean, and points on the circles of a year of days: weekday and season."""
    middle = np.nanmean(seconds(train.iloc[:, 0]))

    def turn(frame):
        times = seconds(frame.iloc[:, 0])
        times = np.where(np.isnan(times), middle, times)
        angles = [2 * np.pi * times / PERIODS[circle] for circle in ("weekday", "season")]
        parts = [f(angle) for angle in angles for f in (np.sin, np.cos)]
        return np.stack([(times - middle) / DAY, *parts], axis=1)

    return FunctionTransformer(turn)


def oracle(train):
    filled = make_pipeline(SimpleImputer(strategy="mean", add_indicator=True), StandardScaler())
    one_of = OneHotEncoder(
        drop="if_binary", max_categories=20, handle_unknown="infrequent_if_exist", sparse_output=False
    )
    return ColumnTransformer([
        ("numbers", filled, list(COLUMNS.numbers)),
        ("categories", one_of, list(COLUMNS.categories)),
        ("dates", make_pipeline(calendar(train[["day"]]), StandardScaler()), ["day"]),
        ("time", make_pipeline(calendar(train[["end"]]), StandardScaler()), ["end"]),
    ], verbose_feature_names_out=False).fit(train)  # fmt: skip


@pytest.mark.parametrize("rows", [40, 400, 4001])
@pytest.mark.filterwarnings("ignore:Skipping features without any observed values")
@pytest.mark.filterwarnings("ignore:Found unknown categories")
def test_the_numbers_are_those_of_scikit_learn(rows):
    train, new = (plain(table(rows, seed, letters), COLUMNS) for seed, letters in ((0, 3), (1, 8)))
    encoder, expected = Encoder.fit(train, COLUMNS), oracle(train)
    seen = expected.transform(train)
    always = np.where(np.ptp(seen, axis=0) == 0, seen[0], 0.0)  # the one category of a column tells nothing
    for each in (train, new):
        np.testing.assert_allclose(encoder.transform(each), expected.transform(each) - always, rtol=1e-12, atol=1e-12)
    known = [*expected.named_transformers_["numbers"].get_feature_names_out()]
    known += [*expected.named_transformers_["categories"].get_feature_names_out()]
    assert encoder.get_feature_names_out()[: len(known)] == known
    assert encoder.get_feature_names_out()[len(known) :][:2] == ["day days", "day weekday sin"]


def test_an_encoder_is_data_and_comes_back():
    train = plain(table(400, 0), COLUMNS)
    encoder = Encoder.fit(train, COLUMNS)
    again = Encoder.of(json.loads(json.dumps(encoder.to_json())), encoder.to_arrays())
    np.testing.assert_array_equal(encoder.transform(train), again.transform(train))
    assert again.get_feature_names_out() == encoder.get_feature_names_out()


def test_parts_that_do_not_fit_together():
    encoder = Encoder.fit(plain(table(400, 0), COLUMNS), COLUMNS)
    noted, arrays = encoder.to_json(), encoder.to_arrays()
    with pytest.raises(ValueError, match="does not fit"):
        Encoder.of(noted, {**arrays, "scale": arrays["scale"][:-1]})
    with pytest.raises(ValueError, match="does not fit"):
        Encoder.of(noted, {**arrays, "centre": arrays["centre"] * np.nan})
    with pytest.raises(KeyError):
        Encoder.of({**noted, "dates": [["day", 0.0, ["century"], "2026-01-31"]]}, arrays)
    with pytest.raises(ValueError, match="unknown way"):
        Encoder.of({**noted, "dates": [["day", 0.0, [], "a moon ago"]]}, arrays)


def test_infinity_is_refused():
    encoder = Encoder.fit(plain(table(40, 0), COLUMNS), COLUMNS)
    with pytest.raises(InputError, match="finite numbers in column 'price'"):
        encoder.transform(plain(table(40, 0).assign(price=np.inf), COLUMNS))


def test_numbers_of_later_times_end_ten_deviations_from_the_mean():
    columns = Columns("n", "y", ("limit", "year"), ("law",), (), (), "year", None, ())
    rows = pandas.DataFrame({"limit": [0.0] * 99 + [1.0], "year": np.arange(100.0), "law": ["no"] * 100})
    later = pandas.DataFrame({"limit": [40.0, -40.0], "year": [100.0, 101.0], "law": ["yes", "no"]})
    free = Encoder.fit(rows, columns)
    encoder = Encoder.of(json.loads(json.dumps(free.for_later_times().to_json())), free.to_arrays())
    assert (np.abs(free.transform(later)[:, 0]) > 100).all()
    assert encoder.transform(later)[:, 0].tolist() == [FARTHEST, -FARTHEST]
    np.testing.assert_array_equal(encoder.transform(later)[:, 1:], free.transform(later)[:, 1:])
    np.testing.assert_array_equal(encoder.transform(rows)[:, 2], 0.0)
    with pytest.raises(ValueError, match="end nowhere"):
        Encoder.of({**free.to_json(), "farthest": -1.0}, free.to_arrays())
