"""Maximum flows in whole numbers: can every node send what it has, and if not, which cut is in the way?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from kinfolk.typing import Bools, Floats, Ints

if TYPE_CHECKING:
    pass

ROUNDING = 1e-12  # of sums of floats, relative
FLOW_BITS = 60  # of all capacities together
PASS_BITS = 30  # of one pass: the flow code of SciPy holds 32


def undeliverable(
    head: Ints, tail: Ints, capacity: Floats, supply: Floats, demand: Floats, strict: Bools | None = None
) -> Bools | None:
    """A set of nodes whose supply exceeds its demand and the capacity of the edges that leave it; None if none does.

    Decided in whole numbers of 60 bits. By default rounding favours delivery. If nodes are marked ``strict`` it does
    not: capacities are rounded down and these nodes' supply up, so that flows which arrive prove strict inequalities.

    >>> undeliverable(np.array([0]), np.array([1]), np.array([1.0]), np.array([2.0, 0.0]), np.array([0.0, 2.0]))
    array([ True, False])
    """
    count = len(supply)
    # Units are powers of two: multiplying by them is exact, and so is the comparison of sums.
    shift = FLOW_BITS - int(np.frexp(2 * capacity.sum() + supply.sum() + demand.sum())[1])
    sent, carried, taken = (np.ldexp(values, shift).astype(np.int64) for values in (supply, capacity, demand))
    if strict is None:
        carried, taken = carried + 1, taken + 1
    else:
        sent += strict
    nodes, source, sink = np.arange(count), np.full(count, count), np.full(count, count + 1)
    rows = np.concatenate([head, tail, source, nodes])
    columns = np.concatenate([tail, head, nodes, sink])
    values = np.concatenate([carried, carried, sent, taken])
    residual = csr_array((values, (rows, columns)), shape=(count + 2, count + 2))
    cut = minimum_cut(residual, count, count + 1)
    return None if cut is None else cut[:count]


def minimum_cut(residual: csr_array, source: int, sink: int) -> Bools | None:
    """The source's side of a cut that keeps part of the supply back; None if all of it reaches the sink.

    Capacities are 64-bit integers, SciPy's flows have 32 bits: each pass moves what it can in units of 2⁻³⁰ of what
    is left. At most one unit per arc stays behind for the next pass; if more does, a cut holds it back.
    """
    left = int(residual[[source]].sum())
    while left > 0:
        unit = (left >> PASS_BITS) + 1
        scaled = (np.minimum(residual.data, left) // unit).astype(np.int32)
        units = csr_array((scaled, residual.indices, residual.indptr), shape=residual.shape)
        flow = maximum_flow(units, source, sink).flow.astype(np.int64)
        residual = csr_array(residual - unit * flow)
        left = int(residual[[source]].sum())
        if left > 0 and (unit == 1 or left > unit * residual.nnz):
            return _reached(residual, unit, source)
    return None


def _reached(residual: csr_array, least: int, source: int) -> Bools:
    """The nodes that arcs with room for ``least`` lead to."""
    open_ = residual.data >= least
    arcs = csr_array((open_.astype(np.int8), residual.indices, residual.indptr), shape=residual.shape)
    arcs.eliminate_zeros()
    within = np.zeros(residual.shape[0], dtype=bool)
    within[breadth_first_order(arcs, source, return_predecessors=False)] = True
    return within
