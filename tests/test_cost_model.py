"""The cost model: counts are those of networks, bytes are predicted before they are sent, the page has its tables."""

import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas
import pytest

from federated import Direct, federation_of, services_of
from kinfolk import GTVMin, fit

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
import cost_model
import cost_runs
from cost_runs import KINDS, Case, Counting


def carried(case, folder, rounds=10):
    """The counts of a network, and bytes through the relay by what was asked for: (sent, received)."""
    network = cost_runs.network_of(case)
    services = services_of(network, case.sites, folder)
    post = Counting(Direct(services))
    federation = federation_of(network, case.sites, post)
    options = {"stop": None, "measure_every": None, "progress": False}
    run = fit(federation.gather(), GTVMin(), rounds=rounds, engine=federation, **options)
    for service in services.values():
        service.close()
    return cost_runs.counted(network.graph, case), {work: each[-1] for work, each in post.bytes.items()}, run


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("nodes", "sites"), [(900, 4), (4_000, 10), (2_000, 20)])
def test_counts_are_known_without_making_the_network(kind, nodes, sites):
    case = Case(kind, nodes, sites)
    made = asdict(cost_runs.counted(cost_runs.network_of(case).graph, case))
    for name, value in asdict(cost_model.expected(case)).items():
        largest = name.startswith("own")  # mixed: the largest of all sites is above the mean
        assert value == pytest.approx(made[name], rel=(0.12 if largest else 0.02) if kind == "mixed" else 0.005), name


def test_a_round_that_nobody_reads_brings_the_coordinator_letters_only(tmp_path):
    """Twenty times as many nodes behind the same border: not a byte more passes, but in reports and measurements."""
    (_, small, _), (_, large, _) = (carried(Case("ring", nodes, 2), tmp_path / str(nodes)) for nodes in (50, 1_000))
    assert small["step"] == large["step"]
    report, measure = (large[work][1] - small[work][1] for work in ("report", "measure"))
    assert report == 8 * cost_model.REPORTED * 950
    assert measure == 8 * cost_model.MEASURED * 950


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_are_predicted_from_counts_and_two_overheads(kind, tmp_path):
    fitted_to = [Case(kind, 60, 2, 3), Case(kind, 100, 4, 2), Case(kind, 200, 5, 4)]
    runs = [carried(case, tmp_path / str(k)) for k, case in enumerate(fitted_to)]
    counts, found, run = carried(Case(kind, 600, 12, 6), tmp_path / "new")
    places = {"step_in": ("step", 1), "step_out": ("step", 0), "report_in": ("report", 1), "join_out": ("join", 0)}
    for quantity in cost_model.BYTES:
        if quantity.column in places:
            work, way = places[quantity.column]
            fitted = quantity.fitted([(known, float(each[work][way])) for known, each, _ in runs])
            assert fitted(counts) == pytest.approx(found[work][way], rel=0.03), quantity.title
    rounds = 2 * 8 * counts.features * counts.edges * 10  # what the algorithm sends, as if every node were a site
    assert run.history["bytes"].iloc[-1] == pytest.approx(rounds, rel=0.35)
    assert run.history["bytes"].iloc[-1] > rounds


def test_overheads_are_found_and_never_negative():
    quantity = cost_model.BYTES[0]
    rng = np.random.default_rng(0)
    runs = [
        (counts, cost_model.letters(counts) + 100 * counts.pairs + 7 * counts.sites)
        for kind, nodes, sites in zip(KINDS * 3, rng.integers(400, 4_000, 9), rng.integers(2, 20, 9), strict=True)
        for counts in [cost_model.expected(Case(kind, int(nodes), int(sites)))]
    ]
    np.testing.assert_allclose(quantity.fitted(runs).values, [100, 7], rtol=1e-6)
    less = [(counts, found - 200 * counts.sites) for counts, found in runs]
    assert quantity.fitted(less).values.min() == 0


# ---------------------------------------------------------------------- the runs and the page in the repository


@pytest.fixture(scope="module")
def model():
    return cost_model.Model.of_files()


def test_the_page_has_the_tables_of_the_runs(model):
    page = cost_model.PAGE.read_text(encoding="utf-8")
    tables = {name: make(model) for name, make in cost_model.TABLES.items()}
    assert all(f"<!-- cost, {name}: begin -->" in page for name in tables)
    assert cost_model.written(page, tables) == page, "run python benchmarks/cost_model.py --write"


def test_runs_that_had_no_part_in_the_fit_are_predicted(model):
    assert model.others["nodes"].max() > 30 * model.small["nodes"].max()
    assert model.others["sites"].max() == 10 * model.small["sites"].max()
    for quantity in cost_model.BYTES:
        ratios = cost_model.ratios(model[quantity.column], model.others)
        assert 0.95 < min(ratios) <= max(ratios) < 1.05, quantity.title


def test_the_counts_of_the_runs_are_those_of_their_networks(model):
    for _, line in model.runs[model.runs["nodes"] < 2_000].iterrows():
        case = Case(line["kind"], int(line["nodes"]), int(line["sites"]), int(line["features"]))
        made = asdict(cost_runs.counted(cost_runs.network_of(case).graph, case))
        assert {name: line[name] for name in made} == made


def test_lines_are_added_to_a_table(tmp_path):
    line = cost_runs.Needed("map", 0.5, 900, 40, 1.25, 2.0)
    cost_runs.add(tmp_path / "t.csv", [line])
    cost_runs.add(tmp_path / "t.csv", [line])
    assert pandas.read_csv(tmp_path / "t.csv").to_dict("records") == [asdict(line)] * 2
