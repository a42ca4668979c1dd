"""Places: where rows are, and where nodes are."""

from __future__ import annotations

import numpy as np
import pandas

from kinfolk.checks import InputError
from kinfolk.report.facts import on_globe
from kinfolk.tables.columns import LARGEST_DEGREES, Columns
from kinfolk.typing import Bools, Floats, Ints

TILES = 20  # regions of the map


def row_places(table: pandas.DataFrame, columns: Columns) -> Floats | None:
    """The place of every row (rows, 2), NaN where it is missing; None without coordinates."""
    if not columns.coords:
        return None
    read = [pandas.to_numeric(table[name], errors="coerce") for name in columns.coords]
    place = np.stack([column.to_numpy(dtype=np.float64, na_value=np.nan) for column in read], axis=1)
    if on_globe(columns.coords) and (np.abs(place) > LARGEST_DEGREES).any():
        latitude, longitude = columns.coords
        raise InputError(
            f"Expected latitudes (−90 to 90) in {latitude!r} and longitudes (−360 to 360) in {longitude!r}, got values "
            "outside: is the order latitude, longitude? Other coordinates may be called x and y."
        )
    return np.where(np.isfinite(place).all(axis=1)[:, None], place, np.nan)


def node_places(place: Floats, owner: Ints, train: Bools, names: list[str], coords: tuple[str, ...]) -> Floats:
    """The centroid of every node (nodes, 2): of its training rows where these have places, else of all its rows."""
    globe = on_globe(coords)
    first, second = (centroids(place[rows], owner[rows], len(names), globe) for rows in (train, slice(None)))
    found = np.where(np.isnan(first), second, first)
    lost = np.flatnonzero(np.isnan(found[:, 0]))
    if len(lost):
        raise InputError(
            f"Expected coordinates of every node in columns {coords[0]!r} and {coords[1]!r}, got none for "
            f"{len(lost):,} nodes such as {names[lost[0]]!r}: fill them, or leave out coords."
        )
    return found


def centroids(place: Floats, owner: Ints, node_count: int, globe: bool) -> Floats:
    """The middle of the places of every node (nodes, 2), NaN where there are none; on the globe across the date line.

    >>> centroids(np.array([[0.0, 179.0], [0.0, -177.0], [8.0, 1.0]]), np.array([0, 0, 2]), 3, True).round(6)
    array([[   0., -179.],
           [  nan,   nan],
           [   8.,    1.]])
    """
    known = ~np.isnan(place[:, 0])
    points, mine = as_points(place[known], globe), owner[known]
    count = np.bincount(mine, minlength=node_count)
    with np.errstate(invalid="ignore"):
        middle = np.stack([np.bincount(mine, axis, minlength=node_count) / count for axis in points.T], axis=1)
    if not globe:
        return middle
    x, y, z = middle.T
    radians = np.stack([np.arctan2(z, np.hypot(x, y)), np.arctan2(y, x)], axis=1)
    return np.asarray(np.degrees(radians))


def as_points(place: Floats, globe: bool) -> Floats:
    """Places as points between which straight lines measure: (rows, 3) on a sphere of radius 1, or as they are."""
    if not globe:
        return place
    latitude, longitude = np.radians(place).T
    flat = np.cos(latitude)
    return np.stack([flat * np.cos(longitude), flat * np.sin(longitude), np.sin(latitude)], axis=1)


def map_tiles(nodes: Floats, globe: bool, seed: int) -> Ints:
    """The region of the map that every node lies in, by k-means: 20, or one for two nodes."""
    from sklearn.cluster import KMeans

    points = as_points(nodes, globe)
    count = min(TILES, max(2, len(nodes) // 2), len(np.unique(points, axis=0)))
    if count < 2:
        raise InputError("Expected nodes at several places to hold out regions, got one place: hold out nodes or rows.")
    return np.asarray(KMeans(count, n_init=1, random_state=seed % 2**32).fit_predict(points), dtype=np.int64)


def filled(place: Floats, owner: Ints, nodes: Floats) -> Floats:
    """Row places; a missing one is that of the row's node."""
    return np.where(np.isnan(place), nodes[owner], place)
