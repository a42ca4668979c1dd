"""Members of the user's own: added or instead of the usual ones, refused before work, judged as what they are."""

import dataclasses
import json
import sys
import time

import numpy as np
import pandas
import pytest
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import SplineTransformer
from typer.testing import CliRunner

from kinfolk import TailoredRegressor
from kinfolk.checks import InputError
from kinfolk.cli import app
from kinfolk.federation.tables.schema import check_settings
from kinfolk.tables import Settings, learn, load
from kinfolk.tables.members.boosted import BoostedTrees
from kinfolk.tables.members.checking import simulated_table
from kinfolk.tables.members.intercepts import NodeIntercepts
from kinfolk.tables.members.linear_fit import LinearFit
from kinfolk.tables.members.member import RowMember
from kinfolk.tables.members.own import OwnEstimator
from kinfolk.tables.members.recent import recent_members
from kinfolk.tables.members.saving import check_storable
from kinfolk.tables.members.scores import LinearScores
from kinfolk.tables.members.slopes import RandomSlopes
from kinfolk.tables.prepared import prepare
from kinfolk.testing import check_member

QUICK = {"node": "shop", "target": "sales", "folds": 2, "lam": 1.0}
FIT = ["--node", "shop", "--target", "sales", "--folds", "2", "--lam", "1"]
CODE = """
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import SplineTransformer

GAM = make_pipeline(SplineTransformer(), Ridge())

class Line(Ridge):
    pass

def double(x):
    return 2 * x

class Holds(RegressorMixin, BaseEstimator):
    def fit(self, X, y):
        self.double_ = double
        return self
    def predict(self, X):
        return self.double_(X[:, 0])

class Shy(Ridge):
    def fit(self, X, y):
        if len(y) < 60:
            raise ValueError("too few")
        return super().fit(X, y)
"""


@pytest.fixture(scope="module")
def shops():
    rng = np.random.default_rng(0)
    table = pandas.DataFrame({"shop": np.repeat(list("abcdef"), 20), "price": rng.normal(size=120)})
    slope = np.repeat([1.0, 1.0, -1.0, -1.0, 1.0, -1.0], 20)
    return table.assign(sales=slope * table["price"] + 0.1 * rng.normal(size=120))


@pytest.fixture
def place(shops, tmp_path, monkeypatch):
    """A folder with a table and code of one's own."""
    shops.to_csv(tmp_path / "shops.csv", index=False)
    (tmp_path / "mine.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)  # another test may have one
    yield tmp_path
    sys.modules.pop("mine", None)


def invoke(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


# ---------------------------------------------------------------------- a list replaces, + adds


def test_a_plus_adds_and_a_list_replaces(shops):
    usual = list(learn(shops, **QUICK, progress=False).weights.index)
    line = Ridge(alpha=2.0)
    for members, expected in (
        ([line], ["Ridge"]),
        (["+", line], [*usual, "Ridge"]),
        (["pooled", line], ["pooled", "Ridge"]),
        (["+pooled"], usual),
        (["+", "pooled"], usual),
    ):
        assert list(learn(shops, **QUICK, members=members, progress=False).weights.index) == expected


@pytest.mark.parametrize(
    ("members", "named"),
    [
        ((), ["a", "b"]),
        (("b",), ["b"]),
        (("+",), ["a", "b"]),
        (("+c",), ["a", "b", "c"]),
        (("+b",), ["a", "b"]),
        (("c", "+d"), ["a", "b", "c", "d"]),
        (("+", "given: C"), ["a", "b", "given: C"]),
    ],
)
def test_names_with_and_without_a_plus(members, named):
    assert Settings("node", "y", members=members).named_members(["a", "b"]) == named


def test_who_has_own_members_only():
    for members, alone in (
        ((), False),
        (("mine.py:A", "given: B"), True),
        (("+mine.py:A",), False),
        (("+", "given: B"), False),
        (("pooled", "mine.py:A"), False),
    ):
        assert Settings("node", "y", members=members).own_members_only == alone


def test_the_command_line_adds_repeats_and_updates(place, shops):
    """The settings of a run keep the plus, and the whole path."""
    fitted = invoke("fit", "shops.csv", *FIT, "--members", "+mine.py:Line", "--out", "run", "--json")
    assert fitted.exit_code == 0, fitted.output
    members = [row["name"] for row in json.loads(fitted.stdout)["leaderboard"] if row["part"] == "member"]
    assert {"pooled", "tailored", "boosted", "Line"} <= set(members)
    assert f'"+{place}/mine.py:Line"' in (place / "run" / "run.toml").read_text()
    assert f"--members +{place}/mine.py:Line" in load("run", trusted=["mine.py"]).report("page.html").read_text()
    refused = invoke("fit", "run/run.toml", "--out", "again")
    assert f"--trust {place}/mine.py" in refused.stderr
    again = invoke("fit", "run/run.toml", "--trust", "mine.py", "--out", "again", "--json")
    assert again.exit_code == 0, again.output
    assert [row["weight"] for row in json.loads(again.stdout)["leaderboard"]] == [
        row["weight"] for row in json.loads(fitted.stdout)["leaderboard"]
    ]
    new = shops[:3].assign(price=shops["price"][:3] + 0.1)
    grown = load("run", trusted=["mine.py"]).update(
        new, table=pandas.read_csv("shops.csv"), trusted=["mine.py"], progress=False
    )
    assert "Line" in grown.weights


def test_an_updated_run_keeps_an_object_that_was_added(shops):
    run = learn(shops[:110], **QUICK, members=["+", Ridge()], progress=False)
    assert list(run.update(shops[110:], progress=False).weights.index) == list(run.weights.index)


def test_estimators_take_a_plus(shops):
    X, near = shops[["shop", "price"]], KNeighborsRegressor(5)
    y = np.sin(3 * X["price"]) + 0.3 * np.random.default_rng(0).normal(size=len(X))
    for members in (["+", near], [near]):
        weights = TailoredRegressor("shop", folds=2, lam=1.0, members=members).fit(X, y).blend_.weights
        assert weights["KNeighborsRegressor"] > 0.1
        assert (weights.drop(["pooled", "KNeighborsRegressor"], errors="ignore") > 0).any() == ("+" in members)


def test_what_is_no_member_is_told_about_the_plus(shops):
    with pytest.raises(InputError, match=r"got 'all': a list replaces the usual members, \+file.py:Name adds one"):
        learn(shops, **QUICK, members="all,mine.py:Mine", progress=False)


def test_help_tells_that_a_list_replaces():
    said = " ".join(invoke("fit", "--help").output.replace("│", " ").split())
    assert "a list replaces the usual ones, +file.py:Name adds one" in said


def test_a_federation_takes_a_plus_before_a_known_member():
    settings = Settings("shop", "sales", members=("+wide",))
    check_settings(settings)
    with pytest.raises(InputError, match=r"mine\.py:Mine"):
        check_settings(dataclasses.replace(settings, members=("+mine.py:Mine",)))


# ---------------------------------------------------------------------- what cannot be saved


@pytest.mark.parametrize(
    ("option", "named", "said"),
    [
        ("--members", "+mine.py:GAM", "Member GAM cannot be saved: it contains a SciPy function. Use a class"),
        ("--members", "pooled,mine.py:Holds", "Member Holds cannot be saved: it contains the function mine.double."),
        ("--model", "mine.py:GAM", "Model GAM cannot be saved: it contains a SciPy function."),
    ],
)
def test_what_cannot_be_saved_is_refused_before_the_work(option, named, said, place, monkeypatch):
    monkeypatch.setattr("kinfolk.cli.jobs.learn_prepared", lambda *_, **__: pytest.fail("the work began"))
    refused = invoke("fit", "shops.csv", *FIT, option, named, "--out", "run")
    assert refused.exit_code == 1
    assert said in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1
    assert sorted(path.name for path in place.iterdir()) == ["mine.py", "shops.csv"]


def test_a_trial_that_fails_refuses_nothing(place):
    """The real fit has more rows."""
    fitted = invoke("fit", "shops.csv", *FIT, "--folds", 4, "--members", "pooled,mine.py:Shy", "--out", "run")
    assert fitted.exit_code == 0, fitted.output


def test_in_python_it_is_refused_when_it_is_saved(shops, tmp_path):
    run = learn(shops, **QUICK, members=[make_pipeline(SplineTransformer(), Ridge())], progress=False)
    assert np.isfinite(run.predict(shops)).all()
    with pytest.raises(InputError, match="Member Pipeline cannot be saved: it contains a SciPy function"):
        run.save(tmp_path / "run")


def test_a_trial_is_cheap(shops):
    estimators = [Ridge(), RandomForestRegressor(), HistGradientBoostingRegressor()]
    for estimator in estimators:
        members = [f"given: {type(estimator).__name__}"]
        prepared = prepare(shops, Settings(**QUICK, members=members), members=[estimator])
        check_storable(prepared)  # the first imports skops
        seconds = []
        for _ in range(3):
            began = time.perf_counter()
            check_storable(prepared)
            seconds.append(time.perf_counter() - began)
        assert min(seconds) < 0.1


# ---------------------------------------------------------------------- the judgement


def test_own_members_alone_are_not_told_that_learning_together_fails(shops, tmp_path):
    run = learn(shops, **QUICK, members=[Ridge()], progress=False)
    judged = run.judgement
    assert (judged.verdict, judged.own, judged.control) == ("not judged", ("Ridge",), None)
    assert judged.high < 0
    assert judged.text.startswith("The ensemble is your own member 'Ridge': ")
    assert "more error than every node alone" in judged.text
    assert "Learning together" not in judged.text
    assert "whether learning together helps is not judged" in judged.text.lower()
    run.save(tmp_path / "run")
    assert load(tmp_path / "run").judgement == judged
    assert "your own member" in (tmp_path / "run" / "report.html").read_text()
    beside = learn(shops, **QUICK, members=["pooled", Ridge()], progress=False).judgement
    assert (beside.verdict, beside.own) == ("does not help", ())


# ---------------------------------------------------------------------- check_member


@pytest.mark.parametrize(
    "member",
    [
        Ridge(),
        LogisticRegression,
        NodeIntercepts(),
        RandomSlopes(),
        BoostedTrees("trees", residuals=False),
        *recent_members(),
    ],
    ids=lambda member: getattr(member, "name", str(member)),
)
def test_members_keep_their_promises(member):
    check_member(member)


class Means(RowMember):
    """The mean of every node; subclasses break a promise each."""

    name, access, parameters = "means", "own rows", ("strength",)

    def unsupported_reason(self, design):
        return None if design.target.kind == "number" and not design.timed else "only numbers"

    def values(self, training):
        return [(0.5,), (2.0,)]

    def fits(self, training, values):
        rows, w = training.rows, np.zeros((1, training.node_count, training.rows.X.shape[1] + 1))
        total = np.bincount(rows.owner, rows.y, minlength=training.node_count)
        for (strength,) in values:
            w = w.copy()
            w[0, :, -1] = total / (strength + training.data.sizes)
            yield LinearFit(LinearScores(w, training.target))


class NoName(Means):
    name = ""


class NoAccess(Means):
    access = "everything"


class NoTuple(Means):
    parameters = "strength"


class NoValues(Means):
    def values(self, training):
        return []


class WholeNumbers(Means):
    def values(self, training):
        return [(1,)]


class TwoNumbers(Means):
    parameters = ("strength", "another")


class NoTargets(Means):
    def unsupported_reason(self, design):
        return "never"


class Peeks(Means):
    def predictions(self, training, values, asked):
        return (asked.y for _ in values)


@dataclasses.dataclass
class PeekingFit:
    scores: LinearScores

    def predict(self, rows):
        return rows.y

    def predict_new_nodes(self, rows):
        return None


class PeeksLater(Means):
    def fits(self, training, values):
        for fitted in super().fits(training, values):
            yield PeekingFit(fitted.scores)


class Column(LinearFit):
    def predict(self, rows):
        return super().predict(rows)[:, None]

    predict_new_nodes = predict


class WrongShape(Means):
    def final(self, training, value):
        return Column(super().final(training, value).scores)


class NotFinite(Means):
    def final(self, training, value):
        scores = super().final(training, value).scores
        return LinearFit(dataclasses.replace(scores, w=scores.w * np.nan))


class OtherFinal(Means):
    def final(self, training, value):
        scores = super().final(training, value).scores
        return LinearFit(dataclasses.replace(scores, w=2 * scores.w))


class OtherPredictions(Means):
    def predictions(self, training, values, asked):
        for predicted in super().predictions(training, values, asked):
            yield 2 * predicted


class Changes(Means):
    def fits(self, training, values):
        found = list(super().fits(training, values))
        training.rows.y[:] = training.rows.y.mean()
        return iter(found)


class Random(Means):
    def fits(self, training, values):
        for fitted in super().fits(training, values):
            w = fitted.scores.w + np.random.default_rng().normal(size=fitted.scores.w.shape)
            yield LinearFit(dataclasses.replace(fitted.scores, w=w))


class Unstored(LinearFit):
    pass


class NoStore(Means):
    def fits(self, training, values):
        for fitted in super().fits(training, values):
            yield Unstored(fitted.scores)


@pytest.mark.parametrize(
    ("member", "said"),
    [
        (NoName, "NoName declares an empty name"),
        (NoAccess, "means must declare access as one of own rows, neighbours"),
        (NoTuple, "must declare parameters as a tuple of str"),
        (NoValues, "has no values to try"),
        (WholeNumbers, "must try tuples of floats"),
        (TwoNumbers, "one for each of its 2 parameters"),
        (NoTargets, "means supports no kind of target: never"),
        (Peeks, "held-out rows otherwise if their targets change: a leak"),
        (PeeksLater, "test rows otherwise if their targets change: a leak"),
        (WrongShape, "must predict with shape"),
        (NotFinite, "finite numbers at nodes with training rows"),
        (OtherFinal, "with final than with fits"),
        (OtherPredictions, "with fits than with predictions"),
        (Changes, "means"),
        (Random, "when it is fitted again"),
        (NoStore, "must return one of LinearFit"),
        (make_pipeline(SplineTransformer(), Ridge()), "it contains a SciPy function"),
        (RandomForestRegressor(2), "set random_state"),
    ],
    ids=lambda each: getattr(each, "__name__", "") if not isinstance(each, str) else "",
)
def test_a_broken_promise_is_named(member, said):
    with pytest.raises(AssertionError) as refused:
        check_member(member)
    assert said in str(refused.value).split("\n")[0]


def test_what_the_broken_ones_break_is_whole():
    check_member(Means)


class Constant(RegressorMixin, BaseEstimator):
    """An estimator of a module that can be imported."""

    def fit(self, X, y):
        self.mean_ = float(np.mean(y))
        return self

    def predict(self, X):
        return np.full(len(X), self.mean_)


def test_an_estimator_of_ones_own_is_saved_and_loaded(monkeypatch):
    monkeypatch.setitem(sys.modules, Constant.__module__, sys.modules[__name__])
    check_member(Constant())


# ---------------------------------------------------------------------- a member as an object


def test_a_member_is_taken_as_it_is(tmp_path):
    options = {"node": "node", "target": "target", "test": "held", "coords": ("x", "y"), "features": ("a", "b")}
    table = simulated_table("numbers")
    run = learn(table, members=["+", Means()], folds=2, lam=1.0, progress=False, **options)
    assert run.leaderboard["needs"]["means"] == "own rows"
    run.save(tmp_path / "run")
    np.testing.assert_allclose(load(tmp_path / "run").predict(table, role="means"), run.predict(table, role="means"))
    with pytest.raises(InputError, match="names of their own, got 'means' twice"):
        learn(table, members=[Means(), OwnEstimator(Ridge(), "means")], progress=False, **options)
