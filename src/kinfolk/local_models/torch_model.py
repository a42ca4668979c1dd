"""Modules of torch as local models of FedRelax; all nodes with the same model are trained in one computation.

A node minimises, with own rows counting 1 and rows labelled by neighbour j counting rate_i A_ij,

    Σ_r weight_r ℓ(f(x_r), target_r) / Σ_r weight_r                                                           (1)

by an optimiser of torch, from where it stood a round before. ℓ is the squared error, the cross-entropy of logits
with the probabilities that neighbours have given, the squared error of probabilities, or a function of yours.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from kinfolk.checks import AtLeast, InputError, Positive, check_parameters
from kinfolk.local_models.discrepancies import Discrepancy, SquaredProbabilities, SymmetricCrossEntropy
from kinfolk.local_models.weighted_rows import TrainingSets
from kinfolk.network.problem import Problem
from kinfolk.typing import Floats

if TYPE_CHECKING:
    from kinfolk.local_models.torch_training import NodeTraining, TorchFit, TrainingSetup


Mode = Literal["training", "exchanging", "saying"]  # exchanging: some targets are logarithms, see the training


@dataclass(frozen=True, eq=False)
class TorchModel:
    """A module of torch at every node; needs ``pip install "kinfolk[torch]"``.

    Parameters
    ----------
    module : a ``torch.nn.Module`` for rows of features, or a function without arguments that makes one. For numbers
        its output has shape (rows,) or (rows, 1); for classes (rows, classes), logits.
    loss : ``"squared"``; ``"cross-entropy"`` or ``"squared probabilities"`` for classes; or a function of (output,
        target) that gives one value for every row, for numbers unless its attribute ``classifies`` is true.
    optimiser : the name of a class in ``torch.optim``, or such a class.
    learning_rate : torch's ``lr``.
    epochs : how often a node goes through its rows in a round; with full batches, the number of steps.
    batch_size : rows in a step; None for all.
    patience : a node ends its round when its loss has not fallen by more than ``tolerance`` for so many epochs; None
        for never.
    tolerance : by how much the loss has to fall to count.
    start : parameters in the first round: ``"drawn"`` for every node (a module's layers are reset), or as ``"given"``.
    keep : what goes on from round to round: ``"nothing"``, ``"parameters"``, or with them what the ``"optimiser"``
        remembers.
    precision : of parameters and steps.
    together : whether nodes are trained in one computation. Where that would change the result, as with batch
        normalisation or dropout, it is not done, and the run's notes say so.
    options : what else the optimiser takes, such as ``{"betas": (0.9, 0.99)}``.

    >>> import torch
    >>> from kinfolk import FedRelax, Network, fit, graphs
    >>> network = Network(graphs.chain(2), [([[1.0]], [0.0]), ([[1.0]], [1.0])], public=[[1.0]])
    >>> model = TorchModel(torch.nn.Linear(1, 1), optimiser="SGD", learning_rate=0.1)
    >>> run = fit(network, FedRelax(model, lam=1.0), rounds=10)
    >>> run.predict([[1.0], [1.0]], node=[0, 1]).round(2)
    array([0.33, 0.67])
    >>> model.module_of(run.models[0])
    Linear(in_features=1, out_features=1, bias=True)
    """

    module: Any
    loss: Any = "squared"
    optimiser: str | type = "Adam"
    learning_rate: Annotated[float, Positive()] = 0.01
    epochs: Annotated[int, AtLeast(1)] = 100
    batch_size: Annotated[int, AtLeast(1)] | None = None
    patience: Annotated[int, AtLeast(1)] | None = None
    tolerance: Annotated[float, AtLeast(0)] = 1e-6
    start: Literal["drawn", "given"] = "drawn"
    keep: Literal["nothing", "parameters", "optimiser"] = "parameters"
    precision: Literal["float32", "float64"] = "float32"
    together: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def classifies(self) -> bool:
        """Whether it says probabilities of classes."""
        by_name = self.loss in ("cross-entropy", "squared probabilities")
        return by_name or bool(getattr(self.loss, "classifies", False))

    @cached_property
    def merges(self) -> bool:
        """True for full batches and a loss with a name, unless layers draw or look at several rows."""
        nn = _training().torch.nn
        mixing = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._NormBase, nn.RReLU)
        by_row = not any(isinstance(layer, mixing) for layer in self._blank.modules())
        return isinstance(self.loss, str) and self.batch_size is None and by_row

    # ------------------------------------------------------------------ before round 1

    def check(self) -> None:
        """Refuse parameters out of range, and what is no module, loss or optimiser."""
        training = _training()
        check_parameters(self)
        if not callable(self.loss) and self.loss not in training.LOSSES:
            names = ", ".join(map(repr, training.LOSSES))
            self._refuse("loss", f"one of {names}, or a function that gives one value for every row")
        known = training.torch.optim
        if not (isinstance(self._optimiser_class, type) and issubclass(self._optimiser_class, known.Optimizer)):
            self._refuse("optimiser", "a class in torch.optim, or the name of one")
        if not isinstance(self.options, Mapping) or "lr" in self.options:
            self._refuse("options", "a mapping without 'lr', which is learning_rate")
        if any(training.torch.nn.parameter.is_lazy(value) for value in self._blank.parameters()):
            self._refuse("module", "a module whose layers know their sizes")

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
        """A module of this shape, whose parameters do not matter."""
        module = self._module(0)
        if not isinstance(module, _training().torch.nn.Module):
            self._refuse("module", "a torch.nn.Module, or a function without arguments that makes one")
        return module

    def _module(self, seed: int) -> Any:
        """What a node starts from."""
        training = _training()
        with training.drawing_from(seed):
            if not isinstance(self.module, training.torch.nn.Module):
                return self.module() if callable(self.module) else self.module
            module = copy.deepcopy(self.module)
            for layer in module.modules() if self.start == "drawn" else ():
                if hasattr(layer, "reset_parameters"):
                    layer.reset_parameters()
            return module

    def module_of(self, fit: TorchFit) -> Any:
        """The module of a node, ready to predict: ``model.module_of(run.models[node])``."""
        torch = _training().torch
        module = copy.deepcopy(self._blank).to(getattr(torch, self.precision))
        with torch.no_grad():
            for name, value in [*module.named_parameters(), *module.named_buffers()]:
                value.copy_(torch.from_numpy(fit.arrays[name]))
        return module.eval()

    @property
    def _optimiser_class(self) -> Any:
        known = _training().torch.optim
        return getattr(known, self.optimiser, None) if isinstance(self.optimiser, str) else self.optimiser

    @property
    def _implementation(self) -> dict[str, bool]:
        """One pass over the numbers instead of one for every operation, where the optimiser has it and is free."""
        known = inspect.signature(self._optimiser_class).parameters
        free = not self.options.keys() & {"fused", "foreach", "differentiable"}
        return {"fused": True} if "fused" in known and free else {}

    def _setup(self, answers: int | None, mode: Mode = "training") -> TrainingSetup:
        """How to train, or to say, so many classes; prepared once."""
        if (answers, mode) not in self._courses:
            self._courses[answers, mode] = self._new_setup(answers, mode)
        return self._courses[answers, mode]

    @cached_property
    def _courses(self) -> dict[tuple[int | None, str], TrainingSetup]:
        return {}

    def _new_setup(self, answers: int | None, mode: Mode) -> TrainingSetup:
        training = _training()
        named = training.LOSSES[self.loss] if isinstance(self.loss, str) else self.loss
        precision = getattr(training.torch, self.precision)
        out: TrainingSetup = training.TrainingSetup(
            module=copy.deepcopy(self._blank).to(precision).train(mode != "saying"),
            row_loss=training.exchanging_cross_entropy if mode == "exchanging" else named,
            optimiser=partial(self._optimiser_class, lr=self.learning_rate, **self._implementation, **self.options),
            epochs=self.epochs,
            batch_size=self.batch_size,
            patience=self.patience,
            tolerance=self.tolerance,
            answers=answers,
            precision=precision,
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
            setup = self._setup(answers)
            self._check_output(setup, features)
            self._check_memory(setup)
            self._trials[key] = _training().why_apart(setup, self._module, features)
        return self._trials[key]

    def _check_output(self, setup: TrainingSetup, features: int) -> None:
        """Refuse a module that does not take such rows, or a loss that does not give a value for each."""
        training, rows = _training(), 5
        X = setup.tensor(np.zeros((rows, features)))
        expected = (rows,) if setup.answers is None else (rows, setup.answers)
        try:
            with training.drawing_from(0), training.torch.no_grad():
                said = setup.say({}, X)
                lost = setup.row_loss(said, training.torch.ones_like(said))
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            what = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise InputError(f"Expected a module and a loss for rows of {features} features, got: {what}.") from error
        if tuple(said.shape) != expected:
            wanted = "(rows,) or (rows, 1)" if setup.answers is None else f"(rows, {setup.answers}), logits,"
            got = ", ".join(["rows", *map(str, said.shape[1:])])
            raise InputError(f"Expected a module whose output has shape {wanted} for these data, got ({got}).")
        if tuple(lost.shape) != (rows,):
            raise InputError(f"Expected a loss with one value for each of {rows} rows, got shape {tuple(lost.shape)}.")

    def _check_memory(self, setup: TrainingSetup) -> None:
        """Refuse to keep what cannot be kept."""
        if self.keep == "optimiser" and not _training().remembers_arrays(setup.optimiser):
            name = self._optimiser_class.__name__
            raise InputError(f"Expected an optimiser whose memory is made of arrays, got {name}: keep='parameters'.")

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
        teach(self._setup(answers, "exchanging" if exchanging else "training"), list(trainings.values()))
        return [self._kept(trainings[int(node)].fit) if int(node) in trainings else None for node in sets.nodes]

    def _node_training(self, sets: TrainingSets, node: int, merged: bool) -> NodeTraining | None:
        training, weighted = _training(), sets.rows(node, merged)
        if not len(weighted.weight):
            return None
        seed, before = sets.seed(node), sets.before[node]
        if before is None or self.keep == "nothing":
            module = self._module(seed).to(getattr(training.torch, self.precision))
            before = training.TorchFit(training.as_arrays(module), {}, 0)
        out: NodeTraining | None = training.NodeTraining(weighted, before, seed)
        return out

    def _kept(self, fit: TorchFit) -> TorchFit:
        """The fit with what goes on to the next round."""
        return fit if self.keep == "optimiser" else fit._replace(memory={}, steps=0)

    def predict_nodes(self, fitted: Sequence[TorchFit], X: Sequence[Floats], classes: Floats | None) -> list[Floats]:
        """The outputs, or for classes the probabilities."""
        torch = _training().torch
        setup = self._setup(len(classes) if self.classifies and classes is not None else None, "saying")

        def say(fit: TorchFit, rows: Floats) -> Floats:
            arrays = {name: torch.from_numpy(value) for name, value in fit.arrays.items()}
            said = setup.say(arrays, setup.tensor(rows)).to(torch.float64)
            out: Floats = (torch.softmax(said, dim=-1) if self.classifies else said).numpy()
            return out

        with torch.no_grad():
            return [say(fit, rows) for fit, rows in zip(fitted, X, strict=True)]


def _training() -> Any:
    """How modules are trained; torch is imported here."""
    try:
        from kinfolk.local_models import torch_training
    except ImportError as error:
        raise InputError('Expected torch for TorchModel: install it with pip install "kinfolk[torch]".') from error
    return torch_training
