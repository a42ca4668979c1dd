"""Estimators as bytes: everything on the list comes back bit for bit, and nothing else does."""

import contextlib
import importlib
import io
import json
import zipfile

import numpy as np
import pytest
from sklearn.base import is_classifier
from sklearn.calibration import CalibratedClassifierCV
from sklearn.cluster import Birch
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.ensemble import (
    BaggingRegressor,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    StackingRegressor,
)
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import DotProduct, Matern, PairwiseKernel, RationalQuadratic, WhiteKernel
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge, SGDClassifier, SGDRegressor
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    KBinsDiscretizer,
    OneHotEncoder,
    PolynomialFeatures,
    QuantileTransformer,
    StandardScaler,
)
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeRegressor

from kinfolk.checks import InputError
from kinfolk.local_models.estimators import OneClass, Resampled
from kinfolk.local_models.least_squares import LinearFit
from kinfolk.local_models.stored import dump_estimators, load_estimators
from kinfolk.local_models.stored_types import ESTIMATORS, TYPES

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3))
Y = X @ [1.0, 2.0, 3.0]
CLASSES = (Y > 0).astype(float) + (Y > 2)
REGRESSORS = [("a", Ridge()), ("b", DecisionTreeRegressor(max_depth=2))]
CLASSIFIERS = [("a", LogisticRegression()), ("b", LogisticRegression(C=2.0))]
SPLIT = [("a", StandardScaler(), [0, 1]), ("b", "passthrough", slice(2, 3))]
ARGUMENTS = {
    "StackingRegressor": [REGRESSORS], "VotingRegressor": [REGRESSORS], "StackingClassifier": [CLASSIFIERS],
    "VotingClassifier": [CLASSIFIERS], "FeatureUnion": [[("a", StandardScaler())]], "ColumnTransformer": [SPLIT],
    "Pipeline": [[("a", StandardScaler()), ("b", Ridge())]], "GridSearchCV": [Ridge(), {"alpha": [1.0, 2.0]}],
    "RandomizedSearchCV": [Ridge(), {"alpha": list(range(1, 12))}], "OneClass": [1.0],
    **{name: [Ridge()] for name in ("MultiOutputRegressor", "RegressorChain", "SelectFromModel", "Resampled")},
    **{name: [LogisticRegression()] for name in ("MultiOutputClassifier", "ClassifierChain", "OneVsRestClassifier",
                                                 "OneVsOneClassifier", "OutputCodeClassifier")},
}  # fmt: skip
FEW = {"n_estimators": 5}
OPTIONS = {name.rpartition(".")[2]: FEW for name in ESTIMATORS if ".ensemble._forest." in name or "._gb." in name}
OPTIONS |= {"HistGradientBoostingClassifier": {"max_iter": 5}, "HistGradientBoostingRegressor": {"max_iter": 5}}
ROWS = {
    "IsotonicRegression": X[:, 0], "KernelCenterer": X @ X.T, "LabelBinarizer": CLASSES, "LabelEncoder": CLASSES,
    **dict.fromkeys(("MultinomialNB", "ComplementNB", "CategoricalNB"), np.abs(X)),
}  # fmt: skip
WAYS = ("predict_proba", "decision_function", "predict", "transform")


def target(name, estimator):
    """What suits an estimator: classes, counts, two targets, or a number."""
    if name in ("MultiOutputClassifier", "ClassifierChain"):
        return np.stack([CLASSES > 0, CLASSES < 2], axis=1).astype(float)
    if name in ("MultiOutputRegressor", "RegressorChain") or name.startswith("MultiTask"):
        return np.stack([Y, Y + 1], axis=1)
    if name in ("PoissonRegressor", "GammaRegressor", "TweedieRegressor"):
        return np.abs(Y) + 1
    return CLASSES if is_classifier(estimator) else Y


def fitted(full_name):
    module, _, name = full_name.rpartition(".")
    kind = getattr(importlib.import_module(module), name)
    estimator = kind(*ARGUMENTS.get(name, []), **OPTIONS.get(name, {}))
    if name == "OneClass":
        return estimator, X
    rows = ROWS.get(name, X)
    return estimator.fit(rows) if rows is CLASSES else estimator.fit(rows, target(name, estimator)), rows


def same(estimator, rows):
    """Whether what comes back predicts the same, up to rounding: a product of BLAS depends, in its last bit, on where
    in memory its factors lie, for a plain copy of an estimator as well."""
    again = load_estimators(dump_estimators(estimator, "a model"), "a model")
    assert type(again) is type(estimator)
    for way in [way for way in WAYS if hasattr(estimator, way)]:
        before, after = (getattr(each, way)(rows) for each in (estimator, again))
        before, after = (each.toarray() if hasattr(each, "toarray") else each for each in (before, after))
        before, after = np.asarray(before), np.asarray(after)
        if before.dtype.kind == "f":
            np.testing.assert_allclose(after, before, rtol=1e-14, atol=1e-14 * np.nanmax(np.abs(before)))
        else:
            np.testing.assert_array_equal(after, before)


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
@pytest.mark.filterwarnings("ignore")
def test_every_estimator_on_the_list_comes_back(name):
    same(*fitted(name))


OTHERS = [
    *(HistGradientBoostingRegressor(loss=loss, max_iter=5) for loss in ("absolute_error", "gamma", "poisson")),
    HistGradientBoostingRegressor(loss="quantile", quantile=0.3, max_iter=5),
    HistGradientBoostingClassifier(max_iter=5, early_stopping=True),
    *(GradientBoostingRegressor(loss=loss, **FEW) for loss in ("absolute_error", "huber", "quantile")),
    GradientBoostingRegressor(init=Ridge(), **FEW),
    GradientBoostingClassifier(**FEW),
    *(SGDClassifier(loss=loss) for loss in ("log_loss", "modified_huber", "squared_hinge", "perceptron")),
    *(SGDRegressor(loss=loss) for loss in ("huber", "epsilon_insensitive", "squared_epsilon_insensitive")),
    *(CalibratedClassifierCV(LogisticRegression(), method=method) for method in ("sigmoid", "isotonic")),
    *(GaussianProcessRegressor(Matern() + kernel) for kernel in (WhiteKernel(), RationalQuadratic())),
    *(GaussianProcessRegressor(kernel) for kernel in (DotProduct() ** 2, 2.0 * PairwiseKernel())),
    *(MLPRegressor(hidden_layer_sizes=(4,), solver=solver) for solver in ("lbfgs", "sgd")),
    *(KNeighborsRegressor(algorithm=way, p=p) for way in ("ball_tree", "kd_tree", "brute") for p in (1, 2, 3)),
    KNeighborsClassifier(leaf_size=5),
    SVC(kernel="poly", class_weight="balanced"),
    LogisticRegression(class_weight={0.0: 1.0, 1.0: 2.0, 2.0: 1.0}),
    make_pipeline(SimpleImputer(add_indicator=True), StandardScaler(), PolynomialFeatures(), Ridge()),
    make_pipeline(KBinsDiscretizer(3, quantile_method="averaged_inverted_cdf"), Ridge()),
    make_pipeline(ColumnTransformer([("n", StandardScaler(), [0]), ("c", OneHotEncoder(), [1])]), Ridge()),
    TransformedTargetRegressor(Ridge(), transformer=QuantileTransformer(n_quantiles=10)),
    StackingRegressor(REGRESSORS, passthrough=True),
    BaggingRegressor(DecisionTreeRegressor(), max_features=2),
    Resampled(KNeighborsRegressor(), random_state=0),
]  # fmt: skip


@pytest.mark.parametrize("estimator", OTHERS, ids=lambda each: str(each)[:60])
@pytest.mark.filterwarnings("ignore")
def test_other_losses_kernels_and_trees_come_back(estimator):
    y = CLASSES if is_classifier(estimator) else np.abs(Y) + 1
    same(estimator.fit(X, y), X)


def test_lists_and_dicts_come_back():
    kept = {"a": [None, 1, 2.5, "three", True], "b": {"w": np.arange(3.0)}, "c": OneClass(2.0), "d": LinearFit(X[0])}
    again = load_estimators(dump_estimators(kept, "things"), "things")
    assert again["a"] == kept["a"]
    np.testing.assert_array_equal(again["b"]["w"], kept["b"]["w"])
    assert again["c"] == kept["c"]
    np.testing.assert_array_equal(again["d"].w, X[0])


def test_a_model_of_another_library_needs_trust():
    lightgbm = pytest.importorskip("lightgbm")
    model = lightgbm.LGBMRegressor(n_estimators=5, verbose=-1).fit(X, Y)
    content = dump_estimators(model, "a model")
    with pytest.raises(InputError, match=r"lightgbm\.basic\.Booster"):
        load_estimators(content, "a model")
    again = load_estimators(content, "a model", ["lightgbm.sklearn.LGBMRegressor", "lightgbm.basic.Booster"])
    np.testing.assert_array_equal(model.booster_.predict(X), again.booster_.predict(X))


def test_no_function_and_no_prefix_is_on_the_lists():
    for name in set().union(*TYPES.values()):
        module, _, attribute = name.rpartition(".")
        try:
            found = getattr(importlib.import_module(module), attribute, None)
        except ImportError:
            continue  # of another version of scikit-learn or NumPy
        assert found is None or isinstance(found, type), name


def test_functions_are_not_stored():
    with pytest.raises(InputError, match=r"numpy\.square.*may run code"):
        dump_estimators(FunctionTransformer(np.square).fit(X), "a transformer")
    with pytest.raises(InputError, match="cannot be stored"):
        dump_estimators(Birch(), "a model")


# ---------------------------------------------------------------------- content that is altered


def altered(estimator, change):
    """The bytes of an estimator, with a change to its schema and its files."""
    stored = io.BytesIO(dump_estimators(estimator, "a model"))
    with zipfile.ZipFile(stored) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    schema = json.loads(files["schema.json"])
    change(schema, files)
    files["schema.json"] = json.dumps(schema).encode()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return out.getvalue()


def rewritten(files, name, change):
    """A file of the archive with another array."""
    array = np.load(io.BytesIO(files[name]))
    change(array)
    out = io.BytesIO()
    np.save(out, array)
    files[name] = out.getvalue()


def attributes(node):
    return node["content"]["content"]


@pytest.mark.parametrize(
    ("field", "value"), [("left_child", 10_000), ("left_child", 0), ("right_child", -9), ("feature", 7)]
)
def test_a_tree_that_leads_out_of_memory_is_refused(field, value):
    """scikit-learn follows these numbers without a look."""

    def change(schema, files):
        nodes = attributes(attributes(schema)["tree_"])["nodes"]["file"]
        rewritten(files, nodes, lambda array: array[field].__setitem__(0, value))

    with pytest.raises(InputError, match="a tree"):
        load_estimators(altered(DecisionTreeRegressor().fit(X, Y), change), "a tree of somebody")


def test_a_tree_for_more_features_than_its_owner_has_is_refused():
    def change(schema, files):
        attributes(schema)["n_features_in_"]["content"] = "1"

    for kind in (DecisionTreeRegressor(), GradientBoostingRegressor(**FEW), HistGradientBoostingRegressor(max_iter=5)):
        with pytest.raises(InputError, match="features that its owner"):
            load_estimators(altered(kind.fit(X, Y), change), "a tree of somebody")


def test_a_tree_with_a_wrong_count_is_refused():
    def change(schema, files):
        attributes(attributes(schema)["tree_"])["node_count"]["content"] = "1000000"

    with pytest.raises(InputError, match="wrong count"):
        load_estimators(altered(DecisionTreeRegressor().fit(X, Y), change), "a tree of somebody")


def test_a_boosted_tree_that_leads_out_of_memory_is_refused():
    def change(schema, files):
        first = attributes(schema)["_predictors"]["content"][0]["content"][0]
        rewritten(files, attributes(first)["nodes"]["file"], lambda array: array["left"].__setitem__(0, 10_000))

    with pytest.raises(InputError, match="lead nowhere"):
        load_estimators(altered(HistGradientBoostingRegressor(max_iter=5).fit(X, Y), change), "a model")


def test_a_tree_of_points_that_leads_out_of_memory_is_refused():
    def change(schema, files):
        order = attributes(schema)["_tree"]["content"]["content"][1]["file"]
        rewritten(files, order, lambda array: array.__setitem__(0, 10_000))

    with pytest.raises(InputError, match="lead nowhere"):
        load_estimators(altered(KNeighborsRegressor().fit(X, Y), change), "a model")


@pytest.mark.parametrize("name", ["support_vectors_", "_dual_coef_", "_intercept_", "_n_support", "support_"])
def test_support_vectors_that_do_not_fit_together_are_refused(name):
    def change(schema, files):
        file = attributes(schema)[name]["file"]
        out = io.BytesIO()
        array = np.load(io.BytesIO(files[file]))
        np.save(out, array[:1] if name == "support_vectors_" else array[..., :1])
        files[file] = out.getvalue()

    with pytest.raises(InputError, match="support vectors"):
        load_estimators(altered(SVC().fit(X, CLASSES), change), "a model")


def test_attributes_have_plain_names():
    """NumPy drops a zero at the end of a text: such a name would stand for another one."""

    def change(schema, files):
        kinds, values = schema["content"]["key_types"]["content"], attributes(schema)
        values["tree_\0"] = values.pop("tree_")
        kinds.append(dict(kinds.pop(0), __module__="numpy", __class__="str_"))

    with pytest.raises(InputError, match="by name"):
        load_estimators(altered(DecisionTreeRegressor().fit(X, Y), change), "a tree of somebody")


def test_an_id_stands_for_nothing_else():
    """skops takes the first node with an id for all others with it."""

    def change(schema, files):
        values = attributes(schema)
        values["intercept_"]["__id__"] = values["alpha"]["__id__"]

    model = Ridge(alpha=77.0).fit(X, Y)
    again = load_estimators(altered(model, change), "a model")
    np.testing.assert_array_equal(model.predict(X), again.predict(X))


def test_content_that_unfolds_is_refused():
    content = dump_estimators(Ridge().fit(X, Y), "a model")
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    with pytest.raises(InputError, match="compressed"):
        load_estimators(packed.getvalue(), "a model")
    deep = b'{"content":' * 100_000
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("schema.json", deep)
    with pytest.raises(InputError, match="cannot be read"):
        load_estimators(packed.getvalue(), "a model")


def test_cut_or_altered_bytes_are_one_sentence():
    content = dump_estimators(DecisionTreeRegressor(max_depth=2).fit(X, Y), "a model")
    rng = np.random.default_rng(0)
    for _ in range(200):
        spoilt = bytearray(content[: rng.integers(len(content))] if rng.random() < 0.2 else content)
        for place in rng.integers(0, max(len(spoilt), 1), size=2):
            spoilt[place : place + 1] = rng.bytes(1)
        with contextlib.suppress(InputError):  # and nothing else
            load_estimators(bytes(spoilt), "a model")
