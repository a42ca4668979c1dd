"""Algorithms by name: what an agreement says is run becomes an algorithm of kinfolk, and what stands beside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from sklearn.linear_model import LogisticRegression

from kinfolk.algorithms.baselines import Local, Pooled
from kinfolk.algorithms.catalog import CATALOG
from kinfolk.algorithms.fedrelax import FedRelax
from kinfolk.checks import InputError, check_parameters, first_line
from kinfolk.engine.protocol import Algorithm
from kinfolk.local_models.least_squares import LinearModel
from kinfolk.objective.losses import Logistic, Squared
from kinfolk.tables.families import family_of
from kinfolk.tables.target import Target

LARGEST = 1e15  # of whole numbers
ALONE, ONE_FOR_ALL, TAILORED = "alone", "pooled", "tailored"
COMPARISONS = (ALONE, ONE_FOR_ALL)
NAMES = {kind.__name__: kind for kind in CATALOG.values()}
ALGORITHMS = {name: kind for name, kind in NAMES.items() if issubclass(kind, Algorithm)}
DEFAULT: Mapping[str, Any] = {"type": "GTVMin", "lam": 1.0, "coupling": {"type": "SquaredNorm"}}


def read_algorithm(table: Mapping[str, Any], target: Target, model: Any) -> Algorithm[Any]:
    """The algorithm of a table of names and numbers; it may name only what kinfolk ships.

    Parameters
    ----------
    table : dict
        ``type`` and parameters, such as ``{"type": "GTVMin", "lam": 0.5}``; losses and couplings are tables again.
        Without a loss, squared errors or the logistic loss.
    target : Target
        Numbers or classes.
    model : str or estimator
        For FedRelax.

    >>> read_algorithm({"type": "GTVMin", "lam": 2.0, "coupling": {"type": "EuclideanNorm"}}, Target(), "linear").lam
    2.0
    """
    given = dict(table)
    kind = ALGORITHMS.get(str(given.get("type")))
    if kind is None:
        raise InputError(
            f"Expected an algorithm, one of {', '.join(sorted(ALGORITHMS))}, got {given.get('type')!r:.60}: correct "
            "[algorithm]."
        )
    known: Mapping[str, Any] = kind.__dataclass_fields__ if dataclasses.is_dataclass(kind) else {}
    if "loss" in known and "loss" not in given:
        given["loss"] = {"type": "Logistic" if target.classes else "Squared", "intercept": True}
    own = {"model": model_of(model, target)} if "model" in known else {}
    made: Algorithm[Any] = _made(given, own)
    check_parameters(made)
    if len(target.classes) > 2 and isinstance(getattr(made, "loss", None), Logistic):
        raise InputError(
            f"Expected two classes for the logistic loss, got {len(target.classes)}: take FedRelax, whose "
            "models may have more."
        )
    return made


def _made(table: Mapping[str, Any], own: Mapping[str, Any]) -> Any:
    """What a table stands for; a table in it is a loss, a coupling and such by its name."""
    kind = NAMES.get(str(table.get("type")))
    if kind is None:
        raise InputError(f"Expected a name of kinfolk in [algorithm], got {table.get('type')!r:.60}: correct it.")
    parts = {name: _part(value) for name, value in table.items() if name != "type"}
    try:
        return kind(**parts, **own)
    except TypeError as error:
        raise InputError(
            f"Expected parameters of {kind.__name__} in [algorithm], got others ({first_line(error)}): correct it."
        ) from error


def _part(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _made(value, {})
    if isinstance(value, int) and abs(value) > LARGEST:
        raise InputError(f"Expected numbers up to {LARGEST:g} in [algorithm], got a larger one: correct it.")
    return tuple(value) if isinstance(value, list) else value


def model_of(model: Any, target: Target) -> Any:
    """What FedRelax puts at a node: an estimator, or one by its name."""
    learns = family_of(model, target).learns
    if not isinstance(learns, Squared | Logistic):
        return learns
    return LinearModel(intercept=True) if isinstance(learns, Squared) else LogisticRegression(max_iter=1_000)


def compared_with(name: str, main: Algorithm[Any]) -> Algorithm[Any]:
    """What the main algorithm is compared with, for the same models."""
    if isinstance(main, FedRelax) and name == ALONE:
        return dataclasses.replace(main, lam=0.0)
    loss = getattr(main, "loss", None)
    if loss is None:
        raise InputError(
            f"Expected an algorithm with a loss to compare it with {name!r}, got {type(main).__name__}: leave it out."
        )
    return Local(loss) if name == ALONE else Pooled(loss)
