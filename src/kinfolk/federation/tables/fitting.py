"""Members of the blend that need sums or neighbours: fitted across sites, for all parts and values at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from kinfolk.algorithms import GTVMin
from kinfolk.algorithms.newton import LARGEST_WIDTH, Newton
from kinfolk.engine.fit import Tolerance
from kinfolk.federation.coordinator import Federation, LaneFit
from kinfolk.federation.tables.asking import Sites
from kinfolk.federation.tables.preparing import Ready
from kinfolk.network.graph import Graph
from kinfolk.objective.couplings import SquaredNorm
from kinfolk.objective.local_losses import solve_symmetric
from kinfolk.objective.losses import Loss, Squared
from kinfolk.similarity import DeviationDistance
from kinfolk.similarity.joining import joined
from kinfolk.tables.families import mean_degree, smooth_lams, tailored_ridge
from kinfolk.tables.graph_source import control_graph
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

NEWTON_STEPS, NEWTON_ACCURACY, NEWTON_HALVINGS = 60, 1e-10, 30
EXACT, MOST_ROUNDS = 1e-7, 10_000
FINE, CLOSE = 1e-6, 1e-5  # with many features: as in the answer of one table, and for candidates
MEASURE_EVERY = 5  # rounds, then
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
    """One model for all, for every part and ridge term (parts, ridges, width), by Newton's method on sums.

    For squared errors one exchange gives all of them. ``without``: features whose coefficients stay zero.
    """
    parts, count, width = ready.folds + 1, len(ridges), ready.width
    free = np.setdiff1d(np.arange(width), list(without))
    penalty = np.tile(np.asarray(ridges)[:, None] * np.r_[np.ones(width - 1), 0.0], (parts, 1))
    part = np.repeat(np.arange(parts), count)
    w = np.zeros((parts * count, width))
    if isinstance(loss_of(ready.target), Squared):
        found = sites.total("derivatives", w=np.zeros((parts, width)), part=np.arange(parts))
        found = {name: each[part] for name, each in found.items()}
        w[:, free] = _step(found, penalty, w, free)
    else:
        w = _newton(sites, part, penalty, w, free)
    return w.reshape(parts, count, width)


def _step(found: Mapping[str, Any], penalty: Floats, w: Floats, free: Ints) -> Floats:
    """Newton's step of the free coefficients."""
    hessian = found["hessian"] + penalty[:, :, None] * np.eye(w.shape[1])
    gradient = found["gradient"] + penalty * w
    return np.asarray(-solve_symmetric(hessian[:, free][:, :, free], gradient[:, free]))


def _newton(sites: Sites, part: Ints, penalty: Floats, w: Floats, free: Ints) -> Floats:
    """All fits at the same time; a step is halved where the loss has not fallen."""
    w = w.copy()
    found = sites.total("derivatives", w=w, part=part)
    goal = NEWTON_ACCURACY * np.linalg.norm(found["gradient"][:, free], axis=1)
    left = np.arange(len(w))
    step = np.zeros_like(w)
    step[:, free] = _step(found, penalty, w, free)
    size = np.ones(len(w))
    height = found["loss"] + 0.5 * (penalty * w**2).sum(axis=1)
    for _ in range(NEWTON_STEPS):
        tried = w[left] + size[left, None] * step[left]
        found = sites.total("derivatives", w=tried, part=part[left])
        after = found["loss"] + 0.5 * (penalty[left] * tried**2).sum(axis=1)
        falls = after <= height[left] + 1e-12 * np.abs(height[left])
        size[left[~falls]] /= 2
        kept = left[falls]
        w[kept], height[kept], size[kept] = tried[falls], after[falls], 1.0
        gradient = found["gradient"] + penalty[left] * tried
        step[np.ix_(kept, free)] = _step({n: e[falls] for n, e in found.items()}, penalty[kept], w[kept], free)
        rough = ~falls | (np.linalg.norm(gradient[:, free], axis=1) > goal[left])
        left = left[rough & (size[left] > 0.5**NEWTON_HALVINGS)]
        if not len(left):
            break
    return w


# ---------------------------------------------------------------------- random slopes


def slopes(sites: Sites, ready: Ready, ridge: float) -> Validated:
    """Random intercepts and slopes, for every part and pair of strengths."""
    values = [HARDLY, *SLOPES]
    each = [strengths_of(value, ridge, ready.width - 1) for value in values]
    w0 = np.zeros((ready.folds + 1, len(values), ready.width))
    found = sites.total("slopes begin", strengths=np.array(values), ridge=ridge)

    def drawn(at: Floats) -> Floats:
        return np.array([0.5 * (at[:, k] ** 2 @ strengths.common) for k, strengths in enumerate(each)]).T

    def steps(found: Mapping[str, Any], left: Bools) -> Floats:
        out = np.zeros_like(w0)
        for part, k in np.argwhere(left):
            reduced = Reduced(found["common"][part, k], found["pull"][part, k])
            out[part, k] = common_step(reduced, each[k], w0[part, k])
        return out

    height = found["height"] + drawn(w0)
    left: Bools = np.ones(w0.shape[:2], dtype=bool)
    step = steps(found, left)
    if isinstance(loss_of(ready.target), Squared):
        sites.total("slopes move", step=step, size=np.ones(w0.shape[:2]))
        return Validated.of(ready, "slopes", values, sites.total("slopes end")["losses"])

    def tried(sizes: Floats, left: Bools) -> Floats:
        found = sites.total("slopes try", step=step, sizes=sizes, left=left)["height"]
        return np.asarray(found + np.stack([drawn(w0 + size * step) for size in sizes]))

    for _ in range(STEPS):
        highest = height + 1e-12 * np.abs(height)
        after = tried(np.ones(1), left)[0]
        size = np.where(left & (after <= highest), 1.0, 0.0)
        short = left & (size == 0)
        if short.any():
            sizes: Floats = 0.5 ** np.arange(1.0, HALVINGS)
            lower = tried(sizes, short)
            first = np.argmax(lower <= highest, axis=0)
            found_one = short & (lower <= highest).any(axis=0)
            size = np.where(found_one, sizes[first], size)
            after = np.where(found_one, np.take_along_axis(lower, first[None], axis=0)[0], after)
        after = np.where(size > 0, after, height)
        found = sites.total("slopes move", step=step, size=size)
        w0 = w0 + size[:, :, None] * step
        rest = height - after > ACCURACY * (1e-3 + np.abs(after)) / max(ready.node_count, 1)
        left, height = left & rest & (size > 0), after
        if not left.any():
            break
        step = np.where(left[:, :, None], steps(found, left), 0.0)
    return Validated.of(ready, "slopes", values, sites.total("slopes end")["losses"])


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
        self.common_models = common  # (parts, width) one model for all, with the ridge term ``pooled``
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

    def algorithm(self, lam: float, part: int) -> Newton | GTVMin:
        """The algorithm for a λ: few exchanges, from the model of all; or, for many features, less to compute."""
        if self.ready.width <= LARGEST_WIDTH:
            common = not self.sites.secure  # its sums are read site by site
            return Newton(self.loss, lam, EXACT, common, tuple(self.common_models[part].tolist()))
        return GTVMin(self.loss, SquaredNorm(), lam)

    def validate(self, wanted: Sequence[tuple[str, Graphs, Sequence[float]]]) -> list[Validated]:
        """Fit several members with all their values of λ on all parts but the last, and let them predict the rest."""
        fits: list[LaneFit] = []
        cells = []
        for name, graphs, lams in wanted:
            for fold in range(self.ready.folds):
                for k, lam in enumerate(lams):
                    cells.append((name, k, fold, len(fits)))
                    fits.append(self._fit(graphs.of_parts[fold], lam, fold))
        self._made(fits, CLOSE)
        out = []
        for name, _, lams in wanted:
            mine = np.array([cell[1:] for cell in cells if cell[0] == name])
            found = self.sites.total("score", {"name": name}, value=mine[:, 0], part=mine[:, 1], lane=mine[:, 2])
            out.append(Validated.of(self.ready, name, [(lam,) for lam in lams], found["losses"]))
        return out

    def _fit(self, graph: Graph, lam: float, part: int) -> LaneFit:
        return LaneFit(self.algorithm(lam, part), graph, self.ready.part_rows[part] > 0, part)

    def final(self, wanted: Sequence[tuple[str, Graphs, float]]) -> None:
        """Fit members with their best λ to all training rows; the lanes are in this order."""
        whole = self.ready.folds
        self._made([self._fit(graphs.whole, lam, whole) for _, graphs, lam in wanted], FINE)

    def _made(self, fits: Sequence[LaneFit], accuracy: float) -> None:
        quick = self.ready.width <= LARGEST_WIDTH
        stop = Tolerance(EXACT if quick else accuracy, None)
        options = {"rounds": MOST_ROUNDS, "stop": stop, "measure_every": 1 if quick else MEASURE_EVERY}
        found = self.federation.fit_lanes(fits, run=self.sites.named_run(), **options)
        self.lanes += len(fits)
        self.exchanges += found.exchanges
