"""Modules of torch as local models of FedRelax; all nodes with the same model are trained in one computation.

A node minimises, with own rows counting 1 and rows labelled by neighbour j counting rate_i A_ij,

    Σ_r weight_r ℓ(f(x_r), target_r) / Σ_r weight_r                                                           (1)

by an optimiser of torch, from where it stood a round before. ℓ is the squared error, the cross-entropy of logits
with the probabilities that neighbours have given, the squared error of probabilities, or a function of yours.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from kinfolk.checks import AtLeast, InputError, Positive, check_parameters, first_line
from kinfolk.local_models.discrepancies import Discrepancy, SquaredProbabilities, SymmetricCrossEntropy
from kinfolk.local_models.weighted_rows import TrainingSets
from kinfolk.modules import layer
from kinfolk.network.problem import Problem
from kinfolk.typing import Floats

if TYPE_CHECKING:
    from kinfolk.local_models.torch_training import NodeTraining, TorchFit, TrainingSetup
    from kinfolk.modules.flat import FlatModule
    from kinfolk.modules.row_losses import RowLoss


Use = Literal["training", "exchanging", "predicting"]  # exchanging: some targets are logarithms, see the training


@dataclass(frozen=True, eq=False)
class TorchModel:
    """A module of torch at every node; needs ``pip install "kinfolk[torch]"``.

    Parameters
    ----------
    module : torch.nn.Module or callable
        A ``torch.nn.Module`` for rows of features, or a function without arguments that makes one. For numbers
        its output has shape (rows,) or (rows, 1); for classes (rows, classes), logits. Lazy layers learn their sizes
        from the data.
    loss : str or callable
        ``"squared"``; ``"cross-entropy"`` or ``"squared probabilities"`` for classes; or a function of (output,
        target) that gives one value for every row, for numbers unless its attribute ``classifies`` is true.
    optimiser : str, type or partial
        The name of a class in ``torch.optim``, such a class, or a ``functools.partial`` of one.
    step_size : float
        Torch's ``lr``.
    epochs : int
        How often a node goes through its rows in a round; with full batches, the number of steps.
    batch : int, optional
        Rows in a step; None for all.
    patience : int, optional
        A node ends its round when its loss has not fallen by more than ``tolerance`` for so many epochs; None
        for never.
    tolerance : float
        By how much the loss has to fall to count.
    start : {"drawn", "given"}
        Parameters in the first round: ``"drawn"`` for every node (a module's layers are reset), or as ``"given"``.
    keep : {"nothing", "parameters", "optimiser"}
        What goes on from round to round: ``"nothing"``, ``"parameters"``, or with them what the ``"optimiser"``
        remembers.
    precision : {"float32", "float64"}
        Of parameters and steps.
    device : str
        Where torch computes.
    side : int
        How many of the last features the module takes as a second argument: ``module(x, extra)``.
    together : bool
        Whether nodes are trained in one computation. Where that would change the result, as with batch
        normalisation or dropout, it is not done, and the run's notes mention it.
    options : mapping
        What else the optimiser takes, such as ``{"betas": (0.9, 0.99)}``.

    >>> import torch
    >>> from kinfolk import FedRelax, Network, fit, graphs
    >>> network = Network(graphs.chain(2), [([[1.0]], [0.0]), ([[1.0]], [1.0])], public=[[1.0]])
    >>> model = TorchModel(torch.nn.Linear(1, 1), optimiser="SGD", step_size=0.1)
    >>> run = fit(network, FedRelax(model, lam=1.0), rounds=10)
    >>> run.predict([[1.0], [1.0]], node=[0, 1]).round(2)
    array([0.33, 0.67])
    >>> model.module_of(run.models[0])
    Linear(in_features=1, out_features=1, bias=True)
    """

    module: Any
    loss: Any = "squared"
    optimiser: Any = "Adam"
    step_size: Annotated[float, Positive()] = 0.01
    epochs: Annotated[int, AtLeast(1)] = 100
    batch: Annotated[int, AtLeast(1)] | None = None
    patience: Annotated[int, AtLeast(1)] | None = None
    tolerance: Annotated[float, AtLeast(0)] = 1e-6
    start: Literal["drawn", "given"] = "drawn"
    keep: Literal["nothing", "parameters", "optimiser"] = "parameters"
    precision: Literal["float32", "float64"] = "float32"
    device: str = "cpu"
    side: Annotated[int, AtLeast(0)] = 0
    together: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def classifies(self) -> bool:
        """Whether it predicts probabilities of classes."""
        return self._row_loss.classifies

    @property
    def _row_loss(self) -> RowLoss:
        out: RowLoss = layer("row_losses", "TorchModel").row_loss(self.loss, "TorchModel")
        return out

    @cached_property
    def merges(self) -> bool:
        """True for full batches and a loss with a name, unless layers draw or look at several rows."""
        nn = _torch().nn
        mixing = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._NormBase, nn.RReLU)
        by_row = not any(isinstance(layer, mixing) for layer in self._blank.modules())
        return isinstance(self.loss, str) and self.batch is None and by_row

    # ------------------------------------------------------------------ before round 1

    def check(self) -> None:
        """Refuse parameters out of range, and what is no module, loss or optimiser."""
        check_parameters(self)
        _ = self._row_loss, self._optimiser_class, self._blank  # each refuses what it is not
        if not isinstance(self.options, Mapping) or "lr" in self.options:
            self._refuse("options", "a mapping without 'lr', which is step_size")

    def learns(self, discrepancy: Discrepancy) -> bool:
        """Whatever has rows; those that are known by name only with the loss that belongs to them."""
        if isinstance(discrepancy, SquaredProbabilities):
            out: bool = self.loss == "squared probabilities"
            return out
        return self.loss == "cross-entropy" or not isinstance(discrepancy, SymmetricCrossEntropy)

    def _refuse(self, name: str, expected: str) -> None:
        value = " ".join(repr(getattr(self, name)).split())  # a module may take many lines
        raise InputError(f"The '{name}' parameter of TorchModel must be {expected}. Got {value} instead.")

    def remarks(self, problem: Problem) -> list[str]:
        """Whether nodes had to be trained one after another."""
        classes = problem.classes if self.classifies else None
        why = self._why_apart(problem.feature_count, None if classes is None else len(classes))
        if not self.together or why is None:
            return []
        name = type(self._blank).__name__
        return [f"Nodes with the module {name} were trained one after another, and labels not merged: {why}."]

    # ------------------------------------------------------------------ modules

    @cached_property
    def _blank(self) -> Any:
        """A module of this shape, whose parameters do not matter; lazy layers have no sizes yet."""
        return self._made(0)

    def _made(self, seed: int) -> Any:
        """The module as it was given, or made anew."""
        flat = layer("flat", "TorchModel")
        with flat.drawing_from(seed):
            is_module = isinstance(self.module, _torch().nn.Module)
            module = flat.copied(self.module) if is_module else self.module() if callable(self.module) else self.module
        if not isinstance(module, _torch().nn.Module):
            self._refuse("module", "a torch.nn.Module, or a function without arguments that makes one")
        return module

    def _module(self, seed: int, features: int) -> Any:
        """What a node starts from."""
        flat = layer("flat", "TorchModel")
        given = isinstance(self.module, _torch().nn.Module)
        drawn = flat.SIZING_SEED if given else seed
        module = flat.sized(self._made(seed), _torch().zeros((2, features)), self.side, drawn)
        if given and self.start == "drawn":
            with flat.drawing_from(seed):
                flat.redraw(module)
        return module

    def _flat(self, features: int) -> FlatModule:
        """The module of this shape, prepared once for rows of so many features."""
        if features not in self._flats:
            made = layer("flat", "TorchModel").FlatModule.of(
                self._module(0, features), self.precision, self.device, self.side
            )
            self._flats[features] = made
        return self._flats[features]

    @cached_property
    def _flats(self) -> dict[int, FlatModule]:
        return {}

    def module_of(self, fit: TorchFit) -> Any:
        """The module of a node, ready to predict: ``model.module_of(run.models[node])``."""
        torch, flat = _torch(), layer("flat", "TorchModel")
        known = next(iter(self._flats.values()), None)
        module = flat.copied(self._blank if known is None else known.template).to(getattr(torch, self.precision))
        with torch.no_grad():
            for name, value in [*module.named_parameters(), *module.named_buffers()]:
                value.copy_(torch.from_numpy(fit.arrays[name]))
        return module.eval()

    @property
    def _optimiser_class(self) -> Any:
        return layer("optimisers", "TorchModel").optimiser_class(self.optimiser, "TorchModel")

    @property
    def _implementation(self) -> dict[str, bool]:
        """One pass over the numbers instead of one for every operation, where the optimiser has it and is free."""
        known = inspect.signature(self._optimiser_class).parameters
        free = not self.options.keys() & {"fused", "foreach", "differentiable"}
        return {"fused": True} if "fused" in known and free else {}

    def _setup(self, features: int, answers: int | None, use: Use = "training") -> TrainingSetup:
        """How to train, or to predict, so many classes; prepared once."""
        key = features, answers, use
        if key not in self._setups:
            self._setups[key] = self._new_setup(*key)
        return self._setups[key]

    @cached_property
    def _setups(self) -> dict[tuple[int, int | None, str], TrainingSetup]:
        return {}

    def _new_setup(self, features: int, answers: int | None, use: Use) -> TrainingSetup:
        training = _training()
        out: TrainingSetup = training.TrainingSetup(
            flat=self._flat(features),
            mode="evaluation" if use == "predicting" else "training",
            row_loss=training.exchanging_cross_entropy if use == "exchanging" else self._row_loss.function,
            optimiser=partial(self._optimiser_class, lr=self.step_size, **self._implementation, **self.options),
            epochs=self.epochs,
            batch=self.batch,
            patience=self.patience,
            tolerance=self.tolerance,
            answers=answers,
        )
        return out

    # ------------------------------------------------------------------ trials, each made once

    @cached_property
    def _trials(self) -> dict[tuple[int, int | None], str | None]:
        return {}

    def _why_apart(self, features: int, answers: int | None) -> str | None:
        """Why nodes cannot be trained in one computation; None if they can. Refuses a module of the wrong shape."""
        key = features, answers
        if key not in self._trials:
            setup = self._setup(features, answers)
            self._check_output(setup, features)
            self._check_memory(setup)
            self._trials[key] = _training().why_apart(setup, partial(self._module, features=features), features)
        return self._trials[key]

    def _check_output(self, setup: TrainingSetup, features: int) -> None:
        """Refuse a module that does not take such rows, or a loss that does not give a value for each."""
        torch, rows = _torch(), 5
        X = setup.flat.tensor(np.zeros((rows, features)))
        expected = (rows,) if setup.answers is None else (rows, setup.answers)
        try:
            with layer("flat", "TorchModel").drawing_from(0), torch.no_grad():
                predicted = setup.predict({}, X)
                lost = setup.row_loss(predicted, torch.ones_like(predicted))
        except Exception as error:  # whatever a user's module raises
            raise InputError(
                f"Expected a module and a loss for rows of {features} features, got: {first_line(error)}."
            ) from error
        if tuple(predicted.shape) != expected:
            wanted = "(rows,) or (rows, 1)" if setup.answers is None else f"(rows, {setup.answers}), logits,"
            got = ", ".join(["rows", *map(str, predicted.shape[1:])])
            raise InputError(f"Expected a module whose output has shape {wanted} for these data, got ({got}).")
        if tuple(lost.shape) != (rows,):
            raise InputError(f"Expected a loss with one value for each of {rows} rows, got shape {tuple(lost.shape)}.")

    def _check_memory(self, setup: TrainingSetup) -> None:
        """Refuse to keep what cannot be kept."""
        if self.keep == "optimiser" and not _training().remembers_arrays(setup.optimiser):
            raise InputError(
                f"Expected an optimiser whose memory is made of arrays, got {self.optimiser!r}: keep='parameters'."
            )

    # ------------------------------------------------------------------ as a local model

    def fit_nodes(self, sets: TrainingSets) -> list[TorchFit | None]:
        """Train the nodes, from where they stood."""
        training = _training()
        answers = len(sets.site.classes) if self.classifies and sets.site.classes is not None else None
        why = self._why_apart(sets.site.data.feature_count, answers)
        merged = self.merges and why is None and sets.merging
        trainings = {int(node): each for node in sets.nodes if (each := self._node_training(sets, int(node), merged))}
        teach: Callable[[TrainingSetup, list[NodeTraining]], None] = (
            training.train_together if self.together and why is None else training.train_apart
        )
        exchanging = isinstance(sets.discrepancy, SymmetricCrossEntropy)
        use: Use = "exchanging" if exchanging else "training"
        teach(self._setup(sets.site.data.feature_count, answers, use), list(trainings.values()))
        return [self._kept(trainings[int(node)].fit) if int(node) in trainings else None for node in sets.nodes]

    def _node_training(self, sets: TrainingSets, node: int, merged: bool) -> NodeTraining | None:
        training, weighted = _training(), sets.rows(node, merged)
        if not len(weighted.weight):
            return None
        seed, before = sets.seed(node), sets.before[node]
        if before is None or self.keep == "nothing":
            module = self._module(seed, weighted.X.shape[1]).to(getattr(training.torch, self.precision))
            before = training.TorchFit(training.as_arrays(module), {}, 0)
        out: NodeTraining | None = training.NodeTraining(weighted, before, seed)
        return out

    def _kept(self, fit: TorchFit) -> TorchFit:
        """The fit with what goes on to the next round."""
        return fit if self.keep == "optimiser" else fit._replace(memory={}, steps=0)

    def predict_nodes(self, fitted: Sequence[TorchFit], X: Sequence[Floats], classes: Floats | None) -> list[Floats]:
        """The outputs, or for classes the probabilities."""
        torch = _torch()
        answers = len(classes) if self.classifies and classes is not None else None

        def predict(fit: TorchFit, rows: Floats) -> Floats:
            setup = self._setup(rows.shape[1], answers, "predicting")
            arrays = {name: torch.from_numpy(value).to(setup.flat.device) for name, value in fit.arrays.items()}
            predicted = setup.predict(arrays, setup.flat.tensor(rows)).to(torch.float64)
            out: Floats = (torch.softmax(predicted, dim=-1) if self.classifies else predicted).cpu().numpy()
            return out

        with torch.no_grad():
            return [predict(fit, rows) for fit, rows in zip(fitted, X, strict=True)]


def _torch() -> Any:
    return layer("flat", "TorchModel").torch


def _training() -> Any:
    """How modules are trained; torch is imported there."""
    layer("flat", "TorchModel")
    from kinfolk.local_models import torch_training

    return torch_training
