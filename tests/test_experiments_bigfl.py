"""Figures 10.3 and 10.4, and the question whether learning φ helps, in a small size."""

import gzip
import re

import numpy as np
import pandas
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from typer.testing import CliRunner

from kinfolk import InputError
from kinfolk.algorithms.bigfl.lower import Links
from kinfolk.cli.main import app
from kinfolk.datasets.reviews import load_reviews, load_vectors
from kinfolk.experiments import gfl_reviews
from kinfolk.experiments.gfl_reviews import BEGIN, OwnedEmbedding, draw_windows
from kinfolk.experiments.gfl_truths import linear_truth, network_truth, table_10_1

pytest.importorskip("torch")


def reproduced(name, folder, *options):
    result = CliRunner().invoke(
        app, ["reproduce", name, "--quick", "--out", str(folder), *options], env={"COLUMNS": "80"}
    )
    assert result.exit_code == 0, result.output
    shown = result.output.split("Written: ")[0]
    assert max(map(len, shown.splitlines())) <= 80
    assert (folder / f"{name}.png").stat().st_size > 10_000
    return shown, pandas.read_csv(folder / f"{name}.csv")


def test_learning_phi_from_the_command_line(tmp_path):
    """Reflected neighbours: a φ that is learnt helps; neighbours that are alike: φ = I is hard to beat."""
    shown, runs = reproduced("gfl-phi", tmp_path)
    assert "holds φ by held-out error is ahead of φ = I (linear, reflected, train" in shown
    assert "fails φ by held-out error is ahead of φ = I (linear, kin, train graph)" in shown
    ends = runs[runs["round"] == 300].set_index(["truth", "graph", "method"])["error"].sort_index()
    assert len(ends) == 2 * 2 * 8
    for graph in ("train", "homologous"):
        mirrored, alike = ends["linear, reflected", graph], ends["linear, kin", graph]
        assert mirrored["BiG-FL, φ* given"] < 0.6 * min(mirrored["BiG-FL, φ = I"], mirrored["alone"])
        assert_allclose(alike["BiG-FL, φ* given"], alike["BiG-FL, φ = I"], rtol=1e-9)
        assert alike["BiG-FL, φ = I"] < 0.3 * alike["alone"]


def test_figure_10_3_from_the_command_line(tmp_path):
    shown, runs = reproduced("gfl-fig3", tmp_path)
    assert re.search(r"^holds FeSEM is ahead of FedAvg \(10 rows, smoothed, train graph\)", shown, re.M)
    assert runs["method"].nunique() == 8
    assert set(runs["graph"]) == {"train", "homologous"}
    assert runs["round"].max() == 20


def test_figure_10_4_from_the_command_line(tmp_path, shared_data):
    shown, runs = reproduced("gfl-fig4", tmp_path, "--data", str(shared_data))
    assert "559 test rows are training texts, too" in " ".join(shown.split())
    ends = runs[runs["round"] == runs["round"].max()]
    assert len(ends) == 8
    assert (ends["loss"] < np.log(100)).all()  # better than any word being as likely as another


# ---------------------------------------------------------------------- the truths


def test_truths_are_related_as_they_say():
    for reflected in (True, False):
        network, phi = linear_truth(0, 0, nodes=40, reflected=reflected)
        mirror = phi.reshape(10, 10)
        assert_allclose(mirror @ mirror, np.eye(10), atol=1e-12)
        assert np.allclose(mirror, np.eye(10)) is not reflected
        test = network.test
        truth = np.stack([np.linalg.lstsq(*test[k], rcond=None)[0] for k in range(40)])
        near = [np.corrcoef(truth[i] @ mirror, truth[j])[0, 1] for i, j in zip(*_ends(network), strict=True)]
        assert np.mean(near) > 0.8
        assert_allclose((test.y**2).mean(), 1.0)
    drawn = network_truth(0, 1, nodes=20, reflected=True)
    colour = np.arange(20) % 2
    assert (colour[drawn.network.graph.head] != colour[drawn.network.graph.tail]).all()
    assert_allclose((drawn.network.test.y**2).sum(axis=1).mean(), 1.0)


def test_table_10_1():
    network, _ = table_10_1(0, 0, nodes=50, rows=100, smoothed=False)
    assert network.data.sizes.tolist() == [100] * 50
    assert network.data.y.shape == (5_000, 8)
    assert (network.graph.degrees >= 4).all()
    X, y = network.data[7]
    weights = np.linalg.lstsq(X, y, rcond=None)[0]
    assert_allclose(X @ weights, y, atol=1e-12)  # no noise
    other, _ = table_10_1(0, 1, nodes=50, rows=100, smoothed=False)
    assert not np.allclose(other.data.X[:8], network.data.X[:8])


def _ends(network):
    return network.graph.head, network.graph.tail


# ---------------------------------------------------------------------- words


def test_owned_embeddings_against_a_plain_computation():
    """P and its slopes with zeros in place of what a node does not own, and nothing moved there."""
    network, _ = linear_truth(0, 0, nodes=8, reflected=False)
    rng, links, layout = np.random.default_rng(0), Links.of(network.graph), {"0.weight": (3, 2), "1.weight": (1, 2)}
    owned = (rng.random((8, 8)) < 0.7).astype(float)
    lower = OwnedEmbedding(owned=owned)
    phi, w, v = np.array([0.8, -0.5]), rng.normal(size=(8, 8)), rng.normal(size=(8, 8))
    scale = phi[[0] * 6 + [1] * 2]
    L = lower.matrix(links).toarray()

    def plain(w_i, i, w):
        all_w = owned * w
        all_w[i] = owned[i] * w_i
        return 0.5 * ((owned[i] * ((L[i] @ all_w) * scale - w_i)) ** 2).sum()

    received = lower.messages(links, layout, phi, w)
    assert_allclose(lower.value(layout, phi, w, received), [plain(w[i], i, w) for i in range(8)])
    slope, small = lower.slope(layout, phi, w, received), 1e-6
    for i in range(8):
        for k in range(8):
            e = small * (np.arange(8) == k)
            assert_allclose(slope[i, k], (plain(w[i] + e, i, w) - plain(w[i] - e, i, w)) / (2 * small), atol=1e-8)
    assert (slope[owned == 0] == 0).all()

    def slopes(phi, w):
        return lower.slope(layout, phi, w, lower.messages(links, layout, phi, w))

    along, aside = rng.normal(size=w.shape), rng.normal(size=2)
    turned = (slopes(phi, w + small * along) - slopes(phi, w - small * along)) / (2 * small)
    assert_allclose((lower.adjoint_product(links, layout, phi, w, v) * along).sum(), (v * turned).sum(), atol=1e-7)
    turned = (slopes(phi + small * aside, w) - slopes(phi - small * aside, w)) / (2 * small)
    assert_allclose(lower.phi_product(links, layout, phi, w, v) @ aside, (v * turned).sum(), atol=1e-7)
    ahead, behind = (lower.slope(layout, phi, w + sign * small * along, received) for sign in (1, -1))
    assert_allclose(lower.own_product(layout, phi, w, received, along), (ahead - behind) / (2 * small), atol=1e-7)


def test_windows_are_the_words_before():
    texts = [np.array([5, 6, 7]), np.array([8])]
    X, y = draw_windows(texts, 100, 2, np.random.default_rng(0))
    found = sorted(zip(X.astype(int).tolist(), y.astype(int).tolist(), strict=True))
    assert found == [([BEGIN, BEGIN], 5), ([BEGIN, BEGIN], 8), ([BEGIN, 5], 6), ([5, 6], 7)]


def test_texts_that_lie_in_both_parts_are_left_out(shared_data):
    frame = load_reviews(shared_data)
    assert frame["domain"].nunique() == 16
    parts = [set(zip(part["domain"], part["text"], strict=True)) for _, part in frame.groupby("split")]
    assert len(parts[0] & parts[1]) == 484  # texts of the same domain, as the data set's page says
    learnt, kept = frame[frame["split"] == "train"], frame[(frame["split"] == "test") & ~frame["repeated"]]
    assert not set(learnt["text"]) & set(kept["text"])
    assert not frame.loc[frame["split"] == "train", "repeated"].any()


def write_reviews(folder, rows):
    with gzip.open(folder / "reviews.csv.gz", "wt", encoding="utf-8") as file:
        file.write(rows)


def test_reviews_and_vectors_of_ones_own(tmp_path):
    write_reviews(
        tmp_path, "domain,split,label,text\na,train,1,good thing\na,test,1,good thing\na,test,0,bad\na,train,0, \n"
    )
    frame = load_reviews(tmp_path)
    assert frame["text"].tolist() == ["good thing", "good thing", "bad"]
    assert frame["repeated"].tolist() == [False, True, False]
    assert load_vectors(["good"], tmp_path) is None
    (tmp_path / "vectors.txt").write_text("good 1.0 2.0\nother 3 4\n", encoding="utf-8")
    assert_array_equal(load_vectors(["<unknown>", "good"], tmp_path), [[0, 0], [1, 2]])
    (tmp_path / "vectors.txt").write_text("good 1.0 2.0\nbad 3\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"Expected vectors of one length .* got 2 different numbers"):
        load_vectors(["good", "bad"], tmp_path)
    (tmp_path / "vectors.txt").write_text("good one two\n", encoding="utf-8")
    with pytest.raises(InputError, match="Expected a word and numbers on every line"):
        load_vectors(["good"], tmp_path)


def test_missing_or_other_reviews_are_a_sentence(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"Expected reviews.csv.gz in .*, found none: name the folder"):
        load_reviews(tmp_path)
    write_reviews(tmp_path, "a,b\n1,2\n")
    with pytest.raises(InputError, match="Expected the columns domain, split, label, text"):
        load_reviews(tmp_path)
    (tmp_path / "reviews.csv.gz").write_bytes(b"no archive")
    with pytest.raises(InputError, match="Expected a table of reviews in"):
        load_reviews(tmp_path)
    monkeypatch.delenv("KINFOLK_DATA", raising=False)
    result = CliRunner().invoke(app, ["reproduce", "gfl-fig4", "--quick"])
    assert result.exit_code == 1
    assert "Expected reviews.csv.gz in a folder that is named" in " ".join(
        result.output.split() + result.stderr.split()
    )


def test_vectors_of_the_user_start_the_words(shared_data, monkeypatch):
    monkeypatch.setattr(gfl_reviews, "load_vectors", lambda words: np.arange(2.0 * len(words)).reshape(-1, 2))
    corpus = gfl_reviews.Corpus([], ["a", "b", "c"], {}, None, None, {}, 0)
    module = gfl_reviews.language_model(corpus, gfl_reviews.QUICK, 0)
    assert module[1].weight.tolist() == [[0, 1], [2, 3], [4, 5]]
