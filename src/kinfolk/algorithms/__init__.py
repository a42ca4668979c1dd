"""Algorithms: one file per method of the papers, and the baselines that stand beside them."""

from kinfolk.algorithms.clustered import Clustered, Pooled
from kinfolk.algorithms.fedavg import FedAvg
from kinfolk.algorithms.fedgd import FedGD
from kinfolk.algorithms.gtvmin import GTVMin, Inexact
from kinfolk.algorithms.ifca import IFCA, Given, OneOf, Redrawn, Uniform
from kinfolk.algorithms.local import Local
from kinfolk.algorithms.pfedme import PFedMe
from kinfolk.algorithms.torch_descent import TorchDescent

__all__ = [
    "IFCA", "Clustered", "FedAvg", "FedGD", "GTVMin", "Given", "Inexact", "Local", "OneOf", "PFedMe", "Pooled",
    "Redrawn", "TorchDescent", "Uniform",
]  # fmt: skip
