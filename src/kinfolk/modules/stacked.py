"""A module for many nodes in one call, each node with parameters of its own.

A layer without parameters treats rows one by one, so it need not know whose they are: it is called with the rows of all
nodes, one node after the other. Linear layers and convolutions are exchanged for layers that hold the parameters of all
nodes, and multiply with the matrices of all nodes in one call. A convolution is a product with windows of its images:
torch computes convolutions of several nodes as groups of one, whose backward pass takes about twice as long.

Modules with other layers are mapped over nodes by ``torch.func.vmap``.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import nn
from torch.func import vmap

from kinfolk import kernels
from kinfolk.modules.flat import FlatModule, copied
from kinfolk.modules.row_losses import RowLoss
from kinfolk.typing import Floats

SHORT = 16  # numbers of a line of a window, below which windows are copied number by number


class ModuleOfNodes(Protocol):
    """A module with the parameters of many nodes, which stay tensors for all steps of a round."""

    def load(self, w: Floats) -> list[Any]:
        """Take over vectors (nodes, size); returns what is trained, each (nodes, ...), biases with two axes."""

    def score(self, loss: RowLoss, X: Any, y: Any, weight: Any) -> Any:
        """Σ weight ℓ over all rows (nodes, rows, ...) in training."""

    def vectors(self) -> Floats:
        """The vectors as they are now. They are no longer held."""


class MappedModule:
    """Any module that torch can map over nodes."""

    def __init__(self, flat: FlatModule) -> None:
        self.flat = flat
        self.parts: dict[str, Any] = {}

    def load(self, w: Floats) -> list[Any]:
        """Tensors of all nodes by name."""
        self.parts = self.flat.stacked(w)
        return [part.requires_grad_() for part in list(self.parts.values())[: self.flat.trained_count]]

    def score(self, loss: RowLoss, X: Any, y: Any, weight: Any) -> Any:
        """The sum of the values of the nodes."""

        def of_node(parts: dict[str, Any], X: Any, y: Any, weight: Any) -> Any:
            return (weight * loss.of_rows(self.flat.call(parts, X, "training"), y)).sum()

        return vmap(of_node)(self.parts, X, y, weight).sum()

    def vectors(self) -> Floats:
        """The vectors, from the tensors by name."""
        parts, self.parts = self.parts, {}
        return self.flat.vectors_of(parts)


class StackedModule:
    """A module whose parameters are those of linear layers and convolutions, and that has no buffers."""

    def __init__(self, flat: FlatModule) -> None:
        self.flat = flat
        self.module, self.layers = _exchanged(flat.template)

    @classmethod
    def of(cls, flat: FlatModule) -> StackedModule | None:
        """None for a module with other layers, or on another device.

        >>> StackedModule.of(FlatModule.of(nn.Sequential(nn.Linear(3, 2), nn.PReLU()))) is None
        True
        """
        known = {
            f"{path}.{name}" if path else name
            for path, part in flat.template.named_modules()
            if _can_be_stacked(part)
            for name, _ in part.named_parameters()
        }
        all_known = known.issuperset(name for name, _ in flat.template.named_parameters())
        return cls(flat) if all_known and not flat.has_buffers and flat.device.type == "cpu" else None

    def load(self, w: Floats) -> list[Any]:
        """Tensors of all nodes, in the layers."""
        frozen = {name: value for name, value in self.flat.template.named_parameters() if not value.requires_grad}
        for name, value in frozen.items():
            self._hold(name, value.detach().expand(len(w), *value.shape))
        return [self._hold(name, value).requires_grad_() for name, value in self.flat.stacked(w).items()]

    def _hold(self, name: str, values: Any) -> Any:
        path, _, own = name.rpartition(".")
        return self.layers[path].hold(own, values)

    def score(self, loss: RowLoss, X: Any, y: Any, weight: Any) -> Any:
        """From one call with all rows."""
        outputs = self.module(*self.flat.arguments(X.flatten(0, 1)))
        return (weight.flatten() * loss.of_rows(outputs, y.flatten(0, 1))).sum()

    def vectors(self) -> Floats:
        """The vectors, from the tensors in the layers."""
        split = {name: name.rpartition(".") for name in self.flat.shapes}
        parts = {name: self.layers[path].part(own) for name, (path, _, own) in split.items()}
        for layer in self.layers.values():
            layer.held.clear()
        return self.flat.vectors_of(parts)


class StackedLinear(nn.Module):  # type: ignore[misc]  # torch is not read by mypy
    """A linear layer of every node, for rows of all nodes one after the other."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.form = tuple(layer.weight.shape)
        self.held: dict[str, Any] = {}

    def hold(self, name: str, values: Any) -> Any:
        """Take over ``weight`` or ``bias`` of all nodes, (nodes, ...); returns it as it is computed with."""
        self.held[name] = self.arranged(values) if name == "weight" else values
        return self.held[name]

    def part(self, name: str) -> Any:
        """What is held, in the shape of the layer."""
        values = self.held[name]
        return self.restored(values) if name == "weight" else values

    def arranged(self, weight: Any) -> Any:
        """From (nodes, outputs, inputs) to (nodes, inputs, outputs): gradients have this order, too."""
        return weight.mT.contiguous()

    def restored(self, weight: Any) -> Any:
        """The other way."""
        return weight.mT

    def product(self, rows: Any) -> Any:
        """Rows (nodes, rows, inputs) times the matrices of their nodes, plus biases."""
        if "bias" not in self.held:
            return torch.bmm(rows, self.held["weight"])
        return torch.baddbmm(self.held["bias"][:, None], rows, self.held["weight"])

    def forward(self, x: Any) -> Any:
        """The output for rows (nodes · rows, ..., inputs)."""
        out = self.product(x.reshape(len(self.held["weight"]), -1, x.shape[-1]))
        return out.view(*x.shape[:-1], out.shape[-1])


class StackedConvolution(StackedLinear):
    """A convolution of every node. Images are kept with their channels last, so that lines of a window are together."""

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)
        self.stride, self.padding = layer.stride, layer.padding

    def arranged(self, weight: Any) -> Any:
        """From (nodes, filters, channels, height, width) to (nodes, height · width · channels, filters)."""
        return weight.permute(0, 3, 4, 2, 1).flatten(1, 3)

    def restored(self, weight: Any) -> Any:
        """The other way."""
        filters, channels, height, width = self.form
        return weight.view(-1, height, width, channels, filters).permute(0, 4, 3, 1, 2)

    def forward(self, x: Any) -> Any:
        """The output for images (nodes · rows, channels, height, width)."""
        down, along = self.padding
        padded = nn.functional.pad(x, (along, along, down, down)) if down or along else x
        images = padded.permute(0, 2, 3, 1).contiguous()
        windows = _Windows.apply(images, self.form[2:], self.stride, len(self.held["weight"]))
        height, width = ((images.shape[1 + k] - self.form[2 + k]) // self.stride[k] + 1 for k in (0, 1))
        return self.product(windows).view(len(x), height, width, -1).permute(0, 3, 1, 2)


class _Windows(torch.autograd.Function):  # type: ignore[misc]  # torch is not read by mypy
    """The windows of images (images, height, width, channels) as rows (nodes, windows, numbers)."""

    @staticmethod
    def forward(ctx: Any, images: Any, size: tuple[int, int], stride: tuple[int, int], nodes: int) -> Any:
        count, height, width, channels = images.shape
        rows, columns = ((images.shape[1 + k] - size[k]) // stride[k] + 1 for k in (0, 1))
        line = width * channels
        shape = (nodes, count // nodes, rows, columns, size[0], size[1] * channels)
        steps = (count // nodes * height * line, height * line, stride[0] * line, stride[1] * channels, line, 1)
        windows = images.as_strided(shape, steps)
        ctx.of = images.shape, shape, stride
        if shape[-1] >= SHORT:
            return windows.flatten(4, 5).flatten(1, 3)
        return windows.permute(0, 4, 5, 1, 2, 3).flatten(1, 2).flatten(2, 4).mT

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, slopes: Any) -> tuple[Any, ...]:
        (count, height, width, channels), shape, stride = ctx.of
        windows = slopes.contiguous().view(count, *shape[2:]).numpy()
        added = kernels.add_windows(windows, stride[0], stride[1] * channels, height, width * channels)
        return torch.from_numpy(added).view(count, height, width, channels), None, None, None


def _can_be_stacked(layer: Any) -> bool:
    if type(layer) is nn.Linear:
        return True
    plain = type(layer) is nn.Conv2d and layer.groups == 1 and layer.dilation == (1, 1)
    return plain and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)


def _exchanged(template: Any) -> tuple[Any, dict[str, Any]]:
    """A copy of a module with layers of many nodes in the place of some, and these by their paths."""
    whole, made = nn.ModuleList([copied(template).train()]), {}
    for path, layer in list(whole[0].named_modules()):
        if _can_be_stacked(layer):
            made[path] = (StackedLinear if type(layer) is nn.Linear else StackedConvolution)(layer)
            whole.set_submodule(f"0.{path}" if path else "0", made[path])
    return whole[0], made
