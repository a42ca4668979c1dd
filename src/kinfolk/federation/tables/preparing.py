"""From tables that stay at their sites to rows that can be learnt from: agree, split, encode, with sums alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pandas

from kinfolk.checks import InputError, listing
from kinfolk.engine.protocol import Arrays
from kinfolk.federation.tables.agreeing import (
    KNOWN,
    NEED_ROWS,
    Agreed,
    Description,
    agreed,
    check_settings,
    without_constant,
)
from kinfolk.federation.tables.asking import Sites, Told
from kinfolk.network.folds import node_folds
from kinfolk.network.graph import Graph
from kinfolk.report.facts import Note, on_globe
from kinfolk.tables.blend import evidence_of_times, fold_factors
from kinfolk.tables.columns import Columns
from kinfolk.tables.encoding import CategoryColumn, DateColumn, Encoder, NumberColumn
from kinfolk.tables.families import Family, family_of
from kinfolk.tables.graph_source import GraphSource, graph_source, wide_graph
from kinfolk.tables.settings import Settings
from kinfolk.tables.splits import FEW_TIMES, VALIDATION, last_cut, whole_units, window_starts
from kinfolk.tables.target import MANY_CLASSES, TASKS, Target
from kinfolk.typing import Bools, Floats, Ints

MOSTLY_NEW = 0.5  # share of marked rows that belong to nodes without training rows
NO_TIME = 0.0  # as the time of the test, where rows are tested


@dataclass(frozen=True, eq=False)
class Ready:
    """What the coordinator knows when all rows are encoded: names, sums, and numbers of rows."""

    settings: Settings
    columns: Columns
    encoder: Encoder
    target: Target
    family: Family
    names: list[str]  # of the nodes
    numbers: list[Ints]  # of the nodes of every site
    train_rows: Ints  # (nodes,)
    test_rows: Ints  # (nodes,)
    part_rows: Ints  # (parts, nodes) rows that are learnt from; the last part is all of them
    held: Ints  # (folds,) rows that are predicted
    times: Floats | None  # of all rows, sorted, where later ones are tested
    cut: float  # the time after which rows are tested
    starts: Floats  # first times of the windows of cross-validation
    kind: Literal["rows", "nodes", "times"]  # what the rows of a part share
    places: Floats | None  # (nodes, 2)
    source: GraphSource
    wide: Graph | None
    notes: list[Note]

    @property
    def node_count(self) -> int:
        """Number of nodes."""
        return len(self.names)

    @property
    def width(self) -> int:
        """Number of parameters of a model."""
        return len(self.encoder.get_feature_names_out()) + 1

    @property
    def folds(self) -> int:
        """Number of parts that are predicted."""
        return len(self.held)

    @property
    def timed(self) -> bool:
        """Whether later times are predicted."""
        return self.times is not None

    @property
    def factors(self) -> Floats:
        """How much a row of every fold counts."""
        return fold_factors(self.kind, self.folds)

    @property
    def shares(self) -> Floats:
        """How much every fold counts, with sum 1."""
        weight = self.factors * self.held
        return np.asarray(weight / weight.sum())

    @property
    def moments(self) -> Floats:
        """The different times of the test."""
        return np.empty(0) if self.times is None else np.unique(self.times[self.times > self.cut])

    @property
    def trend(self) -> tuple[int, ...]:
        """The features that grow with time, where later times are predicted."""
        return self.encoder.trend(self.settings.time)

    def evidence(self, seen: int) -> int:
        """How many rows, nodes or different times were predicted in cross-validation; not too few times."""
        if self.times is None:
            return seen if self.kind == "rows" else int((self.train_rows > 0).sum())
        return evidence_of_times(len(self.predicted_times), seen)

    @property
    def predicted_times(self) -> Floats:
        """The different times that were predicted in cross-validation; none where no later times are."""
        if self.times is None:
            return np.empty(0)
        return np.unique(self.times[(self.times <= self.cut) & (self.times >= self.starts[0])])

    def by_node(self, told: list[Any]) -> Any:
        """Arrays of all sites, whose last axis are their nodes, put together."""
        out = np.full((*told[0].shape[:-1], self.node_count), np.nan if told[0].dtype.kind == "f" else 0)
        for numbers, values in zip(self.numbers, told, strict=True):
            out[..., numbers] = values
        return out.astype(told[0].dtype)


def prepare_together(sites: Sites, settings: Settings, edges: pandas.DataFrame | None) -> Ready:
    """Agree on columns, split, and encode, at all sites."""
    check_settings(settings)
    described = sites.ask("describe", settings.to_toml())
    descriptions = {name: Description.from_json(told.about) for name, told in zip(sites.names, described, strict=True)}
    found = agreed(settings, descriptions)
    numbers = [np.searchsorted(found.names, each.nodes).astype(np.int64) for each in descriptions.values()]
    sites.own = [{"nodes": len(each)} for each in numbers]
    times = _times(described) if settings.time else None
    cut = NO_TIME if times is None else last_cut(times, float(settings.test))
    sites.sizes |= {
        "numbers": len(found.columns.numbers),
        "dates": len(found.columns.dates),
        "places": 2 if found.columns.coords else 0,
    }
    tested = _tested_nodes(settings, _by_node(described, "node_rows", numbers, len(found.names)))
    each = [{"numbers": mine, "tested": tested[mine]} for mine in numbers]
    counted = sites.ask("count", _columns_json(found), each=each, cut=cut)
    _check_later(counted)
    rows = {name: _by_node(counted, name, numbers, len(found.names)) for name in ("train_rows", "test_rows")}
    total = int(rows["train_rows"].sum())
    if not total or not rows["test_rows"].sum():
        raise InputError(
            f"Expected rows to learn from and rows to test with, got {total:,} and {rows['test_rows'].sum():,}: change "
            "the share that is tested."
        )
    sums = sites.total("totals")
    target = target_of(settings, dict(zip(sites.names, counted, strict=True)), float(sums["target_sum"]) / total)
    columns, encoder, target = _encoder(sites, found, counted, sums, target, total)
    encoder = encoder if times is None else encoder.for_later_times()
    family = family_of(settings.model, target)
    count = settings.fold_count(total, 3 if settings.time else family.folds)
    starts = np.empty(0) if times is None else window_starts(times[times <= cut], count)
    of_nodes = _node_folds(settings, rows, count)
    count = 1 + int(of_nodes.max()) if len(of_nodes) else count
    folded = [{"node_folds": of_nodes[mine] if len(of_nodes) else of_nodes} for mine in numbers]
    encoded = sites.ask(
        "encode",
        {"encoder": encoder.to_json(), **target_json(target), "folds": count},
        centre=encoder.centre, scale=encoder.scale, target_centre=target.centre, target_spread=target.spread,
        starts=starts, each=folded,
    )  # fmt: skip
    places = _places(counted, numbers, len(found.names)) if columns.coords else None
    held = np.sum([told.arrays["held"] for told in encoded], axis=0)
    if not held.all():
        raise InputError(
            f"Expected rows in each of {len(held)} parts for cross-validation, got too few: use fewer folds."
        )
    part_rows = np.zeros((len(held) + 1, len(found.names)), dtype=np.int64)
    for mine, told in zip(numbers, encoded, strict=True):
        part_rows[:, mine] = told.arrays["part_rows"]
    sites.sizes |= {"folds": len(held), "parts": len(held) + 1, "width": len(encoder.get_feature_names_out()) + 1}
    kinds = max(len(target.classes), 1)
    sites.sizes |= {"kinds": kinds, "deviations": kinds * sites.sizes["width"], "scores": target.outputs}
    return Ready(
        settings, columns, encoder, target, family, found.names, numbers, **rows, part_rows=part_rows, held=held,
        times=times, cut=cut, starts=starts, places=places,
        kind="times" if times is not None else "nodes" if len(of_nodes) else "rows",
        source=graph_source(places, columns, settings, found.names, edges),
        wide=wide_graph(places, on_globe(columns.coords), found.names),
        notes=[*_notes(settings, columns, times, cut), *_class_notes(target, sites.names, counted, encoded)],
    )  # fmt: skip


def _tested_nodes(settings: Settings, rows: Ints) -> Bools:
    """The nodes that are tested as a whole; ``rows``: of every node."""
    if settings.hold != "nodes":
        return np.zeros(len(rows), dtype=bool)
    return np.isin(np.arange(len(rows)), whole_units(rows, float(settings.test), settings.seed))


def _check_later(counted: list[Told]) -> None:
    """Refuse marked rows that come later than the others at all sites: folds would have to be windows of time."""
    later = [told.about.get("later", []) for told in counted]
    for column in later[0]:
        if all(column in each for each in later):
            raise InputError(
                f"Expected marked rows among the others, at all sites they come later in column {column!r}: leave out "
                "the column of marks, and give it as time."
            )


def _node_folds(settings: Settings, rows: Mapping[str, Ints], count: int) -> Ints:
    """The fold of every node (−1 without training rows), where tested nodes are new; none otherwise.

    All of them, or more than half of the test rows where these are marked.
    """
    nodes = np.flatnonzero(rows["train_rows"])
    count = min(count, len(nodes))
    new = float(rows["test_rows"][rows["train_rows"] == 0].sum() / rows["test_rows"].sum())
    if settings.time or count < 2 or not (new > MOSTLY_NEW if isinstance(settings.test, str) else new == 1):
        return np.empty(0, dtype=np.int64)
    out = np.full(len(rows["train_rows"]), -1)
    out[nodes] = node_folds(nodes, count, settings.seed, VALIDATION)
    return out


def _times(described: list[Told]) -> Floats:
    """The times of all rows, sorted."""
    each = [np.repeat(told.arrays["times"], told.arrays["time_rows"]) for told in described]
    return np.sort(np.concatenate(each))


def _columns_json(found: Agreed) -> dict[str, Any]:
    columns = found.columns
    names = {each: list(getattr(columns, each)) for each in ("numbers", "categories", "dates", "coords")}
    return {**names, "written": [found.written[name] for name in columns.dates]}


def _by_node(told: list[Told], name: str, numbers: list[Ints], count: int) -> Ints:
    out = np.zeros(count, dtype=np.int64)
    for mine, each in zip(numbers, told, strict=True):
        out[mine] = each.arrays[name]
    return out


def _places(told: list[Told], numbers: list[Ints], count: int) -> Floats:
    out = np.empty((count, 2))
    for mine, each in zip(numbers, told, strict=True):
        out[mine] = each.arrays["places"]
    return out


def _encoder(
    sites: Sites, found: Agreed, counted: list[Told], sums: Arrays, target: Target, total: int
) -> tuple[Columns, Encoder, Target]:
    """The encoder, from summed counts and sums, and the target with its scale."""
    known, added = sums["known"], sums["sums"]
    numbers = tuple(
        NumberColumn(name, float(added[k] / known[k]) if known[k] else None, bool(known[k] < total))
        for k, name in enumerate(found.columns.numbers)
    )
    dates = tuple(_date_column(found, counted, k, name) for k, name in enumerate(found.columns.dates))
    categories = [_category_column(counted, name) for name in found.columns.categories]
    constant = [each.name for each in categories if len(each.outputs) < 2 and each.zero is None]
    kept = [each for each in categories if each.name not in constant]
    columns = without_constant(found.columns, constant)
    encoder, target, empty = _scaled(sites, numbers, kept, dates, target, total)
    if empty:  # what is rare at one site has a name from another: there are no others
        sure = [_category_column(counted, each.name, named=each.name in empty) for each in kept]
        encoder, target, _ = _scaled(sites, numbers, sure, dates, target, total)
    return columns, encoder, target


def _date_column(found: Agreed, counted: list[Told], k: int, name: str) -> DateColumn:
    each = [(told.arrays["dates"][k], told.arrays["date_rows"][k]) for told in counted]
    times = [np.repeat(at[~np.isnan(at)], rows[~np.isnan(at)]) for at, rows in each]
    return DateColumn.of_times(name, np.sort(np.concatenate(times)), found.written[name])


def _category_column(counted: list[Told], name: str, *, named: bool = False) -> CategoryColumn:
    """A column of categories from the counts of all sites; ``named``: all that occur are among them."""
    found = [_category_counts(told.about, name) for told in counted]
    counts: Counter[str] = Counter()
    for mine, _ in found:
        counts.update(mine)
    return CategoryColumn.of_counts(name, counts, others=not named and any(others for _, others in found))


def _category_counts(about: Mapping[str, Any], column: str) -> tuple[dict[str, int], int]:
    try:
        found = about["categories"][column]
        counts = {str(name): int(count) for name, count in found["counts"].items()}
        return counts, int(found["others"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"Expected how often categories of {column!r} occur, got something else.") from error


def target_json(target: Target) -> dict[str, Any]:
    """The target as sites are told of it, but for its scale."""
    return {"classes": list(target.classes), "kind": target.kind, "level": target.level}


def target_of(settings: Settings, by_name: Mapping[str, Told], mean: float) -> Target:
    """Whether classes, counts, a quantile or a number are predicted; of a number, its mean."""
    labels = {name: told.about.get("labels") for name, told in by_name.items()}
    given = {name: each for name, each in labels.items() if each is not None}
    union = sorted({each for some in given.values() for each in some}, key=lambda value: (str(type(value)), value))
    texts = any(isinstance(each, str | bool) for each in union)
    asked = TASKS.get(settings.task)
    classes = asked == "classes" or (asked is None and (texts or len(union) <= 2))
    if classes and len(given) == len(labels):
        return Target(_classes(settings, given, union))
    if texts or (classes and asked is not None):
        odd = next((name for name, each in labels.items() if each is None), next(iter(labels)))
        raise InputError(
            f"Expected the same kind of target at all sites, site {odd!r} has other values in {settings.target!r} than "
            "the others: write it in one way, or set the task."
        )
    kind = asked or "number"
    return Target((), 0.0 if kind == "count" else mean, 1.0, kind, settings.quantile)


def _classes(settings: Settings, labels: Mapping[str, list[Any]], union: list[Any]) -> tuple[Any, ...]:
    """The classes of all sites, or a sentence."""
    kinds = {name: {isinstance(each, str) for each in some} for name, some in labels.items() if some}
    first = next(iter(kinds))
    for name, kind in kinds.items():
        if kind != kinds[first]:
            raise InputError(
                f"Expected classes of {settings.target!r} as text or as numbers at all sites, {first!r} and {name!r} "
                "have different ones: write them in one way."
            )
    if len(union) < 2:
        raise InputError(
            f"Expected two classes at least in the training rows of all sites, {settings.target!r} has "
            f"{listing(union)} only."
        )
    if settings.task == "auto" and len(union) > MANY_CLASSES:
        raise InputError(
            f"Expected numbers or few classes in the target {settings.target!r}, got {len(union)} texts such as "
            f"{union[0]!r}: correct numbers that are written as text, or set the task to classification."
        )
    return tuple(union)


def _class_notes(target: Target, names: list[str], counted: list[Told], encoded: list[Told]) -> list[Note]:
    """Classes that one site alone has, and how many test rows have a class that no training row has."""
    labels = {name: told.about.get("labels") or [] for name, told in zip(names, counted, strict=True)}
    having = {label: [name for name, some in labels.items() if label in some] for label in target.classes}
    single = [
        Note("class of one site", {"label": each, "site": had[0]}) for each, had in having.items() if len(had) < 2
    ]
    unseen = sum(int(told.arrays["unseen"]) for told in encoded)
    return [*single, *([Note("test rows of unseen classes", {"count": unseen})] if unseen else [])]


def _scaled(
    sites: Sites, numbers: tuple[NumberColumn, ...], categories: Sequence[CategoryColumn],
    dates: tuple[DateColumn, ...], target: Target, total: int,
) -> tuple[Encoder, Target, set[str]]:  # fmt: skip
    """The encoder and the target with their scales, from sums about what is nearly the mean.

    Also the columns of categories in which no row is among the others, though a place is kept for them.
    """
    parts = numbers, tuple(categories), dates
    outputs = Encoder(*parts, np.zeros(1), np.ones(1)).get_feature_names_out()
    bare = Encoder(*parts, np.zeros(len(outputs)), np.ones(len(outputs)))
    means = {column.name: column.mean for column in numbers if column.mean is not None}
    centre = np.array([means.get(name, 0.0) for name in outputs])
    about = {"encoder": bare.to_json(), **target_json(target)}
    found = sites.total("scale", about, centre=centre, target_centre=target.centre)
    mean = found["sums"] / total
    at = dict(zip(outputs, mean, strict=True))
    empty = {each.name for each in categories if each.rest and at[each.outputs[-1]] == 0}
    variance = np.maximum(found["squares"] / total - (mean - centre) ** 2, 0.0)
    encoder = _without_constant(bare.scaled(mean, variance, total), variance)
    if target.classes:
        return encoder, target, empty
    spread = float(np.sqrt(found["target_squares"] / total))
    if spread == 0:
        raise InputError("Expected a target that varies, got one value in the training rows of all sites.")
    return encoder, target if target.kind == "count" else replace(target, spread=spread), empty


def _without_constant(encoder: Encoder, variance: Floats) -> Encoder:
    """The same without columns of numbers that have one value in all training rows."""
    outputs = encoder.get_feature_names_out()
    constant = {column.name for column in encoder.numbers if not column.marked} & {
        name for name, each in zip(outputs, variance, strict=True) if each == 0
    }
    kept = [name not in constant for name in outputs]
    numbers = tuple(column for column in encoder.numbers if column.name not in constant)
    if len(constant) == len(outputs):
        return Encoder((), (), (), np.zeros(1), np.ones(1))
    return replace(encoder, numbers=numbers, centre=encoder.centre[kept], scale=encoder.scale[kept])


def _notes(settings: Settings, columns: Columns, times: Floats | None, cut: float) -> list[Note]:
    """What a user should know."""
    named = settings.members or KNOWN
    left_out = [
        Note("member left out", {"member": name, "why": "it needs the rows of all"})
        for name in named
        if name in NEED_ROWS
    ]
    tested = 0 if times is None else len(np.unique(times[times > cut]))
    few = [Note("few times", {"count": tested})] if 0 < tested < FEW_TIMES else []
    return [*columns.notes, *few, *left_out]
