"""How much a site is asked in one job: what its settings need, and no more.

A coordinator that follows the protocol never comes to a bound. One that does not could ask for sums at so many models,
or over so many parts, that their differences are single rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kinfolk.engine.protocol import Arrays
from kinfolk.engine.wire import WireError
from kinfolk.federation.tables.queries import QUERIES
from kinfolk.tables.families import SMOOTH_LAMS, family_of
from kinfolk.tables.joint import MOST_GRADIENTS, PARTS, ROUNDINGS, STEPS
from kinfolk.tables.members.slopes import PAIRS
from kinfolk.tables.settings import FEWER_FOLDS, Settings
from kinfolk.tables.target import TASKS, Target

BEFORE_MODELS = {"introduce": 1, "exchange keys": 1, "describe": 1, "measure": 1, "scale": 2, "encode": 1}
GRAPHS = 2  # tailored and wide
COMPARISONS = 20  # of test rows, for the judgement and the gains of nodes
COSTS = 2 * 2 * 300 * 11  # with the control, from two starts: steps of the solver, and what it tries in each
WINDOWS = 3  # of time
TRIES = 4  # of a step, with those that are halved, in the mean
MOST_OF_SEVERAL = 2_000  # exchanges of conjugate gradients, where there are several steps of Newton's method
COUNTED = {
    "derivatives": "fits", "validate pooled": "values", "validate alone": "values", "begin mixed": "values",
    "begin graph": "fits", "begin gradients": "fits",
}  # fmt: skip


@dataclass(frozen=True)
class QueryLimits:
    """What a site answers in one job, at most.

    Parameters
    ----------
    queries : mapping of str to int
        How many of each kind.
    models : mapping of str to int
        Of some kinds, how many models or values one query is about.

    >>> limits = QueryLimits.of(Settings("shop", "sales"), Target(("no", "yes")))
    >>> limits.queries["derivatives"], limits.queries["test"], limits.models["begin graph"]
    (121, 1, 54)
    """

    queries: Mapping[str, int]
    models: Mapping[str, int]

    @classmethod
    def of(cls, settings: Settings, target: Target) -> QueryLimits:
        """What the settings need for a target."""
        ridges, parts = len(family_of(settings.model, target).ridges), most_folds(settings) + 1
        exact, fits = target.kind == "number", parts * ridges * target.outputs
        trend = 2 if settings.time else 1  # with it and without
        pooled = 0 if exact else (1 + 2 * STEPS) * (len(ROUNDINGS) if target.kind == "quantile" else 1)
        steps = 1 if exact else TRIES * STEPS
        queries = {
            "derivatives": trend * pooled, "moments": trend, "validate pooled": 2 * trend - 1,
            "begin graph": 2 * GRAPHS, "begin gradients": 2 * GRAPHS,
            "gradients": 2 * GRAPHS * (MOST_GRADIENTS if exact else MOST_OF_SEVERAL),
            "step mixed": steps, "step graph": 2 * GRAPHS * steps, "validate batch": 1 + 2 * GRAPHS, "errors": 4,
            "spread": 2, "gains": COMPARISONS,
        }  # fmt: skip
        if target.kind in ("count", "quantile"):
            queries["errors"] = COSTS
        lams = len(SMOOTH_LAMS) if settings.lam == "auto" else 1
        models = {
            "derivatives": fits * len(PARTS), "validate pooled": ridges, "validate alone": ridges,
            "begin mixed": len(PAIRS), "begin graph": parts * lams * target.outputs,
            "begin gradients": parts * lams * target.outputs,
        }  # fmt: skip
        return cls({**dict.fromkeys(QUERIES, 1), **BEFORE_MODELS, **queries}, models)

    def check(self, name: str, arrays: Arrays, before: int) -> None:
        """Refuse a query beyond the limits; ``before``: how many of its kind were answered."""
        check_often(name, before, self.queries[name])
        found = max(_sizes(name, arrays, COUNTED.get(name, "")), default=0)
        if found > self.models.get(name, found):
            raise WireError(
                f"Expected at most {self.models[name]:,} models or values in the query {name!r}, as the settings need, "
                f"got {found:,}."
            )

    def sentence(self) -> str:
        """For the owner of a site, before anything leaves.

        >>> print(QueryLimits.of(Settings("shop", "sales"), Target()).sentence())
        In each of them at most: sums of products once, steps of mixed models 1 time, and steps on graphs 4 times, or of conjugate gradients 1,200 times, of 54 models each. More are refused.
        """  # noqa: E501
        derivatives = self.queries["derivatives"]
        pooled = (
            f"derivatives {_times(derivatives)}, of {self.models['derivatives']:,} models each"
            if derivatives
            else "sums of products once"
        )
        return (
            f"In each of them at most: {pooled}, steps of mixed models {_times(self.queries['step mixed'])}, and steps "
            f"on graphs {_times(self.queries['step graph'])}, or of conjugate gradients "
            f"{_times(self.queries['gradients'])}, of {self.models['begin graph']:,} models each. More are refused."
        )


def _times(count: int) -> str:
    return "1 time" if count == 1 else f"{count:,} times"


def _sizes(name: str, arrays: Arrays, axis: str) -> list[int]:
    """The sizes of an axis in the arrays of a request."""
    request = QUERIES[name].request
    return [arrays[each].shape[array.axes.index(axis)] for each, array in request.items() if axis in array.axes]


def most_folds(settings: Settings) -> int:
    """In how many parts rows are cut, at most: sums over many small parts would tell single rows.

    >>> most_folds(Settings("shop", "sales")), most_folds(Settings("shop", "sales", folds=7))
    (5, 7)
    """
    usual = WINDOWS if settings.time else family_of(settings.model, Target(())).folds
    return settings.folds if settings.folds != "auto" else max(usual, FEWER_FOLDS)


def check_often(name: str, before: int, most: int) -> None:
    """Refuse a query that was made as often as it may be."""
    if before >= most:
        often = "once" if most == 1 else f"at most {most:,} times"
        raise WireError(f"Expected the query {name!r} {often} in a job, got it again: begin anew.")


def check_kind(settings: Settings, target: Target) -> None:
    """Refuse another kind of target than the settings name: its sums would be others."""
    known = TASKS.get(settings.task)
    if target.kind not in ((known,) if known else ("number", "classes")):
        raise WireError(f"Expected a target for the task {settings.task!r}, got {target.kind!r}.")
