"""What noise promises: (ε, δ) of every node, from the messages it has sent; dp-accounting (Google) adds up."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas

from kinfolk.checks import installed
from kinfolk.engine.noise import COORDINATOR, NEIGHBOURS, Noise
from kinfolk.typing import Floats, Ints


@lru_cache(maxsize=4096)
def epsilon(multiplier: float, messages: int, delta: float) -> float:
    """ε of so many messages with Gaussian noise, at δ: composed by Rényi divergences, an upper bound.

    Parameters
    ----------
    multiplier : float
        Deviation of the noise, as a multiple of how much two messages can differ.
    messages : int
        How many were sent; each may depend on what was received in answer to those before.
    delta : float
        δ.

    Returns
    -------
    float
        Infinite without noise.

    >>> round(epsilon(10.0, 100, 1e-5), 2)
    4.73
    """
    if not messages:
        return 0.0
    if not multiplier:
        return float("inf")
    accounting = installed("dp_accounting", "what noise promises", "privacy")
    accountant = installed("dp_accounting.rdp", "what noise promises", "privacy").RdpAccountant()
    accountant.compose(accounting.GaussianDpEvent(multiplier), messages)  # relative to the sensitivity at hand
    return float(accountant.get_epsilon(delta))


@dataclass(frozen=True, eq=False)
class Privacy:
    """What has been spent: how many messages with noise left every node, and what (ε, δ) that gives.

    Two data sets of a node with equally many rows give all that somebody read of it with nearly the same probability:
    P(what was read | one) ≤ e^ε P(what was read | other) + δ.

    Parameters
    ----------
    noise : Noise
        What was added.
    names : sequence
        Of the nodes.
    neighbours, coordinator : array of int, shape (nodes,)
        How many messages with noise left every node, by who reads them. All neighbours read the same.
    exact : tuple of str
        What the coordinator has read of rows without noise. Then nothing is promised, as its replies may tell of it.
    """

    noise: Noise
    names: Sequence[Hashable]
    neighbours: Ints
    coordinator: Ints
    exact: tuple[str, ...] = ()

    def table(self) -> pandas.DataFrame:
        """ε of every node against its neighbours, the coordinator, and all of them together; inf: no promise."""
        near, far = self._epsilon(self.neighbours), self._epsilon(self.coordinator)
        both = self._epsilon(self.neighbours + self.coordinator)
        columns = {
            f"messages to {NEIGHBOURS}": self.neighbours, f"messages to {COORDINATOR}": self.coordinator,
            f"ε, {NEIGHBOURS}": near, f"ε, {COORDINATOR}": far, "ε, together": both,
        }  # fmt: skip
        return pandas.DataFrame(columns, index=pandas.Index(list(self.names), name="node"))

    def _epsilon(self, messages: Ints) -> Floats:
        noise = self.noise
        if self.exact:
            return np.full(len(messages), np.inf)
        return np.array([epsilon(noise.multiplier, count, noise.delta) for count in messages.tolist()])

    def __str__(self) -> str:
        if self.exact:
            return f"Noise promises nothing here: the coordinator reads {self.exact[0]!r} without noise, and replies."
        near, far, both = (float(value) for value in self.table().max().iloc[-3:])
        return (
            f"With δ = {self.noise.delta:g}, all rows of a node are protected by ε = {near:.3g} or less against its "
            f"neighbours, {far:.3g} against the coordinator, {both:.3g} against all of them together."
        )
