"""The attacks of ``benchmarks/attack.py``, the quick setting: one sentence or the right answer, and nothing else."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
import attack


@pytest.fixture(scope="module")
def ground(tmp_path_factory):
    return attack.Ground.made(tmp_path_factory.mktemp("ground"))


@pytest.fixture(scope="module")
def attacks(ground):
    return attack.all_attacks(ground)


def test_there_are_many_attacks_and_no_two_are_the_same(attacks):
    assert len(attacks) >= 300
    assert len({(each.group, each.name) for each in attacks}) == len(attacks)


@pytest.mark.parametrize(
    "group", ["damaged folders", "tables", "rows to predict", "options", "kills", "two at once", "updates"]
)
def test_every_attack_ends_well(group, attacks):
    counts = attack.counted([each for each in attack.some_of(attacks, 20) if each.group == group])
    assert set(counts[group]) <= set(attack.GOOD)


def test_what_is_bad_is_counted_as_bad(ground, tmp_path):
    """The count sees a command that runs where it must not, one that crashes, and one that never ends."""
    ran = attack.invoke("show", ground.run)
    assert attack.judged(ran, "refuse", lambda: True)[0] == "silently wrong"
    assert attack.judged(ran, "run", lambda: False)[0] == "silently wrong"
    assert attack.judged(ran, "run", lambda: True)[0] == "ran rightly"
    refused = attack.invoke("show", tmp_path / "nothing")
    assert attack.judged(refused, "run", lambda: True)[0] == "wrongly refused"
    assert attack.judged(refused, "either", lambda: True)[0] == "one sentence"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kinfolk.cli.jobs.load_results", lambda folder: 1 / 0)
        assert attack.judged(attack.invoke("show", ground.run), "either", lambda: True)[0] == "traceback"
        patch.setattr(attack, "LIMIT", 0.2)
        endless = attack.Attack("none", "endless", lambda place: __import__("time").sleep(60))
        assert attack.tried(endless)[0] == "no end"


def test_the_table_of_the_page_adds_up():
    """The page shows the counts of all groups, and none of them is bad."""
    page = (Path(__file__).parent.parent / "docs" / "attacks.md").read_text()
    lines = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    head, rows = lines[0], lines[2:]
    assert head == ["attacks", "cases", *attack.GOOD, *attack.BAD]
    counts = [list(map(int, row[1:])) for row in rows]
    assert [sum(column) for column in zip(*counts[:-1], strict=True)] == counts[-1]
    assert all(row[0] == row[1] + row[2] for row in counts)
    assert counts[-1][0] >= 300
