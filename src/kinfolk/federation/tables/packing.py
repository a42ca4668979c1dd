"""Calls of a party as queries: what goes into a message for each method of a party, and what comes out of its answer.

A method whose arguments and results are arrays travels as it is. The others are listed here, each with four functions:
to and from a request, to and from a response.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from kinfolk.engine.protocol import Arrays
from kinfolk.engine.wire import WireError
from kinfolk.tables.batches import Phase
from kinfolk.tables.families import family_of
from kinfolk.tables.levels import SLOPES, Level
from kinfolk.tables.members.boosted import FEW, MANY, ROUNDS, BoostedTrees
from kinfolk.tables.members.graph_member import GraphMember
from kinfolk.tables.members.member import RowMember
from kinfolk.tables.party import (
    Derivatives,
    Deviations,
    Errors,
    Finish,
    Gains,
    Gram,
    GraphFits,
    Losses,
    MixedFits,
    Reaction,
    Residuals,
    Spread,
    Step,
    System,
    TestSums,
    Turn,
    Widths,
)
from kinfolk.tables.settings import Settings
from kinfolk.tables.target import Target
from kinfolk.typing import Floats, Ints

Words = Mapping[str, Any]
BIN_EDGES = np.sinh(np.linspace(-np.arcsinh(1e3), np.arcsinh(1e3), 4_001))  # of residuals; at 2 they are .009 apart
MOST_PLANS = 256
SITE_MEMBERS: Mapping[str, Callable[[Settings, Target], RowMember]] = {
    "alone": lambda settings, target: GraphMember(family_of(settings.model, target).baselines()[1]),
    "site-boosted": lambda settings, target: BoostedTrees("site-boosted", access="sums"),
}  # what a site may be asked to learn from its own rows
MIXED = "slopes"  # the batch of mixed models
SYMMETRIC = {"matrix", "hessian", "curvature"}  # of which one half travels


class Packed(NamedTuple):
    """A call as a query."""

    name: str
    about: Words
    arrays: Arrays


# ---------------------------------------------------------------------- requests, at the coordinator


def packed(method: str, arguments: Mapping[str, Any]) -> Packed:
    """A call of a method of a party as a query."""
    pack = PACK.get(method)
    return Packed(method.replace("_", " "), {}, dict(arguments)) if pack is None else pack(**arguments)


def _pack_eliminate(batch: str, fits: Any = None, step: Step | None = None) -> Packed:
    kind = "mixed" if batch == MIXED else "graph"
    if step is not None:
        return Packed(f"step {kind}", {"batch": batch}, step._asdict())
    arrays = fits._asdict()
    if isinstance(fits, GraphFits):
        arrays["edge_weights"] = arrays.pop("weights")
    return Packed(f"begin {kind}", {"batch": batch}, arrays)


def _pack_respond(batch: str, fits: GraphFits | None = None, turn: Turn | None = None) -> Packed:
    if fits is not None:
        arrays = fits._asdict()
        arrays["edge_weights"] = arrays.pop("weights")
        return Packed("begin gradients", {"batch": batch}, arrays)
    assert turn is not None
    return Packed("gradients", {"batch": batch}, {k: each for k, each in turn._asdict().items() if k != "neighbours"})


def _pack_validate(
    name: str, values: Any = None, member: RowMember | None = None, models: Floats | None = None, batch: str = "",
    chosen: Mapping[str, int] | None = None, scene: Any = None,
) -> Packed:  # fmt: skip
    tried, known = np.array(values, dtype=np.float64).reshape(len(values), -1), chosen or {}
    if models is not None:
        return Packed("validate pooled", {"name": name, "values": tried.tolist()}, {"models": models})
    if member is None:
        return Packed("validate batch", {"name": name, "batch": batch}, {"values": tried})
    arrays: dict[str, Any] = {"values": tried, "pooled": known["pooled"]}
    if member.name == "site-boosted":
        arrays["slopes"] = known.get("slopes", -1)
    return Packed(f"validate {member.name}", {}, arrays)


def _pack_named(query: str) -> Callable[..., Packed]:
    return lambda names, **arrays: Packed(query, {"names": list(names)}, arrays)


def _pack_test(finish: Finish, widths: Widths | None, times: Floats) -> Packed:
    about = {"compared": list(finish.chosen), "weights": list(finish.weights), "control": list(finish.control)}
    none = Widths(np.empty((3, 0)), np.zeros(3), np.empty(0), np.empty(0))
    arrays = {
        "best": np.array(list(finish.chosen.values())), "weights": np.array(list(finish.weights.values())),
        "control": np.array(list(finish.control.values())), "times": times, **(widths or none)._asdict(),
    }  # fmt: skip
    return Packed("test", about, arrays)


def _pack_gains(method: str, baseline: str, level: float) -> Packed:
    return Packed("gains", {"method": method, "baseline": baseline}, {"level": level})


PACK: Mapping[str, Callable[..., Packed]] = {
    "eliminate": _pack_eliminate, "respond": _pack_respond, "validate": _pack_validate, "errors": _pack_named("errors"),
    "residuals": _pack_named("residuals"), "test": _pack_test, "gains": _pack_gains,
    "moments": lambda without=(): Packed("moments", {}, {"without": np.array(without, dtype=np.int64)}),
    "describe": lambda settings, sites: Packed("describe", {"settings": settings.to_toml(), "sites": sites}, {}),
    "measure": lambda agreed, **arrays: Packed("measure", agreed, arrays),
    "scale": lambda about, **arrays: Packed("scale", about, arrays),
    "encode": lambda about, **arrays: Packed("encode", about, arrays),
    "finish": lambda about, **arrays: Packed("finish", about, arrays),
}  # fmt: skip


# ---------------------------------------------------------------------- requests, at a site


def arguments(
    name: str, about: Words, arrays: Arrays, settings: Settings, target: Target
) -> tuple[str, dict[str, Any]]:
    """The method of a party that a query asks for, and its arguments, checked as far as the rows do not matter."""
    given = {each: values if values.ndim else values.item() for each, values in arrays.items()}
    kind, _, rest = name.partition(" ")
    if name in ("begin gradients", "gradients"):
        return "respond", _respond_arguments(about, given)
    if kind in ("begin", "step"):
        return "eliminate", _batch_arguments(kind, rest, about, given)
    if kind == "validate":
        return "validate", _validate_arguments(rest, about, given, settings, target)
    if name in ("errors", "residuals"):
        return name, {"names": texts(about, "names"), **given}
    if name == "spread":
        check_level(given["level"])
    if name == "test":
        return name, _test_arguments(about, given)
    if name == "gains":
        return name, {"method": text(about, "method"), "baseline": text(about, "baseline"), **given}
    return name.replace(" ", "_"), given


def _batch_arguments(kind: str, batch: str, about: Words, given: dict[str, Any]) -> dict[str, Any]:
    name = text(about, "batch")
    if (name == MIXED) != (batch == "mixed"):
        raise WireError("Expected a batch of the kind that the query is about, got another.")
    if kind == "step":
        return {"batch": name, "step": Step(**given)}
    if batch == "mixed":
        return {"batch": name, "fits": MixedFits(**given)}
    given["weights"] = given.pop("edge_weights")
    return {"batch": name, "fits": GraphFits(**given)}


def _respond_arguments(about: Words, given: dict[str, Any]) -> dict[str, Any]:
    """What neighbours sent stays encrypted; see ``SiteHandlers``."""
    name = text(about, "batch")
    if "lam" in given:
        given["weights"] = given.pop("edge_weights")
        return {"batch": name, "fits": GraphFits(**given)}
    if given["phase"] not in list(Phase):
        raise WireError("Expected something to do in an exchange of conjugate gradients, got another number.")
    return {"batch": name, "turn": Turn(**{each: given[each] for each in Turn._fields if each != "neighbours"})}


def _validate_arguments(
    kind: str, about: Words, given: dict[str, Any], settings: Settings, target: Target
) -> dict[str, Any]:
    if kind == "pooled":
        values = about.get("values")
        if not isinstance(values, list) or len(values) != given["models"].shape[1]:
            raise WireError("Expected a value for every pooled model, got other numbers of them.")
        return {"name": text(about, "name"), "values": [tuple(each) for each in values], **given}
    values = [tuple(each) for each in given["values"].tolist()]
    if kind == "batch":
        return {"name": text(about, "name"), "values": values, "batch": text(about, "batch")}
    if kind == "site-boosted":
        check_plans(given["values"])
    chosen = {name: int(given[name]) for name in ("pooled", "slopes") if int(given.get(name, -1)) >= 0}
    return {"name": kind, "values": values, "member": SITE_MEMBERS[kind](settings, target), "chosen": chosen}


def check_plans(values: Floats) -> None:
    """Refuse trees that would keep a site busy for long; leaves and rounds are the first two of every plan."""
    if values.shape[1] != 4 or len(values) > MOST_PLANS:
        raise WireError(f"Expected at most {MOST_PLANS} plans for trees of usual sizes, got others.")
    leaves, rounds = values[:, :2].T
    if (leaves > max(*FEW[0], *MANY[0])).any() or (rounds > max(ROUNDS)).any():
        raise WireError(f"Expected at most {MOST_PLANS} plans for trees of usual sizes, got others.")


def _test_arguments(about: Words, given: dict[str, Any]) -> dict[str, Any]:
    check_level(given["level"])
    chosen, weights, control = (
        dict(zip(texts(about, name), given[array].tolist(), strict=False))
        for name, array in (("compared", "best"), ("weights", "weights"), ("control", "control"))
    )
    if any(len(found) != len(given[array]) for found, array in ((chosen, "best"), (weights, "weights"))):
        raise WireError("Expected a number for everything that is compared, got other numbers of them.")
    widths = Widths(*(given[name] for name in Widths._fields)) if given["scales"].size else None
    return {"finish": Finish(chosen, weights, control), "widths": widths, "times": given["times"]}


def check_level(found: Floats) -> None:
    """Refuse scales that do not follow from residuals."""
    level = Level(*found.tolist())
    if level.unit < 0 or not SLOPES[0] <= level.slope <= SLOPES[-1]:
        raise WireError("Expected a deviation of predictions of 0 or more and a slope from −1 to 1, got others.")


def text(about: Words, name: str) -> str:
    """A word of a request."""
    found = about.get(name)
    if not isinstance(found, str):
        raise WireError(f"Expected a text {name!r}, got something else.")
    return found


def texts(about: Words, name: str) -> list[str]:
    """Words of a request."""
    found = about.get(name)
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise WireError(f"Expected texts {name!r}, got something else.")
    return found


# ---------------------------------------------------------------------- responses


def response(result: Any) -> tuple[Words, Arrays]:
    """What a method of a party has returned, for a message."""
    if result is None:
        return {}, {}
    if isinstance(result, tuple) and not hasattr(result, "_asdict"):
        return result[0], result[1]
    arrays = dict(result._asdict())
    if isinstance(result, Reaction):
        arrays.pop("values")  # for neighbours alone
    if isinstance(result, Losses):
        return {}, {"losses": result.losses}
    if isinstance(result, TestSums):
        return {"methods": arrays.pop("methods")}, arrays
    if isinstance(result, Spread):
        arrays |= {name: _binned(arrays[name][0]) for name in ("inside", "outside")}
    for name in SYMMETRIC & set(arrays):
        arrays[name] = to_triangles(arrays[name])
    return {}, arrays


TYPES: Mapping[str, type] = {
    "moments": Gram, "deviations": Deviations, "derivatives": Derivatives, "step mixed": System, "begin mixed": System,
    "step graph": System, "begin graph": System, "errors": Errors, "residuals": Residuals, "spread": Spread,
    "test": TestSums, "gains": Gains,
}  # fmt: skip


def unpacked(name: str, about: Words, arrays: Mapping[str, Any]) -> Any:
    """What a site has answered to a query, as the method of a party returns it."""
    found = dict(arrays)
    for each in SYMMETRIC & {name for name, values in found.items() if values is not None}:
        found[each] = from_triangles(found[each])
    if name.startswith("validate"):
        return Losses(found["losses"], [])
    if name in ("begin gradients", "gradients"):
        return Reaction(None, found["products"], found["sums"], found["curvature"])  # type: ignore[arg-type]
    if name not in TYPES:
        return about, found
    if name == "test":
        found["methods"] = texts(about, "methods")
    if name == "spread":
        found |= {each: _unbinned(found[each]) for each in ("inside", "outside") if found[each] is not None}
    return TYPES[name](**found)


def to_triangles(matrices: Floats) -> Floats:
    """Symmetric matrices (count, n, n) as their upper triangles (count, n (n + 1) / 2).

    >>> to_triangles(np.array([[[1.0, 2.0], [2.0, 3.0]]])).tolist()
    [[1.0, 2.0, 3.0]]
    """
    rows, columns = np.triu_indices(matrices.shape[1])
    return np.asarray(matrices[:, rows, columns])


def from_triangles(triangles: Floats) -> Floats:
    """The matrices that ``to_triangles`` came from.

    >>> from_triangles(np.array([[1.0, 2.0, 3.0]])).tolist()
    [[[1.0, 2.0], [2.0, 3.0]]]
    """
    size = int(np.sqrt(2 * triangles.shape[1]))
    rows, columns = np.triu_indices(size)
    out = np.zeros((len(triangles), size, size))
    out[:, rows, columns] = out[:, columns, rows] = triangles
    return out


def _binned(values: Floats) -> Ints:
    return np.bincount(np.searchsorted(BIN_EDGES, values), minlength=len(BIN_EDGES) + 1)


def _unbinned(bins: Ints) -> tuple[Floats, Floats]:
    """A value for every bin of residuals that has some, and how many these are."""
    inner = (BIN_EDGES[1:] + BIN_EDGES[:-1]) / 2
    middles = np.concatenate([BIN_EDGES[:1], inner, BIN_EDGES[-1:]])
    return middles[bins > 0], bins[bins > 0].astype(np.float64)
