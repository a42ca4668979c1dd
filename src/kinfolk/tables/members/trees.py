"""Boosted trees as plain arrays: what scikit-learn has fitted, kept without anything that could run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from scipy.special import softmax

from kinfolk import kernels
from kinfolk.tables.rows import Rows
from kinfolk.typing import Floats, Ints

MOST_CATEGORIES = 254  # nodes; more are a number like any other
WORDS = 8  # of 32 bits in a set of categories
FLOATS = ("threshold", "value", "baseline", "codes")
COLUMNS = ("feature", "threshold", "left", "right", "missing_left", "bitset", "value")  # of a node of a tree


@dataclass(frozen=True, eq=False)
class Trees:
    """Trees over the node, the features and the place of a row.

    Attributes
    ----------
    starts : array of int, shape (trees + 1,)
        Where the nodes of each tree begin.
    outputs : array of int, shape (trees,)
        What each tree adds to.
    feature, threshold, left, right, missing_left, bitset, value : arrays, shape (nodes of trees,)
        Column, where it splits, the two children (−1: a leaf), where a missing value goes, the set of categories that
        goes left (−1: none), and what a leaf adds.
    bitsets : array of int, shape (sets, 8)
        Sets of categories.
    baseline : array of float, shape (outputs,)
        What the sums begin with.
    codes : array of float, shape (network nodes,)
        The number of every node of the network in the first column; NaN for one without training rows.
    """

    starts: Ints
    outputs: Ints
    feature: Ints
    threshold: Floats
    left: Ints
    right: Ints
    missing_left: Ints
    bitset: Ints
    value: Floats
    bitsets: Ints
    baseline: Floats
    codes: Floats

    @classmethod
    def of(cls, fitted: Any, codes: Floats) -> Trees:
        """The trees of a fitted histogram booster of scikit-learn."""
        trees = [tree for round_ in fitted._predictors for tree in round_]
        nodes = np.concatenate([tree.nodes for tree in trees])
        sets = np.cumsum([0, *(len(tree.raw_left_cat_bitsets) for tree in trees)])
        sizes = np.array([len(tree.nodes) for tree in trees])
        offset, leaf = np.repeat(sets[:-1], sizes), nodes["is_leaf"] > 0
        bitset = np.where((nodes["is_categorical"] > 0) & ~leaf, nodes["bitset_idx"].astype(np.int64) + offset, -1)
        children = {side: np.where(leaf, -1, nodes[side].astype(np.int64)) for side in ("left", "right")}
        return cls(
            np.cumsum([0, *sizes]).astype(np.int64),
            np.tile(np.arange(len(fitted._predictors[0])), len(fitted._predictors)).astype(np.int64),
            np.where(leaf, 0, nodes["feature_idx"]).astype(np.int64), nodes["num_threshold"].copy(),
            children["left"], children["right"], nodes["missing_go_to_left"].astype(np.int64),
            bitset.astype(np.int64), nodes["value"].copy(),
            np.concatenate([tree.raw_left_cat_bitsets for tree in trees]).astype(np.int64).reshape(-1, WORDS),
            np.asarray(fitted._baseline_prediction, dtype=np.float64).ravel(), codes,
        )  # fmt: skip

    def columns(self, rows: Rows) -> Floats:
        """What the trees look at: the code of the node (none for a node that was never seen), features, place."""
        place = [] if rows.place is None else [rows.place]
        codes = np.where(rows.owner >= 0, self.codes[rows.owner], np.nan)
        return np.column_stack([codes, rows.X, *place])

    def sums(self, rows: Rows) -> Floats:
        """The sum of all trees (rows, outputs)."""
        return self.baseline + kernels.tree_sums(
            self.columns(rows), self.starts, self.outputs, self.feature, self.threshold, self.left, self.right,
            self.missing_left, self.bitset, self.bitsets, self.value, len(self.baseline),
        )  # fmt: skip

    def staged(self, rows: Rows, rounds: list[int]) -> Iterator[Floats]:
        """The sums after some numbers of rounds, ascending."""
        outputs, before, total = len(self.baseline), 0, np.tile(self.baseline, (len(rows.y), 1))
        Z = self.columns(rows)
        for count in rounds:
            some = slice(before * outputs, count * outputs + 1)
            total = total + kernels.tree_sums(
                Z, self.starts[some], self.outputs[before * outputs : count * outputs], self.feature, self.threshold,
                self.left, self.right, self.missing_left, self.bitset, self.bitsets, self.value, outputs,
            )  # fmt: skip
            before = count
            yield total

    def to_arrays(self) -> dict[str, Any]:
        """All of it, to be stored."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any], node_count: int, column_count: int) -> Trees:
        """The trees that ``to_arrays`` came from; ValueError if they lead anywhere else than to a leaf."""
        found = cls(**{each.name: arrays[each.name] for each in fields(cls)})
        for name, array in found.to_arrays().items():
            kind = np.float64 if name in FLOATS else np.int64
            if array.dtype != kind or array.ndim != 1 + (name == "bitsets"):
                raise ValueError(f"trees whose {name} are none")
        found._check(node_count, column_count)
        return found

    def _check(self, node_count: int, column_count: int) -> None:
        """Children come after their parents within the tree, so that every walk ends; columns and sets are there."""
        size, trees = len(self.value), len(self.outputs)
        steps = np.diff(self.starts)
        if len(steps) != trees or self.starts[0] != 0 or self.starts[-1] != size or (steps <= 0).any():
            raise ValueError("trees without nodes")
        tree = np.repeat(np.arange(trees), np.diff(self.starts))
        place = np.arange(size) - self.starts[tree]
        inner, most = self.left >= 0, np.diff(self.starts)[tree]
        sound = (
            self.codes.shape == (node_count,) and self.baseline.ndim == 1
            and all(len(getattr(self, name)) == size for name in COLUMNS) and self.bitsets.shape[1:] == (WORDS,)
            and all(((side > place) & (side < most))[inner].all() for side in (self.left, self.right))
            and ((self.feature >= 0) & (self.feature < column_count)).all()
            and (self.bitset < len(self.bitsets)).all() and (self.feature[self.bitset >= 0] == 0).all()
            and ((self.outputs >= 0) & (self.outputs < len(self.baseline))).all()
            and ((self.codes >= 0) & (self.codes < max(32 * WORDS, node_count)) | np.isnan(self.codes)).all()
            and ((self.bitset < 0).all() or np.nanmax(self.codes) < 32 * WORDS)
            and np.isfinite(self.value).all() and np.isfinite(self.baseline).all()
            and not np.isnan(self.threshold).any()
        )  # fmt: skip
        if not sound:
            raise ValueError("trees that lead nowhere")


def node_codes(owner: Ints, node_count: int) -> tuple[Floats, bool]:
    """The number of every node in the first column, and whether these are categories; NaN without rows."""
    if node_count > MOST_CATEGORIES:
        return np.arange(node_count, dtype=np.float64), False
    seen = np.unique(owner)
    codes = np.full(node_count, np.nan)
    codes[seen] = np.arange(len(seen))
    return codes, True


def probabilities(sums: Floats) -> Floats:
    """Of classes, from the sums of their trees."""
    return np.asarray(softmax(sums, axis=1))
