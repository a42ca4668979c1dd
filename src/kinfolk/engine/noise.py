"""Noise on what leaves a node: clipped, blurred by Gaussian noise, and counted. Off unless it is asked for.

It acts at one place, where an outbox leaves an algorithm, so that algorithms do not know of it. All that is asked of
them: edges are computed from what both ends have sent, ``inbox.sent`` and ``inbox[...]``. Then both ends of an edge see
the same two values, whatever the noise, and their copies of a dual variable stay equal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np

from kinfolk.checks import AtLeast, Between, InputError, Positive
from kinfolk.engine.protocol import Algorithm, Arrays, Outbox, Sends, Sent, Turn
from kinfolk.network.site import Site
from kinfolk.typing import Bools, Floats, Ints

NEIGHBOURS, COORDINATOR = "neighbours", "coordinator"
# For a node's message to neighbours or to the coordinator, and what it would be without noise.
Draws = Callable[[Turn, int, str, Arrays], np.random.Generator]


@dataclass(frozen=True)
class Noise:
    """Clipping and Gaussian noise on what leaves a node.

    A node's message, all numbers to its neighbours together and likewise those to the coordinator, is shortened to a
    Euclidean norm of at most ``clip``; then every number gets noise. Whatever the rows of the node are, two messages
    differ by at most 2 clip: that is what (ε, δ) is computed from, for two data sets of the node that differ in any way
    but the number of rows.

    Parameters
    ----------
    clip : float
        The largest norm of a message.
    scale : float
        Standard deviation of the noise on every number; 0 for clipping alone, which promises nothing.
    delta : float
        δ of the promise.

    >>> Noise(clip=1.0, scale=4.0).multiplier
    2.0
    """

    clip: Annotated[float, Positive()]
    scale: Annotated[float, AtLeast(0)]
    delta: Annotated[float, Between(0, 1, open_low=True, open_high=True)] = 1e-5

    @property
    def multiplier(self) -> float:
        """Deviation of the noise as a multiple of how much two messages can differ."""
        return self.scale / (2 * self.clip)

    def check(self, algorithm: Algorithm[Any], sends: Sends | None) -> None:
        """Refuse an algorithm whose neighbours cannot work with noise, or where it is not known."""
        name = type(algorithm).__name__
        if sends is None:
            raise InputError(
                f"Expected an algorithm that declares what leaves a node for noise on it, {name} does not: give it a "
                "method sends()."
            )
        unfit = [sent.content for sent in sends.neighbours.values() if not sent.noisy]
        if unfit:
            raise InputError(
                f"Expected an algorithm whose neighbours can work with noise, {name} sends them {unfit[0]!r}, whose "
                "errors would add up: choose another, such as GTVMin or FedRelax."
            )
        telling = [sent for sent in (*sends.neighbours.values(), *sends.coordinator.values()) if not sent.public]
        if telling and not any(sent.noisy for sent in telling):
            raise InputError(f"Expected an algorithm that sends what can bear noise, {name} sends nothing of the kind.")

    def added(self, arrays: Arrays, chosen: Bools, rngs: Callable[[int], np.random.Generator]) -> dict[str, Any]:
        """Arrays (nodes, ...) clipped and with noise in the rows that are chosen; NaN, nothing to send, stays.

        Parameters
        ----------
        arrays : mapping of str to array
            One message of every node.
        chosen : array of bool, shape (nodes,)
            Whose message leaves.
        rngs : callable
            From the row of a node to its generator.

        >>> rows = {"w": np.array([[3.0, 4.0], [0.3, 0.4]])}
        >>> Noise(clip=1.0, scale=0.0).added(rows, np.array([True, True]), np.random.default_rng)["w"].round(3).tolist()
        [[0.6, 0.8], [0.3, 0.4]]
        """
        where = np.flatnonzero(chosen)
        parts = {name: _flat(values[where]) for name, values in arrays.items()}
        norm = np.sqrt(sum((np.nansum(part**2, axis=1) for part in parts.values()), np.zeros(len(where))))
        factor = self.clip / np.maximum(norm, self.clip)
        width = sum(part.shape[1] for part in parts.values())
        drawn = np.stack([rngs(row).normal(size=width) for row in where.tolist()] or [np.zeros(width)])[: len(where)]
        out, begin = {}, 0
        for name, part in parts.items():
            noise = self.scale * drawn[:, begin : begin + part.shape[1]]
            values = np.array(arrays[name])
            values[where] = (factor[:, None] * part + noise).reshape(values[where].shape)
            out[name], begin = values, begin + part.shape[1]
        return out


def _flat(values: Any) -> Floats:
    return np.asarray(values, dtype=np.float64).reshape(len(values), int(np.prod(values.shape[1:])))


def keyed(turn: Turn, node: int, name: str, message: Arrays) -> np.random.Generator:
    """Draws keyed by (seed, node, round): for simulations, as who knows the seed can subtract the noise."""
    return turn.rng(node, f"noise for {name}")


class NoisyOutbox:
    """Adds noise to what leaves the nodes of one site, and counts how many messages that were.

    Parameters
    ----------
    noise : Noise
        How much.
    sends : Sends
        What leaves a node, and what of it can bear noise.
    site : Site
        The nodes. All that have neighbours send, though some of these are at the same site: so it is known what each
        node has told, and a run is the same however nodes are put together.
    draws : callable
        Where the noise comes from.
    """

    def __init__(self, noise: Noise, sends: Sends, site: Site, draws: Draws = keyed) -> None:
        self.noise, self.sends, self.nodes, self.draws = noise, sends, site.nodes, draws
        self.has_neighbours: Bools = site.own_degrees > 0
        self.counts = {place: np.zeros(site.node_count, dtype=np.int64) for place in (NEIGHBOURS, COORDINATOR)}
        self.exact: dict[str, None] = {}  # what the coordinator has read of rows without noise

    def __call__(self, outbox: Outbox, rows: Ints, turn: Turn) -> Outbox:
        """What leaves instead; ``rows``: which nodes of the site send it."""
        everybody = np.ones(len(rows), dtype=bool)
        read = [self.sends.coordinator[name] for name in outbox.coordinator]
        self.exact |= dict.fromkeys(sent.content for sent in read if sent.read_exactly)
        near = self._added(outbox.neighbours, self.sends.neighbours, self.has_neighbours[rows], rows, turn, NEIGHBOURS)
        far = self._added(outbox.coordinator, self.sends.coordinator, everybody, rows, turn, COORDINATOR)
        return replace(outbox, neighbours=near, coordinator=far)

    def _added(
        self, arrays: Arrays, declared: Mapping[str, Sent], chosen: Bools, rows: Ints, turn: Turn, name: str
    ) -> Arrays:
        blurred = {each: values for each, values in arrays.items() if declared[each].noisy}
        if not blurred or not chosen.any():
            return arrays
        self.counts[name][rows[chosen]] += 1
        numbers = self.nodes[rows]

        def drawn(row: int) -> np.random.Generator:
            message = {each: values[row] for each, values in blurred.items()}
            return self.draws(turn, int(numbers[row]), name, message)

        return {**arrays, **self.noise.added(blurred, chosen, drawn)}
