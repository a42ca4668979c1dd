"""Attacks: whatever is given to the commands, they end with one sentence or with the right answer.

``python benchmarks/attack.py`` tries damaged folders, tables, options, environments, kills and two runs at once, each
in a process of its own, and counts what came out: one sentence, ran rightly, traceback, silently wrong, wrongly
refused, no end. The last four must be zero. ``--quick`` takes every n-th case of a group, ``--only GROUP`` one group,
``-v`` shows each.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas
from typer.testing import CliRunner

from kinfolk.cli import app
from kinfolk.tables import load
from kinfolk.tables.manifest import Manifest
from kinfolk.tables.workplace import Workplace, unfinished

sys.path.insert(0, str(Path(__file__).parent))
import attack_cases as cases

GOOD = ("one sentence", "ran rightly")
BAD = ("traceback", "silently wrong", "wrongly refused", "no end")
LIMIT = 180.0  # seconds for a case, on a busy machine
FLAGS = ["--node", "shop", "--target", "sales", "--lam", "1", "--folds", "2", "--members", "pooled,slopes"]


@dataclass(frozen=True)
class Attack:
    """One case: it works in a folder of its own, and returns what came out and why."""

    group: str
    name: str
    try_it: Callable[[Path], tuple[str, str]]


@dataclass(frozen=True)
class Ground:
    """What attacks begin with: a table, a run on it, and what that predicts."""

    place: Path

    @property
    def table(self) -> Path:
        """The table of the run."""
        return self.place / "t.csv"

    @property
    def run(self) -> Path:
        """The folder of the run."""
        return self.place / "run"

    @classmethod
    def made(cls, place: Path) -> Ground:
        """Fit a small table; this compiles what later cases need."""
        ground = cls(place)
        cases.shops().to_csv(ground.table, index=False)
        done = invoke("fit", ground.table, *FLAGS, "--out", ground.run)
        assert done.exit_code == 0, done.output
        return ground

    def predicts_as_before(self, folder: Path) -> bool:
        """Whether a run predicts the rows of the table as the first one does."""
        return bool((load(folder).predict(cases.shops()) == load(self.run).predict(cases.shops())).all())


def invoke(*words: Any, **environment: str) -> Any:
    """A command, as a user types it."""
    return CliRunner().invoke(app, list(map(str, words)), env={"COLUMNS": "80", **environment})


def judged(result: Any, must: str, right: Callable[[], bool]) -> tuple[str, str]:
    """What came out of a command: ``must`` is refuse, run or either; ``right`` looks at what it wrote."""
    lines = result.stderr.strip().splitlines()
    if result.exit_code == 0:
        if must == "refuse":
            return "silently wrong", "it ran"
        return ("ran rightly", "") if right() else ("silently wrong", "another answer")
    stopped = isinstance(result.exception, SystemExit)
    sentence = result.exit_code == 2 and "Error" in result.stderr
    sentence |= (
        result.exit_code == 1 and len(lines) == 1 and lines[0].startswith("kinfolk: ") and lines[0].endswith(".")
    )
    if not stopped or not sentence:
        return "traceback", f"{result.exit_code} {result.exception!r} {lines[-3:]}"
    return ("wrongly refused", lines[-1]) if must == "run" else ("one sentence", lines[-1])


# ---------------------------------------------------------------------- the groups


def folders(ground: Ground) -> Iterator[Attack]:
    """Every file of a run, damaged in every way."""

    def attack(name: str, damage: Callable[[Path, bytes], Any]) -> Callable[[Path], tuple[str, str]]:
        def try_it(place: Path) -> tuple[str, str]:
            shutil.copytree(ground.run, place / "run")
            file = place / "run" / name
            damage(file, file.read_bytes())
            result = invoke("predict", place / "run", ground.table)
            return judged(result, "refuse", lambda: False)

        return try_it

    manifest = Manifest.read(ground.run / "manifest.sha256")
    assert manifest is not None
    for name in [*sorted(set(manifest.checksums) - {"report.html"}), "manifest.sha256"]:
        for kind, damage in cases.DAMAGES.items():
            yield Attack("damaged folders", f"{name}: {kind}", attack(name, damage))


def tables(ground: Ground) -> Iterator[Attack]:
    """Tables that are odd, ambiguous, or no tables."""

    def attack(case: cases.TableCase) -> Callable[[Path], tuple[str, str]]:
        def try_it(place: Path) -> tuple[str, str]:
            (place / case.file).write_bytes(case.content())
            result = invoke("fit", place / case.file, *FLAGS, *case.options, "--out", place / "run")
            return judged(result, case.must, lambda: case.right(load(place / "run")))

        return try_it

    for case in cases.TABLES:
        yield Attack("tables", case.name, attack(case))


def rows(ground: Ground) -> Iterator[Attack]:
    """Tables to predict that differ from the one that was learnt."""

    def attack(case: cases.RowsCase) -> Callable[[Path], tuple[str, str]]:
        def try_it(place: Path) -> tuple[str, str]:
            case.table().to_parquet(place / "new.parquet")
            out = place / "out.csv"
            result = invoke("predict", ground.run, place / "new.parquet", "--out", out, *case.options)
            return judged(result, case.must, lambda: case.right(pandas.read_csv(out)))

        return try_it

    for case in cases.ROWS:
        yield Attack("rows to predict", case.name, attack(case))


def options(ground: Ground) -> Iterator[Attack]:
    """Options that are odd, or make no sense."""

    def attack(words: list[str], must: str) -> Callable[[Path], tuple[str, str]]:
        def try_it(place: Path) -> tuple[str, str]:
            os.chdir(place)
            said = [word.replace("TABLE", str(ground.table)).replace("RUN", str(ground.run)) for word in words]
            folder = Path(os.path.realpath(said[said.index("--out") + 1])) if "--out" in said else place / "t-run"
            return judged(
                invoke(*said), must, lambda: "fit" not in said or np.isfinite(load(folder).leaderboard["error"]).all()
            )

        return try_it

    for words, must in cases.OPTIONS:
        said = [FLAGS if word == "FLAGS" else [word] for word in words]
        yield Attack("options", " ".join(words), attack([word for part in said for word in part], must))


def environments(ground: Ground) -> Iterator[Attack]:
    """A system that refuses, and terminals of all kinds; the command is one of its own process."""

    def attack(words: list[str], setting: cases.Setting) -> Callable[[Path], tuple[str, str]]:
        def try_it(place: Path) -> tuple[str, str]:
            shutil.copytree(ground.run, place / "run")
            shutil.copy(ground.table, place / "t.csv")
            code, out, err = cases.in_process([sys.executable, "-m", "kinfolk", *words], place, setting)
            if "Traceback" in err or code not in setting.codes:
                return "traceback", f"{code} {err[-200:]}"
            if code == 0:
                return ("ran rightly", "") if setting.right(place, out) else ("silently wrong", out[-200:])
            return "one sentence", err.strip()[-100:]

        return try_it

    for words, setting in cases.ENVIRONMENTS:
        yield Attack("environments", f"{words[0]}: {setting.name}", attack(words, setting))


def kills(ground: Ground) -> Iterator[Attack]:
    """A fit that is killed at some step of its writing; then the same command again."""

    def attack(step: int, force: bool) -> Callable[[Path], tuple[str, str]]:
        def try_it(place: Path) -> tuple[str, str]:
            folder = place / "run"
            if force:
                shutil.copytree(ground.run, folder)
                (folder / "notes.txt").write_text("mine")
            words = ["fit", ground.table, *FLAGS, "--out", folder, *(["--force"] if force else [])]
            if not killed(step, words):
                return "silently wrong", "it was not killed"
            if force and [file.read_text() for file in place.rglob("notes.txt")] != ["mine"]:
                return "silently wrong", "a file of the user's is gone"
            outcome, why = judged(invoke(*words), "either", lambda: True)
            there = folder.is_dir() and not unfinished(folder).exists() and ground.predicts_as_before(folder)
            return (outcome, why) if there else ("silently wrong" if outcome in GOOD else outcome, why)

        return try_it

    for force in (False, True):
        for step in moments(ground, force):
            yield Attack("kills", f"at change {step}{', --force' if force else ''}", attack(step, force))


def moments(ground: Ground, force: bool) -> list[int]:
    """Every eighth of the changes to files that a fit makes, and every other of the last ones."""

    def counted_fit(place: Path) -> tuple[str, str]:
        folder = place / "run"
        if force:
            shutil.copytree(ground.run, folder)
        count = count_changes(0)
        invoke("fit", ground.table, *FLAGS, "--out", folder, *(["--force"] if force else []))
        return str(count[0]), ""

    with tempfile.TemporaryDirectory() as place:
        total = int(_outcome(*_child(counted_fit, Path(place)))[0])
    return [*range(1, total - 40, 8), *range(total - 40, total + 1, 2)]


def count_changes(last: int) -> list[int]:
    """Count the changes to files in this process from now on, and kill it before one of them."""
    count = [0]

    def counted(original: Any) -> Any:
        def before(*given: Any, **named: Any) -> Any:
            count[0] += 1
            if count[0] == last:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*given, **named)

        return before

    for name in ("replace", "unlink", "rmdir", "mkdir", "write_bytes"):
        setattr(Path, name, counted(getattr(Path, name)))
    Workplace._append = counted(Workplace._append)  # type: ignore[method-assign]
    return count


def killed(last: int, words: list[Any]) -> bool:
    """Run a command in a process that is killed before one of its changes to files; whether it was."""
    child = os.fork()
    if child == 0:
        count_changes(last)
        try:
            invoke(*words)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def together(ground: Ground) -> Iterator[Attack]:
    """Two fits into one folder at the same time: one runs, the other is refused, and the answer is the right one."""

    def try_it(place: Path) -> tuple[str, str]:
        words = ["fit", ground.table, *FLAGS, "--out", place / "run"]
        children = [_child(lambda _: judged(invoke(*words), "either", lambda: True), place) for _ in range(2)]
        outcomes = sorted(_outcome(*child)[0] for child in children)
        right = outcomes == sorted(GOOD) and ground.predicts_as_before(place / "run")
        return ("ran rightly", "") if right else ("silently wrong", str(outcomes))

    for k in range(3):
        yield Attack("two at once", str(k), try_it)


def updates(ground: Ground) -> Iterator[Attack]:
    """Odd rows that shall join a run, and updates that are killed; a run that is not updated is as it was."""

    def odd(make: Callable[[pandas.DataFrame], pandas.DataFrame], must: str) -> Callable[[Path], tuple[str, str]]:
        def try_it(place: Path) -> tuple[str, str]:
            shutil.copytree(ground.run, place / "run")
            make(cases.new_rows()).to_parquet(place / "new.parquet")
            result = invoke("update", place / "run", place / "new.parquet")
            found = judged(result, must, lambda: load(place / "run").changes is not None)
            same = result.exit_code == 0 or ground.predicts_as_before(place / "run")
            return found if same and not unfinished(place / "run").exists() else ("silently wrong", "the run changed")

        return try_it

    def killed_at(step: int) -> Callable[[Path], tuple[str, str]]:
        def try_it(place: Path) -> tuple[str, str]:
            shutil.copytree(ground.run, place / "run")
            cases.new_rows().to_parquet(place / "new.parquet")
            words = ["update", place / "run", place / "new.parquet"]
            if not killed(step, words):
                return "ran rightly", "it ended before"
            again = invoke(*words)
            whole = load(place / "run").changes is not None and not unfinished(place / "run").exists()
            return judged(again, "either", lambda: whole) if whole else ("silently wrong", again.stderr[-200:])

        return try_it

    for name, make, must in cases.UPDATES:
        yield Attack("updates", name, odd(make, must))
    for step in range(1, 80, 6):
        yield Attack("updates", f"killed at change {step}", killed_at(step))


GROUPS = (folders, tables, rows, options, environments, kills, together, updates)

# ---------------------------------------------------------------------- trying them


def _child(work: Callable[[Path], tuple[str, str]], place: Path) -> tuple[int, int]:
    """Begin some work in a process of its own; its number, and where its outcome can be read."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        outcome = ("traceback", "ended")
        try:
            outcome = work(place)
        except BaseException as error:
            outcome = ("traceback", repr(error))
        finally:
            os.write(writing, json.dumps(outcome).encode()[:60_000])
            os._exit(0)
    os.close(writing)
    return child, reading


def _outcome(child: int, reading: int) -> tuple[str, str]:
    """What a process found, or that it did not end."""
    ready, _, _ = select.select([reading], [], [], LIMIT)
    found = os.read(reading, 65_536) if ready else b'["no end", ""]'
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL) if not ready else None
    os.waitpid(child, 0)
    os.close(reading)
    outcome, why = json.loads(found or b'["traceback", "it died"]')
    return outcome, why


def tried(attack: Attack) -> tuple[str, str]:
    """The outcome of an attack."""
    with tempfile.TemporaryDirectory() as place:
        return _outcome(*_child(attack.try_it, Path(place)))


def all_attacks(ground: Ground) -> list[Attack]:
    """All cases."""
    return [each for group in GROUPS for each in group(ground)]


def some_of(attacks: list[Attack], every: int) -> list[Attack]:
    """Every n-th case of each group, which begins at another place in each."""
    groups: dict[str, list[Attack]] = {}
    for each in attacks:
        groups.setdefault(each.group, []).append(each)
    found = enumerate(groups.values())
    return [each for k, group in found for each in group[k % min(every, len(group)) :: every]]


def counted(attacks: list[Attack], verbose: bool = False) -> dict[str, Counter[str]]:
    """How often each outcome came out, by group; what is bad is printed."""
    counts: dict[str, Counter[str]] = {}
    for attack in attacks:
        outcome, why = tried(attack)
        counts.setdefault(attack.group, Counter())[outcome] += 1
        if outcome in BAD or verbose:
            print(f"{outcome}: {attack.group}, {attack.name}: {why}", flush=True)
    return counts


def table_of(counts: dict[str, Counter[str]]) -> str:
    """The counts as a table of Markdown."""
    head = ["attacks", "cases", *GOOD, *BAD]
    lines = [[group, sum(found.values()), *(found[each] for each in GOOD + BAD)] for group, found in counts.items()]
    total: Counter[str] = sum(counts.values(), Counter())
    lines.append(["all", sum(total.values()), *(total[each] for each in GOOD + BAD)])
    return "\n".join(
        f"| {' | '.join(map(str, line))} |" for line in [head, ["---", *["---:"] * (len(head) - 1)], *lines]
    )


def main() -> int:
    """Try them, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="every 12th case")
    parser.add_argument("--only", help="one group")
    parser.add_argument("-v", "--verbose", action="store_true", help="show every case")
    given = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        ground = Ground.made(Path(place))
        attacks = some_of(all_attacks(ground), 12 if given.quick else 1)
        counts = counted([each for each in attacks if given.only in (None, each.group)], given.verbose)
    print(table_of(counts))
    print(f"\n{time.monotonic() - began:.0f} seconds")
    return int(any(found[each] for found in counts.values() for each in BAD))


if __name__ == "__main__":
    sys.exit(main())
