"""How rows get their domains: what nodes send for it, what the coordinator makes of it, and who belongs where."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from kinfolk.checks import InputError
from kinfolk.engine.protocol import WHOLE_NUMBER, Arrays, Inbox, Sent, Turn
from kinfolk.network.problem import Problem
from kinfolk.network.site import Site
from kinfolk.typing import Floats, Ints

Found = dict[str, Any]  # what the coordinator knows of domains, as arrays: it sends them to everybody
Train = Callable[[int], Floats]  # the parameters of every node after so many passes of its own


class Discovery(ABC):
    """How domains are found, or where they are given."""

    exchanges: ClassVar[int] = 1  # of round 0
    per_node: ClassVar[bool] = False  # whether all rows of a node have one domain, which the node receives
    finds_count: ClassVar[bool] = False  # whether the number of domains can be found
    columns: ClassVar[int] = 0  # of the last features, which hold the domain of a row and are no features

    def check(self, problem: Problem, domains: int | None) -> None:
        """Refuse a problem whose domains cannot be found; ``domains`` None: their number is to be found, too."""
        return None

    def check_data(self, site: Site, domains: int | None) -> None:
        """Refuse rows whose domains cannot be found."""
        return None

    def sends(self, problem: Problem, most: int, width: int) -> dict[str, Sent]:
        """What leaves a node for it; ``width`` is the number of parameters of the module without branches."""
        return {}

    def replies(self, problem: Problem, most: int) -> dict[str, Sent]:
        """What all nodes are sent of what was found."""
        return {"count": WHOLE_NUMBER}

    def describe(self, site: Site, turn: Turn, train: Train) -> Arrays:
        """What nodes send in round 0, before anything is known."""
        return {}

    def answer(self, site: Site, inbox: Inbox, turn: Turn) -> Arrays:
        """What nodes send in a later exchange of round 0."""
        return {}

    def work(self, site: Site, X: Floats, inbox: Inbox, turn: Turn) -> Arrays:
        """What nodes learn and send in every round, beside the parameters."""
        return {}

    def start(self, problem: Problem, domains: int | None, turn: Turn) -> Found:
        """What the coordinator knows before round 0."""
        return {}

    @abstractmethod
    def combine(
        self, found: Found, outbox: Arrays, domains: int | None, most: int, turn: Turn
    ) -> tuple[Found, int | None, Arrays]:
        """What the coordinator then knows, the number of domains (None: not yet), and what is sent to each node."""

    @abstractmethod
    def labels(self, X: Floats, owner: Ints, domain: Ints, found: Found) -> Ints:
        """The domain of rows in training; ``domain`` (rows,) is that of their node ``owner``, −1 where it has none."""

    @abstractmethod
    def scores(self, X: Floats, found: Found) -> Floats:
        """(rows, domains) a score of each domain for a row; the largest wins."""

    def agreed(self, scores: Floats, owner: Ints) -> Floats:
        """Scores of rows that know of the other rows of their node; as they are where rows decide alone."""
        return scores

    def probabilities(self, X: Floats, found: Found) -> Floats:
        """The same as numbers ≥ 0 that add up to one."""
        scores = np.maximum(self.scores(X, found), 0.0)
        total = scores.sum(axis=1, keepdims=True)
        return np.where(total > 0, scores / np.where(total > 0, total, 1.0), 1.0 / scores.shape[1])


@dataclass(frozen=True)
class DiscoveryByLook(Discovery):
    """Domains are found from what rows look like.

    Parameters
    ----------
    image : tuple of int, optional
        (channels, height, width), if rows are images; None: they are rows of numbers.
    """

    image: tuple[int, int, int] | None = None

    def check(self, problem: Problem, domains: int | None) -> None:
        """Rows that are such images."""
        if self.image is None:
            return
        owner = type(self).__name__
        if not (isinstance(self.image, tuple | list) and len(self.image) == 3 and all(map(_counts, self.image))):
            raise InputError(
                f"Expected image=(channels, height, width), three whole numbers ≥ 1, for {owner}, got {self.image!r}."
            )
        if math.prod(self.image) != problem.feature_count:
            raise InputError(
                f"Expected images of {' × '.join(map(str, self.image))} = {math.prod(self.image):,} pixels for "
                f"{owner}, got rows of {problem.feature_count:,} features: give image=(channels, height, width)."
            )


def _counts(value: Any) -> bool:
    return isinstance(value, int | np.integer) and int(value) >= 1


@dataclass(frozen=True)
class GivenDomains(Discovery):
    """The last feature of every row, in training and later, is the number of its domain, from 0."""

    columns: ClassVar[int] = 1

    def check_data(self, site: Site, domains: int | None) -> None:
        """Whole numbers from 0 to D − 1."""
        for data in (site.data, site.test):
            column = np.empty(0) if data is None else data.X[:, -1]
            bad = ~np.isin(column, np.arange(domains or 1))
            if bad.any():
                raise InputError(
                    f"Expected a domain from 0 to {(domains or 1) - 1} as the last feature of every row, got "
                    f"{column[bad][0]:g}: number the domains, or give domains= as many as there are."
                )

    def combine(
        self, found: Found, outbox: Arrays, domains: int | None, most: int, turn: Turn
    ) -> tuple[Found, int | None, Arrays]:
        """Nothing is to be found."""
        return {"count": np.asarray(domains)}, domains, {}

    def labels(self, X: Floats, owner: Ints, domain: Ints, found: Found) -> Ints:
        """As given."""
        return np.asarray(X[:, -1], dtype=np.int64)

    def scores(self, X: Floats, found: Found) -> Floats:
        """One for the domain that is given."""
        return np.eye(int(found["count"]))[np.asarray(X[:, -1], dtype=np.int64)]
