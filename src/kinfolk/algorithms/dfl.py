"""DFL: one model for all without a coordinator, by mixing with neighbours: DFL-SGD, and DFL-GT with gradient tracking.

Lu, Xing, Yu: Graph-Aware Federated Learning (chapter 10 of a book), Algorithm 1 and (10.1) to (10.6).

    min Σ_i L_i(θ_i)   such that θ_i = θ_j for neighbours                                                     (10.1)

with W a mixing matrix (``kinfolk.graphs.mixing_matrix``) and g_i the gradient on a batch. A round is τ steps, the first
of them with what neighbours sent:

    θ_i <- Σ_j W_ij θ_j − α g_i(θ_i),     then τ − 1 times  θ_i <- θ_i − α g_i(θ_i)              DFL-SGD  (10.4), (10.3)

    θ_i <- Σ_j W_ij θ_j − α ϑ_i,          ϑ_i <- Σ_j W_ij ϑ_j + g_i(θ_i) − g_i⁻                  DFL-GT   (10.6)
    then τ − 1 times  θ_i <- θ_i − α ϑ_i, ϑ_i <- ϑ_i + g_i(θ_i) − g_i⁻                                    (10.5)

where g_i⁻ is the gradient that the node computed one step before, on the batch of that step. The chapter starts the
tracker ϑ at 0, with which full gradients never move θ; here it starts at the first gradient. So the mean of the ϑ_i is
that of the g_i, whatever messages are lost, and with a constant step DFL-GT reaches the pooled model, where DFL-SGD
stalls.

g_i is the gradient of L_i (of q_i F_i, F_i on the batch), as the sum of losses is minimised. Nodes without data mix and
pass on. Where the graph has several components, each finds a model of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from scipy.sparse.csgraph import connected_components

from kinfolk.algorithms.averaging import cluster_sums
from kinfolk.algorithms.local_work import LocalWork, Step
from kinfolk.algorithms.parametric import ratio, squares
from kinfolk.checks import InputError
from kinfolk.engine.protocol import Arrays, Inbox, Outbox, PerNode, Sends, Sent, Turn
from kinfolk.network.mixing import check_mixing, mixing_weights
from kinfolk.network.problem import Problem
from kinfolk.network.site import Site
from kinfolk.objective.node_loss import Slopes
from kinfolk.typing import Floats, Ints


class State(NamedTuple):
    """Models, and for DFL-GT the trackers and the last gradients; all zero for DFL-SGD."""

    w: PerNode  # (nodes, parameters) θ_i
    tracker: PerNode  # (nodes, parameters) ϑ_i
    gradient: PerNode  # (nodes, parameters) g_i⁻
    moved: PerNode  # (nodes,) squared length of the way of the last round


@dataclass(frozen=True)
class DFL(LocalWork[State]):
    """One model for all without a coordinator; neighbours mix their models after every ``local_steps`` steps.

    ``loss``, ``local_steps``, ``local_epochs``, ``batch``, ``step_size`` and ``optimiser`` set the local work, as in
    ``LocalWork``. A step size must be given for linear models, as nobody knows the curvature of all losses, and it must
    be the same at all nodes. With tracking another optimiser is refused. The history has the ``consensus`` distance Σ
    ‖θ_i − θ̄‖² / n and the ``stationarity`` ‖Σ_i ∇L_i(θ̄) / n‖², with θ̄ the mean over a node's component, where the
    engine sees all nodes.

    Parameters
    ----------
    tracking : bool
        False for DFL-SGD, True for DFL-GT.
    mixing : str or matrix
        W: ``"metropolis-hastings"``, ``"maximum degree"``, ``"laplacian"``, or a symmetric doubly stochastic matrix
        (nodes, nodes) along the edges of the graph.

    >>> from kinfolk import Network, fit, graphs
    >>> network = Network(graphs.chain(3), [([[1.0]], [1.0]), ([[2.0]], [3.0]), ([[1.0]], [0.0])])
    >>> fit(network, DFL(step_size=0.02, local_steps=5, tracking=True)).models.w.round(4).tolist()
    [[1.1667], [1.1667], [1.1667]]
    """

    tracking: bool = False
    mixing: Any = "metropolis-hastings"

    def check(self, problem: Problem) -> None:
        """A step size, plain descent for trackers, and a mixing matrix of the graph."""
        super().check(problem)
        if self.needs_curvature:
            raise InputError("The 'step_size' parameter of DFL must be a number > 0, or a function. Got None instead.")
        if self.tracking:
            self.refuse_optimiser("whose trackers are mean gradients")
            if self.local_epochs is not None and self.batch is not None:
                raise InputError(
                    "Expected local_steps for DFL with tracking, got local_epochs: trackers need equally many steps "
                    "at all nodes."
                )
        check_mixing(self.mixing, problem.graph)

    def remarks(self, problem: Problem) -> list[str]:
        """Whether there is one model."""
        count = int(problem.graph.components.max()) + 1
        if count == 1:
            return []
        return [f"Models agree within each of {count:,} components only; consensus is measured within them."]

    def sends(self, problem: Problem) -> Sends:
        """Neighbours receive the model, and the tracker."""
        w = Sent("parameters", (self.width(problem),), noisy=True)
        return Sends(neighbours={"w": w, "tracker": Sent("mean gradient", w.shape)} if self.tracking else {"w": w})

    def init(self, site: Site, turn: Turn) -> tuple[State, Outbox]:
        """Start from the initial parameters of the loss."""
        start = site.local_losses(self.loss).start
        return self.resume(site, State(start, start, start, np.zeros(site.node_count)), turn)

    def resume(self, site: Site, state: State, turn: Turn) -> tuple[State, Outbox]:
        """Go on from the models of a state; trackers start with the first gradient."""
        gradient, w = np.zeros_like(state.w), state.w
        if self.tracking:
            gradient, w = self.slopes(site, next(self.steps(site, turn, 1.0)), w)
        return self._sent(State(w, gradient, gradient.copy(), np.full(site.node_count, np.inf)))

    def step(self, site: Site, state: State, inbox: Inbox, turn: Turn) -> tuple[State, Outbox]:
        """A round: one step with what neighbours sent, and τ − 1 without."""
        take = self._track if self.tracking else self._descend
        new = take(site, state, inbox, turn)
        self.check_finite(site, new.w, turn)
        return self._sent(new._replace(moved=squares(new.w - state.w)))

    def _descend(self, site: Site, state: State, inbox: Inbox, turn: Turn) -> State:
        """(10.4), then (10.3): the first gradient is taken at θ, and leads on from where mixing leads."""
        mixed = self._mixed(site, state.w, "w", inbox)
        return state._replace(w=self.worked(site, turn, mixed, at=state.w))

    def _track(self, site: Site, state: State, inbox: Inbox, turn: Turn) -> State:
        """(10.6), then (10.5)."""
        w, tracker, gradient, moved = state
        mixed_w, mixed_tracker = self._mixed(site, w, "w", inbox), self._mixed(site, tracker, "tracker", inbox)
        for step in self.steps(site, turn, 1.0):
            w = mixed_w - step.size * tracker
            new, w = self.slopes(site, step, w)
            tracker, gradient = mixed_tracker + new - gradient, new
            mixed_w, mixed_tracker = w, tracker
        return State(w, tracker, gradient, moved)

    def slopes(self, site: Site, step: Step, w: Floats) -> Slopes:
        """g_i(θ_i), and θ_i with its statistics renewed."""
        gradient, renewed = super().slopes(site, step, w)
        return Slopes(site.local_losses(self.loss).share[:, None] * gradient, renewed)

    def _mixed(self, site: Site, own: Floats, name: str, inbox: Inbox) -> Floats:
        """Σ_j W_ij θ_j over the edges that carry; the weight of the others stays on the diagonal."""
        weights = mixing_weights(site, self.mixing)
        return own - site.divergence(weights[:, None] * site.difference(inbox.sent[name], inbox[name]))

    def _sent(self, state: State) -> tuple[State, Outbox]:
        sent = {"w": state.w, "tracker": state.tracker} if self.tracking else {"w": state.w}
        return state, Outbox(sent)

    # ------------------------------------------------------------------ what is measured

    def measure(self, site: Site, state: State, inbox: Inbox) -> Arrays:
        """Loss, how far neighbours differ, how far the last round went, and the size of the trackers."""
        losses = site.local_losses(self.loss)
        return {
            "loss": losses.value(state.w),
            "apart": site.at_smaller_end(squares(site.difference(state.w, inbox["w"]))),
            "size": squares(state.w),
            "moved": state.moved,
            "tracker": squares(state.tracker),
            "resting": losses.resting,
        }

    def summary(self, totals: Mapping[str, float]) -> Mapping[str, float]:
        """Objective Σ L_i(θ_i), and what vanishes at the end.

        With tracking that is the size of the trackers against that of the first gradients, and how far neighbours
        differ against the size of models; without, how far a round goes, as the end is not the solution.
        """
        change = np.sqrt(ratio(totals["moved"], totals["size"]))
        if self.tracking:
            apart = np.sqrt(ratio(totals["apart"], totals["size"]))
            change = max(np.sqrt(ratio(totals["tracker"], totals["resting"])), apart)
        return {"objective": totals["loss"], "residual": float(change)}

    def overview(self, site: Site, state: State) -> Mapping[str, float]:
        """Consensus distance and stationarity, by component."""
        component = site.kept("components", lambda: _components(site))
        count = int(component.max()) + 1
        sizes = np.bincount(component, minlength=count)[:, None]
        mean = cluster_sums(state.w, component, count) / sizes
        slope = cluster_sums(site.local_losses(self.loss).gradient(mean[component]), component, count) / sizes
        return {
            "consensus": float(squares(state.w - mean[component]).mean()),
            "stationarity": float((squares(slope) * sizes[:, 0]).sum() / sizes.sum()),
        }


def _components(site: Site) -> Ints:
    """The connected component of every node, on a site that holds all of them."""
    joined = scipy.sparse.coo_array((site.weights, (site.head, site.tail)), shape=(site.node_count,) * 2)
    out: Ints = connected_components(joined, directed=False)[1].astype(np.int64)
    return out
