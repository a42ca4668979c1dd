"""Colours that people with any kind of colour vision can tell apart, on light and on dark ground."""

from __future__ import annotations

# Okabe and Ito (2008), without black, which is lost on dark ground; the colours that stand out least come last.
GROUPS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#999999")
SYMBOLS = ("circle", "diamond", "square", "triangle-up", "star", "cross")  # the next one when the colours are used up
MAIN, WORSE, BETTER, QUIET = "#0072B2", "#D55E00", "#0072B2", "#8A8F98"


def group_colour(group: int) -> str:
    """The colour of a group; colours come again after eight groups, with another symbol.

    >>> group_colour(0) == group_colour(8), group_symbol(0) == group_symbol(8)
    (True, False)
    """
    return GROUPS[group % len(GROUPS)]


def group_symbol(group: int) -> str:
    """The symbol of a group."""
    return SYMBOLS[group // len(GROUPS) % len(SYMBOLS)]
