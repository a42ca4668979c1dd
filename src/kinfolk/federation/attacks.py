"""Two attacks on what somebody has read: was this row among those learnt from, and what was it?

What they reach is a lower bound of what can be told: a better attack may exist. What no attack can reach is said by
``kinfolk.engine.privacy``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import scipy.optimize
from scipy.stats import rankdata

from kinfolk.typing import Bools, Floats

ALARMS = 0.01  # share of false alarms at which hits are counted
APART = 4.0  # two variances differ by more than chance explains
SMALLEST = 1e-18  # of a variance, as a part of the square of the values
LEAST = 1e-200  # of a variance: squares divided by it are finite
SOLVED = 1e-10  # mean of squares, in deviations: no other start does better
ROUNDING = 1e-9  # of the largest number: what varies by less tells nothing that could be told apart from rounding
EARLY = 10  # numbers for every unknown that are tried by themselves: later ones may follow from them in rough ways


class Told(NamedTuple):
    """How well two worlds are told apart: 0.5 and 0.01 by guessing, 1 and 1 with certainty."""

    auc: float  # the chance that a message of the one world looks more like it than one of the other
    hits: float  # share of the one that is noticed, at 1 % false alarms


def told_apart(inside: Floats, outside: Floats) -> Told:
    """How well messages of two worlds can be told apart by likelihoods, learnt from some and tried on the others.

    A number that is read gets a normal distribution in each world, with one variance where they are alike. One half of
    the messages is learnt from and the other half scored, and the other way round.

    Parameters
    ----------
    inside, outside : array, shape (messages, numbers)
        What was read in each world; four messages or more.

    Returns
    -------
    Told

    >>> rng = np.random.default_rng(0)
    >>> told_apart(rng.normal(5, 1, (100, 1)), rng.normal(0, 1, (100, 1))).auc > 0.99
    True
    """
    inside, outside = _tamed(inside, outside)
    scores = [np.empty(len(inside)), np.empty(len(outside))]
    halves = [np.arange(len(each)) % 2 == 0 for each in (inside, outside)]
    for learnt in (halves, [~half for half in halves]):
        likelihood = _likelihood(inside[learnt[0]], outside[learnt[1]])
        for score, values, half in zip(scores, (inside, outside), learnt, strict=True):
            score[~half] = likelihood(values[~half])
    return Told(_auc(*scores), float((scores[0] > np.quantile(scores[1], 1 - ALARMS, method="higher")).mean()))


def _tamed(inside: Floats, outside: Floats) -> tuple[Floats, Floats]:
    """In units of the middle half of all messages, far ones drawn in: models of few rows can be anywhere."""
    low, middle, high = np.quantile(np.concatenate([inside, outside]), (0.25, 0.5, 0.75), axis=0)
    width = np.where(high > low, high - low, 1.0)
    return np.arcsinh((inside - middle) / width), np.arcsinh((outside - middle) / width)


def _likelihood(inside: Floats, outside: Floats) -> Callable[[Floats], Floats]:
    """The logarithm of how much likelier messages are inside than outside."""
    centre = [each.mean(axis=0) for each in (inside, outside)]
    floor = SMALLEST * (np.maximum(np.abs(inside).max(axis=0), np.abs(outside).max(axis=0)) ** 2) + LEAST
    width = [np.maximum(each.var(axis=0, ddof=1), floor) for each in (inside, outside)]
    alike: Bools = np.maximum(*width) < APART * np.minimum(*width)
    width = [np.where(alike, (width[0] + width[1]) / 2, each) for each in width]

    def score(values: Floats) -> Floats:
        terms = [
            ((values - mean) ** 2 / var + np.log(var)).sum(axis=1) for mean, var in zip(centre, width, strict=True)
        ]
        return np.asarray((terms[1] - terms[0]) / 2)

    return score


def _auc(inside: Floats, outside: Floats) -> float:
    """The chance that a score of the one is above that of the other; ties count half."""
    ranks = rankdata(np.concatenate([inside, outside]))[: len(inside)]
    count = len(inside)
    return float((ranks.sum() - count * (count + 1) / 2) / (count * len(outside)))


def reconstructed(
    read: Callable[[Floats], Floats], observed: Floats, starts: Sequence[Floats], evaluations: int = 40
) -> Floats:
    """The row with which what is read would be nearest to what was read: least squares, from several starts.

    Every number counts by how far it varies over the starts. Before that the first ones are tried by themselves, in one
    unit: numbers that hardly vary would lead astray, and those late in an iteration are not smooth in the row.

    Parameters
    ----------
    read : callable
        From a row to what would be read.
    observed : array
        What was read.
    starts : sequence of array
        Guesses to begin with.
    evaluations : int
        Steps of the solver from each of them, at most.

    Returns
    -------
    array
        A row.

    >>> def read(row):
    ...     return np.array([row[0] + row[1], row[0] * row[1]])
    >>> reconstructed(read, np.array([5.0, 6.0]), [np.array([1.0, 4.0])]).round(6).tolist()
    [2.0, 3.0]
    """
    spread = np.std([observed, *(read(start) for start in starts)], axis=0)
    scale = np.where(spread > ROUNDING * np.abs(observed).max(), spread, 1.0)
    count = EARLY * len(starts[0])
    unit = float(np.sqrt((spread[:count] ** 2).mean())) or 1.0

    def misfit(row: Floats) -> Floats:
        return np.asarray((read(row) - observed) / scale)

    def early(row: Floats) -> Floats:
        return np.asarray((read(row) - observed)[:count] / unit)

    nearest = min(starts, key=lambda start: float((early(start) ** 2).sum()))
    best, reached = np.asarray(nearest), np.inf
    for compared, start in ((early, nearest), *((misfit, start) for start in starts)):
        if (misfit(start) ** 2).sum() < SOLVED * len(observed):
            return np.asarray(start)
        found = scipy.optimize.least_squares(compared, start, max_nfev=evaluations).x
        cost = float((misfit(found) ** 2).sum()) / 2
        if np.isfinite(cost) and cost < reached:
            best, reached = found, cost
        if reached < SOLVED * len(observed):
            break
    return best
