"""What a file of estimators holds, read node by node; nothing is built but arrays.

Every node must have a loader, and every type a name, that stand on the lists of ``stored_types``. Where a type follows
numbers of the file without a look (trees, support vectors), these are looked at here.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from kinfolk.checks import InputError, listing, printable
from kinfolk.local_models.stored_types import (
    BIT_GENERATORS,
    CHOICES,
    NEIGHBOUR_TREES,
    SUPPORT_MACHINES,
    TREE_OWNERS,
    TREE_PREDICTOR,
    TUPLE_STATES,
    TYPES,
)

Node = dict[str, Any]  # as skops writes it: __module__, __class__, __loader__, and what the loader reads


class RefusedTypeError(InputError):
    """A type that is neither stored nor loaded, as it may run code: its full name, and the loader of skops."""

    def __init__(self, what: str, name: str, loader: str) -> None:
        super().__init__(
            f"Expected estimators and arrays only in {what}, got {name!r} (as {loader!r}), which may run code: it is "
            "neither stored nor loaded."
        )
        self.name, self.loader = name, loader


def damaged(what: str, error: BaseException) -> InputError:
    """What is told about bytes that cannot be read."""
    return InputError(
        f"Expected estimators as kinfolk writes them, {what} cannot be read ({brief(error)}): cut or altered, or of "
        "another version; get them again."
    )


def brief(error: BaseException) -> str:
    """The kind of an error and its first line."""
    lines = printable(str(error).strip().split("\n")[0])
    return f"{type(error).__name__}: {lines[:100]}" if lines else type(error).__name__


class Reader:
    """Reads what was stored, node by node, and builds nothing but arrays."""

    def __init__(self, content: bytes, what: str) -> None:
        self.content, self.what = content, what
        self.types: set[str] = set()  # all that were found
        self.classes: set[str] = set()  # those that are made from their attributes
        self.files: dict[str, bytes] = {}  # arrays that are referred to
        self.feature_counts: list[int] = []  # how many features each tree looks at, in the order they are read

    def read(self) -> bytes:
        """A copy with only what was read; refuses what is not on the lists, and what is damaged."""
        try:
            with zipfile.ZipFile(io.BytesIO(self.content)) as archive:
                self._check_archive(archive)
                self.archive = archive
                schema = json.loads(archive.read("schema.json"))
                root = self.node(schema) | {"protocol": _whole(schema["protocol"])}
        except InputError:
            raise
        except Exception as error:  # whatever zipfile, json and NumPy raise, and keys or types that are missing
            raise damaged(self.what, error) from error
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as archive:
            for name, data in self.files.items():
                archive.writestr(name, data)
            archive.writestr("schema.json", json.dumps(root))
        return out.getvalue()

    def _check_archive(self, archive: zipfile.ZipFile) -> None:
        """Refuse what is larger inside than outside."""
        members = archive.infolist()
        if any(member.compress_type != zipfile.ZIP_STORED for member in members):
            raise ValueError("compressed content")
        if sum(member.file_size for member in members) > len(self.content):
            raise ValueError("overlapping content")
        if len({member.filename for member in members}) < len(members):
            raise ValueError("the same name twice")

    def node(self, node: Node) -> Node:
        """One node with nothing but what its loader reads. An ``__id__``, which would stand for another, is left."""
        loader, module, kind = (_text(node[key]) for key in ("__loader__", "__module__", "__class__"))
        name = f"{module}.{kind}"
        if loader == "ObjectNode" and kind.isidentifier():
            self.classes.add(name)
        elif name not in TYPES.get(loader, ()):
            raise RefusedTypeError(self.what, name, loader)
        self.types.add(name)
        return {"__loader__": loader, "__module__": module, "__class__": kind, **_FIELDS[loader](self, node)}

    def nodes(self, nodes: list[Node]) -> list[Node]:
        """Several nodes."""
        return [self.node(each) for each in nodes]

    def array(self, node: Node) -> Any:
        """The array of a node, which holds no objects."""
        if node["__loader__"] != "NdArrayNode" or node["type"] != "numpy":
            raise TypeError("expected an array")
        name = _text(node["file"])
        self.files[name] = self.archive.read(name)
        return np.lib.format.read_array(io.BytesIO(self.files[name]), allow_pickle=False)


# ---------------------------------------------------------------------- what the loaders read


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is no whole number")
    return value


def _scalar(node: Node) -> Any:
    """The number, text, truth value or None of a node."""
    value = json.loads(_text(node["content"])) if node["__loader__"] == "JsonNode" else ...
    if not isinstance(value, str | int | float | bool | None):
        raise TypeError("expected a number or a text")
    return value


def _read_json(_: Reader, node: Node) -> Node:
    return {"content": json.dumps(_scalar(node)), "is_json": True}


def _read_items(reader: Reader, node: Node) -> Node:
    return {"content": reader.nodes(node["content"])}


def _read_content(reader: Reader, node: Node) -> Node:
    return {"content": reader.node(node["content"])}


def _read_parts(*names: str) -> Callable[[Reader, Node], Node]:
    return lambda reader, node: {"content": {name: reader.node(node["content"][name]) for name in names}}


def _read_nothing(_: Reader, __: Node) -> Node:
    return {}


def _read_dict(reader: Reader, node: Node) -> Node:
    """Values by their keys; the keys were texts, or are made texts by simple types."""
    kinds = reader.node(node["key_types"])
    if kinds["__loader__"] != "ListNode" or any(kind["__loader__"] != "TypeNode" for kind in kinds["content"]):
        raise TypeError("expected types of keys")
    if len(kinds["content"]) != len(node["content"]):
        raise ValueError("expected one type for every key")
    return {"content": {key: reader.node(value) for key, value in node["content"].items()}, "key_types": kinds}


def _read_slice(_: Reader, node: Node) -> Node:
    ends = {end: node["content"][end] for end in ("start", "stop", "step")}
    return {"content": {end: None if value is None else _whole(value) for end, value in ends.items()}}


def _read_array(reader: Reader, node: Node) -> Node:
    """An array in a file; one of objects as a list of nodes."""
    if node["type"] == "json" and node["__class__"] == "ndarray":
        return {"type": "json", "content": reader.nodes(node["content"]), "shape": reader.node(node["shape"])}
    reader.array(node)
    return {"type": "numpy", "file": node["file"]}


def _read_generator(reader: Reader, node: Node) -> Node:
    """A generator of random numbers; skops looks up its kind by name."""
    if _scalar(node["content"]["bit_generator"]["content"]["bit_generator"]) not in BIT_GENERATORS:
        raise ValueError("expected a bit generator of NumPy")
    return _read_parts("bit_generator", "seed_seq")(reader, node)


def _read_object(reader: Reader, node: Node) -> Node:
    """An object by its attributes."""
    if node.get("content") is None:
        return {}
    name, before = f"{node['__module__']}.{node['__class__']}", len(reader.feature_counts)
    if name in NEIGHBOUR_TREES:
        _check_neighbours(reader, node["content"]["content"])
    elif name in TYPES["ObjectNode"] - TUPLE_STATES:
        attributes = _attributes(node["content"])
        _check_choices(reader, attributes)
        if name in SUPPORT_MACHINES:
            _check_support(reader, attributes)
        if name == TREE_PREDICTOR:
            reader.feature_counts.append(_boosted_features(reader, attributes["nodes"]))
    content = reader.node(node["content"])
    inside = reader.feature_counts[before:]
    if name in TREE_OWNERS and inside and max(inside) > _whole(_scalar(attributes["n_features_in_"])):
        raise ValueError("a tree looks at features that its owner does not have")
    return {"content": content}


def _attributes(node: Node) -> Node:
    """The attributes of an object by name; none where it has no state."""
    if node["__loader__"] == "JsonNode" and _scalar(node) is None:
        return {}
    if node["__loader__"] != "DictNode" or any(kind["__class__"] != "str" for kind in node["key_types"]["content"]):
        raise TypeError("expected attributes by name")
    return dict(node["content"])


def _check_choices(reader: Reader, attributes: Node) -> None:
    """Refuse settings with which a prediction would read a cache, or call any method."""
    for name, allowed in CHOICES.items():
        chosen = attributes.get(name)
        if chosen is not None:
            several = chosen["content"] if chosen["__loader__"] == "ListNode" else [chosen]
            if any(_scalar(each) not in allowed for each in several):
                raise InputError(
                    f"Expected {listing(allowed, 4)} for {name!r} in {reader.what}, got what may run code: it is "
                    "neither stored nor loaded."
                )


def _read_reduced(reader: Reader, node: Node) -> Node:
    """An object by the arguments of its type, and its state."""
    args, content = reader.node(node["__reduce__"]["args"]), reader.node(node["content"])
    return {"__reduce__": {"args": args}, "content": content}


def _read_tree(reader: Reader, node: Node) -> Node:
    """A tree whose nodes lead to nodes: scikit-learn does not look before it follows them."""
    state, args = _attributes(node["content"]), node["__reduce__"]["args"]["content"]
    nodes, feature_count = reader.array(state["nodes"]), _whole(_scalar(args[0]))
    if _scalar(state["node_count"]) != len(nodes) or len(reader.array(args[1])) != _whole(_scalar(args[2])):
        raise ValueError("a tree with a wrong count")
    _check_children(nodes, "left_child", "right_child", nodes["left_child"] != -1)
    if _most_features(nodes["feature"][nodes["left_child"] != -1]) > feature_count:
        raise ValueError("a tree looks at features that are not there")
    reader.feature_counts.append(feature_count)
    return _read_reduced(reader, node)


def _boosted_features(reader: Reader, node: Node) -> int:
    """How many features a tree of histogram boosting looks at, if its nodes lead to nodes."""
    nodes = reader.array(node)
    inner = nodes["is_leaf"] == 0
    if nodes["is_categorical"].any():
        raise InputError(
            f"Expected trees that split by numbers in {reader.what}, got splits by categories: encode them as numbers."
        )
    _check_children(nodes, "left", "right", inner)
    return _most_features(nodes["feature_idx"][inner])


def _check_neighbours(reader: Reader, state: list[Node]) -> None:
    """A tree of points, as arrays: its nodes hold ranges of rows, and node i leads to 2i + 1 and 2i + 2."""
    rows, order, nodes, bounds = (reader.array(part) for part in state[:4])
    count, inner = len(nodes), np.flatnonzero(nodes["is_leaf"] == 0)
    inside = (order >= 0) & (order < len(rows))
    ranges = (nodes["idx_start"] >= 0) & (nodes["idx_start"] <= nodes["idx_end"]) & (nodes["idx_end"] <= len(rows))
    if not inside.all() or not ranges.all() or (2 * inner + 2 >= count).any():
        raise ValueError("a tree of points whose nodes lead nowhere")
    if order.shape != rows.shape[:1] or bounds.shape[1:] != (count, rows.shape[1]) or _scalar(state[6]) != count:
        raise ValueError("a tree of points with a wrong count")


def _check_support(reader: Reader, attributes: Node) -> None:
    """Support vectors whose arrays fit together: libsvm reads as much as they promise."""
    names = ("support_vectors_", "support_", "_dual_coef_", "_intercept_", "_n_support", "_probA", "_probB")
    vectors, support, dual, intercept, counts, *chances = (reader.array(attributes[name]) for name in names)
    pairs = len(counts) * (len(counts) - 1) // 2
    if support.shape != vectors.shape[:1] or dual.shape != (len(counts) - 1, len(vectors)):
        raise ValueError("support vectors that do not fit together")
    if intercept.shape != (pairs,) or any(each.shape not in ((0,), (pairs,)) for each in chances):
        raise ValueError("support vectors with wrong counts")
    if (counts < 0).any() or (counts > len(vectors)).any() or _scalar(attributes["kernel"]) == "precomputed":
        raise ValueError("support vectors that are not there")


def _check_children(nodes: Any, left: str, right: str, inner: Any) -> None:
    """Every inner node leads to two later ones, so that there is an end."""
    own = np.flatnonzero(inner)
    for child in (nodes[left][inner].astype(np.int64), nodes[right][inner].astype(np.int64)):
        if nodes.ndim != 1 or (child <= own).any() or (child >= len(nodes)).any():
            raise ValueError("a tree whose nodes lead nowhere")


def _most_features(used: Any) -> int:
    if (used < 0).any():
        raise ValueError("a tree with a feature below 0")
    return int(used.max(initial=-1)) + 1


_FIELDS: Mapping[str, Callable[[Reader, Node], Node]] = {
    "JsonNode": _read_json,
    "ListNode": _read_items,
    "TupleNode": _read_items,
    "SetNode": _read_items,
    "DictNode": _read_dict,
    "DefaultDictNode": _read_parts("main", "default_factory"),
    "SliceNode": _read_slice,
    "TypeNode": _read_nothing,
    "NdArrayNode": _read_array,
    "MaskedArrayNode": _read_parts("data", "mask"),
    "DTypeNode": _read_content,
    "RandomStateNode": _read_content,
    "RandomGeneratorNode": _read_generator,
    "TreeNode": _read_tree,
    "LossNode": _read_reduced,
    "ObjectNode": _read_object,
}
