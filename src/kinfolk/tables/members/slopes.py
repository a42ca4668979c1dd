"""Mixed models: a common model, and a deviation from it at every node that is drawn towards zero.

    w_i = w_0 + u_i,    min  Σ_i Σ_r ℓ(x_r'w_i, y_r) + ½ ρ ‖w_0‖² + ½ Σ_i (μ_0 u_i0² + μ_1 Σ_j u_ij²)

By Newton's method: deviations are eliminated at their nodes, sums over nodes lead to a step of w_0 (``batches``,
``joint``). Neither rows nor deviations leave a node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinfolk.tables.joint import JointMixed, validated
from kinfolk.tables.members.member import Access, Member, Value
from kinfolk.tables.party import Call, Party

if TYPE_CHECKING:
    from kinfolk.tables.cross_validation import CrossValidation, Validation
    from kinfolk.tables.design import Design

INTERCEPT_STRENGTHS = (0.1, 0.6, 4.0, 25.0, 150.0, 1e3)
SLOPE_STRENGTHS = (0.3, 2.0, 12.0, 75.0, 450.0, 3e3)
HARDLY = (0.01, 0.01)  # where nodes have nothing in common, and little noise
PAIRS: tuple[Value, ...] = (HARDLY, *((mu0, mu1) for mu0 in INTERCEPT_STRENGTHS for mu1 in SLOPE_STRENGTHS))
MOST_NUMBERS = 5e7  # of all nodes' matrices


class RandomSlopes(Member):
    """Random intercepts and slopes, with a strength for each."""

    name = "slopes"
    access: Access = "sums"
    parameters = ("intercept strength", "slope strength")
    inputs = ("pooled",)
    across_parties = True

    def unsupported_reason(self, design: Design) -> str | None:
        """One row per node tells nothing of slopes; too many parameters do not fit into memory."""
        if design.train_rows.max(initial=0) < 2:
            return "every node has one row"
        return "too many coefficients" if design.node_count * design.width**2 > MOST_NUMBERS else None

    def tuned(self, cv: CrossValidation) -> Validation:
        """All pairs of strengths, with the ridge term that suits node intercepts, or else the pooled model."""
        values, best = cv.grid(self, PAIRS) or PAIRS, cv.found["pooled"].best
        batch = JointMixed(cv.parties, cv.design, values, cv.ridge, best, cv.pooled_models[:, best])
        call = Call(Party.validate, name=self.name, values=values, batch=self.name, chosen=cv.inputs(self))
        return cv.judged(self, validated(cv, [batch], [call])[0], values)
