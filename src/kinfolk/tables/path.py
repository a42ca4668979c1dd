"""The tailored models along λ, in a few numbers per node, and how strongly neighbours pull at each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kinfolk.algorithms.fedrelax import FedRelax
from kinfolk.engine.run import Run
from kinfolk.network.graph import Graph
from kinfolk.report.facts import LamPath
from kinfolk.tables.groups import UNEXPLAINED, groups, spread
from kinfolk.tables.target import Target
from kinfolk.typing import Floats, Ints

if TYPE_CHECKING:
    from kinfolk.tables.entry import Entry

MOST_NUMBERS = 12  # of a signature


def lam_path(target: Target, graph: Graph, entry: Entry, path_runs: list[Run]) -> LamPath:
    """The path of the tailored models; only the answer where the parameter is not λ."""
    kept = path_runs if entry.parameters[0] == "lam" else path_runs[entry.best : entry.best + 1]
    signatures = np.array([_signature(run, target) for run in kept])
    best = entry.best if entry.parameters[0] == "lam" else 0
    allowed = spread(_filled(signatures[best])) * UNEXPLAINED
    found = np.array([groups(graph, _filled(numbers), allowed) for numbers in signatures])
    w = hasattr(path_runs[0].models, "w")
    numbers = signatures.shape[2]
    names = (*path_runs[0].problem.features, "intercept") if w else tuple(f"point {k}" for k in range(numbers))
    return path_of(target, entry, found, signatures[:, :, :MOST_NUMBERS], names[:MOST_NUMBERS], w)


def path_of(
    target: Target, entry: Entry, groups: Ints, signature: Floats, names: tuple[str, ...], coefficients: bool
) -> LamPath:
    """The path, with the errors that cross-validation found."""
    kept = slice(None) if entry.parameters[0] == "lam" else slice(entry.best, entry.best + 1)
    shown = target.shown(entry.errors[kept])
    folds = shown.shape[1]
    return LamPath(
        lams=entry.values[kept, 0],
        chosen=entry.best if entry.parameters[0] == "lam" else 0,
        errors=target.shown(entry.errors[kept] @ entry.shares),
        spread=shown.std(axis=1, ddof=1) / np.sqrt(folds) if folds > 1 else np.zeros(len(shown)),
        groups=groups,
        signature=signature,
        names=names,
        coefficients=coefficients,
    )


def edge_flows(graph: Graph, run: Run, target: Target) -> Floats:
    """How strongly the ends of every edge pull at each other (edges,): the dual variable, or how much they differ."""
    u = getattr(run.state, "u", None)
    if u is None:
        numbers = _signature(run, target)
        u = graph.weights[:, None] * (numbers[graph.head] - numbers[graph.tail]) / np.sqrt(numbers.shape[1])
    return np.asarray(np.nan_to_num(np.linalg.norm(u, axis=1)))


def _signature(run: Run, target: Target) -> Floats:
    """Numbers that describe the model of every node: parameters, or predictions on public points."""
    if hasattr(run.models, "w"):
        return np.asarray(run.models.w)
    if isinstance(run.algorithm, FedRelax):
        return np.asarray(run.state.predicted.reshape(len(run.state.predicted), -1))
    assert run.problem.public is not None
    count, points = run.problem.graph.node_count, run.problem.public.points
    rows = np.tile(points, (count, 1)) if points.ndim == 2 else points.reshape(-1, points.shape[-1])
    predicted = target.predicted(run.models, rows, np.repeat(np.arange(count), len(rows) // count))
    return predicted.reshape(count, -1)


def _filled(numbers: Floats) -> Floats:
    """Nodes without a model are like the mean of the others."""
    return np.where(np.isnan(numbers), np.nanmean(numbers, axis=0), numbers)
