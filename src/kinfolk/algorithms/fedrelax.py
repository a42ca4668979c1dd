"""FedRelax: any model at any node, trained together through predictions on public points.

Abdurakhmanova, SarcheshmehPour, Jung: Towards Model-Agnostic Federated Learning over Networks (2025),
Algorithms 1 and 2; in an earlier form in 2023.

    min_h  Σ_i [ L_i(h_i) + λ Σ_j A_ij δ(h_i, h_j) ],                          λ is the paper's α; every edge twice
    L_i(h) = 1/m_i Σ_r L(y_r, h(x_r)),   δ(h_i, h_j) = 1/m' Σ_{x ∈ P_j} D(h_j(x), h_i(x))

    h_i <- argmin_h  L_i(h) + λ Σ_j A_ij δ(h, h_j)        at all nodes at once, h_j as last received             (1)

Where a message does not come, a node learns from what it last received over that edge. So the fixed points are those
without loss: unlike a dual variable, what was received is not added to, and cannot drift.

D = L is the squared error, or the cross-entropy for classes, unless another discrepancy is given. (1) is a fit to
weighted rows: own rows count 1 each, a point of P_j with the label that j gave it counts λ A_ij m_i / m'. So any model
that can weigh its rows will do, and neighbours receive predictions, never parameters or data. With one common set of
points the labels of a point may be merged into their weighted mean, where the model declares that this changes nothing.

The method finds a fixed point of (1), which is not the minimiser of the sum: each node moves its own model only. With
linear models and one common set it is the minimiser of GTV minimisation with φ(v) = ½ v'Qv, Q = 2 X'ᵀX' / m'.

The form of 2023 has the symmetric discrepancy L(h_j, h_i) + L(h_i, h_j) with weight λ/2 and starts at h = 0. For the
squared error the two terms are equal, so that (1) is the same: ``start="zero"`` is all that differs. For the
cross-entropy there is ``SymmetricCrossEntropy()`` besides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np

from kinfolk import kernels
from kinfolk.algorithms.parametric import ratio
from kinfolk.checks import AtLeast, InputError, LearningError, listing
from kinfolk.engine.protocol import PREDICTIONS, Algorithm, Arrays, Inbox, Outbox, PerEdge, PerNode, Sends, Sent, Turn
from kinfolk.local_models.discrepancies import CrossEntropy, Discrepancy, SquaredError
from kinfolk.local_models.fitted import FittedModels
from kinfolk.local_models.weighted_rows import FitsInRows, LocalModel, TrainingSets, WeightedRows, as_local_model
from kinfolk.network.data import check_one_label, rows_of
from kinfolk.network.problem import Problem
from kinfolk.network.site import Site
from kinfolk.typing import Bools, Floats, Ints

Model = Any  # an estimator, or a LocalModel


class State(NamedTuple):
    """Fitted models, and their predictions on public points."""

    fitted: (
        PerNode  # (nodes,) objects; None: no model yet; or (nodes, numbers), if all fits are rows; NaN: no model yet
    )
    predicted: PerNode  # (nodes, points) or (nodes, points, classes); NaN: nothing yet
    moved: PerNode  # (nodes,) mean squared change of the predictions, in the node's last update
    received: PerEdge  # (edges, 2, points, ...) last over it, of its smaller end and of its larger; NaN: nothing yet;
    # (edges, 0) where every message comes, and nothing need be kept


@dataclass(frozen=True)
class FedRelax(Algorithm[State]):
    """Tailored models of any kind, by exchanging predictions on public points.

    Parameters
    ----------
    model : estimator, mapping or callable
        An estimator for all nodes, a mapping from a node's name to its estimator, or a function from its name.
        Anything with scikit-learn's ``fit(X, y, sample_weight)`` and ``predict``, ``LinearModel()``, ...
    lam : float
        λ. Zero leaves every node alone.
    start : {"local", "zero"}
        The predictions of neighbours before round 1: models fitted ``"local"``-ly, or ``"zero"``.
    order : {"together", "colours"}
        Nodes update ``"together"``, or by ``"colours"``: in each round those of one colour, all of them once in a
        sweep over the colours (``graph.colours``). Neighbours have different colours, so that this is block-coordinate
        descent, and converges where together can oscillate; a sweep takes as many rounds as there are colours.
    recall : int
        Points on which a node repeats what it predicted before, for models that forget when refitted (eq 20).
    weighting : {"average", "literal"}
        ``"average"`` as in (1); ``"literal"`` weighs every labelled point λ A_ij, as the paper's trees do.
    discrepancy : Discrepancy, optional
        D; None for ``SquaredError()``, or ``CrossEntropy()`` if models are classifiers. Also
        ``SquaredProbabilities()``, ``SymmetricCrossEntropy()``, or a ``Discrepancy`` of yours.

    >>> from sklearn.tree import DecisionTreeRegressor
    >>> from kinfolk import Network, fit, graphs
    >>> x = [[0.0], [1.0]]
    >>> network = Network(graphs.chain(2), [(x, [0.0, 1.0]), (x, [0.0, 3.0])], public=x)
    >>> run = fit(network, FedRelax(DecisionTreeRegressor(), lam=1.0))
    >>> run.predict([[1.0], [1.0]], node=[0, 1]).round(3)
    array([1.667, 2.333])
    """

    model: Model | Mapping[Hashable, Model] | Callable[[Hashable], Model]
    lam: Annotated[float, AtLeast(0)] = 0.1
    start: Literal["local", "zero"] = "local"
    order: Literal["together", "colours"] = "together"
    recall: Annotated[int, AtLeast(0)] = 0
    weighting: Literal["average", "literal"] = "average"
    discrepancy: Discrepancy | None = None

    own_choice: ClassVar[tuple[str, ...]] = ("model",)

    # ------------------------------------------------------------------ before round 1

    def check(self, problem: Problem) -> None:
        """Public points, a model for every node that can weigh rows, and one kind of answer."""
        if problem.public is None:
            raise InputError(
                "Expected public points on which neighbours compare predictions, got none: for instance "
                "network.with_public(kinfolk.public.like_the_data(network))."
            )
        if isinstance(self.model, Mapping):
            missing = [name for name in problem.names if name not in self.model]
            if missing:
                raise InputError(f"Expected a model for every node, got none for {listing(missing)}.")
        kinds = self._kinds_of(problem.names)
        for kind in {id(kind): kind for kind in kinds}.values():
            kind.check()
        if len({kind.classifies for kind in kinds}) > 1:
            raise InputError("Expected either regressors or classifiers at all nodes, got both.")
        if kinds[0].classifies and problem.classes is None:
            raise InputError("Expected whole numbers as labels for classifiers, got others: encode the classes.")
        self._check_discrepancy(kinds)

    def check_data(self, site: Site) -> None:
        """One label of every row."""
        check_one_label(site.data.y, "FedRelax")

    def _check_discrepancy(self, kinds: list[LocalModel]) -> None:
        """Refuse a discrepancy that does not fit the predictions, or that a model cannot minimise."""
        discrepancy, classifies = self._discrepancy(kinds), kinds[0].classifies
        if discrepancy.classifies not in (None, classifies):
            expected = "probabilities for classifiers" if classifies else "numbers for regressors"
            raise InputError(f"Expected a discrepancy between {expected}, got {discrepancy}.")
        for kind in kinds:
            if not kind.learns(discrepancy):
                name = type(getattr(kind, "estimator", kind)).__name__
                raise InputError(f"Expected {discrepancy.learners} for {discrepancy}, got {name}.")

    def _discrepancy(self, kinds: list[LocalModel]) -> Discrepancy:
        """D."""
        usual = CrossEntropy() if kinds[0].classifies else SquaredError()
        return usual if self.discrepancy is None else self.discrepancy

    def sends(self, problem: Problem) -> Sends | None:
        """Neighbours receive predictions on public points."""
        if problem.public is None:
            return None
        classifies = self._kinds_of(problem.names[:1])[0].classifies and problem.classes is not None
        classes = (len(problem.classes),) if classifies and problem.classes is not None else ()
        points = problem.public.points.shape[-2]
        return Sends(neighbours={"predicted": Sent(PREDICTIONS, (points, *classes), gaps=True, noisy=True)})

    def remarks(self, problem: Problem) -> list[str]:
        """Which points were used, whether their labels were merged, and the remarks of the models."""
        kinds = self._kinds_of(problem.names)
        different = {id(kind): kind for kind in kinds}.values()
        common = problem.public is not None and not problem.public.per_node
        merging = sum(kind.merges for kind in kinds) if common and self._discrepancy(kinds).merges else 0
        return [
            f"Neighbours compared predictions on {problem.public}.",
            f"Labels of a common point were merged into one weighted row at {merging} of {len(kinds)} nodes.",
            *(note for kind in different for note in kind.remarks(problem)),
        ]

    def _kinds(self, site: Site) -> list[LocalModel]:
        """The model of every own node, made once."""
        if self._for_all is not None:
            return [self._for_all] * site.node_count
        if isinstance(self.model, Mapping):
            return self._kinds_of(site.names)
        made: list[LocalModel] = site.kept(("models", self.model), lambda: self._kinds_of(site.names))
        return made

    def _kinds_of(self, names: Sequence[Hashable]) -> list[LocalModel]:
        """The models of some nodes; nodes with the same estimator share one."""
        if self._for_all is not None:
            return [self._for_all] * len(names)
        known: dict[int, LocalModel] = {}
        given: Any = self.model
        models = [given[name] if isinstance(given, Mapping) else given(name) for name in names]
        for model in models:
            if id(model) not in known:
                known[id(model)] = as_local_model(model)
        return [known[id(model)] for model in models]

    @cached_property
    def _for_all(self) -> LocalModel | None:
        """The one model of all nodes; None if there are several."""
        given: Any = self.model
        if isinstance(given, Mapping):
            return None
        makes = callable(given) and not hasattr(given, "fit") and not isinstance(given, LocalModel)
        return None if makes else as_local_model(given)

    @cached_property
    def _in_rows(self) -> FitsInRows | None:
        """The one model of all nodes, if its fits are rows of one array."""
        return self._for_all if isinstance(self._for_all, FitsInRows) else None

    def _no_fits(self, site: Site) -> Any:
        """Nothing learnt yet: NaN, or None."""
        if self._in_rows is not None:
            return self._in_rows.no_fits(site.node_count, site.data.feature_count)
        return np.full(site.node_count, None, dtype=object)

    def _fits(self, fitted: Any) -> Sequence[Any]:
        """The fitted models that a part of the state holds."""
        return list(fitted) if self._in_rows is None else self._in_rows.fits(fitted)

    # ------------------------------------------------------------------ the node program

    def init(self, site: Site, turn: Turn) -> tuple[State, Outbox]:
        """Fit every node alone, or predict zero (all classes alike)."""
        kinds = self._kinds(site)
        answers = _answers(site, kinds[0])
        silent = State(
            self._no_fits(site),
            np.full((site.node_count, *answers), np.nan),
            np.full(site.node_count, np.inf),
            np.full((len(site.weights), *((0,) if site.live is None else (2, *answers))), np.nan),
        )
        if self.start == "zero":
            alike = 1 / answers[-1] if kinds[0].classifies else 0.0
            silent = silent._replace(predicted=np.full_like(silent.predicted, alike))
            return silent, Outbox({"predicted": silent.predicted})
        nobody = np.full((len(site.outside), *answers), np.nan)
        predicted = site.values(silent.predicted, nobody)
        return self._learn(site, silent, predicted, np.arange(site.node_count), turn)

    def step(self, site: Site, state: State, inbox: Inbox, turn: Turn) -> tuple[State, Outbox]:
        """(1)."""
        on_turn = site.colours == (turn.round - 1) % site.colour_count
        learners = np.flatnonzero(on_turn) if self.order == "colours" else np.arange(site.node_count)
        predicted, keeps = _predicted(site, inbox), state.received.shape[1] > 0
        if keeps:
            state = state._replace(received=_received(site, state, predicted))
        if keeps and site.live is not None:  # what was last received differs from edge to edge
            others = state.received[:, ::-1].reshape(-1, *state.predicted.shape[1:])[site.own_ends]
            site = site.with_own_neighbours()
            predicted = site.values(state.predicted, others)
        return self._learn(site, state, predicted, learners, turn)

    def _learn(self, site: Site, state: State, predicted: Floats, learners: Ints, turn: Turn) -> tuple[State, Outbox]:
        """Fit the learners, kind by kind, and let them label their points."""
        kinds = self._kinds(site)
        sets = self._training_sets(site, state, predicted, kinds, self._recalled(site, state, kinds, turn), turn)
        new = state
        for kind, nodes in _by_kind(kinds, learners):
            models = kind.fit_nodes(sets(nodes))
            fitted = _objects(models) if self._in_rows is None else self._in_rows.rows(models)
            learnt = _has_model(fitted)
            if not learnt.all():  # a node without data that receives nothing keeps its model
                nodes, fitted = nodes[learnt], fitted[learnt]
                models = self._fits(fitted)
            labels = self._label(site, kind, models, nodes)
            moved = _mean_square(labels - state.predicted[nodes if len(nodes) < site.node_count else slice(None)])
            moved[np.isnan(moved)] = np.inf  # it had predicted nothing before
            if len(nodes) == site.node_count:
                return State(fitted, labels, moved, state.received), Outbox({"predicted": labels})
            new = State(*(field.copy() for field in state)) if new is state else new
            new.fitted[nodes], new.predicted[nodes], new.moved[nodes] = fitted, labels, moved
        new = new._replace(moved=np.where(_has_model(new.fitted), new.moved, 0.0))
        return new, Outbox({"predicted": new.predicted})

    def _training_sets(
        self,
        site: Site,
        state: State,
        predicted: Floats,
        kinds: list[LocalModel],
        recalled: list[WeightedRows | None],
        turn: Turn,
    ) -> Callable[[Ints], TrainingSets]:
        """What nodes learn from this round; ``predicted``: by own nodes and neighbours elsewhere, as it was sent."""
        sizes, points = np.maximum(site.data.sizes, 1), state.predicted.shape[1]
        rate = self.lam * (sizes / points if self.weighting == "average" else np.ones(site.node_count))
        target = self._target(site, kinds)

        def seed(node: int) -> int:
            return int(turn.rng(site.nodes[node]).integers(2**31))

        discrepancy, fitted = self._discrepancy(kinds), self._fits(state.fitted)
        return lambda nodes: TrainingSets(site, nodes, target, predicted, rate, fitted, seed, recalled, discrepancy)

    def _target(self, site: Site, kinds: list[LocalModel]) -> Floats:
        """The labels of own rows: numbers, or certain probabilities."""
        if not kinds[0].classifies:
            return site.data.y
        assert site.classes is not None
        out: Floats = (site.data.y[:, None] == site.classes).astype(np.float64)
        return out

    def _recalled(self, site: Site, state: State, kinds: list[LocalModel], turn: Turn) -> list[WeightedRows | None]:
        """(20): random points with the labels that a node would have given them before; each counts 1."""
        nothing: list[WeightedRows | None] = [None] * site.node_count
        if self.recall == 0:
            return nothing
        fitted = self._fits(state.fitted)
        for i in np.flatnonzero(_has_model(state.fitted)).tolist():
            z = turn.rng(site.nodes[i], "recall").normal(size=(self.recall, site.data.feature_count))
            label = kinds[i].predict_nodes([fitted[i]], [z], site.classes)[0]
            nothing[i] = WeightedRows(z, label, np.ones(self.recall))
        return nothing

    def _label(self, site: Site, kind: LocalModel, models: Sequence[Any], nodes: Ints) -> Floats:
        """The predictions of the models of some nodes on their public points, checked."""
        assert site.public is not None
        expected = _answers(site, kind)
        if not len(nodes):
            return np.empty((0, *expected))
        points = [site.public] * len(nodes) if site.public.ndim == 2 else [site.public[i] for i in nodes]
        labels = kind.predict_nodes(models, points, site.classes)
        if not (isinstance(labels, np.ndarray) and labels.shape[1:] == expected):
            for i, predicted in zip(nodes, labels, strict=True):
                if predicted.shape != expected:
                    raise _unusable(site, i, expected, f"shape {predicted.shape}")
        labels = np.asarray(labels)
        if np.isfinite(labels.sum()):  # quick, and the usual case
            return labels
        for i in nodes[~np.isfinite(labels).reshape(len(nodes), -1).all(axis=1)]:
            raise _unusable(site, i, expected, "NaN or infinity")
        return labels

    # ------------------------------------------------------------------ how far it is

    def measure(self, site: Site, state: State, inbox: Inbox) -> Arrays:
        """L_i, λ Σ_j A_ij δ(h_i, h_j), and how far the predictions move."""
        kinds = self._kinds(site)
        nothing: list[WeightedRows | None] = [None] * site.node_count  # what is recalled is no part of the objective
        predicted, turn = _predicted(site, inbox), Turn(0, site.nodes, 0)
        sets = self._training_sets(site, state, predicted, kinds, nothing, turn)(site.nodes)
        alike = sets.public.ndim == 2 and isinstance(sets.discrepancy, SquaredError)
        apart = _squared_apart(sets) if alike else self._apart_on_their_points(site, state, kinds, sets)
        return {
            "loss": self._own_loss(state, kinds, sets),
            "disagreement": self.lam * np.where(_has_model(state.fitted), apart, 0.0),
            "moved": state.moved,
            "size": _mean_square(np.nan_to_num(state.predicted)),
        }

    def _own_loss(self, state: State, kinds: list[LocalModel], sets: TrainingSets) -> Floats:
        """(own,) L_i: the mean over a node's own rows; zero where there are none, or no model."""
        site = sets.site
        loss = np.zeros(site.node_count)
        rows_of_node = site.kept("rows of nodes", lambda: np.split(site.data.X, site.data.starts[1:-1]))
        for kind, nodes in _by_kind(kinds, np.flatnonzero(_has_model(state.fitted) & (site.data.sizes > 0))):
            fitted = self._fits(state.fitted[nodes])
            predicted = kind.predict_nodes(fitted, [rows_of_node[i] for i in nodes], site.classes)
            rows = rows_of(site.data.starts, nodes)
            wrong = sets.discrepancy.loss(sets.target[rows], np.concatenate(predicted))
            loss[nodes] = np.bincount(site.data.owner[rows], wrong, site.node_count)[nodes] / site.data.sizes[nodes]
        return loss

    def _apart_on_their_points(self, site: Site, state: State, kinds: list[LocalModel], sets: TrainingSets) -> Floats:
        """Σ_j A_ij δ(h_i, h_j) of every own node, neighbour by neighbour."""
        apart = np.zeros(site.node_count)
        for i in np.flatnonzero(_has_model(state.fitted)).tolist():
            neighbours, weights = sets.teachers(i)
            if len(neighbours):
                mine = self._on_their_points(site, kinds[i], state, i, neighbours)
                distances = sets.discrepancy.value(sets.predicted[neighbours], mine)
                apart[i] = (weights * distances.mean(axis=1)).sum()
        return apart

    def _on_their_points(self, site: Site, kind: LocalModel, state: State, i: int, neighbours: Ints) -> Floats:
        """The predictions of node i on its neighbours' points: (neighbours, points, ...)."""
        assert site.public is not None
        if site.public.ndim == 2:
            out: Floats = state.predicted[i][None]
            return out
        theirs = site.public[neighbours]
        fitted = self._fits(state.fitted[[i]])
        predicted = kind.predict_nodes(fitted, [theirs.reshape(-1, theirs.shape[2])], site.classes)[0]
        return predicted.reshape(*theirs.shape[:2], *predicted.shape[1:])

    def summary(self, totals: Mapping[str, float]) -> Mapping[str, float]:
        """Objective and its two parts; the residual is the change of predictions, relative, in the last updates."""
        return {
            "objective": totals["loss"] + totals["disagreement"],
            "residual": ratio(float(np.sqrt(totals["moved"])), float(np.sqrt(totals["size"]))),
            "loss": totals["loss"],
            "disagreement": totals["disagreement"],
        }

    def models(self, site: Site, state: State, inbox: Inbox) -> FittedModels:
        """The fitted models."""
        kinds = self._kinds(site)
        return FittedModels(_objects(self._fits(state.fitted)), kinds, site.classes if kinds[0].classifies else None)


def _predicted(site: Site, inbox: Inbox) -> Floats:
    """What was predicted, as it was sent: by own nodes, and by neighbours elsewhere."""
    return site.values(inbox.sent["predicted"], inbox["predicted"])


def _received(site: Site, state: State, predicted: Floats) -> Floats:
    """(edges, 2, points, ...) what either end has now sent over every edge; as before where nothing comes."""
    new: Floats = np.stack([predicted[site.head], predicted[site.tail]], axis=1)
    return new if site.live is None else np.where(site.live.reshape(-1, *[1] * (new.ndim - 1)), new, state.received)


def _answers(site: Site, kind: LocalModel) -> tuple[int, ...]:
    """The shape of the predictions of a node."""
    assert site.public is not None
    points = site.public.shape[-2]
    return (points,) if not kind.classifies or site.classes is None else (points, len(site.classes))


def _unusable(site: Site, node: int, expected: tuple[int, ...], what: str) -> LearningError:
    return LearningError(f"Expected finite predictions of shape {expected} from node {site.names[node]!r}, got {what}.")


def _by_kind(kinds: list[LocalModel], nodes: Ints) -> list[tuple[LocalModel, Ints]]:
    """Some nodes, put together by their model."""
    if len(nodes) and len(set(map(id, kinds))) == 1:
        return [(kinds[0], nodes)]
    groups: dict[int, list[int]] = {}
    for i in nodes:
        groups.setdefault(id(kinds[i]), []).append(i)
    return [(kinds[group[0]], np.array(group)) for group in groups.values()]


def _objects(items: Sequence[Any]) -> Any:
    """An array of objects, whatever they are: a plain conversion would unpack tuples."""
    return np.fromiter(items, dtype=object, count=len(items))


def _has_model(fitted: Any) -> Bools:
    """(own,) whether a node has learnt something."""
    has: Bools = ~np.isnan(fitted[:, 0]) if fitted.ndim == 2 else np.array([model is not None for model in fitted])
    return has


def _mean_square(values: Floats) -> Floats:
    """The mean of the squares of each node's numbers."""
    flat = values.reshape(len(values), math.prod(values.shape[1:]))
    out: Floats = np.einsum("ij,ij->i", flat, flat) / flat.shape[1]
    return out


def _squared_apart(sets: TrainingSets) -> Floats:
    """Σ_j A_ij δ(h_i, h_j) of every own node, for the squared error on common points: an edge is alike at both ends."""
    site = sets.site
    known = sets.has_predicted[site.head] & sets.has_predicted[site.tail]
    known = known if site.live is None else known & site.live
    if known.all():
        apart = kernels.squared_distance(sets.predicted, site.head, site.tail)
    else:
        apart = np.zeros(len(site.head))
        apart[known] = kernels.squared_distance(sets.predicted, site.head[known], site.tail[known])
    return site.edge_sum(site.weights * apart / sets.predicted.shape[1])
