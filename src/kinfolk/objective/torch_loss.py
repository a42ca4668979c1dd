"""A module of torch at every node, all of one shape: its numbers are one vector per node, scored by a ``TorchLoss``.

    L_i(w) = c_i Σ_r ℓ(h(x_r; w), y_r) + (ridge / 2) ‖w without biases‖²,    c_i = 1 (sum) or 1 / m_i (mean)

with h the module. The vector w has the parameters that are trained, then the floating buffers, such as the running
statistics of batch normalisation; frozen parameters stay in the module. L_i and its gradient are those of the module in
evaluation; local work (``training_slopes``) runs in training: layers draw, and statistics are renewed. A prox and a
minimiser are looked for in training, too, with layers that draw switched off.

L_i is as a rule not convex: there is no certificate, a prox is a few steps of an optimiser, and where a run ends
depends on where it starts. All nodes start with the parameters that the module has, since parameters of different nodes
can only be compared if their hidden units mean the same.

torch is imported when it is first needed: ``pip install "kinfolk[torch]"``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np

from kinfolk.checks import AtLeast, InputError, Positive
from kinfolk.modules import layer
from kinfolk.network.data import Data
from kinfolk.objective.module_losses import ModuleLosses, ModuleModels
from kinfolk.objective.node_loss import NodeLoss, Slopes
from kinfolk.typing import Floats

if TYPE_CHECKING:
    from kinfolk.modules.flat import FlatModule
    from kinfolk.modules.row_losses import RowLoss
    from kinfolk.modules.scored import ScoredModule

TRIED_ROWS = 8  # of the data, on which a module is tried


@dataclass(frozen=True)
class TorchLoss(NodeLoss):
    """How a module of torch is scored at a node, and how its parameters are looked for.

    Parameters
    ----------
    module : torch.nn.Module
        Maps rows of features to predictions, (rows, features) to (rows,) or (rows, outputs). It is never changed; its
        present parameters are where all nodes start. Parameters that need no gradient are frozen. Lazy layers learn
        their sizes from the data; what they draw is the same in every process.
    loss : str or callable
        ``"squared"`` for ℓ = Σ (h − y)² over the outputs; ``"cross-entropy"`` or ``"squared probabilities"`` for
        labels 0, 1, ... and an output, a logit, for each of them; or a function of (prediction, label) that gives one
        value for every row, for numbers unless its attribute ``classifies`` is true. A module with one output is
        scored on predictions of shape (rows,) where labels have that shape.
    reduction, ridge
        As for linear models; biases (parameters with one axis) are not penalised.
    optimiser : str, class or partial
        The name of a class in ``torch.optim``, such a class, or what makes one: ``partial(SGD, momentum=0.9)``. It must
        treat every number by itself: not LBFGS. A prox starts a new one, so Adam, whose first steps are as long
        whatever the slope, keeps trembling; SGD settles. Algorithms with local work, such as ``FedAvg``, take it, and
        ``step_size``, unless they are given their own.
    step_size : float
        Its ``lr``.
    steps : int
        Of the optimiser, in every prox.
    minimise_steps : int
        Of the optimiser, where a node learns alone to the end.
    side : int
        How many of the last features the module takes as a second argument: ``module(x, extra)``.
    precision : {"float64", "float32"}
        Of the computation. Parameters are kept and sent in 64 bits.
    device : str
        Where torch computes.
    batching : {"auto", "always", "never"}
        How steps of local work are computed: for all nodes at once, or node by node. "auto" decides by the work of a
        node in a step. In 32 bits the two differ by rounding.

    >>> import torch
    >>> from kinfolk import GTVMin, Network, fit, graphs
    >>> network = Network(graphs.chain(2), [([[0.0], [1.0]], [1.0, 3.0]), None])
    >>> loss = TorchLoss(torch.nn.Linear(1, 1), step_size=0.3)
    >>> fit(network, GTVMin(loss, lam=1.0)).predict([[2.0], [2.0]], node=[0, 1]).round(3).tolist()
    [5.0, 5.0]
    """

    module: Any
    loss: Any = "squared"
    reduction: Literal["mean", "sum"] = "mean"
    ridge: Annotated[float, AtLeast(0)] = 0.0
    optimiser: Any = "SGD"
    step_size: Annotated[float, Positive()] = 0.05
    steps: Annotated[int, AtLeast(1)] = 20
    minimise_steps: Annotated[int, AtLeast(1)] = 1_000
    side: Annotated[int, AtLeast(0)] = 0
    precision: Literal["float64", "float32"] = "float64"
    device: str = "cpu"
    batching: Literal["auto", "always", "never"] = "auto"

    convex: ClassVar[bool] = False
    most_curvature: ClassVar[float] = np.inf

    def flat(self, feature_count: int) -> FlatModule:
        """The module as it is now, with its parameters and buffers as one vector."""
        flat = layer("flat", "TorchLoss")
        key = (feature_count if self._is_lazy else 0, _version(self.module))  # a lazy one learns its sizes from rows
        if key not in self._flats:
            module = self._sized(feature_count) if self._is_lazy else self.module
            made = flat.FlatModule.of(module, self.precision, self.device, self.side)
            flat.check_momentum(module)
            self._flats[key] = made
        return self._flats[key]

    def __getstate__(self) -> dict[str, Any]:
        """The settings alone: what was tried on rows, and rows, stay here."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def _sized(self, feature_count: int) -> Any:
        flat = layer("flat", "TorchLoss")
        try:
            return flat.sized(self.module, flat.torch.zeros((2, feature_count)), self.side)
        except Exception as error:  # whatever a user's module raises
            raise InputError(
                f"Expected a module that reads rows of {feature_count} features, got one that does not: {error}"
            ) from error

    @cached_property
    def _is_lazy(self) -> bool:
        out: bool = layer("flat", "TorchLoss").is_lazy(self.module)
        return out

    @cached_property
    def _flats(self) -> dict[Any, FlatModule]:
        return {}

    @property
    def row_loss(self) -> RowLoss:
        """The loss of rows."""
        out: RowLoss = layer("row_losses", "TorchLoss").row_loss(self.loss, "TorchLoss")
        return out

    def width(self, feature_count: int) -> int:
        """Length of the vector of a node: trained parameters and floating buffers."""
        return self.flat(feature_count).size

    def trained(self, feature_count: int) -> int:
        """How many numbers of it are trained; buffers follow them."""
        return self.flat(feature_count).trained

    def layout(self, feature_count: int) -> dict[str, tuple[int, ...]]:
        """The shapes of the parameters that are trained, by name."""
        flat = self.flat(feature_count)
        return {name: shape for name, shape in flat.shapes.items() if name not in flat.buffer_names}

    def start(self, feature_count: int) -> Floats:
        """The parameters and buffers that the module has."""
        return self.flat(feature_count).start.copy()

    def bind(self, data: Data) -> ModuleLosses:
        """The local losses L_i for the data of some nodes."""
        scale = np.ones(len(data.y)) if self.reduction == "sum" else 1.0 / data.sizes[data.owner]
        ridge = np.where(data.sizes > 0, self.ridge, 0.0)
        return ModuleLosses(self, self._scored_on(data), data.X, data.y, data.starts, scale, ridge)

    def _scored_on(self, data: Data) -> ScoredModule:
        return self.scored(self.flat(data.feature_count), data.X, data.y)

    def scored(self, flat: FlatModule, X: Floats, y: Floats | None) -> ScoredModule:
        """The module and its loss; tried on the first rows that it sees, once for every kind of labels."""
        key = id(flat), None if y is None else y.shape[1:]
        if key not in self._scored:
            tried = np.unique(np.linspace(0, max(len(X) - 1, 0), TRIED_ROWS).astype(np.int64))
            rows = X[tried] if len(X) else np.zeros((1, X.shape[1]))
            labels = np.zeros((0, 0)) if y is None or not len(y) else y[tried]
            made: ScoredModule = layer("scored", "TorchLoss").ScoredModule(
                flat, self.row_loss, rows, labels, self.batching
            )
            if y is not None and not len(y):
                return made
            self._scored[key] = made
        return self._scored[key]

    @cached_property
    def _scored(self) -> dict[Any, ScoredModule]:
        return {}

    def models(self, w: Floats) -> ModuleModels:
        """The modules with vectors w (nodes, size)."""
        known = [self.flat(0)] if not self._is_lazy else [*self._flats.values()][::-1]
        for flat in known:
            if flat.size == w.shape[1]:
                return ModuleModels(w, self, flat)
        raise InputError(f"Expected vectors of the module's size, got {w.shape[1]} numbers: a lazy one must see data.")

    def check_data(self, data: Data) -> None:
        """Refuse an optimiser that is none, features that the module cannot read, and labels that it cannot predict."""
        self._check_optimiser()
        if not len(data.y):
            return
        if self.side >= data.feature_count:
            raise InputError(f"Expected fewer than {data.feature_count} features on the side, got side={self.side}.")
        scored = self._scored_on(data)
        self.row_loss.check(scored.check_output("TorchLoss"), data.y, "TorchLoss")
        if scored.looks_up:
            scored.check_rows(data.X, "TorchLoss")

    def check_training(self, data: Data, rows: int) -> None:
        """Refuse rows so few that the module cannot be trained on them."""
        self._scored_on(data).check_training(rows, "TorchLoss")

    def descended(self, slopes: Callable[[Floats], Slopes], start: Floats, steps: int, trained: int) -> Floats:
        """Where some steps of a new optimiser lead from ``start`` (nodes, size), down a slope at every node."""
        descent = layer("optimisers", "TorchLoss").Descent(self._make, start[:, :trained], self.step_size)
        w = start
        for _ in range(steps):
            gradient, renewed = slopes(w)
            descent.step(gradient[:, :trained])
            moved: Floats = descent.w
            w = moved if trained == w.shape[1] else np.concatenate([moved, renewed[:, trained:]], axis=1)
        return w

    @property
    def unpenalised(self) -> TorchLoss:
        """Without the ridge term."""
        return replace(self, ridge=0.0) if self.ridge else self

    @property
    def own_step_size(self) -> float:
        """For algorithms with local work that are not given one."""
        return self.step_size

    @property
    def own_optimiser(self) -> Any:
        """For algorithms with local work that are not given one."""
        return self.optimiser

    def _check_optimiser(self) -> None:
        """Refuse an optimiser that moves a node by what it sees of another."""
        layer("optimisers", "TorchLoss").check_by_element(self._make, self.optimiser, self.step_size)

    @property
    def _make(self) -> Any:
        return layer("optimisers", "TorchLoss").optimiser_class(self.optimiser, "TorchLoss")

    def redrawn(self, rng: np.random.Generator, feature_count: int) -> Floats:
        """Parameters drawn anew, each layer as it draws its own."""
        flat = self.flat(feature_count)
        drawn = flat.redrawn(int(rng.integers(2**62)))
        if np.array_equal(drawn, flat.start):
            raise InputError(
                "Expected layers that draw their parameters (reset_parameters) for Redrawn(), got none: start with "
                "Uniform(low, high), OneOf(values) or Given(centres)."
            )
        return drawn


def _version(module: Any) -> Any:
    """What changes when somebody trains or loads the module."""
    values = [*module.parameters(), *module.buffers()] if hasattr(module, "parameters") else []
    return tuple((id(value), value._version, value.requires_grad) for value in values)
