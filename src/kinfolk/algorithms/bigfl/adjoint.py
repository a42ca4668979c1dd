"""The adjoint equation (J + δ)ᵀ v = ∂f/∂θ of the game, solved by exchanges between coordinator and nodes.

J is the Jacobian of (∂g_i/∂θ_i) in all θ_j. The game is no minimisation, so J is not symmetric. Its part that needs
data is block diagonal, ∇²F_i, and its other part is the coordinator's. A flexible GMRES (Saad, 1993) takes one
exchange for a step: the coordinator sends v_i, a node answers with

    z_i = (B_i + κ + δ_i + λ ∂²P_i/∂θ_i²)⁻¹ v_i,  B_i its Gauss–Newton matrix,  and  (∇²F_i + κ + δ_i) z_i

so that its own solve is the preconditioner; without one z_i = v_i, which is plain GMRES.

δ = 0 is (10.20) as printed. With networks it is the wrong target: hidden units can turn at all nodes together at almost
no cost, so the game has a valley and no isolated rest, and the exact solve answers how the rest moves along the valley,
where T steps never get. δ = 1/(βT), with T steps of size β between two steps of φ, is the exact answer for a game in
which (δ/2) ‖θ_i − θ_i before‖² is added to every g_i, and near the derivative of those T steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np

from kinfolk.algorithms.parametric import squares
from kinfolk.checks import AtLeast, Positive
from kinfolk.typing import Floats

Product = Callable[[Floats], Floats]


@dataclass(frozen=True)
class Adjoint:
    """How the adjoint equation is solved.

    Parameters
    ----------
    damping : float, optional
        δ; None for 1 / (sum of the step sizes since the last step of φ), at every node. 0 as printed.
    exchanges : int
        Between coordinator and nodes in a step of φ.
    preconditioned : bool
        Whether nodes solve for their own part; False for plain GMRES.
    solve_steps : int
        Steps of conjugate gradients in such a solve, without messages.
    batch : int, optional
        Rows of every node from which curvatures are computed, drawn anew for every step of φ; None for all.
    trust : float
        The largest relative residual with which φ moves; above it the step is skipped.
    """

    damping: Annotated[float, AtLeast(0)] | None = None
    exchanges: Annotated[int, AtLeast(1)] = 4
    preconditioned: bool = True
    solve_steps: Annotated[int, AtLeast(1)] = 30
    batch: Annotated[int, AtLeast(1)] | None = None
    trust: Annotated[float, Positive()] = 0.3


class Solution(NamedTuple):
    """What a solve has found."""

    v: Floats  # (nodes, parameters)
    residual: float  # relative


class Krylov(NamedTuple):
    """A flexible GMRES between two exchanges: A Z = V H, with the columns of V orthonormal."""

    basis: Floats  # (k + 1, nodes, parameters) V
    solved: Floats  # (k, nodes, parameters) Z
    hessenberg: Floats  # (k + 1, k) H
    size: float  # of the right side

    @classmethod
    def of(cls, right: Floats) -> Krylov:
        """Before the first exchange.

        >>> krylov = Krylov.of(np.array([[2.0, 2.0]]))
        >>> krylov.extended(krylov.next, 4.0 * krylov.next).solution().v
        array([[0.5, 0.5]])
        """
        size = float(np.linalg.norm(right))
        return cls((right / size if size > 0 else right)[None], np.zeros((0, *right.shape)), np.zeros((1, 0)), size)

    @property
    def next(self) -> Floats:
        """v (nodes, parameters) of the next exchange."""
        return np.asarray(self.basis[-1])

    def extended(self, solved: Floats, product: Floats) -> Krylov:
        """With z, near A⁻¹ times ``next``, and A z."""
        new, column = product, np.zeros(len(self.basis))
        for _ in range(2):  # twice, against rounding
            share = np.einsum("kni,ni->k", self.basis, new)
            new, column = new - np.einsum("k,kni->ni", share, self.basis), column + share
        length = float(np.linalg.norm(new))
        ended = length <= 1e-14 * max(float(np.linalg.norm(product)), 1e-300)  # the solution is found
        k = self.hessenberg.shape[1]
        hessenberg = np.zeros((k + 2, k + 1))
        hessenberg[: k + 1, :k] = self.hessenberg
        hessenberg[: k + 1, k], hessenberg[k + 1, k] = column, 0.0 if ended else length
        following = np.zeros_like(new) if ended else new / length
        return Krylov(
            np.concatenate([self.basis, following[None]]),
            np.concatenate([self.solved, solved[None]]),
            hessenberg,
            self.size,
        )

    def solution(self) -> Solution:
        """Where the residual is smallest within what was explored."""
        if not np.isfinite(self.hessenberg).all() or not np.isfinite(self.size):
            return Solution(np.zeros_like(self.next), np.inf)
        right = np.zeros(len(self.hessenberg))
        right[0] = self.size
        share = np.linalg.lstsq(self.hessenberg, right, rcond=None)[0]
        missing = float(np.linalg.norm(right - self.hessenberg @ share))
        v = np.einsum("k,kni->ni", share, self.solved)
        return Solution(v, missing / self.size if self.size > 0 else 0.0)


def conjugate_gradients(product: Product, right: Floats, steps: int, accuracy: float = 1e-2) -> Floats:
    """Near the solutions of B_i z_i = right_i, B_i ⪰ 0, of every node by itself.

    A node stops when its residual is below ``accuracy`` times its right side, or where B_i does not bend.
    """
    z, rest = np.zeros_like(right), right.copy()
    along, size = right.copy(), squares(right)
    limit = accuracy**2 * size
    working = size > 0
    for _ in range(steps):
        if not working.any():
            break
        turned = product(along)
        bend = (along * turned).sum(axis=1)
        working &= bend > 0
        step = np.where(working, size / np.where(working, bend, 1.0), 0.0)[:, None]
        z, rest = z + step * along, rest - step * turned
        left = squares(rest)
        share = np.where(working, left / np.where(size > 0, size, 1.0), 0.0)[:, None]
        along, size = rest + share * along, np.where(working, left, size)
        working &= size > limit
    return z


def largest_curvature(product: Product, along: Floats, steps: int) -> tuple[Floats, Floats]:
    """About the largest |eigenvalue| of every node's matrix, by power iteration, and the vectors to go on from."""
    found = np.zeros(len(along))
    for _ in range(steps):
        turned = product(along)
        found = np.sqrt(squares(turned))
        along = np.where(found[:, None] > 0, turned / np.where(found > 0, found, 1.0)[:, None], along)
    return found, along
