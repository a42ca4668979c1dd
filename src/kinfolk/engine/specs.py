"""Specs: what an algorithm is, written down as names and numbers. Two of them can be compared, and some rebuilt.

A dataclass becomes its name and its fields. What cannot be written down (an estimator, a module, a function) becomes
the name of its type and a fingerprint: it has to be given again, and is compared.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from functools import partial
from types import BuiltinMethodType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from kinfolk.network.fingerprint import fingerprint

Spec = Any  # plain data: None, bool, int, float, str, lists and dicts of them


def spec_of(value: Any) -> Spec:
    """What ``value`` is, as plain data.

    >>> from kinfolk import Squared
    >>> spec_of(Squared(ridge=0.5))["fields"]
    {'reduction': 'mean', 'ridge': 0.5, 'intercept': False}
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return {"list" if isinstance(value, list) else "tuple": [spec_of(each) for each in value]}
    if isinstance(value, Mapping):
        return {"mapping": [[spec_of(key), spec_of(each)] for key, each in value.items()]}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: spec_of(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"type": name_of(type(value)), "fields": fields}
    return {"code": name_of(value if isinstance(value, type) else type(value)), "fingerprint": _code_print(value, ())}


def name_of(kind: type) -> str:
    """Module and name of a type."""
    return f"{kind.__module__}.{kind.__qualname__}"


def types_in(value: Any) -> list[str]:
    """The types of all code in a value, such as the estimators of an algorithm that a user has given."""
    found: dict[str, None] = {}
    _collect_types(value, found, set())
    return list(found)


def _collect_types(value: Any, found: dict[str, None], seen: set[int]) -> None:
    if id(value) in seen or value is None or isinstance(value, bool | int | float | str | np.ndarray):
        return
    seen.add(id(value))
    if isinstance(value, list | tuple):
        parts: list[Any] = list(value)
    elif isinstance(value, Mapping):
        parts = list(value.values())
    else:
        found[name_of(value if isinstance(value, type) else type(value))] = None
        parts = list(value.get_params(deep=False).values()) if _is_estimator(value) else list(_fields_of(value))
    for part in parts:
        _collect_types(part, found, seen)


def _is_estimator(value: Any) -> bool:
    return hasattr(value, "get_params") and not isinstance(value, type)


def _fields_of(value: Any) -> Iterator[Any]:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from (getattr(value, field.name) for field in dataclasses.fields(value))


def differences(before: Spec, now: Spec, where: str) -> Iterator[str]:
    """Where two specs differ, in words.

    >>> from kinfolk import Squared
    >>> list(differences(spec_of(Squared()), spec_of(Squared(ridge=1.0)), "the loss"))
    ['the loss: ridge is 1.0 and was 0.0']
    """
    if before == now or (before != before and now != now):
        return
    if _kind(before) != _kind(now):
        yield f"{where} is {_shown(now)} and was {_shown(before)}"
    elif isinstance(before, dict) and "fields" in before:
        for name in {**before["fields"], **now["fields"]}:
            old, new = before["fields"].get(name), now["fields"].get(name)
            if _kind(old) == _kind(new) == "value" and old != new:
                yield f"{where}: {name} is {_shown(new)} and was {_shown(old)}"
            else:
                yield from differences(old, new, f"{where}: {name}")
    elif isinstance(before, dict) and "code" in before:
        yield f"{where} is another {_shown(now)}"
    else:
        yield f"{where} is {_shown(now)} and was {_shown(before)}"


def _kind(spec: Spec) -> str:
    return str(spec.get("type") or spec.get("code") or "container") if isinstance(spec, dict) else "value"


def _shown(spec: Spec) -> str:
    if not isinstance(spec, dict):
        return repr(spec)
    return str(spec.get("type") or spec.get("code") or next(iter(spec.values()))).rpartition(".")[2]


def _code_print(value: Any, above: tuple[int, ...]) -> str:
    """A fingerprint of what cannot be written down: what it holds, not where it lies."""
    if id(value) in above:
        return "itself"
    parts = [name_of(type(value)), *_content(value, (*above, id(value)))]
    return fingerprint(*parts)


def _content(value: Any, above: tuple[int, ...]) -> Iterator[Any]:
    if isinstance(value, type):
        yield name_of(value)
    elif isinstance(value, np.ndarray) and value.dtype != object:
        yield value
    elif isinstance(value, FunctionType):  # the values of globals are not compared
        enclosed = [cell.cell_contents for cell in value.__closure__ or ()]
        held = (value.__code__, value.__defaults__, value.__kwdefaults__, enclosed)
        yield from (_print_of(each, above) for each in held)
    elif isinstance(value, CodeType):  # neither its file nor its lines
        yield from (_print_of(each, above) for each in (value.co_code, value.co_names, value.co_consts))
    elif isinstance(value, MethodType):
        yield from (_print_of(each, above) for each in (value.__func__, value.__self__))
    elif isinstance(value, BuiltinMethodType) and not isinstance(value.__self__, ModuleType):
        yield from (_print_of(each, above) for each in (value.__qualname__, value.__self__))
    elif isinstance(value, partial):
        yield from (_print_of(each, above) for each in (value.func, value.args, value.keywords))
    elif hasattr(value, "state_dict") and hasattr(value, "named_parameters"):  # a module of torch
        yield re.sub(r"0x[0-9a-f]+", "", repr(value))
        for name, tensor in value.state_dict().items():
            lazy = type(tensor).__name__.startswith("Uninitialized")  # its repr has what there is
            whole = tensor if lazy or "bfloat16" not in str(tensor.dtype) else tensor.float()  # NumPy knows no such
            yield from (name,) if lazy else (name, whole.detach().cpu().numpy())
    elif hasattr(value, "get_params"):  # an estimator of scikit-learn
        yield from (_print_of(each, above) for each in sorted(value.get_params(deep=False).items()))
    elif hasattr(value, "get_config") and hasattr(value, "get_weights"):  # a model of Keras
        yield repr(value.get_config())
        yield from value.get_weights()
    elif getattr(value, "__dict__", None):
        yield from (_print_of(each, above) for each in sorted(vars(value).items()))
    else:
        yield re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def _print_of(value: Any, above: tuple[int, ...]) -> str:
    """A fingerprint of anything."""
    if isinstance(value, list | tuple):
        return fingerprint(type(value).__name__, *(_print_of(each, above) for each in value))
    if isinstance(value, Mapping):
        return fingerprint("mapping", *(_print_of(each, above) for each in value.items()))
    if isinstance(value, set | frozenset):
        return fingerprint("set", *sorted(_print_of(each, above) for each in value))
    if value is None or isinstance(value, bool | int | float | str | bytes | np.generic):
        return fingerprint(repr(value))
    return _code_print(value, above)
