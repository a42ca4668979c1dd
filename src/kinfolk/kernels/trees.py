"""Predictions of many trees."""

from __future__ import annotations

import numba
import numpy as np

from kinfolk.typing import Floats, Ints


@numba.njit(cache=True)
def tree_sums(
    Z: Floats,
    starts: Ints,
    outputs: Ints,
    feature: Ints,
    threshold: Floats,
    left: Ints,
    right: Ints,
    missing_left: Ints,
    bitset: Ints,
    bitsets: Ints,
    value: Floats,
    output_count: int,
) -> Floats:
    """The sum of the leaves that each row (rows, columns) reaches, by output (rows, outputs).

    Tree t has the nodes starts[t]:starts[t + 1] and adds to outputs[t]. A node with left < 0 is a leaf. A node with
    bitset ≥ 0 sends the categories in that bitset to the left, others to the right.
    """
    out = np.zeros((len(Z), output_count))
    for row in range(len(Z)):
        for tree in range(len(starts) - 1):
            node = starts[tree]
            while left[node] >= 0:
                seen = Z[row, feature[node]]
                if np.isnan(seen):
                    goes_left = missing_left[node] > 0
                elif bitset[node] >= 0:
                    category = int(seen)
                    goes_left = (bitsets[bitset[node], category // 32] >> (category % 32)) & 1 == 1
                else:
                    goes_left = seen <= threshold[node]
                node = starts[tree] + (left[node] if goes_left else right[node])
            out[row, outputs[tree]] += value[node]
    return out
