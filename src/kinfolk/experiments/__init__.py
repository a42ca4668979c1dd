"""The tables and figures of the papers, as functions that return data frames.

>>> print(*EXPERIMENTS)
gtv-table1 gtv-fig2 gtv-fig3 gtv-fig4 gtv-fig5 gtv-fig6 gtv-fig7 fedrelax-fig1a fedrelax-fig1b fedrelax-fig1c
fedrelax-fig2a fedrelax-fig2b fedrelax-fig3 fedrelax-fig4 fedrelax-fig5a fedrelax-fig5b gfl-fig1 gfl-fig3 gfl-fig4
gfl-phi fedcg-table3 fedcg-table4 fedcg-table5 fedcg-mixed
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kinfolk.checks import InputError
from kinfolk.experiments import (
    fedcg,
    fedrelax,
    fedrelax_trees,
    fedrelax_variation,
    gfl,
    gfl_bigfl,
    gfl_reviews,
    gtv,
    gtv_mnist,
)
from kinfolk.experiments.outcome import Claim, Outcome

EXPERIMENTS: Mapping[str, Callable[..., Outcome]] = {
    "gtv-table1": gtv.table1,
    "gtv-fig2": gtv.fig2,
    "gtv-fig3": gtv.fig3,
    "gtv-fig4": gtv.fig4,
    "gtv-fig5": gtv_mnist.fig5,
    "gtv-fig6": gtv_mnist.fig6,
    "gtv-fig7": gtv_mnist.fig7,
    "fedrelax-fig1a": fedrelax.fig1a,
    "fedrelax-fig1b": fedrelax.fig1b,
    "fedrelax-fig1c": fedrelax.fig1c,
    "fedrelax-fig2a": fedrelax_trees.fig2a,
    "fedrelax-fig2b": fedrelax_trees.fig2b,
    "fedrelax-fig3": fedrelax.fig3,
    "fedrelax-fig4": fedrelax_trees.fig4,
    "fedrelax-fig5a": fedrelax_variation.fig5a,
    "fedrelax-fig5b": fedrelax_variation.fig5b,
    "gfl-fig1": gfl.fig1,
    "gfl-fig3": gfl_bigfl.fig3,
    "gfl-fig4": gfl_reviews.fig4,
    "gfl-phi": gfl_bigfl.phi,
    "fedcg-table3": fedcg.table3,
    "fedcg-table4": fedcg.table4,
    "fedcg-table5": fedcg.table5,
    "fedcg-mixed": fedcg.mixed,
}

__all__ = ["EXPERIMENTS", "Claim", "Outcome", "find"]


def find(name: str) -> Callable[..., Outcome]:
    """The experiment of that name."""
    if name not in EXPERIMENTS:
        raise InputError(f"Expected one of {', '.join(EXPERIMENTS)}, got {name!r}.")
    return EXPERIMENTS[name]
