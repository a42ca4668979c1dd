"""How much a site is asked in one job: what its settings need, and no more.

A coordinator that follows the protocol never comes to a bound. One that does not could ask for sums at so many models,
or over so many parts, that their differences are single rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kinfolk.engine.protocol import Arrays
from kinfolk.engine.wire import WireError
from kinfolk.federation.tables.fitting import NEWTON_PARTS, NEWTON_STEPS, ROUNDINGS, SLOPES, TURNS
from kinfolk.federation.tables.works import WORKS
from kinfolk.tables.families import SMOOTH_LAMS, family_of
from kinfolk.tables.members.slopes import HALVINGS, STEPS
from kinfolk.tables.settings import FEWER_FOLDS, Settings
from kinfolk.tables.target import TASKS, Target

BEFORE_MODELS = {"introduce": 1, "masks": 1, "describe": 1, "count": 1, "totals": 1, "scale": 2, "encode": 1}
GRAPHS = 2  # tailored and wide
COMPARISONS = 20  # of test rows, for the judgement and the gains of nodes
COSTS = 2 * 2 * 300 * 11  # with the control, from two starts: steps of the solver, and what it tries in each
LANE_RUNS = 3  # candidates, the control, and the final fits
WINDOWS = 3  # of time
COUNTED = {
    "derivatives": "fits", "pooled": "values", "alone": "values", "slopes begin": "values", "slopes try": "sizes"
}  # fmt: skip


@dataclass(frozen=True)
class Bounds:
    """What a site answers in one job, at most.

    Parameters
    ----------
    questions : mapping of str to int
        How many of each kind.
    models : mapping of str to int
        Of some kinds, how many models or values one question is about.
    lanes : int
        Fits of one run in lanes, of which there are ``LANE_RUNS``.
    at_zero : bool
        Whether derivatives are told at zero alone: those of squared errors at other models follow from these.

    >>> bounds = Bounds.of(Settings("shop", "sales"), Target(("no", "yes")))
    >>> bounds.questions["derivatives"], bounds.questions["finish"], bounds.lanes
    (121, 1, 90)
    """

    questions: Mapping[str, int]
    models: Mapping[str, int]
    lanes: int
    at_zero: bool

    @classmethod
    def of(cls, settings: Settings, target: Target) -> Bounds:
        """What the settings need for a target."""
        ridges, folds = len(family_of(settings.model, target).ridges), most_folds(settings)
        numbers, fits = target.kind == "number", (folds + 1) * ridges * target.outputs
        trend = 2 if settings.time else 1  # with it and without
        newton = 1 if numbers else (1 + 2 * NEWTON_STEPS) * (len(ROUNDINGS) if target.kind == "quantile" else 1)
        more = {
            "derivatives": trend * newton, "pooled": trend, "slopes move": 1 if numbers else 2 * STEPS,
            "slopes try": STEPS, "score": 2 * GRAPHS, "sizes": 2, "products": 2, "costs": COSTS,
            "tied step": TURNS, "gains": COMPARISONS,
        }  # fmt: skip
        models = {
            "derivatives": folds + 1 if numbers else fits * len(NEWTON_PARTS), "pooled": ridges, "alone": ridges,
            "slopes begin": 1 + len(SLOPES), "slopes try": HALVINGS,
        }  # fmt: skip
        lams = len(SMOOTH_LAMS) if settings.lam == "auto" else 1
        lanes = max(folds * lams, 2) * GRAPHS * target.outputs
        return cls({**dict.fromkeys(WORKS, 1), **BEFORE_MODELS, **more}, models, lanes, numbers)

    def check(self, name: str, arrays: Arrays, before: int) -> None:
        """Refuse a question beyond the bounds; ``before``: how many of its kind were answered."""
        check_often(name, before, self.questions[name])
        found = max(_sizes(name, arrays, COUNTED.get(name, "")), default=0)
        if found > self.models.get(name, found):
            raise WireError(
                f"Expected at most {self.models[name]:,} models or values in the question {name!r}, as the settings "
                f"need, got {found:,}."
            )
        if name == "derivatives" and self.at_zero and arrays["w"].any():
            raise WireError(
                "Expected derivatives of squared errors at zero, from which all others follow, got other models."
            )

    def check_lane(self, lane: int, runs: int) -> None:
        """Refuse one fit, or one run in lanes, too many; ``runs``: with this one."""
        if runs > LANE_RUNS or lane >= self.lanes:
            raise WireError(
                f"Expected at most {LANE_RUNS} runs in lanes with {self.lanes:,} fits each, as the settings need, got "
                "more."
            )

    def sentence(self) -> str:
        """For the owner of a site, before anything leaves.

        >>> print(Bounds.of(Settings("shop", "sales"), Target()).sentence())
        In each of them at most: derivatives, asked for 1 time, of 6 models; steps of random slopes, 1 time; runs in lanes, 3 with 90 fits each. More are refused.
        """  # noqa: E501
        return (
            f"In each of them at most: derivatives, asked for {_times(self.questions['derivatives'])}, of "
            f"{self.models['derivatives']:,} models; steps of random slopes, {_times(self.questions['slopes move'])}; "
            f"runs in lanes, {LANE_RUNS} with {self.lanes:,} fits each. More are refused."
        )


def _times(count: int) -> str:
    return "1 time" if count == 1 else f"{count:,} times"


def _sizes(name: str, arrays: Arrays, axis: str) -> list[int]:
    """The sizes of an axis in the arrays of a question."""
    takes = WORKS[name].takes
    return [arrays[each].shape[array.axes.index(axis)] for each, array in takes.items() if axis in array.axes]


def most_folds(settings: Settings) -> int:
    """In how many parts rows are cut, at most: sums over many small parts would tell single rows.

    >>> most_folds(Settings("shop", "sales")), most_folds(Settings("shop", "sales", folds=7))
    (5, 7)
    """
    usual = WINDOWS if settings.time else family_of(settings.model, Target(())).folds
    return settings.folds if settings.folds != "auto" else max(usual, FEWER_FOLDS)


def check_often(name: str, before: int, most: int) -> None:
    """Refuse a question that was asked as often as it may be."""
    if before >= most:
        often = "once" if most == 1 else f"at most {most:,} times"
        raise WireError(f"Expected the question {name!r} {often} in a job, got it again: begin anew.")


def check_kind(settings: Settings, target: Target) -> None:
    """Refuse another kind of target than the settings name: its sums would be others."""
    known = TASKS.get(settings.task)
    if target.kind not in ((known,) if known else ("number", "classes")):
        raise WireError(f"Expected a target for the task {settings.task!r}, got {target.kind!r}.")
