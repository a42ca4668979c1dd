"""The files around the code: they parse, they agree with each other, and the test run says what it skipped."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import kinfolk

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MAKEFILE = (ROOT / "Makefile").read_text()


def recipe(target):
    """The commands that make runs for a target, without those of what it depends on."""
    found = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    return [line.strip().replace("$(BIN)/", ".venv/bin/") for line in found[1].splitlines()]


# ---------------------------------------------------------------------- CITATION.cff


def test_the_citation_is_complete():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(cited)  # required by the format
    assert cited["cff-version"] == "1.2.0"
    assert cited["version"] == kinfolk.__version__
    assert cited["license"] == PROJECT["license"]
    assert cited["keywords"] == PROJECT["keywords"]
    assert all("name" in author or "family-names" in author for author in cited["authors"])


def test_the_five_papers_are_cited():
    papers = yaml.safe_load((ROOT / "CITATION.cff").read_text())["references"]
    assert len(papers) == 5
    for paper in papers:
        assert {"type", "title", "authors"} <= set(paper)  # required by the format
        assert paper["type"] in ("article", "conference-paper", "generic")
        assert all({"family-names", "given-names"} <= set(author) for author in paper["authors"])
        assert re.fullmatch(r"10\.\d{4,}/\S+", paper.get("doi", "10.1234/none"))
    assert len({(paper["title"], paper.get("year")) for paper in papers}) == 5


# ---------------------------------------------------------------------- checks before a commit, and in CI


def test_the_checks_before_a_commit_are_those_of_make_lint():
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repository["repo"] == "local"  # nothing is fetched
    for hook in repository["hooks"]:
        assert {"id", "name", "entry", "language"} <= set(hook)
        assert hook["language"] == "system"
    entries = [hook["entry"].replace(" --force-exclude", "") for hook in repository["hooks"]]
    assert entries == [line.replace(" --quiet", "").removesuffix(" .") for line in recipe("lint")]


def test_make_test_lints_first_and_ci_is_make_test():
    assert re.search(r"^test: lint\b", MAKEFILE, re.MULTILINE)
    assert (ROOT / ".ci" / "run").read_text().splitlines()[1:] == ["exec make test"]
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())
    assert set(workflow[True]) == {"push", "pull_request"}  # YAML takes the word "on" for true
    (job,) = workflow["jobs"].values()
    assert job["steps"][-1] == {"run": "make test"}
    assert f">={job['strategy']['matrix']['python'][0]}" == PROJECT["requires-python"]


def test_the_makefile_explains_its_targets():
    targets = re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)[1].split()
    explained = re.findall(r"^# make (\w+) ", MAKEFILE, re.MULTILINE)
    assert set(targets) - {"browser"} == set(explained)  # the browser is part of make test


# ---------------------------------------------------------------------- what was skipped

TESTS = """
import pytest

@pytest.mark.skipif(True, reason="no chromium")
@pytest.mark.parametrize("k", range(2))
def test_page(k): ...

def test_digits():
    pytest.skip("../shared/data/mnist is absent")

def test_nothing(): ...
"""


@pytest.mark.parametrize("processes", [0, 2])
@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"some": TESTS}, "Skipped: 3 tests: no chromium (2), ../shared/data/mnist is absent (1)"),
        ({"none": "def test_nothing(): ..."}, "Nothing was skipped."),
        (
            {"some": TESTS, "all": "import pytest\npytest.importorskip('nowhere', reason='nowhere is not installed')"},
            "Skipped: 3 tests and 1 whole file: no chromium (2), ",
        ),
    ],
    ids=["some", "none", "a file"],
)
def test_the_end_says_what_was_skipped(files, said, processes, tmp_path):
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    for name, text in files.items():
        (tmp_path / f"test_{name}.py").write_text(text)
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", str(processes), str(tmp_path)]
    done = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert [line.startswith(said) for line in done.stdout.splitlines()].count(True) == 1, done.stdout
