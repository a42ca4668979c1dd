"""The command line, as a user types it."""

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pandas
import pytest
from typer.testing import CliRunner

from kinfolk.algorithms.gtvmin.certificate import Certificate
from kinfolk.cli import app
from kinfolk.datasets import TABLES, named_table
from kinfolk.tables.members import boosted
from kinfolk.tables.workplace import unfinished
from test_table import shops

pytestmark = pytest.mark.usefixtures("few_trees")

FIT = ["--node", "shop", "--target", "sales", "--features", "price,district"]


def invoke(*words):
    return CliRunner().invoke(app, list(map(str, words)), env={"COLUMNS": "80"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A table, and a run on it."""
    place = tmp_path_factory.mktemp("shops")
    shops(12).to_csv(place / "shops.csv", index=False)
    result = invoke("fit", place / "shops.csv", *FIT, "--out", place / "run")
    assert result.exit_code == 0, result.output
    (place / "output.txt").write_text(result.output)
    return place


def test_fit_prints_a_leaderboard_a_judgement_and_the_page(folder):
    output = (folder / "output.txt").read_text()
    for words in (
        "the blend of all members",
        "tailored models on the graph",
        "random intercepts and slopes",
        "rival: boosting",
        "every node alone",
        "one model for all",
        "control",
        "report.html",
    ):
        assert words in output
    assert re.search("Learning together|No clear difference", output)
    assert max(map(len, output.splitlines())) <= max(80, len(str(folder)) + 40)
    assert (folder / "run" / "report.html").stat().st_size > 1_000


def test_show_prints_the_same_and_json_for_programs(folder):
    shown = invoke("show", folder / "run")
    assert shown.exit_code == 0
    assert shown.output.split("The page")[0].strip() in (folder / "output.txt").read_text()
    found = json.loads(invoke("show", folder / "run", "--json").stdout)
    assert found["judgement"]["verdict"] in ("helps", "no clear difference", "does not help")
    assert found["leaderboard"][0]["name"] == "final"


def test_a_run_repeats_itself_from_its_toml(folder, tmp_path):
    again = invoke("fit", folder / "run" / "run.toml", "--out", tmp_path / "again", "--json")
    assert again.exit_code == 0, again.output
    before = json.loads((folder / "run" / "metrics.json").read_text())["leaderboard"]
    after = json.loads(again.stdout)["leaderboard"]
    assert [{**row, "seconds": 0} for row in before] == [{**row, "seconds": 0} for row in after]


def test_predict(folder, tmp_path):
    result = invoke("predict", folder / "run", folder / "shops.csv")
    assert result.exit_code == 0
    assert result.output.splitlines()[0] == "shop,predicted sales"
    assert len(result.output.splitlines()) == 97
    bands = invoke("predict", folder / "run", folder / "shops.csv", "--interval", 0.9)
    assert bands.output.splitlines()[0] == "shop,predicted sales,low,high"
    table = pandas.read_csv(io.StringIO(bands.output))
    assert (table["low"] < table["predicted sales"]).all()
    assert (table["predicted sales"] < table["high"]).all()
    assert "between 0 and 1" in invoke("predict", folder / "run", folder / "shops.csv", "--interval", 90).stderr
    one = invoke("predict", folder / "run", folder / "shops.csv", "--role", "slopes")
    assert one.exit_code == 0
    assert one.output != result.output
    for name in ("p.csv", "p.parquet", "p.csv.gz"):
        assert invoke("predict", folder / "run", folder / "shops.csv", "--out", tmp_path / name).exit_code == 0
        assert (tmp_path / name).is_file()
    assert len(pandas.read_csv(tmp_path / "p.csv.gz")) == 96
    shops(2).assign(shop="new").to_csv(tmp_path / "new.csv", index=False)
    refused = invoke("predict", folder / "run", tmp_path / "new.csv")
    assert refused.exit_code == 1
    assert "--unknown pooled" in refused.stderr
    assert invoke("predict", folder / "run", tmp_path / "new.csv", "--unknown", "pooled").exit_code == 0


def test_report_writes_the_page_again(folder, tmp_path):
    result = invoke("report", folder / "run", "--out", tmp_path / "page.html")
    assert result.exit_code == 0
    assert (tmp_path / "page.html").stat().st_size > 1_000


def test_compare(folder):
    result = invoke("compare", folder / "shops.csv", *FIT, "--methods", "gtvmin,fedrelax,ifca")
    assert result.exit_code == 0, result.output
    for words in ("gtvmin", "fedrelax", "ifca", "every node", "one model"):
        assert words in result.output
    assert max(map(len, result.output.splitlines())) <= 80


def test_a_run_that_is_there_is_kept(folder):
    result = invoke("fit", folder / "shops.csv", *FIT, "--out", folder / "run")
    assert result.exit_code == 1
    assert "--force" in result.stderr


def test_a_model_and_a_method_of_ones_own(folder, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from sklearn.linear_model import Ridge\n"
        "from kinfolk import GTVMin, AbsoluteNorm\n"
        "class Mine(Ridge):\n    pass\n"
        "def method(loss):\n    return GTVMin(loss, AbsoluteNorm())\n"
    )
    quick = ["--folds", "2", "--json"]
    model = invoke(
        "fit", folder / "shops.csv", *FIT, "--model", f"{tmp_path}/mine.py:Mine", *quick, "--out", tmp_path / "a"
    )
    method = invoke(
        "fit", folder / "shops.csv", *FIT, "--method", f"{tmp_path}/mine.py:method", *quick, "--out", tmp_path / "b"
    )
    assert model.exit_code == 0, model.output
    assert method.exit_code == 0, method.output
    del sys.modules["mine"]
    refused = invoke("predict", tmp_path / "a", folder / "shops.csv")
    assert refused.exit_code == 1
    assert f"--trust {tmp_path}/mine.py" in refused.stderr
    trusted = invoke("predict", tmp_path / "a", folder / "shops.csv", "--trust", tmp_path / "mine.py")
    assert trusted.exit_code == 0, trusted.output
    rows = {row["name"]: row for row in json.loads(method.stdout)["leaderboard"]}
    assert rows["tailored"]["method"] == f"{tmp_path}/mine.py:method"


def test_a_member_of_ones_own(folder, tmp_path, monkeypatch):
    """A file is named by its place, kept with the run, and run only for those who trust it."""
    (tmp_path / "kin.py").write_text("from sklearn.neighbors import KNeighborsRegressor\n"
                                     "class Near(KNeighborsRegressor):\n    pass\n")  # fmt: skip
    monkeypatch.chdir(tmp_path)
    fitted = invoke(
        "fit", folder / "shops.csv", *FIT, "--members", "pooled,slopes,kin.py:Near", "--out", "run", "--json"
    )
    assert fitted.exit_code == 0, fitted.output
    rows = {row["name"]: row for row in json.loads(fitted.stdout)["leaderboard"]}
    assert {name for name, row in rows.items() if row["part"] == "member"} == {"pooled", "slopes", "Near"}
    assert rows["Near"]["needs"] == "rows of all"
    del sys.modules["kin"]
    for words in (["predict", "run", folder / "shops.csv"], ["report", "run"], ["fit", "run/run.toml", "--out", "b"]):
        refused = invoke(*words)
        assert refused.exit_code == 1
        assert f"--trust {tmp_path}/kin.py" in refused.stderr
        assert "kin" not in sys.modules
    assert invoke("show", "run").exit_code == 0
    assert "kin" not in sys.modules
    assert invoke("predict", "run", folder / "shops.csv", "--trust", "kin.py").exit_code == 0
    again = invoke("fit", "run/run.toml", "--trust", "kin.py", "--out", "again", "--json")
    assert again.exit_code == 0, again.output
    strip = [{**row, "seconds": 0} for row in json.loads(again.stdout)["leaderboard"]]
    assert strip == [{**row, "seconds": 0} for row in rows.values()]
    del sys.modules["kin"]


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ("pooled,magic", "'magic'"),
        ("pooled,kin.py:pooled", "names of their own, got 'pooled'"),
        ("pooled,kin.py:Near,kin.py:Near", "names of their own, got 'Near'"),
        ("pooled,kin.py:boosting", "names of their own, got 'boosting'"),
        ("pooled,kin.py:Nothing", "found none"),
        ("pooled,kin.py:LogisticRegression", "Expected a regressor as a member"),
        ("pooled,kin.py:number", "fit and predict"),
    ],
)
def test_members_that_cannot_be(members, words, folder, tmp_path, monkeypatch):
    (tmp_path / "kin.py").write_text(
        "from sklearn.linear_model import LogisticRegression, Ridge as Near\npooled = boosting = Near\nnumber = 1\n"
    )
    monkeypatch.chdir(tmp_path)
    result = invoke("fit", folder / "shops.csv", *FIT, "--members", members, "--out", "run")
    sys.modules.pop("kin", None)
    assert result.exit_code == 1, result.output
    assert words in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["kin.py"] or not (tmp_path / "run").exists()


def test_an_interrupted_run_with_a_member_from_another_file_starts_anew(folder, tmp_path, monkeypatch):
    """What was kept of a member belongs to the text of its file."""

    def stopped(prepared, journal):
        journal.cached("a part", lambda: np.ones(1))
        raise KeyboardInterrupt

    monkeypatch.setattr("kinfolk.cli.jobs.learn_prepared", stopped)
    words = [
        "fit",
        folder / "shops.csv",
        *FIT,
        "--members",
        f"pooled,{tmp_path}/kin.py:Near",
        "--out",
        tmp_path / "run",
    ]
    (tmp_path / "kin.py").write_text("from sklearn.linear_model import Ridge as Near\n")
    assert invoke(*words).exit_code == 130
    assert "Resuming from" in invoke(*words).output
    (tmp_path / "kin.py").write_text("from sklearn.linear_model import Lasso as Near\n")
    refused = invoke(*words)
    sys.modules.pop("kin", None)
    assert refused.exit_code == 1
    assert "other settings" in refused.stderr


def test_other_edges_make_another_run(tmp_path, monkeypatch):
    """What was kept belongs to one graph: with the same edges a run goes on, with others it does not."""

    def stopped(prepared, journal):
        journal.cached("a part", lambda: np.ones(1))
        raise KeyboardInterrupt

    monkeypatch.setattr("kinfolk.cli.jobs.learn_prepared", stopped)
    shops(12).to_csv(tmp_path / "t.csv", index=False)
    words = ["fit", tmp_path / "t.csv", *FIT, "--edges", tmp_path / "e.csv", "--out", tmp_path / "run"]
    (tmp_path / "e.csv").write_text("a,b\nshop 0,shop 1\n")
    assert invoke(*words).exit_code == 130
    assert "Resuming from" in invoke(*words).output
    (tmp_path / "e.csv").write_text("a,b\nshop 0,shop 2\n")
    refused = invoke(*words)
    assert refused.exit_code == 1
    assert "other settings, edges or another table" in refused.stderr
    assert "Resuming from" not in invoke(*words, "--force").output


def test_names_from_data_are_printed_as_they_are(tmp_path):
    table = shops(12, count=4).rename(columns={"sales": "speed [m/s]"})
    table["shop"] = "[/" + table["shop"] + "]"
    table.to_csv(tmp_path / "t.csv", index=False)
    result = invoke("fit", tmp_path / "t.csv", "--node", "shop", "--target", "speed [m/s]", "--features", "price",
                    "--lam", 1, "--folds", 2, "--out", tmp_path / "run")  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "speed [m/s]" in result.output


# ---------------------------------------------------------------------- bad input


def bad(table, **options):
    return table, {"node": "shop", "target": "sales", **options}


BAD = {
    "missing column": (bad(shops(3), target="profit"), "Expected a column 'profit'"),
    "one node only": (bad(shops(3).assign(shop="a")), "Expected at least two nodes"),
    "no feature": (bad(shops(3).assign(price=np.nan), features="price"), "Expected a feature"),
    "constant target": (bad(shops(3).assign(sales=1.0)), "target that varies"),
    "no node in some rows": (bad(shops(3).assign(shop=lambda t: t["shop"].where(t["price"] > 0))), "in every row"),
    "no coordinates": (bad(shops(3), graph="coordinates"), "found none called lat and lon"),
    "a node without a place": (
        bad(shops(3).assign(lat=lambda t: t["price"].where(t["shop"] != "shop 3"), lon=25.0), coords="lat,lon"),
        "such as 'shop 3'",
    ),
    "not on the globe": (bad(shops(3).assign(lat=range(90, 114), lon=0.0), coords="lat,lon"), "latitude"),
    "text in a number column": (bad(shops(3).assign(price=["dear"] + ["1.5"] * 23)), "'price', got 'dear'"),
    "text in the target": (bad(shops(3).assign(sales=["dear"] + ["1.5"] * 23), task="regression"), "column 'sales'"),
    "no such model": (bad(shops(3), model="oracle"), "'oracle'"),
    "no such method": (bad(shops(3), method="magic"), "'magic'"),
    "a negative λ": (bad(shops(3), lam="-1"), "'lam' parameter"),
    "a share that is none": (bad(shops(3), test="1.5"), "share between 0 and 1"),
    "no dates": (bad(shops(3), time="district"), "Expected dates"),
    "infinity": (bad(shops(3).assign(price=np.inf)), "finite numbers"),
    "target among the features": (bad(shops(3), features="sales,price"), "other than the target"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_table_gets_one_sentence_and_leaves_nothing(name, tmp_path):
    (table, options), words = BAD[name]
    table.to_csv(tmp_path / "t.csv", index=False)
    flags = [part for option, value in options.items() for part in (f"--{option}", value)]
    result = invoke("fit", tmp_path / "t.csv", *flags, "--out", tmp_path / "run")
    assert result.exit_code == 1, result.output
    assert words in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.csv"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("t.csv", b"", "is empty"),
        ("t.csv", b"shop,sales\n", "no row"),
        ("t.csv", b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00", "Expected"),
        (
            "t.csv",
            "town,sales\nKöln,1\n".encode("latin-1"),
            "in UTF-8, got bytes that are none: save it as CSV in UTF-8",
        ),
        ("t.parquet", b"no parquet at all", "cannot be read as parquet"),
        ("t.jsonl", b"{not json", "cannot be read as jsonl"),
        ("t.csv.gz", b"no gzip", "cannot be read as csv"),
        ("t.docx", b"words", "Expected a table as CSV"),
    ],
)
def test_a_file_that_is_no_table(name, content, words, tmp_path):
    (tmp_path / name).write_bytes(content)
    result = invoke("fit", tmp_path / name, "--node", "shop", "--target", "sales", "--out", tmp_path / "run")
    assert result.exit_code == 1, result.output
    assert words in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_edges_that_do_not_fit(tmp_path):
    shops(3).to_csv(tmp_path / "t.csv", index=False)
    for content, words in (
        ("a,b\nshop 0,shop 99\n", "'shop 99'"),
        ("a\nshop 0\n", "two columns"),
        ("a,b,w\nshop 0,shop 1,-2\n", "weights > 0"),
    ):
        (tmp_path / "e.csv").write_text(content)
        result = invoke("fit", tmp_path / "t.csv", *FIT, "--edges", tmp_path / "e.csv", "--out", tmp_path / "run")
        assert result.exit_code == 1, result.output
        assert words in result.stderr
        assert not (tmp_path / "run").exists()


def test_usage_is_exit_code_2(folder):
    assert invoke("fit", folder / "shops.csv").exit_code == 2
    assert invoke("fit").exit_code == 2
    assert invoke("fit", folder / "shops.csv", "--colour", "red").exit_code == 2
    assert invoke("show", folder).exit_code == 1


def test_a_toml_that_says_nothing(tmp_path):
    for content in (
        "",
        "table = 3\n[settings",
        "[settings]\nnode = 'a'\n",
        "table='t.csv'\n[settings]\nnode='a'\nlamda=1\n",
    ):
        (tmp_path / "run.toml").write_text(content)
        result = invoke("fit", tmp_path / "run.toml")
        assert result.exit_code == 1, result.output
        assert len(result.stderr.strip().splitlines()) == 1


# ---------------------------------------------------------------------- stopping and going on


def _heeding():
    """What is started by a program in the background may ignore Ctrl-C; this one heeds it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_an_interrupted_run_goes_on(tmp_path):
    shops(30, count=16).to_csv(tmp_path / "t.csv", index=False)
    words = [sys.executable, "-m", "kinfolk", "fit", "t.csv", *FIT, "--model", "tree", "--out", "run"]
    started = subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, text=True, preexec_fn=_heeding)
    journal = unfinished(tmp_path / "run") / "journal"
    began = time.monotonic()
    while not list(journal.glob("*.safetensors")) and time.monotonic() - began < 120:
        time.sleep(0.05)
    started.send_signal(signal.SIGINT)
    _, said = started.communicate(timeout=120)
    assert started.returncode == 130, said
    assert "the same command resumes" in said
    assert not (tmp_path / "run").exists()
    kept = len(list(journal.glob("*.safetensors")))
    assert kept >= 1
    refused = invoke("fit", tmp_path / "t.csv", *FIT, "--model", "tree", "--seed", 1, "--out", tmp_path / "run")
    assert refused.exit_code == 1
    assert "other settings" in refused.stderr
    again = subprocess.run(
        words, cwd=tmp_path, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "80"}
    )
    assert again.returncode == 0, again.stderr
    assert "Resuming from" in again.stdout
    assert (tmp_path / "run" / "report.html").is_file()
    assert not unfinished(tmp_path / "run").exists()


# ---------------------------------------------------------------------- data sets and the demo


def test_data_sets_are_listed_and_written(tmp_path):
    listed = invoke("data").output
    assert all(name in listed for name in TABLES)
    assert max(map(len, listed.splitlines())) <= 80
    written = invoke("data", "counties", "--out", tmp_path / "c.csv")
    assert written.exit_code == 0
    assert "--node county --target log_turnout" in written.output
    assert len(pandas.read_csv(tmp_path / "c-edges.csv")) == 9063
    assert invoke("data", "moons").exit_code == 1


def test_data_that_do_not_come_along_need_a_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("KINFOLK_DATA", raising=False)
    assert "KINFOLK_DATA" in invoke("data", "schools").stderr
    assert "found none" in invoke("data", "schools", "--data", tmp_path).stderr


def test_every_named_table_is_as_its_source_says(shared_data):
    expected = {
        "stations": 194,
        "hospitals": 4,
        "schools": 139,
        "sensors": 207,
        "homes": 17,
        "wind": 12,
        "wind-recent": 12,
    }
    for name, count in expected.items():
        known = named_table(name, shared_data)
        assert known.frame[known.options["node"]].nunique() == count
        assert not known.frame[known.options["target"]].isna().any()


def test_the_demo_is_what_the_readme_promises(tmp_path, few_trees, monkeypatch):
    monkeypatch.setattr(boosted, "ROUNDS", few_trees)  # as everybody has them
    result = invoke("demo", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "counties" / "metrics.json").read_text())
    error = {row["name"]: row["error"] for row in found["leaderboard"]}
    assert error["final"] < 0.8 * error["pooled"]
    assert error["final"] < error["boosting"]
    assert error["tailored"] < 0.8 * error["pooled"]
    assert error["control"] > 0.95 * error["pooled"]
    assert "alone" not in error
    assert found["judgement"]["verdict"] == "helps"
    assert "No other choice of parameters lowers it" in re.sub(r"\s+", " ", result.output)


def test_commands():
    help_text = invoke("--help").output
    for command in ("fit", "predict", "show", "report", "compare", "demo", "data", "reproduce"):
        assert command in help_text
        assert max(map(len, invoke(command, "--help").output.splitlines())) <= 80
    assert invoke("version").output.strip()


def test_demo_fails_before_the_work(tmp_path):
    (tmp_path / "file").write_text("")
    for arguments in (["--out", tmp_path / "file"], ["--out", tmp_path, "--seed", "-1"]):
        result = invoke("demo", *arguments)
        assert result.exit_code in (1, 2)
        assert "error" not in result.stdout


# ---------------------------------------------------------------------- files, terminals and logs


def test_predictions_replace_only_predictions(folder, tmp_path):
    """Neither the rows, nor a file of the run, nor anything else; and no file beside it is touched."""
    shutil.copy(folder / "shops.csv", tmp_path / "shops.csv")
    (tmp_path / ".env").write_text("secret")
    (tmp_path / "letter.csv").write_text("dear,all\n1,2\n")
    words = ["predict", folder / "run", tmp_path / "shops.csv", "--out"]
    for name in ("shops.csv", "letter.csv", ".env", "."):
        before = (tmp_path / name).read_bytes() if name != "." else b""
        result = invoke(*words, tmp_path / name)
        assert result.exit_code == 1, result.output
        assert "choose another name" in result.stderr
        assert name == "." or (tmp_path / name).read_bytes() == before
    assert "something else" in invoke(*words, folder / "run" / "run.toml").stderr
    for name in ("env", "p.csv", "p.csv.gz", "p.parquet"):
        for _ in range(2):
            assert invoke(*words, tmp_path / name).exit_code == 0
    assert (tmp_path / ".env").read_text() == "secret"
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"shops.csv", ".env", "letter.csv", "env", "p.csv", "p.csv.gz", "p.parquet"}
    frames = [pandas.read_csv(tmp_path / name) for name in ("env", "p.csv", "p.csv.gz")]
    assert all(frame.equals(frames[0]) for frame in frames)


def test_a_page_replaces_only_a_page(folder, tmp_path):
    (tmp_path / "mine.html").write_text("<!doctype html><p>mine")
    result = invoke("report", folder / "run", "--out", tmp_path / "mine.html")
    assert result.exit_code == 1
    assert "holds something else" in result.stderr
    assert (tmp_path / "mine.html").read_text() == "<!doctype html><p>mine"
    for _ in range(2):
        assert invoke("report", folder / "run", "--out", tmp_path / "page.html").exit_code == 0


def test_names_that_are_formulas_are_told(folder, tmp_path):
    table = shops(12).assign(shop=lambda t: t["shop"].replace({"shop 1": "=1+1"}))
    table.to_csv(tmp_path / "t.csv", index=False)
    options = ["--lam", 1, "--folds", 2, "--members", "pooled", "--out", tmp_path / "run"]
    assert invoke("fit", tmp_path / "t.csv", *FIT, *options).exit_code == 0
    told = invoke("predict", tmp_path / "run", tmp_path / "t.csv")
    assert told.exit_code == 0
    assert "import the predictions as text" in told.stderr
    assert "=1+1" in told.stdout
    assert invoke("predict", folder / "run", folder / "shops.csv").stderr == ""


def test_what_the_system_refuses_is_one_sentence(folder, monkeypatch):
    for error, words in (
        (OSError(28, "No space left on device", "a.csv"), "the system refuses 'a.csv': No space left on device."),
        (PermissionError(13, "Permission denied"), "the system refuses: Permission denied."),
        (MemoryError(), "data that fit into memory"),
    ):
        monkeypatch.setattr("kinfolk.cli.jobs.load_results", lambda folder, error=error: (_ for _ in ()).throw(error))
        result = invoke("show", folder / "run")
        assert result.exit_code == 1
        assert words in result.stderr
        assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_any_terminal_can_show_a_run(encoding, folder):
    result = CliRunner(charset=encoding).invoke(app, ["show", str(folder / "run")], env={"COLUMNS": "80"})
    assert result.exit_code == 0
    assert b"one model for all" in result.stdout_bytes


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_predictions_are_utf_8_whatever_the_terminal(encoding, tmp_path, folder):
    table = shops(12).assign(shop=lambda t: t["shop"].str.replace("shop", "Kauppa Ö"))
    table.to_csv(tmp_path / "t.csv", index=False)
    words = ["predict", str(folder / "run"), str(tmp_path / "t.csv"), "--unknown", "pooled"]
    result = CliRunner(charset=encoding).invoke(app, words)
    assert result.exit_code == 0, result.exception
    assert pandas.read_csv(io.BytesIO(result.stdout_bytes))["shop"].tolist() == table["shop"].tolist()


def test_a_log_gets_a_line_of_progress_every_ten_seconds(capsys, monkeypatch):
    from kinfolk import progress

    clock = [0.0]
    monkeypatch.setattr(progress.time, "perf_counter", lambda: clock[0])
    with progress.progress_bar("learning", 4_000) as bar:
        for k in range(35):
            clock[0] = float(k)
            bar.update(100 * k, "residual 0.1")
    with progress.progress_bar("quiet", 10, enabled=False) as bar:
        clock[0] += 100
        bar.update(5)
    written = capsys.readouterr()
    assert written.out == ""
    assert written.err.splitlines() == [
        "learning: 1,100 of 4,000, 11 seconds, residual 0.1",
        "learning: 2,200 of 4,000, 22 seconds, residual 0.1",
        "learning: 3,300 of 4,000, 33 seconds, residual 0.1",
    ]


def test_numbers_are_printed_as_people_write_them():
    from kinfolk.report import words

    assert words.number(71_990.0, 4) == "71,990"
    assert words.seconds(7_199.4) == "7,199"
    assert "1,234,568" in str(Certificate(1_234_567.8, 1e-3, 1e-9, 1.0, False, 1.0))
