"""Groups of kin as the page shows them: steady colours along λ, and what their models have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from kinfolk.report.facts import LamPath, RunFacts
from kinfolk.typing import Floats, Ints

MOST_SHOWN = 12  # columns of a table


def steady_groups(path: LamPath) -> Ints:
    """The groups along λ (values, nodes), numbered so that a group keeps its number from one λ to the next.

    At the chosen λ they are as they were; from there outwards, groups that share most nodes have the same number.
    """
    out = np.array(path.groups)
    for k in range(path.chosen + 1, len(out)):
        out[k] = like(out[k - 1], out[k])
    for k in range(path.chosen - 1, -1, -1):
        out[k] = like(out[k + 1], out[k])
    return out


def like(known: Ints, other: Ints) -> Ints:
    """Groups under the numbers of those known groups that they share most nodes with.

    >>> like(np.array([0, 0, 1, 1, 2]), np.array([1, 1, 0, 0, 0]))
    array([0, 0, 1, 1, 1])
    """
    count = int(max(known.max(), other.max())) + 1
    shared = np.zeros((count, count))
    np.add.at(shared, (other, known), 1)
    rows, columns = linear_sum_assignment(shared, maximize=True)
    number = np.empty(count, dtype=other.dtype)
    number[rows] = columns
    return number[other]


@dataclass(frozen=True, eq=False)
class GroupTable:
    """One number per feature and group: its mean over the nodes, and from where to where it goes."""

    kind: str  # "coefficients" or "feature importances"
    features: list[str]
    left_out: int  # features that are not shown
    groups: Ints  # (groups,)
    sizes: Ints  # (groups,) nodes
    mean: Floats  # (groups, features)
    low: Floats
    high: Floats

    @property
    def largest(self) -> float:
        """The largest mean, for colours."""
        return float(np.nanmax(np.abs(self.mean), initial=0.0)) or 1.0


def group_table(run: RunFacts) -> GroupTable | None:
    """Coefficients or feature importances of the tailored models, per group; None where models have neither."""
    found = _numbers(run)
    if found is None:
        return None
    kind, names, numbers = found
    group = run.nodes["group"].to_numpy()
    known = ~np.isnan(numbers).any(axis=1)
    groups, sizes = np.unique(group[known], return_counts=True)
    parts = [numbers[known & (group == each)] for each in groups]
    mean = np.array([part.mean(axis=0) for part in parts])
    shown = np.sort(np.argsort(-np.abs(mean).max(axis=0), kind="stable")[:MOST_SHOWN])
    low, high = (np.array([getattr(part, way)(axis=0) for part in parts])[:, shown] for way in ("min", "max"))
    left_out = len(names) - len(shown)
    return GroupTable(kind, [names[k] for k in shown], left_out, groups, sizes, mean[:, shown], low, high)


def _numbers(run: RunFacts) -> tuple[str, list[str], Floats] | None:
    """What describes the tailored models: its kind, its names, and the numbers (nodes, names)."""
    models, features = run.models, run.features
    w = getattr(models, "w", None)
    if w is not None:
        return "coefficients", [*features, "intercept"], np.asarray(w, dtype=np.float64)
    fitted = [_importances(model) for model in getattr(models, "fitted", ())]
    if not any(each is not None for each in fitted):
        return None
    blank = np.full(len(features), np.nan)
    return "feature importances", features, np.array([blank if each is None else each for each in fitted])


def _importances(model: Any) -> Any:
    """How much a fitted model of trees uses each feature; None where it has no such numbers."""
    return getattr(getattr(model, "estimator_", model), "feature_importances_", None)
