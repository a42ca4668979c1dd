"""Figures 5 to 7 of the GTV paper in their quick settings, on real digits where they are at hand."""

import re
from pathlib import Path

import numpy as np
import pandas
import pytest
from typer.testing import CliRunner

from kinfolk.cli import app
from kinfolk.datasets import Digits, data_folder, looking_in
from kinfolk.experiments import gtv_mnist
from kinfolk.experiments.gtv_digits import NEAREST, Setting, draw_problem

pytest.importorskip("torch")
SHARED = Path(__file__).parents[2] / "shared" / "data"
HERE = data_folder() or SHARED
on_digits = pytest.mark.skipif(
    not (HERE / "mnist" / "mnist.npz").is_file() and not (HERE / "mnist.npz").is_file(),
    reason="mnist.npz is not here: name its folder with KINFOLK_DATA",
)


def invented_digits(count=2_000):
    """Ten classes that differ in one pixel, so that nothing has to be downloaded."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 10, count)
    images = rng.integers(0, 30, (count, 28, 28)).astype(np.uint8)
    images[np.arange(count), 2 * y, 2 * y] = 255
    return Digits(images, y, images[:10], y[:10])


def test_nodes_have_the_two_digits_of_their_cluster_and_share_no_image():
    setting = Setting(nodes=5, train=20, validation=10, embedded=20, hidden=3, rounds=1)
    problem = draw_problem(invented_digits(), 3, setting, seed=1)
    network = problem.network
    assert network.data.X.shape == (300, 784)
    assert (network.test.sizes == 10).all()
    assert (network.data.y // 2 == problem.cluster[network.data.owner]).all()
    rows = np.concatenate([network.data.X, network.test.X])
    assert len(np.unique(rows, axis=0)) == len(rows)
    assert (network.graph.degrees >= NEAREST).all()
    assert problem.loss.width(784) == 784 * 3 + 3 * 10  # (42) has no biases


def test_rounds_are_counted_from_the_first_update_that_nodes_hear(monkeypatch):
    monkeypatch.setattr(gtv_mnist, "load_mnist", invented_digits)
    setting = Setting(nodes=5, train=20, validation=10, embedded=20, hidden=3, rounds=4)
    monkeypatch.setattr(gtv_mnist, "QUICK", setting)
    runs = gtv_mnist.fig6(quick=True).runs
    counted = runs.groupby("method")["round"].apply(list)
    assert (counted.map(lambda rounds: rounds == [0, 1, 2, 3, 4])).all()
    objective = runs.set_index(["method", "round"])["objective"]
    # Round 0 is the common start, for those too that hear of their first update a round later.
    assert objective[gtv_mnist.ALONE, 0] == pytest.approx(objective[gtv_mnist.ORACLE, 0])
    assert objective["Adam on (16), 5 steps", 0] == pytest.approx(objective["Adam on (16), one step", 0])
    assert objective["Adam on (16), 5 steps", 1] != pytest.approx(objective["Adam on (16), one step", 1])


@on_digits
@pytest.mark.parametrize("figure", [gtv_mnist.fig5, gtv_mnist.fig7])
def test_figures_5_and_7(figure):
    with looking_in(HERE):
        outcome = figure(quick=True)
    last = outcome.runs[outcome.runs["round"] == gtv_mnist.QUICK.rounds].set_index("method")["accuracy"]
    ours = last["λ = 1"] if "λ = 1" in last.index else last[gtv_mnist.OURS]
    assert ours > 0.9
    assert ours > last[gtv_mnist.FOR_ALL]


@on_digits
def test_figure_6_from_the_command_line(tmp_path):
    options = ["reproduce", "gtv-fig6", "--quick", "--out", str(tmp_path), "--data", str(HERE)]
    result = CliRunner().invoke(app, options, env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    shown, _ = result.output.split("Written: ")
    assert max(map(len, shown.splitlines())) <= 80
    assert re.search(r"^holds More accurate in the end than FedAvg, one for all", shown, re.M)
    runs = pandas.read_csv(tmp_path / "gtv-fig6.csv")
    assert set(runs.columns) == {"method", "seed", "round", "accuracy", "objective"}
    assert (tmp_path / "gtv-fig6.png").stat().st_size > 10_000
