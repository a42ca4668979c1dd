"""The GTV objective for the solvers of CVXPY, each in a process of its own that is ended when its time is up.

A limit inside the solver would not do: it is looked at between iterations, and one can take minutes.
"""

from __future__ import annotations

import multiprocessing
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import cvxpy
import numpy as np
import scipy.sparse
from scipy.special import xlogy

from kinfolk import AbsoluteNorm, EuclideanNorm, GTVMin, Logistic, Network, Squared, SquaredNorm
from kinfolk.objective.couplings import MaximumNorm, PNorm, QuadraticForm
from kinfolk.objective.losses import Absolute, Huber, Poisson, Quantile, SquaredDistance

CONSTRUCTION_LIMIT = 120.0  # seconds

CHARGES: dict[type, Callable[[Any, Any], Any]] = {  # φ of every row of v
    EuclideanNorm: lambda _, v: cvxpy.norm(v, 2, axis=1),
    AbsoluteNorm: lambda _, v: cvxpy.norm(v, 1, axis=1),
    MaximumNorm: lambda _, v: cvxpy.norm(v, "inf", axis=1),
    PNorm: lambda coupling, v: cvxpy.hstack([cvxpy.pnorm(v[e], coupling.p) for e in range(v.shape[0])]),
    SquaredNorm: lambda _, v: 0.5 * cvxpy.sum(cvxpy.square(v), axis=1),
    QuadraticForm: lambda coupling, v: 0.5 * cvxpy.sum(cvxpy.square(v @ _root(coupling)), axis=1),
}
SCORES: dict[type, Callable[[Any, Any, Any], Any]] = {  # ℓ(z, y) of every sample
    Squared: lambda _, z, y: cvxpy.square(z - y),
    Huber: lambda loss, z, y: cvxpy.huber(z - y, loss.delta),
    Logistic: lambda _, z, y: cvxpy.logistic(z) - cvxpy.multiply(y, z),
    Poisson: lambda _, z, y: cvxpy.exp(z) - cvxpy.multiply(y, z) + xlogy(y, y) - y,
    Absolute: lambda _, z, y: cvxpy.abs(z - y),
    Quantile: lambda loss, z, y: cvxpy.maximum(loss.level * (y - z), (1 - loss.level) * (z - y)),
}


TOLERANCES = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9)
SETTINGS: dict[str, Callable[[float], dict[str, float]]] = {
    "CLARABEL": lambda eps: {"tol_gap_abs": eps, "tol_gap_rel": eps, "tol_feas": eps},
    "SCS": lambda eps: {"eps_abs": eps, "eps_rel": eps, "max_iters": 1_000_000},
    "OSQP": lambda eps: {"eps_abs": eps, "eps_rel": eps, "max_iter": 1_000_000},
}


@dataclass(frozen=True)
class Solved:
    """What a solver did: processor seconds of construction, and of its first answers near enough; NaN where none was.

    Near enough is an objective, computed here at the solver's parameters, within a part of the certified best one.
    """

    construction: float
    seconds: tuple[float, ...]  # for every part that was asked for


def solvers(algorithm: GTVMin) -> list[str]:
    """The solvers that can take the problem; OSQP needs a quadratic programme."""
    quadratic = isinstance(algorithm.loss, Squared) and isinstance(algorithm.coupling, AbsoluteNorm | SquaredNorm)
    return ["CLARABEL", "SCS", *(["OSQP"] if quadratic else [])]


def build(network: Network, algorithm: GTVMin) -> cvxpy.Problem:
    """The same objective for CVXPY, with all samples in one expression and all edges in one."""
    graph, loss = network.graph, algorithm.loss
    width = network.data.feature_count
    w = cvxpy.Variable((graph.node_count, width + int(loss.intercept)), name="w")
    share = np.ones(len(network.data.y)) if loss.reduction == "sum" else 1.0 / network.data.sizes[network.data.owner]
    terms = [share @ _rows(network, loss, w)]
    if loss.ridge > 0:
        informed = np.flatnonzero(network.data.sizes > 0)
        terms.append(loss.ridge / 2 * cvxpy.sum_squares(w[informed, :width]))
    if graph.edge_count:
        v = network.site.incidence.T @ w
        charge = CHARGES[type(algorithm.coupling)](algorithm.coupling, v)
        terms.append((algorithm.lam * graph.weights) @ charge)
    return cvxpy.Problem(cvxpy.Minimize(cvxpy.sum(terms)))


def parameters(problem: cvxpy.Problem) -> Any:
    """The parameters (nodes, parameters) of a problem that was solved."""
    return next(each for each in problem.variables() if each.name() == "w").value


def _root(coupling: QuadraticForm) -> Any:
    """R with RRᵀ = Q."""
    values, vectors = coupling.spectrum()
    return vectors * np.sqrt(values)


def _rows(network: Network, loss: Any, w: cvxpy.Variable) -> cvxpy.Expression:
    """The loss of every sample."""
    if isinstance(loss, SquaredDistance):
        return cvxpy.sum(cvxpy.square(w[network.data.owner] - network.data.X), axis=1)
    z = _design(network, loss.intercept) @ cvxpy.vec(w, order="C")
    return SCORES[type(loss)](loss, z, network.data.y)


def _design(network: Network, intercept: bool) -> scipy.sparse.csr_array:
    """(samples, nodes · parameters): the row of a sample stands in the columns of its node."""
    X = np.hstack([network.data.X, np.ones((len(network.data.y), int(intercept)))])
    count, width = X.shape
    columns = (width * network.data.owner[:, None] + np.arange(width)).ravel()
    shape = (count, width * network.graph.node_count)
    return scipy.sparse.csr_array((X.ravel(), columns, width * np.arange(count + 1)), shape=shape)


def solve(
    network: Network, algorithm: GTVMin, solver: str, limit: float, best: float, parts: tuple[float, ...]
) -> Solved:
    """Let a solver answer with one tolerance after the other, for at most ``limit`` seconds, construction apart."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    child = context.Process(target=_work, args=(network, algorithm, solver, there))
    child.start()
    there.close()
    construction, found = np.nan, [np.nan] * len(parts)
    try:
        construction = here.recv() if here.poll(CONSTRUCTION_LIMIT) else np.nan
        ends = time.perf_counter() + limit
        while np.isnan(found).any() and here.poll(max(ends - time.perf_counter(), 0.0)):
            seconds, objective = here.recv()
            near = [objective - best <= part * best for part in parts]
            found = [seconds if np.isnan(f) and n else f for f, n in zip(found, near, strict=True)]
    except EOFError:  # it gave up, was ended for want of memory, or has no tolerance left
        pass
    finally:
        child.kill()
        child.join()
    return Solved(construction, tuple(found))


def objective(network: Network, algorithm: GTVMin, w: Any) -> float:
    """P(w)."""
    site = network.site
    charge = algorithm.coupling.value(site.difference(w, w[:0])) if len(site.weights) else np.zeros(0)
    return float(site.local_losses(algorithm.loss).value(w).sum() + algorithm.lam * site.weights @ charge)


def _work(network: Network, algorithm: GTVMin, solver: str, answers: Connection) -> None:
    """Build, then solve with every tolerance; say how long it took and what the objective is at the answer."""
    warnings.simplefilter("ignore")
    (problem, _), seconds = _timed(lambda: _compiled(network, algorithm, solver))
    answers.send(seconds)
    for tolerance in TOLERANCES:
        _, seconds = _timed(lambda eps=tolerance: problem.solve(solver=solver, **SETTINGS[solver](eps)))
        answers.send((seconds, objective(network, algorithm, np.ascontiguousarray(parameters(problem)))))


def _compiled(network: Network, algorithm: GTVMin, solver: str) -> tuple[cvxpy.Problem, Any]:
    problem = build(network, algorithm)
    return problem, problem.get_problem_data(solver)


def _timed(work: Any) -> tuple[Any, float]:
    began = time.process_time()
    done = work()
    return done, time.process_time() - began
