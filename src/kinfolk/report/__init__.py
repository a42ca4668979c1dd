"""The page: one file that shows what was learnt from a table."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kinfolk.report.facts import RunFacts


def write_page(run: RunFacts, path: Path) -> Path:
    """Write the page: one file that works offline. It is there in full, or not at all."""
    from kinfolk.report.page import page_html

    path = Path(path)
    text = page_html(run)
    draft = path.with_name(path.name + ".part")
    draft.write_text(text, encoding="utf-8")
    os.replace(draft, path)
    return path


def notebook_html(run: RunFacts) -> str:
    """What a notebook shows: the judgement and the leaderboard."""
    from kinfolk.report.page import summary_html

    return summary_html(run)
