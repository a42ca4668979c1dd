"""Joining: hello and introduction, then join with the neighbourhood of a site and what is to be run, as blobs.

A site hears of its own nodes, the edges that touch them and the numbers of its neighbours; of the rest of the network
only how many nodes there are. The algorithm comes as a name and numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from kinfolk.checks import InputError
from kinfolk.engine.protocol import Replies, Scope, Sends, Sent, SiteId
from kinfolk.engine.specs import Spec
from kinfolk.engine.wire import TYPES, Blob, Expected, Fields, Key, Slot, WireError, read, written
from kinfolk.engine.worker import routes_of
from kinfolk.federation.keys import Peer
from kinfolk.federation.messages import Terms
from kinfolk.federation.rows import SiteRows
from kinfolk.network.data import Data
from kinfolk.network.graph import Extremes, Graph
from kinfolk.network.problem import Problem
from kinfolk.network.site import Site
from kinfolk.typing import Bools, Floats, Ints
from kinfolk.version import __version__

PROTOCOL = 3
MOST_TEXT = 2**24  # bytes of names and specs
MOST_JOIN = 2**28  # bytes of a join
MOST_NUMBERS = 2**27  # in an array
MOST_NODES = 2**24  # of the whole network
HELLO: Fields = {
    "federation": str, "protocol": int, "version": str, "features": (list, type(None)), "task": str, "scaled": list,
    "about": str,
}  # fmt: skip
INTRODUCTION: Fields = {
    "name": str, "protocol": int, "version": str, "nodes": list, "features": list, "classes": (list, type(None)),
    "outputs": (int, type(None)), "test": bool, "key": str,
}  # fmt: skip
JOIN: Fields = {
    "site": int, "algorithm": dict, "features": list, "colour_count": int, "extremes": list, "nodes": int,
    "peers": list, "to_all": dict, "to_each": dict, "test": bool, "per_node": bool,
}  # fmt: skip
SCENE = {
    "nodes": "int64", "outside": "int64", "edges": "int64", "head": "int64", "tail": "int64", "weights": "float64",
    "degrees": "int64", "colours": "int64", "informed": "bool", "homes": "int64", "classes": "float64",
}  # fmt: skip
UNITS = ("centre", "width")
LARGEST_MOMENT = 1e200  # sums of several are finite
TASKS = ("numbers", "classes")
JOIN_EXPECTED = Expected(
    ("join",),
    {
        **{name: Slot(dtype, (MOST_NUMBERS,)) for name, dtype in SCENE.items()},
        "public": Slot("float64", (MOST_NUMBERS,) * 3),  # a set for every node, or one for all
        **{name: Slot("float64", (MOST_NUMBERS,)) for name in UNITS},
    },
    MOST_TEXT,
)


@dataclass(frozen=True)
class Schema:
    """What all sites have to agree on."""

    features: list[str] | None = None  # None: those of the first site
    task: str = "numbers"  # or "classes": then a site sends the labels that occur there
    scaled: tuple[str, ...] = ()  # features with mean 0 and deviation 1 over all sites; sites send sums for it
    about: str = ""  # a fingerprint of all else that was agreed on

    def hello(self, federation: str) -> bytes:
        """The first message to a site."""
        text = written(
            federation=federation, protocol=PROTOCOL, version=__version__, features=self.features, task=self.task,
            scaled=list(self.scaled), about=self.about,
        )  # fmt: skip
        return Blob("hello", text=text).encode()


HELLO_EXPECTED = Expected(("hello",), text=MOST_TEXT)


def read_hello(content: bytes) -> Schema:
    """What a coordinator asks for; a version that does not fit is refused."""
    fields = read(Blob.decode(content, HELLO_EXPECTED).text, HELLO)
    check_versions("the coordinator", fields["protocol"], fields["version"])
    features, scaled = fields["features"], fields["scaled"]
    named = all(isinstance(name, str) for name in [*(features or []), *scaled])
    if fields["task"] not in TASKS or not named or not set(scaled) <= set(features or []):
        raise WireError("Expected names of features and a task, got others.")
    return Schema(features, fields["task"], tuple(scaled), fields["about"])


def check_versions(who: str, protocol: int, version: str) -> None:
    """Both ends must speak the same protocol, and compute the same."""
    if (protocol, version) != (PROTOCOL, __version__):
        raise InputError(
            f"Expected kinfolk {__version__} with protocol {PROTOCOL} at {who}, got {version:.40} with protocol "
            f"{protocol}: install the same version everywhere."
        )


@dataclass(frozen=True)
class Introduction:
    """What a site tells of itself: no rows, and of its labels only which classes occur, if they are classes."""

    name: str
    nodes: list[Any]
    features: list[str]
    classes: list[float] | None
    outputs: int | None
    test: bool
    public: bytes
    has_data: Bools
    moments: Floats  # (3, scaled features): number of values, mean, sum of squares around it

    @classmethod
    def of(cls, name: str, rows: SiteRows, schema: Schema, public: bytes) -> Introduction:
        """The introduction of some rows."""
        rows.check()
        if schema.features is not None:
            rows = rows.with_features(schema.features)
        rows.check_complete(schema.scaled)
        classes = rows.classes() if schema.task == "classes" else None
        has_data = rows.data.sizes > 0
        test, outputs = rows.test is not None, rows.data.output_count
        moments = rows.moments(schema.scaled)
        return cls(name, list(rows.nodes), list(rows.features), classes, outputs, test, public, has_data, moments)

    def encode(self) -> bytes:
        """As bytes."""
        text = written(
            name=self.name, protocol=PROTOCOL, version=__version__, nodes=self.nodes, features=self.features,
            classes=self.classes, outputs=self.outputs, test=self.test, key=self.public.hex(),
        )  # fmt: skip
        return Blob("introduction", text=text, arrays={"has_data": self.has_data, "moments": self.moments}).encode()

    @classmethod
    def decode(cls, content: bytes, node_count: int, scaled: int = 0) -> Introduction:
        """From bytes; of at most so many nodes, and with sums of so many features."""
        expected = introduction_expected(node_count, scaled)
        blob = Blob.decode(content, expected)
        fields = read(blob.text, INTRODUCTION)
        check_versions(f"site {fields['name']!r:.60}", fields["protocol"], fields["version"])
        named = all(isinstance(name, str | int) for name in fields["nodes"])
        typed = all(isinstance(name, str) for name in fields["features"])
        numbers = all(isinstance(each, int | float) for each in fields["classes"] or [])
        has_data = blob.arrays.get("has_data")
        if not (named and typed and numbers) or has_data is None or len(has_data) != len(fields["nodes"]):
            raise WireError("Expected names of nodes and features, and who has data, got something else.")
        moments = blob.arrays.get("moments", np.empty(0))
        if moments.shape != (3, scaled) or not (np.abs(moments) <= LARGEST_MOMENT).all() or (moments[::2] < 0).any():
            raise WireError("Expected sums of the features that are scaled, got something else.")
        return cls(
            fields["name"], fields["nodes"], fields["features"], fields["classes"], fields["outputs"], fields["test"],
            _key(fields["key"]), has_data, moments,
        )  # fmt: skip


def introduction_expected(node_count: int, scaled: int = 0) -> Expected:
    """What a site may introduce itself with."""
    slots = {"has_data": Slot("bool", (node_count,)), "moments": Slot("float64", (3, scaled))}
    return Expected(("introduction",), slots, MOST_TEXT)


def _key(text: Any) -> bytes:
    try:
        found = bytes.fromhex(text)
    except (ValueError, TypeError) as error:
        raise WireError("Expected a public key, got something else.") from error
    if len(found) != 32:
        raise WireError(f"Expected a public key of 32 bytes, got {len(found)}.")
    return found


# ---------------------------------------------------------------------- join


class Units(NamedTuple):
    """The units of the features: what is taken away, and what is divided by."""

    centre: Floats  # (features,)
    width: Floats  # (features,)

    @classmethod
    def of(cls, features: Sequence[str], scaled: Sequence[str], moments: Sequence[Floats]) -> Units | None:
        """Mean and deviation over all sites, from what each has sent; None: nothing is scaled.

        >>> a, b = np.array([[1.0], [0.0], [0.0]]), np.array([[3.0], [4.0], [8.0]])
        >>> Units.of(["x", "z"], ["z"], [a, b])
        Units(centre=array([0., 3.]), width=array([1.        , 2.23606798]))
        """
        if not scaled:
            return None
        count, mean, squares = np.stack(moments).transpose(1, 0, 2)  # each (sites, scaled)
        total = np.maximum(count.sum(axis=0), 1.0)
        middle = (count * mean).sum(axis=0) / total
        spread = np.sqrt((squares + count * (mean - middle) ** 2).sum(axis=0) / total)
        out = cls(np.zeros(len(features)), np.ones(len(features)))
        places = [list(features).index(name) for name in scaled]
        out.centre[places], out.width[places] = middle, np.where(spread > 0, spread, 1.0)
        return out


def _units(arrays: Mapping[str, Any], feature_count: int) -> Units | None:
    found = [arrays[name] for name in UNITS if name in arrays]
    if not found:
        return None
    shaped = len(found) == len(UNITS) and all(each.shape == (feature_count,) for each in found)
    if not shaped or not np.isfinite(found).all() or (found[1] <= 0).any():
        raise WireError("Expected a centre and a width for every feature, got something else.")
    return Units(*found)


@dataclass(frozen=True)
class Join:
    """What a site needs for a run: its neighbourhood, what is run, its neighbours' keys, and what it may be replied."""

    key: Key
    site: SiteId
    scene: Site  # without rows
    homes: Ints
    spec: Spec
    features: list[str]
    node_count: int
    peers: Mapping[SiteId, Peer]
    replies: Replies
    test: bool  # whether any site has rows to test with
    units: Units | None = None  # in which all sites count; None: as the rows are

    def encode(self) -> bytes:
        """As bytes."""
        scene = self.scene
        arrays: dict[str, Any] = {name: getattr(scene, name) for name in SCENE if name not in ("homes", "classes")}
        arrays["homes"] = self.homes
        if scene.classes is not None:
            arrays["classes"] = scene.classes
        if scene.public is not None:
            arrays["public"] = scene.public.reshape(-1, *scene.public.shape[-2:])
        if self.units is not None:
            arrays |= self.units._asdict()
        text = written(
            site=self.site, algorithm=self.spec, features=self.features, colour_count=scene.colour_count,
            extremes=list(scene.extremes), nodes=self.node_count,
            peers=[[site, peer.name, peer.public.hex()] for site, peer in self.peers.items()],
            to_all=_declared(self.replies.to_all), to_each=_declared(self.replies.to_each), test=self.test,
            per_node=scene.public is not None and scene.public.ndim == 3,
        )  # fmt: skip
        return Blob("join", self.key, text, arrays).encode()

    @classmethod
    def decode(cls, content: bytes, names: list[Any]) -> Join:
        """From bytes, for a site with nodes of these names."""
        blob = Blob.decode(content, JOIN_EXPECTED)
        fields, arrays = read(blob.text, JOIN), blob.arrays
        missing = [name for name in SCENE if name not in arrays and name != "classes"]
        if missing:
            raise WireError(f"Expected a neighbourhood with {missing[0]!r}, got one without.")
        _check_scene(arrays, len(names), fields)
        scene = _scene(fields, arrays, names)
        return cls(
            blob.key, fields["site"], scene, arrays["homes"], fields["algorithm"], _texts(fields["features"]),
            fields["nodes"], _peers(fields["peers"], arrays["homes"]),
            Replies(_undeclared(fields["to_all"]), _undeclared(fields["to_each"])), fields["test"],
            _units(arrays, len(fields["features"])),
        )  # fmt: skip

    @property
    def problem(self) -> Problem:
        """What this site knows of the network, to work out what may leave its nodes."""
        scene, known = self.scene, len(self.scene.degrees)
        ends = np.stack([scene.head, scene.tail], axis=1)
        names = [*scene.names, *(f"outside {number}" for number in scene.outside.tolist())]
        graph = Graph(known, ends, scene.weights, names)
        return Problem(
            graph, features=self.features, has_data=np.ones(known, dtype=bool), classes=scene.classes,
            public=scene.public,
        )  # fmt: skip

    def terms(self, sends: Sends) -> Terms:
        """What the messages of this run may hold."""
        return terms_of(self.scene, self.homes, self.node_count, sends, self.replies)

    def filled(self, rows: SiteRows) -> Site:
        """The site with its rows, in the units of the federation."""
        rows = rows if self.units is None else rows.scaled(*self.units)
        test = rows.test
        if self.test and test is None:
            test = replace(Data.none(len(rows.nodes), len(rows.features)), y=np.empty((0, *rows.data.y.shape[1:])))
        return replace(self.scene, data=rows.data, test=test)


def terms_of(scene: Site, homes: Ints, node_count: int, sends: Sends, replies: Replies) -> Terms:
    """What the messages between the coordinator and a site may hold."""
    received = dict(zip(*(found.tolist() for found in np.unique(homes, return_counts=True)), strict=True))
    routed = {site: len(rows) for site, rows in routes_of(scene, homes).items()}
    return Terms(node_count, Scope(scene.nodes, scene.edges), received, routed, sends, replies)


def _check_scene(arrays: Mapping[str, Any], own: int, fields: Mapping[str, Any]) -> None:
    """The arrays of a neighbourhood fit together, and to a site with so many nodes."""
    outside, edges, total = len(arrays["outside"]), len(arrays["edges"]), fields["nodes"]
    lengths = {
        **dict.fromkeys(("nodes", "colours", "informed"), own), "homes": outside, "degrees": own + outside,
        **dict.fromkeys(("head", "tail", "weights"), edges),
    }  # fmt: skip
    wrong = [name for name, length in lengths.items() if len(arrays[name]) != length]
    if wrong:
        raise WireError(f"Expected {lengths[wrong[0]]} entries of {wrong[0]!r}, got {len(arrays[wrong[0]])}.")
    if not 0 < total <= MOST_NODES:
        raise WireError(f"Expected a network of at most {MOST_NODES:,} nodes, got {total:,}.")
    bounds = {"nodes": total, "outside": total, "head": own + outside, "tail": own + outside}
    for name, most in bounds.items():
        if ((arrays[name] < 0) | (arrays[name] >= most)).any():
            raise WireError(f"Expected numbers from 0 to {most - 1} as {name!r}, got others.")
    if not ((arrays["head"] < own) | (arrays["tail"] < own)).all():
        raise WireError("Expected edges that touch a node of this site, got another one.")
    numbers = [type(each) in (int, float) for each in fields["extremes"]]
    if numbers != [True] * len(Extremes._fields):
        raise WireError("Expected the largest degree and weights of the graph, got something else.")


def _scene(fields: Mapping[str, Any], arrays: Mapping[str, Any], names: list[Any]) -> Site:
    own = np.empty(len(names), dtype=object)
    own[:] = names
    public = arrays.get("public")
    if public is not None:
        known = len(arrays["degrees"]) if fields["per_node"] else 1
        if len(public) != known or public.shape[2] != len(fields["features"]):
            raise WireError(f"Expected {known} sets of public points with all features, got {public.shape}.")
        public = public if fields["per_node"] else public[0]
    given = {name: arrays[name] for name in SCENE if name not in ("homes", "classes")}
    return Site(
        **given, live=None, colour_count=fields["colour_count"], extremes=Extremes(*fields["extremes"]),
        data=Data.none(len(names), len(fields["features"])), public=public, names=own, classes=arrays.get("classes"),
    )  # fmt: skip


def _peers(found: list[Any], homes: Ints) -> dict[SiteId, Peer]:
    """The neighbouring sites, each with a name and a key."""
    shaped = all(isinstance(each, list) and [type(part) for part in each] == [int, str, str] for each in found)
    if not shaped or {each[0] for each in found} != set(homes.tolist()):
        raise WireError("Expected a name and a key for every neighbouring site, got others.")
    return {site: Peer(name, _key(key)) for site, name, key in found}


def _texts(found: list[Any]) -> list[str]:
    if not all(isinstance(each, str) for each in found):
        raise WireError("Expected names of features, got something else.")
    return found


def _declared(arrays: Mapping[str, Sent]) -> dict[str, Any]:
    return {name: [sent.content, list(sent.shape), sent.dtype] for name, sent in arrays.items()}


def _undeclared(found: Mapping[str, Any]) -> dict[str, Sent]:
    """What a coordinator declares to reply: types of numbers, and shapes."""
    out = {}
    for name, given in found.items():
        if not isinstance(given, list) or [type(part) for part in given] != [str, list, str] or given[2] not in TYPES:
            raise WireError(f"Expected what is replied as {name!r:.60}, got something else.")
        if not all(type(size) is int and 0 <= size <= MOST_NUMBERS for size in given[1]):
            raise WireError(f"Expected the shape of {name!r:.60}, got something else.")
        out[name] = Sent(given[0], tuple(given[1]), given[2])
    return out
