"""From tables that stay at their sites to rows that can be learnt from: agree, split, encode, with sums alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import pandas

from kinfolk.checks import InputError, listing
from kinfolk.engine.protocol import Arrays
from kinfolk.federation.tables.packing import BIN_EDGES
from kinfolk.federation.tables.requests import RemoteParties
from kinfolk.federation.tables.schema import (
    KNOWN,
    NEED_ROWS,
    Agreed,
    Description,
    agreed,
    check_settings,
    without_constant,
)
from kinfolk.federation.tables.site_reading import Response
from kinfolk.network.folds import node_folds
from kinfolk.report.facts import Note, on_globe
from kinfolk.tables.columns import Columns
from kinfolk.tables.design import NO_TIMES, Design
from kinfolk.tables.encoding import CategoryColumn, DateColumn, Encoder, NumberColumn
from kinfolk.tables.families import family_of
from kinfolk.tables.graph_source import graph_source, wide_graph
from kinfolk.tables.levels import SLOPES
from kinfolk.tables.party import Call
from kinfolk.tables.settings import Settings
from kinfolk.tables.splits import FEW_TIMES, VALIDATION, last_cut, whole_units, window_starts
from kinfolk.tables.target import MANY_CLASSES, TASKS, Target
from kinfolk.typing import Bools, Floats, Ints

MOSTLY_NEW = 0.5  # share of marked rows that belong to nodes without training rows
NO_TIME = 0.0  # as the time of the test, where rows are tested


def shared_design(parties: RemoteParties, settings: Settings, edges: pandas.DataFrame | None) -> Design:
    """Agree on columns, split, and encode, at all sites."""
    check_settings(settings)
    described = parties.ask(Call(SiteParty.describe, settings=settings, sites=parties.names))[0].each
    descriptions = {
        name: Description.from_json(about) for name, (about, _) in zip(parties.names, described, strict=True)
    }
    found = agreed(settings, descriptions)
    numbers = [np.searchsorted(found.names, each.nodes).astype(np.int64) for each in descriptions.values()]
    parties.own = [{"nodes": len(each)} for each in numbers]
    times = _times(described) if settings.time else None
    cut = NO_TIME if times is None else last_cut(times, float(settings.test))
    parties.sizes |= {
        "numbers": len(found.columns.numbers),
        "dates": len(found.columns.dates),
        "places": 2 if found.columns.coords else 0,
    }
    tested = _tested_nodes(settings, _by_node(described, "node_rows", numbers, len(found.names)))
    own = [{"numbers": mine, "tested": tested[mine]} for mine in numbers]
    measured = parties.ask(Call(SiteParty.measure, agreed=_columns_json(found), cut=cut).each(own))[0]
    _check_later(measured.each)
    rows = {name: _by_node(measured.each, name, numbers, len(found.names)) for name in ("train_rows", "test_rows")}
    total = int(rows["train_rows"].sum())
    if not total or not rows["test_rows"].sum():
        raise InputError(
            f"Expected rows to learn from and rows to test with, got {total:,} and {rows['test_rows'].sum():,}: change "
            "the share that is tested."
        )
    sums = measured.total[1]
    by_site = {name: about for name, (about, _) in zip(parties.names, measured.each, strict=True)}
    target = target_of(settings, by_site, float(sums["target_sum"]) / total)
    columns, encoder, target = _encoder(parties, found, measured.each, sums, target, total)
    encoder = encoder if times is None else encoder.for_later_times()
    family = family_of(settings.model, target)
    count = settings.fold_count(total, 3 if settings.time else family.folds)
    starts = np.empty(0) if times is None else window_starts(times[times <= cut], count)
    of_nodes = _node_folds(settings, rows, count)
    count = 1 + int(of_nodes.max()) if len(of_nodes) else count
    folded = [{"node_folds": of_nodes[mine] if len(of_nodes) else of_nodes} for mine in numbers]
    width, kinds = len(encoder.get_feature_names_out()) + 1, max(len(target.classes), 1)
    folds = len(starts) if settings.time else count
    parties.sizes |= {"folds": folds, "parts": folds + 1, "width": width, "windows": folds if settings.time else 1}
    parties.sizes["width pairs"] = width * (width + 1) // 2
    parties.sizes |= {"kinds": kinds, "deviations": kinds * width, "scores": target.outputs}
    parties.sizes |= {"bins": len(BIN_EDGES) + 1, "slopes": len(SLOPES)}
    about = {"encoder": encoder.to_json(), **target_json(target), "folds": count}
    call = Call(
        SiteParty.encode, about=about, centre=encoder.centre, scale=encoder.scale, target_centre=target.centre,
        target_spread=target.spread, starts=starts,
    )  # fmt: skip
    encoded = parties.ask(call.each(folded))[0].each
    held = np.sum([arrays["held"] for _, arrays in encoded], axis=0)
    if not held.all():
        raise InputError(
            f"Expected rows in each of {len(held)} parts for cross-validation, got too few: use fewer folds."
        )
    part_rows = np.zeros((len(held) + 1, len(found.names)), dtype=np.int64)
    for mine, (_, arrays) in zip(numbers, encoded, strict=True):
        part_rows[:, mine] = arrays["part_rows"]
    places = _places(measured.each, numbers, len(found.names)) if columns.coords else None
    return Design(
        settings, columns, encoder, target, family, found.names, numbers, rows["train_rows"],
        rows["test_rows"], part_rows, held,
        kind="times" if times is not None else "nodes" if len(of_nodes) else "rows",
        test_times=NO_TIMES if times is None else np.unique(times[times > cut]),
        predicted_times=NO_TIMES if times is None else np.unique(times[(times <= cut) & (times >= starts[0])]),
        time=settings.time, places=places, source=graph_source(places, columns, settings, found.names, edges),
        wide=wide_graph(places, on_globe(columns.coords), found.names),
        notes=[*_notes(settings, columns, times, cut), *_class_notes(target, by_site, encoded)],
    )  # fmt: skip


class SiteParty(Protocol):
    """What a site is asked besides the methods of a party: to read its table."""

    def describe(self, settings: Settings, sites: list[str]) -> Response:
        """Names and kinds of columns, nodes and times."""

    def measure(self, agreed: Any, cut: float, numbers: Ints = ..., tested: Bools = ...) -> Response:
        """Split; counts and sums of columns."""

    def scale(self, about: Any, centre: Floats, target_centre: float) -> Response:
        """Sums and squares of encoded features and of the target."""

    def encode(
        self, about: Any, centre: Floats, scale: Floats, target_centre: float, target_spread: float, starts: Floats,
        node_folds: Ints = ...,
    ) -> Response:  # fmt: skip
        """Encode all rows, and make the folds of cross-validation."""

    def finish(self, about: Any, errors: Any, quantiles: Any) -> Response:
        """Be told how it has ended at all sites."""


def _tested_nodes(settings: Settings, rows: Ints) -> Bools:
    """The nodes that are tested as a whole; ``rows``: of every node."""
    if settings.hold != "nodes":
        return np.zeros(len(rows), dtype=bool)
    return np.isin(np.arange(len(rows)), whole_units(rows, float(settings.test), settings.seed))


def _check_later(measured: Sequence[Response]) -> None:
    """Refuse marked rows that come later than the others at all sites: folds would have to be windows of time."""
    later = [about.get("later", []) for about, _ in measured]
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


def _times(described: Sequence[Response]) -> Floats:
    """The times of all rows, sorted."""
    each = [np.repeat(arrays["times"], arrays["time_rows"]) for _, arrays in described]
    return np.sort(np.concatenate(each))


def _columns_json(found: Agreed) -> dict[str, Any]:
    columns = found.columns
    names = {each: list(getattr(columns, each)) for each in ("numbers", "categories", "dates", "coords")}
    return {**names, "written": [found.written[name] for name in columns.dates]}


def _by_node(answers: Sequence[Response], name: str, numbers: list[Ints], count: int) -> Ints:
    out = np.zeros(count, dtype=np.int64)
    for mine, (_, arrays) in zip(numbers, answers, strict=True):
        out[mine] = arrays[name]
    return out


def _places(answers: Sequence[Response], numbers: list[Ints], count: int) -> Floats:
    out = np.empty((count, 2))
    for mine, (_, arrays) in zip(numbers, answers, strict=True):
        out[mine] = arrays["places"]
    return out


def _encoder(
    parties: RemoteParties, found: Agreed, measured: Sequence[Response], sums: Arrays, target: Target, total: int
) -> tuple[Columns, Encoder, Target]:
    """The encoder, from summed counts and sums, and the target with its scale."""
    known, added = sums["known"], sums["sums"]
    numbers = tuple(
        NumberColumn(name, float(added[k] / known[k]) if known[k] else None, bool(known[k] < total))
        for k, name in enumerate(found.columns.numbers)
    )
    dates = tuple(_date_column(found, measured, k, name) for k, name in enumerate(found.columns.dates))
    categories = [_category_column(measured, name) for name in found.columns.categories]
    constant = [each.name for each in categories if len(each.outputs) < 2 and each.zero is None]
    kept = [each for each in categories if each.name not in constant]
    columns = without_constant(found.columns, constant)
    encoder, target, empty = _scaled(parties, numbers, kept, dates, target, total)
    if empty:  # what is rare at one site has a name from another: there are no others
        sure = [_category_column(measured, each.name, named=each.name in empty) for each in kept]
        encoder, target, _ = _scaled(parties, numbers, sure, dates, target, total)
    return columns, encoder, target


def _date_column(found: Agreed, measured: Sequence[Response], k: int, name: str) -> DateColumn:
    each = [(arrays["dates"][k], arrays["date_rows"][k]) for _, arrays in measured]
    times = [np.repeat(at[~np.isnan(at)], rows[~np.isnan(at)]) for at, rows in each]
    return DateColumn.of_times(name, np.sort(np.concatenate(times)), found.written[name])


def _category_column(measured: Sequence[Response], name: str, *, named: bool = False) -> CategoryColumn:
    """A column of categories from the counts of all sites; ``named``: all that occur are among them."""
    found = [_category_counts(about, name) for about, _ in measured]
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


def target_of(settings: Settings, by_site: Mapping[str, Mapping[str, Any]], mean: float) -> Target:
    """Whether classes, counts, a quantile or a number are predicted; of a number, its mean."""
    labels = {name: about.get("labels") for name, about in by_site.items()}
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


def _class_notes(target: Target, by_site: Mapping[str, Mapping[str, Any]], encoded: Sequence[Response]) -> list[Note]:
    """Classes that one site alone has, and how many test rows have a class that no training row has."""
    labels = {name: about.get("labels") or [] for name, about in by_site.items()}
    having = {label: [name for name, some in labels.items() if label in some] for label in target.classes}
    single = [
        Note("class of one site", {"label": each, "site": had[0]}) for each, had in having.items() if len(had) < 2
    ]
    unseen = sum(int(arrays["unseen"]) for _, arrays in encoded)
    return [*single, *([Note("test rows of unseen classes", {"count": unseen})] if unseen else [])]


def _scaled(
    parties: RemoteParties, numbers: tuple[NumberColumn, ...], categories: Sequence[CategoryColumn],
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
    call = Call(SiteParty.scale, about=about, centre=centre, target_centre=target.centre)
    found = parties.ask(call)[0].total[1]
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
    named = settings.named_members(KNOWN)
    left_out = [
        Note("member left out", {"member": name, "why": "it needs the rows of all"})
        for name in named
        if name in NEED_ROWS
    ]
    tested = 0 if times is None else len(np.unique(times[times > cut]))
    few = [Note("few times", {"count": tested})] if 0 < tested < FEW_TIMES else []
    return [*columns.notes, *few, *left_out]
