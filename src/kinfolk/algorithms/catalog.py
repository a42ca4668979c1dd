"""The catalog: what a spec may name. An algorithm is rebuilt from names and numbers, and no foreign code runs."""

from __future__ import annotations

from typing import Any

from kinfolk.algorithms import (
    baselines,
    dfl,
    fedavg,
    fedgd,
    fedprox,
    fedrelax,
    fesem,
    ifca,
    local_work,
    pfedme,
    scaffold,
    torch_descent,
)
from kinfolk.algorithms.bigfl import adjoint, algorithm, lower, shapes, upper
from kinfolk.algorithms.fedcg import ClassMeans, ClientWeights, DomainGraph, FedCG, GivenDomains, TeacherStudent
from kinfolk.algorithms.gtvmin import GTVMin, Inexact
from kinfolk.checks import InputError
from kinfolk.engine.fit import Tolerance
from kinfolk.engine.in_process import InProcess
from kinfolk.engine.ray import Ray
from kinfolk.engine.specs import Spec, name_of
from kinfolk.local_models import discrepancies, least_squares
from kinfolk.objective import couplings, losses

TYPES: tuple[type, ...] = (
    GTVMin, Inexact, InProcess, Ray, Tolerance, baselines.Local, baselines.Pooled, fedavg.FedAvg,
    fedgd.FedGD, fedrelax.FedRelax, ifca.IFCA, ifca.Uniform, ifca.OneOf, ifca.Given, ifca.Redrawn, pfedme.PFedMe,
    torch_descent.TorchDescent, dfl.DFL, fedprox.FedProx, scaffold.SCAFFOLD, fesem.FeSEM, fesem.SquaredEuclidean,
    fesem.Manhattan, local_work.Decay,
    algorithm.BiGFL, adjoint.Adjoint, lower.GraphEmbedding, lower.LaplacianCoupling, shapes.NumberPerLayer,
    shapes.MatrixPerLayer, shapes.LowRank, shapes.FullMatrix, upper.HeldOutError, upper.CosineEmbedding,
    upper.Regression,
    FedCG, ClassMeans, ClientWeights, TeacherStudent, GivenDomains, DomainGraph,
    losses.Squared, losses.SquaredDistance, losses.Huber, losses.Logistic, losses.Poisson, losses.Absolute,
    losses.Quantile,
    couplings.EuclideanNorm, couplings.AbsoluteNorm, couplings.SquaredNorm, couplings.MaximumNorm, couplings.PNorm,
    couplings.QuadraticForm,
    least_squares.LinearModel, least_squares.RMSprop,
    discrepancies.SquaredError, discrepancies.CrossEntropy, discrepancies.SquaredProbabilities,
    discrepancies.SymmetricCrossEntropy,
)  # fmt: skip
CATALOG: dict[str, type] = {name_of(kind): kind for kind in TYPES}


def rebuilt(spec: Spec) -> Any:
    """What a spec stands for; it may name only what is in the catalog.

    >>> from kinfolk import FedGD
    >>> from kinfolk.engine.specs import spec_of
    >>> rebuilt(spec_of(FedGD(lam=0.5))) == FedGD(lam=0.5)
    True
    """
    if not isinstance(spec, dict):
        return spec
    if "list" in spec or "tuple" in spec:
        parts = [rebuilt(each) for each in next(iter(spec.values()))]
        return parts if "list" in spec else tuple(parts)
    if "mapping" in spec:
        return {rebuilt(key): rebuilt(each) for key, each in spec["mapping"]}
    named = spec.get("type") or spec.get("code")
    if named not in CATALOG:
        raise InputError(f"Expected names of kinfolk and numbers, got {named!r}: pass the algorithm itself.")
    kind = CATALOG[named]
    return kind(**{name: rebuilt(each) for name, each in spec["fields"].items()})
