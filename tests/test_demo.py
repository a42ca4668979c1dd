"""The demo is what the README promises."""

import re

from typer.testing import CliRunner

from kinfolk.cli import app


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


def test_demo_fails_before_the_work(tmp_path):
    (tmp_path / "file").write_text("")
    for arguments in (["--out", str(tmp_path / "file")], ["--out", str(tmp_path), "--seed", "-1"]):
        result = CliRunner().invoke(app, ["demo", *arguments])
        assert result.exit_code == 1
        assert "counties" not in result.stdout
