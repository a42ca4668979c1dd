"""Reviews of 16 kinds of things (Liu, Qiu, Huang, 2017), from the user's disk; they do not come with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas

from kinfolk.checks import InputError, first_line
from kinfolk.datasets.folder import find_file
from kinfolk.typing import Floats

FOLDER, FILE, VECTORS = "fdu_mtl_reviews", "reviews.csv.gz", "vectors.txt"
COLUMNS = ["domain", "split", "label", "text"]


def load_reviews(folder: str | Path | None = None) -> pandas.DataFrame:
    """The reviews: domain, split ("train" or "test"), label, text, and whether a test text is a training text, too.

    ``reviews.csv.gz`` is looked for in ``folder``, else in that of ``looking_in`` or of the environment variable
    KINFOLK_DATA, and in the subfolder ``fdu_mtl_reviews`` of it.

    Returns
    -------
    pandas.DataFrame
        One row per review with a word in it; ``repeated`` marks test texts that are training texts of any domain.
    """
    path = find_file(FOLDER, FILE, folder)
    try:
        frame = pandas.read_csv(path, dtype={"text": str}, keep_default_na=False)
    except (OSError, ValueError) as error:
        raise InputError(f"Expected a table of reviews in {path}, got: {first_line(error)}.") from error
    if list(frame.columns) != COLUMNS:
        raise InputError(f"Expected the columns {', '.join(COLUMNS)} in {FILE}, got {', '.join(frame.columns)}.")
    frame = frame[frame["text"].str.strip() != ""].reset_index(drop=True)
    known = set(frame.loc[frame["split"] == "train", "text"])
    return frame.assign(repeated=(frame["split"] == "test") & frame["text"].isin(known))


def load_vectors(words: list[str], folder: str | Path | None = None) -> Floats | None:
    """Vectors of words from ``vectors.txt`` (a word and its numbers on every line), zero where one is not in it.

    None if there is no such file beside the reviews.
    """
    try:
        path = find_file(FOLDER, VECTORS, folder)
    except InputError:
        return None
    number = {word: k for k, word in enumerate(words)}
    found: dict[int, Any] = {}
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            word, *values = line.rstrip().split(" ")
            if word in number:
                found[number[word]] = _as_numbers(values, path)
    widths = {len(values) for values in found.values()}
    if len(widths) != 1:
        got = "none of the words" if not widths else f"{len(widths)} different numbers of entries"
        raise InputError(f"Expected vectors of one length for some of the words in {path}, got {got}.")
    out = np.zeros((len(words), widths.pop()))
    for k, values in found.items():
        out[k] = values
    return out


def _as_numbers(values: list[str], path: Path) -> Floats:
    try:
        return np.array(values, dtype=np.float64)
    except ValueError as error:
        raise InputError(f"Expected a word and numbers on every line of {path}, got {values[0]!r}.") from error
