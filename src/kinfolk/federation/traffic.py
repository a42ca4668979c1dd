"""What the coordinator sees of the messages of every site: names, shapes, bytes; of sealed letters only their size."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from kinfolk.engine.protocol import Messages

COORDINATOR = "coordinator"
SEALED = "sealed letter"


@dataclass
class Flow:
    """What one site has sent to somebody under one name."""

    to: str
    what: str
    shape: tuple[int, ...] = ()  # of the last one; of a letter nobody knows
    messages: int = 0
    bytes: int = 0


class Traffic:
    """Adds up what every site has sent.

    >>> import numpy as np
    >>> traffic = Traffic()
    >>> nothing = np.empty(0, dtype=np.int64)
    >>> traffic.add("north", Messages({1: np.zeros(90, dtype=np.uint8)}, {}, nothing, {}, 24), {1: "south"})
    >>> traffic.as_rows()["north"]
    [{'to': 'south', 'what': 'sealed letter', 'shape': (), 'messages': 1, 'bytes': 90}]
    """

    def __init__(self) -> None:
        self._flows: dict[str, dict[tuple[str, str], Flow]] = {}

    def add(self, site: str, messages: Messages, names: Any) -> None:
        """Count an answer; ``names`` of the sites by their numbers."""
        for what, values in (*messages.coordinator.items(), *messages.scalars.items()):
            self._count(site, COORDINATOR, what, values.nbytes, values.shape)
        for other, letter in messages.neighbours.items():
            self._count(site, names[other], SEALED, len(letter), ())

    def _count(self, site: str, to: str, what: str, size: int, shape: tuple[int, ...]) -> None:
        flow = self._flows.setdefault(site, {}).setdefault((to, what), Flow(to, what))
        flow.shape, flow.messages, flow.bytes = shape, flow.messages + 1, flow.bytes + size

    def as_rows(self) -> dict[str, list[dict[str, Any]]]:
        """For every site a row for each receiver and name."""
        return {site: [asdict(flow) for flow in flows.values()] for site, flows in self._flows.items()}
