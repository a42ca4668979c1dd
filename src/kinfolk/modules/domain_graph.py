"""How the branches of domains are joined: the settings of the graph network of FedCG, without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from kinfolk.checks import AtLeast


@dataclass(frozen=True)
class DomainGraph:
    """V̂ = σ(A V W): the graph network over the parameters of domains, eq (5).

    Parameters
    ----------
    projection : {"bottleneck", "full", "none"}
        W: a product of two thin matrices, a square one that starts at the identity, or none.
    shared : bool
        Whether one W serves every filter (row of outputs) of a layer, or a large one all its q parameters together.
    factor : int
        How many times thinner a bottleneck is than what it projects.
    residual : bool
        Whether a bottleneck is added to the identity, and starts at zero. False: W is the bottleneck alone, drawn at
        random, as the paper may be read; the branches then start near zero and often stay there.
    layers : {1, 2}
        How often (5) is applied, each time with a W of its own.
    relu : bool
        Whether σ is the ReLU; otherwise it is the identity.
    """

    projection: Literal["full", "bottleneck", "none"] = "bottleneck"
    shared: bool = True
    factor: Annotated[int, AtLeast(1)] = 16
    residual: bool = True
    layers: Literal[1, 2] = 1
    relu: bool = False

    def entries(self, filters: int, size: int) -> int:
        """Number of entries of W for a layer whose filters have ``size`` parameters each.

        >>> DomainGraph("full").entries(64, 801), DomainGraph("bottleneck", shared=False).entries(64, 801)
        (641601, 328499712)
        """
        width = size if self.shared else filters * size
        if self.projection == "none":
            return 0
        thin = width if self.projection == "full" else 2 * max(1, width // self.factor)
        return self.layers * width * thin
