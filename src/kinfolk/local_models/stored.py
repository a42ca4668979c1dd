"""Fitted estimators as bytes, and back. What is read may come from anybody, so nothing in it is run.

The bytes are a file of skops: a zip archive with ``schema.json``, a tree of nodes, and arrays in NumPy's own format.
skops calls what a node names. So the tree is read here first (``stored_reader``), node by node, and nothing is built:
every node must have a loader, and every type a name, that stand on lists (``stored_types``). What skops is given
afterwards is not the file, but a copy that holds only what was read.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Sequence
from typing import Any

from kinfolk.checks import InputError, listing, printable
from kinfolk.local_models.stored_reader import Reader, brief, damaged
from kinfolk.local_models.stored_types import TYPES


def dump_estimators(things: Any, what: str) -> bytes:
    """Fitted estimators as bytes that ``load_estimators`` reads.

    Parameters
    ----------
    things : Any
        A fitted estimator, or lists and dicts of them, of None, numbers, strings and arrays.
    what : str
        What they are, for a sentence: ``"the models of node 'a'"``.

    Returns
    -------
    bytes
        A file of skops.

    Raises
    ------
    InputError
        If something cannot be written, or could never be read again because it is code, such as a function.

    >>> from sklearn.linear_model import Ridge
    >>> stored = dump_estimators({"a": Ridge().fit([[0.0], [1.0]], [0.0, 3.0]), "b": None}, "two models")
    >>> load_estimators(stored, "two models")["a"].predict([[1.0]])
    array([2.])
    """
    import skops.io  # slow: it looks at every module of scikit-learn

    try:
        content = bytes(skops.io.dumps(things))
    except Exception as error:  # whatever an estimator of the user's own does not let be written
        raise InputError(
            f"Expected estimators that skops can write, {what} cannot be stored ({brief(error)}): use an estimator of "
            "scikit-learn, or predict in the same session."
        ) from error
    Reader(content, what).read()
    return content


def load_estimators(content: bytes, what: str, trusted: Sequence[str] = ()) -> Any:
    """The estimators in some bytes. No code in them is run, and no type is made that is not on a list.

    Parameters
    ----------
    content : bytes
        What ``dump_estimators`` returned, from anybody.
    what : str
        What they are, for a sentence.
    trusted : Sequence[str]
        Full names of other classes that may be made, such as ``"mine.Ridge"``. A function is refused.

    Returns
    -------
    Any
        What was stored.

    Raises
    ------
    InputError
        If there is anything else in the bytes, or if they are cut or altered.

    >>> load_estimators(b"PK", "the models of a friend")
    Traceback (most recent call last):
    kinfolk.checks.InputError: Expected estimators as kinfolk writes them, the models of a friend ...
    """
    import skops.io

    reader = Reader(content, what)
    clean = reader.read()
    unknown = sorted(reader.classes - TYPES["ObjectNode"] - set(trusted))
    if unknown:
        raise InputError(
            f"Expected known types in {what}, got {listing(unknown, 5)}: if you trust where they come from, name them "
            f"with trusted (--trust {printable(','.join(unknown))}), or the file.py that defines them."
        )
    for name in sorted(reader.classes - TYPES["ObjectNode"]):
        _check_class(name, what)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            loaded = skops.io.loads(clean, trusted=sorted(reader.types))
        except Exception as error:  # values that the types themselves refuse
            raise damaged(what, error) from error
    if caught:
        warnings.warn(f"Loading {what}: {printable(str(caught[0].message))}", stacklevel=2)
    return loaded


def _check_class(name: str, what: str) -> None:
    """Refuse a trusted name that is no class: a function would be called."""
    module, _, attribute = name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"Expected the type {name!r} for {what}, cannot import it: name the file.py that defines it as trusted "
            "(--trust file.py)."
        ) from error
    if not isinstance(found, type):
        raise InputError(f"Expected a class for {what}, {name!r} is none: functions are never trusted.")
