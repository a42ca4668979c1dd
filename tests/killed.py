"""Runs every shipped algorithm with a checkpoint in every round, and kills each run without warning.

Called as ``python killed.py FOLDER``: a subfolder for every algorithm. Each run is a process of its own that ends by
SIGKILL: in a round, while a checkpoint is written, before it takes its place, or just after.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from kinfolk import fit
from kinfolk.engine import checkpoint
from kinfolk.engine.files import DRAFT
from shipped import SHIPPED, options

MOMENTS = ("in a round", "half a draft", "before it takes its place", "just after")
LAST = 5  # the round in which a run is killed


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def prepare(moment: str) -> list[Any]:
    """Arrange for a run to be killed at some moment; the callbacks for it."""
    if moment == "in a round":
        return [lambda row, snapshot: die() if row["round"] == LAST else None]
    written, write_whole = [0], checkpoint.write_whole

    def written_until(file: Path, content: bytes, *, forced: bool) -> None:
        written[0] += 1
        if written[0] < LAST or moment == "just after":
            write_whole(file, content, forced=forced)
        if written[0] == LAST:
            if moment != "just after":
                part = content[: len(content) // 2] if moment == "half a draft" else content
                file.with_name(file.name + DRAFT).write_bytes(part)
            die()

    checkpoint.write_whole = written_until
    return []


def main(folder: Path) -> None:
    for k, (name, (network, algorithm)) in enumerate(SHIPPED.items()):
        child = os.fork()
        if child == 0:
            callbacks = prepare(MOMENTS[k % len(MOMENTS)])
            kept = {"callbacks": callbacks, "checkpoint": folder / name, "checkpoint_every": 1}
            fit(network(), algorithm(), **options(name), **kept)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(name, MOMENTS[k % len(MOMENTS)], os.waitstatus_to_exitcode(status), sep="\t")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
