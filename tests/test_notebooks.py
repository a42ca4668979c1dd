"""The notebooks: those in the docs are made from their text sources, run, and show what a run prints today."""

import importlib.util
from pathlib import Path

import pytest

if importlib.util.find_spec("nbclient") is None or importlib.util.find_spec("ipykernel") is None:
    pytest.skip("notebooks need nbclient and ipykernel: pip install 'kinfolk[dev]'", allow_module_level=True)

import nbformat
import notebooks

ROOT = Path(__file__).parent.parent
USERS = ["analyst", "organisation", "researcher", "teacher"]


def source(name):
    return (notebooks.SOURCES / f"{name}.py").read_text(encoding="utf-8")


def printed(notebook):
    """What every cell printed."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return ["".join(out.text for out in cell.outputs if out.output_type == "stream") for cell in cells]


def figures(notebook):
    outputs = [out for cell in notebook.cells if cell.cell_type == "code" for out in cell.outputs]
    return sum("image/png" in out.get("data", {}) for out in outputs)


def test_there_is_one_for_each_kind_of_user():
    assert sorted(file.stem for file in notebooks.SOURCES.glob("*.py")) == USERS
    assert sorted(file.stem for file in notebooks.WRITTEN.glob("*.ipynb")) == USERS


@pytest.mark.parametrize("name", USERS)
def test_a_notebook_is_made_from_its_source_runs_and_prints_the_same(name, tmp_path, monkeypatch):
    monkeypatch.delenv("MPLBACKEND", raising=False)
    kept = nbformat.read(notebooks.WRITTEN / f"{name}.ipynb", as_version=4)
    made = notebooks.notebook_of(source(name))
    nbformat.validate(made)
    assert [(cell.cell_type, cell.source) for cell in kept.cells] == [
        (cell.cell_type, cell.source) for cell in made.cells
    ], f"run python docs/tools/notebooks.py {name}"
    ran = notebooks.executed(made, tmp_path)
    assert printed(ran) == printed(kept), f"run python docs/tools/notebooks.py {name}"
    assert figures(ran) == figures(kept) >= 2


def test_a_cell_that_fails_is_noticed(tmp_path):
    with pytest.raises(Exception, match="ZeroDivisionError"):
        notebooks.executed(notebooks.notebook_of("# %%\n1 / 0\n"), tmp_path)


def test_no_notebook_holds_a_path_of_the_machine_or_a_traceback():
    for file in notebooks.WRITTEN.glob("*.ipynb"):
        text = file.read_text(encoding="utf-8")
        assert str(ROOT) not in text
        assert '"output_type": "error"' not in text
        assert '"name": "stderr"' not in text
