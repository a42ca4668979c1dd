"""The demo is what the README promises."""

import re

import numpy as np
import pytest
from typer.testing import CliRunner

from kinfolk import GTVMin, InputError, Network, Pooled, graphs
from kinfolk.cli import app
from kinfolk.selection import select_lam
from kinfolk.testing import difficult_network


def test_demo_prints_the_table_the_certificate_and_a_map(tmp_path):
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path)], env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    rows = re.findall(r"│ (\S.*?) +│ +([\d.–]+) │", result.output)
    errors = {name.strip(): error for name, error in rows}
    pooled, tailored = float(errors["One model for all"]), float(errors["GTVMin, φ = ½‖·‖²"])
    control = float(errors["GTVMin, φ = ½‖·‖², random graph"])
    assert 0.40 < pooled < 0.65
    assert 0.20 < tailored < 0.32
    assert control > 0.8 * pooled
    assert errors["Every county alone"] == "–"
    assert "No other choice of parameters lowers it" in re.sub(r"\s+", " ", result.output)
    assert (tmp_path / "counties.png").stat().st_size > 50_000
    assert max(map(len, result.output.splitlines())) <= 80


def test_commands():
    help_text = CliRunner().invoke(app, ["--help"]).output
    assert "demo" in help_text
    assert CliRunner().invoke(app, ["version"]).output.strip()


def test_lambda_is_chosen_without_test_data():
    rng = np.random.default_rng(0)
    graph, block = graphs.stochastic_block([15, 15], 0.5, 0.05, seed=0)
    sets = [(X := rng.normal(size=(2, 2)), X @ [1.0, block[k]] + 0.1 * rng.normal(size=2)) for k in range(30)]
    chosen = {
        select_lam(Network(graph, sets, test=test), GTVMin(), [1e-3, 0.1, 10.0], folds=3).lam
        for test in (None, sets, [(X, -50 * y) for X, y in sets])
    }
    assert chosen == {0.1}


@pytest.mark.parametrize(
    ("network", "algorithm", "options", "sentence"),
    [
        (difficult_network(), GTVMin(), {"lams": []}, "Expected values of λ to choose from, got none."),
        (difficult_network(), GTVMin(), {"lams": [1.0], "folds": 1}, "The 'folds' parameter of select_lam must be"),
        (difficult_network(), GTVMin(), {"lams": [1.0], "folds": 99}, "Expected at most as many folds as nodes with"),
        (difficult_network(), Pooled(), {"lams": [1.0]}, "Expected an algorithm with a λ, got Pooled."),
    ],
)
def test_selection_refuses_what_cannot_work(network, algorithm, options, sentence):
    with pytest.raises(InputError, match=sentence):
        select_lam(network, algorithm, **options)


def test_demo_fails_before_the_work(tmp_path):
    (tmp_path / "file").write_text("")
    for arguments in (["--out", str(tmp_path / "file")], ["--out", str(tmp_path), "--seed", "-1"]):
        result = CliRunner().invoke(app, ["demo", *arguments])
        assert result.exit_code == 1
        assert "counties" not in result.stdout
