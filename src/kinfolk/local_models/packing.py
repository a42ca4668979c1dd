"""Packing: a state as plain data and arrays, and back. Nothing that is packed can name code that runs.

Records (NamedTuples and the like) are packed by their short name and their fields. When unpacked, a name is looked up
among the records of the algorithm at hand and a fixed list; nothing is imported or called because a file asks for it.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import numpy as np

from kinfolk.checks import InputError
from kinfolk.local_models.stored import dump_estimators, load_estimators

Tree = Any  # plain data: None, bool, int, float, str, lists and dicts of them
RECORDS = {  # fitted models that are no estimators: where each is defined
    "LinearFit": "kinfolk.local_models.least_squares",
    "TorchFit": "kinfolk.local_models.torch_training",
    "KerasFit": "kinfolk.local_models.keras_training",
    "OneClass": "kinfolk.local_models.estimators",
}


class Packer:
    """Takes values apart; the arrays are collected by number."""

    def __init__(self) -> None:
        self.arrays: dict[str, Any] = {}

    def pack(self, value: Any) -> Tree:
        """A value as plain data that refers to arrays."""
        if value is None or (isinstance(value, bool | int | float | str) and not isinstance(value, np.generic)):
            return value
        if isinstance(value, np.ndarray) and value.dtype == object:
            return {"objects": self._objects(list(value))}
        if isinstance(value, np.ndarray | np.generic):
            return {"array" if isinstance(value, np.ndarray) else "scalar": self._add(np.asarray(value))}
        if isinstance(value, dict):
            return {"dict": [[self.pack(key), self.pack(each)] for key, each in value.items()]}
        fields = _fields(value)
        if fields is not None:
            return {"record": type(value).__name__, "fields": {k: self.pack(each) for k, each in fields.items()}}
        if isinstance(value, list | tuple):
            return {"list" if isinstance(value, list) else "tuple": [self.pack(each) for each in value]}
        return {"estimators": self._estimators([value])}

    def _objects(self, values: list[Any]) -> Tree:
        """Fitted models of many nodes: records one by one, estimators in one go."""
        known = [value is None or _fields(value) is not None for value in values]
        packed = [
            self.pack(value) if is_known else {"estimator": 0} for value, is_known in zip(values, known, strict=True)
        ]
        others = [value for value, is_known in zip(values, known, strict=True) if not is_known]
        return {"each": packed, "estimators": self._estimators(others) if others else None}

    def _estimators(self, values: list[Any]) -> str:
        return self._add(np.frombuffer(dump_estimators(values, "the models of a checkpoint"), dtype=np.uint8))

    def _add(self, array: Any) -> str:
        key = str(len(self.arrays))
        self.arrays[key] = np.ascontiguousarray(array).reshape(np.shape(array))
        return key


class Unpacker:
    """Puts values together again.

    Parameters
    ----------
    arrays : dict
        What the packer collected.
    owner : object
        The algorithm: records that its modules define may occur.
    trusted : sequence of str
        Types of estimators that may occur besides the known ones.
    """

    def __init__(self, arrays: dict[str, Any], owner: Any, trusted: Sequence[str]) -> None:
        self.arrays, self.owner, self.trusted = arrays, owner, trusted

    def unpack(self, tree: Tree) -> Any:
        """The value that a tree stands for."""
        if not isinstance(tree, dict):
            return tree
        for kind, build in self._builders.items():
            if kind in tree:
                return build(tree)
        raise InputError(f"Expected packed data, got {str(tree)[:60]!r}: the checkpoint is damaged.")

    @property
    def _builders(self) -> dict[str, Callable[[Any], Any]]:
        return {
            "array": lambda tree: self.arrays[tree["array"]],
            "scalar": lambda tree: self.arrays[tree["scalar"]][()],
            "objects": lambda tree: self._objects(tree["objects"]),
            "dict": lambda tree: {self.unpack(key): self.unpack(each) for key, each in tree["dict"]},
            "record": lambda tree: self._record(tree["record"], tree["fields"]),
            "list": lambda tree: [self.unpack(each) for each in tree["list"]],
            "tuple": lambda tree: tuple(self.unpack(each) for each in tree["tuple"]),
            "estimators": lambda tree: self._estimators(tree["estimators"])[0],
        }

    def _objects(self, tree: Tree) -> Any:
        others = iter([] if tree["estimators"] is None else self._estimators(tree["estimators"]))
        out = np.empty(len(tree["each"]), dtype=object)
        for k, each in enumerate(tree["each"]):
            out[k] = next(others) if isinstance(each, dict) and "estimator" in each else self.unpack(each)
        return out

    def _estimators(self, key: str) -> list[Any]:
        found = load_estimators(self.arrays[key].tobytes(), "the models of a checkpoint", self.trusted)
        return list(found)

    def _record(self, name: str, fields: dict[str, Tree]) -> Any:
        kind = self._record_type(name)
        return kind(**{field: self.unpack(each) for field, each in fields.items()})

    def _record_type(self, name: str) -> Any:
        """A record that the modules of the algorithm know under this name, or one of the fixed list."""
        scopes = [_scope_of(kind) for kind in type(self.owner).__mro__]
        if name in RECORDS:
            scopes.append(vars(importlib.import_module(RECORDS[name])))
        for scope in scopes:
            kind = scope.get(name)
            if isinstance(kind, type) and kind.__name__ == name and _is_record(kind):
                return kind
        raise InputError(
            f"Expected records of {type(self.owner).__name__} in the checkpoint, got {name!r}: it was made by another "
            "algorithm."
        )


def _scope_of(kind: type) -> dict[str, Any]:
    """The names that the functions of a class see: those of its module."""
    return next((member.__globals__ for member in vars(kind).values() if isinstance(member, FunctionType)), {})


def _is_record(kind: type) -> bool:
    """NamedTuples, and the dataclasses of the fixed list: they only hold what they are given."""
    named = issubclass(kind, tuple) and hasattr(kind, "_fields")
    return named or RECORDS.get(kind.__name__) == kind.__module__


def _fields(value: Any) -> dict[str, Any] | None:
    """The fields of a record; None if it is none."""
    if isinstance(value, type) or not _is_record(type(value)):
        return None
    if isinstance(value, tuple):
        return dict(value._asdict())  # type: ignore[attr-defined]  # a NamedTuple
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
