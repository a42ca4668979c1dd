"""Rows of a table as learning sees them."""

from __future__ import annotations

from typing import Any, NamedTuple

from kinfolk.typing import Floats, Ints


class Rows(NamedTuple):
    """Rows as learning sees them."""

    X: Floats  # (rows, features)
    y: Floats  # (rows,)
    owner: Ints  # (rows,) number of the node
    place: Floats | None = None  # (rows, 2) where each row is, latitude first

    def take(self, which: Any) -> Rows:
        """Some of them, by a mask or by number."""
        return Rows(self.X[which], self.y[which], self.owner[which], None if self.place is None else self.place[which])
