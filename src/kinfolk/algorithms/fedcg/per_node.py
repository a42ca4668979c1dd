"""Domains of clients, found before round 1: by what their rows look like, or by what they learn alone.

Every client is one vector. The coordinator clusters the vectors and sends every client its domain. Then the
clients add up what a *student* needs, which predicts the domain of a row from random features ψ in closed form:

    S = (Σ_d G_d / n_d + ρ)⁻¹ [Σ_{r in d} ψ_r / n_d]_d,    G_d = Σ_{r in d} ψ_r ψ_rᵀ                             (1)

so that rows of new clients, and of domains never seen, can be assigned. Only sums are needed for that. A student that
is trained by averaging instead fails, because a client has one domain, and its local steps forget the others.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from kinfolk.algorithms.averaging import cluster_sums
from kinfolk.algorithms.fedcg.discovery import DiscoveryByLook, Found, Train
from kinfolk.algorithms.fedcg.features import RandomFeatures
from kinfolk.algorithms.fedcg.packing import packed, packed_size, unpacked
from kinfolk.algorithms.fedcg.spectral import Partition, k_means, spectral_partition
from kinfolk.checks import AtLeast, InputError
from kinfolk.engine.protocol import Arrays, Inbox, Sent, Turn
from kinfolk.network.problem import Problem
from kinfolk.network.site import Site
from kinfolk.typing import Floats, Ints

RIDGE = 1e-3  # ρ, of the mean diagonal
STUDENT_SEED = 1


@dataclass(frozen=True)
class DomainsOfClients(DiscoveryByLook):
    """One domain for every client, and a student for rows of others.

    Parameters
    ----------
    student_filters : int
        Random filters, or directions, of which the student learns.
    """

    student_filters: Annotated[int, AtLeast(1)] = 32

    exchanges: ClassVar[int] = 2
    per_node: ClassVar[bool] = True

    @property
    def _student_features(self) -> RandomFeatures:
        return RandomFeatures(self.student_filters, self.image, STUDENT_SEED)

    def sends(self, problem: Problem, most: int, width: int) -> dict[str, Sent]:
        """Sums for the student, once."""
        size = self._student_features.size + 1
        return {
            "gram": Sent("sum of products of random features of rows, once", (packed_size(size),), "float32"),
            "moment": Sent("sum of random features of rows, once", (most, size)),
        }

    def replies(self, problem: Problem, most: int) -> dict[str, Sent]:
        """How many domains there are, their sizes, and the student."""
        student = Sent("student", (self._student_features.size + 1, most))
        return {**super().replies(problem, most), "sizes": Sent("rows of every domain", (most,)), "student": student}

    @abstractmethod
    def partition(self, outbox: Arrays, domains: int | None, most: int, turn: Turn) -> Partition:
        """The domains of the clients that have rows, from what they have sent."""

    def combine(
        self, found: Found, outbox: Arrays, domains: int | None, most: int, turn: Turn
    ) -> tuple[Found, int | None, Arrays]:
        """Cluster, then solve (1); nothing afterwards."""
        if "gram" in outbox:
            count = int(found["count"])
            student = _solved(outbox["gram"].sum(axis=0, dtype=np.float64), outbox["moment"][:, :count].sum(axis=0))
            return {**found, "student": student}, count, {}
        if "student" in found or "rows" not in outbox:
            return found, int(found["count"]), {}
        known = outbox["rows"] > 0
        part = self.partition({name: values[known] for name, values in outbox.items()}, domains, most, turn)
        domain = np.full(len(known), -1)
        domain[known] = part.label
        rows = cluster_sums(outbox["rows"][known], part.label, part.domains)
        return {"count": np.asarray(part.domains), "sizes": rows}, None, {"domain": domain}

    def answer(self, site: Site, inbox: Inbox, turn: Turn) -> Arrays:
        """The sums of (1), each divided by the number of rows of the client's domain."""
        sizes, domain, data = inbox.to_all["sizes"], inbox.to_each["domain"], site.data
        share = np.where(domain >= 0, 1.0 / np.maximum(sizes[domain], 1.0), 0.0)
        features = self._student_features
        size = features.size + 1
        gram, moment = (
            np.zeros((site.node_count, packed_size(size)), dtype=np.float32),
            np.zeros((site.node_count, len(sizes), size)),
        )
        for node in np.flatnonzero(data.sizes > 0).tolist():
            rows = _with_one(features.of(data[node][0]))
            gram[node] = packed(share[node] * (rows.T @ rows))
            moment[node, domain[node]] = share[node] * rows.sum(axis=0)
        return {"gram": gram, "moment": moment}

    def labels(self, X: Floats, owner: Ints, domain: Ints, found: Found) -> Ints:
        """That of the client; without one, as the student sees the row."""
        unknown = domain < 0
        if not unknown.any():
            return domain
        out = domain.copy()
        out[unknown] = self.scores(X[unknown], found).argmax(axis=1)
        return out

    def scores(self, X: Floats, found: Found) -> Floats:
        """What the student predicts: about 1 for the domain, 0 for the others."""
        return np.asarray(_with_one(self._student_features.of(X)) @ found["student"])

    def agreed(self, scores: Floats, owner: Ints) -> Floats:
        """A vote: all rows of a node have the sum of their scores."""
        _, place = np.unique(owner, return_inverse=True)
        return cluster_sums(scores, place, int(place.max(initial=-1)) + 1)[place]


@dataclass(frozen=True)
class ClassMeans(DomainsOfClients):
    """Clients are of one domain if their images of the same class look alike: a spectral partition, which finds D.

    ``image`` = (channels, height, width) if rows are images, and ``student_filters``, are those of all domains of
    clients.

    Parameters
    ----------
    filters : int
        Random filters, or directions, whose features are summed.
    by_class : bool
        Whether sums go by class. False: one sum for all rows, where class counts may not leave; domains are then
        distinguished only as far as clients have about the same classes.
    """

    filters: Annotated[int, AtLeast(1)] = 16
    by_class: bool = True

    finds_count: ClassVar[bool] = True

    @property
    def _features(self) -> RandomFeatures:
        return RandomFeatures(self.filters, self.image)

    def check(self, problem: Problem, domains: int | None) -> None:
        """Classes to sum by."""
        super().check(problem, domains)
        if self.by_class and problem.classes is None:
            raise InputError("Expected classes as labels for ClassMeans, got numbers: take ClassMeans(by_class=False).")

    def _class_count(self, problem: Problem | Site) -> int:
        return len(problem.classes) if self.by_class and problem.classes is not None else 1

    def sends(self, problem: Problem, most: int, width: int) -> dict[str, Sent]:
        """Sums of random features of the rows of a class, and how many there are."""
        classes, size = self._class_count(problem), self._features.size
        of_class = " of a class" if self.by_class else ""
        return {
            **super().sends(problem, most, width),
            "sums": Sent(f"sum of random features of rows{of_class}, once", (classes, size)),
            "counts": Sent(f"number of rows{of_class}, once", (classes,)),
            "squares": Sent("sum of squares of random features of rows, once", (size,)),
            "rows": Sent("number of rows, once"),
        }

    def describe(self, site: Site, turn: Turn, train: Train) -> Arrays:
        """Sums by class."""
        data, classes = site.data, self._class_count(site)
        features = self._features.of(data.X)
        number = (
            np.searchsorted(site.classes, data.y)
            if classes > 1 and site.classes is not None
            else np.zeros(len(data.y), dtype=np.int64)
        )
        place = data.owner * classes + number
        shape = (site.node_count, classes, self._features.size)
        return {
            "sums": cluster_sums(features, place, shape[0] * classes).reshape(shape),
            "counts": np.bincount(place, minlength=shape[0] * classes).reshape(shape[:2]).astype(np.float64),
            "squares": cluster_sums(features**2, data.owner, site.node_count),
            "rows": data.sizes.astype(np.float64),
        }

    def partition(self, outbox: Arrays, domains: int | None, most: int, turn: Turn) -> Partition:
        """Clients are compared by the means of the classes that both have."""
        total = outbox["rows"].sum()
        mean = outbox["sums"].sum(axis=(0, 1)) / total
        spread = np.sqrt(np.maximum(outbox["squares"].sum(axis=0) / total - mean**2, 1e-12))
        return spectral_partition(_squares(outbox["sums"] / spread, outbox["counts"]), domains, most, turn.seed)


@dataclass(frozen=True)
class ClientWeights(DomainsOfClients):
    """Clients are of one domain if what they learn alone, from a common start, is alike: k-means on parameters.

    ``image`` = (channels, height, width) if rows are images, and ``student_filters``, are those of all domains of
    clients.

    Parameters
    ----------
    passes : int
        Rounds of local work before parameters are sent.
    """

    passes: Annotated[int, AtLeast(1)] = 5

    def sends(self, problem: Problem, most: int, width: int) -> dict[str, Sent]:
        """The parameters that a client has learnt alone."""
        return {
            **super().sends(problem, most, width),
            "alone": Sent("parameters learnt alone, once", (width,), "float32"),
            "rows": Sent("number of rows, once"),
        }

    def describe(self, site: Site, turn: Turn, train: Train) -> Arrays:
        """What a client learns alone."""
        return {"alone": train(self.passes).astype(np.float32), "rows": site.data.sizes.astype(np.float64)}

    def partition(self, outbox: Arrays, domains: int | None, most: int, turn: Turn) -> Partition:
        """K-means."""
        assert domains is not None
        return Partition(k_means(outbox["alone"], domains, turn.seed), domains)


def _squares(sums: Floats, counts: Floats) -> Floats:
    """Squared distances of class means, over the classes that two clients share, each by how well it is known there.

    With n rows of a class here and m there, the difference of two means has a variance in proportion to
    (n + m) / (n m), so that is what a class is divided by; ∞ without a class in common.

    >>> _squares(np.array([[[2.0], [0.0]], [[8.0], [9.0]], [[0.0], [3.0]]]), np.array([[1, 0], [2, 3], [0, 1]]))
    array([[ 0.,  4., inf],
           [ 4.,  0.,  0.],
           [inf,  0.,  0.]])
    """
    total = np.zeros((len(sums), len(sums)))
    weight = np.zeros_like(total)
    for own, count in zip(sums.swapaxes(0, 1), counts.T, strict=True):  # class by class
        means = own / np.maximum(count, 1.0)[:, None]
        length = (means**2).sum(axis=1)
        known = np.outer(count, count) / np.maximum(count[:, None] + count, 1.0)
        total += known * np.maximum(length[:, None] + length - 2.0 * means @ means.T, 0.0)
        weight += known
    return np.where(weight > 0, total / np.where(weight > 0, weight, 1.0), np.inf)


def _with_one(features: Floats) -> Floats:
    return np.concatenate([features, np.ones((len(features), 1))], axis=1)


def _solved(upper: Floats, moment: Any) -> Floats:
    """(1) from the upper triangle of the matrix; (features + 1, domains)."""
    size = moment.shape[1]
    matrix = unpacked(upper, size)
    ridge = RIDGE * max(float(np.trace(matrix)) / size, 1e-300)
    return np.asarray(np.linalg.solve(matrix + ridge * np.eye(size), moment.T))
