"""What is installed is complete: the wheel alone, in an environment of its own, does what the README shows."""

import importlib.util
import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"
USER = """\
from kinfolk import GTVMin, Network, fit, graphs

reveal_type(graphs.chain)
reveal_type(fit)
reveal_type(GTVMin)
reveal_type(Network.hide)
fit("no network", GTVMin(lam=1.0))
"""
SETTINGS = """\
[mypy]
[mypy-kinfolk.*]
ignore_errors = True
[mypy-torch.*,keras.*,numba.*,pandas.*,scipy.*,sklearn.*,networkx.*,plotly.*,skops.*,matplotlib.*]
ignore_missing_imports = True
follow_imports = skip
"""


def run(*words, **options):
    """What a command prints, outside the repository's own paths."""
    known = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH")}
    return subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, check=False, **{"env": known, **options}
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built without a network."""
    missing = [name for name in ("hatchling", "pip") if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"the wheel needs {' and '.join(missing)}: pip install 'kinfolk[dev]'")
    folder = tmp_path_factory.mktemp("wheel")
    words = ["wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", folder, ROOT]
    done = run(sys.executable, "-m", "pip", *words, env=os.environ)
    assert done.returncode == 0, done.stderr
    return next(folder.glob("kinfolk-*.whl"))


@pytest.fixture(scope="module")
def home(wheel, tmp_path_factory):
    """An environment with nothing but the wheel in it. What kinfolk depends on is found where these tests run."""
    folder = tmp_path_factory.mktemp("home") / "venv"
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    done = run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel)
    assert done.returncode == 0, done.stderr
    packages = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])").stdout.strip())
    theirs = dict.fromkeys(sysconfig.get_paths()[name] for name in ("purelib", "platlib"))
    (packages / "dependencies.pth").write_text("\n".join(theirs))  # searched last, and without the .pth files in it
    return folder


def test_the_wheel_is_complete(wheel):
    files = [file for file in (SOURCE / "kinfolk").rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    expected = {file.relative_to(SOURCE).as_posix() for file in files}
    assert {"kinfolk/py.typed", "kinfolk/__init__.pyi", "kinfolk/report/templates/page.html"} <= expected
    assert "kinfolk/datasets/us_counties_1980/counties.csv.gz" in expected
    packed = zipfile.ZipFile(wheel).namelist()
    assert {name for name in packed if ".dist-info/" not in name} == expected
    assert any(name.endswith("LICENSE") for name in packed)


def test_the_readme_runs_from_the_wheel(home, tmp_path):
    python, example = home / "bin" / "python", tmp_path / "example.md"
    where = run(python, "-c", "import kinfolk; print(kinfolk.__version__, kinfolk.__file__)", cwd=tmp_path)
    version, file = where.stdout.split()
    assert Path(file).is_relative_to(home)
    assert version in next(home.rglob("kinfolk-*.dist-info")).name
    assert "One tailored model" in run(home / "bin" / "kinfolk", "--help", cwd=tmp_path).stdout

    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    example.write_text(next(block for block in blocks if "GTVMin" in block))
    done = run(python, "-m", "doctest", "-v", "-o", "NORMALIZE_WHITESPACE", "-o", "ELLIPSIS", example, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "tailored 0.0149, one model for all 0.0276" in done.stdout


def test_type_checkers_see_types_in_the_wheel(home, tmp_path):
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("types are checked with mypy: pip install 'kinfolk[dev]'")
    (tmp_path / "user.py").write_text(USER)
    (tmp_path / "mypy.ini").write_text(SETTINGS)
    words = ["--python-executable", home / "bin" / "python", "--cache-dir", tmp_path / "cache", "user.py"]

    seen = run(sys.executable, "-m", "mypy", *words, cwd=tmp_path).stdout
    assert "def (node_count: int, *, weak_link: float =) -> kinfolk.network.graph.Graph" in seen
    assert "def (network: kinfolk.network.problem.Problem, " in seen
    assert "-> kinfolk.algorithms.gtvmin.algorithm.GTVMin" in seen
    assert 'Argument 1 to "fit" has incompatible type "str"; expected "Problem"' in seen
    assert "import-untyped" not in seen

    marker = next(home.rglob("kinfolk/py.typed"))
    marker.rename(marker.with_name("moved"))  # without it, nothing is seen
    try:
        assert "import-untyped" in run(sys.executable, "-m", "mypy", *words, cwd=tmp_path).stdout
    finally:
        marker.with_name("moved").rename(marker)
