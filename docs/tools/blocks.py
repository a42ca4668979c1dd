"""Blocks on the site: formulas become MathML, which browsers draw themselves; sessions are coloured as sessions.

A page may also be a file of the repository, such as CONTRIBUTING.md: its links are then seen from docs/.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert

ROOT = Path(__file__).parents[2]
INCLUDED = re.compile(r'^--8<-- "(.*)"$', re.MULTILINE)


def on_config(config: Any) -> Any:
    """Tell the extension for fenced blocks what a ``math`` block is."""
    block = {"name": "math", "class": "formula", "format": formula}
    config.mdx_configs.setdefault("pymdownx.superfences", {})["custom_fences"] = [block]
    return config


def on_page_markdown(markdown: str, **_: Any) -> str:
    """A block of Python with prompts is a session: what it prints is no code."""
    return INCLUDED.sub(included, markdown).replace("```python\n>>>", "```pycon\n>>>")


def included(found: re.Match[str]) -> str:
    """A file of the repository; its links into docs/ start there."""
    return (ROOT / found[1]).read_text(encoding="utf-8").replace("](docs/", "](")


def formula(source: str, *_: Any, **__: Any) -> str:
    """A formula on lines of its own."""
    return f'<div class="formula">{convert(source.strip(), display="block")}</div>'
