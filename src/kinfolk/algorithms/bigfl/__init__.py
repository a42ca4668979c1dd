"""BiG-FL: models near an embedding of their neighbours, and the embedding learnt, in two levels."""

from kinfolk.algorithms.bigfl.adjoint import Adjoint
from kinfolk.algorithms.bigfl.algorithm import BiGFL
from kinfolk.algorithms.bigfl.lower import GraphEmbedding, LaplacianCoupling, Links, LowerLevel
from kinfolk.algorithms.bigfl.shapes import FullMatrix, LowRank, MatrixPerLayer, NumberPerLayer, Shape
from kinfolk.algorithms.bigfl.upper import Common, CosineEmbedding, HeldOutError, Regression, UpperLevel

__all__ = [
    "Adjoint",
    "BiGFL",
    "Common",
    "CosineEmbedding",
    "FullMatrix",
    "GraphEmbedding",
    "HeldOutError",
    "LaplacianCoupling",
    "Links",
    "LowRank",
    "LowerLevel",
    "MatrixPerLayer",
    "NumberPerLayer",
    "Regression",
    "Shape",
    "UpperLevel",
]
