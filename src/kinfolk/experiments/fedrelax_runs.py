"""Abdurakhmanova, SarcheshmehPour, Jung: Towards Model-Agnostic Federated Learning over Networks (2025).

Section IV-A (figures 1 and 2: clusters), IV-B (figures 3 and 4: mixtures) and V (figure 5: the bound on the variation).
The paper's α is λ here. 150 nodes with 10 samples each, 100 public points from N(0, I) at every node. The error of
parameters is (18), divided by the number of features; that of predictions is the mean square on 100 validation samples.

What the paper leaves open, and what is taken here: α for figure 2 and the left and right part of figure 4 is 0.001,
and 0.1 where the middle part of figure 4 reads "strong"; the noise of figure 4 is that of figure 3, σ = 0, 1, 5;
Algorithm 3 rounds m_i ρ by largest remainders. The paper takes one step of RMSprop per round, 500 of them, which for
α = 0 and many features has not converged: nodes alone are shown so, and exactly (the minimiser of least norm).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kinfolk.algorithms import Local
from kinfolk.algorithms.fedrelax import FedRelax
from kinfolk.datasets import Synthetic, mixture_regression
from kinfolk.engine.fit import Tolerance, fit
from kinfolk.engine.run import Run
from kinfolk.local_models.least_squares import LinearModel, RMSprop
from kinfolk.network import public
from kinfolk.network.graph import Graph
from kinfolk.network.graphs import stochastic_block
from kinfolk.network.network import Network
from kinfolk.typing import Floats

SAMPLES, VALIDATION = 10, 100
PAPER_ROUNDS = 500
LAMS = (0.01, 0.05)
ALONE, EXACT, STEPS = "alone, least norm", "exact", "RMSprop"


# ---------------------------------------------------------------------- networks


def clustered(
    sizes: tuple[int, ...], features: int, noise: float, seed: int, p_in: float = 0.8, p_out: float = 0.2
) -> Synthetic:
    """Section IV-A: nodes of a cluster share w̄ ~ N(0, I)."""
    graph, cluster = stochastic_block(sizes, p_in, p_out, seed=seed)
    rng = np.random.default_rng([seed, 1])
    truth = rng.normal(size=(len(sizes), features))[cluster]
    weights = np.repeat(truth[:, None], SAMPLES + VALIDATION, axis=1)
    return Synthetic(_network(graph, weights, noise, seed, rng), truth, cluster)


def mixture(node_count: int, features: int, noise: float, seed: int) -> Network:
    """Algorithm 3: a node draws each sample from one of three regressions, in its own proportions ρ_i."""
    return mixture_regression(node_count, features=features, noise=noise, seed=seed).network


def _network(graph: Graph, weights: Floats, noise: float, seed: int, rng: np.random.Generator) -> Network:
    """y = x'w̄ + σ ε with w̄ (nodes, samples, features); the last samples of a node are for validation."""
    X = rng.normal(size=weights.shape)
    y = np.einsum("imd,imd->im", X, weights) + noise * rng.normal(size=weights.shape[:2])
    train, rest = ([(x[part], t[part]) for x, t in zip(X, y, strict=True)] for part in _SPLIT)
    network = Network(graph, train, test=rest)
    return network.with_public(public.standard_normal(network, per_node=True, seed=seed))


_SPLIT = (slice(None, SAMPLES), slice(SAMPLES, None))


# ---------------------------------------------------------------------- runs


def linear_runs(network: Network, lams: tuple[float, ...], seed: int) -> Iterator[tuple[float, str, Run]]:
    """Nodes alone, and FedRelax exactly and with the paper's optimiser: (α, method, run)."""
    yield 0.0, ALONE, fit(network, Local(), rounds=0)
    yield 0.0, STEPS, steps(network, 0.0, seed)
    for lam in lams:
        yield lam, EXACT, _exact(network, lam)
        yield lam, STEPS, steps(network, lam, seed)


def _exact(network: Network, lam: float) -> Run:
    """Exact local minimisation, until predictions no longer move."""
    return fit(network, FedRelax(LinearModel(), lam), rounds=2_000, stop=Tolerance(1e-6), measure_every=50)


def steps(network: Network, lam: float, seed: int, rounds: int = PAPER_ROUNDS, start: Run | None = None) -> Run:
    """One step of RMSprop per node and round."""
    algorithm = FedRelax(LinearModel(step=RMSprop()), lam)
    return fit(network, algorithm, rounds=rounds, stop=None, measure_every=PAPER_ROUNDS, seed=seed, start=start)


def parameters(run: Run) -> Floats:
    """(nodes, features)."""
    models = run.models
    w: Floats = models.w if hasattr(models, "w") else np.stack([fitted.w for fitted in models.fitted])
    return w


def parameter_error(problem: Synthetic, run: Run) -> float:
    """(18), averaged over the nodes."""
    out: float = problem.error(parameters(run)) / problem.truth.shape[1]
    return out


def mixture_cases(dimensions: tuple[int, ...], noises: tuple[float, ...]) -> list[tuple[int, float]]:
    """(d, σ): every d without noise, and every noise at d = 10."""
    return list(dict.fromkeys([*((d, 0.0) for d in dimensions), *((10, noise) for noise in noises)]))


def method_name(lam: float, method: str) -> str:
    """As it stands in tables and legends."""
    if method == ALONE:
        return method
    return f"α = {lam:g}, {method}" if lam else f"alone, {method}"
