"""Handwritten digits of many clients in several domains, for experiments in which the true domains are known.

MNIST with its writers (QMNIST, Yadav and Bottou 2019): 539 writers of training images train, 297 other writers of test
images are held out. A domain is a transform of the image, which all images of a writer share unless a docstring states
otherwise, or the source of the image. The files are looked for in the folder of ``looking_in`` or of the environment
variable KINFOLK_DATA: ``mnist.npz``, ``writers.npz`` and, for ``digit_sources``, ``usps.npz``, ``semeion.npz`` and
``mnist_m_test_gray.npz``, there or in its subfolders ``mnist``, ``mnist_writers`` and ``digit_domains``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Annotated

import numpy as np
from scipy import ndimage

from kinfolk.checks import AtLeast, Between, InputError, as_floats, check_value
from kinfolk.datasets.digit_files import SHAPE, Bytes, Written, as_pixels, read_written
from kinfolk.datasets.image_clients import ImageClients, generator_of
from kinfolk.datasets.source_clients import digit_sources
from kinfolk.typing import Bools, Floats, Ints

__all__ = [
    "digit_sources", "mixed_rotations", "with_few_classes", "writers", "writers_by_attributes", "writers_by_inversion",
    "writers_by_rotation",
]  # fmt: skip

PLAIN = "as written"
SHIFT = 3  # pixels, to the right and down
Transform = Callable[[Bytes], Bytes]


def writers(seed: int) -> ImageClients:
    """The writers of MNIST with their images as they are: one domain.

    Nothing is drawn; the seed is an argument so that all functions here are called alike.
    """
    check_value("seed", "writers", seed, Annotated[int, AtLeast(0)])
    written = read_written()
    return _in_domains(written, np.zeros(len(written.y), dtype=np.int64), [_same], (PLAIN,))


def writers_by_rotation(seed: int, domains: int = 4, shares: Sequence[float] | None = None) -> ImageClients:
    """Each writer's images turned by 0, 90, 180 or 270 degrees, anticlockwise.

    Parameters
    ----------
    seed : int
        Draws who is turned how far.
    domains : int
        The number of different angles, from 1 to 4: the first ones of the list.
    shares : sequence of float, optional
        The share of writers in every domain, such as (.6, .2, .15, .05); equal shares by default. Training and held-out
        writers are dealt out with the same shares.

    Returns
    -------
    ImageClients
        Domain k is turned by 90 k degrees.
    """
    check_value("domains", "writers_by_rotation", domains, Annotated[int, Between(1, 4)])
    rng, dealt = generator_of(seed, "writers_by_rotation"), _as_shares(shares, domains)
    written = read_written()
    domain = _dealt(written.held_out, dealt, rng)[written.client]
    return _in_domains(written, domain, _ROTATIONS[:domains], _ANGLES[:domains])


def writers_by_inversion(seed: int) -> ImageClients:
    """The images of half of the writers inverted, 1 - x: domain 1."""
    rng, written = generator_of(seed, "writers_by_inversion"), read_written()
    domain = _dealt(written.held_out, _as_shares(None, 2), rng)[written.client]
    return _in_domains(written, domain, [_same, np.invert], (PLAIN, "inverted"))


def writers_by_attributes(seed: int, count: int) -> ImageClients:
    """One of 2^count combinations of transforms for each writer.

    The attributes are the first ``count`` of these:

    1. rotated: by 90 degrees, anticlockwise;
    2. inverted: 1 - x;
    3. mirrored: left and right exchanged;
    4. shifted: by three pixels to the right and down; what leaves the image is lost;
    5. thickened: each pixel is the largest of its 3 × 3 neighbourhood.

    They are applied from the last to the first, so that strokes are thickened and never their background.

    Parameters
    ----------
    seed : int
        Draws the combination of every writer, each for equally many.
    count : int
        The number of attributes, from 1 to 5.

    Returns
    -------
    ImageClients
        Domain d has attribute k where bit k of d is one; ``attributes`` has these bits.
    """
    check_value("count", "writers_by_attributes", count, Annotated[int, Between(1, len(_ATTRIBUTES))])
    bits = np.arange(2**count)[:, None] >> np.arange(count) & 1
    named = [[name for name, has in zip(_ATTRIBUTES, line, strict=False) if has] for line in bits]
    transforms = [partial(_in_turn, [_ATTRIBUTES[name] for name in reversed(names)]) for names in named]
    rng, written = generator_of(seed, "writers_by_attributes"), read_written()
    domain = _dealt(written.held_out, _as_shares(None, 2**count), rng)[written.client]
    return _in_domains(written, domain, transforms, tuple(" + ".join(names) or PLAIN for names in named), bits)


def mixed_rotations(seed: int) -> ImageClients:
    """Each writer's images turned by one of two angles, drawn for the writer; half of the images by either.

    The domain is that of a row here: a client has two of the four.
    """
    rng, written = generator_of(seed, "mixed_rotations"), read_written()
    pairs = rng.permuted(np.tile(np.arange(4), (len(written.held_out), 1)), axis=1)[:, :2]
    order = np.lexsort((rng.random(len(written.y)), written.client))
    second = np.empty(len(order), dtype=np.int64)
    second[order] = np.arange(len(order)) % 2  # the rows of a client follow each other in this order, too
    return _in_domains(written, pairs[written.client, second], _ROTATIONS, _ANGLES)


def with_few_classes(clients: ImageClients, classes: int = 3, seed: int = 0) -> ImageClients:
    """The same clients, of which each training client keeps only the rows of a few classes, drawn from its own.

    Parameters
    ----------
    clients : ImageClients
        Any clients; those held out keep all rows.
    classes : int
        How many classes a training client keeps, all of them if it has fewer.
    seed : int
        Draws the classes of every client.

    Returns
    -------
    ImageClients
        As many clients with fewer rows.
    """
    check_value("classes", "with_few_classes", classes, Annotated[int, AtLeast(1)])
    rng = generator_of(seed, "with_few_classes")
    present = np.zeros((len(clients.held_out), int(clients.y.max()) + 1), dtype=bool)
    trained = ~clients.tested
    present[clients.client[trained], clients.y[trained]] = True
    place = np.argsort(np.argsort(np.where(present, rng.random(present.shape), 2.0), axis=1), axis=1)
    kept = (present & (place < classes)) | clients.held_out[:, None]
    return clients.keep(kept[clients.client, clients.y])


def _as_shares(shares: Sequence[float] | None, domains: int) -> Floats:
    if shares is None:
        return np.full(domains, 1 / domains)
    given = as_floats(shares, "the shares of domains", 1)
    if len(given) != domains or (given <= 0).any() or abs(given.sum() - 1) > 1e-9:
        raise InputError(f"Expected {domains} positive shares of domains with sum 1, got {list(shares)}.")
    return given


def _dealt(held_out: Bools, shares: Floats, rng: np.random.Generator) -> Ints:
    """A domain for every client at random; each has its share of training and of held-out clients, up to rounding."""
    out = np.empty(len(held_out), dtype=np.int64)
    for part in (~held_out, held_out):
        places = (rng.permutation(int(part.sum())) + 0.5) / max(part.sum(), 1)
        out[part] = np.searchsorted(np.cumsum(shares)[:-1], places)
    return out


def _in_domains(
    written: Written,
    domain: Ints,
    transforms: Sequence[Transform],
    names: tuple[str, ...],
    attributes: Ints | None = None,
) -> ImageClients:
    """The images of each domain transformed; those of ``written`` are used up."""
    for number, transform in enumerate(transforms):
        if transform is not _same:
            rows = domain == number
            written.images[rows] = transform(written.images[rows])
    pixels, held_out = as_pixels(written.images), written.held_out
    return ImageClients(pixels, written.y, written.client, domain, held_out, SHAPE, names, attributes)


def _same(images: Bytes) -> Bytes:
    return images


def _in_turn(transforms: Sequence[Transform], images: Bytes) -> Bytes:
    return reduce(lambda changed, transform: transform(changed), transforms, images)


def _shifted(images: Bytes) -> Bytes:
    out = np.zeros_like(images)
    out[:, SHIFT:, SHIFT:] = images[:, :-SHIFT, :-SHIFT]
    return out


def _thickened(images: Bytes) -> Bytes:
    out: Bytes = ndimage.grey_dilation(images, size=(1, 3, 3))
    return out


def _mirrored(images: Bytes) -> Bytes:
    return images[:, :, ::-1]


def _rotated(images: Bytes, quarters: int = 1) -> Bytes:
    return np.rot90(images, quarters, axes=(1, 2))


_ANGLES = ("0°", "90°", "180°", "270°")
_ROTATIONS: list[Transform] = [_same, *(partial(_rotated, quarters=k) for k in (1, 2, 3))]
_ATTRIBUTES: dict[str, Transform] = {
    "rotated": _rotated, "inverted": np.invert, "mirrored": _mirrored, "shifted": _shifted, "thickened": _thickened,
}  # fmt: skip
