"""The Kullback–Leibler divergence between the rows of nodes, in the plane of a t-SNE embedding.

SarcheshmehPour, Tian, Zhang, Jung: Clustered Federated Learning via Generalized Total Variation Minimization (2023),
section VI-C; the estimator is that of Perez-Cruz: Kullback-Leibler divergence estimation of continuous distributions
(2008). With s_r the distance from row r of node i to its k-th nearest other row of i, and t_r to its k-th nearest row
of j,

    D(i ‖ j) = d / m_i Σ_r log(t_r / s_r) + log(m_j / (m_i − 1))                                                 (1)

Where i has rows far from all of j's, (1) is too small: for a Gaussian against a narrower one (D = 0.98, in the plane)
it gives 0.5 with 500 rows and 0.75 with 8,000, while the other direction (0.45) is right to 0.02 (measured).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, ClassVar

import numpy as np
from scipy.spatial import KDTree
from scipy.spatial.distance import cdist

from kinfolk import kernels
from kinfolk.checks import AtLeast, InputError, Positive
from kinfolk.network.data import rows_of, starts_of
from kinfolk.network.network import Network
from kinfolk.similarity.joining import Needs
from kinfolk.typing import Floats, Ints

FEW_ROWS = 64  # of a node, up to which comparing with all is quicker than a search tree
SAME_PLACE = 1e-12  # shortest distance, relative to the spread of all rows: rows may coincide


@dataclass(frozen=True)
class EmbeddedDivergence:
    """The Kullback–Leibler divergence of nodes' features after t-SNE has laid all rows out in the plane.

    (1) is not symmetric, and negative by chance for nodes that are alike: both directions are averaged, and what is
    below 0 becomes 0. t-SNE is joint, so **rows of all nodes must be brought together**; labels are not used. t-SNE
    takes most of the time. Nodes with fewer than ``neighbours`` + 1 rows have no (1)
    and have no neighbours.

    Parameters
    ----------
    neighbours : k in (1); more make the estimate smoother, and blur.
    perplexity : of t-SNE; at most a third of the number of rows is used.
    embed : False leaves t-SNE out and takes the features as they are: for few of them.
    seed : for t-SNE.

    >>> from kinfolk import graphs
    >>> rng = np.random.default_rng(0)
    >>> sets = [(rng.normal(centre, 1.0, (50, 1)), np.zeros(50)) for centre in (0.0, 0.0, 3.0)]
    >>> apart = EmbeddedDivergence(embed=False).distances(Network(graphs.chain(3), sets))
    >>> bool(apart[0, 1] < 1.0 < apart[0, 2])
    True
    """

    neighbours: Annotated[int, AtLeast(1)] = 5
    perplexity: Annotated[float, Positive()] = 30.0
    embed: bool = True
    seed: int = 0

    needs: ClassVar[Needs] = "pooled rows"
    leaves: ClassVar[str] = "the features of all rows"

    def distances(self, network: Network) -> Floats:
        """(D(i ‖ j) + D(j ‖ i)) / 2, at least 0."""
        data = network.data
        known = np.flatnonzero(data.sizes > self.neighbours)
        rows, starts = data.X[rows_of(data.starts, known)], starts_of(data.starts, known)
        out = np.full((data.node_count, data.node_count), np.nan)
        if len(known):
            divergence = kullback_leibler(self._lay_out(rows), starts, self.neighbours)
            out[np.ix_(known, known)] = np.maximum((divergence + divergence.T) / 2, 0.0)
        return out

    def _lay_out(self, rows: Floats) -> Floats:
        """All rows in the plane."""
        if not self.embed:
            return rows
        from sklearn.manifold import TSNE

        perplexity = min(self.perplexity, max(1.0, (len(rows) - 1) / 3))
        start = "pca" if min(rows.shape) >= 2 and np.ptp(rows, axis=0).any() else "random"
        embedding = TSNE(perplexity=perplexity, init=start, random_state=self.seed)
        return np.asarray(embedding.fit_transform(rows), dtype=np.float64)


def kullback_leibler(points: Any, starts: Ints, neighbours: int = 5) -> Floats:
    """(1) for all pairs of nodes, whose points stand one node's after the other's; zero on the diagonal.

    All points look for their neighbours at one node after the other, so that no pair is visited on its own.

    >>> kullback_leibler([[0.0], [1.0], [2.0], [4.0]], np.array([0, 2, 4]), neighbours=1).round(2)
    array([[0.  , 1.04], [0.55, 0.  ]])
    """
    points, sizes = np.asarray(points, dtype=np.float64), np.diff(starts)
    if (sizes <= neighbours).any():
        raise InputError(
            f"Expected more than {neighbours} rows at every node to find {neighbours} neighbours, got {sizes.min()}."
        )
    floor = SAME_PLACE * (np.ptp(points, axis=0).max() or 1.0)
    blocks = [points[start:end] for start, end in pairwise(starts)]
    own = np.concatenate([_kth_distance(block, block, neighbours + 1) for block in blocks])  # itself comes first
    near = np.log(np.maximum(own, floor))
    out = np.empty((len(sizes), len(sizes)))
    for j, block in enumerate(blocks):
        far = np.log(np.maximum(_kth_distance(points, block, neighbours), floor))
        out[:, j] = points.shape[1] * kernels.sum_rows(far - near, starts) / sizes
    out += np.log(sizes[None, :] / (sizes[:, None] - 1.0))
    np.fill_diagonal(out, 0.0)
    return out


def _kth_distance(points: Floats, block: Floats, k: int) -> Floats:
    """The distance of every point from its k-th nearest in the block."""
    if len(block) > FEW_ROWS:
        out: Floats = KDTree(block).query(points, [k])[0][:, 0]
        return out
    return np.partition(cdist(points, block), k - 1, axis=1)[:, k - 1]
