"""Docstrings on the site: the short form that the code uses, as mkdocstrings and Markdown understand it.

In the code a parameter is often one line, ``lam : λ. Zero leaves every node alone.``; its type stands in the signature.
Where a type stands after the colon and the description below it, as numpydoc has it, nothing is changed.
Examples follow without a heading, and formulas are indented.
"""

from __future__ import annotations

import itertools
import re
from typing import Any

from griffe import Extension

PARAMETER = re.compile(r"^(\w[\w, ]*?) : (.*)$")
TYPE = re.compile(r"(\{.*\}|[\w.]+( or [\w.]+)?)(, [\w., ()]*)?(?<!\.)$")  # such as "int, optional"; no sentence


class Docstrings(Extension):
    """Rewrite every docstring when it is loaded."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Parameters with descriptions, and examples as code."""
        if obj.docstring is not None:
            obj.docstring.value = described(narrowed(obj.docstring.value))


def narrowed(text: str) -> str:
    """Bring the numbers and remarks beside formulas nearer, so that they need no scrolling."""
    return re.sub(r"(?<=\S) {5,}(?=\S)", "    ", text)


def described(text: str) -> str:
    """Put the description of a parameter below its name, where numpydoc expects it; one entry per name."""
    head, rule, tail = text.partition("Parameters\n----------\n")
    lines = []
    entries, _, rest = tail.partition("\n\n")
    for line, following in itertools.pairwise([*entries.splitlines(), ""]):
        found = PARAMETER.match(line)
        typed = found is not None and TYPE.match(found[2]) and following.startswith("    ")
        lines += [line] if found is None or typed else [found[1], f"    {found[2]}"]
    after = f"\n\nExamples\n--------\n{rest}" if rest.strip() else ""
    return fenced(head) + rule + "\n".join(lines) + after


def fenced(text: str) -> str:
    """Put examples into fenced blocks: without them Markdown takes ``>>>`` for a quotation."""
    lines: list[str] = []
    inside = False
    for line in [*text.splitlines(), ""]:
        if not inside and line.lstrip().startswith(">>>"):
            inside = True
            lines += ["", "```pycon"]
        elif inside and not line.strip():
            inside = False
            lines += ["```"]
        lines.append(line)
    return "\n".join(lines)
