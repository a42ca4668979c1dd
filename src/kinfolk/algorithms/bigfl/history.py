"""The history of BiG-FL: the game, how φ is learnt, and what is compared with it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from kinfolk.algorithms.bigfl.memory import Facts
from kinfolk.algorithms.bigfl.phi_steps import UNSTABLE
from kinfolk.algorithms.parametric import ratio
from kinfolk.network.site import Site
from kinfolk.objective.node_loss import NodeLoss
from kinfolk.typing import Floats

CONTROLS = {"identity": "with φ = I", "laplacian": "with a Laplacian coupling", "local": "alone"}
COUNTED = {"validation": "validated", "error": "tested"}  # what an error is summed over


def compared(site: Site, loss: NodeLoss, names: Sequence[str], w: Floats, validation: Floats) -> dict[str, Floats]:
    """Errors per node: on held-out rows of all games, and on test rows of all but the first, which the engine tests."""
    out = {"validated": (~np.isnan(validation[:, 0])).astype(np.float64)}
    for k, name in enumerate(names):
        out[f"validation {name}"] = np.nan_to_num(validation[:, k])
        if site.test is not None and k:
            owner = site.test.owner
            errors = loss.models(w[:, k]).error(site.test.X, site.test.y, owner) if len(owner) else np.zeros(0)
            out[f"error {name}"] = np.bincount(owner, errors, site.node_count).astype(np.float64)
            out["tested"] = np.bincount(owner, minlength=site.node_count).astype(np.float64)
    return out


def summarised(totals: Mapping[str, float]) -> dict[str, float]:
    """The columns of the history."""
    resting = ratio(math.sqrt(totals["size"]), math.sqrt(totals["start"]))
    learning = totals.get("fact learning", 0.0) > 0
    out = {
        "objective": totals["objective"],
        "residual": math.inf if learning else resting,
        "game_residual": resting,
        "training": ratio(totals["training"], totals["known"]),
    }
    for name in Facts._fields[1:]:
        if f"fact {name}" in totals:
            out[name] = totals[f"fact {name}"] / totals["nodes"]
    for name, total in totals.items():
        kind, _, game = name.partition(" ")
        if kind in COUNTED:
            count = totals[COUNTED[kind]]
            out[f"{kind}_{game}".rstrip("_")] = total / count if count else math.nan
    return out


def found(
    row: Mapping[str, float], names: Sequence[str], phi_steps: int, learning_rounds: int, trust: float
) -> list[str]:
    """Whether φ has helped, as far as was measured, and what has kept it from being learnt."""
    out = []
    tried = row["phi_steps"] + row["skipped"]
    if row["residual"] == math.inf:
        out.append(
            f"{tried:.0f} of {phi_steps} steps of φ were tried: it takes {learning_rounds:,} rounds to learn φ, and "
            "more for models that have seen all rows."
        )
    if row["skipped"] > 0:
        out.append(
            f"{row['skipped']:.0f} of {tried:.0f} steps of φ were skipped, as their hypergradient could not be "
            f"trusted: {_why_skipped(row, trust)}."
        )
    for kind, rows in (("error", "test rows"), ("validation", "held-out rows, on which φ was learnt")):
        if f"{kind}_identity" in row and not math.isnan(row[kind]):
            others = ", ".join(f"{row[f'{kind}_{name}']:.3g} {CONTROLS[name]}" for name in names[1:])
            out.append(f"Mean error on {rows}: {row[kind]:.3g} with the φ that was learnt, {others}.")
    return out


def _why_skipped(row: Mapping[str, float], trust: float) -> str:
    """The reason, from the last numbers."""
    if not row["stability"] < UNSTABLE:
        return f"β times the largest curvature is {row['stability']:.2g}, not below 2, so take a smaller step_size"
    if not row["adjoint_residual"] <= trust:
        return f"the last adjoint residual is {row['adjoint_residual']:.2g}, so take more exchanges"
    return "earlier ones were not stable or not solved, or it was zero or no number"
