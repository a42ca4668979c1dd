"""Members of the blend that need sums or neighbours: fitted across sites, for all parts and values at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from kinfolk.algorithms import GTVMin
from kinfolk.algorithms.newton import LARGEST_WIDTH, Newton
from kinfolk.engine.fit import Tolerance
from kinfolk.federation.coordinator import Federation, LaneFit
from kinfolk.federation.tables.asking import Sites
from kinfolk.federation.tables.preparing import Ready
from kinfolk.federation.tables.site_tied import POINTS
from kinfolk.network.graph import Graph
from kinfolk.objective.couplings import SquaredNorm
from kinfolk.objective.losses import Kinked, Loss, Squared
from kinfolk.objective.symmetric import solve_symmetric
from kinfolk.similarity import DeviationDistance
from kinfolk.similarity.joining import joined
from kinfolk.tables.families import mean_degree, smooth_lams, tailored_ridge
from kinfolk.tables.graph_source import control_graph
from kinfolk.tables.members.boosted import FOR_ALL, OWN, SITE_BOOSTED, SITE_TIED, leaves_for, plans
from kinfolk.tables.members.member import Value
from kinfolk.tables.members.scores import loss_of
from kinfolk.tables.members.slopes import (
    ACCURACY,
    HALVINGS,
    HARDLY,
    INTERCEPT_STRENGTHS,
    SLOPE_STRENGTHS,
    STEPS,
    Reduced,
    common_step,
    strengths_of,
)
from kinfolk.tables.study import moved_graph, shuffled_order
from kinfolk.typing import Bools, Floats, Ints

NEWTON_STEPS, NEWTON_ACCURACY = 60, 1e-10
NEWTON_PARTS = tuple(0.4 ** np.arange(1.0, 13.0))  # of a step that are tried where it is too long
ROUNDINGS = (0.3, 0.1, 0.03, 0.01, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5)  # of kinks, in deviations of the target, in turn
EXACT, MOST_ROUNDS = 1e-7, 10_000
FINE, CLOSE = 1e-6, 1e-5  # by rounds of GTVMin: as in the answer of one table, and for candidates
MEASURE_EVERY = 5  # rounds, then
TIED_LEAVES, TIED_ROUNDS, TIED_LAMS = (4.0, 15.0), (30.0, 100.0), (0.1, 1.0)  # of trees that sites compare
TURNS = 3  # in which sites learn from what the others predict
SLOPES = tuple((mu0, mu1) for mu0 in INTERCEPT_STRENGTHS for mu1 in SLOPE_STRENGTHS)


@dataclass(frozen=True, eq=False)
class Validated:
    """How a member did on rows that it had not seen, at all sites together."""

    name: str
    values: Sequence[Value]
    errors: Floats  # (values, folds) mean losses
    shares: Floats  # (folds,)

    @classmethod
    def of(cls, ready: Ready, name: str, values: Sequence[Value], losses: Floats) -> Validated:
        """From sums of losses over rows (values, folds)."""
        return cls(name, list(values), losses / ready.held, ready.shares)

    @cached_property
    def means(self) -> Floats:
        """(values,) mean losses."""
        return np.asarray(np.where(np.isnan(self.errors), np.inf, self.errors) @ self.shares)

    @property
    def best(self) -> int:
        """The number of the value with the smallest error."""
        return int(np.argmin(self.means))

    @property
    def value(self) -> Value:
        """The value with the smallest error."""
        return self.values[self.best]

    @property
    def error(self) -> float:
        """The smallest error."""
        return float(self.means[self.best])


# ---------------------------------------------------------------------- one model for all


def pooled_models(sites: Sites, ready: Ready, ridges: Sequence[float], without: Sequence[int]) -> Floats:
    """One model for all, for every part and ridge term (parts, ridges, scores, width), by Newton's method on sums.

    For squared errors one exchange gives all of them. ``without``: features whose coefficients stay zero.
    """
    shape = ready.folds + 1, len(ridges), ready.target.outputs, ready.width
    free = np.setdiff1d(np.arange(ready.width), list(without))
    part, ridge, score = (each.ravel() for each in np.indices(shape[:3]))
    penalty = np.asarray(ridges)[ridge][:, None] * np.r_[np.ones(ready.width - 1), 0.0]
    w, loss = np.zeros((len(part), ready.width)), loss_of(ready.target)
    if isinstance(loss, Squared):
        parts = np.arange(shape[0])
        found = sites.total(
            "derivatives", w=np.zeros((shape[0], ready.width)), part=parts, score=np.zeros_like(parts), rounding=0.0
        )
        w[:, free] = _step({name: each[part] for name, each in found.items()}, penalty, w, free)
    else:
        for rounding in ROUNDINGS if isinstance(loss, Kinked) else (0.0,):
            w = _newton(sites, Fits(part, score, rounding), penalty, w, free)
    return w.reshape(shape)


class Fits(NamedTuple):
    """What some models are fitted to."""

    part: Ints  # (fits,)
    score: Ints  # (fits,)
    rounding: float  # how widely kinks of the loss are rounded

    def derivatives(self, sites: Sites, w: Floats, some: Ints) -> dict[str, Any]:
        """Sums over the rows of all sites, of some of the fits."""
        return sites.total("derivatives", w=w, part=self.part[some], score=self.score[some], rounding=self.rounding)


def _step(found: Mapping[str, Any], penalty: Floats, w: Floats, free: Ints) -> Floats:
    """Newton's step of the free coefficients."""
    hessian = found["hessian"] + penalty[:, :, None] * np.eye(w.shape[1])
    gradient = found["gradient"] + penalty * w
    return np.asarray(-solve_symmetric(hessian[:, free][:, :, free], gradient[:, free]))


def _tried(
    sites: Sites, fits: Fits, penalty: Floats, w: Floats, step: Floats, some: Ints, sizes: Sequence[float] = (1.0,)
) -> tuple[Floats, dict[str, Any], Floats]:
    """Some fits after the best of several parts of a step: parameters, derivatives, and objectives."""
    at = np.concatenate([w[some] + size * step for size in sizes])
    again = np.tile(some, len(sizes))
    found = fits.derivatives(sites, at, again)
    heights = (found["loss"] + 0.5 * (penalty[again] * at**2).sum(axis=1)).reshape(len(sizes), len(some))
    best = np.argmin(heights, axis=0) * len(some) + np.arange(len(some))
    return at[best], {name: np.array(each[best]) for name, each in found.items()}, heights.min(axis=0)


def _newton(sites: Sites, fits: Fits, penalty: Floats, w: Floats, free: Ints) -> Floats:
    """All fits at the same time; where the loss has not fallen after a step, the best of several parts of it counts."""
    w, left = w.copy(), np.arange(len(w))
    found = fits.derivatives(sites, w, left)
    height = found["loss"] + 0.5 * (penalty * w**2).sum(axis=1)
    goal = NEWTON_ACCURACY * np.linalg.norm(found["gradient"][:, free], axis=1)
    for _ in range(NEWTON_STEPS):
        step = np.zeros((len(left), w.shape[1]))
        step[:, free] = _step(found, penalty[left], w[left], free)
        at, found, after = _tried(sites, fits, penalty, w, step, left)
        highest = height[left] + 1e-12 * np.abs(height[left])
        short = np.flatnonzero(after > highest)
        if len(short):
            at[short], lower, after[short] = _tried(sites, fits, penalty, w, step[short], left[short], NEWTON_PARTS)
            for name, each in found.items():
                each[short] = lower[name]
        falls = after <= highest
        w[left[falls]], height[left[falls]] = at[falls], after[falls]
        gradient = found["gradient"] + penalty[left] * at
        rough = falls & (np.linalg.norm(gradient[:, free], axis=1) > goal[left])
        left, found = left[rough], {name: each[rough] for name, each in found.items()}
        if not len(left):
            break
    return w


# ---------------------------------------------------------------------- random slopes


def slopes(sites: Sites, ready: Ready, ridge: float) -> Validated:
    """Random intercepts and slopes, for every part and pair of strengths."""
    values = [HARDLY, *SLOPES]
    each = [strengths_of(value, ridge, ready.width - 1) for value in values]
    w0 = np.zeros((ready.folds + 1, len(values), ready.target.outputs, ready.width))
    found = sites.total("slopes begin", strengths=np.array(values), ridge=ridge)

    def drawn(at: Floats) -> Floats:
        return np.stack([0.5 * (at[:, k] ** 2 @ strengths.common) for k, strengths in enumerate(each)], axis=1)

    def steps(found: Mapping[str, Any], left: Bools) -> Floats:
        out = np.zeros_like(w0)
        for cell in map(tuple, np.argwhere(left).tolist()):
            out[cell] = common_step(Reduced(found["common"][cell], found["pull"][cell]), each[cell[1]], w0[cell])
        return out

    height = found["height"] + drawn(w0)
    left: Bools = np.ones(w0.shape[:3], dtype=bool)
    step = steps(found, left)
    if isinstance(loss_of(ready.target), Squared):
        sites.total("slopes move", step=step, size=np.ones(w0.shape[:3]), back=np.zeros_like(left))
        return Validated.of(ready, "slopes", values, sites.total("slopes end")["losses"])

    def moved(size: Floats, back: Bools) -> dict[str, Any]:
        found = sites.total("slopes move", step=step, size=size, back=back)
        return {**found, "height": found["height"] + drawn(w0 + size[..., None] * step)}

    for _ in range(STEPS):
        highest, size = height + 1e-12 * np.abs(height), np.where(left, 1.0, 0.0)
        found = moved(size, np.zeros_like(left))
        short = left & (found["height"] > highest)
        if short.any():  # back, and as far as the objective falls
            sizes: Floats = 0.5 ** np.arange(1.0, HALVINGS)
            lower = sites.total("slopes try", step=step, sizes=sizes, left=short)["height"]
            lower = lower + np.stack([drawn(w0 + part * step) for part in sizes])
            first, falls = np.argmax(lower <= highest, axis=0), (lower <= highest).any(axis=0)
            part = np.where(short & falls, sizes[first], 0.0)
            again = moved(part, short)
            found = {
                name: np.where(short.reshape(short.shape + (1,) * (each.ndim - 3)), again[name], each)
                for name, each in found.items()
            }
            size = np.where(short, part, size)
        after = np.where(size > 0, found["height"], height)
        w0 = w0 + size[..., None] * step
        rest = height - after > ACCURACY * (1e-3 + np.abs(after)) / max(ready.node_count, 1)
        left, height = left & rest & (size > 0), after
        if not left.any():
            break
        step = np.where(left[..., None], steps(found, left), 0.0)
    return Validated.of(ready, "slopes", values, sites.total("slopes end")["losses"])


# ---------------------------------------------------------------------- trees of sites


def boosted(sites: Sites, ready: Ready, base: Floats, slopes: int) -> Validated:
    """Trees of every site on what linear models leave of its rows; leaves and rounds are the same for all sites.

    ``base``: one model for all, by part; ``slopes``: the best value of random slopes if trees may stand on them, or −1.
    """
    largest = max(int(ready.train_rows[mine].sum()) for mine in ready.numbers)
    bases = (FOR_ALL,) if slopes < 0 or len(ready.target.classes) > 2 else (FOR_ALL, OWN)
    values = plans(bases, bool(ready.trend), leaves_for(largest))
    found = sites.total("boosted", base=base, slopes=slopes, values=np.array(values))
    return Validated.of(ready, SITE_BOOSTED, values, found["losses"])


def tied(sites: Sites, ready: Ready, base: Floats, slopes: int) -> Validated:
    """Trees of every site, drawn towards those of the others; arguments as for ``boosted``."""
    values = list(product(TIED_LEAVES, TIED_ROUNDS, TIED_LAMS))
    sites.sizes |= {"points": POINTS}
    found = sites.total("tied begin", base=base, slopes=slopes, values=np.array(values))
    for _ in range(TURNS):
        found = sites.total("tied step", total=found["predicted"], speaking=found["speaking"])
    return Validated.of(ready, SITE_TIED, values, sites.total("tied end")["losses"])


# ---------------------------------------------------------------------- models on graphs


@dataclass(frozen=True, eq=False)
class Graphs:
    """The graphs of a member, one for every part."""

    name: str
    of_parts: Sequence[Graph]

    @property
    def whole(self) -> Graph:
        """That of all training rows."""
        return self.of_parts[-1]


def graphs_of(sites: Sites, ready: Ready) -> list[Graphs]:
    """The graphs of tailored models, and the wide one where there are places."""
    known = ready.source.known
    near = [known] * (ready.folds + 1) if known is not None else _kin(sites, ready)
    wide = [] if ready.wide is None else [Graphs("wide", [ready.wide] * (ready.folds + 1))]
    return [Graphs("tailored", near), *wide]


def _kin(sites: Sites, ready: Ready) -> list[Graph]:
    """Each node with those whose own models are most similar, found from what the models of nodes differ by."""
    measure = DeviationDistance(len(ready.target.classes))
    sums = sites.total("kin sums")
    pooled = np.stack([measure.pooled(*each) for each in zip(sums["gram"], sums["products"], strict=True)])
    told = [np.moveaxis(each.arrays["deviations"], 1, 2) for each in sites.ask("kin", pooled=pooled)]
    places = np.moveaxis(ready.by_node(told), 2, 1)
    neighbours = ready.source.origin.neighbours
    return [joined(each, measure.metric, neighbours, "median", ready.names, type(measure).__name__) for each in places]


def shuffled(graphs: Sequence[Graphs], ready: Ready) -> list[Graphs] | None:
    """The control: random graphs with the same degrees, and other nodes at every place; None if there is no other."""
    order, seed, out = shuffled_order(ready.node_count, ready.settings.seed), ready.settings.seed, []
    for each in graphs:
        if each.name == "wide":
            drawn: list[Graph | None] = [moved_graph(graph, order) for graph in each.of_parts]
        else:
            drawn = [control_graph(graph, seed) for graph in each.of_parts]
        known = [graph for graph in drawn if graph is not None]
        if len(known) < len(drawn):
            return None
        out.append(Graphs(each.name, known))
    return out


class Tailored:
    """GTV minimisation on graphs: λ to choose from, and fits in lanes."""

    def __init__(
        self, sites: Sites, ready: Ready, federation: Federation, common: Floats, pooled: float, alone: float
    ) -> None:  # fmt: skip
        self.sites, self.ready, self.federation = sites, ready, federation
        self.common_models = common  # (parts, scores, width) one model for all, with the ridge term ``pooled``
        self.ridge = tailored_ridge(pooled, ready.node_count, alone)
        traces = ready.by_node([told.arrays["trace"] for told in sites.ask("traces", ridge=self.ridge)])
        self.traces = traces[ready.train_rows > 0]
        self.lanes = 0
        self.exchanges = 0

    @property
    def loss(self) -> Loss:
        """The loss of a node."""
        return replace(loss_of(self.ready.target), ridge=self.ridge)

    def lams(self, graph: Graph, near: Graph) -> list[float]:
        """λ to choose from; one that is given is meant for the graph ``near``."""
        settings, rows = self.ready.settings, int(self.ready.train_rows.sum())
        if settings.lam != "auto":
            return [float(settings.lam) * mean_degree(near) / mean_degree(graph)]
        return smooth_lams(self.traces, self.ready.width, mean_degree(graph), rows)

    def algorithm(self, lam: float, part: int, score: int) -> Newton | GTVMin:
        """The algorithm for a λ: few exchanges, from the model of all; or rounds, which have less to compute."""
        if self._by_newton:
            common = not self.sites.secure  # its sums are read site by site
            return Newton(self.loss, lam, EXACT, common, tuple(self.common_models[part, score].tolist()))
        return GTVMin(self.loss, SquaredNorm(), lam)

    def validate(self, wanted: Sequence[tuple[str, Graphs, Sequence[float]]]) -> list[Validated]:
        """Fit several members with all their values of λ on all parts but the last, and let them predict the rest."""
        fits: list[LaneFit] = []
        cells = []
        for name, graphs, lams in wanted:
            for fold, (k, lam), score in product(range(self.ready.folds), enumerate(lams), self._scores):
                cells.append((name, k, fold, score, len(fits)))
                fits.append(self._fit(graphs.of_parts[fold], lam, fold, score))
        self._made(fits, CLOSE)
        out = []
        for name, _, lams in wanted:
            mine = np.array([cell[1:] for cell in cells if cell[0] == name])
            value, part, score, lane = mine.T
            found = self.sites.total("score", {"name": name}, value=value, part=part, score=score, lane=lane)
            out.append(Validated.of(self.ready, name, [(lam,) for lam in lams], found["losses"]))
        return out

    @property
    def _scores(self) -> range:
        return range(self.ready.target.outputs)

    @property
    def _by_newton(self) -> bool:
        """Whether losses have curvatures, and features are few enough for matrices of every node."""
        return self.ready.width <= LARGEST_WIDTH and not isinstance(self.loss, Kinked)

    def _fit(self, graph: Graph, lam: float, part: int, score: int) -> LaneFit:
        number = part * len(self._scores) + score
        return LaneFit(self.algorithm(lam, part, score), graph, self.ready.part_rows[part] > 0, number)

    def final(self, wanted: Sequence[tuple[str, Graphs, float]]) -> Ints:
        """Fit members with their best λ to all training rows; the lanes, those of all scores of each in turn."""
        whole = self.ready.folds
        fits = [self._fit(graphs.whole, lam, whole, score) for _, graphs, lam in wanted for score in self._scores]
        self._made(fits, FINE)
        return np.arange(len(fits))

    def _made(self, fits: Sequence[LaneFit], accuracy: float) -> None:
        stop = Tolerance(EXACT if self._by_newton else accuracy, None)
        every = 1 if self._by_newton else MEASURE_EVERY
        options = {"rounds": MOST_ROUNDS, "stop": stop, "measure_every": every}
        found = self.federation.fit_lanes(fits, run=self.sites.named_run(), **options)
        self.lanes += len(fits)
        self.exchanges += found.exchanges
