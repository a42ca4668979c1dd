"""The page: one file that shows what was learnt from a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kinfolk.table.tablerun import TableRun


def write_page(run: TableRun, path: Path) -> Path:
    """Write the page."""
    path.write_text(run.judgement.text)
    return path


def notebook_html(run: TableRun) -> str:
    """What a notebook shows."""
    raise NotImplementedError
