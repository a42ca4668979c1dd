"""Who takes part: introductions of all sites become one problem, or a sentence that names who does not fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kinfolk.checks import InputError, listing
from kinfolk.engine.protocol import Scope, SiteId
from kinfolk.federation.joining import Introduction, Schema, Units
from kinfolk.federation.keys import Peer, fingerprint_of
from kinfolk.network.graph import Graph
from kinfolk.network.problem import Problem
from kinfolk.typing import Ints


@dataclass(frozen=True)
class Members:
    """The sites of a federation, and what is known of them together."""

    names: list[str]  # by number of the site
    introductions: list[Introduction]
    problem: Problem
    home: Ints  # (nodes,) the site of every node
    test: bool  # whether any of them has rows to test with
    units: Units | None  # of the features; None: as they are

    @classmethod
    def of(cls, graph: Graph, schema: Schema, found: Mapping[str, Introduction], public: Any = None) -> Members:
        """Put introductions together; they are in the order of the sites."""
        names, given = list(found), list(found.values())
        features = _common_features(schema, found)
        _check_keys(found)
        home = _homes(graph, found)
        has_data = np.zeros(graph.node_count, dtype=bool)
        for each in given:
            has_data[graph.numbers(each.nodes)] = each.has_data
        problem = Problem(graph, features=features, has_data=has_data, classes=_classes(schema, found), public=public)
        units = Units.of(features, schema.scaled, [each.moments for each in given])
        return cls(names, given, problem, home, any(each.test for each in given), units)

    def scope(self, site: SiteId) -> Scope:
        """Nodes and edges of a site, its nodes in its own order."""
        graph = self.problem.graph
        mine = (self.home[graph.head] == site) | (self.home[graph.tail] == site)
        return Scope(graph.numbers(self.introductions[site].nodes), np.flatnonzero(mine))

    def peer(self, site: SiteId) -> Peer:
        """The name and the key of a site."""
        return Peer(self.names[site], self.introductions[site].public)

    @property
    def fingerprints(self) -> dict[str, str]:
        """The keys of all sites, as their owners see them."""
        return {name: fingerprint_of(each.public) for name, each in zip(self.names, self.introductions, strict=True)}


def _common_features(schema: Schema, found: Mapping[str, Introduction]) -> list[str]:
    first, wanted = next(iter(found.items()))
    features = wanted.features if schema.features is None else schema.features
    for name, each in found.items():
        if each.features != features:
            raise InputError(
                f"Expected the columns {listing(features)} at site {name!r}, as at {first!r}, got "
                f"{listing(each.features)}: agree on the columns first."
            )
        if each.outputs != wanted.outputs:
            raise InputError(
                f"Expected as many targets at site {name!r} as at {first!r} ({wanted.outputs or 1}), got "
                f"{each.outputs or 1}: agree on the target first."
            )
    return features


def _check_keys(found: Mapping[str, Introduction]) -> None:
    owner: dict[bytes, str] = {}
    for name, each in found.items():
        if each.name != name:
            raise InputError(f"Expected site {name!r}, it calls itself {each.name!r}: give it the right invitation.")
        if each.public in owner:
            raise InputError(
                f"Expected a key of its own at site {name!r}, it has that of {owner[each.public]!r}: give it a "
                "folder of its own, and join anew."
            )
        owner[each.public] = name


def _homes(graph: Graph, found: Mapping[str, Introduction]) -> Ints:
    """The site of every node of the graph."""
    known = set(graph.names)
    home = np.full(graph.node_count, -1)
    for site, (name, each) in enumerate(found.items()):
        unknown = [node for node in each.nodes if node not in known]
        if unknown:
            raise InputError(
                f"Expected nodes of the graph at site {name!r}, got {listing(unknown)}: add them to the graph, "
                "if need be without an edge, or leave them out there."
            )
        numbers = graph.numbers(each.nodes)
        twice = [node for node, number in zip(each.nodes, numbers.tolist(), strict=True) if home[number] >= 0]
        if twice or len(set(each.nodes)) < len(each.nodes):
            raise InputError(f"Expected every node at one site, {listing(twice or each.nodes)} at {name!r} has two.")
        home[numbers] = site
    missing = [graph.names[k] for k in np.flatnonzero(home < 0).tolist()]
    if missing:
        raise InputError(
            f"Expected every node of the graph at a site, nobody has {listing(missing)}: wait for that site, or take "
            "them out of the graph."
        )
    return home


def _classes(schema: Schema, found: Mapping[str, Introduction]) -> Any:
    """All classes; one that a single site has cannot be learnt from others, and would tell whose a model is."""
    if schema.task != "classes":
        return None
    count = Counter(label for each in found.values() for label in each.classes or [])
    for name, each in found.items():
        lone = [label for label in each.classes or [] if count[label] == 1]
        if lone and len(found) > 1:
            raise InputError(
                f"Expected classes that several sites have, only site {name!r} has {listing(lone)}: leave those "
                "rows out, or merge the class with another."
            )
    return np.array(sorted(count))
