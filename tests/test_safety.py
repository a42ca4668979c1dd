"""A run folder from anybody: none of its code is run, whatever it holds, and what it prints is text."""

import contextlib
import io
import json
import pickle
import shutil
import sys
import types
import zipfile

import numpy as np
import pytest
import safetensors.numpy
import skops.io
from rich.console import Console
from sklearn.linear_model import LinearRegression
from typer.testing import CliRunner

from folders import sealed
from kinfolk.checks import InputError, printable
from kinfolk.cli import app
from kinfolk.cli.printing import print_exact, print_run
from kinfolk.local_models.estimators import AsClassifier
from kinfolk.local_models.stored import load_estimators
from kinfolk.objective.linear_models import LinearModels
from kinfolk.objective.losses import Squared
from kinfolk.tables import learn, load
from kinfolk.tables.storage import FORMAT
from test_table import classes, shops

TABLE = shops(12, count=4)


def invoke(*words):
    return CliRunner().invoke(app, list(map(str, words)), env={"COLUMNS": "80"})


def refused(*words):
    """The one sentence of a command that fails."""
    result = invoke(*words)
    assert result.exit_code == 1, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert len(result.stderr.strip().splitlines()) == 1
    assert result.stderr.startswith("kinfolk: Expected")
    return result.stderr


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A run whose models are trees, and its table."""
    place = tmp_path_factory.mktemp("trees")
    TABLE.to_csv(place / "shops.csv", index=False)
    options = {"node": "shop", "target": "sales", "features": ["price"], "lam": 1.0, "folds": 2}
    learn(TABLE, model="tree", progress=False, **options).save(place / "run")
    return place


@pytest.fixture
def folder(saved, tmp_path):
    """A copy of the run to spoil."""
    shutil.copytree(saved / "run", tmp_path / "run")
    return tmp_path / "run"


# ---------------------------------------------------------------------- what an attacker writes


def node(loader, name, **fields):
    module, _, kind = name.rpartition(".")
    return {"__loader__": loader, "__module__": module, "__class__": kind, **fields}


def text(value):
    return node("JsonNode", "builtins.str", content=json.dumps(value), is_json=True)


def sequence(*items, kind="tuple"):
    return node(f"{kind.title()}Node", f"builtins.{kind}", content=list(items))


def mapping(**values):
    kinds = sequence(*(node("TypeNode", "builtins.str") for _ in values), kind="list")
    return node("DictNode", "builtins.dict", content=values, key_types=kinds)


def call(name, *arguments):
    """skops calls the name with the arguments."""
    return node("ConstructorFromReduceNode", name, content=sequence(*arguments))


class Evil:
    """Unpickling it writes a file."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return exec, (f"open({str(self.marker)!r}, 'w')",)


def pickled_array(marker):
    out = io.BytesIO()
    np.save(out, np.array([Evil(marker)], dtype=object), allow_pickle=True)
    return out.getvalue()


def touch(marker):
    return text(f"touch {marker}")


def python(marker):
    return text(f"open({str(marker)!r}, 'w')")


def own_file(marker):
    source = marker.with_name("evil.py")
    source.write_text(f"open({str(marker)!r}, 'w')\nName = 1\n")
    return text(f"{source}:Name")


def pickle_file(marker):
    source = marker.with_name("evil.pkl")
    source.write_bytes(pickle.dumps(Evil(marker)))
    return text(str(source))


def array_file(marker):
    source = marker.with_name("evil.npy")
    source.write_bytes(pickled_array(marker))
    return text(str(source))


def pipeline(step):
    scaler = node("ObjectNode", "sklearn.preprocessing._data.StandardScaler", content=mapping(scale_=step))
    steps = sequence(sequence(text("scale"), scaler), kind="list")
    return node("ObjectNode", "sklearn.pipeline.Pipeline", content=mapping(steps=steps, memory=text(None)))


RUNSTRING = "numpy.testing._private.utils.runstring"
EXPLOITS = {  # the first two ran in every version before the list of types
    "numpy's runstring": lambda marker: call(RUNSTRING, python(marker), mapping()),
    "a file by kinfolk": lambda marker: call(
        "kinfolk.tables.own_code.from_file", own_file(marker), text("it"), sequence(kind="list")
    ),
    "posix.system": lambda marker: call("posix.system", touch(marker)),
    "os.system": lambda marker: call("os.system", touch(marker)),
    "eval": lambda marker: call("builtins.eval", python(marker)),
    "exec": lambda marker: call("builtins.exec", python(marker)),
    "subprocess": lambda marker: call("subprocess.Popen", sequence(text("touch"), text(str(marker)), kind="list")),
    "joblib": lambda marker: call("joblib.numpy_pickle.load", pickle_file(marker)),
    "pandas": lambda marker: call("pandas.io.pickle.read_pickle", pickle_file(marker)),
    "numpy.load": lambda marker: call("numpy.load", array_file(marker), text(None), text(True)),
    "deep inside": lambda marker: pipeline(pipeline(call(RUNSTRING, python(marker), mapping()))),
    "a key that is called": lambda marker: node(
        "DictNode", "builtins.dict", content={python(marker)["content"][1:-1]: text(1)},
        key_types=sequence(node("TypeNode", "builtins.eval"), kind="list"),
    ),
    "a loss that is none": lambda marker: node(
        "LossNode", "posix.system", __reduce__={"args": sequence(touch(marker))}, content=mapping()
    ),
}  # fmt: skip
OTHERS = {  # what only prepares a call, or needs another version of skops
    "partial": lambda marker: node(
        "PartialNode", "functools.partial",
        content={"func": node("FunctionNode", "posix.system"), "args": sequence(touch(marker)), "kwds": mapping(),
                 "namespace": mapping()},
    ),
    "a function": lambda marker: node("FunctionNode", "posix.system"),
    "a function of scikit-learn": lambda marker: node("FunctionNode", "sklearn.utils.estimator_html_repr"),
    "a ufunc": lambda marker: node("FunctionNode", "numpy.sqrt"),
    "methodcaller": lambda marker: node("OperatorFuncNode", "operator.methodcaller", attrs=sequence(text("system"))),
    "a method": lambda marker: node(
        "MethodNode", "sklearn.pipeline.Pipeline", content={"func": "fit", "obj": pipeline(text(None))}
    ),
    "a type that is a function": lambda marker: node("TypeNode", "builtins.eval"),
    "import_module": lambda marker: call("importlib.import_module", text("antigravity")),
    "a list that is a call": lambda marker: node("ListNode", "posix.system", content=[touch(marker)]),
    "an array that is a file": lambda marker: node("NdArrayNode", "numpy.memmap", type="numpy", file="x.npy"),
    "a tree of another type": lambda marker: node(
        "TreeNode", "subprocess.Popen", __reduce__={"args": sequence(touch(marker))}, content=mapping()
    ),
    "a state that is set": lambda marker: node("ObjectNode", "types.SimpleNamespace", content=mapping(a=touch(marker))),
    "an unknown loader": lambda marker: node("RunNode", "builtins.str", content=touch(marker)),
    "a name with dots": lambda marker: {**node("ObjectNode", "sklearn.pipeline.Pipeline"), "__class__": "a.b"},
    "no texts": lambda marker: {**node("ObjectNode", "sklearn.pipeline.Pipeline"), "__class__": ["Pipeline"]},
    "a reference": lambda marker: node("CachedNode", "builtins.str", __id__=1),
    "a bit generator": lambda marker: node(
        "RandomGeneratorNode", "numpy.random._generator.Generator",
        content={"bit_generator": mapping(bit_generator=text("seed")), "seed_seq": mapping()},
    ),
    "a cache that is unpickled": lambda marker: node(
        "ObjectNode", "sklearn.pipeline.Pipeline", content=mapping(memory=text(str(marker.parent)))
    ),
    "a method by name": lambda marker: node(
        "ObjectNode", "sklearn.ensemble._stacking.StackingRegressor",
        content=mapping(stack_method_=sequence(text("fit_transform"), kind="list")),
    ),
    "attributes as pairs": lambda marker: node(
        "ObjectNode", "sklearn.pipeline.Pipeline", content=sequence(sequence(text("memory"), text("/tmp")))
    ),
    "pickled objects": lambda marker: node("NdArrayNode", "numpy.ndarray", type="numpy", file="evil.npy"),
}  # fmt: skip


def packed(gadget, marker):
    """A file of skops that is one node, and perhaps an array with pickled objects."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("evil.npy", pickled_array(marker))
        archive.writestr("schema.json", json.dumps({**gadget, "protocol": 2}))
    return out.getvalue()


def spoil(file, gadget, marker):
    """The models in a file, and beside them what an attacker adds: predictions would stay what they are."""
    with zipfile.ZipFile(file) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    schema = json.loads(files["schema.json"])
    first = next(each for each in schema["content"]["fitted"]["content"] if each["__loader__"] == "ObjectNode")
    first["content"]["content"]["extra_"] = gadget
    first["content"]["key_types"]["content"].append(node("TypeNode", "builtins.str"))
    files |= {"schema.json": json.dumps(schema).encode(), "evil.npy": pickled_array(marker)}
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    sealed(file.parents[3])


@pytest.mark.parametrize("name", EXPLOITS)
def test_the_exploits_are_real(name, tmp_path):
    """With its types trusted, as the prefixes of old trusted some, skops runs each of them."""
    marker = tmp_path / "marker"
    content = packed(EXPLOITS[name](marker), marker)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.warn", lambda *_, **__: None)
        made = skops.io.loads(content, trusted=skops.io.get_untrusted_types(data=content))
    if hasattr(made, "wait"):
        made.wait()
    assert marker.exists()


@pytest.mark.parametrize("name", EXPLOITS | OTHERS)
@pytest.mark.parametrize("kind", ["tailored", "pooled"])
def test_nothing_in_a_folder_is_run(name, kind, saved, folder, tmp_path):
    marker = tmp_path / "marker"
    gadget = (EXPLOITS | OTHERS)[name](marker)
    spoil(folder / "models" / kind / "0" / "models.skops", gadget, marker)
    with pytest.raises(InputError, match=r"^Expected "):
        load(folder)
    said = refused("predict", folder, saved / "shops.csv")
    refused("report", folder, "--out", tmp_path / "page.html")
    with pytest.raises(InputError, match=r"^Expected "):
        load_estimators(packed(gadget, marker), "a model")
    assert not marker.exists()
    if name in EXPLOITS and name != "a key that is called":
        assert "may run code" in said


@pytest.fixture(scope="module")
def linear(tmp_path_factory):
    """A run of linear models, with an estimator of the user's own among the members."""
    options = {"node": "shop", "target": "sales", "features": ["price"], "lam": 1.0, "folds": 2}
    run = learn(TABLE, progress=False, members=["pooled", "slopes", LinearRegression()], **options)
    return run.save(tmp_path_factory.mktemp("linear") / "run")


@pytest.mark.parametrize("name", EXPLOITS | OTHERS)
def test_nothing_in_a_member_is_run(name, linear, tmp_path):
    marker, folder = tmp_path / "marker", tmp_path / "run"
    shutil.copytree(linear, folder)
    content = packed((EXPLOITS | OTHERS)[name](marker), marker)
    (folder / "models" / "LinearRegression" / "estimator.skops").write_bytes(content)
    sealed(folder)
    with pytest.raises(InputError, match=r"^Expected "):
        load(folder)
    assert not marker.exists()


@pytest.mark.parametrize("name", ["../tailored", "/etc", "", "..", "a/b"])
def test_a_member_is_read_from_its_own_folder(name, linear, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(linear, folder)
    metrics = json.loads((folder / "metrics.json").read_text())
    metrics["entries"][name] = metrics["entries"].pop("slopes")
    (folder / "metrics.json").write_text(json.dumps(metrics))
    sealed(folder)
    with pytest.raises(InputError, match="is missing or damaged"):
        load(folder)


def test_the_folder_itself_still_predicts(saved):
    """The tests above fail for their gadgets alone."""
    assert invoke("predict", saved / "run", saved / "shops.csv").exit_code == 0
    assert len(load(saved / "run").predict(TABLE)) == len(TABLE)


def test_the_encoder_names_no_code(saved, folder, tmp_path):
    """The exploit of old was a file for the encoder: such a file is not looked at."""
    marker = tmp_path / "marker"
    (folder / "models" / "encoder.skops").write_bytes(packed(EXPLOITS["numpy's runstring"](marker), marker))
    assert invoke("predict", folder, saved / "shops.csv").exit_code == 0
    assert not marker.exists()
    (folder / "models" / "encoder.safetensors").unlink()
    sealed(folder)
    assert "encoder.safetensors is missing or damaged" in refused("predict", folder, saved / "shops.csv")
    assert not marker.exists()


# ---------------------------------------------------------------------- trust


def test_trust_is_for_classes_only(saved, folder, tmp_path):
    marker = tmp_path / "marker"
    for name in ("posix.system", "builtins.eval", RUNSTRING):
        gadget = node("ObjectNode", name, content=mapping(a=touch(marker)))
        with pytest.raises(InputError, match="is none: functions are never trusted"):
            load_estimators(packed(gadget, marker), "a model", [name])
        with pytest.raises(InputError, match="may run code"):
            load_estimators(packed(call(name, touch(marker)), marker), "a model", [name])
    spoil(folder / "models" / "tailored" / "0" / "models.skops", call("posix.system", touch(marker)), marker)
    refused("predict", folder, saved / "shops.csv", "--trust", "posix.system")
    assert not marker.exists()


def test_a_trusted_class_is_never_called(tmp_path):
    marker = tmp_path / "marker"
    content = packed(EXPLOITS["subprocess"](marker), marker)
    with pytest.raises(InputError, match="may run code"):
        load_estimators(content, "a model", ["subprocess.Popen"])
    assert not marker.exists()


def test_trust_is_for_what_it_names_and_nothing_else(saved, folder, tmp_path):
    spoil(
        folder / "models" / "tailored" / "0" / "models.skops",
        node("ObjectNode", "unheard.Mine", content=mapping()),
        tmp_path / "marker",
    )
    for trusted in ("unheard.Other", "unheard", "unheard.", "unheard.Mine2", "other.Mine"):
        assert "got 'unheard.Mine'" in refused("predict", folder, saved / "shops.csv", "--trust", trusted)
        with pytest.raises(InputError, match=r"got 'unheard\.Mine'.*--trust unheard\.Mine"):
            load(folder, trusted=trusted)
    assert "cannot import it" in refused("predict", folder, saved / "shops.csv", "--trust", "unheard.Mine")


def test_a_trusted_class_is_loaded(monkeypatch):
    class Own(LinearRegression):
        pass

    Own.__module__, Own.__qualname__ = "somebody_else", "Own"
    monkeypatch.setitem(sys.modules, "somebody_else", types.SimpleNamespace(Own=Own))
    model = Own().fit([[0.0], [1.0]], [0.0, 1.0])
    content = skops.io.dumps(model)
    with pytest.raises(InputError, match="somebody_else"):
        load_estimators(content, "a model")
    again = load_estimators(content, "a model", ["somebody_else.Own"])
    assert type(again) is Own
    assert again.predict([[2.0]]) == model.predict([[2.0]])


# ---------------------------------------------------------------------- files of code


@pytest.fixture
def named(folder, saved):
    """A run.toml that names a file, which writes another when it is run."""
    source, marker = folder.parent / "evil.py", folder.parent / "marker"
    source.write_text(
        f"open({str(marker)!r}, 'w')\n"
        "from sklearn.tree import DecisionTreeRegressor\nfrom kinfolk import FedRelax\n"
        "class Tree(DecisionTreeRegressor):\n    pass\ndef make(model):\n    return FedRelax(model)\n"
    )
    yield source, marker
    sys.modules.pop("evil", None)


def name_file(folder, table, **places):
    """Let run.toml name models or methods in files."""
    toml = (folder / "run.toml").read_text().replace('model = "tree"\n', "")
    lines = "".join(f"{role} = {json.dumps(place)}\n" for role, place in places.items())
    path = json.dumps(str(table))
    (folder / "run.toml").write_text(f"table = {path}\n" + toml.replace("[settings]\n", "[settings]\n" + lines))
    sealed(folder)


@pytest.mark.parametrize("role", ["model", "method", "members"])
def test_a_file_in_run_toml_is_not_run(role, named, folder, saved, tmp_path):
    source, marker = named
    place = f"{source}:make"
    name_file(folder, saved / "shops.csv", **{role: ["pooled", place] if role == "members" else place})
    again = ["fit", folder / "run.toml", "--out", tmp_path / "again"]
    wanted = f"--trust {source}"
    assert wanted in refused(*again)
    assert wanted in refused(*again, "--trust", "evil.Tree")
    assert wanted in refused(*again, "--trust", saved / "evil.py")
    assert invoke("show", folder).exit_code == 0
    if role != "method":
        assert wanted in refused("predict", folder, saved / "shops.csv")
        assert wanted in refused("report", folder, "--out", tmp_path / "page.html")
        assert wanted in refused("compare", folder / "run.toml", "--methods", "fedrelax")
        with pytest.raises(InputError, match="read that file"):
            load(folder)
    else:  # what is learnt already does not need its method
        assert invoke("predict", folder, saved / "shops.csv").exit_code == 0
    invoke("predict", folder, saved / "shops.csv", "--trust", "evil.Tree")
    assert not marker.exists()
    assert not (tmp_path / "again").exists()


def test_a_file_that_is_named_is_run(named, folder, saved, tmp_path, monkeypatch):
    source, marker = named
    name_file(folder, saved / "shops.csv", model=f"{source}:Tree", method=f"{source}:make")
    again = ["fit", folder / "run.toml", "--out", tmp_path / "again"]
    monkeypatch.chdir(tmp_path)
    assert invoke(*again, "--trust", "evil.py").exit_code == 0
    assert marker.exists()
    del sys.modules["evil"]
    assert "--trust" in refused("predict", tmp_path / "again", saved / "shops.csv")
    predicted = load(tmp_path / "again", trusted=[str(source)]).predict(TABLE)
    assert np.isfinite(predicted).all()
    assert invoke("predict", tmp_path / "again", saved / "shops.csv", "--trust", source).exit_code == 0
    assert invoke(*again, "--force", "--model", f"{source}:Tree").exit_code == 0
    assert invoke(*again, "--force", "--model", "tree", "--method", "fedrelax").exit_code == 0


def test_a_file_called_like_a_module_is_refused(folder, saved, tmp_path):
    (tmp_path / "json.py").write_text("class Model:\n    pass\n")
    assert "rename it" in refused("predict", folder, saved / "shops.csv", "--trust", tmp_path / "json.py")
    assert "no such file" in refused("predict", folder, saved / "shops.csv", "--trust", tmp_path / "nothing.py")
    assert json.dumps([]) == "[]"


# ---------------------------------------------------------------------- the format, and damage


@pytest.mark.parametrize("found", [None, 0, FORMAT + 1, "1", [FORMAT]])
def test_another_format_is_refused(found, folder, saved):
    metrics = json.loads((folder / "metrics.json").read_text())
    metrics["format"] = found
    (folder / "metrics.json").write_text(json.dumps(metrics))
    sealed(folder)
    for command in (["predict", folder, saved / "shops.csv"], ["show", folder], ["report", folder]):
        assert f"Expected a run of format {FORMAT}" in refused(*command)


def test_a_loss_is_looked_up_in_a_list(tmp_path):
    run = learn(TABLE, node="shop", target="sales", features=["price"], lam=1.0, folds=2, progress=False)
    folder = run.save(tmp_path / "run")
    file = folder / "models" / "tailored" / "0" / "models.safetensors"
    for kind, options in (
        ("Loss", "{}"), ("dataclass", "{}"), ("kinfolk.objective.losses.Squared", "{}"), ("Squared", '{"lam": 1}'),
        ("Squared", '{"ridge": "1"}'), ("Squared", "[]"), ("Squared", "{"), ("Huber", '{"delta": -1}'),
    ):  # fmt: skip
        file.write_bytes(safetensors.numpy.save({"w": run.models.w}, {"kind": kind, "options": options}))
        with pytest.raises(InputError):
            load(sealed(folder))
    file.write_bytes(safetensors.numpy.save({"w": np.zeros((2, 2))}, {"kind": "Squared", "options": "{}"}))
    with pytest.raises(InputError, match="missing or damaged"):
        load(sealed(folder))


@pytest.mark.parametrize("model", ["ridge", "tree"])
def test_damage_is_one_sentence(model, tmp_path):
    """Every file cut, and with bytes changed: a sentence, or a run, and never anything else."""
    run = learn(TABLE, node="shop", target="sales", model=model, lam=1.0, folds=2, progress=False)
    folder, rng = run.save(tmp_path / "run"), np.random.default_rng(0)
    for file in sorted(
        path for path in folder.rglob("*") if path.is_file() and path.suffix not in (".html", ".sha256")
    ):
        content = file.read_bytes()
        for k in range(16):
            spoilt = bytearray(content[: rng.integers(len(content))] if k < 6 else content)
            for place in rng.integers(0, max(len(spoilt), 1), size=2):
                spoilt[place : place + 1] = rng.bytes(1)
            file.write_bytes(spoilt)
            with contextlib.suppress(InputError):  # and nothing else
                again = load(sealed(folder))
                again.predict(TABLE)
                print_run(again, Console(file=io.StringIO()))
        file.write_bytes(content)
    assert (load(sealed(folder)).predict(TABLE) == run.predict(TABLE)).all()


def test_every_kind_of_model_comes_back(tmp_path):
    """Linear ones by FedRelax, regressors as classifiers, and nodes that all know one class only."""
    named = {"node": "shop", "target": "sales", "features": ["price"], "lam": 1.0, "folds": 2, "progress": False}
    alike = classes(TABLE).assign(sales=lambda t: np.where(t["shop"] < "shop 2", "low", "high"))
    for k, run in enumerate((
        learn(TABLE, method="fedrelax", **named),
        learn(classes(TABLE), model=AsClassifier(LinearRegression()), **named),
        learn(alike, model="tree", **named),
    )):  # fmt: skip
        again = load(run.save(tmp_path / str(k)))
        for role in ("final", "tailored", "alone", "pooled"):
            assert (again.predict(TABLE, role=role) == run.predict(TABLE, role=role)).all()


def test_a_loss_of_ones_own_is_kept_and_not_run(tmp_path):
    """The run is written, with its page; its models are refused by name."""
    run = learn(TABLE, node="shop", target="sales", features=["price"], lam=1.0, folds=2, progress=False)

    class Squared2(Squared):
        pass

    Squared2.__name__ = "Squared"
    run.runs["tailored"]._models = LinearModels(run.models.w, Squared2(reduction="sum", intercept=True))
    folder = run.save(tmp_path / "run")
    assert (folder / "report.html").is_file()
    with pytest.raises(InputError, match=r"test_safety\.Squared"):
        load(folder)


# ---------------------------------------------------------------------- what reaches a terminal

NASTY = "\x1b]0;owned\x07\x1b[31m[bold]:bomb:[/x]\u202e\x9b2J\r\x00\x0b\uffff\n"


def test_printable():
    assert printable("Zürich, λ‖·‖₂ 東京 ~") == "Zürich, λ‖·‖₂ 東京 ~"
    assert printable(NASTY).isprintable()
    assert printable("a\x1b[31m\nb") == "a\\x1b[31m\\nb"


def clean(output):
    """Whether a terminal shows nothing but text."""
    return all(character.isprintable() or character == "\n" for character in output)


def test_names_from_data_are_text(tmp_path):
    """Node names, columns and classes with escape sequences and markup: printed as escapes, kept as they are."""
    table = classes(TABLE.drop(columns=["day"])).rename(columns={"price": f"price{NASTY}"})
    table["shop"] = table["shop"] + NASTY
    table["sales"] = table["sales"] + NASTY
    table = table.rename(columns={"shop": f"shop{NASTY}", "sales": f"sales{NASTY}"}).assign(**{f"same{NASTY}": 1})
    table.to_parquet(tmp_path / "t.parquet")
    named = ["--node", f"shop{NASTY}", "--target", f"sales{NASTY}"]
    fitted = invoke("fit", tmp_path / "t.parquet", *named, "--lam", 1, "--folds", 2, "--out", tmp_path / "run")
    assert fitted.exit_code == 0, fitted.output
    shown = invoke("show", tmp_path / "run")
    assert shown.exit_code == 0
    assert "[bold]:bomb:[/x]" in "".join(shown.output.split("\n"))
    assert clean(fitted.output)
    assert clean(shown.output)
    again = load(tmp_path / "run")
    assert list(again.nodes.index) == sorted(table[f"shop{NASTY}"].unique())
    assert set(again.predict(table)) <= set(table[f"sales{NASTY}"])
    table.assign(**{f"shop{NASTY}": f"new{NASTY}"}).to_parquet(tmp_path / "new.parquet")
    assert clean(refused("predict", tmp_path / "run", tmp_path / "new.parquet"))
    assert clean(refused("fit", tmp_path / "t.parquet", "--node", f"node{NASTY}", "--target", "y", "--out", "x"))


def test_predictions_are_exact_except_on_a_terminal(capsys, monkeypatch):
    print_exact("a\x1b[31m,1\nb,=1+1")
    assert capsys.readouterr().out == "a\x1b[31m,1\nb,=1+1\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    print_exact("a\x1b[31m,1\nb,=1+1")
    assert capsys.readouterr().out == "a\\x1b[31m,1\nb,=1+1\n"
