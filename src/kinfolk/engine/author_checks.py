"""What an author of an algorithm can get wrong, found in its first rounds and reported in a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from kinfolk.checks import InputError, listing
from kinfolk.engine.protocol import (
    Algorithm,
    Arrays,
    Coordinated,
    Messages,
    Outbox,
    Replies,
    Reply,
    Sends,
    Sent,
    SiteId,
    axes_of,
)
from kinfolk.network.site import Site


def check_state(algorithm: Algorithm[Any], site: Site, answer: Any, before: Any) -> None:
    """A pair of state and outbox, with arrays that have a row for every node or edge of the site, of one type."""
    name = type(algorithm).__name__
    if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], Outbox)):
        raise InputError(f"Expected (state, Outbox) from the step or init of {name}, got {answer!r:.80}.")
    state = answer[0]
    for field, axis in axes_of(state).items():
        values, count = getattr(state, field), site.node_count if axis == "node" else len(site.weights)
        if not isinstance(values, np.ndarray):
            raise InputError(f"Expected an array for the field {field!r} of {name}, got {type(values).__name__}.")
        if len(values.shape) == 0 or len(values) != count:
            raise InputError(
                f"Expected {count} rows, one per {axis}, in the field {field!r} of {name}, got shape {values.shape}."
            )
        if before is not None:
            _check_alike(name, field, values, getattr(before, field, None))


def _check_alike(name: str, field: str, values: Any, before: Any) -> None:
    """A field keeps the type and the shape that it has had from the start."""
    if before is None or (values.dtype, values.shape[1:]) != (before.dtype, before.shape[1:]):
        had = "no such field" if before is None else f"{before.dtype} of shape {before.shape[1:]}"
        raise InputError(
            f"Expected the field {field!r} of {name} to stay as in round 0, {had} per row, got {values.dtype} of shape "
            f"{values.shape[1:]}."
        )


def check_outbox(algorithm: Algorithm[Any], site: Site, outbox: Outbox, before: Arrays | None) -> None:
    """Arrays of numbers, a row for every node of the site; to the neighbours the same names in every round."""
    name = type(algorithm).__name__
    for to, arrays in (("the neighbours", outbox.neighbours), ("the coordinator", outbox.coordinator)):
        for key, values in arrays.items():
            _check_array(name, to, key, values, site.node_count)
    if before is not None and set(before) != set(outbox.neighbours):
        raise InputError(
            f"Expected {name} to send {listing(before)} to the neighbours in every round, as in round 0, got "
            f"{listing(outbox.neighbours)}."
        )


def check_read(algorithm: Algorithm[Any], answers: Mapping[SiteId, Messages], round_: int) -> None:
    """Nothing is sent to a coordinator in a round in which it does not read."""
    sent = {name for answer in answers.values() for name in answer.coordinator}
    if sent and isinstance(algorithm, Coordinated) and not algorithm.reads(round_):
        raise InputError(
            f"Expected {type(algorithm).__name__} to send nothing to the coordinator in round {round_}, where its "
            f"reads() is False, got {listing(sorted(sent))}."
        )


def check_declared(algorithm: Algorithm[Any], outbox: Outbox, sends: Sends) -> None:
    """Nothing leaves a node that is not declared, in any round."""
    name = type(algorithm).__name__
    _check_declared(name, "the neighbours", outbox.neighbours, sends.neighbours)
    _check_declared(name, "the coordinator", outbox.coordinator, sends.coordinator)


def check_reply(algorithm: Algorithm[Any], reply: Reply, replies: Replies) -> None:
    """The coordinator answers nothing that is not declared."""
    name = type(algorithm).__name__
    for arrays, declared, axes in ((reply.to_all, replies.to_all, 0), (reply.to_each, replies.to_each, 1)):
        for key, given in arrays.items():
            values = np.asarray(given)
            sent = declared.get(key)
            if sent is None or not _fits(values.shape[axes:], sent.shape) or values.dtype != np.dtype(sent.dtype):
                expected = "nothing" if sent is None else f"{sent.dtype} of shape {sent.shape} at most"
                raise InputError(
                    f"Expected the coordinator of {name} to answer only what it declares, for {key!r} {expected}, got "
                    f"{values.dtype} of shape {values.shape[axes:]}: correct its replies()."
                )


def _fits(shape: tuple[int, ...], most: tuple[int, ...]) -> bool:
    return len(shape) == len(most) and all(size <= limit for size, limit in zip(shape, most, strict=True))


def _check_array(name: str, to: str, key: str, values: Any, count: int) -> None:
    if not isinstance(values, np.ndarray) or values.dtype == object:
        raise InputError(f"Expected an array of numbers for {key!r}, which {name} sends to {to}, got {values!r:.80}.")
    if values.ndim == 0 or len(values) != count:
        raise InputError(
            f"Expected {count} rows, one per node present, in {key!r}, which {name} sends to {to}, got shape "
            f"{values.shape}."
        )


def _check_declared(name: str, to: str, arrays: Arrays, declared: Mapping[str, Sent]) -> None:
    for key, values in arrays.items():
        if key not in declared:
            raise InputError(
                f"Expected {name} to send {to} only what it declares ({listing(declared) if declared else 'nothing'}), "
                f"got {key!r}: add it to its sends()."
            )
        sent = declared[key]
        shape = values.shape[1:]
        if not _fits(shape, sent.shape) or values.dtype != np.dtype(sent.dtype):
            raise InputError(
                f"Expected {key!r}, which {name} sends to {to}, as {sent.dtype} of shape {sent.shape} per node at "
                f"most, as declared, got {values.dtype} of shape {values.shape[1:]}."
            )
