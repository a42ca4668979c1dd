"""An audit finds what is known to be there: a row alone at its node, and nothing behind noise, seals and masks."""

import os
import re
import shutil
from dataclasses import replace

import numpy as np
import pandas
import pytest
from typer.testing import CliRunner

from federated import Direct, federation_of, rows_of
from kinfolk import FedAvg, GTVMin, InputError, Network, Squared, fit, graphs
from kinfolk.cli import app
from kinfolk.engine.noise import Noise
from kinfolk.engine.privacy import epsilon
from kinfolk.engine.wire import Blob, Key
from kinfolk.federation.agreement import Agreement
from kinfolk.federation.attacks import told_apart
from kinfolk.federation.audit import COORDINATOR, OTHERS, POPULATION, RELAY, Audit, RecordedRun, audit
from kinfolk.federation.coordinator import Federation
from kinfolk.federation.files import Journal
from kinfolk.federation.keys import Peer, SiteKey
from kinfolk.federation.operating import invitation_for, make_federation
from kinfolk.federation.service import Agreed, SiteService, peek
from kinfolk.federation.site_run import Care
from kinfolk.federation.site_table import agreed_columns
from kinfolk.federation.spending import spent
from kinfolk.federation.tables.auditing import ELIMINATION, START
from kinfolk.federation.tables.federated_job import learn_together
from kinfolk.federation.tables.masks import Masks, salt_of, summed, to_numbers
from kinfolk.federation.tables.queries import QUERIES, opened, read_answer, response_expected
from kinfolk.federation.taking_part import Participant
from kinfolk.report import privacy_words
from kinfolk.report.audit import AuditFacts, write_audit
from kinfolk.report.federation import FederationFacts, write_federation

ALGORITHM = GTVMin(Squared(intercept=True), lam=0.5, steps="published")
NOTHING = Care()
SIZES = (1, 30, 12)  # rows of the nodes


def small_network():
    rng = np.random.default_rng(3)

    def drawn(size):
        X = rng.normal(size=(size, 2))
        return X, X @ [1.0, -2.0] + 0.3 * rng.normal(size=size)

    return Network(graphs.complete(3), [drawn(size) for size in SIZES], test=[drawn(60) for _ in SIZES])


def taken_part(folder, algorithm=ALGORITHM, care=NOTHING, rounds=4):
    """A federation of three sites with one node each."""
    network = small_network()
    rows = rows_of(network, 3)
    post = Direct({name: SiteService(name, each, folder / name, care=care) for name, each in rows.items()})
    federation = federation_of(network, 3, post)
    run = fit(federation.gather(), algorithm, rounds=rounds, stop=None, engine=federation, progress=False)
    for service in post.services.values():
        service.close()
    return rows, post, run


def recorded(folder, algorithm=ALGORITHM, rounds=4):
    """The recorded runs of the sites, by node, and what was carried."""
    rows, post, _ = taken_part(folder, algorithm, Care(record=True), rounds)
    agreed = Agreed(None, [algorithm], list(rows))
    found = {each.nodes[0]: RecordedRun.read(name, folder / name, each, agreed) for name, each in rows.items()}
    return found, post


@pytest.fixture(scope="module")
def lone(tmp_path_factory):
    """The recorded run of the node that has one row."""
    return recorded(tmp_path_factory.mktemp("lone"))[0][0]


def test_the_run_is_repeated_to_the_last_bit(tmp_path):
    found, post = recorded(tmp_path, FedAvg(step_size=0.1), rounds=3)
    for each in found.values():
        terms = each.join.terms(each.algorithm.sends(each.join.problem))
        sent = [blob for name, to, blob in post.log if (name, to) == (each.name, "coordinator")]
        answers = [sealed for _, sealed in each.replayed(each.rows, None)]
        assert len(answers) == len(sent[2:]) > 3  # after hello and join
        for one, two in zip(sent[2:], answers, strict=True):
            first, second = (Blob.decode(blob, terms.answer).arrays for blob in (one, two))
            assert {name: values.shape for name, values in first.items()} == {
                name: values.shape for name, values in second.items()
            }
            for name in first:
                if not name.startswith("letter/"):  # sealed with other random numbers
                    np.testing.assert_array_equal(first[name], second[name])


def test_one_row_without_noise_is_known(lone):
    table = audit(lone, trials=20)
    assert set(table["rows"]) == {1}
    assert len(table) == 8
    found = table.set_index(["place", "knows"])
    for knows in (OTHERS, POPULATION):
        for place in ("site 1", "site 2", COORDINATOR):
            assert found.loc[(place, knows), ["auc", "hits"]].tolist() == [1.0, 1.0]
        assert found.loc[("site 1", knows), "reconstruction"] < 1e-3
        assert found.loc[(COORDINATOR, knows), "reconstruction"] < 0.5  # from what is measured alone
        assert found.loc[(RELAY, knows), ["auc", "hits", "reconstruction"]].tolist() == [0.5, 0.0, 1.0]  # only sizes


def test_behind_much_noise_there_is_nothing_to_tell(lone):
    attack = Audit(lone, 0, Noise(clip=1.0, scale=100.0), trials=100)
    members, rebuilt = attack.membership(), attack.reconstruction()
    for knows in (OTHERS, POPULATION):
        assert members["site 1", knows].auc == pytest.approx(0.5, abs=0.21)  # of chance alone the deviation is 0.06
        assert members[COORDINATOR, knows].auc > 0.95  # what is measured gets no noise
        assert rebuilt["site 1", knows] > 0.5


def test_many_rows_hide_one_from_who_does_not_know_the_others(tmp_path):
    found = recorded(tmp_path)[0]
    among = Audit(found[1], 0, trials=30).membership()
    assert among["site 2", OTHERS].auc == 1.0
    assert among["site 2", POPULATION].auc < 0.9


def test_noise_at_real_sites_is_secret_counted_and_sent_again_alike(tmp_path):
    care = Care(Noise(clip=2.0, scale=20.0))
    _, post, first = taken_part(tmp_path / "one", care=care)
    second = taken_part(tmp_path / "two", care=care)[2]
    assert first.history["objective"].iloc[-1] != second.history["objective"].iloc[-1]  # the seed is the same
    table = spent(tmp_path / "one" / "site 0").set_index("to")
    assert table["messages"].to_dict() == {"site 1": 5, "site 2": 5}  # round 0 and four more
    assert table["epsilon"].between(1, 10).all()
    name, _, blob = next(each for each in reversed(post.log) if each[1] == "site")
    again = SiteService(name, rows_of(small_network(), 3)[name], tmp_path / "one" / name, care=care)
    assert again.answer(blob) in post.carried
    again.close()


def test_a_folder_from_a_backup_gives_other_messages_other_noise(tmp_path):
    """The number of a request comes again, with another model: with equal noise the difference would be exact."""
    care = Care(Noise(clip=1e9, scale=20.0))  # nothing is cut
    rows, post, _ = taken_part(tmp_path / "sites", FedAvg(step_size=0.1), care, rounds=1)
    shutil.copytree(tmp_path / "sites" / "site 0", tmp_path / "backup")
    requests = [blob for name, to, blob in post.log if (name, to) == ("site 0", "site")][2:]

    def answered(folder, change):
        """What the site answers to a step from a model that the coordinator has chosen, twice."""
        service = SiteService("site 0", rows["site 0"], folder, care=care)
        terms, done = service.run.terms, service.run.done
        _, _, step, last = map(terms.decode_request, requests)
        to_all = {name: values + change for name, values in step.request.to_all.items()}
        turn, key = replace(step.request.turn, round=2), following(last.key)
        blob = terms.encode_request(key, done, done, replace(step.request, turn=turn, to_all=to_all))
        found = terms.decode_answer(service.answer(blob), key).coordinator["w"]
        service.close()
        again = SiteService("site 0", rows["site 0"], folder, care=care)  # killed, and asked again
        np.testing.assert_array_equal(terms.decode_answer(again.answer(blob), key).coordinator["w"], found)
        again.close()
        return found[0]

    def restored(change):
        shutil.copytree(tmp_path / "backup", tmp_path / str(change))
        return answered(tmp_path / str(change), change)

    first = answered(tmp_path / "sites" / "site 0", 0.0)
    np.testing.assert_array_equal(restored(0.0), first)
    assert np.abs(restored(0.01) - first).max() > 1.0  # two draws of deviation 20; without noise, at most 0.01


def following(key):
    return Key(key.run, key.query, key.number + 1)


def test_noise_promises_nothing_where_the_coordinator_reads_curvatures(tmp_path):
    """As in one process: what it reads exactly may come back in its replies."""
    algorithm = GTVMin(Squared(intercept=True), lam=0.5)
    taken_part(tmp_path, algorithm, Care(Noise(clip=2.0, scale=20.0)), rounds=1)
    table = spent(tmp_path / "site 0").set_index("to")
    assert np.isinf(table["epsilon"]).all()
    assert set(table.index) == {"site 1", "site 2", COORDINATOR}


@pytest.mark.parametrize("content", [b"{", b'{"a": 1}', b'{"secret": "no", "clip": 2.0, "scale": 20.0, "delta": 1e-5}'])
def test_damaged_noise_is_a_sentence(content, tmp_path):
    care = Care(Noise(clip=2.0, scale=20.0))
    rows = taken_part(tmp_path, care=care, rounds=1)[0]
    next((tmp_path / "site 0").glob("runs/*/noise.json")).write_bytes(content)
    with pytest.raises(InputError, match="is damaged"):
        SiteService("site 0", rows["site 0"], tmp_path / "site 0", care=care)


def test_another_noise_in_the_middle_of_a_run_is_refused(tmp_path):
    taken_part(tmp_path, care=Care(Noise(clip=2.0, scale=20.0)))
    for care in (Care(), Care(Noise(clip=2.0, scale=1.0))):
        with pytest.raises(InputError, match="Expected the noise with which this site has begun"):
            SiteService("site 0", rows_of(small_network(), 3)["site 0"], tmp_path / "site 0", care=care)


def test_an_audit_needs_a_record_and_the_same_rows(tmp_path):
    taken_part(tmp_path)
    rows = rows_of(small_network(), 3)
    agreed = Agreed(None, [ALGORITHM], list(rows))
    with pytest.raises(InputError, match="take part with --record"):
        RecordedRun.read("site 0", tmp_path / "site 0", rows["site 0"], agreed)
    first = recorded(tmp_path / "again")[0][0]
    journal = Journal(next((tmp_path / "again" / "site 0").glob("runs/*/recorded")))
    journal.append(journal.found[-1])  # killed before it had kept the request, the site was asked again
    journal.close()
    read = RecordedRun.read("site 0", tmp_path / "again" / "site 0", rows["site 0"], agreed)
    assert read.requests == first.requests
    with pytest.raises(InputError, match="Expected the rows that site 'site 0' has taken part with"):
        RecordedRun.read("site 0", tmp_path / "again" / "site 0", rows["site 1"], agreed)
    journal.path.write_bytes(b"")
    with pytest.raises(InputError, match="take part with --record"):
        RecordedRun.read("site 0", tmp_path / "again" / "site 0", rows["site 0"], agreed)


def test_without_the_mark_of_its_rows_a_site_says_so(tmp_path):
    rows = taken_part(tmp_path, care=Care(record=True))[0]
    (tmp_path / "site 0" / "rows").unlink()
    with pytest.raises(InputError, match=r"Expected the mark of the rows .* to join anew"):
        RecordedRun.read("site 0", tmp_path / "site 0", rows["site 0"], Agreed(None, [ALGORITHM], list(rows)))
    with pytest.raises(InputError, match=r"Expected the mark of the rows .* to join anew"):
        SiteService("site 0", rows["site 0"], tmp_path / "site 0", care=Care(record=True))


def test_an_audit_shows_how_far_it_is(lone, monkeypatch, capsys):
    monkeypatch.setattr("kinfolk.progress.PATIENCE", 0.0)
    monkeypatch.setattr("kinfolk.progress.BETWEEN_LINES", 0.0)
    audit(lone, trials=4)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("attacks on site site 0: 1 of 16, ")
    done, total = map(int, re.match(r".*: (\d+) of (\d+), ", lines[-1]).groups())
    assert done == total == len(lines)  # reconstructions need more than was known


def test_sums_of_one_row_are_the_row_unless_they_are_masked(tmp_path):
    """The coordinator reads the sums of a site with one row; with a mask, of the site nothing, and the same sum."""
    names = ("north", "south")
    keys = {name: SiteKey.at(tmp_path / name) for name in names}
    row, other = np.array([1.0, -2.0, 30.0]), np.array([0.5, 0.0, 10.0])
    rng = np.random.default_rng(0)

    def new_masks():
        salts = {each: salt_of(os.urandom(32)) for each in names}
        return {
            one: Masks(keys[one], one, salts[one], {Peer(two, keys[two].public): salts[two]})
            for one, two in (names, names[::-1])
        }

    def read_masked(values):
        return to_numbers(new_masks()["north"].masked(1, {"sums": values})["sums"])

    def worlds(read):
        return [np.stack([read(each(k)) for k in range(100)]) for each in (lambda k: row, lambda k: rng.normal(size=3))]

    assert told_apart(*worlds(lambda values: values)).auc == 1.0
    hidden = told_apart(*worlds(lambda values: read_masked(values)))
    assert hidden.auc == pytest.approx(0.5, abs=0.21)  # of chance alone the deviation is 0.06
    masks, sent = new_masks(), {"north": row, "south": other}
    total = summed([masks[name].masked(2, {"sums": values})["sums"] for name, values in sent.items()])
    np.testing.assert_allclose(total, row + other, atol=1e-12)


def test_where_there_is_nothing_to_tell_an_attack_finds_nothing():
    draws = [told_apart(*rng.normal(size=(2, 40, 20))).auc for rng in map(np.random.default_rng, range(200))]
    assert np.mean(draws) == pytest.approx(0.5, abs=4 * 0.09 / 200**0.5)
    assert np.std(draws) < 0.1


def test_of_nodes_with_equally_many_rows_those_are_attacked_that_others_read(tmp_path):
    rng = np.random.default_rng(0)
    network = Network(graphs.chain(4), [(rng.normal(size=(3, 2)), rng.normal(size=3)) for _ in range(4)])
    rows = rows_of(network, 2)
    services = {name: SiteService(name, own, tmp_path / name, care=Care(record=True)) for name, own in rows.items()}
    federation = federation_of(network, 2, Direct(services))
    fit(federation.gather(), ALGORITHM, rounds=1, stop=None, engine=federation, progress=False)
    for service in services.values():
        service.close()
    read = RecordedRun.read("site 0", tmp_path / "site 0", rows["site 0"], Agreed(None, [ALGORITHM], list(rows)))
    assert list(rows["site 0"].nodes) == [0, 1]
    assert read.reading_sites.tolist() == [0, 1]
    assert audit(read, 1, trials=4)["node"].unique().tolist() == [1]


@pytest.mark.parametrize("trials", [40, 100])
def test_the_page_knows_how_far_chance_alone_goes(trials):
    draws = [told_apart(*rng.normal(size=(2, trials, 20))).auc for rng in map(np.random.default_rng, range(300))]
    assert np.std(draws) == pytest.approx(
        privacy_words.audit_deviation(trials), rel=0.2
    )  # of 300 draws it is known to 4 %


def test_what_noise_promises_is_what_a_site_with_it_has_spent(tmp_path):
    noise = Noise(clip=2.0, scale=20.0)
    found, _ = recorded(tmp_path / "exact")
    taken_part(tmp_path / "noisy", care=Care(noise))
    pandas.testing.assert_frame_equal(found[0].promised(noise), spent(tmp_path / "noisy" / "site 0"))
    assert not (tmp_path / "exact" / "site 0" / "noise.csv").exists()  # nothing was sent


# ---------------------------------------------------------------------- the page


def told(auc, hits, error, *, node="<b>north</b>", rows=2, place="relay & co"):
    values = {"auc": auc, "hits": hits, "reconstruction": error}
    return pandas.DataFrame([{"node": node, "rows": rows, "place": place, "knows": OTHERS, **values}])


def drawn(page):
    """Where the circles of every picture are that has a description, by what it says."""
    found = re.findall(r"<title>([^<]* noise)</title>(.*?)</svg>", page, re.DOTALL)
    return {text: [float(x) for x in re.findall(r'cx="([\d.]+)"', dots)] for text, dots in found}


def test_the_page_draws_every_number_between_a_guess_and_certainty(tmp_path):
    facts = AuditFacts(
        "f<i>", "a<i>", 3, 100, told(1.0, 0.5, 0.0), Noise(1.0, 8.0), told(0.75, 0.25, 9.0), spent(tmp_path)
    )
    page = write_audit([facts], tmp_path / "audit.html").read_text()
    low, high = 7.0, 113.0  # the ends of the line
    assert drawn(page) == {
        "1.00 without noise, 0.75 with noise": [high, (low + high) / 2],
        "0.50 without noise, 0.25 with noise": [(low + high) / 2, low + (high - low) / 4],
        "0.00 without noise, 9.00 with noise": [high, low],
    }
    assert "has no more rows than there are features" in page
    assert not re.search(r"<i>|<b>north|relay & co|<script|https?://(?!www.w3.org)", page)


def test_the_summary_takes_the_worst_of_all_sites(tmp_path):
    north = AuditFacts("f", "north", 3, 100, told(0.6, 0.1, 0.9, rows=9), Noise(1.0, 8.0), told(0.5, 0.0, 1.0))
    south = AuditFacts("f", "south", 3, 100, told(0.9, 0.0, 0.2, rows=9, place="east"))
    page = write_audit([north, south], tmp_path / "audit.html").read_text()
    summary = page[: page.index("<h2>")]
    assert list(drawn(summary)) == [
        "0.90 without noise, 0.50 with noise", "0.10 without noise, 0.00 with noise",
        "0.20 without noise, 1.00 with noise",
    ]  # fmt: skip
    assert privacy_words.AUDIT_MIXED in summary
    assert "Caution" not in page
    alone = write_audit([south], tmp_path / "alone.html").read_text()
    assert privacy_words.AUDIT_TRY_NOISE in alone
    assert privacy_words.AUDIT_MIXED not in alone
    (tmp_path / "audit.html").write_text("mine")
    with pytest.raises(InputError, match="holds something else"):
        write_audit([south], tmp_path / "audit.html")


def test_a_coordinator_does_not_claim_to_know_the_noise_of_sites(tmp_path):
    facts = FederationFacts("f", "y", (), "GTVMin", {}, {}, "has ended", [], [])
    assert "so ε is unknown at this place" in write_federation(facts, tmp_path / "report.html").read_text()


# ---------------------------------------------------------------------- the commands


def run_command(*words):
    return CliRunner().invoke(app, list(map(str, words)), env={"COLUMNS": "100"})


def sentence(result):
    assert result.exit_code == 1, result.output
    return result.stderr.strip()


def clinic(seed):
    rng = np.random.default_rng(seed)
    table = pandas.DataFrame({"dose": rng.normal(size=40), "age": rng.normal(size=40)})
    return table.assign(effect=table["dose"] + rng.normal(size=40))


@pytest.fixture
def clinics(tmp_path):
    """Two sites of a federation that have taken part with noise, with what they have recorded."""
    pytest.importorskip("flwr", reason='Flower is not installed: pip install "kinfolk[flower]"')
    columns = agreed_columns(clinic(0), None, "effect")
    chosen = {"type": "GTVMin", "lam": 0.5, "steps": "published"}
    agreement = Agreement("clinics", "127.0.0.1:9092", ("a", "b"), "effect", columns.features, algorithm=chosen)
    make_federation(tmp_path / "coordinator", agreement)
    services = {}
    for seed, site in enumerate(agreement.sites):
        invitation = invitation_for(tmp_path / "coordinator", site, tmp_path / f"{site}.invite", days=1)
        clinic(seed).to_csv(tmp_path / f"{site}.csv", index=False)
        care = Care(Noise(clip=1.0, scale=8.0), record=True)
        participant = Participant.of(invitation, tmp_path / f"{site}.csv", tmp_path / site, care=care)
        assert "get noise of deviation 8" in " ".join(participant.leaving()["joining"])
        participant.consent()
        services[site] = participant.service()
    graph, schema = agreement.graph(tmp_path / "coordinator"), agreement.schema
    federation = Federation(graph, agreement.sites, Direct(services), schema, agreement.public_points())
    fit(federation.gather(), agreement.algorithms()["tailored"], rounds=1, engine=federation, progress=False)
    for service in services.values():
        service.close()
    return tmp_path


def test_sites_are_audited_by_command(clinics):
    (clinics / "b.invite").unlink()  # one is enough
    result = run_command("federation", "audit", clinics, "--trials", 4)
    assert result.exit_code == 0, result.output
    assert "What others could tell of site 'a', with noise (clip 1, deviation 8)" in result.output
    assert "What others could tell of site 'a', without noise" in result.output
    assert "A better attack may exist." in result.output
    page = (clinics / "audit.html").read_text()
    assert "With noise (clip 1, deviation 8)" in page
    assert f"<td>{epsilon(4.0, 2, 1e-5):.3g}</td>" in page
    line = ("site", "audit", clinics / "a.invite", "--data", clinics / "a.csv", "--folder", clinics / "a")
    weaker = run_command(*line, "--trials", 4, "--clip", 1, "--noise", 0.1)
    assert "site 'a', with noise (clip 1, deviation 0.1)" in weaker.output
    assert "Caution" not in weaker.output  # it has enough rows
    assert "What others could tell of site a" in (clinics / "a" / "audit.html").read_text()
    (clinics / "a.csv").write_text(clinic(5).to_csv(index=False))
    assert "Expected the rows that site 'a' has taken part with" in sentence(run_command(*line))
    assert "Expected --clip and --noise together" in sentence(run_command(*line, "--clip", 1))
    assert "found no NAME.invite" in sentence(run_command("federation", "audit", clinics / "a"))


# ---------------------------------------------------------------------- noise that was agreed on


def agreed(tmp_path, site="a", care=NOTHING, **noise):
    """A site of a federation whose agreement demands noise."""
    columns = agreed_columns(clinic(0), None, "effect")
    chosen = {"type": "GTVMin", "lam": 0.5, "steps": "published"}
    agreement = Agreement(
        "clinics", "127.0.0.1:9092", ("a", "b"), "effect", columns.features, algorithm=chosen, noise=noise
    )
    if not (tmp_path / "coordinator").exists():
        make_federation(tmp_path / "coordinator", agreement)
    assert Agreement.read(tmp_path / "coordinator") == agreement
    invitation = invitation_for(tmp_path / "coordinator", site, tmp_path / f"{site}.invite", days=1)
    clinic(ord(site)).to_csv(tmp_path / f"{site}.csv", index=False)
    return Participant.of(invitation, tmp_path / f"{site}.csv", tmp_path / site, care=care)


def test_an_agreement_demands_noise_and_a_site_adds_no_less(tmp_path):
    pytest.importorskip("flwr", reason='Flower is not installed: pip install "kinfolk[flower]"')
    demanded = {"clip": 1.0, "scale": 8.0, "epsilon": 6.0}
    plain = agreed(tmp_path, **demanded)
    assert plain.care == Care(Noise(1.0, 8.0), epsilon=6.0)
    told = " ".join(plain.leaving()["joining"])
    assert "get noise of deviation 8" in told
    assert "At most ε = 6 is spent on any receiver, over all runs" in told
    assert agreed(tmp_path, care=Care(Noise(2.0, 20.0)), **demanded).care.noise == Noise(2.0, 20.0)  # more of it
    with pytest.raises(InputError, match="Expected noise of at least 8 times the clip, as was agreed on, got 4 times"):
        agreed(tmp_path, care=Care(Noise(2.0, 8.0)), **demanded)


def test_a_site_spends_no_more_than_was_agreed_on(tmp_path, caplog):
    pytest.importorskip("flwr", reason='Flower is not installed: pip install "kinfolk[flower]"')
    most = epsilon(4.0, 3, 1e-5)  # of three messages
    sites = {site: agreed(tmp_path, site, clip=1.0, scale=8.0, epsilon=most + 1e-6) for site in ("a", "b")}
    for site in sites.values():
        site.consent()
    agreement = sites["a"].invitation.agreement
    graph, algorithm = agreement.graph(tmp_path / "coordinator"), agreement.algorithms()["tailored"]

    def run(rounds):
        services = {name: site.service() for name, site in sites.items()}
        federation = Federation(graph, agreement.sites, Direct(services), agreement.schema, agreement.public_points())
        try:
            return fit(federation.gather(), algorithm, rounds=rounds, stop=None, engine=federation, progress=False)
        finally:
            for service in services.values():
                service.close()

    run(1)  # two messages, with round 0
    assert spent(tmp_path / "a")["messages"].tolist() == [2]
    run(3)  # goes on without them
    assert "at most, as the owner of site 'a' has agreed to, got a request with which it would be more" in caplog.text
    assert spent(tmp_path / "a")["messages"].tolist() == [3]
    assert spent(tmp_path / "a")["epsilon"].max() == pytest.approx(most)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"noise": {"clip": 1.0}}, "Expected positive numbers as clip, scale"),
        ({"noise": {"clip": 1.0, "scale": -1.0}}, "got 'scale'"),
        ({"noise": {"clip": 1.0, "scale": 1.0, "magic": 1.0}}, "got 'magic'"),
        ({"noise": {"clip": 1.0, "scale": 1.0, "delta": 2.0}}, "'delta' parameter of Noise"),
        ({"algorithm": {"type": "GTVMin"}}, "the coordinator reads 'curvature of the loss, once' without"),
        ({"job": "fit"}, "Expected no [noise] where tables are learnt from"),
        ({"noise": 3}, "Expected [algorithm] with a type, [settings] and [noise]"),
    ],
)
def test_noise_that_cannot_be_agreed_on_gets_a_sentence(change, sentence):
    found = {
        "name": "f", "address": "here:1", "sites": ["a", "b"], "target": "y", "features": {"x": "number"},
        "algorithm": {"type": "GTVMin", "steps": "published"}, "noise": {"clip": 1.0, "scale": 8.0},
    }  # fmt: skip
    Agreement.of(found, "federation.toml")
    with pytest.raises(InputError, match=re.escape(sentence)):
        Agreement.of(found | change, "federation.toml")


def test_what_noise_promises_is_shown_with_what_was_sent(clinics):
    shown = " ".join(run_command("site", "sent", clinics / "a").output.split())
    assert "What noise promises for all rows of a node" in shown
    assert f"{epsilon(4.0, 2, 1e-5):.3g}" in shown
    assert "what was measured at a node, had none" in shown
    (clinics / "a" / "noise.csv").write_text("nothing\n1\n")
    assert "it is damaged: move it away" in sentence(run_command("site", "sent", clinics / "a"))


# ---------------------------------------------------------------------- tables


def learnt_from_tables(folder):
    """Two sites that have learnt together from tables, and recorded it; of a clinic there is one row to learn from."""
    pytest.importorskip("flwr", reason='Flower is not installed: pip install "kinfolk[flower]"')
    rng = np.random.default_rng(0)
    agreement = Agreement(
        "clinics", "127.0.0.1:9092", ("a", "b"), "effect", {"dose": "number", "age": "number"}, "clinic", job="fit",
        settings={"members": "pooled,tailored", "folds": 2, "lam": 1.0, "graph": "complete"},
    )  # fmt: skip
    make_federation(folder / "coordinator", agreement)
    services, participants = {}, {}
    for site in agreement.sites:
        names = np.repeat([f"{site} few", f"{site} many"], [2, 24])
        table = pandas.DataFrame({"clinic": names, "dose": rng.normal(size=26), "age": rng.normal(60, 12, size=26)})
        table = table.assign(effect=table["dose"] + rng.normal(size=26))
        invitation = invitation_for(folder / "coordinator", site, folder / f"{site}.invite", days=1)
        table.to_csv(folder / f"{site}.csv", index=False)
        own = Participant.of(invitation, folder / f"{site}.csv", folder / site, care=Care(record=True))
        own.consent()
        participants[site], services[site] = own, own.service()
    post = Direct(services)
    learn_together(post, list(services), agreement.table_settings)
    for site, service in services.items():
        service.end()
        participants[site].keep(service)
        service.close()
    return participants, post


@pytest.fixture
def fitted(tmp_path):
    """What two sites have recorded of a job about tables."""
    return tmp_path, learnt_from_tables(tmp_path)[0]


def test_sums_of_a_job_tell_rows_and_with_masks_numbers_of_nodes_are_left(fitted):
    _, participants = fitted
    job = participants["a"].recorded()
    assert job.rows.data.sizes.tolist() == [1, 19]  # some are held out
    assert job.held_out_alone == ["a few"]
    plain = audit(job, 2, trials=4).set_index(["node", "place", "knows"])
    for knows in (OTHERS, POPULATION):
        assert plain.loc[("a few", COORDINATOR, knows), "auc"] == 1.0
        assert plain.loc[("a few", COORDINATOR, knows), "reconstruction"] < 1e-6
        assert plain.loc[("a few", "b", knows), "auc"] == 1.0
        assert plain.loc[("a few", "b", knows), "reconstruction"] < 1e-6  # from the first messages of its node
        assert plain.loc[("a few", RELAY, knows), ["auc", "reconstruction"]].tolist() == [0.5, 1.0]
    assert plain.loc[("a many", COORDINATOR, OTHERS), "reconstruction"] < 1e-6
    assert plain.loc[("a many", COORDINATOR, POPULATION), "reconstruction"] > 0.1
    masked = job.with_masks()
    seen, left = (each.views(each.rows, 1, None) for each in (job, masked))
    assert masked.guesses(COORDINATOR, left[COORDINATOR], np.zeros((0, 3)), 1) == []
    assert 0 < len(left[COORDINATOR]) < len(seen[COORDINATOR])
    np.testing.assert_array_equal(left["b"], seen["b"])  # encrypted messages are not sums


def test_what_is_repeated_is_what_was_sent(fitted):
    """The sums that the coordinator has read, from the record."""
    folder, participants = fitted
    job, services = participants["a"].recorded(), participants["a"].service()
    told = job.views(job.rows, 0, None)[COORDINATOR]
    X, y = services.given[["dose", "age"]].to_numpy(), services.given["effect"].to_numpy()
    services.close()
    train = ~job.table.held_out
    encoded = (X[train] - job.table.encoder.centre) / job.table.encoder.scale
    np.testing.assert_allclose(told[:2], encoded.sum(axis=0), atol=1e-9)
    np.testing.assert_allclose(
        told[2], ((y[train] - job.table.target.centre) / job.table.target.spread).sum(), atol=1e-9
    )
    left = pandas.read_csv(folder / "a" / "left.csv")
    assert (left["what"] == "sums of products of features").sum() == 1


def responses_in(post, site):
    """What a site has answered, by message and query: all arrays as they were read."""
    sent = [blob for name, to, blob in post.log if (name, to) == (site, "site")]
    received = [blob for name, to, blob in post.log if (name, to) == (site, "coordinator")]
    found = {}
    for message, answer in zip(sent, received, strict=True):
        key, names = peek(message)[1], [name for name, _ in opened(message).queries]
        responses = read_answer(answer, key, names, [response_expected(name, {}) for name in names])
        found |= {(key.number, name): arrays for name, (_, arrays) in zip(names, responses, strict=True)}
    return found


def test_a_job_is_repeated_to_the_last_bit(tmp_path):
    """With the rows that there were, the coordinator reads the numbers that it has read."""
    participants, post = learnt_from_tables(tmp_path)
    job, sent = participants["a"].recorded(), responses_in(post, "a")
    told = job.views(job.rows, 0, None)
    attacked = [query for query in job.queries if query.name != START]
    assert [query.name for query in attacked[:2]] == ["moments", "begin gradients"]
    expected = []
    for query in attacked:
        for name, array in QUERIES[query.name].response.items():
            values = sent[query.number, query.name][name]
            if array.reader != "neighbours":
                expected.append(np.take(values, 0, axis=array.axes.index("nodes")) if "nodes" in array.axes else values)
    sums = 2 * (len(job.rows.features) + 1)
    np.testing.assert_array_equal(told[COORDINATOR][sums:], np.concatenate([np.ravel(each) for each in expected]))
    turns = [query for query in attacked if query.name.endswith("gradients")]
    assert len(told["b"]) == sum(len(sent[each.number, each.name]["products"]) for each in turns) * 3  # parameters


def test_how_a_boundary_node_responds_tells_its_row(tmp_path, monkeypatch):
    """Sites refuse to tell that of nodes with few rows; where they did, nothing but the inverse would be needed."""
    with monkeypatch.context() as patched:
        patched.setattr("kinfolk.tables.joint.may_respond", lambda rows, width: True)
        patched.setattr("kinfolk.federation.tables.handlers.may_respond", lambda rows, width: True)
        participants, _ = learnt_from_tables(tmp_path)
        job = participants["a"].recorded()
        assert {"begin graph", "step graph"} <= {query.name for query in job.queries}
        assert job.reading_sites.tolist() == [1, 1]
        responses = replace(job, masked=True, queries=[query for query in job.queries if query.name in ELIMINATION])
        rebuilt = Audit(responses, 0).reconstruction()
        hidden = job.with_masks().views(job.rows, 0, None)
    for knows in (OTHERS, POPULATION):
        assert rebuilt[COORDINATOR, knows] < 1e-6
        assert rebuilt[privacy_words.AUDIT_NEIGHBOUR, knows] < 1e-3  # its model, from the pull at a single neighbour
    assert len(hidden[COORDINATOR]) == 1  # the trace: with masked sums nobody asks how boundary nodes respond


def test_a_job_is_audited_by_command(fitted):
    folder, _ = fitted
    (folder / "b.invite").unlink()
    result = run_command("federation", "audit", folder, "--trials", 4, "--nodes", 1)
    assert result.exit_code == 0, result.output
    assert "What others could tell of site 'a', without masked sums" in result.output
    assert "What others could tell of site 'a', with masked sums" in result.output
    assert "of 'a few' one row is held out" in " ".join(result.output.split())
    page = (folder / "audit.html").read_text()
    assert re.search(r"Without masked sums: a neighbouring site[^;]*; coordinator finds the row; relay: nothing", page)
    assert privacy_words.AUDIT_OF_TABLES in page
    line = ("site", "audit", folder / "a.invite", "--data", folder / "a.csv", "--folder", folder / "a")
    assert "Expected no noise where tables are learnt from" in sentence(run_command(*line, "--clip", 1, "--noise", 1))
    other = pandas.read_csv(folder / "a.csv").assign(dose=0.5)
    other.to_csv(folder / "other.csv", index=False)
    changed = run_command(*line[:4], folder / "other.csv", *line[5:])
    assert "Expected the rows that site 'a' has taken part with" in sentence(changed)
    (folder / "a" / "recorded").unlink()
    assert "Expected a job that was recorded" in sentence(run_command(*line))
