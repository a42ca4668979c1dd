"""FedCG: one network for clients of several domains, with a branch for every domain, joined by a graph network.

Caldarola, Mancini, Galasso, Ciccone, Rodolà, Caputo: Cluster-driven Graph Federated Learning over Multiple Domains
(2021). With L_i = q_i F_i as in FedAvg, and θ all parameters of the network,

    chosen layers become  z ↦ f(z; θ_a) + λ_l Σ_d w_d f(z; V̂_d),   V̂ = σ(A V W)                             (4), (5)
    every row of client k has a domain d̂, and w_d = 1 for d = d̂, else 0, in training                     section 3.1

A round:  those present take local steps on θ = (θ_a, V, W, λ) for their rows and domains                     (1)
          θ <- Σ_k q_k θ_k / Σ_k q_k, running statistics too                                                  (2)
          A_ij <- (1 − β) h_ij / Σ_{d≠i} h_id,  A_ii = β,  h_ij = 1 / ‖V_i − V_j‖                             (6)

At test a row takes the branch of its client's domain, of its own, or all of them by their probabilities. Domains are
found before round 1 by ``ClassMeans`` unless another ``Discovery`` is given; the paper's is ``TeacherStudent``.

Readings of what the paper leaves open: λ starts at 1; W starts at the identity (a random W kills the branches), and one
W serves every filter of a layer; the ReLU of (5) is an option; A is the identity before round 1, and one for all
layers; entries of λ V̂ are bounded by ``clip``, since the product can overflow. β is .8, not .5: see there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np

from kinfolk.algorithms.averaging import Averaging
from kinfolk.algorithms.fedcg import settings
from kinfolk.algorithms.fedcg.adjacency import adjacency_of, inverse_distances
from kinfolk.algorithms.fedcg.branched import BranchedNetwork
from kinfolk.algorithms.fedcg.discovery import Discovery, Found
from kinfolk.algorithms.fedcg.models import Assign, DomainModels
from kinfolk.algorithms.fedcg.per_node import ClassMeans
from kinfolk.algorithms.parametric import relative_change
from kinfolk.checks import Between, Positive
from kinfolk.engine.protocol import (
    NUMBER,
    WHOLE_NUMBER,
    Algorithm,
    Arrays,
    Inbox,
    Outbox,
    PerNode,
    Replies,
    Reply,
    Sends,
    Sent,
    Turn,
)
from kinfolk.modules import layer
from kinfolk.modules.domain_graph import DomainGraph
from kinfolk.network.data import Data
from kinfolk.network.problem import Problem
from kinfolk.network.site import Site
from kinfolk.objective.module_losses import ModuleLosses, ModuleModels
from kinfolk.objective.torch_loss import TorchLoss
from kinfolk.typing import Floats, Ints

MEASURED = 32  # rows of a node on which its loss is known
COMPARED = 2  # rows of a node on which activations of branches are compared
FIRST = 21  # keys a random first adjacency


class State(NamedTuple):
    """What a node knows of its last turn; the network itself is the coordinator's."""

    loss: PerNode  # (nodes,) L_i of the model that it was given, on some of its rows; 0 before
    counts: PerNode  # (nodes, domains) its rows in every domain


class Memory(NamedTuple):
    """What the coordinator keeps."""

    w: Floats  # (parameters,) θ, statistics and A
    domains: int  # D; 0: no branches; −1: not known yet
    found: Found  # of the domains
    change: float  # relative change of θ in the last round
    features: int  # that the network takes


@dataclass(frozen=True)
class FedCG(Averaging[State, Memory]):
    """One network with a branch for every domain in chosen layers; domains are found, or given.

    ``loss`` (a ``TorchLoss``), ``local_steps``, ``local_epochs``, ``batch``, ``step_size`` and ``optimiser`` set the
    local work, as in ``LocalWork``. Clients are weighted by their rows with ``TorchLoss(reduction="sum")``. Nodes
    without data are held-out clients: they get the network and a domain.

    Parameters
    ----------
    layers : sequence of str, or "all"
        The paths of the layers that get branches, such as ``["conv2"]``.
    domains : int or "find"
        D. If one domain is found there are no branches, and this is FedAvg; ``domains=1`` is one branch for all, the
        control for what the extra parameters do.
    discovery : Discovery
        ``ClassMeans(image=...)``, ``MixedClients(...)``, ``ClientWeights(...)``, ``TeacherStudent(...)`` or
        ``GivenDomains()``.
    adjacency : {"learnt", "uniform", "identity"} or array
        A: from the distances of branches in every round (6), the same for all pairs, none, or from similarities
        h (D, D) ≥ 0.
    first : {"identity", "random"}
        A before round 1, where it is learnt.
    beta : float
        β, the weight of a domain for itself. The paper takes 0.5; with two domains that makes both branches the same,
        whatever is learnt, because both rows of A are (½, ½), so it is not the default.
    graph : DomainGraph, optional
        W and σ of (5); None: branches are not joined, whatever A is.
    agnostic : bool
        Whether layers with branches keep the part that all domains share.
    branch_average : {"all", "members"}
        Whether branch d is averaged over all clients, as in the paper, or over those with rows in domain d, by them.
    assign : {"vote", "row", "soft"}
        How rows take branches at test, see ``DomainModels``.
    most_domains : int
        The most that are looked for.
    clip : float
        Bound on the entries of λ V̂.

    The history has the ``objective`` (losses as nodes last knew them, on at most 32 of their rows each), the relative
    change of θ as ``residual``, the number of ``domains``, how many of them are ``used`` and the share of the
    ``largest`` among the rows that took part, and for every layer ``branch``: ‖λ Σ w_d f_d‖ / ‖f_a‖.

    >>> import torch
    >>> from kinfolk import Network, fit, graphs
    >>> rng = np.random.default_rng(0)
    >>> def client(turned):
    ...     X = rng.normal(size=(30, 2)) + (4 if turned else 0)
    ...     return X, ((X[:, 0] > X[:, 1]) != turned).astype(float)
    >>> network = Network(graphs.edgeless(40), [client(k % 2 == 1) for k in range(40)])
    >>> torch.manual_seed(0) and None
    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> loss = TorchLoss(net, "cross-entropy", step_size=0.3)
    >>> run = fit(network, FedCG(loss, layers=["2"], local_steps=5), rounds=60, stop=None, participation=0.5)
    >>> int(run.history["domains"].iloc[-1])
    2
    >>> run.models.domains([[0.0, 0.0], [4.0, 4.0]]).argmax(axis=1).tolist()
    [0, 1]
    """

    loss: TorchLoss = field(default=None)  # type: ignore[assignment]  # given first, as in all algorithms
    layers: Sequence[str] | Literal["all"] = "all"
    domains: Any = "find"
    discovery: Discovery = ClassMeans()
    adjacency: Any = "learnt"
    first: Literal["identity", "random"] = "identity"
    beta: Annotated[float, Between(0, 1)] = 0.8
    graph: DomainGraph | None = DomainGraph()
    agnostic: bool = True
    branch_average: Literal["all", "members"] = "all"
    assign: Assign = "vote"
    most_domains: int = 8
    clip: Annotated[float, Positive()] = 4.0

    # ------------------------------------------------------------------ settings

    def check(self, problem: Problem) -> None:
        """Settings that fit together and to the problem."""
        settings.check_loss(self.loss)
        settings.check_paths(self.layers)
        super().check(problem)
        settings.check_domains(self.domains, self.most_domains, self.discovery, problem)
        settings.check_adjacency(self.adjacency, self.domains)
        module = self.loss.flat(self._features(problem)).template
        layer("domains", "FedCG").check_layers(module, self._paths(module), self.graph)
        self.discovery.check(problem, self._given)

    def check_data(self, site: Site) -> None:
        """Rows, labels and domains that the network and the discovery can read."""
        self.discovery.check_data(site, self._given)
        trimmed = replace(
            site,
            data=self._trimmed(site.data),
            test=None if site.test is None else self._trimmed(site.test),
            _local_losses={},
        )
        super().check_data(trimmed)

    @property
    def _given(self) -> int | None:
        return None if isinstance(self.domains, str) else int(self.domains)

    @property
    def _most(self) -> int:
        return self.most_domains if self._given is None else self._given

    def _features(self, problem: Problem) -> int:
        """That the network takes."""
        return problem.feature_count - self.discovery.columns

    def _trimmed(self, data: Data) -> Data:
        """Without the column that gives the domain."""
        return replace(data, X=data.X[:, : data.feature_count - self.discovery.columns])

    def _paths(self, module: Any) -> list[str]:
        return (
            layer("domains", "FedCG").layers_of(module)
            if isinstance(self.layers, str) and self.layers == "all"
            else list(self.layers)
        )

    @cached_property
    def _branched(self) -> dict[tuple[int, int], BranchedNetwork]:
        """Networks with branches that were made."""
        return {}

    def branched(self, domains: int, features: int) -> BranchedNetwork:
        """The network with branches for so many domains."""
        if (domains, features) not in self._branched:
            paths = self._paths(self.loss.flat(features).template)
            self._branched[domains, features] = BranchedNetwork.of(
                self.loss, paths, domains, features, graph=self.graph, agnostic=self.agnostic, clip=self.clip,
                one_per_node=self.discovery.per_node,
            )  # fmt: skip
        return self._branched[domains, features]

    def loss_of(self, domains: int, features: int) -> TorchLoss:
        """The loss of that network; 0: of the one given."""
        return self.branched(domains, features).joined if domains else self.loss

    def __getstate__(self) -> dict[str, Any]:
        """The settings alone: networks with branches are made again."""
        return {name: value for name, value in vars(self).items() if name != "_branched"}

    def sends(self, problem: Problem) -> Sends:
        """The coordinator receives parameters, and what the discovery needs."""
        features = self._features(problem)
        width = self.loss_of(self._most, features).width(features)
        sent = {
            "w": Sent("parameters after local steps", (width,)),
            "share": Sent("number of rows" if self.loss.reduction == "sum" else "whether it has rows"),
        }
        if self.branch_average == "members":
            sent["members"] = Sent("number of rows in every domain", (self._most,))
        return Sends(coordinator={**sent, **self.discovery.sends(problem, self._most, self.loss.width(features))})

    def starts_from(self, problem: Problem, other: Algorithm[Any], before: Problem) -> bool:
        """From a run with a network of the same shape."""
        return isinstance(other, FedCG) and self.sends(problem) == other.sends(before)

    def first_exchanges(self, memory: Any) -> int:
        """As many as it takes to find domains."""
        return self.discovery.exchanges

    # ------------------------------------------------------------------ a node

    def init(self, site: Site, turn: Turn) -> tuple[State, Outbox]:
        """Send what is needed to find domains."""
        state = State(np.zeros(site.node_count), np.zeros((site.node_count, self._most)))
        return self.resume(site, state, turn)

    def resume(self, site: Site, state: State, turn: Turn) -> tuple[State, Outbox]:
        """Domains are found anew."""

        def train(times: int) -> Floats:
            w = np.tile(self.loss.start(self._features_of(site)), (site.node_count, 1))
            losses = self.loss.bind(self._trimmed(site.data))
            for k in range(times):
                w = self.worked(site, replace(turn, exchange=k), w, losses=losses)
            return w

        return state, Outbox(coordinator={"share": self._shares(site), **self.discovery.describe(site, turn, train)})

    def step(self, site: Site, state: State, inbox: Inbox, turn: Turn) -> tuple[State, Outbox]:
        """(1); before round 1 the answer to a question about domains."""
        if turn.exchange:
            return state, Outbox(coordinator=self.discovery.answer(site, inbox, turn))
        common = np.tile(inbox.to_all["w"], (site.node_count, 1))
        labels = self._labels(site, site.data.X, site.data.owner, inbox)
        losses = self._losses(site, labels, int(inbox.to_all["domains"]))
        w = self.worked(site, turn, common, losses=losses)  # (1)
        counts = _counts(labels, site.data.owner, site.node_count, self._most)
        sent = {"w": w, "share": losses.share, **self.discovery.work(site, self._trimmed(site.data).X, inbox, turn)}
        if self.branch_average == "members":
            sent["members"] = counts
        return State(self._last_loss(losses, common), counts), Outbox(coordinator=sent)

    def _features_of(self, site: Site) -> int:
        return site.data.feature_count - self.discovery.columns

    def _shares(self, site: Site) -> Floats:
        """q_i."""
        return self.loss.bind(self._trimmed(site.data)).share

    def _labels(self, site: Site, X: Floats, owner: Ints, inbox: Inbox) -> Ints:
        """The domains of rows; all 0 where there are none."""
        if int(inbox.to_all["domains"]) <= 0:
            return np.zeros(len(X), dtype=np.int64)
        return self.discovery.labels(X, owner, _domain(site, inbox)[owner], dict(inbox.to_all))

    def _losses(self, site: Site, labels: Ints, domains: int) -> ModuleLosses:
        """The local losses of the network with branches."""
        data = self._trimmed(site.data)
        loss = self.loss_of(domains, data.feature_count)
        if domains:
            data = replace(data, X=np.concatenate([data.X, np.eye(domains)[labels]], axis=1))
        return loss.bind(data)

    def _last_loss(self, losses: ModuleLosses, w: Floats) -> Floats:
        sizes = np.minimum(np.diff(losses.starts), MEASURED)
        starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        rows = np.repeat(losses.starts[:-1] - starts[:-1], sizes) + np.arange(starts[-1])
        return losses.share * losses.means_on(rows, starts).value(w)

    # ------------------------------------------------------------------ the coordinator

    def start(self, problem: Problem, turn: Turn, before: Memory | None = None) -> Memory:
        """Nothing is known; a changed problem goes on from the same network, if it has as many domains."""
        found = self.discovery.start(problem, self._given, turn)
        w = np.empty(0) if before is None else before.w
        return Memory(w, -1, found, np.inf, self._features(problem))

    def combine(self, memory: Memory, outbox: Arrays, turn: Turn) -> tuple[Memory, Reply]:
        """Domains, then (2) and (6)."""
        found, count, each = self.discovery.combine(memory.found, outbox, self._given, self._most, turn)
        memory = memory._replace(found=found)
        if memory.domains < 0 and count is not None:
            memory = self._begun(memory, count, turn)
        elif "w" in outbox and outbox["share"].sum() > 0:
            w = self._averaged(memory, outbox)
            memory = memory._replace(w=w, change=relative_change(w, memory.w))
        sent = {"w": memory.w, "domains": np.asarray(memory.domains), "change": np.asarray(memory.change)}
        return memory, Reply({**memory.found, **sent}, each)

    def replies(self, problem: Problem) -> Replies:
        """The common network, and what was found of domains; to each node its domain."""
        features = self._features(problem)
        w = Sent("common network", (self.loss_of(self._most, features).width(features),))
        found = self.discovery.replies(problem, self._most)
        return Replies({**found, "w": w, "domains": WHOLE_NUMBER, "change": NUMBER}, {"domain": WHOLE_NUMBER})

    def _begun(self, memory: Memory, count: int, turn: Turn) -> Memory:
        """The network for the domains that were found: without branches if there is one."""
        domains = 0 if self._given is None and count == 1 else count
        w = self.loss_of(domains, memory.features).start(memory.features)
        w = memory.w if memory.w.shape == w.shape else w
        if domains:
            w = self.branched(domains, memory.features).with_adjacency(w, self._first_adjacency(domains, turn))
        return memory._replace(w=w, domains=domains)

    def _averaged(self, memory: Memory, outbox: Arrays) -> Floats:
        """(2): Σ q_k θ_k / Σ q_k, branches over their members where that is asked for; then (6)."""
        share = outbox["share"] / outbox["share"].sum()
        w: Floats = np.einsum("k,kp->p", share, outbox["w"])  # no product, as in ``length``
        if not memory.domains:
            return w
        network = self.branched(memory.domains, memory.features)
        if self.branch_average == "members":
            w = network.with_members_means(w, outbox["w"], outbox["members"][:, : memory.domains], memory.w)
        if self._learns_adjacency:
            return network.with_adjacency(w, adjacency_of(inverse_distances(network.branches(w)), self.beta))  # (6)
        return network.with_adjacency(w, network.adjacency(memory.w))

    @property
    def _learns_adjacency(self) -> bool:
        return isinstance(self.adjacency, str) and self.adjacency == "learnt" and self.graph is not None

    def _first_adjacency(self, domains: int, turn: Turn) -> Floats:
        """A before round 1."""
        if not isinstance(self.adjacency, str):
            return adjacency_of(np.asarray(self.adjacency, dtype=np.float64), self.beta)
        if self.adjacency == "uniform":
            return adjacency_of(np.ones((domains, domains)), self.beta)
        if self.adjacency == "identity" or self.first == "identity":
            return np.eye(domains)
        return adjacency_of(np.random.default_rng([FIRST, turn.seed]).random((domains, domains)), self.beta)

    # ------------------------------------------------------------------ what comes out

    def measure(self, site: Site, state: State, inbox: Inbox) -> Arrays:
        """Losses and domains as nodes last knew them, and how strong branches are."""
        one = np.ones(site.node_count)
        received = {name: one * inbox.to_all[name] for name in ("change", "domains")}
        rows = {f"rows {d}": state.counts[:, d] for d in range(self._most)}
        return {"loss": state.loss, "nodes": one, **received, **rows, **self._activations(site, inbox)}

    def _activations(self, site: Site, inbox: Inbox) -> Arrays:
        """‖branch‖² and ‖agnostic‖² of every layer on a few rows of every node."""
        features, count = self._features_of(site), int(inbox.to_all["domains"])
        paths = self._paths(self.loss.flat(features).template) if self.agnostic else []
        out = {f"{what} {path}": np.zeros(site.node_count) for path in paths for what in ("branch", "agnostic")}
        data = site.data
        rows = np.flatnonzero(np.arange(len(data.y)) - data.starts[data.owner] < COMPARED)
        if count <= 0 or not len(rows):
            return out
        owner, X = data.owner[rows], data.X[rows]
        weights = np.eye(count)[self._labels(site, X, owner, inbox)]
        flat = self.loss_of(count, features).flat(features)
        with_weights = flat.tensor(np.concatenate([X[:, :features], weights], axis=1))
        found = layer("domains", "FedCG").compared_activations(flat, flat.tensor(inbox.to_all["w"]), with_weights)
        for path, squares in zip(paths, found, strict=True):
            for k, what in enumerate(("branch", "agnostic")):
                out[f"{what} {path}"] = np.asarray(np.bincount(owner, squares[:, k], site.node_count), dtype=np.float64)
        return out

    def summary(self, totals: Mapping[str, float]) -> Mapping[str, float]:
        """The columns of the history."""
        rows = np.array([totals[f"rows {d}"] for d in range(self._most)])
        ratios = {
            name: float(np.sqrt(totals[name] / totals[name.replace("branch", "agnostic", 1)]))
            for name in totals
            if name.startswith("branch ") and totals[name.replace("branch", "agnostic", 1)] > 0
        }
        return {
            "objective": totals["loss"],
            "residual": totals["change"] / totals["nodes"],
            "domains": totals["domains"] / totals["nodes"],
            "used": float((rows > 0).sum()),
            "largest": float(rows.max() / rows.sum()) if rows.sum() else np.nan,
            **ratios,
        }

    def findings(self, row: Mapping[str, float]) -> list[str]:
        """Whether there are domains at all, and branches that differ."""
        notes = settings.findings(row, found=self._given is None)
        joined = self.graph is not None and not (isinstance(self.adjacency, str) and self.adjacency == "identity")
        if joined and row.get("domains") == 2 and self.beta == 0.5:
            notes.append(
                "With two domains and β = ½ both branches are the same, whatever is learnt: give another beta."
            )
        return notes

    def models(self, site: Site, state: State, inbox: Inbox) -> DomainModels:
        """The network of the coordinator, with V̂ worked in."""
        features, count = self._features_of(site), max(0, int(inbox.to_all["domains"]))
        w, loss, adjacency = inbox.to_all["w"], self.loss, np.ones((1, 1))
        if count:
            network = self.branched(count, features)
            w, loss, adjacency = network.precomputed(w), network.plain, network.adjacency(w)
        found = {name: np.asarray(value) for name, value in inbox.to_all.items()}
        models = ModuleModels(w[None], loss, loss.flat(features))
        return DomainModels(models, self.discovery, found, _domain(site, inbox), self.assign, count, adjacency)


def _domain(site: Site, inbox: Inbox) -> Ints:
    """The domain that every node received; −1: none."""
    domain = inbox.to_each["domain"] if "domain" in inbox.to_each else np.full(site.node_count, -1)
    return np.asarray(domain, dtype=np.int64)


def _counts(labels: Ints, owner: Ints, nodes: int, most: int) -> Floats:
    """(nodes, domains) how many rows of a node are in every domain."""
    return np.bincount(owner * most + labels, minlength=nodes * most).reshape(nodes, most).astype(np.float64)
