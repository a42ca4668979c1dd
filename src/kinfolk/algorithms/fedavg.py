"""FedAvg: one model for all, by averaging.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep Networks from
Decentralized Data (2017).

With L_i = q_i F_i, where F_i is the mean loss of a node and q_i = 1 (``reduction="mean"``) or m_i (``"sum"``), the
target is min_w Σ_i L_i(w). In a round every node present starts from the common w and

    takes ``local_steps`` steps  w_i <- w_i − t ∇F_i(w_i),   the coordinator:  w <- Σ q_i w_i / Σ q_i         (models)
    says ∇F_i(w),                the coordinator:  w <- w − t Σ q_i ∇F_i(w) / Σ q_i                        (gradients)

Sums run over those who spoke. With one local step and everybody present the two are the same, and converge to the
pooled model; with more local steps the average of models settles elsewhere when nodes differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np

from kinfolk.algorithms.linear import LinearProgram, ratio
from kinfolk.checks import AtLeast, InputError, Positive
from kinfolk.losses import Loss, Squared
from kinfolk.network import Network
from kinfolk.program import Arrays, Inbox, Outbox, PerNode, Reply, Turn
from kinfolk.site import Site
from kinfolk.typing import Floats


class State(NamedTuple):
    """The common parameters, as each node last heard them."""

    w: PerNode  # (nodes, parameters)


class Memory(NamedTuple):
    """What the coordinator keeps."""

    w: Floats  # (parameters,)
    step: float
    change: float  # relative change of w in the last round


@dataclass(frozen=True)
class FedAvg(LinearProgram):
    """One model for all, by averaging models or gradients.

    ``step_size`` None takes 1 / (largest curvature of any F_i), which is safe whoever takes part.
    The residual is the relative change of the common model in a round.

    >>> from kinfolk import Network, fit, graphs
    >>> network = Network(graphs.edgeless(2), [([[1.0]], [1.0]), ([[1.0]], [3.0])])
    >>> fit(network, FedAvg(average="gradients")).models.w.round(4).tolist()
    [[2.0], [2.0]]
    """

    loss: Loss = Squared()
    average: Literal["models", "gradients"] = "models"
    local_steps: Annotated[int, AtLeast(1)] = 1
    step_size: Annotated[float, Positive()] | None = None

    def check(self, network: Network) -> None:
        """A step size where the curvature of the loss has no bound."""
        super().check(network)
        if self.step_size is None and not np.isfinite(self.loss.most_curvature):
            raise InputError(
                f"The 'step_size' parameter of FedAvg must be a number > 0 for {type(self.loss).__name__}, whose "
                "curvature has no bound. Got None instead."
            )

    def init(self, site: Site, turn: Turn) -> tuple[State, Outbox]:
        """Start at zero."""
        return self.resume(site, State(np.zeros((site.node_count, site.bound(self.loss).width))), turn)

    def resume(self, site: Site, state: State, turn: Turn) -> tuple[State, Outbox]:
        """Go on from a state; the coordinator learns how curved the losses are."""
        share = self._share(site)
        curvature = site.bound(self.loss).smoothness / np.maximum(share, 1.0)
        return state, Outbox(coordinator={"w": state.w, "share": share, "curvature": curvature})

    def step(self, site: Site, state: State, inbox: Inbox, turn: Turn) -> tuple[State, Outbox]:
        """Take the common model, and say the gradient there or the model after some steps of one's own."""
        w = np.repeat(inbox.to_all["w"][None], site.node_count, axis=0)
        share = self._share(site)
        mean_loss = 1.0 / np.maximum(share, 1.0)[:, None]
        bound = site.bound(self.loss)
        if self.average == "gradients":
            said = bound.gradient(w) * mean_loss
        else:
            said = w.copy()
            for _ in range(self.local_steps):
                said -= inbox.to_all["step"] * bound.gradient(said) * mean_loss
        return State(w), Outbox(coordinator={"w": said, "share": share})

    def _share(self, site: Site) -> Floats:
        """q_i: how much a node counts."""
        return site.data.sizes.astype(float) if self.loss.reduction == "sum" else (site.data.sizes > 0).astype(float)

    def start(self, turn: Turn, before: Memory | None = None) -> Memory | None:
        """Nothing is known before the first words; a changed problem goes on from the same model."""
        return before

    def combine(self, memory: Any, outbox: Arrays, turn: Turn) -> tuple[Memory, Reply]:
        """Average what was said; nodes without data do not count."""
        share = outbox["share"]
        if "curvature" in outbox:
            w = np.zeros(outbox["w"].shape[1]) if memory is None else memory.w
            memory = Memory(w, self._first_step(outbox["curvature"]), np.inf)
        elif share.sum() > 0:
            mean = share @ outbox["w"] / share.sum()
            w = mean if self.average == "models" else memory.w - memory.step * mean
            change = ratio(float(np.linalg.norm(w - memory.w)), float(np.linalg.norm(w)))
            memory = memory._replace(w=w, change=change)
        return memory, Reply(to_all={name: np.asarray(value) for name, value in memory._asdict().items()})

    def _first_step(self, curvature: Floats) -> float:
        if self.step_size is not None:
            return self.step_size
        steepest = curvature.max()
        return float(1.0 / steepest) if steepest > 0 else 1.0

    def measure(self, site: Site, state: State, inbox: Inbox) -> Arrays:
        """Loss of the model last heard, and how far the coordinator has moved it since."""
        one = np.ones(site.node_count)
        return {"loss": site.bound(self.loss).value(state.w), "change": one * inbox.to_all["change"], "nodes": one}

    def summary(self, totals: Mapping[str, float]) -> Mapping[str, float]:
        """Objective Σ L_i, and the relative change of the common model."""
        return {"objective": totals["loss"], "residual": totals["change"] / totals["nodes"]}
