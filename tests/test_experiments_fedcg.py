"""Tables 3 to 5 of FedCG in kind: what is compared, in a small setting on real digits where they are at hand."""

from pathlib import Path

import numpy as np
import pandas
import pytest

from kinfolk.datasets import data_folder, looking_in
from kinfolk.experiments import fedcg

pytest.importorskip("torch")
HERE = data_folder() or Path(__file__).parents[2] / "shared" / "data"
on_digits = pytest.mark.skipif(
    not (HERE / "mnist_writers").is_dir() or not (HERE / "digit_domains").is_dir(),
    reason="MNIST by writer and the other digits are not here: name their folder with KINFOLK_DATA",
)


def invented(cases, tables=("rotations",)):
    """Runs of every row of a table, with accuracies that fall from row to row."""
    names = [
        (case.name if len(case.assigns) == 1 else f"{case.name}, {fedcg.WAYS[way]}", case.paper)
        for case in cases
        for way in case.assigns
    ]
    return pandas.DataFrame([
        {"table": table, "seed": seed, "row": name, "paper": paper, "accuracy": 95.0 - 2 * k, "nmi": 0.9,
         "domains": 4.0, "used": 4.0, "ratio": 1.0}
        for table in tables for seed in range(3) for k, (name, paper) in enumerate(names)
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("cases", "judge", "first"),
    [
        (fedcg._table3_cases(), fedcg._table3_claims, "A model per domain is far behind FedAvg"),
        (fedcg._table4_cases(fedcg.FULL), fedcg._table4_claims, "The teacher and the student find domains"),
        (fedcg._table5_cases(), fedcg._table5_claims, "FedCG is ahead of FedProx, rotations"),
    ],
)
def test_every_claim_compares_rows_of_its_table(cases, judge, first):
    claims = {claim.text: claim for claim in judge(invented(cases))}
    assert claims[first].holds
    assert any(not claim.holds for claim in claims.values())


def test_a_row_is_ahead_only_by_more_than_renaming_branches_moves():
    runs = pandas.DataFrame({
        "row": ["a"] * 3 + ["b"] * 3, "seed": [0, 1, 2] * 2, "table": "t",
        "accuracy": [90.6, 90.7, 90.8, 90.0, 90.0, 90.0],
    })  # fmt: skip
    assert fedcg._ahead(runs, "", "a", "b").holds
    assert not fedcg._ahead(runs, "", "a", "b", margin=0.8).holds
    runs.loc[0, "accuracy"] = 89.9  # behind in one draw
    runs.loc[1, "accuracy"] = 99.0
    assert not fedcg._ahead(runs, "", "a", "b").holds


@pytest.mark.parametrize(("behind", "holds"), [(0.9, True), (1.1, False), (-0.5, True)])
def test_a_row_is_within_a_point_in_the_mean_of_seeds(behind, holds):
    runs = pandas.DataFrame({
        "row": ["a"] * 2 + ["b"] * 2, "seed": [0, 1] * 2, "accuracy": [90.0, 94.0, 90.5 + behind, 93.5 + behind],
    })  # fmt: skip
    claim = fedcg._within(runs, "", "a", "b", 1.0)
    assert claim.holds == holds
    assert claim.numbers.startswith(f"{behind:.1f} points behind")


@on_digits
def test_mixed_clients_run_in_a_small_setting(monkeypatch):
    monkeypatch.setattr(fedcg, "QUICK", fedcg.Setting(rounds=2, clients=(30, 16, 8)))
    with looking_in(HERE):
        outcome = fedcg.mixed(quick=True)
    assert list(outcome.runs["row"]) == [
        fedcg.FEDAVG, fedcg.CONTROL, fedcg.GIVEN, *(f"{fedcg.FOUND}, {way}" for way in fedcg.WAYS.values()),
    ]  # fmt: skip
    assert outcome.runs["nmi"].iloc[2] == 1
    assert outcome.runs["nmi"].iloc[3:].between(0, 1, inclusive="neither").all()
    assert len(outcome.claims) == 4


@on_digits
def test_table_5_runs_in_a_small_setting(monkeypatch, tmp_path):
    setting = fedcg.Setting(rounds=2, clients=(10, 16, 8), attributes=1, counts=(4,))
    monkeypatch.setattr(fedcg, "QUICK", setting)
    kept = [case for case in fedcg._table5_cases() if case.name not in (fedcg.UNJOINED, fedcg.SEPARATE)]
    monkeypatch.setattr(fedcg, "_table5_cases", lambda: kept)
    with looking_in(HERE):
        outcome = fedcg.table5(quick=True)
    runs = outcome.runs
    assert set(runs["table"]) == {"rotations", "sources", "inversion"}
    assert len(runs) == 18
    assert runs["accuracy"].between(0, 100).all()
    control = runs[runs["row"] == fedcg.CONTROL]
    assert (control["domains"] == 1).all()
    assert np.isnan(runs[runs["row"] == "FedProx"]["nmi"]).all()
    assert (runs[runs["row"] == fedcg.GIVEN]["nmi"] == 1).all()
    assert len(outcome.claims) == 15
    _, picture = outcome.write(tmp_path)
    assert picture.stat().st_size > 10_000
