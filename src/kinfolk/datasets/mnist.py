"""MNIST: images of handwritten digits, from the user's disk or from OpenML; they do not come with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kinfolk.checks import InputError
from kinfolk.datasets.folder import FOLDER_VARIABLE, data_folder, find_file, read_arrays

FILE = "mnist.npz"
TRAINING_IMAGES = 60_000  # the first rows at OpenML


class Digits(NamedTuple):
    """Greyscale images of 28 × 28 pixels with the digits that they show, for training and for testing."""

    x_train: Any  # (60000, 28, 28) uint8
    y_train: Any  # (60000,)
    x_test: Any  # (10000, 28, 28) uint8
    y_test: Any  # (10000,)


def load_mnist(folder: str | Path | None = None) -> Digits:
    """The digits of LeCun, Cortes and Burges.

    ``mnist.npz`` (arrays x_train, y_train, x_test, y_test) is looked for in ``folder``, else in that of ``looking_in``
    or of the environment variable KINFOLK_DATA, and in the subfolder ``mnist`` of it; where none is named,
    scikit-learn fetches OpenML's copy.
    """
    named = data_folder() if folder is None else Path(folder)
    return _from_openml() if named is None else _from_file(named)


def _from_file(folder: Path) -> Digits:
    path = find_file("mnist", FILE, folder)
    return _checked(Digits(*read_arrays(path, Digits._fields)), str(path))


def _from_openml() -> Digits:
    from sklearn.datasets import fetch_openml

    try:
        pixels, labels = fetch_openml("mnist_784", version=1, return_X_y=True, as_frame=False, parser="liac-arff")
    except OSError as error:
        raise InputError(
            f"Expected MNIST on this machine or at OpenML, reached neither ({error}): put {FILE} into a folder "
            f"and name it: --data at the command line, load_mnist(folder), or the variable {FOLDER_VARIABLE}."
        ) from error
    images, labels = pixels.reshape(-1, 28, 28).astype(np.uint8), labels.astype(np.uint8)
    first, last = slice(None, TRAINING_IMAGES), slice(TRAINING_IMAGES, None)
    return _checked(Digits(images[first], labels[first], images[last], labels[last]), "OpenML")


def _checked(digits: Digits, source: str) -> Digits:
    """Refuse arrays that are no images with a digit each."""
    for images, labels in ((digits.x_train, digits.y_train), (digits.x_test, digits.y_test)):
        if images.shape != (len(labels), 28, 28) or not np.isin(labels, np.arange(10)).all():
            raise InputError(
                f"Expected images of 28 × 28 pixels with a digit each, got shape {images.shape} for "
                f"{len(labels)} labels from {source}."
            )
    return digits
