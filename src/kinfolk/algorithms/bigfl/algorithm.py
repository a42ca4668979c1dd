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

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from kinfolk.algorithms.bigfl.adjoint import Adjoint, Krylov, conjugate_gradients, largest_curvature
from kinfolk.algorithms.bigfl.lower import GraphEmbedding, LaplacianCoupling, Links, LowerLevel
from kinfolk.algorithms.bigfl.upper import HeldOutError, Rows, UpperLevel
from kinfolk.algorithms.local_work import Decay, LocalWork, Plan, StepSize, size_of_step
from kinfolk.algorithms.parametric import ratio, squares
from kinfolk.checks import AtLeast, InputError, Positive, as_floats, check_parameters, check_value
from kinfolk.engine.protocol import Arrays, Coordinated, Inbox, Models, Outbox, PerNode, Reply, Sends, Sent, Turn
from kinfolk.engine.run import Run
from kinfolk.network.problem import Problem
from kinfolk.network.site import Site
from kinfolk.objective.node_loss import LocalLosses
from kinfolk.typing import Floats, Ints

BEGINNING, DRAWN = 7, 8  # key what the coordinator draws: where φ begins, and negatives
POWER_STEPS = 4  # of the search for the largest curvature, from where the last one ended
UNSTABLE = 2.0  # β times the largest curvature, above which descent does not settle


class Game(NamedTuple):
    """One of the games that are played side by side."""

    name: str
    lower: LowerLevel | None  # None: every node for itself


class State(NamedTuple):
    """The parameters of a node in every game, and what it needs for a step of φ."""

    w: PerNode  # (nodes, games, parameters) θ_i
    way: PerNode  # (nodes,) sum of step sizes since the last step of φ
    steepest: PerNode  # (nodes, parameters) the direction in which F_i is most curved
    validation: PerNode  # (nodes, games) V_i at the last step of φ; NaN where there is none


class Facts(NamedTuple):
    """What the coordinator tells of how φ is learnt."""

    learning: float  # whether φ still changes
    phi_steps: float  # made
    skipped: float  # not made, because the hypergradient could not be trusted
    exchanges: float  # for adjoint equations
    upper: float  # f
    adjoint_residual: float
    stability: float  # β times the largest curvature
    phi_distance: float  # ‖φ − I‖


class Memory(NamedTuple):
    """What the coordinator keeps."""

    links: Links
    layout: dict[str, tuple[int, ...]]
    w: Floats  # (nodes, games, parameters) as last received
    phi: Floats  # (numbers,)
    identity: Floats  # (numbers,)
    step: Floats  # (games,) step sizes that are safe
    by_phi: Floats  # (numbers,) ∂f/∂φ, between two exchanges
    krylov: Krylov | None  # between two exchanges
    hypergradient: Floats  # (numbers,) the last one
    facts: Facts


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
    the number of ``exchanges``, the ``stability`` β·λ_max (below 2), steps made and skipped, ‖φ − I‖, the
    ``validation`` error on held-out rows, and the errors of the controls. The residual is that of the game, and
    infinite as long as φ is learnt.

    >>> from kinfolk import Network, fit, graphs
    >>> network = Network(graphs.chain(3), [([[1.0]], [1.0]), ([[1.0]], [3.0]), None])
    >>> run = fit(network, BiGFL(lam=1.0))
    >>> run.models.w.round(2).tolist()
    [[1.19], [2.52], [2.06]]
    """

    lam: Annotated[float, AtLeast(0)] = 0.1
    kappa: Annotated[float, AtLeast(0)] = 0.0
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
        """The last round in which φ changes."""
        return self.warm_up + self.phi_every * self.phi_steps if self.learns else 0

    def moves_phi(self, round_: int) -> bool:
        """Whether a round ends with a step of φ."""
        after = round_ - self.warm_up
        return self.learns and 0 < after <= self.phi_every * self.phi_steps and after % self.phi_every == 0

    def exchanges(self, round_: int) -> int:
        """One, and those of the adjoint equation."""
        return 1 + (self.adjoint.exchanges if self.moves_phi(round_) and self.upper.descends else 0)

    def check(self, problem: Problem) -> None:
        """A φ of the right size, a graph with edges to learn it on, and settings that fit together."""
        super().check(problem)
        for part in (self.lower, self.upper, self.adjoint):
            check_parameters(part)
        links, layout = Links.of(problem.graph), self.loss.layout(problem.feature_count)
        self.lower.check(links, layout, self._given)
        if not callable(self.phi_step_size):
            check_value("phi_step_size", "BiGFL", self.phi_step_size, Annotated[float, Positive()])
        if not self.learns:
            return
        if not problem.graph.edge_count:
            raise InputError(
                "Expected a graph with edges for BiGFL(phi='learn'), got none: use Local, which learns at every node "
                "alone."
            )
        self.refuse_optimiser("whose hypergradient is that of plain descent")
        self.upper.check(problem, self.lower)

    @property
    def _given(self) -> Floats | None:
        """The numbers of a given φ."""
        if isinstance(self.phi, str):
            if self.phi not in ("identity", "learn"):
                raise InputError(
                    f"The 'phi' parameter of BiGFL must be 'identity', 'learn' or an array. Got {self.phi!r} instead."
                )
            return None
        return as_floats(self.phi, "phi", 1)

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
                sent["validation"] = Sent("loss of held-out rows", games)
        return Sends(coordinator=sent)

    # ------------------------------------------------------------------ a node: which losses

    def learnt_losses(self, site: Site, turn: Turn) -> LocalLosses:
        """Without the rows that are held out, as long as φ is learnt."""
        return self._losses(site, learning=turn.round <= self.learning_rounds)

    def _losses(self, site: Site, *, learning: bool) -> LocalLosses:
        if learning and self.learns and self.upper.held_out > 0:
            return site.local_losses(Rows(self.loss, self.upper.held_out, held_out=False))
        return site.local_losses(self.loss)

    def _held_out(self, site: Site) -> LocalLosses:
        return site.local_losses(Rows(self.loss, self.upper.held_out, held_out=True)).means

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
        """Start where the loss says, in all games."""
        start = site.local_losses(self.loss).start
        count, games = site.node_count, len(self.games)
        along = np.random.default_rng(0).normal(size=start.shape[1])
        state = State(
            np.repeat(start[:, None], games, axis=1),
            np.zeros(count),
            np.tile(along / np.linalg.norm(along), (count, 1)),
            np.full((count, games), np.nan),
        )
        return self.resume(site, state, turn)

    def resume(self, site: Site, state: State, turn: Turn) -> tuple[State, Outbox]:
        """Go on from a state."""
        return state, Outbox(coordinator={"w": state.w, "curvature": self.curvature(site)})

    def step(self, site: Site, state: State, inbox: Inbox, turn: Turn) -> tuple[State, Outbox]:
        """The game, or the answer to a question about its Jacobian."""
        if turn.exchange:
            return state, Outbox(coordinator=self._answered(site, state, inbox, turn))
        state = self._played(site, state, inbox, turn)
        if not self.moves_phi(turn.round) or not self.upper.descends:
            return state, Outbox(coordinator={"w": state.w})
        losses = self._curved_losses(site, turn)
        sharpness, steepest = largest_curvature(
            lambda v: losses.hessian_product(state.w[:, 0], v), state.steepest, POWER_STEPS
        )
        sent = {"w": state.w, "sharpness": sharpness}
        state = state._replace(steepest=steepest)
        if self.upper.held_out > 0:
            slope, validation = self._validated(site, state)
            sent |= {"slope": slope, "validation": validation}
            state = state._replace(validation=validation)
        return state, Outbox(coordinator=sent)

    def _played(self, site: Site, state: State, inbox: Inbox, turn: Turn) -> State:
        """(1), in all games."""
        w = np.empty_like(state.w)
        for k, game in enumerate(self.games):
            received, phi = _received(inbox, k), inbox.to_all.get(f"{k}.phi")

            def pull(theta: Floats, game: Game = game, received: Any = received, phi: Any = phi) -> Floats:
                out = self.kappa * theta
                if game.lower is not None:
                    out += self.lam * game.lower.slope(self._layout(site), phi, theta, received)
                return out

            w[:, k] = self.worked(site, turn, state.w[:, k], float(inbox.to_all["step"][k]), pull)
        begins = (turn.round - 1 - self.warm_up) % self.phi_every == 0  # a step of φ was made, or could have been
        way = self.way(self.learnt_losses(site, turn), turn, float(inbox.to_all["step"][0]))
        return state._replace(w=w, way=way + (0.0 if begins else state.way))

    def _layout(self, site: Site) -> dict[str, tuple[int, ...]]:
        return self.loss.layout(site.data.feature_count)

    # ------------------------------------------------------------------ a node: for a step of φ

    def _validated(self, site: Site, state: State) -> tuple[Floats, Floats]:
        """∇V_i, and V_i in all games; NaN where no rows are held out."""
        losses = self._held_out(site)
        values = np.stack([losses.value(state.w[:, k]) for k in range(len(self.games))], axis=1)
        return losses.gradient(state.w[:, 0]), np.where(losses.has_data[:, None], values, np.nan)

    def _curved_losses(self, site: Site, turn: Turn) -> LocalLosses:
        """F_i on the rows from which curvatures are computed: the same in all exchanges of a round."""
        losses = self.learnt_losses(site, turn)
        if self.adjoint.batch is None:
            return losses.means
        keys = replace(turn, exchange=0).keys(site.nodes, "curvature")
        plan = Plan.of_steps(np.diff(losses.starts), self.adjoint.batch, 1)
        return losses.means_on(*plan.draw(keys, losses.starts).batch(0))

    def _answered(self, site: Site, state: State, inbox: Inbox, turn: Turn) -> dict[str, Floats]:
        """What (2) needs of a node: its own solve, and the product of its curvature with that."""
        w, v = state.w[:, 0], inbox.to_each["v"]
        losses, layout, phi = self._curved_losses(site, turn), self._layout(site), inbox.to_all["0.phi"]
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
        """φ = I, or as given; a changed problem goes on from the φ that was learnt."""
        links, layout = Links.of(problem.graph), self.loss.layout(problem.feature_count)
        identity = self.lower.identity(links, layout)
        phi = identity if self._given is None else self.lower.projected(layout, self._given)
        if self.learns:
            phi = self.lower.beginning(links, layout, np.random.default_rng([BEGINNING, turn.seed]))
            phi = before.phi if before is not None and before.phi.shape == phi.shape else phi
        w = np.zeros((links.node_count, len(self.games), self.width(problem)))
        none = np.zeros_like(phi)
        nothing = Facts(float(self.learns), 0, 0, 0, np.nan, np.nan, np.nan, 0.0)
        return Memory(links, layout, w, phi, identity, np.ones(len(self.games)), none, None, none, nothing)

    def combine(self, memory: Memory, outbox: Arrays, turn: Turn) -> tuple[Memory, Reply]:
        """Message passing (10.13) after a round; questions and answers of (2); and (3)."""
        if "curvature" in outbox:
            memory = memory._replace(step=self._safe_steps(memory, outbox["curvature"]))
        if "w" in outbox:
            w = memory.w.copy()
            w[turn.active] = outbox["w"]
            memory = memory._replace(w=w)
        moves = turn.round > 0 and self.moves_phi(turn.round)
        if moves and not self.upper.descends:
            memory = self._regressed(memory)
        elif moves and turn.exchange == 0:
            memory = self._asked(memory, outbox, turn)
        elif moves:
            memory = self._extended(memory, outbox, turn)
            if turn.exchange == self.adjoint.exchanges:
                memory = self._moved(memory, turn)
        learning = turn.round < self.learning_rounds
        memory = memory._replace(facts=memory.facts._replace(learning=float(learning)))
        return memory, self._reply(memory, turn)

    def _safe_steps(self, memory: Memory, curvature: Floats) -> Floats:
        """1 / (largest curvature of a node and its pull), in every game; as good as any where a step size is given."""
        pulls = [0.0 if game.lower is None else game.lower.bound(memory.links) for game in self.games]
        most = np.array([np.max(curvature.max() + self.kappa + self.lam * pull) for pull in pulls])
        return 1.0 / np.where(most > 0, most, 1.0)

    def _reply(self, memory: Memory, turn: Turn) -> Reply:
        """φ and what was learnt of it to all; what they need of the others, or v, to each."""
        phis = {f"{k}.phi": phi for k, phi in enumerate([memory.phi, memory.identity][: len(self.games)])}
        none = {f"{k}.phi": np.zeros(0) for k in range(2, len(self.games))}
        facts = {name: np.asarray(value) for name, value in memory.facts._asdict().items()}
        to_all = {**phis, **none, "step": memory.step, **facts}
        if memory.krylov is not None:
            to_each = {"v": memory.krylov.next}
            return Reply(to_all, to_each if turn.exchange else {**to_each, **self._messages(memory, turn)})
        return Reply(to_all, self._messages(memory, turn))

    def _messages(self, memory: Memory, turn: Turn) -> dict[str, Floats]:
        phis = [memory.phi, memory.identity, np.zeros(0)]
        return {
            f"{k}.{name}": rows[turn.active]
            for k, game in enumerate(self.games)
            if game.lower is not None
            for name, rows in game.lower.messages(memory.links, memory.layout, phis[k], memory.w[:, k]).items()
        }

    def _regressed(self, memory: Memory) -> Memory:
        """φ from θ at once."""
        found = self.upper.fitted(self.lower, memory.links, memory.layout, memory.w[:, 0])
        facts = memory.facts._replace(phi_steps=memory.facts.phi_steps + 1)
        return self._with_phi(memory, found, facts)

    def _asked(self, memory: Memory, outbox: Arrays, turn: Turn) -> Memory:
        """f with its derivatives, and the first question of (2)."""
        links, layout, phi, w = memory.links, memory.layout, memory.phi, memory.w[:, 0]
        rng = np.random.default_rng([DRAWN, turn.seed, turn.round])
        common = self.upper.common(self.lower, links, layout, phi, w, rng)
        distance = self.lower.distance(links, layout, phi)
        right, value = common.w[turn.active], common.value
        if "validation" in outbox:
            known = ~np.isnan(outbox["validation"][:, 0])
            share = 1.0 / max(int(known.sum()), 1)
            right = right + share * outbox["slope"]
            value += share * float(outbox["validation"][known, 0].sum())
        curved = outbox["sharpness"].max() + self.kappa + self.lam * self.lower.bound(links).max()
        facts = memory.facts._replace(
            upper=value + self.lam_upper * distance.value,
            stability=float(np.max(self.rate(turn, 0, memory.step[0])) * curved),
        )
        return memory._replace(
            by_phi=common.phi + self.lam_upper * distance.slope, krylov=Krylov.of(right), facts=facts
        )

    def _extended(self, memory: Memory, outbox: Arrays, turn: Turn) -> Memory:
        """A step of the Krylov method: what the graph adds to the products of the nodes."""
        assert memory.krylov is not None
        solved = outbox["solved"] if self.adjoint.preconditioned else memory.krylov.next
        spread = np.zeros_like(memory.w[:, 0])
        spread[turn.active] = solved  # those away stay as they are: their v is zero
        pulled = self.lower.adjoint_product(memory.links, memory.layout, memory.phi, memory.w[:, 0], spread)
        product = outbox["product"] + self.lam * pulled[turn.active]
        facts = memory.facts._replace(exchanges=memory.facts.exchanges + 1)
        return memory._replace(krylov=memory.krylov.extended(solved, product), facts=facts)

    def _moved(self, memory: Memory, turn: Turn) -> Memory:
        """(3), unless the hypergradient cannot be trusted."""
        assert memory.krylov is not None
        found, w = memory.krylov.solution(), memory.w[:, 0]
        v = np.zeros_like(w)
        v[turn.active] = found.v
        gradient = memory.by_phi - self.lam * self.lower.phi_product(memory.links, memory.layout, memory.phi, w, v)
        facts = memory.facts._replace(adjoint_residual=found.residual)
        memory = memory._replace(krylov=None, hypergradient=gradient)
        length = float(np.linalg.norm(gradient))
        usable = found.residual <= self.adjoint.trust and facts.stability < UNSTABLE and 0 < length < math.inf
        if not usable:
            return memory._replace(facts=facts._replace(skipped=facts.skipped + 1))
        alpha = size_of_step(self.phi_step_size, int(facts.phi_steps))
        along = gradient * (self.lower.unit(memory.layout, memory.phi) / length if self.normalised else 1.0)
        return self._with_phi(memory, memory.phi - alpha * along, facts._replace(phi_steps=facts.phi_steps + 1))

    def _with_phi(self, memory: Memory, phi: Floats, facts: Facts) -> Memory:
        phi = self.lower.projected(memory.layout, phi)
        distance = math.sqrt(2.0 * self.lower.distance(memory.links, memory.layout, phi).value)
        return memory._replace(phi=phi, facts=facts._replace(phi_distance=distance))

    # ------------------------------------------------------------------ what comes out

    def phi_of(self, run: Run) -> Floats:
        """The numbers of φ at the end of a run, to be given to another as ``phi``."""
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
        w, phi, one = state.w[:, 0], inbox.to_all["0.phi"], np.ones(site.node_count)
        loss = losses.value(w)
        pull = self.lower.slope(layout, phi, w, received)
        out = {
            "objective": loss + self.lam * self.lower.value(layout, phi, w, received) + 0.5 * self.kappa * squares(w),
            "size": squares(losses.gradient(w) + self.lam * pull + self.kappa * w),
            "start": squares(losses.gradient_at_start),
            "training": loss,
            "known": losses.has_data.astype(np.float64),
            "nodes": one,
        }
        if self.learns:
            out |= {f"fact {name}": one * inbox.to_all[name] for name in Facts._fields}
            out |= self._compared(site, state)
        return out

    def _compared(self, site: Site, state: State) -> dict[str, Floats]:
        """Errors on held-out rows of all games, and on test rows of the controls."""
        out = {"validated": (~np.isnan(state.validation[:, 0])).astype(np.float64)}
        for k, game in enumerate(self.games):
            out[f"validation {game.name}"] = np.nan_to_num(state.validation[:, k])
            if site.test is not None and k:
                errors, owner = np.zeros(0), site.test.owner
                if len(owner):
                    errors = self.loss.models(state.w[:, k]).error(site.test.X, site.test.y, owner)
                out[f"error {game.name}"] = np.bincount(owner, errors, site.node_count)
                out["tested"] = np.bincount(owner, minlength=site.node_count).astype(np.float64)
        return out

    def summary(self, totals: Mapping[str, float]) -> Mapping[str, float]:
        """The sum of all g_i, the slope of the game against that at the start, and what was compared."""
        nodes = totals["nodes"]
        resting = ratio(math.sqrt(totals["size"]), math.sqrt(totals["start"]))
        learning = totals.get("fact learning", 0.0) > 0
        out = {
            "objective": totals["objective"],
            "residual": math.inf if learning else resting,
            "game_residual": resting,
            "training": ratio(totals["training"], totals["known"]),
        }
        out |= {name: totals[f"fact {name}"] / nodes for name in Facts._fields[1:] if f"fact {name}" in totals}
        for name, total in totals.items():
            kind, _, game = name.partition(" ")
            count = {"validation": "validated", "error": "tested"}.get(kind)
            if count is not None:
                out[f"{kind}_{game}".rstrip("_")] = total / totals[count] if totals[count] else math.nan
        return out

    def findings(self, row: Mapping[str, float]) -> list[str]:
        """Whether φ has helped, as far as was measured, and whether steps were skipped."""
        if not self.learns:
            return []
        out = []
        if row["skipped"] > 0:
            out.append(
                f"{row['skipped']:.0f} of {row['skipped'] + row['phi_steps']:.0f} steps of φ were skipped, as their "
                f"hypergradient could not be trusted: the last adjoint residual is {row['adjoint_residual']:.2g} (at "
                f"most {self.adjoint.trust:g}), β times the largest curvature {row['stability']:.2g} (below 2): take a "
                "smaller step_size, or more exchanges."
            )
        for kind, rows in (("error", "test rows"), ("validation", "held-out rows, on which φ was learnt")):
            if f"{kind}_identity" in row and not math.isnan(row[kind]):
                others = ", ".join(f"{row[f'{kind}_{game.name}']:.3g} {CONTROLS[game.name]}" for game in self.games[1:])
                out.append(f"Mean error on {rows}: {row[kind]:.3g} with the φ that was learnt, {others}.")
        return out


CONTROLS = {"identity": "with φ = I", "laplacian": "with a Laplacian coupling", "local": "alone"}


def _received(inbox: Inbox, game: int) -> dict[str, Floats]:
    """What the nodes were sent for a game."""
    prefix = f"{game}."
    return {name.removeprefix(prefix): rows for name, rows in inbox.to_each.items() if name.startswith(prefix)}
