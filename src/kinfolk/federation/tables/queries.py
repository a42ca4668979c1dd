"""What a coordinator may ask a site about its table, and what leaves the site in answer: declared here, all of it.

A query has a name, arrays that come with the request, and arrays in the response, each with a type, axes and who reads
it. Sizes of axes are known on both sides when a request is made, so what arrives is checked before it is used. Names of
columns, nodes and categories travel as text. One message may hold several queries; it is answered as a whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas

from kinfolk.engine.protocol import Arrays
from kinfolk.engine.wire import Blob, Expected, Key, Slot, WireError, read, written
from kinfolk.federation.messages import LARGEST, UNUSABLE
from kinfolk.federation.service import peek

Reader = Literal["sum", "each", "neighbours"]
READERS: Mapping[Reader, str] = {
    "sum": "sums over sites", "each": "every site's", "neighbours": "neighbouring sites, encrypted"
}  # fmt: skip
MOST_TEXT = 2**22  # bytes of names
MOST_FITS = 2**14  # fits, values, times: what the coordinator chooses
MOST_QUERIES = 64  # in one message
DIGEST = 16  # bytes
MOST = {
    "times": 2**20,
    "own nodes": 2**20,
    "edges": 2**22,
    "links": 2**22,
    "bytes": 2**28,
    "neighbours": 2**10,
}  # of axes that are not known beforehand
Sizes = Mapping[str, int]
Queries = list[tuple[str, Mapping[str, Any], Arrays]]  # or responses: of each its name, its words and its arrays
CONTROL = "control "  # begins the names of members on a random graph


@dataclass(frozen=True)
class Array:
    """An array that travels: what it is, its type, its axes by name, and who reads it."""

    content: str
    axes: tuple[str, ...] = ()
    dtype: str = "float64"
    gaps: bool = False  # whether NaN may stand where nothing is known
    reader: Reader = "each"
    own: bool = False  # of a request: whether every site gets another one

    def slot(self, sizes: Sizes) -> Slot:
        """What may arrive; of axes whose size is not known yet, at most so many."""
        shape = tuple(sizes.get(axis, MOST.get(axis, MOST_FITS)) for axis in self.axes)
        exact = next((k for k, axis in enumerate(self.axes) if axis not in sizes), len(shape))
        return Slot(self.dtype, shape, exact)


def summed(content: str, axes: tuple[str, ...] = (), dtype: str = "float64") -> Array:
    """An array of which the coordinator needs nothing but the sum over sites."""
    return Array(content, axes, dtype, reader="sum")


@dataclass(frozen=True)
class Query:
    """Something that every site may be asked."""

    request: Mapping[str, Array] = field(default_factory=dict)
    response: Mapping[str, Array] = field(default_factory=dict)
    text: str = ""  # what leaves as text

    @property
    def sums(self) -> bool:
        """Whether something of the response is read as a sum over sites."""
        return any(each.reader == "sum" for each in self.response.values())


WHOLE = "int64"
LOSSES = {"losses": summed("sums of losses over held-out rows", ("values", "folds"))}
WINDOWS = ("windows", "nodes")  # of time, one where no later times are predicted
SCALES, THREE = ("three", "scales"), ("three",)
STEPS = {
    "size": Array("how much of the step each fit takes", ("fits",)),
    "back": Array("which fits take back the last step first", ("fits",), "bool"),
    "again": Array("which fits go on", ("fits",), "bool"),
    "rounding": Array("how widely kinks are rounded"),
}
SCHUR = {
    "objective": summed("objective, summed over rows", ("going on",)),
    "matrix": summed("Schur complements of the common model, summed over nodes", ("going on", "width pairs")),
    "vector": summed("gradients of the common model, summed over nodes", ("going on", "width")),
}
BOUNDARY = {
    "objective": summed("objective, summed over rows", ("going on",)),
    "matrix": Array("how parameters of boundary nodes respond to a pull", ("going on", "boundary pairs")),
    "vector": Array("where boundary nodes go without neighbours elsewhere", ("going on", "boundary", "width")),
}
GRADIENTS = {
    "products": summed("inner products of gradients and directions; objective", ("going on", "four")),
    "sums": summed("gradients, summed over nodes", ("going on", "width")),
    "curvature": summed("curvatures, summed over nodes", ("going on", "width pairs")),
    "sealed": Array("parameters and directions of boundary nodes", ("bytes",), "uint8", reader="neighbours"),
    "lengths": Array("length of the encrypted message to each neighbouring site", ("neighbours",), WHOLE),
}
GRAPH = {
    "lam": Array("λ", ("fits",)),
    "part": Array("part", ("fits",), WHOLE),
    "value": Array("number of λ", ("fits",), WHOLE),
    "score": Array("score: of several classes, which one", ("fits",), WHOLE),
    "ridge": Array("ridge term"),
    "start": Array("the pooled model that fits start from, or −1", (), WHOLE),
    "ends": Array("edges between own nodes", ("edges", "two"), WHOLE, own=True),
    "edge_weights": Array("their weights, by part", ("parts", "edges"), own=True),
    "outward": Array("weights of edges to nodes elsewhere, by part and node", ("parts", "nodes"), own=True),
    "boundary": Array("own nodes that have such edges", ("boundary",), WHOLE, own=True),
    "reached": Array("whether rows reach a node, by part", ("parts", "nodes"), "bool", own=True),
    "links": Array("edges to nodes elsewhere, where neighbours are told", ("links", "two"), WHOLE, own=True),
    "link_weights": Array("weights of these, by part", ("parts", "links"), own=True),
    "foreign": Array("the site of each of these nodes", ("foreign",), WHOLE, own=True),
    "rounding": Array("how widely kinks are rounded"),
}
BEST = {
    "best": Array("the best value of every member", ("members",), WHOLE),
    "weights": Array("their weights", ("members",)),
}

QUERIES: dict[str, Query] = {
    "introduce": Query(text="public key, and random bytes"),
    "exchange keys": Query(),
    "describe": Query(
        response={
            "times": Array("different times", ("times",)),
            "time_rows": Array("rows at each time", ("times",), WHOLE),
            "node_rows": Array("rows of every node", ("own nodes",), WHOLE),
        },
        text="names of nodes and columns, kinds and units of columns",
    ),
    "measure": Query(
        request={
            "numbers": Array("numbers of the own nodes", ("nodes",), WHOLE, own=True),
            "cut": Array("time of the test"),
            "tested": Array("own nodes that are tested as a whole", ("nodes",), "bool", own=True),
        },
        response={
            "train_rows": Array("training rows of every node", ("nodes",), WHOLE),
            "test_rows": Array("test rows of every node", ("nodes",), WHOLE),
            "places": Array("where every node is", ("nodes", "places"), gaps=True),
            "dates": Array("different dates of every column of dates", ("dates", "times"), gaps=True),
            "date_rows": Array("rows at each date", ("dates", "times"), WHOLE),
            "known": summed("known numbers of every column", ("numbers",), WHOLE),
            "sums": summed("sums of every column of numbers", ("numbers",)),
            "target_sum": summed("sum of the target"),
        },
        text="categories that are not rare, with their numbers of rows; classes of the target; where rows are marked, "
        "columns in which those marked come later",
    ),
    "scale": Query(
        request={"centre": Array("about the mean", ("outputs",)), "target_centre": Array("mean of the target")},
        response={
            "sums": summed("sums of encoded features", ("outputs",)),
            "squares": summed("sums of their squares about the mean", ("outputs",)),
            "target_squares": summed("sum of squares of the target about its mean"),
        },
    ),
    "encode": Query(
        request={
            "centre": Array("mean", ("outputs",)),
            "scale": Array("deviation", ("outputs",)),
            "target_centre": Array("mean of the target"),
            "target_spread": Array("deviation of the target"),
            "starts": Array("first times of windows", ("window starts",)),
            "node_folds": Array(
                "the fold of every own node, where whole nodes are predicted", ("folded",), WHOLE, own=True
            ),
        },
        response={
            "part_rows": Array("training rows of every node, by part", ("parts", "nodes"), WHOLE),
            "held": Array("rows that each part predicts", ("folds",), WHOLE),
            "unseen": Array("test rows of classes that no training row has", (), WHOLE),
        },
    ),
    "moments": Query(
        request={"without": Array("features that grow with time, to leave out", ("left out",), WHOLE)},
        response={
            "gram": summed("sums of products of features", ("parts", "width", "width")),
            "products": summed("sums of products with the target", ("parts", "width", "kinds")),
            "trace": Array("curvature of every node's loss", ("nodes",)),
        },
    ),
    "deviations": Query(
        request={"pooled": Array("pooled models", ("parts", "width", "kinds"))},
        response={
            "deviations": Array("how the model of every node differs", ("parts", "nodes", "deviations"), gaps=True)
        },
    ),
    "derivatives": Query(
        request={
            "w": Array("parameters", ("fits", "width")),
            "part": Array("part", ("fits",), WHOLE),
            "score": Array("score: of several classes, which one", ("fits",), WHOLE),
            "rounding": Array("how widely kinks are rounded"),
        },
        response={
            "loss": summed("losses, summed over rows", ("fits",)),
            "gradient": summed("gradients, summed over rows", ("fits", "width")),
            "hessian": summed("Hessians, summed over rows", ("fits", "width pairs")),
        },
    ),
    "validate pooled": Query(
        request={"models": Array("pooled models", ("parts", "values", "scores", "width"))}, response=LOSSES
    ),
    "begin mixed": Query(
        request={
            "strengths": Array("strengths", ("values", "two")),
            "rounding": Array("how widely kinks are rounded"),
            "start": Array("the pooled model that fits start from, or −1", (), WHOLE),
        },
        response=SCHUR,
    ),
    "step mixed": Query(
        request={"move": Array("steps of the common model", ("fits", "width")), **STEPS}, response=SCHUR
    ),
    "begin graph": Query(request=GRAPH, response=BOUNDARY),
    "begin gradients": Query(request=GRAPH, response=GRADIENTS),
    "gradients": Query(
        request={
            "phase": Array("what is to be done", (), WHOLE),
            "alive": Array("which fits go on", ("fits",), "bool"),
            "alpha": Array("lengths of steps", ("fits",)),
            "beta": Array("how much of the last direction is kept", ("fits",)),
            "common": Array("the common part of a direction", ("fits", "width")),
            "rounding": Array("how widely kinks are rounded"),
            "sealed": Array("what neighbouring sites sent, encrypted", ("bytes",), "uint8", own=True),
            "lengths": Array("of each of these messages", ("neighbours",), WHOLE, own=True),
        },
        response=GRADIENTS,
    ),
    "step graph": Query(
        request={
            "move": Array("pull of neighbours elsewhere at boundary nodes", ("fits", "boundary", "width"), own=True),
            **STEPS,
        },
        response=BOUNDARY,
    ),
    "validate batch": Query(request={"values": Array("values", ("values", "parameters"))}, response=LOSSES),
    "validate alone": Query(
        request={
            "values": Array("ridge terms", ("values", "parameters")),
            "pooled": Array("the best pooled model", (), WHOLE),
        },
        response=LOSSES,
    ),
    "validate site-boosted": Query(
        request={
            "values": Array("leaves, rounds, trend and base of trees", ("values", "parameters")),
            "pooled": Array("the best pooled model", (), WHOLE),
            "slopes": Array("the best mixed model, or −1", (), WHOLE),
        },
        response=LOSSES,
    ),
    "errors": Query(
        request={
            **BEST,
            "factors": Array("how much each fold counts", ("folds",)),
            "typical": Array("mean absolute error; larger ones count less"),
        },
        response={
            "size": summed("absolute errors, summed over rows"),
            "products": summed("products of errors, summed over rows", ("members", "members")),
            "cost": summed("loss of the ensemble, summed over rows"),
            "slopes": summed("its derivatives in the weights, summed over rows", ("members",)),
            "seen": summed("rows that were predicted", (), WHOLE),
            "weight": summed("how much they count"),
        },
    ),
    "residuals": Query(
        request=BEST,
        response={
            "sizes": Array("rows that were predicted without being learnt from, by window and node", WINDOWS, WHOLE),
            "squares": Array("sums of squares of their residuals, by window of time and node", WINDOWS),
            "fourths": Array("sums of fourth powers of their residuals, by window of time and node", WINDOWS),
            "levels": summed("how many of them there are, sums of their predictions and of squares of these", THREE),
        },
    ),
    "spread": Query(
        request={
            "scales": Array("centre, variance and noise of scales, in all and without each window", SCALES),
            "level": Array("mean and deviation of predictions, and how scales grow with them", THREE),
            "unit": Array("unit of residuals at nodes never seen"),
            "times": Array("different times that were predicted", ("times",)),
        },
        response={
            "growth": summed(
                "sums of squares of residuals in scales of their node that grow by each slope, by window of time",
                ("windows", "slopes"),
            ),
            "inside": summed("how many residuals are so many scales of their node, bin by bin", ("bins",), WHOLE),
            "outside": summed("how many residuals of the pooled model are so large, bin by bin", ("bins",), WHOLE),
            "time_rows": summed("residuals at each time that was predicted", ("three", "times"), WHOLE),
            "time_squares": summed("sums of their squares at each time", ("three", "times")),
        },
    ),
    "test": Query(
        request={
            "best": Array("the value of everything that is compared", ("compared",), WHOLE),
            "weights": Array("weights", ("weighed",)),
            "control": Array("weights of the control", ("controls",)),
            "times": Array("times of the test", ("times",)),
            "scales": Array("centre, variance and noise of scales; none for classes", SCALES),
            "level": Array("mean and deviation of predictions, and how scales grow with them", THREE),
            "inside": Array("quantiles of residuals in scales of their node", ("steps",)),
            "outside": Array("quantiles of residuals at nodes never seen", ("steps",)),
        },
        response={
            "sizes": Array("test rows of every node", ("nodes",), WHOLE),
            "sums": Array("sums of errors of test rows, by node", ("methods", "nodes")),
            "products": Array("sums of products of errors of test rows, by node", ("methods", "methods", "nodes")),
            "nearer": Array("test rows on which one errs less than another", ("methods", "methods"), WHOLE),
            "by_time": Array("sums of errors of test rows by time, each node counted once", ("series", "times")),
        },
        text="names of what is compared",
    ),
    "gains": Query(
        request={"level": Array("mean error of the baseline")},
        response={
            "total": Array("sums of relative gains, by node", ("nodes",)),
            "squares": Array("sums of their squares, by node", ("nodes",)),
        },
    ),
    "finish": Query(
        request={
            "errors": Array("mean errors at all nodes", ("compared",)),
            "quantiles": Array("errors that shares of all nodes are below", ("compared", "shares")),
        },
    ),
}
NAMES = tuple(QUERIES)
NUMBERS = {name: number for number, name in enumerate(NAMES)}


def sizes_of(name: str, about: Mapping[str, Any], arrays: Arrays, known: Sizes) -> dict[str, int]:
    """The sizes of axes that a request decides, besides those that are known."""
    declared = QUERIES[name].request
    found = {
        axis: size
        for each, values in arrays.items()
        for axis, size in zip(declared[each].axes, np.shape(values), strict=True)
    }
    if name == "begin mixed":
        found["going on"] = known["parts"] * len(arrays["strengths"]) * known["scores"]
    elif name in ("begin graph", "begin gradients"):
        found["going on"] = len(arrays["lam"])
    elif name == "gradients":
        found["going on"] = int(np.sum(arrays["alive"]))
    elif "again" in arrays:
        found["going on"] = int(np.sum(arrays["again"]))
    elif name == "test":  # the ensemble, what is compared, and the ensemble on a random graph
        compared = [each for each in about["compared"] if not each.startswith(CONTROL)]
        found["methods"] = 1 + len(compared) + bool(about["control"])
        found["series"] = found["methods"] + 1
    if name in ("begin gradients", "gradients"):
        found = {axis: size for axis, size in found.items() if axis not in ("bytes", "neighbours")}
    if "boundary" in found:
        unknowns = found["boundary"] * known["width"]
        found["boundary pairs"] = unknowns * (unknowns + 1) // 2
    return found


def declared() -> pandas.DataFrame:
    """All that may leave a site in answer to queries about its table: one row for every array.

    Returns
    -------
    pandas.DataFrame
        The query, what leaves, its axes, and who reads it: the coordinator, as a sum over sites or as every site's, or
        neighbouring sites.

    >>> declared().query("query == 'validate pooled'")[["content", "axes", "reads"]].values.tolist()
    [['sums of losses over held-out rows', 'values × folds', 'sums over sites']]
    """
    rows = [
        {"query": name, "content": each.content, "axes": _axes(each), "reads": READERS[each.reader]}
        for name, query in QUERIES.items()
        for each in query.response.values()
    ]
    rows += [
        {"query": name, "content": query.text, "axes": "text", "reads": READERS["each"]}
        for name, query in QUERIES.items()
        if query.text
    ]
    return pandas.DataFrame(rows)


def _axes(array: Array) -> str:
    return " × ".join(array.axes) or "one number"


# ---------------------------------------------------------------------- as bytes


def questions(key: Key, wanted: Sequence[Sequence[tuple[str, Mapping[str, Any], Arrays]]]) -> list[bytes]:
    """For every site a message with some queries: of each its name, its words and its arrays.

    Each message lists the digests of what all sites are asked, so that all of them mask sums for the same questions.
    """
    inner = [
        [
            Blob("work", Key(key.run, NUMBERS[name], key.number), written(about=about), arrays).encode()
            for name, about, arrays in queries
        ]
        for queries in wanted
    ]
    text = written(digests=[digest_of(queries, own=True) for queries in wanted])
    return [Blob("work", key, text, _numbered(parts)).encode() for parts in inner]


class Opened(NamedTuple):
    """A message as a site receives it; what is in its queries is not read yet."""

    queries: list[tuple[str, bytes]]  # by name
    digests: list[str]  # for all sites, of what each is asked besides what all are


def opened(content: bytes) -> Opened:
    """Take a message apart."""
    families = {"": (MOST_QUERIES, Slot("uint8", (len(content),)))}
    blob = Blob.decode(content, Expected(("work",), text=MOST_TEXT, families=families))
    parts, digests = _unnumbered(blob.arrays), read(blob.text, {"digests": list})["digests"]
    if not all(isinstance(each, str) and len(each) == 2 * DIGEST for each in digests):
        raise WireError("Expected digests of what all sites are asked, got something else.")
    return Opened([(_name(each), each) for each in parts], digests)


def digest_of(queries: Sequence[tuple[str, Mapping[str, Any], Arrays]], *, own: bool) -> str:
    """Of what some queries ask all sites, or of what they ask one site besides (``own``)."""
    found = hashlib.blake2b(digest_size=DIGEST)
    for name, about, arrays in queries:
        found.update(written(name=name, about={} if own else dict(about)).encode())
        for each, array in QUERIES[name].request.items():
            if array.own == own and each in arrays:
                values = np.ascontiguousarray(arrays[each], dtype=array.dtype)
                found.update(written(name=each, shape=list(values.shape)).encode() + values.tobytes())
    return found.hexdigest()


def _name(inner: bytes) -> str:
    number = peek(inner)[1].query
    if number >= len(NAMES):
        raise WireError(f"Expected one of {len(NAMES)} queries about a table, got number {number}.")
    return NAMES[number]


def read_query(name: str, content: bytes, sizes: Sizes) -> tuple[dict[str, Any], Arrays]:
    """A query that has arrived, checked by what the site knows."""
    blob = Blob.decode(content, _expected("work", QUERIES[name].request, sizes))
    _check(blob.arrays, QUERIES[name].request)
    return read(blob.text, {"about": dict})["about"], blob.arrays


def answer(key: Key, answers: Sequence[tuple[str, Mapping[str, Any], Arrays]]) -> bytes:
    """The responses to all queries of a message: all that is declared, and nothing else."""
    inner = []
    for name, about, arrays in answers:
        assert set(arrays) == set(QUERIES[name].response), name
        inner.append(Blob("result", Key(key.run, NUMBERS[name], key.number), written(about=about), arrays).encode())
    return Blob("result", key, arrays=_numbered(inner)).encode()


def response_expected(name: str, sizes: Sizes, *, masked: bool = False) -> Expected:
    """What a site may answer to a query; ``masked``: words of secure sums in place of numbers that are summed."""
    response = QUERIES[name].response
    expected = _expected("result", response, sizes)
    if not masked:
        return expected
    slots = {
        each: Slot("uint64", (2, *slot.shape), 1 + slot.exact) if response[each].reader == "sum" else slot
        for each, slot in expected.slots.items()
    }
    return Expected(expected.kinds, slots, expected.text)


def largest_answer(expected: Sequence[Expected]) -> int:
    """No answer to queries with these responses has more bytes."""
    slots = {str(k): Slot("uint8", (each.largest,)) for k, each in enumerate(expected)}
    return Expected(("result",), slots).largest


def read_answer(
    content: bytes, key: Key, names: Sequence[str], expected: Sequence[Expected]
) -> list[tuple[dict[str, Any], Arrays]]:
    """The responses to all queries of a message, checked."""
    slots = {str(k): Slot("uint8", (each.largest,)) for k, each in enumerate(expected)}
    outer = Blob.decode(content, Expected(("result",), slots))
    if outer.key != key:
        raise WireError(f"Expected the answer to message {key.number}, got that to {outer.key.number}.")
    parts = _unnumbered(outer.arrays)
    if len(parts) != len(names):
        raise WireError(f"Expected {len(names)} responses, got {len(parts)}.")
    found = []
    for name, part, each in zip(names, parts, expected, strict=True):
        blob = Blob.decode(part, each)
        response = QUERIES[name].response
        _check(blob.arrays, {k: array for k, array in response.items() if blob.arrays.get(k, EMPTY).dtype != np.uint64})
        found.append((read(blob.text, {"about": dict})["about"], blob.arrays))
    return found


EMPTY = np.empty(0)


def _numbered(parts: Sequence[bytes]) -> Arrays:
    return {str(k): np.frombuffer(each, dtype=np.uint8) for k, each in enumerate(parts)}


def _unnumbered(arrays: Arrays) -> list[bytes]:
    if set(arrays) != {str(k) for k in range(len(arrays))}:
        raise WireError("Expected queries by number, got other names.")
    return [arrays[str(k)].tobytes() for k in range(len(arrays))]


def _expected(kind: str, arrays: Mapping[str, Array], sizes: Sizes) -> Expected:
    return Expected((kind,), {name: each.slot(sizes) for name, each in arrays.items()}, MOST_TEXT)


def _check(arrays: Arrays, declared: Mapping[str, Array]) -> None:
    missing = [name for name in declared if name not in arrays]
    if missing:
        raise WireError(f"Expected all that is declared, got nothing for {missing[0]!r}.")
    for name, array in declared.items():
        values = arrays[name]
        known = values[~np.isnan(values)] if array.gaps and values.dtype.kind == "f" else values
        if not (np.abs(known) <= LARGEST).all():
            raise WireError(UNUSABLE)
