"""Local data sets: the rows of every node, kept in one block."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kinfolk.checks import InputError, as_floats
from kinfolk.typing import Bools, Floats, Ints


@dataclass(frozen=True, eq=False)
class Data:
    """The samples of all nodes, one node's rows after the other's.

    ``data[i]`` is the local data set (X, y) of node ``i``; sizes may differ, and a node may have none.

    >>> data = Data.from_nodes([([[1.0], [2.0]], [0.0, 1.0]), None])
    >>> data.sizes
    array([2, 0])
    """

    X: Floats  # (rows, features)
    y: Floats  # (rows,), or (rows, outputs) where a row has several labels
    starts: Ints  # (nodes + 1,), rows starts[i]:starts[i + 1] belong to node i

    @classmethod
    def from_nodes(cls, sets: Iterable[tuple[Any, Any] | None], names: Sequence[Hashable] | None = None) -> Data:
        """Data from one (X, y) per node, or None for a node without data; ``names`` are for messages."""
        blocks = [_as_block(names[k] if names and k < len(names) else k, block) for k, block in enumerate(sets)]
        widths = {X.shape[1] for X, _ in blocks if len(X)}
        if len(widths) > 1:
            raise InputError(
                f"Expected the same number of features at every node, got {sorted(widths)}: "
                "give all nodes the same columns."
            )
        width = widths.pop() if widths else 0
        outputs = {y.shape[1:] for X, y in blocks if len(X)}
        if len(outputs) > 1:
            raise InputError(
                "Expected as many labels of a row at every node, got targets of different shapes: give all nodes y of "
                "shape (rows,), or all of them (rows, outputs)."
            )
        sizes = [len(X) for X, _ in blocks]
        return cls(
            np.concatenate([np.empty((0, width)), *(X for X, _ in blocks if len(X))]),
            np.concatenate([np.empty((0, *(outputs.pop() if outputs else ()))), *(y for X, y in blocks if len(X))]),
            np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        )

    @classmethod
    def from_rows(cls, X: Any, y: Any, node: Any, node_count: int) -> Data:
        """Data from rows in any order, ``node`` has the node of each."""
        node = np.asarray(node, dtype=np.int64)
        if not len(X) == len(y) == len(node) or (node < 0).any() or (node >= node_count).any():
            raise InputError(
                f"Expected a label and a node from 0 to {node_count - 1} for every row, got {len(X)} rows, {len(y)} "
                f"labels and {len(node)} nodes."
            )
        labels = _one_column(as_floats(y, "the target", 1, 2))
        return cls._sorted(as_floats(X, "the features", 2), labels, node, node_count)

    @classmethod
    def _sorted(cls, X: Floats, y: Floats, node: Ints, node_count: int) -> Data:
        order = np.argsort(node, kind="stable")
        sizes = np.bincount(node, minlength=node_count)
        return cls(X[order], y[order], np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))

    @classmethod
    def of_points(cls, sets: Iterable[Any], names: Sequence[Hashable] | None = None) -> Data:
        """Data without a target, from one point or several for every node, or None; the target is NaN.

        >>> Data.of_points([[1.0, 2.0], [[3.0, 4.0], [5.0, 6.0]], None]).sizes
        array([1, 2, 0])
        """
        try:
            rows = [None if points is None else np.atleast_2d(points) for points in sets]
        except ValueError as error:
            raise InputError("Expected points with equally many entries at every node, got ragged ones.") from error
        return cls.from_nodes([None if X is None else (X, np.zeros(len(X))) for X in rows], names).without_target()

    @classmethod
    def none(cls, node_count: int, feature_count: int) -> Data:
        """Nodes without a row.

        >>> Data.none(2, 3).sizes
        array([0, 0])
        """
        return cls(np.empty((0, feature_count)), np.empty(0), np.zeros(node_count + 1, dtype=np.int64))

    @property
    def node_count(self) -> int:
        """Number of nodes, those without data included."""
        return len(self.starts) - 1

    @property
    def feature_count(self) -> int:
        """Number of features."""
        return int(self.X.shape[1])

    @property
    def output_count(self) -> int | None:
        """Number of labels of a row, where ``y`` has an axis for them; None: a row has one label."""
        return None if self.y.ndim == 1 else int(self.y.shape[1])

    @property
    def sizes(self) -> Ints:
        """Number of samples of every node."""
        return np.diff(self.starts)

    @property
    def owner(self) -> Ints:
        """The node of every row."""
        return np.repeat(np.arange(self.node_count), self.sizes)

    def __getitem__(self, node: int) -> tuple[Floats, Floats]:
        rows = slice(self.starts[node], self.starts[node + 1])
        return self.X[rows], self.y[rows]

    def without_target(self) -> Data:
        """The same rows with NaN for a target: points rather than samples."""
        return replace(self, y=np.full(len(self.y), np.nan))

    def keep(self, rows: Bools) -> Data:
        """The data of all nodes without the rows that are not marked."""
        return self._sorted(self.X[rows], self.y[rows], self.owner[rows], self.node_count)

    def take(self, nodes: Ints) -> Data:
        """The data of some nodes, in the order given; these data themselves for all nodes as they are."""
        if in_order(nodes, self.node_count):
            return self
        rows = rows_of(self.starts, nodes)
        return Data(self.X[rows], self.y[rows], starts_of(self.starts, nodes))


def check_one_label(y: Floats, owner: str) -> None:
    """Refuse labels with several columns."""
    if y.ndim > 1:
        raise InputError(
            f"Expected one label of every row for {owner}, got {y.shape[1]}: use TorchLoss, or one network for each "
            "label."
        )


def in_order(nodes: Ints, node_count: int) -> bool:
    """Whether some nodes are all of them, in their order.

    >>> in_order(np.array([0, 1, 2]), 3), in_order(np.array([0, 2, 1]), 3)
    (True, False)
    """
    return len(nodes) == node_count and np.array_equal(nodes, np.arange(node_count))


def rows_of(starts: Ints, nodes: Ints) -> Ints:
    """The row numbers of some nodes, in their order.

    >>> rows_of(np.array([0, 2, 2, 5]), np.array([2, 0]))
    array([2, 3, 4, 0, 1])
    """
    sizes = starts[nodes + 1] - starts[nodes]
    offset = np.repeat(starts[nodes] - np.concatenate([[0], np.cumsum(sizes)[:-1]]), sizes)
    return (offset + np.arange(sizes.sum())).astype(np.int64)


def starts_of(starts: Ints, nodes: Ints) -> Ints:
    """Where the rows of some nodes start after ``rows_of`` has gathered them."""
    return np.concatenate([[0], np.cumsum(starts[nodes + 1] - starts[nodes])]).astype(np.int64)


def _one_column(y: Floats) -> Floats:
    """Labels of shape (rows,) where there is one of a row."""
    return y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y


def _as_block(node: Hashable, block: tuple[Any, Any] | None) -> tuple[Floats, Floats]:
    if block is None:
        return np.empty((0, 0)), np.empty(0)
    X = as_floats(block[0], f"the features of node {node!r}", 2)
    y = _one_column(as_floats(block[1], f"the target of node {node!r}", 1, 2))
    if len(X) != len(y):
        raise InputError(f"Expected as many labels as samples at node {node!r}, got {len(y)} for {len(X)}.")
    return X, y
