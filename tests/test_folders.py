"""Run folders: whole or refused, one writer at a time, and nothing removed but what kinfolk wrote."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from folders import sealed
from kinfolk.checks import InputError
from kinfolk.cli import app
from kinfolk.engine.locking import locked
from kinfolk.tables import learn, load
from kinfolk.tables.manifest import Manifest, checksum
from kinfolk.tables.workplace import Workplace, check_free, unfinished
from test_table import shops

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
import attack_cases

TABLE = shops(12, count=4)
OPTIONS = {
    "node": "shop",
    "target": "sales",
    "features": "price",
    "lam": "1.0",
    "folds": "2",
    "members": "pooled,slopes",
}
FLAGS = [part for name, value in OPTIONS.items() for part in (f"--{name}", value)]


def invoke(*words):
    return CliRunner().invoke(app, list(map(str, words)), env={"COLUMNS": "80"})


def sentence(result):
    """The one sentence of a command that failed."""
    assert result.exit_code == 1, result.output
    assert isinstance(result.exception, SystemExit)
    assert len(result.stderr.strip().splitlines()) == 1
    assert result.stderr.startswith("kinfolk: Expected")
    return result.stderr


def content_of(folder):
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A table, a run on it as the command line makes it, and the run itself."""
    place = tmp_path_factory.mktemp("fitted")
    TABLE.to_csv(place / "t.csv", index=False)
    assert invoke("fit", place / "t.csv", *FLAGS, "--out", place / "run").exit_code == 0
    return place


@pytest.fixture
def folder(fitted, tmp_path):
    """A copy of the run to spoil."""
    shutil.copytree(fitted / "run", tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture(scope="module")
def known():
    return learn(TABLE, progress=False, **{**OPTIONS, "lam": 1.0, "folds": 2})


@pytest.fixture
def quick(known, monkeypatch):
    """Learning that takes no time: what it would find is known."""
    monkeypatch.setattr("kinfolk.cli.jobs.learn_prepared", lambda prepared, journal: known)
    monkeypatch.setattr("kinfolk.tables.storage.page_html", lambda facts: "<p>the page</p>")
    return known


# ---------------------------------------------------------------------- damage

FILES = [
    "run.toml", "metrics.json", "nodes.parquet", "predictions.parquet", "path.safetensors", "graph.graphml",
    "manifest.sha256", "models/encoder.safetensors", "models/intervals.safetensors", "models/slopes/arrays.safetensors",
    "models/tailored/0/run.json", "models/tailored/0/history.parquet", "models/tailored/0/models.safetensors",
]  # fmt: skip


@pytest.mark.parametrize("damage", attack_cases.DAMAGES)
@pytest.mark.parametrize("name", FILES)
def test_every_damage_is_one_sentence(name, damage, folder):
    attack_cases.DAMAGES[damage](folder / name, (folder / name).read_bytes())
    with pytest.raises(InputError, match=r"^Expected [^\n]+\.$") as refused:
        load(folder)
    assert Path(name).name in str(refused.value)


@pytest.mark.parametrize("damage", ["missing", "middle bit", "a folder"])
def test_damage_of_any_file_of_the_manifest_is_named(damage, folder):
    """Also of those that the list above does not name."""
    names = Manifest.read(folder / "manifest.sha256").checksums
    assert set(FILES) - {"manifest.sha256"} <= set(names)
    for name in set(names) - {*FILES, "report.html"}:
        content = (folder / name).read_bytes()
        attack_cases.DAMAGES[damage](folder / name, content)
        with pytest.raises(InputError, match=f"{name}' is (missing|not as it was written)"):
            load(folder)
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).write_bytes(content)
    load(folder)


def test_a_manifest_cut_at_a_line_is_noticed(folder):
    lines = (folder / "manifest.sha256").read_text().splitlines(keepends=True)
    (folder / "manifest.sha256").write_text("".join(lines[:-2]))
    with pytest.raises(InputError, match=r"list of its files 'manifest\.sha256' is missing or damaged"):
        load(folder)


def test_a_manifest_is_what_sha256sum_checks(folder):
    if shutil.which("sha256sum") is None:
        pytest.skip("sha256sum is not there")
    done = subprocess.run(
        ["sha256sum", "--check", "--strict", "manifest.sha256"], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(content_of(folder)) - 1


def test_the_page_may_be_lost_and_is_written_again(folder):
    (folder / "report.html").unlink()
    assert invoke("show", folder).exit_code == 0
    assert invoke("report", folder).exit_code == 0
    before = content_of(folder)
    assert before == content_of(sealed(folder))
    load(folder)


# ---------------------------------------------------------------------- what is removed


def test_a_folder_called_unfinished_of_the_users_own_is_kept(fitted, tmp_path, quick):
    mine = tmp_path / "mine.unfinished"
    mine.mkdir()
    (mine / "thesis.txt").write_text("all of it")
    for force in ([], ["--force"]):
        said = sentence(invoke("fit", fitted / "t.csv", *FLAGS, "--out", tmp_path / "mine", *force))
        assert "mine.unfinished' to be free" in said
    assert content_of(mine) == {"thesis.txt": b"all of it"}
    mine.rename(tmp_path / "elsewhere")
    (tmp_path / "mine.unfinished").write_text("a file")
    assert "to be free" in sentence(invoke("fit", fitted / "t.csv", *FLAGS, "--out", tmp_path / "mine"))
    assert (tmp_path / "mine.unfinished").read_text() == "a file"


@pytest.mark.parametrize(
    "files", [{"run.toml": ""}, {"run.toml": "", "metrics.json": "{}"}, {"manifest.sha256": "0  a"}]
)
def test_a_project_that_looks_like_a_run_is_kept(files, fitted, tmp_path, quick):
    project = tmp_path / "project"
    project.mkdir()
    for name, text in {**files, "a": "mine"}.items():
        (project / name).write_text(text)
    before = content_of(project)
    assert "something else" in sentence(invoke("fit", fitted / "t.csv", *FLAGS, "--out", project, "--force"))
    with pytest.raises(InputError, match="something else"):
        quick.save(project, force=True)
    assert content_of(project) == before


def test_force_keeps_what_kinfolk_did_not_write(fitted, folder, quick):
    (folder / "notes.txt").write_text("mine")
    (folder / "models" / "notes.txt").write_text("mine, too")
    (folder / "run.toml").write_text("# altered")
    done = invoke("fit", fitted / "t.csv", *FLAGS, "--out", folder, "--force")
    assert done.exit_code == 0, done.output
    assert "kinfolk did not write it" in done.output
    load(folder)
    kept = {name: text for name, text in content_of(folder).items() if b"mine" in text[:9] or text == b"# altered"}
    assert kept == {
        "notes.txt": b"mine", "replaced/models/notes.txt": b"mine, too", "replaced/run.toml": b"# altered",
    }  # fmt: skip
    assert invoke("fit", fitted / "t.csv", *FLAGS, "--out", folder, "--force").exit_code == 0
    assert set(kept.values()) <= set(content_of(folder).values())


def test_a_manifest_reaches_no_file_outside(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "away").mkdir()
    for name in ("letter", "away/letter"):
        (tmp_path / name).write_text("mine")
    (tmp_path / "run" / "models").symlink_to(tmp_path / "away")
    names = ["../letter", str(tmp_path / "letter"), "models/letter", "models/../../letter", "a/../../letter"]
    Manifest(dict.fromkeys(names, checksum(b"mine"))).remove(tmp_path / "run", drafts=True)
    assert set(content_of(tmp_path)) >= {"letter", "away/letter"}


def test_a_run_that_cannot_be_written_leaves_nothing(fitted, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise InputError("Expected something else.")

    monkeypatch.setattr("kinfolk.cli.jobs.learn_prepared", refuse)
    sentence(invoke("fit", fitted / "t.csv", *FLAGS, "--out", tmp_path / "run"))
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------- one at a time


def test_two_fits_into_one_folder(fitted, tmp_path, quick):
    with Workplace.opened(tmp_path / "run") as work:
        work.write("journal/part", b"kept")
        for force in ([], ["--force"]):
            said = sentence(invoke("fit", fitted / "t.csv", *FLAGS, "--out", tmp_path / "run", *force))
            assert "another run is writing" in said
            assert "wait until it has ended, or choose another folder (--out)" in said
        with pytest.raises(InputError, match="another run is writing"):
            quick.save(tmp_path / "run")
        assert work.read("journal/part") == b"kept"
    assert invoke("fit", fitted / "t.csv", *FLAGS, "--out", tmp_path / "run", "--force").exit_code == 0


def test_a_lock_of_a_folder_that_has_moved_is_none(tmp_path, monkeypatch):
    """Between opening and locking the other run may have finished: what is locked is no longer there."""
    import fcntl

    (tmp_path / "work").mkdir()
    flock = fcntl.flock

    def slow(handle, how):
        (tmp_path / "work").rename(tmp_path / "run")
        (tmp_path / "work").mkdir()
        (tmp_path / "work" / "lock").write_text("")
        flock(handle, how)

    monkeypatch.setattr(fcntl, "flock", slow)
    with pytest.raises(InputError, match="taken"):
        locked(tmp_path / "work", "taken")


# ---------------------------------------------------------------------- killed, and run again


def steps(patch, last):
    """Let the process be killed at some step of writing; what is counted are steps before and after each change."""
    count = [0]

    def before(original):
        def counted(*words, **options):
            count[0] += 1
            if count[0] == last:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*words, **options)

        return counted

    for name in ("replace", "unlink", "rename", "rmdir", "mkdir", "write_bytes"):
        patch.setattr(Path, name, before(getattr(Path, name)))
    patch.setattr(Workplace, "_append", before(Workplace._append))
    return count


def killed(last, words):
    """Run a command in a process that is killed at some step."""
    child = os.fork()
    if child == 0:
        with pytest.MonkeyPatch.context() as patch:
            steps(patch, last)
            code = 1
            try:
                code = invoke(*words).exit_code
            finally:
                os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def moments(words):
    """Every ninth step of a command, and all of the last ones: when the new run takes its name, and after."""
    with pytest.MonkeyPatch.context() as patch:
        count = steps(patch, 0)
        assert invoke(*words).exit_code == 0
    return [*range(1, count[0] - 16, 9), *range(count[0] - 16, count[0] + 1)]


@pytest.mark.parametrize("force", [False, True])
def test_after_a_kill_at_any_step_the_same_command_goes_on(force, fitted, tmp_path, quick):
    """The run is there in the end, the old one until the new is complete, and the user's file always."""
    words = ["fit", fitted / "t.csv", *FLAGS, "--out", tmp_path / "run", *(["--force"] if force else [])]
    expected = quick.predict(TABLE)
    for last in moments(words):
        shutil.rmtree(tmp_path / "run")
        if force:
            shutil.copytree(fitted / "run", tmp_path / "run")
            (tmp_path / "run" / "notes.txt").write_text("mine")
        killed(last, words)
        if force:
            assert [file.read_text() for file in tmp_path.rglob("notes.txt")] == ["mine"]
            places = [tmp_path / "run", unfinished(tmp_path / "run"), unfinished(tmp_path / "run") / "replaced"]
            assert any(map(is_whole, places))
        again = invoke(*words)
        if again.exit_code:
            assert "already holds a run" in sentence(again)
        assert (load(tmp_path / "run").predict(TABLE) == expected).all()
        assert not unfinished(tmp_path / "run").exists()


def is_whole(place):
    manifest = Manifest.read(place / "manifest.sha256")
    return manifest is not None and not any(manifest.fault(place, name) for name in manifest.checksums)


@pytest.mark.parametrize("spoil", [b"", b"\xff\x00{"])
@pytest.mark.parametrize("name", ["resume.json", "journal", "written.sha256", "run.toml"])
def test_damage_of_an_unfinished_run(name, spoil, fitted, tmp_path, monkeypatch):
    """It goes on, or says why not; with --force it begins anew."""
    from kinfolk.tables import storage

    words = ["fit", fitted / "t.csv", *FLAGS, "--out", tmp_path / "run"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage, "page_html", lambda facts: (_ for _ in ()).throw(KeyboardInterrupt))
        assert invoke(*words).exit_code == 130
    work = unfinished(tmp_path / "run")
    files = list(work.glob("journal/*")) if name == "journal" else [work / name]
    assert files
    for file in files:
        file.write_bytes(spoil)
    again = invoke(*words)
    if again.exit_code:
        assert name in ("resume.json", "written.sha256")
        sentence(again)
        again = invoke(*words, "--force")
    assert again.exit_code == 0, again.output
    assert (load(tmp_path / "run").predict(TABLE) == load(fitted / "run").predict(TABLE)).all()
    assert content_of(sealed(tmp_path / "run")).keys() == content_of(fitted / "run").keys()


@pytest.mark.parametrize("limit", [100, 2_000, 20_000])
def test_a_full_disk_is_one_sentence_and_the_work_goes_on(limit, fitted, tmp_path):
    """A limit on the size of files stands for a full disk."""
    import resource

    words, before = (
        ["fit", fitted / "t.csv", *FLAGS, "--out", tmp_path / "run"],
        resource.getrlimit(resource.RLIMIT_FSIZE),
    )
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        said = invoke(*words)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "the system refuses it (File too large): mend that" in sentence(said)
    again = invoke(*words)
    assert again.exit_code == 0, again.output
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["format"]


# ---------------------------------------------------------------------- where a run may be written


def test_places_that_cannot_be(fitted, tmp_path, monkeypatch, quick):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing" / "at all")
    for out, words in (
        (".", "the one you are in"), ("", "the one you are in"), ("..", "the one you are in"), ("/", "or above"),
        ("a" * 250, "at most 244 bytes"), ("é" * 125, "at most 244 bytes"), (f"{'b' * 300}/run", "File name too long"),
        ("file", "something else"), ("file/run", "Not a directory"), ("/proc/run", "cannot make"),
        ("/dev", "is a disk"), ("/dev/null", "something else"),
    ):  # fmt: skip
        assert words in sentence(invoke("fit", fitted / "t.csv", *FLAGS, "--out", out)), out
    assert {path.name for path in tmp_path.iterdir()} == {"file", "dangling"}


def test_a_link_to_a_folder_leads_there(fitted, tmp_path, quick):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert invoke("fit", fitted / "t.csv", *FLAGS, "--out", tmp_path / "link").exit_code == 0
    assert (tmp_path / "link").is_symlink()
    load(tmp_path / "real")
    assert "already holds a run" in sentence(invoke("fit", fitted / "t.csv", *FLAGS, "--out", tmp_path / "link"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]
    assert check_free(tmp_path / "link", True) == tmp_path / "real"
