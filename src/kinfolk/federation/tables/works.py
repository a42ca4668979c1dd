"""What a coordinator may ask a site about its table, and what leaves the site in answer: declared here, all of it.

A work has a name, arrays that come with the question, and arrays in the answer, each with a type and axes. Sizes of
axes are known on both sides when a question is asked, so what arrives is checked before it is used. Names of columns,
nodes and categories travel as text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas

from kinfolk.engine.protocol import Arrays
from kinfolk.engine.wire import Blob, Expected, Key, Slot, WireError, read, written
from kinfolk.federation.messages import LARGEST, UNUSABLE

SUMS = "sums over sites"
MOST_TEXT = 2**22  # bytes of names
MOST_FITS = 2**14  # fits, values, lanes, times: what the coordinator chooses
MOST = {"times": 2**20, "own nodes": 2**20}  # of axes that a site tells of first
Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Array:
    """An array that travels: what it is, its type, and its axes by name."""

    content: str
    axes: tuple[str, ...] = ()
    dtype: str = "float64"
    gaps: bool = False  # whether NaN may stand where nothing is known

    def slot(self, sizes: Sizes) -> Slot:
        """What may arrive; of axes whose size is not known yet, at most so many."""
        shape = tuple(sizes.get(axis, MOST.get(axis, MOST_FITS)) for axis in self.axes)
        exact = next((k for k, axis in enumerate(self.axes) if axis not in sizes), len(shape))
        return Slot(self.dtype, shape, exact)


@dataclass(frozen=True)
class Work:
    """A question to every site."""

    takes: Mapping[str, Array] = field(default_factory=dict)
    gives: Mapping[str, Array] = field(default_factory=dict)
    summed: bool = False  # whether the coordinator needs nothing but the sums over sites
    text: str = ""  # what leaves as text


WHOLE = "int64"
LOSSES = Array("sums of losses over held-out rows", ("values", "folds"))
FITS = ("parts", "values", "scores")
SPANS, SCALES = ("spans", "nodes"), ("three", "scales")  # windows of time, one where no later times are predicted
THREE = ("three",)
REDUCED = {
    "height": Array("objective, summed over rows", FITS),
    "common": Array("matrices of a Newton step, summed over nodes", (*FITS, "width", "width")),
    "pull": Array("gradients of a Newton step, summed over nodes", (*FITS, "width")),
}
COMPARED_TREES = {
    "predicted": Array("what trees predict on public points", ("parts", "values", "points")),
    "speaking": Array("whether the site predicts", ("parts",), WHOLE),
}

WORKS: dict[str, Work] = {
    "introduce": Work(text="public key, and random bytes"),
    "masks": Work(),
    "describe": Work(
        gives={
            "times": Array("different times", ("times",)),
            "time_rows": Array("rows at each time", ("times",), WHOLE),
            "node_rows": Array("rows of every node", ("own nodes",), WHOLE),
        },
        text="names of nodes and columns, kinds and units of columns",
    ),
    "count": Work(
        takes={
            "numbers": Array("numbers of the own nodes", ("nodes",), WHOLE),
            "cut": Array("time of the test"),
            "tested": Array("own nodes that are tested as a whole", ("nodes",), "bool"),
        },
        gives={
            "train_rows": Array("training rows of every node", ("nodes",), WHOLE),
            "test_rows": Array("test rows of every node", ("nodes",), WHOLE),
            "places": Array("where every node is", ("nodes", "places"), gaps=True),
            "dates": Array("different dates of every column of dates", ("dates", "times"), gaps=True),
            "date_rows": Array("rows at each date", ("dates", "times"), WHOLE),
        },
        text="categories that are not rare, with their numbers of rows; classes of the target; where rows are marked, "
        "columns in which those marked come later",
    ),
    "totals": Work(
        gives={
            "known": Array("known numbers of every column", ("numbers",), WHOLE),
            "sums": Array("sums of every column of numbers", ("numbers",)),
            "target_sum": Array("sum of the target"),
        },
        summed=True,
    ),
    "scale": Work(
        takes={"centre": Array("about the mean", ("outputs",)), "target_centre": Array("mean of the target")},
        gives={
            "sums": Array("sums of encoded features", ("outputs",)),
            "squares": Array("sums of their squares about the mean", ("outputs",)),
            "target_squares": Array("sum of squares of the target about its mean"),
        },
        summed=True,
    ),
    "encode": Work(
        takes={
            "centre": Array("mean", ("outputs",)),
            "scale": Array("deviation", ("outputs",)),
            "target_centre": Array("mean of the target"),
            "target_spread": Array("deviation of the target"),
            "starts": Array("first times of windows", ("windows",)),
            "node_folds": Array("the fold of every own node, where whole nodes are predicted", ("folded",), WHOLE),
        },
        gives={
            "part_rows": Array("training rows of every node, by part", ("parts", "nodes"), WHOLE),
            "held": Array("rows that each part predicts", ("folds",), WHOLE),
            "unseen": Array("test rows of classes that no training row has", (), WHOLE),
        },
    ),
    "derivatives": Work(
        takes={
            "w": Array("parameters", ("fits", "width")),
            "part": Array("part", ("fits",), WHOLE),
            "score": Array("score: of several classes, which one", ("fits",), WHOLE),
            "rounding": Array("how widely kinks are rounded"),
        },
        gives={
            "loss": Array("losses, summed over rows", ("fits",)),
            "gradient": Array("gradients, summed over rows", ("fits", "width")),
            "hessian": Array("Hessians, summed over rows", ("fits", "width", "width")),
        },
        summed=True,
    ),
    "pooled": Work(
        takes={"w": Array("parameters", ("folds", "values", "scores", "width"))},
        gives={"losses": LOSSES},
        summed=True,
    ),
    "alone": Work(
        takes={
            "ridges": Array("ridge terms", ("values",)),
            "best": Array("the best of one model for all", (), WHOLE),
            "without": Array("features to leave out", ("left out",), WHOLE),
        },
        gives={"losses": LOSSES},
        summed=True,
    ),
    "slopes begin": Work(
        takes={"strengths": Array("strengths", ("values", "two")), "ridge": Array("ridge term")},
        gives=REDUCED,
        summed=True,
    ),
    "slopes move": Work(
        takes={
            "step": Array("steps of the common model", (*FITS, "width")),
            "size": Array("parts of them", FITS),
            "back": Array("which fits take back the last one first", FITS, "bool"),
        },
        gives=REDUCED,
        summed=True,
    ),
    "slopes try": Work(
        takes={
            "step": Array("steps of the common model", (*FITS, "width")),
            "sizes": Array("parts of them", ("sizes",)),
            "left": Array("which fits go on", FITS, "bool"),
        },
        gives={"height": Array("objectives, summed over rows", ("sizes", *FITS))},
        summed=True,
    ),
    "slopes end": Work(gives={"losses": LOSSES}, summed=True),
    "traces": Work(
        takes={"ridge": Array("ridge term")},
        gives={"trace": Array("curvature of every node's loss", ("nodes",))},
    ),
    "kin sums": Work(
        gives={
            "gram": Array("sums of products of features", ("parts", "width", "width")),
            "products": Array("sums of products with the target", ("parts", "width", "kinds")),
        },
        summed=True,
    ),
    "kin": Work(
        takes={"pooled": Array("models of all", ("parts", "width", "kinds"))},
        gives={"deviations": Array("how the model of every node differs", ("parts", "nodes", "deviations"), gaps=True)},
    ),
    "score": Work(
        takes={
            "value": Array("which value each lane has", ("lanes",), WHOLE),
            "part": Array("which part each lane learns from", ("lanes",), WHOLE),
            "score": Array("which score each lane learns", ("lanes",), WHOLE),
            "lane": Array("lanes", ("lanes",), WHOLE),
        },
        gives={"losses": LOSSES},
        summed=True,
    ),
    "boosted": Work(
        takes={
            "base": Array("one model for all", ("parts", "scores", "width")),
            "slopes": Array("the best value of random slopes", (), WHOLE),
            "values": Array("leaves, rounds, trend and base of trees", ("values", "four")),
        },
        gives={"losses": LOSSES},
        summed=True,
    ),
    "tied begin": Work(
        takes={
            "base": Array("one model for all", ("parts", "scores", "width")),
            "slopes": Array("the best value of random slopes", (), WHOLE),
            "values": Array("leaves, rounds and λ of trees", ("values", "three")),
        },
        gives=COMPARED_TREES,
        summed=True,
    ),
    "tied step": Work(
        takes={
            "total": Array("predictions on public points, summed over sites", ("parts", "values", "points")),
            "speaking": Array("sites that predict", ("parts",), WHOLE),
        },
        gives=COMPARED_TREES,
        summed=True,
    ),
    "tied end": Work(gives={"losses": LOSSES}, summed=True),
    "sizes": Work(
        takes={
            "best": Array("the best value of every member", ("members",), WHOLE),
            "factors": Array("how much each fold counts", ("folds",)),
        },
        gives={
            "sizes": Array("absolute errors, summed over rows"),
            "weight": Array("how much they count"),
        },
        summed=True,
    ),
    "products": Work(
        takes={
            "best": Array("the best value of every member", ("members",), WHOLE),
            "factors": Array("how much each fold counts", ("folds",)),
            "typical": Array("mean absolute error; larger ones count less"),
        },
        gives={
            "products": Array("products of errors, summed over rows", ("members", "members")),
            "seen": Array("rows that were predicted", (), WHOLE),
            "weight": Array("how much they count"),
        },
        summed=True,
    ),
    "costs": Work(
        takes={
            "best": Array("the best value of every member", ("members",), WHOLE),
            "factors": Array("how much each fold counts", ("folds",)),
            "weights": Array("their weights", ("members",)),
        },
        gives={
            "cost": Array("loss of the blend, summed over rows"),
            "slopes": Array("its derivatives in the weights, summed over rows", ("members",)),
            "seen": Array("rows that were predicted", (), WHOLE),
            "weight": Array("how much they count"),
        },
        summed=True,
    ),
    "residuals": Work(
        takes={
            "best": Array("the best value of every member", ("members",), WHOLE),
            "weights": Array("their weights", ("members",)),
        },
        gives={
            "sizes": Array("rows that were predicted without being learnt from, by window and node", SPANS, WHOLE),
            "squares": Array("sums of squares of their residuals, by window of time and node", SPANS),
            "fourths": Array("sums of fourth powers of their residuals, by window of time and node", SPANS),
        },
    ),
    "levels": Work(
        gives={"sums": Array("how many of them there are, sums of their predictions and of squares of these", THREE)},
        summed=True,
    ),
    "growth": Work(
        takes={
            "shrinkage": Array("centre, variance and noise of scales, in all and without each window", SCALES),
            "level": Array("mean and deviation of predictions, and slope 0", THREE),
            "times": Array("different times that were predicted", ("times",)),
        },
        gives={
            "squares": Array(
                "sums of squares of residuals in scales of their node that grow by each slope, by window of time",
                ("spans", "growths"),
            ),
            "time_rows": Array("residuals at each time that was predicted", ("times",), WHOLE),
            "time_squares": Array("sums of their squares at each time", ("times",)),
        },
        summed=True,
    ),
    "reach": Work(
        takes={
            "shrinkage": Array("centre, variance and noise of scales, in all and without each window", SCALES),
            "level": Array("mean and deviation of predictions, and how scales grow with them", THREE),
            "unit": Array("unit of residuals at nodes never seen"),
            "times": Array("different times that were predicted", ("times",)),
        },
        gives={
            "inside": Array("how many residuals are so many scales of their node, bin by bin", ("bins",), WHOLE),
            "outside": Array("how many residuals of one model for all are so large, bin by bin", ("bins",), WHOLE),
            "time_rows": Array("residuals of both kinds at each time that was predicted", ("two", "times"), WHOLE),
            "time_squares": Array("sums of their squares at each time", ("two", "times")),
        },
        summed=True,
    ),
    "finish": Work(
        takes={
            "pooled": Array("one model for all", ("scores", "width")),
            "alone": Array("ridge term"),
            "slopes": Array("the best value of random slopes", (), WHOLE),
            "boosted": Array("leaves, rounds, trend and base of trees; none without", ("trees", "four")),
            "tied": Array("the best value of tied trees, or −1", (), WHOLE),
            "lanes": Array("lanes of models on graphs", ("lanes",), WHOLE),
            "weights": Array("weights", ("weighed",)),
            "control": Array("weights of the control", ("controls",)),
            "moments": Array("times of the test", ("moments",)),
            "shrinkage": Array("centre, variance and noise of scales; none for classes", SCALES),
            "level": Array("mean and deviation of predictions, and how scales grow with them", THREE),
            "inside": Array("quantiles of residuals in scales of their node", ("steps",)),
            "outside": Array("quantiles of residuals at nodes never seen", ("steps",)),
        },
        gives={
            "sizes": Array("test rows of every node", ("nodes",), WHOLE),
            "sums": Array("sums of errors of test rows, by node", ("methods", "nodes")),
            "products": Array("sums of products of errors of test rows, by node", ("methods", "methods", "nodes")),
            "nearer": Array("test rows on which one errs less than another", ("methods", "methods"), WHOLE),
            "by_time": Array("sums of errors of test rows by time, each node counted once", ("series", "moments")),
        },
        text="names of what is compared",
    ),
    "gains": Work(
        takes={"level": Array("mean error of the baseline")},
        gives={
            "total": Array("sums of relative gains, by node", ("nodes",)),
            "squares": Array("sums of their squares, by node", ("nodes",)),
        },
    ),
    "outcome": Work(
        takes={
            "errors": Array("mean errors at all nodes", ("compared",)),
            "quantiles": Array("errors that shares of all nodes are below", ("compared", "shares")),
        },
    ),
}


def declared() -> pandas.DataFrame:
    """All that may leave a site in answer to questions about its table: one row for every array.

    Returns
    -------
    pandas.DataFrame
        The work, what leaves, its axes, and what the coordinator reads of it: the sum over sites, or every site's.

    >>> declared().query("work == 'pooled'")[["content", "axes", "reads"]].values.tolist()
    [['sums of losses over held-out rows', 'values × folds', 'sums over sites']]
    """
    rows = [
        {"work": name, "content": each.content, "axes": " × ".join(each.axes) or "one number", "reads": _reads(work)}
        for name, work in WORKS.items()
        for each in work.gives.values()
    ]
    rows += [
        {"work": name, "content": work.text, "axes": "text", "reads": _reads(work)}
        for name, work in WORKS.items()
        if work.text
    ]
    return pandas.DataFrame(rows)


def _reads(work: Work) -> str:
    return SUMS if work.summed else "every site's"


NUMBERS = {name: number for number, name in enumerate(WORKS)}


def question(run: bytes, number: int, name: str, about: Mapping[str, Any], arrays: Arrays) -> tuple[Key, bytes]:
    """A question as bytes, and its key: the lane of a question is the number of its work."""
    key = Key(run, NUMBERS[name], number)
    return key, Blob("work", key, written(about=about), arrays).encode()


def read_question(content: bytes, key: Key, sizes: Sizes) -> tuple[str, dict[str, Any], Arrays]:
    """A question that has arrived, checked by what the site knows."""
    if key.lane >= len(WORKS):
        raise WireError(f"Expected one of {len(WORKS)} works of a table, got number {key.lane}.")
    name = list(WORKS)[key.lane]
    blob = Blob.decode(content, _expected("work", WORKS[name].takes, sizes))
    _check(blob.arrays, WORKS[name].takes)
    return name, read(blob.text, {"about": dict})["about"], blob.arrays


def answer(key: Key, name: str, about: Mapping[str, Any], arrays: Arrays) -> bytes:
    """An answer as bytes: all that the work declares, and nothing else."""
    assert set(arrays) == set(WORKS[name].gives), name
    return Blob("result", key, written(about=about), arrays).encode()


def answer_expected(name: str, sizes: Sizes, *, masked: bool = False) -> Expected:
    """What a site may answer; ``masked``: words of secure sums in place of numbers."""
    expected = _expected("result", WORKS[name].gives, sizes)
    if not masked:
        return expected
    slots = {each: Slot("uint64", (2, *slot.shape), 1 + slot.exact) for each, slot in expected.slots.items()}
    return Expected(expected.kinds, slots, expected.text)


def read_answer(
    content: bytes, key: Key, name: str, sizes: Sizes, *, masked: bool = False
) -> tuple[dict[str, Any], Arrays]:
    """An answer that has arrived, checked."""
    blob = Blob.decode(content, answer_expected(name, sizes, masked=masked))
    if blob.key != key:
        raise WireError(f"Expected the answer to question {key.number}, got that to {blob.key.number}.")
    _check(blob.arrays, {} if masked else WORKS[name].gives)
    about: dict[str, Any] = read(blob.text, {"about": dict})["about"]
    return about, blob.arrays


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
