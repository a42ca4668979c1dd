"""A network with a branch for every domain in some of its layers, as one vector: parameters, statistics and A."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from kinfolk.modules import layer
from kinfolk.objective.torch_loss import TorchLoss
from kinfolk.typing import Floats

if TYPE_CHECKING:
    from kinfolk.modules.flat import FlatModule


@dataclass(frozen=True, eq=False)
class BranchedNetwork:
    """Where branches and A stand in the vector of such a network, and how it is scored.

    ``joined`` has the graph network over its branches; ``plain`` has none: it takes a vector into which V̂ is worked in.
    """

    joined: TorchLoss
    plain: TorchLoss
    domains: int
    features: int  # that the network takes

    @classmethod
    def of(
        cls, loss: TorchLoss, paths: list[str], domains: int, features: int, *, graph: Any, **options: Any
    ) -> BranchedNetwork:
        """The network of a loss with branches in the layers of these paths; options as in ``with_domains``."""
        module, with_domains = loss.flat(features).template, layer("domains", "FedCG").with_domains
        joined, plain = (
            replace(loss, module=with_domains(module, paths, domains, graph=each, **options), side=domains)
            for each in (graph, None)
        )
        return cls(joined, plain, domains, features)

    @property
    def flat(self) -> FlatModule:
        """The module whose vector it is."""
        return self.joined.flat(self.features)

    def adjacency(self, w: Floats) -> Floats:
        """A, (domains, domains)."""
        where, shape = self.flat.part("adjacency")
        return w[where].reshape(shape)

    def with_adjacency(self, w: Floats, adjacency: Floats) -> Floats:
        """The vector with A in its place."""
        out = w.copy()
        out[self.flat.part("adjacency")[0]] = adjacency.ravel()
        return out

    def branches(self, w: Floats) -> Floats:
        """V, (domains, numbers): the parameters of all branches of a domain."""
        parts = [w[where].reshape(self.domains, -1) for where in self._places]
        return np.concatenate(parts, axis=1)

    def with_members_means(self, w: Floats, each: Floats, members: Floats, before: Floats) -> Floats:
        """The vector with every branch averaged over ``each`` (clients, size), by their rows ``members`` in its domain.

        A branch without members is that of ``before``.
        """
        out, total = w.copy(), members.sum(axis=0)[:, None]
        for where in self._places:
            parts = each[:, where].reshape(len(each), self.domains, -1)
            mean = np.einsum("kd,kdp->dp", members, parts) / np.where(total > 0, total, 1.0)
            out[where] = np.where(total > 0, mean, before[where].reshape(self.domains, -1)).ravel()
        return out

    @property
    def _places(self) -> list[slice]:
        return [self.flat.part(name)[0] for name in self.flat.template.branch_names]

    def precomputed(self, w: Floats) -> Floats:
        """The vector of ``plain`` with V̂ in the place of V; all sites ask for the same one, so the last is kept."""
        key = w.tobytes()
        if self._last.get("key") != key:
            made = layer("domains", "FedCG").precomputed_vector(self.flat, self.plain.flat(self.features), w)
            self._last.update(key=key, vector=made)
        out: Floats = self._last["vector"]
        return out

    @cached_property
    def _last(self) -> dict[str, Any]:
        return {}
