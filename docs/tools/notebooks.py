"""Notebooks from text: python docs/tools/notebooks.py runs examples/notebooks/*.py and writes docs/notebooks/*.ipynb.

A source is Python that runs as it is, in the percent format: ``# %% [markdown]`` begins a cell of text, ``# %%`` one of
code. Names of notebooks as arguments write only these.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
SOURCES, WRITTEN = ROOT / "examples" / "notebooks", ROOT / "docs" / "notebooks"
CELL = re.compile(r"^# %%( \[markdown\])?\n", re.MULTILINE)
SECONDS = 300  # that a cell may take


def notebook_of(text: str) -> Any:
    """The notebook of a source, before it is run.

    >>> [(cell.cell_type, cell.source) for cell in notebook_of("# %% [markdown]\\n# Hello.\\n\\n# %%\\n1 + 1\\n").cells]
    [('markdown', 'Hello.'), ('code', '1 + 1')]
    """
    _, *parts = CELL.split(text)
    cells = [_cell(bool(marked), part.strip()) for marked, part in zip(parts[::2], parts[1::2], strict=True)]
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"  # not drawn: the same text is the same notebook
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})


def _cell(is_text: bool, part: str) -> Any:
    if not is_text:
        return nbformat.v4.new_code_cell(part)
    return nbformat.v4.new_markdown_cell(re.sub(r"^# ?", "", part, flags=re.MULTILINE))


def executed(notebook: Any, folder: Path) -> Any:
    """The notebook with its outputs, run in a kernel of its own in some folder."""
    where = {"metadata": {"path": str(folder)}}
    options = {"timeout": SECONDS, "record_timing": False, "coalesce_streams": True}
    NotebookClient(notebook, resources=where, **options).execute()
    notebook.metadata.pop("language_info", None)  # has the version of Python
    return notebook


def main(names: list[str]) -> None:
    """Write the notebooks of these names, or all."""
    for source in sorted(SOURCES.glob("*.py")):
        if not names or source.stem in names:
            made = executed(notebook_of(source.read_text(encoding="utf-8")), SOURCES)
            nbformat.write(made, WRITTEN / f"{source.stem}.ipynb")
            print(f"docs/notebooks/{source.stem}.ipynb")


if __name__ == "__main__":
    main(sys.argv[1:])
