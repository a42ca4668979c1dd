"""How modules of torch are trained: a stack of nodes in one computation, or one node after another.

Parameters of the nodes are stacked along a first axis, forward and backward are mapped over it, and one optimiser moves
the stack. That gives what every node would get alone if the module treats rows one by one and the optimiser treats
numbers one by one; ``why_apart`` tries whether they do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.func import vmap

from kinfolk.checks import first_line
from kinfolk.local_models.weighted_rows import WeightedRows
from kinfolk.modules.flat import FlatModule, Mode, drawing_from
from kinfolk.modules.stacks import MOST_NUMBERS
from kinfolk.typing import Floats

TRIAL_STEPS = 3  # by then a module or an optimiser that mixes rows or nodes has shown it


def exchanging_cross_entropy(logits: Any, target: Any) -> Any:
    """−Σ_c target_c log q_c with q = softmax(logits), and −Σ_c q_c target_c where targets are logarithms, none > 0."""
    log_q = torch.log_softmax(logits, dim=-1)
    return -(target.clamp(min=0) * log_q + log_q.exp() * target.clamp(max=0)).sum(dim=-1)


class TorchFit(NamedTuple):
    """A trained module as arrays; ``TorchModel.module_of`` makes a module of it."""

    arrays: dict[str, Any]  # parameters and buffers by name
    memory: dict[str, Any]  # what the optimiser remembers: {"weight/exp_avg": ...}; empty if it is not kept
    steps: int  # that the optimiser has taken since it remembers


@dataclass
class NodeTraining:
    """A node in training: its rows, where it is, and how long its loss has not fallen."""

    rows: WeightedRows
    fit: TorchFit
    seed: int
    best: float = math.inf
    waited: int = 0
    draw: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.draw = np.random.default_rng(self.seed)


@dataclass(frozen=True, eq=False)
class TrainingSetup:
    """What there is to know for training, whichever the node.

    A node minimises Σ_r weight_r ℓ(f(x_r), target_r) / Σ_r weight_r; a batch has its expectation.
    """

    flat: FlatModule  # its parameters do not matter
    mode: Mode
    row_loss: Callable[[Any, Any], Any]
    optimiser: Callable[[list[Any]], Any]
    epochs: int
    batch: int | None
    patience: int | None
    tolerance: float
    answers: int | None  # number of classes; None: numbers are predicted

    @property
    def trained(self) -> list[str]:
        """The names of the parameters that move."""
        return [name for name, value in self.flat.template.named_parameters() if value.requires_grad]

    def predict(self, arrays: Any, X: Any) -> Any:
        """The module's output with given parameters: (rows,) or (rows, classes)."""
        predicted = self.flat.call(arrays, X, self.mode)
        return (
            predicted.squeeze(-1)
            if self.answers is None and predicted.ndim == 2 and predicted.shape[1] == 1
            else predicted
        )

    def objective(self, moving: Any, fixed: Any, X: Any, target: Any, weight: Any) -> Any:
        """The weighted loss of one node's rows."""
        return (weight * self.row_loss(self.predict({**moving, **fixed}, X), target)).sum()


class Stack:
    """Some nodes on their way: one node alone as it is, several along a first axis, with rows padded at weight zero."""

    def __init__(self, setup: TrainingSetup, trainings: Sequence[NodeTraining], together: bool) -> None:
        self.setup, self.trainings, self.together = setup, trainings, together
        fits = [training.fit for training in trainings]
        moving = set(setup.trained)
        arrays = {name: self._joined([fit.arrays[name] for fit in fits]) for name in fits[0].arrays}
        self.moving = {name: value.requires_grad_() for name, value in arrays.items() if name in moving}
        self.fixed = {name: value for name, value in arrays.items() if name not in moving}
        self.optimiser = setup.optimiser(list(self.moving.values()))
        self._remember(fits)
        self.X, self.target, self.weight = (
            setup.flat.tensor(_padded([training.rows[k] for training in trainings])) for k in range(3)
        )
        self.sizes = np.array([len(training.rows.weight) for training in trainings])
        real = torch.tensor(np.arange(self.X.shape[1]) < self.sizes[:, None], device=self.X.device)
        self.weight = torch.where(real, self.weight, 0.0)
        self.rows_of_node = setup.flat.tensor(self.sizes)[:, None]
        self.weight *= self.rows_of_node / self.weight.sum(dim=1, keepdim=True)  # 1 in the mean

    def _joined(self, values: list[Any]) -> Any:
        """One tensor of what the nodes have each; whole numbers stay whole."""
        tensor = torch.from_numpy(np.stack(values) if self.together else np.array(values[0]))
        flat = self.setup.flat
        return tensor.to(flat.device, flat.dtype if tensor.is_floating_point() else tensor.dtype)

    def _remember(self, fits: list[TorchFit]) -> None:
        """Give the optimiser its memory back. Numbers that it keeps for a whole tensor are equal at all nodes."""
        for key in fits[0].memory:
            name, entry = key.rsplit("/", 1)
            tensor = self.moving[name]
            by_element = fits[0].memory[key].shape == fits[0].arrays[name].shape
            value = self._joined([fit.memory[key] for fit in fits]) if by_element else torch.tensor(fits[0].memory[key])
            self.optimiser.state[tensor][entry] = value

    def hand_back(self) -> None:
        """Every node gets where it is now."""
        arrays = {name: value.detach().cpu().numpy() for name, value in (self.moving | self.fixed).items()}
        memory = {
            (name, entry): torch.as_tensor(value).cpu().numpy()
            for name, tensor in self.moving.items()
            for entry, value in self.optimiser.state[tensor].items()
            if is_array(value)
        }
        for k, training in enumerate(self.trainings):
            own = {name: self._part(value, k) for name, value in arrays.items()}
            kept = {
                f"{name}/{entry}": self._part(value, k) if value.shape == arrays[name].shape else value.copy()
                for (name, entry), value in memory.items()
            }
            training.fit = TorchFit(own, kept, training.fit.steps)

    def _part(self, value: Any, k: int) -> Any:
        """What belongs to the k-th node."""
        return np.array(value[k] if self.together else value)

    def epoch(self) -> None:
        """Once through the rows."""
        total, steps = np.zeros(len(self.trainings)), 0
        for rows, X, target, weight in self._batches():
            total += rows * self._step(X, target, weight)
            steps += 1
        for training, loss in zip(self.trainings, total / self.sizes, strict=True):
            fell = loss < training.best - self.setup.tolerance
            training.best, training.waited = (loss, 0) if fell else (training.best, training.waited + 1)
            training.fit = training.fit._replace(steps=training.fit.steps + steps)

    def _batches(self) -> Iterator[tuple[Any, Any, Any, Any]]:
        """Rows by batch: how many there are at each node, X, target, and weights over that number."""
        size, length = self.setup.batch, self.X.shape[1]
        if size is None or size >= length:
            yield self.sizes, self.X, self.target, self.weight / self.rows_of_node
            return
        drawn = [training.draw.permutation(count) for training, count in zip(self.trainings, self.sizes, strict=True)]
        order = np.stack([np.pad(rows, (0, length - len(rows)), mode="edge") for rows in drawn])
        node = np.arange(len(order))[:, None]
        for first in range(0, length, size):
            rows = order[:, first : first + size]
            real = np.arange(first, first + rows.shape[1]) < self.sizes[:, None]
            count = real.sum(axis=1)
            weight = self.weight[node, rows] * self.setup.flat.tensor(real / count[:, None])
            yield count, self.X[node, rows], self.target[node, rows], weight

    def _step(self, X: Any, target: Any, weight: Any) -> Floats:
        """One step of the optimiser; the loss of every node before it."""
        before: list[Any] = []

        def closure() -> Any:
            self.optimiser.zero_grad(set_to_none=False)  # new memory costs more than zeros
            losses = self._losses(X, target, weight)
            losses.sum().backward()
            before.append(losses.detach())
            return losses.detach().sum()

        self.optimiser.step(closure)
        out: Floats = before[0].cpu().numpy().astype(np.float64)
        return out

    def _losses(self, X: Any, target: Any, weight: Any) -> Any:
        """(nodes,)"""
        if self.together:
            return vmap(self.setup.objective)(self.moving, self.fixed, X, target, weight)
        return self.setup.objective(self.moving, self.fixed, X[0], target[0], weight[0])[None]


def is_array(value: Any) -> bool:
    """Whether something that an optimiser remembers can be kept as an array."""
    return torch.is_tensor(value) or isinstance(value, int | float)


def remembers_arrays(optimiser: Callable[[list[Any]], Any]) -> bool:
    """Whether an optimiser can be given its memory back, found by a step."""
    tensor = torch.ones(2, 2, requires_grad=True)
    trial = optimiser([tensor])

    def closure() -> Any:
        loss = (tensor**2).sum()
        loss.backward()
        return loss.detach()

    trial.step(closure)
    return all(value is None or is_array(value) for value in trial.state[tensor].values())


def _padded(parts: list[Any]) -> Any:
    """Arrays of different lengths as one, (parts, longest, ...); a part's first row fills it up."""
    longest = max(map(len, parts))
    return np.stack([np.concatenate([part, np.repeat(part[:1], longest - len(part), axis=0)]) for part in parts])


def train(setup: TrainingSetup, trainings: Sequence[NodeTraining], together: bool) -> None:
    """Train some nodes; those whose loss no longer falls leave."""
    stack = Stack(setup, trainings, together)
    for _ in range(setup.epochs):
        stack.epoch()
        if setup.patience is not None and any(training.waited >= setup.patience for training in stack.trainings):
            stack.hand_back()
            staying = [training for training in stack.trainings if training.waited < setup.patience]
            if not staying:
                return
            stack = Stack(setup, staying, together)
    stack.hand_back()


def train_together(setup: TrainingSetup, trainings: Sequence[NodeTraining]) -> None:
    """Train nodes stack by stack: those that take the same steps and have a similar number of rows."""

    def kind(training: NodeTraining) -> tuple[int, ...]:
        rows = len(training.rows.weight)
        batches = 1 if setup.batch is None else math.ceil(rows / setup.batch)
        return bool(training.fit.memory), training.fit.steps, batches, rows.bit_length()

    for _, alike in groupby(sorted(trainings, key=kind), key=kind):
        group = list(alike)
        largest = max(training.rows.X.size for training in group)
        size = max(1, MOST_NUMBERS // largest)
        for first in range(0, len(group), size):
            train(setup, group[first : first + size], together=True)


def train_apart(setup: TrainingSetup, trainings: Sequence[NodeTraining]) -> None:
    """Train one node after another; whatever a module draws is keyed by its seed."""
    for training in trainings:
        with drawing_from(training.seed):
            train(setup, [training], together=False)


def as_arrays(module: Any) -> dict[str, Any]:
    """Parameters and buffers, copied."""
    named = [*module.named_parameters(), *module.named_buffers()]
    return {name: value.detach().cpu().numpy().copy() for name, value in named}


def why_apart(setup: TrainingSetup, start: Callable[[int], Any], features: int) -> str | None:
    """Why nodes cannot be trained in one computation, found by trying in double precision; None if they can."""
    flat = FlatModule.of(start(0), "float64", str(setup.flat.device), setup.flat.side)
    trial = replace(setup, flat=flat, epochs=TRIAL_STEPS, batch=None, patience=None)
    draw = np.random.default_rng(0)

    def trainings() -> list[NodeTraining]:
        return [
            NodeTraining(weighted, TorchFit(as_arrays(start(k).double()), {}, 0), k) for k, weighted in enumerate(sets)
        ]

    sets = [_random_rows(draw, rows, features, setup.answers) for rows in (3, 5)]
    joint, apart = trainings(), trainings()
    train_apart(trial, apart)
    try:
        train(trial, joint, together=True)
    except Exception as error:  # whatever vmap cannot map
        return first_line(error)
    same = all(
        np.allclose(one.fit.arrays[name], other.fit.arrays[name], rtol=1e-8, atol=1e-10)
        for one, other in zip(joint, apart, strict=True)
        for name in one.fit.arrays
    )
    return None if same else "its output for a row depends on other rows, or its optimiser mixes nodes"


def _random_rows(draw: np.random.Generator, rows: int, features: int, answers: int | None) -> WeightedRows:
    target = draw.normal(size=rows) if answers is None else draw.dirichlet(np.ones(answers), size=rows)
    return WeightedRows(draw.normal(size=(rows, features)), target, draw.uniform(0.5, 1.5, rows))
