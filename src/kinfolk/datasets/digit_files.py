"""Files of handwritten digits: the writers of MNIST, USPS, Semeion and MNIST-M; they do not come with the package."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kinfolk.checks import InputError
from kinfolk.datasets.folder import find_file, read_arrays
from kinfolk.datasets.image_clients import Pixels
from kinfolk.datasets.mnist import load_mnist
from kinfolk.typing import Bools, Ints

Bytes = NDArray[np.uint8]
SHAPE = (1, 28, 28)
WRITERS = "mnist_writers"  # subfolders
DOMAINS = "digit_domains"


class Written(NamedTuple):
    """The images of MNIST by writer: those of a training writer first, and of a test writer after them."""

    images: Bytes  # (70000, 28, 28)
    y: Ints  # (70000,)
    client: Ints  # (70000,) ascending
    held_out: Bools  # (clients,) the test writers
    test_y: Ints  # (10000,) of the test images, in the order of MNIST
    test_client: Ints  # (10000,)


class Labelled(NamedTuple):
    """Images of one source with the digits that they show."""

    images: Bytes  # (rows, height, width)
    y: Ints  # (rows,)


def read_written() -> Written:
    """MNIST with the writer of every image (QMNIST has them), sorted by writer."""
    path = find_file(WRITERS, "writers.npz")
    known = read_arrays(path, ("writer_train", "writer_test"))
    digits = load_mnist()
    for labels, writer in zip((digits.y_train, digits.y_test), known, strict=True):
        if writer.shape != labels.shape:
            raise InputError(
                f"Expected a writer for each of {len(labels)} images of MNIST in {path}, got shape {writer.shape}."
            )
    if np.intersect1d(*known).size:
        raise InputError(f"Expected other writers of test images than of training images in {path}, got common ones.")
    (trained, training), (tested, testing) = (np.unique(writer, return_inverse=True) for writer in known)
    client = np.concatenate([training, testing + len(trained)]).astype(np.int64)
    order = np.argsort(client, kind="stable")
    y = np.concatenate([digits.y_train, digits.y_test]).astype(np.int64)
    return Written(
        np.concatenate([digits.x_train, digits.x_test])[order],
        y[order],
        client[order],
        np.arange(len(trained) + len(tested)) >= len(trained),
        y[len(training) :],
        client[len(training) :],
    )


def read_usps() -> Labelled:
    """USPS (7,291 + 2,007 images of 16 × 16), training and test images together."""
    path = find_file(DOMAINS, "usps.npz")
    x_train, x_test, y_train, y_test = read_arrays(path, ("x_train", "x_test", "y_train", "y_test"))
    images = np.concatenate([_checked(x_train, y_train, 16, path), _checked(x_test, y_test, 16, path)])
    return Labelled(images, np.concatenate([y_train, y_test]).astype(np.int64))


def read_semeion() -> Labelled:
    """Semeion (1,593 images of 16 × 16, black or white), stored as bits."""
    path = find_file(DOMAINS, "semeion.npz")
    packed, y = read_arrays(path, ("x", "y"))
    if packed.shape != (len(y), 32) or packed.dtype != np.uint8:
        raise InputError(f"Expected 32 bytes for each of {len(y)} images in {path}, got shape {packed.shape}.")
    images = 255 * np.unpackbits(packed, axis=1).reshape(-1, 16, 16)
    return Labelled(_checked(images, y, 16, path), y.astype(np.int64))


def read_mnist_m() -> Labelled:
    """The test images of MNIST-M (9,001 of 28 × 28, grey): image i is test image i of MNIST on a photograph."""
    path = find_file(DOMAINS, "mnist_m_test_gray.npz")
    images, y = read_arrays(path, ("x", "y"))
    return Labelled(_checked(images, y, 28, path), y.astype(np.int64))


def as_pixels(images: Bytes) -> Pixels:
    """Bytes of grey images as rows of numbers from 0 to 1.

    >>> as_pixels(np.array([[[0, 255], [51, 0]]], dtype=np.uint8))
    array([[0. , 1. , 0.2, 0. ]], dtype=float32)
    """
    out: Pixels = images.reshape(len(images), -1).astype(np.float32)
    out /= 255
    return out


def _checked(images: Any, y: Any, side: int, path: Any) -> Bytes:
    """Refuse what is no square images with a digit each."""
    if images.shape != (len(y), side, side) or images.dtype != np.uint8 or not np.isin(y, np.arange(10)).all():
        raise InputError(
            f"Expected bytes of images of {side} × {side} pixels with a digit each in {path}, got shape "
            f"{images.shape} of {images.dtype} for {len(y)} labels."
        )
    out: Bytes = images
    return out
