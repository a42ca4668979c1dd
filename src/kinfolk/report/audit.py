"""The page of an audit: what an adversary at each place could tell of the rows of a site, without and with noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pandas

from kinfolk.engine.files import write_output
from kinfolk.engine.noise import Noise
from kinfolk.report import privacy_words
from kinfolk.report.page import is_page, templates


class Measure(NamedTuple):
    """A number of an audit, and how much it tells: 0 for guessing, 1 for certainty."""

    column: str
    told: Callable[[float], float]
    worst: Callable[[pandas.Series], float]  # of several nodes
    by_chance: Callable[[int], float] = lambda trials: 0.0  # so much is told where there is nothing to tell


MEASURES = (
    Measure(
        "auc", lambda auc: 2 * auc - 1, pandas.Series.max, lambda trials: 4 * privacy_words.audit_deviation(trials)
    ),
    Measure("hits", lambda hits: hits, pandas.Series.max),
    Measure("reconstruction", lambda error: 1 - error, pandas.Series.min),
)


@dataclass(frozen=True, eq=False)
class AuditFacts:
    """What an audit of a site has found.

    Parameters
    ----------
    federation, site : str
        Their names.
    features : int
        How many columns models learn from.
    trials : int
        How often each attack was tried.
    without : pandas.DataFrame
        What was told without noise, as of ``kinfolk.federation.audit.audit``: ``node``, ``rows``, ``place``, ``knows``,
        ``auc``, ``hits``, ``reconstruction``.
    noise : Noise, optional
        That of the run, or another one that was asked for.
    behind : pandas.DataFrame, optional
        What was told with that noise.
    promise : pandas.DataFrame, optional
        What that noise promises for this run: ``to``, ``messages``, ``epsilon``, ``delta``.
    masks : bool
        Whether ``behind`` is what was told with masked sums, where tables are learnt from.
    held_out_alone : sequence of str
        Nodes of which one row is held out.
    """

    federation: str
    site: str
    features: int
    trials: int
    without: pandas.DataFrame
    noise: Noise | None = None
    behind: pandas.DataFrame | None = None
    promise: pandas.DataFrame | None = None
    masks: bool = False
    held_out_alone: Sequence[str] = ()

    @property
    def few(self) -> list[str]:
        """The nodes with no more rows than features."""
        return self.without.loc[self.without["rows"] <= self.features, "node"].astype(str).unique().tolist()

    @property
    def tables(self) -> list[tuple[str, pandas.DataFrame]]:
        """What was told without noise or masks, and, if that was tried, with them; each with its name."""
        noisy = privacy_words.audit_noise(None), privacy_words.audit_noise(self.noise)
        names = privacy_words.audit_worlds(self.masks) if self.masks else noisy
        worlds = [self.without] + ([] if self.behind is None else [self.behind])
        return list(zip(names, worlds, strict=False))


class Dots(NamedTuple):
    """One measure, drawn on a line from guessing to certainty."""

    texts: list[str]  # without noise, and with it if that was tried
    shares: list[float]
    by_chance: float


class Line(NamedTuple):
    """What one adversary could tell."""

    place: str
    knows: str
    dots: list[Dots]


def write_audit(facts: Sequence[AuditFacts], path: Path) -> Path:
    """Write the page of an audit, one file that needs no network.

    Parameters
    ----------
    facts : sequence of AuditFacts
        Of every site that was audited, in the same federation.
    path : Path
        The file to write; only a page of kinfolk is replaced.

    Returns
    -------
    Path
        The file.
    """
    tried = [each.behind is not None for each in facts]
    text = templates().get_template("audit.html").render(
        facts=facts, worst=_worst(facts), nodes={each.site: _nodes(each) for each in facts},
        noisy=any(tried), mixed=any(tried) and not all(tried), masks=facts[0].masks,
        worlds=privacy_words.audit_worlds(facts[0].masks), statements={each.site: _statements(each) for each in facts},
    )  # fmt: skip
    write_output(path, text.encode(), is_page)
    return path


def _worst(facts: Sequence[AuditFacts]) -> list[Line]:
    """What is told most at each kind of place, over all nodes; with noise, over the sites where it was tried."""
    worlds = [pandas.concat([each.without for each in facts])]
    behind = [each.behind for each in facts if each.behind is not None]
    worlds += [pandas.concat(behind)] if behind else []
    kinds = [world.assign(place=world["place"].map(privacy_words.audit_place)) for world in worlds]
    return _lines(kinds, facts[0].trials)


def _nodes(facts: AuditFacts) -> list[tuple[str, int, list[Line]]]:
    """The lines of every node, and how many rows it has."""
    out = []
    for node, own in facts.without.groupby("node", sort=False):
        worlds = [table[table["node"] == node] for _, table in facts.tables]
        out.append((str(node), int(own["rows"].iloc[0]), _lines(worlds, facts.trials)))
    return out


def _statements(facts: AuditFacts) -> dict[str, str]:
    """For every node, what somebody who knows what rows look like could tell at each kind of place."""
    out = {}
    for node in facts.without["node"].unique():
        told = [
            (name, privacy_words.audit_place(row["place"]), float(row["auc"]), float(row["reconstruction"]))
            for name, table in facts.tables
            for row in table[(table["node"] == node) & (table["knows"] == privacy_words.AUDIT_KNOWS[1])].to_dict(
                "records"
            )
        ]
        out[str(node)] = privacy_words.audit_statement(told, facts.trials) if told else ""
    return out


def _lines(worlds: Sequence[pandas.DataFrame], trials: int) -> list[Line]:
    """A line for every place and knowledge, the same places together and the relay last."""
    cases = dict.fromkeys(zip(worlds[0]["place"], worlds[0]["knows"], strict=True))
    lines = []
    for place, knows in sorted(cases, key=lambda case: privacy_words.audit_order(case[0])):
        found = [world[(world["place"] == place) & (world["knows"] == knows)] for world in worlds]
        dots = [_dots(measure, [each[measure.column] for each in found], trials) for measure in MEASURES]
        lines.append(Line(place, knows, dots))
    return lines


def _dots(measure: Measure, found: Sequence[pandas.Series], trials: int) -> Dots:
    values = [float(measure.worst(each)) for each in found if len(each)]
    shares = [min(max(measure.told(value), 0.0), 1.0) for value in values]
    return Dots([f"{value:.2f}" for value in values], shares, min(measure.by_chance(trials), 1.0))
