"""Which clients are of one domain: a spectral partition of vectors, which also finds how many domains there are."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np
import scipy.linalg

from kinfolk.typing import Floats, Ints

NEIGHBOURS, SCALE = 8, 7  # neighbours of a client, and the one whose distance is its scale
CONNECTED, OF_FEW = 0.027, 19.0  # eigenvalues of parts that hardly touch: below the first, or the second / size²


class Partition(NamedTuple):
    """Domains of clients."""

    label: Ints  # (clients,)
    domains: int


def spectral_partition(squares: Floats, count: int | None, most: int, seed: int) -> Partition:
    """The domains of clients from their squared distances (clients, clients); ``count`` None: it is found.

    Each client is joined with its nearest ones; eigenvectors of the normalised Laplacian are clustered. Clients that
    cannot be compared are infinitely far from each other.

    >>> rng = np.random.default_rng(0)
    >>> spots = np.repeat([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0]], 40, axis=0) + rng.normal(size=(120, 2))
    >>> spectral_partition(((spots[:, None] - spots) ** 2).sum(axis=2), None, 8, 0).domains
    3
    """
    clients = len(squares)
    if clients < 3:
        count = min(count or 1, clients)
        return Partition(np.arange(clients) % count, count)
    values, directions = _small_eigenvectors(_affinities(squares), min(most + 1, clients))
    found = domain_count(values, clients, most) if count is None else count
    if found == 1:
        return Partition(np.zeros(clients, dtype=np.int64), 1)
    rows = directions[:, :found]
    rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300)
    return Partition(k_means(rows, found, seed), found)


def k_means(rows: Floats, count: int, seed: int) -> Ints:
    """The clusters of rows, numbered in the order in which they occur, the best of twenty starts."""
    from sklearn.cluster import KMeans

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fewer different rows than clusters
        label = KMeans(count, n_init=20, random_state=seed).fit_predict(np.ascontiguousarray(rows))
    _, first, label = np.unique(label, return_index=True, return_inverse=True)
    return np.asarray(np.argsort(np.argsort(first))[label], dtype=np.int64)


def _affinities(squares: Floats) -> Floats:
    """exp(−d² / (s_i s_j)) between nearest neighbours, with s the distance to the seventh; symmetric."""
    count = min(NEIGHBOURS, len(squares) - 1)
    far = squares.copy()
    np.fill_diagonal(far, np.inf)
    nearest = np.argsort(far, axis=1, kind="stable")[:, :count]
    near = np.take_along_axis(far, nearest, axis=1)
    scale = np.sqrt(np.maximum(near[:, min(SCALE, count) - 1], 1e-300))
    with np.errstate(invalid="ignore"):
        weight = np.exp(-near / (scale[:, None] * scale[nearest]))
    out = np.zeros_like(squares)
    np.put_along_axis(out, nearest, np.where(np.isfinite(near), weight, 0.0), axis=1)
    return np.maximum(out, out.T)


def _small_eigenvectors(affinities: Floats, count: int) -> tuple[Floats, Floats]:
    """The smallest eigenvalues of the normalised Laplacian, and their vectors."""
    root = np.sqrt(np.maximum(affinities.sum(axis=1), 1e-300))
    laplacian = np.eye(len(root)) - affinities / np.outer(root, root)
    values, vectors = scipy.linalg.eigh(laplacian, subset_by_index=[0, count - 1])
    return np.maximum(values, 0.0), vectors


def domain_count(values: Floats, clients: int, most: int) -> int:
    """How many parts hardly touch: the largest j whose j-th eigenvalue is small for parts of clients / j.

    Inside a domain of digits the smallest eigenvalue was .035 with 539 clients, and grows as domains get smaller.

    >>> domain_count(np.array([0.0, 0.002, 0.008, 0.014, 0.27]), 80, 4), domain_count(np.array([0.0, 0.07]), 60, 4)
    (4, 1)
    """
    number = np.arange(1, min(most, len(values)) + 1)
    small = values[: len(number)] < np.maximum(CONNECTED, OF_FEW * (number / clients) ** 2)
    return int(number[small].max(initial=1))
