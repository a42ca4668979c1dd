"""All English about privacy: what noise promises, and what an audit found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kinfolk.checks import listing
from kinfolk.engine.noise import Noise

PROMISE = "What noise promises for all rows of a node"
NOT_COVERED = (
    "This is about messages that had noise. What was told on joining, and what was measured at a node, had none; nor "
    "had what the coordinator alone reads, unless it stands here."
)
AUDIT_LEGEND = (
    "In or out: the chance to tell whether the most unusual row of the node was there, 0.5 by guessing; at 1 %: how "
    "often it is noticed with 1 % false alarms. Row: the error of the best guess at that row, 0 if it is found, 1 for "
    "guessing the mean. A better attack may exist."
)

FOUND = 0.05  # of the error of a guess: the row is found
AUDIT_MEASURES = ("in or out", "at 1 % false alarms", "row")
AUDIT_KNOWS = ("all other rows", "what rows look like")  # what an adversary knows besides
AUDIT_NEIGHBOUR = "a neighbouring site"
AUDIT_READS = {
    AUDIT_NEIGHBOUR: "what nodes send it, in letters that it alone can open.",
    "coordinator": "messages for it, and what is measured at a node for the history, which gets no noise.",
    "relay": "sizes of sealed letters.",
}
AUDIT_READS_OF_TABLES = {
    AUDIT_NEIGHBOUR: "parameters of boundary nodes, in encrypted messages that it alone can open.",
    "coordinator": "sums over the rows of the site, unless they are masked, and numbers of every node.",
    "relay": "sizes of encrypted messages.",
}
AUDIT_OF_TABLES = (
    "Attacked were sums of columns, derivatives, products, curvatures, how models of nodes differ, and all fits. "
    "Sums of losses and errors of held-out rows were not. With masked sums the coordinator reads sums over all sites, "
    "which were not attacked either: they tell the less, the more rows the others have."
)
AUDIT_MIXED = "With noise: the most that is told of sites that had some."
AUDIT_TRY_NOISE = "The run had no noise; --clip and --noise show what it would have done."
SPENT_AT_SITES = (
    "Whether a site adds noise to what it sends is its own choice and is not told here, so ε is unknown at this place: "
    "kinfolk site sent shows it at the site."
)


def audit_title(sites: Sequence[str]) -> str:
    """What the page of an audit is about.

    >>> audit_title(["north"]), audit_title(["north", "south"])
    ('What others could tell of site north', 'What others could tell of 2 sites')
    """
    return f"What others could tell of {f'site {sites[0]}' if len(sites) == 1 else f'{len(sites)} sites'}"


def audit_place(place: str) -> str:
    """Which kind of place somebody reads at; what is no coordinator and no relay is the name of a site.

    >>> audit_place("relay"), audit_place("north")
    ('relay', 'a neighbouring site')
    """
    return place if place in AUDIT_READS else AUDIT_NEIGHBOUR


def audit_order(place: str) -> int:
    """Where a place stands: neighbours first, the relay last."""
    return list(AUDIT_READS).index(audit_place(place))


def audit_noise(noise: Noise | None) -> str:
    """With which noise an audit was made.

    >>> audit_noise(Noise(clip=2.0, scale=16.0)), audit_noise(None)
    ('with noise (clip 2, deviation 16)', 'without noise')
    """
    return "without noise" if noise is None else f"with noise (clip {noise.clip:g}, deviation {noise.scale:g})"


def audit_worlds(masks: bool) -> tuple[str, str]:
    """What an audit compares.

    >>> audit_worlds(masks=True)
    ('without masked sums', 'with masked sums')
    """
    what = "masked sums" if masks else "noise"
    return f"without {what}", f"with {what}"


def audit_reads(masks: bool) -> Mapping[str, str]:
    """What is read at each place, of a run or of tables."""
    return AUDIT_READS_OF_TABLES if masks else AUDIT_READS


def audit_compared(values: Sequence[str], worlds: Sequence[str]) -> str:
    """A number of an audit without noise or masks, and with them if that was tried.

    >>> audit_compared(["1.00", "0.53"], audit_worlds(masks=False))
    '1.00 without noise, 0.53 with noise'
    """
    return ", ".join(f"{value} {how}" for value, how in zip(values, worlds, strict=False))


def audit_statement(told: Sequence[tuple[str, str, float, float]], trials: int) -> str:
    """What could be told of a node; each: how it was sent, the place, "in or out", and the error of the row.

    >>> audit_statement([("without noise", "relay", 0.5, 1.0), ("without noise", "coordinator", 1.0, 0.001)], 100)
    'For who knows what rows look like. Without noise: coordinator finds the row; relay: nothing beyond chance.'
    """
    parts = {}
    for how in dict.fromkeys(each[0] for each in told):
        mine = sorted({each[1] for each in told if each[0] == how}, key=audit_order)
        found = [_most_told([each[2:] for each in told if each[:2] == (how, place)], trials) for place in mine]
        parts[how] = "; ".join(f"{place}{what}" for place, what in zip(mine, found, strict=True))
    return "For who knows what rows look like. " + " ".join(
        f"{how.capitalize()}: {what}." for how, what in parts.items()
    )


def _most_told(found: Sequence[tuple[float, float]], trials: int) -> str:
    auc, error = max(auc for auc, _ in found), min(error for _, error in found)
    if error < FOUND:
        return " finds the row"
    if auc > 0.5 + 4 * audit_deviation(trials):
        return f" can tell whether a row was there ({auc:.2f})"
    return ": nothing beyond chance"


def audit_held_out(nodes: Sequence[str]) -> str:
    """That the error of one held-out row is told.

    >>> audit_held_out(["north"])
    "Caution: of 'north' one row is held out, and the error that is told of it is that of the row."
    """
    each = "" if len(nodes) == 1 else " each"
    return (
        f"Caution: of {listing(nodes)} one row{each} is held out, and the error that is told of it is that of the row."
    )


def audit_deviation(trials: int) -> float:
    """Deviation of "in or out" where there is nothing to tell, as simulated.

    >>> round(audit_deviation(100), 2)
    0.06
    """
    return float(0.6 / trials**0.5)


def audit_chance(trials: int) -> str:
    """How far chance alone goes."""
    found = f"{audit_deviation(trials):.2f}"
    return f"Where there is nothing to tell, it scatters about 0.5 with a deviation of {found} ({trials:,} trials)."


def epsilon(value: float) -> str:
    """ε in three digits; without an end where nothing is promised.

    >>> epsilon(2.4512), epsilon(float("inf"))
    ('2.45', '∞')
    """
    return "∞" if value == float("inf") else f"{value:.3g}"


def audit_caution(nodes: Sequence[str]) -> str:
    """That nodes with few rows tell nearly all.

    >>> audit_caution(["north"])
    "Caution: 'north' has no more rows than there are features, and what is sent of it tells nearly all."
    """
    has, them = ("has", "it") if len(nodes) == 1 else ("have", "them")
    few = f"{listing(nodes)} {has} no more rows than there are features"
    return f"Caution: {few}, and what is sent of {them} tells nearly all."
