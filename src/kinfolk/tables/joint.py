"""Linear members that parties learn together, for all parts, values and scores at once: Newton's method over parties.

The job has no rows. For squared errors one step is exact. For classes, counts and quantiles, steps of all fits are
taken at the same time; one that makes its objective grow is halved.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from kinfolk.network.graph import Graph
from kinfolk.objective.losses import Kinked, Squared
from kinfolk.objective.symmetric import solve_symmetric
from kinfolk.tables.batches import Phase
from kinfolk.tables.cross_validation import CrossValidation
from kinfolk.tables.design import Design
from kinfolk.tables.members.member import Value
from kinfolk.tables.members.scores import loss_of
from kinfolk.tables.party import (
    Call,
    Derivatives,
    Gram,
    GraphFits,
    MixedFits,
    Parties,
    Party,
    Reaction,
    Step,
    System,
    Turn,
)
from kinfolk.typing import Bools, Floats, Ints

STEPS, HALVINGS = 60, 30
POOLED_ACCURACY = 1e-10  # of the gradient, relative to where it starts
KINK_ACCURACY = 1e-6
ACCURACY = 1e-10  # of the objective: fits end after a step that gains less
PARTS = tuple(0.4 ** np.arange(1.0, 13.0))  # of a step that are tried where it is too long
KINKS, KINK_STEPS = (0.1, 0.01, 1e-3, 1e-4), 30  # the same for models of nodes, by parabolas: no step is too long
ROUNDINGS = (0.3, 0.1, 0.03, 0.01, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5)  # of kinks, in deviations of the target, in turn
LONGEST = 1e6  # step of a pooled model: where kinks are rounded narrowly, curvatures can all but vanish
NO_RIDGE = 1e-8
LEAST_ROWS = 10  # of a node in every part, and twice its parameters, for its response to be read
MOST_NUMBERS = 2**23  # of the responses of a party's boundary nodes
EXACTLY, FORCING, MOST_GRADIENTS = 1e-9, 0.03, 300  # of conjugate gradients: precision, of one step of many, and steps
LEAST = 1e-10  # of the mean curvature, where nothing else holds a common model


# ---------------------------------------------------------------------- the pooled model


def pooled_models(
    parties: Parties, design: Design, gram: Gram, ridges: Sequence[float], without: Sequence[int] = ()
) -> Floats:
    """The pooled model for every part and ridge term (parts, ridges, scores, p).

    ``gram``: sums over all parties, from which squared errors follow; ``without``: features whose coefficients stay 0.
    """
    shape = design.folds + 1, len(ridges), design.target.outputs, design.width
    free = np.setdiff1d(np.arange(design.width), list(without))
    part, ridge, score = (each.ravel() for each in np.indices(shape[:3]))
    penalty = np.asarray(ridges)[ridge][:, None] * np.r_[np.ones(design.width - 1), 0.0]
    w, loss = np.zeros((len(part), design.width)), loss_of(design.target)
    if isinstance(loss, Squared):  # Σ (x'w − y)², which is X'X and X'y
        sums = Derivatives(np.zeros(len(part)), -2 * gram.products[part, :, 0], 2 * gram.gram[part])
        w[:, free] = _pooled_step(sums, penalty, w, free)
    else:
        for rounding in ROUNDINGS if isinstance(loss, Kinked) else (0.0,):
            w = _pooled_newton(parties, part, score, rounding, penalty, w, free)
    return w.reshape(shape)


def _pooled_step(sums: Derivatives, penalty: Floats, w: Floats, free: Ints) -> Floats:
    """Newton's step of the free coefficients."""
    hessian = sums.hessian + penalty[:, :, None] * np.eye(w.shape[1])
    gradient = sums.gradient + penalty * w
    step = -solve_symmetric(hessian[:, free][:, :, free], gradient[:, free])
    return np.asarray(step * np.minimum(1.0, LONGEST / np.maximum(np.abs(step).max(axis=1), 1.0))[:, None])


def _pooled_newton(
    parties: Parties, part: Ints, score: Ints, rounding: float, penalty: Floats, w: Floats, free: Ints
) -> Floats:
    """All fits at the same time; where the loss has not fallen after a step, the best of several parts of it counts."""

    def derivatives(w: Floats, some: Ints) -> tuple[Derivatives, Floats]:
        sums = parties.total(Call(Party.derivatives, w=w, part=part[some], score=score[some], rounding=rounding))
        return sums, sums.loss + 0.5 * (penalty[some] * w**2).sum(axis=1)

    w, alive = w.copy(), np.arange(len(w))
    sums, objective = derivatives(w, alive)
    goal = POOLED_ACCURACY * np.linalg.norm(sums.gradient[:, free], axis=1)
    for _ in range(STEPS):
        step = np.zeros((len(alive), w.shape[1]))
        step[:, free] = _pooled_step(sums, penalty[alive], w[alive], free)
        at = w[alive] + step
        sums, after = derivatives(at, alive)
        highest = objective[alive] + 1e-12 * np.abs(objective[alive])
        short = np.flatnonzero(after > highest)
        if len(short):
            tried = np.concatenate([w[alive[short]] + size * step[short] for size in PARTS])
            shorter, heights = derivatives(tried, np.tile(alive[short], len(PARTS)))
            best = np.argmin(heights.reshape(len(PARTS), -1), axis=0) * len(short) + np.arange(len(short))
            at[short], after[short] = tried[best], heights[best]
            for mine, theirs in zip(sums, shorter, strict=True):
                mine[short] = theirs[best]
        falls = after <= highest
        w[alive[falls]], objective[alive[falls]] = at[falls], after[falls]
        gradient = sums.gradient + penalty[alive] * at
        rough = falls & (np.linalg.norm(gradient[:, free], axis=1) > goal[alive])
        alive, sums = alive[rough], Derivatives(*(each[rough] for each in sums))
        if not len(alive):
            break
    return w


# ---------------------------------------------------------------------- batches


class JointFits(ABC):
    """A batch of fits at all parties, as the job sees it.

    Parameters
    ----------
    parties : Parties
        Who has the rows.
    design : Design
        What is learnt from.
    name : str
        Of the batch.
    count : int
        Number of fits.
    """

    def __init__(self, parties: Parties, design: Design, name: str, count: int) -> None:
        self.parties, self.design, self.name, self.count = parties, design, name, count
        loss = loss_of(design.target)
        self.exact = isinstance(loss, Squared)
        self.roundings = KINKS if isinstance(loss, Kinked) else (0.0,)  # one after the other
        self.rounding = self.roundings[0]
        self.kinked = len(self.roundings) > 1

    @abstractmethod
    def begin(self) -> Call[System]:
        """Start all fits."""

    @abstractmethod
    def received(self, answer: Any) -> System:
        """What parties answer, put together."""

    @abstractmethod
    def solved(self, system: System, fits: Ints) -> None:
        """Work out the next step of some fits."""

    @abstractmethod
    def step(self, size: Floats, back: Bools, again: Bools) -> Call[System]:
        """Take this step, or part of it; some fits take the last one back first."""

    @abstractmethod
    def objective(self, system: System, fits: Ints) -> Floats:
        """The whole objective of some fits, where the last step has led."""


def learnt_together(batches: Sequence[JointFits]) -> list[Call[System]]:
    """Fit several batches at the same time; what is left to ask, which may go with what follows."""
    parties = batches[0].parties
    running = [_Conjugate(each) if isinstance(each, JointPulled) else _Descent(each) for each in batches]
    for each, answer in zip(running, parties.ask(*(each.batch.begin() for each in running)), strict=True):
        each.start(answer)
    while any(each.question is not None for each in running):
        asking = [each for each in running if each.question is not None]
        if all(each.last for each in asking):
            return [each.question for each in asking if each.question is not None]
        for each, answer in zip(asking, parties.ask(*(each.question for each in asking)), strict=True):  # type: ignore[arg-type]
            each.go_on(answer)
    return []


class _Descent:
    """Newton's method for one batch: from an answer to the next question."""

    question: Call[System] | None  # None: all fits have ended
    system: System  # of the fits that go on, where the last step has led
    after: Floats  # their objectives there
    places: Ints  # which of them have taken it back
    asked: Ints  # whom the next answer is about

    def __init__(self, batch: JointFits) -> None:
        self.batch, self.question, self.last, self.sharper = batch, None, False, False
        self.steps = self.halvings = 0

    def start(self, answer: Any) -> None:
        """Where fits start."""
        system = self.batch.received(answer)
        self.alive = np.arange(self.batch.count)
        self.objective = self.batch.objective(system, self.alive)
        self.size = np.zeros(self.batch.count)
        self._step(system)

    def _step(self, system: System) -> None:
        """A whole step of all fits that go on."""
        self.steps, self.halvings = self.steps + 1, 0
        self.batch.solved(system, self.alive)
        self.size[:] = 0.0
        self.size[self.alive] = 1.0
        self.asked = self.alive
        again = np.zeros(self.batch.count, dtype=bool)
        again[self.alive] = not self.batch.exact
        self.last = self.batch.exact
        self.question = self.batch.step(self.size, np.zeros_like(again), again)

    def go_on(self, answer: Any) -> None:
        """Halve steps that were too long; then take the next one."""
        if self.last:
            self.question = None
            return
        if self.sharper:
            self.sharper = False
            self.start(answer)
            return
        system = self.batch.received(answer)
        after = self.batch.objective(system, self.asked)
        if self.halvings:  # the others have been looked at before
            for mine, theirs in zip(self.system, system, strict=True):
                mine[self.places] = theirs
            self.after[self.places] = after
        else:
            self.system, self.after = System(*(np.array(each) for each in system)), after
        highest = self.objective[self.alive] + 1e-12 * np.abs(self.objective[self.alive])
        long = self.after > highest
        if long.any() and self.halvings < HALVINGS and not self.batch.kinked:
            self.halvings += 1
            self.places = np.flatnonzero(long)
            self.asked = self.alive[long]
            again = np.zeros(self.batch.count, dtype=bool)
            again[self.asked] = True
            self.size[self.asked] /= 2
            self.question = self.batch.step(np.where(again, self.size, 0.0), again, again)
            return
        gained = self.objective[self.alive] - self.after
        accuracy, most = (KINK_ACCURACY, KINK_STEPS) if self.batch.kinked else (ACCURACY, STEPS)
        going = ~long & (gained > accuracy * (1e-3 + np.abs(self.after)))
        self.objective[self.alive] = np.where(long, self.objective[self.alive], self.after)
        self.alive = self.alive[going]
        self.question = None
        if len(self.alive) and self.steps < most:
            self._step(System(*(each[going] for each in self.system)))
        elif self.batch.rounding != self.batch.roundings[-1]:
            self._sharpen()

    def _sharpen(self) -> None:
        """All fits go on with kinks that are rounded less."""
        at = self.batch.roundings.index(self.batch.rounding)
        self.batch.rounding, self.steps, self.sharper = self.batch.roundings[at + 1], 0, True
        every = np.ones(self.batch.count, dtype=bool)
        self.question = self.batch.step(np.zeros(self.batch.count), ~every, every)


class JointMixed(JointFits):
    """Mixed models: random intercepts and slopes, for every part, pair of strengths and score; ``members.slopes``."""

    def __init__(
        self, parties: Parties, design: Design, values: Sequence[Value], ridge: float, start: int, pooled: Floats
    ) -> None:  # fmt: skip
        shape = design.folds + 1, len(values), design.target.outputs
        super().__init__(parties, design, "slopes", int(np.prod(shape)))
        self.strengths = np.array(values)
        self.ridge = np.r_[np.full(design.width - 1, max(ridge, NO_RIDGE)), 0.0]
        self.start = -1 if self.exact else start  # one step is exact from anywhere
        part, _, score = (each.ravel() for each in np.indices(shape))
        self.common = np.zeros((self.count, design.width)) if self.exact else pooled[part, score]

    def begin(self) -> Call[System]:
        """All fits start with the deviations of nodes at zero."""
        fits = MixedFits(self.strengths, self.start, self.rounding)
        return Call(Party.eliminate, batch=self.name, fits=fits)

    def received(self, answer: Any) -> System:
        """Sums over parties."""
        total: System = answer.total
        return total

    def solved(self, system: System, fits: Ints) -> None:
        """Solve for the common models."""
        matrix = system.matrix + np.eye(len(self.ridge)) * self.ridge
        least = LEAST * np.maximum(np.einsum("fkk->f", system.matrix) / len(self.ridge), LEAST)
        matrix += least[:, None, None] * np.eye(len(self.ridge))
        self.move = np.zeros_like(self.common)
        right = system.vector + self.ridge * self.common[fits]
        self.move[fits] = -np.linalg.solve(matrix, right[:, :, None])[:, :, 0]
        self.before = self.common.copy()

    def step(self, size: Floats, back: Bools, again: Bools) -> Call[System]:
        """The same step at all parties."""
        moved = np.where(back[:, None], self.before, self.common) + size[:, None] * self.move
        self.common = np.where((size > 0)[:, None], moved, self.common)
        return Call(Party.eliminate, batch=self.name, step=Step(self.move, size, back, again, self.rounding))

    def objective(self, system: System, fits: Ints) -> Floats:
        """With the ridge term of common models."""
        return np.asarray(system.objective + 0.5 * (self.common[fits] ** 2 @ self.ridge))


class JointGraph(JointFits):
    """Models on the graphs of all parts, for every λ and score, where neighbours may be at different parties.

    Boundary values v of all parties solve  v = a + T λ C v  with what parties tell: a, where boundary nodes would go if
    neighbours elsewhere were at zero, and T, how they respond to a pull; C are the weights of edges between parties.
    """

    def __init__(
        self, parties: Parties, design: Design, name: str, graphs: Sequence[Graph], lams: Sequence[float], ridge: float,
        pooled: Floats, start: int,
    ) -> None:  # fmt: skip
        shape = design.folds + 1, len(lams), design.target.outputs
        super().__init__(parties, design, name, int(np.prod(shape)))
        self.part, self.value, self.score = (each.ravel() for each in np.indices(shape))
        self.lam, self.ridge, self.start = np.asarray(lams)[self.value], ridge, -1 if self.exact else start
        self.cut = CutGraphs(design, graphs, coupled=lams[0] > 0)
        origin = np.zeros((self.count, design.width)) if self.exact else pooled[self.part, self.score]
        self.boundary = np.repeat(origin[:, None, :], len(self.cut.boundary), axis=1)  # (fits, boundary nodes, p)
        self.direction = self.pull = np.zeros_like(self.boundary)

    def begin(self) -> Call[System]:
        """Every party hears of its own nodes and edges."""
        own = [{"fits": self._fits(site)} for site in range(len(self.design.numbers))]
        return Call(Party.eliminate, batch=self.name).each(own)

    def _fits(self, site: int) -> GraphFits:
        ends, weights, outward, boundary = self.cut.of(site)
        none = np.zeros(0, dtype=np.int64)
        unknown = none.reshape(0, 2), np.zeros((len(weights), 0)), none
        return GraphFits(
            self.lam, self.part, self.value, self.score, self.ridge, self.start, ends, weights, outward, boundary,
            self.cut.reached[:, self.design.numbers[site]], *unknown, self.rounding,
        )  # fmt: skip

    def received(self, answer: Any) -> System:
        """Objectives are added up; what boundary nodes do stands side by side."""
        matrices = [each.matrix for each in answer.each]
        size = sum(each.shape[1] for each in matrices)
        whole = np.zeros((len(matrices[0]), size, size))
        at = 0
        for each in matrices:
            whole[:, at : at + each.shape[1], at : at + each.shape[1]] = each
            at += each.shape[1]
        return System(answer.total.objective, whole, np.concatenate([each.vector for each in answer.each], axis=1))

    def solved(self, system: System, fits: Ints) -> None:
        """Where boundary nodes go, and so how strongly parties pull at each other."""
        width, count = self.design.width, len(self.cut.boundary)
        self.direction, self.pull = np.zeros_like(self.boundary), np.zeros_like(self.boundary)
        self.before = self.boundary.copy()
        if not count:
            return
        between = [self.cut.across(part) for part in range(self.design.folds + 1)]
        for k, fit in enumerate(fits.tolist()):
            across = self.lam[fit] * np.kron(between[self.part[fit]], np.eye(width))
            v = np.linalg.solve(np.eye(count * width) - system.matrix[k] @ across, system.vector[k].ravel())
            self.pull[fit] = (across @ v).reshape(count, width)
            self.direction[fit] = v.reshape(count, width) - self.boundary[fit]

    def step(self, size: Floats, back: Bools, again: Bools) -> Call[System]:
        """Every party feels the pull of the others."""
        start = np.where(back[:, None, None], self.before, self.boundary)
        moved = start + size[:, None, None] * self.direction
        self.boundary = np.where((size > 0)[:, None, None], moved, self.boundary)
        own = [{"step": Step(self.pull[:, mine], size, back, again, self.rounding)} for mine in self.cut.sites]
        return Call(Party.eliminate, batch=self.name).each(own)

    def objective(self, system: System, fits: Ints) -> Floats:
        """With the edges between parties."""
        if not len(self.cut.boundary):
            return system.objective
        v, (head, tail) = self.boundary[fits], self.cut.number[self.cut.ends[self.cut.crossing]].T
        weights = self.cut.weights[self.part[fits]][:, self.cut.crossing]
        apart = (weights * ((v[:, head] - v[:, tail]) ** 2).sum(axis=2)).sum(axis=1)
        return np.asarray(system.objective + 0.5 * self.lam[fits] * apart)


class JointPulled(JointGraph):
    """The same by conjugate gradients, where the job may not read what boundary nodes do; ``batches.PulledBatch``."""

    def begin(self) -> Call[Any]:
        """Every party hears of its own nodes, and which of them have neighbours where."""
        own = []
        for site in range(len(self.design.numbers)):
            links, weights, foreign = self.cut.elsewhere(site)
            own.append({"fits": self._fits(site)._replace(links=links, link_weights=weights, foreign=foreign)})
        return Call(Party.respond, batch=self.name).each(own)


class _Conjugate:
    """Newton's method for one batch, each step by conjugate gradients: from an answer to the next question."""

    def __init__(self, batch: JointPulled) -> None:
        self.batch, self.last, self.question = batch, False, None
        count, width = batch.count, batch.design.width
        self.alive = self.running = np.arange(count)
        self.alpha, self.beta, self.gamma = np.zeros(count), np.zeros(count), np.zeros(count)
        self.common, self.inverse = np.zeros((count, width)), np.zeros((count, width, width))
        self.objective, self.goal, self.size = np.full(count, np.inf), np.zeros(count), np.ones(count)
        self.phase, self.newton, self.steps = Phase.GRADIENT, 0, 0

    question: Call[Any] | None

    def start(self, answer: Any) -> None:
        """The first gradients."""
        self.go_on(answer)

    def go_on(self, answer: Any) -> None:
        """What parties do next."""
        if self.last:
            self.question = None
            return
        total: Reaction = answer.total
        follow = {Phase.GRADIENT: self._begun, Phase.FIRST: self._stepped, Phase.STEP: self._stepped}
        if self.phase in follow:
            follow[self.phase](total)
        else:
            self._ask(Phase.GRADIENT, self.alive)

    def _ask(self, phase: Phase, fits: Ints) -> None:
        self.phase, self.running = phase, fits
        alive = np.zeros(self.batch.count, dtype=bool)
        alive[fits] = True
        alpha = self.size if phase in (Phase.MOVE, Phase.BACK) else self.alpha
        rounding = self.batch.rounding
        turn = Turn(int(phase), alive, alpha.copy(), self.beta.copy(), self.common.copy(), rounding)
        self.question = Call(Party.respond, batch=self.batch.name, turn=turn)

    def _begun(self, total: Reaction) -> None:
        """After gradients: go back where the objective has grown, end where little was gained, else solve."""
        fits, after = self.running, total.products[:, 3]
        long = after > self.objective[fits] + 1e-12 * np.abs(self.objective[fits])
        if long.any() and self.size[fits].min() > 0.5**HALVINGS and not self.batch.kinked:
            self.size[fits[long]] /= 2
            self._ask(Phase.BACK, fits)
            return
        self.size[fits] = 1.0
        gained = self.objective[fits] - after
        self.objective[fits] = after
        accuracy, most = (KINK_ACCURACY, KINK_STEPS) if self.batch.kinked else (ACCURACY, STEPS)
        going = ~long & ((self.newton == 0) | (gained > accuracy * (1e-3 + np.abs(after))))
        self.alive = fits[going]
        self.newton, self.steps = self.newton + 1, 0
        if not len(self.alive) or self.newton > most:
            self._sharpen()
            return
        self.inverse[self.alive] = np.linalg.pinv(total.curvature[going], hermitian=True)
        sharp = EXACTLY if self.batch.exact else FORCING
        self.goal[self.alive] = sharp * np.sqrt(total.products[going, 2])
        self._move_all(self.alive, total.sums[going])
        self._ask(Phase.FIRST, self.alive)

    def _sharpen(self) -> None:
        """All fits go on with kinks that are rounded less, or all is done."""
        at = self.batch.roundings.index(self.batch.rounding)
        self.question = None
        if at + 1 < len(self.batch.roundings):
            self.batch.rounding, self.newton = self.batch.roundings[at + 1], 0
            self.alive = np.arange(self.batch.count)
            self.objective[:], self.size[:] = np.inf, 0.0
            self._ask(Phase.MOVE, self.alive)

    def _move_all(self, fits: Ints, sums: Floats) -> None:
        """How far a direction moves all nodes together."""
        self.common[fits] = np.einsum("fij,fj->fi", self.inverse[fits], sums)

    def _stepped(self, total: Reaction) -> None:
        """α and β of the next step, for the fits that are not near enough."""
        fits, (gamma, bend, rest, _) = self.running, total.products.T
        first = self.phase is Phase.FIRST
        beta = np.zeros(len(fits)) if first else gamma / self.gamma[fits]
        bend = bend - (0.0 if first else beta * gamma / self.alpha[fits])
        going = (np.sqrt(np.maximum(rest, 0.0)) > self.goal[fits]) & (gamma > 0) & (bend > 0)
        self.steps += 1
        if not going.any() or self.steps > MOST_GRADIENTS:
            self.last = self.batch.exact
            self._ask(Phase.MOVE, self.alive)
            return
        left = fits[going]
        self.gamma[left], self.beta[left], self.alpha[left] = gamma[going], beta[going], (gamma / bend)[going]
        self._move_all(left, total.sums[going])
        self._ask(Phase.STEP, left)


def least_rows(width: int) -> int:
    """How many rows a node has to have in every part, so that its response may be read.

    >>> least_rows(4), least_rows(20)
    (10, 40)
    """
    return max(LEAST_ROWS, 2 * width)


def may_respond(part_rows: Ints, width: int) -> bool:
    """Whether nodes with so many rows in every part (parts, nodes) may tell how they respond.

    The difference of two parts is a fold: that, too, must not be so small that its rows could be told from sums.

    >>> may_respond(np.array([[24], [26], [30]]), 4), may_respond(np.array([[24], [29], [30]]), 4)
    (True, False)
    """
    folds = part_rows[-1] - part_rows[:-1]
    return bool((part_rows >= least_rows(width)).all() and ((folds == 0) | (folds >= width)).all())


class CutGraphs:
    """The graphs of all parts, cut along the borders of parties.

    Parameters
    ----------
    design : Design
        Says which nodes a party has, and which have rows.
    graphs : sequence of Graph
        The graph of every part.
    coupled : bool
        Whether λ > 0, so that nodes without rows learn from others.
    """

    def __init__(self, design: Design, graphs: Sequence[Graph], *, coupled: bool = True) -> None:
        nodes = design.node_count
        self.numbers = design.numbers
        self.home, self.place = np.zeros(nodes, dtype=np.int64), np.zeros(nodes, dtype=np.int64)
        for site, mine in enumerate(design.numbers):
            self.home[mine], self.place[mine] = site, np.arange(len(mine))
        keys = [each.head * nodes + each.tail for each in graphs]
        union = np.unique(np.concatenate(keys)) if keys else np.empty(0, dtype=np.int64)
        self.ends = np.stack(np.divmod(union, nodes), axis=1)
        self.weights = np.zeros((len(graphs), len(union)))
        for part, (graph, key) in enumerate(zip(graphs, keys, strict=True)):
            self.weights[part, np.searchsorted(union, key)] = graph.weights
        self.crossing = self.home[self.ends[:, 0]] != self.home[self.ends[:, 1]]
        across = self.ends[self.crossing]
        boundary = np.unique(across)
        order = np.lexsort((self.place[boundary], self.home[boundary]))
        self.boundary = boundary[order]  # nodes with neighbours elsewhere, party by party
        self.sites = [np.flatnonzero(self.home[self.boundary] == site) for site in range(len(design.numbers))]
        self.number = np.zeros(nodes, dtype=np.int64)
        self.number[self.boundary] = np.arange(len(self.boundary))
        has_rows = design.part_rows > 0
        found = [_reached(graph, rows) if coupled else rows for graph, rows in zip(graphs, has_rows, strict=True)]
        self.reached = np.stack(found)  # (parts, nodes)

    def across(self, part: int) -> Floats:
        """C: the weights of edges between parties (boundary nodes, boundary nodes)."""
        found = np.zeros((len(self.boundary), len(self.boundary)))
        head, tail = self.number[self.ends[self.crossing]].reshape(-1, 2).T
        found[head, tail] = found[tail, head] = self.weights[part, self.crossing]
        return found

    def of(self, site: int) -> tuple[Ints, Floats, Floats, Ints]:
        """What one party hears: own edges, their weights by part, weights outward, and which nodes have those."""
        inside = ~self.crossing & (self.home[self.ends[:, 0]] == site)
        mine = self.sites[site]
        outward = np.zeros((len(self.weights), len(self.numbers[site])))
        boundary = self.place[self.boundary[mine]]
        for end in (0, 1):
            nodes = self.ends[self.crossing][:, end]
            own = self.home[nodes] == site
            np.add.at(outward.T, self.place[nodes[own]], self.weights[:, self.crossing].T[own])
        return self.place[self.ends[inside]], self.weights[:, inside], outward, boundary

    def elsewhere(self, site: int) -> tuple[Ints, Floats, Ints]:
        """Edges from boundary nodes of a party to nodes elsewhere, their weights by part, and whose these nodes are."""
        ends, weights = self.ends[self.crossing], self.weights[:, self.crossing]
        both = np.concatenate([ends, ends[:, ::-1]])
        mine = self.home[both[:, 0]] == site
        own, others = self.number[both[mine]].T
        theirs = np.unique(others)
        links = np.stack([np.searchsorted(self.sites[site], own), np.searchsorted(theirs, others)], axis=1)
        return links, np.tile(weights, 2)[:, mine], self.home[self.boundary[theirs]]

    def may_be_read(self, rows: Ints, width: int, fits: int) -> bool:
        """Whether the job may read how boundary nodes respond: all have rows enough in all parts, and it is not much.

        From the response of a node with few rows to a weak pull its rows could be told.
        """
        return (
            may_respond(rows[:, self.boundary], width)
            and fits * max((len(mine) * width) ** 2 for mine in self.sites) <= MOST_NUMBERS
        )


def _reached(graph: Graph, has_rows: Bools) -> Bools:
    """Whether a node has rows, or is connected to one that has."""
    informed = np.zeros(int(graph.components.max(initial=0)) + 1, dtype=bool)
    informed[graph.components[has_rows]] = True
    return np.asarray(informed[graph.components])


def on_graph(
    parties: Parties, design: Design, name: str, graphs: Sequence[Graph], lams: Sequence[float], ridge: float,
    pooled: Floats, start: int,
) -> JointGraph:  # fmt: skip
    """Fits on graphs, by the route that parties allow."""
    given = parties, design, name, graphs, lams, ridge, pooled, start
    found = JointGraph(*given)
    if not parties.secure and found.cut.may_be_read(design.part_rows, design.width, found.count):
        return found
    return JointPulled(*given)


def validated(cv: CrossValidation, batches: Sequence[JointFits], calls: Sequence[Call[Any]]) -> list[Any]:
    """Fit batches, then ask what follows, in the exchange of the last step if that is known before."""
    left = learnt_together(batches)
    return cv.parties.ask(*left, *calls)[len(left) :]
