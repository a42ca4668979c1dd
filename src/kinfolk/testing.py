"""Checks for classes of your own: does it fit together, does it fit in?

Each check raises an AssertionError that names the broken promise, and returns nothing.

>>> from kinfolk import EuclideanNorm, Squared
>>> check_loss(Squared())
>>> check_coupling(EuclideanNorm())
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.testing import assert_allclose, assert_array_equal

from kinfolk.checks import InputError
from kinfolk.engine.fit import fit
from kinfolk.engine.in_process import InProcess
from kinfolk.engine.protocol import Algorithm, Coordinated, Engine, Inbox, axes_of
from kinfolk.engine.run import Run
from kinfolk.engine.specs import spec_of
from kinfolk.network.data import Data
from kinfolk.network.graph import Graph
from kinfolk.network.graphs import edgeless
from kinfolk.network.network import Network
from kinfolk.objective.couplings import Coupling
from kinfolk.objective.losses import Kinked, Loss
from kinfolk.typing import Floats

AGREEMENT = 1e-10  # between any two numbers of sites, relative, in float64


def difficult_network(*, classes: bool = False, features: int = 3, seed: int = 0) -> Network:
    """A small network with everything that goes wrong: irregular degrees, a hub, edge weights over three decades,
    an isolated node, nodes without data, two that no data reach, ragged sizes, test data and public points.

    >>> difficult_network()
    Network(24 nodes, 37 edges, 74 samples, 3 features; 6 nodes without data)
    """
    rng = np.random.default_rng(seed)
    node_count = 24
    hub = [(0, k) for k in range(1, 10)]
    pairs = {tuple(sorted(map(int, rng.choice(np.r_[0:16], 2, replace=False)))) for _ in range(30)}
    island = [(17, 18), (18, 19), (17, 19), (19, 20), (20, 21), (22, 23)]  # node 16 stands alone
    ends = sorted(set(hub) | pairs | set(island))
    graph = Graph(node_count, ends, 10.0 ** rng.uniform(-1.5, 1.5, len(ends)))
    truth = rng.normal(size=(2, features))

    def samples(node: int, count: int) -> tuple[Any, Any]:
        X = rng.normal(size=(count, features))
        z = X @ truth[node % 2] + (2.0 if classes else 0.3) * rng.normal(size=count)
        return X, (z > 0).astype(float) if classes else z

    sizes = rng.integers(1, 7, node_count)
    sizes[[18, 19, 20]] = 6  # classes that no plane separates
    sizes[[3, 8, 17, 21, 22, 23]] = 0
    data = [samples(k, size) if size else None for k, size in enumerate(sizes)]
    test = [samples(k, 4) for k in range(node_count)]
    return Network(graph, data, test=test, public=rng.normal(size=(10, features)))


def check_graph(graph: Graph) -> None:
    """A graph is valid, its arrays agree with each other, and it survives every conversion."""
    assert (graph.head < graph.tail).all(), "every edge must start at its smaller end"
    assert (graph.weights > 0).all(), "weights must be positive"
    assert np.isfinite(graph.weights).all(), "weights must be finite"
    order = np.lexsort((graph.tail, graph.head))
    assert_array_equal(order, np.arange(graph.edge_count), "edges must be sorted by their ends")
    assert graph.degrees.sum() == 2 * graph.edge_count, "every edge has two ends"
    assert_allclose(graph.weighted_degrees, graph.to_sparse().sum(axis=1), err_msg="weighted degrees")
    assert_allclose(graph.laplacian.sum(axis=1), 0, atol=1e-9 * graph.weights.sum(), err_msg="Laplacian")
    assert (graph.colours[graph.head] != graph.colours[graph.tail]).all(), "neighbours must differ in colour"
    assert graph.colours.max() <= graph.degrees.max(), "there are more colours than a first fit needs"
    assert_array_equal(graph.components[graph.head], graph.components[graph.tail], "edges stay in a component")
    names = graph.names
    assert Graph.from_sparse(graph.to_sparse(), names) == graph, "scipy sparse must give the graph back"
    assert Graph.from_networkx(graph.to_networkx()) == graph, "networkx must give the graph back"
    frame = graph.to_frame()
    assert Graph.from_frame(frame, ("head", "tail"), "weight", names) == graph, "a frame must give it back"


def check_loss(loss: Loss, labels: Any = None, *, seed: int = 0) -> None:
    """The scalar functions of a loss belong to each other, and so do the node's functions derived from them.

    Slopes are compared with differences of values, so a loss with a kink is looked at beside it, and its conjugate and
    the prox show whether the slopes that meet there are right.
    """
    rng = np.random.default_rng(seed)
    if labels is None:
        drawn = rng.normal(size=200)
        labels = drawn if loss.admits(drawn).all() else (drawn > 0).astype(float)
    y = rng.choice(np.asarray(labels, dtype=float), 200)
    loss.check_labels(y)
    z, step = rng.normal(scale=2.0, size=200), 1e-5
    if isinstance(loss, Kinked):
        low, high = loss.slopes(y)
        assert (low <= 0).all(), "slopes must not be positive below the kink: bounds rely on ℓ ≥ 0"
        assert (high >= 0).all(), "slopes must not be negative above the kink: bounds rely on ℓ ≥ 0"
        assert (low < high).all(), "a loss whose slopes are equal has no kink"
        z = np.where(np.abs(z - loss.kink(y)) < 2 * step, z + 4 * step, z)
    slope = loss.slope(z, y)
    numeric = (loss.value(z + step, y) - loss.value(z - step, y)) / (2 * step)
    assert_allclose(slope, numeric, atol=1e-7, rtol=1e-6, err_msg="slope is not the derivative of value")
    numeric = (loss.slope(z + step, y) - loss.slope(z - step, y)) / (2 * step)
    bend = loss.curvature(z, y)
    assert_allclose(bend, numeric, atol=1e-7, rtol=1e-6, err_msg="curvature is not the derivative of slope")
    assert (loss.value(z, y) >= 0).all(), "value is negative: bounds rely on ℓ ≥ 0"
    assert (bend >= 0).all(), "curvature is negative: the loss is not convex"
    assert (bend <= loss.most_curvature * (1 + 1e-12)).all(), "curvature exceeds most_curvature"
    assert_allclose(
        loss.value(z, y) + loss.conjugate(slope, y), z * slope, atol=1e-9, err_msg="conjugate does not fit value"
    )
    other = rng.permutation(slope)
    assert (loss.value(z, y) + loss.conjugate(other, y) >= z * other - 1e-9).all(), "conjugate is too small"
    assert (np.abs(z) <= loss.radius(loss.value(z, y), y) * (1 + 1e-9) + 1e-9).all(), "radius is too small"
    _check_bound_loss(loss, y, rng)


def _check_bound_loss(loss: Loss, y: Any, rng: np.random.Generator) -> None:
    sizes = [0, 1, 2, 3, 7]
    data = Data.from_nodes([(rng.normal(size=(m, 3)), y[:m]) if m else None for m in sizes])
    losses = loss.bind(data)
    w = rng.normal(size=(len(sizes), losses.width))
    tau = 10.0 ** rng.uniform(-2, 2, len(sizes))
    gradient = losses.gradient(w)
    for k in range(losses.width):
        shift = np.zeros_like(w)
        shift[:, k] = 1e-6
        numeric = (losses.value(w + shift) - losses.value(w - shift)) / 2e-6
        assert_allclose(gradient[:, k], numeric, atol=1e-6, rtol=1e-5, err_msg="gradient of the node's loss")
    best, dual = losses.prox_with_dual(w, tau)
    pull = losses.combine(dual) + losses.ridge * best + (best - w) / tau[:, None]
    scale = 1 + np.abs(gradient).max()
    assert_allclose(pull, 0, atol=1e-9 * scale, err_msg="prox is not a minimiser")
    # β_r belongs to the prediction z_r: equality in Fenchel–Young.
    product = losses.sum_rows(dual * losses.predict(best))
    data_term = losses.value(best) - 0.5 * (losses.ridge * best**2).sum(axis=1)
    assert_allclose(
        data_term + losses.conjugate(dual), product, atol=1e-9 * scale, err_msg="dual variables of the prox"
    )
    few = np.array([3, 0, 4])
    assert_allclose(losses.take(few).prox(w[few], tau[few]), best[few], rtol=1e-12, atol=1e-12, err_msg="take")
    assert (losses.gradient(w)[0] == 0).all(), "a node without data must have no loss"


def check_coupling(coupling: Coupling, *, seed: int = 0) -> None:
    """Value, conjugate, dual prox and radius of a coupling belong to each other, and what it declares holds."""
    rng = np.random.default_rng(seed)
    v = rng.normal(size=(200, 4)) * 10.0 ** rng.uniform(-2, 2, (200, 1))
    weights, sigma = 10.0 ** rng.uniform(-2, 2, (2, 200))
    assert_allclose(coupling.value(np.zeros((1, 4))), 0, err_msg="φ(0) must be 0")
    assert (coupling.value(v) >= 0).all(), "φ must not be negative"
    assert_allclose(coupling.value(v), coupling.value(-v), err_msg="φ must be even: edges have no direction")
    middle = coupling.value((v[:100] + v[100:]) / 2)
    assert (middle <= (coupling.value(v[:100]) + coupling.value(v[100:])) / 2 * (1 + 1e-9)).all(), "φ is not convex"
    u = coupling.dual_prox(v, sigma, weights)
    # Moreau: what the prox of the conjugate takes away is where u is a subgradient, with equality in Fenchel–Young.
    rest = (v - u) / sigma[:, None]
    cost = weights * coupling.conjugate(u / weights[:, None])
    product = (u * rest).sum(axis=1)
    assert_allclose(
        weights * coupling.value(rest) + cost, product, rtol=1e-8, atol=1e-8, err_msg="dual_prox is not a prox"
    )
    apart = rng.permutation(v)
    gap = weights * coupling.value(apart) + cost - (u * apart).sum(axis=1)
    assert (gap >= -1e-8 * (1 + np.abs(cost))).all(), "conjugate is too small"
    length = np.linalg.norm(v, axis=1)
    assert (length <= coupling.radius(coupling.value(v), 4) * (1 + 1e-9)).all(), "radius is too small"
    assert (coupling.dual_prox(v, sigma, np.zeros(200)) == 0).all(), "without weight no flow"
    _check_declared(coupling, v, sigma, weights, rng)


def _check_declared(coupling: Coupling, v: Floats, sigma: Floats, weights: Floats, rng: np.random.Generator) -> None:
    """What a coupling declares beyond the three functions holds, and what it has is declared."""
    kind = type(coupling)
    if coupling.is_quadratic:
        half = 0.5 * (v * coupling.slope(v)).sum(axis=1)
        assert_allclose(coupling.value(v), half, err_msg="slope is not the gradient of a quadratic φ")
    else:
        assert kind.slope is Coupling.slope, "slope is not used: declare is_quadratic = True"
    if coupling.has_derivative:
        along, small = rng.normal(size=v.shape), 1e-6
        ahead, behind = (coupling.dual_prox(v + sign * small * along, sigma, weights) for sign in (1, -1))
        answer = np.einsum("eij,ej->ei", coupling.dual_prox_derivative(v, sigma, weights), along)
        assert_allclose(answer, (ahead - behind) / (2 * small), atol=1e-6, err_msg="not the derivative of dual_prox")
    else:
        unused = "dual_prox_derivative is not used: declare has_derivative = True"
        assert kind.dual_prox_derivative is Coupling.dual_prox_derivative, unused


def check_algorithm(
    algorithm: Algorithm[Any],
    network: Network | None = None,
    *,
    rounds: int = 12,
    engine: Callable[[int, float], Engine] = InProcess,
) -> None:
    """An algorithm keeps the promises that let it run anywhere; so does an engine.

    With all nodes present, with half of the nodes, and with lost messages: the same answer and the same history on
    1 site, 7 sites and one site per node; the state of nodes that are away stays as it is; data are left alone, and so
    are states and the coordinator's memory, unless the algorithm declares that it steps in place; 12 rounds are 5
    rounds and 7 more, and the run that was continued stays as it was; an edgeless network is legal, or
    refused because it has no edges.

    Parameters
    ----------
    algorithm : Algorithm
        What is checked.
    network : Network, optional
        With test data; by default ``difficult_network()``.
    rounds : int
        Length of the runs, more than 5.
    engine : callable
        Makes an engine from a number of sites and a share of lost messages.
    """
    network = difficult_network() if network is None else network
    assert network.test is not None, "predictions are compared on test data: pass test= to the network"
    before = copy.deepcopy((network.data.X, network.data.y))
    for participation, lost in ((1.0, 0.0), (0.5, 0.0), (1.0, 0.2), (0.5, 0.2)):
        runs = [
            _short_run(network, algorithm, rounds, participation, engine(sites, lost))
            for sites in (1, 7, network.graph.node_count)
        ]
        for run in runs[1:]:
            _assert_same(runs[0], run, f"{participation:.0%} present, {lost:.0%} lost")
    _short_run(network, _watched(algorithm), 3, 0.5, InProcess(3))
    _short_run(network, _watched(algorithm), 3, 1.0, InProcess())
    assert_array_equal(before[0], network.data.X, "the algorithm changed the data")
    assert_array_equal(before[1], network.data.y, "the algorithm changed the data")
    _check_absent(network, algorithm, engine)
    _check_resumed(network, algorithm, rounds, engine)
    alone = network.with_graph(edgeless(network.graph.node_count, network.names))
    try:
        _short_run(alone, algorithm, 2, 1.0, engine(1, 0.0))
    except InputError as error:
        if "edges" not in str(error):
            raise AssertionError("an edgeless network must be legal, or refused because it has no edges") from error


def check_member(member: Any) -> None:
    """A member of the ensemble keeps the promises that the main job on tables relies on.

    With numbers, two classes and later times, as far as it supports them: it declares what it is called, what it needs
    to see and what is tuned; values to try are tuples of floats; predictions have the right shape and are finite
    wherever a node has training rows; they are the same when it is fitted again, and do not depend on targets of rows
    that are held out; ``fits``, ``predictions`` and ``final`` agree; what it has learnt can be saved and loaded.

    Parameters
    ----------
    member : Member or estimator
        What is checked: a member, or an estimator that ``members`` takes.

    >>> from sklearn.linear_model import Ridge
    >>> check_member(Ridge())
    """
    from kinfolk.tables.members.checking import check
    from kinfolk.tables.members.member import Member
    from kinfolk.tables.members.own import OwnEstimator

    member = member() if isinstance(member, type) else member
    check(member if isinstance(member, Member) else OwnEstimator(member))


def _short_run(network: Network, algorithm: Algorithm[Any], rounds: int, participation: Any, engine: Engine) -> Run:
    return fit(
        network, algorithm, rounds=rounds, stop=None, participation=participation, engine=engine, measure_every=3,
        progress=False,
    )  # fmt: skip


def _assert_same(one: Run, other: Run, when: str) -> None:
    numbers = [c for c in one.history.columns if not c.startswith("seconds")]
    assert_allclose(other.history[numbers], one.history[numbers], rtol=1e-9, atol=1e-12, err_msg=f"history, {when}")
    test = one.network.test
    assert test is not None
    first, second = (run.models.predict(test.X, test.owner) for run in (one, other))
    scale = 1.0 + np.nanmax(np.abs(first))
    assert_allclose(second, first, rtol=AGREEMENT, atol=AGREEMENT * scale, err_msg=f"predictions, {when}")


def _watched(algorithm: Algorithm[Any]) -> Algorithm[Any]:
    """The same algorithm, which fails if a step changes its state without declaring it, or combine its memory."""
    watched = copy.copy(algorithm)

    def step(site: Any, state: Any, inbox: Any, turn: Any) -> Any:
        given, received = _frozen(state), _frozen(_arrays_in(inbox))
        answer = algorithm.step(site, state, inbox, turn)
        same = algorithm.steps_in_place or given == _frozen(state)
        assert same, "a step changed the state it was given: copy it, or set steps_in_place = True"
        assert received == _frozen(_arrays_in(inbox)), "a step changed what it received, which others share: copy it"
        return answer

    object.__setattr__(watched, "step", step)
    if isinstance(algorithm, Coordinated):

        def combine(memory: Any, outbox: Any, turn: Any) -> Any:
            before = spec_of(memory)
            answer = algorithm.combine(memory, outbox, turn)
            assert before == spec_of(memory), "combine changed the memory it was given: return a new one"
            return answer

        object.__setattr__(watched, "combine", combine)
    return watched


def _arrays_in(inbox: Inbox) -> list[Any]:
    return [rows for part in (inbox.neighbours, inbox.to_all, inbox.to_each) for rows in part.values()]


def _frozen(arrays: Iterable[Any]) -> bytes:
    """Arrays as bytes, to see whether they change."""
    return pickle.dumps([np.asarray(values) for values in arrays])


def _check_absent(network: Network, algorithm: Algorithm[Any], engine: Callable[[int, float], Engine]) -> None:
    """Nodes that are never present after round 0 keep their state."""
    names = list(network.names)
    away = np.arange(0, len(names), 2)
    present = [names[k] for k in range(1, len(names), 2)]
    options: dict[str, Any] = {"stop": None, "engine": engine(3, 0.0), "progress": False}
    began = fit(network, algorithm, rounds=0, **options)
    ended = fit(network, algorithm, rounds=4, start=began, participation=lambda _: present, **options)
    for name, axis in axes_of(began.state).items():
        if axis == "node":
            before, after = (getattr(run.state, name)[away] for run in (began, ended))
            assert_array_equal(before, after, f"the field {name!r} of absent nodes changed")


def _check_resumed(
    network: Network, algorithm: Algorithm[Any], rounds: int, engine: Callable[[int, float], Engine]
) -> None:
    options: dict[str, Any] = {"stop": None, "participation": 0.5, "progress": False}
    straight = fit(network, algorithm, rounds=rounds, engine=engine(1, 0.0), **options)
    part = fit(network, algorithm, rounds=5, engine=engine(4, 0.0), **options)
    before = copy.deepcopy(part.state), spec_of(part.snapshot.memory)
    for sites in (2, 1):
        resumed = fit(network, algorithm, rounds=rounds - 5, start=part, engine=engine(sites, 0.0), **options)
        assert list(resumed.history.index) == list(straight.history.index), "going on adds rows to the history"
        _assert_same(straight, resumed, "resumed")
    for name, value in before[0]._asdict().items():
        if np.asarray(value).dtype.kind != "O":
            assert_array_equal(getattr(part.state, name), value, "going on from a run changed that run")
    assert before[1] == spec_of(part.snapshot.memory), "going on from a run changed its memory"
