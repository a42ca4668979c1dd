"""The models of all nodes, of three kinds, and which of them every node ended with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kinfolk.tables.candidates import say
from kinfolk.tables.target import Target
from kinfolk.typing import Floats, Ints


@dataclass(frozen=True, eq=False)
class NodeModels:
    """Tailored, alone and pooled models, and what each node takes."""

    target: Target
    kinds: dict[str, Any]  # by kind: what predicts rows of nodes
    taken: Any  # (nodes,) one of ``KINDS``

    def say(self, which: str, X: Floats, owner: Ints) -> Floats:
        """What one kind of models says of encoded rows; ``"final"``: what each node ended with.

        Numbers (rows,), or probabilities (rows, classes). Where a node has no such model, the pooled one speaks.
        """
        taken = self.taken[owner] if which == "final" else np.full(len(owner), which)
        out = say(self.kinds["pooled"], self.target, X, owner)
        for kind, models in self.kinds.items():
            rows = taken == kind
            if kind != "pooled" and rows.any():
                said = say(models, self.target, X[rows], owner[rows])
                out[rows] = np.where(np.isnan(said), out[rows], said)
        return out
