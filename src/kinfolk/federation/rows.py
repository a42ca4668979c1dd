"""The rows of one site: they are read where they are, and stay there."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kinfolk.checks import InputError, listing
from kinfolk.network.data import Data
from kinfolk.network.fingerprint import fingerprint
from kinfolk.network.network import MOST_CLASSES, Network
from kinfolk.typing import Floats, Ints


@dataclass(frozen=True)
class SiteRows:
    """The nodes of a site, their rows, and optionally rows to test with.

    Parameters
    ----------
    nodes : sequence
        Names of the nodes.
    features : sequence of str
        Names of the features.
    data : Data
        The rows of these nodes, in their order. A feature that the federation scales may be missing (NaN): it is
        filled with the mean over all sites.
    test : Data, optional
        Held-out rows; used for the error in the history, never for learning.
    """

    nodes: Sequence[Hashable]
    features: Sequence[str]
    data: Data
    test: Data | None = None

    @classmethod
    def of(cls, network: Network, nodes: Ints) -> SiteRows:
        """Those of some nodes of a network, as if their owner had nothing else.

        >>> from kinfolk import graphs
        >>> network = Network(graphs.chain(2), [([[1.0]], [1.0]), ([[2.0]], [2.0])])
        >>> SiteRows.of(network, np.array([1])).data.X
        array([[2.]])
        """
        test = None if network.test is None else network.test.take(nodes)
        names = [network.names[k] for k in nodes.tolist()]
        return cls(names, network.features, network.data.take(nodes), test)

    def check(self) -> None:
        """Refuse a site that has nothing to learn from."""
        if not len(self.data.y):
            raise InputError("Expected rows at this site, got none: check the file, or leave the federation.")
        if self.data.node_count != len(self.nodes) or self.data.feature_count != len(self.features):
            raise InputError(
                f"Expected rows of {len(self.nodes)} nodes with {len(self.features)} features, got "
                f"{self.data.node_count} and {self.data.feature_count}."
            )

    def with_features(self, wanted: Sequence[str]) -> SiteRows:
        """The same rows with the columns in this order."""
        if set(wanted) != set(self.features) or len(wanted) != len(self.features):
            missing = [name for name in wanted if name not in self.features]
            more = [name for name in self.features if name not in wanted]
            differ = "; ".join(
                f"{what} {listing(names)}" for what, names in (("without", missing), ("with", more)) if names
            )
            raise InputError(
                f"Expected the columns {listing(wanted)}, this site has rows {differ}: agree on the columns first."
            )
        order = [list(self.features).index(name) for name in wanted]
        test = None if self.test is None else _in_order(self.test, order)
        return replace(self, features=list(wanted), data=_in_order(self.data, order), test=test)

    def classes(self) -> list[float]:
        """The labels that occur here, which have to be classes."""
        found = np.unique(self.data.y)
        if self.data.output_count is not None or len(found) > MOST_CLASSES or not (found == np.floor(found)).all():
            raise InputError(
                f"Expected classes as labels, at most {MOST_CLASSES:,} whole numbers, this site has others: the "
                "federation is about numbers, or the labels are."
            )
        return [float(each) for each in found]

    def moments(self, features: Sequence[str]) -> Floats:
        """For each of some features the number of values, their mean, and the sum of squares around it.

        >>> from kinfolk.network.data import Data
        >>> data = Data(np.array([[1.0], [3.0], [np.nan]]), np.zeros(3), np.array([0, 3]))
        >>> SiteRows(["a"], ["x"], data).moments(["x"]).ravel().tolist()
        [2.0, 2.0, 2.0]
        """
        X = self.data.X[:, [list(self.features).index(name) for name in features]]
        known = ~np.isnan(X)
        count = known.sum(axis=0)
        mean = np.where(known, X, 0.0).sum(axis=0) / np.maximum(count, 1)
        return np.stack([count, mean, (np.where(known, X - mean, 0.0) ** 2).sum(axis=0)])

    def check_complete(self, scaled: Sequence[str]) -> None:
        """Refuse missing values in features that nobody fills."""
        every = self.data.X if self.test is None else np.concatenate([self.data.X, self.test.X])
        gaps = np.isnan(every).any(axis=0)
        missing = [name for name, gap in zip(self.features, gaps, strict=True) if gap and name not in scaled]
        if missing:
            raise InputError(
                f"Expected a number in every row, {listing(missing)} has none in some rows of this site: fill them, or "
                "let the federation scale its columns."
            )

    def scaled(self, centre: Floats, width: Floats) -> SiteRows:
        """The same rows in the units of the federation, with 0, the mean, in the place of missing values."""
        test = None if self.test is None else _in_units(self.test, centre, width)
        return replace(self, data=_in_units(self.data, centre, width), test=test)

    @property
    def mark(self) -> str:
        """A fingerprint, to notice that rows have changed between two starts of a process."""
        test = [] if self.test is None else [self.test.X, self.test.y, self.test.starts]
        return fingerprint(*map(repr, self.nodes), *self.features, self.data.X, self.data.y, self.data.starts, *test)


def _in_order(data: Data, columns: list[int]) -> Data:
    """The same rows with columns in another order, each row in one piece: sums stay the same to the last bit."""
    return replace(data, X=np.ascontiguousarray(data.X[:, columns]))


def _in_units(data: Data, centre: Floats, width: Floats) -> Data:
    return replace(data, X=np.nan_to_num((data.X - centre) / width, nan=0.0))
