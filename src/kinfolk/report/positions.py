"""Where nodes are drawn: on a map where places are known, else where a layout of the graph puts them."""

from __future__ import annotations

import networkx
import numpy as np
import scipy.sparse
import scipy.sparse.linalg

from kinfolk.network.graph import Graph
from kinfolk.report.facts import RunFacts, on_globe
from kinfolk.typing import Floats, Ints

MOST_SPRINGS = 1_000  # nodes; more are laid out by eigenvectors, which is quicker
GAP = 0.25  # between components, in the size of a single node's box


def positions(run: RunFacts) -> Floats:
    """Where every node is drawn (nodes, 2): the same unit both ways."""
    if run.places is None:
        return laid_out(run.graph, run.settings.seed)
    return on_map(run.places) if on_globe(run.columns.coords) else run.places


def on_map(places: Floats) -> Floats:
    """Latitudes and longitudes as a flat map: degrees east are as long as they are half-way up the map.

    >>> on_map(np.array([[60.0, 20.0], [60.0, 22.0]]))[:, 0]
    array([-0.5,  0.5])
    """
    latitude, longitude = places.T
    east = (longitude - _cut(longitude)) % 360.0
    middle = (latitude.min() + latitude.max()) / 2
    x = (east - (east.min() + east.max()) / 2) * np.cos(np.radians(middle))
    return np.stack([x.round(9), latitude], axis=1)


def _cut(longitude: Floats) -> float:
    """Where the globe is cut open: after the widest gap without nodes, so that no country is torn."""
    around = np.sort(np.unique(longitude % 360.0))
    gaps = np.diff(np.append(around, around[0] + 360.0))
    return float(around[(int(np.argmax(gaps)) + 1) % len(around)])


def laid_out(graph: Graph, seed: int) -> Floats:
    """A layout in which neighbours are near: each component by itself, then side by side, the largest first."""
    members = [np.flatnonzero(graph.components == k) for k in range(int(graph.components.max()) + 1)]
    members.sort(key=len, reverse=True)
    sizes = np.array([np.sqrt(len(each)) + GAP for each in members])
    out = np.empty((graph.node_count, 2))
    for corner, each in zip(_shelves(sizes), members, strict=True):
        out[each] = corner + np.sqrt(len(each)) * _unit(_component(graph, each, seed))
    return out


def _component(graph: Graph, members: Ints, seed: int) -> Floats:
    """One connected part: by springs, or by eigenvectors of a random walk if it is large."""
    if len(members) == 1:
        return np.zeros((1, 2))
    adjacency = graph.to_sparse().tocsr()[members][:, members]
    if len(members) <= MOST_SPRINGS:
        placed = networkx.spring_layout(networkx.from_scipy_sparse_array(adjacency), seed=seed, weight="weight")
        return np.array([placed[k] for k in range(len(members))])
    scale = scipy.sparse.diags_array(1 / np.sqrt(adjacency.sum(axis=1)))
    walk = scale @ adjacency @ scale + scipy.sparse.eye_array(len(members))
    start = np.random.default_rng(seed).normal(size=len(members))
    _, vectors = scipy.sparse.linalg.eigsh(walk, k=3, which="LA", v0=start, tol=1e-4)
    out: Floats = scale @ vectors[:, 1::-1]
    return out


def _unit(spots: Floats) -> Floats:
    """Moved and scaled into the unit square."""
    low, size = spots.min(axis=0), np.ptp(spots, axis=0)
    out: Floats = (spots - low) / np.where(size > 0, size, 1.0)
    return out


def _shelves(sizes: Floats) -> Floats:
    """The lower left corners of squares that stand side by side in rows, as wide as all are high."""
    width = max(float(sizes[0]), np.sqrt(float((sizes**2).sum())))
    corners, x, y, row = [], 0.0, 0.0, float(sizes[0])
    for size in map(float, sizes):
        if x + size > width * (1 + 1e-9):
            x, y, row = 0.0, y - row, size
        corners.append((x, y - size))
        x += size
    return np.array(corners)
