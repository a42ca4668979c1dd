"""FeSEM: K centres, and every node belongs to the one that its model is nearest to.

Xie, Long, Shen, Zhou, Wang, Jiang: Multi-Center Federated Learning (2020); in Lu, Xing, Yu: Graph-Aware Federated
Learning (chapter 10 of a book), Algorithms 2 and 3, (10.7) to (10.10).

    min over θ_i, centres c_k and clusters k_i of   Σ_i L_i(θ_i) + λ Σ_i q_i dist(θ_i, c_{k_i})               (10.7)

with L_i = q_i F_i as in FedAvg and dist = ‖·‖² unless another is given. The coordinator, for those who sent θ_i,

    E:  k_i <- argmin_k dist(θ_i, c_k)                                                                        (10.8)
    M:  c_k <- the q-weighted mean of its members' θ_i; a centre without members stays                        (10.9)

and node i takes local steps from c_{k_i} (Algorithm 3, line 3), or from its own θ_i, as the text may be read, for

    min F_i(θ_i) + λ dist(θ_i, c_{k_i})                                                                       (10.10)

From equal starts all nodes belong to one centre, so nodes first learn alone for ``warm_up`` rounds, and the best of
several runs of E and M steps over their models (k-means, where dist = ‖·‖²) gives the first centres. With K = 1 there
is nothing to distinguish: no warm-up, and with λ = 0 this is FedAvg.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np

from kinfolk.algorithms.averaging import Averaging
from kinfolk.algorithms.parametric import relative_change
from kinfolk.checks import AtLeast, InputError
from kinfolk.engine.protocol import (
    NUMBER,
    WHOLE_NUMBER,
    Arrays,
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
from kinfolk.network.problem import Problem
from kinfolk.network.site import Site
from kinfolk.typing import Floats, Ints

INITIAL = 4  # keys the draw of the first centres
WARM_UP = 30
MOST_ITERATIONS = 100  # of E and M steps over the models of the warm-up


class Distance(ABC):
    """A distance of models, with the centre that belongs to it: the E and the M step agree on what is minimised."""

    curvature: ClassVar[float]  # the most that it is curved; ∞: it has kinks

    @abstractmethod
    def value(self, difference: Floats) -> Floats:
        """dist of differences θ − c along the last axis."""

    @abstractmethod
    def slope(self, difference: Floats) -> Floats:
        """Its gradient, or a subgradient."""

    @abstractmethod
    def centre(self, models: Floats, share: Floats) -> Floats:
        """argmin_c Σ_i q_i dist(θ_i − c)."""


@dataclass(frozen=True)
class SquaredEuclidean(Distance):
    """‖θ − c‖²; the centre is the mean.

    >>> SquaredEuclidean().centre(np.array([[0.0], [3.0]]), np.array([2.0, 1.0]))
    array([1.])
    """

    curvature: ClassVar[float] = 2.0

    def value(self, difference: Floats) -> Floats:
        """‖·‖²."""
        return np.asarray((difference**2).sum(axis=-1))

    def slope(self, difference: Floats) -> Floats:
        """2 (θ − c)."""
        return 2.0 * difference

    def centre(self, models: Floats, share: Floats) -> Floats:
        """The weighted mean."""
        return np.asarray((share[:, None] * models).sum(axis=0) / share.sum())


@dataclass(frozen=True)
class Manhattan(Distance):
    """‖θ − c‖₁; the centre is the median of every entry, which a few odd models do not move.

    >>> Manhattan().centre(np.array([[0.0], [1.0], [50.0]]), np.ones(3))
    array([1.])
    """

    curvature: ClassVar[float] = np.inf

    def value(self, difference: Floats) -> Floats:
        """‖·‖₁."""
        return np.asarray(np.abs(difference).sum(axis=-1))

    def slope(self, difference: Floats) -> Floats:
        """The sign of θ − c."""
        return np.sign(difference)

    def centre(self, models: Floats, share: Floats) -> Floats:
        """The weighted median of every entry, the smaller of two."""
        order = np.argsort(models, axis=0)
        reached = np.cumsum(share[order], axis=0) >= 0.5 * share.sum()
        first = np.take_along_axis(order, reached.argmax(axis=0)[None], axis=0)
        return np.asarray(np.take_along_axis(models, first, axis=0)[0])


class State(NamedTuple):
    """The own model after local work, and the centre it was worked on from."""

    w: PerNode  # (nodes, parameters) θ_i
    centre: PerNode  # (nodes, parameters)


class Memory(NamedTuple):
    """What the coordinator keeps."""

    w: Floats  # (centres, parameters)
    step: float  # that is safe
    change: float  # relative change of the centres in the last round
    cluster: Ints  # (nodes,) the centre that each node with data was last nearest to; −1: none yet
    compared: int  # how many of the parameters are compared; running statistics follow them

    @property
    def members(self) -> Ints:
        """(centres,) how many nodes with data belong to each."""
        return np.bincount(self.cluster[self.cluster >= 0], minlength=len(self.w))


@dataclass(frozen=True)
class FeSEM(Averaging[State, Memory]):
    """One model for each of ``model_count`` clusters, which are found by comparing the models of nodes.

    ``loss``, ``local_steps``, ``local_epochs``, ``batch``, ``step_size`` and ``optimiser`` set the local work, as in
    ``LocalWork``.

    Parameters
    ----------
    model_count : int
        K, the number of centres, which has to be given.
    lam : float
        λ, how strongly a node is held near its centre.
    distance : Distance
        dist: ``SquaredEuclidean()``, ``Manhattan()``, or your own. It compares parameters, not running statistics.
    local_start : {"centre", "own"}
        Where local work starts.
    warm_up : int, optional
        Rounds of local work before the first centres are looked for; None: 30, and none for K = 1.
    starts : int
        How many times the first centres are looked for; the smallest Σ q_i dist wins.
    tailored : bool
        Whether a node's model is its own θ_i; otherwise it is the centre of its cluster. Nodes without data get the
        centre with most members.

    >>> from kinfolk import Network, fit, graphs
    >>> x = [[1.0]]
    >>> network = Network(graphs.edgeless(4), [(x, [1.0]), (x, [1.2]), (x, [5.0]), None])
    >>> fit(network, FeSEM(model_count=2)).models.w.round(2).tolist()
    [[1.1], [1.1], [5.0], [1.1]]
    """

    model_count: Annotated[int, AtLeast(1)] = field(kw_only=True)
    lam: Annotated[float, AtLeast(0)] = 0.1
    distance: Distance = SquaredEuclidean()
    local_start: Literal["centre", "own"] = "centre"
    warm_up: Annotated[int, AtLeast(0)] | None = None
    starts: Annotated[int, AtLeast(1)] = 10
    tailored: bool = False

    def check(self, problem: Problem) -> None:
        """At most as many centres as nodes that have data."""
        super().check(problem)
        known = int(problem.has_data.sum())
        if self.model_count > known:
            raise InputError(
                f"Expected at most as many models as nodes with data ({known}) for FeSEM, got model_count="
                f"{self.model_count}: take fewer."
            )
        if self.lam > 0 and self.needs_curvature and not np.isfinite(self.distance.curvature):
            raise InputError(
                f"The 'step_size' parameter of FeSEM must be a number > 0 for {type(self.distance).__name__}, which "
                "has kinks. Got None instead."
            )

    def sends(self, problem: Problem) -> Sends:
        """The coordinator receives models."""
        return Sends(coordinator=self.work_sent(problem))

    @property
    def _warm_up(self) -> int:
        return (WARM_UP if self.model_count > 1 else 0) if self.warm_up is None else self.warm_up

    def curvature(self, site: Site) -> Floats:
        """How curved F_i and the pull are."""
        pull = self.lam * self.distance.curvature if self.needs_curvature and self.lam > 0 else 0.0
        return super().curvature(site) + pull

    # ------------------------------------------------------------------ a node

    def init(self, site: Site, turn: Turn) -> tuple[State, Outbox]:
        """Learn alone for a while; the coordinator looks for centres among the models."""
        start = site.local_losses(self.loss).start
        bend = super().curvature(site)
        alone = 1.0 / np.where(bend > 0, bend, 1.0)[:, None]
        w = start
        for k in range(self._warm_up):
            w = self.worked(site, Turn(turn.round, turn.active, turn.seed, exchange=k), w, alone)
        return self.resume(site, State(w, start), turn)

    def resume(self, site: Site, state: State, turn: Turn) -> tuple[State, Outbox]:
        """Go on from a state."""
        sent = {"w": state.w, "share": self.share(site), **self.introduction(site)}
        return state, Outbox(coordinator=sent)

    def step(self, site: Site, state: State, inbox: Inbox, turn: Turn) -> tuple[State, Outbox]:
        """Local work near the own centre (10.10)."""
        trained = site.local_losses(self.loss).trained
        centre = self._centre(site, inbox)

        def pull(w: Floats) -> Floats:
            out = np.zeros_like(w)
            out[:, :trained] = self.lam * self.distance.slope(w[:, :trained] - centre[:, :trained])
            return out

        start = centre if self.local_start == "centre" else state.w
        w = self.worked(site, turn, start, float(inbox.to_all["step"]), pull if self.lam > 0 else None)
        return State(w, centre), Outbox(coordinator={"w": w, "share": self.share(site)})

    def _centre(self, site: Site, inbox: Inbox) -> Floats:
        """The centre of its cluster for every node; without data that with most members."""
        cluster = np.where(site.data.sizes > 0, inbox.to_each["cluster"], int(inbox.to_all["largest"]))
        centres: Floats = inbox.to_all["w"]
        return centres[cluster]

    # ------------------------------------------------------------------ the coordinator

    def start(self, problem: Problem, turn: Turn, before: Memory | None = None) -> Memory:
        """All centres where the loss starts, until models are known; a changed problem goes on from the same ones."""
        w = np.tile(self.loss.start(problem.feature_count), (self.model_count, 1))
        if before is not None and before.w.shape == w.shape:
            return before._replace(change=np.inf)
        nowhere = np.full(problem.graph.node_count, -1)
        return Memory(w, 1.0, np.inf, nowhere, self.loss.trained(problem.feature_count))

    def combine(self, memory: Memory, outbox: Arrays, turn: Turn) -> tuple[Memory, Reply]:
        """E and M step; at first, as often as they change something, from several starts."""
        share = outbox["share"]
        clustering = Clustering(self.distance, memory.compared, outbox["w"], share)
        first = "curvature" in outbox
        if first:
            everyone = np.zeros(len(share), dtype=np.int64)
            memory = memory._replace(step=float(self.safe_steps(outbox["curvature"], everyone, 1)[0]))
            if self._warm_up and not memory.members.any():
                rng = np.random.default_rng([INITIAL, turn.seed])
                memory = memory._replace(w=clustering.best_centres(self.model_count, self.starts, rng))
        nearest = clustering.nearest(memory.w)  # E
        if not first and share.sum() > 0:
            w = clustering.centres(nearest, memory.w)  # M
            memory = memory._replace(w=w, change=relative_change(w, memory.w))
        cluster = memory.cluster.copy()
        cluster[turn.active] = np.where(share > 0, nearest, -1)
        memory = memory._replace(cluster=cluster)
        return memory, Reply(to_all=self._answer(memory), to_each={"cluster": nearest})

    def replies(self, problem: Problem) -> Replies:
        """All centres and numbers of the steps; to each node the centre that is nearest."""
        w = Sent("all centres", (self.model_count, self.width(problem)))
        numbers = dict.fromkeys(("step", "change", "largest", "empty"), NUMBER)
        return Replies({"w": w, **numbers}, {"cluster": WHOLE_NUMBER})

    def _answer(self, memory: Memory) -> Arrays:
        answer = {"w": memory.w, "step": memory.step, "change": memory.change}
        members = {"largest": memory.members.argmax(), "empty": (memory.members == 0).sum()}
        return {name: np.asarray(value, dtype=np.float64) for name, value in {**answer, **members}.items()}

    # ------------------------------------------------------------------ what comes out

    def measure(self, site: Site, state: State, inbox: Inbox) -> Arrays:
        """Loss and distance to the centre of the own model, how far centres moved, and how many are empty."""
        losses, one = site.local_losses(self.loss), np.ones(site.node_count)
        away = (state.w - state.centre)[:, : losses.trained]
        return {
            "loss": losses.value(state.w),
            "distance": losses.share * self.distance.value(away),
            "change": one * inbox.to_all["change"],
            "empty": one * inbox.to_all["empty"],
            "nodes": one,
        }

    def summary(self, totals: Mapping[str, float]) -> Mapping[str, float]:
        """(10.7), the relative change of the centres, and the number of centres without members."""
        return {
            "objective": totals["loss"] + self.lam * totals["distance"],
            "residual": totals["change"] / totals["nodes"],
            "empty": totals["empty"] / totals["nodes"],
        }

    def models(self, site: Site, state: State, inbox: Inbox) -> Models:
        """The centre of its cluster for every node, as the coordinator has it now, or its own model."""
        centre = self._centre(site, inbox)
        own = self.tailored & (site.data.sizes > 0)
        models: Models = self.loss.models(np.where(own[:, None], state.w, centre))
        return models


@dataclass(frozen=True, eq=False)
class Clustering:
    """The E and the M step over the models of those who sent theirs."""

    distance: Distance
    compared: int
    models: Floats  # (nodes, parameters)
    share: Floats  # (nodes,) q_i

    def distances(self, centres: Floats) -> Floats:
        """(nodes, centres)."""
        own = self.models[:, : self.compared]
        return np.stack([self.distance.value(own - centre) for centre in centres[:, : self.compared]], axis=1)

    def nearest(self, centres: Floats) -> Ints:
        """E: the nearest centre of every model (10.8)."""
        return np.asarray(self.distances(centres).argmin(axis=1))

    def centres(self, cluster: Ints, before: Floats) -> Floats:
        """M: the centre of every cluster (10.9), as before without a member with data; statistics are averaged."""
        new = before.copy()
        for k in np.unique(cluster[self.share > 0]):
            own = (cluster == k) & (self.share > 0)
            models, share = self.models[own], self.share[own]
            new[k, : self.compared] = self.distance.centre(models[:, : self.compared], share)
            new[k, self.compared :] = SquaredEuclidean().centre(models[:, self.compared :], share)
        return new

    def best_centres(self, count: int, starts: int, rng: np.random.Generator) -> Floats:
        """The best of several runs of E and M steps among the models with data."""
        known = Clustering(self.distance, self.compared, self.models[self.share > 0], self.share[self.share > 0])
        runs = [known.settled(known.far_apart(count, rng)) for _ in range(starts)]
        cost = [float((known.share * known.distances(centres).min(axis=1)).sum()) for centres in runs]
        return runs[int(np.argmin(cost))]

    def far_apart(self, count: int, rng: np.random.Generator) -> Floats:
        """Models drawn one after another, each likelier the farther it is from those before (k-means++)."""
        free, nearest = np.ones(len(self.models), dtype=bool), np.ones(len(self.models))
        chosen: list[int] = []
        while len(chosen) < count:
            likely = np.where(free, self.share * nearest, 0.0)
            likely = likely if likely.any() else free.astype(np.float64)
            chosen.append(int(rng.choice(len(self.models), p=likely / likely.sum())))
            free[chosen[-1]] = False
            away = self.distances(self.models[chosen[-1:]])[:, 0]
            nearest = away if len(chosen) == 1 else np.minimum(nearest, away)
        return self.models[chosen]

    def settled(self, centres: Floats) -> Floats:
        """Where E and M steps lead."""
        for _ in range(MOST_ITERATIONS):
            new = self.centres(self.nearest(centres), centres)
            if np.array_equal(new, centres):
                break
            centres = new
        return centres
