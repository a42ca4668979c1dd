"""The regularisation path, and choosing λ by cross-validation."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import pandas

from kinfolk.checks import AtLeast, InputError, check_value
from kinfolk.engine.fit import Tolerance, fit
from kinfolk.engine.run import Run
from kinfolk.network.network import Network
from kinfolk.progress import progress_bar
from kinfolk.typing import Bools


def path(network: Network, algorithm: Any, lams: Sequence[float], **options: Any) -> Iterator[tuple[float, Run]]:
    """The runs for several values of λ, from the smallest up, each started where the answers before point to.

    Upwards, because what is fused tends to stay fused: along a path an answer can often be polished at once, without
    a round. ``options`` go to ``fit``.

    >>> from kinfolk import GTVMin, graphs
    >>> x = np.ones((1, 1))
    >>> network = Network(graphs.chain(2), [(x, [0.0]), (x, [1.0])])
    >>> [(lam, run.models.w.round(3).ravel().tolist()) for lam, run in path(network, GTVMin(), [2.0, 0.4])]
    [(0.4, [0.2, 0.8]), (2.0, [0.5, 0.5])]
    """
    _check(algorithm, lams)
    runs: list[Run] = []
    for lam in sorted(lams):
        here = dataclasses.replace(algorithm, lam=lam)
        runs = [*runs[-1:], fit(network, here, start=_ahead(here, runs), **options)]
        yield lam, runs[-1]


def _ahead(algorithm: Any, runs: list[Run]) -> Run | None:
    """The last run, with the state that the algorithm expects to find at its own λ."""
    if not runs:
        return None
    past = [(run.algorithm.lam, run.state) for run in runs]
    return runs[-1].with_state(algorithm.extrapolate(runs[-1].network.site, past))


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
    over: Literal["nodes", "samples"] = "nodes",
    folds: int = 5,
    seed: int = 0,
    rounds: int = 1_000,
    accuracy: float = 1e-4,
) -> Selection:
    """The λ with the smallest error on data that were held out, ``folds`` disjoint parts in turn.

    ``over="nodes"`` holds out all data of some nodes: can a node be predicted from its kin? ``over="samples"`` holds
    out some samples of every node: can its next samples be? Test data are never looked at. Candidates are fitted
    along a path as far as ``accuracy``: a choice between values of λ needs no more.

    >>> from kinfolk import GTVMin, SquaredNorm, datasets
    >>> counties = datasets.load_us_counties().network()
    >>> algorithm = GTVMin(coupling=SquaredNorm(), steps="direct")
    >>> select_lam(counties, algorithm, [1e-3, 1.0, 1e3], folds=2).lam
    1.0
    """
    _check(algorithm, lams)
    check_value("folds", "select_lam", folds, Annotated[int, AtLeast(2)])
    check_value("over", "select_lam", over, Literal["nodes", "samples"])
    errors = np.empty((len(lams), folds))
    options: dict[str, Any] = {"rounds": rounds, "stop": Tolerance(accuracy), "measure_every": 20, "progress": False}
    with progress_bar("choosing λ", errors.size) as bar:
        for f, held_out in enumerate(_folds(network, over, folds, seed)):
            for k, (_, run) in enumerate(path(network.hold_out(held_out), algorithm, lams, **options)):
                errors[-1 - k, f] = run.error()
                bar.update(f * len(lams) + k + 1, f"residual {run.history['residual'].iloc[-1]:.1e}")
    if np.isnan(errors).all():
        raise InputError("Expected held-out nodes with neighbours that have data, got none: is the graph edgeless?")
    table = pandas.DataFrame(
        {"error": errors.mean(axis=1), "standard_error": errors.std(axis=1, ddof=1) / np.sqrt(folds)},
        index=pandas.Index(sorted(lams, reverse=True), name="lam"),
    )
    return Selection(float(table.index[int(np.nanargmin(table["error"]))]), table)


def _check(algorithm: Any, lams: Sequence[float]) -> None:
    if not len(lams):
        raise InputError("Expected values of λ to choose from, got none.")
    if not hasattr(algorithm, "lam"):
        raise InputError(f"Expected an algorithm with a λ, got {type(algorithm).__name__}.")


def _folds(network: Network, over: str, folds: int, seed: int) -> Iterator[Bools]:
    """Which rows are held out, part after part."""
    data, rng = network.data, np.random.default_rng(seed)
    owner, sizes = data.owner, data.sizes
    if over == "nodes":
        holders = rng.permutation(np.flatnonzero(sizes > 0))
        if folds > len(holders):
            raise InputError(f"Expected at most as many folds as nodes with data ({len(holders)}), got {folds}.")
        part = np.empty(data.node_count, dtype=np.int64)
        part[holders] = np.arange(len(holders)) % folds
        rows = part[owner]
    else:
        if sizes.max() < 2:
            raise InputError("Expected a node with two samples at least to hold some out, got none: use over='nodes'.")
        # Samples in random order within their node, dealt out in turn; where a node starts is random, too.
        order = np.lexsort((rng.random(len(owner)), owner))
        turn = np.arange(len(owner)) - data.starts[owner] + rng.integers(0, folds, data.node_count)[owner]
        rows = np.empty(len(owner), dtype=np.int64)
        rows[order] = turn % folds
    for fold in range(folds):
        yield rows == fold
