"""Domains of rows, for clients that hold several: a mixture over domains and classes, learnt from sums of clients.

A client cuts the rows of each of its classes into groups that look alike. The coordinator clusters the groups of each
class, and gives clusters of different classes one name where they occur at the same clients. From there on, with ψ the
random features of a row of class c at client k, μ_dc their means and Σ their covariance around these means,

    r_d ∝ π_kd exp(−τ/2 (ψ − μ_dc)ᵀ Σ⁻¹ (ψ − μ_dc)),   π_k the mean of r over the rows of client k                (1)
    μ_dc <- Σ r_d ψ / Σ r_d                                                                                       (2)

in a few exchanges, each of sums over the rows of a client. Clients must differ in which domains they hold: where all
hold the same ones, nothing tells which cluster of one class belongs to which of another.

Later a row takes a domain by the same rule, with all classes added up; π is that of the rows that are asked about
together. τ < 1 because ψ is far from normal: with τ = 1 the first guess, right for half of the rows, is hardly left.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import scipy.linalg
import scipy.optimize
from scipy.special import logsumexp, softmax

from kinfolk.algorithms.averaging import cluster_sums
from kinfolk.algorithms.fedcg.discovery import DiscoveryByLook, Found, Train
from kinfolk.algorithms.fedcg.features import RandomFeatures
from kinfolk.algorithms.fedcg.packing import packed, packed_size, unpacked
from kinfolk.algorithms.fedcg.spectral import k_means
from kinfolk.checks import AtLeast, InputError
from kinfolk.engine.protocol import WHOLE_NUMBER, Arrays, Inbox, Sent, Turn
from kinfolk.network.problem import Problem
from kinfolk.network.site import Site
from kinfolk.typing import Floats, Ints

LEARNING, JUDGING = 0.1, 0.2  # τ while means are learnt, and afterwards
EXCHANGES = 10  # of sums; the labels of digits settle after eight
SHARES_STEPS = 10  # of π
RIDGE = 1e-2  # of the diagonal of Σ
EVEN = 0.5  # rows that every client has beside its own, spread over the domains
GROUP_STEPS = 10  # of k-means inside a class of a client
SWEEPS = 5  # over the classes, to name their clusters


@dataclass(frozen=True)
class MixedClients(DiscoveryByLook):
    """Clients hold rows of several domains: each row has its own; the number of domains must be given.

    ``image`` = (channels, height, width) if rows are images.

    Parameters
    ----------
    filters : int
        Random filters, or directions, of which features are made.
    parts : int
        Into how many groups a client cuts the rows of a class: as many domains as it may hold.
    """

    filters: Annotated[int, AtLeast(1)] = 32
    parts: Annotated[int, AtLeast(2)] = 2

    exchanges: ClassVar[int] = 1 + EXCHANGES

    @property
    def _features(self) -> RandomFeatures:
        return RandomFeatures(self.filters, self.image)

    def check(self, problem: Problem, domains: int | None) -> None:
        """Images of that size, and classes."""
        super().check(problem, domains)
        if problem.classes is None:
            raise InputError("Expected classes as labels for MixedClients, got numbers: take another discovery.")

    def sends(self, problem: Problem, most: int, width: int) -> dict[str, Sent]:
        """Sums over groups, then over domains, of every class."""
        size, classes = self._features.size, len(_classes(problem))
        return {
            "groups": Sent("sum of random features of groups of rows of a class, once", (classes, self.parts, size)),
            "group_rows": Sent("number of rows of such groups, once", (classes, self.parts)),
            "products": Sent("sum of products of random features of rows, once", (packed_size(size),), "float32"),
            "sums": Sent("sum of random features of rows by domain and class, at first", (most, classes, size)),
            "rows": Sent("number of rows by domain and class, at first", (most, classes)),
        }

    def replies(self, problem: Problem, most: int) -> dict[str, Sent]:
        """The mixture: log densities that are linear in ψ."""
        size, classes = self._features.size, len(_classes(problem))
        return {
            **super().replies(problem, most),
            "left": WHOLE_NUMBER,
            "products": Sent("sum of products of random features", (size, size)),
            "slopes": Sent("Σ⁻¹ μ of every domain and class", (most, classes, size)),
            "offsets": Sent("−½ μᵀ Σ⁻¹ μ of every domain and class", (most, classes)),
            "shares": Sent("share of every class in a domain", (most, classes)),
        }

    # ------------------------------------------------------------------ clients

    def describe(self, site: Site, turn: Turn, train: Train) -> Arrays:
        """Groups of rows of a class that look alike."""
        data, psi = site.data, self._features.of(site.data.X)
        place, shape = _places(site), (site.node_count, len(_classes(site)), self.parts)
        group = np.zeros(len(place), dtype=np.int64)
        order = np.argsort(place, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(place[order])) + 1):
            if len(rows):  # a site may have none
                group[rows] = _groups(psi[rows], self.parts)
        place, count = place * self.parts + group, math.prod(shape)
        products = np.zeros((site.node_count, packed_size(psi.shape[1])), dtype=np.float32)
        for node in np.flatnonzero(data.sizes > 0).tolist():
            own = psi[data.starts[node] : data.starts[node + 1]]
            products[node] = packed(own.T @ own)
        return {
            "groups": cluster_sums(psi, place, count).reshape(*shape, psi.shape[1]),
            "group_rows": np.bincount(place, minlength=count).reshape(shape).astype(np.float64),
            "products": products,
        }

    def answer(self, site: Site, inbox: Inbox, turn: Turn) -> Arrays:
        """(1), and the sums of (2)."""
        found, data, classes = inbox.to_all, site.data, _classes(site)
        psi, place, count = self._features.of(data.X), _places(site), site.node_count * len(classes)
        logs = np.zeros((len(psi), len(found["slopes"])))
        for c, value in enumerate(classes):
            rows = data.y == value
            logs[rows] = psi[rows] @ found["slopes"][:, c].T + found["offsets"][:, c]
        r = softmax(self.agreed(LEARNING * logs, data.owner), axis=1)  # (1)
        shape = (site.node_count, r.shape[1], len(classes))
        sums, rows_of = np.zeros((*shape, psi.shape[1])), np.zeros(shape)
        for d, own in enumerate(r.T):
            sums[:, d] = cluster_sums(own[:, None] * psi, place, count).reshape(shape[0], shape[2], -1)
            rows_of[:, d] = np.bincount(place, own, count).reshape(shape[0], shape[2])
        return {"sums": sums, "rows": rows_of}

    # ------------------------------------------------------------------ the coordinator

    def combine(
        self, found: Found, outbox: Arrays, domains: int | None, most: int, turn: Turn
    ) -> tuple[Found, int | None, Arrays]:
        """Name the groups, then (2); nothing afterwards."""
        assert domains is not None
        if "groups" in outbox:
            products = unpacked(outbox["products"].sum(axis=0, dtype=np.float64), outbox["groups"].shape[3])
            sums, rows = _named(outbox["groups"], outbox["group_rows"], np.diag(products), domains, turn.seed)
            about = {"count": np.asarray(domains), "left": np.asarray(EXCHANGES), "products": products}
            return {**about, **_mixture(sums, rows, products)}, None, {}
        left = int(found["left"])
        if not left or "sums" not in outbox:
            return found, domains, {}
        learnt = _mixture(outbox["sums"].sum(axis=0), outbox["rows"].sum(axis=0), found["products"])  # (2)
        found = {**found, **learnt, "left": np.asarray(left - 1)}
        if left > 1:
            return found, None, {}
        return {name: value for name, value in found.items() if name != "products"}, domains, {}

    # ------------------------------------------------------------------ rows

    def labels(self, X: Floats, owner: Ints, domain: Ints, found: Found) -> Ints:
        """As at test, so that branches learn from the rows that they will get."""
        return np.asarray(self.agreed(self.scores(X, found), owner).argmax(axis=1), dtype=np.int64)

    def scores(self, X: Floats, found: Found) -> Floats:
        """The log density of a row in every domain."""
        logs = np.einsum("ri,dci->rdc", self._features.of(X), found["slopes"], optimize=True) + found["offsets"]
        return np.asarray(logsumexp(JUDGING * logs + np.log(np.maximum(found["shares"], 1e-9)), axis=2))

    def agreed(self, scores: Floats, owner: Ints) -> Floats:
        """With the logarithm of π, that of the rows of a client."""
        _, place = np.unique(owner, return_inverse=True)
        count, domains = int(place.max(initial=-1)) + 1, scores.shape[1]
        pi = np.full((count, domains), 1.0 / domains)
        for _ in range(SHARES_STEPS):
            total = cluster_sums(softmax(scores + np.log(pi)[place], axis=1), place, count) + EVEN / domains
            pi = total / total.sum(axis=1, keepdims=True)
        return np.asarray(scores + np.log(pi)[place])

    def probabilities(self, X: Floats, found: Found) -> Floats:
        """Those of the mixture, with equal shares of all domains."""
        return np.asarray(softmax(self.scores(X, found), axis=1))


def _classes(site: Site | Problem) -> Floats:
    assert site.classes is not None
    return np.asarray(site.classes)


def _places(site: Site) -> Ints:
    """A number for the node and the class of every row."""
    classes = _classes(site)
    return np.asarray(site.data.owner * len(classes) + np.searchsorted(classes, site.data.y), dtype=np.int64)


def _groups(rows: Floats, parts: int) -> Ints:
    """Rows that look alike: k-means from rows that are far apart, features in units of their spread.

    >>> _groups(np.array([[0.0], [9.0], [0.1], [8.0]]), 2).tolist()
    [1, 0, 1, 0]
    """
    rows = (rows - rows.mean(axis=0)) / np.maximum(rows.std(axis=0), 1e-12)
    centres = rows[[np.argmax((rows**2).sum(axis=1))]]
    for _ in range(min(parts, len(rows)) - 1):
        centres = np.concatenate([centres, rows[[_distances(rows, centres).min(axis=1).argmax()]]])
    label = _distances(rows, centres).argmin(axis=1)
    for _ in range(GROUP_STEPS):
        sizes = np.bincount(label, minlength=len(centres))
        centres = cluster_sums(rows, label, len(centres)) / np.maximum(sizes, 1)[:, None]
        label = _distances(rows, centres).argmin(axis=1)
    return np.asarray(label, dtype=np.int64)


def _distances(rows: Floats, centres: Floats) -> Floats:
    """Squared, up to what all centres have in common."""
    return np.asarray((rows**2).sum(axis=1)[:, None] + (centres**2).sum(axis=1) - 2.0 * rows @ centres.T)


def _named(groups: Floats, counts: Floats, squares: Floats, domains: int, seed: int) -> tuple[Floats, Floats]:
    """Sums and rows of every domain and class, (domains, classes, ...), from those of groups of clients."""
    clients, classes, parts, size = groups.shape
    total = max(counts.sum(), 1.0)
    spread = np.sqrt(np.maximum(squares / total - (groups.sum(axis=(0, 1, 2)) / total) ** 2, 1e-12))
    owner = np.repeat(np.arange(clients), parts)
    label = [
        _clusters(groups[:, c].reshape(-1, size) / spread, counts[:, c].ravel(), domains, seed) for c in range(classes)
    ]
    held = np.zeros((classes, clients, domains))  # share of a client's rows of a class in every cluster
    for c in range(classes):
        np.add.at(held[c], (owner, label[c]), counts[:, c].ravel())
    held /= np.maximum(held.sum(axis=2, keepdims=True), 1.0)
    name = _names(held - held.mean(axis=1, keepdims=True))
    sums, rows = np.zeros((domains, classes, size)), np.zeros((domains, classes))
    for c in range(classes):
        np.add.at(sums[:, c], name[c][label[c]], groups[:, c].reshape(-1, size))
        np.add.at(rows[:, c], name[c][label[c]], counts[:, c].ravel())
    return sums, rows


def _clusters(sums: Floats, counts: Floats, domains: int, seed: int) -> Ints:
    """The clusters of the groups of a class by their means; those without rows are nowhere in particular."""
    some = counts > 0
    label = np.zeros(len(counts), dtype=np.int64)
    means = sums[some] / counts[some, None]
    label[some] = k_means(means, domains, seed) if len(means) > domains else np.arange(len(means))
    return label


def _names(held: Floats) -> Ints:
    """(classes, clusters) the domain of each cluster of each class: those that occur at the same clients share one.

    >>> here = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]) - 0.5
    >>> _names(np.stack([here, here[:, ::-1]])).tolist()
    [[0, 1], [1, 0]]
    """
    classes, _, domains = held.shape
    name = np.tile(np.arange(domains), (classes, 1))
    known = 1  # classes whose clusters have names
    for _ in range(SWEEPS):
        for c in range(classes):
            others = [k for k in range(max(known, 1)) if k != c]
            if others:
                together = sum(held[c].T @ held[k][:, np.argsort(name[k])] for k in others)
                name[c] = scipy.optimize.linear_sum_assignment(-together)[1]
            known = max(known, c + 1)
    return name


def _mixture(sums: Floats, rows: Floats, products: Floats) -> Found:
    """Slopes and offsets of the log densities, from the sums of (2)."""
    means = sums / np.maximum(rows, 1e-9)[:, :, None]
    flat = means.reshape(-1, means.shape[2])
    within = (products - (rows.reshape(-1, 1) * flat).T @ flat) / max(rows.sum(), 1.0)  # Σ
    within += np.diag(RIDGE * np.maximum(np.diag(within), 1e-12))
    slopes = scipy.linalg.solve(within, flat.T, assume_a="sym").T.reshape(means.shape)
    shares = rows / np.maximum(rows.sum(axis=1, keepdims=True), 1e-9)
    return {"slopes": slopes, "offsets": -0.5 * (slopes * means).sum(axis=2), "shares": shares}
