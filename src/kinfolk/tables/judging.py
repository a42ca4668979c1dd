"""Judging: does learning together help, how much, how sure is that, and what could have been seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import scipy.stats

from kinfolk.network.graph import Graph
from kinfolk.report.facts import Judgement, Role, Verdict
from kinfolk.tables.held_out import HeldOutErrors, TestErrors
from kinfolk.tables.node_gains import clearly_worse, share_better
from kinfolk.tables.uncertainty import FEW_TIMES, Uncertainty, uncertainty
from kinfolk.typing import Ints

INSIDE = 0.975  # two-sided 95 %
POWER = 0.8  # how often a gain must show to count as one that could have been seen
ENDS = ("low", "high")  # of an interval
WANTED = 5.0  # per cent: the gain for which the number of rows is given


class Gain(NamedTuple):
    """Per cent by which the mean error of a method is below that of a baseline, and how sure that is."""

    gain: float
    low: float | None  # the 95 % interval; None with fewer than two units
    high: float | None
    log_ratio: float  # of the two mean errors
    clear: float | None  # how far below zero it has to be to show in four of five tests like this one
    uncertainty: Uncertainty | None

    @property
    def verdict(self) -> Verdict:
        """Clear only if the whole interval is on one side of zero."""
        if self.low is None or self.high is None:
            return "no clear difference"
        return "helps" if self.low > 0 else "does not help" if self.high < 0 else "no clear difference"


class Sight(NamedTuple):
    """What a test like this one could have seen."""

    visible: float  # per cent: the smallest gain over the better baseline that shows in four of five tests
    rows_needed: int  # about how many test rows would show ``WANTED``


def gain_over(
    errors: TestErrors | HeldOutErrors, graph: Graph, baseline: str, method: str, new_nodes: bool = False
) -> Gain:
    """Compare two methods on the same rows: the gain, its 95 % interval, and what could have been seen.

    The interval is symmetric for the logarithm of the ratio of mean errors, with Student's t for few units.
    ``new_nodes``: whether tested nodes have no training rows, and stand for others like them.
    """
    errors = errors.summed(graph.node_count)
    ratio = errors.ratio(method, baseline)
    found = uncertainty(ratio.influence, graph, new_nodes)
    gain = float(errors.less(errors.mean(method), errors.mean(baseline)))
    if found is None:
        return Gain(gain, None, None, ratio.value, None, None)
    reach, power = (float(scipy.stats.t.ppf(share, found.freedom)) * found.error for share in (INSIDE, POWER))
    low, high = (_less(errors, ratio.value + sign * reach) for sign in (1, -1))
    return Gain(gain, low, high, ratio.value, reach + power, found)


def _less(errors: TestErrors, log_of_ratio: float) -> float:
    """The logarithm of a ratio of errors as per cent less error."""
    return float(errors.less(np.exp(log_of_ratio), 1.0))


def _distance(errors: TestErrors) -> float:
    """A gain of ``WANTED`` as a difference of logarithms of mean errors, which double where roots are shown."""
    return float(-np.log(1 - WANTED / 100) * np.log(4) / np.log(errors.target.shown(4.0)))


def gains_over(
    errors: TestErrors | HeldOutErrors, graph: Graph, baselines: Sequence[Role], method: str, new_nodes: bool = False
) -> dict[Role, Gain]:
    """The gain over each baseline."""
    errors = errors.summed(graph.node_count)
    return {role: gain_over(errors, graph, role, method, new_nodes) for role in baselines}


def over_better(found: Mapping[Role, Gain]) -> tuple[Role, Gain]:
    """The gain over the better of some baselines, and which one that is on the test rows.

    Test rows may be wrong about which one is better. So the interval is that of the smallest of the gains over each of
    them: it begins and ends where the first of their intervals does.
    """
    against = min(found, key=lambda role: found[role].gain)
    lows, highs = ([end for each in found.values() if (end := getattr(each, name)) is not None] for name in ENDS)
    return against, found[against]._replace(low=min(lows, default=None), high=min(highs, default=None))


def sight(errors: TestErrors, found: Mapping[Role, Gain]) -> Sight | None:
    """What could have been seen: a verdict is clear only if the gain over every baseline is.

    A gain over the better baseline is a larger one over the others, by as much as these are behind it.
    """
    nearest = max(each.log_ratio for each in found.values())
    each_clear = [(gain.clear, nearest - gain.log_ratio) for gain in found.values() if gain.clear is not None]
    if not each_clear:
        return None
    least = max(clear - behind for clear, behind in each_clear)
    wanted = _distance(errors)
    times = max((clear / (wanted + behind)) ** 2 for clear, behind in each_clear)
    return Sight(_less(errors, -least), int(np.ceil(errors.row_count * times)))


def judge(
    errors: TestErrors | HeldOutErrors, graph: Graph, baselines: Sequence[Role], new_nodes: bool = False,
    own: Sequence[str] = (),
) -> Judgement:  # fmt: skip
    """Compare the models that predict with the better baseline.

    Parameters
    ----------
    errors : TestErrors or HeldOutErrors
        The errors of the test rows, by role.
    graph : Graph
        Neighbours err alike, so blocks of them are compared.
    baselines : sequence of Role
        What they are compared with: one model for all, and every node alone where that is possible.
    new_nodes : bool, optional
        Whether no tested node has training rows: then others like them are meant, not these very nodes.
    own : sequence of str, optional
        The members, if all are the user's own: these are compared, and learning together is not judged.

    Returns
    -------
    Judgement
        The verdict and its numbers.
    """
    errors = errors.summed(graph.node_count)
    over_each = gains_over(errors, graph, baselines, Role.FINAL, new_nodes)
    (against, found), seen = over_better(over_each), sight(errors, over_each)
    clear = found.verdict != "no clear difference"
    gains = errors.gains(Role.FINAL, against)
    control = None
    if Role.CONTROL in errors.methods and found.verdict == "helps" and not own:
        control = gain_over(errors, graph, against, Role.CONTROL).gain
    named = clearly_worse(gains) if errors.time_count is None else np.array([], dtype=np.int64)
    known = found.uncertainty
    return Judgement(
        verdict="not judged" if own else found.verdict, against=against, alone_is_possible=Role.ALONE in baselines,
        gain=found.gain, low=found.low, high=found.high, visible=seen.visible if seen else None,
        rows_needed=seen.rows_needed if seen else None,
        unit=known.unit if known else None, units=known.units if known else 1, block=known.block if known else 0,
        few_times=_few_times(errors),
        nearer=errors.nearer(Role.FINAL, against), farther=errors.nearer(against, Role.FINAL),
        better=share_better(gains) if clear else None, worse=_names(graph, named), control=control,
        own=tuple(own),
    )  # fmt: skip


def _few_times(errors: TestErrors) -> int | None:
    """How many times are tested, if they are too few to include the luck of a time."""
    count = errors.time_count
    return count if count is not None and count < FEW_TIMES else None


def _names(graph: Graph, nodes: Ints) -> tuple[str, ...]:
    return tuple(str(graph.names[k]) for k in nodes)
