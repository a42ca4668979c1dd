"""Probes of the interface: if one of these needs a hack, the interface is wrong."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone
from sklearn.tree import DecisionTreeRegressor

from kinfolk.algorithms.parametric import ParametricAlgorithm, squares
from kinfolk.engine.protocol import (
    Algorithm,
    Arrays,
    Coordinated,
    Inbox,
    Outbox,
    PerEdge,
    PerNode,
    Reply,
    Turn,
)
from kinfolk.network.problem import Problem
from kinfolk.network.site import Site
from kinfolk.objective.losses import Loss, Squared


class Plain(ParametricAlgorithm[Any]):
    """What is not the point of a probe: it measures the loss only."""

    loss: Loss = Squared()

    def measure(self, site: Site, state: Any, inbox: Inbox) -> Arrays:
        return {"loss": site.local_losses(self.loss).value(state.w)}

    def summary(self, totals: Mapping[str, float]) -> Mapping[str, float]:
        return {"objective": totals["loss"], "residual": np.inf}


# ---------------------------------------------------------------------- 1 GTVMin, as the paper writes it


class FlowState(NamedTuple):
    w: PerNode
    w_bar: PerNode
    u: PerEdge


@dataclass(frozen=True)
class PaperGTVMin(Plain):
    """Algorithm 1 for the network lasso, τ_i = 1 / degree, σ = 1/2."""

    loss: Loss = Squared()
    lam: float = 0.1

    def init(self, site: Site, turn: Turn) -> tuple[FlowState, Outbox]:
        w = np.zeros((site.node_count, site.local_losses(self.loss).width))
        tau = 1.0 / np.maximum(site.own_degrees, 1)
        w_new = site.local_losses(self.loss).prox(w, tau)
        state = FlowState(w_new, 2 * w_new - w, np.zeros((len(site.weights), w.shape[1])))
        return state, Outbox({"w_bar": state.w_bar})

    def step(self, site: Site, state: FlowState, inbox: Inbox, turn: Turn) -> tuple[FlowState, Outbox]:
        w, w_bar, u = state
        tau = 1.0 / np.maximum(site.own_degrees, 1)
        u_new = u + 0.5 * site.difference(w_bar, inbox["w_bar"])
        size, limit = np.linalg.norm(u_new, axis=1), self.lam * site.weights
        u_new *= np.minimum(1.0, limit / np.maximum(size, 1e-300))[:, None]
        u = site.carried(u_new, u)
        w_new = site.local_losses(self.loss).prox(w - tau[:, None] * site.divergence(u), tau)
        return FlowState(w_new, 2 * w_new - w, u), Outbox({"w_bar": 2 * w_new - w})


# ---------------------------------------------------------------------- 2 FedAvg with sampled nodes


class CommonState(NamedTuple):
    w: PerNode


@dataclass(frozen=True)
class SampledFedAvg(Plain, Coordinated[Any, Any]):
    """Those present take two gradient steps; the coordinator averages who spoke."""

    loss: Loss = Squared()

    def init(self, site: Site, turn: Turn) -> tuple[CommonState, Outbox]:
        w = np.zeros((site.node_count, site.local_losses(self.loss).width))
        return CommonState(w), Outbox(coordinator={"w": w})

    def step(self, site: Site, state: CommonState, inbox: Inbox, turn: Turn) -> tuple[CommonState, Outbox]:
        w = np.repeat(inbox.to_all["w"][None], site.node_count, axis=0)
        for _ in range(2):
            w -= 0.02 * site.local_losses(self.loss).gradient(w)
        return CommonState(w), Outbox(coordinator={"w": w})

    def start(self, problem: Problem, turn: Turn, before: None = None) -> None: ...

    def combine(self, memory: None, outbox: Arrays, turn: Turn) -> tuple[None, Reply]:
        return None, Reply(to_all={"w": outbox["w"].mean(axis=0)})


# ---------------------------------------------------------------------- 3 gradient tracking with local steps


class TrackerState(NamedTuple):
    w: PerNode
    tracker: PerNode
    gradient: PerNode


@dataclass(frozen=True)
class GradientTracking(Plain):
    """(10.5), (10.6) of the graph-aware chapter; the tracker starts with the first gradient."""

    loss: Loss = Squared()
    local_steps: int = 1
    step_size: float = 0.02

    def init(self, site: Site, turn: Turn) -> tuple[TrackerState, Outbox]:
        w = np.zeros((site.node_count, site.local_losses(self.loss).width))
        gradient = site.local_losses(self.loss).gradient(w)
        return TrackerState(w, gradient, gradient), Outbox({"w": w, "tracker": gradient})

    def step(self, site: Site, state: TrackerState, inbox: Inbox, turn: Turn) -> tuple[TrackerState, Outbox]:
        w, tracker, gradient = state
        mixed_w = mixed(site, w, inbox["w"]) - self.step_size * tracker
        new = site.local_losses(self.loss).gradient(mixed_w)
        w, tracker, gradient = mixed_w, mixed(site, tracker, inbox["tracker"]) + new - gradient, new
        for _ in range(self.local_steps - 1):
            w = w - self.step_size * tracker
            new = site.local_losses(self.loss).gradient(w)
            tracker, gradient = tracker + new - gradient, new
        return TrackerState(w, tracker, gradient), Outbox({"w": w, "tracker": tracker})


def mixed(site: Site, own: Any, heard: Any) -> Any:
    """Σ_j W_ij θ_j with Metropolis–Hastings weights; a dead edge's weight goes to the two diagonals."""
    weights = 1.0 / (1.0 + np.maximum(site.degrees[site.head], site.degrees[site.tail]))
    return own - site.divergence(weights[:, None] * site.difference(own, heard))


# ---------------------------------------------------------------------- 4 FedRelax with scikit-learn trees


class TreeState(NamedTuple):
    tree: PerNode  # (nodes,) fitted estimators
    said: PerNode  # (nodes, public points) predictions


@dataclass(frozen=True)
class Trees:
    tree: Any

    def predict(self, X: Any, node: Any) -> Any:
        return np.array([self.tree[i].predict(x[None])[0] for x, i in zip(X, node, strict=True)])

    def error(self, X: Any, y: Any, node: Any) -> Any:
        return (self.predict(X, node) - y) ** 2


@dataclass(frozen=True)
class FedRelaxTrees(Algorithm[TreeState]):
    """Eq (10) of FedRelax with one common public set: the neighbours' labels as one weighted mean label."""

    model: Any = DecisionTreeRegressor(max_depth=3, random_state=0)  # noqa: RUF009 - cloned before each fit
    lam: float = 0.5

    def init(self, site: Site, turn: Turn) -> tuple[TreeState, Outbox]:
        nothing = np.zeros((site.node_count, len(site.public)))
        return self._refit(site, nothing, np.zeros(site.node_count), turn)

    def step(self, site: Site, state: TreeState, inbox: Inbox, turn: Turn) -> tuple[TreeState, Outbox]:
        weight = site.neighbour_sum(np.ones((site.node_count, 1)), np.ones((len(site.outside), 1)))[:, 0]
        label = site.neighbour_sum(state.said, inbox["said"]) / np.maximum(weight, 1e-300)[:, None]
        return self._refit(site, label, weight, turn)

    def _refit(self, site: Site, label: Any, weight: Any, turn: Turn) -> tuple[TreeState, Outbox]:
        trees = np.empty(site.node_count, dtype=object)
        for i in range(site.node_count):
            X, y = site.data[i]
            mine, theirs = np.ones(len(y)) / max(len(y), 1), np.ones(len(label[i])) / len(label[i])
            share = np.r_[mine, self.lam * weight[i] * theirs]
            counted = share > 0 if (share > 0).any() else np.ones(len(share), dtype=bool)
            rows, target = np.vstack([X, site.public])[counted], np.r_[y, label[i]][counted]
            trees[i] = clone(self.model).fit(rows, target, share[counted] if share.any() else None)
        said = np.array([tree.predict(site.public) for tree in trees])
        return TreeState(trees, said), Outbox({"said": said})

    def measure(self, site: Site, state: TreeState, inbox: Inbox) -> Arrays:
        return {"size": squares(state.said)}

    def summary(self, totals: Mapping[str, float]) -> Mapping[str, float]:
        return {"objective": totals["size"], "residual": np.inf}

    def models(self, site: Site, state: TreeState, inbox: Inbox) -> Trees:
        return Trees(state.tree)


# ---------------------------------------------------------------------- 5 two levels: the adjoint of BiG-FL


class GameState(NamedTuple):
    w: PerNode
    adjoint: PerNode
    word: PerNode  # what was said last


@dataclass(frozen=True)
class TwoLevel(Plain, Coordinated[Any, Any]):
    """(10.17) with a quadratic loss below and f = Σ ‖w_i‖² / 2 above; φ is learnt with the exact adjoint of (10.20).

    A cycle is ``inner`` rounds for the game, ``inner`` rounds for the adjoint equation, then one update of φ: many
    exchanges between neighbours for one word to the coordinator.
    """

    loss: Loss = Squared(ridge=1.0)
    lam: float = 0.5
    inner: int = 3
    step_size: float = 0.05
    upper_step: float = 0.1

    def init(self, site: Site, turn: Turn) -> tuple[GameState, Outbox]:
        zero = np.zeros((site.node_count, site.local_losses(self.loss).width))
        return GameState(zero, zero, zero), Outbox({"word": zero}, {"gradient": zero[:, :, None] * zero[:, None, :]})

    def step(self, site: Site, state: GameState, inbox: Inbox, turn: Turn) -> tuple[GameState, Outbox]:
        w, a, word = state
        phi, phase = inbox.to_all["phi"], (turn.round - 1) % (2 * self.inner + 1)
        kin = 1.0 / np.sqrt((site.degrees[site.head] + 1.0) * (site.degrees[site.tail] + 1.0))  # L_ij
        own = 1.0 / (site.own_degrees + 1.0)[:, None]  # L_ii
        pull = own[:, :, None] * phi - np.eye(len(phi))  # C_i = L_ii φ − 1
        heard = site.neighbour_sum(word, inbox["word"], kin)
        said = {}
        if phase < self.inner:  # the game (10.19)
            rest = heard @ phi + rows(w, pull)
            slope = site.local_losses(self.loss).gradient(w) + self.lam * rows(rest, pull.transpose(0, 2, 1))
            w = w - self.step_size * slope
        elif phase < 2 * self.inner:  # the adjoint equation Jᵀa = ∇f
            bend = site.local_losses(self.loss).hessian(w) + self.lam * pull @ pull.transpose(0, 2, 1)
            a = a - self.step_size * (rows(a, bend) + self.lam * heard - w)
        else:  # a node's part of the hypergradient (10.20)
            around = heard + own * w
            rest = around @ phi - w
            said["gradient"] = -self.lam * (outer(around, rows(a, pull)) + own[:, :, None] * outer(a, rest))
        adjoint_next = self.inner <= phase + 1 < 2 * self.inner
        word = rows(a, pull) @ phi.T if adjoint_next else w
        return GameState(w, a, word), Outbox({"word": word}, said)

    def start(self, problem: Problem, turn: Turn, before: Any = None) -> Any:
        return before

    def combine(self, memory: Any, outbox: Arrays, turn: Turn) -> tuple[Any, Reply]:
        gradient = outbox["gradient"].sum(axis=0)
        phi = (np.eye(len(gradient)) if memory is None else memory) - self.upper_step * gradient
        return phi, Reply(to_all={"phi": phi, "gradient": gradient})


# ---------------------------------------------------------------------- 6 SCAFFOLD: a control variate at every node


class ControlState(NamedTuple):
    w: PerNode
    control: PerNode  # c_i


@dataclass(frozen=True)
class Scaffold(Plain, Coordinated[Any, Any]):
    """SCAFFOLD with sampling (Karimireddy et al. 2020, option II): node i corrects its steps by c − c_i.

    The coordinator knows the number of nodes and where the loss starts: nobody sends its start to tell its shape.
    """

    loss: Loss = Squared()
    local_steps: int = 3
    step_size: float = 0.02

    def init(self, site: Site, turn: Turn) -> tuple[ControlState, Outbox]:
        w = site.local_losses(self.loss).start
        return ControlState(w, np.zeros_like(w)), Outbox(coordinator={"present": np.ones(site.node_count)})

    def step(self, site: Site, state: ControlState, inbox: Inbox, turn: Turn) -> tuple[ControlState, Outbox]:
        common, control = inbox.to_all["w"], inbox.to_all["control"]
        w = np.tile(common, (site.node_count, 1))
        for _ in range(self.local_steps):
            w -= self.step_size * (site.local_losses(self.loss).gradient(w) - state.control + control)
        new = state.control - control + (common - w) / (self.local_steps * self.step_size)
        sent = {"moved": w - common, "control": new - state.control}
        return ControlState(w, new), Outbox(coordinator=sent)

    def start(self, problem: Problem, turn: Turn, before: Any = None) -> Any:
        w = self.loss.start(problem.feature_count)
        return w, np.zeros_like(w), problem.graph.node_count

    def combine(self, memory: Any, outbox: Arrays, turn: Turn) -> tuple[Any, Reply]:
        w, control, count = memory
        if "moved" in outbox:
            w = w + outbox["moved"].mean(axis=0)
            control = control + outbox["control"].sum(axis=0) / count
        return (w, control, count), Reply(to_all={"w": w, "control": control})

    def models(self, site: Site, state: ControlState, inbox: Inbox) -> Any:
        return self.loss.models(np.tile(inbox.to_all["w"], (site.node_count, 1)))


# ---------------------------------------------------------------------- 7 an update of several exchanges


class PowerState(NamedTuple):
    w: PerNode
    v: PerNode  # A^k w so far


@dataclass(frozen=True)
class PowerMean(Plain, Coordinated[Any, Any]):
    """w <- (1 − t) w + t W^3 (w − t ∇L): three exchanges of neighbours in every update; the coordinator counts them."""

    loss: Loss = Squared()
    step_size: float = 0.05

    def exchanges(self, round_: int, memory: Any) -> int:
        return 3

    def init(self, site: Site, turn: Turn) -> tuple[PowerState, Outbox]:
        w = site.local_losses(self.loss).start
        return PowerState(w, w.copy()), Outbox({"v": w})

    def step(self, site: Site, state: PowerState, inbox: Inbox, turn: Turn) -> tuple[PowerState, Outbox]:
        w, v = state
        v = mixed(site, v, inbox["v"])
        said = {"drawn": np.array([turn.rng(k, "noise").normal() for k in site.nodes])}
        if turn.exchange == 2:
            w = v - self.step_size * site.local_losses(self.loss).gradient(v)
            v = w
        return PowerState(w, v), Outbox({"v": v}, said)

    def start(self, problem: Problem, turn: Turn, before: Any = None) -> Any:
        return 0, 0.0

    def combine(self, memory: Any, outbox: Arrays, turn: Turn) -> tuple[Any, Reply]:
        count, total = memory[0] + 1, memory[1] + float(outbox["drawn"].sum())
        return (count, total), Reply(to_all={"exchanges": np.array(count), "total": np.array(total)})


def rows(vectors: Any, matrices: Any) -> Any:
    return np.einsum("nk,nkj->nj", vectors, matrices)


def outer(left: Any, right: Any) -> Any:
    return left[:, :, None] * right[:, None, :]
