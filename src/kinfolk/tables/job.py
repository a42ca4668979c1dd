"""The main job: from encoded rows to tuned members, ensemble weights, prediction intervals and errors of test rows.

It is a program over parties, step by step in this file: a table is one party whose rows are here; organisations that
may not pool their rows are several, elsewhere. The job itself has no rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from kinfolk.network.graph import Graph
from kinfolk.similarity import DeviationDistance
from kinfolk.similarity.joining import joined
from kinfolk.tables.blend import weights_of_costs, weights_of_products
from kinfolk.tables.cross_validation import CrossValidation, Kept, Validation
from kinfolk.tables.design import Design, without_trend
from kinfolk.tables.families import (
    RELAX_ROUNDS,
    SMOOTH_METHODS,
    Candidate,
    PooledFit,
    mean_degree,
    smooth_candidate,
    smooth_lams,
    tailored_ridge,
)
from kinfolk.tables.graph_source import control_graph
from kinfolk.tables.held_out import TestErrors
from kinfolk.tables.intervals import Moments, Scales, TimeSums, quantiles, widened
from kinfolk.tables.joint import pooled_models
from kinfolk.tables.levels import Growth, Level
from kinfolk.tables.members import members_of
from kinfolk.tables.members.graph_member import GraphMember, outputs, tuned_together
from kinfolk.tables.members.member import Member
from kinfolk.tables.members.pooled import PooledModel
from kinfolk.tables.members.scores import loss_of
from kinfolk.tables.party import Answer, Call, Finish, Gram, OneParty, Parties, Party, Scene, Widths
from kinfolk.typing import Floats, Ints

FEW_RESIDUALS = 10  # fewer give no intervals
RANDOM_AS_GOOD = "a random graph does as well"
BARE = "pooled without trend"
UNKNOWN = -1.0  # the typical error, before it has been asked for


@dataclass(frozen=True, eq=False)
class Tuning:
    """What cross-validation has chosen."""

    cv: CrossValidation
    alone: Validation
    tailored: GraphMember
    control: dict[str, Validation]  # members on a random graph, by the name of the member
    left_out: dict[str, str]  # members that are skipped, and why
    weights: dict[str, float]  # of the ensemble
    control_weights: dict[str, float] = field(default_factory=dict)  # of the ensemble on a random graph

    @property
    def design(self) -> Design:
        """What is learnt from."""
        return self.cv.design

    @property
    def validations(self) -> dict[str, Validation]:
        """Of the pooled model and of members."""
        return self.cv.found

    def chosen(self) -> dict[str, int]:
        """The value of everything that is compared, by number: members, local models, members on a random graph."""
        found = {name: each.best for name, each in self.validations.items()}
        found.setdefault(self.alone.name, self.alone.best)
        return found | {each.name: each.best for each in self.control.values()}

    def finish(self) -> Finish:
        """What is compared on the test rows."""
        control = {
            (self.control[name].name if name in self.control else name): weight
            for name, weight in self.control_weights.items()
        }
        return Finish(self.chosen(), self.weights, control)


# ---------------------------------------------------------------------- tuning


def tune(
    parties: Parties, design: Design, kept: Mapping[str, Kept] | None = None, members: Sequence[str] = ()
) -> Tuning:
    """Let every member predict parts of the training rows from the others; test rows play no part.

    Parameters
    ----------
    parties : Parties
        Who has the rows.
    design : Design
        What is learnt from.
    kept : mapping of str to Kept, optional
        The choices of a run before, which are kept: nothing is cross-validated, and there is no control.
    members : sequence of str
        The members that the ensemble is made of; by default those of the settings, or all that apply.
    """
    cv = CrossValidation(design, parties, kept or {})
    sums = _with_pooled(cv)
    party, design = cv.parties.single, cv.design
    alone = cv.validate(GraphMember(design.family.baselines()[1]))
    cv.scene = _scene(cv, sums.total)
    if party is not None:
        party.scene = cv.scene
    traces = design.by_node([each.trace for each in sums.each])
    tailored = GraphMember(_tailored(cv, alone, traces))
    degree = mean_degree(cv.scene.graphs[-1])
    wanted, left_out = members_of(design, tailored, degree, several=party is None, named=members)
    _tune_members(cv, wanted, alone)
    by_similarity = design.source.origin.kind == "similarity"
    compared = not kept and (by_similarity or bool(design.test_rows.any()))
    control = _control(cv) if compared else {}
    if by_similarity and "tailored" in control and not cv.found["tailored"].error < control["tailored"].error:
        left_out["tailored"] = RANDOM_AS_GOOD
    tuning = Tuning(cv, alone, tailored, control, left_out, {})
    return tuning if kept else _weighted(tuning, members)


def _with_pooled(cv: CrossValidation) -> Answer[Gram]:
    """The pooled model, with or without features that grow with time, whichever suits it better.

    From sums of products; those that go with it are returned.
    """
    design = cv.design
    if not design.family.linear:
        _pooled_from_rows(cv)
        return cv.parties.ask(Call(Party.moments))[0]
    sums, member = cv.parties.ask(Call(Party.moments))[0], PooledModel()
    ridges = [cv.kept["pooled"].values[-1][0]] if "pooled" in cv.kept else design.family.ridges
    values = [(ridge,) for ridge in ridges]
    tried = {"pooled": pooled_models(cv.parties, design, sums.total, ridges)}
    if design.trend:
        tried[BARE] = pooled_models(cv.parties, design, sums.total, ridges, design.trend)
    calls = [Call(Party.validate, name=name, values=values, models=models) for name, models in tried.items()]
    answers = cv.parties.ask(*calls)
    found = {name: cv.judged(member, answer, values) for name, answer in zip(tried, answers, strict=True)}
    cv.found["pooled"], cv.pooled_models = found["pooled"], tried["pooled"]
    if BARE not in found or not found[BARE].error < found["pooled"].error:
        return sums
    cv.found["pooled"], cv.pooled_models, cv.design = found[BARE], tried[BARE], without_trend(design)
    again = Call(Party.validate, name="pooled", values=values, models=tried[BARE])
    return cv.parties.ask(Call(Party.moments, without=list(design.trend)), again)[0]


def _pooled_from_rows(cv: CrossValidation) -> None:
    """The pooled model of a family that is not linear."""
    member, with_trend = GraphMember(cv.design.family.baselines()[0]), cv.parties
    found = cv.validate(member)
    if cv.design.trend:
        cv.parties = OneParty(with_trend.single.without_trend())
        bare = cv.validate(member)
        if bare.error < found.error:
            found, cv.design = bare, without_trend(cv.design)
        else:
            cv.parties = with_trend
    cv.found["pooled"] = found


def _scene(cv: CrossValidation, gram: Gram) -> Scene:
    """Which nodes may be kin: as is known, or those whose own models differ alike from the pooled one."""
    design, known = cv.design, cv.design.source.known
    if known is not None:
        return Scene([known] * (design.folds + 1), design.wide, design.places)
    measure = DeviationDistance(len(design.target.classes))
    pooled = np.stack([measure.pooled(*each) for each in zip(*gram[:2], strict=True)])
    answers = cv.parties.each(Call(Party.deviations, pooled=pooled))
    places = np.moveaxis(design.by_node([np.moveaxis(each.deviations, 1, 2) for each in answers]), 2, 1)
    k, name = design.source.origin.neighbours, type(measure).__name__
    similar = [joined(each, measure.metric, k, "median", design.names, name) for each in places]
    return Scene(similar, design.wide, design.places)


def _tailored(cv: CrossValidation, alone: Validation, traces: Floats) -> Candidate:
    """The method that is asked for, with the ridge terms that suit the baselines, and λ to choose from."""
    design, settings, pooled = cv.design, cv.design.settings, cv.found["pooled"]
    graph, has_rows = cv.scene.graphs[-1], design.train_rows > 0
    if design.family.linear and settings.method in SMOOTH_METHODS:
        ridge = tailored_ridge(pooled.value[0], design.node_count, alone.value[0])
        curvature = traces[has_rows] + ridge * (design.width - 1)
        lams = smooth_lams(curvature, design.width, mean_degree(graph), int(design.train_rows.sum()))
        candidate = smooth_candidate(dataclasses.replace(loss_of(design.target), ridge=ridge), lams)
    else:
        party = cv.parties.single
        network = outputs(party.training_set(party.rows.whole, {}), False, design.family.linear)[0]
        w = cv.pooled_models[-1, pooled.best, 0] if design.family.linear else None
        candidate = design.family.tailored(settings.method, network, PooledFit(pooled.value[0], w), alone.value[0])
    if "tailored" in cv.kept:
        lams = [lam for (lam,) in cv.kept["tailored"].values]
        return dataclasses.replace(candidate, values=tuple(lams[-1:] if candidate.converges else lams))
    if settings.lam == "auto":
        return candidate
    rounds = max(candidate.rounds, RELAX_ROUNDS)  # no values before it lead to this one
    return dataclasses.replace(candidate, values=(float(settings.lam),), rounds=rounds)


def _tune_members(cv: CrossValidation, wanted: Sequence[Member], alone: Validation) -> None:
    """Tune members in turn; those on graphs that several parties learn, at the same time."""
    together = [each for each in wanted if isinstance(each, GraphMember) and each.uses_graph]
    for member in wanted:
        if member.name == alone.name:
            cv.found[member.name] = alone
        elif member in together and cv.parties.single is None:
            if member is together[0]:
                cv.found |= {each.name: each for each in tuned_together(cv, together)}
        else:
            cv.found[member.name] = member.tuned(cv)


def _control(cv: CrossValidation) -> dict[str, Validation]:
    """The members that use graphs or places, with both drawn at random; none without such graphs."""
    drawn = _drawn(cv)
    on_graphs = [each for each in cv.found.values() if each.member.uses_graph]
    if drawn is None or not on_graphs:
        return {}
    cv.drawn = drawn
    if cv.parties.single is None:
        members = [each.member for each in on_graphs if isinstance(each.member, GraphMember)]
        return {each.member.name: each for each in tuned_together(cv, members, on_graphs)}
    placed = cv.design.places is not None
    used = [each for each in cv.found.values() if each.member.uses_graph or (placed and each.member.uses_places)]
    return {each.member.name: each.member.tuned_control(cv, each) for each in used}


def _drawn(cv: CrossValidation) -> Scene | None:
    """Random graphs with the same degrees, and other nodes at every place; None if there is no other graph."""
    scene, seed = cv.scene, cv.design.settings.seed
    drawn = [control_graph(graph, seed) for graph in scene.graphs]
    known = [graph for graph in drawn if graph is not None]
    if len(known) < len(drawn):
        return None
    order = shuffled_order(cv.design.node_count, seed)
    wide = None if scene.wide is None else moved_graph(scene.wide, order)
    return Scene(known, wide, None if scene.places is None else scene.places[order])


def shuffled_order(node_count: int, seed: int) -> Ints:
    """For every node, another one at whose place it is in the control."""
    return np.random.default_rng([seed, 5]).permutation(node_count)


def moved_graph(graph: Graph, order: Ints) -> Graph:
    """The graph of places with other nodes there."""
    there = np.argsort(order)  # the node that is now at each place
    return Graph(graph.node_count, np.stack([there[graph.head], there[graph.tail]], axis=1), graph.weights, graph.names)


# ---------------------------------------------------------------------- weights


def _weighted(tuning: Tuning, members: Sequence[str]) -> Tuning:
    """The weights of the ensemble, and those that it would have on a random graph."""
    found = tuning.validations
    named = members or tuning.design.settings.named_members(list(found))
    own = {each.name for name, each in tuning.design.own_members.items() if name in named}
    names = [name for name in found if name in {*named, *own} and name not in tuning.left_out] or ["pooled"]
    sets = [[found[name] for name in names]]
    if tuning.control:
        sets.append([tuning.control.get(name, found[name]) for name in names])
    weights = ensemble_weights(tuning.cv, names, sets)
    return dataclasses.replace(
        tuning, weights=weights[0], control_weights=weights[1] if tuning.control else {}
    )  # fmt: skip


def ensemble_weights(
    cv: CrossValidation, names: Sequence[str], sets: Sequence[Sequence[Validation]]
) -> list[dict[str, float]]:
    """Weights of the same members for several sets of validations, from errors on rows that were not learnt from."""
    kind, factors, count = cv.design.target.kind, cv.design.factors, len(names)
    even = np.full(count, 1 / count)

    def call(which: int, typical: float = UNKNOWN, weights: Floats = even) -> Call[Any]:
        some = sets[which]
        best = np.array([each.best for each in some])
        return Call(
            Party.errors, names=[each.name for each in some], best=best, factors=factors, typical=typical,
            weights=weights,
        )  # fmt: skip

    every = range(len(sets))
    if kind == "number":
        sizes = [answer.total for answer in cv.parties.ask(*(call(which) for which in every))]
        typical = [float(each.size / each.weight) for each in sizes]
        totals = [each.total for each in cv.parties.ask(*(call(which, typical[which]) for which in every))]
    else:
        totals = [answer.total for answer in cv.parties.ask(*(call(which, 0.0) for which in every))]
    seen = [cv.design.evidence(int(each.seen)) for each in totals]
    if kind in ("number", "classes"):
        return [weights_of_products(names, totals[k].products / totals[k].weight, seen[k]) for k in every]

    def cost(which: int, weights: Floats) -> tuple[float, Floats]:
        found = cv.parties.total(call(which, 0.0, weights))
        return float(found.cost / found.weight), found.slopes / found.weight

    return [weights_of_costs(names, partial(cost, k), seen[k]) for k in every]


# ---------------------------------------------------------------------- intervals, and the test


def interval_widths(tuning: Tuning) -> Widths | None:
    """How prediction intervals follow from residuals of the ensemble; None for classes, or with too few residuals."""
    design, parties, weights = tuning.design, tuning.cv.parties, tuning.weights
    if design.target.classes:
        return None
    best = np.array([tuning.validations[name].best for name in weights])
    answer = parties.ask(
        Call(Party.residuals, names=list(weights), best=best, weights=np.array(list(weights.values())))
    )[0]  # fmt: skip
    moments = Moments(*(design.by_node([getattr(each, name) for each in answer.each]) for name in Moments._fields))
    rows = moments.sizes.sum(axis=1)
    if rows.sum() < FEW_RESIDUALS:
        return None
    scales = Scales.of(moments)
    level = Level.of_sums(*answer.total.levels.tolist())
    level = Level(design.target.centre + design.target.spread * level.centre, design.target.spread * level.unit)
    unit = float(np.sqrt(moments.squares.sum() / rows.sum())) or 1.0

    def spread(level: Level) -> Any:
        given, times = scales.to_array(), design.predicted_times
        return parties.total(Call(Party.spread, scales=given, level=np.array(level), unit=unit, times=times))

    first = spread(level)
    by_time = TimeSums(first.time_rows[0], first.time_squares[0]) if design.timed else None
    growth = Growth(rows, first.growth)
    level = level._replace(slope=growth.slope(scales.evidence(int(rows.sum()), by_time)))
    found = spread(level) if level.slope else first
    inside, outside = (quantiles(values, weight, int(weight.sum())) for values, weight in (found.inside, found.outside))
    if design.timed:
        sums = [TimeSums(*each) for each in zip(found.time_rows[1:], found.time_squares[1:], strict=True)]
        inside, outside = (widened(each, of.freedom()) for each, of in zip((inside, outside), sums, strict=True))
    return Widths(scales.to_array(), np.array(level), inside, unit * outside)


def tested(tuning: Tuning, widths: Widths | None) -> TestErrors:
    """The errors of the test rows: the only time that anybody reads them."""
    design, parties = tuning.design, tuning.cv.parties
    answer = parties.ask(Call(Party.test, finish=tuning.finish(), widths=widths, times=design.test_times))[0]
    return TestErrors.of(design, parties, answer)
