"""The regularisation path, and choosing λ by cross-validation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
import pandas

from kinfolk.checks import AtLeast, InputError, check_value
from kinfolk.engine.fit import Tolerance, fit
from kinfolk.engine.run import Run
from kinfolk.network.folds import node_folds, row_folds
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


def cross_validate(
    parts: Sequence[Network],
    runs: Callable[[Network], Iterable[Run]],
    score: Callable[[int, Run], Any],
    cached: Callable[[int, Callable[[], Any]], Any] = lambda part, make: make(),
) -> list[Any]:
    """Score every run on what its part of the data leaves out: the one loop behind every choice of λ.

    Parameters
    ----------
    parts : sequence of Network
        What is learnt from, part after part.
    runs : callable
        From a network to the runs that are compared, such as those along a path of λ.
    score : callable
        From the number of a part and a run to its error on what was held out: a number, or an array over rows.
    cached : callable
        From the number of a part and a function that makes its scores to these scores; it may keep them.

    Returns
    -------
    list of array
        For each part the scores of the runs, shape (runs, ...).
    """

    def scores(part: int) -> Any:
        return np.array([score(part, run) for run in runs(parts[part])])

    return [cached(part, partial(scores, part)) for part in range(len(parts))]


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
    options: dict[str, Any] = {"rounds": rounds, "stop": Tolerance(accuracy), "measure_every": 20, "progress": False}
    parts = [network.hold_out(rows) for rows in _held_out(network, over, folds, seed)]
    with progress_bar("choosing λ", len(lams) * folds) as bar:

        def error(part: int, run: Run) -> float:
            bar.advance(1, f"residual {run.last_row['residual']:.1e}")
            return run.error()

        found = cross_validate(parts, lambda part: (run for _, run in path(part, algorithm, lams, **options)), error)
    errors = np.stack(found, axis=1)[::-1]  # (λ, folds), the largest first
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


def _held_out(network: Network, over: str, count: int, seed: int) -> list[Bools]:
    """Which rows are held out, part after part."""
    data = network.data
    if over == "samples" and data.sizes.max() < 2:
        raise InputError("Expected a node with two samples at least to hold some out, got none: use over='nodes'.")
    fold = node_folds(data.owner, count, seed) if over == "nodes" else row_folds(data.owner, count, seed)
    return [fold == part for part in range(count)]
