"""Code of the user's own: objects from ``file.py:Name``, and the types that a saved run may load."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from kinfolk.checks import InputError, comma_list
from kinfolk.tables.settings import GIVEN, PLUS


def code_file(place: Any) -> Path | None:
    """The file of ``file.py:Name``; None for anything else."""
    file = place.rpartition(":")[0] if isinstance(place, str) else ""
    return Path(file).resolve() if file.endswith(".py") else None


def code_files(settings: Mapping[str, Any]) -> Iterator[tuple[str, Path]]:
    """The files of code that settings name, each with what it is for: a model, a method or a member.

    >>> [(what, file.name) for what, file in code_files({"model": "ridge", "members": "pooled,+mine.py:Mine"})]
    [('member', 'mine.py')]
    """
    members = settings.get("members", ())
    several = comma_list(members) if isinstance(members, str) else members if isinstance(members, list | tuple) else ()
    names = [each.removeprefix(PLUS) if isinstance(each, str) else each for each in several]
    places = [*((what, settings.get(what)) for what in ("model", "method")), *(("member", each) for each in names)]
    found = ((what, code_file(place)) for what, place in places)
    return ((what, file) for what, file in found if file is not None)


def given_name(thing: Any) -> str:
    """How settings call what was given as an object, or as a type."""
    return f"{GIVEN}{thing.__name__ if isinstance(thing, type) else type(thing).__name__}"


def from_file(place: str, what: str, known: list[str]) -> Any:
    """An object from ``file.py:Name``, in a file of the user's own. The file is run: only do so with one they named."""
    file, name = code_file(place), place.rpartition(":")[2]
    if file is None:
        raise InputError(f"Expected {what}, one of {', '.join(known)}, or file.py:Name, got {place!r}.")
    module = _run_file(file, what)
    if not hasattr(module, name):
        raise InputError(f"Expected {what} called {name!r} in {str(file)!r}, found none.")
    return getattr(module, name)


def trusted_types(trusted: Sequence[str]) -> list[str]:
    """The types that may be loaded: those named, and the classes of every ``file.py`` named, which is run.

    Parameters
    ----------
    trusted : Sequence[str]
        Full names of types, such as ``"mine.Ridge"``, and files, such as ``"mine.py"``.

    Returns
    -------
    list[str]
        Full names of types.
    """
    found = []
    for each in trusted:
        module = _run_file(Path(each).resolve(), "types of models") if each.endswith(".py") else None
        found += [each] if module is None else _own_classes(module)
    return found


def _own_classes(module: ModuleType) -> list[str]:
    if sys.modules[module.__name__] is not module:
        raise InputError(
            f"Expected a file with a name of its own, {module.__file__!r} is called like a module that is in use: "
            "rename it, and fit again."
        )
    own = [value for value in vars(module).values() if isinstance(value, type) and value.__module__ == module.__name__]
    return [f"{module.__name__}.{each.__name__}" for each in own]


def _run_file(source: Path, what: str) -> ModuleType:
    """Run a file, as a module in which saved models of its types are looked for."""
    if not source.is_file():
        raise InputError(f"Expected {what} in {str(source)!r}, found no such file.")
    spec = importlib.util.spec_from_file_location(source.stem, source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if getattr(sys.modules.get(source.stem), "__file__", str(source)) == str(source):
        sys.modules[source.stem] = module
    spec.loader.exec_module(module)
    return module
