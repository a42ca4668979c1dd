"""What comes out of FedCG: one network for all, and the domains of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from kinfolk.algorithms.fedcg.discovery import Discovery, Found
from kinfolk.checks import InputError
from kinfolk.objective.module_losses import ModuleModels
from kinfolk.typing import Floats, Ints

Assign = Literal["vote", "row", "soft"]


@dataclass(frozen=True, eq=False)
class DomainModels:
    """One network for all nodes; every row takes the branch of its domain.

    With ``assign="vote"`` a node has one domain: the one it was found to have, or, where it has none, the one with
    the largest sum of scores over its rows in the same call. ``"row"`` decides row by row, ``"soft"`` mixes branches by
    probabilities.
    """

    network: ModuleModels  # one vector, with branches in which the graph network is already worked in
    discovery: Discovery
    found: Found
    domain: Ints  # (nodes,) the domain of a node; −1: none
    assign: Assign
    domain_count: int  # 0: the network has no branches
    adjacency: Floats  # (domains, domains)

    @property
    def w(self) -> Floats:
        """(nodes, parameters) the network, once for every node."""
        return np.broadcast_to(self.network.w, (len(self.domain), self.network.w.shape[1]))

    def __getitem__(self, node: int) -> Any:
        """The network as a module; with domains it takes their weights (rows, domains) as a second argument."""
        return self.network[0]

    def domains(self, X: Any, node: Any = None) -> Floats:
        """The probability of every domain, (rows, domains), for rows of some nodes, or of nobody in particular.

        Parameters
        ----------
        X : array, shape (rows, features)
            Rows, as the network was learnt from them.
        node : array of int, optional
            The number of the node of every row. Rows of a node that has a domain are in it.

        Returns
        -------
        array, shape (rows, domains)
            Rows add up to one.
        """
        X = np.asarray(X, dtype=np.float64)
        if not self.domain_count:
            return np.ones((len(X), 1))
        out = self.discovery.probabilities(X, self.found)
        if node is None:
            return out
        own = self.domain[np.asarray(node, dtype=np.int64)]
        return np.where(own[:, None] >= 0, np.eye(self.domain_count)[own], out)

    def weights(self, X: Floats, node: Ints) -> Floats:
        """(rows, domains) how much each row takes of every branch."""
        if self.assign == "soft":
            return self.domains(X, node)
        own, scores = self.domain[node], self.discovery.scores(X, self.found)
        if self.assign == "vote":
            scores = self.discovery.agreed(scores, node)
        return np.eye(self.domain_count)[np.where(own >= 0, own, scores.argmax(axis=1))]

    def outputs(self, X: Any, node: Any) -> Floats:
        """The outputs of the network, (rows, outputs)."""
        X, node = np.asarray(X, dtype=np.float64), np.asarray(node, dtype=np.int64)
        if len(node) and (node.min() < 0 or node.max() >= len(self.domain)):
            raise InputError(f"Expected nodes from 0 to {len(self.domain) - 1}, got {node.min()} to {node.max()}.")
        rows = X[:, : X.shape[1] - self.discovery.columns]
        if self.domain_count:
            rows = np.concatenate([rows, self.weights(X, node)], axis=1)
        return self.network.outputs(rows, np.zeros(len(X), dtype=np.int64))

    def predict(self, X: Any, node: Any) -> Floats:
        """A number, or the most probable class, for every row."""
        return self.network.loss.row_loss.answers(self.outputs(X, node))

    def predict_proba(self, X: Any, node: Any) -> Floats:
        """The probability of every class, shape (rows, classes)."""
        return self.network.loss.row_loss.probabilities(self.outputs(X, node))

    def error(self, X: Any, y: Any, node: Any) -> Floats:
        """Squared error of every row, or 1 for a wrong class."""
        return self.network.loss.row_loss.errors(self.outputs(X, node), np.asarray(y))
