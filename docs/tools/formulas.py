"""Formulas on the site: a ``math`` block in LaTeX becomes MathML, which browsers draw themselves."""

from __future__ import annotations

from typing import Any

from latex2mathml.converter import convert


def on_config(config: Any) -> Any:
    """Tell the extension for fenced blocks what a ``math`` block is."""
    block = {"name": "math", "class": "formula", "format": formula}
    config.mdx_configs.setdefault("pymdownx.superfences", {})["custom_fences"] = [block]
    return config


def formula(source: str, *_: Any, **__: Any) -> str:
    """A formula on lines of its own."""
    return f'<div class="formula">{convert(source.strip(), display="block")}</div>'
