"""Computations of torch side by side, each on a thread of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import TypeVar

import torch

Task = TypeVar("Task")
Done = TypeVar("Done")


def side_by_side(work: Callable[[Task, int], Done], tasks: Sequence[Task], threads: int) -> list[Done]:
    """``work(task, place)`` for every task; two that run at the same time have different places < ``threads``.

    Where several run at the same time, they share the threads: with as many tasks as threads or more torch computes
    each on one, so results are those of one thread. How many torch takes is a property of each thread in OpenMP; left
    at the default, all of them would take all processors.

    >>> side_by_side(lambda task, place: task * torch.get_num_threads(), [3, 4, 5], 2)
    [3, 4, 5]
    """
    count = min(threads, len(tasks))
    if count <= 1:
        return [work(task, 0) for task in tasks]
    before, free = torch.get_num_threads(), SimpleQueue[int]()
    for place in range(count):
        free.put(place)

    def placed(task: Task) -> Done:
        place = free.get()
        try:
            return work(task, place)
        finally:
            free.put(place)

    try:
        with ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(threads // count,)) as pool:
            return list(pool.map(placed, tasks))
    finally:
        torch.set_num_threads(before)  # threads to come begin with the number that was set last
