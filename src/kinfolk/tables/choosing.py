"""Choosing: λ, the ridge term, the method and what each node takes, by cross-validation inside the training rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from kinfolk.network import public
from kinfolk.network.data import Data
from kinfolk.network.network import Network
from kinfolk.progress import Bar
from kinfolk.tables.candidates import Candidate, say
from kinfolk.tables.kin import Kinship
from kinfolk.tables.splits import Fold
from kinfolk.tables.target import Target
from kinfolk.typing import Bools, Floats, Ints

PUBLIC_POINTS = 100
ROUGH = 1e-4  # how exactly candidates are fitted that are only compared
Arrays = dict[str, Any]


class Journal(Protocol):
    """Where work that is done is kept, so that an interrupted run can go on."""

    def kept(self, key: str, make: Callable[[], Arrays]) -> Arrays:
        """The arrays under this key: read, or made and written."""
        ...


class Forgetful:
    """A journal that keeps nothing."""

    def kept(self, key: str, make: Callable[[], Arrays]) -> Arrays:
        """Made anew."""
        return make()


@dataclass(frozen=True, eq=False)
class Training:
    """The training rows, the nodes they belong to, and how they are split to choose."""

    X: Floats  # (rows, features)
    y: Floats  # (rows,)
    owner: Ints  # (rows,)
    names: list[str]
    features: list[str]
    target: Target
    kinship: Kinship
    folds: Sequence[Fold]
    seed: int

    def network(self, rows: Any = slice(None)) -> Network:
        """The network of some rows, with public points for methods that compare predictions."""
        data = Data.from_rows(self.X[rows], self.y[rows], self.owner[rows], len(self.names))
        network = Network(self.kinship.graph(data, self.target), data, features=self.features)
        return network.with_public(public.like_the_data(network, PUBLIC_POINTS, seed=self.seed))


@dataclass(frozen=True, eq=False)
class Validation:
    """How a candidate did on training rows that it had not seen."""

    candidate: Candidate
    errors: Floats  # (strengths, folds) mean over nodes
    best: int
    row_loss: Floats  # (rows,) with the best strength; NaN where a row was never predicted
    own: Bools  # (rows,) whether a model of its node predicted the row, rather than one for all

    @property
    def strength(self) -> float:
        """The strength with the smallest error."""
        return sorted(self.candidate.strengths)[self.best]

    @property
    def error(self) -> float:
        """The smallest error, a mean over folds."""
        return float(self.errors[self.best].mean())


def validate(
    training: Training,
    candidate: Candidate,
    networks: Sequence[Network],
    fallback: Floats | None,
    journal: Journal,
    bar: Bar,
) -> Validation:
    """Predict every fold from the others with all strengths; a node without a model has the ``fallback`` loss."""
    strengths = sorted(candidate.strengths)
    losses = np.full((len(strengths), len(training.y)), np.nan, dtype=np.float32)
    errors = np.empty((len(strengths), len(training.folds)))
    own = np.zeros(len(training.y), dtype=bool)
    before, note = bar.count, "control" if candidate.role == "control" else candidate.title
    for f, (network, (_, held)) in enumerate(zip(networks, training.folds, strict=True)):
        rows = np.flatnonzero(held)

        def made(network: Network = network, rows: Ints = rows) -> Arrays:
            loss = np.empty((len(strengths), len(rows)), dtype=np.float32)
            for k, fit in enumerate(candidate.fits(network, strengths, ROUGH)):
                loss[k] = _loss(training, fit.models, rows)
                bar.advance(1, note)
            return {"loss": loss}

        found = journal.kept(f"{candidate.key} {f}", made)["loss"]
        own[rows] = ~np.isnan(found[0])
        if fallback is not None:
            found = np.where(np.isnan(found), fallback[rows], found)
        losses[:, rows] = found
        errors[:, f] = [float(np.mean(by_node(loss, training.owner[rows])[1])) for loss in found]
        bar.update(before + (f + 1) * len(strengths), note)
    best = int(np.nanargmin(errors.mean(axis=1)))
    return Validation(candidate, errors, best, losses[best].astype(np.float64), own)


def _loss(training: Training, models: Any, rows: Ints) -> Floats:
    said = say(models, training.target, training.X[rows], training.owner[rows])
    return training.target.loss(said, training.y[rows])


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
    s², μ and τ² estimated from all rows (method of moments). A node without rows gets μ, and so does everybody where
    no node has two rows: noise cannot be told from differences then.

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
    between = max(
        (float(mean[seen].var(ddof=1)) if seen.sum() > 1 else 0.0) - noise * float((1 / sizes[seen]).mean()), 0.0
    )
    trust = np.divide(between, between + noise / np.maximum(sizes, 1), out=np.zeros(node_count), where=between > 0)
    return np.where(seen, centre + trust * (mean - centre), centre)
