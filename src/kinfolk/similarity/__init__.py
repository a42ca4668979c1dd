"""Graphs from data: who is kin, judged by what the nodes have.

A measure gives a distance for every pair of nodes and declares what has to leave a node for it (``needs``, ``leaves``);
``nearest_kin`` turns it into a graph. ``pooling_test`` then asks of every edge whether pooling its ends pays.

>>> import numpy as np
>>> from kinfolk import Network, graphs
>>> x = np.array([[1.0], [2.0]])
>>> network = Network(graphs.edgeless(4), [(x, a * x[:, 0]) for a in (1.0, 1.1, 5.0, 5.2)])
>>> kin = nearest_kin(network, ParameterDistance(), k=1)
>>> kin.to_frame()[["head", "tail"]].values.tolist()
[[0, 1], [2, 3]]
>>> network.with_graph(kin)
Network(4 nodes, 2 edges, 8 samples, 1 features)
"""

from kinfolk.similarity.divergence import EmbeddedDivergence, kullback_leibler
from kinfolk.similarity.joining import Measure, Placed, nearest_kin
from kinfolk.similarity.measures import (
    DeviationDistance,
    MixingDistance,
    ParameterDistance,
    PredictionDistance,
    QuantileDistance,
)
from kinfolk.similarity.pooling import PoolingTest, pooling_test

__all__ = [
    "DeviationDistance", "EmbeddedDivergence", "Measure", "MixingDistance", "ParameterDistance", "Placed",
    "PoolingTest", "PredictionDistance", "QuantileDistance", "kullback_leibler", "nearest_kin", "pooling_test",
]  # fmt: skip
