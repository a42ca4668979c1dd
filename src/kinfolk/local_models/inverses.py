"""Inverses of the matrices H_i of least squares, prepared once and applied in every round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kinfolk import kernels
from kinfolk.objective.symmetric import WELL_CONDITIONED, invert_symmetric
from kinfolk.typing import Floats, Ints


@dataclass(frozen=True, eq=False)
class DenseInverses:
    """H_i⁻¹ as they stand; of singular matrices, the pseudo-inverses of ``invert_symmetric``."""

    inverse: Floats  # (nodes, parameters, parameters)

    @classmethod
    def of(cls, H: Floats) -> DenseInverses:
        """Those of matrices (nodes, parameters, parameters)."""
        return cls(invert_symmetric(H))

    def solve(self, b: Floats) -> Floats:
        """H_i⁻¹ b_i for rows (nodes, parameters)."""
        out: Floats = (self.inverse @ b[:, :, None])[:, :, 0]
        return out


@dataclass(frozen=True, eq=False)
class LowRankInverses:
    """Inverses of H_i = X_i'X_i + c_i G, where nodes have few rows and G is common: G⁻¹ = R R', Z_i = X_i R and

        H_i⁻¹ = R (I − Z_i' (c_i I + Z_i Z_i')⁻¹ Z_i) R' / c_i  =  R (I − T_i'T_i) R' / c_i

    A node keeps rows times parameters instead of parameters squared numbers.
    """

    root: Floats  # (parameters, parameters) R
    rows: Floats  # (rows, parameters) T_i, one node's after the other's
    starts: Ints  # (nodes + 1,) where they start
    scale: Floats  # (nodes,) c_i

    @classmethod
    def of(cls, X: Floats, starts: Ints, G: Floats, scale: Floats) -> LowRankInverses | None:
        """Those of rows X; None where some H_i would be too near to singular for this form, or a node has many rows."""
        sizes, values = np.diff(starts), np.linalg.eigvalsh(G)
        most, least_scale = int(sizes.max(initial=0)), scale.min(initial=np.inf)
        if 2 * most > len(G) or not (values[0] * WELL_CONDITIONED > values[-1] and least_scale > 0):
            return None
        root = np.linalg.inv(np.linalg.cholesky(G)).T
        owner = np.repeat(np.arange(len(sizes)), sizes)
        place = owner, np.arange(len(X)) - starts[owner]
        Z = np.zeros((len(sizes), most, len(G)))
        Z[place] = X @ root
        inner = Z @ Z.swapaxes(1, 2)
        if not least_scale * WELL_CONDITIONED > np.einsum("nkk->n", inner).max(initial=0.0):
            return None
        lower = np.linalg.cholesky(inner + scale[:, None, None] * np.eye(most))
        return cls(root, np.linalg.solve(lower, Z)[place], starts, scale)

    def solve(self, b: Floats) -> Floats:
        """H_i⁻¹ b_i for rows (nodes, parameters)."""
        z = b @ self.root
        kernels.subtract_rows(z, self.rows, self.starts)
        z /= self.scale[:, None]
        out: Floats = z @ self.root.T
        return out


Inverses = DenseInverses | LowRankInverses
