"""The plan of a federation, as a file: who takes part, on which graph, with which columns, and what is run."""

from __future__ import annotations

import dataclasses
import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kinfolk.algorithms.catalog import CATALOG
from kinfolk.checks import InputError
from kinfolk.engine.fit import Tolerance
from kinfolk.engine.protocol import Algorithm
from kinfolk.engine.specs import Spec, spec_of
from kinfolk.federation.files import made, replace_file
from kinfolk.federation.joining import Schema
from kinfolk.federation.named import model_of
from kinfolk.federation.service import algorithm_of, without
from kinfolk.local_models.least_squares import LinearModel
from kinfolk.network.graph import Graph
from kinfolk.network.public import PublicPoints
from kinfolk.tables.target import Target

PLAN = "plan.json"
OPTIONS = ("rounds", "seed", "measure_every", "tolerance")


@dataclass(frozen=True)
class Plan:
    """What a coordinator has to know.

    Parameters
    ----------
    name : str
        Of the federation.
    graph : Graph
        Who may be kin.
    nodes : dict
        For the name of every site, in the order of their numbers, the public key that it signs in with.
    schema : Schema
        What the sites have to agree on.
    algorithm : Algorithm or str
        What is run; if it holds code, ``"package.module:name"`` of it, in a package that is installed everywhere.
    beside : dict
        What is run before it, to compare it with, by name.
    model : str, optional
        The name of the model of FedRelax at the coordinator, which fits none; sites choose theirs.
    fit : dict, optional
        ``settings`` and ``secure`` of sites that learn together from tables; then no algorithm is run.
    public : array or PublicPoints, optional
        Points on which neighbours compare predictions.
    options : dict
        Of ``fit``: rounds, seed, measure_every, and ``tolerance``, the residual to stop at, or None.
    patience : float
        Seconds until a site that does not answer counts as away.

    >>> import tempfile
    >>> from kinfolk import GTVMin, graphs
    >>> plan = Plan("demo", graphs.chain(2), {"a": b"", "b": b""}, Schema(["x"]), GTVMin(lam=0.5))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     plan.write(Path(folder))
    ...     again = Plan.read(Path(folder))
    >>> again.algorithm == plan.algorithm
    True
    """

    name: str
    graph: Graph
    nodes: Mapping[str, bytes]
    schema: Schema
    algorithm: Algorithm[Any] | str
    public: Any = None
    options: Mapping[str, Any] = field(default_factory=dict)
    patience: float = 300.0
    beside: Mapping[str, Algorithm[Any] | str] = field(default_factory=dict)
    model: str | None = None
    fit: Mapping[str, Any] | None = None

    def write(self, folder: Path) -> None:
        """Write the plan into the folder of the federation."""
        unknown = sorted(set(self.options) - set(OPTIONS))
        if unknown:
            raise InputError(f"Expected options among {', '.join(OPTIONS)}, got {', '.join(unknown)}.")
        graph = self.graph
        content = {
            "name": self.name,
            "names": [name.item() if isinstance(name, np.generic) else name for name in graph.names],
            "edges": np.column_stack([graph.head, graph.tail]).tolist(),
            "weights": graph.weights.tolist(),
            "nodes": {name: key.decode() for name, key in self.nodes.items()},
            "features": self.schema.features,
            "task": self.schema.task,
            "scaled": list(self.schema.scaled),
            "about": self.schema.about,
            "algorithm": _spec(self.algorithm, self.model),
            "beside": {name: _spec(each, self.model) for name, each in self.beside.items()},
            "model": self.model,
            "fit": self.fit,
            "public": None if self.public is None else _written(self.public),
            "options": dict(self.options),
            "patience": self.patience,
        }
        replace_file(made(folder) / PLAN, json.dumps(content, indent=1).encode())

    @classmethod
    def read(cls, folder: Path) -> Plan:
        """The plan in the folder of a federation."""
        try:
            found = json.loads((folder / PLAN).read_text())
            graph = Graph(len(found["names"]), found["edges"] or (), found["weights"], found["names"])
            nodes = {name: key.encode() for name, key in found["nodes"].items()}
            schema = Schema(found["features"], found["task"], tuple(found["scaled"]), found["about"])
            model, beside = found["model"], found["beside"]
            rest = _public(found["public"]), found["options"], found["patience"]
        except (OSError, ValueError, KeyError) as error:
            raise InputError(f"Expected the plan of a federation in {str(folder)!r}, got none ({error}).") from error
        made = {name: _algorithm(each, model, schema) for name, each in beside.items()}
        algorithm = _algorithm(found["algorithm"], model, schema)
        return cls(found["name"], graph, nodes, schema, algorithm, *rest, made, model, found["fit"])

    @property
    def fit_options(self) -> dict[str, Any]:
        """The options as ``fit`` takes them."""
        out = dict(self.options)
        if "tolerance" in out:
            residual = out.pop("tolerance")
            out["stop"] = None if residual is None else Tolerance(residual, proven=None)
        return out


def _written(public: Any) -> dict[str, Any]:
    given = public if isinstance(public, PublicPoints) else PublicPoints(np.asarray(public, dtype=np.float64))
    return {"points": given.points.tolist(), "source": given.source}


def _public(found: Any) -> PublicPoints | None:
    return None if found is None else PublicPoints(np.array(found["points"], dtype=np.float64), found["source"])


def _spec(algorithm: Algorithm[Any] | str, model: str | None) -> Spec:
    """An algorithm in a file; without its model, if that has a name."""
    if isinstance(algorithm, str):
        return algorithm
    return without(spec_of(algorithm), () if model is None else type(algorithm).own_choice)


def _algorithm(written: Any, model: str | None, schema: Schema) -> Algorithm[Any]:
    """The algorithm of a plan, from a spec or from a package."""
    if not isinstance(written, str):
        return _rebuilt(written, model, schema)
    module, _, name = written.partition(":")
    try:
        found: Algorithm[Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"Expected an algorithm as package.module:name, {written!r} cannot be imported ({error}): install the "
            "package at the coordinator."
        ) from error
    return found


def _rebuilt(spec: Spec, model: str | None, schema: Schema) -> Algorithm[Any]:
    kind = CATALOG.get(spec.get("type"))
    if model is None or "model" not in getattr(kind, "own_choice", ()):
        return algorithm_of(spec)
    placeholder = LinearModel()  # of a spec that can be rebuilt
    made = algorithm_of({**spec, "fields": {**spec["fields"], "model": spec_of(placeholder)}})
    target = Target(("no", "yes") if schema.task == "classes" else ())
    return dataclasses.replace(made, model=model_of(model, target))  # type: ignore[type-var]
