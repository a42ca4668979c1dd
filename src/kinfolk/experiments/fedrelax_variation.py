"""Abdurakhmanova, SarcheshmehPour, Jung: Towards Model-Agnostic Federated Learning over Networks (2025).

Section V, figure 5: the variation of linear models within a cluster, and its bound (25).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas
import scipy.linalg
import scipy.sparse.csgraph

from kinfolk.datasets import Synthetic
from kinfolk.experiments.fedrelax_runs import (
    PAPER_ROUNDS,
    SAMPLES,
    clustered,
    parameters,
    steps,
)
from kinfolk.experiments.outcome import Claim, Outcome
from kinfolk.experiments.unfinished import once
from kinfolk.network.network import Network

VARIATION_ROUNDS = (0, 10, 20, 50, 100, 200, 300, 400, 500)


def fig5a(seeds: int = 5, quick: bool = False) -> Outcome:
    """FedRelax, figure 5a: variation within a cluster and its bound (25), by the noise."""
    return _variation_outcome("fedrelax-fig5a", "σ", (0.1, 5.0) if quick else (0.1, 1.0, 5.0), seeds, quick)


def fig5b(seeds: int = 5, quick: bool = False) -> Outcome:
    """FedRelax, figure 5b: variation within a cluster and its bound (25), by how well it is joined."""
    return _variation_outcome("fedrelax-fig5b", "p_in", (0.2, 1.0) if quick else (0.2, 0.6, 1.0), seeds, quick)


def _variation_outcome(name: str, along: str, values: tuple[float, ...], seeds: int, quick: bool) -> Outcome:
    node_count, lams, records = 20 if quick else 50, (1e-4, 1e-2, 1e-1), []
    for value, lam, seed in itertools.product(values, lams, range(1 if quick else seeds)):
        noise, p_in = (value, 0.8) if along == "σ" else (0.1, value)
        problem = clustered((node_count,), 10, noise, seed, p_in)
        bound = _variation_bound(problem, lam)
        for count, found in once((along, value, lam, seed), _variations, problem.network, lam, seed):
            row = {"round": count, "variation": found, "bound": bound, "seed": seed}
            records.append({along: value, "α": lam, **row})
    frame = pandas.DataFrame(records)
    means = frame.groupby([along, "α", "round"])[["variation", "bound"]].mean()
    last = means.xs(PAPER_ROUNDS, level="round")
    return Outcome(
        name,
        f"Figure {name[-2:]}: variation Σ‖w_i − mean‖² and its bound (25) after 500 rounds",
        f"One cluster of {node_count} nodes, d = 10, {'p_in = 0.8' if along == 'σ' else 'σ = 0.1'}; a step of RMSprop "
        "per round. (25) is proved for the coupling ‖w_i − w_j‖².",
        frame,
        last.reset_index(),
        _variation_claims(last, along),
        lambda figure, runs: _draw_variation(figure, runs, along),
    )


def _variation_bound(problem: Synthetic, lam: float) -> float:
    """(25): Σ_i L_i(w̄) / (α λ₂)."""
    data = problem.network.data
    wrong = (data.y - np.einsum("rd,rd->r", data.X, problem.truth[data.owner])) ** 2
    laplacian = scipy.sparse.csgraph.laplacian(problem.network.graph.to_sparse()).toarray()
    return float(wrong.sum() / SAMPLES / (lam * scipy.linalg.eigvalsh(laplacian)[1]))


def _variations(network: Network, lam: float, seed: int) -> Iterator[tuple[int, float]]:
    """Σ_i ‖w_i − mean‖² (22) after some rounds."""
    run = None
    for before, count in itertools.pairwise((0, *VARIATION_ROUNDS)):
        run = steps(network, lam, seed, rounds=count - before, start=run)
        w = parameters(run)
        yield count, float(((w - w.mean(axis=0)) ** 2).sum())


def _variation_claims(last: Any, along: str) -> list[Claim]:
    ratio, by_lam = last["variation"] / last["bound"], last["variation"].unstack("α")
    more, falls = by_lam.diff().iloc[1:], by_lam.T.diff().iloc[1:]
    expected = (more > 0) if along == "σ" else (more < 0)
    text = "The more noise, the more variation" if along == "σ" else "The better joined, the less variation"
    return [
        Claim(
            "The variation is below the bound (25) after 500 rounds",
            bool((ratio < 1).all()),
            f"{ratio.min():.1g} to {ratio.max():.1g} of it",
        ),
        Claim("The larger α, the less variation", bool((falls < 0).to_numpy().all()), _extremes(by_lam)),
        Claim(text, bool(expected.to_numpy().all()), _extremes(by_lam.T)),
    ]


def _extremes(table: Any) -> str:
    """The first and the last column of every row."""
    first, last = table.columns[0], table.columns[-1]
    return "; ".join(
        f"{table.index.name} = {name:g}: {row[first]:.2g} at {first:g}, {row[last]:.2g} at {last:g}"
        for name, row in table.iterrows()
    )


def _draw_variation(figure: Any, runs: pandas.DataFrame, along: str) -> None:
    """A panel per α: variation (solid) and bound (dashed) by round."""
    lams = sorted(runs["α"].unique())
    panels = figure.subplots(1, len(lams), sharey=True)
    for axes, lam in zip(panels, lams, strict=True):
        for k, (value, part) in enumerate(runs[runs["α"] == lam].groupby(along)):
            mean = part.groupby("round")[["variation", "bound"]].mean()
            axes.plot(
                mean.index, mean["variation"], color=f"C{k}", marker="o", markersize=3, label=f"{along} = {value:g}"
            )
            axes.plot(mean.index, mean["bound"], color=f"C{k}", linestyle="--")
        axes.set_yscale("log")
        axes.set_title(f"α = {lam:g}", fontsize=10)
        axes.grid(alpha=0.3)
    figure.supxlabel("round")
    figure.supylabel("variation Σ‖w_i − mean‖² (solid), bound (25) (dashed)")
    figure.suptitle(f"Figure 5: one cluster, by {along}")
    panels[0].legend(fontsize=8)
