"""Images in the format of the LEAF benchmark (Caldas et al. 2018), as its scripts write FEMNIST and CelebA.

A folder has ``train/*.json`` and ``test/*.json``. Each file names its ``users``, the ``num_samples`` of each, and
``user_data``: for every user ``x`` (a list of flat images, or of names of image files) and ``y`` (the classes).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kinfolk.checks import InputError, first_line
from kinfolk.datasets.image_clients import UNKNOWN, ImageClients, Pixels
from kinfolk.typing import Ints

CELEBA = (3, 84, 84)  # LEAF's size of the images that it has as files
Shape = tuple[int, int, int]


class User(NamedTuple):
    """The rows of a user in one part of the split."""

    X: Pixels  # (rows, C · H · W)
    y: Ints  # (rows,)


def load_leaf(folder: str | Path, *, shape: Shape | None = None, images: str | Path | None = None) -> ImageClients:
    """The clients of a LEAF data set of images, with LEAF's own split.

    Users that are in the test files only are held out (LEAF's split by user). Users that are in both parts (split by
    sample) are training clients whose test rows are marked in ``test_rows``; they are the test data of ``network()``.
    Clients are numbered in the order of files and users, those that train first. Their domains are unknown.

    Parameters
    ----------
    folder : str or Path
        The folder that has ``train`` and ``test``, such as LEAF's ``data/femnist/data``.
    shape : tuple of int, optional
        (C, H, W) of an image. Where rows are numbers, the default is a square grey image; numbers are in this order
        and in [0, 1]. Where rows are names of files, images are brought to this shape, (3, 84, 84) by default as in
        LEAF, with C = 3 for colours or 1 for grey.
    images : str or Path, optional
        The folder of the image files, where rows are their names; it needs Pillow.

    Returns
    -------
    ImageClients
        All users with their rows.

    >>> import tempfile
    >>> part = {"users": ["ada"], "num_samples": [1], "user_data": {"ada": {"x": [[0.0, 0.5, 1.0, 0.0]], "y": [7]}}}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name, user in (("train", "ada"), ("test", "bob")):
    ...         (Path(folder) / name).mkdir()
    ...         written = (Path(folder) / name / "data.json").write_text(json.dumps(part).replace("ada", user))
    ...     load_leaf(folder)
    ImageClients(1 training client with 1 row, 1 held-out client with 1 row, images of 1 × 2 × 2, 0 domains)
    """
    read = _flat_rows if images is None else partial(_images_of_files, Path(images), _as_shape(shape or CELEBA))
    train, test = (_read_part(Path(folder), name, read) for name in ("train", "test"))
    widths = {user.X.shape[1] for part in (train, test) for user in part.values()}
    if len(widths) > 1:
        raise InputError(f"Expected images of one size, got rows with {' and '.join(map(str, sorted(widths)))} pixels.")
    found = _square(widths.pop()) if shape is None and images is None else _as_shape(shape or CELEBA)
    return _joined(train, test, found)


def _joined(train: dict[str, User], test: dict[str, User], shape: Shape) -> ImageClients:
    """Training users with their rows and then their test rows; after them, the users that are only tested."""
    names = [*train, *(name for name in test if name not in train)]
    blocks = [(k, part is test, part[name]) for k, name in enumerate(names) for part in (train, test) if name in part]
    sizes = [len(user.y) for _, _, user in blocks]
    held_out = np.arange(len(names)) >= len(train)
    client = np.repeat(np.array([k for k, _, _ in blocks]), sizes)
    tested = np.repeat([tested for _, tested, _ in blocks], sizes) & ~held_out[client]
    return ImageClients(
        np.concatenate([user.X for _, _, user in blocks]),
        np.concatenate([user.y for _, _, user in blocks]),
        client,
        np.full(len(client), UNKNOWN),
        held_out,
        shape,
        (),
        test_rows=tested if tested.any() else None,
    )


def _read_part(folder: Path, name: str, read: Callable[[Any, str], Pixels]) -> dict[str, User]:
    """The users of all files of ``train`` or ``test``, in order."""
    paths = sorted((folder / name).glob("*.json"))
    if not paths:
        raise InputError(
            f"Expected files train/*.json and test/*.json in {folder}, found none in {name}: name the data folder that "
            "LEAF's preprocess.sh has written with -t user or -t sample."
        )
    users: dict[str, User] = {}
    for path in paths:
        for user, rows in _users_of(path, read):
            if user in users:
                raise InputError(f"Expected each user in one file of {folder / name}, got {user!r} again in {path}.")
            users[user] = rows
    if not users:
        raise InputError(f"Expected one user at least in {folder / name}, got none.")
    return users


def _users_of(path: Path, read: Callable[[Any, str], Pixels]) -> Iterator[tuple[str, User]]:
    """The users that a file names; what else is in ``user_data`` LEAF has left out of the split."""
    names, counts, data = _content(path)
    for name, count in zip(names, counts, strict=True):
        where = f"user {name!r} in {path}"
        rows = data.get(name)
        if not isinstance(rows, dict) or not all(isinstance(rows.get(key), list) for key in ("x", "y")):
            raise InputError(f"Expected lists x and y for {where}, got none.")
        if not len(rows["x"]) == len(rows["y"]) == count:
            raise InputError(
                f"Expected num_samples = {count!r} rows of {where}, got {len(rows['x'])} images and {len(rows['y'])} "
                "labels: write the file anew."
            )
        if count == 0:
            raise InputError(f"Expected rows of {where}, got none: leave out users without rows.")
        yield name, User(read(rows["x"], where), _labels(rows["y"], where))


def _content(path: Path) -> tuple[list[str], list[Any], dict[str, Any]]:
    """Users, numbers of samples, and data of the users of a file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"Expected JSON in {path}, got: {first_line(error)}.") from error
    kinds = {"users": list, "num_samples": list, "user_data": dict}
    if not isinstance(content, dict) or not all(isinstance(content.get(key), kind) for key, kind in kinds.items()):
        raise InputError(f"Expected the lists users and num_samples and the object user_data in {path}.")
    users, counts = [str(user) for user in content["users"]], content["num_samples"]
    if len(users) != len(counts):
        raise InputError(f"Expected num_samples for each of {len(users)} users in {path}, got {len(counts)}.")
    return users, counts, content["user_data"]


def _labels(values: list[Any], where: str) -> Ints:
    try:
        labels = np.array(values)
    except ValueError:
        labels = np.array(values, dtype=object)
    if labels.ndim != 1 or labels.dtype.kind not in "iuf" or not _whole(labels):
        raise InputError(f"Expected whole numbers ≥ 0 as labels of {where}, got others: number the classes.")
    return labels.astype(np.int64)


def _whole(labels: Any) -> bool:
    return bool(((labels >= 0) & (labels < 2**31) & (labels == np.floor(labels))).all())


def _flat_rows(values: list[Any], where: str) -> Pixels:
    """Rows of numbers as they are."""
    if any(isinstance(value, str) for value in values):
        raise InputError(f"Expected images as numbers for {where}, got names of files: give their folder, images=...")
    try:
        rows = np.array(values, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise InputError(f"Expected images of one size as numbers for {where}, got others.") from error
    if rows.ndim != 2:
        raise InputError(f"Expected a flat list of pixels for each image of {where}, got shape {rows.shape[1:]}.")
    return rows


def _images_of_files(folder: Path, shape: Shape, names: list[Any], where: str) -> Pixels:
    """Images of files, brought to one shape."""
    if shape[0] not in (1, 3):
        raise InputError(f"Expected 3 channels of colour or 1 of grey for images of files, got shape={shape}.")
    try:
        from PIL import Image
    except ImportError as error:
        raise InputError("Expected Pillow for images in files, it is not installed: pip install pillow.") from error
    rows = np.empty((len(names), *shape), dtype=np.float32)
    for row, name in zip(rows, names, strict=True):
        if not isinstance(name, str) or Path(name).name != name:
            raise InputError(f"Expected names of files in {folder} as images of {where}, got {name!r}.")
        try:
            with Image.open(folder / name) as image:
                pixels = image.convert("RGB" if shape[0] == 3 else "L").resize((shape[2], shape[1]))
        except OSError as error:
            raise InputError(f"Expected an image in {folder / name} for {where}, got: {first_line(error)}.") from error
        row[:] = np.moveaxis(np.asarray(pixels).reshape(shape[1], shape[2], shape[0]), -1, 0)
    rows /= 255
    return rows.reshape(len(names), -1)


def _square(width: int) -> Shape:
    side = math.isqrt(width)
    if side * side != width:
        raise InputError(f"Expected square grey images, got rows of {width} pixels: give shape=(C, H, W).")
    return 1, side, side


def _as_shape(shape: Any) -> Shape:
    if not (isinstance(shape, tuple) and len(shape) == 3 and all(isinstance(n, int) and n > 0 for n in shape)):
        raise InputError(f"Expected the shape of an image as (C, H, W), got {shape!r}.")
    return shape
