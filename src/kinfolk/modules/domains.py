"""Domains inside a module: chosen layers get a branch for every domain, and a graph network joins the branches.

Caldarola, Mancini, Galasso, Ciccone, Rodolà, Caputo: Cluster-driven Graph Federated Learning over Multiple Domains
(2021), eq (4) and (5). A layer f with parameters θ_a becomes

    z ↦ f(z; θ_a) + λ Σ_d w_d f(z; V̂_d)                                                                           (4)
    V̂ = σ(A V W)                                                                                                  (5)

with a row of V for every domain, λ and W learnt, and w_d the weight of domain d for the row z of the batch. Layers that
are linear in their parameters (Linear, convolutions) are called once with θ_a + λ V̂_d where rows share a domain.

A ``DomainNetwork`` takes the weights as a second argument, ``network(x, weights)``. They reach inner layers through a
context variable, so no layer keeps a tensor after a call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.func import functional_call

from kinfolk.checks import InputError, listing
from kinfolk.modules.domain_graph import DomainGraph
from kinfolk.modules.flat import FlatModule, copied, drawing_from, redraw
from kinfolk.modules.graph_network import GraphNetwork
from kinfolk.typing import Floats

MOST_ENTRIES = 2**24  # of W in a layer
MERGING = (nn.Linear, nn.modules.conv._ConvNd)  # linear in their parameters, with nothing else to keep
SCALING = (*MERGING, nn.modules.batchnorm._BatchNorm)  # linear in their parameters, so that λ may be put into them
BRANCH = "branch_"


class Given(NamedTuple):
    """What the layers of a network receive during a call."""

    weights: Any  # (rows, domains)
    adjacency: Any  # (domains, domains)
    one: bool  # whether all rows have the weights of the first: then nodes can be computed at once
    ratios: list[Any] | None  # to which every layer adds (rows, 2): ‖branch‖² and ‖agnostic‖² of every row


_GIVEN: ContextVar[Given] = ContextVar("domains of the rows of a call")
_RATIOS: ContextVar[list[Any] | None] = ContextVar("activations are compared", default=None)


class DomainNetwork(nn.Module):  # type: ignore[misc]  # torch is not read by mypy
    """A module some of whose layers are ``DomainResidual``; ``forward(x, weights)``."""

    def __init__(self, network: Any, domains: int, one_per_node: bool) -> None:
        super().__init__()
        self.network = network
        self.one_per_node = one_per_node
        self.register_buffer("adjacency", torch.eye(domains))

    def forward(self, x: Any, weights: Any) -> Any:
        """The output of the network for rows x whose domains have these weights (rows, domains)."""
        one = self.one_per_node and self.training
        token = _GIVEN.set(Given(weights, self.adjacency, one, _RATIOS.get()))
        try:
            return self.network(x)
        finally:
            _GIVEN.reset(token)

    @property
    def residuals(self) -> dict[str, DomainResidual]:
        """The layers with branches, by their paths in the network."""
        return {name: part for name, part in self.network.named_modules() if isinstance(part, DomainResidual)}

    @property
    def branch_names(self) -> list[str]:
        """The names of all parameters with a row for every domain: V."""
        return [
            f"network.{path}.{name}"
            for path, residual in self.residuals.items()
            for name, _ in residual.named_parameters(recurse=False)
            if name.startswith(BRANCH)
        ]

    def precomputed(self) -> DomainNetwork:
        """The same network with V̂ in the place of V and no graph network: for inference."""
        made: DomainNetwork = copied(self)
        for residual in made.residuals.values():
            residual.precompute(self.adjacency)
        return made


class DomainResidual(nn.Module):  # type: ignore[misc]  # torch is not read by mypy
    """A layer with a branch for every domain, eq (4).

    Parameters
    ----------
    layer : torch.nn.Module
        Any layer. Running statistics, as batch normalisation has them, are kept for every domain.
    domains : int
        D.
    graph : DomainGraph, optional
        How branches are joined, eq (5); None: they are not.
    agnostic : bool
        Whether the layer itself stays as the part that all domains share. Without it branches start as copies of the
        layer, with it they are drawn as the layer draws its parameters.
    clip : float
        Bound on the entries of λ V̂, which is a product and can overflow.

    >>> layer = DomainResidual(nn.Linear(2, 1), domains=3)
    >>> [(name, tuple(value.shape)) for name, value in layer.named_parameters()]
    [('scale', ()), ('branch_weight', (3, 1, 2)), ('branch_bias', (3, 1)), ('agnostic.weight', (1, 2)),
     ('agnostic.bias', (1,))]
    """

    def __init__(
        self, layer: Any, domains: int, graph: DomainGraph | None = None, agnostic: bool = True, clip: float = 4.0
    ) -> None:
        super().__init__()
        self.clip, self.merges, self.scales = clip, isinstance(layer, MERGING), isinstance(layer, SCALING)
        self.names = [name for name, _ in layer.named_parameters()]
        self.statistics = [name for name, value in layer.named_buffers() if value.is_floating_point()]
        self.agnostic = layer if agnostic else None
        self.scale = nn.Parameter(torch.ones(())) if agnostic else None  # λ
        self._form = (_form(layer),)  # how the layer computes: no part of this module, its parameters are not used
        starts = [_start(layer, agnostic) for _ in range(domains)]
        for name in self.names:
            stacked = torch.stack([dict(start.named_parameters())[name].detach() for start in starts])
            self.register_parameter(_key(name), nn.Parameter(stacked))
        for name in self.statistics:
            stacked = torch.stack([dict(start.named_buffers())[name].detach() for start in starts])
            self.register_buffer(_key(name), stacked)
        self.filters, size = _filters([tuple(value.shape) for value in layer.parameters()])
        self.graph = None if graph is None else GraphNetwork(graph, self.filters, size)

    def forward(self, z: Any) -> Any:
        """Eq (4) for rows z."""
        given = _GIVEN.get()
        out = self._forward(z, given)
        if given.ratios is not None and self.agnostic is not None:
            shared = self.agnostic(z)
            squares = [value.flatten(1).square().sum(dim=1) for value in (out - shared, shared)]
            given.ratios.append(torch.stack(squares, dim=1))
        return out

    def _forward(self, z: Any, given: Given) -> Any:
        combined = self._combining(given)
        if self.merges and self.agnostic is not None:
            shared = {name: value for name, value in self.agnostic.named_parameters()}

            def merged(rows: Any, weights: Any) -> Any:
                own = combined(weights)
                return functional_call(self._form[0], {name: shared[name] + own[name] for name in own}, (rows,))

            return self._by_domain(merged, z, given)
        out = self._by_domain(lambda rows, weights: self._branch(rows, weights, combined(weights)), z, given)
        if self.agnostic is None:
            return out
        return self.agnostic(z) + (out if self.scales else self.scale * out)

    # ------------------------------------------------------------------ which rows have which domain

    def _by_domain(self, call: Callable[[Any, Any], Any], z: Any, given: Given) -> Any:
        """``call(rows, weights)`` for rows that share their weights; as many calls as there are different weights."""
        weights = given.weights
        if given.one:
            return call(z, weights[0])
        kinds, kind = torch.unique(weights, dim=0, return_inverse=True)
        if len(kinds) > weights.shape[1] or not (self.merges or _is_hard(kinds)):
            return self._soft(call, z, weights)
        if len(kinds) == 1:
            return call(z, kinds[0])
        order = torch.argsort(kind, stable=True)
        parts = [call(z[kind == k], kinds[k]) for k in range(len(kinds))]
        return torch.cat(parts)[torch.argsort(order)]

    def _soft(self, call: Callable[[Any, Any], Any], z: Any, weights: Any) -> Any:
        """Every row with weights of its own: Σ_d w_d call(z, domain d), as the weights of a row add up to one."""
        alone = torch.eye(weights.shape[1], dtype=weights.dtype, device=weights.device)
        total = None
        for d in range(weights.shape[1]):
            part = call(z, alone[d])
            part = part * weights[:, d].view(-1, *[1] * (part.ndim - 1))
            total = part if total is None else total + part
        return total

    # ------------------------------------------------------------------ the parameters of branches

    def _branches(self, adjacency: Any) -> dict[str, Any]:
        """V̂ by name, (domains, ...) each; times λ where the layer is linear in them."""
        parts = self._parts
        if self.graph is not None:
            parts = self._from_filters(self.graph(self._as_filters(parts), adjacency))
        return self._clipped(parts)

    def _branch_of_one(self, adjacency: Any, weights: Any) -> dict[str, Any]:
        """V̂_d by name for the domain with weight one; the rows of other domains are not computed."""
        parts, own = self._parts, weights[None]
        if self.graph is None:
            parts = {name: torch.tensordot(own, value, dims=1) for name, value in parts.items()}
        else:
            parts = self._from_filters(self.graph(self._as_filters(parts), adjacency, own))
        return {name: value[0] for name, value in self._clipped(parts).items()}

    @property
    def _parts(self) -> dict[str, Any]:
        """V by name."""
        return {name: getattr(self, _key(name)) for name in self.names}

    def _clipped(self, parts: dict[str, Any]) -> dict[str, Any]:
        scale = self.scale if self.scales and self.scale is not None else 1.0
        return {name: (scale * value).clamp(-self.clip, self.clip) for name, value in parts.items()}

    def _combining(self, given: Given) -> Callable[[Any], dict[str, Any]]:
        """From the weights of a row to the parameters of its branch."""
        if given.one or _is_hard(given.weights):
            return partial(self._branch_of_one, given.adjacency)
        return partial(self._combined, self._branches(given.adjacency))

    @staticmethod
    def _combined(branches: dict[str, Any], weights: Any) -> dict[str, Any]:
        """Σ_d w_d V̂_d."""
        return {name: torch.tensordot(weights, value, dims=1) for name, value in branches.items()}

    def _branch(self, z: Any, weights: Any, combined: dict[str, Any]) -> Any:
        """f(z; Σ_d w_d V̂_d), with the running statistics of the domain, which training renews."""
        before = {name: torch.tensordot(weights, getattr(self, _key(name)), dims=1) for name in self.statistics}
        own = {name: value.clone() for name, value in before.items()}
        out = functional_call(self._form[0].train(self.training), {**combined, **own}, (z,))
        if self.training:
            with torch.no_grad():
                for name in self.statistics:
                    moved = own[name] - before[name]
                    getattr(self, _key(name)).add_(weights.view(-1, *[1] * moved.ndim) * moved)
        return out

    def precompute(self, adjacency: Any) -> None:
        """Replace V by V̂, once and for all."""
        if self.graph is None:
            return
        with torch.no_grad():
            for name, value in self._from_filters(self.graph(self._as_filters(self._parts), adjacency)).items():
                getattr(self, _key(name)).copy_(value)
        self.graph = None

    # ------------------------------------------------------------------ V as a tensor (domains, filters, parameters)

    def _as_filters(self, parts: dict[str, Any]) -> Any:
        return torch.cat([part.reshape(len(part), self.filters, -1) for part in parts.values()], dim=2)

    def _from_filters(self, V: Any) -> dict[str, Any]:
        shapes = {name: value.shape[1:] for name, value in self._parts.items()}
        sizes = [shape.numel() // V.shape[1] for shape in shapes.values()]
        split = V.split(sizes, dim=2)
        return {name: part.reshape(-1, *shape) for part, (name, shape) in zip(split, shapes.items(), strict=True)}


# ---------------------------------------------------------------------- making and looking


def with_domains(
    module: Any,
    layers: Sequence[str],
    domains: int,
    *,
    graph: DomainGraph | None = None,
    agnostic: bool = True,
    clip: float = 4.0,
    one_per_node: bool = False,
    seed: int = 0,
) -> DomainNetwork:
    """A copy of a module whose layers of these paths have branches; what they draw is keyed by ``seed``.

    >>> net = with_domains(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)), ["2"], domains=4)
    >>> net(torch.ones(5, 2), torch.eye(4)[[0, 0, 1, 2, 3]]).shape
    torch.Size([5, 1])
    """
    check_layers(module, layers, graph)
    made = copied(module)
    with drawing_from(seed):
        for path in layers:
            parent, _, name = path.rpartition(".")
            residual = DomainResidual(made.get_submodule(path), domains, graph, agnostic, clip)
            setattr(made.get_submodule(parent), name, residual)
    return DomainNetwork(made, domains, one_per_node)


def layers_of(module: Any) -> list[str]:
    """The paths of the layers that can have branches: those with parameters of their own."""
    return [path for path, part in module.named_modules() if path and any(True for _ in part.parameters(recurse=False))]


def check_layers(module: Any, layers: Sequence[str], graph: DomainGraph | None) -> None:
    """Refuse paths that name no layer with parameters, or layers whose W would be too large."""
    known = layers_of(module)
    unknown = [path for path in layers if path not in known]
    if unknown:
        raise InputError(f"Expected layers of the module ({listing(known, 12)}), got {unknown[0]!r}: name one of them.")
    if len(set(layers)) < len(layers):
        raise InputError(f"Expected every layer once, got {listing(layers)}.")
    for path in layers:
        shapes = [tuple(value.shape) for value in module.get_submodule(path).parameters()]
        entries = 0 if graph is None else graph.entries(*_filters(shapes))
        if entries > MOST_ENTRIES:
            raise InputError(
                f"Expected a W of at most {MOST_ENTRIES:,} entries, got {entries:,} for layer {path!r}: take "
                "DomainGraph(shared=True), or projection='none'."
            )


def compared_activations(flat: FlatModule, w: Any, x: Any) -> list[Any]:
    """For every layer with branches an array (rows, 2): ‖branch‖² and ‖agnostic‖² of every row, in evaluation.

    ``flat`` is a ``DomainNetwork``, w its vector, and x rows with the weights of domains as their last features.
    """
    found: list[Any] = []
    token = _RATIOS.set(found)
    try:
        with torch.no_grad():
            flat.outputs(w, x)
    finally:
        _RATIOS.reset(token)
    return [squares.double().cpu().numpy() for squares in found]


def precomputed_vector(flat: FlatModule, plain: FlatModule, w: Floats) -> Floats:
    """The vector of ``plain``, the same network without a graph network, that computes what ``flat`` does with w."""
    made = flat.module_of(w).precomputed()
    parts = {**dict(made.named_parameters()), **dict(made.named_buffers())}
    return np.concatenate([parts[name].detach().double().cpu().numpy().ravel() for name in plain.shapes])


def _filters(shapes: Sequence[tuple[int, ...]]) -> tuple[int, int]:
    """Number of filters of a layer with parameters of these shapes, and of the parameters of one.

    >>> _filters([(64, 32, 5, 5), (64,)])
    (64, 801)
    """
    counts = {shape[0] if shape else 1 for shape in shapes}
    filters = counts.pop() if len(counts) == 1 else 1
    return filters, sum(math.prod(shape) for shape in shapes) // filters


def _is_hard(weights: Any) -> bool:
    """Whether every row has a single domain."""
    return bool(((weights == 0) | (weights == 1)).all())


def _key(name: str) -> str:
    return BRANCH + name.replace(".", "_")


def _start(layer: Any, drawn: bool) -> Any:
    """A layer whose parameters a branch starts with."""
    made = copied(layer)
    if drawn:
        redraw(made)
    return made


def _form(layer: Any) -> Any:
    """A copy of a layer to call with other parameters; it counts no batches."""
    made = copied(layer).requires_grad_(False)
    for part in made.modules():
        if isinstance(part, nn.modules.batchnorm._NormBase):
            part.num_batches_tracked = None
    return made
