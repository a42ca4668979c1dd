"""Validation: λ, the ridge term, the method and each node's model, chosen by cross-validation in the training rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kinfolk.engine.run import Run
from kinfolk.engine.selection import cross_validate
from kinfolk.network.network import Network
from kinfolk.progress import Bar
from kinfolk.report.facts import MODEL_ROLES, Role
from kinfolk.tables.families import Candidate
from kinfolk.tables.journal import Journal
from kinfolk.tables.prepared import Prepared
from kinfolk.typing import Bools, Floats, Ints

ROUGH = 1e-4  # how exactly candidates are fitted that are only compared


@dataclass(frozen=True, eq=False)
class Validation:
    """How a candidate did on training rows that it had not seen."""

    candidate: Candidate
    errors: Floats  # (values, folds) mean over nodes
    best: int
    row_loss: Floats  # (rows,) with the best value; NaN where a row was never predicted
    own: Bools  # (rows,) whether a model of its node predicted the row, rather than one for all

    @property
    def value(self) -> float:
        """The value with the smallest error: this is where λ is chosen."""
        return self.candidate.values[self.best]

    @property
    def error(self) -> float:
        """The smallest error, a mean over folds."""
        return float(self.errors[self.best].mean())


def validate(
    prepared: Prepared,
    candidate: Candidate,
    parts: Sequence[Network],
    fallback: Floats | None,
    journal: Journal,
    bar: Bar,
) -> Validation:
    """Predict every fold from the others with all values; a node without a model has the ``fallback`` loss."""
    train, held = prepared.training, [np.flatnonzero(rows) for _, rows in prepared.folding.folds]
    before, key = bar.count, f"{candidate.role} {candidate.method} {candidate.values}"
    note = str(candidate.role) if candidate.role is Role.CONTROL else candidate.method or str(candidate.role)

    def losses(part: int, run: Run) -> Floats:
        bar.advance(1, note)
        rows = held[part]
        node = np.zeros_like(rows) if candidate.role is Role.POOLED else train.owner[rows]  # pooled: one common node
        found = prepared.target.predicted(run.models, train.X[rows], node)
        return np.asarray(prepared.target.loss(found, train.y[rows]), dtype=np.float32)

    found = cross_validate(
        parts,
        lambda network: candidate.runs(network, candidate.values, ROUGH),
        losses,
        lambda part, make: journal.cached(f"{key} {part}", make),
    )
    bar.update(before + len(candidate.values) * len(parts), note)
    errors = np.empty((len(candidate.values), len(parts)))
    rowwise = np.full((len(candidate.values), len(train.y)), np.nan)
    for part, (rows, loss) in enumerate(zip(held, found, strict=True)):
        rowwise[:, rows] = loss
        if fallback is not None:
            loss = np.where(np.isnan(loss), fallback[rows], loss)
        errors[:, part] = [float(np.mean(by_node(each, train.owner[rows])[1])) for each in loss]
    best = int(np.nanargmin(errors.mean(axis=1)))
    own, row_loss = ~np.isnan(rowwise[0]), rowwise[best]
    row_loss = row_loss if fallback is None else np.where(np.isnan(row_loss), fallback, row_loss)
    return Validation(candidate, errors, best, row_loss, own)


def best_roles(validations: dict[Role, Validation], owner: Ints, node_count: int) -> list[Role]:
    """For each node the role with the smallest loss on its own validation rows, shrunk to the network's mean gain.

    A node is left alone only if that was tried on rows of its own.
    """
    tailored = validations[Role.TAILORED].row_loss
    gains = [shrunken_gain(tailored - validations[role].row_loss, owner, node_count) for role in MODEL_ROLES]
    tried = np.bincount(owner, validations[Role.ALONE].own, minlength=node_count) > 0
    gains[MODEL_ROLES.index(Role.ALONE)][~tried] = -np.inf
    return [MODEL_ROLES[k] for k in np.argmax(gains, axis=0)]


def by_node(values: Floats, owner: Ints) -> tuple[Ints, Floats]:
    """The nodes that rows belong to, and the mean of each; rows with NaN are left out.

    >>> by_node(np.array([1.0, 3.0, np.nan, 5.0]), np.array([4, 4, 4, 2]))
    (array([2, 4]), array([5., 2.]))
    """
    known = ~np.isnan(values)
    nodes, inverse = np.unique(owner[known], return_inverse=True)
    return nodes, np.bincount(inverse, values[known]) / np.bincount(inverse)


def shrunken_gain(gain: Floats, owner: Ints, node_count: int) -> Floats:
    """How much better another model is at each node, drawn towards the mean of all nodes where rows are few.

    Rows r of node i have gains g_r ~ N(μ_i, s²), nodes μ_i ~ N(μ, τ²); the answer is the posterior mean of μ_i, with
    s², μ and τ² estimated from all rows (method of moments). A node without rows gets μ, and so do all where
    no node has two rows: noise and differences cannot be separated then.

    >>> shrunken_gain(np.array([3.0, -1.0, 1.0, -3.0, 9.0]), np.array([0, 0, 1, 1, 2]), 4).round(2)
    array([ 1.3 , -0.4 ,  7.43,  3.  ])
    """
    known = ~np.isnan(gain)
    gain, owner = gain[known], owner[known]
    sizes = np.bincount(owner, minlength=node_count)
    seen = sizes > 0
    if not seen.any():
        return np.zeros(node_count)
    mean = np.zeros(node_count)
    mean[seen] = np.bincount(owner, gain, minlength=node_count)[seen] / sizes[seen]
    centre = float(mean[seen].mean())
    freedom = len(gain) - int(seen.sum())
    if freedom == 0:
        return np.full(node_count, centre)
    noise = float(((gain - mean[owner]) ** 2).sum()) / freedom
    apart = float(mean[seen].var(ddof=1)) if seen.sum() > 1 else 0.0
    between = max(apart - noise * float((1 / sizes[seen]).mean()), 0.0)
    trust = np.divide(between, between + noise / np.maximum(sizes, 1), out=np.zeros(node_count), where=between > 0)
    return np.where(seen, centre + trust * (mean - centre), centre)
