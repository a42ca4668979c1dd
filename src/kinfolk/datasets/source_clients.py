"""Handwritten digits of four sources: MNIST, USPS, Semeion and MNIST-M."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import ndimage

from kinfolk.checks import InputError
from kinfolk.datasets.digit_files import (
    SHAPE,
    Bytes,
    Written,
    as_pixels,
    read_mnist_m,
    read_semeion,
    read_usps,
    read_written,
)
from kinfolk.datasets.image_clients import ImageClients, Pixels, generator_of
from kinfolk.typing import Bools, Ints

ROWS = 110  # of a client, about as many as an MNIST writer has
NAMES = ("MNIST", "USPS", "Semeion", "MNIST-M")


class Source(NamedTuple):
    """The clients of one source, numbered from 0; rows in any order."""

    X: Pixels  # (rows, 784)
    y: Ints  # (rows,)
    client: Ints  # (rows,)
    held_out: Bools  # (clients,)


def digit_sources(seed: int) -> ImageClients:
    """Clients whose digits come from one of four sources each, as grey images of 28 × 28 pixels.

    - USPS and Semeion: their images of 16 × 16 pixels fill the frame, and are enlarged to 28 × 28 by linear
      interpolation between the centres of pixels, as is common for USPS beside MNIST; no margin is added, so that
      strokes are larger than those of MNIST. Writers are not known: rows are dealt out at random to clients of about
      110. Semeion is rare.
    - MNIST: one writer per client, as many training writers and as many test writers as USPS has clients of either
      kind.
    - MNIST-M (test images): image i is test image i of MNIST on a photograph, so its writer is known. Rows of the MNIST
      writers that are held out here are left out, and others are gathered to clients of about 110 rows, all rows of a
      writer at one client: no held-out writer of these two sources is seen in training.

    Parameters
    ----------
    seed : int
        Draws the writers, the clients, and which third of the clients of a source is held out.

    Returns
    -------
    ImageClients
        Domains 0 to 3 in the order MNIST, USPS, Semeion, MNIST-M; the clients of a source follow each other.
    """
    rng = generator_of(seed, "digit_sources")
    written = read_written()
    usps, semeion = (_cut(*read(), rng) for read in (read_usps, read_semeion))
    chosen = _some_writers(written.held_out, usps.held_out, rng)
    return _joined([_of_writers(written, chosen), usps, semeion, _on_photographs(written, chosen, rng)])


def enlarged(images: Bytes, side: int = SHAPE[1]) -> Bytes:
    """Square images brought to another size by linear interpolation between the centres of pixels.

    >>> enlarged(np.array([[[0, 200], [0, 200]]], dtype=np.uint8), 4)[0, 0]
    array([  0,  50, 150, 200], dtype=uint8)
    """
    factor = side / images.shape[1]
    zoomed = ndimage.zoom(images.astype(np.float32), (1, factor, factor), order=1, mode="nearest", grid_mode=True)
    out: Bytes = np.rint(zoomed).astype(np.uint8)
    return out


def _cut(images: Bytes, y: Ints, rng: np.random.Generator) -> Source:
    """Rows dealt out to clients of about ``ROWS``."""
    count = max(3, round(len(y) / ROWS))
    return Source(as_pixels(enlarged(images)), y, rng.permutation(len(y)) * count // len(y), _a_third(count, rng))


def _a_third(count: int, rng: np.random.Generator) -> Bools:
    return np.asarray(rng.permutation(count) < round(count / 3), dtype=bool)


def _some_writers(held_out: Bools, like: Bools, rng: np.random.Generator) -> Ints:
    """Writers, as many for training and as many held out as ``like`` marks (or all that there are); ascending."""
    parts = []
    for known, wanted in ((~held_out, ~like), (held_out, like)):
        numbers = np.flatnonzero(known)
        parts.append(np.sort(rng.choice(numbers, min(len(numbers), int(wanted.sum())), replace=False)))
    return np.concatenate(parts)


def _of_writers(written: Written, chosen: Ints) -> Source:
    rows = np.isin(written.client, chosen)
    client = np.searchsorted(chosen, written.client[rows])
    return Source(as_pixels(written.images[rows]), written.y[rows], client, written.held_out[chosen])


def _on_photographs(written: Written, chosen: Ints, rng: np.random.Generator) -> Source:
    """MNIST-M without the chosen writers; whole writers are gathered to clients of about ``ROWS``."""
    images, y = read_mnist_m()
    if not np.array_equal(y, written.test_y[: len(y)]):
        raise InputError("Expected MNIST-M images in the order of MNIST's test images, got other digits in some rows.")
    writer = written.test_client[: len(y)]
    rows = ~np.isin(writer, chosen)
    sizes = np.bincount(writer[rows], minlength=len(written.held_out))
    order = rng.permutation(len(sizes))
    before = np.empty(len(sizes), dtype=np.int64)  # rows of writers that come before in this order
    before[order] = np.cumsum(sizes[order]) - sizes[order]
    numbers, client = np.unique(before[writer[rows]] // ROWS, return_inverse=True)
    return Source(as_pixels(images[rows]), y[rows], client, _a_third(len(numbers), rng))


def _joined(sources: list[Source]) -> ImageClients:
    """The clients of all sources, numbered one source after the other, with their rows in this order."""
    counts = [len(source.held_out) for source in sources]
    firsts = np.cumsum([0, *counts[:-1]])
    client = np.concatenate([source.client + first for source, first in zip(sources, firsts, strict=True)])
    order = np.argsort(client, kind="stable")
    domain = np.repeat(np.arange(len(sources)), [len(source.y) for source in sources])
    return ImageClients(
        np.concatenate([source.X for source in sources])[order],
        np.concatenate([source.y for source in sources])[order],
        client[order].astype(np.int64),
        domain[order],
        np.concatenate([source.held_out for source in sources]),
        SHAPE,
        NAMES,
    )
