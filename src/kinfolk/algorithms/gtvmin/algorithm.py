"""Generalised total variation (GTV) minimisation: tailored models that vary little over the edges.

SarcheshmehPour, Tian, Zhang, Jung: Clustered Federated Learning via Generalized Total Variation Minimization
(2023), eq (16), Algorithm 1.

    min_w  Σ_i L_i(w_i) + λ Σ_edges A_ij φ(w_i − w_j)                 each edge once; L_i as the loss states it

    u_e <- prox of σ_e (λ A_e φ)* at  u_e + σ_e D(2 w_new − w)_e                                              (1)
    w_i <- prox of τ_i L_i       at  w_i − τ_i (Dᵀu)_i                                                        (2)

Neighbours hear 2 w_new − w, and nothing else. The paper takes τ_i = 1 / degree_i, σ_e = 1/2. The default takes

    σ_e = s_e / (2η),  τ_i = η / Σ_e s_e over the edges of i,  s_e = √A_e                                    (3)

which is safe for every η > 0, and over-relaxes: both variables move ρ = 1.6 times as far as (1) and (2) say, unless
nodes are away or messages get lost, where only ρ = 1 converges. The coordinator finds η and ρ (see ``Balance``).

Half of the nodes present, or a third of the messages lost, still lead to the same answer. Where only an eighth of the
edges carry (both at once) the iteration does not settle, with the paper's steps no more than with these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np

from kinfolk import kernels
from kinfolk.algorithms.gtvmin.certificate import Certificate, Problem, certify
from kinfolk.algorithms.gtvmin.direct import solve_quadratic
from kinfolk.algorithms.gtvmin.polish import polish
from kinfolk.algorithms.parametric import ParametricAlgorithm, ratio, squares
from kinfolk.checks import AtLeast, InputError, Positive, as_floats
from kinfolk.engine.protocol import Arrays, Inbox, Models, Outbox, PerEdge, PerNode, Reply, Turn
from kinfolk.network.network import Network
from kinfolk.network.site import Site
from kinfolk.objective.couplings import Coupling, EuclideanNorm, SquaredNorm
from kinfolk.objective.local_losses import LinearLosses, QuadraticLosses
from kinfolk.objective.losses import Squared
from kinfolk.objective.node_loss import NodeLoss
from kinfolk.typing import Bools, Floats, Ints

RELAXATION = 1.6
BALANCE_EVERY = 10  # rounds
SMALLEST_ETA = 1e-100  # features so large that squares overflow
ROUNDING = 1e-26  # squares below this say nothing about balance


@dataclass(frozen=True)
class Inexact:
    """Local updates by gradient steps, with an error of at most ``accuracy`` / round^``power`` in every round.

    The errors add up to something finite for a power above 1, and the method still converges (section IV of the
    paper). Errors that do not shrink, power 0, leave it short of the solution.
    """

    accuracy: Annotated[float, Positive()] = 1.0
    power: Annotated[float, AtLeast(0)] = 2.0

    def at(self, round_: int) -> float:
        """The error allowed in a round."""
        return self.accuracy / round_**self.power


class Flows(NamedTuple):
    """What (1) gives at a point, without taking the step: numbers per edge, and what would flow out of every node."""

    variation: Floats  # (edges,) λA φ(Dw)
    mismatch: Floats  # (edges,) λA φ(Dw) + (λA φ)*(u_new) − ⟨u_new, Dw⟩
    moved: Floats  # (edges,) ‖u_new − u‖²
    divergence: Floats  # (nodes, parameters) Dᵀu_new


OnePass = tuple[Ints, Ints, Floats, float, Floats, float, tuple[float, float, float]]


class State(NamedTuple):
    """Primal and dual variables."""

    w: PerNode  # (nodes, parameters)
    w_bar: PerNode  # (nodes, parameters) 2 w_new − w, with w_new what (2) gave
    u: PerEdge  # (edges, parameters) flow from the smaller to the larger end
    missed: PerNode  # (nodes,) messages that did not come since the coordinator was last told

    @property
    def w_new(self) -> Floats:
        """What (2) gave."""
        return 0.5 * (self.w + self.w_bar)


@dataclass(frozen=True)
class GTVMin(ParametricAlgorithm):
    """Tailored models by GTV minimisation: linear ones, certified, or modules of torch (``TorchLoss``).

    Parameters
    ----------
    loss : L_i, with its scaling and ridge. With a ``TorchLoss``, (2) is a few steps of an optimiser.
    coupling : φ. ``EuclideanNorm`` finds clusters of equal models, ``SquaredNorm`` makes neighbours similar.
    lam : λ. Zero leaves every node alone; above some value every component has one model.
    steps : ``"balanced"`` needs no tuning; ``"published"`` takes the paper's step sizes; ``"direct"`` solves
        one linear system instead (squared loss with ``SquaredNorm``, all nodes in one site).
    inexact : None for exact local updates (2), or ``Inexact(...)`` where a node can only take gradient steps.
    uninformed : what a node gets that has no data and no connection to any: ``"none"`` or the ``"pooled"`` model.

    >>> import numpy as np
    >>> from kinfolk import Network, fit, graphs
    >>> x = np.ones((1, 1))
    >>> network = Network(graphs.chain(4), [(x, [0.0]), (x, [0.2]), None, (x, [9.0])])
    >>> run = fit(network, GTVMin(lam=0.5))
    >>> run.models.w.round(3).ravel()[:2]
    array([0.225, 0.225])
    >>> print(run.certificate)
    The objective is 4.37625. No other choice of parameters lowers it by more than ...
    """

    loss: NodeLoss = Squared()
    coupling: Coupling = EuclideanNorm()
    lam: Annotated[float, AtLeast(0)] = 0.1
    steps: Literal["balanced", "published", "direct"] = "balanced"
    inexact: Inexact | None = None
    uninformed: Literal["none", "pooled"] = "none"

    def check(self, network: Network) -> None:
        """Labels that the loss admits; a quadratic problem where it is to be solved directly."""
        super().check(network)
        self.coupling.check(self.loss.width(network.data.feature_count))
        if self.inexact is not None and not np.isfinite(self.loss.most_curvature):
            raise InputError(
                f"Expected a loss of bounded curvature for gradient steps, got {type(self.loss).__name__}."
            )
        if self.steps == "direct" and not (isinstance(self.loss, Squared) and isinstance(self.coupling, SquaredNorm)):
            raise InputError(
                "The 'steps' parameter of GTVMin can be 'direct' only for Squared loss with SquaredNorm coupling. Got "
                f"{type(self.loss).__name__} with {type(self.coupling).__name__}: use steps='balanced'."
            )

    def remarks(self, network: Network) -> list[str]:
        """What nodes get that nothing can teach."""
        if self.lam == 0:
            return ["λ is 0: every node learns alone, and nodes without data learn nothing."]
        if network.informed.all():
            return []
        return ["Such nodes get " + ("no model (NaN)." if self.uninformed == "none" else "the pooled model.")]

    # ------------------------------------------------------------------ the node program

    def init(self, site: Site, turn: Turn) -> tuple[State, Outbox]:
        """Start where the loss says; nodes that stand alone start at their own minimum, and stay there."""
        losses = site.local_losses(self.loss)
        w = losses.start
        alone = np.flatnonzero(site.own_degrees == 0)
        w[alone] = losses.take(alone).minimise()
        u = np.zeros((len(site.weights), losses.width))
        return self.resume(site, State(w, w.copy(), u, np.zeros(site.node_count)), turn)

    def resume(self, site: Site, state: State, turn: Turn) -> tuple[State, Outbox]:
        """Go on from a state; the coordinator learns what sets the first η."""
        losses = site.local_losses(self.loss)
        _, pull = self._scales(site)
        return state, Outbox({"w_bar": state.w_bar}, {"pull": pull, "curvature": losses.trace / losses.width})

    def extrapolate(self, site: Site, past: Sequence[tuple[float, State]]) -> State:
        """A guess at the solution from those for one or two other values of λ: w and u / λ are linear in log λ."""
        lam, state = past[-1]
        if min(self.lam, *(each for each, _ in past)) == 0:
            return state
        w, flow = state.w_bar, state.u / lam
        if len(past) > 1 and past[-2][0] != lam:
            before, earlier = past[-2]
            part = np.log(self.lam / lam) / np.log(lam / before)
            w = w + part * (w - earlier.w_bar)
            flow = flow + part * (flow - earlier.u / before)
        u = self.lam * flow
        if self.coupling.is_norm:
            u = self.coupling.dual_prox(u, np.ones_like(site.weights), self.lam * site.weights)
        return State(w.copy(), w.copy(), u, state.missed)

    def step(self, site: Site, state: State, inbox: Inbox, turn: Turn) -> tuple[State, Outbox]:
        """(1) and (2), relaxed; every tenth round, also what the coordinator needs to balance them."""
        if self.steps == "direct":
            return self._solve(site)
        w, w_bar, u, missed = state
        eta, rho = float(inbox.to_all["eta"]), float(inbox.to_all["rho"])
        values = site.values(w_bar, inbox["w_bar"])
        missed = missed + site.missed
        said: dict[str, Floats] = {}
        if self.steps == "balanced" and turn.round % BALANCE_EVERY == 0:
            said = {**self._report(site, state, values, eta), "missed": missed}
            missed = np.zeros_like(missed)
        flow = self._dual_step(site, u, values, eta, rho)  # (1)
        w_bar = self._primal_step(site, w, w_bar, flow, eta, rho, turn)  # (2)
        return State(w, w_bar, u, missed), Outbox({"w_bar": w_bar}, said)

    def _dual_step(self, site: Site, u: Floats, values: Floats, eta: float, rho: float) -> Floats:
        """(1), relaxed, in place; also Dᵀu."""
        flow, known = np.zeros_like(values), self._in_one_pass(site, eta)
        if known is not None:
            kernels.dual_step(u, values, *known, rho, flow)
        else:
            for block in site.edge_blocks:
                u_new, _ = self._dual_prox(site, block, u, values, eta)
                u[block] = site.carried(u[block] + rho * (u_new - u[block]), u[block], block)
                kernels.add_flows(flow, u[block], site.head[block], site.tail[block])
        return flow[: site.node_count]

    def _in_one_pass(self, site: Site, eta: float) -> OnePass | None:
        """What a compiled pass over the edges needs, for the couplings that it knows."""
        coefficients = self.coupling.kernel_coefficients
        if coefficients is None or site.live is not None:
            return None
        scales, _ = self._scales(site)
        return site.head, site.tail, scales, 1 / (2 * eta), site.weights, float(self.lam), coefficients

    def _dual_prox(self, site: Site, block: slice, u: Floats, values: Floats, eta: float) -> tuple[Floats, Floats]:
        """(1) as it stands, on a block of edges; and the differences there."""
        change, sigma = site.difference_on(block, values), self._scales(site)[0][block] / (2 * eta)
        v = kernels.add_scaled(u[block], sigma, change)
        return self.coupling.dual_prox(v, sigma, self.lam * site.weights[block]), change

    def _primal_step(
        self, site: Site, w: Floats, w_bar: Floats, flow: Floats, eta: float, rho: float, turn: Turn
    ) -> Floats:
        """(2), relaxed, w in place; what neighbours are to hear."""
        losses, tau = site.local_losses(self.loss), self._tau(site, eta)
        if self.inexact is None:
            return losses.primal_step(w, w_bar, flow, tau, rho)
        w_new = 0.5 * (w_bar + w)
        w += rho * (w_new - w)
        return 2 * losses.prox_by_gradient(w - tau[:, None] * flow, tau, self.inexact.at(turn.round), w_new) - w

    def _scales(self, site: Site) -> tuple[Floats, Floats]:
        """s_e, and their sums at the nodes."""
        if self.steps == "published":
            return np.ones_like(site.weights), site.own_degrees.astype(np.float64)
        return site.root_weights, site.root_degrees

    def _tau(self, site: Site, eta: float) -> Floats:
        """τ_i of (3); a node without edges takes 1 for the sum."""
        _, pull = self._scales(site)
        return eta / np.where(pull > 0, pull, 1.0)

    def _report(self, site: Site, state: State, values: Floats, eta: float) -> dict[str, Floats]:
        """What the coordinator needs to balance primal and dual steps."""
        flows = self._flows(site, state.u, values, eta)
        sigma = self._scales(site)[0] / (2 * eta)
        return {
            **self._conditions(site, state, flows, eta),
            "moved_w": squares(state.w_new - state.w) / self._tau(site, eta),
            "moved_u": site.at_smaller_end(flows.moved / sigma),
        }

    def _flows(self, site: Site, u: Floats, values: Floats, eta: float) -> Flows:
        """What (1) gives at ``values``, block by block, so that no array of the size of u is made."""
        variation, mismatch, moved = (np.empty(len(u)) for _ in range(3))
        flow, known = np.zeros_like(values), self._in_one_pass(site, eta)
        if known is not None:
            kernels.dual_look(u, values, *known, flow, variation, mismatch, moved)
            return Flows(variation, mismatch, moved, flow[: site.node_count])
        for block in site.edge_blocks:
            u_new, change = self._dual_prox(site, block, u, values, eta)
            weights = self.lam * site.weights[block]
            variation[block] = weights * self.coupling.value(change)
            conjugate = self.coupling.weighted_conjugate(u_new, weights)
            mismatch[block] = variation[block] + conjugate - np.einsum("ij,ij->i", u_new, change)
            moved[block] = squares(u_new - u[block])
            kernels.add_flows(flow, u_new, site.head[block], site.tail[block])
        return Flows(variation, mismatch, moved, flow[: site.node_count])

    def _solve(self, site: Site) -> tuple[State, Outbox]:
        """The whole problem at once."""
        losses = site.local_losses(self.loss)
        if len(site.outside) or site.live is not None or not isinstance(losses, QuadraticLosses):
            raise InputError(
                "Expected all nodes in one site for steps='direct', got several sites, absent nodes or lost "
                "messages: use engine=InProcess() with everybody present, or steps='balanced'."
            )
        weights = self.lam * site.weights
        w = solve_quadratic(site, losses, weights)
        u = weights[:, None] * site.difference(w, w[:0])
        return State(w, w.copy(), u, np.zeros(site.node_count)), Outbox({"w_bar": w})

    # ------------------------------------------------------------------ the coordinator

    def start(self, turn: Turn, before: Balance | None = None) -> Balance | None:
        """Nothing is known before the first words; a changed problem keeps an η that was balanced."""
        kept = self.steps == "balanced" and before is not None and before.rho > 1.0
        return Balance(before.eta, 0.0, 0) if kept and before is not None else None

    def combine(self, memory: Any, outbox: Arrays, turn: Turn) -> tuple[Balance, Reply]:
        """Choose η, from the first words and then every tenth round."""
        sums = {name: float(rows.sum()) for name, rows in outbox.items()}
        if "pull" not in sums:
            memory = memory.after(sums, turn, self.coupling.is_norm)
        elif self.steps == "balanced" and sums["pull"] * sums["curvature"] > 0:
            eta = max(sums["pull"] / sums["curvature"], SMALLEST_ETA) if memory is None else memory.eta
            memory = Balance(eta, RELAXATION, len(turn.active), until=turn.round)
        else:
            memory = Balance(1.0, 1.0, len(turn.active))
        return memory, Reply(to_all={"eta": np.float64(memory.eta), "rho": np.float64(memory.rho)})

    # ------------------------------------------------------------------ how far it is

    def measure(self, site: Site, state: State, inbox: Inbox) -> Arrays:
        """Objective and optimality conditions at (2 w_new − w, the result of (1)), which is what is handed out."""
        w, eta = state.w_bar, float(inbox.to_all["eta"])
        flows = self._flows(site, state.u, site.values(w, inbox["w_bar"]), eta)
        return {
            "loss": site.local_losses(self.loss).value(w),
            "variation": site.at_smaller_end(flows.variation),
            "mismatch": site.at_smaller_end(flows.mismatch),
            "length": squares(w),
            **self._conditions(site, state, flows, eta),
        }

    def _subgradient(self, site: Site, state: State, eta: float) -> tuple[Floats, Floats]:
        """Where a subgradient of L_i is known, and that subgradient."""
        losses = site.local_losses(self.loss).with_duals
        if self.loss.smooth or losses is None:
            return state.w_bar, site.local_losses(self.loss).gradient(state.w_bar)
        w, beta = self._local_duals(site, losses, state, eta)
        return w, losses.combine(beta) + losses.ridge * w

    def _local_duals(self, site: Site, losses: LinearLosses, state: State, eta: float) -> tuple[Floats, Floats]:
        """Where a subgradient of L_i is known, and the dual variables that make it up.

        A smooth loss has one at 2 w_new − w itself; a loss with kinks has one where (2) leads from here.
        """
        if self.loss.smooth:
            return state.w_bar, losses.dual(state.w_bar)
        tau = self._tau(site, eta)
        return losses.prox_with_dual(state.w - tau[:, None] * site.divergence(state.u), tau, state.w_new)

    def _conditions(self, site: Site, state: State, flows: Flows, eta: float) -> dict[str, Floats]:
        """Squared parts, per node, of the optimality conditions at (w, u_new), where w has the subgradient:

        ∂L_i(w_i) + (Dᵀu)_i ∋ 0   and   (Dw)_e ∈ ∂(λA_e φ)*(u_e), which (1) misses by (u − u_new) / σ − Dx. Neighbours
        heard of 2 w_new − w only, x further on; so ‖Dx‖² is bounded by 2 Σ degree_i ‖x_i‖².
        """
        losses, sigma = site.local_losses(self.loss), self._scales(site)[0] / (2 * eta)
        w, gradient = self._subgradient(site, state, eta)
        return {
            "stationarity": squares(gradient + flows.divergence),
            "gradient": squares(gradient),
            "resting": squares(losses.gradient_at_start),
            "complementarity": site.at_smaller_end(flows.moved / sigma**2),
            "displacement": 2 * site.own_degrees * squares(state.w_bar - w),
            "size": site.own_degrees * squares(w),
        }

    def summary(self, totals: Mapping[str, float]) -> Mapping[str, float]:
        """Objective, an estimate of the gap, and the relative optimality conditions (residual: the larger one).

        The gap is what (*) of the certificate gives before r is repaired, with R taken to be the norm of w. It can
        be far too large; the certificate at the end needs no such guess. Without convexity there is neither.
        """
        stationarity, complementarity = _relative(totals)
        gap = totals["mismatch"] + float(np.sqrt(totals["stationarity"] * totals["length"]))
        return {
            "objective": totals["loss"] + totals["variation"],
            "residual": max(stationarity, complementarity),
            **({"gap": gap} if self.loss.convex else {}),
            "stationarity": stationarity,
            "complementarity": complementarity,
        }

    # ------------------------------------------------------------------ what comes out

    def models(self, site: Site, state: State) -> Models:
        """The parameters; NaN where nothing could be learnt."""
        reached = site.informed if self.lam > 0 else site.data.sizes > 0
        return self.loss.models(np.where(reached[:, None], state.w_bar, np.nan))

    def finish(self, site: Site, state: State, reply: Arrays, effort: float) -> tuple[State, Outbox] | None:
        """Fuse and polish, where φ is a norm; each component of the graph keeps it only if its residual falls."""
        able = self.steps == "balanced" and self.inexact is None and self.lam > 0 and len(site.weights) > 0
        smooth = self.loss.smooth and self.coupling.has_derivative
        losses = site.local_losses(self.loss).with_duals
        if losses is None or not (able and smooth and self.coupling.is_norm):
            return None
        problem = Problem(site, losses, self.coupling, self.lam * site.weights)
        eta, sigma = float(reply["eta"]), self._scales(site)[0] / (2 * reply["eta"])
        rough, _ = self._dual_prox(site, slice(None), state.u, state.w_bar, eta)
        w, u = polish(problem, state.w_bar, rough, sigma, effort)
        proposed = State(w, w, u, state.missed)
        before, after = (
            self._conditions(site, each, self._flows(site, each.u, each.w_bar, eta), eta) for each in (state, proposed)
        )
        better = _better(before, after, problem.components[1])
        if not better.any():
            return None
        u, _ = self._dual_prox(site, slice(None), u, w, eta)
        u = np.where(better[site.head][:, None], u, state.u)
        w_bar = np.where(better[:, None], w, state.w_bar)
        return State(np.where(better[:, None], w, state.w), w_bar, u, state.missed), Outbox({"w_bar": w_bar})

    def complete(self, site: Site, models: Any) -> Models:
        """Give nodes that no data reach the pooled model, if that was asked for."""
        if self.uninformed == "none" or not np.isnan(models.w).any():
            return models
        everyone = site.local_losses(self.loss).pool(np.zeros(site.node_count, dtype=np.int64), 1)
        return self.loss.models(np.where(np.isnan(models.w), everyone.minimise(), models.w))

    def certificate_of(self, network: Network, w: Any, u: Any) -> Certificate | None:
        """How good any parameters (nodes, parameters) are, wherever they come from, given flows (edges, parameters).

        The flows only help to prove it, after one step (1) that takes them into their domain: zeros are legal.

        >>> import numpy as np
        >>> from kinfolk import Network, fit, graphs
        >>> network = Network(graphs.chain(2), [([[1.0]], [0.0]), ([[1.0]], [1.0])])
        >>> GTVMin(lam=0.5).certificate_of(network, w=[[0.25], [0.75]], u=[[-0.5]]).bound < 1e-12
        True
        """
        w, u = as_floats(w, "the parameters", 2), as_floats(u, "the flows", 2)
        expected = (network.graph.node_count, w.shape[1]), (network.graph.edge_count, w.shape[1])
        if (w.shape, u.shape) != expected:
            raise InputError(f"Expected parameters and flows of shapes {expected}, got {w.shape} and {u.shape}.")
        return self.certify(network.site, State(w, w, u, np.zeros(len(w))), {"eta": 1.0})

    def certify(self, site: Site, state: State, reply: Arrays) -> Certificate | None:
        """How far from the best answer this one can be; None where the losses are not convex and nobody can say."""
        losses = site.local_losses(self.loss).with_duals
        if losses is None:
            return None
        w, eta = state.w_bar, float(reply["eta"])
        conditions = self._conditions(site, state, self._flows(site, state.u, w, eta), eta)
        sums = {name: float(part.sum()) for name, part in conditions.items()}
        u, _ = self._dual_prox(site, slice(None), state.u, w, eta)
        _, beta = self._local_duals(site, losses, state, eta)
        return certify(Problem(site, losses, self.coupling, self.lam * site.weights), w, beta, u, max(_relative(sums)))


def _relative(sums: Mapping[str, float]) -> tuple[float, float]:
    """Stationarity against the gradients' size, complementarity against the parameters' size."""
    names = ("stationarity", "gradient", "resting", "complementarity", "displacement", "size")
    stationarity, gradient, resting, *missed, size = (float(np.sqrt(sums[name])) for name in names)
    return ratio(stationarity, gradient + resting), ratio(sum(missed), size)


def _better(before: Mapping[str, Floats], after: Mapping[str, Floats], component: Ints) -> Bools:
    """The nodes of components whose residual falls, measured on the scale of the whole network before."""

    def residuals(parts: Mapping[str, Floats]) -> Floats:
        squared = {name: np.bincount(component, parts[name]) for name in ("stationarity", "complementarity")}
        whole = {name: float(part.sum()) for name, part in before.items()}
        each = ({name: part[k] for name, part in squared.items()} for k in range(int(component.max()) + 1))
        return np.array([max(_relative(whole | own)) for own in each])

    return (residuals(after) < residuals(before))[component]


class Balance(NamedTuple):
    """η and ρ, and what the coordinator has seen since it last changed them.

    A large η gives long primal and short dual steps. Every tenth round the coordinator hears how far primal and dual
    variables moved (in the metric of the method) and how well either optimality condition holds. Their mean log
    ratio over a window says which side lags, and η is corrected by half of it. Windows grow with the rounds, so
    corrections become rare and the method settles. Where the coupling is no norm, the movements alone are a
    better guide, but they can run away: a residual ten times the best one seen brings back the η of that time.
    The first message that did not come ends over-relaxation and balancing for good.
    """

    eta: float
    rho: float
    node_count: int
    imbalance: float = 0.0  # sum of log ratios in this window
    reports: int = 0  # in this window
    until: int = 0  # the round in which the window ends
    strength: float = 0.5
    best: float = np.inf  # residual
    best_eta: float = 1.0

    def after(self, sums: Mapping[str, float], turn: Turn, is_norm: bool) -> Balance:
        """The balance after one more report."""
        if self.rho == 1.0 or sums["missed"] > 0 or len(turn.active) < self.node_count:
            return self._replace(rho=1.0)
        stationarity, complementarity = _relative(sums)
        if min(stationarity, complementarity, sums["moved_w"], sums["moved_u"]) <= ROUNDING:
            return self
        moved = 0.5 * np.log(sums["moved_w"] / sums["moved_u"])
        lag = 0.5 * np.log(stationarity / complementarity) + 0.5 * moved if is_norm else moved
        residual = max(stationarity, complementarity)
        now = self._replace(imbalance=self.imbalance + float(lag), reports=self.reports + 1)
        if residual <= self.best:
            now = now._replace(best=residual, best_eta=self.eta)
        return now if turn.round < self.until else now._corrected(residual, turn.round, is_norm)

    def _corrected(self, residual: float, round_: int, is_norm: bool) -> Balance:
        """Close the window: follow the mean lag, or go back to the best η if that has led astray."""
        window = self._replace(imbalance=0.0, reports=0, until=round_ + max(BALANCE_EVERY, round_ // 10))
        if not is_norm and round_ >= 100 and residual > 10 * self.best:
            return window._replace(eta=self.best_eta, best=residual, strength=0.7 * self.strength)
        step = np.clip(self.strength * self.imbalance / self.reports, -np.log(16), np.log(16))
        return window._replace(eta=self.eta * float(np.exp(step)))
