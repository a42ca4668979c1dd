"""Blocks on the site: formulas become MathML, which browsers draw themselves; sessions are coloured as sessions."""

from __future__ import annotations

from typing import Any

from latex2mathml.converter import convert


def on_config(config: Any) -> Any:
    """Tell the extension for fenced blocks what a ``math`` block is."""
    block = {"name": "math", "class": "formula", "format": formula}
    config.mdx_configs.setdefault("pymdownx.superfences", {})["custom_fences"] = [block]
    return config


def on_page_markdown(markdown: str, **_: Any) -> str:
    """A block of Python with prompts is a session: what it prints is no code."""
    return markdown.replace("```python\n>>>", "```pycon\n>>>")


def formula(source: str, *_: Any, **__: Any) -> str:
    """A formula on lines of its own."""
    return f'<div class="formula">{convert(source.strip(), display="block")}</div>'
