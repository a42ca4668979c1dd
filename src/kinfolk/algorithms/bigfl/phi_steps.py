"""The steps of φ at the coordinator: (2) and (3) of BiG-FL. It has parameters and products with curvatures, no rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from kinfolk.algorithms.bigfl.adjoint import Adjoint, Krylov
from kinfolk.algorithms.bigfl.lower import LowerLevel
from kinfolk.algorithms.bigfl.memory import Facts, Memory
from kinfolk.algorithms.bigfl.upper import UpperLevel
from kinfolk.algorithms.local_work import StepSize, size_of_step
from kinfolk.checks import LearningError
from kinfolk.engine.protocol import Arrays, Turn
from kinfolk.typing import Floats

DRAWN = 8  # keys what the coordinator draws
UNSTABLE = 2.0  # β times the largest curvature, above which descent does not settle


@dataclass(frozen=True)
class PhiSteps:
    """How φ moves."""

    lower: LowerLevel
    upper: UpperLevel
    lam: float
    kappa: float
    lam_upper: float
    adjoint: Adjoint
    step_size: StepSize
    normalised: bool

    def fitted(self, memory: Memory) -> Memory:
        """φ from θ at once, for upper levels that can."""
        found = self.upper.fitted(self.lower, memory.links, memory.layout, memory.w[:, 0])
        return self.with_phi(memory, found, memory.facts._replace(phi_steps=memory.facts.phi_steps + 1))

    def begun(self, memory: Memory, outbox: Arrays, turn: Turn, beta: float) -> Memory:
        """f with its derivatives, and the right side of (2); ``beta`` is the step size of the round."""
        links, layout, phi, w = memory.links, memory.layout, memory.phi, memory.w[:, 0]
        rng = np.random.default_rng([DRAWN, turn.seed, turn.round])
        common = self.upper.common(self.lower, links, layout, phi, w, rng)
        distance = self.lower.distance(links, layout, phi)
        right, value = common.w[turn.active], common.value
        if "validation" in outbox:
            slope, error = self._held_out(memory, outbox, turn)
            right, value = right + slope, value + error
        curved = outbox["sharpness"].max() + self.kappa + self.lam * self.lower.bound(links).max()
        facts = memory.facts._replace(upper=value + self.lam_upper * distance.value, stability=float(beta * curved))
        by_phi = common.phi + self.lam_upper * distance.slope
        return memory._replace(by_phi=by_phi, krylov=Krylov.of(right), facts=facts)

    def _held_out(self, memory: Memory, outbox: Arrays, turn: Turn) -> tuple[Floats, float]:
        """The mean error on held-out rows over nodes that have some, by the parameters of each node, and itself."""
        errors = outbox["validation"][:, 0]
        known = ~np.isnan(errors)
        if not known.any() and len(turn.active) == memory.links.node_count:
            raise LearningError(
                "Expected nodes with two rows or more, of which some can be held out to learn φ, got none: take "
                "another upper level, or phi='identity'."
            )
        share = 1.0 / max(int(known.sum()), 1)
        return share * outbox["slope"], share * float(errors[known].sum())

    def extended(self, memory: Memory, outbox: Arrays, turn: Turn) -> Memory:
        """A step of the Krylov method: what the graph adds to the products of the nodes."""
        assert memory.krylov is not None
        solved = outbox["solved"] if self.adjoint.preconditioned else memory.krylov.next
        spread = np.zeros_like(memory.w[:, 0])
        spread[turn.active] = solved  # those away stay as they are: their v is zero
        pulled = self.lower.adjoint_product(memory.links, memory.layout, memory.phi, memory.w[:, 0], spread)
        product = outbox["product"] + self.lam * pulled[turn.active]
        facts = memory.facts._replace(exchanges=memory.facts.exchanges + 1)
        return memory._replace(krylov=memory.krylov.extended(solved, product), facts=facts)

    def moved(self, memory: Memory, turn: Turn) -> Memory:
        """(3), unless the hypergradient cannot be trusted."""
        assert memory.krylov is not None
        found, w = memory.krylov.solution(), memory.w[:, 0]
        v = np.zeros_like(w)
        v[turn.active] = found.v
        gradient = memory.by_phi - self.lam * self.lower.phi_product(memory.links, memory.layout, memory.phi, w, v)
        facts = memory.facts._replace(adjoint_residual=found.residual)
        memory = memory._replace(krylov=None, hypergradient=gradient)
        length = float(np.linalg.norm(gradient))
        usable = found.residual <= self.adjoint.trust and facts.stability < UNSTABLE and 0 < length < math.inf
        if not usable or not math.isfinite(facts.upper):
            return memory._replace(facts=facts._replace(skipped=facts.skipped + 1))
        alpha = size_of_step(self.step_size, int(facts.phi_steps))
        along = gradient * (self.lower.unit(memory.layout, memory.phi) / length if self.normalised else 1.0)
        return self.with_phi(memory, memory.phi - alpha * along, facts._replace(phi_steps=facts.phi_steps + 1))

    def with_phi(self, memory: Memory, phi: Floats, facts: Facts) -> Memory:
        """The nearest admitted φ, and how far it is from the identity."""
        phi = self.lower.projected(memory.layout, phi)
        distance = math.sqrt(2.0 * self.lower.distance(memory.links, memory.layout, phi).value)
        return memory._replace(phi=phi, facts=facts._replace(phi_distance=distance))
