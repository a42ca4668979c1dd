"""kinfolk update: new rows and nodes join a run, with the answer of a fit from the start at the same choices."""

import dataclasses
import json

import numpy as np
import pandas
import pytest
from sklearn.linear_model import Ridge

from kinfolk import GTVMin, InputError, Tolerance, fit, learn, load
from kinfolk.engine.run import Run
from kinfolk.tables import keeping
from kinfolk.tables.workplace import REPLACED, Workplace
from test_cli import invoke
from test_table import shops

pytestmark = pytest.mark.usefixtures("few_trees")

LEARN = {"node": "shop", "target": "sales", "features": ["price", "district"], "progress": False}
FIT = ["--node", "shop", "--target", "sales", "--features", "price,district"]


def grown(rows=20, seed=3):
    """A table, and rows that come later: some of known shops, all of the last one."""
    table = shops(rows, seed=seed)
    late = (table["shop"] == "shop 7") | (table["day"] >= table["day"].max() - pandas.Timedelta(days=2))
    return table[~late], table[late]


def cold(run, new, monkeypatch, **options):
    """The same update, with nothing taken over from the models before."""
    monkeypatch.setattr(keeping, "start_from", lambda *_: None)
    return run.update(new, progress=False, **options)


@pytest.fixture(scope="module")
def run():
    return learn(grown()[0], **LEARN)


@pytest.fixture(scope="module")
def after(run):
    return run.update(grown()[1], progress=False)


# ---------------------------------------------------------------------- the answer


def test_the_answer_is_that_of_a_new_fit_at_the_same_choices(run, after):
    """The problem that was solved is the right one, and a solver that knows nothing of the run agrees."""
    old, new = grown()
    held_out = old.index.isin(run.predictions["row"])
    rows = pandas.concat([old[~held_out], new])
    network, encoded = after.network, (rows["sales"].to_numpy() - run.target.centre) / run.target.spread
    for k, name in enumerate(network.graph.names):
        mine = slice(network.data.starts[k], network.data.starts[k + 1])
        np.testing.assert_allclose(np.sort(network.data.y[mine]), np.sort(encoded[rows["shop"] == name]), atol=1e-12)
    assert after.algorithm.lam == run.algorithm.lam
    assert after.weights.to_dict() == run.weights.to_dict()
    assert after.certificate.relative < 1e-6
    afresh = fit(network, GTVMin(**vars(after.algorithm)), stop=Tolerance(1e-10), progress=False)
    np.testing.assert_allclose(after.models.w, afresh.models.w, atol=1e-7)
    assert after.history.index[-1] < afresh.history.index[-1]  # and it took fewer rounds


def test_one_model_for_all_is_the_ridge_regression_of_old_and_new_rows(run, after):
    old, new = grown()
    rows = pandas.concat([old[~old.index.isin(run.predictions["row"])], new])
    X = np.column_stack([rows["price"], rows["district"] == "south"]).astype(float)
    X[:, 0] = (X[:, 0] - run.encoder.centre[0]) / run.encoder.scale[0]
    strength = run.entries["pooled"].value[0] / 2  # ½ ridge ‖w‖² beside the sum of squares
    oracle = Ridge(alpha=strength).fit(X, rows["sales"])
    found = after.predict(rows, role="pooled")
    np.testing.assert_allclose(found, oracle.predict(X), atol=1e-6)


@pytest.mark.parametrize(
    ("change", "options"),
    [
        ("number", {}),
        ("number", {"method": "gtvmin"}),
        ("number", {"model": "tree"}),
        ("classes", {}),
        ("three classes", {}),
        ("count", {"task": "count"}),
        ("number", {"time": "day", "features": ["price", "district", "day"]}),
    ],
)
def test_all_kinds_of_targets_and_models_are_those_of_a_fit_from_the_start(change, options, monkeypatch):
    old, new = grown(12)
    edges = {"number": None, "classes": [11.0], "three classes": [10.0, 12.0], "count": None}[change]
    for part in (old, new):
        if edges is not None:
            part["sales"] = np.array(["few", "some", "many"])[np.digitize(part["sales"], edges)]
        if change == "count":
            part["sales"] = np.maximum(part["sales"].round(), 0).astype(int)
    before = learn(old, **{**LEARN, **options})
    warm = before.update(new, progress=False)
    again = cold(before, new, monkeypatch)
    asked = pandas.concat([old, new])
    for role in ("final", "tailored", "pooled", "alone"):
        if change.endswith("classes"):
            found, expected = (each.predict_proba(asked, role=role) for each in (warm, again))
        else:
            found, expected = (each.predict(asked, role=role) for each in (warm, again))
        np.testing.assert_allclose(found, expected, atol=1e-4 * before.target.spread)
    assert set(warm.changes.new_nodes) == {"shop 7"}
    assert warm.judgement.text


def test_what_changed_is_told_for_every_node(run, after):
    old, new = grown()
    changes = after.changes
    assert (changes.new_nodes, changes.new_rows, changes.parts) == (["shop 7"], len(new), (len(old), len(new)))
    predicted = run.predict(new, unknown="neighbours")
    wrong = ((predicted - new["sales"]) ** 2).groupby(new["shop"]).mean()
    np.testing.assert_allclose(changes.nodes["error_new"], np.sqrt(wrong.reindex(changes.nodes.index)))
    assert changes.error_new == pytest.approx(np.sqrt(wrong.mean()))
    assert changes.error_before == pytest.approx(run.leaderboard["error"]["final"])
    assert changes.nodes["rows_new"].to_dict() == new["shop"].value_counts().to_dict()
    assert changes.nodes["rows_before"].dropna().to_dict() == run.nodes["train_rows"].to_dict()
    total = changes.nodes["rows_before"].fillna(0) + changes.nodes["rows_new"]
    assert total.to_dict() == after.nodes["train_rows"].to_dict()
    both = pandas.concat([old, new])
    moved = (after.predict(both) - run.predict(both, unknown="neighbours")).abs().groupby(both["shop"]).mean()
    np.testing.assert_allclose(changes.nodes["change"], moved.reindex(changes.nodes.index), atol=1e-9)


def test_the_test_rows_stay_and_the_run_before_too(run, after):
    assert after.predictions["row"].tolist() == run.predictions["row"].tolist()
    assert after.predictions["target"].tolist() == run.predictions["target"].tolist()
    assert run.changes is None
    assert "shop 7" not in run.nodes.index
    assert after.predict(grown()[1]).notna().all()  # the new shop is known now


def test_two_updates_are_one(run, after):
    """Rows that come in two parts give what they give at once."""
    new = grown()[1]
    first, second = new.iloc[::2], new.iloc[1::2]
    twice = run.update(first, progress=False).update(second, progress=False)
    assert twice.changes.parts == (len(grown()[0]), len(first), len(second))
    for role in ("final", *after.weights.index):
        both = [each.predict(new.sort_index(), role=role) for each in (twice, after)]
        np.testing.assert_allclose(*both, atol=1e-5 if role != "boosted" else 1e-9)


def test_rows_that_no_longer_follow_the_old_rule_are_noticed(run):
    new = grown()[1].assign(sales=lambda rows: 20 - rows["sales"] * 3)
    changed = run.update(new, progress=False)
    assert any("fit again" in note.lower() and "clearly worse" in note for note in changed.notes)


def test_no_such_note_where_the_rule_holds(after):
    known = after.changes.nodes["rows_before"].notna()
    assert known.sum() == 7
    old, new = grown()
    calm = learn(old, **LEARN).update(new[new["shop"] != "shop 7"], progress=False)
    assert not any("clearly worse" in note for note in calm.notes)


@pytest.mark.parametrize(
    "options",
    [
        {"lam": 0.0},
        {"method": "ifca"},
        {"model": Ridge(alpha=2.0)},
        {"members": ["pooled", "tailored", Ridge(alpha=2.0)]},
        {"hold": "nodes", "test": 0.3},
        {"task": "quantile", "quantile": 0.8, "members": ["pooled", "tailored"]},
    ],
    ids=str,
)
def test_other_settings_can_be_updated_too(options):
    old, new = grown(8)
    before = learn(old, **{**LEARN, **options})
    found = before.update(new, progress=False)
    assert np.isfinite(found.predict(new)).all()
    assert set(found.entries) >= set(before.weights.index)
    notes = any("no longer that of nodes never seen" in note for note in found.notes)
    assert notes == ("hold" in options)
    assert len(found.update(shops(2, seed=11), progress=False).changes.parts) == 3


def test_new_rows_may_have_other_types_than_the_table():
    """True and false with some missing, whole numbers that become fractions, dates as text: still the same columns."""
    old, new = grown(12)
    old = old.assign(open=np.arange(len(old)) % 3 == 0, size=np.arange(len(old)) % 7)
    new = new.assign(open=None, size=0.5, day=new["day"].dt.strftime("%Y-%m-%d"))
    before = learn(old, **{**LEARN, "features": ["price", "open", "size", "day"]})
    again = before.update(new, progress=False).update(shops(2, seed=11).assign(open=True, size=1), progress=False)
    assert again.columns == before.columns
    assert np.isfinite(again.predict(new)).all()


# ---------------------------------------------------------------------- graphs


def placed(count=20, seed=0):
    rng = np.random.default_rng(seed)
    x, y = rng.uniform(0, 10, size=(2, count))
    node = np.repeat(np.arange(count), 8)
    price = rng.normal(size=len(node))
    sales = np.where(x < 5, 1.0, -1.0)[node] * price + 0.2 * rng.normal(size=len(node))
    names = [f"shop {k:02d}" for k in node]
    return pandas.DataFrame({"shop": names, "x": x[node], "y": y[node], "price": price, "sales": sales})


def test_new_nodes_join_at_their_place():
    table = placed()
    old, new = table[table["shop"] < "shop 17"], table[table["shop"] >= "shop 17"]
    before = learn(old, node="shop", target="sales", progress=False)
    found = before.update(new, progress=False)
    assert found.origin.kind == "coordinates"
    whole = learn(table.assign(held=table.index.isin(before.predictions["row"])), node="shop", target="sales",
                  test="held", progress=False)  # fmt: skip
    assert np.array_equal(found.graph.head, whole.graph.head)
    assert np.array_equal(found.graph.tail, whole.graph.tail)
    np.testing.assert_allclose(found.places, whole.places)
    known = old[old["shop"] == "shop 03"].drop(columns=["x", "y"])
    assert before.update(known.assign(price=1.5), progress=False).places.shape == (17, 2)
    with pytest.raises(InputError, match="Expected 'shop 03' where it was, the new rows have it elsewhere"):
        before.update(known.assign(price=1.5, x=99.0, y=1.0), progress=False)
    with pytest.raises(
        InputError, match="Expected coordinates of every node in columns 'x' and 'y', got none for 3 nodes"
    ):
        before.update(new.drop(columns=["x", "y"]), progress=False)
    with pytest.raises(InputError, match="Expected no edges: the graph of this run came from elsewhere"):
        before.update(new, edges=[("shop 17", "shop 01")], progress=False)


def test_new_nodes_bring_their_edges():
    old, new = grown(12)
    ring = [(f"shop {k}", f"shop {(k + 1) % 7}") for k in range(7)]
    before = learn(old, **LEARN, edges=ring)
    found = before.update(new, edges=[("shop 7", "shop 5"), ("shop 7", "shop 6")], progress=False)
    assert found.graph.edge_count == 9
    assert found.graph.degrees[found.graph.numbers(["shop 7"])[0]] == 2
    alone = before.update(new, progress=False)
    assert alone.graph.edge_count == 7
    assert np.isfinite(alone.predict(new)).all()
    with pytest.raises(InputError, match="Expected edges between nodes of the table, got 'nowhere'"):
        before.update(new, edges=[("shop 7", "nowhere")], progress=False)
    with pytest.raises(InputError, match="Expected edges with 2 columns, as before, got 3"):
        before.update(new, edges=[("shop 7", "shop 5", 1.0)], progress=False)


# ---------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda new: new[:0], "Expected new rows, got none"),
        (lambda new: new.to_dict(), "Expected a data frame of new rows, got dict"),
        (lambda new: new.drop(columns="price"), "the new rows have no 'price'"),
        (lambda new: new.drop(columns="sales"), "the new rows have no 'sales'"),
        (lambda new: new.assign(shop=None), "Expected a node in every row"),
        (lambda new: new.assign(sales=None), "Expected a target in the new rows"),
        (lambda new: new.assign(sales="dear"), "Expected finite numbers in the target column 'sales' of the new rows"),
        (lambda new: new.assign(sales=np.inf), "Expected finite numbers in the target column 'sales' of the new rows"),
        (lambda new: new.assign(price="dear"), "Expected numbers in column 'price'"),
        (lambda new: new.assign(price=np.inf), "Expected finite numbers in column 'price'"),
        (lambda new: grown()[0], "are in the table of the run, too"),
        (lambda new: pandas.concat([grown()[0], new]), "are in the table of the run, too"),
        (lambda new: pandas.concat([new, new], axis=1), "Expected columns with different names"),
    ],
)
def test_rows_that_cannot_join_are_refused(run, spoil, sentence):
    with pytest.raises(InputError, match=sentence):
        run.update(spoil(grown()[1]), progress=False)


def test_a_table_that_changed_is_refused(run, tmp_path):
    old, new = grown()
    loaded = load(run.save(tmp_path / "run"))
    with pytest.raises(InputError, match="Expected the table that the run was learnt from, a folder keeps no rows"):
        loaded.update(new)
    with pytest.raises(InputError, match=r"Expected the table that the run was learnt from \(.* rows, fingerprint"):
        loaded.update(new, table=old.assign(sales=old["sales"] + 1))
    found = loaded.update(new, table=old, progress=False)
    np.testing.assert_allclose(found.predict(new), run.update(new, progress=False).predict(new), atol=1e-7)


def test_edges_that_changed_are_refused(tmp_path):
    old, new = grown(12)
    ring = [(f"shop {k}", f"shop {(k + 1) % 7}") for k in range(7)]
    loaded = load(learn(old, **LEARN, edges=ring).save(tmp_path / "run"))
    with pytest.raises(InputError, match="Expected to find the run in its table again, got other 'edges'"):
        loaded.update(new, table=old, table_edges=ring[1:])


def test_classes_never_seen_are_refused():
    old, new = grown(12)
    old, new = (part.assign(sales=np.where(part["sales"] > 11, "many", "few")) for part in (old, new))
    with pytest.raises(InputError, match="Expected one of the classes 'few', 'many' in the target column 'sales'"):
        learn(old, **LEARN).update(new.assign(sales="none"), progress=False)


def test_rows_without_a_target_are_left_out_and_extra_columns_do_not_matter(run):
    new = grown()[1].assign(more=1)
    new.loc[new.index[:2], "sales"] = np.nan
    found = run.update(new, progress=False)
    assert found.changes.new_rows == len(new) - 2
    assert "Rows without a target, left out: 2." in found.notes
    assert found.changes.parts[-1] == len(new)
    assert found.update(shops(1, seed=8), progress=False).changes.parts[-1] == 8  # and its table is found again


# ---------------------------------------------------------------------- folders


@pytest.fixture
def files(tmp_path):
    old, new = grown(12)
    old.to_csv(tmp_path / "old.csv", index=False)
    new.to_csv(tmp_path / "new.csv", index=False)
    shops(2, seed=7, count=9).to_csv(tmp_path / "more.csv", index=False)
    assert invoke("fit", tmp_path / "old.csv", *FIT, "--out", tmp_path / "run").exit_code == 0
    return tmp_path


def test_the_command_makes_a_complete_run(files):
    result = invoke("update", files / "run", files / "new.csv", "--out", files / "second")
    assert result.exit_code == 0, result.output
    assert "1 of them new" in result.output
    assert max(map(len, result.output.splitlines())) <= max(80, len(str(files)) + 40)
    assert load(files / "run").changes is None
    run = load(files / "second")
    assert run.changes.new_nodes == ["shop 7"]
    assert run.changes.nodes["rows_new"].sum() == run.changes.new_rows
    page = (files / "second" / "report.html").read_text()
    assert "What the update changed" in page
    assert "What the update changed" not in (files / "run" / "report.html").read_text()
    for words in (["show", files / "second"], ["report", files / "second"],
                  ["predict", files / "second", files / "new.csv", "--interval", "0.9"]):  # fmt: skip
        assert invoke(*words).exit_code == 0
    shown = json.loads(invoke("show", files / "second", "--json").output)
    assert shown["leaderboard"][0]["error"] == pytest.approx(run.leaderboard["error"]["final"])


def test_updates_follow_each_other_and_all_rows_can_be_fitted_again(files):
    assert invoke("update", files / "run", files / "new.csv").exit_code == 0
    assert invoke("update", files / "run", files / "more.csv").exit_code == 0
    run = load(files / "run")
    assert len(run.changes.parts) == 3
    assert {"shop 7", "shop 8"} <= set(run.nodes.index)
    result = invoke("fit", files / "run" / "run.toml", "--out", files / "again")
    assert result.exit_code == 0, result.output
    again = load(files / "again")
    assert again.made.rows == sum(run.changes.parts)
    assert again.made.fingerprint == run.made.fingerprint
    assert again.changes is None


def test_edges_follow_too_whatever_their_columns_are_called(files):
    ring = pandas.DataFrame([(f"shop {k}", f"shop {(k + 1) % 7}") for k in range(7)], columns=["from", "to"])
    ring.to_csv(files / "ring.csv", index=False)
    pandas.DataFrame({"a": ["shop 7"], "b": ["shop 1"]}).to_csv(files / "pairs.csv", index=False)
    fitted = invoke("fit", files / "old.csv", *FIT, "--edges", files / "ring.csv", "--out", files / "ring")
    assert fitted.exit_code == 0, fitted.output
    first = invoke("update", files / "ring", files / "new.csv", "--edges", files / "pairs.csv")
    assert first.exit_code == 0, first.output
    second = invoke("update", files / "ring", files / "more.csv")
    assert second.exit_code == 0, second.output
    assert load(files / "ring").graph.edge_count == 8
    again = invoke("fit", files / "ring" / "run.toml", "--out", files / "again")
    assert again.exit_code == 0, again.output
    assert load(files / "again").graph.edge_count == 8


def test_an_update_that_is_stopped_leaves_the_run_as_it_was(files, monkeypatch):
    before = load(files / "run").predict(grown(12)[0])

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("kinfolk.tables.storage.page_html", stop)
        result = invoke("update", files / "run", files / "new.csv")
    assert result.exit_code == 130
    assert "is as it was" in result.output
    pandas.testing.assert_series_equal(load(files / "run").predict(grown(12)[0]), before)
    assert invoke("update", files / "run", files / "new.csv").exit_code == 0  # and the same command starts again
    assert load(files / "run").changes.new_nodes == ["shop 7"]
    assert not list(files.glob("*unfinished*"))


def test_what_is_not_there_is_one_sentence(files, run):
    assert "found no file" in invoke("update", files / "run", files / "nothing.csv").output
    assert "finished run" in invoke("update", files / "nothing", files / "new.csv").output
    run.save(files / "taken")
    refused = invoke("update", files / "run", files / "new.csv", "--out", files / "taken")
    assert refused.exit_code == 1
    assert "already holds a run" in " ".join(refused.output.split())
    (files / "old.csv").rename(files / "moved.csv")
    lost = invoke("update", files / "run", files / "new.csv")
    assert lost.exit_code == 1
    assert "--table" in lost.output
    found = invoke("update", files / "run", files / "new.csv", "--table", files / "moved.csv")
    assert found.exit_code == 0, found.output
    bare = run.save(files / "bare")
    assert "names none: add --table" in " ".join(invoke("update", bare, files / "new.csv").output.split())


def test_code_of_a_folder_is_not_run_unasked(files):
    (files / "mine.py").write_text(f"open({str(files / 'ran')!r}, 'w').close()\nmake = None\n")
    run, (old, new) = load(files / "run"), grown(12)
    run.settings = dataclasses.replace(run.settings, method=f"{files}/mine.py:make")
    with pytest.raises(InputError, match=r"Expected a method that kinfolk knows, .*: read that file"):
        run.update(new, table=old)
    assert not (files / "ran").exists()


def test_an_update_that_was_killed_when_only_the_name_was_missing_ends(files, monkeypatch):
    """Killed between the two renames: the folder is not there, and the same command brings the new run."""

    def killed(self):
        self.folder.replace(self.place / REPLACED)
        raise SystemExit(9)

    with monkeypatch.context() as patched:
        patched.setattr(Workplace, "take_name", killed)
        assert invoke("update", files / "run", files / "new.csv").exit_code == 9
    assert not (files / "run").exists()
    result = invoke("update", files / "run", files / "new.csv")
    assert result.exit_code == 0, result.output
    assert load(files / "run").changes.new_nodes == ["shop 7"]
    assert sorted(path.name for path in files.glob("run*")) == ["run"]


def test_runs_keep_their_rows_in_memory_alone(run, after, tmp_path):
    assert isinstance(after.runs["tailored"], Run)
    assert load(after.save(tmp_path / "run")).given is None
