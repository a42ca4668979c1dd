"""Choices that are kept: values, members and weights of a run, for a table that has grown."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from kinfolk.algorithms import GTVMin
from kinfolk.checks import InputError
from kinfolk.engine.fit import fit
from kinfolk.engine.run import Run
from kinfolk.network.graph import Graph
from kinfolk.network.network import Network
from kinfolk.progress import Bar
from kinfolk.report.facts import Role
from kinfolk.tables.cross_validation import Kept
from kinfolk.tables.entry import Entry
from kinfolk.tables.intervals import Intervals
from kinfolk.tables.job import Tuning, tune
from kinfolk.tables.local_party import LocalParty
from kinfolk.tables.members.graph_member import FittedRuns
from kinfolk.tables.party import OneParty
from kinfolk.tables.prepared import Prepared
from kinfolk.tables.table_run import TableRun
from kinfolk.typing import Bools, Floats, Ints

STEEP = 1e12  # a step at which the dual prox is the slope of the coupling


def kept_tuning(before: TableRun, after: Prepared, bar: Bar) -> Tuning:
    """The choices of ``before`` for the rows of ``after``: GTV minimisation starts from its answer."""
    used = {
        name: entry
        for name, entry in before.entries.items()
        if entry.fitted is not None and not (name == Role.ALONE and entry.part == "baseline")
    }
    kept = {name: _kept(entry) for name, entry in {**used, Role.ALONE: before.entries[Role.ALONE]}.items()}
    parties = OneParty(LocalParty(after.rows, bar=bar))
    tuning = tune(parties, after.design, kept, list(used))
    missing = [name for name in used if name not in tuning.validations]
    if missing:
        raise InputError(f"Expected rows that the member {missing[0]!r} can learn from, got others: fit again.")
    tuning.tailored.start = start_from(before, after.rows.nodes)
    return dataclasses.replace(
        tuning, left_out={}, weights={str(name): float(weight) for name, weight in before.weights.items()}
    )


def _kept(entry: Entry) -> Kept:
    """The value that was chosen, after those that led there, with its error in cross-validation."""
    values = [tuple(value) for value in entry.values[: entry.best + 1].tolist()]
    return Kept(values, entry.errors[entry.best : entry.best + 1], entry.shares)


def kept_intervals(before: TableRun, names: list[str]) -> Intervals | None:
    """Those of the run before; a node that it did not know has the widths of nodes never seen."""
    kept = before.intervals
    if kept is None:
        return None
    number = _numbers_before(before, names)
    return dataclasses.replace(
        kept,
        scale=np.where(number >= 0, kept.scale[number], float(np.median(kept.scale))),
        seen=(number >= 0) & kept.seen[number],
        usual=np.where(number >= 0, kept.usual[number], 0.0),
    )


def start_from(before: TableRun, names: list[str]) -> Callable[[Network, Any, int], Run | None]:
    """GTV minimisation from the parameters before; new nodes from the mean of their neighbours."""

    def start(network: Network, algorithm: Any, output: int) -> Run | None:
        fitted = before.entries[Role.TAILORED].fitted
        if not isinstance(algorithm, GTVMin) or not isinstance(fitted, FittedRuns) or fitted.scores is None:
            return None
        blank = fit(network, algorithm, rounds=0, stop=None, progress=False)
        number = _numbers_before(before, names)
        w = spread_out(network.graph, np.where(number[:, None] >= 0, fitted.scores.w[output][number], np.nan))
        steep, site = np.full(network.graph.edge_count, STEEP), network.site
        apart = site.difference(w, w[:0])
        u = algorithm.coupling.dual_prox(STEEP * apart, steep, algorithm.lam * site.weights)
        return blank.with_state(blank.state._replace(w=w, w_bar=w.copy(), u=u))

    return start


def spread_out(graph: Graph, w: Floats) -> Floats:
    """Parameters of all nodes: where they are not known, the mean of known neighbours, or of all.

    >>> spread_out(Graph(4, [[0, 1]]), np.array([[1.0], [np.nan], [3.0], [np.nan]])).ravel().tolist()
    [1.0, 1.0, 3.0, 2.0]
    """
    known: Bools = np.asarray(~np.isnan(w).any(axis=1))
    if known.all():
        return w
    if not known.any():
        return np.zeros_like(w)
    total, count = np.zeros_like(w), np.zeros(len(w))
    for mine, other in ((graph.head, graph.tail), (graph.tail, graph.head)):
        told = known[other]
        np.add.at(total, mine[told], w[other[told]])
        np.add.at(count, mine[told], 1.0)
    near = np.divide(total, count[:, None], out=np.tile(w[known].mean(axis=0), (len(w), 1)), where=count[:, None] > 0)
    return np.where(known[:, None], w, near)


def _numbers_before(before: TableRun, names: list[str]) -> Ints:
    """The number that every node had in a run (nodes,); −1 where it had none."""
    number = {str(name): k for k, name in enumerate(before.graph.names)}
    return np.array([number.get(name, -1) for name in names], dtype=np.int64)
