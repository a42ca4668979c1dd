"""BiG-FL: tailored models that are drawn to an embedding of their neighbours, which a coordinator learns: two levels.

Lu, Xing, Yu: Graph-Aware Federated Learning (chapter 10 of a book), section 10.4, (10.11) to (10.20) and Algorithm 4.

    min_φ  f(φ, θ(φ))                                                     such that for every node         (10.12a)
    θ_i = argmin_θ_i  g_i(φ, θ_i, θ_−i),                                  a game                           (10.12b)
    g_i = F_i(θ_i) + λ P_i(φ, θ_i, θ_−i) + (κ/2) ‖θ_i‖²,   P_i = ½ ‖(Lθφ)_i − θ_i‖²               (10.17), (10.18)

F_i is the mean loss of a node as ``loss`` states it. (10.17) has ½ E‖y − h‖², so with ``Squared`` or ``TorchLoss``,
which have no ½, twice the chapter's λ and κ are the same game. A round is

    θ_i <- θ_i − β (∇F_i + λ ∂P_i/∂θ_i + κ θ_i)                           τ times, on batches              (1)  (10.19)

with what the coordinator sent of the others, (L_i,: − L_ii) θ, which stays as it is during the τ steps. After
``warm_up`` rounds, every ``phi_every`` rounds

    (J + δ)ᵀ v = ∂f/∂θ,  J the Jacobian of the game                       by 4 exchanges, see ``adjoint``  (2)
    φ <- φ − α h / ‖h‖,  h = ∂f/∂φ − λ (∂²P/∂θ∂φ)ᵀ v                       then ‖φ‖₂ ≤ 1                    (3)  (10.20)

``phi_steps`` times; then φ stays, and the game goes on with all rows until it rests. f is the error on rows that nodes
hold out, (10.14) as printed, or any ``UpperLevel``; P any ``LowerLevel``.

The chapter reads (10.13) as H = Lθ and means H = Lθφ. Its steps (10.20) are not normalised, its δ is 0, and its f is
(10.14): all can be asked for. *What holds* has what they give.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from kinfolk.algorithms.bigfl import history, settings
from kinfolk.algorithms.bigfl.adjoint import Adjoint, Krylov, conjugate_gradients, largest_curvature
from kinfolk.algorithms.bigfl.lower import GraphEmbedding, LaplacianCoupling, Links, LowerLevel
from kinfolk.algorithms.bigfl.memory import Facts, Memory
from kinfolk.algorithms.bigfl.phi_steps import PhiSteps
from kinfolk.algorithms.bigfl.upper import HeldOutError, Rows, UpperLevel
from kinfolk.algorithms.local_work import Addition, Decay, LocalWork, Plan, StepSize
from kinfolk.algorithms.parametric import squares
from kinfolk.checks import AtLeast, InputError, Positive, check_value
from kinfolk.engine.protocol import (
    NUMBER,
    WHOLE_NUMBER,
    Algorithm,
    Arrays,
    Coordinated,
    Inbox,
    Models,
    Outbox,
    PerNode,
    Replies,
    Reply,
    Sends,
    Sent,
    Turn,
)
from kinfolk.engine.run import Run
from kinfolk.engine.specs import spec_of
from kinfolk.network.fingerprint import fingerprint
from kinfolk.network.problem import Problem
from kinfolk.network.site import Site
from kinfolk.objective.node_loss import LocalLosses
from kinfolk.typing import Floats, Ints

RECORDS = (Facts, Krylov, Links)  # of the coordinator's memory: a checkpoint looks for them here
BEGINNING = 7  # keys where φ begins
POWER_STEPS = 8  # of the search for the largest curvature, from where the last one ended


class Game(NamedTuple):
    """One of the games that are played side by side."""

    name: str
    lower: LowerLevel | None  # None: every node for itself


class State(NamedTuple):
    """The parameters of a node in every game, and what it needs for a step of φ."""

    w: PerNode  # (nodes, games, parameters) θ_i
    way: PerNode  # (nodes,) sum of step sizes since the last step of φ
    interval: PerNode  # (nodes,) the number of steps of φ before
    steepest: PerNode  # (nodes, parameters) the direction in which F_i is most curved
    validation: PerNode  # (nodes, games) V_i at the last step of φ; NaN where there is none


@dataclass(frozen=True)
class BiGFL(LocalWork[State], Coordinated[State, Memory]):
    """Tailored models near an embedding of their neighbours; ``phi="learn"`` learns the embedding, too.

    ``loss``, ``local_steps``, ``local_epochs``, ``batch``, ``step_size`` and ``optimiser`` set the local work, as in
    ``LocalWork``; ``step_size`` is β. Without one, linear models take one from the curvature of all losses.

    Parameters
    ----------
    lam : float
        λ of (10.17), how strongly a node is drawn to its embedding.
    kappa : float
        κ, on all parameters.
    phi : {"identity", "learn"} or array
        Whether φ is the identity, learnt, or given: the numbers that ``phi_of`` returns for another run.
    lower : LowerLevel
        P: ``GraphEmbedding(shape, propagation)``.
    upper : UpperLevel
        f: ``HeldOutError(share)``, ``CosineEmbedding(negatives)`` for (10.14), or ``Regression(ridge)``, which needs no
        hypergradient.
    lam_upper : float
        λ_upper, of ½‖φ − I‖² in f. The chapter writes λ for both.
    warm_up : int
        Rounds before the first step of φ.
    phi_every, phi_steps : int
        Rounds between two steps of φ, and how many steps.
    phi_step_size : float or callable
        α, as a number or a function of the number of steps before.
    normalised : bool
        Whether α is the length of the step, in units of the identity; False for α h as printed.
    adjoint : Adjoint
        How (2) is solved.
    controls : bool
        Whether, while φ is learnt, games with φ = I, with ``LaplacianCoupling`` and without a graph are played beside,
        on the same batches: the history has their errors. They cost as much again, each.

    The history has the error of ``training`` rows; where φ is learnt the upper loss, the relative ``adjoint_residual``,
    the number of ``exchanges``, the ``stability`` β·λ_max (a bound, below 2), steps made and skipped, ‖φ − I‖, the
    ``validation`` error on held-out rows, and the errors of the controls. The residual is that of the game, and
    infinite as long as φ is learnt.

    >>> from kinfolk import Network, fit, graphs
    >>> network = Network(graphs.chain(3), [([[1.0]], [1.0]), ([[1.0]], [3.0]), None])
    >>> run = fit(network, BiGFL(lam=1.0))
    >>> run.models.w.round(2).tolist()
    [[1.15], [2.84], [2.32]]
    """

    lam: Annotated[float, AtLeast(0)] = 0.1
    kappa: Annotated[float, AtLeast(0)] = 1e-4
    phi: Any = "identity"
    lower: LowerLevel = GraphEmbedding()
    upper: UpperLevel = HeldOutError()
    lam_upper: Annotated[float, AtLeast(0)] = 0.0
    warm_up: Annotated[int, AtLeast(0)] = 300
    phi_every: Annotated[int, AtLeast(1)] = 20
    phi_steps: Annotated[int, AtLeast(1)] = 30
    phi_step_size: StepSize = Decay(0.3)
    normalised: bool = True
    adjoint: Adjoint = Adjoint()
    controls: bool = True

    moves_without_data: ClassVar[bool] = True
    needs_slope: ClassVar[bool] = True

    @property
    def carries_statistics(self) -> bool:
        """Parameters are drawn to those of neighbours, which running statistics should not be."""
        return False

    def learns_along_edges(self, problem: Problem) -> bool:
        """By way of the coordinator."""
        return True

    # ------------------------------------------------------------------ settings

    @property
    def learns(self) -> bool:
        """Whether φ is learnt."""
        return isinstance(self.phi, str) and self.phi == "learn"

    @property
    def games(self) -> list[Game]:
        """The game, and those to compare it with."""
        game = Game("", self.lower)
        if not self.learns or not self.controls:
            return [game]
        return [game, Game("identity", self.lower), Game("laplacian", LaplacianCoupling()), Game("local", None)]

    @property
    def learning_rounds(self) -> int:
        """How many rounds it takes to learn φ."""
        return self.warm_up + self.phi_every * self.phi_steps if self.learns else 0

    def _moves_phi(self, count: int) -> bool:
        """Whether the round of this number, counted from where the run began, ends with a step of φ."""
        after = count - self.warm_up
        return self.learns and 0 < after <= self.phi_every * self.phi_steps and after % self.phi_every == 0

    def exchanges(self, round_: int, memory: Memory) -> int:
        """One, and those of the adjoint equation."""
        solves = self._moves_phi(round_ - memory.began) and self.upper.descends
        return 1 + (self.adjoint.exchanges if solves else 0)

    @property
    def _phi(self) -> PhiSteps:
        return PhiSteps(
            self.lower, self.upper, self.lam, self.kappa, self.lam_upper, self.adjoint, self.phi_step_size,
            self.normalised,
        )  # fmt: skip

    def check(self, problem: Problem) -> None:
        """A φ of the right size, a game that depends on it, and settings that fit together."""
        super().check(problem)
        layout, given = self.loss.layout(problem.feature_count), settings.given_phi(self.phi)
        settings.check_no_buffers(self.loss.trained(problem.feature_count), self.width(problem))
        self.lower.check(Links.of(problem.graph), layout)
        if given is not None:
            settings.check_given(given, self.lower, Links.of(problem.graph), layout)
        if not callable(self.phi_step_size):
            check_value("phi_step_size", "BiGFL", self.phi_step_size, Annotated[float, Positive()])
        if self.learns:
            settings.check_game(self.lower, self.lam, problem.graph, layout)
            self.upper.check(problem, self.lower)
        if self.learns and self.upper.descends:
            self.refuse_optimiser("whose hypergradient is that of plain descent")

    def check_data(self, site: Site) -> None:
        """Losses that can be differentiated twice, where φ is learnt by descent."""
        super().check_data(site)
        some = np.flatnonzero(site.data.sizes > 0)[:1]
        if self.learns and self.upper.descends and len(some):
            settings.check_curvature(site.local_losses(self.loss).take(some))

    def starts_from(self, problem: Problem, other: Algorithm[Any], before: Problem) -> bool:
        """From any run with as many parameters: other games start where the first one is."""
        return isinstance(other, BiGFL) and self.width(problem) == other.width(before)

    def sends(self, problem: Problem) -> Sends:
        """The coordinator receives parameters; for steps of φ products of the curvature, and errors."""
        width, games = self.width(problem), (len(self.games),)
        vector = (width,)
        sent = {"w": Sent("parameters", (*games, width)), "curvature": Sent("largest curvature of the loss, once")}
        if self.learns and self.upper.descends:
            sent["sharpness"] = Sent("largest curvature of the loss")
            sent["product"] = Sent("curvature of the loss times a vector", vector)
            if self.adjoint.preconditioned:
                sent["solved"] = Sent("curvature of the loss, inverted, times a vector", vector)
            if self.upper.held_out > 0:
                sent["slope"] = Sent("gradient of the loss of held-out rows", vector)
                sent["validation"] = Sent("loss of held-out rows", games, gaps=True)
        return Sends(coordinator=sent)

    # ------------------------------------------------------------------ a node: which losses

    def _losses(self, site: Site, *, learning: bool) -> LocalLosses:
        """Without the rows that are held out, as long as φ is learnt."""
        if learning and self.learns and self.upper.held_out > 0:
            return site.local_losses(Rows(self.loss, self.upper.held_out, held_out=False))
        return site.local_losses(self.loss)

    def _held_out(self, site: Site) -> LocalLosses:
        return site.local_losses(Rows(self.loss.unpenalised, self.upper.held_out, held_out=True)).means

    def _count(self, inbox: Inbox, turn: Turn) -> int:
        """The number of the round, counted from where the run began."""
        return turn.round - int(inbox.to_all["began"])

    def _learnt_losses(self, site: Site, inbox: Inbox, turn: Turn) -> LocalLosses:
        return self._losses(site, learning=self._count(inbox, turn) <= self.learning_rounds)

    def curvature(self, site: Site) -> Floats:
        """How curved F_i is at most, with and without the rows that are held out; zero where a step size is given."""
        if not self.needs_curvature:
            return np.zeros(site.node_count)
        parts = [self._losses(site, learning=learning).means for learning in (False, True)]
        bounds = [part.smoothness if self.batch is None else part.smoothness_of_rows for part in parts]
        return np.maximum(*bounds)

    def smallest_batch(self, sizes: Ints) -> int:
        """The fewest rows of a step at any node, with what is held out."""
        if self.learns and self.upper.held_out > 0:
            sizes = sizes - np.maximum(np.round(self.upper.held_out * sizes), 1).astype(np.int64)
            sizes = np.maximum(sizes, 1)
        return super().smallest_batch(sizes)

    # ------------------------------------------------------------------ a node: the game

    def init(self, site: Site, turn: Turn) -> tuple[State, Outbox]:
        """Start from the initial parameters of the loss, in all games."""
        start = site.local_losses(self.loss).start
        count, games = site.node_count, len(self.games)
        along = np.random.default_rng(0).normal(size=start.shape[1])
        state = State(
            np.repeat(start[:, None], games, axis=1),
            np.zeros(count),
            np.full(count, -1),
            np.tile(along / np.linalg.norm(along), (count, 1)),
            np.full((count, games), np.nan),
        )
        return self.resume(site, state, turn)

    def resume(self, site: Site, state: State, turn: Turn) -> tuple[State, Outbox]:
        """Go on from the parameters of a state; φ is learnt anew."""
        games = len(self.games)
        w = state.w if state.w.shape[1] == games else np.repeat(state.w[:, :1], games, axis=1)
        count = site.node_count
        state = State(w, np.zeros(count), np.full(count, -1), state.steepest, np.full((count, games), np.nan))
        return state, Outbox(coordinator={"w": state.w, "curvature": self.curvature(site)})

    def step(self, site: Site, state: State, inbox: Inbox, turn: Turn) -> tuple[State, Outbox]:
        """The game, or the answer to a question about its Jacobian."""
        if turn.exchange:
            return state, Outbox(coordinator=self._answered(site, state, inbox, turn))
        state = self._played(site, state, inbox, turn)
        sent = {"w": state.w}
        if self._moves_phi(self._count(inbox, turn)) and self.upper.descends:
            losses, w = self._curved_losses(site, inbox, turn), state.w[:, 0]
            sharpness, steepest = largest_curvature(lambda v: losses.hessian_product(w, v), state.steepest, POWER_STEPS)
            state, sent["sharpness"] = state._replace(steepest=steepest), sharpness
            if self.upper.held_out > 0:
                sent["slope"], sent["validation"] = self._validated(site, state)
                state = state._replace(validation=sent["validation"])
        return state, Outbox(coordinator=sent)

    def _played(self, site: Site, state: State, inbox: Inbox, turn: Turn) -> State:
        """(1), in all games."""
        losses, steps = self._learnt_losses(site, inbox, turn), inbox.to_all["step"]
        w = np.empty_like(state.w)
        for k, game in enumerate(self.games):
            pull = self._pull(site, game, _phi(inbox, k), _received(inbox, k))
            w[:, k] = self.worked(site, turn, state.w[:, k], float(steps[k]), pull, losses=losses)
        interval = np.full(site.node_count, (self._count(inbox, turn) - 1 - self.warm_up) // self.phi_every)
        before = np.where(state.interval == interval, state.way, 0.0)
        return state._replace(w=w, way=before + self.way(losses, turn, float(steps[0])), interval=interval)

    def _pull(self, site: Site, game: Game, phi: Floats, received: dict[str, Floats]) -> Addition:
        """λ ∂P_i/∂θ_i + κ θ_i of a game."""
        layout, lower = self._layout(site), game.lower
        if lower is None:
            return lambda theta: self.kappa * theta
        return lambda theta: self.lam * lower.slope(layout, phi, theta, received) + self.kappa * theta

    def _layout(self, site: Site) -> dict[str, tuple[int, ...]]:
        return self.loss.layout(site.data.feature_count)

    # ------------------------------------------------------------------ a node: for a step of φ

    def _validated(self, site: Site, state: State) -> tuple[Floats, Floats]:
        """∇V_i, and V_i in all games; NaN where no rows are held out."""
        losses = self._held_out(site)
        values = np.stack([losses.value(state.w[:, k]) for k in range(len(self.games))], axis=1)
        return losses.gradient(state.w[:, 0]), np.where(losses.has_data[:, None], values, np.nan)

    def _curved_losses(self, site: Site, inbox: Inbox, turn: Turn) -> LocalLosses:
        """F_i on the rows from which curvatures are computed: the same in all exchanges of a round."""
        losses = self._learnt_losses(site, inbox, turn)
        if self.adjoint.batch is None:
            return losses.means
        keys = replace(turn, exchange=0).keys(site.nodes, "curvature")
        plan = Plan.of_steps(np.diff(losses.starts), self.adjoint.batch, 1)
        return losses.means_on(*plan.draw(keys, losses.starts).batch(0))

    def _answered(self, site: Site, state: State, inbox: Inbox, turn: Turn) -> dict[str, Floats]:
        """What (2) needs of a node: its own solve, and the product of its curvature with that."""
        w, v = state.w[:, 0], inbox.to_each["v"]
        losses, layout, phi = self._curved_losses(site, inbox, turn), self._layout(site), _phi(inbox, 0)
        damping = 1.0 / state.way if self.adjoint.damping is None else np.full(len(w), self.adjoint.damping)
        shift = (self.kappa + damping)[:, None]

        def product(x: Floats) -> Floats:
            return losses.hessian_product(w, x) + shift * x

        if not self.adjoint.preconditioned:
            return {"product": product(v)}
        bend, received = losses.gauss_newton(w), _received(inbox, 0)

        def own(x: Floats) -> Floats:
            return bend(x) + shift * x + self.lam * self.lower.own_product(layout, phi, w, received, x)

        solved = conjugate_gradients(own, v, self.adjoint.solve_steps)
        return {"solved": solved, "product": product(solved)}

    # ------------------------------------------------------------------ the coordinator

    def start(self, problem: Problem, turn: Turn, before: Memory | None = None) -> Memory:
        """φ = I, or as given; a changed problem learns on from the φ that was learnt before."""
        links, layout = Links.of(problem.graph), self.loss.layout(problem.feature_count)
        identity, kind = self.lower.identity(links, layout), fingerprint(repr(spec_of(self.lower)))
        given = settings.given_phi(self.phi)
        phi = identity if given is None else given
        if self.learns:
            phi = self.lower.beginning(links, layout, np.random.default_rng([BEGINNING, turn.seed]))
            phi = before.phi if before is not None and before.lower == kind else phi
        w = np.zeros((links.node_count, len(self.games), self.width(problem)))
        none, steps = np.zeros_like(phi), np.ones(len(self.games))
        nothing = Facts(float(self.learns), 0, 0, 0, np.nan, np.nan, np.nan, 0.0)
        memory = Memory(turn.round, links, layout, kind, w, phi, identity, steps, none, None, none, nothing)
        return self._phi.with_phi(memory, phi, nothing)

    def combine(self, memory: Memory, outbox: Arrays, turn: Turn) -> tuple[Memory, Reply]:
        """Message passing (10.13) after a round; (2) by questions and answers; and (3)."""
        if "curvature" in outbox:
            memory = memory._replace(step=self._safe_steps(memory, outbox["curvature"]))
        if "w" in outbox:
            w = memory.w.copy()
            w[turn.active] = outbox["w"]
            memory = memory._replace(w=w)
        count = turn.round - memory.began
        if self._moves_phi(count):
            memory = self._toward_phi(memory, outbox, turn)
        learning = float(count < self.learning_rounds)
        memory = memory._replace(facts=memory.facts._replace(learning=learning))
        return memory, self._reply(memory, turn)

    def _toward_phi(self, memory: Memory, outbox: Arrays, turn: Turn) -> Memory:
        """What an exchange of a round that moves φ adds."""
        if not self.upper.descends:
            return self._phi.fitted(memory)
        if turn.exchange == 0:
            return self._phi.begun(memory, outbox, turn, float(np.max(self.rate(turn, 0, memory.step[0]))))
        memory = self._phi.extended(memory, outbox, turn)
        return self._phi.moved(memory, turn) if turn.exchange == self.adjoint.exchanges else memory

    def _safe_steps(self, memory: Memory, curvature: Floats) -> Floats:
        """1 / (largest curvature of a node and its pull), in every game; as good as any where a step size is given."""
        pulls = [0.0 if game.lower is None else game.lower.bound(memory.links) for game in self.games]
        most = np.array([np.max(curvature.max() + self.kappa + self.lam * pull) for pull in pulls])
        return 1.0 / np.where(most > 0, most, 1.0)

    def _reply(self, memory: Memory, turn: Turn) -> Reply:
        """φ and what was learnt of it to all; what they need of the others, or v, to each."""
        phis = {f"{k}.phi": phi for k, phi in enumerate([memory.phi, memory.identity][: len(self.games)])}
        facts = {name: np.asarray(value, dtype=np.float64) for name, value in memory.facts._asdict().items()}
        to_all = {**phis, "step": memory.step, "began": np.asarray(memory.began), **facts}
        question = {} if memory.krylov is None else {"v": memory.krylov.next}
        moved = memory.krylov is None or turn.exchange == 0  # θ or φ is new
        return Reply(to_all, {**question, **(self._messages(memory, turn) if moved else {})})

    def replies(self, problem: Problem) -> Replies:
        """φ, step sizes and facts to all; to each what its lower level needs of the others, or a vector v."""
        memory = self.start(problem, Turn(0, np.arange(problem.graph.node_count), 0))
        phis = {f"{k}.phi": Sent("φ", memory.phi.shape) for k in range(len(self.games))}
        facts = dict.fromkeys(Facts._fields, NUMBER)
        step = Sent("step sizes", memory.step.shape)
        messages = self._messages(memory, Turn(0, np.arange(problem.graph.node_count), 0))
        each = {name: Sent("sums over neighbours", rows.shape[1:]) for name, rows in messages.items()}
        vector = Sent("vector", (self.width(problem),))
        return Replies({**phis, "step": step, "began": WHOLE_NUMBER, **facts}, {"v": vector, **each})

    def _messages(self, memory: Memory, turn: Turn) -> dict[str, Floats]:
        phis = [memory.phi, memory.identity, np.zeros(0)]
        return {
            f"{k}.{name}": rows[turn.active]
            for k, game in enumerate(self.games)
            if game.lower is not None
            for name, rows in game.lower.messages(memory.links, memory.layout, phis[k], memory.w[:, k]).items()
        }

    # ------------------------------------------------------------------ what comes out

    def phi_of(self, run: Run) -> Floats:
        """The numbers of φ at the end of a run, to be given to another as ``phi``."""
        if not isinstance(run.algorithm, BiGFL):
            raise InputError(f"Expected a run of BiGFL, got one of {type(run.algorithm).__name__}.")
        phi: Floats = run.snapshot.memory.phi
        return phi.copy()

    def models(self, site: Site, state: State, inbox: Inbox) -> Models:
        """θ_i."""
        models: Models = self.loss.models(state.w[:, 0])
        return models

    def measure(self, site: Site, state: State, inbox: Inbox) -> Arrays:
        """The game's value and slope, and what is compared."""
        learning = bool(inbox.to_all["learning"])
        losses, layout, received = self._losses(site, learning=learning).means, self._layout(site), _received(inbox, 0)
        w, phi, one = state.w[:, 0], _phi(inbox, 0), np.ones(site.node_count)
        loss = losses.value(w)
        pull = self.lower.slope(layout, phi, w, received)
        out = {
            "objective": loss + self.lam * self.lower.value(layout, phi, w, received) + 0.5 * self.kappa * squares(w),
            "size": squares(losses.gradient(w) + self.lam * pull + self.kappa * w),
            "start": losses.resting,
            "training": loss,
            "known": losses.has_data.astype(np.float64),
            "nodes": one,
        }
        if self.learns:
            out |= {f"fact {name}": one * inbox.to_all[name] for name in Facts._fields}
            out |= history.compared(site, self.loss, self._names, state.w, state.validation)
        return out

    @property
    def _names(self) -> list[str]:
        return [game.name for game in self.games]

    def summary(self, totals: Mapping[str, float]) -> Mapping[str, float]:
        """The sum of all g_i, the slope of the game against that at the start, and what was compared."""
        return history.summarised(totals)

    def findings(self, row: Mapping[str, float]) -> list[str]:
        """Whether φ has helped, as far as was measured, and what has kept it from being learnt."""
        if not self.learns:
            return []
        return history.found(row, self._names, self.phi_steps, self.learning_rounds, self.adjoint.trust)


def _phi(inbox: Inbox, game: int) -> Floats:
    """φ of a game; no numbers where it has none."""
    name = f"{game}.phi"
    return np.asarray(inbox.to_all[name]) if name in inbox.to_all else np.zeros(0)


def _received(inbox: Inbox, game: int) -> dict[str, Floats]:
    """What the nodes were sent for a game."""
    prefix = f"{game}."
    return {name.removeprefix(prefix): rows for name, rows in inbox.to_each.items() if name.startswith(prefix)}
