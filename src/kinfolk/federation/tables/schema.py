"""Agreeing: what the sites find in their tables becomes one set of columns, or a sentence that names who differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas

from kinfolk.checks import InputError, listing
from kinfolk.engine.wire import WireError
from kinfolk.report.facts import Note
from kinfolk.tables.columns import (
    Columns,
    as_texts,
    check_names,
    check_there,
    chosen_columns,
    find_coords,
    kind_of,
    settled,
)
from kinfolk.tables.dates import ISO, READERS, written_like
from kinfolk.tables.families import LINEAR_MEMBERS
from kinfolk.tables.settings import Settings

MODELS, METHODS = ("ridge", "linear"), ("auto", "gtvmin-smooth")
NEED_ROWS = ("intercepts", "boosted", "trees")  # members that need the rows of all
COMPARED = ("alone",)  # members of one table that are compared here, and have no weight
MEMBERS = ("pooled", "slopes", "tailored", "wide", "site-boosted")  # that may have a weight here
KNOWN = tuple(dict.fromkeys((*MEMBERS, *LINEAR_MEMBERS)))
USABLE = ("number", "category", "date")
KINDS = (*USABLE, "empty column", "unreadable dates", "names of rows")


def check_settings(settings: Settings) -> None:
    """Refuse what cannot be learnt without bringing rows together, or would name code."""
    settings.check()
    for name, known in (("model", MODELS), ("method", METHODS)):
        if getattr(settings, name) not in known:
            raise InputError(
                f"Expected one of {', '.join(known)} as the {name} of a federation, got {getattr(settings, name)!r}: "
                "others need the rows of all sites in one place, or code."
            )
    if settings.hold == "regions":
        raise InputError(
            "Expected rows of every node, the last times, whole nodes or marked rows as the test of a federation, got "
            "regions: set hold to nodes."
        )
    unknown = [name for name in settings.named_members(()) if name not in KNOWN]
    if unknown or settings.rivals:
        raise InputError(
            f"Expected members among {', '.join(KNOWN)} and no rivals in a federation, got "
            f"{listing(unknown) if unknown else 'rivals'}: others are learnt from one table, with the rows of all."
        )


@dataclass(frozen=True)
class Description:
    """What a site tells of its table: names and kinds, no values."""

    nodes: list[str]
    columns: dict[str, str]  # that may be features, and what each holds
    coords: tuple[str, ...]
    moving: bool  # whether rows of a node have different places
    written: dict[str, str]  # how dates are written
    units: dict[str, str]
    rows: int

    @classmethod
    def of(cls, table: pandas.DataFrame, settings: Settings, units: Mapping[str, str]) -> Description:
        """Describe the rows of a table that have a target."""
        check_there(table, settings)
        nodes = sorted(as_texts(table[settings.node]).unique())
        check_names(nodes, settings.node)
        coords = find_coords(table, settings)
        moving = bool(coords) and not settled(table, settings.node, list(coords))
        chosen = chosen_columns(table, settings, coords, moving=True)
        kinds = {name: kind_of(table[name], name, settings) for name in chosen}
        written = {name: written_like(table[name]) or ISO for name, kind in kinds.items() if kind == "date"}
        return cls(nodes, kinds, coords, moving, written, dict(units), len(table))

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {**vars(self), "coords": list(self.coords)}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Description:
        """From plain data, checked."""
        texts = {"columns": dict, "written": dict, "units": dict, "nodes": list, "coords": list}
        sound = set(found) == {"moving", "rows", *texts} and isinstance(found["rows"], int)
        sound = sound and isinstance(found["moving"], bool)
        for name, kind in texts.items():
            sound = sound and isinstance(found[name], kind) and all(map(_is_text, found[name]))
            sound = sound and (kind is list or all(map(_is_text, found[name].values())))
        if (
            not sound
            or not set(found["columns"].values()) <= set(KINDS)
            or not set(found["written"].values()) <= set(READERS)
        ):
            raise WireError("Expected the description of a table, got something else.")
        return cls(**{**found, "coords": tuple(found["coords"])})


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


@dataclass(frozen=True)
class Agreed:
    """What all sites agree on."""

    columns: Columns
    written: dict[str, str]  # how dates are written
    names: list[str]  # of all nodes


def agreed(settings: Settings, found: Mapping[str, Description]) -> Agreed:
    """Put descriptions together, or refuse in a sentence that names two sites."""
    first, wanted = next(iter(found.items()))
    coords = next((each.coords for each in found.values() if each.coords), ())
    for name, each in found.items():
        if set(each.columns) != set(wanted.columns):
            less, more = (set(a.columns) - set(b.columns) for a, b in ((wanted, each), (each, wanted)))
            differ = f"no {listing(sorted(less))}" if less else f"{listing(sorted(more))} besides"
            raise InputError(
                f"Expected the columns {listing(wanted.columns, 12)} at site {name!r}, as at {first!r}, got {differ}: "
                "agree on the columns first."
            )
        if each.coords not in (coords, ()):
            raise InputError(
                f"Expected places in the columns {listing(coords)} at site {name!r}, got {listing(each.coords)}: agree "
                "on the coordinates first."
            )
    moving = any(each.moving for each in found.values())
    taken = () if moving else coords
    kinds = {name: _common(found, name) for name in wanted.columns if name not in taken or name in settings.features}
    written = {name: _written(found, name) for name, kind in kinds.items() if kind == "date"}
    _check_units(found)
    notes = [Note(kind, {"column": name}) for name, kind in kinds.items() if kind not in USABLE]
    numbers, categories, dates = (tuple(name for name in kinds if kinds[name] == kind) for kind in USABLE)
    if coords and not settings.features:
        notes.insert(0, Note("coordinates of rows" if moving else "coordinates", {"columns": list(coords)}))
    columns = Columns(
        settings.node, settings.target, numbers, categories, dates, coords, settings.time, mark_of(settings),
        tuple(notes),
    )  # fmt: skip
    return Agreed(columns, written, _nodes(found))


def mark_of(settings: Settings) -> str | None:
    """The column that marks test rows, if there is one."""
    return settings.test if isinstance(settings.test, str) else None


def _common(found: Mapping[str, Description], column: str) -> str:
    """The kind of a column at all sites; one that is empty somewhere is what it is elsewhere."""
    known = {name: each.columns[column] for name, each in found.items() if each.columns[column] != "empty column"}
    if "names of rows" in known.values():
        return "names of rows"
    first = next(iter(known), None)
    for name, kind in known.items():
        if first is not None and kind != known[first]:
            raise InputError(
                f"Expected one kind of column {column!r}, it holds a {_noun(known[first])} at site {first!r} and a "
                f"{_noun(kind)} at {name!r}: write it in one way, or list it as categorical."
            )
    return "empty column" if first is None else known[first]


def _noun(kind: str) -> str:
    return "date that cannot be read" if kind == "unreadable dates" else kind


def _written(found: Mapping[str, Description], column: str) -> str:
    ways = {name: each.written[column] for name, each in found.items() if column in each.written}
    first = next(iter(ways))
    for name, way in ways.items():
        if way != ways[first]:
            raise InputError(
                f"Expected dates such as {ways[first]} in column {column!r} at site {name!r}, as at {first!r}, got "
                f"such as {way}: write them in one way."
            )
    return ways[first]


def _check_units(found: Mapping[str, Description]) -> None:
    """Units of a column, where they are given, are the same."""
    known: dict[str, tuple[str, str]] = {}
    for name, each in found.items():
        for column, unit in each.units.items():
            first, other = known.setdefault(column, (name, unit))
            if other != unit:
                raise InputError(
                    f"Expected column {column!r} in one unit, it is in {other!r} at site {first!r} and in {unit!r} at "
                    f"{name!r}: convert one of them."
                )


def _nodes(found: Mapping[str, Description]) -> list[str]:
    home: dict[str, str] = {}
    for site, each in found.items():
        for node in each.nodes:
            if home.setdefault(node, site) != site:
                raise InputError(
                    f"Expected every node at one site, {node!r} is at {home[node]!r} and at {site!r}: give one of them "
                    "another name, or leave it out there."
                )
    names = sorted(home)
    check_names(names, "the nodes of all sites")
    if len(names) < 2:
        raise InputError(
            f"Expected at least two nodes in all, got {listing(names)}: a single data set needs no network."
        )
    return names


def without_constant(columns: Columns, constant: Sequence[str]) -> Columns:
    """The same without columns that have one value everywhere."""
    numbers, categories = (
        tuple(name for name in names if name not in constant) for names in (columns.numbers, columns.categories)
    )
    notes = tuple(Note("constant column", {"column": name}) for name in constant)
    return replace(columns, numbers=numbers, categories=categories, notes=(*columns.notes, *notes))
