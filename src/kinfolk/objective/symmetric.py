"""Symmetric systems of every node at once: solutions and inverses, pseudo-inverses where a matrix is singular."""

from __future__ import annotations

import numpy as np

from kinfolk.typing import Floats

WELL_CONDITIONED = 1e5  # up to which an inverse and a pseudo-inverse are alike to 1e-11


def solve_symmetric(matrices: Floats, rows: Floats) -> Floats:
    """The solutions x of M x = b for positive semi-definite M, of least norm after scaling M to a unit diagonal.

    >>> solve_symmetric(np.array([[[4.0, 0.0], [0.0, 0.0]]]), np.array([[2.0, 0.0]]))
    array([[0.5, 0. ]])
    """
    return (invert_symmetric(matrices) @ rows[:, :, None])[:, :, 0]


def invert_symmetric(matrices: Floats) -> Floats:
    """The inverses with which ``solve_symmetric`` solves."""
    diagonal = np.einsum("nkk->nk", matrices)
    scale = np.where(diagonal > 0, 1.0 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0)), 0.0)
    inverse = _inverses(scale[:, :, None] * matrices * scale[:, None, :])
    return scale[:, :, None] * inverse * scale[:, None, :]


def _inverses(matrices: Floats) -> Floats:
    """Inverses of symmetric matrices that are far from singular, at a tenth of the time; of others, pseudo-inverses."""
    try:
        inverses = np.asarray(np.linalg.inv(matrices), dtype=np.float64)
    except np.linalg.LinAlgError:  # one of them is singular
        return np.asarray(np.linalg.pinv(matrices, hermitian=True), dtype=np.float64)
    condition = np.linalg.norm(matrices, axis=(1, 2)) * np.linalg.norm(inverses, axis=(1, 2))
    near_singular = ~(condition < WELL_CONDITIONED)
    inverses[near_singular] = np.linalg.pinv(matrices[near_singular], hermitian=True)
    return inverses
