"""Compiled loops over the windows of images."""

from __future__ import annotations

import numpy as np
from numba import njit

from kinfolk.typing import Floats


@njit(cache=True)
def add_windows(windows: Floats, down: int, along: int, height: int, width: int) -> Floats:
    """Images (images, height, width), each the sum of its windows (images, rows, columns, lines, numbers).

    The windows start every ``down`` lines and every ``along`` numbers of a line.
    """
    count, rows, columns, lines, numbers = windows.shape
    out = np.zeros((count, height, width), dtype=windows.dtype)
    for image in range(count):
        for row in range(rows):
            for column in range(columns):
                for line in range(lines):
                    window = windows[image, row, column, line]
                    part = out[image, row * down + line, column * along : column * along + numbers]
                    for k in range(numbers):
                        part[k] += window[k]
    return out
