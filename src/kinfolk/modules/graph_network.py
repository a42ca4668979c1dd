"""The graph network of FedCG over the parameters V of domains, whose settings are a ``DomainGraph``.

Caldarola and others (2021), eq (5), with a row of V for every domain, A their adjacency and W learnt:

    V̂ = σ(A V W)                                                                                                  (5)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from kinfolk.modules.domain_graph import DomainGraph


class GraphNetwork(nn.Module):  # type: ignore[misc]  # torch is not read by mypy
    """V̂ from V (domains, filters, parameters), (5) once or twice."""

    def __init__(self, settings: DomainGraph, filters: int, size: int) -> None:
        super().__init__()
        self.settings = settings
        width = size if settings.shared else filters * size
        self.projections = nn.ModuleList(_Projection(settings, width) for _ in range(settings.layers))

    def forward(self, V: Any, adjacency: Any, rows: Any = None) -> Any:
        """V̂, or its rows chosen by the matrix ``rows`` with a single one in each."""
        shape = V.shape[1:]
        if not self.settings.shared:
            V = V.reshape(len(V), 1, -1)
        last = adjacency if rows is None else rows @ adjacency
        for k, projection in enumerate(self.projections, start=1):
            V = projection(torch.tensordot(last if k == len(self.projections) else adjacency, V, dims=1))
            V = torch.relu(V) if self.settings.relu else V
        return V.reshape(-1, *shape)


class _Projection(nn.Module):  # type: ignore[misc]  # torch is not read by mypy
    """V W along the last axis."""

    def __init__(self, settings: DomainGraph, width: int) -> None:
        super().__init__()
        thin = max(1, width // settings.factor)
        self.whole = nn.Parameter(torch.eye(width)) if settings.projection == "full" else None
        self.down = self.up = None
        self.residual = settings.residual or settings.projection == "none"
        if settings.projection == "bottleneck":
            self.down = nn.Parameter(torch.randn(width, thin) / width**0.5)
            self.up = nn.Parameter(torch.zeros(thin, width) if self.residual else torch.randn(thin, width) / thin**0.5)

    def forward(self, V: Any) -> Any:
        """V W."""
        if self.whole is not None:
            return V @ self.whole
        if self.down is None:
            return V
        return V + V @ self.down @ self.up if self.residual else V @ self.down @ self.up
