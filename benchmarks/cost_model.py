"""A cost model of federations: what must be sent is counted, overheads are fitted, and both are checked and carried on.

    python benchmarks/cost_model.py          # tables from benchmarks/cost_runs.csv and cost_rounds.csv
    python benchmarks/cost_model.py --write  # ... into docs/scale.md

A quantity is what is known by counting (8 bytes for a number that has to travel) plus overheads, which are found by
least squares of the relative error, none below zero, on runs of up to 30,000 nodes and 20 sites. All other runs check
it. ``benchmarks/cost_runs.py`` makes the runs.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import scipy.optimize
from cost_runs import EXCHANGES, KINDS, KNOWN, ROUNDS_NEEDED, RUNS, Case, Counts, tiles

from kinfolk.algorithms.gtvmin.balance import BALANCE_EVERY
from kinfolk.engine.wire import MOST_ARRAYS
from kinfolk.federation.carrier import MOST_SITES
from kinfolk.federation.joining import MOST_JOIN, MOST_NODES, MOST_TEXT
from kinfolk.federation.site_run import MOST_MESSAGE

PAGE = Path(__file__).parents[1] / "docs" / "scale.md"
NUMBER = 8  # bytes
REPORTED, MEASURED = 11, 11  # numbers of every node in a report, its own among them, and in a measurement
FITTED_NODES, FITTED_SITES, FITTED_POWER = 31_000, 20, 11_000
USUAL = 1.0  # λ
NOTHING = 1e-12
LATENCY, BANDWIDTH = 0.1, 125e6  # assumed: seconds there and back; bytes a second of the relay's line (1 Gbit/s)
Term = Callable[[Counts], float]


def letters(c: Counts) -> float:
    """Bytes of the rows in all letters of an exchange."""
    return NUMBER * c.features * c.boundary


@dataclass(frozen=True)
class Quantity:
    """Something that is measured: what is known of it by counting, and what is fitted."""

    title: str
    column: str
    known: Term
    overheads: Mapping[str, Term]
    unit: float = 1e6

    def fitted(self, runs: Sequence[tuple[Counts, float]]) -> Fitted:
        """The overheads that suit some runs best."""
        used = [(counts, found) for counts, found in runs if found > 0]
        found = np.array([found for _, found in used])
        terms = np.array([[term(counts) for term in self.overheads.values()] for counts, _ in used])
        rest = found - np.array([self.known(counts) for counts, _ in used])
        scale = np.abs(terms).max(axis=0)
        solved, _ = scipy.optimize.nnls(terms / scale / found[:, None], rest / found)
        return Fitted(self, solved / scale)


@dataclass(frozen=True)
class Fitted:
    """A quantity with its overheads."""

    quantity: Quantity
    values: Any

    def __call__(self, counts: Counts) -> float:
        """The prediction."""
        terms = [term(counts) for term in self.quantity.overheads.values()]
        return self.quantity.known(counts) + float(self.values @ terms)

    def without_known(self, counts: Counts) -> float:
        """The overheads alone."""
        return self(counts) - self.quantity.known(counts)


PER_LETTER: dict[str, Term] = {"a letter": lambda c: c.pairs, "a site": lambda c: c.sites}
PROCESSOR: dict[str, Term] = {
    "an exchange": lambda c: 1.0,
    "a site": lambda c: c.sites,
    "a letter": lambda c: c.pairs,
    "a byte of letters": letters,
    "a node": lambda c: c.nodes,
}
SITE_WORK: dict[str, Term] = {
    "a site": lambda c: 1.0,
    "a letter": lambda c: c.own_letters,
    "a parameter of a node": lambda c: c.own_nodes * c.features,
    "a parameter of an edge": lambda c: c.own_edges * c.features,
    "a node of the network": lambda c: c.nodes,
}
SITE_MEMORY: dict[str, Term] = {
    "the program": lambda c: 1.0,
    "a parameter of a node": lambda c: c.own_nodes * c.features,
    "a parameter of an edge": lambda c: c.own_edges * c.features,
    "a byte of its letters": lambda c: letters(c) / c.sites,
}
RELAY_MEMORY: dict[str, Term] = {
    "the program": lambda c: 1.0,
    "a site": lambda c: c.sites,
    "a node": lambda c: c.nodes,
    "an edge": lambda c: c.edges,
    "a byte of letters": letters,
}
PER_NODE = NUMBER * REPORTED, NUMBER * MEASURED
JOURNAL = 21, 2 * REPORTED + 2 * MEASURED + 3  # exchanges with letters, and numbers of a node, in all 23 of a run
BYTES = [
    Quantity("to the relay, a round", "step_in", letters, PER_LETTER),
    Quantity("from the relay, a round", "step_out", letters, PER_LETTER),
    Quantity("to it, a round with reports", "report_in", lambda c: letters(c) + PER_NODE[0] * c.nodes, PER_LETTER),
    Quantity("to it, a measurement", "measure_in", lambda c: PER_NODE[1] * c.nodes, PER_LETTER),
    Quantity("from it, joining", "join_out", lambda c: join_bytes(c), PER_LETTER),
    Quantity("journal, an exchange", "journal", lambda c: journal_bytes(c), PER_LETTER),
]
RESOURCES = [
    Quantity("relay's processor, an exchange", "relay_cpu", lambda c: 0.0, PROCESSOR, 1e-3),
    Quantity("a site's processor, an exchange", "site_cpu", lambda c: 0.0, SITE_WORK, 1e-3),
    Quantity("memory of a site", "memory", lambda c: NUMBER * c.nodes, SITE_MEMORY),
    Quantity("memory of the relay", "relay_memory", lambda c: 0.0, RELAY_MEMORY),
]


def join_bytes(c: Counts) -> float:
    """What sites must hear of their nodes, of the nodes next to them, and of edges, of which some are known to two."""
    return 25 * c.nodes + 24 * c.boundary + 32 * (c.edges + c.crossing)


def journal_bytes(c: Counts) -> float:
    """What the coordinator keeps of an exchange, in the mean over a measured run."""
    exchanges, numbers = JOURNAL
    return (exchanges * letters(c) + NUMBER * numbers * c.nodes) / EXCHANGES


UNITS = {1e6: "MB", 1e-3: "ms"}


# ---------------------------------------------------------------------- runs, and networks that nobody has made


def counts_of(line: Any) -> Counts:
    """The counts of a measured run."""
    return Counts(**{name: float(line[name]) for name in Counts.__dataclass_fields__})


def expected(case: Case) -> Counts:
    """The counts of a network without making it: exact for rings and maps, in the mean where it is mixed."""
    n, sites, d = float(case.nodes), float(case.sites), float(case.features)
    own = n / sites
    if case.kind == "ring":
        crossing = KNOWN * (KNOWN + 1) / 2
        ends = 2 * sites if sites > 2 else sites
        return Counts(
            n,
            KNOWN * n,
            sites,
            d,
            2 * KNOWN * sites,
            ends,
            own,
            KNOWN * own + crossing,
            min(2, sites - 1),
            crossing * sites,
        )
    if case.kind == "map":
        rows, columns = tiles(case.sites)
        side = round(own**0.5)
        borders, nodes = rows * (columns - 1) + columns * (rows - 1), sites * side**2
        edges = 2 * nodes - side * (rows + columns)
        touching = min(rows - 1, 2) + min(columns - 1, 2)  # other tiles at a tile in the middle
        inside = 2 * side * (side - 1)
        return Counts(
            nodes,
            edges,
            sites,
            d,
            2 * side * borders,
            2 * borders,
            side**2,
            inside + side * touching,
            touching,
            side * borders,
        )
    reached = (sites - 1) * (1 - (1 - 1 / sites) ** KNOWN * np.exp(-KNOWN / sites))  # sites with neighbours of a node
    edges, elsewhere = KNOWN * n, 1 - 1 / sites
    pairs = sites * (sites - 1) * (1 - np.exp(-2 * KNOWN * n / sites**2))
    return Counts(
        n, edges, sites, d, n * reached, pairs, own, own * KNOWN * (1 + elsewhere), pairs / sites, edges * elsewhere
    )


def power(lines: pandas.DataFrame) -> Any:
    """Slope and height of rounds over nodes, both as logarithms, by the smaller networks."""
    small = lines[lines["nodes"] <= FITTED_POWER]
    return np.polyfit(np.log(small["nodes"]), np.log(small["rounds"]), 1)


class Model:
    """All quantities, fitted to the small ones of some measured runs."""

    def __init__(self, runs: pandas.DataFrame, rounds: pandas.DataFrame) -> None:
        self.runs, self.rounds = runs, rounds
        small = (runs["nodes"] <= FITTED_NODES) & (runs["sites"] <= FITTED_SITES)
        self.small, self.others = runs[small], runs[~small]
        self.quantities = {
            each.column: each.fitted([(counts_of(line), line[each.column]) for _, line in self.small.iterrows()])
            for each in (*BYTES, *RESOURCES)
        }
        self.powers = {key: power(lines) for key, lines in rounds.groupby(["kind", "lam"])}

    @classmethod
    def of_files(cls) -> Model:
        """From the runs in the repository."""
        return cls(pandas.read_csv(RUNS), pandas.read_csv(ROUNDS_NEEDED))

    def __getitem__(self, name: str) -> Fitted:
        return self.quantities[name]

    def rounds_needed(self, kind: str, lam: float, nodes: float) -> float:
        """Rounds to a residual of 1e-4, by a power of the number of nodes."""
        slope, height = self.powers[kind, lam]
        return float(np.exp(height + slope * np.log(nodes)))

    def relayed(self, counts: Counts) -> float:
        """Bytes through the relay in an exchange, both ways, in the mean over reports and measurements."""
        every, more = BALANCE_EVERY, self["report_in"](counts) - self["step_in"](counts)
        measuring = self["measure_in"](counts) + self["step_out"](counts)
        step = self["step_in"](counts) + self["step_out"](counts)
        return (step * every + more + measuring) / (every + 1)

    def journal(self, counts: Counts) -> float:
        """Bytes that the coordinator keeps of an exchange: all that it was sent, again in the mean."""
        return self.relayed(counts) - self["step_out"](counts)

    def seconds(self, counts: Counts) -> float:
        """Of an exchange, with the line and the latency that are assumed."""
        return LATENCY + self.relayed(counts) / BANDWIDTH + self["relay_cpu"](counts) + self["site_cpu"](counts)


# ---------------------------------------------------------------------- tables


def table(head: Sequence[str], lines: Sequence[Sequence[str]], left: int = 1) -> str:
    """A table in Markdown."""
    rule = ["---"] * left + ["---:"] * (len(head) - left)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *lines))


def number(value: float) -> str:
    """With three digits.

    >>> number(1234567), number(0.012345), number(12.345)
    ('1,230,000', '0.0123', '12.3')
    """
    if value == 0:
        return "0"
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 100 else f"{rounded:.3g}"


def size(value: float) -> str:
    """Bytes in words.

    >>> size(12_345_678), size(2.5e12)
    ('12.3 MB', '2.5 TB')
    """
    unit = next(each for each in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B")) if value >= each[0])
    return f"{number(value / unit[0])} {unit[1]}"


def overheads_table(model: Model) -> str:
    """What was fitted."""
    lines = []
    for each in model.quantities.values():
        unit = "s" if each.quantity.unit == 1e-3 else "bytes"
        parts = [
            f"{value:,.3g} for {name}"
            for name, value in zip(each.quantity.overheads, each.values, strict=True)
            if value > NOTHING
        ]
        errors = [abs(np.log(ratio)) for ratio in ratios(each, model.small)]
        lines.append([each.quantity.title, unit, "; ".join(parts), f"{np.exp(max(errors)):.2f}"])
    return table(["quantity", "unit", "fitted", "worst ratio in the fit"], lines, 3)


def ratios(each: Fitted, runs: pandas.DataFrame) -> list[float]:
    """Predictions through what was measured."""
    column = each.quantity.column
    return [each(counts_of(line)) / line[column] for _, line in runs.iterrows() if line[column] > 0]


def checked_table(model: Model, quantities: Sequence[Quantity]) -> str:
    """Predictions beside what was measured, on runs that had no part in the fit."""
    shown = [(model[each.column], UNITS[each.unit]) for each in quantities]
    head = ["network", "nodes", "sites", "d", *(f"{each.quantity.title}, {unit}" for each, unit in shown)]
    lines = []
    for _, line in model.others.iterrows():
        counts, cells = counts_of(line), [line["kind"], f"{line['nodes']:,}", f"{line['sites']}", f"{line['features']}"]
        for each, _ in shown:
            found, predicted = line[each.quantity.column], each(counts)
            cells.append(compared(predicted, found, each.quantity.unit))
        lines.append(cells)
    return table(head, lines)


def compared(predicted: float, found: float, unit: float) -> str:
    """A prediction, what was measured, and their ratio."""
    if not found:
        return "–"
    return f"{number(predicted / unit)} / {number(found / unit)} = **{predicted / found:.2f}**"


def measured_table(model: Model) -> str:
    """All runs as they were measured."""
    head = ["network", "nodes", "sites", "d", "algorithm, MB a round", "relay, MB a round", "letters", "ms an exchange",
            "ms of the relay's processor", "MB of a site", "load"]  # fmt: skip
    lines = []
    for _, line in model.runs.sort_values(["nodes", "sites", "kind"]).iterrows():
        sent = 2 * NUMBER * line["edges"] * line["features"]
        cells = [sent / 1e6, (line["step_in"] + line["step_out"]) / 1e6, line["pairs"], 1e3 * line["seconds"],
                 1e3 * line["relay_cpu"], line["memory"] / 1e6]  # fmt: skip
        known = [number(each) if each else "–" for each in cells]
        names = [line["kind"], f"{line['nodes']:,}", f"{line['sites']}", f"{line['features']}"]
        lines.append([*names, *known, f"{line['load']:.0f}"])
    return table(head, lines)


def rounds_table(model: Model) -> str:
    """Rounds that were needed, and those of the power that was fitted to the smaller networks."""
    sizes = sorted({float(f"{each:.1g}") for each in model.rounds["nodes"]})
    head = ["network", "λ", *(f"{each:,.0f}" for each in sizes), "grows as", "10⁸ by that power"]
    lines = []
    for (kind, lam), found in model.rounds.groupby(["kind", "lam"]):
        cells = [f"{rounds_at(model, found, each)}" for each in sizes]
        slope, far = max(model.powers[kind, lam][0], 0.0), model.rounds_needed(kind, lam, 1e8)
        lines.append([kind, f"{lam:g}", *cells, f"n^{slope:.2f}", number(far)])
    return table(head, lines, 1)


def rounds_at(model: Model, found: pandas.DataFrame, nodes: float) -> str:
    """The rounds of one network, with the prediction where it had no part in the fit."""
    here = found[(found["nodes"] - nodes).abs() < 0.1 * nodes]
    if here.empty:
        return "–"
    line = here.iloc[0]
    predicted = model.rounds_needed(line["kind"], line["lam"], line["nodes"])
    return f"{line['rounds']:,}" + (f" ({predicted:,.0f})" if line["nodes"] > FITTED_POWER else "")


CARRIED = ((1_000_000, 200), (10_000_000, 1_000), (100_000_000, 10_000))
FEATURES = 10


def carried_table(model: Model) -> str:
    """What larger federations would take."""
    head = ["network", "nodes", "sites", "letters", "through the relay", "per-node numbers", "relay's processor, s",
            "relay's memory", "memory of a site", "exchanges", "coordinator's journal", "time"]  # fmt: skip
    lines = []
    for nodes, sites in CARRIED:
        for kind in KINDS:
            counts = expected(Case(kind, nodes, sites, FEATURES))
            exchanges = exchanges_of(model, kind, USUAL, nodes)
            own = NUMBER * (REPORTED + MEASURED) * counts.nodes / (BALANCE_EVERY + 1)
            cells = [number(counts.pairs), size(model.relayed(counts)), size(own), number(model["relay_cpu"](counts)),
                     size(model["relay_memory"](counts)), size(model["memory"](counts)), number(exchanges),
                     size(exchanges * model.journal(counts)), hours(exchanges * model.seconds(counts))]  # fmt: skip
            lines.append([kind, f"{nodes:,}", f"{sites:,}", *cells])
    return table(head, lines)


def exchanges_of(model: Model, kind: str, lam: float, nodes: float) -> float:
    """Rounds, with a measurement every tenth of them."""
    return model.rounds_needed(kind, lam, nodes) * (1 + 1 / BALANCE_EVERY)


def hours(seconds: float) -> str:
    """A duration.

    >>> hours(90), hours(7200), hours(1e6)
    ('1.5 min', '2 h', '11.6 days')
    """
    for unit, name in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{number(seconds / unit)} {name}"
    return f"{number(seconds)} s"


@dataclass(frozen=True)
class Limit:
    """Something that the program refuses, or cannot do."""

    what: str
    most: float
    reached: Callable[[Model, Counts], float]


LIMITS = [
    Limit("nodes of a network (`MOST_NODES`)", MOST_NODES, lambda m, c: c.nodes),
    Limit("sites in the journal of a coordinator (`MOST_SITES`)", MOST_SITES, lambda m, c: c.sites),
    Limit("neighbouring sites of a site (arrays in a message, `MOST_ARRAYS`)", MOST_ARRAYS, lambda m, c: c.own_letters),
    Limit("bytes of a join (`MOST_JOIN`)", MOST_JOIN, lambda m, c: m["join_out"](c) / c.sites),
    Limit("bytes of names at a site (`MOST_TEXT`)", MOST_TEXT, lambda m, c: 10 * c.own_nodes),
    Limit("bytes of a message (`MOST_MESSAGE`)", MOST_MESSAGE, lambda m, c: m["report_in"](c) / c.sites),
    Limit("threads of a relay over sockets", 32_000, lambda m, c: c.sites),
    Limit("a relay with 16 GB", 16e9, lambda m, c: m["relay_memory"](c)),
    Limit("a site with 4 GB", 4e9, lambda m, c: m["memory"](c)),
    Limit("a line of 1 Gbit/s at the relay, 1 s an exchange", BANDWIDTH, lambda m, c: m.relayed(c)),
    Limit("1 s of the relay's processor an exchange", 1.0, lambda m, c: m["relay_cpu"](c)),
    Limit("a disk of 1 TB for the coordinator's journal of 1,000 exchanges", 1e12, lambda m, c: 1_000 * m.journal(c)),
]


def breaking_table(model: Model) -> str:
    """Where each limit is met when nodes and sites grow together, 10,000 nodes a site."""
    head = ["what", "at most", *(f"{kind}: met at" for kind in KINDS)]
    lines = []
    for limit in LIMITS:
        cells = [met(model, limit, kind) for kind in KINDS]
        lines.append([limit.what, number(limit.most), *cells])
    return table(head, lines)


SITES = [round(10 ** (k / 8)) for k in range(3, 45)]  # up to about 300,000


def met(model: Model, limit: Limit, kind: str) -> str:
    """The first number of sites, of 10,000 nodes each, that is too many."""
    for sites in SITES:
        shape = sites if kind != "map" else round(sites**0.5) ** 2
        if limit.reached(model, expected(Case(kind, 10_000 * shape, shape, FEATURES))) > limit.most:
            return f"{shape:,} sites"
    return "not met"


@dataclass(frozen=True)
class Remedy:
    """Something that one would do: what it leaves of the bytes through the busiest relay."""

    what: str
    relayed: Callable[[Model, Counts, str], float]


def _summed(model: Model, counts: Counts, kind: str) -> float:
    return model.relayed(counts) - NUMBER * (REPORTED + MEASURED) * counts.nodes / (BALANCE_EVERY + 1)


def _peer_to_peer(model: Model, counts: Counts, kind: str) -> float:
    none = replace(counts, boundary=0.0, pairs=0.0)
    return _summed(model, none, kind)


def _tree(model: Model, counts: Counts, kind: str) -> float:
    groups = expected(Case(kind, int(counts.nodes), round(counts.sites**0.5), int(counts.features)))
    return _summed(model, replace(groups, pairs=groups.pairs), kind)


REMEDIES = [
    Remedy("as it is", lambda m, c, kind: m.relayed(c)),
    Remedy("sites add up their nodes' numbers", _summed),
    Remedy("sums, and numbers of 32 bits", lambda m, c, kind: _summed(m, c, kind) / 2),
    Remedy("sums, and a tree: 100 relays with 100 sites each; the one above them", _tree),
    Remedy("sums, and letters that go from site to site", _peer_to_peer),
]


def remedies_table(model: Model) -> str:
    """What each would leave, at the largest size."""
    nodes, sites = CARRIED[-1]
    cases = {kind: expected(Case(kind, nodes, sites, FEATURES)) for kind in KINDS}
    lines = [[each.what, *(size(each.relayed(model, cases[kind], kind)) for kind in KINDS)] for each in REMEDIES]
    return table(["through the busiest relay, an exchange", *KINDS], lines)


TABLES: dict[str, Callable[[Model], str]] = {
    "measured": measured_table,
    "fitted": overheads_table,
    "checked bytes": lambda model: checked_table(model, BYTES),
    "checked resources": lambda model: checked_table(model, RESOURCES),
    "rounds": rounds_table,
    "carried": carried_table,
    "breaking": breaking_table,
    "remedies": remedies_table,
}


def written(page: str, tables: Mapping[str, str]) -> str:
    """A page with each table between its marks."""
    for name, text in tables.items():
        begin, end = f"<!-- cost, {name}: begin -->", f"<!-- cost, {name}: end -->"
        page = re.sub(f"{begin}.*?{end}", lambda _, filled=f"{begin}\n{text}\n{end}": filled, page, flags=re.DOTALL)
    return page


def main() -> None:
    """Print the tables, or write them into the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="into docs/scale.md")
    given = parser.parse_args()
    model = Model.of_files()
    tables = {name: make(model) for name, make in TABLES.items()}
    if given.write:
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), tables), encoding="utf-8")
        return
    for name, text in tables.items():
        print(f"{name}\n\n{text}\n")


if __name__ == "__main__":
    main()
