"""One layer for modules of torch: parameters and buffers as a vector, losses of rows, stacks of nodes, optimisers.

The files of this room import torch; those who work with them reach them through ``layer``.
"""

from __future__ import annotations

import importlib
from typing import Any

from kinfolk.checks import InputError


def layer(name: str, owner: str) -> Any:
    """A file of this room, or an error that explains how to install torch.

    >>> layer("flat", "TorchLoss").FlatModule.__name__
    'FlatModule'
    """
    try:
        importlib.import_module("torch")
        return importlib.import_module(f"kinfolk.modules.{name}")
    except ImportError as error:
        raise InputError(f'Expected torch for {owner}: install it with pip install "kinfolk[torch]".') from error
