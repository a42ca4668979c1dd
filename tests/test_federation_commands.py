"""The commands of a federation: what people see and type, and what they are refused."""

import contextlib
import http.client
import json
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas
import pytest
from typer.testing import CliRunner

from federated import Direct
from kinfolk import InputError, Network, fit, learn
from kinfolk.cli import app
from kinfolk.datasets.tables import named_table
from kinfolk.engine.locking import running_in
from kinfolk.federation.agreement import AGREEMENT, Agreement
from kinfolk.federation.allowance import Allowance
from kinfolk.federation.coordinator import Federation
from kinfolk.federation.files import locked
from kinfolk.federation.flower import tether
from kinfolk.federation.flower.coordinator import results_of
from kinfolk.federation.invitation import Invitation, admitted_keys, read_invited
from kinfolk.federation.joining import Units
from kinfolk.federation.operating import invitation_for, make_federation, read_status, read_traffic
from kinfolk.federation.site_models import load_models, save_models
from kinfolk.federation.site_table import agreed_columns, agreed_table, site_rows
from kinfolk.federation.tables.federated_job import learn_together
from kinfolk.federation.tables.queries import declared
from kinfolk.federation.taking_part import Participant
from kinfolk.network.data import Data
from kinfolk.report.federation import write_fitted

pytest.importorskip("flwr", reason='Flower is not installed: pip install "kinfolk[flower]"')
SITES = ("north", "south")


def patients(count=20, seed=0):
    """A table like those of hospitals: numbers with gaps, a category, two classes."""
    rng = np.random.default_rng(seed)
    age = rng.normal(60, 10, count)
    age[3] = np.nan
    sex = rng.choice(["f", "m"], count)
    return pandas.DataFrame(
        {"age": age, "sex": sex, "note": "x", "ill": np.where(rng.random(count) < 0.5, "no", "yes")}
    )


@pytest.fixture
def federation(tmp_path):
    """A federation of two sites, each one node."""
    columns = agreed_columns(patients(), None, "ill")
    agreement = Agreement("heart", "127.0.0.1:9092", SITES, "ill", columns.features, classes=columns.classes)
    make_federation(tmp_path / "heart", agreement)
    return tmp_path / "heart"


def run_command(*words, answer=None):
    return CliRunner().invoke(app, list(map(str, words)), input=answer)


def sentence(result):
    assert result.exit_code == 1, result.output
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1
    return lines[0]


def joined(federation, tmp_path, *more, answer=None, site="north", table=None):
    """What `kinfolk site join` prints before it would connect."""
    invitation_for(federation, site, tmp_path / f"{site}.invite", days=1)
    path = tmp_path / f"{site}.csv"
    (patients() if table is None else table).to_csv(path, index=False)
    words = ["site", "join", tmp_path / f"{site}.invite", "--data", path, "--folder", tmp_path / site, "--patience", 1]
    return run_command(*words, *more, answer=answer)


# ---------------------------------------------------------------------- agreements


def test_a_new_federation_is_a_file_to_read_and_change(tmp_path):
    patients().to_csv(tmp_path / "like.csv", index=False)
    words = ["--like", tmp_path / "like.csv", "--sites", "north,south", "--target", "ill", "--algorithm", "FedRelax"]
    result = run_command("federation", "new", tmp_path / "heart", *words, "--model", "forest", "--lam", 0.5)
    assert result.exit_code == 0, result.output
    assert "kinfolk federation invite" in result.output
    agreement = Agreement.read(tmp_path / "heart")
    assert agreement.features == {"age": "number", "sex": ("f", "m")}  # `note` is constant
    assert agreement.classes == ("no", "yes")
    assert agreement.columns == ["age", "sex=f", "sex=m"]
    assert type(agreement.algorithms()["tailored"].model).__name__ == "RandomForestClassifier"
    again = run_command("federation", "new", tmp_path / "heart", *words)
    assert "Expected a new folder" in sentence(again)
    kept = [path.read_bytes() for path in (tmp_path / "heart").rglob("*") if path.is_file()]
    assert not any(str(value).encode() in content for content in kept for value in patients()["age"].dropna())


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"sites": ["north"]}, "two or more sites with different names"),
        ({"sites": ["north", "a/b"]}, "without slashes"),
        ({"sites": ["north", "-rf"]}, "that begin with a letter or digit"),
        ({"sites": ["north", "Coordinator"]}, "other than 'coordinator'"),
        ({"sites": ["north", "Relay"]}, "and 'relay'"),
        ({"address": "here:²"}, "Expected an address such as"),
        ({"features": {"sex": ["m"], "sex=m": "number"}}, "got one twice"),
        ({"public": 10**12}, "'public' parameter of Agreement"),
        ({"model": "os.system"}, "os.system"),
        ({"node": ""}, "Expected a text as 'node'"),
        ({"algorithm": {"type": "GTVMin", "lam": 10**400}}, "Expected numbers up to 1e+15"),
        ({"sites": ["north", "North"]}, "different names"),
        ({"address": "nowhere"}, "Expected an address such as"),
        ({"features": {"age": "words"}}, "for a feature 'number' or a list of its categories"),
        ({"features": {}}, "Expected features other than the target"),
        ({"rounds": 0}, "'rounds' parameter of Agreement must be a whole number"),
        ({"test": 1.0}, "'test' parameter"),
        ({"compare": ["magic"]}, "Expected comparisons among alone, pooled"),
        ({"algorithm": {"type": "os.system"}}, "Expected an algorithm, one of"),
        ({"algorithm": {"type": "GTVMin", "coupling": {"type": "subprocess.run"}}}, "Expected a name of kinfolk"),
        ({"algorithm": {"type": "GTVMin", "speed": 3}}, "Expected parameters of GTVMin"),
        ({"algorithm": {"type": "GTVMin", "lam": -1}}, "'lam' parameter of GTVMin"),
        ({"classes": ["a", "b", "c"]}, "Expected two classes for the logistic loss, got 3"),
        ({"algorithm": {"type": "FedRelax"}, "compare": ["pooled"]}, "Expected an algorithm with a loss"),
        ({"model": 3}, "Expected a text as 'model'"),
        ({"extra": 1}, "got an unknown 'extra'"),
    ],
)
def test_an_agreement_that_cannot_work_gets_a_sentence(federation, change, expected):
    found = Agreement.read(federation).to_toml() | change
    with pytest.raises(InputError, match=re.escape(expected)):
        Agreement.of(found, "federation.toml")


def test_an_agreement_reads_as_it_was_written(tmp_path):
    features = {"age": "number", "sex": ('f "q"', "m\n2", "k  k", "a, b]")}
    agreement = Agreement("odd", "127.0.0.1:9092", ("a  b", "b,]"), "y", features)
    agreement.write(tmp_path)
    assert Agreement.read(tmp_path) == agreement


def test_an_agreement_that_is_no_toml_gets_a_sentence(federation):
    (federation / AGREEMENT).write_text("name = ")
    assert "Expected TOML" in sentence(run_command("federation", "status", federation))
    assert "make one with kinfolk federation new" in sentence(run_command("federation", "run", federation.parent))


def test_nodes_need_edges_and_may_have_none_themselves(tmp_path):
    options = {"target": "y", "features": {"x": "number"}, "node": "shop"}
    agreement = Agreement("shops", "127.0.0.1:9092", SITES, **options)
    with pytest.raises(InputError, match="Expected the edges between nodes"):
        make_federation(tmp_path / "shops", agreement)
    assert not (tmp_path / "shops" / AGREEMENT).exists()
    (tmp_path / "edges.csv").write_text("from,to\na,b\nc,\n")
    make_federation(tmp_path / "shops", agreement, tmp_path / "edges.csv")
    graph = agreement.graph(tmp_path / "shops")
    assert (graph.names, graph.degrees.tolist()) == (["a", "b", "c"], [1, 1, 0])


# ---------------------------------------------------------------------- invitations


def test_an_invitation_is_a_secret_of_its_site(federation, tmp_path):
    result = run_command("federation", "invite", federation, "north", "--out", tmp_path / "north.invite")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "north.invite").stat().st_mode & 0o077 == 0
    assert "PRIVATE KEY" not in (federation / "invited.json").read_text()
    first = Invitation.read(tmp_path / "north.invite")
    before = read_invited(federation)["north"].public
    second = invitation_for(federation, "north", tmp_path / "north.invite", days=1)
    assert second.key != first.key
    assert read_invited(federation)["north"].public != before  # the first is of no use any more
    (tmp_path / "thesis.txt").write_text("mine")
    result = run_command("federation", "invite", federation, "north", "--out", tmp_path / "thesis.txt")
    assert "holds something else" in sentence(result)
    assert (tmp_path / "thesis.txt").read_text() == "mine"
    assert "at most 3,650 days" in sentence(run_command("federation", "invite", federation, "north", "--days", "1e9"))


def test_invitations_that_do_not_fit_are_refused(federation, tmp_path):
    assert "one of 'north', 'south'" in sentence(run_command("federation", "invite", federation, "east"))
    assert "Expected an invitation for every site" in sentence(run_command("federation", "run", federation))
    invitation_for(federation, "north", tmp_path / "late.invite", days=0)
    invitation_for(federation, "south", tmp_path / "south.invite", days=1)
    with pytest.raises(InputError, match="that of 'north' has expired"):
        admitted_keys(federation, Agreement.read(federation))
    patients().to_csv(tmp_path / "rows.csv", index=False)
    join = ["site", "join", "--data", tmp_path / "rows.csv", "--folder", tmp_path / "site"]
    assert "has expired" in sentence(run_command(*join, tmp_path / "late.invite"))
    assert "found no file" in sentence(run_command(*join, tmp_path / "none.invite"))
    assert not (tmp_path / "site").exists()


@pytest.mark.parametrize("part", ["key", "contact", "agreement", "site"])
def test_a_damaged_invitation_gets_a_sentence(federation, tmp_path, part):
    invitation_for(federation, "north", tmp_path / "good", days=1)
    patients().to_csv(tmp_path / "rows.csv", index=False)
    text = (tmp_path / "good").read_text()
    damaged = re.sub(rf"^{part} = .*$|^\[{part}\]$", "", text, count=1, flags=re.M)
    assert damaged != text
    (tmp_path / "bad").write_text(damaged)
    assert "Expected" in sentence(run_command("site", "join", tmp_path / "bad", "--data", tmp_path / "rows.csv"))


def test_a_folder_belongs_to_one_site(federation, tmp_path):
    assert "cannot be reached" in sentence(joined(federation, tmp_path, "--yes"))
    invitation_for(federation, "south", tmp_path / "south.invite", days=1)
    words = [
        "site",
        "join",
        tmp_path / "south.invite",
        "--data",
        tmp_path / "north.csv",
        "--folder",
        tmp_path / "north",
    ]
    assert "Expected an invitation of site 'north' of federation 'heart'" in sentence(run_command(*words))
    replace(Agreement.read(federation), name="lungs").write(federation)
    invitation_for(federation, "north", tmp_path / "foreign.invite", days=1)
    words[2] = tmp_path / "foreign.invite"
    assert "got one of 'north' of 'lungs': choose another --folder" in sentence(run_command(*words))


# ---------------------------------------------------------------------- joining


def test_a_site_sees_what_will_leave_and_is_asked_once(federation, tmp_path):
    result = joined(federation, tmp_path, answer="n\n")
    assert result.exit_code == 1
    assert "Rows stay here. What will leave:" in result.output
    assert "Neighbours read, sealed against everybody else: parameters (4 numbers)." in " ".join(result.output.split())
    assert not (tmp_path / "north").exists()
    result = joined(federation, tmp_path, answer="y\n")
    assert "cannot be reached" in sentence(result)  # nobody is there
    assert "Rows stay here" not in joined(federation, tmp_path).output  # agreed, and not asked again
    changed = Agreement.read(federation).to_toml() | {"algorithm": {"type": "FedAvg"}}
    Agreement.of(changed, "").write(federation)
    assert "Rows stay here" in joined(federation, tmp_path, answer="n\n").output  # to something else


def test_tables_that_do_not_fit_are_refused_before_anything_leaves(federation, tmp_path):
    rows = patients()
    for table, expected in (
        (rows.drop(columns="age"), "the table of site 'north' lacks 'age'"),
        (rows.assign(age="old"), "Expected numbers in column 'age'"),
        (rows.assign(ill="perhaps"), "Expected one of 'no', 'yes' as 'ill' in every row"),
        (rows.head(0), "Expected rows in"),
    ):
        assert expected in sentence(joined(federation, tmp_path, "--yes", table=table))
    assert "Expected a way among" in sentence(joined(federation, tmp_path, "--way", "pigeon"))
    assert not (tmp_path / "north").exists()


def test_nodes_with_few_rows_are_warned(federation, tmp_path):
    result = joined(federation, tmp_path, answer="n\n", table=patients(4).head(3))
    assert "Caution: 1 node has at most 3 rows" in " ".join(result.output.split())


def test_a_category_that_is_not_agreed_on_is_none_of_those_that_are(federation):
    agreement = Agreement.read(federation)
    rows = site_rows(patients().assign(sex="x"), agreement, "north")
    assert (rows.data.X[:, 1:] == 0).all()


def test_what_is_known_of_a_federation_that_does_not_run(federation):
    assert read_status(federation).phase == "not started"
    result = run_command("federation", "status", federation)
    assert "not started" in result.output
    assert "Nothing runs there." in run_command("federation", "stop", federation).output
    assert "Expected the folder of a site" in sentence(run_command("site", "leave", federation))
    assert "found none" in sentence(run_command("site", "predict", federation, federation / AGREEMENT))


@pytest.fixture
def services(federation, tmp_path):
    """Both sites, after their owners have agreed."""
    found = {}
    for seed, site in enumerate(SITES):
        invitation = invitation_for(federation, site, tmp_path / f"{site}.invite", days=1)
        patients(40, seed).to_csv(tmp_path / f"{site}.csv", index=False)
        participant = Participant.of(invitation, tmp_path / f"{site}.csv", tmp_path / site)
        participant.consent()
        found[site] = participant.service()
    yield found
    for each in found.values():
        each.close()


def gathered(federation, services, **changes):
    """What a coordinator reads that may ask for something else than was agreed on."""
    agreement = Agreement.read(federation)
    schema = replace(agreement.schema, **changes)
    found = Federation(agreement.graph(federation), SITES, Direct(services), schema, agreement.public_points())
    return found, found.gather(), agreement.algorithms()


def test_a_site_answers_only_what_its_owner_has_agreed_to(federation, services):
    coordinator, problem, algorithms = gathered(federation, services)
    run = fit(problem, algorithms["tailored"], rounds=3, engine=coordinator, progress=False)
    assert run.rounds == 3
    for other in ({"about": "another"}, {"scaled": ()}, {"task": "numbers"}):
        with pytest.raises(InputError, match="Expected the agreement that the owner of this site has seen"):
            gathered(federation, services, **other)
    with pytest.raises(InputError, match="has agreed to run, got another"):
        fit(problem, replace(algorithms["tailored"], lam=99.0), rounds=1, engine=coordinator, progress=False)
    points = np.zeros((3, len(problem.features)))
    spying = Federation(coordinator.graph, SITES, coordinator.post, coordinator.schema, points)
    with pytest.raises(InputError, match="Expected the public points that were agreed on"):
        fit(spying.gather(), algorithms["tailored"], rounds=1, engine=spying, progress=False)
    services["south"].name = "spy"  # somebody whom nobody has agreed on, as a neighbour
    post = Direct({"north": services["north"], "spy": services["south"]})
    stranger = Federation(coordinator.graph, ["north", "spy"], post, coordinator.schema, coordinator.public)
    with pytest.raises(InputError, match="Expected neighbours among the agreed sites, got 'spy'"):
        fit(stranger.gather(), algorithms["tailored"], rounds=1, engine=stranger, progress=False)


def with_bounds(federation, services, folder, **bounds):
    """Both sites after their owners have agreed to bounds."""
    replace(Agreement.read(federation), **bounds).write(federation)
    found = {}
    for site, service in services.items():
        service.close()
        invitation = invitation_for(federation, site, folder / f"{site}.invite", days=1)
        participant = Participant.of(invitation, folder / f"{site}.csv", folder / site)
        assert not participant.has_consent
        participant.consent()
        found[site] = participant.service()
    services.update(found)
    return participant


def test_a_site_takes_part_in_as_many_rounds_and_runs_as_its_owner_has_agreed_to(federation, services, tmp_path):
    participant = with_bounds(federation, services, tmp_path, rounds=2, runs=2)
    assert participant.leaving()["how often"] == ["2 runs at most, with 2 rounds each; more are refused."]
    coordinator, problem, algorithms = gathered(federation, services)
    main = {"algorithm": algorithms["tailored"], "engine": coordinator, "stop": None, "progress": False}
    more = fit(problem, rounds=3, **main)
    assert more.rounds == 2
    assert "stopped before round 3: no site answered" in more.stopped
    services["south"].close()
    services["south"] = participant.service()  # started again, it still knows how many there were
    coordinator.post.services["south"] = services["south"]
    assert fit(problem, rounds=2, **main).rounds == 2
    with pytest.raises(InputError, match="Expected 2 runs at most, as the owner of site 'north' has agreed to"):
        fit(problem, rounds=1, **main)
    with_bounds(federation, services, tmp_path, rounds=2, runs=3)
    coordinator, problem, _ = gathered(federation, services)
    assert fit(problem, rounds=1, **{**main, "engine": coordinator}).rounds == 1


def test_a_run_that_is_begun_anew_counts_once_more_whatever_it_is_called(tmp_path):
    """A coordinator could otherwise begin without end, in turns with another run."""
    for run in (b"one", b"two", b"one"):
        Allowance(rounds=1, runs=3).begin(run, "north", tmp_path)
    with pytest.raises(InputError, match="Expected 3 runs at most, as the owner of site 'north' has agreed to"):
        Allowance(rounds=1, runs=3).begin(b"one", "north", tmp_path)


def test_a_site_is_not_asked_for_the_same_round_without_end():
    Allowance(rounds=4, runs=1).check(4, 50, "north")
    with pytest.raises(InputError, match="Expected 4 rounds at most, as the owner of site 'north' has agreed to"):
        Allowance(rounds=4, runs=1).check(4, 51, "north")


def test_models_of_the_comparison_are_not_kept_as_tailored_ones(federation, services):
    coordinator, problem, algorithms = gathered(federation, services)
    agreement, north = Agreement.read(federation), services["north"]
    fit(problem, algorithms["alone"], rounds=0, engine=coordinator, progress=False)
    assert save_models(north, agreement, algorithms["tailored"]) is None
    fit(problem, algorithms["tailored"], rounds=2, engine=coordinator, progress=False)
    kept = save_models(north, agreement, algorithms["tailored"])
    predicted = load_models(kept.parent).predict(patients(5))
    assert predicted["predicted ill"].isin(["no", "yes"]).all()
    assert predicted["probability of no"].between(0, 1).all()


def test_a_site_starts_again_after_a_new_agreement_and_with_a_new_key(federation, services, tmp_path):
    coordinator, problem, algorithms = gathered(federation, services)
    fit(problem, algorithms["tailored"], rounds=2, engine=coordinator, progress=False)
    services["north"].close()
    changed = Agreement.of(Agreement.read(federation).to_toml() | {"rounds": 7, "algorithm": {"type": "FedAvg"}}, "")
    changed.write(federation)
    invitation = invitation_for(federation, "north", tmp_path / "north.invite", days=1)
    participant = Participant.of(invitation, tmp_path / "north.csv", tmp_path / "north")
    assert not participant.has_consent
    participant.consent()
    services["north"] = participant.service()
    assert services["north"].run is None
    services["north"].close()
    with pytest.raises(InputError, match="cannot be reached"):
        participant.run("direct", 0.5, print)
    assert (tmp_path / "north" / "sign-in").read_text() == invitation.key
    services["north"] = participant.service()


def test_other_rows_need_another_consent(federation, tmp_path):
    joined(federation, tmp_path, "--yes")
    invitation = Invitation.read(tmp_path / "north.invite")
    again = Participant.of(invitation, tmp_path / "north.csv", tmp_path / "north")
    assert again.has_consent
    patients(4).head(3).to_csv(tmp_path / "few.csv", index=False)
    assert not Participant.of(invitation, tmp_path / "few.csv", tmp_path / "north").has_consent  # cautioned


@pytest.mark.parametrize("name", ["status.json", "members.json", "progress.jsonl", "invited.json", "traffic.json"])
@pytest.mark.parametrize("content", ["", "[]", '{"phase": ', '{"north": 3}', "\udcff", "[" * 100_000])
def test_damaged_files_of_a_federation_get_a_sentence(federation, name, content):
    (federation / name).write_text(content + "\n", errors="surrogateescape")
    for words in (["status"], ["run"]):
        result = run_command("federation", *words, federation)
        if result.exit_code != 0 or result.exception is not None:
            sentence(result)


@pytest.mark.parametrize("name", ["member.json", "left.csv", "pins.json"])
def test_damaged_files_of_a_site_get_a_sentence(federation, tmp_path, name):
    joined(federation, tmp_path, "--yes")
    (tmp_path / "north" / name).write_text("{]")
    for words in (["keys"], ["sent"], ["leave"]):
        result = run_command("site", *words, tmp_path / "north")
        if result.exit_code != 0:
            sentence(result)


def test_a_process_is_stopped_only_if_it_has_the_lock(federation):
    """Whatever a file says: another process may have that number now."""
    with subprocess.Popen(["sleep", "60"]) as innocent:
        (federation / "lock").write_text(str(innocent.pid))
        assert "Nothing runs there." in run_command("federation", "stop", federation).output
        assert innocent.poll() is None
        with locked(federation):
            (federation / "lock").write_text("1")  # of a process that has just begun, or worse
            assert running_in(federation) is None
        innocent.kill()


def test_drafts_of_secrets_are_new_files(federation, tmp_path):
    draft = tmp_path / "north.invite.part"
    draft.write_text("")
    draft.chmod(0o666)
    invitation_for(federation, "north", tmp_path / "north.invite", days=1)
    assert (tmp_path / "north.invite").stat().st_mode & 0o077 == 0


def test_the_demo_removes_nothing_of_others(tmp_path):
    (tmp_path / "coordinator").mkdir()
    (tmp_path / "coordinator" / AGREEMENT).write_text("")
    (tmp_path / "thesis.txt").write_text("mine")
    assert "has other files" in sentence(run_command("federation", "demo", "--out", tmp_path))
    assert (tmp_path / "thesis.txt").exists()


def test_who_leaves_forgets_the_key(federation, tmp_path):
    joined(federation, tmp_path, "--yes")
    assert (tmp_path / "north" / "sign-in").exists()
    assert run_command("site", "leave", tmp_path / "north").exit_code == 0
    assert not (tmp_path / "north" / "sign-in").exists()
    assert (
        Participant.of(
            Invitation.read(tmp_path / "north.invite"), tmp_path / "north.csv", tmp_path / "north"
        ).has_consent
        is False
    )


# ---------------------------------------------------------------------- tables


@pytest.fixture
def clinics(tmp_path):
    """Two sites that learn together from tables, each with three nodes; their owners have agreed."""
    rng = np.random.default_rng(0)
    tables = {}
    for site in SITES:
        dose, clinic = rng.normal(size=60), np.repeat([f"{site} {k}" for k in range(3)], 20)
        effect = (1 + (clinic == f"{site} 1")) * dose + rng.normal(size=60)
        tables[site] = pandas.DataFrame(
            {"clinic": clinic, "dose": dose, "secret": rng.normal(size=60), "effect": effect}
        )
    agreement = Agreement(
        "clinics", "127.0.0.1:9092", SITES, "effect", {"dose": "number"}, "clinic", job="fit",
        settings={"members": "pooled,slopes,tailored", "folds": 2, "lam": 1.0, "graph": "complete"},
    )  # fmt: skip
    make_federation(tmp_path / "clinics", agreement)
    found = {}
    for site, table in tables.items():
        invitation = invitation_for(tmp_path / "clinics", site, tmp_path / f"{site}.invite", days=1)
        table.to_csv(tmp_path / f"{site}.csv", index=False)
        found[site] = Participant.of(invitation, tmp_path / f"{site}.csv", tmp_path / site)
        found[site].consent()
    return found


def test_sites_learn_together_from_tables_and_keep_their_blend(clinics, tmp_path):
    services = {site: participant.service() for site, participant in clinics.items()}
    agreement = clinics["north"].invitation.agreement
    leaving = clinics["north"].leaving()
    assert "sums of products once" in leaving["how often"][1]
    assert "of 3 models each. More are refused." in leaving["how often"][1]
    for query, told in declared().groupby("query"):  # all of it
        assert all(any(line.startswith(each) for line in leaving[query]) for each in told["content"])
    assert agreement.graph(tmp_path / "clinics").edge_count == 0  # the settings decide who may be kin
    run = learn_together(Direct(services), list(SITES), agreement.table_settings)
    assert set(results_of(run)) >= {"leaderboard", "judgement", "nodes", "notes"}
    kept = clinics["north"].keep(services["north"])
    assert "Site north of federation clinics" in (tmp_path / "north" / "report.html").read_text()
    rows = pandas.read_csv(tmp_path / "north.csv").head(7)
    result = run_command("site", "predict", tmp_path / "north", tmp_path / "north.csv", "--out", tmp_path / "out.csv")
    assert result.exit_code == 0, result.output
    found = pandas.read_csv(tmp_path / "out.csv").head(7)
    np.testing.assert_allclose(found["predicted effect"], services["north"].predict(rows), atol=1e-12)
    with pytest.raises(InputError, match="has agreed to learn, got other settings"):
        learn_together(Direct(services), list(SITES), replace(agreement.table_settings, lam=2.0))
    left = pandas.read_csv(tmp_path / "north" / "left.csv")
    assert "sums of every column of numbers" in set(left["what"])
    assert set(left["what"]) <= set(declared()["content"])
    assert "secret" not in services["north"].given  # a column that nobody has agreed on
    (kept / "blend.safetensors").write_bytes(b"damaged")
    assert "Expected" in sentence(run_command("site", "predict", tmp_path / "north", tmp_path / "north.csv"))
    services["north"].jobs = Allowance(rounds=1, runs=2)  # two jobs there were
    with pytest.raises(InputError, match="Expected 2 runs at most, as the owner of site 'north' has agreed to"):
        learn_together(Direct(services), list(SITES), agreement.table_settings)
    for service in services.values():
        service.close()


def test_counties_of_four_regions_from_invitation_to_page(tmp_path):
    """As in docs/how-to/federation.md, on some states: the leaderboard is that of one table, to its digits."""
    table, chosen = named_table("counties"), {"members": "pooled,tailored", "lam": 1.35}
    state = table.frame["county"].str[-2:]
    counties = table.frame[state.isin(["CT", "NH", "VT", "ND", "SC", "NV", "UT"])].drop(columns=["lat", "lon"])
    inside = table.edges[table.edges.iloc[:, :2].isin(set(counties["county"])).all(axis=1)]
    inside.to_csv(tmp_path / "edges.csv", index=False)
    regions = {"northeast": ["CT", "NH", "VT"], "midwest": ["ND"], "south": ["SC"], "west": ["NV", "UT"]}
    for site, states in regions.items():
        counties[counties["county"].str[-2:].isin(states)].to_csv(tmp_path / f"{site}.csv", index=False)
    line = ["--fit", "--like", tmp_path / "west.csv", "--target", "log_turnout", "--node", "county"]
    folder = tmp_path / "counties"
    made = run_command(
        "federation", "new", folder, *line, "--edges", tmp_path / "edges.csv", "--sites", ",".join(regions)
    )
    assert made.exit_code == 0, made.output
    replace(Agreement.read(folder), settings=chosen).write(folder)
    participants = {}
    for site in regions:
        path = tmp_path / f"{site}.invite"
        assert run_command("federation", "invite", folder, site, "--out", path).exit_code == 0
        participants[site] = Participant.of(Invitation.read(path), tmp_path / f"{site}.csv", tmp_path / site)
        participants[site].consent()
    services = {site: participant.service() for site, participant in participants.items()}
    agreement = Agreement.read(folder)
    run = learn_together(Direct(services), list(regions), agreement.table_settings, edges=agreement.edges(folder))
    one = learn(
        counties, node="county", target="log_turnout", edges=inside, progress=False, task="regression", **chosen
    )
    errors = run.leaderboard["error"]
    assert {"final", "pooled", "tailored", "control"} <= set(errors.index)
    np.testing.assert_allclose(errors, one.leaderboard.loc[errors.index, "error"].astype(float), rtol=1e-4)
    assert run.judgement.text == one.judgement.text
    page = write_fitted(agreement.name, results_of(run), {}, folder / "report.html").read_text()
    assert "177" in page  # counties
    for site, service in services.items():
        assert participants[site].keep(service) is not None
        service.close()
        assert f"Site {site} of federation counties" in (tmp_path / site / "report.html").read_text()


def test_a_column_that_marks_test_rows_is_agreed_on(clinics, tmp_path):
    north = clinics["north"]
    agreement = replace(north.invitation.agreement, settings={"test": "marked"})
    table = north.table.assign(marked=True, secret=1)
    assert set(agreed_table(table, agreement, "north")) == {*north.table.columns, "marked"}
    with pytest.raises(InputError, match="lacks 'marked'"):
        agreed_table(north.table, agreement, "north")
    marked = replace(north, invitation=replace(north.invitation, agreement=agreement), table=table)
    assert marked.size == f"{len(table):,} rows, of which those marked in 'marked' are held out"


def test_the_page_of_learning_together(tmp_path):
    node = {"node": "<b>a</b>", "train_rows": 9, "test_rows": 3, "gain": 4.2, "gain_error": 1.0}
    found = {
        "leaderboard": [{"name": "final", "error": 0.5, "weight": None}], "judgement": "It helps.", "verdict": "helps",
        "nodes": [node, {**node, "gain": None, "gain_error": None}], "notes": ["A note."], "kind": "number",
        "exchanges": 12,
    }  # fmt: skip
    page = write_fitted("hearts", found, {}, tmp_path / "page.html").read_text()
    assert "&lt;b&gt;a&lt;/b&gt;" in page
    assert "+4 %" in page


def test_a_job_has_its_own_command(federation):
    assert "Expected kinfolk federation run" in sentence(run_command("federation", "fit", federation))


# ---------------------------------------------------------------------- watching


@contextlib.contextmanager
def watching(folder):
    """The process of the live page, and its port."""
    words = [sys.executable, "-m", "kinfolk", "federation", "watch", str(folder), "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            first = process.stdout.readline()
            assert "Watching" in first, first + process.stderr.read()
            yield process, int(re.search(r":(\d+) \(", first)[1])
        finally:
            if process.poll() is None:
                process.kill()


def test_a_run_can_be_watched_in_a_browser(federation):
    playwright = pytest.importorskip("playwright.sync_api", reason="the page is tested with Playwright")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no chromium")
    flow = {"to": "south", "what": "sealed letter", "shape": [], "messages": 3, "bytes": 240}
    (federation / "traffic.json").write_text(json.dumps({"<b>north</b>": [flow]}))
    rows = [{"run": "tailored", "round": k, "residual": 10.0**-k, "error": None} for k in range(4)]
    (federation / "status.json").write_text(json.dumps({"phase": "ended", "run": "tailored", "rows": rows}))
    with watching(federation) as (process, port), playwright.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page, mistakes = browser.new_page(), []
        page.on("pageerror", lambda each: mistakes.append(str(each)))
        page.goto(f"http://127.0.0.1:{port}/")
        page.locator("#traffic td", has_text="<b>north</b>").wait_for()
        assert page.text_content("#phase") == "Ended: 0 of 2 sites online"
        assert page.locator("#residual path").count() == 1
        (federation / "traffic.json").write_text(json.dumps({"south": [{**flow, "bytes": 999}]}))
        page.locator("#traffic td", has_text="999").wait_for()  # the page follows
        browser.close()
        assert mistakes == []
        assert asked(port, "/facts", "127.0.0.1").startswith(b'{"name": "heart"')
        assert asked(port, "/facts", "evil.example").startswith(b"Expected the name of this machine")
        assert asked(port, "/../invited.json", "127.0.0.1") == b"Expected / or /facts."
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def asked(port, path, host):
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
        connection.request("GET", path, headers={"Host": f"{host}:{port}"})
        return connection.getresponse().read()


# ---------------------------------------------------------------------- a real one


def test_the_demo_runs_over_flower_and_leaves_nothing_behind(tmp_path):
    """Four sites as processes, one killed on the way; models as of one process, a page, and no process left."""
    words = [sys.executable, "-c", f"from pathlib import Path; from kinfolk.cli.federation_demo import demonstrate; "
             f"demonstrate(Path({str(tmp_path / 'demo')!r}), rounds=8)"]  # fmt: skip
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path)
    known = {}
    lines = []
    for line in process.stdout:
        lines.append(line)
        known |= tether.descendants(process.pid)
    assert process.wait(240) == 0, "".join(lines)
    assert len(known) > 5
    assert tether.alive(known) == []
    assert "Site 'west' was killed after round" in "".join(lines)
    assert "error than one model for all" in "".join(lines)
    page = (tmp_path / "demo" / "coordinator" / "report.html").read_text()
    assert "Who reads what" in page
    traffic = read_traffic(tmp_path / "demo" / "coordinator")
    assert {flow["what"] for flow in traffic["west"] if flow["to"] == "south"} == {"sealed letter"}
    assert_models_as_of_one_process(tmp_path / "demo", rounds=8)
    left = pandas.read_csv(tmp_path / "demo" / "west" / "left.csv")
    assert {"coordinator", "midwest", "south"} == set(left["to"])
    letters = left[left["to"] != "coordinator"]
    assert not letters.duplicated(["run", "round", "to"]).any()  # what was answered again is not counted again
    assert set(letters["round"]) == set(range(9))


def assert_models_as_of_one_process(demo: Path, rounds: int):
    """The models at the sites are those of one process that has all rows, in the same units."""
    agreement = Agreement.read(demo / "coordinator")
    tables = {name: pandas.read_csv(demo / f"{name}.csv") for name in agreement.sites}
    rows = {name: site_rows(table, agreement, name) for name, table in tables.items()}
    scaled = agreement.schema.scaled
    units = Units.of(agreement.columns, scaled, [each.moments(scaled) for each in rows.values()])
    graph = agreement.graph(demo / "coordinator")
    blocks = {
        name: each.scaled(*units).data[k] for each in rows.values() for k, name in enumerate(each.nodes)
    }  # fmt: skip
    network = Network(graph, Data.from_nodes([blocks[name] for name in graph.names]))
    here = fit(network, agreement.algorithms()["tailored"], rounds=rounds, stop=None, progress=False)
    for name, table in tables.items():
        models = load_models(demo / name)
        assert models.nodes == list(rows[name].nodes)
        expected = here.models.w[graph.numbers(models.nodes)]
        np.testing.assert_allclose(models.models.w, expected, atol=1e-9)
        predicted = models.predict(table.head(3))
        assert np.isfinite(predicted[f"predicted {agreement.target}"]).all()
