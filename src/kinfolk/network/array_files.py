"""Arrays in files, with some words beside them. Nothing is unpickled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy


def array_bytes(arrays: Mapping[str, Any], words: dict[str, str] | None = None) -> bytes:
    """Arrays, and some words beside them, as the content of a file."""
    solid = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    content: bytes = safetensors.numpy.save(solid, metadata=words)
    return content


def read_arrays(file: Path) -> tuple[Mapping[str, str], dict[str, Any]]:
    """The words and the arrays of a file."""
    content = file.read_bytes()
    arrays = safetensors.numpy.load(content)
    size = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + size]).get("__metadata__", {}), arrays


def plain(value: Any) -> Any:
    """A value as JSON can hold it: numbers and arrays of NumPy as numbers, all else as text."""
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else str(value)
