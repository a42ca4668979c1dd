"""Newton's method for smooth tailored models, each step by conjugate gradients, one exchange for every gradient.

    min_w  P(w) = Σ_i L_i(w_i) + λ/2 Σ_edges A_ij ‖w_i − w_j‖²        each edge once; L_i smooth

    H x = −∇P(w),  H_ii = ∇²L_i(w_i) + λ Σ_j A_ij,  H_ij = −λ A_ij;        w <- w + x, halved until P falls          (1)

(1) is solved by conjugate gradients, preconditioned by J_i = H_ii⁻¹ at every node, and by a common model for all: where
λ is large, all nodes move together, and only the sum of their curvatures says how far.

    M r = J r + 1 c,    c = (Σ_i ∇²L_i)⁻¹ Σ_i r_i                                                                    (2)

In the form of Ghysels and Vanroose (Hiding global synchronization latency in the preconditioned conjugate gradient
algorithm, 2014) products with H and inner products are asked for at the same time, so a step takes one exchange:
neighbours receive J H u, the coordinator numbers whose sums are (r, u) and (H u, u), and Σ H u of every site for (2).
Differences over edges do not see the common model, so neighbours need not wait for c.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from kinfolk.algorithms.gtvmin import uninformed
from kinfolk.algorithms.parametric import ParametricAlgorithm, ratio, squares
from kinfolk.checks import AtLeast, InputError, Positive
from kinfolk.engine.protocol import (
    NUMBER,
    WHOLE_NUMBER,
    Arrays,
    Coordinated,
    Inbox,
    Outbox,
    PerNode,
    Replies,
    Reply,
    Sends,
    Sent,
    Turn,
)
from kinfolk.network.problem import Problem
from kinfolk.network.site import Site
from kinfolk.objective.local_losses import LinearLosses
from kinfolk.objective.losses import Loss, Squared
from kinfolk.objective.node_loss import ParametricModels
from kinfolk.objective.symmetric import invert_symmetric
from kinfolk.typing import Floats

FORCING = 0.1  # precision of (1), relative to the gradient, unless the loss is quadratic
MOST_STEPS = 500  # of conjugate gradients, until the gradient is worked out anew
HALVINGS = 30
FEWEST, MOST = 3, 16  # exchanges of a round
LARGEST_WIDTH = 64  # parameters, up to which matrices at every node are inverted


class Phase(IntEnum):
    """What sites do in an exchange."""

    SLOPE = 0  # work out the gradient
    FIRST = 1  # begin conjugate gradients
    STEP = 2  # of conjugate gradients
    MOVE = 3  # by x
    BACK = 4  # half of the way


class State(NamedTuple):
    """Newton's iterate, and the conjugate gradients of (1): r = −∇P − H x, u = M r, v = H u, and their directions."""

    w: PerNode  # (nodes, parameters), as all below unless it says otherwise
    x: PerNode
    r: PerNode
    u: PerNode
    v: PerNode
    along: PerNode  # (nodes, 4, parameters) directions of x, r, u and v
    curvature: PerNode  # (nodes, parameters, parameters) ∇²L_i
    inverse: PerNode  # (nodes, parameters, parameters) J
    known: PerNode  # (nodes, 4) objective, ‖∇P‖², ‖∇L_i‖², ‖∇L_i(0)‖², where the gradient was last worked out


class Memory(NamedTuple):
    """What the coordinator knows."""

    phase: Phase = Phase.SLOPE  # that sites are in
    inverse: Any = None  # (Σ ∇²L_i)⁻¹
    gamma: float = 0.0  # (r, u)
    alpha: float = 0.0
    height: float = np.inf  # P where the last step began
    slope: float = 0.0  # ‖∇P‖ there
    resting: float = 0.0  # ‖∇L(0)‖
    goal: float = 0.0  # for ‖r‖
    rest: float = 0.0  # ‖r‖
    tries: int = 0  # steps of conjugate gradients, or halvings


SUMMED_OVER_SITE = ("sum", "bend")  # what the coordinator reads of a site, where there is a common direction


@dataclass(frozen=True)
class Newton(ParametricAlgorithm[State], Coordinated[State, Memory]):
    """Tailored models that make neighbours similar, exact after tens of exchanges: linear ones with smooth losses.

    Everybody has to take part in every exchange.

    Parameters
    ----------
    loss : Loss
        L_i, smooth.
    lam : float
        λ.
    accuracy : float
        How exactly (1) is solved: the gradient against its size at zero.
    common : bool
        Whether a common model is preconditioned for, as in (2). Then the coordinator reads the sums of gradients and
        curvatures over the nodes of every site.
    origin : tuple of float
        A model that all nodes begin with, such as one that fits all of them together; none: zero.

    The residual is the gradient of the whole against those of the nodes, as of when it was last worked out.

    >>> from kinfolk import Network, fit, graphs
    >>> x = [[1.0]]
    >>> network = Network(graphs.chain(2), [(x, [0.0]), (x, [1.0])])
    >>> fit(network, Newton(lam=1.0)).models.w.round(3).tolist()
    [[0.25], [0.75]]
    """

    loss: Loss = Squared()
    lam: Annotated[float, AtLeast(0)] = 0.1
    accuracy: Annotated[float, Positive()] = 1e-6
    common: bool = True
    origin: tuple[float, ...] = ()

    needs_slope: ClassVar[bool] = True

    def check(self, problem: Problem) -> None:
        """Refuse losses without a gradient, and models with many parameters."""
        super().check(problem)
        if not isinstance(self.loss, Loss) or self.width(problem) > LARGEST_WIDTH:
            raise InputError(
                f"Expected linear models with at most {LARGEST_WIDTH} parameters for Newton, got others: use GTVMin."
            )
        if len(self.origin) not in (0, self.width(problem)):
            raise InputError(
                f"Expected an origin with {self.width(problem)} parameters, got {len(self.origin)}: leave it out."
            )

    def sends(self, problem: Problem) -> Sends:
        """Neighbours receive parameters and directions; the coordinator numbers to be added, and sums of a site."""
        width = self.width(problem)
        numbers = {"numbers": Sent("inner products of gradients and directions", (4,))}
        sums = {
            "sum": Sent("gradients, summed over the nodes of a site", (width,)),
            "bend": Sent("curvatures, summed over the nodes of a site", (width, width)),
        }
        return Sends({"v": Sent("parameters", (width,))}, numbers | (sums if self.common else {}))

    def replies(self, problem: Problem) -> Replies:
        """What to do next, and how far."""
        common = {"common": Sent("common part of a direction", (self.width(problem),))}
        return Replies({"phase": WHOLE_NUMBER, "alpha": NUMBER, "beta": NUMBER} | (common if self.common else {}))

    # ------------------------------------------------------------------ a node

    def init(self, site: Site, turn: Turn) -> tuple[State, Outbox]:
        """At the origin neighbours are alike, and nobody has to be asked for the gradient."""
        shape = site.node_count, self._losses(site).width
        zero, matrices = np.zeros(shape), np.zeros((*shape, shape[1]))
        directions, known = np.zeros((shape[0], 4, shape[1])), np.zeros((shape[0], 4))
        first = np.array(self.origin) if self.origin else np.zeros(shape[1])
        state = State(zero + first, zero, zero, zero, zero, directions, matrices, matrices, known)
        return self._slope(site, state, np.tile(first, (len(site.outside), 1)), {})

    def step(self, site: Site, state: State, inbox: Inbox, turn: Turn) -> tuple[State, Outbox]:
        """What the coordinator says."""
        if site.live is not None or site.part is not None:
            raise InputError(
                "Expected everybody in every round of Newton, got absent nodes or lost messages: use GTVMin."
            )
        steps = {
            Phase.SLOPE: self._slope,
            Phase.FIRST: self._first,
            Phase.STEP: self._step,
            Phase.MOVE: self._move,
            Phase.BACK: self._back,
        }
        return steps[Phase(int(inbox.to_all["phase"]))](site, state, inbox["v"], inbox.to_all)

    def _losses(self, site: Site) -> LinearLosses:
        losses: LinearLosses = site.local_losses(self.loss)
        return losses

    def _coupled(self, site: Site, own: Floats, received: Floats) -> Floats:
        """λ Σ_j A_ij (own_i − own_j)."""
        return site.divergence(self.lam * site.weights[:, None] * site.difference(own, received))

    def _slope(self, site: Site, state: State, received: Floats, reply: Arrays) -> tuple[State, Outbox]:
        """r = −∇P(w), and J there."""
        losses, w = self._losses(site), state.w
        gradient, curvature = losses.gradient(w), losses.hessian(w)
        r = -gradient - self._coupled(site, w, received)
        pull = self.lam * site.edge_sum(site.weights)
        inverse = invert_symmetric(curvature + pull[:, None, None] * np.eye(w.shape[1]))
        apart = 0.5 * self.lam * site.weights * squares(site.difference(w, received))
        height = losses.value(w) + site.at_smaller_end(apart)
        known = np.stack([height, squares(r), squares(gradient), squares(losses.gradient_at_zero)], axis=1)
        state = state._replace(r=r, curvature=curvature, inverse=inverse, known=known)
        return state, self._outbox(state, r, known, curvature)

    def _first(self, site: Site, state: State, received: Floats, reply: Arrays) -> tuple[State, Outbox]:
        """u = M r and v = H u."""
        u, v = self._product(site, state, state.r, received, reply)
        state = state._replace(x=np.zeros_like(u), u=u, v=v, along=np.zeros_like(state.along))
        return state, self._outbox(state, v, self._numbers(state))

    def _step(self, site: Site, state: State, received: Floats, reply: Arrays) -> tuple[State, Outbox]:
        """One step along directions that are conjugate."""
        alpha, beta = float(reply["alpha"]), float(reply["beta"])
        m, n = self._product(site, state, state.v, received, reply)
        along = np.stack([state.u, state.v, m, n], axis=1) + beta * state.along
        p, s, q, z = np.moveaxis(along, 1, 0)
        state = state._replace(
            x=state.x + alpha * p, r=state.r - alpha * s, u=state.u - alpha * q, v=state.v - alpha * z, along=along
        )
        return state, self._outbox(state, state.v, self._numbers(state))

    def _product(
        self, site: Site, state: State, before: Floats, received: Floats, reply: Arrays
    ) -> tuple[Floats, Floats]:
        """M y and H M y, from J y of the neighbours and the common part."""
        own = _times(state.inverse, before)
        whole = own + reply["common"] if self.common else own
        return whole, _times(state.curvature, whole) + self._coupled(site, own, received)

    def _move(self, site: Site, state: State, received: Floats, reply: Arrays) -> tuple[State, Outbox]:
        """w + x."""
        state = state._replace(w=state.w + state.x)
        return state, Outbox({"v": state.w}, self._nothing(state))

    def _back(self, site: Site, state: State, received: Floats, reply: Arrays) -> tuple[State, Outbox]:
        """Half of the way back."""
        half = 0.5 * state.x
        state = state._replace(w=state.w - half, x=half)
        return state, Outbox({"v": state.w}, self._nothing(state))

    def _numbers(self, state: State) -> Floats:
        products = [(state.r * state.u).sum(axis=1), (state.v * state.u).sum(axis=1), squares(state.r)]
        return np.stack([*products, np.zeros(len(state.r))], axis=1)

    def _outbox(self, state: State, y: Floats, numbers: Floats, curvature: Floats | None = None) -> Outbox:
        """J y to the neighbours; the sum of y over this site to the coordinator, in the row of its first node."""
        sent: dict[str, Floats] = {"numbers": numbers}
        if self.common:
            sent["sum"] = _at_first(y)
            if curvature is not None:
                sent["bend"] = _at_first(curvature)
        return Outbox({"v": _times(state.inverse, y)}, sent)

    def _nothing(self, state: State) -> dict[str, Floats]:
        return {"numbers": np.zeros((len(state.w), 4))}

    # ------------------------------------------------------------------ the coordinator

    def start(self, problem: Problem, turn: Turn, before: Memory | None = None) -> Memory:
        """Sites work out the gradient."""
        return Memory()

    def exchanges(self, round_: int, memory: Memory) -> int:
        """About as many as it takes until a gradient may be small enough: it is measured after a round."""
        if memory.slope > 0 and memory.goal > self.accuracy * memory.resting:
            return MOST  # another step of Newton's method follows
        if memory.phase is not Phase.STEP or memory.tries < 2:
            return 2 * FEWEST
        rate = np.log(memory.rest / memory.slope) / memory.tries if 0 < memory.rest < memory.slope else 0.0
        left = np.log(memory.goal / memory.rest) / rate if rate and memory.goal > 0 else MOST
        return int(np.clip(np.ceil(left) + 2, FEWEST, MOST))

    def combine(self, memory: Memory, outbox: Arrays, turn: Turn) -> tuple[Memory, Reply]:
        """Inner products, and what to do next."""
        numbers = outbox["numbers"].sum(axis=0)
        if memory.phase is Phase.SLOPE:
            memory = self._judged(memory, numbers, outbox)
            alpha = beta = 0.0
        elif memory.phase in (Phase.FIRST, Phase.STEP):
            memory, alpha, beta = self._stepped(memory, numbers)
        else:
            memory, alpha, beta = memory._replace(phase=Phase.SLOPE), 0.0, 0.0
        reply: dict[str, Any] = {"phase": np.int64(memory.phase), "alpha": np.float64(alpha), "beta": np.float64(beta)}
        if self.common:
            reply["common"] = self._common(memory, outbox)
        return memory, Reply(reply)

    def _judged(self, memory: Memory, numbers: Floats, outbox: Arrays) -> Memory:
        """After a gradient: begin with conjugate gradients, or go back half of the way if P has grown."""
        height, slope, resting = float(numbers[0]), float(np.sqrt(numbers[1])), float(np.sqrt(numbers[3]))
        if height > memory.height + 1e-12 * abs(memory.height) and memory.tries < HALVINGS:
            return memory._replace(phase=Phase.BACK, tries=memory.tries + 1)
        inverse = np.linalg.pinv(outbox["bend"].sum(axis=0), hermitian=True) if self.common else None
        sharp = 0.5 * self.accuracy * resting
        rough = 0.0 if isinstance(self.loss, Squared) else FORCING * slope * min(1.0, ratio(slope, resting))
        return Memory(Phase.FIRST, inverse, 0.0, 0.0, height, slope, resting, max(sharp, rough), slope)

    def _stepped(self, memory: Memory, numbers: Floats) -> tuple[Memory, float, float]:
        """α and β of the next step; or the step is good enough."""
        gamma, bend, rest = float(numbers[0]), float(numbers[1]), float(np.sqrt(numbers[2]))
        first = memory.phase is Phase.FIRST
        beta = 0.0 if first else ratio(gamma, memory.gamma)
        bend -= 0.0 if first else beta * gamma / memory.alpha
        if not (rest > memory.goal and gamma > 0 and bend > 0) or memory.tries >= MOST_STEPS:
            return memory._replace(phase=Phase.MOVE, rest=rest, tries=0), 0.0, 0.0
        alpha = gamma / bend
        now = memory._replace(phase=Phase.STEP, gamma=gamma, alpha=alpha, rest=rest, tries=memory.tries + 1)
        return now, alpha, beta

    def _common(self, memory: Memory, outbox: Arrays) -> Floats:
        """c of (2)."""
        if memory.inverse is None or "sum" not in outbox:
            return np.zeros(0 if memory.inverse is None else len(memory.inverse))
        return np.asarray(memory.inverse @ outbox["sum"].sum(axis=0))

    # ------------------------------------------------------------------ what comes out

    def measure(self, site: Site, state: State, inbox: Inbox) -> Arrays:
        """Where the gradient was last worked out."""
        return dict(zip(("height", "slope", "gradient", "resting"), state.known.T, strict=True))

    def summary(self, totals: Mapping[str, float]) -> Mapping[str, float]:
        """Objective and relative gradient."""
        slope, gradient, resting = (float(np.sqrt(totals[name])) for name in ("slope", "gradient", "resting"))
        return {"objective": totals["height"], "residual": ratio(slope, gradient + resting)}

    def models(self, site: Site, state: State, inbox: Inbox) -> ParametricModels:
        """The parameters; NaN where nothing could be learnt."""
        return self.loss.models(np.where(uninformed.reached(site, self.lam)[:, None], state.w, np.nan))


def _times(matrices: Floats, vectors: Floats) -> Floats:
    return np.asarray(np.einsum("nij,nj->ni", matrices, vectors))


def _at_first(values: Floats) -> Floats:
    """The sum of all rows, in the first one."""
    out = np.zeros_like(values)
    out[:1] = values.sum(axis=0)
    return out
