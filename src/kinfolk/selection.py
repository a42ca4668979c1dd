"""Choosing λ by cross-validation over held-out nodes: can a node's labels be predicted from its kin?"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pandas

from kinfolk.checks import AtLeast, InputError, check_value
from kinfolk.network import Network
from kinfolk.progress import progress_bar
from kinfolk.run import Tolerance, fit


@dataclass(frozen=True)
class Selection:
    """The λ chosen, and the error of every candidate."""

    lam: float
    errors: pandas.DataFrame  # index λ; columns: mean error over folds, and its standard error


def select_lam(
    network: Network,
    algorithm: Any,
    lams: Sequence[float],
    *,
    folds: int = 5,
    seed: int = 0,
    rounds: int = 1_000,
    accuracy: float = 1e-4,
) -> Selection:
    """The λ with the smallest error at nodes whose data were hidden, ``folds`` disjoint parts in turn.

    Test data are never looked at. Candidates are fitted from the largest λ down, each from the answer before, as far
    as ``accuracy``: a choice between values of λ needs no more.

    >>> from kinfolk import GTVMin, SquaredNorm, datasets
    >>> counties = datasets.load_us_counties().network()
    >>> algorithm = GTVMin(coupling=SquaredNorm(), steps="direct")
    >>> select_lam(counties, algorithm, [1e-3, 1.0, 1e3], folds=2).lam
    1.0
    """
    holders = np.flatnonzero(network.data.sizes > 0)
    check_value("folds", "select_lam", folds, Annotated[int, AtLeast(2)])
    if folds > len(holders):
        raise InputError(f"Expected at most as many folds as nodes with data ({len(holders)}), got {folds}.")
    if not len(lams):
        raise InputError("Expected values of λ to choose from, got none.")
    if not hasattr(algorithm, "lam"):
        raise InputError(f"Expected an algorithm with a λ, got {type(algorithm).__name__}.")
    parts = np.array_split(np.random.default_rng(seed).permutation(holders), folds)
    descending = sorted(lams, reverse=True)
    errors = np.empty((len(descending), folds))
    options: dict[str, Any] = {"rounds": rounds, "stop": Tolerance(accuracy), "measure_every": 20, "progress": False}
    with progress_bar("choosing λ", errors.size) as bar:
        for f, part in enumerate(parts):
            run = None
            reduced = network.hide(np.isin(np.arange(network.graph.node_count), part))
            for k, lam in enumerate(descending):
                run = fit(reduced, dataclasses.replace(algorithm, lam=lam), start=run, **options)
                errors[k, f] = run.error()
                bar.update(f * len(descending) + k + 1, {"residual": run.history["residual"].iloc[-1]})
    if np.isnan(errors).all():
        raise InputError("Expected hidden nodes with neighbours that have data, got none: is the graph edgeless?")
    table = pandas.DataFrame(
        {"error": errors.mean(axis=1), "standard_error": errors.std(axis=1, ddof=1) / np.sqrt(folds)},
        index=pandas.Index(descending, name="lam"),
    )
    return Selection(descending[int(np.nanargmin(table["error"]))], table)
