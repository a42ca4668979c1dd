"""Certificates for GTV minimisation: how far an answer can be from the best one, with a proof.

With dual variables β_r for the samples, γ_i for the ridge term and flows u_e for the edges,

    P(w)      = Σ_i L_i(w_i) + Σ_e λA_e φ((Dw)_e)
    D(β,γ,u)  = −Σ_r c ℓ*(β_r / c) − Σ γ² / (2 ridge) − Σ_e λA_e φ*(u_e / (λA_e))
    P(w) − min P  ≤  [P(w) − D(β,γ,u) − ⟨r, w⟩] + ‖r‖ R,       r = Xᵀβ + γ + Dᵀu                              (*)

for every minimiser within R of w. The plain duality gap is (*) with r = 0, which no iterate fulfils exactly where
a node has fewer samples than features, or none. So the dual variables that belong to an iterate are first moved to
r ≈ 0 along a Newton direction, then scaled back into the domain of the conjugates (r ≈ 0 survives a scaling); what
is left of r is of the size of rounding errors, and R (``distance``) keeps it honest. Components of the graph are scaled
separately: nothing flows between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kinfolk.algorithms.gtvmin import distance
from kinfolk.algorithms.gtvmin.borrowing import borrowed
from kinfolk.algorithms.gtvmin.duals import Duals, in_few_bits, solves_directly, stiffness_at
from kinfolk.algorithms.gtvmin.instance import Instance
from kinfolk.algorithms.gtvmin.optimality import local_duals, residual_at, scale_of
from kinfolk.algorithms.gtvmin.repair import Trees
from kinfolk.algorithms.gtvmin.updates import Updates
from kinfolk.algorithms.parametric import squares
from kinfolk.checks import InputError, as_floats
from kinfolk.engine.numbers import number
from kinfolk.network.network import Network
from kinfolk.typing import Floats, Ints

if TYPE_CHECKING:
    from kinfolk.algorithms.gtvmin.algorithm import State

REFINEMENTS = 8
LARGE = 10_000  # nodes, above which a precise solve costs as much as hundreds of rounds
ROUGH_MOVES, ROUGH_PRECISION = 12, 0.1  # instead of precise ones
ROUGH_LENGTH = 0.05  # of differences, at least: softer edges make systems that need a third of the iterations or less
CLOSE, LOOSE = 1.2, 3.0  # times the residual: a bound that repairs cannot lower much, and one that they may
NEAR = 1e-3  # of the scale: a gap from which distances follow that are worth looking at
NEGLIGIBLE, SMALL_PART = 1e-8, 0.05  # of the scale, and of the bound: what is left of r needs no sharper distance
LOCALISATIONS = 6
SHARP_ENOUGH = 1e-7  # of the scale: no further solve, nor below the residual
SHARP = 1e-6  # of the scale: a bound that needs no caveat


@dataclass(frozen=True)
class Certificate:
    """What is known about an answer: at most ``bound`` above the smallest objective."""

    objective: float
    bound: float
    residual: float
    radius: float
    radius_is_assumed: bool
    scale: float  # the objective, or a ten-thousandth of that at zero where it is smaller still

    @property
    def relative(self) -> float:
        """The bound as a part of the scale."""
        return self.bound / self.scale if self.scale > 0 else self.bound

    def __str__(self) -> str:
        text = "" if self.relative <= SHARP else f"{self._unproven} "
        text += (
            f"The objective is {number(self.objective, 6)}. No other choice of parameters lowers it by more than "
            f"{self.bound:.2g} ({100 * self.relative:.2g} %). The optimality conditions hold up to a relative "
            f"residual of {self.residual:.1e}."
        )
        if self.radius_is_assumed:
            text += (
                f" This assumes that a best choice lies within {self.radius:.2g} of this one: "
                "the losses alone do not bound where it is."
            )
        return text

    @property
    def _unproven(self) -> str:
        """That and why the bound is no better."""
        why = "more rounds bring it nearer" if self.residual > SHARP else "the proof is weaker than the answer may be"
        return f"Not proven to one part in a million: {why}."


def certificate_at(updates: Updates, state: State, enough: float = 0.0) -> Certificate | None:
    """How good the parameters 2 w_new − w of a state are; None where losses have no dual variables to prove it with.

    On large networks, where precise solves would cost too much, what is left of r is repaired exactly from the start.
    The proof ends there where the bound is ``enough``, as a part of the scale. The state lends its memory, and has its
    numbers back at the end.
    """
    losses = updates.losses.with_duals
    if losses is None:
        return None
    _, beta = local_duals(updates, losses, state)
    residual = residual_at(updates, state)
    problem = Instance(updates.site, losses, updates.coupling, updates.weights)
    large = problem.site.node_count > LARGE
    if large:
        losses.forget()
    judge = _Judge.of(problem, state.w_bar, residual)
    if large and _is_repairable(problem):
        idle = np.empty_like(state.w) if np.may_share_memory(state.w, state.w_bar) else state.w
        with borrowed(state.u) as u, borrowed(idle) as scratch:
            start = judge.duals(beta, updates.ahead(state.u, state.w_bar, out=u))
            return _repaired(judge, start, max(CLOSE * judge.sharp, enough), scratch)
    return certify(judge, beta, (updates.ahead(state.u, state.w_bar), state.u))


def parameters_and_flows(network: Network, w: Any, u: Any) -> tuple[Floats, Floats]:
    """Any parameters (nodes, parameters) and flows (edges, parameters) as arrays, or a sentence.

    A certificate takes the flows one step (1) into their domain, so zeros are legal.

    >>> from kinfolk import GTVMin, Network, graphs
    >>> network = Network(graphs.chain(2), [([[1.0]], [0.0]), ([[1.0]], [1.0])])
    >>> GTVMin(lam=0.5).certificate_of(network, w=[[0.25], [0.75]], u=[[-0.5]]).bound < 1e-12
    True
    """
    w, u = as_floats(w, "the parameters", 2), as_floats(u, "the flows", 2)
    expected = (network.graph.node_count, w.shape[1]), (network.graph.edge_count, w.shape[1])
    if (w.shape, u.shape) != expected:
        raise InputError(f"Expected parameters and flows of shapes {expected}, got {w.shape} and {u.shape}.")
    return w, u


def certify(judge: _Judge, beta: Floats, flows: Sequence[Floats]) -> Certificate:
    """Bound the sub-optimality of w with the help of ``beta`` and flows that nearly belong to it; the best ones.

    The dual variables are moved to r ≈ 0, and scaled into their domain for a bound; if that is not as sharp as the
    residual, they are clipped into it instead, and moved again. Where that does not prove as much as it could, what is
    left of r is repaired exactly.
    """
    problem, w, sharp = judge.problem, judge.w, judge.sharp
    starts = [judge.duals(beta, u) for u in flows]
    found = [_judged(judge, starts[0], localised=False)]
    # Distances cost as much as a direct solve, after which none may be needed.
    localised = found[0][0].relative > sharp and not solves_directly(problem)
    if found[0][0].relative > sharp:
        found += [_judged(judge, each, localised) for each in (starts if localised else starts[1:])]
    best, duals = min(found, key=lambda each: each[0].bound)
    waited, stiffness = 0, stiffness_at(problem, w)
    for _ in range(REFINEMENTS):
        if best.relative <= sharp or waited > 1:
            break
        moved = duals.balanced(problem, stiffness)
        now = judge.certificate(moved)
        waited = 0 if now.bound < 0.5 * best.bound else waited + 1
        best = min(best, now, key=lambda each: each.bound)
        duals = moved.clipped(problem)
    if best.relative > sharp and not localised:
        best = min(best, *(_judged(judge, each, localised=True)[0] for each in starts), key=lambda each: each.bound)
    if best.relative > LOOSE * sharp and _is_repairable(problem):
        best = min(best, _repaired(judge, starts[0], CLOSE * sharp), key=lambda each: each.bound)
    return best


def _is_repairable(problem: Instance) -> bool:
    """Whether there are flows, and they may be changed in any direction."""
    return problem.coupling.is_norm and len(problem.weights) > 0


def _judged(judge: _Judge, duals: Duals, localised: bool) -> tuple[Certificate, Duals]:
    """What dual variables prove after they are clipped into their domain, and these."""
    clipped = duals.clipped(judge.problem)
    return judge.certificate(clipped, localised), clipped


def _repaired(judge: _Judge, duals: Duals, enough: float, scratch: Floats | None = None) -> Certificate:
    """The same with rough solves, after each of which what is left of r is repaired; flows are overwritten."""
    problem, found = judge.problem, []
    trees, stiffness = Trees.of(problem, duals.u), in_few_bits(stiffness_at(problem, judge.w, ROUGH_LENGTH))
    for _ in range(ROUGH_MOVES):
        duals = trees.repaired(duals.clip(problem).balance(problem, stiffness, ROUGH_PRECISION, scratch))
        found.append(judge.certificate(duals))
        if found[-1].relative <= enough:
            return found[-1]
    # Where β is bounded, a repair may leave its domain.
    precise = duals.clip(problem).balance(problem, stiffness, scratch=scratch)
    return min(*found, judge.certificate(precise), key=lambda each: each.bound)


@dataclass(frozen=True)
class _Judge:
    """Turns dual variables into a bound on the sub-optimality of w."""

    problem: Instance
    w: Floats
    residual: float
    objective: float
    scale: float
    apart: Floats  # (nodes,) how far a minimiser can be
    assumed: bool  # whether that is but assumed
    components: tuple[int, Ints]

    @classmethod
    def of(cls, problem: Instance, w: Floats, residual: float) -> _Judge:
        """What all bounds for w share."""
        objective = problem.objective(w)
        apart = distance.from_level_set(problem, w, objective)
        assumed = not np.isfinite(apart).all()
        if assumed:
            apart = np.full(len(w), 10.0 * (1.0 + float(np.linalg.norm(w))))
        scale = scale_of(objective, float(problem.losses.value_at_start.sum()))
        return cls(problem, w, residual, objective, scale, apart, assumed, problem.components)

    @property
    def sharp(self) -> float:
        """A bound, as a part of the scale, below which no other is looked for."""
        return max(SHARP_ENOUGH, self.residual)

    def duals(self, beta: Floats, u: Floats) -> Duals:
        """The dual variables β and u, with the γ that belongs to w."""
        return Duals(beta, self.problem.losses.pull(self.w), self.problem.coupling.into_span(u), self.w)

    def certificate(self, duals: Duals, localised: bool = True) -> Certificate:
        """(*) with these dual variables, scaled into their domain; ``localised``: by sharper distances if need be."""
        problem = self.problem
        share = duals.shares(problem, *self.components)
        leftover = duals.violation(problem)
        leftover *= share[:, None]
        centred = max(self.objective - duals.value(problem, share) - float(np.vdot(leftover, self.w)), 0.0)
        lengths = np.sqrt(squares(leftover))
        bound, apart, assumed = centred + float(lengths @ self.apart), self.apart, self.assumed
        matters = bound - centred > max(NEGLIGIBLE * self.scale, SMALL_PART * bound)
        if localised and matters and centred <= NEAR * self.scale:
            duals = duals.scaled(problem, share)
            gaps = distance.FromGap(problem, self.w, duals.u, *duals.gaps(problem))
            bound, apart, assumed = _localised(gaps, centred, lengths, apart, assumed)
        radius = float(np.linalg.norm(apart))
        return Certificate(self.objective, bound, self.residual, radius, assumed, self.scale)


def _localised(
    gaps: distance.FromGap, centred: float, lengths: Floats, apart: Floats, assumed: bool
) -> tuple[float, Floats, bool]:
    """The bound, how far minimisers can be and whether that is assumed, after each has sharpened the other."""
    bound = centred + float(lengths @ apart)
    for _ in range(LOCALISATIONS):
        near = gaps.distances(bound)
        sharper = centred + float(lengths @ np.minimum(apart, near))
        if not sharper < 0.9 * bound:
            break
        bound, apart = sharper, np.minimum(apart, near)
    return bound, apart, assumed
