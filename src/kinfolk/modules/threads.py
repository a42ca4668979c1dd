"""Nodes in threads: each is computed by one thread of torch, so that results do not depend on how many there are."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import torch


def in_threads(work: Callable[[int], Any], count: int) -> list[Any]:
    """``work(k)`` for k = 0, 1, ..., in as many threads as torch uses.

    >>> in_threads(lambda k: k**2, 3)
    [0, 1, 4]
    """
    workers = torch.get_num_threads()
    if workers == 1 or count == 1:
        return [_alone(work, k) for k in range(count)]
    return list(_pool(workers).map(work, range(count)))


def _alone(work: Callable[[int], Any], k: int) -> Any:
    """The same in this thread, with one thread of torch."""
    before = torch.get_num_threads()
    if before == 1:
        return work(k)
    torch.set_num_threads(1)
    try:
        return work(k)
    finally:
        torch.set_num_threads(before)


@cache
def _pool(workers: int) -> ThreadPoolExecutor:
    """One pool for the process: every thread keeps copies of the modules that it calls."""
    pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))
    begun = threading.Barrier(workers)
    list(pool.map(lambda _: begun.wait(), range(workers)))
    torch.set_num_threads(workers)  # what a thread sets is the default of threads that begin later
    return pool


os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not live on in a child
