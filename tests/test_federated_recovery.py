"""A job over tables goes on after kill -9, of a site or of the coordinator, and ends with the same bits."""

import contextlib
import json
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kinfolk import InputError
from kinfolk.engine.wire import WireError
from kinfolk.federation.files import Journal
from kinfolk.federation.ledger import sent_in_all
from kinfolk.federation.recalling import ANSWERS, RecallingPost
from kinfolk.federation.sockets import SocketPost, serve
from kinfolk.federation.tables.federated_job import learn_together
from kinfolk.federation.tables.service import TableService
from kinfolk.federation.tables.site_journal import QUESTIONS
from kinfolk.tables import Settings
from test_federated_tables import Direct, Without, cut, shops
from test_federation import free_port

pytest.importorskip("cryptography", reason="the package cryptography is not installed")
CHOSEN = {"node": "shop", "target": "sales", "members": "pooled,slopes,tailored", "folds": 2, "lam": 1.0}
SETTINGS = Settings.of(CHOSEN)
TABLES = cut(shops(4, 12), 2)
NAMES = list(TABLES)


class StoppedError(Exception):
    """The coordinator is gone."""


class Dying:
    """A post whose coordinator dies before an exchange, or after it."""

    def __init__(self, post, last=0, *, after=False):
        self.post, self.last, self.after, self.asked = post, last, after, 0

    def ask(self, blobs, most, seconds):
        self.asked += 1
        if self.asked == self.last and not self.after:
            raise StoppedError
        found = self.post.ask(blobs, most, seconds)
        if self.asked == self.last:
            raise StoppedError
        return found


@contextlib.contextmanager
def services(folder, **options):
    found = {name: TableService(name, table, folder / name, **options) for name, table in TABLES.items()}
    try:
        yield found
    finally:
        for each in found.values():
            each.close()


def told(run):
    """All numbers that came out."""
    board, nodes = run.leaderboard, run.nodes
    return board["error"].tolist(), run.weights, run.judgement.text, nodes.to_numpy(dtype=float).tobytes()


def undisturbed(folder, secure=False):
    with services(folder) as sites:
        run = learn_together(Direct(sites), NAMES, SETTINGS, secure=secure)
        return told(run), {name: each.predict(TABLES[name]) for name, each in sites.items()}, run


def stopped(post, folder, **options):
    """Begin a job whose coordinator dies."""
    recalling = RecallingPost(post, NAMES, folder / "job", "one")
    with contextlib.closing(recalling), pytest.raises(StoppedError):
        learn_together(recalling, NAMES, SETTINGS, job=recalling.job, **options)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What comes out when nobody dies."""
    return undisturbed(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def masked(tmp_path_factory):
    """The same with secure sums."""
    return undisturbed(tmp_path_factory.mktemp("masked"), secure=True)[0]


def test_a_site_killed_at_several_moments_goes_on(whole, tmp_path):
    """kill -9 before a question is on the disk, after it is, early, and within a batch of fits; it is started again."""
    numbers, predicted, run = whole
    TABLES["site 1"].to_csv(tmp_path / "table.csv", index=False)
    moments = [("after", 2), ("before", 3), ("after", run.exchanges - 12), ("never", 0)]
    codes = []

    def start(port):
        script = Path(__file__).with_name("table_site_process.py")
        for moment in moments:
            words = ["site 1", tmp_path / "table.csv", tmp_path / "site 1", port, *moment, tmp_path / "out.npy"]
            codes.append(subprocess.call([sys.executable, str(script), *map(str, words)]))

    with services(tmp_path / "others") as sites, SocketPost() as post:
        threads = [
            threading.Thread(target=serve, args=(sites["site 0"], post.address), daemon=True),
            threading.Thread(target=start, args=(post.address[1],), daemon=True),
        ]
        for thread in threads:
            thread.start()
        assert told(learn_together(post, NAMES, SETTINGS, patience=100.0)) == numbers
        post.close()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
    assert codes == 3 * [-signal.SIGKILL] + [0]
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), predicted["site 1"])
    questions = len(Journal(tmp_path / "site 1" / QUESTIONS).found) - 1
    assert questions == run.exchanges


def test_a_killed_coordinator_goes_on_and_asks_nothing_twice(whole, tmp_path):
    """Real processes, killed before and after an exchange is on the disk."""
    numbers, predicted, run = whole
    port, script = free_port(), Path(__file__).with_name("table_coordinator_process.py")
    words = [tmp_path / "job", port, json.dumps(CHOSEN)]
    with services(tmp_path) as sites:
        for each in sites.values():
            threading.Thread(target=serve, args=(each, ("127.0.0.1", port)), daemon=True).start()
        codes = [
            subprocess.call([sys.executable, str(script), *map(str, [*words, *moment])])
            for moment in (("before", 4), ("after", run.exchanges - 20), ("never", 0))
        ]
        assert codes == 2 * [-signal.SIGKILL] + [0]
        found = json.loads((tmp_path / "job" / "result.json").read_text())
        assert found == json.loads(json.dumps([*numbers[:3], numbers[3].hex()]))
        sent = [sent_in_all(site.folder).set_index("what")["messages"] for site in sites.values()]
        assert [each["training rows of every node"] for each in sent] == [1, 1]
        for name, each in sites.items():
            np.testing.assert_array_equal(each.predict(TABLES[name]), predicted[name])


@pytest.mark.parametrize(("last", "after"), [(1, False), (1, True), (9, True), (30, False)])
def test_both_are_gone_at_the_same_time(masked, last, after, tmp_path):
    """The coordinator stops at an exchange, all sites as well; with secure sums, whose masks stay the same."""
    with services(tmp_path) as sites:
        stopped(Dying(Direct(sites), last, after=after), tmp_path, secure=True)
    left = sent_in_all(tmp_path / "site 0")["messages"].sum()
    with services(tmp_path) as sites:
        assert sent_in_all(tmp_path / "site 0")["messages"].sum() == left  # nothing left anew
        rest = Dying(Direct(sites))
        with contextlib.closing(RecallingPost(rest, NAMES, tmp_path / "job", "one")) as post:
            assert post.recalled == last - 1
            run = learn_together(post, NAMES, SETTINGS, secure=True, job=post.job)
            assert told(run) == masked
        assert rest.asked == post.number - (last - 1)


def test_a_finished_job_is_read_from_its_folder(whole, tmp_path):
    with services(tmp_path) as sites:
        for post in (Direct(sites), None):  # the second time nobody is asked
            with contextlib.closing(RecallingPost(post, NAMES, tmp_path / "job")) as recalling:
                assert told(learn_together(recalling, NAMES, SETTINGS, job=recalling.job)) == whole[0]


def test_a_coordinator_that_dies_after_a_site_has_gone_goes_on_without_it(tmp_path):
    tables = cut(shops(6, 12), 3)
    sites = {name: TableService(name, table, tmp_path / name) for name, table in tables.items()}
    numbers = []
    for last in (40, 0):  # it dies, and goes on; the site is back by then
        post = Dying(Direct(sites) if not last else Without(sites, "site 1", 9), last)
        recalling = RecallingPost(post, list(sites), tmp_path / "job", gone=True)
        with contextlib.closing(recalling), contextlib.suppress(StoppedError):
            run = learn_together(recalling, list(sites), SETTINGS, job=recalling.job, fewest=2)
            numbers.append((run.graph.node_count, list(run.gone)))
    assert numbers == [(4, ["site 1"])]
    for site in sites.values():
        site.close()


# ---------------------------------------------------------------------- what does not fit


def begun(folder, last=9):
    """A job that was stopped at an exchange."""
    with services(folder) as sites:
        stopped(Dying(Direct(sites), last), folder)


def test_other_arguments_are_refused_at_the_coordinator(tmp_path):
    begun(tmp_path)
    with pytest.raises(InputError, match="got other settings, sites or another version: bring them back, or remove"):
        RecallingPost(None, NAMES, tmp_path / "job", "another")
    with contextlib.closing(RecallingPost(None, NAMES, tmp_path / "job", "one")) as post:
        with pytest.raises(InputError, match="got other arguments"):
            learn_together(post, NAMES, replace(SETTINGS, lam=2.0), job=post.job)
        with pytest.raises(InputError, match="another process works in"):
            RecallingPost(None, NAMES, tmp_path / "job", "one")


def test_another_table_is_refused_at_a_site_until_the_job_has_ended(tmp_path):
    begun(tmp_path)
    other = TABLES["site 0"].assign(price=1.0)
    with pytest.raises(InputError, match=r"'site 0' has begun the present job with, got others: .* to begin anew"):
        TableService("site 0", other, tmp_path / "site 0")
    with contextlib.closing(TableService("site 0", TABLES["site 0"], tmp_path / "site 0")) as site:
        site.end()
    with contextlib.closing(TableService("site 0", TABLES["site 0"], tmp_path / "site 0")) as site:
        assert site.party  # the same table: its models may not be kept yet
    with (
        contextlib.closing(TableService("site 0", other, tmp_path / "site 0")) as site,
        pytest.raises(WireError, match="Expected rows that are encoded first"),
    ):
        _ = site.party


@pytest.mark.parametrize(("who", "name"), [("site 0", QUESTIONS), ("job", ANSWERS)])
@pytest.mark.parametrize("place", [3, 60, 500])
def test_a_damaged_journal_is_a_sentence(who, name, place, tmp_path):
    begun(tmp_path)
    path = tmp_path / who / name
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match="is damaged: restore it, or remove it to begin anew"):
        reopened(path.parent)


def reopened(folder):
    if folder.name == "job":
        return RecallingPost(None, NAMES, folder, "one")
    return TableService(folder.name, TABLES[folder.name], folder)


@pytest.mark.parametrize("lost", [1, 40])
def test_a_journal_whose_end_is_torn_goes_on(whole, lost, tmp_path):
    """The last record of the site and of the coordinator were being written."""
    begun(tmp_path)
    for who, name in (("site 0", QUESTIONS), ("job", ANSWERS)):
        path = tmp_path / who / name
        path.write_bytes(path.read_bytes()[:-lost] + bytes(lost // 2))
    with (
        services(tmp_path) as sites,
        contextlib.closing(RecallingPost(Direct(sites), NAMES, tmp_path / "job", "one")) as post,
    ):
        assert post.recalled == 7
        assert told(learn_together(post, NAMES, SETTINGS, job=post.job)) == whole[0]


def test_a_site_that_has_lost_questions_refuses(tmp_path):
    """Its journal was cut: it must not go on from another state."""
    begun(tmp_path, 12)
    path = tmp_path / "site 0" / QUESTIONS
    records = Journal(path).found
    path.unlink()
    with contextlib.closing(Journal(path)) as journal:
        for record in records[:-3]:
            journal.append(record)
    with services(tmp_path) as sites, pytest.raises(InputError, match="has kept of the job is not whole; begin anew"):
        with_job(Direct(sites), tmp_path)


def with_job(post, folder):
    with contextlib.closing(RecallingPost(post, NAMES, folder / "job", "one")) as recalling:
        return learn_together(recalling, NAMES, SETTINGS, job=recalling.job)
