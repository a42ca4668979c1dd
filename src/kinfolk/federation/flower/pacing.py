"""How long to wait before asking again: soon at first, less often the longer it takes."""

from __future__ import annotations

import time

LEAST, MOST, SHARE = 0.2, 2.0, 0.1  # seconds, and the part of the time that may be lost by waiting


def pause(since: float) -> float:
    """Seconds to wait, if it has been waited since a time of ``time.monotonic()``.

    >>> pause(time.monotonic()), round(pause(time.monotonic() - 10), 2), pause(time.monotonic() - 3600)
    (0.2, 1.0, 2.0)
    """
    return min(MOST, max(LEAST, SHARE * (time.monotonic() - since)))
