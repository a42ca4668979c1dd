"""Judging: does learning together help, how much, and how sure is that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas
import scipy.stats

from kinfolk.network.graph import Graph
from kinfolk.report.facts import Judgement, Role, Verdict
from kinfolk.tables.target import Target
from kinfolk.typing import Floats, Ints

DRAWS = 2_000
FEW_NODES = 20  # with fewer, rows are drawn anew rather than nodes,
SOME_ROWS = 5  # ... if every node has so many
INTERVAL = (2.5, 97.5)
WORST = -999.0  # per cent: what is next to no error cannot be compared with


@dataclass(frozen=True, eq=False)
class HeldOutErrors:
    """The errors of test rows, method by method, and whose they are."""

    rows: dict[str, Floats]  # method -> (rows,)
    owner: Ints  # (rows,)
    target: Target  # has the units in which errors are shown

    def by_node(self, node_count: int) -> pandas.DataFrame:
        """The mean error of every node and method; NaN without test rows."""
        count = np.bincount(self.owner, minlength=node_count)
        with np.errstate(invalid="ignore"):
            return pandas.DataFrame(
                {name: np.bincount(self.owner, loss, minlength=node_count) / count for name, loss in self.rows.items()}
            )

    def less(self, loss: Any, reference: Any) -> Any:
        """Per cent by which an error is below another, both as they are shown; at least ``WORST``."""
        with np.errstate(divide="ignore", invalid="ignore"):
            less = 100 * (1 - self.target.shown(loss) / self.target.shown(reference))
        return np.where((loss == 0) & (reference == 0), 0.0, np.maximum(less, WORST))


def interval(errors: HeldOutErrors, graph: Graph, baseline: str, method: str, seed: int) -> tuple[float, float, float]:
    """Per cent by which the mean error of a method is below that of a baseline, with a 95 % interval by bootstrap.

    With many nodes, blocks of neighbouring nodes are drawn, since neighbours err alike; with few that have several rows
    each, these very nodes are meant, and the rows of each are drawn anew. A bootstrap of few units is too narrow: it
    is widened, on the logarithmic scale, as Student's t is wider than the normal distribution.
    """
    nodes = errors.by_node(graph.node_count).dropna()
    found, reference = (nodes[name].to_numpy().mean() for name in (method, baseline))
    rng = np.random.default_rng([seed, 7])
    by_rows = len(nodes) < FEW_NODES and np.bincount(errors.owner)[nodes.index].min() >= SOME_ROWS
    base, ours, units, freedom = (_draw_rows if by_rows else _draw_blocks)(errors, graph, (baseline, method), rng)
    with np.errstate(divide="ignore", invalid="ignore"):
        centre, drawn = np.log(found / reference), np.log(ours / base)
        wider = np.sqrt(units / max(units - 1, 1)) * scipy.stats.t.ppf(0.975, max(freedom, 1)) / 1.96
        ends = np.exp(centre + wider * (np.nanpercentile(drawn, INTERVAL) - centre))
    low, high = sorted(errors.less(ends * reference, reference))
    return float(errors.less(found, reference)), float(low), float(high)


def _draw_blocks(
    errors: HeldOutErrors, graph: Graph, methods: tuple[str, str], rng: np.random.Generator
) -> tuple[Floats, Floats, int, int]:
    """Sums of node errors over blocks of neighbours, drawn with replacement (draws,); units and their freedom."""
    nodes = errors.by_node(graph.node_count)
    known = nodes[methods[0]].notna().to_numpy()
    block = np.unique(neighbourhoods(graph)[known], return_inverse=True)[1]
    count = int(block.max()) + 1
    drawn = rng.multinomial(count, np.full(count, 1 / count), size=DRAWS).astype(np.float64)
    base, ours = (np.bincount(block, nodes[name].to_numpy()[known]) for name in methods)
    return drawn @ base, drawn @ ours, count, count - 1


def _draw_rows(
    errors: HeldOutErrors, graph: Graph, methods: tuple[str, str], rng: np.random.Generator
) -> tuple[Floats, Floats, int, int]:
    """Sums over nodes of the mean error of rows drawn with replacement within each (draws,); rows and freedom."""
    base, ours = np.zeros(DRAWS), np.zeros(DRAWS)
    for node in np.unique(errors.owner):
        rows = np.flatnonzero(errors.owner == node)
        drawn = rng.multinomial(len(rows), np.full(len(rows), 1 / len(rows)), size=DRAWS) / len(rows)
        base += drawn @ errors.rows[methods[0]][rows]
        ours += drawn @ errors.rows[methods[1]][rows]
    fewest = int(np.unique(errors.owner, return_counts=True)[1].min())
    return base, ours, fewest, len(errors.owner) - len(np.unique(errors.owner))


def neighbourhoods(graph: Graph) -> Ints:
    """Blocks of neighbouring nodes, each of at most √n / 2 nodes, grown along edges.

    >>> from kinfolk import graphs
    >>> neighbourhoods(graphs.chain(16))
    array([0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7])
    """
    most = max(1, round(np.sqrt(graph.node_count) / 2))
    adjacency = graph.to_sparse()
    block = np.full(graph.node_count, -1)
    count = 0
    for start in range(graph.node_count):
        if block[start] >= 0:
            continue
        queue, size = [start], 0
        while queue and size < most:
            node = queue.pop(0)
            if block[node] >= 0:
                continue
            block[node], size = count, size + 1
            near = adjacency.indices[adjacency.indptr[node] : adjacency.indptr[node + 1]]
            queue += [int(k) for k in near if block[k] < 0]
        count += 1
    return block.astype(np.int64)


def judge(
    errors: HeldOutErrors, graph: Graph, alone_is_possible: bool, seed: int, recommended: Role = Role.POOLED
) -> Judgement:
    """Compare tailored models with the better baseline.

    Parameters
    ----------
    errors : HeldOutErrors
        The errors of the test rows, by role.
    graph : Graph
        Neighbours err alike, so nodes are drawn in blocks.
    recommended : Role
        What cross-validation in the training rows recommends.
    alone_is_possible : bool
        Whether some tested node has rows to learn alone from.
    seed : int
        Seed of the draws.

    Returns
    -------
    Judgement
        The verdict and its numbers.
    """
    nodes = errors.by_node(graph.node_count).dropna()
    baselines = [Role.ALONE, Role.POOLED] if alone_is_possible else [Role.POOLED]
    against = min(baselines, key=lambda role: nodes[role].to_numpy().mean())
    gain, low, high = interval(errors, graph, against, Role.FINAL, seed)
    difference = nodes[Role.FINAL] - nodes[against]
    verdict: Verdict = "helps" if low > 0 else "does not help" if high < 0 else "no clear difference"
    control = None
    if Role.CONTROL in errors.rows and verdict == "helps":
        control = interval(errors, graph, against, Role.CONTROL, seed)[0]
    helped, hurt = (100 * float(nodes.mean()) for nodes in (difference < 0, difference > 0))
    return Judgement(verdict, recommended, against, alone_is_possible, gain, low, high, helped, hurt, control)
