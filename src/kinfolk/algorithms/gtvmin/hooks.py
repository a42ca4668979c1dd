"""The optional hooks of GTV minimisation: what ``fit`` and ``Run`` may ask for beside the rounds."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from kinfolk.algorithms.gtvmin import finish, uninformed, warm_start
from kinfolk.algorithms.gtvmin.balance import SENT, UNASKED, Balance, due
from kinfolk.algorithms.gtvmin.certificate import Certificate, certificate_at
from kinfolk.algorithms.gtvmin.updates import Updates
from kinfolk.algorithms.parametric import ParametricAlgorithm
from kinfolk.engine.protocol import NUMBER, Arrays, Coordinated, Inbox, Outbox, Replies, Sends, Sent
from kinfolk.network.problem import Problem
from kinfolk.network.site import Site
from kinfolk.objective.couplings import Coupling
from kinfolk.objective.node_loss import ParametricModels

if TYPE_CHECKING:
    from kinfolk.algorithms.gtvmin.algorithm import State


class OptionalHooks(ParametricAlgorithm["State"], Coordinated["State", Balance | None]):
    """For a program that has the parameters of GTVMin and its lines (1) and (2)."""

    steps_in_place: ClassVar[bool] = True  # 10⁶ nodes need no second copy

    coupling: Coupling
    lam: float
    steps: Literal["balanced", "published", "direct"]
    uninformed: Literal["none", "pooled"]

    def sends(self, problem: Problem) -> Sends:
        """Neighbours receive parameters; the coordinator receives numbers that balance the steps."""
        report = SENT if self.steps == "balanced" else UNASKED
        return Sends({"w_bar": Sent("parameters", (self.width(problem),), noisy=True)}, dict(report))

    def replies(self, problem: Problem) -> Replies:
        """Two numbers that balance the steps."""
        return Replies({"eta": NUMBER, "rho": NUMBER})

    def reads(self, round_: int) -> bool:
        """Reports come every tenth round."""
        return self.steps == "balanced" and due(round_)

    @abstractmethod
    def lines(self, site: Site, reply: Arrays) -> Updates:
        """(1) and (2) with the coordinator's η and ρ."""

    def remarks(self, problem: Problem) -> list[str]:
        """What nodes get that nothing can teach."""
        return uninformed.remarks(problem, self.lam, self.uninformed)

    def extrapolate(self, site: Site, past: Sequence[tuple[float, State]]) -> State:
        """A guess at the solution from those for one or two other values of λ."""
        return warm_start.extrapolated(self.coupling, self.lam, site, past)

    def finish(self, site: Site, state: State, inbox: Inbox, effort: float) -> tuple[State, Outbox] | None:
        """A direct method where there is one; each component of the graph keeps it only if its residual falls."""
        better = finish.finished(self.lines(site, inbox.to_all), state, effort) if self.steps == "balanced" else None
        return None if better is None else (better, Outbox({"w_bar": better.w_bar}))

    def complete(self, site: Site, models: Any) -> ParametricModels:
        """Give nodes that no data reach the pooled model, if that was asked for."""
        return uninformed.completed(site, self.loss, models, self.uninformed)

    def certify(self, site: Site, state: State, inbox: Inbox, enough: float = 0.0) -> Certificate | None:
        """How far from the best answer this one can be; None where the losses are not convex and no bound is known.

        >>> from kinfolk import GTVMin, Network, fit, graphs
        >>> network = Network(graphs.chain(2), [([[1.0]], [0.0]), ([[1.0]], [1.0])])
        >>> print(fit(network, GTVMin(lam=0.5)).certificate)
        The objective is 0.375. No other choice of parameters lowers it by more than ...
        """
        return certificate_at(self.lines(site, inbox.to_all), state, enough)
