"""kinfolk: one tailored model for every local data set in a network.

The public names stand in ``__init__.pyi``, where type checkers look for them. Each is imported when it is first used,
so that ``import kinfolk`` and ``kinfolk --help`` are quick.
"""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from typing import Any

from kinfolk.version import __version__


def _public_names() -> dict[str, tuple[str, str]]:
    """Every public name: the module it is imported from, and its name there."""
    stub = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [line for line in stub.body if isinstance(line, ast.ImportFrom)]
    return {name.asname or name.name: (str(line.module), name.name) for line in imports for name in line.names}


_HOMES = _public_names()

__all__ = ["__version__", *(name for name in _HOMES if name != "__version__")]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'kinfolk' has no attribute {name!r}")
    home, known_as = _HOMES[name]
    if home == "kinfolk":
        return importlib.import_module(f"kinfolk.{known_as}")
    module = importlib.import_module(home)
    return getattr(module, known_as) if hasattr(module, known_as) else importlib.import_module(f"{home}.{known_as}")


def __dir__() -> list[str]:
    return sorted(__all__)
