"""What each node gains, as far as its held-out rows can tell: shrunken gains with errors, shares, and names.

Rows r of node i have gains g_r ~ N(μ_i, s²), nodes μ_i ~ N(μ, τ²). With few rows a node's own mean is mostly noise, so
it is drawn towards the mean of all (empirical Bayes), and a node is named only if the evidence stands up among all
nodes that were looked at (Benjamini and Hochberg, J. R. Stat. Soc. B 57, 1995).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import scipy.stats

from kinfolk.typing import Bools, Floats, Ints

if TYPE_CHECKING:
    from kinfolk.tables.held_out import HeldOutErrors, TestErrors

SEVERAL_ROWS = 3  # a node, in the mean: with fewer, noise and differences between nodes cannot be separated well
SEVERAL_NODES = 10
FALSE_NAMES = 0.1  # share of the named nodes that may be wrongly named, in expectation
USUAL = 1.645  # deviations: 90 % of a normal distribution lie within


class NodeMeans(NamedTuple):
    """The means μ_i of nodes, as far as their rows tell."""

    mean: Floats  # (nodes,) posterior means; the mean of all for a node without rows
    error: Floats  # (nodes,) their standard errors
    centre: float  # μ
    centre_error: float
    between: float  # τ², the variance of true differences
    between_error: float


class NodeSums(NamedTuple):
    """The values of rows, added up by node: all that the means of nodes need, wherever the rows are."""

    sizes: Ints  # (nodes,) rows
    total: Floats  # (nodes,)
    squares: Floats  # (nodes,)

    @classmethod
    def of(cls, values: Floats, owner: Ints, node_count: int = 0) -> NodeSums:
        """Add up the values of rows."""
        total, squares = (
            np.bincount(owner, each, minlength=node_count).astype(np.float64) for each in (values, values**2)
        )
        return cls(np.bincount(owner, minlength=node_count), total, squares)


def node_means(sums: NodeSums) -> NodeMeans:
    """Posterior means of nodes, with s², μ and τ² estimated from all rows.

    τ² is its posterior mean for a flat prior on τ² ≥ 0: never zero, as few rows cannot prove that nodes do not
    differ. Where no node has two rows, all nodes get μ, and the error includes all that may lie between them.

    >>> found = node_means(NodeSums.of(np.array([3.0, -1.0, 1.0, -3.0, 9.0]), np.array([0, 0, 1, 1, 2]), 4))
    >>> found.mean.round(1), found.error.round(1)
    (array([ 1.2, -0.6,  7.8,  3. ]), array([1.9, 1.9, 2.6, 6.5]))
    """
    sizes, node_count = sums.sizes, len(sums.sizes)
    seen = np.flatnonzero(sizes)
    own = sums.total[seen] / sizes[seen]
    centre, apart = float(own.mean()), float(own.var(ddof=1)) if len(seen) > 1 else 0.0
    freedom = int(sizes.sum()) - len(seen)
    deviation = np.zeros(node_count)
    deviation[seen] = own
    noise = max(float((sums.squares[seen] - sizes[seen] * own**2).sum()), 0.0) / freedom if freedom else 0.0
    within = noise * float((1 / sizes[seen]).mean())
    between_error = np.hypot(apart * np.sqrt(2 / max(len(seen) - 1, 1)), within * np.sqrt(2 / max(freedom, 1)))
    between = _positive(apart - within, between_error)
    centre_error = np.sqrt(apart / len(seen))
    trust = np.zeros(node_count)
    if freedom and between > 0:
        trust[seen] = between / (between + noise / sizes[seen])
    mean = centre + trust * (deviation - centre)
    error = np.sqrt((1 - trust) * between + ((1 - trust) * centre_error) ** 2)
    return NodeMeans(mean, error, centre, float(centre_error), between, float(between_error))


def _positive(estimate: float, error: float) -> float:
    """The mean of a normal distribution that is cut off below zero.

    >>> _positive(5.0, 0.0), round(_positive(0.0, 1.0), 3), round(_positive(9.0, 1.0), 3)
    (5.0, 0.798, 9.0)
    """
    if error == 0:
        return max(estimate, 0.0)
    at = estimate / error
    return float(estimate + error * np.exp(scipy.stats.norm.logpdf(at) - scipy.stats.norm.logcdf(at)))


def node_gains(
    errors: TestErrors | HeldOutErrors, method: str, baseline: str, node_count: int
) -> tuple[Floats, Floats]:
    """Per cent less error of a method at each node, shrunk, and the standard error; NaN without test rows."""
    errors = errors.summed(node_count)
    sums = errors.gains(method, baseline)
    found = node_means(sums)
    left, whole = np.maximum(1 - found.mean, 0.0), np.ones(node_count)  # of the baseline's loss
    gain, worse = errors.less(left, whole), errors.less(left + found.error, whole)
    tested = sums.sizes > 0
    return np.where(tested, gain, np.nan), np.where(tested, gain - worse, np.nan)


def share_better(gains: NodeSums) -> tuple[float, float] | None:
    """About how many nodes gain, per cent from and to; None where that cannot be told.

    The share of N(μ, τ²) above zero, for μ and τ² anywhere in their 90 % intervals. It cannot be told from few rows or
    nodes, nor where the means of nodes have much heavier tails than a normal distribution: a few nodes that differ
    much say nothing about the signs of many that differ little.
    """
    seen = gains.sizes > 0
    tested = int(seen.sum())
    if tested < SEVERAL_NODES or gains.sizes.sum() < SEVERAL_ROWS * tested:
        return None
    found = node_means(gains)
    own = gains.total[seen] / gains.sizes[seen]
    if scipy.stats.kurtosis(own) > 2 * np.sqrt(24 / tested):  # the standard error for normal means
        return None
    centres = found.centre + USUAL * found.centre_error * np.array([-1, 1])
    deviations = np.sqrt(np.maximum(found.between + USUAL * found.between_error * np.array([-1, 1]), 0))
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = 100 * scipy.stats.norm.cdf(centres[:, None] / deviations)
    shares = np.where(np.isnan(shares), 50.0, shares)
    return float(shares.min()), float(shares.max())


def clearly_worse(gains: NodeSums) -> Ints:
    """The nodes that lose by t-tests on their own rows, such that few of them are wrongly named in expectation.

    >>> rng = np.random.default_rng(0)
    >>> gains = rng.normal(size=(9, 30)) - 2.0 * (np.arange(9) == 4)[:, None]
    >>> clearly_worse(NodeSums.of(gains.ravel(), np.repeat(np.arange(9), 30)))
    array([4])
    """
    nodes = np.flatnonzero(gains.sizes >= SEVERAL_ROWS)
    if not len(nodes):
        return nodes
    count = gains.sizes[nodes]
    mean, square = gains.total[nodes] / count, gains.squares[nodes] / count
    error = np.sqrt(np.maximum(square - mean**2, 0) / (count - 1))
    ratio = np.divide(mean, error, out=np.zeros_like(mean), where=error > 0)
    return nodes[false_discoveries_bounded(scipy.stats.t.cdf(ratio, count - 1))]


def false_discoveries_bounded(p_values: Floats, bound: float = FALSE_NAMES) -> Bools:
    """Which hypotheses are rejected by the procedure of Benjamini and Hochberg.

    >>> false_discoveries_bounded(np.array([0.9, 0.01, 0.3, 0.04])).tolist()
    [False, True, False, True]
    """
    ordered = np.sort(p_values)
    below = np.flatnonzero(ordered <= bound * np.arange(1, len(ordered) + 1) / len(ordered))
    return p_values <= (ordered[below[-1]] if len(below) else -1.0)
