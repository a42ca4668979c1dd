"""Local work: what a node does between two messages, set in one way for every algorithm that has it.

With L_i = q_i F_i, F_i the mean loss of a node, a node that starts at w takes

    w <- w − t_k (∇F_i(w; batch k) + what the algorithm adds)                  or a step of another optimiser  (1)

``local_steps`` times, or as often as ``local_epochs`` passes through its rows take. A batch is drawn without
replacement, keyed by seed, node and round. Every round starts a new optimiser.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from kinfolk import kernels
from kinfolk.algorithms.parametric import ParametricAlgorithm, check_step_size
from kinfolk.checks import AtLeast, InputError, LearningError, Positive, check_value, first_line
from kinfolk.engine.protocol import SMALLER_STEPS, S, Turn
from kinfolk.modules import layer
from kinfolk.network.problem import Problem
from kinfolk.network.site import Site
from kinfolk.objective.losses import Squared
from kinfolk.objective.node_loss import LocalLosses, NodeLoss, Slopes
from kinfolk.typing import Bools, Floats, Ints

HUGE = 1e30  # no parameter is so large unless steps are too long

StepSize = float | Callable[[int], float]
Addition = Callable[[Floats], Floats]  # from w (nodes, parameters) to what is added to the gradient there


@dataclass(frozen=True)
class Decay:
    """A step size that falls: first / (t + 1)^power in step t = 0, 1, ...

    >>> Decay(0.15)(0), Decay(0.15)(3)
    (0.15, 0.075)
    """

    first: Annotated[float, Positive()]
    power: Annotated[float, AtLeast(0)] = 0.5

    def __call__(self, step: int) -> float:
        """The step size of a step."""
        return float(self.first / (step + 1) ** self.power)


def size_of_step(given: StepSize, step: int) -> float:
    """The size of a step, from a number or a function of the number of steps before it."""
    if not callable(given):
        return given
    try:
        found = float(given(step))
    except Exception as error:  # whatever a user's function raises
        what = first_line(error)
        raise LearningError(f"Expected a step size for step {step} from {given!r}, got: {what}.") from error
    if not 0 < found < np.inf:
        raise LearningError(f"Expected step sizes > 0 from {given!r}, got {found:g} for step {step}.")
    return found


class Step(NamedTuple):
    """One step of a round."""

    losses: LocalLosses  # F_i on the rows of the step
    working: Bools | None  # (nodes,) who takes the step; None: everybody
    keys: Any  # (nodes,) for what models draw
    size: Floats | float  # t


class Plan(NamedTuple):
    """The batches of a round, node by node: ``passes`` batches make a pass, which takes ``taken`` rows."""

    steps: Ints  # (nodes,) number of batches
    passes: Ints  # (nodes,) batches in a pass
    taken: Ints  # (nodes,) rows of a pass

    @classmethod
    def of_steps(cls, sizes: Ints, batch: int, steps: int) -> Plan:
        """As many steps for every node, on ``batch`` of its rows each, or all it has."""
        own = np.minimum(batch, sizes)
        passes = np.maximum(sizes // np.maximum(own, 1), 1)
        return cls(np.full(len(sizes), steps), passes, passes * own)

    def draw(self, keys: Any, starts: Ints) -> Drawn:
        """The rows of all batches."""
        ends = np.concatenate([[0], np.cumsum(self.before(self.steps))]).astype(np.int64)
        return Drawn(self, ends, kernels.draw_batches(keys, starts, ends, self.passes, self.taken))

    def before(self, step: Any) -> Ints:
        """How many rows the batches before some step have, at every node."""
        whole, place = np.divmod(np.minimum(step, self.steps), self.passes)
        return whole * self.taken + place * self.taken // self.passes


class Drawn(NamedTuple):
    """A plan with its rows."""

    plan: Plan
    ends: Ints  # (nodes + 1,)
    rows: Ints  # those of a node one batch after the other

    def batch(self, step: int) -> tuple[Ints, Ints]:
        """The rows of all nodes in a step, and where those of a node start."""
        first = self.plan.before(step)
        counts = self.plan.before(step + 1) - first
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        places = np.repeat(self.ends[:-1] + first - starts[:-1], counts) + np.arange(starts[-1])
        return self.rows[places], starts

    def of_node(self, node: int) -> list[Ints]:
        """The rows of the steps of a node, one array for each step."""
        steps = np.arange(self.plan.steps[node] + 1)
        whole, place = np.divmod(steps, self.plan.passes[node])
        taken = self.plan.taken[node]
        return np.split(
            self.rows[self.ends[node] : self.ends[node + 1]],
            (whole * taken + place * taken // self.plan.passes[node])[1:-1],
        )


@dataclass(frozen=True)
class LocalWork(ParametricAlgorithm[S]):
    """For algorithms whose nodes take steps of their own between two messages.

    Parameters
    ----------
    loss : NodeLoss
        L_i: a loss of linear models, or ``TorchLoss``.
    local_steps : int
        τ, steps in a round.
    local_epochs : int, optional
        Passes through a node's rows in a round, instead of ``local_steps``. A node with more rows takes more steps.
    batch : int, optional
        Rows in a step; None for all. A node with fewer takes all it has. With ``local_epochs`` the batches of a pass
        differ by one row at most, and none is left out.
    step_size : float, callable or None
        t, or a function of the number of local steps before it (with ``local_epochs``, of passes before the round),
        such as ``Decay(0.1)``. None: that of a ``TorchLoss``, or a safe one from the curvature of linear models.
    optimiser : str, class or partial
        A class in ``torch.optim``, its name, or what makes one; it must move every number by itself. None: that of a
        ``TorchLoss``, or plain descent.
    """

    loss: NodeLoss = Squared()
    local_steps: Annotated[int, AtLeast(1)] = 1
    local_epochs: Annotated[int, AtLeast(1)] | None = None
    batch: Annotated[int, AtLeast(1)] | None = None
    step_size: StepSize | None = None
    optimiser: Any = None

    if_diverged: ClassVar[str] = SMALLER_STEPS
    moves_without_data: ClassVar[bool] = False  # whether what is added to the gradient moves nodes without data, too

    @property
    def carries_statistics(self) -> bool:
        """They are mixed and averaged like parameters."""
        return True

    # ------------------------------------------------------------------ before round 1

    def check(self, problem: Problem) -> None:
        """Settings that fit together, and an optimiser that moves every number by itself."""
        super().check(problem)
        name = type(self).__name__
        if self.local_epochs is not None and self.local_steps != 1:
            raise InputError(
                f"Expected either local_steps or local_epochs for {name}, got local_steps={self.local_steps} and "
                f"local_epochs={self.local_epochs}: leave one out."
            )
        if self.step_size is not None and not callable(self.step_size):
            check_value("step_size", name, self.step_size, Annotated[float, Positive()])
        if self.needs_curvature:
            check_step_size(self, None)
        else:
            self.rate(Turn(1, np.arange(0), 0), 0, 1.0)
        if not self._descends_plainly:
            self._check_optimiser(name)

    def _check_optimiser(self, name: str) -> None:
        if self.needs_curvature:
            raise InputError(
                f"The 'step_size' parameter of {name} must be a number > 0 for another optimiser than plain descent. "
                "Got None instead."
            )
        optimisers = layer("optimisers", name)
        make = optimisers.optimiser_class(self._optimiser, name)
        optimisers.check_by_element(make, self._optimiser, float(self.rate(Turn(1, np.arange(0), 0), 0, 1.0)))

    def refuse_optimiser(self, why: str) -> None:
        """For algorithms that rely on plain descent."""
        if not self._descends_plainly:
            raise InputError(
                f"Expected plain descent for {type(self).__name__}, {why}, got the optimiser {self._optimiser!r}: "
                "leave it out."
            )

    # ------------------------------------------------------------------ settings

    @property
    def _given_step_size(self) -> StepSize | None:
        return self.loss.own_step_size if self.step_size is None else self.step_size

    @property
    def _optimiser(self) -> Any:
        return self.loss.own_optimiser if self.optimiser is None else self.optimiser

    @property
    def _descends_plainly(self) -> bool:
        given = self._optimiser
        is_class = (
            getattr(given, "__module__", "").startswith("torch.optim") and getattr(given, "__name__", "") == "SGD"
        )
        return is_class or (isinstance(given, str) and given == "SGD")

    @property
    def needs_curvature(self) -> bool:
        """Whether the step size has to follow from the curvature of the losses."""
        return self._given_step_size is None

    def curvature(self, site: Site) -> Floats:
        """How curved F_i is at most, on all rows or on any batch; zero where a step size is given."""
        losses = site.local_losses(self.loss)
        if not self.needs_curvature:
            return np.zeros(site.node_count)
        return losses.means.smoothness if self.batch is None else losses.means.smoothness_of_rows

    def rate(self, turn: Turn, step: int, safe: Floats | float) -> Floats | float:
        """t of a step of this round; ``safe`` where none is given."""
        given = self._given_step_size
        if given is None:
            return safe
        before = (turn.round - 1) * (self.local_epochs or self.local_steps) + (0 if self.local_epochs else step)
        return size_of_step(given, max(0, before))

    # ------------------------------------------------------------------ (1)

    def plan(self, losses: LocalLosses) -> Plan:
        """How many batches of which sizes every node takes in a round."""
        sizes = np.diff(losses.starts)
        if self.batch is None:
            steps = np.full(len(sizes), self.local_epochs or self.local_steps)
            return Plan(steps, np.ones_like(sizes), sizes)
        if self.local_epochs is not None:
            passes = np.maximum(-(-sizes // self.batch), 1)
            return Plan(self.local_epochs * passes, passes, sizes)
        return Plan.of_steps(sizes, self.batch, self.local_steps)

    def smallest_batch(self, sizes: Ints) -> int:
        """The fewest rows of a step at any node."""
        if self.batch is None:
            return int(sizes.min())
        if self.local_epochs is None:
            return int(min(self.batch, sizes.min()))
        return int((sizes // -(-sizes // self.batch)).min())

    def way(self, losses: LocalLosses, turn: Turn, safe: float) -> Floats:
        """Σ_k t_k of every node in this round."""
        counts = self.plan(losses).steps
        lengths = [float(self.rate(turn, k, safe)) for k in range(int(counts.max(initial=0)))]
        return np.concatenate([[0.0], np.cumsum(lengths)])[counts]

    def steps(self, site: Site, turn: Turn, safe: Floats | float, losses: LocalLosses | None = None) -> Iterator[Step]:
        """The steps of a round: their rows, who takes them, and how long they are."""
        losses = site.local_losses(self.loss) if losses is None else losses
        keys = turn.keys(site.nodes, "batch")
        plan = self.plan(losses)
        drawn = None if self.batch is None else plan.draw(keys, losses.starts)
        for k in range(int(plan.steps.max(initial=0))):
            resting = plan.steps <= k
            if not self.moves_without_data:
                resting |= ~losses.has_data
            on = losses.means if drawn is None else losses.means_on(*drawn.batch(k))
            yield Step(on, ~resting if resting.any() else None, keys + np.uint64(k), self.rate(turn, k, safe))

    def worked(
        self,
        site: Site,
        turn: Turn,
        start: Floats,
        safe: Floats | float = 1.0,
        add: Addition | None = None,
        at: Floats | None = None,
        losses: LocalLosses | None = None,
    ) -> Floats:
        """Where the local work of a round leads from ``start`` (nodes, parameters), which is left as it is.

        The first gradient is taken ``at`` other parameters if some are given; statistics go on from ``start``. Steps go
        down ``losses``, by default those of all rows.
        """
        losses = site.local_losses(self.loss) if losses is None else losses
        if add is None and at is None and self._walks(losses):
            w = self._walked(site, turn, start, losses)
            self.check_finite(site, w, turn)
            return w
        trained = losses.trained
        move = self._mover(start[:, :trained])
        w = start
        for k, step in enumerate(self.steps(site, turn, safe, losses)):
            here = w if k or at is None else np.concatenate([at[:, :trained], start[:, trained:]], axis=1)
            gradient, renewed = self.slopes(site, step, here)
            if add is not None:
                gradient = gradient + add(here)
            w = move(gradient[:, :trained], step)
            if trained < start.shape[1]:
                w = np.concatenate([w, renewed[:, trained:]], axis=1)
        self.check_finite(site, w, turn)
        return w

    def _walks(self, losses: LocalLosses) -> bool:
        """Whether all steps of a round had better be made in one go."""
        if not self._descends_plainly or self._given_step_size is None:
            return False
        plan = self.plan(losses)
        counted = int(plan.before(plan.steps).sum())
        filled = int(plan.steps.max(initial=0)) * self._most_rows(losses) * int(losses.has_data.sum())
        return counted > 0 and losses.walks(self._most_rows(losses), filled / counted)

    def _most_rows(self, losses: LocalLosses) -> int:
        """Of a step at any node."""
        most = int(np.diff(losses.starts).max(initial=0))
        return most if self.batch is None else min(self.batch, most)

    def _walked(self, site: Site, turn: Turn, start: Floats, losses: LocalLosses) -> Floats:
        """Where plain descent leads every node."""
        plan = self.plan(losses)
        drawn = plan.draw(turn.keys(site.nodes, "batch"), losses.starts)
        lengths = [float(self.rate(turn, k, 1.0)) for k in range(int(plan.steps.max(initial=0)))]
        return losses.walked(start, drawn, self._most_rows(losses), np.asarray(lengths))

    def slopes(self, site: Site, step: Step, w: Floats) -> Slopes:
        """∇F_i on the rows of a step, and w with its statistics renewed."""
        return step.losses.training_slopes(w, step.keys)

    def _mover(self, start: Floats) -> Callable[[Floats, Step], Floats]:
        """From slopes to where a step leads."""
        if self._descends_plainly:
            return _PlainDescent(start)
        optimisers = layer("optimisers", type(self).__name__)
        return _Optimised(optimisers.Descent(optimisers.optimiser_class(self._optimiser, ""), start, 1.0))

    def check_finite(self, site: Site, w: Floats, turn: Turn) -> None:
        """Refuse to go on with parameters that are no numbers, or so large that nothing can come of them."""
        bad = np.flatnonzero(~(np.abs(w) < HUGE).all(axis=1))
        if len(bad):
            others = f" and {len(bad) - 1} others" if len(bad) > 1 else ""
            raise LearningError(
                f"The local work of node {site.names[bad[0]]!r}{others} diverged in round {turn.round:,}: "
                f"{SMALLER_STEPS}."
            )


class _PlainDescent:
    """w <- w − t s."""

    def __init__(self, start: Floats) -> None:
        self.w = start

    def __call__(self, slope: Floats, step: Step) -> Floats:
        moved = self.w - step.size * slope
        self.w = moved if step.working is None else np.where(step.working[:, None], moved, self.w)
        return self.w


class _Optimised:
    """Steps of an optimiser; those who rest stay where they are."""

    def __init__(self, descent: Any) -> None:
        self.descent = descent

    def __call__(self, slope: Floats, step: Step) -> Floats:
        w: Floats = self.descent.w
        before = None if step.working is None else w[~step.working]
        self.descent.step(slope, float(np.asarray(step.size).max()))
        if step.working is not None:
            w[~step.working] = before
        return w
